"""Runs of deltas made one, where whoever takes them has fallen behind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, cast

from rxloop.events import ReasoningDelta, TextDelta, ToolCallDelta

__all__ = ("DeltaRun", "is_delta", "merge_adjacent")

K = TypeVar("K")
T = TypeVar("T")

_DELTAS = frozenset((TextDelta, ReasoningDelta, ToolCallDelta))


def is_delta(event: object) -> bool:
    """Whether it is a piece of text, of reasoning, or of a call's arguments."""
    return type(event) in _DELTAS


class DeltaRun:
    """Deltas that follow one another and say one thing in pieces: a step's text, its reasoning, a call's arguments."""

    __slots__ = ("_head", "_pieces")

    def __init__(self) -> None:
        self._head: Any = None
        self._pieces: list[str] = []

    def __bool__(self) -> bool:
        return self._head is not None

    def begin(self, event: Any) -> None:
        """Start with this delta; what there was must have been taken."""
        self._head = event
        self._pieces.append(event.arguments if type(event) is ToolCallDelta else event.text)

    def add(self, event: Any) -> bool:
        """Take an event in that continues the run, and tell whether it does."""
        head = self._head
        kind = type(event)
        if kind is not type(head) or kind not in _DELTAS or head.step != event.step:
            return False
        if kind is not ToolCallDelta:
            self._pieces.append(event.text)
        elif head.call_id == event.call_id:
            self._pieces.append(event.arguments)
        else:
            return False
        return True

    def take(self) -> Any:
        """The whole run as one delta, the only one itself, or ``None``; the run is empty afterwards."""
        head, pieces = self._head, self._pieces
        self._head = None
        if len(pieces) > 1:
            # joined once per run: adding piece by piece would copy what is there already
            said = "".join(pieces)
            if type(head) is ToolCallDelta:
                head = ToolCallDelta(head.step, head.call_id, said)
            else:
                head = type(head)(head.step, said)
        pieces.clear()
        return head


def merge_adjacent(events: Iterable[tuple[K, T]]) -> list[tuple[K, T]]:
    """
    Make one event of each run of deltas that follow one another: what they say, joined, under the last one's mark.

    The text of a step, its reasoning, and the arguments of a call merge, each with its own kind alone. Nothing else
    does, nothing is lost, and the order stays, so that a reader of the merged events knows what a reader of all knows.
    An event that has nothing to merge with is the same object as before.

    Args:
        events: each with its mark, such as its number.

    Returns:
        a new list, in which no two neighbours could be merged.
    """
    merged: list[tuple[K, T]] = []
    run = DeltaRun()
    last: K | None = None
    for mark, event in events:
        if not run.add(event):
            if run:
                merged.append((cast("K", last), run.take()))
            if type(event) in _DELTAS:
                run.begin(event)
            else:
                merged.append((mark, event))
        last = mark
    if run:
        merged.append((cast("K", last), run.take()))
    return merged
