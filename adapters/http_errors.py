"""What HTTP itself says of an error, the same for every provider."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Callable, Mapping

from rxloop.errors import (
    AuthenticationError,
    ContextOverflowError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    PermissionDeniedError,
    ProviderError,
    RateLimitedError,
    RxLoopError,
    ServerError,
)

__all__ = ("classified", "error_for_status", "retry_after")

_STATUSES: Mapping[int, type[ProviderError]] = {
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: ModelNotFoundError,
    413: ContextOverflowError,
    429: RateLimitedError,
    503: OverloadedError,
    529: OverloadedError,
}


def classified(
    error: Exception,
    known: Callable[[Exception], RxLoopError | None],
    *,
    shows_a_secret: Callable[[Exception], bool],
) -> Exception:
    """
    Turn what an SDK or its transport raised into one of rxloop's errors, with the original as its cause.

    An error that neither of them raised is a fault of the program and stays as it is.

    Args:
        error: what was raised.
        known: the error that it stands for; ``None`` where it is neither of theirs.
        shows_a_secret: whether its text has a key in it, as a header's fault may; then no traceback may show it.
    """
    if isinstance(error, RxLoopError):
        return error
    found = known(error)
    if found is None:
        return error
    found.__cause__ = None if shows_a_secret(error) else error
    return found


def error_for_status(
    status: int | None, message: str, *, provider: str, retry_after: float | None = None
) -> ProviderError:
    """
    The error of a status code, where the provider's body says nothing better.

    408, 409, 429 and everything from 500 on may succeed later; a redirection is the same again every time. Without a
    status, as for an error of an unknown type inside a stream, it is the server's.
    """
    if status is None:
        return ServerError(message, provider=provider, retry_after=retry_after)
    if 300 <= status < 400:
        message = f"the endpoint redirects with {status}, which is not followed: {message}"
    cls = _STATUSES.get(status) or (ServerError if status >= 500 else InvalidRequestError)
    return cls(
        message,
        provider=provider,
        status=status,
        retry_after=retry_after,
        retryable=status in (408, 409, 429) or status >= 500,
    )


def retry_after(headers: Mapping[str, str]) -> float | None:
    """
    The delay in seconds that the headers ask for: ``retry-after-ms``, or ``Retry-After`` in seconds or as a date.

    Source: https://www.rfc-editor.org/rfc/rfc9110#field.retry-after
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _number(value)
    if seconds is not None or value is None:
        return seconds
    try:
        moment = email.utils.parsedate_to_datetime(value)
    except (TypeError, ValueError):
        return None
    return max(0.0, moment.timestamp() - time.time())


def _number(value: str | None) -> float | None:
    try:
        number = float(value) if value is not None else None
    except ValueError:
        return None
    return number if number is not None and 0 <= number < float("inf") else None
