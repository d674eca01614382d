"""A structured answer as it grows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from reactivex import Observable, abc

from rxloop.events import StepStarted, TextDelta, ToolCallDelta, ToolCallReceived, ToolCallStarted
from rxloop.output import FINAL_RESULT, partial_snapshot, validated_by

__all__ = ("partial_output",)

T = TypeVar("T")


def partial_output(model: type[T], *, native: bool | None = None) -> Callable[[Observable[Any]], Observable[T]]:
    """
    Emit validated snapshots of a turn's structured answer while it streams.

    .. marble::
        --d({"city": "Pa)--d(ris", "people": 2)--d(1})--|
        [ partial_output(City) ]
        --City("Pa")-------City("Paris", 2)------City("Paris", 21)--|

    ``d`` is a `ToolCallDelta` of ``final_result``. What does not validate yet makes no snapshot: give fields that come
    late a default, or use a TypedDict with ``total=False``. Equal snapshots come once; where they cannot be compared,
    those of equal JSON. A provider that does not stream arguments makes one snapshot, the whole answer. A step that
    follows begins anew. Each delta parses the answer so far again; all state is created per subscription.

    Args:
        model: what the turn was given as ``output``: any type that pydantic knows.
        native: whether the answer comes as text, which is the provider's own way without tools, or by ``final_result``.
            By default as it comes: text counts if it begins as an object does.

    Raises:
        ConfigurationError: there is no JSON schema of the type.
    """
    adapter, wrapped = validated_by(model)

    def operator(source: Observable[Any]) -> Observable[T]:
        def subscribe(observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
            call_id: str | None = None
            text = ""
            prose = False
            last: tuple[Any, Any] | None = None

            def look() -> None:
                nonlocal last
                try:
                    snapshot = partial_snapshot(adapter, text, wrapped=wrapped)
                except ValueError:
                    # not yet
                    return
                if last is None or not _is_same(snapshot, last):
                    last = snapshot
                    observer.on_next(snapshot[0])

            def on_next(event: Any) -> None:
                nonlocal call_id, text, prose, last
                kind = type(event)
                if kind is StepStarted:
                    call_id, text, prose, last = None, "", False, None
                elif kind is ToolCallStarted:
                    if event.name == FINAL_RESULT and not native and call_id is None:
                        call_id, text, last = event.call_id, "", None
                elif kind is ToolCallDelta:
                    if event.call_id == call_id:
                        text += event.arguments
                        look()
                elif kind is ToolCallReceived:
                    if event.call_id == call_id and not text:
                        from pydantic_core import to_json

                        text = to_json(event.arguments).decode()
                        look()
                elif kind is TextDelta and native is not False and call_id is None and not prose:
                    text += event.text
                    if native or text.lstrip().startswith("{"):
                        look()
                    else:
                        prose = bool(text.strip())

            return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

        return Observable(subscribe)

    return operator


def _is_same(snapshot: tuple[Any, Any], last: tuple[Any, Any]) -> bool:
    """Whether two values are equal; what they were made of tells it where they cannot be compared."""
    try:
        return bool(snapshot[0] == last[0])
    except Exception:
        return bool(snapshot[1] == last[1])
