from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from reactivex.testing import ReactiveTest, TestScheduler

from rxloop import ConfigurationError, TextDelta, TurnEvent, UnknownEvent, iterate
from rxloop.testing import replay_tape

on_next, on_completed = ReactiveTest.on_next, ReactiveTest.on_completed

A, B, C = (TextDelta(0, letter) for letter in "abc")


def write(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(
        tmp_path / "tape.jsonl",
        {**A.to_dict(), "time": 100.0},
        {**B.to_dict(), "time": 120.0},
        {**C.to_dict()},
        {"type": "hologram", "time": 130, "depth": 3},
    )


def test_time_passes_as_on_the_tape(path: Path) -> None:
    scheduler = TestScheduler()
    results = scheduler.start(lambda: replay_tape(path, speed=1))
    unknown = UnknownEvent({"type": "hologram", "time": 130, "depth": 3})
    assert results.messages == [
        on_next(200, A),
        on_next(220, B),
        on_next(220, C),
        on_next(230, unknown),
        on_completed(230),
    ]


def test_speed_scales_it(path: Path) -> None:
    scheduler = TestScheduler()
    results = scheduler.start(lambda: replay_tape(path, speed=2))
    assert [message.time for message in results.messages] == [200, 210, 210, 215, 215]


def test_at_once_by_default(path: Path) -> None:
    scheduler = TestScheduler()
    results = scheduler.start(lambda: replay_tape(path))
    assert [message.time for message in results.messages] == [200] * 5


def test_disposing_cancels_the_wait(path: Path) -> None:
    scheduler = TestScheduler()
    results = scheduler.start(lambda: replay_tape(path, speed=1), disposed=210)
    assert results.messages == [on_next(200, A)]


def test_a_scheduler_of_its_own_and_time_that_goes_back(tmp_path: Path) -> None:
    path = write(tmp_path / "tape.jsonl", {**A.to_dict(), "time": 5}, {**B.to_dict(), "time": 2})
    scheduler = TestScheduler()
    seen: list[TurnEvent] = []
    replay_tape(path, speed=1, scheduler=scheduler).subscribe(seen.append)
    assert seen == [A, B]


@pytest.mark.asyncio
async def test_a_lagging_reader_pauses_it(tmp_path: Path) -> None:
    path = write(tmp_path / "tape.jsonl", *[TextDelta(0, str(number)).to_dict() for number in range(1000)])
    async with iterate(replay_tape(path), buffer=8) as events:
        assert [event.to_dict()["text"] async for event in events] == [str(number) for number in range(1000)]
        assert events.peak_buffered <= 8


@pytest.mark.asyncio
async def test_an_unknown_event_survives(path: Path) -> None:
    events = [event async for event in iterate(replay_tape(path))]
    assert events[-1].to_dict() == {"type": "hologram", "time": 130, "depth": 3}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        ('{"type": "text_delta"}\nnonsense\n', "line 2: it must be one JSON object, but is not JSON"),
        ("[1]\n", "line 1: it must be an event, an object with a type"),
        ('{"text": "a"}\n', "line 1: it must be an event, an object with a type"),
        ('{"type": "text_delta", "step": "x", "text": "a"}\n', "line 1: step of a text_delta must not be 'x'"),
        ('{"type": "text_delta", "step": 0, "text": 5}\n', "line 1: text of a text_delta must not be 5"),
        ('{"type": "usage_updated", "usage": {"input_tokens": "x"}}\n', "line 1: usage of a usage_updated"),
        ('{"type": "turn_finished", "tool_calls": 3}\n', "line 1: tool_calls of a turn_finished must not be 3"),
        ('{"type": "x", "time": "5"}\n', "line 1: time must be a number of seconds, but got '5'"),
        ('{"type": "x", "time": true}\n', "line 1: time must be a number of seconds, but got True"),
        ('{"type": "x"}\n{"type": "x", "time": NaN}\n', "line 2: time must be a number of seconds, but got nan"),
        ('{"type": "x", "time": 1e999}\n', "line 1: time must be a number of seconds, but got inf"),
        (f'{{"type": "x", "time": {"9" * 400}}}\n', "line 1: time must be a number of seconds"),
        ("[" * 100_000, "line 1: it is nested too deeply"),
        ('{"type": "x", "a": ' + "[" * 100_000, "line 1: it is nested too deeply"),
    ],
)
def test_a_file_that_is_no_tape_is_named(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "tape.jsonl"
    path.write_text(content, "utf-8")
    with pytest.raises(ConfigurationError, match=said):
        replay_tape(path)


def test_what_a_later_version_may_say_is_no_mistake(tmp_path: Path) -> None:
    lines = [
        {"type": "text_delta", "step": 0},
        {"type": "turn_finished", "finish_reason": "a_reason_of_the_future"},
        {"type": "hologram", "step": "x", "time": None},
    ]
    results = TestScheduler().start(lambda: replay_tape(write(tmp_path / "tape.jsonl", *lines)))
    assert [message.value.value for message in results.messages[:-1]] == [UnknownEvent(line) for line in lines]


def test_a_wait_is_never_longer_than_a_timer_takes(tmp_path: Path) -> None:
    path = write(tmp_path / "tape.jsonl", {**A.to_dict(), "time": -9e14}, {**B.to_dict(), "time": 9e14})
    results = TestScheduler().start(lambda: replay_tape(path, speed=1e-300), disposed=2e9)
    assert results.messages == [on_next(200, A), on_next(1e9 + 200, B), on_completed(1e9 + 200)]


@pytest.mark.parametrize("speed", [-1, float("nan"), float("inf"), True, "fast"])
def test_a_speed_that_breaks_its_rule(path: Path, speed: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"speed must be >= 0, but got"):
        replay_tape(path, speed=speed)
