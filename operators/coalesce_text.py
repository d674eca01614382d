"""Fewer, larger pieces of text, for whoever repaints at a frame rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reactivex import Observable, abc
from reactivex.disposable import Disposable, SerialDisposable, SingleAssignmentDisposable

from rxloop.checks import positive_seconds
from rxloop.clock import after, scheduler_for
from rxloop.demand import current_demand
from rxloop.errors import ConfigurationError
from rxloop.merging import DeltaRun, is_delta

__all__ = ("coalesce_text",)


def coalesce_text(
    seconds: float, *, scheduler: abc.SchedulerBase | None = None
) -> Callable[[Observable[Any]], Observable[Any]]:
    """
    Let deltas through at most once every so many seconds, joined: text, reasoning, and the arguments of calls.

    .. marble::
        -a-b-c-----d-e-S--f-|
        [ coalesce_text(4) ]
        -a---bc----d-eS---f-|

    The first delta passes at once; those that follow within `seconds` are joined and come at the end of that time. Any
    other event, the end and an error let out what was held, and pass at once; a delta of another kind lets it out and
    is held in its place. Nothing is lost, and the order stays. ``S`` is such another event. While the consumer behind
    it lags, what is held grows by joining, and waits. State is per subscription; disposing disposes the source and the
    timer, and drops what is held.

    Args:
        seconds: the least time between two deltas; 0.016 repaints 60 times a second.
        scheduler: keeps the time; the subscription's or the running event loop's by default.

    Raises:
        ConfigurationError: `seconds` is not a number above 0.
    """
    positive_seconds("seconds", seconds)
    if seconds is None:
        raise ConfigurationError("seconds must be > 0 seconds, but got None")

    def operator(source: Observable[Any]) -> Observable[Any]:
        def subscribe(
            observer: abc.ObserverBase[Any], scheduler_: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            timers = scheduler_for(scheduler, scheduler_)
            timer = SerialDisposable()
            subscription = SingleAssignmentDisposable()
            demand = current_demand()
            forward = observer.on_next
            run = DeltaRun()
            quiet = True
            over = False

            def release() -> None:
                event = run.take()
                if event is not None:
                    forward(event)

            def open_window() -> None:
                nonlocal quiet
                quiet = False
                timer.disposable = after(timers, seconds, close_window)

            def close_window() -> None:
                nonlocal quiet
                if over:
                    return
                if not run:
                    quiet = True
                elif demand is not None and demand.closed:
                    demand.when_open(close_window)
                else:
                    open_window()
                    release()

            def on_next(event: Any) -> None:
                if run.add(event):
                    return
                release()
                if not is_delta(event):
                    forward(event)
                elif quiet:
                    open_window()
                    forward(event)
                else:
                    run.begin(event)

            def on_error(error: Exception) -> None:
                end()
                release()
                observer.on_error(error)

            def on_completed() -> None:
                end()
                release()
                observer.on_completed()

            def end() -> None:
                nonlocal over
                over = True
                timer.dispose()
                subscription.dispose()

            subscription.disposable = source.subscribe(on_next, on_error, on_completed, scheduler=scheduler_)
            return Disposable(end)

        return Observable(subscribe)

    return operator
