"""The frames of an AWS event stream, as Bedrock's streaming endpoints send them.

Source: https://docs.aws.amazon.com/transcribe/latest/dg/event-stream.html
"""

from __future__ import annotations

import base64
import json
import struct
from binascii import crc32
from collections.abc import Mapping

__all__ = ["CONTENT_TYPE", "chunk", "exception", "frame"]

CONTENT_TYPE = "application/vnd.amazon.eventstream"

_STRING = 7


def frame(headers: Mapping[str, str], payload: bytes = b"") -> bytes:
    """One frame: prelude, its checksum, headers, payload, checksum of it all."""
    head = b""
    for name, value in ((name.encode(), value.encode()) for name, value in headers.items()):
        head += struct.pack("!B", len(name)) + name + struct.pack("!BH", _STRING, len(value)) + value
    prelude = struct.pack("!II", 12 + len(head) + len(payload) + 4, len(head))
    message = prelude + struct.pack("!I", crc32(prelude)) + head + payload
    return message + struct.pack("!I", crc32(message))


def chunk(event: Mapping[str, object]) -> bytes:
    """One event of a model's own format, inside the frame of ``InvokeModelWithResponseStream``."""
    payload = json.dumps({"bytes": base64.b64encode(json.dumps(event).encode()).decode()}).encode()
    return frame({":event-type": "chunk", ":content-type": "application/json", ":message-type": "event"}, payload)


def exception(kind: str, message: str) -> bytes:
    """An exception inside the stream."""
    headers = {":exception-type": kind, ":content-type": "application/json", ":message-type": "exception"}
    return frame(headers, json.dumps({"message": message}).encode())
