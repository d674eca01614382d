"""Which of rxloop's errors an error of the Messages API is.

Source: https://platform.claude.com/docs/en/api/errors
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rxloop.adapters.http_errors import classified, error_for_status, retry_after
from rxloop.errors import (
    AuthenticationError,
    ConfigurationError,
    ConnectionFailedError,
    ContextOverflowError,
    InvalidRequestError,
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

__all__ = ("classify", "error_of_type")

_PROVIDER = "anthropic"

_TYPES: Mapping[str, type[ProviderError]] = {
    "authentication_error": AuthenticationError,
    "billing_error": PermissionDeniedError,
    "permission_error": PermissionDeniedError,
    "not_found_error": ModelNotFoundError,
    "invalid_request_error": InvalidRequestError,
    "request_too_large": ContextOverflowError,
    "rate_limit_error": RateLimitedError,
    "overloaded_error": OverloadedError,
    "api_error": ServerError,
    "timeout_error": ServerError,
    # inside Bedrock's streams
    "internalServerException": ServerError,
    "modelStreamErrorException": ServerError,
    "modelTimeoutException": ServerError,
    "serviceUnavailableException": OverloadedError,
    "throttlingException": RateLimitedError,
    "validationException": InvalidRequestError,
}

_LONGEST = 1_000
"""Characters of a message that are kept."""

_OVERFLOW = (
    "prompt is too long",
    "context window",
    "context limit",
    "input length and `max_tokens` exceed",
    # Bedrock's words
    "input is too long",
)


def error_of_type(error: Any, *, status: int | None = None, delay: float | None = None) -> ProviderError:
    """The error that an API error object stands for, inside a stream or as a body."""
    details = error if isinstance(error, Mapping) else {}
    kind = str(details.get("type") or "")
    message = str(details.get("message") or kind or "the provider reported an error")
    if len(message) > _LONGEST:
        # such as a whole page of a proxy's
        message = f"{message[:_LONGEST]}… ({len(message)} characters)"
    cls = _TYPES.get(kind)
    if (cls is InvalidRequestError or (cls is None and status == 400)) and any(
        words in message.lower() for words in _OVERFLOW
    ):
        cls = ContextOverflowError
    if cls is None:
        return error_for_status(status, message, provider=_PROVIDER, retry_after=delay)
    return cls(message, provider=_PROVIDER, status=status, retry_after=delay)


def classify(error: Exception) -> Exception:
    """
    Turn what the SDK or its transport raised into one of rxloop's errors, with the original as its cause.

    An error that neither of them raised is a fault of the program and stays as it is.
    """
    return classified(error, _known, shows_a_secret=_shows_a_header)


def _shows_a_header(error: Exception) -> bool:
    import httpx2

    return isinstance(error.__cause__, httpx2.LocalProtocolError) and "header" in str(error.__cause__).lower()


def _known(error: Exception) -> RxLoopError | None:
    import anthropic
    import httpx2

    if isinstance(error, anthropic.APIStatusError):
        body = error.body if isinstance(error.body, Mapping) else {}
        details = body.get("error")
        details = details if isinstance(details, Mapping) else {}
        # an error inside a stream comes with the status of its beginning
        status = error.status_code if error.status_code >= 300 else None
        message = details.get("message") or body.get("message") or (error.message if status else None)
        delay = retry_after(error.response.headers)
        found = error_of_type({**details, "message": message}, status=status, delay=delay)
        if status is not None and (status in (408, 409) or status >= 500):
            found.retryable = True
        return found
    if isinstance(error, (anthropic.APITimeoutError, httpx2.TimeoutException)):
        return TimedOutError(
            "the transport's own timeout ran out", clock="transport", provider=_PROVIDER, retryable=True
        )
    if isinstance(error, anthropic.APIConnectionError):
        if _shows_a_header(error):
            return ConfigurationError(
                "the key or another header has characters that HTTP does not allow, such as a line end at its end",
                provider=_PROVIDER,
            )
        if (fault := _clients_fault(error.__cause__)) is not None:
            return ConfigurationError(fault, provider=_PROVIDER)
        return ConnectionFailedError(f"no connection to the provider: {error.__cause__ or error}", provider=_PROVIDER)
    if isinstance(error, (httpx2.HTTPError, httpx2.StreamError)):
        return StreamInterruptedError(
            f"the connection broke in the middle of the reply: {type(error).__name__}: {error}",
            provider=_PROVIDER,
        )
    if isinstance(error, anthropic.AnthropicError):
        # credentials that cannot be found, and values that the SDK refuses, are known before any request
        return ConfigurationError(str(error), provider=_PROVIDER)
    auth = sys.modules.get("google.auth.exceptions")
    if auth is not None and isinstance(error, auth.TransportError):
        return ConnectionFailedError(f"no connection to the credentials' server: {error}", provider=_PROVIDER)
    if auth is not None and isinstance(error, auth.GoogleAuthError):
        return AuthenticationError(f"the credentials do not work: {error}", provider=_PROVIDER)
    if isinstance(error, TypeError) and "authentication method" in str(error):
        return AuthenticationError(
            "there are no credentials: set ANTHROPIC_API_KEY, or give the adapter a client that has some",
            provider=_PROVIDER,
        )
    return None


def _clients_fault(error: BaseException | None) -> str | None:
    """What is wrong with the client itself, which no further attempt can mend."""
    import httpx2

    if isinstance(error, (httpx2.UnsupportedProtocol, httpx2.InvalidURL)):
        return f"the client's base_url must be an http or https address: {error}"
    said = str(error) if isinstance(error, RuntimeError) else ""
    if "Event loop is closed" in said or "different event loop" in said or "different loop" in said:
        return "a client's connections belong to the event loop in which they were opened: make one per asyncio.run()"
    if "client has been closed" in said:
        return "the client has been closed: make another, and an adapter with it"
    return None
