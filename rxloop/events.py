"""The events of a turn.

Every event is a frozen, slotted value with a ``type``; ``to_dict()`` gives the JSON form that event tapes hold
and ``rxloop replay --json`` prints, and `event_from_dict` reads it back. A ``step`` counts from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeAlias, TypeGuard, get_args

from rxloop.errors import describe
from rxloop.steps import FinishReason, Signature, ToolCall
from rxloop.usage import Usage

__all__ = (
    "ContextReclaimed",
    "MalformedRetried",
    "ReasoningDelta",
    "RetryScheduled",
    "StepFinished",
    "StepStarted",
    "TextDelta",
    "ToolCallDelta",
    "ToolCallReceived",
    "ToolCallStarted",
    "ToolFinished",
    "ToolProgress",
    "ToolStarted",
    "TurnEvent",
    "TurnFinished",
    "TurnStarted",
    "UnknownEvent",
    "UsageUpdated",
    "event_from_dict",
    "is_event",
)


class _Event:
    __slots__: tuple[str, ...] = ()

    type: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: ``type`` first, then every field."""
        data: dict[str, Any] = {"type": self.type}
        for name in self.__slots__:
            data[name] = _plain(getattr(self, name))
        return data


def _plain(value: Any) -> Any:
    if isinstance(value, (str, int, float, bool, dict)) or value is None:
        return value
    if isinstance(value, (Usage, ToolCall, Signature)):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _json_form(value: Any) -> Any:
    if value is None or type(value) in (bool, int, str):
        return value
    # it waits for whoever needs it: the import is not for free
    from pydantic_core import from_json, to_json

    # nothing that a caller's type may hold is a reason to lose the event
    try:
        return from_json(to_json(value, bytes_mode="base64", inf_nan_mode="strings", fallback=str))
    except Exception as fault:
        # nor that its own code fails, or that it is too deep
        return f"{type(value).__name__} has no JSON form: {describe(fault)}"


@dataclass(frozen=True, slots=True)
class TurnStarted(_Event):
    """First event of every turn."""

    type: ClassVar[Literal["turn_started"]] = "turn_started"
    turn_id: str
    provider: str
    model: str


@dataclass(frozen=True, slots=True)
class StepStarted(_Event):
    """A request is about to go out: once per step, not per attempt."""

    type: ClassVar[Literal["step_started"]] = "step_started"
    step: int


@dataclass(frozen=True, slots=True)
class RetryScheduled(_Event):
    """
    An attempt failed before any content; the next follows after ``delay`` seconds.

    ``attempt`` counts the failed attempts of the step from 1; ``error`` is the error's JSON form.
    """

    type: ClassVar[Literal["retry_scheduled"]] = "retry_scheduled"
    step: int
    attempt: int
    delay: float
    error: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TextDelta(_Event):
    """Answer text as it arrives."""

    type: ClassVar[Literal["text_delta"]] = "text_delta"
    step: int
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta(_Event):
    """Thinking text as it arrives."""

    type: ClassVar[Literal["reasoning_delta"]] = "reasoning_delta"
    step: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStarted(_Event):
    """The model began a call."""

    type: ClassVar[Literal["tool_call_started"]] = "tool_call_started"
    step: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta(_Event):
    """A raw JSON fragment of a call's arguments."""

    type: ClassVar[Literal["tool_call_delta"]] = "tool_call_delta"
    step: int
    call_id: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallReceived(_Event):
    """The whole call: its arguments as an object, or as the raw text where they do not parse to one."""

    type: ClassVar[Literal["tool_call"]] = "tool_call"
    step: int
    call_id: str
    name: str
    arguments: dict[str, Any] | str


@dataclass(frozen=True, slots=True)
class StepFinished(_Event):
    """The provider's reply is complete; ``signatures`` are those of its reasoning and of its calls."""

    type: ClassVar[Literal["step_finished"]] = "step_finished"
    step: int
    text: str
    tool_calls: tuple[ToolCall, ...]
    usage: Usage
    raw_stop_reason: str | None
    finish_reason: FinishReason
    signatures: tuple[Signature, ...] = field(default=(), repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, without ``signatures`` where there are none."""
        data = _Event.to_dict(self)
        if not self.signatures:
            del data["signatures"]
        return data


@dataclass(frozen=True, slots=True)
class UsageUpdated(_Event):
    """The running total of the turn."""

    type: ClassVar[Literal["usage_updated"]] = "usage_updated"
    usage: Usage


@dataclass(frozen=True, slots=True)
class ToolStarted(_Event):
    """A tool began to run."""

    type: ClassVar[Literal["tool_started"]] = "tool_started"
    step: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolProgress(_Event):
    """What a tool chose to report while it runs."""

    type: ClassVar[Literal["tool_progress"]] = "tool_progress"
    step: int
    call_id: str
    name: str
    data: Any


@dataclass(frozen=True, slots=True)
class ToolFinished(_Event):
    """A call is answered; ``error`` is ``None`` on success."""

    type: ClassVar[Literal["tool_finished"]] = "tool_finished"
    step: int
    call_id: str
    name: str
    output: Any
    error: str | None
    permanently_failed: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class MalformedRetried(_Event):
    """The one corrective retry of a turn was spent."""

    type: ClassVar[Literal["malformed_retried"]] = "malformed_retried"
    step: int


@dataclass(frozen=True, slots=True)
class ContextReclaimed(_Event):
    """History was shortened before this step."""

    type: ClassVar[Literal["context_reclaimed"]] = "context_reclaimed"
    step: int
    before_tokens: int
    after_tokens: int


@dataclass(frozen=True, slots=True)
class TurnFinished(_Event):
    """Last event of a turn that ended without an error; ``tool_calls`` are those of all steps."""

    type: ClassVar[Literal["turn_finished"]] = "turn_finished"
    text: str
    output: Any
    finish_reason: FinishReason
    raw_stop_reason: str | None
    usage: Usage
    steps: int
    tool_calls: tuple[ToolCall, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; a structured output in it becomes what JSON makes of it."""
        return {**_Event.to_dict(self), "output": _json_form(self.output)}


@dataclass(frozen=True, slots=True)
class UnknownEvent(_Event):
    """An event of a later version, kept as it was read."""

    type: ClassVar[Literal["unknown"]] = "unknown"
    data: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form that it was read from."""
        return dict(self.data)


TurnEvent: TypeAlias = (
    TurnStarted
    | StepStarted
    | RetryScheduled
    | TextDelta
    | ReasoningDelta
    | ToolCallStarted
    | ToolCallDelta
    | ToolCallReceived
    | StepFinished
    | UsageUpdated
    | ToolStarted
    | ToolProgress
    | ToolFinished
    | MalformedRetried
    | ContextReclaimed
    | TurnFinished
    | UnknownEvent
)

_CLASSES: dict[str, type[TurnEvent]] = {cls.type: cls for cls in get_args(TurnEvent) if cls is not UnknownEvent}


def is_event(value: object) -> TypeGuard[TurnEvent]:
    """Whether a value that flows through the pipeline is a public event."""
    return isinstance(value, _Event)


def event_from_dict(data: Mapping[str, Any]) -> TurnEvent:
    """
    Read an event's JSON form.

    A type or a shape that this version does not know, or a field of another type, becomes an `UnknownEvent`; an
    unknown key is ignored.
    """
    cls = _CLASSES.get(str(data.get("type")))
    if cls is None:
        return UnknownEvent(dict(data))
    values: dict[str, Any] = {}
    for name, fits in _SHAPES[cls]:
        if name not in data and name in _OPTIONAL:
            continue
        if name not in data or not fits(value := data[name]):
            return UnknownEvent(dict(data))
        values[name] = value
    if "usage" in values:
        values["usage"] = Usage.from_dict(values["usage"])
    if "tool_calls" in values:
        values["tool_calls"] = tuple(
            ToolCall(call["call_id"], call["name"], call["arguments"]) for call in values["tool_calls"]
        )
    if "signatures" in values:
        values["signatures"] = tuple(
            Signature(item["value"], item.get("call_id"), item.get("redacted") is True, _span_of(item))
            for item in values["signatures"]
        )
    return cls(**values)


def misfit_of(data: Mapping[str, Any]) -> str | None:
    """The field of a known event's JSON form that is not of its type, if there is one; a missing field is none."""
    cls = _CLASSES.get(str(data.get("type")))
    for name, fits in _SHAPES[cls] if cls is not None else ():
        # a later version may know more reasons
        later = name == "finish_reason" and isinstance(data.get(name), str)
        if name in data and not later and not fits(data[name]):
            return name
    return None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_usage(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        value.get(field.name) is None or _is_count(value[field.name]) for field in fields(Usage)
    )


def _is_calls(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(
        isinstance(call, Mapping)
        and isinstance(call.get("call_id"), str)
        and isinstance(call.get("name"), str)
        and isinstance(call.get("arguments"), (dict, str))
        for call in value
    )


def _span_of(item: Mapping[str, Any]) -> tuple[int, int] | None:
    span = item.get("span")
    if not isinstance(span, (list, tuple)) or len(span) != 2 or not all(map(_is_count, span)):
        return None
    return span[0], span[1]


def _is_signatures(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(
        isinstance(item, Mapping)
        and isinstance(item.get("value"), str)
        and (item.get("call_id") is None or isinstance(item["call_id"], str))
        for item in value
    )


_OPTIONAL = ("signatures",)
"""The fields that an event's JSON form may leave out."""

_FITS: dict[str, Callable[[Any], bool]] = {
    "Any": lambda value: True,
    "FinishReason": lambda value: isinstance(value, str) and value in get_args(FinishReason),
    "Usage": _is_usage,
    "bool": lambda value: isinstance(value, bool),
    "dict[str, Any]": lambda value: isinstance(value, dict),
    "dict[str, Any] | str": lambda value: isinstance(value, (dict, str)),
    "float": lambda value: isinstance(value, float) or _is_count(value),
    "int": _is_count,
    "str": lambda value: isinstance(value, str),
    "str | None": lambda value: value is None or isinstance(value, str),
    "tuple[Signature, ...]": _is_signatures,
    "tuple[ToolCall, ...]": _is_calls,
}
_SHAPES: dict[type[TurnEvent], list[tuple[str, Callable[[Any], bool]]]] = {
    cls: [(field.name, _FITS[str(field.type)]) for field in fields(cls)] for cls in _CLASSES.values()
}
"""What every field of an event takes, by its annotation."""
