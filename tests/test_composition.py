"""A turn is an observable: what ReactiveX has composes it, and everything is released."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import reactivex
from reactivex import Observable
from reactivex import operators as ops
from reactivex.disposable import SerialDisposable
from reactivex.scheduler.eventloop import AsyncIOThreadSafeScheduler
from reactivex.subject import Subject

from rxloop.channel import iterate
from rxloop.errors import OverloadedError, RxLoopError
from rxloop.events import TextDelta, ToolFinished, TurnEvent, TurnFinished, TurnStarted
from rxloop.operators import text as text_of
from rxloop.operators import tool_calls
from rxloop.testing.grammar import check_grammar
from rxloop.testing.scripted import Recorder
from rxloop.tools import tool
from rxloop.turn import Turn
from tests.providers.anthropic import AnthropicServer, message, text, tool_use
from tests.providers.http import Hold, Reply, Request
from tests.turns import NO_RETRY, add, connected


@pytest.fixture
def server() -> Iterator[AnthropicServer]:
    with AnthropicServer() as server:
        yield server


def parrot(request: Request) -> Reply:
    """A model that repeats its prompt, word by word; "wait" makes it fall silent after that."""
    prompt = request.json["messages"][-1]["content"][-1]["text"]
    body: list[Any] = list(message(text(prompt, pieces=4)))
    if "wait" in prompt:
        body = [*body[:-3], Hold("for ever")]
    return Reply(200, {"content-type": "text/event-stream"}, body)


async def record(source: Observable[Any]) -> Recorder:
    recorder = Recorder()
    source.subscribe(recorder.on_next, recorder.on_error, recorder.on_completed)
    async with asyncio.timeout(10):
        await recorder.ended.wait()
    return recorder


def by_turn(events: list[Any]) -> list[list[Any]]:
    """Events of turns that ran one after the other."""
    turns: list[list[Any]] = []
    for event in events:
        if isinstance(event, TurnStarted):
            turns.append([])
        turns[-1].append(event)
    return turns


# one turn, several subscribers


@pytest.mark.asyncio
async def test_share_is_one_run_for_all(server: AnthropicServer) -> None:
    server.route(parrot)
    async with connected(server) as adapter:
        shared = Turn(adapter, "hello").pipe(ops.publish())
        recorders = [Recorder(), Recorder(), Recorder()]
        for recorder in recorders:
            shared.subscribe(recorder.on_next, recorder.on_error, recorder.on_completed)
        shared.connect()
        for recorder in recorders:
            await recorder.ended.wait()
    check_grammar(recorders[0].events)
    assert recorders[0].events == recorders[1].events == recorders[2].events
    assert len(server.requests) == 1


@pytest.mark.asyncio
async def test_the_last_subscriber_of_a_shared_turn_closes_it(server: AnthropicServer) -> None:
    server.route(parrot)
    async with connected(server) as adapter:
        shared = Turn(adapter, "please wait").pipe(ops.share())
        first, second = (shared.subscribe(on_error=print) for _ in range(2))
        await server.held("for ever")
        first.dispose()
        assert server.open_connections == 1
        second.dispose()
        await server.disconnected(0)
    assert len(server.requests) == 1


@pytest.mark.asyncio
async def test_a_subscriber_of_a_shared_turn_that_leaves_takes_no_other_with_it(server: AnthropicServer) -> None:
    server.route(parrot)
    async with connected(server) as adapter:
        shared = Turn(adapter, "hello").pipe(ops.publish(), ops.ref_count())
        stays = Recorder()
        leaves = SerialDisposable()
        left: list[TurnEvent] = []

        def on_next(event: TurnEvent) -> None:
            left.append(event)
            if isinstance(event, TextDelta):
                leaves.dispose()

        leaves.disposable = shared.subscribe(on_next)
        shared.subscribe(stays.on_next, stays.on_error, stays.on_completed)
        await stays.ended.wait()
    assert stays.finished.text == "hello"
    assert [event.text for event in left if isinstance(event, TextDelta)] == ["he"]


@pytest.mark.asyncio
async def test_replay_tells_who_comes_late(server: AnthropicServer) -> None:
    server.route(parrot)
    async with connected(server) as adapter:
        replayed = Turn(adapter, "hello").pipe(ops.replay())
        replayed.connect()
        first = await record(replayed)
        late = await record(replayed)
    check_grammar(first.events)
    assert late.events == first.events
    assert len(server.requests) == 1


@pytest.mark.asyncio
async def test_a_failure_reaches_every_subscriber(server: AnthropicServer) -> None:
    server.fail(529, "overloaded_error")
    async with connected(server) as adapter:
        replayed = Turn(adapter, "hello", retry=NO_RETRY).pipe(ops.replay())
        replayed.connect()
        errors = [(await record(replayed)).error for _ in range(2)]
    assert isinstance(errors[0], OverloadedError)
    assert errors[0] is errors[1]


# several turns


@pytest.mark.asyncio
async def test_merge_runs_turns_at_once(server: AnthropicServer) -> None:
    server.route(parrot)
    async with connected(server) as adapter:
        turns = [Turn(adapter, f"hello {number}") for number in range(5)]
        recorder = await record(reactivex.merge(*turns))
    texts = {event.text for event in recorder.events if isinstance(event, TurnFinished)}
    assert texts == {f"hello {number}" for number in range(5)}


@pytest.mark.asyncio
async def test_concat_runs_turns_in_order(server: AnthropicServer) -> None:
    server.route(parrot)
    async with connected(server) as adapter:
        recorder = await record(reactivex.concat(*(Turn(adapter, f"hello {number}") for number in range(3))))
    turns = by_turn(recorder.events)
    assert [turn[-1].text for turn in turns] == ["hello 0", "hello 1", "hello 2"]
    for turn in turns:
        check_grammar(turn)


@pytest.mark.asyncio
async def test_amb_keeps_the_first_to_speak_and_closes_the_other(server: AnthropicServer) -> None:
    server.reply(text("late"), prelude=[Hold("for ever")])
    server.reply(text("hello"))
    async with connected(server) as adapter:
        slow, quick = (Turn(adapter, "hello").pipe(text_of()) for _ in range(2))
        recorder = Recorder()
        texts: list[str] = []
        slow.pipe(ops.amb(quick)).subscribe(texts.append, recorder.on_error, recorder.on_completed)
        await recorder.ended.wait()
        await server.disconnected(0)
    assert recorder.completed
    assert "".join(texts) == "hello"


@pytest.mark.asyncio
async def test_take_until_disposes(server: AnthropicServer) -> None:
    server.route(parrot)
    click: Subject[None] = Subject()
    async with connected(server) as adapter:
        recorder = Recorder()
        turn = Turn(adapter, "please wait", on_end=recorder.keep).pipe(ops.take_until(click))
        turn.subscribe(recorder.on_next, recorder.on_error, recorder.on_completed)
        await server.held("for ever")
        click.on_next(None)
        await server.disconnected(0)
    assert recorder.completed
    assert not any(isinstance(event, TurnFinished) for event in recorder.events)
    assert recorder.result is not None
    assert recorder.result.finish_reason == "aborted"


@pytest.mark.asyncio
async def test_switch_latest_drops_the_turn_before(server: AnthropicServer) -> None:
    server.route(parrot)
    prompts: Subject[str] = Subject()
    async with connected(server) as adapter:
        recorder = Recorder()
        prompts.pipe(ops.map(lambda prompt: Turn(adapter, prompt)), ops.switch_latest()).subscribe(
            recorder.on_next, recorder.on_error, recorder.on_completed
        )
        prompts.on_next("please wait")
        await server.held("for ever")
        prompts.on_next("hello")
        prompts.on_completed()
        await recorder.ended.wait()
        await server.disconnected(0)
    first, second = by_turn(recorder.events)
    check_grammar(first, disposed=True)
    check_grammar(second)
    assert second[-1].text == "hello"


@pytest.mark.asyncio
async def test_a_failed_turn_may_be_followed_by_another(server: AnthropicServer) -> None:
    server.fail(529, "overloaded_error")
    server.reply(text("fallback"))
    async with connected(server) as adapter:
        first, second = (Turn(adapter, "hello", retry=NO_RETRY) for _ in range(2))
        recorder = await record(first.pipe(ops.catch(second)))
    failed, answered = by_turn(recorder.events)
    check_grammar(failed, error=True)
    check_grammar(answered)
    assert answered[-1].text == "fallback"


@pytest.mark.asyncio
async def test_turns_may_follow_from_each_other(server: AnthropicServer) -> None:
    server.route(parrot)

    def answer(events: Observable[TurnEvent]) -> Observable[str]:
        return events.pipe(ops.filter(lambda event: isinstance(event, TurnFinished)), ops.map(lambda event: event.text))

    async with connected(server) as adapter:
        chain = answer(Turn(adapter, "one")).pipe(ops.flat_map(lambda said: answer(Turn(adapter, f"{said} two"))))
        texts: list[str] = []
        recorder = Recorder()
        chain.subscribe(texts.append, recorder.on_error, recorder.on_completed)
        await recorder.ended.wait()
    assert texts == ["one two"]


# other sources


@pytest.mark.asyncio
async def test_a_turn_beside_a_timer(server: AnthropicServer) -> None:
    server.route(parrot)
    async with connected(server) as adapter:
        turn = Turn(adapter, "hello").pipe(ops.share())
        ticks = reactivex.interval(0.001, scheduler=AsyncIOThreadSafeScheduler(asyncio.get_running_loop()))
        recorder = Recorder()
        items: list[Any] = []
        reactivex.merge(turn, ticks.pipe(ops.take_until(turn.pipe(ops.last())))).subscribe(
            items.append, recorder.on_error, recorder.on_completed
        )
        await recorder.ended.wait()
    assert recorder.completed
    check_grammar([item for item in items if not isinstance(item, int)])


@pytest.mark.asyncio
async def test_delivery_on_another_scheduler(server: AnthropicServer) -> None:
    server.route(parrot)
    async with connected(server) as adapter:
        scheduler = AsyncIOThreadSafeScheduler(asyncio.get_running_loop())
        recorder = await record(Turn(adapter, "hello").pipe(ops.observe_on(scheduler)))
    check_grammar(recorder.events)


@pytest.mark.asyncio
@pytest.mark.parametrize("count", range(1, 7))
async def test_take_leaves_after_that_many_events(server: AnthropicServer, count: int) -> None:
    server.route(parrot)
    async with connected(server) as adapter:
        recorder = Recorder()
        turn = Turn(adapter, "please wait", on_end=recorder.keep).pipe(ops.take(count))
        turn.subscribe(recorder.on_next, recorder.on_error, recorder.on_completed)
        await recorder.ended.wait()
        await server.closed()
    assert recorder.completed
    assert len(recorder.events) == count
    check_grammar(recorder.events, disposed=True)
    assert recorder.result is not None
    assert recorder.result.finish_reason == "aborted"
    # whoever leaves before the request is due makes none
    assert len(server.requests) == (count > 2)


@pytest.mark.asyncio
async def test_an_operator_that_raises_fails_the_subscription(server: AnthropicServer) -> None:
    server.route(parrot)

    def shout(event: TurnEvent) -> str:
        return {"turn_started": "T", "step_started": "S"}[event.type]

    async with connected(server) as adapter:
        recorder = await record(Turn(adapter, "please wait").pipe(ops.map(shout)))
        await server.disconnected(0)
    assert isinstance(recorder.error, KeyError)
    assert recorder.events == ["T", "S"]


# asynchronous readers


@pytest.mark.asyncio
async def test_a_slow_reader_pauses_every_turn_of_a_composition(server: AnthropicServer) -> None:
    def talk(request: Request) -> Reply:
        return Reply(200, {"content-type": "text/event-stream"}, message(text("x" * 600, pieces=600)))

    server.route(talk)
    async with connected(server) as adapter:
        merged = reactivex.merge(*(Turn(adapter, "hello") for _ in range(3)))
        events = iterate(merged, buffer=64)
        count = 0
        async for event in events:
            count += isinstance(event, TextDelta)
            await asyncio.sleep(0)
    assert count == 1800
    assert events.peak_buffered <= 64


@pytest.mark.asyncio
async def test_leaving_a_composition_closes_every_turn(server: AnthropicServer) -> None:
    server.route(parrot)
    async with connected(server) as adapter:
        merged = reactivex.merge(*(Turn(adapter, "please wait") for _ in range(3)))
        async with iterate(merged) as events:
            await server.until(lambda: len(server._held) == 3, "three replies that wait")
            await anext(events)
        for index in range(3):
            await server.disconnected(index)


@pytest.mark.asyncio
async def test_parts_of_a_turn(server: AnthropicServer) -> None:
    server.reply(text("I add. "), tool_use("add", {"a": 2, "b": 3}))
    server.reply(text("It is 5."))
    async with connected(server) as adapter:
        replayed = Turn(adapter, "hello", tools=[add]).pipe(ops.replay())
        replayed.connect()
        await record(replayed)
        texts = await record(replayed.pipe(text_of()))
        calls = await record(replayed.pipe(tool_calls()))
    assert "".join(texts.events) == "I add. It is 5."
    assert [call.name for call in calls.events] == ["add"]


@pytest.mark.asyncio
async def test_a_tool_may_return_a_turn(server: AnthropicServer) -> None:
    server.reply(tool_use("ask", {"question": "inner"}))
    server.reply(text("inner answer"))
    server.reply(text("outer answer"))
    async with connected(server) as adapter:

        @tool
        def ask(question: str) -> Observable[str]:
            """Ask another model."""
            return Turn(adapter, question).pipe(text_of(), ops.reduce(lambda so_far, piece: so_far + piece, ""))

        recorder = await record(Turn(adapter, "outer", tools=[ask]))
    check_grammar(recorder.events)
    assert [event.output for event in recorder.events if isinstance(event, ToolFinished)] == ["inner answer"]
    assert recorder.finished.text == "outer answer"


@pytest.mark.asyncio
async def test_an_error_of_the_other_source_closes_the_turn(server: AnthropicServer) -> None:
    server.route(parrot)
    other: Subject[Any] = Subject()
    recorder = Recorder()
    async with connected(server) as adapter:
        merged = reactivex.merge(Turn(adapter, "please wait"), other)
        merged.subscribe(recorder.on_next, recorder.on_error, recorder.on_completed)
        await server.held("for ever")
        other.on_error(RxLoopError("the sensor's own"))
        await server.disconnected(0)
    assert str(recorder.error) == "the sensor's own"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "compose",
    [
        lambda turn: turn,
        lambda turn: turn.pipe(ops.share()),
        lambda turn: turn.pipe(ops.replay(), ops.ref_count()),
        lambda turn: turn.pipe(ops.do_action(lambda event: None)),
        lambda turn: turn.pipe(ops.buffer_with_count(3)),
        lambda turn: reactivex.merge(turn, reactivex.never()),
        lambda turn: reactivex.concat(turn, turn),
        lambda turn: reactivex.defer(lambda scheduler: turn),
        lambda turn: turn.pipe(ops.retry(2)),
        lambda turn: turn.pipe(ops.with_latest_from(reactivex.of(1))),
        lambda turn: reactivex.zip(turn, turn),
        lambda turn: turn.pipe(ops.group_by(lambda event: event.type)),
    ],
    ids=["plain", "share", "replay", "do", "buffer", "merge", "concat", "defer", "retry", "latest", "zip", "group"],
)
async def test_disposing_any_composition_closes_the_replies(
    server: AnthropicServer, compose: Callable[[Observable[Any]], Observable[Any]]
) -> None:
    server.route(parrot)
    async with connected(server) as adapter:
        subscription = compose(Turn(adapter, "please wait")).subscribe(on_error=print)
        await server.held("for ever")
        subscription.dispose()
        await server.closed()
        assert all(exchange.client_disconnected for exchange in server.exchanges)
