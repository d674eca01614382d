"""The frames of an AWS event stream, and a scripted local server that answers with them.

Source: https://docs.aws.amazon.com/transcribe/latest/dg/event-stream.html
"""

from __future__ import annotations

import base64
import functools
import itertools
import json
import re
import struct
import uuid
from binascii import crc32
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, TypeAlias
from urllib.parse import unquote

import boto3  # type: ignore[import-untyped, unused-ignore]
from botocore.config import Config  # type: ignore[import-untyped, unused-ignore]

from tests.providers.http import Action, Close, Drop, LocalServer, Reply, Request, Stall, split_every

__all__ = [
    "CONTENT_TYPE",
    "EventStreamServer",
    "HeaderValue",
    "Part",
    "Typed",
    "bad_message_checksum",
    "bad_prelude_checksum",
    "chunk",
    "error",
    "event",
    "exception",
    "first_bytes",
    "frame",
]

CONTENT_TYPE = "application/vnd.amazon.eventstream"


@dataclass(frozen=True, slots=True)
class Typed:
    """The value of a header by its type's number and its bytes, such as of a type that is not known yet."""

    number: int
    data: bytes


HeaderValue: TypeAlias = str | bool | int | bytes | datetime | uuid.UUID | Typed
Part: TypeAlias = Action | dict[str, Any]


def frame(headers: Mapping[str, HeaderValue], payload: bytes = b"") -> bytes:
    """One frame: prelude, its checksum, headers, payload, checksum of it all."""
    head = b""
    for name, value in headers.items():
        head += struct.pack("!B", len(name.encode())) + name.encode() + _header_value(value)
    prelude = struct.pack("!II", 12 + len(head) + len(payload) + 4, len(head))
    message = prelude + struct.pack("!I", crc32(prelude)) + head + payload
    return message + struct.pack("!I", crc32(message))


def event(
    kind: str,
    payload: bytes = b"",
    content_type: str = "application/json",
    headers: Mapping[str, HeaderValue] | None = None,
) -> bytes:
    """One event; `headers` are more headers of its frame."""
    known = {":event-type": kind, ":content-type": content_type, ":message-type": "event"}
    return frame({**known, **(headers or {})}, payload)


def chunk(event_body: Mapping[str, object]) -> bytes:
    """One event of a model's own format, inside the frame of ``InvokeModelWithResponseStream``."""
    return event("chunk", json.dumps({"bytes": base64.b64encode(json.dumps(event_body).encode()).decode()}).encode())


def exception(kind: str, message: str, message_key: str = "message", **fields: Any) -> bytes:
    """An exception inside the stream: one that the service's model knows, or any other."""
    headers = {":exception-type": kind, ":content-type": "application/json", ":message-type": "exception"}
    return frame(headers, json.dumps({message_key: message, **fields}).encode())


def error(code: str, message: str) -> bytes:
    """An error inside the stream that the service's model does not know: all of it is in the headers."""
    return frame({":error-code": code, ":error-message": message, ":message-type": "error"})


def bad_prelude_checksum(whole: bytes) -> bytes:
    """The same frame with a checksum of its prelude that does not fit, and one of it all that does."""
    broken = _inverted(whole, 8, 12)[:-4]
    return broken + struct.pack("!I", crc32(broken))


def bad_message_checksum(whole: bytes) -> bytes:
    """The same frame with a checksum of it all that does not fit."""
    return _inverted(whole, len(whole) - 4, len(whole))


def first_bytes(parts: Iterable[bytes], size: int) -> list[bytes]:
    """As much of these parts as `size` bytes have room for."""
    kept = []
    for part in parts:
        if size > 0:
            kept.append(part[:size])
        size -= len(part)
    return kept


class EventStreamServer(LocalServer):
    """A local server that scripts replies of one operation of an AWS service.

    Each frame is one HTTP chunk unless told otherwise. `before_headers` makes a fault happen before the status
    line, where the client still waits for its response. A request of another operation, or one that is neither
    signed nor has a bearer token, fails the test; signatures are not verified. Where parts are taken, `bytes` are a
    frame, and a `dict` is an event of a service whose server knows how to encode it.
    """

    service: ClassVar[str]
    """The service, as boto3 names it."""
    path: ClassVar[re.Pattern[str]]
    """The path of the operation, with the encoded name of its target as the only group."""
    kinds: ClassVar[Mapping[int, str]]
    """The type of error by status."""
    message_key: ClassVar[str] = "message"
    """The field of an error that has the message."""
    error_namespace: ClassVar[str] = ""
    """What follows the type of an error in its header."""

    def __init__(self) -> None:
        super().__init__()
        self._ids = itertools.count(1)

    def client(self, **config: Any) -> Any:
        """A real boto3 client of this server, which the caller closes; without any retry unless told otherwise."""
        fixed = {"retries": {"total_max_attempts": 1}, "max_pool_connections": 50}
        return _session().client(self.service, endpoint_url=self.url, config=Config(**{**fixed, **config}))

    @property
    def bodies(self) -> list[Any]:
        """The JSON bodies of the requests, in order."""
        return [request.json for request in self.requests]

    @property
    def targets(self) -> list[str]:
        """The decoded names of the models or endpoints that the requests were for, in order."""
        return [unquote(found[1]) for request in self.requests if (found := self.path.fullmatch(request.path))]

    def reply_frames(
        self,
        *parts: Part,
        cut: int | None = None,
        chunk_size: int | None = None,
        headers: Mapping[str, str] | None = None,
        prelude: Sequence[Part] = (),
    ) -> None:
        """Script a stream of just these frames and actions.

        `cut` ends the body, in order, after so many bytes; `chunk_size` makes every HTTP chunk that long. Either
        takes frames only. `prelude` are actions before the status line.
        """
        fixed = {"content-type": CONTENT_TYPE, "x-amzn-requestid": self._request_id()}
        body = _resized(self._sent(parts), cut, chunk_size)
        self.script(Reply(200, {**fixed, **(headers or {})}, body, self._sent(prelude)))

    def fail(
        self,
        status: int,
        kind: str | None = None,
        message: str = "scripted failure",
        retry_after: float | str | None = None,
        headers: Mapping[str, str] | None = None,
        prelude: Sequence[Action] = (),
        **fields: Any,
    ) -> None:
        """Script an error response; its type is the status's own unless given, `fields` are more of its document."""
        self.script(self._refusal(status, kind, message, retry_after, headers, prelude, fields))

    def fail_page(self, status: int = 502, page: str = "<html><title>502 Bad Gateway</title></html>") -> None:
        """Script an error response that is no JSON, as one of a proxy."""
        data = page.encode()
        self.script(Reply(status, {"content-type": "text/html", "content-length": str(len(data))}, [data]))

    def exception_inside(
        self, kind: str, message: str = "scripted failure", after: Sequence[Part] = (), **fields: Any
    ) -> None:
        """Script a stream that fails by an exception, after these frames; `fields` are more of its payload."""
        self.reply_frames(*after, exception(kind, message, self.message_key, **fields))

    def error_inside(self, code: str, message: str = "scripted failure", after: Sequence[Part] = ()) -> None:
        """Script a stream that fails by an error that has no type, after these frames."""
        self.reply_frames(*after, error(code, message))

    def garbage(self, after: Sequence[Part] = (), data: bytes = b"<html>this is no frame</html>") -> None:
        """Script a stream with bytes that are no frame, after these frames; fewer than 12 look like a cut."""
        self.reply_frames(*after, data)

    def empty(self) -> None:
        """Script a reply with nothing in its body."""
        self.reply_frames()

    def drop(self, after: Sequence[Part] = (), before_headers: bool = False) -> None:
        """Script a connection that is reset after these frames."""
        self._fault(Drop(), after, before_headers)

    def close(self, after: Sequence[Part] = (), before_headers: bool = False) -> None:
        """Script a connection that ends in order, but too early, after these frames."""
        self._fault(Close(), after, before_headers)

    def stall(self, after: Sequence[Part] = (), before_headers: bool = False) -> None:
        """Script a connection that falls silent after these frames."""
        self._fault(Stall(), after, before_headers)

    def encode(self, one: dict[str, Any]) -> bytes:
        """The frame of an event."""
        raise TypeError(f"a frame must be bytes, but got {one}")

    def _sent(self, parts: Iterable[Part]) -> list[Action]:
        return [self.encode(part) if isinstance(part, dict) else part for part in parts]

    def _fault(self, fault: Action, after: Sequence[Part], before_headers: bool) -> None:
        if before_headers:
            self.reply_frames(prelude=[*after, fault])
        else:
            self.reply_frames(*after, fault)

    def _choose(self, request: Request) -> Reply:
        credentials = request.headers.get("authorization", "")
        if request.method != "POST" or not self.path.fullmatch(request.path):
            self.errors.append(AssertionError(f"no such operation: {request.method} {request.path}"))
            return self._refusal(404, "UnknownOperationException")
        if not credentials.startswith(("AWS4-HMAC-SHA256 ", "Bearer ")):
            self.errors.append(AssertionError(f"the request must be signed, but has {credentials!r}"))
            return self._refusal(403, "MissingAuthenticationTokenException", "Missing Authentication Token")
        return super()._choose(request)

    def _refusal(
        self,
        status: int,
        kind: str | None = None,
        message: str = "scripted failure",
        retry_after: float | str | None = None,
        headers: Mapping[str, str] | None = None,
        prelude: Sequence[Action] = (),
        fields: Mapping[str, Any] | None = None,
    ) -> Reply:
        kind = kind or self.kinds.get(status, "UnknownError")
        data = json.dumps({self.message_key: message, **(fields or {})}).encode()
        known = {
            "content-type": "application/json",
            "content-length": str(len(data)),
            "x-amzn-requestid": self._request_id(),
            "x-amzn-errortype": kind + self.error_namespace,
        }
        if retry_after is not None:
            known["retry-after"] = retry_after if isinstance(retry_after, str) else f"{retry_after:g}"
        return Reply(status, {**known, **(headers or {})}, [data], prelude)

    def _request_id(self) -> str:
        return f"00000000-0000-4000-8000-{next(self._ids):012}"


@functools.cache
def _session() -> Any:
    # what makes a client slow is the service's model, which a session loads once
    return boto3.Session(aws_access_key_id="AKIDEXAMPLE", aws_secret_access_key="secret", region_name="us-east-1")


def _header_value(value: HeaderValue) -> bytes:
    match value:
        case Typed(number, data):
            return struct.pack("!B", number) + data
        case bool():
            return struct.pack("!B", 0 if value else 1)
        case int():
            return struct.pack("!Bi", 4, value)
        case bytes():
            return struct.pack("!BH", 6, len(value)) + value
        case datetime():
            return struct.pack("!Bq", 8, round(value.timestamp() * 1000))
        case uuid.UUID():
            return struct.pack("!B", 9) + value.bytes
        case _:
            return struct.pack("!BH", 7, len(value.encode())) + value.encode()


def _inverted(data: bytes, start: int, end: int) -> bytes:
    return data[:start] + bytes(byte ^ 0xFF for byte in data[start:end]) + data[end:]


def _resized(parts: Sequence[Action], cut: int | None, chunk_size: int | None) -> Sequence[Action]:
    if cut is None and chunk_size is None:
        return parts
    sent = [part for part in parts if isinstance(part, bytes)]
    assert len(sent) == len(parts), "only frames can be cut"
    if cut is not None:
        sent = first_bytes(sent, cut)
    return sent if chunk_size is None else split_every(b"".join(sent), chunk_size)
