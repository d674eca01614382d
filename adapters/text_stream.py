"""A provider that is a stream of text: what it is asked, what it gives, and the step that is made of it."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import NoneType
from typing import Any, TypeAlias, TypeVar, get_args

from reactivex import Observable

from rxloop.adapters.pump import Wire, pump
from rxloop.checks import instance
from rxloop.errors import ConfigurationError, MalformedResponseError, RxLoopError, StreamInterruptedError
from rxloop.events import TextDelta
from rxloop.steps import Conversation, FinishReason, Step, StepResult, ToolResult
from rxloop.usage import Usage

__all__ = ("StreamRequest", "TextStream", "append_text", "begin_text", "text_step")

T = TypeVar("T")

Later: TypeAlias = T | Awaitable[T] | Callable[[], T] | Callable[[], Awaitable[T]]
"""A value, or what gives it once the text has ended."""

_FINISH_REASONS = get_args(FinishReason)
_NO_USAGE = "the provider reported no usage: the reply counts as 0 tokens"


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """
    Everything of a step that a provider is asked.

    Args:
        messages: the conversation, oldest first and never empty: ``{"role": "user" or "assistant", "content": text}``,
            unless the adapter has a ``begin`` of its own.
        system: the system prompt; ``None`` if there is none.
        model: the adapter's model.
        step: the number of the step within its turn, from 0.
        carry: request fields that the provider asked for in an earlier reply of the turn.
    """

    messages: tuple[Mapping[str, Any], ...]
    system: Any
    model: str
    step: int
    carry: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TextStream:
    """
    A reply as a stream of text.

    What is known only at the end may be given as a value, an awaitable, or a function of no arguments that returns
    either. It is read once, and only after the last piece; never if the text failed or was left.

    Args:
        text: the pieces of text; an empty one is skipped. Its iterator is closed on every way out; a generator is
            always begun, so that its ``finally`` runs and can close what `Adapter.do_stream` opened.
        finish_reason: why the reply ended, in rxloop's words; ``None`` says that it broke off, which is a
            `rxloop.StreamInterruptedError`.
        usage: tokens; ``None`` if the provider does not tell, which counts as 0 and gives a warning.
        raw_stop_reason: the provider's word for why the reply ended.
        raw_usage: the provider's own figures.
        warnings: what the caller should know. Read at the end too, so that a list may grow meanwhile.

    Raises:
        ConfigurationError: ``text`` is not an asynchronous iterable, or ``warnings`` is no sequence.
    """

    text: AsyncIterable[str]
    finish_reason: Later[FinishReason | None] = "stop"
    usage: Later[Usage | None] = None
    raw_stop_reason: Later[str | None] = None
    raw_usage: Later[Mapping[str, Any] | None] = None
    warnings: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not hasattr(self.text, "__aiter__"):
            raise ConfigurationError(f"text must be an asynchronous iterable of str, but got {self.text!r:.200}")
        if isinstance(self.warnings, str) or not isinstance(self.warnings, Sequence):
            raise ConfigurationError(f"warnings must be a sequence of str, but got {self.warnings!r:.200}")


def begin_text(conversation: Any, prompt: Any) -> list[Mapping[str, Any]]:
    """
    A conversation of plain text with a user's message at its end.

    Many chat templates demand that the roles alternate: a user's message after another one joins it.

    Raises:
        ConfigurationError: the prompt is empty, or the conversation could not be sent.
    """
    if isinstance(conversation, (str, bytes, Mapping)) or not hasattr(conversation, "__iter__"):
        raise ConfigurationError(f"conversation must be a list of messages, but got {conversation!r:.200}")
    messages: list[Mapping[str, Any]] = list(conversation)
    for message in messages:
        known = isinstance(message, Mapping) and message.get("role") in ("user", "assistant")
        if not known or not isinstance(message.get("content"), str):
            raise ConfigurationError(
                f"a message must have a role, user or assistant, and content, which is text, but got {message!r:.200}"
            )
    if prompt is None:
        if not messages:
            raise ConfigurationError("a turn needs a prompt or a conversation, but got neither")
        return messages
    if not isinstance(prompt, str) or not prompt.strip():
        raise ConfigurationError(f"prompt must be non-empty text, but got {prompt!r:.200}")
    if messages and messages[-1]["role"] == "user":
        last = messages.pop()
        return [*messages, {**last, "content": f"{last['content']}\n\n{prompt}"}]
    return [*messages, {"role": "user", "content": prompt}]


def append_text(
    conversation: Conversation, result: StepResult, tool_results: Sequence[ToolResult]
) -> list[Mapping[str, Any]]:
    """
    The conversation with a reply at its end; one without text adds nothing.

    Raises:
        ConfigurationError: there are results of tools, which plain text has no place for.
    """
    if tool_results:
        names = ", ".join(repr(answer.name) for answer in tool_results)
        raise ConfigurationError(f"a conversation of plain text must have no tool results, but got those of {names}")
    return [*conversation] if result.message is None else [*conversation, result.message]


def text_step(
    step: Step,
    *,
    provider: str,
    model: str,
    do_stream: Callable[[StreamRequest], Awaitable[TextStream]],
    classify: Callable[[Exception], Exception],
) -> Observable[Any]:
    """
    One streamed request: a `TextDelta` per piece of text, the `StepResult` last.

    Cold: every subscription asks anew. Backpressure, disposal and subscribers that raise are the pump's.

    Args:
        step: what is asked.
        provider: the name that errors carry.
        model: the model that is asked.
        do_stream: asks; called once per subscription.
        classify: turns a provider's error into one of rxloop's, whose cause it becomes; those pass by as they are.
    """

    def classified(error: Exception) -> Exception:
        if isinstance(error, RxLoopError):
            return error
        known = classify(error)
        if known is not error and not known.__suppress_context__:
            # unless a cause was given, or none on purpose
            known.__cause__ = error
        return known

    @asynccontextmanager
    async def connect() -> AsyncIterator[Wire[Any]]:
        step.draft = decoder = _TextDecoder(step.index)
        request = StreamRequest(tuple(step.conversation), step.system, model, step.index, step.carry)
        stream: Any = do_stream(request)
        if inspect.isawaitable(stream):
            stream = await stream
        if not isinstance(stream, TextStream):
            raise ConfigurationError(
                f"do_stream must be a coroutine function that returns a TextStream, but got {stream!r:.200}"
            )
        decoder.warnings = stream.warnings
        iterator = stream.text.__aiter__()
        items = _items(iterator, stream, provider)
        try:
            yield Wire(items, decoder)
        finally:
            # a failure to close must not hide why the reply was left
            with contextlib.nullcontext() if decoder.complete else contextlib.suppress(Exception):
                await _close(items, iterator, stream)

    return pump(connect, classify=classified)


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a reply once its text has ended."""

    name: str
    value: Any


_TYPES: Mapping[str, type] = {"usage": Usage, "raw_usage": Mapping, "raw_stop_reason": str}
_AFTERWARDS = (*_TYPES, "finish_reason")
"""The last one ends the reply; what was read before it is kept if it cannot be had."""


async def _items(pieces: AsyncIterator[Any], stream: TextStream, provider: str) -> AsyncGenerator[str | _Known, None]:
    async for piece in pieces:
        if not isinstance(piece, str):
            raise MalformedResponseError(f"a piece of text must be str, but got {piece!r:.200}", provider=provider)
        yield piece
    for name in _AFTERWARDS:
        value = getattr(stream, name)
        if callable(value):
            value = value()
        if inspect.isawaitable(value):
            value = await value
        _check(name, value, provider)
        yield _Known(name, value)


def _check(name: str, value: Any, provider: str) -> None:
    if name == "finish_reason":
        if value is None:
            raise StreamInterruptedError(
                "a reply must have a finish reason, but the text ended without one", provider=provider
            )
        if value not in _FINISH_REASONS:
            raise ConfigurationError(
                f"finish_reason must be one of {', '.join(_FINISH_REASONS)}, but got {value!r:.200}: "
                "the provider's own word is raw_stop_reason"
            )
    else:
        instance(name, value, _TYPES[name], NoneType)


async def _close(items: AsyncGenerator[Any, None], iterator: AsyncIterator[Any], stream: TextStream) -> None:
    try:
        await items.aclose()
        for part in (iterator,) if iterator is stream.text else (iterator, stream.text):
            closing = getattr(part, "aclose", None)
            if closing is not None:
                await closing()
    finally:
        for name in _AFTERWARDS:
            await _abandon(getattr(stream, name))


async def _abandon(value: Any) -> None:
    """Let go of an awaitable that nobody may have waited for."""
    if inspect.iscoroutine(value):
        value.close()
    elif isinstance(value, asyncio.Future):
        value.cancel()
        await asyncio.gather(value, return_exceptions=True)


class _TextDecoder:
    """A reply in the making. Fed with pieces of text, and then with what is known of them."""

    __slots__ = ("_known", "_pieces", "_step", "complete", "warnings")

    def __init__(self, step: int) -> None:
        self._step = step
        self._pieces: list[str] = []
        self._known: dict[str, Any] = {}
        self.warnings: Sequence[str] = ()
        self.complete = False

    def feed(self, item: str | _Known) -> Sequence[TextDelta]:
        if isinstance(item, _Known):
            self._known[item.name] = item.value
            self.complete = item.name == "finish_reason"
            return ()
        if not item:
            return ()
        self._pieces.append(item)
        return (TextDelta(self._step, item),)

    def close(self) -> tuple[StepResult]:
        return (self.draft(),)

    def draft(self) -> StepResult:
        text = "".join(self._pieces)
        known = self._known
        usage = known.get("usage")
        warnings = tuple(self.warnings)
        if self.complete and usage is None:
            warnings += (_NO_USAGE,)
        return StepResult(
            text=text,
            tool_calls=(),
            usage=Usage() if usage is None else usage,
            finish_reason=known.get("finish_reason", "aborted"),
            raw_stop_reason=known.get("raw_stop_reason"),
            raw_usage=dict(known.get("raw_usage") or {}),
            # models refuse a message without text
            message={"role": "assistant", "content": text} if text.strip() else None,
            warnings=warnings,
        )
