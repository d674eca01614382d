"""Any model on Amazon Bedrock, over the Converse API."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import inspect
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Literal

from pydantic_core import from_json, to_json
from reactivex import Observable

from rxloop.adapters.anthropic_models import LONG_WINDOW, always_thinks, binds_thinking, long_window, thinks_by_default
from rxloop.adapters.aws_errors import classify
from rxloop.adapters.aws_sdk import CLIENTS_OWN, call_for_stream, check_content_type, default_client, prepare
from rxloop.adapters.base import Adapter
from rxloop.adapters.bedrock_cache import takes_cache_points, with_cache_points
from rxloop.adapters.bedrock_decoder import PROVIDER, BedrockBytesDecoder, BedrockDecoder, is_providers_call
from rxloop.adapters.cache_points import Lifetime, check_lifetime
from rxloop.adapters.declarations import declare, names_for
from rxloop.adapters.messages import (
    check_answers,
    check_fields,
    check_model,
    messages_of,
    prompt_blocks,
    replaced_blocks,
    with_user_content,
    without_blocks,
)
from rxloop.adapters.names import NameMap
from rxloop.adapters.output_schemas import check_closable, closed_schema, is_closable
from rxloop.adapters.pump import Wire, pump
from rxloop.errors import ConfigurationError, StreamInterruptedError, TimedOutError, describe
from rxloop.output import FINAL_RESULT
from rxloop.reclaim import HistoryResult
from rxloop.steps import Conversation, OutputRequest, Step, StepResult, ToolResult
from rxloop.tools import ToolDeclaration

__all__ = ("BedrockAdapter", "check_pairs")

_SERVICE = "bedrock-runtime"
_INFERENCE = {
    "max_tokens": "maxTokens",
    "maxTokens": "maxTokens",
    "stop_sequences": "stopSequences",
    "stopSequences": "stopSequences",
    "temperature": "temperature",
    "top_p": "topP",
    "topP": "topP",
}
"""The fields that belong into ``inferenceConfig``.

Source: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_InferenceConfiguration.html
"""

_RESULT_BLOCKS = {
    "document": ("name", "source"),
    "image": ("format", "source"),
    "searchResult": ("source", "title", "content"),
    "video": ("format", "source"),
}
"""What a tool result may hold beside text and JSON, and the fields that tell it from a caller's own data.

Source: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ToolResultContentBlock.html
"""

_WITH_OUTPUTS = re.compile(r"anthropic\.claude-(?:[a-z]+-(?:4-[5-9]|[5-9])\b)")
_THINKING = ("thinking", "reasoning_config")
"""The names of the field by which Claude is told to think.

Source: https://docs.aws.amazon.com/bedrock/latest/userguide/inference-reasoning.html
"""

_BLOBS = ("bytes", "redactedContent")
"""The fields that the SDK takes as ``bytes``."""

_TEXTS = ("context", "format", "name", "role", "text", "title")

_IDENTIFIER = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""What the API takes as the name of a tool and as the identifier of a call."""

_USAGE_SECONDS = 1.0
"""How long the usage may be behind the answer, which it follows at once."""

_NO_OUTPUT = "(no output)"
_GONE = "Not available any more: do not call it."


class BedrockAdapter(Adapter):
    """
    Any model on Amazon Bedrock, over ``ConverseStream``.

    Every reply is read on a thread of its own, which ends with it; disposing ends both at once.

    Args:
        client: boto3's ``bedrock-runtime`` client, which stays the caller's to close and keeps its settings: its own
            retries add to the turn's (``Config(retries={"total_max_attempts": 1})`` turns them off), and connections
            above its ``max_pool_connections`` (10 unless it says otherwise) are not kept. By default one with the
            credentials and the region that boto3 finds, which the adapter closes: without retries, for 256
            connections.
        model: the model's or the inference profile's identifier or ARN.
        cache: how long the provider keeps the prompt's beginning in its cache, which a ``cachePoint`` behind the system
            prompt (else the tools) and two in the history ask for in every request, beside those of your own: ``5m``,
            ``1h``, ``None`` for none, or ``auto``: ``5m`` for the models that are known to take one.
        fields: any further field of the request by the API's name: ``inferenceConfig``, ``guardrailConfig``,
            ``toolConfig`` with a ``toolChoice``, ``additionalModelRequestFields``, ``performanceConfig`` … The members
            of ``inferenceConfig`` may stand alone: ``max_tokens``, ``temperature``, ``top_p``, ``stop_sequences``.

    The request is the API's own JSON, so that the SDK need not know a field for it to be sent.

    Raises:
        ConfigurationError: boto3 is not installed, there is no region, the client is not one, or a value breaks its
            rule.
    """

    provider: ClassVar[str] = PROVIDER

    def __init__(
        self, client: Any = None, *, model: str, cache: Lifetime | Literal["auto"] | None = "auto", **fields: Any
    ) -> None:
        check_model(model)
        if cache != "auto":
            check_lifetime(cache)
        check_fields(
            fields,
            turns=("messages", "modelId", "system", "tools"),
            clients=CLIENTS_OWN,
            example='BedrockAdapter(boto3.client("bedrock-runtime", {}), model=…)',
        )
        self.model = model
        self.forces_tools = not always_thinks(model)
        self._fields = _body_fields(fields)
        self._cache: Lifetime | None = "5m" if cache == "auto" and takes_cache_points(model) else None
        if cache != "auto":
            self._cache = cache
        self._owns_client = client is None
        self.client = default_client(_SERVICE) if client is None else client
        if not hasattr(self.client, "converse_stream") or not hasattr(self.client, "meta"):
            raise ConfigurationError(
                f'client must be boto3.client("bedrock-runtime"), but got {type(self.client).__name__}'
            )
        if inspect.iscoroutinefunction(self.client.converse_stream):
            raise ConfigurationError(
                f"client must be boto3's own, but got {type(self.client).__name__}, which is asynchronous"
            )
        prepare(self.client, _SERVICE, "ConverseStream")
        self._as_bytes = True

    async def aclose(self) -> None:
        """Close the client, if the adapter made it."""
        if self._owns_client:
            self.client.close()

    def native_output(self, schema: Mapping[str, Any]) -> bool:
        """
        Whether the model is one of those with structured outputs, and the schema one that they can express.

        Source: https://docs.aws.amazon.com/bedrock/latest/userguide/structured-output.html
        """
        return bool(_WITH_OUTPUTS.search(self.model)) and is_closable(schema)

    def check_native_output(self, schema: Mapping[str, Any]) -> None:
        """
        Check that the schema means the same with its objects closed, as the provider wants them.

        Raises:
            ConfigurationError: it does not.
        """
        check_closable(schema)

    def close(self) -> None:
        """Close the client from synchronous code, if the adapter made it."""
        super().close()
        if self._owns_client:
            self.client.close()

    def begin(self, conversation: Conversation, prompt: Any) -> list[Mapping[str, Any]]:
        """
        The conversation with a user's message at its end.

        Args:
            conversation: messages of the API, oldest first.
            prompt: text, or content blocks (``text``, ``image``, ``document``, ``cachePoint`` …); ``None`` adds
                nothing. What the SDK takes as ``bytes`` may be that, or base64 as in the API.

        Raises:
            ConfigurationError: the prompt is empty, or a tool call has not exactly one result.
        """
        messages = _messages_of(conversation)
        check_pairs(messages)
        if prompt is None:
            if not messages:
                raise ConfigurationError("a turn needs a prompt or a conversation, but got neither")
            return messages
        return with_user_content(messages, _prompt_blocks(prompt), text=_text_block)

    def reply_message(self, text: str) -> Mapping[str, Any]:
        """A reply of plain text in the API's format."""
        return {"role": "assistant", "content": [_text_block(text)]}

    def append(
        self, conversation: Conversation, result: StepResult, tool_results: Sequence[ToolResult]
    ) -> list[Mapping[str, Any]]:
        """The conversation with the reply and, in one user message, the results of all its calls."""
        messages = list(conversation)
        if result.message is None:
            return messages
        # a reply may go on with one that was begun for the model
        messages = _joined([*messages, result.message])
        if tool_results:
            messages.append({"role": "user", "content": [_result_block(item) for item in tool_results]})
        return messages

    def context_window(self) -> int | None:
        """The model's window, with Claude's beta for a longer one if that is asked for."""
        window = super().context_window()
        further = self._fields.get("additionalModelRequestFields")
        betas = further.get("anthropic_beta") if isinstance(further, Mapping) else None
        return LONG_WINDOW if window is not None and long_window(betas) else window

    def history_results(self, conversation: Conversation) -> list[HistoryResult]:
        """The tool results of a conversation, oldest first."""
        names = {
            call.get("toolUseId"): str(call.get("name"))
            for message in conversation
            for call in _members(_blocks(message), "toolUse")
        }
        return [
            HistoryResult((index, place), names.get(result.get("toolUseId"), "a tool"), result.get("content") or "")
            for index, message in enumerate(conversation)
            if message.get("role") == "user"
            for place, block in enumerate(message["content"])
            if isinstance(result := block.get("toolResult"), Mapping)
        ]

    def with_notes(self, conversation: Conversation, notes: Mapping[tuple[int, int], str]) -> list[Mapping[str, Any]]:
        """The conversation with a note in place of each of these results."""
        return replaced_blocks(
            conversation,
            "content",
            notes,
            lambda block, note: {**block, "toolResult": {**block["toolResult"], "content": [{"text": note}]}},
        )

    def after_change(self, conversation: Conversation, index: int = 0) -> list[Mapping[str, Any]]:
        """
        The conversation without the reasoning that follows a change, for models that bind it to what was before it.

        Source: https://platform.claude.com/docs/en/build-with-claude/preserved-thinking/prefix-checks
        """
        if not binds_thinking(self.model):
            return list(conversation)
        return without_blocks(conversation, index, lambda block: "reasoningContent" in block)

    def request(self, step: Step) -> dict[str, Any]:
        """The request's body for a step, in the API's own JSON."""
        return self._request(step, _names(step))

    def _request(self, step: Step, names: NameMap) -> dict[str, Any]:
        messages = [_accepted(message) for message in step.conversation]
        request: dict[str, Any] = {"messages": messages, **self._fields}
        if step.system is not None:
            request["system"] = _prompt_blocks(step.system, "system")
        tools = [
            declare(item, names, "toolSpec") if isinstance(item, ToolDeclaration) else dict(item) for item in step.tools
        ]
        config = dict(request.pop("toolConfig", ()))
        choice = config.pop("toolChoice", None)
        if step.output is not None:
            choice = _output_choice(step.output, choice, request, self.model)
            request.update(_output_fields(step.output, request, self.model))
        if not tools:
            # a history with calls is refused without declarations, and a choice among none is an error
            tools, choice = _declarations_of(messages), None
        if tools:
            request["toolConfig"] = {**config, "tools": tools}
            if choice is not None:
                request["toolConfig"]["toolChoice"] = _with_alias(choice, names)
        return request if self._cache is None else with_cache_points(request, self._cache, self.model)

    def step(self, step: Step) -> Observable[Any]:
        """One streamed request: events as they arrive, the `StepResult` last."""
        return pump(lambda: self._connect(step), classify=_classify)

    @asynccontextmanager
    async def _connect(self, step: Step) -> AsyncIterator[Wire[Any]]:
        names = _names(step)
        step.draft = decoder = BedrockDecoder(step.index, names.name)
        try:
            body = _encoded(self._request(step, names))
        except ConfigurationError:
            raise
        except ValueError as error:
            raise ConfigurationError(
                f"a request must have a JSON form, but this one has none: {describe(error)}", provider=PROVIDER
            ) from error

        def call(mark: str) -> Mapping[str, Any]:
            response: Mapping[str, Any] = self.client.converse_stream(
                modelId=self.model, additionalModelRequestFields={mark: True}
            )
            return response

        async with call_for_stream(call, "stream", body=body, as_bytes=self._as_bytes) as reply:
            check_content_type(reply.response, PROVIDER)
            chunks = _Chunks(reply.chunks, decoder)
            yield Wire(chunks, BedrockBytesDecoder(decoder) if reply.is_bytes else _ListsDecoder(decoder))


class _Chunks:
    """
    What arrives of a reply.

    A connection that breaks, or falls silent, once the answer is whole has cost no more than its usage.
    """

    def __init__(self, chunks: AsyncIterator[Any], decoder: BedrockDecoder) -> None:
        self._chunks = chunks
        self._decoder = decoder

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        try:
            if self._decoder.stopped and not self._decoder.complete:
                async with asyncio.timeout(_USAGE_SECONDS):
                    return await anext(self._chunks)
            return await anext(self._chunks)
        except StopAsyncIteration:
            raise
        except TimeoutError as error:
            raise StopAsyncIteration from error
        except Exception as error:
            if self._decoder.stopped and isinstance(_classify(error), (StreamInterruptedError, TimedOutError)):
                raise StopAsyncIteration from error
            raise


class _ListsDecoder:
    """A `BedrockDecoder` fed with lists of the SDK's public events."""

    def __init__(self, decoder: BedrockDecoder) -> None:
        self._decoder = decoder

    @property
    def complete(self) -> bool:
        return self._decoder.complete

    def feed(self, events: list[Any]) -> Iterable[Any]:
        feed, decode = self._decoder.feed, self._decoder.event
        for event in events:
            payload = event.get("contentBlockDelta")
            if payload is not None and "text" in payload["delta"]:
                yield from decode("contentBlockDelta", payload)
            else:
                yield from feed(event)
            if self._decoder.complete:
                return

    def close(self) -> Iterable[Any]:
        return self._decoder.close()


def _classify(error: Exception) -> Exception:
    return classify(error, PROVIDER)


def check_pairs(messages: Conversation) -> None:
    """
    Check that every tool call has exactly one result, in the message that follows it.

    Raises:
        ConfigurationError: naming the call.

    Source: https://docs.aws.amazon.com/bedrock/latest/userguide/tool-use-inference-call.html
    """
    check_answers(messages, calls=_calls, results=_answered)


def _calls(message: Mapping[str, Any]) -> list[str]:
    calls = _members(_blocks(message), "toolUse")
    return [str(call.get("toolUseId")) for call in calls if not is_providers_call(call)]


def _answered(message: Mapping[str, Any]) -> list[str]:
    # the provider answers its own calls within its reply
    results = _members(_blocks(message), "toolResult") if message.get("role") == "user" else []
    return [str(result.get("toolUseId")) for result in results]


def _blocks(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = message.get("content")
    return [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []


def _members(blocks: Iterable[Mapping[str, Any]], kind: str) -> list[Mapping[str, Any]]:
    return [block[kind] for block in blocks if isinstance(block.get(kind), Mapping)]


def _output_choice(output: OutputRequest, choice: Any, request: Mapping[str, Any], model: str) -> Any:
    """
    The tool choice that asks for a structured answer.

    Source: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ToolChoice.html
    """
    if always_thinks(model):
        return choice
    if output.how == "forced":
        return {"tool": {"name": FINAL_RESULT}}
    return {"any": {}} if output.how == "required" and not _thinks(request, model) else choice


def _thinks(request: Mapping[str, Any], model: str) -> bool:
    further = request.get("additionalModelRequestFields") or {}
    said = [further[key] for key in _THINKING if key in further]
    if not said:
        return thinks_by_default(model)
    return any(not isinstance(item, Mapping) or item.get("type") != "disabled" for item in said)


def _output_fields(output: OutputRequest, request: Mapping[str, Any], model: str) -> dict[str, Any]:
    """
    The fields that ask for a structured answer.

    Claude takes no forced choice while it thinks, so the step that forces it goes without.

    Source: https://docs.aws.amazon.com/bedrock/latest/userguide/structured-output.html
    """
    if output.how == "native":
        schema = to_json(closed_schema(output.schema)).decode()
        structure = {"jsonSchema": {"name": FINAL_RESULT, "schema": schema}}
        config = {"textFormat": {"type": "json_schema", "structure": structure}}
        return {"outputConfig": {**(request.get("outputConfig") or {}), **config}}
    if output.how != "forced" or always_thinks(model) or not _thinks(request, model):
        return {}
    further = request.get("additionalModelRequestFields") or {}
    without = {key: item for key, item in further.items() if key not in _THINKING}
    if thinks_by_default(model):
        without["thinking"] = {"type": "disabled"}
    return {"additionalModelRequestFields": without}


def _names(step: Step) -> NameMap:
    return names_for("toolSpec", (item.name for item in step.tools if isinstance(item, ToolDeclaration)))


def _messages_of(conversation: Any) -> list[Mapping[str, Any]]:
    """The messages as the API takes them: of blocks in its JSON, and by turns the user's and the model's."""
    messages: list[Mapping[str, Any]] = []
    for message in messages_of(conversation):
        content = message["content"]
        blocks = _as_blocks(content)
        if not all(isinstance(block, Mapping) for block in blocks):
            raise ConfigurationError(f"a message must have content blocks, but got {content!r:.200}")
        messages.append({**message, "content": _as_json(blocks)})
    return _joined(messages)


def _joined(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    joined: list[Mapping[str, Any]] = []
    for message in messages:
        if joined and joined[-1]["role"] == message["role"]:
            message = {**joined[-1], "content": [*joined.pop()["content"], *message["content"]]}
        joined.append(message)
    return joined


def _as_blocks(content: Any) -> list[Any]:
    return [
        _text_block(item) if isinstance(item, str) else item
        for item in ([content] if isinstance(content, str) else content)
    ]


def _prompt_blocks(prompt: Any, name: str = "prompt") -> list[Any]:
    blocks: list[Any] = _as_json(prompt_blocks(prompt, text=_text_block, is_content=_is_content, name=name))
    return blocks


def _text_block(text: str) -> dict[str, Any]:
    return {"text": text}


def _is_content(block: Any) -> bool:
    if not isinstance(block, Mapping) or not block:
        return False
    return "text" not in block or bool(str(block["text"] or "").strip())


def _as_json(value: Any, name: str = "", parent: str = "") -> Any:
    """
    The same in the API's JSON, in which ``bytes`` are base64.

    Raises:
        ConfigurationError: there are bytes where the API has text, or none where it has bytes.
    """
    if name in _BLOBS and (parent == "source" or not isinstance(value, str)):
        return _blob(value, name)
    if isinstance(value, (bytes, bytearray)):
        if name in _TEXTS:
            raise ConfigurationError(f"{name} must be text, but got {value!r:.100}")
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        # a call's arguments are the model's own, and so is the data of a result its tool's
        return {key: item if key in ("input", "json") else _as_json(item, key, name) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(item) for item in value]
    return value


def _blob(value: Any, name: str) -> str:
    content = value.read() if hasattr(value, "read") else value
    if isinstance(content, (bytes, bytearray)):
        return base64.b64encode(content).decode()
    if not isinstance(content, str) or content is not value:
        raise ConfigurationError(f"{name} must be bytes or base64, but got {content!r:.100}")
    _check_base64(content)
    return content


def _check_base64(value: str) -> None:
    try:
        base64.b64decode(value, validate=True)
    except ValueError as error:
        raise ConfigurationError(f"bytes must be bytes or base64, but got {value!r:.100}") from error


def _declarations_of(messages: Conversation) -> list[dict[str, Any]]:
    """Declarations for the calls of a history whose tools are gone."""
    names = {
        str(call.get("name")): None
        for message in messages
        for call in _members(_blocks(message), "toolUse")
        if not is_providers_call(call)
    }
    return [
        {"toolSpec": {"name": name, "description": _GONE, "inputSchema": {"json": {"type": "object"}}}}
        for name in names
    ]


def _with_alias(choice: Any, names: NameMap) -> Any:
    tool = choice.get("tool") if isinstance(choice, Mapping) else None
    if not isinstance(tool, Mapping) or "name" not in tool:
        return choice
    return {**choice, "tool": {**tool, "name": names.alias(tool["name"])}}


def _accepted(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """
    The message with identifiers of calls and names of tools that Bedrock accepts.

    A history may have begun elsewhere, and a model may call what nobody declared.
    """
    content = message["content"]
    blocks = [_accepted_block(block) for block in _as_blocks(content)]
    if all(one is other for one, other in zip(blocks, content, strict=False)):
        return message
    return {**message, "content": blocks}


def _accepted_block(block: Any) -> Any:
    for kind in ("toolUse", "toolResult"):
        member = block.get(kind)
        if not isinstance(member, Mapping):
            continue
        accepted = {"toolUseId": _accepted_id(str(member.get("toolUseId")))}
        if kind == "toolUse":
            accepted["name"] = _accepted_name(str(member.get("name")))
        if any(member.get(key) != value for key, value in accepted.items()):
            return {**block, kind: {**member, **accepted}}
    return block


def _accepted_name(name: str) -> str:
    return name if _IDENTIFIER.fullmatch(name) else names_for("toolSpec", [name]).alias(name)


def _accepted_id(call_id: str) -> str:
    """The same alias for a call and its result, wherever it is made."""
    if _IDENTIFIER.fullmatch(call_id):
        return call_id
    return f"id_{hashlib.sha256(call_id.encode(errors='surrogatepass')).hexdigest()[:40]}"


def _result_block(result: ToolResult) -> dict[str, Any]:
    block: dict[str, Any] = {"toolUseId": result.call_id}
    if result.error is not None:
        return {"toolResult": {**block, "content": [_result_text(result.error)], "status": "error"}}
    return {"toolResult": {**block, "content": _result_content(result.output)}}


def _result_content(output: Any) -> list[Any]:
    blocks = output if isinstance(output, list) else [output]
    if any(map(_is_result_block, blocks)) and all(_is_result_block(item) or _is_beside(item) for item in blocks):
        try:
            content: list[Any] = _as_json([block for block in blocks if _is_content(block)])
        except ConfigurationError:
            # what is not base64 is the tool's own data, which only looks like a block
            pass
        else:
            return content
    return [_result_text(output if isinstance(output, str) else "" if output is None else to_json(output).decode())]


def _result_text(text: str) -> dict[str, Any]:
    # blank text is refused, and so is a result without any content
    return _text_block(text if text.strip() else _NO_OUTPUT)


def _is_result_block(item: Any) -> bool:
    if not isinstance(item, Mapping) or len(item) != 1:
        return False
    [(kind, value)] = item.items()
    fields = _RESULT_BLOCKS.get(kind)
    if fields is None or not isinstance(value, Mapping) or not all(value.get(field) for field in fields):
        return False
    return isinstance(value["source"], Mapping) or (kind == "searchResult" and isinstance(value["content"], list))


def _is_beside(item: Any) -> bool:
    """Whether it may be text or JSON beside a block, which alone could as well be a caller's own data."""
    if not isinstance(item, Mapping):
        return False
    return item.keys() == {"json"} or (item.keys() == {"text"} and isinstance(item["text"], str))


def _encoded(request: Mapping[str, Any]) -> bytes:
    """
    The request's JSON.

    Raises:
        ValueError: it has none.
    """
    body = to_json(request)
    if b"NaN" in body or b"Infinity" in body:
        # which JSON does not have, unless it is in a text
        from_json(body, allow_inf_nan=False)
    return body


def _body_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The caller's fields where the API has them."""
    body = {key: _as_json(value) for key, value in fields.items() if key not in _INFERENCE}
    alone = {_INFERENCE[key]: _as_json(value) for key, value in fields.items() if key in _INFERENCE}
    for key in ("inferenceConfig", "toolConfig"):
        if key in body and not isinstance(body[key], Mapping):
            raise ConfigurationError(f"{key} must be a mapping, but got {body[key]!r:.100}")
    if "tools" in (body.get("toolConfig") or {}):
        raise ConfigurationError("'tools' is the turn's to send: give it to Turn, not to the adapter")
    if alone:
        body["inferenceConfig"] = {**(body.get("inferenceConfig") or {}), **alone}
    return body
