from __future__ import annotations

from contextvars import copy_context
from typing import Any

import pytest
from reactivex.testing import ReactiveTest
from reactivex.testing.recorded import Recorded

from rxloop.demand import Demand, demand_context
from rxloop.errors import ConfigurationError, TimedOutError
from rxloop.operators import stall_watchdog
from tests.operators.virtual import VirtualTime, assert_messages, failure

on_next, on_error, on_completed, subscribe = (
    ReactiveTest.on_next,
    ReactiveTest.on_error,
    ReactiveTest.on_completed,
    ReactiveTest.subscribe,
)


def items(*ticks: int) -> list[Recorded[Any]]:
    return [on_next(tick, tick) for tick in ticks]


def test_silence_between_items_fails() -> None:
    time = VirtualTime()
    source = time.create_cold_observable(*items(10, 20), on_completed(90))
    observer = time.start(lambda: source.pipe(stall_watchdog(30)))
    error = failure(observer.messages)
    assert_messages(observer.messages, on_next(210, 10), on_next(220, 20), on_error(250, error))
    assert source.subscriptions == [subscribe(200, 250)]
    assert isinstance(error, TimedOutError)
    assert (error.clock, error.seconds, error.retryable) == ("stall", 30, True)
    assert str(error) == "the provider must send an event within 30 s (stall_timeout), but was silent"
    assert time.ran_after(250) == []


def test_items_in_time_keep_it_going() -> None:
    time = VirtualTime()
    source = time.create_cold_observable(*items(29, 58, 87, 116), on_completed(145))
    observer = time.start(lambda: source.pipe(stall_watchdog(30)))
    assert [message.time for message in observer.messages] == [229, 258, 287, 316, 345]
    assert source.subscriptions == [subscribe(200, 345)]
    assert time.ran_after(345) == []


@pytest.mark.parametrize(
    ("limits", "clock", "seconds"),
    [
        ({"stall_timeout": 30}, "first_event", 30),
        ({"stall_timeout": 30, "first_event_timeout": 50}, "first_event", 50),
        ({"stall_timeout": 50, "first_event_timeout": 30}, "first_event", 30),
        ({"stall_timeout": None, "first_event_timeout": 40}, "first_event", 40),
    ],
)
def test_the_first_item_has_a_limit_of_its_own(limits: Any, clock: str, seconds: int) -> None:
    time = VirtualTime()
    source = time.create_cold_observable(*items(90))
    observer = time.start(lambda: source.pipe(stall_watchdog(**limits)))
    error = failure(observer.messages)
    assert_messages(observer.messages, on_error(200 + seconds, error))
    assert (error.clock, error.seconds) == (clock, seconds)
    assert f"({clock}_timeout)" in str(error)


def test_after_the_first_item_only_the_limit_between_items_counts() -> None:
    time = VirtualTime()
    source = time.create_cold_observable(*items(5))
    observer = time.start(lambda: source.pipe(stall_watchdog(None, first_event_timeout=30)), disposed=900)
    assert_messages(observer.messages, on_next(205, 5))
    assert source.subscriptions == [subscribe(200, 900)]
    time = VirtualTime()
    source = time.create_cold_observable(*items(5))
    observer = time.start(lambda: source.pipe(stall_watchdog(70, first_event_timeout=30)))
    assert observer.messages[-1].time == 275


def test_a_short_limit_between_items_does_not_wait_for_the_long_one_before_them() -> None:
    time = VirtualTime()
    source = time.create_cold_observable(*items(5))
    observer = time.start(lambda: source.pipe(stall_watchdog(20, first_event_timeout=100)))
    assert failure(observer.messages).clock == "stall"
    assert observer.messages[-1].time == 225


def test_no_limit_leaves_the_source_as_it_is() -> None:
    source = VirtualTime().create_cold_observable()
    assert source.pipe(stall_watchdog(None)) is source


def test_the_sources_end_cancels_the_timer() -> None:
    for end in (on_completed(20), on_error(20, RuntimeError("x"))):
        time = VirtualTime()
        source = time.create_cold_observable(*items(10), end)
        observer = time.start(lambda source=source: source.pipe(stall_watchdog(30)))
        assert [message.time for message in observer.messages] == [210, 220]
        assert time.ran_after(220) == []


def test_disposal_cancels_the_timer_and_the_source() -> None:
    time = VirtualTime()
    source = time.create_cold_observable(*items(10))
    observer = time.start(lambda: source.pipe(stall_watchdog(300)), disposed=250)
    assert_messages(observer.messages, on_next(210, 10))
    assert source.subscriptions == [subscribe(200, 250)]
    assert time.ran_after(250) == []


def test_every_subscription_has_its_own_clock() -> None:
    time = VirtualTime()
    source = time.create_cold_observable(*items(10))
    watched = source.pipe(stall_watchdog(30))
    first, second = time.create_observer(), time.create_observer()
    time.schedule_absolute(200, lambda *_: watched.subscribe(first, scheduler=time))
    time.schedule_absolute(220, lambda *_: watched.subscribe(second, scheduler=time))
    time.start()
    assert (first.messages[-1].time, second.messages[-1].time) == (240, 260)


# a lagging consumer


def paused(
    time: VirtualTime, windows: list[tuple[float, float]], *ticks: int, limit: float = 30, on_item: Any = None
) -> Any:
    """Watch from 200 on in the context of a consumer that is paused from and until the given times."""
    demand, context = Demand(), copy_context()
    context.run(demand_context.set, demand)
    observer = time.create_observer()
    watched = time.create_cold_observable(*items(*ticks)).pipe(stall_watchdog(limit))
    time.schedule_absolute(200, lambda *_: context.run(lambda: watched.subscribe(observer, scheduler=time)))
    for start, end in windows:
        time.schedule_absolute(start, lambda *_: demand.close())
        time.schedule_absolute(end, lambda *_: demand.open())
    time.start()
    return observer.messages


def test_silence_while_the_consumer_is_paused_does_not_count() -> None:
    messages = paused(VirtualTime(), [(205, 500)])
    assert failure(messages).clock == "first_event"
    assert messages[-1].time == 530


def test_the_clock_starts_again_when_the_consumer_goes_on() -> None:
    # closed right after the item, as the consumer does whose buffer the item fills
    messages = paused(VirtualTime(), [(210, 239)], 10)
    assert messages[-1].time == 269
    assert failure(messages).clock == "stall"


def test_a_pause_of_any_length_does_not_count() -> None:
    messages = paused(VirtualTime(), [(210, 215), (220, 500)], 10)
    assert messages[-1].time == 530


def test_a_consumer_that_is_never_paused_changes_nothing() -> None:
    assert paused(VirtualTime(), [], 10)[-1].time == 240


def test_time_that_the_subscriber_takes_is_no_silence() -> None:
    time = VirtualTime()
    observer = time.create_observer()

    def slow(item: Any) -> None:
        time.sleep(25)
        observer.on_next(item)

    source = time.create_cold_observable(*items(10, 50), on_completed(70))
    source.pipe(stall_watchdog(30, scheduler=time)).subscribe(slow, observer.on_error, observer.on_completed)
    time.start()
    assert [message.value.kind for message in observer.messages] == ["N", "N", "C"]


@pytest.mark.parametrize("limit", [0, -1, float("nan"), True, "5"])
@pytest.mark.parametrize("name", ["stall_timeout", "first_event_timeout"])
def test_the_limits_are_checked_at_once(name: str, limit: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} must be > 0 seconds, but got {limit!r}"):
        stall_watchdog(**{"stall_timeout": None, name: limit})
