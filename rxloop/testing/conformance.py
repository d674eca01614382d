"""What an adapter has to keep, as a pytest suite that its author points at it.

Subclass `AdapterConformance` in a test module, and give it a ``provider`` fixture: a local server that speaks the
provider's real wire format, behind `rxloop.testing.scripted.ScriptedProvider`. Needs pytest and pytest-asyncio.

    class TestMyAdapter(AdapterConformance):
        @pytest.fixture
        def provider(self):
            with MyServer() as server:
                yield MyScriptedProvider(server)
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
import reactivex
from reactivex import operators as ops
from reactivex.disposable import SingleAssignmentDisposable
from reactivex.scheduler.eventloop import AsyncIOScheduler
from reactivex.subject import Subject

from rxloop.adapters.base import Adapter
from rxloop.errors import ConfigurationError, RxLoopError, TimedOutError
from rxloop.events import TurnEvent
from rxloop.limits import Limits
from rxloop.operators import RetryPolicy
from rxloop.steps import TurnResult
from rxloop.testing.grammar import check_grammar
from rxloop.testing.scripted import Call, Recorder, Reply, ScriptedProvider
from rxloop.tools import Tool, tool
from rxloop.turn import Turn
from rxloop.usage import Usage

__all__ = ("AdapterConformance",)


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


_NO_RETRY = RetryPolicy(retries=0)
_AT_ONCE = RetryPolicy(retries=2, first_delay=0, max_delay=0)

ANSWER = Reply(text=("It ", "is ", "5."), usage=Usage(30, 7))
CALLS = Reply(
    reasoning=("Let me ", "see."),
    text=("I ", "add."),
    calls=(Call("add", {"a": 2, "b": 3}, "call_1"), Call("add", {"a": 1, "b": 1}, "call_2")),
    usage=Usage(20, 9),
)


class AdapterConformance:
    """The suite. Every turn that it runs is checked against the grammar of events."""

    @pytest.fixture
    def provider(self) -> ScriptedProvider:
        """The scripted provider: to be overridden."""
        raise NotImplementedError("give the suite a `provider` fixture")

    async def run(self, provider: ScriptedProvider, **options: Any) -> Recorder:
        """Run a turn to its end."""
        adapter = provider.adapter()
        try:
            recorder = Recorder()
            options.setdefault("tools", [add] if provider.has_tools else [])
            options.setdefault("retry", _NO_RETRY)
            turn = Turn(adapter, options.pop("prompt", "What is 2+3?"), on_end=recorder.keep, **options)
            turn.subscribe(recorder.on_next, recorder.on_error, recorder.on_completed)
            async with asyncio.timeout(20):
                await recorder.ended.wait()
            await provider.settled()
        finally:
            await provider.close(adapter)
        check_grammar(recorder.events, error=recorder.error is not None)
        assert recorder.result is not None, "on_end was not told"
        return recorder

    # a reply

    @pytest.mark.asyncio
    async def test_a_reply_streams_and_completes(self, provider: ScriptedProvider) -> None:
        provider.reply(ANSWER)
        recorder = await self.run(provider)
        assert recorder.completed
        assert recorder.text == "It is 5."
        assert recorder.types.count("text_delta") >= 3
        assert (recorder.finished.text, recorder.finished.finish_reason) == ("It is 5.", "stop")
        assert recorder.finished.usage == ANSWER.usage

    @pytest.mark.asyncio
    async def test_a_turn_is_cold(self, provider: ScriptedProvider) -> None:
        provider.reply(ANSWER)
        provider.reply(Reply(text=("again",)))
        adapter = provider.adapter()
        try:
            turn = Turn(adapter, "hello", retry=_NO_RETRY)
            assert provider.requests == 0
            first, second = await turn.result(), await turn.result()
        finally:
            await provider.close(adapter)
        assert (first.text, second.text) == ("It is 5.", "again")
        assert second.usage == Usage(10, 5)

    @pytest.mark.asyncio
    async def test_one_byte_at_a_time_makes_the_same_events(self, provider: ScriptedProvider) -> None:
        replies = (CALLS, ANSWER) if provider.has_tools else (ANSWER,)
        for reply in replies:
            provider.reply(reply)
        whole = await self.run(provider, turn_id="t")
        for reply in replies:
            provider.reply(_changed(reply, chunk_size=1))
        bytewise = await self.run(provider, turn_id="t")
        assert _untimed(bytewise.events) == _untimed(whole.events)

    @pytest.mark.asyncio
    async def test_input_cut_at_every_byte_is_never_complete(self, provider: ScriptedProvider) -> None:
        reply = Reply(text=("ab", "ü"))
        length = provider.body_length(reply)
        complete = 0
        adapter = provider.adapter()
        try:
            for cut in range(length + 1):
                provider.reply(_changed(reply, cut=cut))
                try:
                    result = await Turn(adapter, "hello", retry=_NO_RETRY).result()
                except RxLoopError as error:
                    assert error.partial is not None
                    assert "abü".startswith(error.partial.text)
                    assert complete == 0, f"cut at {cut} fails, although an earlier cut completed"
                else:
                    assert result.text == "abü", f"cut at {cut} completes with {result.text!r}"
                    complete += 1
        finally:
            await provider.close(adapter)
        # only what closes the frame of the last event may be missing, and what says nothing of the answer
        whole_length = getattr(provider, "whole_length", None)
        least = length - 4 if whole_length is None else whole_length(reply)
        assert 1 <= complete <= length - least + 1

    @pytest.mark.asyncio
    async def test_unknown_events_are_skipped(self, provider: ScriptedProvider) -> None:
        provider.unknown(ANSWER)
        recorder = await self.run(provider)
        assert recorder.finished.text == "It is 5."

    # errors

    @pytest.mark.asyncio
    @pytest.mark.parametrize("status", [408, 429, 500, 503])
    async def test_a_retryable_status_is_retried(self, provider: ScriptedProvider, status: int) -> None:
        provider.fail(status)
        provider.fail(status)
        provider.reply(ANSWER)
        recorder = await self.run(provider, retry=_AT_ONCE)
        assert recorder.types.count("retry_scheduled") == 2
        assert recorder.types.count("step_started") == 1
        assert recorder.finished.text == "It is 5."
        assert provider.requests == 3

    @pytest.mark.asyncio
    async def test_the_retry_budget_ends(self, provider: ScriptedProvider) -> None:
        for _ in range(3):
            provider.fail(429)
        recorder = await self.run(provider, retry=_AT_ONCE)
        assert provider.requests == 3
        assert isinstance(recorder.error, RxLoopError)
        assert (recorder.error.kind, recorder.error.status) == ("rate_limited", 429)
        assert recorder.error.__cause__ is not None, "the SDK's own error is the cause"

    @pytest.mark.asyncio
    async def test_a_delay_above_the_cap_surfaces_at_once(self, provider: ScriptedProvider) -> None:
        provider.fail(429, retry_after=3600)
        recorder = await self.run(provider, retry=_AT_ONCE)
        assert provider.requests == 1
        assert isinstance(recorder.error, RxLoopError)
        assert recorder.error.retry_after == pytest.approx(3600, abs=2)

    @pytest.mark.asyncio
    @pytest.mark.parametrize("status", [400, 401, 403, 404])
    async def test_any_other_status_is_not_retried(self, provider: ScriptedProvider, status: int) -> None:
        provider.fail(status)
        recorder = await self.run(provider, retry=_AT_ONCE)
        assert provider.requests == 1
        assert isinstance(recorder.error, RxLoopError)
        assert recorder.error.status == status
        assert recorder.error.partial is not None
        assert recorder.types == ["turn_started", "step_started"]

    @pytest.mark.asyncio
    @pytest.mark.parametrize("fault", ["fail_inside", "drop", "garbage"])
    async def test_a_fault_before_content_is_retried(self, provider: ScriptedProvider, fault: str) -> None:
        getattr(provider, fault)(())
        provider.reply(ANSWER)
        recorder = await self.run(provider, retry=_AT_ONCE)
        assert recorder.types.count("retry_scheduled") == 1
        assert recorder.text == recorder.finished.text == "It is 5."

    @pytest.mark.asyncio
    @pytest.mark.parametrize("fault", ["fail_inside", "drop", "garbage"])
    async def test_a_fault_after_content_is_not_retried(self, provider: ScriptedProvider, fault: str) -> None:
        getattr(provider, fault)(("so ", "far"))
        recorder = await self.run(provider, retry=_AT_ONCE)
        assert provider.requests == 1
        assert "retry_scheduled" not in recorder.types
        assert isinstance(recorder.error, RxLoopError)
        assert recorder.error.partial is not None
        assert recorder.error.partial.text == recorder.text == "so far"
        assert recorder.result is not None
        assert recorder.result.finish_reason == "error"

    @pytest.mark.asyncio
    async def test_a_failed_turn_can_be_continued(self, provider: ScriptedProvider) -> None:
        if not provider.has_tools:
            pytest.skip("the provider has no tools")
        provider.reply(CALLS)
        provider.drop(("so ",))
        provider.reply(ANSWER)
        recorder = await self.run(provider)
        assert isinstance(recorder.error, RxLoopError)
        assert recorder.error.partial is not None
        assert [result.output for result in recorder.error.partial.tool_results] == [5, 2]
        assert recorder.error.partial.usage.output_tokens >= CALLS.usage.output_tokens
        continued = await self.run(provider, prompt="go on", conversation=recorder.error.partial.conversation)
        assert continued.finished.text == "It is 5."
        self.check_history(provider)

    @pytest.mark.asyncio
    @pytest.mark.parametrize(("text", "clock"), [((), "first_event"), (("so ", "far"), "stall")])
    async def test_a_silent_provider_is_noticed(
        self, provider: ScriptedProvider, text: tuple[str, ...], clock: str
    ) -> None:
        provider.stall(text)
        recorder = await self.run(provider, limits=Limits(stall_timeout=0.2))
        assert isinstance(recorder.error, TimedOutError)
        assert recorder.error.clock == clock
        assert recorder.text == "".join(text)

    # leaving

    @pytest.mark.asyncio
    async def test_nothing_comes_after_a_disposal(self, provider: ScriptedProvider) -> None:
        """Disposed at every event; the reply is closed each time."""
        count = await self._scripted_turn(provider)
        for position in range(count):
            await self._scripted_turn(provider, dispose_at=position)

    @pytest.mark.asyncio
    async def test_a_disposal_closes_a_silent_reply(self, provider: ScriptedProvider) -> None:
        provider.stall(("so ", "far"))
        adapter = provider.adapter()
        recorder = Recorder()
        try:
            subscription = Turn(adapter, "hello", on_end=recorder.keep).subscribe(
                recorder.on_next, recorder.on_error, recorder.on_completed
            )
            await provider.stalled()
            subscription.dispose()
            subscription.dispose()
            count = len(recorder.events)
            await provider.settled()
        finally:
            await provider.close(adapter)
        assert len(recorder.events) == count
        assert not recorder.ended.is_set()
        assert recorder.result is not None
        assert recorder.result.finish_reason == "aborted"

    @pytest.mark.asyncio
    async def test_a_subscriber_that_raises_ends_its_own_subscription(self, provider: ScriptedProvider) -> None:
        """Raising at every event; the reply is closed each time."""
        count = await self._scripted_turn(provider)
        for position in range(count):
            await self._scripted_turn(provider, raise_at=position)

    @pytest.mark.asyncio
    async def test_an_iteration_that_is_left_releases_everything(self, provider: ScriptedProvider) -> None:
        provider.stall(("so ", "far"))
        adapter = provider.adapter()
        try:
            async for event in Turn(adapter, "hello"):
                if event.type == "text_delta":
                    break
            await provider.settled()
        finally:
            await provider.close(adapter)

    @pytest.mark.asyncio
    async def test_a_consumer_that_is_cancelled_releases_everything(self, provider: ScriptedProvider) -> None:
        provider.stall(("so ", "far"))
        adapter = provider.adapter()
        try:
            consumer = asyncio.ensure_future(Turn(adapter, "hello").result())
            await provider.stalled()
            consumer.cancel()
            with pytest.raises(asyncio.CancelledError):
                await consumer
            await provider.settled()
        finally:
            await provider.close(adapter)

    @pytest.mark.asyncio
    async def test_standard_operators_compose(self, provider: ScriptedProvider) -> None:
        provider.stall(("so ", "far"))
        adapter = provider.adapter()
        recorder = Recorder()
        click: Subject[str] = Subject()
        try:
            turn = Turn(adapter, "hello")
            merged = reactivex.merge(turn, reactivex.never()).pipe(ops.take_until(click))
            merged.subscribe(recorder.on_next, recorder.on_error, recorder.on_completed)
            await provider.stalled()
            click.on_next("stop")
            await provider.settled()
        finally:
            await provider.close(adapter)
        assert recorder.completed

    @pytest.mark.asyncio
    async def test_a_turn_needs_a_running_loop(self, provider: ScriptedProvider) -> None:
        adapter = provider.adapter()
        errors: list[Exception] = []
        try:
            turn = Turn(adapter, "hello")
            await asyncio.to_thread(lambda: turn.subscribe(on_error=errors.append))
        finally:
            await provider.close(adapter)
        assert isinstance(errors[0], ConfigurationError)
        assert "event loop" in str(errors[0])

    # tools

    @pytest.mark.asyncio
    async def test_a_tool_round_trip(self, provider: ScriptedProvider) -> None:
        if not provider.has_tools:
            pytest.skip("the provider has no tools")
        provider.reply(CALLS)
        provider.reply(ANSWER)
        recorder = await self.run(provider)
        assert recorder.result is not None
        assert [result.output for result in recorder.result.tool_results] == [5, 2]
        assert recorder.finished.usage == CALLS.usage + ANSWER.usage
        assert recorder.finished.finish_reason == "stop"
        assert [call.call_id for call in recorder.finished.tool_calls] == ["call_1", "call_2"]
        calls, results = self.check_history(provider)
        assert len(calls) == 2
        assert not any(is_error for _, is_error in results)

    @pytest.mark.asyncio
    @pytest.mark.parametrize(
        ("call", "truncated"),
        [
            (Call("add", '{"a": 2, "b"', "call_1"), True),
            (Call("add", {"a": "two", "b": 3}, "call_1"), False),
            (Call("nobody", {}, "call_1"), False),
        ],
        ids=["cut off", "invalid", "unknown"],
    )
    async def test_a_call_that_cannot_run_becomes_an_error_result(
        self, provider: ScriptedProvider, call: Call, truncated: bool
    ) -> None:
        if not provider.has_tools:
            pytest.skip("the provider has no tools")
        if isinstance(call.arguments, str) and not getattr(provider, "has_raw_arguments", True):
            pytest.skip("the provider's wire has no raw arguments")
        provider.reply(Reply(calls=(call,), truncated=truncated))
        provider.reply(ANSWER)
        recorder = await self.run(provider)
        assert recorder.finished.text == "It is 5."
        assert "tool_started" not in recorder.types
        _, results = self.check_history(provider)
        assert [is_error for _, is_error in results] == [True]

    @pytest.mark.asyncio
    async def test_the_step_cap_runs_the_last_tools(self, provider: ScriptedProvider) -> None:
        if not provider.has_tools:
            pytest.skip("the provider has no tools")
        provider.reply(CALLS)
        recorder = await self.run(provider, max_steps=1)
        assert provider.requests == 1
        assert (recorder.finished.finish_reason, recorder.finished.text) == ("tool-calls", "I add.")
        assert recorder.types.count("tool_finished") == 2
        assert recorder.result is not None
        provider.reply(ANSWER)
        await self.run(provider, prompt=None, conversation=recorder.result.conversation)
        _, results = self.check_history(provider)
        assert [is_error for _, is_error in results] == [False, False]

    @pytest.mark.asyncio
    async def test_a_stop_at_every_event_leaves_a_sealed_conversation(self, provider: ScriptedProvider) -> None:
        count = await self._scripted_turn(provider)
        for position in range(count - 1):
            stopped = await self._scripted_turn(provider, stop_at=position)
            assert stopped

    async def _scripted_turn(
        self,
        provider: ScriptedProvider,
        *,
        stop_at: int | None = None,
        dispose_at: int | None = None,
        raise_at: int | None = None,
    ) -> int:
        """A turn of two steps (one without tools), left at the event of that position; how many events it had."""
        before = provider.requests
        if provider.has_tools:
            provider.reply(CALLS)
        provider.reply(ANSWER)
        stop: Subject[None] = Subject()
        adapter = provider.adapter()
        recorder = Recorder()
        left = asyncio.Event()
        tools: list[Tool] = [add] if provider.has_tools else []
        turn = Turn(adapter, "What is 2+3?", tools=tools, retry=_NO_RETRY, stop=stop, on_end=recorder.keep)

        def on_next(event: TurnEvent) -> None:
            position = len(recorder.events)
            recorder.on_next(event)
            if position == stop_at:
                stop.on_next(None)
            if position == dispose_at:
                left.set()
                subscription.dispose()
            if position == raise_at:
                raise LookupError("the subscriber's own fault")

        subscription = SingleAssignmentDisposable()
        try:
            subscription.disposable = turn.subscribe(
                on_next,
                recorder.on_error,
                recorder.on_completed,
                scheduler=AsyncIOScheduler(asyncio.get_running_loop()),
            )
            synchronous = len(recorder.events)
            async with asyncio.timeout(20):
                await (left if dispose_at is not None else recorder.ended).wait()
            await provider.settled()
            assert recorder.result is not None, "on_end was not told"
            if dispose_at is not None:
                # a subscription that is not there yet cannot be disposed
                assert len(recorder.events) == max(dispose_at + 1, synchronous), "an event came after the disposal"
                assert not recorder.ended.is_set()
                assert recorder.result.finish_reason in ("aborted", "stop")
            elif raise_at is not None:
                assert isinstance(recorder.error, LookupError)
                assert len(recorder.events) == raise_at + 1
            else:
                check_grammar(recorder.events)
            if stop_at is not None:
                assert recorder.finished.finish_reason == "aborted"
            if stop_at is not None or dispose_at is not None or raise_at is not None:
                await self._continue(provider, adapter, recorder.result, provider.requests - before)
        finally:
            await provider.close(adapter)
        return len(recorder.events)

    async def _continue(self, provider: ScriptedProvider, adapter: Adapter, result: TurnResult, requests: int) -> None:
        """Another turn on what is left of a turn: valid, and with every result that was there."""
        # replies that the turn did not come to ask for
        for _ in range((2 if provider.has_tools else 1) - requests):
            await Turn(adapter, "drain", retry=_NO_RETRY, max_steps=1).result()
        provider.reply(Reply(text=("fine",)))
        continued = await Turn(
            adapter, "go on", conversation=result.conversation, tools=[add] if provider.has_tools else []
        ).result()
        assert continued.text == "fine"
        calls, results = self.check_history(provider)
        real = {result.call_id for result in result.tool_results}
        if calls:
            errors = {call_id for call_id, is_error in results if is_error}
            assert len(errors) == len(calls) - len(real), "a real result was lost, or one was made up"

    def check_history(self, provider: ScriptedProvider) -> tuple[list[str], list[tuple[str, bool]]]:
        """Every call in the last request's history has exactly one result."""
        calls, results = provider.history(provider.requests - 1)
        assert sorted(calls) == sorted(call_id for call_id, _ in results)
        return calls, results


def _changed(reply: Reply, **changes: Any) -> Reply:
    return dataclasses.replace(reply, **changes)


def _untimed(events: list[TurnEvent]) -> list[dict[str, Any]]:
    return [{key: value for key, value in event.to_dict().items() if key != "seconds"} for event in events]
