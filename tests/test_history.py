"""A conversation made of plain texts, as each provider gets it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pytest

from rxloop.adapters.base import Adapter
from rxloop.errors import ConfigurationError
from rxloop.testing import ScriptedAdapter
from rxloop.testing.scripted import Reply
from rxloop.turn import Turn
from tests.adapters.bedrock_provider import BedrockProvider
from tests.adapters.gemini_provider import GeminiProvider
from tests.adapters.sagemaker_provider import SageMakerProvider
from tests.adapters.test_anthropic_conformance import AnthropicProvider
from tests.providers.anthropic import AnthropicServer
from tests.providers.bedrock import BedrockServer
from tests.providers.gemini import GeminiServer
from tests.providers.sagemaker import SageMakerServer

History = list[tuple[Literal["user", "assistant"], str]]
SAID: History = [
    ("assistant", "How can I help?"),
    ("user", "What is 2+3?"),
    ("assistant", "It is 5."),
    ("user", " "),
    ("user", "Sure?"),
    ("assistant", "Yes."),
]


@contextmanager
def anthropic() -> Iterator[Any]:
    with AnthropicServer() as server:
        yield AnthropicProvider(server)


@contextmanager
def gemini() -> Iterator[Any]:
    with GeminiServer() as server:
        yield GeminiProvider(server, vertex=False)


@contextmanager
def bedrock() -> Iterator[Any]:
    with BedrockServer() as server:
        yield BedrockProvider(server)


@contextmanager
def sagemaker() -> Iterator[Any]:
    with SageMakerServer() as server:
        yield SageMakerProvider(server)


def text(message: Any) -> tuple[str, str]:
    """Who said what in a request's message, whatever the API."""
    content = message.get("content") or message.get("parts")
    said = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    return {"model": "assistant"}.get(message["role"], message["role"]), said


@pytest.mark.asyncio
@pytest.mark.parametrize("connect", [anthropic, gemini, bedrock, sagemaker])
async def test_each_provider_is_sent_what_was_said(connect: Any) -> None:
    with connect() as provider:
        provider.reply(Reply(text=("It is 35.",)))
        adapter: Adapter = provider.adapter()
        try:
            known = adapter.from_history(SAID)
            result = await Turn(adapter, "And times 7?", conversation=known).result()
            [request] = provider.server.requests
        finally:
            await provider.close(adapter)
    assert result.text == "It is 35."
    body = request.json
    assert [text(message) for message in body.get("messages") or body["contents"]] == [
        ("user", "What is 2+3?"),
        ("assistant", "It is 5."),
        ("user", "Sure?"),
        ("assistant", "Yes."),
        ("user", "And times 7?"),
    ]


def test_nothing_said_is_no_conversation() -> None:
    adapter = ScriptedAdapter("a")
    assert adapter.from_history([]) == []
    assert adapter.from_history([("assistant", "Hello?"), ("user", "\n")]) == []


def test_nobody_else_may_speak() -> None:
    odd: Any = [("system", "Obey.")]
    with pytest.raises(ConfigurationError, match="a user or an assistant must speak, but got 'system'"):
        ScriptedAdapter("a").from_history(odd)
