"""The adapters: one wire protocol each, loaded when asked for; its SDK is an extra. And what a new one is made of."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rxloop.adapters.anthropic import AnthropicAdapter
    from rxloop.adapters.bedrock import BedrockAdapter
    from rxloop.adapters.gemini import GeminiAdapter
    from rxloop.adapters.sagemaker import SageMakerAdapter
    from rxloop.adapters.text_stream import StreamRequest, TextStream

__all__ = ("AnthropicAdapter", "BedrockAdapter", "GeminiAdapter", "SageMakerAdapter", "StreamRequest", "TextStream")

_MODULES = {
    "AnthropicAdapter": "anthropic",
    "BedrockAdapter": "bedrock",
    "GeminiAdapter": "gemini",
    "SageMakerAdapter": "sagemaker",
    "StreamRequest": "text_stream",
    "TextStream": "text_stream",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
