"""A turn's events as what a user interface shows: blocks of text and reasoning, calls and their answers, steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any, Generic, TypeVar

from reactivex import Observable, abc

from rxloop.checks import instance
from rxloop.errors import InvalidOutputError
from rxloop.events import (
    ContextReclaimed,
    MalformedRetried,
    ReasoningDelta,
    RetryScheduled,
    StepFinished,
    StepStarted,
    TextDelta,
    ToolCallDelta,
    ToolCallReceived,
    ToolCallStarted,
    ToolFinished,
    ToolProgress,
    ToolStarted,
    TurnFinished,
    TurnStarted,
    UnknownEvent,
    UsageUpdated,
)
from rxloop.steps import Signature
from rxloop.ui.blocks import Answer, Block, Call
from rxloop.ui.entry import StreamEvent, TurnFailed
from rxloop.ui.frames import json_text, quoted, whole
from rxloop.usage import Usage

__all__ = ("Translation", "camel_case_usage", "translated")

T = TypeVar("T")

_ACCEPTED = "accepted"
_NOT_ACCEPTED = "not accepted: the answer does not fit what was asked for"
_NOT_USED = "not used: another answer came before in the same reply"
_CANCELLED = "cancelled: the turn ended before the tool did"
_LARGEST = 2**53 - 1
"""The largest whole number that JavaScript tells from its neighbours."""

_NOTES = (RetryScheduled, ContextReclaimed, MalformedRetried, ToolStarted, ToolProgress)


class Translation(ABC, Generic[T]):
    """
    The state of one run, and what is to be said of it, whatever the protocol.

    It keeps what every protocol asks for: whatever was opened is closed before the run ends, every call has one answer,
    and nothing follows the end. It may begin in the middle of a turn. A subclass says what is said.

    Args:
        turn_id: what identifiers begin with; the turn's own, or `fallback_id` where it is not known, if not given.
        fallback_id: see there.
        running_usage: whether the total is told after every step, and not at the end alone.
    """

    def __init__(self, *, turn_id: str | None, fallback_id: str, running_usage: bool) -> None:
        instance("turn_id", turn_id, str, NoneType)
        self._turn_id = whole(turn_id) if turn_id else None
        self._fallback_id = whole(fallback_id)
        self._running_usage = running_usage
        self._out: list[T] = []
        self._begun = self._ended = False
        self._step: int | None = None
        self._from_start = self._said = False
        self._blocks = 0
        self._thoughts: list[Block] = []
        self._parent_id: str | None = None
        self._foreign: list[Call] = []
        self.provider = self.model = ""
        self.block: Block | None = None
        """The block that is open."""
        self.calls: dict[str, Call] = {}
        """The calls of the step, by the provider's identifier."""

    @property
    def turn_id(self) -> str:
        """What identifiers begin with."""
        return self._turn_id or self._fallback_id

    def feed(self, event: StreamEvent) -> list[T]:
        """What an event says; nothing after the end of the turn."""
        if self._ended:
            return []
        if not self._begun:
            self._begin(event)
        match event:
            case TextDelta() | ReasoningDelta():
                if self._enter(event.step):
                    block = self._opened(type(event), event.step)
                    block.length += len(event.text)
                    self.block_grew(block, whole(event.text))
            case ToolCallDelta():
                if self._enter(event.step):
                    self._call_delta(event)
            case ToolCallStarted():
                if self._enter(event.step):
                    self._known(event.step, event.call_id, event.name)
            case ToolCallReceived():
                if self._enter(event.step):
                    self._close_call(self._known(event.step, event.call_id, event.name), event.arguments)
            case StepStarted():
                if self._enter(event.step):
                    self._from_start = True
            case StepFinished():
                if self._enter(event.step):
                    self._step_finished(event)
            case ToolFinished():
                if self._enter(event.step):
                    answer = Answer(event.output, event.error, event.permanently_failed, event.seconds)
                    self._answer(self._known(event.step, event.call_id, event.name), answer)
            case UsageUpdated():
                if self._running_usage:
                    self.usage_updated(event.usage)
            case TurnFinished():
                self._turn_finished(event)
            case TurnFailed():
                self._end(rejected=event.error.get("kind") == InvalidOutputError.kind)
                self.failed(event)
            case UnknownEvent():
                self.noted(whole(str(event.data.get("type") or event.type)), event.data)
            case _ if isinstance(event, _NOTES):
                self._note(event)
        return self._taken()

    def piece(self, event: StreamEvent) -> str | None:
        """The JSON of a delta that goes on with what is open, in one piece; ``None`` for any other event."""
        block = self.block
        if block is not None and type(event) is block.kind and event.step == block.step:
            block.length += len(event.text)
            return f"{block.prefix}{quoted(event.text)}}}"
        if type(event) is ToolCallDelta:
            call = self.calls.get(event.call_id)
            if call is not None and call.open and call.step == event.step:
                call.pieces.append(event.arguments)
                return f"{call.prefix}{quoted(event.arguments)}}}"
        return None

    def close(self) -> list[T]:
        """What ends a run whose events ended without an end of the turn; nothing if it has ended."""
        if self._ended:
            return []
        if not self._begun:
            self._begin(None)
        self._end()
        self.broken_off()
        return self._taken()

    def _taken(self) -> list[T]:
        out, self._out = self._out, []
        return out

    def _begin(self, event: StreamEvent | None) -> None:
        self._begun = True
        if isinstance(event, TurnStarted):
            self._turn_id = self._turn_id or whole(event.turn_id)
            self.provider, self.model = whole(event.provider), whole(event.model)
            self._said = True
        self.opened()

    def _enter(self, step: int) -> bool:
        """Be in a step; events of an earlier one are late and say nothing."""
        if self._step == step:
            return True
        if self._step is not None and step < self._step:
            return False
        self._leave(rejected=True)
        self._step = step
        self._blocks = 0
        self._from_start = False
        self._thoughts, self._parent_id = [], None
        self.step_opened(step)
        return True

    def _leave(self, *, rejected: bool) -> None:
        """Close the step, and whatever is open in it."""
        if self._step is None:
            return
        self._close_block()
        for call in self.calls.values():
            if call.open:
                self._close_call(call, None)
            if not call.answered:
                fault = _CANCELLED
                if rejected and call in self._foreign:
                    # of several answers in a reply the first is the one that was read
                    fault = _NOT_ACCEPTED if call is self._foreign[0] else _NOT_USED
                self._answer(call, Answer(None, fault))
        self.calls.clear()
        self._foreign.clear()
        self.step_closed(self._step)
        self._step = None

    def _end(self, *, rejected: bool = False) -> None:
        self._leave(rejected=rejected)
        self._ended = True

    def _opened(self, kind: type[TextDelta] | type[ReasoningDelta], step: int) -> Block:
        block = self.block
        if block is not None and block.kind is kind:
            return block
        self._close_block()
        return self._open_block(kind, step)

    def _open_block(self, kind: type[TextDelta] | type[ReasoningDelta], step: int) -> Block:
        name = "text" if kind is TextDelta else "reasoning"
        block = self.block = Block(kind, step, f"{self.turn_id}-{step}-{name}-{self._blocks}")
        self._blocks += 1
        if kind is TextDelta:
            self._said = True
            # the calls that follow belong to the message that they follow
            self._parent_id = block.block_id
        else:
            self._thoughts.append(block)
        self.block_opened(block)
        return block

    def _close_block(self) -> None:
        block, self.block = self.block, None
        if block is not None:
            self.block_closed(block)

    def _known(self, step: int, call_id: str, name: str) -> Call:
        """The call, opened if it was not seen to begin."""
        call = self.calls.get(call_id)
        if call is None:
            self._close_block()
            if self._parent_id is None:
                self._parent_id = f"{self.turn_id}-{step}-calls"
            call = self.calls[call_id] = Call(step, self._shown(step, call_id), whole(name), self._parent_id)
            self.call_opened(call)
        return call

    def _shown(self, step: int, call_id: str) -> str:
        """The client's identifier of a call."""
        return f"{self.turn_id}-{step}-{whole(call_id)}"

    def _call_delta(self, event: ToolCallDelta) -> None:
        call = self.calls.get(event.call_id)
        # of a call that was not seen to begin the pieces are no whole: it comes at its end
        if call is not None and call.open:
            call.pieces.append(event.arguments)
            self.call_grew(call, whole(event.arguments))

    def _close_call(self, call: Call, arguments: Any) -> None:
        """Close a call; without its arguments it is one that was broken off."""
        if not call.open:
            return
        call.open = False
        if not "".join(call.pieces).strip():
            # whoever reads the call again wants JSON, even of one that was broken off
            text = whole(arguments) if isinstance(arguments, str) else json_text(arguments or {})
            if text:
                call.pieces.append(text)
                self.call_grew(call, text)
        self.call_closed(call, arguments)

    def _answer(self, call: Call, answer: Answer) -> None:
        if call.answered:
            return
        self._close_call(call, {})
        call.answered = True
        self.call_answered(call, answer)

    def _step_finished(self, event: StepFinished) -> None:
        if not self._from_start and not self._said and event.text:
            # the deltas were before the beginning of what is read
            self.block_grew(self._opened(TextDelta, event.step), whole(event.text))
        self._close_block()
        for made in event.tool_calls:
            self._close_call(self._known(event.step, made.call_id, made.name), made.arguments)
        run_here = {made.call_id for made in event.tool_calls}
        for call_id, call in self.calls.items():
            self._close_call(call, None)
            if call_id not in run_here:
                # the engine's own: the model's structured answer
                self._foreign.append(call)
        self._seal(event.signatures, event.step)

    def _seal(self, signatures: Sequence[Signature], step: int) -> None:
        thoughts = self._thoughts[:]
        for signature in signatures:
            if signature.call_id is not None:
                call = self.calls.get(signature.call_id)
                if call is not None:
                    self.call_signed(call, signature)
                continue
            block = self._signed_by(signature, thoughts)
            if block is None:
                block = self._open_block(ReasoningDelta, step)
                self._close_block()
            block.signed = True
            self.block_signed(block, signature)

    def _signed_by(self, signature: Signature, thoughts: Sequence[Block]) -> Block | None:
        """Which of what was shown a signature signs, if there is one that has none yet."""
        if signature.redacted:
            return None
        if signature.span is None:
            return next((block for block in thoughts if not block.signed), None)
        first, end = signature.span
        before = 0
        for block in thoughts:
            # of what began before anything was seen it is not known where it is
            if self._from_start and before <= first < min(end, before + block.length):
                return None if block.signed else block
            before += block.length
        return None

    def _turn_finished(self, event: TurnFinished) -> None:
        aborted = event.finish_reason == "aborted"
        # a reply that was refused or faulty ends the turn too, and its answer was not taken
        if event.finish_reason == "stop":
            for call in self._foreign[:1]:
                self._answer(call, Answer(_ACCEPTED, None))
        if not self._said and self._step is None and event.text and event.output is None:
            # nothing but the end is left of the turn
            self.step_opened(step := max(event.steps - 1, 0))
            self._step = step
            self.block_grew(self._opened(TextDelta, step), whole(event.text))
        self._end(rejected=not aborted)
        self.finished(event)

    def _note(self, event: Any) -> None:
        data = event.to_dict()
        del data["type"]
        if "call_id" in data:
            data["call_id"] = self._shown(event.step, event.call_id)
        self.noted(event.type, data)

    @abstractmethod
    def opened(self) -> None:
        """The run begins."""

    @abstractmethod
    def step_opened(self, step: int) -> None:
        """A step begins."""

    @abstractmethod
    def step_closed(self, step: int) -> None:
        """A step is over, its calls answered."""

    @abstractmethod
    def block_opened(self, block: Block) -> None:
        """Text or reasoning begins."""

    @abstractmethod
    def block_grew(self, block: Block, text: str) -> None:
        """A piece of it."""

    @abstractmethod
    def block_closed(self, block: Block) -> None:
        """It is over."""

    @abstractmethod
    def block_signed(self, block: Block, signature: Signature) -> None:
        """Reasoning has a signature; the block is closed."""

    @abstractmethod
    def call_opened(self, call: Call) -> None:
        """A call begins."""

    @abstractmethod
    def call_grew(self, call: Call, fragment: str) -> None:
        """A piece of its arguments."""

    @abstractmethod
    def call_closed(self, call: Call, arguments: dict[str, Any] | str | None) -> None:
        """It is whole; or, without arguments, broken off."""

    @abstractmethod
    def call_signed(self, call: Call, signature: Signature) -> None:
        """A call has a signature; it is closed."""

    @abstractmethod
    def call_answered(self, call: Call, answer: Answer) -> None:
        """A call has its result, or why there is none."""

    @abstractmethod
    def usage_updated(self, usage: Usage) -> None:
        """The total so far."""

    @abstractmethod
    def noted(self, name: str, data: dict[str, Any]) -> None:
        """Something that the protocol has no word for."""

    @abstractmethod
    def finished(self, event: TurnFinished) -> None:
        """The run is over."""

    @abstractmethod
    def failed(self, event: TurnFailed) -> None:
        """The run failed."""

    @abstractmethod
    def broken_off(self) -> None:
        """The events ended without an end of the turn."""


def translated(source: Observable[Any], begin: Callable[[], Translation[T]]) -> Observable[T]:
    """The source's events through a translation of its own for every subscription; an error is its last word."""

    def subscribe(observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        translation = begin()

        def tell(items: list[T]) -> None:
            for item in items:
                observer.on_next(item)

        def on_error(error: Exception) -> None:
            tell(translation.feed(TurnFailed.of(error)))
            observer.on_completed()

        def on_completed() -> None:
            tell(translation.close())
            observer.on_completed()

        return source.subscribe(
            lambda event: tell(translation.feed(event)), on_error, on_completed, scheduler=scheduler
        )

    return Observable(subscribe)


def camel_case_usage(usage: Usage) -> dict[str, int]:
    """Tokens under the names that clients in JavaScript know."""
    figures = {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "totalTokens": usage.total_tokens,
        "reasoningTokens": usage.reasoning_tokens,
        "cachedInputTokens": usage.cache_read_tokens,
        "cacheWriteInputTokens": usage.cache_write_tokens,
    }
    return {name: min(max(figure, 0), _LARGEST) for name, figure in figures.items()}
