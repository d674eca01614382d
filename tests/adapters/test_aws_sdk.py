"""Leaving a call of boto3's at any moment, and what its handlers may do meanwhile."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from rxloop.adapters.anthropic import AnthropicAdapter
from rxloop.adapters.bedrock import BedrockAdapter
from rxloop.errors import ConfigurationError, InvalidRequestError, MalformedResponseError, RxLoopError
from rxloop.limits import Limits
from rxloop.operators import RetryPolicy
from rxloop.tools import tool
from rxloop.turn import Turn
from tests.providers.anthropic import AnthropicServer
from tests.providers.bedrock import BedrockServer, encoded, message, text, tool_use
from tests.providers.eventstream import CONTENT_TYPE
from tests.providers.http import Reply, Request
from tests.turns import NO_RETRY

MODEL = "anthropic.claude-test"
STARTED = {"messageStart": {"role": "assistant"}}


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("rxloop")]


def wait_for_threads(seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    for thread in threads():
        thread.join(max(0.0, deadline - time.monotonic()))
    assert threads() == []


def client_of(url: str, **config: Any) -> Any:
    return boto3.client(  # type: ignore[no-untyped-call, unused-ignore]
        "bedrock-runtime",
        region_name="us-east-1",
        endpoint_url=url,
        aws_access_key_id="AKIDEXAMPLE",
        aws_secret_access_key="secret",
        config=Config(**{"retries": {"total_max_attempts": 1}, **config}),
    )


@contextmanager
def listener(backlog: int = 8) -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=backlog) as server:
        yield server


async def left_after(adapter: BedrockAdapter, seconds: float) -> None:
    subscription = Turn(adapter, "hello", retry=NO_RETRY).subscribe(on_error=lambda error: None)
    await asyncio.sleep(seconds)
    subscription.dispose()
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_handshake_that_never_comes_is_left_at_once() -> None:
    with listener() as server:
        client = client_of(f"https://127.0.0.1:{server.getsockname()[1]}", connect_timeout=60, read_timeout=60)
        asyncio.run(left_after(BedrockAdapter(client, model=MODEL), 0.3))
        wait_for_threads(2)
        client.close()


def test_a_connection_that_nobody_takes_is_left_at_once() -> None:
    with listener(backlog=0) as server:
        address = server.getsockname()
        # what the backlog has room for
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        client = client_of(f"http://127.0.0.1:{address[1]}", connect_timeout=60, read_timeout=60)
        asyncio.run(left_after(BedrockAdapter(client, model=MODEL), 0.3))
        wait_for_threads(2)
        client.close()
        for filler in fillers:
            filler.close()


def test_the_thread_ends_although_the_loop_is_gone() -> None:
    """A silent server, and a loop that ends with the turn; the client's own attempts end with it too."""
    with BedrockServer() as server:
        client = server.client(retries={"total_max_attempts": 4, "mode": "standard"})
        adapter = BedrockAdapter(client, model=MODEL)

        async def run() -> None:
            with pytest.raises(RxLoopError):
                await Turn(adapter, "hello", limits=Limits(turn_timeout=0.1), retry=NO_RETRY).result()

        for number in range(3):
            server.stall(before_headers=True)
            asyncio.run(run())
            wait_for_threads(2)
            assert len(server.requests) == number + 1
        client.close()


def test_result_sync_leaves_no_thread_either() -> None:
    with BedrockServer() as server:
        client = server.client()
        adapter = BedrockAdapter(client, model=MODEL)
        server.stall(before_headers=True)
        with pytest.raises(RxLoopError):
            Turn(adapter, "hello", limits=Limits(turn_timeout=0.1), retry=NO_RETRY).result_sync()
        wait_for_threads(2)
        adapter.close()
        client.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit])
async def test_whatever_ends_the_thread_ends_the_step(raised: type[BaseException]) -> None:
    def fail(**_: Any) -> None:
        raise raised

    with BedrockServer() as server:
        client = server.client()
        client.meta.events.register("before-sign.bedrock-runtime.ConverseStream", fail)
        adapter = BedrockAdapter(client, model=MODEL)
        with pytest.raises(RuntimeError, match=f"ended by {raised.__name__}") as caught:
            async with asyncio.timeout(5):
                await Turn(adapter, "hello", retry=NO_RETRY).result()
        assert isinstance(caught.value.__cause__, raised)
        client.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("event", ["provide-client-params", "before-call", "before-sign"])
@pytest.mark.parametrize("first", [True, False])
async def test_a_call_within_a_call_has_its_own_body(event: str, first: bool) -> None:
    within = False

    def call_another(**_: Any) -> None:
        nonlocal within
        if not within:
            within = True
            messages = [{"role": "user", "content": [{"text": "inner"}]}]
            client.converse_stream(modelId="small", messages=messages)["stream"].close()

    with BedrockServer() as server:
        server.route(
            lambda request: Reply(200, {"content-type": CONTENT_TYPE}, [encoded(one) for one in message(text("5"))])
        )
        client = server.client()
        if first:
            client.meta.events.register(f"{event}.bedrock-runtime.ConverseStream", call_another)
        adapter = BedrockAdapter(client, model="big")
        if not first:
            client.meta.events.register(f"{event}.bedrock-runtime.ConverseStream", call_another)
        result = await Turn(adapter, "outer", retry=NO_RETRY).result()
        asked = zip(server.targets, server.bodies, strict=True)
        said = {target: body["messages"][0]["content"][0]["text"] for target, body in asked}
        client.close()
    assert result.text == "5"
    assert said == {"small": "inner", "big": "outer"}


@pytest.mark.asyncio
@pytest.mark.parametrize("as_bytes", [True, False])
async def test_silence_after_the_answer_costs_its_usage_and_no_more(as_bytes: bool) -> None:
    *answer, _ = message(text("It is 5."))
    with BedrockServer() as server:
        server.stall(answer)
        client = server.client()
        adapter = BedrockAdapter(client, model=MODEL)
        adapter._as_bytes = as_bytes
        result = await Turn(adapter, "hello", limits=Limits(stall_timeout=10), retry=NO_RETRY).result()
        client.close()
    assert (result.text, result.finish_reason) == ("It is 5.", "stop")
    assert result.warnings == ("the reply ended without its usage, which counts as nothing",)


@pytest.mark.asyncio
async def test_a_reply_that_is_not_chunked_streams_too() -> None:
    arrived: list[str] = []
    body = [encoded(one) for one in message(text("It is 5.", pieces=2))]
    ready = threading.Event()

    def serve(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(65536)
            head = f"HTTP/1.1 200 OK\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {sum(map(len, body))}\r\n\r\n"
            connection.sendall(head.encode() + body[0] + body[1])
            ready.wait(5)
            connection.sendall(b"".join(body[2:]))

    def on_next(event: Any) -> None:
        if event.type == "text_delta":
            arrived.append(event.text)
            # only what has arrived lets the rest go out
            ready.set()

    with listener() as server:
        serving = threading.Thread(target=serve, args=(server,))
        serving.start()
        client = client_of(f"http://127.0.0.1:{server.getsockname()[1]}")
        ended = asyncio.get_running_loop().create_future()
        Turn(BedrockAdapter(client, model=MODEL), "hello", retry=NO_RETRY).subscribe(
            on_next, ended.set_exception, lambda: ended.set_result(None)
        )
        async with asyncio.timeout(4):
            await ended
        serving.join()
        client.close()
    assert "".join(arrived) == "It is 5."


@tool
def listed() -> str:
    """Fails as a file name that is no text makes it."""
    raise FileNotFoundError("b\udce9.txt")


@pytest.mark.asyncio
async def test_an_error_that_is_no_text_can_be_sent() -> None:
    with BedrockServer() as server:
        server.reply(tool_use("listed", {}))
        server.reply(text("5"))
        client = server.client()
        result = await Turn(BedrockAdapter(client, model=MODEL), "hello", tools=[listed], retry=NO_RETRY).result()
        client.close()
    assert result.text == "5"
    assert result.tool_results[0].error == "the tool failed: FileNotFoundError: b?.txt"


@pytest.mark.asyncio
async def test_a_page_with_the_status_of_a_success_is_named() -> None:
    page = Reply(200, {"content-type": "text/html; charset=utf-8"}, [b"<html>maintenance</html>"])
    with BedrockServer() as server:
        server.route(lambda request: page)
        client = server.client()
        with pytest.raises(MalformedResponseError, match="must be an event stream, but got text/html"):
            await Turn(BedrockAdapter(client, model=MODEL), "hello", retry=NO_RETRY).result()
        client.close()


SECRETS = ("hush-token", "AKIDHUSHHUSHHUSH1", "hush-password")


def quoting(request: Request) -> Reply:
    said = {
        "message": "'hush-token' not a valid key=value pair (missing equal-sign) in Authorization header: "
        "'Bearer hush-token'."
    }
    headers = {"content-type": "application/json", "x-amzn-errortype": "IncompleteSignatureException"}
    return Reply(403, headers, [json.dumps(said).encode()])


@pytest.mark.asyncio
async def test_what_quotes_the_credentials_is_not_passed_on() -> None:
    with BedrockServer() as server:
        server.route(quoting)
        client = server.client()
        with pytest.raises(RxLoopError) as caught:
            await Turn(BedrockAdapter(client, model=MODEL), "hello", retry=NO_RETRY).result()
        client.close()
    assert caught.value.kind == "authentication"
    shown = "".join(traceback.format_exception(caught.value))
    assert not any(secret in shown for secret in SECRETS)


@pytest.mark.asyncio
async def test_a_password_in_the_address_is_not_shown() -> None:
    with listener() as server:
        port = server.getsockname()[1]
    client = client_of(f"http://user:hush-password@127.0.0.1:{port}")
    with pytest.raises(RxLoopError) as caught:
        await Turn(BedrockAdapter(client, model=MODEL), "hello", retry=NO_RETRY).result()
    client.close()
    assert "hush-password" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([{"text": b"hi"}], "text must be text, but got"),
        ([{"image": {"format": "png", "source": {"bytes": Path("a.png")}}}], "bytes must be bytes or base64"),
        ([{"image": {"format": "png", "source": {"bytes": io.StringIO("text")}}}], "bytes must be bytes or base64"),
    ],
)
def test_bytes_where_the_api_has_them_and_nowhere_else(prompt: Any, said: str) -> None:
    with BedrockServer() as server:
        client = server.client()
        with pytest.raises(ConfigurationError, match=said):
            Turn(BedrockAdapter(client, model=MODEL), prompt)
        client.close()


def test_a_file_of_bytes_is_read() -> None:
    with BedrockServer() as server:
        client = server.client()
        image = {"image": {"format": "png", "source": {"bytes": io.BytesIO(b"\x89PNG")}}}
        [sent] = BedrockAdapter(client, model=MODEL).begin([], [image])
        client.close()
    assert sent["content"] == [{"image": {"format": "png", "source": {"bytes": "iVBORw=="}}}]


def test_leaving_a_block_closes_the_client_that_the_adapter_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    closed: list[bool] = []
    with BedrockAdapter(model=MODEL) as adapter:
        close = adapter.client.close
        monkeypatch.setattr(adapter.client, "close", lambda: (closed.append(True), close()))
    assert closed == [True]


@pytest.mark.asyncio
@pytest.mark.parametrize("flavour", ["anthropic", "bedrock"])
async def test_a_redirect_is_not_asked_for_again(flavour: str) -> None:
    moved = Reply(307, {"content-type": "application/json"}, [b"{}"])
    server: Any = AnthropicServer() if flavour == "anthropic" else BedrockServer()
    with server:
        server.route(lambda request: moved)
        client = server.client()
        adapter: Any = (AnthropicAdapter if flavour == "anthropic" else BedrockAdapter)(client, model=MODEL)
        with pytest.raises(InvalidRequestError) as caught:
            await Turn(adapter, "hello", retry=RetryPolicy(first_delay=0, max_delay=0)).result()
        if flavour == "anthropic":
            await client.close()
        else:
            client.close()
    assert caught.value.status == 307
    assert len(server.requests) == 1
