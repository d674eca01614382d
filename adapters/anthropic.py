"""Claude over the Messages API, through any client of the anthropic SDK."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from pydantic_core import from_json, to_json
from reactivex import Observable

from rxloop.adapters.anthropic_cache import with_cache_points
from rxloop.adapters.anthropic_decoder import PROVIDERS_CALLS, AnthropicBytesDecoder, AnthropicDecoder, usage_from
from rxloop.adapters.anthropic_errors import classify
from rxloop.adapters.anthropic_models import (
    LONG_WINDOW,
    always_thinks,
    binds_thinking,
    has_structured_outputs,
    long_window,
    thinks_by_default,
)
from rxloop.adapters.anthropic_vertex import check_vertex_fields
from rxloop.adapters.base import Adapter
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
from rxloop.breaker import Breaker
from rxloop.checks import whole
from rxloop.errors import ConfigurationError, MalformedResponseError, describe
from rxloop.output import FINAL_RESULT
from rxloop.reclaim import HistoryResult
from rxloop.steps import Conversation, OutputRequest, Step, StepResult, ToolResult
from rxloop.tools import ToolDeclaration

__all__ = ("AnthropicAdapter",)

_CLIENTS_OWN = (
    "api_key", "auth_token", "base_url", "default_headers", "default_query", "http_client", "max_retries",
)  # fmt: skip

_FLAVOURS = {
    "vertex": {"AsyncAnthropicVertex"},
    "bedrock": {"AsyncAnthropicBedrock", "AsyncAnthropicBedrockMantle"},
    "foundry": {"AsyncAnthropicFoundry"},
}

_THINKING = ("thinking", "redacted_thinking")
_RESULT_BLOCKS = {
    "text": "text",
    "image": "source",
    "document": "source",
    "search_result": "content",
    "tool_reference": "tool_name",
}
"""What a tool result may hold beside plain text, and the field that tells it from a caller's own data.

Source: https://platform.claude.com/docs/en/agents-and-tools/tool-use/handle-tool-calls
"""


class AnthropicAdapter(Adapter):
    """
    Claude over the Messages API.

    Args:
        client: an ``AsyncAnthropic`` or one of its flavours (``AsyncAnthropicVertex``, ``AsyncAnthropicBedrock``,
            ``AsyncAnthropicFoundry``), which stays the caller's to close; by default one that reads
            ``ANTHROPIC_API_KEY``, which the adapter closes. The SDK's own retries are off for the adapter's calls: the
            turn's `RetryPolicy` owns them.
        model: the model's name.
        max_tokens: the most tokens of one reply.
        cache: how long the provider keeps the prompt's beginning in its cache: the system prompt or the tools, and the
            history up to its end, are marked in every request, beside markers of your own. ``5m``, ``1h``, or ``None``
            for none; a top-level ``cache_control`` among the fields leaves it to the provider.
        fields: any further field of the request: ``temperature``, ``thinking``, ``tool_choice``, ``stop_sequences``,
            ``metadata`` … ``betas`` sends it through the beta endpoint. What this version of the SDK does not know
            goes into the body as it is.

    On Vertex the failure breaker is on (2 strikes), a structured answer beside tools is asked for in coercive mode, and
    fields and betas that Vertex refuses are errors here.

    Raises:
        ConfigurationError: the SDK is not installed, the client is not an asynchronous one, or a value breaks its
            rule.
    """

    provider: ClassVar[str] = "anthropic"
    backend: str
    """Whose API the client speaks to: anthropic, vertex, bedrock or foundry."""

    def __init__(
        self,
        client: Any = None,
        *,
        model: str,
        max_tokens: int = 8192,
        cache: Lifetime | None = "5m",
        **fields: Any,
    ) -> None:
        check_model(model)
        check_lifetime(cache)
        whole("max_tokens", max_tokens, minimum=1)
        check_fields(
            fields,
            turns=("messages", "stream", "system", "tools"),
            clients=_CLIENTS_OWN,
            example="AnthropicAdapter(AsyncAnthropic({}), model=…)",
        )
        self.model = model
        self.max_tokens = max_tokens
        # the provider's own automatic marker stands for ours
        self._cache: Lifetime | None = None if "cache_control" in fields else cache
        self._owns_client = client is None
        self.client = _asynchronous(_default_client() if client is None else client)
        self.backend = _backend_of(self.client)
        self.forces_tools = not always_thinks(model)
        if self.backend == "vertex":
            check_vertex_fields(fields)
            self.default_breaker = Breaker(max_retries=2)
            self.output_mode = "coercive"
        beta = "betas" in fields
        self._messages = self.client.beta.messages if beta else self.client.messages
        self._fields = _known_to(self._messages.create, fields)

    async def aclose(self) -> None:
        """Close the client, if the adapter made it."""
        if self._owns_client:
            await self.client.close()

    def native_output(self, schema: Mapping[str, Any]) -> bool:
        """
        Whether the model is one with structured outputs, and the schema one that they can express.

        On Vertex an organisation has to allow them first, so there they are not.

        Source: https://platform.claude.com/docs/en/build-with-claude/structured-outputs
        """
        return self.backend != "vertex" and has_structured_outputs(self.model) and is_closable(schema)

    def check_native_output(self, schema: Mapping[str, Any]) -> None:
        """
        Check that the schema means the same with its objects closed, as the provider wants them.

        Raises:
            ConfigurationError: it does not.
        """
        check_closable(schema)

    def begin(self, conversation: Conversation, prompt: Any) -> list[Mapping[str, Any]]:
        """
        The conversation with a user's message at its end.

        Args:
            conversation: messages of the API, oldest first.
            prompt: text, or content blocks (``text``, ``image``, ``document`` …); ``None`` adds nothing.

        Raises:
            ConfigurationError: the prompt is empty, or a tool call has not exactly one result.
        """
        messages = messages_of(conversation)
        check_pairs(messages)
        if prompt is None:
            if not messages:
                raise ConfigurationError("a turn needs a prompt or a conversation, but got neither")
            return messages
        blocks = prompt_blocks(prompt, text=_text_block, is_content=_is_content)
        return with_user_content(_without_pending(messages), blocks, text=_text_block)

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
        messages.append(result.message)
        if tool_results:
            messages.append({"role": "user", "content": [_result_block(item) for item in tool_results]})
        return messages

    def context_window(self) -> int | None:
        """The model's window, with the beta for a longer one if that is asked for."""
        betas = [self._fields.get("betas")]
        for headers in (self._fields.get("extra_headers"), getattr(self.client, "default_headers", None)):
            betas += [value for name, value in dict(headers or ()).items() if name.lower() == "anthropic-beta"]
        window = super().context_window()
        return LONG_WINDOW if window is not None and any(map(long_window, betas)) else window

    def prompt_tokens(self, result: StepResult) -> int:
        """
        How many tokens the prompt had, or 0 where the provider ran tools of its own and counted each of its rounds.

        Source: https://platform.claude.com/docs/en/build-with-claude/compaction#understanding-usage
        """
        rounds = result.raw_usage.get("iterations")
        for counted in reversed(rounds if isinstance(rounds, list) else []):
            if isinstance(counted, Mapping) and counted.get("type") == "message":
                return usage_from(counted).input_tokens
        ran = result.raw_usage.get("server_tool_use")
        return 0 if isinstance(ran, Mapping) and any(ran.values()) else result.usage.input_tokens

    def history_results(self, conversation: Conversation) -> list[HistoryResult]:
        """The tool results of a conversation, oldest first."""
        names = {
            block.get("id"): str(block.get("name"))
            for message in conversation
            for block in _blocks(message)
            if block.get("type") == "tool_use"
        }
        return [
            HistoryResult((index, place), names.get(block.get("tool_use_id"), "a tool"), block.get("content") or "")
            for index, message in enumerate(conversation)
            for place, block in enumerate(message["content"])
            if isinstance(block, Mapping) and block.get("type") == "tool_result"
        ]

    def with_notes(self, conversation: Conversation, notes: Mapping[tuple[int, int], str]) -> list[Mapping[str, Any]]:
        """The conversation with a note in place of each of these results."""
        return replaced_blocks(conversation, "content", notes, lambda block, note: {**block, "content": note})

    def after_change(self, conversation: Conversation, index: int = 0) -> list[Mapping[str, Any]]:
        """
        The conversation without the thinking that follows a change, for models that bind it to what was before it.

        Source: https://platform.claude.com/docs/en/build-with-claude/preserved-thinking/prefix-checks
        """
        if not binds_thinking(self.model):
            return list(conversation)
        return without_blocks(conversation, index, lambda block: block.get("type") in _THINKING)

    def request(self, step: Step) -> dict[str, Any]:
        """The keywords of the SDK's ``create`` for a step."""
        return self._request(step, _names(step))

    def _request(self, step: Step, names: NameMap) -> dict[str, Any]:
        request: dict[str, Any] = {
            "model": self.model,
            "max_tokens": self.max_tokens,
            "messages": list(step.conversation),
            "stream": True,
            **self._fields,
        }
        if step.carry:
            request.update(_known_to(self._messages.create, step.carry, request.get("extra_body")))
        if step.system is not None:
            request["system"] = step.system
        if step.output is not None:
            request.update(_output_fields(step.output, request, self.model))
        choice = request.get("tool_choice")
        if not step.tools:
            # a choice among no tools is an error
            request.pop("tool_choice", None)
        elif isinstance(choice, Mapping) and "name" in choice:
            request["tool_choice"] = {**choice, "name": names.alias(choice["name"])}
        if step.tools:
            request["tools"] = [
                declare(item, names, "input_schema") if isinstance(item, ToolDeclaration) else dict(item)
                for item in step.tools
            ]
        return request if self._cache is None else with_cache_points(request, self._cache)

    def step(self, step: Step) -> Observable[Any]:
        """One streamed request: events as they arrive, the `StepResult` last."""
        return pump(lambda: self._connect(step), classify=classify)

    @asynccontextmanager
    async def _connect(self, step: Step) -> AsyncIterator[Wire[Any]]:
        names = _names(step)
        step.draft = decoder = AnthropicDecoder(step.index, names.name)
        reply = self._messages.with_streaming_response.create(**self._request(step, names))
        try:
            response = await reply.__aenter__()
        except (RecursionError, TypeError, ValueError) as error:
            if "authentication method" in str(error):
                raise
            raise ConfigurationError(
                f"a request must have a JSON form, but this one has none: {describe(error)}", provider=self.provider
            ) from error
        try:
            yield await _wire(response, decoder)
        finally:
            await reply.__aexit__(None, None, None)


async def _wire(response: Any, decoder: AnthropicDecoder) -> Wire[Any]:
    """
    The reply's bytes, decoded here, where the body is an event stream.

    Bedrock frames its events in another way, which the SDK undoes; there its public events are decoded. Whoever
    answers a streaming request with one whole message is understood too.
    """
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "text/event-stream":
        return Wire(response.http_response.aiter_bytes(), AnthropicBytesDecoder(decoder))
    if kind == "application/json":
        return Wire(_one(await response.read()), _MessageDecoder(decoder))
    if kind == "application/vnd.amazon.eventstream":
        return Wire(_as_mappings(await response.parse()), decoder)
    raise MalformedResponseError(
        f"a reply must be text/event-stream, but got {kind or 'no content type'}",
        provider=AnthropicAdapter.provider,
        status=response.status_code,
    )


async def _one(item: Any) -> AsyncIterator[Any]:
    yield item


async def _as_mappings(stream: Any) -> AsyncIterator[Mapping[str, Any]]:
    try:
        async for event in stream:
            # blocks and deltas that the SDK does not know are no reason to warn
            yield event.to_dict(warnings=False)
    except Exception as error:
        if classify(error) is not error:
            raise
        # neither the SDK's nor the transport's: the frames, or the JSON in them, could not be read
        raise MalformedResponseError(
            f"the reply does not have the provider's format: {type(error).__name__}: {error}",
            provider=AnthropicAdapter.provider,
        ) from error


class _MessageDecoder:
    """A whole message as if it had been streamed."""

    def __init__(self, decoder: AnthropicDecoder) -> None:
        self._decoder = decoder

    @property
    def complete(self) -> bool:
        return self._decoder.complete

    def feed(self, body: bytes) -> Iterable[Any]:
        message = from_json(body)
        if message.get("type") != "message":
            yield from self._decoder.feed(message)
            return
        yield from self._decoder.feed({"type": "message_start", "message": message})
        yield from self._decoder.feed({"type": "message_stop"})

    def close(self) -> Iterable[Any]:
        return self._decoder.close()


def check_pairs(messages: Conversation) -> None:
    """
    Check that every tool call has exactly one result, in the message that follows it.

    Raises:
        ConfigurationError: naming the call.

    Source: https://platform.claude.com/docs/en/agents-and-tools/tool-use/handle-tool-calls
    """
    check_answers(
        messages,
        calls=lambda message: [str(block.get("id")) for block in _blocks(message) if block.get("type") == "tool_use"],
        results=lambda message: [
            str(block.get("tool_use_id")) for block in _blocks(message) if block.get("type") == "tool_result"
        ],
    )


def _backend_of(client: Any) -> str:
    """Told by the classes of the client, so that one that a caller derived counts too."""
    names = {cls.__name__ for cls in type(client).__mro__}
    return next((backend for backend in ("vertex", "bedrock", "foundry") if _FLAVOURS[backend] & names), "anthropic")


def _asynchronous(client: Any) -> Any:
    create = getattr(getattr(client, "messages", None), "create", None)
    if create is None or not hasattr(client, "with_options"):
        raise ConfigurationError(
            f"client must be an AsyncAnthropic or one of its flavours, but got {type(client).__name__}"
        )
    if not inspect.iscoroutinefunction(inspect.unwrap(create)):
        raise ConfigurationError(
            f"client must be asynchronous, but got {type(client).__name__}: use Async{type(client).__name__}"
        )
    return client.with_options(max_retries=0)


def _default_client() -> Any:
    try:
        from anthropic import AsyncAnthropic
    except ImportError as error:
        raise ConfigurationError(
            'the Anthropic adapter needs the anthropic SDK: pip install "rxloop[anthropic]"'
        ) from error
    return AsyncAnthropic(max_retries=0)


def _known_to(create: Any, fields: Mapping[str, Any], body: Any = None) -> dict[str, Any]:
    """Split the fields: what the SDK does not know as a keyword goes into ``extra_body``."""
    known = inspect.signature(create).parameters
    keywords = {key: value for key, value in fields.items() if key in known}
    unknown = {key: value for key, value in fields.items() if key not in known}
    if unknown:
        keywords["extra_body"] = {**(body or {}), **(keywords.get("extra_body") or {}), **unknown}
    return keywords


def _output_fields(output: OutputRequest, request: Mapping[str, Any], model: str) -> dict[str, Any]:
    """
    The fields that ask for a structured answer.

    With thinking the API allows no tool choice but ``auto``: there a call is not required, and the step that forces it
    goes without thinking.

    Source: https://platform.claude.com/docs/en/build-with-claude/structured-outputs and
    https://platform.claude.com/docs/en/build-with-claude/extended-thinking#extended-thinking-with-tool-use
    """
    if output.how == "native":
        config = request.get("output_config") or {}
        return {"output_config": {**config, "format": {"type": "json_schema", "schema": closed_schema(output.schema)}}}
    if always_thinks(model):
        return {}
    thinking = (request.get("thinking") or {}).get("type")
    thinks = thinking != "disabled" and (thinking is not None or thinks_by_default(model))
    kept = {key: value for key, value in (request.get("tool_choice") or {}).items() if key not in ("type", "name")}
    if output.how == "forced":
        fields: dict[str, Any] = {"tool_choice": {**kept, "type": "tool", "name": FINAL_RESULT}}
        return {**fields, **_without_thinking(request)} if thinks else fields
    if output.how == "required" and not thinks:
        return {"tool_choice": {**kept, "type": "any"}}
    return {}


def _without_thinking(request: Mapping[str, Any]) -> dict[str, Any]:
    """
    The fields of a request that speak of thinking, without it.

    Source: https://platform.claude.com/docs/en/build-with-claude/effort and
    https://platform.claude.com/docs/en/build-with-claude/context-editing (each has settings that need thinking)
    """
    fields: dict[str, Any] = {"thinking": {"type": "disabled"}}
    config = request.get("output_config") or {}
    if config.get("effort") in ("xhigh", "max"):
        fields["output_config"] = {**config, "effort": "high"}
    management = request.get("context_management") or {}
    edits = [edit for edit in management.get("edits") or () if not str(edit.get("type")).startswith("clear_thinking")]
    if edits != list(management.get("edits") or ()):
        fields["context_management"] = {**management, "edits": edits}
    return fields


def _names(step: Step) -> NameMap:
    return names_for("input_schema", (item.name for item in step.tools if isinstance(item, ToolDeclaration)))


def _without_pending(messages: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """
    The messages without calls of the provider's own that a paused reply ends with: it answers them when the reply is
    sent back as it is, but refuses them once a user's message follows.
    """
    first = len(messages)
    while first and messages[first - 1].get("role") == "assistant":
        first -= 1
    reply = [block for message in messages[first:] for block in _blocks(message)]
    answered = {block.get("tool_use_id") for block in reply}
    if all(block.get("type") not in PROVIDERS_CALLS or block.get("id") in answered for block in reply):
        return messages
    kept: list[Mapping[str, Any]] = []
    for message in messages[first:]:
        content = [
            block
            for block in _blocks(message)
            if block.get("type") not in PROVIDERS_CALLS or block.get("id") in answered
        ]
        while content and content[-1].get("type") in ("thinking", "redacted_thinking"):
            content.pop()
        if content:
            kept.append({**message, "content": content})
    return [*messages[:first], *kept]


def _blocks(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        return [_text_block(content)]
    return [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _is_content(block: Any) -> bool:
    if not isinstance(block, Mapping) or not block.get("type"):
        return False
    return block["type"] != "text" or bool(str(block.get("text") or "").strip())


def _result_block(result: ToolResult) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": result.call_id}
    content = _result_content(result.output) if result.error is None else result.error
    if content:
        block["content"] = content
    if result.error is not None:
        block["is_error"] = True
    return block


def _result_content(output: Any) -> Any:
    if output is None or isinstance(output, str):
        return output
    blocks = output if isinstance(output, list) else [output]
    if blocks and all(map(_is_result_block, blocks)):
        # blank text is refused
        return [block for block in blocks if _is_content(block)]
    return to_json(output).decode()


def _is_result_block(item: Any) -> bool:
    return isinstance(item, Mapping) and _RESULT_BLOCKS.get(str(item.get("type"))) in item
