"""What holds for every operator: it lets go of its source and its timers, and keeps the protocol whatever comes."""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import ANY

import pytest
from reactivex import Observable
from reactivex.testing import ReactiveTest

from rxloop import operators
from rxloop.errors import ServerError
from rxloop.events import StepStarted, TextDelta, ToolCallDelta, ToolCallReceived, ToolCallStarted, UsageUpdated
from rxloop.operators import (
    MalformedBudget,
    OutputState,
    RetryPolicy,
    coalesce_text,
    deadline,
    loop_steps,
    partial_output,
    retry_before_first_emit,
    retry_malformed_call,
    stall_watchdog,
    step_cap,
    step_deadline,
    stop_on,
    structured_output,
    text,
    tool_calls,
    tool_dispatch,
    turn_deadline,
    usage_limit,
    usage_scan,
)
from rxloop.output import Output
from rxloop.steps import StepSettled
from rxloop.testing import MISBEHAVIOURS, MisbehavingSource, Misbehaviour
from rxloop.ui import to_agui, to_ui_message_stream
from rxloop.usage import Usage
from tests.operators.virtual import VirtualTime, call, cold_tool, failure, finished, reply

on_next, on_error, on_completed, subscribe = (
    ReactiveTest.on_next,
    ReactiveTest.on_error,
    ReactiveTest.on_completed,
    ReactiveTest.subscribe,
)


@dataclass(frozen=True)
class Row:
    """An operator on a source, and items that bring it into motion."""

    apply: Callable[[Observable[Any], VirtualTime], Observable[Any]]
    items: tuple[Any, ...] = (StepStarted(0), TextDelta(0, "x"))


def dispatching(source: Observable[Any], time: VirtualTime) -> Observable[Any]:
    slow = cold_tool("slow", time.create_cold_observable(on_next(60, 1), on_completed(60)))
    return source.pipe(tool_dispatch({"slow": slow}, tool_timeout=500))


ROWS: dict[str, Row] = {
    "coalesce_text": Row(
        lambda source, time: source.pipe(coalesce_text(30)), (TextDelta(0, "x"), TextDelta(0, "y"), StepStarted(1))
    ),
    "deadline": Row(lambda source, time: source.pipe(deadline(500, clock="turn"))),
    "loop_steps": Row(
        lambda source, time: loop_steps(lambda: 0, lambda _: source, lambda state, _: None),
        (TextDelta(0, "x"), StepSettled(reply())),
    ),
    "partial_output": Row(
        lambda source, time: source.pipe(partial_output(list[int])),
        (ToolCallStarted(0, "a", "final_result"), ToolCallDelta(0, "a", '{"result": [1')),
    ),
    "retry_before_first_emit": Row(
        lambda source, time: source.pipe(retry_before_first_emit(RetryPolicy(first_delay=20, jitter=float)))
    ),
    "retry_malformed_call": Row(
        lambda source, time: source.pipe(retry_malformed_call(MalformedBudget())), (reply(malformed=True),)
    ),
    "stall_watchdog": Row(lambda source, time: source.pipe(stall_watchdog(500))),
    "step_cap": Row(lambda source, time: source.pipe(step_cap(8))),
    "step_deadline": Row(lambda source, time: source.pipe(step_deadline(500))),
    "stop_on": Row(lambda source, time: source.pipe(stop_on(time.create_cold_observable(on_next(600, "stop"))))),
    "structured_output": Row(
        lambda source, time: source.pipe(structured_output(OutputState(Output(list[int]), "cooperative", 9))),
        (reply(call("a", "final_result")),),
    ),
    "text": Row(lambda source, time: source.pipe(text())),
    "tool_calls": Row(lambda source, time: source.pipe(tool_calls()), (ToolCallReceived(0, "a", "add", {}),)),
    "tool_dispatch": Row(dispatching, (TextDelta(0, "x"), reply(call("a", "slow"), call("b", "missing")))),
    "turn_deadline": Row(lambda source, time: source.pipe(turn_deadline(500))),
    "usage_limit": Row(
        lambda source, time: source.pipe(usage_limit(total_tokens=99)), (StepStarted(0), UsageUpdated(Usage(1, 1)))
    ),
    "usage_scan": Row(lambda source, time: source.pipe(usage_scan()), (finished(reply()),)),
}

FACES: dict[str, Row] = {
    "to_agui": Row(lambda source, time: source.pipe(to_agui(thread_id="thread", run_id="run"))),
    "to_ui_message_stream": Row(lambda source, time: source.pipe(to_ui_message_stream())),
}
"""Operators for user interfaces, which are told of an error as of any other event."""

ALL = {**ROWS, **FACES}

every_operator = pytest.mark.parametrize("row", ALL.values(), ids=ALL.keys())
every_operator_of_turns = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
every_face = pytest.mark.parametrize("row", FACES.values(), ids=FACES.keys())
every_misbehaviour = pytest.mark.parametrize("kind", MISBEHAVIOURS)


def test_every_operator_has_a_row() -> None:
    public = {name for name in operators.__all__ if inspect.isfunction(getattr(operators, name))}
    assert set(ROWS) == public


def kinds(messages: list[Any]) -> str:
    return "".join(message.value.kind for message in messages)


@every_operator
def test_disposal_lets_go_of_everything(row: Row) -> None:
    time = VirtualTime()
    source = time.create_cold_observable(*(on_next(10, item) for item in row.items), on_next(100, TextDelta(0, "late")))
    observer = time.start(lambda: row.apply(source, time), disposed=250)
    assert source.subscriptions == [subscribe(200, 250)]
    assert observer.messages
    assert max(message.time for message in observer.messages) <= 250
    assert "C" not in kinds(observer.messages)
    assert time.ran_after(250) == []


@every_operator
def test_completion_lets_go_of_everything(row: Row) -> None:
    time = VirtualTime()
    source = time.create_cold_observable(*(on_next(10, item) for item in row.items), on_completed(20))
    observer = time.start(lambda: row.apply(source, time))
    assert source.subscriptions == [subscribe(200, 220)]
    assert kinds(observer.messages).endswith("C")
    assert time.ran_after(observer.messages[-1].time) == []


@every_face
def test_an_error_lets_go_of_everything_and_is_told(row: Row) -> None:
    time = VirtualTime()
    source = time.create_cold_observable(*(on_next(10, item) for item in row.items), on_error(20, ServerError("cut")))
    observer = time.start(lambda: row.apply(source, time))
    assert source.subscriptions == [subscribe(200, 220)]
    assert kinds(observer.messages).endswith("NC")
    assert "cut" in str(observer.messages[-2].value)
    assert time.ran_after(220) == []


@every_operator_of_turns
def test_an_error_lets_go_of_everything_and_is_the_same_object(row: Row) -> None:
    time, error = VirtualTime(), ServerError("cut")
    source = time.create_cold_observable(*(on_next(10, item) for item in row.items), on_error(20, error))
    observer = time.start(lambda: row.apply(source, time))
    assert source.subscriptions == [subscribe(200, 220)]
    assert failure(observer.messages) is error
    assert time.ran_after(220) == []


@every_operator
def test_two_subscriptions_know_nothing_of_each_other(row: Row) -> None:
    time = VirtualTime()
    source = time.create_cold_observable(*(on_next(10, item) for item in row.items), on_completed(20))
    applied = row.apply(source, time)
    first, second, third = time.create_observer(), time.create_observer(), time.create_observer()
    time.schedule_absolute(200, lambda *_: applied.subscribe(first, scheduler=time))
    if row not in (ROWS["retry_malformed_call"], ROWS["structured_output"]):
        # there the turn's state is shared on purpose
        time.schedule_absolute(205, lambda *_: applied.subscribe(second, scheduler=time))
        time.schedule_absolute(500, lambda *_: applied.subscribe(third, scheduler=time))
    time.start()
    alone = [(message.time - 200, str(message.value)) for message in first.messages]
    for observer, start in ((second, 205), (third, 500)):
        if observer.messages:
            assert [(message.time - start, str(message.value)) for message in observer.messages] == alone


class Receiver:
    """An observer whose life can be watched."""

    def __init__(self) -> None:
        self.received: list[Any] = []

    def on_next(self, item: Any) -> None:
        self.received.append(item)

    def on_error(self, error: Exception) -> None:
        self.received.append(error)

    def on_completed(self) -> None:
        self.received.append("|")


@every_operator
@pytest.mark.parametrize("how", ["disposal", "completion"])
def test_nobody_remembers_the_observer(row: Row, how: str) -> None:
    time = VirtualTime()
    source = MisbehavingSource("never ends" if how == "disposal" else "completes twice", row.items)
    applied = row.apply(source, time)
    receiver = Receiver()
    subscription = applied.subscribe(receiver, scheduler=time)  # type: ignore[arg-type]
    if how == "disposal":
        subscription.dispose()
    time.start()
    assert receiver.received
    gone = weakref.ref(receiver)
    del receiver, subscription
    gc.collect()
    assert gone() is None


ENDS: dict[Misbehaviour, str] = {
    "emits after its completion": "C",
    "emits after its error": "E",
    "completes twice": "C",
    "errors twice": "E",
    "completes after its error": "E",
    "errors after its completion": "C",
    "never ends": "",
    "never emits": "",
    "ends at once": "C",
    "errors at once": "E",
    "raises in subscribe": "E",
    "raises in subscribe after emitting": "E",
    "ignores its disposal": "",
}


@every_operator
@every_misbehaviour
def test_a_misbehaving_source_ends_once_at_most(row: Row, kind: Misbehaviour) -> None:
    time = VirtualTime()
    source = MisbehavingSource(kind, row.items)
    observer = time.create_observer()
    subscription = row.apply(source, time).subscribe(observer, scheduler=time)
    # short of the limits that a source that never ends runs into
    time.advance_to(400)
    received = kinds(observer.messages)
    ends = received.lstrip("N")
    # of a source that goes on after its completion the error may be the end, where calls are still to be answered
    end = "C" if row in FACES.values() and ENDS[kind] == "E" and not kind.startswith("raises") else ENDS[kind]
    allowed = {end, "E"} if kind == "errors after its completion" else {end}
    assert ends in allowed, received
    subscription.dispose()
    source.emit_late()
    time.start()
    assert kinds(observer.messages) == received
    assert source.subscriptions == 1
    assert source.disposals == (0 if kind.startswith("raises") else 1)


@every_misbehaviour
def test_the_kit_misbehaves(kind: Misbehaviour) -> None:
    """Without an operator in between the misdeeds arrive."""
    received: list[Any] = []
    source = MisbehavingSource(kind, ("a",))
    receiver = Receiver()
    receiver.received = received
    try:
        subscription = source.subscribe(receiver)
    except RuntimeError as raised:
        assert raised is source.error  # noqa: PT017
        received.append("raised")
    else:
        subscription.dispose()
        source.emit_late()
    error = source.error
    expected: dict[Misbehaviour, list[Any]] = {
        "emits after its completion": ["a", "|", "a"],
        "emits after its error": ["a", error, "a"],
        "completes twice": ["a", "|", "|"],
        "errors twice": ["a", error, ANY],
        "completes after its error": ["a", error, "|"],
        "errors after its completion": ["a", "|", error],
        "never ends": ["a"],
        "never emits": [],
        "ends at once": ["|"],
        "errors at once": [error],
        "raises in subscribe": ["raised"],
        "raises in subscribe after emitting": ["a", "raised"],
        "ignores its disposal": ["a", "a", "|"],
    }
    assert received == expected[kind]


def test_the_kit_counts_and_takes_callbacks() -> None:
    received: list[Any] = []
    source = MisbehavingSource("never ends", (1, 2), LookupError("unused"))
    first = source.subscribe(received.append)
    source.subscribe(on_completed=lambda: received.append("|"))
    assert (source.subscriptions, source.disposals) == (2, 0)
    first.dispose()
    first.dispose()
    assert source.disposals == 1
    source.emit_late()
    assert received == [1, 2, "|"]
