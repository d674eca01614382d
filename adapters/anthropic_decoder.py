"""Decode a reply of the Messages API, event by event.

Source: https://platform.claude.com/docs/en/build-with-claude/streaming
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic_core import from_json

from rxloop.adapters.anthropic_errors import error_of_type
from rxloop.adapters.sse import SSEDecoder
from rxloop.adapters.wire_values import copied, figure, mapping, merge, parsed_object, string, string_or_none
from rxloop.errors import StreamInterruptedError
from rxloop.events import ReasoningDelta, TextDelta, ToolCallDelta, ToolCallReceived, ToolCallStarted
from rxloop.steps import FinishReason, Signature, StepResult, ToolCall
from rxloop.usage import Usage

__all__ = ("AnthropicBytesDecoder", "AnthropicDecoder", "usage_from")

FINISH_REASONS: Mapping[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content-filter",
}
"""``tool_use`` is a plain stop: that there is something to run is decided from the content alone.

Source: https://platform.claude.com/docs/en/build-with-claude/handling-stop-reasons
"""

PROVIDERS_CALLS = ("server_tool_use", "mcp_tool_use")
"""Calls that the provider runs itself."""

_CALLS = ("tool_use", *PROVIDERS_CALLS)
_THINKING = ("thinking", "redacted_thinking")
_KNOWN = ("text", *_THINKING, *_CALLS)
"""The blocks of which it is known what they may hold."""

_RESUMED = ("pause_turn",)
_SERVER_RESULT = "tool_use_id"
_NOT_MERGED = ("caller", "id", "name", "signature", "tool_use_id", "type")
_OWN_DELTAS = ("input", "text", "thinking")
"""What has deltas of its own, so that no other kind of delta may say it over."""

_FIGURES = (
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "input_tokens",
    "output_tokens",
)


class _Block:
    """A content block in the making, its types checked as they come: nothing that is made of it later can fail."""

    __slots__ = ("closed", "data", "input", "kind", "pieces")

    def __init__(self, start: Mapping[str, Any]) -> None:
        data = _own(start, "content_block")
        self.kind = string(data, "type")
        self.data = data
        self.pieces: list[str] = []
        self.input: list[str] = []
        self.closed = False
        if self.kind in ("text", "thinking"):
            string_or_none(data, self.kind)
            data[self.kind] = data.get(self.kind) or ""
        for key in ("id", "signature", _SERVER_RESULT):
            # the caller's side answers a call, so that it gets an id where it has none
            if key != "id" or self.kind != "tool_use":
                string_or_none(data, key)
        string_or_none(mapping(data, "caller") or {}, "tool_id")
        if data.get("citations") is not None and not isinstance(data["citations"], list):
            raise TypeError(f"citations must be a list, but got {data['citations']!r:.100}")
        if self.kind in _CALLS:
            string(data, "name")
            given = data.get("input")
            if given is None:
                data["input"] = {}
            elif not isinstance(given, dict):
                # arguments that do not parse to an object, whichever way they came
                data["input"] = {}
                self.input.append(given if isinstance(given, str) else json.dumps(given, default=str))

    def text(self) -> str:
        """What a block of text or thinking says so far."""
        if self.pieces:
            self.data[self.kind] += "".join(self.pieces)
            self.pieces.clear()
        text: str = self.data[self.kind]
        return text

    def content(self) -> dict[str, Any]:
        """The block as it is resent; a copy."""
        if self.pieces:
            self.text()
        content: dict[str, Any] = copied(self.data)
        if raw := "".join(self.input):
            parsed = parsed_object(raw)
            # the API takes nothing but an object back
            content["input"] = {"INVALID_JSON": raw} if parsed is None else parsed
        return content

    def signature(self, before: int) -> Signature | None:
        """The seal on a block of thinking, which so many characters of thinking come before."""
        if self.kind == "thinking" and self.data.get("signature"):
            return Signature(self.data["signature"], span=(before, before + len(self.text())))
        redacted = self.data.get("data") if self.kind == "redacted_thinking" else None
        return Signature(redacted, redacted=True) if isinstance(redacted, str) and redacted else None

    def call(self, name: Callable[[str], str]) -> ToolCall:
        arguments: dict[str, Any] | str
        if raw := "".join(self.input):
            parsed = parsed_object(raw)
            arguments = raw if parsed is None else parsed
        else:
            arguments = copied(self.data["input"])
        return ToolCall(self.data["id"], name(self.data["name"]), arguments)


class AnthropicDecoder:
    """
    A reply in the making. Fed with the API's stream events as mappings, cut nowhere.

    Args:
        step: the number that the events carry.
        name: turns the provider's name of a tool into the caller's.
    """

    __slots__ = (
        "_blocks",
        "_carry",
        "_ids",
        "_name",
        "_order",
        "_pending",
        "_step",
        "_stop_reason",
        "_texts",
        "_usage",
        "complete",
    )

    def __init__(self, step: int = 0, name: Callable[[str], str] = str) -> None:
        self._step = step
        self._name = name
        # the blocks that are open, and the pieces of those that are text
        self._blocks: dict[int, _Block] = {}
        self._texts: dict[int, list[str]] = {}
        self._ids: set[str] = set()
        self._order: list[_Block] = []
        self._pending: list[_Block] = []
        self._stop_reason: str | None = None
        self._usage: dict[str, Any] = {}
        self._carry: dict[str, Any] = {}
        self.complete = False

    def feed(self, event: Mapping[str, Any]) -> Iterable[Any]:
        """
        The events that one stream event makes; unknown events, blocks and deltas are kept or skipped, never fatal.

        Whatever is accepted here makes a `draft`.

        Raises:
            RxLoopError: it is an ``error`` event; classified by the error's type, since the HTTP status was 200.
            TypeError: a value is not of the type that the API gives it.
            ValueError: a number is not one.
        """
        kind = event.get("type")
        if kind == "content_block_delta":
            delta = event["delta"]
            index = event["index"]
            kind = delta.get("type")
            if kind == "text_delta":
                pieces = self._texts.get(index)
                if pieces is not None:
                    text = delta["text"]
                    if type(text) is not str:
                        raise TypeError(f"text must be a string, but got {text!r:.100}")
                    pieces.append(text)
                    return (TextDelta(self._step, text),) if text else ()
            block = self._blocks.get(index)
            return () if block is None else self._delta(block, kind, delta)
        if self.complete:
            # a gateway may add what it likes
            return ()
        if kind == "content_block_start":
            return (*self._flush(), *self._start(event["index"], event["content_block"]))
        if kind == "content_block_stop":
            self._stop(event["index"])
            return ()
        if kind == "message_start":
            return self._message_start(event["message"])
        if kind == "message_delta":
            self._message_delta(event)
            return self._flush()
        if kind == "message_stop":
            for block in self._order:
                self._end(block)
            self._blocks.clear()
            self._texts.clear()
            self.complete = True
            return self._flush()
        if kind == "error":
            raise error_of_type(event.get("error"))
        return ()

    def close(self) -> tuple[StepResult]:
        """
        The whole reply.

        Raises:
            StreamInterruptedError: ``message_stop`` never came.
        """
        if not self.complete:
            raise StreamInterruptedError(
                "the reply must end with message_stop, but the stream ended before it", provider="anthropic"
            )
        return (self.draft(),)

    def draft(self) -> StepResult:
        """What has arrived so far; of an unfinished reply only what may be resent."""
        blocks = self._order if self.complete else self._resendable()
        # copies: what was handed out does not change with what arrives later
        content = [block.content() for block in blocks]
        # the API takes neither blank text nor thinking that nothing follows
        content = [data for data in content if data["type"] != "text" or data["text"].strip()]
        resume = self.complete and self._stop_reason in _RESUMED
        while content and not resume and content[-1]["type"] in _THINKING:
            content.pop()
        calls = self._calls(blocks)
        finish_reason: FinishReason = "aborted"
        if self.complete:
            finish_reason = FINISH_REASONS.get(self._stop_reason or "", "other")
            if calls and finish_reason in ("stop", "other"):
                finish_reason = "tool-calls"
        refused = self._stop_reason == "refusal"
        return StepResult(
            text="".join(block.text() for block in self._order if block.kind == "text"),
            tool_calls=calls,
            usage=usage_from(self._usage),
            finish_reason=finish_reason,
            raw_stop_reason=self._stop_reason,
            raw_usage=copied(self._usage),
            # a refused reply must not be sent again
            message={"role": "assistant", "content": content} if content and not refused else None,
            resume=resume and not calls,
            carry=dict(self._carry),
            signatures=self._signatures(blocks),
        )

    def _signatures(self, blocks: list[_Block]) -> tuple[Signature, ...]:
        signatures, said = [], 0
        for block in self._order:
            if block in blocks and (sealed := block.signature(said)) is not None:
                signatures.append(sealed)
            said += len(block.text()) if block.kind == "thinking" else 0
        return tuple(signatures)

    def _message_start(self, message: Mapping[str, Any]) -> Iterable[Any]:
        self._merge_usage(mapping(message, "usage"))
        self._note(message)
        events: list[Any] = []
        # some replies of programmatic tool calling come whole
        for index, data in enumerate(message.get("content") or ()):
            events += self._start(index, data)
            self._stop(index)
            events += self._flush()
        return events

    def _message_delta(self, event: Mapping[str, Any]) -> None:
        self._note(mapping(event, "delta") or {})
        self._merge_usage(mapping(event, "usage"))

    def _note(self, message: Mapping[str, Any]) -> None:
        stop_reason = string_or_none(message, "stop_reason")
        if stop_reason is not None:
            self._stop_reason = stop_reason
        container = message.get("container")
        if isinstance(container, Mapping) and container.get("id"):
            # https://platform.claude.com/docs/en/agents-and-tools/tool-use/programmatic-tool-calling
            self._carry["container"] = string(container, "id")

    def _merge_usage(self, usage: Mapping[str, Any] | None) -> None:
        if not usage:
            return
        usage = _own(usage, "usage")
        for key in _FIGURES:
            figure(usage, key)
        figure(mapping(usage, "output_tokens_details") or {}, "thinking_tokens")
        # the counters are cumulative: the last figure wins, and an absent one changes nothing
        for key, value in usage.items():
            if value is not None or key not in self._usage:
                self._usage[key] = value

    def _start(self, index: int, data: Mapping[str, Any]) -> list[Any]:
        block = _Block(data)
        self._blocks.pop(index, None)
        self._texts.pop(index, None)
        if block.kind == "tool_result":
            # only the caller's side gives one, and the API takes it from nobody else
            return []
        events: list[Any] = []
        if block.kind == "tool_use":
            call_id = block.data["id"] = self._fresh(block.data.get("id"))
            events.append(ToolCallStarted(self._step, call_id, self._name(block.data["name"])))
            self._ids.add(call_id)
        elif block.kind == "thinking" and block.data["thinking"]:
            events.append(ReasoningDelta(self._step, block.data["thinking"]))
        elif block.kind == "text":
            self._texts[index] = block.pieces
            if block.data["text"]:
                events.append(TextDelta(self._step, block.data["text"]))
        self._blocks[index] = block
        self._order.append(block)
        return events

    def _fresh(self, given: Any) -> str:
        """The call's id; another one where it has none or shares it, since a result could not be told apart."""
        if isinstance(given, str) and given and given not in self._ids:
            return given
        stem, number = (f"{given}_", 2) if isinstance(given, str) and given else ("toolu_missing_", 1)
        while f"{stem}{number}" in self._ids:
            number += 1
        return f"{stem}{number}"

    def _delta(self, block: _Block, kind: Any, delta: Mapping[str, Any]) -> Iterable[Any]:
        """Any delta but one of a text block's text. What its block cannot hold is left out."""
        known = block.kind in _KNOWN
        if kind == "input_json_delta":
            fragment = delta["partial_json"]
            if type(fragment) is not str:
                raise TypeError(f"partial_json must be a string, but got {fragment!r:.100}")
            if fragment and (block.kind in _CALLS or not known):
                block.input.append(fragment)
                if block.kind == "tool_use":
                    return (ToolCallDelta(self._step, block.data["id"], fragment),)
        elif kind == "thinking_delta" and block.kind == "thinking":
            text = string(delta, "thinking")
            block.pieces.append(text)
            if text:
                return (ReasoningDelta(self._step, text),)
        elif kind == "signature_delta":
            signature = string(delta, "signature")
            if block.kind == "thinking" or not known:
                block.data["signature"] = (block.data.get("signature") or "") + signature
        elif kind == "citations_delta":
            citation = _own(delta["citation"], "citation")
            if block.kind == "text" or not known:
                block.data["citations"] = [*(block.data.get("citations") or ()), citation]
        elif not known:
            merge(block.data, _own(delta, "delta"), kept=_NOT_MERGED, whole=_OWN_DELTAS)
        elif kind not in ("text_delta", "thinking_delta"):
            merge(block.data, _own(delta, "delta"), kept=(*_NOT_MERGED, *_OWN_DELTAS))
        return ()

    def _stop(self, index: int) -> None:
        # what comes for a block that has ended finds none
        self._texts.pop(index, None)
        block = self._blocks.pop(index, None)
        if block is not None:
            self._end(block)

    def _end(self, block: _Block) -> None:
        if not block.closed:
            block.closed = True
            if block.kind == "tool_use":
                self._pending.append(block)

    def _flush(self) -> list[Any]:
        """
        Announce the calls whose blocks have ended.

        They wait for the event that follows: after ``max_tokens`` a call without any arguments is a call that was cut
        off, and only then is it known that it is not.
        """
        if not self._pending:
            return []
        blocks, self._pending = self._pending, []
        calls = self._calls(blocks)
        return [ToolCallReceived(self._step, call.call_id, call.name, call.arguments) for call in calls]

    def _calls(self, blocks: list[_Block]) -> tuple[ToolCall, ...]:
        calls = []
        cut_off = FINISH_REASONS.get(self._stop_reason or "") == "length"
        for block in blocks:
            if block.kind != "tool_use":
                continue
            call = block.call(self._name)
            unfinished = not isinstance(call.arguments, dict) if block.input else not block.data["input"]
            if cut_off and unfinished and block is self._order[-1]:
                call = ToolCall(call.call_id, call.name, "".join(block.input), truncated=True)
            calls.append(call)
        return tuple(calls)

    def _resendable(self) -> list[_Block]:
        closed = [block.data for block in self._order if block.closed]
        # a call that the provider's code made is answered by the caller's side, and the code goes on with it
        answered = {data.get(_SERVER_RESULT) or (data.get("caller") or {}).get("tool_id") for data in closed}
        blocks = []
        for block in self._order:
            if block.kind == "text":
                fit = True
            elif block.kind == "thinking":
                fit = block.closed and bool(block.data.get("signature"))
            elif block.kind in PROVIDERS_CALLS:
                fit = block.closed and block.data.get("id") in answered
            else:
                fit = block.closed
            if fit:
                blocks.append(block)
        return blocks


class AnthropicBytesDecoder:
    """
    An `AnthropicDecoder` fed with the body's bytes, cut anywhere: one parse and one event per delta.

    Args:
        decoder: what the events go to.
    """

    __slots__ = ("_decoder", "_sse")

    def __init__(self, decoder: AnthropicDecoder) -> None:
        self._decoder = decoder
        self._sse = SSEDecoder()

    @property
    def complete(self) -> bool:
        """Whether ``message_stop`` came."""
        return self._decoder.complete

    def feed(self, chunk: bytes) -> Iterable[Any]:
        """The events that a piece of the body makes, decoded as they are asked for."""
        events = self._sse.feed(chunk)
        if len(events) == 1 and events[0] and not self._decoder.complete:
            return self._decoder.feed(from_json(events[0], allow_inf_nan=False))
        return self._decoded(events) if events else ()

    def close(self) -> Iterable[Any]:
        """The whole reply; a last event without its blank line counts, and one that was cut off does not."""
        events: list[Any] = []
        try:
            events += self._decoded(self._sse.close())
        except ValueError:
            events.clear()
        return [*events, *self._decoder.close()]

    def _decoded(self, events: list[bytes]) -> Iterable[Any]:
        decoder = self._decoder
        for data in events:
            # a gateway may add a terminator of its own, and keep-alives without data
            if decoder.complete:
                return
            if data:
                yield from decoder.feed(from_json(data, allow_inf_nan=False))


def usage_from(raw: Mapping[str, Any]) -> Usage:
    """
    The API's figures in rxloop's meaning.

    Anthropic counts cached tokens apart from ``input_tokens``; reasoning is a part of ``output_tokens``.

    Source: https://platform.claude.com/docs/en/build-with-claude/prompt-caching#tracking-cache-performance
    """
    read = raw.get("cache_read_input_tokens") or 0
    written = raw.get("cache_creation_input_tokens") or 0
    details = raw.get("output_tokens_details") or {}
    return Usage(
        input_tokens=(raw.get("input_tokens") or 0) + read + written,
        output_tokens=raw.get("output_tokens") or 0,
        cache_read_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=details.get("thinking_tokens") or 0,
    )


def _own(data: Any, name: str) -> dict[str, Any]:
    """A copy of an object of an event."""
    if not isinstance(data, Mapping):
        raise TypeError(f"{name} must be an object, but got {data!r:.100}")
    own: dict[str, Any] = copied(data)
    return own
