from __future__ import annotations

import inspect
import json
import pickle
from typing import Any

import pytest

from rxloop import errors
from rxloop.errors import ConfigurationError, InvalidRequestError, ProviderError, RxLoopError, TimedOutError

CLASSES = [
    value for name in errors.__all__ if inspect.isclass(value := getattr(errors, name)) and issubclass(value, Exception)
]
every_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)


def make(cls: type[RxLoopError], **values: Any) -> RxLoopError:
    if issubclass(cls, TimedOutError):
        return cls("it broke", clock="stall", seconds=5, **values)
    return cls("it broke", **values)


@every_class
def test_every_error_is_of_the_one_tree(cls: type[RxLoopError]) -> None:
    error = make(cls)
    assert isinstance(error, RxLoopError)
    assert str(error) == error.message == "it broke"
    assert error.partial is None


@every_class
def test_every_error_says_whether_the_same_request_may_succeed_later(cls: type[RxLoopError]) -> None:
    retryable = {
        "RateLimitedError",
        "OverloadedError",
        "ServerError",
        "ConnectionFailedError",
        "StreamInterruptedError",
        "MalformedResponseError",
    }
    assert make(cls).retryable is (cls.__name__ in retryable)
    assert make(cls, retryable=True).retryable is True
    assert make(cls, retryable=False).retryable is False
    assert cls.retryable is (cls.__name__ in retryable), "one error's answer is not its class's"


@every_class
def test_every_error_has_a_json_form(cls: type[RxLoopError]) -> None:
    data = make(cls, retryable=True).to_dict()
    assert json.loads(json.dumps(data)) == data
    assert data["message"] == "it broke"
    assert data["retryable"] is True
    assert list(data)[:4] == ["kind", "status", "message", "retryable"]


def test_kinds_are_distinct() -> None:
    kinds = [cls.kind for cls in CLASSES]
    assert len(set(kinds)) == len(kinds)


def test_what_a_provider_said_is_kept() -> None:
    error = ProviderError("no", provider="anthropic", status=418, retry_after=1.5)
    assert (error.provider, error.status, error.retry_after) == ("anthropic", 418, 1.5)
    assert error.to_dict() == {"kind": "provider", "status": 418, "message": "no", "retryable": False}


def test_a_timeout_names_its_clock() -> None:
    error = TimedOutError("too late", clock="turn", seconds=3)
    assert (error.clock, error.seconds) == ("turn", 3)
    assert error.to_dict()["clock"] == "turn"


def test_errors_are_what_python_calls_them_too() -> None:
    assert issubclass(TimedOutError, TimeoutError)
    assert issubclass(ConfigurationError, ValueError)
    assert issubclass(errors.ContextOverflowError, InvalidRequestError)


@every_class
def test_every_error_survives_pickling(cls: type[RxLoopError]) -> None:
    error = make(cls, retryable=True)
    error.status = 503
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(copy) is cls
    assert copy.to_dict() == error.to_dict()
    assert str(copy) == "it broke"
    assert vars(copy) == vars(error)
