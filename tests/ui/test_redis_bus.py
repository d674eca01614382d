"""A bus on a real Redis: that goes away, falls silent, forgets, and other processes that share it."""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from reactivex.subject import Subject
from redis.asyncio import Redis

from rxloop.errors import ConfigurationError
from rxloop.events import TextDelta, TurnEvent
from rxloop.ui.bus import BusError, Subscription
from rxloop.ui.entry import Entry, TurnFailed
from rxloop.ui.publishing import publish_turn
from rxloop.ui.redis_bus import RedisBus, RedisThreads
from rxloop.ui.threads import Thread
from tests.ui.redis_server import RedisServer, needs_redis
from tests.ui.test_bus import FINISHED, STARTED, following, read, texts, until

pytestmark = needs_redis

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that the test may ill-treat."""
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.kill()


@asynccontextmanager
async def bus_on(server: RedisServer, **options: Any) -> AsyncIterator[RedisBus]:
    bus = RedisBus(server.url, **options)
    try:
        yield bus
    finally:
        await bus.close()


async def in_a_thread(function: Callable[[], None]) -> None:
    """Starting a server takes a while, in which the test goes on."""
    await asyncio.get_running_loop().run_in_executor(None, function)


async def failing(bus: RedisBus, times: int) -> None:
    """Wait until it has tried in vain so many times more."""
    enough = bus._connection.failures + times

    async def failed() -> bool:
        return bus._connection.failures >= enough

    await until(failed)


@pytest.mark.asyncio
async def test_a_restart_in_the_middle_loses_and_doubles_nothing(own_server: RedisServer) -> None:
    entries = [*texts(*map(str, range(600))), Entry(601, FINISHED)]
    async with bus_on(own_server) as publisher, bus_on(own_server) as reader:
        reached = {number: asyncio.Event() for number in (100, 300, 500)}

        async def publish() -> None:
            for start in range(0, len(entries), 3):
                await publisher.publish("t1", entries[start : start + 3])
                if start in reached:
                    reached[start].set()
                await asyncio.sleep(0)

        reached = {number - number % 3: event for number, event in reached.items()}
        publishing, reading = asyncio.create_task(publish()), asyncio.create_task(read(reader.subscribe("t1")))
        for event in reached.values():
            await event.wait()
            own_server.kill()
            await failing(publisher, 1)
            await in_a_thread(own_server.start)
        await publishing
        assert await reading == entries
        assert await read(reader.subscribe("t1")) == entries
        assert publisher._connection.failures >= 3


@pytest.mark.asyncio
async def test_a_turn_goes_on_through_a_long_outage(own_server: RedisServer) -> None:
    events = Subject[TurnEvent]()
    async with bus_on(own_server) as worker, bus_on(own_server) as web:
        publishing = asyncio.create_task(publish_turn(events, worker, "t1"))
        reading = web.subscribe("t1")
        await asyncio.sleep(0)
        events.on_next(STARTED)
        assert [entry[:2] for entry in await following(reading)] == [(1, STARTED)]
        own_server.kill()
        events.on_next(TextDelta(0, "0 "))
        await failing(worker, 5)
        for number in range(1, 1000):
            events.on_next(TextDelta(0, f"{number} "))
        events.on_next(FINISHED)
        events.on_completed()
        await in_a_thread(own_server.start)
        assert await publishing == FINISHED
        *said, last = await read(reading)
        assert last.event == FINISHED
        words = "".join(entry.event.text for entry in said if isinstance(entry.event, TextDelta)).split()
        assert words == [str(number) for number in range(1000)]
        assert len(said) == 2, "what waited is one entry"
        assert not reading.gap


@pytest.mark.asyncio
async def test_a_silent_server_is_not_waited_for_and_then_heard(own_server: RedisServer) -> None:
    entries = [*texts("a", "b", "c"), Entry(4, FINISHED)]
    async with bus_on(own_server, timeout=0.2) as publisher, bus_on(own_server, timeout=0.2, patience=0.3) as reader:
        await publisher.publish("t1", entries[:1])
        subscription = reader.subscribe("t1")
        assert await following(subscription) == entries[:1]
        own_server.freeze()
        publishing = asyncio.create_task(publisher.publish("t1", entries[1:]))
        reading = asyncio.create_task(read(subscription))
        with pytest.raises(BusError, match="Redis does not answer") as caught:
            await reader.exists("t1")
        assert caught.value.retryable
        await failing(publisher, 3)
        assert not publishing.done()
        own_server.thaw()
        # every try that the server had not answered is done now, too
        await publishing
        assert await reading == entries[1:]
        assert await read(reader.subscribe("t1")) == entries


@pytest.mark.asyncio
async def test_a_server_that_forgot_everything_is_gone_on_with(own_server: RedisServer) -> None:
    entries = [*texts("a", "b", "c", "d"), Entry(5, FINISHED)]
    async with bus_on(own_server) as bus:
        await bus.publish("t1", entries[:2])
        subscription = bus.subscribe("t1")
        assert await following(subscription) == entries[:2]
        reading = asyncio.create_task(read(subscription))
        await in_a_thread(own_server.lose)
        await bus.publish("t1", entries[2:])
        assert await reading == entries[2:]
        assert not subscription.gap
        late = bus.subscribe("t1")
        assert await read(late) == entries[2:]
        assert late.gap


@pytest.mark.asyncio
@pytest.mark.parametrize("setting", ["maxmemory", "min-replicas-to-write"])
async def test_what_redis_refuses_for_a_while_is_published_later(own_server: RedisServer, setting: str) -> None:
    async with bus_on(own_server) as bus, Redis.from_url(own_server.url) as admin:
        await admin.config_set(setting, "1")
        publishing = asyncio.create_task(bus.publish("t1", texts("a", "b")))
        await failing(bus, 2)
        await admin.config_set(setting, "0")
        await publishing
        assert await following(bus.subscribe("t1")) == texts("a", "b")


@pytest.mark.asyncio
async def test_a_batch_of_which_a_part_went_in_is_completed(redis_server: RedisServer) -> None:
    prefix = uuid.uuid4().hex
    entries = [*texts(*map(str, range(1200))), Entry(1201, FINISHED)]
    async with bus_on(redis_server, prefix=prefix) as before, bus_on(redis_server, prefix=prefix) as after:
        await before.publish("t1", entries[:700])
        await after.publish("t1", entries)
        assert await read(after.subscribe("t1")) == entries


@asynccontextmanager
async def another_process(script: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A Python program of its own, whose lines can be read."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, *arguments, stdout=asyncio.subprocess.PIPE, env={"PYTHONPATH": str(ROOT)}
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        # its pipe is closed when all of it was read
        await process.communicate()


async def line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(30):
        return (await process.stdout.readline()).decode().strip()


READER = """
import asyncio, json, sys
from rxloop.ui.redis_bus import RedisBus

async def main():
    bus = RedisBus(sys.argv[1], prefix=sys.argv[2])
    print("ready", flush=True)
    async for entries in bus.subscribe("t1", int(sys.argv[3])):
        for number, event, _ in entries:
            print(json.dumps([number, event.to_dict()]), flush=True)
    await bus.close()
    print("over", flush=True)

asyncio.run(main())
"""


@pytest.mark.asyncio
async def test_a_turn_is_read_in_another_process_and_after_its_restart(redis_server: RedisServer) -> None:
    prefix = uuid.uuid4().hex
    entries = [*texts("a", "b"), Entry(3, FINISHED)]
    expected = [json.dumps([number, event.to_dict()]) for number, event, _ in entries]
    async with bus_on(redis_server, prefix=prefix) as bus:
        async with another_process(READER, redis_server.url, prefix, "0") as first:
            assert await line(first) == "ready"
            await bus.publish("t1", entries[:1])
            assert await line(first) == expected[0]
            first.kill()
        await bus.publish("t1", entries[1:2])
        async with another_process(READER, redis_server.url, prefix, "1") as second:
            assert await line(second) == "ready"
            assert await line(second) == expected[1]
            await bus.publish("t1", entries[2:])
            assert [await line(second), await line(second)] == [expected[2], "over"]


WORKER = """
import asyncio, sys
import rxloop
from rxloop.testing import CallTool, ScriptedAdapter
from rxloop.ui.publishing import publish_turn
from rxloop.ui.redis_bus import RedisBus

@rxloop.tool
async def wait() -> str:
    '''Wait for ever.'''
    print("waiting", flush=True)
    await asyncio.Event().wait()
    return "never"

async def main():
    bus, stop = RedisBus(sys.argv[1], prefix=sys.argv[2], lease=1.0), asyncio.Event()
    turn = rxloop.Turn(ScriptedAdapter([CallTool("wait", {})]), "Wait.", tools=[wait], stop=stop)
    last = await publish_turn(turn, bus, "t1", on_stop=stop.set)
    print(last.finish_reason, flush=True)
    await bus.close()

asyncio.run(main())
"""


@pytest.mark.asyncio
async def test_a_turn_is_stopped_from_another_process(redis_server: RedisServer) -> None:
    prefix = uuid.uuid4().hex
    async with (
        bus_on(redis_server, prefix=prefix) as web,
        another_process(WORKER, redis_server.url, prefix) as worker,
    ):
        reading = asyncio.create_task(read(web.subscribe("t1")))
        assert await line(worker) == "waiting"
        await web.request_stop("t1")
        assert await line(worker) == "aborted"
        entries = await reading
        assert getattr(entries[-1].event, "finish_reason", None) == "aborted"


@pytest.mark.asyncio
async def test_watchers_of_a_worker_that_died_are_told_and_of_a_silent_one_not(redis_server: RedisServer) -> None:
    prefix = uuid.uuid4().hex
    async with (
        bus_on(redis_server, prefix=prefix, lease=1.0, timeout=0.4) as web,
        another_process(WORKER, redis_server.url, prefix) as worker,
    ):
        assert await line(worker) == "waiting"
        reading = asyncio.create_task(read(web.subscribe("t1")))
        # as long as a reader waits for one that is gone, and longer
        done, _ = await asyncio.wait([reading], timeout=3.0)
        assert not done, "a worker that is silent is not gone"
        worker.kill()
        entries = await reading
        failed = entries[-1].event
        assert isinstance(failed, TurnFailed)
        assert (failed.error["kind"], failed.error["retryable"]) == ("interrupted", True)
        assert entries[-1].id == entries[-2].id + 1
        # whoever comes later is told as well
        again = await read(web.subscribe("t1", after=entries[-2].id))
        assert [entry.id for entry in again] == [entries[-1].id]


@pytest.mark.asyncio
async def test_an_outage_longer_than_the_lease_is_nobodys_death(own_server: RedisServer) -> None:
    events = Subject[TurnEvent]()
    async with bus_on(own_server, lease=3.0, timeout=0.4) as worker, bus_on(own_server, lease=3.0, timeout=0.4) as web:
        publishing = asyncio.create_task(publish_turn(events, worker, "t1"))
        await asyncio.sleep(0)
        events.on_next(STARTED)
        subscription = web.subscribe("t1")
        assert [entry[:2] for entry in await following(subscription)] == [(1, STARTED)]
        reading = asyncio.create_task(read(subscription))
        own_server.kill()
        # the key that is the worker's sign of life ends while Redis is away
        await asyncio.wait([reading], timeout=3.5)
        await in_a_thread(own_server.start)
        done, _ = await asyncio.wait([reading], timeout=4.0)
        assert not done
        events.on_next(FINISHED)
        events.on_completed()
        assert await publishing == FINISHED
        assert [entry[:2] for entry in await reading] == [(2, FINISHED)]


@pytest.mark.asyncio
async def test_a_publisher_that_is_missed_has_its_time_again_after_an_outage(own_server: RedisServer) -> None:
    async with bus_on(own_server, lease=1.5, timeout=0.4) as bus:
        await bus.publish("t1", texts("a"))
        subscription = bus.subscribe("t1")
        assert await following(subscription) == texts("a")
        reading = asyncio.create_task(read(subscription))

        async def missed() -> bool:
            return getattr(subscription, "_missing_since") is not None  # noqa: B009

        async def looked_again() -> bool:
            return bool(getattr(subscription, "_failures") == bus._connection.failures)  # noqa: B009

        await until(missed)
        own_server.kill()
        await asyncio.wait([reading], timeout=1.6)
        await in_a_thread(own_server.start)
        await until(looked_again)
        assert not reading.done()
        await bus.publish("t1", [Entry(2, FINISHED)])
        assert await reading == [Entry(2, FINISHED)]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "options",
    [
        {"protocol": 2},
        {"protocol": 3},
        {"protocol": 3, "legacy_responses": False},
        {"decode_responses": True},
        {"protocol": 3, "decode_responses": True, "socket_timeout": 1.0},
        {"socket_timeout": 1.0},
    ],
    ids=str,
)
async def test_a_client_of_the_callers_is_used_and_left_open(
    redis_server: RedisServer, options: dict[str, Any]
) -> None:
    try:
        client = Redis(host="127.0.0.1", port=redis_server.port, **options)
    except TypeError:
        pytest.skip("install redis>=8 for legacy_responses")
    bus, threads = RedisBus(client, prefix=uuid.uuid4().hex), RedisThreads(client, prefix=uuid.uuid4().hex)
    subscription = bus.subscribe("t1")
    reading = asyncio.create_task(read(subscription))
    stopping = asyncio.create_task(bus.stop_requested("t1"))
    entries = [*texts("ä", "b", "c"), Entry(4, FINISHED)]
    await asyncio.wait([reading, stopping], timeout=0.1)
    for entry in entries:
        await bus.publish("t1", [entry])
    await bus.publish("t1", entries)
    await bus.request_stop("t1")
    async with asyncio.timeout(20):
        assert await reading == entries
        await stopping
    assert await threads.claim("k", "t1", 60)
    assert await threads.claimed_by("k") == "t1"
    await threads.save("k", Thread([{"role": "user"}]))
    assert await threads.load("k") == Thread([{"role": "user"}])
    await bus.close()
    await threads.close()
    assert await client.ping()
    await client.aclose()


@pytest.mark.asyncio
async def test_every_key_ends_some_day(redis_server: RedisServer) -> None:
    prefix = uuid.uuid4().hex
    threads = RedisThreads(redis_server.url, prefix=prefix, age=100)
    async with bus_on(redis_server, prefix=prefix, age=100) as bus, Redis.from_url(redis_server.url) as admin:
        await bus.publish("t1", texts("a"))
        await bus.request_stop("t1")
        await threads.save("k", Thread())
        await threads.claim("k", "t1", 100)
        keys = await admin.keys(f"{prefix}*")
        assert len(keys) == 6
        assert [key for key in keys if not 0 < await admin.pttl(key) <= 100_000] == []
        await bus.publish("t1", [Entry(2, FINISHED)])
        assert not await admin.exists(f"{prefix}alive:t1")
    await threads.close()


@pytest.mark.asyncio
async def test_credentials_are_never_shown(own_server: RedisServer) -> None:
    own_server.kill()
    own_server.start("--requirepass", "right")
    # its parts are apart, as a traceback shows the lines of this file, too
    secret = "".join(("s3c", "r3t"))
    bus = RedisBus(f"redis://:{secret}@127.0.0.1:{own_server.port}/0")
    threads = RedisThreads(f"redis://:{secret}@127.0.0.1:{own_server.port}/0")
    shown = [repr(bus), repr(threads), repr(bus.subscribe("t1"))]
    operations: list[Callable[[], Awaitable[Any]]] = [
        lambda: bus.publish("t1", texts("a")),
        lambda: bus.exists("t1"),
        lambda: bus.request_stop("t1"),
        lambda: bus.stop_requested("t1"),
        lambda: following(bus.subscribe("t1")),
        lambda: threads.claim("k", "t1", 1),
    ]
    for operation in operations:
        with pytest.raises(BusError, match="Redis refuses") as caught:
            async with asyncio.timeout(20):
                await operation()
        assert not caught.value.retryable
        shown += traceback.format_exception(caught.value)
    await bus.close()
    await threads.close()
    with pytest.raises(ConfigurationError, match="url must be redis://") as malformed:
        RedisBus(f"redis://:{secret}/{secret}@127.0.0.1:1/0")
    shown += traceback.format_exception(malformed.value)
    assert secret not in "".join(shown)


@pytest.mark.asyncio
async def test_what_does_not_wait_for_redis_gives_up(own_server: RedisServer) -> None:
    own_server.kill()
    threads = RedisThreads(own_server.url, patience=0.1)
    async with bus_on(own_server, patience=0.1) as bus:
        operations: list[Callable[[], Awaitable[Any]]] = [
            lambda: bus.exists("t1"),
            lambda: bus.request_stop("t1"),
            lambda: threads.claim("k", "t1", 1),
            lambda: threads.load("k"),
            lambda: threads.save("k", Thread()),
        ]
        for operation in operations:
            with pytest.raises(BusError, match="Redis does not answer") as caught:
                async with asyncio.timeout(20):
                    await operation()
            assert caught.value.retryable
    await threads.close()


@pytest.mark.asyncio
async def test_a_stop_is_heard_after_an_outage(own_server: RedisServer) -> None:
    async with bus_on(own_server) as worker, bus_on(own_server) as web:
        waiting = asyncio.create_task(worker.stop_requested("t1"))
        await asyncio.wait([waiting], timeout=0.2)
        own_server.kill()
        await failing(worker, 2)
        also = asyncio.create_task(worker.stop_requested("t2"))
        await in_a_thread(own_server.start)
        await web.request_stop("t1")
        await web.request_stop("t2")
        async with asyncio.timeout(20):
            await asyncio.gather(waiting, also)


@pytest.mark.asyncio
async def test_what_others_put_into_a_stream_is_refused(redis_server: RedisServer) -> None:
    prefix = uuid.uuid4().hex
    async with bus_on(redis_server, prefix=prefix) as bus, Redis.from_url(redis_server.url) as other:
        await other.xadd(f"{prefix}turn:t1", {"other": "thing"}, id="1-0")
        with pytest.raises(BusError, match="must hold events, but entry 1 is none"):
            await following(bus.subscribe("t1"))
        await other.set(f"{prefix}turn:t2", "no stream")
        with pytest.raises(BusError, match=r"Redis refuses: .*wrong kind"):
            await bus.publish("t2", texts("a"))


async def _stopped(bus: RedisBus, threads: RedisThreads) -> None:
    await bus.stop_requested("t1")


async def _published(bus: RedisBus, threads: RedisThreads) -> None:
    await bus.publish("t1", texts("a"))


async def _read(bus: RedisBus, threads: RedisThreads) -> None:
    subscription: Subscription = bus.subscribe("t1", after=1)
    await anext(subscription)


async def _existed(bus: RedisBus, threads: RedisThreads) -> None:
    await bus.exists("t1")


async def _asked(bus: RedisBus, threads: RedisThreads) -> None:
    await bus.request_stop("t9")


async def _claimed(bus: RedisBus, threads: RedisThreads) -> None:
    await threads.claim("k", "t1", 60)


async def _turn(bus: RedisBus, threads: RedisThreads) -> None:
    await publish_turn(Subject[TurnEvent](), bus, uuid.uuid4().hex, on_stop=lambda: None)


@pytest.mark.asyncio
@pytest.mark.parametrize("operation", [_stopped, _published, _read, _existed, _asked, _claimed, _turn])
async def test_cancelled_at_any_moment_nothing_is_left(
    redis_server: RedisServer, operation: Callable[[RedisBus, RedisThreads], Awaitable[None]]
) -> None:
    prefix = uuid.uuid4().hex
    for rounds in range(40):
        # a new bus has to connect first, which is more to be cancelled in
        bus, threads = RedisBus(redis_server.url, prefix=prefix), RedisThreads(redis_server.url, prefix=prefix)
        running = asyncio.ensure_future(operation(bus, threads))
        for _ in range(rounds):
            await asyncio.sleep(0)
        running.cancel()
        async with asyncio.timeout(2):
            with suppress(asyncio.CancelledError):
                await running
            assert len(asyncio.all_tasks()) == 1, "it must leave no task"
            # the connection that it used is whole, or was given up
            await bus.publish("t2", [*texts("a"), Entry(2, FINISHED)])
            assert len(await read(bus.subscribe("t2"))) == 2
            assert not bus._connection.client.connection_pool._in_use_connections
            await bus.close()
            await threads.close()


@pytest.mark.asyncio
async def test_closing_while_redis_is_silent_does_not_hang(own_server: RedisServer) -> None:
    bus = RedisBus(own_server.url, timeout=30)
    subscription = bus.subscribe("t1")
    await bus.publish("t1", texts("a"))
    assert await following(subscription) == texts("a")
    reading = asyncio.create_task(read(subscription))
    own_server.freeze()
    publishing = asyncio.create_task(bus.publish("t1", texts("b", first=2)))
    await asyncio.wait([reading, publishing], timeout=0.1)
    async with asyncio.timeout(5):
        await bus.close()
        assert await reading == []
        with pytest.raises(ConfigurationError, match="closed"):
            await publishing
    own_server.thaw()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length must be a whole number >= 1, but got 0"),
        ({"lease": 0}, "lease must be > 0 seconds, and finite, but got 0"),
        ({"timeout": None}, "timeout must be > 0 seconds, and finite, but got None"),
        ({"patience": float("inf")}, "patience must be > 0 seconds, and finite, but got inf"),
        ({"age": 5, "lease": 6}, "age must be >= lease, but got 5 and 6 seconds"),
        ({"prefix": b"x"}, "prefix must be str, but got b'x'"),
    ],
)
def test_settings_that_break_their_rules_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        RedisBus("redis://127.0.0.1:1/0", **options)


def test_a_client_must_be_one() -> None:
    with pytest.raises(ConfigurationError, match=r"client must be a redis\.asyncio\.Redis or a URL, but got a int"):
        RedisBus(5)  # type: ignore[arg-type]


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigurationError, match=r'pip install "rxloop\[redis\]"'):
        RedisBus("redis://127.0.0.1:1/0")
