"""The bridge from an observable to asynchronous iteration: in order, bounded, with backpressure."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator
from contextvars import copy_context
from typing import Generic, Self, TypeVar

from reactivex import Observable, abc
from reactivex.disposable import SingleAssignmentDisposable

from rxloop.checks import instance, whole
from rxloop.clock import call_in, running_loop
from rxloop.demand import Demand, demand_context
from rxloop.errors import BufferOverflowError, ConfigurationError

__all__ = ("Channel", "iterate")

T = TypeVar("T")

_HEADROOM = 4
"""What an operator may add to one event: `step_finished`, `usage_updated`, the next `step_started`."""


class _Buffer(abc.ObserverBase[T]):
    """The observer's side: fills up, closes the demand, wakes the reader."""

    __slots__ = (
        "_capacity",
        "_ended",
        "_high",
        "_loop",
        "_low",
        "_thread",
        "_waiter",
        "demand",
        "error",
        "items",
        "peak",
        "subscription",
    )

    def __init__(self, capacity: int) -> None:
        self._loop = running_loop()
        self._thread = threading.get_ident()
        self._capacity = capacity
        self._high = max(1, capacity - _HEADROOM)
        self._low = self._high // 2
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        self.error: Exception | None = None
        self.items: deque[T] = deque()
        self.peak = 0
        self.demand = Demand()
        self.subscription = SingleAssignmentDisposable()

    def on_next(self, value: T) -> None:
        if self._ended:
            return
        items = self.items
        if len(items) >= self._capacity:
            self.subscription.dispose()
            self.on_error(
                BufferOverflowError(
                    f"the buffer must hold at most {self._capacity} items, but the source pushed more and "
                    f"cannot be paused: give a larger buffer, or thin the source out"
                )
            )
            return
        items.append(value)
        size = len(items)
        if size > self.peak:
            self.peak = size
        if size >= self._high:
            self.demand.closed = True
        if self._waiter is not None:
            self._wake()

    def on_error(self, error: Exception) -> None:
        self._end(error)

    def on_completed(self) -> None:
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if not self._ended:
            self._ended = True
            self.error = error
            self._wake()

    def _wake(self) -> None:
        if threading.get_ident() == self._thread:
            self._set()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def take(self) -> T:
        while not self.items:
            if self._ended:
                error, self.error = self.error, None
                if error is not None:
                    raise error
                raise StopAsyncIteration
            if self._waiter is not None:
                raise ConfigurationError("a channel must have one reader at a time, but a second one waits")
            self._waiter = self._loop.create_future()
            # a push from another thread may have come in between
            if not self.items and not self._ended:
                try:
                    await self._waiter
                finally:
                    self._waiter = None
            else:
                self._waiter = None
        value = self.items.popleft()
        if self.demand.closed and len(self.items) <= self._low:
            self.demand.open()
        return value

    def leave(self) -> None:
        self._ended = True
        self.items.clear()
        self.subscription.dispose()
        call_in(self._loop, self._release)

    def _release(self) -> None:
        # a reader that waits, and whatever was paused, must wake up to see that it is over
        self._set()
        self.demand.open()


class Channel(AsyncIterator[T], Generic[T]):
    """
    An asynchronous iterator over one subscription to an observable.

    Use it in ``async for``, or in ``async with`` to leave deterministically. Leaving disposes the subscription: at the
    end of ``async with``, by `aclose`, or when nothing refers to the channel any more, as after a ``break`` out of
    ``async for event in turn``. While the reader lags, rxloop's own sources stop reading their sockets.

    Args:
        source: what to subscribe to.
        buffer: the most items that wait for the reader; at least 8.

    Raises:
        ConfigurationError: the buffer is too small, or there is no running event loop.
    """

    __slots__ = ("_buffer",)

    def __init__(self, source: Observable[T], *, buffer: int = 256) -> None:
        whole("buffer", buffer, minimum=2 * _HEADROOM)
        instance("source", source, Observable)
        buffered: _Buffer[T] = _Buffer(buffer)
        self._buffer = buffered
        context = copy_context()
        context.run(demand_context.set, buffered.demand)
        buffered.subscription.disposable = context.run(source.subscribe, buffered)

    @property
    def buffered(self) -> int:
        """How many items wait for the reader."""
        return len(self._buffer.items)

    @property
    def peak_buffered(self) -> int:
        """The most items that have ever waited."""
        return self._buffer.peak

    def __aiter__(self) -> Channel[T]:
        return self

    async def __anext__(self) -> T:
        """
        The next item, in order.

        Raises:
            Exception: the source's own error, after everything that it pushed before.
        """
        return await self._buffer.take()

    async def aclose(self) -> None:
        """Leave: dispose the subscription and drop what waits."""
        self._buffer.leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._buffer.leave()

    def __del__(self) -> None:
        # `break` does not close an iterator; dropping it does
        buffered = getattr(self, "_buffer", None)
        if buffered is not None:
            buffered.leave()


def iterate(source: Observable[T], *, buffer: int = 256) -> Channel[T]:
    """
    Iterate over an observable with ``async for``: a turn, or anything composed of turns and other sources.

    Args:
        source: what to subscribe to, once, now.
        buffer: the most items that wait for the reader; at least 8. rxloop's sources pause when it is full; a source
            that cannot pause fails with `BufferOverflowError` instead of growing without bound.

    Raises:
        ConfigurationError: the buffer is too small, or there is no running event loop.
    """
    return Channel(source, buffer=buffer)
