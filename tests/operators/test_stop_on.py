from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import reactivex
from reactivex import Observable
from reactivex.subject import Subject
from reactivex.testing import ReactiveTest

from rxloop.errors import ConfigurationError
from rxloop.operators import stop_on
from tests.operators.virtual import VirtualTime, assert_messages

on_next, on_error, on_completed, subscribe = (
    ReactiveTest.on_next,
    ReactiveTest.on_error,
    ReactiveTest.on_completed,
    ReactiveTest.subscribe,
)


def ticking(time: VirtualTime) -> Any:
    return time.create_cold_observable(on_next(10, "a"), on_next(20, "b"), on_next(30, "c"), on_completed(40))


# an observable


def test_the_first_value_of_the_signal_ends_the_source() -> None:
    time = VirtualTime()
    source = ticking(time)
    signal = time.create_cold_observable(on_next(25, "now"), on_next(26, "again"))
    stopped: list[tuple[float, Any]] = []

    def on_stop() -> None:
        stopped.append((time.clock, [window.unsubscribe for window in source.subscriptions]))

    observer = time.start(lambda: source.pipe(stop_on(signal, on_stop=on_stop)))
    assert_messages(observer.messages, on_next(210, "a"), on_next(220, "b"), on_completed(225))
    assert source.subscriptions == [subscribe(200, 225)]
    assert signal.subscriptions == [subscribe(200, 225)]
    assert stopped == [(225, [225])]


def test_the_completion_of_the_signal_is_no_signal() -> None:
    time = VirtualTime()
    signal = time.create_cold_observable(on_completed(15))
    observer = time.start(lambda: ticking(time).pipe(stop_on(signal)))
    assert observer.messages[-1] == on_completed(240)


def test_an_error_of_the_signal_is_the_observers() -> None:
    time, error = VirtualTime(), RuntimeError("the button is broken")
    source = ticking(time)
    signal = time.create_cold_observable(on_error(15, error))
    stopped: list[str] = []
    observer = time.start(lambda: source.pipe(stop_on(signal, on_stop=lambda: stopped.append("x"))))
    assert_messages(observer.messages, on_next(210, "a"), on_error(215, error))
    assert source.subscriptions == [subscribe(200, 215)]
    assert stopped == []


@pytest.mark.parametrize("end", [on_completed(15), on_error(15, RuntimeError("x"))])
def test_the_end_of_the_source_lets_go_of_the_signal(end: Any) -> None:
    time = VirtualTime()
    signal = time.create_cold_observable(on_next(500, "x"))
    observer = time.start(lambda: time.create_cold_observable(end).pipe(stop_on(signal)))
    assert [(message.time, message.value.kind) for message in observer.messages] == [(215, end.value.kind)]
    assert signal.subscriptions == [subscribe(200, 215)]


def test_disposal_disposes_both() -> None:
    time = VirtualTime()
    source, signal = ticking(time), time.create_cold_observable(on_next(500, "x"))
    stopped: list[str] = []
    time.start(lambda: source.pipe(stop_on(signal, on_stop=lambda: stopped.append("x"))), disposed=222)
    assert source.subscriptions == signal.subscriptions == [subscribe(200, 222)]
    assert stopped == []


def immediately(value: Any) -> Observable[Any]:
    def on_subscribe(observer: Any, scheduler: Any = None) -> Any:
        observer.on_next(value)

    return Observable(on_subscribe)


def test_a_signal_that_is_there_already_prevents_the_source() -> None:
    time = VirtualTime()
    source, stopped = ticking(time), list[str]()
    observer = time.start(lambda: source.pipe(stop_on(immediately(1), on_stop=lambda: stopped.append("x"))))
    assert_messages(observer.messages, on_completed(200))
    assert source.subscriptions == []
    assert stopped == ["x"]


def test_a_signal_on_the_trampoline_comes_before_the_first_item() -> None:
    time = VirtualTime()
    observer = time.start(lambda: ticking(time).pipe(stop_on(reactivex.of(1))))
    assert_messages(observer.messages, on_completed(200))


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_signal_during_an_item_ends_it_after_the_item(position: int) -> None:
    time, signal = VirtualTime(), Subject[Any]()
    seen: list[Any] = []

    def note(item: Any) -> None:
        seen.append(item)
        if len(seen) == position + 1:
            signal.on_next("now")
            seen.append("told")

    ticking(time).pipe(stop_on(signal)).subscribe(note, on_completed=lambda: seen.append("|"))
    time.start()
    assert seen == [*"abc"[: position + 1], "|", "told"]


def test_a_hot_signal_serves_many_subscriptions() -> None:
    time, signal = VirtualTime(), Subject[Any]()
    stoppable = ticking(time).pipe(stop_on(signal))
    first, second = time.create_observer(), time.create_observer()
    stoppable.subscribe(first)
    stoppable.subscribe(second)
    time.schedule_absolute(15, lambda *_: signal.on_next("now"))
    time.start()
    assert_messages(first.messages, on_next(10, "a"), on_completed(15))
    assert_messages(second.messages, on_next(10, "a"), on_completed(15))


def test_no_signal_leaves_the_source_as_it_is() -> None:
    source = VirtualTime().create_cold_observable()
    assert source.pipe(stop_on(None)) is source


@pytest.mark.parametrize("stop", [True, 5, "now", lambda: True, object()])
def test_the_signal_is_checked_at_once(stop: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^stop must be an observable, an asyncio\.Event or"):
        stop_on(stop)


# the event loop


class Watched:
    """What one subscription to a source that never ends came to."""

    def __init__(self, stop: Any) -> None:
        self.seen: list[Any] = []
        self.source: Subject[Any] = Subject()
        self.stopped = 0
        self.subscription = self.source.pipe(stop_on(stop, on_stop=self._on_stop)).subscribe(
            self.seen.append, self.seen.append, lambda: self.seen.append("|")
        )

    def _on_stop(self) -> None:
        self.stopped += 1


async def rounds(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def wait_for(event: asyncio.Event) -> None:
    await event.wait()


def event_itself(event: asyncio.Event) -> Any:
    return event


def coroutine(event: asyncio.Event) -> Any:
    return wait_for(event)


def task(event: asyncio.Event) -> Any:
    return asyncio.ensure_future(wait_for(event))


SIGNALS = pytest.mark.parametrize("make", [event_itself, coroutine, task])


@pytest.mark.asyncio
@SIGNALS
async def test_what_is_set_or_done_ends_the_source(make: Callable[[asyncio.Event], Any]) -> None:
    event = asyncio.Event()
    watched = Watched(make(event))
    watched.source.on_next("a")
    await rounds()
    assert watched.seen == ["a"]
    event.set()
    await rounds()
    watched.source.on_next("b")
    assert watched.seen == ["a", "|"]
    assert watched.stopped == 1


@pytest.mark.asyncio
@SIGNALS
async def test_what_was_set_before_ends_it_at_once(make: Callable[[asyncio.Event], Any]) -> None:
    event = asyncio.Event()
    event.set()
    signal = make(event)
    await rounds()
    watched = Watched(signal)
    await rounds()
    watched.source.on_next("a")
    assert watched.seen == ["|"]
    assert watched.stopped == 1


@pytest.mark.asyncio
@SIGNALS
@pytest.mark.parametrize("waits", [0, 1, 5])
async def test_disposal_lets_go_of_the_signal(make: Callable[[asyncio.Event], Any], waits: int) -> None:
    event = asyncio.Event()
    signal = make(event)
    watched = Watched(signal)
    await rounds(waits)
    watched.subscription.dispose()
    await rounds()
    if isinstance(signal, asyncio.Task):
        assert not signal.done(), "a task of the caller's is not cancelled"
    event.set()
    await rounds()
    assert watched.seen == []
    assert watched.stopped == 0
    assert not watched.source.observers


@pytest.mark.asyncio
async def test_a_future_that_is_never_done_remembers_nobody() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    watched = Watched(future)
    watched.subscription.dispose()
    gone = weakref.ref(watched)
    del watched
    gc.collect()
    assert gone() is None


@pytest.mark.asyncio
async def test_an_event_and_a_future_serve_many_subscriptions() -> None:
    event, future = asyncio.Event(), asyncio.get_running_loop().create_future()
    watched = [Watched(event), Watched(event), Watched(future), Watched(future)]
    await rounds()
    event.set()
    future.set_result(None)
    await rounds()
    assert [one.seen for one in watched] == [["|"]] * 4


@pytest.mark.asyncio
async def test_an_awaitable_that_fails_is_the_observers_error() -> None:
    error = RuntimeError("the button is broken")

    async def fails() -> None:
        raise error

    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    watched = [Watched(fails()), Watched(asyncio.ensure_future(fails())), Watched(future)]
    await rounds()
    assert [one.seen for one in watched] == [[error]] * 3
    assert [one.stopped for one in watched] == [0, 0, 0]


@pytest.mark.asyncio
async def test_a_cancelled_future_is_no_signal() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    watched = Watched(future)
    future.cancel()
    await rounds()
    watched.source.on_next("a")
    assert watched.seen == ["a"]
    assert Watched(future).seen == []


@pytest.mark.asyncio
async def test_an_awaitable_object_will_do() -> None:
    class Soon:
        def __await__(self) -> Any:
            yield
            return "now"

    watched = Watched(Soon())
    await rounds()
    assert watched.seen == ["|"]
