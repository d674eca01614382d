"""A limit on how long a whole observable may take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SingleAssignmentDisposable

from rxloop.checks import positive_seconds
from rxloop.clock import after, scheduler_for
from rxloop.errors import Clock, TimedOutError

__all__ = ("deadline",)


def deadline(
    seconds: float | None, *, clock: Clock, scheduler: abc.SchedulerBase | None = None
) -> Callable[[Observable[Any]], Observable[Any]]:
    """
    Fail if the source has not ended in time, counted from the subscription.

    .. marble::
        --a--b--c--d--|
        [ deadline(9) ]
        --a--b--c#

    One timer per subscription. Disposing cancels it and the source.

    Args:
        seconds: the limit; ``None`` for none.
        clock: the name that the error carries.
        scheduler: the subscription's or the running event loop's by default.

    Raises:
        ConfigurationError: the limit is not above 0.
        TimedOutError: through the observer.
    """
    positive_seconds(f"{clock}_timeout", seconds)

    def operator(source: Observable[Any]) -> Observable[Any]:
        if seconds is None:
            return source

        def subscribe(
            observer: abc.ObserverBase[Any], scheduler_: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            timer, subscription = SingleAssignmentDisposable(), SingleAssignmentDisposable()
            both = CompositeDisposable(timer, subscription)

            def expire() -> None:
                both.dispose()
                observer.on_error(
                    TimedOutError(
                        f"the {clock} must end within {seconds:g} s ({clock}_timeout), but did not",
                        clock=clock,
                        seconds=seconds,
                    )
                )

            timer.disposable = after(scheduler_for(scheduler, scheduler_), seconds, expire)

            def on_error(error: Exception) -> None:
                timer.dispose()
                observer.on_error(error)

            def on_completed() -> None:
                timer.dispose()
                observer.on_completed()

            subscription.disposable = source.subscribe(observer.on_next, on_error, on_completed, scheduler=scheduler_)
            return both

        return Observable(subscribe)

    return operator
