from __future__ import annotations

from reactivex.testing import ReactiveTest

from rxloop.events import ToolCallDelta, ToolCallReceived, ToolCallStarted, ToolStarted
from rxloop.operators import tool_calls
from rxloop.steps import ToolCall
from tests.operators.virtual import VirtualTime, assert_messages, call, finished, reply

on_next, on_error, on_completed, subscribe = (
    ReactiveTest.on_next,
    ReactiveTest.on_error,
    ReactiveTest.on_completed,
    ReactiveTest.subscribe,
)


def test_only_whole_calls_pass() -> None:
    time = VirtualTime()
    source = time.create_cold_observable(
        on_next(10, ToolCallStarted(0, "a", "add")),
        on_next(20, ToolCallDelta(0, "a", '{"x": 1}')),
        on_next(30, ToolCallReceived(0, "a", "add", {"x": 1})),
        on_next(40, ToolCallReceived(1, "b", "add", "{")),
        on_next(50, finished(reply(call("a", "add")))),
        on_next(60, ToolStarted(0, "a", "add")),
        on_completed(70),
    )
    observer = time.start(lambda: source.pipe(tool_calls()))
    assert_messages(
        observer.messages,
        on_next(230, ToolCall("a", "add", {"x": 1})),
        on_next(240, ToolCall("b", "add", "{")),
        on_completed(270),
    )
    assert source.subscriptions == [subscribe(200, 270)]


def test_errors_pass_and_disposal_disposes() -> None:
    time, error = VirtualTime(), RuntimeError("x")
    observer = time.start(lambda: time.create_cold_observable(on_error(20, error)).pipe(tool_calls()))
    assert_messages(observer.messages, on_error(220, error))
    time = VirtualTime()
    source = time.create_cold_observable(on_next(50, ToolCallReceived(0, "a", "add", {})))
    time.start(lambda: source.pipe(tool_calls()), disposed=230)
    assert source.subscriptions == [subscribe(200, 230)]
