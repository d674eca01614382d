"""End a turn that has spent its tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reactivex import Observable, abc
from reactivex.disposable import SingleAssignmentDisposable

from rxloop.checks import positive_whole
from rxloop.errors import UsageLimitError
from rxloop.events import StepStarted, UsageUpdated
from rxloop.usage import Usage

__all__ = ("usage_limit",)


def usage_limit(
    *, total_tokens: int | None = None, input_tokens: int | None = None, output_tokens: int | None = None
) -> Callable[[Observable[Any]], Observable[Any]]:
    """
    Fail before the next request once a total has reached its limit.

    .. marble::
        --0-a-U(90)--1-b-U(120)--2-c-|
        [ usage_limit(total_tokens=100) ]
        --0-a-U(90)--1-b-U(120)--#

    The reply that crosses the limit is still delivered and its tools still run, so that an answer that is already
    paid for is not lost: a turn that ends with it ends well. Reads the `UsageUpdated` of `usage_scan`. Disposing
    disposes the source.

    Args:
        total_tokens: limit on input and output together.
        input_tokens: limit on everything sent, cached tokens included.
        output_tokens: limit on everything produced.

    Raises:
        ConfigurationError: a limit is not a whole number >= 1.
        UsageLimitError: through the observer.
    """
    limits = {"total_tokens": total_tokens, "input_tokens": input_tokens, "output_tokens": output_tokens}
    for name, limit in limits.items():
        positive_whole(name, limit)
    given = [(name, limit) for name, limit in limits.items() if limit is not None]

    def operator(source: Observable[Any]) -> Observable[Any]:
        if not given:
            return source

        def subscribe(
            observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            subscription = SingleAssignmentDisposable()
            usage = Usage()
            forward = observer.on_next

            def on_next(item: Any) -> None:
                nonlocal usage
                if type(item) is UsageUpdated:
                    usage = item.usage
                elif type(item) is StepStarted:
                    for name, limit in given:
                        spent = getattr(usage, name)
                        if spent >= limit:
                            subscription.dispose()
                            observer.on_error(UsageLimitError(f"{name} must stay below {limit}, but {spent} are spent"))
                            return
                forward(item)

            subscription.disposable = source.subscribe(
                on_next, observer.on_error, observer.on_completed, scheduler=scheduler
            )
            return subscription

        return Observable(subscribe)

    return operator
