"""A turn drawn over time."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from rxloop import Turn, tool
from rxloop.errors import ServerError
from rxloop.events import TextDelta, ToolCallReceived, ToolCallStarted, ToolFinished
from rxloop.operators import RetryPolicy
from rxloop.testing import CallTool, ScriptedAdapter, Think, Timeline, record_tape

SVG = "{http://www.w3.org/2000/svg}"
AT_ONCE = RetryPolicy(first_delay=0, max_delay=0)
BROKEN = ServerError("down for <maintenance>")


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def fail() -> int:
    """Fail."""
    raise ValueError("<script>alert(1)</script>")


def turn() -> Turn:
    adapter = ScriptedAdapter(
        [BROKEN], [Think("hm"), CallTool("add", {"a": 1, "b": 2}), CallTool("fail")], ["It is ", "3."]
    )
    return Turn(adapter, "What is 1+2?", tools=[add, fail], retry=AT_ONCE)


def titles(timeline: Timeline) -> list[str]:
    return [str(title.text) for title in ET.fromstring(timeline.svg()).iter(f"{SVG}title")]  # noqa: S314


@pytest.mark.asyncio
async def test_a_run_is_drawn() -> None:
    timeline = await Timeline.record(turn())
    assert timeline.marbles == "T S~rcaCcaCFu<<>> SttFu|"
    said = [title.partition(" (")[0] for title in titles(timeline)]
    assert said[0].startswith("A turn over")
    assert said[1:] == [
        "retry 1 in 0.0 s",
        "hm",
        "add: arguments",
        "fail: arguments",
        "step 0",
        "add",
        "fail: the tool failed: ValueError: <script>alert(1)</script>",
        "It is ",
        "3.",
        "step 1",
    ]
    drawing = ET.fromstring(timeline.svg())  # noqa: S314
    lanes = [str(text.text) for text in drawing.iter(f"{SVG}text") if text.get("x") == "8"]
    assert lanes == ["trouble", "reasoning", "add", "fail", "steps", "usage", "text"]


@pytest.mark.asyncio
async def test_model_text_is_never_markup() -> None:
    timeline = await Timeline.record(turn())
    assert "<script>alert" not in timeline.svg()
    assert "&lt;script&gt;alert(1)" in timeline.svg()


@pytest.mark.asyncio
async def test_a_failure_is_a_part_of_the_drawing() -> None:
    timeline = await Timeline.record(Turn(ScriptedAdapter(["so ", BROKEN]), "x"))
    assert timeline.error is BROKEN
    assert timeline.marbles == "T St#"
    assert titles(timeline)[-1].startswith("ServerError: down for <maintenance>")


@pytest.mark.asyncio
async def test_a_tape_is_drawn_with_its_own_times(tmp_path: Path) -> None:
    live = await Timeline.record(record_tape(turn(), tmp_path / "tape.jsonl"))
    played = Timeline.from_tape(tmp_path / "tape.jsonl")
    assert played.marbles == live.marbles
    assert played.seconds == pytest.approx(live.seconds, abs=0.01)


@pytest.mark.asyncio
async def test_a_notebook_shows_it() -> None:
    timeline = await Timeline.record(turn())
    bundle = timeline._repr_mimebundle_()
    assert bundle["image/svg+xml"] == timeline._repr_svg_()
    assert bundle["text/plain"] == repr(timeline)
    assert repr(timeline).endswith(" s T S~rcaCcaCFu<<>> SttFu|>")


def test_nothing_is_an_empty_frame() -> None:
    timeline = Timeline([])
    assert titles(timeline) == ["A turn over 0.00 seconds"]
    assert timeline._repr_mimebundle_()["image/svg+xml"] == timeline._repr_svg_() == timeline.svg()


def test_a_failure_alone_is_drawn() -> None:
    assert titles(Timeline([], BROKEN))[1:] == ["ServerError: down for <maintenance> (0.00 s)"]


@pytest.mark.parametrize("odd", ["\x1b", "\x00", "\x01", "\uffff", "\ud83d"])
def test_what_xml_cannot_have_is_replaced(odd: str) -> None:
    name = f"a{odd}b"
    events = [
        TextDelta(0, f"x{odd}"),
        ToolCallStarted(0, "c", name),
        ToolCallReceived(0, "c", name, {}),
        ToolFinished(0, "c", name, None, odd, False, 0.1),
    ]
    timeline = Timeline(((float(moment), event) for moment, event in enumerate(events)), ValueError(odd))
    timeline.svg().encode()
    said = [title.partition(" (")[0] for title in titles(timeline)]
    assert said[1:] == ["x\ufffd", "a\ufffdb: arguments", "a\ufffdb: \ufffd", "ValueError: \ufffd"]
    lanes = [str(text.text) for text in ET.fromstring(timeline.svg()).iter(f"{SVG}text") if text.get("x") == "8"]  # noqa: S314
    assert lanes == ["text", "a\ufffdb", "trouble"]
