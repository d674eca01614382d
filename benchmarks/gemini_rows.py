"""The rows of Gemini: the loop over google-genai, the same by hand, and rxloop's turn with and without the bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.contenders import PROMPT, Contender, OnDelta, UnavailableError, http_client
from benchmarks.rxloop_rows import imported, subscribed

if TYPE_CHECKING:
    from google.genai import Client


def genai_client(url: str) -> Client:
    """Make a client of the load server with the settings the SDK has by default."""
    from google.genai import Client

    return Client(vertexai=False, api_key="benchmark", http_options={"base_url": url})


class RawGenai(Contender):
    """The loop everyone writes: `generate_content_stream`, the text of each chunk appended to a list."""

    def __init__(self, url: str) -> None:
        self._client = genai_client(url)

    async def text(self, model: str, on_delta: OnDelta) -> int:
        parts: list[str] = []
        stream = await self._client.aio.models.generate_content_stream(model=f"models/{model}", contents=PROMPT)
        async for chunk in stream:
            if text := chunk.text:
                parts.append(text)
                on_delta(text)
        return len("".join(parts))

    async def close(self) -> None:
        await self._client.aio.aclose()


class GenaiByHand(Contender):
    """No SDK: the HTTP client's bytes, own SSE lines, one JSON parse per chunk. The limit of parsing."""

    def __init__(self, url: str) -> None:
        self._http = http_client(url)

    async def text(self, model: str, on_delta: OnDelta) -> int:
        from pydantic_core import from_json

        parts: list[str] = []
        rest = b""
        path = f"/v1/models/{model}:streamGenerateContent?alt=sse"
        body = {"contents": [{"role": "user", "parts": [{"text": PROMPT}]}]}
        async with self._http.stream("POST", path, json=body, headers={"x-goog-api-key": "benchmark"}) as response:
            async for data in response.aiter_bytes():
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    if not line.startswith(b"data:"):
                        continue
                    chunk = from_json(line[5:])
                    for candidate in chunk.get("candidates", ()):
                        for part in candidate.get("content", {}).get("parts", ()):
                            if text := part.get("text"):
                                parts.append(text)
                                on_delta(text)
        return len("".join(parts))

    async def close(self) -> None:
        await self._http.aclose()


class RxLoopGemini(Contender):
    """A turn that is subscribed with a trivial `on_next`: on the bytes, or on the SDK's public events."""

    def __init__(self, url: str, *, fallback: bool = False) -> None:
        self._turn_class = imported("rxloop", "Turn")
        self._adapter_class = imported("rxloop.adapters.gemini", "GeminiAdapter")
        self._client = genai_client(url)
        self._fallback = fallback
        self._adapters: dict[str, Any] = {}

    def _adapter(self, model: str) -> Any:
        """Make an adapter once per model: like a client, it outlives the turn."""
        if model not in self._adapters:
            adapter = self._adapter_class(self._client, model=f"models/{model}")
            if self._fallback:
                adapter._send = None
            elif adapter._send is None:
                raise UnavailableError("this google-genai does not give the bytes")
            self._adapters[model] = adapter
        return self._adapters[model]

    async def text(self, model: str, on_delta: OnDelta) -> int:
        return await subscribed(self._turn_class(self._adapter(model), PROMPT), on_delta)

    async def close(self) -> None:
        await self._client.aio.aclose()
