"""A turn as a UI message stream: what exactly is said, and what the operator does at the ends of its source."""

from __future__ import annotations

from typing import Any

import pytest
import reactivex as rx
from reactivex import Observable
from reactivex import operators as ops

from rxloop.errors import ConfigurationError, OverloadedError
from rxloop.events import StepStarted, TextDelta, ToolCallDelta, ToolCallStarted, TurnStarted
from rxloop.testing import CallTool, Think
from rxloop.ui import UIMessageFrames, to_ui_message_stream
from tests.ui.grammar import check_ui_messages
from tests.ui.turns import TURN, events_of

USAGE = {
    "inputTokens": 10,
    "outputTokens": 5,
    "totalTokens": 15,
    "reasoningTokens": 0,
    "cachedInputTokens": 0,
    "cacheWriteInputTokens": 0,
}


def parts_of(source: Observable[Any], **options: Any) -> list[dict[str, Any]]:
    """What the operator makes of a source that ends at once; it must complete."""
    made: list[dict[str, Any]] = []
    ended: list[str] = []
    source.pipe(to_ui_message_stream(**options)).subscribe(
        made.append, lambda error: ended.append(repr(error)), lambda: ended.append("|")
    )
    assert ended == ["|"]
    check_ui_messages(made)
    return made


@pytest.mark.asyncio
async def test_a_turn_part_by_part() -> None:
    events = await events_of(
        [Think("hm", signature="s"), "I look.", CallTool("search", {"query": "x"}, "a"), CallTool("add", "{", "b")]
    )
    # the script has no second step: what follows is not of interest here
    finished = next(place for place, event in enumerate(events) if event.type == "usage_updated")
    thought, text = f"{TURN}-0-reasoning-0", f"{TURN}-0-text-1"
    a, b = f"{TURN}-0-a", f"{TURN}-0-b"
    cancelled = "cancelled: the turn ended before the tool did"
    assert parts_of(rx.from_iterable(events[: finished + 1])) == [
        {"type": "start", "messageId": TURN, "messageMetadata": {"provider": "scripted", "model": "scripted"}},
        {"type": "start-step"},
        {"type": "reasoning-start", "id": thought},
        {"type": "reasoning-delta", "id": thought, "delta": "hm"},
        {"type": "reasoning-end", "id": thought},
        {"type": "text-start", "id": text},
        {"type": "text-delta", "id": text, "delta": "I look."},
        {"type": "text-end", "id": text},
        {"type": "tool-input-start", "toolCallId": a, "toolName": "search"},
        {"type": "tool-input-delta", "toolCallId": a, "inputTextDelta": '{"query": "x"}'},
        {"type": "tool-input-available", "toolCallId": a, "toolName": "search", "input": {"query": "x"}},
        {"type": "tool-input-start", "toolCallId": b, "toolName": "add"},
        {"type": "tool-input-delta", "toolCallId": b, "inputTextDelta": "{"},
        {
            "type": "tool-input-error",
            "toolCallId": b,
            "toolName": "add",
            "input": "{",
            "errorText": "the arguments are no JSON object",
        },
        {"type": "data-rxloop.reasoning_signature", "data": {"id": thought, "value": "s", "redacted": False}},
        {"type": "message-metadata", "messageMetadata": {"usage": USAGE}},
        {"type": "tool-output-error", "toolCallId": a, "errorText": cancelled},
        {"type": "tool-output-error", "toolCallId": b, "errorText": cancelled},
        {"type": "finish-step"},
        {"type": "abort"},
    ]


@pytest.mark.asyncio
async def test_the_end_has_the_usage() -> None:
    events = await events_of("It is 5.")
    [*others, last] = parts_of(rx.from_iterable(events), running_usage=False)
    assert "message-metadata" not in [part["type"] for part in others]
    assert last == {
        "type": "finish",
        "finishReason": "stop",
        "messageMetadata": {"usage": USAGE, "finishReason": "stop", "steps": 1},
    }


def test_an_error_of_the_source_is_the_last_part() -> None:
    begun = rx.of(TurnStarted("turn", "p", "m"), StepStarted(0), TextDelta(0, "It"))
    [*_, ended, stepped, about, last] = parts_of(begun.pipe(ops.concat(rx.throw(OverloadedError("too many")))))
    assert (ended["type"], stepped["type"]) == ("text-end", "finish-step")
    assert about["messageMetadata"]["error"]["kind"] == "overloaded"
    assert last == {"type": "error", "errorText": "too many"}


def test_a_call_that_was_broken_off_keeps_what_came() -> None:
    begun: list[Any] = [TurnStarted("turn", "p", "m"), StepStarted(0), ToolCallStarted(0, "a", "add")]
    frames = UIMessageFrames(turn_id="turn")
    for event in (*begun, ToolCallDelta(0, "a", '{"x'), ToolCallDelta(0, "a", '": "\ud800')):
        assert all(frame.encode() for frame in frames.feed(event))
    parts = parts_of(rx.of(*begun, ToolCallDelta(0, "a", '{"x'), ToolCallDelta(0, "a", '": 1')))
    [fault] = [part for part in parts if part["type"] == "tool-input-error"]
    assert (fault["input"], fault["errorText"]) == ('{"x": 1', "the call was broken off")


def test_a_message_id_that_is_no_string_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="must be str or None, but got 5"):
        to_ui_message_stream(message_id=5)  # type: ignore[arg-type]


def test_the_response_has_its_header_and_its_last_line() -> None:
    frames = UIMessageFrames(turn_id="turn", thread_id="thread", run_id="run")
    assert frames.headers == {"x-vercel-ai-ui-message-stream": "v1"}
    assert frames.done == "[DONE]"
