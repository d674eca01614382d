"""Read a blocking SDK on a thread, and hand what it reads over to the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from contextvars import copy_context
from typing import Any, Generic, Protocol, TypeVar

__all__ = ("Source", "read_on_thread")

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_FIRST_INTERRUPT = 0.01
_LAST_INTERRUPT = 1.0


class Source(Protocol[T_co]):
    """What blocks. Everything but `interrupt` is called on the thread that reads."""

    def open(self) -> Iterator[T_co]:
        """Send the request; what the iterator gives is handed over item by item."""
        ...

    def close(self) -> None:
        """Release the connection; called once, whatever came before."""
        ...

    def interrupt(self, thread: int) -> None:
        """
        Make the call that blocks return, from the event loop; called again until the thread has ended.

        Args:
            thread: the identifier of the thread that reads.
        """
        ...


@asynccontextmanager
async def read_on_thread(
    source: Source[T], *, weigh: Callable[[T], int], most: int
) -> AsyncIterator[AsyncIterator[list[T]]]:
    """
    Open a source on a thread of its own, and read what it gives in lists of all that has arrived.

    The thread runs in the caller's context, waits while ``most`` is held for the reader, and wakes the event loop only
    where the reader waits for it. Leaving the context interrupts the source and does not wait for the thread.

    Args:
        source: what blocks.
        weigh: how much an item counts.
        most: how much may be held for the reader.

    Raises:
        Exception: what the source raised, after the items before it.
    """
    reading = _Reading(source, weigh, most)
    reading.start()
    try:
        await reading.opened()
        yield reading
    finally:
        reading.leave()


class _Reading(Generic[T]):
    """One source and its thread."""

    __slots__ = (
        "_ended",
        "_error",
        "_held",
        "_items",
        "_left",
        "_lock",
        "_loop",
        "_most",
        "_open",
        "_paused",
        "_room",
        "_source",
        "_thread",
        "_waiting",
        "_weigh",
    )

    def __init__(self, source: Source[T], weigh: Callable[[T], int], most: int) -> None:
        self._source = source
        self._weigh = weigh
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._room = threading.Semaphore(0)
        self._items: list[T] = []
        self._held = 0
        self._error: Exception | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._open = self._ended = self._left = self._paused = False
        self._thread: threading.Thread | None = None

    # the event loop's side

    def start(self) -> None:
        # a thread that is stuck in a system call must not keep the process alive
        self._thread = threading.Thread(target=copy_context().run, args=(self._read,), name="rxloop reply", daemon=True)
        self._thread.start()

    async def opened(self) -> None:
        """Return when the source is open; raises what opening it raised."""
        await self._until(lambda: self._open or self._ended)
        if not self._open and self._error is not None:
            raise self._error

    def __aiter__(self) -> AsyncIterator[list[T]]:
        return self

    async def __anext__(self) -> list[T]:
        if not self._items:
            await self._until(lambda: bool(self._items) or self._ended)
        with self._lock:
            items, self._items = self._items, []
            self._held = 0
            paused, self._paused = self._paused, False
        if paused:
            self._room.release()
        if items:
            return items
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration

    def leave(self) -> None:
        """Make the thread end, whatever it waits for."""
        with self._lock:
            self._left = True
            self._items.clear()
            paused, self._paused = self._paused, False
            self._waiting = None
        if paused:
            self._room.release()
        self._interrupt(_FIRST_INTERRUPT)

    def _interrupt(self, delay: float) -> None:
        if self._ended or self._thread is None or self._thread.ident is None:
            return
        self._source.interrupt(self._thread.ident)
        # it may not have come to what blocks yet
        self._loop.call_later(delay, self._interrupt, min(2 * delay, _LAST_INTERRUPT))

    async def _until(self, condition: Callable[[], bool]) -> None:
        while True:
            with self._lock:
                if condition():
                    return
                waiting = self._waiting = self._loop.create_future()
            await waiting

    # the thread's side

    def _read(self) -> None:
        try:
            if not self._left:
                self._pass_on(self._source.open())
        except Exception as error:
            self._error = error
        # what was read is more than how its connection was closed
        with contextlib.suppress(Exception):
            self._source.close()
        with self._lock:
            self._ended = True
            waiting = self._no_longer_waiting()
        self._wake(waiting)

    def _pass_on(self, items: Iterator[T]) -> None:
        with self._lock:
            self._open = True
            waiting = self._no_longer_waiting()
        self._wake(waiting)
        for item in items:
            with self._lock:
                if self._left:
                    return
                self._items.append(item)
                self._held += self._weigh(item)
                self._paused = full = self._held >= self._most
                waiting = self._no_longer_waiting()
            if waiting is not None:
                self._wake(waiting)
            if full:
                self._room.acquire()

    def _no_longer_waiting(self) -> asyncio.Future[None] | None:
        waiting, self._waiting = self._waiting, None
        return waiting

    def _wake(self, waiting: asyncio.Future[None] | None) -> None:
        if waiting is None:
            return
        try:
            self._loop.call_soon_threadsafe(_resolve, waiting)
        except RuntimeError:
            # the loop was closed, and nobody waits any more
            self._left = True


def _resolve(waiting: asyncio.Future[Any]) -> None:
    if not waiting.done():
        waiting.set_result(None)
