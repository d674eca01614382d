from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from reactivex import Observable
from reactivex.disposable import Disposable
from reactivex.scheduler import ImmediateScheduler
from reactivex.testing import ReactiveTest
from reactivex.testing.coldobservable import ColdObservable

from rxloop.errors import (
    AuthenticationError,
    ConfigurationError,
    OverloadedError,
    ProviderError,
    RateLimitedError,
    RxLoopError,
    ServerError,
)
from rxloop.events import RetryScheduled, TextDelta
from rxloop.operators import RetryPolicy, retry_before_first_emit
from tests.operators.virtual import VirtualTime, assert_messages, emissions, failure

on_next, on_error, on_completed, subscribe = (
    ReactiveTest.on_next,
    ReactiveTest.on_error,
    ReactiveTest.on_completed,
    ReactiveTest.subscribe,
)


def exactly(seconds: float) -> float:
    return seconds


def policy(**values: Any) -> RetryPolicy:
    return RetryPolicy(**{"first_delay": 10, "jitter": exactly, **values})


def attempts(*sources: Observable[Any]) -> Observable[Any]:
    """A cold source whose subscriptions get one after the other of `sources`."""
    left = list(sources)

    def on_subscribe(observer: Any, scheduler: Any = None) -> Any:
        return left.pop(0).subscribe(observer, scheduler=scheduler)

    return Observable(on_subscribe)


def failing(time: VirtualTime, error: Exception, *, at: float = 5, before: Any = None) -> ColdObservable[Any]:
    items = [] if before is None else [on_next(at, before)]
    return time.create_cold_observable(*items, on_error(at, error))


def scheduled(attempt: int, delay: float, error: RxLoopError, step: int = 0) -> RetryScheduled:
    return RetryScheduled(step, attempt, delay, error.to_dict())


def test_a_failed_attempt_is_followed_by_another() -> None:
    time, first, second = VirtualTime(), OverloadedError("busy", status=529), ServerError("oops", status=500)
    sources = [
        failing(time, first),
        failing(time, second),
        time.create_cold_observable(on_next(3, "a"), on_next(4, "b"), on_completed(5)),
    ]
    observer = time.start(lambda: attempts(*sources).pipe(retry_before_first_emit(policy(), step=2)))
    assert_messages(
        observer.messages,
        on_next(205, scheduled(1, 10, first, 2)),
        on_next(220, scheduled(2, 20, second, 2)),
        on_next(243, "a"),
        on_next(244, "b"),
        on_completed(245),
    )
    assert [source.subscriptions for source in sources] == [
        [subscribe(200, 205)],
        [subscribe(215, 220)],
        [subscribe(240, 245)],
    ]
    assert emissions(observer.messages)[0].error == {
        "kind": "overloaded",
        "status": 529,
        "message": "busy",
        "retryable": True,
    }
    assert time.ran_after(245) == []


def test_the_last_error_surfaces_as_it_is() -> None:
    time = VirtualTime()
    errors = [ServerError(str(number)) for number in range(3)]
    sources = [failing(time, error) for error in errors]
    observer = time.start(lambda: attempts(*sources).pipe(retry_before_first_emit(policy())))
    assert failure(observer.messages) is errors[2]
    assert observer.messages[-1].time == 245
    assert [type(item) for item in emissions(observer.messages)] == [RetryScheduled] * 2


def test_by_default_there_are_two_retries_from_one_second() -> None:
    rules = RetryPolicy()
    error = ServerError("x")
    for attempt, longest in ((1, 1.0), (2, 2.0)):
        delays = [rules.delay(error, attempt) for _ in range(200)]
        assert all(delay is not None and longest / 2 <= delay <= longest for delay in delays)
        assert len(set(delays)) > 100
    assert rules.delay(error, 3) is None
    time = VirtualTime()
    source = failing(time, error, at=1)
    observer = time.start(lambda: source.pipe(retry_before_first_emit()))
    assert len(source.subscriptions) == 3
    assert failure(observer.messages) is error


def test_delays_double_up_to_their_limit() -> None:
    rules = policy(retries=6, max_delay=100)
    assert [rules.delay(ServerError("x"), attempt) for attempt in range(1, 8)] == [10, 20, 40, 80, 100, 100, None]


def test_a_very_late_attempt_has_the_longest_delay() -> None:
    assert policy(retries=10_000, first_delay=1.0, max_delay=100).delay(ServerError("x"), 9_999) == 100


def test_the_jitter_gets_the_computed_delay() -> None:
    rules = policy(jitter=lambda seconds: seconds / 4)
    assert rules.delay(ServerError("x"), 2) == 5
    assert rules.delay(ServerError("x", retry_after=8), 2) == 8


@pytest.mark.parametrize(
    "error",
    [
        AuthenticationError("no key", status=401),
        ConfigurationError("never"),
        ProviderError("who knows"),
        ServerError("said so", retryable=False),
        RuntimeError("a stranger"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_other_errors_surface_at_once(error: Exception) -> None:
    time = VirtualTime()
    source = failing(time, error)
    observer = time.start(lambda: source.pipe(retry_before_first_emit(policy())))
    assert_messages(observer.messages, on_error(205, error))
    assert source.subscriptions == [subscribe(200, 205)]


def test_an_error_may_say_that_it_is_retryable() -> None:
    time, error = VirtualTime(), ProviderError("a hiccup", retryable=True)
    source = failing(time, error)
    time.start(lambda: source.pipe(retry_before_first_emit(policy(retries=1))))
    assert source.subscriptions == [subscribe(200, 205), subscribe(215, 220)]


def test_after_content_there_is_no_retry() -> None:
    time, error = VirtualTime(), ServerError("cut")
    source = failing(time, error, before="a")
    observer = time.start(lambda: source.pipe(retry_before_first_emit(policy())))
    assert_messages(observer.messages, on_next(205, "a"), on_error(205, error))
    assert time.ran_after(205) == []


def test_content_of_a_second_attempt_ends_the_retries_too() -> None:
    time, first, second = VirtualTime(), ServerError("1"), ServerError("2")
    sources = [failing(time, first), failing(time, second, before="a")]
    observer = time.start(lambda: attempts(*sources).pipe(retry_before_first_emit(policy(retries=9))))
    assert failure(observer.messages) is second
    assert emissions(observer.messages) == [scheduled(1, 10, first), "a"]


def test_what_counts_as_content_can_be_said() -> None:
    def is_content(item: Any) -> bool:
        return isinstance(item, TextDelta)

    time, error = VirtualTime(), ServerError("cut")
    sources = [failing(time, error, before="ping"), failing(time, error, before=TextDelta(0, "x"))]
    operator = retry_before_first_emit(policy(), is_content=is_content)
    observer = time.start(lambda: attempts(*sources).pipe(operator))
    assert_messages(
        observer.messages,
        on_next(205, "ping"),
        on_next(205, scheduled(1, 10, error)),
        on_next(220, TextDelta(0, "x")),
        on_error(220, error),
    )


@pytest.mark.parametrize("delay", [0.0, 7.0, 60.0])
def test_the_providers_own_delay_is_obeyed(delay: float) -> None:
    time, error = VirtualTime(), RateLimitedError("slow down", retry_after=delay)
    source = failing(time, error)
    observer = time.start(lambda: source.pipe(retry_before_first_emit(policy(retries=1))))
    assert emissions(observer.messages) == [scheduled(1, delay, error)]
    assert source.subscriptions == [subscribe(200, 205), subscribe(205 + int(delay), 210 + int(delay))]


def test_a_providers_delay_above_the_cap_surfaces_the_error_at_once() -> None:
    time, error = VirtualTime(), RateLimitedError("come back tomorrow", retry_after=60.1)
    source = failing(time, error)
    observer = time.start(lambda: source.pipe(retry_before_first_emit(policy())))
    assert_messages(observer.messages, on_error(205, error))
    assert time.ran_after(205) == []


def test_the_budget_is_per_subscription() -> None:
    time = VirtualTime()
    source = failing(time, ServerError("x"))
    retried = source.pipe(retry_before_first_emit(policy(retries=1)))
    first, second = time.create_observer(), time.create_observer()
    time.schedule_absolute(200, lambda *_: retried.subscribe(first, scheduler=time))
    time.schedule_absolute(300, lambda *_: retried.subscribe(second, scheduler=time))
    time.start()
    assert [window.subscribe for window in source.subscriptions] == [200, 215, 300, 315]
    assert [message.time for message in first.messages] == [205, 220]
    assert [message.time for message in second.messages] == [305, 320]


def test_no_retries_leave_the_source_as_it_is() -> None:
    time, error = VirtualTime(), ServerError("x")
    source = failing(time, error)
    assert source.pipe(retry_before_first_emit(RetryPolicy(retries=0))) is source


def test_disposal_in_a_delay_cancels_it() -> None:
    time = VirtualTime()
    source = failing(time, ServerError("x"))
    rules = policy(first_delay=500, max_delay=500)
    observer = time.start(lambda: source.pipe(retry_before_first_emit(rules)), disposed=300)
    assert len(observer.messages) == 1
    assert source.subscriptions == [subscribe(200, 205)]
    assert time.ran_after(300) == []


def test_disposal_in_an_attempt_disposes_it() -> None:
    time = VirtualTime()
    sources = [failing(time, ServerError("x")), failing(time, ServerError("y"), at=500)]
    time.start(lambda: attempts(*sources).pipe(retry_before_first_emit(policy())), disposed=300)
    assert sources[1].subscriptions == [subscribe(215, 300)]


def test_disposal_on_the_event_prevents_the_attempt() -> None:
    time = VirtualTime()
    source = failing(time, ServerError("x"))
    seen: list[Any] = []

    def note(item: Any) -> None:
        seen.append(item)
        subscription.dispose()

    subscription = source.pipe(retry_before_first_emit(policy(), scheduler=time)).subscribe(note)
    time.start()
    assert len(seen) == 1
    assert source.subscriptions == [subscribe(0, 5)]
    assert time.ran_after(5) == []


def immediately(error: Exception, made: list[int]) -> Observable[Any]:
    def on_subscribe(observer: Any, scheduler: Any = None) -> Any:
        made.append(len(made))
        observer.on_error(error)
        return Disposable()

    return Observable(on_subscribe)


def test_a_source_that_fails_while_it_is_subscribed_to_is_retried() -> None:
    time, error, made = VirtualTime(), ServerError("x"), list[int]()
    observer = time.start(lambda: immediately(error, made).pipe(retry_before_first_emit(policy())))
    assert_messages(
        observer.messages,
        on_next(200, scheduled(1, 10, error)),
        on_next(210, scheduled(2, 20, error)),
        on_error(230, error),
    )
    assert made == [0, 1, 2]


def test_a_thousand_immediate_retries_need_no_stack() -> None:
    error, made, errors = ServerError("x"), list[int](), list[Exception]()
    rules = RetryPolicy(retries=5_000, first_delay=0, max_delay=0, jitter=exactly)
    scheduler = ImmediateScheduler.singleton()
    immediately(error, made).pipe(retry_before_first_emit(rules, scheduler=scheduler)).subscribe(on_error=errors.append)
    assert len(made) == 5_001
    assert errors == [error]


def raising_in_subscribe(error: Exception, made: list[int]) -> Observable[Any]:
    def on_subscribe(observer: Any, scheduler: Any = None) -> Any:
        made.append(len(made))
        raise error

    return Observable(on_subscribe)


@pytest.mark.parametrize("make", [raising_in_subscribe, immediately])
def test_a_source_that_raises_is_retried_like_one_that_fails(
    make: Callable[[Exception, list[int]], Observable[Any]],
) -> None:
    time, error, made = VirtualTime(), ServerError("x"), list[int]()
    observer = time.start(lambda: make(error, made).pipe(retry_before_first_emit(policy())))
    assert failure(observer.messages) is error
    assert len(made) == 3


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"retries": -1}, "retries must be a whole number >= 0, but got -1"),
        ({"retries": 1.5}, "retries must be a whole number >= 0, but got 1.5"),
        ({"retries": True}, "retries must be a whole number >= 0, but got True"),
        ({"first_delay": -1}, "first_delay must be >= 0 seconds and finite, but got -1"),
        ({"max_delay": "1"}, "max_delay must be >= 0 seconds and finite, but got '1'"),
        ({"max_retry_after": float("nan")}, "max_retry_after must be >= 0 seconds, but got nan"),
        ({"first_delay": True}, "first_delay must be >= 0 seconds and finite, but got True"),
    ],
)
def test_the_policy_is_checked_at_once(values: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{rule}$"):
        RetryPolicy(**values)
