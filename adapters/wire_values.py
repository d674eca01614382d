"""Values of a provider's JSON, checked as they come, so that nothing that is made of them later can fail."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

__all__ = ("copied", "figure", "mapping", "merge", "parsed_object", "string", "string_or_none")

_MOST = 2**63
_DEEPEST = 250


def parsed_object(raw: str) -> dict[str, Any] | None:
    """The object that the text is, if it can be sent as JSON again: NaN and what overflows to infinity cannot."""
    try:
        value = from_json(raw, allow_inf_nan=False)
        if not isinstance(value, dict):
            return None
        json.dumps(value, allow_nan=False)
    except (RecursionError, ValueError):
        return None
    return value


def merge(
    data: dict[str, Any], delta: Mapping[str, Any], *, kept: tuple[str, ...], whole: tuple[str, ...] = ()
) -> None:
    """
    Fold a delta of a kind that is not known into its block, so that it can be resent whole; types stay.

    Args:
        data: the block.
        delta: what comes for it.
        kept: the fields that a delta does not change.
        whole: the fields that a delta does not say over.
    """
    for key, value in delta.items():
        if key in kept:
            continue
        present = data.get(key)
        if isinstance(present, str) and isinstance(value, str):
            data[key] = present + value
        elif isinstance(present, list) and isinstance(value, list):
            data[key] = [*present, *value]
        elif present is None or (type(present) is type(value) and key not in whole):
            data[key] = value


def string(data: Mapping[str, Any], key: str) -> str:
    """
    A field that must be text.

    Raises:
        TypeError: it is not.
    """
    value = data.get(key)
    if not isinstance(value, str):
        raise TypeError(f"{key} must be a string, but got {value!r:.100}")
    return value


def string_or_none(data: Mapping[str, Any], key: str) -> str | None:
    """
    A field that must be text if it is there.

    Raises:
        TypeError: it is not.
    """
    return None if data.get(key) is None else string(data, key)


def mapping(data: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
    """
    A field that must be an object if it is there.

    Raises:
        TypeError: it is not.
    """
    value = data.get(key)
    if value is None or isinstance(value, Mapping):
        return value
    raise TypeError(f"{key} must be an object, but got {value!r:.100}")


def figure(usage: Mapping[str, Any], key: str) -> None:
    """
    Check that a counter is one, if it is there.

    Raises:
        TypeError: it is not a whole number.
        ValueError: it is negative, or larger than any machine counts.
    """
    value = usage.get(key)
    if value is None:
        return
    if type(value) is not int:
        raise TypeError(f"{key} must be a whole number, but got {value!r:.100}")
    if not 0 <= value < _MOST:
        raise ValueError(f"{key} must be >= 0 and below 2 ** 63, but got {value!r:.100}")


def copied(value: Any, depth: int = 0) -> Any:
    """
    A copy that shares nothing that could be changed, fit to be sent as JSON.

    Raises:
        ValueError: it is nested too deep, or holds a number that is not finite.
    """
    if isinstance(value, str):
        return value
    if depth > _DEEPEST:
        raise ValueError(f"a value must be nested at most {_DEEPEST} deep")
    if isinstance(value, Mapping):
        return {key: copied(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [copied(item, depth + 1) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"a number must be finite, but got {value}")
    return value
