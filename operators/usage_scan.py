"""The running total of tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reactivex import Observable, abc

from rxloop.events import StepFinished, UsageUpdated
from rxloop.usage import Usage

__all__ = ("usage_scan",)


def usage_scan(seed: Usage | None = None) -> Callable[[Observable[Any]], Observable[Any]]:
    """
    Emit the turn's total after every `StepFinished`.

    .. marble::
        --a--F(3)------b--F(4)----|
        [ usage_scan() ]
        --a--F(3)U(3)--b--F(4)U(7)|

    Within a step the adapter has already let the last figure of a cumulative counter win; across steps figures
    add. The total is kept per subscription. Disposing disposes the source.

    Args:
        seed: tokens to start from; none by default.
    """

    def operator(source: Observable[Any]) -> Observable[Any]:
        def subscribe(
            observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            total = seed or Usage()
            forward = observer.on_next

            def on_next(item: Any) -> None:
                nonlocal total
                forward(item)
                if type(item) is StepFinished:
                    total = total + item.usage
                    forward(UsageUpdated(total))

            return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

        return Observable(subscribe)

    return operator
