"""The pump, with a provider that is a list."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import reactivex
from reactivex import Observable
from reactivex.disposable import SerialDisposable

from rxloop.adapters.pump import Wire, pump
from rxloop.channel import iterate
from rxloop.demand import Demand, demand_context
from rxloop.errors import ConfigurationError, MalformedResponseError, RxLoopError, StreamInterruptedError
from tests.turns import waking_only

END = "end"


class ListDecoder:
    """Doubles what it is fed, until the end."""

    def __init__(self) -> None:
        self.complete = False

    def feed(self, item: Any) -> Iterable[Any]:
        if item == END:
            self.complete = True
            return ()
        if isinstance(item, list):
            return item
        return (item, item)

    def close(self) -> Iterable[Any]:
        if not self.complete:
            raise StreamInterruptedError("no end")
        return ("result",)


class Provider:
    """Each connection yields the items; an awaitable among them is awaited, an error raised. ``log`` tells the rest."""

    def __init__(self, *items: Any, decoder: Callable[[], Any] = ListDecoder) -> None:
        self.items = items
        self.decoder = decoder
        self.log: list[str] = []
        self.read: list[Any] = []
        self.connecting: Callable[[], Any] | None = None
        self.closing: Callable[[], Any] | None = None

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Wire[Any]]:
        self.log.append("connect")
        if self.connecting is not None:
            await self.connecting()
        try:
            yield Wire(self._items(), self.decoder())
        finally:
            self.log.append("leave")
            if self.closing is not None:
                await self.closing()
            self.log.append("left")

    async def _items(self) -> AsyncIterator[Any]:
        for item in self.items:
            if isinstance(item, Exception):
                raise item
            if callable(item):
                await item()
            else:
                self.read.append(item)
                yield item

    def observable(self) -> Observable[Any]:
        return pump(self.connect, classify=lambda error: RuntimeError(f"classified {error}"))


class Log:
    """What an observer was told."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.error: BaseException | None = None
        self.ended = asyncio.Event()
        self.ends = 0

    def on_next(self, item: Any) -> None:
        assert not self.ends
        self.items.append(item)

    def on_error(self, error: Exception) -> None:
        self.error = error
        self._end()

    def on_completed(self) -> None:
        self._end()

    def _end(self) -> None:
        self.ends += 1
        assert self.ends == 1
        self.ended.set()


async def collect(provider: Provider) -> Log:
    log = Log()
    provider.observable().subscribe(log.on_next, log.on_error, log.on_completed)
    async with asyncio.timeout(5):
        await log.ended.wait()
    return log


async def for_ever() -> None:
    await asyncio.Event().wait()


@pytest.mark.asyncio
async def test_what_arrives_is_decoded_and_the_result_comes_after_the_connection_is_left() -> None:
    provider = Provider("a", "b", END)
    log = Log()

    def on_next(item: Any) -> None:
        log.on_next(item)
        provider.log.append(str(item))

    provider.observable().subscribe(on_next, log.on_error, log.on_completed)
    await log.ended.wait()
    assert log.error is None
    assert provider.log == ["connect", "a", "a", "b", "b", "leave", "left", "result"]


@pytest.mark.asyncio
async def test_every_subscription_connects_for_itself() -> None:
    provider = Provider("a", END)
    observable = provider.observable()
    assert provider.log == []
    logs = [Log(), Log()]
    for log in logs:
        observable.subscribe(log.on_next, log.on_error, log.on_completed)
    for log in logs:
        await log.ended.wait()
        assert log.items == ["a", "a", "result"]
    assert provider.log.count("connect") == provider.log.count("left") == 2


def test_it_needs_a_loop() -> None:
    errors: list[Exception] = []
    Provider("a", END).observable().subscribe(on_error=errors.append)
    assert isinstance(errors[0], ConfigurationError)


# errors


@pytest.mark.asyncio
async def test_an_error_of_the_connection_is_classified() -> None:
    provider = Provider(END)

    async def refuse() -> None:
        raise OSError("refused")

    provider.connecting = refuse
    log = await collect(provider)
    assert str(log.error) == "classified refused"
    assert provider.log == ["connect"]


@pytest.mark.asyncio
async def test_an_error_of_the_wire_is_classified() -> None:
    provider = Provider("a", OSError("broken"))
    log = await collect(provider)
    assert log.items == ["a", "a"]
    assert str(log.error) == "classified broken"
    assert provider.log[-1] == "left"


@pytest.mark.asyncio
async def test_a_wire_that_ends_too_early() -> None:
    provider = Provider("a")
    log = await collect(provider)
    assert str(log.error) == "classified no end"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "error", [KeyError("x"), IndexError("x"), TypeError("x"), ValueError("x"), AttributeError("x")]
)
@pytest.mark.parametrize("where", ["feed", "between", "close"])
async def test_what_does_not_decode_is_not_the_providers_format(error: Exception, where: str) -> None:
    class Broken(ListDecoder):
        def feed(self, item: Any) -> Iterable[Any]:
            if item != "bad":
                return super().feed(item)
            if where == "feed":
                raise error
            return self._between()

        def _between(self) -> Iterable[Any]:
            yield "before"
            raise error

        def close(self) -> Iterable[Any]:
            if where == "close":
                raise error
            return super().close()

    provider = Provider("a", *([] if where == "close" else ["bad"]), END, decoder=Broken)
    log = Log()
    pump(provider.connect, classify=lambda error: error).subscribe(log.on_next, log.on_error, log.on_completed)
    await log.ended.wait()
    assert isinstance(log.error, MalformedResponseError)
    assert log.error.__cause__ is error
    assert log.items == ["a", "a"] + ["before"] * (where == "between")
    assert provider.log[-1] == "left"


@pytest.mark.asyncio
@pytest.mark.parametrize("after", [OSError("reset"), RxLoopError("x"), ValueError("x")])
async def test_what_goes_wrong_after_the_end_of_a_reply_is_of_no_interest(after: Exception) -> None:
    provider = Provider("a", END, "rest", after)
    log = await collect(provider)
    assert log.error is None
    assert log.items == ["a", "a", "result"]
    assert provider.read == ["a", END, "rest"], "drained, so that the connection can be used again"


@pytest.mark.asyncio
async def test_a_wire_without_an_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rxloop.adapters.pump._DRAIN_SECONDS", 0.01)
    provider = Provider("a", END, for_ever)
    log = await collect(provider)
    assert log.items == ["a", "a", "result"]
    assert provider.log[-1] == "left"


# leaving


@pytest.mark.asyncio
async def test_a_disposal_before_the_first_turn_of_the_loop_connects_to_nobody() -> None:
    provider = Provider("a", END)
    provider.observable().subscribe(on_error=print).dispose()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert provider.log == []


@pytest.mark.asyncio
@pytest.mark.parametrize("phase", ["connect", "read", "drain", "close"])
async def test_a_disposal_in_every_phase(phase: str) -> None:
    reached = asyncio.Event()

    async def hold() -> None:
        reached.set()
        await for_ever()

    async def hold_shortly() -> None:
        reached.set()
        for _ in range(5):
            await asyncio.sleep(0)

    provider = Provider("a", *([hold] if phase == "read" else []), END, *([hold] if phase == "drain" else []))
    if phase == "connect":
        provider.connecting = hold
    elif phase == "close":
        provider.closing = hold_shortly
    log = Log()
    subscription = provider.observable().subscribe(log.on_next, log.on_error, log.on_completed)
    await reached.wait()
    subscription.dispose()
    subscription.dispose()
    for _ in range(20):
        await asyncio.sleep(0)
    assert log.ends == 0
    assert log.items == ([] if phase == "connect" else ["a", "a"])
    if phase not in ("connect", "close"):
        assert provider.log == ["connect", "leave", "left"]


@pytest.mark.asyncio
async def test_closing_ends_however_often_it_is_cancelled() -> None:
    closing = asyncio.Event()
    rounds: list[int] = []

    async def close_slowly() -> None:
        closing.set()
        for number in range(5):
            await asyncio.sleep(0)
            rounds.append(number)

    provider = Provider("a", for_ever)
    provider.closing = close_slowly
    subscription = provider.observable().subscribe(on_error=print)
    await asyncio.sleep(0)
    (task,) = (task for task in asyncio.all_tasks() if "_Pumping" in repr(task.get_coro()))
    subscription.dispose()
    await closing.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([task])
    assert rounds == [0, 1, 2, 3, 4]
    assert provider.log[-1] == "left"


@pytest.mark.asyncio
async def test_a_disposal_from_another_thread() -> None:
    reached, left = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        reached.set()
        await for_ever()

    async def tell() -> None:
        left.set()

    provider = Provider("a", hold)
    provider.closing = tell
    subscription = provider.observable().subscribe(on_error=print)
    await reached.wait()
    with waking_only():
        await asyncio.to_thread(subscription.dispose)
    async with asyncio.timeout(5):
        await left.wait()


@pytest.mark.asyncio
async def test_a_disposal_by_the_subscriber_ends_the_decoding() -> None:
    provider = Provider(["a", "b", "c"], END)
    subscription = SerialDisposable()
    items: list[Any] = []

    def on_next(item: Any) -> None:
        items.append(item)
        if item == "b":
            subscription.dispose()

    subscription.disposable = provider.observable().subscribe(on_next)
    for _ in range(10):
        await asyncio.sleep(0)
    assert items == ["a", "b"]
    assert provider.log[-1] == "left"


def test_a_disposal_after_the_loop_is_closed() -> None:
    provider = Provider("a", for_ever)
    log: list[Any] = []

    async def main() -> Any:
        subscription = provider.observable().subscribe(log.append, log.append)
        for _ in range(3):
            await asyncio.sleep(0)
        return subscription

    subscription = asyncio.run(main())
    assert provider.log[-1] == "left"
    assert log[:2] == ["a", "a"]
    assert isinstance(log[2], StreamInterruptedError)
    assert not log[2].retryable
    subscription.dispose()


# subscribers that raise


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "error", [LookupError("own"), asyncio.CancelledError("own"), KeyError("own"), GeneratorExit("own")]
)
@pytest.mark.parametrize("at", ["a", "result"])
@pytest.mark.parametrize("disposing", [False, True])
async def test_a_subscriber_that_raises_gets_its_error_back(error: BaseException, at: str, disposing: bool) -> None:
    provider = Provider("a", END)
    log = Log()
    subscription = SerialDisposable()

    def on_next(item: Any) -> None:
        log.on_next(item)
        if item == at:
            if disposing:
                subscription.dispose()
            raise error

    subscription.disposable = provider.observable().subscribe(on_next, log.on_error, log.on_completed)
    for _ in range(20):
        await asyncio.sleep(0)
    assert provider.log[-1] == "left"
    assert log.items[-1] == at
    assert log.error is (None if disposing else error)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("disposing", [False, True])
def test_an_interrupt_goes_on(interrupt: type[BaseException], disposing: bool) -> None:
    provider = Provider("a", END)

    async def main() -> None:
        subscription = SerialDisposable()

        def on_next(item: Any) -> None:
            if disposing:
                subscription.dispose()
            raise interrupt

        subscription.disposable = provider.observable().subscribe(on_next, print)
        await for_ever()

    with pytest.raises(interrupt):
        asyncio.run(main())
    assert provider.log[-1] == "left"


# demand


@pytest.mark.asyncio
async def test_while_the_demand_is_closed_nothing_is_read() -> None:
    provider = Provider("a", "b", "c", END)
    demand = Demand()
    log = Log()

    def on_next(item: Any) -> None:
        log.on_next(item)
        demand.close()

    token = demand_context.set(demand)
    provider.observable().subscribe(on_next, log.on_error, log.on_completed)
    demand_context.reset(token)
    steps = []
    while not log.ended.is_set():
        for _ in range(5):
            await asyncio.sleep(0)
        steps.append((list(provider.read), len(log.items)))
        demand.open()
    assert steps[:4] == [(["a"], 1), (["a"], 2), (["a", "b"], 3), (["a", "b"], 4)]
    assert log.items == ["a", "a", "b", "b", "c", "c", "result"]


@pytest.mark.asyncio
async def test_a_disposal_while_the_demand_is_closed() -> None:
    provider = Provider("a", "b", END)
    demand = Demand()
    demand.close()
    token = demand_context.set(demand)
    log = Log()
    subscription = provider.observable().subscribe(log.on_next, log.on_error, log.on_completed)
    demand_context.reset(token)
    for _ in range(5):
        await asyncio.sleep(0)
    assert log.items == []
    subscription.dispose()
    for _ in range(10):
        await asyncio.sleep(0)
    assert provider.log[-1] == "left"
    assert log.ends == 0


@pytest.mark.asyncio
async def test_a_burst_lets_others_run() -> None:
    provider = Provider(list(range(1000)), END)
    turns: list[int] = []
    log = Log()
    provider.observable().subscribe(log.on_next, log.on_error, log.on_completed)
    while not log.ended.is_set():
        turns.append(len(log.items))
        await asyncio.sleep(0)
    assert log.items == [*range(1000), "result"]
    steps = [after - before for before, after in itertools.pairwise(turns)]
    assert max(steps) <= 128
    assert len(set(turns)) >= 1000 // 128


@pytest.mark.asyncio
async def test_an_asynchronous_reader_bounds_a_burst() -> None:
    provider = Provider(list(range(1000)), END)
    events = iterate(provider.observable(), buffer=16)
    seen = []
    async for item in events:
        seen.append(item)
        await asyncio.sleep(0)
    assert seen == [*range(1000), "result"]
    assert events.peak_buffered <= 16


@pytest.mark.asyncio
async def test_everything_is_told_in_the_loops_own_thread() -> None:
    provider = Provider("a", END)
    threads: set[int] = set()
    ended = asyncio.Event()
    provider.observable().subscribe(lambda _: threads.add(threading.get_ident()), on_completed=ended.set)
    await ended.wait()
    assert threads == {threading.get_ident()}


@pytest.mark.asyncio
@pytest.mark.parametrize("buffer", [8, 64, 256])
@pytest.mark.parametrize("sources", [1, 3, 6, 40])
async def test_any_number_of_sources_keep_one_readers_bound(sources: int, buffer: int) -> None:
    provider = Provider(list(range(100)), END)
    merged = reactivex.merge(*(provider.observable() for _ in range(sources)))
    events = iterate(merged, buffer=buffer)
    seen = 0
    async for _ in events:
        seen += 1
        await asyncio.sleep(0)
    assert seen == sources * 101
    assert events.peak_buffered <= buffer
