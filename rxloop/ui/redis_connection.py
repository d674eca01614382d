"""The way to Redis: tried again while it is away, never silent for ever, ended at once when it is closed."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from rxloop.errors import ConfigurationError
from rxloop.ui.bus import BusError, check_seconds

if TYPE_CHECKING:
    from redis.asyncio import Redis

__all__ = ("RedisConnection", "records_of")

T = TypeVar("T")

_FIRST_DELAY = 0.05
_MAX_DELAY = 2.0
_CONNECTIONS = 100_000
_FOR_A_WHILE = ("BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY", "TRYAGAIN")
"""Words with which Redis refuses what it may accept later: https://redis.io/docs/latest/develop/reference/protocol-spec"""


class RedisConnection:
    """
    A client of Redis, and how long to try.

    Args:
        client: a ``redis.asyncio.Redis``, which stays the caller's to close, or a URL.
        timeout: the seconds in which Redis has to answer one request; then it is asked on another connection.

    Raises:
        ConfigurationError: a value breaks its rule, or the package is missing.
    """

    def __init__(self, client: Redis | str, *, timeout: float) -> None:
        """See the class."""
        check_seconds("timeout", timeout)
        self._owned = isinstance(client, str)
        self.client: Any = _client(client, timeout) if isinstance(client, str) else _checked(client)
        self.timeout = timeout
        own_timeout = self.client.connection_pool.connection_kwargs.get("socket_timeout")
        self.block = min(timeout, own_timeout or timeout) / 2
        """The seconds for which Redis may hold an answer back before the socket is taken for silent."""
        self.closed = False
        self.failures = 0
        """How many attempts have failed."""
        self._scopes: set[asyncio.Timeout] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    async def call(
        self, operation: Callable[[], Awaitable[T]], *, patience: float | None = None, seconds: float | None = None
    ) -> T:
        """
        Do something with the client, again and again while Redis is away.

        Args:
            operation: what to do; it may be done more than once.
            patience: the seconds after which it is given up; ``None`` for never.
            seconds: what one attempt may take, where it is not the connection's own.

        Raises:
            BusError: Redis refuses it, or `patience` ran out.
            ConfigurationError: the connection was closed.
        """
        from redis.exceptions import RedisError

        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        cancellations = task.cancelling() if task else 0
        deadline = None if patience is None else loop.time() + patience
        delay = _FIRST_DELAY
        while True:
            left = seconds or self.timeout
            if deadline is not None:
                left = min(left, max(0.0, deadline - loop.time()))
            try:
                async with self._within(left):
                    answer = await operation()
            except (RedisError, OSError) as error:
                self.failures += 1
                self.check_open()
                if not _passes(error):
                    raise BusError(f"Redis refuses: {error}", retryable=False) from error
                if deadline is not None and loop.time() + delay >= deadline:
                    raise BusError(f"Redis does not answer: {_words(error)}", retryable=True) from error
            else:
                if task is not None and task.cancelling() > cancellations:
                    # a client of the caller's may have swallowed it
                    raise asyncio.CancelledError
                return answer
            with contextlib.suppress(TimeoutError):
                # many that have lost the same Redis must not come back in step
                async with self._within(delay * random.uniform(0.5, 1.0)):  # noqa: S311
                    await loop.create_future()
            delay = min(2 * delay, _MAX_DELAY)

    async def close(self) -> None:
        """End whatever waits, and close the client where it is no one else's."""
        self.closed = True
        now = asyncio.get_running_loop().time()
        for scope in self._scopes:
            if not scope.expired():
                scope.reschedule(now)
        # connections are in use until then
        await self._idle.wait()
        if self._owned:
            await self.client.aclose()

    def check_open(self) -> None:
        """
        Check that it was not closed.

        Raises:
            ConfigurationError: it was.
        """
        if self.closed:
            raise ConfigurationError("the bus must be open, but it was closed")

    @contextlib.asynccontextmanager
    async def _within(self, seconds: float) -> AsyncIterator[None]:
        self.check_open()
        async with asyncio.timeout(seconds) as scope:
            self._scopes.add(scope)
            self._idle.clear()
            try:
                yield
            finally:
                self._scopes.discard(scope)
                if not self._scopes:
                    self._idle.set()


def records_of(reply: Any) -> list[tuple[Any, dict[Any, Any]]]:
    """The records of the only stream that was asked for, in each of the shapes that the protocols' versions give."""
    if not reply:
        return []
    records: list[Any] = next(iter(reply.values())) if isinstance(reply, dict) else reply[0][1]
    return records[0] if records and isinstance(records[0], list) else records


def _client(url: str, timeout: float) -> Any:
    _check_package()
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    try:
        return Redis.from_url(
            url,
            max_connections=_CONNECTIONS,
            # every attempt has its time and is repeated here; before Python 3.12 a timeout of the socket's may, beside
            # that, swallow a cancellation, as it is made of asyncio.wait_for
            socket_timeout=None,
            socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError:
        # the error's own words may be a part of the password
        raise ConfigurationError(
            "url must be redis://user:password@host:6379/0, rediss:// or unix://, with what is special in the "
            "password percent-encoded, but got something else (not shown, as it may hold the password)"
        ) from None


def _checked(client: Any) -> Any:
    _check_package()
    from redis.asyncio import Redis

    if not isinstance(client, Redis):
        raise ConfigurationError(f"client must be a redis.asyncio.Redis or a URL, but got a {type(client).__name__}")
    return client


def _check_package() -> None:
    try:
        import redis  # noqa: F401
    except ImportError as error:
        raise ConfigurationError('a bus on Redis needs its extra: pip install "rxloop[redis]"') from error


def _passes(error: Exception) -> bool:
    """Whether the same may succeed later."""
    from redis import exceptions

    if isinstance(error, (exceptions.AuthenticationError, exceptions.AuthorizationError)):
        return False
    if isinstance(error, exceptions.ResponseError):
        return isinstance(
            error,
            (
                exceptions.ClusterDownError,
                exceptions.MasterDownError,
                exceptions.OutOfMemoryError,
                exceptions.ReadOnlyError,
                exceptions.TryAgainError,
            ),
        ) or str(error).startswith(_FOR_A_WHILE)
    return isinstance(error, (exceptions.ConnectionError, exceptions.TimeoutError, OSError))


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
