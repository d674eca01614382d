from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest
from pydantic import BaseModel

from rxloop import (
    ConfigurationError,
    RetryPolicy,
    StreamInterruptedError,
    ToolCallReceived,
    ToolFinished,
    Turn,
    TurnEvent,
    Usage,
    iterate,
    tool,
)
from rxloop.testing import CallTool, ScriptedAdapter, Think, Wait, check_grammar, marbles, said

pytestmark = pytest.mark.asyncio

AT_ONCE = RetryPolicy(first_delay=0.0, max_delay=0.0)


@tool
def weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"drizzle in {city}"


async def collected(turn: Turn) -> list[TurnEvent]:
    return [event async for event in iterate(turn)]


async def test_it_says_what_is_written() -> None:
    adapter = ScriptedAdapter(
        [Think("Where? "), CallTool("weather", {"city": "Wellington"})],
        ["Take ", "a coat."],
        usage=Usage(7, 3),
    )
    async with Turn(adapter, "Do I need a coat?", tools=[weather]).stream() as stream:
        events = [event async for event in stream]
    result = stream.result
    check_grammar(events)
    assert result.text == "Take a coat."
    assert result.usage == Usage(14, 6)
    assert [event.output for event in events if isinstance(event, ToolFinished)] == ["drizzle in Wellington"]
    adapter.assert_complete()


async def test_it_keeps_what_it_was_asked() -> None:
    adapter = ScriptedAdapter([CallTool("weather", {"city": "Nelson"}, call_id="one")], "Sunny.")
    await Turn(adapter, "And in Nelson?", tools=[weather], system="Be brief.").result()
    first, second = adapter.requests
    assert (first.index, first.system, [each.name for each in first.tools]) == (0, "Be brief.", ["weather"])
    assert first.conversation == [{"role": "user", "content": "And in Nelson?"}]
    assert [message["role"] for message in second.conversation] == ["user", "assistant", "tool"]
    assert second.conversation[2]["content"][0]["call_id"] == "one"


async def test_a_turn_goes_on_from_its_conversation() -> None:
    adapter = ScriptedAdapter("Hello.", "Goodbye.")
    first = await Turn(adapter, "Hi").result()
    await Turn(adapter, "Bye", conversation=first.conversation).result()
    assert [message["content"] for message in adapter.requests[1].conversation] == ["Hi", "Hello.", "Bye"]


async def test_each_attempt_takes_a_script() -> None:
    broken = StreamInterruptedError("the connection broke", provider="scripted")
    adapter = ScriptedAdapter([broken], said("a|"))
    turn = Turn(adapter, "Are you there?", retry=AT_ONCE)
    events = await collected(turn)
    check_grammar(events)
    assert "retry_scheduled" in [event.type for event in events]
    assert len(adapter.requests) == 2


async def test_what_broke_after_content_is_kept() -> None:
    adapter = ScriptedAdapter(said("ab#"))
    with pytest.raises(StreamInterruptedError) as caught:
        await Turn(adapter, "Go", retry=AT_ONCE).result()
    assert caught.value.partial is not None
    assert caught.value.partial.text == "ab"


async def test_arguments_may_be_malformed() -> None:
    adapter = ScriptedAdapter([CallTool("weather", '{"city": ')], "Sorry.")
    events = await collected(Turn(adapter, "Weather?", tools=[weather]))
    check_grammar(events)
    (finished,) = [event for event in events if isinstance(event, ToolFinished)]
    assert finished.error is not None
    assert "city" in adapter.requests[1].conversation[1]["calls"][0]["arguments"]


class Answer(BaseModel):
    total: int


async def test_an_output_comes_by_its_tool_and_is_asked_for_again() -> None:
    adapter = ScriptedAdapter(
        [CallTool("final_result", {"total": "many"})],
        [CallTool("final_result", {"total": 5})],
    )
    turn = Turn(adapter, "2 + 3?", output=Answer)
    result = await turn.result()
    assert result.output == Answer(total=5)
    assert adapter.requests[0].output is not None
    adapter.assert_complete()


async def test_what_was_not_asked_for_is_told() -> None:
    adapter = ScriptedAdapter("One.", "Two.")
    await Turn(adapter, "Go").result()
    with pytest.raises(AssertionError, match=r"1 of 2"):
        adapter.assert_complete()


async def test_one_step_too_many_is_told() -> None:
    adapter = ScriptedAdapter([CallTool("weather", {"city": "Nelson"})])
    with pytest.raises(ConfigurationError, match=r"asked 2 times, but its script has 1 step"):
        await Turn(adapter, "Go", tools=[weather]).result()


@pytest.mark.parametrize("item", [3, None, {"text": "a"}, b"a"])
async def test_what_cannot_be_said_is_told_at_once(item: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"step 1 has"):
        ScriptedAdapter("fine", [item])


async def test_marbles_are_a_script() -> None:
    call = CallTool("weather")
    assert said("-a b-|", {"a": call}, timespan=0.5) == [Wait(0.5), call, "b", Wait(0.5)]
    (text, broken) = said("a#")
    assert text == "a"
    assert isinstance(broken, StreamInterruptedError)
    assert said("") == []


@pytest.mark.parametrize("line", ["a|b", "a#b", "#|", "||"])
async def test_nothing_follows_an_end(line: str) -> None:
    with pytest.raises(ConfigurationError, match="nothing may follow"):
        said(line)


async def test_a_script_draws_as_it_is_written() -> None:
    adapter = ScriptedAdapter([Think("Hm."), CallTool("weather", {"city": "Nelson"})], "Sunny.")
    events = await collected(Turn(adapter, "Weather?", tools=[weather]))
    assert marbles(events).count("D") == 0
    assert marbles(events).endswith("|")


async def test_a_reader_that_leaves_ends_it() -> None:
    adapter = ScriptedAdapter(["a", Wait(3600), "b"])
    async with iterate(Turn(adapter, "Go")) as events:
        async for event in events:
            if event.type == "text_delta":
                break
    assert len(adapter.requests) == 1


async def test_one_thing_alone_is_a_step() -> None:
    adapter = ScriptedAdapter(CallTool("weather", {"city": "Nelson"}), Think("Hm."), ValueError("no"))
    await Turn(adapter, "Weather?", tools=[weather], retry=AT_ONCE).result()
    assert len(adapter.requests) == 2
    with pytest.raises(ValueError, match="no"):
        await Turn(adapter, "Weather?", retry=AT_ONCE).result()
    with pytest.raises(ConfigurationError, match="step 0 has 3"):
        ScriptedAdapter(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), True, "1", None])
async def test_a_wait_that_breaks_its_rule(seconds: Any) -> None:
    with pytest.raises(ConfigurationError, match="seconds must be a finite number >= 0"):
        Wait(seconds)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({"name": 3}, "the name of a tool must be text"),
        ({"name": "a", "arguments": [1]}, "arguments must be a mapping or text"),
        ({"name": "a", "arguments": {"b": object()}}, "arguments of 'a' cannot be JSON"),
        ({"name": "a", "arguments": {"b": float("nan")}}, "arguments of 'a' cannot be JSON"),
        ({"name": "a", "call_id": 5}, "call_id must be text"),
        ({"name": "a", "call_id": ""}, "call_id must be text"),
    ],
)
async def test_a_call_that_breaks_its_rules(call: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        CallTool(**call)


async def test_every_call_has_an_id_of_its_own() -> None:
    with pytest.raises(ConfigurationError, match="'x' comes twice"):
        ScriptedAdapter(CallTool("a", call_id="x"), CallTool("b", call_id="x"))
    city = MappingProxyType({"city": "Nelson"})
    call = CallTool("weather", city)
    adapter = ScriptedAdapter([call, CallTool("weather", city, "call_0_1"), call], call, "Sunny.")
    events = await collected(Turn(adapter, "Weather?", tools=[weather]))
    check_grammar(events)
    ids = [event.call_id for event in events if isinstance(event, ToolCallReceived)]
    assert ids == ["call_0_0", "call_0_1", "call_0_2", "call_1_0"]
