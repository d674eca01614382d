"""What blocks is read on a thread, and handed over."""

from __future__ import annotations

import asyncio
import gc
import queue
import threading
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from rxloop.adapters import blocking
from rxloop.adapters.blocking import read_on_thread

_variable: ContextVar[str] = ContextVar("variable", default="unset")
END = object()


class Scripted:
    """A source that gives what a test puts in, and blocks where there is nothing."""

    sized = False
    most = 4

    def __init__(self, *items: Any, ends: bool = True) -> None:
        self.queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for item in (*items, *([END] if ends else [])):
            self.queue.put(item)
        self.given = 0
        self.calls: list[str] = []
        self.closed = threading.Event()
        self.opening: Exception | None = None
        self.seen: str | None = None
        self.threads: set[int] = set()

    def open(self) -> Iterator[Any]:
        self.calls.append("open")
        self.threads.add(threading.get_ident())
        self.seen = _variable.get()
        if self.opening is not None:
            raise self.opening
        return self._items()

    def _items(self) -> Iterator[Any]:
        while (item := self.queue.get()) is not END:
            if isinstance(item, Exception):
                raise item
            self.given += 1
            yield item

    def close(self) -> None:
        self.threads.add(threading.get_ident())
        self.calls.append("close")
        self.closed.set()

    def interrupt(self, thread: int) -> bool:
        assert thread in self.threads
        self.calls.append("interrupt")
        self.queue.put(END)
        return True


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        # another thread makes it true
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_everything_arrives_in_order_and_the_source_is_closed_once() -> None:
    source = Scripted(*range(1000))
    async with read_on_thread(source) as lists:
        found = [item async for items in lists for item in items]
    assert found == list(range(1000))
    assert source.calls == ["open", "close"]
    assert source.threads == {ident for ident in source.threads if ident != threading.get_ident()}


@pytest.mark.asyncio
async def test_the_thread_has_the_callers_context() -> None:
    token = _variable.set("the caller's")
    try:
        source = Scripted()
        async with read_on_thread(source) as lists:
            assert [items async for items in lists] == []
    finally:
        _variable.reset(token)
    assert source.seen == "the caller's"


@pytest.mark.asyncio
async def test_what_opening_raises_is_raised_on_entering() -> None:
    source = Scripted()
    source.opening = OSError("no route")
    with pytest.raises(OSError, match="no route"):
        async with read_on_thread(source):
            raise AssertionError
    assert source.calls == ["open", "close"]


@pytest.mark.asyncio
async def test_what_the_source_raises_comes_after_its_items() -> None:
    source = Scripted(1, 2, OSError("broken"), ends=False)
    async with read_on_thread(source) as lists:
        await asyncio.to_thread(source.closed.wait, 5)
        assert await anext(lists) == [1, 2]
        with pytest.raises(OSError, match="broken"):
            await anext(lists)


@pytest.mark.asyncio
async def test_the_thread_waits_while_the_most_is_held() -> None:
    source = Scripted(*range(100))
    async with read_on_thread(source) as lists:
        await until(lambda: source.given == 4)
        # nobody reads: whatever time the thread is given, it takes no more
        for _ in range(1000):
            await asyncio.sleep(0)
        assert source.given == 4
        assert await anext(lists) == [0, 1, 2, 3]
        await until(lambda: source.given == 8)
        rest = [item async for items in lists for item in items]
    assert rest == list(range(4, 100))


@pytest.mark.asyncio
async def test_bytes_count_as_many_as_they_are() -> None:
    source = Scripted(*[b"123"] * 10)
    source.sized = True
    source.most = 7
    async with read_on_thread(source) as lists:
        await until(lambda: source.given == 3)
        assert await anext(lists) == [b"123"] * 3
        assert len([item async for items in lists for item in items]) == 7


@pytest.mark.asyncio
@pytest.mark.parametrize("items", [0, 1, 100])
async def test_leaving_interrupts_what_blocks_and_does_not_wait(items: int) -> None:
    source = Scripted(*range(items), ends=False)
    async with read_on_thread(source):
        await until(lambda: source.given == min(items, 4))
    # it left at once, whatever the thread does
    assert "interrupt" in source.calls
    await until(source.closed.is_set)
    assert source.calls[0] == "open"
    assert source.calls.count("close") == 1


@pytest.mark.asyncio
async def test_leaving_before_it_is_open() -> None:
    class Opening(Scripted):
        def open(self) -> Iterator[Any]:
            super().open()
            # as a connection that nobody answers
            self.queue.get()
            return iter(())

    source = Opening(ends=False)

    async def read() -> None:
        async with read_on_thread(source):
            raise AssertionError

    task = asyncio.ensure_future(read())
    await until(lambda: source.calls == ["open"])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "interrupt" in source.calls
    await until(source.closed.is_set)


@pytest.mark.asyncio
async def test_an_interrupt_that_comes_too_early_is_repeated() -> None:
    reached = threading.Event()

    class Late(Scripted):
        interrupts = 0

        def interrupt(self, thread: int) -> bool:
            self.interrupts += 1
            return reached.is_set() and super().interrupt(thread)

    source = Late(ends=False)
    async with read_on_thread(source):
        pass
    assert source.interrupts >= 1
    assert not source.closed.is_set()
    reached.set()
    await until(source.closed.is_set)
    assert source.interrupts >= 2


@pytest.mark.asyncio
async def test_a_source_that_cannot_be_closed_does_not_spoil_what_it_gave() -> None:
    class Stubborn(Scripted):
        def close(self) -> None:
            super().close()
            raise OSError("already gone")

    async with read_on_thread(Stubborn(1)) as lists:
        assert [items async for items in lists] == [[1]]


@pytest.mark.asyncio
async def test_a_fast_source_does_not_wake_the_loop_for_every_item(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the eighth list on that comes at once, the reader looks once per millisecond."""
    source = Scripted(*range(3000))
    source.most = 10_000
    woken = 0
    wake = blocking._Reading._wake

    def counted(reading: Any) -> None:
        nonlocal woken
        woken += 1
        wake(reading)

    monkeypatch.setattr(blocking._Reading, "_wake", counted)
    lists_seen = 0
    async with read_on_thread(source) as lists:
        async for items in lists:
            assert items
            lists_seen += 1
    assert lists_seen < 1000
    assert woken < 1000


def test_a_loop_that_was_closed_is_no_fault() -> None:
    source = Scripted(1, ends=False)

    async def abandon() -> Any:
        context = read_on_thread(source)
        lists = await context.__aenter__()
        assert await anext(lists) == [1]
        return context

    runner = asyncio.Runner()
    context = runner.run(abandon())
    runner.close()
    source.queue.put(2)
    source.queue.put(END)
    assert source.closed.wait(5)
    del context


@pytest.mark.asyncio
async def test_nothing_holds_a_source_that_was_read() -> None:
    source = Scripted(1)
    watched = weakref.ref(source)
    async with read_on_thread(source) as lists:
        assert [items async for items in lists] == [[1]]
    del source, lists
    gc.collect()
    assert watched() is None
