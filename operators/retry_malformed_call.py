"""Give a model that wrote a malformed call one more chance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from reactivex import Observable, abc

from rxloop.checks import whole
from rxloop.events import MalformedRetried
from rxloop.steps import StepResult

__all__ = ("MalformedBudget", "retry_malformed_call")


class MalformedBudget:
    """
    How many corrective retries a turn has left; shared by its steps.

    Args:
        retries: how many there are; 0 where the provider has no malformed calls or does not want them retried.
    """

    __slots__ = ("left",)

    def __init__(self, retries: int = 1) -> None:
        whole("retries", retries, minimum=0)
        self.left = retries

    def spend(self) -> bool:
        """Take one, if there is one."""
        if self.left == 0:
            return False
        self.left -= 1
        return True


def retry_malformed_call(budget: MalformedBudget, *, step: int = 0) -> Callable[[Observable[Any]], Observable[Any]]:
    """
    Mark a malformed reply to be resumed by a corrective step, while the turn's budget lasts.

    .. marble::
        --a--R(malformed)----------|
        [ retry_malformed_call(budget of 1) ]
        --a--R(malformed, resume)M-|

    ``R`` is the step's `StepResult`, ``M`` a `MalformedRetried`. Only a reply that the provider itself called
    malformed is retried: an empty reply is an answer. Without budget the reply passes as it is and ends the turn.
    The budget is the only state, and it is the turn's. Disposing disposes the source.

    Args:
        budget: the turn's corrective retries.
        step: the number that the event carries.
    """

    def operator(source: Observable[Any]) -> Observable[Any]:
        def subscribe(
            observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            forward = observer.on_next

            def on_next(item: Any) -> None:
                if type(item) is StepResult and item.malformed and budget.spend():
                    forward(replace(item, resume=True))
                    forward(MalformedRetried(step))
                else:
                    forward(item)

            return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

        if budget.left == 0:
            return source
        return Observable(subscribe)

    return operator
