from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from google import genai
from google.genai import errors, types

from rxloop.testing.scripted import Call, Reply
from rxloop.usage import Usage
from tests.adapters.gemini_provider import GeminiProvider
from tests.providers.gemini import (
    Event,
    FakeCredentials,
    GeminiServer,
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
from tests.providers.http import Hold

ASKED = {"contents": [{"parts": [{"text": "hi"}], "role": "user"}]}
BEGUN = chunks(text("abc"), finish_reason=None)


@pytest.fixture
def server() -> Iterator[GeminiServer]:
    with GeminiServer() as running:
        yield running


@pytest_asyncio.fixture
async def client(server: GeminiServer) -> AsyncIterator[genai.Client]:
    running = server.client()
    yield running
    await running.aio.aclose()


async def start(client: genai.Client, **http_options: Any) -> AsyncIterator[types.GenerateContentResponse]:
    config: Any = {"http_options": http_options} if http_options else None
    return await client.aio.models.generate_content_stream(model="gemini-test", contents="hi", config=config)


async def read(client: genai.Client, texts: list[str | None], **http_options: Any) -> None:
    async for chunk in await start(client, **http_options):
        texts.append(text_of(chunk))  # noqa: PERF401 - a comprehension would lose what came before a fault


async def leave(stream: AsyncIterator[Any]) -> None:
    """Cancel a read that waits: what the SDK closes its reply at."""
    while True:
        reading: asyncio.Future[Any] = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        if not reading.done():
            break
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def close(failed: errors.APIError) -> None:
    """Close the reply of an error inside it: the SDK leaves that to the garbage collector."""
    reply: Any = failed.response
    await reply.response_stream.aclose()


def text_of(chunk: types.GenerateContentResponse) -> str | None:
    """The text of a chunk's first part; None without a candidate."""
    return chunk.candidates[0].content.parts[0].text if chunk.candidates else None  # type: ignore[index, union-attr]


def parts_of(events: list[Event]) -> list[list[Any]]:
    return [event["candidates"][0]["content"].get("parts", []) for event in events]


# what is sent


@pytest.mark.asyncio
@pytest.mark.parametrize("chunk_size", [None, 1, 7])
@pytest.mark.parametrize("crlf", [True, False])
async def test_every_kind_of_part_streams_through_the_sdk(
    server: GeminiServer, client: genai.Client, chunk_size: int | None, crlf: bool
) -> None:
    server.reply(
        thought("hmm, näh"),
        text("Hello wörld 🌍\u2028.", pieces=4),
        signature_only("c2ln"),
        call("add", {"a": 1, "b": [2, "x"]}, id="call_1", signature="c2ln"),
        together(call("now", {}), call("bare", None)),
        executable_code("print(1)"),
        code_result("1\n"),
        inline_data(b"png"),
        usage={"promptTokenCount": 10, "candidatesTokenCount": 20, "thoughtsTokenCount": 4},
        chunk_size=chunk_size,
        crlf=crlf,
    )
    seen = [chunk async for chunk in await start(client)]
    parts = [part.model_dump(exclude_none=True, mode="json") for chunk in seen for part in chunk.parts or ()]
    assert [part["text"] for part in parts[:2]] == ["hmm,", " näh"]
    assert all(part["thought"] for part in parts[:2])
    assert "".join(part["text"] for part in parts[2:6]) == "Hello wörld 🌍\u2028."
    assert parts[6:] == [
        {"text": "", "thought_signature": "c2ln"},
        {
            "function_call": {"name": "add", "args": {"a": 1, "b": [2, "x"]}, "id": "call_1"},
            "thought_signature": "c2ln",
        },
        {"function_call": {"name": "now", "args": {}}},
        {"function_call": {"name": "bare"}},
        {"executable_code": {"code": "print(1)", "language": "PYTHON"}},
        {"code_execution_result": {"outcome": "OUTCOME_OK", "output": "1\n"}},
        {"inline_data": {"data": "cG5n", "mime_type": "image/png"}},
    ]
    assert [chunk.candidates[0].finish_reason for chunk in seen] == [None] * 11 + [types.FinishReason.STOP]  # type: ignore[index]
    totals = [chunk.usage_metadata.total_token_count for chunk in seen]  # type: ignore[union-attr]
    assert (totals[0], totals[-1]) == (11, 34)
    assert totals == sorted(totals)  # type: ignore[type-var]
    assert {chunk.response_id for chunk in seen} == {"resp_test"}
    assert server.bodies == [ASKED]


def test_a_reply_has_the_shape_of_ai_studio() -> None:
    assert chunks(text("ab", pieces=2)) == [
        {
            "candidates": [{"content": {"parts": [{"text": "a"}], "role": "model"}, "index": 0}],
            "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 2, "totalTokenCount": 12},
            "modelVersion": "gemini-test",
            "responseId": "resp_test",
        },
        {
            "candidates": [
                {"content": {"parts": [{"text": "b"}], "role": "model"}, "finishReason": "STOP", "index": 0},
            ],
            "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15},
            "modelVersion": "gemini-test",
            "responseId": "resp_test",
        },
    ]
    assert sse({"a": [{"b": 1}], "c": "ü"}) == 'data: {"a": [{"b": 1}],"c": "ü"}\r\n\r\n'.encode()
    assert sse({"a": 1}, crlf=False) == b'data: {"a": 1}\n\n'


def test_a_reply_has_the_shape_of_vertex() -> None:
    first, last = chunks(text("ab", pieces=2), vertex=True)
    assert first == {
        "candidates": [{"content": {"role": "model", "parts": [{"text": "a"}]}}],
        "usageMetadata": {"trafficType": "ON_DEMAND"},
        "modelVersion": "gemini-test",
        "createTime": "2026-01-01T00:00:00.000000Z",
        "responseId": "resp_test",
    }
    assert last["usageMetadata"] == {
        "promptTokenCount": 10,
        "candidatesTokenCount": 5,
        "totalTokenCount": 15,
        "trafficType": "ON_DEMAND",
    }
    assert sse({"a": [{"b": 1}]}, vertex=True) == b'data: {"a":[{"b":1}]}\r\n\r\n'


def test_the_end_of_a_reply_may_take_any_form() -> None:
    nothing = {"content": {"role": "model"}, "finishReason": "MAX_TOKENS", "index": 0}
    assert chunks(finish_reason="MAX_TOKENS")[0]["candidates"] == [nothing]
    apart = chunks(text("a"), finish_reason="MAX_TOKENS", finish_apart=True)
    assert [event["candidates"] for event in apart] == [
        [{"content": {"parts": [{"text": "a"}], "role": "model"}, "index": 0}],
        [nothing],
    ]
    assert "finishReason" not in chunks(text("a"), finish_reason=None)[0]["candidates"][0]
    assert "usageMetadata" not in chunks(text("a"), usage=None)[0]
    assert chunks(text("a"), candidate={"finishMessage": "m"})[0]["candidates"][0]["finishMessage"] == "m"
    assert chunks(text(""), finish_reason=None) == []
    given = chunks(text("a"), usage={"promptTokenCount": 1, "toolUsePromptTokenCount": 2, "cachedContentTokenCount": 1})
    assert given[0]["usageMetadata"]["totalTokenCount"] == 3
    assert chunks(text("a"), usage={"totalTokenCount": 9})[0]["usageMetadata"] == {"totalTokenCount": 9}


def test_a_call_with_streamed_arguments_has_the_recorded_form() -> None:
    made = partial_call(
        "book",
        [
            ("$.city", "stringValue", "Bos"),
            ("$.city", "stringValue", "ton"),
            ("$.nights", "numberValue", 2),
            [("$.tags[0]", "stringValue", "x"), ("$.late", "boolValue", True)],
        ],
        id="call_1",
        signature="c2ln",
    )
    going_on = {"willContinue": True}

    def piece(*sent: Event) -> Event:
        return {"functionCall": {"partialArgs": list(sent), **going_on}}

    assert [part for (part,) in made.groups] == [
        {"functionCall": {"name": "book", "id": "call_1", **going_on}, "thoughtSignature": "c2ln"},
        piece({"jsonPath": "$.city", "stringValue": "Bos", **going_on}),
        piece({"jsonPath": "$.city", "stringValue": "ton", **going_on}),
        piece({"jsonPath": "$.city", "stringValue": ""}),
        piece({"jsonPath": "$.nights", "numberValue": 2}),
        piece(
            {"jsonPath": "$.tags[0]", "stringValue": "x", **going_on},
            {"jsonPath": "$.tags[0]", "stringValue": ""},
            {"jsonPath": "$.late", "boolValue": True},
        ),
        {"functionCall": {}},
    ]


def test_a_call_with_streamed_arguments_may_lack_its_terminal_part() -> None:
    made = partial_call("t", [("$.a", "stringValue", "x"), ("$.b", "numberValue", 0.5)], terminal=False)
    assert made.groups[-1] == ({"functionCall": {"partialArgs": [{"jsonPath": "$.b", "numberValue": 0.5}]}},)
    bare = partial_call("t", [], terminal=False)
    assert bare.groups == (({"functionCall": {"name": "t"}},),)


@pytest.mark.asyncio
async def test_streamed_arguments_pass_through_the_sdk(server: GeminiServer) -> None:
    client = server.vertex_client()
    server.reply(partial_call("t", [("$.a", "stringValue", "x"), ("$.b", "numberValue", 0.5)]), vertex=True)
    made: list[Any] = [chunk.parts[0].function_call async for chunk in await start(client)]  # type: ignore[index]
    await client.aio.aclose()
    assert (made[0].name, made[0].will_continue, made[0].args) == ("t", True, None)
    assert [(one.json_path, one.string_value) for one in made[1].partial_args] == [("$.a", "x")]
    assert made[3].partial_args[0].number_value == 0.5
    assert (made[-1].name, made[-1].partial_args, made[-1].will_continue) == (None, None, None)


# both flavours


@pytest.mark.asyncio
async def test_ai_studio_is_asked_with_its_key(server: GeminiServer) -> None:
    for version in ("v1", "v1beta"):
        server.reply(text("ok"))
        client = server.client(api_version=version)
        await read(client, [])
        await client.aio.aclose()
        request = server.requests[-1]
        assert request.path == f"/{version}/models/gemini-test:streamGenerateContent"
        assert request.query == "alt=sse"
        assert request.headers["x-goog-api-key"] == "test-key"
        assert "authorization" not in request.headers
    assert server.bodies == [ASKED, ASKED]


@pytest.mark.asyncio
async def test_vertex_is_asked_with_a_token_that_is_never_refreshed(server: GeminiServer) -> None:
    server.reply(text("ok"), vertex=True)
    client = server.vertex_client()
    texts: list[str | None] = []
    await read(client, texts)
    await client.aio.aclose()
    (request,) = server.requests
    assert request.path == (
        "/v1beta1/projects/test-project/locations/us-central1/publishers/google/models/"
        "gemini-test:streamGenerateContent"
    )
    assert request.query == "alt=sse"
    assert request.headers["authorization"] == "Bearer test-token"
    assert "x-goog-api-key" not in request.headers
    assert "".join(filter(None, texts)) == "ok"
    assert server.bodies == [ASKED]
    with pytest.raises(AssertionError, match="never expires"):
        FakeCredentials().refresh(None)


@pytest.mark.asyncio
async def test_a_whole_reply_answers_generate_content(server: GeminiServer, client: genai.Client) -> None:
    server.reply_whole(text("abc"), call("add", {"a": 1}), headers={"x-extra": "1"})
    reply = await client.aio.models.generate_content(model="gemini-test", contents="hi")
    assert [part.text for part in reply.parts or ()] == ["a", "b", "c", None]
    assert reply.function_calls is not None
    assert reply.usage_metadata is not None
    assert reply.usage_metadata.total_token_count == 15
    assert server.requests[0].path.endswith("/models/gemini-test:generateContent")
    assert server.bodies == [ASKED]


@pytest.mark.asyncio
async def test_a_request_for_anything_else_is_no_body(server: GeminiServer, client: genai.Client) -> None:
    server.fail(404, "NOT_FOUND")
    with pytest.raises(errors.ClientError, match="NOT_FOUND"):
        await client.aio.models.get(model="gemini-test")
    assert server.bodies == []
    assert len(server.requests) == 1


def test_the_synchronous_sdk_streams_too(server: GeminiServer) -> None:
    server.reply(text("abc"))
    with server.client() as client:
        reply = client.models.generate_content_stream(model="gemini-test", contents="hi")
        assert [text_of(chunk) for chunk in reply] == ["a", "b", "c"]


# errors that the provider tells


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, errors.ClientError), (429, errors.ClientError), (500, errors.ServerError), (503, errors.ServerError)],
)
async def test_an_error_status_has_its_details_and_headers(
    server: GeminiServer, client: genai.Client, status: int, kind: type[errors.APIError]
) -> None:
    server.fail(status, message="slow down", retry_delay="13s", headers={"x-extra": "1"}, details=[{"@type": "other"}])
    with pytest.raises(kind, match="slow down") as caught:
        await read(client, [])
    assert (caught.value.code, caught.value.status, caught.value.message) == (status, "RESOURCE_EXHAUSTED", "slow down")
    assert caught.value.details["error"]["details"] == [
        {"@type": "other"},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "13s"},
    ]
    assert caught.value.response.headers["x-extra"] == "1"
    assert len(server.requests) == 1
    assert error(429, "X", retry_delay=3600)["error"]["details"][0]["retryDelay"] == "3600s"


@pytest.mark.asyncio
async def test_an_error_page_has_its_text_as_message(server: GeminiServer, client: genai.Client) -> None:
    server.fail_page(502, "<b>bad gateway</b>")
    with pytest.raises(errors.ServerError) as caught:
        await read(client, [])
    assert (caught.value.code, caught.value.message) == (502, "<b>bad gateway</b>")


@pytest.mark.asyncio
@pytest.mark.parametrize("chunk_size", [None, 1])
async def test_an_error_inside_an_event_ends_the_stream(
    server: GeminiServer, client: genai.Client, chunk_size: int | None
) -> None:
    if chunk_size is None:
        server.error_inside(after=BEGUN, retry_delay="2s")
    else:
        server.reply_chunks(*BEGUN, *(bytes([byte]) for byte in sse(error(503, "UNAVAILABLE", retry_delay="2s"))))
    texts: list[str | None] = []
    with pytest.raises(errors.ServerError) as caught:
        await read(client, texts)
    assert texts == ["a", "b", "c"]
    assert (caught.value.code, caught.value.status) == (503, "UNAVAILABLE")
    assert caught.value.details["error"]["details"][0]["retryDelay"] == "2s"
    await close(caught.value)


@pytest.mark.asyncio
@pytest.mark.parametrize("after", [BEGUN, []])
async def test_bare_error_lines_end_the_stream(server: GeminiServer, client: genai.Client, after: list[Event]) -> None:
    server.error_after(after=after)
    texts: list[str | None] = []
    with pytest.raises(errors.ClientError) as caught:
        await read(client, texts)
    assert texts == ["a", "b", "c"][: len(after)]
    assert (caught.value.code, caught.value.status) == (499, "CANCELLED")
    await close(caught.value)


@pytest.mark.asyncio
async def test_a_blocked_prompt_has_no_candidate(server: GeminiServer, client: genai.Client) -> None:
    server.blocked_prompt("PROHIBITED_CONTENT")
    (chunk,) = [chunk async for chunk in await start(client)]
    assert chunk.candidates is None
    assert chunk.prompt_feedback is not None
    assert chunk.prompt_feedback.block_reason is types.BlockedReason.PROHIBITED_CONTENT
    assert chunk.usage_metadata is not None
    assert chunk.usage_metadata.total_token_count == 10


@pytest.mark.asyncio
async def test_a_client_with_retry_options_retries(server: GeminiServer) -> None:
    server.fail(503, "UNAVAILABLE")
    server.reply(text("ok"))
    client = server.client(retry_options={"attempts": 2, "initial_delay": 0, "jitter": 0})
    await read(client, [])
    await client.aio.aclose()
    assert server.bodies == [ASKED, ASKED]


# faults


@pytest.mark.asyncio
async def test_nothing_at_all_is_no_error_to_the_sdk(server: GeminiServer, client: genai.Client) -> None:
    server.empty()
    texts: list[str | None] = []
    await read(client, texts)
    assert texts == []


@pytest.mark.asyncio
async def test_a_missing_end_is_no_error_to_the_sdk(server: GeminiServer, client: genai.Client) -> None:
    texts: list[str | None] = []
    server.reply_chunks(*BEGUN)
    await read(client, texts)
    # only the end of the last event's frame is missing
    server.reply_chunks(sse(BEGUN[0])[:-4])
    await read(client, texts)
    assert texts == ["a", "b", "c", "a"]


@pytest.mark.asyncio
@pytest.mark.parametrize("kept", [3, 6, 30])
async def test_the_end_within_an_event_is_garbage_to_the_sdk(
    server: GeminiServer, client: genai.Client, kept: int
) -> None:
    server.reply_chunks(BEGUN[0], sse(BEGUN[1])[:kept])
    texts: list[str | None] = []
    with pytest.raises(errors.UnknownApiResponseError):
        await read(client, texts)
    assert texts == ["a"]


@pytest.mark.asyncio
async def test_garbage_is_a_value_error(server: GeminiServer, client: genai.Client) -> None:
    server.garbage(after=BEGUN)
    texts: list[str | None] = []
    with pytest.raises(errors.UnknownApiResponseError) as caught:
        await read(client, texts)
    assert isinstance(caught.value.__cause__, json.JSONDecodeError)
    assert texts == ["a", "b", "c"]


@pytest.mark.asyncio
async def test_unknown_fields_and_chunks_pass_through_the_sdk(server: GeminiServer, client: genai.Client) -> None:
    server.unknown(text("ab", pieces=1), raw_part({"futurePart": {"x": 1}}))
    server.reply_chunks(unknown_event(), unknown_event(other=1), metadata({"promptTokenCount": 3}))
    seen = [chunk async for chunk in await start(client)]
    assert [bool(chunk.candidates) for chunk in seen] == [True, False, False, True, False, False]
    assert [text_of(chunk) for chunk in seen] == ["ab", None, None, None, None, None]
    assert seen[5].usage_metadata == seen[3].usage_metadata
    seen = [chunk async for chunk in await start(client)]
    assert [chunk.response_id for chunk in seen] == [None, None, "resp_test"]
    assert parts_of(chunks(raw_part({"futurePart": 1}))) == [[{"futurePart": 1}]]


@pytest.mark.asyncio
@pytest.mark.parametrize(("fault", "kind"), [("drop", httpx2.ReadError), ("close", httpx2.RemoteProtocolError)])
async def test_a_connection_broken_before_headers_is_an_httpx_error(
    server: GeminiServer, client: genai.Client, fault: str, kind: type[Exception]
) -> None:
    getattr(server, fault)(before_headers=True)
    with pytest.raises(kind):
        await read(client, [])
    await server.closed()


@pytest.mark.asyncio
@pytest.mark.parametrize(("fault", "kind"), [("drop", httpx2.ReadError), ("close", httpx2.RemoteProtocolError)])
async def test_a_connection_broken_in_the_stream_is_an_httpx_error(
    server: GeminiServer, client: genai.Client, fault: str, kind: type[Exception]
) -> None:
    getattr(server, fault)(after=[*BEGUN, Hold("seen")])
    stream = await start(client)
    texts = [text_of(await anext(stream)) for _ in range(3)]
    server.release("seen")
    with pytest.raises(kind):
        await anext(stream)
    assert texts == ["a", "b", "c"]
    await server.closed()
    assert not server.exchanges[0].client_disconnected


@pytest.mark.asyncio
@pytest.mark.parametrize("chunk_size", [None, 3])
async def test_a_cut_reply_ends_within_an_event(
    server: GeminiServer, client: genai.Client, chunk_size: int | None
) -> None:
    cut = len(b"".join(map(sse, BEGUN[:2]))) + 5
    server.reply(text("abc"), cut=cut, chunk_size=chunk_size)
    texts: list[str | None] = []
    with pytest.raises(httpx2.RemoteProtocolError):
        await read(client, texts)
    assert texts == ["a", "b"]


@pytest.mark.asyncio
@pytest.mark.parametrize("before_headers", [True, False])
async def test_a_stall_times_the_client_out_and_its_leaving_is_noticed(
    server: GeminiServer, client: genai.Client, before_headers: bool
) -> None:
    server.stall(after=() if before_headers else BEGUN, before_headers=before_headers)
    texts: list[str | None] = []
    with pytest.raises(httpx2.ReadTimeout):
        await read(client, texts, timeout=300)
    assert texts == ([] if before_headers else ["a", "b", "c"])
    await server.disconnected(0)
    await server.closed()
    await server.idle()


@pytest.mark.asyncio
async def test_actions_may_surround_a_reply(server: GeminiServer, client: genai.Client) -> None:
    server.reply(
        text("abc"),
        prelude=[Hold("a")],
        before=[Hold("b"), metadata()],
        after=[unknown_event(), Hold("c")],
        headers={"x": "y"},
    )
    for name in "abc":
        server.release(name)
    seen = [chunk async for chunk in await start(client)]
    assert [text_of(chunk) for chunk in seen] == [None, "a", "b", "c", None]
    assert seen[0].sdk_http_response is not None
    assert seen[0].sdk_http_response.headers is not None
    assert seen[0].sdk_http_response.headers["x"] == "y"


# leaving


@pytest.mark.asyncio
async def test_a_read_that_is_cancelled_leaves(server: GeminiServer, client: genai.Client) -> None:
    server.stall(after=BEGUN)
    stream = await start(client)
    assert text_of(await anext(stream)) == "a"
    await leave(stream)
    await server.disconnected(0)
    await server.closed()


@pytest.mark.asyncio
async def test_a_stream_closed_between_two_chunks_leaves_as_garbage(server: GeminiServer, client: genai.Client) -> None:
    server.stall(after=BEGUN)
    stream: Any = await start(client)
    assert text_of(await anext(stream)) == "a"
    await stream.aclose()
    del stream
    # the SDK's generators are dropped one after the other, and the last two hold each other
    for _ in range(50):
        await asyncio.sleep(0)
    gc.collect()
    await server.disconnected(0)
    await server.closed()


@pytest.mark.asyncio
async def test_a_closed_client_leaves_nothing_open(server: GeminiServer) -> None:
    server.reply(text("ok"))
    client = server.client()
    await read(client, [])
    assert server.open_connections == 1
    await client.aio.aclose()
    await server.closed()
    with pytest.raises(RuntimeError, match="closed"):
        await read(client, [])
    assert len(server.requests) == 1


def test_a_client_may_serve_several_loops(server: GeminiServer) -> None:
    client = server.client()

    async def session() -> None:
        texts: list[str | None] = []
        server.reply(text("ok"), headers={"connection": "close"})
        await read(client, texts)
        assert texts == ["o", "k"]

    asyncio.run(session())
    asyncio.run(session())
    asyncio.run(client.aio.aclose())
    server.wait_closed()


@pytest.mark.asyncio
async def test_an_sdk_client_that_stops_reading_blocks_the_server(server: GeminiServer, client: genai.Client) -> None:
    size = 32 * 1024 * 1024
    server.reply(text("x" * size, pieces=512))
    stream = await start(client)
    await anext(stream)
    await server.blocked(0)
    assert server.exchanges[0].bytes_sent < size / 2
    assert not server.exchanges[0].finished
    await leave(stream)
    await server.disconnected(0)


# the scripted provider


def test_a_history_names_what_has_no_id(server: GeminiServer) -> None:
    provider = GeminiProvider(server, vertex=True)
    contents = [
        {"role": "user", "parts": [{"text": "hi"}]},
        {
            "role": "model",
            "parts": [
                {"text": "I add."},
                {"functionCall": {"name": "add", "args": {}}},
                {"functionCall": {"name": "sub", "args": {}}},
                {"functionCall": {"name": "add", "args": {}}},
                {"functionCall": {"name": "add", "args": {}, "id": "call_1"}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "add", "response": {"output": 1}}},
                {"functionResponse": {"name": "sub", "response": {"error": "no"}}},
                {"functionResponse": {"name": "add", "response": {"output": 2}}},
                {"functionResponse": {"name": "add", "response": {"output": 3}, "id": "call_1"}},
            ],
        },
    ]
    provider.fail(500)
    httpx2.post(f"{server.url}/v1/models/gemini-test:streamGenerateContent", json={"contents": contents})
    assert provider.requests == 1
    assert provider.history(0) == (
        ["add#1", "sub#1", "add#2", "call_1"],
        [("add#1", False), ("sub#1", True), ("add#2", False), ("call_1", False)],
    )


@pytest.mark.asyncio
@pytest.mark.parametrize("vertex", [False, True])
async def test_the_provider_scripts_either_flavour(server: GeminiServer, vertex: bool) -> None:
    provider = GeminiProvider(server, vertex=vertex)
    reply = Reply(
        reasoning=("hm",),
        text=("a", "b"),
        calls=(Call("add", {"a": 1}, "call_1"),),
        usage=Usage(20, 9, cache_read_tokens=5, reasoning_tokens=4),
        truncated=True,
    )
    client = server.vertex_client() if vertex else server.client()
    provider.reply(reply)
    provider.reply(replace(reply, chunk_size=1))
    provider.unknown(reply)
    for _ in range(3):
        seen = [chunk async for chunk in await start(client) if chunk.candidates]
        parts = [part.model_dump(exclude_none=True) for chunk in seen for part in chunk.parts or ()]
        assert parts == [
            {"text": "hm", "thought": True},
            {"text": "a"},
            {"text": "b"},
            {"function_call": {"name": "add", "args": {"a": 1}, "id": "call_1"}},
        ]
        assert seen[-1].candidates[0].finish_reason is types.FinishReason.MAX_TOKENS  # type: ignore[index]
        usage: Any = seen[-1].usage_metadata
        assert (usage.prompt_token_count, usage.cached_content_token_count) == (20, 5)
        assert (usage.candidates_token_count, usage.thoughts_token_count, usage.total_token_count) == (5, 4, 29)
    assert provider.requests == 3
    for cut in (0, 40, provider.body_length(reply)):
        provider.reply(replace(reply, cut=cut))
        path = f"{server.url}/v1/models/gemini-test:streamGenerateContent"
        assert len(httpx2.post(path, json=ASKED).content) == cut
    await provider.settled()
    await client.aio.aclose()


@pytest.mark.asyncio
@pytest.mark.parametrize("vertex", [False, True])
@pytest.mark.parametrize("said", [(), ("so ", "far")])
async def test_the_provider_scripts_every_fault(server: GeminiServer, vertex: bool, said: tuple[str, ...]) -> None:
    provider = GeminiProvider(server, vertex=vertex)
    client = server.vertex_client() if vertex else server.client()
    kinds = {
        "fail_inside": errors.ServerError,
        "drop": httpx2.RemoteProtocolError,
        "garbage": errors.UnknownApiResponseError,
    }
    for fault, kind in kinds.items():
        getattr(provider, fault)(said)
        texts: list[str | None] = []
        with pytest.raises(kind) as caught:
            await read(client, texts)
        assert texts == [*said] if said else [None]
        if isinstance(caught.value, errors.APIError):
            await close(caught.value)
    provider.fail(429, retry_after=3600)
    with pytest.raises(errors.ClientError) as refused:
        await read(client, [])
    assert (refused.value.code, refused.value.status) == (429, "RESOURCE_EXHAUSTED")
    assert refused.value.details["error"]["details"][0]["retryDelay"] == "3600s"
    provider.stall(said)
    waiting = asyncio.ensure_future(read(client, texts := []))
    await provider.stalled()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await provider.settled()
    await client.aio.aclose()
