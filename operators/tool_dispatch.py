"""Run the calls of a reply and settle the step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable, SingleAssignmentDisposable

from rxloop.batch import Batch, Journal
from rxloop.breaker import BreakerState
from rxloop.checks import positive_seconds, whole
from rxloop.clock import scheduler_for
from rxloop.errors import ConfigurationError
from rxloop.events import StepFinished
from rxloop.outlet import Outlet
from rxloop.steps import StepResult, StepSettled
from rxloop.tools import ResolveTool, Tool

__all__ = ("Journal", "tool_dispatch")


def tool_dispatch(
    tools: Mapping[str, Tool],
    *,
    step: int = 0,
    breaker: BreakerState | None = None,
    resolve_tool_on_miss: ResolveTool | None = None,
    on_resolved: Callable[[Tool], None] | None = None,
    concurrency: int = 16,
    sequential: bool = False,
    tool_timeout: float | None = None,
    journal: Journal | None = None,
    scheduler: abc.SchedulerBase | None = None,
) -> Callable[[Observable[Any]], Observable[Any]]:
    """
    Answer every call of a reply, then settle the step.

    .. marble::
        --a--R(x, y)|
        [ tool_dispatch({x, y}) ]
        --a--F s(x) s(y)----f(y)----f(x) S|

    ``R`` is the step's `StepResult`, ``F`` the `StepFinished` made of it, ``s`` and ``f`` are `ToolStarted` and
    `ToolFinished`, ``S`` is the `StepSettled` with the results in call order. Everything else passes untouched.

    A call never ends the turn: arguments that do not parse or do not fit, an unknown tool, an exception, a timeout
    and a call that the token limit cut off each become one error result that the model reads. Whether calls run
    depends on the reply's content alone, not on its stop reason, except that a refused or malformed reply's calls are
    answered without running. A result is journalled before its event goes out.

    All state but the breaker's is created per subscription. Disposing cancels what runs. While a lagging consumer has
    paused the turn no further call is started, and of a call's progress reports the latest is kept.

    Args:
        tools: what can run, by name; read at every reply.
        step: the number that the events carry.
        breaker: the turn's strikes; without one, nothing is taken out.
        resolve_tool_on_miss: sync or async second look-up by name, asked only when `tools` has nothing.
        on_resolved: told of a tool that the second look-up found.
        concurrency: how many calls run at once; at least 1.
        sequential: one call at a time, in order.
        tool_timeout: seconds for tools that have no limit of their own.
        journal: gets ``result`` and ``tool_results`` before the events.
        scheduler: runs the timeouts; the subscription's or the running event loop's by default.

    Raises:
        ConfigurationError: `concurrency` or `tool_timeout` breaks its rule.
    """
    whole("concurrency", concurrency, minimum=1)
    positive_seconds("tool_timeout", tool_timeout)

    def operator(source: Observable[Any]) -> Observable[Any]:
        def subscribe(
            observer: abc.ObserverBase[Any], scheduler_: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            outlet = Outlet(observer)
            forward, backlog = observer.on_next, outlet.backlog
            subscription = SingleAssignmentDisposable()
            running = CompositeDisposable()

            def on_next(item: Any) -> None:
                if type(item) is not StepResult:
                    if backlog:
                        outlet.emit(item)
                    else:
                        forward(item)
                    return
                if journal is not None:
                    journal.result = item
                outlet.emit(
                    StepFinished(
                        step,
                        item.text,
                        item.tool_calls,
                        item.usage,
                        item.raw_stop_reason,
                        item.finish_reason,
                        item.signatures,
                    )
                )
                if outlet.stopped:
                    return
                if not item.tool_calls:
                    outlet.emit(StepSettled(item))
                    return
                outlet.hold()
                try:
                    batch = Batch(
                        item,
                        step=step,
                        tools=tools,
                        breaker=breaker,
                        resolve=resolve_tool_on_miss,
                        on_resolved=on_resolved,
                        limit=1 if sequential else concurrency,
                        tool_timeout=tool_timeout,
                        journal=journal,
                        scheduler=scheduler_for(scheduler, scheduler_),
                        outlet=outlet,
                    )
                    running.add(batch)
                    batch.start_calls()
                except ConfigurationError as error:
                    outlet.fail(error)

            def dispose() -> None:
                outlet.stop()
                subscription.dispose()
                running.dispose()

            subscription.disposable = source.subscribe(on_next, outlet.fail, outlet.complete, scheduler=scheduler_)
            return Disposable(dispose)

        return Observable(subscribe)

    return operator
