"""One turn for many watchers in its own process: rxloop's hot turn, RxPY's own sharing, and queues by hand."""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.contenders import PROMPT, OnDelta
from benchmarks.rxloop_rows import _RxLoopTurn, imported


class Seen:
    """What a watcher has seen, and whether it has seen the end."""

    def __init__(self, on_delta: OnDelta) -> None:
        self._on_delta = on_delta
        self.length = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_next(self, event: Any) -> None:
        if event.type == "text_delta":
            text = event.text
            self.length += len(text)
            self._on_delta(text)

    def on_completed(self) -> None:
        self.done.set_result(None)


class _FanOut(_RxLoopTurn):
    """One turn, and watchers that each see all of it."""

    async def text(self, model: str, on_delta: OnDelta) -> int:
        return (await self.fan_out(model, 1, 0, on_delta))[0]

    async def _read(self, source: Any, watchers: list[Seen]) -> None:
        """Subscribe all the watchers and wait for their ends."""
        for seen in watchers:
            source.subscribe(seen.on_next, seen.done.set_exception, seen.on_completed)
        if hasattr(source, "connect"):
            source.connect()
        await asyncio.gather(*(seen.done for seen in watchers))


class HotSubscribed(_FanOut):
    """`turn.start()`, and a subscriber for each watcher."""

    async def fan_out(self, model: str, watchers: int, stalled: int, on_delta: OnDelta) -> list[int]:
        seen = [Seen(on_delta) for _ in range(watchers)]
        await self._read(self._turn(model).start(), seen)
        return [each.length for each in seen]


class HotWatch(_FanOut):
    """`turn.start()`, and `async for event in hot.watch()` in a task for each watcher."""

    async def fan_out(self, model: str, watchers: int, stalled: int, on_delta: OnDelta) -> list[int]:
        hot = self._turn(model).start()

        async def read(stalls: bool) -> int:
            seen = Seen(on_delta)
            async for event in hot.watch():
                seen.on_next(event)
                if stalls:
                    stalls = False
                    await hot.result()
            return seen.length

        return list(await asyncio.gather(*(read(number < stalled) for number in range(watchers))))


class _Shared(_FanOut):
    """The cold turn behind one of RxPY's operators."""

    operator: str

    def __init__(self, url: str) -> None:
        self._operator = imported("reactivex.operators", self.operator)
        super().__init__(url)

    async def fan_out(self, model: str, watchers: int, stalled: int, on_delta: OnDelta) -> list[int]:
        seen = [Seen(on_delta) for _ in range(watchers)]
        await self._read(self._turn(model).pipe(self._operator()), seen)
        return [each.length for each in seen]


class RxPublish(_Shared):
    """`ops.publish()`: who comes late misses what was."""

    operator = "publish"


class RxShare(_Shared):
    """`ops.share()`: the same, connected by the first subscriber."""

    operator = "share"


class RxReplay(_Shared):
    """`ops.replay()`: all events are kept for who comes late."""

    operator = "replay"


class Queues(_FanOut):
    """What one writes by hand: an `asyncio.Queue` for each watcher, without a limit, and a task that reads it."""

    async def fan_out(self, model: str, watchers: int, stalled: int, on_delta: OnDelta) -> list[int]:
        queues: list[asyncio.Queue[Any]] = [asyncio.Queue() for _ in range(watchers)]
        over = asyncio.Event()

        async def read(queue: asyncio.Queue[Any], stalls: bool) -> int:
            seen = Seen(on_delta)
            while (event := await queue.get()) is not None:
                seen.on_next(event)
                if stalls:
                    stalls = False
                    await over.wait()
            return seen.length

        async def write() -> None:
            async for event in self._turn_class(self._adapter(model), PROMPT):
                for queue in queues:
                    queue.put_nowait(event)
            for queue in queues:
                queue.put_nowait(None)
            over.set()

        reading = [read(queue, number < stalled) for number, queue in enumerate(queues)]
        _, *lengths = await asyncio.gather(write(), *reading)
        return [length for length in lengths if length is not None]
