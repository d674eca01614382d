"""A turn that runs once, for any number of watchers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, TypeVar, cast

from reactivex import Observable, abc
from reactivex.disposable import Disposable, SerialDisposable, SingleAssignmentDisposable
from reactivex.subject import ReplaySubject

from rxloop.checks import seconds_or_none, whole
from rxloop.clock import after, call_in, loop_if_any, scheduler_for
from rxloop.demand import Demand, current_demand, demand_context
from rxloop.event_log import EventLog, Follower
from rxloop.events import TurnEvent, UsageUpdated
from rxloop.run import Run
from rxloop.steps import TurnResult
from rxloop.usage import Usage
from rxloop.watcher import LogReader, Overflow, QueueReader, Watcher, check_watcher

__all__ = ("HotTurn",)

T = TypeVar("T")


class HotTurn(Observable[TurnEvent]):
    """
    One run of a turn, shared by whoever watches it. Made by `Turn.start`.

    .. marble::
        run:      T-a-b-c-d-F|
        first:    ^-a-b-c-d-F|
        late:            (Tabc)-d-F|

    It begins with the next round of the event loop, so that whoever joins at once sees all of it as it comes.
    It is a hot observable: subscribing does not start anything, leaving does not end anything. Whoever comes late gets
    the events so far, runs of deltas merged into one, and then what follows. Subscribers are pushed to; ``async for``
    and `watch` read at their own pace. A watcher that raises, stalls or leaves harms neither the turn nor another
    watcher. A failure that nobody has heard of by the time that nothing refers to the turn any more is reported to the
    event loop, as a task's is. It belongs to the event loop in which it was started; `stop` and `dispose` may be called
    from any thread.
    """

    def __init__(
        self,
        run: Run,
        events: Callable[[Run, Observable[Any]], Observable[TurnEvent]],
        *,
        replay: int,
        stop_unwatched_after: float | None,
        scheduler: abc.SchedulerBase | None,
    ) -> None:
        """See `Turn.start`."""
        super().__init__(self._follow)
        whole("replay", replay, minimum=1)
        seconds_or_none("stop_unwatched_after", stop_unwatched_after)
        self._run = run
        self._loop = loop_if_any()
        self._scheduler = scheduler_for(scheduler)
        self._linger = stop_unwatched_after
        self._lingering = SerialDisposable()
        self._stop: ReplaySubject[Any] = ReplaySubject(1)
        self._log = EventLog(replay)
        self._log.heard = run.on_end is not None
        self._followers: tuple[Follower, ...] = ()
        self._queues: tuple[QueueReader, ...] = ()
        self._readers: tuple[LogReader, ...] = ()
        self._demand = Demand()
        self._usage = Usage()
        self._awaited: set[asyncio.Future[None]] = set()
        self._subscription = SerialDisposable()
        context = copy_context()
        context.run(demand_context.set, self._demand)

        def begin(*_: Any) -> None:
            subscribe = events(run, self._stop).subscribe
            running = SingleAssignmentDisposable()
            self._subscription.disposable = running
            running.disposable = context.run(
                subscribe, self._on_next, self._on_error, self._on_completed, scheduler=scheduler
            )

        # whoever joins right after the start misses nothing
        self._subscription.disposable = self._scheduler.schedule(begin)

    def __repr__(self) -> str:
        state = "ended" if self._log.ended else "running"
        return f"<HotTurn {self.turn_id} {state}, {self.watchers} watchers>"

    def __del__(self) -> None:
        log: EventLog | None = getattr(self, "_log", None)
        if log is None or log.heard or log.error is None or self._loop is None:
            return
        # a failure that nobody was told of must not be lost, as it is not with a task
        message = f"the hot turn {self.turn_id} failed, and nobody was told"
        self._loop.call_exception_handler({"message": message, "exception": log.error})

    def __aiter__(self) -> Watcher:
        return self.watch()

    @property
    def turn_id(self) -> str:
        """The run's name, as `turn_started` has it."""
        return self._run.turn_id

    @property
    def usage(self) -> Usage:
        """What the turn has used so far, by the replies that are complete."""
        return self._usage

    @property
    def watchers(self) -> int:
        """How many watch it now."""
        return len(self._followers) + len(self._queues) + len(self._readers)

    @property
    def ended(self) -> TurnResult | None:
        """What the run came to, however it ended; ``None`` while it runs."""
        self._log.heard = self._log.heard or self._log.ended
        return self._run.ended

    async def result(self) -> TurnResult:
        """
        Wait for the end; any number may wait. Cancelling one who waits leaves the turn as it is.

        A turn that was stopped or disposed has the result ``aborted``.

        Raises:
            RxLoopError: the turn failed; ``partial`` has what it had.
        """
        if not self._log.ended:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._awaited.add(waiting)
            try:
                await waiting
            finally:
                self._awaited.discard(waiting)
        if self._log.error is not None:
            raise self._log.error
        return cast("TurnResult", self._run.ended)

    def stop(self) -> None:
        """End the turn gracefully: `turn_finished` with ``aborted``. Nothing happens once it has ended."""
        call_in(self._loop, self._stop.on_next, True)

    def dispose(self) -> None:
        """End the turn at once: what runs is cancelled, nothing more is emitted, and the watchers' streams complete."""
        call_in(self._loop, self._dispose)

    def _dispose(self) -> None:
        if not self._log.ended:
            try:
                self._subscription.dispose()
                if self._run.ended is None:
                    # it was not even begun
                    result = self._run.ended = self._run.result(disposed=True)
                    if self._run.on_end is not None:
                        self._run.on_end(result)
            finally:
                # what `on_end` raises is its caller's, and nobody may be left waiting for it
                self._end(None)

    def watch(self, overflow: Overflow = "coalesce", *, buffer: int = 256, patience: float | None = 30.0) -> Watcher:
        """
        Iterate over the events so far and those to come, at the reader's own pace.

        Use it in ``async for``, or in ``async with`` to leave deterministically. One reader each.

        Args:
            overflow: what happens when the reader lags. ``coalesce``: nothing is lost, adjacent deltas become one.
                ``drop_oldest``: the oldest of more than `buffer` events are dropped, and counted in ``dropped``.
                ``error``: more than `buffer` waiting events end this watcher with `BufferOverflowError`. ``block``:
                the turn itself waits, down to its socket.
            buffer: the most events that wait for the reader, at least 8; with ``coalesce`` there is no such limit.
            patience: the seconds after which a ``block`` watcher that takes nothing, while the turn waits for it, is
                ended with `BufferOverflowError`, so that it holds nobody up for ever; ``None`` for no such limit.

        Raises:
            ConfigurationError: there is no such policy, the buffer is too small, or there is no running event loop.
        """
        check_watcher(overflow, buffer, patience)
        if overflow == "coalesce":
            reader = LogReader(self._log, self._reader_left)
            self._readers = (*self._readers, reader)
            self._joined()
            return Watcher(reader)
        queue = QueueReader(
            self._log,
            self._queue_left,
            overflow=overflow,
            buffer=buffer,
            patience=patience,
            pace=self._pace,
            scheduler=self._scheduler,
        )
        self._queues = (*self._queues, queue)
        self._joined()
        return Watcher(queue)

    def _follow(
        self, observer: abc.ObserverBase[TurnEvent], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        follower = Follower(self._log, observer, current_demand(), self._follower_left)
        self._followers = (*self._followers, follower)
        self._joined()
        follower.advance()
        return Disposable(follower.leave)

    def _follower_left(self, follower: Follower) -> None:
        self._followers = _without(self._followers, follower)
        self._left()

    def _reader_left(self, reader: LogReader) -> None:
        self._readers = _without(self._readers, reader)
        self._left()

    def _queue_left(self, queue: QueueReader) -> None:
        self._queues = _without(self._queues, queue)
        self._pace()
        self._left()

    def _joined(self) -> None:
        if self._linger is not None:
            self._lingering.disposable = Disposable()

    def _left(self) -> None:
        if self._linger is None or self._log.ended or self.watchers:
            return

        def unwatched() -> None:
            if not self.watchers:
                self.stop()

        if self._linger == 0:
            unwatched()
        else:
            self._lingering.disposable = after(self._scheduler, self._linger, unwatched)

    def _pace(self) -> None:
        """Let the turn go on where no watcher holds it back."""
        demand = self._demand
        full = any(watcher.holds for watcher in self._queues)
        if full:
            demand.closed = True
        elif demand.closed:
            demand.open()

    def _on_next(self, event: TurnEvent) -> None:
        if type(event) is UsageUpdated:
            self._usage = event.usage
        self._log.append(event)
        try:
            for follower in self._followers:
                follower.advance()
        except BaseException:
            # an interrupt ends the run, and nobody may be left waiting for it
            self._dispose()
            raise
        for queue in self._queues:
            queue.push(event)
        for reader in self._readers:
            reader.wake()

    def _on_error(self, error: Exception) -> None:
        self._end(error)

    def _on_completed(self) -> None:
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._log.ended:
            return
        self._log.end(error)
        self._lingering.dispose()
        if self._run.ended is not None:
            self._usage = self._run.ended.usage
        for waiting in self._awaited:
            if not waiting.done():
                waiting.set_result(None)
        for queue in self._queues:
            queue.finish()
        for reader in self._readers:
            reader.wake()
        for follower in self._followers:
            follower.advance()


def _without(items: tuple[T, ...], left: T) -> tuple[T, ...]:
    return tuple(item for item in items if item is not left)
