"""What every adapter is."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextvars import ContextVar, copy_context
from typing import Any, ClassVar, Literal, Self, TypeVar

from reactivex import Observable

from rxloop.adapters.text_stream import StreamRequest, TextStream, append_text, begin_text, text_step
from rxloop.breaker import Breaker
from rxloop.errors import ConfigurationError
from rxloop.reclaim import HistoryResult, window_of
from rxloop.steps import Conversation, Step, StepResult, ToolResult
from rxloop.usage import Usage

__all__ = ("Adapter",)

T = TypeVar("T")

_running: ContextVar[frozenset[int] | set[int]] = ContextVar("rxloop_running_adapters", default=frozenset())
"""The adapters whose synchronous run the context belongs to."""


class Adapter:
    """
    One provider behind the engine: all knowledge of a wire format, none of the loop.

    A provider of plain text implements `do_stream`, and everything else is given. One with a wire format of its own
    implements `begin`, `step` and `append`: ``step`` does the I/O; the rest is pure and never changes what it is given.
    A conversation is the provider's own JSON-able messages.
    """

    provider: ClassVar[str]
    """The name that events and errors carry."""

    model: str
    """The model that is asked."""

    default_max_steps: int = 16
    """The step cap of a turn that does not say otherwise."""

    max_steps_limit: int | None = None
    """The highest step cap that a turn may ask for."""

    default_breaker: Breaker | None = None
    """The failure breaker of a turn that does not say otherwise."""

    output_mode: Literal["cooperative", "coercive"] = "cooperative"
    """How a structured answer is asked for beside tools, in a turn that does not say otherwise."""

    forces_tools: bool = True
    """Whether a step can make the model call a tool."""

    malformed_retries: int = 0
    """How many malformed calls a turn answers with a corrective step."""

    @property
    def supports_tools(self) -> bool:
        """Whether a turn may have tools. A class may say so itself; a stream of text has none."""
        return not self._implements("do_stream")

    def check_tools(self, tools: Sequence[Any]) -> None:
        """
        Check the tools that a turn asks for, when it is made and before every step.

        Raises:
            ConfigurationError: there are some, and the adapter supports none.
        """
        if tools and not self.supports_tools:
            names = ", ".join(repr(_name_of(item)) for item in tools)
            raise ConfigurationError(f"{type(self).__name__} supports no tools, but got {names}")

    async def do_stream(self, request: StreamRequest) -> TextStream:
        """
        Ask the provider for a reply in plain text.

        The whole interface of a provider without a tool loop: `begin`, `step` and `append` are built on it.

        Args:
            request: everything of the step.

        Raises:
            Exception: `classify_error` sees it, and the subscriber gets it.
        """
        raise self._incomplete("step")

    def classify_error(self, error: Exception) -> Exception:
        """
        What a subscriber gets for an error of `do_stream`, or of the text that it returned.

        It becomes the cause of another one. Errors of rxloop's pass by; those of any other kind are not retried. The
        same again by default.
        """
        return error

    def begin(self, conversation: Conversation, prompt: Any) -> list[Mapping[str, Any]]:
        """
        The conversation with a user's message at its end.

        Args:
            conversation: what was said before.
            prompt: text, or the provider's own content blocks; ``None`` adds nothing. With `do_stream`: text.

        Raises:
            ConfigurationError: the prompt is empty, or the conversation could not be sent; or the class implements
                neither `step` nor `do_stream`.
        """
        if not self._implements("do_stream"):
            raise self._incomplete("begin")
        for name in ("provider", "model"):
            value = getattr(self, name, None)
            if not isinstance(value, str) or not value:
                raise ConfigurationError(
                    f"{type(self).__name__} must have a {name}, which is a non-empty string, but got {value!r}"
                )
        return begin_text(conversation, prompt)

    def step(self, step: Step) -> Observable[Any]:
        """
        One request as a cold observable: events as they arrive, the `StepResult` last.

        The adapter keeps ``step.draft`` pointing to the reply in the making.

        Raises:
            ConfigurationError: the class implements neither `step` nor `do_stream`, or tools are asked of the latter.
        """
        if not self._implements("do_stream"):
            raise self._incomplete("step")
        self.check_tools(step.tools)
        return text_step(
            step,
            provider=self.provider,
            model=self.model,
            do_stream=self.do_stream,
            classify=self.classify_error,
        )

    def append(
        self, conversation: Conversation, result: StepResult, tool_results: Sequence[ToolResult]
    ) -> list[Mapping[str, Any]]:
        """
        The conversation with a reply and the results of its calls, exactly one per call, at its end.

        Raises:
            ConfigurationError: the class implements neither this nor `do_stream`.
        """
        if not self._implements("do_stream"):
            raise self._incomplete("append")
        return append_text(conversation, result, tool_results)

    def from_history(self, history: Iterable[tuple[Literal["user", "assistant"], str]]) -> list[Mapping[str, Any]]:
        """
        A conversation of plain texts, such as a client remembers one: without calls, results and reasoning.

        Blank texts are left out, and so is what the assistant said before the user's first text, which no provider
        takes.

        Args:
            history: who said what, oldest first.

        Raises:
            ConfigurationError: somebody else said something.
        """
        conversation: list[Mapping[str, Any]] = []
        for role, text in history:
            if role not in ("user", "assistant"):
                raise ConfigurationError(f"in a history a user or an assistant must speak, but got {role!r:.100}")
            if not text.strip():
                continue
            if role == "user":
                conversation = self.begin(conversation, text)
            elif conversation:
                reply = StepResult(text, (), Usage(), "stop", message=self.reply_message(text))
                conversation = self.append(conversation, reply, ())
        return conversation

    def reply_message(self, text: str) -> Mapping[str, Any]:
        """A reply of plain text in the provider's own format; ``role`` and ``content`` by default."""
        return {"role": "assistant", "content": text}

    def native_output(self, schema: Mapping[str, Any]) -> bool:
        """
        Whether the model has a way of its own to give a structured answer; not by default.

        Args:
            schema: JSON schema of the answer, an object.
        """
        return False

    def context_window(self) -> int | None:
        """How many tokens the model takes; ``None`` where that is not known, by default what its name tells."""
        return window_of(self.model)

    def prompt_tokens(self, result: StepResult) -> int:
        """How many tokens the prompt of this reply had; 0 where the provider's figures do not tell."""
        return result.usage.input_tokens

    def check_native_output(self, schema: Mapping[str, Any]) -> None:
        """
        Check a schema that a turn asks for in the provider's own way because its caller said so.

        Args:
            schema: JSON schema of the answer, an object.

        Raises:
            ConfigurationError: the provider's own way cannot express it; nothing is refused by default.
        """

    def history_results(self, conversation: Conversation) -> Sequence[HistoryResult]:
        """The tool results of a conversation, oldest first; none by default, so that none can give way to a note."""
        return ()

    def with_notes(self, conversation: Conversation, notes: Mapping[tuple[int, int], str]) -> list[Mapping[str, Any]]:
        """The conversation with a note in place of each of these results, which stay results of their calls."""
        return list(conversation)

    def after_change(self, conversation: Conversation, index: int = 0) -> list[Mapping[str, Any]]:
        """
        What of a conversation is still accepted after something before it was changed; all of it by default.

        Args:
            conversation: with the change in it.
            index: the message after the change; 0 where the tools or the system prompt were changed.
        """
        return list(conversation)

    def correct(self, conversation: Conversation, result: StepResult) -> list[Mapping[str, Any]]:
        """What is sent after a reply that the provider called malformed; the same again by default."""
        return list(conversation)

    async def generate(self, step: Step) -> StepResult:
        """
        The same step consumed to its end: one request, no tools run.

        Raises:
            RxLoopError: the step failed.
        """
        ended: asyncio.Future[StepResult] = asyncio.get_running_loop().create_future()

        def on_next(item: Any) -> None:
            if type(item) is StepResult and not ended.done():
                ended.set_result(item)

        def on_error(error: Exception) -> None:
            if not ended.done():
                ended.set_exception(error)

        subscription = self.step(step).subscribe(on_next, on_error)
        try:
            return await ended
        finally:
            subscription.dispose()

    async def aclose(self) -> None:
        """Close what the adapter opened itself; nothing by default."""

    def close(self) -> None:
        """
        Close from synchronous code, after `rxloop.Turn.result_sync`: the adapter's event loop too.

        Raises:
            ConfigurationError: an event loop runs here, or a synchronous run on this adapter is not at its end.
        """
        synchronous: _Synchronous | None = self.__dict__.get("_synchronous")
        if synchronous is None:
            return
        if _in_loop():
            raise ConfigurationError("close() must not be called where an event loop runs: call it after the loop")
        if not synchronous.lock.acquire(blocking=False):
            raise ConfigurationError("close() must not be called while result_sync() runs: wait for its end")
        try:
            if not synchronous.closed:
                # who waits for the lock takes another loop
                synchronous.closed = True
                del self.__dict__["_synchronous"]
                try:
                    synchronous.runner.run(self.aclose())
                finally:
                    if synchronous.finalizer is not None:
                        synchronous.finalizer()
        finally:
            synchronous.lock.release()

    async def __aenter__(self) -> Self:
        """Leaving closes the adapter."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the adapter."""
        await self.aclose()

    def __enter__(self) -> Self:
        """Leaving closes the adapter, from synchronous code."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the adapter."""
        self.close()

    def run_sync(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """
        Run a coroutine to its end from synchronous code.

        The event loop lives as long as the adapter, so that the connections of its client, which belong to the loop,
        are good for the next call too. Calls from several threads take turns.

        Raises:
            ConfigurationError: a synchronous run on this adapter is waiting for the caller.
        """
        if id(self) in _running.get():
            coroutine.close()
            raise ConfigurationError(
                "result_sync() must not be called by a tool of a turn that runs by result_sync() on the same adapter: "
                "make the tool async and await result(), or give it an adapter of its own"
            )
        while True:
            synchronous: _Synchronous = self.__dict__.setdefault("_synchronous", _Synchronous())
            with synchronous.lock:
                if synchronous.closed:
                    continue
                if synchronous.finalizer is None:
                    synchronous.finalizer = weakref.finalize(self, _close, synchronous.runner)
                context = copy_context()
                context.run(_running.set, {*_running.get(), id(self)})
                return synchronous.runner.run(coroutine, context=context)

    def _implements(self, name: str) -> bool:
        return getattr(getattr(self, name), "__func__", None) is not getattr(Adapter, name)

    def _incomplete(self, missing: str) -> ConfigurationError:
        if missing == "step" or not self._implements("step"):
            return ConfigurationError(
                f"{type(self).__name__} must implement step(), or do_stream() for plain text, but implements neither"
            )
        return ConfigurationError(f"{type(self).__name__} implements step(), and so must implement {missing}() too")


def _name_of(item: Any) -> Any:
    return item.get("name", item) if isinstance(item, Mapping) else getattr(item, "name", item)


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _close(runner: asyncio.Runner) -> None:
    if not _in_loop():
        runner.close()
        return
    # an adapter may be dropped where another loop runs, and a thread can run but one
    closing = threading.Thread(target=runner.close)
    closing.start()
    closing.join()


class _Synchronous:
    """The event loop of an adapter's synchronous runs."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.runner = asyncio.Runner()
        self.finalizer: Any = None
        self.closed = False
