"""The schema of a structured answer as the providers' own ways of it accept it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from rxloop.errors import ConfigurationError

__all__ = ("check_closable", "closed_schema", "gemini_output_schema", "is_closable")

_DEFINITIONS = ("$defs", "definitions")
_LISTS = ("allOf", "anyOf", "oneOf")
_MAPS = (*_DEFINITIONS, "properties")
_DECODED = frozenset(
    (*_DEFINITIONS, *_LISTS, "$ref", "const", "default", "description", "enum", "items", "properties", "required",
     "title", "type")
)  # fmt: skip
"""What constrained decoding knows. Of the rest the model is told, and the answer is validated anyway."""

_MIN_ITEMS = (("minItems", 0), ("minItems", 1))
_FORMATS = ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid")
_LEFT_OUT = frozenset(
    ("$comment", "$id", "$schema", "additionalProperties", "deprecated", "discriminator", "examples", "readOnly",
     "writeOnly")
)  # fmt: skip
"""What says nothing about a value, or is said by the objects' being closed."""

_SHAPING = ("$ref", *_LISTS, "const", "enum", "type")
_NOT_TOLD = (
    "$dynamicRef", "additionalItems", "contains", "dependentRequired", "dependentSchemas", "else", "if", "not",
    "patternProperties", "prefixItems", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
"""What a closed schema would not admit any more, or a model would not understand in a sentence."""


def closed_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """
    The schema with every object closed and every constraint that cannot be decoded for told in a description.

    Nothing stands beside a reference: what did is told where the reference is used.

    Args:
        schema: JSON Schema of an object; left as it is.

    Source: https://platform.claude.com/docs/en/build-with-claude/structured-outputs#json-schema-limitations and
    https://docs.aws.amazon.com/bedrock/latest/userguide/structured-output.html
    """

    def closed(node: Any) -> Any:
        if not isinstance(node, Mapping):
            return node
        if "$ref" in node:
            return _reference(node, closed)
        kept: dict[str, Any] = {}
        told: list[str] = []
        for key, value in node.items():
            if key == "oneOf":
                kept["anyOf"] = value
            elif key in _DECODED or (key, value) in _MIN_ITEMS or (key == "format" and value in _FORMATS):
                kept[key] = value
            elif key not in _LEFT_OUT:
                told.append(f"{key}: {_json(value)}")
        kept = _with_parts(kept, closed)
        if node.get("type") == "object" or "properties" in node:
            kept["additionalProperties"] = False
        return _with_told(kept, [*told, *_beside_references(node)])

    whole: dict[str, Any] = closed(schema)
    return whole


def gemini_output_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """
    The schema with nothing beside a reference, and with a constant as a list of one value.

    What else Gemini does not know it ignores. What was beside a reference is told where the reference is used.

    Args:
        schema: JSON Schema of an object; left as it is.

    Source: https://ai.google.dev/api/generate-content#FIELDS.response_json_schema
    """

    def accepted(node: Any) -> Any:
        if not isinstance(node, Mapping):
            return node
        if "$ref" in node:
            return _reference(node, accepted)
        kept = {key: value for key, value in node.items() if key != "const"}
        if isinstance(node.get("const"), (str, int, float)) and not isinstance(node["const"], bool):
            kept["enum"] = [node["const"]]
        return _with_told(_with_parts(kept, accepted), _beside_references(node))

    whole: dict[str, Any] = accepted(schema)
    return whole


def check_closable(schema: Mapping[str, Any]) -> None:
    """
    Check that a schema can be closed and means the same.

    Raises:
        ConfigurationError: it cannot; the message says where, and why.
    """
    obstacle = _obstacle(schema)
    if obstacle is not None:
        raise ConfigurationError(
            "output in the mode 'native' must have a schema that the provider's structured output can express, "
            f"but {obstacle}; the modes 'auto', 'cooperative' and 'coercive' take it"
        )


def is_closable(schema: Mapping[str, Any]) -> bool:
    """
    Whether a schema can be closed and means the same.

    That is: no object with any keys or of several parts, no value of any kind, none that holds itself, and no keyword
    that cannot be told.
    """
    return _obstacle(schema) is None


def _obstacle(schema: Mapping[str, Any]) -> str | None:
    """What keeps a schema from being closed, and where."""
    defined = _defined(schema)
    leads: dict[str, set[str]] = {"#": set()}
    # a list and not recursion, and each definition once: models refer to one another many times
    waiting: list[tuple[Any, str, str]] = [(schema, "the answer", "#")]
    while waiting:
        node, place, inside = waiting.pop()
        found = _own_obstacle(node)
        if found is not None:
            return f"{place} {found}"
        reference = node.get("$ref")
        if reference is not None:
            if reference not in defined:
                return f"{place} refers to {reference!r}, which is not one of the definitions"
            leads[inside].add(reference)
            if reference not in leads:
                leads[reference] = set()
                waiting.append((defined[reference], reference, reference))
        waiting += [(part, _place(place, name), inside) for name, part in _parts(node)]
    try:
        TopologicalSorter(leads).prepare()
    except CycleError as error:
        return f"{error.args[1][0]} holds itself"
    return None


def _own_obstacle(node: Any) -> str | None:
    """What keeps a node from being closed, its parts left aside."""
    if not isinstance(node, Mapping):
        return "may be anything at all" if node else "may be nothing"
    unknown = [key for key in _NOT_TOLD if key in node]
    if unknown:
        return f"has {unknown[0]!r}"
    shaping = [key for key in _SHAPING if key in node]
    if not shaping:
        return "may be of any type"
    combining = [key for key in ("$ref", *_LISTS) if key in node]
    # each part is closed by itself, and then admits nothing of what the others ask for
    beside = [key for key in (*combining[1:], "items", "properties", "required") if combining and key in node]
    if beside:
        return f"has {beside[0]!r} beside {combining[0]!r}"
    if len(node.get("allOf", ())) > 1:
        return "has an 'allOf' of several parts"
    if any(isinstance(part, Mapping) and "$ref" in part for part in node.get("allOf", ())):
        return "has a reference in 'allOf'"
    kinds = node.get("type")
    kinds = kinds if isinstance(kinds, (list, tuple)) else (kinds,)
    if "object" in kinds:
        names = node.get("properties") or {}
        if not names or node.get("additionalProperties", False) is not False:
            return "is an object with any keys"
        if not names.keys() >= set(node.get("required", ())) or node.get("minProperties", 0) > len(names):
            return "is an object that asks for more than its 'properties'"
    if "array" in kinds and "items" not in node:
        return "is an array of anything"
    if any(isinstance(value, (Mapping, list, tuple)) for value in (*node.get("enum", ()), node.get("const"))):
        return "has an object or an array as a constant"
    return None


def _parts(node: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas that a node consists of, with the names of those that have one."""
    yield from node.get("properties", {}).items()
    for key in _LISTS:
        yield from (("", part) for part in node.get(key, ()))
    if "items" in node:
        yield "items", node["items"]


def _place(place: str, name: str) -> str:
    if not name:
        return place
    return f"{place}.{name}" if place != "the answer" else name


def _defined(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What a schema's references may lead to."""
    return {f"#/{place}/{name}": item for place in _DEFINITIONS for name, item in (schema.get(place) or {}).items()}


def _reference(node: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """A reference with nothing beside it but definitions."""
    return _with_parts({key: value for key, value in node.items() if key in ("$ref", *_DEFINITIONS)}, change)


def _beside_references(node: Mapping[str, Any]) -> list[str]:
    """In words, what stands beside the references that a node has as parts: their targets may be large."""
    told: list[str] = []
    for name, part in _parts(node):
        if not isinstance(part, Mapping) or "$ref" not in part:
            continue
        words = [str(part["description"])] if part.get("description") else []
        words += [
            f"{key}: {_json(value)}"
            for key, value in part.items()
            if key not in ("$ref", "description", "title", *_DEFINITIONS, *_LEFT_OUT)
        ]
        if words:
            told.append(": ".join(filter(None, (name, ", ".join(words)))))
    return told


def _with_told(node: dict[str, Any], told: Sequence[str]) -> dict[str, Any]:
    """The node with this in its description."""
    if told:
        node["description"] = " ".join(filter(None, (node.get("description"), f"({', '.join(told)})")))
    return node


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _with_parts(node: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """The node with the schemas in it changed."""
    changed = dict(node)
    for key, value in node.items():
        if key in _MAPS and isinstance(value, Mapping):
            changed[key] = {name: change(item) for name, item in value.items()}
        elif key in (*_LISTS, "prefixItems") and isinstance(value, list):
            changed[key] = [change(item) for item in value]
        elif key == "items":
            changed[key] = change(value)
    return changed
