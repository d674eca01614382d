"""Where a request lets the provider keep its beginning in a cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rxloop.errors import ConfigurationError

__all__ = ("Block", "CachePlan", "Lifetime", "check_lifetime", "lifetime_of", "marker", "plan_cache_points")

Lifetime = Literal["5m", "1h"]
"""How long the provider keeps what was marked, counted from its last use."""

_MOST = 4


@dataclass(frozen=True, slots=True)
class Block:
    """
    A block of a request as the planner sees it.

    Args:
        fit: whether it can carry a marker.
        marked: the lifetime of the marker that the caller gave it; ``None`` if there is none.
        inner: those of the markers within it, as in the content of a tool's result; they come before its own.
    """

    fit: bool = True
    marked: Lifetime | None = None
    inner: tuple[Lifetime, ...] = ()

    def marks(self) -> tuple[Lifetime, ...]:
        """All its markers."""
        return self.inner if self.marked is None else (*self.inner, self.marked)


@dataclass(frozen=True, slots=True)
class CachePlan:
    """
    What to mark, each with its lifetime.

    Args:
        tool: the place of a tool.
        system: the place of a block of the system prompt.
        messages: the places of blocks in messages: message, block.
    """

    tool: tuple[int, Lifetime] | None = None
    system: tuple[int, Lifetime] | None = None
    messages: dict[tuple[int, int], Lifetime] = field(default_factory=dict)


def check_lifetime(cache: Lifetime | None) -> None:
    """
    Check the setting of an adapter.

    Raises:
        ConfigurationError: it is no lifetime.
    """
    if cache not in (None, "5m", "1h"):
        raise ConfigurationError(f"cache must be '5m', '1h' or None, but got {cache!r}")


def lifetime_of(marker: Any) -> Lifetime | None:
    """The lifetime that a marker asks for; ``None`` if it is none."""
    if not isinstance(marker, Mapping):
        return None
    return "1h" if marker.get("ttl") == "1h" else "5m"


def marker(kind: str, lifetime: Lifetime) -> dict[str, Any]:
    """A marker of the provider's kind; five minutes are what it means without a word of them."""
    return {"type": kind} if lifetime == "5m" else {"type": kind, "ttl": lifetime}


def plan_cache_points(
    tools: Sequence[Block],
    system: Sequence[Block],
    messages: Sequence[Sequence[Block]],
    *,
    lifetime: Lifetime,
    users: Sequence[bool],
    most: int = _MOST,
) -> CachePlan:
    """
    Choose the markers of a request: one behind what never changes, and a rolling tail of the history.

    The last block of the system prompt stands for the tools before it too, so that without one the last tool is marked.
    The tail is the end of the last message, and the end of the user's message before it, which is where the request
    before this one ended: there its entry is found, however much has been added since. The caller's own markers stay,
    and count.

    Args:
        tools: the tools, in the order in which they are sent.
        system: the blocks of the system prompt.
        messages: the blocks of every message.
        lifetime: of the markers that are added. Markers of an hour have to come before those of five minutes, so that
            the caller's own may overrule it.
        users: whether a message is the user's.
        most: how many markers a request may have.

    Source: https://platform.claude.com/docs/en/build-with-claude/prompt-caching
    """
    own = [mark for section in (tools, system, *messages) for block in section for mark in block.marks()]
    left = most - len(own)
    tool: tuple[int, Lifetime] | None = None
    last_system: tuple[int, Lifetime] | None = None
    if left > 0:
        place = _last(system)
        if place is not None:
            last_system = (
                place,
                _lifetime(lifetime, before=[tools, system[: place + 1]], after=[system[place + 1 :], *messages]),
            )
            left -= 1
        elif not system and (place := _last(tools)) is not None:
            tool = (place, _lifetime(lifetime, before=[tools[: place + 1]], after=[tools[place + 1 :], *messages]))
            left -= 1
    plan = CachePlan(tool, last_system)
    for index in _tails(users):
        if left <= 0:
            break
        place = _last(messages[index])
        if place is None:
            continue
        before = [tools, system, *messages[:index], messages[index][: place + 1]]
        plan.messages[index, place] = _lifetime(
            lifetime, before=before, after=[messages[index][place + 1 :], *messages[index + 1 :]]
        )
        left -= 1
    return plan


def _tails(users: Sequence[bool]) -> list[int]:
    """The last message, and the user's message before it."""
    if not users:
        return []
    last = len(users) - 1
    earlier = [index for index in range(last) if users[index]]
    return [last, *earlier[-1:]]


def _last(blocks: Sequence[Block]) -> int | None:
    """The last block that can carry a marker; none where one at the end has one already."""
    for index in range(len(blocks) - 1, -1, -1):
        if blocks[index].marked is not None:
            return None
        if blocks[index].fit:
            return index
    return None


def _lifetime(wanted: Lifetime, *, before: Sequence[Sequence[Block]], after: Sequence[Sequence[Block]]) -> Lifetime:
    if any("5m" in block.marks() for section in before for block in section):
        return "5m"
    if any("1h" in block.marks() for section in after for block in section):
        return "1h"
    return wanted
