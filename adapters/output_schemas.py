"""The schema of a structured answer as the providers' own ways of it accept it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ("closed_schema", "gemini_output_schema", "is_closable")

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

_Inside = tuple[str, ...]


def closed_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """
    The schema with every object closed and every constraint that cannot be decoded for told in a description.

    Nothing stands beside a reference: where something did, the target takes its place.

    Args:
        schema: JSON Schema of an object; left as it is.

    Source: https://platform.claude.com/docs/en/build-with-claude/structured-outputs#json-schema-limitations and
    https://docs.aws.amazon.com/bedrock/latest/userguide/structured-output.html
    """
    defined = _defined(schema)

    def closed(node: Any, inside: _Inside = ()) -> Any:
        if not isinstance(node, Mapping):
            return node
        node, inside = _alone(node, defined, inside)
        kept: dict[str, Any] = {}
        told: list[str] = []
        for key, value in node.items():
            if key == "oneOf":
                kept["anyOf"] = value
            elif key in _DECODED or (key, value) in _MIN_ITEMS or (key == "format" and value in _FORMATS):
                kept[key] = value
            elif key not in _LEFT_OUT:
                told.append(f"{key}: {json.dumps(value, ensure_ascii=False, default=str)}")
        kept = _with_parts(kept, lambda part: closed(part, inside))
        if node.get("type") == "object" or "properties" in node:
            kept["additionalProperties"] = False
        if told:
            kept["description"] = " ".join(filter(None, (node.get("description"), f"({', '.join(told)})")))
        return kept

    whole: dict[str, Any] = closed(schema)
    return whole


def gemini_output_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """
    The schema with nothing beside a reference, and with a constant as a list of one value.

    What else Gemini does not know it ignores. Where the target of a reference cannot take its place, since it would
    hold itself, what is beside the reference goes.

    Args:
        schema: JSON Schema of an object; left as it is.

    Source: https://ai.google.dev/api/generate-content#FIELDS.response_json_schema
    """
    defined = _defined(schema)

    def accepted(node: Any, inside: _Inside = ()) -> Any:
        if not isinstance(node, Mapping):
            return node
        node, inside = _alone(node, defined, inside)
        kept = {key: value for key, value in node.items() if key != "const"}
        if isinstance(node.get("const"), (str, int, float)) and not isinstance(node["const"], bool):
            kept["enum"] = [node["const"]]
        return _with_parts(kept, lambda part: accepted(part, inside))

    whole: dict[str, Any] = accepted(schema)
    return whole


def is_closable(schema: Mapping[str, Any]) -> bool:
    """
    Whether a schema can be closed and means the same.

    That is: no object with any keys, no value of any kind, none that holds itself, and no keyword that cannot be told.
    """
    return _is_closable(schema, _defined(schema), ())


def _is_closable(schema: Any, defined: Mapping[str, Any], inside: _Inside) -> bool:
    if not isinstance(schema, Mapping):
        # anything at all, or nothing
        return False
    reference = schema.get("$ref")
    if reference is not None:
        if reference in inside or reference not in defined:
            return False
        if not _is_closable(defined[reference], defined, (*inside, reference)):
            return False
    if not any(key in schema for key in _SHAPING) or any(key in schema for key in _NOT_TOLD):
        return False
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, (list, tuple)) else (kinds,)
    if "object" in kinds and (schema.get("additionalProperties") or not schema.get("properties")):
        return False
    if "array" in kinds and "items" not in schema:
        return False
    if any(isinstance(value, (Mapping, list, tuple)) for value in (*schema.get("enum", ()), schema.get("const"))):
        return False
    if sum(key in schema for key in _LISTS) > 1 or any("$ref" in part for part in schema.get("allOf", ())):
        return False
    parts = [*schema.get("properties", {}).values(), *(part for key in _LISTS for part in schema.get(key, ()))]
    parts += [schema["items"]] if "items" in schema else []
    return all(_is_closable(part, defined, inside) for part in parts)


def _defined(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What a schema's references may lead to."""
    return {f"#/{place}/{name}": item for place in _DEFINITIONS for name, item in (schema.get(place) or {}).items()}


def _alone(node: Mapping[str, Any], defined: Mapping[str, Any], inside: _Inside) -> tuple[Mapping[str, Any], _Inside]:
    """A node with nothing beside its reference, and the references whose targets have taken their place."""
    while (reference := node.get("$ref")) is not None:
        beside = {key: value for key, value in node.items() if key != "$ref" and key not in _DEFINITIONS}
        definitions = {key: node[key] for key in _DEFINITIONS if key in node}
        if not beside:
            break
        if reference in inside or not isinstance(defined.get(reference), Mapping):
            return {**definitions, "$ref": reference}, inside
        node, inside = {**definitions, **defined[reference], **beside}, (*inside, reference)
    return node, inside


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
