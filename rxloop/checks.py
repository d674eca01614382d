"""Rules that a caller's values must keep, checked at the earliest moment."""

from __future__ import annotations

from typing import Any

from rxloop.errors import ConfigurationError

__all__ = ("positive_seconds", "positive_whole", "whole")


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
