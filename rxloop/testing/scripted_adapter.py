"""A model for tests: it says what a test wrote, and keeps what it was asked."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

from reactivex import Observable, abc
from reactivex.disposable import SerialDisposable

from rxloop.adapters.base import Adapter
from rxloop.clock import scheduler_for
from rxloop.demand import current_demand
from rxloop.errors import ConfigurationError, StreamInterruptedError
from rxloop.events import ReasoningDelta, TextDelta, ToolCallDelta, ToolCallReceived, ToolCallStarted
from rxloop.steps import Conversation, FinishReason, Signature, Step, StepResult, ToolCall, ToolResult
from rxloop.usage import Usage

__all__ = ("CallTool", "Said", "ScriptedAdapter", "Think", "Wait", "said")


@dataclass(frozen=True, slots=True)
class Think:
    """
    A piece of reasoning.

    Args:
        text: what is thought.
        signature: the provider's seal on it, told at the end of the reply.
    """

    text: str
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class CallTool:
    """
    A call of a tool.

    Args:
        name: the tool.
        arguments: an object; or raw text, which may be no JSON at all.
        call_id: unique within the adapter's scripts; made of the numbers of script and call if not given.
        signature: the provider's seal on it, told at the end of the reply.
        pace: seconds between the pieces in which the arguments stream; 0 sends them in one piece.

    Raises:
        ConfigurationError: the name or the call_id is no text, the arguments cannot be JSON, or the pace is no finite
            number >= 0.
    """

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    call_id: str | None = None
    signature: str | None = None
    pace: float = 0.0

    def __post_init__(self) -> None:
        """Check what was given."""
        if not isinstance(self.name, str):
            raise ConfigurationError(f"the name of a tool must be text, but got {self.name!r:.100}")
        if self.call_id is not None and not (isinstance(self.call_id, str) and self.call_id):
            raise ConfigurationError(f"call_id must be text that is not empty, but got {self.call_id!r:.100}")
        _check_seconds("pace", self.pace)
        if isinstance(self.arguments, str):
            return
        if not isinstance(self.arguments, Mapping):
            raise ConfigurationError(f"arguments must be a mapping or text, but got {self.arguments!r:.100}")
        try:
            json.dumps(dict(self.arguments), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigurationError(f"arguments of {self.name!r} cannot be JSON: {error}") from error


@dataclass(frozen=True, slots=True)
class Wait:
    """
    Time that passes, in seconds on the turn's scheduler.

    Raises:
        ConfigurationError: it is no finite number >= 0.
    """

    seconds: float

    def __post_init__(self) -> None:
        """Check what was given."""
        _check_seconds("seconds", self.seconds)


def _check_seconds(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise ConfigurationError(f"{name} must be a finite number >= 0, but got {value!r:.100}")


Said: TypeAlias = str | Think | CallTool | Wait | Exception
"""What a step consists of: text is a string, and an exception ends the attempt with it."""

_SAID = (str, Think, CallTool, Wait, Exception)


def said(marbles: str, values: Mapping[str, Said] | None = None, *, timespan: float = 0.1) -> list[Said]:
    """
    A step written as marbles: each ``-`` is time that passes, ``|`` its end, ``#`` a connection that breaks.

    ``said("--a-b-|", {"a": "Hel", "b": "lo"})`` waits for 0.2 s, says "Hel", 0.1 s later "lo", and ends after another
    0.1 s. A letter that is not among the values says itself.

    Args:
        marbles: the line.
        values: what the letters stand for.
        timespan: how many seconds a dash is.

    Raises:
        ConfigurationError: something follows its end.
    """
    script: list[Said] = []
    for position, mark in enumerate(marbles):
        if mark == "-":
            script.append(Wait(timespan))
        elif mark in "|#":
            if marbles[position + 1 :].strip("- "):
                raise ConfigurationError(f"nothing may follow the end of a step, but got {marbles!r}")
            if mark == "#":
                script.append(StreamInterruptedError("the scripted connection broke", provider="scripted"))
            break
        elif mark != " ":
            script.append((values or {}).get(mark, mark))
    return script


class ScriptedAdapter(Adapter):
    """
    An adapter that needs no provider: every attempt of a step says the next of its scripts.

    Its conversation is of messages with ``role`` and ``content``; a reply's calls are in ``calls``, their results in a
    message of the role ``tool``.

    Args:
        steps: what each attempt says, in order; one thing alone is a step of its own; `said` makes one of marbles.
        model: the model's name.
        usage: what every step counts.
        finish_reason: of steps without calls.

    Raises:
        ConfigurationError: a script has something that cannot be said, or a call_id comes twice.
    """

    provider: ClassVar[str] = "scripted"

    def __init__(
        self,
        *steps: Said | Iterable[Said],
        model: str = "scripted",
        usage: Usage = Usage(10, 5),  # noqa: B008
        finish_reason: FinishReason = "stop",
    ) -> None:
        self.model = model
        self._scripts = _with_ids([_script(number, step) for number, step in enumerate(steps)])
        self._usage = usage
        self._finish_reason: FinishReason = finish_reason
        self._next = 0
        self.requests: list[Step] = []
        """What was asked, one step an attempt, as it was then."""

    def assert_complete(self) -> None:
        """
        Check that everything scripted was said.

        Raises:
            AssertionError: some steps were not asked for.
        """
        left = len(self._scripts) - self._next
        if left:
            raise AssertionError(f"every scripted step must be asked for, but {left} of {len(self._scripts)} were not")

    def begin(self, conversation: Conversation, prompt: Any) -> list[Mapping[str, Any]]:
        """The conversation with a user's message at its end."""
        messages = list(conversation)
        if prompt is None:
            if not messages:
                raise ConfigurationError("a turn needs a prompt or a conversation, but got neither")
            return messages
        if not prompt:
            raise ConfigurationError(f"prompt must not be empty, but got {prompt!r}")
        return [*messages, {"role": "user", "content": prompt}]

    def append(
        self, conversation: Conversation, result: StepResult, tool_results: Sequence[ToolResult]
    ) -> list[Mapping[str, Any]]:
        """The conversation with the reply and, in one message, the results of its calls."""
        messages = list(conversation)
        if result.message is None:
            return messages
        messages.append(result.message)
        if tool_results:
            messages.append({"role": "tool", "content": [item.to_dict() for item in tool_results]})
        return messages

    def step(self, step: Step) -> Observable[Any]:
        """The next script."""

        def subscribe(
            observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            self.requests.append(
                Step(step.index, list(step.conversation), step.system, list(step.tools), output=step.output)
            )
            if self._next >= len(self._scripts):
                raise ConfigurationError(
                    f"the model was asked {self._next + 1} times, but its script has {len(self._scripts)} step(s)"
                )
            script = self._scripts[self._next]
            self._next += 1
            speaking = _Speaking(step, script, self._usage, self._finish_reason, observer, scheduler)
            step.draft = speaking
            speaking.go_on()
            return speaking.timer

        return Observable(subscribe)


def _script(number: int, step: Any) -> list[Said]:
    """What a step says, checked."""
    script: list[Any] = list(step) if isinstance(step, Iterable) and not isinstance(step, _SAID) else [step]
    for item in script:
        if not isinstance(item, _SAID):
            raise ConfigurationError(
                f"a step must say text, Think, CallTool, Wait or an exception, but step {number} has {item!r}"
            )
    return script


def _with_ids(scripts: Sequence[Sequence[Said]]) -> list[list[Said]]:
    """The scripts with an identifier for every call, each once."""
    given: set[str] = set()
    for item in itertools.chain.from_iterable(scripts):
        if isinstance(item, CallTool) and item.call_id is not None:
            if item.call_id in given:
                raise ConfigurationError(f"a call_id must come once, but {item.call_id!r} comes twice")
            given.add(item.call_id)
    identified: list[list[Said]] = []
    for number, script in enumerate(scripts):
        free = (name for call in itertools.count() if (name := f"call_{number}_{call}") not in given)
        identified.append(
            [
                replace(item, call_id=next(free)) if isinstance(item, CallTool) and item.call_id is None else item
                for item in script
            ]
        )
    return identified


_PIECE = 8
"""Characters of a paced call's arguments that come at once."""


@dataclass(frozen=True, slots=True)
class _CallPart:
    """A moment of a call: its beginning, a piece of its arguments, or the whole."""

    event: ToolCallStarted | ToolCallDelta | ToolCallReceived
    signature: str | None = None


class _Speaking:
    """One attempt at a step; the draft of its reply."""

    def __init__(
        self,
        step: Step,
        script: Sequence[Said],
        usage: Usage,
        finish_reason: FinishReason,
        observer: abc.ObserverBase[Any],
        scheduler: abc.SchedulerBase | None,
    ) -> None:
        self._step = step.index
        self._script: list[Said | _CallPart] = list(script)
        self._usage = usage
        self._finish_reason = finish_reason
        self._observer = observer
        self._scheduler = scheduler
        self._position = 0
        self._text: list[str] = []
        self._calls: list[ToolCall] = []
        self._signatures: list[Signature] = []
        self._thought = 0
        self._ended = False
        self._demand = current_demand()
        self.timer = SerialDisposable()

    def go_on(self, *_: Any) -> None:
        """Say everything up to the next wait."""
        while self._position < len(self._script):
            if self.timer.is_disposed:
                return
            if self._demand is not None and self._demand.closed:
                self._demand.when_open(self.go_on)
                return
            item = self._script[self._position]
            self._position += 1
            if isinstance(item, Wait):
                timers = scheduler_for(self._scheduler)
                self.timer.disposable = timers.schedule_relative(item.seconds, self.go_on)
                return
            if isinstance(item, Exception):
                self._observer.on_error(item)
                return
            if isinstance(item, CallTool):
                self._script[self._position : self._position] = self._parts(item)
            else:
                self._say(item)
        if self.timer.is_disposed:
            return
        self._ended = True
        self._observer.on_next(self.draft())
        self._observer.on_completed()

    def _parts(self, call: CallTool) -> list[Said | _CallPart]:
        call_id = str(call.call_id)
        arguments = call.arguments if isinstance(call.arguments, str) else dict(call.arguments)
        raw = arguments if isinstance(arguments, str) else json.dumps(arguments)
        parts: list[Said | _CallPart] = [_CallPart(ToolCallStarted(self._step, call_id, call.name))]
        if not call.pace:
            parts.append(_CallPart(ToolCallDelta(self._step, call_id, raw)))
        else:
            for start in range(0, len(raw), _PIECE):
                piece = raw[start : start + _PIECE]
                parts += [_CallPart(ToolCallDelta(self._step, call_id, piece)), Wait(call.pace)]
        return [*parts, _CallPart(ToolCallReceived(self._step, call_id, call.name, arguments), call.signature)]

    def _say(self, item: str | Think | _CallPart) -> None:
        forward = self._observer.on_next
        if isinstance(item, str):
            self._text.append(item)
            forward(TextDelta(self._step, item))
        elif isinstance(item, Think):
            before = self._thought
            self._thought += len(item.text)
            if item.signature is not None:
                self._signatures.append(Signature(item.signature, span=(before, self._thought)))
            forward(ReasoningDelta(self._step, item.text))
        else:
            event = item.event
            if isinstance(event, ToolCallReceived):
                self._calls.append(ToolCall(event.call_id, event.name, event.arguments))
                if item.signature is not None:
                    self._signatures.append(Signature(item.signature, event.call_id))
            forward(event)

    def draft(self) -> StepResult:
        calls = tuple(self._calls)
        reason: FinishReason = "aborted"
        if self._ended:
            reason = "tool-calls" if calls else self._finish_reason
        text = "".join(self._text)
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if calls:
            message["calls"] = [call.to_dict() for call in calls]
        return StepResult(
            text,
            calls,
            self._usage if self._ended else Usage(),
            reason,
            raw_stop_reason=reason if self._ended else None,
            message=message if text or calls else None,
            signatures=tuple(self._signatures),
        )
