"""What a test scripts a provider to do, whatever the provider, and what it records of a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rxloop.adapters.base import Adapter
from rxloop.events import TurnEvent, TurnFinished
from rxloop.steps import TurnResult
from rxloop.usage import Usage

__all__ = ("Call", "Recorder", "Reply", "ScriptedProvider")


@dataclass(frozen=True, slots=True)
class Call:
    """
    A call that the scripted model makes.

    Args:
        name: the tool.
        arguments: an object, or raw text that is sent as it is.
        call_id: unique within the turn.
    """

    name: str
    arguments: Mapping[str, Any] | str
    call_id: str


@dataclass(frozen=True, slots=True)
class Reply:
    """
    A reply that the scripted provider sends, in this order: reasoning, text, calls.

    Args:
        text: its pieces.
        reasoning: its pieces; a provider without reasoning may leave them out.
        calls: what the model calls.
        usage: what the reply counts, in rxloop's meaning.
        truncated: the token limit cut the reply off; raw arguments of the last call are sent as they are.
        chunk_size: cut the body into pieces of so many bytes.
        cut: end the body, without any transport error, after so many bytes.
    """

    text: Sequence[str] = ()
    reasoning: Sequence[str] = ()
    calls: Sequence[Call] = ()
    usage: Usage = field(default_factory=lambda: Usage(10, 5))
    truncated: bool = False
    chunk_size: int | None = None
    cut: int | None = None


class ScriptedProvider(Protocol):
    """
    A local server, scripted reply by reply.

    A provider whose replies go on after the answer is whole, with the usage for example, may have a method
    ``whole_length(reply)``: after how many bytes of the body the answer is whole.
    """

    has_tools: bool
    """Whether the provider can call tools; the tests that need them are skipped otherwise."""

    def adapter(self) -> Adapter:
        """A fresh adapter that talks to the server."""
        ...

    async def close(self, adapter: Adapter) -> None:
        """Close an adapter's client."""
        ...

    def reply(self, reply: Reply) -> None:
        """Script a reply."""
        ...

    def body_length(self, reply: Reply) -> int:
        """How many bytes the body of a reply has."""
        ...

    def fail(self, status: int, *, retry_after: float | None = None) -> None:
        """Script an error status, with the provider's own error body."""
        ...

    def fail_inside(self, text: Sequence[str]) -> None:
        """Script a retryable error inside a reply with status 200, after some text."""
        ...

    def drop(self, text: Sequence[str]) -> None:
        """Script a connection that breaks, after some text that reaches the client."""
        ...

    def stall(self, text: Sequence[str]) -> None:
        """Script a reply that falls silent after some text, until the client leaves."""
        ...

    def garbage(self, text: Sequence[str]) -> None:
        """Script something that is not the provider's format, after some text."""
        ...

    def unknown(self, reply: Reply) -> None:
        """Script a reply with events of unknown types between its own."""
        ...

    @property
    def requests(self) -> int:
        """How many requests came."""
        ...

    def history(self, request: int) -> tuple[list[str], list[tuple[str, bool]]]:
        """The ids of the calls in a request's history, and (id, is an error) of their results, in wire order."""
        ...

    async def settled(self) -> None:
        """Return when no reply is being sent any more; fail after a few seconds."""
        ...

    async def stalled(self) -> None:
        """Return when a scripted stall is reached and everything before it was sent."""
        ...


class Recorder:
    """Everything that a subscription tells, checked for what may come after its end."""

    def __init__(self) -> None:
        self.events: list[TurnEvent] = []
        self.error: Exception | None = None
        self.completed = False
        self.result: TurnResult | None = None
        self.ended = asyncio.Event()

    def on_next(self, event: TurnEvent) -> None:
        """An event."""
        assert not self.ended.is_set(), f"{event} after the end"
        self.events.append(event)

    def on_error(self, error: Exception) -> None:
        """The end by a failure."""
        assert not self.ended.is_set(), f"a second end: {error!r}"
        self.error = error
        self.ended.set()

    def on_completed(self) -> None:
        """The good end."""
        assert not self.ended.is_set(), "a second end"
        self.completed = True
        self.ended.set()

    def keep(self, result: TurnResult) -> None:
        """What ``on_end`` is told."""
        assert self.result is None, "on_end was told twice"
        self.result = result

    @property
    def types(self) -> list[str]:
        """The events' types, in order."""
        return [event.type for event in self.events]

    @property
    def text(self) -> str:
        """The text of all deltas."""
        return "".join(event.text for event in self.events if event.type == "text_delta")

    @property
    def finished(self) -> TurnFinished:
        """The last event, which must be `TurnFinished`."""
        last = self.events[-1]
        assert isinstance(last, TurnFinished), f"the last event is {last}"
        return last
