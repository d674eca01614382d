"""A Gemini adapter of the local server, on either platform, with the bytes or on the SDK's public events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from google import genai

from rxloop.adapters.gemini import GeminiAdapter, check_pairs
from tests.providers.gemini import GeminiServer

__all__ = ["FLAVOURS", "PUBLIC", "STUDIO", "VERTEX", "check_sent", "closing", "connected"]

STUDIO, VERTEX, PUBLIC = "studio", "vertex", "public-events"
FLAVOURS = (STUDIO, VERTEX, PUBLIC)


@asynccontextmanager
async def closing(client: genai.Client) -> AsyncIterator[genai.Client]:
    """The client, closed at the end."""
    try:
        yield client
    finally:
        await client.aio.aclose()


@asynccontextmanager
async def connected(
    server: GeminiServer, flavour: str = STUDIO, client: genai.Client | None = None, **fields: Any
) -> AsyncIterator[GeminiAdapter]:
    """An adapter of the server, its client closed at the end."""
    made = client or (server.vertex_client() if flavour == VERTEX else server.client())
    async with closing(made):
        adapter = GeminiAdapter(made, **{"model": "gemini-test", **fields})
        assert adapter._send is not None, "this SDK gives no bytes: the fast path would not be tested"
        if flavour == PUBLIC:
            adapter._send = None
        yield adapter


def check_sent(body: dict[str, Any]) -> list[Any]:
    """The contents of a request, checked for what the API refuses."""
    contents = body["contents"]
    check_pairs(contents)
    for content in contents:
        assert content["role"] in ("user", "model")
        assert content["parts"], "a content must not be empty"
        for part in content["parts"]:
            assert part, "a part must not be empty"
            assert part.keys() - {"thought"} != {"text"} or part["text"], "text must not be empty"
            if "functionResponse" in part:
                assert content["role"] == "user"
                assert isinstance(part["functionResponse"]["response"], dict), "a response is an object"
    return list(contents)
