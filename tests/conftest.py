"""What holds for every test: nothing that it started outlives it."""

from __future__ import annotations

import asyncio
import gc
import itertools
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import pytest_asyncio

_PATIENCE = 2.0
"""Seconds in which a thread that is about to end must have ended."""

_BATCH = 25
_ended = itertools.count(1)


def pytest_collection_finish() -> None:
    # what was imported so far is no test's garbage, and collecting is cheap without it
    gc.collect()
    gc.freeze()


@pytest_asyncio.fixture
async def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test there is no task, thread, socket or unclosed response that was not there before."""
    loop: asyncio.AbstractEventLoop | None = None
    if request.node.get_closest_marker("asyncio"):
        loop = request.getfixturevalue("_loop")
    threads = set(threading.enumerate())
    before = {id(item) for item in _open_things()}
    yield
    if loop is not None:
        tasks = loop.run_until_complete(_unfinished_tasks())
        assert not tasks, f"the test must leave no task, but left {tasks}"
    running = _still_running(set(threading.enumerate()) - threads)
    assert not running, f"the test must leave no thread, but left {running}"
    # whatever was dropped without being closed warns now, and a warning is an error
    gc.collect()
    left = [item for item in _open_things() if id(item) not in before]
    assert not left, f"the test must leave no socket and no response open, but left {left}"
    if next(_ended) % _BATCH == 0:
        # what is left by now stays: reports, caches; without it the last tests are as quick as the first
        gc.freeze()


async def _unfinished_tasks() -> list[str]:
    own = asyncio.current_task()
    left: list[str] = []
    # what was cancelled needs a few rounds of the loop to end
    for _ in range(50):
        left = [repr(task) for task in asyncio.all_tasks() if task is not own]
        if not left:
            break
        await asyncio.sleep(0)
    return left


def _still_running(threads: set[threading.Thread]) -> list[str]:
    deadline = time.monotonic() + _PATIENCE
    # the event loop, which is open still, ends the threads of its own executor
    own = [thread for thread in threads if not thread.name.startswith("asyncio_")]
    for thread in own:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [thread.name for thread in own if thread.is_alive()]


def _open_things() -> list[Any]:
    response: type = getattr(sys.modules.get("httpx2"), "Response", socket.socket)
    found: list[Any] = []
    for item in gc.get_objects():
        # asked for by type: a lazy proxy would come to life under isinstance
        kind = type(item)
        if issubclass(kind, socket.socket):
            if item.fileno() >= 0:
                found.append(item)
        elif issubclass(kind, response) and not item.is_closed:
            found.append(item)
    return found
