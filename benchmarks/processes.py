"""The load server and the workers as processes of their own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.contenders import UnavailableError

ROOT = Path(__file__).resolve().parent.parent
ANSWER_SECONDS = 300


def _environment() -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return environment | {"NO_PROXY": "127.0.0.1"}


class Process:
    """A Python module that runs until its standard input is closed."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._process: asyncio.subprocess.Process

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            *self._arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            env=_environment(),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 10)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def read_line(self) -> bytes:
        """Read the next line the process prints."""
        assert self._process.stdout is not None
        return await asyncio.wait_for(self._process.stdout.readline(), ANSWER_SECONDS)

    async def write_line(self, line: str) -> None:
        """Write a line to the process."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        await self._process.stdin.drain()


class Server(Process):
    """The load server."""

    def __init__(self) -> None:
        super().__init__("benchmarks.server")
        self.port = 0

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.port = int(await self.read_line())
        return self

    @property
    def url(self) -> str:
        """The base URL for the clients."""
        return f"http://127.0.0.1:{self.port}"


class Worker(Process):
    """A process with one contender, or another that answers commands."""

    module = "benchmarks.worker"

    def __init__(self, contender: str, server: Server) -> None:
        super().__init__(self.module, contender, server.url)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        try:
            await self._answer()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def _answer(self) -> dict[str, Any]:
        try:
            line = await self.read_line()
        except TimeoutError as exc:
            raise UnavailableError(f"no answer within {ANSWER_SECONDS} s") from exc
        if not line:
            raise UnavailableError("the worker process has ended")
        answer: dict[str, Any] = json.loads(line)
        if "unavailable" in answer:
            raise UnavailableError(answer["unavailable"])
        return answer

    async def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Run an operation of the worker and return what it measured."""
        try:
            await self.write_line(json.dumps({"operation": operation, **arguments}))
        except (BrokenPipeError, ConnectionResetError) as exc:
            raise UnavailableError("the worker process has ended") from exc
        return await self._answer()


class App(Worker):
    """A process with a web server that turns the provider's streams into server-sent events."""

    module = "benchmarks.app_worker"


class Clients(Worker):
    """A process with the clients of a web server."""

    module = "benchmarks.app_clients"

    def __init__(self, server: Server) -> None:
        super().__init__("clients", server)


class Workers:
    """One worker per contender, side by side. A contender that fails is set aside with its reason."""

    def __init__(self, contenders: list[str], server: Server) -> None:
        self._server = server
        self._stack = AsyncExitStack()
        self.running: dict[str, Worker | None] = dict.fromkeys(contenders)
        self.unavailable: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        for name in list(self.running):
            try:
                self.running[name] = await self._stack.enter_async_context(Worker(name, self._server))
            except UnavailableError as exc:
                self._set_aside(name, exc)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def _set_aside(self, name: str, exc: UnavailableError) -> None:
        self.unavailable[name] = str(exc)
        del self.running[name]

    async def call(self, operation: str, **arguments: Any) -> dict[str, dict[str, Any]]:
        """Run an operation in every worker, one after the other."""
        answers: dict[str, dict[str, Any]] = {}
        for name, worker in list(self.running.items()):
            assert worker is not None
            try:
                answers[name] = await worker.call(operation, **arguments)
            except UnavailableError as exc:
                self._set_aside(name, exc)
        return answers
