"""Whole turns on Bedrock, over the wire: tools, what goes wrong on the way, leaving, waiting, and many at once."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3  # type: ignore[import-untyped, unused-ignore]
import botocore.session  # type: ignore[import-untyped, unused-ignore]
import pytest
from botocore.credentials import (  # type: ignore[import-untyped, unused-ignore]
    CredentialProvider,
    RefreshableCredentials,
)
from reactivex.disposable import SerialDisposable
from reactivex.subject import Subject

from rxloop.adapters.bedrock import BedrockAdapter
from rxloop.errors import ContextOverflowError, RateLimitedError, StreamInterruptedError
from rxloop.events import TextDelta, TurnEvent
from rxloop.limits import Limits
from rxloop.steps import Step
from rxloop.testing.scripted import Recorder
from rxloop.tools import tool
from rxloop.turn import Turn
from rxloop.usage import Usage
from tests.adapters.test_bedrock_request import BYTES, MODEL, check_sent, connected, every_way
from tests.providers.bedrock import (
    BedrockServer,
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
)
from tests.providers.eventstream import exception
from tests.providers.http import Close, Drop, Hold, Stall
from tests.turns import AT_ONCE, NO_RETRY, add, run

BEGUN = message(text("so far", pieces=2))[:3]
variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@pytest.fixture
def server() -> Iterator[BedrockServer]:
    with BedrockServer() as server:
        yield server


async def turn(server: BedrockServer, way: str = BYTES, **options: Any) -> Recorder:
    async with connected(server, way) as adapter:
        recorder = await run(adapter, **options)
        await server.idle()
    for body in server.bodies:
        check_sent(body)
    return recorder


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "rxloop reply"]


async def no_thread() -> None:
    """Every thread that reads a reply has ended, and soon."""
    async with asyncio.timeout(2):
        # another thread makes it true
        while threads():  # noqa: ASYNC110
            await asyncio.sleep(0)


# tools


@every_way
@pytest.mark.asyncio
async def test_reasoning_and_parallel_calls_go_back_as_they_came(server: BedrockServer, way: str) -> None:
    usage = {"inputTokens": 7, "outputTokens": 20, "cacheReadInputTokens": 100, "cacheWriteInputTokens": 30}
    server.reply(
        reasoning("Let me see.", "s+/=\u2028"),
        redacted(b"\x00\xff", b"opaque"),
        text("I add."),
        server_tool("nova_grounding", {"query": "q"}, {"text": "found"}),
        tool_use("add", {"a": 2, "b": 3}, id="1"),
        tool_use("add", {"a": 1, "b": 1}, id="2"),
        usage=usage,
    )
    server.reply(cited("It is 5.", {"title": "t"}), image(b"\x89PNG"))
    server.reply(text("35"))
    async with connected(server, way) as adapter:
        if way == "public-events" and not sdk_knows_images(adapter.client):
            pytest.skip("needs a botocore that knows images in replies")
        recorder = await run(adapter)
        assert recorder.result is not None
        await run(adapter, "And times 7?", conversation=recorder.result.conversation)
    assert (recorder.finished.finish_reason, recorder.finished.text) == ("stop", "It is 5.")
    assert recorder.finished.usage == Usage(147, 25, cache_read_tokens=100, cache_write_tokens=30)
    _, asked, told, answer, _ = check_sent(server.bodies[2])
    grounding = {"toolUseId": "srvtoolu_nova_grounding", "name": "nova_grounding", "type": "server_tool_use"}
    assert asked["content"] == [
        {"reasoningContent": {"reasoningText": {"text": "Let me see.", "signature": "s+/=\u2028"}}},
        {"reasoningContent": {"redactedContent": "AP9vcGFxdWU="}},
        {"text": "I add."},
        {"toolUse": {**grounding, "input": {"query": "q"}}},
        {
            "toolResult": {
                "toolUseId": "srvtoolu_nova_grounding",
                "type": "nova_grounding_result",
                "status": "success",
                "content": [{"text": "found"}],
            }
        },
        {"toolUse": {"toolUseId": "1", "name": "add", "input": {"a": 2, "b": 3}}},
        {"toolUse": {"toolUseId": "2", "name": "add", "input": {"a": 1, "b": 1}}},
    ]
    assert told["content"] == [
        {"toolResult": {"toolUseId": "1", "content": [{"text": "5"}]}},
        {"toolResult": {"toolUseId": "2", "content": [{"text": "2"}]}},
    ]
    assert answer["content"] == [
        {"citationsContent": {"content": [{"text": "It is 5."}], "citations": [{"title": "t"}]}},
        {"image": {"format": "png", "source": {"bytes": "iVBORw=="}}},
    ]


@every_way
@pytest.mark.asyncio
async def test_a_call_is_run_whatever_the_reason_says(server: BedrockServer, way: str) -> None:
    @tool
    async def now() -> str:
        """Tell the time."""
        return "12"

    for arguments, reason in ((None, "end_turn"), ("", "tool_use"), ({}, "a_future_reason"), (None, "stop_sequence")):
        server.reply(tool_use("now", arguments), stop_reason=reason)
        server.reply(text("It is 12."))
        recorder = await turn(server, way, tools=[now])
        assert [event.output for event in recorder.events if event.type == "tool_finished"] == ["12"]
        assert recorder.finished.text == "It is 12."


@every_way
@pytest.mark.asyncio
async def test_a_call_that_the_token_limit_cut_off_is_not_run(server: BedrockServer, way: str) -> None:
    for arguments in (None, '{"a": 1, "b'):
        server.reply(
            tool_use("add", {"a": 1, "b": 1}, id="1"), tool_use("add", arguments, id="2"), stop_reason="max_tokens"
        )
        server.reply(text("done"))
        recorder = await turn(server, way)
        whole, refused = (event for event in recorder.events if event.type == "tool_finished")
        if whole.call_id == "2":
            whole, refused = refused, whole
        assert (whole.output, whole.error) == (2, None)
        assert "token limit" in str(refused.error)
        results = check_sent(server.bodies[-1])[-1]["content"]
        assert [block["toolResult"].get("status") for block in results] == [None, "error"]


@every_way
@pytest.mark.asyncio
async def test_a_guardrail_ends_the_turn(server: BedrockServer, way: str) -> None:
    trace = {"guardrail": {"actionReason": "blocked"}}
    server.reply(text("I cannot say that."), stop_reason="guardrail_intervened", trace=trace)
    server.reply(text("Hello."))
    async with connected(server, way, guardrailConfig={"guardrailIdentifier": "g", "guardrailVersion": "1"}) as adapter:
        recorder = await run(adapter, retry=AT_ONCE)
        assert (recorder.finished.finish_reason, recorder.finished.text) == ("content-filter", "I cannot say that.")
        assert recorder.finished.raw_stop_reason == "guardrail_intervened"
        assert len(server.requests) == 1
        assert recorder.result is not None
        await run(adapter, "And now?", conversation=recorder.result.conversation)
    assert len(check_sent(server.bodies[1])) == 3


# what goes wrong on the way


@every_way
@pytest.mark.asyncio
async def test_throttling_inside_the_stream_is_retried(server: BedrockServer, way: str) -> None:
    server.exception_inside("throttlingException", "slow down")
    server.exception_inside("modelStreamErrorException", after=BEGUN[:1], originalStatusCode=500)
    server.reply(text("5"))
    recorder = await turn(server, way, retry=AT_ONCE)
    assert recorder.types.count("retry_scheduled") == 2
    assert recorder.finished.text == recorder.text == "5"
    server.exception_inside("throttlingException", "slow down", after=BEGUN)
    recorder = await turn(server, way, retry=AT_ONCE)
    assert type(recorder.error) is RateLimitedError
    assert recorder.error.partial is not None
    assert recorder.error.partial.conversation[-1] == {"role": "assistant", "content": [{"text": "so far"}]}


@every_way
@pytest.mark.asyncio
async def test_an_answer_that_is_whole_survives_what_its_usage_does_not(server: BedrockServer, way: str) -> None:
    """The usage comes after the answer, and the connection may break between them."""
    for ending in ((), (Close(),), (Drop(),), (Stall(),), (encoded(message()[-1])[:20],), (b"\0",)):
        *begun, _ = message(text("I add."), tool_use("add", {"a": 2, "b": 3}, id="1"))
        server.reply_frames(*begun, *ending)
        server.reply(text("It is 5."))
        client = server.client(read_timeout=0.3) if Stall() in ending else None
        async with connected(server, way, client) as adapter:
            recorder = await run(adapter, retry=AT_ONCE)
        assert recorder.error is None, (ending, recorder.error)
        assert (recorder.finished.text, recorder.finished.usage) == ("It is 5.", Usage(10, 5))
        assert "retry_scheduled" not in recorder.types
        assert recorder.result is not None
        assert len(recorder.result.warnings) == 1
    # what the provider itself says of it is another matter
    server.reply_frames(*message(text("5"))[:-1], exception("internalServerException", "late"))
    recorder = await turn(server, way, retry=AT_ONCE)
    assert str(recorder.error) == "late"
    assert recorder.result is not None
    assert recorder.result.text == "5"


@every_way
@pytest.mark.asyncio
async def test_a_whole_answer_is_not_waited_on(server: BedrockServer, way: str) -> None:
    """What the provider does after the last event is no business of the turn's."""
    for ending in ((Close(),), (Drop(),), (exception("internalServerException", "late"),), (b"<html>",)):
        server.reply_frames(*message(text("5")), *ending)
        recorder = await turn(server, way)
        assert recorder.error is None, ending
        assert (recorder.finished.text, recorder.finished.usage) == ("5", Usage(10, 5))


@every_way
@pytest.mark.asyncio
async def test_what_a_broken_turn_leaves_can_be_sent(server: BedrockServer, way: str) -> None:
    begun = message(
        reasoning("hm", "s"),
        text("I add."),
        tool_use("add", {"a": 1, "b": 1}, id="1"),
        server_tool("search", {})[0],
        tool_use("add", {"a": 2}, id="2"),
    )[:-4]
    server.drop(after=begun)
    server.reply(text("done"))
    async with connected(server, way) as adapter:
        broken = await run(adapter, retry=AT_ONCE)
        assert type(broken.error) is StreamInterruptedError
        assert broken.error.partial is not None
        await run(adapter, "go on", conversation=broken.error.partial.conversation)
    _, asked, told = check_sent(server.bodies[1])
    assert [next(iter(block)) for block in asked["content"]] == ["reasoningContent", "text", "toolUse"]
    assert told["content"][0]["toolResult"]["status"] == "error"
    assert told["content"][1] == {"text": "go on"}


# leaving


@every_way
@pytest.mark.asyncio
@pytest.mark.parametrize("silence", ["before the headers", "after the headers", "in the middle"])
async def test_a_disposal_ends_the_thread_and_the_connection_at_once(
    server: BedrockServer, way: str, silence: str
) -> None:
    if silence == "before the headers":
        server.reply_frames(prelude=[Hold("silence"), Stall()])
    else:
        server.reply_frames(*(BEGUN if silence == "in the middle" else ()), Hold("silence"), Stall())
    async with connected(server, way) as adapter:
        recorder = Recorder()
        subscription = Turn(adapter, "hello", on_end=recorder.keep).subscribe(recorder.on_next, recorder.on_error)
        await server.held("silence")
        if silence == "in the middle":
            async with asyncio.timeout(5):
                # what was sent has arrived
                while recorder.text != "so far":  # noqa: ASYNC110
                    await asyncio.sleep(0)
        assert len(threads()) == 1
        began = time.monotonic()
        subscription.dispose()
        assert time.monotonic() - began < 0.5, "disposing does not wait"
        await server.disconnected(0)
        await no_thread()
        count = len(recorder.events)
        # the client is good for the next turn
        server.reply(text("5"))
        assert (await Turn(adapter, "again").result()).text == "5"
        assert len(recorder.events) == count
    assert recorder.result is not None
    assert recorder.result.finish_reason == "aborted"


@every_way
@pytest.mark.asyncio
async def test_what_was_left_before_it_was_sent_is_not_sent(server: BedrockServer, way: str) -> None:
    """As while credentials are fetched, which nothing interrupts."""
    reached, release = threading.Event(), threading.Event()

    def on_send(**_: Any) -> None:
        reached.set()
        assert release.wait(5)

    client = server.client(retries={"total_max_attempts": 3, "mode": "standard"})
    client.meta.events.register("before-sign.bedrock-runtime.ConverseStream", on_send)
    async with connected(server, way, client) as adapter:
        subscription = Turn(adapter, "hello").subscribe()
        assert await asyncio.to_thread(reached.wait, 5)
        subscription.dispose()
        # the event loop has to come to it
        for _ in range(10):
            await asyncio.sleep(0)
        release.set()
        await no_thread()
        assert not server.requests
        server.reply(text("5"))
        assert (await Turn(adapter, "again").result()).text == "5"


@every_way
@pytest.mark.asyncio
async def test_a_disposal_before_the_thread_has_begun(server: BedrockServer, way: str) -> None:
    async with connected(server, way) as adapter:
        for rounds in range(4):
            server.reply(*[text("x")] * 20, after=[Hold(f"{rounds}")])
            subscription = SerialDisposable()
            subscription.disposable = Turn(adapter, "hello").subscribe()
            for _ in range(rounds):
                await asyncio.sleep(0)
            subscription.dispose()
            await no_thread()
            server._script.clear()


@every_way
@pytest.mark.asyncio
async def test_a_stop_in_the_middle(server: BedrockServer, way: str) -> None:
    *begun, _, _ = message(reasoning("hm"), text("so far", pieces=2), tool_use("add", {"a": 1, "b": 1}, id="1"))
    half = tool_use("add", '{"a": 1', id="2")
    started: Event = {"contentBlockStart": {"contentBlockIndex": 3, "start": half.start}}
    more: list[Event] = [{"contentBlockDelta": {"contentBlockIndex": 3, "delta": delta}} for delta in half.deltas]
    server.reply_frames(*begun, started, *more, Hold("for ever"))
    server.reply(text("done"))
    stop: Subject[str] = Subject()

    def watch(event: TurnEvent) -> None:
        if event.type == "tool_call_started" and event.call_id == "2":
            stop.on_next("stop")

    async with connected(server, way) as adapter:
        recorder = await run(adapter, stop=stop, watch=watch)
        await server.disconnected(0)
        await no_thread()
        assert (recorder.finished.finish_reason, recorder.finished.text) == ("aborted", "so far")
        assert recorder.result is not None
        conversation = recorder.result.conversation
        await run(adapter, "go on", conversation=conversation)
    _, asked, told = check_sent(server.bodies[1])
    assert [next(iter(block)) for block in asked["content"]] == ["reasoningContent", "text", "toolUse"]
    assert [block["toolResult"]["toolUseId"] for block in told["content"][:-1]] == ["1"]


class Wrapped:
    """A stream of the SDK's events that hands out nothing but them."""

    def __init__(self, stream: Any, **attributes: Any) -> None:
        self.stream = stream
        self.__dict__.update(attributes)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.stream)

    def close(self) -> None:
        self.stream.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "attributes", [{}, {"_raw_stream": None}, {"_raw_stream": iter(()), "_event_generator": 5}], ids=str
)
async def test_without_the_bytes_the_events_are_read(server: BedrockServer, attributes: dict[str, Any]) -> None:
    """As with an SDK, or an instrumentation of one, that keeps them elsewhere."""
    client = server.client()

    def wrap(parsed: dict[str, Any], **_: Any) -> None:
        parsed["stream"] = Wrapped(parsed["stream"], **attributes)

    client.meta.events.register("after-call.bedrock-runtime.ConverseStream", wrap)
    server.reply(reasoning("hm"), redacted(b"\x00\xff"), tool_use("add", {"a": 2, "b": 3}, id="1"))
    server.reply_frames(*BEGUN, Hold("for ever"))
    async with connected(server, client=client) as adapter:
        subscription = SerialDisposable()
        recorder = Recorder()
        subscription.disposable = Turn(adapter, "hello", tools=[add]).subscribe(recorder.on_next, recorder.on_error)
        await server.held("for ever")
        subscription.dispose()
        await server.disconnected(1)
        await no_thread()
    _, asked, told = check_sent(server.bodies[1])
    assert asked["content"][1] == {"reasoningContent": {"redactedContent": "AP8="}}
    assert told["content"][0]["toolResult"]["content"] == [{"text": "5"}]


# waiting


@every_way
@pytest.mark.asyncio
async def test_a_reader_that_stalls_stops_the_reading_of_the_socket(server: BedrockServer, way: str) -> None:
    pieces, size = 4000, 2000
    deltas = [f"{number:{size}}" for number in range(pieces)]
    server.reply(raw_block(None, *({"text": piece} for piece in deltas)))
    async with connected(server, way) as adapter:
        events = Turn(adapter, "hello", buffer=16, limits=Limits(stall_timeout=0.4)).stream()
        async with events:
            assert (await anext(events)).type == "turn_started"
            await server.blocked(0)
            assert server.exchanges[0].bytes_sent < pieces * size / 2, "the rest waits at the provider"
            received = [event.text async for event in events if isinstance(event, TextDelta)]
        assert events.peak_buffered <= 16
        assert events.result.usage == Usage(10, 5)
    assert received == deltas
    assert server.exchanges[0].finished


@every_way
@pytest.mark.asyncio
async def test_leaving_while_the_reading_is_paused(server: BedrockServer, way: str) -> None:
    deltas = [{"text": "x" * 2000}] * 3000
    server.reply(raw_block(None, *deltas))
    async with connected(server, way) as adapter:
        async with Turn(adapter, "hello", buffer=8).stream() as events:
            await anext(events)
            await server.blocked(0)
        await server.disconnected(0)
        await no_thread()


# many at once


@every_way
@pytest.mark.asyncio
async def test_two_hundred_turns_at_once(server: BedrockServer, way: str) -> None:
    count = 200
    for number in range(count):
        server.reply(text("a" * (number + 1)), before=[Hold("all are here")])
    client = server.client(max_pool_connections=count)
    async with connected(server, way, client) as adapter:
        running = [asyncio.ensure_future(Turn(adapter, f"{number}").result()) for number in range(count)]
        await server.received(count)
        assert len(threads()) == count
        server.release("all are here")
        async with asyncio.timeout(20):
            results = await asyncio.gather(*running)
        await no_thread()
        asked = {body["messages"][0]["content"][0]["text"] for body in server.bodies}
        assert asked == {f"{number}" for number in range(count)}
        assert sorted(len(result.text) for result in results) == list(range(1, count + 1)), "no reply is mixed up"
        assert sum(result.usage.total_tokens for result in results) == 15 * count
        assert server.open_connections == count, "connections are kept for the next turns"
        server.reply(text("5"))
        await Turn(adapter, "again").result()
        assert server.open_connections == count


@pytest.mark.asyncio
async def test_a_handler_and_a_source_of_credentials_see_the_callers_context(server: BedrockServer) -> None:
    seen: list[tuple[str, str, int]] = []

    def refreshed() -> dict[str, str]:
        seen.append(("credentials", variable.get(), threading.get_ident()))
        # so soon over that the SDK refreshes them at every call
        expiry = datetime.now(UTC) + timedelta(minutes=12)
        return {"access_key": "AKID", "secret_key": "s", "token": variable.get(), "expiry_time": expiry.isoformat()}

    class Custom(CredentialProvider):  # type: ignore[misc, unused-ignore]
        METHOD = CANONICAL_NAME = "custom"

        def load(self) -> Any:
            return RefreshableCredentials.create_from_metadata(refreshed(), refresh_using=refreshed, method="custom")

    session = botocore.session.get_session()
    session.get_component("credential_provider").insert_before("env", Custom())
    session.set_config_variable("region", "us-east-1")
    client = boto3.Session(botocore_session=session).client("bedrock-runtime", endpoint_url=server.url)

    def on_send(**_: Any) -> None:
        seen.append(("handler", variable.get(), threading.get_ident()))

    client.meta.events.register("before-sign.bedrock-runtime.ConverseStream", on_send)
    seen.clear()
    async with connected(server, client=client) as adapter:
        for name in ("first", "second"):
            server.reply(text("5"))
            token = variable.set(name)
            await Turn(adapter, "hello").result()
            variable.reset(token)
    assert [(what, value) for what, value, _ in seen] == [
        ("handler", "first"),
        ("credentials", "first"),
        ("handler", "second"),
        ("credentials", "second"),
    ]
    assert threading.get_ident() not in {ident for _, _, ident in seen}, "the event loop is not blocked"
    assert [request.headers["x-amz-security-token"] for request in server.requests] == ["first", "second"]
    assert variable.get() == "unset"


# the faces


@every_way
@pytest.mark.asyncio
async def test_a_closed_client_has_no_connection(server: BedrockServer, way: str) -> None:
    """At once, and not only when the garbage is collected."""
    server.fail(429)
    server.exception_inside("throttlingException")
    server.garbage(after=BEGUN)
    server.reply(text("5"))
    server.reply_frames(*BEGUN, Hold("for ever"))
    server.reply(text("5"))
    gc.collect()
    gc.disable()
    try:
        kept = []
        for _ in range(4):
            async with connected(server, way) as adapter:
                kept.append(await run(adapter))
            await server.closed()
        async with connected(server, way) as adapter:
            subscription = Turn(adapter, "hello").subscribe()
            await server.held("for ever")
            subscription.dispose()
            await no_thread()
            kept.append(await run(adapter))
        await server.closed()
    finally:
        gc.enable()
    assert [recorder.error is None for recorder in kept] == [False, False, False, True, True]


@pytest.fixture
def default_adapter(server: BedrockServer, monkeypatch: pytest.MonkeyPatch) -> BedrockAdapter:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", server.url)
    return BedrockAdapter(model=MODEL)


@pytest.mark.asyncio
async def test_the_default_client_retries_nothing_and_is_closed_with_the_adapter(
    server: BedrockServer, default_adapter: BedrockAdapter
) -> None:
    server.fail(503)
    server.reply(text("5"))
    async with default_adapter as adapter:
        recorder = await run(adapter, retry=AT_ONCE)
        assert recorder.types.count("retry_scheduled") == 1, "the turn owns the retries"
        assert server.open_connections == 1
    assert recorder.finished.text == "5"
    assert len(server.requests) == 2
    await server.closed()
    config = adapter.client.meta.config
    assert (config.connect_timeout, config.read_timeout, config.max_pool_connections) == (10, 600, 256)


def test_synchronous_runs_share_a_connection(server: BedrockServer, default_adapter: BedrockAdapter) -> None:
    with default_adapter as adapter:
        for word in ("one", "two", "three"):
            server.reply(tool_use("add", {"a": 1, "b": 2}))
            server.reply(text(word))
            result = Turn(adapter, "hello", tools=[add]).result_sync()
            assert (result.text, result.tool_results[0].output) == (word, 3)
            for thread in threads():
                thread.join(1)
            assert not threads()
        assert server.open_connections == 1
    assert len(server.requests) == 6
    server.wait_closed()


@every_way
@pytest.mark.asyncio
async def test_one_step_alone(server: BedrockServer, way: str) -> None:
    server.reply(text("I add."), tool_use("add", {"a": 2, "b": 3}, id="1"))
    server.fail(400, message="Input is too long for requested model.")
    server.reply_frames(*BEGUN, Hold("for ever"))
    async with connected(server, way) as adapter:
        step = Step(0, adapter.begin([], "What is 2+3?"), tools=[add.declaration])
        result = await adapter.generate(step)
        assert (result.text, result.finish_reason, len(result.tool_calls)) == ("I add.", "tool-calls", 1)
        assert step.draft is not None
        assert step.draft.draft() == result
        with pytest.raises(ContextOverflowError):
            await adapter.generate(step)
        waiting = asyncio.ensure_future(adapter.generate(step))
        await server.held("for ever")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await server.disconnected(2)
        await no_thread()
    assert len(server.requests) == 3


@pytest.mark.asyncio
async def test_a_turn_may_run_in_a_tool_of_another(server: BedrockServer) -> None:
    async with connected(server) as adapter:

        @tool
        async def ask(question: str) -> str:
            """Ask somebody else."""
            return (await Turn(adapter, question, retry=NO_RETRY).result()).text

        server.reply(tool_use("ask", {"question": "2+3?"}))
        server.reply(text("5"))
        server.reply(text("They say 5."))
        recorder = await run(adapter, tools=[ask])
    assert recorder.finished.text == "They say 5."
    assert [len(body["messages"]) for body in server.bodies] == [1, 1, 3]
