"""A process with the clients of a web server: raw sockets that read and hardly look at what they read.

One JSON line in, one out. `open` starts turns and joins their watchers; `read` reads all to their ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import socket
import sys
import time
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from benchmarks.server import STAMP_LENGTH, TEXT_LENGTH, WIDE_TEXT_LENGTH

SECONDS = 100
STALLED_RECEIVE_BUFFER = 4096
_STAMP = re.compile(rb"@(\d{%d})" % STAMP_LENGTH)


def _post(port: int, model: str, accept: str) -> bytes:
    body = {
        "threadId": uuid4().hex,
        "runId": uuid4().hex,
        "state": {},
        "messages": [{"id": "message", "role": "user", "content": model}],
        "tools": [],
        "context": [],
        "forwardedProps": {},
    }
    data = json.dumps(body).encode()
    head = (
        f"POST /turns HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\naccept: {accept}\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def _get(port: int, path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n\r\n".encode()


def _ask(port: int, request: bytes) -> Any:
    """Ask for JSON and wait for it."""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as asking:
        asking.sendall(request)
        reply = b""
        while True:
            part = asking.recv(65_536)
            reply += part
            head, _, body = reply.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: *(\d+)", head)
            if not part or (length and len(body) >= int(length[1])):
                return json.loads(body)


class Watcher:
    """A client of one stream."""

    def __init__(self, port: int, request: bytes, *, stalls: bool = False, keeps: bool = False) -> None:
        self.stalls = stalls
        self.socket = socket.socket()
        if stalls:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, STALLED_RECEIVE_BUFFER)
        self.socket.settimeout(SECONDS)
        self.socket.connect(("127.0.0.1", port))
        self.socket.sendall(request)
        self.kept: list[bytes] | None = [] if keeps else None
        self.tail = b""
        self.size = 0

    def begin(self) -> None:
        """Wait for the head of the reply."""
        data = self.socket.recv(STALLED_RECEIVE_BUFFER)
        if b" 200 " not in data[:20]:
            raise AssertionError(f"the server refused: {data[:200]!r}")
        self.take(data)
        self.socket.setblocking(False)

    def take(self, data: bytes) -> None:
        """Note what came."""
        self.size += len(data)
        self.tail = (self.tail + data)[-512:] if len(data) < 512 else data[-512:]
        if self.kept is not None:
            self.kept.append(data)

    def leave(self) -> int:
        """Stop waiting in the middle of it; return how many bytes had come by then, and lay in the socket."""
        with contextlib.suppress(BlockingIOError):
            while data := self.socket.recv(262_144, socket.MSG_DONTWAIT):
                self.take(data)
        return self.size


class Clients:
    """The clients that are open now."""

    def __init__(self, provider: str) -> None:
        self._provider = int(urlsplit(provider).port or 0)
        self._watchers: list[Watcher] = []
        self._model = ""

    def open(self, *, port: int, model: str, turns: int, watchers: int = 1, stalled: int = 0) -> dict[str, Any]:
        """Start so many turns, each with so many watchers; a turn that is held is so when this returns."""
        self._model = model
        for _ in range(turns):
            if watchers == 1:
                requests = [_post(port, model, "text/event-stream")]
            else:
                turn_id = _ask(port, _post(port, model, "application/json"))["turn_id"]
                requests = watchers * [_get(port, f"/turns/{turn_id}/events?format=agui")]
            for number, request in enumerate(requests):
                keeps = not self._watchers
                self._watchers.append(Watcher(port, request, stalls=number >= watchers - stalled, keeps=keeps))
        for watcher in self._watchers:
            watcher.begin()
        deadline = time.monotonic() + SECONDS
        while model.endswith("-held") and self._ask("/stats")["held"] < turns:
            if time.monotonic() > deadline:
                raise AssertionError("the provider was not asked")
            time.sleep(0.01)
        return {}

    def _ask(self, path: str) -> Any:
        return _ask(self._provider, _get(self._provider, path))

    def read(self) -> dict[str, Any]:
        """Let go of the turns that are held, and read to the end; those that stall are left when the others have it."""
        if self._model.endswith("-held"):
            self._ask("/release")
        timed = "-timed" in self._model
        delays: list[float] = []
        with selectors.DefaultSelector() as selector:
            for watcher in self._watchers:
                if not watcher.stalls:
                    selector.register(watcher.socket, selectors.EVENT_READ, watcher)
            deadline = time.monotonic() + SECONDS
            while selector.get_map():
                if time.monotonic() > deadline:
                    raise AssertionError("the streams did not end")
                for key, _ in selector.select(1.0):
                    data = key.data.socket.recv(262_144)
                    if timed:
                        now = time.monotonic_ns()
                        delays += [now - int(stamp) for stamp in _STAMP.findall(data)]
                    if data:
                        key.data.take(data)
                    else:
                        selector.unregister(key.data.socket)
        answer = self._check(timed)
        for watcher in self._watchers:
            watcher.socket.close()
        self._watchers = []
        return {**answer, "delays": delays}

    def _check(self, timed: bool) -> dict[str, Any]:
        for watcher in self._watchers:
            if not watcher.stalls and b"RUN_FINISHED" not in watcher.tail:
                raise AssertionError(f"a stream ended without its end: {watcher.tail!r}")
        kept = self._watchers[0].kept
        assert kept is not None
        _, _, body = b"".join(kept).partition(b"\r\n\r\n")
        lines = [line[6:] for line in _unchunked(body).split(b"\n") if line.startswith(b"data: ")]
        pieces = [event["delta"] for line in lines if (event := json.loads(line))["type"] == "TEXT_MESSAGE_CONTENT"]
        each = STAMP_LENGTH + 1 if timed else WIDE_TEXT_LENGTH if "-wide" in self._model else TEXT_LENGTH
        length = each * int(self._model.split("-")[1])
        if len("".join(pieces)) != length:
            raise AssertionError(f"{self._model}: {len(''.join(pieces))} characters arrived")
        stalled = [watcher.leave() for watcher in self._watchers if watcher.stalls]
        return {"frames": len(pieces), "bytes": self._watchers[0].size, "stalled_bytes": sum(stalled)}


def _unchunked(body: bytes) -> bytes:
    parts: list[bytes] = []
    place = 0
    while True:
        end = body.index(b"\r\n", place)
        size = int(body[place:end], 16)
        if not size:
            return b"".join(parts)
        parts.append(body[end + 2 : end + 2 + size])
        place = end + 4 + size


def main() -> None:
    """Answer commands until standard input closes."""
    answers = os.fdopen(os.dup(1), "w")
    sys.stdout = sys.stderr
    clients = Clients(sys.argv[2])
    answers.write("{}\n")
    answers.flush()
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = clients.open(**command) if command.pop("operation") == "open" else clients.read()
        except Exception as exc:
            answer = {"unavailable": f"{type(exc).__name__}: {exc}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
