"""Recordings of the Messages API."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rxloop.adapters.anthropic import AnthropicAdapter
from rxloop.adapters.anthropic_decoder import AnthropicBytesDecoder, AnthropicDecoder
from rxloop.adapters.base import Adapter
from rxloop.errors import ConfigurationError
from rxloop.testing.cassette import Interaction
from rxloop.testing.recordings import RecordedReply, RecordedRequest, RecordedResult
from rxloop.tools import ToolDeclaration

__all__ = ("AnthropicRecordings",)

_TURNS_OWN = ("model", "messages", "system", "tools", "stream", "max_tokens")
_WAITING = ("retry-after", "retry-after-ms")


class AnthropicRecordings:
    """Reads recordings of ``POST …/v1/messages``, whatever the host."""

    provider = AnthropicAdapter.provider

    def recognise(self, interaction: Interaction) -> bool:
        """Whether it is a request to create a message."""
        return interaction.method.upper() == "POST" and interaction.path.rstrip("/").endswith("/v1/messages")

    def request(self, interaction: Interaction) -> RecordedRequest:
        """
        Read a request's body.

        Raises:
            ConfigurationError: it is not a request of this API.
        """
        try:
            body = json.loads(interaction.request_body)
        except (RecursionError, ValueError):
            body = None
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or not body.get("model"):
            raise ConfigurationError(
                "its request body must be a JSON object with model and messages; recorded without one, "
                "it cannot be replayed"
            )
        _check(body)
        betas = interaction.request_headers.get("anthropic-beta", "")
        return RecordedRequest(
            model=body["model"],
            messages=body["messages"],
            system=body.get("system"),
            tools=[_declaration(tool) for tool in body.get("tools") or ()],
            body=body,
            prompt=_prompt(body["messages"]),
            betas=tuple(name.strip() for name in betas.split(",") if name.strip()),
        )

    def reply(self, interaction: Interaction) -> RecordedReply:
        """Read a response with the adapter's own decoder."""
        if interaction.status >= 400:
            return RecordedReply(failed=True)
        decoder = AnthropicDecoder()
        content = False
        try:
            for _ in self._decoded(interaction, decoder):
                content = True
        except Exception:  # whatever it is, the replay itself will meet it again
            return RecordedReply(failed=not content, broken=content)
        result = decoder.draft()
        return RecordedReply(resume=result.resume, call_ids=frozenset(call.call_id for call in result.tool_calls))

    def continued(
        self, earlier: RecordedRequest, reply: RecordedReply, later: RecordedRequest
    ) -> Mapping[str, RecordedResult] | None:
        """The tool results in what `later` has after `earlier` and a reply to it."""
        known = len(earlier.messages)
        if len(later.messages) <= known:
            return None
        if [_normal(message) for message in later.messages[:known]] != [_normal(item) for item in earlier.messages]:
            return None
        answer, *rest = later.messages[known:]
        if answer.get("role") != "assistant" or any(message.get("role") != "user" for message in rest):
            return None
        results = dict(_results(rest))
        if results:
            return results
        return {} if reply.resume and not rest else None

    def adapter(self, request: RecordedRequest, response: Callable[[], Interaction]) -> Adapter:
        """
        An `AnthropicAdapter` over the SDK, with everything that the recorded request said.

        Raises:
            ConfigurationError: the SDK is not installed.
        """
        try:
            import anthropic
            import httpx2
        except ImportError as error:
            raise ConfigurationError('replaying needs the anthropic SDK: pip install "rxloop[anthropic]"') from error

        class Recorded(httpx2.AsyncBaseTransport):
            async def handle_async_request(self, request: Any) -> Any:
                interaction = response()
                headers = {"content-type": _content_type(interaction.body), **interaction.headers}
                return httpx2.Response(
                    interaction.status, headers=list(headers.items()), stream=httpx2.ByteStream(interaction.body)
                )

        # a client of its own: nothing of the environment, no proxy either, leads back to the network
        client = self._client(anthropic, httpx2.AsyncClient(transport=Recorded(), trust_env=False))
        fields = self._fields(
            {key: value for key, value in request.body.items() if key not in _TURNS_OWN}, request.betas
        )
        most = request.body.get("max_tokens")
        if isinstance(most, int) and most >= 1:
            fields["max_tokens"] = most
        # the markers of the prompt cache are those of the recording
        return AnthropicAdapter(client, model=request.model, cache=None, **fields)

    def _decoded(self, interaction: Interaction, decoder: AnthropicDecoder) -> Iterable[Any]:
        if _media_type(interaction) != "application/json":
            whole = AnthropicBytesDecoder(decoder)
            yield from whole.feed(interaction.body)
            whole.close()
            return
        message = json.loads(interaction.body)
        if message.get("type") == "message":
            yield from decoder.feed({"type": "message_start", "message": message})
            yield from decoder.feed({"type": "message_stop"})
        else:
            yield from decoder.feed(message)
        decoder.close()

    def _fields(self, fields: dict[str, Any], betas: Sequence[str]) -> dict[str, Any]:
        """What an adapter is given of a recorded request, beside what is the turn's."""
        return {**fields, "betas": list(betas)} if betas else fields

    def _client(self, sdk: Any, http_client: Any) -> Any:
        return sdk.AsyncAnthropic(api_key="replay", base_url="https://api.anthropic.com", http_client=http_client)


def _media_type(interaction: Interaction) -> str:
    kind = interaction.headers.get("content-type") or _content_type(interaction.body)
    return kind.partition(";")[0].strip().lower()


def _content_type(body: bytes) -> str:
    """What a response is that was recorded without saying so."""
    return "application/json" if body.lstrip()[:1] in (b"{", b"[") else "text/event-stream"


def _check(body: Mapping[str, Any]) -> None:
    """Refuse what the API would not have taken: a turn cannot be made of it."""
    if not isinstance(body["model"], str):
        raise ConfigurationError(f"model must be a string, but got {body['model']!r:.100}")
    for message in body["messages"]:
        if not isinstance(message, dict) or not _is_content(message.get("content")):
            raise ConfigurationError(
                f"messages must be objects whose content is text or a list of blocks, but got {message!r:.100}"
            )
    if not _is_content(body.get("system")):
        raise ConfigurationError(f"system must be text or a list of blocks, but got {body['system']!r:.100}")
    tools = body.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise ConfigurationError(f"tools must be a list, but got {tools!r:.100}")
    for tool in tools or ():
        if not isinstance(tool, dict) or not isinstance(tool.get("input_schema") or {}, dict):
            raise ConfigurationError(f"tools must be objects with an object as input_schema, but got {tool!r:.100}")


def _is_content(content: Any) -> bool:
    if isinstance(content, list):
        return all(isinstance(block, dict) for block in content)
    return content is None or isinstance(content, str)


def _declaration(tool: Mapping[str, Any]) -> ToolDeclaration | Mapping[str, Any]:
    if tool.get("type") not in (None, "custom"):
        return tool
    rest = {key: value for key, value in tool.items() if key not in ("name", "description", "input_schema")}
    schema = {"type": "object", **(tool.get("input_schema") or {})}
    return ToolDeclaration(str(tool.get("name")), str(tool.get("description") or ""), schema, rest)


def _results(messages: Sequence[Mapping[str, Any]]) -> Iterable[tuple[str, RecordedResult]]:
    for message in messages:
        content = message.get("content")
        for block in content if isinstance(content, list) else ():
            if isinstance(block, Mapping) and block.get("type") == "tool_result":
                output = block.get("content")
                yield (
                    str(block.get("tool_use_id")),
                    RecordedResult(error=_plain(output)) if block.get("is_error") else RecordedResult(output),
                )


def _prompt(messages: Sequence[Mapping[str, Any]]) -> str:
    spoken = (message.get("content") for message in reversed(messages) if message.get("role") == "user")
    return next((text for text in map(_plain, spoken) if text), "")


def _plain(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(block["text"]) for block in content if isinstance(block, Mapping) and block.get("text"))
    return "" if content is None else str(content)


def _normal(value: Any) -> Any:
    """A message without what clients write in more than one way: text as a block, nulls, cache markers."""
    if isinstance(value, Mapping):
        normal = {key: _normal(item) for key, item in value.items() if item is not None and key != "cache_control"}
        if isinstance(normal.get("content"), str):
            normal["content"] = [{"type": "text", "text": normal["content"]}]
        return normal
    if isinstance(value, list):
        return [_normal(item) for item in value]
    return value
