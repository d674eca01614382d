"""Event tapes: a turn's events as JSON lines, recorded while they pass and played back.

The first line says what the file is; each further line is an event's JSON form with its ``time`` in seconds since the
turn was subscribed. A failure is a line of the type ``error``.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable, SerialDisposable, SingleAssignmentDisposable

from rxloop.clock import clock_of, scheduler_for
from rxloop.demand import current_demand
from rxloop.errors import ConfigurationError, RxLoopError, describe, error_from_dict
from rxloop.events import TurnEvent, event_from_dict, misfit_of
from rxloop.testing.cassette import without_credentials
from rxloop.testing.files import read_text

__all__ = ("VERSION", "record_tape", "replay_tape", "timed_events")

VERSION = 1
"""What is written; a tape of a later version is refused, one without a version line is understood."""

_LATEST = 1e15
_LONGEST = 1e9
"""The most seconds that pass between two events: timers take no more than some decades."""


def record_tape(
    source: Observable[TurnEvent], path: str | os.PathLike[str], *, scheduler: abc.SchedulerBase | None = None
) -> Observable[TurnEvent]:
    """
    Write a tape of a turn's events while they pass through.

    .. marble::
        --a--b--c|
        [ record_tape(path) ]
        --a--b--c|         tape: a 2.0, b 5.0, c 8.0

    Every event is on the disk before it is passed on, so that a crash leaves a tape that can be read up to it. A
    failure is recorded too. The file is made anew at every subscription, and closed when it ends or is disposed. A
    tape that can be written no further ends the turn; one that cannot take the turn's own failure is a note of it.
    Keys and tokens that an error quotes are replaced, but text, what tools were given and what they said is recorded
    as it is; of numbers that JSON does not have, ``null``.

    Args:
        source: a turn, or any observable of its events.
        path: the file; its directory must exist.
        scheduler: tells the time; the subscription's or the running event loop's by default.

    Raises:
        ConfigurationError: the file cannot be written, or is being recorded by another subscription (through the
            observer).
    """
    shown = os.fspath(path)
    recording = False

    def subscribe(observer: abc.ObserverBase[Any], scheduler_: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        nonlocal recording
        if recording:
            raise ConfigurationError(f"{shown} is being recorded by another subscription: give each a path of its own")
        now = clock_of(scheduler_for(scheduler, scheduler_))
        began = now()
        try:
            # a line is written as soon as it is whole
            file = Path(path).open("w", encoding="utf-8", buffering=1, newline="\n")  # noqa: SIM115
        except OSError as error:
            raise ConfigurationError(f"{shown} cannot be written: {error.strerror or error}") from error
        recording = True
        subscription = SingleAssignmentDisposable()
        ended = False

        def write(data: Mapping[str, Any], moment: float) -> None:
            line = {**data, "time": round(moment - began, 3)}
            if line.get("error") is not None:
                # an error may quote what the request had
                line["error"] = json.loads(without_credentials(_json(line["error"])))
            text = _json(line) + "\n"
            try:
                file.write(text)
            except UnicodeEncodeError:
                # half a character, which JSON can escape
                file.write(_json(line, ensure_ascii=True) + "\n")

        def close() -> None:
            nonlocal recording
            if not file.closed:
                try:
                    file.close()
                finally:
                    recording = False

        def release() -> None:
            # what was written is on the disk, and nobody is left to be told
            with contextlib.suppress(OSError):
                close()

        def unwritten(error: Exception) -> ConfigurationError:
            reason = error.strerror if isinstance(error, OSError) else None
            failure = ConfigurationError(f"{shown} cannot be written: {reason or error}")
            failure.__cause__ = error
            return failure

        def fail(error: Exception) -> None:
            nonlocal ended
            ended = True
            release()
            subscription.dispose()
            observer.on_error(unwritten(error))

        def on_next(event: TurnEvent) -> None:
            if ended:
                return
            try:
                write(event.to_dict(), now())
            except Exception as error:
                fail(error)
                return
            observer.on_next(event)

        def on_error(error: Exception) -> None:
            nonlocal ended
            if ended:
                return
            ended = True
            try:
                write({"type": "error", "error": _failure(error)}, now())
                close()
            except Exception as fault:
                release()
                error.add_note(unwritten(fault).message)
            observer.on_error(error)

        def on_completed() -> None:
            nonlocal ended
            if ended:
                return
            ended = True
            try:
                close()
            except Exception as error:
                fail(error)
                return
            observer.on_completed()

        try:
            write({"type": "tape", "version": VERSION}, began)
        except OSError as error:
            release()
            raise unwritten(error) from error
        try:
            subscription.disposable = source.subscribe(on_next, on_error, on_completed, scheduler=scheduler_)
        except BaseException:
            release()
            raise
        return CompositeDisposable(subscription, Disposable(release))

    return Observable(subscribe)


def replay_tape(
    path: str | os.PathLike[str], *, speed: float = 0.0, scheduler: abc.SchedulerBase | None = None
) -> Observable[TurnEvent]:
    """
    Play a tape: one event a line, as ``event.to_dict()`` writes it.

    .. marble::
        tape:  a 0.0, b 1.5, c 2.0
        [ replay_tape(speed 1) ]
        a--------------b----c|

    A line may have a ``time`` in seconds; the first time is the start. An event of a type that this version does not
    know comes as an `UnknownEvent`, but a field that is not of its type is refused. A recorded failure ends it with an
    error of the same kind. The file is read at the call, a last line that a crash cut off left out; every subscription
    plays it from the start. Disposing cancels the wait. A consumer that lags pauses the tape.

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
                    if isinstance(event, Exception):
                        observer.on_error(event)
                        return
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


def _events(path: str | os.PathLike[str]) -> list[tuple[float, TurnEvent | RxLoopError]]:
    """Every event, and the failure at the end, with the seconds that pass before it."""
    shown = os.fspath(path)
    events: list[tuple[float, TurnEvent | RxLoopError]] = []
    clock: float | None = None
    begun = False
    lines = read_text(path, "an event tape", cut=True).split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
        except ValueError:
            if number == len(lines) and begun:
                # a crash cut it off; a whole line has its end
                break
            raise ConfigurationError(f"{shown}, line {number}: it must be one JSON object, but is not JSON") from None
        except RecursionError:
            raise ConfigurationError(f"{shown}, line {number}: it is nested too deeply") from None
        if not isinstance(data, Mapping) or not isinstance(data.get("type"), str):
            raise ConfigurationError(f"{shown}, line {number}: it must be an event, an object with a type")
        begun = True
        if data["type"] == "tape":
            _check_version(data, f"{shown}, line {number}")
            clock = _moment(data, f"{shown}, line {number}")
            continue
        misfit = misfit_of(data)
        if misfit is not None:
            raise ConfigurationError(
                f"{shown}, line {number}: {misfit} of a {data['type']} must not be {data[misfit]!r:.100}"
            )
        moment = _moment(data, f"{shown}, line {number}")
        delay = 0.0
        if moment is not None:
            delay = max(0.0, moment - clock) if clock is not None else 0.0
            clock = moment
        if data["type"] == "error":
            events.append((delay, _failed(data)))
            break
        events.append((delay, event_from_dict(data)))
    return events


def timed_events(path: str | os.PathLike[str]) -> tuple[list[tuple[float, TurnEvent]], RxLoopError | None]:
    """
    The events of a tape, each with the seconds since its start, and the failure that it ends with.

    Raises:
        ConfigurationError: the file cannot be read, or a line is not an event.
    """
    timed: list[tuple[float, TurnEvent]] = []
    moment = 0.0
    for delay, event in _events(path):
        moment += delay
        if isinstance(event, RxLoopError):
            return timed, event
        timed.append((moment, event))
    return timed, None


def _check_version(data: Mapping[str, Any], where: str) -> None:
    version = data.get("version")
    if type(version) is not int or version != VERSION:
        raise ConfigurationError(f"{where}: the version of a tape must be {VERSION}, but is {version!r:.100}")


def _moment(data: Mapping[str, Any], where: str) -> float | None:
    moment = data.get("time")
    if moment is None:
        return None
    if isinstance(moment, bool) or not isinstance(moment, (int, float)) or not abs(moment) < _LATEST:
        raise ConfigurationError(f"{where}: time must be a number of seconds, but got {moment!r:.100}")
    return moment


def _json(value: Any, *, ensure_ascii: bool = False) -> str:
    """As JSON, whatever it has."""
    try:
        return _dumped(value, ensure_ascii)
    except (TypeError, ValueError):
        return _dumped(_representable(value), ensure_ascii)


def _dumped(value: Any, ensure_ascii: bool) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, separators=(",", ":"), default=str, allow_nan=False)


def _representable(value: Any) -> Any:
    """A value with ``None`` for numbers that JSON does not have, and text for other keys than JSON's."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {
            key if isinstance(key, (str, int)) or key is None else str(key): _representable(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_representable(item) for item in value]
    return value


def _failure(error: Exception) -> dict[str, Any]:
    if isinstance(error, RxLoopError):
        return error.to_dict()
    return {"kind": "error", "status": None, "message": describe(error), "retryable": False}


def _failed(data: Mapping[str, Any]) -> RxLoopError:
    error = data.get("error")
    return error_from_dict(error if isinstance(error, Mapping) else {})
