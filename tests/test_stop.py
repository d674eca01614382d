"""Stopping a turn: whatever it is doing, it ends gracefully and can be continued."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import reactivex
from reactivex.subject import Subject

from rxloop.events import StepStarted, ToolFinished, TurnEvent, TurnFinished
from rxloop.steps import TurnResult
from rxloop.testing.grammar import check_grammar
from rxloop.testing.scripted import Recorder
from rxloop.tools import ToolContext, tool
from rxloop.turn import Turn
from rxloop.usage import Usage
from tests.providers.anthropic import AnthropicServer, message, server_tool, text, thinking, tool_use
from tests.providers.http import Hold
from tests.turns import AT_ONCE, add, check_sent, connected, run, waking_only


@pytest.fixture
def server() -> Iterator[AnthropicServer]:
    with AnthropicServer() as server:
        yield server


def _subject() -> tuple[Any, Callable[[], None]]:
    subject: Subject[str] = Subject()
    return subject, lambda: subject.on_next("stop")


def _event() -> tuple[Any, Callable[[], None]]:
    event = asyncio.Event()
    return event, event.set


def _future() -> tuple[Any, Callable[[], None]]:
    future = asyncio.get_running_loop().create_future()
    return future, lambda: future.set_result(None)


def _coroutine() -> tuple[Any, Callable[[], None]]:
    event = asyncio.Event()
    return event.wait(), event.set


def _task() -> tuple[Any, Callable[[], None]]:
    event = asyncio.Event()
    return asyncio.ensure_future(event.wait()), event.set


SIGNALS = {"subject": _subject, "event": _event, "future": _future, "coroutine": _coroutine, "task": _task}


@dataclass(frozen=True)
class Phase:
    """Where a turn is stopped: at the first event of this type, or once the request is there."""

    at: str | None
    text: str = ""
    answer: tuple[str, ...] = ()
    usage: Usage = field(default_factory=Usage)


PHASES = {
    "connecting": Phase(None),
    "thinking": Phase("reasoning_delta", usage=Usage(10, 1)),
    "text": Phase("text_delta", text="so", answer=("text",), usage=Usage(10, 1)),
    "call": Phase("tool_call_delta", text="so far", answer=("thinking", "text"), usage=Usage(10, 1)),
    "second call": Phase("tool_call", answer=("tool_use",), usage=Usage(10, 1)),
    "tools": Phase("tool_progress", text="so far", answer=("text", "tool_use"), usage=Usage(10, 5)),
    "delay": Phase("retry_scheduled"),
    "next step": Phase("step_started", text="so far", answer=("text", "tool_use"), usage=Usage(10, 5)),
}


def _script(server: AnthropicServer, phase: str) -> None:
    match phase:
        case "connecting":
            server.reply(text("late"), prelude=[Hold("for ever")])
        case "thinking":
            server.reply_events(*message(thinking("hm, hm"))[:4], Hold("for ever"))
        case "text":
            server.reply_events(*message(text("so far"))[:4], Hold("for ever"))
        case "call":
            events = message(thinking("hm"), text("so far"), tool_use("add", {"a": 1, "b": 2}))
            server.reply_events(*events[:-3], Hold("for ever"))
        case "second call":
            events = message(tool_use("add", "{}", id="1", pieces=1), tool_use("add", {"a": 1}, id="2"))
            # the first call is whole once the second begins
            server.reply_events(*events[:-4], Hold("for ever"))
        case "tools" | "next step":
            server.reply(text("so far"), tool_use("work", {}))
        case "delay":
            server.fail(529, "overloaded_error", retry_after=30)


@tool
async def work(context: ToolContext) -> str:
    """Work without an end."""
    context.report("begun")
    await asyncio.Event().wait()
    return "never"


@tool(name="work")
async def worked() -> str:
    """Work at once."""
    return "done"


@pytest.mark.asyncio
@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("phase", PHASES)
async def test_a_stop_in_every_phase(server: AnthropicServer, phase: str, signal: str) -> None:
    expected = PHASES[phase]
    _script(server, phase)
    stop, fire = SIGNALS[signal]()
    recorder = Recorder()

    def on_next(event: TurnEvent) -> None:
        recorder.on_next(event)
        first = event.type == expected.at and recorder.types.count(event.type) == 1
        if (event == StepStarted(1)) if phase == "next step" else first:
            fire()

    tools = [add, worked if phase == "next step" else work]
    async with connected(server) as adapter:
        turn = Turn(adapter, "hello", tools=tools, stop=stop, on_end=recorder.keep)
        turn.subscribe(on_next, recorder.on_error, recorder.on_completed)
        if expected.at is None:
            await server.received(1)
            fire()
        if phase == "next step" and signal != "subject":
            # the signal is heard at the loop's next turn, when the request is about to be written
            server.reply_events(Hold("for ever"))
        async with asyncio.timeout(5):
            await recorder.ended.wait()
        await server.idle()
        check_grammar(recorder.events)
        assert recorder.completed
        finished, result = recorder.finished, recorder.result
        assert result is not None
        assert finished.finish_reason == result.finish_reason == "aborted"
        assert finished.text == result.text == expected.text
        assert finished.usage == result.usage == expected.usage
        check_sealed(result, expected.answer)
        server._script.clear()
        server.reply(text("fine"))
        continued = await run(adapter, "go on", conversation=result.conversation)
    assert continued.finished.text == "fine"
    assert check_sent(server.messages[-1])[: len(result.conversation) - 1] == result.conversation[:-1]


def check_sealed(result: TurnResult, answer: tuple[str, ...]) -> None:
    """After the prompt there is the answer so far, and a result for each of its calls."""
    sent = check_sent({"messages": result.conversation})
    assert [item["role"] for item in sent] == ["user", "assistant", "user"][: len(sent)]
    assert tuple(block["type"] for item in sent[1:2] for block in item["content"]) == answer
    calls = answer.count("tool_use")
    assert len(sent) == 1 + bool(answer) + bool(calls)
    results = [block for item in sent[2:] for block in item["content"]]
    assert [block["type"] for block in results] == ["tool_result"] * calls
    real = {item.call_id for item in result.tool_results}
    for block in results:
        assert block.get("is_error", False) is (block["tool_use_id"] not in real)
        assert block["tool_use_id"] in real or "cancelled" in block["content"]


@pytest.mark.asyncio
@pytest.mark.parametrize("signal", [*SIGNALS, "of"])
async def test_a_stop_before_the_start(server: AnthropicServer, signal: str) -> None:
    stop, fire = SIGNALS[signal]() if signal != "of" else (reactivex.of("stop"), lambda: None)
    recorder = Recorder()
    # what has no memory cannot have fired before
    if signal != "subject":
        fire()
    server.reply_events(Hold("for ever"))
    async with connected(server) as adapter:
        if signal == "task":
            await stop
        turn = Turn(adapter, "hello", stop=stop, on_end=recorder.keep)
        turn.subscribe(recorder.on_next, recorder.on_error, recorder.on_completed)
        if signal == "subject":
            fire()
        await recorder.ended.wait()
        await server.idle()
    check_grammar(recorder.events)
    assert recorder.finished.finish_reason == "aborted"
    assert recorder.result is not None
    assert recorder.result.conversation == [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    if signal in ("event", "future", "task", "of"):
        assert recorder.types == ["turn_started", "turn_finished"]
        assert recorder.finished.steps == 0
        assert not server.requests


@pytest.mark.asyncio
async def test_a_stop_while_two_tools_run_keeps_the_real_result(server: AnthropicServer) -> None:
    stop: Subject[None] = Subject()
    cancelled = asyncio.Event()

    @tool
    async def quick() -> str:
        """End at once."""
        return "real"

    @tool
    async def endless() -> None:
        """Never end."""
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    server.reply(text("Both."), tool_use("endless", {}, id="1"), tool_use("quick", {}, id="2"))
    recorder = Recorder()

    def on_next(event: TurnEvent) -> None:
        recorder.on_next(event)
        if isinstance(event, ToolFinished):
            stop.on_next(None)

    async with connected(server) as adapter:
        turn = Turn(adapter, "hello", tools=[quick, endless], stop=stop, on_end=recorder.keep)
        turn.subscribe(on_next, recorder.on_error, recorder.on_completed)
        await recorder.ended.wait()
        await cancelled.wait()
        assert recorder.result is not None
        server.reply(text("fine"))
        await run(adapter, "go on", conversation=recorder.result.conversation, tools=[])
    assert [(item.call_id, item.output) for item in recorder.result.tool_results] == [("2", "real")]
    results = check_sent(server.messages[1])[2]["content"]
    assert [block["type"] for block in results] == ["tool_result", "tool_result", "text"]
    assert results[0]["tool_use_id"] == "1"
    assert results[0]["is_error"] is True
    assert "cancelled" in results[0]["content"]
    assert results[1] == {"type": "tool_result", "tool_use_id": "2", "content": "real"}


@pytest.mark.asyncio
async def test_a_stop_in_a_second_step_keeps_the_first(server: AnthropicServer) -> None:
    stop = asyncio.Event()
    server.reply(text("I add."), tool_use("add", {"a": 2, "b": 3}))
    server.reply_events(*message(thinking("hm"))[:4], Hold("for ever"))
    recorder = Recorder()

    def on_next(event: TurnEvent) -> None:
        recorder.on_next(event)
        if event.type == "reasoning_delta":
            stop.set()

    async with connected(server) as adapter:
        turn = Turn(adapter, "hello", tools=[add], stop=stop, on_end=recorder.keep)
        turn.subscribe(on_next, recorder.on_error, recorder.on_completed)
        await recorder.ended.wait()
        await server.disconnected(1)
    assert recorder.finished.text == "I add.", "the step in flight has none yet"
    assert (recorder.finished.steps, recorder.finished.usage) == (2, Usage(20, 6))
    assert recorder.result is not None
    assert [item.output for item in recorder.result.tool_results] == [5]
    check_sealed(recorder.result, ("text", "tool_use"))


@pytest.mark.asyncio
async def test_a_stop_after_a_pause_drops_what_nothing_answers(server: AnthropicServer) -> None:
    stop = asyncio.Event()
    call, _ = server_tool("web_search", {"query": "x"}, id="srvtoolu_1")
    server.reply(text("I look."), call, stop_reason="pause_turn")
    server.reply_events(*message()[:1], Hold("for ever"))
    async with connected(server) as adapter:
        running = asyncio.ensure_future(Turn(adapter, "hello", stop=stop).result())
        await server.held("for ever")
        stop.set()
        result = await running
        assert result.text == "I look."
        for prompt in ("go on", None):
            server.reply(text("fine"))
            await run(adapter, prompt, conversation=result.conversation, tools=[])
    asked, resumed = (check_sent(body) for body in server.messages[2:])
    assert [block["type"] for block in asked[1]["content"]] == ["text"]
    assert [block["type"] for block in resumed[1]["content"]] == ["text", "server_tool_use"], "a resumption needs it"


@pytest.mark.asyncio
async def test_a_stop_from_another_thread(server: AnthropicServer) -> None:
    stop: Subject[None] = Subject()
    server.reply_events(*message(text("so far"))[:4], Hold("for ever"))
    threads: list[int] = []

    def on_next(event: TurnEvent) -> None:
        threads.append(threading.get_ident())

    async with connected(server) as adapter:
        turn = Turn(adapter, "hello", stop=stop)
        running = asyncio.ensure_future(turn.result())
        await server.held("for ever")
        with waking_only():
            await asyncio.to_thread(stop.on_next, None)
        async with asyncio.timeout(5):
            result = await running
        assert result.finish_reason == "aborted"

        server.reply_events(*message(text("so far"))[:4], Hold("for ever too"))
        ended = asyncio.Event()
        turn.subscribe(on_next, on_completed=ended.set)
        await server.held("for ever too")
        await asyncio.to_thread(stop.on_next, None)
        await ended.wait()
    assert set(threads) == {threading.get_ident()}, "the last event comes from the loop's thread too"


@pytest.mark.asyncio
async def test_a_stop_that_never_comes_changes_nothing(server: AnthropicServer) -> None:
    for stop in (reactivex.empty(), reactivex.never(), Subject(), asyncio.Event()):
        server.reply(text("hm"), tool_use("add", {"a": 2, "b": 3}))
        server.reply(text("5"))
        async with connected(server) as adapter:
            recorder = await run(adapter, stop=stop)
        assert (recorder.finished.text, recorder.finished.finish_reason) == ("5", "stop")


@pytest.mark.asyncio
async def test_one_signal_stops_every_turn_that_listens(server: AnthropicServer) -> None:
    stop = asyncio.Event()
    async with connected(server) as adapter:
        for _ in range(3):
            server.reply_events(*message(text("so far"))[:4], Hold("for ever"))
        turn = Turn(adapter, "hello", stop=stop)
        running = [asyncio.ensure_future(turn.result()) for _ in range(3)]
        await server.received(3)
        stop.set()
        results = await asyncio.gather(*running)
    assert [result.finish_reason for result in results] == ["aborted"] * 3


@pytest.mark.asyncio
async def test_a_stop_reaches_a_reader_that_lags(server: AnthropicServer) -> None:
    stop = asyncio.Event()
    server.reply_events(*message(text("x" * 400, pieces=400)), Hold("for ever"))
    seen = []
    async with connected(server) as adapter:
        async for event in Turn(adapter, "hello", stop=stop, buffer=8, retry=AT_ONCE):
            seen.append(event)
            if len(seen) == 3:
                stop.set()
            await asyncio.sleep(0)
        await server.disconnected(0)
    check_grammar(seen)
    assert isinstance(seen[-1], TurnFinished)
    assert seen[-1].finish_reason == "aborted"
    assert len(seen) < 50
