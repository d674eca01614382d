from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import reactivex
from reactivex import Observable
from reactivex.subject import Subject
from reactivex.testing import ReactiveTest, TestScheduler

from rxloop import (
    AuthenticationError,
    ConfigurationError,
    RateLimitedError,
    RetryPolicy,
    RetryScheduled,
    RxLoopError,
    TextDelta,
    TimedOutError,
    ToolFinished,
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


@pytest.mark.parametrize("version", [2, "1", None, True, 1.0])
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


# what cannot be written


class Full:
    """A file on a disk that is full after some writes."""

    def __init__(self, writes: int, *, closes: bool = True) -> None:
        self.left = writes
        self.closes = closes
        self.closed = False

    def write(self, text: str) -> None:
        if not self.left:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.left -= 1

    def close(self) -> None:
        self.closed = True
        if not self.closes:
            raise OSError(errno.ENOSPC, "No space left on device")


class Watched:
    """What an observer and its source saw of a recording onto a full disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, file: Full) -> None:
        self.seen: list[TurnEvent] = []
        self.errors: list[Exception] = []
        self.completed = 0
        self.source: Subject[TurnEvent] = Subject()
        monkeypatch.setattr(Path, "open", lambda *_, **__: file)
        self.recorded = record_tape(self.source, "tape.jsonl", scheduler=TestScheduler())

    def subscribe(self) -> Any:
        return self.recorded.subscribe(self.seen.append, self.errors.append, self.complete)

    def complete(self) -> None:
        self.completed += 1

    def told(self) -> list[str]:
        assert all(isinstance(error, ConfigurationError) for error in self.errors)
        return [str(error) for error in self.errors]


FULL = "tape.jsonl cannot be written: No space left on device"


@pytest.mark.parametrize("closes", [True, False])
def test_a_disk_that_is_full_in_mid_turn_is_told_once(monkeypatch: pytest.MonkeyPatch, closes: bool) -> None:
    file = Full(2, closes=closes)
    watched = Watched(monkeypatch, file)
    watched.subscribe()
    for event in (A, B, C):
        watched.source.on_next(event)
    assert (watched.seen, watched.told(), watched.completed) == ([A], [FULL], 0)
    assert file.closed
    assert not watched.source.observers
    watched.subscribe()
    assert watched.told() == [FULL, FULL], "the header; not that another subscription records it"


def test_a_source_that_says_all_at_once_is_told_once_too(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, Full(2))
    recorded = record_tape(reactivex.of(A, B, C), "tape.jsonl", scheduler=TestScheduler())
    recorded.subscribe(watched.seen.append, watched.errors.append, watched.complete)
    assert (watched.seen, watched.told(), watched.completed) == ([A], [FULL], 0)


def test_a_tape_that_cannot_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, Full(9, closes=False))
    watched.subscribe()
    watched.source.on_completed()
    assert (watched.told(), watched.completed) == ([FULL], 0)
    watched.source = Subject()
    watched.subscribe().dispose()
    assert len(watched.errors) == 1


@pytest.mark.parametrize("file", [Full(1), Full(2, closes=False)])
def test_a_turns_own_failure_is_told_before_its_tapes(monkeypatch: pytest.MonkeyPatch, file: Full) -> None:
    watched = Watched(monkeypatch, file)
    watched.subscribe()
    failure = RateLimitedError("slow down")
    watched.source.on_error(failure)
    assert watched.errors == [failure]
    assert failure.__notes__ == [FULL]
    assert file.closed


def test_a_source_that_cannot_be_subscribed_leaves_no_recording(tmp_path: Path) -> None:
    def subscribe(*_: Any) -> Any:
        raise RuntimeError("no")

    recorded = record_tape(Observable(subscribe), tmp_path / "tape.jsonl", scheduler=TestScheduler())
    errors: list[Exception] = []
    for _ in range(2):
        recorded.subscribe(on_error=errors.append)
    assert [str(error) for error in errors] == ["no", "no"]


def recorded_lines(path: Path, *events: TurnEvent) -> list[dict[str, Any]]:
    errors: list[Exception] = []
    record_tape(reactivex.of(*events), path, scheduler=TestScheduler()).subscribe(on_error=errors.append)
    assert errors == []

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text("utf-8").splitlines()][1:]


def test_half_a_character_is_written(tmp_path: Path) -> None:
    event = TextDelta(0, "a\ud83d")
    recorded_lines(tmp_path / "tape.jsonl", event, A)
    seen: list[TurnEvent] = []
    replay_tape(tmp_path / "tape.jsonl").subscribe(seen.append)
    assert seen == [event, A]


def test_numbers_that_json_does_not_have_are_null(tmp_path: Path) -> None:
    output = {"a": [float("nan"), 1.5], "b": (float("inf"),), float("-inf"): 1, ("x", 2): 2}
    (line,) = recorded_lines(tmp_path / "tape.jsonl", ToolFinished(0, "c", "t", output, None, False, 0.5))
    assert line["output"] == {"a": [None, 1.5], "b": [None], "-inf": 1, "('x', 2)": 2}


SECRET = (
    "bad key sk-ant-api03-abcdefghijklmnop authorization: Bearer zzz\nAKIAABCDEFGHIJKLMNOP AIza" + "x" * 35 + "\n"
    "x-amz-security-token:SESSIONTOKEN arn:aws:iam::210987654321:user/me"
)
PUBLIC = (
    "bad key recorded authorization: Bearer recorded\nrecorded recorded\n"
    "x-amz-security-token:recorded arn:aws:iam::000000000000:recorded"
)


def test_what_an_error_quotes_is_recorded_without_secrets(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    retry = RetryScheduled(0, 1, 0.5, RateLimitedError(SECRET).to_dict())
    first, second, third = recorded_lines(
        path, retry, ToolFinished(0, "c", "t", None, SECRET, False, 0.5), TextDelta(0, SECRET)
    )
    assert first["error"]["message"] == PUBLIC
    assert second["error"] == PUBLIC
    assert third["text"] == SECRET, "text is recorded as it is"
    record_tape(reactivex.throw(AuthenticationError(SECRET)), path, scheduler=TestScheduler()).subscribe(
        on_error=lambda _: None
    )
    errors: list[Exception] = []
    replay_tape(path).subscribe(on_error=errors.append)
    assert [str(error) for error in errors] == [PUBLIC]


# what a crash leaves


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("cut", [b'{"type":"text_de', b'{"type":"text_delta","step":0,"text":"gr\xc3'])
@pytest.mark.parametrize("events", [[], [A], [A, B]])
def test_a_last_line_that_was_cut_off_is_left_out(
    tmp_path: Path, start: bytes, cut: bytes, events: list[TurnEvent]
) -> None:
    path = write(tmp_path / "tape.jsonl", {"type": "tape", "version": 1}, *[event.to_dict() for event in events])
    path.write_bytes(start + path.read_bytes() + cut)
    seen: list[TurnEvent] = []
    replay_tape(path).subscribe(seen.append)
    assert seen == events


@pytest.mark.parametrize(
    ("content", "said"),
    [(b'{"type":"ta', "line 1"), (b'{"type":"x"}\n{"a":"\xc3"}\n', "is not text"), (b"\xc3", "empty")],
)
def test_what_no_crash_leaves_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "tape.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=said):
        replay_tape(path)
