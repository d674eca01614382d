"""Run steps one after the other, each settled step feeding the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import copy_context
from typing import Any, TypeVar

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable, SerialDisposable
from reactivex.scheduler import CurrentThreadScheduler

from rxloop.demand import current_demand
from rxloop.steps import StepSettled

__all__ = ("loop_steps",)

S = TypeVar("S")


def loop_steps(
    start: Callable[[], S],
    step: Callable[[S], Observable[Any]],
    advance: Callable[[S, StepSettled], S | None],
    *,
    opening: Callable[[S], Iterable[Any]] | None = None,
) -> Observable[Any]:
    """
    Concatenate steps for as long as each of them asks for another.

    .. marble::
        step 0:  --a--b--S|
        step 1:            --c--d--S|
        [ loop_steps(advance: 0 -> 1 -> None) ]
        -----------o-a--b--o--c--d--|

    ``S`` is a step's `StepSettled`, which is not forwarded; ``o`` is what `opening` makes of the state. A step that
    completes without one is the last. Steps are neither nested nor subscribed per event: any number of them, each
    as immediate as it likes, needs no more stack than one. All state is created per subscription; disposing
    disposes the step that runs.

    Args:
        start: makes the first state, once per subscription.
        step: makes a state's step, a cold observable.
        advance: the next state, or ``None`` to end; called when the settled step has completed.
        opening: the items to emit before a step is subscribed; whoever disposes on one prevents the step.

    Raises:
        Whatever `start`, `step`, `advance` or `opening` raise, and a step's own error, reach the observer.
    """

    def subscribe(observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        current = SerialDisposable()
        disposed = running = False
        demand = current_demand()
        waiting: list[S] = [start()]

        def run() -> None:
            nonlocal running
            # a step that settles while it is being subscribed comes back here: the outer call goes on with it
            if running:
                return
            running = True
            try:
                while waiting and not disposed:
                    if demand is not None and demand.closed:
                        demand.when_open(run)
                        return
                    begin(waiting.pop())
            except Exception as error:
                current.dispose()
                observer.on_error(error)
            finally:
                running = False

        def begin(state: S) -> None:
            if opening is not None:
                for item in opening(state):
                    observer.on_next(item)
                    if disposed:
                        return
            settled: StepSettled | None = None
            forward = observer.on_next

            def on_next(item: Any) -> None:
                nonlocal settled
                if type(item) is StepSettled:
                    settled = item
                else:
                    forward(item)

            def on_completed() -> None:
                try:
                    following = None if settled is None else advance(state, settled)
                except Exception as error:
                    observer.on_error(error)
                    return
                if following is None:
                    observer.on_completed()
                else:
                    waiting.append(following)
                    run()

            current.disposable = step(state).subscribe(on_next, observer.on_error, on_completed, scheduler=scheduler)

        def dispose() -> None:
            nonlocal disposed
            disposed = True
            current.dispose()

        # on the trampoline: whoever disposes on the first item must have something to dispose; and in the subscriber's
        # context: the trampoline may be somebody else's
        context = copy_context()
        starting = CurrentThreadScheduler.singleton().schedule(lambda *_: context.run(run))
        return CompositeDisposable(starting, Disposable(dispose))

    return Observable(subscribe)
