"""Retry a step, but only while the subscriber has seen nothing of its content."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reactivex import Observable, abc
from reactivex.disposable import Disposable, SerialDisposable

from rxloop.checks import whole
from rxloop.clock import scheduler_for
from rxloop.errors import ConfigurationError, RxLoopError
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
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
                raise ConfigurationError(f"{name} must be >= 0 seconds, but got {value!r}")

    def delay(self, error: Exception, attempt: int) -> float | None:
        """Seconds before the attempt that follows the failed number `attempt` (from 1); ``None`` to give up."""
        if attempt > self.retries or not isinstance(error, RxLoopError) or not error.retryable:
            return None
        if error.retry_after is not None:
            return error.retry_after if error.retry_after <= self.max_retry_after else None
        return self.jitter(min(self.first_delay * 2 ** min(attempt - 1, 64), self.max_delay))


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
            forward = observer.on_next

            def on_next(item: Any) -> None:
                nonlocal emitted
                if not emitted and is_content(item):
                    emitted = True
                forward(item)

            def on_error(error: Exception) -> None:
                nonlocal failures
                failures += 1
                delay = None if emitted else rules.delay(error, failures)
                if delay is None:
                    observer.on_error(error)
                    return
                assert isinstance(error, RxLoopError)  # noqa: S101
                timers = scheduler_for(scheduler, scheduler_)
                observer.on_next(RetryScheduled(step, failures, delay, error.to_dict()))
                if not disposed:
                    timer.disposable = timers.schedule_relative(delay, lambda *_: attempt())

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
