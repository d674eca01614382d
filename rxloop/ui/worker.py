"""Running a turn that a client asked for: in the web process, or in a worker."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeAlias

from rxloop.checks import instance
from rxloop.errors import ConfigurationError
from rxloop.steps import TurnResult
from rxloop.turn import Turn
from rxloop.ui.bus import EventBus
from rxloop.ui.entry import Entry, TurnFailed, TurnRequested
from rxloop.ui.publishing import publish_turn
from rxloop.ui.threads import Thread, ThreadStore, TurnNote
from rxloop.ui.turn_request import TurnRequest

__all__ = ("LEASE", "MakeTurn", "PreparedTurn", "keep_queued", "open_turn", "prepare_turn", "run_turn")

MakeTurn: TypeAlias = Callable[[TurnRequest], Turn | Awaitable[Turn]]
"""Makes the turn that a request asks for, with the request's ``prompt`` and ``conversation``."""

LEASE = 60.0
"""The seconds for which a thread is claimed; a turn that runs renews it."""


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
        renewing = asyncio.create_task(self._renew())
        try:
            hot = self._turn.start(turn_id=request.turn_id, replay=1)
            saved = False

            async def save() -> None:
                nonlocal saved
                saved = True
                await self._save(hot.ended)

            try:
                # who learns of the end may continue the thread at once
                await publish_turn(hot, self._bus, request.stream, on_stop=hot.stop, before_end=save, first=2)
            finally:
                hot.dispose()
                if not saved:
                    await save()
        finally:
            renewing.cancel()
            # a claim that could not be renewed runs out by itself
            await asyncio.gather(renewing, return_exceptions=True)
            await self._threads.release(request.thread_key, request.turn_id)
        return hot.ended

    async def _save(self, result: TurnResult | None) -> None:
        request, threads = self.request, self._threads
        if result is not None:
            note = TurnNote(request.turn_id, request.prompt, result.finish_reason)
            turns = tuple(note if item.turn_id == note.turn_id else item for item in self._thread.turns)
            await threads.save(request.thread_key, Thread(result.conversation, turns))
        await threads.release(request.thread_key, request.turn_id)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LEASE / 3)
            await self._threads.claim(self.request.thread_key, self.request.turn_id, LEASE)


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
        for _ in range(max(1, round(seconds / bus.heartbeat))):
            done, _ = await asyncio.wait({waiting}, timeout=bus.heartbeat)
            if done:
                await waiting
                return
            await bus.publish(request.stream, [])
            await threads.claim(request.thread_key, request.turn_id, LEASE)
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
    # an observable can be awaited too, and would run
    turn = made if isinstance(made, Turn) or not inspect.isawaitable(made) else await made
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
    except Exception as error:
        await threads.release(request.thread_key, request.turn_id)
        await bus.publish(request.stream, [Entry(2, TurnFailed.of(error))])
        raise
    return await prepared.run()


async def _claim(request: TurnRequest, threads: ThreadStore) -> None:
    if not await threads.claim(request.thread_key, request.turn_id, LEASE):
        raise ConfigurationError("a thread must have one turn at a time, but another one runs")
