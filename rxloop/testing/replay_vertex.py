"""Recordings of Claude on Vertex."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from typing import Any

from rxloop.errors import ConfigurationError
from rxloop.testing.cassette import Interaction
from rxloop.testing.recordings import RecordedRequest
from rxloop.testing.replay_anthropic import AnthropicRecordings

__all__ = ("AnthropicOnVertexRecordings",)

_ADDRESS = re.compile(r"/publishers/anthropic/models/(?P<model>[^/:]+):(?:streamR|r)awPredict$")


class AnthropicOnVertexRecordings(AnthropicRecordings):
    """Reads recordings of ``POST …/publishers/anthropic/models/…:streamRawPredict`` and ``:rawPredict``."""

    def recognise(self, interaction: Interaction) -> bool:
        """Whether it is a request to create a message."""
        return interaction.method.upper() == "POST" and _ADDRESS.search(interaction.path) is not None

    def request(self, interaction: Interaction) -> RecordedRequest:
        """
        Read a request's body, and the model from its address.

        Raises:
            ConfigurationError: it is not a request of this API.
        """
        found = _ADDRESS.search(interaction.path)
        try:
            body = json.loads(interaction.request_body)
        except (RecursionError, ValueError):
            body = None
        if found is None or not isinstance(body, dict):
            raise ConfigurationError("its request body must be a JSON object with messages")
        whole = json.dumps({**body, "model": found["model"]}).encode()
        return super().request(dataclasses.replace(interaction, request_body=whole))

    def _fields(self, fields: dict[str, Any], betas: Sequence[str]) -> dict[str, Any]:
        # what was sent was sent, known to Vertex or not
        sent: dict[str, Any] = {"extra_body": fields}
        return {**sent, "extra_headers": {"anthropic-beta": ",".join(betas)}} if betas else sent

    def _client(self, sdk: Any, http_client: Any) -> Any:
        try:
            import google.auth  # noqa: F401
        except ImportError as error:
            raise ConfigurationError('replaying needs google-auth: pip install "rxloop[vertex]"') from error
        return sdk.AsyncAnthropicVertex(
            access_token="replay",  # noqa: S106
            project_id="replay",
            region="global",
            http_client=http_client,
        )
