from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from reactivex.testing import ReactiveTest

from rxloop.errors import ConfigurationError
from rxloop.events import MalformedRetried, TextDelta
from rxloop.operators import MalformedBudget, retry_malformed_call
from tests.operators.virtual import VirtualTime, assert_messages, call, emissions, failure, reply

on_next, on_error, on_completed, subscribe = (
    ReactiveTest.on_next,
    ReactiveTest.on_error,
    ReactiveTest.on_completed,
    ReactiveTest.subscribe,
)

MALFORMED = reply(malformed=True, finish_reason="error")


def test_a_malformed_reply_is_resumed() -> None:
    time, budget = VirtualTime(), MalformedBudget()
    source = time.create_cold_observable(on_next(5, TextDelta(2, "x")), on_next(10, MALFORMED), on_completed(20))
    observer = time.start(lambda: source.pipe(retry_malformed_call(budget, step=2)))
    assert_messages(
        observer.messages,
        on_next(205, TextDelta(2, "x")),
        on_next(210, replace(MALFORMED, resume=True)),
        on_next(210, MalformedRetried(2)),
        on_completed(220),
    )
    assert source.subscriptions == [subscribe(200, 220)]
    assert budget.left == 0


def test_the_budget_is_the_turns() -> None:
    time, budget = VirtualTime(), MalformedBudget(2)
    operators = [retry_malformed_call(budget, step=step) for step in range(3)]
    source = time.create_cold_observable(on_next(10, MALFORMED), on_completed(20))
    observers = [time.create_observer() for _ in operators]
    # the pipelines exist before the budget is spent
    for observer, operator in zip(observers, operators, strict=True):
        source.pipe(operator).subscribe(observer)
    time.start()
    assert [len(emissions(observer.messages)) for observer in observers] == [2, 2, 1]
    assert emissions(observers[2].messages) == [MALFORMED]


@pytest.mark.parametrize("answer", [reply(), reply(call("a", "t")), reply(text="", finish_reason="error")])
def test_any_other_reply_passes_as_it_is(answer: Any) -> None:
    time, budget = VirtualTime(), MalformedBudget()
    source = time.create_cold_observable(on_next(10, answer), on_completed(20))
    observer = time.start(lambda: source.pipe(retry_malformed_call(budget)))
    assert_messages(observer.messages, on_next(210, answer), on_completed(220))
    assert emissions(observer.messages)[0] is answer
    assert budget.left == 1


def test_without_budget_the_source_stays_as_it_is() -> None:
    source = VirtualTime().create_cold_observable()
    assert source.pipe(retry_malformed_call(MalformedBudget(0))) is source


def test_errors_pass_and_disposal_disposes() -> None:
    time, error = VirtualTime(), RuntimeError("x")
    source = time.create_cold_observable(on_error(20, error))
    observer = time.start(lambda: source.pipe(retry_malformed_call(MalformedBudget())))
    assert failure(observer.messages) is error
    time = VirtualTime()
    source = time.create_cold_observable(on_next(50, MALFORMED))
    time.start(lambda: source.pipe(retry_malformed_call(MalformedBudget())), disposed=230)
    assert source.subscriptions == [subscribe(200, 230)]


@pytest.mark.parametrize("retries", [-1, 0.5, True, None])
def test_the_budget_is_checked_at_once(retries: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^retries must be a whole number >= 0, but got {retries!r}$"):
        MalformedBudget(retries)
