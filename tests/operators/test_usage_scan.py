from __future__ import annotations

from reactivex.testing import ReactiveTest

from rxloop.events import TextDelta, UsageUpdated
from rxloop.operators import usage_scan
from rxloop.usage import Usage
from tests.operators.virtual import VirtualTime, assert_messages, emissions, failure, finished, reply

on_next, on_error, on_completed, subscribe = (
    ReactiveTest.on_next,
    ReactiveTest.on_error,
    ReactiveTest.on_completed,
    ReactiveTest.subscribe,
)

FIRST = finished(reply(usage=Usage(10, 2, 3, 4, 1)), 0)
SECOND = finished(reply(usage=Usage(100, 20, 30, 40, 10)), 1)


def test_the_total_follows_every_reply() -> None:
    time = VirtualTime()
    source = time.create_cold_observable(
        on_next(5, TextDelta(0, "x")), on_next(10, FIRST), on_next(20, SECOND), on_completed(30)
    )
    observer = time.start(lambda: source.pipe(usage_scan()))
    assert_messages(
        observer.messages,
        on_next(205, TextDelta(0, "x")),
        on_next(210, FIRST),
        on_next(210, UsageUpdated(Usage(10, 2, 3, 4, 1))),
        on_next(220, SECOND),
        on_next(220, UsageUpdated(Usage(110, 22, 33, 44, 11))),
        on_completed(230),
    )
    assert source.subscriptions == [subscribe(200, 230)]


def test_it_can_start_from_something() -> None:
    time = VirtualTime()
    source = time.create_cold_observable(on_next(10, FIRST))
    observer = time.start(lambda: source.pipe(usage_scan(Usage(1, 1))))
    assert emissions(observer.messages)[1] == UsageUpdated(Usage(11, 3, 3, 4, 1))


def test_the_total_is_kept_per_subscription() -> None:
    time = VirtualTime()
    totalled = time.create_cold_observable(on_next(10, FIRST), on_next(20, SECOND)).pipe(usage_scan())
    first, second = time.create_observer(), time.create_observer()
    time.schedule_absolute(200, lambda *_: totalled.subscribe(first, scheduler=time))
    time.schedule_absolute(215, lambda *_: totalled.subscribe(second, scheduler=time))
    time.start()
    assert emissions(first.messages) == emissions(second.messages)


def test_errors_pass_and_disposal_disposes() -> None:
    time, error = VirtualTime(), RuntimeError("x")
    source = time.create_cold_observable(on_next(10, FIRST), on_error(20, error))
    observer = time.start(lambda: source.pipe(usage_scan()))
    assert failure(observer.messages) is error
    time = VirtualTime()
    source = time.create_cold_observable(on_next(10, FIRST), on_next(50, SECOND))
    observer = time.start(lambda: source.pipe(usage_scan()), disposed=230)
    assert len(observer.messages) == 2
    assert source.subscriptions == [subscribe(200, 230)]
