"""A turn's events as one line of marbles, and a check against such a line."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Any

from rxloop.events import TurnEvent

__all__ = ("MARBLES", "assert_marbles", "marbles")

MARBLES = {
    "turn_started": "T",
    "step_started": "S",
    "context_reclaimed": "X",
    "retry_scheduled": "~",
    "reasoning_delta": "r",
    "text_delta": "t",
    "tool_call_started": "c",
    "tool_call_delta": "a",
    "tool_call": "C",
    "step_finished": "F",
    "usage_updated": "u",
    "tool_started": "<",
    "tool_progress": "p",
    "tool_finished": ">",
    "malformed_retried": "M",
    "turn_finished": "|",
}
"""The marble of every event. An event of a later version is ``?``, a failure ``#``."""

_UNKNOWN = "?"
_FAILURE = "#"
_REPEATS = "+*"
_KNOWN = frozenset([*MARBLES.values(), _UNKNOWN, _FAILURE])


def marbles(events: Iterable[TurnEvent], *, error: Exception | None = None, collapse: bool = True) -> str:
    """
    A turn as one line: a marble an event, a space before every step.

    ``T SccaaCFu<> Stt+Fu|`` would be a step with two calls … and an answer. See `MARBLES` for what is what.

    Args:
        events: what a subscription received.
        error: what it ended with, drawn as ``#``.
        collapse: draw three and more of the same in a row as one with a ``+``.
    """
    line = "".join(MARBLES.get(event.type, _UNKNOWN) for event in events) + (_FAILURE if error is not None else "")
    if collapse:
        line = re.sub(r"(.)\1{2,}", r"\1+", line)
    return re.sub(r"(?<=.)S", " S", line)


def assert_marbles(events: Iterable[TurnEvent], expected: str, *, error: Exception | None = None) -> None:
    """
    Check that a turn's events are those of a line of marbles.

    In ``expected`` spaces and dashes mean nothing, ``t+`` is one or more of a marble, ``t*`` any number, none included,
    and ``(<>)`` a group in any order. Everything else is one event each. ``+`` and ``*`` are greedy: they take all of
    their marble that come, and leave only what the same marble right behind them needs, so ``t* t`` fits ``tt``, but
    ``t* (tF)`` does not fit ``tF``.

    Args:
        events: what a subscription received.
        expected: the line, as in ``T S r* t+ F u |``.
        error: what it ended with, which is the marble ``#``.

    Raises:
        AssertionError: the first event that does not fit, what came before it, and what was expected there.
        ValueError: ``expected`` is no line of marbles.
    """
    __tracebackhide__ = True
    received = list(events)
    line = "".join(MARBLES.get(event.type, _UNKNOWN) for event in received) + (_FAILURE if error is not None else "")
    position, wanted = _match(_parsed(expected), line)
    if wanted is None:
        return
    shown = received[position] if position < len(received) else error if position < len(line) else "the end"
    before = [
        f"    {index:3} {received[index]!r:.120}" for index in range(max(0, position - 3), min(position, len(received)))
    ]
    raise AssertionError(
        "\n".join(
            [
                f"expected {wanted}, but got {shown!r}" if shown != "the end" else f"expected {wanted}, but it ended",
                f"  expected: {expected}",
                f"  received: {marbles(received, error=error, collapse=False)}",
                f"            {' ' * _drawn(line, position)}^",
                *before,
            ]
        )
    )


class _Group:
    """Marbles that come in any order."""

    def __init__(self, members: str) -> None:
        self.members = members


def _parsed(expected: str) -> list[tuple[str | _Group, str]]:
    """The marbles of a line, each with how often it may come: ``1``, ``+`` or ``*``."""
    parts: list[tuple[str | _Group, str]] = []
    bare = re.sub(r"[\s-]", "", expected)
    position = 0
    while position < len(bare):
        marble = bare[position]
        position += 1
        if marble == "(":
            end = bare.find(")", position)
            if end < 0:
                raise ValueError(f"a group must end with ')', but {expected!r} has one that does not")
            members = bare[position:end]
            if not members:
                raise ValueError(f"a group must have a marble, but {expected!r} has one without")
            _check(members, expected)
            parts.append((_Group(members), "1"))
            position = end + 1
            continue
        _check(marble, expected)
        times = "1"
        if position < len(bare) and bare[position] in _REPEATS:
            times = bare[position]
            position += 1
        parts.append((marble, times))
    return parts


def _check(marbles_: str, expected: str) -> None:
    for marble in marbles_:
        if marble not in _KNOWN:
            raise ValueError(f"a marble must be one of {''.join(sorted(_KNOWN))}, but {expected!r} has {marble!r}")


def _match(parts: list[tuple[str | _Group, str]], line: str) -> tuple[int, str | None]:
    """Where the line stops fitting and what was expected there; ``None`` where all of it fits."""
    position = 0
    for index, (part, times) in enumerate(parts):
        if isinstance(part, _Group):
            found = line[position : position + len(part.members)]
            if sorted(found) != sorted(part.members):
                left = list(part.members)
                for offset, marble in enumerate(found):
                    if marble not in left:
                        return position + offset, f"one of {' '.join(map(_named, left))}"
                    left.remove(marble)
                return position + len(found), f"one of {' '.join(map(_named, left))}"
            position += len(part.members)
            continue
        if times != "*":
            if line[position : position + 1] != part:
                return position, _named(part)
            position += 1
        if times != "1":
            # as many as leave their own to the same that follow at once
            following = _following(parts[index + 1 :], part)
            while line[position : position + 1] == part and _run(line, position, part) > following:
                position += 1
    return position, None if position == len(line) else "the end"


def _following(parts: list[tuple[str | _Group, str]], marble: str) -> int:
    same = itertools.takewhile(lambda part: part[0] == marble, parts)
    return sum(1 for _, often in same if often != "*")


def _run(line: str, position: int, marble: str) -> int:
    end = position
    while line[end : end + 1] == marble:
        end += 1
    return end - position


def _named(marble: Any) -> str:
    names = {value: key for key, value in MARBLES.items()} | {_UNKNOWN: "an unknown event", _FAILURE: "a failure"}
    return f"{marble} ({names[marble]})"


def _drawn(line: str, position: int) -> int:
    """Where a marble is in the line as it is shown, with a space before every step."""
    return (
        len(re.sub(r"(?<=.)S", " S", line[: position + 1])) - 1
        if position < len(line)
        else len(re.sub(r"(?<=.)S", " S", line))
    )
