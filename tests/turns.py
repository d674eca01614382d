"""What the tests of whole turns share: an adapter of the local server, and a turn run to its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from rxloop.adapters.anthropic import AnthropicAdapter, check_pairs
from rxloop.adapters.base import Adapter
from rxloop.events import TurnEvent
from rxloop.operators import RetryPolicy
from rxloop.testing.grammar import check_grammar
from rxloop.testing.scripted import Recorder
from rxloop.tools import Tool, tool
from rxloop.turn import Turn
from tests.providers.anthropic import AnthropicServer

__all__ = ["AT_ONCE", "NO_RETRY", "add", "check_sent", "connected", "run", "waking_only"]

NO_RETRY = RetryPolicy(retries=0)
AT_ONCE = RetryPolicy(first_delay=0, max_delay=0)


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@asynccontextmanager
async def connected(server: AnthropicServer, client: Any = None, **fields: Any) -> AsyncIterator[AnthropicAdapter]:
    """An adapter of the server, its client closed at the end."""
    async with client or server.client() as client:
        yield AnthropicAdapter(client, **{"model": "claude-test", "cache": None, **fields})


async def run(
    adapter: Adapter, prompt: Any = "hello", *, watch: Callable[[TurnEvent], None] | None = None, **options: Any
) -> Recorder:
    """Run a turn to its end, its events checked against the grammar; `watch` is shown each of them."""
    recorder = Recorder()
    tools: Sequence[Tool] = [add]
    turn = Turn(adapter, prompt, on_end=recorder.keep, **{"retry": NO_RETRY, "tools": tools, **options})

    def on_next(event: TurnEvent) -> None:
        recorder.on_next(event)
        if watch is not None:
            watch(event)

    turn.subscribe(on_next, recorder.on_error, recorder.on_completed)
    async with asyncio.timeout(20):
        await recorder.ended.wait()
    check_grammar(recorder.events, error=recorder.error is not None)
    assert recorder.result is not None, "on_end was not told"
    return recorder


@contextmanager
def waking_only() -> Iterator[None]:
    """Nothing may be put into the running loop from another thread in a way that would not wake it."""
    loop = asyncio.get_running_loop()
    own, call_soon = threading.get_ident(), loop.call_soon
    strangers: list[Any] = []

    def watched(callback: Any, *arguments: Any, **options: Any) -> asyncio.Handle:
        if threading.get_ident() == own:
            return call_soon(callback, *arguments, **options)
        strangers.append(callback)
        return loop.call_soon_threadsafe(callback, *arguments, **options)

    loop.call_soon = watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        del loop.call_soon  # type: ignore[method-assign]
    assert not strangers, f"another thread called {strangers} in this loop, and nothing wakes it"


def check_sent(body: Mapping[str, Any]) -> list[Any]:
    """The messages of a request, checked for what the API refuses."""
    messages = body["messages"]
    check_pairs(messages)
    for message in messages:
        content = message["content"]
        assert content, "a message must not be empty"
        if isinstance(content, str):
            continue
        for block in content:
            assert block["type"] != "text" or block["text"].strip(), "text must not be blank"
        results = [block["type"] == "tool_result" for block in content]
        assert results == sorted(results, reverse=True), "results come first"
        if message["role"] == "assistant":
            assert content[-1]["type"] not in ("thinking", "redacted_thinking"), "thinking must not end a message"
    return list(messages)
