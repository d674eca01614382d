"""Retry a step, but only while the subscriber has seen nothing of its content."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reactivex import Observable, abc
from reactivex.disposable import Disposable, SerialDisposable

from rxloop.checks import whole
from rxloop.clock import after, scheduler_for
from rxloop.demand import current_demand
from rxloop.errors import ConfigurationError, RxLoopError, describe
from rxloop.events import RetryScheduled

__all__ = ("RetryPolicy", "retry_before_first_emit")


def _half_to_full(delay: float) -> float:
    return delay * random.uniform(0.5, 1.0)  # noqa: S311


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """
    How often and how long to wait.

    Args:
        retries: further attempts after the first; 0 turns retries off.
        first_delay: seconds before the first retry, before jitter; every further one doubles.
        max_delay: seconds that a computed delay never exceeds.
        max_retry_after: seconds up to which a provider's own delay is obeyed; a longer one surfaces the error at once.
        jitter: spreads a computed delay; the default draws between half of it and all of it. A provider's own delay
            is never shortened.
    """

    retries: int = 2
    first_delay: float = 1.0
    max_delay: float = 30.0
    max_retry_after: float = 60.0
    jitter: Callable[[float], float] = _half_to_full

    def __post_init__(self) -> None:
        whole("retries", self.retries, minimum=0)
        for name in ("first_delay", "max_delay", "max_retry_after"):
            _delay(name, getattr(self, name), finite=name != "max_retry_after")
        if not callable(self.jitter):
            raise ConfigurationError(f"jitter must be a function, but got {self.jitter!r}")

    def delay(self, error: Exception, attempt: int) -> float | None:
        """Seconds before the attempt that follows the failed number `attempt` (from 1); ``None`` to give up."""
        if attempt > self.retries or not isinstance(error, RxLoopError) or not error.retryable:
            return None
        if error.retry_after is not None:
            return error.retry_after if error.retry_after <= self.max_retry_after else None
        computed = min(self.first_delay * 2 ** min(attempt - 1, 64), self.max_delay)
        return _delay("a jittered delay", self.jitter(computed))


def _delay(name: str, seconds: Any, *, finite: bool = True) -> float:
    number = not isinstance(seconds, bool) and isinstance(seconds, (int, float))
    if not number or not seconds >= 0 or (finite and seconds == float("inf")):
        raise ConfigurationError(f"{name} must be >= 0 seconds{' and finite' * finite}, but got {seconds!r}")
    return float(seconds)


def _any_item(item: Any) -> bool:
    return True


def retry_before_first_emit(
    policy: RetryPolicy | None = None,
    *,
    step: int = 0,
    is_content: Callable[[Any], bool] = _any_item,
    scheduler: abc.SchedulerBase | None = None,
) -> Callable[[Observable[Any]], Observable[Any]]:
    """
    Resubscribe after a retryable error, never after the first content.

    .. marble::
        --#      --#      --a-b-|
        [ retry_before_first_emit(delays 2, 4) ]
        --r--------r----------a-b-|

    ``r`` is a `RetryScheduled`. After content the original error surfaces as it is. The budget is counted per
    subscription; disposing cancels a delay or the attempt that runs.

    Args:
        policy: how often and how long to wait; twice, from 1 s, by default.
        step: the number that the `RetryScheduled` events carry.
        is_content: tells the items after which there is no way back; every item by default.
        scheduler: runs the delays; the subscription's or the running event loop's by default.

    Raises:
        The last attempt's own error, through the observer.
    """
    rules = policy or RetryPolicy()

    def operator(source: Observable[Any]) -> Observable[Any]:
        if rules.retries == 0:
            return source

        def subscribe(
            observer: abc.ObserverBase[Any], scheduler_: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            current, timer = SerialDisposable(), SerialDisposable()
            disposed = emitted = subscribing = again = False
            failures = 0
            demand = current_demand()
            forward = observer.on_next

            def on_next(item: Any) -> None:
                nonlocal emitted
                if not emitted and is_content(item):
                    emitted = True
                forward(item)

            def on_error(error: Exception) -> None:
                nonlocal failures
                failures += 1
                try:
                    delay = None if emitted else rules.delay(error, failures)
                except Exception as fault:
                    # a policy that fails must not keep the end from the observer
                    observer.on_error(fault)
                    return
                if delay is None:
                    observer.on_error(error)
                else:
                    again_after(delay, error)

            def again_after(delay: float, error: Exception) -> None:
                if disposed:
                    return
                if demand is not None and demand.closed:
                    demand.when_open(lambda: again_after(delay, error))
                    return
                reason = error.to_dict() if isinstance(error, RxLoopError) else {"message": describe(error)}
                try:
                    observer.on_next(RetryScheduled(step, failures, delay, reason))
                    if not disposed:
                        timer.disposable = after(scheduler_for(scheduler, scheduler_), delay, attempt)
                except Exception as fault:
                    observer.on_error(fault)

            def attempt() -> None:
                nonlocal subscribing, again
                again = True
                # a delay of zero on an immediate scheduler comes back here while still subscribing
                if subscribing:
                    return
                subscribing = True
                while again and not disposed:
                    again = False
                    current.disposable = source.subscribe(
                        on_next, on_error, observer.on_completed, scheduler=scheduler_
                    )
                subscribing = False

            def dispose() -> None:
                nonlocal disposed
                disposed = True
                timer.dispose()
                current.dispose()

            attempt()
            return Disposable(dispose)

        return Observable(subscribe)

    return operator
