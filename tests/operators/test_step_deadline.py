from __future__ import annotations

import pytest
from reactivex.testing import ReactiveTest

from rxloop.errors import ConfigurationError, TimedOutError
from rxloop.operators import step_deadline
from tests.operators.virtual import VirtualTime, assert_messages, failure

on_next, on_error, on_completed, subscribe = (
    ReactiveTest.on_next,
    ReactiveTest.on_error,
    ReactiveTest.on_completed,
    ReactiveTest.subscribe,
)


def test_the_step_fails_at_its_limit() -> None:
    time = VirtualTime()
    source = time.create_cold_observable(on_next(10, "a"), on_next(60, "b"))
    observer = time.start(lambda: source.pipe(step_deadline(50)))
    error = failure(observer.messages)
    assert_messages(observer.messages, on_next(210, "a"), on_error(250, error))
    assert isinstance(error, TimedOutError)
    assert (error.clock, error.seconds, error.retryable) == ("step", 50, False)
    assert str(error) == "the step must end within 50 s (step_timeout), but did not"
    assert source.subscriptions == [subscribe(200, 250)]


def test_a_step_in_time_passes() -> None:
    time = VirtualTime()
    source = time.create_cold_observable(on_next(10, "a"), on_completed(49))
    observer = time.start(lambda: source.pipe(step_deadline(50)))
    assert_messages(observer.messages, on_next(210, "a"), on_completed(249))
    assert time.ran_after(249) == []


def test_disposal_cancels_the_timer() -> None:
    time = VirtualTime()
    source = time.create_cold_observable(on_next(100, "a"))
    time.start(lambda: source.pipe(step_deadline(50)), disposed=230)
    assert source.subscriptions == [subscribe(200, 230)]
    assert time.ran_after(230) == []


def test_the_scheduler_can_be_given() -> None:
    time, other = VirtualTime(), VirtualTime()
    source = time.create_cold_observable(on_completed(70))
    observer = time.start(lambda: source.pipe(step_deadline(50, scheduler=other)))
    assert_messages(observer.messages, on_completed(270))


def test_no_limit_leaves_the_source_as_it_is() -> None:
    source = VirtualTime().create_cold_observable()
    assert source.pipe(step_deadline(None)) is source


def test_the_limit_is_checked_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"^step_timeout must be > 0 seconds, but got 0$"):
        step_deadline(0)
