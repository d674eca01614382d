"""Token usage, in one meaning for every provider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ("Usage",)


@dataclass(frozen=True, slots=True)
class Usage:
    """
    Tokens of a step or of a turn.

    The cache figures are parts of the input and the reasoning figure is a part of the output, so that
    ``input_tokens + output_tokens`` is everything that was sent and produced, each token once.

    Args:
        input_tokens: everything sent, cached tokens included.
        output_tokens: everything produced, reasoning included.
        cache_read_tokens: the part of the input that was read from the provider's cache.
        cache_write_tokens: the part of the input that was written to the provider's cache.
        reasoning_tokens: the part of the output that was reasoning, where the provider tells it.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )

    def to_dict(self) -> dict[str, int]:
        """The JSON form: one key per figure."""
        return {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cache_read_tokens": self.cache_read_tokens,
            "cache_write_tokens": self.cache_write_tokens,
            "reasoning_tokens": self.reasoning_tokens,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Usage:
        """Read the JSON form; a missing figure is 0 and an unknown key is ignored."""
        return cls(
            data.get("input_tokens") or 0,
            data.get("output_tokens") or 0,
            data.get("cache_read_tokens") or 0,
            data.get("cache_write_tokens") or 0,
            data.get("reasoning_tokens") or 0,
        )
