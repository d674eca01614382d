from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any

import pytest
import reactivex
from reactivex import Observable
from reactivex import operators as ops
from reactivex.testing import ReactiveTest
from reactivex.testing.coldobservable import ColdObservable

from rxloop.operators import loop_steps
from rxloop.steps import StepSettled
from tests.operators.virtual import VirtualTime, assert_messages, reply

on_next, on_error, on_completed, subscribe = (
    ReactiveTest.on_next,
    ReactiveTest.on_error,
    ReactiveTest.on_completed,
    ReactiveTest.subscribe,
)

SETTLED = StepSettled(reply())


def until(last: int) -> Callable[[int, StepSettled], int | None]:
    return lambda state, _: state + 1 if state < last else None


def immediate(*items: Any) -> Observable[Any]:
    """Everything inside ``subscribe``: more immediate than any source of reactivex."""

    def on_subscribe(observer: Any, scheduler: Any = None) -> Any:
        for item in items:
            observer.on_next(item)
        observer.on_completed()

    return Observable(on_subscribe)


def test_steps_follow_each_other() -> None:
    time = VirtualTime()
    steps: list[ColdObservable[Any]] = [
        time.create_cold_observable(on_next(10, "a"), on_next(20, SETTLED), on_completed(30)),
        time.create_cold_observable(on_next(5, "b"), on_next(5, SETTLED), on_completed(5)),
    ]
    observer = time.start(lambda: loop_steps(lambda: 0, steps.__getitem__, until(1), opening=lambda n: [f"open {n}"]))
    assert_messages(
        observer.messages,
        on_next(200, "open 0"),
        on_next(210, "a"),
        on_next(230, "open 1"),
        on_next(235, "b"),
        on_completed(235),
    )
    assert steps[0].subscriptions == [subscribe(200, 230)]
    assert steps[1].subscriptions == [subscribe(230, 235)]


def test_advance_sees_the_state_and_what_the_step_settled_with() -> None:
    seen: list[tuple[int, StepSettled]] = []
    settled = [StepSettled(reply(text=str(number))) for number in range(2)]

    def advance(state: int, what: StepSettled) -> int | None:
        seen.append((state, what))
        return state + 1 if state == 0 else None

    items: list[Any] = []
    loop_steps(lambda: 0, lambda state: immediate(settled[state]), advance).subscribe(items.append)
    assert items == []
    assert seen == [(0, settled[0]), (1, settled[1])]


def test_the_last_settled_counts() -> None:
    seen: list[StepSettled] = []
    last = StepSettled(reply(text="last"))

    def advance(state: int, what: StepSettled) -> None:
        seen.append(what)

    loop_steps(lambda: 0, lambda state: immediate(SETTLED, last), advance).subscribe()
    assert seen == [last]


def test_a_step_that_does_not_settle_is_the_last() -> None:
    asked: list[int] = []
    items: list[Any] = []

    def advance(state: int, what: StepSettled) -> int:
        asked.append(state)
        return state + 1

    loop_steps(lambda: 0, lambda state: immediate("x"), advance).subscribe(
        items.append, on_completed=lambda: items.append("|")
    )
    assert items == ["x", "|"]
    assert asked == []


@pytest.mark.parametrize("steps", [immediate, reactivex.of], ids=["inside subscribe", "on the trampoline"])
def test_five_thousand_immediate_steps_need_no_stack(steps: Callable[..., Observable[Any]]) -> None:
    count, deepest = 0, 0

    def note(_: Any) -> None:
        nonlocal count, deepest
        count += 1
        if count in (10, 5_000):
            depth = 0
            frame = sys._getframe()
            while frame.f_back is not None:
                frame, depth = frame.f_back, depth + 1
            deepest = max(deepest, depth) if count == 10 else depth - deepest

    ended: list[str] = []
    loop_steps(lambda: 0, lambda state: steps(state, SETTLED), until(4_999)).subscribe(
        note, on_completed=lambda: ended.append("|")
    )
    assert (count, ended) == (5_000, ["|"])
    assert deepest == 0


def test_states_are_made_per_subscription() -> None:
    starts = iter([10, 20])
    items: list[Any] = []
    looped = loop_steps(lambda: next(starts), lambda state: immediate(state, SETTLED), lambda state, _: None)
    assert looped.subscribe(items.append)
    assert looped.subscribe(items.append)
    assert items == [10, 20]


def test_disposal_disposes_the_step_that_runs() -> None:
    time = VirtualTime()
    step = time.create_cold_observable(on_next(10, "a"), on_next(100, SETTLED), on_completed(100))
    observer = time.start(lambda: loop_steps(lambda: 0, lambda _: step, until(9)), disposed=250)
    assert step.subscriptions == [subscribe(200, 250)]
    assert_messages(observer.messages, on_next(210, "a"))


@pytest.mark.parametrize("first", [True, False])
def test_disposal_on_the_opening_prevents_the_step(first: bool) -> None:
    subscribed: list[int] = []

    def step(state: int) -> Observable[Any]:
        subscribed.append(state)
        return immediate(SETTLED)

    items: list[Any] = []
    stop_at = 0 if first else 3
    loop_steps(lambda: 0, step, until(10), opening=lambda state: [state]).pipe(
        ops.take_while(lambda item: item < stop_at)
    ).subscribe(items.append)
    assert items == list(range(stop_at))
    assert subscribed == items


def test_disposal_in_a_step_prevents_the_next() -> None:
    subscribed: list[int] = []

    def step(state: int) -> Observable[Any]:
        subscribed.append(state)
        return immediate(state, SETTLED)

    loop_steps(lambda: 0, step, until(10)).pipe(ops.take(3)).subscribe()
    assert subscribed == [0, 1, 2]


def test_an_error_of_a_step_ends_the_loop() -> None:
    time, error = VirtualTime(), RuntimeError("cut")
    step = time.create_cold_observable(on_next(10, SETTLED), on_error(20, error))
    observer = time.start(lambda: loop_steps(lambda: 0, lambda _: step, until(9)))
    assert_messages(observer.messages, on_error(220, error))
    assert step.subscriptions == [subscribe(200, 220)]


@pytest.mark.parametrize("where", ["start", "step", "second step", "advance", "opening"])
def test_what_raises_reaches_the_observer(where: str) -> None:
    error = LookupError(where)

    def start() -> int:
        if where == "start":
            raise error
        return 0

    def step(state: int) -> Observable[Any]:
        if where == ("second step" if state else "step"):
            raise error
        return immediate(SETTLED)

    def advance(state: int, settled: StepSettled) -> int:
        if where == "advance":
            raise error
        return state + 1

    def opening(state: int) -> Any:
        if where == "opening":
            raise error
        return [state]

    errors: list[Exception] = []
    loop_steps(start, step, advance, opening=opening).pipe(ops.take(5)).subscribe(on_error=errors.append)
    assert errors == [error]


def test_advance_that_raises_later_reaches_the_observer() -> None:
    time, error = VirtualTime(), LookupError("advance")
    step = time.create_cold_observable(on_next(10, SETTLED), on_completed(20))

    def advance(state: int, settled: StepSettled) -> int:
        raise error

    observer = time.start(lambda: loop_steps(lambda: 0, lambda _: step, advance))
    assert_messages(observer.messages, on_error(220, error))
    assert step.subscriptions == [subscribe(200, 220)]


variable: ContextVar[str] = ContextVar("loop_steps_variable", default="unset")


def test_steps_are_subscribed_in_the_subscribers_context() -> None:
    seen: list[str] = []

    def step(state: int) -> Observable[Any]:
        seen.append(variable.get())
        return immediate(SETTLED)

    def subscribe_elsewhere(_: Any) -> None:
        context = copy_context()
        context.run(variable.set, "the subscriber's")
        context.run(loop_steps(lambda: 0, step, until(1)).subscribe)

    # inside another subscription, whose trampoline runs what is put on it
    reactivex.of(1).subscribe(subscribe_elsewhere)
    assert seen == ["the subscriber's"] * 2
