"""Event tapes: a turn's events as JSON lines, played back."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from reactivex import Observable, abc
from reactivex.disposable import Disposable, SerialDisposable

from rxloop.clock import scheduler_for
from rxloop.demand import current_demand
from rxloop.errors import ConfigurationError
from rxloop.events import TurnEvent, event_from_dict, misfit_of
from rxloop.testing.files import read_text

__all__ = ("play_tape",)

_LATEST = 1e15
_LONGEST = 1e9
"""The most seconds that pass between two events: timers take no more than some decades."""


def play_tape(
    path: str | os.PathLike[str], *, speed: float = 0.0, scheduler: abc.SchedulerBase | None = None
) -> Observable[TurnEvent]:
    """
    Play a tape: one event a line, as ``event.to_dict()`` writes it.

    .. marble::
        tape:  a 0.0, b 1.5, c 2.0
        [ play_tape(speed 1) ]
        a--------------b----c|

    A line may have a ``time`` in seconds; the first time is the start. An event of a type that this version does not
    know comes as an `UnknownEvent`, but a field that is not of its type is refused. The file is read at the call;
    every subscription plays it from the start. Disposing cancels the wait. A consumer that lags pauses the tape.

    Args:
        path: the JSON lines.
        speed: how many seconds of the tape pass in one; 0 plays everything at once.
        scheduler: runs the delays; the subscription's or the running event loop's by default.

    Raises:
        ConfigurationError: the file cannot be read, a line is not an event, or `speed` breaks its rule.
    """
    if isinstance(speed, bool) or not isinstance(speed, (int, float)) or not 0 <= speed < float("inf"):
        raise ConfigurationError(f"speed must be >= 0, but got {speed!r}")
    events = _events(path)

    def subscribe(observer: abc.ObserverBase[Any], scheduler_: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        timer = SerialDisposable()
        demand = current_demand()
        disposed = running = waited = False
        position = 0

        def on_time(*_: Any) -> None:
            nonlocal waited
            waited = True
            run()

        def run() -> None:
            nonlocal running, waited, position
            if running:
                return
            running = True
            try:
                while position < len(events) and not disposed:
                    if demand is not None and demand.closed:
                        demand.when_open(run)
                        return
                    delay, event = events[position]
                    if speed and delay and not waited:
                        timers = scheduler_for(scheduler, scheduler_)
                        timer.disposable = timers.schedule_relative(min(delay / speed, _LONGEST), on_time)
                        return
                    waited = False
                    position += 1
                    observer.on_next(event)
            finally:
                running = False
            if not disposed:
                observer.on_completed()

        def dispose() -> None:
            nonlocal disposed
            disposed = True
            timer.dispose()

        run()
        return Disposable(dispose)

    return Observable(subscribe)


def _events(path: str | os.PathLike[str]) -> list[tuple[float, TurnEvent]]:
    """Every event with the seconds that pass before it."""
    shown = os.fspath(path)
    events: list[tuple[float, TurnEvent]] = []
    clock: float | None = None
    for number, line in enumerate(read_text(path, "an event tape").split("\n"), 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
        except ValueError:
            raise ConfigurationError(f"{shown}, line {number}: it must be one JSON object, but is not JSON") from None
        except RecursionError:
            raise ConfigurationError(f"{shown}, line {number}: it is nested too deeply") from None
        if not isinstance(data, Mapping) or not isinstance(data.get("type"), str):
            raise ConfigurationError(f"{shown}, line {number}: it must be an event, an object with a type")
        misfit = misfit_of(data)
        if misfit is not None:
            raise ConfigurationError(
                f"{shown}, line {number}: {misfit} of a {data['type']} must not be {data[misfit]!r:.100}"
            )
        moment = data.get("time")
        delay = 0.0
        if moment is not None:
            if isinstance(moment, bool) or not isinstance(moment, (int, float)) or not abs(moment) < _LATEST:
                raise ConfigurationError(
                    f"{shown}, line {number}: time must be a number of seconds, but got {moment!r:.100}"
                )
            delay = max(0.0, moment - clock) if clock is not None else 0.0
            clock = moment
        events.append((delay, event_from_dict(data)))
    return events
