"""Turns on SageMaker endpoints: what is sent, what comes back from each container, and what goes wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import boto3  # type: ignore[import-untyped, unused-ignore]
import pytest

import rxloop
from rxloop.adapters import SageMakerAdapter, StreamRequest
from rxloop.adapters.http_errors import error_for_status
from rxloop.adapters.sagemaker import AutoPayload, inputs_body, messages_body, transcript
from tests.providers.http import Hold
from tests.providers.sagemaker import (
    SageMakerServer,
    json_line,
    llama,
    lmi,
    openai,
    openai_error,
    payload,
    sse,
    tgi,
    tgi_error,
)
from tests.turns import AT_ONCE, add, run

BYTES, EVENTS = "bytes", "public-events"
every_way = pytest.mark.parametrize("way", [BYTES, EVENTS])


@pytest.fixture
def server() -> Iterator[SageMakerServer]:
    with SageMakerServer() as server:
        yield server


@asynccontextmanager
async def connected(server: SageMakerServer, way: str = BYTES, **fields: Any) -> AsyncIterator[SageMakerAdapter]:
    """An adapter of the server, its client closed at the end."""
    client = server.client()
    try:
        adapter = SageMakerAdapter(client, **{"model": "my-endpoint", **fields})
        adapter._as_bytes = way == BYTES
        yield adapter
        await server.idle()
    finally:
        client.close()


async def result(server: SageMakerServer, way: str = BYTES, **fields: Any) -> rxloop.TurnResult:
    async with connected(server, way, **fields) as adapter:
        return await rxloop.Turn(adapter, "What is 2+3?", retry=rxloop.RetryPolicy(retries=0)).result()


# what is sent


@pytest.mark.asyncio
async def test_the_default_body_is_openais(server: SageMakerServer) -> None:
    server.reply(openai("It is 5."))
    server.reply(openai("It is 35."))
    async with connected(server, max_tokens=64, stream_options={"include_usage": True}) as adapter:
        first = await rxloop.Turn(adapter, "What is 2+3?", system="Be brief.").result()
        await rxloop.Turn(adapter, "And times 7?", conversation=first.conversation).result()
    asked = {"role": "user", "content": "What is 2+3?"}
    fields = {"stream": True, "max_tokens": 64, "stream_options": {"include_usage": True}}
    assert server.bodies[0] == {"messages": [{"role": "system", "content": "Be brief."}, asked], **fields}
    assert server.bodies[1] == {
        "messages": [asked, {"role": "assistant", "content": "It is 5."}, {"role": "user", "content": "And times 7?"}],
        **fields,
    }
    assert server.targets == ["my-endpoint", "my-endpoint"]
    assert server.requests[0].headers["content-type"] == "application/json"


@pytest.mark.asyncio
async def test_the_body_of_plain_generation(server: SageMakerServer) -> None:
    server.reply(tgi("It is 5."))
    await result(server, body=inputs_body, max_new_tokens=64, details=False)
    assert server.bodies == [
        {"inputs": "What is 2+3?", "parameters": {"details": False, "max_new_tokens": 64}, "stream": True}
    ]
    server.reply(tgi("It is 5."))

    def template(request: StreamRequest) -> str:
        return f"<s>[INST] {request.messages[-1]['content']} [/INST]"

    await result(server, body=partial(inputs_body, template=template))
    assert server.bodies[1] == {
        "inputs": "<s>[INST] What is 2+3? [/INST]",
        "parameters": {"details": True},
        "stream": True,
    }


def test_a_transcript_has_every_message() -> None:
    asked, answered = {"role": "user", "content": "2+3?"}, {"role": "assistant", "content": "5"}
    assert transcript(StreamRequest((asked,), None, "m", 0, {})) == "2+3?"
    whole = transcript(StreamRequest((asked, answered, asked), "Be brief.", "m", 0, {}))
    assert whole == "System: Be brief.\n\nUser: 2+3?\n\nAssistant: 5\n\nUser: 2+3?\n\nAssistant:"


@pytest.mark.asyncio
@pytest.mark.parametrize("made", ['{"prompt": "hi"}', b'{"prompt": "hi"}', {"prompt": "hi"}])
async def test_a_body_may_be_ones_own(server: SageMakerServer, made: Any) -> None:
    seen: list[Any] = []

    def body(request: StreamRequest, fields: Mapping[str, Any]) -> Any:
        seen.append((request, fields))
        return made

    server.reply(llama("It is 5."))
    await result(server, body=body, top_k=3)
    [(request, fields)] = seen
    assert (request.model, request.messages[0]["content"], fields) == ("my-endpoint", "What is 2+3?", {"top_k": 3})
    assert server.bodies == [{"prompt": "hi"}]


@pytest.mark.asyncio
@pytest.mark.parametrize("made", [None, 3, ["hi"], {"a": object()}, {"a": float("nan")}])
async def test_a_body_must_have_a_json_form(server: SageMakerServer, made: Any) -> None:
    with pytest.raises(rxloop.ConfigurationError, match=r"body must return a mapping|must have a JSON form"):
        await result(server, body=lambda request, fields: made)
    assert server.requests == []


@pytest.mark.asyncio
async def test_members_of_the_call_are_sent(server: SageMakerServer) -> None:
    server.reply(openai("It is 5."))
    invocation = {
        "InferenceComponentName": "llama",
        "CustomAttributes": "trace=7",
        "SessionId": "s-1",
        "Accept": "text/event-stream",
        "ContentType": "application/jsonlines",
    }
    await result(server, invocation=invocation)
    headers = server.requests[0].headers
    assert headers["x-amzn-sagemaker-inference-component"] == "llama"
    assert headers["x-amzn-sagemaker-custom-attributes"] == "trace=7"
    assert headers["x-amzn-sagemaker-session-id"] == "s-1"
    assert headers["x-amzn-sagemaker-accept"] == "text/event-stream"
    assert headers["content-type"] == "application/jsonlines"


# what comes back


@every_way
@pytest.mark.asyncio
@pytest.mark.parametrize("part_size", [None, 1, 37])
@pytest.mark.parametrize(
    ("writes", "reason", "usage", "warned"),
    [
        (openai("It ", "is ", "5."), "stop", rxloop.Usage(10, 5), 0),
        (openai("It ", "is ", "5.", lines=True, finish_reason="length"), "length", rxloop.Usage(10, 5), 0),
        (openai("It ", "is ", "5.", reasoning=["hm"], usage=None), "stop", rxloop.Usage(3, 2), 1),
        (openai("It ", "is ", "5.", finish_reason="content_filter"), "content-filter", rxloop.Usage(10, 5), 0),
        (tgi("It ", "is ", "5.", input_length=8), "stop", rxloop.Usage(8, 4), 0),
        (tgi("It ", "is ", "5."), "stop", rxloop.Usage(3, 4), 1),
        (lmi("It ", "is ", "5.", finish_reason=None), "other", rxloop.Usage(3, 2), 2),
        (llama("It ", "is ", "5."), "stop", rxloop.Usage(10, 3), 0),
    ],
    ids=["openai", "lines", "uncounted", "filtered", "tgi", "tgi without input_length", "lmi", "llama"],
)
async def test_every_container_answers(
    server: SageMakerServer,
    way: str,
    part_size: int | None,
    writes: list[bytes],
    reason: str,
    usage: rxloop.Usage,
    warned: int,
) -> None:
    server.reply(writes, part_size=part_size)
    found = await result(server, way)
    assert (found.text, found.finish_reason, found.usage) == ("It is 5.", reason, usage)
    assert len(found.warnings) == warned
    assert found.conversation[-1] == {"role": "assistant", "content": "It is 5."}


@pytest.mark.asyncio
async def test_what_is_not_counted_is_estimated_and_marked(server: SageMakerServer) -> None:
    server.reply(tgi("x" * 41, generated_tokens=7))
    server.reply(openai("x" * 41, usage=None))
    server.reply(openai("x", usage={"prompt_tokens": 10, "completion_tokens": 0}))
    async with connected(server) as adapter:
        conversation = adapter.begin(
            [{"role": "user", "content": "1234"}, {"role": "assistant", "content": "5678"}], "9012"
        )
        step = partial(rxloop.steps.Step, 0, conversation, "345")
        partly, nothing, counted = [await adapter.generate(step()) for _ in range(3)]
    assert partly.usage == rxloop.Usage(4, 7)
    assert partly.raw_usage == {"generated_tokens": 7, "estimated": True, "input_tokens": 4}
    assert partly.warnings == ("the container did not count input_tokens: estimated at 4 characters a token",)
    assert nothing.usage == rxloop.Usage(4, 11)
    assert nothing.raw_usage == {"estimated": True, "input_tokens": 4, "output_tokens": 11}
    assert nothing.warnings == (
        "the container did not count input_tokens and output_tokens: estimated at 4 characters a token",
    )
    assert counted.usage == rxloop.Usage(10, 0)
    assert (counted.raw_usage, counted.warnings) == ({"prompt_tokens": 10, "completion_tokens": 0}, ())


@pytest.mark.asyncio
async def test_a_reason_that_nobody_told_is_a_warning(server: SageMakerServer) -> None:
    server.reply(tgi("a", finish_reason=None))
    found = await result(server)
    assert found.finish_reason == "other"
    assert found.warnings[0] == "the container did not tell why the reply ended: finish_reason is other"


@every_way
@pytest.mark.asyncio
async def test_what_follows_the_end_is_of_no_interest(server: SageMakerServer, way: str) -> None:
    server.reply([*openai("It is 5."), *tgi_error()])
    server.model_stream_error(after=payload(tgi("It is 5.")))
    server.garbage(after=payload(llama("It is 5.")))
    for _ in range(3):
        assert (await result(server, way)).text == "It is 5."


@every_way
@pytest.mark.asyncio
async def test_an_answer_is_whole_without_the_usage_that_would_follow(server: SageMakerServer, way: str) -> None:
    frames = payload(openai("It is 5."))
    server.reply_frames(*frames[:-1], frames[-1][:20])
    server.reply_frames(*frames[:-2], frames[-2][:20])
    counted, uncounted = await result(server, way), await result(server, way)
    assert (counted.text, counted.finish_reason, counted.usage) == ("It is 5.", "stop", rxloop.Usage(10, 5))
    assert (uncounted.text, uncounted.finish_reason, uncounted.usage) == ("It is 5.", "stop", rxloop.Usage(3, 2))
    assert uncounted.warnings


class PlainText:
    """A container that writes nothing but text."""

    complete = False
    raw_stop_reason = "end"

    def __init__(self) -> None:
        self.usage = {"input_tokens": 1}
        self.raw_usage = {"sent": 1}

    def feed(self, data: bytes) -> Iterable[str]:
        return [data.decode()]

    def close(self) -> Iterable[str]:
        return ["!"]


@every_way
@pytest.mark.asyncio
async def test_a_payload_may_have_a_decoder_of_ones_own(server: SageMakerServer, way: str) -> None:
    server.reply([b"It is ", b"5"], content_type="text/plain")
    found = await result(server, way, payload=PlainText)
    assert (found.text, found.usage) == ("It is 5!", rxloop.Usage(1, 2))
    assert (found.finish_reason, found.raw_stop_reason) == ("other", "end")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ({"prompt_tokens": 1.0, "completion_tokens": 2.0}, rxloop.Usage(1, 2)),
        ({"prompt_tokens": -1, "completion_tokens": 2}, rxloop.Usage(3, 2)),
        ([7], rxloop.Usage(3, 2)),
    ],
)
async def test_odd_usage_does_not_cost_the_answer(server: SageMakerServer, usage: Any, counted: rxloop.Usage) -> None:
    server.reply([*openai("It is 5.", usage=None, done=False), sse({"choices": [], "usage": usage}), sse("[DONE]")])
    found = await result(server)
    assert (found.text, found.usage) == ("It is 5.", counted)
    assert any("estimated" in warning for warning in found.warnings) == (counted != rxloop.Usage(1, 2))


@pytest.mark.asyncio
async def test_text_of_no_known_format_is_asked_for_once(server: SageMakerServer) -> None:
    for writes in ([b"data is good"], [b":) hello"], [b"Hello"], [json_line({"future": 1})]):
        server.requests.clear()
        server.reply(writes)
        async with connected(server) as adapter:
            recorder = await run(adapter, tools=[], retry=AT_ONCE)
        assert isinstance(recorder.error, rxloop.MalformedResponseError)
        assert "give a decoder as payload=" in str(recorder.error)
        assert len(server.requests) == 1


def decoder(**members: Any) -> type[PlainText]:
    """A faulty decoder, called Faulty."""

    class Faulty(PlainText):
        def __init__(self) -> None:
            super().__init__()
            vars(self).update(members)

    return Faulty


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"usage": {"tokens": 3}}, "a figure of usage must be one of input_tokens, .*, but got 'tokens' of Faulty"),
        ({"usage": [3]}, r"usage of Faulty must be Mapping, but got \[3\]"),
        ({"raw_usage": 3}, "raw_usage of Faulty must be Mapping, but got 3"),
        ({"raw_stop_reason": 3}, "raw_stop_reason must be str or None, but got 3"),
        ({"feed": lambda data: [3]}, "Faulty must make pieces of str, but made 3"),
        ({"close": lambda: [b"a"]}, "Faulty must make pieces of str, but made b'a'"),
    ],
)
async def test_a_faulty_decoder_is_named(server: SageMakerServer, members: dict[str, Any], message: str) -> None:
    server.reply([b"It is ", b"5"])
    with pytest.raises(rxloop.ConfigurationError, match=message):
        await result(server, payload=decoder(**members))


@pytest.mark.asyncio
async def test_what_is_no_decoder_is_refused_before_anything_is_sent(server: SageMakerServer) -> None:
    with pytest.raises(rxloop.ConfigurationError, match="must make a PayloadDecoder, but dict has no 'close'"):
        await result(server, payload=dict)
    assert server.requests == []


@pytest.mark.asyncio
async def test_a_decoders_figures_that_are_none_are_left_out(server: SageMakerServer) -> None:
    server.reply([b"It is 5"])
    found = await result(server, payload=decoder(usage={"input_tokens": -1, "output_tokens": 2.0}))
    assert found.usage == rxloop.Usage(3, 2)
    assert found.warnings == (
        "input_tokens must be a whole number >= 0, but got -1: it is left out",
        "the container did not count input_tokens: estimated at 4 characters a token",
    )


@every_way
@pytest.mark.asyncio
async def test_a_faulty_payload_is_malformed(server: SageMakerServer, way: str) -> None:
    server.reply([b"".join([*llama("so ", "far", stop_reason=None), json_line({"generation": 3})])])
    async with connected(server, way) as adapter:
        recorder = await run(adapter, tools=[])
    assert isinstance(recorder.error, rxloop.MalformedResponseError)
    assert "text must be a string, but got 3" in str(recorder.error)
    assert recorder.text == "so far"


# what goes wrong

OPENAI_ERROR = payload(openai_error())
TEXT_ERROR = payload([sse({"error": "no"})])
TGI_ERROR = payload(tgi_error("no", "overloaded"))
PAGE = payload([b"data: <html>\n\n"])


@every_way
@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (lambda server, after: server.exception_inside("InternalStreamFailure", after=after), rxloop.ServerError),
        (lambda server, after: server.model_stream_error(after=after), rxloop.ServerError),
        (lambda server, after: server.error_inside("ModelStreamError", after=after), rxloop.ServerError),
        (lambda server, after: server.reply_frames(*after, *OPENAI_ERROR), rxloop.ServerError),
        (lambda server, after: server.reply_frames(*after, *TEXT_ERROR), rxloop.ServerError),
        (lambda server, after: server.reply_frames(*after, *TGI_ERROR), rxloop.OverloadedError),
        (lambda server, after: server.reply_frames(*after), rxloop.StreamInterruptedError),
        (lambda server, after: server.drop(after), rxloop.StreamInterruptedError),
        (lambda server, after: server.close(after), rxloop.StreamInterruptedError),
        (lambda server, after: server.garbage(after), rxloop.MalformedResponseError),
        (lambda server, after: server.reply_frames(*after, *PAGE), rxloop.MalformedResponseError),
    ],
    ids=[
        "internal", "model", "error frame", "openai", "text", "tgi", "cut", "dropped", "closed", "no frame", "no json",
    ],
)  # fmt: skip
async def test_a_reply_that_fails(
    server: SageMakerServer, way: str, script: Callable[[SageMakerServer, Any], None], kind: type[Exception]
) -> None:
    begun = payload(openai("so ", "far", finish_reason=None, usage=None, done=False))
    script(server, begun)
    async with connected(server, way) as adapter:
        recorder = await run(adapter, tools=[], retry=AT_ONCE)
        assert type(recorder.error) is kind
        assert isinstance(recorder.error, rxloop.RxLoopError)
        assert recorder.error.partial is not None
        assert recorder.error.partial.text == recorder.text == "so far"
        assert len(server.requests) == 1
        # before any text it is tried again
        script(server, [])
        server.reply(openai("It is 5."))
        recorder = await run(adapter, tools=[], retry=AT_ONCE)
        assert recorder.types.count("retry_scheduled") == 1
        assert recorder.finished.text == "It is 5."


@pytest.mark.asyncio
async def test_the_code_of_a_broken_stream_is_told(server: SageMakerServer) -> None:
    server.model_stream_error("ModelInvocationTimeExceeded", "too slow")
    with pytest.raises(rxloop.ServerError, match="ModelInvocationTimeExceeded: too slow"):
        await result(server)


@every_way
@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "message", "kind", "retryable"),
    [
        (429, '{"error":"Model is overloaded","error_type":"overloaded"}', rxloop.OverloadedError, True),
        (422, '{"error":"`top_p` is wrong","error_type":"validation"}', rxloop.InvalidRequestError, False),
        (400, '{"object":"error","message":"maximum context length is 8"}', rxloop.ContextOverflowError, False),
        (424, '{"error":"failed","error_type":"generation"}', rxloop.ServerError, True),
        (500, "no JSON", rxloop.ServerError, True),
        (404, '{"detail":"Not Found"}', rxloop.ModelNotFoundError, False),
        (503, "", rxloop.OverloadedError, True),
    ],
)
async def test_a_container_that_refuses(
    server: SageMakerServer, way: str, status: int, message: str, kind: type[Exception], retryable: bool
) -> None:
    server.model_error(status, message, retry_after=7)
    with pytest.raises(rxloop.ProviderError) as caught:
        await result(server, way)
    error = caught.value
    assert type(error) is kind
    assert (error.status, error.retryable, error.retry_after) == (424, retryable, 7)
    assert type(error.__cause__).__name__ == "ModelError"


@pytest.mark.asyncio
async def test_a_refusal_without_json_is_told_as_it_is(server: SageMakerServer) -> None:
    server.model_error(500, "CUDA out of memory")
    with pytest.raises(rxloop.ServerError, match=r'server error \(500\) .* with message "CUDA out of memory"'):
        await result(server)


@pytest.mark.asyncio
async def test_a_redirection_is_not_tried_again(server: SageMakerServer) -> None:
    server.fail(307)
    async with connected(server) as adapter:
        recorder = await run(adapter, tools=[], retry=AT_ONCE)
    assert type(recorder.error) is rxloop.InvalidRequestError
    assert "the endpoint redirects with 307, which is not followed: scripted failure" in str(recorder.error)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [300, 302, 307, 308, 399])
def test_a_status_of_redirection(status: int) -> None:
    error = error_for_status(status, "moved", provider="anyone")
    assert type(error) is rxloop.InvalidRequestError
    assert (error.status, error.retryable) == (status, False)
    assert str(error) == f"the endpoint redirects with {status}, which is not followed: moved"


@pytest.mark.asyncio
@pytest.mark.parametrize("lines", [False, True])
async def test_a_stop_keeps_the_text_so_far(server: SageMakerServer, lines: bool) -> None:
    stop = asyncio.Event()
    begun = openai("so ", "far", finish_reason=None, usage=None, done=False, lines=lines)
    server.reply_frames(*payload(begun), Hold("stalled"))

    def watch(event: rxloop.TurnEvent) -> None:
        if event.type == "text_delta" and event.text == "far":
            stop.set()

    async with connected(server) as adapter:
        recorder = await run(adapter, tools=[], stop=stop, watch=watch)
    assert (recorder.finished.finish_reason, recorder.finished.text) == ("aborted", "so far")
    assert recorder.result is not None
    assert recorder.result.conversation[-1] == {"role": "assistant", "content": "so far"}


@pytest.mark.asyncio
async def test_a_connection_is_used_again(server: SageMakerServer) -> None:
    """Of a reply that ends before its connection does too: what is left of it is read."""
    for _ in range(3):
        server.reply([*tgi("It is 5."), b"\n\n"])
    async with connected(server) as adapter:
        for _ in range(3):
            await rxloop.Turn(adapter, "hello").result()
            await server.idle()
        assert server.open_connections == 1
    assert [exchange.client_disconnected for exchange in server.exchanges] == [False] * 3


# the adapter


def test_tools_are_refused() -> None:
    client = boto3.Session(region_name="us-east-1").client("sagemaker-runtime")
    try:
        adapter = SageMakerAdapter(client, model="e")
        assert not adapter.supports_tools
        with pytest.raises(rxloop.ConfigurationError, match="SageMakerAdapter supports no tools, but got 'add'"):
            rxloop.Turn(adapter, "hello", tools=[add])
        with pytest.raises(rxloop.ConfigurationError, match="SageMakerAdapter supports no tools, but got 'tools'"):
            SageMakerAdapter(client, model="e", tools=[])
        assert rxloop.Turn(adapter, "hello").max_steps == 1
    finally:
        client.close()


@pytest.mark.asyncio
async def test_the_system_prompt_is_text(server: SageMakerServer) -> None:
    async with connected(server) as adapter:
        with pytest.raises(rxloop.ConfigurationError, match=r"system must be text, but got \[3\]"):
            await rxloop.Turn(adapter, "hello", system=[3]).result()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": ""}, "model must be a non-empty string, but got ''"),
        ({"model": None}, "model must be a non-empty string, but got None"),
        ({"messages": []}, "'messages' is the turn's to send"),
        ({"stream": False}, "'stream' is the turn's to send"),
        ({"system": "x"}, "'system' is the turn's to send"),
        ({"region_name": "x"}, "'region_name' belongs to the client"),
        ({"body": {"a": 1}}, "body must be a function, but got {'a': 1}"),
        ({"body": None}, "body must be a function, but got None"),
        ({"payload": "auto"}, "payload must be a function, but got 'auto'"),
        ({"temperature": float("nan")}, "the field 'temperature' cannot be sent: a number must be finite, but got nan"),
        ({"stop": [{"a": float("inf")}]}, "the field 'stop' cannot be sent: a number must be finite, but got inf"),
        ({"invocation": "x"}, "invocation must be Mapping or None, but got 'x'"),
        ({"invocation": {"TargetModel": "m"}}, "a member of invocation must be one of .*, but got 'TargetModel'"),
        ({"invocation": {"EndpointName": "m"}}, "a member of invocation must be one of .*, but got 'EndpointName'"),
    ],
)
def test_values_are_checked(server: SageMakerServer, fields: dict[str, Any], message: str) -> None:
    client = server.client()
    try:
        with pytest.raises(rxloop.ConfigurationError, match=message):
            SageMakerAdapter(client, **{"model": "e", **fields})
    finally:
        client.close()


@pytest.mark.parametrize("client", [object(), 3, boto3])
def test_a_client_must_be_boto3s(client: Any) -> None:
    with pytest.raises(rxloop.ConfigurationError, match=r'client must be boto3.client\("sagemaker-runtime"\), but got'):
        SageMakerAdapter(client, model="e")


def test_the_default_client_is_the_adapters(server: SageMakerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME", server.url)
    server.fail(500)
    server.reply(openai("It is 5."))
    with SageMakerAdapter(model="my-endpoint") as adapter:
        with pytest.raises(rxloop.ServerError):
            rxloop.Turn(adapter, "hello", retry=rxloop.RetryPolicy(retries=0)).result_sync()
        assert len(server.requests) == 1, "the SDK must not retry"
        assert rxloop.Turn(adapter, "hello").result_sync().text == "It is 5."


def test_the_parts_are_public() -> None:
    request = StreamRequest(({"role": "user", "content": "a"},), None, "m", 0, {})
    assert json.dumps(messages_body(request, {}))
    assert list(AutoPayload().feed(sse({"choices": [{"delta": {"content": "a"}}]}))) == ["a"]
