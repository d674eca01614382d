"""Write the frames of AWS event streams.

Source: https://docs.aws.amazon.com/AmazonS3/latest/API/RESTSelectObjectAppendix.html
"""

from __future__ import annotations

import struct
from binascii import crc32
from collections.abc import Callable

__all__ = ("event_frame", "frame", "rewritten")

_LENGTHS = struct.Struct("!II")
_CHECKSUM = struct.Struct("!I")
_AROUND = 16
"""Bytes of a frame beside its headers and its payload."""


def frame(headers: bytes, payload: bytes) -> bytes:
    """A frame of headers that are encoded already."""
    lengths = _LENGTHS.pack(len(headers) + len(payload) + _AROUND, len(headers))
    whole = lengths + _CHECKSUM.pack(crc32(lengths)) + headers + payload
    return whole + _CHECKSUM.pack(crc32(whole))


def event_frame(kind: str, payload: bytes) -> bytes:
    """The frame of an event."""
    return frame(_header(":event-type", kind) + _header(":message-type", "event"), payload)


def rewritten(body: bytes, rewrite: Callable[[bytes, bytes], bytes | None]) -> bytes:
    """
    An event stream with other frames. From a frame on that is not whole, all stays as it is.

    Args:
        body: the event stream.
        rewrite: called with every frame's headers and payload; what it returns stands for the frame, which stays as it
            is for ``None``.
    """
    parts: list[bytes] = []
    start = 0
    while len(body) - start >= _AROUND:
        length, headers_length = _LENGTHS.unpack_from(body, start)
        end, headers_end = start + length, start + 12 + headers_length
        if end > len(body) or length < headers_length + _AROUND:
            break
        other = rewrite(body[start + 12 : headers_end], body[headers_end : end - 4])
        parts.append(body[start:end] if other is None else other)
        start = end
    return b"".join((*parts, body[start:]))


def _header(name: str, value: str) -> bytes:
    # 7 is the type of text
    return struct.pack(f"!B{len(name)}sBH", len(name), name.encode(), 7, len(value.encode())) + value.encode()
