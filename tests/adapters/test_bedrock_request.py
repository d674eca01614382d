"""What the Bedrock adapter sends."""

from __future__ import annotations

import asyncio
import base64
import copy
import itertools
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import date
from types import SimpleNamespace
from typing import Any

import pytest

from rxloop.adapters.bedrock import BedrockAdapter, check_pairs
from rxloop.errors import ConfigurationError
from rxloop.steps import Step, ToolResult
from rxloop.tools import Tool, tool
from rxloop.turn import Turn
from tests.providers.bedrock import BedrockServer, raw_block, reasoning, text, tool_use
from tests.providers.http import Hold
from tests.providers.sagemaker import SageMakerServer
from tests.turns import NO_RETRY, add, run

__all__ = ["BYTES", "EVENTS", "MODEL", "check_sent", "connected", "every_way"]

MODEL = "anthropic.claude-sonnet-4-5-v1:0"
BYTES, EVENTS = "bytes", "public-events"
every_way = pytest.mark.parametrize("way", [BYTES, EVENTS])

SECRET = "very-secret"
PNG = b"\x89PNG\xff\xfe\x00"
PNG_TEXT = base64.b64encode(PNG).decode()
HELLO = {"role": "user", "content": [{"text": "hello"}]}
CACHE_POINT = {"cachePoint": {"type": "default"}}


@asynccontextmanager
async def connected(
    server: BedrockServer, way: str = BYTES, client: Any = None, **fields: Any
) -> AsyncIterator[BedrockAdapter]:
    """An adapter of the server, with the bytes or on the SDK's public events; its client is closed at the end."""
    client = client or server.client()
    try:
        adapter = BedrockAdapter(client, **{"model": MODEL, "cache": None, **fields})
        adapter._as_bytes = way == BYTES
        yield adapter
    finally:
        client.close()


def check_sent(body: dict[str, Any]) -> list[Any]:
    """The messages of a request, checked for what the API refuses."""
    messages = body["messages"]
    check_pairs(messages)
    for position, message in enumerate(messages):
        assert message["role"] == ("assistant" if position % 2 else "user"), "the roles take turns"
        assert message["content"], "a message must not be empty"
        for block in message["content"]:
            assert "text" not in block or block["text"].strip(), "text must not be blank"
            for kind in block.keys() & {"toolUse", "toolResult"}:
                assert re.fullmatch("[a-zA-Z0-9_-]{1,64}", block[kind]["toolUseId"])
            if "toolUse" in block:
                assert re.fullmatch("[a-zA-Z0-9_-]{1,64}", block["toolUse"]["name"])
                assert isinstance(block["toolUse"]["input"], dict)
                assert body["toolConfig"]["tools"], "a history with calls needs declarations"
            if "toolResult" in block:
                assert block["toolResult"]["content"], "a result must not be empty"
        results = ["toolResult" in block for block in message["content"]]
        # the provider's own stand where it gave them
        assert position % 2 or results == sorted(results, reverse=True), "results come first"
        assert "reasoningContent" not in message["content"][-1], "reasoning must not end a message"
    return list(messages)


@pytest.fixture
def server() -> Iterator[BedrockServer]:
    with BedrockServer() as server:
        yield server


@pytest.fixture
def client(server: BedrockServer) -> Iterator[Any]:
    client = server.client()
    yield client
    client.close()


@pytest.fixture
def adapter(client: Any) -> BedrockAdapter:
    return BedrockAdapter(client, model=MODEL, cache=None)


async def sent(
    server: BedrockServer, prompt: Any = "hello", fields: Any = None, way: str = BYTES, **options: Any
) -> dict[str, Any]:
    """The body of the request of a turn with one step."""
    server.reply(text("5"))
    async with connected(server, way, **(fields or {})) as adapter:
        recorder = await run(adapter, prompt, **{"tools": [], **options})
    assert recorder.error is None, recorder.error
    check_sent(server.bodies[-1])
    body: dict[str, Any] = server.bodies[-1]
    return body


def named(name: str) -> Tool:
    @tool(name=name)
    async def echo() -> str:
        return name

    return echo


def call_of(call_id: Any, name: str = "add") -> dict[str, Any]:
    return {"toolUse": {"toolUseId": call_id, "name": name, "input": {"a": 1}}}


def result_of(call_id: Any) -> dict[str, Any]:
    return {"toolResult": {"toolUseId": call_id, "content": [{"text": "2"}]}}


def history(call_id: Any = "1", name: str = "add") -> list[dict[str, Any]]:
    return [
        HELLO,
        {"role": "assistant", "content": [call_of(call_id, name)]},
        {"role": "user", "content": [result_of(call_id)]},
        {"role": "assistant", "content": [{"text": "It is 2."}]},
    ]


# the body


@every_way
@pytest.mark.asyncio
async def test_the_smallest_request(server: BedrockServer, way: str) -> None:
    assert await sent(server, way=way) == {"messages": [HELLO]}
    headers = server.requests[0].headers
    assert headers["content-type"] == "application/json"
    assert headers["content-length"] == str(len(server.requests[0].body))
    assert "boto" in headers["user-agent"].lower()


@every_way
@pytest.mark.asyncio
async def test_the_model_is_in_the_path(server: BedrockServer, way: str) -> None:
    models = [
        MODEL,
        "us.amazon.nova-pro-v1:0",
        "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-sonnet-4-5-v1:0",
        "arn:aws:bedrock:us-east-1:123456789012:prompt/ABCDEFGHIJ:1",
    ]
    for model in models:
        assert "modelId" not in await sent(server, fields={"model": model}, way=way)
    assert server.targets == models


@pytest.mark.asyncio
async def test_a_body_is_what_the_sdk_makes_of_keywords(server: BedrockServer) -> None:
    """The adapter writes the JSON itself; it must not differ from the SDK's."""
    prompt = [
        {"image": {"format": "png", "source": {"bytes": PNG}}},
        {"document": {"format": "pdf", "name": "d", "source": {"bytes": b"%PDF\xff"}}},
        {"video": {"format": "mp4", "source": {"bytes": b"\x00\xff"}}},
        {"guardContent": {"text": {"text": "watch this"}}},
        {"text": "What is ü \u2028 \U0001f30d?"},
        CACHE_POINT,
    ]
    fields = {
        "inferenceConfig": {"maxTokens": 100, "temperature": 0.5, "topP": 0.25, "stopSequences": ["END"]},
        "guardrailConfig": {"guardrailIdentifier": "g", "guardrailVersion": "1", "trace": "enabled"},
        "additionalModelRequestFields": {"thinking": {"type": "enabled", "budget_tokens": 1024}, "n": [1, None]},
        "additionalModelResponseFieldPaths": ["/stop_sequence"],
        "requestMetadata": {"team": "x"},
        "performanceConfig": {"latency": "optimized"},
        "toolConfig": {"toolChoice": {"tool": {"name": "add"}}},
    }
    system = [{"text": "Be brief."}, CACHE_POINT]
    reasoned = {"reasoningContent": {"redactedContent": b"\x00\xff"}}
    conversation = history()
    conversation[1] = {"role": "assistant", "content": [reasoned, call_of("1")]}
    before = copy.deepcopy([prompt, fields, system, conversation])
    body = await sent(server, prompt, fields, system=system, conversation=conversation, tools=[add, CACHE_POINT])
    assert [prompt, fields, system, conversation] == before
    server.reply(text("5"))
    plain = server.client()
    stream = plain.converse_stream(
        modelId=MODEL,
        messages=[*conversation, {"role": "user", "content": prompt}],
        system=system,
        **{**fields, "toolConfig": {"tools": body["toolConfig"]["tools"], "toolChoice": {"tool": {"name": "add"}}}},
    )["stream"]
    assert len(list(stream)) == 5
    stream.close()
    plain.close()
    assert server.bodies[-1] == body
    assert server.requests[-1].path == server.requests[0].path
    assert body["messages"][-1]["content"][0]["image"]["source"]["bytes"] == PNG_TEXT


@pytest.mark.asyncio
async def test_a_prompt_is_text_or_blocks(server: BedrockServer) -> None:
    image = {"image": {"format": "png", "source": {"bytes": PNG}}}
    encoded = {"image": {"format": "png", "source": {"bytes": PNG_TEXT}}}
    located = {"video": {"format": "mp4", "source": {"s3Location": {"uri": "s3://b/k"}}}}
    for prompt, content in (
        ("hello", [{"text": "hello"}]),
        ({"text": "hello"}, [{"text": "hello"}]),
        (("hello",), [{"text": "hello"}]),
        (image, [encoded]),
        (encoded, [encoded]),
        ([{"image": {"format": "png", "source": {"bytes": bytearray(PNG)}}}], [encoded]),
        ([image, located, "What is this?", CACHE_POINT], [encoded, located, {"text": "What is this?"}, CACHE_POINT]),
        ({"futureBlock": {"data": PNG}}, [{"futureBlock": {"data": PNG_TEXT}}]),
        ({"futureBlock": {"bytes": "as it is"}}, [{"futureBlock": {"bytes": "as it is"}}]),
    ):
        body = await sent(server, prompt)
        assert body["messages"] == [{"role": "user", "content": content}]


@pytest.mark.asyncio
async def test_a_system_prompt_is_text_or_blocks(server: BedrockServer) -> None:
    for system, blocks in (
        ("Be brief.", [{"text": "Be brief."}]),
        ({"text": "Be brief."}, [{"text": "Be brief."}]),
        (["Be brief.", {"text": "Be kind."}, CACHE_POINT], [{"text": "Be brief."}, {"text": "Be kind."}, CACHE_POINT]),
    ):
        assert (await sent(server, system=system))["system"] == blocks


@pytest.mark.parametrize("prompt", ["", "  \n", [], {}, 5, [5], [""], {"text": " "}, {"text": None}, [HELLO, ""]])
def test_a_prompt_that_says_nothing_is_refused(adapter: BedrockAdapter, prompt: Any) -> None:
    with pytest.raises(ConfigurationError, match="prompt must be non-empty text or content blocks"):
        Turn(adapter, prompt)
    with pytest.raises(ConfigurationError, match="needs a prompt or a conversation"):
        Turn(adapter, None)


@pytest.mark.parametrize("data", ["no base64!", "aGk", "ü", "aGk=\n"])
def test_bytes_that_are_no_base64_are_refused(adapter: BedrockAdapter, data: str) -> None:
    for kind in ("image", "document", "video"):
        block = {kind: {"source": {"bytes": data}}}
        for conversation, prompt in (([], block), ([{"role": "user", "content": [block]}], "hello")):
            with pytest.raises(ConfigurationError, match="bytes must be bytes or base64"):
                adapter.begin(conversation, prompt)
    # what only looks the same is data of the caller's or of the model's
    own = {"source": {"bytes": data}}
    said = history()
    said[1]["content"] = [{"toolUse": {"toolUseId": "1", "name": "add", "input": own}}]
    said[2]["content"] = [{"toolResult": {"toolUseId": "1", "content": [{"json": own}]}}]
    assert adapter.begin(said, None) == said


# fields


@pytest.mark.asyncio
async def test_members_of_inference_config_may_stand_alone(server: BedrockServer) -> None:
    for fields, config in (
        ({"max_tokens": 64}, {"maxTokens": 64}),
        (
            {"maxTokens": 64, "topP": 0.5, "stopSequences": ["x"]},
            {"maxTokens": 64, "topP": 0.5, "stopSequences": ["x"]},
        ),
        (
            {"temperature": 0, "top_p": 1, "stop_sequences": ("x",)},
            {"temperature": 0, "topP": 1, "stopSequences": ["x"]},
        ),
        ({"inferenceConfig": {"maxTokens": 1, "future": [1]}, "max_tokens": 2}, {"maxTokens": 2, "future": [1]}),
        ({"inferenceConfig": {}}, {}),
    ):
        assert await sent(server, fields=fields) == {"messages": [HELLO], "inferenceConfig": config}


@pytest.mark.asyncio
async def test_fields_that_nobody_knows_yet_are_sent_as_they_are(server: BedrockServer) -> None:
    fields = {
        "serviceTier": {"type": "priority"},
        "aFutureField": {"some_key": [1, {"deep": None}]},
        "promptVariables": {"x": {"text": "y"}},
    }
    assert await sent(server, fields=fields) == {"messages": [HELLO], **fields}
    choices: list[Any] = [{"any": {}}, {"tool": {"aFutureName": "x"}}, {"tool": "x"}, "x"]
    for choice in choices:
        config = {"toolChoice": choice, "aFutureSwitch": True}
        body = await sent(server, fields={"toolConfig": config}, tools=[add])
        assert {**body["toolConfig"], "tools": []} == {**config, "tools": []}


@pytest.mark.asyncio
async def test_a_field_without_a_json_form_is_refused_before_anything_is_sent(server: BedrockServer) -> None:
    circle: list[Any] = []
    circle.append({"a": circle})
    for odd in ({"x": object()}, {"x": float("nan")}, {"x": [float("-inf")]}, {"x": "\ud800"}):
        async with connected(server, additionalModelRequestFields=odd) as adapter:
            recorder = await run(adapter, tools=[])
        assert isinstance(recorder.error, ConfigurationError), odd
        assert "JSON" in str(recorder.error)
        assert recorder.error.provider == "bedrock"
    async with connected(server) as adapter:
        recorder = await run(adapter, tools=[{"systemTool": circle}])
    assert isinstance(recorder.error, ConfigurationError)
    assert not server.requests
    body = await sent(server, "NaN and Infinity", {"requestMetadata": {"when": date(2026, 1, 2)}})
    assert body["requestMetadata"] == {"when": "2026-01-02"}
    assert body["messages"][0]["content"] == [{"text": "NaN and Infinity"}]


# tools


@pytest.mark.asyncio
async def test_a_declaration(server: BedrockServer) -> None:
    body = await sent(server, tools=[add])
    assert body["toolConfig"] == {
        "tools": [
            {
                "toolSpec": {
                    "name": "add",
                    "description": "Add two numbers.",
                    "inputSchema": {
                        "json": {
                            "type": "object",
                            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                            "required": ["a", "b"],
                            "additionalProperties": False,
                        }
                    },
                }
            }
        ]
    }


@pytest.mark.asyncio
async def test_without_tools_the_field_is_absent(server: BedrockServer) -> None:
    """A choice among none is an error."""
    choices: list[Any] = [{"any": {}}, {"tool": {"name": "add"}}]
    nothing: list[Any] = [[], (), list]
    for choice, tools in itertools.product(choices, nothing):
        body = await sent(server, fields={"toolConfig": {"toolChoice": choice}}, tools=tools)
        assert body == {"messages": [HELLO]}


@pytest.mark.asyncio
async def test_the_providers_own_declarations_are_sent_as_they_are(server: BedrockServer) -> None:
    own = [
        {"systemTool": {"name": "nova_grounding"}},
        {"toolSpec": {"name": "theirs", "inputSchema": {"json": {"type": "object"}}, "strict": True}},
        {"aFutureTool": {"x": [1]}},
        CACHE_POINT,
    ]
    before = copy.deepcopy(own)
    body = await sent(server, tools=[add, *own], fields={"toolConfig": {"toolChoice": {"auto": {}}}})
    assert body["toolConfig"]["tools"][1:] == own == before
    assert body["toolConfig"]["toolChoice"] == {"auto": {}}
    assert (await sent(server, tools=own))["toolConfig"] == {"tools": own}


@every_way
@pytest.mark.asyncio
async def test_names_are_made_valid_and_come_back(server: BedrockServer, way: str) -> None:
    long = "n" * 99
    names = ["my/tool", "my_tool", "7up", f"{long}1", f"{long}2", "größe", "a.b", "a b"]
    tools = [named(name) for name in names]
    config = {"toolChoice": {"tool": {"name": "my/tool"}}}
    before = copy.deepcopy(config)
    body = await sent(server, tools=tools, fields={"toolConfig": config})
    aliases = [item["toolSpec"]["name"] for item in body["toolConfig"]["tools"]]
    assert aliases[1:3] == ["my_tool", "7up"]
    assert len(set(aliases)) == len(names)
    assert all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", alias) for alias in aliases)
    assert body["toolConfig"]["toolChoice"] == {"tool": {"name": aliases[0]}}
    assert config == before
    server.reply(*(tool_use(alias, {}, id=f"id_{index}") for index, alias in enumerate(aliases)))
    server.reply(text("done"))
    async with connected(server, way) as adapter:
        recorder = await run(adapter, tools=tools)
    assert [item.name for item in recorder.finished.tool_calls] == names
    assert recorder.result is not None
    assert [item.output for item in recorder.result.tool_results] == names
    (_, asked, _) = check_sent(server.bodies[-1])
    assert [block["toolUse"]["name"] for block in asked["content"]] == aliases


@pytest.mark.asyncio
async def test_a_call_of_a_name_that_nobody_declared_can_be_sent_again(server: BedrockServer) -> None:
    """A model may make one up, and the API then refuses to see it again."""
    server.reply(tool_use("functions.add", {}, id="1"), tool_use("x" * 65, {}, id="2"), tool_use("", {}, id="3"))
    server.reply(text("done"))
    async with connected(server) as adapter:
        recorder = await run(adapter)
    assert [item.name for item in recorder.finished.tool_calls] == ["functions.add", "x" * 65, ""]
    (_, asked, told) = check_sent(server.bodies[-1])
    names = [block["toolUse"]["name"] for block in asked["content"]]
    assert len(set(names)) == 3
    assert names[0].startswith("functions_add_")
    assert all(block["toolResult"]["status"] == "error" for block in told["content"])
    # the same name is the same, whoever declares it
    body = await sent(server, "go on", conversation=history(name="my/tool"), tools=[named("my/tool")])
    assert body["messages"][1]["content"][0]["toolUse"]["name"] == body["toolConfig"]["tools"][0]["toolSpec"]["name"]


@pytest.mark.asyncio
async def test_a_history_with_calls_keeps_declarations_when_the_tools_are_gone(server: BedrockServer) -> None:
    said = history()
    said[1]["content"] += [call_of("2", "other"), call_of("3", "my/tool"), call_of("4")]
    said[2]["content"] += [result_of("2"), result_of("3"), result_of("4")]
    server_run = {"toolUse": {"toolUseId": "s", "name": "nova_grounding", "type": "server_tool_use", "input": {}}}
    said[3]["content"] = [server_run, {"toolResult": {"toolUseId": "s", "content": []}}, {"text": "x"}]
    fields: dict[str, Any] = {"toolConfig": {"toolChoice": {"any": {}}}}
    server.reply(text("5"))
    async with connected(server, **fields) as adapter:
        await run(adapter, "go on", conversation=said, tools=[])
    (body,) = server.bodies
    specs = [item["toolSpec"] for item in body["toolConfig"]["tools"]]
    called = [block["toolUse"]["name"] for block in body["messages"][1]["content"]]
    assert [spec["name"] for spec in specs] == list(dict.fromkeys(called))
    assert [spec["inputSchema"] for spec in specs] == [{"json": {"type": "object"}}] * 3
    assert "toolChoice" not in body["toolConfig"], "what is gone must not be chosen"


# identifiers


@pytest.mark.asyncio
async def test_identifiers_from_elsewhere_are_made_acceptable(server: BedrockServer) -> None:
    long = "x" * 65
    foreign = ["toolu_01/x", "call:1", long, f"{long}y", "ü", "", "a b", "\ud800", None, 5]
    said = history()
    said[1]["content"] = [call_of(call_id) for call_id in (*foreign, "tooluse_ok-1")]
    said[2]["content"] = [result_of(call_id) for call_id in (*foreign, "tooluse_ok-1")]
    before = copy.deepcopy(said)
    body = await sent(server, "go on", conversation=said, tools=[add])
    _, asked, told, *_ = body["messages"]
    ids = [block["toolUse"]["toolUseId"] for block in asked["content"]]
    assert ids == [block["toolResult"]["toolUseId"] for block in told["content"]]
    assert len(set(ids)) == len(ids)
    assert ids[-2:] == ["5", "tooluse_ok-1"]
    assert said == before
    again = await sent(server, "go on", conversation=said, tools=[add])
    assert again == body, "the same identifier becomes the same, whenever it is sent"


@every_way
@pytest.mark.asyncio
async def test_a_foreign_identifier_of_a_reply_is_answered(server: BedrockServer, way: str) -> None:
    server.reply(tool_use("add", {"a": 1, "b": 2}, id="call:1/ü"), tool_use("add", {"a": 1, "b": 3}, id="x" * 99))
    server.reply(text("done"))
    async with connected(server, way) as adapter:
        recorder = await run(adapter)
    assert [item.call_id for item in recorder.finished.tool_calls] == ["call:1/ü", "x" * 99]
    assert recorder.result is not None
    assert [item.output for item in recorder.result.tool_results] == [3, 4]
    check_sent(server.bodies[-1])


# the conversation


def test_every_call_has_exactly_one_result(adapter: BedrockAdapter) -> None:
    asked = {"role": "assistant", "content": [call_of("1"), call_of("2")]}

    def told(*ids: str) -> dict[str, Any]:
        return {"role": "user", "content": [result_of(call_id) for call_id in ids]}

    adapter.begin([HELLO, asked, told("2", "1")], "go on")
    # the user's answers may be apart: they are sent as one
    adapter.begin([HELLO, asked, told("1"), told("2")], "go on")
    for orphaned in (
        [HELLO, asked],
        [HELLO, asked, told("1")],
        [HELLO, asked, HELLO],
        [HELLO, asked, told("1", "2", "2")],
        [HELLO, asked, told("1", "2", "3")],
        [told("1")],
        [HELLO, {"role": "assistant", "content": [call_of("1"), result_of("1")]}],
    ):
        for prompt in ("go on", None):
            with pytest.raises(ConfigurationError, match="every tool"):
                adapter.begin(orphaned, prompt)
            with pytest.raises(ConfigurationError, match="every tool"):
                Turn(adapter, prompt, conversation=orphaned)


def test_a_conversation_must_be_one(adapter: BedrockAdapter) -> None:
    for odd in (
        "hello",
        {"role": "user", "content": "x"},
        5,
        [5],
        [{"role": "system", "content": "x"}],
        [{"role": "user"}],
        [{"role": "user", "content": [5]}],
        [{"role": "user", "content": [None]}],
    ):
        with pytest.raises(ConfigurationError, match="must"):
            adapter.begin(odd, "hello")  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_the_roles_take_turns(server: BedrockServer) -> None:
    assistant = {"role": "assistant", "content": [{"text": "a"}]}
    for conversation, expected in (
        ([HELLO], [["hello", "go on"]]),
        ([HELLO, HELLO], [["hello", "hello", "go on"]]),
        ([{"role": "user", "content": "hello"}], [["hello", "go on"]]),
        ([{"role": "user", "content": ["hello", {"text": "you"}]}], [["hello", "you", "go on"]]),
        ([HELLO, HELLO, assistant, assistant], [["hello", "hello"], ["a", "a"], ["go on"]]),
    ):
        before = copy.deepcopy(conversation)
        body = await sent(server, "go on", conversation=conversation)
        assert [[block["text"] for block in said["content"]] for said in body["messages"]] == expected
        assert conversation == before


@pytest.mark.asyncio
async def test_a_reply_goes_on_with_one_that_was_begun(server: BedrockServer) -> None:
    begun = [HELLO, {"role": "assistant", "content": [{"text": "It is"}]}]
    server.reply(text(" this:"), tool_use("add", {"a": 1, "b": 2}, id="1"))
    server.reply(text("3"))
    async with connected(server) as adapter:
        await run(adapter, None, conversation=begun)
    _, asked, _ = check_sent(server.bodies[-1])
    assert asked["content"][:2] == [{"text": "It is"}, {"text": " this:"}]
    assert server.bodies[0]["messages"] == begun


@pytest.mark.asyncio
async def test_a_reply_without_anything_in_it_is_not_sent_again(server: BedrockServer) -> None:
    server.reply(raw_block(None))
    server.reply(text("5"))
    async with connected(server) as adapter:
        recorder = await run(adapter)
        assert (recorder.finished.text, recorder.finished.finish_reason) == ("", "stop")
        assert recorder.result is not None
        assert recorder.result.conversation == [HELLO]
        await run(adapter, "go on", conversation=recorder.result.conversation)
    assert check_sent(server.bodies[1]) == [{"role": "user", "content": [*HELLO["content"], {"text": "go on"}]}]


@every_way
@pytest.mark.asyncio
async def test_a_conversation_survives_json_and_is_continued(server: BedrockServer, way: str) -> None:
    prompt = [{"image": {"format": "png", "source": {"bytes": PNG}}}, "What is this?"]
    server.reply(reasoning("hm", "s+/="), text("I add."), tool_use("add", {"a": 2, "b": 3}, id="1"))
    server.reply(text("It is 5."))
    server.reply(text("It is 35."))
    async with connected(server, way) as adapter:
        first = await Turn(adapter, prompt, tools=[add], retry=NO_RETRY).result()
        saved = json.loads(json.dumps(first.conversation, allow_nan=False))
        assert saved == first.conversation
        second = await Turn(adapter, "And times 7?", conversation=saved, tools=[add], retry=NO_RETRY).result()
    assert saved == first.conversation, "a turn changes nothing that it is given"
    messages = check_sent(server.bodies[-1])
    assert messages[:4] == saved
    assert messages[0]["content"][0]["image"]["source"]["bytes"] == PNG_TEXT
    assert messages[1]["content"][0] == {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "s+/="}}}
    assert second.conversation == [*messages, {"role": "assistant", "content": [{"text": "It is 35."}]}]


@pytest.mark.asyncio
async def test_a_request_can_be_looked_at(server: BedrockServer, adapter: BedrockAdapter) -> None:
    conversation = adapter.begin(history(), "go on")
    step = Step(0, conversation, system="Be brief.", tools=[CACHE_POINT])
    request = adapter.request(step)
    server.reply(text("5"))
    assert (await adapter.generate(step)).text == "5"
    assert server.bodies == [request]
    # a message that did not come by way of begin
    server.reply(text("5"))
    await adapter.generate(Step(0, [{"role": "user", "content": "hello"}]))
    assert server.bodies[-1] == {"messages": [HELLO]}


# results


IMAGE = {"image": {"format": "png", "source": {"bytes": PNG_TEXT}}}
DOCUMENT = {"document": {"format": "pdf", "name": "d", "source": {"bytes": PNG_TEXT}}}
FOUND = {"searchResult": {"source": "s", "title": "t", "content": [{"text": "x"}]}}


def content(output: Any) -> list[tuple[Any, list[Any]]]:
    return [(output, [{"text": output if isinstance(output, str) else json.dumps(output, separators=(",", ":"))}])]


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        *((nothing, [{"text": "(no output)"}]) for nothing in (None, "", " \n")),
        ("text", [{"text": "text"}]),
        *content(0),
        *content(False),
        *content([]),
        *content({}),
        *content([1, "a"]),
        *content({"a": [1, None]}),
        # a caller's own data
        *content({"text": "x"}),
        *content({"json": {"a": 1}}),
        *content([{"text": "x"}, {"json": 1}]),
        *content({"user": {"user": "x"}}),
        *content({"image": {"source": "https://example.org/x.png", "format": "png"}}),
        *content({"image": {"source": {"bytes": "no base64"}, "format": "png"}}),
        *content({"image": {"source": {"bytes": PNG_TEXT}}}),
        *content({"document": {"source": "a", "name": "b"}}),
        *content({"image": 5}),
        *content({"searchResult": {"source": "s", "title": "t", "content": "x"}}),
        *content({**IMAGE, "more": 1}),
        *content([IMAGE, 5]),
        *content([IMAGE, {"text": 5}]),
        *content([IMAGE, "caption"]),
        *content([IMAGE, {"caption": "x"}]),
        *content([IMAGE, {"text": "x", "more": 1}]),
        # blocks of the API's
        (IMAGE, [IMAGE]),
        ([DOCUMENT, IMAGE, FOUND], [DOCUMENT, IMAGE, FOUND]),
        ([{"text": "a cat"}, IMAGE, {"json": {"a": 1}}], [{"text": "a cat"}, IMAGE, {"json": {"a": 1}}]),
        ([{"text": " "}, IMAGE], [IMAGE]),
        ({"image": {"format": "png", "source": {"bytes": PNG}}}, [IMAGE]),
        (
            {"video": {"format": "mp4", "source": {"s3Location": {"uri": "s3://b/k"}}}},
            [{"video": {"format": "mp4", "source": {"s3Location": {"uri": "s3://b/k"}}}}],
        ),
    ],
)
def test_what_a_tool_returns(adapter: BedrockAdapter, output: Any, expected: list[Any]) -> None:
    before = copy.deepcopy(output)
    reply = SimpleNamespace(message={"role": "assistant", "content": [call_of("1")]})
    *_, told = adapter.append([HELLO], reply, [ToolResult("1", "give", output)])  # type: ignore[arg-type]
    assert told == {"role": "user", "content": [{"toolResult": {"toolUseId": "1", "content": expected}}]}
    assert output == before


@pytest.mark.asyncio
async def test_results_of_a_step_are_in_one_message_in_call_order(server: BedrockServer) -> None:
    @tool
    async def fail(how: str) -> None:
        raise ValueError(how)

    @tool
    async def show(data: bool) -> Any:
        return [{"text": "a cat"}, {"image": {"format": "png", "source": {"bytes": b"hi" if data else PNG_TEXT}}}]

    @tool
    async def dump() -> Any:
        return b"\xff"

    server.reply(
        tool_use("show", {"data": False}, id="1"),
        tool_use("fail", {"how": "no"}, id="2"),
        tool_use("nobody", {}, id="3"),
        tool_use("add", {"a": "x"}, id="4"),
        tool_use("show", {"data": True}, id="5"),
        tool_use("dump", {}, id="6"),
        tool_use("add", {"a": 3, "b": 4}, id="7"),
    )
    server.reply(text("done"))
    async with connected(server) as adapter:
        recorder = await run(adapter, tools=[add, fail, show, dump])
    assert recorder.finished.text == "done", "no output ends a turn"
    _, _, told = check_sent(server.bodies[-1])
    results = [block["toolResult"] for block in told["content"]]
    assert [item["toolUseId"] for item in results] == list("1234567")
    assert [item.get("status") for item in results] == [None, "error", "error", "error", None, "error", None]
    assert results[0]["content"] == [{"text": "a cat"}, IMAGE]
    assert results[1]["content"] == [{"text": "the tool failed: ValueError: no"}]
    assert results[6]["content"] == [{"text": "7"}]


def test_an_error_that_says_nothing_is_still_a_result(adapter: BedrockAdapter) -> None:
    reply = SimpleNamespace(message={"role": "assistant", "content": [call_of("1")]})
    for error in ("", " "):
        *_, told = adapter.append([HELLO], reply, [ToolResult("1", "give", error=error)])  # type: ignore[arg-type]
        assert told["content"][0]["toolResult"] == {
            "toolUseId": "1",
            "content": [{"text": "(no output)"}],
            "status": "error",
        }


# configuration


@pytest.mark.parametrize("model", ["", "  ", None, 5])
def test_a_model_must_be_named(client: Any, model: Any) -> None:
    with pytest.raises(ConfigurationError, match="model must be a non-empty string"):
        BedrockAdapter(client, model=model)


def test_what_is_the_turns_or_the_clients_is_no_field(client: Any) -> None:
    with pytest.raises(ConfigurationError, match="'modelId' is called model"):
        BedrockAdapter(client, model="m", modelId="m")
    for name in ("messages", "system", "tools"):
        with pytest.raises(ConfigurationError, match=f"'{name}' is the turn's to send") as caught:
            BedrockAdapter(client, model=MODEL, **{name: SECRET})
        assert SECRET not in str(caught.value)
    with pytest.raises(ConfigurationError, match="'tools' is the turn's to send"):
        BedrockAdapter(client, model=MODEL, toolConfig={"tools": [], "toolChoice": {"any": {}}})
    for name in (
        *("api_key", "aws_access_key_id", "aws_secret_access_key", "aws_session_token", "aws_account_id"),
        *("region_name", "profile_name", "endpoint_url", "config", "verify", "use_ssl", "api_version", "session"),
    ):
        with pytest.raises(ConfigurationError, match=f"'{name}' belongs to the client: .*{name}=…") as caught:
            BedrockAdapter(client, model=MODEL, **{name: SECRET})
        assert SECRET not in str(caught.value)
    for name in ("inferenceConfig", "toolConfig"):
        with pytest.raises(ConfigurationError, match=f"{name} must be a mapping"):
            BedrockAdapter(client, model=MODEL, **{name: [1]})


def test_a_client_must_be_the_sdks_of_this_service() -> None:
    class Asynchronous:
        meta = None

        async def converse_stream(self) -> None:
            raise AssertionError

    with SageMakerServer() as server:
        other = server.client()
        half = SimpleNamespace(converse_stream=lambda: None)
        clients: list[Any] = [SECRET, 5, {}, other, half, Asynchronous()]
        for odd in clients:
            with pytest.raises(ConfigurationError, match="client must be") as caught:
                BedrockAdapter(odd, model=MODEL)
            assert type(odd).__name__ in str(caught.value)
            assert SECRET not in str(caught.value)
        other.close()


# a client that others use too


@pytest.mark.asyncio
async def test_a_client_stays_the_callers(server: BedrockServer, client: Any) -> None:
    """Several adapters and the caller's own calls, all at once."""

    def plain(words: str) -> list[Any]:
        messages = [{"role": "user", "content": [{"text": words}]}]
        stream = client.converse_stream(modelId="plain", messages=messages, inferenceConfig={"maxTokens": 7})["stream"]
        try:
            return list(stream)
        finally:
            stream.close()

    ways = [BYTES, EVENTS, BYTES]
    adapters = [BedrockAdapter(client, model=f"m{index}", max_tokens=index) for index in range(len(ways))]
    for adapter, way in zip(adapters, ways, strict=True):
        adapter._as_bytes = way == BYTES
    for _ in range(12):
        server.reply(text("ok"), before=[Hold("all")])
    turns = [asyncio.ensure_future(Turn(adapter, f"m{index}").result()) for index, adapter in enumerate(adapters * 3)]
    own = [asyncio.ensure_future(asyncio.to_thread(plain, f"plain {number}")) for number in range(3)]
    await server.received(12)
    server.release("all")
    results = await asyncio.gather(*turns)
    assert [result.text for result in results] == ["ok"] * 9
    assert [len(events) for events in await asyncio.gather(*own)] == [6] * 3
    bodies: dict[str, list[str]] = {}
    for target, body in zip(server.targets, server.bodies, strict=True):
        assert body["inferenceConfig"] == {"maxTokens": 7 if target == "plain" else int(target[1:])}
        bodies.setdefault(target, []).append(body["messages"][0]["content"][0]["text"])
    assert {target: len(said) for target, said in bodies.items()} == {"m0": 3, "m1": 3, "m2": 3, "plain": 3}
    assert sorted(bodies["plain"]) == ["plain 0", "plain 1", "plain 2"]
    for adapter in adapters:
        await adapter.aclose()
    server.reply(text("ok"))
    assert len(plain("after all")) == 6, "an adapter closes no client but its own"


@pytest.mark.asyncio
async def test_a_call_within_a_call_has_its_own_body(server: BedrockServer, client: Any) -> None:
    """As a handler of the SDK's events may make one."""
    asked: list[str] = []

    def on_send(request: Any, **_: Any) -> None:
        if not asked:
            asked.append(request.url)
            stream = client.converse_stream(modelId="inner", messages=[HELLO])["stream"]
            assert len(list(stream)) == 5
            stream.close()

    client.meta.events.register("before-sign.bedrock-runtime.ConverseStream", on_send)
    server.reply(text("5"))
    server.reply(text("6"))
    assert (await Turn(BedrockAdapter(client, model="outer"), "What?").result()).text == "6"
    assert server.targets == ["inner", "outer"]
    assert [body["messages"][0]["content"] for body in server.bodies] == [[{"text": "hello"}], [{"text": "What?"}]]
