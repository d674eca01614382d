"""Claude on Vertex: what it takes of a request, where it is, and that it keeps what every adapter has to keep."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import AsyncAnthropic, AsyncAnthropicBedrock, AsyncAnthropicFoundry, AsyncAnthropicVertex
from pydantic import BaseModel

from rxloop.adapters.anthropic import AnthropicAdapter
from rxloop.breaker import Breaker
from rxloop.errors import ConfigurationError
from rxloop.output import Output
from rxloop.testing.conformance import AdapterConformance
from rxloop.turn import Turn
from tests.adapters.test_anthropic_conformance import AnthropicProvider
from tests.providers.anthropic import AnthropicServer, text, tool_use
from tests.turns import add, run

MODEL = "claude-test"


def client_of(server: AnthropicServer | None = None, region: str = "europe-west1") -> AsyncAnthropicVertex:
    """A real client with a token that was made up; without a server it has its own address."""
    address = {} if server is None else {"base_url": server.url}
    return AsyncAnthropicVertex(access_token="x", project_id="project", region=region, **address)


class VertexProvider(AnthropicProvider):
    """The same messages over ``streamRawPredict``."""

    def adapter(self) -> AnthropicAdapter:
        return AnthropicAdapter(client_of(self.server), model=MODEL)

    @property
    def requests(self) -> int:
        return len(self.bodies)

    @property
    def bodies(self) -> list[Any]:
        assert all(request.path.endswith(f"/{MODEL}:streamRawPredict") for request in self.server.requests)
        return [request.json for request in self.server.requests]

    def history(self, request: int) -> tuple[list[str], list[tuple[str, bool]]]:
        blocks = [block for message in self.bodies[request]["messages"] for block in message["content"]]
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        results = [
            (block["tool_use_id"], block.get("is_error", False)) for block in blocks if block["type"] == "tool_result"
        ]
        return calls, results


@pytest.fixture
def server() -> Iterator[AnthropicServer]:
    with AnthropicServer() as server:
        yield server


class TestVertexConformance(AdapterConformance):
    @pytest.fixture
    def provider(self) -> Iterator[VertexProvider]:
        with AnthropicServer() as server:
            yield VertexProvider(server)


# what it takes of a request


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.5},
        {"top_p": 0.9},
        {"top_k": 3},
        {"stop_sequences": ["END"]},
        {"metadata": {"user_id": "u"}},
        {"thinking": {"type": "enabled", "budget_tokens": 2000}},
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        {"output_config": {"effort": "low"}},
        {"cache_control": {"type": "ephemeral"}},
        # whoever writes into the body knows what Vertex takes
        {"extra_body": {"service_tier": "auto"}},
        {"extra_body": {"a_future_field": {"x": 1}}},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_a_field_that_vertex_knows_is_sent(server: AnthropicServer, fields: dict[str, Any]) -> None:
    server.reply(text("5"))
    async with client_of(server) as client:
        await run(AnthropicAdapter(client, model=MODEL, **fields))
    [request] = server.requests
    expected = fields.get("extra_body", fields)
    assert {key: request.json.get(key) for key in expected} == expected


@pytest.mark.asyncio
async def test_context_management_goes_with_its_beta(server: AnthropicServer) -> None:
    server.reply(text("5"))
    management = {"edits": [{"type": "clear_tool_uses_20250919"}]}
    beta = "context-management-2025-06-27"
    async with client_of(server) as client:
        await run(AnthropicAdapter(client, model=MODEL, betas=[beta], context_management=management))
    [request] = server.requests
    assert request.json["context_management"] == management
    assert beta in (request.headers.get("anthropic-beta", ""), *request.json.get("anthropic_beta", ()))


@pytest.mark.asyncio
async def test_headers_of_the_callers_own_are_sent(server: AnthropicServer) -> None:
    server.reply(text("5"))
    headers = {"anthropic-beta": "a-beta-of-tomorrow", "x-mine": "yes"}
    async with client_of(server) as client:
        await run(AnthropicAdapter(client, model=MODEL, extra_headers=headers, extra_query={"q": "1"}, timeout=30.0))
    [request] = server.requests
    assert (request.headers["anthropic-beta"], request.headers["x-mine"]) == ("a-beta-of-tomorrow", "yes")
    assert request.query == "q=1"


@pytest.mark.parametrize("field", ["service_tier", "container", "mcp_servers", "inference_geo", "speed", "a_typo"])
def test_a_field_that_vertex_refuses_is_an_error(field: str) -> None:
    """Before any request; elsewhere it is sent."""
    words = (
        f"^Vertex does not know the field '{field}', and refuses a request with it: leave it out, or send it all the "
        f"same as extra_body={{'{field}': …}}$"
    )
    with pytest.raises(ConfigurationError, match=words):
        AnthropicAdapter(client_of(), model=MODEL, **{field: "x"})
    AnthropicAdapter(AsyncAnthropic(api_key="test-key"), model=MODEL, **{field: "x"})


def test_a_beta_that_vertex_refuses_is_an_error() -> None:
    known, unknown = "context-management-2025-06-27", "files-api-2025-04-14"
    words = (
        f"^Vertex does not know the beta '{unknown}', and refuses a request with it: leave it out, or send it all the "
        f"same as extra_headers={{'anthropic-beta': '{unknown}'}}$"
    )
    AnthropicAdapter(client_of(), model=MODEL, betas=[known])
    for betas in ([unknown], [known, unknown], (unknown,)):
        with pytest.raises(ConfigurationError, match=words):
            AnthropicAdapter(client_of(), model=MODEL, betas=betas)
    AnthropicAdapter(AsyncAnthropic(api_key="test-key"), model=MODEL, betas=[unknown])


# where it is


@pytest.mark.parametrize(
    ("region", "address"),
    [
        ("global", "https://aiplatform.googleapis.com/v1/"),
        ("europe-west1", "https://europe-west1-aiplatform.googleapis.com/v1/"),
    ],
)
def test_a_region_has_its_address(region: str, address: str) -> None:
    adapter = AnthropicAdapter(client_of(region=region), model=MODEL)
    assert str(adapter.client.base_url) == address
    assert adapter.backend == "vertex"


@pytest.mark.asyncio
async def test_the_global_region_is_in_the_path(server: AnthropicServer) -> None:
    server.reply(text("5"))
    async with client_of(server, "global") as client:
        await run(AnthropicAdapter(client, model="claude-sonnet-4-5@20250929"))
    [request] = server.requests
    assert request.path == (
        "/projects/project/locations/global/publishers/anthropic/models/claude-sonnet-4-5@20250929:streamRawPredict"
    )


# what is on by default


class Sum(BaseModel):
    total: int


def backends() -> dict[str, AnthropicAdapter]:
    clients: dict[str, Any] = {
        "anthropic": AsyncAnthropic(api_key="test-key"),
        "vertex": client_of(),
        "bedrock": AsyncAnthropicBedrock(aws_access_key="a", aws_secret_key="b", aws_region="eu-west-1"),
        "foundry": AsyncAnthropicFoundry(base_url="http://127.0.0.1:9", api_key="test-key"),
    }
    return {name: AnthropicAdapter(client, model=MODEL) for name, client in clients.items()}


def test_vertex_alone_has_the_breaker_and_the_coercive_mode() -> None:
    adapters = backends()
    assert {name: adapter.backend for name, adapter in adapters.items()} == {name: name for name in adapters}
    assert adapters["vertex"].default_breaker == Breaker(max_retries=2)
    assert [name for name, adapter in adapters.items() if adapter.default_breaker is not None] == ["vertex"]
    assert [name for name, adapter in adapters.items() if adapter.output_mode == "coercive"] == ["vertex"]
    native = [name for name, adapter in adapters.items() if adapter.native_output(Output(Sum).schema)]
    assert native == ["anthropic", "bedrock", "foundry"]
    # the class is what it was
    assert (AnthropicAdapter.default_breaker, AnthropicAdapter.output_mode) == (None, "cooperative")


@pytest.mark.asyncio
async def test_two_strikes_take_a_tool_out(server: AnthropicServer) -> None:
    for number in range(3):
        server.reply(tool_use("add", {"a": "x", "b": 1}, id=f"toolu_{number}"))
    server.reply(text("5"))
    async with client_of(server) as client:
        recorder = await run(AnthropicAdapter(client, model=MODEL), tools=[add])
    assert recorder.result is not None
    assert [result.permanently_failed for result in recorder.result.tool_results] == [False, False, True]


@pytest.mark.asyncio
async def test_a_structured_answer_is_asked_for_by_force(server: AnthropicServer) -> None:
    """With or without other tools; a model that calls the tool by itself is asked once."""
    server.reply(tool_use("final_result", {"total": 5}))
    server.reply(tool_use("final_result", {"total": 6}))
    async with client_of(server) as client:
        adapter = AnthropicAdapter(client, model=MODEL)
        results = [await Turn(adapter, "2+3?", tools=tools, output=Sum).result() for tools in ([add], [])]
    assert [result.output for result in results] == [Sum(total=5), Sum(total=6)]
    assert [request.json["tool_choice"] for request in server.requests] == [{"type": "any"}] * 2
    assert [[tool["name"] for tool in request.json["tools"]] for request in server.requests] == [
        ["add", "final_result"],
        ["final_result"],
    ]


@pytest.mark.asyncio
async def test_whose_organisation_allows_it_may_ask_natively(server: AnthropicServer) -> None:
    server.reply(text('{"total": 5}'))
    async with client_of(server) as client:
        adapter = AnthropicAdapter(client, model=MODEL)
        result = await Turn(adapter, "2+3?", output=Output(Sum, mode="native")).result()
    assert result.output == Sum(total=5)
    [request] = server.requests
    assert request.json["output_config"]["format"]["type"] == "json_schema"
    assert not {"tools", "tool_choice"} & request.json.keys()
