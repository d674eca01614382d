from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import reactivex
from reactivex import Observable
from reactivex import operators as ops
from reactivex.disposable import Disposable
from reactivex.subject import Subject

from rxloop.channel import Channel, iterate
from rxloop.demand import current_demand
from rxloop.errors import BufferOverflowError, ConfigurationError
from rxloop.testing import MisbehavingSource

pytestmark = pytest.mark.asyncio


def cancelling(task: asyncio.Task[None]) -> Disposable:
    def dispose() -> None:
        task.cancel()

    return Disposable(dispose)


def counting(count: int, *, extra: int = 0, seen: list[bool] | None = None) -> Observable[int]:
    """A source that looks at the demand after every item, as rxloop's own do; each item may bring `extra` ones."""

    def subscribe(observer: Any, scheduler: Any = None) -> Any:
        demand = current_demand()
        assert demand is not None

        async def emit() -> None:
            for number in range(count):
                for item in range(number * (extra + 1), (number + 1) * (extra + 1)):
                    observer.on_next(item)
                if seen is not None:
                    seen.append(demand.closed)
                if demand.closed:
                    await demand.wait()
            observer.on_completed()

        task = asyncio.get_running_loop().create_task(emit())
        return cancelling(task)

    return Observable(subscribe)


async def rounds(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def read_into(received: list[Any], channel: Channel[Any]) -> None:
    async for item in channel:
        received.append(item)  # noqa: PERF401 - a comprehension would lose what came before an error


async def test_items_come_in_order_and_then_the_end() -> None:
    assert [item async for item in iterate(reactivex.of(*range(5)))] == [0, 1, 2, 3, 4]
    assert [item async for item in iterate(reactivex.empty())] == []


@pytest.mark.parametrize("buffer", [8, 9, 16, 64, 256, 300])
@pytest.mark.parametrize("lag", [0, 1, 7], ids=lambda lag: f"lag {lag}")
async def test_the_buffer_is_never_exceeded_and_nothing_is_lost(buffer: int, lag: int) -> None:
    channel = iterate(counting(1_000), buffer=buffer)
    received: list[int] = []
    async for item in channel:
        received.append(item)
        assert channel.buffered <= buffer
        await rounds(lag)
    assert received == list(range(1_000))
    assert channel.peak_buffered <= buffer


@pytest.mark.parametrize("buffer", range(8, 33))
async def test_an_item_may_bring_three_more(buffer: int) -> None:
    channel = iterate(counting(100, extra=3), buffer=buffer)
    await rounds(10)
    assert [item async for item in channel] == list(range(400))
    assert channel.peak_buffered <= buffer


async def test_a_reader_that_does_not_read_pauses_the_source() -> None:
    seen: list[bool] = []
    channel = iterate(counting(1_000, seen=seen), buffer=16)
    await rounds(50)
    assert len(seen) == channel.buffered == channel.peak_buffered == 12
    assert seen[-1]
    await anext(channel)
    await rounds(50)
    assert len(seen) == 12, "the source goes on only when there is room for more than one item"
    for _ in range(6):
        await anext(channel)
    await rounds(50)
    assert channel.buffered == 12
    await channel.aclose()


async def test_a_reader_that_keeps_up_never_pauses_the_source() -> None:
    seen: list[bool] = []

    def subscribe(observer: Any, scheduler: Any = None) -> Any:
        demand = current_demand()

        async def emit() -> None:
            for number in range(500):
                observer.on_next(number)
                seen.append(bool(demand and demand.closed))
                await rounds(3)
            observer.on_completed()

        return cancelling(asyncio.get_running_loop().create_task(emit()))

    channel = iterate(Observable(subscribe), buffer=8)
    assert [item async for item in channel] == list(range(500))
    assert not any(seen)
    assert channel.peak_buffered == 1


async def test_several_sources_share_one_buffer() -> None:
    merged = reactivex.merge(*(counting(200) for _ in range(3)))
    channel = iterate(merged, buffer=32)
    received: list[int] = []
    async for item in channel:
        received.append(item)
        await rounds(2)
    assert sorted(received) == sorted([*range(200)] * 3)
    assert channel.peak_buffered <= 32


async def test_an_error_comes_after_the_items() -> None:
    error = RuntimeError("cut")
    channel = iterate(reactivex.concat(reactivex.of(1, 2), reactivex.throw(error)))
    received: list[int] = []
    with pytest.raises(RuntimeError) as caught:
        await read_into(received, channel)
    assert caught.value is error
    assert received == [1, 2]
    with pytest.raises(StopAsyncIteration):
        await anext(channel)


async def test_an_error_in_subscribe_is_raised_by_the_reader() -> None:
    def subscribe(observer: Any, scheduler: Any = None) -> Any:
        raise LookupError("no such thing")

    channel = iterate(Observable(subscribe))
    with pytest.raises(LookupError, match="no such thing"):
        await anext(channel)


async def test_after_the_end_there_is_nothing() -> None:
    channel = iterate(reactivex.of(1))
    assert [item async for item in channel] == [1]
    assert [item async for item in channel] == []
    with pytest.raises(StopAsyncIteration):
        await anext(channel)


async def test_a_source_that_cannot_pause_overflows_with_an_error() -> None:
    subject: Subject[int] = Subject()
    channel = iterate(subject, buffer=8)
    for number in range(20):
        subject.on_next(number)
    assert not subject.observers
    received: list[int] = []
    with pytest.raises(BufferOverflowError, match="the buffer must hold at most 8 items, but the source pushed more"):
        await read_into(received, channel)
    assert received == list(range(8))
    assert channel.peak_buffered == 8


async def test_a_source_that_overflows_inside_subscribe_is_disposed_too() -> None:
    channel = iterate(reactivex.of(*range(100)), buffer=8)
    assert channel.peak_buffered == 8
    with pytest.raises(BufferOverflowError):
        [item async for item in channel]


# leaving


class Watched:
    """A source that never ends, and whether anybody is subscribed."""

    def __init__(self) -> None:
        self.subject: Subject[int] = Subject()

    @property
    def subscribed(self) -> bool:
        return bool(self.subject.observers)

    def push(self, *items: int) -> None:
        for item in items:
            self.subject.on_next(item)


async def test_break_lets_go_of_the_source() -> None:
    watched = Watched()
    asyncio.get_running_loop().call_soon(watched.push, 1, 2, 3)
    async for item in iterate(watched.subject):
        assert watched.subscribed
        if item == 2:
            break
    assert not watched.subscribed


async def test_an_exception_in_the_loop_lets_go_of_the_source() -> None:
    watched = Watched()
    asyncio.get_running_loop().call_soon(watched.push, 1)

    async def read() -> None:
        async for _ in iterate(watched.subject):
            raise LookupError("mine")

    with pytest.raises(LookupError) as caught:
        await read()
    # the traceback holds the frame, and the frame the channel
    caught.value.__traceback__ = None
    del caught
    gc.collect()
    assert not watched.subscribed


async def test_async_with_leaves_deterministically() -> None:
    watched = Watched()
    channel = iterate(watched.subject)

    async def read() -> None:
        async with channel as events:
            assert events is channel
            assert watched.subscribed
            watched.push(1)
            async for _ in events:
                raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await read()
    assert not watched.subscribed
    watched.push(2)
    assert channel.buffered == 0
    with pytest.raises(StopAsyncIteration):
        await anext(channel)


async def test_aclose_may_be_called_again() -> None:
    watched = Watched()
    channel = iterate(watched.subject)
    await channel.aclose()
    await channel.aclose()
    assert not watched.subscribed


async def test_leaving_drops_what_waits_and_what_comes_too_late() -> None:
    source = MisbehavingSource("ignores its disposal", (1, 2))
    channel = iterate(source)
    assert channel.buffered == 2
    await channel.aclose()
    source.emit_late()
    assert channel.buffered == 0
    with pytest.raises(StopAsyncIteration):
        await anext(channel)


async def test_aclose_ends_a_reader_that_waits() -> None:
    watched = Watched()
    channel = iterate(watched.subject)

    async def read() -> list[int]:
        return [item async for item in channel]

    reading = asyncio.create_task(read())
    await rounds()
    watched.push(1)
    await rounds()
    await channel.aclose()
    await rounds()
    assert reading.done(), "the reader must not wait for ever"
    assert reading.result() == [1]


async def test_leaving_wakes_a_paused_source_to_its_end() -> None:
    cancelled: list[str] = []

    def subscribe(observer: Any, scheduler: Any = None) -> Any:
        demand = current_demand()
        assert demand is not None
        stopped = False

        async def emit() -> None:
            while not stopped:
                observer.on_next(1)
                await demand.wait()
            cancelled.append("woke up")

        asyncio.get_running_loop().create_task(emit())

        def dispose() -> None:
            nonlocal stopped
            stopped = True

        return Disposable(dispose)

    channel = iterate(Observable(subscribe), buffer=8)
    await rounds(20)
    await channel.aclose()
    await rounds()
    assert cancelled == ["woke up"]


async def test_a_cancelled_reader_loses_nothing() -> None:
    watched = Watched()
    channel = iterate(watched.subject)
    reading = asyncio.ensure_future(anext(channel))
    await rounds()
    reading.cancel()
    await rounds()
    assert reading.cancelled()
    assert watched.subscribed
    again = asyncio.ensure_future(anext(channel))
    await rounds()
    watched.push(1)
    assert await again == 1


async def test_an_item_that_comes_with_the_cancellation_is_not_lost() -> None:
    watched = Watched()
    channel = iterate(watched.subject)
    reading = asyncio.ensure_future(anext(channel))
    await rounds()
    watched.push(1)
    reading.cancel()
    await rounds()
    assert reading.cancelled()
    assert await anext(channel) == 1


async def test_a_dropped_channel_is_collected_with_its_subscription() -> None:
    watched = Watched()
    channel = iterate(watched.subject)
    gone = weakref.ref(channel._buffer.subscription)
    del channel
    assert not watched.subscribed
    gc.collect()
    assert gone() is None


# readers and threads


async def test_a_second_reader_is_an_error_and_the_first_goes_on() -> None:
    watched = Watched()
    channel = iterate(watched.subject)
    first = asyncio.ensure_future(anext(channel))
    await rounds()
    with pytest.raises(ConfigurationError, match="one reader at a time, but a second one waits"):
        await anext(channel)
    watched.push(1)
    assert await first == 1


async def test_two_readers_in_turn_share_the_items() -> None:
    channel = iterate(reactivex.of(1, 2, 3))
    assert await anext(channel) == 1
    assert [item async for item in channel] == [2, 3]


@pytest.mark.parametrize("end", ["completion", "error"])
async def test_another_thread_may_push(end: str) -> None:
    watched = Watched()
    channel = iterate(watched.subject, buffer=5_000)
    error = RuntimeError("from the thread")

    def push() -> None:
        watched.push(*range(1_000))
        if end == "error":
            watched.subject.on_error(error)
        else:
            watched.subject.on_completed()

    received: list[int] = []
    thread = threading.Thread(target=push)
    reading = asyncio.ensure_future(anext(channel))
    await rounds()
    thread.start()
    received.append(await reading)
    try:
        await read_into(received, channel)
    except RuntimeError as caught:
        assert end == "error"
        assert caught is error  # noqa: PT017
    finally:
        thread.join()
    assert received == list(range(1_000))


# rules


@pytest.mark.parametrize("buffer", [7, 0, -1, 8.5, True, None])
async def test_the_buffer_is_checked_at_once(buffer: Any) -> None:
    watched = Watched()
    with pytest.raises(ConfigurationError, match=f"^buffer must be a whole number >= 8, but got {buffer!r}$"):
        iterate(watched.subject, buffer=buffer)
    with pytest.raises(ConfigurationError):
        Channel(watched.subject, buffer=buffer)
    assert not watched.subscribed


async def test_the_source_is_subscribed_once_and_now() -> None:
    watched = Watched()
    channel = iterate(watched.subject)
    assert len(watched.subject.observers) == 1
    for_all = channel.__aiter__()
    assert for_all is channel
    assert len(watched.subject.observers) == 1


async def test_standard_operators_need_to_know_nothing_of_the_demand() -> None:
    even: Callable[[Observable[int]], Observable[int]] = ops.filter(lambda number: number % 2 == 0)
    half: Callable[[Observable[int]], Observable[int]] = ops.map(lambda number: number // 2)
    channel = iterate(counting(1_000).pipe(even, half), buffer=16)
    received = []
    async for item in channel:
        received.append(item)
        await rounds(1)
    assert received == list(range(500))
    assert channel.peak_buffered <= 16


async def test_the_demand_is_the_channels_alone() -> None:
    assert current_demand() is None
    channel = iterate(counting(3))
    assert current_demand() is None
    assert [item async for item in channel] == [0, 1, 2]
