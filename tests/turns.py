"""What the tests of whole turns share: an adapter of the local server, and a turn run to its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from rxloop.adapters.anthropic import AnthropicAdapter, check_pairs
from rxloop.adapters.base import Adapter
from rxloop.operators import RetryPolicy
from rxloop.testing.grammar import check_grammar
from rxloop.testing.scripted import Recorder
from rxloop.tools import Tool, tool
from rxloop.turn import Turn
from tests.providers.anthropic import AnthropicServer

__all__ = ["AT_ONCE", "NO_RETRY", "add", "check_sent", "connected", "run"]

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
        yield AnthropicAdapter(client, **{"model": "claude-test", **fields})


async def run(adapter: Adapter, prompt: Any = "hello", **options: Any) -> Recorder:
    """Run a turn to its end, its events checked against the grammar."""
    recorder = Recorder()
    tools: Sequence[Tool] = [add]
    turn = Turn(adapter, prompt, on_end=recorder.keep, **{"retry": NO_RETRY, "tools": tools, **options})
    turn.subscribe(recorder.on_next, recorder.on_error, recorder.on_completed)
    async with asyncio.timeout(20):
        await recorder.ended.wait()
    check_grammar(recorder.events, error=recorder.error is not None)
    assert recorder.result is not None, "on_end was not told"
    return recorder


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
