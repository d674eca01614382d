"""What the runtimes of AWS and their SDK report as errors, in rxloop's terms.

Source: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ConverseStream.html#API_runtime_ConverseStream_Errors
and https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_runtime_InvokeEndpointWithResponseStream.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rxloop.adapters.http_errors import classified, error_for_status, retry_after
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

__all__ = ("causes", "classify", "error_of_code", "is_error_code", "redacted")

_CODES: Mapping[str, type[ProviderError]] = {
    "AccessDeniedException": PermissionDeniedError,
    "ExpiredToken": AuthenticationError,
    "ExpiredTokenException": AuthenticationError,
    "IncompleteSignature": AuthenticationError,
    "IncompleteSignatureException": AuthenticationError,
    "InternalDependencyException": ServerError,
    "InternalFailure": ServerError,
    "InternalServerException": ServerError,
    "InternalStreamFailure": ServerError,
    "InvalidClientTokenId": AuthenticationError,
    "InvalidSignatureException": AuthenticationError,
    "MissingAuthenticationToken": AuthenticationError,
    "MissingAuthenticationTokenException": AuthenticationError,
    "ModelErrorException": ServerError,
    "ModelNotReadyException": OverloadedError,
    "ModelStreamError": ServerError,
    "ModelStreamErrorException": ServerError,
    "ModelTimeoutException": ServerError,
    "ResourceNotFoundException": ModelNotFoundError,
    "ServiceQuotaExceededException": RateLimitedError,
    "ServiceUnavailable": OverloadedError,
    "ServiceUnavailableException": OverloadedError,
    "SignatureDoesNotMatch": AuthenticationError,
    "ThrottlingException": RateLimitedError,
    "TooManyRequestsException": RateLimitedError,
    "UnrecognizedClientException": AuthenticationError,
    "ValidationError": InvalidRequestError,
    "ValidationException": InvalidRequestError,
}

_OVERFLOW = (
    "input is too long",
    "prompt is too long",
    "too many input tokens",
    "maximum context length",
    "input length and `max_tokens` exceed",
    "exceeds the context window",
    "exceed the context window",
    "input tokens exceeded",
)
_LONGEST = 2000
_QUOTED_REQUEST = re.compile(r"(?is)\s*the (?:canonical string for this request|string-to-sign).*")
_USERINFO = re.compile(r"//[^/@\s]*@")
_ACCESS_KEY = re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b")
_AUTHORIZATION = "authorization header"


def redacted(text: str) -> str:
    """
    A text of AWS's, or of its SDK's, without what it may quote of a request's credentials.

    A signature that does not fit is answered with the request that should have been signed, its session token among
    it, and a header that cannot be read with the header.
    """
    if _AUTHORIZATION in text.lower():
        return "the Authorization header is not one that the service takes"
    return _ACCESS_KEY.sub("(access key)", _USERINFO.sub("//", _QUOTED_REQUEST.sub("", text)))


def is_error_code(name: str) -> bool:
    """Whether a member of an event stream is an error, which the SDK may hand out like any event."""
    return name.endswith(("Exception", "ModelStreamError", "InternalStreamFailure"))


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and, one after the other, what it came from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def error_of_code(
    code: str,
    details: Any,
    *,
    provider: str,
    status: int | None = None,
    delay: float | None = None,
    streamed: bool = False,
) -> ProviderError:
    """
    The error that a code of AWS stands for, in a body, a header or a frame.

    Args:
        code: as in ``ThrottlingException``, in either spelling of its first letter.
        details: the error document.
        provider: the name that the error carries.
        status: the HTTP status, where there was one.
        delay: the delay in seconds that the headers ask for.
        streamed: it came inside a reply that had begun with 200.
    """
    document: Mapping[str, Any] = details if isinstance(details, Mapping) else {"message": details}
    message = str(_any_of(document, "message", "originalMessage") or code or "the provider reported an error")
    message = redacted(message).strip()
    if message.isdigit():
        # what the SDK calls an error that has no body
        message = f"the provider answered {message} and no more"
    if len(message) > _LONGEST:
        message = f"{message[:_LONGEST]}… ({len(message)} characters)"
    code = code[:1].upper() + code[1:]
    cls = _CODES.get(code)
    if (cls is InvalidRequestError or (cls is None and status == 400)) and any(
        words in message.lower() for words in _OVERFLOW
    ):
        cls = ContextOverflowError
    original = _any_of(document, "originalStatusCode")
    if cls is None and streamed and code and not code.endswith("Exception"):
        # the container's own code, of which nothing is known
        cls = ServerError
    if cls is None:
        return error_for_status(status, message, provider=provider, retry_after=delay)
    error = cls(message, provider=provider, status=status, retry_after=delay)
    if code == "ServiceQuotaExceededException":
        # what the account may use is used up, which waiting a moment does not change
        error.retryable = False
    if cls is ServerError and not streamed and isinstance(original, int) and 400 <= original < 500:
        # the model refused the request, which will not be better the next time
        error.retryable = original in (408, 409, 424, 429)
    return error


def classify(error: Exception, provider: str) -> Exception:
    """
    Turn what the SDK or its transport raised into one of rxloop's errors, with the original as its cause.

    An error that neither of them raised is a fault of the program and stays as it is.

    Args:
        error: what was raised.
        provider: the name that the error carries.
    """
    return classified(
        error,
        lambda error: _known(error, provider),
        shows_a_secret=lambda error: _shows_a_header(error) or redacted(str(error)) != str(error),
    )


def _shows_a_header(error: Exception) -> bool:
    return "invalid header value" in str(error).lower()


def _known(error: Exception, provider: str) -> RxLoopError | None:
    import ssl

    import urllib3.exceptions as transport
    from botocore import eventstream, exceptions, parsers

    if isinstance(error, exceptions.ClientError):
        return _of_response(error, provider)
    if _shows_a_header(error):
        return ConfigurationError(
            "the credentials or another header have characters that HTTP does not allow, such as a line end",
            provider=provider,
        )
    if isinstance(error, (exceptions.NoCredentialsError, exceptions.PartialCredentialsError)):
        return AuthenticationError(
            f"there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE ({error})",
            provider=provider,
        )
    if isinstance(
        error,
        (
            exceptions.CredentialRetrievalError,
            exceptions.TokenRetrievalError,
            exceptions.SSOError,
            exceptions.InvalidConfigError,
            exceptions.UnauthorizedSSOTokenError,
            exceptions.NoAuthTokenError,
            # not in every version of the SDK
            getattr(exceptions, "LoginError", ()),
        ),
    ):
        # a program that gives credentials may say anything when it fails
        source = getattr(error, "kwargs", {}).get("provider")
        said = f"they cannot be had from {source}" if source == "custom-process" else redacted(str(error))
        return AuthenticationError(f"the credentials do not work: {said}", provider=provider)
    if isinstance(error, (exceptions.ReadTimeoutError, exceptions.ConnectTimeoutError, transport.TimeoutError)):
        return TimedOutError(
            "the transport's own timeout ran out", clock="transport", provider=provider, retryable=True
        )
    # a handshake that broke is not the certificate's fault
    if isinstance(error, exceptions.SSLError) and any(
        isinstance(cause, ssl.SSLCertVerificationError) for cause in causes(error)
    ):
        return ConfigurationError(f"no trusted connection to the provider: {redacted(str(error))}", provider=provider)
    if isinstance(error, (exceptions.EndpointConnectionError, exceptions.ConnectionError, exceptions.HTTPClientError)):
        return ConnectionFailedError(f"no connection to the provider: {redacted(str(error))}", provider=provider)
    if isinstance(error, (transport.HTTPError, exceptions.IncompleteReadError, ConnectionError, ssl.SSLError)):
        return StreamInterruptedError(
            f"the connection broke: {type(error).__name__}: {redacted(str(error))}", provider=provider
        )
    if isinstance(error, (eventstream.ParserError, parsers.ResponseParserError)):
        return MalformedResponseError(
            f"the reply does not have the provider's format: {type(error).__name__}: {error}"[:_LONGEST],
            provider=provider,
        )
    if isinstance(error, exceptions.BotoCoreError):
        # values that the SDK refuses are known before any request
        return ConfigurationError(redacted(str(error))[:_LONGEST], provider=provider)
    return None


def _of_response(error: Any, provider: str) -> ProviderError:
    from botocore.exceptions import EventStreamError

    response = error.response if isinstance(error.response, Mapping) else {}
    details = response.get("Error") or {}
    code = str(details.get("Code") or "")
    if isinstance(error, EventStreamError):
        return error_of_code(code, {**response, **details}, provider=provider, streamed=True)
    metadata = response.get("ResponseMetadata") or {}
    status = metadata.get("HTTPStatusCode")
    status = status if isinstance(status, int) and status >= 300 else None
    headers = metadata.get("HTTPHeaders") or {}
    found = error_of_code(code, {**response, **details}, provider=provider, status=status, delay=retry_after(headers))
    if status is not None and (status in (408, 409) or status >= 500):
        found.retryable = True
    return found


def _any_of(document: Mapping[str, Any], *names: str) -> Any:
    """A member in any spelling of its first letter: services differ."""
    for name in names:
        for spelling in (name, name[:1].upper() + name[1:]):
            if document.get(spelling):
                return document[spelling]
    return None
