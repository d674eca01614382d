"""The Anthropic adapter on a real connection: what can go wrong there, and what is left of it."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from reactivex.disposable import SerialDisposable

from rxloop.errors import (
    ConnectionFailedError,
    MalformedResponseError,
    OverloadedError,
    RxLoopError,
    StreamInterruptedError,
    TimedOutError,
)
from rxloop.events import TextDelta, TurnEvent
from rxloop.limits import Limits
from rxloop.testing.scripted import Recorder
from rxloop.turn import Turn
from rxloop.usage import Usage
from tests.operators.virtual import VirtualTime
from tests.providers.anthropic import AnthropicServer, message, sse, text, thinking, tool_use
from tests.providers.http import Close, Hold, Reply
from tests.turns import AT_ONCE, NO_RETRY, add, check_sent, connected, run


class CountingServer(AnthropicServer):
    """Counts the connections that were ever made."""

    connections = 0

    def _accept(self, *streams: Any) -> None:
        self.connections += 1
        super()._accept(*streams)


@pytest.fixture
def server() -> Iterator[CountingServer]:
    with CountingServer() as server:
        yield server


def whole(*content: dict[str, Any], stop_reason: str = "end_turn") -> dict[str, Any]:
    """A message as it comes without streaming."""
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-test",
        "content": list(content),
        "stop_reason": stop_reason,
        "usage": {"input_tokens": 10, "output_tokens": 5},
    }


def compressed(body: bytes) -> Reply:
    headers = {"content-type": "text/event-stream", "content-encoding": "gzip"}
    return Reply(200, headers, [gzip.compress(body)])


# what a reply may look like


@pytest.mark.asyncio
async def test_a_page_instead_of_a_reply(server: CountingServer) -> None:
    page = Reply(200, {"content-type": "text/html; charset=utf-8"}, [b"<html>Sign in</html>"])
    server.script(page, page)
    server.reply(text("5"))
    async with connected(server) as adapter:
        recorder = await run(adapter)
        assert type(recorder.error) is MalformedResponseError
        assert (recorder.error.status, recorder.error.provider) == (200, "anthropic")
        assert "text/html" in str(recorder.error)
        # a proxy's page may be gone at the next attempt
        assert (await run(adapter, retry=AT_ONCE)).finished.text == "5"


@pytest.mark.asyncio
@pytest.mark.parametrize("body", [(), (b": keep-alive\n\n",), (b"\n",)], ids=["nothing", "a comment", "a line"])
async def test_an_empty_reply_is_interrupted_and_retried(server: CountingServer, body: tuple[bytes, ...]) -> None:
    server.reply_events(*body)
    server.reply_events(*body)
    server.reply(text("5"))
    async with connected(server) as adapter:
        recorder = await run(adapter)
        assert type(recorder.error) is StreamInterruptedError
        recorder = await run(adapter, retry=AT_ONCE)
        assert recorder.types.count("retry_scheduled") == 1
        assert recorder.finished.text == "5"


@pytest.mark.asyncio
async def test_a_reply_that_comes_whole_is_understood(server: CountingServer) -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 2, "b": 3}}
    server.script(
        Reply.json(whole({"type": "text", "text": "I add."}, call, stop_reason="tool_use")),
        Reply.json(whole({"type": "text", "text": "It is 5."}), headers={"content-type": "application/json; a=b"}),
    )
    async with connected(server) as adapter:
        recorder = await run(adapter)
    assert recorder.text == "I add.It is 5."
    assert recorder.finished.text == "It is 5."
    assert recorder.finished.usage == Usage(20, 10)
    assert recorder.types.count("tool_finished") == 1
    assert [len(sent["content"]) for sent in check_sent(server.messages[1])] == [1, 2, 1]


@pytest.mark.asyncio
@pytest.mark.parametrize("body", [b'{"type": "mess', b"", b"[]", b"null", b"\xff"])
async def test_a_whole_reply_that_is_no_message(server: CountingServer, body: bytes) -> None:
    server.script(Reply(200, {"content-type": "application/json", "content-length": str(len(body))}, [body]))
    async with connected(server) as adapter:
        recorder = await run(adapter)
    assert isinstance(recorder.error, MalformedResponseError)
    assert recorder.error.partial is not None


@pytest.mark.asyncio
async def test_an_error_object_with_status_200(server: CountingServer) -> None:
    server.script(Reply.json({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}))
    async with connected(server) as adapter:
        recorder = await run(adapter)
    assert isinstance(recorder.error, OverloadedError)


@pytest.mark.asyncio
async def test_a_compressed_reply(server: CountingServer) -> None:
    server.script(compressed(b"".join(message(thinking("hm"), text("Er ist 5 €.")))))
    async with connected(server) as adapter:
        recorder = await run(adapter)
    assert recorder.finished.text == recorder.text == "Er ist 5 €."


@pytest.mark.asyncio
async def test_a_compressed_reply_that_is_broken(server: CountingServer) -> None:
    headers = {"content-type": "text/event-stream", "content-encoding": "gzip"}
    server.script(Reply(200, headers, [b"this is not gzip at all"]))
    async with connected(server) as adapter:
        recorder = await run(adapter)
    assert isinstance(recorder.error, RxLoopError)
    assert recorder.error.retryable


# connections


@pytest.mark.asyncio
async def test_the_steps_of_a_turn_share_a_connection(server: CountingServer) -> None:
    for number in range(3):
        server.reply(text("hm"), tool_use("add", {"a": 1, "b": 2}, id=f"toolu_{number}"))
    server.reply(text("done"))
    async with connected(server) as adapter:
        recorder = await run(adapter)
        assert recorder.finished.steps == 4
        assert server.open_connections == 1
    assert server.connections == 1
    await server.closed()


@pytest.mark.asyncio
async def test_an_attempt_that_failed_gives_its_connection_back(server: CountingServer) -> None:
    server.fail(529, "overloaded_error")
    server.reply(text("5"))
    async with connected(server) as adapter:
        assert (await run(adapter, retry=AT_ONCE)).finished.text == "5"
    assert server.connections == 1


@pytest.mark.asyncio
async def test_a_reply_without_an_end_completes_the_turn(
    server: CountingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rxloop.adapters.pump._DRAIN_SECONDS", 0.02)
    server.reply(tool_use("add", {"a": 1, "b": 2}), after=[Hold("for ever")])
    server.reply(text("3"), after=[Hold("for ever")])
    async with connected(server) as adapter:
        recorder = await run(adapter)
        assert recorder.finished.text == "3"
        await server.disconnected(0)
        await server.disconnected(1)
        await server.closed()


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", ["drop", "close"])
async def test_a_connection_that_breaks_after_the_answer(server: CountingServer, fault: str) -> None:
    getattr(server, fault)(after=[b"".join(message(text("5"))), Hold("sent")])
    recorder = Recorder()
    async with connected(server) as adapter:

        def on_next(event: TurnEvent) -> None:
            recorder.on_next(event)
            if isinstance(event, TextDelta):
                server.release("sent")

        turn = Turn(adapter, "hello", retry=NO_RETRY)
        turn.subscribe(on_next, recorder.on_error, recorder.on_completed)
        await recorder.ended.wait()
    assert recorder.error is None
    assert recorder.finished.text == "5"


@pytest.mark.asyncio
async def test_a_disposal_while_the_end_is_awaited(server: CountingServer) -> None:
    # in one piece: whoever has seen the text has seen the end
    server.reply(text("3"), chunk_size=100_000, after=[Hold("for ever")])
    recorder = Recorder()
    seen = asyncio.Event()

    def on_next(event: TurnEvent) -> None:
        recorder.on_next(event)
        if isinstance(event, TextDelta):
            seen.set()

    async with connected(server) as adapter:
        subscription = Turn(adapter, "hello", on_end=recorder.keep).subscribe(on_next, recorder.on_error)
        await seen.wait()
        subscription.dispose()
        await server.disconnected(0)
    assert recorder.types[-1] == "text_delta"
    assert recorder.result is not None
    assert (recorder.result.text, recorder.result.finish_reason) == ("3", "aborted")
    assert recorder.result.conversation[-1] == {"role": "assistant", "content": [{"type": "text", "text": "3"}]}


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["dispose", "raise", "stop", "clock", "garbage", "error event"])
async def test_every_way_out_closes_the_connection(server: CountingServer, way: str) -> None:
    endings = {
        "garbage": b"data: {not json\n\n",
        "error event": sse({"type": "error", "error": {"type": "api_error", "message": "x"}}),
    }
    server.reply_events(*message(text("so far"))[:4], endings.get(way, b": nothing\n\n"), Hold("for ever"))
    recorder = Recorder()
    subscription = SerialDisposable()
    stop = asyncio.Event()

    def on_next(event: TurnEvent) -> None:
        recorder.on_next(event)
        if isinstance(event, TextDelta):
            if way == "raise":
                raise LookupError("the subscriber's own")
            if way == "dispose":
                subscription.dispose()
            if way == "stop":
                stop.set()
            if way == "clock":
                asyncio.get_running_loop().call_soon(timers.advance_by, 60)

    timers = VirtualTime()
    limits = Limits(turn_timeout=60)
    async with connected(server) as adapter:
        turn = Turn(adapter, "hello", on_end=recorder.keep, limits=limits, stop=stop, retry=NO_RETRY, scheduler=timers)
        subscription.disposable = turn.subscribe(on_next, recorder.on_error, recorder.on_completed)
        await server.disconnected(0)
        await server.closed()
        server.reply(text("next"))
        assert (await run(adapter)).finished.text == "next", "the client is good for another turn"
    assert recorder.result is not None
    assert recorder.result.text.startswith("so")


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", ["drop", "close"])
async def test_a_connection_that_breaks_before_the_answer(server: CountingServer, fault: str) -> None:
    getattr(server, fault)(before_headers=True)
    getattr(server, fault)(before_headers=True)
    server.reply(text("5"))
    async with connected(server) as adapter:
        recorder = await run(adapter)
        assert isinstance(recorder.error, ConnectionFailedError)
        assert recorder.error.__cause__ is not None
        assert (await run(adapter, retry=AT_ONCE)).finished.text == "5"


@pytest.mark.asyncio
async def test_a_connection_that_is_reset_in_the_middle(server: CountingServer) -> None:
    server.drop(after=[*message(text("so far"))[:4], Hold("sent")])
    recorder = Recorder()
    async with connected(server) as adapter:

        def on_next(event: TurnEvent) -> None:
            recorder.on_next(event)
            if isinstance(event, TextDelta):
                server.release("sent")

        turn = Turn(adapter, "hello", retry=AT_ONCE)
        turn.subscribe(on_next, recorder.on_error, recorder.on_completed)
        await recorder.ended.wait()
    assert isinstance(recorder.error, StreamInterruptedError)
    assert recorder.error.__cause__ is not None
    assert recorder.error.partial is not None
    assert recorder.error.partial.text == recorder.text
    assert len(server.messages) == 1


@pytest.mark.asyncio
async def test_the_clients_own_timeout(server: CountingServer) -> None:
    server.stall(after=message(text("so far"))[:1])
    server.stall(before_headers=True)
    async with connected(server, server.client(timeout=0.1)) as adapter:
        for _ in range(2):
            recorder = await run(adapter)
            assert isinstance(recorder.error, TimedOutError)
            assert (recorder.error.clock, recorder.error.retryable) == ("transport", True)


@pytest.mark.asyncio
async def test_a_body_shorter_than_it_said(server: CountingServer) -> None:
    body = b"".join(message(text("so far"))[:4])
    headers = {"content-type": "text/event-stream", "content-length": str(len(body) + 10)}
    server.script(Reply(200, headers, [body, Close()]))
    async with connected(server) as adapter:
        recorder = await run(adapter)
    assert isinstance(recorder.error, StreamInterruptedError)
    assert recorder.error.partial is not None
    assert recorder.error.partial.text == "so"


# many events at once


DELTAS = 5000


def burst() -> Reply:
    """A reply whose deltas come out of the transport in one piece."""
    return compressed(b"".join(message(text("x" * DELTAS, pieces=DELTAS))))


@pytest.mark.asyncio
async def test_a_burst_does_not_starve_the_loop(server: CountingServer) -> None:
    server.script(burst())
    ticks: list[int] = []
    recorder = Recorder()

    async def tick() -> None:
        while not recorder.ended.is_set():
            ticks.append(len(recorder.events))
            await asyncio.sleep(0)

    async with connected(server) as adapter:
        Turn(adapter, "hello").subscribe(recorder.on_next, recorder.on_error, recorder.on_completed)
        async with asyncio.timeout(20):
            await tick()
    assert recorder.finished.text == "x" * DELTAS
    during = {position for position in ticks if 10 < position < DELTAS}
    gaps = [after - before for before, after in itertools.pairwise(sorted(during))]
    assert len(during) >= DELTAS // 200
    assert max(gaps) <= 200


@pytest.mark.asyncio
@pytest.mark.parametrize("buffer", [8, 64, 256])
async def test_a_slow_consumer_bounds_the_buffer(server: CountingServer, buffer: int) -> None:
    server.script(burst())
    texts = []
    async with connected(server) as adapter:
        events = Turn(adapter, "hello", buffer=buffer).stream()
        async with asyncio.timeout(20):
            async for event in events:
                if isinstance(event, TextDelta):
                    texts.append(event.text)
                    # every other turn of the loop is the pump's
                    await asyncio.sleep(0)
    assert "".join(texts) == "x" * DELTAS
    assert buffer // 2 <= events.peak_buffered <= buffer


@pytest.mark.asyncio
async def test_a_consumer_that_stalls_stops_the_reading_of_the_socket(server: CountingServer) -> None:
    pieces, size = 4000, 2000
    deltas = [{"type": "text_delta", "text": f"{number:{size}}"} for number in range(pieces)]
    opening, closing = message(text("."))[:3], message(text("."))[4:]
    body = [sse({"type": "content_block_delta", "index": 0, "delta": delta}) for delta in deltas]
    server.reply_events(*opening, *body, *closing)
    async with connected(server) as adapter:
        async with Turn(adapter, "hello", buffer=16, limits=Limits(stall_timeout=0.5)).stream() as events:
            assert (await anext(events)).type == "turn_started"
            await server.blocked(0)
            sent = server.exchanges[0].bytes_sent
            assert sent < pieces * size / 2, "the rest waits at the provider"
            received = [event.text async for event in events if isinstance(event, TextDelta)]
        assert events.peak_buffered <= 16
    assert received == [delta["text"] for delta in deltas]
    assert server.exchanges[0].finished


@pytest.mark.asyncio
async def test_leaving_while_the_reading_is_paused(server: CountingServer) -> None:
    server.reply_events(*message(text("x" * 200, pieces=200)), Hold("for ever"))
    async with connected(server) as adapter:
        async with Turn(adapter, "hello", buffer=8).stream() as events:
            await server.held("for ever")
            await anext(events)
        await server.disconnected(0)
        assert events.buffered == 0


@pytest.mark.asyncio
async def test_the_turn_is_one_json_document_on_the_wire(server: CountingServer) -> None:
    server.reply(text("5"))
    async with connected(server) as adapter:
        await run(adapter, "2+3 = ?", tools=[add])
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/v1/messages")
    assert request.headers["content-type"] == "application/json"
    assert json.loads(request.body)["stream"] is True
