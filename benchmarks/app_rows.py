"""Web servers that send a turn to user interfaces as AG-UI's server-sent events. The prompt names the model."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from importlib import import_module
from typing import Any

from benchmarks.contenders import MAX_TOKENS, UnavailableError, anthropic_client, request_body
from benchmarks.rxloop_rows import imported

MOST_TURNS = 1_000


def raw_sdk(url: str) -> Any:
    """The handler everyone writes: a loop over the SDK's stream that yields a frame per delta."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route

    client = anthropic_client(url)

    def frame(kind: str, **fields: Any) -> str:
        return f"data: {json.dumps({'type': kind, **fields}, ensure_ascii=False, separators=(',', ':'))}\n\n"

    async def frames(asked: dict[str, Any]) -> AsyncIterator[str]:
        message, ids = asked["runId"], {"threadId": asked["threadId"], "runId": asked["runId"]}
        body: Any = request_body(asked["messages"][-1]["content"])
        yield frame("RUN_STARTED", **ids)
        async with await client.messages.create(**body) as stream:
            async for event in stream:
                if event.type == "content_block_start":
                    yield frame("TEXT_MESSAGE_START", messageId=message, role="assistant")
                elif event.type == "content_block_delta" and event.delta.type == "text_delta":
                    yield frame("TEXT_MESSAGE_CONTENT", messageId=message, delta=event.delta.text)
                elif event.type == "content_block_stop":
                    yield frame("TEXT_MESSAGE_END", messageId=message)
        yield frame("RUN_FINISHED", **ids)

    async def start(request: Request) -> Response:
        return StreamingResponse(frames(await request.json()), media_type="text/event-stream")

    return Starlette(routes=[Route("/turns", start, methods=["POST"])])


def rxloop(url: str) -> Any:
    """`turn_app` as it comes, but for the limit of turns."""
    turn_app = imported("rxloop.ui.app", "turn_app")
    turn_class = imported("rxloop", "Turn")
    adapter_class = imported("rxloop.adapters.anthropic", "AnthropicAdapter")
    client = anthropic_client(url)
    adapters: dict[str, Any] = {}

    def make_turn(request: Any) -> Any:
        model = request.prompt
        if model not in adapters:
            adapters[model] = adapter_class(client, model=model, max_tokens=MAX_TOKENS)
        return turn_class(adapters[model], model, conversation=request.conversation)

    return turn_app(make_turn, max_turns=MOST_TURNS)


def pydantic_ai(url: str) -> Any:
    """A peer: pydantic-ai's adapter for AG-UI, in a handler as its documentation has it."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    try:
        adapter: Any = import_module("pydantic_ai.ui.ag_ui").AGUIAdapter
        agent: Any = import_module("pydantic_ai").Agent()
        model_class: Any = import_module("pydantic_ai.models.anthropic").AnthropicModel
        provider: Any = import_module("pydantic_ai.providers.anthropic").AnthropicProvider(
            anthropic_client=anthropic_client(url)
        )
    except ImportError as exc:
        how = "run `uv run --with 'pydantic-ai-slim[anthropic,ag-ui]' python -m benchmarks --peers`"
        raise UnavailableError(f"{exc}; {how}") from exc
    models: dict[str, Any] = {}

    async def start(request: Request) -> Response:
        name = (await request.json())["messages"][-1]["content"]
        if name not in models:
            models[name] = model_class(name, provider=provider)
        response: Response = await adapter.dispatch_request(request, agent=agent, model=models[name])
        return response

    return Starlette(routes=[Route("/turns", start, methods=["POST"])])


APPS: dict[str, Callable[[str], Any]] = {"raw-sdk": raw_sdk, "rxloop": rxloop, "pydantic-ai": pydantic_ai}
