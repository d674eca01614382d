"""Recordings of Bedrock: of the Converse API, and of models that were asked in their own formats."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from rxloop.adapters.anthropic_decoder import AnthropicDecoder
from rxloop.adapters.aws_frames import FrameDecoder
from rxloop.adapters.base import Adapter
from rxloop.adapters.bedrock import BedrockAdapter
from rxloop.adapters.bedrock_decoder import BedrockBytesDecoder, BedrockDecoder
from rxloop.errors import ConfigurationError
from rxloop.testing.cassette import Interaction
from rxloop.testing.frames import event_frame, rewritten
from rxloop.testing.recorded_aws import recorded_client
from rxloop.testing.recordings import RecordedReply, RecordedRequest, RecordedResult
from rxloop.testing.replay_anthropic import AnthropicRecordings
from rxloop.tools import ToolDeclaration

__all__ = ("AnthropicOnBedrockRecordings", "BedrockRecordings")

_ADDRESS = re.compile(
    r"/model/(?P<model>.+)/(?P<operation>converse|converse-stream|invoke|invoke-with-response-stream)/?$"
)
_INVOKED = re.compile(r"/invoke(-with-response-stream)?/?$")
_FRAMED = b"\0"
"""An event stream begins so: the length of its first frame."""

_NO_ANSWERS = re.compile(r"embed|rerank")
"""Models that answer with figures, which are passed over like any other traffic."""

_TURNS_OWN = ("messages", "modelId", "schemaVersion", "system", "toolConfig")


class BedrockRecordings:
    """
    Reads recordings of ``POST …/model/…/converse-stream`` and ``/converse``, whatever the host.

    The format in which Amazon's Nova is asked through ``InvokeModel`` has the same requests, and its replies become
    those of Converse.
    """

    provider = BedrockAdapter.provider

    def recognise(self, interaction: Interaction) -> bool:
        """Whether it is a request to a model that answers."""
        found = _address(interaction)
        return found is not None and not (_invokes(found) and _NO_ANSWERS.search(_model(found)))

    def request(self, interaction: Interaction) -> RecordedRequest:
        """
        Read a request's body.

        Raises:
            ConfigurationError: it is not a request of this API, or is in a model's own format that is not known.
        """
        found = _address(interaction)
        model = "" if found is None else _model(found)
        body = _json(interaction.request_body)
        if found is not None and _invokes(found) and body is not None and not _is_nova(model, body):
            raise ConfigurationError(
                f"the model {model} was asked in a format of its own (InvokeModel), which is not supported; "
                "supported: Converse, and of InvokeModel the formats of Anthropic and Nova"
            )
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
            raise ConfigurationError(
                "its request body must be a JSON object with messages; recorded without one, it cannot be replayed"
            )
        _check(body)
        messages = [{**message, "content": _blocks(message)} for message in body["messages"]]
        return RecordedRequest(
            model=model,
            messages=messages,
            system=body.get("system") or None,
            tools=[_declaration(tool) for tool in (body.get("toolConfig") or {}).get("tools") or ()],
            body=body,
            prompt=_prompt(messages),
        )

    def reply(self, interaction: Interaction) -> RecordedReply:
        """Read a response with the adapter's own decoder."""
        if interaction.status >= 400:
            return RecordedReply(failed=True)
        decoder = BedrockDecoder()
        whole = BedrockBytesDecoder(decoder)
        content = False
        try:
            for _ in whole.feed(_converse(interaction).body):
                content = True
            whole.close()
        except Exception:  # whatever it is, the replay itself will meet it again
            return RecordedReply(failed=not content, broken=content)
        result = decoder.draft()
        if result.finish_reason in ("content-filter", "error"):
            # its calls are not run, so that what followed is another turn
            return RecordedReply()
        return RecordedReply(call_ids=frozenset(call.call_id for call in result.tool_calls))

    def continued(
        self, earlier: RecordedRequest, reply: RecordedReply, later: RecordedRequest
    ) -> Mapping[str, RecordedResult] | None:
        """The tool results in what `later` has after `earlier` and a reply to it."""
        known = len(earlier.messages)
        if not reply.call_ids or len(later.messages) <= known:
            return None
        if [_normal(message) for message in later.messages[:known]] != [_normal(item) for item in earlier.messages]:
            return None
        answer, *rest = later.messages[known:]
        if answer.get("role") != "assistant" or any(message.get("role") != "user" for message in rest):
            return None
        return dict(_results(rest)) or None

    def adapter(self, request: RecordedRequest, response: Callable[[], Interaction]) -> Adapter:
        """
        A `BedrockAdapter` over the SDK, with everything that the recorded request said.

        Raises:
            ConfigurationError: the SDK is not installed.
        """
        client = recorded_client("bedrock-runtime", lambda: _converse(response()))
        fields = {key: value for key, value in request.body.items() if key not in _TURNS_OWN}
        choice = (request.body.get("toolConfig") or {}).get("toolChoice")
        if choice is not None:
            fields["toolConfig"] = {"toolChoice": choice}
        # the markers of the prompt cache are those of the recording
        return BedrockAdapter(client, model=request.model, cache=None, **fields)


class AnthropicOnBedrockRecordings(AnthropicRecordings):
    """
    Reads recordings of ``POST …/model/…/invoke-with-response-stream`` and ``/invoke`` whose bodies are those of the
    Messages API, whatever the host.
    """

    def recognise(self, interaction: Interaction) -> bool:
        """Whether it is a request to create a message."""
        found = _address(interaction)
        if found is None or not _invokes(found):
            return False
        body = _json(interaction.request_body)
        return isinstance(body, dict) and "anthropic_version" in body

    def request(self, interaction: Interaction) -> RecordedRequest:
        """
        Read a request's body, and the model from its address.

        Raises:
            ConfigurationError: it is not a request of this API.
        """
        found = _address(interaction)
        body = _json(interaction.request_body)
        if found is None or not isinstance(body, dict):
            raise ConfigurationError("its request body must be a JSON object with messages")
        whole = json.dumps({**body, "model": _model(found)}).encode()
        return super().request(dataclasses.replace(interaction, request_body=whole))

    def _decoded(self, interaction: Interaction, decoder: AnthropicDecoder) -> Iterable[Any]:
        if interaction.body[:1] != _FRAMED:
            yield from super()._decoded(interaction, decoder)
            return
        frames = FrameDecoder(self.provider)
        for heading, payload in frames.feed(interaction.body):
            event = _chunk(payload)
            if heading.kind != "event" or event is None:
                raise ValueError(f"a frame must be a chunk, but got {heading.kind} {heading.name}")
            yield from decoder.feed(event)
        frames.close()
        decoder.close()

    def _client(self, sdk: Any, http_client: Any) -> Any:
        try:
            import botocore  # noqa: F401
        except ImportError as error:
            raise ConfigurationError('replaying needs boto3: pip install "rxloop[aws]"') from error
        return sdk.AsyncAnthropicBedrock(
            api_key="replay",
            aws_region="us-east-1",
            base_url="https://bedrock-runtime.us-east-1.amazonaws.com",
            http_client=http_client,
        )


def _address(interaction: Interaction) -> re.Match[str] | None:
    return _ADDRESS.search(interaction.path) if interaction.method.upper() == "POST" else None


def _model(found: re.Match[str]) -> str:
    return unquote(found["model"])


def _invokes(found: re.Match[str]) -> bool:
    return found["operation"].startswith("invoke")


def _is_nova(model: str, body: Any) -> bool:
    return isinstance(body, dict) and (body.get("schemaVersion") == "messages-v1" or "nova" in model)


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (RecursionError, ValueError):
        return None


def _chunk(payload: bytes) -> dict[str, Any] | None:
    """The event of a model's own format that a frame of ``InvokeModelWithResponseStream`` holds."""
    data = _json(payload)
    try:
        event = json.loads(base64.b64decode(data["bytes"]))
    except (KeyError, RecursionError, TypeError, ValueError):
        return None
    return event if isinstance(event, dict) else None


def _converse(interaction: Interaction) -> Interaction:
    """The same with a reply of Converse: Nova's own events have the same names and content."""
    if interaction.body[:1] != _FRAMED or not _INVOKED.search(interaction.path):
        return interaction
    return dataclasses.replace(interaction, body=rewritten(interaction.body, _as_converse))


def _as_converse(_: bytes, payload: bytes) -> bytes | None:
    events = _chunk(payload)
    if events is None:
        return None
    # beside an event there are notes of the service, such as what a guardrail did
    return b"".join(
        event_frame(kind, json.dumps(content).encode()) for kind, content in events.items() if isinstance(content, dict)
    )


def _check(body: Mapping[str, Any]) -> None:
    """Refuse what the API would not have taken: a turn cannot be made of it."""
    for message in body["messages"]:
        if not isinstance(message, dict) or not _is_content(message.get("content")):
            raise ConfigurationError(
                f"messages must be objects whose content is a list of blocks, got {message!r:.100}"
            )
    if not _is_content(body.get("system")):
        raise ConfigurationError(f"system must be a list of blocks, but got {body['system']!r:.100}")
    config = body.get("toolConfig") or {}
    tools = (config.get("tools") or []) if isinstance(config, dict) else None
    if not isinstance(tools, list):
        raise ConfigurationError(f"toolConfig must be an object with a list of tools, but got {config!r:.100}")
    for tool in tools:
        spec = tool.get("toolSpec", {}) if isinstance(tool, dict) else None
        if not isinstance(spec, dict) or not isinstance(_schema(spec), dict):
            raise ConfigurationError(f"tools must be objects with an object as their schema, but got {tool!r:.100}")


def _is_content(content: Any) -> bool:
    if isinstance(content, list):
        return all(isinstance(block, dict) for block in content)
    return content is None or isinstance(content, str)


def _schema(spec: Mapping[str, Any]) -> Any:
    source = spec.get("inputSchema") or {}
    return (source.get("json") or {}) if isinstance(source, dict) else None


def _declaration(tool: Mapping[str, Any]) -> ToolDeclaration | Mapping[str, Any]:
    spec = tool.get("toolSpec")
    if spec is None:
        return tool
    rest = {key: value for key, value in spec.items() if key not in ("name", "description", "inputSchema")}
    schema = {"type": "object", **_schema(spec)}
    return ToolDeclaration(str(spec.get("name")), str(spec.get("description") or ""), schema, rest)


def _blocks(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = message.get("content")
    return [{"text": content}] if isinstance(content, str) else list(content or ())


def _results(messages: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, RecordedResult]]:
    for message in messages:
        for block in _blocks(message):
            result = block.get("toolResult")
            if isinstance(result, Mapping):
                yield str(result.get("toolUseId")), _result(result)


def _result(result: Mapping[str, Any]) -> RecordedResult:
    content = _blocks(result)
    if result.get("status") == "error":
        return RecordedResult(error=_plain(content))
    if len(content) == 1 and content[0].keys() in ({"json"}, {"text"}):
        return RecordedResult(*content[0].values())
    return RecordedResult(content)


def _prompt(messages: Sequence[Mapping[str, Any]]) -> str:
    spoken = (_plain(_blocks(message)) for message in reversed(messages) if message.get("role") == "user")
    return next((text for text in spoken if text), "")


def _plain(blocks: Sequence[Any]) -> str:
    return "\n".join(text for block in blocks if isinstance(block, Mapping) and (text := _text(block)))


def _text(block: Mapping[str, Any]) -> str:
    guarded = block.get("guardContent")
    text = guarded.get("text") if isinstance(guarded, Mapping) else block
    return str(text.get("text") or "") if isinstance(text, Mapping) else ""


def _normal(value: Any) -> Any:
    """A message without what clients write in more than one way: nulls, and cache points, which move on."""
    if isinstance(value, Mapping):
        return {key: _normal(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_normal(item) for item in value if not (isinstance(item, Mapping) and item.keys() == {"cachePoint"})]
    return value
