"""A whole agentic turn as one observable."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import NoneType
from typing import Any, Literal, NoReturn, TypeAlias

from reactivex import Observable, abc, compose

from rxloop.adapters.base import Adapter
from rxloop.breaker import Breaker
from rxloop.channel import Channel
from rxloop.checks import function_or_none, instance, whole
from rxloop.clock import running_loop
from rxloop.errors import ConfigurationError
from rxloop.events import ContextReclaimed, StepStarted, TurnEvent
from rxloop.hot import HotTurn
from rxloop.limits import Limits
from rxloop.operators import (
    OutputState,
    Renew,
    RetryPolicy,
    Stop,
    loop_steps,
    retry_before_first_emit,
    retry_malformed_call,
    stall_watchdog,
    step_cap,
    step_deadline,
    stop_on,
    structured_output,
    tool_dispatch,
    turn_deadline,
    usage_limit,
    usage_scan,
)
from rxloop.output import Output
from rxloop.reclaim import Reclaim
from rxloop.run import Run, announce, conclude, unique_names
from rxloop.steps import Conversation, Step, TurnResult
from rxloop.tools import ResolveTool, Tool, tool

__all__ = ("Turn", "TurnStream")

Tools: TypeAlias = "Iterable[Tool | Callable[..., Any] | Mapping[str, Any]]"


class Turn(Observable[TurnEvent]):
    """
    One agentic turn: prompt, model step, tool calls, model step, …, answer.

    A turn is a value and a cold observable: every subscription runs it anew, with a state of its own. Standard
    operators compose it with anything; ``async for event in turn`` iterates over it; ``await turn.result()`` runs it
    to its end. Disposing a subscription closes the reply, cancels running tools, and nothing is emitted after it.

    Args:
        adapter: the provider.
        prompt: the user's message: text, or the provider's content blocks. ``None`` continues a conversation as it is.
        tools: functions, `Tool` values, or the provider's own declarations, of tools that it runs itself or, beside a
            `Tool` of the same name, of tools that it knows and the caller runs; or a callable
            that returns them, asked before every step.
        output: what the answer has to be: a pydantic model, a dataclass, a TypedDict, any other type that pydantic
            knows, a JSON schema, or an `Output` of one of these. The result's ``output`` is validated and typed.
        reclaim: when old tool results give way to short notes, so that the prompt keeps within the model's window; by
            default for models whose window is known by their name, ``None`` for never.
        system: the system prompt: text, or the provider's blocks.
        conversation: what was said before, as an earlier result has it.
        max_steps: how many requests the turn may make; the adapter's default (16) if not given.
        renew: asked when the cap is reached; a strictly larger whole number, or a `Renewal` with a message to the
            model, raises it. Where the last step is kept for a coercive output, it is asked before that step.
        retry: how often and how long to wait before content; twice, from 1 s, by default.
        limits: the clocks and the budget of tokens; none by default.
        stop: ends the turn gracefully: an observable's first value, an ``asyncio.Event``, an awaitable.
        breaker: takes failing tools out; the adapter's default if not given, ``None`` for never.
        resolve_tool_on_miss: second look-up of a tool that is not registered, sync or async.
        concurrency: how many tools run at once.
        sequential: run tools one at a time, in call order.
        on_end: called once per subscription with the `TurnResult`, however it ended, disposal included.
        buffer: the most events that wait for an asynchronous reader.
        turn_id: names the run in `turn_started`; a new random one per subscription by default.
        scheduler: runs every clock; the running event loop's by default.

    Raises:
        ConfigurationError: a value breaks its rule; raised here, before any request.
    """

    def __init__(
        self,
        adapter: Adapter,
        prompt: Any = None,
        *,
        tools: Tools | Callable[[], Tools] = (),
        output: Any = None,
        reclaim: Reclaim | Literal["default"] | None = "default",
        system: Any = None,
        conversation: Conversation = (),
        max_steps: int | None = None,
        renew: Renew | None = None,
        retry: RetryPolicy | None = None,
        limits: Limits | None = None,
        stop: Stop | None = None,
        breaker: Breaker | Literal["default"] | None = "default",
        resolve_tool_on_miss: ResolveTool | None = None,
        concurrency: int = 16,
        sequential: bool = False,
        on_end: Callable[[TurnResult], None] | None = None,
        buffer: int = 256,
        turn_id: str | None = None,
        scheduler: abc.SchedulerBase | None = None,
    ) -> None:
        """See the class."""
        super().__init__(self._subscribe_run)
        instance("adapter", adapter, Adapter)
        instance("limits", limits, Limits, NoneType)
        instance("retry", retry, RetryPolicy, NoneType)
        if reclaim != "default":
            instance("reclaim", reclaim, Reclaim, NoneType)
        if breaker != "default":
            instance("breaker", breaker, Breaker, NoneType)
        instance("scheduler", scheduler, abc.SchedulerBase, NoneType)
        for name, function in (("renew", renew), ("on_end", on_end), ("resolve_tool_on_miss", resolve_tool_on_miss)):
            function_or_none(name, function)
        if inspect.iscoroutinefunction(on_end):
            raise ConfigurationError("on_end must be a plain function, but got a coroutine function")
        if isinstance(conversation, TurnResult):
            raise ConfigurationError("conversation must be messages, but got a TurnResult: give its .conversation")
        self.adapter = adapter
        self.limits = limits or Limits()
        self.max_steps = adapter.default_max_steps if max_steps is None else max_steps
        if adapter.max_steps_limit is not None and self.max_steps > adapter.max_steps_limit:
            raise ConfigurationError(
                f"max_steps must be <= {adapter.max_steps_limit} with {adapter.provider}, but got {max_steps!r}"
            )
        self._buffer = buffer
        self.scheduler = scheduler
        self._renew = renew
        self._retry = retry or RetryPolicy()
        self._breaker = adapter.default_breaker if breaker == "default" else breaker
        self._resolve_tool_on_miss = resolve_tool_on_miss
        self._concurrency = concurrency
        self._sequential = sequential
        self._stop = stop
        self._system = system
        self._on_end = on_end
        self._turn_id = turn_id
        self._reclaim = _with_window(Reclaim() if reclaim == "default" else reclaim, adapter)
        self._lists_tools = callable(tools)
        self._tools = _lister(tools, adapter)
        self._output = None if output is None else output if isinstance(output, Output) else Output(output)
        self._output_mode = self._choose_mode()
        self._conversation = adapter.begin(conversation, prompt)
        # what the pipeline would refuse is refused here, not at the first event
        whole("max_steps", self.max_steps, minimum=1)
        whole("concurrency", concurrency, minimum=1)
        whole("buffer", buffer, minimum=8)
        stop_on(stop)

    def _choose_mode(self) -> str:
        """How the structured answer is asked for."""
        output, adapter = self._output, self.adapter
        if output is None:
            return "auto"
        native = adapter.native_output(output.schema)
        if not native and not adapter.supports_tools:
            raise ConfigurationError(
                f"output needs a provider with tools, or with structured answers of its own, but "
                f"{type(adapter).__name__} has neither"
            )
        fixed = [] if self._lists_tools else self._tools()
        mode = output.mode
        if mode == "auto":
            has_tools = self._lists_tools or self._resolve_tool_on_miss is not None or bool(fixed)
            mode = "native" if native and not has_tools else adapter.output_mode
        elif mode == "native":
            adapter.check_native_output(output.schema)
        state = OutputState(output, mode, None)
        # what the first step would refuse is refused here
        adapter.check_tools(state.declared([item.declaration if isinstance(item, Tool) else item for item in fixed]))
        return mode

    def __repr__(self) -> str:
        return f"<Turn {self.adapter.provider} {self.adapter.model!r}>"

    def _events(self, run: Run, stop: Stop | None = None) -> Observable[Any]:
        """The turn as the pipeline that it is."""
        limits, timers = self.limits, self.scheduler

        def step(step: Step) -> Observable[Any]:
            return run.request(step).pipe(
                stall_watchdog(limits.stall_timeout, first_event_timeout=limits.first_event_timeout, scheduler=timers),
                retry_before_first_emit(self._retry, step=step.index, scheduler=timers),
                retry_malformed_call(run.malformed, step=step.index),
                structured_output(run.output, step=step.index),
                step_deadline(limits.step_timeout, scheduler=timers),
                dispatch(step),
            )

        def dispatch(step: Step) -> Callable[[Observable[Any]], Observable[Any]]:
            return tool_dispatch(
                run.tools,
                step=step.index,
                breaker=run.breaker,
                resolve_tool_on_miss=self._resolve_tool_on_miss,
                on_resolved=run.resolved,
                concurrency=self._concurrency,
                sequential=self._sequential,
                tool_timeout=limits.tool_timeout,
                journal=step,
                scheduler=timers,
            )

        return loop_steps(run.begin, step, run.advance, opening=_opening).pipe(
            self._cap(run),
            usage_scan(),
            usage_limit(
                total_tokens=limits.total_tokens,
                input_tokens=limits.input_tokens,
                output_tokens=limits.output_tokens,
            ),
            announce(run),
            turn_deadline(limits.turn_timeout, scheduler=timers),
            compose(stop_on(self._stop, on_stop=run.stop), stop_on(stop, on_stop=run.stop)),
            conclude(run),
        )

    def _cap(self, run: Run) -> Callable[[Observable[Any]], Observable[Any]]:
        if run.output is None or self._renew is None or not self._reserves:
            return step_cap(self.max_steps, renew=self._renew, nudge=run.nudge)
        return step_cap(self.max_steps - 1, renew=run.output.reserving(self._renew), nudge=run.nudge)

    @property
    def _reserves(self) -> bool:
        """Whether a step of the cap is kept for the answer; of a single one nothing can be kept."""
        return self._output_mode == "coercive" and self.max_steps > 1

    def __aiter__(self) -> TurnStream:
        return self.stream()

    def __iter__(self) -> NoReturn:
        """A turn cannot be iterated over without ``async``."""
        raise TypeError("a turn must be iterated over with `async for`; from synchronous code use result_sync()")

    def run(self, scheduler: abc.SchedulerBase | None = None) -> NoReturn:
        """Blocking on an observable that needs the event loop would block for ever."""
        raise ConfigurationError("a turn has no run(): use `await turn.result()`, or result_sync()")

    def stream(self) -> TurnStream:
        """
        Start a run and iterate over its events: in order, bounded by ``buffer``, with backpressure.

        ``async with turn.stream() as events`` leaves deterministically; leaving early disposes the run. Afterwards
        ``events.result`` is what the run came to.

        Raises:
            ConfigurationError: there is no running event loop.
        """
        return TurnStream(self._run(), self._events, self._buffer)

    def start(
        self, *, turn_id: str | None = None, replay: int = 4096, stop_unwatched_after: float | None = None
    ) -> HotTurn:
        """
        Start a run now, for any number of watchers: a hot observable of its events.

        Args:
            turn_id: names this run in `turn_started`, in place of the turn's own.
            replay: the most events that are kept for those who come late, runs of deltas counted as one. Beyond it the
                oldest are forgotten, `turn_started` excepted.
            stop_unwatched_after: stop the run gracefully when its last watcher left so many seconds ago; if not given,
                it goes on unwatched. A run that nobody has watched yet goes on.

        Raises:
            ConfigurationError: a value breaks its rule, or there is no running event loop.
        """
        return HotTurn(
            self._run(turn_id),
            self._events,
            replay=replay,
            stop_unwatched_after=stop_unwatched_after,
            scheduler=self.scheduler,
        )

    async def result(self) -> TurnResult:
        """
        Run to the end. Cancelling the caller disposes the run.

        Raises:
            RxLoopError: the turn failed; ``partial`` has what it had.
        """
        run = self._run()
        ended: asyncio.Future[TurnResult] = asyncio.get_running_loop().create_future()

        def on_error(error: Exception) -> None:
            if not ended.done():
                ended.set_exception(error)

        def on_completed() -> None:
            if not ended.done():
                ended.set_result(run.result())

        subscription = self._events(run).subscribe(
            on_error=on_error, on_completed=on_completed, scheduler=self.scheduler
        )
        try:
            return await ended
        finally:
            subscription.dispose()

    def result_sync(self) -> TurnResult:
        """
        Run to the end from synchronous code, in an event loop that the adapter keeps.

        Raises:
            ConfigurationError: an event loop runs in this thread already: ``await turn.result()`` there.
            RxLoopError: the turn failed; ``partial`` has what it had.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self.adapter.run_sync(self.result())
        raise ConfigurationError("result_sync() must not be called where an event loop runs: use `await turn.result()`")

    def _run(self, turn_id: str | None = None) -> Run:
        return Run(
            self.adapter,
            self._conversation,
            system=self._system,
            tools=self._tools,
            breaker=self._breaker,
            on_end=self._on_end,
            turn_id=turn_id or self._turn_id,
            output=self._output_state(),
            reclaim=self._reclaim,
        )

    def _output_state(self) -> OutputState | None:
        if self._output is None:
            return None
        # a cap that may be raised is not known, unless its only step is the answer's
        known = self._renew is None or (self._output_mode == "coercive" and not self._reserves)
        cap = self.max_steps if known else None
        remind = None if self.adapter.forces_tools else self.adapter.begin
        return OutputState(self._output, self._output_mode, cap, remind=remind)

    def _subscribe_run(
        self, observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        if scheduler is None and self.scheduler is None:
            running_loop()
        return self._events(self._run()).subscribe(observer, scheduler=scheduler or self.scheduler)


class TurnStream(Channel[TurnEvent]):
    """The events of one run, as an asynchronous iterator, and what the run came to."""

    __slots__ = ("_run",)

    def __init__(self, run: Run, events: Callable[[Run], Observable[TurnEvent]], buffer: int) -> None:
        """Made by `Turn.stream`."""
        self._run = run
        super().__init__(events(run), buffer=buffer)

    @property
    def result(self) -> TurnResult:
        """
        What the run came to, however it ended: by its answer, a stop, a failure, or because it was left early.

        Raises:
            ConfigurationError: it has not ended yet.
        """
        if self._run.ended is None:
            raise ConfigurationError("the run must have ended before it has a result: iterate to the end, or leave it")
        return self._run.ended


def _opening(step: Step) -> tuple[TurnEvent, ...]:
    if step.reclaimed is None:
        return (StepStarted(step.index),)
    return (StepStarted(step.index), ContextReclaimed(step.index, *step.reclaimed))


def _with_window(reclaim: Reclaim | None, adapter: Adapter) -> Reclaim | None:
    """The setting with the model's window; ``None`` where it is not known."""
    if reclaim is None or reclaim.window is not None:
        return reclaim
    window = adapter.context_window()
    return None if window is None else replace(reclaim, window=window)


def _lister(tools: Any, adapter: Adapter) -> Callable[[], list[Tool | Mapping[str, Any]]]:
    """What asks for the tools of a step; a fixed list is checked now."""
    if callable(tools) and not isinstance(tools, Tool):
        return lambda: [_as_tool(item) for item in tools()]
    if isinstance(tools, (Tool, str, Mapping)):
        raise ConfigurationError(f"tools must be a list of tools, but got {tools!r}")
    fixed = [_as_tool(item) for item in tools]
    unique_names(fixed)
    adapter.check_tools(fixed)
    return lambda: fixed


def _as_tool(item: Any) -> Tool | Mapping[str, Any]:
    if isinstance(item, (Tool, Mapping)):
        return item
    if callable(item):
        return tool(item)
    raise ConfigurationError(f"a tool must be a function, a Tool or a provider's declaration, but got {item!r}")
