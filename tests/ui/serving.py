"""An ASGI app on loopback, served by uvicorn in the test's own event loop."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import uvicorn

__all__ = ("Client", "Frame", "chat_body", "run_body", "serving", "until")

Frame = tuple[str | None, Any]
"""An event's id and its data."""


def run_body(prompt: str = "hello", thread: str = "t1", run: str = "r1", **fields: Any) -> dict[str, Any]:
    """An AG-UI `RunAgentInput`."""
    return {
        "threadId": thread,
        "runId": run,
        "messages": [{"id": "m1", "role": "user", "content": prompt}],
        "tools": [],
        "context": [],
        "state": {},
        "forwardedProps": {},
        **fields,
    }


def chat_body(prompt: str = "hello", chat: str = "t1", **fields: Any) -> dict[str, Any]:
    """What the AI SDK's chat transport posts."""
    message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": prompt}]}
    return {"id": chat, "messages": [message], "trigger": "submit-message", **fields}


async def until(condition: Any, seconds: float = 5.0) -> None:
    """Wait for something that nothing tells of."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


class Client:
    """What a front end does."""

    def __init__(self, http: httpx2.AsyncClient, url: str) -> None:
        self.http = http
        self.url = url

    async def post(self, body: Any = None, **options: Any) -> httpx2.Response:
        """Start a turn and read all of the answer."""
        return await self.http.post("/turns", json=run_body() if body is None else body, **options)

    async def begin(self, body: Any = None, form: str = "rxloop", **options: Any) -> str:
        """Start a turn, and no more: its id."""
        headers = {"accept": "application/json", **options.pop("headers", {})}
        response = await self.post(body, params={"format": form}, headers=headers, **options)
        assert response.status_code == 202, response.text
        return str(response.json()["turn_id"])

    async def stop(self, turn_id: str) -> None:
        """Stop it."""
        response = await self.http.post(f"/turns/{turn_id}/stop")
        assert response.status_code == 202

    async def watch(self, turn_id: str, form: str = "rxloop", **options: Any) -> list[Frame]:
        """All of a turn's frames."""
        params = {"format": form, **options.pop("params", {})}
        response = await self.http.get(f"/turns/{turn_id}/events", params=params, **options)
        assert response.status_code == 200, response.text
        return frames(response.text)

    @asynccontextmanager
    async def watching(self, turn_id: str, form: str = "rxloop", **options: Any) -> AsyncIterator[AsyncIterator[Frame]]:
        """A turn's frames as they come."""
        async with self.http.stream("GET", f"/turns/{turn_id}/events", params={"format": form}, **options) as response:
            assert response.status_code == 200
            yield _live(response)


async def _live(response: httpx2.Response) -> AsyncIterator[Frame]:
    block: list[str] = []
    async for line in response.aiter_lines():
        if line:
            block.append(line)
        else:
            for frame in frames("\n".join(block) + "\n\n"):
                yield frame
            block = []


def frames(text: str) -> list[Frame]:
    """What server-sent events hold; comments and settings are left out."""
    found: list[Frame] = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line and not line.startswith(":"))
        if "data" in fields:
            data = fields["data"]
            found.append((fields.get("id"), data if data == "[DONE]" else json.loads(data)))
    return found


@asynccontextmanager
async def serving(app: Any, **headers: str) -> AsyncIterator[Client]:
    """Serve an app, and give a client of it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(app, log_level="critical", lifespan="on", timeout_graceful_shutdown=5)
        config.load()
        server = uvicorn.Server(config)
        # without its main loop, which looks only ten times a second whether it should end
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[listening])
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        timeout = httpx2.Timeout(10)
        try:
            async with httpx2.AsyncClient(
                base_url=url, headers=headers, timeout=timeout, trust_env=False, verify=False
            ) as http:
                yield Client(http, url)
        finally:
            await server.shutdown(sockets=[listening])
