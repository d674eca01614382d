"""What the app says of a request that it does not serve: a status, and JSON that says why."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from rxloop.ui.bus import BusError
from rxloop.ui.turn_request import BadRequestError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

__all__ = ("BUSY", "exception_handlers", "read_json", "refusal")

BUSY = 2.0
"""The seconds after which a client may try again."""

_CODES = {401: "unauthenticated", 403: "forbidden", 404: "unknown", 405: "method"}

_log = logging.getLogger("rxloop.ui")


def exception_handlers() -> Mapping[Any, Callable[[Request, Exception], Awaitable[Response]]]:
    """What starlette is to do with the errors of the routes."""
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect

    return {
        BadRequestError: _refused,
        BusError: _bus_away,
        HTTPException: _not_served,
        ClientDisconnect: _gone,
        Exception: _failed,
    }


async def read_json(request: Request, most: int) -> Any:
    """
    Read a request's body.

    Args:
        request: the request.
        most: the most bytes of it.

    Raises:
        BadRequestError: it is larger, or no JSON.
    """
    too_large = BadRequestError(f"the body must have at most {most} bytes", status=413, code="too_large")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # what a form of another site can send is none
        raise BadRequestError("the body must be application/json", status=415, code="invalid")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > most:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise too_large
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequestError("the body must be JSON", status=422, code="invalid") from error


def refusal(error: BadRequestError) -> Response:
    """The response that says it."""
    from starlette.responses import JSONResponse

    headers = {} if error.retry_after is None else {"Retry-After": f"{error.retry_after:.0f}"}
    body = {"error": {"message": error.message, "code": error.code}}
    return JSONResponse(body, status_code=error.status, headers=headers)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, BadRequestError)  # noqa: S101
    return refusal(error)


async def _not_served(request: Request, error: Exception) -> Response:
    """What the routes refuse by themselves, and what an authentication hook raises."""
    from starlette.exceptions import HTTPException
    from starlette.responses import JSONResponse, Response

    assert isinstance(error, HTTPException)  # noqa: S101
    if error.status_code in (204, 304):
        return Response(status_code=error.status_code, headers=error.headers)
    body = {"error": {"message": error.detail, "code": _CODES.get(error.status_code, "refused")}}
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


async def _gone(request: Request, error: Exception) -> Response:
    """The client left in the middle of its request: nobody hears the answer."""
    return refusal(BadRequestError("the body must be complete", status=400, code="invalid"))


async def _failed(request: Request, error: Exception) -> Response:
    # it is raised again afterwards, for the log of whoever serves the app
    return refusal(BadRequestError("the request could not be served", status=500, code="internal"))


async def _bus_away(request: Request, error: Exception) -> Response:
    _log.error("the event bus does not answer: %s", error)
    return refusal(BadRequestError("the event bus does not answer", status=503, code="unavailable", retry_after=BUSY))
