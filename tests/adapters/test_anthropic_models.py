"""What Claude models differ in, told by their names on every platform."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rxloop.adapters.anthropic import AnthropicAdapter
from rxloop.adapters.anthropic_models import always_thinks, binds_thinking, has_structured_outputs, thinks_by_default
from rxloop.adapters.bedrock import BedrockAdapter
from rxloop.reclaim import window_of
from rxloop.steps import OutputRequest, Step
from rxloop.tools import Tool, tool
from rxloop.turn import Turn
from tests.providers import bedrock as converse
from tests.providers.anthropic import AnthropicServer, text, thinking, tool_use
from tests.providers.bedrock import BedrockServer
from tests.turns import NO_RETRY, add, connected

MODELS = [
    # name, structured outputs, thinks by default, always, binds, window
    ("claude-2.1", False, False, False, False, None),
    ("claude-3-5-haiku-20241022", False, False, False, False, 200_000),
    ("claude-3-7-sonnet@20250219", False, False, False, False, 200_000),
    ("claude-sonnet-4-20250514", False, False, False, False, 200_000),
    ("claude-opus-4@20250514", False, False, False, False, 200_000),
    ("claude-opus-4-0", False, False, False, False, 200_000),
    ("claude-opus-4-1-20250805", True, False, False, False, 200_000),
    ("claude-haiku-4-5", True, False, False, False, 200_000),
    ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", True, False, False, False, 200_000),
    ("claude-opus-4-6", True, False, False, False, 1_000_000),
    ("claude-sonnet-5", True, True, False, False, 1_000_000),
    ("claude-opus-5", True, True, False, False, 1_000_000),
    ("claude-fable-5", True, True, True, False, 1_000_000),
    ("claude-fable-5-1", True, True, True, True, 1_000_000),
    ("claude-fable-5-20260901", True, True, True, False, 1_000_000),
    ("claude-fable-5-1-20261002", True, True, True, True, 1_000_000),
    ("claude-mythos-5-2", True, True, True, True, 1_000_000),
    ("claude-sonnet-5-5", True, True, True, True, 1_000_000),
    ("global.anthropic.claude-opus-5-5-v1:0", True, True, True, True, 1_000_000),
    ("claude-haiku-5-5", True, True, True, True, 1_000_000),
    ("claude-opus-6", True, True, True, True, None),
    ("claude-test", True, False, False, False, None),
]


@pytest.mark.parametrize(("model", "outputs", "default", "always", "binds", "window"), MODELS)
def test_what_is_told_by_a_name(
    model: str, outputs: bool, default: bool, always: bool, binds: bool, window: int | None
) -> None:
    assert has_structured_outputs(model) is outputs
    assert thinks_by_default(model) is default
    assert always_thinks(model) is always
    assert binds_thinking(model) is binds
    assert window_of(model) == window


def asked(how: Any, model: str, **fields: Any) -> dict[str, Any]:
    from anthropic import AsyncAnthropic

    adapter = AnthropicAdapter(AsyncAnthropic(api_key="test-key"), model=model, cache=None, **fields)
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    declared = Tool.from_schema("final_result", "", schema, lambda arguments: None).declaration
    conversation = [{"role": "user", "content": "x"}]
    request = adapter.request(Step(0, conversation, tools=[declared], output=OutputRequest(schema, how)))
    return {key: request[key] for key in ("tool_choice", "thinking") if key in request}


ANY = {"type": "any"}
FORCED = {"type": "tool", "name": "final_result"}
OFF = {"type": "disabled"}
ON = {"type": "enabled", "budget_tokens": 2000}


@pytest.mark.parametrize(
    ("how", "model", "fields", "sent"),
    [
        ("offered", "claude-test", {}, {}),
        ("required", "claude-test", {}, {"tool_choice": ANY}),
        ("forced", "claude-test", {}, {"tool_choice": FORCED}),
        # thinking and a forced choice exclude each other
        ("required", "claude-test", {"thinking": ON}, {"thinking": ON}),
        ("forced", "claude-test", {"thinking": ON}, {"tool_choice": FORCED, "thinking": OFF}),
        ("required", "claude-test", {"thinking": OFF}, {"tool_choice": ANY, "thinking": OFF}),
        # where it is on unless it is turned off
        ("required", "claude-opus-5", {}, {}),
        ("forced", "claude-opus-5", {}, {"tool_choice": FORCED, "thinking": OFF}),
        ("required", "claude-opus-5", {"thinking": OFF}, {"tool_choice": ANY, "thinking": OFF}),
        # where it cannot be turned off no choice can be forced
        ("required", "claude-opus-5-5", {}, {}),
        ("forced", "claude-opus-5-5", {}, {}),
    ],
)
def test_how_an_answer_is_asked_for(how: str, model: str, fields: dict[str, Any], sent: dict[str, Any]) -> None:
    assert asked(how, model, **fields) == sent


CITY = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@pytest.mark.asyncio
async def test_a_model_that_cannot_be_forced_is_told() -> None:
    from rxloop.output import Output

    with AnthropicServer() as server:
        server.reply(thinking("hm", signature="one"), tool_use("add", {"a": 1, "b": 2}))
        server.reply(thinking("ha", signature="two"), tool_use("final_result", {"name": "Rome"}))
        async with connected(server, model="claude-opus-5-5") as adapter:
            output = Output(CITY, mode="coercive")
            result = await Turn(adapter, "x", tools=[add], output=output, max_steps=2, retry=NO_RETRY).result()
        first, second = server.messages
    assert result.output == {"name": "Rome"}
    assert "tool_choice" not in first
    assert "tool_choice" not in second
    reminder = second["messages"][-1]["content"][-1]
    assert reminder == {"type": "text", "text": "Give the answer by calling the tool final_result."}
    # what the model has thought is bound to it
    assert result.conversation[: len(second["messages"])] == second["messages"]


@tool
async def extra() -> str:
    """A tool that is found later."""
    return "found"


@pytest.mark.asyncio
@pytest.mark.parametrize(("model", "kept"), [("claude-opus-5-5", False), ("claude-opus-4-6", True)])
async def test_thinking_goes_where_the_tools_before_it_have_changed(model: str, kept: bool) -> None:
    tools = [add]
    with AnthropicServer() as server:
        server.reply(thinking("hm", signature="one"), tool_use("add", {"a": 1, "b": 2}))
        server.reply(thinking("ha", signature="two"), tool_use("add", {"a": 1, "b": 2}, id="toolu_2"))
        server.reply(text("Done."))
        async with connected(server, model=model) as adapter:
            turn = Turn(
                adapter, "x", tools=lambda: [*tools, extra] if len(server.requests) > 1 else tools, retry=NO_RETRY
            )
            await turn.result()
        bodies = [json.dumps(body) for body in server.messages]
    assert '"one"' in bodies[1]
    assert ('"one"' in bodies[2]) is kept
    assert ('"two"' in bodies[2]) is kept


@pytest.mark.asyncio
async def test_bedrock_keeps_to_the_same_rule() -> None:
    tools = [add]
    with BedrockServer() as server:
        server.reply(converse.reasoning("hm", "one"), converse.tool_use("add", {"a": 1, "b": 2}))
        server.reply(converse.text("Done."))
        client = server.client()
        adapter = BedrockAdapter(client, model="global.anthropic.claude-opus-5-5-v1:0")
        turn = Turn(adapter, "x", tools=lambda: [*tools, extra] if server.requests else tools, retry=NO_RETRY)
        result = await turn.result()
        client.close()
        assert "reasoningContent" not in json.dumps(server.bodies[1])
    assert result.text == "Done."
