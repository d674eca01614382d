"""Markers of the prompt cache, as the provider gets them, and what they are worth."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from rxloop.adapters.anthropic import AnthropicAdapter
from rxloop.adapters.bedrock import BedrockAdapter
from rxloop.errors import ConfigurationError
from rxloop.steps import Step
from rxloop.tools import Tool, ToolDeclaration, tool
from rxloop.turn import Turn
from tests.prefix_cache import PrefixCache, anthropic_blocks, bedrock_blocks
from tests.providers import anthropic as messages_api
from tests.providers import bedrock as converse
from tests.providers.anthropic import AnthropicServer
from tests.providers.bedrock import BedrockServer
from tests.providers.eventstream import CONTENT_TYPE
from tests.providers.http import Reply, Request

SYSTEM = "You look things up. " * 300
EPHEMERAL = {"type": "ephemeral"}


@tool
async def search(query: str) -> str:
    """Search the archive."""
    return f"what the archive says of {query}: " + "a fact and another one, " * (40 * (1 + int(query)))


def anthropic_answer(cache: PrefixCache, steps: int) -> Callable[[Request], Reply]:
    """A model that searches in every step but the last, and counts as the provider does."""

    def answer(request: Request) -> Reply:
        read, written, rest = cache.count(anthropic_blocks(request.json))
        usage = {
            "input_tokens": rest,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": written,
            "output_tokens": 20,
        }
        number = len(cache.requests)
        blocks = (
            [
                messages_api.thinking("hm", signature="sig"),
                messages_api.tool_use("search", {"query": str(number)}, id=f"toolu_{number}"),
            ]
            if number < steps
            else [messages_api.text("Found.")]
        )
        return Reply(200, {"content-type": "text/event-stream"}, messages_api.message(*blocks, usage=usage))

    return answer


def bedrock_answer(cache: PrefixCache, steps: int) -> Callable[[Request], Reply]:
    def answer(request: Request) -> Reply:
        read, written, rest = cache.count(bedrock_blocks(request.json))
        usage = {
            "inputTokens": rest,
            "cacheReadInputTokens": read,
            "cacheWriteInputTokens": written,
            "outputTokens": 20,
        }
        number = len(cache.requests)
        blocks = (
            [converse.reasoning("hm"), converse.tool_use("search", {"query": str(number)}, id=f"tooluse_{number}")]
            if number < steps
            else [converse.text("Found.")]
        )
        events = converse.message(*blocks, usage=usage)
        return Reply(200, {"content-type": CONTENT_TYPE}, [converse.encoded(event) for event in events])

    return answer


@pytest.mark.asyncio
@pytest.mark.parametrize("lifetime", ["5m", "1h"])
async def test_most_of_a_growing_prompt_is_read_from_the_cache(lifetime: Any) -> None:
    """Ten steps whose tool results grow; without markers nothing would be read."""
    cache = PrefixCache()
    with AnthropicServer() as server:
        server.route(anthropic_answer(cache, 10))
        async with server.client() as client:
            adapter = AnthropicAdapter(client, model="claude-test", cache=lifetime)
            result = await Turn(adapter, "Look it up.", tools=[search], system=SYSTEM).result()
        bodies = server.messages
    assert (result.steps, result.text) == (10, "Found.")
    assert cache.share == pytest.approx(0.76, abs=0.03)
    read, *_ = zip(*cache.requests, strict=True)
    assert list(read) == sorted(read), "every step reads what the steps before it wrote"
    assert result.usage.cache_read_tokens == sum(read)
    for body in bodies:
        markers = [block["cache_control"] for block in _blocks(body) if "cache_control" in block]
        assert markers == [EPHEMERAL if lifetime == "5m" else {**EPHEMERAL, "ttl": "1h"}] * min(
            3, len(body["messages"]) + 1
        )
    assert "cache_control" not in str(result.conversation), "the conversation has none of it"


@pytest.mark.asyncio
async def test_the_same_on_bedrock() -> None:
    cache = PrefixCache()
    with BedrockServer() as server:
        server.route(bedrock_answer(cache, 10))
        client = server.client()
        adapter = BedrockAdapter(client, model="us.anthropic.claude-sonnet-4-5-20250929-v1:0")
        result = await Turn(adapter, "Look it up.", tools=[search], system=SYSTEM).result()
        client.close()
    assert (result.steps, result.text) == (10, "Found.")
    assert cache.share == pytest.approx(0.76, abs=0.03)
    assert result.usage.cache_read_tokens == sum(read for read, *_ in cache.requests)
    assert "cachePoint" not in str(result.conversation)


@pytest.mark.asyncio
async def test_markers_never_pile_up() -> None:
    cache = PrefixCache()
    with AnthropicServer() as server:
        server.route(anthropic_answer(cache, 30))
        async with server.client() as client:
            adapter = AnthropicAdapter(client, model="claude-test")
            turn = Turn(adapter, "Look it up.", tools=[search], system=SYSTEM, max_steps=40, reclaim=None)
            result = await turn.result()
        counts = [sum("cache_control" in block for block in _blocks(body)) for body in server.messages]
    assert result.steps == 30
    assert counts == [2, *[3] * 29]


def _blocks(body: dict[str, Any]) -> list[dict[str, Any]]:
    blocks = [*body.get("tools", ()), *(body["system"] if isinstance(body.get("system"), list) else ())]
    for message in body["messages"]:
        blocks += message["content"] if isinstance(message["content"], list) else []
    return blocks


def anthropic_request(step: Step, **fields: Any) -> dict[str, Any]:
    from anthropic import AsyncAnthropic

    return AnthropicAdapter(AsyncAnthropic(api_key="test-key"), **{"model": "claude-test", **fields}).request(step)


def step(**fields: Any) -> Step:
    return Step(0, **{"conversation": [{"role": "user", "content": "hello"}], **fields})


def test_inputs_stay_as_they_are() -> None:
    conversation: list[dict[str, Any]] = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": [{"type": "text", "text": "yes?"}]},
        {"role": "user", "content": [{"type": "text", "text": "go on"}]},
    ]
    system = [{"type": "text", "text": "Be brief."}]
    native = {"type": "web_search_20250305", "name": "web_search"}
    given = copy.deepcopy([conversation, system, native])
    request = anthropic_request(step(conversation=conversation, system=system, tools=[native]))
    assert [conversation, system, native] == given
    assert request["system"] == [{"type": "text", "text": "Be brief.", "cache_control": EPHEMERAL}]
    assert request["messages"][0]["content"] == [{"type": "text", "text": "hello", "cache_control": EPHEMERAL}]
    assert request["messages"][2]["content"] == [{"type": "text", "text": "go on", "cache_control": EPHEMERAL}]
    assert request["tools"] == [native]


def test_the_last_tool_without_a_system_prompt() -> None:
    one, two = (ToolDeclaration(name, "", {"type": "object"}) for name in ("one", "two"))
    tools = anthropic_request(step(tools=[one, two]))["tools"]
    assert ["cache_control" in item for item in tools] == [False, True]


def test_the_callers_own_markers_stay_and_count() -> None:
    marked = {"type": "text", "text": "x", "cache_control": EPHEMERAL}
    conversation = [{"role": "user", "content": [marked, marked, marked]}, *[{"role": "user", "content": "y"}] * 3]
    request = anthropic_request(step(conversation=conversation, system="Be brief."))
    assert sum("cache_control" in block for block in _blocks(request)) == 4
    assert request["system"][0]["cache_control"] == EPHEMERAL


def test_markers_in_the_results_of_tools_count() -> None:
    marked = {"type": "text", "text": "x", "cache_control": EPHEMERAL}
    answer = {"type": "tool_result", "tool_use_id": "t", "content": [marked]}
    conversation = [{"role": "user", "content": "x"}, *[{"role": "user", "content": [answer]}] * 3]
    request = anthropic_request(step(conversation=conversation, system="Be brief."))
    assert json.dumps(request).count("cache_control") == 4


@pytest.mark.parametrize("fields", [{"cache": None}, {"cache_control": EPHEMERAL}])
def test_it_can_be_left_to_the_provider_or_to_nobody(fields: dict[str, Any]) -> None:
    request = anthropic_request(step(system="Be brief."), **fields)
    assert request["system"] == "Be brief."
    assert not any("cache_control" in block for block in _blocks(request))


@pytest.mark.parametrize("cache", ["10m", True])
def test_a_lifetime_that_there_is_not(cache: Any) -> None:
    with pytest.raises(ConfigurationError, match="cache must be '5m', '1h' or None"):
        anthropic_request(step(), cache=cache)


def bedrock_request(step: Step, model: str, **fields: Any) -> dict[str, Any]:
    with BedrockServer() as server:
        client = server.client()
        try:
            return BedrockAdapter(client, model=model, **fields).request(step)
        finally:
            client.close()


POINT = {"cachePoint": {"type": "default"}}
TOOL = Tool.from_schema("one", "", {"type": "object"}, lambda arguments: None).declaration


@pytest.mark.parametrize(
    ("model", "places"),
    [
        ("anthropic.claude-sonnet-4-5-v1:0", {"system", "messages"}),
        ("us.amazon.nova-pro-v1:0", {"system", "messages"}),
        ("meta.llama3-1-70b-instruct-v1:0", set()),
        ("anthropic.claude-3-haiku-20240307-v1:0", set()),
        ("arn:aws:bedrock:us-east-1:000000000000:application-inference-profile/x", set()),
    ],
)
def test_bedrock_marks_for_the_models_that_take_it(model: str, places: set[str]) -> None:
    request = bedrock_request(step(conversation=[{"role": "user", "content": [{"text": "x"}]}], system="y"), model)
    found = {"system"} if POINT in request["system"] else set()
    assert found | ({"messages"} if POINT in request["messages"][0]["content"] else set()) == places


def test_nova_takes_none_among_its_tools() -> None:
    asked = step(conversation=[{"role": "user", "content": [{"text": "x"}]}], tools=[TOOL])
    nova, claude = (bedrock_request(asked, f"{name}") for name in ("amazon.nova-pro-v1:0", "anthropic.claude-opus-4-5"))
    assert POINT not in nova["toolConfig"]["tools"]
    assert claude["toolConfig"]["tools"][-1] == POINT


def test_bedrock_marks_behind_what_may_be_followed_by_a_marker() -> None:
    document = {"document": {"format": "txt", "name": "a", "source": {"text": "x"}}}
    asked = step(conversation=[{"role": "user", "content": [{"text": "x"}, document]}])
    request = bedrock_request(asked, "any", cache="1h")
    hour = {"cachePoint": {"type": "default", "ttl": "1h"}}
    assert request["messages"][0]["content"] == [{"text": "x"}, hour, document]
    assert bedrock_request(asked, "anthropic.claude-opus-4-5", cache=None)["messages"] == list(asked.conversation)
