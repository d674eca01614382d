"""Where conversations are kept between turns, and who may continue one."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rxloop.checks import whole
from rxloop.ui.bus import check_seconds, check_stream

__all__ = ("MemoryThreads", "Thread", "ThreadStore", "TurnNote")


@dataclass(frozen=True, slots=True)
class TurnNote:
    """
    A turn of a thread, as a list of them shows it.

    Args:
        turn_id: its id.
        prompt: what the user said.
        finish_reason: why it ended; ``None`` while it runs, and where nobody came to tell.
    """

    turn_id: str
    prompt: str
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Thread:
    """
    What a thread has come to.

    Args:
        conversation: the provider's messages, as `TurnResult` has them; JSON, and not to be changed.
        turns: its turns, oldest first.
    """

    conversation: Sequence[Mapping[str, Any]] = ()
    turns: tuple[TurnNote, ...] = ()


class ThreadStore(Protocol):
    """
    Threads by their keys, and claims on them.

    One turn at a time continues a thread: it claims the thread before it loads it, renews the claim while it runs,
    saves, and releases. A claim is a lease, so that a worker that died does not hold a thread for ever. Saving is not
    checked against claims: whoever lets its claim run out may overwrite, or be overwritten.
    """

    async def load(self, key: str) -> Thread | None:
        """The thread, as it was saved last; ``None`` if there is none, or not any more."""

    async def save(self, key: str, thread: Thread) -> None:
        """Keep the thread, in place of what was there."""

    async def claim(self, key: str, turn_id: str, seconds: float) -> bool:
        """
        Take the right to continue a thread, or renew it. The thread need not be there.

        Args:
            key: the thread.
            turn_id: who claims it.
            seconds: how long the claim holds unless it is renewed.

        Returns:
            whether `turn_id` has it now; if not, another turn does.
        """

    async def release(self, key: str, turn_id: str) -> None:
        """Give the claim back, if `turn_id` has it."""

    async def claimed_by(self, key: str) -> str | None:
        """The turn that has the thread's claim now."""

    async def close(self) -> None:
        """Let go of what the store holds open."""


class MemoryThreads(ThreadStore):
    """
    Threads in the memory of one process.

    Args:
        threads: the most that are kept; the one that was saved or loaded longest ago goes first.
        age: the seconds for which one is kept that nobody saves or loads; ``None`` for ever.
        clock: tells the time in seconds.

    Raises:
        ConfigurationError: a value breaks its rule.
    """

    def __init__(
        self, *, threads: int = 10_000, age: float | None = 86_400.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """See the class."""
        whole("threads", threads, minimum=1)
        if age is not None:
            check_seconds("age", age)
        self._number = threads
        self._age = age
        self._clock = clock
        # in the order of the last use
        self._threads: OrderedDict[str, tuple[float, Thread]] = OrderedDict()
        self._claims: dict[str, tuple[float, str]] = {}

    def __repr__(self) -> str:
        return f"<MemoryThreads {len(self._threads)} threads>"

    async def load(self, key: str) -> Thread | None:
        """The thread; see `ThreadStore`."""
        self._expire()
        kept = self._threads.get(key)
        if kept is None:
            return None
        self._keep(key, kept[1])
        return kept[1]

    async def save(self, key: str, thread: Thread) -> None:
        """Keep the thread; see `ThreadStore`."""
        check_stream("key", key)
        self._keep(key, thread)
        self._expire()
        if len(self._threads) > self._number:
            self._threads.popitem(last=False)

    async def claim(self, key: str, turn_id: str, seconds: float) -> bool:
        """Take or renew the claim; see `ThreadStore`."""
        check_stream("key", key)
        check_stream("turn_id", turn_id)
        check_seconds("seconds", seconds)
        now = self._clock()
        holder = await self.claimed_by(key)
        if holder not in (None, turn_id):
            return False
        self._claims[key] = (now + seconds, turn_id)
        if len(self._claims) > 2 * self._number:
            self._claims = {key: claim for key, claim in self._claims.items() if claim[0] > now}
        return True

    async def release(self, key: str, turn_id: str) -> None:
        """Give the claim back; see `ThreadStore`."""
        if await self.claimed_by(key) == turn_id:
            del self._claims[key]

    async def claimed_by(self, key: str) -> str | None:
        """The turn that has the claim."""
        until, turn_id = self._claims.get(key, (0.0, ""))
        if turn_id and until <= self._clock():
            del self._claims[key]
            return None
        return turn_id or None

    async def close(self) -> None:
        """Nothing is held open."""

    def _keep(self, key: str, thread: Thread) -> None:
        self._threads[key] = (self._clock(), thread)
        self._threads.move_to_end(key)

    def _expire(self) -> None:
        if self._age is None:
            return
        before = self._clock() - self._age
        while self._threads and next(iter(self._threads.values()))[0] <= before:
            self._threads.popitem(last=False)
