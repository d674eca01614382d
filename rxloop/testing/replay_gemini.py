"""Recordings of the Gemini API, from AI Studio and from Vertex."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rxloop.adapters.base import Adapter
from rxloop.adapters.gemini import GeminiAdapter, camel_keys
from rxloop.adapters.gemini_decoder import GeminiBytesDecoder, GeminiDecoder
from rxloop.errors import ConfigurationError
from rxloop.testing.cassette import Interaction
from rxloop.testing.recordings import RecordedReply, RecordedRequest, RecordedResult
from rxloop.tools import ToolDeclaration

__all__ = ("GeminiRecordings",)

_ADDRESS = re.compile(r"/models/(?P<model>[^/:]+):(?:streamG|g)enerateContent$")
_TURNS_OWN = ("contents", "systemInstruction", "tools", "model")


class GeminiRecordings:
    """Reads recordings of ``POST …/models/…:streamGenerateContent`` and ``:generateContent``, whatever the host."""

    provider = GeminiAdapter.provider

    def recognise(self, interaction: Interaction) -> bool:
        """Whether it is a request for content."""
        return interaction.method.upper() == "POST" and _ADDRESS.search(interaction.path) is not None

    def request(self, interaction: Interaction) -> RecordedRequest:
        """
        Read a request's body.

        Raises:
            ConfigurationError: it is not a request of this API.
        """
        try:
            body = camel_keys(json.loads(interaction.request_body))
        except ValueError:
            body = None
        if not isinstance(body, dict) or not isinstance(body.get("contents"), list):
            raise ConfigurationError(
                "its request body must be a JSON object with contents; recorded without one, it cannot be replayed"
            )
        found = _ADDRESS.search(interaction.path)
        system = body.get("systemInstruction")
        return RecordedRequest(
            model=found["model"] if found else "",
            messages=body["contents"],
            system=system.get("parts") if isinstance(system, Mapping) else system,
            tools=_declarations(body.get("tools") or ()),
            body=body,
            prompt=_prompt(body["contents"]),
            address=interaction.uri,
        )

    def reply(self, interaction: Interaction) -> RecordedReply:
        """Read a response with the adapter's own decoder."""
        if interaction.status >= 400:
            return RecordedReply(failed=True)
        decoder = GeminiDecoder()
        whole = GeminiBytesDecoder(decoder)
        content = False
        try:
            for _ in whole.feed(interaction.body):
                content = True
            whole.close()
        except Exception:  # whatever it is, the replay itself will meet it again
            return RecordedReply(failed=not content, broken=content)
        reply = decoder.draft()
        if reply.malformed:
            return RecordedReply(resume=True)
        if reply.finish_reason == "error":
            # its calls are not run, so that what followed is another turn
            return RecordedReply()
        parts = (reply.message or {}).get("parts", ())
        return RecordedReply(
            call_ids=frozenset(_keys([part["functionCall"] for part in parts if "functionCall" in part]))
        )

    def continued(
        self, earlier: RecordedRequest, reply: RecordedReply, later: RecordedRequest
    ) -> Mapping[str, RecordedResult] | None:
        """The function responses in what `later` has after `earlier` and a reply to it."""
        known = len(earlier.messages)
        if len(later.messages) <= known or not (reply.call_ids or reply.resume):
            return None
        if [_parts(content) for content in later.messages[:known]] != [_parts(item) for item in earlier.messages]:
            return None
        answer, *rest = later.messages[known:]
        if reply.resume:
            # a corrective step: nothing but a word to the model follows
            return None if any(content.get("role") == "model" for content in (answer, *rest)) else {}
        if answer.get("role") != "model" or any(content.get("role") == "model" for content in rest):
            return None
        responses = [
            part["functionResponse"] for content in rest for part in _parts(content) if "functionResponse" in part
        ]
        if not responses:
            return None
        return dict(zip(_keys(responses), map(_result, responses), strict=True))

    def adapter(self, request: RecordedRequest, response: Callable[[], Interaction]) -> Adapter:
        """
        A `GeminiAdapter` over the SDK, with everything that the recorded request said.

        Raises:
            ConfigurationError: the SDK is not installed.
        """
        try:
            import httpx2
            from google import genai
            from google.oauth2.credentials import Credentials
        except ImportError as error:
            raise ConfigurationError('replaying needs the google-genai SDK: pip install "rxloop[google]"') from error

        class Recorded(httpx2.AsyncBaseTransport):
            async def handle_async_request(self, request: Any) -> Any:
                interaction = response()
                return httpx2.Response(
                    interaction.status,
                    headers=list(interaction.headers.items()),
                    stream=httpx2.ByteStream(interaction.body),
                )

        # a client of its own: nothing of the environment, no proxy either, leads back to the network
        options: Any = {"httpx_async_client": httpx2.AsyncClient(transport=Recorded(), trust_env=False)}
        if "/projects/" in request.address or "aiplatform" in request.address:
            credentials = Credentials(token="replay")  # type: ignore[no-untyped-call]  # noqa: S106
            client = genai.Client(
                vertexai=True, project="recorded", location="global", credentials=credentials, http_options=options
            )
        else:
            client = genai.Client(api_key="replay", http_options=options)
        fields = {key: value for key, value in request.body.items() if key not in _TURNS_OWN}
        return GeminiAdapter(client, model=request.model, **fields)


def _keys(calls: Sequence[Mapping[str, Any]]) -> list[str]:
    """How calls and their responses find each other: by id where there is one, or else by place."""
    return [str(call["id"]) if call.get("id") else f"#{place}" for place, call in enumerate(calls)]


def _result(response: Mapping[str, Any]) -> RecordedResult:
    answer = response.get("response")
    if isinstance(answer, Mapping):
        if answer.keys() == {"error"}:
            return RecordedResult(error=str(answer["error"]))
        for key in ("output", "result"):
            if answer.keys() == {key}:
                return RecordedResult(answer[key])
    return RecordedResult(answer)


def _declarations(tools: Sequence[Any]) -> list[ToolDeclaration | Mapping[str, Any]]:
    declared: list[ToolDeclaration | Mapping[str, Any]] = []
    for tool in tools:
        rest = {key: value for key, value in tool.items() if key != "functionDeclarations"}
        if rest:
            declared.append(rest)
        for function in tool.get("functionDeclarations") or ():
            schema = function.get("parameters") or function.get("parametersJsonSchema") or {}
            lowered = {**schema, "type": str(schema.get("type") or "object").lower()}
            declared.append(ToolDeclaration(str(function.get("name")), str(function.get("description") or ""), lowered))
    return declared


def _parts(content: Mapping[str, Any]) -> list[Any]:
    return [part for part in content.get("parts") or () if isinstance(part, Mapping)]


def _prompt(contents: Sequence[Mapping[str, Any]]) -> str:
    spoken = (content for content in reversed(contents) if content.get("role") != "model")
    texts = ("\n".join(str(part["text"]) for part in _parts(content) if part.get("text")) for content in spoken)
    return next((text for text in texts if text), "")
