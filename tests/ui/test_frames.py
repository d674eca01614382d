"""JSON of whatever a turn may hold, and the plainest of the formats."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel, computed_field

from rxloop.events import StepStarted, TextDelta, ToolCallDelta, TurnFinished
from rxloop.ui import AguiFrames, EventFrames, UIMessageFrames
from rxloop.ui.frames import Frames, json_text, quoted, whole
from rxloop.usage import Usage


class Point(BaseModel):
    x: int


class Odd:
    def __str__(self) -> str:
        return "odd \ud800"


class Faulty:
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Computed(BaseModel):
    x: int = 1

    @computed_field  # type: ignore[prop-decorator]
    @property
    def y(self) -> int:
        raise KeyError("y")


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


HOLDS_ITSELF: dict[str, Any] = {"a": 1}
HOLDS_ITSELF["self"] = [HOLDS_ITSELF]


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ({"a": [1, 2.5, None, True, "ü"]}, {"a": [1, 2.5, None, True, "ü"]}),
        ([float("nan"), float("inf")], [None, None]),
        (Point(x=1), {"x": 1}),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
        (b"\xff", "_w=="),
        ({"\ud800": ["\udc00", {1}]}, {"\ufffd": ["\ufffd", [1]]}),
        ([Odd()], ["odd \ufffd"]),
        (HOLDS_ITSELF, {"a": 1, "self": ["..."]}),
        ([Faulty()], ["Faulty, whose __str__ raised RuntimeError"]),
        ({Faulty(): 1}, {"Faulty, whose __str__ raised RuntimeError": 1}),
        ([Computed()], ["Computed, whose __str__ raised KeyError"]),
        (nested(220), nested(220)),
    ],
)
def test_any_value_has_a_json_form(value: Any, read: Any) -> None:
    assert json.loads(json_text(value)) == read


@pytest.mark.parametrize("depth", [300, 5000])
def test_what_is_too_deep_is_cut(depth: int) -> None:
    assert "..." in json_text(nested(depth))


@pytest.mark.parametrize("output", [Faulty(), Computed(), nested(220), nested(5000), {"a": "\ud800"}])
@pytest.mark.parametrize("make", [AguiFrames, UIMessageFrames, EventFrames])
def test_an_end_is_told_whatever_its_output(make: type[Frames], output: Any) -> None:
    frames = make(turn_id="turn", thread_id="thread", run_id="run")
    [*_, last] = frames.feed(TurnFinished("", output, "stop", None, Usage(), 1, ()))
    last.encode()
    assert json.loads(last)["type"] in ("RUN_FINISHED", "finish", "turn_finished")


def test_halves_of_a_character_that_belong_together_are_joined() -> None:
    assert whole("\ud83d\ude00 \ude00\ud83d") == "😀 \ufffd\ufffd"
    assert json.loads(quoted('"\ud83d')) == '"\ufffd'


def test_a_frame_is_the_events_json() -> None:
    frames = EventFrames()
    assert frames.feed(TextDelta(0, 'a"\n')) == ('{"type":"text_delta","step":0,"text":"a\\"\\n"}',)
    [frame] = frames.feed(ToolCallDelta(1, "c", '{"x'))
    assert json.loads(frame) == ToolCallDelta(1, "c", '{"x').to_dict()
    assert (frames.done, frames.headers) == (None, {})


@pytest.mark.parametrize("event", [TextDelta(0, 'a"'), ToolCallDelta(0, "c", "{"), StepStarted(3)])
def test_the_events_own_frames_tell_their_time(event: Any) -> None:
    frames = EventFrames(turn_id="t")
    [untimed], [timed] = frames.feed(event), frames.feed(event, 1.25)
    assert json.loads(untimed) == event.to_dict()
    assert json.loads(timed) == {**event.to_dict(), "time": 1.25}
    assert timed.endswith(',"time":1.25}')
