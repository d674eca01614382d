"""``rxloop serve``: a page in the browser, and the turns behind it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from rxloop.adapters.base import Adapter
from rxloop.cli.interrupts import interruptible
from rxloop.cli.providers import Provider, adapter_for
from rxloop.cli.tools import TOOLS
from rxloop.errors import ConfigurationError
from rxloop.tools import Tool
from rxloop.turn import Turn

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from rxloop.ui.redis_bus import RedisBus, RedisThreads
    from rxloop.ui.turn_request import TurnRequest

__all__ = ("ServedProvider", "serve")

_KEPT = 86_400.0
"""Seconds for which a conversation can be read again after its last turn."""

_CLOSING = 5
"""Seconds in which open requests have to end when the server does."""


class ServedProvider(StrEnum):
    """Whom the page can ask: a provider, or none at all."""

    demo = "demo"
    anthropic = "anthropic"
    google_ai = "google-ai"
    vertex = "vertex"
    bedrock = "bedrock"
    sagemaker = "sagemaker"


def serve(
    host: Annotated[str, typer.Option(help="The address to listen on; only this machine reaches 127.0.0.1.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes a free one.")] = 8000,
    provider: Annotated[
        ServedProvider,
        typer.Option(help="Whom to ask: demo (no key, no network), or a provider of `rxloop generate`."),
    ] = ServedProvider.demo,
    model: Annotated[
        str | None, typer.Option(help="The model, or the endpoint on sagemaker; the demo has none.")
    ] = None,
    tools: Annotated[
        str | None,
        typer.Option(help="What the model may use, separated by commas: calculator, clock. The demo has more."),
    ] = None,
    system: Annotated[str | None, typer.Option(help="The system prompt.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="The most requests of a turn.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="The most tokens of one reply.")] = None,
    redis: Annotated[
        str | None, typer.Option(help="Keep turns and threads in Redis (redis://host:6379/0), not in memory.")
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> int:
    """
    Serve a page to chat with a model, and the HTTP interface behind it.

    Credentials come from the environment, as for generate. There is no authentication: whoever reaches the address can
    run turns.
    """
    _check_ui()
    if max_tokens is not None and max_tokens < 1:
        raise ConfigurationError(f"--max-tokens must be a whole number >= 1, but got {max_tokens}")
    if provider is ServedProvider.demo:
        _check_demo({"--model": model, "--system": system, "--max-tokens": max_tokens})
    serving = _Serving(provider, model, _tools(provider, tools), system, max_steps, max_tokens, redis)
    listener = _listener(host, port)
    address = _address(host, listener)
    if not _is_loopback(listener):
        _say(f"warning: there is no authentication: whoever reaches {address} can run turns")

    def started() -> None:
        _say(f"{serving.asked} is at {address} (Ctrl-C ends it)")
        if open_page:
            # a browser in the terminal stays, and must hold up neither the server nor its end
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    with contextlib.closing(listener):
        # a service is ended with SIGTERM, and what it runs must not stay behind as running
        return interruptible(
            lambda stop: serving.run(host, listener, stop, started), signals=(signal.SIGINT, signal.SIGTERM)
        )


def _check_ui() -> None:
    try:
        import ag_ui  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ConfigurationError('serve needs the extras cli and ui: pip install "rxloop[cli,ui]"') from error


def _check_demo(options: dict[str, Any]) -> None:
    """The demo says what it says: an option that would change nothing is a mistake."""
    for name, value in options.items():
        if value is not None:
            raise ConfigurationError(f"{name} means nothing to the demo: leave it out, or give a --provider")


def _tools(provider: ServedProvider, names: str | None) -> list[Tool]:
    known = TOOLS
    if provider is ServedProvider.demo:
        from rxloop.ui.demo import DEMO_TOOLS

        known = DEMO_TOOLS
        if names is None:
            return list(known.values())
    asked = [name.strip() for name in (names or "").split(",") if name.strip()]
    for name in asked:
        if name not in known:
            raise ConfigurationError(f"there is no tool {name!r}: the tools are {', '.join(sorted(known))}")
    return [known[name] for name in dict.fromkeys(asked)]


@dataclass(frozen=True)
class _Serving:
    """What is served."""

    provider: ServedProvider
    model: str | None
    tools: list[Tool]
    system: str | None
    max_steps: int | None
    max_tokens: int | None
    redis: str | None

    @property
    def asked(self) -> str:
        return self.provider.value if self.model is None else f"{self.provider.value} ({self.model})"

    async def run(self, host: str, listener: socket.socket, stop: asyncio.Event, started: Callable[[], None]) -> int:
        """Serve until it is asked to stop, and let what runs come to its end."""
        async with self._adapter() as adapter, self._stores() as stores:
            app = self._app(adapter, host if _is_loopback(listener) else None, **stores)
            server = _server(app, started)
            serving = asyncio.ensure_future(server.serve(sockets=[listener]))
            stopping = asyncio.ensure_future(stop.wait())
            try:
                await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
                server.should_exit = True
                # whoever watches a turn is told of its end before the connections are closed
                await app.state.close()
                await serving
            finally:
                stopping.cancel()
                if not serving.done():
                    server.force_exit = True
                    await serving
        # a server that did not come up has said why
        return 0 if server.started else 1

    @contextlib.asynccontextmanager
    async def _adapter(self) -> AsyncIterator[Adapter]:
        if self.provider is ServedProvider.demo:
            from rxloop.ui.demo import DemoAdapter

            yield DemoAdapter()
        else:
            async with adapter_for(Provider(self.provider.value), self.model, self.max_tokens) as adapter:
                yield adapter

    @contextlib.asynccontextmanager
    async def _stores(self) -> AsyncIterator[dict[str, Any]]:
        """Where turns and threads are kept."""
        if self.redis is None:
            from rxloop.ui.bus import MemoryBus

            yield {"bus": MemoryBus(age=_KEPT)}
            return
        bus, threads = _redis_stores(self.redis)
        try:
            await _check_redis(bus, self.redis)
            yield {"bus": bus, "threads": threads}
        finally:
            await bus.close()
            await threads.close()

    def _app(self, adapter: Adapter, host: str | None, **stores: Any) -> Starlette:
        from rxloop.ui.app import turn_app
        from rxloop.ui.demo import SUGGESTIONS
        from rxloop.ui.page import page_routes
        from rxloop.ui.same_origin import LOOPBACK

        options: dict[str, Any] = {"tools": self.tools, "system": self.system, "max_steps": self.max_steps}

        def make_turn(request: TurnRequest) -> Turn:
            return Turn(adapter, request.prompt, conversation=request.conversation, turn_id=request.turn_id, **options)

        # what no turn could be made of is known before anybody asks
        Turn(adapter, "hello", **options)
        shown = SUGGESTIONS if self.provider is ServedProvider.demo else ()
        page = page_routes(
            provider=adapter.provider,
            model=adapter.model,
            suggestions=[{"title": item.title, "prompt": item.prompt} for item in shown],
        )
        # by which names other machines know this one, nobody can tell
        hosts = ("*",) if host is None else (*LOOPBACK, host)
        return turn_app(make_turn, hosts=hosts, routes=page, **stores)


def _redis_stores(url: str) -> tuple[RedisBus, RedisThreads]:
    try:
        import redis  # noqa: F401
    except ImportError as error:
        raise ConfigurationError('--redis needs its extra: pip install "rxloop[cli,ui,redis]"') from error
    from rxloop.ui.redis_bus import RedisBus, RedisThreads

    try:
        return RedisBus(url, age=_KEPT), RedisThreads(url, age=_KEPT)
    except ConfigurationError:
        # what was given may hold a password, and is not shown
        raise ConfigurationError(
            "--redis must be a URL of the form redis://host:6379/0 or redis://user:password@host:6379/0 (also "
            "rediss:// and unix://), with what is special in the password percent-encoded"
        ) from None


async def _check_redis(bus: RedisBus, url: str) -> None:
    """A Redis that is not there is known at once."""
    from rxloop.ui.bus import BusError

    parts = urlsplit(url)
    # whatever else the URL holds may be secret
    place = parts.path if parts.scheme == "unix" else f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
    try:
        await bus.exists("rxloop")
    except BusError as error:
        if not error.retryable:
            raise ConfigurationError(f"the Redis at --redis ({place}) cannot be used: {error.message}") from error
        raise ConfigurationError(
            f"no Redis answers at --redis ({place}): start it or correct the address, or leave --redis out to keep "
            "everything in memory"
        ) from error


def _server(app: Starlette, started: Callable[[], None]) -> Any:
    import uvicorn

    class Server(uvicorn.Server):
        """The command's own interrupts, and word of its start."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            if self.started:
                started()

    # the command closes the app itself
    return Server(uvicorn.Config(app, lifespan="off", log_level="warning", timeout_graceful_shutdown=_CLOSING))


def _listener(host: str, port: int) -> socket.socket:
    """The socket to serve on, which nobody else has."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(f"--host must be a name or an address of this machine, but got {host!r}") from error
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":
            # on Windows it would share the port of another server
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConfigurationError(_refused(host, port, error)) from error
    return listener


def _refused(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is taken: give another one as --port, or 0 for a free one"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host must be a name or an address of this machine, but got {host!r}"
    return f"port {port} of {host} cannot be listened on: {error.strerror or error}"


def _address(host: str, listener: socket.socket) -> str:
    port = listener.getsockname()[1]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _is_loopback(listener: socket.socket) -> bool:
    return ipaddress.ip_address(str(listener.getsockname()[0]).partition("%")[0]).is_loopback


def _say(text: str) -> None:
    # whoever has closed it wants to hear nothing
    if sys.stderr is not None:
        typer.echo(f"rxloop: {text}", err=True)
        sys.stderr.flush()
