"""How boto3 is asked: for the bytes of an event stream where it has them, or for its public events."""

from __future__ import annotations

import http.client
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from traceback import walk_tb
from types import GeneratorType
from typing import Any

from rxloop.adapters.aws_errors import causes
from rxloop.adapters.blocking import read_on_thread
from rxloop.errors import ConfigurationError

__all__ = ("Reply", "call_for_stream", "default_client", "send_body")

_CONNECTIONS = 256
_READ_TIMEOUT = 600
_CONNECT_TIMEOUT = 10
_MOST_BYTES = 64 * 1024
_MOST_EVENTS = 256
_FORMAT_ERRORS = (AttributeError, LookupError, TypeError, ValueError, struct.error)

_body: ContextVar[bytes | None] = ContextVar("rxloop_request_body", default=None)
"""The body of the request that this context sends."""

_source: ContextVar[_EventStream | None] = ContextVar("rxloop_source", default=None)
"""Who this context sends its requests for."""


@dataclass(frozen=True, slots=True)
class Reply:
    """
    An open reply.

    Args:
        response: what the SDK's call returned.
        chunks: the body's bytes as they arrive, or lists of the SDK's public events.
        is_bytes: which of the two it is.
    """

    response: Mapping[str, Any]
    chunks: AsyncIterator[Any]
    is_bytes: bool


def default_client(service: str) -> Any:
    """
    A client of rxloop's own: the turn owns the retries, and 256 connections are kept for as many turns at once.

    It waits for at most 10 s for a connection and 600 s for each piece of a reply.

    Raises:
        ConfigurationError: the SDK is not installed, or there is no region.
    """
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, NoRegionError
    except ImportError as error:
        raise ConfigurationError('the adapters for AWS need boto3: pip install "rxloop[aws]"') from error
    config = Config(
        connect_timeout=_CONNECT_TIMEOUT,
        max_pool_connections=_CONNECTIONS,
        read_timeout=_READ_TIMEOUT,
        retries={"mode": "standard", "total_max_attempts": 1},
        tcp_keepalive=True,
    )
    try:
        # a session of its own: the default one is not safe among threads
        return boto3.Session().client(service, config=config)
    except NoRegionError as error:
        raise ConfigurationError("there is no region: set AWS_DEFAULT_REGION, or one in AWS's own files") from error
    except (BotoCoreError, ValueError) as error:
        raise ConfigurationError(f"the client cannot be made: {error}") from error


def send_body(client: Any, service: str, operation: str) -> None:
    """
    Let the client send a body that `call_for_stream` is given, instead of what the SDK would make of keywords.

    What was left before it came to be sent is not sent any more. Every other use of the client stays as it is. The
    events are public ones of the SDK.

    Source: https://boto3.amazonaws.com/v1/documentation/api/latest/guide/events.html
    """
    events = client.meta.events
    events.register(f"before-call.{service}.{operation}", _put_body, unique_id="rxloop-body")
    events.register(f"before-send.{service}.{operation}", _refuse_what_was_left, unique_id="rxloop-left")


def _put_body(params: dict[str, Any], **_: Any) -> None:
    body = _body.get()
    if body is not None:
        # a handler of the caller's may make a call of its own meanwhile
        _body.set(None)
        params["body"] = body
        params["headers"]["Content-Type"] = "application/json"


def _refuse_what_was_left(**_: Any) -> None:
    source = _source.get()
    if source is not None and source.left:
        raise RuntimeError("the reply was left before it was asked for")


def call_for_stream(
    call: Callable[[], Mapping[str, Any]], member: str, *, body: bytes | None = None, as_bytes: bool = True
) -> AbstractAsyncContextManager[Reply]:
    """
    Make a call on a thread, and read the event stream that it returns as it arrives.

    Leaving the context ends the thread and the connection, whatever they wait for.

    Args:
        call: the SDK's call.
        member: where its response has the stream.
        body: sent instead of what the SDK makes of the call's keywords, after `send_body`.
        as_bytes: whether the bytes are wanted, where they can be had.

    Raises:
        Exception: what the SDK or its transport raises.
    """
    return _reply(_EventStream(call, member, body, as_bytes))


@asynccontextmanager
async def _reply(source: _EventStream) -> AsyncIterator[Reply]:
    async with read_on_thread(source) as pieces:
        chunks: AsyncIterator[Any] = _Joined(pieces) if source.is_bytes else pieces
        yield Reply(source.response, chunks, source.is_bytes)


class _Joined:
    """Pieces of the body, those that arrived together as one."""

    def __init__(self, pieces: AsyncIterator[list[bytes]]) -> None:
        self._pieces = pieces

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        pieces = await anext(self._pieces)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class _EventStream:
    """A call of the SDK whose response has an event stream."""

    def __init__(self, call: Callable[[], Mapping[str, Any]], member: str, body: bytes | None, as_bytes: bool) -> None:
        self._call = call
        self._member = member
        self._body = body
        self.as_bytes = as_bytes
        self._stream: Any = None
        self._raw: Any = None
        self.response: Mapping[str, Any] = {}
        self.is_bytes = False
        self.left = False

    @property
    def sized(self) -> bool:
        return self.is_bytes

    @property
    def most(self) -> int:
        return _MOST_BYTES if self.is_bytes else _MOST_EVENTS

    def open(self) -> Iterator[Any]:
        # the thread has a context of its own
        _body.set(self._body)
        _source.set(self)
        try:
            self.response = self._call()
        except Exception as error:
            _release(error)
            if isinstance(error, _FORMAT_ERRORS) and _is_parsers(error):
                raise _unreadable(error) from error
            raise
        self._stream = self.response[self._member]
        raw = _raw_stream(self._stream) if self.as_bytes else None
        if raw is None:
            return _items_of(iter(self._stream))
        self._raw = raw
        self.is_bytes = True
        return _items_of(raw.stream())

    def close(self) -> None:
        # the client's connections live as long as anything of a reply does
        stream, self._stream, self._raw, self.response = self._stream, None, None, {}
        if stream is not None:
            # it refers to itself, and would be there until the garbage is collected
            generator = getattr(stream, "_event_generator", None)
            if isinstance(generator, GeneratorType):
                generator.close()
            stream.close()

    def interrupt(self, thread: int) -> None:
        self.left = True
        raw = self._raw
        if raw is not None:
            # not reached any more, or without a socket, as a recorded reply is
            with suppress(AttributeError, OSError, RuntimeError, ValueError):
                raw.shutdown()
            return
        waiting = _socket_of(thread)
        if waiting is not None:
            with suppress(OSError):
                waiting.shutdown(socket.SHUT_RDWR)


def _items_of(items: Iterator[Any]) -> Iterator[Any]:
    """What the SDK gives. What it stumbles over, such as a header of an unknown type, is a fault of the reply."""
    try:
        yield from items
    except Exception as error:
        _release(error)
        if isinstance(error, _FORMAT_ERRORS):
            raise _unreadable(error) from error
        raise


def _release(error: Exception) -> None:
    """
    Empty the SDK's frames on an error's traceback.

    They hold the response, with it the connection, and the request with its credentials, all for as long as the error
    is kept.
    """
    for cause in causes(error):
        for frame, _ in walk_tb(cause.__traceback__):
            if frame.f_globals.get("__name__", "").startswith(("botocore.", "urllib3.")):
                # one that runs still, further out, is left
                with suppress(RuntimeError):
                    frame.clear()


def _is_parsers(error: Exception) -> bool:
    """Whether the SDK's parser raised it, and not a handler of the caller's."""
    return any(frame.f_globals.get("__name__") == "botocore.parsers" for frame, _ in walk_tb(error.__traceback__))


def _unreadable(error: Exception) -> Exception:
    from botocore.parsers import ResponseParserError

    unreadable: Exception = ResponseParserError(f"{type(error).__name__}: {error}")
    return unreadable


def _raw_stream(stream: Any) -> Any:
    """
    The HTTP response behind the SDK's event stream, or ``None`` where that cannot be relied on.

    The SDK hands out no bytes, and its frames cost several times all the rest of an event. This relies on one private
    attribute, which is checked here; without it the public events are taken.
    """
    raw = getattr(stream, "_raw_stream", None)
    if callable(getattr(raw, "stream", None)) and callable(getattr(raw, "close", None)):
        return raw
    return None


def _socket_of(thread: int) -> socket.socket | None:
    """
    The socket that a thread waits for in the SDK's transport, which hands it to nobody before there is a response.

    It is what the innermost connection or socket file on the thread's stack has.
    """
    frame = sys._current_frames().get(thread)
    while frame is not None:
        owner = frame.f_locals.get("self")
        found = None
        if isinstance(owner, http.client.HTTPConnection):
            found = owner.sock
        elif isinstance(owner, socket.SocketIO):
            found = getattr(owner, "_sock", None)
        if isinstance(found, socket.socket):
            return found
        frame = frame.f_back
    return None
