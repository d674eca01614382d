"""Turn a provider's stream into a cold observable: one task per step, whatever the provider."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from reactivex import Observable, abc
from reactivex.disposable import Disposable

from rxloop.clock import call_in, running_loop
from rxloop.demand import current_demand
from rxloop.errors import MalformedResponseError, StreamInterruptedError

__all__ = ("Decoder", "Wire", "pump")

W = TypeVar("W")
W_contra = TypeVar("W_contra", contravariant=True)

_BURST = 128
_DRAIN_SECONDS = 1.0
_FORMAT_ERRORS = (AttributeError, IndexError, KeyError, TypeError, ValueError)


class Decoder(Protocol[W_contra]):
    """A pure decoder of one reply: wire items in, events out."""

    @property
    def complete(self) -> bool:
        """Whether the provider said that the reply is whole."""
        ...

    def feed(self, item: W_contra) -> Iterable[Any]:
        """The events that one wire item makes."""
        ...

    def close(self) -> Iterable[Any]:
        """What the end of the wire makes, the `StepResult` last; raises if the reply is not whole."""
        ...


@dataclass(frozen=True, slots=True)
class Wire(Generic[W]):
    """An open reply: what arrives, and what decodes it."""

    items: AsyncIterator[W]
    decoder: Decoder[W]


def pump(
    connect: Callable[[], AbstractAsyncContextManager[Wire[Any]]],
    *,
    classify: Callable[[Exception], Exception],
) -> Observable[Any]:
    """
    Make a step's observable of an asynchronous stream.

    .. marble::
        wire:  --a--b-c--$
        [ pump ]
        --A--B-C--R|

    Every subscription connects for itself, in a task of its own. Disposing cancels the task and closes the reply, from
    any thread. A subscriber that raises ends its subscription with what it raised, and the reply is closed. While the
    consumer's `Demand` is closed nothing more is read. A burst of buffered events yields to the event loop from time
    to time.

    Args:
        connect: sends the request; leaving its context closes the reply.
        classify: turns an SDK's or transport's error into one of rxloop's.

    Raises:
        ConfigurationError: there is no running event loop (through the observer).
    """

    def subscribe(observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        loop = running_loop()
        pumping = _Pumping(connect, classify, observer)
        task = loop.create_task(pumping.run())

        def dispose() -> None:
            pumping.stopped = True
            call_in(loop, task.cancel)

        return Disposable(dispose)

    return Observable(subscribe)


class _SubscriberFailedError(Exception):
    """Carries what a subscriber raised past the handlers of the wire's own errors."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class _Pumping:
    """One subscription."""

    __slots__ = ("_classify", "_connect", "_demand", "_observer", "stopped")

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[Wire[Any]]],
        classify: Callable[[Exception], Exception],
        observer: abc.ObserverBase[Any],
    ) -> None:
        self._connect = connect
        self._classify = classify
        self._observer = observer
        self._demand = current_demand()
        self.stopped = False

    async def run(self) -> None:
        """Pump to the end; every way out tells the observer once, unless it was disposed."""
        try:
            await self._pump()
        except asyncio.CancelledError:
            if not self.stopped:
                # the loop is going down: no time to try again
                self._observer.on_error(
                    StreamInterruptedError("the task that reads the reply was cancelled", retryable=False)
                )
        except _SubscriberFailedError as failure:
            if isinstance(failure.error, (KeyboardInterrupt, SystemExit)):
                raise failure.error from None
            self._observer.on_error(failure.error)  # type: ignore[arg-type]
        except Exception as error:
            if not self.stopped:
                self._observer.on_error(self._classify(error))
        else:
            if not self.stopped:
                self._observer.on_completed()

    async def _pump(self) -> None:
        stream = self._connect()
        wire = await stream.__aenter__()
        whole = False
        try:
            whole = await self._read(wire)
        except _SubscriberFailedError:
            # a subscriber that also disposed has cancelled this task: what it raised goes first
            with contextlib.suppress(asyncio.CancelledError):
                await _surely(stream.__aexit__(None, None, None))
            raise
        except BaseException:
            await _surely(stream.__aexit__(None, None, None))
            raise
        leaving = stream.__aexit__(None, None, None)
        await (leaving if whole else _surely(leaving))
        if whole and self._demand is not None:
            await self._demand.wait()
        if whole and not self.stopped:
            self._finish(wire.decoder)

    async def _read(self, wire: Wire[Any]) -> bool:
        """Whether the reply was read to the end of the wire."""
        decoder, items = wire.decoder, wire.items
        feed, on_next, demand = decoder.feed, self._observer.on_next, self._demand
        burst = 0
        async for item in items:
            try:
                for event in feed(item):
                    # another source of the same consumer may have filled its buffer meanwhile
                    if demand is not None and demand.closed:
                        await demand.wait()
                        burst = 0
                        if self.stopped:
                            return False
                    try:
                        on_next(event)
                    except BaseException as error:
                        raise _SubscriberFailedError(error) from error
                    if self.stopped:
                        return False
                    burst += 1
                    if burst >= _BURST:
                        await asyncio.sleep(0)
                        burst = 0
            except _FORMAT_ERRORS as error:
                raise _malformed(error) from error
            if decoder.complete:
                break
            if demand is not None and demand.closed:
                await demand.wait()
        # what follows the end of a reply is of no interest, errors included, but a drained connection can be used again
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_DRAIN_SECONDS):
                async for _ in items:
                    pass
        return True

    def _finish(self, decoder: Decoder[Any]) -> None:
        try:
            events = tuple(decoder.close())
        except _FORMAT_ERRORS as error:
            raise _malformed(error) from error
        for event in events:
            try:
                self._observer.on_next(event)
            except BaseException as error:
                raise _SubscriberFailedError(error) from error


def _malformed(error: Exception) -> MalformedResponseError:
    return MalformedResponseError(f"the reply does not have the provider's format: {type(error).__name__}: {error}")


async def _surely(closing: Any) -> None:
    """Finish closing, however often this task is cancelled meanwhile."""
    task = asyncio.ensure_future(closing)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled
