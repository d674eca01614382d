"""Projection: the calls that the model made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reactivex import Observable, abc

from rxloop.events import ToolCallReceived
from rxloop.steps import ToolCall

__all__ = ("tool_calls",)


def tool_calls() -> Callable[[Observable[Any]], Observable[ToolCall]]:
    """
    Keep the whole calls, as `ToolCall` values.

    .. marble::
        --s--d--d--c--F--|
        [ tool_calls() ]
        -----------C-----|

    No state; disposing disposes the source.
    """

    def operator(source: Observable[Any]) -> Observable[ToolCall]:
        def subscribe(
            observer: abc.ObserverBase[ToolCall], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            forward = observer.on_next

            def on_next(item: Any) -> None:
                if type(item) is ToolCallReceived:
                    forward(ToolCall(item.call_id, item.name, item.arguments))

            return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

        return Observable(subscribe)

    return operator
