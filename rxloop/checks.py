"""Rules that a caller's values must keep, checked at the earliest moment."""

from __future__ import annotations

from typing import Any

from rxloop.errors import ConfigurationError

__all__ = ("function_or_none", "instance", "positive_seconds", "positive_whole", "seconds_or_none", "whole")


def function_or_none(name: str, value: Any) -> None:
    """
    Check a callback; ``None`` is none.

    Raises:
        ConfigurationError: it cannot be called.
    """
    if value is not None and not callable(value):
        raise ConfigurationError(f"{name} must be a function, but got {value!r}")


def instance(name: str, value: Any, *types: type) -> None:
    """
    Check a value's type.

    Raises:
        ConfigurationError: it is of none of the types.
    """
    if not isinstance(value, types):
        allowed = " or ".join("None" if kind is type(None) else kind.__name__ for kind in types)
        raise ConfigurationError(f"{name} must be {allowed}, but got {value!r:.200}")


def positive_seconds(name: str, value: Any) -> None:
    """
    Check a limit in seconds; ``None`` is no limit.

    Raises:
        ConfigurationError: it is not a number above 0.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ConfigurationError(f"{name} must be > 0 seconds, but got {value!r}")


def seconds_or_none(name: str, value: Any) -> None:
    """
    Check a delay in seconds; ``None`` is none.

    Raises:
        ConfigurationError: it is not a finite number >= 0.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise ConfigurationError(f"{name} must be a finite number of seconds >= 0, but got {value!r}")


def positive_whole(name: str, value: Any) -> None:
    """
    Check a limit that is counted; ``None`` is no limit.

    Raises:
        ConfigurationError: it is not a whole number >= 1.
    """
    if value is not None:
        whole(name, value, minimum=1)


def whole(name: str, value: Any, *, minimum: int) -> None:
    """
    Check a count.

    Raises:
        ConfigurationError: it is not a whole number >= `minimum`.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ConfigurationError(f"{name} must be a whole number >= {minimum}, but got {value!r}")
