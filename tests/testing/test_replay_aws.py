"""Recordings of Bedrock and SageMaker, as anybody's recorder might have written them."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from reactivex import operators as ops

from rxloop import ConfigurationError, RetryScheduled, RxLoopError, ToolDeclaration, ToolFinished, TurnEvent, iterate
from rxloop.testing import Interaction, ReplayedTurn, check_grammar, replay, replay_bedrock, replay_sagemaker
from rxloop.testing.recorded_aws import recorded_client
from tests.providers import anthropic, bedrock, sagemaker
from tests.providers.eventstream import CONTENT_TYPE, bad_message_checksum, chunk, event, exception
from tests.testing.cassettes import interaction as any_interaction
from tests.testing.cassettes import write

HOST = "https://bedrock-runtime.us-east-1.amazonaws.com"
MODEL = "us.anthropic.claude-test-v1%3A0"
ENDPOINT = "https://runtime.sagemaker.us-east-1.amazonaws.com/endpoints/my-endpoint/invocations-response-stream"
ADD = {"toolSpec": {"name": "add", "description": "Add.", "inputSchema": {"json": {"type": "object"}}}}
CACHE = {"cachePoint": {"type": "default"}}
NOVA_HEADERS = {"x-amzn-bedrock-content-type": ["application/json"]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "recorded.yaml"


def stream(*blocks: Any, **options: Any) -> bytes:
    return b"".join(bedrock.encoded(one) for one in bedrock.message(*blocks, **options))


def whole(*content: Mapping[str, Any], stop_reason: str = "end_turn", **usage: int) -> dict[str, Any]:
    counted = {"inputTokens": 3, "outputTokens": 2, "totalTokens": 5, **usage}
    message = {"role": "assistant", "content": list(content)}
    return {"output": {"message": message}, "stopReason": stop_reason, "usage": counted, "metrics": {"latencyMs": 1}}


def user(*content: Mapping[str, Any] | str) -> dict[str, Any]:
    return {"role": "user", "content": [{"text": block} if isinstance(block, str) else block for block in content]}


def assistant(*content: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content)}


def call(call_id: str, name: str = "add", **arguments: Any) -> dict[str, Any]:
    return {"toolUse": {"toolUseId": call_id, "name": name, "input": arguments}}


def result(call_id: str, *content: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    return {"toolResult": {"toolUseId": call_id, "content": list(content), **fields}}


def request(*messages: Mapping[str, Any] | str, **fields: Any) -> dict[str, Any]:
    said = [user(message) if isinstance(message, str) else message for message in messages]
    return {"messages": said, **fields}


def interaction(
    sent: Mapping[str, Any] | str,
    reply: bytes | Mapping[str, Any],
    *,
    operation: str = "converse-stream",
    model: str = MODEL,
    status: int = 200,
    headers: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    kind = {} if isinstance(reply, Mapping) else {"Content-Type": [CONTENT_TYPE]}
    uri = f"{HOST}/model/{model}/{operation}"
    return any_interaction(sent, reply, status=status, headers={**kind, **(headers or {})}, uri=uri)


def failure(status: int, kind: str, message: str = "scripted failure") -> tuple[dict[str, Any], dict[str, Any]]:
    named = {"x-amzn-errortype": [f"{kind}:http://internal.amazon.com/coral/com.amazon.bedrock/"]}
    return {"message": message}, {"status": status, "headers": named}


def only(turns: list[ReplayedTurn]) -> ReplayedTurn:
    (turn,) = turns
    return turn


async def events_of(turn: ReplayedTurn) -> tuple[list[TurnEvent], RxLoopError | None]:
    events: list[TurnEvent] = []
    failed = None
    try:
        async for _ in iterate(turn.pipe(ops.do_action(events.append))):
            pass
    except RxLoopError as error:
        failed = error
    check_grammar(events, error=failed is not None)
    return events, failed


def of(kind: type[Any], events: Iterable[TurnEvent]) -> list[Any]:
    return [one for one in events if isinstance(one, kind)]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """The addresses and bodies of what a replay sent."""
    requests: list[tuple[str, Any]] = []

    def spied(service: str, response: Callable[[], Interaction]) -> Any:
        client = recorded_client(service, response)

        def note(request: Any, **_: Any) -> None:
            requests.append((request.url, json.loads(request.body)))

        client.meta.events.register_first(f"before-send.{service}", note)
        return client

    monkeypatch.setattr(replay_bedrock, "recorded_client", spied)
    monkeypatch.setattr(replay_sagemaker, "recorded_client", spied)
    return requests


class TestConverse:
    @pytest.mark.asyncio
    async def test_everything_comes_from_the_recording(self, path: Path, sent: list[Any]) -> None:
        asked = request(
            user("Say hi."),
            assistant({"text": "hi"}),
            user({"image": {"format": "png", "source": {"bytes": "aGk="}}}, "louder"),
            system=[{"text": "Be brief."}, CACHE],
            inferenceConfig={"maxTokens": 7, "temperature": 0.5},
            guardrailConfig={"guardrailIdentifier": "g", "guardrailVersion": "1"},
            additionalModelRequestFields={"thinking": {"type": "enabled"}},
            toolConfig={"tools": [ADD, {"systemTool": {"name": "grounding"}}, CACHE], "toolChoice": {"any": {}}},
        )
        usage = {"inputTokens": 3, "outputTokens": 2, "cacheReadInputTokens": 10, "cacheWriteInputTokens": 20}
        write(path, interaction(asked, stream(bedrock.reasoning("hm"), bedrock.text("HI"), usage=usage)))
        turn = only(replay(path))
        outcome = await turn.result()
        assert (outcome.text, outcome.usage.input_tokens, outcome.usage.cache_read_tokens) == ("HI", 33, 10)
        assert (turn.prompt, turn.adapter.provider, turn.adapter.model) == (
            "louder",
            "bedrock",
            "us.anthropic.claude-test-v1:0",
        )
        assert sent == [(f"{HOST}/model/{MODEL}/converse-stream", asked)]
        tools = turn.steps[0].request.tools
        assert tools[0] == ToolDeclaration("add", "Add.", {"type": "object"})
        assert tools[1:] == [{"systemTool": {"name": "grounding"}}, CACHE]

    @pytest.mark.asyncio
    @pytest.mark.parametrize(
        "model",
        [
            "arn%3Aaws%3Abedrock%3Aus-east-1%3A000000000000%3Ainference-profile%2Fus.amazon.nova",
            "arn:aws:bedrock:us-east-1:000000000000:inference-profile/us.amazon.nova",
        ],
    )
    async def test_a_model_may_be_an_arn(self, path: Path, model: str) -> None:
        write(path, interaction(request("hello"), stream(bedrock.text("Hi.")), model=model))
        turn = only(replay(path))
        assert turn.adapter.model == "arn:aws:bedrock:us-east-1:000000000000:inference-profile/us.amazon.nova"
        assert (await turn.result()).text == "Hi."

    @pytest.mark.asyncio
    async def test_a_whole_reply_goes_on_from_a_streamed_one(self, path: Path, sent: list[Any]) -> None:
        tools = {"tools": [ADD]}
        followed = request("add", assistant(call("c", a=1)), user(result("c", {"text": "2"})), toolConfig=tools)
        write(
            path,
            interaction(request("add", toolConfig=tools), stream(bedrock.tool_use("add", {"a": 1}, id="c"))),
            interaction(followed, whole({"text": "It is 2."}, cacheReadInputTokens=4), operation="converse"),
        )
        turn = only(replay(path))
        outcome = await turn.result()
        assert (outcome.text, outcome.steps, outcome.usage.cache_read_tokens) == ("It is 2.", 2, 4)
        assert [body for _, body in sent] == [request("add", toolConfig=tools), followed]

    @pytest.mark.asyncio
    async def test_tools_answer_what_was_recorded(self, path: Path) -> None:
        picture = {"image": {"format": "png", "source": {"bytes": "aGk="}}}
        answers: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
            "a": ([{"text": "5"}], {"status": "success"}),
            "b": ([{"json": {"sum": 5}}], {}),
            "c": ([picture, {"text": "a picture"}], {}),
            "d": ([], {}),
            "e": ([{"text": "the tool failed: KeyError: 'gone'"}], {"status": "error"}),
            "f": ([{"text": "no such"}, {"text": "row"}], {"status": "error"}),
        }
        results = [result(call_id, *content, **fields) for call_id, (content, fields) in answers.items()]
        write(
            path,
            interaction(request("add"), stream(*(bedrock.tool_use("add", {}, id=call_id) for call_id in answers))),
            interaction(
                request("add", assistant(*map(call, answers)), user(*results, "and?")), stream(bedrock.text("ok"))
            ),
        )
        events, _ = await events_of(only(replay(path)))
        finished = {one.call_id: one for one in of(ToolFinished, events)}
        assert [finished[call_id].output for call_id in "abcd"] == [
            "5",
            {"sum": 5},
            [picture, {"text": "a picture"}],
            [],
        ]
        assert [finished[call_id].error for call_id in "ef"] == [
            "the tool failed: KeyError: 'gone'",
            "the tool failed: RecordedToolError: no such\nrow",
        ]

    @pytest.mark.asyncio
    async def test_a_cache_point_may_move_on(self, path: Path) -> None:
        write(
            path,
            interaction(request(user("add", CACHE)), stream(bedrock.tool_use("add", {}, id="c"))),
            interaction(
                request("add", assistant(call("c")), user(result("c", {"text": "2"}), CACHE)),
                stream(bedrock.text("2")),
            ),
        )
        assert (await only(replay(path)).result()).steps == 2

    @pytest.mark.parametrize(
        "later",
        [
            request("add", assistant({"text": "no"}), user("why?")),
            request("add", user(result("c", {"text": "2"}))),
            request("subtract", assistant(call("c")), user(result("c", {"text": "2"}))),
            request(
                "add", assistant(call("c")), user(result("c", {"text": "2"})), assistant({"text": "2"}), user("so?")
            ),
            request("add"),
        ],
        ids=["no results", "no reply", "another prompt", "a turn later", "the same again"],
    )
    def test_another_turn_begins(self, path: Path, later: dict[str, Any]) -> None:
        write(
            path,
            interaction(request("add"), stream(bedrock.tool_use("add", {}, id="c"))),
            interaction(later, stream(bedrock.text("2"))),
        )
        assert [len(turn.steps) for turn in replay(path)] == [1, 1]

    def test_calls_that_were_not_run_are_not_gone_on_from(self, path: Path) -> None:
        reply = stream(bedrock.tool_use("add", {}, id="c"), stop_reason="malformed_tool_use")
        followed = request("add", assistant(call("c")), user(result("c", {"text": "2"})))
        write(path, interaction(request("add"), reply), interaction(followed, stream(bedrock.text("2"))))
        assert [len(turn.steps) for turn in replay(path)] == [1, 1]

    @pytest.mark.asyncio
    async def test_text_may_be_plain_as_wrappers_have_it(self, path: Path) -> None:
        asked = {"modelId": "m", "system": "Be brief.", "messages": [{"role": "user", "content": "hello"}]}
        write(path, interaction(asked, stream(bedrock.text("Hi."))))
        turn = only(replay(path))
        assert turn.prompt == "hello"
        assert (await turn.result()).conversation == [user("hello"), assistant({"text": "Hi."})]

    def test_a_guarded_prompt_is_shown(self, path: Path) -> None:
        guarded = {"guardContent": {"text": {"text": "hello", "qualifiers": ["query"]}}}
        write(path, interaction(request(user(guarded)), stream(bedrock.text("Hi."))))
        assert only(replay(path)).prompt == "hello"


class TestFailures:
    @pytest.mark.asyncio
    async def test_what_failed_before_any_content_is_tried_again(self, path: Path) -> None:
        refused, options = failure(429, "ThrottlingException", "slow down")
        write(
            path,
            interaction(request("hello"), refused, **options),
            interaction(request("hello"), exception("throttlingException", "slower")),
            interaction(request("hello"), stream(bedrock.text("Hi."))),
        )
        turn = only(replay(path))
        for _ in range(2):
            events, failed = await events_of(turn)
            assert failed is None
            assert [(one.error["kind"], one.delay) for one in of(RetryScheduled, events)] == [("rate_limited", 0.0)] * 2
        assert (await turn.result()).text == "Hi."

    def test_another_model_is_another_turn(self, path: Path) -> None:
        refused, options = failure(503, "ServiceUnavailableException")
        write(
            path,
            interaction(request("hello"), refused, **options),
            interaction(request("hello"), stream(bedrock.text("Hi.")), model="another"),
        )
        assert [turn.adapter.model for turn in replay(path)] == ["us.anthropic.claude-test-v1:0", "another"]

    @pytest.mark.asyncio
    @pytest.mark.parametrize(
        ("reply", "kind"),
        [
            (exception("modelStreamErrorException", "broken", originalStatusCode=500), "server"),
            (bad_message_checksum(bedrock.encoded({"messageStart": {"role": "assistant"}})), "malformed_response"),
            (stream(bedrock.text("Hi."))[:-40], None),
            (stream(bedrock.text("Hello, you."))[:400], "stream_interrupted"),
            (b"", "stream_interrupted"),
            (b'{"output": {"message": ', "stream_interrupted"),
            (b'{"output": {}} {}', "malformed_response"),
            (b'{"message": "what?"}', "malformed_response"),
        ],
        ids=["exception", "checksum", "usage missing", "cut", "empty", "cut document", "two documents", "no reply"],
    )
    async def test_a_broken_reply_is_broken_again(self, path: Path, reply: bytes, kind: str | None) -> None:
        write(path, interaction(request("hello"), reply))
        _, failed = await events_of(only(replay(path)))
        assert (failed and failed.kind) == kind

    @pytest.mark.asyncio
    async def test_nothing_goes_on_from_what_broke_after_content(self, path: Path) -> None:
        broken = stream(bedrock.text("Hello, you."))[:400]
        write(path, interaction(request("hello"), broken), interaction(request("hello"), stream(bedrock.text("Hi."))))
        first, second = replay(path)
        _, failed = await events_of(first)
        assert failed is not None
        assert failed.partial is not None
        assert failed.partial.text == "Hell"
        assert (await second.result()).text == "Hi."

    @pytest.mark.asyncio
    async def test_the_type_of_an_error_is_in_its_header(self, path: Path) -> None:
        refused, options = failure(403, "UnrecognizedClientException")
        write(path, interaction(request("hello"), refused, operation="converse", **options))
        _, failed = await events_of(only(replay(path)))
        assert failed is not None
        assert (failed.kind, str(failed)) == ("authentication", "scripted failure")


STREAM = stream(bedrock.text("Grüße"))
FORMS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "bytes": lambda response: response.update(body={"string": STREAM}),
    "base64": lambda response: response.update(body={"base64_string": base64.b64encode(STREAM).decode()}),
    "gzip": lambda response: (
        response["headers"].update({"content-encoding": ["gzip"]})
        or response.update(body={"string": gzip.compress(STREAM)})
    ),
    "a gzip header alone": lambda response: response["headers"].update({"Content-Encoding": ["gzip"]}),
    "a brotli header alone": lambda response: response["headers"].update({"Content-Encoding": ["br"]}),
    "a length of its own": lambda response: response["headers"].update({"content-length": ["7"]}),
    "no headers": lambda response: response.update(headers={}),
    "headers as text": lambda response: response.update(headers={"content-type": CONTENT_TYPE}),
}


class TestForms:
    @pytest.mark.asyncio
    @pytest.mark.parametrize("form", FORMS)
    async def test_a_body_is_read_however_it_was_written(self, path: Path, form: str) -> None:
        recorded = interaction(request("hello"), STREAM)
        FORMS[form](recorded["response"])
        turn = only(replay(write(path, recorded)))
        assert turn.steps[0].attempts[0].body == STREAM
        assert (await turn.result()).text == "Grüße"

    @pytest.mark.asyncio
    async def test_another_host_and_other_traffic(self, path: Path) -> None:
        recorded = interaction(request("hello"), STREAM)
        recorded["request"]["uri"] = "http://localhost:8080/gateway/model/m/converse-stream?a=b"
        write(
            path,
            any_interaction("", {}, uri="https://sts.amazonaws.com/"),
            interaction({"inputText": "hello"}, {"embedding": [0.5]}, operation="invoke", model="amazon.titan-embed"),
            interaction(request("hello"), {"inputTokens": 3}, operation="count-tokens"),
            recorded,
        )
        assert (await only(replay(path)).result()).text == "Grüße"

    @pytest.mark.asyncio
    async def test_nothing_of_the_environment_is_used(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        broken = {
            "AWS_ACCESS_KEY_ID": "a\nb",
            "AWS_BEARER_TOKEN_BEDROCK": "a\nb",
            "AWS_CA_BUNDLE": "/nowhere",
            "AWS_CONFIG_FILE": str(path),
            "AWS_DEFAULT_REGION": "no region",
            "AWS_DEFAULTS_MODE": "auto",
            "AWS_ENDPOINT_URL": "no address",
            "AWS_MAX_ATTEMPTS": "many",
            "AWS_PROFILE": "nobody",
            "AWS_REGION": "no region",
            "AWS_RETRY_MODE": "no mode",
            "HTTPS_PROXY": "no address",
        }
        for name, value in broken.items():
            monkeypatch.setenv(name, value)
        write(
            path,
            interaction(request("hello"), STREAM),
            any_interaction({"inputs": "hello"}, b"".join(sagemaker.payload(sagemaker.tgi("Hi."))), uri=ENDPOINT),
            interaction(
                {**MESSAGES, "anthropic_version": "bedrock-2023-05-31"},
                invoked(*anthropic_events(anthropic.text("Hey."))),
                operation="invoke-with-response-stream",
            ),
        )
        assert [(await turn.result()).text for turn in replay(path)] == ["Grüße", "Hi.", "Hey."]

    @pytest.mark.asyncio
    async def test_turns_may_be_played_side_by_side_and_again(self, path: Path) -> None:
        texts = [f"answer {number}" for number in range(12)]
        write(path, *(interaction(request(text), stream(bedrock.text(text, 5))) for text in texts))
        turns = replay(path) * 2
        outcomes = await asyncio.gather(*(turn.result() for turn in turns))
        assert [outcome.text for outcome in outcomes] == texts * 2

    def test_turns_may_be_made_on_several_threads(self, path: Path) -> None:
        write(path, interaction(request("hello"), STREAM))

        async def made() -> list[str]:
            threads = (asyncio.to_thread(lambda: only(replay(path)).result_sync().text) for _ in range(8))
            return await asyncio.gather(*threads)

        assert asyncio.run(made()) == ["Grüße"] * 8

    def test_the_sdk_is_needed(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write(path, interaction(request("hello"), STREAM))
        monkeypatch.setitem(sys.modules, "botocore.awsrequest", None)
        with pytest.raises(ConfigurationError, match=r'replaying needs boto3: pip install "rxloop\[aws\]"'):
            replay(path)


MESSAGES: dict[str, Any] = {"max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}


def anthropic_events(*blocks: Any, **options: Any) -> list[dict[str, Any]]:
    lines = b"".join(anthropic.message(*blocks, **options)).decode().splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def invoked(*events: Mapping[str, Any]) -> bytes:
    return b"".join(chunk(one) for one in events)


class TestAnthropic:
    """Anthropic's own format, over InvokeModel."""

    @pytest.mark.asyncio
    async def test_a_turn(self, path: Path) -> None:
        tool = {"name": "add", "input_schema": {"type": "object"}}
        # the SDK puts what a header asks for into the body too
        beta: dict[str, Any] = {"anthropic_beta": ["context-1m-2025-08-07"], "anthropic_version": "bedrock-2023-05-31"}
        asked = {**MESSAGES, **beta, "tools": [tool], "temperature": 0.5}
        said = [
            {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_a", "name": "add", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_a", "content": "5"}]},
        ]
        answer = {
            "type": "message",
            "role": "assistant",
            "model": "claude-test",
            "content": [{"type": "text", "text": "It is 5."}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 1, "output_tokens": 2},
        }
        called = invoked(*anthropic_events(anthropic.tool_use("add", {}, id="toolu_a")))
        first = interaction(asked, called, operation="invoke-with-response-stream")
        first["request"]["headers"]["anthropic-beta"] = beta["anthropic_beta"]
        followed = {**asked, "messages": [*MESSAGES["messages"], *said]}
        write(path, first, interaction(followed, answer, operation="invoke"))
        turn = only(replay(path))
        events, failed = await events_of(turn)
        assert failed is None
        assert [one.output for one in of(ToolFinished, events)] == ["5"]
        assert (turn.adapter.provider, turn.adapter.model) == ("anthropic", "us.anthropic.claude-test-v1:0")
        assert (await turn.result()).text == "It is 5."

    @pytest.mark.asyncio
    async def test_failures(self, path: Path) -> None:
        asked = {**MESSAGES, "anthropic_version": "bedrock-2023-05-31"}
        refused, options = failure(429, "ThrottlingException")
        streamed = {"operation": "invoke-with-response-stream"}
        begun = anthropic_events(anthropic.text("Hello."))[:4]
        write(
            path,
            interaction(asked, refused, **streamed, **options),
            interaction(asked, exception("throttlingException", "slower"), **streamed),
            interaction(asked, invoked(*begun), **streamed),
        )
        turn = only(replay(path))
        events, failed = await events_of(turn)
        assert len(of(RetryScheduled, events)) == 2
        assert failed is not None
        assert failed.kind == "stream_interrupted"

    def test_the_sdk_is_needed(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = {**MESSAGES, "anthropic_version": "bedrock-2023-05-31"}
        write(path, interaction(asked, b"", operation="invoke-with-response-stream"))
        monkeypatch.setitem(sys.modules, "botocore", None)
        with pytest.raises(ConfigurationError, match=r'replaying needs boto3: pip install "rxloop\[aws\]"'):
            replay(path)


class TestNova:
    """Nova's own format, over InvokeModel: its events are those of Converse."""

    @pytest.mark.asyncio
    @pytest.mark.parametrize(
        ("model", "schema"), [("amazon.nova-lite-v1%3A0", {}), ("arn%3Ax", {"schemaVersion": "messages-v1"})]
    )
    async def test_a_turn(self, path: Path, sent: list[Any], model: str, schema: dict[str, Any]) -> None:
        asked = request("add", inferenceConfig={"max_new_tokens": 9}, toolConfig={"tools": [ADD]})
        events = bedrock.message(bedrock.tool_use("add", {"a": 1}, id="c"))
        events[0] |= {"amazon-bedrock-guardrailAction": "NONE"}
        events[-1] |= {"amazon-bedrock-invocationMetrics": {"inputTokenCount": 1}}
        followed = {**asked, **request("add", assistant(call("c", a=1)), user(result("c", {"text": "2"})))}
        write(
            path,
            interaction({**schema, **asked}, invoked(*events), operation="invoke-with-response-stream", model=model),
            interaction({**schema, **followed}, whole({"text": "2"}), operation="invoke", model=model),
        )
        outcome = await only(replay(path)).result()
        assert (outcome.text, outcome.steps, outcome.usage.input_tokens) == ("2", 2, 13)
        assert [body for _, body in sent] == [asked, followed]

    @pytest.mark.asyncio
    async def test_a_failure_inside_and_a_reply_that_is_cut_off(self, path: Path) -> None:
        asked = request("hello", schemaVersion="messages-v1")
        streamed = {"operation": "invoke-with-response-stream"}
        reply = invoked(*bedrock.message(bedrock.text("Hello.")))
        write(
            path,
            interaction(asked, exception("throttlingException", "slower"), **streamed),
            interaction(asked, event("chunk", b'{"bytes":"no base64"}'), **streamed),
            interaction(asked, reply[: len(reply) // 2], **streamed),
        )
        events, failed = await events_of(only(replay(path)))
        assert [one.error["kind"] for one in of(RetryScheduled, events)] == ["rate_limited", "stream_interrupted"]
        assert failed is not None
        assert failed.kind == "stream_interrupted"


class TestSageMaker:
    @pytest.mark.asyncio
    async def test_a_chat(self, path: Path, sent: list[Any]) -> None:
        asked = {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "hello"}]},
            ],
            "stream": True,
            "max_tokens": 5,
        }
        reply = b"".join(sagemaker.payload(sagemaker.openai("Hel", "lo."), 30))
        write(path, any_interaction(asked, reply, uri=ENDPOINT))
        turn = only(replay(path))
        outcome = await turn.result()
        assert (outcome.text, outcome.usage.input_tokens, outcome.finish_reason) == ("Hello.", 10, "stop")
        assert (turn.prompt, turn.steps[0].request.system) == ("hello", "Be brief.")
        assert (turn.adapter.provider, turn.adapter.model) == ("sagemaker", "my-endpoint")
        [(address, body)] = sent
        assert address.endswith("/endpoints/my-endpoint/invocations-response-stream")
        assert body == asked

    @pytest.mark.asyncio
    @pytest.mark.parametrize(
        ("asked", "prompt"),
        [
            ({"inputs": "hello", "parameters": {}}, "hello"),
            ({"prompt": "hello", "max_tokens": 5}, "hello"),
            ({"text": "hello"}, '{"text": "hello"}'),
            ({"messages": []}, '{"messages": []}'),
            ("hello", "hello"),
        ],
    )
    async def test_a_whole_reply_whatever_was_sent(self, path: Path, asked: Any, prompt: str) -> None:
        document = json.dumps([{"generated_text": "Hi."}])
        write(path, any_interaction(asked, document, uri=ENDPOINT.removesuffix("-response-stream")))
        turn = only(replay(path))
        assert turn.prompt == prompt
        assert (await turn.result()).text == "Hi."

    @pytest.mark.asyncio
    async def test_failures_are_tried_again(self, path: Path) -> None:
        asked = {"inputs": "hello"}
        refused = {"Message": "slow down"}
        named = {"x-amzn-errortype": ["ThrottlingException"]}
        good = b"".join(sagemaker.payload(sagemaker.tgi("Hi.")))
        write(
            path,
            any_interaction(asked, refused, status=429, headers=named, uri=ENDPOINT),
            any_interaction(asked, exception("InternalStreamFailure", "broken", "Message"), uri=ENDPOINT),
            any_interaction(asked, event("PayloadPart", b"<html>"), uri=ENDPOINT),
            any_interaction(asked, sagemaker.unknown_event() + good, uri=ENDPOINT),
            any_interaction(asked, good, uri=ENDPOINT),
        )
        first, second = replay(path)
        events, failed = await events_of(first)
        assert failed is None
        kinds = [one.error["kind"] for one in of(RetryScheduled, events)]
        assert kinds == ["rate_limited", "server", "malformed_response"]
        assert (await second.result()).text == "Hi."

    @pytest.mark.asyncio
    async def test_nothing_goes_on_from_what_broke_after_content(self, path: Path) -> None:
        asked = {"inputs": "hello"}
        broken = b"".join(sagemaker.payload(sagemaker.tgi("Hel", "lo.")[:1]))
        write(path, *(any_interaction(asked, broken, uri=ENDPOINT) for _ in range(2)))
        first, _ = replay(path)
        _, failed = await events_of(first)
        assert failed is not None
        assert failed.kind == "stream_interrupted"

    def test_a_body_is_needed(self, path: Path) -> None:
        write(path, any_interaction("", "x", uri=ENDPOINT))
        with pytest.raises(ConfigurationError, match=r"interaction 0: it must have a request body"):
            replay(path)


ASKED = user("hello")
MALFORMED: dict[str, Any] = {
    "messages is missing": {"system": []},
    "messages is an object": {"messages": {}},
    "a message is text": {"messages": ["hello"]},
    "a message is null": {"messages": [ASKED, None]},
    "a content is a number": {"messages": [{"role": "user", "content": 5}]},
    "a block is text": {"messages": [{"role": "user", "content": ["hello"]}]},
    "the system is a number": {"messages": [ASKED], "system": 5},
    "a system block is text": {"messages": [ASKED], "system": ["x"]},
    "toolConfig is a list": {"messages": [ASKED], "toolConfig": [5]},
    "tools is an object": {"messages": [ASKED], "toolConfig": {"tools": ADD}},
    "a tool is null": {"messages": [ASKED], "toolConfig": {"tools": [None]}},
    "a tool is text": {"messages": [ASKED], "toolConfig": {"tools": ["add"]}},
    "a toolSpec is text": {"messages": [ASKED], "toolConfig": {"tools": [{"toolSpec": "add"}]}},
    "a toolSpec is null": {"messages": [ASKED], "toolConfig": {"tools": [{"toolSpec": None}]}},
    "a schema is text": {"messages": [ASKED], "toolConfig": {"tools": [{"toolSpec": {"inputSchema": "x"}}]}},
    "its json is a list": {
        "messages": [ASKED],
        "toolConfig": {"tools": [{"toolSpec": {"inputSchema": {"json": [1]}}}]},
    },
    "inferenceConfig is text": {"messages": [ASKED], "inferenceConfig": "x"},
    "a field of the adapter's": {"messages": [ASKED], "client": 5},
    "a field of Python's": {"messages": [ASKED], "self": 5},
}


class TestBadInput:
    @pytest.mark.parametrize("place", [0, 1])
    @pytest.mark.parametrize("case", MALFORMED)
    def test_a_request_that_is_malformed_is_named(self, path: Path, case: str, place: int) -> None:
        asked = [request("hello")] * place + [MALFORMED[case]]
        write(path, *(interaction(one, STREAM) for one in asked))
        with pytest.raises(ConfigurationError, match=rf"interaction {place}: ") as caught:
            replay(path)
        assert str(path) in str(caught.value)

    @pytest.mark.parametrize("operation", ["invoke", "invoke-with-response-stream"])
    @pytest.mark.parametrize(
        "asked",
        [
            {"inputText": "hello"},
            {"prompt": "hello"},
            {"messages": [{"role": "user", "content": "hello"}]},
            {"anthropic": 1},
            [1],
        ],
    )
    def test_a_format_of_a_models_own_is_named(self, path: Path, operation: str, asked: Any) -> None:
        write(path, interaction(json.dumps(asked), b"", operation=operation, model="amazon.titan-text-v1%3A0"))
        with pytest.raises(
            ConfigurationError,
            match=r"interaction 0: the model amazon.titan-text-v1:0 was asked in a format of its own \(InvokeModel\)",
        ):
            replay(path)

    @pytest.mark.parametrize("fields", [{"messages": 5}, {"messages": ["hello"]}])
    def test_a_request_in_anthropics_format_that_is_malformed(self, path: Path, fields: dict[str, Any]) -> None:
        write(path, interaction({"anthropic_version": "x", **fields}, b"", operation="invoke"))
        with pytest.raises(ConfigurationError, match=r"interaction 0: "):
            replay(path)
