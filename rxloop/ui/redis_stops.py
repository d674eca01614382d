"""Stop requests over Redis: one connection for all turns of a process."""

from __future__ import annotations

import asyncio

from rxloop.ui.redis_connection import RedisConnection, records_of

__all__ = ("RedisStops",)

_KEPT = 10_000
"""So many of the latest requests are kept for those who listen; each has a key of its own beside."""


class RedisStops:
    """
    Who waits for a stop request; one task listens for all of them, while there are any.

    Args:
        connection: the way to Redis.
        prefix: what every key begins with.
        age: the seconds for which a request is remembered.
    """

    def __init__(self, connection: RedisConnection, prefix: str, age: float) -> None:
        """See the class."""
        self._connection = connection
        self._requests = f"{prefix}stops"
        self._prefix = f"{prefix}stop:"
        self._age = int(1000 * age)
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._listener: asyncio.Task[None] | None = None

    async def request(self, stream: str, patience: float) -> None:
        """Ask for a stop."""

        async def ask() -> None:
            pipe = self._connection.client.pipeline(transaction=False)
            # the key first: one who looks for it and finds nothing hears of the request
            pipe.set(self._prefix + stream, 1, px=self._age)
            pipe.xadd(self._requests, {"stream": stream}, maxlen=_KEPT, approximate=True)
            pipe.pexpire(self._requests, self._age)
            await pipe.execute()

        await self._connection.call(ask, patience=patience)

    async def requested(self, stream: str) -> None:
        """Wait until somebody asks, or has asked."""
        asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(stream, set()).add(asked)
        try:
            if self._listener is None:
                self._listener = asyncio.create_task(self._listen())
            else:
                # it hears what comes from now on
                await self._connection.call(lambda: self._look([stream]))
            await asked
        finally:
            await self._leave(stream, asked)

    async def _leave(self, stream: str, asked: asyncio.Future[None]) -> None:
        waiting = self._waiting[stream]
        waiting.discard(asked)
        asked.cancel()
        if not waiting:
            del self._waiting[stream]
        if not self._waiting and self._listener is not None:
            listener, self._listener = self._listener, None
            listener.cancel()
            await asyncio.wait([listener])

    async def _listen(self) -> None:
        try:
            position = await self._connection.call(self._begin)
            while True:
                position = await self._next(position)
                # whoever was told leaves first, so that nobody is listened for in vain
                await asyncio.sleep(0)
        except Exception as error:
            self._listener = None
            for waiting in self._waiting.values():
                for asked in waiting:
                    if not asked.done():
                        asked.set_exception(error)

    async def _begin(self) -> str:
        latest = await self._connection.client.xrevrange(self._requests, count=1)
        await self._look(list(self._waiting))
        return _text(latest[0][0]) if latest else "0-0"

    async def _look(self, streams: list[str]) -> None:
        pipe = self._connection.client.pipeline(transaction=False)
        for stream in streams:
            pipe.exists(self._prefix + stream)
        for stream, found in zip(streams, await pipe.execute(), strict=True):
            if found:
                self._tell(stream)

    async def _next(self, position: str) -> str:
        block = self._connection.block
        requests = await self._connection.call(
            lambda: self._connection.client.xread({self._requests: position}, count=_KEPT, block=int(1000 * block)),
            seconds=block + self._connection.timeout,
        )
        for request_id, fields in records_of(requests):
            position = _text(request_id)
            self._tell(_text(fields.get(b"stream") or fields.get("stream") or ""))
        return position

    def _tell(self, stream: str) -> None:
        for asked in self._waiting.get(stream, ()):
            if not asked.done():
                asked.set_result(None)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
