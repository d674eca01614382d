"""A run's events, kept once for all who watch it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from types import TracebackType
from typing import Any, Protocol

from reactivex import abc

from rxloop.clock import loop_if_any
from rxloop.demand import Demand
from rxloop.events import TurnEvent
from rxloop.merging import merge_adjacent
from rxloop.run import SUBSCRIBERS_OWN

__all__ = ("EventLog", "Follower", "Reader")

_ROOM = 512
"""How many events come in, at least, before the log is made shorter."""


class Reader(Protocol):
    """Whoever reads a log from a place in it: the events before it were read."""

    position: int


class EventLog:
    """
    Events in order, runs of deltas merged once nobody reads within them.

    Args:
        replay: the most events that are kept for those who come late, after merging. The first one stays, so that a
            late one knows whose events they are; so does everything that a reader of the log has still to read.
    """

    __slots__ = ("_error", "_merged", "_replay", "_room", "_traceback", "ended", "events", "heard", "readers")

    def __init__(self, replay: int) -> None:
        self._replay = replay
        self._room = _ROOM
        self._merged = 0
        self.ended = False
        self._error: Exception | None = None
        self._traceback: TracebackType | None = None
        self.heard = False
        """Whether anybody has asked for the error."""
        self.events: list[TurnEvent] = []
        self.readers: list[Reader] = []

    @property
    def error(self) -> Exception | None:
        """What it ended with, as it was when it came: each who raises it would keep the frames of all before."""
        self.heard = True
        return None if self._error is None else self._error.with_traceback(self._traceback)

    def append(self, event: TurnEvent) -> None:
        """Keep one more."""
        self.events.append(event)
        if len(self.events) >= self._room:
            self.shorten()

    def end(self, error: Exception | None) -> None:
        """Nothing follows."""
        self.ended = True
        self._error = error
        self._traceback = None if error is None else error.__traceback__
        self.shorten()

    def merge_from(self, start: int) -> None:
        """Merge what follows `start`, but for what other readers are in the middle of."""
        events = self.events
        places = sorted({start, len(events), *(reader.position for reader in self.readers if reader.position > start)})
        merged: list[TurnEvent] = []
        moved = {}
        for begin, end in pairwise(places):
            moved[begin] = start + len(merged)
            merged += _merged(events[begin:end])
        moved[len(events)] = start + len(merged)
        events[start:] = merged
        self._merged = min(self._merged, len(events))
        for reader in self.readers:
            if reader.position > start:
                reader.position = moved[reader.position]

    def shorten(self) -> None:
        """Merge what can be merged, and forget the oldest beyond what is replayed."""
        # what was merged already is not looked at again: many may come late
        self.merge_from(max(0, self._merged - 1))
        unread = min((reader.position for reader in self.readers), default=len(self.events))
        surplus = min(len(self.events) - self._replay, unread - 1)
        if surplus > 0:
            del self.events[1 : 1 + surplus]
            for reader in self.readers:
                reader.position -= surplus
        self._merged = len(self.events)
        self._room = max(_ROOM, 2 * self._merged)


def _merged(events: Iterable[TurnEvent]) -> list[TurnEvent]:
    return [event for _, event in merge_adjacent(enumerate(events))]


class Follower:
    """
    A subscriber that is pushed to, as fast as it takes: from the log's beginning, then live.

    Args:
        log: what it follows.
        observer: what is pushed to. What it raises is its own error, and ends it.
        demand: of the consumer behind it, where that one buffers.
        on_leave: told once when it is over.
    """

    __slots__ = ("_busy", "_demand", "_gone", "_log", "_observer", "_on_leave", "_waits", "position")

    def __init__(
        self,
        log: EventLog,
        observer: abc.ObserverBase[Any],
        demand: Demand | None,
        on_leave: Callable[[Follower], None],
    ) -> None:
        self._log = log
        self._observer = observer
        self._demand = demand
        self._on_leave = on_leave
        self._busy = self._gone = self._waits = False
        self.position = 0
        log.shorten()
        log.readers.append(self)

    def advance(self) -> None:
        """Push what is there."""
        # an observer that brings about the next event gets it when it has taken this one
        if self._busy or self._waits:
            return
        self._busy = True
        events, demand = self._log.events, self._demand
        try:
            while not self._gone and self.position < len(events):
                if demand is not None and demand.closed:
                    self._waits = True
                    demand.when_open(self._resume)
                    return
                event = events[self.position]
                self.position += 1
                self._observer.on_next(event)
        except SUBSCRIBERS_OWN as error:
            self._fail(error)
        finally:
            self._busy = False
        if self._log.ended and not self._gone:
            self._finish()

    def _resume(self) -> None:
        self._waits = False
        if not self._gone:
            if len(self._log.events) - self.position > 1:
                self._log.merge_from(self.position)
            self.advance()

    def _finish(self) -> None:
        self.leave()
        error = self._log.error
        try:
            if error is None:
                self._observer.on_completed()
            else:
                self._observer.on_error(error)
        except SUBSCRIBERS_OWN as fault:
            _report(fault)

    def _fail(self, fault: BaseException) -> None:
        self.leave()
        try:
            self._observer.on_error(fault)  # type: ignore[arg-type]
        except SUBSCRIBERS_OWN as error:
            _report(error)

    def leave(self) -> None:
        """Push nothing more."""
        if not self._gone:
            self._gone = True
            self._log.readers.remove(self)
            self._on_leave(self)


def _report(error: BaseException) -> None:
    """An error that no observer took must not reach the others, nor be lost: whoever runs the loop hears of it."""
    loop = loop_if_any()
    if loop is None:
        raise error
    loop.call_exception_handler({"message": "a subscriber of a hot turn raised", "exception": error})
