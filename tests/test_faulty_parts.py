"""Faults of what a caller brings (adapters, policies, tools, values) end a turn clearly, or do not end it at all."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import pytest
import reactivex
from reactivex import Observable
from reactivex.scheduler import ThreadPoolScheduler

import rxloop
from rxloop.adapters.anthropic import AnthropicAdapter
from rxloop.steps import Step, StepResult
from rxloop.tools import Tool
from tests.providers.anthropic import AnthropicServer, text, tool_use
from tests.test_long_turn import CountingAdapter
from tests.turns import add, connected, run


@pytest.fixture
def server() -> Iterator[AnthropicServer]:
    with AnthropicServer() as server:
        yield server


class Unkept(CountingAdapter):
    """Its drafts cannot be made, and its steps end as told."""

    def __init__(self, end: Callable[[], Observable[Any]]) -> None:
        super().__init__(1)
        self.end = end

    def step(self, step: Step) -> Observable[Any]:
        step.draft = self  # type: ignore[assignment]
        return self.end()

    def draft(self) -> StepResult:
        raise LookupError("no draft today")


@pytest.mark.asyncio
async def test_an_adapter_that_cannot_keep_a_reply_does_not_hide_why_it_failed() -> None:
    recorder = await run(Unkept(lambda: reactivex.throw(rxloop.ServerError("down"))))
    assert isinstance(recorder.error, rxloop.ServerError)
    assert recorder.error.partial is not None
    assert "no draft today" in recorder.error.__notes__[0]


@pytest.mark.asyncio
async def test_an_adapter_that_cannot_keep_a_reply_fails_a_turn_that_would_have_ended_well() -> None:
    recorder = await run(Unkept(reactivex.empty))
    assert isinstance(recorder.error, LookupError)


@pytest.mark.asyncio
async def test_an_adapter_that_cannot_keep_a_reply_can_be_disposed() -> None:
    ended: list[rxloop.TurnResult] = []
    subscription = rxloop.Turn(Unkept(reactivex.never), "hello", on_end=ended.append).subscribe()
    subscription.dispose()
    assert [result.finish_reason for result in ended] == ["aborted"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("jitter", "kind"),
    [
        (lambda delay: 1 / 0, ZeroDivisionError),
        (lambda delay: float("nan"), rxloop.ConfigurationError),
        (lambda delay: -1.0, rxloop.ConfigurationError),
        (lambda delay: "soon", rxloop.ConfigurationError),
    ],
)
async def test_a_jitter_that_fails_ends_the_turn(
    server: AnthropicServer, jitter: Callable[[float], Any], kind: type[Exception]
) -> None:
    server.fail(529)
    async with connected(server) as adapter:
        recorder = await run(adapter, retry=rxloop.RetryPolicy(jitter=jitter))
    assert isinstance(recorder.error, kind)


def test_a_jitter_must_be_a_function() -> None:
    with pytest.raises(rxloop.ConfigurationError, match="jitter must be a function, but got None"):
        rxloop.RetryPolicy(jitter=None)  # type: ignore[arg-type]
    with pytest.raises(rxloop.ConfigurationError, match="first_delay must be >= 0 seconds and finite, but got inf"):
        rxloop.RetryPolicy(first_delay=float("inf"))


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_an_error_without_words_is_one_error_result(server: AnthropicServer, kind: str) -> None:
    @rxloop.tool(name="fail")
    async def fail() -> None:
        raise MuteError

    @rxloop.tool(name="fail")
    def fail_in_a_thread() -> None:
        raise MuteError

    server.reply(tool_use("fail", {}))
    server.reply(text("done"))
    async with connected(server) as adapter:
        recorder = await run(adapter, tools=[fail if kind == "async" else fail_in_a_thread])
    assert recorder.result is not None
    assert "MuteError: (no text: its __str__ raised RuntimeError)" in str(recorder.result.tool_results[0].error)
    assert recorder.finished.text == "done"


@pytest.mark.asyncio
async def test_an_observable_tool_may_emit_on_any_thread(server: AnthropicServer) -> None:
    pool = ThreadPoolScheduler(1)

    @rxloop.tool
    def work() -> Observable[str]:
        """Work elsewhere."""
        return reactivex.from_callable(lambda: threading.current_thread().name, scheduler=pool)

    server.reply(tool_use("work", {}))
    server.reply(text("done"))
    threads: set[str] = set()
    async with connected(server) as adapter:
        recorder = await run(adapter, tools=[work], watch=lambda event: threads.add(threading.current_thread().name))
    pool.executor.shutdown()
    assert recorder.finished.text == "done"
    assert threads == {threading.current_thread().name}
    assert recorder.result is not None
    assert recorder.result.tool_results[0].output not in threads


@pytest.mark.asyncio
async def test_a_tool_may_change_what_it_is_given(server: AnthropicServer) -> None:
    def spoil(arguments: dict[str, Any]) -> str:
        arguments["deep"]["list"].append("spoilt")
        arguments["new"] = object()
        return "done"

    server.reply(tool_use("spoil", {"deep": {"list": [1]}}))
    server.reply(text("done"))
    async with connected(server) as adapter:
        recorder = await run(adapter, tools=[Tool.from_schema("spoil", "", {"type": "object"}, spoil)])
    assert recorder.finished.tool_calls[0].arguments == {"deep": {"list": [1]}}
    assert server.messages[1]["messages"][1]["content"][0]["input"] == {"deep": {"list": [1]}}


@pytest.mark.asyncio
async def test_a_generator_does_its_work_in_the_tools_thread(server: AnthropicServer) -> None:
    @rxloop.tool
    def pages() -> Iterator[str]:
        """Make pages."""
        for number in range(3):
            yield f"{number} in {threading.current_thread().name}"

    @rxloop.tool
    async def awaited() -> Iterator[int]:
        """Make numbers."""
        return (number for number in range(3))

    server.reply(tool_use("pages", {}), tool_use("awaited", {}))
    server.reply(text("done"))
    async with connected(server) as adapter:
        recorder = await run(adapter, tools=[pages, awaited])
    assert recorder.result is not None
    in_thread, on_loop = recorder.result.tool_results
    assert in_thread.output == [f"{number} in rxloop-tool-pages" for number in range(3)]
    assert on_loop.error is not None
    assert "it is a generator" in on_loop.error


@pytest.mark.asyncio
async def test_a_key_does_not_get_into_a_traceback(server: AnthropicServer, caplog: pytest.LogCaptureFixture) -> None:
    async with anthropic.AsyncAnthropic(api_key="sk-secret-key\n", base_url=server.url) as client:
        try:
            await rxloop.Turn(AnthropicAdapter(client, model="claude-test"), "hello").result()
        except rxloop.ConfigurationError as error:
            logging.getLogger("test").exception("failed")
            shown = "".join(traceback.format_exception(error))
    assert "sk-secret-key" not in shown + caplog.text


@pytest.mark.asyncio
async def test_many_turns_of_one_reader_wait_for_each_other(server: AnthropicServer) -> None:
    for _ in range(40):
        server.reply(text("hi"))
    async with connected(server) as adapter:
        merged = reactivex.merge(*(rxloop.Turn(adapter, "hello") for _ in range(40)))
        events = rxloop.iterate(merged, buffer=8)
        ended = [event async for event in events if event.type == "turn_finished"]
    assert len(ended) == 40
    assert events.peak_buffered <= 8


@pytest.mark.asyncio
async def test_tools_that_cannot_be_listed_at_all(server: AnthropicServer) -> None:
    def tools() -> list[Tool]:
        raise LookupError("no tools today")

    async with connected(server) as adapter:
        recorder = await run(adapter, tools=tools)
    assert isinstance(recorder.error, LookupError)
    assert recorder.types == ["turn_started"]
    assert not server.requests


@pytest.mark.asyncio
@pytest.mark.parametrize("prompt", ["\ud800", [{"type": "text", "text": "x", "number": float("nan")}]])
async def test_a_request_that_cannot_be_encoded_is_a_configuration_error(server: AnthropicServer, prompt: Any) -> None:
    async with connected(server) as adapter:
        recorder = await run(adapter, prompt)
    assert isinstance(recorder.error, rxloop.ConfigurationError)
    assert "must have a JSON form" in str(recorder.error)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "conversation",
    [None, "hello", {"role": "user"}, [5], [{"role": "user"}], [{"role": "user", "content": None}], [{"content": "x"}]],
)
async def test_a_malformed_conversation_is_refused_at_once(server: AnthropicServer, conversation: Any) -> None:
    async with connected(server) as adapter:
        with pytest.raises(rxloop.ConfigurationError, match=r"conversation must be|a message must have"):
            rxloop.Turn(adapter, "hello", conversation=conversation)


@pytest.mark.asyncio
async def test_a_clock_of_another_thread_keeps_events_on_the_loop(server: AnthropicServer) -> None:
    from reactivex.scheduler import TimeoutScheduler

    server.fail(529)
    server.reply(tool_use("add", {"a": 1, "b": 2}))
    server.reply(text("done"))
    threads: set[str] = set()
    began = time.monotonic()
    async with connected(server) as adapter:
        recorder = await run(
            adapter,
            tools=[add],
            retry=rxloop.RetryPolicy(first_delay=0.01, max_delay=0.01),
            scheduler=TimeoutScheduler.singleton(),
            limits=rxloop.Limits(tool_timeout=30, turn_timeout=30, stall_timeout=30),
            watch=lambda event: threads.add(threading.current_thread().name),
        )
    assert recorder.finished.text == "done"
    assert threads == {threading.current_thread().name}
    assert time.monotonic() - began < 20
