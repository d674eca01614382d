"""One tree of errors for every provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from rxloop.steps import Partial

__all__ = (
    "AuthenticationError",
    "BufferOverflowError",
    "Clock",
    "ConfigurationError",
    "ConnectionFailedError",
    "ContextOverflowError",
    "InvalidOutputError",
    "InvalidRequestError",
    "MalformedResponseError",
    "ModelNotFoundError",
    "OverloadedError",
    "PermissionDeniedError",
    "ProviderError",
    "RateLimitedError",
    "RxLoopError",
    "ServerError",
    "StreamInterruptedError",
    "TimedOutError",
    "UsageLimitError",
    "describe",
    "error_from_dict",
)

Clock = Literal["turn", "step", "first_event", "stall", "tool", "transport"]


def describe(error: BaseException) -> str:
    """An error's type and text, whatever its own ``__str__`` does."""
    try:
        text = str(error)
    except Exception as fault:
        text = f"(no text: its __str__ raised {type(fault).__name__})"
    return f"{type(error).__name__}: {text}"


class RxLoopError(Exception):
    """
    The base of everything that rxloop raises.

    Args:
        message: what happened, in one sentence, without any secret.
        provider: the provider's name, where one is to blame.
        status: the HTTP status, where there was one.
        retry_after: the delay in seconds that the provider asked for.
        retryable: overrides the class's own answer to "may the same request succeed later?".

    ``partial`` holds what the turn had when it failed: text, tool results, usage, and a conversation that can
    be sent again. It is ``None`` on an error that did not come out of a turn.
    """

    kind: ClassVar[str] = "error"
    retryable: bool = False

    def __init__(
        self,
        message: str,
        *,
        provider: str | None = None,
        status: int | None = None,
        retry_after: float | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.provider = provider
        self.status = status
        self.retry_after = retry_after
        self.partial: Partial | None = None
        if retryable is not None:
            self.retryable = retryable

    def __reduce__(self) -> tuple[Any, ...]:
        # an exception is rebuilt from its message alone otherwise, which some need more than
        return _rebuilt, (type(self), self.message), self.__dict__

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: kind, status, message, retryable."""
        return {
            "kind": self.kind,
            "status": self.status,
            "message": self.message,
            "retryable": self.retryable,
        }


def _rebuilt(cls: type[RxLoopError], message: str) -> RxLoopError:
    error = cls.__new__(cls)
    error.args = (message,)
    return error


class ConfigurationError(RxLoopError, ValueError):
    """A value or combination that can never work; raised at the earliest moment."""

    kind = "configuration"


class UsageLimitError(RxLoopError):
    """The turn's own budget of tokens is spent."""

    kind = "usage_limit"


class InvalidOutputError(RxLoopError):
    """
    The model's structured answer does not fit what was asked for, and its corrections are spent.

    Args:
        message: what is wrong with it.
        payload: the answer as it came: the parsed object, or the raw text where it is none.
    """

    kind = "invalid_output"

    def __init__(
        self, message: str, *, payload: Any = None, provider: str | None = None, retryable: bool | None = None
    ) -> None:
        super().__init__(message, provider=provider, retryable=retryable)
        self.payload = payload

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, with the payload."""
        return {**super().to_dict(), "payload": self.payload}


class BufferOverflowError(RxLoopError):
    """A source that cannot be paused pushed more than the buffer holds."""

    kind = "buffer_overflow"


class TimedOutError(RxLoopError, TimeoutError):
    """
    One of the clocks ran out.

    Args:
        message: what happened.
        clock: which clock it was: "turn", "step", "first_event", "stall", "tool" or "transport".
        seconds: its limit.
    """

    kind = "timeout"

    def __init__(
        self,
        message: str,
        *,
        clock: Clock,
        seconds: float | None = None,
        provider: str | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message, provider=provider, retryable=retryable)
        self.clock = clock
        self.seconds = seconds

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, with the clock's name."""
        return {**super().to_dict(), "clock": self.clock}


class ProviderError(RxLoopError):
    """The provider, or the way to it, failed. The SDK's own error is the ``__cause__``."""

    kind = "provider"


class AuthenticationError(ProviderError):
    """No credentials, or credentials that the provider does not know."""

    kind = "authentication"


class PermissionDeniedError(ProviderError):
    """Known credentials that may not do this."""

    kind = "permission"


class ModelNotFoundError(ProviderError):
    """The model, or the endpoint, does not exist."""

    kind = "model_not_found"


class InvalidRequestError(ProviderError):
    """The provider cannot accept the request as it is."""

    kind = "invalid_request"


class ContextOverflowError(InvalidRequestError):
    """The conversation is longer than the model's window, or the request larger than the provider takes."""

    kind = "context_overflow"


class RateLimitedError(ProviderError):
    """Too many requests or tokens; ``retry_after`` where the provider said when."""

    kind = "rate_limited"
    retryable = True


class OverloadedError(ProviderError):
    """The provider has no capacity at the moment."""

    kind = "overloaded"
    retryable = True


class ServerError(ProviderError):
    """The provider failed on its side."""

    kind = "server"
    retryable = True


class ConnectionFailedError(ProviderError):
    """No connection, or one that broke before the provider answered."""

    kind = "connection"
    retryable = True


class StreamInterruptedError(ProviderError):
    """The answer ended before the provider said that it was complete."""

    kind = "stream_interrupted"
    retryable = True


class MalformedResponseError(ProviderError):
    """The answer does not have the provider's own format."""

    kind = "malformed_response"
    retryable = True


def error_from_dict(data: Mapping[str, Any]) -> RxLoopError:
    """Read an error's JSON form, as retries and event tapes have it; an unknown kind becomes an `RxLoopError`."""
    message = str(data.get("message") or "an error without words")
    status = data.get("status")
    error = _rebuilt(_CLASSES.get(str(data.get("kind")), RxLoopError), message)
    error.message = message
    error.provider = None
    error.status = status if isinstance(status, int) else None
    error.retry_after = None
    error.partial = None
    error.retryable = bool(data.get("retryable"))
    # what a class has beyond its base
    for name in ("clock", "payload"):
        if name in data:
            setattr(error, name, data[name])
    if isinstance(error, TimedOutError):
        error.seconds = None
    return error


def _classes(cls: type[RxLoopError]) -> dict[str, type[RxLoopError]]:
    found = {cls.kind: cls}
    for derived in cls.__subclasses__():
        found |= _classes(derived)
    return found


_CLASSES = _classes(RxLoopError)
