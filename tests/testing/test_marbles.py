"""A turn as a line of marbles, and checked against one."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rxloop import Turn, tool
from rxloop.errors import ServerError
from rxloop.events import UnknownEvent, event_from_dict
from rxloop.testing import CallTool, ScriptedAdapter, Think, assert_marbles, marbles
from rxloop.testing.marbles import MARBLES


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def events_of(*steps: Any) -> list[Any]:
    return [event async for event in Turn(ScriptedAdapter(*steps), "What is 1+2?", tools=[add])]


CALL = CallTool("add", {"a": 1, "b": 2})


@pytest.mark.asyncio
async def test_a_turn_is_one_line() -> None:
    events = await events_of([Think("hm"), "I add.", CALL], ["It ", "is ", "3", "."])
    assert marbles(events) == "T SrtcaCFu<> St+Fu|"
    assert marbles(events, collapse=False) == "T SrtcaCFu<> SttttFu|"
    assert marbles(events[:3], error=ServerError("no")) == "T Sr#"
    assert marbles([]) == ""


def test_every_event_has_a_marble_of_its_own() -> None:
    from rxloop import events

    types = {getattr(events, name).type for name in events.__all__ if hasattr(getattr(events, name), "type")}
    assert set(MARBLES) == types - {"unknown"}
    assert len(set(MARBLES.values())) == len(MARBLES)
    assert marbles([UnknownEvent({"type": "hologram"})]) == "?"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "expected",
    [
        "TSrtcaCFu<>SttttFu|",
        "T--S--r-t-c-a-C-F-u-<->--S-t-t-t-t-F-u-|",
        "T S r t c a C F u < > S t+ F u |",
        "T S r+ t+ c a+ C F u <+ >+ S t+ t F u |",
        "T S ~* r* t+ c a* C F u < > S r* t+ F u |",
        "T S r t c a C F u (><) S (tttt) F u |",
        "T S r* t* c* a* C F u < > S t* F u |",
        "T S r t c a C F u < > S t* t+ t F u |",
    ],
)
async def test_what_fits(expected: str) -> None:
    assert_marbles(await events_of([Think("hm"), "I add.", CALL], ["It ", "is ", "3", "."]), expected)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("expected", "said", "place"),
    [
        ("T S t+ F u |", "expected t (text_delta), but got ReasoningDelta(step=0, text='hm')", 3),
        ("T S r F u |", "expected F (step_finished), but got TextDelta(step=0, text='3')", 4),
        ("T S r t F u | #", "expected # (a failure), but it ended", 8),
        ("T S r t F u", "expected the end, but got TurnFinished(", 7),
        ("T S r t (uF) ~ |", "expected ~ (retry_scheduled), but got TurnFinished(", 7),
        ("T S r t (u<) |", "expected one of u (usage_updated) < (tool_started), but got StepFinished(", 5),
        ("T S r t+ t F u |", "expected t (text_delta), but got StepFinished(", 5),
    ],
)
async def test_what_does_not_fit_is_shown(expected: str, said: str, place: int) -> None:
    events = await events_of([Think("hm"), "3"])
    with pytest.raises(AssertionError, match=re.escape(said)) as caught:
        assert_marbles(events, expected)
    lines = str(caught.value).splitlines()
    assert lines[1] == f"  expected: {expected}"
    assert lines[2] == "  received: T SrtFu|"
    assert lines[3].index("^") - len("  received: ") == place


def test_a_failure_is_a_marble() -> None:
    assert_marbles([], "#", error=ServerError("no"))
    with pytest.raises(AssertionError, match=r"expected t \(text_delta\), but got ServerError\('no'\)"):
        assert_marbles([], "t", error=ServerError("no"))


@pytest.mark.parametrize(
    ("line", "said"),
    [("T x", "has 'x'"), ("T (ab", "must end with"), ("T ()", "must have a marble"), ("+", r"has '\+'")],
)
def test_what_is_no_line_of_marbles(line: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        assert_marbles([event_from_dict({"type": "hologram"})], line)


def test_repeats_are_greedy() -> None:
    events: list[Any] = [event_from_dict({"type": "text_delta", "step": 0, "text": "a"})]
    assert_marbles(events * 2, "t* t")
    with pytest.raises(AssertionError, match="expected one of t"):
        assert_marbles(events, "t* (t)")


def test_a_failing_check_is_shown_where_it_was_asked_for() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_marbles([], "t")
    assert caught.traceback[-1].ishidden(caught)
