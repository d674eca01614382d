"""The Anthropic adapter keeps what every adapter has to keep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from rxloop.adapters.anthropic import AnthropicAdapter
from rxloop.testing.conformance import AdapterConformance
from rxloop.testing.scripted import Reply
from tests.providers.anthropic import AnthropicServer, Block, message, raw_block, sse, thinking, tool_use, unknown_event
from tests.providers.http import Close, Hold, split_every

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class AnthropicProvider:
    has_tools = True

    def __init__(self, server: AnthropicServer) -> None:
        self.server = server
        self._stalls = 0

    def adapter(self) -> AnthropicAdapter:
        return AnthropicAdapter(self.server.client(), model="claude-test")

    async def close(self, adapter: Any) -> None:
        await adapter.client.close()

    def reply(self, reply: Reply) -> None:
        self.server.reply_events(*_body(reply))

    def body_length(self, reply: Reply) -> int:
        return len(b"".join(_body(reply)))

    def fail(self, status: int, *, retry_after: float | None = None) -> None:
        self.server.fail(status, _ERROR_TYPES.get(status, "api_error"), retry_after=retry_after)

    def fail_inside(self, text: Sequence[str]) -> None:
        self.server.error_event(after=_begun(text))

    def drop(self, text: Sequence[str]) -> None:
        self.server.reply_events(*_begun(text), Close())

    def stall(self, text: Sequence[str]) -> None:
        self._stalls += 1
        self.server.reply_events(*_begun(text), Hold(f"stall {self._stalls}"))

    def garbage(self, text: Sequence[str]) -> None:
        self.server.garbage(after=_begun(text))

    def unknown(self, reply: Reply) -> None:
        events = [part for event in _body(reply) for part in (event, unknown_event())]
        self.server.reply_events(*events)

    @property
    def requests(self) -> int:
        return len(self.server.messages)

    def history(self, request: int) -> tuple[list[str], list[tuple[str, bool]]]:
        calls: list[str] = []
        results: list[tuple[str, bool]] = []
        for sent in self.server.messages[request]["messages"]:
            assert sent["content"], "a message must not be empty"
            for block in sent["content"]:
                if block["type"] == "tool_use":
                    calls.append(block["id"])
                elif block["type"] == "tool_result":
                    results.append((block["tool_use_id"], block.get("is_error", False)))
        return calls, results

    async def settled(self) -> None:
        await self.server.idle()

    async def stalled(self) -> None:
        await self.server.held(f"stall {self._stalls}")


def _body(reply: Reply) -> list[bytes]:
    blocks: list[Block] = []
    if reply.reasoning:
        blocks.append(thinking("".join(reply.reasoning), pieces=len(reply.reasoning)))
    if reply.text:
        blocks.append(_text(reply.text))
    blocks += [tool_use(call.name, _arguments(call.arguments), id=call.call_id) for call in reply.calls]
    usage = {
        "input_tokens": reply.usage.input_tokens - reply.usage.cache_read_tokens - reply.usage.cache_write_tokens,
        "cache_read_input_tokens": reply.usage.cache_read_tokens,
        "cache_creation_input_tokens": reply.usage.cache_write_tokens,
        "output_tokens": reply.usage.output_tokens,
    }
    stop_reason = "max_tokens" if reply.truncated else None
    parts = message(*blocks, stop_reason=stop_reason, usage=usage)
    if reply.cut is not None:
        return [b"".join(parts)[: reply.cut]]
    return parts if reply.chunk_size is None else split_every(b"".join(parts), reply.chunk_size)


def _arguments(arguments: Any) -> Any:
    return arguments if isinstance(arguments, str) else dict(arguments)


def _text(pieces: Sequence[str]) -> Block:
    deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
    return raw_block({"type": "text", "text": ""}, *deltas)


def _begun(text: Sequence[str]) -> list[bytes]:
    """The events of a reply up to its text."""
    if not text:
        return [message()[0]]
    whole = message(_text(text))
    return whole[: 3 + len(text)]


class TestAnthropicConformance(AdapterConformance):
    @pytest.fixture
    def provider(self) -> Iterator[AnthropicProvider]:
        with AnthropicServer() as server:
            yield AnthropicProvider(server)


def test_the_begun_reply_ends_with_its_text() -> None:
    assert _begun(("a", "b"))[-1] == sse(
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "b"}}
    )
