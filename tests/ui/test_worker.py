"""Turns of a server whose stores fail, and whose workers leave: nothing is lost silently, and nothing stays taken."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rxloop.testing import CallTool, ScriptedAdapter
from rxloop.tools import tool
from rxloop.turn import Turn
from rxloop.ui import worker
from rxloop.ui.app import turn_app
from rxloop.ui.bus import BusError, MemoryBus
from rxloop.ui.entry import StreamEvent, is_end
from rxloop.ui.threads import MemoryThreads, Thread
from rxloop.ui.turn_request import TurnRequest
from rxloop.ui.worker import keep_queued, open_turn, run_turn
from tests.ui.serving import run_body, serving

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(20)]

REQUEST = TurnRequest("turn_1", "t1", "r1", "hello")


class FaultyThreads(MemoryThreads):
    """Each operation fails as often as it is told to."""

    def __init__(self, error: Exception, **failures: int) -> None:
        super().__init__()
        self.error = error
        self.failures = failures
        self.failed = asyncio.Event()

    def _fail(self, operation: str) -> None:
        if self.failures.get(operation, 0):
            self.failures[operation] -= 1
            self.failed.set()
            raise self.error

    async def load(self, key: str) -> Thread | None:
        self._fail("load")
        return await super().load(key)

    async def save(self, key: str, thread: Thread) -> None:
        # what is saved at its beginning knows no end yet
        if thread.turns[-1].finish_reason is not None:
            self._fail("save")
        await super().save(key, thread)

    async def release(self, key: str, turn_id: str) -> None:
        self._fail("release")
        await super().release(key, turn_id)


class RenewedThreads(MemoryThreads):
    """Tells of every claim, and fails at the second one."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.claims: asyncio.Queue[bool] = asyncio.Queue()
        self.count = 0
        self.error = error

    async def claim(self, key: str, turn_id: str, seconds: float) -> bool:
        self.count += 1
        if self.count == 2 and self.error is not None:
            raise self.error
        held = await super().claim(key, turn_id, seconds)
        self.claims.put_nowait(held)
        return held


def make(request: TurnRequest) -> Turn:
    return Turn(ScriptedAdapter(["Hel", "lo"]), request.prompt, conversation=request.conversation)


async def events(bus: MemoryBus, stream: str = "/turn_1") -> list[StreamEvent]:
    async with bus.subscribe(stream) as subscription:
        return [entry.event async for entries in subscription for entry in entries]


def kind_of(event: Any) -> Any:
    return event.error["kind"]


@pytest.mark.parametrize("error", [BusError("away", retryable=True), LookupError("odd")])
async def test_a_claim_that_could_not_be_renewed_once_is_renewed_the_next_time(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "LEASE", 0.3)
    go = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        await go.wait()
        return "gone"

    threads = RenewedThreads(error)
    turn = Turn(ScriptedAdapter([CallTool("wait")], ["a"]), "hello", tools=[wait])
    running = asyncio.create_task(run_turn(REQUEST, lambda _: turn, bus=MemoryBus(), threads=threads))
    async with asyncio.timeout(5):
        for _ in range(3):
            assert await threads.claims.get()
    assert not await threads.claim("/t1", "turn_2", 1)
    go.set()
    await running
    assert await threads.claim("/t1", "turn_2", 1)


async def test_a_queued_turn_keeps_its_thread_however_seldom_the_bus_wants_to_hear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "LEASE", 0.3)
    bus, threads = MemoryBus(age=600), RenewedThreads(BusError("away", retryable=True))
    assert await threads.claim("/t1", "turn_1", worker.LEASE)
    await open_turn(REQUEST, bus=bus, threads=threads)
    queued = asyncio.create_task(keep_queued(REQUEST, 60, bus=bus, threads=threads))
    async with asyncio.timeout(5):
        for _ in range(3):
            assert await threads.claims.get()
    assert not await threads.claim("/t1", "turn_2", 1)
    queued.cancel()
    await asyncio.gather(queued, return_exceptions=True)


async def test_a_worker_that_is_cancelled_before_its_turn_began_says_so() -> None:
    bus, threads = MemoryBus(), MemoryThreads()
    await open_turn(REQUEST, bus=bus, threads=threads)
    making = asyncio.Event()

    async def slowly(request: TurnRequest) -> Turn:
        making.set()
        await asyncio.Event().wait()
        return make(request)

    running = asyncio.create_task(run_turn(REQUEST, slowly, bus=bus, threads=threads))
    await making.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await threads.claimed_by("/t1") is None
    async with asyncio.timeout(2):
        assert kind_of((await events(bus))[-1]) == "interrupted"


async def test_a_store_that_fails_altogether_keeps_nobody_waiting() -> None:
    bus, threads = MemoryBus(), FaultyThreads(LookupError("odd"), load=1, release=9)
    with pytest.raises(LookupError):
        await run_turn(REQUEST, make, bus=bus, threads=threads)
    async with asyncio.timeout(2):
        assert kind_of((await events(bus))[-1]) == "internal"


async def test_a_store_that_is_away_at_the_end_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_AGAIN", 0.01)
    bus, threads = MemoryBus(), FaultyThreads(BusError("away", retryable=True), save=3)
    result = await run_turn(REQUEST, make, bus=bus, threads=threads)
    thread = await threads.load("/t1")
    assert result is not None
    assert thread is not None
    assert thread.conversation == result.conversation
    assert thread.turns[0].finish_reason == "stop"
    assert (await events(bus))[-1].type == "turn_finished"
    assert await threads.claimed_by("/t1") is None


async def test_the_end_is_told_after_it_was_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_AGAIN", 0.2)
    bus, threads = MemoryBus(), FaultyThreads(BusError("away", retryable=True), save=1)
    running = asyncio.create_task(run_turn(REQUEST, make, bus=bus, threads=threads))
    await threads.failed.wait()
    assert not any(is_end(entry.event) for entry in bus._running["/turn_1"].entries)
    # nor is it waited for by one who is told to leave
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert (await events(bus))[-1].type == "turn_finished"
    thread = await threads.load("/t1")
    assert thread is not None
    assert thread.conversation


async def test_what_a_store_refuses_for_good_fails_and_the_end_is_told() -> None:
    bus, threads = MemoryBus(), FaultyThreads(BusError("refused", retryable=False), save=9)
    with pytest.raises(BusError, match="refused"):
        await run_turn(REQUEST, make, bus=bus, threads=threads)
    assert threads.failures["save"] == 8
    assert (await events(bus))[-1].type == "turn_finished"
    assert await threads.claimed_by("/t1") is None


@pytest.mark.parametrize("phase", range(1, 8))
@pytest.mark.parametrize("forever", [False, True])
async def test_a_bus_that_fails_in_any_phase_leaves_nothing_taken(phase: int, forever: bool) -> None:
    class FaultyBus(MemoryBus):
        count = 0

        async def publish(self, stream: str, entries: Any) -> None:
            self.count += 1
            if self.count == phase or (forever and self.count > phase):
                raise BusError("no", retryable=False)
            await super().publish(stream, entries)

    bus, threads = FaultyBus(), MemoryThreads()
    outcome = await asyncio.gather(run_turn(REQUEST, make, bus=bus, threads=threads), return_exceptions=True)
    assert await threads.claimed_by("/t1") is None
    if bus.count < phase:
        return
    assert isinstance(outcome[0], BusError)
    if not forever:
        async with asyncio.timeout(2):
            assert is_end((await events(bus))[-1])


async def test_a_turn_that_could_not_be_handed_over_fails_for_who_finds_it() -> None:
    bus, threads = MemoryBus(), MemoryThreads()

    async def hand_over(request: TurnRequest) -> None:
        raise LookupError("the queue is full")

    async with serving(turn_app(bus=bus, threads=threads, hand_over=hand_over)) as client:
        assert (await client.post(run_body())).status_code == 500
        turns = (await client.http.get("/threads/t1")).json()["turns"]
        async with asyncio.timeout(2):
            found = await client.watch(turns[0]["turn_id"])
        assert [data["type"] for _, data in found] == ["error"]
        assert "queue" not in str(found)
        assert await threads.claimed_by("/t1") is None


async def test_a_thread_stays_claimed_while_its_turn_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "LEASE", 0.3)
    threads, bus = RenewedThreads(), MemoryBus()

    async def make_turn(request: TurnRequest) -> Turn:
        async with asyncio.timeout(10):
            for _ in range(4):
                assert await threads.claims.get()
        assert await threads.claimed_by("/t1") == "turn_1"
        return Turn(ScriptedAdapter("It is 5."), request.prompt)

    result = await run_turn(REQUEST, make_turn, bus=bus, threads=threads)
    assert result is not None
    assert result.text == "It is 5."
    assert await threads.claimed_by("/t1") is None
