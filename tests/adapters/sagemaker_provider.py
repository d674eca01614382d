"""The scripted SageMaker provider: an endpoint whose container is compatible with OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rxloop.adapters.base import Adapter
from rxloop.testing.scripted import Reply
from tests.providers.http import Hold
from tests.providers.sagemaker import SageMakerServer, openai, payload, sse, unknown_event

__all__ = ["SageMakerProvider"]

ENDPOINT = "my-endpoint"
# no divisor of an event's length: parts end anywhere
_PART_SIZE = 37


class SageMakerProvider:
    has_tools = False

    def __init__(self, server: SageMakerServer, **fields: Any) -> None:
        """`fields` are of every adapter that is made."""
        self.server = server
        self.fields = fields
        self._stalls = 0

    def adapter(self) -> Adapter:
        from rxloop.adapters import SageMakerAdapter

        return SageMakerAdapter(self.server.client(), model=ENDPOINT, **self.fields)

    async def close(self, adapter: Any) -> None:
        await adapter.aclose()
        adapter.client.close()

    def reply(self, reply: Reply) -> None:
        self.server.reply(_writes(reply), part_size=_part_size(reply), cut=reply.cut, chunk_size=reply.chunk_size)

    def body_length(self, reply: Reply) -> int:
        return len(b"".join(payload(_writes(reply), _part_size(reply))))

    def whole_length(self, reply: Reply) -> int:
        """After how many bytes of the body the finish reason is there; usage and the mark of the end follow it."""
        *answer, _usage, _done = _writes(reply)
        missing = len(b"".join(answer))
        length = 0
        for frame in payload(_writes(reply), _part_size(reply)):
            if missing > 0:
                length += len(frame)
                missing -= len(frame) - len(payload([b""])[0])
        return length

    def fail(self, status: int, *, retry_after: float | None = None) -> None:
        self.server.fail(status, retry_after=retry_after)

    def fail_inside(self, text: Sequence[str]) -> None:
        self.server.exception_inside("InternalStreamFailure", after=_begun(text))

    def drop(self, text: Sequence[str]) -> None:
        self.server.close(after=_begun(text))

    def stall(self, text: Sequence[str]) -> None:
        self._stalls += 1
        self.server.reply_frames(*_begun(text), Hold(f"stall {self._stalls}"))

    def garbage(self, text: Sequence[str]) -> None:
        self.server.garbage(after=_begun(text))

    def unknown(self, reply: Reply) -> None:
        odd = unknown_event(headers={"future-header": 7})
        writes = [b": a comment\n\n", sse({"future": [1]}, name="future"), *_writes(reply)]
        self.server.reply_frames(*(frame for part in payload(writes) for frame in (odd, part)), odd)

    @property
    def requests(self) -> int:
        return len(self.server.bodies)

    def history(self, request: int) -> tuple[list[str], list[tuple[str, bool]]]:
        assert len(self.server.bodies) > request, f"no request {request}"
        return [], []

    async def settled(self) -> None:
        await self.server.idle()

    async def stalled(self) -> None:
        await self.server.held(f"stall {self._stalls}")


def _writes(reply: Reply) -> list[bytes]:
    assert not reply.calls, "the provider has no tools"
    counted = reply.usage
    usage: dict[str, Any] = {"prompt_tokens": counted.input_tokens, "completion_tokens": counted.output_tokens}
    if counted.cache_read_tokens:
        usage["prompt_tokens_details"] = {"cached_tokens": counted.cache_read_tokens}
    if counted.reasoning_tokens:
        usage["completion_tokens_details"] = {"reasoning_tokens": counted.reasoning_tokens}
    return openai(
        *reply.text,
        reasoning=reply.reasoning,
        finish_reason="length" if reply.truncated else "stop",
        usage=usage,
    )


def _part_size(reply: Reply) -> int | None:
    return None if reply.chunk_size is None else _PART_SIZE


def _begun(text: Sequence[str]) -> list[bytes]:
    """The frames of a reply up to its text."""
    return payload(openai(*text, finish_reason=None, usage=None, done=False))
