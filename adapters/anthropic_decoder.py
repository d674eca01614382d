"""Decode a reply of the Messages API, event by event.

Source: https://platform.claude.com/docs/en/build-with-claude/streaming
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic_core import from_json

from rxloop.adapters.anthropic_errors import error_of_type
from rxloop.adapters.sse import SSEDecoder
from rxloop.errors import StreamInterruptedError
from rxloop.events import ReasoningDelta, TextDelta, ToolCallDelta, ToolCallReceived, ToolCallStarted
from rxloop.steps import FinishReason, StepResult, ToolCall
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

_RESUMED = ("pause_turn",)
_SERVER_RESULT = "tool_use_id"


class _Block:
    """A content block in the making."""

    __slots__ = ("closed", "data", "input", "kind", "pieces")

    def __init__(self, start: Mapping[str, Any]) -> None:
        self.data = dict(start)
        self.kind = self.data.get("type")
        self.pieces: list[str] = []
        self.input: list[str] = []
        self.closed = False

    def content(self) -> dict[str, Any]:
        """The block as it is resent."""
        if self.pieces:
            key = "thinking" if self.kind == "thinking" else "text"
            self.data[key] = (self.data.get(key) or "") + "".join(self.pieces)
            self.pieces.clear()
        if self.input:
            raw = "".join(self.input)
            parsed = _parsed(raw)
            # the API takes nothing but an object back
            self.data["input"] = {"INVALID_JSON": raw} if parsed is None else parsed
        elif self.kind == "tool_use":
            self.data.setdefault("input", {})
        return self.data

    def call(self, name: Callable[[str], str]) -> ToolCall:
        raw = "".join(self.input)
        arguments: dict[str, Any] | str
        if raw:
            parsed = _parsed(raw)
            arguments = raw if parsed is None else parsed
        else:
            given = self.data.get("input")
            arguments = dict(given) if isinstance(given, Mapping) else {}
        return ToolCall(str(self.data.get("id")), name(str(self.data.get("name"))), arguments)


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
        "_name",
        "_order",
        "_pending",
        "_step",
        "_stop_reason",
        "_usage",
        "complete",
    )

    def __init__(self, step: int = 0, name: Callable[[str], str] = str) -> None:
        self._step = step
        self._name = name
        self._blocks: dict[int, _Block] = {}
        self._order: list[_Block] = []
        self._pending: list[_Block] = []
        self._stop_reason: str | None = None
        self._usage: dict[str, Any] = {}
        self._carry: dict[str, Any] = {}
        self.complete = False

    def feed(self, event: Mapping[str, Any]) -> Iterable[Any]:
        """
        The events that one stream event makes; unknown events, blocks and deltas are kept or skipped, never fatal.

        Raises:
            RxLoopError: it is an ``error`` event; classified by the error's type, since the HTTP status was 200.
        """
        kind = event.get("type")
        if kind == "content_block_delta":
            delta = event["delta"]
            block = self._blocks.get(event["index"])
            if block is None:
                return ()
            kind = delta.get("type")
            if kind == "text_delta":
                text = delta["text"]
                block.pieces.append(text)
                return (TextDelta(self._step, text),) if text else ()
            return self._delta(block, kind, delta)
        if kind == "content_block_start":
            return (*self._flush(), *self._start(event["index"], event["content_block"]))
        if kind == "content_block_stop":
            block = self._blocks.get(event["index"])
            if block is not None:
                self._stop(block)
            return ()
        if kind == "message_start":
            return self._message_start(event["message"])
        if kind == "message_delta":
            self._message_delta(event)
            return self._flush()
        if kind == "message_stop":
            for block in self._order:
                if not block.closed:
                    self._stop(block)
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
        content = [dict(block.content()) for block in blocks]
        # the API takes neither blank text nor thinking that nothing follows
        content = [data for data in content if data.get("type") != "text" or (data.get("text") or "").strip()]
        resume = self.complete and self._stop_reason in _RESUMED
        while content and not resume and content[-1].get("type") in ("thinking", "redacted_thinking"):
            content.pop()
        calls = self._calls(blocks)
        finish_reason: FinishReason = "aborted"
        if self.complete:
            finish_reason = FINISH_REASONS.get(self._stop_reason or "", "other")
            if calls and finish_reason in ("stop", "other"):
                finish_reason = "tool-calls"
        refused = self._stop_reason == "refusal"
        return StepResult(
            text="".join(block.content().get("text") or "" for block in self._order if block.kind == "text"),
            tool_calls=calls,
            usage=usage_from(self._usage),
            finish_reason=finish_reason,
            raw_stop_reason=self._stop_reason,
            raw_usage=dict(self._usage),
            # a refused reply must not be sent again
            message={"role": "assistant", "content": content} if content and not refused else None,
            resume=resume and not calls,
            carry=dict(self._carry),
        )

    def _message_start(self, message: Mapping[str, Any]) -> Iterable[Any]:
        self._merge_usage(message.get("usage"))
        self._note(message)
        events: list[Any] = []
        # some replies of programmatic tool calling come whole
        for index, data in enumerate(message.get("content") or ()):
            events += self._start(index, data)
            self._stop(self._blocks[index])
            events += self._flush()
        return events

    def _message_delta(self, event: Mapping[str, Any]) -> None:
        self._note(event.get("delta") or {})
        self._merge_usage(event.get("usage"))

    def _note(self, message: Mapping[str, Any]) -> None:
        if message.get("stop_reason") is not None:
            self._stop_reason = message["stop_reason"]
        container = message.get("container")
        if isinstance(container, Mapping) and container.get("id"):
            # https://platform.claude.com/docs/en/agents-and-tools/tool-use/programmatic-tool-calling
            self._carry["container"] = container["id"]

    def _merge_usage(self, usage: Mapping[str, Any] | None) -> None:
        # the counters are cumulative: the last figure wins, and an absent one changes nothing
        for key, value in (usage or {}).items():
            if value is not None or key not in self._usage:
                self._usage[key] = value

    def _start(self, index: int, data: Mapping[str, Any]) -> list[Any]:
        block = _Block(data)
        self._blocks[index] = block
        self._order.append(block)
        if block.kind == "text" and data.get("text"):
            return [TextDelta(self._step, data["text"])]
        if block.kind == "thinking" and data.get("thinking"):
            return [ReasoningDelta(self._step, data["thinking"])]
        if block.kind == "tool_use":
            return [ToolCallStarted(self._step, str(data.get("id")), self._name(str(data.get("name"))))]
        return []

    def _delta(self, block: _Block, kind: str | None, delta: Mapping[str, Any]) -> Iterable[Any]:
        if kind == "input_json_delta":
            fragment = delta["partial_json"]
            if fragment:
                block.input.append(fragment)
                if block.kind == "tool_use":
                    return (ToolCallDelta(self._step, str(block.data.get("id")), fragment),)
        elif kind == "thinking_delta":
            text = delta["thinking"]
            block.pieces.append(text)
            if text:
                return (ReasoningDelta(self._step, text),)
        elif kind == "signature_delta":
            block.data["signature"] = (block.data.get("signature") or "") + delta["signature"]
        elif kind == "citations_delta":
            block.data["citations"] = [*(block.data.get("citations") or ()), delta["citation"]]
        else:
            _merge_unknown(block.data, delta)
        return ()

    def _stop(self, block: _Block) -> None:
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
            if cut_off and block is self._order[-1] and not (block.input and isinstance(call.arguments, dict)):
                given = block.data.get("input") if not block.input else None
                if not given:
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
            return self._decoder.feed(from_json(events[0]))
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
                yield from decoder.feed(from_json(data))


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


def _parsed(raw: str) -> dict[str, Any] | None:
    try:
        value = from_json(raw)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _merge_unknown(data: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Fold a delta of a kind that is not known into its block, so that it can be resent whole."""
    for key, value in delta.items():
        if key == "type":
            continue
        present = data.get(key)
        if isinstance(present, str) and isinstance(value, str):
            data[key] = present + value
        elif isinstance(present, list) and isinstance(value, list):
            data[key] = [*present, *value]
        else:
            data[key] = value
