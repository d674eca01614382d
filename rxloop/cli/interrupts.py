"""How a command ends before its time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence

__all__ = ("INTERRUPTED", "hang_up", "interruptible")

INTERRUPTED = 130
"""The exit status of a command that was interrupted."""

_BROKEN_PIPE = 141

_SIGNALLED = 128
"""What the shell adds to a signal's number."""


def hang_up() -> int:
    """Whoever read the output is gone: end quietly, with the status that the shell knows for it."""
    # what is buffered still must not complain at the interpreter's end
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _BROKEN_PIPE


def interruptible(
    work: Callable[[asyncio.Event], Awaitable[int]], signals: Sequence[signal.Signals] = (signal.SIGINT,)
) -> int:
    """
    Run to the end. The first of the signals asks for a graceful one, the second cancels.

    Returns:
        the status of the work, or what the shell knows for the first signal: 130 for SIGINT, 143 for SIGTERM.
    """

    async def guarded() -> int:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(work(stop := asyncio.Event()))
        received: list[int] = []

        def interrupt(number: int) -> None:
            if received:
                task.cancel()
            received.append(number)
            stop.set()

        with _on_signals(loop, signals, interrupt):
            try:
                status = await task
            except asyncio.CancelledError:
                return _SIGNALLED + received[0] if received else INTERRUPTED
        return _SIGNALLED + received[0] if received else status

    try:
        return asyncio.run(guarded())
    except BrokenPipeError:
        return hang_up()


@contextlib.contextmanager
def _on_signals(
    loop: asyncio.AbstractEventLoop, signals: Sequence[signal.Signals], interrupt: Callable[[int], None]
) -> Iterator[None]:
    try:
        before = {
            number: signal.signal(number, lambda number, _: loop.call_soon_threadsafe(interrupt, number))
            for number in signals
        }
    except ValueError:
        # not the main thread: nobody can interrupt it
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
