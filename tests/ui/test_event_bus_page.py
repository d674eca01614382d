"""The blocks of the page on event buses run, as they stand: one in memory, two as a worker and a web process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.providers.anthropic import AnthropicServer, message, text
from tests.providers.http import Reply, Request
from tests.ui.redis_server import RedisServer, needs_redis
from tests.ui.serving import frames, run_body

ROOT = Path(__file__).parent.parent.parent
BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/event_bus.md").read_text(), re.MULTILINE | re.DOTALL)


def _answer(request: Request) -> Reply:
    return Reply(200, {"content-type": "text/event-stream"}, message(text("It is 5.")))


@pytest.fixture
def model() -> Iterator[dict[str, str]]:
    """The environment in which Anthropic's is a local server."""
    with AnthropicServer() as server:
        server.route(_answer)
        yield {"PYTHONPATH": str(ROOT), "ANTHROPIC_API_KEY": "test-key", "ANTHROPIC_BASE_URL": server.url}


def test_a_turn_is_published_and_watched(model: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "block.py"
    script.write_text(BLOCKS[0])
    finished = subprocess.run(
        [sys.executable, "-W", "error", script], env=model, capture_output=True, text=True, timeout=50, check=False
    )
    assert (finished.returncode, finished.stderr) == (0, "")
    *said, last = finished.stdout.splitlines()
    assert last == "turn_finished"
    assert "".join(re.sub(r"^\d+ ", "", line) for line in said) == "It is 5." * 2


@contextlib.contextmanager
def _running(command: list[str], environment: dict[str, str], folder: Path) -> Iterator[None]:
    log = folder / f"{command[-1]}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *command], env=environment, cwd=folder, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield
        assert process.poll() is None, log.read_text()
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        process.kill()
        process.wait(5)


def _asked(url: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    """One request, made again while the web process is not up yet."""
    data = None if body is None else json.dumps(body).encode()
    for _ in range(400):
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data, headers or {}), timeout=20) as reply:  # noqa: S310
                return reply.status, reply.read()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read()
        except urllib.error.URLError:
            time.sleep(0.05)
    raise AssertionError("the web process is not up")


@needs_redis
def test_a_worker_and_a_web_process(model: dict[str, str], redis_server: RedisServer, tmp_path: Path) -> None:
    environment = {**model, "REDIS_URL": redis_server.url, "PATH": os.environ["PATH"]}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    for block, name in zip(BLOCKS[1:], ("worker.py", "web.py"), strict=True):
        assert block.startswith(f"# {name}")
        (tmp_path / name).write_text(block)
    web = f"http://127.0.0.1:{port}"
    with _running(["-m", "uvicorn", "--port", port, "web:app"], environment, tmp_path):
        wanted = {"Content-Type": "application/json", "Accept": "application/json"}
        status, body = _asked(f"{web}/turns", run_body("What is 2+3?"), wanted)
        assert status == 202, body
        assert _asked(f"{web}/turns", run_body("And now?"), wanted)[0] == 409
        with _running(["worker.py"], environment, tmp_path):
            turn_id = json.loads(body)["turn_id"]
            status, stream = _asked(f"{web}/turns/{turn_id}/events?format=rxloop")
            found = frames(stream.decode())
            assert status == 200
            assert found[0][1] == {**found[0][1], "type": "turn_started", "turn_id": turn_id}
            assert found[-1][1] == {**found[-1][1], "type": "turn_finished", "text": "It is 5."}
            _, rest = _asked(
                f"{web}/turns/{turn_id}/events?format=rxloop", headers={"Last-Event-ID": str(found[-2][0])}
            )
            assert frames(rest.decode()) == found[-1:]
            assert _asked(f"{web}/turns/{turn_id}/stop", {})[0] == 202
            assert _asked(f"{web}/turns/none/events")[0] == 404
            # whoever knows of the end can go on at once
            assert _asked(f"{web}/turns", run_body("And times 7?"), wanted)[0] == 202
