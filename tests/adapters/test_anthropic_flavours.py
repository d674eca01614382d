"""The same adapter through the SDK's clients of Vertex, Bedrock and Foundry."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from anthropic import AnthropicBedrock, AsyncAnthropicBedrock, AsyncAnthropicFoundry, AsyncAnthropicVertex
from botocore.eventstream import ChecksumMismatch, EventStreamBuffer

from rxloop.adapters.anthropic import AnthropicAdapter
from rxloop.errors import (
    ConfigurationError,
    ContextOverflowError,
    InvalidRequestError,
    MalformedResponseError,
    OverloadedError,
    ProviderError,
    RateLimitedError,
    RxLoopError,
    ServerError,
    StreamInterruptedError,
    TimedOutError,
)
from rxloop.events import TextDelta
from rxloop.limits import Limits
from rxloop.testing.scripted import Recorder
from rxloop.turn import Turn
from rxloop.usage import Usage
from tests.providers.anthropic import (
    AnthropicServer,
    message,
    raw_block,
    redacted,
    server_tool,
    text,
    thinking,
    tool_use,
)
from tests.providers.eventstream import CONTENT_TYPE, chunk, exception, frame
from tests.providers.http import Drop, Hold, Reply, Stall, split_every
from tests.turns import AT_ONCE, NO_RETRY, check_sent, run


@pytest.fixture
def server() -> Iterator[AnthropicServer]:
    with AnthropicServer() as server:
        yield server


def vertex(server: AnthropicServer) -> AsyncAnthropicVertex:
    return AsyncAnthropicVertex(base_url=server.url, access_token="x", project_id="project", region="europe-west1")


def bedrock(server: AnthropicServer) -> AsyncAnthropicBedrock:
    return AsyncAnthropicBedrock(
        base_url=server.url, aws_access_key="test", aws_secret_key="test-secret", aws_region="eu-west-1"
    )


def foundry(server: AnthropicServer) -> AsyncAnthropicFoundry:
    return AsyncAnthropicFoundry(base_url=server.url, api_key="test-key")


def events_of(*blocks: Any, **options: Any) -> list[dict[str, Any]]:
    return [json.loads(part.partition(b"data: ")[2]) for part in message(*blocks, **options)]


def framed(*blocks: Any, **options: Any) -> list[bytes]:
    """A reply as Bedrock sends it: without pings, each event in a frame."""
    return [chunk(event) for event in events_of(*blocks, ping=False, **options)]


def bedrock_reply(*parts: Any) -> Reply:
    return Reply(200, {"content-type": CONTENT_TYPE}, parts)


def script(server: AnthropicServer, flavour: str, *blocks: Any, **options: Any) -> None:
    if flavour == "bedrock":
        server.script(bedrock_reply(*framed(*blocks, **options)))
    else:
        server.reply(*blocks, **options)


FLAVOURS: dict[str, Callable[[AnthropicServer], Any]] = {"vertex": vertex, "bedrock": bedrock, "foundry": foundry}
MODEL = "claude-test"


@pytest.mark.asyncio
@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_a_whole_turn(server: AnthropicServer, flavour: str) -> None:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 30, "output_tokens": 5}
    search = server_tool("web_search", {"query": "x"}, result=[{"type": "web_search_result", "odd": None}])
    blocks = (
        thinking("hm", signature="Eq+/="),
        redacted("opaque"),
        text("I ädd.", pieces=3),
        search,
        raw_block({"type": "odd", "x": 1}, {"type": "odd_delta", "y": 2}),
        tool_use("add", {"a": 2, "b": 3}, id="toolu_1"),
    )
    script(server, flavour, *blocks, usage=usage)
    script(server, flavour, text("It is 5."), usage=usage)
    async with FLAVOURS[flavour](server) as client:
        adapter = AnthropicAdapter(client, model=MODEL, temperature=0.5, cache=None)
        recorder = await run(adapter, "2+3?", system="Be brief.")
        await server.idle()
        assert server.open_connections == 1, "kept for the next step"
    assert recorder.text == "I ädd.It is 5."
    assert (recorder.finished.text, recorder.finished.finish_reason) == ("It is 5.", "stop")
    assert recorder.finished.usage == Usage(80, 10, cache_read_tokens=60)
    assert [call.arguments for call in recorder.finished.tool_calls] == [{"a": 2, "b": 3}]
    sent = check_sent(server.requests[1].json)
    assert sent[1]["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "Eq+/="},
        {"type": "redacted_thinking", "data": "opaque"},
        {"type": "text", "text": "I ädd."},
        {"type": "server_tool_use", "id": "srvtoolu_web_search", "name": "web_search", "input": {"query": "x"}},
        {
            "type": "web_search_tool_result",
            "tool_use_id": "srvtoolu_web_search",
            "content": [{"type": "web_search_result", "odd": None}],
        },
        {"type": "odd", "x": 1, "y": 2},
        {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 2, "b": 3}},
    ]
    assert sent[2]["content"] == [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "5"}]
    assert [request.json["system"] for request in server.requests] == ["Be brief."] * 2
    assert server.requests[0].json["temperature"] == 0.5


@pytest.mark.asyncio
async def test_vertex_has_its_own_address(server: AnthropicServer) -> None:
    server.reply(text("5"))
    async with vertex(server) as client:
        await run(AnthropicAdapter(client, model=MODEL))
    (request,) = server.requests
    assert request.path == (
        "/projects/project/locations/europe-west1/publishers/anthropic/models/claude-test:streamRawPredict"
    )
    assert request.headers["authorization"] == "Bearer x"
    assert "model" not in request.json
    assert request.json["anthropic_version"]


@pytest.mark.asyncio
async def test_bedrock_has_its_own_address(server: AnthropicServer) -> None:
    script(server, "bedrock", text("5"))
    async with bedrock(server) as client:
        await run(AnthropicAdapter(client, model="eu.anthropic.claude-test-v1:0"))
    (request,) = server.requests
    assert request.path == "/model/eu.anthropic.claude-test-v1:0/invoke-with-response-stream"
    assert request.headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=test/")
    assert not {"model", "stream"} & set(request.json)
    assert request.json["anthropic_version"]


@pytest.mark.asyncio
async def test_foundry_has_its_own_key(server: AnthropicServer) -> None:
    server.reply(text("5"))
    async with foundry(server) as client:
        await run(AnthropicAdapter(client, model=MODEL))
    (request,) = server.requests
    assert request.path.endswith("/v1/messages")
    assert "test-key" in {request.headers.get("api-key"), request.headers.get("x-api-key")} | {
        request.headers.get("authorization", "").removeprefix("Bearer ")
    }


BETA = "context-management-2025-06-27"


@pytest.mark.asyncio
@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_betas_reach_every_flavour(server: AnthropicServer, flavour: str) -> None:
    script(server, flavour, text("5"))
    async with FLAVOURS[flavour](server) as client:
        recorder = await run(AnthropicAdapter(client, model=MODEL, betas=[BETA]))
    assert recorder.finished.text == "5"
    (request,) = server.requests
    told = request.headers.get("anthropic-beta", ""), *request.json.get("anthropic_beta", ())
    assert BETA in told


@pytest.mark.asyncio
@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_one_retry_owner(server: AnthropicServer, flavour: str) -> None:
    server.fail(529, "overloaded_error")
    server.fail(429, "rate_limit_error")
    script(server, flavour, text("5"))
    async with FLAVOURS[flavour](server) as client:
        adapter = AnthropicAdapter(client, model=MODEL)
        recorder = await run(adapter, retry=NO_RETRY)
        assert isinstance(recorder.error, OverloadedError)
        assert len(server.requests) == 1
        recorder = await run(adapter, retry=AT_ONCE)
    assert recorder.finished.text == "5"
    assert len(server.requests) == 3


@pytest.mark.asyncio
@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_disposal_closes_the_reply_of_every_flavour(server: AnthropicServer, flavour: str) -> None:
    if flavour == "bedrock":
        server.script(bedrock_reply(*framed(text("so far"))[:3], Hold("for ever")))
    else:
        server.reply_events(*message(text("so far"))[:4], Hold("for ever"))
    recorder = Recorder()
    seen = asyncio.Event()

    def on_next(event: Any) -> None:
        recorder.on_next(event)
        if isinstance(event, TextDelta):
            seen.set()

    async with FLAVOURS[flavour](server) as client:
        turn = Turn(AnthropicAdapter(client, model=MODEL), "hello", on_end=recorder.keep)
        subscription = turn.subscribe(on_next, recorder.on_error)
        await seen.wait()
        subscription.dispose()
        await server.disconnected(0)
        await server.closed()
    assert recorder.result is not None
    assert recorder.result.text == "so"


def test_a_synchronous_flavour_is_refused() -> None:
    with (
        AnthropicBedrock(aws_access_key="a", aws_secret_key="b", aws_region="eu-west-1") as client,
        pytest.raises(ConfigurationError, match="use AsyncAnthropicBedrock"),
    ):
        AnthropicAdapter(client, model=MODEL)


@pytest.mark.asyncio
async def test_an_error_of_googles_own_form(server: AnthropicServer) -> None:
    body = {"error": {"code": 429, "message": "Quota exceeded", "status": "RESOURCE_EXHAUSTED"}}
    server.script(Reply.json(body, 429))
    async with vertex(server) as client:
        recorder = await run(AnthropicAdapter(client, model=MODEL))
    assert type(recorder.error) is RateLimitedError
    assert (str(recorder.error), recorder.error.status) == ("Quota exceeded", 429)


# Bedrock's frames


@pytest.mark.asyncio
async def test_bedrock_cut_anywhere(server: AnthropicServer) -> None:
    body = b"".join(framed(thinking("hm"), text("Er ist 5 €."), tool_use("add", {"a": 1, "b": 2}, id="1")))
    done = framed(text("done"))
    async with bedrock(server) as client:
        adapter = AnthropicAdapter(client, model=MODEL)
        seen = []
        for size in (len(body), 1, 7, 100):
            server.script(bedrock_reply(*split_every(body, size)), bedrock_reply(*done))
            recorder = await run(adapter, turn_id="t")
            seen.append([{**event.to_dict(), "seconds": 0} for event in recorder.events])
    assert all(events == seen[0] for events in seen)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("kind", "expected", "retryable"),
    [
        ("throttlingException", RateLimitedError, True),
        ("serviceUnavailableException", OverloadedError, True),
        ("internalServerException", ServerError, True),
        ("modelStreamErrorException", ServerError, True),
        ("modelTimeoutException", ServerError, True),
        ("validationException", InvalidRequestError, False),
        ("aFutureException", ServerError, True),
    ],
)
async def test_an_exception_inside_bedrocks_stream(
    server: AnthropicServer, kind: str, expected: type[ProviderError], retryable: bool
) -> None:
    server.script(bedrock_reply(framed()[0], exception(kind, "it went wrong")))
    server.script(bedrock_reply(framed()[0], exception(kind, "it went wrong")), bedrock_reply(*framed(text("5"))))
    async with bedrock(server) as client:
        adapter = AnthropicAdapter(client, model=MODEL)
        recorder = await run(adapter)
        error = recorder.error
        assert type(error) is expected, repr(error)
        assert isinstance(error, RxLoopError)
        assert (error.retryable, error.status) == (retryable, None)
        # the SDK tells nothing of a kind that botocore does not know
        assert str(error) == ("it went wrong" if kind != "aFutureException" else "the provider reported an error")
        recorder = await run(adapter, retry=AT_ONCE)
        assert (recorder.error is None) is retryable


@pytest.mark.asyncio
async def test_an_exception_after_content_is_not_retried(server: AnthropicServer) -> None:
    server.script(bedrock_reply(*framed(text("so far"))[:3], exception("throttlingException", "slow down")))
    async with bedrock(server) as client:
        recorder = await run(AnthropicAdapter(client, model=MODEL), retry=AT_ONCE)
    assert type(recorder.error) is RateLimitedError
    assert recorder.error.partial is not None
    assert recorder.error.partial.text == "so"
    assert len(server.requests) == 1


@pytest.mark.asyncio
async def test_an_error_event_of_the_apis_own_inside_bedrocks_stream(server: AnthropicServer) -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    server.script(bedrock_reply(framed()[0], chunk(error)))
    async with bedrock(server) as client:
        recorder = await run(AnthropicAdapter(client, model=MODEL))
    assert type(recorder.error) is OverloadedError


@pytest.mark.asyncio
async def test_unknown_events_of_bedrock_are_skipped(server: AnthropicServer) -> None:
    odd = [
        chunk({"type": "future_event", "x": 1}),
        chunk({"no": "type"}),
        frame({":event-type": "odd", ":message-type": "event"}, b"{}"),
    ]
    parts = [part for event in framed(text("5"), tool_use("add", {"a": 1, "b": 2})) for part in (*odd, event)]
    last = events_of(text("5"))[-1]
    metrics = {"amazon-bedrock-invocationMetrics": {"inputTokenCount": 10}}
    server.script(bedrock_reply(*parts), bedrock_reply(*framed(text("5"))[:-1], chunk({**last, **metrics})))
    async with bedrock(server) as client:
        recorder = await run(AnthropicAdapter(client, model=MODEL))
    assert recorder.finished.text == "5"
    assert recorder.types.count("tool_finished") == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", ["cut", "garbage", "checksum", "drop", "no json"])
async def test_a_broken_stream_of_bedrock(server: AnthropicServer, fault: str) -> None:
    begun = framed(text("so far"))[:3]
    broken = bytearray(framed(text("so far"))[3])
    broken[-20] ^= 1
    headers = {":event-type": "chunk", ":content-type": "application/json", ":message-type": "event"}
    endings: dict[str, tuple[Any, ...]] = {
        "cut": (),
        "garbage": (b"this is no frame of any kind at all",),
        "checksum": (bytes(broken),),
        "drop": (Hold("read"), Drop()),
        "no json": (frame(headers, json.dumps({"bytes": base64.b64encode(b"{no json").decode()}).encode()),),
    }
    server.script(bedrock_reply(*begun, *endings[fault]))
    async with bedrock(server) as client:
        recorder = Recorder()

        def on_next(event: Any) -> None:
            recorder.on_next(event)
            if isinstance(event, TextDelta):
                server.release("read")

        turn = Turn(AnthropicAdapter(client, model=MODEL), "hello", retry=AT_ONCE)
        turn.subscribe(on_next, recorder.on_error, recorder.on_completed)
        await recorder.ended.wait()
        await server.idle()
    expected = StreamInterruptedError if fault in ("cut", "drop") else MalformedResponseError
    assert type(recorder.error) is expected, repr(recorder.error)
    assert recorder.error.partial is not None
    assert recorder.error.partial.text == "so"
    assert recorder.error.provider == "anthropic"


@pytest.mark.asyncio
async def test_errors_of_bedrocks_own_form(server: AnthropicServer) -> None:
    cases = [
        (400, "ValidationException", "Input is too long for requested model.", ContextOverflowError),
        (400, "ValidationException", "The model identifier is invalid.", InvalidRequestError),
        (429, "ThrottlingException", "Too many requests", RateLimitedError),
        (503, "ServiceUnavailableException", "Bedrock is unable to process your request.", OverloadedError),
    ]
    async with bedrock(server) as client:
        for status, kind, words, expected in cases:
            server.script(Reply.json({"message": words}, status, {"x-amzn-errortype": kind}))
            recorder = await run(AnthropicAdapter(client, model=MODEL))
            assert type(recorder.error) is expected
            assert str(recorder.error) == words


@pytest.mark.asyncio
async def test_a_slow_reader_of_bedrock_bounds_the_buffer(server: AnthropicServer) -> None:
    server.script(bedrock_reply(b"".join(framed(text("x" * 2000, pieces=2000)))))
    received = 0
    async with bedrock(server) as client:
        events = Turn(AnthropicAdapter(client, model=MODEL), "hello", buffer=16).stream()
        async for event in events:
            received += isinstance(event, TextDelta)
            await asyncio.sleep(0)
    assert received == 2000
    assert events.peak_buffered <= 16


@pytest.mark.asyncio
async def test_a_silent_bedrock_is_left(server: AnthropicServer) -> None:
    server.script(bedrock_reply(*framed(text("so far"))[:3], Stall()))
    async with bedrock(server) as client:
        limits = Limits(first_event_timeout=30, stall_timeout=0.1)
        recorder = await run(AnthropicAdapter(client, model=MODEL), limits=limits)
        await server.disconnected(0)
    assert isinstance(recorder.error, TimedOutError)
    assert recorder.error.clock == "stall"


# the encoder of frames


def test_botocore_reads_the_frames() -> None:
    parts = [
        frame({":event-type": "chunk", "ü": "wert €"}, b"payload"),
        frame({}),
        chunk({"type": "ping"}),
        exception("throttlingException", "slow down"),
    ]
    buffer = EventStreamBuffer()
    for byte in b"".join(parts):
        buffer.add_data(bytes([byte]))
    messages = list(buffer)
    assert [part.headers for part in messages] == [
        {":event-type": "chunk", "ü": "wert €"},
        {},
        {":event-type": "chunk", ":content-type": "application/json", ":message-type": "event"},
        {":exception-type": "throttlingException", ":content-type": "application/json", ":message-type": "exception"},
    ]
    assert messages[0].payload == b"payload"
    assert messages[3].payload == b'{"message": "slow down"}'
    assert [messages[index].to_response_dict()["status_code"] for index in (2, 3)] == [200, 400]


@pytest.mark.parametrize("position", [0, 5, 10, 14, -6, -1])
def test_botocore_notices_a_changed_frame(position: int) -> None:
    broken = bytearray(frame({"a": "b"}, b"payload"))
    broken[position] ^= 1
    buffer = EventStreamBuffer()
    buffer.add_data(bytes(broken))
    with pytest.raises(ChecksumMismatch):
        list(buffer)
