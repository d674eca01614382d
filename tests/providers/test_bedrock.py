from __future__ import annotations

import asyncio
import http.client
import json
import struct
import uuid
from binascii import crc32
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import urllib3
from botocore.eventstream import ChecksumMismatch, EventStreamBuffer
from botocore.exceptions import ClientError, ConnectionClosedError, EventStreamError, ReadTimeoutError

from rxloop.testing.scripted import Call, Reply
from rxloop.usage import Usage
from tests.adapters.bedrock_provider import BedrockProvider
from tests.providers.bedrock import (
    BedrockServer,
    Block,
    Event,
    as_read,
    cited,
    encoded,
    image,
    message,
    raw_block,
    reasoning,
    redacted,
    server_tool,
    text,
    tool_use,
    unknown_event,
)
from tests.providers.eventstream import (
    Typed,
    bad_message_checksum,
    bad_prelude_checksum,
    chunk,
    error,
    event,
    exception,
    frame,
)
from tests.providers.http import Hold

MODEL = "anthropic.claude-sonnet-4-5-v1:0"
PATH = "/model/m/converse-stream"
ASKED: Event = {"messages": [{"role": "user", "content": [{"text": "hi"}]}]}
BEGUN = message(text("abc"))[:4]
CITATION: Event = {
    "title": "t",
    "source": "s",
    "sourceContent": [{"text": "quoted"}],
    "location": {"documentChar": {"documentIndex": 0, "start": 1, "end": 2}},
}
BLOCKS: list[Block | tuple[Block, Block]] = [
    reasoning("hmm, näh"),
    redacted(b"\x00\xff", b"opaque"),
    text("Hello wörld 🌍", pieces=4),
    cited("it is", CITATION),
    server_tool("nova_grounding", {"query": "q"}, {"text": "found"}, {"json": {"a": [1]}}),
    image(b"\x89PNG"),
    tool_use("add", {"a": 1, "b": [2, "x"]}, id="tooluse_1"),
    tool_use("now", {}),
    tool_use("bare", None),
    tool_use("broken", '{"a": '),
]


@pytest.fixture
def server() -> Iterator[BedrockServer]:
    with BedrockServer() as running:
        yield running


@pytest.fixture
def client(server: BedrockServer) -> Iterator[Any]:
    running = server.client()
    yield running
    running.close()


def read(client: Any, seen: list[Event] | None = None, model: str = MODEL) -> list[Event]:
    """The events of a reply; `seen` gets those before a fault too."""
    seen = [] if seen is None else seen
    stream = client.converse_stream(modelId=model, **ASKED)["stream"]
    try:
        for one in stream:
            seen.append(one)
    finally:
        stream.close()
    return seen


def post(
    server: BedrockServer, path: str = PATH, body: Any = ASKED, method: str = "POST", **headers: str
) -> tuple[int, bytes]:
    """A request without the SDK."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
    try:
        connection.request(method, path, json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def unframed(data: bytes) -> list[tuple[dict[str, Any], bytes]]:
    """The headers and the payload of each frame."""
    buffer = EventStreamBuffer()
    buffer.add_data(data)
    return [(found.headers, found.payload) for found in buffer]


# what is sent


@pytest.mark.parametrize("chunk_size", [None, 1, 7])
def test_every_kind_of_block_streams_through_the_sdk(
    server: BedrockServer, client: Any, chunk_size: int | None
) -> None:
    usage = {"inputTokens": 10, "outputTokens": 20, "cacheReadInputTokens": 3, "cacheWriteInputTokens": 4}
    options: Any = {"usage": usage, "additional_fields": {"stop_sequence": "x"}}
    server.reply(*BLOCKS, chunk_size=chunk_size, **options)
    events = read(client)
    assert events == [as_read(one) for one in message(*BLOCKS, **options)]
    redacted_data = [one["contentBlockDelta"]["delta"] for one in events[5:7]]
    assert redacted_data == [{"reasoningContent": {"redactedContent": data}} for data in (b"\x00\xff", b"opaque")]
    assert events[-2] == {
        "messageStop": {"stopReason": "tool_use", "additionalModelResponseFields": {"stop_sequence": "x"}}
    }
    assert events[-1]["metadata"]["usage"] == {**usage, "totalTokens": 37}
    assert server.bodies == [ASKED]
    assert server.requests[0].headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")


@pytest.mark.asyncio
async def test_the_sdk_reads_in_a_thread(server: BedrockServer, client: Any) -> None:
    server.reply(text("abc"), before=[Hold("first")])
    reading = asyncio.ensure_future(asyncio.to_thread(read, client))
    await server.held("first")
    assert not reading.done()
    server.release("first")
    assert await reading == message(text("abc"))
    await server.idle()


@pytest.mark.parametrize(
    "model",
    [
        MODEL,
        "us.amazon.nova-pro-v1:0",
        "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-sonnet-4-5-v1:0",
        "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/abc123",
    ],
)
def test_a_model_may_have_any_name(server: BedrockServer, client: Any, model: str) -> None:
    server.reply(text("ok"))
    read(client, model=model)
    assert server.targets == [model]


def test_a_reply_has_the_documented_events_in_order() -> None:
    assert message(text("ab", pieces=2), tool_use("add", {"a": 1}, pieces=1)) == [
        {"messageStart": {"role": "assistant"}},
        {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "a"}}},
        {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "b"}}},
        {"contentBlockStop": {"contentBlockIndex": 0}},
        {
            "contentBlockStart": {
                "contentBlockIndex": 1,
                "start": {"toolUse": {"toolUseId": "tooluse_add", "name": "add"}},
            }
        },
        {"contentBlockDelta": {"contentBlockIndex": 1, "delta": {"toolUse": {"input": ""}}}},
        {"contentBlockDelta": {"contentBlockIndex": 1, "delta": {"toolUse": {"input": '{"a": 1}'}}}},
        {"contentBlockStop": {"contentBlockIndex": 1}},
        {"messageStop": {"stopReason": "tool_use"}},
        {
            "metadata": {
                "metrics": {"latencyMs": 551},
                "usage": {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15},
            }
        },
    ]


def test_the_end_of_a_reply_may_take_any_form() -> None:
    def end(*blocks: Any, **options: Any) -> tuple[Any, Any]:
        *_, stop, last = message(*blocks, **options)
        return stop["messageStop"]["stopReason"], last["metadata"]

    assert end(text("a"))[0] == "end_turn"
    assert end(server_tool("search", {}))[0] == "end_turn"
    assert end(server_tool("search", {}), tool_use("add", {}))[0] == "tool_use"
    assert end(tool_use("add", {}), stop_reason="end_turn")[0] == "end_turn"
    trace = {"guardrail": {"actionReason": "blocked"}}
    assert end(usage=None, stop_reason="guardrail_intervened", trace=trace) == (
        "guardrail_intervened",
        {"metrics": {"latencyMs": 551}, "trace": trace},
    )
    assert end(usage={"inputTokens": 1, "totalTokens": 9})[1]["usage"] == {"inputTokens": 1, "totalTokens": 9}


def test_builders_can_say_what_the_service_should_not() -> None:
    assert [delta["toolUse"]["input"] for delta in tool_use("t", '{"a": ', pieces=1).deltas] == ["", '{"a": ']
    assert [delta["toolUse"]["input"] for delta in tool_use("t", "").deltas] == [""]
    assert tool_use("t", None).deltas == ()
    assert text("").deltas == ()
    assert reasoning("a", signature=None).deltas == ({"reasoningContent": {"text": "a"}},)
    assert raw_block({}, {"text": "a"}).start == {}
    call, result = server_tool("search", {}, {"text": "x"}, id="s_1", status=None)
    assert (call.start, result.start) == (
        {"toolUse": {"toolUseId": "s_1", "name": "search", "type": "server_tool_use"}},
        {"toolResult": {"toolUseId": "s_1", "type": "search_result"}},
    )
    assert unknown_event("other", x=1) == {"other": {"x": 1}}


# frames


def test_an_event_has_the_recorded_form() -> None:
    ((headers, payload),) = unframed(encoded(BEGUN[1], filler=30))
    assert list(headers.items()) == [
        (":event-type", "contentBlockDelta"),
        (":content-type", "application/json"),
        (":message-type", "event"),
    ]
    assert payload == b'{"contentBlockIndex":0,"delta":{"text":"a"},"p":"abcdefghijklmnopqrstuvwxyzABCD"}'
    assert unframed(encoded({"a": {"z": 1, "b": "ü"}}, filler=0))[0][1] == '{"b":"ü","z":1}'.encode()


def test_events_are_padded_by_lengths_that_vary_and_repeat() -> None:
    events = message(*BLOCKS)
    lengths = {len(json.loads(unframed(encoded(one))[0][1])["p"]) for one in events}
    assert len(lengths) > 10
    assert (min(lengths) >= 1, max(lengths) <= 62) == (True, True)
    assert [encoded(one) for one in events] == [encoded(one) for one in message(*BLOCKS)]


def test_a_header_may_have_any_type() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    name = uuid.UUID(int=7)
    ((headers, payload),) = unframed(
        frame(
            {
                "text": "ü",
                "yes": True,
                "no": False,
                "number": -7,
                "bytes": b"\x00\xff",
                "time": moment,
                "uuid": name,
                "byte": Typed(2, b"\xff"),
                "short": Typed(3, b"\x01\x00"),
                "long": Typed(5, bytes(7) + b"\x05"),
            },
            b"payload",
        )
    )
    assert headers == {
        "text": "ü",
        "yes": True,
        "no": False,
        "number": -7,
        "bytes": b"\x00\xff",
        "time": int(moment.timestamp() * 1000),
        "uuid": name.bytes,
        "byte": -1,
        "short": 256,
        "long": 5,
    }
    assert payload == b"payload"
    with pytest.raises(KeyError):
        unframed(frame({"future": Typed(42, b"")}))


def test_frames_of_every_kind_have_their_documented_headers() -> None:
    assert unframed(event("future", b"x", "text/plain", {"more": 1}) + exception("kind", "no", "Message", code=7)) == [
        ({":event-type": "future", ":content-type": "text/plain", ":message-type": "event", "more": 1}, b"x"),
        (
            {":exception-type": "kind", ":content-type": "application/json", ":message-type": "exception"},
            b'{"Message": "no", "code": 7}',
        ),
    ]
    assert unframed(error("Code", "why")) == [
        ({":error-code": "Code", ":error-message": "why", ":message-type": "error"}, b"")
    ]
    assert unframed(chunk({"a": 1})) == [
        (
            {":event-type": "chunk", ":content-type": "application/json", ":message-type": "event"},
            b'{"bytes": "eyJhIjogMX0="}',
        )
    ]


def test_either_checksum_can_be_bad_alone() -> None:
    whole = encoded(BEGUN[1])
    prelude = bad_prelude_checksum(whole)
    assert len(prelude) == len(whole)
    with pytest.raises(ChecksumMismatch):
        unframed(prelude[:12])
    assert struct.pack("!I", crc32(prelude[:-4])) == prelude[-4:]
    everything = bad_message_checksum(whole)
    assert unframed(everything[:-1]) == []
    with pytest.raises(ChecksumMismatch):
        unframed(everything)


# errors that the provider tells


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "ValidationException"),
        (403, "AccessDeniedException"),
        (404, "ResourceNotFoundException"),
        (408, "ModelTimeoutException"),
        (424, "ModelErrorException"),
        (429, "ThrottlingException"),
        (500, "InternalServerException"),
        (503, "ServiceUnavailableException"),
    ],
)
def test_an_error_status_has_its_type_and_headers(server: BedrockServer, client: Any, status: int, kind: str) -> None:
    server.fail(status, message="slow down", retry_after=7, headers={"x-extra": "1"})
    with pytest.raises(getattr(client.exceptions, kind), match="slow down") as caught:
        read(client)
    told = caught.value.response
    assert told["Error"] == {"Code": kind, "Message": "slow down"}
    assert told["ResponseMetadata"]["HTTPStatusCode"] == status
    assert told["ResponseMetadata"]["RequestId"] == "00000000-0000-4000-8000-000000000001"
    headers = told["ResponseMetadata"]["HTTPHeaders"]
    assert (headers["retry-after"], headers["x-extra"]) == ("7", "1")
    assert headers["x-amzn-errortype"] == f"{kind}:http://internal.amazon.com/coral/com.amazon.bedrock/"
    assert len(server.requests) == 1


def test_an_error_may_have_another_type_and_more_fields(server: BedrockServer, client: Any) -> None:
    server.fail(429, "ModelNotReadyException", retry_after="Wed, 21 Oct 2026 07:28:00 GMT")
    with pytest.raises(client.exceptions.ModelNotReadyException) as caught:
        read(client)
    assert caught.value.response["ResponseMetadata"]["HTTPHeaders"]["retry-after"] == "Wed, 21 Oct 2026 07:28:00 GMT"
    server.fail(424, originalStatusCode=500, resourceName="m")
    with pytest.raises(client.exceptions.ModelErrorException) as failed:
        read(client)
    assert (failed.value.response["originalStatusCode"], failed.value.response["resourceName"]) == (500, "m")
    server.fail(418)
    with pytest.raises(ClientError, match="UnknownError"):
        read(client)


def test_an_error_page_has_its_status_as_code(server: BedrockServer, client: Any) -> None:
    server.fail_page()
    with pytest.raises(ClientError) as caught:
        read(client)
    assert caught.value.response["Error"] == {"Code": "502", "Message": "Bad Gateway"}


@pytest.mark.parametrize("after", [[], BEGUN], ids=["first", "in the middle"])
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("throttlingException", {}),
        ("modelStreamErrorException", {"originalStatusCode": 500, "originalMessage": "overloaded"}),
        ("internalServerException", {}),
        ("validationException", {}),
        ("serviceUnavailableException", {}),
    ],
)
def test_an_exception_inside_ends_the_stream(
    server: BedrockServer, client: Any, kind: str, fields: dict[str, Any], after: list[Event]
) -> None:
    server.exception_inside(kind, "slow down", after=after, **fields)
    seen: list[Event] = []
    with pytest.raises(EventStreamError) as caught:
        read(client, seen)
    assert seen == after
    # without the fields: the SDK gives none of them
    assert caught.value.response == {"Error": {"Code": kind, "Message": "slow down"}}


def test_an_exception_has_its_fields_on_the_wire(server: BedrockServer) -> None:
    server.exception_inside("modelStreamErrorException", originalStatusCode=500, originalMessage="overloaded")
    status, body = post(server, authorization="Bearer x")
    assert status == 200
    ((headers, payload),) = unframed(body)
    assert headers[":exception-type"] == "modelStreamErrorException"
    assert json.loads(payload) == {
        "message": "scripted failure",
        "originalStatusCode": 500,
        "originalMessage": "overloaded",
    }


def test_an_error_without_a_type_inside_ends_the_stream(server: BedrockServer, client: Any) -> None:
    server.error_inside("InternalFailure", "it broke", after=BEGUN)
    seen: list[Event] = []
    with pytest.raises(EventStreamError) as caught:
        read(client, seen)
    assert seen == BEGUN
    assert caught.value.response == {"Error": {"Code": "InternalFailure", "Message": "it broke"}}


def test_an_unknown_exception_inside_has_no_code_in_the_sdk(server: BedrockServer, client: Any) -> None:
    server.exception_inside("futureException", after=BEGUN)
    with pytest.raises(EventStreamError) as caught:
        read(client)
    assert caught.value.response == {"Error": {"Code": "", "Message": ""}}


# faults


@pytest.mark.parametrize("after", [[], BEGUN], ids=["first", "in the middle"])
@pytest.mark.parametrize("broken", [bad_prelude_checksum, bad_message_checksum])
def test_a_bad_checksum_ends_the_stream(
    server: BedrockServer, client: Any, broken: Callable[[bytes], bytes], after: list[Event]
) -> None:
    server.reply_frames(*after, broken(encoded(BEGUN[1])))
    seen: list[Event] = []
    with pytest.raises(ChecksumMismatch):
        read(client, seen)
    assert seen == after


def test_garbage_is_a_bad_checksum_and_a_little_of_it_is_nothing(server: BedrockServer, client: Any) -> None:
    server.garbage(after=BEGUN)
    seen: list[Event] = []
    with pytest.raises(ChecksumMismatch):
        read(client, seen)
    assert seen == BEGUN
    server.garbage(after=BEGUN, data=b"<html>")
    assert read(client) == BEGUN


def test_a_reply_cut_at_any_byte_is_no_error_to_the_sdk(server: BedrockServer, client: Any) -> None:
    events = message(text("ü", pieces=1))
    frames = [encoded(one) for one in events]
    length = len(b"".join(frames))
    counts = []
    for cut in range(length + 1):
        server.reply(text("ü", pieces=1), cut=cut)
        seen = read(client)
        assert seen == events[: len(seen)]
        counts.append(len(seen))
    assert counts == [position for position, data in enumerate(frames) for _ in data] + [len(frames)]
    assert server.open_connections == 1


def test_nothing_at_all_is_no_error_to_the_sdk(server: BedrockServer, client: Any) -> None:
    server.empty()
    assert read(client) == []


@pytest.mark.parametrize("fault", ["drop", "close"])
def test_a_connection_broken_before_headers_is_an_error_of_botocore(
    server: BedrockServer, client: Any, fault: str
) -> None:
    getattr(server, fault)(before_headers=True)
    with pytest.raises(ConnectionClosedError):
        read(client)
    server.wait_closed()


@pytest.mark.parametrize(("fault", "why"), [("drop", "ConnectionResetError"), ("close", "Response ended prematurely")])
def test_a_connection_broken_in_the_stream_is_an_error_of_urllib3(
    server: BedrockServer, client: Any, fault: str, why: str
) -> None:
    getattr(server, fault)(after=[*BEGUN, Hold("seen")])
    stream = client.converse_stream(modelId=MODEL, **ASKED)["stream"]
    events = iter(stream)
    assert [next(events) for _ in BEGUN] == BEGUN
    server.release("seen")
    with pytest.raises(urllib3.exceptions.ProtocolError, match=why):
        next(events)
    stream.close()
    server.wait_closed()
    assert not server.exchanges[0].client_disconnected


def test_silence_before_the_headers_times_out_in_botocore(server: BedrockServer) -> None:
    client = server.client(read_timeout=0.1)
    server.stall(before_headers=True)
    with pytest.raises(ReadTimeoutError):
        read(client)
    assert server.exchanges[0].bytes_sent == 0
    server.wait_disconnected(0)
    client.close()


@pytest.mark.parametrize("after", [[], BEGUN], ids=["after the headers", "in the middle"])
def test_silence_after_the_headers_times_out_in_urllib3(server: BedrockServer, after: list[Event]) -> None:
    client = server.client(read_timeout=0.1)
    server.stall(after=after)
    seen: list[Event] = []
    with pytest.raises(urllib3.exceptions.ReadTimeoutError):
        read(client, seen)
    assert seen == after
    server.wait_disconnected(0)
    client.close()


def test_unknown_events_blocks_and_deltas_pass_through_the_sdk(server: BedrockServer, client: Any) -> None:
    server.unknown(text("ab", pieces=1))
    assert read(client) == [
        {"messageStart": {"role": "assistant"}},
        *_unknown_read(0),
        {"contentBlockDelta": {"contentBlockIndex": 1, "delta": {"text": "ab"}}},
        {"contentBlockStop": {"contentBlockIndex": 1}},
        *_unknown_read(2),
        *message()[1:],
    ]
    server.unknown(text("ab"))
    _, body = post(server, authorization="Bearer x")
    frames = [(headers[":event-type"], headers.get("future-header")) for headers, _ in unframed(body)]
    assert frames[1::2] == [("futureEvent", 7)] * (len(frames) // 2)
    assert ("futureEvent", 7) not in frames[::2]


def _unknown_read(index: int) -> list[Event]:
    def unknown(name: str) -> Event:
        return {"SDK_UNKNOWN_MEMBER": {"name": name}}

    return [
        {"contentBlockStart": {"contentBlockIndex": index, "start": unknown("futureBlock")}},
        {"contentBlockDelta": {"contentBlockIndex": index, "delta": unknown("futureDelta")}},
        {"contentBlockDelta": {"contentBlockIndex": index, "delta": unknown("otherFutureDelta")}},
        {"contentBlockStop": {"contentBlockIndex": index}},
    ]


def test_actions_may_surround_a_reply(server: BedrockServer, client: Any) -> None:
    server.reply(
        text("ab", pieces=1),
        prelude=[Hold("a")],
        before=[Hold("b"), {"messageStart": {"role": "user"}}],
        after=[encoded(BEGUN[1]), Hold("c")],
        headers={"x": "y"},
    )
    for name in "abc":
        server.release(name)
    reply = client.converse_stream(modelId=MODEL, **ASKED)
    assert list(reply["stream"]) == [
        {"messageStart": {"role": "user"}},
        *message(text("ab", pieces=1)),
        BEGUN[1],
    ]
    assert reply["ResponseMetadata"]["HTTPHeaders"]["x"] == "y"


def test_http_chunks_may_have_any_size(server: BedrockServer) -> None:
    length = len(b"".join(encoded(one) for one in message(text("abc"))))
    for chunk_size in (length, 1):
        server.reply(text("abc"), chunk_size=chunk_size)
        assert len(post(server, authorization="Bearer x")[1]) == length
    server.wait_idle()
    whole, bytewise = (exchange.bytes_sent for exchange in server.exchanges)
    # a chunk of one byte is five more on the wire
    assert bytewise - whole == 6 * length - len(f"{length:x}\r\n\r\n") - length


def test_only_frames_can_be_cut(server: BedrockServer) -> None:
    with pytest.raises(AssertionError, match="only frames"):
        server.reply(text("a"), after=[Hold("a")], cut=3)


# requests that no SDK makes


@pytest.mark.parametrize(
    ("request_options", "status", "why"),
    [
        ({}, 403, "must be signed"),
        ({"authorization": "Basic x"}, 403, "must be signed"),
        ({"method": "PUT", "authorization": "Bearer x"}, 404, "no such operation: PUT"),
        ({"path": "/model/m/converse", "authorization": "Bearer x"}, 404, "no such operation"),
        ({"path": "/model/a/b/converse-stream", "authorization": "Bearer x"}, 404, "no such operation"),
    ],
)
def test_a_request_that_the_service_refuses_fails_the_test(
    request_options: dict[str, str], status: int, why: str
) -> None:
    def refused() -> None:
        with BedrockServer() as server:
            server.reply(text("never"))
            statuses.append(post(server, **request_options)[0])

    statuses: list[int] = []
    with pytest.raises(AssertionError, match=why):
        refused()
    assert statuses == [status]


def test_a_bearer_token_will_do(server: BedrockServer) -> None:
    server.reply(text("abc"))
    status, body = post(server, authorization="Bearer x")
    assert (status, body) == (200, b"".join(encoded(one) for one in message(text("abc"))))


# leaving


def test_a_stream_that_is_closed_leaves(server: BedrockServer, client: Any) -> None:
    server.stall(after=BEGUN)
    stream = client.converse_stream(modelId=MODEL, **ASKED)["stream"]
    assert next(iter(stream)) == BEGUN[0]
    stream.close()
    server.wait_disconnected(0)
    server.wait_closed()


def test_clients_are_closed_each_for_itself(server: BedrockServer, client: Any) -> None:
    other = server.client()
    for one in (client, other):
        server.reply(text("ok"))
        read(one)
    assert server.open_connections == 2
    other.close()
    server.wait_until(lambda: server.open_connections == 1, "one connection closed")
    server.reply(text("ok"))
    assert read(client) == message(text("ok"))
    assert server.open_connections == 1


# the scripted provider


def test_the_provider_scripts_what_a_reply_says(server: BedrockServer, client: Any) -> None:
    provider = BedrockProvider(server)
    usage = Usage(20, 9, cache_read_tokens=5, cache_write_tokens=3, reasoning_tokens=4)
    reply = Reply(
        reasoning=("hm",), text=("a", "bü"), calls=(Call("add", {"a": 1}, "call_1"),), usage=usage, truncated=True
    )
    provider.reply(reply)
    provider.reply(replace(reply, chunk_size=1))
    whole, bytewise = read(client), read(client)
    assert whole == bytewise
    deltas = [one["contentBlockDelta"]["delta"] for one in whole if "contentBlockDelta" in one]
    assert deltas[:4] == [
        {"reasoningContent": {"text": "hm"}},
        {"reasoningContent": {"signature": "sig"}},
        {"text": "a"},
        {"text": "bü"},
    ]
    assert json.loads("".join(delta["toolUse"]["input"] for delta in deltas[4:])) == {"a": 1}
    (start,) = [one["contentBlockStart"] for one in whole if "contentBlockStart" in one]
    assert start == {"contentBlockIndex": 2, "start": {"toolUse": {"toolUseId": "call_1", "name": "add"}}}
    assert whole[-2:] == [
        {"messageStop": {"stopReason": "max_tokens"}},
        {
            "metadata": {
                "metrics": {"latencyMs": 551},
                "usage": {
                    "inputTokens": 12,
                    "outputTokens": 9,
                    "cacheReadInputTokens": 5,
                    "cacheWriteInputTokens": 3,
                    "totalTokens": 29,
                },
            }
        },
    ]
    provider.unknown(reply)
    known = [one for one in read(client) if "SDK_UNKNOWN_MEMBER" not in str(one)]
    assert [one["contentBlockDelta"]["delta"] for one in known if "contentBlockDelta" in one] == deltas
    for cut in (0, 40, provider.body_length(reply)):
        provider.reply(replace(reply, cut=cut))
        assert len(post(server, authorization="Bearer x")[1]) == cut
    assert provider.requests == 6


@pytest.mark.asyncio
@pytest.mark.parametrize("said", [(), ("so ", "far")])
async def test_the_provider_scripts_every_fault(server: BedrockServer, client: Any, said: tuple[str, ...]) -> None:
    provider = BedrockProvider(server)
    begun: list[Event] = [{"messageStart": {"role": "assistant"}}]
    begun += [{"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": piece}}} for piece in said]
    kinds = {
        "fail_inside": EventStreamError,
        "drop": urllib3.exceptions.ProtocolError,
        "garbage": ChecksumMismatch,
    }
    for fault, kind in kinds.items():
        getattr(provider, fault)(said)
        seen: list[Event] = []
        with pytest.raises(kind) as caught:
            await asyncio.to_thread(read, client, seen)
        assert seen == begun
        if isinstance(caught.value, EventStreamError):
            assert caught.value.response["Error"]["Code"] == "throttlingException"
    provider.fail(429, retry_after=3600)
    with pytest.raises(client.exceptions.ThrottlingException) as refused:
        await asyncio.to_thread(read, client)
    assert refused.value.response["ResponseMetadata"]["HTTPHeaders"]["retry-after"] == "3600"
    provider.stall(said)
    stream = (await asyncio.to_thread(client.converse_stream, modelId=MODEL, **ASKED))["stream"]
    await provider.stalled()
    events = iter(stream)
    assert [next(events) for _ in begun] == begun
    stream.close()
    await provider.settled()
    assert server.exchanges[-1].client_disconnected


def test_a_history_is_read_in_wire_order(server: BedrockServer) -> None:
    provider = BedrockProvider(server)
    messages: list[Any] = [
        {"role": "user", "content": [{"text": "hi"}]},
        {
            "role": "assistant",
            "content": [
                {"text": "I add."},
                {"toolUse": {"toolUseId": "call_2", "name": "add", "input": {}}},
                {"toolUse": {"toolUseId": "call_1", "name": "add", "input": {}}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"toolResult": {"toolUseId": "call_2", "content": [{"text": "1"}]}},
                {"toolResult": {"toolUseId": "call_1", "content": [{"text": "no"}], "status": "error"}},
            ],
        },
    ]

    def history(**changes: Any) -> tuple[list[str], list[tuple[str, bool]]]:
        provider.fail(500)
        post(server, body={"messages": messages, "toolConfig": {}, **changes}, authorization="Bearer x")
        return provider.history(provider.requests - 1)

    assert history() == (["call_2", "call_1"], [("call_2", False), ("call_1", True)])
    refused: list[tuple[dict[str, Any], str]] = [
        ({"messages": messages[1:]}, "take turns"),
        ({"messages": [{"role": "user", "content": []}]}, "must not be empty"),
        ({"messages": [{"role": "user", "content": messages[1]["content"]}]}, "is the model's"),
        ({"messages": [messages[0], {"role": "assistant", "content": messages[2]["content"]}]}, "is the user's"),
    ]
    for changes, why in refused:
        with pytest.raises(AssertionError, match=why):
            history(**changes)
    odd = {"toolUse": {"toolUseId": "call.1", "name": "add", "input": {}}}
    with pytest.raises(AssertionError, match="refuses such ids"):
        history(messages=[messages[0], {"role": "assistant", "content": [odd]}])
    provider.fail(500)
    post(server, body={"messages": messages}, authorization="Bearer x")
    with pytest.raises(AssertionError, match="needs the tools"):
        provider.history(provider.requests - 1)
