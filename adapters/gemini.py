"""Gemini over google-genai, on AI Studio (the Gemini Developer API) and on Vertex."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, cast

from reactivex import Observable

from rxloop.adapters.base import Adapter
from rxloop.adapters.declarations import declare, names_for
from rxloop.adapters.gemini_decoder import GeminiBytesDecoder, GeminiDecoder
from rxloop.adapters.gemini_errors import classify
from rxloop.adapters.gemini_sdk import as_mappings, bytes_seam
from rxloop.adapters.messages import check_fields, prompt_blocks, replaced_blocks
from rxloop.adapters.names import NameMap
from rxloop.adapters.output_schemas import gemini_output_schema
from rxloop.adapters.pump import Wire, pump
from rxloop.breaker import Breaker
from rxloop.errors import ConfigurationError
from rxloop.output import FINAL_RESULT
from rxloop.reclaim import HistoryResult
from rxloop.steps import Conversation, OutputRequest, Step, StepResult, ToolResult
from rxloop.tools import ToolDeclaration

__all__ = ("GeminiAdapter", "camel_keys", "check_pairs")

_GENERATION = frozenset(
    [
        "audioTimestamp",
        "candidateCount",
        "enableEnhancedCivicAnswers",
        "frequencyPenalty",
        "imageConfig",
        "logprobs",
        "maxOutputTokens",
        "mediaResolution",
        "modelSelectionConfig",
        "presencePenalty",
        "responseFormat",
        "responseJsonSchema",
        "responseLogprobs",
        "responseMimeType",
        "responseModalities",
        "responseSchema",
        "routingConfig",
        "seed",
        "speechConfig",
        "stopSequences",
        "temperature",
        "thinkingConfig",
        "topK",
        "topP",
    ]
)
"""The fields that belong into ``generationConfig``.

Source: https://ai.google.dev/api/generate-content#v1beta.GenerationConfig
"""

_VERBATIM = frozenset(
    ("args", "labels", "parameters", "parametersJsonSchema", "response", "responseJsonSchema", "responseSchema")
)
"""Fields whose keys are the caller's own."""

_CORRECTION = (
    "Your last function call was malformed and was not run. Call the function again with arguments that are one valid "
    "JSON object and fit its declaration, or answer without it."
)


class GeminiAdapter(Adapter):
    """
    Gemini on AI Studio or on Vertex: the client tells which.

    Args:
        client: a ``google.genai.Client``, which stays the caller's to close; by default one that reads
            ``GEMINI_API_KEY``, which the adapter closes. The SDK's own retries and its automatic function calling are
            off for the adapter's calls.
        model: the model's name.
        fields: further fields of the request by the SDK's or the API's names: ``temperature``, ``max_output_tokens``,
            ``thinking_config``, ``safety_settings``, ``tool_config``, ``cached_content`` … What is not a generation
            setting goes into the body as it is.

    The failure breaker is on (2 strikes). On Vertex a malformed call is answered by one corrective step per turn.

    Raises:
        ConfigurationError: the SDK is not installed, the client is not one, or a value breaks its rule.
    """

    provider: ClassVar[str] = "google"
    default_breaker = Breaker(max_retries=2)
    max_steps_limit = 100

    def __init__(self, client: Any = None, *, model: str, **fields: Any) -> None:
        if not isinstance(model, str) or not model or any(mark in model for mark in ("..", "?", "&")):
            raise ConfigurationError(f"model must be a model's name, but got {model!r}")
        check_fields(
            fields,
            turns=("contents", "system_instruction", "systemInstruction", "tools"),
            clients=("api_key", "credentials", "http_options", "location", "project", "vertexai"),
            example="GeminiAdapter(Client({}), model=…)",
        )
        self.model = model
        self._owns_client = client is None
        self.client = _default_client() if client is None else client
        if not hasattr(getattr(self.client, "aio", None), "models"):
            raise ConfigurationError(f"client must be a google.genai.Client, but got {type(self.client).__name__}")
        self.vertex = bool(getattr(self.client, "vertexai", False))
        self.malformed_retries = 1 if self.vertex else 0
        self._fields = _body_fields(fields)
        self._send = bytes_seam(self.client)

    async def aclose(self) -> None:
        """Close the client, if the adapter made it."""
        if self._owns_client:
            await self.client.aio.aclose()

    def native_output(self, schema: Mapping[str, Any]) -> bool:
        """Every model takes a JSON schema; what it cannot express is validated anyway."""
        return True

    def begin(self, conversation: Conversation, prompt: Any) -> list[Mapping[str, Any]]:
        """
        The conversation with a user's content at its end.

        Args:
            conversation: contents of the API in its JSON form, oldest first.
            prompt: text, or parts (``{"text": …}``, ``{"inlineData": …}``, ``{"fileData": …}``); ``None`` adds nothing.

        Raises:
            ConfigurationError: the prompt is empty, or a function call has not exactly one response.
        """
        contents = list(conversation)
        check_pairs(contents)
        if prompt is None:
            if not contents:
                raise ConfigurationError("a turn needs a prompt or a conversation, but got neither")
            return contents
        return [*contents, {"role": "user", "parts": _prompt_parts(prompt)}]

    def reply_message(self, text: str) -> Mapping[str, Any]:
        """A reply of plain text in the API's format."""
        return {"role": "model", "parts": [{"text": text}]}

    def append(
        self, conversation: Conversation, result: StepResult, tool_results: Sequence[ToolResult]
    ) -> list[Mapping[str, Any]]:
        """The conversation with the reply as it came and, in one content, the responses of all its calls."""
        contents = list(conversation)
        if result.message is None:
            return contents
        calls = [part["functionCall"] for part in result.message["parts"] if "functionCall" in part]
        contents.append(result.message)
        if tool_results:
            parts = [_response(call, answer) for call, answer in zip(calls, tool_results, strict=True)]
            contents.append({"role": "user", "parts": parts})
        return contents

    def history_results(self, conversation: Conversation) -> list[HistoryResult]:
        """The functions' responses in a conversation, oldest first."""
        return [
            HistoryResult((index, place), str(answer.get("name")), [answer.get("response"), answer.get("parts") or ()])
            for index, content in enumerate(conversation)
            for place, part in enumerate(content.get("parts") or ())
            if isinstance(answer := part.get("functionResponse"), Mapping)
        ]

    def with_notes(self, conversation: Conversation, notes: Mapping[tuple[int, int], str]) -> list[Mapping[str, Any]]:
        """The conversation with a note in place of each of these responses."""
        return replaced_blocks(conversation, "parts", notes, _with_note)

    def correct(self, conversation: Conversation, result: StepResult) -> list[Mapping[str, Any]]:
        """The conversation with what the reply said beside its call, and a word on what was wrong."""
        contents = list(conversation)
        parts = [part for part in (result.message or {}).get("parts", ()) if "functionCall" not in part]
        if any(part.get("text") and not part.get("thought") for part in parts):
            contents.append({"role": "model", "parts": parts})
        contents.append({"role": "user", "parts": [{"text": _CORRECTION}]})
        return contents

    def request(self, step: Step) -> dict[str, Any]:
        """The request's body for a step, in the API's own JSON."""
        return self._request(step, _names(step))

    def _request(self, step: Step, names: NameMap) -> dict[str, Any]:
        contents = [_without_ids(content) for content in step.conversation] if self.vertex else list(step.conversation)
        request: dict[str, Any] = {"contents": contents, **self._fields}
        if step.system is not None:
            request["systemInstruction"] = {"parts": _prompt_parts(step.system)}
        declared = [
            declare(item, names, "functionDeclarations") for item in step.tools if isinstance(item, ToolDeclaration)
        ]
        tools: list[Any] = [dict(item) for item in step.tools if not isinstance(item, ToolDeclaration)]
        if declared:
            tools.append({"functionDeclarations": declared})
        if step.output is not None:
            request.update(_output_fields(step.output, request))
        if tools:
            request["tools"] = tools
            if "toolConfig" in request:
                request["toolConfig"] = _with_aliases(request["toolConfig"], names)
        else:
            request.pop("toolConfig", None)
        return request

    def step(self, step: Step) -> Observable[Any]:
        """One streamed request: events as they arrive, the `StepResult` last."""
        return pump(lambda: self._connect(step), classify=classify)

    @asynccontextmanager
    async def _connect(self, step: Step) -> AsyncIterator[Wire[Any]]:
        names = _names(step)
        step.draft = decoder = GeminiDecoder(step.index, names.name)
        body = self._request(step, names)
        if self._send is None:
            async with self._public_events(body) as chunks:
                yield Wire(chunks, decoder)
            return
        response = await self._send(f"{self._path()}:streamGenerateContent?alt=sse", body)
        try:
            yield Wire(response.aiter_bytes(), GeminiBytesDecoder(decoder))
        finally:
            await response.aclose()

    def _path(self) -> str:
        """
        The model's place in an address.

        Source: https://ai.google.dev/api/models and the publisher models of Vertex.
        """
        model = self.model
        if not self.vertex:
            return model if model.startswith(("models/", "tunedModels/")) else f"models/{model}"
        if model.startswith(("projects/", "models/", "publishers/")):
            return model
        publisher, _, name = model.rpartition("/")
        return f"publishers/{publisher or 'google'}/models/{name}"

    @asynccontextmanager
    async def _public_events(self, body: Mapping[str, Any]) -> AsyncIterator[AsyncIterator[Mapping[str, Any]]]:
        """The SDK's own events, as the API's JSON again: where its bytes cannot be had."""
        from google.genai import types

        config: dict[str, Any] = {
            "automatic_function_calling": {"disable": True},
            "http_options": {"extra_body": dict(body), "retry_options": {"attempts": 1}},
        }
        if "automatic_continuation" in types.GenerateContentConfig.model_fields:
            # it would send further requests by itself
            config["automatic_continuation"] = False
        stream = await self.client.aio.models.generate_content_stream(
            model=self.model, contents=" ", config=cast(Any, config)
        )
        chunks = as_mappings(stream)
        async with contextlib.aclosing(cast(Any, stream)), contextlib.aclosing(chunks):
            yield chunks


def check_pairs(contents: Conversation) -> None:
    """
    Check that every function call has exactly one response, in the content that follows it.

    Raises:
        ConfigurationError: naming the functions.

    Source: https://ai.google.dev/gemini-api/docs/function-calling
    """
    asked: list[str] = []
    for content in (*contents, {}):
        if not isinstance(content, Mapping):
            raise ConfigurationError(f"conversation must be a list of contents, but got {content!r:.200}")
        parts = [part for part in content.get("parts") or () if isinstance(part, Mapping)]
        answered = sorted(str(part["functionResponse"].get("name")) for part in parts if "functionResponse" in part)
        if answered != sorted(asked):
            raise ConfigurationError(
                f"every function call must have exactly one response in the next content, but {sorted(asked)} is "
                f"answered by {answered}"
            )
        asked = [str(part["functionCall"].get("name")) for part in parts if "functionCall" in part]


def _default_client() -> Any:
    try:
        from google import genai
    except ImportError as error:
        raise ConfigurationError(
            'the Gemini adapter needs the google-genai SDK: pip install "rxloop[google]"'
        ) from error
    try:
        return genai.Client()
    except ValueError as error:
        raise ConfigurationError(f"there are no credentials: set GEMINI_API_KEY ({error})") from error


def _output_fields(output: OutputRequest, request: Mapping[str, Any]) -> dict[str, Any]:
    """
    The fields that ask for a structured answer.

    Source: https://ai.google.dev/gemini-api/docs/structured-output and
    https://ai.google.dev/gemini-api/docs/function-calling#function_calling_modes
    """
    if output.how == "native":
        asked = {"responseMimeType": "application/json", "responseJsonSchema": gemini_output_schema(output.schema)}
        config = request.get("generationConfig") or {}
        # of the two fields for a schema only one may be there
        own = {key: value for key, value in config.items() if key != "responseSchema"}
        return {"generationConfig": {**own, **asked}}
    if output.how == "offered":
        return {}
    config = request.get("toolConfig") or {}
    calling: dict[str, Any] = {**(config.get("functionCallingConfig") or {}), "mode": "ANY"}
    calling.pop("allowedFunctionNames", None)
    if output.how == "forced":
        calling["allowedFunctionNames"] = [FINAL_RESULT]
    return {"toolConfig": {**config, "functionCallingConfig": calling}}


def _names(step: Step) -> NameMap:
    return names_for("functionDeclarations", (item.name for item in step.tools if isinstance(item, ToolDeclaration)))


def _prompt_parts(prompt: Any) -> list[Any]:
    return prompt_blocks(
        prompt,
        text=lambda text: {"text": text},
        is_content=lambda part: isinstance(part, Mapping) and bool(part),
        what="parts",
    )


def _with_aliases(tool_config: Mapping[str, Any], names: NameMap) -> Mapping[str, Any]:
    calling = tool_config.get("functionCallingConfig") or {}
    if not calling.get("allowedFunctionNames"):
        return tool_config
    allowed = [names.alias(name) for name in calling["allowedFunctionNames"]]
    return {**tool_config, "functionCallingConfig": {**calling, "allowedFunctionNames": allowed}}


def _response(call: Mapping[str, Any], result: ToolResult) -> dict[str, Any]:
    response: dict[str, Any] = {"id": call["id"]} if "id" in call else {}
    response["name"] = call.get("name")
    if result.error is not None:
        response["response"] = {"error": result.error}
        return {"functionResponse": response}
    output, media = result.output, []
    if isinstance(output, Mapping) and _is_media(output):
        output = [output]
    if isinstance(output, list) and any(map(_is_media, output)):
        media = [item for item in output if _is_media(item)]
        output = [item for item in output if not _is_media(item)]
    # the API takes an object and nothing else
    response["response"] = {"output": output}
    if media:
        response["parts"] = media
    return {"functionResponse": response}


def _with_note(part: Mapping[str, Any], note: str) -> dict[str, Any]:
    answer = {key: value for key, value in part["functionResponse"].items() if key != "parts"}
    return {**part, "functionResponse": {**answer, "response": {"output": note}}}


def _is_media(item: Any) -> bool:
    return isinstance(item, Mapping) and len(item) == 1 and next(iter(item)) in ("inlineData", "fileData")


def _without_ids(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Vertex does not know the ids that the Developer API gives to calls."""
    parts = content.get("parts") or ()
    if not any("id" in (part.get("functionCall") or part.get("functionResponse") or ()) for part in parts):
        return content
    return {**content, "parts": [_without_id(part) for part in parts]}


def _without_id(part: Mapping[str, Any]) -> Mapping[str, Any]:
    for kind in ("functionCall", "functionResponse"):
        if kind in part:
            return {**part, kind: {key: value for key, value in part[kind].items() if key != "id"}}
    return part


def _body_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The caller's fields where the API has them."""
    body: dict[str, Any] = {}
    generation: dict[str, Any] = {}
    for name, value in fields.items():
        key = _camel(name)
        if key == "generationConfig":
            generation.update(camel_keys(value))
        else:
            place = generation if key in _GENERATION else body
            place[key] = value if key in _VERBATIM else camel_keys(value)
    if generation:
        body["generationConfig"] = generation
    return body


def camel_keys(value: Any) -> Any:
    """The same in the API's own spelling, as in ``maxOutputTokens``; schemas and labels stay as they are."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    if isinstance(value, Mapping):
        return {_camel(key): item if _camel(key) in _VERBATIM else camel_keys(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [camel_keys(item) for item in value]
    return value


def _camel(name: str) -> str:
    return re.sub(r"_([a-z0-9])", lambda found: found[1].upper(), name)
