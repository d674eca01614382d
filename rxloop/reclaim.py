"""How a turn keeps within its model's window: old tool results give way to short notes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rxloop.checks import whole
from rxloop.errors import ConfigurationError

__all__ = ("HistoryResult", "Reclaim", "ReclaimPlan", "estimated_tokens", "plan_reclaim", "window_of")

_CHARACTERS_PER_TOKEN = 4
_MEDIA_TOKENS = 1600
_MEDIA_CHARACTERS = 2000
_ENCODED = ("bytes", "data")
"""The fields in which the providers have images and documents, as base64."""

_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{64}")


@dataclass(frozen=True, slots=True)
class Reclaim:
    """
    When and how far old tool results give way.

    Args:
        window: the model's window in tokens; looked up by the model's name if not given, and without either nothing is
            reclaimed.
        threshold: the share of the window from which on it is done.
        target: the share of the window down to which it is done, so that it need not be done again in every step, which
            would spoil the provider's cache each time.
        keep_steps: the results of how many of the newest steps stay.

    Raises:
        ConfigurationError: a value breaks its rule.
    """

    window: int | None = None
    threshold: float = 0.8
    target: float = 0.5
    keep_steps: int = 2

    def __post_init__(self) -> None:
        if self.window is not None:
            whole("window", self.window, minimum=1)
        whole("keep_steps", self.keep_steps, minimum=0)
        shares = (self.target, self.threshold)
        if not all(isinstance(share, (int, float)) for share in shares) or not 0 < self.target <= self.threshold <= 1:
            raise ConfigurationError(
                f"target and threshold must be 0 < target <= threshold <= 1, but got {self.target!r} and "
                f"{self.threshold!r}"
            )


@dataclass(frozen=True, slots=True)
class HistoryResult:
    """
    One tool result of a conversation, as its adapter sees it.

    Args:
        place: where it is: the message's index, and the block's within it.
        name: the tool's name.
        content: what it says.
    """

    place: tuple[int, int]
    name: str
    content: Any


@dataclass(frozen=True, slots=True)
class ReclaimPlan:
    """
    What gives way.

    Args:
        notes: the note that stands for each result, by its place.
        freed: how many tokens that frees, by the estimate.
    """

    notes: Mapping[tuple[int, int], str]
    freed: int


def plan_reclaim(results: Sequence[HistoryResult], *, free: int, keep_steps: int, scale: float = 1.0) -> ReclaimPlan:
    """
    Choose the results that give way: the oldest first, until enough is free, and never those of the newest steps.

    Args:
        results: all results of a conversation, oldest first; those of one step share their message.
        free: how many tokens are wanted.
        keep_steps: the results of how many of the newest steps stay.
        scale: how many tokens there have been for each that was estimated.
    """
    messages = sorted({result.place[0] for result in results})
    kept = set(messages[-keep_steps:]) if keep_steps else set()
    notes: dict[tuple[int, int], str] = {}
    freed = 0
    for result in results:
        if freed >= free:
            break
        if result.place[0] in kept:
            continue
        size = len(result.content) if isinstance(result.content, str) else len(json.dumps(result.content, default=str))
        note = f"[the result of {result.name} was removed to save space: {size:,} characters]"
        gain = math.floor((estimated_tokens(result.content) - estimated_tokens(note)) * scale)
        if gain > 0:
            notes[result.place] = note
            freed += gain
    return ReclaimPlan(notes, freed)


def estimated_tokens(value: Any) -> int:
    """
    About how many tokens a piece of a request is: a quarter of its characters, or of its UTF-8 bytes beyond ASCII.

    What is encoded, as images are, counts as 1,600 each.
    """
    if isinstance(value, str):
        size = len(value) if value.isascii() else len(value.encode(errors="surrogatepass"))
        return math.ceil(size / _CHARACTERS_PER_TOKEN)
    if isinstance(value, Mapping):
        return sum(estimated_tokens(key) + _member(key, item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return sum(map(estimated_tokens, value))
    return 1


def _member(key: Any, value: Any) -> int:
    # a tool may call its text so too
    encoded = key in _ENCODED and isinstance(value, str) and len(value) > _MEDIA_CHARACTERS and _BASE64.match(value)
    return _MEDIA_TOKENS if encoded else estimated_tokens(value)


def window_of(model: str) -> int | None:
    """The window of a model that is known by its name, in tokens; ``None`` for any other."""
    return next((tokens for pattern, tokens in _windows() if pattern.search(model)), None)


@cache
def _windows() -> tuple[tuple[re.Pattern[str], int], ...]:
    table = json.loads((Path(__file__).parent / "context_windows.json").read_text(encoding="utf-8"))
    return tuple((re.compile(pattern), tokens) for pattern, tokens in table["windows"])
