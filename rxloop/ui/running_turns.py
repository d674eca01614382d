"""The turns that run in this web process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

from rxloop.errors import RxLoopError
from rxloop.ui.bus import EventBus
from rxloop.ui.worker import PreparedTurn

__all__ = ("RunningTurns",)

_log = logging.getLogger("rxloop.ui")


class RunningTurns:
    """
    Tasks, one per turn, at most so many at a time.

    Args:
        bus: where stops are asked for.
        limit: the most turns.
    """

    def __init__(self, bus: EventBus, limit: int) -> None:
        self._bus = bus
        self._limit = limit
        self._reserved = 0
        self.closed = False
        """Whether no turn is begun any more."""
        self._tasks: dict[asyncio.Task[None], str] = {}
        self._beside: set[asyncio.Future[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks) + self._reserved

    def reserve(self) -> bool:
        """Take a place for a turn that is being made, if there is one."""
        if len(self) >= self._limit:
            return False
        self._reserved += 1
        return True

    def release(self) -> None:
        """Give the place back."""
        self._reserved -= 1

    def start(self, prepared: PreparedTurn) -> None:
        """Run a turn."""
        task = asyncio.create_task(self._run(prepared))
        self._tasks[task] = prepared.request.stream
        task.add_done_callback(self._tasks.pop)

    def keep(self, waiting: Awaitable[None]) -> None:
        """Let something run beside the turns that is given up with them; what it raises is logged."""
        task = asyncio.ensure_future(_logged(waiting))
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    async def close(self, seconds: float = 5.0) -> None:
        """
        Begin no more turns, stop those that run, wait for them for so many seconds, and then let go of them.

        Args:
            seconds: how long they may take to say goodbye.
        """
        self.closed = True
        beside = list(self._beside)
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        tasks = dict(self._tasks)
        if not tasks:
            return
        await asyncio.gather(*(self._bus.request_stop(stream) for stream in tasks.values()), return_exceptions=True)
        _, left = await asyncio.wait(tasks, timeout=seconds)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _run(self, prepared: PreparedTurn) -> None:
        try:
            await prepared.run()
        except RxLoopError as error:
            _log.error("turn %s: %s", prepared.request.turn_id, error)
        except Exception:
            # nobody awaits it: whoever keeps the logs hears of it
            _log.exception("turn %s failed", prepared.request.turn_id)


async def _logged(waiting: Awaitable[None]) -> None:
    try:
        await waiting
    except RxLoopError as error:
        _log.error("a turn that waits for its worker: %s", error)
