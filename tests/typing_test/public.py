"""What a type checker knows of the public API; checked by mypy, never run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, assert_type

import reactivex
from pydantic import BaseModel
from reactivex import Observable
from typing_extensions import TypedDict

import rxloop
from rxloop import (
    Breaker,
    CapReached,
    Channel,
    FinishReason,
    InvalidOutputError,
    Limits,
    Output,
    Partial,
    Reclaim,
    Renewal,
    RetryPolicy,
    RxLoopError,
    StepFinished,
    TextDelta,
    TimedOutError,
    Tool,
    ToolCall,
    ToolContext,
    ToolFinished,
    ToolResult,
    Turn,
    TurnEvent,
    TurnFinished,
    TurnResult,
    UnknownEvent,
    Usage,
    event_from_dict,
    iterate,
    tool,
)
from rxloop.adapters.base import Adapter
from rxloop.events import is_event
from rxloop.operators import (
    MalformedBudget,
    OutputState,
    deadline,
    partial_output,
    retry_before_first_emit,
    retry_malformed_call,
    stall_watchdog,
    step_cap,
    step_deadline,
    stop_on,
    structured_output,
    text,
    tool_calls,
    tool_dispatch,
    turn_deadline,
    usage_limit,
    usage_scan,
)
from rxloop.turn import TurnStream


def narrowed_by_type(event: TurnEvent) -> None:
    if event.type == "text_delta":
        assert_type(event, TextDelta)
        assert_type(event.text, str)
    elif event.type == "tool_finished":
        assert_type(event, ToolFinished)
        assert_type(event.error, str | None)
    elif event.type == "turn_finished":
        assert_type(event.usage, Usage)
        assert_type(event.tool_calls, tuple[ToolCall, ...])
        assert_type(event.finish_reason, FinishReason)
    elif event.type == "unknown":
        assert_type(event, UnknownEvent)


def narrowed_by_class(event: TurnEvent) -> None:
    if isinstance(event, StepFinished):
        assert_type(event.text, str)
        assert_type(event.raw_stop_reason, str | None)
    match event:
        case TurnFinished(text=answer):
            assert_type(answer, str)
        case _:
            pass
    assert_type(TextDelta.type, Literal["text_delta"])
    assert_type(event.to_dict(), dict[str, Any])


def narrowed_by_guard(value: object) -> None:
    if is_event(value):
        narrowed_by_type(value)


def read_back(data: dict[str, Any]) -> None:
    assert_type(event_from_dict(data), TurnEvent)


@tool
def add(a: int, b: int = 2) -> int:
    """Add."""
    return a + b


@tool(name="wait", timeout=5, sequential=True)
async def wait(seconds: float, context: ToolContext) -> str:
    """Wait."""
    context.report({"waited": seconds})
    assert_type(context.cancellation.cancelled, bool)
    return "done"


@tool
def ticks() -> Observable[int]:
    """Tick."""
    return reactivex.of(1)


def tools() -> None:
    assert_type(add, Tool)
    assert_type(wait, Tool)
    assert_type(ticks, Tool)
    assert_type(Tool.from_schema("x", "", {"type": "object"}, lambda arguments: arguments), Tool)


async def find(name: str) -> Tool | None:
    return add if name == "add" else None


def renew(reached: CapReached) -> Renewal | int | None:
    return Renewal(reached.max_steps + 1, "go on") if reached.max_steps < 9 else None


def end(result: TurnResult) -> None:
    assert_type(result.conversation, list[Mapping[str, Any]])
    assert_type(result.tool_results, tuple[ToolResult, ...])


def plain(a: int) -> int:
    return a


async def turns(adapter: Adapter, stop: asyncio.Event) -> None:
    turn = Turn(
        adapter,
        "hello",
        tools=[add, plain, {"type": "web_search"}],
        system="Be brief.",
        max_steps=8,
        renew=renew,
        retry=RetryPolicy(retries=1),
        limits=Limits(turn_timeout=60),
        stop=stop,
        breaker=Breaker(3),
        resolve_tool_on_miss=find,
        on_end=end,
    )
    observable: Observable[TurnEvent] = turn
    async for event in turn:
        assert_type(event, TurnEvent)
    async with turn.stream() as stream:
        assert_type(stream, TurnStream)
        channel: Channel[TurnEvent] = stream
        async for event in channel:
            assert_type(event, TurnEvent)
    assert_type(stream.result, TurnResult)
    result = await turn.result()
    assert_type(result, TurnResult)
    assert_type(turn.result_sync(), TurnResult)
    again = Turn(adapter, None, conversation=result.conversation, tools=lambda: [add], breaker=None)
    assert_type(await again.result(), TurnResult)
    async for word in iterate(turn.pipe(text())):
        assert_type(word, str)
    async for event in iterate(observable):
        assert_type(event, TurnEvent)


def operators(turn: Turn, found: dict[str, Tool]) -> None:
    assert_type(turn.pipe(text()), Observable[str])
    assert_type(turn.pipe(tool_calls()), Observable[ToolCall])
    composed = turn.pipe(
        stall_watchdog(5, first_event_timeout=10),
        retry_before_first_emit(RetryPolicy(), step=1),
        retry_malformed_call(MalformedBudget()),
        step_deadline(60),
        tool_dispatch(found, concurrency=2, resolve_tool_on_miss=find),
    )
    composed.pipe(
        step_cap(3, renew=renew),
        usage_scan(Usage()),
        usage_limit(total_tokens=1_000),
        turn_deadline(60),
        deadline(60, clock="transport"),
        stop_on(reactivex.timer(5)),
    ).subscribe(print)


class City(BaseModel):
    name: str
    people: int = 0


@dataclass
class Point:
    x: int


class Movie(TypedDict, total=False):
    title: str


async def outputs(adapter: Adapter) -> None:
    for kind in (City, Point, Movie, list[int], {"type": "object"}, Output(City, retries=2)):
        Turn(adapter, "hello", output=kind)
    output = Output(City, mode="coercive", description="The city.", retries=2)
    assert_type(output.mode, Literal["auto", "native", "cooperative", "coercive"])
    assert_type(output.schema, dict[str, Any])
    turn = Turn(adapter, "hello", tools=[add], output=output, reclaim=Reclaim(window=30_000))
    result = await turn.result()
    assert_type(result.output, Any)
    assert_type(turn.pipe(partial_output(City)), Observable[City])
    assert_type(turn.pipe(partial_output(Point, native=True)), Observable[Point])
    assert_type(turn.pipe(partial_output(Movie)), Observable[Movie])
    async for snapshot in iterate(turn.pipe(partial_output(City))):
        assert_type(snapshot.people, int)
    assert_type(turn.pipe(structured_output(OutputState(output, "cooperative", 8), step=1)), Observable[Any])
    assert_type(turn.pipe(structured_output(None)), Observable[Any])


def failures(error: RxLoopError) -> None:
    assert_type(error.partial, Partial | None)
    assert_type(error.retryable, bool)
    if isinstance(error, TimedOutError):
        assert_type(error.clock, Literal["turn", "step", "first_event", "stall", "tool", "transport"])
    if isinstance(error, InvalidOutputError):
        assert_type(error.payload, Any)
    assert_type(rxloop.__version__, str)


def refused(adapter: Adapter) -> None:
    """What a type checker must refuse: an unused ``type: ignore`` is an error."""
    Turn(adapter, "hello", max_steps="8")  # type: ignore[arg-type]
    Turn(adapter, "hello", breaker="never")  # type: ignore[arg-type]
    Limits(turn_timeout="60")  # type: ignore[arg-type]
    TextDelta(0, "x").text = "y"  # type: ignore[misc]
    step_cap(3, renew=lambda reached: "4")  # type: ignore[arg-type,return-value]
    deadline(5, clock="lunch")  # type: ignore[arg-type]
    Output(City, mode="forced")  # type: ignore[arg-type]
    Output(City, retries="2")  # type: ignore[arg-type]
    Turn(adapter, "hello", reclaim="never")  # type: ignore[arg-type]
    partial_output(City, native="yes")  # type: ignore[arg-type]
    structured_output(Output(City))  # type: ignore[arg-type]
