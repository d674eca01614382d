"""Recordings of models on SageMaker endpoints."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from rxloop.adapters.aws_frames import FrameDecoder
from rxloop.adapters.base import Adapter
from rxloop.adapters.sagemaker import AutoPayload, SageMakerAdapter
from rxloop.errors import ConfigurationError
from rxloop.testing.cassette import Interaction
from rxloop.testing.frames import event_frame
from rxloop.testing.recorded_aws import recorded_client
from rxloop.testing.recordings import RecordedReply, RecordedRequest, RecordedResult

__all__ = ("SageMakerRecordings",)

_ADDRESS = re.compile(r"/endpoints/(?P<model>[^/]+)/invocations(?P<streams>-response-stream)?/?$")


class SageMakerRecordings:
    """
    Reads recordings of ``POST …/endpoints/…/invocations-response-stream`` and ``/invocations``, whatever the host.

    A request's body is the container's, so that it is sent again as it was, and shown as far as it is understood. The
    reply is read with `AutoPayload`.
    """

    provider = SageMakerAdapter.provider

    def recognise(self, interaction: Interaction) -> bool:
        """Whether it is a request to an endpoint."""
        return interaction.method.upper() == "POST" and _ADDRESS.search(interaction.path) is not None

    def request(self, interaction: Interaction) -> RecordedRequest:
        """
        Read a request's body.

        Raises:
            ConfigurationError: there is none.
        """
        if not interaction.request_body.strip():
            raise ConfigurationError("it must have a request body; recorded without one, it cannot be replayed")
        found = _ADDRESS.search(interaction.path)
        try:
            body = json.loads(interaction.request_body)
        except (RecursionError, ValueError):
            body = None
        messages = _messages(body, interaction.request_body)
        system = [message["content"] for message in messages if message["role"] == "system"]
        spoken = [message for message in messages if message["role"] != "system"]
        return RecordedRequest(
            model=unquote(found["model"]) if found else "",
            messages=spoken,
            system="\n\n".join(system) or None,
            body={"Body": interaction.request_body},
            prompt=next((message["content"] for message in reversed(spoken) if message["role"] == "user"), ""),
        )

    def reply(self, interaction: Interaction) -> RecordedReply:
        """Read a response as the adapter does."""
        if interaction.status >= 400:
            return RecordedReply(failed=True)
        content = False
        try:
            for _ in _decoded(_streamed(interaction).body):
                content = True
        except Exception:  # whatever it is, the replay itself will meet it again
            return RecordedReply(failed=not content, broken=content)
        return RecordedReply()

    def continued(
        self, earlier: RecordedRequest, reply: RecordedReply, later: RecordedRequest
    ) -> Mapping[str, RecordedResult] | None:
        """Nothing goes on from a reply: there are no tools."""
        return None

    def adapter(self, request: RecordedRequest, response: Callable[[], Interaction]) -> Adapter:
        """
        A `SageMakerAdapter` over the SDK, which sends the recorded body.

        Raises:
            ConfigurationError: the SDK is not installed.
        """
        client = recorded_client("sagemaker-runtime", lambda: _streamed(response()))
        body: bytes = request.body["Body"]
        return SageMakerAdapter(client, model=request.model, body=lambda *_: body)


def _streamed(interaction: Interaction) -> Interaction:
    """The same with a reply that was streamed: a whole one is one part of its payload."""
    found = _ADDRESS.search(interaction.path)
    if interaction.status >= 400 or found is None or found["streams"]:
        return interaction
    return dataclasses.replace(interaction, body=event_frame("PayloadPart", interaction.body))


def _decoded(body: bytes) -> Iterable[str]:
    payload, frames = AutoPayload(), FrameDecoder(SageMakerAdapter.provider)
    for heading, part in frames.feed(body):
        if heading.kind != "event":
            raise ValueError(f"a frame must be an event, but got {heading.kind} {heading.name}")
        if heading.name == "PayloadPart":
            yield from payload.feed(part)
    yield from payload.close()


def _messages(body: Any, raw: bytes) -> list[dict[str, str]]:
    """What was said, as far as a body of the common formats tells; the whole body otherwise."""
    if isinstance(body, Mapping):
        messages = body.get("messages")
        if isinstance(messages, list) and messages and all(isinstance(message, Mapping) for message in messages):
            return [
                {"role": str(message.get("role")), "content": _text(message.get("content"))} for message in messages
            ]
        for name in ("inputs", "prompt"):
            if isinstance(body.get(name), str):
                return [{"role": "user", "content": body[name]}]
    return [{"role": "user", "content": raw.decode(errors="replace")}]


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part["text"]) for part in content if isinstance(part, Mapping) and part.get("text"))
    return "" if content is None else str(content)
