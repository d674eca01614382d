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
from rxloop.errors import ConfigurationError, MalformedResponseError

__all__ = ("CLIENTS_OWN", "Reply", "call_for_stream", "check_content_type", "default_client", "prepare")

CLIENTS_OWN = (
    "api_key", "api_version", "aws_access_key_id", "aws_account_id", "aws_secret_access_key", "aws_session_token",
    "bearer_token", "config", "credentials", "endpoint_url", "profile_name", "region", "region_name", "session",
    "timeout", "use_ssl", "verify",
)  # fmt: skip
"""What belongs to a client; in a request's body a key would be sent and recorded."""

_CONNECTIONS = 256
_READ_TIMEOUT = 600
_CONNECT_TIMEOUT = 10
_MOST_BYTES = 64 * 1024
_MOST_EVENTS = 256
_FORMAT_ERRORS = (AttributeError, LookupError, TypeError, ValueError, struct.error)

_source: ContextVar[_EventStream | None] = ContextVar("rxloop_source", default=None)
"""Who this context sends its requests for."""


@dataclass(frozen=True, slots=True)
class Reply:
    """
    An open reply.

    Args:
        response: what the SDK's call returned, without the stream.
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


def prepare(client: Any, service: str, operation: str) -> None:
    """
    Let the client send what `call_for_stream` is given, and nothing any more once that was left.

    Every other use of the client stays as it is. The events are public ones of the SDK.

    Source: https://boto3.amazonaws.com/v1/documentation/api/latest/guide/events.html
    """
    events = client.meta.events
    events.register(f"before-call.{service}.{operation}", _put_body, unique_id="rxloop-body")
    events.register(f"before-send.{service}.{operation}", _refuse_what_was_left, unique_id="rxloop-left")


def _put_body(params: dict[str, Any], **_: Any) -> None:
    source = _source.get()
    # a handler of the caller's may make calls of its own meanwhile, which have no mark
    if source is not None and source.body is not None and source.mark.encode() in params["body"]:
        params["body"] = source.body
        params["headers"]["Content-Type"] = "application/json"


def _refuse_what_was_left(**_: Any) -> None:
    source = _source.get()
    if source is not None and source.left:
        raise RuntimeError("the reply was left before it was asked for")


def call_for_stream(
    call: Callable[[str], Mapping[str, Any]], member: str, *, body: bytes | None = None, as_bytes: bool = True
) -> AbstractAsyncContextManager[Reply]:
    """
    Make a call on a thread, and read the event stream that it returns as it arrives.

    Leaving the context ends the thread and the connection, whatever they wait for.

    Args:
        call: makes the SDK's call; it gets a mark, by which the call is known where ``body`` is to be put into it: it
            has to be anywhere in the body that the SDK would send.
        member: where its response has the stream.
        body: sent instead of what the SDK makes of the call's keywords, by a client that was prepared.
        as_bytes: whether the bytes are wanted, where they can be had.

    Raises:
        Exception: what the SDK or its transport raises.
    """
    return _reply(_EventStream(call, member, body, as_bytes))


def check_content_type(response: Mapping[str, Any], provider: str) -> None:
    """
    Check that a reply is an event stream, or a JSON document.

    Raises:
        MalformedResponseError: naming what it is, such as the page of something on the way.
    """
    metadata = response.get("ResponseMetadata") or {}
    kind = str((metadata.get("HTTPHeaders") or {}).get("content-type") or "").partition(";")[0].strip().lower()
    if kind and kind not in ("application/vnd.amazon.eventstream", "application/json", "application/octet-stream"):
        raise MalformedResponseError(
            f"a reply must be an event stream, but got {kind}",
            provider=provider,
            status=metadata.get("HTTPStatusCode"),
        )


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

    def __init__(
        self, call: Callable[[str], Mapping[str, Any]], member: str, body: bytes | None, as_bytes: bool
    ) -> None:
        self._call = call
        self._member = member
        self.body = body
        self.mark = f"rxloop-{id(self):x}"
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
        _source.set(self)
        try:
            response = self._call(self.mark)
        except Exception as error:
            _release(error)
            if isinstance(error, _FORMAT_ERRORS) and _is_parsers(error):
                raise _unreadable(error) from error
            raise
        self._stream = response[self._member]
        # what is kept of it keeps no connection
        self.response = {name: value for name, value in response.items() if name != self._member}
        raw = _raw_stream(self._stream) if self.as_bytes else None
        if raw is None:
            return _items_of(iter(self._stream))
        self._raw = raw
        self.is_bytes = True
        return _items_of(_pieces_of(raw))

    def close(self) -> None:
        # the client's connections live as long as anything of a reply does
        stream, self._stream, self._raw = self._stream, None, None
        if stream is not None:
            # it refers to itself, and would be there until the garbage is collected
            generator = getattr(stream, "_event_generator", None)
            if isinstance(generator, GeneratorType):
                generator.close()
            stream.close()

    def interrupt(self, thread: int) -> bool:
        self.left = True
        raw = self._raw
        if raw is not None:
            # not reached any more, or without a socket, as a recorded reply is
            with suppress(AttributeError, OSError, RuntimeError, ValueError):
                raw.shutdown()
            return True
        waiting = _socket_of(thread)
        if waiting is None:
            return False
        try:
            # past TLS's own, which would let what is written next go out as it is
            socket.socket.shutdown(waiting, socket.SHUT_RDWR)
        except OSError:
            return False
        return True


def _pieces_of(raw: Any) -> Iterator[bytes]:
    """The body as it arrives. What is not chunked would be gathered first."""
    if getattr(raw, "chunked", True) or not hasattr(raw, "read1"):
        yield from raw.stream()
        return
    while piece := raw.read1(_MOST_BYTES):
        yield piece


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
    Empty the SDK's frames on an error's traceback, and those here that hand its response on.

    They hold the response, with it the connection, and the request with its credentials, all for as long as the error
    is kept.
    """
    for cause in causes(error):
        for frame, _ in walk_tb(cause.__traceback__):
            if frame.f_globals.get("__name__", "").startswith(("botocore.", "urllib3.", __name__)):
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

    It is the innermost on the thread's stack: one that connects or shakes hands, or that of a connection or its file.
    """
    frame = sys._current_frames().get(thread)
    while frame is not None:
        owner, connecting = frame.f_locals.get("self"), frame.f_locals.get("sock")
        found = None
        if isinstance(owner, socket.socket):
            found = owner
        elif isinstance(owner, http.client.HTTPConnection):
            found = owner.sock
        elif isinstance(owner, socket.SocketIO):
            found = getattr(owner, "_sock", None)
        elif isinstance(connecting, socket.socket):
            found = connecting
        if isinstance(found, socket.socket) and found.fileno() >= 0:
            return found
        frame = frame.f_back
    return None
