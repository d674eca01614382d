from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

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
from rxloop.steps import ToolCall, ToolResult
from rxloop.testing import check_grammar
from rxloop.usage import Usage

CALLS = (ToolCall("a", "add", {"x": 1}), ToolCall("b", "now", {}))

EVENTS: list[Any] = [
    TurnStarted("t", "p", "m"),
    StepStarted(0),
    ContextReclaimed(0, 900, 100),
    RetryScheduled(0, 1, 1.0, {}),
    RetryScheduled(0, 2, 2.0, {}),
    ReasoningDelta(0, "hm"),
    TextDelta(0, "let me"),
    ToolCallStarted(0, "a", "add"),
    ToolCallDelta(0, "a", '{"x": 1}'),
    ToolCallReceived(0, "a", "add", {"x": 1}),
    ToolCallStarted(0, "b", "now"),
    ToolCallReceived(0, "b", "now", {}),
    StepFinished(0, "let me", CALLS, Usage(10, 2), "tool_use", "tool-calls"),
    UsageUpdated(Usage(10, 2)),
    ToolStarted(0, "a", "add"),
    ToolStarted(0, "b", "now"),
    ToolProgress(0, "a", "add", 50),
    ToolFinished(0, "b", "now", "12:00", None, False, 0.1),
    ToolFinished(0, "a", "add", None, "it failed", False, 0.2),
    StepStarted(1),
    StepFinished(1, "", (), Usage(1, 1), "MALFORMED", "error"),
    UsageUpdated(Usage(11, 3)),
    MalformedRetried(1),
    StepStarted(2),
    TextDelta(2, "done"),
    StepFinished(2, "done", (), Usage(20, 1), "end_turn", "stop"),
    UsageUpdated(Usage(31, 4)),
    TurnFinished("done", None, "stop", "end_turn", Usage(31, 4), 3, CALLS),
]
LAST = len(EVENTS) - 1
ABORTED = TurnFinished("…", None, "aborted", None, Usage(), 0, ())


def at(event_type: type, nth: int = 0) -> int:
    return [index for index, event in enumerate(EVENTS) if type(event) is event_type][nth]


def without(index: int) -> list[Any]:
    return [*EVENTS[:index], *EVENTS[index + 1 :]]


def inserted(index: int, event: Any) -> list[Any]:
    return [*EVENTS[:index], event, *EVENTS[index:]]


def changed(index: int, **values: Any) -> list[Any]:
    return [*EVENTS[:index], replace(EVENTS[index], **values), *EVENTS[index + 1 :]]


def test_a_whole_turn_is_accepted_as_events_and_as_json() -> None:
    check_grammar(EVENTS)
    check_grammar([event.to_dict() for event in EVENTS])


@pytest.mark.parametrize("length", range(LAST + 1))
def test_any_cut_needs_an_error_a_disposal_or_an_abort(length: int) -> None:
    events = EVENTS[:length]
    check_grammar(events, error=True)
    check_grammar(events, disposed=True)
    with pytest.raises(AssertionError, match="must end with turn_finished"):
        check_grammar(events)
    if length:
        steps = sum(isinstance(event, StepStarted) for event in events)
        check_grammar([*events, replace(ABORTED, steps=steps)])


def test_a_step_whose_request_did_not_go_out_does_not_count() -> None:
    check_grammar([*EVENTS[:2], ABORTED])
    with pytest.raises(AssertionError, match="at most the 1"):
        check_grammar([*EVENTS[:2], replace(ABORTED, steps=2)])


@pytest.mark.parametrize("index", range(LAST + 2))
def test_an_unknown_event_may_come_anywhere_but_at_the_end(index: int) -> None:
    events = inserted(index, UnknownEvent({"type": "later"}))
    if index <= LAST:
        check_grammar(events)
    else:
        with pytest.raises(AssertionError, match="nothing may follow"):
            check_grammar(events)


def test_call_ids_may_repeat_in_a_reply() -> None:
    calls = (CALLS[0], CALLS[0])
    done = ToolFinished(0, "a", "add", 2, None, False, 0.0)
    start = [*EVENTS[:2], StepFinished(0, "", calls, Usage(), None, "tool-calls"), UsageUpdated(Usage())]
    end = TurnFinished("", None, "tool-calls", None, Usage(), 1, calls)
    check_grammar([*start, done, done, end])
    with pytest.raises(AssertionError, match="exactly once"):
        check_grammar([*start, done, done, done, end])


BROKEN: list[tuple[str, list[Any], str]] = [
    ("no turn_started", EVENTS[1:], "turn_started must come first"),
    ("finish without a start", EVENTS[-1:], "turn_started must come first"),
    ("turn_started twice", inserted(5, EVENTS[0]), "must come first, and once"),
    ("an event after the end", [*EVENTS, TextDelta(2, "x")], "nothing may follow turn_finished"),
    ("turn_finished twice", [*EVENTS, EVENTS[-1]], "nothing may follow turn_finished"),
    ("no step", [EVENTS[0], EVENTS[-1]], "must have a step"),
    ("content before the step", inserted(1, TextDelta(0, "x")), "step_started must come before it"),
    ("a step number from 1", changed(1, step=1), "its step must be 0"),
    ("a gap between steps", changed(at(StepStarted, 1), step=2), "its step must be 1"),
    ("another step's event", changed(at(TextDelta), step=1), "its step must be 0, but is 1"),
    ("reclaimed after a retry", inserted(4, EVENTS[2]), "context_reclaimed must follow step_started"),
    ("reclaimed twice", inserted(3, EVENTS[2]), "context_reclaimed must follow step_started"),
    ("retry after content", inserted(6, RetryScheduled(0, 3, 1.0, {})), "before any content"),
    ("attempts not from 1", without(3), "its attempt must be 1"),
    ("a negative delay", changed(3, delay=-1.0), "its delay must be >= 0"),
    ("delta of no call", inserted(7, ToolCallDelta(0, "a", "{")), "must be started before it"),
    ("call that was not started", without(at(ToolCallStarted, 1)), "must be started before it"),
    ("call started twice", inserted(8, EVENTS[7]), "must be started once"),
    ("delta after its call", inserted(10, EVENTS[8]), "must end with its tool_call"),
    ("call received twice", inserted(10, EVENTS[9]), "must end with its tool_call"),
    ("call renamed", changed(9, name="sub"), "the name of call 'a' must be 'add'"),
    ("call renamed in the reply", changed(7, name="sub"), "the name of call 'a' must be 'sub'"),
    ("arguments changed", changed(9, arguments={"x": 2}), "the arguments of call 'a' must be as announced"),
    ("content after the reply", inserted(13, TextDelta(0, "x")), "must come between step_started and step_finished"),
    ("step_finished twice", inserted(13, EVENTS[12]), "step_finished must come once"),
    ("no usage", without(13), "must come after usage_updated"),
    ("usage twice", inserted(14, EVENTS[13]), "usage_updated must follow step_finished"),
    ("a wrong total", changed(21, usage=Usage(1, 1)), "the total must be the sum"),
    ("tool before the reply", inserted(12, ToolStarted(0, "a", "add")), "tool_started must come after usage_updated"),
    ("a stranger's tool", changed(14, call_id="z"), "'z' must be a call of the reply"),
    ("a stranger's name", changed(14, name="now"), "the name of call 'a' must be 'add'"),
    ("tool started twice", inserted(15, EVENTS[14]), "must start once"),
    ("progress before the start", inserted(14, EVENTS[16]), "must be started before it reports"),
    ("progress after the end", inserted(19, EVENTS[16]), "answered exactly once"),
    ("finished twice", inserted(18, EVENTS[17]), "answered exactly once"),
    ("a call without an answer", without(17), r"every call must have its tool_finished first, but \['b'\]"),
    ("output beside an error", changed(18, output=1), "a failed call must have no output"),
    ("permanent without an error", changed(17, permanently_failed=True), "a permanent failure is an error"),
    ("negative seconds", changed(17, seconds=-0.1), "its seconds must be >= 0"),
    ("step over an unsettled one", without(25), "turn_finished must wait|usage_updated must follow"),
    ("next step before the total", without(21), "malformed_retried must come after usage_updated"),
    ("two corrections", inserted(23, EVENTS[22]), "and once"),
    ("tool after the correction", inserted(23, ToolStarted(1, "a", "add")), "tool_started must come after usage"),
    ("finish before the total", without(26), "turn_finished must wait"),
    ("a wrong count of steps", changed(LAST, steps=2), "its steps must be 3"),
    ("a wrong sum", changed(LAST, usage=Usage(31, 5)), "its usage must be the sum"),
    ("a call forgotten", changed(LAST, tool_calls=CALLS[:1]), "its tool_calls must be those of all steps"),
    ("no event at all", ["text"], "turn_started must come first"),
    ("no event in the middle", inserted(5, ToolResult("a", "add")), "no event of a turn"),
]


@pytest.mark.parametrize(("events", "rule"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_a_broken_rule_is_named(events: list[Any], rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check_grammar(events, disposed=True)


def test_the_message_shows_the_offending_event_and_what_came_before() -> None:
    with pytest.raises(AssertionError) as caught:
        check_grammar(inserted(6, RetryScheduled(0, 3, 1.0, {})))
    lines = str(caught.value).splitlines()
    assert lines[0] == "retry_scheduled must come before any content of its step"
    assert lines[1].startswith("    2 ContextReclaimed(")
    assert lines[-1] == ">   6 RetryScheduled(step=0, attempt=3, delay=1.0, error={})"


def test_an_error_after_the_end_is_refused() -> None:
    with pytest.raises(AssertionError, match="no error may follow turn_finished"):
        check_grammar(EVENTS, error=True)


def test_an_empty_sequence_is_named() -> None:
    with pytest.raises(AssertionError, match="an empty sequence"):
        check_grammar([])
