"""
Record the shipped cassettes anew: ``uv run scripts/record_cassettes.py [DIRECTORY]``.

A real `Turn` talks through the real SDK to the test suite's local server, and vcrpy records the traffic. Replies and
tools are scripted, and nothing of the machine is written, so that recording again makes no difference.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import vcr
from anthropic import AsyncAnthropicVertex
from pydantic import BaseModel

from rxloop import RetryPolicy, RxLoopError, Tool, Turn, tool
from rxloop.adapters.anthropic import AnthropicAdapter
from rxloop.adapters.base import Adapter
from rxloop.adapters.bedrock import BedrockAdapter
from rxloop.adapters.gemini import GeminiAdapter
from rxloop.adapters.sagemaker import SageMakerAdapter, inputs_body
from rxloop.testing.cassette import vcr_config
from tests.providers import bedrock, gemini, sagemaker
from tests.providers.anthropic import AnthropicServer, Block, message, sse, text, tool_use
from tests.providers.bedrock import BedrockServer
from tests.providers.gemini import GeminiServer
from tests.providers.http import Reply
from tests.providers.sagemaker import SageMakerServer

CASSETTES = Path(__file__).parent.parent / "cassettes"
MODEL = "claude-sonnet-5-5"
CLAUDE = "claude-sonnet-4-6"
"""Takes a forced call, which later models do not."""

PIECE = re.compile(r"\s*\w{1,6}|\s*[^\w\s]+|\s+")

LOOKED_UP = {
    "local_time": {"time": "Thursday 07:42", "zone": "Pacific/Auckland"},
    "weather": {"now": "drizzle, 13 °C", "wind": "northerly, 52 km/h", "dry_from": "08:30"},
}
REASONING = (
    "Two things are asked: whether it is a decent hour in Wellington, and whether it rains on her walk. I know "
    "neither, and neither answer needs the other, so I look both up at once."
)
ANSWER = (
    "Yes, ring her: it is 7:42 on Thursday morning in Wellington, so she is up and likely on her first coffee.\n\n"
    "Tell her to leave the umbrella at home, though. It drizzles until about half past eight, and a northerly of "
    "52 km/h would turn it inside out at the first corner. A jacket with a hood will do. If she can set off after "
    "8:30, she will walk to work dry."
)


@tool
def local_time(city: str) -> dict[str, str]:
    """Tell the local time in a city."""
    return LOOKED_UP["local_time"]


@tool
def weather(city: str) -> dict[str, str]:
    """Tell the weather in a city, now and in the next hours."""
    return LOOKED_UP["weather"]


@tool
def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


def spoken(value: str, kind: str = "text") -> tuple[dict[str, Any], ...]:
    """Deltas of about a word each, as models speak."""
    return tuple({"type": f"{kind}_delta", kind: piece} for piece in PIECE.findall(value))


def say(server: AnthropicServer, *blocks: Block, usage: dict[str, Any]) -> None:
    server.reply(*blocks, usage=usage, model=MODEL, message_id="msg_recorded")


async def record_text(server: AnthropicServer, turn: Callable[..., Turn]) -> None:
    say(server, text("Hello! What can I do for you?", 6), usage={"input_tokens": 9, "output_tokens": 11})
    await turn("Say hello.").result()


async def record_tool_round_trip(server: AnthropicServer, turn: Callable[..., Turn]) -> None:
    say(
        server,
        text("I will add them.", 3),
        tool_use("add", {"a": 2, "b": 3}, id="toolu_add"),
        usage={"input_tokens": 391, "output_tokens": 68},
    )
    say(server, text("2 + 3 = 5.", 4), usage={"input_tokens": 473, "output_tokens": 12})
    await turn("What is 2 + 3?", [add]).result()


async def record_parallel_tools_thinking(server: AnthropicServer, turn: Callable[..., Turn]) -> None:
    thinking = {"type": "thinking", "thinking": "", "signature": ""}
    signature = {"type": "signature_delta", "signature": "c2lnbmVkIGJ5IHRoZSBsb2NhbCBzZXJ2ZXI="}
    say(
        server,
        Block(thinking, (*spoken(REASONING, "thinking"), signature)),
        tool_use("local_time", {"city": "Wellington"}, id="toolu_time"),
        tool_use("weather", {"city": "Wellington"}, id="toolu_weather"),
        usage={
            "input_tokens": 38,
            "cache_creation_input_tokens": 604,
            "cache_read_input_tokens": 0,
            "output_tokens": 147,
            "output_tokens_details": {"thinking_tokens": 51},
        },
    )
    say(
        server,
        Block({"type": "text", "text": ""}, spoken(ANSWER)),
        usage={
            "input_tokens": 271,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 604,
            "output_tokens": 112,
        },
    )
    await turn(
        "My sister lives in Wellington. Can I ring her now, and does she need an umbrella on her walk to work?",
        [local_time, weather],
        system="Answer in a few friendly sentences. Look up what you do not know.",
        thinking={"type": "adaptive"},
    ).result()


async def record_overloaded_then_success(server: AnthropicServer, turn: Callable[..., Turn]) -> None:
    server.fail(529, "overloaded_error", "Overloaded")
    say(server, text("Here I am.", 3), usage={"input_tokens": 10, "output_tokens": 7})
    await turn("Are you there?").result()


class Sum(BaseModel):
    """The answer that structured output asks for."""

    terms: list[int]
    total: int


async def record_structured_output(server: AnthropicServer, turn: Callable[..., Turn]) -> None:
    say(server, tool_use("add", {"a": 2, "b": 3}, id="toolu_add"), usage={"input_tokens": 520, "output_tokens": 61})
    final = tool_use("final_result", {"terms": [2, 3], "total": 5}, id="toolu_final")
    say(server, final, usage={"input_tokens": 602, "output_tokens": 48})
    await turn("What is 2 + 3?", [add], output=Sum).result()


async def record_error_in_the_middle(server: AnthropicServer, turn: Callable[..., Turn]) -> None:
    error = sse({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
    begun = message(text("Once upon a time", 4), usage={"input_tokens": 12, "output_tokens": 4}, model=MODEL)[:-3]
    server.script(Reply(200, {"content-type": "text/event-stream"}, [*begun, error]))
    await _failing(turn("Tell me a story."))


RECORDINGS: dict[str, Callable[[AnthropicServer, Callable[..., Turn]], Awaitable[None]]] = {
    "text": record_text,
    "tool_round_trip": record_tool_round_trip,
    "parallel_tools_thinking": record_parallel_tools_thinking,
    "overloaded_then_success": record_overloaded_then_success,
    "structured_output": record_structured_output,
    "error_in_the_middle": record_error_in_the_middle,
}


async def record_vertex_text(server: AnthropicServer, turn: Callable[..., Turn]) -> None:
    say(server, text("Hello! What can I do for you?", 6), usage={"input_tokens": 9, "output_tokens": 11})
    await turn("Say hello.").result()


async def record_vertex_forced_output(server: AnthropicServer, turn: Callable[..., Turn]) -> None:
    say(server, tool_use("add", {"a": 2, "b": 3}, id="toolu_add"), usage={"input_tokens": 520, "output_tokens": 61})
    final = tool_use("final_result", {"terms": [2, 3], "total": 5}, id="toolu_final")
    say(server, final, usage={"input_tokens": 602, "output_tokens": 48})
    await turn("What is 2 + 3?", [add], output=Sum, max_steps=2).result()


VERTEX_RECORDINGS: dict[str, Callable[[AnthropicServer, Callable[..., Turn]], Awaitable[None]]] = {
    "text": record_vertex_text,
    "tools_and_forced_output": record_vertex_forced_output,
    "parallel_tools_thinking": record_parallel_tools_thinking,
    "overloaded_then_success": record_overloaded_then_success,
    "error_in_the_middle": record_error_in_the_middle,
}


GEMINI = "gemini-3.8-flash"


async def record_gemini_tool_round_trip(server: GeminiServer, turn: Callable[..., Turn]) -> None:
    usage = {"promptTokenCount": 64, "candidatesTokenCount": 7, "thoughtsTokenCount": 31}
    server.reply(
        gemini.thought("The sum is asked; the tool can tell.", 2),
        gemini.call("add", {"a": 2, "b": 3}, id="fc-add", signature="c2lnbmVkIGJ5IHRoZSBsb2NhbCBzZXJ2ZXI="),
        usage=usage,
    )
    server.reply(gemini.text("2 + 3 = 5.", 4), usage={"promptTokenCount": 121, "candidatesTokenCount": 9})
    await turn("What is 2 + 3?", [add]).result()


async def record_gemini_parallel_tools(
    server: GeminiServer, turn: Callable[..., Turn], *, vertex: bool = False
) -> None:
    server.reply(
        gemini.call("local_time", {"city": "Wellington"}, signature="c2lnbmVkIGJ5IHRoZSBsb2NhbCBzZXJ2ZXI="),
        gemini.call("weather", {"city": "Wellington"}),
        usage={"promptTokenCount": 102, "candidatesTokenCount": 18},
        vertex=vertex,
    )
    server.reply(gemini.text(ANSWER, 24), usage={"promptTokenCount": 188, "candidatesTokenCount": 97}, vertex=vertex)
    await turn("Can I ring my sister in Wellington, and does she need an umbrella?", [local_time, weather]).result()


async def record_gemini_malformed_then_corrected(server: GeminiServer, turn: Callable[..., Turn]) -> None:
    server.reply(
        finish_reason="MALFORMED_FUNCTION_CALL", usage={"promptTokenCount": 64, "totalTokenCount": 64}, vertex=True
    )
    server.reply(
        gemini.call("add", {"a": 2, "b": 3}), usage={"promptTokenCount": 97, "candidatesTokenCount": 7}, vertex=True
    )
    server.reply(gemini.text("5.", 1), usage={"promptTokenCount": 120, "candidatesTokenCount": 2}, vertex=True)
    await turn("What is 2 + 3?", [add]).result()


async def record_gemini_text(server: GeminiServer, turn: Callable[..., Turn], *, vertex: bool = False) -> None:
    usage = {"promptTokenCount": 4, "candidatesTokenCount": 9, "thoughtsTokenCount": 12}
    server.reply(gemini.thought("A greeting.", 1), gemini.text("Hello! What can I do?", 4), usage=usage, vertex=vertex)
    await turn("Say hello.").result()


async def record_gemini_exhausted_then_success(
    server: GeminiServer, turn: Callable[..., Turn], *, vertex: bool = False
) -> None:
    server.fail(429, "RESOURCE_EXHAUSTED", message="Resource has been exhausted (e.g. check quota).")
    server.reply(gemini.text("Here I am.", 3), usage={"promptTokenCount": 6, "candidatesTokenCount": 4}, vertex=vertex)
    await turn("Are you there?").result()


async def record_gemini_structured_output(
    server: GeminiServer, turn: Callable[..., Turn], *, vertex: bool = False
) -> None:
    usage = {"promptTokenCount": 14, "candidatesTokenCount": 16}
    server.reply(gemini.text('{"terms": [2, 3], "total": 5}', 4), usage=usage, vertex=vertex)
    await turn("What is 2 + 3?", output=Sum).result()


async def record_gemini_error_in_the_middle(
    server: GeminiServer, turn: Callable[..., Turn], *, vertex: bool = False
) -> None:
    begun = gemini.chunks(gemini.text("Once upon a time", 4), gemini.text(" there", 1), vertex=vertex)[:-1]
    server.error_inside(begun)
    await _failing(turn("Tell me a story."))


GEMINI_RECORDINGS: dict[str, Callable[[GeminiServer, Callable[..., Turn]], Awaitable[None]]] = {
    "gemini/text": record_gemini_text,
    "gemini/tool_round_trip": record_gemini_tool_round_trip,
    "gemini/exhausted_then_success": record_gemini_exhausted_then_success,
    "gemini/structured_output": record_gemini_structured_output,
    "gemini/parallel_tools": record_gemini_parallel_tools,
    "gemini/error_in_the_middle": record_gemini_error_in_the_middle,
    "vertex-gemini/text": functools.partial(record_gemini_text, vertex=True),
    "vertex-gemini/exhausted_then_success": functools.partial(record_gemini_exhausted_then_success, vertex=True),
    "vertex-gemini/structured_output": functools.partial(record_gemini_structured_output, vertex=True),
    "vertex-gemini/error_in_the_middle": functools.partial(record_gemini_error_in_the_middle, vertex=True),
    "vertex-gemini/parallel_tools": functools.partial(record_gemini_parallel_tools, vertex=True),
    "vertex-gemini/malformed_then_corrected": record_gemini_malformed_then_corrected,
}


async def record_gemini(directory: Path) -> None:
    for name, record in GEMINI_RECORDINGS.items():
        vertex = name.startswith("vertex")
        host = "us-central1-aiplatform.googleapis.com" if vertex else "generativelanguage.googleapis.com"
        path = directory / f"{name}.yaml"
        path.unlink(missing_ok=True)
        with GeminiServer() as server:
            client = server.vertex_client() if vertex else server.client()
            with vcr.VCR(record_mode="all", **vcr_config(base_url=f"https://{host}")).use_cassette(path):
                await record(server, functools.partial(_gemini_turn, client))
            await client.aio.aclose()


def _gemini_turn(client: Any, prompt: str, tools: Sequence[Tool] = (), **options: Any) -> Turn:
    return _impatient(GeminiAdapter(client, model=GEMINI), prompt, tools=tools, **options)


CLAUDE_ON_BEDROCK = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"


async def record_bedrock_text(server: BedrockServer, client: Any) -> None:
    server.reply(bedrock.text("Hello! What can I do for you?", 6), usage={"inputTokens": 9, "outputTokens": 11})
    adapter = BedrockAdapter(client, model="amazon.nova-lite-v1:0", max_tokens=512)
    await _impatient(adapter, "Say hello.").result()


async def record_bedrock_parallel_tools_reasoning(server: BedrockServer, client: Any) -> None:
    thinks = tuple({"reasoningContent": {"text": piece}} for piece in PIECE.findall(REASONING))
    signs = {"reasoningContent": {"signature": "c2lnbmVkIGJ5IHRoZSBsb2NhbCBzZXJ2ZXI="}}
    server.reply(
        bedrock.Block(None, (*thinks, signs)),
        bedrock.tool_use("local_time", {"city": "Wellington"}, id="tooluse_time"),
        bedrock.tool_use("weather", {"city": "Wellington"}, id="tooluse_weather"),
        usage={"inputTokens": 38, "outputTokens": 147, "cacheReadInputTokens": 0, "cacheWriteInputTokens": 604},
    )
    server.reply(
        bedrock.Block(None, tuple({"text": piece} for piece in PIECE.findall(ANSWER))),
        usage={"inputTokens": 271, "outputTokens": 112, "cacheReadInputTokens": 604, "cacheWriteInputTokens": 0},
    )
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    adapter = BedrockAdapter(
        client,
        model=CLAUDE_ON_BEDROCK,
        max_tokens=2048,
        additionalModelRequestFields=thinking,
        toolConfig={"toolChoice": {"auto": {}}},
    )
    await _impatient(
        adapter,
        "Can I ring my sister in Wellington, and does she need an umbrella?",
        tools=[local_time, weather, {"cachePoint": {"type": "default"}}],
        system=[{"text": "Answer in a few friendly sentences."}, {"cachePoint": {"type": "default"}}],
    ).result()


async def record_bedrock_throttled_then_success(server: BedrockServer, client: Any) -> None:
    # inside the reply, after a 200
    server.exception_inside("throttlingException", "Too many tokens, please wait before trying again.")
    server.reply(bedrock.text("Here I am.", 3), usage={"inputTokens": 10, "outputTokens": 7})
    await _impatient(BedrockAdapter(client, model=CLAUDE_ON_BEDROCK), "Are you there?").result()


async def record_bedrock_structured_output(server: BedrockServer, client: Any) -> None:
    server.reply(bedrock.text('{"terms": [2, 3], "total": 5}', 4), usage={"inputTokens": 196, "outputTokens": 17})
    await _impatient(BedrockAdapter(client, model=CLAUDE_ON_BEDROCK), "What is 2 + 3?", output=Sum).result()


async def record_bedrock_error_in_the_middle(server: BedrockServer, client: Any) -> None:
    begun = bedrock.message(bedrock.text("Once upon a time", 4))[:-3]
    server.exception_inside("modelStreamErrorException", "The model stopped.", begun, originalStatusCode=500)
    await _failing(_impatient(BedrockAdapter(client, model=CLAUDE_ON_BEDROCK), "Tell me a story."))


async def record_sagemaker_text(server: SageMakerServer, client: Any) -> None:
    pieces = PIECE.findall("Hello! What can I do for you?")
    server.reply(sagemaker.openai(*pieces, usage={"prompt_tokens": 12, "completion_tokens": 10}), part_size=100)
    adapter = SageMakerAdapter(client, model="chat", max_tokens=512, stream_options={"include_usage": True})
    await _impatient(adapter, "Say hello.", system="Be brief.").result()


async def record_sagemaker_text_generation(server: SageMakerServer, client: Any) -> None:
    server.reply(sagemaker.tgi(*PIECE.findall(" a llama.")))
    adapter = SageMakerAdapter(client, model="text-generation", body=inputs_body, max_new_tokens=20)
    await _impatient(adapter, "What is in my garden is").result()


AWS_RECORDINGS: dict[str, Callable[[Any, Any], Awaitable[None]]] = {
    "bedrock/text": record_bedrock_text,
    "bedrock/parallel_tools_reasoning": record_bedrock_parallel_tools_reasoning,
    "bedrock/throttled_then_success": record_bedrock_throttled_then_success,
    "bedrock/structured_output": record_bedrock_structured_output,
    "bedrock/error_in_the_middle": record_bedrock_error_in_the_middle,
    "sagemaker/text": record_sagemaker_text,
    "sagemaker/text_generation": record_sagemaker_text_generation,
}
AWS_HOSTS: dict[str, tuple[type[BedrockServer] | type[SageMakerServer], str]] = {
    "bedrock": (BedrockServer, "bedrock-runtime.us-east-1.amazonaws.com"),
    "sagemaker": (SageMakerServer, "runtime.sagemaker.us-east-1.amazonaws.com"),
}


async def record_aws(directory: Path) -> None:
    for name, record in AWS_RECORDINGS.items():
        serve, host = AWS_HOSTS[name.partition("/")[0]]
        path = directory / f"{name}.yaml"
        path.unlink(missing_ok=True)
        with serve() as server:
            client = server.client()
            with vcr.VCR(record_mode="all", **vcr_config(base_url=f"https://{host}")).use_cassette(path):
                await record(server, client)
            client.close()


async def _failing(turn: Turn) -> None:
    with contextlib.suppress(RxLoopError):
        await turn.result()


def _impatient(adapter: Adapter, prompt: str, **options: Any) -> Turn:
    return Turn(adapter, prompt, retry=RetryPolicy(first_delay=0.0, max_delay=0.0), **options)


async def main(directory: Path) -> None:
    await record_aws(directory)
    await record_gemini(directory)
    for name, record in RECORDINGS.items():
        await record_claude(directory / "anthropic" / f"{name}.yaml", "https://api.anthropic.com", record)
    for name, record in VERTEX_RECORDINGS.items():
        path = directory / "vertex-claude" / f"{name}.yaml"
        await record_claude(path, "https://aiplatform.googleapis.com/v1", record, vertex=True)


async def record_claude(
    path: Path,
    base_url: str,
    record: Callable[[AnthropicServer, Callable[..., Turn]], Awaitable[None]],
    *,
    vertex: bool = False,
) -> None:
    recorder = _recorder(path, base_url)
    with AnthropicServer() as server:
        async with _vertex_client(server) if vertex else server.client() as client:
            with recorder.use_cassette(path):
                await record(server, functools.partial(_turn, client))


def _recorder(path: Path, base_url: str) -> vcr.VCR:
    path.unlink(missing_ok=True)
    return vcr.VCR(record_mode="all", **vcr_config(base_url=base_url))


def _vertex_client(server: AnthropicServer) -> Any:
    return AsyncAnthropicVertex(
        project_id="project",
        region="global",
        access_token="token",  # noqa: S106
        base_url=f"{server.url}/v1",
    )


def _turn(
    client: Any,
    prompt: str,
    tools: Sequence[Tool] = (),
    *,
    system: str | None = None,
    output: Any = None,
    max_steps: int | None = None,
    **fields: Any,
) -> Turn:
    adapter = AnthropicAdapter(client, model=CLAUDE if output is not None else MODEL, max_tokens=2048, **fields)
    return _impatient(adapter, prompt, tools=tools, system=system, output=output, max_steps=max_steps)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else CASSETTES))
