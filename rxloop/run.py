"""One subscription to a turn: its history, and how it is concluded."""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from contextvars import copy_context
from typing import Any

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable, SingleAssignmentDisposable
from reactivex.scheduler import CurrentThreadScheduler

from rxloop.adapters.base import Adapter
from rxloop.breaker import Breaker
from rxloop.context import Context
from rxloop.demand import current_demand
from rxloop.errors import ConfigurationError, RxLoopError, describe
from rxloop.events import TurnFinished, TurnStarted
from rxloop.operators import MalformedBudget, OutputState
from rxloop.reclaim import Reclaim
from rxloop.steps import (
    Conversation,
    FinishReason,
    Partial,
    Step,
    StepResult,
    StepSettled,
    ToolCall,
    ToolResult,
    TurnResult,
)
from rxloop.tools import Tool
from rxloop.usage import Usage

__all__ = ("SUBSCRIBERS_OWN", "Run", "announce", "conclude", "unique_names")

_MAX_RESUMES = 8
"""How often a turn goes on by itself after the provider paused."""

SUBSCRIBERS_OWN = (Exception, asyncio.CancelledError)
"""What a subscriber may raise that ends its own subscription and no more."""

_CANCELLED = "cancelled: the turn ended before the tool did"


class Run:
    """
    The state of one subscription.

    Args:
        adapter: the provider.
        conversation: what the first request sends.
        system: the system prompt.
        tools: asked before every step for the tools and the provider's own declarations.
        breaker: the setting of the failure breaker.
        on_end: told once how the run ended.
        turn_id: its name; a random one if not given.
        output: the structured answer that is asked for.
        reclaim: when old tool results give way, with the window known.
    """

    def __init__(
        self,
        adapter: Adapter,
        conversation: Conversation,
        *,
        system: Any,
        tools: Callable[[], Iterable[Tool | Mapping[str, Any]]],
        breaker: Breaker | None,
        on_end: Callable[[TurnResult], None] | None,
        turn_id: str | None,
        output: OutputState | None = None,
        reclaim: Reclaim | None = None,
    ) -> None:
        self.adapter = adapter
        self.turn_id = turn_id or f"turn_{uuid.uuid4().hex}"
        self.output = output
        self._context = None if reclaim is None else Context(adapter, reclaim)
        self._overflowed = False
        self._declared: list[Any] | None = None
        self.breaker = None if breaker is None else breaker.start()
        self.malformed = MalformedBudget(adapter.malformed_retries)
        self.tools: dict[str, Tool] = {}
        self.on_end = on_end
        self.opened = False
        self.ended: TurnResult | None = None
        self._system = system
        self._list_tools = tools
        self._resolved: dict[str, Tool] = {}
        self._resumes = 0
        self._stopped = False
        self._text = self._prefix = ""
        self._last: StepResult | None = None
        self._usage = Usage()
        self._tool_calls: list[ToolCall] = []
        self._tool_results: list[ToolResult] = []
        self._warnings: list[str] = []
        self.fault: Exception | None = None
        self._step = Step(0, conversation)

    def opening(self) -> TurnStarted:
        """The first event."""
        self.opened = True
        return TurnStarted(self.turn_id, self.adapter.provider, self.adapter.model)

    def begin(self) -> Step:
        """The first step."""
        self._step = self._next_step(0, self._step.conversation, {})
        if self._context is not None:
            self._step, _ = self._context.fitted(self._step)
        return self._step

    def advance(self, step: Step, settled: StepSettled) -> Step | None:
        """The step that a settled one asks for, or ``None`` when the turn has its answer."""
        result = settled.result
        if result.final:
            return None
        # corrections have a budget of their own
        corrected = result.resume and (result.correction is not None or bool(result.answered))
        if corrected:
            goes_on = True
        elif result.resume:
            self._resumes += 1
            goes_on = self._resumes <= _MAX_RESUMES
        else:
            goes_on = bool(result.tool_calls) and result.finish_reason not in ("content-filter", "error")
        if not goes_on:
            return None
        if result.malformed:
            conversation = self.adapter.correct(step.conversation, result)
        else:
            conversation = self.adapter.append(step.conversation, result, result.with_answered(settled.tool_results))
        if result.correction is not None:
            conversation = self.adapter.begin(conversation, result.correction)
        following = self._next_step(step.index + 1, conversation, {**step.carry, **result.carry})
        if self._context is not None:
            self._context.observe(step, result)
            following, fits = self._context.fitted(following)
            if not fits:
                self._overflowed = True
                return None
        # from here on nothing fails: what counts as past must not be counted as present too
        self._text = self._prefix + result.text
        # the reply to a pause goes on in the middle of the answer
        paused = result.resume and not (result.malformed or corrected)
        self._prefix = self._text if paused else ""
        self._last = result
        self._usage = self._usage + result.usage
        self._tool_calls += result.tool_calls
        self._tool_results += settled.tool_results
        self._warnings += result.warnings
        self._step = following
        return following

    def request(self, step: Step) -> Observable[Any]:
        """The provider's side of a step."""
        if self.output is not None:
            self.output.ask(step)
        step.begun = True
        return self.adapter.step(step)

    def nudge(self, text: str) -> None:
        """Add a message to the model to the request that is about to go out."""
        self._step.conversation = self.adapter.begin(self._step.conversation, text)

    def resolved(self, tool: Tool) -> None:
        """A second look-up found a tool: it can run, and is declared from the next step on."""
        self._resolved[tool.name] = self.tools[tool.name] = tool

    def stop(self) -> None:
        """The stop signal came."""
        self._stopped = True

    def partial(self) -> Partial:
        """What the run has now. A reply that its adapter cannot keep is left out, and ``fault`` tells why."""
        try:
            return self._with_reply()
        except Exception as error:
            self.fault = error
            return self._without_reply()

    def failure(self) -> Exception | None:
        """What a run that has come to its end fails with all the same: its last reply was to be corrected."""
        last = self._step.result or self._last
        return None if last is None or self._stopped else last.failure

    def _without_reply(self) -> Partial:
        step = self._step
        return Partial(
            self._text,
            tuple(self._tool_results),
            self._usage,
            list(step.conversation),
            step.index + 1 if step.begun else step.index,
            tuple(self._tool_calls),
            tuple(self._warnings),
        )

    def _with_reply(self) -> Partial:
        step = self._step
        reply = step.result
        if reply is None and step.draft is not None:
            reply = step.draft.draft()
            if self.output is not None:
                reply = self.output.unfinished(reply)
        if reply is None:
            return self._without_reply()
        text = self._prefix + reply.text
        answers = _in_call_order(reply, step.tool_results)
        # exactly one result per call: the real one, or an error that says that there is none
        sealed = [result or ToolResult(call.call_id, call.name, error=_CANCELLED) for call, result in answers]
        return Partial(
            text if text or step.result is not None else self._text,
            (*self._tool_results, *(result for _, result in answers if result is not None)),
            self._usage + reply.usage,
            self.adapter.append(step.conversation, reply, reply.with_answered(sealed)),
            step.index + 1,
            (*self._tool_calls, *reply.tool_calls),
            (*self._warnings, *reply.warnings),
        )

    def result(self, error: Exception | None = None, *, disposed: bool = False) -> TurnResult:
        """How the run ended."""
        partial = self.partial()
        last = self._step.result or self._last
        reason: FinishReason = "other" if last is None else last.finish_reason
        if error is not None:
            reason = "error"
        elif disposed or self._stopped:
            reason = "aborted"
        elif self._overflowed:
            reason = "length"
        output = self.output if self.output is not None and self.output.done else None
        return TurnResult(
            text=partial.text if output is None else output.payload,
            output=None if output is None else output.value,
            finish_reason=reason,
            raw_stop_reason=None if last is None else last.raw_stop_reason,
            usage=partial.usage,
            steps=partial.steps,
            tool_calls=partial.tool_calls,
            tool_results=partial.tool_results,
            conversation=partial.conversation,
            error=error,
            warnings=partial.warnings,
        )

    def _next_step(self, index: int, conversation: Conversation, carry: Mapping[str, Any]) -> Step:
        listed = list(self._list_tools())
        executable = unique_names(listed)
        resolved = [found for name, found in self._resolved.items() if name not in executable]
        executable.update((found.name, found) for found in resolved)
        # a provider's own declaration goes before the tool's: such as bash, which it knows and the caller runs
        native = {item.get("name") for item in listed if isinstance(item, Mapping)}
        declared: list[Any] = [
            item.declaration if isinstance(item, Tool) else item
            for item in (*listed, *resolved)
            if not (isinstance(item, Tool) and item.name in native)
        ]
        self.adapter.check_tools(declared)
        self.tools.clear()
        self.tools.update(executable)
        if self._declared is not None and declared != self._declared:
            conversation = self.adapter.after_change(conversation)
        self._declared = declared
        tools = declared if self.output is None else self.output.declared(declared)
        return Step(index, conversation, self._system, tools, carry)


def unique_names(tools: Iterable[Tool | Mapping[str, Any]]) -> dict[str, Tool]:
    """
    The tools that can run, by name.

    Raises:
        ConfigurationError: two have the same name.
    """
    executable: dict[str, Tool] = {}
    for item in tools:
        if isinstance(item, Tool) and executable.setdefault(item.name, item) is not item:
            raise ConfigurationError(f"tool names must be unique, but {item.name!r} is given twice")
    return executable


def _in_call_order(reply: StepResult, recorded: Iterable[ToolResult]) -> list[tuple[ToolCall, ToolResult | None]]:
    """Every call with its result, where it has one; an id that comes twice has two."""
    results: defaultdict[str, deque[ToolResult]] = defaultdict(deque)
    for result in recorded:
        results[result.call_id].append(result)
    return [(call, results[call.call_id].popleft() if results[call.call_id] else None) for call in reply.tool_calls]


def announce(run: Run) -> Callable[[Observable[Any]], Observable[Any]]:
    """
    Open a turn's events.

    .. marble::
        --a--b--c--|
        [ announce(run) ]
        T-a--b--c--|

    ``T`` is `TurnStarted`, emitted on subscription. Whoever disposes on it prevents the source.
    """

    def operator(source: Observable[Any]) -> Observable[Any]:
        def subscribe(
            observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            subscription = SingleAssignmentDisposable()

            demand = current_demand()

            def begin(*_: Any) -> None:
                if subscription.is_disposed:
                    return
                if demand is not None and demand.closed:
                    demand.when_open(begin)
                    return
                observer.on_next(run.opening())
                if not subscription.is_disposed:
                    subscription.disposable = source.subscribe(observer, scheduler=scheduler)

            # on the trampoline: whoever disposes on the first event must have something to dispose
            context = copy_context()
            starting = CurrentThreadScheduler.singleton().schedule(lambda *_: context.run(begin))
            return CompositeDisposable(starting, subscription)

        return Observable(subscribe)

    return operator


def conclude(run: Run) -> Callable[[Observable[Any]], Observable[Any]]:
    """
    Close a turn's events, and keep what it came to.

    .. marble::
        T-a--b--c--|
        [ conclude(run) ]
        T-a--b--c--(F|)

    ``T`` is `TurnStarted`, which comes first even if the turn is stopped before it began; ``F`` is `TurnFinished`. A
    failure gets the run's `Partial`. A subscriber that raises ends
    its own subscription with what it raised. Whatever ends the run, disposal included, ``on_end`` is told once.
    """

    def operator(source: Observable[Any]) -> Observable[Any]:
        def subscribe(
            observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            subscription = SingleAssignmentDisposable()
            demand = current_demand()
            over = left = False
            forward = observer.on_next

            def end(error: Exception | None = None, *, disposed: bool = False) -> TurnResult:
                nonlocal over
                over = True
                subscription.dispose()
                result = run.ended = run.result(error, disposed=disposed)
                if run.on_end is not None:
                    run.on_end(result)
                return result

            def on_next(event: Any) -> None:
                try:
                    forward(event)
                except SUBSCRIBERS_OWN as error:
                    on_error(error)  # type: ignore[arg-type]
                except BaseException:
                    # an interrupt is nobody's to keep: the run is let go, and the interrupt goes on
                    dispose()
                    raise

            def on_error(error: Exception) -> None:
                if over:
                    return
                if isinstance(error, RxLoopError):
                    error.partial = run.partial()
                if run.fault is not None and run.fault is not error:
                    error.add_note(f"what had arrived of the reply could not be kept: {describe(run.fault)}")
                try:
                    end(error)
                finally:
                    observer.on_error(error)

            def on_completed() -> None:
                if over:
                    return
                result = run.result()
                failure = run.fault or run.failure()
                if failure is not None:
                    on_error(failure)
                    return
                try:
                    end()
                except SUBSCRIBERS_OWN as error:
                    observer.on_error(error)  # type: ignore[arg-type]
                    return
                finished = TurnFinished(
                    result.text,
                    result.output,
                    result.finish_reason,
                    result.raw_stop_reason,
                    result.usage,
                    result.steps,
                    result.tool_calls,
                )
                last: list[Any] = [finished] if run.opened else [run.opening(), finished]
                # a stop may come while the reader lags
                if demand is not None and demand.closed:
                    demand.when_open(lambda: say(last))
                else:
                    say(last)

            def say(last: list[Any]) -> None:
                if left:
                    return
                try:
                    for event in last:
                        forward(event)
                except SUBSCRIBERS_OWN as error:
                    observer.on_error(error)  # type: ignore[arg-type]
                else:
                    observer.on_completed()

            def dispose() -> None:
                nonlocal left
                left = True
                if not over:
                    end(disposed=True)

            subscription.disposable = source.subscribe(on_next, on_error, on_completed, scheduler=scheduler)
            return Disposable(dispose)

        return Observable(subscribe)

    return operator
