from __future__ import annotations

from typing import Any

import pytest
from reactivex import Observable
from reactivex.testing import ReactiveTest

from rxloop.errors import ConfigurationError
from rxloop.events import StepStarted, TextDelta
from rxloop.operators import CapReached, Renewal, loop_steps, step_cap
from rxloop.steps import StepSettled
from tests.operators.virtual import VirtualTime, assert_messages, emissions, failure, reply

on_next, on_error, on_completed, subscribe = (
    ReactiveTest.on_next,
    ReactiveTest.on_error,
    ReactiveTest.on_completed,
    ReactiveTest.subscribe,
)


def steps(time: VirtualTime, count: int) -> Any:
    """A step every 10 ticks, with something said 5 ticks after its start; it ends 10 ticks after the last."""
    messages: list[Any] = []
    for number in range(count):
        messages += [on_next(10 * number + 10, StepStarted(number)), on_next(10 * number + 15, TextDelta(number, "x"))]
    return time.create_cold_observable(*messages, on_completed(10 * count + 10))


def started(messages: Any) -> int:
    return sum(isinstance(item, StepStarted) for item in emissions(messages))


def test_the_step_beyond_the_cap_ends_it() -> None:
    time = VirtualTime()
    source = steps(time, 5)
    observer = time.start(lambda: source.pipe(step_cap(2)))
    assert_messages(
        observer.messages,
        on_next(210, StepStarted(0)),
        on_next(215, TextDelta(0, "x")),
        on_next(220, StepStarted(1)),
        on_next(225, TextDelta(1, "x")),
        on_completed(230),
    )
    assert source.subscriptions == [subscribe(200, 230)]


def test_fewer_steps_pass() -> None:
    time = VirtualTime()
    observer = time.start(lambda: steps(time, 2).pipe(step_cap(2)))
    assert started(observer.messages) == 2
    assert observer.messages[-1] == on_completed(230)


def test_the_source_is_disposed_before_its_next_request() -> None:
    requests: list[int] = []

    def step(state: int) -> Observable[Any]:
        requests.append(state)

        def on_subscribe(observer: Any, scheduler: Any = None) -> Any:
            observer.on_next(StepSettled(reply()))
            observer.on_completed()

        return Observable(on_subscribe)

    seen: list[Any] = []
    looped = loop_steps(lambda: 0, step, lambda state, _: state + 1, opening=lambda state: [StepStarted(state)])
    looped.pipe(step_cap(3)).subscribe(seen.append, on_completed=lambda: seen.append("|"))
    assert requests == [0, 1, 2]
    assert seen == [StepStarted(0), StepStarted(1), StepStarted(2), "|"]


def test_steps_are_counted_per_subscription() -> None:
    time = VirtualTime()
    capped = steps(time, 3).pipe(step_cap(2))
    first, second = time.create_observer(), time.create_observer()
    time.schedule_absolute(200, lambda *_: capped.subscribe(first, scheduler=time))
    time.schedule_absolute(215, lambda *_: capped.subscribe(second, scheduler=time))
    time.start()
    assert started(first.messages) == started(second.messages) == 2


def test_errors_pass_and_disposal_disposes() -> None:
    time, error = VirtualTime(), RuntimeError("x")
    source = time.create_cold_observable(on_next(10, StepStarted(0)), on_error(20, error))
    observer = time.start(lambda: source.pipe(step_cap(1)))
    assert failure(observer.messages) is error
    time = VirtualTime()
    source = steps(time, 5)
    time.start(lambda: source.pipe(step_cap(5)), disposed=222)
    assert source.subscriptions == [subscribe(200, 222)]


def test_a_renewal_raises_the_cap() -> None:
    asked: list[CapReached] = []
    answers: list[Any] = [3, Renewal(4), None]

    def renew(reached: CapReached) -> Any:
        asked.append(reached)
        return answers.pop(0)

    time = VirtualTime()
    observer = time.start(lambda: steps(time, 9).pipe(step_cap(2, renew=renew)))
    assert asked == [CapReached(2), CapReached(3), CapReached(4)]
    assert started(observer.messages) == 4
    assert observer.messages[-1] == on_completed(250)


def test_a_renewal_can_speak_to_the_model_before_the_next_step() -> None:
    said: list[tuple[str, float]] = []
    time = VirtualTime()
    observer = time.start(
        lambda: steps(time, 3).pipe(
            step_cap(1, renew=lambda _: Renewal(9, "wrap it up"), nudge=lambda text: said.append((text, time.clock)))
        )
    )
    assert said == [("wrap it up", 220)]
    assert started(observer.messages) == 3


def test_a_renewal_without_words_does_not_nudge() -> None:
    time, said = VirtualTime(), list[str]()
    time.start(lambda: steps(time, 3).pipe(step_cap(1, renew=lambda _: 9, nudge=said.append)))
    assert said == []


@pytest.mark.parametrize("answer", [2, 1, 0, -1, 2.5, "3", True, Renewal(2), Renewal(1, "x"), object()])
def test_a_renewal_must_be_strictly_larger_and_whole(answer: Any) -> None:
    time = VirtualTime()
    source, said = steps(time, 9), list[str]()
    observer = time.start(lambda: source.pipe(step_cap(2, renew=lambda _: answer, nudge=said.append)))
    error = failure(observer.messages)
    value = answer.max_steps if isinstance(answer, Renewal) else answer
    assert isinstance(error, ConfigurationError)
    assert str(error) == f"a renewed max_steps must be a whole number >= 3, but got {value!r}"
    assert observer.messages[-1].time == 230
    assert source.subscriptions == [subscribe(200, 230)]
    assert said == []


@pytest.mark.parametrize("where", ["renew", "nudge"])
def test_a_callback_that_raises_reaches_the_observer(where: str) -> None:
    error = LookupError(where)

    def renew(reached: CapReached) -> Renewal:
        if where == "renew":
            raise error
        return Renewal(9, "go on")

    def nudge(text: str) -> None:
        raise error

    time = VirtualTime()
    source = steps(time, 9)
    observer = time.start(lambda: source.pipe(step_cap(2, renew=renew, nudge=nudge)))
    assert failure(observer.messages) is error
    assert source.subscriptions == [subscribe(200, 230)]


@pytest.mark.parametrize("cap", [0, -3, 1.0, True, "2", None])
def test_the_cap_is_checked_at_once(cap: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^max_steps must be a whole number >= 1, but got {cap!r}$"):
        step_cap(cap)
