"""The clock of a provider's reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reactivex import Observable, abc

from rxloop.operators.deadline import deadline

__all__ = ("step_deadline",)


def step_deadline(
    seconds: float | None, *, scheduler: abc.SchedulerBase | None = None
) -> Callable[[Observable[Any]], Observable[Any]]:
    """
    Limit the provider's reply, all attempts and the delays between them included.

    .. marble::
        --a--b--c--d--|
        [ step_deadline(9) ]
        --a--b--c#

    Args:
        seconds: the limit from the subscription on; ``None`` for none.
        scheduler: the subscription's or the running event loop's by default.

    Raises:
        ConfigurationError: the limit is not above 0.
        TimedOutError: with clock "step", through the observer. Disposing cancels the timer and the source.
    """
    return deadline(seconds, clock="step", scheduler=scheduler)
