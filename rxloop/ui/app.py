"""Turns over HTTP: an ASGI app, to be run by itself or mounted in another."""

from __future__ import annotations

import contextlib
import inspect
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, TypeAlias

from rxloop.checks import function_or_none, seconds_or_none, whole
from rxloop.errors import ConfigurationError
from rxloop.ui.bus import BusError, EventBus, MemoryBus, check_seconds
from rxloop.ui.feed import Feeds, FrameId, read_frame_id
from rxloop.ui.frames import EventFrames, Frames
from rxloop.ui.refusals import BUSY, exception_handlers, read_json, refusal
from rxloop.ui.running_turns import RunningTurns
from rxloop.ui.same_origin import LOOPBACK, SameOrigin, check_hosts, check_origins
from rxloop.ui.threads import MemoryThreads, ThreadStore
from rxloop.ui.turn_request import BadRequestError, TurnRequest, owned, read_chat, read_run
from rxloop.ui.worker import LEASE, MakeTurn, abandon, keep_queued, open_turn, prepare_turn, release

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import HTTPConnection, Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute
    from starlette.websockets import WebSocket

__all__ = ("Authenticate", "turn_app")

Authenticate: TypeAlias = "Callable[[HTTPConnection], str | Awaitable[str | None] | None]"
"""Tells whose request it is; ``None`` refuses it."""

_log = logging.getLogger("rxloop.ui")
_TELLING = 2.0
"""The seconds in which watchers are told of a turn that could not be handed over."""

_QUEUED = 600.0
"""The seconds for which a turn waits for a worker."""


def turn_app(
    make_turn: MakeTurn | None = None,
    *,
    bus: EventBus | None = None,
    threads: ThreadStore | None = None,
    hand_over: Callable[[TurnRequest], Awaitable[None]] | None = None,
    authenticate: Authenticate | None = None,
    hosts: Collection[str] | None = None,
    origins: Collection[str] = (),
    stop_unwatched_after: float | None = None,
    max_turns: int = 64,
    max_body: int = 1_000_000,
    heartbeat: float = 15.0,
    routes: Sequence[BaseRoute] = (),
) -> Starlette:
    """
    Serve turns: started by a POST, watched as server-sent events or over a WebSocket, stopped by a POST.

    ``POST /turns`` takes an AG-UI ``RunAgentInput`` (with ``?format=vercel`` also what the AI SDK's ``useChat`` sends)
    and answers with the turn's events; ``GET /turns/{id}/events`` is the same again, after ``Last-Event-ID``;
    ``/turns/{id}/socket`` is a WebSocket with them; ``POST /turns/{id}/stop`` stops it; ``GET /threads/{id}`` lists a
    thread's turns, and ``GET /threads/{id}/stream`` is the events of the one that runs. The ``format`` is ``agui`` by
    default, ``vercel``, or ``rxloop``: the events' own JSON.

    The app stops its turns at its lifespan's end. Where it is mounted in another app, which does not tell it of that,
    call ``await app.state.close()`` there.

    Args:
        make_turn: makes the turn of a request, of its ``prompt`` and ``conversation``; sync or async. Not needed with
            `hand_over`.
        bus: carries the events; a `MemoryBus` by default, a `RedisBus` for several processes.
        threads: keeps the conversations; `MemoryThreads` by default, `RedisThreads` beside a `RedisBus`.
        hand_over: gives a request to a worker, which calls `run_turn` within ten minutes; by default turns run in this
            process.
        authenticate: called with every request; returns the user's id, or ``None`` to refuse with 401. It may raise
            starlette's ``HTTPException``. Users see nothing of one another. Without it everybody is one user.
        hosts: the names by which the app may be asked. By default only loopback's without `authenticate`, so that no
            page from elsewhere can reach it under a name of its own; with it any. ``*`` is any, ``testserver`` what
            starlette's test client asks for.
        origins: pages of which other origins may use it, such as ``https://app.example``; by default none (no CORS).
        stop_unwatched_after: stop a turn so many seconds after its last watcher in this process has left; by default
            it goes on. One that nobody has watched yet goes on.
        max_turns: the most turns that run in this process; beyond them a POST is answered 429 with Retry-After.
        max_body: the most bytes of a request's body.
        heartbeat: the seconds between two signs of life in a silent stream.
        routes: further routes, such as those of the page.

    Raises:
        ConfigurationError: a value breaks its rule, or the extra ui is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.middleware.cors import CORSMiddleware
        from starlette.routing import Route, WebSocketRoute
    except ImportError as error:
        raise ConfigurationError('the app needs the ui extra: pip install "rxloop[ui]"') from error
    for name, function in (("make_turn", make_turn), ("hand_over", hand_over), ("authenticate", authenticate)):
        function_or_none(name, function)
    if (make_turn is None) == (hand_over is None):
        raise ConfigurationError("turn_app must get either make_turn or hand_over")
    seconds_or_none("stop_unwatched_after", stop_unwatched_after)
    whole("max_turns", max_turns, minimum=1)
    whole("max_body", max_body, minimum=1)
    check_seconds("heartbeat", heartbeat)
    if hosts is None and authenticate is None:
        hosts = LOOPBACK
    if hosts is not None:
        check_hosts(hosts)
    check_origins(origins)
    server = _Server(
        make_turn,
        bus or MemoryBus(),
        threads or MemoryThreads(),
        hand_over,
        authenticate,
        stop_unwatched_after,
        max_turns,
        max_body,
        heartbeat,
    )
    middleware = [Middleware(SameOrigin, hosts=hosts, origins=origins)]
    if origins:
        exposed = ["x-turn-id", "retry-after"]
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=exposed,
            )
        )

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await server.close()

    app = Starlette(
        routes=[
            Route("/turns", server.start, methods=["POST"]),
            Route("/turns/{turn_id}/events", server.events, methods=["GET"]),
            WebSocketRoute("/turns/{turn_id}/socket", server.socket),
            Route("/turns/{turn_id}/stop", server.stop, methods=["POST"]),
            Route("/threads/{thread_id:path}/stream", server.thread_stream, methods=["GET"]),
            Route("/threads/{thread_id:path}", server.thread, methods=["GET"]),
            *routes,
        ],
        middleware=middleware,
        lifespan=lifespan,
        exception_handlers=exception_handlers(),
    )
    app.state.close = server.close
    return app


class _Server:
    """The routes' handlers and what they share."""

    def __init__(
        self,
        make_turn: MakeTurn | None,
        bus: EventBus,
        threads: ThreadStore,
        hand_over: Callable[[TurnRequest], Awaitable[None]] | None,
        authenticate: Authenticate | None,
        stop_unwatched_after: float | None,
        max_turns: int,
        max_body: int,
        heartbeat: float,
    ) -> None:
        self._make_turn = make_turn
        self._bus = bus
        self._threads = threads
        self._hand_over = hand_over
        self._authenticate = authenticate
        self._max_body = max_body
        self.turns = RunningTurns(bus, max_turns)
        self._feeds = Feeds(bus, heartbeat, stop_unwatched_after)

    async def close(self) -> None:
        """Stop what runs here."""
        await self._feeds.close()
        await self.turns.close()

    async def start(self, request: Request) -> Response:
        """``POST /turns``."""
        from starlette.responses import JSONResponse

        user = await self._user(request)
        format_name = _format(request)
        asked = await self._asked(request, user, format_name)
        if self.turns.closed:
            raise BadRequestError("the server is about to end", status=503, code="unavailable", retry_after=BUSY)
        if not self.turns.reserve():
            raise BadRequestError("too many turns run already", status=429, code="busy", retry_after=BUSY)
        try:
            await self._begin(asked)
        finally:
            self.turns.release()
        identified = {"X-Turn-Id": asked.turn_id}
        if "application/json" in request.headers.get("accept", "") and "event-stream" not in request.headers["accept"]:
            body = {"turn_id": asked.turn_id, "thread_id": asked.thread_id}
            return JSONResponse(body, status_code=202, headers=identified)
        return self._stream(asked.stream, format_name, None, identified)

    async def _asked(self, request: Request, user: str, format_name: str) -> TurnRequest:
        body = await read_json(request, self._max_body)
        turn_id = f"turn_{uuid.uuid4().hex}"
        if format_name == "vercel" and not (isinstance(body, dict) and "threadId" in body):
            return read_chat(body, turn_id, user)
        return read_run(body, turn_id, user)

    async def _begin(self, asked: TurnRequest) -> None:
        if not await self._threads.claim(asked.thread_key, asked.turn_id, LEASE):
            raise BadRequestError("the thread has a running turn already", status=409, code="running")
        opened = False
        try:
            await self._check_new(asked)
            if self._make_turn is not None:
                self.turns.start(await prepare_turn(asked, self._make_turn, bus=self._bus, threads=self._threads))
            elif self._hand_over is not None:
                await open_turn(asked, bus=self._bus, threads=self._threads)
                opened = True
                await self._hand_over(asked)
                self.turns.keep(keep_queued(asked, _QUEUED, bus=self._bus, threads=self._threads))
        except BaseException as error:
            if opened:
                # whoever has found it in its thread must not wait for it
                await abandon(asked, error, bus=self._bus, threads=self._threads, seconds=_TELLING)
            else:
                await release(asked, self._threads)
            if isinstance(error, Exception) and not isinstance(error, (BusError, BadRequestError)):
                _log.exception("turn %s could not be made", asked.turn_id)
                raise BadRequestError("the turn could not be made", status=500, code="internal") from error
            raise

    async def _check_new(self, asked: TurnRequest) -> None:
        """A client may try again what was refused; what was asked has its answer."""
        if not asked.again:
            return
        thread = await self._threads.load(asked.thread_key)
        if thread is not None and thread.turns and thread.turns[-1].prompt == asked.prompt:
            raise BadRequestError(
                "an answer cannot be made anew: the thread goes on from where it is", status=422, code="invalid"
            )

    async def events(self, request: Request) -> Response:
        """``GET /turns/{id}/events``."""
        stream = await self._known(request, request.path_params["turn_id"])
        return await self._resumed(request, stream)

    async def thread_stream(self, request: Request) -> Response:
        """``GET /threads/{id}/stream``."""
        from starlette.responses import Response

        user = await self._user(request)
        turn_id = await self._threads.claimed_by(owned(user, request.path_params["thread_id"]))
        if turn_id is None or not await self._bus.exists(owned(user, turn_id)):
            return Response(status_code=204)
        return await self._resumed(request, owned(user, turn_id))

    async def _resumed(self, request: Request, stream: str) -> Response:
        from starlette.responses import Response

        format_name = _format(request)
        after = _after(request.headers.get("last-event-id") or request.query_params.get("after"))
        if after is None:
            return self._stream(stream, format_name, None, {})
        key = (stream, format_name)
        feed = self._feeds.enter(*key, _FORMATS[format_name]())
        try:
            await feed.loaded.wait()
            # an EventSource comes back until it is told that there is nothing more
            nothing = feed.ended and feed.error is None and feed.after(after) >= len(feed.ids)
            return Response(status_code=204) if nothing else self._stream(stream, format_name, after, {})
        finally:
            await self._feeds.leave(*key, feed)

    def _stream(self, stream: str, format_name: str, after: FrameId | None, headers: dict[str, str]) -> Response:
        from rxloop.ui.streams import EventStream

        feed = self._feeds.enter(stream, format_name, _FORMATS[format_name]())
        return EventStream(feed, self._feeds, (stream, format_name), after, headers)

    async def socket(self, socket: WebSocket) -> None:
        """``/turns/{id}/socket``."""
        from rxloop.ui.streams import send_frames

        try:
            stream = await self._known(socket, socket.path_params["turn_id"])
            format_name, after = _format(socket), _after(socket.query_params.get("after"))
        except BadRequestError as error:
            await socket.send_denial_response(refusal(error))
            return
        feed = self._feeds.enter(stream, format_name, _FORMATS[format_name]())
        try:
            await socket.accept()
            await send_frames(socket, feed, after)
        finally:
            await self._feeds.leave(stream, format_name, feed)

    async def stop(self, request: Request) -> Response:
        """``POST /turns/{id}/stop``."""
        from starlette.responses import JSONResponse

        stream = await self._known(request, request.path_params["turn_id"])
        await self._bus.request_stop(stream)
        return JSONResponse({"turn_id": request.path_params["turn_id"]}, status_code=202)

    async def thread(self, request: Request) -> Response:
        """``GET /threads/{id}``."""
        from starlette.responses import JSONResponse

        user = await self._user(request)
        thread_id: str = request.path_params["thread_id"]
        key = owned(user, thread_id)
        thread = await self._threads.load(key)
        if thread is None:
            raise BadRequestError("there is no such thread", status=404, code="unknown")
        running = await self._threads.claimed_by(key)
        turns = [
            {
                "turn_id": note.turn_id,
                "prompt": note.prompt,
                "running": note.turn_id == running,
                "finish_reason": note.finish_reason,
            }
            for note in thread.turns
        ]
        return JSONResponse({"thread_id": thread_id, "turns": turns}, headers={"Cache-Control": "no-store"})

    async def _user(self, connection: HTTPConnection) -> str:
        if self._authenticate is None:
            return ""
        user = self._authenticate(connection)
        if inspect.isawaitable(user):
            user = await user
        if user is None:
            raise BadRequestError("the request must say who makes it", status=401, code="unauthenticated")
        if not isinstance(user, str) or not user:
            raise ConfigurationError(f"authenticate must return a user's id or None, but got {user!r:.100}")
        return user

    async def _known(self, connection: HTTPConnection, turn_id: str) -> str:
        stream = owned(await self._user(connection), turn_id)
        if not await self._bus.exists(stream):
            raise BadRequestError("there is no such turn, or not any more", status=404, code="unknown")
        return stream


def _agui() -> type[Frames]:
    from rxloop.ui.agui import AguiFrames

    return AguiFrames


def _vercel() -> type[Frames]:
    from rxloop.ui.vercel import UIMessageFrames

    return UIMessageFrames


_FORMATS: dict[str, Callable[[], type[Frames]]] = {"agui": _agui, "vercel": _vercel, "rxloop": lambda: EventFrames}


def _format(connection: HTTPConnection) -> str:
    name = connection.query_params.get("format", "agui")
    if name not in _FORMATS:
        raise BadRequestError(
            f"the format must be one of {', '.join(_FORMATS)}, but got {name!r:.60}", status=422, code="invalid"
        )
    return name


def _after(text: str | None) -> FrameId | None:
    if not text:
        return None
    try:
        return read_frame_id(text)
    except ConfigurationError as error:
        raise BadRequestError(error.message, status=422, code="invalid") from error
