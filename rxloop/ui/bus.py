"""Where turns publish their events, and whoever watches them reads: the protocol, and a bus in memory."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Protocol, Self

from rxloop.checks import whole
from rxloop.errors import ConfigurationError, RxLoopError
from rxloop.ui.entry import Entry, TurnFailed, is_end

__all__ = (
    "BusError",
    "EventBus",
    "MemoryBus",
    "Subscription",
    "TurnInterruptedError",
    "check_entries",
    "check_seconds",
    "check_stream",
    "interrupted",
)


class BusError(RxLoopError):
    """What the bus is made on does not answer, or refuses; ``retryable`` tells which."""

    kind = "bus"


class TurnInterruptedError(RxLoopError):
    """Whoever ran the turn is gone, and nobody knows how it would have ended."""

    kind = "interrupted"
    retryable = True


class Subscription(Protocol):
    """
    A reader's place in a stream: ``async for entries in subscription``, at the reader's own pace.

    The first batch is all that is there, then each is what has come meanwhile. It ends after the entry that ends the
    turn, or when the bus is closed. One reader each; cancelling one who waits loses nothing.
    """

    @property
    def gap(self) -> bool:
        """Whether entries were trimmed away before this reader came to them."""

    def __aiter__(self) -> Self:
        """It is its own iterator."""

    async def __anext__(self) -> Sequence[Entry]:
        """The next batch, which is not empty."""

    async def __aenter__(self) -> Self:
        """Leave at the end of ``async with``."""

    async def __aexit__(self, *_: object) -> None:
        """Leave."""

    async def aclose(self) -> None:
        """Leave: what follows is not read, and nothing is held for this reader any more."""


class EventBus(Protocol):
    """
    Streams of numbered entries, one stream per turn: a publisher appends, any number read, in any process.

    No reader slows or harms the publisher or another reader: each is a place in a shared log.
    """

    @property
    def heartbeat(self) -> float:
        """The most seconds that a publisher is silent: with nothing to say it publishes no entries."""

    async def publish(self, stream: str, entries: Sequence[Entry]) -> None:
        """
        Append, in order. Returns when the entries are there, however long that takes.

        Entries whose ids the stream has already are left out, so that what may have arrived can be sent again. What
        follows the end of a turn is left out too.

        Args:
            stream: the stream's name: the turn's id.
            entries: with growing ids, from 1. None at all is a sign of life: it makes a stream, or keeps it.

        Raises:
            ConfigurationError: ids that do not grow, or a closed bus.
            BusError: the bus refuses them for good.
        """

    def subscribe(self, stream: str, after: int = 0) -> Subscription:
        """
        Read a stream, now or as soon as there is one.

        A reader that falls behind the bound of the log goes on with what is left (see `Subscription.gap`). Where the
        publisher has died the last entry is a `TurnFailed` of the kind "interrupted", which the log does not have.

        Args:
            stream: the stream's name.
            after: the id of the last entry that the reader knows.

        Raises:
            ConfigurationError: `after` is no whole number >= 0.
        """

    async def exists(self, stream: str) -> bool:
        """
        Whether anybody has published to it and it is still kept.

        Raises:
            BusError: the bus does not answer.
        """

    async def request_stop(self, stream: str) -> None:
        """
        Ask the turn to stop, in whatever process it runs. Asking twice is asking once.

        Raises:
            BusError: the bus does not answer.
        """

    async def stop_requested(self, stream: str) -> None:
        """Wait until somebody asks the turn to stop, or has asked."""

    async def close(self) -> None:
        """End all subscriptions where they are. Nothing can be done with the bus afterwards."""


def check_stream(name: str, value: Any) -> None:
    """
    Check a name of a stream or a thread.

    Raises:
        ConfigurationError: it is no text, or empty.
    """
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{name} must be a text that is not empty, but got {value!r:.200}")


def check_seconds(name: str, value: Any) -> None:
    """
    Check a time that has to have an end.

    Raises:
        ConfigurationError: it is not a number above 0, or has none.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise ConfigurationError(f"{name} must be > 0 seconds, and finite, but got {value!r}")


def check_entries(entries: Sequence[Entry]) -> None:
    """
    Check that ids grow, from 1.

    Raises:
        ConfigurationError: they do not.
    """
    last = 0
    for entry in entries:
        if entry[0] <= last:
            raise ConfigurationError(f"the ids of entries must grow, from 1, but got {entry[0]!r} after {last}")
        last = entry[0]


class _Signal:
    """Whoever waits for the next change: a future each, as a shared one would be cancelled for all by any of them."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future in self._waiting:
                self._waiting.remove(future)
            raise

    def __len__(self) -> int:
        return len(self._waiting)


class _Log:
    """A stream: its entries, and who waits for more."""

    __slots__ = (
        "changed",
        "dropped",
        "ended",
        "entries",
        "last",
        "published",
        "stopping",
        "subscribed",
        "touched",
        "trimmed",
        "trimmed_last",
    )

    def __init__(self, now: float) -> None:
        self.entries: list[Entry] = []
        self.last = 0
        self.trimmed = self.trimmed_last = 0
        """How many entries were trimmed away, and the id of the last one."""
        self.touched = now
        self.published = self.ended = self.stopping = self.dropped = False
        self.subscribed = 0
        self.changed = _Signal()


class MemoryBus(EventBus):
    """
    A bus for one process: nothing outlives it.

    Entries are kept as they are, not copied. A reader that waits costs one future per batch, and no task. Streams that
    are too old are dropped whenever the bus is used; nothing runs in the background. It belongs to one event loop.

    Args:
        length: the most entries kept of a stream; the oldest go first.
        age: the seconds without a publication after which a stream is dropped.
        streams: the most streams kept. Above it those of turns that have ended go first, the longest silent first; a
            running turn that has to go is "interrupted" for its readers.
        clock: tells the time in seconds.

    Raises:
        ConfigurationError: a value breaks its rule.
    """

    def __init__(
        self,
        *,
        length: int = 10_000,
        age: float = 600.0,
        streams: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """See the class."""
        whole("length", length, minimum=1)
        whole("streams", streams, minimum=1)
        check_seconds("age", age)
        self._length = length
        self._age = age
        self._streams = streams
        self._clock = clock
        self._closed = False
        # each in the order of the last publication
        self._running: OrderedDict[str, _Log] = OrderedDict()
        self._ended: OrderedDict[str, _Log] = OrderedDict()
        self._stoppers: dict[str, _Signal] = {}

    def __repr__(self) -> str:
        return f"<MemoryBus {len(self._running)} running, {len(self._ended)} ended>"

    @property
    def heartbeat(self) -> float:
        """A third of the age."""
        return self._age / 3

    async def publish(self, stream: str, entries: Sequence[Entry]) -> None:
        """Append; see `EventBus`. It never waits."""
        self._check_open()
        check_entries(entries)
        log = self._log(stream)
        log.published = True
        if log.ended:
            return
        log.touched = self._clock()
        self._running.move_to_end(stream)
        for entry in entries:
            if entry[0] > log.last:
                log.entries.append(entry)
                log.last = entry[0]
                if is_end(entry[1]):
                    log.ended = True
                    self._ended[stream] = self._running.pop(stream)
                    break
        excess = len(log.entries) - self._length
        if excess > 0:
            log.trimmed += excess
            log.trimmed_last = log.entries[excess - 1].id
            del log.entries[:excess]
        log.changed.wake()

    def subscribe(self, stream: str, after: int = 0) -> Subscription:
        """Read a stream; see `EventBus`."""
        check_stream("stream", stream)
        whole("after", after, minimum=0)
        self._check_open()
        return _MemorySubscription(self, stream, self._log(stream), after)

    async def exists(self, stream: str) -> bool:
        """Whether it was published to, and is kept."""
        self._expire()
        log = self._running.get(stream) or self._ended.get(stream)
        return log is not None and log.published

    async def request_stop(self, stream: str) -> None:
        """Ask the turn to stop."""
        self._check_open()
        self._log(stream).stopping = True
        if stream in self._stoppers:
            self._stoppers[stream].wake()

    async def stop_requested(self, stream: str) -> None:
        """Wait until the turn is asked to stop."""
        check_stream("stream", stream)
        self._check_open()
        log = self._running.get(stream) or self._ended.get(stream)
        if log is not None and log.stopping:
            return
        signal = self._stoppers.setdefault(stream, _Signal())
        try:
            await signal.wait()
        finally:
            if not signal and self._stoppers.get(stream) is signal:
                del self._stoppers[stream]
        self._check_open()

    async def close(self) -> None:
        """Drop everything and end all subscriptions."""
        self._closed = True
        for logs in (self._running, self._ended):
            for log in logs.values():
                log.changed.wake()
            logs.clear()
        for signal in list(self._stoppers.values()):
            signal.wake()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def release(self, stream: str, log: _Log) -> None:
        """A reader has left: of a stream that has never been published to nothing is kept."""
        log.subscribed -= 1
        if not (log.subscribed or log.published or log.stopping) and self._running.get(stream) is log:
            del self._running[stream]

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigurationError("the bus must be open, but it was closed")

    def _log(self, stream: str) -> _Log:
        self._expire()
        log = self._running.get(stream) or self._ended.get(stream)
        if log is None:
            check_stream("stream", stream)
            if len(self._running) + len(self._ended) >= self._streams:
                _drop_first(self._ended or self._running)
            log = self._running[stream] = _Log(self._clock())
        return log

    def _expire(self) -> None:
        before = self._clock() - self._age
        for logs in (self._running, self._ended):
            while logs and next(iter(logs.values())).touched <= before:
                _drop_first(logs)


def _drop_first(logs: OrderedDict[str, _Log]) -> None:
    _, log = logs.popitem(last=False)
    log.dropped = True
    log.changed.wake()


class _MemorySubscription(Subscription):
    __slots__ = ("_bus", "_gap", "_last", "_left", "_log", "_next", "_stream")

    def __init__(self, bus: MemoryBus, stream: str, log: _Log, after: int) -> None:
        self._bus = bus
        self._stream = stream
        self._log = log
        self._last = after
        # counted from the stream's first entry, trimmed ones included
        self._next = log.trimmed + bisect_right(log.entries, after, key=itemgetter(0))
        self._gap = False
        self._left = False
        log.subscribed += 1

    def __repr__(self) -> str:
        return f"<Subscription to {self._stream} after {self._last}>"

    @property
    def gap(self) -> bool:
        return self._gap

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Sequence[Entry]:
        log = self._log
        while not self._left and not self._bus.closed:
            if self._last < log.trimmed_last:
                self._gap = True
            self._next = max(self._next, log.trimmed)
            entries = log.entries[self._next - log.trimmed :]
            if entries:
                self._next += len(entries)
                if entries[0].id <= self._last:
                    # it began after entries that had not come yet
                    entries = [entry for entry in entries if entry.id > self._last]
                    if not entries:
                        continue
                self._last = entries[-1].id
                return entries
            if log.ended:
                break
            if log.dropped:
                await self.aclose()
                return [Entry(self._last + 1, interrupted("its stream was dropped"))]
            await log.changed.wait()
        await self.aclose()
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        if not self._left:
            self._left = True
            self._bus.release(self._stream, self._log)


def interrupted(reason: str) -> TurnFailed:
    """How a turn ends for its readers when whoever ran it is gone."""
    return TurnFailed.of(TurnInterruptedError(f"the turn was interrupted: {reason}"))
