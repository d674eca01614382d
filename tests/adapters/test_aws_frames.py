"""The frames of an AWS event stream."""

from __future__ import annotations

import itertools
import random
import struct
from binascii import crc32

import pytest
from botocore.eventstream import EventStreamBuffer
from hypothesis import given
from hypothesis import strategies as st

from rxloop.adapters.aws_frames import FrameDecoder
from rxloop.errors import MalformedResponseError, StreamInterruptedError
from tests.providers.eventstream import frame

TEXT = {":event-type": "contentBlockDelta", ":content-type": "application/json", ":message-type": "event"}
THROTTLED = {":exception-type": "throttlingException", ":message-type": "exception"}
FAILED = {":error-code": "InternalError", ":error-message": "no", ":message-type": "error"}
FRAMES = [
    frame(TEXT, b'{"a": "\xc3\xbc"}'),
    frame({}, b""),
    frame(THROTTLED, b"{}"),
    frame(FAILED),
    frame(TEXT, b"x" * 700),
]
BODY = b"".join(FRAMES)


def read(*pieces: bytes) -> list[tuple[str, str, bytes]]:
    decoder = FrameDecoder("aws")
    found = [(heading.kind, heading.name, payload) for piece in pieces for heading, payload in decoder.feed(piece)]
    decoder.close()
    return found


WHOLE = [
    ("event", "contentBlockDelta", b'{"a": "\xc3\xbc"}'),
    ("event", "", b""),
    ("exception", "throttlingException", b"{}"),
    ("error", "InternalError", b""),
    ("event", "contentBlockDelta", b"x" * 700),
]


def test_frames_are_cut() -> None:
    assert read(BODY) == WHOLE


def test_the_sdk_reads_the_same() -> None:
    buffer = EventStreamBuffer()
    buffer.add_data(BODY)
    assert [message.payload for message in buffer] == [payload for *_, payload in WHOLE]


def test_a_cut_anywhere_changes_nothing() -> None:
    for position in range(len(BODY) + 1):
        assert read(BODY[:position], BODY[position:]) == WHOLE, position


def test_byte_by_byte() -> None:
    assert read(*(BODY[index : index + 1] for index in range(len(BODY)))) == WHOLE


@given(st.lists(st.integers(0, len(BODY)), max_size=20))
def test_cuts_everywhere(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(BODY)]
    assert read(*(BODY[start:end] for start, end in itertools.pairwise(edges))) == WHOLE


@pytest.mark.parametrize("length", [*range(1, len(FRAMES[0]), 7), len(FRAMES[0]) + 5])
def test_an_end_in_the_middle_of_a_frame_is_an_interruption(length: int) -> None:
    decoder = FrameDecoder("aws")
    frames = list(decoder.feed((FRAMES[0] + FRAMES[2])[:length]))
    assert len(frames) == (length > len(FRAMES[0]))
    with pytest.raises(StreamInterruptedError, match="in the middle of a frame") as raised:
        decoder.close()
    assert raised.value.provider == "aws"


@pytest.mark.parametrize("position", range(0, len(FRAMES[0]), 3))
def test_a_flipped_bit_is_noticed_and_what_came_before_is_not_lost(position: int) -> None:
    broken = bytearray(FRAMES[0])
    broken[position] ^= 0x10
    decoder = FrameDecoder("aws")
    frames = decoder.feed(FRAMES[2] + bytes(broken) + FRAMES[0] * 2)
    assert next(frames)[0].name == "throttlingException"
    with pytest.raises(MalformedResponseError, match="faulty frame"):
        next(frames)


def test_a_wrong_checksum_of_the_prelude_is_noticed_before_the_frame_is_whole() -> None:
    with pytest.raises(MalformedResponseError, match="prelude"):
        list(FrameDecoder("aws").feed(b"\0\1\0\0" + FRAMES[0][4:12] + b"\0" * 8))


@pytest.mark.parametrize(
    ("length", "headers"), [(15, 0), (16, 1), (40, 25), (30 * 1024 * 1024, 0), (1024 * 1024, 200 * 1024)]
)
def test_lengths_that_cannot_be_are_refused_at_once(length: int, headers: int) -> None:
    lengths = struct.pack("!II", length, headers)
    prelude = lengths + struct.pack("!I", crc32(lengths))
    with pytest.raises(MalformedResponseError, match="lengths cannot be"):
        list(FrameDecoder("aws").feed(prelude + b"\0" * 8))


def headed(block: bytes) -> bytes:
    lengths = struct.pack("!II", 16 + len(block), len(block))
    message = lengths + struct.pack("!I", crc32(lengths)) + block
    return message + struct.pack("!I", crc32(message))


def test_headers_of_every_type_are_passed_over() -> None:
    block = b"".join(
        bytes([1]) + name + bytes([kind]) + value
        for name, kind, value in [
            (b"a", 0, b""),
            (b"b", 1, b""),
            (b"c", 2, b"\1"),
            (b"d", 3, b"\1\2"),
            (b"e", 4, b"\1\2\3\4"),
            (b"f", 5, b"\1" * 8),
            (b"g", 6, b"\0\3abc"),
            (b"h", 7, b"\0\3abc"),
            (b"i", 8, b"\1" * 8),
            (b"j", 9, b"\1" * 16),
        ]
    )
    [(heading, payload)] = FrameDecoder("aws").feed(headed(block))
    assert heading.headers == {"h": "abc"}
    assert payload == b""


@pytest.mark.parametrize(
    "block",
    [b"\1", b"\1a", b"\1a\x07", b"\1a\x07\0", b"\1a\x07\0\5abc", b"\1a\x20abc", b"\1\xff\x07\0\1a", b"\1a\x07\0\1\xff"],
)
def test_headers_that_cannot_be_read_are_malformed(block: bytes) -> None:
    with pytest.raises(MalformedResponseError, match="header"):
        list(FrameDecoder("aws").feed(headed(block)))


def test_headings_are_kept_for_frames_alike_and_not_without_bound() -> None:
    decoder = FrameDecoder("aws")
    first, second = (heading for heading, _ in decoder.feed(FRAMES[0] * 2))
    assert first is second
    for number in range(1000):
        list(decoder.feed(frame({":event-type": f"event{number}"})))
    assert len(decoder._headings) <= 64


def test_a_large_frame_in_small_pieces_is_joined_once() -> None:
    payload = random.Random(1).randbytes(4 * 1024 * 1024)  # noqa: S311
    body = frame(TEXT, payload)
    [(kind, name, found)] = read(*(body[start : start + 1000] for start in range(0, len(body), 1000)))
    assert (kind, name) == ("event", "contentBlockDelta")
    assert found == payload
