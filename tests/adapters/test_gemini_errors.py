"""Which error a failure of the Gemini API becomes, on either platform."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from google import genai
from google.auth import exceptions as auth
from google.genai import errors

from rxloop.adapters.gemini import GeminiAdapter
from rxloop.adapters.gemini_errors import classify, error_of_body
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
    StreamInterruptedError,
    TimedOutError,
)
from rxloop.operators import RetryPolicy
from rxloop.turn import Turn
from rxloop.usage import Usage
from tests.adapters.gemini_turns import FLAVOURS, PUBLIC, STUDIO, VERTEX, connected
from tests.providers.gemini import FakeCredentials, GeminiServer, chunks, error, signature_only, text
from tests.providers.http import Reply
from tests.turns import AT_ONCE, run

SECRET = "AIzaSy-very-secret"


@pytest.fixture
def server() -> Iterator[GeminiServer]:
    with GeminiServer() as server:
        yield server


@pytest.fixture(params=FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def failure(server: GeminiServer, flavour: str = STUDIO, client: Any = None, **options: Any) -> RxLoopError:
    async with connected(server, flavour, client) as adapter:
        recorder = await run(adapter, **options)
        await server.idle()
    assert isinstance(recorder.error, RxLoopError), repr(recorder.error)
    assert recorder.error.partial is not None
    return recorder.error


# statuses


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "word", "expected", "retryable"),
    [
        (400, "INVALID_ARGUMENT", InvalidRequestError, False),
        (400, "FAILED_PRECONDITION", InvalidRequestError, False),
        (401, "UNAUTHENTICATED", AuthenticationError, False),
        (403, "PERMISSION_DENIED", PermissionDeniedError, False),
        (404, "NOT_FOUND", ModelNotFoundError, False),
        (408, "DEADLINE_EXCEEDED", InvalidRequestError, True),
        (409, "ABORTED", InvalidRequestError, True),
        (413, "INVALID_ARGUMENT", ContextOverflowError, False),
        (429, "RESOURCE_EXHAUSTED", RateLimitedError, True),
        (499, "CANCELLED", InvalidRequestError, False),
        (500, "INTERNAL", ServerError, True),
        (502, "A_FUTURE_STATUS", ServerError, True),
        (503, "UNAVAILABLE", OverloadedError, True),
        (504, "DEADLINE_EXCEEDED", ServerError, True),
    ],
)
async def test_a_status(
    server: GeminiServer, flavour: str, status: int, word: str, expected: type[ProviderError], retryable: bool
) -> None:
    server.fail(status, word, "what the provider says", retry_delay=7)
    found = await failure(server, flavour)
    assert type(found) is expected
    assert (found.retryable, found.status, found.retry_after) == (retryable, status, 7.0)
    assert (str(found), found.provider) == ("what the provider says", "google")
    assert isinstance(found.__cause__, errors.APIError)
    assert found.__cause__.code == status
    assert found.to_dict() == {
        "kind": expected.kind,
        "status": status,
        "message": "what the provider says",
        "retryable": retryable,
    }


@pytest.mark.asyncio
async def test_a_key_that_is_not_valid(server: GeminiServer, flavour: str) -> None:
    """AI Studio says so with a 400."""
    details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}]
    server.fail(400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.", details=details)
    found = await failure(server, flavour, retry=AT_ONCE)
    assert type(found) is AuthenticationError
    assert not found.retryable
    assert len(server.requests) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "message",
    [
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        "The input token count exceeds the maximum number of tokens allowed 1048576.",
        "the request exceeds the model's context window",
    ],
)
async def test_a_context_that_is_too_long(server: GeminiServer, flavour: str, message: str) -> None:
    server.fail(400, "INVALID_ARGUMENT", message)
    found = await failure(server, flavour, retry=AT_ONCE)
    assert type(found) is ContextOverflowError
    assert not found.retryable
    assert len(server.requests) == 1


def test_a_limit_on_tokens_per_minute_is_no_overflow() -> None:
    body = error(429, "RESOURCE_EXHAUSTED", "Quota exceeded for input token count per minute")
    assert type(error_of_body(body)) is RateLimitedError


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html><title>502 Bad Gateway</title></html>", "Bad Gateway"),
        (b"<html>an error occurred: the server error page</html>", "an error occurred"),
        (b"upstream connect error or disconnect/reset before headers", "upstream connect error"),
        (b"", ""),
        (b'{"message": "upstream error"}', "upstream error"),
        (b'{"error": "upstream"}', "upstream"),
        (b'{"error": {"message": null, "status": "UNAVAILABLE"}}', "UNAVAILABLE"),
        (b'[{"error": {"code": 502, "message": "wrapped", "status": "UNAVAILABLE"}}]', "wrapped"),
        (b"[]", ""),
        (b"null", ""),
        (b'"text"', "text"),
        (b"\xff\xfe", ""),
    ],
)
async def test_a_body_that_is_not_the_apis(server: GeminiServer, flavour: str, body: bytes, words: str) -> None:
    server.script(Reply(502, {"content-length": str(len(body)), "retry-after": "3"}, [body]))
    found = await failure(server, flavour)
    assert type(found) is ServerError
    assert (found.status, found.retryable, found.retry_after) == (502, True, 3.0)
    assert str(found)
    assert words in str(found)


@pytest.mark.asyncio
async def test_a_long_page_is_shortened(server: GeminiServer, flavour: str) -> None:
    server.fail_page(502, "<html>" + "x" * 100_000)
    found = await failure(server, flavour)
    assert len(str(found)) < 1_200


# how long to wait


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("delay", "seconds"),
    [(0.02, 0.02), ("0s", 0.0), ("0.015s", 0.015), ("0.000000001s", 1e-9)],
)
async def test_the_delay_of_the_details_is_obeyed(
    server: GeminiServer, flavour: str, delay: Any, seconds: float
) -> None:
    server.fail(429, retry_delay=delay)
    server.reply(text("5"))
    async with connected(server, flavour) as adapter:
        recorder = await run(adapter, retry=RetryPolicy(first_delay=20))
    assert [event.delay for event in recorder.events if event.type == "retry_scheduled"] == [seconds]
    assert recorder.finished.text == "5"


@pytest.mark.asyncio
async def test_the_delay_of_the_headers_is_obeyed_too(server: GeminiServer, flavour: str) -> None:
    server.fail(429, headers={"retry-after": "0.01"})
    server.fail(429, headers={"retry-after": "50"}, retry_delay=0.02)
    server.reply(text("5"))
    async with connected(server, flavour) as adapter:
        recorder = await run(adapter, retry=RetryPolicy(first_delay=20))
    delays = [event.delay for event in recorder.events if event.type == "retry_scheduled"]
    assert delays == [0.01, 0.02], "the details know better"


@pytest.mark.asyncio
async def test_a_delay_in_an_error_inside_the_stream_is_obeyed(server: GeminiServer, flavour: str) -> None:
    server.error_inside(retry_delay=0.01)
    server.error_after(code=503, status="UNAVAILABLE", retry_delay=0.02)
    server.reply(text("5"))
    async with connected(server, flavour) as adapter:
        recorder = await run(adapter, retry=RetryPolicy(first_delay=20))
    assert [event.delay for event in recorder.events if event.type == "retry_scheduled"] == [0.01, 0.02]
    assert recorder.finished.text == "5"


@pytest.mark.asyncio
async def test_a_delay_above_the_cap_surfaces_at_once(server: GeminiServer, flavour: str) -> None:
    server.fail(429, retry_delay="3600s")
    found = await failure(server, flavour, retry=AT_ONCE)
    assert (type(found), found.retry_after) == (RateLimitedError, 3600.0)
    assert len(server.requests) == 1


@pytest.mark.parametrize("delay", ["", "s", "soon", "-5s", "nans", "infs", "1e999s", 5, None, ["5s"], {"seconds": 5}])
def test_a_delay_that_is_none(delay: Any) -> None:
    body = {"error": {"code": 429, "details": [{"retryDelay": delay}, "odd", None]}}
    assert error_of_body(body).retry_after is None
    assert error_of_body(body, delay=4.0).retry_after == 4.0


# inside the stream


@pytest.mark.asyncio
async def test_an_error_inside_the_stream_after_content_is_final(server: GeminiServer, flavour: str) -> None:
    begun = chunks(text("so far", pieces=2), finish_reason=None)
    server.error_inside(after=begun)
    found = await failure(server, flavour, retry=AT_ONCE)
    assert (type(found), found.status) == (OverloadedError, 503)
    assert found.partial is not None
    assert (found.partial.text, found.partial.usage) == ("so far", Usage(10, 5))
    assert len(server.requests) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("finish_reason", [None, "STOP"])
async def test_an_answer_cut_by_an_error_is_never_complete(
    server: GeminiServer, flavour: str, finish_reason: str | None
) -> None:
    begun = chunks(text("so far", pieces=2), finish_reason=finish_reason)
    server.error_after(after=begun)
    found = await failure(server, flavour, retry=AT_ONCE)
    assert (found.status, str(found)) == (499, "The operation was cancelled.")
    assert found.partial is not None
    assert found.partial.text == "so far"
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "expected", "number"),
    [
        ("RESOURCE_EXHAUSTED", RateLimitedError, 429),
        ("UNAVAILABLE", OverloadedError, 503),
        ("INTERNAL", ServerError, 500),
        ("DEADLINE_EXCEEDED", ServerError, 504),
        ("UNAUTHENTICATED", AuthenticationError, 401),
        ("PERMISSION_DENIED", PermissionDeniedError, 403),
        ("NOT_FOUND", ModelNotFoundError, 404),
        ("INVALID_ARGUMENT", InvalidRequestError, 400),
        ("A_FUTURE_STATUS", ServerError, None),
    ],
)
def test_a_word_stands_for_its_number(status: str, expected: type[ProviderError], number: int | None) -> None:
    for code in (None, 0, 14, "14"):
        found = error_of_body({"error": {"code": code, "status": status}})
        assert (type(found), found.status) == (expected, number)
        assert str(found) == status


@pytest.mark.asyncio
async def test_an_empty_body_is_retried(server: GeminiServer, flavour: str) -> None:
    server.empty()
    server.reply(text("5"))
    async with connected(server, flavour) as adapter:
        recorder = await run(adapter, retry=AT_ONCE)
    assert recorder.types.count("retry_scheduled") == 1
    assert recorder.finished.text == "5"
    server.empty()
    assert type(await failure(server, flavour)) is StreamInterruptedError


@pytest.mark.asyncio
async def test_an_empty_answer_is_not_retried(server: GeminiServer, flavour: str) -> None:
    server.reply(finish_reason="STOP")
    async with connected(server, flavour) as adapter:
        recorder = await run(adapter, retry=AT_ONCE)
    assert (recorder.finished.finish_reason, recorder.finished.text) == ("stop", "")
    assert len(server.requests) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("body", [b"<html>Sign in</html>\n", b"data: {not json}\n\n", b"data: [1]\n\n", b"data: 5\n\n"])
async def test_a_body_of_a_200_that_is_not_the_apis(server: GeminiServer, flavour: str, body: bytes) -> None:
    server.script(Reply(200, {"content-type": "text/html"}, [body]))
    server.reply(text("5"))
    async with connected(server, flavour) as adapter:
        recorder = await run(adapter, retry=AT_ONCE)
    assert recorder.types.count("retry_scheduled") == 1
    assert recorder.finished.text == "5"


@pytest.mark.asyncio
async def test_a_chunk_that_the_sdks_models_do_not_take(server: GeminiServer, flavour: str) -> None:
    """Where the bytes are had, it is no matter; where not, it is no fault of the program's."""
    server.reply(text("5", pieces=1), signature_only("no base64"))
    async with connected(server, flavour) as adapter:
        recorder = await run(adapter)
    if flavour == PUBLIC:
        assert type(recorder.error) is MalformedResponseError
        assert recorder.error.retryable
    else:
        assert recorder.finished.text == "5"


@pytest.mark.asyncio
async def test_a_field_that_is_no_json_is_a_fault_of_the_program(server: GeminiServer, flavour: str) -> None:
    async with connected(server, flavour, odd=object()) as adapter:
        recorder = await run(adapter, retry=AT_ONCE)
    assert type(recorder.error) is TypeError
    assert "retry_scheduled" not in recorder.types
    assert not server.requests


# transport


@pytest.mark.asyncio
async def test_nobody_listens(flavour: str) -> None:
    with GeminiServer() as gone:
        pass
    found = await failure_without_server(gone, flavour)
    assert type(found) is ConnectionFailedError
    assert (found.retryable, found.status, found.provider) == (True, None, "google")
    assert isinstance(found.__cause__, httpx2.ConnectError)


async def failure_without_server(gone: GeminiServer, flavour: str) -> RxLoopError:
    async with connected(gone, flavour) as adapter:
        recorder = await run(adapter)
    assert isinstance(recorder.error, RxLoopError), repr(recorder.error)
    return recorder.error


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", ["drop", "close"])
@pytest.mark.parametrize("before_headers", [True, False])
async def test_a_connection_that_breaks(server: GeminiServer, flavour: str, fault: str, before_headers: bool) -> None:
    getattr(server, fault)(before_headers=before_headers)
    server.reply(text("5"))
    async with connected(server, flavour) as adapter:
        recorder = await run(adapter, retry=AT_ONCE)
    assert recorder.types.count("retry_scheduled") == 1
    assert recorder.finished.text == "5"
    getattr(server, fault)(after=chunks(text("so far"), finish_reason=None))
    found = await failure(server, flavour, retry=AT_ONCE)
    assert type(found) is StreamInterruptedError
    assert found.partial is not None
    assert found.partial.text == "so far"


@pytest.mark.asyncio
async def test_the_clients_own_timeout(server: GeminiServer, flavour: str) -> None:
    server.stall(before_headers=True)
    client = server.vertex_client(timeout=100) if flavour == VERTEX else server.client(timeout=100)
    found = await failure(server, flavour, client)
    assert isinstance(found, TimedOutError)
    assert (found.clock, found.retryable) == ("transport", True)


@pytest.mark.asyncio
@pytest.mark.parametrize("url", ["ftp://example.org", "example.org", "http://"])
async def test_an_address_that_is_none(server: GeminiServer, flavour: str, url: str) -> None:
    client = server.vertex_client(base_url=url) if flavour == VERTEX else server.client(base_url=url)
    found = await failure(server, flavour, client, retry=AT_ONCE)
    assert isinstance(found, (ConfigurationError, ConnectionFailedError)), repr(found)
    assert not server.requests


# keys


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    import os

    for name in list(os.environ):
        if name.startswith(("GOOGLE_", "GEMINI_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))


@pytest.mark.usefixtures("no_credentials")
def test_a_missing_key() -> None:
    with pytest.raises(ConfigurationError, match="set GEMINI_API_KEY"):
        GeminiAdapter(model="gemini-test")


def test_a_missing_sdk_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.genai", None)
    monkeypatch.delattr("google.genai")
    with pytest.raises(ConfigurationError, match=r'pip install "rxloop\[google\]"') as caught:
        GeminiAdapter(model="gemini-test")
    assert isinstance(caught.value.__cause__, ImportError)


def told(found: RxLoopError) -> str:
    shown = f"{found} {found!r} {json.dumps(found.to_dict())}"
    cause = found.__cause__
    while cause is not None:
        shown += f" {cause} {cause!r}"
        cause = cause.__cause__ or cause.__context__
    return shown


@pytest.mark.asyncio
@pytest.mark.parametrize("key", [f"{SECRET}\r\nx-evil: 1", f"{SECRET}\n\x1b", f" {SECRET}\0", f"{SECRET}ü"])
@pytest.mark.parametrize("flavour", [STUDIO, PUBLIC])
async def test_a_key_that_no_header_can_hold(server: GeminiServer, flavour: str, key: str) -> None:
    client = genai.Client(vertexai=False, api_key=key, http_options={"base_url": server.url})
    async with connected(server, flavour, client) as adapter:
        recorder = await run(adapter, retry=AT_ONCE)
    assert isinstance(recorder.error, ConfigurationError), repr(recorder.error)
    assert "retry_scheduled" not in recorder.types, "it would fail again"
    assert SECRET not in told(recorder.error)
    assert not server.requests


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["status", "refused", "broken", "page", "malformed"])
@pytest.mark.parametrize("flavour", [STUDIO, PUBLIC])
async def test_no_error_tells_the_key(server: GeminiServer, flavour: str, way: str) -> None:
    url = server.url
    if way == "status":
        server.fail(401, "UNAUTHENTICATED", "Request had invalid authentication credentials.")
    elif way == "refused":
        with GeminiServer() as gone:
            url = gone.url
    elif way == "broken":
        server.drop(before_headers=True)
    elif way == "page":
        server.fail_page()
    else:
        server.garbage()
    client = genai.Client(vertexai=False, api_key=SECRET, http_options={"base_url": url})
    async with connected(server, flavour, client) as adapter:
        recorder = await run(adapter)
    assert isinstance(recorder.error, RxLoopError)
    assert SECRET not in told(recorder.error)


class _Expired(FakeCredentials):
    """Credentials whose refresh fails."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.token = None
        self._error = error

    def refresh(self, request: object) -> None:
        raise self._error


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (auth.RefreshError("Reauthentication is needed"), AuthenticationError),  # type: ignore[no-untyped-call]
        (auth.DefaultCredentialsError("not found"), AuthenticationError),  # type: ignore[no-untyped-call]
        (auth.TransportError("no route"), ConnectionFailedError),  # type: ignore[no-untyped-call]
    ],
)
async def test_credentials_that_do_not_work(
    server: GeminiServer, fault: Exception, expected: type[RxLoopError]
) -> None:
    client = genai.Client(
        vertexai=True,
        project="test-project",
        location="us-central1",
        credentials=_Expired(fault),
        http_options={"base_url": server.url},
    )
    found = await failure(server, VERTEX, client)
    assert type(found) is expected
    assert not server.requests


# pure


def test_an_error_of_rxloops_stays_as_it_is() -> None:
    own = MalformedResponseError("x")
    assert classify(own) is own


@pytest.mark.parametrize("fault", [ValueError("x"), KeyError("x"), TypeError("an argument is missing")])
def test_a_fault_of_the_program_stays_as_it_is(fault: Exception) -> None:
    assert classify(fault) is fault


def test_a_reply_that_ends_within_a_character() -> None:
    """What the SDK makes of it over aiohttp."""
    with pytest.raises(UnicodeDecodeError) as caught:
        b"\xc3".decode()
    assert type(classify(caught.value)) is StreamInterruptedError


@pytest.mark.parametrize("details", [None, [], {}, "text", {"error": None}, {"error": []}, {"error": {"details": "x"}}])
def test_any_details_make_an_error(details: Any) -> None:
    found = classify(errors.APIError(503, {"error": {}}))
    assert type(found) is OverloadedError
    odd = errors.ServerError(503, {"error": {}})
    odd.details = details
    found = classify(odd)
    assert (type(found), found.__cause__) == (OverloadedError, odd)
    assert type(error_of_body(details)) is ServerError


@pytest.mark.asyncio
async def test_the_same_error_object_surfaces_from_result(server: GeminiServer) -> None:
    server.fail(400, "INVALID_ARGUMENT", "no")
    kept: list[Any] = []
    async with connected(server) as adapter:
        with pytest.raises(InvalidRequestError, match="no") as caught:
            await Turn(adapter, "hello", on_end=kept.append).result()
    assert kept[0].error is caught.value
