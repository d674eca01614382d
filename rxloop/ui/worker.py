"""Running a turn that a client asked for: in the web process, or in a worker."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import TypeAlias

from rxloop.checks import instance
from rxloop.errors import ConfigurationError
from rxloop.steps import TurnResult
from rxloop.turn import Turn
from rxloop.ui.bus import BusError, EventBus, TurnInterruptedError
from rxloop.ui.entry import Entry, TurnFailed, TurnRequested
from rxloop.ui.publishing import publish_turn
from rxloop.ui.threads import Thread, ThreadStore, TurnNote
from rxloop.ui.turn_request import TurnRequest

__all__ = (
    "LEASE",
    "MakeTurn",
    "PreparedTurn",
    "abandon",
    "keep_queued",
    "open_turn",
    "prepare_turn",
    "release",
    "run_turn",
)

MakeTurn: TypeAlias = Callable[[TurnRequest], Turn | Awaitable[Turn]]
"""Makes the turn that a request asks for, with the request's ``prompt`` and ``conversation``."""

LEASE = 30.0
"""The seconds for which a thread is claimed; a turn that runs renews it."""

_FAREWELL = 1.0
"""The seconds that a cancelled worker takes to say that it leaves."""

_AGAIN = 1.0
"""The seconds after which a store that was away is asked again."""

_log = logging.getLogger("rxloop.ui")


class PreparedTurn:
    """A turn that is about to run, and the thread that it continues. Made by `prepare_turn`."""

    def __init__(self, request: TurnRequest, turn: Turn, thread: Thread, bus: EventBus, threads: ThreadStore) -> None:
        self.request = request
        self._turn = turn
        self._thread = thread
        self._bus = bus
        self._threads = threads

    async def run(self) -> TurnResult | None:
        """
        Run the turn, publish its events, save what the thread has come to, and let go of it.

        Returns:
            what the turn came to, a failure included.
        """
        request = self.request
        async with _kept(request, self._threads):
            hot = self._turn.start(turn_id=request.turn_id, replay=1)
            saved = False

            async def save() -> None:
                nonlocal saved
                while True:
                    saved = True
                    try:
                        await self._save(hot.ended)
                    except BusError as error:
                        if not error.retryable:
                            raise
                        # the bus waits for its store as well, and nothing may be lost before the end is told
                        saved = False
                        _log.warning("turn %s cannot be saved yet: %s", request.turn_id, error)
                        await asyncio.sleep(_AGAIN)
                    else:
                        return

            try:
                # who learns of the end may continue the thread at once
                await publish_turn(hot, self._bus, request.stream, on_stop=hot.stop, before_end=save, first=2)
            finally:
                hot.dispose()
                if not saved:
                    await self._save(hot.ended)
        return hot.ended

    async def _save(self, result: TurnResult | None) -> None:
        request, threads = self.request, self._threads
        if result is not None:
            note = TurnNote(request.turn_id, request.prompt, result.finish_reason)
            turns = tuple(note if item.turn_id == note.turn_id else item for item in self._thread.turns)
            await threads.save(request.thread_key, Thread(result.conversation, turns))
        await threads.release(request.thread_key, request.turn_id)


async def open_turn(request: TurnRequest, *, bus: EventBus, threads: ThreadStore) -> Thread:
    """
    Note a turn in its thread, which must be claimed by it, and make its stream: it is there for whoever asks from now.

    Returns:
        the thread, with the note.
    """
    thread = await threads.load(request.thread_key) or Thread()
    if all(note.turn_id != request.turn_id for note in thread.turns):
        thread = Thread(thread.conversation, (*thread.turns, TurnNote(request.turn_id, request.prompt)))
        await threads.save(request.thread_key, thread)
    await bus.publish(request.stream, [Entry(1, TurnRequested(request.turn_id, request.thread_id, request.run_id))])
    return thread


async def keep_queued(request: TurnRequest, seconds: float, *, bus: EventBus, threads: ThreadStore) -> None:
    """
    Keep a turn alive, and its thread claimed, until a worker has taken it.

    Args:
        request: the turn, opened already.
        seconds: after so long it is left to itself: its watchers are told that it was interrupted.
        bus: where its events will go.
        threads: where its thread is claimed.
    """

    async def taken() -> None:
        async with bus.subscribe(request.stream, 1) as subscription:
            await anext(subscription, None)

    waiting = asyncio.create_task(taken())
    try:
        pause = min(bus.heartbeat, LEASE / 3)
        for _ in range(max(1, round(seconds / pause))):
            done, _ = await asyncio.wait({waiting}, timeout=pause)
            if done:
                await waiting
                return
            await bus.publish(request.stream, [])
            await _renew(request, threads)
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def prepare_turn(
    request: TurnRequest, make_turn: MakeTurn, *, bus: EventBus, threads: ThreadStore
) -> PreparedTurn:
    """
    Make the turn that a request asks for, and note it in its thread, which must be claimed by it.

    Raises:
        ConfigurationError: `make_turn` made something else.
        Exception: what `make_turn` raises.
    """
    thread = await threads.load(request.thread_key) or Thread()
    made = make_turn(replace(request, conversation=list(thread.conversation)))
    if inspect.isawaitable(made) and not isinstance(made, Turn):
        # an observable can be awaited too, and would run
        async with _renewed(request, threads):
            turn = await made
    else:
        turn = made
    instance("what make_turn returns", turn, Turn)
    return PreparedTurn(request, turn, await open_turn(request, bus=bus, threads=threads), bus, threads)


async def run_turn(
    request: TurnRequest, make_turn: MakeTurn, *, bus: EventBus, threads: ThreadStore
) -> TurnResult | None:
    """
    Run a turn in a worker, for whichever web processes serve its events.

    Args:
        request: as the web process handed it over: ``TurnRequest.from_dict(job)``.
        make_turn: makes the turn.
        bus: where its events go; the one that the web processes read.
        threads: where its thread is kept; the store that the web processes have.

    Returns:
        what the turn came to, a failure included.

    Raises:
        ConfigurationError: another turn of the thread runs.
        Exception: what `make_turn` raises. The turn's watchers are told that it failed.
    """
    try:
        await _claim(request, threads)
        prepared = await prepare_turn(request, make_turn, bus=bus, threads=threads)
    except BaseException as error:
        await abandon(request, error, bus=bus, threads=threads)
        raise
    return await prepared.run()


async def abandon(
    request: TurnRequest, error: BaseException, *, bus: EventBus, threads: ThreadStore, seconds: float | None = None
) -> None:
    """
    Let go of a turn that will not run: its thread can go on, and its watchers are told why.

    Args:
        request: the turn.
        error: why.
        bus: where its stream is.
        threads: where its thread may be claimed by it.
        seconds: how long to try to tell, without end if not given; a second where it was cancelled.
    """
    await release(request, threads)
    if not isinstance(error, Exception):
        error, seconds = TurnInterruptedError("the turn was interrupted before it began"), _FAREWELL
    try:
        async with asyncio.timeout(seconds):
            await bus.publish(request.stream, [Entry(2, TurnFailed.of(error))])
    except Exception as fault:
        _log.error("turn %s: its watchers could not be told that it failed: %s", request.turn_id, fault)


async def release(request: TurnRequest, threads: ThreadStore) -> None:
    """Let go of a turn's thread. A claim that cannot be given back runs out by itself."""
    try:
        await threads.release(request.thread_key, request.turn_id)
    except Exception as error:
        _log.warning("turn %s could not give its claim back: %s", request.turn_id, error)


@contextlib.asynccontextmanager
async def _renewed(request: TurnRequest, threads: ThreadStore) -> AsyncIterator[None]:
    """Keep the thread claimed meanwhile, however long that takes."""

    async def keep() -> None:
        while True:
            await asyncio.sleep(LEASE / 3)
            await _renew(request, threads)

    renewing = asyncio.create_task(keep())
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)


@contextlib.asynccontextmanager
async def _kept(request: TurnRequest, threads: ThreadStore) -> AsyncIterator[None]:
    """Keep the thread claimed meanwhile, and then let go of it."""
    try:
        async with _renewed(request, threads):
            yield
    finally:
        await release(request, threads)


async def _renew(request: TurnRequest, threads: ThreadStore) -> None:
    try:
        await threads.claim(request.thread_key, request.turn_id, LEASE)
    except Exception as error:
        # a store that is away for once may be there in time the next time
        _log.warning("turn %s could not renew its claim: %s", request.turn_id, error)


async def _claim(request: TurnRequest, threads: ThreadStore) -> None:
    if not await threads.claim(request.thread_key, request.turn_id, LEASE):
        raise ConfigurationError("a thread must have one turn at a time, but another one runs")
