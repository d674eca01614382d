"""Projection: the answer's text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reactivex import Observable, abc

from rxloop.events import TextDelta

__all__ = ("text",)


def text() -> Callable[[Observable[Any]], Observable[str]]:
    """
    Keep the text of the `TextDelta` events.

    .. marble::
        --0--t(He)--t(llo)--F--|
        [ text() ]
        -----He-----llo--------|

    No state; disposing disposes the source.
    """

    def operator(source: Observable[Any]) -> Observable[str]:
        def subscribe(
            observer: abc.ObserverBase[str], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            forward = observer.on_next

            def on_next(item: Any) -> None:
                if type(item) is TextDelta:
                    forward(item.text)

            return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

        return Observable(subscribe)

    return operator
