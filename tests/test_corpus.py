"""Recorded traffic of other projects, replayed and compared with an independent parse of the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from reactivex import operators as ops

from rxloop import iterate
from rxloop.errors import ConfigurationError, RxLoopError
from rxloop.events import ReasoningDelta, RetryScheduled, StepFinished, StepStarted, TextDelta
from rxloop.testing import check_grammar
from rxloop.testing.replay import ReplayedTurn, replay

CORPUS = Path(__file__).parents[2] / "shared" / "corpus"
PROVIDERS = ("anthropic", "bedrock", "gemini", "vertex-claude", "vertex-gemini")

pytestmark = [
    pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus of recorded traffic lies beside the repository"),
    # what was recorded with a model of its time
    pytest.mark.filterwarnings("ignore:The model .* is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Using Claude with .*thinking"),
]

ERROR_KINDS = {
    "api_error": "server",
    "authentication_error": "authentication",
    "invalid_request_error": "invalid_request",
    "overloaded_error": "overloaded",
    "rate_limit_error": "rate_limited",
    "CANCELLED": "invalid_request",
    "INTERNAL": "server",
    "INVALID_ARGUMENT": "invalid_request",
    "NOT_FOUND": "model_not_found",
    "RESOURCE_EXHAUSTED": "rate_limited",
    "UnrecognizedClientException": "authentication",
}
STATUS_KINDS = {400: "invalid_request", 403: "permission", 429: "rate_limited", 500: "server"}
"""Where the provider's own name of an error was not recorded."""


def lines(name: str) -> list[dict[str, Any]]:
    if not CORPUS.is_dir():
        return []
    return [json.loads(line) for line in (CORPUS / name).read_text("utf-8").splitlines()]


REFUSED = {
    "files/bedrock/otel-contrib__test_invoke_model_with_response_stream_invalid_model.yaml": "must be a JSON object",
}
"""Recordings of which no turn can be made, and why: the first has no request body."""

RECORDED = [item["file"] for item in lines("index.jsonl") if item["provider"] in PROVIDERS]
FILES = [file for file in RECORDED if file not in REFUSED]
EXPECTED: dict[str, dict[int, dict[str, Any]]] = {}
for _line in lines("expected.jsonl"):
    EXPECTED.setdefault(_line["file"], {})[_line["response"]] = _line


def gemini_usage_of(raw: dict[str, Any]) -> dict[str, int]:
    sent = raw.get("promptTokenCount", 0) + raw.get("toolUsePromptTokenCount", 0)
    thoughts, candidates = raw.get("thoughtsTokenCount", 0), raw.get("candidatesTokenCount", 0)
    return {
        "input_tokens": sent,
        "output_tokens": candidates + thoughts,
        "cache_read_tokens": raw.get("cachedContentTokenCount", 0),
        "cache_write_tokens": 0,
        "reasoning_tokens": thoughts,
    }


def bedrock_usage_of(raw: dict[str, Any]) -> dict[str, int]:
    read, written = raw.get("cacheReadInputTokens", 0), raw.get("cacheWriteInputTokens", 0)
    return {
        "input_tokens": raw["inputTokens"] + read + written,
        "output_tokens": raw["outputTokens"],
        "cache_read_tokens": read,
        "cache_write_tokens": written,
        "reasoning_tokens": 0,
    }


def usage_of(raw: dict[str, Any] | None, file: str) -> dict[str, int]:
    if "gemini/" in file:
        return gemini_usage_of(raw or {})
    if raw is not None and "inputTokens" in raw:
        return bedrock_usage_of(raw)
    figures = {key: value or 0 for key, value in (raw or {}).items() if not isinstance(value, (dict, list))}
    read, written = figures.get("cache_read_input_tokens", 0), figures.get("cache_creation_input_tokens", 0)
    return {
        "input_tokens": figures.get("input_tokens", 0) + read + written,
        "output_tokens": figures.get("output_tokens", 0),
        "cache_read_tokens": read,
        "cache_write_tokens": written,
        "reasoning_tokens": ((raw or {}).get("output_tokens_details") or {}).get("thinking_tokens") or 0,
    }


def calls_of(line: dict[str, Any]) -> list[tuple[str, str, Any]]:
    return [(call["id"], call["name"], call.get("args", call.get("args_raw"))) for call in line["tool_calls"]]


def as_recorded(calls: list[tuple[str, str, Any]], recorded: list[tuple[str, str, Any]]) -> list[tuple[str, str, Any]]:
    """A call that came without an id was given one, which is not compared."""
    if len(calls) != len(recorded):
        return calls
    return [
        (none if none is None else given, *rest) for (given, *rest), (none, *_) in zip(calls, recorded, strict=True)
    ]


def error_kind(line: dict[str, Any]) -> str | None:
    if line["error"] is not None:
        if "API key not valid" in str(line["error"]["message"]):
            return "authentication"
        if line["error"]["where"] == "body":
            return "malformed_response"
        kind = line["error"]["type"]
        return ERROR_KINDS[kind] if kind else STATUS_KINDS[line["error"]["status"]]
    return None if line["complete"] else "stream_interrupted"


async def replayed(turn: ReplayedTurn) -> dict[int, dict[str, Any]]:
    """What a turn said of every response, by the response's number."""
    events: list[Any] = []
    error: RxLoopError | None = None
    try:
        async for _ in iterate(turn.pipe(ops.do_action(events.append))):
            pass
    except RxLoopError as failure:
        error = failure
    check_grammar(events, error=error is not None)
    found: dict[int, dict[str, Any]] = {}
    step = -1
    numbers = iter(())
    for event in events:
        if isinstance(event, StepStarted):
            step = event.step
            numbers = iter([attempt.index for attempt in turn.steps[step].attempts])
            streamed = {"text": "", "thinking": ""}
        elif isinstance(event, TextDelta):
            streamed["text"] += event.text
        elif isinstance(event, ReasoningDelta):
            streamed["thinking"] += event.text
        elif isinstance(event, RetryScheduled):
            found[next(numbers)] = {"error": event.error["kind"], "text": ""}
        elif isinstance(event, StepFinished):
            found[next(numbers)] = {
                "error": None,
                "text": event.text,
                "streamed": streamed["text"],
                "thinking": streamed["thinking"],
                "tool_calls": [(call.call_id, call.name, call.arguments) for call in event.tool_calls],
                "stop_reason": event.raw_stop_reason,
                "usage": event.usage.to_dict(),
            }
    if error is not None:
        assert error.partial is not None
        text = error.partial.text if len(turn.steps) == 1 or streamed["text"] else ""
        found[next(numbers)] = {"error": error.kind, "text": text}
    return found


def expected_of(line: dict[str, Any]) -> dict[str, Any]:
    kind = error_kind(line)
    if kind is not None:
        return {"error": kind, "text": line["text"]}
    return {
        "error": None,
        "text": line["text"],
        "streamed": line["text"],
        "thinking": line["thinking"],
        "tool_calls": calls_of(line),
        "stop_reason": line["stop_reason"] or line.get("block_reason"),
        "usage": usage_of(line["usage"], line["file"]),
    }


@pytest.mark.asyncio
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.removeprefix("files/"))
async def test_every_response_is_what_the_wire_says(file: str) -> None:
    found: dict[int, dict[str, Any]] = {}
    for turn in replay(CORPUS / file):
        found |= await replayed(turn)
    for number, said in found.items():
        if "tool_calls" in said:
            said["tool_calls"] = as_recorded(said["tool_calls"], calls_of(EXPECTED[file][number]))
    assert found == {number: expected_of(line) for number, line in EXPECTED[file].items()}


@pytest.mark.parametrize("file", REFUSED, ids=lambda file: file.removeprefix("files/"))
def test_what_cannot_be_replayed_is_named(file: str) -> None:
    with pytest.raises(ConfigurationError, match=REFUSED[file]):
        replay(CORPUS / file)


@pytest.mark.asyncio
@pytest.mark.parametrize("file", [item["file"] for item in lines("index.jsonl") if item["provider"] == "sagemaker"])
async def test_a_containers_whole_document_is_read(file: str) -> None:
    (turn,) = replay(CORPUS / file)
    # the independent parse leaves the container's document as it is
    (document,) = json.loads(EXPECTED[file][0]["text"])
    found = await replayed(turn)
    assert found[0]["text"] == found[0]["streamed"] == document["generated_text"]
    assert found[0]["stop_reason"] is None
