from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, field_validator
from reactivex.testing import ReactiveTest
from typing_extensions import TypedDict

from rxloop.errors import ConfigurationError
from rxloop.events import (
    ReasoningDelta,
    StepStarted,
    TextDelta,
    ToolCallDelta,
    ToolCallReceived,
    ToolCallStarted,
    TurnEvent,
)
from rxloop.operators import partial_output
from rxloop.output import Output
from tests.operators.virtual import VirtualTime, assert_messages, emissions, failure

on_next, on_error, on_completed, subscribe = (
    ReactiveTest.on_next,
    ReactiveTest.on_error,
    ReactiveTest.on_completed,
    ReactiveTest.subscribe,
)


class City(BaseModel):
    name: str
    people: int = 0


class Place(TypedDict, total=False):
    name: str
    people: int


@dataclass
class Point:
    x: int
    y: int = 0


class StrictEvent(BaseModel):
    model_config = ConfigDict(strict=True)

    day: date
    words: str = ""


def started(call_id: str = "f", name: str = "final_result", step: int = 0) -> ToolCallStarted:
    return ToolCallStarted(step, call_id, name)


def delta(arguments: str, call_id: str = "f", step: int = 0) -> ToolCallDelta:
    return ToolCallDelta(step, call_id, arguments)


def snapshots(kind: Any, *events: TurnEvent, native: bool | None = None) -> list[Any]:
    """What the operator makes of some events."""
    time = VirtualTime()
    source = time.create_cold_observable(*(on_next(10, event) for event in events), on_completed(20))
    return emissions(time.start(lambda: source.pipe(partial_output(kind, native=native))).messages)


def streamed(kind: Any, *pieces: str) -> list[Any]:
    return snapshots(kind, StepStarted(0), started(), *map(delta, pieces))


def test_snapshots_come_with_the_deltas() -> None:
    time = VirtualTime()
    source = time.create_cold_observable(
        on_next(5, StepStarted(0)),
        on_next(10, started()),
        on_next(20, delta('{"name": "Pa')),
        on_next(30, delta('ris", "people": 2')),
        on_next(40, delta("1}")),
        on_next(50, ToolCallReceived(0, "f", "final_result", {"name": "Paris", "people": 21})),
        on_completed(60),
    )
    observer = time.start(lambda: source.pipe(partial_output(City)))
    assert_messages(
        observer.messages,
        on_next(220, City(name="Pa")),
        on_next(230, City(name="Paris", people=2)),
        on_next(240, City(name="Paris", people=21)),
        on_completed(260),
    )
    assert source.subscriptions == [subscribe(200, 260)]


@pytest.mark.parametrize(
    ("kind", "pieces", "expected"),
    [
        (Place, ['{"na', 'me": "Pa', 'ris", "peo', 'ple": 2}'],
         [{}, {"name": "Pa"}, {"name": "Paris"}, {"name": "Paris", "people": 2}]),
        (Point, ['{"x": 1', ', "y": 2}'], [Point(1), Point(1, 2)]),
        (dict[str, int], ['{"result": {"a": 1, "b', '": 2}}'], [{"a": 1}, {"a": 1, "b": 2}]),
        (list[int], ['{"result": [1, 2', ", 3]}"], [[1, 2], [1, 2, 3]]),
        (list[City], ['{"result": [{"name": "Ro', 'me"}, {"peo', 'ple": 1, "name": "Pa"}]}'],
         [[City(name="Ro")], [City(name="Rome")], [City(name="Rome"), City(name="Pa", people=1)]]),
        (str, ['{"result": "It', ' is"}'], ["It", "It is"]),
        (int | None, ['{"result": ', "null}"], [None]),
        # in a strict model too a date is text
        (StrictEvent, ['{"day": "2026-11-', '30", "words": "a', '"}'],
         [StrictEvent(day=date(2026, 11, 30), words="a")]),
    ],
)  # fmt: skip
def test_a_snapshot_is_of_the_type(kind: Any, pieces: list[str], expected: list[Any]) -> None:
    made = streamed(kind, *pieces)
    assert made == expected
    assert [type(value) for value in made] == [type(value) for value in expected]


def test_cut_anywhere_the_last_one_is_the_whole() -> None:
    whole = json.dumps({"name": "Zürich ☃", "people": 3})
    for size in range(1, len(whole) + 1):
        made = streamed(City, *(whole[start : start + size] for start in range(0, len(whole), size)))
        assert made[-1] == City(name="Zürich ☃", people=3)
        assert all(isinstance(value, City) and "Zürich ☃".startswith(value.name) for value in made)
        # equal ones come once
        assert all(one != other for one, other in itertools.pairwise(made))


def test_what_does_not_validate_yet_makes_none() -> None:
    assert streamed(City, '{"people": 3', ', "name": 5', ', "name": "Rome"}') == [City(name="Rome", people=3)]
    assert streamed(City, "", "{", "no json", "}") == []
    assert streamed(City, "[1]") == []
    assert streamed(list[int], '{"results": [1]}') == []


class Picky(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def known(cls, name: str) -> str:
        return {"Rome": "ROMA"}[name]


def test_a_validator_that_fails_on_half_a_value_is_no_failure() -> None:
    assert streamed(Picky, '{"name": "Ro', 'me"}') == [Picky.model_construct(name="ROMA")]


class Incomparable(City):
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("I am like nothing")

    __hash__ = None  # type: ignore[assignment]


def test_values_that_cannot_be_compared_are_compared_by_their_json() -> None:
    made = streamed(Incomparable, '{"name": "Ro', 'me"', " ", ', "people": 3', "}")
    assert [type(snapshot) for snapshot in made] == [Incomparable] * 3
    assert [(snapshot.name, snapshot.people) for snapshot in made] == [("Ro", 0), ("Rome", 0), ("Rome", 3)]


def test_a_provider_that_does_not_stream_arguments_makes_one() -> None:
    whole = ToolCallReceived(0, "f", "final_result", {"name": "Rome", "people": 3})
    assert snapshots(City, StepStarted(0), started(), whole) == [City(name="Rome", people=3)]
    unparsed = ToolCallReceived(0, "f", "final_result", "{name")
    assert snapshots(City, StepStarted(0), started(), unparsed) == []


def test_other_calls_and_texts_are_none_of_it() -> None:
    events = (
        StepStarted(0),
        TextDelta(0, 'I say {"name": "text"}'),
        ReasoningDelta(0, '{"name": "thought"}'),
        started("a", "add"),
        delta('{"name": "argument"}', "a"),
        started("f"),
        delta('{"name": "Ro'),
        # another one of the same reply does not count
        started("g"),
        delta('{"name": "other"}', "g"),
        delta('me"}'),
        ToolCallReceived(0, "g", "final_result", {"name": "other"}),
        ToolCallReceived(0, "a", "add", {"name": "argument"}),
    )
    assert snapshots(City, *events) == [City(name="Ro"), City(name="Rome")]


def test_a_correction_begins_anew() -> None:
    events = (
        StepStarted(0),
        started("f"),
        delta('{"name": "Rome", "people": "x'),
        StepStarted(1),
        started("f", step=1),
        delta('{"name": "Rome"', step=1),
        delta(', "people": 3}', step=1),
        StepStarted(2),
        started("h", step=2),
        # the same again is told again
        delta('{"name": "Rome", "people": 3}', "h", step=2),
    )
    rome = City(name="Rome", people=3)
    assert snapshots(City, *events) == [City(name="Rome"), rome, rome]


def test_whichever_way_the_answer_comes() -> None:
    step, other = StepStarted(0), StepStarted(1)
    object_ = [TextDelta(0, ' {"name": "Ro'), TextDelta(0, 'me"}')]
    assert snapshots(City, step, *object_) == [City(name="Ro"), City(name="Rome")]
    assert snapshots(City, step, *object_, native=False) == []
    prose = [TextDelta(0, " "), TextDelta(0, "I think: "), *object_]
    assert snapshots(City, step, *prose) == []
    call = [ToolCallStarted(1, "c", "final_result"), ToolCallDelta(1, "c", '{"name": "Rome"}')]
    assert snapshots(City, step, *prose, other, *object_[:1], *call) == [City(name="Ro"), City(name="Rome")]


def test_a_native_answer_is_text() -> None:
    events = (
        StepStarted(0),
        started(),
        delta('{"name": "call"}'),
        TextDelta(0, '{"name": "Ro'),
        TextDelta(0, 'me"'),
        TextDelta(0, "}"),
        StepStarted(1),
        TextDelta(1, '{"name": "Paris"}'),
    )
    assert snapshots(City, *events, native=True) == [City(name="Ro"), City(name="Rome"), City(name="Paris")]


def test_subscriptions_know_nothing_of_each_other() -> None:
    time = VirtualTime()
    source = time.create_hot_observable(
        on_next(210, started()), on_next(220, delta('{"name": "Ro')), on_next(230, delta('me"}')), on_completed(240)
    )
    applied = source.pipe(partial_output(City))
    first, late = time.create_observer(), time.create_observer()
    time.schedule_absolute(200, lambda *_: applied.subscribe(first, scheduler=time))
    time.schedule_absolute(225, lambda *_: applied.subscribe(late, scheduler=time))
    time.start()
    assert emissions(first.messages) == [City(name="Ro"), City(name="Rome")]
    # it has not seen where the call began
    assert_messages(late.messages, on_completed(240))


def test_errors_pass_and_disposal_disposes() -> None:
    time, error = VirtualTime(), RuntimeError("x")
    source = time.create_cold_observable(on_next(10, started()), on_error(20, error))
    observer = time.start(lambda: source.pipe(partial_output(City)))
    assert failure(observer.messages) is error
    time = VirtualTime()
    source = time.create_cold_observable(on_next(10, started()), on_next(50, delta('{"name": "x"}')))
    observer = time.start(lambda: source.pipe(partial_output(City)), disposed=230)
    assert observer.messages == []
    assert source.subscriptions == [subscribe(200, 230)]


@pytest.mark.parametrize("kind", [object(), "City", {"type": "object"}, Output(City)])
def test_the_type_is_checked_at_once(kind: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^output must "):
        partial_output(kind)
