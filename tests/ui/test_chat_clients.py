"""The official clients chat with the app itself, over HTTP."""

from __future__ import annotations

import asyncio
import json
import shutil
from typing import Any

import pytest
import pytest_asyncio

from rxloop.testing import CallTool, ScriptedAdapter
from rxloop.turn import Turn
from rxloop.ui.app import turn_app
from rxloop.ui.turn_request import TurnRequest
from tests.turns import add
from tests.ui.serving import serving
from tests.ui.test_official_clients import CLIENTS
from tests.ui.test_official_clients import pytestmark as clients

NODE = shutil.which("node")
pytestmark = [*clients, pytest.mark.asyncio]


def make_turn(request: TurnRequest) -> Turn:
    async def wait() -> None:
        """Wait for ever."""
        await asyncio.Event().wait()

    steps: dict[str, list[Any]] = {
        "What is 1+2?": [["I add.", CallTool("add", {"a": 1, "b": 2})], "It is 3."],
        "And now?": [f"You said {len(request.conversation)} things."],
        "wait": [["A moment.", CallTool("wait")]],
    }
    adapter = ScriptedAdapter(*steps[request.prompt])
    return Turn(adapter, request.prompt, conversation=request.conversation, tools=[add, wait])


@pytest_asyncio.fixture
async def said() -> Any:
    async with serving(turn_app(make_turn)) as client:
        process = await asyncio.create_subprocess_exec(
            str(NODE),
            str(CLIENTS / "chat.mjs"),
            client.url,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(40):
            output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return json.loads(output)


async def test_they_chat(said: Any) -> None:
    assert said["warnings"] == []
    assert said["agui"] == {
        "outcomes": ["success", "success", "cancelled"],
        "messages": [
            ["user", "What is 1+2?"],
            ["assistant", "I add."],
            ["tool", "3"],
            ["assistant", "It is 3."],
            ["user", "And now?"],
            # the server's own record of the thread
            ["assistant", "You said 4 things."],
            ["user", "wait"],
            ["assistant", "A moment."],
            ["tool", "cancelled: the turn ended before the tool did"],
        ],
    }
    assert said["vercel"]["texts"] == [["What is 1+2?"], ["I add.", "It is 3."], ["And now?"], ["You said 4 things."]]
    assert said["vercel"]["nothing"] is None
    assert "the last of the messages must be the user's" in said["vercel"]["refused"]
