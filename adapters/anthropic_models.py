"""What Claude models differ in, told by their names, whichever platform they are on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

__all__ = (
    "LONG_WINDOW",
    "always_thinks",
    "binds_thinking",
    "has_structured_outputs",
    "long_window",
    "thinks_by_default",
)

LONG_WINDOW = 1_000_000
"""The window of a model that has a smaller one otherwise, with the beta for it, in tokens."""


_WITHOUT_OUTPUTS = re.compile(r"claude-(?:[23]\b|v2|instant|(?:opus|sonnet)-4(?:-0|[-@]2025|$))")
_LATE = re.compile(r"claude-(?:(?:fable|mythos)-|[a-z]+-(?:5-[5-9]|[6-9]))")
_FIVE = re.compile(r"claude-[a-z]+-[5-9]")
_BINDING = re.compile(r"claude-(?:[a-z]+-(?:5-[5-9]|[6-9])|(?:fable|mythos)-5-[1-9]\d?(?!\d))")


def has_structured_outputs(model: str) -> bool:
    """
    Whether the model can be held to a JSON schema.

    Source: https://platform.claude.com/docs/en/build-with-claude/structured-outputs
    """
    return not _WITHOUT_OUTPUTS.search(model)


def long_window(betas: Any) -> bool:
    """
    Whether one of these betas asks for the long window; a list of names, or the value of the header.

    Source: https://platform.claude.com/docs/en/build-with-claude/context-windows
    """
    names = betas.split(",") if isinstance(betas, str) else betas
    return isinstance(names, Iterable) and any(str(name).strip().startswith("context-1m-") for name in names)


def always_thinks(model: str) -> bool:
    """
    Whether thinking cannot be turned off; then no tool choice can be forced either.

    Source: https://platform.claude.com/docs/en/models/opus-5-5/whats-new-opus-5-5
    """
    return bool(_LATE.search(model))


def thinks_by_default(model: str) -> bool:
    """
    Whether a request that says nothing of thinking has it.

    Source: https://platform.claude.com/docs/en/models/opus-5-5/whats-new-opus-5-5
    """
    return bool(_FIVE.search(model)) or always_thinks(model)


def binds_thinking(model: str) -> bool:
    """
    Whether the thinking in a history is refused once anything before it has changed: tools, system prompt, messages.

    Source: https://platform.claude.com/docs/en/build-with-claude/preserved-thinking/prefix-checks
    """
    return bool(_BINDING.search(model))
