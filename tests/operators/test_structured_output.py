from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel
from reactivex.testing import ReactiveTest

from rxloop.errors import ConfigurationError, InvalidOutputError
from rxloop.events import TextDelta
from rxloop.operators import CapReached, OutputState, Renewal, structured_output
from rxloop.output import FINAL_RESULT, Output
from rxloop.steps import Step, StepResult, ToolResult
from rxloop.tools import ToolDeclaration
from tests.operators.virtual import VirtualTime, assert_messages, call, emissions, failure, reply

on_next, on_error, on_completed, subscribe = (
    ReactiveTest.on_next,
    ReactiveTest.on_error,
    ReactiveTest.on_completed,
    ReactiveTest.subscribe,
)


class City(BaseModel):
    name: str


ROME = {"name": "Rome"}
TEXT = json.dumps(ROME)
WRONG = {"name": 5}
WHY = "name: Input should be a valid string"
REMINDER = "Give the answer by calling the tool final_result."


def state_of(mode: str = "cooperative", max_steps: int | None = 9, **options: Any) -> OutputState:
    return OutputState(Output(City, **options), mode, max_steps)


def final(call_id: str = "f", arguments: Any = ROME, **options: Any) -> Any:
    return call(call_id, FINAL_RESULT, arguments, **options)


def judged(state: OutputState, answer: StepResult, step: int = 0) -> StepResult:
    """What becomes of a reply that passes the operator."""
    time = VirtualTime()
    source = time.create_cold_observable(on_next(10, answer), on_completed(20))
    observer = time.start(lambda: source.pipe(structured_output(state, step=step)))
    assert source.subscriptions == [subscribe(200, 220)]
    [made] = emissions(observer.messages)
    assert isinstance(made, StepResult)
    return made


def test_an_answer_ends_the_turn() -> None:
    time, state = VirtualTime(), state_of()
    answer = reply(final(), text="Here it is.")
    source = time.create_cold_observable(on_next(5, TextDelta(2, "x")), on_next(10, answer), on_completed(20))
    observer = time.start(lambda: source.pipe(structured_output(state, step=2)))
    accepted = ToolResult("f", FINAL_RESULT, output="accepted")
    expected = replace(answer, tool_calls=(), answered=((0, accepted),), final=True, finish_reason="stop")
    assert_messages(observer.messages, on_next(205, TextDelta(2, "x")), on_next(210, expected), on_completed(220))
    assert source.subscriptions == [subscribe(200, 220)]
    assert (state.done, state.value, json.loads(state.payload)) == (True, City(name="Rome"), ROME)


def test_without_a_state_the_source_stays_as_it_is() -> None:
    source: Any = VirtualTime().create_cold_observable()
    assert source.pipe(structured_output(None)) is source


@pytest.mark.parametrize(
    "answer",
    [
        reply(call("a", "t")),
        reply(call("a", "t"), text=TEXT),
        # the provider paused
        reply(text="so far", finish_reason="other", resume=True),
        reply(text="I cannot.", finish_reason="content-filter"),
        reply(text="", finish_reason="error", malformed=True),
        reply(text="", finish_reason="error", malformed=True, resume=True),
    ],
)
@pytest.mark.parametrize("mode", ["native", "cooperative", "coercive"])
def test_what_is_no_answer_passes_as_it_is(mode: str, answer: StepResult) -> None:
    state = state_of(mode)
    assert judged(state, answer) is answer
    assert not state.done


def test_errors_pass_and_disposal_disposes() -> None:
    time, error = VirtualTime(), RuntimeError("x")
    source = time.create_cold_observable(on_error(20, error))
    observer = time.start(lambda: source.pipe(structured_output(state_of())))
    assert failure(observer.messages) is error
    time = VirtualTime()
    source = time.create_cold_observable(on_next(50, reply(final())))
    time.start(lambda: source.pipe(structured_output(state_of())), disposed=230)
    assert source.subscriptions == [subscribe(200, 230)]


# calls


def test_other_calls_stay_in_their_places() -> None:
    calls = (call("a", "t"), final("f"), call("b", "t"), final("g", WRONG), call("c", "u"))
    made = judged(state_of(), reply(*calls))
    assert made.final
    assert [one.call_id for one in made.tool_calls] == ["a", "b", "c"]
    others = [ToolResult(name, "t", error="no") for name in "abc"]
    merged = made.with_answered(others)
    assert [result.call_id for result in merged] == ["a", "f", "b", "g", "c"]
    assert merged[1].output == "accepted"
    assert merged[3].error == "not used: final_result was called before in the same reply"


def test_a_wrong_answer_is_told_what_is_wrong() -> None:
    state = state_of()
    answer = reply(call("a", "t"), final("f", WRONG))
    made = judged(state, answer)
    assert (made.resume, made.final, made.correction) == (True, False, None)
    assert made.answered == ((1, ToolResult("f", FINAL_RESULT, error=f"invalid final_result: {WHY}")),)
    assert [one.call_id for one in made.tool_calls] == ["a"]
    # what the turn fails with, should it end here
    assert isinstance(made.failure, InvalidOutputError)
    assert made.failure.payload == WRONG
    assert not state.done
    assert judged(state, reply(final()), step=1).final


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_corrections_are_bounded(retries: int) -> None:
    state = state_of(retries=retries)
    for step in range(retries):
        made = judged(state, reply(final(arguments=WRONG)), step)
        assert (made.resume, made.final) == (True, False)
    made = judged(state, reply(final("last", {"name": None})), retries)
    assert (made.resume, made.final) == (False, True)
    assert isinstance(made.failure, InvalidOutputError)
    assert made.failure.payload == {"name": None}
    assert str(made.failure) == (
        f"the model's answer does not fit what was asked for, after {retries} correction(s): {WHY}"
    )
    # its call has a result all the same
    assert [result.call_id for result in made.with_answered([])] == ["last"]


def test_in_the_last_step_nothing_can_be_corrected() -> None:
    state = state_of(max_steps=3, retries=5)
    assert judged(state, reply(final(arguments=WRONG)), 1).resume
    made = judged(state, reply(final(arguments=WRONG)), 2)
    assert (made.resume, made.final, made.failure is not None) == (False, True, True)


@pytest.mark.parametrize(
    ("arguments", "options", "why"),
    [
        ('{"name": "Ro', {"truncated": True}, "the token limit cut it off; make it shorter"),
        # whole by accident
        (ROME, {"truncated": True}, "the token limit cut it off; make it shorter"),
        ("{name: Rome}", {}, "it must be one JSON object, but got '{name: Rome}'"),
    ],
)
def test_a_call_that_is_no_object(arguments: Any, options: Any, why: str) -> None:
    made = judged(state_of(), reply(final("f", arguments, **options), finish_reason="length"))
    [(_, answer)] = made.answered
    assert answer.error == f"invalid final_result: {why}"
    assert isinstance(made.failure, InvalidOutputError)
    assert made.failure.payload == arguments


@pytest.mark.parametrize(
    "options",
    [
        {"finish_reason": "error", "malformed": True},
        {"finish_reason": "error", "malformed": True, "resume": True},
        {"finish_reason": "error"},
        {"finish_reason": "content-filter"},
    ],
)
def test_a_faulty_reply_has_no_answer(options: Any) -> None:
    """It is neither accepted nor corrected, and its call is nobody's to run all the same."""
    state = state_of()
    answer = reply(final(), call("a", "t"), **options)
    made = judged(state, answer)
    assert [one.call_id for one in made.tool_calls] == ["a"]
    [(place, result)] = made.answered
    assert (place, result.call_id) == (0, "f")
    assert result.error == "not used: the provider refused the reply, or reported it as faulty"
    assert (made.final, made.resume, made.correction, made.failure) == (False, answer.resume, None, None)
    assert not state.done


def test_a_reply_that_was_broken_off() -> None:
    answer = reply(call("a", "t"), final())
    made = state_of().unfinished(answer)
    assert [one.call_id for one in made.tool_calls] == ["a"]
    assert made.answered == (
        (1, ToolResult("f", FINAL_RESULT, error="cancelled: the turn ended before it was checked")),
    )
    assert state_of("native").unfinished(answer) is answer
    without = reply(call("a", "t"))
    assert state_of().unfinished(without) is without


# text


@pytest.mark.parametrize("mode", ["native", "cooperative", "coercive"])
@pytest.mark.parametrize("text", [TEXT, f"\n  {TEXT}\n", f"```json\n{TEXT}\n```", f"```\n{TEXT}```"])
def test_an_answer_in_text_is_one(mode: str, text: str) -> None:
    state = state_of(mode)
    made = judged(state, reply(text=text, finish_reason="stop"))
    assert (made.final, made.failure) == (True, None)
    assert (state.value, state.payload) == (City(name="Rome"), TEXT)


def test_a_wrong_native_answer_is_told_what_is_wrong() -> None:
    state = state_of("native", retries=1)
    made = judged(state, reply(text=json.dumps(WRONG), finish_reason="stop"))
    assert made.resume
    assert made.correction == f"The answer does not have the format that was asked for: {WHY}. Give it again."
    assert isinstance(made.failure, InvalidOutputError)
    assert made.failure.payload == WRONG
    made = judged(state, reply(text="Rome!", finish_reason="stop"), 1)
    assert made.final
    assert isinstance(made.failure, InvalidOutputError)
    assert made.failure.payload == "Rome!"
    assert "it must be one JSON object, but it is not JSON" in str(made.failure)


@pytest.mark.parametrize("text", ['["Rome"]', '"Rome"', "5", "null"])
def test_json_that_is_no_object(text: str) -> None:
    made = judged(state_of("native"), reply(text=text, finish_reason="stop"))
    assert f"it must be one JSON object, but got {text!r}" in str(made.correction)


def test_a_native_answer_that_was_cut_off() -> None:
    # even where it happens to be whole
    made = judged(state_of("native"), reply(text=TEXT, finish_reason="length"))
    assert "the token limit cut it off; make it shorter" in str(made.correction)


def test_native_has_no_tool_of_its_own() -> None:
    """A tool of this name is the caller's there."""
    state = state_of("native")
    answer = reply(final())
    assert judged(state, answer) is answer
    assert not state.done


def test_text_instead_of_a_call_is_reminded() -> None:
    state = state_of(retries=1)
    made = judged(state, reply(text="It is Rome.", finish_reason="stop"))
    assert (made.resume, made.correction, made.answered) == (True, REMINDER, ())
    made = judged(state, reply(text="Rome!", finish_reason="stop"), 1)
    assert isinstance(made.failure, InvalidOutputError)
    assert made.failure.payload == "Rome!"
    assert "after 1 correction(s): the model did not call final_result" in str(made.failure)


# how it is asked for


ADD = ToolDeclaration("add", "Add.", {"type": "object"})


def how(state: OutputState, index: int) -> str:
    step = Step(index, [])
    state.ask(step)
    assert step.output is not None
    assert step.output.schema == Output(City).schema
    return step.output.how


def test_the_tool_is_declared_last() -> None:
    server_side = {"type": "web_search_20250305", "name": "web_search"}
    declared = state_of(description="The city.").declared([ADD, server_side])
    assert declared == [ADD, server_side, ToolDeclaration(FINAL_RESULT, "The city.", Output(City).schema)]
    assert state_of("native").declared([ADD]) == [ADD]


@pytest.mark.parametrize("own", [replace(ADD, name=FINAL_RESULT), {"name": FINAL_RESULT, "input_schema": {}}])
def test_the_name_is_taken(own: Any) -> None:
    words = "^a turn with output must not have a tool of its own named 'final_result'$"
    with pytest.raises(ConfigurationError, match=words):
        state_of().declared([ADD, own])
    assert state_of("native").declared([own]) == [own]


def test_the_modes_ask_in_their_ways() -> None:
    assert [how(state_of("native", 3), index) for index in range(3)] == ["native"] * 3
    assert [how(state_of("cooperative", 3), index) for index in range(3)] == ["offered"] * 3
    assert [how(state_of("coercive", 3), index) for index in range(3)] == ["required", "required", "forced"]
    assert [how(state_of("coercive", 1), index) for index in range(1)] == ["forced"]
    assert [how(state_of("coercive", None), index) for index in range(3)] == ["required"] * 3


def test_text_brings_the_forced_step_forward() -> None:
    state = state_of("coercive", 9, retries=1)
    assert how(state, 0) == "required"
    made = judged(state, reply(text="It is Rome.", finish_reason="stop"), 0)
    assert (made.resume, made.correction) == (True, REMINDER)
    assert isinstance(made.failure, InvalidOutputError)
    assert made.failure.payload == "It is Rome."
    assert how(state, 1) == "forced"
    # it was no correction: that is still to be had
    assert judged(state, reply(final(arguments=WRONG)), 1).resume
    assert how(state, 2) == "forced"
    assert judged(state, reply(final(arguments=WRONG)), 2).final


def test_a_model_that_cannot_be_forced_is_told_once() -> None:
    def remind(conversation: Any, text: str) -> Any:
        return [*conversation, text]

    state = OutputState(Output(City, retries=3), "coercive", 3, remind=remind)
    steps = [Step(index, []) for index in range(4)]
    for step in steps:
        state.ask(step)
    sent: list[Any] = [step.conversation for step in steps]
    assert sent == [[], [], [REMINDER], []]
    # a text was told already
    state = OutputState(Output(City), "coercive", 9, remind=remind)
    judged(state, reply(text="It is Rome.", finish_reason="stop"), 0)
    step = Step(1, [])
    state.ask(step)
    assert (step.output is not None and step.output.how, step.conversation) == ("forced", [])


# a cap that may be raised


def test_a_renewal_is_asked_for_before_the_last_step() -> None:
    asked: list[CapReached] = []

    def renew(reached: CapReached) -> Renewal | int | None:
        asked.append(reached)
        answers: dict[int, Renewal | int] = {3: Renewal(5, "go on"), 5: 7}
        return answers.get(reached.max_steps)

    state = state_of("coercive", None)
    reserving = state.reserving(renew)
    assert how(state, 1) == "required"
    # the cap is 3, of which the last step is kept
    assert reserving(CapReached(2)) == Renewal(4, "go on")
    assert how(state, 2) == "required"
    assert reserving(CapReached(4)) == Renewal(6)
    assert how(state, 4) == "required"
    # no more: the step that was kept is the answer's, and the last
    assert reserving(CapReached(6)) == Renewal(7)
    assert how(state, 6) == "forced"
    assert judged(state, reply(final(arguments=WRONG)), 6).final
    assert reserving(CapReached(7)) is None
    assert asked == [CapReached(3), CapReached(5), CapReached(7)]


@pytest.mark.parametrize("answer", [3, 2, True, "9", Renewal(3)])
def test_a_renewal_has_to_be_more(answer: Any) -> None:
    reserving = state_of("coercive", None).reserving(lambda reached: answer)
    with pytest.raises(ConfigurationError, match=r"^a renewed max_steps must be a whole number >= 4, but got "):
        reserving(CapReached(2))
