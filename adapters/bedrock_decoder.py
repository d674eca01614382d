"""Decode a reply of Bedrock's Converse API, event by event.

Source: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ConverseStreamOutput.html
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic_core import from_json

from rxloop.adapters.aws_errors import error_of_code, is_error_code
from rxloop.adapters.aws_frames import FrameDecoder
from rxloop.adapters.wire_values import copied, figure, mapping, merge, parsed_object, string, string_or_none
from rxloop.errors import MalformedResponseError, StreamInterruptedError
from rxloop.events import ReasoningDelta, TextDelta, ToolCallDelta, ToolCallReceived, ToolCallStarted
from rxloop.steps import FinishReason, Signature, StepResult, ToolCall
from rxloop.usage import Usage

__all__ = ("PROVIDER", "BedrockBytesDecoder", "BedrockDecoder", "is_providers_call", "usage_from")

PROVIDER = "bedrock"

FINISH_REASONS: Mapping[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "guardrail_intervened": "content-filter",
    "content_filtered": "content-filter",
    "malformed_model_output": "error",
    "malformed_tool_use": "error",
}
"""``tool_use`` is a plain stop: that there is something to run is decided from the content alone.

Source: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_MessageStopEvent.html
"""

_FIGURES = (
    "cacheReadInputTokenCount",
    "cacheReadInputTokens",
    "cacheWriteInputTokenCount",
    "cacheWriteInputTokens",
    "inputTokens",
    "outputTokens",
    "totalTokens",
)
_EVENTS = ("contentBlockDelta", "contentBlockStart", "contentBlockStop", "messageStop", "metadata")
_BLOCKS = ("text", "toolUse", "reasoningContent", "toolResult", "image")
"""The blocks whose deltas are joined here; any other is folded together as it comes."""

_NO_USAGE = "the reply ended without its usage, which counts as nothing"
_UNKNOWN = "SDK_UNKNOWN_MEMBER"


class _Block:
    """A content block in the making."""

    __slots__ = ("blobs", "citations", "closed", "data", "index", "kind", "pieces", "signature")

    def __init__(self, index: int, kind: str | None = None, data: dict[str, Any] | None = None) -> None:
        self.index = index
        # a block without a start is known by its first delta
        self.kind = kind
        self.data: dict[str, Any] = {} if data is None else data
        self.pieces: list[str] = []
        self.citations: list[dict[str, Any]] = []
        self.blobs: list[bytes] = []
        self.signature: str | None = None
        self.closed = False

    def text(self) -> str:
        """What came of text, of reasoning or of a call's arguments so far."""
        if len(self.pieces) > 1:
            self.pieces = ["".join(self.pieces)]
        return self.pieces[0] if self.pieces else ""

    @property
    def is_call(self) -> bool:
        """Whether the caller's side has to run it."""
        return self.kind == "toolUse" and not is_providers_call(self.data)

    def content(self) -> dict[str, Any] | None:
        """The block as it is resent; ``None`` if there is nothing in it."""
        if self.kind == "text":
            return self._text_content()
        if self.kind == "reasoningContent":
            return self._reasoning_content()
        if self.kind == "toolUse":
            return {"toolUse": {**copied(self.data), "input": self._input()}}
        if self.kind == "image":
            return self._image_content()
        if self.kind is None:
            return None
        return {self.kind: copied(self.data)}

    def sealed(self, before: int) -> Signature | None:
        """The seal on a block of reasoning, which so many characters of reasoning come before."""
        if self.kind != "reasoningContent":
            return None
        if self.blobs:
            return Signature(self._blob(), redacted=True)
        return Signature(self.signature, span=(before, before + len(self.text()))) if self.signature else None

    def arguments(self) -> dict[str, Any] | str:
        """The parsed object, or the raw text where it is none; nothing at all means no arguments."""
        raw = self.text()
        if not raw.strip():
            return {}
        parsed = parsed_object(raw)
        return raw if parsed is None else parsed

    def _input(self) -> dict[str, Any]:
        arguments = self.arguments()
        # the API takes nothing but an object back
        return {"INVALID_JSON": arguments} if isinstance(arguments, str) else arguments

    def _text_content(self) -> dict[str, Any] | None:
        text = self.text()
        if not self.citations:
            # the API takes no blank text
            return {"text": text} if text.strip() else None
        content: dict[str, Any] = {"content": [{"text": text}]} if text.strip() else {}
        return {"citationsContent": {**content, "citations": copied(self.citations)}}

    def _reasoning_content(self) -> dict[str, Any] | None:
        if self.blobs:
            return {"reasoningContent": {"redactedContent": self._blob()}}
        if not self.pieces and self.signature is None:
            return None
        reasoning: dict[str, Any] = {"text": self.text()}
        if self.signature is not None:
            reasoning["signature"] = self.signature
        return {"reasoningContent": {"reasoningText": reasoning}}

    def _image_content(self) -> dict[str, Any] | None:
        image = copied(self.data)
        if self.blobs:
            image["source"] = {"bytes": self._blob()}
        # the API takes no image without both
        return {"image": image} if image.get("format") and image.get("source") else None

    def _blob(self) -> str:
        return base64.b64encode(b"".join(self.blobs)).decode()


class BedrockDecoder:
    """
    A reply in the making. Fed with the events of ``ConverseStream``, or with one whole reply of ``Converse``.

    ``metadata`` with the usage comes after ``messageStop``, and nothing after it.

    Args:
        step: the number that the events carry.
        name: turns the provider's name of a tool into the caller's.
    """

    __slots__ = (
        "_blocks",
        "_ids",
        "_name",
        "_order",
        "_pending",
        "_step",
        "_stop_reason",
        "_stopped",
        "_usage",
        "complete",
    )

    def __init__(self, step: int = 0, name: Callable[[str], str] = str) -> None:
        self._step = step
        self._name = name
        # the blocks by their index, and all of them in the order in which they came
        self._blocks: dict[int, _Block] = {}
        self._order: list[_Block] = []
        self._ids: set[str] = set()
        self._pending: list[_Block] = []
        self._stop_reason: str | None = None
        self._stopped = False
        self._usage: dict[str, Any] = {}
        self.complete = False

    @property
    def stopped(self) -> bool:
        """Whether ``messageStop`` came: the answer is whole."""
        return self._stopped

    def feed(self, event: Mapping[str, Any]) -> Iterable[Any]:
        """The events that one of the SDK's public events makes: a mapping of one type to its payload."""
        for kind, payload in event.items():
            blob = kind in ("contentBlockStart", "contentBlockDelta")
            return self.event(kind, _as_json(payload) if blob else payload)
        return ()

    def event(self, kind: str, payload: Mapping[str, Any]) -> Iterable[Any]:
        """
        The events that one wire event makes; unknown events, blocks and deltas are kept or skipped, never fatal.

        Whatever is accepted here makes a `draft`.

        Args:
            kind: the event's type.
            payload: its content, in the API's JSON.

        Raises:
            RxLoopError: it is an error that the provider reports inside the reply.
            TypeError: a value is not of the type that the API gives it.
            ValueError: a number is not one, or what is encoded cannot be decoded.
        """
        if kind == "contentBlockDelta":
            delta = payload["delta"]
            block = self._blocks.get(payload["contentBlockIndex"])
            text = delta.get("text")
            if type(text) is str and block is not None and block.kind == "text" and not block.closed:
                block.pieces.append(text)
                return (TextDelta(self._step, text),) if text else ()
            if self._stopped:
                return ()
            if block is None:
                block = self._add(_Block(_index(payload)))
            return self._delta(block, delta)
        if self._stopped and kind != "metadata" and not is_error_code(kind):
            # the answer is whole, and only its usage may follow
            return ()
        if kind == "contentBlockStart":
            events = self._start(_index(payload), mapping(payload, "start") or {})
            return (*self._flush(), *events)
        if kind == "contentBlockStop":
            self._end(self._blocks.get(_index(payload)))
            return ()
        if kind == "messageStop":
            self._stop_reason = string_or_none(payload, "stopReason")
            self._stopped = True
            for block in self._order:
                self._end(block)
            return self._flush()
        if kind == "metadata":
            self._count(mapping(payload, "usage"))
            self.complete = self._stopped
            return ()
        if is_error_code(kind):
            raise error_of_code(kind, payload, provider=PROVIDER, streamed=True)
        return ()

    def whole(self, reply: Mapping[str, Any]) -> Iterable[Any]:
        """
        The events of a whole reply, as ``Converse`` gives it.

        Raises:
            MalformedResponseError: it is none.
        """
        output = mapping(reply, "output")
        message = None if output is None else mapping(output, "message")
        if message is None and "__type" in reply:
            # an error that came with the status of a success
            code = str(reply.get("__type") or "").rpartition("#")[2]
            raise error_of_code(code, reply, provider=PROVIDER, streamed=True)
        if message is None:
            raise MalformedResponseError(
                f"the reply must have a message, but it has {sorted(map(str, reply))}", provider=PROVIDER
            )
        for index, block in enumerate(message.get("content") or ()):
            yield from self._whole_block(index, block)
        yield from self.event("messageStop", reply)
        yield from self.event("metadata", reply)

    def close(self) -> tuple[StepResult]:
        """
        The whole reply.

        Raises:
            StreamInterruptedError: ``messageStop`` never came.
        """
        if not self._stopped:
            raise StreamInterruptedError(
                "the reply must end with messageStop, but the stream ended before it", provider=PROVIDER
            )
        self.complete = True
        return (self.draft(),)

    def draft(self) -> StepResult:
        """What has arrived so far; of an unfinished reply only what may be resent."""
        blocks = sorted(self._order, key=lambda block: block.index)
        kept = _resendable(blocks, stopped=self._stopped)
        content = [data for block in kept if (data := block.content()) is not None]
        # the API does not take reasoning that nothing follows
        while content and "reasoningContent" in content[-1]:
            content.pop()
        calls = self._calls(kept)
        finish_reason: FinishReason = "aborted"
        if self._stopped:
            finish_reason = FINISH_REASONS.get(self._stop_reason or "", "other")
            if calls and finish_reason in ("stop", "other"):
                finish_reason = "tool-calls"
        return StepResult(
            text="".join(block.text() for block in blocks if block.kind == "text"),
            tool_calls=calls,
            usage=usage_from(self._usage),
            finish_reason=finish_reason,
            raw_stop_reason=self._stop_reason,
            raw_usage=copied(self._usage),
            message={"role": "assistant", "content": content} if content else None,
            warnings=(_NO_USAGE,) if self._stopped and not self._usage else (),
            signatures=self._signatures(kept),
        )

    def _signatures(self, kept: list[_Block]) -> tuple[Signature, ...]:
        signatures, said = [], 0
        for block in self._order:
            if block in kept and (sealed := block.sealed(said)) is not None:
                signatures.append(sealed)
            said += len(block.text()) if block.kind == "reasoningContent" else 0
        return tuple(signatures)

    def _add(self, block: _Block) -> _Block:
        # one that gives its index to another is over
        self._end(self._blocks.get(block.index))
        self._blocks[block.index] = block
        self._order.append(block)
        return block

    def _start(self, index: int, start: Mapping[str, Any]) -> list[Any]:
        kind = _member(start)
        if kind == "text":
            # as some gateways begin a text
            text = string(start, "text")
            self._add(_Block(index, "text")).pieces.append(text)
            return [TextDelta(self._step, text)] if text else []
        if kind is None or (kind not in _BLOCKS and not isinstance(start[kind], Mapping)):
            self._add(_Block(index))
            return []
        data = copied(mapping(start, kind))
        if kind == "reasoningContent":
            return self._reasoning(self._add(_Block(index)), data)
        if kind == "toolUse":
            return self._tool_use(_Block(index, kind, data))
        if kind == "toolResult":
            string(data, "toolUseId")
            data["content"] = _mappings(data.get("content"))
        self._add(_Block(index, kind, data))
        return []

    def _tool_use(self, block: _Block) -> list[Any]:
        data = block.data
        name = string(data, "name")
        if data.get("type") in (None, "tool_use"):
            # a reply may say so, but a request knows no type but that of the provider's own calls
            data.pop("type", None)
        given = data.pop("input", None)
        if isinstance(given, str) and given:
            block.pieces.append(given)
        elif given is not None and given != "":
            block.pieces.append(json.dumps(given))
        if block.is_call:
            data["toolUseId"] = self._fresh(data.get("toolUseId"))
        call_id = string(data, "toolUseId")
        self._ids.add(call_id)
        self._add(block)
        return [ToolCallStarted(self._step, call_id, self._name(name))] if block.is_call else []

    def _fresh(self, given: Any) -> str:
        """The call's id; another one where it has none or shares it, since a result could not be told apart."""
        if isinstance(given, str) and given and given not in self._ids:
            return given
        stem, number = (f"{given}_", 2) if isinstance(given, str) and given else ("tooluse_missing_", 1)
        while f"{stem}{number}" in self._ids:
            number += 1
        return f"{stem}{number}"

    def _delta(self, block: _Block, delta: Mapping[str, Any]) -> Iterable[Any]:
        """Any delta but one of a text block's text. What its block cannot hold is left out."""
        if block.closed:
            return ()
        events: list[Any] = []
        for kind, value in delta.items():
            if value is None:
                continue
            if kind == "text":
                text = string(delta, "text")
                if block.kind is None:
                    block.kind = "text"
                if block.kind == "text":
                    block.pieces.append(text)
                    if text:
                        events.append(TextDelta(self._step, text))
            elif kind == "citation":
                if block.kind is None:
                    block.kind = "text"
                if block.kind == "text":
                    block.citations.append(copied(mapping(delta, "citation")))
            elif kind == "toolUse":
                events += self._input(block, mapping(delta, "toolUse") or {})
            elif kind == "reasoningContent":
                events += self._reasoning(block, mapping(delta, "reasoningContent") or {})
            elif kind == "toolResult":
                if block.kind == "toolResult":
                    block.data["content"] += copied(_mappings(value))
            elif kind == "image":
                self._image(block, mapping(delta, "image") or {})
            elif isinstance(value, Mapping):
                if block.kind is None:
                    block.kind = kind
                if block.kind == kind:
                    merge(block.data, copied(value), kept=())
        return events

    def _input(self, block: _Block, delta: Mapping[str, Any]) -> Iterable[Any]:
        fragment = delta.get("input")
        if block.kind != "toolUse" or fragment is None or fragment == "":
            return ()
        if not isinstance(fragment, str):
            fragment = json.dumps(fragment)
        block.pieces.append(fragment)
        return (ToolCallDelta(self._step, block.data["toolUseId"], fragment),) if block.is_call else ()

    def _reasoning(self, block: _Block, delta: Mapping[str, Any]) -> list[Any]:
        signature = string_or_none(delta, "signature")
        redacted = _decoded(delta, "redactedContent")
        text = string_or_none(delta, "text")
        if block.kind is None:
            block.kind = "reasoningContent"
        if block.kind != "reasoningContent":
            return []
        if signature is not None:
            block.signature = (block.signature or "") + signature
        if redacted is not None:
            block.blobs.append(redacted)
        if text is None:
            return []
        block.pieces.append(text)
        return [ReasoningDelta(self._step, text)] if text else []

    def _image(self, block: _Block, delta: Mapping[str, Any]) -> None:
        """A piece of an image, whose bytes come as several."""
        piece = _decoded(mapping(delta, "source") or {}, "bytes")
        rest = copied({key: value for key, value in delta.items() if key != "source" or piece is None})
        if block.kind is None:
            block.kind = "image"
        if block.kind == "image":
            if piece is not None:
                block.blobs.append(piece)
            merge(block.data, rest, kept=())

    def _whole_block(self, index: int, block: Mapping[str, Any]) -> Iterable[Any]:
        kind = _member(block)
        place = {"contentBlockIndex": index}
        if kind == "text":
            yield from self.event("contentBlockDelta", {**place, "delta": {"text": block["text"]}})
        elif kind == "reasoningContent":
            reasoning = mapping(block, "reasoningContent") or {}
            delta = mapping(reasoning, "reasoningText") or reasoning
            yield from self.event("contentBlockDelta", {**place, "delta": {"reasoningContent": delta}})
        elif kind == "citationsContent":
            cited = mapping(block, "citationsContent") or {}
            for citation in cited.get("citations") or ():
                yield from self.event("contentBlockDelta", {**place, "delta": {"citation": citation}})
            for part in cited.get("content") or ():
                yield from self.event("contentBlockDelta", {**place, "delta": {"text": part.get("text") or ""}})
        elif kind is not None:
            yield from self.event("contentBlockStart", {**place, "start": block})
        yield from self.event("contentBlockStop", place)

    def _end(self, block: _Block | None) -> None:
        if block is not None and not block.closed:
            block.closed = True
            if block.is_call:
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
        return [ToolCallReceived(self._step, call.call_id, call.name, call.arguments) for call in self._calls(blocks)]

    def _calls(self, blocks: Iterable[_Block]) -> tuple[ToolCall, ...]:
        calls = []
        cut_off = FINISH_REASONS.get(self._stop_reason or "") == "length"
        for block in blocks:
            if not block.is_call:
                continue
            arguments = block.arguments()
            unfinished = not arguments or isinstance(arguments, str)
            truncated = cut_off and unfinished and block is self._order[-1]
            call_id, name = block.data["toolUseId"], self._name(block.data["name"])
            calls.append(ToolCall(call_id, name, block.text() if truncated else arguments, truncated=truncated))
        return tuple(calls)

    def _count(self, usage: Mapping[str, Any] | None) -> None:
        if usage is None:
            return
        for key in _FIGURES:
            figure(usage, key)
        self._usage.update({key: value for key, value in copied(usage).items() if value is not None})


class BedrockBytesDecoder:
    """
    A `BedrockDecoder` fed with the body's bytes, cut anywhere: one parse and one event per delta.

    A body that is one JSON document is a whole reply, as ``Converse`` gives it.

    Args:
        decoder: what the events go to.
    """

    __slots__ = ("_begun", "_decoder", "_document", "_frames")

    def __init__(self, decoder: BedrockDecoder) -> None:
        self._decoder = decoder
        self._frames = FrameDecoder(PROVIDER)
        self._document: list[bytes] | None = None
        self._begun = False

    @property
    def complete(self) -> bool:
        """Whether the last event came."""
        return self._decoder.complete

    def feed(self, data: bytes) -> Iterable[Any]:
        """The events that a piece of the body makes, decoded as they are asked for."""
        if not self._begun:
            self._begun = bool(data)
            # the length of a frame begins with a zero
            self._document = [] if data[:1] == b"{" else None
        if self._document is None:
            return self._decoded(data)
        self._document.append(data)
        return ()

    def close(self) -> Iterable[Any]:
        """The whole reply."""
        if self._document is not None:
            reply = _document(b"".join(self._document))
            return [*self._decoder.whole(reply), *self._decoder.close()]
        if not self._decoder.stopped:
            self._frames.close()
        return self._decoder.close()

    def _decoded(self, data: bytes) -> Iterable[Any]:
        decode = self._decoder.event
        for heading, payload in self._frames.feed(data):
            kind, name = heading.kind, heading.name
            if kind == "event" and name == "contentBlockDelta":
                yield from decode(name, from_json(payload, allow_inf_nan=False))
                continue
            if kind in ("exception", "error"):
                raise _reported(kind, name, heading.headers, payload)
            # what an event that is not known holds need not be JSON
            if name in _EVENTS or is_error_code(name):
                yield from decode(name, from_json(payload, allow_inf_nan=False))
            if self._decoder.complete:
                return


def usage_from(raw: Mapping[str, Any]) -> Usage:
    """
    The API's figures in rxloop's meaning.

    Bedrock counts cached tokens apart from ``inputTokens``; reasoning is a part of ``outputTokens``.

    Source: https://docs.aws.amazon.com/bedrock/latest/userguide/prompt-caching.html
    """
    read = raw.get("cacheReadInputTokens") or raw.get("cacheReadInputTokenCount") or 0
    written = raw.get("cacheWriteInputTokens") or raw.get("cacheWriteInputTokenCount") or 0
    return Usage(
        input_tokens=(raw.get("inputTokens") or 0) + read + written,
        output_tokens=raw.get("outputTokens") or 0,
        cache_read_tokens=read,
        cache_write_tokens=written,
    )


def is_providers_call(tool_use: Mapping[str, Any]) -> bool:
    """Whether the provider runs the call itself."""
    return tool_use.get("type") == "server_tool_use"


def _resendable(blocks: list[_Block], *, stopped: bool) -> list[_Block]:
    """What the API takes back of a reply, be it whole or broken off."""
    closed = [block for block in blocks if block.closed]
    calls = {block.data["toolUseId"] for block in closed if block.kind == "toolUse" and not block.is_call}
    answered = calls & {block.data["toolUseId"] for block in closed if block.kind == "toolResult"}
    kept = []
    for block in blocks:
        if block.kind == "toolResult" or (block.kind == "toolUse" and not block.is_call):
            # a call that the provider ran itself and its result need each other
            fit = block.closed and block.data["toolUseId"] in answered
        elif block.kind == "reasoningContent" and not stopped:
            fit = block.closed and (block.signature is not None or bool(block.blobs))
        else:
            fit = block.closed or block.kind == "text"
        if fit:
            kept.append(block)
    return kept


def _document(body: bytes) -> Any:
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        if str(error).startswith("EOF"):
            raise StreamInterruptedError(
                "the reply ended in the middle of its JSON document", provider=PROVIDER
            ) from None
        raise MalformedResponseError(
            f"the reply must be one JSON document, but has {error}", provider=PROVIDER
        ) from None


def _reported(kind: str, name: str, headers: Mapping[str, str], payload: bytes) -> Exception:
    """The error that a frame which is no event stands for."""
    if kind == "error":
        return error_of_code(name, headers.get(":error-message") or "", provider=PROVIDER, streamed=True)
    try:
        details = from_json(payload)
    except ValueError:
        details = payload.decode(errors="replace")
    return error_of_code(name, details, provider=PROVIDER, streamed=True)


def _member(union: Mapping[str, Any]) -> str | None:
    """The member of a union that is set; a gateway may write the others too."""
    return next((key for key in union if union[key] is not None), None)


def _index(payload: Mapping[str, Any]) -> int:
    index = payload["contentBlockIndex"]
    if type(index) is not int:
        raise TypeError(f"contentBlockIndex must be a whole number, but got {index!r:.100}")
    return index


def _as_json(value: Any) -> Any:
    """What the SDK made of an event, in the API's JSON again, without what it does not know."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {key: _as_json(item) for key, item in value.items() if key != _UNKNOWN}
    if isinstance(value, (list, tuple)):
        return [_as_json(item) for item in value]
    return value


def _mappings(value: Any) -> list[Any]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _decoded(data: Mapping[str, Any], key: str) -> bytes | None:
    """A blob if it is there, which is base64 in the API's JSON."""
    value = string_or_none(data, key)
    if value is None:
        return None
    try:
        return base64.b64decode(value, validate=True)
    except ValueError as error:
        raise ValueError(f"{key} must be base64, but got {value!r:.100}") from error
