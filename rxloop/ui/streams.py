"""A turn's frames over HTTP and over a WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from rxloop.ui.feed import Feed, Feeds, FrameId

__all__ = ("EventStream", "send_frames")

_SIGN_OF_LIFE = b": \n\n"
_RECONNECT = b"retry: 1000\n\n"
_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
    "x-content-type-options": "nosniff",
}


class EventStream(Response):
    """
    Server-sent events of a feed, from a place in it to the turn's end.

    It sends as fast as the client takes: what a slow one lags behind is kept once for all. It leaves its feed at the
    end, or when the client has gone.

    Args:
        feed: entered already.
        feeds: where it is left.
        key: the stream's and the format's name.
        after: the last frame that the client has seen.
        headers: further headers.
    """

    def __init__(
        self, feed: Feed, feeds: Feeds, key: tuple[str, str], after: FrameId | None, headers: Mapping[str, str]
    ) -> None:
        super().__init__(headers={**_HEADERS, **feed.frames.headers, **headers})
        # neither the length nor the end is known
        del self.headers["content-length"]
        self._feed = feed
        self._feeds = feeds
        self._key = key
        self._after = after
        self._change: asyncio.Future[None] | None = None
        self._gone = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send."""
        listening = asyncio.create_task(self._listen(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if scope["method"] == "HEAD":
                await send({"type": "http.response.body", "body": b""})
            else:
                await self._send_all(send)
        except OSError:
            # the client has gone in the middle of it
            self._gone = True
        finally:
            listening.cancel()
            await self._feeds.leave(*self._key, self._feed)
            await asyncio.gather(listening, return_exceptions=True)

    async def _send_all(self, send: Send) -> None:
        feed, place = self._feed, 0
        await send(_body(_RECONNECT))
        while not self._gone:
            place = feed.after(self._after, place)
            if place < len(feed.sse):
                chunk, place = feed.bytes_from(place)
                await send(_body(chunk))
            elif feed.ended:
                break
            else:
                self._change = feed.change()
                await self._change
                if place == len(feed.sse) and not feed.ended:
                    await send(_body(_SIGN_OF_LIFE))
        if not self._gone:
            await send({"type": "http.response.body", "body": b""})

    async def _listen(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        if self._change is not None and not self._change.done():
            self._change.set_result(None)


def _body(chunk: bytes) -> Message:
    return {"type": "http.response.body", "body": chunk, "more_body": True}


async def send_frames(socket: WebSocket, feed: Feed, after: FrameId | None) -> None:
    """
    Send a feed's frames over a WebSocket, each as ``{"id": "12-0", "event": {…}}``, to the turn's end.

    What the client says is not listened to, but for its leaving.

    Args:
        socket: accepted already; closed at the turn's end.
        feed: entered already.
        after: the last frame that the client has seen.
    """
    gone = False
    change: asyncio.Future[None] | None = None

    async def listen() -> None:
        nonlocal gone
        while (await socket.receive())["type"] != "websocket.disconnect":
            pass
        gone = True
        if change is not None and not change.done():
            change.set_result(None)

    listening = asyncio.create_task(listen())
    place = 0
    try:
        while not gone:
            place = feed.after(after, place)
            if place < len(feed.ids):
                entry, number = feed.ids[place]
                await socket.send_text(f'{{"id":"{entry}-{number}","event":{feed.data(place)}}}')
                place += 1
            elif feed.ended:
                await socket.close(1000 if feed.error is None else 1011)
                break
            else:
                change = feed.change()
                await change
    except (WebSocketDisconnect, OSError):
        # the client has gone in the middle of it
        gone = True
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
