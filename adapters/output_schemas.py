"""The schema of a structured answer as the providers' own ways of it accept it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ("closed_schema", "is_closable")

_TOLD = (
    "exclusiveMaximum", "exclusiveMinimum", "maxItems", "maxLength", "maxProperties", "maximum", "minItems",
    "minLength", "minProperties", "minimum", "multipleOf", "pattern", "uniqueItems",
)  # fmt: skip
"""What constrained decoding does not know; the model is told instead, and the answer is validated anyway."""

_LEFT_OUT = ("dependentRequired", "dependentSchemas", "discriminator", "patternProperties", "propertyNames", "$schema")
_LISTS = ("allOf", "anyOf", "prefixItems")
_MAPS = ("$defs", "definitions", "properties")


def closed_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """
    The schema with every object closed and every constraint that cannot be decoded for told in a description.

    Args:
        schema: JSON Schema of an object; left as it is.

    Source: https://platform.claude.com/docs/en/build-with-claude/structured-outputs#json-schema-limitations and
    https://docs.aws.amazon.com/bedrock/latest/userguide/structured-output.html
    """
    closed: dict[str, Any] = {}
    told: list[str] = []
    for key, value in schema.items():
        if key in _LEFT_OUT:
            continue
        if key in _TOLD:
            told.append(f"{key}: {value}")
        elif key == "oneOf":
            closed["anyOf"] = [_closed(item) for item in value]
        elif key in _LISTS and isinstance(value, list):
            closed[key] = [_closed(item) for item in value]
        elif key in _MAPS and isinstance(value, Mapping):
            closed[key] = {name: _closed(item) for name, item in value.items()}
        elif key == "items":
            closed[key] = _closed(value)
        else:
            closed[key] = value
    if closed.get("type") == "object" or "properties" in closed:
        closed["additionalProperties"] = False
    if told:
        closed["description"] = " ".join(filter(None, (schema.get("description"), f"({', '.join(told)})")))
    return closed


def _closed(schema: Any) -> Any:
    return closed_schema(schema) if isinstance(schema, Mapping) else schema


def is_closable(schema: Any, defined: Mapping[str, Any] | None = None, inside: tuple[str, ...] = ()) -> bool:
    """Whether a schema can be closed and means the same: no object with any keys, and none that holds itself."""
    if isinstance(schema, (list, tuple)):
        return all(is_closable(item, defined, inside) for item in schema)
    if not isinstance(schema, Mapping):
        return True
    if defined is None:
        defined = {
            f"#/{place}/{name}": item
            for place in ("$defs", "definitions")
            for name, item in (schema.get(place) or {}).items()
        }
    reference = schema.get("$ref")
    if reference is not None:
        if reference in inside or reference not in defined:
            return False
        return is_closable(defined[reference], defined, (*inside, reference))
    if schema.get("type") == "object" and (schema.get("additionalProperties") or not schema.get("properties")):
        return False
    if not schema.keys() - {"default", "description", "title"}:
        # anything at all
        return False
    return all(
        is_closable(list(value.values()) if key in _MAPS else value, defined, inside)
        for key, value in schema.items()
        if key in ("allOf", "anyOf", "oneOf", "items", "prefixItems", "properties")
    )
