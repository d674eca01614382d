"""A real redis-server of the tests' own: on a free port, in a folder of its own, that can be stopped and started."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

__all__ = ["RedisServer", "needs_redis"]

_BINARY = shutil.which("redis-server")
_PATIENCE = 20.0

needs_redis = pytest.mark.skipif(_BINARY is None, reason="install redis-server (apt-get install redis-server)")


class RedisServer:
    """It keeps what it has acknowledged over a restart, unless it is told to lose it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self, *options: str) -> None:
        """Start it and wait until it answers."""
        assert _BINARY is not None
        assert self._process is None, "it runs already"
        where = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        kept = ["--save", "", "--appendonly", "yes", "--appendfsync", "always", *options]
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen([_BINARY, *where, *kept], stdout=log, stderr=log)
        deadline = time.monotonic() + _PATIENCE
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "redis.log").read_text()
            assert time.monotonic() < deadline, "redis-server does not answer"
            time.sleep(0.01)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as asking:
            asking.sendall(b"PING\r\n")
            answer = asking.recv(64)
            return answer.startswith((b"+PONG", b"-NOAUTH"))
        return False

    def kill(self) -> None:
        """End it as a crash does."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(_PATIENCE)

    def freeze(self) -> None:
        """Let it be silent: it takes connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on where it was."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def lose(self) -> None:
        """Forget everything, as one without persistence does when it restarts."""
        self.kill()
        shutil.rmtree(self._folder / "appendonlydir")
        self.start()
