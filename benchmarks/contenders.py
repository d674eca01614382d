"""The ways to run one turn that are compared with each other.

A contender imports what it needs when it is made, so that a process holds the modules of one contender.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx2
    from anthropic import AsyncAnthropic

OnDelta = Callable[[str], None]
Message = dict[str, Any]

PROMPT = "hi"
MAX_TOKENS = 1024
ADD_TOOL: dict[str, Any] = {
    "name": "add",
    "description": "Add two numbers.",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}


class UnavailableError(Exception):
    """The contender cannot be run here; the message says why and what to do."""


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def anthropic_client(url: str) -> AsyncAnthropic:
    """Make a client of the load server with the settings the SDK has by default."""
    from anthropic import AsyncAnthropic

    return AsyncAnthropic(api_key="benchmark", base_url=url, max_retries=0)


def http_client(url: str) -> httpx2.AsyncClient:
    """Make a bare HTTP client with the timeouts of the SDK's client."""
    import httpx2

    return httpx2.AsyncClient(base_url=url, timeout=httpx2.Timeout(600, connect=5))


def request_body(model: str) -> dict[str, Any]:
    """Make the body of a streaming request."""
    return {
        "model": model,
        "max_tokens": MAX_TOKENS,
        "messages": [{"role": "user", "content": PROMPT}],
        "stream": True,
    }


class Contender:
    """One way to run a turn."""

    async def text(self, model: str, on_delta: OnDelta) -> int | None:
        """Run a text turn; return the length of the accumulated text, or `None` if it is not accumulated."""
        raise UnavailableError("has no text turn")

    async def tool(self, model: str, on_delta: OnDelta) -> int:
        """Run a turn with a tool call; return the length of the accumulated text."""
        raise UnavailableError("has no tool loop")

    async def stall(self, model: str, until_blocked: Callable[[], Awaitable[None]]) -> int | None:
        """Read one event of a text turn and wait; return the most events that were buffered meanwhile."""
        raise UnavailableError("has no stalled consumer")

    async def fan_out(self, model: str, watchers: int, stalled: int, on_delta: OnDelta) -> list[int]:
        """Run one text turn that so many watch, of whom some take one event and no more until the turn has ended.

        Returns the length of the text that each has seen.
        """
        raise UnavailableError("has no fan-out")

    async def close(self) -> None:
        """Release the connections."""


class RawSdk(Contender):
    """The loop everyone writes: `create(stream=True)`, a branch per event type, a hand-written tool loop."""

    def __init__(self, url: str) -> None:
        self._client = anthropic_client(url)

    async def _step(
        self, model: str, messages: list[Message], tools: list[Any], on_delta: OnDelta
    ) -> tuple[str, list[dict[str, Any]], str | None]:
        parts: list[str] = []
        calls: list[dict[str, Any]] = []
        stop_reason: str | None = None
        create: Any = self._client.messages.create
        options = {"tools": tools} if tools else {}
        stream = await create(model=model, max_tokens=MAX_TOKENS, messages=messages, stream=True, **options)
        async for event in stream:
            kind = event.type
            if kind == "content_block_delta":
                delta = event.delta
                if delta.type == "text_delta":
                    parts.append(delta.text)
                    on_delta(delta.text)
                elif delta.type == "input_json_delta":
                    calls[-1]["json"] += delta.partial_json
            elif kind == "content_block_start":
                block = event.content_block
                if block.type == "tool_use":
                    calls.append({"id": block.id, "name": block.name, "json": ""})
            elif kind == "message_delta":
                stop_reason = event.delta.stop_reason
        return "".join(parts), calls, stop_reason

    async def text(self, model: str, on_delta: OnDelta) -> int:
        text, _, _ = await self._step(model, [{"role": "user", "content": PROMPT}], [], on_delta)
        return len(text)

    async def tool(self, model: str, on_delta: OnDelta) -> int:
        functions = {"add": add}
        messages: list[Message] = [{"role": "user", "content": PROMPT}]
        length = 0
        while True:
            text, calls, stop_reason = await self._step(model, messages, [ADD_TOOL], on_delta)
            length += len(text)
            if stop_reason != "tool_use":
                return length
            content: list[Message] = [{"type": "text", "text": text}]
            results: list[Message] = []
            for call in calls:
                arguments = json.loads(call["json"] or "{}")
                content.append({"type": "tool_use", "id": call["id"], "name": call["name"], "input": arguments})
                value = functions[call["name"]](**arguments)
                results.append({"type": "tool_result", "tool_use_id": call["id"], "content": json.dumps(value)})
            messages += [{"role": "assistant", "content": content}, {"role": "user", "content": results}]

    async def stall(self, model: str, until_blocked: Callable[[], Awaitable[None]]) -> int:
        create: Any = self._client.messages.create
        stream = await create(**request_body(model))
        async for _ in stream:
            await until_blocked()
            break
        await stream.close()
        return 0

    async def close(self) -> None:
        await self._client.close()


class SdkHelper(Contender):
    """The SDK's `messages.stream()`, which accumulates the message itself."""

    def __init__(self, url: str) -> None:
        self._client = anthropic_client(url)

    async def text(self, model: str, on_delta: OnDelta) -> int:
        body: Any = request_body(model)
        del body["stream"]
        async with self._client.messages.stream(**body) as stream:
            async for event in stream:
                if event.type == "text":
                    on_delta(event.text)
            return len(await stream.get_final_text())

    async def close(self) -> None:
        await self._client.close()


class ByHand(Contender):
    """No SDK: the HTTP client's bytes, own SSE lines, one JSON parse per event. The limit of parsing."""

    def __init__(self, url: str) -> None:
        self._http = http_client(url)

    async def text(self, model: str, on_delta: OnDelta) -> int:
        from pydantic_core import from_json

        parts: list[str] = []
        calls: list[dict[str, Any]] = []
        rest = b""
        async with self._http.stream("POST", "/v1/messages", json=request_body(model)) as response:
            async for chunk in response.aiter_bytes():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if not line.startswith(b"data:"):
                        continue
                    event = from_json(line[5:])
                    kind = event["type"]
                    if kind == "content_block_delta":
                        delta = event["delta"]
                        if delta["type"] == "text_delta":
                            text = delta["text"]
                            parts.append(text)
                            on_delta(text)
                    elif kind == "content_block_start" and event["content_block"]["type"] == "tool_use":
                        calls.append(event["content_block"])
        return len("".join(parts))

    async def close(self) -> None:
        await self._http.aclose()


class Bytes(Contender):
    """The body bytes of the HTTP client, not parsed at all."""

    def __init__(self, url: str) -> None:
        self._http = http_client(url)

    async def text(self, model: str, on_delta: OnDelta) -> None:
        async with self._http.stream("POST", "/v1/messages", json=request_body(model)) as response:
            async for _ in response.aiter_bytes():
                pass

    async def close(self) -> None:
        await self._http.aclose()


class SdkBytes(Contender):
    """The body bytes of a response of the SDK, through one of its public ways to them."""

    def __init__(self, url: str, way: str) -> None:
        self._client = anthropic_client(url)
        self._way = way

    def _chunks(self, response: Any) -> AsyncIterator[bytes]:
        chunks: AsyncIterator[bytes]
        if self._way == "response.iter_bytes":
            chunks = response.iter_bytes()
        elif self._way == "http.aiter_bytes":
            chunks = response.http_response.aiter_bytes()
        elif self._way == "http.aiter_raw":
            chunks = response.http_response.aiter_raw()
        else:
            chunks = aiter(response.http_response.stream)
        return chunks

    async def text(self, model: str, on_delta: OnDelta) -> None:
        body: Any = request_body(model)
        async with self._client.messages.with_streaming_response.create(**body) as response:
            async for _ in self._chunks(response):
                pass

    async def close(self) -> None:
        await self._client.close()


class PydanticAi(Contender):
    """A peer: an agent of pydantic-ai that streams text deltas."""

    HOW_TO = "run `uv run --with 'pydantic-ai-slim[anthropic]' python -m benchmarks --peers`"

    def __init__(self, url: str) -> None:
        try:
            self._agent: Any = import_module("pydantic_ai").Agent
            self._model: Any = import_module("pydantic_ai.models.anthropic").AnthropicModel
            provider: Any = import_module("pydantic_ai.providers.anthropic").AnthropicProvider
        except ImportError as exc:
            raise UnavailableError(f"{exc}; {self.HOW_TO}") from exc
        self._client = anthropic_client(url)
        self._provider = provider(anthropic_client=self._client)

    async def text(self, model: str, on_delta: OnDelta) -> int:
        agent = self._agent(self._model(model, provider=self._provider))
        length = 0
        async with agent.run_stream(PROMPT) as result:
            async for text in result.stream_text(delta=True, debounce_by=None):
                on_delta(text)
                length += len(text)
        return length

    async def tool(self, model: str, on_delta: OnDelta) -> int:
        agent = self._agent(self._model(model, provider=self._provider), tools=[add])
        length = 0
        async with agent.run_stream(PROMPT) as result:
            async for text in result.stream_text(delta=True, debounce_by=None):
                on_delta(text)
                length += len(text)
        return length

    async def close(self) -> None:
        await self._client.close()
