"""Cassettes made by hand, as anybody's recorder might have written them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.providers.anthropic import Block, message

URI = "https://api.anthropic.com/v1/messages"
MODEL = "claude-test"


def body(*blocks: Block | Sequence[Block], **options: Any) -> str:
    return b"".join(message(*blocks, **options)).decode()


def request(messages: Sequence[Any] | str, **fields: Any) -> dict[str, Any]:
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return {"model": MODEL, "max_tokens": 100, "messages": messages, "stream": True, **fields}


def interaction(
    sent: Mapping[str, Any] | str,
    reply: Any,
    *,
    status: int = 200,
    headers: Mapping[str, Any] | None = None,
    uri: str = URI,
    method: str = "POST",
) -> dict[str, Any]:
    """One interaction; a text or bytes reply is a stream, a mapping is JSON."""
    kind = "application/json" if isinstance(reply, Mapping) else "text/event-stream; charset=utf-8"
    content = json.dumps(reply) if isinstance(reply, Mapping) else reply
    return {
        "request": {
            "method": method,
            "uri": uri,
            "body": sent if isinstance(sent, str) else json.dumps(sent),
            "headers": {"content-type": ["application/json"]},
        },
        "response": {
            "status": {"code": status, "message": "OK"},
            "headers": {"Content-Type": [kind], **(headers or {})},
            "body": {"string": content},
        },
    }


def error(kind: str, status: int, **headers: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The reply and the options of an interaction that failed."""
    reply = {"type": "error", "error": {"type": kind, "message": f"scripted {kind}"}}
    return reply, {"status": status, "headers": {name.replace("_", "-"): [value] for name, value in headers.items()}}


def write(path: Path, *interactions: Mapping[str, Any]) -> Path:
    path.write_text(yaml.safe_dump({"version": 1, "interactions": list(interactions)}), "utf-8")
    return path


def assistant(*blocks: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def call(call_id: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result(call_id: str, content: Any = None, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **fields}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content[0] if isinstance(content[0], str) else list(content)}
