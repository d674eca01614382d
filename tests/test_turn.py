"""A turn against a real wire: what it sends, what it keeps, and how it ends."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from reactivex.disposable import SerialDisposable

from rxloop.adapters.anthropic import AnthropicAdapter
from rxloop.breaker import Breaker
from rxloop.errors import (
    ConfigurationError,
    OverloadedError,
    RxLoopError,
    StreamInterruptedError,
    TimedOutError,
    UsageLimitError,
)
from rxloop.events import (
    StepStarted,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnEvent,
    TurnFinished,
    TurnStarted,
)
from rxloop.limits import Limits
from rxloop.operators import CapReached, Renewal, RetryPolicy
from rxloop.steps import ToolCall, TurnResult
from rxloop.testing.grammar import check_grammar
from rxloop.testing.scripted import Recorder
from rxloop.tools import Tool, ToolContext, tool
from rxloop.turn import Turn
from rxloop.usage import Usage
from tests.operators.virtual import VirtualTime
from tests.providers.anthropic import AnthropicServer, message, server_tool, text, thinking, tool_use
from tests.providers.http import Hold, Reply, Request
from tests.turns import AT_ONCE, NO_RETRY, add, check_sent, connected, run, waking_only


@pytest.fixture
def server() -> Iterator[AnthropicServer]:
    with AnthropicServer() as server:
        yield server


def tool_step(server: AnthropicServer, number: int = 1, **options: Any) -> None:
    """A step with text and one call of `add`."""
    server.reply(text("I add."), tool_use("add", {"a": 2, "b": 3}, id=f"toolu_{number}"), **options)


# cold


@pytest.mark.asyncio
async def test_two_subscriptions_at_once_are_two_runs(server: AnthropicServer) -> None:
    def answer(request: Request) -> Reply:
        last = request.json["messages"][-1]["content"][0]
        blocks = [text("done")] if last["type"] == "tool_result" else [tool_use("add", {"a": 2, "b": 3})]
        return Reply(200, {"content-type": "text/event-stream"}, message(*blocks))

    server.route(answer)
    async with connected(server) as adapter:
        ended: list[TurnResult] = []
        turn = Turn(adapter, "hello", tools=[add], on_end=ended.append)
        recorders = [Recorder(), Recorder()]
        for recorder in recorders:
            turn.subscribe(recorder.on_next, recorder.on_error, recorder.on_completed)
        for recorder in recorders:
            await recorder.ended.wait()
            check_grammar(recorder.events)
    ids = {event.turn_id for recorder in recorders for event in recorder.events if isinstance(event, TurnStarted)}
    assert len(ids) == 2
    assert [recorder.finished.usage for recorder in recorders] == [Usage(20, 10)] * 2
    assert [len(result.tool_results) for result in ended] == [1, 1]
    assert len(server.messages) == 4


@pytest.mark.asyncio
async def test_budgets_belong_to_the_run(server: AnthropicServer) -> None:
    """Retries, strikes and steps of one run are none of the next one's."""

    @tool
    async def fail() -> None:
        raise ValueError("no")

    async with connected(server) as adapter:
        turn = Turn(adapter, "hello", tools=[fail], max_steps=2, retry=AT_ONCE, breaker=Breaker(max_retries=2))
        for _ in range(2):
            server.fail(529, "overloaded_error")
            server.fail(529, "overloaded_error")
            for number in range(2):
                server.reply(tool_use("fail", {}, id=f"toolu_{number}"))
            result = await turn.result()
            assert (result.steps, result.finish_reason) == (2, "tool-calls")
            assert [item.permanently_failed for item in result.tool_results] == [False, False]


@pytest.mark.asyncio
async def test_two_hundred_turns_at_once(server: AnthropicServer) -> None:
    def answer(request: Request) -> Reply:
        messages = request.json["messages"]
        number = messages[0]["content"][0]["text"]
        blocks = [text(f"answer {number}")] if len(messages) == 3 else [tool_use("add", {"a": int(number), "b": 1})]
        return Reply(200, {"content-type": "text/event-stream"}, message(*blocks))

    server.route(answer)
    async with connected(server) as adapter:
        turns = [Turn(adapter, str(number), tools=[add]) for number in range(200)]
        results = await asyncio.gather(*(turn.result() for turn in turns))
    assert [result.text for result in results] == [f"answer {number}" for number in range(200)]
    assert [result.tool_results[0].output for result in results] == [number + 1 for number in range(200)]


# what is kept


@pytest.mark.asyncio
async def test_the_result_of_a_turn(server: AnthropicServer) -> None:
    server.reply(thinking("hm"), text("I add."), tool_use("add", {"a": 2, "b": 3}, id="toolu_1"))
    server.reply(text("It is 5."))
    async with connected(server) as adapter:
        result = await Turn(adapter, "2+3?", tools=[add], system="Be brief.").result()
        assert (result.text, result.finish_reason, result.raw_stop_reason) == ("It is 5.", "stop", "end_turn")
        assert (result.usage, result.steps, result.error) == (Usage(20, 10), 2, None)
        assert result.tool_calls == (ToolCall("toolu_1", "add", {"a": 2, "b": 3}),)
        assert [item.output for item in result.tool_results] == [5]
        assert result.conversation == [
            {"role": "user", "content": [{"type": "text", "text": "2+3?"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "sig"},
                    {"type": "text", "text": "I add."},
                    {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 2, "b": 3}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "5"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "It is 5."}]},
        ]
        server.reply(text("35"))
        await Turn(adapter, "And times 7?", conversation=result.conversation, tools=[add]).result()
    sent = check_sent(server.messages[2])
    assert sent[:4] == result.conversation
    assert sent[4:] == [{"role": "user", "content": [{"type": "text", "text": "And times 7?"}]}]
    assert [body.get("system") for body in server.messages] == ["Be brief.", "Be brief.", None]


async def _failure(server: AnthropicServer, kind: str) -> tuple[Recorder, int]:
    """A turn that fails in its second step; how many requests it made."""
    tool_step(server)
    options: dict[str, Any] = {}
    act: Callable[[], Any] = int
    if kind == "status":
        server.fail(400, "invalid_request_error")
    elif kind == "error event":
        server.error_event(after=message(text("so far", pieces=1))[:4])
    elif kind == "cut":
        server.reply_events(*message(text("so far", pieces=1))[:4])
    elif kind == "usage limit":
        options = {"limits": Limits(total_tokens=15)}
    elif kind == "step clock":
        server.stall(after=message(text("so far", pieces=1))[:4])
        timers = VirtualTime()
        options = {"limits": Limits(step_timeout=60), "scheduler": timers}
        act = functools.partial(timers.advance_by, 61)
    elif kind == "renewal":
        options = {"max_steps": 1, "renew": lambda reached: 1}
    elif kind == "stop signal":
        server.stall(after=message(text("so far", pieces=1))[:4])
        stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        options = {"stop": stop}
        act = functools.partial(stop.set_exception, OverloadedError("the signal's own"))

    def watch(event: TurnEvent) -> None:
        if isinstance(event, TextDelta) and event.step == 1:
            asyncio.get_running_loop().call_soon(act)

    async with connected(server) as adapter:
        recorder = await run(adapter, watch=watch, **options)
        return recorder, len(server.messages)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("kind", "text", "steps"),
    [
        ("status", "I add.", 2),
        ("error event", "so far", 2),
        ("cut", "so far", 2),
        ("usage limit", "I add.", 1),
        ("step clock", "so far", 2),
        ("renewal", "I add.", 1),
        ("stop signal", "so far", 2),
    ],
)
async def test_every_failure_has_what_there_was(server: AnthropicServer, kind: str, text: str, steps: int) -> None:
    recorder, requests = await _failure(server, kind)
    assert isinstance(recorder.error, RxLoopError)
    partial = recorder.error.partial
    assert partial is not None
    assert (partial.text, partial.steps) == (text, steps)
    assert requests == steps
    assert [item.output for item in partial.tool_results] == [5]
    assert [call.call_id for call in partial.tool_calls] == ["toolu_1"]
    begun = Usage(10, 1) if text == "so far" else Usage()
    assert partial.usage == Usage(10, 5) + begun
    roles = [sent["role"] for sent in check_sent({"messages": partial.conversation})]
    assert roles == ["user", "assistant", "user"] + ["assistant"] * (text == "so far")
    assert recorder.result is not None
    assert recorder.result.finish_reason == "error"
    assert recorder.result.error is recorder.error
    assert recorder.result.usage == partial.usage
    assert recorder.result.conversation == partial.conversation


@pytest.mark.asyncio
async def test_tools_that_cannot_be_listed_fail_the_turn_and_nothing_counts_twice(server: AnthropicServer) -> None:
    tool_step(server)
    asked: list[int] = []

    def tools() -> list[Tool]:
        asked.append(1)
        if len(asked) > 1:
            raise LookupError("no tools today")
        return [add]

    async with connected(server) as adapter:
        recorder = await run(adapter, tools=tools)
    assert isinstance(recorder.error, LookupError)
    assert recorder.result is not None
    assert recorder.result.usage == Usage(10, 5)
    assert len(recorder.result.tool_results) == len(recorder.result.tool_calls) == 1
    check_sent({"messages": recorder.result.conversation})


# the end is told once


class Ends:
    def __init__(self) -> None:
        self.results: list[TurnResult] = []
        self.told = asyncio.Event()

    def __call__(self, result: TurnResult) -> None:
        self.results.append(result)
        self.told.set()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("complete", "stop"),
        ("error", "error"),
        ("dispose", "aborted"),
        ("dispose at the start", "aborted"),
        ("dispose at the end", "stop"),
        ("stop", "aborted"),
        ("raise", "error"),
        ("raise at the end", "stop"),
        ("cancel", "aborted"),
        ("break", "aborted"),
        ("result", "stop"),
    ],
)
async def test_on_end_is_told_exactly_once(server: AnthropicServer, way: str, reason: str) -> None:
    if way == "error":
        server.fail(400, "invalid_request_error")
    elif way in ("complete", "result", "dispose at the end", "raise at the end"):
        server.reply(text("so"))
    else:
        server.reply_events(*message(text("so"))[:4], Hold("for ever"))
    ends, recorder, subscription = Ends(), Recorder(), SerialDisposable()
    stop = asyncio.Event()
    actions: dict[tuple[str, str], Any] = {
        ("dispose", "text_delta"): subscription.dispose,
        ("dispose at the start", "turn_started"): subscription.dispose,
        ("dispose at the end", "turn_finished"): subscription.dispose,
        ("stop", "text_delta"): stop.set,
        ("raise", "text_delta"): lambda: {}["the subscriber's own"],
        ("raise at the end", "turn_finished"): lambda: {}["the subscriber's own"],
    }

    def on_next(event: TurnEvent) -> None:
        recorder.on_next(event)
        actions.get((way, event.type), lambda: None)()

    async with connected(server) as adapter:
        turn = Turn(adapter, "hello", retry=NO_RETRY, stop=stop, on_end=ends)
        if way in ("result", "cancel"):
            running = asyncio.ensure_future(turn.result())
            if way == "cancel":
                await server.held("for ever")
                running.cancel()
            await asyncio.wait([running])
        elif way == "break":
            async for event in turn:
                if event.type == "text_delta":
                    break
        else:
            subscription.disposable = turn.subscribe(on_next, recorder.on_error, recorder.on_completed)
            if way == "dispose at the start":
                subscription.dispose()
        await ends.told.wait()
        subscription.dispose()
        server.release("for ever")
        await server.idle()
    assert [result.finish_reason for result in ends.results] == [reason]
    if way.startswith("raise"):
        assert isinstance(recorder.error, KeyError)


@pytest.mark.asyncio
@pytest.mark.parametrize("failing", [False, True])
async def test_an_on_end_that_raises_is_not_lost(server: AnthropicServer, failing: bool) -> None:
    if failing:
        server.fail(400, "invalid_request_error")
    else:
        server.reply(text("5"))
    recorder = Recorder()
    unhandled: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unhandled.append(context["exception"]))

    def on_end(result: TurnResult) -> None:
        raise LookupError("the listener's own")

    async with connected(server) as adapter:
        turn = Turn(adapter, "hello", retry=NO_RETRY, on_end=on_end)
        turn.subscribe(recorder.on_next, recorder.on_error, recorder.on_completed)
        await recorder.ended.wait()
        await asyncio.sleep(0)
    gc.collect()
    if failing:
        assert isinstance(recorder.error, RxLoopError), "the turn's own error comes first"
        assert [type(error) for error in unhandled] == [LookupError]
    else:
        assert isinstance(recorder.error, LookupError)
        assert not unhandled


# synchronous code


def _closed(adapter: AnthropicAdapter) -> None:
    adapter.run_sync(adapter.client.close())
    adapter.close()


def test_from_synchronous_code_with_one_client(server: AnthropicServer) -> None:
    tool_step(server)
    server.reply(text("5"))
    server.reply(text("7"))
    adapter = AnthropicAdapter(server.client(), model="claude-test")
    try:
        first = Turn(adapter, "2+3?", tools=[add]).result_sync()
        second = Turn(adapter, "and 2 more?", conversation=first.conversation).result_sync()
        assert server.open_connections == 1, "the connection outlives the call"
    finally:
        _closed(adapter)
    assert (first.text, second.text) == ("5", "7")


def test_from_several_threads(server: AnthropicServer) -> None:
    server.route(lambda request: Reply(200, {"content-type": "text/event-stream"}, message(text("5"))))
    adapter = AnthropicAdapter(server.client(), model="claude-test")
    try:
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(lambda _: Turn(adapter, "hello").result_sync().text, range(12)))
    finally:
        _closed(adapter)
    assert results == ["5"] * 12


def test_a_failure_reaches_synchronous_code(server: AnthropicServer) -> None:
    server.fail(529, "overloaded_error")
    server.reply(text("5"))
    adapter = AnthropicAdapter(server.client(), model="claude-test")
    try:
        with pytest.raises(OverloadedError) as caught:
            Turn(adapter, "hello", retry=NO_RETRY).result_sync()
        assert caught.value.partial is not None
        assert Turn(adapter, "hello").result_sync().text == "5"
    finally:
        _closed(adapter)


@pytest.mark.asyncio
async def test_not_where_a_loop_runs(server: AnthropicServer) -> None:
    async with connected(server) as adapter:
        with pytest.raises(ConfigurationError, match=r"await turn.result\(\)"):
            Turn(adapter, "hello").result_sync()


@pytest.mark.asyncio
async def test_an_adapter_of_synchronous_code_may_be_dropped_where_a_loop_runs(server: AnthropicServer) -> None:
    server.reply(text("5"))

    def synchronous() -> None:
        adapter = AnthropicAdapter(server.client(), model="claude-test")
        Turn(adapter, "hello").result_sync()
        adapter.run_sync(adapter.client.close())
        adapters.append(adapter)

    adapters: list[AnthropicAdapter] = []
    await asyncio.to_thread(synchronous)
    adapters.clear()
    gc.collect()


# the loop


@pytest.mark.asyncio
async def test_a_renewal_and_its_nudge_reach_the_wire(server: AnthropicServer) -> None:
    for number in range(3):
        tool_step(server, number)
    asked: list[CapReached] = []

    def renew(reached: CapReached) -> Renewal | int | None:
        asked.append(reached)
        return {1: Renewal(2, "One more, then answer."), 2: 3, 3: None}[reached.max_steps]

    async with connected(server) as adapter:
        recorder = await run(adapter, max_steps=1, renew=renew)
    assert [reached.max_steps for reached in asked] == [1, 2, 3]
    assert (recorder.finished.steps, recorder.finished.finish_reason) == (3, "tool-calls")
    second, third = check_sent(server.messages[1]), check_sent(server.messages[2])
    assert second[-1]["content"] == [
        {"type": "tool_result", "tool_use_id": "toolu_0", "content": "5"},
        {"type": "text", "text": "One more, then answer."},
    ]
    assert third[:3] == second, "history does not change"
    assert [block["type"] for block in third[-1]["content"]] == ["tool_result"]
    assert recorder.result is not None
    assert check_sent({"messages": recorder.result.conversation})[2] == second[-1]


@pytest.mark.asyncio
@pytest.mark.parametrize("limit", ["total_tokens", "input_tokens", "output_tokens"])
async def test_a_turn_that_spent_its_tokens_asks_no_more(server: AnthropicServer, limit: str) -> None:
    tool_step(server, usage={"input_tokens": 100, "output_tokens": 100})
    async with connected(server) as adapter:
        recorder = await run(adapter, limits=Limits(**{limit: 100}))
    assert isinstance(recorder.error, UsageLimitError)
    assert limit in str(recorder.error)
    assert recorder.types[-1] == "tool_finished", "what was asked for has run"
    assert len(server.messages) == 1


@pytest.mark.asyncio
async def test_an_answer_that_is_paid_for_is_not_lost(server: AnthropicServer) -> None:
    server.reply(text("5"), usage={"input_tokens": 100, "output_tokens": 100})
    async with connected(server) as adapter:
        recorder = await run(adapter, limits=Limits(total_tokens=1))
    assert recorder.finished.text == "5"


@pytest.mark.asyncio
async def test_tools_are_asked_for_before_every_step(server: AnthropicServer) -> None:
    @tool
    async def late() -> str:
        """Come later."""
        return "here"

    offered: list[Tool] = [add]

    @tool
    async def unlock() -> str:
        """Make a tool appear."""
        offered.append(late)
        offered.remove(add)
        return "unlocked"

    offered.append(unlock)
    server.reply(tool_use("unlock", {}))
    server.reply(tool_use("late", {}), tool_use("add", {"a": 1, "b": 2}))
    server.reply(text("done"))
    async with connected(server) as adapter:
        recorder = await run(adapter, tools=lambda: list(offered))
    declared = [[item["name"] for item in body["tools"]] for body in server.messages]
    assert declared == [["add", "unlock"], ["unlock", "late"], ["unlock", "late"]]
    assert recorder.result is not None
    outcomes = {item.name: (item.output, item.error) for item in recorder.result.tool_results}
    assert outcomes["late"] == ("here", None)
    assert "no tool named 'add'" in str(outcomes["add"][1])


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_tool_that_was_looked_up_is_declared_from_then_on(server: AnthropicServer, kind: str) -> None:
    asked: list[str] = []

    def resolve(name: str) -> Tool | None:
        asked.append(name)
        return {"add": add}.get(name)

    async def resolve_later(name: str) -> Tool | None:
        await asyncio.sleep(0)
        return resolve(name)

    server.reply(tool_use("add", {"a": 1, "b": 2}, id="1"), tool_use("nothing", {}, id="2"))
    server.reply(tool_use("add", {"a": 3, "b": 4}, id="3"))
    server.reply(text("done"))
    async with connected(server) as adapter:
        recorder = await run(adapter, tools=[], resolve_tool_on_miss=resolve if kind == "sync" else resolve_later)
    assert asked == ["add", "nothing"], "what was found is not looked up again"
    assert [[item["name"] for item in body.get("tools", ())] for body in server.messages] == [[], ["add"], ["add"]]
    assert recorder.result is not None
    assert {item.call_id: item.output for item in recorder.result.tool_results} == {"1": 3, "2": None, "3": 7}


@pytest.mark.asyncio
async def test_a_pause_is_resumed_and_the_answer_is_one(server: AnthropicServer) -> None:
    call, answer = server_tool("web_search", {"query": "x"}, id="srvtoolu_1")
    server.reply(thinking("hm"), text("I look. "), call, stop_reason="pause_turn")
    server.reply(answer, text("Found."))
    async with connected(server) as adapter:
        recorder = await run(adapter)
    assert recorder.finished.text == recorder.text == "I look. Found."
    assert (recorder.finished.steps, recorder.finished.finish_reason) == (2, "stop")
    sent = check_sent(server.messages[1])
    assert [item["role"] for item in sent] == ["user", "assistant"], "nothing is put between"
    assert sent[1]["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "text", "text": "I look. "},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
    ]


@pytest.mark.asyncio
async def test_a_provider_that_only_pauses_is_left_at_last(server: AnthropicServer) -> None:
    call, _ = server_tool("web_search", {}, id="srvtoolu_1")
    paused = message(text("I look."), call, stop_reason="pause_turn")
    server.route(lambda request: Reply(200, {"content-type": "text/event-stream"}, paused))
    async with connected(server) as adapter:
        recorder = await run(adapter, max_steps=100)
        assert (recorder.finished.steps, recorder.finished.raw_stop_reason) == (9, "pause_turn")
        assert recorder.finished.finish_reason == "other"
        assert recorder.result is not None
        server.script(Reply(200, {"content-type": "text/event-stream"}, message(text("fine"))))
        await run(adapter, "never mind", conversation=recorder.result.conversation)
    sent = check_sent(server.messages[-1])
    assert sent[-1] == {"role": "user", "content": [{"type": "text", "text": "never mind"}]}
    kinds = {block["type"] for block in sent[-2]["content"]}
    assert kinds == {"text"}, "a call of the provider's that nothing answers is refused before a user's message"


@pytest.mark.asyncio
async def test_a_refusal_ends_the_turn_and_is_not_sent_again(server: AnthropicServer) -> None:
    server.reply(text("I can"), tool_use("add", {"a": 1, "b": 2}), stop_reason="refusal")
    async with connected(server) as adapter:
        recorder = await run(adapter, retry=AT_ONCE)
        assert (recorder.finished.finish_reason, recorder.finished.steps) == ("content-filter", 1)
        assert "tool_started" not in recorder.types
        server.reply(text("5"))
        assert recorder.result is not None
        await run(adapter, "something else", conversation=recorder.result.conversation)
    (sent,) = check_sent(server.messages[1])
    assert [block["text"] for block in sent["content"]] == ["hello", "something else"]


@pytest.mark.asyncio
async def test_a_stop_reason_without_its_call_ends_the_turn(server: AnthropicServer) -> None:
    server.reply(text("5"), stop_reason="tool_use")
    async with connected(server) as adapter:
        recorder = await run(adapter)
    assert (recorder.finished.finish_reason, recorder.finished.raw_stop_reason) == ("stop", "tool_use")
    assert len(server.messages) == 1


@pytest.mark.asyncio
async def test_a_call_without_its_stop_reason_is_run(server: AnthropicServer) -> None:
    server.reply(tool_use("add", {"a": 2, "b": 3}), stop_reason="end_turn")
    server.reply(text("5"))
    async with connected(server) as adapter:
        recorder = await run(adapter)
    assert recorder.types.count("tool_finished") == 1
    assert recorder.finished.text == "5"


@pytest.mark.asyncio
async def test_a_call_that_the_token_limit_cut_off_is_told_to_the_model(server: AnthropicServer) -> None:
    whole, cut = tool_use("add", {"a": 1, "b": 2}, id="1"), tool_use("add", '{"a": 2, "b"', id="2")
    server.reply(whole, cut, stop_reason="max_tokens")
    server.reply(tool_use("add", {"a": 3, "b": 4}, id="3"), stop_reason="max_tokens")
    server.reply(text("done"))
    async with connected(server) as adapter:
        await run(adapter)
    first, second = (check_sent(body)[-1]["content"] for body in server.messages[1:])
    assert first[0] == {"type": "tool_result", "tool_use_id": "1", "content": "3"}
    assert first[1]["is_error"] is True
    assert "token limit" in first[1]["content"]
    assert check_sent(server.messages[1])[1]["content"][1]["input"] == {"INVALID_JSON": '{"a": 2, "b"'}
    assert second == [{"type": "tool_result", "tool_use_id": "3", "content": "7"}], "a whole call is run"


@pytest.mark.asyncio
async def test_an_empty_answer_after_tools_is_an_answer(server: AnthropicServer) -> None:
    tool_step(server)
    server.reply()
    async with connected(server) as adapter:
        recorder = await run(adapter, retry=AT_ONCE)
        assert (recorder.finished.text, recorder.finished.finish_reason) == ("", "stop")
        assert recorder.result is not None
        server.reply(text("5"))
        await run(adapter, "well?", conversation=recorder.result.conversation)
    assert [item["role"] for item in check_sent(server.messages[2])] == ["user", "assistant", "user"]


# tools


@pytest.mark.asyncio
async def test_a_turn_inside_a_tool(server: AnthropicServer) -> None:
    def answer(request: Request) -> Reply:
        messages = request.json["messages"]
        if messages[0]["content"][0]["text"] == "inner":
            blocks = [text("inner answer", pieces=12)]
        else:
            blocks = [text("outer answer")] if len(messages) == 3 else [tool_use("ask", {})]
        return Reply(200, {"content-type": "text/event-stream"}, message(*blocks))

    server.route(answer)
    async with connected(server) as adapter:

        @tool
        async def ask(context: ToolContext) -> str:
            """Ask another model."""
            result = ""
            async for event in Turn(adapter, "inner", buffer=8):
                if isinstance(event, TextDelta):
                    context.report(event.text)
                    result += event.text
            return result

        seen = []
        # a reader that lags pauses the outer turn, not the inner one
        async for event in Turn(adapter, "outer", tools=[ask], buffer=8):
            seen.append(event)
            await asyncio.sleep(0)
    check_grammar(seen)
    assert isinstance(seen[-1], TurnFinished)
    assert seen[-1].text == "outer answer"
    assert [event.output for event in seen if isinstance(event, ToolFinished)] == ["inner answer"]


@pytest.mark.asyncio
async def test_tools_see_the_callers_context(server: AnthropicServer) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="default")

    @tool
    def in_a_thread() -> str:
        """Look in a thread."""
        assert threading.current_thread() is not threading.main_thread()
        value = variable.get()
        variable.set("changed by the thread")
        return value

    @tool
    async def on_the_loop() -> str:
        """Look on the loop."""
        value = variable.get()
        variable.set("changed by the task")
        return value

    server.reply(tool_use("in_a_thread", {}), tool_use("on_the_loop", {}))
    server.reply(text("done"))
    variable.set("the caller's")
    async with connected(server) as adapter:
        result = await Turn(adapter, "hello", tools=[in_a_thread, on_the_loop]).result()
    assert [item.output for item in result.tool_results] == ["the caller's"] * 2
    assert variable.get() == "the caller's"


@pytest.mark.asyncio
async def test_results_are_sent_in_call_order_and_told_as_they_come(server: AnthropicServer) -> None:
    first_may_end = asyncio.Event()

    @tool
    async def slow() -> str:
        """Wait for the other."""
        await first_may_end.wait()
        return "slow"

    @tool
    async def quick() -> str:
        """Do not wait."""
        first_may_end.set()
        return "quick"

    server.reply(tool_use("slow", {}, id="1"), tool_use("quick", {}, id="2"))
    server.reply(text("done"))
    async with connected(server) as adapter:
        recorder = await run(adapter, tools=[slow, quick])
    told = [event.call_id for event in recorder.events if isinstance(event, ToolFinished)]
    assert told == ["2", "1"]
    sent = check_sent(server.messages[1])[-1]["content"]
    assert [(block["tool_use_id"], block["content"]) for block in sent] == [("1", "slow"), ("2", "quick")]


# leaving


def test_a_loop_that_ends_takes_the_turn_with_it(server: AnthropicServer) -> None:
    server.reply_events(*message(text("so far"))[:4], Hold("for ever"))
    recorder = Recorder()

    async def main() -> None:
        client = server.client()
        adapter = AnthropicAdapter(client, model="claude-test")
        turn = Turn(adapter, "hello", on_end=recorder.keep)
        turn.subscribe(recorder.on_next, recorder.on_error, recorder.on_completed)
        await server.held("for ever")

    asyncio.run(main())
    server.wait_disconnected(0)
    server.wait_closed()
    assert isinstance(recorder.error, StreamInterruptedError)
    assert not recorder.error.retryable
    assert recorder.result is not None
    assert recorder.result.text == "so"


def test_a_loop_that_ends_while_a_tool_runs(server: AnthropicServer) -> None:
    tool_step(server)
    recorder = Recorder()
    cancelled = []

    async def main() -> None:
        started = asyncio.Event()

        @tool(name="add")
        async def endless(a: int, b: int) -> None:
            """Never end."""
            started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

        async with server.client() as client:
            turn = Turn(AnthropicAdapter(client, model="claude-test"), "hello", tools=[endless], on_end=recorder.keep)
            turn.subscribe(recorder.on_next, recorder.on_error, recorder.on_completed)
            await started.wait()

    asyncio.run(main())
    assert cancelled == [True]
    server.wait_closed()


@pytest.mark.asyncio
@pytest.mark.parametrize("event_type", ["turn_started", "step_started", "text_delta", "tool_finished", "turn_finished"])
async def test_a_subscriber_that_is_cancelled_ends_its_subscription(server: AnthropicServer, event_type: str) -> None:
    tool_step(server)
    server.reply(text("5"))
    recorder = Recorder()

    def on_next(event: TurnEvent) -> None:
        recorder.on_next(event)
        if event.type == event_type:
            raise asyncio.CancelledError

    async with connected(server) as adapter:
        turn = Turn(adapter, "hello", tools=[add], on_end=recorder.keep)
        turn.subscribe(on_next, recorder.on_error, recorder.on_completed)
        async with asyncio.timeout(5):
            await recorder.ended.wait()
        await server.idle()
    assert isinstance(recorder.error, asyncio.CancelledError)
    assert recorder.types.count(event_type) == 1
    assert recorder.result is not None


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("event_type", ["step_started", "text_delta", "tool_started", "tool_finished", "turn_finished"])
def test_an_interrupt_goes_through_and_leaves_nothing(
    server: AnthropicServer, event_type: str, interrupt: type[BaseException]
) -> None:
    tool_step(server)
    server.reply(text("5"))
    recorder = Recorder()

    def on_next(event: TurnEvent) -> None:
        recorder.on_next(event)
        if event.type == event_type:
            raise interrupt

    async def main() -> None:
        async with server.client() as client:
            turn = Turn(AnthropicAdapter(client, model="claude-test"), "hello", tools=[add], on_end=recorder.keep)
            turn.subscribe(on_next, recorder.on_error, recorder.on_completed)
            await recorder.ended.wait()

    with pytest.raises(interrupt):
        asyncio.run(main())
    server.wait_closed()
    assert recorder.types.count(event_type) == 1
    assert recorder.types[-1] == event_type
    assert recorder.result is not None, "on_end is told all the same"


@pytest.mark.asyncio
@pytest.mark.parametrize("phase", ["reply", "delay", "tool"])
async def test_a_disposal_from_another_thread(server: AnthropicServer, phase: str) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    @tool(name="add")
    async def endless(a: int, b: int) -> None:
        """Never end."""
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    if phase == "reply":
        server.reply_events(*message(text("so far"))[:4], Hold("for ever"))
    elif phase == "delay":
        server.fail(529, "overloaded_error", retry_after=30)
    else:
        tool_step(server)
    recorder = Recorder()

    def on_next(event: TurnEvent) -> None:
        recorder.on_next(event)
        if event.type == {"reply": "text_delta", "delay": "retry_scheduled", "tool": "nothing"}[phase]:
            started.set()

    async with connected(server) as adapter:
        subscription = Turn(adapter, "hello", tools=[endless], on_end=recorder.keep).subscribe(
            on_next, recorder.on_error, recorder.on_completed
        )
        await started.wait()
        count = len(recorder.events)
        with waking_only():
            await asyncio.to_thread(subscription.dispose)
        if phase == "reply":
            await server.disconnected(0)
        elif phase == "tool":
            async with asyncio.timeout(5):
                await cancelled.wait()
        await server.idle()
    assert len(recorder.events) == count
    assert not recorder.ended.is_set()
    assert recorder.result is not None
    assert recorder.result.finish_reason == "aborted"


# clocks


def no_timer_is_left(timers: VirtualTime) -> None:
    now = timers.clock
    timers.advance_by(1000)
    assert timers.ran_after(now) == []


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("limits", "clock"),
    [
        (Limits(turn_timeout=60), "turn"),
        (Limits(step_timeout=60), "step"),
        (Limits(stall_timeout=60), "stall"),
        (Limits(first_event_timeout=5, stall_timeout=60), "stall"),
    ],
)
async def test_the_clocks_of_a_reply_run_on_the_scheduler(server: AnthropicServer, limits: Limits, clock: str) -> None:
    server.reply_events(*message(text("so far"))[:4], Hold("for ever"))
    recorder, seen, timers = Recorder(), asyncio.Event(), VirtualTime()

    def on_next(event: TurnEvent) -> None:
        recorder.on_next(event)
        if isinstance(event, TextDelta):
            seen.set()

    async with connected(server) as adapter:
        turn = Turn(adapter, "hello", retry=NO_RETRY, limits=limits, scheduler=timers, on_end=recorder.keep)
        turn.subscribe(on_next, recorder.on_error, recorder.on_completed)
        await seen.wait()
        timers.advance_by(59.5)
        assert not recorder.ended.is_set()
        timers.advance_by(1)
        await server.disconnected(0)
    check_grammar(recorder.events, error=True)
    assert isinstance(recorder.error, TimedOutError)
    assert (recorder.error.clock, recorder.error.seconds) == (clock, 60)
    assert recorder.error.partial is not None
    assert recorder.error.partial.text == "so"
    no_timer_is_left(timers)


@pytest.mark.asyncio
async def test_a_silent_attempt_is_retried_on_the_scheduler(server: AnthropicServer) -> None:
    server.stall(before_headers=True)
    server.reply(text("5"))
    recorder, timers = Recorder(), VirtualTime()
    retry = RetryPolicy(first_delay=10, jitter=lambda delay: delay)
    limits = Limits(first_event_timeout=5, turn_timeout=60)
    async with connected(server) as adapter:
        turn = Turn(adapter, "hello", retry=retry, limits=limits, scheduler=timers)
        turn.subscribe(recorder.on_next, recorder.on_error, recorder.on_completed)
        await server.received(1)
        timers.advance_by(5)
        await server.disconnected(0)
        assert recorder.types[-1] == "retry_scheduled"
        timers.advance_by(9.5)
        assert len(server.messages) == 1
        timers.advance_by(0.5)
        await recorder.ended.wait()
    assert recorder.finished.text == "5"
    no_timer_is_left(timers)


@pytest.mark.asyncio
async def test_a_tools_clock_is_the_models_to_read(server: AnthropicServer) -> None:
    started = asyncio.Event()

    @tool(name="add")
    async def endless(a: int, b: int) -> None:
        """Never end."""
        started.set()
        await asyncio.Event().wait()

    tool_step(server)
    server.reply(text("never mind"))
    recorder, timers = Recorder(), VirtualTime()
    async with connected(server) as adapter:
        turn = Turn(adapter, "hello", tools=[endless], limits=Limits(tool_timeout=60), scheduler=timers)
        turn.subscribe(recorder.on_next, recorder.on_error, recorder.on_completed)
        await started.wait()
        timers.advance_by(60)
        await recorder.ended.wait()
    assert recorder.finished.text == "never mind"
    (result,) = check_sent(server.messages[1])[-1]["content"]
    assert result["is_error"] is True
    assert "timed out after 60 s" in result["content"]


@pytest.mark.asyncio
async def test_the_turns_clock_runs_while_a_tool_does(server: AnthropicServer) -> None:
    started = asyncio.Event()

    @tool
    async def endless() -> None:
        """Never end."""
        started.set()
        await asyncio.Event().wait()

    server.reply(text("hm"), tool_use("add", {"a": 2, "b": 3}, id="1"), tool_use("endless", {}, id="2"))
    recorder, timers, ended = Recorder(), VirtualTime(), asyncio.Event()

    def on_next(event: TurnEvent) -> None:
        recorder.on_next(event)
        if isinstance(event, ToolFinished):
            ended.set()

    async with connected(server) as adapter:
        limits = Limits(turn_timeout=60, step_timeout=10)
        turn = Turn(adapter, "hello", tools=[add, endless], limits=limits, scheduler=timers)
        turn.subscribe(on_next, recorder.on_error, recorder.on_completed)
        await ended.wait()
        timers.advance_by(60)
        assert isinstance(recorder.error, TimedOutError)
    assert recorder.error.clock == "turn"
    assert recorder.error.partial is not None
    assert [item.output for item in recorder.error.partial.tool_results] == [5], "a real result is kept"
    results = check_sent({"messages": recorder.error.partial.conversation})[-1]["content"]
    assert [block.get("is_error", False) for block in results] == [False, True]
    no_timer_is_left(timers)


# values


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"max_steps": 0}, r"max_steps must be a whole number >= 1, but got 0"),
        ({"max_steps": 1.5}, r"max_steps must be .* but got 1.5"),
        ({"max_steps": True}, r"max_steps must be .* but got True"),
        ({"max_steps": "3"}, r"max_steps must be .* but got '3'"),
        ({"concurrency": 0}, r"concurrency must be .* >= 1, but got 0"),
        ({"buffer": 7}, r"buffer must be .* >= 8, but got 7"),
        ({"stop": 5}, r"stop must be an observable, .* but got 5"),
        ({"tools": [5]}, r"a tool must be .* but got 5"),
        ({"tools": add}, r"tools must be a list of tools, but got"),
        ({"tools": {"name": "x"}}, r"tools must be a list of tools, but got"),
        ({"prompt": ""}, r"prompt must be non-empty"),
        ({"prompt": "  \n"}, r"prompt must be non-empty"),
        ({"prompt": []}, r"prompt must be non-empty"),
        ({"prompt": ["hello", ""]}, r"prompt must be non-empty"),
        ({"prompt": [{"type": "text", "text": " "}]}, r"prompt must be non-empty"),
        ({"prompt": [{"no": "type"}]}, r"prompt must be non-empty text or content blocks"),
        ({"prompt": 5}, r"prompt must be non-empty text or content blocks, but got 5"),
        ({"prompt": None}, r"needs a prompt or a conversation"),
    ],
)
async def test_a_value_that_can_never_work_is_refused_at_once(
    server: AnthropicServer, options: dict[str, Any], rule: str
) -> None:
    async with connected(server) as adapter:
        with pytest.raises(ConfigurationError, match=rule):
            Turn(adapter, **{"prompt": "hello", **options})
    assert not server.requests


@pytest.mark.asyncio
async def test_tools_of_the_same_name_are_refused(server: AnthropicServer) -> None:
    @tool(name="add")
    async def other() -> None:
        """Be another."""

    async with connected(server) as adapter:
        with pytest.raises(ConfigurationError, match="tool names must be unique, but 'add' is given twice"):
            Turn(adapter, "hello", tools=[add, other])
        # what a callable gives is known when it is asked
        with pytest.raises(ConfigurationError, match="tool names must be unique, but 'add' is given twice"):
            await Turn(adapter, "hello", tools=lambda: [add, other]).result()


def test_only_an_adapter_is_an_adapter() -> None:
    with pytest.raises(ConfigurationError, match="adapter must be Adapter, but got 'claude'"):
        Turn("claude", "hello")  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_a_highest_step_cap_is_the_adapters(server: AnthropicServer) -> None:
    async with connected(server) as adapter:
        assert Turn(adapter, "hello").max_steps == 16
        adapter.max_steps_limit = 100
        assert Turn(adapter, "hello", max_steps=100).max_steps == 100
        with pytest.raises(ConfigurationError, match="max_steps must be <= 100 with anthropic, but got 101"):
            Turn(adapter, "hello", max_steps=101)


@pytest.mark.asyncio
async def test_the_turns_name_is_the_callers_or_new(server: AnthropicServer) -> None:
    server.reply(text("5"))
    async with connected(server) as adapter:
        recorder = await run(adapter, turn_id="mine")
    assert recorder.events[:2] == [TurnStarted("mine", "anthropic", "claude-test"), StepStarted(0)]


@pytest.mark.asyncio
async def test_a_plain_function_is_a_tool(server: AnthropicServer) -> None:
    def double(x: int) -> int:
        """Double."""
        return 2 * x

    server.reply(tool_use("double", {"x": 4}))
    server.reply(text("8"))
    async with connected(server) as adapter:
        recorder = await run(adapter, tools=[double])
    assert [event.name for event in recorder.events if isinstance(event, ToolStarted)] == ["double"]
    assert recorder.result is not None
    assert recorder.result.tool_results[0].output == 8
