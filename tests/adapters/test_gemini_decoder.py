"""The decoder of the Gemini API, without any I/O: what a reply becomes, and what of it is sent again."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from typing import Any

import pytest
from google import genai
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st

from rxloop.adapters.gemini import GeminiAdapter, check_pairs
from rxloop.adapters.gemini_decoder import FINISH_REASONS, GeminiBytesDecoder, GeminiDecoder, usage_from
from rxloop.errors import (
    InvalidRequestError,
    MalformedResponseError,
    OverloadedError,
    RateLimitedError,
    RxLoopError,
    StreamInterruptedError,
)
from rxloop.events import ReasoningDelta, TextDelta, ToolCallReceived, ToolCallStarted
from rxloop.steps import StepResult, ToolCall, ToolResult
from rxloop.usage import Usage
from tests.providers.gemini import (
    Event,
    Parts,
    call,
    chunks,
    code_result,
    error,
    executable_code,
    inline_data,
    metadata,
    partial_call,
    raw_part,
    signature_only,
    sse,
    text,
    thought,
    together,
    unknown_event,
)
from tests.providers.http import split_at, split_every

_SIGNATURE = "EqQB+/=="


def decode(events: Iterable[Event], **options: Any) -> tuple[list[Any], StepResult]:
    decoder = GeminiDecoder(**options)
    decoded = [item for event in events for item in decoder.feed(event)]
    *late, result = decoder.close()
    assert isinstance(result, StepResult)
    return [*decoded, *late], result


def result_of(*parts: Parts, **options: Any) -> StepResult:
    return decode(chunks(*parts, **options))[1]


def parts_of(*parts: Parts, **options: Any) -> list[dict[str, Any]]:
    sent = result_of(*parts, **options).message
    assert sent is not None
    assert sent["role"] == "model"
    return list(sent["parts"])


def decode_bytes(pieces: Iterable[bytes]) -> tuple[list[Any], StepResult]:
    decoder = GeminiBytesDecoder(GeminiDecoder())
    decoded = [item for piece in pieces for item in decoder.feed(piece)]
    *late, result = decoder.close()
    assert isinstance(result, StepResult)
    return [*decoded, *late], result


def failure_of(pieces: Iterable[bytes]) -> tuple[list[Any], RxLoopError]:
    decoder = GeminiBytesDecoder(GeminiDecoder())
    decoded: list[Any] = []

    def read() -> None:
        for piece in pieces:
            decoded.extend(decoder.feed(piece))
        decoder.close()

    with pytest.raises(RxLoopError) as caught:
        read()
    return decoded, caught.value


# what arrives


def test_text_arrives_piece_by_piece() -> None:
    events, result = decode(chunks(text("It is 5.", pieces=4)), step=3)
    assert events == [TextDelta(3, "It"), TextDelta(3, " i"), TextDelta(3, "s "), TextDelta(3, "5.")]
    assert result == StepResult(
        text="It is 5.",
        tool_calls=(),
        usage=Usage(10, 5),
        finish_reason="stop",
        raw_stop_reason="STOP",
        raw_usage={"totalTokenCount": 15, "promptTokenCount": 10, "candidatesTokenCount": 5},
        message={"role": "model", "parts": [{"text": "It is 5."}]},
    )


def test_thoughts_are_reasoning_and_no_text() -> None:
    events, result = decode(chunks(thought("Let me see."), text("5", pieces=1)))
    assert events == [ReasoningDelta(0, "Let me"), ReasoningDelta(0, " see."), TextDelta(0, "5")]
    assert result.text == "5"
    assert result.message is not None
    assert result.message["parts"] == [{"text": "Let me see.", "thought": True}, {"text": "5"}]


def test_a_call_is_whole_in_its_part() -> None:
    events, result = decode(chunks(call("add", {"a": 2, "b": [1, {"c": None}]}, id="fc_1")))
    assert events == [
        ToolCallStarted(0, "fc_1", "add"),
        ToolCallReceived(0, "fc_1", "add", {"a": 2, "b": [1, {"c": None}]}),
    ]
    assert result.tool_calls == (ToolCall("fc_1", "add", {"a": 2, "b": [1, {"c": None}]}),)
    assert (result.finish_reason, result.raw_stop_reason) == ("tool-calls", "STOP")


def test_calls_without_ids_get_distinct_ones_that_are_not_sent() -> None:
    events, result = decode(chunks(together(call("add", {"a": 1}), call("add", {"a": 2})), call("add", {"a": 3})))
    ids = [item.call_id for item in result.tool_calls]
    assert len(set(ids)) == 3
    assert [event.call_id for event in events if isinstance(event, ToolCallReceived)] == ids
    assert [item.arguments for item in result.tool_calls] == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert result.message is not None
    assert all("id" not in part["functionCall"] for part in result.message["parts"])
    (other,) = decode(chunks(call("add", {})), step=1)[1].tool_calls
    assert other.call_id not in ids, "unique within the turn"


def test_calls_with_and_without_ids_side_by_side() -> None:
    result = result_of(call("f", {}, id="x"), call("f", {}), call("g", {}, id="y"))
    assert [item.call_id for item in result.tool_calls][::2] == ["x", "y"]
    assert [part["functionCall"].get("id") for part in result.message["parts"]] == ["x", None, "y"]  # type: ignore[index]


@pytest.mark.parametrize("args", [None, {}])
def test_a_call_without_arguments(args: Any) -> None:
    events, result = decode(chunks(call("now", args, id="1")))
    assert events[-1] == ToolCallReceived(0, "1", "now", {})
    assert result.tool_calls[0].arguments == {}
    (part,) = parts_of(call("now", args, id="1"))
    assert part["functionCall"].get("args") == args, "resent as it came"


def test_calls_in_earlier_chunks_than_the_finish_reason() -> None:
    events, result = decode(chunks(call("f", {"a": 1}), text("and", pieces=1), finish_apart=True))
    assert [type(event) for event in events] == [ToolCallStarted, ToolCallReceived, TextDelta]
    assert (result.finish_reason, len(result.tool_calls)) == ("tool-calls", 1)


def test_arguments_that_are_no_object_stay_raw() -> None:
    result = result_of(raw_part({"functionCall": {"name": "f", "args": [1, "a"]}}))
    assert result.tool_calls[0].arguments == '[1, "a"]'


def test_names_become_the_callers() -> None:
    events, result = decode(chunks(call("my_tool_1234", {})), name={"my_tool_1234": "my/tool"}.__getitem__)
    assert [event.name for event in events] == ["my/tool", "my/tool"]
    assert result.tool_calls[0].name == "my/tool"
    assert result.message is not None
    assert result.message["parts"][0]["functionCall"]["name"] == "my_tool_1234", "resent with the provider's name"


def test_the_callers_own_arguments_may_be_changed() -> None:
    given = chunks(call("f", {"a": 1}))
    before = copy.deepcopy(given)
    events, result = decode(given)
    events[-1].arguments["b"] = 2
    assert isinstance(result.tool_calls[0].arguments, dict)
    result.tool_calls[0].arguments["c"] = 3
    assert result.message is not None
    assert result.message["parts"] == [{"functionCall": {"name": "f", "args": {"a": 1}}}]
    assert given == before


# pieces of arguments


def test_a_call_in_pieces() -> None:
    wire = chunks(
        partial_call(
            "control",
            [
                ("$.brightness", "numberValue", 50),
                ("$.room", "stringValue", "liv"),
                ("$.room", "stringValue", "ing"),
                ("$.dim", "boolValue", True),
                ("$.scene", "nullValue", None),
            ],
            id="1",
            signature=_SIGNATURE,
        ),
        vertex=True,
    )
    arguments = {"brightness": 50, "room": "living", "dim": True, "scene": None}
    events, result = decode(wire)
    assert events == [ToolCallStarted(0, "1", "control"), ToolCallReceived(0, "1", "control", arguments)]
    assert result.tool_calls == (ToolCall("1", "control", arguments),)
    assert result.message is not None
    assert result.message["parts"] == [
        {"functionCall": {"name": "control", "id": "1", "args": arguments}, "thoughtSignature": _SIGNATURE}
    ]


def test_pieces_of_objects_and_arrays() -> None:
    pieces: list[Any] = [
        ("$.items[0].name", "stringValue", "a"),
        ("$.items[0].tags[0]", "stringValue", "x"),
        ("$.items[0].tags[1]", "stringValue", "y"),
        ("$.items[1].name", "stringValue", "b"),
        ("$.matrix[1][0]", "numberValue", 2.5),
        ("$['a key'].deep", "boolValue", False),
    ]
    result = result_of(partial_call("f", pieces))
    assert result.tool_calls[0].arguments == {
        "items": [{"name": "a", "tags": ["x", "y"]}, {"name": "b"}],
        "matrix": [None, [2.5]],
        "a key": {"deep": False},
    }


def test_several_pieces_in_one_chunk() -> None:
    pieces: list[Any] = [[("$.a", "numberValue", 1), ("$.b", "stringValue", "x")], ("$.b", "stringValue", "y")]
    assert result_of(partial_call("f", pieces)).tool_calls[0].arguments == {"a": 1, "b": "xy"}


def test_a_missing_terminal_piece() -> None:
    wire = chunks(partial_call("f", [("$.a", "numberValue", 1)], id="1", terminal=False), finish_apart=True)
    events, result = decode(wire)
    assert events == [ToolCallStarted(0, "1", "f"), ToolCallReceived(0, "1", "f", {"a": 1})]
    assert result.tool_calls == (ToolCall("1", "f", {"a": 1}),)


def test_the_next_call_ends_the_last_one() -> None:
    first = partial_call("f", [("$.a", "numberValue", 1)], id="1", terminal=False)
    events, result = decode(chunks(first, call("g", {}, id="2")))
    assert [(type(event), event.call_id) for event in events] == [
        (ToolCallStarted, "1"),
        (ToolCallReceived, "1"),
        (ToolCallStarted, "2"),
        (ToolCallReceived, "2"),
    ]
    assert [item.arguments for item in result.tool_calls] == [{"a": 1}, {}]


def test_two_calls_in_pieces() -> None:
    result = result_of(
        partial_call("f", [("$.a", "stringValue", "1")]), partial_call("f", [("$.a", "stringValue", "2")])
    )
    assert [item.arguments for item in result.tool_calls] == [{"a": "1"}, {"a": "2"}]


def test_a_call_in_pieces_without_any_piece() -> None:
    assert result_of(partial_call("f", [])).tool_calls[0].arguments == {}


def test_a_call_whose_end_is_told_twice() -> None:
    opening = raw_part({"functionCall": {"name": "f", "willContinue": False}})
    events, result = decode(chunks(opening, raw_part({"functionCall": {}})))
    assert [type(event) for event in events] == [ToolCallStarted, ToolCallReceived]
    assert [item.name for item in result.tool_calls] == ["f"]
    assert result.message is not None
    assert len(result.message["parts"]) == 1


def test_a_signature_that_comes_with_a_later_piece() -> None:
    wire = raw_part(
        {"functionCall": {"name": "f", "willContinue": True}},
        {"functionCall": {"partialArgs": [{"jsonPath": "$.a", "numberValue": 1}]}, "thoughtSignature": _SIGNATURE},
        {"functionCall": {}},
    )
    assert parts_of(wire) == [{"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": _SIGNATURE}]


def test_a_call_that_the_token_limit_cut_off() -> None:
    whole = call("f", {"a": 1}, id="0")
    cut = partial_call("f", [("$.a", "stringValue", "be")], id="1")
    wire = chunks(whole, Parts(cut.groups[:2]), finish_reason="MAX_TOKENS")
    events, result = decode(wire)
    assert result.tool_calls == (ToolCall("0", "f", {"a": 1}), ToolCall("1", "f", {"a": "be"}, truncated=True))
    assert ToolCallReceived(0, "1", "f", {"a": "be"}) not in events
    assert result.finish_reason == "length"
    assert result.message is not None
    assert [part["functionCall"]["id"] for part in result.message["parts"]] == ["0", "1"], "it gets a result too"


def test_a_whole_call_at_the_token_limit_is_whole() -> None:
    result = result_of(call("f", {"a": 1}, id="0"), finish_reason="MAX_TOKENS")
    assert result.tool_calls == (ToolCall("0", "f", {"a": 1}),)
    assert result.finish_reason == "length"


@pytest.mark.parametrize("path", ["$", "", "$.a.b", "$.a[0]"])
def test_a_piece_that_fits_nowhere_is_malformed(path: str) -> None:
    decoder = GeminiDecoder()
    opening = {"jsonPath": "$.a", "stringValue": "text"}
    piece = {"jsonPath": path, "stringValue": "x"}
    function = {"name": "f", "partialArgs": [opening, piece], "willContinue": True}
    # what the pump takes for a reply that does not have the provider's format
    with pytest.raises((AttributeError, IndexError, KeyError, TypeError, ValueError)):
        decoder.feed(chunks(raw_part({"functionCall": function}))[0])


# what is sent again


def test_the_first_of_parallel_calls_is_signed_and_all_are_in_one_content() -> None:
    calls = [call("f", {"n": number}, signature=_SIGNATURE if number == 0 else None) for number in range(3)]
    for wire in (chunks(together(*calls)), chunks(*calls)):
        assert decode(wire)[1].message == {
            "role": "model",
            "parts": [
                {"functionCall": {"name": "f", "args": {"n": 0}}, "thoughtSignature": _SIGNATURE},
                {"functionCall": {"name": "f", "args": {"n": 1}}},
                {"functionCall": {"name": "f", "args": {"n": 2}}},
            ],
        }


def test_a_signature_stays_on_its_own_part() -> None:
    wire = raw_part(
        {"text": "a"},
        {"text": "b", "thoughtSignature": "s1"},
        {"text": "c"},
        {"text": "hm", "thought": True},
        {"text": "m", "thought": True, "thoughtSignature": "s2"},
        {"text": "so", "thought": True},
        {"text": "d"},
        {"text": "e"},
    )
    events, result = decode(chunks(wire))
    assert result.text == "abcde"
    assert "".join(event.text for event in events if isinstance(event, ReasoningDelta)) == "hmmso"
    assert result.message is not None
    assert result.message["parts"] == [
        {"text": "a"},
        {"text": "b", "thoughtSignature": "s1"},
        {"text": "c"},
        {"text": "hm", "thought": True},
        {"text": "m", "thought": True, "thoughtSignature": "s2"},
        {"text": "so", "thought": True},
        {"text": "de"},
    ]


def test_a_signature_on_empty_text_is_kept() -> None:
    assert parts_of(text("5", pieces=1), signature_only(_SIGNATURE)) == [
        {"text": "5"},
        {"text": "", "thoughtSignature": _SIGNATURE},
    ]
    only = result_of(signature_only(_SIGNATURE))
    assert only.message == {"role": "model", "parts": [{"text": "", "thoughtSignature": _SIGNATURE}]}
    assert only.text == ""


def test_a_signature_without_anything_else_is_kept() -> None:
    assert parts_of(text("5", pieces=1), raw_part({"thoughtSignature": _SIGNATURE})) == [
        {"text": "5"},
        {"thoughtSignature": _SIGNATURE},
    ]


@pytest.mark.parametrize("empty", [{"text": ""}, {"text": "", "thought": True}, {}])
def test_empty_text_is_dropped(empty: dict[str, Any]) -> None:
    """Replies often end with one, and the API does not take it back."""
    parts = (raw_part({"text": "a"}), raw_part(empty), raw_part({"text": "b"}), raw_part(empty))
    events, result = decode(chunks(*parts))
    assert events == [TextDelta(0, "a"), TextDelta(0, "b")]
    assert result.message == {"role": "model", "parts": [{"text": "ab"}]}
    assert result_of(raw_part(empty)).message is None


def test_thoughts_alone_are_not_resent() -> None:
    result = result_of(thought("hm"), finish_reason="MAX_TOKENS")
    assert (result.message, result.finish_reason) == (None, "length")


def test_what_the_provider_ran_itself_is_resent_untouched_and_not_run() -> None:
    tool_call = {"toolCall": {"toolType": "GOOGLE_SEARCH_WEB", "args": {"queries": ["x"]}, "id": "t1"}}
    tool_response = {"toolResponse": {"toolType": "GOOGLE_SEARCH_WEB", "response": {"r": [1]}, "id": "t1"}}
    own = (
        executable_code("print(1)", id="c1"),
        code_result("1\n", id="c1"),
        inline_data(b"\xfb\xff png"),
        raw_part(tool_call, tool_response, {"aFuturePart": {"x": [1, None]}, "thoughtSignature": _SIGNATURE}),
    )
    events, result = decode(chunks(text("Look: ", pieces=1), *own, text("1.", pieces=1)))
    assert events == [TextDelta(0, "Look: "), TextDelta(0, "1.")]
    assert (result.tool_calls, result.finish_reason, result.text) == ((), "stop", "Look: 1.")
    assert result.message is not None
    assert result.message["parts"] == [
        {"text": "Look: "},
        *(part for some in own for group in some.groups for part in group),
        {"text": "1."},
    ]


def test_further_fields_of_a_part_are_kept() -> None:
    part = {"text": "a", "partMetadata": {"x": 1}}
    assert parts_of(raw_part({"text": "b"}, part, {"text": "c"})) == [{"text": "b"}, part, {"text": "c"}]
    called = {"functionCall": {"name": "f", "args": {}, "future": 1}, "partMetadata": {"x": 1}}
    assert parts_of(raw_part(called)) == [called]


# chunks


def test_metadata_only_chunks_are_tolerated() -> None:
    own = chunks(text("5", pieces=1))
    events, result = decode(
        [metadata(), {}, unknown_event(), {"candidates": []}, *own, metadata(own[-1]["usageMetadata"])]
    )
    assert events == [TextDelta(0, "5")]
    assert (result.usage, result.finish_reason) == (Usage(10, 5), "stop")


@pytest.mark.parametrize(
    "candidate",
    [{}, {"content": {}}, {"content": None}, {"content": {"role": "model"}}, {"content": {"parts": []}}, {"index": 0}],
)
def test_candidates_without_content(candidate: dict[str, Any]) -> None:
    wire = [{"candidates": [candidate]}, *chunks(text("5", pieces=1))]
    assert decode(wire)[0] == [TextDelta(0, "5")]


def test_text_after_the_finish_reason_belongs_to_the_reply() -> None:
    wire = [*chunks(text("It ", pieces=1)), *chunks(text("is 5.", pieces=1), finish_reason=None)]
    events, result = decode(wire)
    assert events == [TextDelta(0, "It "), TextDelta(0, "is 5.")]
    assert (result.text, result.finish_reason) == ("It is 5.", "stop")


def test_of_several_answers_the_first_counts() -> None:
    first, second = chunks(text("5", pieces=1)), chunks(text("five", pieces=1), finish_reason="SAFETY")
    second[0]["candidates"][0]["index"] = 1
    events, result = decode([*second, *first, *second])
    assert events == [TextDelta(0, "5")]
    assert (result.text, result.finish_reason) == ("5", "stop")


def test_an_empty_reply_is_an_answer() -> None:
    events, result = decode(chunks())
    assert events == []
    assert (result.text, result.finish_reason, result.message, result.malformed) == ("", "stop", None, False)


def test_a_prompt_that_is_refused() -> None:
    for reason in ("SAFETY", "PROHIBITED_CONTENT", "A_FUTURE_REASON"):
        events, result = decode([{"promptFeedback": {"blockReason": reason}, **metadata()}])
        assert events == []
        assert (result.finish_reason, result.raw_stop_reason) == ("content-filter", reason)
        assert (result.message, result.usage) == (None, Usage(10, 0))


def test_feedback_without_a_reason_is_no_refusal() -> None:
    feedback: dict[str, Any] = {"promptFeedback": {"safetyRatings": []}}
    assert decode([feedback, *chunks(text("5"))])[1].finish_reason == "stop"
    with pytest.raises(StreamInterruptedError):
        decode([feedback])


# usage


def test_usage_is_cumulative_and_the_last_figures_win() -> None:
    result = result_of(text("abcdef", pieces=6), usage={"promptTokenCount": 10, "candidatesTokenCount": 60})
    assert result.usage == Usage(10, 60)
    smaller = {"promptTokenCount": 87, "thoughtsTokenCount": 78, "totalTokenCount": 165}
    assert decode([*chunks(text("5")), {"usageMetadata": smaller}])[1].usage == Usage(87, 78, reasoning_tokens=78)


def test_usage_without_any_count_takes_none_back() -> None:
    for later in ({"trafficType": "ON_DEMAND"}, {}, None):
        result = decode([*chunks(text("5")), {"usageMetadata": later}])[1]
        assert result.usage == Usage(10, 5)
        assert result.raw_usage["candidatesTokenCount"] == 5
    assert result_of(text("abc"), vertex=True).usage == Usage(10, 5)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({}, Usage()),
        ({"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}, Usage(10, 5)),
        (
            # Vertex: thoughts apart
            {"promptTokenCount": 10, "candidatesTokenCount": 5, "thoughtsTokenCount": 7, "totalTokenCount": 22},
            Usage(10, 12, reasoning_tokens=7),
        ),
        (
            # thoughts among the candidates
            {"promptTokenCount": 10, "candidatesTokenCount": 12, "thoughtsTokenCount": 7, "totalTokenCount": 22},
            Usage(10, 12, reasoning_tokens=7),
        ),
        (
            {"promptTokenCount": 10, "thoughtsTokenCount": 7, "totalTokenCount": 17},
            Usage(10, 7, reasoning_tokens=7),
        ),
        ({"promptTokenCount": 10, "thoughtsTokenCount": 7}, Usage(10, 7, reasoning_tokens=7)),
        (
            {
                "promptTokenCount": 10,
                "toolUsePromptTokenCount": 100,
                "candidatesTokenCount": 5,
                "thoughtsTokenCount": 7,
                "totalTokenCount": 122,
                "cachedContentTokenCount": 8,
            },
            Usage(110, 12, cache_read_tokens=8, reasoning_tokens=7),
        ),
        ({"promptTokenCount": None, "candidatesTokenCount": None, "cachedContentTokenCount": None}, Usage()),
    ],
)
def test_every_token_is_counted_once(raw: dict[str, Any], expected: Usage) -> None:
    assert usage_from(raw) == expected


def test_the_own_figures_are_kept() -> None:
    figures = {
        "promptTokenCount": 10,
        "candidatesTokenCount": 5,
        "totalTokenCount": 15,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 10}],
    }
    assert result_of(text("5"), usage=figures).raw_usage == figures


# finish reasons


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("CONTINUATION", "length"),
        ("SAFETY", "content-filter"),
        ("RECITATION", "content-filter"),
        ("LANGUAGE", "content-filter"),
        ("BLOCKLIST", "content-filter"),
        ("PROHIBITED_CONTENT", "content-filter"),
        ("SPII", "content-filter"),
        ("MODEL_ARMOR", "content-filter"),
        ("IMAGE_SAFETY", "content-filter"),
        ("IMAGE_PROHIBITED_CONTENT", "content-filter"),
        ("IMAGE_RECITATION", "content-filter"),
        ("ESCALATION", "content-filter"),
        ("PUP_LIMITED_DISABLED", "content-filter"),
        ("MALFORMED_FUNCTION_CALL", "error"),
        ("UNEXPECTED_TOOL_CALL", "error"),
        ("TOO_MANY_TOOL_CALLS", "error"),
        ("MISSING_THOUGHT_SIGNATURE", "error"),
        ("MALFORMED_RESPONSE", "error"),
        ("OTHER", "other"),
        ("NO_IMAGE", "other"),
        ("IMAGE_OTHER", "other"),
        ("FINISH_REASON_UNSPECIFIED", "other"),
        ("A_REASON_OF_THE_FUTURE", "other"),
    ],
)
def test_finish_reasons(raw: str, expected: str) -> None:
    for parts in ((), (text("5"),)):
        result = result_of(*parts, finish_reason=raw)
        assert (result.finish_reason, result.raw_stop_reason) == (expected, raw)
        assert result.malformed is (raw == "MALFORMED_FUNCTION_CALL"), "only a malformed call is worth a correction"
        assert not result.resume


def test_every_known_reason_is_in_the_table() -> None:
    known = {reason.value for reason in types.FinishReason}
    others = {"FINISH_REASON_UNSPECIFIED", "OTHER", "NO_IMAGE", "IMAGE_OTHER"}
    assert known - set(FINISH_REASONS) - others == set()


@pytest.mark.parametrize("raw", ["STOP", "OTHER", "A_REASON_OF_THE_FUTURE"])
def test_calls_are_calls_whatever_the_reason(raw: str) -> None:
    result = result_of(call("f", {}, id="1"), finish_reason=raw)
    assert result.finish_reason == "tool-calls"
    assert result.tool_calls == (ToolCall("1", "f", {}),)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [("MALFORMED_FUNCTION_CALL", "error"), ("UNEXPECTED_TOOL_CALL", "error"), ("SAFETY", "content-filter")],
)
def test_a_faulty_reply_keeps_its_reason_beside_calls(raw: str, expected: str) -> None:
    result = result_of(text("I add."), call("f", {}, id="1"), finish_reason=raw)
    assert (result.finish_reason, result.raw_stop_reason) == (expected, raw)
    assert len(result.tool_calls) == 1, "which nobody runs, but which is answered"


def test_a_malformed_call_without_any_content() -> None:
    candidate = {"finishMessage": "Malformed function call: print(add(1"}
    events, result = decode(chunks(finish_reason="MALFORMED_FUNCTION_CALL", candidate=candidate))
    assert events == []
    assert (result.finish_reason, result.malformed, result.message) == ("error", True, None)


def test_a_reply_without_a_reason_is_not_whole() -> None:
    for wire in ([], [metadata()], chunks(text("5"), finish_reason=None), chunks(call("f", {}), finish_reason=None)):
        decoder = GeminiDecoder()
        for event in wire:
            list(decoder.feed(event))
        with pytest.raises(StreamInterruptedError) as caught:
            decoder.close()
        assert caught.value.retryable


# errors inside the stream


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        (503, "UNAVAILABLE", OverloadedError),
        (429, "RESOURCE_EXHAUSTED", RateLimitedError),
        (400, "INVALID_ARGUMENT", InvalidRequestError),
    ],
)
def test_an_error_in_a_chunk(code: int, status: str, expected: type[RxLoopError]) -> None:
    begun = [sse(event) for event in chunks(text("so far", pieces=2), finish_reason=None)]
    events, caught = failure_of([*begun, sse(error(code, status, "no", retry_delay=3))])
    assert [event.text for event in events] == ["so ", "far"]
    assert type(caught) is expected
    assert (caught.status, caught.retry_after, str(caught)) == (code, 3.0, "no")


def _document(value: Any) -> bytes:
    return json.dumps(value, indent=2).encode() + b"\n"


@pytest.mark.parametrize("finish_reason", [None, "STOP"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_an_error_after_the_last_event(finish_reason: str | None, wrapped: bool) -> None:
    body = b"".join(sse(event) for event in chunks(text("so far"), finish_reason=finish_reason))
    failed: Any = error(499, "CANCELLED", "The operation was cancelled.")
    body += _document([failed] if wrapped else failed)
    for pieces in ([body], split_every(body, 1), split_every(body, 7)):
        events, caught = failure_of(pieces)
        assert "".join(event.text for event in events) == "so far"
        assert (caught.status, str(caught)) == (499, "The operation was cancelled.")


def test_an_error_instead_of_any_event() -> None:
    _, caught = failure_of([_document(error(503, "UNAVAILABLE", "busy"))])
    assert type(caught) is OverloadedError
    _, caught = failure_of([json.dumps(error(503, "UNAVAILABLE", "busy")).encode()])
    assert type(caught) is OverloadedError


def test_a_json_array_instead_of_events() -> None:
    """As the endpoint answers without ``alt=sse``, which proxies have been seen to drop."""
    wire = chunks(text("It is 5."), call("f", {"a": 1}, id="1"))
    events, result = decode_bytes(split_every(_document(wire), 9))
    assert (events, result) == decode(wire)
    body = b"[" + b"\n,\r\n".join(json.dumps(event).encode() for event in wire) + b"\n]\n"
    assert decode_bytes([body]) == decode(wire)
    _, caught = failure_of([_document([*chunks(text("5"), finish_reason=None), error(429, "RESOURCE_EXHAUSTED")])])
    assert type(caught) is RateLimitedError


def test_a_json_object_instead_of_events() -> None:
    wire = chunks(text("5", pieces=1))
    assert decode_bytes([_document(wire[0])]) == decode(wire)


@pytest.mark.parametrize("body", [b"<html><title>Sorry</title></html>\n", b"upstream went away\n", b"\x00\xff\n"])
def test_a_body_that_is_something_else(body: bytes) -> None:
    _, caught = failure_of([body])
    assert type(caught) is MalformedResponseError
    assert caught.retryable


def test_an_empty_body() -> None:
    for pieces in ([], [b""], [b"\r\n\r\n"], [b": keep-alive\n\n"]):
        _, caught = failure_of(pieces)
        assert type(caught) is StreamInterruptedError


def test_a_document_that_is_cut_off() -> None:
    body = _document(chunks(text("5")))
    for cut in range(1, len(body) - 2):
        _, caught = failure_of([body[:cut]])
        assert type(caught) is StreamInterruptedError, cut


# bytes


_RICH = (
    thought("hmm, näh"),
    text("Hello wörld 🌍\u2028.", pieces=4),
    call("add", {"a": 1, "ü": ["x\n", None]}, id="1", signature=_SIGNATURE),
    partial_call("f", [("$.a", "stringValue", "bö"), ("$.b[1]", "numberValue", 2)], id="2"),
    signature_only(_SIGNATURE),
)


@pytest.mark.parametrize("vertex", [False, True])
@pytest.mark.parametrize("crlf", [False, True])
def test_bytes_may_be_cut_anywhere(vertex: bool, crlf: bool) -> None:
    wire = chunks(*_RICH, vertex=vertex)
    body = b"".join(sse(event, crlf, vertex) for event in wire)
    whole = decode(wire)
    assert decode_bytes([body]) == whole
    for size in (1, 2, 3, 5, 16, 1024):
        assert decode_bytes(split_every(body, size)) == whole
    for cut in range(len(body) + 1):
        assert decode_bytes(split_at(body, cut)) == whole


@given(st.lists(st.integers(0, 4096), max_size=12), st.booleans())
def test_any_split_is_the_same_reply(cuts: list[int], crlf: bool) -> None:
    wire = chunks(*_RICH)
    body = b"".join(sse(event, crlf) for event in wire)
    offsets = sorted({cut % (len(body) + 1) for cut in cuts})
    assert decode_bytes(split_at(body, *offsets)) == decode(wire)


@given(
    st.lists(
        st.one_of(
            st.text(max_size=8).map(lambda value: raw_part({"text": value})),
            st.text(max_size=8).map(lambda value: raw_part({"text": value, "thought": True})),
            st.text(max_size=8).map(lambda value: raw_part({"text": value, "thoughtSignature": "s"})),
            st.dictionaries(st.text(max_size=4), st.integers(), max_size=2).map(lambda args: call("f", args)),
            st.integers().map(lambda value: raw_part({"future": value})),
        ),
        max_size=8,
    ),
    st.integers(1, 40),
)
def test_any_reply(parts: list[Parts], size: int) -> None:
    wire = chunks(*parts)
    given = [part for some in parts for group in some.groups for part in group]
    events, result = decode_bytes(split_every(b"".join(sse(event) for event in wire), size))
    said = [event.text for event in events if isinstance(event, TextDelta)]
    shown = [part["text"] for part in given if part.get("text") and not part.get("thought")]
    assert (said, result.text) == (shown, "".join(shown))
    resent = result.message["parts"] if result.message else []
    if result.message:
        assert "".join(part.get("text", "") for part in resent) == "".join(part.get("text", "") for part in given)
    for own in ({"thoughtSignature"}, {"functionCall"}, {"future"}):
        assert [part for part in resent if own <= part.keys()] == [part for part in given if own <= part.keys()]
    check_pairs(_answered(result))


def test_a_body_cut_anywhere_is_never_reported_whole_without_its_text() -> None:
    wire = chunks(text("It is 5.", pieces=3), finish_reason=None)
    wire[-1]["candidates"][0]["finishReason"] = "STOP"
    body = b"".join(map(sse, wire))
    for cut in range(len(body) - 4):
        _, caught = failure_of([body[:cut]])
        # in the middle of "data" it is a line that is no event's
        assert isinstance(caught, (StreamInterruptedError, MalformedResponseError)), cut
        assert caught.retryable
    for cut in range(len(body) - 4, len(body) + 1):
        assert decode_bytes([body[:cut]])[1].text == "It is 5."


def test_text_after_the_finish_reason_that_is_cut_off_is_not_lost_silently() -> None:
    body = b"".join(map(sse, [*chunks(text("It ", pieces=1)), *chunks(text("is 5.", pieces=1), finish_reason=None)]))
    first = len(sse(chunks(text("It ", pieces=1))[0]))
    for cut in range(first + 7, len(body) - 4):
        _, caught = failure_of([body[:cut]])
        assert type(caught) is StreamInterruptedError, cut


def test_an_event_that_is_no_json_is_malformed() -> None:
    decoder = GeminiBytesDecoder(GeminiDecoder())
    with pytest.raises(ValueError, match="key must be a string"):
        decoder.feed(b"data: {not json}\r\n\r\n")


# drafts


def _adapter() -> GeminiAdapter:
    return GeminiAdapter(genai.Client(vertexai=False, api_key="test-key"), model="gemini-test")


def _answered(reply: StepResult) -> list[Any]:
    """The conversation after a reply whose calls were all answered."""
    answers = [ToolResult(item.call_id, item.name, error="cancelled") for item in reply.tool_calls]
    return GeminiAdapter.append(_ADAPTER, [{"role": "user", "parts": [{"text": "hi"}]}], reply, answers)


_ADAPTER = _adapter()


@pytest.mark.parametrize("finish_reason", ["STOP", "MAX_TOKENS", "MALFORMED_FUNCTION_CALL"])
def test_a_draft_can_be_resent_at_every_event(finish_reason: str) -> None:
    wire = chunks(*_RICH, finish_reason=finish_reason)
    watched, undisturbed = GeminiDecoder(), decode(wire)
    told: list[Any] = []
    announced: set[str] = set()
    for event in [None, *wire]:
        for item in watched.feed(event) if event else ():
            told.append(item)
            if isinstance(item, ToolCallReceived):
                announced.add(item.call_id)
        draft = watched.draft()
        assert draft.finish_reason == "aborted"
        assert draft.text == "".join(item.text for item in told if isinstance(item, TextDelta))
        assert {item.call_id for item in draft.tool_calls} == announced, "a call in the making is left out"
        conversation = _answered(draft)
        check_pairs(conversation)
        assert all(content["parts"] for content in conversation)
        assert conversation == _answered(watched.draft()), "asking changes nothing"
    *late, result = watched.close()
    assert ([*told, *late], result) == undisturbed


def test_a_draft_is_not_changed_by_what_comes_later() -> None:
    decoder = GeminiDecoder()
    drafts: list[tuple[StepResult, StepResult]] = []
    for event in chunks(*_RICH):
        list(decoder.feed(event))
        draft = decoder.draft()
        drafts.append((draft, copy.deepcopy(draft)))
    assert all(draft == kept for draft, kept in drafts)


def test_usage_of_a_draft() -> None:
    decoder = GeminiDecoder()
    list(decoder.feed(chunks(text("abc"), finish_reason=None)[0]))
    assert decoder.draft().usage == Usage(10, 1)
    assert GeminiDecoder().draft().usage == Usage()


@pytest.mark.parametrize(
    ("given", "told"),
    [(("add", "add", "add"), ("add", "add_2", "add_3")), ((None, "call_0_0", "c"), ("call_0_0", "call_0_0_2", "c"))],
)
def test_calls_that_share_an_id_are_told_apart(given: tuple[str | None, ...], told: tuple[str, ...]) -> None:
    events, result = decode(chunks(*(call("add", {"a": place}, id=one) for place, one in enumerate(given))))
    assert tuple(event.call_id for event in events if isinstance(event, ToolCallStarted)) == told
    assert tuple(event.call_id for event in events if isinstance(event, ToolCallReceived)) == told
    assert tuple(made.call_id for made in result.tool_calls) == told
    # what is sent again is as it came
    sent = [part["functionCall"].get("id") for part in (result.message or {})["parts"]]
    assert tuple(sent) == given
