"""What the Gemini adapter sends."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from google import genai
from google.genai import types

from rxloop.adapters.gemini import GeminiAdapter, check_pairs
from rxloop.errors import ConfigurationError, OverloadedError
from rxloop.steps import Step, StepResult, ToolCall, ToolResult
from rxloop.tools import Tool, tool
from rxloop.turn import Turn
from rxloop.usage import Usage
from tests.adapters.gemini_turns import FLAVOURS, PUBLIC, STUDIO, VERTEX, check_sent, connected
from tests.providers.gemini import GeminiServer, call, signature_only, text, thought, together
from tests.turns import NO_RETRY, add, run

IMAGE = {"inlineData": {"mimeType": "image/png", "data": "aGk="}}
FILE = {"fileData": {"mimeType": "application/pdf", "fileUri": "https://example.org/a.pdf"}}
HELLO = {"role": "user", "parts": [{"text": "hello"}]}
SCHEMA = {
    "type": "object",
    "properties": {"first_name": {"type": "string"}, "max_items": {"type": "integer"}},
    "required": ["first_name"],
}


@pytest.fixture
def server() -> Iterator[GeminiServer]:
    with GeminiServer() as server:
        yield server


@pytest.fixture(params=FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def sent(
    server: GeminiServer, flavour: str = STUDIO, prompt: Any = "hello", fields: Any = None, **options: Any
) -> dict[str, Any]:
    """The body of the request of a turn with one step."""
    server.reply(text("5"))
    async with connected(server, flavour, **(fields or {})) as adapter:
        recorder = await run(adapter, prompt, **{"tools": [], **options})
    assert recorder.error is None, recorder.error
    body: dict[str, Any] = server.bodies[-1]
    return body


async def answered(server: GeminiServer, *tools: Any, calls: list[Any], flavour: str = STUDIO) -> list[Any]:
    """The responses that a step's calls are answered with on the wire."""
    server.reply(*calls)
    server.reply(text("done"))
    async with connected(server, flavour) as adapter:
        await run(adapter, tools=tools)
    (*_, last) = check_sent(server.bodies[-1])
    assert last["role"] == "user"
    return [part["functionResponse"] for part in last["parts"]]


def _adapter(**fields: Any) -> GeminiAdapter:
    return GeminiAdapter(genai.Client(vertexai=False, api_key="test-key"), model="gemini-test", **fields)


# the body


@pytest.mark.asyncio
async def test_the_smallest_request(server: GeminiServer, flavour: str) -> None:
    body = await sent(server, flavour)
    if flavour == PUBLIC:
        # which the SDK adds
        assert not body.pop("generationConfig", None)
    assert body == {"contents": [HELLO]}


@pytest.mark.asyncio
async def test_the_address(server: GeminiServer, flavour: str) -> None:
    await sent(server, flavour)
    (request,) = server.requests
    assert request.query == "alt=sse"
    if flavour == VERTEX:
        place = "/projects/test-project/locations/us-central1/publishers/google/models/gemini-test"
        assert request.path.endswith(f"{place}:streamGenerateContent")
        assert request.headers["authorization"] == "Bearer test-token"
    else:
        assert request.path.endswith("/models/gemini-test:streamGenerateContent")
        assert request.headers["x-goog-api-key"] == "test-key"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("flavour", "model", "place"),
    [
        (STUDIO, "models/gemini-test", "/models/gemini-test"),
        (STUDIO, "tunedModels/mine", "/tunedModels/mine"),
        (VERTEX, "google/gemini-test", "/publishers/google/models/gemini-test"),
        (VERTEX, "publishers/google/models/gemini-test", "/publishers/google/models/gemini-test"),
        (VERTEX, "meta/llama", "/publishers/meta/models/llama"),
        (VERTEX, "projects/p/locations/l/endpoints/7", "/projects/p/locations/l/endpoints/7"),
    ],
)
async def test_both_ways_ask_at_the_same_address(server: GeminiServer, flavour: str, model: str, place: str) -> None:
    server.reply(text("5"))
    server.reply(text("5"))
    async with connected(server, flavour, model=model) as adapter:
        await run(adapter, tools=[])
        adapter._send = None
        await run(adapter, tools=[])
    paths = [request.path for request in server.requests]
    assert paths[0].endswith(f"{place}:streamGenerateContent")
    assert paths[0] == paths[1]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("system", "parts"),
    [
        ("Be brief.", [{"text": "Be brief."}]),
        ({"text": "Be brief."}, [{"text": "Be brief."}]),
        (["Be brief.", {"text": "Be kind."}], [{"text": "Be brief."}, {"text": "Be kind."}]),
    ],
)
async def test_a_system_prompt(server: GeminiServer, flavour: str, system: Any, parts: Any) -> None:
    assert (await sent(server, flavour, system=system))["systemInstruction"] == {"parts": parts}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("prompt", "parts"),
    [
        ("hello", [{"text": "hello"}]),
        (IMAGE, [IMAGE]),
        ((IMAGE,), [IMAGE]),
        ([IMAGE, FILE, "What is this?"], [IMAGE, FILE, {"text": "What is this?"}]),
    ],
)
async def test_a_prompt_may_have_images_and_files(
    server: GeminiServer, flavour: str, prompt: Any, parts: list[Any]
) -> None:
    assert (await sent(server, flavour, prompt))["contents"] == [{"role": "user", "parts": parts}]


@pytest.mark.parametrize("prompt", ["", "  \n", [], {}, 5, [5]])
def test_a_prompt_that_says_nothing_is_refused(prompt: Any) -> None:
    with pytest.raises(ConfigurationError, match="prompt must be non-empty text or parts"):
        Turn(_adapter(), prompt)
    with pytest.raises(ConfigurationError, match="needs a prompt or a conversation"):
        Turn(_adapter(), None)


# fields


@pytest.mark.asyncio
async def test_fields_go_where_the_api_has_them_in_its_own_spelling(server: GeminiServer, flavour: str) -> None:
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "max_output_tokens": 100,
        "stop_sequences": ["END"],
        "seed": 7,
        "response_mime_type": "application/json",
        "response_modalities": ["TEXT"],
        "presence_penalty": 0.1,
        "media_resolution": "MEDIA_RESOLUTION_LOW",
        "thinking_config": {"thinking_budget": 1024, "include_thoughts": True},
        "speech_config": {"voice_config": {"prebuilt_voice_config": {"voice_name": "Kore"}}},
        "safety_settings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
        "cached_content": "cachedContents/1",
        "labels": {"cost_center": "a_b"},
        "a_future_field": {"some_key": [1]},
    }
    before = copy.deepcopy(fields)
    body = await sent(server, flavour, fields=fields)
    assert body == {
        "contents": [HELLO],
        "generationConfig": {
            "temperature": 0.5,
            "topP": 0.9,
            "topK": 40,
            "maxOutputTokens": 100,
            "stopSequences": ["END"],
            "seed": 7,
            "responseMimeType": "application/json",
            "responseModalities": ["TEXT"],
            "presencePenalty": 0.1,
            "mediaResolution": "MEDIA_RESOLUTION_LOW",
            "thinkingConfig": {"thinkingBudget": 1024, "includeThoughts": True},
            "speechConfig": {"voiceConfig": {"prebuiltVoiceConfig": {"voiceName": "Kore"}}},
        },
        "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
        "cachedContent": "cachedContents/1",
        "labels": {"cost_center": "a_b"},
        "aFutureField": {"someKey": [1]},
    }
    assert fields == before


@pytest.mark.asyncio
async def test_the_apis_own_spelling_is_taken_too(server: GeminiServer, flavour: str) -> None:
    fields = {"maxOutputTokens": 100, "safetySettings": [], "generation_config": {"top_k": 4, "candidateCount": 1}}
    body = await sent(server, flavour, fields=fields)
    assert body["generationConfig"] == {"maxOutputTokens": 100, "topK": 4, "candidateCount": 1}
    assert body["safetySettings"] == []


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["response_schema", "response_json_schema", "responseSchema", "responseJsonSchema"])
async def test_the_keys_of_a_schema_are_the_callers(server: GeminiServer, flavour: str, name: str) -> None:
    direct = await sent(server, flavour, fields={name: SCHEMA})
    nested = await sent(server, flavour, fields={"generation_config": {name: SCHEMA}})
    key = "responseJsonSchema" if "json" in name.lower() else "responseSchema"
    assert direct["generationConfig"] == nested["generationConfig"] == {key: SCHEMA}


@pytest.mark.asyncio
async def test_the_sdks_own_values_are_taken(server: GeminiServer, flavour: str) -> None:
    fields = {
        "thinking_config": types.ThinkingConfig(thinking_budget=0),
        "safety_settings": [
            types.SafetySetting(
                category=types.HarmCategory.HARM_CATEGORY_HARASSMENT, threshold=types.HarmBlockThreshold.OFF
            )
        ],
    }
    body = await sent(server, flavour, fields=fields)
    assert body["generationConfig"] == {"thinkingConfig": {"thinkingBudget": 0}}
    assert body["safetySettings"] == [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "OFF"}]


# tools


@pytest.mark.asyncio
@pytest.mark.parametrize("tools", [[], (), list], ids=["list", "tuple", "callable"])
async def test_without_tools_the_fields_are_absent(server: GeminiServer, flavour: str, tools: Any) -> None:
    fields = {"tool_config": {"function_calling_config": {"mode": "ANY"}}}
    body = await sent(server, flavour, fields=fields, tools=tools)
    assert not {"tools", "toolConfig"} & set(body)


@pytest.mark.asyncio
async def test_a_declaration(server: GeminiServer, flavour: str) -> None:
    fields = {"tool_config": {"function_calling_config": {"mode": "ANY"}}}
    body = await sent(server, flavour, fields=fields, tools=[add])
    assert body["tools"] == [
        {
            "functionDeclarations": [
                {
                    "name": "add",
                    "description": "Add two numbers.",
                    "parameters": {
                        "type": "object",
                        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                        "required": ["a", "b"],
                    },
                }
            ]
        }
    ]
    assert body["toolConfig"] == {"functionCallingConfig": {"mode": "ANY"}}


@pytest.mark.asyncio
async def test_tools_of_the_provider_and_of_the_caller_together(server: GeminiServer, flavour: str) -> None:
    @tool
    async def now() -> str:
        """Tell the time."""
        return "12"

    search: dict[str, Any] = {"google_search": {}}
    body = await sent(server, flavour, tools=[add, search, now, {"codeExecution": {}}])
    own = [item for item in body["tools"] if "functionDeclarations" in item]
    assert len(own) == 1, "all functions in one"
    assert [item["name"] for item in own[0]["functionDeclarations"]] == ["add", "now"]
    assert "parameters" not in own[0]["functionDeclarations"][1], "an object without properties is refused"
    others = [item for item in body["tools"] if "functionDeclarations" not in item]
    assert others in ([{"google_search": {}}, {"codeExecution": {}}], [{"googleSearch": {}}, {"codeExecution": {}}])
    assert search == {"google_search": {}}


@pytest.mark.asyncio
async def test_names_are_made_valid_and_come_back(server: GeminiServer, flavour: str) -> None:
    long = "n" * 99
    names = ["my/tool", "my_tool", "7up", f"{long}1", f"{long}2", "größe"]

    def named(name: str) -> Tool:
        @tool(name=name)
        async def echo() -> str:
            return name

        return echo

    tools = [named(name) for name in names]
    await sent(server, flavour, tools=tools)
    aliases = [item["name"] for item in server.bodies[0]["tools"][0]["functionDeclarations"]]
    assert aliases[1] == "my_tool"
    assert len(set(aliases)) == len(names)
    assert all(alias.isascii() and len(alias) <= 64 and not alias[0].isdigit() for alias in aliases)
    server.reply(*(call(alias, {}) for alias in aliases))
    server.reply(text("done"))
    async with connected(server, flavour) as adapter:
        recorder = await run(adapter, tools=tools)
    assert [item.name for item in recorder.finished.tool_calls] == names
    assert recorder.result is not None
    assert [item.output for item in recorder.result.tool_results] == names
    history = check_sent(server.bodies[2])
    assert [part["functionCall"]["name"] for part in history[1]["parts"]] == aliases
    assert [part["functionResponse"]["name"] for part in history[2]["parts"]] == aliases


@pytest.mark.asyncio
async def test_allowed_functions_have_the_providers_names_too(server: GeminiServer, flavour: str) -> None:
    @tool(name="my/tool")
    async def mine() -> None:
        """Be mine."""

    config = {"function_calling_config": {"mode": "ANY", "allowed_function_names": ["my/tool", "add"]}}
    before = copy.deepcopy(config)
    body = await sent(server, flavour, fields={"tool_config": config}, tools=[mine, add])
    names = [item["name"] for item in body["tools"][0]["functionDeclarations"]]
    assert body["toolConfig"]["functionCallingConfig"] == {"mode": "ANY", "allowedFunctionNames": names}
    assert names[0] != "my/tool"
    assert config == before


# results


def _returning(value: Any) -> Tool:
    @tool(name="give")
    async def give() -> Any:
        return value

    return give


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "output", [None, "", "text", 0, False, 2.5, {}, {"ü": [1, None]}, [], [1, "a"], {"output": 1}, {"error": "x"}]
)
async def test_what_a_tool_returns_is_wrapped(server: GeminiServer, output: Any) -> None:
    (response,) = await answered(server, _returning(output), calls=[call("give", {}, id="1")])
    assert response == {"id": "1", "name": "give", "response": {"output": output}}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("output", "rest", "media"),
    [
        (IMAGE, [], [IMAGE]),
        ([IMAGE], [], [IMAGE]),
        (["a cat", IMAGE, FILE], ["a cat"], [IMAGE, FILE]),
        ([{"inlineData": {}, "more": 1}], [{"inlineData": {}, "more": 1}], None),
    ],
)
async def test_images_in_a_result(
    server: GeminiServer, flavour: str, output: Any, rest: Any, media: list[Any] | None
) -> None:
    (response,) = await answered(server, _returning(output), calls=[call("give", {})], flavour=flavour)
    assert response["response"] == {"output": rest}
    assert response.get("parts") == media


@pytest.mark.asyncio
async def test_all_results_of_a_step_are_in_one_content_in_call_order(server: GeminiServer, flavour: str) -> None:
    @tool
    async def fail() -> None:
        raise ValueError("no")

    calls = [
        together(call("add", {"a": 1, "b": 2}), call("fail", {})),
        call("nobody", {}),
        call("add", {"a": "x"}),
        call("add", {"a": 3, "b": 4}),
    ]
    responses = await answered(server, add, fail, calls=calls, flavour=flavour)
    assert [item["name"] for item in responses] == ["add", "fail", "nobody", "add", "add"]
    assert responses[0]["response"] == {"output": 3}
    assert responses[1]["response"] == {"error": "the tool failed: ValueError: no"}
    assert [set(item["response"]) for item in responses] == [
        {"output"},
        {"error"},
        {"error"},
        {"error"},
        {"output"},
    ]
    assert len(server.bodies[-1]["contents"]) == 3


@pytest.mark.asyncio
async def test_ids_are_kept_on_the_developer_api_and_unknown_on_vertex(server: GeminiServer, flavour: str) -> None:
    server.reply(call("add", {"a": 1, "b": 2}, id="fc_1"), call("add", {"a": 1, "b": 3}, id="fc_2"))
    server.reply(text("done"))
    async with connected(server, flavour) as adapter:
        recorder = await run(adapter)
    assert recorder.result is not None
    assert [item.call_id for item in recorder.result.tool_results] == ["fc_1", "fc_2"]
    _, asked, told = check_sent(server.bodies[-1])
    ids = [part["functionCall"].get("id") for part in asked["parts"]]
    assert ids == [part["functionResponse"].get("id") for part in told["parts"]]
    assert ids == ([None, None] if flavour == VERTEX else ["fc_1", "fc_2"])
    assert "fc_1" in str(recorder.result.conversation), "only what is sent lacks them"


@pytest.mark.asyncio
async def test_a_call_without_an_id_is_answered_without_one(server: GeminiServer, flavour: str) -> None:
    (response,) = await answered(server, add, calls=[call("add", {"a": 1, "b": 2})], flavour=flavour)
    assert "id" not in response


@pytest.mark.asyncio
async def test_what_came_is_sent_back_as_it_came(server: GeminiServer, flavour: str) -> None:
    server.reply(
        thought("hm"),
        text("I add.", pieces=2),
        together(call("add", {"a": 1, "b": 2}, signature="EqQB+/8="), call("add", {"a": 1, "b": 3})),
        signature_only("+/8="),
    )
    server.reply(text("done"))
    async with connected(server, flavour) as adapter:
        await run(adapter)
    assert check_sent(server.bodies[-1])[1] == {
        "role": "model",
        "parts": [
            {"text": "hm", "thought": True},
            {"text": "I add."},
            {"functionCall": {"name": "add", "args": {"a": 1, "b": 2}}, "thoughtSignature": "EqQB+/8="},
            {"functionCall": {"name": "add", "args": {"a": 1, "b": 3}}},
            {"text": "", "thoughtSignature": "+/8="},
        ],
    }


# history


@pytest.mark.asyncio
async def test_a_conversation_may_go_on_as_it_is(server: GeminiServer, flavour: str) -> None:
    conversation = [HELLO, {"role": "model", "parts": [{"text": "hi"}]}, HELLO]
    assert (await sent(server, flavour, None, conversation=conversation))["contents"] == conversation


@pytest.mark.asyncio
async def test_nothing_that_was_given_is_changed(server: GeminiServer, flavour: str) -> None:
    conversation: list[Any] = [
        HELLO,
        {"role": "model", "parts": [{"functionCall": {"id": "0", "name": "add", "args": {"a": 2, "b": 3}}}]},
        {"role": "user", "parts": [{"functionResponse": {"id": "0", "name": "add", "response": {"output": 5}}}]},
    ]
    prompt = [IMAGE, "and this?"]
    system = [{"text": "Be brief."}]
    fields: dict[str, Any] = {
        "generation_config": {"top_k": 1},
        "odd_field": {"x_y": [{"z": 2}]},
        "tool_config": {"function_calling_config": {"mode": "AUTO"}},
    }
    search = {"google_search": {"exclude_domains": ["a"]}}
    values = (conversation, prompt, system, fields, search)
    before = copy.deepcopy(values)
    server.reply(thought("hm"), call("add", {"a": 1, "b": 2}, id="1"))
    server.reply(text("done"))
    async with connected(server, flavour, **fields) as adapter:
        own = copy.deepcopy(adapter._fields)
        recorder = await run(adapter, prompt, conversation=conversation, system=system, tools=[search, add])
        assert recorder.error is None
        assert adapter._fields == own
    assert values == before


@pytest.mark.asyncio
async def test_history_is_only_added_to(server: GeminiServer, flavour: str) -> None:
    """What was sent once is sent again as it was: implicit caching depends on it."""
    for number in range(3):
        server.reply(thought("hm"), text("x"), call("add", {"a": 1, "b": number}, id=f"{number}", signature="c2ln"))
    server.reply(text("done"))
    async with connected(server, flavour) as adapter:
        await run(adapter)
    for earlier, later in itertools.pairwise(server.bodies):
        assert later["contents"][: len(earlier["contents"])] == earlier["contents"]
        assert later["tools"] == earlier["tools"]


def test_the_pure_request() -> None:
    adapter = _adapter(stop_sequences=["END"])
    step = Step(0, [HELLO], "Be brief.", [add.declaration])
    request = adapter.request(step)
    assert request["contents"] == [HELLO]
    assert request["contents"] is not step.conversation
    assert request["generationConfig"] == {"stopSequences": ["END"]}
    assert request == adapter.request(step)


def test_a_reply_without_content_adds_nothing() -> None:
    reply = StepResult("", (ToolCall("1", "f", {}),), Usage(), "content-filter", message=None)
    assert _adapter().append([HELLO], reply, [ToolResult("1", "f", error="not run")]) == [HELLO]


# pairs


def _calls(*names: str) -> dict[str, Any]:
    return {"role": "model", "parts": [{"functionCall": {"name": name, "args": {}}} for name in names]}


def _responses(*names: str) -> dict[str, Any]:
    return {"role": "user", "parts": [{"functionResponse": {"name": name, "response": {}}} for name in names]}


@pytest.mark.parametrize(
    "conversation",
    [
        [],
        [HELLO],
        [HELLO, _calls("f", "g", "f"), _responses("f", "f", "g")],
        [HELLO, _calls("f"), _responses("f"), _calls("f"), _responses("f"), HELLO],
        [HELLO, {"role": "model", "parts": []}],
        [HELLO, {"role": "model", "parts": [{"toolCall": {"id": "x"}}, {"text": "a"}]}],
    ],
)
def test_a_conversation_in_order(conversation: list[Any]) -> None:
    check_pairs(conversation)


@pytest.mark.parametrize(
    "conversation",
    [
        [HELLO, _calls("f")],
        [HELLO, _calls("f"), HELLO],
        [HELLO, _calls("f", "f"), _responses("f")],
        [HELLO, _calls("f"), _responses("f", "f")],
        [HELLO, _calls("f"), _responses("g")],
        [HELLO, _responses("f")],
        [HELLO, _calls("f", "g"), _responses("f"), _responses("g")],
        ["hello"],
    ],
)
def test_a_conversation_that_would_be_refused(conversation: list[Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"every function call must have|must be a list of contents"):
        check_pairs(conversation)
    with pytest.raises(ConfigurationError):
        Turn(_adapter(), "go on", conversation=conversation)


# one retry owner, one owner of the loop


@pytest.mark.asyncio
@pytest.mark.parametrize("attempts", [None, 5])
async def test_the_sdks_own_retries_are_off(server: GeminiServer, flavour: str, attempts: int | None) -> None:
    server.fail(503, "UNAVAILABLE")
    options = {} if attempts is None else {"retry_options": types.HttpRetryOptions(attempts=attempts, initial_delay=0)}
    client = server.vertex_client(**options) if flavour == VERTEX else server.client(**options)
    async with connected(server, flavour, client) as adapter:
        recorder = await run(adapter, retry=NO_RETRY)
        assert type(recorder.error) is OverloadedError
        await server.idle()
    assert len(server.requests) == 1


@pytest.mark.asyncio
async def test_the_sdk_calls_no_function_and_asks_but_once_per_step(server: GeminiServer, flavour: str) -> None:
    server.reply(call("add", {"a": 1, "b": 2}, id="1"), call("add", {"a": 3, "b": 4}, id="2"))
    server.reply(text("done"))
    async with connected(server, flavour) as adapter:
        recorder = await run(adapter)
    assert recorder.types.count("tool_finished") == 2, "not only the last call"
    assert len(server.requests) == 2


@pytest.mark.asyncio
async def test_the_sdk_does_not_go_on_by_itself(server: GeminiServer, flavour: str) -> None:
    server.reply(text("so far"), finish_reason="CONTINUATION", candidate={"continuationToken": "dG9rZW4="})
    async with connected(server, flavour) as adapter:
        recorder = await run(adapter, tools=[])
        await server.idle()
    assert (recorder.finished.finish_reason, recorder.finished.text) == ("length", "so far")
    assert len(server.requests) == 1


# the client


@pytest.mark.asyncio
async def test_the_default_client_is_the_adapters_to_close(
    server: GeminiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GEMINI_API_KEY", "test-key")
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)
    server.reply(text("5"))
    async with GeminiAdapter(model="gemini-test") as adapter:
        assert (await run(adapter, tools=[])).finished.text == "5"
        await server.idle()
        assert server.open_connections == 1
    await server.closed()


@pytest.mark.asyncio
async def test_a_client_that_was_given_stays_open(server: GeminiServer) -> None:
    server.reply(text("5"))
    server.reply(text("5"))
    async with connected(server) as outer:
        async with GeminiAdapter(outer.client, model="gemini-test") as adapter:
            await run(adapter, tools=[])
        assert (await run(outer, tools=[])).finished.text == "5"


@pytest.mark.asyncio
async def test_steps_share_one_connection(server: GeminiServer, flavour: str) -> None:
    server.reply(call("add", {"a": 1, "b": 2}))
    server.reply(text("done"))
    async with connected(server, flavour) as adapter:
        await run(adapter)
        await server.idle()
        assert server.open_connections == 1


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"model": ""}, "model must be a model's name, but got ''"),
        ({"model": None}, "model must be a model's name, but got None"),
        ({"model": "../files"}, "model must be a model's name"),
        ({"model": "gemini?x=1"}, "model must be a model's name"),
        ({"contents": []}, "'contents' is the turn's to send"),
        ({"system_instruction": "x"}, "'system_instruction' is the turn's to send"),
        ({"systemInstruction": "x"}, "'systemInstruction' is the turn's to send"),
        ({"tools": []}, "'tools' is the turn's to send"),
        ({"api_key": "secret"}, "'api_key' belongs to the client"),
        ({"vertexai": True}, "'vertexai' belongs to the client"),
        ({"http_options": {}}, "'http_options' belongs to the client"),
        ({"client": object()}, "client must be a google.genai.Client, but got object"),
        ({"client": "gemini"}, "client must be a google.genai.Client, but got str"),
    ],
)
def test_values_that_can_never_work(options: dict[str, Any], rule: str) -> None:
    client = genai.Client(vertexai=False, api_key="test-key")
    with pytest.raises(ConfigurationError, match=rule) as caught:
        GeminiAdapter(**{"client": client, "model": "gemini-test", **options})
    assert "secret" not in str(caught.value)


def test_the_sdks_bytes_are_taken_only_where_they_can_be_relied_on() -> None:
    from rxloop.adapters.gemini_sdk import bytes_seam

    class Api:
        def _use_aiohttp(self) -> bool:
            return False

        def _build_request(self, http_method: str, path: str, request_dict: Any) -> None: ...

        async def _async_request_once(
            self, http_request: Any, stream: bool = False, *, implicit_retry: bool
        ) -> None: ...

    class OverAiohttp(Api):
        def _use_aiohttp(self) -> bool:
            return True

    class OtherOrder(Api):
        def _build_request(self, path: str, http_method: str, request_dict: Any) -> None: ...  # type: ignore[override]

    class OlderSend(Api):
        async def _async_request_once(self, http_request: Any, stream: bool = False) -> None: ...  # type: ignore[override]

    class Holder:
        def __init__(self, api: Any) -> None:
            self._api_client = api

    assert bytes_seam(Holder(Api())) is not None
    for api in (None, object(), OverAiohttp(), OtherOrder(), OlderSend()):
        assert bytes_seam(Holder(api)) is None
    assert bytes_seam(object()) is None


@pytest.mark.asyncio
async def test_a_turn_that_is_not_subscribed_sends_nothing(server: GeminiServer) -> None:
    async with connected(server) as adapter:
        Turn(adapter, "hello", tools=[add])
    assert not server.requests


@pytest.mark.asyncio
async def test_the_clients_own_headers_and_body_are_sent(server: GeminiServer) -> None:
    for flavour in (STUDIO, PUBLIC):
        server.reply(text("5"))
        client = server.client(headers={"x-own": "1"}, extra_body={"ownField": 1}, api_version="v1alpha")
        async with connected(server, flavour, client) as adapter:
            await run(adapter, tools=[])
        assert server.requests[-1].path.startswith("/v1alpha/")
        assert server.requests[-1].headers["x-own"] == "1"
        assert server.bodies[-1]["contents"] == [HELLO]
