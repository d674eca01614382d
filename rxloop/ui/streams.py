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


class _Client:
    """
    Who watches a feed: whether it has gone, which wakes whoever waits for the feed meanwhile.

    What it says is not listened to, but for its leaving.
    """

    __slots__ = ("_change", "_listening", "gone")

    def __init__(self, receive: Receive) -> None:
        self.gone = False
        self._change: asyncio.Future[None] | None = None
        self._listening = asyncio.create_task(self._listen(receive))

    async def _listen(self, receive: Receive) -> None:
        while not (await receive())["type"].endswith(".disconnect"):
            pass
        self.gone = True
        if self._change is not None and not self._change.done():
            self._change.set_result(None)

    async def changed(self, feed: Feed) -> None:
        """Return when there is more, a heartbeat is due, or it has gone."""
        self._change = feed.change()
        await self._change

    async def forget(self) -> None:
        """Listen no more."""
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)


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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send."""
        client = _Client(receive)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if scope["method"] == "HEAD":
                await send({"type": "http.response.body", "body": b""})
            else:
                await self._send_all(send, client)
        except OSError:
            # the client has gone in the middle of it, and nobody is left to be told
            return
        finally:
            await self._feeds.leave(*self._key, self._feed)
            await client.forget()

    async def _send_all(self, send: Send, client: _Client) -> None:
        feed, place = self._feed, 0
        await send(_body(_RECONNECT))
        while not client.gone:
            place = feed.after(self._after, place)
            if place < len(feed.sse):
                chunk, place = feed.bytes_from(place)
                await send(_body(chunk))
            elif feed.ended:
                break
            else:
                await client.changed(feed)
                if place == len(feed.sse) and not feed.ended:
                    await send(_body(_SIGN_OF_LIFE))
        if not client.gone:
            await send({"type": "http.response.body", "body": b""})


def _body(chunk: bytes) -> Message:
    return {"type": "http.response.body", "body": chunk, "more_body": True}


async def send_frames(socket: WebSocket, feed: Feed, after: FrameId | None) -> None:
    """
    Send a feed's frames over a WebSocket, each as ``{"id": "12-0", "event": {…}}``, to the turn's end.

    Args:
        socket: accepted already; closed at the turn's end.
        feed: entered already.
        after: the last frame that the client has seen.
    """
    client = _Client(socket.receive)
    place = 0
    try:
        while not client.gone:
            place = feed.after(after, place)
            if place < len(feed.ids):
                entry, number = feed.ids[place]
                await socket.send_text(f'{{"id":"{entry}-{number}","event":{feed.data(place)}}}')
                place += 1
            elif feed.ended:
                await socket.close(1000 if feed.error is None else 1011)
                break
            else:
                await client.changed(feed)
    except (WebSocketDisconnect, OSError):
        # the client has gone in the middle of it, and nobody is left to be told
        return
    finally:
        await client.forget()
