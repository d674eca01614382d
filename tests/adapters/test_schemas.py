"""JSON Schema, resolved and reduced."""

from __future__ import annotations

import contextlib
import copy
import datetime as dt
import decimal
import enum
import json
import uuid
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, Optional

import pytest
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from rxloop.adapters.schemas import gemini_schema, inlined
from rxloop.errors import ConfigurationError
from rxloop.tools import tool

ACCEPTED = {field.alias or name for name, field in types.Schema.model_fields.items()} - {
    "additionalProperties", "defs", "ref",
}  # fmt: skip

STRING = {"type": "string"}
INTEGER = {"type": "integer"}
NULL = {"type": "null"}

ANY_ELEMENT = [{"type": kind, "nullable": True} for kind in ("string", "number", "boolean", "object")]
ANYTHING = {"anyOf": [*ANY_ELEMENT, {"type": "array", "nullable": True, "items": {"anyOf": ANY_ELEMENT}}]}


def objects(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def reduced(schema: Any, **root: Any) -> Any:
    """The schema as it becomes as a parameter's."""
    whole = gemini_schema({**objects(x=schema), **root}, "t")
    check(whole)
    return whole.get("properties", {}).get("x")


def nodes(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    for part in (*schema.get("anyOf", ()), *schema.get("properties", {}).values()):
        yield from nodes(part)
    if "items" in schema:
        yield from nodes(schema["items"])


def check(schema: dict[str, Any]) -> None:
    """Everything that the API is known to refuse is absent."""
    assert schema["type"] == "object"
    for node in nodes(schema):
        assert set(node) <= ACCEPTED, node
        if "anyOf" in node:
            assert set(node) == {"anyOf"}
            assert len(node["anyOf"]) > 1
            continue
        kind = node["type"]
        assert kind in ("string", "number", "integer", "boolean", "array", "object")
        assert ("items" in node) == (kind == "array")
        assert kind == "object" or not {"properties", "required", "propertyOrdering"} & set(node)
        assert node.get("properties") != {}
        assert set(node.get("required", ())) <= set(node.get("properties", ()))
        assert kind == "string" or "enum" not in node
        assert all(value and isinstance(value, str) for value in node.get("enum", ["a"]))
        assert node.get("format", "enum") in ("float", "double", "int32", "int64", "enum", "date-time")
        if kind == "integer":
            assert all(-(2**31) <= node.get(key, 0) < 2**31 for key in ("minimum", "maximum"))
    types.Schema.model_validate(schema)
    json.dumps(schema)


# references


def test_references_are_replaced() -> None:
    schema = {
        "$defs": {"A": {"type": "string"}, "B": {"type": "array", "items": {"$ref": "#/$defs/A"}}},
        "definitions": {"a/b~c": {"type": "integer"}, "ü %": {"const": 1}},
        **objects(
            b={"$ref": "#/$defs/B"},
            odd={"$ref": "#/definitions/a~1b~0c"},
            escaped={"$ref": "#/definitions/%C3%BC%20%25"},
            other={"$ref": "#/$defs/B/items"},
            listed={"$ref": "#/allOf/0"},
        ),
        "allOf": ({"minProperties": 1},),
    }
    before = copy.deepcopy(schema)
    assert inlined(schema, "t") == {
        **objects(
            b={"type": "array", "items": {"type": "string"}},
            odd={"type": "integer"},
            escaped={"const": 1},
            other={"type": "string"},
            listed={"minProperties": 1},
        ),
        "allOf": [{"minProperties": 1}],
    }
    assert schema == before


def test_a_referred_root() -> None:
    model = objects(a={"type": "string"})
    assert inlined({"$ref": "#/$defs/M", "$defs": {"M": model}}, "t") == model


def test_nested_definitions() -> None:
    schema = objects(
        a={"$defs": {"In": {"type": "string"}}, "items": {"$ref": "#/properties/a/$defs/In"}, "type": "array"}
    )
    assert inlined(schema, "t") == objects(a={"type": "array", "items": {"type": "string"}})


def test_what_stands_beside_a_reference() -> None:
    def beside(**siblings: Any) -> Any:
        target = {"type": "string", "description": "a name", "minLength": 1}
        schema = {**objects(x={"$ref": "#/$defs/S", **siblings}), "$defs": {"S": target, "yes": True, "no": False}}
        return inlined(schema, "t")["properties"]["x"]

    assert beside(description="mine") == {"type": "string", "description": "mine", "minLength": 1}
    assert beside(maxLength=3, minLength=1) == {
        "type": "string", "description": "a name", "minLength": 1, "maxLength": 3,
    }  # fmt: skip
    assert beside(minLength=2, default="ab") == {
        "default": "ab",
        "allOf": [{"type": "string", "description": "a name", "minLength": 1}, {"minLength": 2}],
    }
    schema = {"$defs": {"yes": True, "no": False}}
    for name, expected in (("yes", {"title": "x"}), ("no", False)):
        given = {**schema, **objects(x={"$ref": f"#/$defs/{name}", "title": "x"})}
        assert inlined(given, "t")["properties"]["x"] == expected


def test_keywords_are_told_from_names_and_data() -> None:
    """A parameter may be called ``$ref``, and a default may look like a reference."""
    schema = objects(
        **{"$ref": {"type": "string"}, "$defs": {"type": "integer"}, "discriminator": {"type": "boolean"}},
        data={"default": {"$ref": "#/nowhere"}, "enum": [{"$ref": "x"}], "const": {"$defs": 1}},
    )
    assert inlined(schema, "t") == schema
    assert set(gemini_schema(schema, "t")["properties"]) == {"$ref", "$defs", "discriminator", "data"}


def test_references_are_found_wherever_a_schema_is() -> None:
    reference = {"$ref": "#/$defs/S"}
    schema: dict[str, Any] = {
        "$defs": {"S": {"type": "string"}},
        "items": [reference],
        "additionalItems": reference,
        "prefixItems": [reference],
        "if": reference,
        "additionalProperties": reference,
        "patternProperties": {"x": reference},
        "dependencies": {"a": ["b"], "b": reference},
        "not": {"anyOf": [reference, True]},
    }
    resolved = inlined(schema, "t")
    assert "$ref" not in json.dumps(resolved)
    assert resolved["dependencies"] == {"a": ["b"], "b": {"type": "string"}}
    assert resolved["not"] == {"anyOf": [{"type": "string"}, True]}


@pytest.mark.parametrize(
    ("schema", "cycle"),
    [
        ({"$ref": "#"}, "# → #"),
        (objects(next={"$ref": "#"}), "# → #"),
        (
            {**objects(n={"$ref": "#/$defs/N"}), "$defs": {"N": objects(next={"$ref": "#/$defs/N"})}},
            "#/$defs/N → #/$defs/N",
        ),
        (
            {
                **objects(a={"$ref": "#/$defs/A"}),
                "$defs": {"A": {"items": {"$ref": "#/$defs/B"}}, "B": objects(a={"$ref": "#/$defs/A"})},
            },
            "#/$defs/A → #/$defs/B → #/$defs/A",
        ),
    ],
)
@pytest.mark.parametrize("convert", [inlined, gemini_schema])
def test_a_recursive_schema_is_refused(convert: Callable[..., Any], schema: dict[str, Any], cycle: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"schema of tool 'walk' must not be recursive, but {cycle}".replace("$", r"\$")
    ):
        convert(schema, "walk")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"$ref": "#/$defs/A"}, r"must have what it refers to, but '#/\$defs/A' is not there"),
        ({"$ref": "#/allOf/1", "allOf": [{}]}, "'#/allOf/1' is not there"),
        ({"$ref": "https://example.org/a.json"}, "must refer to its own parts only, but refers to 'https:"),
        ({"$ref": "#anchor"}, "must refer to its own parts only"),
        ({"$ref": 3}, "must refer to its own parts only"),
        ({"$recursiveRef": "#"}, r"must not be recursive, but has '\$recursiveRef'"),
        (objects(a="string"), "must consist of schemas, but got 'string'"),
        ({"properties": ["a"]}, r"must have a map of schemas as 'properties', but got \['a'\]"),
        ({"anyOf": {"type": "string"}}, "must have a list of schemas as 'anyOf'"),
        (True, "must be an object, but got True"),
    ],
)
def test_what_is_no_schema_is_refused(schema: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"the schema of tool 't' .*{message}"):
        inlined(schema, "t")


def test_a_schema_that_explodes_is_refused() -> None:
    twice = {
        f"L{level}": objects(a={"$ref": f"#/$defs/L{level + 1}"}, b={"$ref": f"#/$defs/L{level + 1}"})
        for level in range(30)
    }
    with pytest.raises(ConfigurationError, match="tool 't' must have at most 20000 parts"):
        inlined({"$ref": "#/$defs/L0", "$defs": {**twice, "L30": {}}}, "t")
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"items": deep}
    with pytest.raises(ConfigurationError, match="tool 't' must have at most 64 levels"):
        inlined(deep, "t")


# one node


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        # what is unknown goes, what is known stays
        (
            {**STRING, "$schema": "x", "$id": "y", "$comment": "z", "examples": ["a"], "readOnly": True, "x-own": 1},
            STRING,
        ),
        (
            {**STRING, "pattern": "^a", "maxLength": 9, "minLength": 1, "default": "a", "title": "T"},
            {**STRING, "title": "T", "default": "a", "pattern": "^a", "minLength": 1, "maxLength": 9},
        ),
        (
            {**STRING, "example": "a", "description": "d"},
            {**STRING, "description": "d", "example": "a"},
        ),
        ({"type": "STRING"}, STRING),
        ({"type": "string", "description": "", "title": 3, "pattern": 4, "default": 5}, STRING),
        ({"type": "integer", "minLength": 1, "properties": {"a": {}}, "items": {}}, INTEGER),
        ({"type": "string", "default": None}, STRING),
        # formats
        ({"type": "string", "format": "date-time"}, {"type": "string", "format": "date-time"}),
        ({"type": "string", "format": "uuid"}, STRING),
        ({"type": "string", "format": "int32"}, STRING),
        ({"type": "string", "format": "enum"}, STRING),
        ({"type": "string", "format": "enum", "enum": ["a"]}, {"type": "string", "format": "enum", "enum": ["a"]}),
        ({"type": "integer", "format": "int64"}, {"type": "integer", "format": "int64"}),
        ({"type": "number", "format": "double"}, {"type": "number", "format": "double"}),
        ({"type": "string", "format": ["uuid"]}, STRING),
        # values
        ({"type": "string", "enum": ["b", "a", "b"]}, {"type": "string", "enum": ["b", "a"]}),
        ({"enum": ["a"]}, {"type": "string", "enum": ["a"]}),
        ({"type": "string", "enum": ["", "a"]}, STRING),
        ({"type": "string", "enum": []}, STRING),
        ({"type": "integer", "enum": [1, 2]}, INTEGER),
        ({"type": "integer", "enum": ["1", "2"]}, INTEGER),
        ({"enum": [1, 2]}, INTEGER),
        ({"enum": [1, 2.5]}, {"anyOf": [INTEGER, {"type": "number"}]}),
        ({"type": "number", "enum": [1, 2.5]}, {"type": "number"}),
        ({"enum": [True]}, {"type": "boolean"}),
        ({"enum": ["a", None]}, {"type": "string", "nullable": True, "enum": ["a"]}),
        ({"type": ["string", "null"], "enum": ["a"]}, {"type": "string", "nullable": True, "enum": ["a"]}),
        ({"type": "string", "nullable": True, "enum": ["a"]}, {"type": "string", "nullable": True, "enum": ["a"]}),
        ({"enum": ["a", 1]}, {"anyOf": [{"type": "string", "enum": ["a"]}, INTEGER]}),
        ({"type": ["string", "integer"], "enum": ["a", "b"]}, {"type": "string", "enum": ["a", "b"]}),
        ({"const": "a"}, {"type": "string", "enum": ["a"]}),
        ({"const": "a", "type": "string", "default": "a"}, {"type": "string", "default": "a", "enum": ["a"]}),
        ({"const": 1}, INTEGER),
        ({"const": False, "type": "boolean"}, {"type": "boolean"}),
        # bounds
        ({"type": "integer", "minimum": 1, "maximum": 10}, {"type": "integer", "minimum": 1, "maximum": 10}),
        ({**INTEGER, "exclusiveMinimum": 0, "exclusiveMaximum": 9}, {**INTEGER, "minimum": 1, "maximum": 8}),
        ({**INTEGER, "exclusiveMinimum": 0.5, "exclusiveMaximum": 8.5}, {**INTEGER, "minimum": 1, "maximum": 8}),
        ({"type": "integer", "minimum": 0.5, "maximum": 8.5}, {"type": "integer", "minimum": 1, "maximum": 8}),
        ({"type": "integer", "minimum": 0, "exclusiveMinimum": 5}, {"type": "integer", "minimum": 6}),
        ({"type": "integer", "minimum": 7, "exclusiveMinimum": 5}, {"type": "integer", "minimum": 7}),
        ({"type": "integer", "minimum": 3, "exclusiveMinimum": True}, {"type": "integer", "minimum": 4}),
        ({"type": "integer", "minimum": 3, "exclusiveMinimum": False}, {"type": "integer", "minimum": 3}),
        ({"type": "integer", "exclusiveMinimum": True}, INTEGER),
        ({**INTEGER, "minimum": -(2**31)}, {**INTEGER, "minimum": -(2**31)}),
        ({**INTEGER, "maximum": 2**31 - 1}, {**INTEGER, "maximum": 2**31 - 1}),
        ({"type": "integer", "minimum": -(2**31) - 1, "maximum": 2**31}, INTEGER),
        ({"type": "integer", "maximum": 10**400}, INTEGER),
        ({"type": "integer", "minimum": "1", "maximum": True}, INTEGER),
        ({"type": "number", "minimum": 0.5, "maximum": 2**40}, {"type": "number", "minimum": 0.5, "maximum": 2**40}),
        ({"type": "number", "minimum": 10**400, "maximum": float("inf")}, {"type": "number"}),
        ({"type": "number", "exclusiveMinimum": 0}, {"type": "number", "minimum": 0}),
        ({"type": "number", "maximum": 1, "exclusiveMaximum": True}, {"type": "number", "maximum": 1}),
        ({"type": "string", "minLength": -1, "maxLength": 2**31}, STRING),
        ({"type": "string", "minLength": 2.0, "maxLength": "3"}, {"type": "string", "minLength": 2}),
        # types
        ({"type": ["string", "null"]}, {"type": "string", "nullable": True}),
        ({"type": ["string", "integer"]}, {"anyOf": [STRING, INTEGER]}),
        ({"type": ["integer", "number"]}, {"type": "number"}),
        ({"type": ["string", "integer", "null"], "minLength": 1, "minimum": 2, "description": "d"}, {"anyOf": [
            {"type": "string", "description": "d", "nullable": True, "minLength": 1},
            {"type": "integer", "description": "d", "nullable": True, "minimum": 2},
        ]}),
        (NULL, {"type": "string", "nullable": True}),
        ({"type": "null", "description": "d"}, {"type": "string", "description": "d", "nullable": True}),
        ({"type": "any"}, ANYTHING),
        ({}, ANYTHING),
        (True, ANYTHING),
        (False, None),
        ({"not": {}}, None),
        ({"properties": {"a": STRING}}, objects(a=STRING)),
        ({"items": STRING}, {"type": "array", "items": STRING}),
        ({"pattern": "a"}, {"type": "string", "pattern": "a"}),
        ({"minimum": 1}, {"type": "number", "minimum": 1}),
        ({"format": "date-time"}, {"type": "string", "format": "date-time"}),
        # arrays
        ({"type": "array"}, {"type": "array", "items": ANYTHING}),
        ({"type": "array", "items": False}, {"type": "array", "items": ANYTHING}),
        ({"type": "array", "items": {"not": {}}}, {"type": "array", "items": ANYTHING}),
        ({"type": "array", "items": STRING, "minItems": 1, "maxItems": 2**31, "uniqueItems": True},
         {"type": "array", "minItems": 1, "items": STRING}),
        ({"type": "array", "prefixItems": [INTEGER, INTEGER], "minItems": 2, "maxItems": 2},
         {"type": "array", "minItems": 2, "maxItems": 2, "items": INTEGER}),
        ({"type": "array", "prefixItems": [INTEGER, STRING], "items": False},
         {"type": "array", "items": {"anyOf": [INTEGER, STRING]}}),
        ({"type": "array", "prefixItems": [INTEGER], "items": STRING},
         {"type": "array", "items": {"anyOf": [INTEGER, STRING]}}),
        ({"type": "array", "items": [INTEGER], "additionalItems": {"type": "boolean"}},
         {"type": "array", "items": {"anyOf": [INTEGER, {"type": "boolean"}]}}),
        # objects
        ({"type": "object"}, {"type": "object"}),
        ({**objects(), "required": ["a"], "minProperties": 1}, {"type": "object", "minProperties": 1}),
        ({"type": "object", "additionalProperties": INTEGER, "propertyNames": {}, "patternProperties": {"x": {}}},
         {"type": "object"}),
        ({**objects(a=STRING, b=False), "required": ["b", "a", "c", "a"]},
         {**objects(a=STRING), "required": ["a"]}),
        ({**objects(a=STRING, b=STRING), "propertyOrdering": ["b", "z"]},
         {**objects(a=STRING, b=STRING), "propertyOrdering": ["b", "a"]}),
        (objects(größe=STRING, 大きさ=STRING), objects(größe=STRING, 大きさ=STRING)),
    ],
)  # fmt: skip
def test_a_node(schema: Any, expected: Any) -> None:
    result = reduced(schema)
    assert result == expected
    assert repr(result) == repr(reduced(copy.deepcopy(schema)))
    if result is not None:
        assert reduced(result) == result, "the reduced is reduced"


def test_the_order_of_keys_is_fixed() -> None:
    schema = {
        "required": ["a"],
        "properties": {"a": {"maximum": 2, "title": "A", "type": "integer"}},
        "type": "object",
    }
    assert json.dumps(gemini_schema(schema, "t")) == (
        '{"type": "object", "properties": {"a": {"type": "integer", "title": "A", "maximum": 2}}, "required": ["a"]}'
    )


# unions and intersections


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"anyOf": [STRING, NULL]}, {"type": "string", "nullable": True}),
        ({"anyOf": [{"type": "null", "title": "None"}, STRING]}, {"type": "string", "nullable": True}),
        ({"anyOf": [{"type": "string", "minLength": 1, "description": "theirs"}, NULL],
          "default": None, "title": "X", "description": "mine"},
         {"type": "string", "title": "X", "description": "mine", "nullable": True, "minLength": 1}),
        ({"anyOf": [STRING]}, STRING),
        ({"anyOf": [STRING, STRING]}, STRING),
        ({"anyOf": [], "type": "string"}, STRING),
        ({"anyOf": [STRING, INTEGER]}, {"anyOf": [STRING, INTEGER]}),
        ({"anyOf": [STRING, False, INTEGER]}, {"anyOf": [STRING, INTEGER]}),
        ({"anyOf": [NULL]}, {"type": "string", "nullable": True}),
        # nothing beside a union: what stood there moves into it
        ({"anyOf": [{"type": "string", "title": "S", "description": "a name"}, INTEGER, NULL],
          "title": "X", "description": "who", "default": 3},
         {"anyOf": [
             {"type": "string", "title": "S", "description": "who\na name", "nullable": True},
             {"type": "integer", "description": "who", "nullable": True, "default": 3},
         ]}),
        ({"nullable": True, "anyOf": [STRING, INTEGER]},
         {"anyOf": [{"type": "string", "nullable": True}, {"type": "integer", "nullable": True}]}),
        ({**objects(a=STRING, b=STRING), "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
         {"anyOf": [{**objects(a=STRING, b=STRING), "required": [key]} for key in "ab"]}),
        ({"type": "string", "anyOf": [{"minLength": 3}, INTEGER]}, {"type": "string", "minLength": 3}),
        ({"anyOf": [{"anyOf": [STRING, NULL]}, INTEGER]},
         {"anyOf": [{"type": "string", "nullable": True}, {"type": "integer", "nullable": True}]}),
        ({"anyOf": [INTEGER, {}]}, {"anyOf": [{"type": "integer", "nullable": True}, *ANYTHING["anyOf"]]}),
    ],
)  # fmt: skip
def test_a_union(schema: dict[str, Any], expected: Any, keyword: str) -> None:
    result = reduced(json.loads(json.dumps(schema).replace("anyOf", keyword)))
    assert result == expected
    assert reduced(result) == result


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"allOf": [{"type": "string", "description": "theirs"}]}, {"type": "string", "description": "theirs"}),
        ({"allOf": [{**STRING, "description": "theirs"}], "description": "mine"}, {**STRING, "description": "mine"}),
        ({"allOf": [{**objects(a=STRING), "required": ["a"]}, {**objects(b=INTEGER), "required": ["b"]}]},
         {**objects(a=STRING, b=INTEGER), "required": ["a", "b"]}),
        ({"allOf": [objects(a=STRING), objects(a={"minLength": 2})]}, objects(a={"type": "string", "minLength": 2})),
        ({"allOf": [objects(a=STRING), objects(a=STRING)]}, objects(a=STRING)),
        ({"allOf": [{**INTEGER, "minimum": 1, "maximum": 9}, {"minimum": 3, "maximum": 12}]},
         {**INTEGER, "minimum": 3, "maximum": 9}),
        ({"allOf": [{"type": "number"}, INTEGER]}, INTEGER),
        ({"allOf": [{"type": ["integer", "string"]}, {"type": ["number", "null"]}]}, INTEGER),
        ({"allOf": [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}]}, {"type": "string", "enum": ["b"]}),
        ({"allOf": [{"type": "array", "items": STRING}, {"items": {"maxLength": 3}}]},
         {"type": "array", "items": {"type": "string", "maxLength": 3}}),
        ({"allOf": [{"pattern": "a"}, {"pattern": "a", "type": "string"}]}, {"type": "string", "pattern": "a"}),
        ({"allOf": [{"anyOf": [STRING, INTEGER]}, {"anyOf": [INTEGER, {"type": "boolean"}]}]}, INTEGER),
        ({"anyOf": [STRING, INTEGER], "oneOf": [INTEGER, NULL]}, INTEGER),
        ({"allOf": [True, STRING]}, STRING),
    ],
)  # fmt: skip
def test_an_intersection(schema: dict[str, Any], expected: Any) -> None:
    assert reduced(schema) == expected


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"allOf": [STRING, INTEGER]}, "must not contradict itself, but nothing fits 'x'"),
        ({"allOf": [{"enum": ["a"]}, {"enum": ["b"]}]}, "must not contradict itself, but nothing fits 'x'"),
        ({"allOf": [{"enum": [1]}, {"enum": [True]}]}, "must not contradict itself"),
        ({"allOf": [STRING, False]}, "must not contradict itself"),
        ({"anyOf": [False]}, "must not contradict itself"),
        ({"items": objects(y={"type": "string", "allOf": [NULL]})}, r"nothing fits 'x\.items\.y'"),
        ({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, "one pattern at a time, but 'x' asks for 'a' and 'b'"),
        ({"allOf": [{"format": "int32"}, {"format": "int64"}]}, "must ask for one format at a time"),
        ({"allOf": [{"anyOf": [{"minLength": n} for n in range(11)]}, {"oneOf": [{"title": "T"}] * 11}]},
         "must have at most 100 alternatives, but 'x' has more"),
    ],
)  # fmt: skip
def test_what_cannot_be_said_is_refused(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"the schema of tool 't' .*{message}"):
        reduced(schema)


def test_unions_that_multiply_are_refused() -> None:
    schema: dict[str, Any] = STRING
    for _ in range(12):
        schema = {**objects(a=schema, b={}), "anyOf": [{"required": [name]} for name in ("a", "b", "c", "d")]}
    with pytest.raises(ConfigurationError, match="tool 't' must have at most 20000 parts"):
        reduced(schema)


# the root


def test_the_root_is_an_object() -> None:
    assert gemini_schema({}, "t") == {"type": "object"}
    assert gemini_schema({"type": ["object", "null"]}, "t") == {"type": "object"}
    assert gemini_schema({"nullable": True, **objects(a={"type": "string"})}, "t") == objects(a={"type": "string"})
    with pytest.raises(ConfigurationError, match="schema of tool 't' must describe an object, but got 'string'"):
        gemini_schema({"type": "string"}, "t")
    with pytest.raises(ConfigurationError, match="schema of tool 't' must describe an object, but nothing fits it"):
        gemini_schema({"type": "object", "allOf": [{"type": "string"}]}, "t")


def test_a_union_of_roots_is_one_object() -> None:
    schema = {
        "type": "object",
        "description": "what to do",
        "properties": {"id": {"type": "string"}},
        "required": ["id"],
        "oneOf": [
            {"properties": {"kind": {"const": "a"}, "x": {"type": "string"}}, "required": ["kind", "x"]},
            {"properties": {"kind": {"const": "b"}, "y": {"type": "string"}}, "required": ["kind"]},
            {"type": "null"},
        ],
    }
    assert gemini_schema(schema, "t") == {
        "type": "object",
        "description": "what to do",
        "properties": {
            "kind": {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "string", "enum": ["b"]}]},
            "x": {"type": "string"},
            "id": {"type": "string"},
            "y": {"type": "string"},
        },
        "required": ["id", "kind"],
    }
    either = {
        **objects(a={"type": "string"}, b={"type": "string"}),
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    }
    assert gemini_schema(either, "t") == objects(a={"type": "string"}, b={"type": "string"})


# schemas of functions


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Point(BaseModel):
    """A place."""

    x: float
    y: float = 0.0


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(9, ge=1, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    at: Point | None = None


class Tree(BaseModel):
    children: list[Tree] = []


def parameters(function: Callable[..., Any]) -> Any:
    schema = tool(function).declaration.schema
    before = copy.deepcopy(schema)
    result = gemini_schema(schema, "f")
    assert schema == before
    check(result)
    return result["properties"]


POINT = {"title": "Point", **objects(x={"type": "number"}, y={"type": "number", "default": 0.0}), "required": ["x"]}


def test_simple_parameters() -> None:
    def f(  # type: ignore[no-untyped-def]
        a: str,
        b: Optional[str] = None,  # noqa: UP045
        c: int | str | None = None,
        d: Literal["x", "y"] = "x",
        e: Literal[1, "x", None] = 1,
        g: Annotated[int, Field(gt=0, lt=10, multiple_of=2)] = 2,
        h: Annotated[float, Field(gt=0)] = 1.0,
        i: Any = None,
        j=None,
        k: bool = True,
        n: None = None,
    ) -> None:
        """
        Args:
            b: the second.
        """

    assert parameters(f) == {
        "a": {"type": "string"},
        "b": {"type": "string", "description": "the second.", "nullable": True},
        "c": {"anyOf": [{"type": "integer", "nullable": True}, {"type": "string", "nullable": True}]},
        "d": {"type": "string", "default": "x", "enum": ["x", "y"]},
        "e": {
            "anyOf": [
                {"type": "integer", "nullable": True, "default": 1},
                {"type": "string", "nullable": True, "enum": ["x"]},
            ]
        },
        "g": {"type": "integer", "default": 2, "minimum": 1, "maximum": 9},
        "h": {"type": "number", "default": 1.0, "minimum": 0},
        "i": ANYTHING,
        "j": ANYTHING,
        "k": {"type": "boolean", "default": True},
        "n": {"type": "string", "nullable": True},
    }


def test_times_and_identifiers() -> None:
    def f(a: dt.datetime, b: dt.date, c: uuid.UUID, d: bytes, e: decimal.Decimal) -> None: ...

    result = parameters(f)
    assert result["a"] == {"type": "string", "format": "date-time"}
    assert result["b"] == result["c"] == result["d"] == {"type": "string"}
    assert [node["type"] for node in result["e"]["anyOf"]] == ["number", "string"]


def test_enumerations() -> None:
    def f(a: Colour, b: Level, c: Colour | None = None, d: Colour | Level = Colour.RED) -> None: ...

    assert parameters(f) == {
        "a": {"type": "string", "title": "Colour", "enum": ["red", "blue"]},
        "b": {"type": "integer", "title": "Level"},
        "c": {"type": "string", "title": "Colour", "nullable": True, "enum": ["red", "blue"]},
        "d": {
            "anyOf": [
                {"type": "string", "title": "Colour", "default": "red", "enum": ["red", "blue"]},
                {"type": "integer", "title": "Level"},
            ]
        },
    }


def test_collections() -> None:
    def f(
        a: list[int],
        b: dict[str, int],
        c: list[tuple[int, str]],
        d: tuple[float, float],
        e: tuple[str, ...],
        g: set[str],
        h: list,  # type: ignore[type-arg]
    ) -> None: ...

    either = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert parameters(f) == {
        "a": {"type": "array", "items": {"type": "integer"}},
        "b": {"type": "object"},
        "c": {"type": "array", "items": {"type": "array", "minItems": 2, "maxItems": 2, "items": either}},
        "d": {"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": "number"}},
        "e": {"type": "array", "items": {"type": "string"}},
        "g": {"type": "array", "items": {"type": "string"}},
        "h": {"type": "array", "items": ANYTHING},
    }


def test_models() -> None:
    def f(
        a: Point,
        b: Annotated[Point, Field(description="where to")],
        c: list[Point],
        d: Point | None = None,
        e: Annotated[Point | None, Field(description="maybe")] = None,
    ) -> None: ...

    words = {"description": "A place."}
    assert parameters(f) == {
        "a": {**POINT, **words},
        "b": {**POINT, "description": "where to"},
        "c": {"type": "array", "items": {**POINT, **words}},
        "d": {**POINT, **words, "nullable": True},
        "e": {**POINT, "description": "maybe", "nullable": True},
    }


def test_a_discriminated_union() -> None:
    def f(pet: Annotated[Cat | Dog, Field(discriminator="kind")]) -> None: ...

    assert parameters(f) == {
        "pet": {
            "anyOf": [
                {
                    "title": "Cat",
                    **objects(
                        kind={"type": "string", "enum": ["cat"]},
                        lives={"type": "integer", "default": 9, "minimum": 1, "maximum": 9},
                    ),
                    "required": ["kind"],
                },
                {
                    "title": "Dog",
                    **objects(
                        kind={"type": "string", "enum": ["dog"]},
                        at={**POINT, "description": "A place.", "nullable": True},
                    ),
                    "required": ["kind"],
                },
            ]
        }
    }
    assert "discriminator" not in json.dumps(inlined(tool(f).declaration.schema, "f"))


def test_a_recursive_model_is_refused() -> None:
    def grow(tree: Tree) -> None: ...

    with pytest.raises(
        ConfigurationError, match=r"tool 'grow' must not be recursive, but #/\$defs/Tree → #/\$defs/Tree"
    ):
        gemini_schema(tool(grow).declaration.schema, "grow")


# any schema

TYPES = st.sampled_from(["string", "number", "integer", "boolean", "array", "object", "null", "other"])
NUMBERS = st.one_of(
    st.integers(-3, 3), st.floats(), st.booleans(), st.sampled_from([2**31, -(2**40), 10**400, "1", None])
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=3,
)
COUNTED = (
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems",
    "minProperties", "maxProperties", "multipleOf",
)  # fmt: skip
NAMES = st.sampled_from(["a", "b", "ü", "$ref", "type", ""])


def schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, max_size=3)
    keywords: dict[str, st.SearchStrategy[Any]] = {
        "type": TYPES | st.lists(TYPES, max_size=3),
        "format": st.sampled_from(["date-time", "uuid", "int32", "double", "enum", 3]),
        "title": st.text(max_size=2) | st.none(),
        "description": st.text(max_size=3) | st.integers(),
        "nullable": st.booleans(),
        "enum": st.lists(VALUES, max_size=3),
        "const": VALUES,
        "default": VALUES,
        "example": VALUES,
        "examples": st.lists(VALUES, max_size=1),
        "items": inner | some,
        "prefixItems": some,
        "additionalItems": inner,
        "properties": st.dictionaries(NAMES, inner, max_size=3),
        "patternProperties": st.dictionaries(NAMES, inner, max_size=1),
        "required": st.lists(NAMES, max_size=2),
        "propertyOrdering": st.lists(NAMES, max_size=2),
        "additionalProperties": inner,
        "not": inner,
        "anyOf": some,
        "oneOf": some,
        "allOf": st.lists(inner, max_size=2),
        "pattern": st.sampled_from(["a", "b", 1]),
        "$ref": st.sampled_from(["#/$defs/one", "#/$defs/two"]),
        "$schema": st.just("x"),
        **dict.fromkeys(COUNTED, NUMBERS),
    }
    return st.lists(st.sampled_from(sorted(keywords)), max_size=4, unique=True).flatmap(
        lambda keys: st.fixed_dictionaries({key: keywords[key] for key in keys})
    )


SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    st.booleans() | st.just({}) | schemas(st.booleans()), schemas, max_leaves=8
)


@given(st.dictionaries(NAMES, SCHEMAS, max_size=3), SCHEMAS, SCHEMAS, SCHEMAS)
def test_any_schema_becomes_one_that_is_accepted(properties: Any, one: Any, two: Any, beside: Any) -> None:
    schema = {
        **(beside if isinstance(beside, dict) else {}),
        "type": "object",
        "properties": properties,
        "$defs": {"one": one, "two": two},
    }
    before = repr(schema)
    result: Any = None
    with contextlib.suppress(ConfigurationError):
        result = gemini_schema(schema, "t")
    assert repr(schema) == before
    if result is not None:
        check(result)
        assert repr(gemini_schema(schema, "t")) == repr(result)
        assert gemini_schema(result, "t") == result
