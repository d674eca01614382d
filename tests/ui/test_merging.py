"""Runs of deltas made one."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rxloop.events import (
    ReasoningDelta,
    StepStarted,
    TextDelta,
    ToolCallDelta,
    ToolCallReceived,
    ToolCallStarted,
    ToolProgress,
)
from rxloop.merging import merge_adjacent


def _numbered(*events: Any) -> list[tuple[int, Any]]:
    return list(enumerate(events, start=1))


def test_nothing_stays_nothing() -> None:
    assert merge_adjacent([]) == []


@pytest.mark.parametrize(
    ("pieces", "whole"),
    [
        ([TextDelta(0, "It "), TextDelta(0, "is "), TextDelta(0, "5.")], TextDelta(0, "It is 5.")),
        ([ReasoningDelta(1, "2 and "), ReasoningDelta(1, "3")], ReasoningDelta(1, "2 and 3")),
        ([ToolCallDelta(0, "c1", '{"a"'), ToolCallDelta(0, "c1", ": 2}")], ToolCallDelta(0, "c1", '{"a": 2}')),
    ],
)
def test_a_run_becomes_one_event_with_the_last_number(pieces: Sequence[Any], whole: Any) -> None:
    assert merge_adjacent(_numbered(*pieces)) == [(len(pieces), whole)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (TextDelta(0, "a"), TextDelta(1, "b")),
        (TextDelta(0, "a"), ReasoningDelta(0, "b")),
        (ReasoningDelta(0, "a"), TextDelta(0, "b")),
        (ReasoningDelta(0, "a"), ReasoningDelta(1, "b")),
        (ToolCallDelta(0, "c1", "a"), ToolCallDelta(0, "c2", "b")),
        (ToolCallDelta(0, "c1", "a"), ToolCallDelta(1, "c1", "b")),
        (ToolCallDelta(0, "c1", "a"), TextDelta(0, "b")),
        (ToolProgress(0, "c1", "add", "a"), ToolProgress(0, "c1", "add", "b")),
        (ToolCallStarted(0, "c1", "add"), ToolCallDelta(0, "c1", "b")),
    ],
)
def test_what_is_not_of_one_kind_stays_as_it_is(first: Any, second: Any) -> None:
    events = _numbered(first, second)
    merged = merge_adjacent(events)
    assert merged == events
    assert all(after is before for (_, after), (_, before) in zip(merged, events, strict=True))


def test_another_event_ends_a_run() -> None:
    started = StepStarted(1)
    events = _numbered(TextDelta(0, "a"), TextDelta(0, "b"), started, TextDelta(0, "c"), TextDelta(0, "d"))
    assert merge_adjacent(events) == [(2, TextDelta(0, "ab")), (3, started), (5, TextDelta(0, "cd"))]


def test_an_empty_delta_merges_like_any_other() -> None:
    assert merge_adjacent(_numbered(TextDelta(0, ""), TextDelta(0, "a"))) == [(2, TextDelta(0, "a"))]


def test_merging_again_changes_nothing_and_the_source_is_left_alone() -> None:
    events = _numbered(TextDelta(0, "a"), TextDelta(0, "b"), ToolCallReceived(0, "c1", "add", {}))
    before = list(events)
    once = merge_adjacent(events)
    assert events == before
    assert merge_adjacent(once) == once


def _told(events: Sequence[tuple[int, Any]]) -> str:
    """What a reader knows at the end: every kind's text, and everything else in its place."""
    told: list[tuple[str, str]] = []
    for _, event in events:
        data = event.to_dict()
        said = data.pop("text", None) or data.pop("arguments", "") or ""
        key = json.dumps(data)
        if told and told[-1][0] == key and "delta" in key:
            told[-1] = (key, told[-1][1] + str(said))
        else:
            told.append((key, str(said)))
    return json.dumps(told)


@pytest.mark.parametrize("seed", range(20))
def test_a_reader_knows_the_same_wherever_the_events_were_cut(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - which events there are is no secret
    kinds: list[Callable[[], Any]] = [
        lambda: TextDelta(chance.randrange(2), chance.choice("abc")),
        lambda: ReasoningDelta(chance.randrange(2), chance.choice("abc")),
        lambda: ToolCallDelta(0, chance.choice(("c1", "c2")), chance.choice("abc")),
        lambda: StepStarted(1),
    ]
    events = _numbered(*(chance.choice(kinds[: chance.randrange(1, 5)])() for _ in range(60)))
    cut = chance.randrange(60)
    pieces = merge_adjacent(events[:cut]) + merge_adjacent(events[cut:])
    assert _told(pieces) == _told(events)
    assert merge_adjacent(pieces) == merge_adjacent(events)
    assert [number for number, _ in pieces] == sorted({number for number, _ in pieces})
    assert pieces[-1][0] == len(events)


def test_a_long_run_costs_what_its_text_costs() -> None:
    def seconds(length: int) -> float:
        events = _numbered(*(TextDelta(0, "word ") for _ in range(length)))
        began = time.perf_counter()
        [(_, whole)] = merge_adjacent(events)
        taken = time.perf_counter() - began
        assert len(whole.text) == 5 * length
        return taken

    # eight times as many deltas would take 64 times as long if each copied what came before it
    short = min(seconds(20_000) for _ in range(5))
    assert min(seconds(160_000) for _ in range(3)) < 30 * short
