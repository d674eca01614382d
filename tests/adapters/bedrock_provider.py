"""The scripted Bedrock provider."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rxloop.adapters.base import Adapter
from rxloop.testing.scripted import Reply
from tests.providers.bedrock import BedrockServer, Block, Event, encoded, message, raw_block, reasoning, tool_use
from tests.providers.http import Hold

__all__ = ["BedrockProvider"]

MODEL = "anthropic.claude-sonnet-4-5-v1:0"


class BedrockProvider:
    has_tools = True

    def __init__(self, server: BedrockServer, **fields: Any) -> None:
        """`fields` are of every adapter that is made."""
        self.server = server
        self.fields = fields
        self._stalls = 0

    def adapter(self) -> Adapter:
        from rxloop.adapters import BedrockAdapter

        return BedrockAdapter(self.server.client(), model=MODEL, **self.fields)

    async def close(self, adapter: Any) -> None:
        await adapter.aclose()
        adapter.client.close()

    def reply(self, reply: Reply) -> None:
        self.server.reply_frames(*_frames(reply), cut=reply.cut, chunk_size=reply.chunk_size)

    def body_length(self, reply: Reply) -> int:
        return len(b"".join(_frames(reply)))

    def whole_length(self, reply: Reply) -> int:
        # the usage follows the answer, in a frame of its own
        return len(b"".join(_frames(reply)[:-1]))

    def fail(self, status: int, *, retry_after: float | None = None) -> None:
        self.server.fail(status, retry_after=retry_after)

    def fail_inside(self, text: Sequence[str]) -> None:
        self.server.exception_inside("throttlingException", after=_begun(text))

    def drop(self, text: Sequence[str]) -> None:
        self.server.close(after=_begun(text))

    def stall(self, text: Sequence[str]) -> None:
        self._stalls += 1
        self.server.reply_frames(*_begun(text), Hold(f"stall {self._stalls}"))

    def garbage(self, text: Sequence[str]) -> None:
        self.server.garbage(after=_begun(text))

    def unknown(self, reply: Reply) -> None:
        self.server.unknown(*_blocks(reply), **_options(reply))

    @property
    def requests(self) -> int:
        return len(self.server.bodies)

    def history(self, request: int) -> tuple[list[str], list[tuple[str, bool]]]:
        calls: list[str] = []
        results: list[tuple[str, bool]] = []
        body = self.server.bodies[request]
        for position, said in enumerate(body["messages"]):
            assert said["role"] == ("assistant" if position % 2 else "user"), "the roles must take turns"
            assert said["content"], "a message must not be empty"
            for block in said["content"]:
                if asked := block.get("toolUse"):
                    assert said["role"] == "assistant", "a call is the model's"
                    calls.append(asked["toolUseId"])
                elif answered := block.get("toolResult"):
                    assert said["role"] == "user", "a result is the user's"
                    results.append((answered["toolUseId"], answered.get("status") == "error"))
        assert "toolConfig" in body or not calls, "a history with calls needs the tools"
        assert all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", call_id) for call_id in calls), "the service refuses such ids"
        return calls, results

    async def settled(self) -> None:
        await self.server.idle()

    async def stalled(self) -> None:
        await self.server.held(f"stall {self._stalls}")


def _frames(reply: Reply) -> list[bytes]:
    return [encoded(event) for event in message(*_blocks(reply), **_options(reply))]


def _blocks(reply: Reply) -> list[Block]:
    blocks = []
    if reply.reasoning:
        pieces: list[Event] = [{"reasoningContent": {"text": piece}} for piece in reply.reasoning]
        blocks.append(raw_block(None, *pieces, *reasoning("").deltas))
    if reply.text:
        blocks.append(raw_block(None, *({"text": piece} for piece in reply.text)))
    return blocks + [tool_use(call.name, call.arguments, id=call.call_id) for call in reply.calls]


def _options(reply: Reply) -> dict[str, Any]:
    counted = reply.usage
    usage = {
        "inputTokens": counted.input_tokens - counted.cache_read_tokens - counted.cache_write_tokens,
        "outputTokens": counted.output_tokens,
        "cacheReadInputTokens": counted.cache_read_tokens,
        "cacheWriteInputTokens": counted.cache_write_tokens,
    }
    return {"usage": usage, "stop_reason": "max_tokens" if reply.truncated else None}


def _begun(text: Sequence[str]) -> list[bytes]:
    """The frames of a reply up to its text."""
    events: list[Event] = [{"messageStart": {"role": "assistant"}}]
    events += [{"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": piece}}} for piece in text]
    return [encoded(event) for event in events]
