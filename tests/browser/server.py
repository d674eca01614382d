"""The server that the browser talks to: the real app on loopback, with models that say what a test needs."""

from __future__ import annotations

import asyncio
import contextlib
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
from rxloop.testing import CallTool, ScriptedAdapter, Think, Wait
from rxloop.ui.app import turn_app
from rxloop.ui.demo import DEMO_TOOLS, SUGGESTIONS, DemoAdapter
from rxloop.ui.page import page_routes
from rxloop.ui.turn_request import TurnRequest

MARKUP = '<img src="x" onerror="window.injected = 1"><script>window.injected = 1</script>'
PACE = 0.1
AT_EASE = "Look up Wellington, and tell me what 17% of 2,340 is."
"""A prompt that is answered at the pace at which a person sees it."""

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


def line(words: int) -> ScriptedAdapter:
    """One endless line, in pieces."""
    return ScriptedAdapter([item for _ in range(words // 40) for item in ("word " * 40, Wait(0.005))])


SCRIPTS: dict[str, Callable[[str], tuple[ScriptedAdapter, list[Tool]]]] = {
    "inject": lambda argument: (injection(), spiteful_tools()),
    "gate": lambda argument: (gated(argument), [wait_for]),
    "chatter": lambda argument: (
        ScriptedAdapter([CallTool("chatter", {"reports": int(argument)})], "It is said."),
        [chatter],
    ),
    "line": lambda argument: (line(int(argument)), []),
    "say": lambda argument: (ScriptedAdapter([argument.replace("\\n", "\n")]), []),
}


def make_turn(request: TurnRequest) -> Turn:
    """What a test asks for by the first word of its prompt, or else the demo."""
    word, _, argument = request.prompt.partition(" ")
    if word in SCRIPTS:
        adapter, tools = SCRIPTS[word](argument)
        return Turn(adapter, request.prompt, tools=tools, turn_id=request.turn_id)
    return Turn(
        DemoAdapter(pace=1.0 if request.prompt == AT_EASE else PACE),
        request.prompt,
        tools=list(DEMO_TOOLS.values()),
        conversation=request.conversation,
        turn_id=request.turn_id,
    )


class Cuts:
    """Ends the next streams of events after their first frames, as a proxy that restarts does."""

    def __init__(self) -> None:
        self.app: Any = None
        self.left = 0

    async def order(self, request: Request) -> Response:
        self.left = int(request.path_params["count"])
        return Response(status_code=204)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if not self.left or not str(scope.get("path", "")).endswith("/events"):
            await self.app(scope, receive, send)
            return
        self.left -= 1

        async def counted(message: Any) -> None:
            await send(message)
            if b"data: " in message.get("body", b""):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                raise _CutError

        with contextlib.suppress(_CutError):
            await self.app(scope, receive, counted)


class _CutError(Exception):
    pass


async def open_gate(request: Request) -> Response:
    gate(request.path_params["name"]).set()
    return Response(status_code=204)


def main() -> None:
    suggestions = [{"title": item.title, "prompt": item.prompt} for item in SUGGESTIONS]
    page = page_routes(provider="demo", suggestions=suggestions)
    cuts = Cuts()
    control = [
        Route("/gates/{name}", open_gate, methods=["POST"]),
        Route("/cuts/{count}", cuts.order, methods=["POST"]),
    ]
    cuts.app = turn_app(make_turn, routes=[*page, *control])
    listener = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}/\n")
    sys.stdout.flush()
    config = uvicorn.Config(cuts, log_level="warning", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
