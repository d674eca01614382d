"""Readers of a hot turn, each at its own pace, and what happens when one lags."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal, Self, TypeAlias, get_args

from reactivex import abc
from reactivex.disposable import SerialDisposable

from rxloop.checks import positive_seconds, whole
from rxloop.clock import after, call_in, running_loop
from rxloop.errors import BufferOverflowError, ConfigurationError
from rxloop.event_log import EventLog
from rxloop.events import TurnEvent

__all__ = ("LogReader", "Overflow", "QueueReader", "Watcher", "check_watcher")

Overflow: TypeAlias = Literal["block", "drop_oldest", "coalesce", "error"]
"""What happens to a watcher whose reader lags."""

_POLICIES = get_args(Overflow)

_HEADROOM = 4
"""What may still come once the turn was asked to wait."""


def check_watcher(overflow: Any, buffer: Any, patience: Any) -> None:
    """
    Check what a watcher is made with.

    Raises:
        ConfigurationError: a value breaks its rule.
    """
    if overflow not in _POLICIES:
        raise ConfigurationError(f"overflow must be one of {', '.join(_POLICIES)}, but got {overflow!r}")
    whole("buffer", buffer, minimum=2 * _HEADROOM)
    positive_seconds("patience", patience)


class _Reader:
    """What waits for one reader, and the reader who waits for it."""

    __slots__ = ("_loop", "_waiter", "_waiting", "dropped", "error", "log", "over")

    def __init__(self, log: EventLog) -> None:
        self._loop = running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._waiting: deque[TurnEvent] = deque()
        self.log = log
        self.error: Exception | None = None
        self.over = False
        self.dropped = 0

    def wake(self) -> None:
        """Something has happened."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def take(self) -> TurnEvent:
        """The next event."""
        while not self._waiting and not self._refill():
            if self.log.ended and not self.over:
                self.error = self.log.error
                self.leave()
            if self.over:
                error, self.error = self.error, None
                if error is not None:
                    raise error
                raise StopAsyncIteration
            if self._waiter is not None:
                raise ConfigurationError("a watcher must have one reader at a time, but a second one waits")
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._next()

    def close(self) -> None:
        """Leave, and drop what waits; from any thread."""
        call_in(self._loop, self._close)

    def abandon(self) -> None:
        """Leave as soon as the event loop can: where nobody refers to it any more, anything may be in the middle."""
        if not (self.over or self._loop.is_closed()):
            self._loop.call_soon_threadsafe(self._close)

    def _close(self) -> None:
        self._waiting.clear()
        self.error = None
        self.leave()
        self.wake()

    def _refill(self) -> bool:
        return False

    def _next(self) -> TurnEvent:
        return self._waiting.popleft()

    def leave(self) -> None:
        """Get no more events; what waits can still be taken."""
        raise NotImplementedError


class LogReader(_Reader):
    """
    Reads the log itself: while the reader lags, runs of deltas become one, and nothing is lost.

    Args:
        log: the turn's events.
        on_leave: told once when it is over.
    """

    __slots__ = ("_on_leave", "position")

    def __init__(self, log: EventLog, on_leave: Callable[[LogReader], None]) -> None:
        super().__init__(log)
        self._on_leave = on_leave
        self.position = 0
        log.shorten()
        log.readers.append(self)

    def _refill(self) -> bool:
        log = self.log
        count = len(log.events) - self.position
        if self.over or not count:
            return False
        if count > 1:
            log.merge_from(self.position)
        self._waiting.extend(log.events[self.position :])
        self.position = len(log.events)
        return True

    def leave(self) -> None:
        """Get no more events; what waits can still be taken."""
        if not self.over:
            self.over = True
            self.log.readers.remove(self)
            self._on_leave(self)


class QueueReader(_Reader):
    """
    Has a bounded queue of its own.

    Args:
        log: the turn's events.
        on_leave: told once when it is over.
        overflow: what happens when the queue is full.
        buffer: the most events in it.
        patience: how many seconds the turn waits for an event to be taken; ``None`` for ever.
        pace: told when the turn has to wait for the reader, or has not any more.
        scheduler: measures the patience.
    """

    __slots__ = (
        "_buffer",
        "_missed",
        "_on_leave",
        "_overflow",
        "_pace",
        "_patience",
        "_scheduler",
        "_taken",
        "_timer",
        "holds",
    )

    def __init__(
        self,
        log: EventLog,
        on_leave: Callable[[QueueReader], None],
        *,
        overflow: Overflow,
        buffer: int,
        patience: float | None,
        pace: Callable[[], None],
        scheduler: abc.SchedulerBase,
    ) -> None:
        super().__init__(log)
        self._on_leave = on_leave
        self._overflow = overflow
        self._buffer = buffer
        self._patience = patience
        self._pace = pace
        self._scheduler = scheduler
        self._timer = SerialDisposable()
        self._taken = 0
        log.shorten()
        self._waiting.extend(log.events)
        # what was missed is not the reader's fault, and does not count
        self._missed = len(log.events)
        self.holds = False
        """Whether the turn has to wait for the reader."""

    def push(self, event: TurnEvent) -> None:
        """One more event."""
        waiting = self._waiting
        lag = len(waiting) - self._missed
        if lag >= self._buffer:
            if self._overflow != "drop_oldest":
                self._fail(f"a watcher must lag at most {self._buffer} events behind, but lagged more")
                return
            self._drop()
        waiting.append(event)
        if self._overflow == "block" and not self.holds and lag + 1 >= self._buffer - _HEADROOM:
            self.holds = True
            self._be_patient()
            self._pace()
        self.wake()

    def _drop(self) -> None:
        """Make room for one; what was missed is the oldest."""
        self.dropped += self._missed + 1
        for _ in range(self._missed + 1):
            self._waiting.popleft()
        self._missed = 0

    def finish(self) -> None:
        """The turn has ended."""
        self.holds = False
        self._timer.dispose()
        self.wake()

    def _be_patient(self) -> None:
        taken, patience = self._taken, self._patience
        if patience is None:
            return

        def check() -> None:
            if self.over or not self.holds:
                return
            if self._taken == taken:
                self._fail(f"a watcher must take an event within {patience:g} s while the turn waits for it")
            else:
                self._be_patient()

        self._timer.disposable = after(self._scheduler, patience, check)

    def _fail(self, message: str) -> None:
        self.error = BufferOverflowError(message)
        self.leave()
        self.wake()

    def _next(self) -> TurnEvent:
        event = self._waiting.popleft()
        self._taken += 1
        if self._missed:
            self._missed -= 1
        elif self.holds and len(self._waiting) <= self._buffer // 2:
            self.holds = False
            self._timer.disposable = None
            self._pace()
        return event

    def leave(self) -> None:
        """Get no more events; what waits can still be taken."""
        if not self.over:
            self.over = True
            self.holds = False
            self._timer.dispose()
            self._on_leave(self)


class Watcher(AsyncIterator[TurnEvent]):
    """
    An asynchronous iterator over a hot turn's events: those so far, then those to come. Made by `HotTurn.watch`.

    Leaving affects nobody else: by `aclose`, at the end of ``async with``, or when nothing refers to it any more, as
    after a ``break`` out of ``async for event in hot``.
    """

    __slots__ = ("_reader",)

    def __init__(self, reader: LogReader | QueueReader) -> None:
        """See `HotTurn.watch`."""
        self._reader = reader

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TurnEvent:
        """
        The next event.

        Raises:
            RxLoopError: the turn failed; after everything that it said before.
            BufferOverflowError: this watcher lagged more than it may; after what waited still.
        """
        return await self._reader.take()

    @property
    def dropped(self) -> int:
        """How many events were dropped because the reader lagged."""
        return self._reader.dropped

    async def aclose(self) -> None:
        """Leave, and drop what waits."""
        self._reader.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reader.close()

    def __del__(self) -> None:
        # `break` does not close an iterator; dropping it does
        reader: Any = getattr(self, "_reader", None)
        if reader is not None:
            reader.abandon()
