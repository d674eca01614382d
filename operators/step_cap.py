"""End a turn at its number of steps, unless the cap is renewed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from reactivex import Observable, abc
from reactivex.disposable import SingleAssignmentDisposable

from rxloop.checks import whole
from rxloop.events import StepStarted

__all__ = ("CapReached", "Renew", "Renewal", "step_cap")


@dataclass(frozen=True, slots=True)
class CapReached:
    """What `renew` is asked about: ``max_steps`` steps are done and the model wants another."""

    max_steps: int


@dataclass(frozen=True, slots=True)
class Renewal:
    """A higher cap, and optionally a message to the model that goes out with the next request."""

    max_steps: int
    nudge: str | None = None


Renew: TypeAlias = Callable[[CapReached], Renewal | int | None]


def step_cap(
    max_steps: int, *, renew: Renew | None = None, nudge: Callable[[str], None] | None = None
) -> Callable[[Observable[Any]], Observable[Any]]:
    """
    Complete before the step that would exceed the cap.

    .. marble::
        --0-a-b--1-c-d--2-e-f--|
        [ step_cap(2) ]
        --0-a-b--1-c-d--|

    A digit is a `StepStarted`. The last step's tools still run, since they are part of it. The source is disposed
    before its next request goes out. Steps are counted per subscription.

    Args:
        max_steps: how many steps may start; a whole number >= 1.
        renew: asked at the boundary; a strictly larger whole number (or `Renewal`) raises the cap, ``None`` keeps it.
        nudge: receives a renewal's message before the next step is subscribed.

    Raises:
        ConfigurationError: `max_steps`, or the answer of `renew` (through the observer), breaks its rule.
    """
    whole("max_steps", max_steps, minimum=1)

    def operator(source: Observable[Any]) -> Observable[Any]:
        def subscribe(
            observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            subscription = SingleAssignmentDisposable()
            cap = max_steps
            started = 0
            forward = observer.on_next

            def renewed() -> bool:
                nonlocal cap
                answer = None if renew is None else renew(CapReached(cap))
                if answer is None:
                    return False
                renewal = answer if isinstance(answer, Renewal) else Renewal(answer)
                whole("a renewed max_steps", renewal.max_steps, minimum=cap + 1)
                cap = renewal.max_steps
                if renewal.nudge is not None and nudge is not None:
                    nudge(renewal.nudge)
                return True

            def on_next(item: Any) -> None:
                nonlocal started
                if type(item) is StepStarted:
                    if started >= cap:
                        try:
                            go_on = renewed()
                        except (Exception, asyncio.CancelledError) as error:
                            subscription.dispose()
                            observer.on_error(error)  # type: ignore[arg-type]
                            return
                        if not go_on:
                            subscription.dispose()
                            observer.on_completed()
                            return
                    started += 1
                forward(item)

            subscription.disposable = source.subscribe(
                on_next, observer.on_error, observer.on_completed, scheduler=scheduler
            )
            return subscription

        return Observable(subscribe)

    return operator
