"""Providers that are a stream of text: what `do_stream` is asked, and the turn that is made of what it gives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from reactivex import Observable

import rxloop
from rxloop.adapters import StreamRequest, TextStream
from rxloop.adapters.anthropic import AnthropicAdapter
from rxloop.demand import Demand, demand_context
from rxloop.steps import Step, StepResult, ToolResult
from tests.turns import AT_ONCE, NO_RETRY, add, run

USAGE = rxloop.Usage(3, 2)


class Pieces:
    """Text that tells what is done with it. An error among the pieces is raised, a function awaited."""

    def __init__(self, *pieces: Any) -> None:
        self.pieces = list(pieces)
        self.log: list[str] = []
        self.closed = asyncio.Event()
        self.read = 0

    def __aiter__(self) -> Pieces:
        return self

    async def __anext__(self) -> Any:
        while self.pieces:
            piece = self.pieces.pop(0)
            if isinstance(piece, BaseException):
                raise piece
            if callable(piece):
                await piece()
                continue
            self.read += 1
            return piece
        self.log.append("drained")
        raise StopAsyncIteration

    async def aclose(self) -> None:
        await asyncio.sleep(0)
        self.log.append("closed")
        self.closed.set()


class Scripted(rxloop.Adapter):
    """Each request gets the next reply; an error is raised, a function is called with the request."""

    provider = "scripted"
    model = "script-1"

    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)
        self.requests: list[StreamRequest] = []

    async def do_stream(self, request: StreamRequest) -> TextStream:
        self.requests.append(request)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        if callable(reply):
            reply = await reply()
        return reply if isinstance(reply, TextStream) else said(*reply)


def said(*pieces: Any, **known: Any) -> TextStream:
    return TextStream(Pieces(*pieces), **{"usage": USAGE, **known})


async def forever() -> None:
    await asyncio.Event().wait()


async def later(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


# the smallest provider


class Echo(rxloop.Adapter):
    provider = "echo"
    model = "echo-1"

    async def do_stream(self, request: StreamRequest) -> TextStream:
        async def words() -> AsyncIterator[str]:
            for word in request.messages[-1]["content"].split():
                yield f"{word} "

        return TextStream(words())


@pytest.mark.asyncio
async def test_a_provider_is_one_function() -> None:
    recorder = await run(Echo(), "hello you", tools=[])
    assert recorder.types == [
        "turn_started", "step_started", "text_delta", "text_delta", "step_finished", "usage_updated", "turn_finished",
    ]  # fmt: skip
    assert recorder.text == recorder.finished.text == "hello you "
    assert recorder.finished.finish_reason == "stop"
    assert recorder.result is not None
    assert recorder.result.conversation == [
        {"role": "user", "content": "hello you"},
        {"role": "assistant", "content": "hello you "},
    ]


def test_a_provider_runs_from_synchronous_code() -> None:
    with Echo() as adapter:
        assert rxloop.Turn(adapter, "hello").result_sync().text == "hello "


@pytest.mark.asyncio
async def test_a_step_can_be_had_alone() -> None:
    adapter = Echo()
    result = await adapter.generate(Step(0, adapter.begin((), "hello")))
    assert (result.text, result.message) == ("hello ", {"role": "assistant", "content": "hello "})


# what it is asked


@pytest.mark.asyncio
async def test_the_request_has_everything_of_the_step() -> None:
    adapter = Scripted(("a",))
    step = Step(4, adapter.begin((), "hello"), system="Be brief.", carry={"container": "c"})
    await adapter.generate(step)
    assert adapter.requests == [
        StreamRequest(({"role": "user", "content": "hello"},), "Be brief.", "script-1", 4, {"container": "c"})
    ]


@pytest.mark.asyncio
async def test_a_conversation_goes_on() -> None:
    adapter = Scripted(("one",), ("two",))
    first = await rxloop.Turn(adapter, "first", system="Be brief.").result()
    second = await rxloop.Turn(adapter, "second", conversation=first.conversation).result()
    assert [message["content"] for message in adapter.requests[1].messages] == ["first", "one", "second"]
    assert [message["content"] for message in second.conversation] == ["first", "one", "second", "two"]
    assert (adapter.requests[0].system, adapter.requests[1].system) == ("Be brief.", None)


@pytest.mark.asyncio
async def test_every_run_asks_anew() -> None:
    adapter = Scripted(("one",), ("two",))
    turn = rxloop.Turn(adapter, "hello")
    assert adapter.requests == []
    assert [(await turn.result()).text, (await turn.result()).text] == ["one", "two"]
    assert adapter.requests[0] == adapter.requests[1]


# what is known afterwards


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "given",
    [lambda value: value, lambda value: lambda: value, later, lambda value: lambda: later(value)],
    ids=["value", "function", "awaitable", "coroutine function"],
)
async def test_the_end_may_be_given_in_four_ways(given: Callable[[Any], Any]) -> None:
    raw = {"in": 3}
    reply = said(
        "a",
        finish_reason=given("length"),
        usage=given(USAGE),
        raw_stop_reason=given("max"),
        raw_usage=given(raw),
    )
    adapter = Scripted(reply)
    result = await adapter.generate(Step(0, adapter.begin((), "hello")))
    assert result == StepResult("a", (), USAGE, "length", "max", raw, {"role": "assistant", "content": "a"})


@pytest.mark.asyncio
async def test_the_end_is_read_once_and_only_after_the_text() -> None:
    pieces = Pieces("a", "b")
    asked: list[str] = []

    def known(name: str, value: Any) -> Callable[[], Any]:
        def ask() -> Any:
            assert pieces.log == ["drained"], f"{name} was read before the text had ended"
            asked.append(name)
            return value

        return ask

    reply = TextStream(
        pieces,
        finish_reason=known("finish_reason", "stop"),
        usage=known("usage", USAGE),
        raw_stop_reason=known("raw_stop_reason", "eos"),
        raw_usage=known("raw_usage", {}),
    )
    recorder = await run(Scripted(reply), tools=[])
    assert sorted(asked) == ["finish_reason", "raw_stop_reason", "raw_usage", "usage"]
    assert (recorder.finished.usage, recorder.finished.raw_stop_reason) == (USAGE, "eos")
    assert pieces.log == ["drained", "closed"]


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["usage", "raw_usage", "raw_stop_reason", "finish_reason"])
async def test_an_end_that_cannot_be_had_loses_nothing(name: str) -> None:
    def fails() -> Any:
        raise LookupError("nobody knows")

    pieces = Pieces("so ", "far")
    known: dict[str, Any] = {"usage": USAGE, name: fails}
    recorder = await run(Scripted(TextStream(pieces, **known)), tools=[])
    assert isinstance(recorder.error, LookupError)
    assert recorder.result is not None
    assert recorder.result.text == recorder.text == "so far"
    assert recorder.result.conversation[-1] == {"role": "assistant", "content": "so far"}
    assert recorder.result.usage == (rxloop.Usage() if name == "usage" else USAGE)
    assert pieces.log == ["drained", "closed"]


@pytest.mark.asyncio
async def test_a_reply_without_a_finish_reason_broke_off() -> None:
    recorder = await run(Scripted(said("so ", "far", finish_reason=lambda: None)), tools=[], retry=AT_ONCE)
    assert isinstance(recorder.error, rxloop.StreamInterruptedError)
    assert recorder.error.provider == "scripted"
    assert recorder.error.partial is not None
    assert (recorder.error.partial.text, recorder.error.partial.usage) == ("so far", USAGE)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("known", "message"),
    [
        ({"finish_reason": "end_turn"}, "finish_reason must be one of stop, .* but got 'end_turn'"),
        ({"usage": 7}, "usage must be Usage or None, but got 7"),
        ({"usage": {"input_tokens": 1}}, "usage must be Usage or None"),
        ({"raw_usage": [1]}, "raw_usage must be Mapping or None"),
        ({"raw_stop_reason": 3}, "raw_stop_reason must be str or None, but got 3"),
    ],
)
async def test_an_end_of_another_type_is_refused(known: dict[str, Any], message: str) -> None:
    adapter = Scripted(said(**known))
    with pytest.raises(rxloop.ConfigurationError, match=message):
        await rxloop.Turn(adapter, "hello", retry=AT_ONCE).result()
    assert len(adapter.requests) == 1


@pytest.mark.asyncio
async def test_usage_that_nobody_tells_is_a_warning() -> None:
    result = await rxloop.Turn(Scripted(said("a", usage=None)), "hello").result()
    assert result.usage == rxloop.Usage()
    assert result.warnings == ("the provider reported no usage: the reply counts as 0 tokens",)


# warnings


@pytest.mark.asyncio
async def test_warnings_reach_the_result() -> None:
    warnings = ["top_k is ignored"]

    async def text() -> AsyncIterator[str]:
        yield "a"
        warnings.append("the seed was not kept")

    result = await rxloop.Turn(Scripted(TextStream(text(), usage=USAGE, warnings=warnings)), "hello").result()
    assert result.warnings == ("top_k is ignored", "the seed was not kept")


@pytest.mark.asyncio
async def test_warnings_survive_a_failure() -> None:
    reply = said("a", rxloop.ServerError("down"), warnings=["top_k is ignored"])
    recorder = await run(Scripted(reply), tools=[])
    assert recorder.result is not None
    assert recorder.result.warnings == ("top_k is ignored",)
    assert isinstance(recorder.error, rxloop.RxLoopError)
    assert recorder.error.partial is not None
    assert recorder.error.partial.warnings == ("top_k is ignored",)


@pytest.mark.asyncio
async def test_warnings_of_all_steps_are_collected() -> None:
    class Paused(Scripted):
        def step(self, step: Step) -> Observable[Any]:
            import dataclasses

            from reactivex import operators as ops

            def pausing(item: Any) -> Any:
                paused = isinstance(item, StepResult) and step.index == 0
                return dataclasses.replace(item, resume=True) if paused else item

            return super().step(step).pipe(ops.map(pausing))

    result = await rxloop.Turn(Paused(said("a", warnings=["one"]), said("b", warnings=["two"])), "hello").result()
    assert (result.text, result.steps, result.warnings) == ("ab", 2, ("one", "two"))


# text


@pytest.mark.asyncio
async def test_an_empty_piece_makes_no_event() -> None:
    recorder = await run(Scripted(("", "a", "", "b", "")), tools=[])
    assert [event.text for event in recorder.events if event.type == "text_delta"] == ["a", "b"]


@pytest.mark.asyncio
@pytest.mark.parametrize("pieces", [(), ("",), (" ", "\n")])
async def test_a_reply_without_text_adds_no_message(pieces: tuple[str, ...]) -> None:
    result = await rxloop.Turn(Scripted(pieces), "hello").result()
    assert result.text == "".join(pieces)
    assert result.conversation == [{"role": "user", "content": "hello"}]


@pytest.mark.asyncio
@pytest.mark.parametrize("piece", [b"bytes", None, 3, {"text": "a"}])
async def test_a_piece_that_is_no_text_is_refused(piece: Any) -> None:
    reply = said("so ", "far", piece, "more")
    recorder = await run(Scripted(reply), tools=[], retry=AT_ONCE)
    assert isinstance(recorder.error, rxloop.MalformedResponseError)
    assert "a piece of text must be str" in str(recorder.error)
    assert recorder.error.partial is not None
    assert recorder.error.partial.text == "so far"
    assert reply.text.log == ["closed"]  # type: ignore[attr-defined]


@pytest.mark.asyncio
async def test_text_may_be_iterable_without_being_an_iterator() -> None:
    class Body:
        def __init__(self) -> None:
            self.closed = 0

        def __aiter__(self) -> AsyncIterator[str]:
            return Pieces("a", "b")

        async def aclose(self) -> None:
            self.closed += 1

    body = Body()
    assert (await rxloop.Turn(Scripted(TextStream(body)), "hello").result()).text == "ab"
    assert body.closed == 1


# errors


class CountedError(Exception):
    pass


class Classifying(Scripted):
    def classify_error(self, error: Exception) -> Exception:
        if isinstance(error, CountedError):
            return rxloop.OverloadedError("too much", provider=self.provider)
        return super().classify_error(error)


@pytest.mark.asyncio
async def test_an_error_of_the_providers_own_is_classified_and_retried() -> None:
    adapter = Classifying(CountedError(), said(CountedError()), ("fine",))
    recorder = await run(adapter, tools=[], retry=AT_ONCE)
    assert recorder.types.count("retry_scheduled") == 2
    assert recorder.finished.text == "fine"


@pytest.mark.asyncio
async def test_a_classified_error_after_content_reaches_the_subscriber() -> None:
    recorder = await run(Classifying(said("so ", "far", CountedError())), tools=[], retry=AT_ONCE)
    assert isinstance(recorder.error, rxloop.OverloadedError)
    assert isinstance(recorder.error.__cause__, CountedError)
    assert recorder.error.partial is not None
    assert recorder.error.partial.text == "so far"


@pytest.mark.asyncio
@pytest.mark.parametrize("cause", [None, OSError("the first")])
async def test_a_cause_may_be_left_out_or_be_another(cause: Exception | None) -> None:
    class Secretive(Scripted):
        def classify_error(self, error: Exception) -> Exception:
            classified = rxloop.OverloadedError("too much")
            classified.__cause__ = cause
            return classified

    recorder = await run(Secretive(CountedError()), tools=[])
    assert isinstance(recorder.error, rxloop.OverloadedError)
    assert recorder.error.__cause__ is cause


@pytest.mark.asyncio
@pytest.mark.parametrize("inside", [False, True])
async def test_errors_of_rxloops_pass_as_they_are(inside: bool) -> None:
    class Wrong(Scripted):
        def classify_error(self, error: Exception) -> Exception:
            raise AssertionError("it is classified already")

    error = rxloop.AuthenticationError("no")
    recorder = await run(Wrong(said("a", error) if inside else error), tools=[])
    assert recorder.error is error


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [KeyError("a"), ValueError("b"), CountedError()])
@pytest.mark.parametrize("inside", [False, True])
async def test_any_other_error_passes_and_is_not_retried(error: Exception, inside: bool) -> None:
    adapter = Scripted(said(error) if inside else error)
    recorder = await run(adapter, tools=[], retry=AT_ONCE)
    assert recorder.error is error
    assert len(adapter.requests) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("returned", [None, "text", Pieces("a")])
async def test_do_stream_must_return_a_text_stream(returned: Any) -> None:
    class Wrong(Echo):
        async def do_stream(self, request: StreamRequest) -> Any:
            return returned

    recorder = await run(Wrong(), tools=[])
    assert isinstance(recorder.error, rxloop.ConfigurationError)
    assert "do_stream must be a coroutine function that returns a TextStream, but got" in str(recorder.error)


@pytest.mark.asyncio
async def test_do_stream_must_not_be_a_generator() -> None:
    class Wrong(Echo):
        async def do_stream(self, request: StreamRequest) -> Any:
            yield "a"

    with pytest.raises(rxloop.ConfigurationError, match="do_stream must be a coroutine function"):
        await rxloop.Turn(Wrong(), "hello").result()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text": ["a"]}, "text must be an asynchronous iterable of str"),
        ({"text": Pieces(), "warnings": "careful"}, "warnings must be a sequence of str, but got 'careful'"),
    ],
)
def test_a_text_stream_checks_its_fields(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(rxloop.ConfigurationError, match=message):
        TextStream(**fields)


# leaving


@pytest.mark.asyncio
@pytest.mark.parametrize("pieces", [(), ("so ", "far")], ids=["before the first piece", "between pieces"])
async def test_a_disposal_closes_the_text(pieces: tuple[str, ...]) -> None:
    waiting = asyncio.Event()

    async def silence() -> None:
        waiting.set()
        await forever()

    text = Pieces(*pieces, silence)
    events: list[Any] = []
    turn = rxloop.Turn(Scripted(TextStream(text)), "hello")
    subscription = turn.subscribe(events.append)
    await waiting.wait()
    subscription.dispose()
    count = len(events)
    await text.closed.wait()
    assert text.log == ["closed"]
    assert len(events) == count == 2 + len(pieces)


@pytest.mark.asyncio
async def test_a_disposal_before_the_provider_answers_cancels_the_request() -> None:
    waiting, left = asyncio.Event(), asyncio.Event()

    async def connecting() -> TextStream:
        try:
            waiting.set()
            await forever()
        finally:
            left.set()
        raise AssertionError

    subscription = rxloop.Turn(Scripted(connecting), "hello").subscribe()
    await waiting.wait()
    subscription.dispose()
    await left.wait()


@pytest.mark.asyncio
async def test_text_that_comes_too_late_is_begun_and_left() -> None:
    """So that a generator's ``finally``, which does not run before its first piece, closes what `do_stream` opened."""
    released = asyncio.Event()

    async def text() -> AsyncIterator[str]:
        try:
            await forever()
            yield "a"
        finally:
            released.set()

    async def answering() -> TextStream:
        subscription.dispose()
        return TextStream(text())

    subscription = rxloop.Turn(Scripted(answering), "hello").subscribe()
    await released.wait()


@pytest.mark.asyncio
@pytest.mark.parametrize("position", range(6))
async def test_a_subscriber_that_raises_ends_its_own_subscription(position: int) -> None:
    events: list[Any] = []

    def watch(event: Any) -> None:
        events.append(event)
        if len(events) == position + 1:
            raise LookupError("the subscriber's own")

    text = Pieces("so ", "far")
    recorder = await run(Scripted(TextStream(text)), watch=watch, tools=[])
    assert isinstance(recorder.error, LookupError)
    if position > 1:
        await text.closed.wait()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("pieces", "error"), [((), None), (("a", rxloop.ServerError("down")), rxloop.ServerError), ((3,), Exception)]
)
async def test_the_text_is_closed_once_whatever_happens(pieces: tuple[Any, ...], error: type | None) -> None:
    text = Pieces(*pieces)
    recorder = await run(Scripted(TextStream(text, usage=USAGE)), tools=[])
    assert (recorder.error is None) == (error is None)
    assert text.log[-1:] == ["closed"]
    assert text.log.count("closed") == 1


@pytest.mark.asyncio
async def test_a_failure_to_close_does_not_hide_why_the_reply_failed() -> None:
    class Unclosable(Pieces):
        async def aclose(self) -> None:
            raise OSError("already gone")

    text = Unclosable("a", rxloop.ServerError("down"))
    recorder = await run(Scripted(TextStream(text)), tools=[])
    assert isinstance(recorder.error, rxloop.ServerError)
    recorder = await run(Scripted(TextStream(Unclosable("a"), usage=USAGE)), tools=[])
    assert isinstance(recorder.error, OSError)
    assert recorder.result is not None
    assert (recorder.result.text, recorder.result.usage) == ("a", USAGE)


@pytest.mark.asyncio
async def test_what_nobody_waits_for_any_more_is_let_go() -> None:
    usage = asyncio.get_running_loop().create_future()
    pending = asyncio.ensure_future(forever())
    reply = said(
        rxloop.ServerError("down"),
        finish_reason=later("stop"),
        usage=usage,
        raw_stop_reason=pending,
    )
    recorder = await run(Scripted(reply), tools=[])
    assert isinstance(recorder.error, rxloop.ServerError)
    assert usage.cancelled()
    assert pending.cancelled()


@pytest.mark.asyncio
async def test_a_stop_keeps_the_text_so_far() -> None:
    stop = asyncio.Event()

    async def silence() -> None:
        stop.set()
        await forever()

    text = Pieces("so ", "far", silence)
    recorder = await run(Scripted(TextStream(text)), tools=[], stop=stop)
    await text.closed.wait()
    assert (recorder.finished.finish_reason, recorder.finished.text) == ("aborted", "so far")
    assert recorder.result is not None
    assert recorder.result.conversation[-1] == {"role": "assistant", "content": "so far"}
    assert text.log == ["closed"]


@pytest.mark.asyncio
async def test_no_more_text_is_read_than_the_reader_takes() -> None:
    adapter = Scripted(said(*"abcdefgh"))
    text: Any = adapter.replies[0].text
    demand = Demand()
    read: list[int] = []
    ended = asyncio.Event()

    def on_next(event: Any) -> None:
        read.append(text.read)
        demand.close()
        asyncio.get_running_loop().call_soon(demand.open)

    token = demand_context.set(demand)
    try:
        step = adapter.step(Step(0, adapter.begin((), "hello")))
        step.subscribe(on_next, on_completed=ended.set)
    finally:
        demand_context.reset(token)
    await ended.wait()
    assert read == [1, 2, 3, 4, 5, 6, 7, 8, 8]


@pytest.mark.asyncio
async def test_a_slow_reader_gets_every_piece() -> None:
    pieces = [str(number) for number in range(500)]
    turn = rxloop.Turn(Scripted(said(*pieces)), "hello", buffer=8)
    read = []
    async with turn.stream() as events:
        async for event in events:
            if event.type == "text_delta":
                read.append(event.text)
                await asyncio.sleep(0)
    assert read == pieces


# the conversation


@pytest.mark.parametrize("prompt", ["", " \n", 3, b"hello", ["hello"], {"text": "hello"}])
def test_a_prompt_must_be_text(prompt: Any) -> None:
    with pytest.raises(rxloop.ConfigurationError, match="prompt must be non-empty text, but got"):
        rxloop.Turn(Echo(), prompt)


@pytest.mark.parametrize(
    "conversation",
    [
        "hello",
        {"role": "user", "content": "hello"},
        7,
        ["hello"],
        [{"role": "system", "content": "hello"}],
        [{"role": "user"}],
        [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
    ],
)
def test_a_conversation_must_be_messages_of_text(conversation: Any) -> None:
    with pytest.raises(rxloop.ConfigurationError, match=r"must be a list of messages|a message must have a role"):
        rxloop.Turn(Echo(), "hello", conversation=conversation)


def test_a_turn_needs_something_to_say() -> None:
    with pytest.raises(rxloop.ConfigurationError, match="needs a prompt or a conversation"):
        rxloop.Turn(Echo())


def test_a_prompt_joins_the_users_last_message() -> None:
    conversation = [{"role": "user", "content": "hello", "name": "ann"}]
    assert Echo().begin(conversation, None) == conversation
    joined = Echo().begin(conversation, "you")
    assert joined == [{"role": "user", "content": "hello\n\nyou", "name": "ann"}]
    assert conversation == [{"role": "user", "content": "hello", "name": "ann"}]


def test_results_of_tools_have_no_place() -> None:
    reply = StepResult("a", (), USAGE, "stop", message={"role": "assistant", "content": "a"})
    with pytest.raises(rxloop.ConfigurationError, match="must have no tool results, but got those of 'add'"):
        Echo().append([], reply, [ToolResult("1", "add", 5)])


# tools


def test_tools_are_refused_when_the_turn_is_made() -> None:
    declared = {"name": "search", "type": "search_1"}
    assert not Echo().supports_tools
    with pytest.raises(rxloop.ConfigurationError, match="Echo supports no tools, but got 'add', 'search'"):
        rxloop.Turn(Echo(), "hello", tools=[add, declared])


@pytest.mark.asyncio
async def test_tools_that_are_asked_for_later_are_refused_at_the_step() -> None:
    adapter = Scripted(("a",))
    recorder = await run(adapter, tools=lambda: [add])
    assert isinstance(recorder.error, rxloop.ConfigurationError)
    assert "Scripted supports no tools, but got 'add'" in str(recorder.error)
    assert adapter.requests == []
    with pytest.raises(rxloop.ConfigurationError, match="supports no tools"):
        adapter.step(Step(0, adapter.begin((), "hello"), tools=[add.declaration]))


def test_an_adapter_of_any_kind_may_say_that_it_has_no_tools() -> None:
    class Toolless(AnthropicAdapter):
        supports_tools = False

    client: Any = SimpleNamespace(beta=None, messages=SimpleNamespace(create=later), with_options=lambda **_: client)
    assert AnthropicAdapter(client, model="m").supports_tools
    with pytest.raises(rxloop.ConfigurationError, match="Toolless supports no tools"):
        rxloop.Turn(Toolless(client, model="m"), "hello", tools=[add])


# what is not implemented


class Nothing(rxloop.Adapter):
    provider = "nothing"
    model = "nothing-1"


class Half(Nothing):
    def begin(self, conversation: Any, prompt: Any) -> list[Any]:
        return [prompt]


class OnlyStep(Nothing):
    def step(self, step: Step) -> Observable[Any]:
        raise AssertionError("it is never asked")


def test_a_provider_that_implements_nothing_is_refused_when_the_turn_is_made() -> None:
    with pytest.raises(rxloop.ConfigurationError) as caught:
        rxloop.Turn(Nothing(), "hello")
    assert str(caught.value) == ("Nothing must implement step(), or do_stream() for plain text, but implements neither")


@pytest.mark.asyncio
async def test_a_provider_that_implements_neither_is_refused_at_the_step() -> None:
    recorder = await run(Half(), tools=[])
    assert isinstance(recorder.error, rxloop.ConfigurationError)
    assert "Half must implement step(), or do_stream()" in str(recorder.error)
    with pytest.raises(rxloop.ConfigurationError, match="Half must implement"):
        await Half().do_stream(StreamRequest((), None, "", 0, {}))
    with pytest.raises(rxloop.ConfigurationError, match="Half must implement"):
        Half().append([], StepResult("", (), USAGE, "stop"), ())


def test_a_provider_with_a_step_needs_the_rest_too() -> None:
    with pytest.raises(rxloop.ConfigurationError, match=r"OnlyStep implements step\(\), and so .* begin\(\) too"):
        rxloop.Turn(OnlyStep(), "hello")
    with pytest.raises(rxloop.ConfigurationError, match=r"must implement append\(\) too"):
        OnlyStep().append([], StepResult("", (), USAGE, "stop"), ())


@pytest.mark.parametrize("name", ["provider", "model"])
def test_a_provider_has_a_name_and_a_model(name: str) -> None:
    class Nameless(Echo):
        pass

    setattr(Nameless, name, "")
    with pytest.raises(rxloop.ConfigurationError, match=f"Nameless must have a {name}, which is a non-empty string"):
        rxloop.Turn(Nameless(), "hello")


@pytest.mark.asyncio
async def test_do_stream_may_be_an_instances_own() -> None:
    adapter = Nothing()
    adapter.do_stream = Scripted(("a",)).do_stream  # type: ignore[method-assign]
    assert (await rxloop.Turn(adapter, "hello", retry=NO_RETRY).result()).text == "a"
