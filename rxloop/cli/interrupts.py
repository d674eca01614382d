"""How a command ends before its time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator

__all__ = ("INTERRUPTED", "hang_up", "interruptible")

INTERRUPTED = 130
"""The exit status of a command that was interrupted."""

_BROKEN_PIPE = 141


def hang_up() -> int:
    """Whoever read the output is gone: end quietly, with the status that the shell knows for it."""
    # what is buffered still must not complain at the interpreter's end
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _BROKEN_PIPE


def interruptible(work: Callable[[asyncio.Event], Awaitable[int]]) -> int:
    """Run to the end. The first interrupt asks for a graceful one, the second cancels."""

    async def guarded() -> int:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(work(stop := asyncio.Event()))

        def interrupt() -> None:
            if stop.is_set():
                task.cancel()
            stop.set()

        with _on_interrupt(loop, interrupt):
            try:
                status = await task
            except asyncio.CancelledError:
                return INTERRUPTED
        return INTERRUPTED if stop.is_set() else status

    try:
        return asyncio.run(guarded())
    except BrokenPipeError:
        return hang_up()


@contextlib.contextmanager
def _on_interrupt(loop: asyncio.AbstractEventLoop, interrupt: Callable[[], None]) -> Iterator[None]:
    try:
        before = signal.signal(signal.SIGINT, lambda *_: loop.call_soon_threadsafe(interrupt))
    except ValueError:
        # not the main thread: nobody can interrupt it
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
