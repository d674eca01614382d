"""Keep other sites' pages out: what a browser sends on their behalf is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rxloop.errors import ConfigurationError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ("LOOPBACK", "SameOrigin", "check_hosts", "check_origins")

_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#@\s]+")

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""The names of this machine to itself."""


def check_hosts(hosts: Any) -> None:
    """
    Check names of hosts.

    Raises:
        ConfigurationError: they are no list of names or addresses without scheme and port; ``*`` is any.
    """
    _check_list("hosts", hosts)
    for host in hosts:
        if host != "*" and (
            not isinstance(host, str) or _name_of(f"[{host}]" if ":" in host else host) != host.casefold()
        ):
            raise ConfigurationError(f"hosts must be names or addresses without scheme and port, but got {host!r:.100}")


def check_origins(origins: Any) -> None:
    """
    Check origins of pages.

    Raises:
        ConfigurationError: they are no list of origins such as ``https://app.example:8443``.
    """
    _check_list("origins", origins)
    for origin in origins:
        if not isinstance(origin, str) or not _ORIGIN.fullmatch(origin):
            raise ConfigurationError(
                f"origins must look like https://app.example, without a path or a last slash, but got {origin!r:.100}"
            )


def _check_list(name: str, value: Any) -> None:
    if isinstance(value, str) or not isinstance(value, Collection):
        raise ConfigurationError(f"{name} must be a list of names, but got {value!r:.100}")


class SameOrigin:
    """
    An ASGI middleware that answers only requests of its own pages, and of programs.

    A browser names the page that a request comes from in ``Origin``; it has to be of the host that is asked. Where the
    hosts are known, a name that someone else has made to point here is refused as well.

    Args:
        app: what is asked otherwise.
        hosts: the names and addresses, without a port, that may be asked; any if not given, or with ``*`` among them.
        origins: other origins whose pages may ask.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str] | None = None, origins: Collection[str] = ()) -> None:
        self._app = app
        self._origins = {origin.casefold() for origin in origins}
        self._hosts = None if hosts is None or "*" in hosts else {host.casefold() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse with 403."""
        if scope["type"] not in ("http", "websocket") or (fault := self._fault(scope)) is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": fault})
        else:
            body = json.dumps({"error": {"message": fault, "code": "forbidden"}}).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    def _fault(self, scope: Scope) -> str | None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"] if name in (b"host", b"origin")}
        host = headers.get(b"host", "")
        if self._hosts is not None and _name_of(host) not in self._hosts:
            return f"the host must be one of {', '.join(sorted(self._hosts))}, but it was asked for another"
        origin = headers.get(b"origin")
        if origin is not None and _place_of(origin) != host.casefold() and origin.casefold() not in self._origins:
            return "requests of another site's pages are not answered"
        return None


def _name_of(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _place_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.casefold()
    except ValueError:
        return ""
