"""What the Anthropic adapter sends."""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import Anthropic, AsyncAnthropic

from rxloop.adapters.anthropic import AnthropicAdapter, check_pairs
from rxloop.errors import ConfigurationError
from rxloop.steps import Step, StepResult, ToolCall, ToolResult
from rxloop.tools import Tool, tool
from rxloop.turn import Turn
from rxloop.usage import Usage
from tests.providers.anthropic import AnthropicServer, message, sse, text, thinking, tool_use
from tests.turns import NO_RETRY, add, check_sent, connected, run

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
DOCUMENT = {"type": "document", "source": {"type": "url", "url": "https://example.org/a.pdf"}}


@pytest.fixture
def server() -> Iterator[AnthropicServer]:
    with AnthropicServer() as server:
        yield server


async def sent(server: AnthropicServer, prompt: Any = "hello", fields: Any = None, **options: Any) -> dict[str, Any]:
    """The body of the request of a turn with one step."""
    server.reply(text("5"))
    async with connected(server, **(fields or {})) as adapter:
        recorder = await run(adapter, prompt, **{"tools": [], **options})
    assert recorder.error is None, recorder.error
    body: dict[str, Any] = server.messages[-1]
    return body


async def answered(server: AnthropicServer, *tools: Any, calls: list[Any]) -> list[dict[str, Any]]:
    """The results that a step's calls are answered with on the wire."""
    server.reply(*calls)
    server.reply(text("done"))
    async with connected(server) as adapter:
        await run(adapter, tools=tools)
    return list(check_sent(server.messages[-1])[-1]["content"])


# the body


@pytest.mark.asyncio
async def test_the_smallest_request(server: AnthropicServer) -> None:
    assert await sent(server) == {
        "model": "claude-test",
        "max_tokens": 8192,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
        "stream": True,
    }


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "system", ["Be brief.", [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]]
)
async def test_a_system_prompt(server: AnthropicServer, system: Any) -> None:
    assert (await sent(server, system=system))["system"] == system


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("prompt", "content"),
    [
        ("hello", [{"type": "text", "text": "hello"}]),
        (IMAGE, [IMAGE]),
        ([IMAGE, DOCUMENT, "What is this?"], [IMAGE, DOCUMENT, {"type": "text", "text": "What is this?"}]),
        ((IMAGE,), [IMAGE]),
        ({"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}, None),
    ],
)
async def test_a_prompt_may_have_images_and_documents(server: AnthropicServer, prompt: Any, content: Any) -> None:
    (only,) = (await sent(server, prompt))["messages"]
    assert only == {"role": "user", "content": content or [prompt]}


@pytest.mark.asyncio
async def test_known_fields_pass_through(server: AnthropicServer) -> None:
    fields: dict[str, Any] = {
        "max_tokens": 100,
        "temperature": 0.5,
        "top_p": 0.9,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "stop_sequences": ["END"],
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
    }
    body = await sent(server, fields=fields, tools=[add])
    assert {key: body[key] for key in fields} == fields


@pytest.mark.asyncio
async def test_unknown_fields_go_into_the_body_as_they_are(server: AnthropicServer) -> None:
    fields = {"a_future_field": {"x": [1]}, "temperature": 0.5, "extra_body": {"own": 1}}
    body = await sent(server, fields=fields)
    assert (body["a_future_field"], body["own"], body["temperature"]) == ({"x": [1]}, 1, 0.5)
    assert "extra_body" not in body
    assert fields["extra_body"] == {"own": 1}


@pytest.mark.asyncio
async def test_the_sdks_own_options_are_not_of_the_body(server: AnthropicServer) -> None:
    fields = {"extra_headers": {"x-own": "1"}, "extra_query": {"own": "1"}, "timeout": 30}
    body = await sent(server, fields=fields)
    assert set(body) == {"model", "max_tokens", "messages", "stream"}
    assert server.requests[0].headers["x-own"] == "1"
    assert server.requests[0].query == "own=1"


@pytest.mark.asyncio
async def test_betas_go_to_the_beta_endpoint(server: AnthropicServer) -> None:
    edits = {"edits": [{"type": "clear_tool_uses_20250919"}]}
    fields = {"betas": ["context-management-2025-06-27", "other"], "context_management": edits}
    server.reply(text("5"))
    async with connected(server, **fields) as adapter:
        recorder = await run(adapter)
    assert recorder.finished.text == "5"
    (request,) = server.requests
    assert request.path == "/v1/messages"
    assert request.headers["anthropic-beta"] == "context-management-2025-06-27,other"
    assert request.json["context_management"] == edits
    assert "betas" not in request.json


# tools


@pytest.mark.asyncio
@pytest.mark.parametrize("tools", [[], (), list], ids=["list", "tuple", "callable"])
async def test_without_tools_the_field_is_absent(server: AnthropicServer, tools: Any) -> None:
    assert "tools" not in await sent(server, tools=tools)


@pytest.mark.asyncio
async def test_a_declaration(server: AnthropicServer) -> None:
    body = await sent(server, tools=[add])
    (declared,) = body["tools"]
    assert (declared["name"], declared["description"]) == ("add", "Add two numbers.")
    schema = declared["input_schema"]
    assert schema["type"] == "object"
    assert schema["properties"] == {"a": {"type": "integer"}, "b": {"type": "integer"}}
    assert schema["required"] == ["a", "b"]


@pytest.mark.asyncio
async def test_further_fields_of_a_declaration(server: AnthropicServer) -> None:
    @tool(fields={"cache_control": {"type": "ephemeral"}, "input_examples": [{"x": 1}]})
    async def marked(x: int) -> int:
        return x

    (declared,) = (await sent(server, tools=[marked]))["tools"]
    assert declared["cache_control"] == {"type": "ephemeral"}
    assert declared["input_examples"] == [{"x": 1}]
    assert "description" not in declared, "an empty one is refused"


@pytest.mark.asyncio
async def test_tools_that_the_provider_runs_or_defines(server: AnthropicServer) -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}

    @tool(fields={"type": "bash_20250124"})
    async def bash(command: str = "", restart: bool = False) -> str:
        """Run a command."""
        return f"ran {command}"

    body = await sent(server, tools=[search, bash, add])
    assert body["tools"][0] == search
    assert body["tools"][1] == {"type": "bash_20250124", "name": "bash"}, "the API knows its schema"
    assert body["tools"][2]["name"] == "add"


@pytest.mark.asyncio
async def test_names_are_made_valid_and_come_back(server: AnthropicServer) -> None:
    long = "n" * 99
    names = ["my/tool", "my-tool", f"{long}1", f"{long}2"]

    def named(name: str) -> Tool:
        @tool(name=name)
        async def echo() -> str:
            return name

        return echo

    tools = [named(name) for name in names]
    await sent(server, tools=tools)
    aliases = [item["name"] for item in server.messages[0]["tools"]]
    assert aliases[1] == "my-tool"
    assert len(set(aliases)) == 4
    server.reply(*(tool_use(alias, {}, id=f"toolu_{index}") for index, alias in enumerate(aliases)))
    server.reply(text("done"))
    async with connected(server) as adapter:
        recorder = await run(adapter, tools=tools)
    assert [call.name for call in recorder.finished.tool_calls] == names
    assert recorder.result is not None
    assert [item.output for item in recorder.result.tool_results] == names
    history = check_sent(server.messages[2])
    assert [block["name"] for block in history[1]["content"]] == aliases, "history has the provider's names"


@pytest.mark.asyncio
async def test_a_forced_tool_has_the_providers_name_too(server: AnthropicServer) -> None:
    @tool(name="my/tool")
    async def mine() -> None:
        """Be mine."""

    choice = {"type": "tool", "name": "my/tool"}
    body = await sent(server, fields={"tool_choice": choice}, tools=[mine])
    assert body["tool_choice"] == {"type": "tool", "name": body["tools"][0]["name"]}
    assert choice == {"type": "tool", "name": "my/tool"}
    assert (await sent(server, fields={"tool_choice": {"type": "auto"}}, tools=[mine]))["tool_choice"] == {
        "type": "auto"
    }


# results


def _returning(value: Any) -> Tool:
    @tool(name="give")
    async def give() -> Any:
        return value

    return give


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("output", "content"),
    [
        (None, None),
        ("", None),
        ("text", "text"),
        (0, "0"),
        (False, "false"),
        (2.5, "2.5"),
        ({}, "{}"),
        ({"ü": [1, None]}, '{"ü":[1,null]}'),
        ([], "[]"),
        ([1, "a"], '[1,"a"]'),
        ([{"type": "text", "text": "a"}], [{"type": "text", "text": "a"}]),
        ([IMAGE, {"type": "text", "text": "a"}, DOCUMENT], [IMAGE, {"type": "text", "text": "a"}, DOCUMENT]),
        ([{"type": "text", "text": ""}, IMAGE], [IMAGE]),
        ([{"type": "text", "text": " "}], None),
        (
            [{"type": "image", "url": "a row of the caller's own"}],
            '[{"type":"image","url":"a row of the caller\'s own"}]',
        ),
        ([{"type": "text", "text": "a"}, {"type": "row"}], '[{"type":"text","text":"a"},{"type":"row"}]'),
        (IMAGE, [IMAGE]),
        ({"type": "text", "text": "a"}, [{"type": "text", "text": "a"}]),
        ({"type": "text", "words": "a"}, '{"type":"text","words":"a"}'),
    ],
)
async def test_what_a_tool_returns(server: AnthropicServer, output: Any, content: Any) -> None:
    (result,) = await answered(server, _returning(output), calls=[tool_use("give", {}, id="1")])
    expected: dict[str, Any] = {"type": "tool_result", "tool_use_id": "1"}
    assert result == (expected if content is None else {**expected, "content": content})


@pytest.mark.asyncio
async def test_all_results_of_a_step_are_in_one_message_in_call_order(server: AnthropicServer) -> None:
    @tool
    async def fail() -> None:
        raise ValueError("no")

    calls = [
        tool_use("add", {"a": 1, "b": 2}, id="1"),
        tool_use("fail", {}, id="2"),
        tool_use("nobody", {}, id="3"),
        tool_use("add", '{"a": 1', id="4"),
        tool_use("add", {"a": "x"}, id="5"),
    ]
    results = await answered(server, add, fail, calls=calls)
    assert [block["type"] for block in results] == ["tool_result"] * 5
    assert [block["tool_use_id"] for block in results] == ["1", "2", "3", "4", "5"]
    assert [block.get("is_error") for block in results] == [None, True, True, True, True]
    assert results[1]["content"] == "the tool failed: ValueError: no"
    assert all(block["content"] for block in results)


@pytest.mark.asyncio
async def test_a_prompt_joins_the_results_that_wait(server: AnthropicServer) -> None:
    server.reply(tool_use("add", {"a": 1, "b": 2}, id="1"))
    server.reply(text("done"))
    async with connected(server) as adapter:
        capped = await run(adapter, max_steps=1)
        assert capped.result is not None
        before = copy.deepcopy(capped.result.conversation)
        await run(adapter, ["go on", IMAGE], conversation=capped.result.conversation)
        assert capped.result.conversation == before
    last = check_sent(server.messages[1])[-1]
    assert last["role"] == "user"
    assert last["content"] == [
        {"type": "tool_result", "tool_use_id": "1", "content": "3"},
        {"type": "text", "text": "go on"},
        IMAGE,
    ]


@pytest.mark.asyncio
async def test_a_prompt_joins_a_text_that_waits(server: AnthropicServer) -> None:
    conversation = [{"role": "user", "content": "first"}]
    body = await sent(server, "second", conversation=conversation)
    assert body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "first"}, {"type": "text", "text": "second"}]}
    ]
    assert conversation == [{"role": "user", "content": "first"}]


@pytest.mark.asyncio
async def test_a_conversation_may_go_on_as_it_is(server: AnthropicServer) -> None:
    conversation = [
        {"role": "user", "content": "2+3?"},
        {"role": "assistant", "content": "The answer is"},
    ]
    assert (await sent(server, None, conversation=conversation))["messages"] == conversation


@pytest.mark.asyncio
async def test_nothing_that_was_given_is_changed(server: AnthropicServer) -> None:
    conversation: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "2+3?"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "0", "name": "add", "input": {"a": 2, "b": 3}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "0", "content": "5"}]},
    ]
    prompt = [IMAGE, "and this?"]
    system = [{"type": "text", "text": "Be brief."}]
    fields: dict[str, Any] = {"metadata": {"user_id": "u"}, "extra_body": {"x": 1}, "odd": {"y": 2}}
    tools = [{"type": "web_search_20250305", "name": "web_search"}, add]
    values = (conversation, prompt, system, fields)
    before = copy.deepcopy(values)
    server.reply(thinking("hm"), tool_use("add", {"a": 1, "b": 2}, id="1"))
    server.reply(text("done"))
    async with connected(server, **fields) as adapter:
        recorder = await run(adapter, prompt, conversation=conversation, system=system, tools=tools)
        assert recorder.error is None
    assert values == before
    assert len(tools) == 2


# pairs


def _user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def _assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def _call(call_id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "f", "input": {}}


def _result(call_id: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id}


TEXT = {"type": "text", "text": "a"}


@pytest.mark.parametrize(
    "conversation",
    [
        [],
        [_user(TEXT)],
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
        [_user(TEXT), _assistant(TEXT, _call("1"), _call("2")), _user(_result("2"), _result("1"), TEXT)],
        [_user(TEXT), _assistant(_call("1")), _user(_result("1")), _assistant(_call("1")), _user(_result("1"))],
        [_user(TEXT), _assistant({"type": "server_tool_use", "id": "s", "name": "x", "input": {}})],
    ],
)
def test_a_conversation_in_order(conversation: list[Any]) -> None:
    check_pairs(conversation)


@pytest.mark.parametrize(
    ("conversation", "rule"),
    [
        ([_user(TEXT), _assistant(_call("1"))], "'1' has none"),
        ([_user(TEXT), _assistant(_call("1")), _user(TEXT)], "'1' has none"),
        ([_user(TEXT), _assistant(_call("1"), _call("2")), _user(_result("2"))], "'1' has none"),
        ([_user(TEXT), _assistant(_call("1")), _assistant(TEXT), _user(_result("1"))], "'1' has none"),
        ([_user(_result("1"))], "'1' does not"),
        ([_user(TEXT), _assistant(_call("1")), _user(_result("1"), _result("1"))], "'1' does not"),
        ([_user(TEXT), _assistant(_call("1")), _user(_result("1")), _user(_result("1"))], "'1' does not"),
        ([_user(TEXT), _assistant(TEXT), _user(_result("9"))], "'9' does not"),
    ],
)
def test_a_conversation_that_would_be_refused(conversation: list[Any], rule: str) -> None:
    with pytest.raises(ConfigurationError, match=rule):
        check_pairs(conversation)
    with pytest.raises(ConfigurationError, match=rule):
        Turn(_adapter(), "go on", conversation=conversation)


# from step to step


@pytest.mark.asyncio
async def test_a_container_is_sent_with_the_next_step_and_not_with_the_next_turn(server: AnthropicServer) -> None:
    def started(*blocks: Any) -> list[bytes]:
        events = message(*blocks)
        start = {"type": "message_start", "message": {"usage": {}, "container": {"id": "container_1"}}}
        return [sse(start), *events[1:]]

    server.reply_events(*started(tool_use("add", {"a": 1, "b": 2}, id="1")))
    server.reply(tool_use("add", {"a": 1, "b": 2}, id="2"))
    server.reply(text("done"))
    server.reply(text("again"))
    async with connected(server) as adapter:
        turn = Turn(adapter, "hello", tools=[add])
        assert (await turn.result()).steps == 3
        await turn.result()
    assert [body.get("container") for body in server.messages] == [None, "container_1", "container_1", None]


@pytest.mark.asyncio
async def test_history_is_only_added_to(server: AnthropicServer) -> None:
    """What was sent once is sent again byte for byte: a prompt cache depends on it."""
    for number in range(3):
        server.reply(
            thinking("hm", signature=f"s{number}"), text("x"), tool_use("add", {"a": 1, "b": 2}, id=f"{number}")
        )
    server.reply(text("done"))
    async with connected(server) as adapter:
        await run(adapter)
    bodies = server.messages
    for earlier, later in itertools.pairwise(bodies):
        assert later["messages"][: len(earlier["messages"])] == earlier["messages"]
        assert later["tools"] == earlier["tools"]


@pytest.mark.asyncio
@pytest.mark.parametrize("retries", [0, 5])
async def test_the_sdks_own_retries_are_off(server: AnthropicServer, retries: int) -> None:
    server.fail(529, "overloaded_error")
    async with connected(server, server.client(max_retries=retries)) as adapter:
        recorder = await run(adapter, retry=NO_RETRY)
        assert recorder.error is not None
        await server.idle()
    assert len(server.requests) == 1
    assert server.requests[0].headers["x-stainless-retry-count"] == "0"


def test_the_pure_request() -> None:
    adapter = _adapter(stop_sequences=["END"])
    step = Step(0, [_user(TEXT)], "Be brief.", [add.declaration], {"container": "c"})
    request = adapter.request(step)
    assert request["messages"] == [_user(TEXT)]
    assert request["messages"] is not step.conversation
    assert (request["system"], request["stop_sequences"], request["container"]) == ("Be brief.", ["END"], "c")
    assert request == adapter.request(step)


def test_a_reply_without_content_adds_nothing() -> None:
    reply = StepResult("", (ToolCall("1", "f", {}),), Usage(), "content-filter", message=None)
    results = [ToolResult("1", "f", error="not run")]
    assert _adapter().append([_user(TEXT)], reply, results) == [_user(TEXT)]


# the client


def _adapter(**fields: Any) -> AnthropicAdapter:
    return AnthropicAdapter(AsyncAnthropic(api_key="test-key"), model="claude-test", **{"cache": None, **fields})


@pytest.mark.asyncio
async def test_the_default_client_is_the_adapters_to_close(
    server: AnthropicServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "test-key")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    server.reply(text("5"))
    async with AnthropicAdapter(model="claude-test") as adapter:
        assert (await run(adapter)).finished.text == "5"
        assert not adapter.client.is_closed()
    assert adapter.client.is_closed()


@pytest.mark.asyncio
async def test_a_client_that_was_given_stays_open(server: AnthropicServer) -> None:
    async with server.client() as client:
        async with AnthropicAdapter(client, model="claude-test"):
            pass
        assert not client.is_closed()


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"model": ""}, "model must be a non-empty string, but got ''"),
        ({"model": None}, "model must be a non-empty string, but got None"),
        ({"max_tokens": 0}, "max_tokens must be a whole number >= 1, but got 0"),
        ({"messages": []}, "'messages' is the turn's to send"),
        ({"system": "x"}, "'system' is the turn's to send"),
        ({"tools": []}, "'tools' is the turn's to send"),
        ({"stream": False}, "'stream' is the turn's to send"),
        ({"client": object()}, "client must be an AsyncAnthropic or one of its flavours, but got object"),
        ({"client": "claude"}, "client must be an AsyncAnthropic or one of its flavours, but got str"),
    ],
)
def test_values_that_can_never_work(options: dict[str, Any], rule: str) -> None:
    client = AsyncAnthropic(api_key="test-key")
    with pytest.raises(ConfigurationError, match=rule):
        AnthropicAdapter(**{"client": client, "model": "claude-test", **options})


def test_a_synchronous_client_is_refused() -> None:
    rule = "client must be asynchronous, but got Anthropic: use AsyncAnthropic"
    with Anthropic(api_key="test-key") as client, pytest.raises(ConfigurationError, match=rule):
        AnthropicAdapter(client, model="claude-test")


def test_a_missing_sdk_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anthropic", None)
    with pytest.raises(ConfigurationError, match=r'pip install "rxloop\[anthropic\]"') as caught:
        AnthropicAdapter(model="claude-test")
    assert isinstance(caught.value.__cause__, ImportError)


@pytest.mark.asyncio
async def test_a_turn_that_is_not_subscribed_sends_nothing(server: AnthropicServer) -> None:
    async with connected(server) as adapter:
        Turn(adapter, "hello", tools=[add])
    assert not server.requests


@pytest.mark.asyncio
async def test_a_tool_that_the_provider_knows_and_the_caller_runs(server: AnthropicServer) -> None:
    native = {"type": "bash_20250124", "name": "bash"}

    @tool
    async def bash(command: str) -> str:
        """Run it."""
        return f"ran {command}"

    server.reply(tool_use("bash", {"command": "ls"}))
    server.reply(text("done"))
    async with connected(server) as adapter:
        result = await Turn(adapter, "list", tools=[native, bash]).result()
    assert [sent["tools"] for sent in server.messages] == [[native], [native]]
    assert result.tool_results[0].output == "ran ls"


@pytest.mark.asyncio
async def test_a_tool_choice_without_tools_is_not_sent(server: AnthropicServer) -> None:
    server.reply(text("hi"))
    async with connected(server, tool_choice={"type": "any"}) as adapter:
        await Turn(adapter, "hello").result()
    assert "tool_choice" not in server.messages[0]
