"""The order in which a turn's events may come, as a checker for tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

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
    TurnEvent,
    TurnFinished,
    TurnStarted,
    UnknownEvent,
    UsageUpdated,
    event_from_dict,
    is_event,
)
from rxloop.steps import ToolCall
from rxloop.usage import Usage

__all__ = ("check_grammar",)

_SHOWN = 4
"""How many events before the offending one a message shows."""


def check_grammar(
    events: Iterable[TurnEvent | Mapping[str, Any]], *, error: bool = False, disposed: bool = False
) -> None:
    """
    Check that a turn's events came in the order that every turn promises.

    ``turn_started (step_started context_reclaimed? retry_scheduled* (delta | tool_call*)* step_finished usage_updated
    (tool_*)* malformed_retried?)+ turn_finished``. A turn that ended with ``aborted`` may be cut anywhere before its
    ``turn_finished``. Beyond the order: steps count from 0 without gaps and every event carries its step's number;
    retries count from 1; the pieces of a call belong to a call that was started; every call of a reply is answered
    exactly once; totals are the sums of what the steps reported. An event of an unknown type may come anywhere.

    Args:
        events: what one subscription received, as events or as their JSON form.
        error: an error followed the last event: any cut before ``turn_finished`` will do.
        disposed: the subscriber left: any cut will do.

    Raises:
        AssertionError: the rule that was broken, the event that broke it, and what came before.
    """
    checker = _Checker()
    for event in events:
        checker.check(event_from_dict(event) if isinstance(event, Mapping) else event)
    checker.end(error=error, disposed=disposed)


class _Checker:
    """An automaton over the types, with what the rules about numbers and calls need."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        # start, between, opened, retrying, replying, replied, answering, corrected, finished
        self.place = "start"
        self.step = -1
        self.attempts = 0
        self.calls: dict[str, str] = {}
        self.received: dict[str, ToolCallReceived] = {}
        self.reply: StepFinished | None = None
        self.unanswered: Counter[str] = Counter()
        self.running: Counter[str] = Counter()
        self.total = Usage()
        self.all_calls: list[ToolCall] = []

    def check(self, event: Any) -> None:
        self.seen.append(event)
        self.require(self.place != "finished", "nothing may follow turn_finished")
        match event:
            case UnknownEvent():
                return
            case TurnStarted():
                self.require(self.place == "start", "turn_started must come first, and once")
                self.place = "between"
                return
            case TurnFinished():
                self.require(self.place != "start", "turn_started must come first")
                self.turn_finished(event)
                self.place = "finished"
                return
        self.require(self.place != "start", "turn_started must come first")
        match event:
            case StepStarted():
                self.step_started(event)
            case UsageUpdated():
                self.usage_updated(event)
            case _:
                self.require(self.place != "between" or self.step >= 0, "step_started must come before it")
                known = is_event(event)
                self.require(known, f"{type(event).__name__} is no event of a turn")
                self.require(event.step == self.step, f"its step must be {self.step}, but is {event.step}")
                self.in_step(event)

    def in_step(self, event: Any) -> None:
        match event:
            case ContextReclaimed():
                self.require(self.place == "opened", "context_reclaimed must follow step_started at once, and once")
                self.place = "retrying"
            case RetryScheduled():
                self.require(
                    self.place in ("opened", "retrying"), "retry_scheduled must come before any content of its step"
                )
                self.attempts += 1
                self.require(event.attempt == self.attempts, f"its attempt must be {self.attempts}")
                self.require(event.delay >= 0, "its delay must be >= 0 seconds")
                self.place = "retrying"
            case TextDelta() | ReasoningDelta():
                self.content(event)
            case ToolCallStarted() | ToolCallDelta() | ToolCallReceived():
                self.content(event)
                self.piece(event)
            case StepFinished():
                self.step_finished(event)
            case ToolStarted() | ToolProgress() | ToolFinished():
                self.require(
                    self.place == "answering", f"{event.type} must come after usage_updated and before the next step"
                )
                self.dispatch(event)
            case MalformedRetried():
                self.require(self.place == "answering", "malformed_retried must come after usage_updated, and once")
                self.all_answered()
                self.place = "corrected"

    def step_started(self, event: StepStarted) -> None:
        if self.step >= 0:
            self.require(
                self.place in ("answering", "corrected"), "step_started must wait for the step before it to be settled"
            )
            self.all_answered()
        self.step += 1
        self.require(event.step == self.step, f"steps count from 0 without gaps: its step must be {self.step}")
        self.place = "opened"
        self.attempts = 0
        self.calls, self.received, self.reply = {}, {}, None

    def content(self, event: Any) -> None:
        self.require(
            self.place in ("opened", "retrying", "replying"),
            f"{event.type} must come between step_started and step_finished",
        )
        self.place = "replying"

    def piece(self, event: ToolCallStarted | ToolCallDelta | ToolCallReceived) -> None:
        if isinstance(event, ToolCallStarted):
            self.require(event.call_id not in self.calls, f"call {event.call_id!r} must be started once")
            self.calls[event.call_id] = event.name
            return
        self.require(event.call_id in self.calls, f"call {event.call_id!r} must be started before it")
        self.require(event.call_id not in self.received, f"call {event.call_id!r} must end with its tool_call")
        if isinstance(event, ToolCallReceived):
            self.same_name(event.call_id, self.calls[event.call_id], event.name)
            self.received[event.call_id] = event

    def step_finished(self, event: StepFinished) -> None:
        self.require(
            self.place in ("opened", "retrying", "replying"), "step_finished must come once, after its step_started"
        )
        for call in event.tool_calls:
            received = self.received.get(call.call_id)
            if received is not None:
                self.same_name(call.call_id, received.name, call.name)
                self.require(
                    received.arguments == call.arguments, f"the arguments of call {call.call_id!r} must be as announced"
                )
        self.reply = event
        self.unanswered = Counter(call.call_id for call in event.tool_calls)
        self.running = Counter()
        self.all_calls += event.tool_calls
        self.total = self.total + event.usage
        self.place = "replied"

    def usage_updated(self, event: UsageUpdated) -> None:
        self.require(self.place == "replied", "usage_updated must follow step_finished at once")
        self.require(event.usage == self.total, f"the total must be the sum over the steps, {self.total}")
        self.place = "answering"

    def dispatch(self, event: ToolStarted | ToolProgress | ToolFinished) -> None:
        call_id = event.call_id
        assert self.reply is not None  # noqa: S101
        names = [call.name for call in self.reply.tool_calls if call.call_id == call_id]
        self.require(bool(names), f"{call_id!r} must be a call of the reply")
        self.require(event.name in names, f"the name of call {call_id!r} must be {names[0]!r}")
        self.require(self.unanswered[call_id] > 0, f"call {call_id!r} must be answered exactly once")
        if isinstance(event, ToolStarted):
            self.running[call_id] += 1
            self.require(self.running[call_id] <= self.unanswered[call_id], f"call {call_id!r} must start once")
        elif isinstance(event, ToolProgress):
            self.require(self.running[call_id] > 0, f"call {call_id!r} must be started before it reports")
        else:
            # a call that is refused, or that no tool is found for, ends without having started
            if self.running[call_id]:
                self.running[call_id] -= 1
            self.unanswered[call_id] -= 1
            self.require(event.error is None or event.output is None, "a failed call must have no output")
            self.require(event.error is not None or not event.permanently_failed, "a permanent failure is an error")
            self.require(event.seconds >= 0, "its seconds must be >= 0")

    def turn_finished(self, event: TurnFinished) -> None:
        if event.finish_reason == "aborted":
            begun = self.step + 1
            self.require(event.steps in (begun - 1, begun), f"its steps must be at most the {begun} that were started")
            return
        self.require(self.step >= 0, "a turn that was not aborted must have a step")
        self.require(
            self.place in ("answering", "corrected"), "turn_finished must wait for the last step, unless it is aborted"
        )
        self.all_answered()
        self.require(event.steps == self.step + 1, f"its steps must be {self.step + 1}")
        self.require(event.usage == self.total, f"its usage must be the sum over the steps, {self.total}")
        calls = [call.to_dict() for call in self.all_calls]
        self.require(
            [call.to_dict() for call in event.tool_calls] == calls, "its tool_calls must be those of all steps"
        )

    def all_answered(self) -> None:
        missing = sorted(self.unanswered.elements())
        self.require(not missing, f"every call must have its tool_finished first, but {missing} have none")

    def end(self, *, error: bool, disposed: bool) -> None:
        if error:
            self.require(self.place != "finished", "no error may follow turn_finished")
        elif not disposed and self.place != "finished":
            what = "an empty sequence" if not self.seen else "the end"
            self.fail(f"a turn that did not fail must end with turn_finished, but this is {what}")

    def same_name(self, call_id: str, expected: str, name: str) -> None:
        self.require(name == expected, f"the name of call {call_id!r} must be {expected!r}")

    def require(self, kept: bool, rule: str) -> None:
        if not kept:
            self.fail(rule)

    def fail(self, rule: str) -> NoReturn:
        last = len(self.seen) - 1
        first = max(0, last - _SHOWN)
        shown = [f"{'>' if index == last else ' '} {index:3} {self.seen[index]!r}" for index in range(first, last + 1)]
        raise AssertionError("\n".join([rule, *shown]))
