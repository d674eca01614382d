from __future__ import annotations

from typing import Any

import pytest
from reactivex.testing import TestScheduler

from rxloop import (
    ConfigurationError,
    ReasoningDelta,
    RetryPolicy,
    RetryScheduled,
    StreamInterruptedError,
    TextDelta,
    ToolCallReceived,
    ToolFinished,
    ToolProgress,
    Turn,
    TurnEvent,
    TurnFinished,
    iterate,
)
from rxloop.demand import Demand, demand_context
from rxloop.steps import Step, StepResult
from rxloop.testing import Timeline, check_grammar
from rxloop.ui.demo import DEMO_TOOLS, SUGGESTIONS, DemoAdapter, Suggestion

AT_ONCE = RetryPolicy(first_delay=0.0, max_delay=0.0, max_retry_after=0.0)


def demo(prompt: str, **options: Any) -> Turn:
    options.setdefault("tools", list(DEMO_TOOLS.values()))
    return Turn(DemoAdapter(pace=0), prompt, **options)


async def events_of(turn: Turn) -> list[TurnEvent]:
    events = [event async for event in iterate(turn)]
    check_grammar(events)
    return events


def calls(events: list[TurnEvent]) -> list[tuple[str, Any]]:
    return [(event.name, event.arguments) for event in events if isinstance(event, ToolCallReceived)]


def text(events: list[TurnEvent]) -> str:
    last = events[-1]
    assert isinstance(last, TurnFinished)
    return last.text


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("prompt", "expression", "answer"),
    [
        ("What is 17% of 2,340?", "17 / 100 * 2340", "**397.8**"),
        ("3 plus 4 times 2?", "3 + 4 * 2", "**11**"),
        ("(2+3)*7-1.", "(2+3)*7-1", "**34**"),
        ("2^10 please", "2 ** 10", "**1,024**"),
    ],
)
async def test_arithmetic_goes_to_the_calculator(prompt: str, expression: str, answer: str) -> None:
    events = await events_of(demo(prompt))
    assert calls(events) == [("calculator", {"expression": expression})]
    assert answer in text(events)
    assert any(isinstance(event, ReasoningDelta) for event in events)


@pytest.mark.asyncio
async def test_what_is_no_arithmetic_does_not() -> None:
    for prompt in ("Tell me of 1984.", "a 7 b + c", "(2 +"):
        assert [name for name, _ in calls(await events_of(demo(prompt)))] in (["look_up"], [])


@pytest.mark.asyncio
async def test_several_tools_at_once() -> None:
    events = await events_of(demo(next(item.prompt for item in SUGGESTIONS if "parallel" in item.title)))
    assert [name for name, _ in calls(events)] == ["look_up", "look_up", "calculator", "clock"]
    assert sum(isinstance(event, ToolProgress) for event in events) == 16
    assert all(event.error is None for event in events if isinstance(event, ToolFinished))
    assert text(events).count("\n- ") == 4


@pytest.mark.asyncio
async def test_only_tools_that_are_offered_are_called() -> None:
    assert calls(await events_of(demo("2 + 3, and the time", tools=[DEMO_TOOLS["clock"]]))) == [
        ("clock", {"zone": "UTC"})
    ]
    events = await events_of(demo("2 + 3", tools=[]))
    assert calls(events) == []
    assert "no tool for it" in text(events)


@pytest.mark.asyncio
async def test_a_tool_that_fails_does_not_end_the_turn() -> None:
    events = await events_of(demo("Use the failing tool."))
    [finished] = [event for event in events if isinstance(event, ToolFinished)]
    assert finished.error is not None
    assert "out of order" in text(events)


@pytest.mark.asyncio
async def test_it_breaks_off_where_it_is_asked_to() -> None:
    timeline = await Timeline.record(demo("a provider error, please"))
    check_grammar(timeline.events, error=True)
    assert isinstance(timeline.error, StreamInterruptedError)
    assert timeline.error.partial is not None
    assert timeline.error.partial.text == "This answer will break off in the mid"


@pytest.mark.asyncio
async def test_it_is_busy_once() -> None:
    scheduler = TestScheduler()
    seen: list[TurnEvent] = []
    turn = Turn(DemoAdapter(), "429, please", scheduler=scheduler)
    turn.subscribe(seen.append, scheduler=scheduler)
    scheduler.start()
    check_grammar(seen)
    [retry] = [event for event in seen if isinstance(event, RetryScheduled)]
    assert (retry.attempt, retry.delay, retry.error["status"]) == (1, 1.5, 429)
    assert "two attempts" in text(seen)


@pytest.mark.asyncio
async def test_a_long_answer_is_as_long_as_asked() -> None:
    assert len(text(await events_of(demo("Give me 50,000 characters.")))) == 50_000
    assert len(text(await events_of(demo("A long answer!")))) == 6_000


@pytest.mark.asyncio
async def test_a_conversation_goes_on() -> None:
    first = await demo("2 + 3").result()
    second = await demo("7 * 7", conversation=first.conversation).result()
    assert "**49**" in second.text
    assert [message["role"] for message in second.conversation] == ["user", "assistant", "tool", "assistant"] * 2
    identifiers = [call.call_id for result in (first, second) for call in result.tool_calls]
    assert len(set(identifiers)) == len(identifiers)
    assert second.usage.input_tokens > first.usage.input_tokens
    assert 0 < second.usage.cache_read_tokens < second.usage.input_tokens


class TestPace:
    """The waits are the scheduler's, and nothing is said to whoever is gone or does not keep up."""

    def test_in_virtual_time(self) -> None:
        scheduler = TestScheduler()
        times: list[float] = []
        step = Step(0, [{"role": "user", "content": "2 + 3"}])
        DemoAdapter().step(step).subscribe(lambda item: times.append(scheduler.clock), scheduler=scheduler)
        scheduler.start()
        assert times == sorted(times)
        assert 0.4 < times[-1] - times[0] < 3
        slow: list[float] = []
        DemoAdapter(pace=2).step(step).subscribe(lambda item: slow.append(scheduler.clock), scheduler=scheduler)
        scheduler.start()
        assert slow[-1] - slow[0] == pytest.approx(2 * (times[-1] - times[0]))

    def test_disposal_ends_it(self) -> None:
        scheduler = TestScheduler()
        seen: list[Any] = []
        step = Step(0, [{"role": "user", "content": "hello"}])
        subscription = DemoAdapter().step(step).subscribe(seen.append, scheduler=scheduler)
        scheduler.advance_by(0.1)
        subscription.dispose()
        count = len(seen)
        assert count > 0
        scheduler.start()
        assert len(seen) == count
        assert step.draft is not None
        assert step.draft.draft().finish_reason == "aborted"

    def test_demand_pauses_it(self) -> None:
        demand = Demand()
        token = demand_context.set(demand)
        try:
            scheduler = TestScheduler()
            seen: list[Any] = []
            demand.close()
            step = Step(0, [{"role": "user", "content": "characters"}])
            DemoAdapter().step(step).subscribe(seen.append, scheduler=scheduler)
            scheduler.start()
            assert seen == []
            demand.open()
            scheduler.start()
            assert isinstance(seen[-1], StepResult)
            assert sum(isinstance(item, TextDelta) for item in seen) == 15
        finally:
            demand_context.reset(token)

    @pytest.mark.parametrize("pace", [-1, float("inf"), float("nan"), True, "1"])
    def test_what_is_no_pace(self, pace: Any) -> None:
        with pytest.raises(ConfigurationError, match="pace must be a finite number >= 0, but got"):
            DemoAdapter(pace=pace)


def test_every_suggestion_shows_something_else() -> None:
    assert all(isinstance(item, Suggestion) for item in SUGGESTIONS)
    assert len({item.title for item in SUGGESTIONS}) == len({item.prompt for item in SUGGESTIONS}) == len(SUGGESTIONS)
