"""Old tool results give way before the model's window is full."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from rxloop.adapters.anthropic import AnthropicAdapter
from rxloop.adapters.base import Adapter
from rxloop.adapters.bedrock import BedrockAdapter
from rxloop.adapters.gemini import GeminiAdapter
from rxloop.errors import ConfigurationError
from rxloop.events import ContextReclaimed
from rxloop.reclaim import HistoryResult, Reclaim, estimated_tokens, plan_reclaim, window_of
from rxloop.testing.grammar import check_grammar
from rxloop.tools import tool
from rxloop.turn import Turn
from tests.providers import anthropic as messages_api
from tests.providers import bedrock as converse
from tests.providers import gemini as generate_content
from tests.providers.anthropic import AnthropicServer
from tests.providers.bedrock import BedrockServer
from tests.providers.eventstream import CONTENT_TYPE
from tests.providers.gemini import GeminiServer
from tests.providers.http import LocalServer, Reply, Request
from tests.turns import NO_RETRY

WINDOW = 30_000


@tool
async def search(query: str) -> str:
    """Search the archive."""
    return f"what the archive says of {query}: " + "a fact and another one, " * 500


def counted(body: Any) -> int:
    """What the provider counts of a request: here a token for each 3.5 characters, unlike the estimate."""
    return int(len(json.dumps(body)) / 3.5)


@dataclass
class Provider:
    """A local server whose model searches in every step but the last, and its adapter."""

    server: LocalServer
    adapter: Adapter
    sizes: list[int]

    @property
    def bodies(self) -> list[Any]:
        return [request.json for request in self.server.requests]


def anthropic_reply(number: int, last: bool, tokens: int) -> Reply:
    call = messages_api.tool_use("search", {"query": str(number)}, id=f"toolu_{number}")
    blocks = [messages_api.text("Found.")] if last else [messages_api.thinking("hm", signature=f"sig{number}"), call]
    usage = {"input_tokens": tokens, "output_tokens": 20}
    return Reply(200, {"content-type": "text/event-stream"}, messages_api.message(*blocks, usage=usage))


def bedrock_reply(number: int, last: bool, tokens: int) -> Reply:
    call = converse.tool_use("search", {"query": str(number)}, id=f"tooluse_{number}")
    blocks = [converse.text("Found.")] if last else [converse.reasoning("hm", f"sig{number}"), call]
    events = converse.message(*blocks, usage={"inputTokens": tokens, "outputTokens": 20})
    return Reply(200, {"content-type": CONTENT_TYPE}, [converse.encoded(event) for event in events])


def gemini_reply(number: int, last: bool, tokens: int) -> Reply:
    call = generate_content.call("search", {"query": str(number)}, signature=f"sig{number}")
    parts = generate_content.text("Found.") if last else call
    usage = {"promptTokenCount": tokens, "candidatesTokenCount": 20, "totalTokenCount": tokens + 20}
    chunks = generate_content.chunks(parts, usage=usage)
    return Reply(200, {"content-type": "text/event-stream"}, [generate_content.sse(chunk) for chunk in chunks])


@contextmanager
def served(server: LocalServer, reply: Callable[[int, bool, int], Reply], steps: int) -> Iterator[list[int]]:
    sizes: list[int] = []

    def answer(request: Request) -> Reply:
        sizes.append(counted(request.json))
        return reply(len(sizes), len(sizes) == steps, sizes[-1])

    with server:
        server.route(answer)
        yield sizes


@asynccontextmanager
async def anthropic(steps: int) -> AsyncIterator[Provider]:
    server = AnthropicServer()
    with served(server, anthropic_reply, steps) as sizes:
        async with server.client() as client:
            yield Provider(server, AnthropicAdapter(client, model="claude-test"), sizes)


@asynccontextmanager
async def bedrock(steps: int) -> AsyncIterator[Provider]:
    server = BedrockServer()
    with served(server, bedrock_reply, steps) as sizes:
        client = server.client()
        yield Provider(server, BedrockAdapter(client, model="anthropic.claude-opus-4-5"), sizes)
        client.close()


@asynccontextmanager
async def gemini(steps: int) -> AsyncIterator[Provider]:
    server = GeminiServer()
    with served(server, gemini_reply, steps) as sizes:
        client = server.client()
        yield Provider(server, GeminiAdapter(client, model="gemini-test"), sizes)
        await client.aio.aclose()


PROVIDERS = {"anthropic": anthropic, "bedrock": bedrock, "gemini": gemini}
every_provider = pytest.mark.parametrize("provider", PROVIDERS.values(), ids=PROVIDERS)


async def events_of(turn: Turn) -> tuple[list[Any], Any]:
    async with turn.stream() as stream:
        events = [event async for event in stream]
    check_grammar(events)
    return events, stream.result


@pytest.mark.asyncio
@every_provider
async def test_fifty_steps_stay_within_a_window_of_30000_tokens(provider: Any) -> None:
    async with provider(50) as served:
        turn = Turn(
            served.adapter, "Look it up.", tools=[search], max_steps=60, retry=NO_RETRY, reclaim=Reclaim(window=WINDOW)
        )
        events, result = await events_of(turn)
        bodies = served.bodies
    assert (result.steps, result.text, result.finish_reason) == (50, "Found.", "stop")
    assert max(served.sizes) < WINDOW
    # without it the last request alone would have had some 170,000
    assert (
        sum(len(text) for text in (event.output or "" for event in events if event.type == "tool_finished")) > 550_000
    )
    reclaimed = [event for event in events if isinstance(event, ContextReclaimed)]
    assert 5 <= len(reclaimed) <= 25, "not in every step, which would spoil the provider's cache each time"
    for event in reclaimed:
        assert event.before_tokens > 0.8 * WINDOW
        assert event.after_tokens <= 0.5 * WINDOW + 4000
        assert event.after_tokens == pytest.approx(served.sizes[event.step], rel=0.15)
    last = json.dumps(bodies[-1])
    assert "Look it up." in last
    assert last.count("was removed to save space") >= 40
    assert "the result of search was removed" in last
    # the newest results stay
    assert "what the archive says of 49" in last
    assert "what the archive says of 48" in last
    assert "what the archive says of 2:" not in last
    # whatever was signed is as it was
    assert all(f"sig{number}" in last for number in range(1, 50))


@pytest.mark.asyncio
async def test_thinking_that_is_bound_to_what_was_before_it_gives_way_too() -> None:
    """Some models refuse it once anything before it has changed; what they thought since is theirs."""
    async with anthropic(9) as served:
        served.adapter.model = "claude-opus-5-5"
        turn = Turn(served.adapter, "x", tools=[search], retry=NO_RETRY, reclaim=Reclaim(window=WINDOW))
        events, _ = await events_of(turn)
        bodies = served.bodies
    [changed] = {event.step for event in events if isinstance(event, ContextReclaimed)}
    assert [f"sig{number}" in json.dumps(bodies[changed]) for number in (1, changed)] == [True, False]
    last = json.dumps(bodies[-1])
    assert [f"sig{number}" in last for number in (1, changed, changed + 1, 8)] == [True, False, True, True]


@pytest.mark.asyncio
@every_provider
async def test_what_does_not_fit_ends_the_turn_with_what_it_has(provider: Any) -> None:
    async with provider(50) as served:
        turn = Turn(
            served.adapter, "Look it up.", tools=[search], retry=NO_RETRY, reclaim=Reclaim(window=6000, keep_steps=9)
        )
        events, result = await events_of(turn)
        requests = len(served.bodies)
        assert (result.finish_reason, result.error) == ("length", None)
        assert requests == result.steps < 4
        assert max(served.sizes) < 6000
        assert len(result.tool_results) == result.steps
        assert events[-1].finish_reason == "length"
        # nothing is lost: all the results are there, and the conversation can be sent
        assert json.dumps(result.conversation).count("what the archive says of") == result.steps
        Turn(served.adapter, "go on", conversation=result.conversation, tools=[search])


@pytest.mark.asyncio
@pytest.mark.parametrize("reclaim", [None, "default"])
async def test_it_is_off_where_no_window_is_known_or_it_is_not_wanted(reclaim: Any) -> None:
    async with anthropic(10) as served:
        served.adapter.model = "a model of tomorrow"
        _, result = await events_of(Turn(served.adapter, "x", tools=[search], retry=NO_RETRY, reclaim=reclaim))
        last = json.dumps(served.bodies[-1])
    assert result.steps == 10
    assert "was removed" not in last


@pytest.mark.asyncio
async def test_an_estimate_alone_does_not_prevent_the_first_request() -> None:
    async with anthropic(1) as served:
        turn = Turn(served.adapter, "x" * 100_000, retry=NO_RETRY, reclaim=Reclaim(window=1000))
        assert (await turn.result()).text == "Found."


@pytest.mark.asyncio
async def test_an_earlier_conversation_is_shortened_before_the_first_request() -> None:
    async with anthropic(4) as served:
        first = await Turn(served.adapter, "x", tools=[search], retry=NO_RETRY, reclaim=None).result()
        served.sizes.clear()
        turn = Turn(
            served.adapter,
            "y",
            conversation=first.conversation,
            tools=[search],
            max_steps=1,
            retry=NO_RETRY,
            reclaim=Reclaim(window=9000, keep_steps=1),
        )
        events, _ = await events_of(turn)
    assert [event.type for event in events[:3]] == ["turn_started", "step_started", "context_reclaimed"]
    assert json.dumps(served.bodies[-1]).count("was removed") == 2
    assert json.dumps(first.conversation).count("was removed") == 0, "the caller's conversation stays as it is"


@pytest.mark.asyncio
async def test_what_cannot_fit_is_shortened_before_the_first_request_too() -> None:
    async with anthropic(4) as served:
        first = await Turn(served.adapter, "x", tools=[search], retry=NO_RETRY, reclaim=None).result()
        turn = Turn(
            served.adapter,
            "y",
            conversation=first.conversation,
            tools=[search],
            max_steps=1,
            retry=NO_RETRY,
            reclaim=Reclaim(window=3000, keep_steps=1),
        )
        events, _ = await events_of(turn)
    assert "context_reclaimed" in [event.type for event in events]
    assert json.dumps(served.bodies[4]).count("was removed") == 2


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "usage",
    [
        {"input_tokens": 240_000, "server_tool_use": {"web_search_requests": 3}},
        {
            "input_tokens": 240_000,
            "iterations": [
                {"type": "message", "input_tokens": 100_000},
                {"type": "message", "input_tokens": 500, "cache_read_input_tokens": 100},
                {"type": "compaction", "input_tokens": 139_400},
            ],
        },
    ],
    ids=["uncounted", "counted"],
)
async def test_the_rounds_of_the_providers_own_tools_are_no_size_of_the_prompt(usage: dict[str, Any]) -> None:
    with AnthropicServer() as server:
        for number in range(2):
            searched = messages_api.server_tool("web_search", {"query": "q"})
            server.reply(*searched, messages_api.tool_use("search", {"query": "q"}, id=f"t{number}"), usage=usage)
        server.reply(messages_api.text("Found."), usage={"input_tokens": 900, "output_tokens": 3})
        async with server.client() as client:
            adapter = AnthropicAdapter(client, model="claude-haiku-4-5")
            events, result = await events_of(Turn(adapter, "x", tools=[search], retry=NO_RETRY))
    assert (result.finish_reason, result.text) == ("stop", "Found.")
    assert "context_reclaimed" not in [event.type for event in events]


@pytest.mark.asyncio
async def test_the_beta_for_a_longer_window_counts() -> None:
    header = {"anthropic-beta": "files-api-2025-04-14, context-1m-2025-08-07"}
    beta = ["context-1m-2025-08-07"]
    with AnthropicServer() as server:
        async with server.client() as client:
            adapters = [
                AnthropicAdapter(client, model="claude-sonnet-4-5"),
                AnthropicAdapter(client, model="claude-sonnet-4-5", betas=beta),
                AnthropicAdapter(client, model="claude-sonnet-4-5", extra_headers={"Anthropic-Beta": beta[0]}),
                AnthropicAdapter(client.with_options(default_headers=header), model="claude-sonnet-4-5"),
                AnthropicAdapter(client, model="a model of tomorrow", betas=beta),
            ]
    assert [adapter.context_window() for adapter in adapters] == [200_000, *[1_000_000] * 3, None]


def test_the_beta_for_a_longer_window_counts_on_bedrock() -> None:
    name = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
    with BedrockServer() as server:
        client = server.client()
        fields = {"anthropic_beta": ["context-1m-2025-08-07"]}
        adapters = [
            BedrockAdapter(client, model=name),
            BedrockAdapter(client, model=name, additionalModelRequestFields=fields),
        ]
        client.close()
    assert [adapter.context_window() for adapter in adapters] == [200_000, 1_000_000]


def results(*sizes: int, per_message: int = 1) -> list[HistoryResult]:
    return [
        HistoryResult((index // per_message, index % per_message), "tool", "x" * size)
        for index, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("free", "keep", "places"),
    [
        (0, 0, []),
        (1, 0, [(0, 0)]),
        (1000, 0, [(0, 0), (1, 0)]),
        (10**6, 0, [(0, 0), (1, 0), (2, 0), (3, 0)]),
        (10**6, 1, [(0, 0), (1, 0), (2, 0)]),
        (10**6, 4, []),
        (10**6, 5, []),
        (10**6, 9, []),
    ],
)
def test_the_oldest_give_way_first(free: int, keep: int, places: list[Any]) -> None:
    plan = plan_reclaim(results(4000, 4000, 4000, 4000), free=free, keep_steps=keep)
    assert list(plan.notes) == places
    assert plan.freed == pytest.approx(980 * len(places), abs=5 * len(places))


def test_the_results_of_one_step_are_kept_together() -> None:
    plan = plan_reclaim(results(*[4000] * 6, per_message=2), free=10**6, keep_steps=2)
    assert list(plan.notes) == [(0, 0), (0, 1)]


def test_what_is_no_larger_than_its_note_stays() -> None:
    assert plan_reclaim(results(4000, 10, 4000), free=10**6, keep_steps=0).notes.keys() == {(0, 0), (2, 0)}


def test_a_note_says_what_was_there() -> None:
    [note] = plan_reclaim([HistoryResult((3, 1), "search", "x" * 12345)], free=1, keep_steps=0).notes.values()
    assert note == "[the result of search was removed to save space: 12,345 characters]"


@pytest.mark.parametrize(
    ("value", "tokens"),
    [
        ("", 0),
        ("a" * 400, 100),
        ("ü" * 200, 100),
        (None, 1),
        ([1, 2], 2),
        ({"abcd": "abcdefgh"}, 3),
        ({"data": "QUJD" * 5000}, 1601),
        ({"data": "word " * 20000}, 25001),
    ],
)
def test_estimates(value: Any, tokens: int) -> None:
    assert estimated_tokens(value) == tokens


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("claude-sonnet-4-5", 200_000),
        ("claude-haiku-4-5-20251001", 200_000),
        ("claude-haiku-5-5", 1_000_000),
        ("us.anthropic.claude-opus-4-5-v1:0", 200_000),
        ("models/gemini-3.8-flash", 1_048_576),
        ("amazon.nova-micro-v1:0", 128_000),
        ("us.amazon.nova-2-lite-v1:0", 1_000_000),
        ("meta.llama3", None),
        ("", None),
    ],
)
def test_windows_that_are_known(model: str, window: int | None) -> None:
    assert window_of(model) == window


@pytest.mark.parametrize(
    "fields",
    [
        {"window": 0},
        {"window": 1.5},
        {"keep_steps": -1},
        {"threshold": 0},
        {"threshold": 1.1},
        {"threshold": "x"},
        {"target": None},
        {"target": 0.9},
        {"target": 0},
    ],
)
def test_a_setting_must_keep_its_rule(fields: Mapping[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="must be"):
        Reclaim(**fields)
