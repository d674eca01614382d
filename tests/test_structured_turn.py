"""Structured output on the wire: what each provider is asked, what becomes of its answer, and what is left behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field
from reactivex.disposable import SingleAssignmentDisposable
from reactivex.subject import Subject
from typing_extensions import TypedDict

from rxloop.adapters.anthropic import AnthropicAdapter
from rxloop.adapters.base import Adapter
from rxloop.adapters.bedrock import BedrockAdapter
from rxloop.adapters.gemini import GeminiAdapter
from rxloop.adapters.text_stream import TextStream
from rxloop.breaker import Breaker
from rxloop.channel import iterate
from rxloop.cli.show import JsonView
from rxloop.errors import ConfigurationError, InvalidOutputError, StreamInterruptedError, UsageLimitError
from rxloop.events import ToolCallReceived, TurnEvent, TurnFinished, event_from_dict
from rxloop.limits import Limits
from rxloop.operators import CapReached, Renewal, partial_output, tool_calls
from rxloop.output import Output
from rxloop.reclaim import Reclaim
from rxloop.steps import TurnResult
from rxloop.testing import replay_tape
from rxloop.testing.scripted import Call, Recorder, Reply
from rxloop.tools import Tool, ToolContext, tool
from rxloop.turn import Turn
from rxloop.usage import Usage
from tests.adapters import bedrock_provider
from tests.adapters.bedrock_provider import BedrockProvider
from tests.adapters.gemini_provider import GeminiProvider
from tests.adapters.test_anthropic_conformance import AnthropicProvider
from tests.adapters.test_anthropic_vertex import VertexProvider, client_of
from tests.providers import anthropic as messages_api
from tests.providers import bedrock as converse
from tests.providers import gemini as generate_content
from tests.providers.anthropic import AnthropicServer
from tests.providers.bedrock import BedrockServer
from tests.providers.gemini import GeminiServer
from tests.providers.http import Close
from tests.turns import NO_RETRY, add, run


class City(BaseModel):
    """A city."""

    name: str
    people: int = Field(ge=0)


ROME: dict[str, Any] = {"name": "Rome", "people": 3}
WRONG: dict[str, Any] = {"name": "Rome", "people": -1}
WHY = "people: Input should be greater than or equal to 0"
REMINDER = "Give the answer by calling the tool final_result."

ADD = Call("add", {"a": 2, "b": 3}, "call_add")
RIGHT = Call("final_result", ROME, "call_right")
FALSE = Call("final_result", WRONG, "call_wrong")


@dataclass(frozen=True)
class Said:
    """One thing that a request's history says: who said it, of what kind it is, which tool, and what."""

    role: str
    kind: str
    name: str = ""
    content: Any = None
    is_error: bool = False


class Wire:
    """A provider's server, its adapter, and what its requests say."""

    def __init__(self, name: str, provider: Any) -> None:
        self.name = name
        self.provider = provider
        self.adapter: Any = provider.adapter()

    @property
    def coercive(self) -> bool:
        return self.name == "vertex-claude"

    def reply(self, *calls: Call, text: str = "", **options: Any) -> None:
        self.provider.reply(Reply(text=[text] if text else [], calls=calls, **options))

    @property
    def bodies(self) -> list[Any]:
        return [request.json for request in self.provider.server.requests]

    def declared(self, body: Any) -> dict[str, Any]:
        """The schemas of the declared tools."""
        if self.name == "bedrock":
            tools = [item["toolSpec"] for item in body.get("toolConfig", {}).get("tools", ()) if "toolSpec" in item]
            return {item["name"]: item["inputSchema"]["json"] for item in tools}
        if self.name in ("ai-studio", "vertex-gemini"):
            tools = [one for item in body.get("tools", ()) for one in item.get("functionDeclarations", ())]
            return {item["name"]: item.get("parameters") for item in tools}
        return {item["name"]: item.get("input_schema") for item in body.get("tools", ())}

    def choice(self, body: Any) -> str | None:
        """The tool choice: none, any, or a tool's name."""
        if self.name == "bedrock":
            choice = body.get("toolConfig", {}).get("toolChoice")
            if choice is None:
                return None
            return "any" if "any" in choice else str(choice["tool"]["name"])
        if self.name in ("ai-studio", "vertex-gemini"):
            calling = body.get("toolConfig", {}).get("functionCallingConfig")
            if calling is None:
                return None
            assert calling["mode"] == "ANY"
            allowed = calling.get("allowedFunctionNames")
            return "any" if allowed is None else ",".join(allowed)
        choice = body.get("tool_choice")
        return None if choice is None else str(choice.get("name", choice["type"]))

    def said(self, body: Any) -> list[Said]:
        """The history of a request, each call with exactly one result in its place in the next message."""
        if self.name in ("ai-studio", "vertex-gemini"):
            said = [_gemini_said(content["role"], part) for content in body["contents"] for part in content["parts"]]
        else:
            names: dict[str, str] = {}
            read = _bedrock_said if self.name == "bedrock" else _anthropic_said
            blocks = [(item["role"], block) for item in body["messages"] for block in item["content"]]
            said = [read(role, block, names) for role, block in blocks if "cachePoint" not in block]
        calls = [item.name for item in said if item.kind == "call"]
        results = [item.name for item in said if item.kind == "result"]
        assert calls == results, "every call has one result, in wire order"
        return said

    def results(self, body: Any) -> list[tuple[str, Any, bool]]:
        return [(item.name, item.content, item.is_error) for item in self.said(body) if item.kind == "result"]

    async def close(self) -> None:
        await self.provider.close(self.adapter)


def _anthropic_said(role: str, block: Any, names: dict[str, str]) -> Said:
    if block["type"] == "tool_use":
        names[block["id"]] = block["name"]
        return Said(role, "call", block["name"], block["input"])
    if block["type"] == "tool_result":
        return Said(role, "result", names[block["tool_use_id"]], block["content"], block.get("is_error", False))
    return Said(role, block["type"], content=block["text"])


def _bedrock_said(role: str, block: Any, names: dict[str, str]) -> Said:
    if call := block.get("toolUse"):
        names[call["toolUseId"]] = call["name"]
        return Said(role, "call", call["name"], call["input"])
    if result := block.get("toolResult"):
        [content] = result["content"]
        return Said(role, "result", names[result["toolUseId"]], content["text"], result.get("status") == "error")
    return Said(role, "text", content=block["text"])


def _gemini_said(role: str, part: Any) -> Said:
    if call := part.get("functionCall"):
        return Said(role, "call", call["name"], call["args"])
    if result := part.get("functionResponse"):
        response = result["response"]
        failed = "error" in response
        return Said(role, "result", result["name"], response["error" if failed else "output"], failed)
    return Said(role, "text", content=part["text"])


@contextmanager
def scripted(name: str) -> Iterator[Any]:
    if name == "anthropic":
        with AnthropicServer() as server:
            yield AnthropicProvider(server)
    elif name == "vertex-claude":
        with AnthropicServer() as server:
            yield VertexProvider(server)
    elif name == "bedrock":
        with BedrockServer() as bedrock:
            yield BedrockProvider(bedrock)
    else:
        with GeminiServer() as gemini:
            yield GeminiProvider(gemini, vertex=name == "vertex-gemini")


@asynccontextmanager
async def wired(name: str) -> AsyncIterator[Wire]:
    with scripted(name) as provider:
        wire = Wire(name, provider)
        try:
            yield wire
        finally:
            await wire.close()


PROVIDERS = ("anthropic", "vertex-claude", "ai-studio", "vertex-gemini", "bedrock")
every_provider = pytest.mark.parametrize("name", PROVIDERS)


def listed(recorder: Recorder) -> set[str]:
    """The names among the tool calls that a turn lists anywhere."""
    assert recorder.result is not None
    partial = getattr(recorder.error, "partial", None)
    names = {call.name for call in recorder.result.tool_calls}
    names |= {result.name for result in recorder.result.tool_results}
    names |= {call.name for call in partial.tool_calls} if partial is not None else set()
    names |= {result.name for result in partial.tool_results} if partial is not None else set()
    for event in recorder.events:
        if event.type in ("step_finished", "turn_finished"):
            names |= {call.name for call in event.tool_calls}
        elif event.type in ("tool_started", "tool_progress", "tool_finished"):
            names.add(event.name)
    return names


def never_asked(name: str) -> Tool | None:
    raise AssertionError(f"the second look-up was asked for {name}")


# tools and a schema


@pytest.mark.asyncio
@every_provider
async def test_tools_and_a_schema(name: str) -> None:
    async with wired(name) as wire:
        wire.reply(ADD, text="I add.", usage=Usage(20, 9))
        wire.reply(RIGHT, text="There.", usage=Usage(30, 7))
        recorder = await run(
            wire.adapter, output=City, resolve_tool_on_miss=never_asked, breaker=Breaker(max_retries=1)
        )
        first, second = wire.bodies
    result = recorder.result
    assert result is not None
    assert (result.output, type(result.output)) == (City(name="Rome", people=3), City)
    assert json.loads(result.text) == ROME
    assert (result.finish_reason, result.steps, result.error) == ("stop", 2, None)
    assert result.usage == Usage(50, 16)
    finished = recorder.finished
    assert (finished.output, finished.text, finished.usage) == (result.output, result.text, result.usage)
    # what ran is the caller's tool alone
    assert listed(recorder) == {"add"}
    assert [call.name for call in result.tool_calls] == ["add"]
    assert [item.output for item in result.tool_results] == [5]
    # but the call can be watched
    assert [event.name for event in recorder.events if isinstance(event, ToolCallReceived)] == ["add", "final_result"]
    # what the provider was asked
    for body in (first, second):
        assert list(wire.declared(body)) == ["add", "final_result"]
        schema = wire.declared(body)["final_result"]
        assert schema["type"] == "object"
        assert schema["properties"].keys() == {"name", "people"}
        assert schema["required"] == ["name", "people"]
        assert wire.choice(body) == ("any" if wire.coercive else None)
        assert not {"output_config", "outputConfig"} & body.keys()
        assert "responseJsonSchema" not in body.get("generationConfig", {})
    assert [item.kind for item in wire.said(first)] == ["text"]
    assert [(item.kind, item.name) for item in wire.said(second)] == [
        ("text", ""), ("text", ""), ("call", "add"), ("result", "add"),
    ]  # fmt: skip


@pytest.mark.asyncio
@every_provider
async def test_the_conversation_goes_on_in_the_next_turn(name: str) -> None:
    """With or without output; the answer is in it, and its call has its result."""
    async with wired(name) as wire:
        wire.reply(ADD)
        wire.reply(RIGHT)
        first = await Turn(wire.adapter, "x", tools=[add], output=City, retry=NO_RETRY).result()
        saved = json.loads(json.dumps(first.conversation))
        wire.reply(text="Indeed.")
        second = await Turn(wire.adapter, "Sure?", tools=[add], conversation=saved, retry=NO_RETRY).result()
        wire.reply(RIGHT)
        again = Turn(wire.adapter, "Again?", tools=[add], output=City, conversation=second.conversation)
        third = await again.result()
        bodies = wire.bodies
    assert (second.text, second.output) == ("Indeed.", None)
    assert third.output == City(name="Rome", people=3)
    assert list(wire.declared(bodies[2])) == ["add"]
    history = wire.said(bodies[3])
    assert [item.name for item in history if item.kind == "call"] == ["add", "final_result"]
    assert history[4] == Said("user", "result", "final_result", "accepted")
    assert [(item.role, item.content) for item in history[5:]][-1] == ("user", "Again?")


class Movie(TypedDict, total=False):
    title: str
    year: int


@dataclass
class Point:
    x: int
    y: int = 0


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)

    day: date
    pair: tuple[int, int]


KINDS: list[tuple[Any, dict[str, Any], Any]] = [
    (Point, {"x": 1}, Point(1)),
    (Movie, {"title": "Ran"}, {"title": "Ran"}),
    (list[int], {"result": [1, 2]}, [1, 2]),
    (dict[str, int], {"result": {"a": 1}}, {"a": 1}),
    (Literal["a", "b"], {"result": "b"}, "b"),
    (Strict, {"day": "2026-11-30", "pair": [1, 2]}, Strict(day=date(2026, 11, 30), pair=(1, 2))),
    ({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}, {"x": 1}, {"x": 1}),
]


@pytest.mark.asyncio
@every_provider
@pytest.mark.parametrize(("kind", "payload", "value"), KINDS, ids=[str(kind)[:20] for kind, *_ in KINDS])
async def test_an_answer_of_any_type(name: str, kind: Any, payload: dict[str, Any], value: Any) -> None:
    async with wired(name) as wire:
        wire.reply(Call("final_result", payload, "c"))
        result = await Turn(wire.adapter, "x", tools=[add], output=kind, retry=NO_RETRY).result()
        [body] = wire.bodies
    assert result.output == value
    assert json.loads(result.text) == payload
    schema = wire.declared(body)["final_result"]
    assert schema["type"] == "object"
    assert schema["properties"].keys() >= payload.keys()


class Tree(BaseModel):
    value: int
    children: list[Tree] = []


TREE = {"value": 1, "children": [{"value": 2, "children": []}]}


@pytest.mark.asyncio
@every_provider
async def test_a_model_that_holds_itself(name: str) -> None:
    """Where a declaration cannot express it, that is a clear error, before any request."""
    async with wired(name) as wire:
        wire.reply(Call("final_result", TREE, "c"))
        recorder = await run(wire.adapter, output=Tree)
        bodies = wire.bodies
    if name in ("anthropic", "vertex-claude"):
        assert recorder.finished.output == Tree(value=1, children=[Tree(value=2)])
        schema = wire.declared(bodies[0])["final_result"]
        assert schema["type"] == "object"
        assert schema["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}
        assert "Tree" in schema["$defs"]
    else:
        assert isinstance(recorder.error, ConfigurationError)
        assert "the schema of tool 'final_result' must not be recursive" in str(recorder.error)
        assert bodies == []


# corrections


@pytest.mark.asyncio
@every_provider
async def test_a_wrong_answer_is_corrected(name: str) -> None:
    async with wired(name) as wire:
        wire.reply(FALSE, usage=Usage(20, 9))
        wire.reply(RIGHT, usage=Usage(30, 7))
        recorder = await run(wire.adapter, output=City)
        _, second = wire.bodies
    assert recorder.finished.output == City(name="Rome", people=3)
    assert recorder.finished.usage == Usage(50, 16), "a correction counts"
    assert recorder.finished.steps == 2
    assert listed(recorder) == set()
    assert wire.results(second) == [("final_result", f"invalid final_result: {WHY}", True)]
    # the result says it all
    assert wire.said(second)[-1].kind == "result"
    assert wire.choice(second) == ("any" if wire.coercive else None)


@pytest.mark.asyncio
@every_provider
@pytest.mark.parametrize("retries", [0, 1, 2])
async def test_corrections_end(name: str, retries: int) -> None:
    async with wired(name) as wire:
        for number in range(retries + 1):
            wire.reply(Call("final_result", {**WRONG, "name": f"Rome {number}"}, f"call_{number}"), usage=Usage(10, 1))
        recorder = await run(wire.adapter, output=Output(City, retries=retries))
        error = recorder.error
        assert isinstance(error, InvalidOutputError)
        assert error.partial is not None
        assert (error.payload, error.retryable) == ({**WRONG, "name": f"Rome {retries}"}, False)
        assert str(error) == (
            f"the model's answer does not fit what was asked for, after {retries} correction(s): {WHY}"
        )
        assert len(wire.bodies) == retries + 1
        assert error.partial.usage == Usage(10 * (retries + 1), retries + 1)
        assert listed(recorder) == set()
        assert recorder.result is not None
        assert (recorder.result.finish_reason, recorder.result.output) == ("error", None)
        assert recorder.types[-1] == "usage_updated"
        # what is left can be sent
        wire.reply(RIGHT)
        after = await Turn(
            wire.adapter, "Try again.", tools=[add], output=City, conversation=error.partial.conversation
        ).result()
        assert after.output == City(name="Rome", people=3)
        expected = [("final_result", f"invalid final_result: {WHY}", True)] * (retries + 1)
        assert wire.results(wire.bodies[-1]) == expected


@pytest.mark.asyncio
async def test_corrections_have_a_budget_of_their_own() -> None:
    """They are no pauses, of which a turn takes some and no more."""
    async with wired("anthropic") as wire:
        for number in range(12):
            wire.reply(Call("final_result", WRONG, f"call_{number}"))
        wire.reply(RIGHT)
        recorder = await run(wire.adapter, output=Output(City, retries=12))
    assert recorder.finished.output == City(name="Rome", people=3)
    assert recorder.finished.steps == 13


@pytest.mark.asyncio
@every_provider
async def test_at_the_cap_nothing_is_corrected(name: str) -> None:
    async with wired(name) as wire:
        wire.reply(ADD)
        wire.reply(FALSE)
        recorder = await run(wire.adapter, output=Output(City, retries=5), max_steps=2)
        assert len(wire.bodies) == 2
    assert isinstance(recorder.error, InvalidOutputError)
    assert recorder.error.payload == WRONG
    assert "after 0 correction(s)" in str(recorder.error)


@pytest.mark.asyncio
@every_provider
async def test_text_instead_of_a_call(name: str) -> None:
    async with wired(name) as wire:
        wire.reply(text="It is Rome.")
        wire.reply(RIGHT)
        recorder = await run(wire.adapter, output=City)
        _, second = wire.bodies
    assert recorder.finished.output == City(name="Rome", people=3)
    assert [(item.role == "user", item.content) for item in wire.said(second)[-2:]] == [
        (False, "It is Rome."),
        (True, REMINDER),
    ]
    assert wire.choice(second) == ("final_result" if wire.coercive else None)


@pytest.mark.asyncio
@every_provider
async def test_text_to_the_end(name: str) -> None:
    async with wired(name) as wire:
        for words in ("It is Rome.", "Rome!", "I said Rome!"):
            wire.reply(text=words)
        recorder = await run(wire.adapter, output=City)
        # a model that can be forced is forced before that counts as a correction
        assert len(wire.bodies) == (3 if wire.coercive else 2)
    assert isinstance(recorder.error, InvalidOutputError)
    assert recorder.error.payload == ("I said Rome!" if wire.coercive else "Rome!")
    assert "the model did not call final_result" in str(recorder.error)


@pytest.mark.asyncio
@every_provider
async def test_nothing_at_all_is_reminded_too(name: str) -> None:
    async with wired(name) as wire:
        wire.reply()
        wire.reply(RIGHT)
        recorder = await run(wire.adapter, output=City)
        _, second = wire.bodies
    assert recorder.finished.output == City(name="Rome", people=3)
    assert [item.content for item in wire.said(second)] == ["hello", REMINDER]


@pytest.mark.asyncio
@every_provider
async def test_the_answer_as_text_is_an_answer(name: str) -> None:
    async with wired(name) as wire:
        wire.reply(text=f"```json\n{json.dumps(ROME)}\n```")
        recorder = await run(wire.adapter, output=City)
        assert len(wire.bodies) == 1
    assert recorder.finished.output == City(name="Rome", people=3)
    assert json.loads(recorder.finished.text) == ROME


@pytest.mark.asyncio
@every_provider
async def test_tokens_that_are_spent_end_a_correction(name: str) -> None:
    async with wired(name) as wire:
        wire.reply(FALSE, usage=Usage(90, 20))
        recorder = await run(wire.adapter, output=City, limits=Limits(total_tokens=100))
        assert len(wire.bodies) == 1
    assert isinstance(recorder.error, UsageLimitError)
    assert recorder.error.partial is not None
    assert recorder.error.partial.usage == Usage(90, 20)


# more than one call in a reply


class Spy:
    """A tool that counts how often it ran."""

    def __init__(self) -> None:
        self.ran: list[int] = []

    @property
    def tool(self) -> Tool:
        @tool
        async def look(number: int) -> str:
            """Look something up."""
            self.ran.append(number)
            return f"found {number}"

        return look


def look(number: int) -> Call:
    return Call("look", {"number": number}, f"call_look_{number}")


@pytest.mark.asyncio
@every_provider
async def test_calls_beside_the_answer_are_not_run(name: str) -> None:
    spy = Spy()
    async with wired(name) as wire:
        wire.reply(look(1), RIGHT, look(2))
        recorder = await run(
            wire.adapter,
            tools=[spy.tool],
            output=City,
            breaker=Breaker(max_retries=1),
            resolve_tool_on_miss=never_asked,
        )
        assert recorder.result is not None
        assert recorder.result.output == City(name="Rome", people=3)
        assert spy.ran == []
        assert listed(recorder) == {"look"}
        assert "tool_started" not in recorder.types
        wire.reply(text="fine")
        conversation = recorder.result.conversation
        await Turn(wire.adapter, "And?", tools=[spy.tool], conversation=conversation, retry=NO_RETRY).result()
        last = wire.bodies[-1]
    not_run = "not run: the turn ended with the final result of the same reply"
    assert wire.results(last) == [
        ("look", not_run, True),
        ("final_result", "accepted", False),
        ("look", not_run, True),
    ]


@pytest.mark.asyncio
@every_provider
async def test_calls_beside_a_wrong_answer_run(name: str) -> None:
    spy = Spy()
    async with wired(name) as wire:
        wire.reply(look(1), FALSE, look(2))
        wire.reply(RIGHT)
        recorder = await run(wire.adapter, tools=[spy.tool], output=City, sequential=True)
        _, second = wire.bodies
    assert spy.ran == [1, 2]
    assert recorder.finished.output == City(name="Rome", people=3)
    assert listed(recorder) == {"look"}
    assert wire.results(second) == [
        ("look", "found 1", False),
        ("final_result", f"invalid final_result: {WHY}", True),
        ("look", "found 2", False),
    ]


@pytest.mark.asyncio
@every_provider
async def test_an_unknown_tool_beside_the_answer_is_not_looked_up(name: str) -> None:
    async with wired(name) as wire:
        wire.reply(Call("nobody", {}, "call_nobody"), RIGHT)
        recorder = await run(
            wire.adapter, output=City, resolve_tool_on_miss=never_asked, breaker=Breaker(max_retries=1)
        )
    assert recorder.finished.output == City(name="Rome", people=3)
    assert recorder.result is not None
    [unknown] = recorder.result.tool_results
    assert (unknown.permanently_failed, str(unknown.error)[:8]) == (False, "not run:")


@pytest.mark.asyncio
@every_provider
@pytest.mark.parametrize("first_is_right", [True, False])
async def test_two_answers_in_one_reply(name: str, first_is_right: bool) -> None:
    """The first one counts."""
    other = Call("final_result", {"name": "Paris", "people": 2}, "call_other")
    async with wired(name) as wire:
        if first_is_right:
            wire.reply(RIGHT, other)
            wire.reply(text="fine")
        else:
            wire.reply(FALSE, other)
            wire.reply(RIGHT)
        recorder = await run(wire.adapter, output=City)
        assert recorder.result is not None
        if first_is_right:
            await Turn(wire.adapter, "And?", tools=[add], conversation=recorder.result.conversation).result()
        second = wire.bodies[1]
    assert recorder.finished.output == City(name="Rome", people=3)
    assert wire.results(second) == [
        ("final_result", "accepted", False)
        if first_is_right
        else ("final_result", f"invalid final_result: {WHY}", True),
        ("final_result", "not used: final_result was called before in the same reply", True),
    ]


# replies that went wrong


def cut_off(wire: Wire) -> None:
    """A reply whose call of `final_result` the token limit cut off."""
    if wire.name in ("ai-studio", "vertex-gemini"):
        call = generate_content.partial_call(
            "final_result", [("$.name", "stringValue", "Ro")], id="call_cut", terminal=False
        )
        # the end never came
        call = generate_content.Parts(call.groups[:2])
        wire.provider.server.reply(call, finish_reason="MAX_TOKENS", vertex=wire.name == "vertex-gemini")
    else:
        wire.reply(Call("final_result", '{"name": "Ro', "call_cut"), truncated=True)


@pytest.mark.asyncio
@every_provider
async def test_an_answer_that_was_cut_off(name: str) -> None:
    async with wired(name) as wire:
        cut_off(wire)
        wire.reply(RIGHT)
        recorder = await run(wire.adapter, output=City)
        _, second = wire.bodies
    assert recorder.finished.output == City(name="Rome", people=3)
    assert listed(recorder) == set()
    told = "invalid final_result: the token limit cut it off; make it shorter"
    assert wire.results(second) == [("final_result", told, True)]


@pytest.mark.asyncio
@every_provider
async def test_an_answer_that_was_cut_off_for_good(name: str) -> None:
    async with wired(name) as wire:
        cut_off(wire)
        recorder = await run(wire.adapter, output=Output(City, retries=0))
    assert isinstance(recorder.error, InvalidOutputError)
    expected: Any = {"name": "Ro"} if "gemini" in name or "studio" in name else '{"name": "Ro'
    assert recorder.error.payload == expected


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["anthropic", "vertex-claude", "bedrock"])
async def test_arguments_that_do_not_parse(name: str) -> None:
    async with wired(name) as wire:
        wire.reply(Call("final_result", '{"name": Rome}', "call_raw"))
        wire.reply(RIGHT)
        recorder = await run(wire.adapter, output=City)
        _, second = wire.bodies
    assert recorder.finished.output == City(name="Rome", people=3)
    told = "invalid final_result: it must be one JSON object, but got '{\"name\": Rome}'"
    assert wire.results(second) == [("final_result", told, True)]


def refused(wire: Wire, *, with_call: bool) -> None:
    server = wire.provider.server
    if wire.name in ("ai-studio", "vertex-gemini"):
        parts = generate_content.call("final_result", ROME) if with_call else generate_content.text("I")
        server.reply(parts, finish_reason="SAFETY", vertex=wire.name == "vertex-gemini")
    elif wire.name == "bedrock":
        block = converse.tool_use("final_result", ROME) if with_call else converse.text("I")
        server.reply(block, stop_reason="guardrail_intervened")
    else:
        block = messages_api.tool_use("final_result", ROME) if with_call else messages_api.text("I")
        server.reply(block, stop_reason="refusal")


@pytest.mark.asyncio
@every_provider
@pytest.mark.parametrize("with_call", [True, False])
async def test_a_refusal_is_the_end(name: str, with_call: bool) -> None:
    """It is nothing to be corrected, and what came with it is no answer."""
    async with wired(name) as wire:
        refused(wire, with_call=with_call)
        recorder = await run(wire.adapter, output=City)
        assert len(wire.bodies) == 1
        assert recorder.result is not None
        assert (recorder.finished.finish_reason, recorder.finished.output) == ("content-filter", None)
        assert listed(recorder) == set()
        wire.reply(RIGHT)
        conversation = recorder.result.conversation
        again = await Turn(wire.adapter, "Please.", tools=[add], output=City, conversation=conversation).result()
        assert again.output == City(name="Rome", people=3)
        wire.said(wire.bodies[-1])


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["anthropic", "vertex-claude"])
async def test_a_pause_is_no_answer(name: str) -> None:
    search = messages_api.server_tool("web_search", {"query": "x"}, result=[])
    async with wired(name) as wire:
        wire.provider.server.reply(messages_api.text("Searching."), search[0], stop_reason="pause_turn")
        wire.provider.server.reply(messages_api.text("Found."), messages_api.tool_use("final_result", ROME))
        recorder = await run(wire.adapter, output=City, tools=[{"type": "web_search_20250305", "name": "web_search"}])
        first, second = wire.bodies
    assert recorder.finished.output == City(name="Rome", people=3)
    assert json.loads(recorder.finished.text) == ROME
    # the paused reply goes back as it is
    assert [message["role"] for message in second["messages"]] == ["user", "assistant"]
    assert [tool["name"] for tool in first["tools"]] == ["web_search", "final_result"]


SEARCH: dict[str, Any] = {"type": "web_search_20250305", "name": "web_search"}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "texts",
    [
        ['{"name": "Rome",', ' "people": 3}'],
        ['{"name"', ': "Rome",', ' "people": 3}'],
        ['```json\n{"name": "Rome"', ', "people": 3}\n```'],
        ["Searching.", '{"name": "Rome", "people": 3}'],
        ["Searching.", '```\n{"name": "Rome", "people": 3}\n```'],
    ],
)
async def test_a_native_answer_goes_on_after_a_pause(texts: list[str]) -> None:
    search = messages_api.server_tool("web_search", {"query": "x"}, result=[])
    async with wired("anthropic") as wire:
        for text in texts[:-1]:
            wire.provider.server.reply(messages_api.text(text), search[0], stop_reason="pause_turn")
        wire.provider.server.reply(messages_api.text(texts[-1]))
        recorder = await run(wire.adapter, output=Output(City, mode="native"), tools=[SEARCH])
        assert len(wire.bodies) == len(texts)
    assert recorder.finished.output == City(name="Rome", people=3)
    assert json.loads(recorder.finished.text) == ROME


@pytest.mark.asyncio
async def test_a_pause_before_a_wrong_native_answer_is_over_with_it() -> None:
    search = messages_api.server_tool("web_search", {"query": "x"}, result=[])
    async with wired("anthropic") as wire:
        wire.provider.server.reply(messages_api.text('{"name": '), search[0], stop_reason="pause_turn")
        wire.provider.server.reply(messages_api.text("Rome"))
        wire.provider.server.reply(messages_api.text(' "Rome", "people": 3}'))
        recorder = await run(wire.adapter, output=Output(City, mode="native"), tools=[SEARCH])
    assert isinstance(recorder.error, InvalidOutputError)
    assert recorder.error.payload == ' "Rome", "people": 3}'
    assert recorder.error.partial is not None
    assert recorder.error.partial.text == ' "Rome", "people": 3}'


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["ai-studio", "vertex-gemini"])
@pytest.mark.parametrize("with_call", [True, False])
async def test_a_malformed_call_of_gemini(name: str, with_call: bool) -> None:
    """On Vertex it gets its own corrective step, which takes none of the answer's; elsewhere it is the end."""
    vertex = name == "vertex-gemini"
    async with wired(name) as wire:
        parts = [generate_content.call("final_result", ROME)] if with_call else []
        wire.provider.server.reply(*parts, finish_reason="MALFORMED_FUNCTION_CALL", vertex=vertex)
        wire.reply(FALSE)
        wire.reply(RIGHT)
        recorder = await run(wire.adapter, output=City)
        bodies = wire.bodies
    assert listed(recorder) == set()
    if vertex:
        assert recorder.types.count("malformed_retried") == 1
        assert recorder.finished.output == City(name="Rome", people=3)
        assert [len(wire.results(body)) for body in bodies] == [0, 0, 1]
    else:
        assert (recorder.finished.finish_reason, recorder.finished.output) == ("error", None)
        assert len(bodies) == 1


@pytest.mark.asyncio
@every_provider
async def test_a_connection_that_breaks_in_the_answer(name: str) -> None:
    """Cut after every event of the reply: the conversation can be sent, and lists no call of `final_result`."""
    async with wired(name) as wire:
        chunks = chunks_of(wire, ADD, RIGHT, text="So:")
        for cut in range(len(chunks) - 1):
            wire.provider.server.script(streamed(wire, [*chunks[:cut], Close()]))
            recorder = await run(wire.adapter, output=City)
            assert isinstance(recorder.error, StreamInterruptedError), cut
            assert recorder.error.partial is not None
            assert "final_result" not in listed(recorder)
            await continued(wire, recorder.error.partial.conversation)


def chunks_of(wire: Wire, *calls: Call, text: str = "") -> list[bytes]:
    """A whole reply, event by event; the last one tells that it is whole."""
    if wire.name in ("ai-studio", "vertex-gemini"):
        vertex = wire.name == "vertex-gemini"
        parts = [generate_content.call(call.name, dict(call.arguments), id=call.call_id) for call in calls]  # type: ignore[arg-type]
        events = generate_content.chunks(generate_content.text(text), *parts, finish_apart=True, vertex=vertex)
        return [generate_content.sse(event, vertex=vertex) for event in events]
    if wire.name == "bedrock":
        blocks = [converse.tool_use(call.name, call.arguments, id=call.call_id) for call in calls]
        # what follows the last is the usage
        return [converse.encoded(event) for event in converse.message(converse.text(text), *blocks)[:-1]]
    made = [messages_api.tool_use(call.name, call.arguments, id=call.call_id) for call in calls]
    return messages_api.message(messages_api.text(text), *made)


def streamed(wire: Wire, actions: Sequence[Any]) -> Any:
    from tests.providers.eventstream import CONTENT_TYPE
    from tests.providers.http import Reply as Response

    kind = CONTENT_TYPE if wire.name == "bedrock" else "text/event-stream"
    return Response(200, {"content-type": kind}, list(actions))


async def continued(wire: Wire, conversation: Any) -> None:
    """Another turn on what is left of one."""
    before = len(wire.bodies)
    wire.reply(text="fine")
    result = await Turn(wire.adapter, "go on", tools=[add], conversation=conversation, retry=NO_RETRY).result()
    assert result.text == "fine"
    wire.said(wire.bodies[before])


# a stop, a disposal or a failure at any event


@dataclass
class Left:
    """What is left of a run that was left at some event."""

    events: list[TurnEvent]
    result: TurnResult
    error: Exception | None = None


async def leave(wire: Wire, how: str, position: int | None) -> Left:
    """A turn of three steps, one of them a correction, that is left at one of its events."""
    wire.reply(ADD, text="I add.")
    wire.reply(Call("add", {"a": 1, "b": 1}, "call_more"), FALSE, text="So:")
    wire.reply(Call("add", {"a": 2, "b": 2}, "call_late"), RIGHT, text="There:")
    recorder = Recorder()
    stop: Subject[None] = Subject()
    subscription, gone = SingleAssignmentDisposable(), asyncio.Event()

    def on_next(event: TurnEvent) -> None:
        recorder.on_next(event)
        if len(recorder.events) - 1 != position:
            return
        if how == "stop":
            stop.on_next(None)
        elif how == "dispose":
            subscription.dispose()
            gone.set()
        else:
            raise LookupError("the subscriber's own")

    turn = Turn(
        wire.adapter, "x", tools=[add], output=City, stop=stop, retry=NO_RETRY, on_end=recorder.keep, sequential=True
    )
    subscription.disposable = turn.subscribe(on_next, recorder.on_error, recorder.on_completed)
    # a subscription that is not there yet cannot be disposed
    synchronous = len(recorder.events)
    async with asyncio.timeout(20):
        await (gone if how == "dispose" and position is not None else recorder.ended).wait()
    await wire.provider.settled()
    if how == "dispose" and position is not None:
        assert len(recorder.events) == max(position + 1, synchronous)
        assert not recorder.ended.is_set()
    assert recorder.result is not None
    # replies that it did not come to ask for
    wire.provider.server._script.clear()
    return Left(recorder.events, recorder.result, recorder.error)


@pytest.mark.asyncio
@every_provider
@pytest.mark.parametrize("how", ["stop", "dispose", "fail"])
async def test_whenever_it_is_left_the_conversation_is_sealed(name: str, how: str) -> None:
    async with wired(name) as wire:
        whole = await leave(wire, "stop", None)
        assert whole.result.output == City(name="Rome", people=3)
        answered = whole.events.index(
            next(event for event in whole.events if event.type == "step_finished" and event.step == 2)
        )
        for position in range(len(whole.events) - 1):
            left = await leave(wire, how, position)
            result = left.result
            names = {call.name for call in result.tool_calls} | {item.name for item in result.tool_results}
            assert names <= {"add"}, position
            if how == "fail":
                assert isinstance(left.error, LookupError)
            else:
                assert result.finish_reason == "aborted"
                assert left.error is None
            # once the answer was there, it stays
            assert (result.output is not None) is (position >= answered), position
            await continued(wire, result.conversation)


# who may have which tools


@pytest.mark.asyncio
@every_provider
async def test_the_name_is_taken(name: str) -> None:
    @tool(name="final_result")
    async def mine() -> None:
        """A tool of the caller's."""

    words = "^a turn with output must not have a tool of its own named 'final_result'$"
    async with wired(name) as wire:
        with pytest.raises(ConfigurationError, match=words):
            Turn(wire.adapter, "x", tools=[add, mine], output=City)
        with pytest.raises(ConfigurationError, match=words):
            Turn(wire.adapter, "x", tools=[{"name": "final_result", "input_schema": {}}], output=City)
        # without output it is a name like any other
        wire.reply(Call("final_result", {}, "c"))
        wire.reply(text="done")
        result = await Turn(wire.adapter, "x", tools=[mine], retry=NO_RETRY).result()
        assert [call.name for call in result.tool_calls] == ["final_result"]


@pytest.mark.asyncio
@every_provider
async def test_the_name_is_taken_in_a_later_step(name: str) -> None:
    @tool(name="final_result")
    async def mine() -> None:
        """A tool of the caller's."""

    tools = [add]
    async with wired(name) as wire:
        wire.reply(ADD)
        recorder = await run(
            wire.adapter,
            tools=lambda: tools,
            output=City,
            watch=lambda event: tools.append(mine) if event.type == "tool_finished" else None,
        )
        assert len(wire.bodies) == 1
        assert isinstance(recorder.error, ConfigurationError)
        assert "named 'final_result'" in str(recorder.error)
        assert recorder.error.partial is not None
        assert [item.output for item in recorder.error.partial.tool_results] == [5]
        await continued(wire, recorder.error.partial.conversation)


@pytest.mark.asyncio
@every_provider
async def test_tools_that_change_and_tools_that_are_found(name: str) -> None:
    spy = Spy()
    tools = [add]
    found: list[str] = []

    def find(wanted: str) -> Tool:
        found.append(wanted)
        return spy.tool

    async with wired(name) as wire:
        wire.reply(look(1))
        wire.reply(RIGHT)
        recorder = await run(wire.adapter, tools=lambda: tools, output=City, resolve_tool_on_miss=find)
        first, second = wire.bodies
    assert recorder.finished.output == City(name="Rome", people=3)
    assert (found, spy.ran) == (["look"], [1])
    assert list(wire.declared(first)) == ["add", "final_result"]
    assert list(wire.declared(second)) == ["add", "look", "final_result"]


@pytest.mark.asyncio
@every_provider
@pytest.mark.parametrize("tools", [list, lambda: iter(())], ids=["a function", "an iterator"])
async def test_tools_that_may_come_count_as_tools(name: str, tools: Callable[[], Any]) -> None:
    async with wired(name) as wire:
        wire.reply(RIGHT)
        await Turn(wire.adapter, "x", tools=tools, output=City, retry=NO_RETRY).result()
        [body] = wire.bodies
    assert list(wire.declared(body)) == ["final_result"]


@pytest.mark.asyncio
async def test_an_empty_iterator_is_no_tools() -> None:
    async with wired("anthropic") as wire:
        wire.reply(text=json.dumps(ROME))
        await Turn(wire.adapter, "x", tools=iter(()), output=City, retry=NO_RETRY).result()
        [body] = wire.bodies
    assert "tools" not in body
    assert "output_config" in body


class Plain(Adapter):
    provider = "plain"
    model = "plain-1"

    async def do_stream(self, request: Any) -> TextStream:
        async def words() -> AsyncIterator[str]:
            yield json.dumps(ROME)

        return TextStream(words())


class Held(Plain):
    """One that can be held to a schema."""

    def native_output(self, schema: Any) -> bool:
        return True


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", ["auto", "native", "cooperative", "coercive"])
async def test_a_provider_of_plain_text_is_refused(mode: Any) -> None:
    words = "^output needs a provider with tools, or with structured answers of its own, but Plain has neither$"
    with pytest.raises(ConfigurationError, match=words):
        Turn(Plain(), "x", output=Output(City, mode=mode))
    if mode in ("auto", "native"):
        result = await Turn(Held(), "x", output=Output(City, mode=mode)).result()
        assert result.output == City(name="Rome", people=3)
    else:
        with pytest.raises(ConfigurationError, match=r"^Held supports no tools, but got 'final_result'$"):
            Turn(Held(), "x", output=Output(City, mode=mode))


# the provider's own way


def native_schema(wire: Wire, body: Any) -> Any:
    """The schema that a request asks for in the provider's own way."""
    if wire.name in ("ai-studio", "vertex-gemini"):
        config = body["generationConfig"]
        assert config["responseMimeType"] == "application/json"
        return config["responseJsonSchema"]
    if wire.name == "bedrock":
        asked = body["outputConfig"]["textFormat"]
        assert asked["type"] == "json_schema"
        assert asked["structure"]["jsonSchema"].keys() == {"name", "schema"}
        return json.loads(asked["structure"]["jsonSchema"]["schema"])
    asked = body["output_config"]["format"]
    assert asked.keys() == {"type", "schema"}
    assert asked["type"] == "json_schema"
    return asked["schema"]


with_native = pytest.mark.parametrize("name", ["anthropic", "ai-studio", "vertex-gemini", "bedrock"])


@pytest.mark.asyncio
@with_native
async def test_without_tools_it_is_the_providers_own_way(name: str) -> None:
    async with wired(name) as wire:
        wire.reply(text=json.dumps(ROME), usage=Usage(20, 9))
        recorder = await run(wire.adapter, tools=[], output=City)
        [body] = wire.bodies
    assert recorder.finished.output == City(name="Rome", people=3)
    assert recorder.finished.text == recorder.text == json.dumps(ROME)
    assert (recorder.finished.finish_reason, recorder.finished.steps) == ("stop", 1)
    schema = native_schema(wire, body)
    assert schema["properties"].keys() == {"name", "people"}
    # constrained decoding wants objects closed, and knows no bounds
    closed = name in ("anthropic", "bedrock")
    assert (schema.get("additionalProperties") is False) is closed
    assert ("minimum" in schema["properties"]["people"]) is not closed
    assert not {"tools", "toolConfig", "tool_choice"} & body.keys()


@pytest.mark.asyncio
@with_native
async def test_a_wrong_native_answer_is_corrected(name: str) -> None:
    """A bound that cannot be decoded for is validated all the same."""
    async with wired(name) as wire:
        wire.reply(text=json.dumps(WRONG), usage=Usage(20, 9))
        wire.reply(text=json.dumps(ROME), usage=Usage(30, 7))
        recorder = await run(wire.adapter, tools=[], output=City)
        _, second = wire.bodies
    assert recorder.finished.output == City(name="Rome", people=3)
    assert (recorder.finished.usage, recorder.finished.text) == (Usage(50, 16), json.dumps(ROME))
    assert native_schema(wire, second) == native_schema(wire, wire.bodies[0])
    told = f"The answer does not have the format that was asked for: {WHY}. Give it again."
    assert [item.content for item in wire.said(second)] == ["hello", json.dumps(WRONG), told]


@pytest.mark.asyncio
@with_native
async def test_native_corrections_end(name: str) -> None:
    async with wired(name) as wire:
        wire.reply(text="Rome", truncated=True)
        wire.reply(text=json.dumps(WRONG))
        recorder = await run(wire.adapter, tools=[], output=City)
        error = recorder.error
        assert isinstance(error, InvalidOutputError)
        assert error.payload == WRONG
        assert error.partial is not None
        assert error.partial.text == json.dumps(WRONG)
        await continued(wire, error.partial.conversation)
        told = "the token limit cut it off; make it shorter. Give it again."
        assert str(wire.said(wire.bodies[1])[-1].content).endswith(told)


@pytest.mark.asyncio
@with_native
async def test_a_native_turn_may_follow_one_with_tools(name: str) -> None:
    async with wired(name) as wire:
        wire.reply(ADD)
        wire.reply(RIGHT)
        first = await Turn(wire.adapter, "x", tools=[add], output=City, retry=NO_RETRY).result()
        wire.reply(text=json.dumps(ROME))
        turn = Turn(wire.adapter, "Again.", output=City, conversation=first.conversation, retry=NO_RETRY)
        assert (await turn.result()).output == City(name="Rome", people=3)
        body = wire.bodies[-1]
    assert native_schema(wire, body)
    assert [item.name for item in wire.said(body) if item.kind == "result"] == ["add", "final_result"]


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["anthropic", "bedrock"])
@pytest.mark.parametrize("kind", [dict[str, int], list[Any], {"type": "object", "additionalProperties": True}])
async def test_a_schema_that_cannot_be_closed_goes_through_the_tool(name: str, kind: Any) -> None:
    async with wired(name) as wire:
        wire.reply(Call("final_result", {"result": []} if kind == list[Any] else {"result": {}}, "c"))
        await Turn(wire.adapter, "x", output=kind, retry=NO_RETRY).result()
        [body] = wire.bodies
    assert list(wire.declared(body)) == ["final_result"]
    assert wire.choice(body) is None
    assert not {"output_config", "outputConfig"} & body.keys()


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["anthropic", "vertex-claude", "bedrock"])
async def test_native_by_name_is_refused_where_the_schema_cannot_be_closed(name: str) -> None:
    async with wired(name) as wire:
        for kind, words in (
            (dict[str, int], "but result is an object with any keys"),
            (Tree, r"but #/\$defs/Tree holds itself"),
        ):
            with pytest.raises(ConfigurationError, match=f"^output in the mode 'native' must have .*, {words}; "):
                Turn(wire.adapter, "x", output=Output(kind, mode="native"))
        assert wire.bodies == []


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["ai-studio", "vertex-gemini"])
async def test_gemini_takes_every_schema(name: str) -> None:
    async with wired(name) as wire:
        wire.reply(text=json.dumps(TREE))
        Turn(wire.adapter, "x", output=Output(Tree, mode="native"))
        result = await Turn(wire.adapter, "x", output=Tree, retry=NO_RETRY).result()
        [body] = wire.bodies
    assert result.output == Tree(value=1, children=[Tree(value=2)])
    assert native_schema(wire, body)["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}


@pytest.mark.asyncio
# the SDK's own, of models that end some day
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("model", "native"),
    [
        ("claude-sonnet-4-5-20250929", True),
        ("claude-3-7-sonnet-20250219", False),
        ("claude-sonnet-4-20250514", False),
    ],
)
async def test_models_from_before_it_go_through_the_tool(model: str, native: bool) -> None:
    with AnthropicServer() as server:
        server.reply(messages_api.text(json.dumps(ROME)))
        async with server.client() as client:
            await Turn(AnthropicAdapter(client, model=model), "x", output=City, retry=NO_RETRY).result()
        [body] = server.messages
    assert ("output_config" in body) is native
    assert ("tools" in body) is not native


@pytest.mark.asyncio
async def test_what_the_caller_asked_for_stays_beside_it() -> None:
    with AnthropicServer() as server:
        server.reply(messages_api.text(json.dumps(ROME)))
        async with server.client() as client:
            fields: Any = {"output_config": {"effort": "low"}, "betas": ["context-management-2025-06-27"]}
            await Turn(AnthropicAdapter(client, model="claude-test", **fields), "x", output=City).result()
        [body] = server.messages
    assert body["output_config"].keys() == {"effort", "format"}
    with GeminiServer() as gemini:
        for _ in range(2):
            gemini.reply(generate_content.text(json.dumps(ROME)))
        client = gemini.client()
        config: Any = {"response_schema": {"type": "STRING"}, "temperature": 0.5}
        adapter = GeminiAdapter(client, model="gemini-test", **config)
        await Turn(adapter, "x", output=City).result()
        await Turn(adapter, "x").result()
        await client.aio.aclose()
        asked, plain = gemini.bodies
    # of the two fields for a schema only one may be there
    assert asked["generationConfig"].keys() == {"responseMimeType", "responseJsonSchema", "temperature"}
    assert plain["generationConfig"] == {"responseSchema": {"type": "STRING"}, "temperature": 0.5}


@pytest.mark.asyncio
@every_provider
async def test_native_beside_tools_is_whose_asks_for_it(name: str) -> None:
    """Some models take both; a tool of the name is a tool like any other then."""

    @tool(name="final_result")
    async def mine() -> str:
        """A tool of the caller's."""
        return "mine"

    async with wired(name) as wire:
        wire.reply(Call("final_result", {}, "c"))
        wire.reply(text=json.dumps(ROME))
        recorder = await run(wire.adapter, tools=[mine], output=Output(City, mode="native"))
        first, _ = wire.bodies
    assert recorder.finished.output == City(name="Rome", people=3)
    assert [call.name for call in recorder.finished.tool_calls] == ["final_result"]
    assert list(wire.declared(first)) == ["final_result"]
    assert native_schema(wire, first)


# by force


@pytest.mark.asyncio
async def test_two_ordinary_steps_and_a_forced_one() -> None:
    async with wired("vertex-claude") as wire:
        wire.reply(ADD)
        wire.reply(Call("add", {"a": 1, "b": 1}, "call_2"))
        wire.reply(RIGHT)
        recorder = await run(wire.adapter, output=City, max_steps=3)
        bodies = wire.bodies
    assert recorder.finished.output == City(name="Rome", people=3)
    assert (recorder.finished.finish_reason, recorder.finished.steps) == ("stop", 3)
    assert [body["tool_choice"] for body in bodies] == [
        {"type": "any"},
        {"type": "any"},
        {"type": "tool", "name": "final_result"},
    ]
    # the other tools stay declared: the prompt's beginning stays what it was
    assert [list(wire.declared(body)) for body in bodies] == [["add", "final_result"]] * 3


@pytest.mark.asyncio
async def test_a_model_that_answers_by_itself_is_not_forced() -> None:
    async with wired("vertex-claude") as wire:
        wire.reply(ADD)
        wire.reply(RIGHT)
        recorder = await run(wire.adapter, output=City, max_steps=3)
        assert len(wire.bodies) == 2
        assert not wire.provider.server.unexpected
    assert recorder.finished.output == City(name="Rome", people=3)


@pytest.mark.asyncio
async def test_a_single_step_is_the_forced_one() -> None:
    async with wired("vertex-claude") as wire:
        wire.reply(RIGHT)
        await run(wire.adapter, output=City, max_steps=1)
        wire.reply(FALSE)
        recorder = await run(wire.adapter, output=Output(City, retries=3), max_steps=1)
        assert [wire.choice(body) for body in wire.bodies] == ["final_result"] * 2
    assert isinstance(recorder.error, InvalidOutputError)


@pytest.mark.asyncio
async def test_a_forced_answer_that_is_wrong_is_the_end() -> None:
    """The cap is the cap."""
    async with wired("vertex-claude") as wire:
        wire.reply(ADD)
        wire.reply(FALSE)
        recorder = await run(wire.adapter, output=Output(City, retries=3), max_steps=2)
        assert [wire.choice(body) for body in wire.bodies] == ["any", "final_result"]
    assert isinstance(recorder.error, InvalidOutputError)
    assert recorder.error.payload == WRONG


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["anthropic", "ai-studio", "vertex-gemini", "bedrock"])
async def test_whoever_asks_for_it_gets_it_everywhere(name: str) -> None:
    async with wired(name) as wire:
        wire.reply(ADD)
        wire.reply(RIGHT)
        output = Output(City, mode="coercive", description="The city.")
        recorder = await run(wire.adapter, output=output, max_steps=2)
        bodies = wire.bodies
    assert recorder.finished.output == City(name="Rome", people=3)
    assert [wire.choice(body) for body in bodies] == ["any", "final_result"]
    assert "The city." in json.dumps(bodies[0])


@pytest.mark.asyncio
async def test_vertex_may_be_asked_to_cooperate() -> None:
    async with wired("vertex-claude") as wire:
        wire.reply(ADD)
        wire.reply(RIGHT)
        await run(wire.adapter, output=Output(City, mode="cooperative"), max_steps=2)
        assert [wire.choice(body) for body in wire.bodies] == [None, None]


@pytest.mark.asyncio
async def test_a_model_on_vertex_that_cannot_be_forced_is_told_in_the_last_step() -> None:
    with AnthropicServer() as server:
        server.reply(messages_api.tool_use("add", {"a": 1, "b": 1}))
        server.reply(messages_api.tool_use("final_result", ROME))
        async with client_of(server) as client:
            adapter = AnthropicAdapter(client, model="claude-sonnet-5-5", cache=None)
            result = await Turn(adapter, "x", tools=[add], output=City, max_steps=2, retry=NO_RETRY).result()
        bodies = [request.json for request in server.requests]
    assert result.output == City(name="Rome", people=3)
    assert [body.keys() & {"tool_choice", "thinking"} for body in bodies] == [set(), set()]
    assert [json.dumps(body).count(REMINDER) for body in bodies] == [0, 1]
    # it is a part of what was said
    assert json.dumps(result.conversation).count(REMINDER) == 1


async def vertex_turn(max_steps: int, **fields: Any) -> list[Any]:
    """The bodies of a turn whose last step is the forced one."""
    with AnthropicServer() as server:
        for number in range(max_steps - 1):
            server.reply(
                messages_api.thinking("hm", signature=f"sig{number}"),
                messages_api.tool_use("add", {"a": 1, "b": 1}, id=f"toolu_{number}"),
            )
        server.reply(messages_api.tool_use("final_result", ROME))
        async with client_of(server) as client:
            adapter = AnthropicAdapter(client, model="claude-test", cache=None, **fields)
            turn = Turn(adapter, "x", tools=[add], output=City, max_steps=max_steps, retry=NO_RETRY)
            assert (await turn.result()).output == City(name="Rome", people=3)
        return [request.json for request in server.requests]


@pytest.mark.asyncio
async def test_thinking_and_force_exclude_each_other() -> None:
    thinking = {"type": "enabled", "budget_tokens": 2000}
    bodies = await vertex_turn(3, thinking=thinking)
    assert [body.get("tool_choice") for body in bodies] == [None, None, {"type": "tool", "name": "final_result"}]
    assert [body["thinking"] for body in bodies] == [thinking, thinking, {"type": "disabled"}]
    # what was thought goes back as it is
    assert "sig0" in json.dumps(bodies[2])
    assert "sig1" in json.dumps(bodies[2])


@pytest.mark.asyncio
async def test_what_needs_thinking_goes_with_it() -> None:
    edits = [{"type": "clear_thinking_20251015"}, {"type": "clear_tool_uses_20250919"}]
    fields: dict[str, Any] = {
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "max"},
        "context_management": {"edits": edits, "x": 1},
        "betas": ["context-management-2025-06-27"],
    }
    first, forced = await vertex_turn(2, **fields)
    assert (first["output_config"], first["context_management"]) == ({"effort": "max"}, {"edits": edits, "x": 1})
    assert forced["thinking"] == {"type": "disabled"}
    assert forced["output_config"] == {"effort": "high"}
    assert forced["context_management"] == {"edits": edits[1:], "x": 1}
    # and only what needs it
    fields = {**fields, "output_config": {"effort": "low"}, "context_management": {"edits": edits[1:]}}
    _, forced = await vertex_turn(2, **fields)
    assert (forced["output_config"], forced["context_management"]) == ({"effort": "low"}, {"edits": edits[1:]})


@pytest.mark.asyncio
async def test_a_callers_word_on_parallel_calls_stays() -> None:
    bodies = await vertex_turn(2, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert [body["tool_choice"] for body in bodies] == [
        {"type": "any", "disable_parallel_tool_use": True},
        {"type": "tool", "name": "final_result", "disable_parallel_tool_use": True},
    ]
    # with thinking the choice is the caller's
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    first, _ = await vertex_turn(2, tool_choice=choice, thinking={"type": "enabled", "budget_tokens": 2000})
    assert first["tool_choice"] == choice


@pytest.mark.asyncio
async def test_what_gemini_was_told_of_calls_stays() -> None:
    with GeminiServer() as server:
        server.reply(generate_content.call("add", {"a": 1, "b": 1}))
        server.reply(generate_content.call("final_result", ROME))
        client = server.client()
        calling = {"mode": "ANY", "allowedFunctionNames": ["add"], "streamFunctionCallArguments": True}
        config = {"functionCallingConfig": calling, "retrievalConfig": {"languageCode": "de"}}
        adapter = GeminiAdapter(client, model="gemini-test", tool_config=config)
        await Turn(adapter, "x", tools=[add], output=Output(City, mode="coercive"), max_steps=2).result()
        await client.aio.aclose()
        bodies = server.bodies
    assert [body["toolConfig"]["functionCallingConfig"] for body in bodies] == [
        # it may be the answer as well
        {"mode": "ANY", "streamFunctionCallArguments": True},
        {"mode": "ANY", "streamFunctionCallArguments": True, "allowedFunctionNames": ["final_result"]},
    ]
    assert [body["toolConfig"]["retrievalConfig"] for body in bodies] == [{"languageCode": "de"}] * 2


async def bedrock_turn(model: str, **further: Any) -> list[Any]:
    with BedrockServer() as server:
        server.reply(converse.tool_use("add", {"a": 1, "b": 1}))
        server.reply(converse.tool_use("final_result", ROME))
        client = server.client()
        fields: Any = {"additionalModelRequestFields": further} if further else {}
        adapter = BedrockAdapter(client, model=model, **fields)
        output = Output(City, mode="coercive")
        await Turn(adapter, "x", tools=[add], output=output, max_steps=2, retry=NO_RETRY).result()
        client.close()
        return [
            (body["toolConfig"].get("toolChoice"), body.get("additionalModelRequestFields")) for body in server.bodies
        ]


@pytest.mark.asyncio
async def test_bedrock_keeps_to_the_same_rule() -> None:
    forced = {"tool": {"name": "final_result"}}
    old, five = bedrock_provider.MODEL, "us.anthropic.claude-opus-5"
    off, on = {"type": "disabled"}, {"type": "enabled", "budget_tokens": 2000}
    assert await bedrock_turn(old) == [({"any": {}}, None), (forced, None)]
    for key in ("thinking", "reasoning_config"):
        beta = {"anthropic_beta": ["x"]}
        assert await bedrock_turn(old, **{key: on}, **beta) == [(None, {key: on, **beta}), (forced, beta)]
        assert await bedrock_turn(old, **{key: off}) == [({"any": {}}, {key: off}), (forced, {key: off})]
    # a model that thinks unless it is told not to
    assert await bedrock_turn(five) == [(None, None), (forced, {"thinking": off})]
    assert await bedrock_turn(five, thinking=off) == [({"any": {}}, {"thinking": off}), (forced, {"thinking": off})]


# a cap that may be raised


@pytest.mark.asyncio
async def test_a_renewal_comes_before_the_forced_step() -> None:
    asked: list[CapReached] = []

    def renew(reached: CapReached) -> Renewal | None:
        asked.append(reached)
        return Renewal(3, "go on") if len(asked) == 1 else None

    async with wired("vertex-claude") as wire:
        wire.reply(ADD)
        wire.reply(Call("add", {"a": 1, "b": 1}, "call_2"))
        wire.reply(RIGHT)
        recorder = await run(wire.adapter, output=City, max_steps=2, renew=renew)
        bodies = wire.bodies
    assert recorder.finished.output == City(name="Rome", people=3)
    assert asked == [CapReached(2), CapReached(3)]
    assert [wire.choice(body) for body in bodies] == ["any", "any", "final_result"]
    assert wire.said(bodies[1])[-1].content == "go on"


@pytest.mark.asyncio
@pytest.mark.parametrize("max_steps", [1, 2])
async def test_a_cap_that_is_not_raised_has_its_forced_step(max_steps: int) -> None:
    asked: list[CapReached] = []
    async with wired("vertex-claude") as wire:
        if max_steps == 2:
            wire.reply(ADD)
        wire.reply(RIGHT)
        recorder = await run(wire.adapter, output=City, max_steps=max_steps, renew=asked.append)
        assert [wire.choice(body) for body in wire.bodies] == ["any", "final_result"][2 - max_steps :]
    assert recorder.finished.output == City(name="Rome", people=3)
    # of a single step there is nothing to be asked for
    assert asked == [CapReached(2)][2 - max_steps :]


@pytest.mark.asyncio
async def test_text_at_a_cap_that_is_not_raised() -> None:
    """The forced step that it brought forward is the one that was kept."""
    async with wired("vertex-claude") as wire:
        wire.reply(text="It is Rome.")
        wire.reply(RIGHT)
        recorder = await run(wire.adapter, output=City, max_steps=2, renew=lambda reached: None)
        assert [wire.choice(body) for body in wire.bodies] == ["any", "final_result"]
    assert recorder.finished.output == City(name="Rome", people=3)


@pytest.mark.asyncio
@every_provider
@pytest.mark.parametrize("raised", [True, False])
async def test_a_correction_at_a_cap_that_may_be_raised(name: str, raised: bool) -> None:
    async with wired(name) as wire:
        wire.reply(ADD)
        wire.reply(FALSE)
        wire.reply(RIGHT)
        # with a forced step kept for it, the answer cannot be corrected in it
        cap = 3 if wire.coercive else 2
        recorder = await run(
            wire.adapter,
            output=City,
            max_steps=cap,
            renew=lambda reached: 9 if raised and reached.max_steps < 9 else None,
        )
        if raised or wire.coercive:
            assert recorder.finished.output == City(name="Rome", people=3)
            assert len(wire.bodies) == 3
            return
        assert len(wire.bodies) == 2
        error = recorder.error
        assert isinstance(error, InvalidOutputError)
        assert error.payload == WRONG
        assert error.partial is not None
        assert error.partial.steps == 2
        await continued(wire, error.partial.conversation)


@pytest.mark.asyncio
@every_provider
async def test_a_cap_that_is_reached_without_an_answer(name: str) -> None:
    """Whoever cooperates may fail to: the calls of the last step still run, and there is no output."""
    async with wired(name) as wire:
        wire.reply(ADD)
        recorder = await run(wire.adapter, output=Output(City, mode="cooperative"), max_steps=1)
    assert (recorder.finished.finish_reason, recorder.finished.output) == ("tool-calls", None)
    assert recorder.result is not None
    assert [item.output for item in recorder.result.tool_results] == [5]


@pytest.mark.asyncio
async def test_a_stop_while_a_correction_is_due_is_a_stop() -> None:
    stop: Subject[None] = Subject()
    async with wired("anthropic") as wire:
        wire.reply(FALSE)
        recorder = await run(
            wire.adapter,
            output=City,
            stop=stop,
            watch=lambda event: stop.on_next(None) if event.type == "step_finished" else None,
        )
    assert (recorder.finished.finish_reason, recorder.finished.output) == ("aborted", None)


@pytest.mark.asyncio
async def test_a_window_that_is_full_when_a_correction_is_due() -> None:
    """Nothing can give way: the turn fails with the answer that it had, not with no answer."""
    async with wired("anthropic") as wire:
        wire.reply(FALSE, usage=Usage(9_990, 9))
        recorder = await run(wire.adapter, output=City, reclaim=Reclaim(window=10_000))
        assert len(wire.bodies) == 1
        assert isinstance(recorder.error, InvalidOutputError)
        assert recorder.error.payload == WRONG
        assert recorder.error.partial is not None
        await continued(wire, recorder.error.partial.conversation)


@pytest.mark.asyncio
async def test_the_answers_schema_counts_as_a_part_of_the_prompt() -> None:
    """Where the estimate left it out, a large one would hide as many tokens of what was added."""
    large: Any = {
        "type": "object",
        "properties": {"x": {"type": "string", "description": "word " * 4_000}},
        "required": ["x"],
    }
    seen: list[str] = []
    async with wired("anthropic") as wire:
        for number in range(4):
            wire.reply(Call("search", {"query": str(number)}, f"call_{number}"), usage=Usage(6_000 + 1_500 * number, 9))
        wire.reply(Call("final_result", {"x": "y"}, "call_x"))

        @tool
        async def search(query: str) -> str:
            """Search."""
            return query + "word " * 1_200

        await run(
            wire.adapter,
            tools=[search],
            output=large,
            reclaim=Reclaim(window=12_000, threshold=0.8, target=0.6, keep_steps=1),
            watch=lambda event: seen.append(event.type),
        )
    assert "context_reclaimed" in seen


# as it comes


class Growing(BaseModel):
    name: str = ""
    people: int = 0


@pytest.mark.asyncio
@every_provider
async def test_snapshots_while_it_streams(name: str) -> None:
    async with wired(name) as wire:
        wire.reply(ADD)
        wire.reply(Call("final_result", {"name": "Rome", "people": "many"}, "call_bad"))
        wire.reply(RIGHT)
        turn = Turn(wire.adapter, "x", tools=[add], output=Growing, retry=NO_RETRY)
        snapshots = [snapshot async for snapshot in iterate(turn.pipe(partial_output(Growing)))]
    assert snapshots[-1] == Growing(name="Rome", people=3)
    assert {type(snapshot) for snapshot in snapshots} == {Growing}
    if name in ("ai-studio", "vertex-gemini"):
        # whole calls: the wrong one makes none
        assert snapshots == [Growing(name="Rome", people=3)]
    else:
        assert len(snapshots) > 2


@pytest.mark.asyncio
@with_native
async def test_native_snapshots_while_it_streams(name: str) -> None:
    async with wired(name) as wire:
        wire.provider.reply(Reply(text=['{"name": "Ro', 'me", "peo', 'ple": 3}']))
        turn = Turn(wire.adapter, "x", output=Growing, retry=NO_RETRY)
        snapshots = [one async for one in iterate(turn.pipe(partial_output(Growing, native=True)))]
    assert snapshots == [Growing(name="Ro"), Growing(name="Rome"), Growing(name="Rome", people=3)]


@pytest.mark.asyncio
async def test_the_operator_of_calls_shows_what_comes() -> None:
    async with wired("anthropic") as wire:
        wire.reply(ADD)
        wire.reply(RIGHT)
        turn = Turn(wire.adapter, "x", tools=[add], output=City, retry=NO_RETRY)
        names = [call.name async for call in iterate(turn.pipe(tool_calls()))]
    assert names == ["add", "final_result"]


@pytest.mark.asyncio
@every_provider
async def test_two_runs_of_a_turn_know_nothing_of_each_other(name: str) -> None:
    async with wired(name) as wire:
        for _ in range(2):
            wire.reply(FALSE)
            wire.reply(RIGHT)
        turn = Turn(wire.adapter, "x", tools=[add], output=City, retry=NO_RETRY)
        assert [(await turn.result()).output for _ in range(2)] == [City(name="Rome", people=3)] * 2
        assert len(wire.bodies) == 4


@pytest.mark.asyncio
async def test_a_turn_in_a_tool_gives_its_output() -> None:
    with AnthropicServer() as server:
        server.reply(messages_api.tool_use("ask", {}))
        server.reply(messages_api.tool_use("final_result", ROME, id="toolu_inner"))
        server.reply(messages_api.text("done"))
        async with server.client() as client:
            adapter = AnthropicAdapter(client, model="claude-test", cache=None)

            @tool
            async def ask(context: ToolContext) -> City:
                """Ask another one."""
                result = await Turn(adapter, "x", tools=[add], output=City, retry=NO_RETRY).result()
                assert isinstance(result.output, City)
                return result.output

            result = await Turn(adapter, "x", tools=[ask], retry=NO_RETRY).result()
    assert [item.output for item in result.tool_results] == [ROME]


# the JSON form


class Colour(Enum):
    RED = "red"


class Rich(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    day: date
    colour: Colour
    amount: Decimal
    ratio: float
    data: Base64Bytes
    tags: set[str]
    by_number: dict[int, str]
    renamed: int = Field(alias="re-named")


RICH = {
    "day": "2026-11-30",
    "colour": "red",
    "amount": "1.50",
    "ratio": 1,
    "data": "/w==",
    "tags": ["a"],
    "by_number": {"1": "x"},
    "re-named": 3,
}


@pytest.mark.asyncio
async def test_the_last_event_has_a_json_form() -> None:
    async with wired("anthropic") as wire:
        wire.reply(Call("final_result", RICH, "c"))
        recorder = await run(wire.adapter, output=Rich)
    finished = recorder.finished
    assert isinstance(finished.output, Rich)
    assert finished.output.data == b"\xff"
    data = finished.to_dict()
    assert list(data) == [
        "type", "text", "output", "finish_reason", "raw_stop_reason", "usage", "steps", "tool_calls",
    ]  # fmt: skip
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data["output"] == {
        "day": "2026-11-30",
        "colour": "red",
        "amount": "1.50",
        "ratio": 1.0,
        "data": "/w==",
        "tags": ["a"],
        "by_number": {"1": "x"},
        "re-named": 3,
    }
    again = event_from_dict(data)
    assert isinstance(again, TurnFinished)
    assert (again.output, again.to_dict()) == (data["output"], data)


class Strange:
    def __str__(self) -> str:
        return "strange"


@pytest.mark.parametrize(
    ("output", "form"),
    [
        (None, None),
        ("x", "x"),
        (5, 5),
        (True, True),
        (1.5, 1.5),
        (float("nan"), "NaN"),
        ([City(name="Rome", people=3)], [ROME]),
        ((Point(1), Point(2, 3)), [{"x": 1, "y": 0}, {"x": 2, "y": 3}]),
        ({"a": date(2026, 11, 30), "b": [Colour.RED]}, {"a": "2026-11-30", "b": ["red"]}),
        ({"x": Strange()}, {"x": "strange"}),
        (b"\xff", "_w=="),
        ({"x": {"y": [None]}}, {"x": {"y": [None]}}),
    ],
)
def test_an_output_of_any_kind_has_a_json_form(output: Any, form: Any) -> None:
    event = TurnFinished("x", output, "stop", None, Usage(), 1, ())
    assert event.to_dict()["output"] == form
    json.dumps(event.to_dict(), allow_nan=False)


@pytest.mark.asyncio
async def test_a_tape_and_the_command_lines_json(tmp_path: Path) -> None:
    async with wired("anthropic") as wire:
        wire.reply(ADD)
        wire.reply(RIGHT)
        recorder = await run(wire.adapter, output=City)
    written = StringIO()
    view = JsonView(written)
    for event in recorder.events:
        view.show(event)
    tape = tmp_path / "tape.jsonl"
    tape.write_text(written.getvalue(), encoding="utf-8")
    played = [event async for event in iterate(replay_tape(tape))]
    assert [event.to_dict() for event in played] == [event.to_dict() for event in recorder.events]
    last = played[-1]
    assert isinstance(last, TurnFinished)
    assert (last.output, json.loads(last.text)) == (ROME, ROME)


@pytest.mark.asyncio
async def test_a_failure_has_a_json_form() -> None:
    async with wired("anthropic") as wire:
        wire.reply(FALSE)
        recorder = await run(wire.adapter, output=Output(City, retries=0))
    assert isinstance(recorder.error, InvalidOutputError)
    written = StringIO()
    JsonView(written).fail(recorder.error)
    assert json.loads(written.getvalue())["error"] == {
        "kind": "invalid_output",
        "status": None,
        "message": f"the model's answer does not fit what was asked for, after 0 correction(s): {WHY}",
        "retryable": False,
        "payload": WRONG,
    }
