"""What an event bus carries: a turn's events, each with its number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

from rxloop.errors import RxLoopError
from rxloop.events import TurnEvent, TurnFinished, event_from_dict
from rxloop.usage import Usage

__all__ = ("Entry", "StreamEvent", "TurnFailed", "TurnRequested", "is_end", "stream_event_from_dict")


@dataclass(frozen=True, slots=True)
class TurnFailed:
    """
    The last event of a turn that failed, where it travels as data: what is an error to a subscriber.

    Args:
        error: the error's JSON form.
        usage: what the turn had used by then.
        text: the answer's text by then.
    """

    type: ClassVar[Literal["error"]] = "error"
    error: dict[str, Any]
    usage: Usage = field(default_factory=Usage)
    text: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: ``type`` first, then every field."""
        return {"type": self.type, "error": self.error, "usage": self.usage.to_dict(), "text": self.text}

    @classmethod
    def of(cls, error: Exception) -> TurnFailed:
        """What a turn's error says. The text of an error that is not rxloop's own is nobody's to see."""
        if not isinstance(error, RxLoopError):
            hidden = {"kind": "internal", "status": None, "message": type(error).__name__, "retryable": False}
            return cls(hidden)
        partial = error.partial
        if partial is None:
            return cls(error.to_dict())
        return cls(error.to_dict(), partial.usage, partial.text)


@dataclass(frozen=True, slots=True)
class TurnRequested:
    """
    What a client asked for: the first entry of a turn that a server runs. It is for servers, and not shown to clients.

    Args:
        turn_id: the turn.
        thread_id: the client's name of the conversation.
        run_id: the client's name of the turn.
    """

    type: ClassVar[Literal["turn_requested"]] = "turn_requested"
    turn_id: str
    thread_id: str
    run_id: str

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: ``type`` first, then every field."""
        return {"type": self.type, "turn_id": self.turn_id, "thread_id": self.thread_id, "run_id": self.run_id}


StreamEvent: TypeAlias = "TurnEvent | TurnFailed | TurnRequested"
"""An event of a turn, how it failed, or what was asked for."""


class Entry(NamedTuple):
    """An event of a turn, its number (from 1, growing, not without gaps), and its seconds since the turn began."""

    id: int
    event: StreamEvent
    time: float = 0.0


def is_end(event: StreamEvent) -> bool:
    """Whether nothing follows it."""
    return isinstance(event, (TurnFinished, TurnFailed))


def stream_event_from_dict(data: Mapping[str, Any]) -> StreamEvent:
    """Read an event's JSON form."""
    if data.get("type") == TurnFailed.type:
        # whatever else a later version writes of it, it is the turn's end
        error, usage = data.get("error"), data.get("usage")
        known = dict(error) if isinstance(error, Mapping) else {"message": str(error or "the turn failed")}
        figures = (
            {name: figure for name, figure in usage.items() if type(figure) is int}
            if isinstance(usage, Mapping)
            else {}
        )
        return TurnFailed(known, Usage.from_dict(figures), str(data.get("text") or ""))
    if data.get("type") == TurnRequested.type:
        return TurnRequested(*(str(data.get(name) or "") for name in ("turn_id", "thread_id", "run_id")))
    return event_from_dict(data)
