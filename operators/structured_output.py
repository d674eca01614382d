"""Take a turn's structured answer out of its replies, or ask for a better one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from reactivex import Observable, abc

from rxloop.errors import ConfigurationError, InvalidOutputError
from rxloop.output import FINAL_RESULT, InvalidPayloadError, Output
from rxloop.steps import Conversation, OutputRequest, Step, StepResult, ToolCall, ToolResult
from rxloop.tools import ToolDeclaration

__all__ = ("OutputState", "structured_output")

_ACCEPTED = "accepted"
_ONCE = f"not used: {FINAL_RESULT} was called before in the same reply"
_REMINDER = f"Give the answer by calling the tool {FINAL_RESULT}."
_CANCELLED = "cancelled: the turn ended before it was checked"
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
        self.done = False
        self.payload = ""
        self.value: Any = None

    def prepare(self, step: Step) -> None:
        """
        Ask for the answer in a step that is about to go out.

        Raises:
            ConfigurationError: another tool has the name ``final_result``.
        """
        output = self._output
        if self._mode == "native":
            step.output = OutputRequest(output.schema, "native")
            return
        if any(isinstance(item, ToolDeclaration) and item.name == FINAL_RESULT for item in step.tools):
            raise ConfigurationError(f"a turn with output must not have a tool of its own named {FINAL_RESULT!r}")
        declaration = ToolDeclaration(FINAL_RESULT, output.description, output.schema)
        step.tools = [*step.tools, declaration]
        if self._mode == "coercive":
            self._forced = self._forced or self._is_last(step.index)
            if self._forced and self._remind is not None and not self._reminded:
                step.conversation = self._remind(step.conversation, _REMINDER)
                self._reminded = True
            step.output = OutputRequest(output.schema, "forced" if self._forced else "required")
        else:
            step.output = OutputRequest(output.schema, "offered")

    def judge(self, reply: StepResult, step: int) -> StepResult:
        """The reply, with what its answer came to."""
        if reply.resume or reply.malformed or reply.finish_reason in ("content-filter", "error"):
            return reply
        finals = [(place, call) for place, call in enumerate(reply.tool_calls) if call.name == FINAL_RESULT]
        if finals and self._mode != "native":
            return self._judge_calls(reply, finals, step)
        if reply.tool_calls:
            return reply
        return self._judge_text(reply, step)

    def _judge_calls(self, reply: StepResult, finals: list[tuple[int, ToolCall]], step: int) -> StepResult:
        (_, first), *others = finals
        try:
            value = self._valued(first.arguments, cut_off=first.truncated)
        except InvalidPayloadError as error:
            answer = ToolResult(first.call_id, first.name, error=f"invalid {FINAL_RESULT}: {error}")
            judged = self._rejected(reply, step, str(error), first.arguments)
        else:
            answer = ToolResult(first.call_id, first.name, output=_ACCEPTED)
            judged = self._accepted(reply, value, json.dumps(first.arguments, ensure_ascii=False))
        answers = [answer, *(ToolResult(call.call_id, call.name, error=_ONCE) for _, call in others)]
        places = [place for place, _ in finals]
        return replace(
            judged,
            tool_calls=tuple(call for call in reply.tool_calls if call.name != FINAL_RESULT),
            answered=tuple(zip(places, answers, strict=True)),
            correction=None,
        )

    def _judge_text(self, reply: StepResult, step: int) -> StepResult:
        payload: Any = reply.text
        try:
            payload = _object_in(reply.text)
            value = self._valued(payload, cut_off=reply.finish_reason == "length")
            return self._accepted(reply, value, reply.text)
        except InvalidPayloadError as error:
            fault = str(error)
        if self._mode == "native":
            correction = f"The answer does not have the format that was asked for: {fault}. Give it again."
            return self._rejected(reply, step, fault, payload, correction)
        if self._mode == "coercive" and not self._forced and not self._is_last(step):
            self._forced = self._reminded = True
            return replace(reply, resume=True, correction=_REMINDER)
        return self._rejected(reply, step, f"the model did not call {FINAL_RESULT}", payload, _REMINDER)

    def _valued(self, payload: dict[str, Any] | str, *, cut_off: bool) -> Any:
        if cut_off:
            raise InvalidPayloadError(_CUT_OFF)
        return self._output.validate(payload)

    def unfinished(self, reply: StepResult) -> StepResult:
        """A reply that was broken off, without the calls of ``final_result``, which are answered as cancelled."""
        if self._mode == "native":
            return reply
        answered = tuple(
            (place, ToolResult(call.call_id, call.name, error=_CANCELLED))
            for place, call in enumerate(reply.tool_calls)
            if call.name == FINAL_RESULT
        )
        calls = tuple(call for call in reply.tool_calls if call.name != FINAL_RESULT)
        return replace(reply, tool_calls=calls, answered=answered) if answered else reply

    def _accepted(self, reply: StepResult, value: Any, payload: str) -> StepResult:
        self.done, self.value, self.payload = True, value, payload
        return replace(reply, final=True, finish_reason="stop")

    def _rejected(
        self, reply: StepResult, step: int, fault: str, payload: Any, correction: str | None = None
    ) -> StepResult:
        if self._left > 0 and not self._is_last(step):
            self._left -= 1
            return replace(reply, resume=True, correction=correction)
        retried = self._output.retries - self._left
        return replace(
            reply,
            final=True,
            failure=InvalidOutputError(
                f"the model's answer does not fit what was asked for, after {retried} correction(s): {fault}",
                payload=payload,
            ),
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
    makes the turn go on with a correction, while the budget lasts and a step is left; then the turn fails with
    `InvalidOutputError`. The state is the turn's. Disposing disposes the source.

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


def _object_in(text: str) -> dict[str, Any]:
    """The JSON object that a text is, with or without a fence around it."""
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
    return value
