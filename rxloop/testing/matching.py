"""Which recorded request another one is, and what is different in it: pure functions over method, address and body."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from rxloop.testing.cassette import ID_KINDS

__all__ = ("ComparedRequest", "compared", "difference", "most_similar", "normalised")

_ID = re.compile(
    rf"\b(?:(?P<kind>{ID_KINDS})_(?:bdrk_|vrtx_)?[A-Za-z0-9]{{16,}}|(?P<use>tooluse)_[\w-]{{16,}}"
    r"|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b"
)
"""Identifiers as a provider or a caller makes them, digests of them included."""

_BLOB = re.compile(r"[A-Za-z0-9+/_=-]{200,}")
_MARKER = "cache_control"
_POINT = "cachePoint"
_TEXTS = ("content", "system")
"""Where Anthropic's API takes a text in place of a list of one text block, which a text has to become to be marked."""

_WIDTH = 100
_MOST_LINES = 120


@dataclass(frozen=True)
class ComparedRequest:
    """
    What of a request is compared: two are the same request where these are equal.

    Args:
        method: the HTTP method.
        host: of the address, without a port.
        path: of the address, without the query.
        body: the body's canonical form, as one line of text.
        lines: the same for people, a line each.
    """

    method: str
    host: str
    path: str
    body: str
    lines: tuple[str, ...] = field(compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.method} {self.host}{self.path}"


def compared(method: str, uri: str, body: bytes | str | None, *, ignore: Sequence[str] = ()) -> ComparedRequest:
    """
    Take from a request what is compared.

    Args:
        method: the HTTP method.
        uri: the whole address; its port and query are not compared.
        body: as it was sent, uncompressed.
        ignore: paths of the JSON body that are not compared, see `normalised`.
    """
    address = urlsplit(uri)
    value = normalised(body, ignore=ignore)
    # half of a surrogate pair cannot be printed
    lines = tuple(line.encode("utf-8", "backslashreplace").decode() for line in _lines(value))
    canonical = json.dumps(value, sort_keys=True)
    return ComparedRequest(method.upper(), address.hostname or "", address.path or "/", canonical, lines)


def normalised(body: bytes | str | None, *, ignore: Sequence[str] = ()) -> Any:
    """
    A body's meaning: JSON without what may differ from run to run, a form's fields in order, or else its text.

    The order of keys and the way in which a number is written mean nothing. Markers of a prompt cache are left out, and
    a text that had to become a block to carry one is a text again. Each identifier becomes its kind and a number in
    order of appearance, so that a result still belongs to its call.

    Args:
        body: as it was sent, uncompressed.
        ignore: paths that are left out, as ``metadata.user_id``. Parts are separated by dots; a number is a place in a
            list, and ``*`` any key or place. What has nothing else in it is left out too.
    """
    data = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body or b""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"<{len(data)} bytes, {hashlib.sha256(data).hexdigest()}>"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        form = parse_qsl(text) if re.fullmatch(r"[\w.~%+*-]+=[^\s{}\"<>]*", text) else None
        return _numbered(sorted(map(list, form)) if form else text or None, {})
    for path in ignore:
        _remove(value, path.split("."))
    return _numbered(_plain(value), {})


def most_similar(request: ComparedRequest, recorded: Sequence[ComparedRequest]) -> int | None:
    """The place of the recorded request that has most in common with another, the first of several; None for none."""
    if not recorded:
        return None
    return max(range(len(recorded)), key=lambda place: (_likeness(request, recorded[place]), -place))


def difference(request: ComparedRequest, recorded: ComparedRequest, *, name: str = "recorded") -> str:
    """
    What is different in a request, as a unified diff.

    Args:
        request: as it was sent.
        recorded: what it is compared with, which has the lines with ``-``.
        name: what that is called.
    """
    before, after = ([str(item), *item.lines] for item in (recorded, request))
    lines = list(difflib.unified_diff(before, after, name, "sent", lineterm=""))
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"… and {len(lines) - _MOST_LINES} more lines"]
    return "\n".join(lines)


def _likeness(request: ComparedRequest, recorded: ComparedRequest) -> tuple[int, float]:
    same = sum((request.method == recorded.method, request.host == recorded.host, request.path == recorded.path))
    shared = Counter(request.lines) & Counter(recorded.lines)
    return same, 2 * shared.total() / max(1, len(request.lines) + len(recorded.lines))


def _remove(value: Any, path: Sequence[str]) -> None:
    """Take what a path leads to out of a value, and what is left empty by it."""
    part, *rest = path
    keys: list[Any] = []
    if isinstance(value, dict):
        keys = list(value) if part == "*" else [part] if part in value else []
    elif isinstance(value, list):
        places = range(len(value)) if part == "*" else [int(part)] if part.isdecimal() else []
        # from behind, so that the others keep their places
        keys = [place for place in reversed(places) if place < len(value)]
    for key in keys:
        if rest:
            empty = value[key] in ({}, [])
            _remove(value[key], rest)
            if empty or value[key] not in ({}, []):
                continue
        del value[key]


def _plain(value: Any) -> Any:
    """A JSON value without markers, and with one form for what means the same."""
    if isinstance(value, dict):
        plain = {key: _plain(item) for key, item in value.items() if key != _MARKER or not _is_marker(item)}
        for key in _TEXTS:
            match plain.get(key):
                case [{"type": "text", "text": str(text), **other}] if not other:
                    plain[key] = text
        return plain
    if isinstance(value, list):
        return [_plain(item) for item in value if not (isinstance(item, dict) and item.keys() == {_POINT})]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _is_marker(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and "type" in value)


def _numbered(value: Any, seen: dict[str, str]) -> Any:
    """A value with its identifiers replaced by their order; keys are gone through in order, whatever theirs was."""
    if isinstance(value, dict):
        return {key: _numbered(value[key], seen) for key in sorted(value)}
    if isinstance(value, list):
        return [_numbered(item, seen) for item in value]
    if not isinstance(value, str):
        return value

    def number(found: re.Match[str]) -> str:
        kind = found["kind"] or found["use"] or "uuid"
        if found[0] not in seen:
            seen[found[0]] = f"<{kind} {1 + sum(name.startswith(f'<{kind} ') for name in seen.values())}>"
        return seen[found[0]]

    return _ID.sub(number, value)


def _lines(value: Any, indent: int = 0, before: str = "") -> Iterator[str]:
    """
    JSON for people: long texts are wrapped, and what is no text but data has its size and a digest.

    There are no commas, so that a line stays the same when others follow it.
    """
    margin = " " * indent
    if isinstance(value, dict) and value:
        yield f"{margin}{before}{{"
        for key, item in value.items():
            yield from _lines(item, indent + 2, f"{json.dumps(key, ensure_ascii=False)}: ")
        yield f"{margin}}}"
    elif isinstance(value, list) and value:
        yield f"{margin}{before}["
        for item in value:
            yield from _lines(item, indent + 2)
        yield f"{margin}]"
    elif isinstance(value, str) and (len(value) > _WIDTH or "\n" in value):
        pieces = [
            json.dumps(piece, ensure_ascii=False)
            for line in _BLOB.sub(_described, value).splitlines(keepends=True)
            for piece in textwrap.wrap(line, _WIDTH, drop_whitespace=False, replace_whitespace=False) or [line]
        ]
        yield f"{margin}{before}{pieces[0]}"
        yield from (f"{margin}    {piece}" for piece in pieces[1:])
    else:
        yield f"{margin}{before}{json.dumps(value, ensure_ascii=False)}"


def _described(found: re.Match[str]) -> str:
    digest = hashlib.sha256(found[0].encode()).hexdigest()[:8]
    return f"<{len(found[0])} characters of data, {digest}>"
