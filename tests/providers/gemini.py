"""The Gemini wire format, of AI Studio and of Vertex AI, spoken by a scripted local server."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from google import genai
from google.auth.credentials import Credentials

from tests.providers.http import Action, Close, Drop, LocalServer, Reply, Stall, split_every

__all__ = [
    "Event",
    "FakeCredentials",
    "GeminiServer",
    "Part",
    "Parts",
    "Piece",
    "call",
    "chunks",
    "code_result",
    "error",
    "executable_code",
    "inline_data",
    "metadata",
    "partial_call",
    "raw_part",
    "signature_only",
    "sse",
    "text",
    "thought",
    "together",
    "unknown_event",
]

Event: TypeAlias = dict[str, Any]
Part: TypeAlias = dict[str, Any]
Piece: TypeAlias = tuple[str, str, Any]

_USAGE = {"promptTokenCount": 10, "candidatesTokenCount": 5}
# These grow with the reply; everything else is known from the start.
_GROWING = ("candidatesTokenCount", "thoughtsTokenCount")
_ADDENDS = ("promptTokenCount", "toolUsePromptTokenCount", "candidatesTokenCount", "thoughtsTokenCount")
_RPC = "type.googleapis.com/google.rpc."
_MODEL_PATH = re.compile(
    r"/(v1|v1beta|v1alpha|v1beta1)/(projects/[^/]+/locations/[^/]+/publishers/google/)?models/[^/:]+"
    r":(streamGenerateContent|generateContent)"
)


@dataclass(frozen=True, slots=True)
class Parts:
    """Some parts of a reply: each group comes in one chunk of the stream."""

    groups: tuple[tuple[Part, ...], ...]


def sse(event: Event, crlf: bool = True, vertex: bool = False) -> bytes:
    """One server-sent event, spaced as AI Studio or Vertex does."""
    data = json.dumps(event, ensure_ascii=False, separators=(",", ":" if vertex else ": "))
    end = "\r\n" if crlf else "\n"
    return f"data: {data}{end}{end}".encode()


def text(value: str, pieces: int = 3) -> Parts:
    """Text, streamed in at most so many chunks."""
    return Parts(tuple(({"text": piece},) for piece in _pieces(value, pieces)))


def thought(value: str, pieces: int = 2) -> Parts:
    """A summary of the model's thoughts, streamed in at most so many chunks."""
    return Parts(tuple(({"text": piece, "thought": True},) for piece in _pieces(value, pieces)))


def signature_only(signature: str) -> Parts:
    """A thought signature on an empty text, as the end of a reply has it."""
    return raw_part({"text": "", "thoughtSignature": signature})


def call(
    name: str,
    args: Mapping[str, Any] | None,
    id: str | None = None,  # noqa: A002
    signature: str | None = None,
) -> Parts:
    """A whole function call; None leaves its arguments out, and no id its id."""
    made: Part = {"name": name}
    if args is not None:
        made["args"] = dict(args)
    if id is not None:
        made["id"] = id
    return raw_part({"functionCall": made, **_signed(signature)})


def partial_call(
    name: str,
    pieces: Iterable[Piece | list[Piece]],
    id: str | None = None,  # noqa: A002
    signature: str | None = None,
    terminal: bool = True,
) -> Parts:
    """A function call with streamed arguments: its name, its pieces, and an empty call at its end.

    A piece is (JSON path, key of the value, value), such as `("$.city", "stringValue", "Bos")`, and a list
    of pieces comes in one chunk. Strings go on until a piece with another path or the end, which an empty
    string announces, as the API does. Without `terminal` the last piece ends the call.
    """
    opening: Part = {"name": name, "willContinue": True}
    if id is not None:
        opening["id"] = id
    groups: list[Part] = [{"functionCall": opening, **_signed(signature)}]
    open_path: str | None = None
    for piece in pieces:
        sent: list[Part] = []
        for path, key, value in piece if isinstance(piece, list) else [piece]:
            if open_path is not None and open_path != path:
                _close_string(groups, sent, open_path)
            going_on = key == "stringValue"
            open_path = path if going_on else None
            sent.append({"jsonPath": path, key: value, **({"willContinue": True} if going_on else {})})
        groups.append({"functionCall": {"partialArgs": sent, "willContinue": True}})
    if open_path is not None:
        _close_string(groups, [], open_path)
    if terminal:
        groups.append({"functionCall": {}})
    else:
        del groups[-1]["functionCall"]["willContinue"]
    return Parts(tuple((group,) for group in groups))


def executable_code(code: str, language: str = "PYTHON", id: str | None = None) -> Parts:  # noqa: A002
    """Code that the provider itself runs."""
    return raw_part({"executableCode": {"language": language, "code": code, **({} if id is None else {"id": id})}})


def code_result(output: str, outcome: str = "OUTCOME_OK", id: str | None = None) -> Parts:  # noqa: A002
    """What the provider's own run of code gave."""
    return raw_part(
        {"codeExecutionResult": {"outcome": outcome, "output": output, **({} if id is None else {"id": id})}}
    )


def inline_data(data: bytes, mime_type: str = "image/png") -> Parts:
    """Bytes that the model made, such as an image."""
    return raw_part({"inlineData": {"mimeType": mime_type, "data": base64.b64encode(data).decode()}})


def raw_part(*parts: Part) -> Parts:
    """Any parts, such as one of a type not known yet, each in a chunk of its own."""
    return Parts(tuple((part,) for part in parts))


def together(*parts: Parts) -> Parts:
    """All these parts in one chunk."""
    return Parts((tuple(part for some in parts for group in some.groups for part in group),))


def metadata(
    usage: Mapping[str, Any] | None = None, model: str = "gemini-test", response_id: str = "resp_test"
) -> Event:
    """A chunk without any candidate."""
    counts = {"promptTokenCount": 10} if usage is None else usage
    return {"usageMetadata": _total(counts), "modelVersion": model, "responseId": response_id}


def unknown_event(**fields: Any) -> Event:
    """A chunk of which nothing is known yet."""
    return fields or {"futureField": {"state": "FUTURE", "items": [1]}}


def error(
    code: int,
    status: str,
    message: str = "scripted failure",
    retry_delay: float | str | None = None,
    details: Sequence[Mapping[str, Any]] = (),
) -> Event:
    """Google's error object; a number as `retry_delay` is seconds."""
    every = [dict(detail) for detail in details]
    if retry_delay is not None:
        delay = retry_delay if isinstance(retry_delay, str) else f"{retry_delay}s"
        every.append({"@type": f"{_RPC}RetryInfo", "retryDelay": delay})
    return {"error": {"code": code, "message": message, "status": status, **({"details": every} if every else {})}}


def chunks(
    *parts: Parts,
    finish_reason: str | None = "STOP",
    finish_apart: bool = False,
    usage: Mapping[str, Any] | None = _USAGE,
    model: str = "gemini-test",
    response_id: str = "resp_test",
    candidate: Mapping[str, Any] | None = None,
    vertex: bool = False,
) -> list[Event]:
    """The chunks of one whole reply, in order.

    The finish reason is in the last chunk with content, or in one more with `finish_apart`; None leaves it out.
    Every chunk has the usage so far, where Vertex tells it at the end only; None leaves it out. `candidate` are
    more fields of the last candidate, such as `groundingMetadata`.
    """
    groups = [group for some in parts for group in some.groups]
    if finish_apart or (not groups and (finish_reason or candidate)):
        groups.append(())
    events: list[Event] = []
    for position, group in enumerate(groups, 1):
        last = position == len(groups)
        content: Event = {"role": "model"}
        if group:
            content = {"role": "model", "parts": list(group)} if vertex else {"parts": list(group), "role": "model"}
        one: Event = {"content": content}
        if last and finish_reason is not None:
            one["finishReason"] = finish_reason
        if not vertex:
            one["index"] = 0
        if last:
            one.update(candidate or {})
        event: Event = {"candidates": [one]}
        if usage is not None:
            event["usageMetadata"] = _usage(usage, position, len(groups), vertex)
        event["modelVersion"] = model
        if vertex:
            event["createTime"] = "2026-01-01T00:00:00.000000Z"
        events.append({**event, "responseId": response_id})
    return events


class FakeCredentials(Credentials):  # type: ignore[misc, unused-ignore]
    """Credentials that hold a token for ever."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.token = "test-token"

    def refresh(self, request: object) -> None:
        raise AssertionError("the token never expires")


class GeminiServer(LocalServer):
    """A local server that scripts replies of `streamGenerateContent`, whichever flavour asks.

    Reply bodies hold one server-sent event per HTTP chunk unless told otherwise. `before_headers` makes a
    fault happen before the status line, where the client still waits for its response. Where chunks are
    taken, a `dict` is sent as a server-sent event and everything else is done as it is.
    """

    def client(self, **http_options: Any) -> genai.Client:
        """A real SDK client of AI Studio; the caller closes it."""
        return genai.Client(vertexai=False, api_key="test-key", http_options=self._options(http_options))

    def vertex_client(self, **http_options: Any) -> genai.Client:
        """A real SDK client of Vertex AI; the caller closes it."""
        return genai.Client(
            vertexai=True,
            project="test-project",
            location="us-central1",
            credentials=FakeCredentials(),
            http_options=self._options(http_options),
        )

    @property
    def bodies(self) -> list[Any]:
        """The bodies of the requests to generate content, in order."""
        return [request.json for request in self.requests if _MODEL_PATH.fullmatch(request.path)]

    def reply(
        self,
        *parts: Parts,
        before: Sequence[Event | Action] = (),
        after: Sequence[Event | Action] = (),
        cut: int | None = None,
        chunk_size: int | None = None,
        headers: Mapping[str, str] | None = None,
        prelude: Sequence[Action] = (),
        crlf: bool = True,
        vertex: bool = False,
        **chunk_options: Any,
    ) -> None:
        """Script a streamed reply.

        `before` and `after` are chunks and actions around the body, `prelude` actions before the status line.
        `cut` ends the connection after so many bytes of the body, `chunk_size` makes every HTTP chunk that long.
        """
        body = [sse(event, crlf, vertex) for event in chunks(*parts, vertex=vertex, **chunk_options)]
        if cut is not None:
            body = _first(body, cut)
        if chunk_size is not None:
            body = split_every(b"".join(body), chunk_size)
        ending = [] if cut is None else [Close()]
        self._stream([*before, *body, *after, *ending], headers, prelude)

    def reply_chunks(
        self,
        *parts: Event | Action,
        headers: Mapping[str, str] | None = None,
        prelude: Sequence[Action] = (),
    ) -> None:
        """Script a stream of just these chunks and actions."""
        self._stream(parts, headers, prelude)

    def reply_whole(self, *parts: Parts, headers: Mapping[str, str] | None = None, **chunk_options: Any) -> None:
        """Script a reply to `generateContent`: one JSON document."""
        every = chunks(together(*parts), **chunk_options)
        self.script(_document(every[0], 200, headers))

    def fail(
        self,
        status: int,
        status_text: str = "RESOURCE_EXHAUSTED",
        message: str = "scripted failure",
        retry_delay: float | str | None = None,
        headers: Mapping[str, str] | None = None,
        details: Sequence[Mapping[str, Any]] = (),
        prelude: Sequence[Action] = (),
    ) -> None:
        """Script an error response; `retry_delay`, such as "13s", goes into its details."""
        body = error(status, status_text, message, retry_delay, details)
        self.script(_document(body, status, headers, prelude))

    def fail_page(self, status: int = 502, page: str = "<html><title>502 Bad Gateway</title></html>") -> None:
        """Script an error response that is no JSON, as one of a proxy."""
        data = page.encode()
        sized = {"content-type": "text/html; charset=UTF-8", "content-length": str(len(data))}
        self.script(Reply(status, sized, [data]))

    def error_inside(
        self,
        after: Sequence[Event | Action] = (),
        code: int = 503,
        status: str = "UNAVAILABLE",
        message: str = "The service is currently unavailable.",
        retry_delay: float | str | None = None,
    ) -> None:
        """Script a stream that fails by an event with an error object, after these chunks."""
        self._stream([*after, error(code, status, message, retry_delay)])

    def error_after(
        self,
        after: Sequence[Event | Action] = (),
        code: int = 499,
        status: str = "CANCELLED",
        message: str = "The operation was cancelled.",
        retry_delay: float | str | None = None,
    ) -> None:
        """Script a stream that fails by the bare lines of an error object, after these chunks."""
        self._stream([*after, _pretty(error(code, status, message, retry_delay))])

    def blocked_prompt(self, reason: str = "SAFETY", usage: Mapping[str, Any] | None = None) -> None:
        """Script a reply to a prompt that the provider refuses: one chunk without any candidate."""
        self._stream([{"promptFeedback": {"blockReason": reason}, **metadata(usage)}])

    def empty(self) -> None:
        """Script a reply with nothing in its body."""
        self._stream([])

    def drop(self, after: Sequence[Event | Action] = (), before_headers: bool = False) -> None:
        """Script a connection that is reset after these chunks."""
        self._fault(Drop(), after, before_headers)

    def close(self, after: Sequence[Event | Action] = (), before_headers: bool = False) -> None:
        """Script a connection that ends in order, but too early, after these chunks."""
        self._fault(Close(), after, before_headers)

    def stall(self, after: Sequence[Event | Action] = (), before_headers: bool = False) -> None:
        """Script a connection that falls silent after these chunks."""
        self._fault(Stall(), after, before_headers)

    def garbage(self, after: Sequence[Event | Action] = (), data: str = "{not json") -> None:
        """Script a stream with an event whose data is no JSON, after these chunks."""
        self._stream([*after, f"data: {data}\r\n\r\n".encode()])

    def unknown(self, *parts: Parts, **chunk_options: Any) -> None:
        """Script a reply with unknown fields, and with a chunk of none but unknown fields and one of mere metadata
        after each of its own."""
        events: list[Event | Action] = []
        for event in chunks(*parts, **chunk_options):
            events += [{**event, "futureField": {"x": 1}}, unknown_event(), metadata(event.get("usageMetadata"))]
        self._stream(events)

    def _options(self, options: Mapping[str, Any]) -> Any:
        return {"base_url": self.url, **options}

    def _fault(self, fault: Action, after: Sequence[Event | Action], before_headers: bool) -> None:
        if before_headers:
            self._stream((), prelude=[*_encoded(after), fault])
        else:
            self._stream([*after, fault])

    def _stream(
        self,
        body: Sequence[Event | Action],
        headers: Mapping[str, str] | None = None,
        prelude: Sequence[Action] = (),
    ) -> None:
        fixed = {"content-type": "text/event-stream", "vary": "Origin", "server": "scaffolding on HTTPServer2"}
        self.script(Reply(200, {**fixed, **(headers or {})}, _encoded(body), prelude))


def _encoded(parts: Sequence[Event | Action]) -> list[Action]:
    return [sse(part) if isinstance(part, dict) else part for part in parts]


def _pretty(value: Event) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode()


def _document(
    value: Event, status: int, headers: Mapping[str, str] | None = None, prelude: Sequence[Action] = ()
) -> Reply:
    data = _pretty(value)
    sized = {"content-type": "application/json; charset=UTF-8", "content-length": str(len(data))}
    return Reply(status, {**sized, **(headers or {})}, [data], prelude)


def _usage(usage: Mapping[str, Any], position: int, count: int, vertex: bool) -> Event:
    if position == count:
        return _total({**usage, **({"trafficType": "ON_DEMAND"} if vertex else {})})
    if vertex:
        return {"trafficType": "ON_DEMAND"}
    early: Event = {}
    for key, value in usage.items():
        if key not in _GROWING:
            early[key] = value
        elif grown := value * position // count:
            early[key] = grown
    early.pop("totalTokenCount", None)
    early.pop("candidatesTokensDetails", None)
    return _total(early)


def _total(usage: Mapping[str, Any]) -> Event:
    return {"totalTokenCount": sum(usage.get(key, 0) for key in _ADDENDS), **usage}


def _signed(signature: str | None) -> Part:
    return {} if signature is None else {"thoughtSignature": signature}


def _close_string(groups: list[Part], sent: list[Part], path: str) -> None:
    ending = {"jsonPath": path, "stringValue": ""}
    if sent:
        sent.append(ending)
    else:
        groups.append({"functionCall": {"partialArgs": [ending], "willContinue": True}})


def _pieces(value: str, count: int) -> list[str]:
    size = max(1, -(-len(value) // count))
    return [value[start : start + size] for start in range(0, len(value), size)]


def _first(chunks: Iterable[bytes], size: int) -> list[bytes]:
    kept = []
    for chunk in chunks:
        if size > 0:
            kept.append(chunk[:size])
        size -= len(chunk)
    return kept
