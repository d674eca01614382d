"""The decoder of the Converse API, without any I/O: what a reply becomes, and what of it is sent again."""

from __future__ import annotations

import base64
import contextlib
import copy
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rxloop.adapters.bedrock import BedrockAdapter, check_pairs
from rxloop.adapters.bedrock_decoder import FINISH_REASONS, BedrockBytesDecoder, BedrockDecoder, usage_from
from rxloop.adapters.pump import Wire, pump
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
from rxloop.steps import Step, StepResult, ToolCall, ToolResult
from rxloop.testing.scripted import Recorder
from rxloop.usage import Usage
from tests.adapters.spoiling import spoil
from tests.providers.bedrock import (
    BedrockServer,
    Block,
    Event,
    cited,
    encoded,
    image,
    message,
    raw_block,
    reasoning,
    redacted,
    sdk_knows_images,
    server_tool,
    text,
    tool_use,
    unknown_block,
    unknown_event,
)
from tests.providers.eventstream import error, event, exception, frame
from tests.providers.http import split_at, split_every

CITATION: Event = {
    "title": "t",
    "source": "s",
    "sourceContent": [{"text": "quoted"}],
    "location": {"documentChar": {"documentIndex": 0, "start": 1, "end": 2}},
}
SIGNATURE = "EqQBCkYIBxgCKkBz+/=\u2028ü"
PNG = b"\x89PNG\xff\xfe\x00"
EVERY_BLOCK: list[Block | tuple[Block, Block]] = [
    reasoning("hmm, näh", SIGNATURE),
    redacted(b"\x00\xff", b"opaque", b"\xfe"),
    text("Hello wörld 🌍", pieces=4),
    cited("it is", CITATION, CITATION),
    raw_block(None, {"citation": CITATION}),
    server_tool("nova_grounding", {"query": "q"}, {"text": "found"}, {"json": {"a": [1]}}),
    image(PNG),
    raw_block({"image": {"format": "png"}}, {"image": {"source": {"s3Location": {"uri": "s3://b/k"}}}}),
    tool_use("add", {"a": 1, "b": [2, "x"]}, id="tooluse_1"),
    tool_use("now", {}),
    tool_use("bare", None),
    tool_use("empty", ""),
    tool_use("broken", '{"a": '),
]


def decode(events: Iterable[Event], **options: Any) -> tuple[list[Any], StepResult]:
    decoder = BedrockDecoder(**options)
    decoded = [item for one in events for item in decoder.feed(one)]
    (result,) = decoder.close()
    return decoded, result


def decode_bytes(pieces: Iterable[bytes]) -> tuple[list[Any], StepResult]:
    decoder = BedrockBytesDecoder(BedrockDecoder())
    decoded = [item for piece in pieces for item in decoder.feed(piece)]
    *more, result = decoder.close()
    return decoded + more, result


def result_of(*blocks: Block | tuple[Block, ...], **options: Any) -> StepResult:
    return decode(message(*blocks, **options))[1]


def content_of(*blocks: Block | tuple[Block, ...], **options: Any) -> list[dict[str, Any]]:
    sent = result_of(*blocks, **options).message
    assert sent is not None
    assert sent["role"] == "assistant"
    return list(sent["content"])


def start(index: Any, **kinds: Any) -> Event:
    return {"contentBlockStart": {"contentBlockIndex": index, "start": kinds}}


def piece(index: Any, **kinds: Any) -> Event:
    return {"contentBlockDelta": {"contentBlockIndex": index, "delta": kinds}}


def stop(index: Any) -> Event:
    return {"contentBlockStop": {"contentBlockIndex": index}}


def end(stop_reason: Any = "end_turn", **usage: Any) -> list[Event]:
    return [{"messageStop": {"stopReason": stop_reason}}, {"metadata": {"usage": usage or {"inputTokens": 1}}}]


def call(index: int, **fields: Any) -> Event:
    return start(index, toolUse={"toolUseId": "1", "name": "f", **fields})


def blob(data: bytes) -> str:
    return base64.b64encode(data).decode()


def whole(*content: Event, stop_reason: str = "end_turn", **fields: Any) -> bytes:
    """A reply of `Converse`."""
    said = {"message": {"role": "assistant", "content": list(content)}}
    usage = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
    return json.dumps({"output": said, "stopReason": stop_reason, "usage": usage, **fields}).encode()


def answers(reply: StepResult) -> dict[str, Any]:
    content = [{"toolResult": {"toolUseId": called.call_id}} for called in reply.tool_calls]
    return {"role": "user", "content": content}


def check_resendable(reply: StepResult) -> None:
    """A reply whose message the API would take."""
    json.dumps([reply.message, reply.raw_usage], allow_nan=False)
    if reply.message is None:
        assert not reply.tool_calls
        return
    check_pairs([reply.message, answers(reply)])
    calls, of_provider, results = [], set(), set()
    content = reply.message["content"]
    assert content, "a message must not be empty"
    assert "reasoningContent" not in content[-1], "reasoning must not end a message"
    for block in content:
        [(kind, value)] = block.items()
        if kind == "text":
            assert value.strip(), "text must not be blank"
        elif kind == "citationsContent":
            assert all(part["text"].strip() for part in value.get("content", ())), "cited text must not be blank"
        elif kind == "toolUse":
            assert isinstance(value["input"], dict), "input is an object"
            assert value["toolUseId"]
            if value.get("type") == "server_tool_use":
                of_provider.add(value["toolUseId"])
            else:
                calls.append(value["toolUseId"])
        elif kind == "toolResult":
            assert isinstance(value["content"], list), "a result has content"
            results.add(value["toolUseId"])
        elif kind == "image":
            assert {"format", "source"} <= value.keys(), "an image has a format and a source"
    assert of_provider == results, "the provider's own calls have their results"
    assert calls == [called.call_id for called in reply.tool_calls], "no call is half sent"


# what arrives


def test_text_arrives_piece_by_piece() -> None:
    events, result = decode(message(text("It is 5.", pieces=4)), step=3)
    assert events == [TextDelta(3, "It"), TextDelta(3, " i"), TextDelta(3, "s "), TextDelta(3, "5.")]
    assert result == StepResult(
        text="It is 5.",
        tool_calls=(),
        usage=Usage(10, 5),
        finish_reason="stop",
        raw_stop_reason="end_turn",
        raw_usage={"inputTokens": 10, "outputTokens": 5, "totalTokens": 15},
        message={"role": "assistant", "content": [{"text": "It is 5."}]},
    )


def test_text_may_have_a_start_or_none() -> None:
    for block in (
        raw_block(None, {"text": "It "}, {"text": ""}, {"text": "is 5."}),
        raw_block({}, {"text": "It is 5."}),
        raw_block({"text": ""}, {"text": "It is 5."}),
        raw_block({"text": "It "}, {"text": "is 5."}),
        raw_block({"text": None}, {"text": "It is 5."}),
        raw_block(
            {"toolResult": None, "text": None},
            dict.fromkeys(("citation", "toolUse", "image"), None) | {"text": "It is 5."},
        ),
        raw_block(
            None, {"text": None}, dict.fromkeys(("reasoningContent", "toolResult", "odd"), None), {"text": "It is 5."}
        ),
    ):
        events, result = decode(message(block))
        assert all(type(one) is TextDelta and one.text for one in events), "an empty delta makes no event"
        assert "".join(one.text for one in events) == result.text == "It is 5."
        assert result.message == {"role": "assistant", "content": [{"text": "It is 5."}]}


def test_a_call_arrives_in_pieces_and_is_parsed_once() -> None:
    events, result = decode(message(tool_use("add", '{"a": 2, "b": 3}', id="tooluse_1", pieces=2)))
    assert events == [
        ToolCallStarted(0, "tooluse_1", "add"),
        ToolCallDelta(0, "tooluse_1", '{"a": 2,'),
        ToolCallDelta(0, "tooluse_1", ' "b": 3}'),
        ToolCallReceived(0, "tooluse_1", "add", {"a": 2, "b": 3}),
    ]
    assert result.tool_calls == (ToolCall("tooluse_1", "add", {"a": 2, "b": 3}),)
    assert (result.finish_reason, result.raw_stop_reason) == ("tool-calls", "tool_use")
    arguments = '{"text": "ü\\n\\u00e9 \\"x\\"", "n": [1, 2.5, null, true], "o": {}}'
    events, result = decode(message(tool_use("f", arguments, pieces=len(arguments))))
    assert "".join(one.arguments for one in events if type(one) is ToolCallDelta) == arguments
    assert result.tool_calls[0].arguments == json.loads(arguments)


def test_names_become_the_callers() -> None:
    events, result = decode(message(tool_use("my_tool_1", {})), name={"my_tool_1": "my/tool"}.__getitem__)
    assert {one.name for one in events if type(one) is not ToolCallDelta} == {"my/tool"}
    assert result.tool_calls[0].name == "my/tool"
    assert result.message is not None
    assert result.message["content"][0]["toolUse"]["name"] == "my_tool_1", "what is resent keeps the provider's name"


def test_blocks_may_be_interleaved_and_out_of_order() -> None:
    blocks = (text("ab", pieces=2), tool_use("f", {"a": 1}, id="1"), text("cd", pieces=2), tool_use("g", {}, id="2"))
    expected = result_of(*blocks)
    begun, *events, stopped, metadata = message(*blocks)
    of_block: dict[int, list[Event]] = {}
    for one in events:
        of_block.setdefault(next(iter(one.values()))["contentBlockIndex"], []).append(one)
    turns = max(map(len, of_block.values()))
    interleaved = [one[turn] for turn in range(turns) for one in of_block.values() if turn < len(one)]
    backwards = [one for index in sorted(of_block, reverse=True) for one in of_block[index]]
    for shuffled in (interleaved, backwards):
        decoded, result = decode([begun, *shuffled, stopped, metadata])
        assert result == expected
        received = {one.call_id: one.arguments for one in decoded if type(one) is ToolCallReceived}
        assert received == {"1": {"a": 1}, "2": {}}


def test_an_index_that_is_used_again_loses_nothing() -> None:
    """Some gateways give every block the same."""
    blocks = [tool_use("f", {"a": 1}, id="1"), tool_use("g", {}, id="2"), raw_block({"text": "a"}, {"text": "b"})]
    events = message(*blocks)
    expected = decode(events)
    for one in events:
        payload = next(iter(one.values()))
        if "contentBlockIndex" in payload:
            payload["contentBlockIndex"] = 0
    assert decode(events) == expected
    unstopped = [one for one in events if "contentBlockStop" not in one]
    assert decode(unstopped)[1] == expected[1]
    decoder = BedrockDecoder()
    for one in (call(0), call(0, toolUseId="2")):
        list(decoder.feed(one))
    assert [called.call_id for called in decoder.draft().tool_calls] == ["1"], "the first is over, the second is not"


def test_a_block_whose_end_never_came_ends_with_the_message() -> None:
    events = [one for one in message(tool_use("f", {"a": 1}, id="1")) if "contentBlockStop" not in one]
    decoded, result = decode(events)
    assert decoded[-1] == ToolCallReceived(0, "1", "f", {"a": 1})
    assert result.tool_calls == (ToolCall("1", "f", {"a": 1}),)


def test_nothing_follows_the_end_of_an_answer() -> None:
    """Neither in a block that has ended, nor in a new one, nor with another reason."""
    blocks = (tool_use("f", {"a": 1}, id="1"), text("5"))
    *events, stopped, metadata = message(*blocks)
    expected = decode([*events, stopped, metadata])
    late = [
        piece(0, toolUse={"input": "}}}"}),
        piece(0, text="late"),
        piece(0, odd={"x": 1}),
        piece(1, text="late"),
        piece(1, citation={}),
        start(0, toolUse={"toolUseId": "x", "name": "late"}),
        stop(0),
    ]
    assert decode([*events, *late[:5], stopped, metadata]) == expected
    more = [
        *late,
        start(5, toolUse={"toolUseId": "2", "name": "late"}),
        stop(5),
        piece(6, text="late"),
        {"messageStop": {"stopReason": "end_turn"}},
    ]
    for ending in ([stopped, *more, metadata], [stopped, metadata, *more]):
        decoded, result = decode([*events, *ending])
        assert (decoded, result.message, result.text) == (expected[0], expected[1].message, "5")
        assert result.tool_calls == expected[1].tool_calls
        assert result.raw_stop_reason == "tool_use"
    # but what the provider says of it counts
    with pytest.raises(ServerError):
        decode([*events, stopped, {"internalServerException": {"message": "late"}}])


# what is sent again


@pytest.fixture
def adapter() -> Iterator[BedrockAdapter]:
    with BedrockServer() as server:
        client = server.client()
        yield BedrockAdapter(client, model="m")
        client.close()


def test_reasoning_round_trips_byte_for_byte_and_in_order(adapter: BedrockAdapter) -> None:
    blocks = (
        reasoning("one\n", "s1", pieces=3),
        redacted(b"\x00\xff", b"\xfe", b"+/="),
        raw_block(None, {"reasoningContent": {"signature": SIGNATURE[:5]}}, *reasoning("", SIGNATURE[5:]).deltas),
        text("a"),
        tool_use("f", {"x": 1}, id="1"),
        reasoning("unsigned", None),
        text("b"),
        tool_use("g", None, id="2"),
    )
    events, reply = decode(message(*blocks))
    assert "".join(one.text for one in events if type(one) is ReasoningDelta) == "one\nunsigned"
    results = [ToolResult("1", "f", "yes"), ToolResult("2", "g", error="no")]
    conversation = adapter.append(adapter.begin([], "hello"), reply, results)
    body = adapter.request(Step(1, json.loads(json.dumps(conversation))))
    assert body["messages"][1] == {
        "role": "assistant",
        "content": [
            {"reasoningContent": {"reasoningText": {"text": "one\n", "signature": "s1"}}},
            {"reasoningContent": {"redactedContent": blob(b"\x00\xff\xfe+/=")}},
            {"reasoningContent": {"reasoningText": {"text": "", "signature": SIGNATURE}}},
            {"text": "a"},
            {"toolUse": {"toolUseId": "1", "name": "f", "input": {"x": 1}}},
            {"reasoningContent": {"reasoningText": {"text": "unsigned"}}},
            {"text": "b"},
            {"toolUse": {"toolUseId": "2", "name": "g", "input": {}}},
        ],
    }
    assert body["messages"][2] == {
        "role": "user",
        "content": [
            {"toolResult": {"toolUseId": "1", "content": [{"text": "yes"}]}},
            {"toolResult": {"toolUseId": "2", "content": [{"text": "no"}], "status": "error"}},
        ],
    }


def test_reasoning_may_have_a_start() -> None:
    block = raw_block({"reasoningContent": {"text": "h"}}, *reasoning("m", "s").deltas)
    assert content_of(block, text("5"))[0] == {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "s"}}}


def test_reasoning_that_nothing_follows_is_not_resent() -> None:
    """As the token limit leaves it; the API refuses it at the end of a message."""
    assert result_of(reasoning("hm", None), stop_reason="max_tokens").message is None
    assert result_of(reasoning("hm"), redacted(b"x"), stop_reason="max_tokens").message is None
    assert content_of(text("a"), reasoning("hm"), stop_reason="max_tokens") == [{"text": "a"}]


def test_citations_are_collected_in_their_block() -> None:
    around = raw_block(None, {"citation": CITATION}, {"text": "It is "}, {"citation": {"title": "u"}}, {"text": "5."})
    assert content_of(around) == [
        {"citationsContent": {"content": [{"text": "It is 5."}], "citations": [CITATION, {"title": "u"}]}}
    ]
    assert result_of(around).text == "It is 5."
    for silent in (raw_block(None, {"citation": CITATION}), cited(" \n", CITATION)):
        assert content_of(silent) == [{"citationsContent": {"citations": [CITATION]}}], "the API takes no blank text"


def test_blank_text_is_an_event_but_is_not_resent() -> None:
    events, result = decode(message(reasoning("hm"), text("\n\n", pieces=1), tool_use("f", {}, id="1"), text("")))
    assert TextDelta(0, "\n\n") in events
    assert result.text == "\n\n"
    assert result.message is not None
    assert [next(iter(block)) for block in result.message["content"]] == ["reasoningContent", "toolUse"]
    assert content_of(text("\n\n5\n"))[0]["text"] == "\n\n5\n", "white space around text is the model's own"


def test_an_empty_reply_is_an_answer() -> None:
    events, result = decode(message())
    assert events == []
    assert (result.text, result.finish_reason, result.message) == ("", "stop", None)


def test_what_the_provider_ran_itself_is_resent_untouched_and_not_run() -> None:
    search = server_tool("nova_grounding", {"query": "q"}, {"text": "found"}, {"json": {"a": [1]}}, id="s_1")
    events, result = decode(message(text("I search."), search, text("Found.")))
    assert {type(one) for one in events} == {TextDelta}
    assert (result.tool_calls, result.finish_reason) == ((), "stop")
    assert result.message is not None
    assert result.message["content"][1:3] == [
        {"toolUse": {"toolUseId": "s_1", "name": "nova_grounding", "type": "server_tool_use", "input": {"query": "q"}}},
        {
            "toolResult": {
                "toolUseId": "s_1",
                "type": "nova_grounding_result",
                "status": "success",
                "content": [{"text": "found"}, {"json": {"a": [1]}}],
            }
        },
    ]
    silent = content_of(server_tool("search", {}, id="s_1"))
    assert silent[1]["toolResult"]["content"] == [], "a result has content, be it empty"


def test_a_call_of_the_providers_and_its_result_need_each_other() -> None:
    asked, answered = server_tool("search", {}, {"text": "x"}, id="s_1")
    assert content_of(text("a"), asked, stop_reason="max_tokens") == [{"text": "a"}]
    assert content_of(text("a"), answered) == [{"text": "a"}]
    assert result_of(answered).message is None
    # neither does it answer a call of the caller's side
    result = result_of(tool_use("f", {}, id="s_1"), answered)
    assert result.message is not None
    check_resendable(result)
    assert len(result.message["content"]) == 1


def test_a_call_that_names_its_type_is_resent_without_it() -> None:
    for kind in ("tool_use", None):
        assert content_of(raw_block({"toolUse": {"toolUseId": "1", "name": "f", "type": kind}})) == [
            {"toolUse": {"toolUseId": "1", "name": "f", "input": {}}}
        ]


def test_images_are_joined_and_resent_where_they_are_whole() -> None:
    pieces = [{"image": {"source": {"bytes": blob(data)}}} for data in (PNG[:2], PNG[2:3], PNG[3:])]
    joined = raw_block({"image": {"format": "png"}}, *pieces)
    assert content_of(joined) == [{"image": {"format": "png", "source": {"bytes": blob(PNG)}}}]
    located = {"s3Location": {"uri": "s3://b/k"}}
    elsewhere = raw_block({"image": {"format": "png"}}, {"image": {"source": located}})
    assert content_of(elsewhere) == [{"image": {"format": "png", "source": located}}]
    # the API takes neither without the other
    failed = raw_block({"image": {"format": "png"}}, {"image": {"error": {"message": "blocked"}}})
    for half in (failed, raw_block({"image": {"format": "png"}}), raw_block(None, *pieces)):
        assert content_of(half, text("5")) == [{"text": "5"}]


def test_unknown_blocks_are_kept_and_unknown_deltas_of_known_ones_left_out() -> None:
    odd = raw_block(
        {"hologram": {"shade": "x", "level": 1, "marks": ["a"]}},
        {"hologram": {"shade": "y"}},
        {"hologram": {"level": 2, "marks": ["b"], "depth": {"z": 1}}},
        {"other": {"shade": "z"}},
        {"hologram": "x"},
        {"text": "lost"},
        {"toolUse": {"input": "lost"}},
        {"reasoningContent": {"text": "lost"}},
        {"citation": CITATION},
    )
    events, result = decode(message(odd, text("5")))
    assert events == [TextDelta(0, "5")]
    assert result.message is not None
    assert result.message["content"][0] == {
        "hologram": {"shade": "xy", "level": 2, "marks": ["a", "b"], "depth": {"z": 1}}
    }
    assert content_of(raw_block(None, {"hologram": {"shade": "x"}}, {"hologram": {"shade": "y"}}), text("5"))[0] == {
        "hologram": {"shade": "xy"}
    }
    noise: list[Event] = [{"odd": {"text": "x"}}, {"odd": "x"}, {"image": {"source": {"bytes": blob(PNG)}}}, {}]
    for block in (text("5"), tool_use("f", {"a": 1}, id="1"), reasoning("hm")):
        noisy = Block(block.start, (*block.deltas, *noise))
        assert decode(message(noisy, text("x"))) == decode(message(block, text("x")))


def test_unknown_starts_and_events_are_no_fault() -> None:
    events = [
        *message(text("5"))[:-1],
        {"messageStop": {"stopReason": "end_turn"}},
        {"futureEvent": {"items": [1]}},
        {"futureEvent": None},
        {},
        message()[-1],
    ]
    assert decode(events)[1].text == "5"
    for odd in ("x", ["x"], 5, True):
        assert content_of(raw_block({"future": odd}, {"future": "x"}), text("5")) == [{"text": "5"}]
    # in a frame, which need not even hold JSON
    frames = [
        event("futureEvent", b"no JSON \xff", "text/plain"),
        event("initial-response"),
        event("futureEvent", b"[NaN]"),
        frame({":message-type": "future", ":event-type": "odd"}, b"x"),
        frame({":event-type": "odd"}),
    ]
    known = [encoded(one) for one in message(text("5"))]
    assert decode_bytes([part for one in known for part in (*frames, one)]) == decode_bytes(known)


# arguments


def test_no_arguments_are_an_empty_object() -> None:
    for inputs in ((), ("",), ("", ""), (None,), (" ", "\n")):
        deltas = [{"toolUse": {"input": value}} for value in inputs]
        first: Event = {} if inputs else {"input": ""}
        events, result = decode(message(raw_block({"toolUse": {"toolUseId": "1", "name": "f", **first}}, *deltas)))
        assert [one for one in events if type(one) is not ToolCallDelta] == [
            ToolCallStarted(0, "1", "f"),
            ToolCallReceived(0, "1", "f", {}),
        ]
        assert result.tool_calls == (ToolCall("1", "f", {}),)
        assert result.message is not None
        assert result.message["content"] == [{"toolUse": {"toolUseId": "1", "name": "f", "input": {}}}]


@pytest.mark.parametrize(
    "raw",
    [
        *('{"a": 1', "[1, 2]", '"text"', "5", "null", "{'a': 1}", '{"a": 1}}', "{}{}"),
        *('{"a": NaN}', '{"a": [Infinity]}', '{"a": 1e999}', '{"a": "\\ud800"}'),
    ],
)
def test_arguments_that_are_no_object_stay_raw(raw: str) -> None:
    events, result = decode(message(tool_use("f", raw, id="1")))
    assert events[-1] == ToolCallReceived(0, "1", "f", raw)
    assert result.tool_calls == (ToolCall("1", "f", raw),)
    assert not result.tool_calls[0].truncated
    assert result.message is not None
    sent = result.message["content"][0]["toolUse"]["input"]
    assert sent == {"INVALID_JSON": raw}, "the API takes nothing but an object back"
    check_resendable(result)


def test_arguments_may_come_as_an_object() -> None:
    fields = {"toolUseId": "1", "name": "f"}
    in_start = raw_block({"toolUse": {**fields, "input": {"a": [1]}}})
    in_delta = raw_block({"toolUse": fields}, {"toolUse": {"input": {"a": [1]}}})
    as_text = raw_block({"toolUse": {**fields, "input": '{"a": '}}, {"toolUse": {"input": "[1]}"}})
    for block in (in_start, in_delta, as_text):
        assert result_of(block).tool_calls == (ToolCall("1", "f", {"a": [1]}),)
        assert content_of(block) == [{"toolUse": {**fields, "input": {"a": [1]}}}]
    for odd, raw in (([1], "[1]"), (5, "5"), (False, "false")):
        block = raw_block({"toolUse": fields}, {"toolUse": {"input": odd}})
        assert result_of(block).tool_calls == (ToolCall("1", "f", raw),)


@pytest.mark.parametrize("stop_reason", ["max_tokens", "model_context_window_exceeded"])
@pytest.mark.parametrize("raw", [None, "", '{"a"', '{"a": 1, "b": "x'])
def test_a_call_that_the_token_limit_cut_off(raw: str | None, stop_reason: str) -> None:
    first = tool_use("f", {"a": 1}, id="0")
    events, result = decode(message(first, tool_use("f", raw, id="1"), stop_reason=stop_reason))
    assert result.tool_calls == (ToolCall("0", "f", {"a": 1}), ToolCall("1", "f", raw or "", truncated=True))
    assert events[-1] == ToolCallReceived(0, "1", "f", raw or "")
    assert result.finish_reason == "length"
    assert result.message is not None
    sent = result.message["content"][1]["toolUse"]["input"]
    assert sent == ({"INVALID_JSON": raw} if raw else {})


def test_a_call_that_is_complete_at_the_token_limit_is_whole() -> None:
    result = result_of(tool_use("f", {"a": 1}, id="1"), stop_reason="max_tokens")
    assert result.tool_calls == (ToolCall("1", "f", {"a": 1}),)
    followed = message(tool_use("f", None, id="1"), stop_reason="max_tokens")
    for more in ([piece(1, text="and")], [start(1)], [start(1, future="x")], [start(0, text="and")]):
        decoded, result = decode([*followed[:-2], *more, *followed[-2:]])
        assert not result.tool_calls[0].truncated, "what follows it was cut off, not the call"
        received = [one.arguments for one in decoded if type(one) is ToolCallReceived]
        assert received == [result.tool_calls[0].arguments] == [{}], "what is told is what is run"


def test_the_call_that_came_last_is_the_one_that_was_cut_off() -> None:
    decoded, result = decode(
        [call(7), stop(7), call(2, toolUseId="2"), piece(2, toolUse={"input": '{"a'}), *end("max_tokens")]
    )
    assert result.tool_calls == (ToolCall("2", "f", '{"a', truncated=True), ToolCall("1", "f", {}))
    assert [one.arguments for one in decoded if type(one) is ToolCallReceived] == [{}, '{"a']


def test_calls_without_an_id_or_with_a_shared_one_are_told_apart() -> None:
    blocks: list[Block | tuple[Block, Block]] = [
        server_tool("search", {}, id="s"),
        *(tool_use("f", {"a": number}, id=shared) for number, shared in enumerate(["1", "1", "1_2", "1", "s"])),
        *(raw_block({"toolUse": {"toolUseId": missing, "name": "f"}}) for missing in ("", None, 5, ["x"])),
        raw_block({"toolUse": {"name": "f"}}),
    ]
    events, result = decode(message(*blocks))
    ids = ["1", "1_2", "1_2_2", "1_3", "s_2", *(f"tooluse_missing_{number}" for number in range(1, 6))]
    assert [called.call_id for called in result.tool_calls] == ids
    for kind in (ToolCallStarted, ToolCallReceived):
        assert [one.call_id for one in events if type(one) is kind] == ids
    check_resendable(result)


# usage and ends


def test_usage_is_converted_and_the_own_figures_are_kept() -> None:
    figures = {
        "inputTokens": 10,
        "outputTokens": 50,
        "totalTokens": 380,
        "cacheReadInputTokens": 300,
        "cacheWriteInputTokens": 20,
        "cacheDetails": [{"ttl": "1h", "inputTokens": 20}],
    }
    result = result_of(text("5"), usage=figures)
    assert result.usage == Usage(330, 50, cache_read_tokens=300, cache_write_tokens=20)
    assert result.raw_usage == figures
    assert usage_from({"inputTokens": 1, "cacheReadInputTokenCount": 2, "cacheWriteInputTokenCount": 3}) == Usage(
        6, 0, cache_read_tokens=2, cache_write_tokens=3
    )
    assert usage_from({"inputTokens": None}) == Usage()
    twice = [*end(inputTokens=7, outputTokens=3), {"metadata": {"usage": {"inputTokens": None, "outputTokens": 4}}}]
    assert decode(twice)[1].usage == Usage(7, 4), "the last figure wins, and none is no figure"


def test_every_stop_reason_has_its_meaning() -> None:
    known = {
        "end_turn": "stop",
        "stop_sequence": "stop",
        "tool_use": "stop",
        "max_tokens": "length",
        "model_context_window_exceeded": "length",
        "guardrail_intervened": "content-filter",
        "content_filtered": "content-filter",
        "malformed_model_output": "error",
        "malformed_tool_use": "error",
        "a_future_reason": "other",
    }
    for reason, meaning in known.items():
        result = result_of(text("a"), stop_reason=reason)
        assert (result.finish_reason, result.raw_stop_reason) == (meaning, reason)
        result = result_of(tool_use("f", {"a": 1}), stop_reason=reason)
        # what is to be run is decided from the content
        assert result.finish_reason == ("tool-calls" if meaning in ("stop", "other") else meaning)
        assert len(result.tool_calls) == 1
    assert result_of(text("a"), stop_reason="tool_use").finish_reason == "stop", "there is nothing to run"
    for missing in ({}, {"stopReason": None}):
        assert decode([{"messageStop": missing}])[1].finish_reason == "other"


def test_every_stop_reason_of_the_sdk_is_known(adapter: BedrockAdapter) -> None:
    model = adapter.client.meta.service_model
    assert set(model.shape_for("StopReason").enum) <= FINISH_REASONS.keys()


def test_an_answer_without_its_usage_is_an_answer() -> None:
    *events, stopped, metadata = message(text("5"))
    decoder = BedrockDecoder()
    for one in events:
        list(decoder.feed(one))
    assert decoder.draft().warnings == (), "it may still come"
    list(decoder.feed(stopped))
    (result,) = decoder.close()
    assert decoder.complete
    assert (result.text, result.finish_reason, result.usage) == ("5", "stop", Usage())
    (warning,) = result.warnings
    assert "usage" in warning
    without: Event = {"metadata": {"metrics": {}}}
    assert decode([*events, stopped, without])[1].warnings == (warning,)
    assert decode([*events, stopped, metadata])[1].warnings == ()


def test_metadata_may_come_before_the_end() -> None:
    *events, stopped, metadata = message(text("5"))
    decoder = BedrockDecoder()
    for one in (metadata, *events):
        list(decoder.feed(one))
    assert not decoder.complete
    assert decoder.draft().usage == Usage(10, 5)
    list(decoder.feed(stopped))
    assert decoder.close() == (decode([*events, stopped, metadata])[1],)


def test_an_answer_whose_end_never_came_is_interrupted() -> None:
    *events, _, metadata = message(text("5"))
    for begun in (events, [*events, metadata], []):
        with pytest.raises(StreamInterruptedError, match="messageStop"):
            decode(begun)
        with pytest.raises(StreamInterruptedError):
            decode_bytes(map(encoded, begun))


def test_what_follows_the_last_event_is_of_no_interest_however_it_is_cut() -> None:
    frames = [encoded(one) for one in message(text("5"))]
    for more in (exception("internalServerException", "late"), b"\0" * 20, encoded(piece(0, text="late"))):
        assert decode_bytes([b"".join([*frames, more])]) == decode_bytes(frames)


# errors


@pytest.mark.parametrize(
    ("code", "fields", "expected", "retryable"),
    [
        ("throttlingException", {}, RateLimitedError, True),
        ("modelStreamErrorException", {"originalStatusCode": 500, "originalMessage": "x"}, ServerError, True),
        ("modelStreamErrorException", {"originalStatusCode": 400}, ServerError, True),
        ("modelErrorException", {}, ServerError, True),
        ("modelTimeoutException", {}, ServerError, True),
        ("modelNotReadyException", {}, OverloadedError, True),
        ("internalServerException", {}, ServerError, True),
        ("serviceUnavailableException", {}, OverloadedError, True),
        ("serviceQuotaExceededException", {}, RateLimitedError, False),
        ("validationException", {}, InvalidRequestError, False),
        ("accessDeniedException", {}, PermissionDeniedError, False),
        ("expiredTokenException", {}, AuthenticationError, False),
        ("resourceNotFoundException", {}, ModelNotFoundError, False),
        ("aFutureException", {}, ServerError, True),
    ],
)
def test_an_error_inside_the_stream(code: str, fields: Event, expected: type[ProviderError], retryable: bool) -> None:
    told = {"message": "what it says", **fields}
    capitalised = code[:1].upper() + code[1:]
    frames = [exception(code, "what it says", **fields), exception(capitalised, "what it says", "Message", **fields)]
    frames += [error(capitalised, "what it says"), event(code, json.dumps(told).encode())]
    for one in frames:
        with pytest.raises(expected, match="what it says") as caught:
            decode_bytes([*map(encoded, message(text("so far"))[:3]), one])
        found = caught.value
        assert type(found) is expected
        assert (found.retryable, found.status, found.provider) == (retryable, None, "bedrock")
    # as the SDK may hand it out
    with pytest.raises(expected, match="what it says"):
        list(BedrockDecoder().feed({code: told}))


def test_an_error_inside_the_stream_may_say_anything() -> None:
    for payload in (b"", b"text", b"[1]", b"null", b"\xff", b'{"message": null}', b'{"message": ["x"]}', b"{" * 999):
        headers = {":message-type": "exception", ":exception-type": "throttlingException"}
        with pytest.raises(RateLimitedError) as caught:
            decode_bytes([frame(headers, payload)])
        assert str(caught.value), payload
    with pytest.raises(RateLimitedError, match=r"^throttlingException$"):
        decode_bytes([frame({":message-type": "exception", ":exception-type": "throttlingException"}, b"{}")])
    for headers in ({":message-type": "exception"}, {":message-type": "error"}):
        with pytest.raises(ServerError, match="the provider reported an error"):
            decode_bytes([frame(headers, b"{}")])
    with pytest.raises(ContextOverflowError):
        decode_bytes([exception("validationException", "Input is too long for requested model.")])
    with pytest.raises(RateLimitedError) as caught:
        decode_bytes([exception("throttlingException", "x" * 100_000)])
    assert len(str(caught.value)) < 2_100


# cut anywhere


def test_input_cut_at_every_byte_is_the_same_reply() -> None:
    frames = [encoded(one, filler=0) for one in message(*EVERY_BLOCK)]
    body = b"".join(frames)
    expected = decode_bytes([body])
    for offset in range(1, len(body)):
        assert decode_bytes(split_at(body, offset)) == expected, offset
    for size in (1, 2, 7, 64):
        assert decode_bytes(split_every(body, size)) == expected


def test_input_that_ends_at_any_byte_leaves_what_can_be_sent_again() -> None:
    frames = [encoded(one, filler=0) for one in message(*EVERY_BLOCK, stop_reason="end_turn")]
    body, stopped = b"".join(frames), len(b"".join(frames[:-1]))
    wrapped = BedrockDecoder()
    decoder = BedrockBytesDecoder(wrapped)
    texts, ends = "", {sum(map(len, frames[:count])) for count in range(len(frames) + 1)}
    for offset in range(len(body)):
        texts += "".join(one.text for one in decoder.feed(body[offset : offset + 1]) if type(one) is TextDelta)
        if offset + 1 not in ends:
            continue
        draft = wrapped.draft()
        check_resendable(draft)
        assert draft.text == texts
        assert (draft.finish_reason == "aborted") == (offset + 1 < stopped)
        if offset + 1 < stopped:
            with pytest.raises(StreamInterruptedError):
                decode_bytes([body[: offset + 1]])
    for offset in range(stopped):
        with pytest.raises(StreamInterruptedError):
            decode_bytes([body[:offset]])
    for offset in range(stopped, len(body)):
        assert decode_bytes([body[:offset]])[1].warnings


def test_half_a_block_is_not_sent_again() -> None:
    for block in EVERY_BLOCK:
        events = [one for one in message(text("a"), block) if not one.keys() & {"messageStop", "metadata"}]
        for count in range(3, len(events)):
            decoder = BedrockDecoder()
            for one in (*events[:count], piece(9, text="z")):
                list(decoder.feed(one))
            draft = decoder.draft()
            check_resendable(draft)
            assert draft.message is not None
            # nothing but text may be cut off anywhere
            textual = count > 3 and block in EVERY_BLOCK[2:5]
            assert len(draft.message["content"]) == 2 + textual, events[:count]


def test_of_a_broken_reply_reasoning_is_sent_again_only_as_it_was_sealed() -> None:
    decoder = BedrockDecoder()
    for one in message(reasoning("a", None), reasoning("b", "s"), redacted(b"x"), text("t"))[:-2]:
        list(decoder.feed(one))
    draft = decoder.draft()
    assert draft.message is not None
    assert draft.message["content"] == [
        {"reasoningContent": {"reasoningText": {"text": "b", "signature": "s"}}},
        {"reasoningContent": {"redactedContent": blob(b"x")}},
        {"text": "t"},
    ]


# whole replies


def test_a_whole_reply_is_the_same_as_a_streamed_one() -> None:
    sent = content_of(*EVERY_BLOCK)
    streamed = result_of(*EVERY_BLOCK)
    body = whole(*sent, stop_reason="tool_use")
    for pieces in ([body], split_every(body, 7)):
        events, result = decode_bytes(pieces)
        # arguments that did not parse were resent as an object
        assert result.tool_calls[-1].arguments == {"INVALID_JSON": '{"a": '}
        assert result.message == streamed.message
        assert (result.text, result.usage, result.finish_reason) == (streamed.text, Usage(10, 5), "tool-calls")
        assert [one.call_id for one in events if type(one) is ToolCallStarted] == [
            called.call_id for called in result.tool_calls
        ]
        assert [one.arguments for one in events if type(one) is ToolCallReceived] == [
            called.arguments for called in result.tool_calls
        ]
        assert "".join(one.text for one in events if type(one) is TextDelta) == streamed.text
        assert "".join(one.text for one in events if type(one) is ReasoningDelta) == "hmm, näh"


def test_a_whole_reply_may_hold_anything() -> None:
    assert decode_bytes([whole()])[1].message is None
    nulls = whole({"text": None, "toolUse": None, "image": {"format": "png", "source": {"bytes": blob(PNG)}}})
    assert decode_bytes([nulls])[1].message == result_of(image(PNG)).message
    odd: Event = {"hologram": {"a": [1]}}
    assert decode_bytes([whole(odd, {"text": "5"})])[1].message == {
        "role": "assistant",
        "content": [odd, {"text": "5"}],
    }
    cut_off = {"toolUse": {"toolUseId": "1", "name": "f", "input": {}}}
    assert decode_bytes([whole(cut_off, stop_reason="max_tokens")])[1].tool_calls[0].truncated
    body = whole({"text": "5"})
    for offset in range(len(body)):
        with pytest.raises(StreamInterruptedError):
            decode_bytes([body[:offset]])
    for other in (b'{"message": "no"}', b'{"output": null}', b'{"output": {}}', b'{"output": {"message": null}}'):
        with pytest.raises(MalformedResponseError, match="message"):
            decode_bytes([other])
    for broken in (b"{]", b'{"output": NaN}', body + b"x", b'{"a": "\xff"}'):
        with pytest.raises(MalformedResponseError, match="JSON"):
            decode_bytes([broken])


# the bytes and the SDK's events


def test_the_sdks_events_make_what_the_bytes_make() -> None:
    options: Any = {"usage": {"inputTokens": 10, "outputTokens": 5, "cacheReadInputTokens": 3}}
    replies = [[*message(*EVERY_BLOCK, **options)]]
    replies += [[*message(text("a"), block, text("z"), stop_reason="max_tokens")] for block in EVERY_BLOCK]
    with BedrockServer() as server:
        client = server.client()
        if not sdk_knows_images(client):
            client.close()
            pytest.skip("needs a botocore that knows images in replies")
        for events in replies:
            server.reply_frames(*events)
            stream = client.converse_stream(modelId="m", messages=[])["stream"]
            public = list(stream)
            stream.close()
            assert events is not replies[0] or repr(PNG) in str(public), "the SDK's events have bytes"
            assert decode(public) == decode_bytes(map(encoded, events)) == decode(events)
        client.close()


def test_what_the_sdk_does_not_know_is_left_out() -> None:
    known = message(text("5"), tool_use("f", {}))
    with BedrockServer() as server:
        client = server.client()
        server.unknown(text("5"), tool_use("f", {}))
        stream = client.converse_stream(modelId="m", messages=[])["stream"]
        public = list(stream)
        stream.close()
        client.close()
    assert "SDK_UNKNOWN_MEMBER" in str(public), "the SDK tells it in another way now"
    assert decode(public) == decode(known)
    bytewise = decode_bytes(map(encoded, message(unknown_block(), text("5"), tool_use("f", {}))))
    assert bytewise[0] == decode(known)[0]
    assert bytewise[1].tool_calls == decode(known)[1].tool_calls
    assert list(BedrockDecoder().feed(unknown_event())) == []


# what is not as the API says

WRONG: list[list[Event]] = [
    [piece("0", text="a")],
    [piece([0], text="a")],
    [piece(None, text="a")],
    [piece(1.5, text="a")],
    [{"contentBlockDelta": {"delta": {"text": "a"}}}],
    [{"contentBlockDelta": {"contentBlockIndex": 0}}],
    [{"contentBlockDelta": {"contentBlockIndex": 0, "delta": None}}],
    [piece(0, text=5)],
    [piece(0, text="a"), piece(0, text=5)],
    [piece(0, text="a"), piece(0, citation="x")],
    [piece(0, reasoningContent="x")],
    [piece(0, reasoningContent={"text": 5})],
    [piece(0, reasoningContent={"text": "a"}), piece(0, reasoningContent={"signature": 5})],
    [piece(0, reasoningContent={"signature": "a", "redactedContent": "no base64"})],
    [piece(0, reasoningContent={"redactedContent": "ü"})],
    [piece(0, reasoningContent={"redactedContent": 5})],
    [start("0", text="")],
    [start(True, text="")],
    [start(0, text=5)],
    [{"contentBlockStart": {"contentBlockIndex": 0, "start": "x"}}],
    [start(0, toolUse="x")],
    [start(0, toolUse={"toolUseId": "1"})],
    [start(0, toolUse={"toolUseId": "1", "name": ["f"]})],
    [start(0, toolUse={"name": "f", "type": "server_tool_use"})],
    [start(0, toolUse={"toolUseId": ["x"], "name": "f", "type": "server_tool_use"})],
    [start(0, toolResult={"status": "success"})],
    [start(0, toolResult={"toolUseId": ["x"]})],
    [start(0, image="x")],
    [start(0, reasoningContent="x")],
    [call(0), piece(0, toolUse="x")],
    [start(0, image={"format": "png"}), piece(0, image={"source": "x"})],
    [start(0, image={"format": "png"}), piece(0, image={"source": {"bytes": "no base64"}})],
    [start(0, image={"format": "png"}), piece(0, image={"source": {"bytes": 5}})],
    [start(0, hologram={"a": float("inf")})],
    [stop("0")],
    [{"contentBlockStop": {}}],
    [{"messageStop": {"stopReason": 5}}],
    [{"messageStop": "x"}],
    [{"metadata": {"usage": [1]}}],
    [{"metadata": {"usage": {"outputTokens": "12"}}}],
    [{"metadata": {"usage": {"outputTokens": 1.5}}}],
    [{"metadata": {"usage": {"outputTokens": -5}}}],
    [{"metadata": {"usage": {"outputTokens": True}}}],
    [{"metadata": {"usage": {"outputTokens": {}}}}],
    [{"metadata": {"usage": {"outputTokens": 2**63}}}],
    [{"metadata": {"usage": {"inputTokens": 7, "cacheReadInputTokens": -1}}}],
    [{"metadata": {"usage": {"inputTokens": 7, "odd": float("inf")}}}],
]


@pytest.mark.parametrize("events", WRONG, ids=str)
def test_a_wrong_type_fails_where_it_comes(events: list[Event]) -> None:
    decoder = BedrockDecoder()
    *earlier, last = events
    for one in earlier:
        list(decoder.feed(one))
    before = decoder.draft()
    with pytest.raises((AttributeError, LookupError, TypeError, ValueError)):
        list(decoder.feed(last))
    assert decoder.draft() == before
    for one in (stop(0), *end()):
        with contextlib.suppress(TypeError):
            list(decoder.feed(one))
    check_resendable(decoder.draft())


async def pumped(*pieces: bytes) -> Recorder:
    """What a subscriber is told of a body."""

    @asynccontextmanager
    async def connect() -> AsyncIterator[Wire[bytes]]:
        async def items() -> AsyncIterator[bytes]:
            for one in pieces:
                yield one

        yield Wire(items(), BedrockBytesDecoder(BedrockDecoder()))

    recorder = Recorder()
    pump(connect, classify=lambda fault: fault).subscribe(recorder.on_next, recorder.on_error, recorder.on_completed)
    await recorder.ended.wait()
    return recorder


@pytest.mark.asyncio
async def test_a_wrong_type_is_a_malformed_response() -> None:
    for events in WRONG:
        recorder = await pumped(*(encoded(one, filler=0) for one in (piece(7, text="so far"), *events)))
        assert type(recorder.error) is MalformedResponseError, (events, recorder.error)
        assert recorder.error.retryable
        assert recorder.text.startswith("so far")
    for data in (b"[]", b"5", b'"text"', b"null", b"", b"<html>", b'{"a": NaN}', b'{"a": "\xff"}', b"[" * 5000):
        for kind in ("contentBlockDelta", "contentBlockStart", "contentBlockStop", "messageStop", "metadata"):
            recorder = await pumped(event(kind, data))
            assert type(recorder.error) is MalformedResponseError, (kind, data, recorder.error)
    for body in (b'{"output": 5}', b'{"output": {"message": {"content": 5}}}', whole({"text": 5}), whole({"image": 5})):
        assert type((await pumped(body)).error) is MalformedResponseError, body
    assert (await pumped(whole({"text": "5"}))).error is None


def test_nobody_can_change_what_was_decoded() -> None:
    given: list[Event] = [
        call(0, input={"x": {"y": [1]}}),
        stop(0),
        start(1, hologram={"a": [{"b": 1}]}),
        piece(1, hologram={"c": [{"d": 1}]}),
        stop(1),
        piece(2, text="a"),
        piece(2, citation={"location": {"at": [1]}}),
        start(3, toolUse={"toolUseId": "s", "name": "w", "type": "server_tool_use"}),
        stop(3),
        start(4, toolResult={"toolUseId": "s", "content": [{"json": {"a": [1]}}]}),
        piece(4, toolResult=[{"json": {"b": [1]}}]),
        stop(4),
        start(5, image={"format": "png", "source": {"s3Location": {"uri": "u"}}}),
        *end("tool_use", inputTokens=1, cacheDetails=[{"ttl": "5m"}]),
    ]
    decoder = BedrockDecoder()
    decoded = [item for one in given for item in decoder.feed(one)]
    (expected,) = copy.deepcopy(decoder.close())
    spoil(given)
    for one in decoded:
        spoil(getattr(one, "arguments", None))
    assert decoder.draft() == expected
    for _ in range(2):
        draft = decoder.draft()
        assert draft == expected
        spoil(draft.tool_calls[0].arguments)
        assert draft.message == expected.message, "a call and its block are apart"
        spoil(draft.message)
        spoil(draft.raw_usage)


_STRANGE = st.sampled_from(
    [
        None,
        0,
        -1,
        1.5,
        True,
        "",
        " ",
        "x",
        '{"a":',
        [],
        [1],
        {},
        {"a": [1]},
        float("nan"),
        float("inf"),
        "server_tool_use",
    ]
)
_SOURCE: list[Event] = [
    *message(*EVERY_BLOCK, stop_reason="max_tokens"),
    *message(*EVERY_BLOCK[5:9], unknown_block()),
    call(0, input={"a": [1]}),
    call(1, type="server_tool_use"),
    start(2, toolResult={"toolUseId": "1", "content": [{"text": "x"}]}),
    start(0, text=" "),
    start(1, reasoningContent={"signature": "s"}),
    start(2),
    piece(0, odd={"x": "y"}, text="z"),
    piece(1, toolUse={"input": {"a": 1}}),
    *end("tool_use", cacheDetails=[{"ttl": "5m"}]),
]


def places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, item in items for found in ((*place, key), *places(item, (*place, key)))]


@st.composite
def mutated(draw: st.DrawFn) -> Event:
    one = copy.deepcopy(draw(st.sampled_from(_SOURCE)))
    [payload] = one.values()
    if "contentBlockIndex" in payload:
        payload["contentBlockIndex"] = draw(st.integers(0, 2))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        found = places(one)
        if not found:
            break
        *path, key = draw(st.sampled_from(found))
        target: Any = one
        for part in path:
            target = target[part]
        if draw(st.booleans()) or isinstance(target, list):
            target[key] = copy.deepcopy(draw(_STRANGE))
        else:
            del target[key]
    return one


@settings(max_examples=500, deadline=None)
@given(st.lists(mutated(), max_size=12))
def test_whatever_was_fed_makes_a_draft(events: list[Event]) -> None:
    decoder = BedrockDecoder()
    said = ""
    received: dict[str, Any] = {}
    for one in events:
        with contextlib.suppress(AttributeError, LookupError, TypeError, ValueError, ProviderError):
            for item in decoder.feed(one):
                said += item.text if type(item) is TextDelta else ""
                if type(item) is ToolCallReceived:
                    assert item.call_id not in received, "a call is told once"
                    received[item.call_id] = item.arguments
        draft = decoder.draft()
        assert sorted(draft.text) == sorted(said), "blocks may be interleaved, but nothing is lost"
        check_resendable(draft)
        kept = {called.call_id: called.arguments for called in draft.tool_calls}
        assert received.items() <= kept.items() if not decoder.stopped else received == kept, "what is told is run"
