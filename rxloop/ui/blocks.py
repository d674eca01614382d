"""What is open in a user interface while a turn runs."""

from __future__ import annotations

from typing import Any

from rxloop.events import ReasoningDelta, TextDelta

__all__ = ("Answer", "Block", "Call")


class Block:
    """A run of text, or of reasoning, that nothing else interrupts."""

    __slots__ = ("block_id", "kind", "length", "prefix", "signed", "step")

    def __init__(self, kind: type[TextDelta] | type[ReasoningDelta], step: int, block_id: str) -> None:
        self.length = 0
        """Its characters so far, as the events have them."""
        self.signed = False
        self.kind = kind
        self.step = step
        self.block_id = block_id
        self.prefix = ""
        """How the JSON of its deltas begins; whoever writes them puts it here."""


class Call:
    """A call that the model makes."""

    __slots__ = ("answered", "call_id", "name", "open", "parent_id", "pieces", "prefix", "step")

    def __init__(self, step: int, call_id: str, name: str, parent_id: str) -> None:
        self.step = step
        self.call_id = call_id
        self.name = name
        self.parent_id = parent_id
        self.pieces: list[str] = []
        self.open = True
        self.answered = False
        self.prefix = ""
        """How the JSON of its deltas begins; whoever writes them puts it here."""


class Answer:
    """What a call came to."""

    __slots__ = ("error", "output", "permanently_failed", "seconds")

    def __init__(self, output: Any, error: str | None, permanently_failed: bool = False, seconds: float = 0.0) -> None:
        self.output = output
        self.error = error
        self.permanently_failed = permanently_failed
        self.seconds = seconds
