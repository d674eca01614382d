"""A turn as a run of AG-UI: what exactly is said, and what the operator does at the ends of its source."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import reactivex as rx
from ag_ui.core import PROTOCOL_VERSION, BaseEvent
from reactivex import Observable
from reactivex import operators as ops

from rxloop import ui
from rxloop.errors import ConfigurationError, OverloadedError
from rxloop.events import (
    ReasoningDelta,
    StepFinished,
    StepStarted,
    TextDelta,
    ToolCallDelta,
    ToolCallReceived,
    ToolCallStarted,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    TurnStarted,
    UnknownEvent,
)
from rxloop.steps import Signature
from rxloop.testing import CallTool, Think
from rxloop.ui import AguiFrames, AguiMapping, to_agui
from rxloop.ui.entry import StreamEvent, TurnFailed
from rxloop.usage import Usage
from tests.ui.grammar import check_agui
from tests.ui.turns import TURN, Sum, events_of

NAMES: dict[str, Any] = {"thread_id": "thread", "run_id": "run"}
TEN = {
    "inputTokens": 10,
    "outputTokens": 5,
    "totalTokens": 15,
    "reasoningTokens": 0,
    "cachedInputTokens": 0,
    "cacheWriteInputTokens": 0,
}
SCRIPTED = {"provider": "scripted", "model": "scripted"}


def forms(items: list[BaseEvent]) -> list[dict[str, Any]]:
    return [json.loads(item.model_dump_json(by_alias=True)) for item in items]


def run(source: Observable[Any], **options: Any) -> list[dict[str, Any]]:
    """What the operator makes of a source that ends at once; it must complete."""
    made: list[BaseEvent] = []
    ended: list[str] = []
    source.pipe(to_agui(**{**NAMES, **options})).subscribe(
        made.append, lambda error: ended.append(repr(error)), lambda: ended.append("|")
    )
    assert ended == ["|"]
    found = forms(made)
    check_agui(found, **NAMES)
    return found


@pytest.mark.asyncio
async def test_a_turn_event_by_event() -> None:
    events = await events_of(
        [Think("hm", signature="s"), "I ", "look.", CallTool("search", {"query": "x"}, "a", signature="t")], "Found."
    )
    shown = run(rx.from_iterable(events))
    # how long the tool ran is not the same twice
    result = next(item for item in shown if item["type"] == "TOOL_CALL_RESULT")
    assert result["metadata"]["rxloop"].pop("seconds") >= 0
    text, call = f"{TURN}-0-text-1", f"{TURN}-0-a"
    thought = f"{TURN}-0-reasoning-0"
    last = f"{TURN}-1-text-0"
    ten = Usage(10, 5).to_dict()
    twenty = Usage(20, 10).to_dict()
    assert shown == [
        {
            "type": "RUN_STARTED",
            "threadId": "thread",
            "runId": "run",
            "protocolVersion": PROTOCOL_VERSION,
            "metadata": {"rxloop": {"turn_id": TURN, **SCRIPTED}},
        },
        {"type": "STEP_STARTED", "stepName": "step-0"},
        {"type": "REASONING_START", "messageId": thought},
        {"type": "REASONING_MESSAGE_START", "messageId": thought, "role": "reasoning"},
        {"type": "REASONING_MESSAGE_CONTENT", "messageId": thought, "delta": "hm"},
        {"type": "REASONING_MESSAGE_END", "messageId": thought},
        {"type": "REASONING_END", "messageId": thought},
        {"type": "TEXT_MESSAGE_START", "messageId": text, "role": "assistant"},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": text, "delta": "I "},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": text, "delta": "look."},
        {"type": "TEXT_MESSAGE_END", "messageId": text},
        {"type": "TOOL_CALL_START", "toolCallId": call, "toolCallName": "search", "parentMessageId": text},
        {"type": "TOOL_CALL_ARGS", "toolCallId": call, "delta": '{"query": "x"}'},
        {"type": "TOOL_CALL_END", "toolCallId": call},
        {
            "type": "REASONING_ENCRYPTED_VALUE",
            "subtype": "message",
            "entityId": thought,
            "encryptedValue": "s",
        },
        {"type": "REASONING_ENCRYPTED_VALUE", "subtype": "tool-call", "entityId": call, "encryptedValue": "t"},
        {"type": "CUSTOM", "name": "rxloop.usage_updated", "value": {"usage": ten}},
        {"type": "CUSTOM", "name": "rxloop.tool_started", "value": {"step": 0, "call_id": call, "name": "search"}},
        {
            "type": "CUSTOM",
            "name": "rxloop.tool_progress",
            "value": {"step": 0, "call_id": call, "name": "search", "data": {"percent": 50}},
        },
        {
            "type": "TOOL_CALL_RESULT",
            "messageId": f"{call}-result",
            "toolCallId": call,
            "content": '{"found":"x"}',
            "role": "tool",
            "metadata": {"rxloop": {"is_error": False, "permanently_failed": False}},
        },
        {"type": "STEP_FINISHED", "stepName": "step-0"},
        {"type": "STEP_STARTED", "stepName": "step-1"},
        {"type": "TEXT_MESSAGE_START", "messageId": last, "role": "assistant"},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": last, "delta": "Found."},
        {"type": "TEXT_MESSAGE_END", "messageId": last},
        {"type": "CUSTOM", "name": "rxloop.usage_updated", "value": {"usage": twenty}},
        {"type": "STEP_FINISHED", "stepName": "step-1"},
        {
            "type": "RUN_FINISHED",
            "threadId": "thread",
            "runId": "run",
            "outcome": {"type": "success"},
            "usage": [{**SCRIPTED, **{name: 2 * figure for name, figure in TEN.items()}}],
            "metadata": {"rxloop": {"finish_reason": "stop", "raw_stop_reason": "stop", "steps": 2}},
        },
    ]


@pytest.mark.asyncio
async def test_the_running_usage_can_be_left_out() -> None:
    events = await events_of("It is 5.")
    shown = run(rx.from_iterable(events), running_usage=False)
    assert "CUSTOM" not in [item["type"] for item in shown]
    assert shown[-1]["usage"] == [{**SCRIPTED, **TEN}]


def test_an_error_of_the_source_is_the_runs_and_completes() -> None:
    begun = rx.of(TurnStarted("turn", "p", "m"), StepStarted(0), TextDelta(0, "It"))
    shown = run(begun.pipe(ops.concat(rx.throw(OverloadedError("too many", status=529)))))
    assert [item["type"] for item in shown[-3:]] == ["TEXT_MESSAGE_END", "STEP_FINISHED", "RUN_ERROR"]
    assert shown[-1] == {
        "type": "RUN_ERROR",
        "message": "too many",
        "code": "overloaded",
        "usage": [{"provider": "p", "model": "m", **dict.fromkeys(TEN, 0)}],
        "metadata": {"rxloop": {"kind": "overloaded", "status": 529, "message": "too many", "retryable": True}},
    }


def test_the_words_of_an_error_that_is_not_rxloops_are_nobodys_to_see() -> None:
    [*_, last] = run(rx.throw(RuntimeError("password: 123")))
    assert "123" not in json.dumps(last)
    assert (last["message"], last["code"]) == ("RuntimeError", "internal")


@pytest.mark.parametrize("events", [[], [TurnStarted("turn", "p", "m"), StepStarted(0), ToolCallStarted(0, "a", "f")]])
def test_a_source_that_is_cut_ends_as_a_cancelled_run(events: list[StreamEvent]) -> None:
    [*_, last] = run(rx.from_iterable(events))
    assert last == {"type": "RUN_FINISHED", "threadId": "thread", "runId": "run", "outcome": {"type": "cancelled"}}


def test_a_failure_comes_as_data_too() -> None:
    failed = TurnFailed({"kind": "server", "message": "gone"}, Usage(10, 5), "It")
    [first, last] = run(rx.of(failed, TextDelta(0, "late")))
    assert first["type"] == "RUN_STARTED"
    assert (last["message"], last["usage"]) == ("gone", [TEN])


def test_nothing_but_the_end_is_left_of_a_turn() -> None:
    shown = run(rx.of(TurnFinished("It is 5.", None, "stop", None, Usage(10, 5), 2, ())), turn_id="turn")
    assert [item["type"] for item in shown[1:-1]] == [
        "STEP_STARTED",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "STEP_FINISHED",
    ]
    assert shown[3] == {"type": "TEXT_MESSAGE_CONTENT", "messageId": "turn-1-text-0", "delta": "It is 5."}


@pytest.mark.parametrize("reason", ["content-filter", "error"])
def test_a_structured_answer_of_a_refused_reply_was_not_accepted(reason: Any) -> None:
    shown = run(
        rx.of(
            TurnStarted("turn", "p", "m"),
            StepStarted(0),
            ToolCallStarted(0, "a", "final_result"),
            ToolCallReceived(0, "a", "final_result", '{"total": '),
            StepFinished(0, "", (), Usage(10, 5), None, reason),
            TurnFinished("", None, reason, None, Usage(10, 5), 1, ()),
        )
    )
    [result] = [item for item in shown if item["type"] == "TOOL_CALL_RESULT"]
    assert result["metadata"]["rxloop"]["is_error"]
    assert result["content"].startswith("not accepted")


@pytest.mark.asyncio
async def test_a_signature_is_of_the_reasoning_that_it_signs() -> None:
    events = await events_of(
        [
            Think("", signature="hidden"),
            "I look.",
            Think("one, ", signature="s1"),
            Think("two", signature="s2"),
            "So",
            Think("unsigned"),
            "then",
            Think("three", signature="s3"),
            "5.",
        ]
    )
    shown = run(rx.from_iterable(events))
    texts = {item["messageId"]: "" for item in shown if item["type"] == "REASONING_START"}
    for item in shown:
        if item["type"] == "REASONING_MESSAGE_CONTENT":
            texts[item["messageId"]] += item["delta"]
    signed = [(item["encryptedValue"], texts[item["entityId"]]) for item in shown if "encryptedValue" in item]
    # what is of the same message as the signature before it, or was not shown, has one of its own
    assert signed == [("hidden", ""), ("s1", "one, two"), ("s2", ""), ("s3", "three")]


def test_a_signature_of_reasoning_whose_beginning_was_not_seen_is_of_none_that_was() -> None:
    [*events] = (
        ReasoningDelta(0, "seen"),
        StepFinished(0, "", (), Usage(), None, "stop", (Signature("s", span=(0, 9)),)),
    )
    shown = run(rx.from_iterable(events))
    [signed] = [item["entityId"] for item in shown if "encryptedValue" in item]
    assert signed not in [item.get("messageId") for item in shown if item["type"] == "REASONING_MESSAGE_CONTENT"]


def test_a_note_names_a_call_as_the_client_does_also_where_it_was_not_seen_to_begin() -> None:
    noted: list[StreamEvent] = [ToolStarted(0, "a", "f"), ToolFinished(0, "a", "f", 5, None, False, 0.1)]
    shown = run(rx.from_iterable(noted), turn_id="turn")
    [note] = [item for item in shown if item["type"] == "CUSTOM"]
    [result] = [item for item in shown if item["type"] == "TOOL_CALL_RESULT"]
    assert note["value"]["call_id"] == result["toolCallId"] == "turn-0-a"


@pytest.mark.asyncio
@pytest.mark.parametrize(("total", "first"), [(5, "accepted"), ("many", "not accepted")])
async def test_of_several_structured_answers_the_first_is_read(total: Any, first: str) -> None:
    answers = [CallTool("final_result", {"total": total}, "a"), CallTool("final_result", {"total": 6}, "b")]
    events = await events_of(answers, [CallTool("final_result", {"total": 7}, "c")], output=Sum)
    shown = run(rx.from_iterable(events))
    contents = [item["content"].partition(":")[0] for item in shown if item["type"] == "TOOL_CALL_RESULT"]
    assert contents[:2] == [first, "not used"]


def test_every_subscription_has_a_state_of_its_own() -> None:
    source = rx.of(TurnStarted("turn", "p", "m"), StepStarted(0), TextDelta(0, "x"))
    assert run(source) == run(source)


def test_identifiers_are_the_turns_own_unless_given() -> None:
    events: list[Any] = [TurnStarted("own", "p", "m"), StepStarted(0), TextDelta(0, "x")]

    def message_of(mapping: AguiMapping) -> Any:
        made: list[Any] = [item for event in events for item in mapping.feed(event)]
        return made[2].message_id

    assert message_of(AguiMapping(**NAMES)) == "own-0-text-0"
    assert message_of(AguiMapping(**NAMES, turn_id="given")) == "given-0-text-0"
    [_, _, started, _] = AguiMapping(**NAMES).feed(TextDelta(0, "x"))
    assert started.message_id == "run-0-text-0"  # type: ignore[attr-defined]


def test_a_call_that_was_not_seen_to_begin_comes_whole_at_its_end() -> None:
    frames = AguiFrames(turn_id="turn", **NAMES)
    frames.feed(StepStarted(0))
    assert frames.feed(ToolCallDelta(0, "a", '": 1}')) == []


@pytest.mark.parametrize("make", [to_agui, AguiMapping, lambda **names: AguiFrames(turn_id="turn", **names)])
def test_without_the_protocols_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    monkeypatch.setitem(sys.modules, "ag_ui", None)
    with pytest.raises(ConfigurationError, match=r'pip install "rxloop\[ui\]"'):
        make(**NAMES)


@pytest.mark.parametrize("name", ["thread_id", "run_id", "turn_id"])
def test_a_name_that_is_no_string_is_refused_at_once(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} must be str.*, but got 5"):
        to_agui(**{**NAMES, name: 5})


def test_an_event_without_a_type_is_noted_all_the_same() -> None:
    [_, noted] = AguiMapping(**NAMES).feed(UnknownEvent({"sky": "grey"}))
    assert forms([noted]) == [{"type": "CUSTOM", "name": "rxloop.unknown", "value": {"sky": "grey"}}]


def test_the_package_gives_its_names_when_they_are_asked_for() -> None:
    assert [name for name in ui.__all__ if getattr(ui, name) is None] == []
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ui.nothing  # noqa: B018
