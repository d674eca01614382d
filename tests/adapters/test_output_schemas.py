"""Schemas of structured answers, as the providers' own ways of them accept them."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from datetime import date, datetime
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from anthropic import transform_schema
from jsonschema.validators import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field, create_model

from rxloop.adapters.output_schemas import check_closable, closed_schema, gemini_output_schema, is_closable
from rxloop.errors import ConfigurationError
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
    assert len(objects) >= 4
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


@pytest.mark.parametrize("change", [closed_schema, gemini_output_schema])
def test_what_stands_beside_a_reference_is_told_where_it_is_used(change: Any) -> None:
    schema = change(Output(Trip).schema)
    assert schema["properties"]["start"] == schema["properties"]["stops"]["items"] == {"$ref": "#/$defs/City"}
    assert schema["description"] == "(start: Where it begins.)"
    assert schema["$defs"]["City"]["description"] == "A city."
    described = {"description": "Both."}
    beside = {"$ref": "#/$defs/City", "title": "Here", "default": None, "minProperties": 1, "description": "Here."}
    nodes_of = {
        "list": {"type": "array", "items": beside, **described},
        "one": {"anyOf": [beside, {"type": "null"}], **described},
    }
    defined = {"City": City.model_json_schema()}
    made = change({"$defs": defined, "type": "object", "properties": nodes_of})["properties"]
    assert made["list"]["items"] == made["one"]["anyOf"][0] == {"$ref": "#/$defs/City"}
    assert made["one"]["description"] == "Both. (Here., default: null, minProperties: 1)"
    assert made["list"]["description"] == "Both. (items: Here., default: null, minProperties: 1)"


@pytest.mark.parametrize("change", [closed_schema, gemini_output_schema])
def test_a_reference_that_leads_to_itself_ends(change: Any) -> None:
    """Such a schema is not closable; but whoever insists gets an answer."""
    schema = change(Output(Chain).schema)
    alternatives = schema["properties"]["link"]["anyOf"]
    assert alternatives == [{"$ref": "#/$defs/Chain"}, {"type": "null"}]
    beside = {
        "$defs": {"N": {"type": "object", "properties": {"n": {"$ref": "#/$defs/N", "description": "Next."}}}},
        "type": "object",
        "properties": {"n": {"$ref": "#/$defs/N", "description": "First."}, "gone": {"$ref": "#/$defs/M", "title": ""}},
    }
    made = change(beside)
    assert made["properties"] == {"n": {"$ref": "#/$defs/N"}, "gone": {"$ref": "#/$defs/M"}}
    assert made["description"] == "(n: First.)"
    assert made["$defs"]["N"]["properties"]["n"] == {"$ref": "#/$defs/N"}
    assert made["$defs"]["N"]["description"] == "(n: Next.)"


def levels(depth: int) -> dict[str, Any]:
    """The schema of models of which each has two described fields of the next."""
    model: type[BaseModel] = City
    for level in range(depth):
        fields: Any = {name: (model, Field(description=f"The {name} one.")) for name in ("first", "second")}
        model = create_model(f"Level{level}", **fields)
    return Output(model).schema


@pytest.mark.parametrize("change", [closed_schema, gemini_output_schema])
def test_a_schema_stays_as_large_as_it_was(change: Any) -> None:
    schema = levels(12)
    assert len(json.dumps(change(schema))) < 1.5 * len(json.dumps(schema))


def test_each_definition_is_looked_at_once() -> None:
    """Which is over in no time; with twice as many looks a level it would not be in an age of the world."""
    assert is_closable(levels(100))
    # and nothing that recursion has to reach
    far = {f"N{index}": {"$ref": f"#/$defs/N{index + 1}"} for index in range(3000)}
    schema = {"type": "object", "properties": {"x": {"$ref": "#/$defs/N0"}}}
    assert is_closable({"$defs": {**far, "N3000": {"type": "null"}}, **schema})
    assert not is_closable({"$defs": {**far, "N3000": {"$ref": "#/$defs/N7"}}, **schema})


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
    assert ours == theirs


# closable

NAME = {"type": "object", "properties": {"x": {"type": "string"}}}
NAMED = {"type": "object", "properties": {"y": {"type": "string"}}, "required": ["y"]}


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
        ({"allOf": [True]}, False),
        ({"allOf": [NAME, False]}, False),
        ({"anyOf": [True, NAME]}, False),
        # each part closed by itself would refuse what the other asks for
        ({"allOf": [NAME, NAMED]}, False),
        ({"allOf": [{"anyOf": [NAME]}, {"anyOf": [NAMED]}]}, False),
        ({**NAME, "anyOf": [NAMED]}, False),
        ({**NAME, "oneOf": [NAMED]}, False),
        ({**NAME, "allOf": [NAMED]}, False),
        ({"type": "object", "anyOf": [NAMED], "properties": {}}, False),
        ({"anyOf": [NAMED], "required": ["y"]}, False),
        ({"type": "array", "items": NAME, "anyOf": [{"type": "array", "items": NAMED}]}, False),
        ({"$ref": "#/$defs/Name", "properties": {"y": {"type": "string"}}}, False),
        ({"$ref": "#/$defs/Name", "required": ["x"]}, False),
        ({"$ref": "#/$defs/Name", "anyOf": [NAMED]}, False),
        ({**NAME, "required": ["x"]}, True),
        ({**NAME, "required": ["y"]}, False),
        ({**NAME, "minProperties": 1}, True),
        ({**NAME, "minProperties": 2}, False),
        ({**NAME, "additionalProperties": {}}, False),
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


X, Y = {"x": "a"}, {"y": "b"}
ANSWERS: list[tuple[dict[str, Any], list[Any]]] = [
    # a schema, and what fits it
    (NAME, [{}, X]),
    ({**NAME, "required": ["x"], "minProperties": 1, "maxProperties": 1}, [X]),
    ({**NAME, "required": ["y"]}, [Y]),
    ({**NAME, "minProperties": 2}, [{**X, **Y}]),
    ({"allOf": [NAME]}, [X]),
    ({"allOf": [NAME, NAMED]}, [{**X, **Y}]),
    ({"allOf": [{"type": "string"}, {"type": "string", "minLength": 1}]}, ["a"]),
    ({"anyOf": [NAME, NAMED]}, [X, Y]),
    ({"oneOf": [NAMED, {"type": "null"}]}, [None, Y]),
    ({**NAME, "anyOf": [NAMED, {**NAMED, "required": []}]}, [{**X, **Y}]),
    ({**NAME, "oneOf": [NAMED]}, [{**X, **Y}]),
    ({**NAME, "allOf": [NAMED]}, [{**X, **Y}]),
    ({"type": "string", "anyOf": [{"type": "string"}, {"type": "null"}]}, ["a"]),
    ({"type": "array", "items": NAME}, [[X], []]),
    ({"type": "array", "items": NAME, "allOf": [{"type": "array", "items": NAMED}]}, [[{**X, **Y}]]),
    ({"type": "array", "items": {"type": "string"}, "minItems": 2, "uniqueItems": True}, [["a", "b"]]),
    ({"type": ["object", "null"], "properties": {"x": {"type": "string"}}}, [None, X]),
    ({"type": "object", "additionalProperties": {"type": "string"}}, [X]),
    ({**NAME, "additionalProperties": {}}, [Y]),
    ({**NAME, "patternProperties": {"^y": {"type": "string"}}}, [Y]),
    ({"$ref": "#/$defs/Named"}, [Y]),
    ({"$ref": "#/$defs/Named", "description": "x"}, [Y]),
    ({"$ref": "#/$defs/Named", "properties": {"x": {"type": "string"}}, "required": ["x"]}, [{**X, **Y}]),
    ({"$ref": "#/$defs/Named", "allOf": [NAME]}, [{**X, **Y}]),
    ({"anyOf": [{"$ref": "#/$defs/Named", "minProperties": 1}, {"type": "null"}]}, [Y, None]),
    ({"enum": ["a", 1, None]}, ["a", 1, None]),
    ({"const": 1, "type": "integer"}, [1]),
]


@pytest.mark.parametrize(("node", "values"), ANSWERS)
def test_what_fits_a_closable_schema_fits_the_closed_one(node: dict[str, Any], values: list[Any]) -> None:
    for part in (node, {"type": "array", "items": {"anyOf": [node]}}):
        schema = {"$defs": {"Named": NAMED}, "type": "object", "properties": {"p": part}, "required": ["p"]}
        for value in values:
            payload = {"p": value if part is node else [value]}
            assert Draft202012Validator(schema).is_valid(payload)
            assert Draft202012Validator(closed_schema(schema)).is_valid(payload) or not is_closable(schema)


def test_most_of_these_are_closable() -> None:
    defined = {"$defs": {"Named": NAMED}, "type": "object"}
    assert sum(is_closable({**defined, "properties": {"p": node}}) for node, _ in ANSWERS) >= 14


def test_what_cannot_be_closed_is_said() -> None:
    check_closable(Output(Trip).schema)
    for kind, words in (
        (dict[str, int], "but result is an object with any keys; the modes 'auto', 'cooperative'"),
        (Tree, r"but #/\$defs/Tree holds itself;"),
        (Any, "but result may be of any type;"),
        ({"type": "object", "properties": {"p": {"type": "array", "items": True}}}, "but p.items may be anything at"),
        ({"type": "object", "properties": {"p": {"allOf": [NAME, NAMED]}}}, "but p has an 'allOf' of several parts;"),
        ({**NAME, "anyOf": [NAMED]}, "but the answer has 'properties' beside 'anyOf';"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            check_closable(Output(kind).schema)


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
    assert schema["properties"]["stops"]["items"] == {"$ref": "#/$defs/City"}
    assert schema["$defs"]["City"]["properties"]["people"]["minimum"] == 1
    assert "additionalProperties" not in schema
    assert gemini_output_schema(Output(Tree).schema) == Output(Tree).schema
    assert gemini_output_schema(Output(tuple[Literal["a"], int]).schema)["properties"]["result"]["prefixItems"] == [
        {"enum": ["a"], "type": "string"},
        {"type": "integer"},
    ]
    assert gemini_output_schema(Output(dict[str, int]).schema) == Output(dict[str, int]).schema
