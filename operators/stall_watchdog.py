"""Notice a step whose provider falls silent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reactivex import Observable, abc
from reactivex.disposable import Disposable, SerialDisposable, SingleAssignmentDisposable

from rxloop.checks import positive_seconds
from rxloop.clock import after, clock_of, scheduler_for
from rxloop.demand import current_demand
from rxloop.errors import Clock, TimedOutError

__all__ = ("stall_watchdog",)


def stall_watchdog(
    stall_timeout: float | None,
    *,
    first_event_timeout: float | None = None,
    scheduler: abc.SchedulerBase | None = None,
) -> Callable[[Observable[Any]], Observable[Any]]:
    """
    Fail when nothing arrives for too long.

    .. marble::
        --a--b--------
        [ stall_watchdog(5) ]
        --a--b----#

    The error is retryable, so that a silence before any content can be retried. Time during which a lagging
    consumer has paused the source does not count. There is one timer per silence, none per item: an item only
    notes the time. Disposing cancels the timer and the source.

    Args:
        stall_timeout: seconds between two items; ``None`` for no limit.
        first_event_timeout: seconds until the first item; `stall_timeout` by default.
        scheduler: the subscription's or the running event loop's by default.

    Raises:
        ConfigurationError: a limit is not above 0.
        TimedOutError: with clock "stall" or "first_event", through the observer.
    """
    positive_seconds("stall_timeout", stall_timeout)
    positive_seconds("first_event_timeout", first_event_timeout)
    first = stall_timeout if first_event_timeout is None else first_event_timeout

    def operator(source: Observable[Any]) -> Observable[Any]:
        if first is None and stall_timeout is None:
            return source

        def subscribe(
            observer: abc.ObserverBase[Any], scheduler_: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            timers = scheduler_for(scheduler, scheduler_)
            now = clock_of(timers)
            demand = current_demand()
            timer = SerialDisposable()
            subscription = SingleAssignmentDisposable()
            heard = now()
            started = ended = paused = False
            forward = observer.on_next

            def arm(seconds: float | None) -> None:
                if seconds is not None and not ended:
                    timer.disposable = after(timers, seconds, check)

            def check() -> None:
                nonlocal heard
                limit = stall_timeout if started else first
                if ended or limit is None:
                    return
                if demand is not None and demand.closed:
                    heard = now()
                    pause()
                left = heard + limit - now()
                # a scheduler may round a delay down
                if left > 1e-6:
                    arm(left)
                    return
                end()
                clock: Clock = "stall" if started else "first_event"
                observer.on_error(
                    TimedOutError(
                        f"the provider must send an event within {limit:g} s ({clock}_timeout), but was silent",
                        clock=clock,
                        seconds=limit,
                        retryable=True,
                    )
                )

            def on_next(item: Any) -> None:
                nonlocal heard, started
                if not started:
                    started = True
                    arm(stall_timeout)
                forward(item)
                # after the subscriber, so that its own slowness is no silence
                heard = now()
                if demand is not None and demand.closed:
                    pause()

            def pause() -> None:
                nonlocal paused
                if not paused and demand is not None:
                    paused = True
                    demand.when_open(resume)

            def resume() -> None:
                nonlocal heard, paused
                heard = now()
                paused = False

            def end() -> None:
                nonlocal ended
                ended = True
                timer.dispose()
                subscription.dispose()

            def on_error(error: Exception) -> None:
                end()
                observer.on_error(error)

            def on_completed() -> None:
                end()
                observer.on_completed()

            arm(first)
            subscription.disposable = source.subscribe(on_next, on_error, on_completed, scheduler=scheduler_)
            return Disposable(end)

        return Observable(subscribe)

    return operator
