"""What providers sign of a reply, as its last event tells it: over the wire, provider by provider."""

from __future__ import annotations

import base64

import pytest

from rxloop.events import StepFinished
from rxloop.steps import Signature
from rxloop.testing.scripted import Recorder
from tests.adapters import gemini_turns
from tests.adapters.test_bedrock_request import connected as bedrock_connected
from tests.adapters.test_bedrock_request import every_way
from tests.providers import anthropic, bedrock, gemini
from tests.providers.anthropic import AnthropicServer
from tests.providers.bedrock import BedrockServer
from tests.providers.gemini import GeminiServer
from tests.turns import connected, run


def signatures_of(recorder: Recorder) -> list[tuple[Signature, ...]]:
    """The signatures of every step."""
    return [event.signatures for event in recorder.events if isinstance(event, StepFinished)]


@pytest.mark.asyncio
async def test_anthropic_signs_thinking_and_hides_some() -> None:
    with AnthropicServer() as server:
        server.reply(
            anthropic.thinking("one", signature="s1"),
            anthropic.redacted("hidden"),
            anthropic.text("I look."),
            anthropic.thinking("two", signature="s2"),
            anthropic.thinking("not signed", signature=""),
            anthropic.thinking("", signature="s3"),
            anthropic.tool_use("add", {"a": 1, "b": 2}),
        )
        server.reply(anthropic.text("3"))
        async with connected(server) as adapter:
            recorder = await run(adapter)
    first = (
        Signature("s1", span=(0, 3)),
        Signature("hidden", redacted=True),
        Signature("s2", span=(3, 6)),
        Signature("s3", span=(16, 16)),
    )
    assert signatures_of(recorder) == [first, ()]


@pytest.mark.asyncio
@every_way
async def test_bedrock_signs_reasoning_and_hides_some(way: str) -> None:
    with BedrockServer() as server:
        server.reply(
            bedrock.reasoning("one", signature="s1"),
            bedrock.redacted(b"hid", b"den"),
            bedrock.reasoning("not signed", signature=None),
            bedrock.reasoning("two", signature="s2"),
            bedrock.tool_use("add", {"a": 1, "b": 2}),
        )
        server.reply(bedrock.text("3"))
        async with bedrock_connected(server, way) as adapter:
            recorder = await run(adapter)
            await server.idle()
    hidden = Signature(base64.b64encode(b"hidden").decode(), redacted=True)
    assert signatures_of(recorder) == [
        (Signature("s1", span=(0, 3)), hidden, Signature("s2", span=(13, 16))),
        (),
    ]


@pytest.mark.asyncio
@pytest.mark.parametrize("flavour", gemini_turns.FLAVOURS)
async def test_gemini_signs_calls_and_text(flavour: str) -> None:
    with GeminiServer() as server:
        server.reply(
            gemini.thought("hm"),
            gemini.call("add", {"a": 1, "b": 2}, id="c1", signature="czE="),
            gemini.call("add", {"a": 2, "b": 2}, id="c2"),
        )
        server.reply(gemini.text("3 and 4"), gemini.signature_only("czI="))
        async with gemini_turns.connected(server, flavour) as adapter:
            recorder = await run(adapter)
            await server.idle()
    assert signatures_of(recorder) == [(Signature("czE=", call_id="c1"),), (Signature("czI="),)]


@pytest.mark.asyncio
async def test_gemini_signs_thoughts() -> None:
    with GeminiServer() as server:
        server.reply(
            gemini.thought("one"),
            gemini.raw_part({"text": "two", "thought": True, "thoughtSignature": "czE="}),
            gemini.thought("three"),
            gemini.text("So."),
            gemini.signature_only("czI="),
        )
        async with gemini_turns.connected(server, gemini_turns.FLAVOURS[0]) as adapter:
            recorder = await run(adapter)
            await server.idle()
    assert signatures_of(recorder) == [(Signature("czE=", span=(3, 6)), Signature("czI="))]
