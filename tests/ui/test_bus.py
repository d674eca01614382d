"""What every event bus and every store of threads keeps, in memory and on Redis."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
import pytest_asyncio
from reactivex import Observable
from reactivex.subject import Subject

import rxloop
from rxloop.errors import ConfigurationError, ServerError
from rxloop.events import TextDelta, ToolCallDelta, ToolProgress, TurnEvent, TurnFinished, TurnStarted
from rxloop.testing import ScriptedAdapter
from rxloop.ui.bus import EventBus, MemoryBus, Subscription
from rxloop.ui.entry import Entry, StreamEvent, TurnFailed
from rxloop.ui.publishing import publish_turn
from rxloop.ui.redis_bus import RedisBus, RedisThreads
from rxloop.ui.threads import MemoryThreads, Thread, ThreadStore, TurnNote
from rxloop.usage import Usage
from tests.ui.redis_server import needs_redis

BOTH = ["memory", pytest.param("redis", marks=needs_redis)]
STARTED = TurnStarted("t1", "test", "m")
FINISHED = TurnFinished("ab", None, "stop", "end_turn", Usage(1, 2), 1, ())


def texts(*pieces: str, first: int = 1) -> list[Entry]:
    return [Entry(number, TextDelta(0, piece)) for number, piece in enumerate(pieces, start=first)]


async def read(subscription: Subscription) -> list[Entry]:
    """All entries, to the end."""
    entries: list[Entry] = []
    async with asyncio.timeout(30), subscription:
        async for batch in subscription:
            assert batch, "a batch must not be empty"
            entries.extend(batch)
    return entries


async def following(subscription: Subscription) -> list[Entry]:
    async with asyncio.timeout(30):
        return list(await anext(subscription))


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(2000):
        if await condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come true")


async def absent(bus: EventBus) -> bool:
    return not await bus.exists("t1")


@pytest_asyncio.fixture(params=BOTH)
async def make(request: pytest.FixtureRequest) -> AsyncIterator[Callable[..., Any]]:
    """Makes a bus; on Redis each is an object of its own, with connections of its own, as in another process."""
    made: list[EventBus] = []
    prefix = f"{uuid.uuid4().hex}:"

    def make(**options: Any) -> EventBus:
        bus: EventBus
        if request.param == "memory":
            bus = made[0] if made else MemoryBus(**options)
        else:
            bus = RedisBus(request.getfixturevalue("redis_server").url, prefix=prefix, **options)
        made.append(bus)
        return bus

    yield make
    for bus in made:
        await bus.close()


@pytest.mark.asyncio
async def test_what_was_published_is_read_in_order_to_the_end(make: Callable[..., EventBus]) -> None:
    bus = make()
    entries = [Entry(1, STARTED), *texts("a", "b", first=2), Entry(4, FINISHED)]
    await bus.publish("t1", entries[:2])
    await bus.publish("t1", entries[2:])
    assert await read(bus.subscribe("t1")) == entries
    assert await read(make().subscribe("t1")) == entries, "reading takes nothing away"


@pytest.mark.asyncio
async def test_what_comes_later_is_read_as_it_comes(make: Callable[..., EventBus]) -> None:
    publisher, reader = make(), make()
    subscription = reader.subscribe("t1")
    waiting = asyncio.create_task(following(subscription))
    await asyncio.sleep(0)
    await publisher.publish("t1", texts("a"))
    assert await waiting == texts("a")
    await publisher.publish("t1", texts("b", first=2))
    assert await following(subscription) == texts("b", first=2)
    await publisher.publish("t1", [Entry(3, FINISHED)])
    assert await read(subscription) == [Entry(3, FINISHED)]


@pytest.mark.asyncio
@pytest.mark.parametrize("after", range(6))
async def test_a_reader_goes_on_after_what_it_knows(make: Callable[..., EventBus], after: int) -> None:
    bus = make()
    # ids grow, not without gaps
    entries = [Entry(1, STARTED), Entry(3, TextDelta(0, "a")), Entry(5, FINISHED)]
    await bus.publish("t1", entries)
    assert await read(bus.subscribe("t1", after)) == [entry for entry in entries if entry.id > after]


@pytest.mark.asyncio
async def test_a_reader_may_be_ahead_of_the_stream(make: Callable[..., EventBus]) -> None:
    bus = make()
    await bus.publish("t1", texts("a"))
    subscription = bus.subscribe("t1", after=3)
    reading = asyncio.create_task(read(subscription))
    await bus.publish("t1", texts("b", "c", "d", first=2))
    await bus.publish("t1", [Entry(5, FINISHED)])
    assert await reading == [Entry(4, TextDelta(0, "d")), Entry(5, FINISHED)]


@pytest.mark.asyncio
async def test_publishing_again_neither_loses_nor_doubles(make: Callable[..., EventBus]) -> None:
    bus = make()
    entries = [*texts("a", "b", "c", "d"), Entry(5, FINISHED)]
    await bus.publish("t1", entries[:2])
    await bus.publish("t1", entries[:2])
    await bus.publish("t1", entries[1:4])
    await make().publish("t1", entries[3:])
    await bus.publish("t1", entries)
    assert await read(bus.subscribe("t1")) == entries


@pytest.mark.asyncio
async def test_nothing_follows_the_end(make: Callable[..., EventBus]) -> None:
    bus = make()
    entries = [Entry(1, STARTED), Entry(2, FINISHED), Entry(3, TextDelta(0, "late"))]
    await bus.publish("t1", entries)
    assert await read(bus.subscribe("t1")) == entries[:2]


@pytest.mark.asyncio
async def test_a_failure_is_an_end(make: Callable[..., EventBus]) -> None:
    bus = make()
    failed = TurnFailed.of(ServerError("the provider broke", status=500))
    await bus.publish("t1", [Entry(1, failed)])
    assert await read(bus.subscribe("t1")) == [Entry(1, failed)]


@pytest.mark.asyncio
async def test_streams_know_nothing_of_one_another(make: Callable[..., EventBus]) -> None:
    bus = make()
    await bus.publish("t1", [*texts("a"), Entry(2, FINISHED)])
    await bus.publish("t2", [*texts("b"), Entry(2, FINISHED)])
    assert (await read(bus.subscribe("t2")))[:1] == texts("b")
    assert (await bus.exists("t1"), await bus.exists("t3")) == (True, False)


@pytest.mark.asyncio
async def test_a_sign_of_life_makes_a_stream(make: Callable[..., EventBus]) -> None:
    bus, other = make(), make()
    assert not await other.exists("t1")
    await bus.publish("t1", ())
    assert await other.exists("t1")
    assert 0 < bus.heartbeat < 1000


@pytest.mark.asyncio
async def test_waiting_for_a_stream_does_not_make_it(make: Callable[..., EventBus]) -> None:
    bus = make()
    async with bus.subscribe("t1"):
        assert not await bus.exists("t1")
    assert not await bus.exists("t1")


@pytest.mark.asyncio
async def test_many_read_at_their_own_pace(make: Callable[..., EventBus]) -> None:
    bus = make()
    readers = [asyncio.create_task(read(bus.subscribe("t1"))) for _ in range(10)]
    slow = bus.subscribe("t1")
    entries = [*texts(*map(str, range(50))), Entry(51, FINISHED)]
    for entry in entries:
        await bus.publish("t1", [entry])
    for reading in readers:
        assert await reading == entries
    assert await read(slow) == entries


@pytest.mark.asyncio
async def test_one_who_is_cancelled_harms_nobody_and_can_go_on(make: Callable[..., EventBus]) -> None:
    bus = make()
    staying = asyncio.create_task(read(bus.subscribe("t1")))
    leaving = bus.subscribe("t1")
    waiting = asyncio.create_task(following(leaving))
    await bus.publish("t1", texts("a"))
    assert await waiting == texts("a")
    waiting = asyncio.create_task(following(leaving))
    done, _ = await asyncio.wait([waiting], timeout=0.05)
    assert not done
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await bus.publish("t1", [*texts("b", first=2), Entry(3, FINISHED)])
    assert await read(leaving) == [*texts("b", first=2), Entry(3, FINISHED)]
    assert await staying == [*texts("a", "b"), Entry(3, FINISHED)]


@pytest.mark.asyncio
async def test_one_who_has_left_reads_nothing(make: Callable[..., EventBus]) -> None:
    bus = make()
    await bus.publish("t1", texts("a"))
    subscription = bus.subscribe("t1")
    await subscription.aclose()
    assert await read(subscription) == []
    await subscription.aclose()


@pytest.mark.asyncio
async def test_the_log_has_a_bound_and_a_reader_is_told_what_it_missed(make: Callable[..., EventBus]) -> None:
    bus = make(length=10)
    lagging = bus.subscribe("t1")
    await bus.publish("t1", texts("first"))
    assert await following(lagging) == texts("first")
    for number in range(2, 1000):
        await bus.publish("t1", [Entry(number, TextDelta(0, str(number)))])
    await bus.publish("t1", [Entry(1000, FINISHED)])
    before = lagging.gap
    left = await read(lagging)
    assert (before, lagging.gap) == (False, True)
    # Redis trims in blocks of 100
    assert 10 <= len(left) <= 111
    assert [entry.id for entry in left] == list(range(1001 - len(left), 1001))
    late = bus.subscribe("t1", after=1000 - 5)
    assert [entry.id for entry in await read(late)] == list(range(996, 1001))
    assert not late.gap


@pytest.mark.asyncio
async def test_a_stream_is_kept_for_its_age(make: Callable[..., EventBus], request: pytest.FixtureRequest) -> None:
    lease = {} if "memory" in request.node.name else {"lease": 0.3}
    bus = make(age=0.3, **lease)
    await bus.publish("t1", texts("a"))
    began = asyncio.get_running_loop().time()
    await until(lambda: absent(bus))
    assert asyncio.get_running_loop().time() - began > 0.2


@pytest.mark.asyncio
async def test_a_stop_is_heard_whether_it_comes_before_or_after(make: Callable[..., EventBus]) -> None:
    worker, web = make(), make()
    waiting = [asyncio.create_task(worker.stop_requested(name)) for name in ("t1", "t1", "t2")]
    done, _ = await asyncio.wait(waiting, timeout=0.1)
    assert not done
    await web.request_stop("t1")
    await web.request_stop("t1")
    async with asyncio.timeout(20):
        await asyncio.gather(*waiting[:2])
        await worker.stop_requested("t1")
    assert not waiting[2].done()
    waiting[2].cancel()
    await asyncio.wait(waiting)
    await web.request_stop("t2")
    async with asyncio.timeout(20):
        await worker.stop_requested("t2")


@pytest.mark.asyncio
async def test_closing_ends_whoever_waits(make: Callable[..., EventBus]) -> None:
    bus = make()
    await bus.publish("t1", texts("a"))
    reading = asyncio.create_task(read(bus.subscribe("t1")))
    stopping = asyncio.create_task(bus.stop_requested("t1"))
    await asyncio.wait([reading, stopping], timeout=0.1)
    async with asyncio.timeout(10):
        await bus.close()
        assert await reading == texts("a")
        with pytest.raises(ConfigurationError, match="closed"):
            await stopping
    with pytest.raises(ConfigurationError, match="closed"):
        await bus.publish("t1", texts("b", first=2))
    with pytest.raises(ConfigurationError, match="closed"):
        bus.subscribe("t1")


@pytest.mark.asyncio
@pytest.mark.parametrize("ids", [(0,), (-1,), (1, 1), (2, 1)])
async def test_ids_that_do_not_grow_are_refused(make: Callable[..., EventBus], ids: Sequence[int]) -> None:
    bus = make()
    with pytest.raises(ConfigurationError, match="must grow, from 1"):
        await bus.publish("t1", [Entry(number, STARTED) for number in ids])
    assert not await bus.exists("t1")


@pytest.mark.asyncio
async def test_values_that_break_their_rules_are_refused(make: Callable[..., EventBus]) -> None:
    bus = make()
    with pytest.raises(ConfigurationError, match="after must be a whole number >= 0, but got -1"):
        bus.subscribe("t1", -1)
    with pytest.raises(ConfigurationError, match="stream must be a text that is not empty, but got ''"):
        bus.subscribe("")
    with pytest.raises(ConfigurationError, match="stream must be"):
        await bus.publish("", ())


@pytest.mark.asyncio
async def test_a_whole_turn_is_published(make: Callable[..., EventBus]) -> None:
    worker, web = make(), make()
    adapter = ScriptedAdapter(["Take ", "a ", "coat."])
    reading = asyncio.create_task(read(web.subscribe("t1")))
    last = await publish_turn(rxloop.Turn(adapter, "A coat?", turn_id="t1"), worker, "t1")
    entries = await reading
    assert isinstance(last, TurnFinished)
    assert last.text == "Take a coat."
    assert entries[-1].event == last
    assert entries[0].event.type == "turn_started"
    assert "".join(entry.event.text for entry in entries if isinstance(entry.event, TextDelta)) == "Take a coat."
    ids = [entry.id for entry in entries]
    assert ids == sorted(set(ids))


@pytest.mark.asyncio
async def test_a_turn_stops_when_the_bus_is_asked(make: Callable[..., EventBus]) -> None:
    worker, web = make(), make()
    running = asyncio.Event()

    @rxloop.tool
    async def wait() -> str:
        """Wait for ever."""
        running.set()
        await asyncio.Event().wait()
        return "never"

    stop = asyncio.Event()
    adapter = ScriptedAdapter([rxloop.testing.CallTool("wait", {})])
    turn = rxloop.Turn(adapter, "Wait.", tools=[wait], stop=stop)
    publishing = asyncio.create_task(publish_turn(turn, worker, "t1", on_stop=stop.set))
    async with asyncio.timeout(20):
        await running.wait()
        await web.request_stop("t1")
        last = await publishing
    assert isinstance(last, TurnFinished)
    assert last.finish_reason == "aborted"
    assert (await read(web.subscribe("t1")))[-1].event == last


@pytest.mark.asyncio
async def test_a_turns_failure_is_its_last_entry(make: Callable[..., EventBus]) -> None:
    bus, events = make(), Subject[TurnEvent]()
    publishing = asyncio.create_task(publish_turn(events, bus, "t1"))
    await asyncio.sleep(0)
    events.on_next(STARTED)
    events.on_error(ServerError("the provider broke", status=500))
    last = await publishing
    assert last == TurnFailed.of(ServerError("the provider broke", status=500))
    assert [entry.event for entry in await read(bus.subscribe("t1"))] == [STARTED, last]


@pytest.mark.asyncio
async def test_a_turn_that_completes_without_an_end_was_interrupted(make: Callable[..., EventBus]) -> None:
    bus, events = make(), Subject[TurnEvent]()
    publishing = asyncio.create_task(publish_turn(events, bus, "t1"))
    await asyncio.sleep(0)
    events.on_next(STARTED)
    events.on_completed()
    last = await publishing
    assert isinstance(last, TurnFailed)
    assert (last.error["kind"], last.error["retryable"]) == ("interrupted", True)


@pytest.mark.asyncio
async def test_a_worker_that_is_cancelled_says_so(make: Callable[..., EventBus]) -> None:
    bus, events = make(), Subject[TurnEvent]()
    publishing = asyncio.create_task(publish_turn(events, bus, "t1", on_stop=lambda: None))
    await asyncio.sleep(0)
    events.on_next(STARTED)
    subscription = bus.subscribe("t1")
    assert [entry.event for entry in await following(subscription)] == [STARTED]
    publishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    assert not events.observers, "the turn must be disposed"
    [(number, last, _)] = await read(subscription)
    assert number == 2
    assert isinstance(last, TurnFailed)
    assert last.error["kind"] == "interrupted"


@pytest.mark.asyncio
async def test_a_stop_that_cannot_be_passed_on_is_the_publishers_error(make: Callable[..., EventBus]) -> None:
    bus, events = make(), Subject[TurnEvent]()

    def broken() -> None:
        raise ValueError("no stop here")

    publishing = asyncio.create_task(publish_turn(events, bus, "t1", on_stop=broken))
    await bus.request_stop("t1")
    with pytest.raises(ValueError, match="no stop here"):
        async with asyncio.timeout(20):
            await publishing
    [(_, last, _)] = await read(bus.subscribe("t1"))
    assert isinstance(last, TurnFailed)
    assert "no stop here" not in str(last), "the text of a foreign error is nobody's to see"


class _SlowBus(MemoryBus):
    """A bus that is away until it is let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.back = asyncio.Event()
        self.calls: list[list[Entry]] = []

    async def publish(self, stream: str, entries: Sequence[Entry]) -> None:
        self.calls.append(list(entries))
        await self.back.wait()
        await super().publish(stream, entries)


@pytest.mark.asyncio
async def test_a_turn_goes_on_while_the_bus_is_away_and_what_waits_is_merged() -> None:
    bus, events = _SlowBus(), Subject[TurnEvent]()
    publishing = asyncio.create_task(publish_turn(events, bus, "t1"))
    await asyncio.sleep(0)
    events.on_next(STARTED)
    for number in range(10_000):
        events.on_next(TextDelta(0, f"{number} "))
    events.on_next(ToolProgress(0, "c1", "add", 1))
    events.on_next(ToolCallDelta(0, "c2", "{"))
    events.on_next(ToolCallDelta(0, "c2", "}"))
    events.on_next(FINISHED)
    events.on_completed()
    bus.back.set()
    assert await publishing == FINISHED
    assert bus.calls[0] == []
    [after] = bus.calls[1:]
    assert [entry.id for entry in after] == [1, 10_001, 10_002, 10_004, 10_005]
    said = after[1].event
    assert isinstance(said, TextDelta)
    assert said.text.split() == [str(number) for number in range(10_000)]
    assert await read(bus.subscribe("t1")) == after


async def called(bus: _SlowBus, times: int) -> bool:
    return len(bus.calls) == times


@pytest.mark.asyncio
async def test_what_a_cancelled_publish_may_have_sent_is_sent_again() -> None:
    bus, events = _SlowBus(), Subject[TurnEvent]()
    publishing = asyncio.create_task(publish_turn(events, bus, "t1"))
    events_before: list[StreamEvent] = [STARTED, TextDelta(0, "a")]
    bus.back.set()
    await asyncio.sleep(0)
    bus.back.clear()
    for event in events_before:
        events.on_next(event)  # type: ignore[arg-type]
    await until(lambda: called(bus, 2))
    publishing.cancel()
    await until(lambda: called(bus, 3))
    assert not events.observers, "the turn does not go on while the bus is waited for"
    bus.back.set()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    entries = await read(bus.subscribe("t1"))
    assert [entry.event for entry in entries[:-1]] == events_before
    assert isinstance(entries[-1].event, TurnFailed)


@pytest.mark.asyncio
async def test_events_may_come_from_another_thread() -> None:
    bus = MemoryBus()

    def subscribe(observer: Any, scheduler: Any = None) -> Any:
        def push() -> None:
            for event in (STARTED, TextDelta(0, "a"), FINISHED):
                observer.on_next(event)
            observer.on_completed()

        asyncio.get_running_loop().run_in_executor(None, push)

    last = await publish_turn(Observable(subscribe), bus, "t1")
    assert last == FINISHED
    assert len(await read(bus.subscribe("t1"))) == 3


class _Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.asyncio
async def test_streams_that_are_too_old_are_dropped_and_their_readers_told() -> None:
    clock = _Clock()
    bus = MemoryBus(age=60, clock=clock)
    await bus.publish("silent", texts("a"))
    await bus.publish("over", [*texts("a"), Entry(2, FINISHED)])
    behind, reading = bus.subscribe("over"), asyncio.create_task(read(bus.subscribe("silent")))
    clock.now += 50
    await bus.publish("alive", texts("a"))
    await bus.publish("silent", ())
    clock.now += 50
    assert [await bus.exists(name) for name in ("silent", "over", "alive")] == [True, False, True]
    clock.now += 10
    assert not await bus.exists("silent")
    first, failed = await reading
    assert first == texts("a")[0]
    assert isinstance(failed.event, TurnFailed)
    assert (failed.id, failed.event.error["kind"]) == (2, "interrupted")
    # one who holds a stream reads it to its end
    assert len(await read(behind)) == 2


@pytest.mark.asyncio
async def test_there_are_so_many_streams_and_those_that_have_ended_go_first() -> None:
    bus = MemoryBus(streams=3)
    for name in ("running", "over1", "over2"):
        await bus.publish(name, texts("a"))
    await bus.publish("over1", [Entry(2, FINISHED)])
    await bus.publish("over2", [Entry(2, FINISHED)])
    await bus.publish("new1", texts("a"))
    await bus.publish("new2", texts("a"))
    assert [await bus.exists(name) for name in ("running", "over1", "over2", "new1", "new2")] == [
        True,
        False,
        False,
        True,
        True,
    ]
    reading = asyncio.create_task(read(bus.subscribe("running", after=1)))
    await asyncio.sleep(0)
    await bus.publish("new3", texts("a"))
    [(_, failed, _)] = await reading
    assert isinstance(failed, TurnFailed)
    assert repr(bus) == "<MemoryBus 3 running, 0 ended>"


@pytest.mark.asyncio
async def test_events_are_kept_by_reference() -> None:
    bus, event = MemoryBus(), TextDelta(0, "a")
    await bus.publish("t1", [Entry(1, event)])
    [entry] = await following(bus.subscribe("t1"))
    assert entry.event is event


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length must be a whole number >= 1, but got 0"),
        ({"streams": True}, "streams must be a whole number >= 1, but got True"),
        ({"age": 0}, "age must be > 0 seconds, and finite, but got 0"),
        ({"age": None}, "age must be > 0 seconds, and finite, but got None"),
        ({"age": float("inf")}, "age must be > 0 seconds, and finite, but got inf"),
    ],
)
def test_a_bus_in_memory_refuses_bounds_that_are_none(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        MemoryBus(**options)


@pytest_asyncio.fixture(params=BOTH)
async def make_threads(request: pytest.FixtureRequest) -> AsyncIterator[Callable[..., ThreadStore]]:
    made: list[ThreadStore] = []
    prefix = f"{uuid.uuid4().hex}:"

    def make(**options: Any) -> ThreadStore:
        store: ThreadStore
        if request.param == "memory":
            store = made[0] if made else MemoryThreads(**options)
        else:
            store = RedisThreads(request.getfixturevalue("redis_server").url, prefix=prefix, **options)
        made.append(store)
        return store

    yield make
    for store in made:
        await store.close()


THREAD = Thread(
    [{"role": "user", "content": "héllo \ud83d"}, {"role": "assistant", "content": [{"type": "text", "text": "hi"}]}],
    (TurnNote("t1", "héllo"), TurnNote("t2", "again", "stop")),
)


@pytest.mark.asyncio
async def test_a_thread_is_kept_until_it_is_saved_again(make_threads: Callable[..., ThreadStore]) -> None:
    store = make_threads()
    assert await store.load("k") is None
    await store.save("k", THREAD)
    assert await make_threads().load("k") == THREAD
    await store.save("k", Thread())
    loaded = await store.load("k")
    assert loaded is not None
    assert (list(loaded.conversation), loaded.turns) == ([], ())
    assert await store.load("other") is None


@pytest.mark.asyncio
async def test_one_turn_at_a_time_has_a_thread(make_threads: Callable[..., ThreadStore]) -> None:
    store, other = make_threads(), make_threads()
    assert await store.claimed_by("k") is None
    claimed = await asyncio.gather(*(store.claim("k", f"t{number}", 60) for number in range(10)))
    assert claimed == [True] + [False] * 9
    assert await other.claimed_by("k") == "t0"
    assert await other.claim("other", "t5", 60)
    assert await other.claim("k", "t0", 60), "its own claim it may renew"
    await other.release("k", "t1")
    assert not await other.claim("k", "t1", 60), "another's claim cannot be released"
    await other.release("k", "t0")
    assert await store.claim("k", "t1", 60)


@pytest.mark.asyncio
async def test_a_claim_that_is_not_renewed_ends(make_threads: Callable[..., ThreadStore]) -> None:
    store = make_threads()
    assert await store.claim("k", "t1", 0.2)
    assert not await store.claim("k", "t2", 60)
    await until(lambda: store.claim("k", "t2", 60))
    assert await store.claimed_by("k") == "t2"
    assert not await store.claim("k", "t1", 60)


@pytest.mark.asyncio
async def test_a_thread_that_nobody_uses_is_dropped(make_threads: Callable[..., ThreadStore]) -> None:
    store = make_threads(age=0.2)
    await store.save("k", THREAD)
    assert await store.load("k") is not None
    async with asyncio.timeout(20):
        await asyncio.sleep(0.25)
        assert await store.load("k") is None


@pytest.mark.asyncio
async def test_claims_and_threads_have_rules(make_threads: Callable[..., ThreadStore]) -> None:
    store = make_threads()
    with pytest.raises(ConfigurationError, match="key must be a text"):
        await store.save("", THREAD)
    with pytest.raises(ConfigurationError, match="seconds must be > 0 seconds"):
        await store.claim("k", "t1", 0)
    with pytest.raises(ConfigurationError, match="age must be > 0 seconds"):
        make_threads(age=-1) if isinstance(store, RedisThreads) else MemoryThreads(age=-1)


@pytest.mark.asyncio
async def test_so_many_threads_are_kept_and_those_in_use_longest() -> None:
    clock = _Clock()
    store = MemoryThreads(threads=2, age=60, clock=clock)
    await store.save("a", THREAD)
    await store.save("b", THREAD)
    assert await store.load("a") == THREAD
    await store.save("c", THREAD)
    assert [await store.load(key) is not None for key in ("a", "b", "c")] == [True, False, True]
    clock.now += 60
    assert [await store.load(key) for key in ("a", "c")] == [None, None]


@pytest.mark.asyncio
async def test_an_entry_keeps_its_time(make: Callable[..., Any]) -> None:
    bus = make()
    entries = [Entry(1, STARTED, 0.0), Entry(2, TextDelta(0, "a"), 0.125), Entry(3, FINISHED, 12.5)]
    await bus.publish("t1", entries)
    assert await read(bus.subscribe("t1")) == entries


@pytest.mark.asyncio
async def test_a_turns_times_are_those_of_its_events(make: Callable[..., Any]) -> None:
    bus = make()
    moments: Subject[Any] = Subject()
    publishing = asyncio.create_task(publish_turn(moments, bus, "t1"))
    await asyncio.sleep(0)
    for event in (STARTED, TextDelta(0, "a")):
        moments.on_next(event)
    await asyncio.sleep(0.05)
    moments.on_next(FINISHED)
    await publishing
    times = [time for _, _, time in await read(bus.subscribe("t1"))]
    assert times == sorted(times)
    assert times[0] < 0.05 <= times[-1] < 5
