"""What Vertex takes of a request of the Messages API: an unknown field or beta fails the whole request there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rxloop.errors import ConfigurationError

__all__ = ("check_vertex_fields",)

_FIELDS = frozenset(
    [
        "betas",
        "cache_control",
        "context_management",
        "metadata",
        "output_config",
        "stop_sequences",
        "temperature",
        "thinking",
        "tool_choice",
        "top_k",
        "top_p",
    ]
)
_SDKS_OWN = frozenset(["extra_body", "extra_headers", "extra_query", "timeout"])
"""What goes with a request but is not of it: whoever writes into the body knows what Vertex takes."""

_BETAS = frozenset(
    [
        "compact-2026-01-12",
        "compact-2026-09-04",
        "computer-use-2025-01-24",
        "computer-use-2025-11-24",
        "context-1m-2025-08-07",
        "context-management-2025-06-27",
        "interleaved-thinking-2025-05-14",
        "tool-search-tool-2025-10-19",
        "web-search-2025-03-05",
    ]
)


def check_vertex_fields(fields: Mapping[str, Any]) -> None:
    """
    Check that Vertex knows the fields and betas of a request.

    Raises:
        ConfigurationError: naming the first that it does not.

    Source: https://platform.claude.com/docs/en/build-with-claude/claude-on-vertex-ai,
    https://platform.claude.com/docs/en/build-with-claude/overview, and for the betas
    https://github.com/BerriAI/litellm/blob/main/litellm/anthropic_beta_headers_config.json
    """
    for name in fields:
        if name not in _FIELDS | _SDKS_OWN:
            raise ConfigurationError(
                f"Vertex does not know the field {name!r}, and refuses a request with it: leave it out, or send it all "
                f"the same as extra_body={{{name!r}: …}}"
            )
    betas = fields.get("betas")
    for beta in betas if isinstance(betas, Iterable) and not isinstance(betas, str) else ():
        if beta not in _BETAS:
            raise ConfigurationError(
                f"Vertex does not know the beta {beta!r}, and refuses a request with it: leave it out, or send it all "
                f"the same as extra_headers={{'anthropic-beta': {beta!r}}}"
            )
