"""The SSE decoder, without any I/O."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rxloop.adapters.sse import SSEDecoder
from tests.providers.http import split_at, split_every

_STREAM = (
    "event: message_start\n"
    'data: {"type":"message_start"}\n\n'
    ": a comment\n\n"
    "event: ping\n"
    "data: {}\n\n"
    "id: 7\n"
    "retry: 10\n"
    "data: first\n"
    "data: second\n\n"
    "data:no space\n\n"
    "data:  two spaces\n\n"
    "data: ü€😀 \u2028 inside \x85 \x0b \x0c\n\n"
    "nodata: x\n\n"
    "data: [DONE]\n\n"
)
_EVENTS = [
    b'{"type":"message_start"}',
    b"{}",
    b"first\nsecond",
    b"no space",
    b" two spaces",
    "ü€😀 \u2028 inside \x85 \x0b \x0c".encode(),
    b"[DONE]",
]
_ENDINGS = {"LF": "\n", "CRLF": "\r\n", "CR": "\r"}


def _decode(*chunks: bytes) -> list[bytes]:
    decoder = SSEDecoder()
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    return [*events, *decoder.close()]


def _framed(stream: str, ending: str) -> bytes:
    return stream.replace("\n", _ENDINGS[ending]).encode()


@pytest.mark.parametrize("ending", _ENDINGS)
def test_a_whole_stream(ending: str) -> None:
    assert SSEDecoder().feed(_framed(_STREAM, ending)) == _EVENTS


@pytest.mark.parametrize("ending", _ENDINGS)
def test_one_byte_at_a_time(ending: str) -> None:
    assert _decode(*split_every(_framed(_STREAM, ending), 1)) == _EVENTS


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
@pytest.mark.parametrize("ending", _ENDINGS)
def test_cut_in_two_at_every_byte(ending: str, mark: bytes) -> None:
    stream = mark + _framed(_STREAM, ending)
    for cut in range(len(stream) + 1):
        assert _decode(*split_at(stream, cut)) == _EVENTS, f"cut at {cut}"


@pytest.mark.parametrize("ending", _ENDINGS)
def test_an_event_comes_out_with_the_byte_that_completes_it(ending: str) -> None:
    stream = _framed("data: a\n\n", ending)
    decoder = SSEDecoder()
    assert [decoder.feed(bytes([byte])) for byte in stream[: stream.rindex(b"a") + 1]] == [[]] * 7
    # of a CRLF the CR is enough
    completing = 2 if ending != "CRLF" else 3
    tail = [decoder.feed(bytes([byte])) for byte in stream[7:]]
    assert [index for index, events in enumerate(tail, 1) if events] == [completing]


def test_endings_may_be_mixed() -> None:
    assert _decode(b"data: a\r\n\ndata: b\n\r\ndata: c\r\rdata: d\n\n") == [b"a", b"b", b"c", b"d"]


def test_a_byte_order_mark_is_dropped_once() -> None:
    mark = b"\xef\xbb\xbf"
    assert _decode(mark + b"data: a\n\n") == [b"a"]
    assert _decode(mark + mark + b"data: a\n\n") == []
    assert _decode(b"data: " + mark + b"\n\n") == [mark]


@pytest.mark.parametrize("ending", ["", "\n"], ids=["inside the line", "after the line"])
def test_the_last_blank_line_may_be_missing(ending: str) -> None:
    decoder = SSEDecoder()
    assert decoder.feed(f"data: a\n\ndata: b{ending}".encode()) == [b"a"]
    assert decoder.close() == [b"b"]
    assert decoder.close() == []


def test_what_is_left_of_a_line_can_be_read() -> None:
    decoder = SSEDecoder()
    decoder.feed(b'data: a\n\n{"error"')
    assert decoder.rest == b'{"error"'
    assert decoder.close() == []


@pytest.mark.parametrize("nothing", [b"", b"\n\n\n", b"\r\n\r\n", b": only a comment\n\n", b"event: ping\n\n"])
def test_no_data_no_event(nothing: bytes) -> None:
    assert _decode(nothing) == []


def test_an_empty_piece_changes_nothing() -> None:
    assert _decode(b"", b"data: a\r", b"", b"\n", b"", b"\r\n", b"data: b\r\n\r\n") == [b"a", b"b"]


def test_a_long_line_in_many_pieces_takes_linear_time() -> None:
    """Joining what has arrived with every piece took 27 s for 10 MB."""
    line = b"data: " + b"x" * 8_000_000
    began = time.thread_time()
    assert _decode(*(line[at : at + 700] for at in range(0, len(line), 700)), b"\n\n") == [line[6:]]
    assert time.thread_time() - began < 2


def test_only_the_three_line_endings_end_a_line() -> None:
    data = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg".encode()
    assert _decode(b"data: " + data + b"\n\n") == [data]


_LINES = st.sampled_from(
    [
        b"data: a",
        b"data:b",
        b"data: ",
        b"data",
        b"database: no",
        b"data : no",
        b": comment",
        b"event: x",
        b"id",
        b"",
        b"",
        b"",
        "data: ü€😀\u2028".encode(),
        b"\xef\xbb\xbfdata: marked",
    ]
)
_BODIES = st.lists(st.tuples(_LINES, st.sampled_from([b"\n", b"\r\n", b"\r"]))).map(
    lambda lines: b"".join(line + ending for line, ending in lines)
)


@given(body=_BODIES, data=st.data())
@example(body=b"\xef\xbb", data=None)
def test_any_split_makes_the_same_events(body: bytes, data: st.DataObject | None) -> None:
    whole = _decode(body)
    cuts = list(range(len(body))) if data is None else data.draw(st.lists(st.integers(0, len(body))).map(sorted))
    assert _decode(*split_at(body, *cuts)) == whole


@given(body=_BODIES)
def test_it_agrees_with_a_plain_reading_of_the_format(body: bytes) -> None:
    assert _decode(body) == _reference(body)


def _reference(body: bytes) -> list[bytes]:
    events: list[bytes] = []
    data: list[bytes] = []
    for line in [*re.split(rb"\r\n|\r|\n", body.removeprefix(b"\xef\xbb\xbf")), b""]:
        field, colon, value = line.partition(b":")
        if not line and data:
            events.append(b"\n".join(data))
            data = []
        elif field == b"data" and colon:
            data.append(value.removeprefix(b" "))
    return events
