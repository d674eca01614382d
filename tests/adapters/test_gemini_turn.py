"""Whole turns on Gemini: malformed calls, the breaker, tools found on the way, stopping, and swapping providers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from google import genai
from reactivex.disposable import SerialDisposable
from reactivex.subject import Subject

from rxloop.adapters.base import Adapter
from rxloop.adapters.gemini import GeminiAdapter
from rxloop.breaker import TOOL_PERMANENTLY_FAILED, Breaker
from rxloop.errors import ConfigurationError
from rxloop.events import TurnEvent
from rxloop.testing.scripted import Recorder
from rxloop.tools import Tool, ToolContext, tool
from rxloop.turn import Turn
from rxloop.usage import Usage
from tests.adapters import gemini_turns
from tests.adapters.gemini_turns import FLAVOURS, PUBLIC, STUDIO, VERTEX, check_sent, connected
from tests.providers import anthropic
from tests.providers.anthropic import AnthropicServer
from tests.providers.gemini import GeminiServer, call, chunks, executable_code, partial_call, text, thought, together
from tests.providers.http import Hold
from tests.turns import AT_ONCE, add, run
from tests.turns import connected as anthropic_connected

MALFORMED = "MALFORMED_FUNCTION_CALL"


@pytest.fixture
def server() -> Iterator[GeminiServer]:
    with GeminiServer() as server:
        yield server


@pytest.fixture(params=FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def turn(server: GeminiServer, flavour: str = STUDIO, **options: Any) -> Recorder:
    async with connected(server, flavour) as adapter:
        recorder = await run(adapter, **options)
        await server.idle()
    for body in server.bodies:
        check_sent(body)
    return recorder


def errors_of(recorder: Recorder) -> list[str | None]:
    return [event.error for event in recorder.events if event.type == "tool_finished"]


# malformed calls


@pytest.mark.asyncio
async def test_a_malformed_call_gets_one_corrective_step_on_vertex(server: GeminiServer) -> None:
    server.reply(finish_reason=MALFORMED, vertex=True, usage={"promptTokenCount": 10})
    server.reply(call("add", {"a": 2, "b": 3}), vertex=True)
    server.reply(text("It is 5."), vertex=True)
    recorder = await turn(server, VERTEX)
    assert recorder.types.count("malformed_retried") == 1
    assert recorder.types.index("malformed_retried") > recorder.types.index("step_finished")
    assert (recorder.finished.text, recorder.finished.finish_reason) == ("It is 5.", "stop")
    assert recorder.finished.usage == Usage(30, 10)
    assert recorder.finished.steps == 3
    hello, correction = server.bodies[1]["contents"]
    assert hello == server.bodies[0]["contents"][0]
    assert correction["role"] == "user"
    assert "malformed" in correction["parts"][0]["text"]
    assert server.bodies[1]["tools"] == server.bodies[0]["tools"]


@pytest.mark.asyncio
async def test_the_second_malformed_step_ends_the_turn(server: GeminiServer) -> None:
    for _ in range(2):
        server.reply(finish_reason=MALFORMED, vertex=True)
    recorder = await turn(server, VERTEX, retry=AT_ONCE)
    assert len(server.requests) == 2
    assert recorder.types.count("malformed_retried") == 1
    finished = recorder.finished
    assert (finished.finish_reason, finished.raw_stop_reason) == ("error", MALFORMED)
    steps = [event.finish_reason for event in recorder.events if event.type == "step_finished"]
    assert steps == ["error", "error"]


@pytest.mark.asyncio
async def test_the_budget_is_the_turns_and_not_the_steps(server: GeminiServer) -> None:
    for _ in range(2):
        server.reply(finish_reason=MALFORMED, vertex=True)
        server.reply(call("add", {"a": 2, "b": 3}), vertex=True)
        server.reply(finish_reason=MALFORMED, vertex=True)
    async with connected(server, VERTEX) as adapter:
        for _ in range(2):
            recorder = await run(adapter)
            assert recorder.types.count("malformed_retried") == 1
            assert recorder.finished.finish_reason == "error"
    assert len(server.requests) == 6


@pytest.mark.asyncio
@pytest.mark.parametrize("flavour", [STUDIO, PUBLIC])
async def test_the_developer_api_gets_no_corrective_step(server: GeminiServer, flavour: str) -> None:
    server.reply(finish_reason=MALFORMED)
    recorder = await turn(server, flavour, retry=AT_ONCE)
    assert len(server.requests) == 1
    assert "malformed_retried" not in recorder.types
    finished = recorder.finished
    assert (finished.finish_reason, finished.raw_stop_reason, finished.text) == ("error", MALFORMED, "")


@pytest.mark.asyncio
@pytest.mark.parametrize("reason", ["STOP", "UNEXPECTED_TOOL_CALL", "SAFETY", "OTHER", "MALFORMED_RESPONSE"])
async def test_nothing_but_a_malformed_call_is_corrected(server: GeminiServer, reason: str) -> None:
    server.reply(finish_reason=reason, vertex=True)
    recorder = await turn(server, VERTEX, retry=AT_ONCE)
    assert len(server.requests) == 1
    assert "malformed_retried" not in recorder.types
    assert recorder.finished.raw_stop_reason == reason


@pytest.mark.asyncio
async def test_a_malformed_reply_keeps_its_text_and_never_runs_its_call(server: GeminiServer) -> None:
    ran: list[int] = []

    @tool
    async def note(number: int) -> None:
        """Note a number."""
        ran.append(number)

    server.reply(thought("hm"), text("I note."), call("note", {"number": 1}), finish_reason=MALFORMED, vertex=True)
    server.reply(text("done"), vertex=True)
    recorder = await turn(server, VERTEX, tools=[note])
    assert ran == []
    (refusal,) = errors_of(recorder)
    assert refusal is not None
    assert refusal.startswith("not run")
    _, said, correction = server.bodies[1]["contents"]
    assert said["role"] == "model"
    assert said["parts"][-1] == {"text": "I note."}
    assert "functionCall" not in str(said)
    assert correction["role"] == "user"
    assert recorder.finished.finish_reason == "stop"


@pytest.mark.asyncio
async def test_the_calls_of_a_faulty_reply_are_answered_without_running(server: GeminiServer, flavour: str) -> None:
    ran: list[int] = []

    @tool
    async def note(number: int) -> None:
        """Note a number."""
        ran.append(number)

    server.reply(call("note", {"number": 1}), finish_reason="UNEXPECTED_TOOL_CALL")
    server.reply(text("done"))
    recorder = await turn(server, flavour, tools=[note])
    assert (ran, recorder.finished.finish_reason) == ([], "error")
    assert recorder.result is not None
    await turn(server, flavour, prompt="go on", conversation=recorder.result.conversation, tools=[note])


@pytest.mark.asyncio
async def test_a_call_that_the_token_limit_cut_off_is_not_run(server: GeminiServer) -> None:
    cut = partial_call("add", [("$.a", "numberValue", 2), ("$.b", "numberValue", 3)])
    server.reply_chunks(
        *chunks(call("add", {"a": 1, "b": 1}), finish_reason=None, vertex=True),
        *chunks(type(cut)(cut.groups[:2]), finish_reason="MAX_TOKENS", vertex=True),
    )
    server.reply(text("done"), vertex=True)
    recorder = await turn(server, VERTEX)
    whole, refused = errors_of(recorder)
    assert {whole is None, refused is None} == {True, False}
    assert "token limit" in str(whole or refused)
    responses = [part["functionResponse"]["response"] for part in server.bodies[1]["contents"][-1]["parts"]]
    assert [set(response) for response in responses] == [{"output"}, {"error"}]


# the breaker


@tool
async def fail() -> None:
    """Fail."""
    raise ValueError("no")


@pytest.mark.asyncio
async def test_a_tool_is_taken_out_after_two_strikes(server: GeminiServer, flavour: str) -> None:
    for _ in range(3):
        server.reply(call("fail", {}))
    server.reply(call("add", {"a": 2, "b": 3}))
    server.reply(text("done"))
    recorder = await turn(server, flavour, tools=[fail, add])
    failed = errors_of(recorder)
    assert failed[:2] == ["the tool failed: ValueError: no"] * 2
    assert str(failed[2]).startswith(TOOL_PERMANENTLY_FAILED)
    assert failed[3] is None
    assert recorder.types.count("tool_started") == 3
    permanent = [event.permanently_failed for event in recorder.events if event.type == "tool_finished"]
    assert permanent == [False, False, True, False]
    response = server.bodies[3]["contents"][-1]["parts"][0]["functionResponse"]["response"]
    assert response == {"error": failed[2]}, "the model is told"


@pytest.mark.asyncio
async def test_an_unknown_tool_has_failed_at_once(server: GeminiServer, flavour: str) -> None:
    server.reply(call("nobody", {}))
    server.reply(text("done"))
    recorder = await turn(server, flavour)
    (error,) = errors_of(recorder)
    assert str(error).startswith(f"{TOOL_PERMANENTLY_FAILED}: there is no tool named 'nobody'")


@pytest.mark.asyncio
async def test_the_breaker_can_be_set_or_left_out(server: GeminiServer) -> None:
    for breaker, left_out in ((Breaker(1), 1), (None, 3)):
        for _ in range(3):
            server.reply(call("fail", {}))
        server.reply(text("done"))
        recorder = await turn(server, tools=[fail], breaker=breaker)
        assert recorder.types.count("tool_started") == left_out


# tools found on the way


@tool
async def weather(city: str) -> str:
    """Tell the weather."""
    return f"rain in {city}"


CATALOGUE = {"weather": weather}


@tool
async def search_tools(query: str) -> list[dict[str, str]]:
    """Find further tools."""
    return [
        {"name": found.name, "description": found.declaration.description}
        for found in CATALOGUE.values()
        if query in found.name
    ]


def declared(body: dict[str, Any]) -> list[str]:
    return [item["name"] for each in body["tools"] for item in each.get("functionDeclarations", ())]


@pytest.mark.asyncio
async def test_a_tool_that_was_found_is_resolved_on_its_call_and_declared_from_then_on(
    server: GeminiServer, flavour: str
) -> None:
    asked: list[str] = []

    def resolve(name: str) -> Tool | None:
        asked.append(name)
        return CATALOGUE.get(name)

    server.reply(call("search_tools", {"query": "weather"}))
    server.reply(call("weather", {"city": "Bergen"}))
    server.reply(together(call("weather", {"city": "Oslo"}), call("nobody", {})))
    server.reply(text("Rain."))
    recorder = await turn(server, flavour, tools=[search_tools], resolve_tool_on_miss=resolve)
    assert [declared(body) for body in server.bodies] == [
        ["search_tools"],
        ["search_tools"],
        ["search_tools", "weather"],
        ["search_tools", "weather"],
    ]
    assert asked == ["weather", "nobody"], "only what nobody knows"
    outputs = [event.output for event in recorder.events if event.type == "tool_finished" and event.error is None]
    assert outputs == [
        [{"name": "weather", "description": "Tell the weather."}],
        "rain in Bergen",
        "rain in Oslo",
    ]
    assert recorder.finished.text == "Rain."


@pytest.mark.asyncio
async def test_a_tool_that_a_tool_adds_is_declared_in_the_next_request(server: GeminiServer, flavour: str) -> None:
    known: list[Tool] = []

    @tool
    async def load(name: str) -> str:
        """Load a tool."""
        known.append(CATALOGUE[name])
        return "loaded"

    known.append(load)
    server.reply(call("load", {"name": "weather"}))
    server.reply(call("weather", {"city": "Bergen"}))
    server.reply(text("Rain."))
    recorder = await turn(server, flavour, tools=lambda: known)
    assert [declared(body) for body in server.bodies] == [["load"], ["load", "weather"], ["load", "weather"]]
    assert errors_of(recorder) == [None, None]


# stopping and going on


@pytest.mark.asyncio
async def test_a_stop_in_the_middle_of_the_text(server: GeminiServer, flavour: str) -> None:
    server.reply_chunks(*chunks(thought("hm"), text("so far", pieces=2), finish_reason=None), Hold("for ever"))
    server.reply(text("done"))
    stop: Subject[str] = Subject()
    seen: list[str] = []

    def watch(event: TurnEvent) -> None:
        if event.type == "text_delta":
            seen.append(event.text)
            if "".join(seen) == "so far":
                stop.on_next("stop")

    async with connected(server, flavour) as adapter:
        recorder = await run(adapter, stop=stop, watch=watch)
        await server.disconnected(0)
        assert (recorder.finished.finish_reason, recorder.finished.text) == ("aborted", "so far")
        assert recorder.result is not None
        assert recorder.result.usage == Usage(10, 5)
        conversation = recorder.result.conversation
        assert conversation[-1] == {
            "role": "model",
            "parts": [{"text": "hm", "thought": True}, {"text": "so far"}],
        }
        await run(adapter, "go on", conversation=conversation)
    assert check_sent(server.bodies[1])[:-1] == conversation


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["dispose", "raise", "leave", "cancel"])
@pytest.mark.parametrize("more", [0, 200])
async def test_leaving_closes_the_reply(server: GeminiServer, flavour: str, way: str, more: int) -> None:
    """At once, not when the client is closed or the garbage collected; more chunks may have arrived already."""
    server.reply_chunks(*chunks(text("x" * (2 + more), pieces=2 + more), finish_reason=None), Hold("for ever"))
    async with connected(server, flavour) as adapter:
        streamed = Turn(adapter, "hello")
        if way == "leave":
            async with streamed.stream() as events:
                async for event in events:
                    if event.type == "text_delta":
                        break
        elif way == "cancel":
            running = asyncio.ensure_future(streamed.result())
            await server.held("for ever")
            running.cancel()
            await asyncio.wait([running])
        else:
            subscription = SerialDisposable()
            failed: list[Exception] = []

            def on_next(event: TurnEvent) -> None:
                if event.type == "text_delta":
                    if way == "raise":
                        raise LookupError("the subscriber's own")
                    subscription.dispose()

            subscription.disposable = streamed.subscribe(on_next, failed.append)
            await server.disconnected(0)
            assert [type(error) for error in failed] == ([LookupError] if way == "raise" else [])
        await server.disconnected(0)


@pytest.mark.asyncio
async def test_a_stop_while_a_call_arrives(server: GeminiServer) -> None:
    pieces = partial_call("add", [("$.a", "numberValue", 2), ("$.b", "numberValue", 3)], terminal=False)
    begun = chunks(call("add", {"a": 1, "b": 1}), type(pieces)(pieces.groups[:2]), finish_reason=None, vertex=True)
    server.reply_chunks(*begun, Hold("for ever"))
    stop: Subject[str] = Subject()

    def watch(event: TurnEvent) -> None:
        if event.type == "tool_call_started" and event.call_id.endswith("_1"):
            stop.on_next("stop")

    recorder = await turn(server, VERTEX, stop=stop, watch=watch)
    assert recorder.result is not None
    assert recorder.finished.finish_reason == "aborted"
    _, said, results = recorder.result.conversation
    assert [part["functionCall"]["args"] for part in said["parts"]] == [{"a": 1, "b": 1}]
    assert [set(part["functionResponse"]["response"]) for part in results["parts"]] == [{"error"}]


@pytest.mark.asyncio
async def test_a_stop_while_tools_run_keeps_what_has_finished(server: GeminiServer, flavour: str) -> None:
    @tool
    async def work(context: ToolContext) -> None:
        """Work without an end."""
        context.report("begun")
        await asyncio.Event().wait()

    server.reply(together(call("add", {"a": 2, "b": 3}, id="1"), call("work", {}, id="2")))
    server.reply(text("done"))
    stop: Subject[str] = Subject()
    open_ends = {"tool_progress", "tool_finished"}

    def watch(event: TurnEvent) -> None:
        open_ends.discard(event.type)
        if not open_ends:
            open_ends.add("over")
            stop.on_next("stop")

    async with connected(server, flavour) as adapter:
        recorder = await run(adapter, tools=[add, work], stop=stop, watch=watch)
        assert recorder.result is not None
        conversation = recorder.result.conversation
        responses = [part["functionResponse"]["response"] for part in conversation[-1]["parts"]]
        assert responses[0] == {"output": 5}
        assert "cancelled" in responses[1]["error"]
        assert recorder.finished.finish_reason == "aborted"
        continued = await run(adapter, "go on", conversation=conversation, tools=[add, work])
    assert continued.finished.text == "done"
    check_sent(server.bodies[1])


@pytest.mark.asyncio
async def test_a_conversation_continues(server: GeminiServer, flavour: str) -> None:
    server.reply(thought("hm"), call("add", {"a": 2, "b": 3}, id="1", signature="c2ln"))
    server.reply(executable_code("print(5)"), text("It is 5."))
    server.reply(text("35"))
    async with connected(server, flavour) as adapter:
        first = await Turn(adapter, "What is 2+3?", tools=[add]).result()
        second = await Turn(adapter, "And times 7?", conversation=first.conversation, tools=[add]).result()
    assert second.text == "35"
    contents = check_sent(server.bodies[2])
    assert [content["role"] for content in contents] == ["user", "model", "user", "model", "user"]
    assert contents[1]["parts"][1]["thoughtSignature"] == "c2ln"
    assert "executableCode" in contents[3]["parts"][0]
    assert second.conversation[: len(first.conversation)] == first.conversation
    assert second.conversation[-1] == {"role": "model", "parts": [{"text": "35"}]}


@pytest.mark.asyncio
async def test_a_conversation_of_the_developer_api_goes_on_on_vertex(server: GeminiServer) -> None:
    server.reply(call("add", {"a": 2, "b": 3}, id="fc_1"))
    server.reply(text("5"))
    server.reply(text("35"), vertex=True)
    first = (await turn(server, STUDIO)).result
    assert first is not None
    async with connected(server, VERTEX) as adapter:
        await run(adapter, "And times 7?", conversation=first.conversation)
    assert "fc_1" not in str(check_sent(server.bodies[2]))


@pytest.mark.asyncio
async def test_a_refused_prompt_ends_the_turn(server: GeminiServer, flavour: str) -> None:
    server.blocked_prompt("PROHIBITED_CONTENT")
    recorder = await turn(server, flavour, retry=AT_ONCE)
    finished = recorder.finished
    assert (finished.finish_reason, finished.raw_stop_reason) == ("content-filter", "PROHIBITED_CONTENT")
    assert len(server.requests) == 1


# limits


@pytest.mark.parametrize("max_steps", [101, 1_000])
def test_more_than_a_hundred_steps_are_refused(max_steps: int) -> None:
    adapter = GeminiAdapter(genai.Client(vertexai=False, api_key="test-key"), model="gemini-test")
    with pytest.raises(ConfigurationError, match=f"max_steps must be <= 100 with google, but got {max_steps}"):
        Turn(adapter, "hello", max_steps=max_steps)
    assert Turn(adapter, "hello", max_steps=100).max_steps == 100
    assert Turn(adapter, "hello").max_steps == 16


@pytest.mark.asyncio
async def test_at_the_cap_the_last_calls_still_run(server: GeminiServer, flavour: str) -> None:
    for _ in range(2):
        server.reply(text("I add."), call("add", {"a": 2, "b": 3}))
    recorder = await turn(server, flavour, max_steps=2)
    assert (recorder.finished.finish_reason, recorder.finished.text) == ("tool-calls", "I add.")
    assert errors_of(recorder) == [None, None]
    assert recorder.result is not None
    assert "functionResponse" in recorder.result.conversation[-1]["parts"][0]


# the same turn elsewhere


@asynccontextmanager
async def on_anthropic() -> AsyncIterator[Adapter]:
    with AnthropicServer() as server:
        server.reply(
            anthropic.thinking("Let me see."),
            anthropic.text("I add."),
            anthropic.tool_use("add", {"a": 2, "b": 3}, id="1"),
            anthropic.tool_use("fail", {}, id="2"),
            usage={"input_tokens": 20, "output_tokens": 9},
        )
        server.reply(anthropic.text("It is 5."), usage={"input_tokens": 30, "output_tokens": 7})
        async with anthropic_connected(server) as adapter:
            yield adapter


def on_gemini(flavour: str) -> Callable[[], Any]:
    @asynccontextmanager
    async def connect() -> AsyncIterator[Adapter]:
        with GeminiServer() as server:
            server.reply(
                thought("Let me see."),
                text("I add."),
                call("add", {"a": 2, "b": 3}, id=None if flavour == VERTEX else "1"),
                call("fail", {}),
                usage={"promptTokenCount": 20, "candidatesTokenCount": 9},
                vertex=flavour == VERTEX,
            )
            server.reply(
                text("It is 5."),
                usage={"promptTokenCount": 30, "candidatesTokenCount": 7},
                vertex=flavour == VERTEX,
            )
            async with gemini_turns.connected(server, flavour) as adapter:
                yield adapter

    return connect


PROVIDERS: dict[str, Callable[[], Any]] = {
    "anthropic": on_anthropic,
    **{flavour: on_gemini(flavour) for flavour in FLAVOURS},
}


def told(recorder: Recorder) -> list[Any]:
    """What a turn said, without what is the provider's own: ids, signatures, pieces of arguments, words for the end."""
    said: list[Any] = []
    for event in recorder.events:
        one = event.to_dict()
        for key in ("turn_id", "provider", "model", "call_id", "seconds", "raw_stop_reason", "signatures"):
            one.pop(key, None)
        if "tool_calls" in one:
            one["tool_calls"] = [{**item, "call_id": None} for item in one["tool_calls"]]
        if one["type"] in ("text_delta", "reasoning_delta") and said and said[-1]["type"] == one["type"]:
            said[-1]["text"] += one["text"]
        elif one["type"] != "tool_call_delta":
            said.append(one)
    return said


@pytest.mark.asyncio
async def test_the_adapter_alone_is_swapped() -> None:
    found: dict[str, list[Any]] = {}
    for name, connect in PROVIDERS.items():
        async with connect() as adapter:
            recorder = await run(adapter, "What is 2+3?", tools=[add, fail], system="Be brief.", sequential=True)
        assert recorder.error is None
        found[name] = told(recorder)
    expected = found["anthropic"]
    assert [item["type"] for item in expected].count("tool_finished") == 2
    for name in FLAVOURS:
        assert found[name] == expected, name
