from __future__ import annotations

from reactivex.testing import ReactiveTest

from rxloop.events import ReasoningDelta, StepStarted, TextDelta
from rxloop.operators import text
from tests.operators.virtual import VirtualTime, assert_messages, finished, reply

on_next, on_error, on_completed, subscribe = (
    ReactiveTest.on_next,
    ReactiveTest.on_error,
    ReactiveTest.on_completed,
    ReactiveTest.subscribe,
)


def test_only_answer_text_passes() -> None:
    time = VirtualTime()
    source = time.create_cold_observable(
        on_next(10, StepStarted(0)),
        on_next(20, ReasoningDelta(0, "hm")),
        on_next(30, TextDelta(0, "He")),
        on_next(40, TextDelta(0, "llo")),
        on_next(50, finished(reply(text="Hello"))),
        on_completed(60),
    )
    observer = time.start(lambda: source.pipe(text()))
    assert_messages(observer.messages, on_next(230, "He"), on_next(240, "llo"), on_completed(260))
    assert source.subscriptions == [subscribe(200, 260)]


def test_errors_pass_and_disposal_disposes() -> None:
    time, error = VirtualTime(), RuntimeError("x")
    observer = time.start(lambda: time.create_cold_observable(on_error(20, error)).pipe(text()))
    assert_messages(observer.messages, on_error(220, error))
    time = VirtualTime()
    source = time.create_cold_observable(on_next(50, TextDelta(0, "x")))
    time.start(lambda: source.pipe(text()), disposed=230)
    assert source.subscriptions == [subscribe(200, 230)]
