"""End a turn gracefully when somebody says so."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable, SingleAssignmentDisposable

from rxloop.clock import call_in, loop_if_any
from rxloop.errors import ConfigurationError
from rxloop.invocation import from_awaitable

__all__ = ("Stop", "stop_on")

Stop: TypeAlias = "Observable[Any] | asyncio.Event | Awaitable[Any]"


def stop_on(
    stop: Stop | None, *, on_stop: Callable[[], None] | None = None
) -> Callable[[Observable[Any]], Observable[Any]]:
    """
    Complete at the stop signal.

    .. marble::
        source:  --a--b--c--d--|
        stop:    --------x
        [ stop_on(stop) ]
        --a--b--|

    The signal is an observable's first value (its completion is none), an event that is set, or an awaitable that is
    done; a future or task may serve any number of subscriptions, a coroutine one. An error of the signal is the
    observer's error. The source is disposed first, then `on_stop` is called, then the observer completes. Disposing
    disposes the source and lets go of the signal; a future or task of the caller's is not cancelled.

    Args:
        stop: the signal; ``None`` for none.
        on_stop: called once, when the signal has ended the source.

    Raises:
        ConfigurationError: `stop` is none of these.
    """
    if stop is None:
        return lambda source: source
    signal = _as_observable(stop)

    def operator(source: Observable[Any]) -> Observable[Any]:
        def subscribe(
            observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            running, watching = SingleAssignmentDisposable(), SingleAssignmentDisposable()
            both = CompositeDisposable(running, watching)
            over = False
            loop = loop_if_any()

            def end() -> bool:
                nonlocal over
                first, over = not over, True
                if first:
                    both.dispose()
                return first

            def on_signal(_: Any) -> None:
                if end():
                    if on_stop is not None:
                        on_stop()
                    observer.on_completed()

            def on_error(error: Exception) -> None:
                if end():
                    observer.on_error(error)

            def on_completed() -> None:
                if end():
                    observer.on_completed()

            # a signal from another thread waits for its turn among the source's events
            watching.disposable = signal.subscribe(
                lambda value: call_in(loop, on_signal, value),
                lambda error: call_in(loop, on_error, error),
                scheduler=scheduler,
            )
            if not over:
                running.disposable = source.subscribe(observer.on_next, on_error, on_completed, scheduler=scheduler)
            return both

        return Observable(subscribe)

    return operator


def _as_observable(stop: Any) -> Observable[Any]:
    if isinstance(stop, Observable):
        return stop
    if isinstance(stop, asyncio.Event):
        return _when_set(stop)
    if isinstance(stop, asyncio.Future):
        return _when_done(stop)
    if inspect.isawaitable(stop):
        return from_awaitable(stop)
    raise ConfigurationError(f"stop must be an observable, an asyncio.Event or an awaitable, but got {stop!r}")


def _when_set(event: asyncio.Event) -> Observable[Any]:
    def subscribe(observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        if event.is_set():
            observer.on_next(True)
            return Disposable()
        return from_awaitable(event.wait()).subscribe(observer, scheduler=scheduler)

    return Observable(subscribe)


def _when_done(future: asyncio.Future[Any]) -> Observable[Any]:
    def subscribe(observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        def settle(future: asyncio.Future[Any]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            if error is None:
                observer.on_next(future.result())
            elif isinstance(error, Exception):
                observer.on_error(error)

        if future.done():
            settle(future)
            return Disposable()

        def forget() -> None:
            future.remove_done_callback(settle)

        future.add_done_callback(settle)
        return Disposable(forget)

    return Observable(subscribe)
