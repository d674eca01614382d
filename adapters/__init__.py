"""The adapters: one wire protocol each, loaded when asked for; its SDK is an extra. And what a new one is made of."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rxloop.adapters.anthropic import AnthropicAdapter
    from rxloop.adapters.bedrock import BedrockAdapter
    from rxloop.adapters.gemini import GeminiAdapter
    from rxloop.adapters.sagemaker import SageMakerAdapter, inputs_body, messages_body
    from rxloop.adapters.sagemaker_payloads import AutoPayload, PayloadDecoder
    from rxloop.adapters.text_stream import StreamRequest, TextStream

__all__ = (
    "AnthropicAdapter",
    "AutoPayload",
    "BedrockAdapter",
    "GeminiAdapter",
    "PayloadDecoder",
    "SageMakerAdapter",
    "StreamRequest",
    "TextStream",
    "inputs_body",
    "messages_body",
)

_MODULES = {
    "AnthropicAdapter": "anthropic",
    "AutoPayload": "sagemaker_payloads",
    "BedrockAdapter": "bedrock",
    "GeminiAdapter": "gemini",
    "PayloadDecoder": "sagemaker_payloads",
    "SageMakerAdapter": "sagemaker",
    "StreamRequest": "text_stream",
    "TextStream": "text_stream",
    "inputs_body": "sagemaker",
    "messages_body": "sagemaker",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
