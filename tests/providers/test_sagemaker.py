from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import urllib3
from botocore.eventstream import ChecksumMismatch, EventStreamBuffer
from botocore.exceptions import ClientError, ConnectionClosedError, EventStreamError, ReadTimeoutError

from rxloop.testing.scripted import Call, Reply
from rxloop.usage import Usage
from tests.adapters.sagemaker_provider import SageMakerProvider
from tests.providers.eventstream import bad_message_checksum, bad_prelude_checksum
from tests.providers.http import Hold
from tests.providers.sagemaker import (
    SageMakerServer,
    json_line,
    llama,
    lmi,
    lmi_error,
    openai,
    openai_error,
    payload,
    sse,
    tgi,
    tgi_error,
    unknown_event,
)

ENDPOINT = "my-endpoint"
PATH = "/endpoints/my-endpoint/invocations-response-stream"
ASKED = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
FORMATS: dict[str, Callable[..., list[bytes]]] = {"openai": openai, "tgi": tgi, "lmi": lmi, "llama": llama}
BEGUN = payload([b"so ", b"far"])


@pytest.fixture
def server() -> Iterator[SageMakerServer]:
    with SageMakerServer() as running:
        yield running


@pytest.fixture
def client(server: SageMakerServer) -> Iterator[Any]:
    running = server.client()
    yield running
    running.close()


def start(client: Any, endpoint: str = ENDPOINT) -> Any:
    return client.invoke_endpoint_with_response_stream(
        EndpointName=endpoint, ContentType="application/json", Body=json.dumps(ASKED)
    )


def read(client: Any, seen: list[bytes] | None = None) -> list[bytes]:
    """The parts of a reply; `seen` gets those before a fault too."""
    seen = [] if seen is None else seen
    stream = start(client)["Body"]
    try:
        for one in stream:
            seen.append(one["PayloadPart"]["Bytes"])
    finally:
        stream.close()
    return seen


def post(server: SageMakerServer) -> bytes:
    """The body of a reply without the SDK."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
    try:
        connection.request("POST", PATH, json.dumps(ASKED), {"authorization": "Bearer x"})
        return connection.getresponse().read()
    finally:
        connection.close()


def data_of(writes: list[bytes]) -> list[Any]:
    """The JSON of server-sent events or of lines; anything else as it is."""
    values = []
    for write in writes:
        line = write.decode().removeprefix("data:").strip()
        values.append(json.loads(line) if line.startswith("{") else line)
    return values


# what is sent


@pytest.mark.parametrize("chunk_size", [None, 1, 7])
@pytest.mark.parametrize("part_size", [None, 1, 50])
@pytest.mark.parametrize("name", FORMATS)
def test_what_a_container_writes_streams_through_the_sdk(
    server: SageMakerServer, client: Any, name: str, part_size: int | None, chunk_size: int | None
) -> None:
    writes = FORMATS[name]("Hellö ", "🌍")
    server.reply(writes, part_size=part_size, chunk_size=chunk_size)
    parts = read(client)
    assert b"".join(parts) == b"".join(writes)
    if part_size is None:
        assert parts == writes
    else:
        assert {len(part) for part in parts[:-1]} == {part_size}
        assert 1 <= len(parts[-1]) <= part_size
    assert server.bodies == [ASKED]
    assert server.targets == [ENDPOINT]
    assert server.requests[0].headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")


@pytest.mark.asyncio
async def test_the_sdk_reads_in_a_thread(server: SageMakerServer, client: Any) -> None:
    server.reply([b"a", b"b"], before=[Hold("first")])
    reading = asyncio.ensure_future(asyncio.to_thread(read, client))
    await server.held("first")
    assert not reading.done()
    server.release("first")
    assert await reading == [b"a", b"b"]
    await server.idle()


def test_a_reply_names_the_type_of_its_content(server: SageMakerServer, client: Any) -> None:
    server.reply([], content_type="application/jsonlines", headers={"x-extra": "1"})
    server.reply([], content_type=None)
    replies = [start(client), start(client)]
    for reply in replies:
        assert list(reply["Body"]) == []
    assert [reply.get("ContentType") for reply in replies] == ["application/jsonlines", None]
    assert replies[0]["InvokedProductionVariant"] == "AllTraffic"
    assert replies[0]["ResponseMetadata"]["HTTPHeaders"]["x-extra"] == "1"


def test_a_part_has_the_documented_form() -> None:
    buffer = EventStreamBuffer()
    buffer.add_data(b"".join(payload([b"\x00\xff"])))
    ((headers, data),) = [(found.headers, found.payload) for found in buffer]
    assert list(headers.items()) == [
        (":event-type", "PayloadPart"),
        (":content-type", "application/octet-stream"),
        (":message-type", "event"),
    ]
    assert data == b"\x00\xff"
    assert payload([]) == payload([], part_size=3) == []


def test_writes_are_spaced_as_containers_do() -> None:
    assert sse({"a": ["ü"]}) == 'data: {"a":["ü"]}\n\n'.encode()
    assert sse({"a": 1}, space=False) == b'data:{"a":1}\n\n'
    assert sse("[DONE]", name="end") == b"event: end\ndata: [DONE]\n\n"
    assert sse("x", space=False, name="error") == b"event:error\ndata:x\n\n"
    assert json_line({"a": ["ü"]}) == '{"a": ["ü"]}\n'.encode()


# what containers write


def test_openai_has_the_documented_form() -> None:
    writes = openai("a", "b", reasoning=["hm"])
    assert all(write.startswith(b"data: ") for write in writes)
    *chunks, end, usage, done = data_of(writes)
    known = {"id": "chatcmpl-test", "object": "chat.completion.chunk", "created": 1767225600, "model": "model-test"}
    assert chunks[0] == {
        **known,
        "choices": [
            {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        ],
    }
    assert [chunk["choices"][0]["delta"] for chunk in chunks[1:]] == [
        {"reasoning_content": "hm"},
        {"content": "a"},
        {"content": "b"},
    ]
    assert (end["choices"][0]["delta"], end["choices"][0]["finish_reason"]) == ({}, "stop")
    assert (usage["choices"], usage["usage"]) == (
        [],
        {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    )
    assert done == "[DONE]"


def test_openai_may_end_in_any_form() -> None:
    assert "choices" in data_of(openai("a", done=False))[-1]
    bare = data_of(openai("a", finish_reason=None, usage=None))
    assert bare[-2]["choices"][0] == {"index": 0, "delta": {"content": "a"}, "logprobs": None, "finish_reason": None}
    assert all("usage" not in chunk for chunk in bare[:-1])
    lines = openai("a", finish_reason="length", usage=None, lines=True)
    assert all(line.startswith(b"{") and line.endswith(b"}\n") for line in lines)
    assert data_of(lines)[-1]["choices"][0]["finish_reason"] == "length"
    assert data_of(openai(usage={"prompt_tokens": 3, "total_tokens": 9}))[-2]["usage"]["total_tokens"] == 9
    assert data_of(openai_error("no", code=400, kind="BadRequestError")) == [
        {"error": {"object": "error", "message": "no", "type": "BadRequestError", "param": None, "code": 400}},
        "[DONE]",
    ]


def test_text_generation_inference_has_the_documented_form() -> None:
    writes = tgi("a", "b")
    assert writes[0] == (
        b'data:{"index":1,"token":{"id":101,"text":"a","logprob":-0.25,"special":false},'
        b'"generated_text":null,"details":null}\n\n'
    )
    last = data_of(writes)[-1]
    assert (last["index"], last["token"]["text"], last["token"]["special"]) == (3, "</s>", True)
    assert last["generated_text"] == "ab"
    assert last["details"] == {"finish_reason": "eos_token", "generated_tokens": 3, "seed": None}
    cut_off = data_of(tgi("a", "b", finish_reason="length", special=None, generated_tokens=9, input_length=4))
    assert len(cut_off) == 2
    assert (cut_off[1]["token"]["special"], cut_off[1]["generated_text"]) == (False, "ab")
    assert cut_off[1]["details"] == {"finish_reason": "length", "generated_tokens": 9, "seed": None, "input_length": 4}
    assert data_of(tgi("a", finish_reason=None))[-1]["details"] is None
    assert tgi_error("no") == [b'data:{"error":"no","error_type":"generation"}\n\n']


def test_large_model_inference_has_the_documented_form() -> None:
    writes = lmi("a", "b", inputs="hi")
    assert writes[0] == b'{"token": {"id": 101, "text": "a", "log_prob": -0.25}}\n'
    assert data_of(writes)[1] == {
        "token": {"id": 102, "text": "b", "log_prob": -0.25},
        "generated_text": "ab",
        "details": {"finish_reason": "eos_token", "generated_tokens": 2, "inputs": "hi"},
    }
    events = lmi("a", "b", finish_reason=None, server_sent=True)
    assert events[0] == b'data:{"token":{"id":101,"text":"a","log_prob":-0.25}}\n\n'
    assert (data_of(events)[1]["generated_text"], "details" in data_of(events)[1]) == ("ab", False)
    assert data_of(lmi("a", generated_tokens=7))[0]["details"]["generated_tokens"] == 7
    assert data_of(lmi_error()) == data_of(lmi_error(server_sent=True))
    assert data_of(lmi_error())[0]["details"]["finish_reason"] == "error"
    assert (lmi_error()[0][:1], lmi_error(server_sent=True)[0][:6]) == (b"{", b"data:{")


def test_llama_has_the_documented_form() -> None:
    assert data_of(llama("a", "b", "")) == [
        {"generation": "a", "prompt_token_count": 10, "generation_token_count": 1, "stop_reason": None},
        {"generation": "b", "prompt_token_count": None, "generation_token_count": 2, "stop_reason": None},
        {"generation": "", "prompt_token_count": None, "generation_token_count": 3, "stop_reason": "stop"},
    ]
    (only,) = data_of(llama("a", stop_reason=None, prompt_token_count=None))
    assert (only["prompt_token_count"], only["stop_reason"]) == (None, None)


# errors that the provider tells


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "ValidationError"), (424, "ModelError"), (500, "InternalFailure"), (503, "ServiceUnavailable")],
)
def test_an_error_status_has_its_type_and_headers(server: SageMakerServer, client: Any, status: int, kind: str) -> None:
    server.fail(status, message="slow down", retry_after=7)
    with pytest.raises(getattr(client.exceptions, kind), match="slow down") as caught:
        read(client)
    told = caught.value.response
    assert told["Error"] == {"Code": kind, "Message": "slow down"}
    assert told["ResponseMetadata"]["HTTPStatusCode"] == status
    assert told["ResponseMetadata"]["HTTPHeaders"]["retry-after"] == "7"
    assert len(server.requests) == 1


def test_throttling_is_a_client_error(server: SageMakerServer, client: Any) -> None:
    server.fail(429)
    with pytest.raises(ClientError) as caught:
        read(client)
    assert caught.value.response["Error"]["Code"] == "ThrottlingException"


@pytest.mark.parametrize(("status", "side"), [(400, "client"), (503, "server")])
def test_an_error_of_the_model_has_what_the_container_said(
    server: SageMakerServer, client: Any, status: int, side: str
) -> None:
    server.model_error(status, '{"error":"too long"}', retry_after=3)
    with pytest.raises(client.exceptions.ModelError, match=f"Received {side} error \\({status}\\)") as caught:
        read(client)
    told = caught.value.response
    assert (told["OriginalStatusCode"], told["OriginalMessage"]) == (status, '{"error":"too long"}')
    assert told["LogStreamArn"].endswith("/aws/sagemaker/Endpoints/my-endpoint")
    assert told["ResponseMetadata"]["HTTPStatusCode"] == 424
    assert told["ResponseMetadata"]["HTTPHeaders"]["retry-after"] == "3"
    server.model_error(status, code="OTHER")
    server.model_error(status)
    assert [json.loads(post(server))["ErrorCode"] for _ in range(2)] == ["OTHER", f"{side.upper()}_ERROR_FROM_MODEL"]


@pytest.mark.parametrize("after", [[], BEGUN], ids=["first", "in the middle"])
def test_an_exception_inside_ends_the_stream(server: SageMakerServer, client: Any, after: list[Any]) -> None:
    server.exception_inside("InternalStreamFailure", "it broke", after=after)
    server.model_stream_error("ModelInvocationTimeExceeded", "too slow", after=after)
    server.error_inside("ThrottlingException", "slow down", after=after)
    expected = [
        ("InternalStreamFailure", "it broke"),
        ("ModelStreamError", "too slow"),
        ("ThrottlingException", "slow down"),
    ]
    for code, message in expected:
        seen: list[bytes] = []
        with pytest.raises(EventStreamError) as caught:
            read(client, seen)
        assert seen == [b"so ", b"far"][: len(after)]
        # without the ErrorCode of a ModelStreamError, which the SDK does not give
        assert caught.value.response == {"Error": {"Code": code, "Message": message}}


def test_an_exception_has_its_fields_on_the_wire(server: SageMakerServer) -> None:
    server.model_stream_error()
    buffer = EventStreamBuffer()
    buffer.add_data(post(server))
    (found,) = buffer
    assert found.headers[":exception-type"] == "ModelStreamError"
    assert json.loads(found.payload) == {"Message": "scripted failure", "ErrorCode": "StreamBroken"}


# faults


@pytest.mark.parametrize("broken", [bad_prelude_checksum, bad_message_checksum])
def test_a_bad_checksum_ends_the_stream(server: SageMakerServer, client: Any, broken: Callable[[bytes], bytes]) -> None:
    server.reply_frames(BEGUN[0], broken(BEGUN[1]))
    seen: list[bytes] = []
    with pytest.raises(ChecksumMismatch):
        read(client, seen)
    assert seen == [b"so "]


def test_garbage_is_a_bad_checksum(server: SageMakerServer, client: Any) -> None:
    server.garbage(after=BEGUN)
    seen: list[bytes] = []
    with pytest.raises(ChecksumMismatch):
        read(client, seen)
    assert seen == [b"so ", b"far"]


def test_a_reply_cut_at_any_byte_is_no_error_to_the_sdk(server: SageMakerServer, client: Any) -> None:
    writes = [b"so ", "fär".encode()]
    frames = payload(writes, part_size=4)
    counts = []
    for cut in range(len(b"".join(frames)) + 1):
        server.reply(writes, part_size=4, cut=cut)
        seen = read(client)
        assert seen == [b"so f", "är".encode()][: len(seen)]
        counts.append(len(seen))
    assert counts == [0] * len(frames[0]) + [1] * len(frames[1]) + [2]
    server.empty()
    assert read(client) == []
    assert server.open_connections == 1


def test_an_event_is_no_frame_of_its_own(server: SageMakerServer) -> None:
    with pytest.raises(TypeError, match="a frame must be bytes"):
        server.reply_frames({"PayloadPart": {}})


@pytest.mark.parametrize("fault", ["drop", "close"])
def test_a_broken_connection_is_an_error_of_botocore_or_urllib3(
    server: SageMakerServer, client: Any, fault: str
) -> None:
    getattr(server, fault)(before_headers=True)
    with pytest.raises(ConnectionClosedError):
        read(client)
    getattr(server, fault)(after=[*BEGUN, Hold("seen")])
    stream = start(client)["Body"]
    events = iter(stream)
    assert [next(events)["PayloadPart"]["Bytes"] for _ in BEGUN] == [b"so ", b"far"]
    server.release("seen")
    with pytest.raises(urllib3.exceptions.ProtocolError):
        next(events)
    stream.close()
    server.wait_closed()


def test_silence_times_out_in_botocore_or_urllib3(server: SageMakerServer) -> None:
    client = server.client(read_timeout=0.1)
    server.stall(before_headers=True)
    server.stall()
    server.stall(after=BEGUN)
    kinds = [ReadTimeoutError, urllib3.exceptions.ReadTimeoutError, urllib3.exceptions.ReadTimeoutError]
    seen: list[bytes] = []
    for position, kind in enumerate(kinds):
        assert seen == []
        with pytest.raises(kind):
            read(client, seen)
        server.wait_disconnected(position)
    assert seen == [b"so ", b"far"]
    client.close()


def test_unknown_events_are_skipped_by_the_sdk(server: SageMakerServer, client: Any) -> None:
    server.reply_frames(unknown_event(), *BEGUN, unknown_event("OtherEvent", {"more": 1}))
    assert read(client) == [b"so ", b"far"]


# leaving


def test_a_stream_that_is_closed_leaves(server: SageMakerServer, client: Any) -> None:
    server.stall(after=BEGUN)
    stream = start(client)["Body"]
    assert next(iter(stream)) == {"PayloadPart": {"Bytes": b"so "}}
    stream.close()
    server.wait_disconnected(0)
    server.wait_closed()


# the scripted provider


@pytest.mark.parametrize("chunk_size", [None, 1])
def test_the_provider_tells_where_the_answer_is_whole(
    server: SageMakerServer, client: Any, chunk_size: int | None
) -> None:
    provider = SageMakerProvider(server)
    reply = Reply(text=("a", "bü"), chunk_size=chunk_size)
    length = provider.whole_length(reply)
    assert length < provider.body_length(reply)
    for cut, is_whole in ((length, True), (length - 1, False)):
        provider.reply(replace(reply, cut=cut))
        assert (b'"finish_reason":"stop"}]}\n\n' in b"".join(read(client))) is is_whole


def test_the_provider_scripts_what_a_reply_says(server: SageMakerServer, client: Any) -> None:
    provider = SageMakerProvider(server)
    usage = Usage(20, 9, cache_read_tokens=5, reasoning_tokens=4)
    reply = Reply(reasoning=("hm",), text=("a", "bü"), usage=usage, truncated=True)
    provider.reply(reply)
    whole = read(client)
    counted = {
        "prompt_tokens": 20,
        "completion_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 5},
        "completion_tokens_details": {"reasoning_tokens": 4},
    }
    assert whole == openai("a", "bü", reasoning=["hm"], finish_reason="length", usage=counted)
    provider.reply(replace(reply, chunk_size=1))
    bytewise = read(client)
    assert b"".join(bytewise) == b"".join(whole)
    assert {len(part) for part in bytewise[:-1]} == {37}
    provider.unknown(reply)
    assert read(client)[-len(whole) :] == whole
    provider.unknown(reply)
    buffer = EventStreamBuffer()
    buffer.add_data(post(server))
    kinds = [found.headers[":event-type"] for found in buffer]
    assert kinds == ["FutureEvent", "PayloadPart"] * (len(whole) + 2) + ["FutureEvent"]
    for chunk_size in (None, 1):
        length = provider.body_length(replace(reply, chunk_size=chunk_size))
        for cut in (0, 40, length):
            provider.reply(replace(reply, chunk_size=chunk_size, cut=cut))
            assert len(post(server)) == cut
        provider.reply(replace(reply, chunk_size=chunk_size))
        assert len(post(server)) == length
    assert provider.requests == 12
    with pytest.raises(AssertionError, match="no tools"):
        provider.reply(Reply(calls=(Call("add", {}, "call_1"),)))


@pytest.mark.asyncio
@pytest.mark.parametrize("said", [(), ("so ", "far")])
async def test_the_provider_scripts_every_fault(server: SageMakerServer, client: Any, said: tuple[str, ...]) -> None:
    provider = SageMakerProvider(server)
    begun = openai(*said, finish_reason=None, usage=None, done=False)
    assert len(begun) == 1 + len(said)
    kinds = {
        "fail_inside": EventStreamError,
        "drop": urllib3.exceptions.ProtocolError,
        "garbage": ChecksumMismatch,
    }
    for fault, kind in kinds.items():
        getattr(provider, fault)(said)
        seen: list[bytes] = []
        with pytest.raises(kind) as caught:
            await asyncio.to_thread(read, client, seen)
        assert seen == begun
        if isinstance(caught.value, EventStreamError):
            assert caught.value.response["Error"]["Code"] == "InternalStreamFailure"
    provider.fail(429, retry_after=3600)
    with pytest.raises(ClientError) as refused:
        await asyncio.to_thread(read, client)
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 429
    assert refused.value.response["ResponseMetadata"]["HTTPHeaders"]["retry-after"] == "3600"
    provider.stall(said)
    stream = (await asyncio.to_thread(start, client))["Body"]
    await provider.stalled()
    events = iter(stream)
    assert [next(events)["PayloadPart"]["Bytes"] for _ in begun] == begun
    stream.close()
    await provider.settled()
    assert server.exchanges[-1].client_disconnected
    assert provider.history(provider.requests - 1) == ([], [])
    with pytest.raises(AssertionError, match="no request"):
        provider.history(provider.requests)
