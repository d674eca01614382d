"""Turns of every kind, as the events that a user interface is fed with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pydantic import BaseModel

from rxloop.errors import OverloadedError, RateLimitedError, ServerError
from rxloop.events import (
    MalformedRetried,
    ReasoningDelta,
    StepFinished,
    StepStarted,
    TextDelta,
    ToolCallDelta,
    ToolCallReceived,
    ToolCallStarted,
    TurnFinished,
    TurnStarted,
    UnknownEvent,
    UsageUpdated,
)
from rxloop.limits import Limits
from rxloop.operators import RetryPolicy
from rxloop.steps import Signature, ToolCall
from rxloop.testing import CallTool, ScriptedAdapter, Think, Wait
from rxloop.tools import ToolContext, tool
from rxloop.turn import Turn
from rxloop.ui.entry import StreamEvent, TurnFailed
from rxloop.ui.frames import Frames
from rxloop.usage import Usage

__all__ = ("CASES", "events_of", "server_sent")

TURN = "turn_1"


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def broken() -> str:
    """Fail."""
    raise ValueError("the lock is stuck")


@tool
async def search(query: str, context: ToolContext) -> dict[str, Any]:
    """Look something up, and tell how far it is."""
    context.report({"percent": 50})
    return {"found": query}


@tool
async def endless() -> str:
    """Run until it is cancelled."""
    await asyncio.Event().wait()
    return "never"


class Sum(BaseModel):
    """An answer."""

    total: int


async def events_of(
    *steps: Any, stop_on: Callable[[StreamEvent], bool] | None = None, **options: Any
) -> list[StreamEvent]:
    """What a scripted turn tells, its failure as data; stopped at the first event that `stop_on` picks."""
    events: list[StreamEvent] = []
    ended, stop = asyncio.Event(), asyncio.Event()

    def on_next(event: StreamEvent) -> None:
        events.append(event)
        if stop_on is not None and stop_on(event):
            stop.set()

    def on_error(error: Exception) -> None:
        events.append(TurnFailed.of(error))
        ended.set()

    turn = Turn(
        ScriptedAdapter(*steps),
        "hello",
        **{"tools": [add, broken, search, endless], "turn_id": TURN, "stop": stop, **options},
    )
    turn.subscribe(on_next, on_error, ended.set)
    async with asyncio.timeout(20):
        await ended.wait()
    return events


def server_sent(events: Sequence[StreamEvent], frames: Frames) -> bytes:
    """The body of the response that a turn's events make in a format."""
    lines = [
        f"id: {number}-{place}\ndata: {frame}\n\n"
        for number, event in enumerate(events, 1)
        for place, frame in enumerate(frames.feed(event))
    ]
    if frames.done is not None:
        lines.append(f"data: {frames.done}\n\n")
    return "".join(lines).encode()


def _of(kind: type[Any], text: str | None = None) -> Callable[[StreamEvent], bool]:
    return lambda event: isinstance(event, kind) and (text is None or getattr(event, "text", None) == text)


async def _malformed() -> list[StreamEvent]:
    """As Gemini on Vertex gives it: a call that came to nothing, and one more chance."""
    wasted = Usage(10, 2)
    return [
        TurnStarted(TURN, "vertex", "m"),
        StepStarted(0),
        TextDelta(0, "Let me"),
        StepFinished(0, "Let me", (), wasted, "MALFORMED_FUNCTION_CALL", "error"),
        UsageUpdated(wasted),
        MalformedRetried(0),
        StepStarted(1),
        TextDelta(1, "It is 5."),
        StepFinished(1, "It is 5.", (), wasted, "STOP", "stop"),
        UsageUpdated(wasted + wasted),
        TurnFinished("It is 5.", None, "stop", "STOP", wasted + wasted, 2, ()),
    ]


async def _interleaved_calls() -> list[StreamEvent]:
    """Calls whose pieces come in turns, and one that the token limit cut off before it was told."""
    calls = (ToolCall("a", "add", {"a": 1, "b": 2}), ToolCall("b", "add", '{"a": 1', truncated=True))
    whole = await events_of(
        ["Hm", Think("wait"), "so", CallTool("add", {"a": 1, "b": 2}, "a"), "and", CallTool("add", {}, "b")], "done"
    )
    begun = next(place for place, event in enumerate(whole) if isinstance(event, ToolCallStarted))
    ended = next(place for place, event in enumerate(whole) if isinstance(event, StepFinished))
    middle: list[StreamEvent] = [
        ToolCallStarted(0, "a", "add"),
        ToolCallDelta(0, "a", '{"a": 1'),
        ToolCallStarted(0, "b", "add"),
        ToolCallDelta(0, "b", '{"a": 1'),
        TextDelta(0, "and"),
        ToolCallDelta(0, "a", ', "b": 2}'),
        ToolCallReceived(0, "a", "add", {"a": 1, "b": 2}),
        ReasoningDelta(0, "more"),
    ]
    finished = whole[ended]
    assert isinstance(finished, StepFinished)
    changed = StepFinished(0, finished.text, calls, finished.usage, None, "length", (Signature("s"),))
    return [*whole[:begun], *middle, changed, *whole[ended + 1 :]]


async def _trimmed() -> list[StreamEvent]:
    """A turn whose beginning is lost: from the middle of its first step's call."""
    whole = await events_of(["Hm", CallTool("add", {"a": 1, "b": 2}, "a")], ["It is", " 3."])
    begun = next(place for place, event in enumerate(whole) if isinstance(event, ToolCallStarted))
    return whole[begun + 1 :]


async def _unknown() -> list[StreamEvent]:
    whole = await events_of("It is 5.")
    return [*whole[:2], UnknownEvent({"type": "weather", "sky": "grey"}), *whole[2:]]


_ODD = 'a"\\\n\r\t\x00\x1f\x7f\u2028\u2029 ü 😀 </script> \ud800 \udc00x'

_FAST = RetryPolicy(first_delay=0, max_delay=0)

CASES: dict[str, Callable[[], Awaitable[list[StreamEvent]]]] = {
    "text": lambda: events_of(["It", " is 5."]),
    "odd_text": lambda: events_of([_ODD, Think(_ODD), CallTool("search", {"query": "ü\n😀"}, "a b/ü")], _ODD),
    "reasoning": lambda: events_of([Think("Let me"), Think(" see.", signature="c2ln"), "It is 5."]),
    "reasoning_alone": lambda: events_of([Think("", signature="aGlkZGVu"), Think("hm", signature="c2ln")]),
    "tools": lambda: events_of(
        [
            Think("two calls", signature="s0"),
            "I look.",
            CallTool("add", {"a": 1, "b": 2}, "a", signature="s1"),
            CallTool("search", {"query": "x"}, "b"),
        ],
        "3 and x",
    ),
    "tool_errors": lambda: events_of(
        [CallTool("broken", call_id="a"), CallTool("nothing", {"x": 1}, "b"), CallTool("add", '{"a": 1', "c")], "Sorry."
    ),
    "no_arguments": lambda: events_of([CallTool("broken", "", "a")], "Sorry."),
    "retry": lambda: events_of(RateLimitedError("slow down"), ServerError("again"), "It is 5.", retry=_FAST),
    "stop_in_text": lambda: events_of(["It", Wait(0.0), Wait(30), " is 5."], stop_on=_of(TextDelta)),
    "stop_in_reasoning": lambda: events_of([Think("hm"), Wait(30), "5"], stop_on=_of(ReasoningDelta)),
    "stop_in_call": lambda: events_of(
        ["I look.", CallTool("add", {"a": 1, "b": 2}, "a"), Wait(30)], stop_on=_of(ToolCallStarted)
    ),
    "stop_in_tool": lambda: events_of(
        [CallTool("add", {"a": 1, "b": 2}, "a"), CallTool("endless", call_id="b")],
        stop_on=lambda event: event.type == "tool_finished",
    ),
    "error_in_text": lambda: events_of(["It", OverloadedError("too many")]),
    "error_at_once": lambda: events_of(OverloadedError("too many"), retry=RetryPolicy(retries=0)),
    "error_in_call": lambda: events_of([Think("hm"), CallTool("add", {"a": 1}, "a"), ServerError("gone")]),
    "internal_error": lambda: events_of(["It", RuntimeError("a secret")]),
    "deadline": lambda: events_of(["I look.", CallTool("endless", call_id="a")], limits=Limits(turn_timeout=0.05)),
    "malformed": _malformed,
    "structured": lambda: events_of(
        [CallTool("final_result", {"total": "many"}, "a")], [CallTool("final_result", {"total": 5}, "b")], output=Sum
    ),
    "structured_never": lambda: events_of(
        *[[CallTool("final_result", {"total": "many"})] for _ in range(6)], output=Sum
    ),
    "empty": lambda: events_of([]),
    "cap": lambda: events_of([CallTool("add", {"a": 1, "b": 2})], max_steps=1),
    "interleaved": lambda: events_of(
        [
            "a",
            Think("b"),
            "c",
            CallTool("add", {"a": 1, "b": 2}, "x"),
            "d",
            Think("e"),
            CallTool("broken", call_id="y"),
        ],
        "end",
    ),
    "interleaved_calls": _interleaved_calls,
    "trimmed": _trimmed,
    "unknown": _unknown,
}
