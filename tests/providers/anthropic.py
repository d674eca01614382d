"""The Anthropic Messages wire format, spoken by a scripted local server."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from anthropic import AsyncAnthropic

from tests.providers.http import Action, Close, Drop, LocalServer, Reply, Stall, split_every

__all__ = [
    "AnthropicServer",
    "Block",
    "Event",
    "message",
    "raw_block",
    "redacted",
    "server_tool",
    "sse",
    "text",
    "thinking",
    "tool_use",
    "unknown_event",
]

Event: TypeAlias = dict[str, Any]

_USAGE = {"input_tokens": 10, "output_tokens": 5}
# Known only once the output is: absent from message_start.
_LATE_USAGE = {"output_tokens", "output_tokens_details", "server_tool_use"}


@dataclass(frozen=True, slots=True)
class Block:
    """One content block: what its start holds, and its deltas."""

    start: Event
    deltas: tuple[Event, ...] = ()


def sse(event: Event, name: str | None = None) -> bytes:
    """One server-sent event, named after its type unless told otherwise."""
    data = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    return f"event: {name or event['type']}\ndata: {data}\n\n".encode()


def text(value: str, pieces: int = 3) -> Block:
    """A text block, streamed in at most so many deltas."""
    deltas = tuple({"type": "text_delta", "text": part} for part in _pieces(value, pieces))
    return Block({"type": "text", "text": ""}, deltas)


def thinking(value: str, signature: str = "sig", pieces: int = 2) -> Block:
    """A thinking block, its signature last."""
    deltas = [{"type": "thinking_delta", "thinking": part} for part in _pieces(value, pieces)]
    start = {"type": "thinking", "thinking": "", "signature": ""}
    return Block(start, (*deltas, {"type": "signature_delta", "signature": signature}))


def redacted(data: str) -> Block:
    """A redacted thinking block, whole in its start."""
    return Block({"type": "redacted_thinking", "data": data})


def tool_use(
    name: str,
    arguments: Mapping[str, Any] | str | None,
    id: str | None = None,  # noqa: A002
    pieces: int = 3,
    complete_at_start: bool = False,
) -> Block:
    """A tool call; `id` is made from the name unless given.

    A `str` of arguments is sent as it is, valid JSON or not; None sends no delta. `complete_at_start` puts
    the whole input into the block's start instead of deltas.
    """
    start = {"type": "tool_use", "id": id or f"toolu_{name}", "name": name, "input": {}}
    if complete_at_start:
        return Block({**start, "input": arguments})
    return Block(start, _input_deltas(arguments, pieces))


def server_tool(
    name: str,
    input: Mapping[str, Any],  # noqa: A002
    id: str | None = None,  # noqa: A002
    result_type: str = "web_search_tool_result",
    result: object = (),
    pieces: int = 3,
) -> tuple[Block, Block]:
    """A tool call that the provider itself ran, and its result."""
    id = id or f"srvtoolu_{name}"  # noqa: A001
    call = Block({"type": "server_tool_use", "id": id, "name": name, "input": {}}, _input_deltas(input, pieces))
    return call, Block({"type": result_type, "tool_use_id": id, "content": result})


def raw_block(start: Event, *deltas: Event) -> Block:
    """Any block, such as one of a type not known yet."""
    return Block(start, deltas)


def unknown_event(kind: str = "future_event", **fields: Any) -> bytes:
    """A server-sent event of a type not known yet."""
    return sse({"type": kind, **fields})


def message(
    *blocks: Block | Sequence[Block],
    stop_reason: str | None = None,
    usage: Mapping[str, Any] = _USAGE,
    message_id: str = "msg_test",
    model: str = "claude-test",
    ping: bool = True,
) -> list[bytes]:
    """The server-sent events of one whole reply, in order.

    `stop_reason` is `tool_use` if there is such a block, and `end_turn` otherwise, unless given.
    """
    flat = [one for block in blocks for one in ([block] if isinstance(block, Block) else block)]
    calls = any(block.start["type"] == "tool_use" for block in flat)
    reason = stop_reason or ("tool_use" if calls else "end_turn")
    early = {key: value for key, value in usage.items() if key not in _LATE_USAGE}
    start: Event = {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**early, "output_tokens": 1},
    }
    events: list[Event] = [{"type": "message_start", "message": start}]
    if ping:
        events.append({"type": "ping"})
    for index, block in enumerate(flat):
        events.append({"type": "content_block_start", "index": index, "content_block": block.start})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in block.deltas]
        events.append({"type": "content_block_stop", "index": index})
    end = {"stop_reason": reason, "stop_sequence": None}
    events.append({"type": "message_delta", "delta": end, "usage": dict(usage)})
    events.append({"type": "message_stop"})
    return [sse(event) for event in events]


class AnthropicServer(LocalServer):
    """A local server that scripts replies of the Messages API.

    Reply bodies hold one server-sent event per HTTP chunk unless told otherwise. `before_headers` makes a
    fault happen before the status line, where the client still waits for its response.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ids = itertools.count(1)

    def client(self, **options: Any) -> AsyncAnthropic:
        """A real SDK client of this server; the caller closes it."""
        return AsyncAnthropic(**{"base_url": self.url, "api_key": "test-key", **options})

    @property
    def messages(self) -> list[Any]:
        """The bodies of the requests to create a message, in order."""
        return [request.json for request in self.requests if request.path == "/v1/messages"]

    def reply(
        self,
        *blocks: Block | Sequence[Block],
        before: Sequence[Action] = (),
        after: Sequence[Action] = (),
        cut: int | None = None,
        chunk_size: int | None = None,
        headers: Mapping[str, str] | None = None,
        prelude: Sequence[Action] = (),
        **message_options: Any,
    ) -> None:
        """Script a streamed message.

        `before` and `after` are actions around the body, `prelude` those before the status line. `cut` ends
        the connection after so many bytes of the body, `chunk_size` makes every HTTP chunk that long.
        """
        chunks = message(*blocks, **message_options)
        if cut is not None:
            chunks = _first(chunks, cut)
        if chunk_size is not None:
            chunks = split_every(b"".join(chunks), chunk_size)
        ending = [] if cut is None else [Close()]
        self._stream([*before, *chunks, *after, *ending], headers, prelude)

    def reply_events(
        self,
        *parts: Action,
        headers: Mapping[str, str] | None = None,
        prelude: Sequence[Action] = (),
    ) -> None:
        """Script a stream of just these chunks and actions."""
        self._stream(parts, headers, prelude)

    def fail(
        self,
        status: int,
        type: str = "api_error",  # noqa: A002
        message: str = "scripted failure",
        headers: Mapping[str, str] | None = None,
        retry_after: float | str | None = None,
        prelude: Sequence[Action] = (),
    ) -> None:
        """Script an error response."""
        request_id = self._request_id()
        body = {"type": "error", "error": {"type": type, "message": message}, "request_id": request_id}
        retry = {} if retry_after is None else {"retry-after": str(retry_after)}
        reply = Reply.json(body, status, {"request-id": request_id, **retry, **(headers or {})})
        self.script(Reply(reply.status, reply.headers, reply.body, prelude))

    def error_event(
        self,
        type: str = "overloaded_error",  # noqa: A002
        message: str = "Overloaded",
        after: Sequence[Action] = (),
    ) -> None:
        """Script a stream that fails by an error event, after these events."""
        self._stream([*after, sse({"type": "error", "error": {"type": type, "message": message}})])

    def drop(self, after: Sequence[Action] = (), before_headers: bool = False) -> None:
        """Script a connection that is reset after these events."""
        self._fault(Drop(), after, before_headers)

    def close(self, after: Sequence[Action] = (), before_headers: bool = False) -> None:
        """Script a connection that ends in order, but too early, after these events."""
        self._fault(Close(), after, before_headers)

    def stall(self, after: Sequence[Action] = (), before_headers: bool = False) -> None:
        """Script a connection that falls silent after these events."""
        self._fault(Stall(), after, before_headers)

    def garbage(self, after: Sequence[Action] = (), data: str = "{not json", name: str = "content_block_delta") -> None:
        """Script a stream with an event whose data is no JSON, after these events."""
        self._stream([*after, f"event: {name}\ndata: {data}\n\n".encode()])

    def unknown_event(
        self, *blocks: Block | Sequence[Block], kind: str = "future_event", **message_options: Any
    ) -> None:
        """Script a message that has an event of an unknown type after each of its own."""
        events = message(*blocks, **message_options)
        self._stream([chunk for event in events for chunk in (event, unknown_event(kind))])

    def _fault(self, fault: Action, after: Sequence[Action], before_headers: bool) -> None:
        if before_headers:
            self._stream((), prelude=[*after, fault])
        else:
            self._stream([*after, fault])

    def _stream(
        self, body: Sequence[Action], headers: Mapping[str, str] | None = None, prelude: Sequence[Action] = ()
    ) -> None:
        fixed = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "request-id": self._request_id(),
        }
        self.script(Reply(200, {**fixed, **(headers or {})}, body, prelude))

    def _request_id(self) -> str:
        return f"req_{next(self._ids):04}"


def _pieces(value: str, count: int) -> list[str]:
    size = max(1, -(-len(value) // count))
    return [value[start : start + size] for start in range(0, len(value), size)]


def _input_deltas(arguments: Mapping[str, Any] | str | None, pieces: int) -> tuple[Event, ...]:
    if arguments is None:
        return ()
    whole = arguments if isinstance(arguments, str) else json.dumps(arguments)
    # The API's first fragment is always empty.
    return tuple({"type": "input_json_delta", "partial_json": part} for part in ["", *_pieces(whole, pieces)])


def _first(chunks: Iterable[bytes], size: int) -> list[bytes]:
    kept = []
    for chunk in chunks:
        if size > 0:
            kept.append(chunk[:size])
        size -= len(chunk)
    return kept
