"""Cut an AWS event stream into its frames.

Source: https://docs.aws.amazon.com/AmazonS3/latest/API/RESTSelectObjectAppendix.html
"""

from __future__ import annotations

import struct
from binascii import crc32
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from rxloop.errors import MalformedResponseError, StreamInterruptedError

__all__ = ("Frame", "FrameDecoder", "Heading")

_PRELUDE = struct.Struct("!III")
_CHECKSUM = struct.Struct("!I")
_LEAST = 16
_LONGEST_HEADERS = 128 * 1024
_LONGEST_FRAME = 25 * 1024 * 1024
_KEPT_HEADINGS = 64
_BYTES, _STRING = 6, 7
_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""The types of a header's value that have a fixed size; what they say is of no interest here."""


class Heading:
    """
    What a frame's headers say of it.

    Args:
        kind: ``event``, ``exception`` or ``error``.
        name: the event's type, the exception's type or the error's code.
        headers: all headers whose values are text.
    """

    __slots__ = ("headers", "kind", "name")

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.headers = headers
        self.kind = headers.get(":message-type", "event")
        self.name = headers.get(_NAMES.get(self.kind, ":event-type"), "")


_NAMES = {"exception": ":exception-type", "error": ":error-code"}


Frame: TypeAlias = tuple[Heading, bytes]
"""One frame: what its headers say, and its payload."""


class FrameDecoder:
    """
    A pure decoder: bytes in, cut anywhere, whole frames out. Every frame's checksum is checked.

    Args:
        provider: the name that errors carry.
    """

    __slots__ = ("_headings", "_held", "_pieces", "_provider", "_wanted")

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._headings: dict[bytes, Heading] = {}
        self._pieces: list[bytes] = []
        self._held = 0
        self._wanted = 0

    def feed(self, data: bytes) -> Iterator[Frame]:
        """
        The frames that are whole now, cut as they are asked for.

        Raises:
            MalformedResponseError: a checksum is wrong, or a length cannot be, of the frame that follows.
        """
        if self._held:
            self._pieces.append(data)
            self._held += len(data)
            if self._held < self._wanted:
                return
            data = b"".join(self._pieces)
            self._pieces.clear()
            self._held = 0
        start, size = 0, len(data)
        while size - start >= _LEAST:
            length, headers_length, checksum = _PRELUDE.unpack_from(data, start)
            end = start + length
            if end > size or length < headers_length + _LEAST:
                # the rest is to come; with a wrong length it never would
                self._check_prelude(data[start : start + 8], length, headers_length, checksum)
                self._wanted = length
                break
            headers_end = start + 12 + headers_length
            if crc32(data[start : end - 4]) != _CHECKSUM.unpack_from(data, end - 4)[0]:
                raise self._malformed("its checksum is wrong")
            block = data[start + 12 : headers_end]
            heading = self._headings.get(block)
            if heading is None:
                self._check_prelude(data[start : start + 8], length, headers_length, checksum)
                heading = self._heading(block)
            yield heading, data[headers_end : end - 4]
            start = end
        else:
            self._wanted = _LEAST
        if start < size:
            self._pieces.append(data[start:])
            self._held = size - start

    def close(self) -> None:
        """
        The end of the wire.

        Raises:
            StreamInterruptedError: a frame is not whole.
        """
        if self._held:
            raise StreamInterruptedError(
                f"the reply ended in the middle of a frame, after {self._held} of its bytes",
                provider=self._provider,
            )

    def _check_prelude(self, lengths: bytes, length: int, headers_length: int, checksum: int) -> None:
        if crc32(lengths) != checksum:
            raise self._malformed("the checksum of its prelude is wrong")
        if not _LEAST + headers_length <= length <= _LONGEST_FRAME or headers_length > _LONGEST_HEADERS:
            raise self._malformed(f"its lengths cannot be: {length} bytes with {headers_length} of headers")

    def _heading(self, block: bytes) -> Heading:
        """Read the headers, once for all frames that have the same."""
        headers: dict[str, str] = {}
        position = 0
        try:
            while position < len(block):
                name_end = position + 1 + block[position]
                name = block[position + 1 : name_end].decode()
                kind = block[name_end]
                position = name_end + 1
                if kind in (_BYTES, _STRING):
                    [length] = struct.unpack_from("!H", block, position)
                    position += 2 + length
                    if position > len(block):
                        raise self._malformed("a header is longer than all headers together")
                    if kind == _STRING:
                        headers[name] = block[position - length : position].decode()
                else:
                    position += _SIZES[kind]
        except (IndexError, KeyError, UnicodeDecodeError, struct.error) as error:
            raise self._malformed("its headers cannot be read") from error
        heading = Heading(headers)
        if len(self._headings) < _KEPT_HEADINGS:
            self._headings[block] = heading
        return heading

    def _malformed(self, fault: str) -> MalformedResponseError:
        return MalformedResponseError(f"the reply has a faulty frame: {fault}", provider=self._provider)
