"""Schemas of structured answers, as the providers' own ways of them accept them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from datetime import date, datetime
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from anthropic import transform_schema
from jsonschema.validators import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field

from rxloop.adapters.output_schemas import closed_schema, gemini_output_schema, is_closable
from rxloop.output import Output


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class City(BaseModel):
    """A city."""

    name: Annotated[str, Field(min_length=2, pattern="^[A-Z]")]
    people: Annotated[int, Field(ge=1)] = 1


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int | None = None


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: Annotated[list[str], Field(min_length=1, max_length=3)]


class Trip(BaseModel):
    id: UUID
    day: date
    at: datetime
    start: City = Field(description="Where it begins.")
    stops: list[City] = []
    animal: Annotated[Cat | Dog, Field(discriminator="kind")]
    colours: set[Colour]


class Tree(BaseModel):
    value: int
    children: list[Tree] = []


class Chain(BaseModel):
    link: Chain | None = Field(None, description="The next.")


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema in a schema."""
    yield schema
    for key, value in schema.items():
        if key in ("properties", "$defs", "definitions"):
            for item in value.values():
                yield from nodes(item)
        elif key in ("anyOf", "allOf"):
            for item in value:
                yield from nodes(item)
        elif key == "items":
            yield from nodes(value)


# closed


def test_every_object_is_closed_and_nothing_is_left_that_is_refused() -> None:
    schema = closed_schema(Output(Trip).schema)
    objects = [node for node in nodes(schema) if node.get("type") == "object"]
    assert len(objects) >= 5
    assert all(node["additionalProperties"] is False for node in objects)
    known = {
        "$defs", "$ref", "additionalProperties", "anyOf", "const", "default", "description", "enum", "format", "items",
        "minItems", "properties", "required", "title", "type",
    }  # fmt: skip
    assert {key for node in nodes(schema) for key in node} <= known
    assert not [node for node in nodes(schema) if "$ref" in node and len(node) > 1]


def test_what_cannot_be_decoded_for_is_told() -> None:
    properties = closed_schema(Output(City).schema)["properties"]
    assert properties["name"] == {"title": "Name", "type": "string", "description": '(minLength: 2, pattern: "^[A-Z]")'}
    assert properties["people"] == {
        "title": "People",
        "type": "integer",
        "default": 1,
        "description": "(minimum: 1)",
    }
    described = {"type": "object", "properties": {"x": {"type": "integer", "description": "The x.", "multipleOf": 2}}}
    assert closed_schema(described)["properties"]["x"]["description"] == "The x. (multipleOf: 2)"


LIST = {"type": "array", "items": {"type": "null"}}


@pytest.mark.parametrize(
    ("node", "kept"),
    [
        ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
        ({"type": "string", "format": "password"}, {"type": "string", "description": '(format: "password")'}),
        ({**LIST, "minItems": 1}, {**LIST, "minItems": 1}),
        ({**LIST, "minItems": 2}, {**LIST, "description": "(minItems: 2)"}),
        ({**LIST, "uniqueItems": True}, {**LIST, "description": "(uniqueItems: true)"}),
        ({"oneOf": [{"type": "null"}], "discriminator": {"propertyName": "x"}}, {"anyOf": [{"type": "null"}]}),
        ({"type": "null", "examples": [1], "deprecated": True, "$comment": "x"}, {"type": "null"}),
        ({"enum": ["minimum", {"minimum": 1}]}, {"enum": ["minimum", {"minimum": 1}]}),
    ],
)  # fmt: skip
def test_what_is_kept_of_a_node(node: dict[str, Any], kept: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"x": node}}
    assert closed_schema(schema)["properties"]["x"] == kept


def test_names_that_look_like_keywords_are_names() -> None:
    schema = {
        "type": "object",
        "properties": {"pattern": {"type": "string"}, "minimum": {"type": "integer"}, "oneOf": {"type": "null"}},
        "required": ["pattern"],
    }
    assert closed_schema(schema) == {**schema, "additionalProperties": False}


def test_what_stands_beside_a_reference_goes_with_its_target() -> None:
    schema = closed_schema(Output(Trip).schema)
    start = schema["properties"]["start"]
    assert start["description"] == "Where it begins."
    assert start["properties"] == schema["$defs"]["City"]["properties"]
    assert start["additionalProperties"] is False
    # alone it stays
    assert schema["properties"]["stops"]["items"] == {"$ref": "#/$defs/City"}
    assert schema["$defs"]["City"]["description"] == "A city."


@pytest.mark.parametrize("change", [closed_schema, gemini_output_schema])
def test_a_reference_that_leads_to_itself_ends(change: Any) -> None:
    """Such a schema is not closable; but whoever insists gets an answer."""
    schema = change(Output(Chain).schema)
    alternatives = schema["properties"]["link"]["anyOf"]
    assert alternatives == [{"$ref": "#/$defs/Chain"}, {"type": "null"}]
    beside = {
        "$defs": {"N": {"type": "object", "properties": {"n": {"$ref": "#/$defs/N", "title": "Next"}}}},
        "type": "object",
        "properties": {"n": {"$ref": "#/$defs/N", "title": "First"}, "gone": {"$ref": "#/$defs/M", "title": "x"}},
    }
    made = change(beside)
    assert made["properties"]["n"]["title"] == "First"
    assert made["properties"]["n"]["properties"]["n"] == {"$ref": "#/$defs/N"}
    assert made["properties"]["gone"] == {"$ref": "#/$defs/M"}
    assert made["$defs"]["N"]["properties"]["n"]["title"] == "Next"


@pytest.mark.parametrize("kind", [Trip, City, Cat, Tree, list[City], dict[str, int]])
@pytest.mark.parametrize("change", [closed_schema, gemini_output_schema])
def test_what_is_given_stays_as_it_is(kind: Any, change: Any) -> None:
    schema = Output(kind).schema
    before = copy.deepcopy(schema)
    change(schema)
    assert schema == before


PAYLOADS: list[tuple[Any, dict[str, Any]]] = [
    (City, {"name": "Rome", "people": 3}),
    (Dog, {"kind": "dog", "tricks": ["sit"]}),
    (list[City], {"result": [{"name": "Rome"}]}),
    (Cat | Dog, {"result": {"kind": "cat"}}),
    (Colour, {"result": "red"}),
    (
        Trip,
        {
            "id": "12345678-1234-5678-1234-567812345678",
            "day": "2026-11-30",
            "at": "2026-11-30T12:00:00Z",
            "start": {"name": "Rome"},
            "animal": {"kind": "dog", "tricks": ["sit"]},
            "colours": ["red"],
        },
    ),
]


@pytest.mark.parametrize(("kind", "payload"), PAYLOADS)
def test_it_still_means_the_same(kind: Any, payload: dict[str, Any]) -> None:
    schema = Output(kind).schema
    assert is_closable(schema)
    for changed in (closed_schema(schema), gemini_output_schema(schema)):
        Draft202012Validator.check_schema(changed)
        assert Draft202012Validator(changed).is_valid(payload)
        assert not Draft202012Validator(changed).is_valid({})
    strange = {**payload, "strange": 1}
    assert not Draft202012Validator(closed_schema(schema)).is_valid(strange)


@pytest.mark.parametrize(("kind", "payload"), PAYLOADS)
def test_it_agrees_with_the_sdks_own(kind: Any, payload: dict[str, Any]) -> None:
    """Which leaves out what is beside a reference, and the type beside an enumeration; else they differ in words."""

    def bare(node: Any) -> Any:
        if isinstance(node, list):
            return [bare(item) for item in node]
        if not isinstance(node, dict):
            return node
        names = {"description", "default"} | ({"type"} if {"enum", "const"} & node.keys() else set())
        return {
            key: {name: bare(item) for name, item in value.items()} if key in ("properties", "$defs") else bare(value)
            for key, value in node.items()
            if key not in names
        }

    if "const" not in transform_schema({"const": "a", "type": "string"}):
        pytest.skip("an SDK from before it knew constants")
    schema = Output(kind).schema
    ours, theirs = bare(closed_schema(schema)), bare(transform_schema(schema))
    if kind is Trip:
        assert theirs["properties"].pop("start") == {"$ref": "#/$defs/City"}
        assert ours["properties"].pop("start")["type"] == "object"
    assert ours == theirs


# closable

NAME = {"type": "object", "properties": {"x": {"type": "string"}}}


@pytest.mark.parametrize(
    "kind", [Trip, City, Cat, list[City], Colour, int | None, list[list[int]], Annotated[str, Field(max_length=3)]]
)
def test_types_that_can_be_closed(kind: Any) -> None:
    assert is_closable(Output(kind).schema)


@pytest.mark.parametrize(
    "kind",
    [
        Tree,
        list[Tree],
        Chain,
        Open,
        list[Open],
        dict[str, int],
        list[dict[str, Any]],
        Any,
        list,
        list[Any],
        object,
        tuple[int, str],
        int | dict[str, int],
    ],
)
def test_types_that_cannot(kind: Any) -> None:
    assert not is_closable(Output(kind).schema)


@pytest.mark.parametrize(
    ("node", "closable"),
    [
        ({"type": "string"}, True),
        ({"type": ["string", "null"]}, True),
        ({"type": ["object", "null"], "properties": {"y": {"type": "null"}}}, True),
        ({"type": ["object", "null"]}, False),
        ({"type": ["object"], "properties": {"y": {"type": "null"}}, "additionalProperties": {"type": "null"}}, False),
        ({"type": "object", "properties": {"y": {"type": "null"}}, "additionalProperties": False}, True),
        ({"enum": ["a", 1, None, True]}, True),
        ({"enum": ["a", {"b": 1}]}, False),
        ({"const": ["a"]}, False),
        ({"const": "a"}, True),
        (True, False),
        (False, False),
        ({}, False),
        ({"title": "Anything", "description": "at all"}, False),
        # without a type it is not known of what
        ({"minimum": 3}, False),
        ({"properties": {"y": {"type": "null"}}}, False),
        ({"type": "array"}, False),
        ({"type": "array", "items": True}, False),
        ({"type": "array", "items": {"type": "string"}}, True),
        ({"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "string"}}, False),
        ({"type": "array", "items": {"type": "string"}, "contains": {"const": "a"}}, False),
        ({"type": "string", "not": {"const": "a"}}, False),
        ({"type": "string", "if": {"const": "a"}, "then": {"minLength": 1}}, False),
        ({**NAME, "patternProperties": {"^a": {"type": "string"}}}, False),
        ({**NAME, "dependentRequired": {"x": ["y"]}}, False),
        ({"anyOf": [{"type": "string"}, NAME]}, True),
        ({"anyOf": [{"type": "string"}, {"type": "object"}]}, False),
        ({"anyOf": [{"type": "string"}], "oneOf": [{"type": "string"}]}, False),
        ({"allOf": [NAME]}, True),
        ({"allOf": [{"$ref": "#/$defs/Name"}]}, False),
        ({"$ref": "#/$defs/Name"}, True),
        ({"$ref": "#/$defs/Name", "description": "x"}, True),
        ({"$ref": "#/$defs/Any"}, False),
        ({"$ref": "#/$defs/Missing"}, False),
        ({"$ref": "#/properties/y"}, False),
        ({"$ref": "#"}, False),
    ],
)
def test_nodes_that_can_be_closed(node: Any, closable: bool) -> None:
    defined = {"Name": NAME, "Any": {}}
    schema = {"$defs": defined, "type": "object", "properties": {"x": node}}
    assert is_closable(schema) is closable
    # what is defined and not used does not matter; where it is nested does not either
    nested = {"type": "array", "items": {"anyOf": [node, {"type": "null"}]}}
    assert is_closable({"$defs": defined, "type": "object", "properties": {"x": nested}}) is closable


# Gemini's


def test_gemini_takes_constants_as_lists() -> None:
    schema = gemini_output_schema(Output(Cat | Dog).schema)
    kinds = [schema["$defs"][name]["properties"]["kind"] for name in ("Cat", "Dog")]
    assert kinds == [
        {"enum": ["cat"], "title": "Kind", "type": "string"},
        {"enum": ["dog"], "title": "Kind", "type": "string"},
    ]
    schema = {"type": "object", "properties": {"x": {"const": True, "type": "boolean"}, "y": {"const": 1.5}}}
    assert gemini_output_schema(schema)["properties"] == {"x": {"type": "boolean"}, "y": {"enum": [1.5]}}


def test_gemini_keeps_everything_else() -> None:
    schema = gemini_output_schema(Output(Trip).schema)
    assert schema["properties"]["start"]["description"] == "Where it begins."
    assert schema["properties"]["stops"]["items"] == {"$ref": "#/$defs/City"}
    assert schema["$defs"]["City"]["properties"]["people"]["minimum"] == 1
    assert "additionalProperties" not in schema
    assert gemini_output_schema(Output(Tree).schema) == Output(Tree).schema
    assert gemini_output_schema(Output(tuple[Literal["a"], int]).schema)["properties"]["result"]["prefixItems"] == [
        {"enum": ["a"], "type": "string"},
        {"type": "integer"},
    ]
    assert gemini_output_schema(Output(dict[str, int]).schema) == Output(dict[str, int]).schema
