"""The page that a person uses, as routes of an ASGI app."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from rxloop.errors import ConfigurationError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

__all__ = ("page_routes",)

_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "svg": "image/svg+xml",
}

_HEADERS = {
    # what a model or a tool says is never markup; should it ever become some, it can do nothing
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def page_routes(
    *, provider: str | None = None, model: str | None = None, suggestions: Iterable[Mapping[str, str]] = ()
) -> list[Route]:
    """
    The routes of the page: ``GET /``, and its files under ``/page/``.

    Its addresses are relative, so that it works wherever the routes are mounted beside those of the turns.

    Args:
        provider: whom the turns ask; shown until an event tells.
        model: the model that they ask; likewise.
        suggestions: prompts to begin with, each with a ``title`` and a ``prompt``.

    Raises:
        ConfigurationError: starlette is not installed, or a suggestion lacks one of the two.
    """
    try:
        from starlette.routing import Route
    except ImportError as error:
        raise ConfigurationError('the page needs the ui extra: pip install "rxloop[ui]"') from error
    offered = [dict(item) for item in suggestions]
    for item in offered:
        if not all(isinstance(item.get(name), str) for name in ("title", "prompt")):
            raise ConfigurationError(f"a suggestion must have a title and a prompt, but got {item!r:.100}")
    settings = json.dumps({"provider": provider, "model": model, "suggestions": offered}).encode()
    routes = [Route("/page/settings.json", _serving(settings, "json"), name="settings")]
    for file in files("rxloop.ui").joinpath("page").iterdir():
        kind = file.name.rpartition(".")[2]
        if kind in _TYPES:
            path = "/" if file.name == "index.html" else f"/page/{file.name}"
            routes.append(Route(path, _serving(file.read_bytes(), kind), name=file.name))
    return routes


def _serving(content: bytes, kind: str) -> Any:
    headers = {**_HEADERS, "Content-Type": _TYPES[kind]}

    async def serve(request: Request) -> Response:
        from starlette.responses import Response

        return Response(content, headers=headers)

    return serve
