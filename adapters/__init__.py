"""The adapters: one wire protocol each, loaded when asked for; its SDK is an extra."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rxloop.adapters.anthropic import AnthropicAdapter

__all__ = ("AnthropicAdapter",)


def __getattr__(name: str) -> Any:
    if name == "AnthropicAdapter":
        from rxloop.adapters.anthropic import AnthropicAdapter

        return AnthropicAdapter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
