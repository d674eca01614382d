"""What a turn's answer has to be: the schemas that are asked for, and how payloads are checked."""

from __future__ import annotations

import builtins
import pickle
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from enum import Enum
from functools import partial
from typing import Annotated, Any, Literal

import pytest
from jsonschema.validators import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field, RootModel, field_validator
from typing_extensions import TypedDict

from rxloop.errors import ConfigurationError, InvalidOutputError
from rxloop.output import InvalidPayloadError, Output


class City(BaseModel):
    name: str
    people: int


@dataclass
class Point:
    x: int
    y: int = 0


class Movie(TypedDict, total=False):
    title: str
    year: int


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Tree(BaseModel):
    value: int
    children: list[Tree] = []


class Box(BaseModel):
    city: City


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str]


class StrictEvent(BaseModel):
    model_config = ConfigDict(strict=True)

    day: date
    colour: Colour
    tags: set[str]
    point: tuple[int, int]


class Renamed(BaseModel):
    people: int = Field(alias="number-of-people")


class Empty(BaseModel):
    pass


Animal = Annotated[Cat | Dog, Field(discriminator="kind")]

TYPES: list[tuple[Any, dict[str, Any], Any]] = [
    # the type, a payload, its value
    (City, {"name": "Rome", "people": 3}, City(name="Rome", people=3)),
    (Box, {"city": {"name": "Rome", "people": 3}}, Box(city=City(name="Rome", people=3))),
    (Point, {"x": 1}, Point(1)),
    (Movie, {"title": "Ran"}, {"title": "Ran"}),
    (Renamed, {"number-of-people": 3}, Renamed.model_validate({"number-of-people": 3})),
    (RootModel[City], {"name": "Rome", "people": 3}, RootModel[City](City(name="Rome", people=3))),
    (Tree, {"value": 1, "children": [{"value": 2}]}, Tree(value=1, children=[Tree(value=2)])),
    (int, {"result": 5}, 5),
    (str, {"result": "x"}, "x"),
    (bool, {"result": True}, True),
    (list[int], {"result": [1, 2]}, [1, 2]),
    (list[City], {"result": [{"name": "Rome", "people": 3}]}, [City(name="Rome", people=3)]),
    (list[Tree], {"result": [{"value": 1}]}, [Tree(value=1)]),
    (tuple[int, str], {"result": [1, "x"]}, (1, "x")),
    (dict[str, int], {"result": {"a": 1}}, {"a": 1}),
    (Literal["a", "b"], {"result": "b"}, "b"),
    (Colour, {"result": "red"}, Colour.RED),
    (date, {"result": "2026-11-30"}, date(2026, 11, 30)),
    (int | None, {"result": None}, None),
    (Annotated[int, Field(ge=1)], {"result": 1}, 1),
    (RootModel[list[int]], {"result": [1]}, RootModel[list[int]]([1])),
    (Cat | Dog, {"result": {"kind": "dog", "tricks": []}}, Dog(kind="dog", tricks=[])),
    (Animal, {"result": {"kind": "cat", "lives": 9}}, Cat(kind="cat", lives=9)),
    (Empty, {"result": {}}, Empty()),
    (Any, {"result": [1, {"a": None}]}, [1, {"a": None}]),
]
every_type = pytest.mark.parametrize(("kind", "payload", "value"), TYPES, ids=[str(kind) for kind, *_ in TYPES])


@every_type
def test_a_payload_becomes_the_types_own_value(kind: Any, payload: dict[str, Any], value: Any) -> None:
    made = Output(kind).validate(payload)
    assert made == value
    assert type(made) is type(value)


@every_type
def test_the_schema_is_of_an_object_with_properties(kind: Any, payload: dict[str, Any], value: Any) -> None:
    """Which is what every provider wants of a tool's arguments; and the payload fits it."""
    schema = Output(kind).schema
    assert schema["type"] == "object"
    assert schema["properties"]
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(payload)
    # its references lead somewhere
    for other in ({}, {"result": object()}, {"value": 1, "children": [{"value": "x"}]}):
        list(Draft202012Validator(schema).iter_errors(other))


def test_what_is_not_an_object_is_a_property_of_one() -> None:
    schema = Output(list[City]).schema
    assert schema["properties"] == {"result": {"items": {"$ref": "#/$defs/City"}, "type": "array"}}
    assert schema["required"] == ["result"]
    assert schema["$defs"]["City"]["type"] == "object"
    assert "result" not in Output(City).schema["properties"]


def test_a_recursive_model_is_an_object_at_its_root() -> None:
    schema = Output(Tree).schema
    assert "$ref" not in schema
    assert schema["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}
    assert schema["$defs"]["Tree"]["properties"].keys() == {"value", "children"}
    with pytest.raises(InvalidPayloadError, match=r"children\.0\.children\.0\.value: "):
        Output(Tree).validate({"value": 1, "children": [{"value": 2, "children": [{"value": "x"}]}]})


def test_strict_models_read_json() -> None:
    """A date is text in JSON, a set and a tuple are lists."""
    payload = {"day": "2026-11-30", "colour": "red", "tags": ["a"], "point": [1, 2]}
    made = Output(StrictEvent).validate(payload)
    assert made == StrictEvent(day=date(2026, 11, 30), colour=Colour.RED, tags={"a"}, point=(1, 2))
    with pytest.raises(InvalidPayloadError, match=r"point\.0: Input should be a valid integer"):
        Output(StrictEvent).validate({**payload, "point": ["1", 2]})


@pytest.mark.parametrize(
    ("kind", "payload", "words"),
    [
        (City, {"name": "Rome"}, "people: Field required"),
        (City, {"people": "x"}, "name: Field required; people: Input should be a valid integer"),
        (City, "Rome, 3", "it must be one JSON object, but got 'Rome, 3'"),
        (list[int], {"result": [1, "x"]}, "in result: 1: Input should be a valid integer"),
        (list[int], {"results": [1]}, "result: Field required"),
        (int, {"result": "x"}, "in result: payload: Input should be a valid integer"),
        (Point, {"x": None}, "x: Input should be a valid integer"),
        (Animal, {"result": {"kind": "cow"}}, "in result: payload: Input tag 'cow' found"),
    ],
)
def test_what_does_not_fit_is_told(kind: Any, payload: Any, words: str) -> None:
    with pytest.raises(InvalidPayloadError) as raised:
        Output(kind).validate(payload)
    assert words in str(raised.value)
    assert "pydantic.dev" not in str(raised.value)


def test_what_is_told_has_an_end() -> None:
    with pytest.raises(InvalidPayloadError) as raised:
        Output(list[int]).validate({"result": ["x"] * 1000})
    assert 1000 < len(str(raised.value)) < 2100
    schema = {"type": "object", "properties": {"x": {"enum": ["y" * 5000]}}}
    with pytest.raises(InvalidPayloadError) as raised:
        Output(schema).validate({"x": "z"})
    assert 1000 < len(str(raised.value)) < 2100


class Picky(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def known(cls, name: str) -> str:
        if name == "rule":
            raise ValueError("the name must not be a rule")
        return {"a": "A"}[name]


def test_a_callers_validator_may_fail_in_any_way() -> None:
    assert Output(Picky).validate({"name": "a"}) == Picky.model_construct(name="A")
    with pytest.raises(InvalidPayloadError, match="name: Value error, the name must not be a rule"):
        Output(Picky).validate({"name": "rule"})
    with pytest.raises(InvalidPayloadError, match="KeyError"):
        Output(Picky).validate({"name": "b"})


# JSON schemas

PLACE = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 2}, "people": {"type": "integer"}},
    "required": ["name"],
    "additionalProperties": False,
}


def test_a_json_schema_gives_what_was_sent() -> None:
    output = Output(PLACE)
    assert output.schema == PLACE
    payload = {"name": "Rome"}
    assert output.validate(payload) == {"name": "Rome"}
    with pytest.raises(InvalidPayloadError) as raised:
        output.validate({"name": "R", "people": 1.5})
    assert str(raised.value) == "name: 'R' is too short; people: 1.5 is not of type 'integer'"
    with pytest.raises(InvalidPayloadError, match=r"^payload: 'name' is a required property$"):
        output.validate({})


def test_a_json_schema_is_read_once() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    output = Output(schema)
    schema["properties"]["x"]["type"] = "string"
    assert output.validate({"x": 1}) == {"x": 1}
    assert output.schema["properties"]["x"] == {"type": "integer"}


@pytest.mark.parametrize(
    ("schema", "value", "wrong"),
    [
        ({"type": "array", "items": {"type": "integer"}}, [1], ["x"]),
        ({"type": "string"}, "x", 1),
        ({"enum": [1, None]}, None, 2),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, None, "x"),
        ({"type": ["object", "null"], "properties": {"x": {"type": "integer"}}}, None, {"x": "y"}),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, {"a": 1}, {"a": "x"}),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "type": "integer"}, 1, "x"),
        ({"$schema": "urn:nobody-knows-it", "type": "integer"}, 1, "x"),
        ({"$id": "urn:mine", "$defs": {"n": {"type": "integer"}}, "$ref": "#/$defs/n"}, 1, "x"),
        ({"$id": "https://x/s", "$defs": {"n": {"type": "integer"}}, "$ref": "https://x/s#/$defs/n"}, 1, "x"),
        ({"$id": "https://x/s", "$defs": {"n": {"type": "integer"}}, "$ref": "s#/$defs/n"}, 1, "x"),
        ({"$id": "urn:mine", "$defs": {"n": {"type": "integer"}}, "$ref": "urn:mine#/$defs/n"}, 1, "x"),
        (
            {"$id": "https://x/s", "type": "array", "items": {"anyOf": [{"type": "integer"}, {"$ref": "https://x/s"}]}},
            [1, [2]],
            ["x"],
        ),
        # whose references lead from the root
        ({"type": "array", "items": {"anyOf": [{"type": "integer"}, {"$ref": "#"}]}}, [1, [2, [3]]], [1, ["x"]]),
        (
            {"type": "array", "prefixItems": [{"type": "integer"}, {"$ref": "#/prefixItems/0"}], "minItems": 2},
            [1, 2],
            [1, "x"],
        ),
        (
            {"definitions": {"n": {"type": "integer"}}, "type": "array", "items": {"$ref": "#/definitions/n"}},
            [1],
            ["x"],
        ),
        (
            {"$defs": {"node": {"anyOf": [{"type": "integer"}, {"$ref": "#"}]}}, "type": "array",
             "items": {"$ref": "#/$defs/node"}},
            [1, [2]],
            [[["x"]]],
        ),
    ],
)  # fmt: skip
def test_a_json_schema_of_anything_else_is_a_property(schema: dict[str, Any], value: Any, wrong: Any) -> None:
    output = Output(schema)
    assert output.validate({"result": value}) == value
    with pytest.raises(InvalidPayloadError):
        output.validate({"result": wrong})
    # what is asked for is the same
    asked = Draft202012Validator(output.schema)
    assert asked.is_valid({"result": value})
    assert not asked.is_valid({"result": wrong})
    assert "$schema" not in output.schema["properties"]["result"]
    assert "https://x/s" not in str(output.schema)


def test_names_that_look_like_keywords_are_names() -> None:
    schema = {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"$ref": {"type": "string"}, "default": {"$ref": "#/items/properties/$ref"}},
            "default": {"$ref": "#"},
        },
    }
    inner = Output(schema).schema["properties"]["result"]["items"]
    assert inner["properties"]["default"] == {"$ref": "#/properties/result/items/properties/$ref"}
    assert inner["properties"]["$ref"] == {"type": "string"}
    assert inner["default"] == {"$ref": "#"}


def test_a_root_that_refers_keeps_what_is_beside_it() -> None:
    defined = {"A": {"$ref": "#/$defs/B"}, "B": {"type": "object", "properties": {"x": {}}, "title": "B"}}
    schema = Output({"$defs": defined, "$ref": "#/$defs/A", "title": "Mine"}).schema
    assert schema == {"$defs": defined, "type": "object", "properties": {"x": {}}, "title": "Mine"}
    # a rule beside the reference would be lost in its target, or the target's in it
    both = {"$defs": defined, "$ref": "#/$defs/A", "required": ["x"]}
    assert Output(both).schema["properties"] == {"result": {"$ref": "#/$defs/A", "required": ["x"]}}


def test_a_schema_that_never_ends_is_the_payloads_fault() -> None:
    with pytest.raises(InvalidPayloadError, match="RecursionError"):
        Output({"allOf": [{"$ref": "#"}]}).validate({"result": "x"})


def ring(*names: str) -> dict[str, Any]:
    """Definitions that refer to one another."""
    return {
        name: {"$ref": f"#/$defs/{to}", "title": name} for name, to in zip(names, names[1:] + names[:1], strict=True)
    }


@pytest.mark.parametrize(
    ("schema", "reference"),
    [
        ({"$ref": "#"}, "#"),
        ({"type": "string", "pattern": "^(a+)+$", "$ref": "#"}, "#"),
        ({"$defs": ring("A"), "type": "array", "items": {"$ref": "#/$defs/A"}}, "#/$defs/A"),
        ({"$defs": ring("A", "B"), "type": "object", "properties": {"x": {"$ref": "#/$defs/A"}}}, "#/$defs/B"),
        ({"$id": "https://x/s", "$defs": ring("A", "B", "C"), "type": "string"}, "#/$defs/B"),
    ],
)
def test_references_lead_to_a_schema(schema: dict[str, Any], reference: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Output(schema)
    assert str(raised.value) == (
        f"output must have references that lead to a schema, but {reference!r} leads to references alone"
    )


def test_a_long_way_to_a_schema_is_one() -> None:
    far: dict[str, Any] = {f"N{index}": {"$ref": f"#/$defs/N{index + 1}"} for index in range(60)}
    output = Output({"$defs": {**far, "N60": {"type": "null"}}, "type": "array", "items": {"$ref": "#/$defs/N0"}})
    assert output.validate({"result": [None]}) == [None]


def test_a_name_that_is_needed_is_refused() -> None:
    """What is sent has no name of its own, so that nothing in it can be found by it."""
    named = {"$id": "a", "type": "integer"}
    schema = {"$id": "https://x/s", "$defs": {"n": named}, "type": "array", "items": {"$ref": "https://x/a"}}
    with pytest.raises(ConfigurationError, match="own parts only, but 'https://x/a' is not among them"):
        Output(schema)


# errors at construction


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def test_a_schema_may_not_be_too_deep() -> None:
    payload: Any = 1
    for _ in range(49):
        payload = {"a": payload}
    assert Output(nested(49)).validate(payload) == payload
    endless: dict[str, Any] = {"type": "object"}
    endless["properties"] = {"a": endless, "b": endless}
    kind: Any = int
    for _ in range(150):
        kind = list[kind]
    words = "^output must have a schema of at most 100 objects and lists inside one another, but got more$"
    for deep in (nested(50), nested(200), nested(5000), endless, kind):
        with pytest.raises(ConfigurationError, match=words):
            Output(deep)
    for _ in range(250):
        kind = list[kind]
    with pytest.raises(ConfigurationError, match=r"^output must have a JSON schema, but list.* has none: "):
        Output(kind)


def test_boolean_schemas_are_schemas() -> None:
    output = Output({"type": "object", "properties": {"a": {"allOf": [True]}}})
    assert output.validate({"a": [1]}) == {"a": [1]}


def local_class() -> type:
    class Local(BaseModel):
        other: Missing  # type: ignore[name-defined]  # noqa: F821

    return Local


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Output(object()), r"output must have a JSON schema, but <object object at \w+> has none: "),
        (lambda: Output(Callable[[int], int]), "has none: Cannot generate a JsonSchema"),
        (lambda: Output(type), "has none: Cannot generate a JsonSchema"),
        (lambda: Output(local_class()), "has none: `.*Local.*` is not fully defined"),
        (
            lambda: Output(local_class),
            "^output must be a type, a JSON schema or an Output, but got function local_class$",
        ),
        (lambda: Output([].append), "^output must be a type, a JSON schema or an Output, but got function append$"),
        (lambda: Output(partial(local_class)), r"or an Output, but got function functools\.partial"),
        (lambda: Output("City"), "^output must be a type here, but got 'City'$"),
        (lambda: Output(Output(City)), "^output must be a type here, but got <Output 'City' auto>$"),
        (lambda: Output({"type": "banana"}), "output must be a JSON schema, but it is none: 'banana' is not"),
        (lambda: Output({"required": "x"}), "output must be a JSON schema, but it is none: 'x' is not of type 'array'"),
        (
            lambda: Output({"type": "array", "items": {"$ref": "#/$defs/Missing"}}),
            "^output must refer to its own parts only, but '#/\\$defs/Missing' is not among them$",
        ),
        (lambda: Output({"$ref": "http://127.0.0.1:9/schema"}), "own parts only, but 'http://127.0.0.1:9/schema' is"),
        (lambda: Output(City, mode="forced"), "^mode must be one of auto, native, cooperative, coercive, but got"),  # type: ignore[arg-type]
        (lambda: Output(City, retries=-1), "^retries must be a whole number >= 0, but got -1$"),
        (lambda: Output(City, retries=True), "^retries must be a whole number >= 0, but got True$"),
        (lambda: Output(City, description=""), "^description must not be empty, but got ''$"),
        (lambda: Output(City, description=" "), "^description must not be empty, but got ' '$"),
        (lambda: Output(City, description=None), "^description must be str, but got None$"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_work_is_said_at_once(make: Callable[[], Output], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pydantic reads both there")
def test_a_typed_dict_of_the_wrong_module_is_told_the_right_one() -> None:
    class Titled(typing.TypedDict):
        title: str

    with pytest.raises(ConfigurationError, match=r"has none: Please use `typing_extensions\.TypedDict` instead of"):
        Output(Titled)


def test_a_json_schema_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    own = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("jsonschema"):
            raise ImportError(name)
        return own(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigurationError, match=r'pip install "rxloop\[schema\]"'):
        Output(PLACE)
    # a type does not
    assert Output(City).validate({"name": "Rome", "people": 3}) == City(name="Rome", people=3)


def test_what_an_output_says_of_itself() -> None:
    output = Output(City, mode="coercive", retries=3, description="The city.")
    assert (output.kind, output.mode, output.retries, output.description) == (City, "coercive", 3, "The city.")
    assert repr(output) == "<Output 'City' coercive>"
    assert repr(Output(PLACE)) == "<Output 'of a schema' auto>"
    assert Output(City).retries == 1
    assert "final answer" in Output(City).description


def test_the_error_carries_its_payload() -> None:
    error = InvalidOutputError("it does not fit", payload={"name": 1})
    assert error.to_dict() == {
        "kind": "invalid_output",
        "status": None,
        "message": "it does not fit",
        "retryable": False,
        "payload": {"name": 1},
    }
    copied = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (type(copied), str(copied), copied.payload) == (InvalidOutputError, "it does not fit", {"name": 1})
