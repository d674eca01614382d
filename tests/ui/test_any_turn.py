"""Whatever a turn is, and wherever it begins and ends, what is made of it keeps the protocols' rules."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
)
from rxloop.steps import Signature, ToolCall
from rxloop.testing.grammar import check_grammar
from rxloop.ui.agui import AguiFrames, AguiMapping
from rxloop.ui.entry import StreamEvent, TurnFailed
from rxloop.ui.frames import EventFrames, json_text, whole
from rxloop.ui.vercel import UIMessageFrames, UIMessageMapping
from rxloop.usage import Usage
from tests.ui.grammar import check_agui, check_ui_messages

NAMES: dict[str, Any] = {"thread_id": "thread", "run_id": "run"}

texts = st.text(st.characters(), max_size=8)
"""Any text, halves of characters among it."""

FAILED = TurnFailed({"kind": "server", "status": 500, "message": "gone", "retryable": True}, Usage(3, 1), "so far")


def _finished(usage: Usage, steps: int, calls: tuple[ToolCall, ...], *, aborted: bool = False) -> TurnFinished:
    return TurnFinished("end", None, "aborted" if aborted else "stop", None, usage, steps, calls)


@st.composite
def turns(draw: st.DrawFn) -> list[TurnEvent]:
    """A turn that the grammar allows, to its end."""
    events: list[TurnEvent] = [TurnStarted("turn", "provider", "model")]
    total = Usage()
    made: tuple[ToolCall, ...] = ()
    steps = draw(st.integers(1, 3))
    for step in range(steps):
        events.append(StepStarted(step))
        if draw(st.booleans()):
            events.append(ContextReclaimed(step, 10, 5))
        events += [RetryScheduled(step, n, 0.5, {"kind": "server"}) for n in range(1, draw(st.integers(1, 3)))]
        calls, own = _content(draw, step, events)
        signatures = tuple(
            Signature(draw(texts), draw(st.sampled_from([None, *calls, "elsewhere"])), draw(st.booleans()))
            for _ in range(draw(st.integers(0, 3)))
        )
        run_here = tuple(call for call in calls.values() if call.call_id not in own)
        made = (*made, *run_here)
        total = total + Usage(2, 1)
        text = "".join(event.text for event in events if isinstance(event, TextDelta) and event.step == step)
        events.append(StepFinished(step, text, run_here, Usage(2, 1), None, "stop", signatures))
        events.append(UsageUpdated(total))
        _answers(draw, step, run_here, events)
        if draw(st.booleans()):
            events.append(MalformedRetried(step))
    events.append(_finished(total, steps, made))
    check_grammar(events)
    return events


def _content(draw: st.DrawFn, step: int, events: list[TurnEvent]) -> tuple[dict[str, ToolCall], set[str]]:
    """A reply: its calls, and those of them that the engine answers itself."""
    calls: dict[str, ToolCall] = {}
    own: set[str] = set()
    open_calls: list[str] = []
    for _ in range(draw(st.integers(0, 8))):
        what = draw(st.sampled_from(["text", "reasoning", "start", "piece", "end"]))
        if what == "text":
            events.append(TextDelta(step, draw(texts)))
        elif what == "reasoning":
            events.append(ReasoningDelta(step, draw(texts)))
        elif what == "start":
            call_id = f"{draw(texts)}{len(calls)}"
            name = draw(st.sampled_from(["add", "final_result"]))
            arguments: Any = draw(st.sampled_from([{}, {"a": 1}, '{"a', ""]))
            calls[call_id] = ToolCall(call_id, name, arguments)
            if name == "final_result":
                own.add(call_id)
            open_calls.append(call_id)
            events.append(ToolCallStarted(step, call_id, name))
        elif open_calls:
            call_id = draw(st.sampled_from(open_calls))
            if what == "piece":
                events.append(ToolCallDelta(step, call_id, draw(texts)))
            else:
                open_calls.remove(call_id)
                call = calls[call_id]
                events.append(ToolCallReceived(step, call_id, call.name, call.arguments))
    return calls, own


def _answers(draw: st.DrawFn, step: int, calls: tuple[ToolCall, ...], events: list[TurnEvent]) -> None:
    for call in draw(st.permutations(calls)):
        error = draw(st.sampled_from([None, "failed"]))
        if draw(st.booleans()):
            events.append(ToolStarted(step, call.call_id, call.name))
            events.append(ToolProgress(step, call.call_id, call.name, {"percent": 50}))
        output = None if error else draw(st.sampled_from(["5", {"a": [1]}, None, 2.5]))
        events.append(ToolFinished(step, call.call_id, call.name, output, error, False, 0.1))


@st.composite
def cut_turns(draw: st.DrawFn) -> list[StreamEvent]:
    """A turn that may begin in the middle, be stopped or fail anywhere, and know of events that are not known here."""
    events: list[StreamEvent] = list(draw(turns()))
    end = draw(st.integers(1, len(events)))
    ending = draw(st.sampled_from(["whole", "stopped", "failed", "broken off"]))
    if ending != "whole":
        events = events[:end]
        events = [event for event in events if not isinstance(event, TurnFinished)]
        if ending == "stopped":
            events.append(_finished(Usage(2, 1), 1, (), aborted=True))
        elif ending == "failed":
            events.append(FAILED)
    if draw(st.booleans()):
        events.insert(draw(st.integers(0, len(events))), UnknownEvent({"type": "weather", "sky": "grey"}))
    return events[draw(st.integers(0, len(events))) :] if draw(st.booleans()) else events


_STEPS = st.integers(0, 2)
_CALLS = st.sampled_from(["a", "b"])
stray_events: st.SearchStrategy[StreamEvent] = st.one_of(
    st.builds(StepStarted, _STEPS),
    st.builds(TextDelta, _STEPS, texts),
    st.builds(ReasoningDelta, _STEPS, texts),
    st.builds(ToolCallStarted, _STEPS, _CALLS, st.just("add")),
    st.builds(ToolCallDelta, _STEPS, _CALLS, texts),
    st.builds(ToolCallReceived, _STEPS, _CALLS, st.just("add"), st.sampled_from([{}, {"a": 1}, "{"])),
    st.builds(
        lambda step, text, calls: StepFinished(step, text, calls, Usage(), None, "stop", (Signature("s"),)),
        _STEPS,
        texts,
        st.sampled_from([(), (ToolCall("a", "add", {}),), (ToolCall("b", "add", "{"), ToolCall("b", "add", {}))]),
    ),
    st.builds(lambda step, call: ToolFinished(step, call, "add", 5, None, False, 0.0), _STEPS, _CALLS),
    st.builds(ToolStarted, _STEPS, _CALLS, st.just("add")),
    st.just(UsageUpdated(Usage(2**62, -1))),
    st.just(MalformedRetried(0)),
    st.just(TurnStarted("turn", "provider", "model")),
    st.just(_finished(Usage(2**62, 1), 2, ())),
    st.just(FAILED),
)

any_turn = st.one_of(cut_turns(), st.lists(stray_events, max_size=15))


@given(any_turn, st.booleans())
@settings(max_examples=300, deadline=None)
def test_a_run_of_agui_is_whole(events: list[StreamEvent], running_usage: bool) -> None:
    mapping = AguiMapping(**NAMES, turn_id="turn", running_usage=running_usage)
    made = [item for event in events for item in mapping.feed(event)] + mapping.close()
    check_agui([json.loads(item.model_dump_json(by_alias=True)) for item in made], **NAMES)
    assert mapping.close() == []
    assert mapping.feed(TextDelta(9, "late")) == []


@given(any_turn, st.booleans())
@settings(max_examples=300, deadline=None)
def test_a_ui_message_stream_is_whole(events: list[StreamEvent], running_usage: bool) -> None:
    mapping = UIMessageMapping(message_id="turn", running_usage=running_usage)
    made = [part for event in events for part in mapping.feed(event)] + mapping.close()
    check_ui_messages(json.loads(json_text(part)) for part in made)
    assert mapping.close() == []
    assert mapping.feed(TextDelta(9, "late")) == []


@given(any_turn)
@settings(max_examples=300, deadline=None)
def test_the_frames_of_agui_are_what_its_own_encoder_writes(events: list[StreamEvent]) -> None:
    from ag_ui.encoder import EventEncoder

    encoder = EventEncoder()  # type: ignore[no-untyped-call, unused-ignore]
    mapping, frames = AguiMapping(**NAMES, turn_id="turn"), AguiFrames(**NAMES, turn_id="turn")
    for event in events:
        written = [encoder.encode(item).removeprefix("data: ").removesuffix("\n\n") for item in mapping.feed(event)]
        framed = list(frames.feed(event))
        assert [frame.encode() for frame in framed] == [text.encode() for text in written]
        assert not any("\n" in frame or "\r" in frame for frame in framed)


@given(any_turn)
@settings(max_examples=300, deadline=None)
def test_the_frames_of_a_ui_message_stream_are_its_parts(events: list[StreamEvent]) -> None:
    mapping, frames = UIMessageMapping(message_id="turn"), UIMessageFrames(turn_id="turn")
    for event in events:
        assert list(frames.feed(event)) == [json_text(part) for part in mapping.feed(event)]


@given(any_turn)
@settings(max_examples=300, deadline=None)
def test_the_frames_of_events_are_their_json(events: list[StreamEvent]) -> None:
    frames = EventFrames(turn_id="turn", thread_id="thread", run_id="run")
    for event in events:
        [frame] = frames.feed(event)
        assert frame == json_text(event.to_dict())
        frame.encode()
        if not isinstance(event, TurnFailed):
            read = event_from_dict(json.loads(frame))
            assert json_text(read.to_dict()) == frame


@given(any_turn)
@settings(deadline=None)
def test_what_is_made_depends_on_the_events_alone(events: list[StreamEvent]) -> None:
    one, other = AguiFrames(**NAMES, turn_id="turn"), AguiFrames(**NAMES, turn_id="turn")
    assert [one.feed(event) for event in events] == [other.feed(event) for event in events]


@given(turns())
@settings(deadline=None)
def test_the_text_of_a_turn_arrives_whole(events: list[TurnEvent]) -> None:
    mapping = AguiMapping(**NAMES)
    made: list[Any] = [item for event in events for item in mapping.feed(event)]
    for sent, kind in ((TextDelta, "TEXT_MESSAGE_CONTENT"), (ReasoningDelta, "REASONING_MESSAGE_CONTENT")):
        said = "".join(whole(event.text) for event in events if isinstance(event, sent))
        assert "".join(item.delta for item in made if item.type.value == kind) == said


BEGUN = {"type": "RUN_STARTED", "threadId": "thread", "runId": "run"}
ENDED = {"type": "RUN_FINISHED", "threadId": "thread", "runId": "run"}
STEP = {"type": "STEP_STARTED", "stepName": "s"}
STEPPED = {"type": "STEP_FINISHED", "stepName": "s"}
CALL = {"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "add"}
CALLED = {"type": "TOOL_CALL_END", "toolCallId": "c"}
RESULT = {"type": "TOOL_CALL_RESULT", "messageId": "r", "toolCallId": "c", "content": ""}


@pytest.mark.parametrize(
    "events",
    [
        [BEGUN],
        [ENDED],
        [BEGUN, ENDED, ENDED],
        [BEGUN, STEP, ENDED],
        [BEGUN, STEP, STEPPED, STEP, STEPPED, ENDED],
        [BEGUN, CALL, CALLED, RESULT, ENDED],
        [BEGUN, STEP, CALL, RESULT, CALLED, STEPPED, ENDED],
        [BEGUN, STEP, CALL, CALLED, STEPPED, ENDED],
        [BEGUN, STEP, CALL, CALLED, RESULT, RESULT, STEPPED, ENDED],
        [BEGUN, STEP, {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "x"}, STEPPED, ENDED],
        [BEGUN, STEP, {"type": "TEXT_MESSAGE_START", "messageId": "m"}, STEPPED, ENDED],
    ],
)
def test_the_checker_refuses(events: list[dict[str, Any]]) -> None:
    with pytest.raises((AssertionError, KeyError)):
        check_agui(events, **NAMES)


def test_the_checker_takes_a_run() -> None:
    check_agui([BEGUN, STEP, CALL, CALLED, RESULT, STEPPED, ENDED], **NAMES)
