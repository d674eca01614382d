from __future__ import annotations

from typing import Any

import pytest
from reactivex.testing import ReactiveTest

from rxloop.demand import Demand, demand_context
from rxloop.errors import ConfigurationError, ServerError
from rxloop.events import ReasoningDelta, StepStarted, TextDelta, ToolCallDelta, UsageUpdated
from rxloop.operators import coalesce_text
from rxloop.usage import Usage
from tests.operators.virtual import VirtualTime, assert_messages

on_next, on_error, on_completed, subscribe = (
    ReactiveTest.on_next,
    ReactiveTest.on_error,
    ReactiveTest.on_completed,
    ReactiveTest.subscribe,
)


def text(said: str, step: int = 0) -> TextDelta:
    return TextDelta(step, said)


def run(*messages: Any, disposed: float = 1000) -> tuple[list[Any], Any]:
    time = VirtualTime()
    source = time.create_hot_observable(*messages)
    result = time.start(lambda: source.pipe(coalesce_text(40)), disposed=disposed)
    return result.messages, source


def test_deltas_pass_at_most_once_in_the_given_time() -> None:
    messages, source = run(
        on_next(210, text("a")),
        on_next(220, text("b")),
        on_next(230, text("c")),
        on_next(260, text("d")),
        on_next(400, text("e")),
        on_completed(500),
    )
    assert_messages(
        messages,
        on_next(210, text("a")),
        on_next(250, text("bc")),
        on_next(290, text("d")),
        on_next(400, text("e")),
        on_completed(500),
    )
    assert source.subscriptions == [subscribe(200, 500)]


def test_another_event_lets_out_what_was_held() -> None:
    started, used = StepStarted(1), UsageUpdated(Usage(1))
    messages, _ = run(
        on_next(210, text("a")),
        on_next(220, text("b")),
        on_next(225, text("c")),
        on_next(230, used),
        on_next(235, started),
        on_next(240, text("d", 1)),
        on_completed(300),
    )
    assert_messages(
        messages,
        on_next(210, text("a")),
        on_next(230, text("bc")),
        on_next(230, used),
        on_next(235, started),
        on_next(250, text("d", 1)),
        on_completed(300),
    )


def test_each_kind_joins_its_own() -> None:
    messages, _ = run(
        on_next(210, ReasoningDelta(0, "a")),
        on_next(211, ReasoningDelta(0, "b")),
        on_next(212, ReasoningDelta(0, "c")),
        on_next(213, text("d")),
        on_next(214, ToolCallDelta(0, "x", "1")),
        on_next(215, ToolCallDelta(0, "x", "2")),
        on_next(216, ToolCallDelta(0, "y", "3")),
        on_completed(300),
    )
    assert_messages(
        messages,
        on_next(210, ReasoningDelta(0, "a")),
        on_next(213, ReasoningDelta(0, "bc")),
        on_next(214, text("d")),
        on_next(216, ToolCallDelta(0, "x", "12")),
        on_next(250, ToolCallDelta(0, "y", "3")),
        on_completed(300),
    )


@pytest.mark.parametrize("end", ["completes", "fails"])
def test_the_end_lets_out_what_was_held(end: str) -> None:
    error = ServerError("no")
    last = on_completed(230) if end == "completes" else on_error(230, error)
    messages, _ = run(on_next(210, text("a")), on_next(220, text("b")), last)
    assert_messages(messages, on_next(210, text("a")), on_next(230, text("b")), last)


def test_disposing_drops_what_was_held_and_the_timer() -> None:
    time = VirtualTime()
    source = time.create_hot_observable(on_next(210, text("a")), on_next(220, text("b")))
    result = time.start(lambda: source.pipe(coalesce_text(40)), disposed=230)
    assert_messages(result.messages, on_next(210, text("a")))
    assert source.subscriptions == [subscribe(200, 230)]
    assert time.ran_after(230) == []


def test_what_is_held_waits_for_a_consumer_that_lags() -> None:
    time = VirtualTime()
    demand = Demand()
    token = demand_context.set(demand)
    received: list[tuple[float, Any]] = []
    try:
        source = time.create_hot_observable(
            on_next(210, text("a")), on_next(220, text("b")), on_next(270, text("c")), on_completed(400)
        )
        time.schedule_absolute(
            200,
            lambda *_: source.pipe(coalesce_text(40)).subscribe(
                lambda event: received.append((time.clock, event)), scheduler=time
            ),
        )
        time.schedule_absolute(215, lambda *_: demand.close())
        time.schedule_absolute(300, lambda *_: demand.open())
        time.start()
    finally:
        demand_context.reset(token)
    assert received == [(210, text("a")), (300, text("bc"))]


@pytest.mark.parametrize("seconds", [0, -1, None, True, "1"])
def test_the_time_is_checked(seconds: Any) -> None:
    with pytest.raises(ConfigurationError, match="seconds must be > 0"):
        coalesce_text(seconds)
