"""The wire format of Bedrock's ConverseStream, spoken by a scripted local server.

Source: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ConverseStream.html
"""

from __future__ import annotations

import base64
import json
import re
from binascii import crc32
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tests.providers.eventstream import EventStreamServer, HeaderValue, Part, event

__all__ = [
    "BedrockServer",
    "Block",
    "Event",
    "as_read",
    "cited",
    "encoded",
    "image",
    "message",
    "raw_block",
    "reasoning",
    "redacted",
    "sdk_knows_images",
    "server_tool",
    "text",
    "tool_use",
    "unknown_block",
    "unknown_event",
]

Event: TypeAlias = dict[str, Any]

_USAGE = {"inputTokens": 10, "outputTokens": 5}
_ADDENDS = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheWriteInputTokens")
_FILLER = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


@dataclass(frozen=True, slots=True)
class Block:
    """One content block: what its start holds, and its deltas. None has no start, as text and reasoning."""

    start: Event | None
    deltas: tuple[Event, ...] = ()


def encoded(one: Event, filler: int | None = None, headers: Mapping[str, HeaderValue] | None = None) -> bytes:
    """One event, `{type: fields}`, in its frame.

    The service pads its events: `filler` is how many characters, chosen by the content unless given; 0 leaves
    the field out.
    """
    ((kind, fields),) = one.items()
    length = 1 + crc32(json.dumps(one).encode()) % len(_FILLER) if filler is None else filler
    padded = {**fields, "p": _FILLER[:length]} if length else fields
    # the service sorts the fields
    payload = json.dumps(padded, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()
    return event(kind, payload, headers=headers)


def as_read(one: Event) -> Event:
    """The same event as the SDK gives it to its reader: binary values are `bytes`."""
    delta = one.get("contentBlockDelta", {}).get("delta", {})
    for kind, name in (("reasoningContent", "redactedContent"), ("image", "source")):
        if name not in delta.get(kind, {}):
            continue
        value = delta[kind][name]
        value = {"bytes": base64.b64decode(value["bytes"])} if isinstance(value, dict) else base64.b64decode(value)
        return {"contentBlockDelta": {**one["contentBlockDelta"], "delta": {kind: {**delta[kind], name: value}}}}
    return one


def text(value: str, pieces: int = 3) -> Block:
    """Text, streamed in at most so many deltas."""
    return Block(None, tuple({"text": piece} for piece in _pieces(value, pieces)))


def cited(value: str, *citations: Event, pieces: int = 1) -> Block:
    """Text with citations after it, in one block."""
    return Block(None, (*text(value, pieces).deltas, *({"citation": citation} for citation in citations)))


def reasoning(value: str, signature: str | None = "sig", pieces: int = 2) -> Block:
    """Reasoning, its signature last; None leaves it out."""
    deltas: list[Event] = [{"reasoningContent": {"text": piece}} for piece in _pieces(value, pieces)]
    if signature is not None:
        deltas.append({"reasoningContent": {"signature": signature}})
    return Block(None, tuple(deltas))


def redacted(*pieces: bytes) -> Block:
    """Reasoning that is encrypted."""
    return Block(
        None, tuple({"reasoningContent": {"redactedContent": base64.b64encode(piece).decode()}} for piece in pieces)
    )


def tool_use(
    name: str,
    arguments: Mapping[str, Any] | str | None,
    id: str | None = None,  # noqa: A002
    pieces: int = 3,
) -> Block:
    """A tool call; `id` is made from the name unless given.

    A `str` of arguments is sent as it is, valid JSON or not; None sends no delta.
    """
    return Block({"toolUse": {"toolUseId": id or f"tooluse_{name}", "name": name}}, _input_deltas(arguments, pieces))


def server_tool(
    name: str,
    arguments: Mapping[str, Any],
    *results: Event,
    id: str | None = None,  # noqa: A002
    status: str | None = "success",
    pieces: int = 3,
) -> tuple[Block, Block]:
    """A tool call that the provider itself ran, and its result: `{"text": …}` or `{"json": …}`, a delta each."""
    id = id or f"srvtoolu_{name}"  # noqa: A001
    call = Block(
        {"toolUse": {"toolUseId": id, "name": name, "type": "server_tool_use"}}, _input_deltas(arguments, pieces)
    )
    start = {"toolUseId": id, "type": f"{name}_result", **({} if status is None else {"status": status})}
    return call, Block({"toolResult": start}, tuple({"toolResult": [result]} for result in results))


def image(data: bytes, format: str = "png") -> Block:  # noqa: A002
    """An image that the model made."""
    delta = {"image": {"source": {"bytes": base64.b64encode(data).decode()}}}
    return Block({"image": {"format": format}}, (delta,))


def sdk_knows_images(client: Any) -> bool:
    """Whether this version of botocore reads an image in a reply, which older ones leave out of their events."""
    return "image" in client.meta.service_model.shape_for("ContentBlockDelta").members


def raw_block(start: Event | None, *deltas: Event) -> Block:
    """Any block; `{}` as its start is a start without anything in it."""
    return Block(start, deltas)


def unknown_block() -> Block:
    """A block of a kind not known yet."""
    return Block({"futureBlock": {"name": "x"}}, ({"futureDelta": {"data": "x"}}, {"otherFutureDelta": "x"}))


def unknown_event(kind: str = "futureEvent", **fields: Any) -> Event:
    """An event of a type not known yet."""
    return {kind: fields or {"future": {"items": [1]}}}


def message(
    *blocks: Block | Sequence[Block],
    stop_reason: str | None = None,
    usage: Mapping[str, Any] | None = _USAGE,
    additional_fields: Event | None = None,
    **metadata: Any,
) -> list[Event]:
    """The events of one whole reply, in order.

    `stop_reason` is `tool_use` if there is a call for the caller, and `end_turn` otherwise, unless given. `usage`
    gets its total unless it has one; None leaves it out. `additional_fields` are those that the request asked
    for, and `metadata` is more of the last event, such as `trace`.
    """
    flat = [one for block in blocks for one in ([block] if isinstance(block, Block) else block)]
    calls = any("toolUse" in (block.start or {}) and "type" not in (block.start or {})["toolUse"] for block in flat)
    events: list[Event] = [{"messageStart": {"role": "assistant"}}]
    for index, block in enumerate(flat):
        if block.start is not None:
            events.append({"contentBlockStart": {"contentBlockIndex": index, "start": block.start}})
        events += [{"contentBlockDelta": {"contentBlockIndex": index, "delta": delta}} for delta in block.deltas]
        events.append({"contentBlockStop": {"contentBlockIndex": index}})
    stop: Event = {"stopReason": stop_reason or ("tool_use" if calls else "end_turn")}
    if additional_fields is not None:
        stop["additionalModelResponseFields"] = additional_fields
    events.append({"messageStop": stop})
    end: Event = {"metrics": {"latencyMs": 551}, **metadata}
    if usage is not None:
        end["usage"] = {"totalTokens": sum(usage.get(key, 0) for key in _ADDENDS), **usage}
    events.append({"metadata": end})
    return events


class BedrockServer(EventStreamServer):
    """A local server that scripts replies of `ConverseStream`; where parts are taken, a `dict` is an event."""

    service = "bedrock-runtime"
    path = re.compile(r"/model/([^/]+)/converse-stream")
    error_namespace = ":http://internal.amazon.com/coral/com.amazon.bedrock/"
    kinds = {  # noqa: RUF012 - typed in the base class
        400: "ValidationException",
        401: "UnauthorizedException",
        403: "AccessDeniedException",
        404: "ResourceNotFoundException",
        408: "ModelTimeoutException",
        424: "ModelErrorException",
        429: "ThrottlingException",
        500: "InternalServerException",
        503: "ServiceUnavailableException",
    }

    def reply(
        self,
        *blocks: Block | Sequence[Block],
        before: Sequence[Part] = (),
        after: Sequence[Part] = (),
        cut: int | None = None,
        chunk_size: int | None = None,
        headers: Mapping[str, str] | None = None,
        prelude: Sequence[Part] = (),
        **message_options: Any,
    ) -> None:
        """Script a streamed reply; `before` and `after` are frames and actions around its own."""
        parts = [*before, *message(*blocks, **message_options), *after]
        self.reply_frames(*parts, cut=cut, chunk_size=chunk_size, headers=headers, prelude=prelude)

    def encode(self, one: Event) -> bytes:
        """The frame of an event, padded."""
        return encoded(one)

    def unknown(self, *blocks: Block | Sequence[Block], **message_options: Any) -> None:
        """Script a reply with unknown blocks and deltas between its blocks, and an unknown event after every event."""
        parts: list[Part] = []
        mixed: list[Block | Sequence[Block]] = [unknown_block()]
        for block in blocks:
            mixed += [block, unknown_block()]
        for one in message(*mixed, **message_options):
            parts += [one, encoded(unknown_event(), headers={"future-header": 7})]
        self.reply_frames(*parts)


def _pieces(value: str, count: int) -> list[str]:
    size = max(1, -(-len(value) // count))
    return [value[start : start + size] for start in range(0, len(value), size)]


def _input_deltas(arguments: Mapping[str, Any] | str | None, pieces: int) -> tuple[Event, ...]:
    if arguments is None:
        return ()
    whole = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    # the first fragment is always empty
    return tuple({"toolUse": {"input": piece}} for piece in ["", *_pieces(whole, pieces)])
