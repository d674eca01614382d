"""A bus on Redis, for turns that run in one process and are watched in others; and threads kept there."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from rxloop.checks import instance, whole
from rxloop.errors import ConfigurationError
from rxloop.ui.bus import BusError, EventBus, Subscription, check_entries, check_seconds, check_stream, interrupted
from rxloop.ui.entry import Entry, is_end, stream_event_from_dict
from rxloop.ui.redis_connection import RedisConnection, records_of
from rxloop.ui.redis_stops import RedisStops
from rxloop.ui.threads import Thread, ThreadStore, TurnNote

if TYPE_CHECKING:
    from redis.asyncio import Redis

__all__ = ("RedisBus", "RedisThreads")

_AT_ONCE = 500
"""So many entries are sent, or read, in one round trip."""

_REMEMBERED = 10_000
"""Of so many streams the publisher's last id is known, for readers to see what they have missed."""


class RedisBus(EventBus):
    """
    A bus on Redis Streams.

    Redis may go away and come back. Meanwhile `publish` tries again, with growing and random pauses of at most 2
    seconds; ids make a second try exact, so that nothing is lost or doubled. Subscriptions connect again and go on
    after their last id. Where Redis comes back without its data, publishers and subscriptions go on with the ids that
    they have, and only who comes later misses what was lost. Everything else gives up after `patience`.

    A publisher's sign of life is a key that expires. Where it is gone, and stays so for as long again, the turn has
    ended for its subscribers with a `TurnFailed` of the kind "interrupted".

    Each subscription uses a connection, and so do all stop requests together. A client with fewer than these
    (``max_connections``) makes them wait for one another.

    Args:
        client: a URL (``redis://``, ``rediss://``, ``unix://``), or a ``redis.asyncio.Redis``, which stays yours to
            close.
        prefix: what every key begins with.
        length: about the most entries kept of a stream; Redis trims in blocks, up to 100 more are left.
        age: the seconds for which a stream is kept after its publisher's last sign of life.
        lease: the seconds for which a sign of life holds.
        timeout: the seconds in which Redis has to answer; then it is asked again, on another connection.
        patience: the seconds for which `exists` and `request_stop` try.

    Raises:
        ConfigurationError: a value breaks its rule, or the package ``redis`` is missing.
    """

    def __init__(
        self,
        client: Redis | str,
        *,
        prefix: str = "rxloop:",
        length: int = 10_000,
        age: float = 3600.0,
        lease: float = 10.0,
        timeout: float = 5.0,
        patience: float = 5.0,
    ) -> None:
        """See the class."""
        whole("length", length, minimum=1)
        instance("prefix", prefix, str)
        for name, seconds in (("age", age), ("lease", lease), ("patience", patience)):
            check_seconds(name, seconds)
        if age < lease:
            raise ConfigurationError(f"age must be >= lease, but got {age!r} and {lease!r} seconds")
        self._connection = RedisConnection(client, timeout=timeout)
        self._stops = RedisStops(self._connection, prefix, age)
        self._prefix = prefix
        self._length = length
        self._age = int(1000 * age)
        self._lease = lease
        self._patience = patience
        self._published: OrderedDict[str, int] = OrderedDict()

    def __repr__(self) -> str:
        return f"<RedisBus {self._prefix!r}>"

    @property
    def heartbeat(self) -> float:
        """A third of the lease."""
        return self._lease / 3

    async def publish(self, stream: str, entries: Sequence[Entry]) -> None:
        """Append; see `EventBus`. While Redis is away it waits."""
        check_stream("stream", stream)
        check_entries(entries)
        end = next((index for index, entry in enumerate(entries) if is_end(entry.event)), None)
        if end is not None:
            entries = entries[: end + 1]
        records = self._records(stream, entries)
        for start in range(0, len(records) or 1, _AT_ONCE):
            ended = end is not None and end < start + _AT_ONCE
            some = records[start : start + _AT_ONCE]
            await self._connection.call(partial(self._append, stream, some, ended))
        if end is not None:
            self._published.pop(stream, None)
        elif entries:
            self._published[stream] = entries[-1].id
            self._published.move_to_end(stream)
            if len(self._published) > _REMEMBERED:
                self._published.popitem(last=False)

    def subscribe(self, stream: str, after: int = 0) -> Subscription:
        """Read a stream; see `EventBus`."""
        check_stream("stream", stream)
        whole("after", after, minimum=0)
        self._connection.check_open()
        return _RedisSubscription(self._connection, self._log(stream), self._alive(stream), after, self._lease)

    async def exists(self, stream: str) -> bool:
        """Whether it was published to, and is kept."""
        client, keys = self._connection.client, (self._log(stream), self._alive(stream))
        return bool(await self._connection.call(lambda: client.exists(*keys), patience=self._patience))

    async def request_stop(self, stream: str) -> None:
        """Ask the turn to stop."""
        check_stream("stream", stream)
        await self._stops.request(stream, self._patience)

    async def stop_requested(self, stream: str) -> None:
        """Wait until the turn is asked to stop."""
        check_stream("stream", stream)
        await self._stops.requested(stream)

    async def close(self) -> None:
        """End all subscriptions, and close the client unless it was given."""
        await self._connection.close()

    def _log(self, stream: str) -> str:
        return f"{self._prefix}turn:{stream}"

    def _alive(self, stream: str) -> str:
        return f"{self._prefix}alive:{stream}"

    def _records(self, stream: str, entries: Sequence[Entry]) -> list[tuple[str, dict[str, str | int]]]:
        records: list[tuple[str, dict[str, str | int]]] = []
        last = self._published.get(stream)
        for number, event, time in entries:
            fields: dict[str, str | int] = {"e": json.dumps(event.to_dict(), separators=(",", ":"), default=str)}
            if time:
                fields["t"] = str(time)
            if last is not None:
                fields["p"] = last
            records.append((f"{number}-0", fields))
            last = number
        return records

    async def _append(self, stream: str, records: list[tuple[str, dict[str, str | int]]], ended: bool) -> None:
        from redis.exceptions import ResponseError

        log, alive = self._log(stream), self._alive(stream)
        pipe = self._connection.client.pipeline(transaction=False)
        for record_id, fields in records:
            pipe.xadd(log, fields, id=record_id, maxlen=self._length, approximate=True)
        pipe.pexpire(log, self._age)
        if ended:
            pipe.delete(alive)
        else:
            pipe.set(alive, 1, px=int(1000 * self._lease))
        for answer in await pipe.execute(raise_on_error=False):
            # an id that is not above the last one arrived with an earlier try
            if isinstance(answer, ResponseError) and "equal or smaller" in str(answer):
                continue
            if isinstance(answer, Exception):
                raise answer


class _RedisSubscription(Subscription):
    __slots__ = (
        "_alive",
        "_connection",
        "_failures",
        "_gap",
        "_last",
        "_lease",
        "_left",
        "_log",
        "_missing_since",
        "_ready",
    )

    def __init__(self, connection: RedisConnection, log: str, alive: str, after: int, lease: float) -> None:
        self._connection = connection
        self._log = log
        self._alive = alive
        self._last = after
        self._lease = lease
        self._missing_since: float | None = None
        self._failures = 0
        self._gap = self._left = self._ready = False

    def __repr__(self) -> str:
        return f"<Subscription to {self._log} after {self._last}>"

    @property
    def gap(self) -> bool:
        return self._gap

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Sequence[Entry]:
        while not self._left and not self._connection.closed:
            try:
                # what is there is asked for without waiting, then only when nothing has come
                records = await (self._wait() if self._ready else self._look())
            except ConfigurationError:
                break
            self._ready = bool(records) or not self._ready
            entries = self._entries(records)
            if entries:
                return entries
        self._left = True
        raise StopAsyncIteration

    async def _wait(self) -> list[Any]:
        block = self._connection.block
        return records_of(
            await self._connection.call(
                lambda: self._connection.client.xread(
                    {self._log: f"{self._last}-0"}, count=_AT_ONCE, block=int(1000 * block)
                ),
                seconds=block + self._connection.timeout,
            )
        )

    async def _look(self) -> list[Any]:
        """What is there, and whether there will be more."""

        async def look() -> list[Any]:
            pipe = self._connection.client.pipeline(transaction=False)
            pipe.xrange(self._log, min=f"({self._last}-0", count=_AT_ONCE)
            pipe.xrevrange(self._log, count=1)
            pipe.exists(self._alive)
            answers: list[Any] = await pipe.execute()
            return answers

        records, latest, alive = await self._connection.call(look)
        now = asyncio.get_running_loop().time()
        if records or alive:
            self._missing_since = None
        elif latest and is_end(_entry(*latest[0])[0].event):
            self._left = True
        elif self._missing_since is None or self._failures != self._connection.failures:
            # a publisher needs a while to find a Redis that was away
            self._missing_since = now
            self._failures = self._connection.failures
        elif now - self._missing_since >= self._lease:
            self._left = True
            failed = interrupted(f"its worker gave no sign of life for {self._lease:g} s")
            return [(f"{self._last + 1}-0", {"e": json.dumps(failed.to_dict())})]
        return list(records)

    def _entries(self, records: list[Any]) -> list[Entry]:
        if records:
            self._missing_since = None
        entries: list[Entry] = []
        for record_id, fields in records:
            entry, previous = _entry(record_id, fields)
            self._gap = self._gap or previous > self._last
            self._last = entry.id
            entries.append(entry)
            if is_end(entry.event):
                self._left = True
                break
        return entries

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._left = True

    async def aclose(self) -> None:
        self._left = True


def _entry(record_id: bytes | str, fields: dict[Any, Any]) -> tuple[Entry, int]:
    """An entry, and the id of the one before it, 0 if that is not known."""
    number = int(record_id.split(b"-")[0] if isinstance(record_id, bytes) else record_id.split("-")[0])
    try:
        data = json.loads(fields.get(b"e") or fields["e"])
        time = float(fields.get(b"t") or fields.get("t") or 0)
        return Entry(number, stream_event_from_dict(data), time), int(fields.get(b"p") or fields.get("p") or 0)
    except (KeyError, TypeError, ValueError) as error:
        raise BusError(f"the stream must hold events, but entry {number} is none") from error


_CLAIM = """
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class RedisThreads(ThreadStore):
    """
    Threads on Redis, for any number of processes.

    Args:
        client: a URL, or a ``redis.asyncio.Redis`` that stays yours to close.
        prefix: what every key begins with.
        age: the seconds for which a thread is kept that nobody saves or loads; ``None`` for ever. Their number is
            bounded by Redis itself (``maxmemory``).
        timeout: the seconds in which Redis has to answer.
        patience: the seconds after which an operation fails with `BusError` while Redis is away.

    Raises:
        ConfigurationError: a value breaks its rule, or the package ``redis`` is missing.
    """

    def __init__(
        self,
        client: Redis | str,
        *,
        prefix: str = "rxloop:",
        age: float | None = 7 * 86_400.0,
        timeout: float = 5.0,
        patience: float = 5.0,
    ) -> None:
        """See the class."""
        instance("prefix", prefix, str)
        if age is not None:
            check_seconds("age", age)
        check_seconds("patience", patience)
        self._connection = RedisConnection(client, timeout=timeout)
        self._prefix = prefix
        self._age = None if age is None else int(1000 * age)
        self._patience = patience

    def __repr__(self) -> str:
        return f"<RedisThreads {self._prefix!r}>"

    async def load(self, key: str) -> Thread | None:
        """The thread; see `ThreadStore`."""
        check_stream("key", key)
        kept = await self._call("getex", f"{self._prefix}thread:{key}", px=self._age)
        if kept is None:
            return None
        data = json.loads(kept)
        return Thread(data["conversation"], tuple(TurnNote(**note) for note in data["turns"]))

    async def save(self, key: str, thread: Thread) -> None:
        """Keep the thread; see `ThreadStore`."""
        check_stream("key", key)
        turns = [asdict(note) for note in thread.turns]
        data = json.dumps({"conversation": list(thread.conversation), "turns": turns}, separators=(",", ":"))
        await self._call("set", f"{self._prefix}thread:{key}", data, px=self._age)

    async def claim(self, key: str, turn_id: str, seconds: float) -> bool:
        """Take or renew the claim; see `ThreadStore`."""
        check_stream("key", key)
        check_stream("turn_id", turn_id)
        check_seconds("seconds", seconds)
        name = f"{self._prefix}claim:{key}"
        return bool(await self._call("eval", _CLAIM, 1, name, turn_id, max(1, int(1000 * seconds))))

    async def release(self, key: str, turn_id: str) -> None:
        """Give the claim back; see `ThreadStore`."""
        check_stream("key", key)
        await self._call("eval", _RELEASE, 1, f"{self._prefix}claim:{key}", turn_id)

    async def claimed_by(self, key: str) -> str | None:
        """The turn that has the claim."""
        check_stream("key", key)
        holder = await self._call("get", f"{self._prefix}claim:{key}")
        return holder.decode() if isinstance(holder, bytes) else holder

    async def close(self) -> None:
        """Close the client unless it was given."""
        await self._connection.close()

    async def _call(self, command: str, *arguments: Any, **options: Any) -> Any:
        operation = getattr(self._connection.client, command)
        return await self._connection.call(partial(operation, *arguments, **options), patience=self._patience)
