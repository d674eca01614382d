"""Which of rxloop's errors an error of the Gemini API is, on AI Studio and on Vertex.

Source: https://ai.google.dev/gemini-api/docs/troubleshooting and https://cloud.google.com/apis/design/errors
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
    MalformedResponseError,
    ProviderError,
    RxLoopError,
    StreamInterruptedError,
    TimedOutError,
)

__all__ = ("classify", "error_of_body")

_PROVIDER = "google"
_LONGEST = 1_000
_OVERFLOW = ("exceeds the maximum number of tokens", "input token count", "context window")
_STATUSES = {
    "CANCELLED": 499,
    "DEADLINE_EXCEEDED": 504,
    "FAILED_PRECONDITION": 400,
    "INTERNAL": 500,
    "INVALID_ARGUMENT": 400,
    "NOT_FOUND": 404,
    "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 429,
    "UNAUTHENTICATED": 401,
    "UNAVAILABLE": 503,
}
"""The HTTP status that stands for a canonical code, where an error inside a stream has no number of its own."""


def error_of_body(body: Any, *, status: int | None = None, delay: float | None = None) -> ProviderError:
    """
    The error that an error document stands for: ``{"error": {"code", "status", "message", "details"}}``.

    A ``RetryInfo`` among the details tells how long to wait.
    """
    if isinstance(body, list):
        # some endpoints wrap an error into an array
        body = body[0] if body else {}
    # what is no error document of the API's is a page or the words of something on the way
    error = body.get("error", body) if isinstance(body, Mapping) else body
    details: Mapping[str, Any] = error if isinstance(error, Mapping) else {"message": error}
    message = str(details.get("message") or details.get("status") or "the provider reported an error")
    if len(message) > _LONGEST:
        message = f"{message[:_LONGEST]}… ({len(message)} characters)"
    code = details.get("code")
    if status is None:
        status = code if isinstance(code, int) and code >= 400 else _STATUSES.get(str(details.get("status")))
    listed = details.get("details")
    infos = [item for item in listed if isinstance(item, Mapping)] if isinstance(listed, list) else []
    for info in infos:
        wait = _seconds(info.get("retryDelay"))
        if wait is not None:
            delay = wait
    if status == 400 and any(info.get("reason") == "API_KEY_INVALID" for info in infos):
        return AuthenticationError(message, provider=_PROVIDER, status=status)
    if status == 400 and any(words in message.lower() for words in _OVERFLOW):
        return ContextOverflowError(message, provider=_PROVIDER, status=status)
    return error_for_status(status, message, provider=_PROVIDER, retry_after=delay)


def classify(error: Exception) -> Exception:
    """
    Turn what the SDK or its transport raised into one of rxloop's errors, with the original as its cause.

    An error that neither of them raised is a fault of the program and stays as it is.
    """
    return classified(error, _known, shows_a_secret=_shows_a_header)


def _shows_a_header(error: Exception) -> bool:
    if isinstance(error, UnicodeEncodeError):
        return error.encoding == "ascii"
    if isinstance(error, ValueError) and "detected in headers" in str(error):
        # aiohttp's words
        return True
    return type(error).__name__ == "LocalProtocolError" and "header" in str(error).lower()


def _known(error: Exception) -> RxLoopError | None:
    from google.auth import exceptions as auth
    from google.genai import errors

    if isinstance(error, errors.APIError):
        headers = getattr(error.response, "headers", None) or {}
        status = error.code if isinstance(error.code, int) and error.code >= 300 else None
        return error_of_body(error.details, status=status, delay=retry_after(headers))
    if isinstance(error, errors.UnknownApiResponseError):
        return MalformedResponseError(f"the reply is not JSON: {error}"[:_LONGEST], provider=_PROVIDER)
    if isinstance(error, auth.TransportError):
        return ConnectionFailedError(f"no connection to the credentials' server: {error}", provider=_PROVIDER)
    if isinstance(error, auth.GoogleAuthError):
        return AuthenticationError(f"the credentials do not work: {error}", provider=_PROVIDER)
    if isinstance(error, UnicodeDecodeError):
        return StreamInterruptedError("the reply ended in the middle of a character", provider=_PROVIDER)
    if _shows_a_header(error):
        return ConfigurationError(
            "the key or another header has characters that HTTP does not allow, such as a line end at its end",
            provider=_PROVIDER,
        )
    for name in ("httpx2", "httpx"):
        module = sys.modules.get(name)
        if module is None:
            continue
        if isinstance(error, module.ConnectError):
            return ConnectionFailedError(f"no connection to the provider: {error}", provider=_PROVIDER)
        if isinstance(error, module.TimeoutException):
            return TimedOutError(
                "the transport's own timeout ran out", clock="transport", provider=_PROVIDER, retryable=True
            )
        if isinstance(error, (module.UnsupportedProtocol, module.InvalidURL)):
            return ConfigurationError(f"the client's base_url must be an http or https address: {error}")
        if isinstance(error, (module.HTTPError, module.StreamError)):
            return StreamInterruptedError(f"the connection broke: {type(error).__name__}: {error}", provider=_PROVIDER)
    aiohttp = sys.modules.get("aiohttp")
    if aiohttp is None:
        return None
    if isinstance(error, TimeoutError):
        return TimedOutError(
            "the transport's own timeout ran out", clock="transport", provider=_PROVIDER, retryable=True
        )
    if isinstance(error, (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError)):
        return ConfigurationError(f"the client's base_url must be an http or https address: {error}")
    if isinstance(error, aiohttp.ClientConnectorError):
        return ConnectionFailedError(f"no connection to the provider: {error}", provider=_PROVIDER)
    if isinstance(error, aiohttp.ClientError):
        return StreamInterruptedError(f"the connection broke: {type(error).__name__}: {error}", provider=_PROVIDER)
    return None


def _seconds(duration: Any) -> float | None:
    """A protobuf duration in JSON: ``"13s"``, ``"0.5s"``."""
    if not isinstance(duration, str) or not duration.endswith("s"):
        return None
    try:
        seconds = float(duration[:-1])
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None
