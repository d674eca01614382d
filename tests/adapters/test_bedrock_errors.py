"""Which error a failure of Bedrock, of boto3 or of the way between them becomes."""

from __future__ import annotations

import contextlib
import email.utils
import gc
import json
import os
import random
import socket
import ssl
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped, unused-ignore]
import pytest
from botocore import exceptions  # type: ignore[import-untyped, unused-ignore]
from botocore.config import Config  # type: ignore[import-untyped, unused-ignore]
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from rxloop.adapters.aws_errors import classify
from rxloop.adapters.bedrock import BedrockAdapter
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
from tests.adapters.test_bedrock_request import BYTES, EVENTS, connected, every_way
from tests.providers.bedrock import BedrockServer, encoded, message, text, tool_use
from tests.providers.eventstream import Typed, bad_message_checksum, bad_prelude_checksum, event, frame
from tests.providers.http import Reply
from tests.turns import AT_ONCE, run

SECRET = "very-secret"
ONCE: dict[str, Any] = {"retries": {"total_max_attempts": 1}}
BEGUN = message(text("so far", pieces=2))[:3]


@pytest.fixture
def server() -> Iterator[BedrockServer]:
    with BedrockServer() as server:
        yield server


async def failure(server: BedrockServer, way: str = "bytes", client: Any = None, **options: Any) -> RxLoopError:
    async with connected(server, way, client) as adapter:
        recorder = await run(adapter, **options)
        await server.idle()
    assert isinstance(recorder.error, RxLoopError), repr(recorder.error)
    assert recorder.error.partial is not None
    return recorder.error


def client_of(url: str, config: Any = None, session: Any = None, **options: Any) -> Any:
    """A client with a secret wherever it may have one."""
    keys = {"aws_access_key_id": "AKIDEXAMPLE", "aws_secret_access_key": SECRET, "aws_session_token": SECRET}
    session = session or boto3.Session(**{**keys, "region_name": "us-east-1", **options.pop("keys", {})})
    return session.client("bedrock-runtime", endpoint_url=url, config=Config(**ONCE, **(config or {})), **options)


def told(found: BaseException) -> str:
    """All that an error may show."""
    shown = "".join(traceback.format_exception(found))
    cause: BaseException | None = found
    while cause is not None:
        shown += f" {cause} {cause!r} {cause.args}"
        cause = cause.__cause__ or cause.__context__
    return shown + (json.dumps(found.to_dict()) if isinstance(found, RxLoopError) else "")


# statuses


@every_way
@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "code", "expected", "retryable"),
    [
        (400, "ValidationException", InvalidRequestError, False),
        (400, "ThrottlingException", RateLimitedError, True),
        (400, "ServiceQuotaExceededException", RateLimitedError, False),
        (400, "AFutureException", InvalidRequestError, False),
        (401, "UnauthorizedException", AuthenticationError, False),
        (403, "AccessDeniedException", PermissionDeniedError, False),
        (403, "AFutureException", PermissionDeniedError, False),
        (403, "ExpiredTokenException", AuthenticationError, False),
        (403, "ExpiredToken", AuthenticationError, False),
        (403, "InvalidSignatureException", AuthenticationError, False),
        (403, "UnrecognizedClientException", AuthenticationError, False),
        (403, "IncompleteSignature", AuthenticationError, False),
        (403, "MissingAuthenticationTokenException", AuthenticationError, False),
        (404, "ResourceNotFoundException", ModelNotFoundError, False),
        (404, "UnknownOperationException", ModelNotFoundError, False),
        (408, "ModelTimeoutException", ServerError, True),
        (409, "ConflictException", InvalidRequestError, True),
        (413, "RequestEntityTooLargeException", ContextOverflowError, False),
        (424, "ModelErrorException", ServerError, True),
        (429, "ThrottlingException", RateLimitedError, True),
        (429, "TooManyRequestsException", RateLimitedError, True),
        (429, "ModelNotReadyException", OverloadedError, True),
        (429, "AFutureException", RateLimitedError, True),
        (500, "InternalServerException", ServerError, True),
        (500, "InternalFailure", ServerError, True),
        (502, "AFutureException", ServerError, True),
        (503, "ServiceUnavailableException", OverloadedError, True),
        (504, "AFutureException", ServerError, True),
    ],
)
async def test_a_status(
    server: BedrockServer, way: str, status: int, code: str, expected: type[ProviderError], retryable: bool
) -> None:
    server.fail(status, code, "what the provider says", retry_after=7)
    found = await failure(server, way)
    assert type(found) is expected
    assert (found.retryable, found.status, found.retry_after) == (retryable, status, 7.0)
    assert (str(found), found.provider) == ("what the provider says", "bedrock")
    assert isinstance(found.__cause__, exceptions.ClientError)
    assert found.__cause__.response["Error"]["Code"] == code
    assert found.to_dict() == {
        "kind": expected.kind,
        "status": status,
        "message": "what the provider says",
        "retryable": retryable,
    }


@pytest.mark.asyncio
async def test_what_the_model_itself_said(server: BedrockServer) -> None:
    """A request that the model refused will be refused again."""
    for original, retryable in ((400, False), (403, False), (422, False), (408, True), (429, True), (500, True)):
        server.fail(424, originalStatusCode=original, resourceName="m")
        found = await failure(server)
        assert (type(found), found.status, found.retryable) == (ServerError, 424, retryable), original


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "words",
    [
        "Input is too long for requested model.",
        "The model returned the following errors: prompt is too long: 201234 tokens > 200000 maximum",
        "Too many input tokens. Max input tokens: 8192, request input token count: 9000",
        "This model's maximum context length is 131072 tokens.",
        "The model returned the following errors: input length and `max_tokens` exceed context limit: 1 + 2 > 2",
    ],
)
async def test_a_context_that_is_too_long(server: BedrockServer, words: str) -> None:
    for code in ("ValidationException", "AFutureException"):
        server.fail(400, code, words)
        found = await failure(server, retry=AT_ONCE)
        assert (type(found), found.retryable) == (ContextOverflowError, False)
    server.fail(429, message=words)
    assert type(await failure(server)) is RateLimitedError, "a limit per minute is no overflow"
    assert len(server.requests) == 3


@every_way
@pytest.mark.asyncio
async def test_a_body_that_is_not_the_apis(server: BedrockServer, way: str) -> None:
    for body in (
        b"<html><title>502 Bad Gateway</title></html>",
        b"upstream connect error or disconnect/reset before headers",
        b"",
        b"[]",
        b"null",
        b'"text"',
        b'{"message": null}',
        b'{"error": {"message": "x"}}',
        b"\xff\xfe",
        b"<html>" + b"x" * 100_000,
    ):
        for kind in ("text/html", "application/json"):
            headers = {"content-length": str(len(body)), "content-type": kind, "retry-after": "3"}
            server.script(Reply(502, headers, [body]))
            found = await failure(server, way)
            assert 0 < len(str(found)) < 2_100
            assert found.retryable
            if body in (b"[]", b"null", b'"text"', b"\xff\xfe"):
                # the SDK fails before it tells the status
                assert type(found) is MalformedResponseError, body
                continue
            assert type(found) is ServerError, body
            assert (found.status, found.retry_after) == (502, 3.0)


# how long to wait


@pytest.mark.asyncio
async def test_the_delay_of_the_headers_is_obeyed(server: BedrockServer) -> None:
    server.fail(429, retry_after=0.02)
    server.fail(429, headers={"retry-after-ms": "10"})
    server.reply(text("5"))
    async with connected(server) as adapter:
        recorder = await run(adapter, retry=RetryPolicy(first_delay=20))
    assert [one.delay for one in recorder.events if one.type == "retry_scheduled"] == [0.02, 0.01]
    assert recorder.finished.text == "5"
    server.fail(503, retry_after=email.utils.formatdate(time.time() + 3600, usegmt=True))
    found = await failure(server, retry=AT_ONCE)
    assert found.retry_after == pytest.approx(3600, abs=5), "a date is a delay, and above the cap it surfaces at once"
    for odd in ("soon", "-5", "nan", "inf", ""):
        server.fail(429, retry_after=odd)
        assert (await failure(server)).retry_after is None


# inside the stream


@every_way
@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("code", "expected", "retryable"),
    [
        ("throttlingException", RateLimitedError, True),
        ("modelStreamErrorException", ServerError, True),
        ("internalServerException", ServerError, True),
        ("serviceUnavailableException", OverloadedError, True),
        ("validationException", InvalidRequestError, False),
        ("modelTimeoutException", ServerError, True),
        ("aFutureException", ServerError, True),
    ],
)
async def test_an_error_inside_the_stream(
    server: BedrockServer, way: str, code: str, expected: type[ProviderError], retryable: bool
) -> None:
    """However it is told, and whichever way it is read."""
    # the SDK hides what its model does not have
    unknown = way == EVENTS and code in ("modelTimeoutException", "aFutureException")
    server.exception_inside(code, "it says")
    server.error_inside(code[:1].upper() + code[1:], "it says")
    server.exception_inside(code, "it says", after=BEGUN)
    if not unknown:
        server.reply_frames(event(code, json.dumps({"message": "it says"}).encode()))
    for number in range(3 if unknown else 4):
        found = await failure(server, way, **({"retry": AT_ONCE} if number == 2 else {}))
        assert type(found) is expected
        assert (found.retryable, found.status, found.provider) == (retryable, None, "bedrock")
        assert found.partial is not None
        assert found.partial.text == ("so far" if number == 2 else "")
        if not unknown and (way == BYTES or number < 3):
            assert str(found) == "it says"
        assert str(found)
    assert len(server.requests) == number + 1, "what was said is not said again"


@every_way
@pytest.mark.asyncio
async def test_a_frame_that_is_broken(server: BedrockServer, way: str) -> None:
    """In the SDK the checksums are its own errors, and all else is whatever Python raises."""
    whole = encoded(BEGUN[1])
    known = {":event-type": "contentBlockDelta", ":content-type": "application/json", ":message-type": "event"}
    broken = [
        bad_message_checksum(whole),
        b"<html>this is no frame</html>",
        frame({**known, "future": Typed(42, b"")}, b"{}"),
        frame({**known, "short": Typed(3, b"\x00")}, b"{}"),
        frame({**known, "no text": Typed(7, b"\x00\x01\xff")}, b"{}"),
        event("contentBlockDelta", b"[1]"),
        event("contentBlockDelta", b"<html>"),
        event("contentBlockDelta", b"\xff\xfe"),
        event("contentBlockDelta", b'{"contentBlockIndex": "x", "delta": {"text": "a"}}'),
        event("contentBlockDelta", b'{"contentBlockIndex": 0, "delta": {"text": 5}}'),
        event("contentBlockStop", b"{}"),
        event("metadata", b'{"usage": {"inputTokens": -1}}'),
    ]
    for data in broken:
        server.reply_frames(*BEGUN, data)
        found = await failure(server, way, retry=AT_ONCE)
        assert type(found) is MalformedResponseError, (data, found)
        assert found.retryable
        assert found.partial is not None
        assert found.partial.text == "so far"
    for data in (bad_prelude_checksum(whole), *broken):
        server.reply_frames(data)
        server.reply(text("5"))
        async with connected(server, way) as adapter:
            recorder = await run(adapter, retry=AT_ONCE)
        assert recorder.types.count("retry_scheduled") == 1, data
        assert recorder.finished.text == "5"


# the way there and back


@pytest.mark.asyncio
async def test_nobody_listens() -> None:
    with BedrockServer() as gone:
        pass
    async with connected(gone) as adapter:
        recorder = await run(adapter)
    found = recorder.error
    assert type(found) is ConnectionFailedError
    assert (found.retryable, found.status, found.provider) == (True, None, "bedrock")
    assert isinstance(found.__cause__, exceptions.EndpointConnectionError)


@every_way
@pytest.mark.asyncio
@pytest.mark.parametrize("fault", ["drop", "close"])
@pytest.mark.parametrize("before_headers", [True, False])
async def test_a_connection_that_breaks(server: BedrockServer, way: str, fault: str, before_headers: bool) -> None:
    getattr(server, fault)(before_headers=before_headers)
    server.reply(text("5"))
    async with connected(server, way) as adapter:
        recorder = await run(adapter, retry=AT_ONCE)
    assert recorder.types.count("retry_scheduled") == 1
    assert recorder.finished.text == "5"
    getattr(server, fault)(before_headers=before_headers)
    found = await failure(server, way)
    assert type(found) is (ConnectionFailedError if before_headers else StreamInterruptedError)
    assert found.retryable
    getattr(server, fault)(after=BEGUN)
    found = await failure(server, way, retry=AT_ONCE)
    assert type(found) is StreamInterruptedError
    assert found.partial is not None
    assert found.partial.text == "so far"


@every_way
@pytest.mark.asyncio
@pytest.mark.parametrize("fault", ["drop", "close"])
async def test_a_kept_connection_that_has_gone_stale(server: BedrockServer, way: str, fault: str) -> None:
    server.reply(text("5"))
    getattr(server, fault)(before_headers=True)
    server.reply(text("6"))
    async with connected(server, way) as adapter:
        await run(adapter)
        assert server.open_connections == 1, "the connection is kept"
        recorder = await run(adapter, retry=AT_ONCE)
    assert recorder.finished.text == "6"
    assert recorder.types.count("retry_scheduled") == 1


@every_way
@pytest.mark.asyncio
async def test_the_clients_own_timeout(server: BedrockServer, way: str) -> None:
    server.stall(before_headers=True)
    server.stall()
    server.stall(after=BEGUN)
    for said in ("", "", "so far"):
        found = await failure(server, way, server.client(read_timeout=0.3))
        assert isinstance(found, TimedOutError)
        assert (found.clock, found.retryable, found.provider) == ("transport", True, "bedrock")
        assert found.partial is not None
        assert found.partial.text == said
    late = exceptions.ConnectTimeoutError(endpoint_url="https://example.org", error="x")
    found = classify(late, "bedrock")  # type: ignore[assignment]
    assert type(found) is TimedOutError
    assert (found.clock, found.__cause__) == ("transport", late)


@pytest.mark.asyncio
async def test_the_clients_retries_stay_as_they_are(server: BedrockServer, monkeypatch: pytest.MonkeyPatch) -> None:
    # how long the SDK waits between them
    monkeypatch.setattr(random, "random", lambda: 0.0)
    client = server.client(retries={"max_attempts": 2, "mode": "legacy"})
    before = dict(client.meta.config.retries)
    for _ in range(2):
        server.fail(503)
    server.reply(text("5"))
    async with connected(server, client=client) as adapter:
        recorder = await run(adapter, retry=AT_ONCE)
        assert client.meta.config.retries == before
    assert recorder.finished.text == "5"
    assert "retry_scheduled" not in recorder.types
    assert len(server.requests) == 3
    assert len({request.body for request in server.requests}) == 1, "the body is sent again with each"
    server.fail(503)
    await failure(server)
    assert len(server.requests) == 4, "and a client without any makes none"


# encryption


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of this host that nobody else trusts, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("certificate") / "certificate.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    return path


@contextlib.contextmanager
def encrypting(certificate: Path | None) -> Iterator[str]:
    """The address of a server that accepts one connection and says nothing; without a certificate it only hangs up."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if certificate is not None:
        context.load_cert_chain(certificate)

    def accept() -> None:
        connection, _ = listener.accept()
        connection.settimeout(5)
        with connection, contextlib.suppress(OSError):
            if certificate is None:
                connection.recv(1)
                return
            with context.wrap_socket(connection, server_side=True) as encrypted:
                encrypted.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        yield f"https://localhost:{listener.getsockname()[1]}"
        thread.join(5)


@pytest.mark.asyncio
async def test_a_certificate_that_is_not_trusted_is_no_accident(server: BedrockServer, certificate: Path) -> None:
    with encrypting(certificate) as url:
        found = await failure(server, client=client_of(url), retry=AT_ONCE)
    assert type(found) is ConfigurationError
    assert "CERTIFICATE_VERIFY_FAILED" in str(found)
    with encrypting(None) as url:
        found = await failure(server, client=client_of(url))
    assert (type(found), found.retryable) == (ConnectionFailedError, True), "a handshake that broke may succeed later"


# credentials


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("HOME", str(tmp_path))


@every_way
@pytest.mark.asyncio
@pytest.mark.usefixtures("no_credentials")
async def test_there_are_no_credentials(server: BedrockServer, way: str) -> None:
    client = client_of(server.url, session=boto3.Session(region_name="us-east-1"))
    found = await failure(server, way, client, retry=AT_ONCE)
    assert type(found) is AuthenticationError
    assert "AWS_ACCESS_KEY_ID" in str(found)
    assert not server.requests


@pytest.mark.usefixtures("no_credentials")
def test_there_is_no_region_for_the_default_client(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="AWS_DEFAULT_REGION"):
        BedrockAdapter(model="m")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(ConfigurationError, match="nobody"):
        BedrockAdapter(model="m")
    monkeypatch.delenv("AWS_PROFILE")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", SECRET)
    with pytest.raises(ConfigurationError, match="AWS_SECRET_ACCESS_KEY") as caught:
        BedrockAdapter(model="m")
    assert SECRET not in told(caught.value)


def test_a_missing_sdk_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigurationError, match=r'pip install "rxloop\[aws\]"') as caught:
        BedrockAdapter(model="m")
    assert isinstance(caught.value.__cause__, ImportError)


@every_way
@pytest.mark.asyncio
async def test_a_refused_signature_shows_no_token(server: BedrockServer, way: str) -> None:
    """The service quotes what it would have signed, the token of the session with it."""
    words = (
        "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access "
    )
    quoted = (
        f"{words}Key and signing method.\n\nThe Canonical String for this request should have been\n'POST\n/model/m\n\n"
        f"host:x\nx-amz-security-token:{SECRET}\n\nhost;x-amz-security-token\ne3b0'\n\nThe String-to-Sign should have "
        "been\n'AWS4-HMAC-SHA256\n20260101T000000Z\n'\n"
    )
    server.fail(403, "InvalidSignatureException", quoted)
    server.fail(403, "SignatureDoesNotMatch", quoted)
    server.error_inside("InvalidSignatureException", quoted)
    for _ in range(3):
        async with connected(server, way, client_of(server.url)) as adapter:
            with pytest.raises(AuthenticationError, match="does not match the signature") as caught:
                await Turn(adapter, "hello").result()
        assert SECRET not in told(caught.value)
        assert str(caught.value).endswith("signing method.")


@every_way
@pytest.mark.asyncio
async def test_keys_that_no_header_can_hold(server: BedrockServer, way: str) -> None:
    for name in ("aws_session_token", "aws_access_key_id"):
        for key in (f"{SECRET}\r\nx-evil: 1", f"{SECRET}\n", f"{SECRET}\r{SECRET}"):
            async with connected(server, way, client_of(server.url, keys={name: key})) as adapter:
                recorder = await run(adapter, retry=AT_ONCE)
            assert type(recorder.error) is ConfigurationError, repr(recorder.error)
            assert "retry_scheduled" not in recorder.types, "it would fail again"
            assert SECRET not in told(recorder.error)
    assert not server.requests


@pytest.mark.asyncio
@pytest.mark.usefixtures("no_credentials")
async def test_a_bearer_token_that_no_header_can_hold(
    server: BedrockServer, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", f"{SECRET}\n")
    with encrypting(certificate) as url:
        session = boto3.Session(region_name="us-east-1")
        found = await failure(server, client=client_of(url, session=session, verify=str(certificate)), retry=AT_ONCE)
    assert type(found) is ConfigurationError, repr(found)
    assert "line end" in str(found)
    assert SECRET not in told(found)


@pytest.mark.asyncio
async def test_an_error_that_is_kept_holds_no_connection_and_no_secret(server: BedrockServer) -> None:
    server.fail(429)
    server.script(Reply(502, {"content-length": "2"}, [b"[]"]))
    server.drop(before_headers=True)
    server.exception_inside("throttlingException", after=BEGUN)
    kept = []
    for _ in range(4):
        found = await failure(server, client=client_of(server.url))
        shown = "".join(traceback.TracebackException.from_exception(found, capture_locals=True).format())
        assert SECRET not in shown
        kept.append(found)
        # what only a cycle holds is of no interest
        del found
        gc.collect()
        await server.closed()
    assert [type(found) for found in kept] == [
        RateLimitedError,
        MalformedResponseError,
        ConnectionFailedError,
        RateLimitedError,
    ]


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["status", "refused", "broken", "page", "malformed", "silent"])
async def test_no_error_tells_a_secret(server: BedrockServer, way: str) -> None:
    url = server.url
    if way == "status":
        server.fail(403, "UnrecognizedClientException", "The security token included in the request is invalid.")
    elif way == "refused":
        with BedrockServer() as gone:
            url = gone.url
    elif way == "broken":
        server.drop(before_headers=True)
    elif way == "page":
        server.fail_page()
    elif way == "malformed":
        server.garbage()
    else:
        server.stall(before_headers=True)
    found = await failure(server, client=client_of(url, {"read_timeout": 0.3}))
    assert SECRET not in told(found)


# pure


def test_an_error_may_be_its_own_cause() -> None:
    circular = exceptions.SSLError(endpoint_url="https://example.org", error="x")
    circular.__cause__ = circular
    assert type(classify(circular, "bedrock")) is ConnectionFailedError


def test_an_error_of_rxloops_stays_as_it_is() -> None:
    own = MalformedResponseError("x")
    assert classify(own, "bedrock") is own


@pytest.mark.parametrize("fault", [ValueError("x"), KeyError("x"), TypeError("an argument is missing")])
def test_a_fault_of_the_program_stays_as_it_is(fault: Exception) -> None:
    assert classify(fault, "bedrock") is fault


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (exceptions.CredentialRetrievalError(provider="x", error_msg="y"), AuthenticationError),
        (exceptions.PartialCredentialsError(provider="x", cred_var="y"), AuthenticationError),
        (exceptions.TokenRetrievalError(provider="x", error_msg="y"), AuthenticationError),
        (exceptions.UnauthorizedSSOTokenError(), AuthenticationError),
        (exceptions.SSOTokenLoadError(error_msg="x"), AuthenticationError),
        (exceptions.NoAuthTokenError(), AuthenticationError),
        (exceptions.ParamValidationError(report="x"), ConfigurationError),
        (exceptions.ProxyConnectionError(proxy_url="http://x", error="y"), ConnectionFailedError),
        (exceptions.IncompleteReadError(actual_bytes=1, expected_bytes=2), StreamInterruptedError),
        (ConnectionResetError("x"), StreamInterruptedError),
        (ssl.SSLError("x"), StreamInterruptedError),
        (exceptions.ClientError({}, "ConverseStream"), ServerError),
        (exceptions.ClientError({"Error": {"Code": 5, "Message": None}}, "ConverseStream"), ServerError),
        (exceptions.EventStreamError({"Error": {"Code": "throttlingException"}}, "ConverseStream"), RateLimitedError),
    ],
)
def test_what_the_sdk_may_raise(fault: Exception, expected: type[RxLoopError]) -> None:
    found = classify(fault, "bedrock")
    assert isinstance(found, RxLoopError)
    assert type(found) is expected
    assert (found.provider, found.__cause__) == ("bedrock", fault)


@pytest.mark.asyncio
async def test_what_the_callers_own_code_raises_stays_as_it_is(server: BedrockServer) -> None:
    client = server.client()

    def fail(**_: Any) -> None:
        raise LookupError("the handler's own fault")

    client.meta.events.register("before-sign.bedrock-runtime.ConverseStream", fail)
    async with connected(server, client=client) as adapter:
        recorder = await run(adapter, retry=AT_ONCE)
    assert type(recorder.error) is LookupError
    assert "retry_scheduled" not in recorder.types


@pytest.mark.asyncio
async def test_the_same_error_object_surfaces_from_result(server: BedrockServer) -> None:
    server.reply(tool_use("nobody", {}))
    server.fail(400, message="no")
    kept: list[Any] = []
    async with connected(server) as adapter:
        with pytest.raises(InvalidRequestError, match="no") as caught:
            await Turn(adapter, "hello", on_end=kept.append).result()
    assert kept[0].error is caught.value
