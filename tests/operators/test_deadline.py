from __future__ import annotations

from typing import Any

import pytest
from reactivex.testing import ReactiveTest

from rxloop.errors import ConfigurationError, TimedOutError
from rxloop.operators import deadline
from tests.operators.virtual import VirtualTime, assert_messages, failure

on_next, on_error, on_completed, subscribe = (
    ReactiveTest.on_next,
    ReactiveTest.on_error,
    ReactiveTest.on_completed,
    ReactiveTest.subscribe,
)


def test_a_source_that_is_not_done_in_time_fails() -> None:
    time = VirtualTime()
    source = time.create_cold_observable(on_next(10, "a"), on_next(49, "b"), on_next(51, "c"))
    observer = time.start(lambda: source.pipe(deadline(50, clock="transport")))
    error = failure(observer.messages)
    assert_messages(observer.messages, on_next(210, "a"), on_next(249, "b"), on_error(250, error))
    assert source.subscriptions == [subscribe(200, 250)]
    assert isinstance(error, TimedOutError)
    assert isinstance(error, TimeoutError)
    assert (error.clock, error.seconds, error.retryable) == ("transport", 50, False)
    assert str(error) == "the transport must end within 50 s (transport_timeout), but did not"


@pytest.mark.parametrize("end", [on_completed(40), on_error(40, RuntimeError("x"))])
def test_a_source_that_ends_in_time_cancels_the_timer(end: Any) -> None:
    time = VirtualTime()
    source = time.create_cold_observable(on_next(10, "a"), end)
    observer = time.start(lambda: source.pipe(deadline(50, clock="turn")))
    assert [(message.time, message.value.kind) for message in observer.messages] == [(210, "N"), (240, end.value.kind)]
    assert time.ran_after(240) == []


def test_disposal_cancels_the_timer_and_the_source() -> None:
    time = VirtualTime()
    source = time.create_cold_observable(on_next(100, "a"))
    observer = time.start(lambda: source.pipe(deadline(50, clock="turn")), disposed=230)
    assert observer.messages == []
    assert source.subscriptions == [subscribe(200, 230)]
    assert time.ran_after(230) == []


def test_every_subscription_has_its_own_timer() -> None:
    time = VirtualTime()
    limited = time.create_cold_observable().pipe(deadline(50, clock="turn"))
    first, second = time.create_observer(), time.create_observer()
    time.schedule_absolute(200, lambda *_: limited.subscribe(first, scheduler=time))
    time.schedule_absolute(220, lambda *_: limited.subscribe(second, scheduler=time))
    time.start()
    assert (first.messages[-1].time, second.messages[-1].time) == (250, 270)


def test_a_scheduler_of_its_own_goes_first() -> None:
    time, other = VirtualTime(), VirtualTime()
    source = time.create_cold_observable(on_completed(70))
    observer = time.start(lambda: source.pipe(deadline(50, clock="turn", scheduler=other)))
    assert_messages(observer.messages, on_completed(270))


def test_no_limit_leaves_the_source_as_it_is() -> None:
    source = VirtualTime().create_cold_observable()
    assert source.pipe(deadline(None, clock="turn")) is source


@pytest.mark.parametrize("seconds", [0, -1.5, True, "5", float("nan")])
def test_the_limit_is_checked_at_once(seconds: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^tool_timeout must be > 0 seconds, but got {seconds!r}$"):
        deadline(seconds, clock="tool")


def test_without_a_scheduler_and_a_loop_the_observer_is_told() -> None:
    errors: list[Exception] = []
    VirtualTime().create_cold_observable().pipe(deadline(5, clock="turn")).subscribe(on_error=errors.append)
    [error] = errors
    assert isinstance(error, ConfigurationError)
    assert "needs a running asyncio event loop" in str(error)
