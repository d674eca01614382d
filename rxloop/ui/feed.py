"""A turn's frames in one format, made once for all who watch it in this process."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Sequence

from rxloop.errors import ConfigurationError
from rxloop.ui.bus import EventBus
from rxloop.ui.entry import StreamEvent, TurnRequested
from rxloop.ui.frames import Frames

__all__ = ("Feed", "Feeds", "FrameId", "read_frame_id")

_log = logging.getLogger("rxloop.ui")

FrameId = tuple[int, int]
"""The number of an entry, and of the frame among those that it made."""

_LARGEST = 65_536
"""The most bytes that are sent at once, where one frame is not larger."""


def read_frame_id(text: str) -> FrameId:
    """
    Read ``12-0``.

    Raises:
        ConfigurationError: it is something else.
    """
    entry, dash, number = text.partition("-")
    parts = (entry, number if dash else "0")
    if not all(part.isascii() and part.isdigit() and len(part) < 19 for part in parts):
        raise ConfigurationError(f"the id of an event must look like 12-0, but got {text!r:.60}")
    return int(parts[0]), int(parts[1])


class Feed:
    """
    The frames so far, and who waits for more. A watcher is a place in it, however far behind.

    Args:
        frames: the format.
        bus: where the entries come from.
        stream: the turn's stream.
        heartbeat: wakes those who wait every so many seconds.
    """

    def __init__(self, frames: type[Frames], bus: EventBus, stream: str, heartbeat: float) -> None:
        self.frames = frames
        self.ids: list[FrameId] = []
        self.sse: list[bytes] = []
        self.ended = False
        self.error: Exception | None = None
        self.watchers = 0
        self.loaded = asyncio.Event()
        """Set once everything that was there at the beginning is in it."""
        self._bus = bus
        self._stream = stream
        self._heartbeat = heartbeat
        self._waiting: list[asyncio.Future[None]] = []
        self._loop = asyncio.get_running_loop()
        self._beating = self._loop.call_later(heartbeat, self._beat)
        self.task = self._loop.create_task(self._read())

    async def _read(self) -> None:
        frames: Frames | None = None
        try:
            async with self._bus.subscribe(self._stream) as subscription:
                async for entries in subscription:
                    if frames is None:
                        frames = self._begin(entries[0].event)
                    for number, event, time in entries:
                        if type(event) is not TurnRequested:
                            self._add(number, frames.feed(event, time))
                    self.loaded.set()
                    self._wake()
        except Exception as error:
            self.error = error
            # its watchers come back, and would hear of it no sooner
            _log.exception("the events of %s could not be read", self._stream)
        finally:
            done = self.frames.done
            if done is not None and self.error is None:
                self.sse.append(f"data: {done}\n\n".encode())
            self.ended = True
            self.loaded.set()
            self._beating.cancel()
            self._wake()

    def _begin(self, event: StreamEvent) -> Frames:
        if isinstance(event, TurnRequested):
            return self.frames(turn_id=event.turn_id, thread_id=event.thread_id, run_id=event.run_id)
        # its beginning is not kept any more: the stream's name still ends with the turn's id
        turn_id = self._stream.rpartition("/")[2]
        return self.frames(turn_id=turn_id, thread_id=turn_id, run_id=turn_id)

    def _add(self, number: int, made: Sequence[str]) -> None:
        for place, data in enumerate(made):
            self.ids.append((number, place))
            self.sse.append(f"id: {number}-{place}\ndata: {data}\n\n".encode())

    def data(self, place: int) -> str:
        """The JSON of a frame, out of what is sent over HTTP: a long turn is not to be kept twice."""
        return self.sse[place].partition(b"data: ")[2].decode().rstrip("\n")

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def _beat(self) -> None:
        self._beating = self._loop.call_later(self._heartbeat, self._beat)
        self._wake()

    def after(self, last: FrameId | None, place: int = 0) -> int:
        """The first place, from `place` on, of a frame that one who has seen `last` has not."""
        if last is None or place >= len(self.ids) or self.ids[place] > last:
            return place
        return bisect_right(self.ids, last)

    def bytes_from(self, place: int) -> tuple[bytes, int]:
        """Frames to send from a place on, and the place after them."""
        sse = self.sse
        end, size = place, 0
        while end < len(sse) and (size == 0 or size + len(sse[end]) <= _LARGEST):
            size += len(sse[end])
            end += 1
        return (sse[place] if end == place + 1 else b"".join(sse[place:end])), end

    def change(self) -> asyncio.Future[None]:
        """What is done as soon as there is more, or a heartbeat is due."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(future)
        return future


class Feeds:
    """
    The feeds of a process, each for as long as somebody watches it.

    Args:
        bus: where the entries come from.
        heartbeat: the seconds between two signs of life to a watcher.
        stop_unwatched_after: stop a turn so many seconds after its last watcher has left; ``None`` for never.
    """

    def __init__(self, bus: EventBus, heartbeat: float, stop_unwatched_after: float | None) -> None:
        self._bus = bus
        self._heartbeat = heartbeat
        self._stop_after = stop_unwatched_after
        self._feeds: dict[tuple[str, str], Feed] = {}
        self._lingering: dict[str, asyncio.Task[None]] = {}

    def enter(self, stream: str, format_name: str, frames: type[Frames]) -> Feed:
        """Watch a stream: a feed of it, which must be left."""
        key = (stream, format_name)
        feed = self._feeds.get(key)
        if feed is None or feed.error is not None:
            feed = self._feeds[key] = Feed(frames, self._bus, stream, self._heartbeat)
        feed.watchers += 1
        if stream in self._lingering:
            self._lingering.pop(stream).cancel()
        return feed

    async def leave(self, stream: str, format_name: str, feed: Feed) -> None:
        """Stop watching."""
        feed.watchers -= 1
        if feed.watchers:
            return
        if self._feeds.get((stream, format_name)) is feed:
            del self._feeds[stream, format_name]
        if self._stop_after is not None and not feed.ended and all(name != stream for name, _ in self._feeds):
            self._lingering[stream] = asyncio.create_task(self._stop_later(stream, self._stop_after))
        feed.task.cancel()
        await asyncio.gather(feed.task, return_exceptions=True)

    async def close(self) -> None:
        """Stop no turn any more."""
        lingering = list(self._lingering.values())
        for task in lingering:
            task.cancel()
        await asyncio.gather(*lingering, return_exceptions=True)

    async def _stop_later(self, stream: str, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
            await self._bus.request_stop(stream)
        finally:
            if self._lingering.get(stream) is asyncio.current_task():
                del self._lingering[stream]
