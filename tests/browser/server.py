"""The server that the browser talks to: the real app on loopback, with models that say what a test needs."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rxloop import Tool, ToolContext, Turn, tool
from rxloop.errors import ServerError
from rxloop.testing import CallTool, ScriptedAdapter, Think
from rxloop.ui.app import TurnRequest, turn_app
from rxloop.ui.demo import DEMO_TOOLS, SUGGESTIONS, DemoAdapter
from rxloop.ui.page import page_routes

MARKUP = '<img src="x" onerror="window.injected = 1"><script>window.injected = 1</script>'
PACE = 0.2

gates: dict[str, asyncio.Event] = {}


def gate(name: str) -> asyncio.Event:
    return gates.setdefault(name, asyncio.Event())


@tool(timeout=30)
async def wait_for(name: str) -> str:
    """Wait until the test opens a gate."""
    await gate(name).wait()
    return f"{name} is open"


@tool
async def chatter(reports: int, *, context: ToolContext) -> str:
    """Report many times."""
    for number in range(1, reports + 1):
        context.report({"done": number, "total": reports})
        if number % 20 == 0:
            await asyncio.sleep(0)
    return "said all"


def spiteful_tools() -> list[Tool]:
    async def answers(arguments: dict[str, Any], context: ToolContext) -> dict[str, str]:
        context.report({MARKUP: MARKUP})
        context.report(MARKUP)
        return {MARKUP: MARKUP}

    async def fails(arguments: dict[str, Any]) -> str:
        raise RuntimeError(MARKUP)

    anything = {"type": "object"}
    return [
        Tool.from_schema(MARKUP, MARKUP, anything, answers),
        Tool.from_schema(f"failing {MARKUP}", MARKUP, anything, fails),
    ]


def injection() -> ScriptedAdapter:
    return ScriptedAdapter(
        [
            Think(MARKUP),
            f"{MARKUP}\n**{MARKUP}** `{MARKUP}`\n# {MARKUP}\n- {MARKUP}\n```{MARKUP}\n",
            f"```html\n{MARKUP}\n```\n[a link](javascript:window.injected=1) ",
            CallTool(MARKUP, {MARKUP: MARKUP}, call_id=MARKUP),
            CallTool(f"failing {MARKUP}", {"a": MARKUP}),
            CallTool(f"unknown {MARKUP}", MARKUP),
        ],
        [MARKUP, ServerError(MARKUP, provider=MARKUP, status=500)],
        model=MARKUP,
    )


def gated(name: str) -> ScriptedAdapter:
    return ScriptedAdapter(
        [Think("First I wait."), "The first half. ", CallTool("wait_for", {"name": name})],
        ["The second ", "half."],
    )


SCRIPTS: dict[str, Callable[[str], tuple[ScriptedAdapter, list[Tool]]]] = {
    "inject": lambda argument: (injection(), spiteful_tools()),
    "gate": lambda argument: (gated(argument), [wait_for]),
    "chatter": lambda argument: (
        ScriptedAdapter([CallTool("chatter", {"reports": int(argument)})], "It is said."),
        [chatter],
    ),
    "say": lambda argument: (ScriptedAdapter([argument.replace("\\n", "\n")]), []),
}


def make_turn(request: TurnRequest) -> Turn:
    """What a test asks for by the first word of its prompt, or else the demo."""
    word, _, argument = request.prompt.partition(" ")
    if word in SCRIPTS:
        adapter, tools = SCRIPTS[word](argument)
        return Turn(adapter, request.prompt, tools=tools, turn_id=request.turn_id)
    return Turn(
        DemoAdapter(pace=PACE),
        request.prompt,
        tools=list(DEMO_TOOLS.values()),
        conversation=request.conversation,
        turn_id=request.turn_id,
    )


async def open_gate(request: Request) -> Response:
    gate(request.path_params["name"]).set()
    return Response(status_code=204)


def main() -> None:
    suggestions = [{"title": item.title, "prompt": item.prompt} for item in SUGGESTIONS]
    page = page_routes(provider="demo", suggestions=suggestions)
    app = turn_app(make_turn, page=[*page, Route("/gates/{name}", open_gate, methods=["POST"])])
    listener = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}/\n")
    sys.stdout.flush()
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
