from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import pytest

from rxloop.cli import main
from tests.ui.redis_server import RedisServer, needs_redis

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str]:
        status = main(["serve", *arguments])
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("rxloop: ")
        assert err.count("\n") == 1
        return status, err

    return run


class Served:
    """A ``rxloop serve`` of its own process."""

    def __init__(self, process: subprocess.Popen[str], lines: list[str]) -> None:
        self.process = process
        self.lines = lines
        address = urlsplit(next(word for word in lines[-1].split() if word.startswith("http://")))
        self.host, self.port = str(address.hostname), int(address.port or 0)

    @property
    def errors(self) -> IO[str]:
        assert self.process.stderr is not None
        return self.process.stderr

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        with closing(http.client.HTTPConnection(self.host, self.port, timeout=20)) as connection:
            data = None if body is None else json.dumps(body)
            headers = {"Accept": "application/json", "Content-Type": "application/json", **headers}
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def begin(self, prompt: str, thread: str = "t") -> str:
        body = {
            "threadId": thread,
            "runId": "r",
            "state": {},
            "messages": [{"id": "m", "role": "user", "content": prompt}],
            "tools": [],
            "context": [],
            "forwardedProps": {},
        }
        status, answer = self.ask("POST", "/turns?format=rxloop", body)
        assert status == 202, answer
        turn_id: str = json.loads(answer)["turn_id"]
        return turn_id

    def events(self, turn_id: str) -> list[dict[str, Any]]:
        status, body = self.ask("GET", f"/turns/{turn_id}/events?format=rxloop", Accept="text/event-stream")
        assert status == 200
        return [json.loads(line.removeprefix("data: ")) for line in body.splitlines() if line.startswith("data: ")]


@contextmanager
def served(*arguments: str, **environment: str) -> Iterator[Served]:
    command = [sys.executable, "-m", "rxloop.cli", "serve", "--port", "0", *arguments]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env={**os.environ, **environment}
    ) as process:
        try:
            assert process.stderr is not None
            lines: list[str] = []
            while not lines or "Ctrl-C" not in lines[-1]:
                line = process.stderr.readline()
                assert line, f"it ended with {process.wait()} after {lines}"
                lines.append(line)
            yield Served(process, lines)
        finally:
            if process.poll() is None:
                process.kill()


class TestServing:
    def test_the_page_and_a_turn(self) -> None:
        with served() as server:
            assert server.lines[-1].startswith("rxloop: demo is at http://127.0.0.1:")
            status, html = server.ask("GET", "/")
            assert (status, "page/app.js" in html) == (200, True)
            settings = json.loads(server.ask("GET", "/page/settings.json")[1])
            assert settings["provider"] == "demo"
            assert len(settings["suggestions"]) >= 5
            events = server.events(server.begin("2 + 3"))
            assert events[0]["provider"] == "demo"
            assert "**5**" in events[-1]["text"]
            thread = json.loads(server.ask("GET", "/threads/t")[1])
            assert [(turn["prompt"], turn["running"]) for turn in thread["turns"]] == [("2 + 3", False)]

    def test_a_thread_goes_on(self) -> None:
        with served() as server:
            server.events(server.begin("2 + 3"))
            usage = server.events(server.begin("3 + 4"))[-1]["usage"]
            alone = server.events(server.begin("3 + 4", thread="other"))[-1]["usage"]
            assert usage["input_tokens"] > alone["input_tokens"], "what was said before is sent again"

    @pytest.mark.skipif(sys.platform == "win32", reason="an interrupt is sent as on POSIX: run it there")
    @pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_a_signal_ends_running_turns_cleanly(self, sent: signal.Signals, status: int) -> None:
        with served() as server, closing(http.client.HTTPConnection(server.host, server.port, timeout=20)) as watcher:
            turn_id = server.begin("Look up Wellington, and look up Oslo.")
            watcher.request("GET", f"/turns/{turn_id}/events?format=rxloop")
            response = watcher.getresponse()
            while b"tool_progress" not in response.readline():
                pass
            server.process.send_signal(sent)
            last = [line for line in response.read().decode().splitlines() if line.startswith("data: ")][-1]
            finished = json.loads(last.removeprefix("data: "))
            assert (finished["type"], finished["finish_reason"]) == ("turn_finished", "aborted")
            assert server.process.wait(20) == status
            assert server.errors.read() == ""

    @pytest.mark.skipif(sys.platform == "win32", reason="an interrupt is sent as on POSIX: run it there")
    def test_an_interrupt_while_nothing_runs(self) -> None:
        with served() as server:
            server.process.send_signal(signal.SIGINT)
            assert server.process.wait(20) == 130
            assert server.errors.read() == ""

    @pytest.mark.skipif(sys.platform == "win32", reason="an interrupt is sent as on POSIX: run it there")
    def test_the_second_interrupt_ends_it_quietly(self) -> None:
        with served() as server, closing(http.client.HTTPConnection(server.host, server.port, timeout=20)) as watcher:
            turn_id = server.begin("Look up Wellington, and look up Oslo.")
            watcher.request("GET", f"/turns/{turn_id}/events?format=rxloop")
            response = watcher.getresponse()
            while b"tool_progress" not in response.readline():
                pass
            server.process.send_signal(signal.SIGINT)
            # the first has been heard
            while b"turn_finished" not in response.readline():
                pass
            server.process.send_signal(signal.SIGINT)
            assert server.process.wait(20) == 130
            assert server.errors.read() == ""

    @pytest.mark.skipif(sys.platform == "win32", reason="a shell closes the stream: run it on POSIX")
    def test_a_closed_error_stream(self) -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "rxloop.cli", "serve", "--port", str(port)]
        with subprocess.Popen(["sh", "-c", 'exec "$@" 2>&-', "sh", *command]) as process:  # noqa: S607
            try:
                deadline = time.monotonic() + 20
                while True:
                    assert process.poll() is None, f"it ended with {process.returncode}"
                    assert time.monotonic() < deadline, "it does not listen"
                    try:
                        socket.create_connection(("127.0.0.1", port), timeout=1).close()
                        break
                    except ConnectionRefusedError:
                        time.sleep(0.02)
                with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
                    connection.request("GET", "/")
                    assert connection.getresponse().status == 200
                process.send_signal(signal.SIGINT)
                assert process.wait(20) == 130
            finally:
                if process.poll() is None:
                    process.kill()

    def test_other_sites_are_refused(self) -> None:
        with served() as server:
            own = f"{server.host}:{server.port}"
            assert server.ask("GET", "/", Origin=f"http://{own}")[0] == 200
            for headers in ({"Origin": "http://evil.example"}, {"Host": f"evil.example:{server.port}"}):
                status, answer = server.ask("GET", "/", **headers)
                assert (status, json.loads(answer)["error"]["code"]) == (403, "forbidden")

    def test_an_open_address_is_warned_of(self) -> None:
        with served("--host", "0.0.0.0") as server:  # noqa: S104
            warning, told = server.lines
            assert warning.startswith("rxloop: warning: there is no authentication: whoever reaches http://0.0.0.0:")
            assert "is at" in told

    def test_tools(self) -> None:
        with served("--tools", "clock") as server:
            events = server.events(server.begin("2 + 3, and the time"))
            assert [event["name"] for event in events if event["type"] == "tool_call"] == ["clock"]

    @needs_redis
    def test_servers_that_share_a_redis(self, tmp_path: Path) -> None:
        redis = RedisServer(tmp_path)
        redis.start()
        try:
            with served("--redis", redis.url) as second:
                with served("--redis", redis.url) as first:
                    turn_id = first.begin("2 + 3")
                    # it runs in one and is watched in the other
                    assert "**5**" in second.events(turn_id)[-1]["text"]
                # and outlives it
                thread = json.loads(second.ask("GET", "/threads/t")[1])
                assert [(turn["turn_id"], turn["running"]) for turn in thread["turns"]] == [(turn_id, False)]
                assert second.events(turn_id)[-1]["type"] == "turn_finished"
        finally:
            redis.kill()

    @needs_redis
    def test_a_server_that_is_ended_leaves_no_thread_behind(self, tmp_path: Path) -> None:
        redis = RedisServer(tmp_path)
        redis.start()
        try:
            with served("--redis", redis.url) as second:
                with served("--redis", redis.url) as first:
                    first.begin("Look up Wellington.")
                    first.process.terminate()
                    assert first.process.wait(20) == 143
                assert second.events(second.begin("2 + 3"))[-1]["type"] == "turn_finished"
        finally:
            redis.kill()

    @pytest.mark.skipif(sys.platform == "win32", reason="the browser is a shell script: run it on POSIX")
    def test_the_page_is_opened(self, tmp_path: Path) -> None:
        browser, told = tmp_path / "browser", tmp_path / "told"
        browser.write_text(f'#!/bin/sh\necho "$1" > {told}.part && mv {told}.part {told}\n')
        browser.chmod(0o755)
        with served("--open", BROWSER=str(browser)) as server:
            deadline = time.monotonic() + 20
            while not told.exists():
                assert time.monotonic() < deadline, "the browser was not called"
                time.sleep(0.01)
            assert told.read_text().strip() == f"http://127.0.0.1:{server.port}/"


def _refuse(listener: socket.socket) -> None:
    """Answer as a Redis does that does not know the password."""
    connection, _ = listener.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(b"-WRONGPASS invalid username-password pair or user is disabled.\r\n")
        connection.recv(4096)


class TestRefusing:
    def test_a_redis_that_is_not_there(self, run: Run) -> None:
        status, err = run("--port", "0", "--redis", "redis://somebody:secret@127.0.0.1:1/0")
        assert status == 2
        assert "no Redis answers at --redis (127.0.0.1:1): start it or correct the address" in err
        assert "secret" not in err

    def test_a_redis_that_does_not_let_it_in(self, run: Run, tmp_path: Path) -> None:
        pytest.importorskip("redis", reason="it needs the package redis: pip install redis")
        with closing(socket.create_server(("127.0.0.1", 0))) as listener:
            answering = threading.Thread(target=_refuse, args=(listener,))
            answering.start()
            status, err = run("--port", "0", "--redis", f"redis://:secret@127.0.0.1:{listener.getsockname()[1]}")
            answering.join(20)
        assert status == 2
        assert "cannot be used: Redis refuses: " in err
        assert "secret" not in err

    def test_a_port_that_is_taken(self, run: Run) -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as taken:
            port = str(taken.getsockname()[1])
            status, err = run("--port", port)
        assert status == 2
        assert f"port {port} of 127.0.0.1 is taken" in err

    @pytest.mark.parametrize("host", ["nowhere.invalid", "192.0.2.1", "\udcff"])
    def test_a_host_that_is_none(self, run: Run, host: str) -> None:
        status, err = run("--host", host)
        assert status == 2
        assert "--host must be a name or an address of this machine" in err

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("--tools", "hammer"), "the tools are calculator, clock, look_up, unreliable"),
            (("--provider", "anthropic", "--tools", "look_up"), "the tools are calculator, clock"),
            (("--provider", "bedrock", "--port", "0"), "bedrock needs a model"),
            (("--provider", "nobody"), "nobody"),
            (("--port", "70000"), "65535"),
            (("--port",), "Option '--port' requires an argument. See `rxloop serve --help`."),
            (("--max-tokens", "-3"), "--max-tokens must be a whole number >= 1, but got -3"),
            (("--provider", "anthropic", "--max-tokens", "0"), "--max-tokens must be a whole number >= 1, but got 0"),
            (("--max-tokens", "9"), "--max-tokens means nothing to the demo: leave it out, or give a --provider"),
            (("--model", "x"), "--model means nothing to the demo"),
            (("--system", "x"), "--system means nothing to the demo"),
            (("--port", "0", "--redis", "localhost"), "--redis must be a URL of the form redis://host:6379/0"),
            (("--max-steps", "0", "--port", "0"), "max_steps must be a whole number >= 1, but got 0"),
        ],
    )
    def test_bad_input(self, run: Run, arguments: tuple[str, ...], said: str) -> None:
        status, err = run(*arguments)
        assert status == 2
        assert said in err

    def test_the_extra_is_missing(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "uvicorn", None)
        status, err = run()
        assert status == 2
        assert 'pip install "rxloop[cli,ui]"' in err
