"""A load server: Anthropic Messages, Gemini and Bedrock streams over raw asyncio HTTP/1.1, in a process of its own.

The `model` of a request chooses the reply; Gemini's and Bedrock's is in the path, and they know the first three:

- `text-N`: N text deltas of four characters each
- `text-N-paced-Xms`: the same with a delay of X milliseconds before each delta
- `text-N-tight`: the same with a small send buffer, so that a stalled reader blocks the server soon
- `…-wide`: the same with 400 characters in a delta
- `…-timed`: the text of a delta is `@` and the nanoseconds of the system's monotonic clock when it was written
- `…-held`: no delta before the next `GET /release`
- `tool-1-1`: a text delta and one `tool_use` of `add`; one text delta if the last message is a tool result

Every event is one HTTP chunk and one write. `GET /stats` tells how far the latest stream has got, and
how many are held.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
import sys
import time
from binascii import crc32
from typing import Any

TEXTS = (
    "the ",
    "of a",
    "nd r",
    "ain ",
    "in a",
    " sea",
    "\nand",
    " an ",
    "été ",
    '"so"',
    "on a",
    "lot ",
    "to b",
    "e it",
    " is,",
    " or.",
)
TEXT_LENGTH = 4
TIGHT_SEND_BUFFER = 32 * 1024
_MODEL = re.compile(
    r"^text-(?P<deltas>\d+)(?:-paced-(?P<pace>[\d.]+)ms)?(?P<tight>-tight)?(?P<wide>-wide)?(?P<timed>-timed)?(?P<held>-held)?$"
)

_HEAD = (
    b"HTTP/1.1 200 OK\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\n"
    b"request-id: req_benchmark\r\n"
    b"transfer-encoding: chunked\r\n"
    b"connection: keep-alive\r\n\r\n"
)
_GEMINI_HEAD = (
    b"HTTP/1.1 200 OK\r\n"
    b"content-type: text/event-stream\r\n"
    b"vary: Origin\r\n"
    b"server: scaffolding on HTTPServer2\r\n"
    b"transfer-encoding: chunked\r\n"
    b"connection: keep-alive\r\n\r\n"
)
_GEMINI_PATH = re.compile(r"^POST /v1(?:beta)?/models/(?P<model>[^/:?]+):streamGenerateContent\?alt=sse ")
_BEDROCK_HEAD = (
    b"HTTP/1.1 200 OK\r\n"
    b"content-type: application/vnd.amazon.eventstream\r\n"
    b"x-amzn-requestid: 00000000-0000-0000-0000-000000000000\r\n"
    b"transfer-encoding: chunked\r\n"
    b"connection: keep-alive\r\n\r\n"
)
_BEDROCK_PATH = re.compile(r"^POST /model/(?P<model>[^/]+)/converse-stream ")
_LAST_CHUNK = b"0\r\n\r\n"


def _framed(body: bytes) -> bytes:
    """Make one HTTP chunk of a body."""
    return b"%x\r\n%b\r\n" % (len(body), body)


def _chunk(event: dict[str, Any]) -> bytes:
    """Encode an event as one SSE event in one HTTP chunk."""
    data = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    return _framed(f"event: {event['type']}\ndata: {data}\n\n".encode())


def _text_delta(text: str) -> bytes:
    return _chunk({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}})


_DELTAS = tuple(_text_delta(text) for text in TEXTS)
WIDE_TEXT_LENGTH = 100 * TEXT_LENGTH
_WIDE_DELTAS = tuple(_text_delta(100 * text) for text in TEXTS)
STAMP_LENGTH = 19
_TIMED_HEAD, _TIMED_TAIL = _text_delta("@" + STAMP_LENGTH * "0").split(STAMP_LENGTH * b"0")
_PING = _chunk({"type": "ping"})
_TEXT_START = _chunk({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
_MESSAGE_STOP = _chunk({"type": "message_stop"})


def _block_stop(index: int) -> bytes:
    return _chunk({"type": "content_block_stop", "index": index})


_TOOL_USE = (
    _chunk(
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "tool_use", "id": "toolu_benchmark", "name": "add", "input": {}},
        }
    ),
    _chunk(
        {
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "input_json_delta", "partial_json": '{"a": 2, "b": 3}'},
        }
    ),
    _block_stop(1),
)


def _message_start(model: str) -> bytes:
    message: dict[str, Any] = {
        "id": "msg_benchmark",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 1},
    }
    return _chunk({"type": "message_start", "message": message})


def _message_delta(stop_reason: str, output_tokens: int) -> bytes:
    return _chunk(
        {
            "type": "message_delta",
            "delta": {"stop_reason": stop_reason, "stop_sequence": None},
            "usage": {"output_tokens": output_tokens},
        }
    )


def _gemini_chunk(text: str, output_tokens: int, **candidate: Any) -> bytes:
    """Encode a piece of text as AI Studio sends it."""
    usage = {
        "promptTokenCount": 10,
        "candidatesTokenCount": output_tokens,
        "totalTokenCount": 10 + output_tokens,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 10}],
    }
    event = {
        "candidates": [{"content": {"parts": [{"text": text}], "role": "model"}, **candidate, "index": 0}],
        "usageMetadata": usage,
        "modelVersion": "gemini-benchmark",
        "responseId": "resp_benchmark_0123456",
    }
    return _framed(f"data: {json.dumps(event, ensure_ascii=False)}\r\n\r\n".encode())


_GEMINI_CHUNKS = tuple(_gemini_chunk(text, number) for number, text in enumerate(TEXTS, 1))


def _bedrock_frame(kind: str, payload: dict[str, Any]) -> bytes:
    """Encode an event as Bedrock sends it, with the filler that hides a payload's length."""
    body = json.dumps(
        {**payload, "p": "abcdefghijklmnopqrstuvwxyz"}, ensure_ascii=False, separators=(",", ":")
    ).encode()
    headers = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    head = b"".join(
        struct.pack(f"!B{len(name)}sBH{len(value)}s", len(name), name.encode(), 7, len(value), value.encode())
        for name, value in headers.items()
    )
    prelude = struct.pack("!II", 16 + len(head) + len(body), len(head))
    message = prelude + struct.pack("!I", crc32(prelude)) + head + body
    return _framed(message + struct.pack("!I", crc32(message)))


_BEDROCK_DELTAS = tuple(
    _bedrock_frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": text}}) for text in TEXTS
)
_BEDROCK_START = _bedrock_frame("messageStart", {"role": "assistant"})
_BEDROCK_STOP = _bedrock_frame("contentBlockStop", {"contentBlockIndex": 0}) + _bedrock_frame(
    "messageStop", {"stopReason": "end_turn"}
)


def _has_tool_result(request: dict[str, Any]) -> bool:
    content = request["messages"][-1]["content"]
    return isinstance(content, list) and any(block.get("type") == "tool_result" for block in content)


def _deltas(model: str) -> int:
    match = _MODEL.match(model)
    if match is None:
        raise ValueError(f"unknown model {model!r}")
    return int(match["deltas"])


class Stats:
    """How far the latest stream has got."""

    def __init__(self) -> None:
        self.sent = 0
        self.blocked = False
        self.finished = False
        self.held = 0


class LoadProtocol(asyncio.Protocol):
    """One connection; requests are served one after the other."""

    def __init__(self, stats: Stats, held: list[asyncio.Event]) -> None:
        self._stats = stats
        self._held = held
        self._buffer = bytearray()
        self._writable = asyncio.Event()
        self._writable.set()
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=0)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._buffer[:end]).decode("latin-1")
        length = re.search(r"^content-length: *(\d+)", head, re.IGNORECASE | re.MULTILINE)
        total = end + 4 + (int(length[1]) if length else 0)
        if len(self._buffer) < total:
            return
        body = bytes(self._buffer[end + 4 : total])
        del self._buffer[:total]
        if head.startswith("GET /stats"):
            self._reply_json(vars(self._stats))
        elif head.startswith("GET /release"):
            for held in self._held:
                held.set()
            self._held.clear()
            self._reply_json({})
        elif head.startswith("POST /v1/messages"):
            self._task = asyncio.ensure_future(self._stream(json.loads(body)))
        elif gemini := _GEMINI_PATH.match(head):
            self._task = asyncio.ensure_future(self._stream_gemini(gemini["model"]))
        elif bedrock := _BEDROCK_PATH.match(head):
            self._task = asyncio.ensure_future(self._stream_bedrock(bedrock["model"]))
        else:
            self._transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")

    def _reply_json(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )

    async def _stream(self, request: dict[str, Any]) -> None:
        model = request["model"]
        self._transport.write(_HEAD)
        self._transport.write(_message_start(model))
        self._transport.write(_PING)
        self._transport.write(_TEXT_START)
        if model == "tool-1-1":
            tail = self._tool_reply(request)
        else:
            tail = await self._text_reply(model)
        for chunk in tail:
            self._transport.write(chunk)

    def _tool_reply(self, request: dict[str, Any]) -> tuple[bytes, ...]:
        opening = (_DELTAS[0], _block_stop(0))
        if _has_tool_result(request):
            return (*opening, _message_delta("end_turn", 1), _MESSAGE_STOP, _LAST_CHUNK)
        return (*opening, *_TOOL_USE, _message_delta("tool_use", 2), _MESSAGE_STOP, _LAST_CHUNK)

    async def _text_reply(self, model: str) -> tuple[bytes, ...]:
        deltas = _deltas(model)
        if not await self._send(model, deltas, _WIDE_DELTAS if "-wide" in model else _DELTAS):
            return ()
        self._stats.finished = True
        return (_block_stop(0), _message_delta("end_turn", deltas), _MESSAGE_STOP, _LAST_CHUNK)

    async def _stream_gemini(self, model: str) -> None:
        deltas = _deltas(model)
        self._transport.write(_GEMINI_HEAD)
        if await self._send(model, deltas - 1, _GEMINI_CHUNKS):
            self._stats.finished = True
            last = TEXTS[(deltas - 1) % len(TEXTS)]
            self._transport.write(_gemini_chunk(last, deltas, finishReason="STOP"))
            self._transport.write(_LAST_CHUNK)

    async def _stream_bedrock(self, model: str) -> None:
        deltas = _deltas(model)
        self._transport.write(_BEDROCK_HEAD + _BEDROCK_START)
        if await self._send(model, deltas, _BEDROCK_DELTAS):
            self._stats.finished = True
            usage = {"inputTokens": 10, "outputTokens": deltas, "totalTokens": 10 + deltas}
            metadata = _bedrock_frame("metadata", {"usage": usage, "metrics": {"latencyMs": 100}})
            self._transport.write(_BEDROCK_STOP + metadata + _LAST_CHUNK)

    async def _send(self, model: str, deltas: int, chunks: tuple[bytes, ...]) -> bool:
        """Send so many deltas at the model's pace; false if the client left."""
        match = _MODEL.match(model)
        assert match is not None
        pace = float(match["pace"]) / 1000 if match["pace"] else 0.0
        if match["tight"]:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, TIGHT_SEND_BUFFER)
        stats = self._stats
        if match["held"]:
            held = asyncio.Event()
            self._held.append(held)
            stats.held = len(self._held)
            await held.wait()
            stats.held = 0
        stats.sent = 0
        stats.finished = stats.blocked = False
        transport, writable, count, timed = self._transport, self._writable, len(chunks), match["timed"]
        write = transport.write
        for number in range(deltas):
            if pace:
                await asyncio.sleep(pace)
            if timed:
                write(b"%b%019d%b" % (_TIMED_HEAD, time.monotonic_ns(), _TIMED_TAIL))
            else:
                write(chunks[number % count])
            stats.sent = number + 1
            if not writable.is_set():
                stats.blocked = True
                await writable.wait()
                stats.blocked = False
            if transport.is_closing():
                return False
        return True


async def serve() -> None:
    """Serve on a free port of 127.0.0.1, print it, and stop when standard input closes."""
    loop = asyncio.get_running_loop()
    stats = Stats()
    held: list[asyncio.Event] = []
    server = await loop.create_server(lambda: LoadProtocol(stats, held), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(serve())
