"""A process that serves one contender's web app, and tells on command what that took."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import sys
import time

import uvicorn

from benchmarks.app_rows import APPS
from benchmarks.contenders import UnavailableError
from benchmarks.memory import peak_kib, reset_peak


async def serve(contender: str, url: str) -> None:
    """Serve on a free port of 127.0.0.1 until standard input closes; one JSON line in, one out."""
    answers = os.fdopen(os.dup(1), "w")
    sys.stdout = sys.stderr

    def answer(**values: object) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    try:
        app = APPS[contender](url)
    except UnavailableError as exc:
        answer(unavailable=str(exc))
        return
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
    # a client that comes before the server is ready waits in the backlog
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    answer(ready=True)
    loop = asyncio.get_running_loop()
    before, wall, cpu = 0, 0.0, 0.0
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        operation = json.loads(line)["operation"]
        if operation == "port":
            answer(port=listening.getsockname()[1])
        elif operation == "begin":
            before = reset_peak()
            wall, cpu = time.perf_counter(), time.process_time()
            answer()
        else:
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            answer(cpu=cpu, wall=wall, kib=peak_kib() - before)
    server.should_exit = True
    await serving


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("contender", choices=sorted(APPS))
    parser.add_argument("url")
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.contender, arguments.url))
