from __future__ import annotations

import dataclasses
import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop import events
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
from rxloop.steps import Signature, StepSettled, ToolCall
from rxloop.usage import Usage
from tests.operators.virtual import reply

CALLS = (ToolCall("a", "add", {"x": 1}), ToolCall("b", "add", '{"x'))
NO_TOKENS = Usage().to_dict()

# each event with its JSON form, which tapes hold: a change here breaks what was recorded
FORMS: list[tuple[TurnEvent, dict[str, Any]]] = [
    (TurnStarted("t", "p", "m"), {"type": "turn_started", "turn_id": "t", "provider": "p", "model": "m"}),
    (StepStarted(0), {"type": "step_started", "step": 0}),
    (
        RetryScheduled(0, 1, 1.5, {"kind": "server"}),
        {"type": "retry_scheduled", "step": 0, "attempt": 1, "delay": 1.5, "error": {"kind": "server"}},
    ),
    (TextDelta(0, "hé"), {"type": "text_delta", "step": 0, "text": "hé"}),
    (ReasoningDelta(0, "hm"), {"type": "reasoning_delta", "step": 0, "text": "hm"}),
    (ToolCallStarted(0, "a", "add"), {"type": "tool_call_started", "step": 0, "call_id": "a", "name": "add"}),
    (ToolCallDelta(0, "a", '{"'), {"type": "tool_call_delta", "step": 0, "call_id": "a", "arguments": '{"'}),
    (
        ToolCallReceived(0, "a", "add", {"x": 1}),
        {"type": "tool_call", "step": 0, "call_id": "a", "name": "add", "arguments": {"x": 1}},
    ),
    (
        StepFinished(0, "hi", CALLS, Usage(1, 2), "tool_use", "tool-calls"),
        {
            "type": "step_finished",
            "step": 0,
            "text": "hi",
            "tool_calls": [
                {"call_id": "a", "name": "add", "arguments": {"x": 1}},
                {"call_id": "b", "name": "add", "arguments": '{"x'},
            ],
            "usage": {**NO_TOKENS, "input_tokens": 1, "output_tokens": 2},
            "raw_stop_reason": "tool_use",
            "finish_reason": "tool-calls",
        },
    ),
    (UsageUpdated(Usage()), {"type": "usage_updated", "usage": NO_TOKENS}),
    (ToolStarted(0, "a", "add"), {"type": "tool_started", "step": 0, "call_id": "a", "name": "add"}),
    (
        ToolProgress(0, "a", "add", [1, {"of": 2}]),
        {"type": "tool_progress", "step": 0, "call_id": "a", "name": "add", "data": [1, {"of": 2}]},
    ),
    (
        ToolFinished(0, "a", "add", [3], None, False, 0.5),
        {
            "type": "tool_finished",
            "step": 0,
            "call_id": "a",
            "name": "add",
            "output": [3],
            "error": None,
            "permanently_failed": False,
            "seconds": 0.5,
        },
    ),
    (MalformedRetried(0), {"type": "malformed_retried", "step": 0}),
    (
        ContextReclaimed(0, 9, 4),
        {"type": "context_reclaimed", "step": 0, "before_tokens": 9, "after_tokens": 4},
    ),
    (
        TurnFinished("hi", {"a": 1}, "stop", None, Usage(), 2, CALLS[:1]),
        {
            "type": "turn_finished",
            "text": "hi",
            "output": {"a": 1},
            "finish_reason": "stop",
            "raw_stop_reason": None,
            "usage": NO_TOKENS,
            "steps": 2,
            "tool_calls": [{"call_id": "a", "name": "add", "arguments": {"x": 1}}],
        },
    ),
]


class Faulty:
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("output", [Faulty(), {"a": "\ud800"}])
def test_an_end_has_a_json_form_whatever_its_output(output: Any) -> None:
    form = TurnFinished("hi", output, "stop", None, Usage(), 1, ()).to_dict()
    assert form["output"].startswith(f"{type(output).__name__} has no JSON form: ")
    assert isinstance(event_from_dict(json.loads(json.dumps(form))), TurnFinished)


every_form = pytest.mark.parametrize(("event", "form"), FORMS, ids=[event.type for event, _ in FORMS])


def test_every_event_has_its_form() -> None:
    assert {type(event) for event, _ in FORMS} | {UnknownEvent} == set(get_args(TurnEvent))
    assert {cls.__name__ for cls in get_args(TurnEvent)} <= set(events.__all__)


@every_form
def test_the_json_form_is_as_it_is_written_down(event: TurnEvent, form: dict[str, Any]) -> None:
    assert event.to_dict() == form
    assert list(event.to_dict()) == list(form), "type first, then the fields in order"
    assert json.loads(json.dumps(event.to_dict())) == form


@every_form
def test_the_json_form_reads_back(event: TurnEvent, form: dict[str, Any]) -> None:
    assert event_from_dict(form) == event
    assert event_from_dict(json.loads(json.dumps(form))) == event
    assert event_from_dict({**form, "later": 1}) == event


@every_form
def test_a_form_that_lacks_a_field_is_unknown(event: TurnEvent, form: dict[str, Any]) -> None:
    for name in form:
        if name != "type":
            lacking = {key: value for key, value in form.items() if key != name}
            assert event_from_dict(lacking) == UnknownEvent(lacking)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"type": "later", "x": [1]},
        {"type": None},
        {"type": ["text_delta"]},
        {"type": "unknown"},
        {"type": "usage_updated", "usage": 7},
        {"type": "usage_updated", "usage": None},
        {**FORMS[8][1], "tool_calls": [{"call_id": "a"}]},
        {**FORMS[8][1], "tool_calls": None},
        {**FORMS[8][1], "tool_calls": ["add"]},
    ],
)
def test_what_is_not_understood_is_kept(data: dict[str, Any]) -> None:
    event = event_from_dict(data)
    assert event == UnknownEvent(data)
    assert event.to_dict() == data


_OF_ONE_TYPE: list[Any] = [None, True, 7, 1.5, "x", [1], {"a": "b"}]


@every_form
def test_a_field_of_another_type_is_not_understood(event: TurnEvent, form: dict[str, Any]) -> None:
    for field in dataclasses.fields(event):
        if field.name not in form:
            continue  # what may be left out has a test of its own
        kind, value = str(field.type), form[field.name]
        for other in _OF_ONE_TYPE:
            fits = kind == "Any" or type(other) is type(value) or (kind == "float" and type(other) is int)
            optional = kind == "str | None" and (other is None or isinstance(other, str))
            either = kind == "dict[str, Any] | str" and isinstance(other, (dict, str))
            if not (fits or optional or either):
                changed = {**form, field.name: other}
                assert event_from_dict(changed) == UnknownEvent(changed), field.name


@pytest.mark.parametrize(
    "change",
    [
        {"usage": {"input_tokens": "x"}},
        {"usage": {"output_tokens": 1.5}},
        {"usage": {"cache_read_tokens": True}},
        {"usage": [1]},
        {"tool_calls": [{"call_id": 1, "name": "f", "arguments": {}}]},
        {"tool_calls": [{"call_id": "1", "name": 2, "arguments": {}}]},
        {"tool_calls": [{"call_id": "1", "name": "f", "arguments": [3]}]},
        {"tool_calls": "ab"},
        {"finish_reason": "a_reason_of_the_future"},
        {"finish_reason": None},
        {"finish_reason": ["stop"]},
    ],
)
def test_a_wrong_type_inside_a_field_is_not_understood(change: dict[str, Any]) -> None:
    changed = {**FORMS[8][1], **change}
    assert event_from_dict(changed) == UnknownEvent(changed)


SIGNED = StepFinished(
    0,
    "",
    (),
    Usage(),
    None,
    "stop",
    (Signature("s1", span=(0, 2)), Signature("s2", call_id="a"), Signature("s3", redacted=True)),
)


def test_signatures_are_in_the_json_form_of_a_step_that_has_some() -> None:
    form = SIGNED.to_dict()
    assert form["signatures"] == [
        {"value": "s1", "call_id": None, "redacted": False, "span": [0, 2]},
        {"value": "s2", "call_id": "a", "redacted": False},
        {"value": "s3", "call_id": None, "redacted": True},
    ]
    assert event_from_dict(json.loads(json.dumps(form))) == SIGNED


@pytest.mark.parametrize("span", [None, 1, [1], [0, True], [0, 1.5], [0, 1, 2]])
def test_a_span_of_another_shape_is_not_known(span: Any) -> None:
    changed = {**SIGNED.to_dict(), "signatures": [{"value": "s", "span": span}]}
    event = event_from_dict(changed)
    assert isinstance(event, StepFinished)
    assert event.signatures == (Signature("s"),)


@pytest.mark.parametrize("signatures", [None, "s", [1], [{}], [{"value": 1}], [{"value": "s", "call_id": 1}]])
def test_signatures_of_another_shape_are_not_understood(signatures: Any) -> None:
    changed = {**SIGNED.to_dict(), "signatures": signatures}
    assert event_from_dict(changed) == UnknownEvent(changed)


@every_form
def test_events_are_frozen_and_slotted_values(event: TurnEvent, form: dict[str, Any]) -> None:
    assert not hasattr(event, "__dict__")
    name = dataclasses.fields(event)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(event, name, 1)
    assert event == dataclasses.replace(event)
    assert is_event(event)


def test_what_flows_beside_the_events_is_none() -> None:
    assert is_event(UnknownEvent({}))
    for value in (reply(), StepSettled(reply()), {"type": "text_delta"}, "text", None, TextDelta):
        assert not is_event(value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(
    st.dictionaries(st.text() | st.sampled_from(["step", "text", "usage", "tool_calls"]), json_values),
    st.sampled_from([event.type for event, _ in FORMS]) | json_values,
)
def test_a_reader_never_fails(data: dict[str, Any], kind: Any) -> None:
    assert is_event(event_from_dict({**data, "type": kind}))


@given(json_values, st.text(), st.integers(min_value=0))
def test_any_json_data_survives(data: Any, text: str, step: int) -> None:
    for event in (ToolProgress(step, text, text, data), ToolFinished(step, "a", "b", data, text, False, 0.0)):
        assert event_from_dict(json.loads(json.dumps(event.to_dict()))) == event
