"""Turns from synchronous code, and what is refused there."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Iterator
from contextvars import ContextVar

import anthropic
import httpx2
import pytest
import reactivex

import rxloop
from rxloop.adapters import AnthropicAdapter
from rxloop.adapters.anthropic_errors import classify
from rxloop.adapters.base import Adapter
from rxloop.demand import Demand, current_demand
from tests.providers.anthropic import AnthropicServer, message, text, tool_use
from tests.providers.http import Hold, Reply
from tests.test_long_turn import CountingAdapter


@pytest.fixture
def server() -> Iterator[AnthropicServer]:
    with AnthropicServer() as server:
        yield server


@pytest.fixture
def adapter(server: AnthropicServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[AnthropicAdapter]:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "test-key")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    with AnthropicAdapter(model="claude-test") as adapter:
        yield adapter


def test_the_connection_serves_several_runs(server: AnthropicServer, adapter: AnthropicAdapter) -> None:
    for word in ("one", "two", "three"):
        server.reply(text(word))
        assert rxloop.Turn(adapter, "hello").result_sync().text == word
    assert len(server.requests) == 3
    assert server.open_connections == 1


def test_a_tool_may_not_wait_for_the_run_that_waits_for_it(server: AnthropicServer, adapter: AnthropicAdapter) -> None:
    @rxloop.tool
    def ask() -> str:
        """Ask again."""
        return rxloop.Turn(adapter, "inner").result_sync().text

    server.reply(tool_use("ask", {}))
    server.reply(text("done"))
    result = rxloop.Turn(adapter, "outer", tools=[ask]).result_sync()
    assert result.text == "done"
    assert result.tool_results[0].error is not None
    assert "result_sync() must not be called by a tool" in result.tool_results[0].error


def test_threads_take_turns(server: AnthropicServer, adapter: AnthropicAdapter) -> None:
    texts: list[str] = []
    for _ in range(8):
        server.reply(text("hi"))
    threads = [
        threading.Thread(target=lambda: texts.append(rxloop.Turn(adapter, "hello").result_sync().text))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == ["hi"] * 8


@pytest.mark.filterwarnings("error")
def test_it_is_not_closed_where_a_loop_runs(server: AnthropicServer, adapter: AnthropicAdapter) -> None:
    async def close() -> None:
        with pytest.raises(rxloop.ConfigurationError, match=r"close\(\) must not be called where an event loop runs"):
            adapter.close()
        gc.collect()

    for word in ("one", "two"):
        server.reply(text(word))
        assert rxloop.Turn(adapter, "hello").result_sync().text == word
        asyncio.run(close())
    assert server.open_connections == 1


@pytest.mark.filterwarnings("error")
def test_it_is_not_closed_while_another_thread_runs(server: AnthropicServer, adapter: AnthropicAdapter) -> None:
    server.script(Reply(200, {"content-type": "text/event-stream"}, [Hold("held"), *message(text("one"))]))
    texts: list[str] = []
    thread = threading.Thread(target=lambda: texts.append(rxloop.Turn(adapter, "hello").result_sync().text))
    thread.start()
    server.wait_held("held")
    with pytest.raises(rxloop.ConfigurationError, match=r"close\(\) must not be called while result_sync\(\) runs"):
        adapter.close()
    gc.collect()
    server.release("held")
    thread.join()
    server.reply(text("two"))
    texts.append(rxloop.Turn(adapter, "hello").result_sync().text)
    assert texts == ["one", "two"]
    adapter.close()
    adapter.close()


def test_who_waits_while_it_is_closed_gets_another_loop(adapter: AnthropicAdapter) -> None:
    """Closing and running side by side never meet in the loop that is being closed."""
    outcomes: list[object] = []

    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    def run() -> None:
        for _ in range(100):
            try:
                outcomes.append(adapter.run_sync(work()))
            except BaseException as error:
                outcomes.append(error)

    def close() -> None:
        while any(thread.is_alive() for thread in threads):
            with contextlib.suppress(rxloop.ConfigurationError):
                Adapter.close(adapter)

    adapter.aclose = work  # type: ignore[method-assign, assignment]
    threads = [threading.Thread(target=run) for _ in range(4)]
    closing = threading.Thread(target=close)
    for thread in (*threads, closing):
        thread.start()
    for thread in (*threads, closing):
        thread.join()
    assert outcomes == ["done"] * 400


def test_the_callers_context_reaches_the_tools(server: AnthropicServer, adapter: AnthropicAdapter) -> None:
    tenant: ContextVar[str] = ContextVar("tenant", default="nobody")

    @rxloop.tool
    def whose() -> str:
        """Tell whose turn it is."""
        return tenant.get()

    seen = []
    for name in ("ann", "bob"):
        server.reply(tool_use("whose", {}))
        server.reply(text("done"))
        token = tenant.set(name)
        seen.append(rxloop.Turn(adapter, "hello", tools=[whose]).result_sync().tool_results[0].output)
        tenant.reset(token)
    assert seen == ["ann", "bob"]


def test_without_a_loop_nothing_is_emitted(adapter: AnthropicAdapter) -> None:
    events: list[object] = []
    with pytest.raises(rxloop.ConfigurationError, match="needs a running asyncio event loop"):
        rxloop.Turn(adapter, "hello").subscribe(events.append)
    assert events == []


def test_a_turn_is_not_iterated_over_without_async(adapter: AnthropicAdapter) -> None:
    with pytest.raises(TypeError, match="async for"):
        iter(rxloop.Turn(adapter, "hello"))
    with pytest.raises(rxloop.ConfigurationError, match="result_sync"):
        rxloop.Turn(adapter, "hello").run()


@pytest.mark.parametrize(
    "name", ["api_key", "auth_token", "base_url", "default_headers", "default_query", "http_client", "max_retries"]
)
def test_what_belongs_to_the_client_does_not_get_into_a_request(name: str) -> None:
    with pytest.raises(rxloop.ConfigurationError, match=f"'{name}' belongs to the client") as caught:
        AnthropicAdapter(model="claude-test", **{name: "sk-secret"})
    assert "sk-secret" not in str(caught.value)


@pytest.mark.asyncio
async def test_the_stream_has_the_result_afterwards(server: AnthropicServer) -> None:
    server.reply(text("It is 5."))
    async with server.client() as client:
        turn = rxloop.Turn(AnthropicAdapter(client, model="claude-test"), "2 + 3?")
        async with turn.stream() as events:
            with pytest.raises(rxloop.ConfigurationError, match="must have ended"):
                _ = events.result
            async for _ in events:
                pass
        assert events.result.text == "It is 5."
        assert [message["role"] for message in events.result.conversation] == ["user", "assistant"]
        assert len(server.requests) == 1


@pytest.mark.asyncio
async def test_a_stream_that_is_left_has_a_result_too(server: AnthropicServer) -> None:
    server.stall()
    async with server.client() as client:
        async with rxloop.Turn(AnthropicAdapter(client, model="claude-test"), "hello").stream() as events:
            async for event in events:
                if event.type == "step_started":
                    break
        assert events.result.finish_reason == "aborted"


@pytest.mark.asyncio
async def test_a_reader_made_inside_another_observable_has_its_demand() -> None:
    seen: list[Demand | None] = []

    class Watching(CountingAdapter):
        def step(self, step: rxloop.steps.Step) -> reactivex.Observable[object]:
            seen.append(current_demand())
            return super().step(step)

    streams: list[rxloop.Channel[rxloop.TurnEvent]] = []
    reactivex.of(1).subscribe(lambda _: streams.append(rxloop.iterate(rxloop.Turn(Watching(1), "hello"))))
    async for _ in streams[0]:
        pass
    assert seen
    assert None not in seen


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"retry": 3}, "retry must be RetryPolicy or None, but got 3"),
        ({"limits": {}}, "limits must be Limits or None"),
        ({"breaker": True}, "breaker must be Breaker or None, but got True"),
        ({"on_end": 5}, "on_end must be a function, but got 5"),
        ({"renew": 5}, "renew must be a function, but got 5"),
        ({"resolve_tool_on_miss": 5}, "resolve_tool_on_miss must be a function, but got 5"),
        ({"scheduler": 5}, "scheduler must be SchedulerBase or None, but got 5"),
    ],
)
async def test_a_value_of_the_wrong_kind_is_refused_at_once(options: dict[str, object], rule: str) -> None:
    with pytest.raises(rxloop.ConfigurationError, match=rule):
        rxloop.Turn(CountingAdapter(1), "hello", **options)  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_on_end_may_not_be_a_coroutine_function() -> None:
    async def on_end(_: rxloop.TurnResult) -> None: ...

    with pytest.raises(rxloop.ConfigurationError, match="on_end must be a plain function"):
        rxloop.Turn(CountingAdapter(1), "hello", on_end=on_end)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cause", "rule"),
    [
        (RuntimeError("Event loop is closed"), "make one per asyncio.run"),
        (RuntimeError("Cannot send a request, as the client has been closed."), "the client has been closed"),
        (httpx2.UnsupportedProtocol("Request URL is missing a protocol"), "base_url must be an http or https address"),
    ],
)
def test_a_client_that_can_never_connect_is_not_retried(cause: Exception, rule: str) -> None:
    failed = anthropic.APIConnectionError(request=httpx2.Request("POST", "http://test"))
    failed.__cause__ = cause
    error = classify(failed)
    assert isinstance(error, rxloop.ConfigurationError)
    assert rule in str(error)
    assert not error.retryable
    assert error.__cause__ is failed
