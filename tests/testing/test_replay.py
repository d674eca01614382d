from __future__ import annotations

import asyncio
import base64
import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import reactivex as rx
from reactivex import operators as ops

from rxloop import (
    ConfigurationError,
    OverloadedError,
    RateLimitedError,
    RetryScheduled,
    RxLoopError,
    TextDelta,
    ToolFinished,
    TurnEvent,
    TurnFinished,
    TurnStarted,
    iterate,
)
from rxloop.testing import NOT_RECORDED, ReplayedTurn, check_grammar, replay
from tests.providers.anthropic import sse, text, thinking, tool_use
from tests.testing.cassettes import (
    assistant,
    body,
    call,
    error,
    interaction,
    request,
    result,
    user,
    write,
)

ADD = {
    "name": "add",
    "description": "Add.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
}
OVERLOADED = sse({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}).decode()


async def events_of(turn: ReplayedTurn) -> tuple[list[TurnEvent], RxLoopError | None]:
    events: list[TurnEvent] = []
    failure = None
    try:
        async for _ in iterate(turn.pipe(ops.do_action(events.append))):
            pass
    except RxLoopError as error:
        failure = error
    check_grammar(events, error=failure is not None)
    return events, failure


def of(kind: type[Any], events: list[TurnEvent]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def only(turns: list[ReplayedTurn]) -> ReplayedTurn:
    (turn,) = turns
    return turn


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "recorded.yaml"


def round_trip(*results: Any, calls: int | None = None, **fields: Any) -> list[dict[str, Any]]:
    """A step with calls of `add`, and the step that has their results."""
    ids = [f"toolu_{index}" for index in range(len(results) if calls is None else calls)]
    said = [call(call_id, "add", a=1) for call_id in ids]
    first = request("add", tools=[ADD])
    answered = [item if isinstance(item, dict) else result(ids[index], item) for index, item in enumerate(results)]
    second = request([user("add"), assistant(*said), user(*answered)], tools=[ADD], **fields)
    return [
        interaction(first, body(*[tool_use("add", {"a": 1}, id=call_id) for call_id in ids])),
        interaction(second, body(text("done"))),
    ]


class TestTurns:
    @pytest.mark.asyncio
    async def test_everything_comes_from_the_recording(self, path: Path) -> None:
        sent = request("hello", system="Be brief.", temperature=0.5, max_tokens=7, tools=[ADD])
        write(path, interaction(sent, body(text("Hi."), usage={"input_tokens": 3, "output_tokens": 2})))
        turn = only(replay(path))
        events, failure = await events_of(turn)
        assert failure is None
        assert events[0] == TurnStarted("recorded_0", "anthropic", "claude-test")
        last = events[-1]
        assert isinstance(last, TurnFinished)
        assert (last.text, last.usage.input_tokens, last.usage.output_tokens) == ("Hi.", 3, 2)
        assert (turn.path, turn.prompt, len(turn.steps)) == (path, "hello", 1)
        assert turn.steps[0].request.body == sent

    @pytest.mark.asyncio
    async def test_tools_answer_what_was_recorded(self, path: Path) -> None:
        blocks = [{"type": "text", "text": "a block"}]
        write(path, *round_trip("3", blocks, None))
        turn = only(replay(path))
        events, _ = await events_of(turn)
        assert [event.output for event in of(ToolFinished, events)] == ["3", blocks, None]
        assert (await turn.result()).text == "done"

    @pytest.mark.asyncio
    async def test_a_recorded_error_is_an_error_again(self, path: Path) -> None:
        ours = "the tool failed: KeyError: 'gone'"
        theirs = [{"type": "text", "text": "no such row"}]
        recorded = [result("toolu_0", ours, is_error=True), result("toolu_1", theirs, is_error=True)]
        write(path, *round_trip(*recorded))
        events, _ = await events_of(only(replay(path)))
        assert [(event.output, event.error) for event in of(ToolFinished, events)] == [
            (None, ours),
            (None, "the tool failed: RecordedToolError: no such row"),
        ]

    @pytest.mark.asyncio
    async def test_arguments_are_not_checked_again(self, path: Path) -> None:
        recorded = round_trip("3")
        recorded[0] = interaction(request("add", tools=[ADD]), body(tool_use("add", {"b": "?"}, id="toolu_0")))
        write(path, *recorded)
        events, _ = await events_of(only(replay(path)))
        assert [event.output for event in of(ToolFinished, events)] == ["3"]

    @pytest.mark.asyncio
    async def test_a_call_without_a_result_ends_the_turn(self, path: Path) -> None:
        write(path, round_trip("3")[0])
        turn = only(replay(path))
        events, failure = await events_of(turn)
        assert failure is None
        assert [event.output for event in of(ToolFinished, events)] == [NOT_RECORDED]
        assert of(TurnFinished, events)[0].finish_reason == "tool-calls"

    @pytest.mark.asyncio
    async def test_a_result_belongs_to_its_step(self, path: Path) -> None:
        said, asked = assistant(call("toolu_0", "add", a=1)), request("add")
        history = [user("add"), said, user(result("toolu_0", "first")), said, user(result("toolu_0", "second"))]
        reply = body(tool_use("add", {"a": 1}, id="toolu_0"))
        write(
            path,
            interaction(asked, reply),
            interaction(request(history[:3]), reply),
            interaction(request(history), body(text("done"))),
        )
        events, _ = await events_of(only(replay(path)))
        assert [event.output for event in of(ToolFinished, events)] == ["first", "second"]

    @pytest.mark.asyncio
    async def test_a_tool_that_was_not_declared_is_found(self, path: Path) -> None:
        recorded = round_trip("3")
        recorded[0] = interaction(
            request("add", tools=[{"type": "web_search_20250305", "name": "web_search"}]),
            body(tool_use("add", {"a": 1}, id="toolu_0")),
        )
        write(path, *recorded)
        turn = only(replay(path))
        events, _ = await events_of(turn)
        assert [event.output for event in of(ToolFinished, events)] == ["3"]
        assert turn.steps[0].request.tools == [{"type": "web_search_20250305", "name": "web_search"}]

    @pytest.mark.asyncio
    async def test_a_paused_turn_goes_on(self, path: Path) -> None:
        write(
            path,
            interaction(request("search"), body(text("One, "), stop_reason="pause_turn")),
            interaction(request([user("search"), assistant({"type": "text", "text": "One, "})]), body(text("two."))),
        )
        turn = only(replay(path))
        assert len(turn.steps) == 2
        assert (await turn.result()).text == "One, two."

    @pytest.mark.asyncio
    async def test_a_new_prompt_is_a_new_turn(self, path: Path) -> None:
        history = [user("hello"), assistant({"type": "text", "text": "Hi."}), user("and now?")]
        write(path, interaction(request("hello"), body(text("Hi."))), interaction(request(history), body(text("Bye."))))
        first, second = replay(path)
        assert ((await first.result()).text, (await second.result()).text) == ("Hi.", "Bye.")
        assert (await second.result()).conversation[:3] == history
        assert second.prompt == "and now?"

    @pytest.mark.asyncio
    async def test_the_same_request_twice_is_two_turns(self, path: Path) -> None:
        write(path, *[interaction(request("hello"), body(text(answer))) for answer in ("one", "two")])
        assert [(await turn.result()).text for turn in replay(path)] == ["one", "two"]

    @pytest.mark.asyncio
    async def test_turns_that_were_recorded_side_by_side_are_told_apart(self, path: Path) -> None:
        recorded = []
        for name in ("x", "y"):
            said = assistant(call(f"toolu_{name}", "add", a=1))
            recorded.append(interaction(request("add"), body(tool_use("add", {"a": 1}, id=f"toolu_{name}"))))
            history = [user("add"), said, user(result(f"toolu_{name}", name))]
            recorded.append(interaction(request(history), body(text(f"done {name}"))))
        write(path, recorded[0], recorded[2], recorded[1], recorded[3])
        turns = replay(path)
        assert [[step.attempts[0].index for step in turn.steps] for turn in turns] == [[0, 2], [1, 3]]
        assert [(await turn.result()).text for turn in turns] == ["done x", "done y"]

    @pytest.mark.asyncio
    async def test_clients_may_write_the_same_content_differently(self, path: Path) -> None:
        marked = {"type": "text", "text": "add", "cache_control": {"type": "ephemeral"}, "citations": None}
        said = assistant(call("toolu_0", "add", a=1))
        write(
            path,
            interaction(request([user(marked)]), body(tool_use("add", {"a": 1}, id="toolu_0"))),
            interaction(request([user("add"), said, user(result("toolu_0", "3"))]), body(text("done"))),
        )
        assert len(only(replay(path)).steps) == 2

    @pytest.mark.asyncio
    async def test_several_files_in_order(self, tmp_path: Path) -> None:
        paths = [
            write(tmp_path / f"{name}.yaml", interaction(request("hello"), body(text(name)))) for name in ("b", "a")
        ]
        assert [(await turn.result()).text for turn in replay(*paths)] == ["b", "a"]
        for wrong in ((), (paths,)):
            with pytest.raises(ConfigurationError, match="replay takes one path or more"):
                replay(*wrong)


class TestRuns:
    @pytest.mark.asyncio
    async def test_a_replayed_turn_is_cold(self, path: Path) -> None:
        turn = only(replay(write(path, *round_trip("3", "4"))))
        alone = [(await turn.result()).text for _ in range(2)]
        assert alone == ["done", "done"]
        merged = rx.merge(turn.pipe(ops.to_list()), turn.pipe(ops.to_list()), turn.pipe(ops.to_list()))
        runs = [run async for run in iterate(merged)]
        assert [[event.type for event in run] for run in runs] == [[event.type for event in runs[0]]] * 3

    @pytest.mark.asyncio
    async def test_leaving_and_stopping(self, path: Path) -> None:
        stop = asyncio.Event()
        turn = only(replay(write(path, interaction(request("count"), body(text("1" * 1000, 1000)))), stop=stop))
        async with turn.stream() as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    break
        seen: list[Any] = []
        async with turn.stream() as events:
            async for event in events:
                seen.append(event)
                stop.set()
        assert seen[-1].finish_reason == "aborted"

    @pytest.mark.asyncio
    async def test_recorded_tools_can_take_their_time(self, path: Path) -> None:
        write(path, *round_trip("3", "4"))
        for seconds in (0.02, {"add": 0.02}):
            events, _ = await events_of(only(replay(path, tool_seconds=seconds)))
            assert all(event.seconds >= 0.02 for event in of(ToolFinished, events))

    @pytest.mark.asyncio
    async def test_nothing_leads_to_the_network(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("ANTHROPIC_BASE_URL", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
        turn = only(replay(write(path, interaction(request("hello"), body(text("Hi."))))))
        assert (await turn.result()).text == "Hi."

    def test_from_synchronous_code(self, path: Path) -> None:
        turn = only(replay(write(path, *round_trip("3"))))
        assert [turn.result_sync().text for _ in range(2)] == ["done", "done"]


class TestFailures:
    @pytest.mark.asyncio
    async def test_a_failure_with_the_same_request_after_it_is_a_retry(self, path: Path) -> None:
        rate, options = error("rate_limit_error", 429, retry_after="3600")
        sent = request("hello")
        write(
            path,
            interaction(sent, rate, **options),
            interaction(sent, OVERLOADED),
            interaction(sent, rate, **options),
            interaction(sent, body(text("Hi."))),
        )
        turn = only(replay(path))
        events, failure = await events_of(turn)
        assert failure is None
        retries = of(RetryScheduled, events)
        assert [(event.attempt, event.delay) for event in retries] == [(1, 0.0), (2, 0.0), (3, 0.0)]
        assert [event.error["kind"] for event in retries] == ["rate_limited", "overloaded", "rate_limited"]
        assert events[-1].text == "Hi."  # type: ignore[union-attr]

    @pytest.mark.asyncio
    async def test_what_is_not_retryable_was_retried_all_the_same(self, path: Path) -> None:
        reply, options = error("invalid_request_error", 400)
        sent = request("hello")
        write(path, interaction(sent, reply, **options), interaction(sent, body(text("Hi."))))
        events, failure = await events_of(only(replay(path)))
        assert failure is None
        assert len(of(RetryScheduled, events)) == 1

    @pytest.mark.asyncio
    async def test_a_failure_is_retried_as_often_as_it_was_recorded(self, path: Path) -> None:
        recorded = round_trip("3")
        reply, options = error("overloaded_error", 529)
        last = json.loads(recorded[1]["request"]["body"])
        first = json.loads(recorded[0]["request"]["body"])
        write(
            path,
            *[interaction(first, reply, **options)] * 3,
            recorded[0],
            interaction(last, reply, **options),
        )
        turn = only(replay(path))
        for _ in range(2):
            events, failure = await events_of(turn)
            assert [event.step for event in of(RetryScheduled, events)] == [0, 0, 0]
            assert isinstance(failure, OverloadedError)
            assert failure.partial is not None
            assert failure.partial.steps == 2

    @pytest.mark.asyncio
    async def test_a_failure_with_another_request_after_it_ends_the_turn(self, path: Path) -> None:
        reply, options = error("rate_limit_error", 429, retry_after="7")
        write(path, interaction(request("a"), reply, **options), interaction(request("b"), body(text("Hi."))))
        failed, other = replay(path)
        with pytest.raises(RateLimitedError) as caught:
            await failed.result()
        assert (caught.value.status, caught.value.retry_after) == (429, 7.0)
        assert (await other.result()).text == "Hi."

    @pytest.mark.asyncio
    async def test_after_content_nothing_is_retried(self, path: Path) -> None:
        begun = body(text("Hel")).split("event: content_block_stop")[0]
        sent = request("hello")
        write(path, interaction(sent, begun + OVERLOADED), interaction(sent, body(text("Hi."))))
        failed, other = replay(path)
        with pytest.raises(OverloadedError) as caught:
            await failed.result()
        assert caught.value.partial is not None
        assert caught.value.partial.text == "Hel"
        assert (await other.result()).text == "Hi."

    @pytest.mark.asyncio
    async def test_a_conversation_that_was_refused_is_sent_all_the_same(self, path: Path) -> None:
        reply, options = error("invalid_request_error", 400)
        history = [user("add"), assistant(call("toolu_0", "add")), user("never mind")]
        write(path, interaction(request(history), reply, **options))
        _, failure = await events_of(only(replay(path)))
        assert failure is not None
        assert failure.kind == "invalid_request"


def _set(recorded: dict[str, Any], content: Any, **headers: Any) -> None:
    recorded["response"]["body"] = content
    recorded["response"]["headers"].update(headers)


STREAM = body(text("Grüße"), thinking("hm")).encode()
DEFLATED = zlib.compressobj(wbits=-zlib.MAX_WBITS)
FORMS: dict[str, Callable[[dict[str, Any]], None]] = {
    "bytes": lambda item: _set(item, {"string": STREAM}),
    "gzip": lambda item: _set(item, {"string": gzip.compress(STREAM)}, **{"content-encoding": ["gzip"]}),
    "gzip without a header": lambda item: _set(item, {"string": gzip.compress(STREAM)}),
    "a gzip header alone": lambda item: _set(item, {"string": STREAM}, **{"Content-Encoding": ["gzip"]}),
    "a brotli header alone": lambda item: _set(item, {"string": STREAM}, **{"Content-Encoding": ["br"]}),
    "zlib": lambda item: _set(item, {"string": zlib.compress(STREAM)}, **{"content-encoding": ["deflate"]}),
    "raw deflate": lambda item: _set(
        item, {"string": DEFLATED.compress(STREAM) + DEFLATED.flush()}, **{"content-encoding": "deflate"}
    ),
    "base64": lambda item: _set(item, {"base64_string": base64.b64encode(STREAM).decode()}),
    "a length of its own": lambda item: _set(item, {"string": STREAM}, **{"content-length": ["7"]}),
    "no content type": lambda item: item["response"].update(headers={}, body={"string": STREAM}),
    "headers as text": lambda item: item["response"].update(
        headers={"content-type": "text/event-stream"}, body={"string": STREAM}
    ),
    "another host": lambda item: item["request"].update(uri="http://localhost:8080/gateway/v1/messages?beta=true"),
    "carriage returns": lambda item: _set(item, {"string": STREAM.replace(b"\n", b"\r\n")}),
}


class TestForms:
    @pytest.mark.asyncio
    @pytest.mark.parametrize("form", FORMS)
    async def test_a_body_is_read_however_it_was_written(self, path: Path, form: str) -> None:
        recorded = interaction(request("hello"), STREAM.decode())
        FORMS[form](recorded)
        assert (await only(replay(write(path, recorded))).result()).text == "Grüße"

    @pytest.mark.asyncio
    async def test_a_whole_message_with_parsed_bodies(self, path: Path) -> None:
        recorded = interaction(request("hello"), {})
        message = {
            "type": "message",
            "role": "assistant",
            "model": "claude-test",
            "content": [{"type": "text", "text": "Hi."}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 1, "output_tokens": 2},
        }
        recorded["request"] = {
            "method": "POST",
            "uri": "https://api.anthropic.com/v1/messages",
            "headers": {"content-type": ["application/json"]},
            "parsed_body": request("hello", stream=False),
        }
        recorded["response"]["parsed_body"] = message
        del recorded["response"]["body"]
        outcome = await only(replay(write(path, recorded))).result()
        assert (outcome.text, outcome.raw_stop_reason, outcome.usage.output_tokens) == ("Hi.", "end_turn", 2)

    @pytest.mark.asyncio
    async def test_the_former_form_of_httpx_responses(self, path: Path) -> None:
        recorded = interaction(request("hello"), "")
        recorded["response"] = {
            "status_code": 200,
            "http_version": "HTTP/1.1",
            "headers": {"content-type": "text/event-stream"},
            "content": STREAM.decode(),
        }
        assert (await only(replay(write(path, recorded))).result()).text == "Grüße"

    def test_json_instead_of_yaml(self, path: Path) -> None:
        recorded = {"version": 1, "interactions": [interaction(request("hello"), STREAM.decode())]}
        path.write_text(json.dumps(recorded), "utf-8")
        assert only(replay(path)).result_sync().text == "Grüße"

    @pytest.mark.asyncio
    async def test_other_traffic_is_passed_over(self, path: Path) -> None:
        write(
            path,
            interaction("", "{}", uri="https://example.com/weather", method="GET"),
            interaction(request("hello"), body(text("Hi."))),
            interaction(
                request("hello"), {"input_tokens": 9}, uri="https://api.anthropic.com/v1/messages/count_tokens"
            ),
        )
        assert (await only(replay(path)).result()).text == "Hi."


BAD: dict[str, tuple[Any, str]] = {
    "empty": ("", "is empty"),
    "not YAML": ("a: b: c: [", "not a cassette"),
    "a list": ("- 1\n", "must be a mapping with a list of interactions"),
    "some text": ("hello", "must be a mapping with a list of interactions"),
    "ruby's": ("http_interactions: []\n", "must be a mapping with a list of interactions"),
    "version": ("version: 2\ninteractions: []\n", "must be a cassette of version 1, but it is of version 2"),
    "nothing": ("version: 1\ninteractions: []\n", "has no interactions"),
    "half": ("version: 1\ninteractions: [{request: {}}]\n", "not a cassette in vcrpy's format"),
    "unsafe": ("version: 1\ninteractions: [!!python/object/apply:os.getcwd []]\n", "not a cassette in vcrpy's format"),
    "no body": ([interaction("", "x")], r"interaction 0: its request body must be a JSON object"),
    "no model": ([interaction({"messages": []}, "x")], r"interaction 0: its request body must be a JSON object"),
    "another service": (
        [interaction("", "x", uri="https://example.com/a")],
        r"POST example.com/a is not supported yet",
    ),
    "vertex": ([interaction("", "x", uri="https://v.example/v1/models/m:streamRawPredict")], r"requests to vertex"),
    "bedrock": (
        [interaction("", "x", uri="https://b.example/model/m/converse-stream")],
        r"interaction 0: its request body must be a JSON object with messages",
    ),
    "a format of a model's own": (
        [interaction({"inputText": "hi"}, "x", uri="https://b.example/model/amazon.titan-text/invoke")],
        r"interaction 0: the model amazon.titan-text was asked in a format of its own \(InvokeModel\)",
    ),
}


_ASKED = {"role": "user", "content": "hello"}
MALFORMED: dict[str, dict[str, Any]] = {
    "tools is a number": {"tools": 5},
    "tools is true": {"tools": True},
    "tools is an object": {"tools": {"name": "f"}},
    "a tool is a number": {"tools": [5]},
    "a tool is null": {"tools": [None]},
    "a tool is text": {"tools": ["f"]},
    "a schema is a list": {"tools": [{"name": "f", "input_schema": [1]}]},
    "a schema is text": {"tools": [{"name": "f", "input_schema": "x"}]},
    "a message is text": {"messages": ["hello"]},
    "a message is null": {"messages": [_ASKED, None]},
    "a message is a list": {"messages": [[_ASKED]]},
    "a content is a number": {"messages": [{"role": "user", "content": 5}]},
    "a content is an object": {"messages": [{"role": "user", "content": {"type": "text"}}]},
    "a block is text": {"messages": [{"role": "user", "content": ["hello"]}]},
    "the system is a number": {"system": 5},
    "a system block is text": {"system": ["x"]},
    "the model is a list": {"model": ["m"]},
    "a field of the adapter's": {"client": 5},
    "a field of Python's": {"self": 5},
}


class TestBadInput:
    @pytest.mark.parametrize("place", [0, 1])
    @pytest.mark.parametrize("case", MALFORMED)
    def test_a_request_that_is_malformed_is_named(self, path: Path, case: str, place: int) -> None:
        good = {"model": "m", "max_tokens": 5, "messages": [_ASKED]}
        requests = [good] * place + [{**good, **MALFORMED[case]}]
        write(path, *(interaction(item, body(text("hi"))) for item in requests))
        with pytest.raises(ConfigurationError, match=rf"interaction {place}: ") as caught:
            replay(path)
        assert str(path) in str(caught.value)

    def test_a_request_that_is_nested_deeply_is_named(self, path: Path) -> None:
        write(path, interaction('{"model": "m", "messages": ' + "[" * 100_000, body(text("hi"))))
        with pytest.raises(ConfigurationError, match=r"interaction 0: its request body"):
            replay(path)

    @pytest.mark.parametrize("case", BAD)
    def test_a_file_that_is_no_cassette_is_named(self, path: Path, case: str) -> None:
        content, said = BAD[case]
        if isinstance(content, str):
            path.write_text(content, "utf-8")
        else:
            write(path, *content)
        with pytest.raises(ConfigurationError, match=said) as caught:
            replay(path)
        assert str(path) in str(caught.value)

    def test_a_file_that_cannot_be_read_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match=r"nowhere.yaml does not exist"):
            replay(tmp_path / "nowhere.yaml")
        with pytest.raises(ConfigurationError, match=r"is a directory"):
            replay(tmp_path)
        (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(ConfigurationError, match=r"is not text in UTF-8"):
            replay(tmp_path / "binary.yaml")
