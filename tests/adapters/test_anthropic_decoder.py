"""The decoder of the Messages API, without any I/O: what a reply becomes, and what of it is sent again."""

from __future__ import annotations

import contextlib
import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rxloop.adapters.anthropic import AnthropicAdapter, check_pairs
from rxloop.adapters.anthropic_decoder import FINISH_REASONS, AnthropicBytesDecoder, AnthropicDecoder, usage_from
from rxloop.errors import (
    AuthenticationError,
    ContextOverflowError,
    InvalidRequestError,
    MalformedResponseError,
    ModelNotFoundError,
    OverloadedError,
    PermissionDeniedError,
    ProviderError,
    RateLimitedError,
    ServerError,
    StreamInterruptedError,
)
from rxloop.events import ReasoningDelta, TextDelta, ToolCallDelta, ToolCallReceived, ToolCallStarted
from rxloop.steps import StepResult, ToolCall, ToolResult
from rxloop.usage import Usage
from tests.adapters.spoiling import spoil
from tests.providers.anthropic import (
    Block,
    message,
    raw_block,
    redacted,
    server_tool,
    text,
    thinking,
    tool_use,
)
from tests.providers.http import split_at, split_every

_SIGNATURE = "EqQBCkYIBxgCKkBz+/=\u2028ü"
_SEARCH_RESULT = [
    {
        "type": "web_search_result",
        "url": "https://example.org",
        "title": "t",
        "encrypted_content": "Eq+/=",
        "page": None,
    }
]


def wire(*blocks: Block | tuple[Block, ...], **options: Any) -> list[dict[str, Any]]:
    """The events of a reply as the API sends them, parsed."""
    return [json.loads(chunk.partition(b"data: ")[2]) for chunk in message(*blocks, **options)]


def decode(events: list[dict[str, Any]], **options: Any) -> tuple[list[Any], StepResult]:
    decoder = AnthropicDecoder(**options)
    decoded = [item for event in events for item in decoder.feed(event)]
    (result,) = decoder.close()
    return decoded, result


def result_of(*blocks: Block | tuple[Block, ...], **options: Any) -> StepResult:
    return decode(wire(*blocks, **options))[1]


def content_of(*blocks: Block | tuple[Block, ...], **options: Any) -> list[dict[str, Any]]:
    sent = result_of(*blocks, **options).message
    assert sent is not None
    assert sent["role"] == "assistant"
    return list(sent["content"])


# what arrives


def test_text_arrives_piece_by_piece() -> None:
    events, result = decode(wire(text("It is 5.", pieces=4)), step=3)
    assert events == [TextDelta(3, "It"), TextDelta(3, " i"), TextDelta(3, "s "), TextDelta(3, "5.")]
    assert result == StepResult(
        text="It is 5.",
        tool_calls=(),
        usage=Usage(10, 5),
        finish_reason="stop",
        raw_stop_reason="end_turn",
        raw_usage={"input_tokens": 10, "output_tokens": 5},
        message={"role": "assistant", "content": [{"type": "text", "text": "It is 5."}]},
    )


def test_a_call_arrives_in_pieces_and_is_parsed_once() -> None:
    events, result = decode(wire(tool_use("add", '{"a": 2, "b": 3}', id="toolu_1", pieces=2)))
    assert events == [
        ToolCallStarted(0, "toolu_1", "add"),
        ToolCallDelta(0, "toolu_1", '{"a": 2,'),
        ToolCallDelta(0, "toolu_1", ' "b": 3}'),
        ToolCallReceived(0, "toolu_1", "add", {"a": 2, "b": 3}),
    ]
    assert result.tool_calls == (ToolCall("toolu_1", "add", {"a": 2, "b": 3}),)
    assert (result.finish_reason, result.raw_stop_reason) == ("tool-calls", "tool_use")


def test_a_call_cut_at_every_character_is_the_same_call() -> None:
    arguments = '{"text": "ü\\n\\u00e9 \\"x\\"", "n": [1, 2.5, null, true], "o": {}}'
    whole = json.loads(arguments)
    events, result = decode(wire(tool_use("f", arguments, pieces=len(arguments))))
    assert "".join(event.arguments for event in events if isinstance(event, ToolCallDelta)) == arguments
    assert result.tool_calls[0].arguments == whole
    assert result.message is not None
    assert result.message["content"][0]["input"] == whole


def test_names_become_the_callers() -> None:
    events, result = decode(wire(tool_use("my_tool_1234", {})), name={"my_tool_1234": "my/tool"}.__getitem__)
    assert [event.name for event in events if not isinstance(event, ToolCallDelta)] == ["my/tool", "my/tool"]
    assert result.tool_calls[0].name == "my/tool"
    assert result.message is not None
    assert result.message["content"][0]["name"] == "my_tool_1234", "what is resent keeps the provider's name"


def test_text_in_the_start_of_a_block_is_not_lost() -> None:
    start = raw_block({"type": "text", "text": "It "}, {"type": "text_delta", "text": "is 5."})
    thought = raw_block(
        {"type": "thinking", "thinking": "Hm", "signature": ""},
        {"type": "thinking_delta", "thinking": "m."},
        {"type": "signature_delta", "signature": "s"},
    )
    events, result = decode(wire(thought, start))
    assert events == [ReasoningDelta(0, "Hm"), ReasoningDelta(0, "m."), TextDelta(0, "It "), TextDelta(0, "is 5.")]
    assert result.text == "It is 5."
    assert result.message is not None
    assert [block.get("thinking", block.get("text")) for block in result.message["content"]] == ["Hmm.", "It is 5."]


def test_empty_deltas_make_no_events() -> None:
    blocks = (
        raw_block(
            {"type": "text", "text": ""}, {"type": "text_delta", "text": ""}, {"type": "text_delta", "text": "a"}
        ),
        raw_block(
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": ""},
            {"type": "signature_delta", "signature": "s"},
        ),
        raw_block({"type": "tool_use", "id": "1", "name": "f", "input": {}}, *_fragments("", '{"a"', "", ": 1}", "")),
    )
    events, result = decode(wire(*blocks))
    assert events == [
        TextDelta(0, "a"),
        ToolCallStarted(0, "1", "f"),
        ToolCallDelta(0, "1", '{"a"'),
        ToolCallDelta(0, "1", ": 1}"),
        ToolCallReceived(0, "1", "f", {"a": 1}),
    ]
    assert result.tool_calls[0].arguments == {"a": 1}


# what is sent again


def test_a_signature_round_trips_byte_for_byte() -> None:
    assert content_of(thinking("Let me see.", signature=_SIGNATURE), text("5")) == [
        {"type": "thinking", "thinking": "Let me see.", "signature": _SIGNATURE},
        {"type": "text", "text": "5"},
    ]


def test_a_signature_may_come_in_pieces_and_without_any_thinking() -> None:
    block = raw_block(
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "signature_delta", "signature": _SIGNATURE[:5]},
        {"type": "signature_delta", "signature": _SIGNATURE[5:]},
    )
    assert content_of(block, text("5"))[0] == {"type": "thinking", "thinking": "", "signature": _SIGNATURE}


def test_redacted_thinking_stays_in_its_place_and_the_order_is_kept() -> None:
    search = server_tool("web_search", {"query": "x"}, result=_SEARCH_RESULT)
    blocks = (
        thinking("one", signature="s1"),
        redacted("opaque+/="),
        thinking("two", signature="s2"),
        text("a"),
        search,
        tool_use("f", {"x": 1}, id="1"),
        thinking("three", signature="s3"),
        text("b"),
        tool_use("g", {}, id="2"),
    )
    content = content_of(*blocks)
    assert [block["type"] for block in content] == [
        "thinking",
        "redacted_thinking",
        "thinking",
        "text",
        "server_tool_use",
        "web_search_tool_result",
        "tool_use",
        "thinking",
        "text",
        "tool_use",
    ]
    assert content[1] == {"type": "redacted_thinking", "data": "opaque+/="}
    assert [block["signature"] for block in content if block["type"] == "thinking"] == ["s1", "s2", "s3"]
    assert result_of(*blocks).text == "ab"


def test_what_the_provider_ran_itself_is_resent_untouched_and_not_run() -> None:
    call, answer = server_tool("web_search", {"query": "x"}, id="srvtoolu_1", result=_SEARCH_RESULT)
    events, result = decode(wire(text("I search."), (call, answer), text("Found.")))
    assert {type(event) for event in events} == {TextDelta}
    assert result.tool_calls == ()
    assert result.finish_reason == "stop"
    assert result.message is not None
    assert result.message["content"][1:3] == [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": _SEARCH_RESULT},
    ]


def test_citations_are_collected_in_their_block() -> None:
    first, second = ({"type": "char_location", "cited_text": name, "document_index": 0} for name in "ab")
    block = raw_block(
        {"type": "text", "text": "", "citations": []},
        {"type": "citations_delta", "citation": first},
        {"type": "text_delta", "text": "It is "},
        {"type": "citations_delta", "citation": second},
        {"type": "text_delta", "text": "5."},
    )
    assert content_of(block) == [{"type": "text", "text": "It is 5.", "citations": [first, second]}]
    block = raw_block({"type": "text", "text": "5", "citations": None}, {"type": "citations_delta", "citation": first})
    assert content_of(block)[0]["citations"] == [first]


def test_an_empty_text_block_is_dropped() -> None:
    empty = raw_block({"type": "text", "text": ""})
    assert content_of(empty, tool_use("f", {}, id="1")) == [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]
    assert result_of(empty).message is None, "a message without content cannot be sent"


def test_text_that_is_blank_is_an_event_but_is_not_resent() -> None:
    events, result = decode(wire(thinking("hm", signature="s"), text("\n\n", pieces=1), tool_use("f", {}, id="1")))
    assert TextDelta(0, "\n\n") in events
    assert result.text == "\n\n"
    assert result.message is not None
    assert [block["type"] for block in result.message["content"]] == ["thinking", "tool_use"]
    assert content_of(text("\n\n5\n"))[0]["text"] == "\n\n5\n", "white space around text is the model's own"


def test_thinking_that_nothing_follows_is_not_resent() -> None:
    """As the token limit leaves it; the API refuses it at the end of a message."""
    unsigned = raw_block({"type": "thinking", "thinking": ""}, {"type": "thinking_delta", "thinking": "hm"})
    assert result_of(unsigned, stop_reason="max_tokens").message is None
    assert result_of(thinking("hm", signature="s"), redacted("x"), stop_reason="max_tokens").message is None
    assert [block["type"] for block in content_of(text("a"), thinking("hm"), stop_reason="max_tokens")] == ["text"]


def test_an_empty_reply_is_an_answer() -> None:
    events, result = decode(wire())
    assert events == []
    assert (result.text, result.finish_reason, result.message) == ("", "stop", None)


def test_unknown_blocks_are_kept_whole() -> None:
    start = {"type": "hologram", "text": "x", "level": 1, "marks": ["a"]}
    deltas = (
        {"type": "hologram_delta", "text": "y"},
        {"type": "hologram_delta", "level": 2, "marks": ["b"], "depth": {"z": 1}},
    )
    events, result = decode(wire(raw_block(start, *deltas), text("5")))
    assert events == [TextDelta(0, "5")]
    assert result.text == "5", "only text is text"
    assert result.message is not None
    assert result.message["content"][0] == {
        "type": "hologram",
        "text": "xy",
        "level": 2,
        "marks": ["a", "b"],
        "depth": {"z": 1},
    }


def test_a_compaction_block_is_resent_whole() -> None:
    block = raw_block(
        {"type": "compaction", "content": None}, {"type": "compaction_delta", "content": "summary of it all"}
    )
    assert content_of(block, text("5"))[0] == {"type": "compaction", "content": "summary of it all"}


def test_an_unknown_delta_of_a_known_block_is_kept() -> None:
    block = raw_block({"type": "text", "text": ""}, {"type": "text_delta", "text": "5"}, {"type": "shade", "hue": 3})
    assert content_of(block) == [{"type": "text", "text": "5", "hue": 3}]


def test_input_of_a_server_tool_is_parsed_too() -> None:
    call, answer = server_tool("code_execution", {"code": "1"}, result_type="code_execution_tool_result", result={})
    bare = raw_block({"type": "server_tool_use", "id": "s", "name": "f", "input": {}})
    content = content_of((call, answer), bare, raw_block({"type": "x_tool_result", "tool_use_id": "s", "content": []}))
    assert content[0]["input"] == {"code": "1"}
    assert content[2]["input"] == {}


# arguments


@pytest.mark.parametrize("fragments", [(), ("",), ("", "")], ids=["no delta", "an empty one", "two empty ones"])
def test_no_arguments_are_an_empty_object(fragments: tuple[str, ...]) -> None:
    block = raw_block({"type": "tool_use", "id": "1", "name": "f", "input": {}}, *_fragments(*fragments))
    events, result = decode(wire(block))
    assert events == [ToolCallStarted(0, "1", "f"), ToolCallReceived(0, "1", "f", {})]
    assert result.tool_calls == (ToolCall("1", "f", {}),)
    assert result.message is not None
    assert result.message["content"] == [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]


def test_a_call_without_any_input_field_is_resent_with_one() -> None:
    block = raw_block({"type": "tool_use", "id": "1", "name": "f"})
    assert result_of(block).tool_calls[0].arguments == {}
    assert content_of(block)[0]["input"] == {}


def test_a_call_that_is_complete_in_its_start() -> None:
    events, result = decode(wire(tool_use("f", {"a": 1}, id="1", complete_at_start=True)))
    assert events == [ToolCallStarted(0, "1", "f"), ToolCallReceived(0, "1", "f", {"a": 1})]
    assert result.tool_calls[0].arguments == {"a": 1}
    assert result.message is not None
    assert result.message["content"][0]["input"] == {"a": 1}


def test_a_call_that_is_complete_in_the_message_start() -> None:
    caller = {"type": "code_execution_20260120", "tool_id": "srvtoolu_1"}
    block = {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}, "caller": caller}
    events = wire(stop_reason="tool_use")
    events[0]["message"]["content"] = [{"type": "text", "text": "hm"}, block]
    decoded, result = decode(events)
    assert decoded == [TextDelta(0, "hm"), ToolCallStarted(0, "1", "f"), ToolCallReceived(0, "1", "f", {"a": 1})]
    assert result.tool_calls == (ToolCall("1", "f", {"a": 1}),)
    assert result.message is not None
    assert result.message["content"][1] == block


@pytest.mark.parametrize("raw", ['{"a": 1', "[1, 2]", '"text"', "5", "null", "{'a': 1}", '{"a": 1}}', "{}{}"])
def test_arguments_that_are_no_object_stay_raw(raw: str) -> None:
    events, result = decode(wire(tool_use("f", raw, id="1")))
    assert events[-1] == ToolCallReceived(0, "1", "f", raw)
    assert result.tool_calls == (ToolCall("1", "f", raw),)
    assert not result.tool_calls[0].truncated
    assert result.message is not None
    assert result.message["content"][0]["input"] == {"INVALID_JSON": raw}, "the API takes nothing but an object back"


@pytest.mark.parametrize("stop_reason", ["max_tokens", "model_context_window_exceeded"])
@pytest.mark.parametrize("raw", [None, "", '{"a"', '{"a": 1, "b": "x'])
def test_a_call_that_the_token_limit_cut_off(raw: str | None, stop_reason: str) -> None:
    whole = tool_use("f", {"a": 1}, id="0")
    events, result = decode(wire(whole, tool_use("f", raw, id="1"), stop_reason=stop_reason))
    assert result.tool_calls == (ToolCall("0", "f", {"a": 1}), ToolCall("1", "f", raw or "", truncated=True))
    assert events[-1] == ToolCallReceived(0, "1", "f", raw or "")
    assert result.finish_reason == "length"
    assert result.message is not None
    assert result.message["content"][1]["input"] == ({"INVALID_JSON": raw} if raw else {})


def test_a_call_that_is_complete_at_the_token_limit_is_whole() -> None:
    given_at_start = tool_use("f", {"a": 1}, id="1", complete_at_start=True)
    for block in (tool_use("f", {"a": 1}, id="1"), given_at_start):
        result = result_of(block, stop_reason="max_tokens")
        assert result.tool_calls == (ToolCall("1", "f", {"a": 1}),)
        assert not result.tool_calls[0].truncated
    result = result_of(tool_use("f", None, id="1"), text("and then"), stop_reason="max_tokens")
    assert not result.tool_calls[0].truncated, "what follows it was cut off, not the call"


def test_a_block_whose_end_never_came_ends_with_the_message() -> None:
    events = [event for event in wire(tool_use("f", {"a": 1}, id="1")) if event["type"] != "content_block_stop"]
    decoded, result = decode(events)
    assert decoded[-1] == ToolCallReceived(0, "1", "f", {"a": 1})
    assert result.tool_calls == (ToolCall("1", "f", {"a": 1}),)


# usage


def test_usage_is_converted_and_the_own_figures_are_kept() -> None:
    figures = {
        "input_tokens": 10,
        "cache_read_input_tokens": 300,
        "cache_creation_input_tokens": 20,
        "cache_creation": {"ephemeral_5m_input_tokens": 20},
        "output_tokens": 50,
        "output_tokens_details": {"thinking_tokens": 30},
        "service_tier": "standard",
    }
    result = result_of(text("5"), usage=figures)
    assert result.usage == Usage(330, 50, cache_read_tokens=300, cache_write_tokens=20, reasoning_tokens=30)
    assert result.raw_usage == figures


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ({"input_tokens": 10, "output_tokens": 1}, {"output_tokens": 7}, Usage(10, 7)),
        ({"input_tokens": 10, "output_tokens": 1}, {"input_tokens": 900, "output_tokens": 7}, Usage(900, 7)),
        (
            {"input_tokens": 10, "cache_creation_input_tokens": 5, "cache_read_input_tokens": 6, "output_tokens": 1},
            {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 7},
            Usage(10, 7),
        ),
        (
            {"input_tokens": 10, "cache_read_input_tokens": 6, "output_tokens": 1},
            {"input_tokens": None, "cache_read_input_tokens": None, "output_tokens": 7},
            Usage(16, 7, cache_read_tokens=6),
        ),
        ({"input_tokens": 10, "output_tokens": 1}, {}, Usage(10, 1)),
        ({"input_tokens": 10, "output_tokens": 1}, None, Usage(10, 1)),
        (None, {"input_tokens": 3, "output_tokens": 4}, Usage(3, 4)),
        ({}, {"output_tokens_details": None, "output_tokens": 4}, Usage(0, 4)),
    ],
    ids=[
        "output",
        "input grows",
        "caches fall to 0",
        "null is absent",
        "empty",
        "none at the end",
        "late",
        "no details",
    ],
)
def test_usage_is_merged_figure_by_figure(start: Any, end: Any, expected: Usage) -> None:
    events = wire(text("5"))
    events[0]["message"]["usage"] = start
    events[-2]["usage"] = end
    assert decode(events)[1].usage == expected


def test_the_last_of_several_message_deltas_wins() -> None:
    events = wire(text("5"))
    earlier = {"type": "message_delta", "delta": {"stop_reason": None}, "usage": {"output_tokens": 3}}
    events.insert(-2, earlier)
    result = decode(events)[1]
    assert (result.usage, result.raw_stop_reason) == (Usage(10, 5), "end_turn")


def test_usage_of_nothing() -> None:
    assert usage_from({}) == Usage()


# stop reasons


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("tool_use", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content-filter"),
        ("pause_turn", "other"),
        ("compaction", "other"),
        ("a_reason_of_the_future", "other"),
    ],
)
def test_stop_reasons(raw: str, expected: str) -> None:
    result = result_of(text("5"), stop_reason=raw)
    assert (result.finish_reason, result.raw_stop_reason) == (expected, raw)
    assert result.tool_calls == ()


@pytest.mark.parametrize("raw", ["end_turn", "stop_sequence", "tool_use", "pause_turn", "a_reason_of_the_future"])
def test_calls_are_calls_whatever_the_stop_reason(raw: str) -> None:
    result = result_of(tool_use("f", {}, id="1"), stop_reason=raw)
    assert (result.finish_reason, result.resume) == ("tool-calls", False)
    assert result.tool_calls == (ToolCall("1", "f", {}),)


def test_no_stop_reason_at_all() -> None:
    events = wire(text("5"))
    events[-2]["delta"] = {}
    result = decode(events)[1]
    assert (result.finish_reason, result.raw_stop_reason) == ("other", None)


def test_every_known_stop_reason_is_in_the_table() -> None:
    from typing import get_args

    from anthropic.types import StopReason

    unmapped = set(get_args(StopReason)) - set(FINISH_REASONS) - {"pause_turn", "compaction"}
    assert unmapped == set()


def test_a_refusal_is_not_sent_again() -> None:
    result = result_of(text("I can"), tool_use("f", {}, id="1"), stop_reason="refusal")
    assert result.finish_reason == "content-filter"
    assert result.message is None
    assert result.text == "I can"
    assert not result.resume


def test_a_pause_is_resumed_with_the_message_as_it_is() -> None:
    call, _ = server_tool("web_search", {"query": "x"}, id="srvtoolu_1")
    result = result_of(thinking("hm", signature=_SIGNATURE), text("I look."), call, stop_reason="pause_turn")
    assert result.resume
    assert result.finish_reason == "other"
    assert result.message == {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": _SIGNATURE},
            {"type": "text", "text": "I look."},
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
        ],
    }


@pytest.mark.parametrize("place", ["message_start", "message_delta"])
def test_a_container_is_carried(place: str) -> None:
    events = wire(tool_use("f", {}))
    container = {"id": "container_1", "expires_at": "2026-01-01T00:00:00Z"}
    if place == "message_start":
        events[0]["message"]["container"] = container
    else:
        events[-2]["delta"]["container"] = container
    assert decode(events)[1].carry == {"container": "container_1"}
    events[0]["message"]["container"] = events[-2]["delta"]["container"] = None
    assert decode(events)[1].carry == {}


# what is skipped


def test_pings_and_unknown_events_are_skipped_anywhere() -> None:
    events = wire(thinking("hm"), text("5"), tool_use("f", {"a": 1}, id="1"))
    expected = decode(events)
    for odd in ({"type": "ping"}, {"type": "future", "index": 0, "delta": {}}, {"no": "type"}, {"type": None}):
        assert decode([part for event in events for part in (odd, event)]) == expected


def test_a_delta_without_its_block_is_skipped() -> None:
    events = wire(text("5"))
    lost: list[dict[str, Any]] = [
        {"type": "content_block_delta", "index": 9, "delta": {"type": "text_delta", "text": "lost"}},
        {"type": "content_block_stop", "index": 9},
    ]
    assert decode([*events[:1], *lost, *events[1:]]) == decode(events)


def test_interleaved_blocks_keep_apart() -> None:
    one, two = tool_use("f", '{"a": 1}', id="1"), tool_use("g", '{"b": 2}', id="2")
    events = wire(one, two)
    head, body, end = events[:2], events[2:-2], events[-2:]
    first = [event for event in body if event["index"] == 0]
    second = [event for event in body if event["index"] == 1]
    mixed = [event for pair in zip(first, second, strict=True) for event in pair]
    decoded, result = decode([*head, *mixed, *end])
    assert result.tool_calls == (ToolCall("1", "f", {"a": 1}), ToolCall("2", "g", {"b": 2}))
    assert result.message is not None
    assert [block["input"] for block in result.message["content"]] == [{"a": 1}, {"b": 2}]
    assert [event.call_id for event in decoded if isinstance(event, ToolCallReceived)] == ["1", "2"]


def test_a_block_that_ends_twice_is_one_call() -> None:
    events = wire(tool_use("f", {}, id="1"))
    again = [event for event in events for _ in range(1 + (event["type"] == "content_block_stop"))]
    decoded, result = decode(again)
    assert [type(event) for event in decoded].count(ToolCallReceived) == 1
    assert len(result.tool_calls) == 1


def test_nothing_that_was_fed_is_changed() -> None:
    events = wire(
        thinking("hm"),
        raw_block({"type": "text", "text": "a", "citations": []}, {"type": "citations_delta", "citation": {"x": 1}}),
        raw_block({"type": "odd", "list": [1]}, {"type": "odd_delta", "list": [2]}),
        tool_use("f", {"a": 1}),
    )
    before = copy.deepcopy(events)
    decode(events)
    assert events == before


# errors


@pytest.mark.parametrize(
    ("kind", "expected", "retryable"),
    [
        ("overloaded_error", OverloadedError, True),
        ("rate_limit_error", RateLimitedError, True),
        ("api_error", ServerError, True),
        ("timeout_error", ServerError, True),
        ("a_future_error", ServerError, True),
        ("authentication_error", AuthenticationError, False),
        ("permission_error", PermissionDeniedError, False),
        ("billing_error", PermissionDeniedError, False),
        ("not_found_error", ModelNotFoundError, False),
        ("request_too_large", ContextOverflowError, False),
        ("invalid_request_error", InvalidRequestError, False),
    ],
)
def test_an_error_event_is_classified_by_its_type(kind: str, expected: type[ProviderError], retryable: bool) -> None:
    decoder = AnthropicDecoder()
    with pytest.raises(expected, match="went wrong") as caught:
        list(decoder.feed({"type": "error", "error": {"type": kind, "message": "it went wrong"}}))
    assert type(caught.value) is expected
    assert caught.value.retryable is retryable
    assert (caught.value.provider, caught.value.status) == ("anthropic", None)


@pytest.mark.parametrize("error", [None, {}, "text", {"type": None}, {"message": ""}, []])
def test_an_error_event_without_its_details_is_an_error(error: Any) -> None:
    with pytest.raises(ServerError) as caught:
        list(AnthropicDecoder().feed({"type": "error", "error": error}))
    assert str(caught.value)


def test_a_context_overflow_inside_the_stream() -> None:
    message = "prompt is too long: 210000 tokens > 200000 maximum"
    with pytest.raises(ContextOverflowError):
        list(AnthropicDecoder().feed({"type": "error", "error": {"type": "invalid_request_error", "message": message}}))


def test_a_reply_that_was_cut_off_is_not_whole() -> None:
    events = wire(thinking("hm"), text("It is 5."), tool_use("f", {"a": 1}))
    for cut in range(len(events)):
        decoder = AnthropicDecoder()
        for event in events[:cut]:
            list(decoder.feed(event))
        assert not decoder.complete
        with pytest.raises(StreamInterruptedError, match="message_stop"):
            decoder.close()


# the draft

_DRAFTED: list[list[dict[str, Any]]] = [
    wire(
        redacted("opaque"),
        thinking("one", signature="s1"),
        text("a"),
        server_tool("web_search", {"query": "x"}, id="srv_1", result=_SEARCH_RESULT),
        thinking("two", signature="s2"),
        raw_block({"type": "text", "text": ""}),
        tool_use("f", {"x": 1}, id="1"),
        raw_block({"type": "odd", "list": [1]}, {"type": "odd_delta", "list": [2]}),
        tool_use("g", '{"broken', id="2"),
        thinking("three", signature="s3"),
        tool_use("h", None, id="3"),
        redacted("more"),
    ),
    wire(thinking("unsigned", signature=""), text("\n\na"), thinking("unsigned too", signature="")),
    wire(thinking("signed"), raw_block({"type": "text", "text": ""}), thinking("unsigned", signature="")),
    wire(text("so", pieces=2), *server_tool("mcp", {}, id="srv_1")[:1], stop_reason="pause_turn"),
    wire(raw_block({"type": "mcp_tool_use", "id": "m_1", "name": "x", "input": {}}), text("a")),
    wire(text("I can", pieces=2), tool_use("f", {}, id="1"), stop_reason="refusal"),
    wire(text("a"), tool_use("f", '{"x"', id="1"), stop_reason="max_tokens"),
    wire(),
]


@pytest.mark.parametrize("events", _DRAFTED, ids=range(len(_DRAFTED)))
def test_the_draft_can_be_sent_again_at_every_event(events: list[dict[str, Any]]) -> None:
    adapter = _adapter()
    decoder = AnthropicDecoder()
    texts = [""]
    for event in [{"type": "nothing yet"}, *events]:
        list(decoder.feed(event))
        draft = decoder.draft()
        assert draft.text.startswith(texts[-1]), "text is never taken back"
        texts.append(draft.text)
        results = [ToolResult(call.call_id, call.name, error="cancelled") for call in draft.tool_calls]
        conversation = adapter.append([{"role": "user", "content": "go"}], draft, results)
        check_pairs(conversation)
        for item in conversation[1:]:
            assert item["content"], "a message must not be empty"
        if draft.message is None:
            continue
        content = draft.message["content"]
        assert json.loads(json.dumps(content)) == content
        kinds = [block["type"] for block in content]
        answered = {block.get("tool_use_id") for block in content}
        for block in content:
            assert block["type"] != "text" or block["text"].strip(), "text must not be blank"
            if not decoder.complete:
                assert block["type"] != "thinking" or block["signature"], "thinking must be signed"
                assert not block["type"].endswith("_tool_use") or block["id"] in answered
            assert block["type"] != "tool_use" or isinstance(block["input"], dict)
        assert kinds[-1] not in ("thinking", "redacted_thinking"), "thinking must not end a message"
        assert decoder.complete or draft.finish_reason == "aborted"
        assert [block["id"] for block in content if block["type"] == "tool_use"] == [
            call.call_id for call in draft.tool_calls
        ]


def test_asking_for_the_draft_changes_nothing() -> None:
    for events in _DRAFTED:
        expected = decode(events)
        decoder = AnthropicDecoder()
        decoded = []
        for event in events:
            decoded += decoder.feed(event)
            decoder.draft()
        assert (decoded, *decoder.close()) == expected


def test_an_earlier_draft_stays_as_it_was() -> None:
    events = wire(text("It is 5.", pieces=4))
    decoder = AnthropicDecoder()
    for event in events[:4]:
        list(decoder.feed(event))
    early = decoder.draft()
    before = copy.deepcopy(early)
    for event in events[4:]:
        list(decoder.feed(event))
    decoder.draft()
    assert early == before


def test_the_draft_has_the_usage_so_far() -> None:
    decoder = AnthropicDecoder()
    list(decoder.feed(wire(text("a"))[0]))
    assert decoder.draft().usage == Usage(10, 1)


def test_a_call_made_by_code_keeps_its_caller_in_the_draft() -> None:
    code = raw_block({"type": "server_tool_use", "id": "srv_1", "name": "code_execution", "input": {"code": "f()"}})
    caller = {"type": "code_execution_20260120", "tool_id": "srv_1"}
    call = raw_block({"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}, "caller": caller})
    decoder = AnthropicDecoder()
    for event in wire(code, call)[:-2]:
        list(decoder.feed(event))
    message = decoder.draft().message
    assert message is not None
    assert [block["id"] for block in message["content"]] == ["srv_1", "1"]


# bytes


def _bytes_decoder() -> tuple[AnthropicDecoder, AnthropicBytesDecoder]:
    decoder = AnthropicDecoder()
    return decoder, AnthropicBytesDecoder(decoder)


def _decode_bytes(chunks: list[bytes]) -> list[Any]:
    _, decoder = _bytes_decoder()
    decoded = [item for chunk in chunks for item in decoder.feed(chunk)]
    return [*decoded, *decoder.close()]


_BODY = b"".join(
    message(thinking("hm", signature=_SIGNATURE), text("Er ist 5 €. 😀"), tool_use("f", {"ü": "\u2028"}, id="1"))
)
_WHOLE = _decode_bytes([_BODY])


def test_cut_at_every_byte() -> None:
    assert isinstance(_WHOLE[-1], StepResult)
    assert _decode_bytes(split_every(_BODY, 1)) == _WHOLE
    for cut in range(len(_BODY) + 1):
        assert _decode_bytes(split_at(_BODY, cut)) == _WHOLE, f"cut at {cut}"


@given(cuts=st.lists(st.integers(0, len(_BODY))).map(sorted))
def test_any_split_makes_the_same_events(cuts: list[int]) -> None:
    assert _decode_bytes(split_at(_BODY, *cuts)) == _WHOLE


def test_bytes_are_decoded_as_they_are_asked_for() -> None:
    """An error in the middle of a piece takes nothing of what came before it."""
    _, decoder = _bytes_decoder()
    body = b"".join(message(text("ab", pieces=2))[:5])
    error = b'data: {"type":"error","error":{"type":"overloaded_error","message":"x"}}\n\n'
    arriving = iter(decoder.feed(body + error))
    assert [next(arriving), next(arriving)] == [TextDelta(0, "a"), TextDelta(0, "b")]
    with pytest.raises(OverloadedError):
        next(arriving)


@pytest.mark.parametrize("chunks", [1, 2], ids=["in one piece", "in two pieces"])
@pytest.mark.parametrize("after", [b"data: [DONE]\n\n", b"data: <html>\n\n", b"data: [DONE]", b"garbage"])
def test_what_follows_the_end_of_a_reply_is_of_no_interest(after: bytes, chunks: int) -> None:
    pieces = [_BODY, after] if chunks == 2 else [_BODY + after]
    assert _decode_bytes(pieces) == _WHOLE


def test_an_event_without_data_is_skipped() -> None:
    assert _decode_bytes([b"event: ping\ndata:\n\n", b"data: \n\n", b"data:\n\ndata:\n\n" + _BODY]) == _WHOLE


def test_the_blank_line_after_the_last_event_may_be_missing() -> None:
    assert _decode_bytes([_BODY[:-1]]) == _WHOLE
    assert _decode_bytes([_BODY[:-2]]) == _WHOLE
    with pytest.raises(StreamInterruptedError):
        _decode_bytes([_BODY[:-3]])


@pytest.mark.parametrize("event", [b"[]", b"5", b'"text"', b"null"])
def test_an_event_that_is_no_object_is_not_the_providers_format(event: bytes) -> None:
    _, decoder = _bytes_decoder()
    with pytest.raises((AttributeError, TypeError, ValueError, MalformedResponseError)):
        list(decoder.feed(b"data: " + event + b"\n\n"))


def _fragments(*fragments: str) -> tuple[dict[str, Any], ...]:
    return tuple({"type": "input_json_delta", "partial_json": fragment} for fragment in fragments)


def _adapter() -> AnthropicAdapter:
    from anthropic import AsyncAnthropic

    return AnthropicAdapter(AsyncAnthropic(api_key="test-key"), model="claude-test")


# what is not as the API says


def _start(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def _piece(index: int, **delta: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def _stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def _end(stop_reason: Any = "end_turn", **usage: Any) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": stop_reason}, "usage": usage}


def _call(**fields: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": "1", "name": "f", "input": {}, **fields}


_TEXT = _start(0, type="text", text="")
_THOUGHT = _start(0, type="thinking", thinking="", signature="")


@pytest.mark.parametrize(
    "events",
    [
        [_TEXT, _piece(0, type="text_delta", text=5)],
        [_TEXT, _piece(0, type="text_delta", text=None)],
        [_TEXT, _piece(0, type="citations_delta", citation=5)],
        [_start(0, type="text", text=7)],
        [_start(0, type="text", text=["a"])],
        [_start(0, type="text", text="", citations=5)],
        [_start(0, type=["text"], text="")],
        [_start(0, text="")],
        [_start([0], type="text", text="")],
        [_THOUGHT, _piece(0, type="thinking_delta", thinking=5)],
        [_THOUGHT, _piece(0, type="signature_delta", signature=5)],
        [_start(0, type="thinking", thinking=5, signature="")],
        [_start(0, type="thinking", thinking="", signature=5)],
        [_start(0, **_call()), _piece(0, type="input_json_delta", partial_json=5)],
        [_start(0, **_call()), _piece(0, type="input_json_delta", partial_json=None)],
        [_start(0, **_call(name=None))],
        [_start(0, **_call(caller="x"))],
        [_start(0, **_call(caller={"tool_id": ["x"]}))],
        [_start(0, **_call(input={"a": float("inf")}))],
        [_start(0, type="server_tool_use", id=["x"], name="w", input={})],
        [_start(0, type="web_search_tool_result", tool_use_id=["x"], content=[])],
        [_end(["x"])],
        [_end(5)],
        [{"type": "message_delta", "delta": "x"}],
        [{"type": "message_start", "message": {"content": "hello"}}],
        [{"type": "message_start", "message": {"content": [None]}}],
        [{"type": "message_start", "message": {"container": {"id": [1]}}}],
        [{"type": "message_start", "message": {"usage": [1]}}],
    ],
)
def test_a_wrong_type_fails_where_it_comes(events: list[dict[str, Any]]) -> None:
    decoder = AnthropicDecoder()
    *earlier, last = events
    for event in earlier:
        list(decoder.feed(event))
    before = decoder.draft()
    with pytest.raises((AttributeError, TypeError, ValueError)):
        list(decoder.feed(last))
    assert decoder.draft() == before


@pytest.mark.parametrize("figure", ["12", 1.5, float("nan"), float("inf"), -5, True, [1], {}, 2**63])
@pytest.mark.parametrize(
    "key", ["input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"]
)
def test_a_figure_that_is_none_fails_where_it_comes(key: str, figure: Any) -> None:
    for event in ({"type": "message_start", "message": {"usage": {key: figure}}}, _end(**{key: figure})):
        decoder = AnthropicDecoder()
        with pytest.raises((TypeError, ValueError), match=key if isinstance(figure, str) else None):
            list(decoder.feed(event))
        assert decoder.draft().usage == Usage()
    details = {"thinking_tokens": figure}
    for wrong in (details, figure if figure != {} else 5):
        with pytest.raises((TypeError, ValueError)):
            list(AnthropicDecoder().feed(_end(output_tokens_details=wrong)))


@pytest.mark.parametrize(
    "raw", ['{"a": NaN}', '{"a": [Infinity]}', '{"a": -Infinity}', '{"a": {"b": 1e999}}', '{"a": -1e999}']
)
def test_arguments_that_json_cannot_say_stay_raw(raw: str) -> None:
    events, result = decode(wire(tool_use("f", raw, id="1")))
    assert events[-1] == ToolCallReceived(0, "1", "f", raw)
    assert result.tool_calls == (ToolCall("1", "f", raw),)
    assert result.message is not None
    assert result.message["content"][0]["input"] == {"INVALID_JSON": raw}


@pytest.mark.parametrize("value", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
def test_an_event_with_a_number_that_is_none_is_not_the_providers_format(value: bytes) -> None:
    _, decoder = _bytes_decoder()
    start = b'{"type":"content_block_start","index":0,"content_block":{"type":"odd","x":%b}}' % value
    with pytest.raises(ValueError, match=r"finite|expected value|invalid number"):
        list(decoder.feed(b"data: " + start + b"\n\n"))


def test_calls_that_share_an_id_are_told_apart() -> None:
    calls = [tool_use("f", {"a": number}, id=shared) for number, shared in enumerate(["1", "1", "1_2", "1"])]
    events, result = decode(wire(*calls))
    ids = ["1", "1_2", "1_2_2", "1_3"]
    assert [call.call_id for call in result.tool_calls] == ids
    assert [call.arguments for call in result.tool_calls] == [{"a": number} for number in range(4)]
    assert result.message is not None
    assert [block["id"] for block in result.message["content"]] == ids
    for kind in (ToolCallStarted, ToolCallDelta, ToolCallReceived):
        assert list(dict.fromkeys(event.call_id for event in events if isinstance(event, kind))) == ids
    check_pairs([result.message, _answers(result)])


@pytest.mark.parametrize("missing", [None, 5, "", ["x"]])
def test_a_call_without_an_id_gets_one(missing: Any) -> None:
    events: list[dict[str, Any]] = []
    for index in range(2):
        events += [_start(index, **_call(id=missing)), _stop(index)]
    del events[2]["content_block"]["id"]
    decoded, result = decode([*events, _end("tool_use"), {"type": "message_stop"}])
    ids = ["toolu_missing_1", "toolu_missing_2"]
    assert [call.call_id for call in result.tool_calls] == ids
    assert [event.call_id for event in decoded if isinstance(event, ToolCallReceived)] == ids
    assert result.message is not None
    assert [block["id"] for block in result.message["content"]] == ids
    check_pairs([result.message, _answers(result)])


def test_a_tool_result_in_a_reply_is_dropped() -> None:
    result = raw_block(
        {"type": "tool_result", "tool_use_id": "zz", "content": "x"}, {"type": "text_delta", "text": "lost"}
    )
    events, reply = decode(wire(text("a"), result, text("b")))
    assert events == decode(wire(text("a"), text("b")))[0]
    assert reply.message is not None
    assert [block["type"] for block in reply.message["content"]] == ["text", "text"]


def test_nobody_can_change_what_was_decoded() -> None:
    blocks = [
        _call(input={"x": {"y": [1]}}),
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"url": "u"}]},
        {"type": "text", "text": "a", "citations": [{"at": [1]}]},
    ]
    usage = {"input_tokens": 1, "cache_creation": {"x": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {"usage": usage}}]
    for index, block in enumerate(blocks):
        events += [_start(index, **block), _piece(index, type="odd", more={"z": [1]}), _stop(index)]
    events += [_end("tool_use"), {"type": "message_stop"}]
    decoder = AnthropicDecoder()
    decoded = [item for event in events for item in decoder.feed(event)]
    (expected,) = copy.deepcopy(decoder.close())
    spoil(events)
    for event in decoded:
        spoil(getattr(event, "arguments", None))
    assert decoder.draft() == expected
    for _ in range(2):
        draft = decoder.draft()
        assert draft == expected
        spoil(draft.tool_calls[0].arguments)
        assert draft.message == expected.message, "a call and its block are apart"
        spoil(draft.message)
        spoil(draft.raw_usage)


@pytest.mark.parametrize(
    ("given", "arguments", "sent"),
    [
        (None, {}, {}),
        ("", {}, {}),
        ('{"a": 1}', {"a": 1}, {"a": 1}),
        ("x", "x", {"INVALID_JSON": "x"}),
        ([1], "[1]", {"INVALID_JSON": "[1]"}),
        (5, "5", {"INVALID_JSON": "5"}),
        (False, "false", {"INVALID_JSON": "false"}),
    ],
)
def test_a_whole_input_that_is_no_object_can_be_sent_again(given: Any, arguments: Any, sent: Any) -> None:
    result = decode([_start(0, **_call(input=given)), _stop(0), _end("tool_use"), {"type": "message_stop"}])[1]
    assert result.tool_calls[0].arguments == arguments
    assert result.message is not None
    assert result.message["content"][0]["input"] == sent


def test_deltas_after_the_end_of_their_block_are_ignored() -> None:
    late = [
        _piece(0, type="input_json_delta", partial_json="}}}"),
        _piece(0, type="text_delta", text="late"),
        _piece(0, type="odd", x=1),
        _piece(1, type="text_delta", text="late"),
        _piece(1, type="citations_delta", citation={}),
    ]
    events = wire(tool_use("f", {"a": 1}, id="1"), text("5"))
    expected = decode(events)
    assert decode([*events[:-2], *late, *events[-2:]]) == expected
    assert decode([*events[:-1], *late, *events[-1:]]) == expected


@pytest.mark.parametrize(
    "block",
    [
        {"type": "text", "text": "5"},
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        _call(input={"a": 1}),
        {"type": "server_tool_use", "id": "s", "name": "w", "input": {"a": 1}},
    ],
    ids=lambda block: block["type"],
)
def test_no_delta_changes_what_a_known_block_is(block: dict[str, Any]) -> None:
    strange = dict.fromkeys(["id", "name", "text", "thinking", "input", "signature", "caller", "tool_use_id"], "evil")
    deltas = [
        _piece(0, **{**strange, "type": "odd"}),
        _piece(0, **{**{key: [1] for key in strange}, "type": "odd", "new": 1}),
        *([_piece(0, type="text_delta", text="evil")] if block["type"] != "text" else []),
        *([_piece(0, type="thinking_delta", thinking="evil")] if block["type"] != "thinking" else []),
        *([_piece(0, type="signature_delta", signature="evil")] if block["type"] != "thinking" else []),
        *([_piece(0, type="citations_delta", citation={})] if block["type"] != "text" else []),
        *([_piece(0, type="input_json_delta", partial_json="{")] if "input" not in block else []),
    ]
    decoder = AnthropicDecoder()
    for event in [_start(0, **block), *deltas, _stop(0), _start(1, type="text", text="x"), {"type": "message_stop"}]:
        list(decoder.feed(event))
    message = decoder.draft().message
    assert message is not None
    assert message["content"][0] == {**block, "new": 1}


def test_an_unknown_block_keeps_what_it_is_too() -> None:
    start = {"type": "odd", "id": "1", "name": "n", "text": "a", "level": 1}
    block = raw_block(
        start, {"type": "odd_delta", "id": "2", "name": "m", "text": [1], "level": "high"}, {"type": "d", "text": "b"}
    )
    assert content_of(block) == [{**start, "text": "ab"}]


_STRANGE = st.sampled_from(
    [None, 0, -1, 1.5, True, "", "x", '{"a":', [], [1], {}, {"a": [1]}, float("nan"), float("inf"), "tool_result"]
)
_SOURCE = [
    *(event for events in _DRAFTED for event in events),
    _start(0, **_call(caller={"type": "code", "tool_id": "srv_1"})),
    _start(1, **_call(input={"a": [1]})),
    _start(2, type="tool_result", tool_use_id="1", content="x"),
    _piece(0, type="odd_delta", id="x", text="y", list=[1], caller="z"),
    _piece(1, type="citations_delta", citation={"a": 1}),
    _piece(0, type="text_delta", text="more"),
    {"type": "message_start", "message": {"content": [_call()], "usage": {"output_tokens_details": {}}}},
    _end("max_tokens", output_tokens_details={"thinking_tokens": 3}),
]


def _places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, item in items for found in ((*place, key), *_places(item, (*place, key)))]


@st.composite
def _mutated(draw: st.DrawFn) -> dict[str, Any]:
    event = copy.deepcopy(draw(st.sampled_from(_SOURCE)))
    for _ in range(draw(st.integers(0, 2))):
        places = _places(event)
        if not places:
            break
        *path, key = draw(st.sampled_from(places))
        target = event
        for part in path:
            target = target[part]
        if draw(st.booleans()) or isinstance(target, list):
            target[key] = copy.deepcopy(draw(_STRANGE))
        else:
            del target[key]
    if "index" in event and draw(st.booleans()):
        event["index"] = draw(st.integers(0, 2))
    return event


@settings(max_examples=400, deadline=None)
@given(st.lists(_mutated(), max_size=12))
def test_whatever_was_fed_makes_a_draft(events: list[dict[str, Any]]) -> None:
    decoder = AnthropicDecoder()
    said = ""
    for event in events:
        with contextlib.suppress(AttributeError, LookupError, TypeError, ValueError, ProviderError):
            said += "".join(item.text for item in decoder.feed(event) if isinstance(item, TextDelta))
        draft = decoder.draft()
        assert sorted(draft.text) == sorted(said), "blocks may be interleaved, but nothing is lost"
        json.dumps([draft.message, draft.raw_usage, dict(draft.carry)], allow_nan=False)
        if draft.message is not None:
            check_pairs([draft.message, _answers(draft)])
            assert [block["id"] for block in draft.message["content"] if block["type"] == "tool_use"] == [
                call.call_id for call in draft.tool_calls
            ]


def _answers(reply: StepResult) -> dict[str, Any]:
    content = [{"type": "tool_result", "tool_use_id": call.call_id} for call in reply.tool_calls]
    return {"role": "user", "content": content}
