"""Decode a reply of the Gemini API, chunk by chunk.

Source: https://ai.google.dev/api/generate-content and https://cloud.google.com/vertex-ai/generative-ai/docs/reference/rest
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic_core import from_json

from rxloop.adapters.gemini_errors import error_of_body
from rxloop.adapters.sse import SSEDecoder
from rxloop.errors import MalformedResponseError, StreamInterruptedError
from rxloop.events import ReasoningDelta, TextDelta, ToolCallReceived, ToolCallStarted
from rxloop.steps import FinishReason, Signature, StepResult, ToolCall
from rxloop.usage import Usage

__all__ = ("GeminiBytesDecoder", "GeminiDecoder", "usage_from")

FINISH_REASONS: Mapping[str, FinishReason] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "CONTINUATION": "length",
    "SAFETY": "content-filter",
    "RECITATION": "content-filter",
    "LANGUAGE": "content-filter",
    "BLOCKLIST": "content-filter",
    "PROHIBITED_CONTENT": "content-filter",
    "SPII": "content-filter",
    "MODEL_ARMOR": "content-filter",
    "IMAGE_SAFETY": "content-filter",
    "IMAGE_PROHIBITED_CONTENT": "content-filter",
    "IMAGE_RECITATION": "content-filter",
    "ESCALATION": "content-filter",
    "PUP_LIMITED_DISABLED": "content-filter",
    "MALFORMED_FUNCTION_CALL": "error",
    "UNEXPECTED_TOOL_CALL": "error",
    "TOO_MANY_TOOL_CALLS": "error",
    "MISSING_THOUGHT_SIGNATURE": "error",
    "MALFORMED_RESPONSE": "error",
}
"""Source: https://ai.google.dev/api/generate-content#FinishReason"""

_MALFORMED = ("MALFORMED_FUNCTION_CALL",)
_COUNTS = frozenset(("promptTokenCount", "candidatesTokenCount", "totalTokenCount", "thoughtsTokenCount"))
_PATH = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]")


class _Call:
    """A function call, whole or arriving in pieces."""

    __slots__ = ("call_id", "open", "part")

    def __init__(self, call_id: str, part: dict[str, Any]) -> None:
        self.call_id = call_id
        self.part = part
        self.open = False

    def arguments(self) -> dict[str, Any] | str:
        args = self.part["functionCall"].get("args")
        if args is None:
            return {}
        return dict(args) if isinstance(args, Mapping) else json.dumps(args)


class GeminiDecoder:
    """
    A reply in the making. Fed with ``GenerateContentResponse`` objects as mappings, in the API's own JSON.

    The API has no mark for the end of a reply but a finish reason, after which content has been seen to go on: a reply
    is whole when the wire has ended and a finish reason was among it.

    Args:
        step: the number that the events carry.
        name: turns the provider's name of a tool into the caller's.
    """

    __slots__ = ("_blocked", "_calls", "_name", "_parts", "_pieces", "_reason", "_step", "_text", "_usage", "_whole")

    complete = False
    """Never told before the wire ends."""

    def __init__(self, step: int = 0, name: Callable[[str], str] = str) -> None:
        self._step = step
        self._name = name
        self._parts: list[dict[str, Any]] = []
        self._pieces: list[str] = []
        self._text: list[str] = []
        self._calls: list[_Call] = []
        self._reason: str | None = None
        self._blocked: str | None = None
        self._usage: Mapping[str, Any] = {}
        self._whole = False

    def feed(self, chunk: Mapping[str, Any]) -> Iterable[Any]:
        """
        The events that one chunk makes; fields and parts that are not known are kept or skipped, never fatal.

        Raises:
            RxLoopError: the chunk is an error object.
        """
        candidates = chunk.get("candidates")
        usage = chunk.get("usageMetadata")
        if usage and not _COUNTS.isdisjoint(usage):
            # the counters are cumulative: the last figures win
            self._usage = usage
        if not candidates:
            return self._without_candidate(chunk)
        candidate = candidates[0]
        if candidate.get("index"):
            # of several answers the first is the turn's
            return ()
        reason = candidate.get("finishReason")
        if reason is not None:
            self._reason = reason
        content = candidate.get("content")
        parts = content.get("parts") if content else None
        if not parts:
            return ()
        if len(parts) == 1:
            part = parts[0]
            text = part.get("text")
            if text and len(part) == 1:
                return (self._plain(text),)
        events: list[Any] = []
        for part in parts:
            self._part(part, events)
        return events

    def close(self) -> tuple[Any, ...]:
        """
        The whole reply, after the calls that are still open.

        Raises:
            StreamInterruptedError: there was no finish reason.
        """
        if self._reason is None and self._blocked is None:
            raise StreamInterruptedError(
                "the reply must have a finish reason, but the stream ended without one", provider="google"
            )
        self._whole = True
        return (*self._received(), self.draft())

    def draft(self) -> StepResult:
        """What has arrived so far; of an unfinished reply only what may be resent."""
        self._join()
        calls = tuple(
            ToolCall(call.call_id, self._name(str(call.part["functionCall"].get("name"))), call.arguments())
            for call in self._calls
            if not call.open or self._whole
        )
        unfinished = [] if self._whole else [call.part for call in self._calls if call.open]
        parts = [dict(part) for part in self._parts if not any(part is left for left in unfinished)]
        reason: FinishReason = "aborted"
        raw = self._reason or self._blocked
        if self._whole:
            reason = "content-filter" if self._reason is None else FINISH_REASONS.get(self._reason, "other")
            if calls and reason in ("stop", "other"):
                reason = "tool-calls"
            if reason == "length" and self._calls and self._calls[-1].open:
                last = calls[-1]
                calls = (*calls[:-1], ToolCall(last.call_id, last.name, last.arguments, truncated=True))
        said = any(not part.get("thought") for part in parts)
        return StepResult(
            text="".join(self._text),
            tool_calls=calls,
            usage=usage_from(self._usage),
            finish_reason=reason,
            raw_stop_reason=raw,
            raw_usage=dict(self._usage),
            message={"role": "model", "parts": parts} if said else None,
            malformed=self._whole and self._reason in _MALFORMED,
            signatures=self._signatures(),
        )

    def _signatures(self) -> tuple[Signature, ...]:
        calls = {id(call.part): call.call_id for call in self._calls}
        signatures, said = [], 0
        for part in self._parts:
            text, signature = part.get("text"), part.get("thoughtSignature")
            thought = len(text) if part.get("thought") and isinstance(text, str) else None
            if isinstance(signature, str) and signature:
                span = None if thought is None else (said, said + thought)
                signatures.append(Signature(signature, calls.get(id(part)), span=span))
            said += thought or 0
        return tuple(signatures)

    def _plain(self, text: str) -> TextDelta:
        """The part that most chunks consist of."""
        if not self._pieces:
            self._parts.append({"text": ""})
        self._pieces.append(text)
        self._text.append(text)
        return TextDelta(self._step, text)

    def _join(self) -> None:
        """Put what arrived of the last text part into it."""
        if self._pieces:
            self._parts[-1]["text"] = "".join(self._pieces)

    def _settle(self) -> None:
        """End the last text part."""
        self._join()
        self._pieces.clear()

    def _part(self, part: Mapping[str, Any], events: list[Any]) -> None:
        text = part.get("text")
        if text and len(part) == 1:
            events.append(self._plain(text))
            return
        if "functionCall" in part:
            self._function_call(part, events)
            return
        if not text and part.keys() <= {"text", "thought"}:
            # as replies end with, and the API does not take back
            return
        self._settle()
        last = self._parts[-1] if self._parts else None
        if text and last is not None and last.keys() == part.keys() == {"text", "thought"}:
            # thoughts come in pieces; a signed part is never joined with another
            last["text"] += text
        else:
            self._parts.append(dict(part))
        if text:
            if part.get("thought"):
                events.append(ReasoningDelta(self._step, text))
            else:
                self._text.append(text)
                events.append(TextDelta(self._step, text))

    def _function_call(self, part: Mapping[str, Any], events: list[Any]) -> None:
        call = part["functionCall"]
        current = self._calls[-1] if self._calls and self._calls[-1].open else None
        if not call and current is None:
            # the end of a call that has ended already
            return
        self._settle()
        if current is not None and not call.get("name"):
            self._piece(current, part)
        else:
            if current is not None:
                # the next call begins although the last was never said to end
                current.open = False
                events.append(self._announced(current))
            kept = {key: value for key, value in call.items() if key not in ("partialArgs", "willContinue")}
            stored = {**part, "functionCall": kept}
            self._parts.append(stored)
            current = _Call(self._fresh(call.get("id")), stored)
            self._calls.append(current)
            events.append(ToolCallStarted(self._step, current.call_id, self._name(str(call.get("name")))))
            if "partialArgs" in call or "willContinue" in call:
                current.open = True
                self._piece(current, part)
        if not current.open:
            events.append(self._announced(current))

    def _fresh(self, given: Any) -> str:
        """The call's id; another one where it has none or shares it, since a result could not be told apart."""
        taken = {call.call_id for call in self._calls}
        number = len(self._calls)
        call_id = str(given or f"call_{self._step}_{number}")
        while call_id in taken:
            number += 1
            call_id = f"{given or f'call_{self._step}'}_{number}"
        return call_id

    def _piece(self, call: _Call, part: Mapping[str, Any]) -> None:
        """
        A piece of a call's arguments, in the order in which they come.

        Source: https://cloud.google.com/vertex-ai/generative-ai/docs/multimodal/function-calling#streaming-fc
        """
        piece = part["functionCall"]
        # a signature may come late
        call.part.update({key: value for key, value in part.items() if key != "functionCall"})
        args = call.part["functionCall"].setdefault("args", {})
        for argument in piece.get("partialArgs") or ():
            _set(args, argument["jsonPath"], argument)
        # the last piece says nothing any more
        call.open = bool(piece.get("willContinue")) or bool(piece.get("partialArgs"))

    def _received(self) -> list[Any]:
        return [self._announced(call) for call in self._calls if call.open and self._reason != "MAX_TOKENS"]

    def _announced(self, call: _Call) -> ToolCallReceived:
        name = self._name(str(call.part["functionCall"].get("name")))
        return ToolCallReceived(self._step, call.call_id, name, call.arguments())

    def _without_candidate(self, chunk: Mapping[str, Any]) -> Iterable[Any]:
        if "error" in chunk:
            raise error_of_body(chunk)
        feedback = chunk.get("promptFeedback")
        if feedback and feedback.get("blockReason"):
            self._blocked = feedback["blockReason"]
        return ()


class GeminiBytesDecoder:
    """
    A `GeminiDecoder` fed with the body's bytes, cut anywhere: one parse and one event per chunk.

    What follows the last event, or comes instead of any, may be an error document, a whole reply or an array of chunks.

    Args:
        decoder: what the chunks go to.
    """

    __slots__ = ("_decoder", "_sse", "_strays")

    complete = False

    def __init__(self, decoder: GeminiDecoder) -> None:
        self._decoder = decoder
        self._strays: list[bytes] = []
        self._sse = SSEDecoder(self._strays)

    def feed(self, data: bytes) -> Iterable[Any]:
        """The events that a piece of the body makes, decoded as they are asked for."""
        events = self._sse.feed(data)
        if len(events) == 1:
            return self._decoder.feed(from_json(events[0]))
        return self._decoded(events) if events else ()

    def close(self) -> Iterable[Any]:
        """The whole reply; an event without its blank line counts, and so does what is no event."""
        events: list[Any] = []
        for data in self._sse.close():
            try:
                chunk = from_json(data)
            except ValueError:
                # whatever was in it, a finish reason before it does not make up for it
                raise StreamInterruptedError("the reply ended in the middle of an event", provider="google") from None
            events += self._decoder.feed(chunk)
        if self._strays:
            events += self._document(b"\n".join(self._strays))
        return [*events, *self._decoder.close()]

    def _decoded(self, events: list[bytes]) -> Iterable[Any]:
        feed = self._decoder.feed
        for data in events:
            yield from feed(from_json(data))

    def _document(self, data: bytes) -> list[Any]:
        try:
            document = from_json(data)
        except ValueError:
            # cut off, or no JSON at all: the reply itself tells whether it is whole
            if not data.lstrip().startswith((b"{", b"[")):
                raise MalformedResponseError("the reply has lines that are no events", provider="google") from None
            return []
        events: list[Any] = []
        for chunk in document if isinstance(document, list) else [document]:
            events += self._decoder.feed(chunk)
        return events


def usage_from(raw: Mapping[str, Any]) -> Usage:
    """
    The API's figures in rxloop's meaning.

    Cached tokens are a part of the prompt; what tools of the provider's own read counts apart. Thinking tokens count
    apart too, unless the total says that they are among the candidates' already.

    Source: https://ai.google.dev/api/generate-content#UsageMetadata
    """
    sent = (raw.get("promptTokenCount") or 0) + (raw.get("toolUsePromptTokenCount") or 0)
    produced = raw.get("candidatesTokenCount") or 0
    thoughts = raw.get("thoughtsTokenCount") or 0
    if thoughts and raw.get("totalTokenCount") != sent + produced:
        produced += thoughts
    return Usage(
        input_tokens=sent,
        output_tokens=produced,
        cache_read_tokens=raw.get("cachedContentTokenCount") or 0,
        reasoning_tokens=thoughts,
    )


def _set(args: dict[str, Any], path: str, argument: Mapping[str, Any]) -> None:
    """Put a piece where its JSON path says; strings grow."""
    keys: list[str | int] = [
        int(found[2]) if found[2] is not None else found[1] if found[1] is not None else found[3]
        for found in _PATH.finditer(path)
    ]
    place: Any = args
    for key, following in itertools.pairwise(keys):
        place = _grown(place, key, [] if isinstance(following, int) else {})
    value = next((argument[name] for name in ("stringValue", "numberValue", "boolValue") if name in argument), None)
    last = keys[-1]
    present = _grown(place, last, None)
    place[last] = present + value if isinstance(present, str) and isinstance(value, str) else value


def _grown(place: Any, key: str | int, empty: Any) -> Any:
    if isinstance(key, int):
        while len(place) <= key:
            place.append(None)
        if place[key] is None:
            place[key] = empty
        return place[key]
    if place.get(key) is None:
        place[key] = empty
    return place[key]
