"""Runs of deltas made one, where whoever takes them has fallen behind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from rxloop.events import ReasoningDelta, TextDelta, ToolCallDelta

__all__ = ("merge_adjacent",)

T = TypeVar("T")

_DELTAS = frozenset((TextDelta, ReasoningDelta, ToolCallDelta))


def merge_adjacent(events: Iterable[tuple[int, T]]) -> list[tuple[int, T]]:
    """
    Make one event of each run of deltas that follow one another: what they say, joined, under the last one's number.

    The text of a step, its reasoning, and the arguments of a call merge, each with its own kind alone. Nothing else
    does, nothing is lost, and the order stays, so that a reader of the merged events knows what a reader of all knows.
    An event that has nothing to merge with is the same object as before.

    Args:
        events: numbers that grow, each with its event.

    Returns:
        a new list, in which no two neighbours could be merged.
    """
    merged: list[tuple[int, T]] = []
    head: Any = None
    pieces: list[str] = []
    for number, event in events:
        kind = type(event)
        if kind not in _DELTAS:
            _close(merged, head, pieces)
            head = None
            merged.append((number, event))
        elif head is not None and _continues(head, event):
            pieces.append(_said(event))
            merged[-1] = (number, head)
        else:
            _close(merged, head, pieces)
            head = event
            pieces.append(_said(event))
            merged.append((number, event))
    _close(merged, head, pieces)
    return merged


def _continues(head: Any, event: Any) -> bool:
    if type(head) is not type(event) or head.step != event.step:
        return False
    return type(head) is not ToolCallDelta or bool(head.call_id == event.call_id)


def _said(event: Any) -> str:
    said: str = event.arguments if type(event) is ToolCallDelta else event.text
    return said


def _close(merged: list[tuple[int, Any]], head: Any, pieces: list[str]) -> None:
    # joined once per run: adding piece by piece would copy what is there already
    if len(pieces) > 1:
        said = "".join(pieces)
        whole = (
            ToolCallDelta(head.step, head.call_id, said) if type(head) is ToolCallDelta else type(head)(head.step, said)
        )
        merged[-1] = (merged[-1][0], whole)
    pieces.clear()
