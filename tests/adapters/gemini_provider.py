"""The scripted Gemini provider, of AI Studio and of Vertex AI."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rxloop.adapters.base import Adapter
from rxloop.testing.scripted import Call, Reply
from tests.providers.gemini import GeminiServer, Parts, call, chunks, metadata, raw_part, sse
from tests.providers.http import Close, Hold, split_every

__all__ = ["GeminiProvider"]

_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class GeminiProvider:
    has_tools = True
    has_raw_arguments = False

    def __init__(self, server: GeminiServer, vertex: bool, **fields: Any) -> None:
        """`fields` are of every adapter that is made."""
        self.server = server
        self.vertex = vertex
        self.fields = fields
        self._stalls = 0

    def adapter(self) -> Adapter:
        from rxloop.adapters.gemini import GeminiAdapter

        client = self.server.vertex_client() if self.vertex else self.server.client()
        return GeminiAdapter(client, model="gemini-test", **self.fields)

    async def close(self, adapter: Any) -> None:
        await adapter.client.aio.aclose()

    def reply(self, reply: Reply) -> None:
        self.server.reply_chunks(*self._body(reply))

    def body_length(self, reply: Reply) -> int:
        return len(b"".join(self._body(reply)))

    def fail(self, status: int, *, retry_after: float | None = None) -> None:
        self.server.fail(status, _STATUSES.get(status, "UNKNOWN"), retry_delay=retry_after)

    def fail_inside(self, text: Sequence[str]) -> None:
        self.server.error_inside(after=self._begun(text), code=503, status="UNAVAILABLE")

    def drop(self, text: Sequence[str]) -> None:
        self.server.reply_chunks(*self._begun(text), Close())

    def stall(self, text: Sequence[str]) -> None:
        self._stalls += 1
        self.server.reply_chunks(*self._begun(text), Hold(f"stall {self._stalls}"))

    def garbage(self, text: Sequence[str]) -> None:
        self.server.garbage(after=self._begun(text))

    def unknown(self, reply: Reply) -> None:
        self.server.unknown(*_parts(reply), **self._options(reply))

    @property
    def requests(self) -> int:
        return len(self.server.bodies)

    def history(self, request: int) -> tuple[list[str], list[tuple[str, bool]]]:
        """Where the wire has no ids, the n-th call and the n-th result of a name are `name#n`."""
        calls: list[str] = []
        results: list[tuple[str, bool]] = []
        nth_call: Counter[str] = Counter()
        nth_result: Counter[str] = Counter()
        for content in self.server.bodies[request]["contents"]:
            assert content["role"] in ("user", "model"), f"no such role: {content['role']}"
            assert content["parts"], "a content must not be empty"
            for part in content["parts"]:
                if asked := part.get("functionCall"):
                    assert content["role"] == "model", "a call is the model's"
                    calls.append(_id(asked, nth_call))
                elif answered := part.get("functionResponse"):
                    assert content["role"] == "user", "a result is the user's"
                    results.append((_id(answered, nth_result), "error" in answered["response"]))
        return calls, results

    async def settled(self) -> None:
        await self.server.idle()

    async def stalled(self) -> None:
        await self.server.held(f"stall {self._stalls}")

    def _body(self, reply: Reply) -> list[bytes]:
        body = [sse(event, vertex=self.vertex) for event in chunks(*_parts(reply), **self._options(reply))]
        if reply.cut is not None:
            return [b"".join(body)[: reply.cut]]
        return body if reply.chunk_size is None else split_every(b"".join(body), reply.chunk_size)

    def _options(self, reply: Reply) -> dict[str, Any]:
        usage = {
            "promptTokenCount": reply.usage.input_tokens,
            "candidatesTokenCount": reply.usage.output_tokens - reply.usage.reasoning_tokens,
            **_counted("cachedContentTokenCount", reply.usage.cache_read_tokens),
            **_counted("thoughtsTokenCount", reply.usage.reasoning_tokens),
        }
        finish_reason = "MAX_TOKENS" if reply.truncated else "STOP"
        return {"finish_reason": finish_reason, "usage": usage, "vertex": self.vertex}

    def _begun(self, text: Sequence[str]) -> list[bytes]:
        """The chunks of a reply up to its text; the first one has no candidate if there is no text."""
        if not text:
            return [sse(metadata(), vertex=self.vertex)]
        events = chunks(*(raw_part({"text": piece}) for piece in text), finish_reason=None, vertex=self.vertex)
        return [sse(event, vertex=self.vertex) for event in events]


def _parts(reply: Reply) -> list[Parts]:
    return [
        *(raw_part({"text": piece, "thought": True}) for piece in reply.reasoning),
        *(raw_part({"text": piece}) for piece in reply.text),
        *(_call(made) for made in reply.calls),
    ]


def _call(made: Call) -> Parts:
    assert not isinstance(made.arguments, str), "the wire has no raw arguments"
    return call(made.name, made.arguments, id=made.call_id)


def _counted(key: str, count: int) -> dict[str, int]:
    return {key: count} if count else {}


def _id(item: dict[str, Any], seen: Counter[str]) -> str:
    if given := item.get("id"):
        return str(given)
    seen[item["name"]] += 1
    return f"{item['name']}#{seen[item['name']]}"
