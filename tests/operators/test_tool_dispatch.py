from __future__ import annotations

import asyncio
import gc
import math
import threading
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

import pytest
import reactivex
from reactivex import Observable
from reactivex.subject import Subject
from reactivex.testing import ReactiveTest
from reactivex.testing.coldobservable import ColdObservable
from reactivex.testing.recorded import Recorded

from rxloop.breaker import TOOL_PERMANENTLY_FAILED, Breaker
from rxloop.demand import Demand, current_demand, demand_context
from rxloop.errors import ConfigurationError
from rxloop.events import MalformedRetried, TextDelta, ToolFinished, ToolProgress, ToolStarted
from rxloop.operators import tool_dispatch
from rxloop.steps import FinishReason, StepResult, StepSettled, ToolCall, ToolResult
from rxloop.tools import Tool, ToolContext, tool
from tests.operators.virtual import (
    VirtualTime,
    assert_messages,
    call,
    cold_tool,
    emissions,
    failure,
    finished,
    reply,
)

on_next, on_error, on_completed, subscribe = (
    ReactiveTest.on_next,
    ReactiveTest.on_error,
    ReactiveTest.on_completed,
    ReactiveTest.subscribe,
)

variable: ContextVar[str] = ContextVar("variable", default="unset")


def run(
    time: VirtualTime, result: StepResult, *tools: Tool, disposed: float = 1000, **options: Any
) -> tuple[ColdObservable[Any], list[Recorded[Any]]]:
    """Dispatch a reply that comes at 210 from a source that completes at 220."""
    source: ColdObservable[Any] = time.create_cold_observable(on_next(10, result), on_completed(20))
    by_name = {tool.name: tool for tool in tools}
    observer = time.start(lambda: source.pipe(tool_dispatch(by_name, **options)), disposed=disposed)
    return source, observer.messages


def after(time: VirtualTime, ticks: int, *values: Any) -> ColdObservable[Any]:
    return time.create_cold_observable(*(on_next(ticks, value) for value in values), on_completed(ticks))


def started(call_id: str, name: str) -> ToolStarted:
    return ToolStarted(0, call_id, name)


def done(call_id: str, name: str, output: Any, seconds: float = 0.0) -> ToolFinished:
    return ToolFinished(0, call_id, name, output, None, False, seconds)


def failed(call_id: str, name: str, error: str, seconds: float = 0.0, *, permanently: bool = False) -> ToolFinished:
    return ToolFinished(0, call_id, name, None, error, permanently, seconds)


def outcome(messages: list[Recorded[Any]]) -> list[tuple[Any, str | None, bool]]:
    """What the calls came to, in call order."""
    settled = [item for item in emissions(messages) if isinstance(item, StepSettled)]
    assert len(settled) == 1
    return [(result.output, result.error, result.permanently_failed) for result in settled[0].tool_results]


def error_of(messages: list[Recorded[Any]]) -> str:
    [(output, error, _)] = outcome(messages)
    assert output is None
    assert error is not None
    return error


@dataclass
class Written:
    """A journal."""

    result: StepResult | None = None
    tool_results: list[ToolResult] = field(default_factory=list)


# the shape of a step


def test_a_reply_without_calls_settles_at_once() -> None:
    time, answer = VirtualTime(), reply(text="hi", finish_reason="stop")
    delta = TextDelta(3, "hi")
    source = time.create_cold_observable(on_next(5, delta), on_next(10, answer), on_completed(20))
    observer = time.start(lambda: source.pipe(tool_dispatch({}, step=3)))
    assert_messages(
        observer.messages,
        on_next(205, delta),
        on_next(210, finished(answer, 3)),
        on_next(210, StepSettled(answer)),
        on_completed(220),
    )
    assert source.subscriptions == [subscribe(200, 220)]


def test_events_come_as_calls_end_and_results_in_call_order() -> None:
    time, ask = VirtualTime(), reply(call("a", "slow"), call("b", "fast"))
    slow, fast = after(time, 30, "s"), after(time, 5, "f")
    source, messages = run(time, ask, cold_tool("slow", slow), cold_tool("fast", fast))
    in_order = (ToolResult("a", "slow", "s", seconds=30.0), ToolResult("b", "fast", "f", seconds=5.0))
    assert_messages(
        messages,
        on_next(210, finished(ask)),
        on_next(210, started("a", "slow")),
        on_next(210, started("b", "fast")),
        on_next(215, done("b", "fast", "f", 5.0)),
        on_next(240, done("a", "slow", "s", 30.0)),
        on_next(240, StepSettled(ask, in_order)),
        on_completed(240),
    )
    assert slow.subscriptions == [subscribe(210, 240)]
    assert fast.subscriptions == [subscribe(210, 215)]
    assert source.subscriptions == [subscribe(200, 220)]
    assert time.ran_after(240) == []


def test_completion_waits_for_the_source_too() -> None:
    time, ask = VirtualTime(), reply(call("a", "fast"))
    _, messages = run(time, ask, cold_tool("fast", after(time, 5, "f")))
    assert messages[-2:] == [
        on_next(215, StepSettled(ask, (ToolResult("a", "fast", "f", seconds=5.0),))),
        on_completed(220),
    ]


def test_what_follows_the_reply_passes() -> None:
    time, answer = VirtualTime(), reply(finish_reason="error", malformed=True)
    source = time.create_cold_observable(on_next(10, answer), on_next(10, MalformedRetried(0)), on_completed(20))
    observer = time.start(lambda: source.pipe(tool_dispatch({})))
    assert emissions(observer.messages) == [finished(answer), StepSettled(answer), MalformedRetried(0)]


def test_a_source_without_a_reply_passes_as_it_is() -> None:
    time = VirtualTime()
    source = time.create_cold_observable(on_next(10, TextDelta(0, "x")), on_completed(20))
    observer = time.start(lambda: source.pipe(tool_dispatch({})))
    assert_messages(observer.messages, on_next(210, TextDelta(0, "x")), on_completed(220))


def test_an_error_of_the_source_cancels_running_calls() -> None:
    time, error = VirtualTime(), RuntimeError("cut")
    slow = after(time, 50, 1)
    source = time.create_cold_observable(on_next(10, reply(call("a", "slow"))), on_error(20, error))
    observer = time.start(lambda: source.pipe(tool_dispatch({"slow": cold_tool("slow", slow)}, tool_timeout=70)))
    assert failure(observer.messages) is error
    assert observer.messages[-1].time == 220
    assert slow.subscriptions == [subscribe(210, 220)]
    assert time.ran_after(220) == []


def test_every_subscription_dispatches_for_itself() -> None:
    time, ask = VirtualTime(), reply(call("a", "t"))
    tool_source = after(time, 30, 1)
    source = time.create_cold_observable(on_next(10, ask), on_completed(20))
    dispatched = source.pipe(tool_dispatch({"t": cold_tool("t", tool_source)}))
    first, second = time.create_observer(), time.create_observer()
    time.schedule_absolute(200, lambda *_: dispatched.subscribe(first, scheduler=time))
    time.schedule_absolute(215, lambda *_: dispatched.subscribe(second, scheduler=time))
    time.start()
    assert tool_source.subscriptions == [subscribe(210, 240), subscribe(225, 255)]
    assert emissions(first.messages) == emissions(second.messages)
    assert [message.time for message in second.messages] == [message.time + 15 for message in first.messages]


# which calls run, and when


def test_at_most_so_many_calls_run_at_once() -> None:
    time = VirtualTime()
    source = after(time, 10, 1)
    _, messages = run(time, reply(*(call(str(n), "t") for n in range(5))), cold_tool("t", source), concurrency=2)
    assert [window.subscribe for window in source.subscriptions] == [210, 210, 220, 220, 230]
    assert messages[-1] == on_completed(240)


@pytest.mark.parametrize("options", [{"sequential": True}, {"sequential": True, "concurrency": 8}, {"concurrency": 1}])
def test_one_call_at_a_time(options: dict[str, Any]) -> None:
    time = VirtualTime()
    slow, fast = after(time, 20, 1), after(time, 10, 2)
    asked = reply(call("a", "slow"), call("b", "fast"), call("c", "slow"))
    run(time, asked, cold_tool("slow", slow), cold_tool("fast", fast), **options)
    assert slow.subscriptions == [subscribe(210, 230), subscribe(240, 260)]
    assert fast.subscriptions == [subscribe(230, 240)]


def test_a_sequential_tool_has_the_step_to_itself() -> None:
    time = VirtualTime()
    free, alone = after(time, 20, 1), after(time, 10, 2)
    asked = reply(call("a", "free"), call("b", "alone"), call("c", "free"), call("d", "free"), call("e", "alone"))
    run(time, asked, cold_tool("free", free), cold_tool("alone", alone, sequential=True))
    assert free.subscriptions == [subscribe(210, 230), subscribe(240, 260), subscribe(240, 260)]
    assert alone.subscriptions == [subscribe(230, 240), subscribe(260, 270)]


def test_a_sequential_tool_that_fails_its_checks_lets_the_next_one_start() -> None:
    time = VirtualTime()
    free = after(time, 20, 1)
    asked = reply(call("a", "alone", "not json"), call("b", "free"))
    run(time, asked, cold_tool("alone", after(time, 1, 1), sequential=True), cold_tool("free", free))
    assert free.subscriptions == [subscribe(210, 230)]


@pytest.mark.parametrize("reason", ["stop", "length", "tool-calls", "other", "aborted"])
def test_calls_run_whatever_the_stop_reason_says(reason: FinishReason) -> None:
    time = VirtualTime()
    _, messages = run(time, reply(call("a", "t"), finish_reason=reason), cold_tool("t", after(time, 1, "ran")))
    assert outcome(messages) == [("ran", None, False)]


def test_calls_of_a_faulty_reply_do_not_run() -> None:
    time = VirtualTime()
    _, messages = run(time, reply(call("a", "t"), finish_reason="error"), cold_tool("t", after(time, 1, "ran")))
    assert outcome(messages) == [(None, "not run: the provider reported the reply as faulty", False)]


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (reply(call("a", "t", '{"x', truncated=True), finish_reason="length"), "the token limit cut the call off"),
        (reply(call("a", "t"), malformed=True, finish_reason="error"), "malformed"),
        (reply(call("a", "t"), finish_reason="content-filter"), "refused"),
    ],
    ids=["truncated", "malformed", "refused"],
)
def test_calls_that_must_not_run_are_answered(asked: StepResult, reason: str) -> None:
    time = VirtualTime()
    source = after(time, 1, 1)
    _, messages = run(time, asked, cold_tool("t", source), breaker=Breaker(1).start())
    assert source.subscriptions == []
    assert reason in error_of(messages)
    assert error_of(messages).startswith("not run: ")
    assert not any(isinstance(item, ToolStarted) for item in emissions(messages))


def test_only_the_truncated_call_of_a_reply_is_not_run() -> None:
    time = VirtualTime()
    asked = reply(call("a", "t"), call("b", "t", "{", truncated=True), finish_reason="length")
    _, messages = run(time, asked, cold_tool("t", after(time, 1, 1)))
    assert [(output, error is None) for output, error, _ in outcome(messages)] == [(1, True), (None, False)]


def test_an_unknown_tool_is_one_error_result_that_names_the_others() -> None:
    time = VirtualTime()
    tools = [cold_tool(name, after(time, 1, 1)) for name in ("b", "a")]
    _, messages = run(time, reply(call("1", "c")), *tools)
    assert outcome(messages) == [(None, "there is no tool named 'c'; the tools are: a, b", False)]
    time = VirtualTime()
    _, messages = run(time, reply(call("1", "c")))
    assert error_of(messages) == "there is no tool named 'c'; the tools are: none"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("", "they must be one JSON object, but got ''"),
        ('{"x": 1', "they must be one JSON object, but got '{\"x\": 1'"),
        ("[1]" + "x" * 300, "… (303 characters)"),
        ({"x": "seven"}, "x: Input should be a valid integer"),
        ({"x": 1, "y": 2}, "y: Unexpected keyword argument"),
    ],
)
def test_arguments_that_do_not_fit_are_one_error_result(arguments: Any, reason: str) -> None:
    time, ran = VirtualTime(), list[Any]()
    _, messages = run(time, reply(call("a", "t", arguments)), cold_tool("t", after(time, 1, 1), ran=ran))
    assert error_of(messages).startswith("invalid arguments: ")
    assert reason in error_of(messages)
    assert ran == []


def test_a_check_that_fails_itself_is_one_error_result() -> None:
    def validate(arguments: dict[str, Any]) -> None:
        raise LookupError("no rules")

    def function(arguments: dict[str, Any]) -> Observable[int]:
        return reactivex.of(1)

    time = VirtualTime()
    broken = Tool.from_schema("t", "", {"type": "object"}, function, validate=validate)
    _, messages = run(time, reply(call("a", "t")), broken)
    assert error_of(messages) == "checking the arguments failed: LookupError: no rules"


def test_any_number_of_immediate_calls_needs_no_stack() -> None:
    time = VirtualTime()
    immediate = tool(name="t")(_immediate)
    _, messages = run(time, reply(*(call(str(number), "t") for number in range(3_000))), immediate)
    assert len(outcome(messages)) == 3_000
    assert messages[-2].time == 210


def _immediate() -> Observable[int]:
    def on_subscribe(observer: Any, scheduler: Any = None) -> Any:
        observer.on_next(1)
        observer.on_completed()

    return Observable(on_subscribe)


def test_a_disposal_prevents_the_look_ups_of_the_calls_that_wait() -> None:
    time, asked = VirtualTime(), list[str]()
    source = time.create_hot_observable(on_next(210, reply(call("a", "t"), call("b", "missing"))))

    def resolve(name: str) -> None:
        asked.append(name)

    def note(item: Any) -> None:
        if isinstance(item, ToolStarted):
            subscription.dispose()

    tools = {"t": cold_tool("t", after(time, 5, 1))}
    operator = tool_dispatch(tools, resolve_tool_on_miss=resolve, scheduler=time)
    subscription = source.pipe(operator).subscribe(note)
    time.start()
    assert asked == []


# how calls end


def test_the_last_value_of_an_observable_is_the_output() -> None:
    time = VirtualTime()
    values = time.create_cold_observable(on_next(1, "a"), on_next(2, "b"), on_completed(3))
    nothing = time.create_cold_observable(on_completed(3))
    _, messages = run(
        time,
        reply(call("a", "values"), call("b", "nothing")),
        cold_tool("values", values),
        cold_tool("nothing", nothing),
    )
    assert outcome(messages) == [("b", None, False), (None, None, False)]


def test_an_exception_is_one_error_result() -> None:
    def raises(x: int = 0) -> Observable[int]:
        raise ValueError("boom")

    time = VirtualTime()
    late = time.create_cold_observable(on_next(1, "lost"), on_error(5, ValueError("late")))
    asked = reply(call("a", "raises"), call("b", "late"), call("c", "fine"))
    _, messages = run(time, asked, tool(raises), cold_tool("late", late), cold_tool("fine", after(time, 9, 1)))
    assert outcome(messages) == [
        (None, "the tool failed: ValueError: boom", False),
        (None, "the tool failed: ValueError: late", False),
        (1, None, False),
    ]
    assert messages[-1] == on_completed(220)


@pytest.mark.parametrize("error", [SystemExit(2), asyncio.CancelledError()])
def test_an_observable_tool_that_tries_to_leave_fails(error: BaseException) -> None:
    def leaves(x: int = 0) -> Observable[int]:
        raise error

    time = VirtualTime()
    _, messages = run(time, reply(call("a", "leaves")), tool(leaves))
    assert type(error).__name__ in error_of(messages)


def test_a_timeout_abandons_the_call() -> None:
    time, ran = VirtualTime(), list[ToolContext]()
    slow = after(time, 500, 1)
    tools = [cold_tool("own", slow, timeout=7, ran=ran), cold_tool("general", slow, ran=ran)]
    _, messages = run(time, reply(call("a", "own"), call("b", "general")), *tools, tool_timeout=30)
    assert_messages(
        messages[3:5],
        on_next(217, failed("a", "own", "the tool timed out after 7 s", 7.0)),
        on_next(240, failed("b", "general", "the tool timed out after 30 s", 30.0)),
    )
    assert slow.subscriptions == [subscribe(210, 217), subscribe(210, 240)]
    assert all(context.cancellation.cancelled for context in ran)
    assert messages[-1] == on_completed(240)
    assert time.ran_after(240) == []


def test_a_call_in_time_cancels_its_timer() -> None:
    time = VirtualTime()
    _, messages = run(time, reply(call("a", "t")), cold_tool("t", after(time, 5, 1), timeout=30))
    assert outcome(messages) == [(1, None, False)]
    assert time.ran_after(220) == []


def test_a_late_report_and_a_late_value_change_nothing() -> None:
    time, ran = VirtualTime(), list[ToolContext]()
    values: Subject[Any] = Subject()

    def late(*_: Any) -> None:
        ran[0].report("late")
        values.on_next("late")
        values.on_completed()

    # while the step goes on, and after its end
    for moment in (230, 300):
        time.schedule_absolute(moment, late)
    tools = [cold_tool("t", values, timeout=5, ran=ran), cold_tool("slow", after(time, 30, 1))]
    _, messages = run(time, reply(call("a", "t"), call("b", "slow")), *tools)
    assert [type(item) for item in emissions(messages)[3:]] == [ToolFinished, ToolFinished, StepSettled]
    assert outcome(messages) == [(None, "the tool timed out after 5 s", False), (1, None, False)]


class Opaque:
    pass


def broken_generator() -> Any:
    yield 1
    raise LookupError("half way")


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (None, None),
        ("text", "text"),
        (1.5, 1.5),
        (10**40, 10**40),
        ({"a": (1, 2), 3: {4}}, {"a": [1, 2], "3": [4]}),
        (math.nan, "NaN"),
        ([math.inf, {"x": -math.inf}], ["Infinity", {"x": "-Infinity"}]),
        (Opaque(), None),
        (b"\xff", None),
        (broken_generator, None),
    ],
    ids=repr,
)
def test_an_output_is_made_json_or_is_an_error(output: Any, expected: Any) -> None:
    time = VirtualTime()
    value = broken_generator() if output is broken_generator else output
    _, messages = run(time, reply(call("a", "t")), cold_tool("t", after(time, 1, value)))
    if expected is not None or output is None:
        assert outcome(messages) == [(expected, None, False)]
    else:
        assert error_of(messages).startswith("the tool's output has no JSON form: ")


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


@pytest.mark.parametrize("output", [True, 1, "x", Colour.RED, Level.LOW])
def test_an_output_is_plain(output: Any) -> None:
    time = VirtualTime()
    _, messages = run(time, reply(call("a", "t")), cold_tool("t", after(time, 1, output)))
    [(value, _, _)] = outcome(messages)
    assert value == output
    assert type(value) in (bool, int, str)


@pytest.mark.parametrize("output", ["a\udcffb", {"k\udcff": ["a\udcffb"]}])
def test_an_output_can_always_be_encoded(output: Any) -> None:
    time = VirtualTime()
    _, messages = run(time, reply(call("a", "t")), cold_tool("t", after(time, 1, output)))
    [(value, error, _)] = outcome(messages)
    assert repr((value, error)).encode("utf-8")
    assert str(value).encode("utf-8")
    assert str(error).encode("utf-8")


# who is told, and in which order


def test_a_result_is_journalled_before_its_event() -> None:
    time, journal = VirtualTime(), Written()
    ask = reply(call("a", "slow"), call("b", "fast"), call("c", "none"))
    source = time.create_cold_observable(on_next(10, ask), on_completed(20))
    seen: list[tuple[str, bool, list[str]]] = []

    def note(item: Any) -> None:
        seen.append((type(item).__name__, journal.result is ask, [result.call_id for result in journal.tool_results]))

    tools = {"slow": cold_tool("slow", after(time, 9, 1)), "fast": cold_tool("fast", after(time, 5, 2))}
    source.pipe(tool_dispatch(tools, journal=journal, scheduler=time)).subscribe(note)
    time.start()
    assert seen == [
        ("StepFinished", True, []),
        ("ToolStarted", True, []),
        ("ToolStarted", True, []),
        ("ToolFinished", True, ["c"]),
        ("ToolFinished", True, ["c", "b"]),
        ("ToolFinished", True, ["c", "b", "a"]),
        ("StepSettled", True, ["c", "b", "a"]),
    ]


def test_disposal_cancels_everything_and_nothing_follows() -> None:
    time, ran, journal = VirtualTime(), list[ToolContext](), Written()
    slow, fast = after(time, 50, 1), after(time, 2, 2)
    asked = reply(call("a", "slow"), call("b", "fast"), call("c", "slow"), call("d", "slow"))
    tools = [cold_tool("slow", slow, ran=ran), cold_tool("fast", fast)]
    source, messages = run(time, asked, *tools, disposed=215, concurrency=3, tool_timeout=99, journal=journal)
    assert source.subscriptions == [subscribe(200, 215)]
    assert slow.subscriptions == [subscribe(210, 215), subscribe(210, 215), subscribe(212, 215)]
    assert all(context.cancellation.cancelled for context in ran)
    assert [result.call_id for result in journal.tool_results] == ["b"]
    assert max(message.time for message in messages) <= 212
    assert time.ran_after(215) == []


@pytest.mark.parametrize("position", range(7))
def test_disposal_on_any_event_stops_there(position: int) -> None:
    time, ran = VirtualTime(), list[ToolContext]()
    asked = reply(call("a", "t"), call("b", "t"))
    source = time.create_hot_observable(on_next(210, asked), on_completed(220))
    seen: list[Any] = []

    def note(item: Any) -> None:
        seen.append(item)
        if len(seen) == position + 1:
            subscription.dispose()

    tools = {"t": cold_tool("t", after(time, 5, 1), ran=ran)}
    subscription = source.pipe(tool_dispatch(tools, tool_timeout=50, scheduler=time)).subscribe(note)
    time.start()
    assert len(seen) == min(position + 1, 6)
    assert len(ran) == min(max(0, position - 1), 2)
    assert time.ran_after(220) == []


def test_a_subscriber_that_raises_on_a_tools_event_gets_the_error() -> None:
    time = VirtualTime()
    ask = reply(call("a", "fast"), call("b", "slow"))
    slow = after(time, 50, 1)
    source = time.create_cold_observable(on_next(10, ask), on_completed(20))
    error, errors, seen = LookupError("mine"), list[Exception](), list[Any]()

    def note(item: Any) -> None:
        seen.append(item)
        if isinstance(item, ToolFinished):
            raise error

    tools = {"fast": cold_tool("fast", after(time, 3, 1)), "slow": cold_tool("slow", slow)}
    source.pipe(tool_dispatch(tools, scheduler=time)).subscribe(note, errors.append)
    time.start()
    assert errors == [error]
    assert isinstance(seen[-1], ToolFinished)
    assert slow.subscriptions == [subscribe(10, 13)]
    assert source.subscriptions == [subscribe(0, 13)]


# the breaker


def breaking(
    time: VirtualTime, breaker: Breaker, *calls: ToolCall, fails: Callable[[int], bool], **options: Any
) -> Any:
    """One call after the other of a tool ``t`` that fails as told; what they came to, and how often it ran."""
    ran = 0

    def t(x: int = 0) -> Observable[Any]:
        nonlocal ran
        ran += 1
        return reactivex.throw(ValueError("boom")) if fails(ran) else reactivex.of({"run": ran})

    _, messages = run(time, reply(*calls), tool(t), breaker=breaker.start(), sequential=True, **options)
    return outcome(messages), ran


def test_strikes_take_a_tool_out() -> None:
    calls = [call(str(number), "t") for number in range(4)]
    results, ran = breaking(VirtualTime(), Breaker(2), *calls, fails=lambda run: True)
    refused = f"{TOOL_PERMANENTLY_FAILED}: 't' failed 2 times; do not call it again"
    assert results == [(None, "the tool failed: ValueError: boom", False)] * 2 + [(None, refused, True)] * 2
    assert ran == 2


def test_a_call_of_a_tool_that_was_taken_out_does_not_start() -> None:
    time = VirtualTime()
    breaker = Breaker(1).start()
    breaker.settle("t", None, "failed before")
    source = after(time, 1, 1)
    _, messages = run(time, reply(call("a", "t")), cold_tool("t", source), breaker=breaker)
    assert [type(item) for item in emissions(messages)][1:2] == [ToolFinished]
    assert source.subscriptions == []


def test_strikes_add_up_unless_they_must_be_consecutive() -> None:
    calls = [call(str(number), "t") for number in range(5)]
    _, ran = breaking(VirtualTime(), Breaker(2), *calls, fails=lambda run: run % 2 == 1)
    assert ran == 3
    _, ran = breaking(VirtualTime(), Breaker(2, consecutive=True), *calls, fails=lambda run: run % 2 == 1)
    assert ran == 5
    _, ran = breaking(VirtualTime(), Breaker(2, consecutive=True), *calls, fails=lambda run: run > 1)
    assert ran == 3


def test_an_output_can_count_as_a_failure() -> None:
    asked: list[tuple[str, Any]] = []

    def classify(name: str, output: Any) -> bool:
        asked.append((name, output))
        return True

    calls = [call(str(number), "t") for number in range(3)]
    results, ran = breaking(VirtualTime(), Breaker(2, classify_failure=classify), *calls, fails=lambda run: False)
    assert [error is None for _, error, _ in results] == [True, True, False]
    assert ran == 2
    assert asked == [("t", {"run": 1}), ("t", {"run": 2})]


def test_a_classifier_that_raises_ends_the_step_with_its_error() -> None:
    error, time, journal = ZeroDivisionError("mine"), VirtualTime(), Written()

    def classify(name: str, output: Any) -> bool:
        raise error

    breaker = Breaker(classify_failure=classify).start()
    other = after(time, 50, 1)
    tools = [cold_tool("t", after(time, 5, 1)), cold_tool("other", other)]
    _, messages = run(time, reply(call("a", "t"), call("b", "other")), *tools, breaker=breaker, journal=journal)
    assert failure(messages) is error
    assert [result.output for result in journal.tool_results] == [1]
    assert other.subscriptions == [subscribe(210, 215)]


def test_bad_arguments_and_timeouts_are_strikes_and_refusals_are_not() -> None:
    time = VirtualTime()
    state = Breaker(3).start()
    slow = cold_tool("t", after(time, 500, 1), timeout=5)
    asked = reply(
        call("a", "t", "bad"),
        call("b", "t", {"x": "bad"}),
        call("c", "t", "", truncated=True),
        call("d", "t"),
        call("e", "t"),
    )
    _, messages = run(time, asked, slow, breaker=state, sequential=True)
    assert [permanently for *_, permanently in outcome(messages)] == [False, False, False, False, True]


def test_an_unknown_tool_fails_permanently_at_once_and_starts_clean_when_it_is_found() -> None:
    state = Breaker(1).start()
    time = VirtualTime()
    _, messages = run(time, reply(call("a", "t")), breaker=state)
    reason = f"{TOOL_PERMANENTLY_FAILED}: there is no tool named 't'; do not call it again"
    assert outcome(messages) == [(None, reason, True)]
    time = VirtualTime()
    _, messages = run(time, reply(call("b", "t")), cold_tool("t", after(time, 1, "found")), breaker=state)
    assert outcome(messages) == [("found", None, False)]


# the second look-up


def test_the_second_look_up_is_asked_only_when_nothing_is_registered() -> None:
    time, asked, resolved = VirtualTime(), list[str](), list[Tool]()
    found = cold_tool("found", after(time, 5, "f"))

    def resolve(name: str) -> Tool | None:
        asked.append(name)
        return found if name == "found" else None

    calls = [call("a", "t"), call("b", "found"), call("c", "missing")]
    _, messages = run(
        time,
        reply(*calls),
        cold_tool("t", after(time, 5, "t")),
        resolve_tool_on_miss=resolve,
        on_resolved=resolved.append,
    )
    assert asked == ["found", "missing"]
    assert resolved == [found]
    assert [output for output, *_ in outcome(messages)] == ["t", "f", None]
    assert outcome(messages)[2][1] == "there is no tool named 'missing'; the tools are: t"


def test_a_tool_that_was_found_during_the_reply_serves_its_later_calls() -> None:
    time, asked = VirtualTime(), list[str]()
    tools: dict[str, Tool] = {}
    found = cold_tool("found", after(time, 5, "f"))

    def resolve(name: str) -> Tool:
        asked.append(name)
        return found

    def register(tool: Tool) -> None:
        tools[tool.name] = tool

    source = time.create_cold_observable(on_next(10, reply(call("a", "found"), call("b", "found"))))
    options: Any = {"resolve_tool_on_miss": resolve, "on_resolved": register}
    observer = time.start(lambda: source.pipe(tool_dispatch(tools, **options)))
    assert asked == ["found"]
    assert outcome(observer.messages) == [("f", None, False)] * 2


def test_a_sequential_tool_that_is_found_late_still_runs_alone() -> None:
    time = VirtualTime()
    free, alone = after(time, 20, 1), after(time, 10, 2)
    found = cold_tool("alone", alone, sequential=True)
    asked = reply(call("a", "free"), call("b", "alone"), call("c", "free"))
    _, messages = run(time, asked, cold_tool("free", free), resolve_tool_on_miss=lambda name: found)
    assert alone.subscriptions == [subscribe(230, 240)]
    assert free.subscriptions == [subscribe(210, 230), subscribe(240, 260)]
    assert [output for output, *_ in outcome(messages)] == [1, 2, 1]


def test_a_look_up_that_fails_is_one_error_result() -> None:
    def resolve(name: str) -> Any:
        if name == "raises":
            raise ConnectionError("down")
        return "garbage"

    time = VirtualTime()
    _, messages = run(time, reply(call("a", "raises"), call("b", "other")), resolve_tool_on_miss=resolve)
    assert [error for _, error, _ in outcome(messages)] == [
        "looking up the tool failed: ConnectionError: down",
        "looking up the tool failed: TypeError: resolve_tool_on_miss must return a Tool or None, but got 'garbage'",
    ]


def test_a_tool_that_can_be_found_later_starts_clean() -> None:
    state, time = Breaker(1).start(), VirtualTime()
    answers: list[Tool | None] = [None, cold_tool("t", after(time, 1, "found"))]
    asked = reply(call("a", "t"), call("b", "t"))
    _, messages = run(time, asked, breaker=state, sequential=True, resolve_tool_on_miss=lambda name: answers.pop(0))
    assert [(output, permanently) for output, _, permanently in outcome(messages)] == [(None, True), ("found", False)]


# a lagging consumer


def paused_run(time: VirtualTime, demand: Demand, result: StepResult, *tools: Tool) -> list[Recorded[Any]]:
    """Subscribe at 200 in the context of a consumer that has `demand`."""
    source = time.create_cold_observable(on_next(10, result), on_completed(20))
    observer = time.create_observer()
    context = copy_context()
    context.run(demand_context.set, demand)
    dispatched = source.pipe(tool_dispatch({tool.name: tool for tool in tools}))
    time.schedule_absolute(200, lambda *_: context.run(lambda: dispatched.subscribe(observer, scheduler=time)))
    return observer.messages


def test_a_paused_consumer_gets_nothing_and_loses_nothing() -> None:
    time, demand, ran = VirtualTime(), Demand(), list[ToolContext]()
    tools = [cold_tool("slow", after(time, 30, "s"), ran=ran), cold_tool("fast", after(time, 5, "f"))]
    asked = reply(call("a", "slow"), call("b", "fast"))
    messages = paused_run(time, demand, asked, *tools)
    time.schedule_absolute(212, lambda *_: demand.close())
    for moment in (213, 214, 216):
        time.schedule_absolute(moment, lambda *_: ran[0].report({"at": time.clock}))
    time.schedule_absolute(300, lambda *_: demand.open())
    time.start()
    assert [message.time for message in messages] == [210, 210, 210, 300, 300, 300, 300, 300]
    assert emissions(messages)[3:] == [
        ToolProgress(0, "a", "slow", {"at": 216.0}),
        done("b", "fast", "f", 5.0),
        done("a", "slow", "s", 30.0),
        StepSettled(asked, (ToolResult("a", "slow", "s", seconds=30.0), ToolResult("b", "fast", "f", seconds=5.0))),
    ]
    assert messages[-1] == on_completed(300)


def test_a_consumer_that_closes_again_in_the_middle_gets_the_rest_later() -> None:
    time, demand, ran = VirtualTime(), Demand(), list[ToolContext]()
    messages = paused_run(time, demand, reply(call("a", "t")), cold_tool("t", after(time, 5, 1), ran=ran))
    time.schedule_absolute(212, lambda *_: demand.close())
    time.schedule_absolute(213, lambda *_: ran[0].report("half"))

    def read_one(*_: Any) -> None:
        demand.when_open(lambda: None)
        demand.open()

    count = len(messages)

    def close_after_one() -> None:
        if len(messages) > count:
            demand.close()

    time.schedule_absolute(300, read_one)
    time.schedule_absolute(301, lambda *_: close_after_one())
    time.schedule_absolute(400, lambda *_: demand.open())
    time.start()
    assert [type(item) for item in emissions(messages)[2:]] == [ToolProgress, ToolFinished, StepSettled]


def test_no_call_starts_while_the_consumer_is_paused() -> None:
    time, demand = VirtualTime(), Demand()
    source = after(time, 10, 1)
    messages = paused_run(time, demand, reply(*(call(str(n), "t") for n in range(20))), cold_tool("t", source))
    time.schedule_absolute(215, lambda *_: demand.close())
    time.schedule_absolute(300, lambda *_: demand.open())
    time.start()
    assert [window.subscribe for window in source.subscriptions] == [210] * 16 + [300] * 4
    assert messages[-1] == on_completed(310)


def test_reports_of_several_calls_are_kept_apart() -> None:
    time, demand, ran = VirtualTime(), Demand(), list[ToolContext]()
    messages = paused_run(
        time, demand, reply(call("a", "t"), call("b", "t")), cold_tool("t", after(time, 50, 1), ran=ran)
    )
    time.schedule_absolute(212, lambda *_: demand.close())
    for moment, index in ((213, 0), (214, 1), (215, 0), (216, 1)):
        time.schedule_absolute(moment, lambda *_, index=index: ran[index].report(time.clock))
    time.schedule_absolute(220, lambda *_: demand.open())
    time.start()
    progress = [(item.call_id, item.data) for item in emissions(messages) if isinstance(item, ToolProgress)]
    assert progress == [("a", 215.0), ("b", 216.0)]


def test_without_a_pause_every_report_comes() -> None:
    time, ran = VirtualTime(), list[ToolContext]()
    for moment in (211, 212):
        time.schedule_absolute(moment, lambda *_: ran[0].report(time.clock))
    _, messages = run(time, reply(call("a", "t")), cold_tool("t", after(time, 5, 1), ran=ran))
    assert_messages(
        messages[2:4], on_next(211, ToolProgress(0, "a", "t", 211.0)), on_next(212, ToolProgress(0, "a", "t", 212.0))
    )


def test_disposal_of_a_paused_step_forgets_what_waits() -> None:
    time, demand = VirtualTime(), Demand()
    source = time.create_cold_observable(on_next(10, reply(call("a", "t"))), on_completed(20))
    context, seen = copy_context(), list[Any]()
    context.run(demand_context.set, demand)
    dispatched = source.pipe(tool_dispatch({"t": cold_tool("t", after(time, 5, 1))}, scheduler=time))
    subscription = context.run(lambda: dispatched.subscribe(seen.append))
    time.schedule_absolute(12, lambda *_: demand.close())
    time.schedule_absolute(50, lambda *_: subscription.dispose())
    time.schedule_absolute(60, lambda *_: demand.open())
    time.start()
    assert len(seen) == 2


# the event loop


async def settle(result: StepResult, *tools: Tool, **options: Any) -> list[Any]:
    """Dispatch on the running loop; the items that came."""
    items: list[Any] = []
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    source = reactivex.of(result)
    source.pipe(tool_dispatch({tool.name: tool for tool in tools}, **options)).subscribe(
        items.append, ended.set_exception, lambda: ended.set_result(None)
    )
    await ended
    return items


def results(items: list[Any]) -> list[tuple[Any, str | None]]:
    return [(result.output, result.error) for result in items[-1].tool_results]


@pytest.mark.asyncio
async def test_sync_and_async_tools_run_with_the_callers_context() -> None:
    variable.set("the caller's")
    loop_thread = threading.get_ident()
    seen: dict[str, Any] = {}

    def note(name: str) -> str:
        seen[name] = (variable.get(), current_demand(), threading.get_ident() == loop_thread)
        variable.set(f"{name} was here")
        return name

    @tool
    def in_thread() -> str:
        return note("in_thread")

    @tool
    async def on_loop() -> str:
        return note("on_loop")

    @tool
    def observable() -> Observable[str]:
        def subscribe(observer: Any, scheduler: Any = None) -> Any:
            observer.on_next(note("observable"))
            observer.on_completed()

        return Observable(subscribe)

    demand_context.set(Demand())
    tools = [in_thread, on_loop, observable]
    items = await settle(reply(*(call(tool.name, tool.name) for tool in tools)), *tools)
    assert seen == {
        "in_thread": ("the caller's", None, False),
        "on_loop": ("the caller's", None, True),
        "observable": ("the caller's", None, True),
    }
    assert results(items) == [("in_thread", None), ("on_loop", None), ("observable", None)]


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["sync", "async", "observable"])
async def test_a_tools_context_does_not_leak_into_what_follows(kind: str) -> None:
    variable.set("the caller's")
    demand_context.set(demand := Demand())

    def sync() -> str:
        variable.set("the tool's")
        return "x"

    async def asynchronous() -> str:
        return sync()

    def observable() -> Observable[str]:
        return reactivex.of(sync())

    functions: dict[str, Any] = {"sync": sync, "async": asynchronous, "observable": observable}
    found = tool(name="t")(functions[kind])
    assert found.kind == kind
    seen: list[tuple[str, Any]] = []
    ended = asyncio.Event()
    source = reactivex.of(reply(call("a", "t"), call("b", "t")))
    source.pipe(tool_dispatch({"t": found})).subscribe(
        lambda _: seen.append((variable.get(), current_demand())), on_completed=ended.set
    )
    await ended.wait()
    assert set(seen) == {("the caller's", demand)}


@pytest.mark.asyncio
async def test_a_sync_function_may_return_what_is_still_to_be_awaited_or_subscribed() -> None:
    async def later() -> str:
        return "awaited"

    @tool
    def coroutine() -> Any:
        return later()

    @tool
    def observable() -> Any:
        return reactivex.of("first", "last")

    @tool
    def both() -> Any:
        async def make() -> Any:
            return reactivex.of("from within")

        return make()

    tools = [coroutine, observable, both]
    items = await settle(reply(*(call(tool.name, tool.name) for tool in tools)), *tools)
    assert results(items) == [("awaited", None), ("last", None), ("from within", None)]


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("error", [ValueError("boom"), SystemExit(2), asyncio.CancelledError()])
async def test_a_tool_that_raises_anything_is_one_error_result(kind: str, error: BaseException) -> None:
    def sync() -> None:
        raise error

    async def asynchronous() -> None:
        raise error

    function: Any = {"sync": sync, "async": asynchronous}[kind]
    items = await settle(
        reply(call("a", "t"), call("b", "fine")), tool(name="t")(function), tool(name="fine")(lambda: 1)
    )
    (output, reason), fine = results(items)
    assert output is None
    assert reason is not None
    assert reason.startswith("the tool failed: ")
    assert fine == (1, None)


@pytest.mark.asyncio
async def test_reports_come_from_sync_and_async_tools_and_from_threads_of_theirs() -> None:
    loop_thread = threading.get_ident()

    @tool
    def sync(context: ToolContext) -> str:
        context.report({"done": 1})
        context.report({"done": 2})
        return context.call_id

    @tool
    async def asynchronous(context: ToolContext) -> str:
        context.report((3,))
        await asyncio.to_thread(context.report, 4)
        return context.name

    threads: list[bool] = []
    items: list[Any] = []
    ended = asyncio.Event()

    def note(item: Any) -> None:
        items.append(item)
        threads.append(threading.get_ident() == loop_thread)

    source = reactivex.of(reply(call("a", "sync"), call("b", "asynchronous")))
    source.pipe(tool_dispatch({"sync": sync, "asynchronous": asynchronous}, step=4)).subscribe(
        note, on_completed=ended.set
    )
    await ended.wait()
    progress = [item for item in items if isinstance(item, ToolProgress)]
    assert [item.data for item in progress if item.call_id == "a"] == [{"done": 1}, {"done": 2}]
    assert [item.data for item in progress if item.call_id == "b"] == [[3], 4]
    assert {item.step for item in progress} == {4}
    assert all(threads)
    assert results(items) == [("a", None), ("asynchronous", None)]


@pytest.mark.asyncio
async def test_a_report_without_a_json_form_fails_the_tool() -> None:
    @tool
    def reports(context: ToolContext) -> None:
        context.report(Opaque())

    [(_, error)] = results(await settle(reply(call("a", "reports")), reports))
    assert error is not None
    assert "Unable to serialize unknown type" in error


@pytest.mark.asyncio
@pytest.mark.parametrize("rounds", range(4))
async def test_disposal_cancels_an_async_tool_at_any_moment(rounds: int) -> None:
    entered, ended = list[str](), list[str]()

    @tool
    async def waits(context: ToolContext) -> None:
        entered.append("waits")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("waits")

    seen: list[Any] = []
    source = reactivex.of(reply(call("a", "waits")))
    subscription = source.pipe(tool_dispatch({"waits": waits})).subscribe(seen.append)
    for _ in range(rounds):
        await asyncio.sleep(0)
    subscription.dispose()
    for _ in range(3):
        await asyncio.sleep(0)
    assert entered == ended
    assert [type(item) for item in seen[1:]] == [ToolStarted]


@pytest.mark.asyncio
async def test_disposal_abandons_a_thread_and_tells_the_tool() -> None:
    running, told = threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    entered = asyncio.Event()

    @tool
    def waits(context: ToolContext) -> str:
        loop.call_soon_threadsafe(entered.set)
        running.set()
        assert context.cancellation.wait(30)
        told.set()
        return "too late"

    seen: list[Any] = []
    source = reactivex.of(reply(call("a", "waits")))
    subscription = source.pipe(tool_dispatch({"waits": waits})).subscribe(seen.append)
    await entered.wait()
    subscription.dispose()
    assert await asyncio.to_thread(told.wait, 30)
    await asyncio.sleep(0)
    assert [type(item) for item in seen[1:]] == [ToolStarted]


@pytest.mark.asyncio
async def test_what_an_abandoned_thread_returns_is_not_awaited() -> None:
    entered, loop, awaited = asyncio.Event(), asyncio.get_running_loop(), list[str]()

    async def later() -> None:
        awaited.append("later")

    def returns_late(context: ToolContext) -> Any:
        loop.call_soon_threadsafe(entered.set)
        context.cancellation.wait(30)
        return later()

    source = reactivex.of(reply(call("a", "t")))
    subscription = source.pipe(tool_dispatch({"t": tool(name="t")(returns_late)})).subscribe()
    await entered.wait()
    [thread] = [thread for thread in threading.enumerate() if thread.name == "rxloop-tool-t"]
    subscription.dispose()
    await asyncio.to_thread(thread.join, 30)
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    assert awaited == []


@pytest.mark.asyncio
async def test_a_timeout_abandons_a_thread_and_the_step_goes_on() -> None:
    time, loop = VirtualTime(), asyncio.get_running_loop()
    entered, told = asyncio.Event(), threading.Event()

    @tool(timeout=60)
    def waits(context: ToolContext) -> str:
        loop.call_soon_threadsafe(entered.set)
        if context.cancellation.wait(30):
            told.set()
        return "too late"

    items: list[Any] = []
    source = reactivex.of(reply(call("a", "waits")))
    source.pipe(tool_dispatch({"waits": waits}, scheduler=time)).subscribe(items.append)
    await entered.wait()
    time.advance_to(60)
    assert results(items) == [(None, "the tool timed out after 60 s")]
    assert await asyncio.to_thread(told.wait, 30)


@pytest.mark.asyncio
async def test_an_async_second_look_up() -> None:
    async def resolve(name: str) -> Any:
        await asyncio.sleep(0)
        if name == "raises":
            raise ConnectionError("down")
        return {"found": tool(name="found")(lambda: "found"), "garbage": 7}.get(name)

    names = ("found", "missing", "raises", "garbage")
    items = await settle(reply(*(call(name, name) for name in names)), resolve_tool_on_miss=resolve)
    assert results(items) == [
        ("found", None),
        (None, "there is no tool named 'missing'; the tools are: none"),
        (None, "looking up the tool failed: ConnectionError: down"),
        (None, "looking up the tool failed: TypeError: resolve_tool_on_miss must return a Tool or None, but got 7"),
    ]


@pytest.mark.asyncio
async def test_disposal_cancels_a_look_up() -> None:
    ended: list[str] = []

    async def resolve(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    subscription = reactivex.of(reply(call("a", "t"))).pipe(tool_dispatch({}, resolve_tool_on_miss=resolve)).subscribe()
    await asyncio.sleep(0)
    subscription.dispose()
    await asyncio.sleep(0)
    assert ended == ["t"]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_tool_that_needs_a_loop_fails_the_step_where_there_is_none(kind: str) -> None:
    def sync() -> int:
        return 1

    async def asynchronous() -> int:
        return 1

    function: Any = {"sync": sync, "async": asynchronous}[kind]
    time = VirtualTime()
    source, messages = run(time, reply(call("a", "t")), tool(name="t")(function))
    assert isinstance(failure(messages), ConfigurationError)
    assert source.subscriptions == [subscribe(200, 210)]


# rules


def test_the_options_are_checked_at_once() -> None:
    with pytest.raises(ConfigurationError, match="concurrency must be a whole number >= 1, but got 0"):
        tool_dispatch({}, concurrency=0)
    with pytest.raises(ConfigurationError, match="tool_timeout must be > 0 seconds, but got 0"):
        tool_dispatch({}, tool_timeout=0)
