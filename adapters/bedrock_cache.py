"""Markers of the prompt cache in a request of Bedrock's Converse API, where each is a block of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from rxloop.adapters.cache_points import Block, Lifetime, lifetime_of, marker, plan_cache_points

__all__ = ("takes_cache_points", "with_cache_points")

_CLAUDE = re.compile(r"anthropic\.claude-(?:3-7|3-5-haiku|3-5-sonnet-20241022|[a-z]+-\d)")
_NOVA = re.compile(r"amazon\.nova-")
_FIT = ("text", "toolResult", "toolUse", "guardContent")
"""The blocks that a marker may follow: after reasoning it is refused, and after a document it has been."""


def takes_cache_points(model: str) -> bool:
    """
    Whether the model is known to take them.

    Source: https://docs.aws.amazon.com/bedrock/latest/userguide/prompt-caching.html
    """
    return bool(_CLAUDE.search(model) or _NOVA.search(model))


def with_cache_points(request: Mapping[str, Any], lifetime: Lifetime, model: str) -> dict[str, Any]:
    """
    The request with the markers that the planner chose; what it was made of stays as it is.

    Args:
        request: the body.
        lifetime: of the markers that are added.
        model: Nova takes none among its tools.

    Source: https://docs.aws.amazon.com/bedrock/latest/userguide/prompt-caching.html
    """
    config = request.get("toolConfig") or {}
    tools, system = list(config.get("tools") or ()), list(request.get("system") or ())
    messages = [list(message["content"]) for message in request["messages"]]
    plan = plan_cache_points(
        _seen(tools, "toolSpec" if not _NOVA.search(model) else ""),
        _seen(system, *_FIT),
        [_seen(blocks, *_FIT) for blocks in messages],
        lifetime=lifetime,
        users=[message.get("role") == "user" for message in request["messages"]],
    )
    marked = dict(request)
    if plan.tool is not None:
        marked["toolConfig"] = {**config, "tools": _marked(tools, *plan.tool)}
    if plan.system is not None:
        marked["system"] = _marked(system, *plan.system)
    if plan.messages:
        whole = list(request["messages"])
        for (index, place), chosen in plan.messages.items():
            whole[index] = {**whole[index], "content": _marked(messages[index], place, chosen)}
        marked["messages"] = whole
    return marked


def _seen(blocks: Iterable[Any], *fit: str) -> list[Block]:
    return [Block(isinstance(block, Mapping) and not block.keys().isdisjoint(fit), _mark_of(block)) for block in blocks]


def _mark_of(block: Any) -> Lifetime | None:
    return lifetime_of(block.get("cachePoint")) if isinstance(block, Mapping) else None


def _marked(blocks: list[Any], place: int, lifetime: Lifetime) -> list[Any]:
    return [*blocks[: place + 1], {"cachePoint": marker("default", lifetime)}, *blocks[place + 1 :]]
