"""A tool call as an observable: subscribing runs it, disposing abandons it."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from typing import Any

from reactivex import Observable, abc
from reactivex.disposable import Disposable, SerialDisposable

from rxloop.clock import call_in, loop_if_any, running_loop
from rxloop.demand import demand_context
from rxloop.errors import describe
from rxloop.tools import Tool, ToolContext

__all__ = ("from_awaitable", "invoke")


def from_awaitable(awaitable: Awaitable[Any], *, context: Context | None = None) -> Observable[Any]:
    """
    Await something as an observable: one value, or its error. Disposing cancels it.

    A coroutine can be awaited once, so the observable can be subscribed once.

    Args:
        awaitable: what to await.
        context: the context in which it runs; a copy of the subscriber's by default.
    """

    def subscribe(observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        loop = running_loop()

        task = loop.create_task(_awaiting(awaitable), context=context)
        abandoned = False

        def settle(task: asyncio.Task[Any]) -> None:
            if inspect.iscoroutine(awaitable):
                # a task that is cancelled before it starts has awaited nothing
                awaitable.close()
            if task.cancelled():
                if not abandoned:
                    observer.on_error(RuntimeError("it was cancelled from within"))
                return
            error = task.exception()
            if abandoned:
                return
            if error is None:
                observer.on_next(task.result())
                observer.on_completed()
            else:
                observer.on_error(_as_exception(error))

        def dispose() -> None:
            nonlocal abandoned
            abandoned = True
            call_in(loop, task.cancel)

        task.add_done_callback(settle)
        return Disposable(dispose)

    return Observable(subscribe)


def invoke(tool: Tool, arguments: dict[str, Any], context: ToolContext) -> Observable[Any]:
    """
    Run a tool once per subscription: its output, or its error.

    A synchronous function runs in a daemon thread of its own with the subscriber's context variables. Disposing
    sets the context's cancellation token and cancels an async tool; a thread is abandoned, not awaited.
    """
    keywords = dict(arguments)
    if tool.context_parameter is not None:
        keywords[tool.context_parameter] = context

    def subscribe(observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        inner = SerialDisposable()
        loop = loop_if_any()
        caller = copy_context()
        # a tool's own subscriptions are not paused by whoever watches this turn
        execution = caller.copy()
        execution.run(demand_context.set, None)

        def dispose() -> None:
            context.cancellation.cancel()
            inner.dispose()

        # what follows a tool runs in the caller's context again, not in the tool's
        def succeed(output: Any) -> None:
            def notify() -> None:
                observer.on_next(output)
                observer.on_completed()

            caller.copy().run(notify)

        def fail(error: Exception) -> None:
            caller.copy().run(observer.on_error, error)

        def deliver(output: Any) -> None:
            # a function may return what is still to be awaited or subscribed
            if inspect.isawaitable(output) and not isinstance(output, Observable):
                inner.disposable = from_awaitable(output, context=execution).subscribe(deliver, fail)
            elif isinstance(output, Observable):
                last = [None]
                # it may emit on any thread
                inner.disposable = execution.copy().run(
                    lambda: output.subscribe(
                        lambda value: last.__setitem__(0, value),
                        lambda error: call_in(loop, fail, error),
                        lambda: call_in(loop, lambda: succeed(last[0])),
                        scheduler=scheduler,
                    )
                )
            else:
                succeed(output)

        def call() -> Any:
            try:
                output = tool.function(**keywords)
                # in the thread, since what a generator does to make its values is the tool's own work
                return list(output) if tool.kind == "sync" and inspect.isgenerator(output) else output
            except (asyncio.CancelledError, SystemExit) as error:
                # the end of the tool, not of whoever calls it
                raise _as_exception(error) from error

        if tool.kind == "sync":
            inner.disposable = _run_in_thread(tool.name, lambda: execution.run(call), deliver, fail)
        else:
            deliver(execution.run(call))
        return Disposable(dispose)

    return Observable(subscribe)


async def _awaiting(awaitable: Awaitable[Any]) -> Any:
    try:
        return await awaitable
    except SystemExit as error:
        # left alone it would stop the event loop
        raise _as_exception(error) from error


def _run_in_thread(
    name: str, call: Callable[[], Any], deliver: Callable[[Any], None], fail: Callable[[Exception], None]
) -> abc.DisposableBase:
    loop = running_loop()
    abandoned = False

    def settle(output: Any, error: Exception | None) -> None:
        if abandoned:
            if inspect.iscoroutine(output):
                output.close()
        elif error is not None:
            fail(error)
        else:
            deliver(output)

    def work() -> None:
        output, error = None, None
        try:
            output = call()
        except BaseException as failure:
            error = _as_exception(failure)
        try:
            loop.call_soon_threadsafe(settle, output, error)
        except RuntimeError:
            # the loop is closed: nobody is left to be told
            if inspect.iscoroutine(output):
                output.close()

    def dispose() -> None:
        nonlocal abandoned
        abandoned = True

    threading.Thread(target=work, name=f"rxloop-tool-{name}", daemon=True).start()
    return Disposable(dispose)


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError(describe(error))
