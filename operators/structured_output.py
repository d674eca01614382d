"""Take a turn's structured answer out of its replies, or ask for a better one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from reactivex import Observable, abc

from rxloop.checks import whole
from rxloop.errors import ConfigurationError, InvalidOutputError
from rxloop.operators.step_cap import CapReached, Renew, Renewal
from rxloop.output import FINAL_RESULT, InvalidPayloadError, Output
from rxloop.steps import Conversation, OutputRequest, Step, StepResult, ToolCall, ToolResult
from rxloop.tools import ToolDeclaration

__all__ = ("OutputState", "structured_output")

_ACCEPTED = "accepted"
_ONCE = f"not used: {FINAL_RESULT} was called before in the same reply"
_REMINDER = f"Give the answer by calling the tool {FINAL_RESULT}."
_CANCELLED = "cancelled: the turn ended before it was checked"
_FAULTY = "not used: the provider refused the reply, or reported it as faulty"
_NOT_CALLED = f"the model did not call {FINAL_RESULT}"
_CUT_OFF = "the token limit cut it off; make it shorter"


class OutputState:
    """
    What one run of a turn knows of its structured answer.

    Args:
        output: what was asked for.
        mode: the mode that it came to: native, cooperative or coercive.
        max_steps: the turn's last step, where it is known; there nothing can be corrected, and the coercive mode forces
            the answer.
        remind: adds a message to a conversation, where the model cannot be forced and has to be told.
    """

    __slots__ = (
        "_forced",
        "_left",
        "_max_steps",
        "_mode",
        "_output",
        "_paused",
        "_remind",
        "_reminded",
        "done",
        "payload",
        "value",
    )

    def __init__(
        self,
        output: Output,
        mode: str,
        max_steps: int | None,
        *,
        remind: Callable[[Conversation, str], Conversation] | None = None,
    ) -> None:
        self._output = output
        self._mode = mode
        self._max_steps = max_steps
        self._left = output.retries
        self._forced = self._reminded = False
        self._remind = remind
        self._paused = ""
        self.done = False
        self.payload = ""
        self.value: Any = None

    def declared(
        self, tools: Sequence[ToolDeclaration | Mapping[str, Any]]
    ) -> Sequence[ToolDeclaration | Mapping[str, Any]]:
        """
        The tools of a step, with ``final_result`` where the answer is given by it.

        Raises:
            ConfigurationError: another tool has this name.
        """
        if self._mode == "native":
            return tools
        for item in tools:
            if (item.get("name") if isinstance(item, Mapping) else item.name) == FINAL_RESULT:
                raise ConfigurationError(f"a turn with output must not have a tool of its own named {FINAL_RESULT!r}")
        return [*tools, ToolDeclaration(FINAL_RESULT, self._output.description, self._output.schema)]

    def ask(self, step: Step) -> None:
        """Ask for the answer in a step that is about to go out."""
        schema = self._output.schema
        if self._mode == "native":
            step.output = OutputRequest(schema, "native")
            return
        if self._mode == "cooperative":
            step.output = OutputRequest(schema, "offered")
            return
        self._forced = self._forced or self._is_last(step.index)
        if self._forced and self._remind is not None and not self._reminded:
            step.conversation = self._remind(step.conversation, _REMINDER)
            self._reminded = True
        step.output = OutputRequest(schema, "forced" if self._forced else "required")

    def reserving(self, renew: Renew) -> Renew:
        """
        The renewal of a cap that leaves out the turn's last step, which is the answer's.

        The caller's own is asked one step early: either it raises the cap, or that step forces the answer.

        Args:
            renew: the caller's, which knows the whole cap.
        """

        def renewed(reached: CapReached) -> Renewal | None:
            if self._max_steps is not None:
                return None
            cap = reached.max_steps + 1
            answer = renew(CapReached(cap))
            if answer is None:
                self._max_steps = cap
                return Renewal(cap)
            renewal = answer if isinstance(answer, Renewal) else Renewal(answer)
            whole("a renewed max_steps", renewal.max_steps, minimum=cap + 1)
            return replace(renewal, max_steps=renewal.max_steps - 1)

        return renewed

    def judge(self, reply: StepResult, step: int) -> StepResult:
        """The reply, with what its answer came to."""
        before = self._paused
        # the reply to a pause goes on in the middle of the text
        self._paused = before + reply.text if reply.resume and not reply.malformed else ""
        if reply.resume or reply.malformed or reply.finish_reason in ("content-filter", "error"):
            return self._without_finals(reply, _FAULTY)
        finals = [(place, call) for place, call in enumerate(reply.tool_calls) if call.name == FINAL_RESULT]
        if finals and self._mode != "native":
            return self._judge_calls(reply, finals, step)
        if reply.tool_calls:
            return reply
        return self._judge_text(reply, step, before)

    def unfinished(self, reply: StepResult) -> StepResult:
        """A reply that was broken off, without the calls of ``final_result``, which are answered as cancelled."""
        return self._without_finals(reply, _CANCELLED)

    def _judge_calls(self, reply: StepResult, finals: list[tuple[int, ToolCall]], step: int) -> StepResult:
        (_, first), *others = finals
        try:
            value = self._output.validate(_whole(first))
        except InvalidPayloadError as error:
            answer = ToolResult(first.call_id, first.name, error=f"invalid {FINAL_RESULT}: {error}")
            judged = self._rejected(reply, step, str(error), first.arguments)
        else:
            answer = ToolResult(first.call_id, first.name, output=_ACCEPTED)
            judged = self._accepted(reply, value, json.dumps(first.arguments, ensure_ascii=False))
        answers = [answer, *(ToolResult(call.call_id, call.name, error=_ONCE) for _, call in others)]
        return _answered(judged, [place for place, _ in finals], answers)

    def _judge_text(self, reply: StepResult, step: int, before: str) -> StepResult:
        payload: Any = before + reply.text
        try:
            text, payload = _object_in(before, reply.text, cut_off=reply.finish_reason == "length")
            return self._accepted(reply, self._output.validate(payload), text)
        except InvalidPayloadError as error:
            fault = str(error)
        if self._mode == "native":
            correction = f"The answer does not have the format that was asked for: {fault}. Give it again."
            return self._rejected(reply, step, fault, payload, correction)
        if self._mode == "coercive" and not self._forced and not self._is_last(step):
            self._forced = self._reminded = True
            return replace(reply, resume=True, correction=_REMINDER, failure=self._failure(_NOT_CALLED, payload))
        return self._rejected(reply, step, _NOT_CALLED, payload, _REMINDER)

    def _without_finals(self, reply: StepResult, error: str) -> StepResult:
        if self._mode == "native":
            return reply
        finals = [(place, call) for place, call in enumerate(reply.tool_calls) if call.name == FINAL_RESULT]
        answers = [ToolResult(call.call_id, call.name, error=error) for _, call in finals]
        return _answered(reply, [place for place, _ in finals], answers) if finals else reply

    def _accepted(self, reply: StepResult, value: Any, payload: str) -> StepResult:
        self.done, self.value, self.payload = True, value, payload
        return replace(reply, final=True, finish_reason="stop")

    def _rejected(
        self, reply: StepResult, step: int, fault: str, payload: Any, correction: str | None = None
    ) -> StepResult:
        failure = self._failure(fault, payload)
        if self._left > 0 and not self._is_last(step):
            self._left -= 1
            return replace(reply, resume=True, correction=correction, failure=failure)
        return replace(reply, final=True, failure=failure)

    def _failure(self, fault: str, payload: Any) -> InvalidOutputError:
        retried = self._output.retries - self._left
        return InvalidOutputError(
            f"the model's answer does not fit what was asked for, after {retried} correction(s): {fault}",
            payload=payload,
        )

    def _is_last(self, step: int) -> bool:
        return self._max_steps is not None and step >= self._max_steps - 1


def structured_output(state: OutputState | None, *, step: int = 0) -> Callable[[Observable[Any]], Observable[Any]]:
    """
    Mark a reply as final when it has the answer, and as one to be corrected when it has a wrong one.

    .. marble::
        --a--R(final_result x, y)-----|
        [ structured_output(state) ]
        --a--R(y, answered x, final)--|

    ``R`` is the step's `StepResult`. A call of ``final_result`` is never the caller's to run: it is taken out of the
    calls and answered here. Other calls of a reply with a valid answer are answered without running. An invalid answer
    makes the turn go on with a correction, while the budget lasts and a step is left; then, and wherever else the turn
    ends with it, it fails with `InvalidOutputError`. The state is the turn's. Disposing disposes the source.

    Args:
        state: what the run knows of its answer; ``None`` passes everything.
        step: the step's number.
    """

    def operator(source: Observable[Any]) -> Observable[Any]:
        if state is None:
            return source

        def subscribe(
            observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            forward = observer.on_next

            def on_next(item: Any) -> None:
                forward(state.judge(item, step) if type(item) is StepResult else item)

            return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

        return Observable(subscribe)

    return operator


def _answered(reply: StepResult, places: Sequence[int], answers: Sequence[ToolResult]) -> StepResult:
    """The reply without the calls in these places, which have these answers."""
    calls = tuple(call for place, call in enumerate(reply.tool_calls) if place not in places)
    return replace(reply, tool_calls=calls, answered=tuple(zip(places, answers, strict=True)))


def _whole(call: ToolCall) -> dict[str, Any] | str:
    if call.truncated:
        raise InvalidPayloadError(_CUT_OFF)
    return call.arguments


def _object_in(before: str, text: str, *, cut_off: bool) -> tuple[str, dict[str, Any]]:
    """The JSON object that a text is, with or without a fence around it and what came before, and its own text."""
    if cut_off:
        raise InvalidPayloadError(_CUT_OFF)
    try:
        return _parsed(before + text)
    except InvalidPayloadError:
        if not before:
            raise
        # what came before a pause may be no part of it, such as a word about the search
        try:
            return _parsed(text)
        except InvalidPayloadError:
            pass
        raise


def _parsed(text: str) -> tuple[str, dict[str, Any]]:
    # it waits for whoever needs it: the import is not for free
    from pydantic_core import from_json

    stripped = text.strip()
    if stripped.startswith("```") and stripped.endswith("```"):
        stripped = stripped.removesuffix("```").partition("\n")[2].strip()
    try:
        value = from_json(stripped, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidPayloadError(f"it must be one JSON object, but it is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidPayloadError(f"it must be one JSON object, but got {stripped!r:.200}")
    return stripped, value
