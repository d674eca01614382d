"""The adapters: one wire protocol each, loaded when asked for; its SDK is an extra."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rxloop.adapters.anthropic import AnthropicAdapter
    from rxloop.adapters.gemini import GeminiAdapter

__all__ = ("AnthropicAdapter", "GeminiAdapter")

_MODULES = {"AnthropicAdapter": "anthropic", "GeminiAdapter": "gemini"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
