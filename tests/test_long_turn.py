"""A turn of any length needs no more stack than one of a single step."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from reactivex import Observable, abc
from reactivex.disposable import Disposable

from rxloop.adapters.base import Adapter
from rxloop.events import TextDelta, ToolCallReceived, ToolCallStarted, ToolFinished, TurnFinished
from rxloop.steps import Conversation, Step, StepResult, ToolCall, ToolResult
from rxloop.testing import check_grammar
from rxloop.tools import Tool, tool
from rxloop.turn import Turn
from rxloop.usage import Usage
from tests.operators.virtual import VirtualTime

STEPS = 5_000


class CountingAdapter(Adapter):
    """A provider that answers at once, inside ``subscribe``, and asks for a tool until the last step."""

    provider = "counting"
    model = "immediate"

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.sent: list[int] = []

    def begin(self, conversation: Conversation, prompt: Any) -> list[Mapping[str, Any]]:
        return [*conversation, {"user": prompt}]

    def step(self, step: Step) -> Observable[Any]:
        def subscribe(
            observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            self.sent.append(len(step.conversation))
            calls: tuple[ToolCall, ...] = ()
            observer.on_next(TextDelta(step.index, "x"))
            if step.index < self.steps - 1:
                call = ToolCall(f"call_{step.index}", "count", {"number": step.index})
                observer.on_next(ToolCallStarted(step.index, call.call_id, call.name))
                observer.on_next(ToolCallReceived(step.index, call.call_id, call.name, call.arguments))
                calls = (call,)
            observer.on_next(StepResult("x", calls, Usage(1, 1), "tool-calls" if calls else "stop", message={"n": 1}))
            observer.on_completed()
            return Disposable()

        return Observable(subscribe)

    def append(
        self, conversation: Conversation, result: StepResult, tool_results: Sequence[ToolResult]
    ) -> list[Mapping[str, Any]]:
        results = [{"tool": item.output} for item in tool_results]
        return [*conversation, {"assistant": result.text}, *results]


def depth() -> int:
    frame, count = sys._getframe(), 0
    while frame.f_back is not None:
        frame, count = frame.f_back, count + 1
    return count


@tool(name="count")
def in_thread(number: int) -> int:
    return number + 1


@tool(name="count")
async def on_loop(number: int) -> int:
    return number + 1


@tool(name="count")
def observable(number: int) -> Observable[int]:
    def subscribe(observer: abc.ObserverBase[int], scheduler: abc.SchedulerBase | None = None) -> Any:
        observer.on_next(number + 1)
        observer.on_completed()

    return Observable(subscribe)


@pytest.mark.asyncio
@pytest.mark.parametrize("found", [in_thread, on_loop, observable], ids=["sync", "async", "observable"])
async def test_thousands_of_immediate_steps_and_tools(found: Tool) -> None:
    adapter = CountingAdapter(STEPS)
    async with Turn(adapter, "go", tools=[found], max_steps=STEPS).stream() as stream:
        events = [event async for event in stream]
    check_grammar(events)
    assert [event.output for event in events if isinstance(event, ToolFinished)] == list(range(1, STEPS))
    last = events[-1]
    assert isinstance(last, TurnFinished)
    assert (last.finish_reason, last.steps, last.usage) == ("stop", STEPS, Usage(STEPS, STEPS))
    assert adapter.sent == list(range(1, 2 * STEPS, 2))
    assert stream.peak_buffered <= 256


def test_without_a_loop_the_stack_does_not_grow() -> None:
    adapter = CountingAdapter(STEPS)
    depths: list[int] = []
    ended: list[str] = []

    def note(event: Any) -> None:
        if isinstance(event, ToolFinished):
            depths.append(depth())

    turn = Turn(adapter, "go", tools=[observable], max_steps=STEPS, scheduler=VirtualTime())
    turn.subscribe(note, lambda error: ended.append(repr(error)), lambda: ended.append("completed"))
    assert ended == ["completed"]
    assert len(depths) == STEPS - 1
    assert len(set(depths[1:])) == 1
