"""What the containers of SageMaker endpoints write, decoded: bytes cut anywhere in, pieces of text out.

Sources: https://docs.djl.ai/docs/serving/serving/docs/lmi/user_guides/lmi_input_output_schema.html,
https://huggingface.github.io/text-generation-inference/ and
https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from pydantic_core import from_json

from rxloop.adapters.http_errors import error_for_status
from rxloop.adapters.sse import SSEDecoder
from rxloop.adapters.wire_values import mapping, string_or_none
from rxloop.errors import (
    ContextOverflowError,
    InvalidRequestError,
    MalformedResponseError,
    ModelNotFoundError,
    OverloadedError,
    ProviderError,
    RateLimitedError,
    ServerError,
    StreamInterruptedError,
)
from rxloop.steps import FinishReason

__all__ = ("PROVIDER", "AutoPayload", "PayloadDecoder", "error_of_document", "finish_reason_of", "whole_or_none")

PROVIDER = "sagemaker"

FINISH_REASONS: Mapping[str, FinishReason] = {
    "content_filter": "content-filter",
    "end_turn": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "length": "length",
    "max_tokens": "length",
    "stop": "stop",
    "stop_sequence": "stop",
}
"""The containers' words for why a reply ended; any other one is ``other``."""

_ERRORS: Mapping[str, type[ProviderError]] = {
    "badrequesterror": InvalidRequestError,
    "generation": ServerError,
    "incomplete_generation": ServerError,
    "internal_server_error": ServerError,
    "internalservererror": ServerError,
    "invalid_request_error": InvalidRequestError,
    "notfounderror": ModelNotFoundError,
    "overloaded": OverloadedError,
    "overloaded_error": OverloadedError,
    "rate_limit_error": RateLimitedError,
    "rate_limit_exceeded": RateLimitedError,
    "ratelimiterror": RateLimitedError,
    "template_error": InvalidRequestError,
    "tool_error": InvalidRequestError,
    "validation": InvalidRequestError,
}
"""The containers' types of errors, in lower case.

Source: https://github.com/huggingface/text-generation-inference/blob/main/router/src/infer/mod.rs
"""

_OVERFLOW = (
    "`inputs` must have less than",
    "`inputs` tokens + `max_new_tokens`",
    "input is too long",
    "longer than the maximum model length",
    "maximum context length",
    "prompt is too long",
)
_LONGEST = 2000
_BLANK = b"\xef\xbb\xbf \t\r\n"
_FIELDS_OF_EVENTS = (b"data:", b"event:", b"id:", b"retry:")
_LINE_END = re.compile(rb"[\r\n]")
_SHOWN = 200
_MOST = 2**63

_DONE = b"[DONE]"
_NOT_WHOLE: Mapping[str, str] = {
    "choices": "a finish reason",
    "token": "generated_text or details",
    "generation": "a stop reason",
}
"""What the end of each format has."""


class PayloadDecoder(Protocol):
    """One reply of a container. Made anew for every step, and fed with its payload."""

    @property
    def complete(self) -> bool:
        """Whether the container said that the reply is whole: nothing more is read."""
        ...

    @property
    def raw_stop_reason(self) -> str | None:
        """The container's word for why the reply ended; ``None`` if it told none."""
        ...

    @property
    def usage(self) -> Mapping[str, int]:
        """The figures of `rxloop.Usage` that the container told, by name; input or output is estimated without."""
        ...

    @property
    def raw_usage(self) -> Mapping[str, Any]:
        """The container's own figures."""
        ...

    def feed(self, data: bytes) -> Iterable[str]:
        """The pieces of text that a part of the payload makes; it may begin and end anywhere."""
        ...

    def close(self) -> Iterable[str]:
        """
        The last pieces, at the end of a payload that was not complete before.

        Raises:
            StreamInterruptedError: the reply is not whole.
        """
        ...


class AutoPayload:
    """
    The common formats, told apart by their content.

    Lines of JSON, server-sent events, or one whole JSON document, of the OpenAI-compatible containers (chat and text
    completions), Text Generation Inference, Large Model Inference and Llama. Special tokens and reasoning are no text.

    A reply without the mark at its end is an error: a finish reason or ``[DONE]`` for completions, ``generated_text``
    or ``details`` for tokens, a stop reason for Llama. A whole text, and ``{"outputs": […]}``, end with the payload.
    """

    __slots__ = (
        "_ended",
        "_format",
        "_head",
        "_lines",
        "_pieces",
        "_records",
        "_sse",
        "_strays",
        "_streamed",
        "complete",
        "raw_stop_reason",
        "raw_usage",
        "usage",
    )

    def __init__(self) -> None:
        self.complete = False
        self.raw_stop_reason: str | None = None
        self.usage: dict[str, int] = {}
        self.raw_usage: dict[str, Any] = {}
        self._sse: SSEDecoder | None = None
        # of a payload whose kind is not known yet
        self._head: bytearray | None = bytearray()
        self._strays: list[bytes] = []
        # of a line that is not complete; of the whole document, once it is known to be one
        self._pieces: list[bytes] = []
        self._lines: bool | None = None
        self._records = 0
        self._format = ""
        self._ended = self._streamed = False

    def feed(self, data: bytes) -> Iterator[str]:
        """
        The pieces of text that a part of the payload makes, decoded as they are asked for.

        Raises:
            RxLoopError: the payload has an error, or is of no known format.
            TypeError: a value is not of the type that the format gives it.
            ValueError: a figure is not one.
        """
        if self._head is not None:
            self._head += data
            if not self._is_told(self._head):
                return
            data, self._head = bytes(self._head), None
        if self._sse is not None:
            for event in self._sse.feed(data):
                yield from self._event(event)
                if self.complete:
                    return
            yield from self._stray_lines()
        elif self._lines and b"\n" in data:
            yield from self._split(data)
        else:
            self._pieces.append(data)

    def close(self) -> Iterator[str]:
        """
        What is left at the end of the payload.

        Raises:
            StreamInterruptedError: the reply is not whole.
            MalformedResponseError: it is of no known format.
        """
        if self.complete:
            return
        head = b"" if self._head is None else bytes(self._head)
        if head and not head.endswith((b"\r", b"\n")):
            if head.startswith(b":") and _LINE_END.search(head) is None:
                # no comment, which is a whole line
                raise _no_format(head)
            raise StreamInterruptedError(
                f"the payload ended before its format was known, after {head!r}", provider=PROVIDER
            )
        try:
            if self._sse is not None:
                for event in self._sse.close():
                    yield from self._event(event)
                yield from self._stray_lines()
            elif rest := b"".join(self._pieces).strip():
                yield from self._record(_parsed(rest))
        except MalformedResponseError as error:
            # what was cut off after the end of the answer is not missed
            if self.raw_stop_reason is None:
                if self._sse is None and not self._records and not _may_go_on(rest):
                    raise _no_format(rest) from error
                raise StreamInterruptedError(
                    f"the payload ended in the middle of a record: {error}", provider=PROVIDER
                ) from error
        if self.complete or self._ended:
            return
        if self._format:
            raise StreamInterruptedError(
                f"the reply must end with {_NOT_WHOLE[self._format]}, but the payload ended without", provider=PROVIDER
            )
        if self._records:
            raise MalformedResponseError(
                "the payload has no record of a known format: give a decoder as payload=",
                provider=PROVIDER,
                retryable=False,
            )
        raise StreamInterruptedError("the payload ended before anything was in it", provider=PROVIDER)

    def _is_told(self, head: bytearray) -> bool:
        """Whether the kind of the payload is known from what has come of it."""
        if not head.startswith(b":"):
            del head[: len(head) - len(head.lstrip(_BLANK))]
        line, commented = bytes(head), False
        while line.startswith(b":"):
            # a comment tells nothing: text may begin so too
            end = _LINE_END.search(line)
            if end is None:
                return False
            line, commented = line[end.end() :].lstrip(_BLANK), True
        if line[:1] in (b"{", b"[") and not commented:
            self._lines = True
            return True
        if line.startswith((*_FIELDS_OF_EVENTS, b"{", b"[")):
            self._sse = SSEDecoder(self._strays)
            return True
        if not any(field.startswith(line) for field in _FIELDS_OF_EVENTS):
            raise _no_format(bytes(head))
        return False

    def _event(self, data: bytes) -> Iterator[str]:
        if data.strip() == _DONE:
            self.complete = True
        elif data:
            yield from self._record(_parsed(data))

    def _stray_lines(self) -> Iterator[str]:
        """An error document may follow events without being one."""
        strays = [line for line in self._strays if line.strip()]
        self._strays.clear()
        for line in strays:
            yield from self._record(_parsed(line))

    def _split(self, data: bytes) -> Iterator[str]:
        first, *lines = data.split(b"\n")
        self._pieces.append(first)
        lines.insert(0, b"".join(self._pieces))
        self._pieces.clear()
        rest = lines.pop()
        for number, line in enumerate(lines):
            if not line.strip():
                continue
            try:
                record = from_json(line)
            except ValueError:
                if self._records:
                    raise _no_json(line) from None
                # a document that is broken into lines
                self._lines = False
                self._pieces.append(b"\n".join([*lines[number:], rest]))
                return
            yield from self._record(record)
            if self.complete:
                return
        if rest:
            self._pieces.append(rest)

    def _record(self, record: Any) -> Iterator[str]:
        if isinstance(record, list):
            for item in record:
                yield from self._record(item)
            return
        if not isinstance(record, Mapping):
            raise TypeError(f"a record must be an object, but got {record!r:.100}")
        self._records += 1
        if _is_error(record):
            raise error_of_document(record)
        if "choices" in record:
            yield from self._openai(record)
        elif "token" in record or "generated_text" in record:
            yield from self._tokens(record)
        elif "generation" in record:
            yield from self._llama(record)
        elif "outputs" in record:
            self._ended = True
            yield from _texts(record["outputs"])

    def _openai(self, record: Mapping[str, Any]) -> Iterator[str]:
        """
        A chunk, or the whole, of a chat or text completion.

        Source: https://platform.openai.com/docs/api-reference/chat-streaming
        """
        self._format = "choices"
        usage = record.get("usage")
        if isinstance(usage, Mapping):
            self._count(usage, "prompt_tokens", "completion_tokens")
            self._count_part(usage, "prompt_tokens_details", "cached_tokens", "cache_read_tokens")
            self._count_part(usage, "completion_tokens_details", "reasoning_tokens", "reasoning_tokens")
        for choice in record["choices"] or ():
            if choice.get("index"):
                # of several answers the first is the turn's
                continue
            part = mapping(choice, "delta") or mapping(choice, "message")
            yield from _texts(choice.get("text") if part is None else part.get("content"))
            if self._stopped(choice, "finish_reason") or "message" in choice:
                # the usage may follow
                self._ended = True

    def _tokens(self, record: Mapping[str, Any]) -> Iterator[str]:
        """A token of Text Generation Inference or Large Model Inference, or the whole text."""
        self._format = "token"
        token = mapping(record, "token")
        text = string_or_none(record, "generated_text")
        if token is not None:
            self._streamed = True
            if not token.get("special") and not token.get("special_token"):
                yield from _texts(token.get("text"))
        elif not self._streamed:
            # the whole text; or pieces of it, without any mark at their end
            self._ended = True
            yield text or ""
        details = mapping(record, "details")
        if details is not None:
            self._count(details, "prompt_tokens", "generated_tokens")
            self._count(details, "input_length", "generated_tokens")
            self._stopped(details, "finish_reason")
        self.complete = token is not None and (text is not None or bool(details))

    def _llama(self, record: Mapping[str, Any]) -> Iterator[str]:
        self._format = "generation"
        self._count(record, "prompt_token_count", "generation_token_count")
        generation = record["generation"]
        if isinstance(generation, Mapping):
            # a whole message of an older container, which tells no reason
            self._ended = True
            generation = generation.get("content")
        yield from _texts(generation)
        self.complete = self._stopped(record, "stop_reason")

    def _stopped(self, data: Mapping[str, Any], key: str) -> bool:
        reason = string_or_none(data, key)
        if reason is None:
            return False
        if reason == "error":
            raise ServerError("the container reported an error at the end of the reply", provider=PROVIDER)
        self.raw_stop_reason = reason
        return True

    def _count(self, data: Mapping[str, Any], sent: str, produced: str) -> None:
        # the counters are cumulative: the last figure wins, and an absent one changes nothing
        for key, name in ((sent, "input_tokens"), (produced, "output_tokens")):
            counted = whole_or_none(data.get(key))
            if counted is not None:
                self.usage[name], self.raw_usage[key] = counted, data[key]

    def _count_part(self, usage: Mapping[str, Any], details: str, key: str, name: str) -> None:
        part = usage.get(details)
        counted = whole_or_none(part.get(key)) if isinstance(part, Mapping) else None
        if isinstance(part, Mapping) and counted is not None:
            self.usage[name] = counted
            self.raw_usage[details] = {**self.raw_usage.get(details, {}), key: part[key]}


def whole_or_none(value: Any) -> int | None:
    """A counter's figure, ``1.0`` too; ``None`` if it is no whole number >= 0 that any machine counts to."""
    whole = type(value) is int or (isinstance(value, float) and value.is_integer())
    return int(value) if whole and 0 <= value < _MOST else None


def finish_reason_of(raw_stop_reason: str | None) -> FinishReason:
    """The container's word in rxloop's terms; ``other`` without one."""
    return FINISH_REASONS.get((raw_stop_reason or "").lower(), "other")


def error_of_document(document: Any, status: int | None = None) -> ProviderError:
    """
    The error that a container wrote, inside a reply or instead of it.

    Args:
        document: ``{"error": text, "error_type": …}``, ``{"error": {"message": …, "type": …, "code": …}}``, or the
            same without the frame.
        status: the status that the container answered with, where it was no reply.
    """
    outer: Mapping[str, Any] = document if isinstance(document, Mapping) else {"error": document}
    error = outer.get("error") or outer
    inner: Mapping[str, Any] = error if isinstance(error, Mapping) else {"message": error}
    message = str(inner.get("message") or outer.get("message") or "the container reported an error")
    if len(message) > _LONGEST:
        message = f"{message[:_LONGEST]}… ({len(message)} characters)"
    kinds = (inner.get("type"), outer.get("error_type"), inner.get("code"))
    cls = next((_ERRORS[kind.lower()] for kind in kinds if isinstance(kind, str) and kind.lower() in _ERRORS), None)
    if cls is None:
        code = status or next(filter(_is_status, (inner.get("code"), outer.get("code"))), None)
        # the failed dependency of 424 is the model
        classified = error_for_status(None if code == 424 else code, message, provider=PROVIDER)
        classified.status = None
    else:
        classified = cls(message, provider=PROVIDER)
    if type(classified) is InvalidRequestError and any(words in message.lower() for words in _OVERFLOW):
        return ContextOverflowError(message, provider=PROVIDER)
    return classified


def _is_error(record: Mapping[str, Any]) -> bool:
    if record.get("error") or record.get("object") == "error":
        return True
    return _is_status(record.get("code")) and "message" in record


def _is_status(code: Any) -> bool:
    return type(code) is int and 400 <= code < 600


def _texts(content: Any) -> Iterator[str]:
    """The text of a field: text, several of it, or parts that have it; ``None`` is none."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            yield from _texts(part.get("text") if isinstance(part, Mapping) else part)
    elif content is not None:
        raise TypeError(f"text must be a string, but got {content!r:.100}")


def _parsed(data: bytes) -> Any:
    try:
        return from_json(data)
    except ValueError:
        raise _no_json(data) from None


def _may_go_on(data: bytes) -> bool:
    """Whether it is the beginning of JSON, cut off anywhere."""
    try:
        from_json(data.decode(errors="ignore"), allow_partial=True)
    except ValueError:
        return False
    return True


def _no_format(data: bytes) -> MalformedResponseError:
    return MalformedResponseError(
        "the payload must be lines of JSON or server-sent events, but got "
        f"{data.decode(errors='replace')[:_SHOWN]!r}: give a decoder as payload=",
        provider=PROVIDER,
        retryable=False,
    )


def _no_json(data: bytes) -> MalformedResponseError:
    return MalformedResponseError(
        f"a record of the payload must be JSON, but got {data.decode(errors='replace')!r:.200}", provider=PROVIDER
    )
