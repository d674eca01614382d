"""JSON Schema as the providers accept it: references resolved, keywords reduced."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from rxloop.errors import ConfigurationError

__all__ = ("gemini_schema", "inlined")

_DEEPEST = 64
_MOST_NODES = 20_000
_MOST_ALTERNATIVES = 100
_INT32 = 2**31 - 1

_ONE = ("additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not",
        "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties")  # fmt: skip
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAPS = ("dependencies", "dependentSchemas", "patternProperties", "properties")
# a discriminator maps to references
_LEFT_OUT = ("$defs", "$ref", "definitions", "discriminator")
_ANNOTATIONS = ("default", "deprecated", "description", "example", "examples", "readOnly", "title", "writeOnly")

_PROPERTIES = ("properties", "required", "propertyOrdering", "minProperties", "maxProperties")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_COUNTERS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_IMPLIED = {
    "object": _PROPERTIES,
    "array": ("items", "minItems", "maxItems"),
    "string": ("minLength", "maxLength", "pattern"),
    "number": _BOUNDS,
}
"""What tells the type of a schema that names none."""

_FORMATS = {
    "string": ("date-time", "enum"),
    "integer": ("int32", "int64"),
    "number": ("float", "double"),
}
_TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")
_ANYTHING = ("string", "number", "boolean", "object", "array", "null")
_ELEMENT = {"type": ["string", "number", "boolean", "object", "null"]}


def inlined(schema: Mapping[str, Any], tool_name: str) -> dict[str, Any]:
    """
    The schema without references: each ``$ref`` is replaced by what it points to.

    Keywords beside a ``$ref`` are kept: an annotation replaces the target's, a constraint that the target has too
    becomes an ``allOf`` of both. ``$defs``, ``definitions`` and ``discriminator``, which points into them, are left
    out.

    Args:
        schema: JSON Schema of any draft; left as it is.
        tool_name: the tool's name, for the errors.

    Raises:
        ConfigurationError: a reference leads nowhere or to itself, the schema is not one, or it is too large with its
            references resolved.

    Source: https://json-schema.org/draft/2020-12/json-schema-core#section-8.2.3
    """
    resolved = _Inliner(schema, tool_name).node(schema, (), 0)
    if not isinstance(resolved, dict):
        raise ConfigurationError(f"the schema of tool {tool_name!r} must be an object, but got {resolved!r}")
    return resolved


def gemini_schema(schema: Mapping[str, Any], tool_name: str) -> dict[str, Any]:
    """
    The schema as Gemini accepts it in a function's ``parameters``, which is less than JSON Schema.

    One unknown keyword fails the whole request, so what has no equal there is left out; the tool checks its arguments
    anyway. What is left out only ever admits more: numeric ``enum``, exclusive bounds of type number, which become
    inclusive, ``patternProperties``, ``not`` and so on. Beyond that:

    - Unions become ``anyOf`` with nothing beside it, which Vertex AI asks for: the siblings move into the branches.
      A union with null is ``nullable``.
    - Every node has a type, which both APIs ask for: where none can be told, a union of all types stands for it.
    - An array has ``items``; those of a tuple are the union of its own.
    - A union of whole argument lists becomes one object with the properties of all of them, since ``parameters`` must
      be an object.

    Args:
        schema: JSON Schema of an object, of any draft; left as it is.
        tool_name: the tool's name, for the errors.

    Raises:
        ConfigurationError: as `inlined` does, or the schema is not that of an object, contradicts itself, or asks at
            once for two patterns or formats, or for more than 100 alternatives.

    Source: https://ai.google.dev/api/caching#Schema, google.genai.types.Schema, and for what is refused
    https://github.com/googleapis/python-genai/issues/625, https://github.com/BerriAI/litellm/issues/11164 (siblings of
    any_of), https://github.com/danny-avila/LibreChat/issues/6971 (types), https://github.com/cline/cline/issues/7339
    (items), https://github.com/google-gemini/gemini-cli/issues/3178 (formats),
    https://github.com/diegosouzapw/OmniRoute/pull/760 (enums), https://github.com/Smana/runlore/pull/40 (empty enum
    values), https://github.com/Kilo-Org/kilocode/pull/11955 (required).
    """
    return _Reducer(tool_name).root(inlined(schema, tool_name))


class _Inliner:
    def __init__(self, root: Mapping[str, Any], tool_name: str) -> None:
        self._root = root
        self._tool = tool_name
        self._left = _MOST_NODES

    def node(self, node: Any, trail: tuple[str, ...], depth: int) -> Any:
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST:
            limit = f"{_MOST_NODES} parts" if self._left < 0 else f"{_DEEPEST} levels"
            raise self._error(f"must have at most {limit} with its references resolved, but has more")
        if isinstance(node, bool):
            return node
        if not isinstance(node, Mapping):
            raise self._error(f"must consist of schemas, but got {node!r:.100}")
        for dynamic in ("$dynamicRef", "$recursiveRef"):
            if dynamic in node:
                raise self._error(f"must not be recursive, but has {dynamic!r}")
        siblings = {key: self._value(key, value, trail, depth) for key, value in node.items() if key not in _LEFT_OUT}
        if "$ref" not in node:
            return siblings
        return _beside(self._referred(node["$ref"], trail, depth), siblings)

    def _value(self, key: str, value: Any, trail: tuple[str, ...], depth: int) -> Any:
        listed = isinstance(value, (list, tuple))
        if key in _LISTS or (key in ("items", "additionalItems") and listed):
            if not listed:
                raise self._error(f"must have a list of schemas as {key!r}, but got {value!r:.100}")
            return [self.node(item, trail, depth + 1) for item in value]
        if key in _ONE:
            return self.node(value, trail, depth + 1)
        if key in _MAPS:
            if not isinstance(value, Mapping):
                raise self._error(f"must have a map of schemas as {key!r}, but got {value!r:.100}")
            # a dependency may be a list of names
            return {
                name: list(item)
                if key == "dependencies" and isinstance(item, (list, tuple))
                else self.node(item, trail, depth + 1)
                for name, item in value.items()
            }
        return copy.deepcopy(value)

    def _referred(self, reference: Any, trail: tuple[str, ...], depth: int) -> Any:
        if reference in trail:
            cycle = " → ".join((*trail[trail.index(reference) :], reference))
            raise self._error(f"must not be recursive, but {cycle}")
        return self.node(self._target(reference), (*trail, reference), depth + 1)

    def _target(self, reference: Any) -> Any:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise self._error(f"must refer to its own parts only, but refers to {reference!r}")
        target: Any = self._root
        for part in unquote(reference[1:]).split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, Mapping) and key in target:
                target = target[key]
            elif isinstance(target, (list, tuple)) and key.isdecimal() and int(key) < len(target):
                target = target[int(key)]
            else:
                raise self._error(f"must have what it refers to, but {reference!r} is not there")
        return target

    def _error(self, rule: str) -> ConfigurationError:
        return ConfigurationError(f"the schema of tool {self._tool!r} {rule}")


def _beside(target: Any, siblings: dict[str, Any]) -> Any:
    """What a reference points to, with the keywords beside the reference."""
    if not siblings or target is False:
        return target
    if target is True:
        return siblings
    rules = {key: value for key, value in siblings.items() if key not in _ANNOTATIONS}
    if any(key in target and not _equal(target[key], value) for key, value in rules.items()):
        notes = {key: value for key, value in siblings.items() if key in _ANNOTATIONS}
        return {**notes, "allOf": [target, rules]}
    return {**target, **siblings}


class _Reducer:
    """
    Reduces in two passes over each node: into alternatives without combinators, and those into one node a type.
    """

    def __init__(self, tool_name: str) -> None:
        self._tool = tool_name
        self._left = _MOST_NODES

    def root(self, schema: dict[str, Any]) -> dict[str, Any]:
        found = self._alternatives(schema, ())
        objects = [item for item in found if "object" in item.get("type", ("object",))]
        if not objects:
            raise self._error("must describe an object", f"got {schema.get('type')!r}" if found else "nothing fits it")
        whole = {**(objects[0] if len(objects) == 1 else _widened(objects, schema)), "type": ("object",)}
        return self._emitted([whole], ())

    def reduced(self, schema: Any, path: tuple[str, ...]) -> dict[str, Any] | None:
        """The node of a schema, or ``None`` if it is literally false."""
        found = self._alternatives(schema, path)
        if found:
            return self._emitted(found, path)
        if _false(schema):
            return None
        raise self._error("must not contradict itself", f"nothing fits {_place(path)}")

    def _alternatives(self, schema: Any, path: tuple[str, ...]) -> list[dict[str, Any]]:
        if schema is True:
            return [{}]
        if _false(schema):
            return []
        found = [_plain(schema)]
        for part in schema.get("allOf", ()):
            found = self._product(found, self._alternatives(part, path), path)
        for key in ("anyOf", "oneOf"):
            if schema.get(key):
                branches = [item for branch in schema[key] for item in self._alternatives(branch, path)]
                union = sum(item.get("type") != ("null",) for item in branches) > 1
                found = self._product(found, branches, path, union=union)
        if schema.get("nullable") is True:
            found.append({"type": ("null",)})
        return found

    def _product(
        self, left: list[dict[str, Any]], right: list[dict[str, Any]], path: tuple[str, ...], *, union: bool = False
    ) -> list[dict[str, Any]]:
        if len(left) * len(right) > _MOST_ALTERNATIVES:
            raise self._error(f"must have at most {_MOST_ALTERNATIVES} alternatives", f"{_place(path)} has more")
        both = (self._both(one, other, path, union) for one in left for other in right)
        return [item for item in both if item is not None]

    def _both(
        self, one: dict[str, Any], other: dict[str, Any], path: tuple[str, ...], union: bool
    ) -> dict[str, Any] | None:
        """What fits both, or ``None`` if nothing does."""
        merged = {**other, **one}
        for key in one.keys() & other.keys():
            if key in _MERGED:
                merged[key] = _MERGED[key](one[key], other[key])
            elif key in ("pattern", "format") and one[key] != other[key]:
                raise self._error(
                    f"must ask for one {key} at a time",
                    f"{_place(path)} asks for {one[key]!r} and {other[key]!r}",
                )
        if union:
            # the branches are told apart by their own words
            merged.pop("title", None)
            if "title" in other:
                merged["title"] = other["title"]
            words = dict.fromkeys(item["description"] for item in (one, other) if "description" in item)
            if words:
                merged["description"] = "\n".join(words)
        return None if () in (merged.get("type"), merged.get("enum")) else merged

    def _emitted(self, found: list[dict[str, Any]], path: tuple[str, ...]) -> dict[str, Any]:
        nodes: list[dict[str, Any]] = []
        nullable = False
        for item in found:
            types = item.get("type") or _implied(item)
            if not types:
                types, item = _ANYTHING, {**item, "items": _ELEMENT}
            nullable = nullable or "null" in types
            for node in self._typed([kind for kind in types if kind != "null"], item, path):
                if node not in nodes:
                    nodes.append(node)
        if not nodes:
            # a type of its own for null is not accepted everywhere
            notes = next((item for item in found if "description" in item), {})
            nodes = [{"type": "string", **{key: notes[key] for key in ("title", "description") if key in notes}}]
        if nullable:
            nodes = [_ordered({**node, "nullable": True}) for node in nodes]
        return nodes[0] if len(nodes) == 1 else {"anyOf": nodes}

    def _typed(self, types: list[str], item: dict[str, Any], path: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        values = item.get("enum", ())
        # a list of values of none of the types is somebody's mistake, and says nothing
        meant = [kind for kind in types if any(_is(kind, value) for value in values)] or types
        for kind in meant:
            self._left -= 1
            if self._left < 0:
                raise self._error(f"must have at most {_MOST_NODES} parts", "has more with its unions written out")
            yield self._node(kind, item, path)

    def _node(self, kind: str, item: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        node: dict[str, Any] = {"type": kind, **{key: item[key] for key in ("title", "description") if key in item}}
        node |= {key: item[key] for key in ("default", "example") if key in item and _is(kind, item[key])}
        if kind == "string":
            values = dict.fromkeys(value for value in item.get("enum", ()) if isinstance(value, str))
            # an empty value is refused, and without it the list would forbid what the tool allows
            if values and all(values):
                node["enum"] = list(values)
            node |= {key: item[key] for key in ("minLength", "maxLength", "pattern") if key in item}
        elif kind in ("integer", "number"):
            node |= _bounds(kind, item)
        elif kind == "array":
            node |= {key: item[key] for key in ("minItems", "maxItems") if key in item}
            node["items"] = self.reduced(item.get("items", {}), (*path, "items")) or self.reduced({}, path)
        elif kind == "object":
            node |= self._object(item, path)
        known = item.get("format")
        if known in _FORMATS.get(kind, ()) and (known != "enum" or "enum" in node):
            node["format"] = known
        return _ordered(node)

    def _object(self, item: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        node: dict[str, Any] = {key: item[key] for key in ("minProperties", "maxProperties") if key in item}
        properties = {name: self.reduced(part, (*path, name)) for name, part in item.get("properties", {}).items()}
        # an empty map is refused, a missing one is not
        if kept := {name: part for name, part in properties.items() if part is not None}:
            node["properties"] = kept
            if required := [name for name in item.get("required", ()) if name in kept]:
                node["required"] = required
            if "propertyOrdering" in item:
                known = [name for name in item["propertyOrdering"] if name in kept]
                node["propertyOrdering"] = list(dict.fromkeys([*known, *kept]))
        return node

    def _error(self, rule: str, found: str) -> ConfigurationError:
        return ConfigurationError(f"the schema of tool {self._tool!r} {rule}, but {found}")


def _place(path: tuple[str, ...]) -> str:
    return repr(".".join(map(str, path))) if path else "its root"


def _false(schema: Any) -> bool:
    return schema is False or (schema is not True and schema.get("not") in ({}, True))


def _plain(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a node's own keywords, in one form for all drafts."""
    plain: dict[str, Any] = {
        key: schema[key]
        for key in ("title", "description", "pattern")
        if schema.get(key) and _is("string", schema[key])
    }
    plain |= {key: schema[key] for key in ("default", "example") if schema.get(key) is not None}
    if any(schema.get("format") in known for known in _FORMATS.values()):
        plain["format"] = schema["format"]
    if types := _types(schema.get("type")):
        plain["type"] = types
    if "const" in schema:
        plain["enum"] = (schema["const"],)
    elif schema.get("enum") and isinstance(schema["enum"], (list, tuple)):
        plain["enum"] = tuple(schema["enum"])
    plain |= {key: count for key in _COUNTERS if (count := _counter(schema.get(key))) is not None}
    plain |= {key: limit for key in _BOUNDS if (limit := _number(schema.get(key))) is not None}
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        # a flag of the bound in draft 4
        if schema.get(exclusive) is True and bound in plain:
            plain[exclusive] = plain.pop(bound)
    if "properties" in schema:
        plain["properties"] = schema["properties"]
    for key in ("required", "propertyOrdering"):
        if isinstance(schema.get(key), (list, tuple)):
            plain[key] = tuple(dict.fromkeys(name for name in schema[key] if isinstance(name, str)))
    if (items := _items(schema)) is not None:
        plain["items"] = items
    return plain


def _types(declared: Any) -> tuple[str, ...]:
    names = [declared] if isinstance(declared, str) else declared if isinstance(declared, (list, tuple)) else []
    lower = [name.lower() for name in names if isinstance(name, str)]
    known = tuple(dict.fromkeys(name for name in lower if name in _TYPES))
    return tuple(name for name in known if name != "integer" or "number" not in known)


def _items(schema: Mapping[str, Any]) -> Any:
    """The schema of any element; a tuple's positions are lost, its elements' schemas are not."""
    items = schema.get("items")
    first, rest = schema.get("prefixItems"), items
    if isinstance(items, list):
        first, rest = items, schema.get("additionalItems")
    if not first:
        return None if isinstance(items, (bool, list)) else items
    parts = [part for part in (*first, *([rest] if isinstance(rest, dict) else [])) if part is not False]
    distinct = [part for index, part in enumerate(parts) if not any(_equal(part, one) for one in parts[:index])]
    return distinct[0] if len(distinct) == 1 else {"anyOf": distinct} if distinct else None


def _implied(item: Mapping[str, Any]) -> tuple[str, ...]:
    if "enum" in item:
        kinds = (next((kind for kind in _BY_VALUE if _is(kind, value)), "object") for value in item["enum"])
        return tuple(dict.fromkeys(kinds))
    implied = tuple(kind for kind, keys in _IMPLIED.items() if any(key in item for key in keys))
    return implied or tuple(kind for kind, known in _FORMATS.items() if item.get("format") in known)


_BY_VALUE = ("null", "boolean", "integer", "number", "string", "array", "object")


def _is(kind: str, value: Any) -> bool:
    """Whether a JSON value has a JSON type."""
    match kind:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return _number(value) is not None and value == math.floor(value)
        case "number":
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        case "array":
            return isinstance(value, (list, tuple))
        case "null":
            return value is None
        case _:
            return isinstance(value, Mapping)


def _number(value: Any) -> int | float | None:
    """The value, if it is a number that the wire's double holds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:
        return None


def _counter(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number == int(number) and 0 <= number <= _INT32 else None


def _bounds(kind: str, item: Mapping[str, Any]) -> dict[str, int | float]:
    low = {key: item[key] for key in ("minimum", "exclusiveMinimum") if key in item}
    high = {key: item[key] for key in ("maximum", "exclusiveMaximum") if key in item}
    if kind == "integer":
        # the next whole number is the same bound, inclusive
        low = {key: math.ceil(low[key]) if key == "minimum" else math.floor(low[key]) + 1 for key in low}
        high = {key: math.floor(high[key]) if key == "maximum" else math.ceil(high[key]) - 1 for key in high}
    bounds = {"minimum": max(low.values(), default=None), "maximum": min(high.values(), default=None)}
    return {
        key: bound
        for key, bound in bounds.items()
        if bound is not None and (kind == "number" or -_INT32 - 1 <= bound <= _INT32)
    }


def _equal(one: Any, other: Any) -> bool:
    """Equality of JSON values, in which true is not 1."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _both_types(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    both = {kind for kind in one if kind in other}
    if "number" not in both and {"number", "integer"} <= {*one, *other}:
        # every integer is a number
        both.add("integer")
    return tuple(kind for kind in _TYPES if kind in both)


def _both_schemas(one: Any, other: Any) -> Any:
    return one if _equal(one, other) else {"allOf": [one, other]}


def _both_maps(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    shared = {name: _both_schemas(part, other[name]) for name, part in one.items() if name in other}
    return {**one, **other, **shared}


def _joined(one: Sequence[str], other: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*one, *other)))


_MERGED: dict[str, Callable[[Any, Any], Any]] = {
    "type": _both_types,
    "enum": lambda one, other: tuple(value for value in one if any(_equal(value, item) for item in other)),
    "properties": _both_maps,
    "items": _both_schemas,
    "required": _joined,
    "propertyOrdering": _joined,
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minItems", "minLength", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxItems", "maxLength", "maxProperties"), min),
}
"""How two rules become the one that says both; of other keywords the first stays."""


def _widened(objects: Iterable[dict[str, Any]], schema: Mapping[str, Any]) -> dict[str, Any]:
    """One object that admits what each of the objects does."""
    declared: dict[str, list[Any]] = {}
    required: list[Sequence[str]] = []
    for item in objects:
        required.append(item.get("required", ()))
        for name, part in item.get("properties", {}).items():
            parts = declared.setdefault(name, [])
            if not any(_equal(part, one) for one in parts):
                parts.append(part)
    properties = {name: parts[0] if len(parts) == 1 else {"anyOf": parts} for name, parts in declared.items()}
    always = [name for name in required[0] if all(name in names for names in required)]
    own = _plain(schema)
    notes: dict[str, Any] = {key: own[key] for key in ("title", "description") if key in own}
    return {**notes, "properties": properties, "required": always}


_ORDER = (
    "type", "format", "title", "description", "nullable", "default", "example", "enum", "pattern", "minLength",
    "maxLength", "minimum", "maximum", "minItems", "maxItems", "items", "minProperties", "maxProperties", "properties",
    "required", "propertyOrdering",
)  # fmt: skip


def _ordered(node: Mapping[str, Any]) -> dict[str, Any]:
    return {key: node[key] for key in _ORDER if key in node}
