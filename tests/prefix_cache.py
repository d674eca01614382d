"""A model of a provider's prompt cache: what was marked before is read again where a request begins alike."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

__all__ = ["PrefixCache", "anthropic_blocks", "bedrock_blocks"]

_LOOKBACK = 20


class PrefixCache:
    """
    Counts a request's tokens as the provider does: read from the cache, written to it, or neither.

    An entry is the beginning of a request up to a marker. A marker finds entries that end at most 20 blocks before it.

    Source: https://platform.claude.com/docs/en/build-with-claude/prompt-caching
    """

    def __init__(self) -> None:
        self._entries: set[str] = set()
        self.requests: list[tuple[int, int, int]] = []

    def count(self, blocks: list[tuple[Any, bool]]) -> tuple[int, int, int]:
        """The tokens read, written and counted in full of a request: its blocks, each with whether it is marked."""
        beginnings: list[str] = []
        beginning = ""
        for block, _ in blocks:
            beginning += json.dumps(block, sort_keys=True)
            beginnings.append(beginning)
        marked = [index for index, (_, is_marked) in enumerate(blocks) if is_marked]
        assert len(marked) <= 4, "a request may have four markers at most"
        found = [
            index
            for marker in marked
            for index in range(max(0, marker - _LOOKBACK), marker + 1)
            if beginnings[index] in self._entries
        ]
        read = _tokens(beginnings[max(found)]) if found else 0
        written = _tokens(beginnings[marked[-1]]) - read if marked else 0
        self._entries.update(beginnings[index] for index in marked)
        counted = read, max(0, written), _tokens(beginnings[-1]) - read - max(0, written)
        self.requests.append(counted)
        return counted

    @property
    def share(self) -> float:
        """The share of all input tokens that was read from the cache."""
        read = sum(read for read, *_ in self.requests)
        return read / sum(map(sum, self.requests))


def anthropic_blocks(body: dict[str, Any]) -> list[tuple[Any, bool]]:
    """The blocks of a request of the Messages API, in the order of the cache."""
    return list(_anthropic_blocks(body))


def _anthropic_blocks(body: dict[str, Any]) -> Iterator[tuple[Any, bool]]:
    sections: list[tuple[str, Any]] = [("tools", body.get("tools") or []), ("system", body.get("system") or [])]
    sections += [(message["role"], message["content"]) for message in body["messages"]]
    for name, content in sections:
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block in blocks:
            bare = copy.deepcopy(block)
            marker = bare.pop("cache_control", None)
            if marker is not None:
                assert block.get("type") not in ("thinking", "redacted_thinking")
                assert block.get("type") != "text" or block["text"].strip()
            yield [name, bare], marker is not None


def bedrock_blocks(body: dict[str, Any]) -> list[tuple[Any, bool]]:
    """The blocks of a request of Converse, in which a marker is a block of its own."""
    sections = [("tools", (body.get("toolConfig") or {}).get("tools") or []), ("system", body.get("system") or [])]
    sections += [(message["role"], message["content"]) for message in body["messages"]]
    blocks: list[tuple[Any, bool]] = []
    for name, content in sections:
        for place, block in enumerate(content):
            if "cachePoint" not in block:
                blocks.append(([name, block], False))
                continue
            assert place, "a marker must not stand alone"
            assert "reasoningContent" not in content[place - 1], "a marker must not follow reasoning"
            blocks[-1] = blocks[-1][0], True
    return blocks


def _tokens(text: str) -> int:
    return len(text) // 4
