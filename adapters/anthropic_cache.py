"""Markers of the prompt cache in a request of the Messages API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rxloop.adapters.cache_points import Block, Lifetime, lifetime_of, marker, plan_cache_points

__all__ = ("with_cache_points",)

_BARRED = ("thinking", "redacted_thinking", "compaction")


def with_cache_points(request: Mapping[str, Any], lifetime: Lifetime) -> dict[str, Any]:
    """
    The request with the markers that the planner chose; what it was made of stays as it is.

    Args:
        request: the keywords of the SDK's ``create``.
        lifetime: of the markers that are added.

    Source: https://platform.claude.com/docs/en/build-with-claude/prompt-caching
    """
    tools, system = list(request.get("tools") or ()), _blocks_of(request.get("system"))
    messages = [_blocks_of(message["content"]) for message in request["messages"]]
    plan = plan_cache_points(
        _seen(tools),
        _seen(system),
        [_seen(blocks) for blocks in messages],
        lifetime=lifetime,
        users=[message.get("role") == "user" for message in request["messages"]],
    )
    marked = dict(request)
    if plan.tool is not None:
        marked["tools"] = _marked(tools, *plan.tool)
    if plan.system is not None:
        marked["system"] = _marked(system, *plan.system)
    if plan.messages:
        whole = list(request["messages"])
        for (index, place), chosen in plan.messages.items():
            whole[index] = {**whole[index], "content": _marked(messages[index], place, chosen)}
        marked["messages"] = whole
    return marked


def _blocks_of(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return list(content or ())


def _seen(blocks: Iterable[Any]) -> list[Block]:
    return [Block(_is_fit(block), _mark_of(block), _inner_of(block)) for block in blocks]


def _inner_of(block: Any) -> tuple[Lifetime, ...]:
    content = block.get("content") if isinstance(block, Mapping) else None
    if not isinstance(content, (list, tuple)):
        return ()
    return tuple(mark for item in content if (mark := _mark_of(item)) is not None)


def _is_fit(block: Any) -> bool:
    if not isinstance(block, Mapping) or block.get("type") in _BARRED or block.get("defer_loading"):
        return False
    return block.get("type") != "text" or bool(str(block.get("text") or "").strip())


def _mark_of(block: Any) -> Lifetime | None:
    return lifetime_of(block.get("cache_control")) if isinstance(block, Mapping) else None


def _marked(blocks: list[Any], place: int, lifetime: Lifetime) -> list[Any]:
    marked = {**blocks[place], "cache_control": marker("ephemeral", lifetime)}
    return [*blocks[:place], marked, *blocks[place + 1 :]]
