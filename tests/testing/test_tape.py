from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from reactivex.subject import Subject
from reactivex.testing import ReactiveTest, TestScheduler

from rxloop import (
    ConfigurationError,
    RateLimitedError,
    RetryPolicy,
    RxLoopError,
    TextDelta,
    TimedOutError,
    Turn,
    TurnEvent,
    UnknownEvent,
    event_from_dict,
    iterate,
)
from rxloop.testing import ScriptedAdapter, record_tape, replay_tape

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


# recording


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def scripted(*steps: Any) -> Turn:
    return Turn(ScriptedAdapter(*steps), "hello", retry=RetryPolicy(retries=0), turn_id="t")


@pytest.mark.asyncio
async def test_what_is_recorded_is_played_again(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    live = [event async for event in iterate(record_tape(scripted(["Grüße, ", "all."]), path))]
    assert lines(path)[0] == {"type": "tape", "version": 1, "time": 0.0}
    assert [event_from_dict(line) for line in lines(path)[1:]] == live
    assert [event async for event in iterate(replay_tape(path))] == live


def test_times_are_those_of_the_scheduler(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    scheduler = TestScheduler()
    source = scheduler.create_cold_observable(on_next(20, A), on_next(50, B), on_completed(60))
    results = scheduler.start(lambda: record_tape(source, path))
    assert results.messages == [on_next(220, A), on_next(250, B), on_completed(260)]
    assert [line["time"] for line in lines(path)] == [0.0, 20.0, 50.0]
    again = TestScheduler()
    assert again.start(lambda: replay_tape(path, speed=1)).messages == [
        on_next(220, A),
        on_next(250, B),
        on_completed(250),
    ]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "error", [RateLimitedError("slow down", status=429), TimedOutError("silent", clock="stall"), ValueError("odd")]
)
async def test_a_failure_is_played_again(tmp_path: Path, error: Exception) -> None:
    path = tmp_path / "tape.jsonl"
    with pytest.raises(type(error)):
        async for _ in iterate(record_tape(scripted(["so ", error]), path)):
            pass
    seen: list[TurnEvent] = []
    failures: list[Exception] = []
    replay_tape(path).subscribe(seen.append, failures.append)
    [caught] = failures
    assert [event.type for event in seen] == ["turn_started", "step_started", "text_delta"]
    if isinstance(error, RxLoopError):
        assert type(caught) is type(error)
        assert isinstance(caught, RxLoopError)
        assert caught.to_dict() == error.to_dict()
    else:
        assert str(caught) == "ValueError: odd"


def test_every_event_is_on_the_disk_before_it_is_passed_on(tmp_path: Path) -> None:
    """So that a crash leaves a tape up to it; a line that it cut off is left out."""
    path = tmp_path / "tape.jsonl"
    source: Subject[TurnEvent] = Subject()
    counts: list[int] = []
    subscription = record_tape(source, path, scheduler=TestScheduler()).subscribe(
        lambda event: counts.append(len(lines(path)))
    )
    source.on_next(A)
    source.on_next(B)
    assert counts == [2, 3]
    subscription.dispose()
    with path.open("a", encoding="utf-8") as file:
        file.write('{"type":"text_delta","st')
    seen: list[TurnEvent] = []
    replay_tape(path).subscribe(seen.append)
    assert seen == [A, B]


def test_a_path_is_recorded_by_one_subscription_at_a_time(tmp_path: Path) -> None:
    errors: list[Exception] = []
    recorded = record_tape(Subject(), tmp_path / "tape.jsonl", scheduler=TestScheduler())
    first = recorded.subscribe()
    recorded.subscribe(on_error=errors.append)
    assert isinstance(errors[0], ConfigurationError)
    assert "another subscription" in str(errors[0])
    first.dispose()
    recorded.subscribe(on_error=errors.append).dispose()
    assert len(errors) == 1


def test_a_tape_that_cannot_be_written(tmp_path: Path) -> None:
    errors: list[Exception] = []
    record_tape(Subject(), tmp_path / "missing" / "tape.jsonl", scheduler=TestScheduler()).subscribe(
        on_error=errors.append
    )
    assert isinstance(errors[0], ConfigurationError)


@pytest.mark.parametrize("version", [2, "1", None])
def test_a_tape_of_a_later_version_is_refused(tmp_path: Path, version: Any) -> None:
    path = write(tmp_path / "tape.jsonl", {"type": "tape", "version": version}, A.to_dict())
    with pytest.raises(ConfigurationError, match="the version of a tape must be 1"):
        replay_tape(path)


@pytest.mark.asyncio
async def test_a_tape_is_small(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    async for _ in iterate(record_tape(scripted(["word "] * 1000), path)):
        pass
    # the piece of text itself included
    assert path.stat().st_size / len(lines(path)) < 70
