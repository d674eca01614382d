"""One run, many watchers, none of whom can hurt it."""

from __future__ import annotations

import asyncio
import gc
import threading
import traceback
from typing import Any

import pytest
import reactivex
from reactivex import operators as ops
from reactivex.subject import Subject
from reactivex.testing import TestScheduler

from rxloop import event_log
from rxloop.channel import iterate
from rxloop.errors import BufferOverflowError, ConfigurationError, RxLoopError, ServerError
from rxloop.events import (
    StepFinished,
    TextDelta,
    ToolFinished,
    ToolProgress,
    TurnEvent,
    TurnFinished,
    TurnStarted,
)
from rxloop.hot import HotTurn
from rxloop.limits import Limits
from rxloop.merging import merge_adjacent
from rxloop.testing import CallTool, ScriptedAdapter, Think, Wait, check_grammar
from rxloop.testing.scripted_adapter import Said
from rxloop.tools import ToolContext, tool
from rxloop.turn import Turn
from rxloop.usage import Usage
from tests.providers.anthropic import AnthropicServer
from tests.providers.anthropic import text as text_block
from tests.turns import NO_RETRY, connected

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(15)]


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def turn(*steps: list[Said], **options: Any) -> Turn:
    return Turn(ScriptedAdapter(*steps), "hello", **{"tools": [add], "retry": NO_RETRY, **options})


def merged(events: list[Any]) -> list[Any]:
    return [event for _, event in merge_adjacent(enumerate(events))]


async def rounds(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def read(watcher: Any) -> tuple[list[TurnEvent], Exception | None]:
    """What a watcher has, and what it ends with."""
    received: list[TurnEvent] = []
    try:
        async for event in watcher:
            received.append(event)  # noqa: PERF401
    except RxLoopError as error:
        return received, error
    return received, None


class Seen:
    """A subscriber that keeps what it gets."""

    def __init__(self) -> None:
        self.events: list[TurnEvent] = []
        self.error: Exception | None = None
        self.completed = False

    def watch(self, source: reactivex.Observable[Any]) -> Any:
        return source.subscribe(self.events.append, self._failed, self._done)

    def _failed(self, error: Exception) -> None:
        self.error = error

    def _done(self) -> None:
        self.completed = True


class Gate:
    """A tool that waits until it is let go, so that a test can look at a turn in its middle."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.go = asyncio.Event()

        @tool
        async def wait(context: ToolContext) -> str:
            """Wait."""
            context.report("waiting")
            self.entered.set()
            await self.go.wait()
            return "gone"

        self.tool = wait


STEPS: tuple[list[Said], ...] = (
    [Think("hm"), Think("m"), "He", "llo", CallTool("add", {"a": 1, "b": 2})],
    ["thr", "ee", " it", " is"],
)


async def test_it_runs_once_for_all_of_its_watchers() -> None:
    adapter = ScriptedAdapter(*STEPS)
    hot = Turn(adapter, "hello", tools=[add]).start()
    first, second = Seen(), Seen()
    first.watch(hot)
    second.watch(hot)
    by_iterating = [event async for event in hot]
    result = await hot.result()
    assert (result.text, result.finish_reason) == ("three it is", "stop")
    assert len(adapter.requests) == 2
    for seen in (first, second):
        check_grammar(seen.events)
        assert seen.completed
        assert seen.error is None
    assert first.events == second.events
    assert merged(by_iterating) == merged(first.events)
    assert hot.ended is result
    assert hot.watchers == 0


async def test_it_runs_with_nobody_watching() -> None:
    hot = turn(*STEPS).start()
    assert (await hot.result()).text == "three it is"
    assert hot.usage == (await hot.result()).usage == Usage(20, 10)


async def test_it_starts_at_once_and_again_each_time() -> None:
    adapter = ScriptedAdapter(["a"], ["b"], ["c"])
    cold = Turn(adapter, "hello")
    first, second = cold.start(), cold.start()
    assert first.turn_id != second.turn_id
    assert cold.start(turn_id="mine").turn_id == "mine"
    assert [(await hot.result()).text for hot in (first, second)] == ["a", "b"]


async def test_who_comes_late_gets_what_was_so_far_merged_and_then_what_follows() -> None:
    gate = Gate()
    hot = turn([Think("h"), Think("m"), "a", "b", CallTool("wait")], ["c", "d"], tools=[gate.tool]).start()
    early = Seen()
    early.watch(hot)
    await gate.entered.wait()
    assert len([event for event in early.events if type(event) is TextDelta]) == 2
    late = Seen()
    late.watch(hot)
    assert late.events == merged(early.events)
    assert late.events[-1] == ToolProgress(0, "call_0_0", "wait", "waiting")
    before = len(late.events)
    gate.go.set()
    await hot.result()
    assert late.events[before:] == early.events[-len(late.events[before:]) :]
    check_grammar(late.events)
    afterwards = Seen()
    afterwards.watch(hot)
    assert afterwards.completed
    assert afterwards.events == merged(early.events)
    assert [event async for event in hot.watch("error")] == merged(early.events)


async def test_the_usage_is_live() -> None:
    gate = Gate()
    hot = turn(["a", CallTool("wait")], ["b"], tools=[gate.tool]).start()
    assert hot.usage == Usage()
    await gate.entered.wait()
    assert hot.usage == Usage(10, 5)
    gate.go.set()
    await hot.result()
    assert hot.usage == Usage(20, 10)


async def test_a_replay_is_bounded_and_keeps_the_first_event() -> None:
    progress = 50

    @tool
    async def report(context: ToolContext) -> str:
        """Report."""
        for number in range(progress):
            context.report(number)
        return "done"

    hot = turn([CallTool("report")], ["it", "is"], tools=[report]).start(replay=8)
    full = Seen()
    full.watch(hot)
    await hot.result()
    late = Seen()
    late.watch(hot)
    assert len(full.events) > progress
    assert late.events == [full.events[0], *merged(full.events)[-7:]]
    assert isinstance(late.events[0], TurnStarted)


async def test_stop_ends_it_gracefully_for_everybody() -> None:
    gate = Gate()
    hot = turn(["a", CallTool("wait")], ["b"], tools=[gate.tool]).start()
    seen = Seen()
    seen.watch(hot)
    await gate.entered.wait()
    hot.stop()
    hot.stop()
    result = await hot.result()
    assert (result.finish_reason, result.text) == ("aborted", "a")
    assert isinstance(seen.events[-1], TurnFinished)
    assert seen.completed
    check_grammar(seen.events)
    hot.stop()
    hot.dispose()
    assert (await hot.result()) is result


async def test_stop_from_another_thread() -> None:
    gate = Gate()
    hot = turn(["a", CallTool("wait")], tools=[gate.tool]).start()
    await gate.entered.wait()
    thread = threading.Thread(target=hot.stop)
    thread.start()
    thread.join()
    assert (await hot.result()).finish_reason == "aborted"


async def test_the_stop_of_the_turn_itself_works_too() -> None:
    stop: Subject[int] = Subject()
    gate = Gate()
    hot = turn(["a", CallTool("wait")], tools=[gate.tool], stop=stop).start()
    await gate.entered.wait()
    stop.on_next(1)
    assert (await hot.result()).finish_reason == "aborted"


async def test_dispose_ends_it_at_once_and_leaves_nobody_waiting() -> None:
    gate = Gate()
    hot = turn(["a", CallTool("wait")], tools=[gate.tool]).start()
    seen = Seen()
    seen.watch(hot)
    watcher = hot.watch()
    await gate.entered.wait()
    waiting = asyncio.ensure_future(hot.result())
    await asyncio.sleep(0)
    hot.dispose()
    assert (await waiting).finish_reason == "aborted"
    assert seen.completed
    assert not isinstance(seen.events[-1], TurnFinished)
    assert [event async for event in watcher] == merged(seen.events)


async def test_stop_and_dispose_before_it_has_begun() -> None:
    adapter = ScriptedAdapter(["a"], ["b"])
    stopped, disposed = Turn(adapter, "hello").start(), Turn(adapter, "hello").start()
    seen = [Seen(), Seen()]
    seen[0].watch(stopped)
    seen[1].watch(disposed)
    stopped.stop()
    disposed.dispose()
    assert (await stopped.result()).finish_reason == "aborted"
    assert (await disposed.result()).finish_reason == "aborted"
    assert [type(event) for event in seen[0].events] == [TurnStarted, TurnFinished]
    assert seen[1].events == []
    assert seen[1].completed
    assert adapter.requests == []


async def test_an_on_end_that_raises_leaves_nobody_waiting() -> None:
    def on_end(result: Any) -> None:
        raise LookupError("nobody is told")

    gate = Gate()
    hot = turn(["a", CallTool("wait")], tools=[gate.tool], on_end=on_end).start()
    watcher = hot.watch()
    waiting = asyncio.ensure_future(hot.result())
    await gate.entered.wait()
    with pytest.raises(LookupError):
        hot.dispose()
    async with asyncio.timeout(2):
        assert (await waiting).finish_reason == "aborted"
        assert len([event async for event in watcher]) > 2


async def test_on_end_is_told_of_a_turn_that_was_disposed_before_it_began() -> None:
    told: list[Any] = []
    hot = turn(["a"], on_end=told.append).start()
    hot.dispose()
    hot.dispose()
    assert told == [await hot.result()]


async def test_a_failure_reaches_everybody_with_what_there_was() -> None:
    error = ServerError("out of order", retryable=False)
    hot = turn(["a", "b", error]).start()
    seen = Seen()
    seen.watch(hot)
    received, raised = await read(hot)
    assert raised is seen.error is error
    assert merged(received) == merged(seen.events)
    assert error.partial is not None
    assert error.partial.text == "ab"
    for _ in range(2):
        with pytest.raises(ServerError):
            await hot.result()
    late = Seen()
    late.watch(hot)
    assert late.error is error


@pytest.mark.parametrize("heard", ["nobody", "left", "subscribed", "watched", "awaited", "ended", "on_end"])
async def test_a_failure_that_nobody_was_told_of_is_reported_to_the_loop(heard: str) -> None:
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    over: list[Any] = []
    error = ServerError("out of order", retryable=False)
    hot = turn(["a", error], **({"on_end": over.append} if heard == "on_end" else {})).start()
    if heard == "subscribed":
        Seen().watch(hot)
    if heard == "left":
        hot.subscribe().dispose()
    await rounds(50)
    if heard == "watched":
        assert (await read(hot))[1] is error
    if heard == "awaited":
        with pytest.raises(ServerError):
            await hot.result()
    if heard == "ended":
        assert hot.ended is not None
    del hot
    gc.collect()
    if heard in ("nobody", "left"):
        assert [context["exception"] for context in reported] == [error]
        assert "nobody was told" in reported[0]["message"]
    else:
        assert reported == []


async def test_a_failure_keeps_nothing_of_those_who_got_it() -> None:
    hot = turn(["a", ServerError("out of order", retryable=False)]).start()
    depths = []
    for _ in range(5):
        for _ in range(3):
            with pytest.raises(ServerError):
                await hot.result()
            await read(hot)
        with pytest.raises(ServerError) as raised:
            await hot.result()
        depths.append(len(list(traceback.walk_tb(raised.value.__traceback__))))
    assert len(set(depths)) == 1


async def test_cancelling_one_who_waits_for_the_result_leaves_the_turn() -> None:
    gate = Gate()
    hot = turn(["a", CallTool("wait")], ["b"], tools=[gate.tool]).start()
    waiting = asyncio.ensure_future(hot.result())
    await gate.entered.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    # nothing is kept of one who asks again and again
    assert not hot._awaited
    gate.go.set()
    assert (await hot.result()).text == "b"
    assert not hot._awaited


# watchers that misbehave


async def test_a_subscriber_that_raises_ends_its_own_subscription_alone() -> None:
    hot = turn(*STEPS).start()
    good, heard = Seen(), []
    count = 0

    def bad(event: TurnEvent) -> None:
        nonlocal count
        count += 1
        if count == 3:
            raise LookupError("mine")

    hot.subscribe(bad, heard.append)
    good.watch(hot)
    result = await hot.result()
    assert result.finish_reason == "stop"
    assert [str(error) for error in heard] == ["mine"]
    assert count == 3
    assert good.completed
    check_grammar(good.events)


async def test_what_no_subscriber_takes_is_reported_to_the_loop() -> None:
    reported: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))

    def bad(event: TurnEvent) -> None:
        raise LookupError("mine")

    def worse(*_: object) -> None:
        raise KeyError("end")

    error = ServerError("out of order", retryable=False)
    hot = turn(["a", error]).start()
    hot.subscribe(bad)
    hot.subscribe(on_error=worse)
    hot.subscribe()
    good = Seen()
    good.watch(hot)
    with pytest.raises(ServerError):
        await hot.result()
    await asyncio.sleep(0)
    assert good.error is error
    assert [type(item) for item in reported] == [LookupError, KeyError, ServerError]


async def test_an_interrupt_in_a_subscriber_ends_the_run_and_leaves_nobody_waiting() -> None:
    gate = Gate()
    hot = turn(["a", CallTool("wait")], ["b"], tools=[gate.tool]).start()
    watcher = hot.watch()
    await gate.entered.wait()

    def interrupt(event: TurnEvent) -> None:
        if isinstance(event, ToolFinished):
            raise KeyboardInterrupt

    hot.subscribe(interrupt)
    with pytest.raises(KeyboardInterrupt):
        hot._on_next(ToolFinished(0, "call_0_0", "wait", "x", None, False, 0.0))
    assert (await hot.result()).finish_reason == "aborted"
    assert [event async for event in watcher]


async def test_leaving_harms_nobody() -> None:
    gate = Gate()
    hot = turn(["a", CallTool("wait")], ["b"], tools=[gate.tool]).start()
    subscription = hot.subscribe()
    other = Seen()
    other.watch(hot)
    async for _ in hot:
        break
    async with hot.watch("block") as watcher:
        assert isinstance(await anext(watcher), TurnStarted)
    gc.collect()
    await gate.entered.wait()
    assert hot.watchers == 2
    subscription.dispose()
    subscription.dispose()
    assert hot.watchers == 1
    gate.go.set()
    await hot.result()
    assert other.completed


async def test_a_subscriber_may_subscribe_leave_and_stop_while_it_is_told() -> None:
    hot = turn([*STEPS[0]], STEPS[1]).start()
    inner, all_of_it = Seen(), Seen()

    def on_next(event: TurnEvent) -> None:
        if isinstance(event, StepFinished) and event.step == 0:
            inner.watch(hot)
            subscription.dispose()
            hot.stop()

    subscription = hot.subscribe(on_next)
    all_of_it.watch(hot)
    assert (await hot.result()).finish_reason == "aborted"
    assert merged(inner.events) == merged(all_of_it.events)
    check_grammar(all_of_it.events)


async def test_take_and_other_operators_apply() -> None:
    hot = turn(*STEPS).start()
    first = await hot.pipe(ops.take(1))
    assert isinstance(first, TurnStarted)
    both: list[Any] = []
    reactivex.merge(hot, turn(["other"])).subscribe(both.append)
    await hot.result()
    await rounds(20)
    assert sum(isinstance(event, TurnFinished) for event in both) == 2


async def test_iterating_over_what_was_made_of_it_is_bounded_and_loses_nothing() -> None:
    hot = turn(["x"] * 500, ["y"]).start()
    everything = Seen()
    everything.watch(hot)
    lagging = iterate(hot.pipe(ops.filter(lambda event: True)), buffer=8)
    await hot.result()
    received = []
    async for event in lagging:
        received.append(event)
        await asyncio.sleep(0)
    assert lagging.peak_buffered <= 8
    assert merged(received) == merged(everything.events)


# what happens when one lags


async def test_coalesce_merges_and_loses_nothing() -> None:
    hot = turn(["x"] * 500 + [CallTool("add", {"a": 1, "b": 2})], ["y"] * 500).start()
    everything = Seen()
    everything.watch(hot)
    stalled, brisk = hot.watch(), hot.watch()
    first = await anext(stalled)
    await hot.result()
    received = [first] + [event async for event in stalled]
    assert received == merged(everything.events)
    assert merged([event async for event in brisk]) == received
    assert stalled.dropped == 0


async def test_coalescing_never_merges_what_another_has_read_a_part_of() -> None:
    hot = turn(["a", "b", Wait(0.01), "c", "d", Wait(0.01), "e"]).start()
    everything = Seen()
    everything.watch(hot)
    readers = [hot.watch() for _ in range(4)]
    received: list[list[Any]] = [[] for _ in readers]

    async def read(place: int) -> None:
        async for event in readers[place]:
            received[place].append(event)
            if place == 1 and len(received[1]) == 3:
                await asyncio.sleep(0.015)
            if place == 2:
                await asyncio.sleep(0.004)

    await asyncio.gather(*(read(place) for place in range(4)))
    for events in received:
        # every one of them knows all, none has anything twice
        assert "".join(event.text for event in events if type(event) is TextDelta) == "abcde"
        assert merged(events) == merged(everything.events)


async def test_drop_oldest_keeps_the_newest_and_counts() -> None:
    hot = turn([*(["x", Think("y")] * 100)]).start()
    everything = Seen()
    watcher = hot.watch("drop_oldest", buffer=8)
    everything.watch(hot)
    await hot.result()
    received = [event async for event in watcher]
    assert received == everything.events[-8:]
    assert watcher.dropped == len(everything.events) - 8


async def test_error_ends_the_watcher_alone_after_what_waited() -> None:
    hot = turn([*(["x", Think("y")] * 100)]).start()
    everything = Seen()
    everything.watch(hot)
    watcher = hot.watch("error", buffer=8)
    result = await hot.result()
    assert result.finish_reason == "stop"
    received, error = await read(watcher)
    assert isinstance(error, BufferOverflowError)
    assert "at most 8 events" in error.message
    assert received == everything.events[:8]
    assert [event async for event in watcher] == []


async def test_what_was_missed_does_not_count_as_lag() -> None:
    gate = Gate()
    hot = turn([*(["x", Think("y")] * 100), CallTool("wait")], ["z"], tools=[gate.tool]).start()
    await gate.entered.wait()
    everything = Seen()
    everything.watch(hot)
    watchers = [hot.watch("error", buffer=8), hot.watch("block", buffer=16), hot.watch("drop_oldest", buffer=8)]
    gate.go.set()
    await hot.result()
    for watcher in watchers:
        assert [event async for event in watcher] == everything.events


async def test_block_makes_the_turn_wait_down_to_its_socket() -> None:
    with AnthropicServer() as server:
        server.reply(text_block("x" * 500, pieces=500))
        async with connected(server) as adapter:
            hot = Turn(adapter, "hello", retry=NO_RETRY).start()
            watcher = hot.watch("block", buffer=16)
            others, enough = Seen(), asyncio.Event()
            others.watch(hot)
            hot.pipe(ops.skip(11)).subscribe(lambda _: enough.set())
            async with asyncio.timeout(5):
                await enough.wait()
                await rounds(200)
            held = len(others.events)
            assert held <= 16
            assert hot.ended is None
            received = [event async for event in watcher]
            assert received == others.events
            assert len(received) > 400
            assert (await hot.result()).finish_reason == "stop"


async def test_a_blocking_watcher_that_stalls_is_ended_when_patience_is_over() -> None:
    hot = turn([*(["x", Think("y")] * 200)]).start()
    everything = Seen()
    everything.watch(hot)
    watcher = hot.watch("block", buffer=16, patience=0.02)
    assert isinstance(await anext(watcher), TurnStarted)
    async with asyncio.timeout(5):
        assert (await hot.result()).finish_reason == "stop"
    check_grammar(everything.events)
    received, error = await read(watcher)
    assert isinstance(error, BufferOverflowError)
    assert "within 0.02 s" in error.message
    assert received == everything.events[1 : 1 + len(received)]


async def test_a_blocking_watcher_that_leaves_lets_the_turn_go_on() -> None:
    hot = turn([*(["x", Think("y")] * 200)]).start()
    watcher = hot.watch("block", buffer=16)
    await rounds(50)
    assert hot.ended is None
    await watcher.aclose()
    assert (await hot.result()).finish_reason == "stop"


async def test_a_blocking_watcher_may_be_collected_in_the_middle_of_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    hot = turn(["x"] * 200).start()
    circle: list[Any] = [hot.watch("block", buffer=16)]
    circle.append(circle)
    await rounds(50)
    # the end waits for the watcher
    hot.stop()
    merge = event_log._merged

    def collecting(events: Any) -> Any:
        gc.collect()
        return merge(events)

    monkeypatch.setattr(event_log, "_merged", collecting)
    del circle
    received = [event async for event in hot]
    assert isinstance(received[-1], TurnFinished)
    check_grammar(received)


async def test_a_stop_reaches_a_turn_that_waits_for_a_watcher() -> None:
    hot = turn([*(["x", Think("y")] * 200)]).start()
    watcher = hot.watch("block", buffer=16)
    await rounds(50)
    hot.stop()
    received = [event async for event in watcher]
    assert isinstance(received[-1], TurnFinished)
    assert received[-1].finish_reason == "aborted"


# counting watchers


async def test_it_stops_when_the_last_watcher_has_left() -> None:
    gate = Gate()
    hot = turn(["a", CallTool("wait")], tools=[gate.tool]).start(stop_unwatched_after=0)
    await gate.entered.wait()
    assert hot.ended is None
    first, second = hot.subscribe(), hot.watch()
    first.dispose()
    assert hot.ended is None
    await second.aclose()
    assert (await hot.result()).finish_reason == "aborted"


async def test_one_who_comes_back_in_time_keeps_it_going() -> None:
    gate = Gate()
    hot = turn(["a", CallTool("wait")], ["b"], tools=[gate.tool]).start(stop_unwatched_after=0.02)
    await gate.entered.wait()
    hot.subscribe().dispose()
    back = hot.subscribe()
    await asyncio.sleep(0.04)
    assert hot.ended is None
    back.dispose()
    assert (await hot.result()).finish_reason == "aborted"


async def test_it_goes_on_unwatched_by_default() -> None:
    gate = Gate()
    hot = turn(["a", CallTool("wait")], ["b"], tools=[gate.tool]).start()
    await gate.entered.wait()
    hot.subscribe().dispose()
    gate.go.set()
    assert (await hot.result()).text == "b"


# values


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replay": 0}, "replay must be"),
        ({"replay": 1.5}, "replay must be"),
        ({"stop_unwatched_after": -1}, "stop_unwatched_after must be"),
        ({"stop_unwatched_after": True}, "stop_unwatched_after must be"),
        ({"stop_unwatched_after": float("nan")}, "stop_unwatched_after must be"),
    ],
)
async def test_its_values_are_checked_before_anything_runs(options: dict[str, Any], message: str) -> None:
    adapter = ScriptedAdapter(["a"])
    with pytest.raises(ConfigurationError, match=message):
        Turn(adapter, "hello").start(**options)
    assert adapter.requests == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"overflow": "buffer"}, "overflow must be one of block, drop_oldest, coalesce, error, but got 'buffer'"),
        ({"overflow": "block", "buffer": 7}, "buffer must be"),
        ({"overflow": "coalesce", "buffer": 7}, "buffer must be"),
        ({"overflow": "block", "patience": 0}, "patience must be"),
        ({"overflow": "block", "patience": "1"}, "patience must be"),
    ],
)
async def test_a_watchers_values_are_checked(arguments: dict[str, Any], message: str) -> None:
    hot = turn(["a"]).start()
    with pytest.raises(ConfigurationError, match=message):
        hot.watch(**arguments)
    assert hot.watchers == 0
    await hot.result()


async def test_a_watcher_has_one_reader_at_a_time() -> None:
    gate = Gate()
    hot = turn([CallTool("wait")], tools=[gate.tool]).start()
    await gate.entered.wait()
    watcher = hot.watch()
    while watcher._reader._refill() or watcher._reader._waiting:
        await anext(watcher)
    first = asyncio.ensure_future(anext(watcher))
    await asyncio.sleep(0)
    with pytest.raises(ConfigurationError, match="one reader at a time"):
        await anext(watcher)
    hot.dispose()
    with pytest.raises(StopAsyncIteration):
        await first


async def test_its_repr_says_how_it_is() -> None:
    hot = turn(["a"], turn_id="t1").start()
    hot.subscribe()
    assert repr(hot) == "<HotTurn t1 running, 1 watchers>"
    await hot.result()
    assert repr(hot) == "<HotTurn t1 ended, 0 watchers>"


async def test_it_cannot_start_without_an_event_loop() -> None:
    def start() -> None:
        with pytest.raises(ConfigurationError, match="event loop"):
            turn(["a"]).start()

    await asyncio.to_thread(start)


async def test_it_runs_on_virtual_time() -> None:
    time = TestScheduler()
    hot = turn(["a", Wait(5), "b"], scheduler=time).start()
    seen = Seen()
    seen.watch(hot)
    time.advance_by(1)
    assert seen.events[-1] == TextDelta(0, "a")
    time.advance_by(10)
    assert seen.completed


async def test_a_clock_of_the_turn_ends_it_for_everybody() -> None:
    hot = turn(["a", Wait(5), "b"], limits=Limits(turn_timeout=0.01)).start()
    seen = Seen()
    seen.watch(hot)
    with pytest.raises(Exception, match="turn_timeout"):
        await hot.result()
    assert seen.error is not None


async def test_every_watcher_agrees_wherever_it_comes_in() -> None:
    """Subscribers that come in after every event, readers of every policy beside them: all know the same at the end."""
    hot: HotTurn
    joined: list[Seen] = []
    everything = Seen()

    def join(event: TurnEvent) -> None:
        seen = Seen()
        joined.append(seen)
        seen.watch(hot)

    script: list[Said] = ["a", Think("b"), "c", "d", Wait(0.001), "e", CallTool("add", {"a": 1, "b": 2})]
    hot = turn(script, ["f", Wait(0.001), "g", "h"]).start()
    everything.watch(hot)
    hot.subscribe(join)
    await hot.result()
    assert len(joined) > 10
    for seen in joined:
        assert merged(seen.events) == merged(everything.events)
        assert seen.completed
