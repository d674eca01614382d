"""What the official clients make of a turn over HTTP: AG-UI's with its own verifier, and the AI SDK's."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rxloop.events import StepStarted, TextDelta
from rxloop.ui.agui import AguiFrames
from rxloop.ui.entry import StreamEvent, TurnFailed
from rxloop.ui.frames import Frames
from rxloop.ui.vercel import UIMessageFrames
from tests.providers.http import LocalServer, Reply, Request
from tests.ui.turns import CASES, server_sent

CLIENTS = Path(__file__).parent / "node"
NODE = shutil.which("node")

pytestmark = [
    pytest.mark.skipif(NODE is None, reason="node is not installed: install Node.js 20 or later"),
    pytest.mark.skipif(
        not (CLIENTS / "node_modules").is_dir(), reason="the clients are not installed: run `npm ci` in tests/ui/node"
    ),
]


async def _all_events() -> dict[str, list[StreamEvent]]:
    return {name: await case() for name, case in CASES.items()}


@pytest.fixture(scope="module")
def events() -> dict[str, list[StreamEvent]]:
    return asyncio.run(_all_events())


@pytest.fixture(scope="module")
def read(events: Mapping[str, list[StreamEvent]]) -> Any:
    """What the clients report of every case, read in one process."""

    def answer(request: Request) -> Reply:
        _, form, name = request.path.split("/")
        names: dict[str, Any] = {"turn_id": "turn_1", "thread_id": "thread_1", "run_id": "run_1"}
        frames: Frames = AguiFrames(**names) if form == "agui" else UIMessageFrames(**names)
        # cut where no character and no event ends
        body = server_sent(events[name], frames)
        pieces = [body[place : place + 97] for place in range(0, len(body), 97)]
        return Reply(200, {"content-type": "text/event-stream", **frames.headers}, pieces)

    with LocalServer() as server:
        server.route(answer)
        done = subprocess.run(
            [str(NODE), str(CLIENTS / "read.mjs"), server.url, *CASES],
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        server.wait_idle()
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


every_case = pytest.mark.parametrize("case", CASES)


def shown(message: Mapping[str, Any]) -> Any:
    """A message of AG-UI in short."""
    signed = {} if "encryptedValue" not in message else {"signed": message["encryptedValue"]}
    if message["role"] == "tool":
        about = message["metadata"]["rxloop"]
        return {"answers": message["toolCallId"], "says": message["content"], "is_error": about["is_error"]}
    if calls := message.get("toolCalls"):
        signed["calls"] = [
            (call["id"], call["function"]["name"], call["function"]["arguments"], call.get("encryptedValue"))
            for call in calls
        ]
    return {message["role"]: message.get("content"), **signed}


def answer(call_id: str, says: str, *, is_error: bool = False) -> dict[str, Any]:
    return {"answers": f"turn_1-{call_id}", "says": says, "is_error": is_error}


CANCELLED = "cancelled: the turn ended before the tool did"
REFUSED = "not accepted: the answer does not fit what was asked for"
ADDED = '{"a": 1, "b": 2}'
ODD = 'a"\\\n\r\t\x00\x1f\x7f\u2028\u2029 ü 😀 </script> \ufffd \ufffdx'

MESSAGES: dict[str, list[Any]] = {
    "text": [{"assistant": "It is 5."}],
    "odd_text": [
        {"assistant": ODD, "calls": [("turn_1-0-a b/ü", "search", '{"query": "\\u00fc\\n\\ud83d\\ude00"}', None)]},
        answer("0-a b/ü", '{"found":"ü\\n😀"}'),
        {"reasoning": ODD},
        {"assistant": ODD},
    ],
    "reasoning": [{"reasoning": "Let me see.", "signed": "c2ln"}, {"assistant": "It is 5."}],
    "reasoning_alone": [{"reasoning": "hm", "signed": "c2ln"}, {"reasoning": "", "signed": "aGlkZGVu"}],
    "tools": [
        {"reasoning": "two calls", "signed": "s0"},
        {
            "assistant": "I look.",
            "calls": [
                ("turn_1-0-a", "add", ADDED, "s1"),
                ("turn_1-0-b", "search", '{"query": "x"}', None),
            ],
        },
        answer("0-a", "3"),
        answer("0-b", '{"found":"x"}'),
        {"assistant": "3 and x"},
    ],
    "no_arguments": [
        {"assistant": None, "calls": [("turn_1-0-a", "broken", "", None)]},
        answer("0-a", "invalid arguments: they must be one JSON object, but got ''", is_error=True),
        {"assistant": "Sorry."},
    ],
    "retry": [{"assistant": "It is 5."}],
    "stop_in_text": [{"assistant": "It"}],
    "stop_in_reasoning": [{"reasoning": "hm"}],
    "stop_in_call": [
        {"assistant": "I look.", "calls": [("turn_1-0-a", "add", ADDED, None)]},
        answer("0-a", CANCELLED, is_error=True),
    ],
    "stop_in_tool": [
        {"assistant": None, "calls": [("turn_1-0-a", "add", ADDED, None), ("turn_1-0-b", "endless", "{}", None)]},
        answer("0-a", "3"),
        answer("0-b", CANCELLED, is_error=True),
    ],
    "error_in_text": [{"assistant": "It"}],
    "error_at_once": [],
    "error_in_call": [
        {"reasoning": "hm"},
        {"assistant": None, "calls": [("turn_1-0-a", "add", '{"a": 1}', None)]},
        answer("0-a", CANCELLED, is_error=True),
    ],
    "internal_error": [{"assistant": "It"}],
    "deadline": [
        {"assistant": "I look.", "calls": [("turn_1-0-a", "endless", "{}", None)]},
        answer("0-a", CANCELLED, is_error=True),
    ],
    "malformed": [{"assistant": "Let me"}, {"assistant": "It is 5."}],
    "structured": [
        {"assistant": None, "calls": [("turn_1-0-a", "final_result", '{"total": "many"}', None)]},
        answer("0-a", REFUSED, is_error=True),
        {"assistant": None, "calls": [("turn_1-1-b", "final_result", '{"total": 5}', None)]},
        answer("1-b", "accepted"),
    ],
    "empty": [],
    "cap": [
        {"assistant": None, "calls": [("turn_1-0-call_0_0", "add", ADDED, None)]},
        answer("0-call_0_0", "3"),
    ],
    "interleaved": [
        {"assistant": "a"},
        {"reasoning": "b"},
        {"assistant": "c", "calls": [("turn_1-0-x", "add", ADDED, None)]},
        answer("0-x", "3"),
        {"assistant": "d", "calls": [("turn_1-0-y", "broken", "{}", None)]},
        answer("0-y", "the tool failed: ValueError: the lock is stuck", is_error=True),
        {"reasoning": "e"},
        {"assistant": "end"},
    ],
    "trimmed": [
        {"assistant": None, "calls": [("turn_1-0-a", "add", '{"a":1,"b":2}', None)]},
        answer("0-a", "3"),
        {"assistant": "Hm"},
        {"assistant": "It is 3."},
    ],
    "unknown": [{"assistant": "It is 5."}],
}
"""The conversation after the question, for the cases in which the order of results is certain."""

ERRORS = {
    "error_in_text": ("overloaded", "too many"),
    "error_at_once": ("overloaded", "too many"),
    "error_in_call": ("server", "gone"),
    "internal_error": ("internal", "RuntimeError"),
    "deadline": ("timeout", "the turn must end within 0.05 s (turn_timeout), but did not"),
    "structured_never": ("invalid_output", None),
}


@every_case
def test_the_client_of_agui_takes_the_run(read: Any, events: Mapping[str, list[StreamEvent]], case: str) -> None:
    found = read["agui"][case]
    assert (found["thrown"], found["failed"], found["warnings"]) == (None, None, [])
    if case in ERRORS:
        code, message = ERRORS[case]
        assert found["outcome"] is None
        assert found["runError"]["code"] == code
        assert found["runError"]["message"] == message or message is None
    else:
        assert found["runError"] is None
        assert found["outcome"] == ("cancelled" if case.startswith("stop") else "success")
        assert not found["pending"]
    if case in MESSAGES:
        [question, *messages] = found["messages"]
        assert question["id"] == "question"
        assert [shown(message) for message in messages] == MESSAGES[case]
    usage = (found["runError"] or found)["usage"]
    assert len(usage) == 1
    assert usage[0]["inputTokens"] == _usage_of(events[case])


def _usage_of(events: list[StreamEvent]) -> int:
    last = events[-1]
    return int(last.usage.input_tokens)  # type: ignore[union-attr]


@every_case
def test_every_call_of_a_history_has_one_result(read: Any, case: str) -> None:
    messages = read["agui"][case]["messages"]
    calls = [call["id"] for message in messages for call in message.get("toolCalls") or ()]
    results = [message["toolCallId"] for message in messages if message["role"] == "tool"]
    assert sorted(calls) == sorted(results)
    identifiers = [message["id"] for message in messages]
    assert len(set(identifiers)) == len(identifiers)


@every_case
def test_what_the_clients_keep_is_valid_by_their_own_schemas(read: Any, case: str) -> None:
    assert read["agui"][case]["invalid"] == []
    assert read["vercel"][case]["invalid"] is None


@every_case
def test_the_client_of_the_ai_sdk_takes_the_stream(
    read: Any, events: Mapping[str, list[StreamEvent]], case: str
) -> None:
    found = read["vercel"][case]
    assert (found["thrown"], found["warnings"]) == (None, [])
    kinds = [chunk["type"] for chunk in found["chunks"]]
    if case in ERRORS:
        _, message = ERRORS[case]
        assert len(found["errors"]) == 1
        assert found["errors"] == [message] or message is None
        assert kinds[-1] == "error"
    else:
        assert found["errors"] == []
        assert kinds[-1] == ("abort" if case.startswith("stop") else "finish")
    message = found["message"]
    assert (message["id"], message["role"]) == ("turn_1", "assistant")
    assert message["metadata"]["usage"]["inputTokens"] == _usage_of(events[case])
    parts = message["parts"]
    if case not in ("trimmed", "interleaved_calls"):
        told = "".join(event.text for event in events[case] if isinstance(event, TextDelta))
        said = "".join(part["text"] for part in parts if part["type"] == "text")
        assert said == told.replace("\ud800", "\ufffd").replace("\udc00", "\ufffd")
        assert kinds.count("start-step") == sum(isinstance(event, StepStarted) for event in events[case])
    assert all(part["state"] == "done" for part in parts if part["type"] in ("text", "reasoning"))
    assert all(
        part["state"] in ("output-available", "output-error") for part in parts if part["type"].startswith("tool-")
    )


def test_what_the_ai_sdk_keeps_of_calls(read: Any) -> None:
    parts = [part for part in read["vercel"]["tools"]["message"]["parts"] if part["type"] != "step-start"]
    assert parts == [
        {"type": "reasoning", "id": "turn_1-0-reasoning-0", "text": "two calls", "state": "done"},
        {"type": "text", "text": "I look.", "state": "done"},
        {
            "type": "tool-add",
            "toolCallId": "turn_1-0-a",
            "state": "output-available",
            "input": {"a": 1, "b": 2},
            "output": 3,
        },
        {
            "type": "tool-search",
            "toolCallId": "turn_1-0-b",
            "state": "output-available",
            "input": {"query": "x"},
            "output": {"found": "x"},
        },
        {
            "type": "data-rxloop.reasoning_signature",
            "data": {"id": "turn_1-0-reasoning-0", "value": "s0", "redacted": False},
        },
        {
            "type": "data-rxloop.reasoning_signature",
            "data": {"toolCallId": "turn_1-0-a", "value": "s1", "redacted": False},
        },
        {"type": "text", "text": "3 and x", "state": "done"},
    ]


def test_what_the_ai_sdk_keeps_of_failed_calls(read: Any) -> None:
    parts = [part for part in read["vercel"]["tool_errors"]["message"]["parts"] if part["type"].startswith("tool-")]
    assert [part["state"] for part in parts] == ["output-error"] * 3
    assert [part["errorText"].partition(":")[0] for part in parts] == [
        "the tool failed",
        "there is no tool named 'nothing'; the tools are",
        "invalid arguments",
    ]
    assert parts[2]["rawInput"] == '{"a": 1'
    tools = [shown(message) for message in read["agui"]["tool_errors"]["messages"] if message["role"] == "tool"]
    assert [tool["is_error"] for tool in tools] == [True] * 3


def test_a_structured_answer_is_the_runs_result(read: Any) -> None:
    assert read["agui"]["structured"]["result"] == {"total": 5}
    assert read["vercel"]["structured"]["message"]["metadata"]["output"] == {"total": 5}


def test_what_the_protocols_have_no_word_for(read: Any) -> None:
    names = {
        "retry": "retry_scheduled",
        "malformed": "malformed_retried",
        "tools": "tool_progress",
        "unknown": "weather",
    }
    for case, name in names.items():
        assert "CUSTOM" in read["agui"][case]["events"]
        [*noted] = (chunk for chunk in read["vercel"][case]["chunks"] if chunk["type"] == f"data-rxloop.{name}")
        assert noted, name
        assert all(chunk["transient"] for chunk in noted)


def test_a_failure_is_among_the_cases(events: Mapping[str, list[StreamEvent]]) -> None:
    assert {case for case in CASES if isinstance(events[case][-1], TurnFailed)} == set(ERRORS)
