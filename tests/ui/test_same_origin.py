from __future__ import annotations

from typing import Any

import pytest

from rxloop.ui.same_origin import LOOPBACK, SameOrigin

LOCAL = LOOPBACK


async def answer(hosts: Any, kind: str = "http", **headers: str) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "answered"})

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await SameOrigin(app, hosts=hosts)({"type": kind, "headers": raw}, None, send)  # type: ignore[arg-type]
    return sent


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("hosts", "headers"),
    [
        (None, {"host": "example.org"}),
        (None, {"host": "example.org:8000", "origin": "http://example.org:8000"}),
        (None, {"host": "Example.org", "origin": "https://example.ORG"}),
        (LOCAL, {"host": "localhost:8000"}),
        (LOCAL, {"host": "127.0.0.1:8000", "origin": "http://127.0.0.1:8000"}),
        (LOCAL, {"host": "[::1]:8000", "origin": "http://[::1]:8000"}),
    ],
)
async def test_its_own_pages_and_programs_are_answered(hosts: Any, headers: dict[str, str]) -> None:
    for kind in ("http", "websocket"):
        assert await answer(hosts, kind, **headers) == [{"type": "answered"}]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("hosts", "headers"),
    [
        (None, {"host": "example.org", "origin": "http://evil.example"}),
        (None, {"host": "example.org", "origin": "null"}),
        (None, {"host": "example.org:8000", "origin": "http://example.org"}),
        (None, {"host": "example.org", "origin": "http://[broken"}),
        (None, {"origin": "http://evil.example"}),
        (LOCAL, {"host": "evil.example:8000"}),
        (LOCAL, {"host": "evil.example", "origin": "http://evil.example"}),
        (LOCAL, {"host": "127.0.0.1.evil.example"}),
        (LOCAL, {"host": "[broken"}),
        (LOCAL, {}),
    ],
)
async def test_others_are_refused(hosts: Any, headers: dict[str, str]) -> None:
    start, body = await answer(hosts, **headers)
    assert start["status"] == 403
    assert b'"code": "forbidden"' in body["body"]
    [closed] = await answer(hosts, "websocket", **headers)
    assert (closed["type"], closed["code"]) == ("websocket.close", 1008)


@pytest.mark.asyncio
async def test_other_origins_that_are_named_are_answered() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        sent.append("answered")

    async def send(message: Any) -> None:
        sent.append(message["type"])

    guard = SameOrigin(app, origins=["https://App.example"])
    for origin in (b"https://app.example", b"http://app.example"):
        sent: list[str] = []
        scope = {"type": "http", "headers": [(b"host", b"api.example"), (b"origin", origin)]}
        await guard(scope, None, send)  # type: ignore[arg-type]
        assert (sent == ["answered"]) == origin.startswith(b"https:")


@pytest.mark.asyncio
async def test_what_is_no_request_passes() -> None:
    assert await answer(LOCAL, "lifespan") == [{"type": "answered"}]
