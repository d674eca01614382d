"""A scripted HTTP/1.1 server on loopback, able to inject every fault a provider's transport can show.

The server runs on its own thread and event loop, so any client can talk to it: sync, async, or on another
loop. A test scripts the replies beforehand and observes what happened through blocking `wait_*` methods or
their awaitable twins; neither needs a sleep in the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeAlias
from urllib.parse import urlsplit

import h11

__all__ = [
    "Action",
    "Close",
    "Drop",
    "Exchange",
    "Hold",
    "LocalServer",
    "Reply",
    "Request",
    "Stall",
    "Wait",
    "split_at",
    "split_every",
]

_TIMEOUT = 5.0
_SEND_BUFFER = 16 * 1024
_SLICE = 4 * 1024
# Longer than the kernel takes to probe a full receiver, which moves some more bytes on.
_QUIET = 0.5
# Loop turns in which a connection or an EOF that the kernel already holds becomes visible to the server.
_SETTLE_TURNS = 20


@dataclass(frozen=True, slots=True)
class Wait:
    """Pause the reply for some seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Hold:
    """Pause the reply until the test releases this name; a name stays released."""

    name: str


@dataclass(frozen=True, slots=True)
class Stall:
    """Send nothing more, and keep the connection open until the client leaves."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Reset the TCP connection at once (RST)."""


@dataclass(frozen=True, slots=True)
class Close:
    """End the connection in order (FIN), but without the end of the reply."""


Action: TypeAlias = bytes | Wait | Hold | Stall | Drop | Close


@dataclass(frozen=True, slots=True)
class Request:
    """One received request; header names are lower-case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The decoded JSON body."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Reply:
    """What to answer: `prelude` happens before the status line, `body` after the headers.

    Each `bytes` of the body is one HTTP chunk unless `headers` has a Content-Length. `bytes` of the prelude
    go to the wire raw.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Sequence[Action] = ()
    prelude: Sequence[Action] = ()

    @classmethod
    def json(cls, value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
        """Answer with a whole JSON document."""
        data = json.dumps(value).encode()
        sized = {"content-type": "application/json", "content-length": str(len(data))}
        return cls(status, {**sized, **(headers or {})}, [data])


@dataclass(slots=True)
class Exchange:
    """What became of one request.

    `bytes_sent` counts what the socket accepted, head and framing included. `blocked` says that the socket
    refuses more right now. `finished` says that all the reply asked for was done.
    """

    request: Request
    bytes_sent: int = 0
    blocked: bool = False
    finished: bool = False
    client_disconnected: bool = False


def split_every(data: bytes, size: int) -> list[bytes]:
    """Cut data into pieces of `size` bytes; the last may be shorter."""
    return [data[start : start + size] for start in range(0, len(data), size)]


def split_at(data: bytes, *offsets: int) -> list[bytes]:
    """Cut data at the given offsets."""
    edges = [0, *offsets, len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


class LocalServer:
    """The scripted server; use it as a context manager.

    `requests`, `exchanges` (both in order of arrival) and `unexpected` (the requests no reply was left for)
    are safe to read at any time. A failure inside the server, such as a raising route, is raised on exit.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.exchanges: list[Exchange] = []
        self.unexpected: list[Request] = []
        self.errors: list[BaseException] = []
        self.url = ""
        self._script: deque[Reply] = deque()
        self._route: Callable[[Request], Reply] | None = None
        self._active = 0
        self._connections: dict[asyncio.Task[None], _Connection] = {}
        self._gates: dict[str, asyncio.Event] = {}
        self._held: list[str] = []
        self._changed = asyncio.Event()
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="local-server", daemon=True)
        self._started: Future[None] = Future()

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.result(_TIMEOUT)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_TIMEOUT)
        assert not self._thread.is_alive(), "the server's thread did not end"
        if error is None and self.errors:
            raise self.errors[0]

    def script(self, *replies: Reply) -> None:
        """Queue replies; each request takes the next one."""
        self._script.extend(replies)

    def route(self, answer: Callable[[Request], Reply]) -> None:
        """Answer by function, called on the server's thread, whenever no scripted reply is left."""
        self._route = answer

    def release(self, name: str) -> None:
        """Let every present and future `Hold` of this name go on."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(lambda: self._gate(name).set())

    @property
    def open_connections(self) -> int:
        """How many client connections are open."""
        return len(self._connections)

    def wait_until(self, met: Callable[[], bool], what: str, timeout: float = _TIMEOUT) -> None:
        """Block until a condition on this server's state is met."""
        self._wait(self._until(met, what, timeout))

    async def until(self, met: Callable[[], bool], what: str) -> None:
        """Await a condition on this server's state."""
        await self._join(self._until(met, what))

    def wait_idle(self, timeout: float = _TIMEOUT) -> None:
        """Block until no request is being answered."""
        self._wait(self._until(self._is_idle, "no request being answered", timeout))

    async def idle(self) -> None:
        """Await that no request is being answered."""
        await self._join(self._until(self._is_idle, "no request being answered"))

    def wait_closed(self, timeout: float = _TIMEOUT) -> None:
        """Block until no connection is open."""
        self._wait(self._until(self._is_closed, "no open connection", timeout))

    async def closed(self) -> None:
        """Await that no connection is open."""
        await self._join(self._until(self._is_closed, "no open connection"))

    def wait_received(self, count: int, timeout: float = _TIMEOUT) -> None:
        """Block until so many requests have arrived."""
        self._wait(self._until(lambda: len(self.requests) >= count, f"{count} requests", timeout))

    async def received(self, count: int) -> None:
        """Await that so many requests have arrived."""
        await self._join(self._until(lambda: len(self.requests) >= count, f"{count} requests"))

    def wait_held(self, name: str, timeout: float = _TIMEOUT) -> None:
        """Block until a reply has come to the `Hold` of this name, all before it being sent."""
        self._wait(self._until(lambda: name in self._held, f"a reply held at {name!r}", timeout))

    async def held(self, name: str) -> None:
        """Await that a reply has come to the `Hold` of this name, all before it being sent."""
        await self._join(self._until(lambda: name in self._held, f"a reply held at {name!r}"))

    def wait_disconnected(self, index: int, timeout: float = _TIMEOUT) -> None:
        """Block until the client of this exchange has left before the end of its reply."""
        self._wait(self._until_disconnected(index, timeout))

    async def disconnected(self, index: int) -> None:
        """Await that the client of this exchange has left before the end of its reply."""
        await self._join(self._until_disconnected(index))

    def wait_blocked(self, index: int, timeout: float = _TIMEOUT) -> None:
        """Block until this exchange can send no more, because its client has stopped reading."""
        self._wait(self._until_blocked(index, timeout))

    async def blocked(self, index: int) -> None:
        """Await that this exchange can send no more, because its client has stopped reading."""
        await self._join(self._until_blocked(index))

    def _is_idle(self) -> bool:
        return self._active == 0

    def _is_closed(self) -> bool:
        return not self._connections

    def _gate(self, name: str) -> asyncio.Event:
        return self._gates.setdefault(name, asyncio.Event())

    def _wait(self, condition: Coroutine[Any, Any, None]) -> None:
        self._submit(condition).result()

    async def _join(self, condition: Coroutine[Any, Any, None]) -> None:
        await asyncio.wrap_future(self._submit(condition))

    def _submit(self, condition: Coroutine[Any, Any, None]) -> Future[None]:
        if self._loop is None or self._loop.is_closed():
            condition.close()
            raise AssertionError("the server is not running")
        return asyncio.run_coroutine_threadsafe(condition, self._loop)

    async def _until(self, met: Callable[[], bool], what: str, seconds: float = _TIMEOUT) -> None:
        await self._settle()
        try:
            async with asyncio.timeout(seconds):
                while not met():
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"waited {seconds} s for {what}: {self._state()}") from None

    async def _until_disconnected(self, index: int, seconds: float = _TIMEOUT) -> None:
        def noticed() -> bool:
            return index < len(self.exchanges) and self.exchanges[index].client_disconnected

        await self._until(noticed, f"exchange {index} to be disconnected", seconds)

    async def _until_blocked(self, index: int, seconds: float = _TIMEOUT) -> None:
        def noticed() -> bool:
            return index < len(self.exchanges) and self.exchanges[index].blocked

        deadline = asyncio.get_running_loop().time() + seconds
        sent = -1
        # A socket can refuse bytes for a moment while the kernel moves some on: only a quiet time tells.
        while sent < 0 or not noticed() or self.exchanges[index].bytes_sent != sent:
            left = deadline - asyncio.get_running_loop().time()
            await self._until(noticed, f"exchange {index} to be blocked", max(left, 0.0))
            sent = self.exchanges[index].bytes_sent
            await asyncio.sleep(_QUIET)

    async def _settle(self) -> None:
        for _ in range(_SETTLE_TURNS):
            await asyncio.sleep(0)

    def _state(self) -> str:
        return f"{self.open_connections} connections, {self._active} being answered, {self.exchanges}"

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            if self._started.done():
                self.errors.append(error)
            else:
                self._started.set_exception(error)

    async def _main(self) -> None:
        listener = socket.socket(proto=socket.IPPROTO_TCP)  # asyncio disables Nagle only where the protocol is named
        # Accepted sockets inherit it: a small buffer makes a client that stops reading visible at once.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        listener.bind(("127.0.0.1", 0))
        server = await asyncio.start_server(self._accept, sock=listener)
        self._loop = asyncio.get_running_loop()
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._started.set_result(None)
        await self._stop.wait()
        await self._settle()
        server.close()
        await self._settle()
        tasks = list(self._connections)
        for connection in self._connections.values():
            connection.abort()
        await asyncio.gather(*tasks)
        await server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(self, reader, writer)
        task = asyncio.create_task(connection.run())
        self._connections[task] = connection
        task.add_done_callback(self._forget)
        self._notify()

    def _forget(self, task: asyncio.Task[None]) -> None:
        del self._connections[task]
        if error := task.exception():
            self.errors.append(error)
        self._notify()

    def _begin(self, request: Request) -> tuple[Exchange, Reply]:
        exchange = Exchange(request)
        self.exchanges.append(exchange)
        self.requests.append(request)
        self._active += 1
        self._notify()
        return exchange, self._choose(request)

    def _choose(self, request: Request) -> Reply:
        if self._script:
            return self._script.popleft()
        if self._route is not None:
            try:
                return self._route(request)
            except Exception as error:
                self.errors.append(error)
                return Reply.json({"error": f"the route failed: {error!r}"}, status=500)
        self.unexpected.append(request)
        return Reply.json({"error": f"no reply left for {request.method} {request.path}"}, status=500)

    def _end(self) -> None:
        self._active -= 1
        self._notify()

    async def _hold(self, name: str) -> None:
        self._held.append(name)
        self._notify()
        try:
            await self._gate(name).wait()
        finally:
            self._held.remove(name)


class _Connection:
    """One client connection: parses its requests and plays the replies."""

    def __init__(self, server: LocalServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER)
        self._fresh = asyncio.Event()
        self._aborted = False
        writer.transport.set_write_buffer_limits(high=0)

    def abort(self) -> None:
        self._aborted = True
        self._writer.transport.abort()

    async def run(self) -> None:
        # Reading goes on during a reply, so that the client's leaving shows whatever the reply waits for.
        pump = asyncio.create_task(self._pump())
        try:
            while (request := await self._read_request()) is not None:
                await self._exchange(request, pump)
                if self._aborted or self._http.our_state is not h11.DONE:
                    break
                self._http.start_next_cycle()
        finally:
            self.abort()
            await pump
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()

    async def _pump(self) -> None:
        data = b"?"
        while data:
            try:
                data = await self._reader.read(65536)
            except OSError:
                data = b""
            self._http.receive_data(data)
            self._fresh.set()

    async def _read_request(self) -> Request | None:
        head: h11.Request | None = None
        body = bytearray()
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError:
                return None
            if event is h11.NEED_DATA:
                self._fresh.clear()
                await self._fresh.wait()
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                target = urlsplit(head.target.decode())
                headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}
                return Request(head.method.decode(), target.path, target.query, headers, bytes(body))
            else:
                return None

    async def _exchange(self, request: Request, pump: asyncio.Task[None]) -> None:
        exchange, reply = self._server._begin(request)
        answer = asyncio.create_task(self._play(exchange, reply))
        await asyncio.wait({answer, pump}, return_when=asyncio.FIRST_COMPLETED)
        if not self._is_sent():
            answer.cancel()
        await asyncio.wait({answer})
        error = None if answer.cancelled() else answer.exception()
        if answer.cancelled() or isinstance(error, ConnectionError):
            exchange.client_disconnected = not self._aborted
        elif error is not None:
            self._server.errors.append(error)
        else:
            exchange.finished = True
        exchange.blocked = False
        if not exchange.finished:
            self.abort()
        self._server._end()

    def _is_sent(self) -> bool:
        # A client may leave on the last byte, before the task that sent it has had its turn to end.
        ended = self._http.our_state in {h11.DONE, h11.MUST_CLOSE}
        return ended and not self._writer.transport.get_write_buffer_size()

    async def _play(self, exchange: Exchange, reply: Reply) -> None:
        for action in reply.prelude:
            if isinstance(action, bytes):
                await self._write(exchange, action)
            elif not await self._perform(action):
                return
        head = h11.Response(status_code=reply.status, headers=list(reply.headers.items()))
        await self._send(exchange, head)
        bodiless = exchange.request.method == "HEAD" or reply.status in {204, 304}
        actions = [action for action in reply.body if not (bodiless and isinstance(action, bytes))]
        for position, action in enumerate(actions, 1):
            if not isinstance(action, bytes):
                if not await self._perform(action):
                    return
            elif position < len(actions):
                await self._send(exchange, h11.Data(data=action))
                await asyncio.sleep(0)
            else:
                # In one write: a client that has read the last chunk finds the end of the reply there too.
                await self._send(exchange, h11.Data(data=action), h11.EndOfMessage())
                return
        await self._send(exchange, h11.EndOfMessage())

    async def _perform(self, action: Wait | Hold | Stall | Drop | Close) -> bool:
        """Do an action that sends nothing; false if it ended the connection."""
        match action:
            case Wait(seconds):
                await asyncio.sleep(seconds)
            case Hold(name):
                await self._server._hold(name)
            case Stall():
                await asyncio.Event().wait()
            case Drop():
                linger = struct.pack("ii", 1, 0)
                self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.abort()
                return False
            case Close():
                self.abort()
                return False
        return True

    async def _send(self, exchange: Exchange, *events: h11.Event) -> None:
        await self._write(exchange, b"".join(self._http.send(event) or b"" for event in events))

    async def _write(self, exchange: Exchange, data: bytes) -> None:
        for part in split_every(data, _SLICE):
            self._writer.write(part)
            exchange.blocked = self._writer.transport.get_write_buffer_size() > 0
            if exchange.blocked:
                self._server._notify()
            await self._writer.drain()
            exchange.blocked = False
            exchange.bytes_sent += len(part)
