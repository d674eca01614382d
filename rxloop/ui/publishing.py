"""Running a turn for an event bus."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from reactivex import Observable

from rxloop.checks import function_or_none, instance, whole
from rxloop.clock import call_in
from rxloop.events import TurnEvent, TurnFinished
from rxloop.merging import merge_adjacent
from rxloop.ui.bus import EventBus, TurnInterruptedError, check_stream
from rxloop.ui.entry import Entry, StreamEvent, TurnFailed, is_end

__all__ = ("publish_turn",)

_COMPACT_AT = 1024
"""So many events wait before they are merged while nothing can be published."""

_FAREWELL = 1.0
"""The seconds that a cancelled publisher takes to say that the turn was interrupted."""


async def publish_turn(
    turn: Observable[TurnEvent],
    bus: EventBus,
    stream: str,
    *,
    on_stop: Callable[[], object] | None = None,
    before_end: Callable[[], Awaitable[object]] | None = None,
    first: int = 1,
) -> TurnFinished | TurnFailed:
    """
    Run a turn and publish its events, numbered from 1, until it has ended and all of it is on the bus.

    The turn is never held up: deltas that follow one another while the bus is busy or away are published as one. A
    failure is published as `TurnFailed`, and is no error here. Cancelling disposes the subscription, publishes that the
    turn was interrupted (for a second at most), and leaves.

    Args:
        turn: a cold `Turn`, a hot one, or anything made of one that keeps its first and last event.
        bus: where to.
        stream: the stream's name, of this run alone: the turn's id.
        on_stop: called once if somebody asks the bus to stop the turn: `HotTurn.stop`, or the ``set`` of the
            `asyncio.Event` that is the turn's ``stop``. Without it such requests are not heard.
        before_end: awaited once when the turn has ended, before its last event is published: what has to be done by the
            time that anybody learns of the end.
        first: the number of the first event, where entries were published before.

    Returns:
        the last event that was published.

    Raises:
        ConfigurationError: a value breaks its rule, or the bus was closed.
        BusError: the bus refuses the entries for good.
    """
    instance("turn", turn, Observable)
    check_stream("stream", stream)
    function_or_none("on_stop", on_stop)
    function_or_none("before_end", before_end)
    whole("first", first, minimum=1)
    outbox = _Outbox(first - 1)
    subscription = turn.subscribe(outbox.on_next, outbox.on_error, outbox.on_completed)
    stopping = None if on_stop is None else asyncio.create_task(_stop(bus, stream, on_stop, outbox))
    try:
        return await _publish(bus, stream, outbox, stopping, before_end)
    except BaseException as error:
        subscription.dispose()
        reason = (
            error if isinstance(error, Exception) else TurnInterruptedError("the turn was interrupted: its worker left")
        )
        outbox.on_error(reason)
        # the bus may be what failed: its readers find out for themselves then
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_FAREWELL):
                await bus.publish(stream, outbox.take())
        raise
    finally:
        subscription.dispose()
        if stopping is not None:
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)


def _raise_failure(stopping: asyncio.Task[None] | None) -> None:
    if stopping is not None and stopping.done():
        stopping.result()


async def _stop(bus: EventBus, stream: str, on_stop: Callable[[], object], outbox: _Outbox) -> None:
    try:
        await bus.stop_requested(stream)
        on_stop()
    finally:
        # a failure is the publisher's to raise
        outbox.arrived.set()


async def _publish(
    bus: EventBus,
    stream: str,
    outbox: _Outbox,
    stopping: asyncio.Task[None] | None,
    before_end: Callable[[], Awaitable[object]] | None,
) -> TurnFinished | TurnFailed:
    loop = asyncio.get_running_loop()
    while True:
        _raise_failure(stopping)
        if outbox.last is not None and before_end is not None:
            first, before_end = before_end, None
            await first()
        await bus.publish(stream, outbox.take())
        outbox.sent = []
        if outbox.last is not None and not outbox.pending:
            _raise_failure(stopping)
            return outbox.last
        if not outbox.pending:
            beat = loop.call_later(bus.heartbeat, outbox.arrived.set)
            try:
                await outbox.arrived.wait()
            finally:
                beat.cancel()
        outbox.arrived.clear()


class _Outbox:
    """The events that wait to be published."""

    def __init__(self, number: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._number = number
        self._began = self._loop.time()
        self._compact_at = _COMPACT_AT
        self.arrived = asyncio.Event()
        self.pending: list[tuple[tuple[int, float], StreamEvent]] = []
        self.sent: list[Entry] = []
        """What is being published: it may be there, or not, until that has returned."""
        self.last: TurnFinished | TurnFailed | None = None

    def on_next(self, event: Any) -> None:
        if threading.get_ident() == self._thread:
            self._push(event)
        else:
            call_in(self._loop, self._push, event)

    def on_error(self, error: Exception) -> None:
        self.on_next(TurnFailed.of(error))

    def on_completed(self) -> None:
        # a turn that was disposed completes without its last event
        call_in(self._loop, self._finish)

    def _finish(self) -> None:
        if self.last is None:
            self.on_error(TurnInterruptedError("the turn was interrupted: it was disposed before its end"))

    def _push(self, event: StreamEvent) -> None:
        if self.last is not None:
            return
        self._number += 1
        self.pending.append(((self._number, self._loop.time() - self._began), event))
        if is_end(event):
            self.last = event  # type: ignore[assignment]
        elif len(self.pending) >= self._compact_at:
            self.pending = merge_adjacent(self.pending)
            # what cannot be merged is not looked at again and again
            self._compact_at = max(_COMPACT_AT, 2 * len(self.pending))
        self.arrived.set()

    def take(self) -> list[Entry]:
        self.sent += [Entry(number, event, round(time, 3)) for (number, time), event in merge_adjacent(self.pending)]
        self.pending = []
        self._compact_at = _COMPACT_AT
        return self.sent
