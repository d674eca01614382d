"""The calls of one reply: found, checked, run side by side, each answered once."""

from __future__ import annotations

import copy
import inspect
import threading
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Protocol

from reactivex import abc
from reactivex.disposable import CompositeDisposable, SingleAssignmentDisposable

from rxloop.breaker import BreakerState
from rxloop.clock import after, clock_of, running_loop
from rxloop.errors import ConfigurationError, describe
from rxloop.events import ToolFinished, ToolProgress, ToolStarted
from rxloop.invocation import from_awaitable, invoke
from rxloop.outlet import Outlet
from rxloop.steps import StepResult, StepSettled, ToolCall, ToolResult
from rxloop.tools import CancellationToken, InvalidArgumentsError, ResolveTool, Tool, ToolContext

__all__ = ("Batch", "Journal")


class Journal(Protocol):
    """Where results are written down before anybody is told of them."""

    result: StepResult | None
    tool_results: list[ToolResult]


class Batch(abc.DisposableBase):
    """The calls of one reply."""

    def __init__(
        self,
        reply: StepResult,
        *,
        step: int,
        tools: Mapping[str, Tool],
        breaker: BreakerState | None,
        resolve: ResolveTool | None,
        on_resolved: Callable[[Tool], None] | None,
        limit: int,
        tool_timeout: float | None,
        journal: Journal | None,
        scheduler: abc.SchedulerBase,
        outlet: Outlet,
    ) -> None:
        self._reply = reply
        self._step = step
        self._tools = tools
        self._breaker = breaker
        self._resolve = resolve
        self._on_resolved = on_resolved
        self._limit = limit
        self._tool_timeout = tool_timeout
        self._journal = journal
        self._scheduler = scheduler
        self._now = clock_of(scheduler)
        self._outlet = outlet
        self._waiting = deque(enumerate(reply.tool_calls))
        self._results: MutableMapping[int, ToolResult] = {}
        self._found: dict[int, Tool] = {}
        self._active = 0
        self._exclusive = self._starting = self._disposed = False
        self._running = CompositeDisposable()

    def dispose(self) -> None:
        """Abandon the calls that run and start no more."""
        self._disposed = True
        self._running.dispose()

    def start_calls(self) -> None:
        """Start as many calls as may run now."""
        # a call that ends while it is being started comes back here: the outer call goes on
        if self._starting:
            return
        self._starting = True
        while self._waiting and not self._disposed and not self._exclusive and self._active < self._limit:
            if self._outlet.paused:
                self._starting = False
                self._outlet.when_open(self.start_calls)
                return
            index, call = self._waiting[0]
            found = self._found.get(index) or self._tools.get(call.name)
            if found is not None and found.sequential and self._active:
                break
            self._waiting.popleft()
            self._active += 1
            self._exclusive = found is not None and found.sequential
            self._begin(index, call, found)
        self._starting = False

    def _begin(self, index: int, call: ToolCall, found: Tool | None) -> None:
        refusal = _not_run(self._reply, call)
        if refusal is not None:
            self._finish(index, call, error=refusal)
        elif found is not None:
            self._run(index, call, found)
        elif self._resolve is None:
            self._unknown(index, call)
        else:
            self._look_up(index, call, self._resolve)

    def _look_up(self, index: int, call: ToolCall, resolve: ResolveTool) -> None:
        def on_found(found: Any) -> None:
            if found is None:
                self._unknown(index, call)
            elif not isinstance(found, Tool):
                on_error(TypeError(f"resolve_tool_on_miss must return a Tool or None, but got {found!r}"))
            else:
                if self._on_resolved is not None:
                    self._on_resolved(found)
                self._found[index] = found
                # back to the queue, in which a sequential tool waits for its turn
                self._waiting.appendleft((index, call))
                self._active -= 1
                self.start_calls()

        def on_error(error: Exception) -> None:
            self._finish(index, call, error=f"looking up the tool failed: {describe(error)}")

        try:
            answer = resolve(call.name)
        except Exception as error:
            on_error(error)
            return
        if inspect.isawaitable(answer):
            self._running.add(from_awaitable(answer).subscribe(on_found, on_error))
        else:
            on_found(answer)

    def _unknown(self, index: int, call: ToolCall) -> None:
        if self._breaker is not None:
            self._finish(index, call, error=self._breaker.unknown(call.name), permanently_failed=True)
        else:
            known = ", ".join(sorted(self._tools)) or "none"
            self._finish(index, call, error=f"there is no tool named {call.name!r}; the tools are: {known}")

    def _run(self, index: int, call: ToolCall, found: Tool) -> None:
        refusal = None if self._breaker is None else self._breaker.refusal(call.name)
        if refusal is not None:
            self._finish(index, call, error=refusal, permanently_failed=True)
            return
        try:
            keywords = _validated(found, call)
        except InvalidArgumentsError as error:
            self._finish(index, call, error=f"invalid arguments: {error}", strike=True)
            return
        except Exception as error:
            self._finish(index, call, error=f"checking the arguments failed: {describe(error)}", strike=True)
            return
        began = self._now()
        timer, invocation = SingleAssignmentDisposable(), SingleAssignmentDisposable()
        both = CompositeDisposable(timer, invocation)
        self._running.add(both)
        output: Any = None
        over = False

        def end(error: str | None) -> None:
            nonlocal over
            if not over:
                over = True
                self._running.remove(both)
                self._finish(index, call, output=output, error=error, strike=True, seconds=self._now() - began)

        def on_next(value: Any) -> None:
            nonlocal output
            output = value

        def on_error(error: Exception) -> None:
            end(f"the tool failed: {describe(error)}")

        def on_completed() -> None:
            nonlocal output
            try:
                output = _json_able(output)
            except Exception as error:
                output = None
                end(f"the tool's output has no JSON form: {describe(error)}")
            else:
                end(None)

        def on_timeout() -> None:
            end(f"the tool timed out after {timeout:g} s")

        def emit_progress(data: Any) -> None:
            if not over and not self._disposed:
                self._outlet.emit(ToolProgress(self._step, call.call_id, call.name, data))

        def report(data: Any) -> None:
            on_loop(_json_able(data))

        on_loop = _on_loop(emit_progress, needed=found.kind != "observable")
        context = ToolContext(call.call_id, call.name, self._step, report, CancellationToken())
        timeout = found.timeout if found.timeout is not None else self._tool_timeout
        self._outlet.emit(ToolStarted(self._step, call.call_id, call.name))
        if self._disposed:
            return
        if timeout is not None:
            timer.disposable = after(self._scheduler, timeout, on_timeout)
        invocation.disposable = invoke(found, keywords, context).subscribe(
            on_next, on_error, on_completed, scheduler=self._scheduler
        )

    def _finish(
        self,
        index: int,
        call: ToolCall,
        *,
        output: Any = None,
        error: str | None = None,
        permanently_failed: bool = False,
        strike: bool = False,
        seconds: float = 0.0,
    ) -> None:
        if self._disposed:
            return
        if error is not None:
            output, error = None, _encodable(error)
        result = ToolResult(call.call_id, call.name, output, error, permanently_failed, seconds)
        self._results[index] = result
        if self._journal is not None:
            self._journal.tool_results.append(result)
        if strike and self._breaker is not None:
            try:
                self._breaker.settle(call.name, output, error)
            except Exception as failure:
                # classify_failure is the caller's: its fault is the turn's, not the model's
                self._outlet.fail(failure)
                return
        self._active -= 1
        self._exclusive = False
        self._outlet.emit(ToolFinished(self._step, call.call_id, call.name, output, error, permanently_failed, seconds))
        if len(self._results) < len(self._reply.tool_calls):
            self.start_calls()
            return
        in_call_order = tuple(self._results[index] for index in sorted(self._results))
        self._outlet.emit(StepSettled(self._reply, in_call_order))
        self._outlet.release()


def _not_run(reply: StepResult, call: ToolCall) -> str | None:
    if reply.final:
        return "not run: the turn ended with the final result of the same reply"
    if call.truncated:
        return "not run: the token limit cut the call off in the middle; make it shorter or split it"
    if reply.malformed:
        return "not run: the provider reported the call as malformed"
    if reply.finish_reason == "error":
        return "not run: the provider reported the reply as faulty"
    if reply.finish_reason == "content-filter":
        return "not run: the provider refused the reply"
    return None


def _validated(found: Tool, call: ToolCall) -> dict[str, Any]:
    if not isinstance(call.arguments, dict):
        raise InvalidArgumentsError(f"they must be one JSON object, but got {_shortened(call.arguments)}")
    # a tool may change what it is given; what was announced and what is sent stay as they are
    return found.validate(copy.deepcopy(call.arguments))


def _json_able(value: Any) -> Any:
    """What JSON makes of it, so that it can always be sent."""
    kind = type(value)
    if inspect.isgenerator(value):
        # reading it here would run the tool on the event loop
        raise TypeError("it is a generator")
    if value is None or kind is bool or kind is int:
        return value
    if kind is str:
        return _encodable(value)
    # together with its schemas it is the larger half of an import that most results never need
    from pydantic_core import from_json, to_json

    return from_json(to_json(value, inf_nan_mode="strings"))


def _encodable(text: str) -> str:
    # a lone surrogate, such as a file name may hold, cannot be sent
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _on_loop(emit: Callable[[Any], None], *, needed: bool) -> Callable[[Any], None]:
    """Emit here, whatever thread it is called from; a loop is needed where it is another thread for certain."""
    thread = threading.get_ident()
    try:
        loop = running_loop()
    except ConfigurationError:
        if needed:
            raise
        return emit

    def on_loop(data: Any) -> None:
        if threading.get_ident() == thread:
            emit(data)
        elif not loop.is_closed():
            loop.call_soon_threadsafe(emit, data)

    return on_loop


def _shortened(raw: str) -> str:
    return repr(raw if len(raw) <= 200 else f"{raw[:200]}… ({len(raw)} characters)")
