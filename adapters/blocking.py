"""Read a blocking SDK on a thread, and hand what it reads over to the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from contextvars import copy_context
from typing import Any, Generic, Protocol, TypeVar

from rxloop.errors import describe

__all__ = ("Source", "read_on_thread")

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_SHORTLY = 0.001
_QUICK = 8
_FIRST_INTERRUPT = 0.01
_LAST_INTERRUPT = 1.0


class Source(Protocol[T_co]):
    """What blocks. Everything but `interrupt` is called on the thread that reads."""

    @property
    def sized(self) -> bool:
        """Once it is open: whether an item counts as many as it is long, or else one."""
        ...

    @property
    def most(self) -> int:
        """Once it is open: how much may be held for the reader."""
        ...

    def open(self) -> Iterator[T_co]:
        """Send the request; what the iterator gives is handed over item by item."""
        ...

    def close(self) -> None:
        """Release the connection; called once, whatever came before."""
        ...

    def interrupt(self, thread: int) -> bool:
        """
        Make the call that blocks return, and go on with nothing more; called from any thread.

        Args:
            thread: the identifier of the thread that reads.

        Returns:
            Whether that was possible; it is called again until it was, or the thread has ended.
        """
        ...


@asynccontextmanager
async def read_on_thread(source: Source[T]) -> AsyncIterator[AsyncIterator[list[T]]]:
    """
    Open a source on a thread of its own, and read what it gives in lists of all that has arrived.

    The thread runs in the caller's context, waits while the most is held for the reader, and wakes the event loop only
    where the reader waits for it. Where lists come less than a millisecond apart, a wake-up would cost more than what
    it brings: there the reader looks once per millisecond. Leaving the context interrupts the source and does not wait
    for the thread; where there is nothing to interrupt yet, another thread tries again, whatever becomes of the loop.

    Args:
        source: what blocks.

    Raises:
        Exception: what the source raised, after the items before it.
    """
    reading = _Reading(source)
    reading.start()
    try:
        await reading.opened()
        yield reading
    finally:
        reading.leave()


class _Waiting:
    """The reader waits; told once that it need not."""

    __slots__ = ("future", "told")

    def __init__(self, future: asyncio.Future[None]) -> None:
        self.future = future
        self.told = False


class _Reading(Generic[T]):
    """
    One source and its thread.

    There is no lock between the two sides: every field has one writer, and each side writes its own before it looks at
    the other's, so that at least one of the two sees that the other needs it.
    """

    __slots__ = (
        "_ended",
        "_error",
        "_items",
        "_left",
        "_loop",
        "_open",
        "_paused",
        "_quick",
        "_room",
        "_source",
        "_taken",
        "_taken_at",
        "_thread",
        "_waiting",
    )

    def __init__(self, source: Source[T]) -> None:
        self._source = source
        self._loop = asyncio.get_running_loop()
        # written by the thread
        self._items: deque[T] = deque()
        self._error: Exception | None = None
        self._open = self._ended = self._paused = False
        # written by the event loop
        self._left = False
        self._taken = 0
        self._taken_at = 0.0
        self._quick = 0
        self._waiting: _Waiting | None = None
        self._room = threading.Semaphore(0)
        # a thread that is stuck in a system call must not keep the process alive
        self._thread = threading.Thread(target=copy_context().run, args=(self._read,), name="rxloop reply", daemon=True)

    # the event loop's side

    def start(self) -> None:
        self._thread.start()

    async def opened(self) -> None:
        """Return when the source is open; raises what opening it raised."""
        while not self._open and not self._ended:
            waiting = self._waiting = _Waiting(self._loop.create_future())
            if not self._open and not self._ended:
                await waiting.future
        if not self._open and self._error is not None:
            raise self._error

    def __aiter__(self) -> AsyncIterator[list[T]]:
        return self

    async def __anext__(self) -> list[T]:
        held = self._items
        if not held and not self._ended and self._quick >= _QUICK:
            self._waiting = None
            await asyncio.sleep(_SHORTLY)
        while not held:
            if self._ended and not held:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            waiting = self._waiting = _Waiting(self._loop.create_future())
            if not held and not self._ended:
                await waiting.future
        self._waiting = None
        items = [held.popleft() for _ in range(len(held))]
        self._taken += sum(map(len, items)) if self._source.sized else len(items)  # type: ignore[arg-type]
        if self._paused:
            self._room.release()
        now = self._loop.time()
        self._quick = self._quick + 1 if now - self._taken_at < 2 * _SHORTLY else 0
        self._taken_at = now
        return items

    def leave(self) -> None:
        """Make the thread end, whatever it waits for."""
        self._left = True
        self._waiting = None
        if self._paused:
            self._room.release()
        if not self._ended and self._thread.ident is not None and not self._source.interrupt(self._thread.ident):
            threading.Thread(target=self._insist, name="rxloop interrupt", daemon=True).start()

    def _insist(self) -> None:
        """Interrupt until it was possible: the thread may not have come to what blocks yet."""
        thread, delay = self._thread.ident, _FIRST_INTERRUPT
        while thread is not None:
            self._thread.join(delay)
            if self._ended or self._source.interrupt(thread):
                return
            delay = min(2 * delay, _LAST_INTERRUPT)

    # the thread's side

    def _read(self) -> None:
        try:
            if not self._left:
                self._pass_on(self._source.open())
        except Exception as error:
            self._error = error
        except BaseException as error:
            # nobody else would hear of it: the reader waits
            self._error = RuntimeError(f"the thread that reads was ended by {describe(error)}")
            self._error.__cause__ = error
        finally:
            # what was read is more than how its connection was closed
            with contextlib.suppress(BaseException):
                self._source.close()
            self._ended = True
            self._wake()

    def _pass_on(self, items: Iterator[T]) -> None:
        self._open = True
        self._wake()
        sized, most, append = self._source.sized, self._source.most, self._items.append
        given = 0
        for item in items:
            given += len(item) if sized else 1  # type: ignore[arg-type]
            append(item)
            if self._waiting is not None:
                self._wake()
            while given - self._taken >= most and not self._left:
                self._paused = True
                if given - self._taken >= most and not self._left:
                    self._room.acquire()
                self._paused = False
            if self._left:
                return

    def _wake(self) -> None:
        waiting = self._waiting
        if waiting is None or waiting.told:
            return
        waiting.told = True
        # a loop that was closed waits for nothing any more
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(_resolve, waiting.future)


def _resolve(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)
