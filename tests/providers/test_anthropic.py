from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anthropic
import httpx2
import pytest
import pytest_asyncio

from tests.providers.anthropic import (
    AnthropicServer,
    message,
    raw_block,
    redacted,
    server_tool,
    sse,
    text,
    thinking,
    tool_use,
    unknown_event,
)
from tests.providers.http import Hold

CALL: dict[str, Any] = {
    "model": "claude-test",
    "max_tokens": 64,
    "messages": [{"role": "user", "content": "hi"}],
}


@pytest.fixture
def server() -> Iterator[AnthropicServer]:
    with AnthropicServer() as running:
        yield running


@pytest_asyncio.fixture
async def client(server: AnthropicServer) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with server.client(max_retries=0) as running:
        yield running


async def final(client: anthropic.AsyncAnthropic) -> Any:
    async with client.messages.stream(**CALL) as stream:
        return await stream.get_final_message()


async def read(client: anthropic.AsyncAnthropic, events: list[str]) -> None:
    async for event in await client.messages.create(**CALL, stream=True):
        events.append(event.type)  # noqa: PERF401 - a comprehension would lose what came before a fault


@pytest.mark.asyncio
@pytest.mark.parametrize("chunk_size", [None, 1, 7])
async def test_every_kind_of_block_streams_through_the_sdk(
    server: AnthropicServer, client: anthropic.AsyncAnthropic, chunk_size: int | None
) -> None:
    server.reply(
        thinking("hmm, näh", signature="sig"),
        redacted("opaque"),
        text("Hello wörld 🌍", pieces=4),
        server_tool("web_search", {"query": "q"}, id="srvtoolu_1", result=[]),
        tool_use("add", {"a": 1, "b": [2, "x"]}, id="toolu_1"),
        tool_use("now", {}),
        tool_use("bare", None),
        chunk_size=chunk_size,
        usage={"input_tokens": 10, "cache_read_input_tokens": 3, "output_tokens": 7},
    )
    async with client.messages.stream(**CALL) as stream:
        reply = await stream.get_final_message()
        assert stream.request_id == "req_0001"
    blocks = [block.model_dump(exclude_none=True) for block in reply.content]
    assert [block["type"] for block in blocks] == [
        "thinking",
        "redacted_thinking",
        "text",
        "server_tool_use",
        "web_search_tool_result",
        "tool_use",
        "tool_use",
        "tool_use",
    ]
    assert (blocks[0]["thinking"], blocks[0]["signature"]) == ("hmm, näh", "sig")
    assert blocks[1]["data"] == "opaque"
    assert blocks[2]["text"] == "Hello wörld 🌍"
    assert blocks[3]["input"] == {"query": "q"}
    assert blocks[4]["tool_use_id"] == "srvtoolu_1"
    assert (blocks[5]["id"], blocks[5]["input"]) == ("toolu_1", {"a": 1, "b": [2, "x"]})
    assert (blocks[6]["id"], blocks[6]["input"], blocks[7]["input"]) == ("toolu_now", {}, {})
    assert reply.stop_reason == "tool_use"
    assert (reply.usage.output_tokens, reply.usage.cache_read_input_tokens) == (7, 3)
    assert server.messages == [{**CALL, "stream": True}]
    assert "test-key" in str(server.requests[0].headers)


def test_a_message_has_the_documented_events_in_order() -> None:
    parts = [part.decode().split("\n") for part in message(text("abc", pieces=2), message_id="msg_1")]
    names = [lines[0].removeprefix("event: ") for lines in parts]
    bodies = [json.loads(lines[1].removeprefix("data: ")) for lines in parts]
    assert names == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert names == [body["type"] for body in bodies]
    assert bodies[0]["message"]["usage"] == {"input_tokens": 10, "output_tokens": 1}
    assert [body["delta"]["text"] for body in bodies[3:5]] == ["ab", "c"]
    assert bodies[6]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert bodies[6]["usage"] == {"input_tokens": 10, "output_tokens": 5}


def test_builders_can_say_what_the_api_should_not() -> None:
    assert [delta["partial_json"] for delta in tool_use("t", '{"a": ', pieces=1).deltas] == ["", '{"a": ']
    whole = tool_use("t", {"a": 1}, complete_at_start=True)
    assert (whole.start["input"], whole.deltas) == ({"a": 1}, ())
    odd = raw_block({"type": "future"}, {"type": "future_delta", "x": 1})
    assert [json.loads(part.split(b"data: ")[1])["type"] for part in message(odd, ping=False)][1:4] == [
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
    ]
    assert sse({"type": "a"}, name="b") == b'event: b\ndata: {"type":"a"}\n\n'
    assert text("").deltas == ()


@pytest.mark.asyncio
async def test_an_error_status_has_its_type_and_headers(
    server: AnthropicServer, client: anthropic.AsyncAnthropic
) -> None:
    server.fail(429, type="rate_limit_error", message="slow down", retry_after=7, headers={"x-extra": "1"})
    with pytest.raises(anthropic.RateLimitError, match="slow down") as caught:
        await client.messages.create(**CALL)
    assert caught.value.response.headers["retry-after"] == "7"
    assert caught.value.response.headers["x-extra"] == "1"
    assert caught.value.body == {
        "type": "error",
        "error": {"type": "rate_limit_error", "message": "slow down"},
        "request_id": caught.value.request_id,
    }


@pytest.mark.asyncio
async def test_the_sdk_retries_until_a_reply(server: AnthropicServer) -> None:
    server.fail(529, type="overloaded_error", headers={"retry-after-ms": "1"})
    server.reply(text("ok"))
    async with server.client() as client:
        assert (await final(client)).content[0].text == "ok"
    assert len(server.messages) == 2


@pytest.mark.asyncio
async def test_an_error_event_ends_the_stream(server: AnthropicServer, client: anthropic.AsyncAnthropic) -> None:
    server.error_event("overloaded_error", "Overloaded", after=message(text("abc"))[:4])
    events: list[str] = []
    with pytest.raises(anthropic.APIStatusError, match="Overloaded") as caught:
        await read(client, events)
    assert events == ["message_start", "content_block_start", "content_block_delta"]
    assert caught.value.response.status_code == 200
    assert caught.value.body == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "Overloaded"},
    }


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", ["drop", "close"])
async def test_a_connection_broken_before_headers_is_a_connection_error(
    server: AnthropicServer, client: anthropic.AsyncAnthropic, fault: str
) -> None:
    getattr(server, fault)(before_headers=True)
    with pytest.raises(anthropic.APIConnectionError):
        await client.messages.create(**CALL, stream=True)
    await server.closed()


@pytest.mark.asyncio
@pytest.mark.parametrize(("fault", "error"), [("drop", httpx2.ReadError), ("close", httpx2.RemoteProtocolError)])
async def test_a_connection_broken_in_the_stream_is_an_httpx_error(
    server: AnthropicServer, client: anthropic.AsyncAnthropic, fault: str, error: type[Exception]
) -> None:
    getattr(server, fault)(after=[*message(text("abc"))[:4], Hold("seen")])
    stream = await client.messages.create(**CALL, stream=True)
    events = [(await anext(stream)).type for _ in range(3)]
    server.release("seen")
    with pytest.raises(error):
        await anext(stream)
    assert events == ["message_start", "content_block_start", "content_block_delta"]
    await server.closed()
    assert not server.exchanges[0].client_disconnected


@pytest.mark.asyncio
@pytest.mark.parametrize("chunk_size", [None, 3])
async def test_a_cut_reply_ends_within_an_event(
    server: AnthropicServer, client: anthropic.AsyncAnthropic, chunk_size: int | None
) -> None:
    cut = len(b"".join(message(text("abc"))[:4])) + 5
    server.reply(text("abc"), cut=cut, chunk_size=chunk_size)
    events: list[str] = []
    with pytest.raises(httpx2.RemoteProtocolError):
        await read(client, events)
    assert events == ["message_start", "content_block_start", "content_block_delta"]


@pytest.mark.asyncio
@pytest.mark.parametrize("before_headers", [True, False])
async def test_a_stall_times_the_client_out_and_its_leaving_is_noticed(
    server: AnthropicServer, client: anthropic.AsyncAnthropic, before_headers: bool
) -> None:
    server.stall(after=[] if before_headers else message(text("abc"))[:3], before_headers=before_headers)
    events: list[str] = []
    with pytest.raises(anthropic.APITimeoutError if before_headers else httpx2.ReadTimeout):
        await read(client.with_options(timeout=httpx2.Timeout(5, read=0.3)), events)
    assert events == ([] if before_headers else ["message_start", "content_block_start"])
    await server.disconnected(0)
    await server.closed()
    await server.idle()


@pytest.mark.asyncio
async def test_a_stream_closed_by_the_client_is_noticed(
    server: AnthropicServer, client: anthropic.AsyncAnthropic
) -> None:
    server.stall(after=message(text("abc"))[:3])
    stream = await client.messages.create(**CALL, stream=True)
    assert (await anext(stream)).type == "message_start"
    assert server.open_connections == 1
    await stream.close()
    await server.disconnected(0)
    assert server.open_connections == 0


@pytest.mark.asyncio
async def test_garbage_is_a_json_error(server: AnthropicServer, client: anthropic.AsyncAnthropic) -> None:
    server.garbage(after=message(text("abc"))[:1])
    events: list[str] = []
    with pytest.raises(json.JSONDecodeError):
        await read(client, events)
    assert events == ["message_start"]


@pytest.mark.asyncio
async def test_unknown_events_pass_through_the_sdk(server: AnthropicServer, client: anthropic.AsyncAnthropic) -> None:
    server.unknown_event(text("abc", pieces=1), ping=False)
    server.reply_events(unknown_event("other", x=1))
    events: list[str] = []
    await read(client, events)
    await read(client, events)
    assert events == [
        "message_start",
        "future_event",
        "content_block_start",
        "future_event",
        "content_block_delta",
        "future_event",
        "content_block_stop",
        "future_event",
        "message_delta",
        "future_event",
        "message_stop",
        "future_event",
        "other",
    ]


@pytest.mark.asyncio
async def test_actions_may_surround_a_reply(server: AnthropicServer, client: anthropic.AsyncAnthropic) -> None:
    server.reply(text("abc"), prelude=[Hold("a")], before=[Hold("b")], after=[Hold("c")], headers={"x": "y"})
    for name in "abc":
        server.release(name)
    assert (await final(client)).content[0].text == "abc"


@pytest.mark.asyncio
async def test_an_sdk_client_that_stops_reading_blocks_the_server(
    server: AnthropicServer, client: anthropic.AsyncAnthropic
) -> None:
    size = 32 * 1024 * 1024
    server.reply(text("x" * size, pieces=512))
    stream = await client.messages.create(**CALL, stream=True)
    assert (await anext(stream)).type == "message_start"
    await server.blocked(0)
    assert server.exchanges[0].bytes_sent < size / 2
    assert not server.exchanges[0].finished
    await stream.close()
    await server.disconnected(0)
