"""The failure breaker: a tool that keeps failing is taken out of the turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rxloop.checks import whole

__all__ = ("TOOL_PERMANENTLY_FAILED", "Breaker", "BreakerState")

TOOL_PERMANENTLY_FAILED = "TOOL_PERMANENTLY_FAILED"
"""What the answer to a call of a tool that was taken out begins with."""


@dataclass(frozen=True, slots=True)
class Breaker:
    """
    When a tool counts as permanently failed. The setting is a value; every turn counts for itself.

    Args:
        max_retries: strikes after which later calls are answered without running; at least 1.
        classify_failure: called with a tool's name and its output; true counts the output as a strike.
        consecutive: a success forgives all strikes before it.
    """

    max_retries: int = 2
    classify_failure: Callable[[str, Any], bool] | None = None
    consecutive: bool = False

    def __post_init__(self) -> None:
        whole("max_retries", self.max_retries, minimum=1)

    def start(self) -> BreakerState:
        """A fresh count, for one turn."""
        return BreakerState(self)


class BreakerState:
    """The strikes of one turn."""

    __slots__ = ("_breaker", "_strikes", "_unknown")

    def __init__(self, breaker: Breaker) -> None:
        self._breaker = breaker
        self._strikes: dict[str, int] = {}
        self._unknown: set[str] = set()

    def unknown(self, name: str) -> str:
        """Nothing is registered under the name: it failed for good, until it can be resolved."""
        self._unknown.add(name)
        return f"{TOOL_PERMANENTLY_FAILED}: there is no tool named {name!r}; do not call it again"

    def refusal(self, name: str) -> str | None:
        """The answer to a call of a tool that can be found, or ``None`` if it may run."""
        if name in self._unknown:
            self._unknown.discard(name)
            self._strikes.pop(name, None)
        strikes = self._strikes.get(name, 0)
        if strikes < self._breaker.max_retries:
            return None
        return f"{TOOL_PERMANENTLY_FAILED}: {name!r} failed {strikes} times; do not call it again"

    def settle(self, name: str, output: Any, error: str | None) -> None:
        """Count what a call came to."""
        classify = self._breaker.classify_failure
        if error is not None or (classify is not None and classify(name, output)):
            self._strikes[name] = self._strikes.get(name, 0) + 1
        elif self._breaker.consecutive:
            self._strikes.pop(name, None)
