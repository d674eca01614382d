"""Which error a failure of the Messages API becomes."""

from __future__ import annotations

import email.utils
import json
import time
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from rxloop.adapters.anthropic import AnthropicAdapter
from rxloop.adapters.anthropic_errors import classify, error_of_type
from rxloop.adapters.http_errors import error_for_status, retry_after
from rxloop.errors import (
    AuthenticationError,
    ConfigurationError,
    ConnectionFailedError,
    ContextOverflowError,
    InvalidRequestError,
    MalformedResponseError,
    ModelNotFoundError,
    OverloadedError,
    PermissionDeniedError,
    ProviderError,
    RateLimitedError,
    RxLoopError,
    ServerError,
)
from rxloop.operators import RetryPolicy
from rxloop.turn import Turn
from tests.providers.anthropic import AnthropicServer, text
from tests.providers.http import Reply
from tests.turns import AT_ONCE, connected, run

SECRET = "sk-ant-api03-very-secret"


@pytest.fixture
def server() -> Iterator[AnthropicServer]:
    with AnthropicServer() as server:
        yield server


async def failure(server: AnthropicServer, **options: Any) -> RxLoopError:
    async with connected(server) as adapter:
        recorder = await run(adapter, **options)
    assert isinstance(recorder.error, RxLoopError), repr(recorder.error)
    return recorder.error


# statuses


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "type_", "expected", "retryable"),
    [
        (400, "invalid_request_error", InvalidRequestError, False),
        (400, "a_future_error", InvalidRequestError, False),
        (401, "authentication_error", AuthenticationError, False),
        (402, "billing_error", PermissionDeniedError, False),
        (403, "permission_error", PermissionDeniedError, False),
        (404, "not_found_error", ModelNotFoundError, False),
        (408, "timeout_error", ServerError, True),
        (408, "invalid_request_error", InvalidRequestError, True),
        (409, "invalid_request_error", InvalidRequestError, True),
        (409, "conflict_error", InvalidRequestError, True),
        (413, "request_too_large", ContextOverflowError, False),
        (418, "a_future_error", InvalidRequestError, False),
        (422, "invalid_request_error", InvalidRequestError, False),
        (429, "rate_limit_error", RateLimitedError, True),
        (429, "a_future_error", RateLimitedError, True),
        (500, "api_error", ServerError, True),
        (500, "invalid_request_error", InvalidRequestError, True),
        (502, "a_future_error", ServerError, True),
        (503, "a_future_error", OverloadedError, True),
        (503, "api_error", ServerError, True),
        (504, "timeout_error", ServerError, True),
        (529, "overloaded_error", OverloadedError, True),
        (529, "a_future_error", OverloadedError, True),
    ],
)
async def test_a_status(
    server: AnthropicServer, status: int, type_: str, expected: type[ProviderError], retryable: bool
) -> None:
    server.fail(status, type_, "what the provider says", retry_after=7)
    error = await failure(server)
    assert type(error) is expected
    assert error.kind == expected.kind
    assert error.retryable is retryable
    assert (error.status, error.retry_after, error.provider) == (status, 7.0, "anthropic")
    assert str(error) == "what the provider says"
    assert isinstance(error.__cause__, anthropic.APIStatusError)
    assert error.__cause__.status_code == status
    assert error.to_dict() == {
        "kind": expected.kind,
        "status": status,
        "message": "what the provider says",
        "retryable": retryable,
    }


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html><title>502 Bad Gateway</title></html>", "Bad Gateway"),
        (b"", "502"),
        (b'{"message": "upstream"}', "upstream"),
        (b'{"error": "upstream"}', "upstream"),
        (b'{"error": {"message": "upstream"}}', "upstream"),
        (b'{"error": {"code": 502, "status": "UNAVAILABLE"}}', "502"),
        (b'{"error": {"message": null}}', "502"),
        (b"[]", "502"),
        (b"null", "502"),
        (b'"text"', "text"),
    ],
)
async def test_a_body_that_is_not_the_apis(server: AnthropicServer, body: bytes, words: str) -> None:
    server.script(Reply(502, {"content-length": str(len(body)), "retry-after": "3"}, [body]))
    error = await failure(server)
    assert type(error) is ServerError
    assert (error.status, error.retryable, error.retry_after) == (502, True, 3.0)
    assert words in str(error)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "prompt is too long: 210000 tokens > 200000 maximum"),
        (400, "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length"),
        (400, "Prompt is too long"),
        (400, "the request exceeds the model's context window"),
        (413, "Request exceeds the maximum size"),
    ],
)
async def test_a_context_that_is_too_long(server: AnthropicServer, status: int, message: str) -> None:
    server.fail(status, "invalid_request_error" if status == 400 else "request_too_large", message)
    error = await failure(server, retry=AT_ONCE)
    assert type(error) is ContextOverflowError
    assert not error.retryable
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        (400, "Input is too long for requested model.", ContextOverflowError),
        (400, "The provided model identifier is invalid.", InvalidRequestError),
        (429, "Too many tokens, please wait before trying again.", RateLimitedError),
        (None, "prompt is too long", ServerError),
    ],
)
def test_a_status_without_an_apis_type(status: int | None, message: str, expected: type[ProviderError]) -> None:
    error = error_of_type({"message": message}, status=status)
    assert type(error) is expected
    assert error.status == status


# how long to wait


def date(seconds: float) -> str:
    return email.utils.formatdate(time.time() + seconds, usegmt=True)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": " 2 "}, 2.0),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "2"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "2"}, 2.0),
        ({"retry-after-ms": "-1", "retry-after": "2"}, 2.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e400"}, None),
        ({"retry-after": "Fri, 32 Nov 2026 99:00:00 GMT"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
    ],
)
def test_the_delay_that_was_asked_for(headers: dict[str, str], expected: float | None) -> None:
    assert retry_after(headers) == expected


def test_a_date_is_a_delay() -> None:
    assert retry_after({"retry-after": date(90)}) == pytest.approx(90, abs=2)
    assert retry_after({"retry-after": date(90).replace("GMT", "+0000")}) == pytest.approx(90, abs=2)
    assert retry_after({"retry-after": date(90).replace("GMT", "-0000")}) == pytest.approx(90, abs=2)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("headers", "delay"),
    [
        ({"retry-after-ms": "30"}, 0.03),
        ({"retry-after": "0.02"}, 0.02),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
    ],
)
async def test_the_delay_is_obeyed(server: AnthropicServer, headers: dict[str, str], delay: float) -> None:
    server.fail(429, "rate_limit_error", headers=headers)
    server.reply(text("5"))
    async with connected(server) as adapter:
        recorder = await run(adapter, retry=RetryPolicy(first_delay=20))
    assert [event.delay for event in recorder.events if event.type == "retry_scheduled"] == [delay]
    assert recorder.finished.text == "5"


@pytest.mark.asyncio
async def test_a_date_far_away_surfaces_at_once(server: AnthropicServer) -> None:
    server.fail(429, "rate_limit_error", retry_after=date(3600))
    error = await failure(server, retry=AT_ONCE)
    assert type(error) is RateLimitedError
    assert error.retry_after == pytest.approx(3600, abs=3)
    assert len(server.requests) == 1


# before there is any status


@pytest.mark.asyncio
async def test_nobody_listens() -> None:
    with AnthropicServer() as gone:
        url = gone.url
    async with connected(gone, gone.client(base_url=url)) as adapter:
        recorder = await run(adapter)
    error = recorder.error
    assert type(error) is ConnectionFailedError
    assert (error.retryable, error.status, error.provider) == (True, None, "anthropic")
    assert isinstance(error.__cause__, anthropic.APIConnectionError)


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("ANTHROPIC_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.mark.asyncio
@pytest.mark.usefixtures("no_credentials")
async def test_a_missing_key(server: AnthropicServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    async with AnthropicAdapter(model="claude-test") as adapter:
        recorder = await run(adapter, retry=AT_ONCE)
    assert isinstance(recorder.error, (AuthenticationError, ConfigurationError))
    assert not recorder.error.retryable
    assert "set ANTHROPIC_API_KEY" in str(recorder.error)
    assert recorder.error.partial is not None
    assert not server.requests


@pytest.mark.asyncio
@pytest.mark.parametrize("key", [f"{SECRET}\n", f"{SECRET}\r\nx-evil: 1", f" {SECRET}\0"])
async def test_a_key_that_no_header_can_hold(server: AnthropicServer, key: str) -> None:
    """The most usual slip: the line end of the file that it was read from."""
    async with connected(server, server.client(api_key=key)) as adapter:
        recorder = await run(adapter, retry=AT_ONCE)
    assert isinstance(recorder.error, ConfigurationError), repr(recorder.error)
    assert "retry_scheduled" not in recorder.types, "it would fail again"
    assert SECRET not in told(recorder.error)
    assert not server.requests


def told(error: RxLoopError) -> str:
    return f"{error} {error!r} {json.dumps(error.to_dict())}"


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["status", "refused", "broken", "page"])
async def test_no_error_tells_the_key(server: AnthropicServer, way: str) -> None:
    options: dict[str, Any] = {"api_key": SECRET}
    if way == "status":
        server.fail(401, "authentication_error", "invalid x-api-key")
    elif way == "refused":
        with AnthropicServer() as gone:
            options["base_url"] = gone.url
    elif way == "broken":
        server.drop(before_headers=True)
    else:
        server.script(Reply(200, {"content-type": "text/html"}, [b"<html>"]))
    async with connected(server, server.client(**options)) as adapter:
        recorder = await run(adapter)
    assert isinstance(recorder.error, RxLoopError)
    assert SECRET not in told(recorder.error)


@pytest.mark.asyncio
async def test_a_request_that_the_sdk_refuses(server: AnthropicServer) -> None:
    """Values that no retry makes better."""
    async with connected(server, extra_query="no mapping") as adapter:
        recorder = await run(adapter, retry=AT_ONCE)
    assert recorder.error is not None
    assert "retry_scheduled" not in recorder.types
    assert not server.requests


# pure


def test_an_error_of_rxloops_stays_as_it_is() -> None:
    error = MalformedResponseError("x")
    assert classify(error) is error


@pytest.mark.parametrize("error", [ValueError("x"), KeyError("x"), TypeError("an argument is missing")])
def test_a_fault_of_the_program_stays_as_it_is(error: Exception) -> None:
    assert classify(error) is error


def test_an_error_of_the_sdk_without_a_request() -> None:
    error = anthropic.AnthropicError("The api_key client option must be set")
    classified = classify(error)
    assert isinstance(classified, ConfigurationError)
    assert classified.__cause__ is error


@pytest.mark.parametrize(
    ("status", "expected", "retryable"),
    [
        (None, ServerError, True),
        (400, InvalidRequestError, False),
        (401, AuthenticationError, False),
        (403, PermissionDeniedError, False),
        (404, ModelNotFoundError, False),
        (408, InvalidRequestError, True),
        (409, InvalidRequestError, True),
        (413, ContextOverflowError, False),
        (425, InvalidRequestError, False),
        (429, RateLimitedError, True),
        (500, ServerError, True),
        (503, OverloadedError, True),
        (529, OverloadedError, True),
        (599, ServerError, True),
    ],
)
def test_what_a_status_alone_says(status: int | None, expected: type[ProviderError], retryable: bool) -> None:
    error = error_for_status(status, "x", provider="anyone", retry_after=2)
    assert type(error) is expected
    assert (error.status, error.retryable, error.retry_after) == (status, retryable, 2)


@pytest.mark.asyncio
async def test_the_same_error_object_surfaces_from_result(server: AnthropicServer) -> None:
    server.fail(400, "invalid_request_error", "no")
    kept = []
    async with connected(server) as adapter:
        with pytest.raises(InvalidRequestError, match="no") as caught:
            await Turn(adapter, "hello", on_end=kept.append).result()
    assert kept[0].error is caught.value
