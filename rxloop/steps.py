"""Values that flow through the pipeline beside the public events: calls, replies, results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from rxloop.usage import Usage

if TYPE_CHECKING:
    from rxloop.tools import ToolDeclaration

__all__ = (
    "Conversation",
    "Draft",
    "FinishReason",
    "OutputRequest",
    "Partial",
    "Signature",
    "Step",
    "StepResult",
    "StepSettled",
    "ToolCall",
    "ToolResult",
    "TurnResult",
)

Conversation = Sequence[Mapping[str, Any]]
"""A provider's own messages, oldest first: JSON-able, can be saved, sent again and continued."""

FinishReason = Literal["stop", "length", "tool-calls", "content-filter", "error", "aborted", "other"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """
    One call that the caller's side must run.

    Args:
        call_id: the provider's identifier of the call.
        name: the tool's name as the caller declared it.
        arguments: the parsed object, or the raw text where it does not parse to one.
        truncated: the token limit cut the call off; it is never run.
    """

    call_id: str
    name: str
    arguments: dict[str, Any] | str
    truncated: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: call_id, name, arguments."""
        return {"call_id": self.call_id, "name": self.name, "arguments": self.arguments}


@dataclass(frozen=True, slots=True)
class ToolResult:
    """
    What one call came to.

    Args:
        call_id: the call that it answers.
        name: the tool's name.
        output: what the tool returned; ``None`` on an error.
        error: why there is no output; ``None`` on success.
        permanently_failed: the breaker answered, the tool did not run.
        seconds: how long the tool ran.
    """

    call_id: str
    name: str
    output: Any = None
    error: str | None = None
    permanently_failed: bool = False
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: one key per field."""
        return {
            "call_id": self.call_id,
            "name": self.name,
            "output": self.output,
            "error": self.error,
            "permanently_failed": self.permanently_failed,
            "seconds": self.seconds,
        }


@dataclass(frozen=True, slots=True)
class Signature:
    """
    A provider's seal on what the model thought: opaque, of use to the provider alone.

    Args:
        value: the signature; or the reasoning itself, encrypted.
        call_id: the call that it signs; ``None`` for the reply's reasoning.
        redacted: it stands for reasoning that nobody is shown.
        span: the characters of the reply's reasoning that it signs, from one up to another; an empty span is of
            reasoning that was not shown; ``None`` where it is not known.
    """

    value: str
    call_id: str | None = None
    redacted: bool = False
    span: tuple[int, int] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: one key per field, without ``span`` where there is none."""
        data: dict[str, Any] = {"value": self.value, "call_id": self.call_id, "redacted": self.redacted}
        if self.span is not None:
            data["span"] = list(self.span)
        return data


@dataclass(frozen=True, slots=True)
class StepResult:
    """
    A provider's whole reply to one request: the last item of a step's observable.

    Args:
        text: all visible text of the reply, in order.
        tool_calls: the calls that the caller's side must run, in wire order.
        usage: tokens of this step in rxloop's meaning.
        raw_usage: the provider's own figures.
        finish_reason: why the reply ended.
        raw_stop_reason: the provider's word for it.
        message: the reply in the provider's own format, to be resent as it is; ``None`` if it had no content.
        resume: the provider paused, or a correction is due: the turn goes on although there are no calls.
        malformed: the provider said that the model's call was malformed.
        carry: request fields that the provider wants back with the next request of the turn.
        answered: calls that are answered already and not the caller's to run, which ``tool_calls`` leaves out: each
            with its place among all calls of the reply.
        correction: what the model is told in the next request, where that is more than the results.
        final: the turn ends with this reply; calls in it are answered without running.
        failure: what the turn fails with if it ends with this reply.
        warnings: what the adapter wants the caller to know, such as figures that are estimates.
        signatures: those of the reply's reasoning and calls, in wire order.
    """

    text: str
    tool_calls: tuple[ToolCall, ...]
    usage: Usage
    finish_reason: FinishReason
    raw_stop_reason: str | None = None
    raw_usage: Mapping[str, Any] = field(default_factory=dict)
    message: Mapping[str, Any] | None = None
    resume: bool = False
    malformed: bool = False
    carry: Mapping[str, Any] = field(default_factory=dict)
    answered: tuple[tuple[int, ToolResult], ...] = ()
    correction: str | None = None
    final: bool = False
    failure: Exception | None = None
    warnings: tuple[str, ...] = ()
    signatures: tuple[Signature, ...] = ()

    def with_answered(self, results: Sequence[ToolResult]) -> list[ToolResult]:
        """The results of `tool_calls`, which are in order, and the answers given already: all in wire order."""
        merged = list(results)
        for place, answer in self.answered:
            merged.insert(place, answer)
        return merged


@dataclass(frozen=True, slots=True)
class StepSettled:
    """A reply whose calls are all answered: what `tool_dispatch` ends a step with and `loop_steps` feeds on."""

    result: StepResult
    tool_results: tuple[ToolResult, ...] = ()


class Draft(Protocol):
    """A reply in the making. Decoders are drafts."""

    def draft(self) -> StepResult:
        """What has arrived so far, fit to be resent: nothing half-finished in its message."""
        ...


@dataclass(frozen=True, slots=True)
class OutputRequest:
    """
    How a step asks for the turn's structured answer.

    Args:
        schema: JSON schema of an object.
        how: ``native`` is the provider's own way. Otherwise the tool ``final_result`` is among the step's tools:
            ``offered`` leaves the choice to the model, ``required`` makes it call some tool, ``forced`` that one.
    """

    schema: Mapping[str, Any]
    how: Literal["native", "offered", "required", "forced"]


@dataclass(slots=True)
class Step:
    """
    One request to a provider, and what is known of its reply.

    The adapter reads the upper fields, and keeps ``draft`` up to date; the engine writes down what comes of it before
    anybody is told, so that a stop or a failure loses nothing.

    Args:
        index: counts from 0 within the turn.
        conversation: what is sent.
        system: the system prompt.
        tools: the declarations to send.
        carry: request fields that the provider asked for in an earlier reply of the turn.
        output: the structured answer that is asked for.
        reclaimed: the estimated tokens of the prompt before and after old tool results gave way, where they did.
        begun: whether the request went out.
        draft: the reply in the making.
        result: the whole reply.
        tool_results: the results of its calls, in the order in which they came.
    """

    index: int
    conversation: Conversation
    system: Any = None
    tools: Sequence[ToolDeclaration | Mapping[str, Any]] = ()
    carry: Mapping[str, Any] = field(default_factory=dict)
    output: OutputRequest | None = None
    reclaimed: tuple[int, int] | None = None
    begun: bool = False
    draft: Draft | None = None
    result: StepResult | None = None
    tool_results: list[ToolResult] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Partial:
    """
    What a turn has at any moment.

    Args:
        text: the text of the step in flight, or else of the last step.
        tool_results: every tool result so far, oldest first.
        usage: tokens so far, those of an unfinished reply included where the provider told them.
        conversation: can be sent again: every tool call has exactly one result.
        steps: how many requests were begun.
        tool_calls: every call so far, in order.
        warnings: those of every reply so far.
    """

    text: str
    tool_results: tuple[ToolResult, ...]
    usage: Usage
    conversation: list[Mapping[str, Any]]
    steps: int
    tool_calls: tuple[ToolCall, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TurnResult:
    """
    What a turn came to, however it ended.

    Args:
        text: the answer: the text of the last reply; on a stop, the text so far.
        output: the structured output, where one was asked for; ``None`` where the turn ended without it, by a stop, a
            refusal, its cap.
        finish_reason: why it ended; "aborted" after a stop or a disposal, "error" after a failure.
        raw_stop_reason: the provider's word for it.
        usage: tokens of all steps.
        steps: how many requests were begun.
        tool_calls: every call of the turn, in order.
        tool_results: every tool result, in call order.
        conversation: the whole history, ready for the next turn.
        error: what the turn failed with.
        warnings: those of all steps, oldest first.
    """

    text: str
    output: Any
    finish_reason: FinishReason
    raw_stop_reason: str | None
    usage: Usage
    steps: int
    tool_calls: tuple[ToolCall, ...]
    tool_results: tuple[ToolResult, ...]
    conversation: list[Mapping[str, Any]]
    error: Exception | None = None
    warnings: tuple[str, ...] = ()
