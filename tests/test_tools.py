from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
import reactivex
from pydantic import BaseModel, Field
from reactivex import Observable

from rxloop.errors import ConfigurationError
from rxloop.tools import CancellationToken, InvalidArgumentsError, Tool, ToolContext, ToolDeclaration, tool


class Unit(Enum):
    CELSIUS = "C"
    FAHRENHEIT = "F"


class Place(BaseModel):
    city: str
    country: str = "DE"


@dataclass
class Point:
    x: int
    y: int = 0


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    return dict(tool(function).declaration.schema)


# the declaration


def test_a_function_becomes_a_declaration() -> None:
    def add(a: int, b: int = 2) -> int:
        """Add two numbers."""
        return a + b

    made = tool(add)
    assert made.declaration == ToolDeclaration(
        name="add",
        description="Add two numbers.",
        schema={
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 2}},
            "required": ["a"],
            "additionalProperties": False,
        },
    )
    assert (made.name, made.kind, made.timeout, made.sequential) == ("add", "sync", None, False)
    assert made.function is add
    assert made(1, b=5) == 6
    assert repr(made) == "<Tool 'add' sync>"


def test_everything_can_be_said_explicitly() -> None:
    @tool(name="sum", description="Sums.", timeout=5, sequential=True, fields={"cache_control": {"type": "ephemeral"}})
    def add(a: int) -> int:
        """Add."""
        return a

    assert add.declaration.name == "sum"
    assert add.declaration.description == "Sums."
    assert add.declaration.fields == {"cache_control": {"type": "ephemeral"}}
    assert (add.timeout, add.sequential) == (5, True)


def test_an_empty_description_is_one() -> None:
    @tool(description="")
    def add(a: int) -> int:
        """Add."""
        return a

    assert add.declaration.description == ""


def test_a_function_without_parameters_takes_an_empty_object() -> None:
    def now() -> str:
        return "12:00"

    made = tool(now)
    assert made.declaration.schema == {"type": "object", "properties": {}, "additionalProperties": False}
    assert made.declaration.description == ""
    assert made.validate({}) == {}


def test_annotations_reach_the_schema() -> None:
    def book(
        count: Annotated[int, Field(ge=1, le=9, description="how many")],
        unit: Unit,
        place: Place,
        point: Point,
        when: dt.date | None = None,
        mode: Literal["fast", "slow"] = "fast",
        tags: list[str] | None = None,
    ) -> None:
        pass

    schema = schema_of(book)
    properties = schema["properties"]
    assert properties["count"] == {"type": "integer", "minimum": 1, "maximum": 9, "description": "how many"}
    assert properties["mode"] == {"type": "string", "enum": ["fast", "slow"], "default": "fast"}
    assert properties["when"]["anyOf"] == [{"type": "string", "format": "date"}, {"type": "null"}]
    assert properties["tags"]["anyOf"] == [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]
    assert schema["required"] == ["count", "unit", "place", "point"]
    definitions = schema["$defs"]
    assert definitions["Unit"]["enum"] == ["C", "F"]
    assert definitions["Place"]["properties"]["city"] == {"type": "string"}
    assert definitions["Place"]["required"] == ["city"]
    assert set(definitions["Point"]["properties"]) == {"x", "y"}


def test_validated_arguments_are_what_the_annotations_say() -> None:
    def book(
        count: Annotated[int, Field(ge=1)], unit: Unit, place: Place, point: Point, when: dt.date | None = None
    ) -> None:
        pass

    validate = tool(book).validate
    assert validate({"count": "3", "unit": "F", "place": {"city": "Ulm"}, "point": {"x": 1}, "when": "2026-02-03"}) == {
        "count": 3,
        "unit": Unit.FAHRENHEIT,
        "place": Place(city="Ulm"),
        "point": Point(1),
        "when": dt.date(2026, 2, 3),
    }
    with pytest.raises(InvalidArgumentsError) as caught:
        validate({"count": 0, "unit": "K", "place": {}, "point": {"x": 1}, "more": 1})
    message = str(caught.value)
    assert "count: Input should be greater than or equal to 1" in message
    assert "unit: Input should be 'C' or 'F'" in message
    assert "place.city: Field required" in message
    assert "more: Unexpected keyword argument" in message
    assert "errors.pydantic.dev" not in message


def test_a_default_is_left_to_the_function_or_filled_in() -> None:
    def add(a: int, b: int = 2) -> int:
        return a + b

    made = tool(add)
    assert made.function(**made.validate({"a": 1})) == 3
    assert made.function(**made.validate({"a": 1, "b": 5})) == 6


@pytest.mark.parametrize(
    "name", ["schema", "model_config", "json", "copy", "arguments", "function", "self_", "cls", "kwargs", "return_"]
)
def test_a_parameter_may_have_any_name(name: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def probe({name}: int, *, validate: str = 'x'): return {name}", namespace)  # noqa: S102
    made = tool(namespace["probe"])
    assert set(made.declaration.schema["properties"]) == {name, "validate"}
    assert made.function(**made.validate({name: 7})) == 7
    with pytest.raises(InvalidArgumentsError, match=name):
        made.validate({name: "seven"})


def test_keyword_only_parameters_and_a_required_one_behind_a_default() -> None:
    def move(context: ToolContext, x: int = 1, *, y: int) -> tuple[int, int]:
        return x, y

    made = tool(move)
    assert made.declaration.schema["required"] == ["y"]
    assert made.validate({"y": 2}) == {"x": 1, "y": 2}


def test_parameters_without_annotation_take_anything() -> None:
    def echo(value, other=None):  # type: ignore[no-untyped-def]
        return value

    made = tool(echo)
    assert made.declaration.schema["properties"]["value"] == {}
    assert made.validate({"value": [1, "x"]})["value"] == [1, "x"]


def test_schemas_do_not_repeat_the_names_as_titles() -> None:
    def book(place_name: str, place: Place) -> None:
        pass

    schema = schema_of(book)
    assert "title" not in schema["properties"]["place_name"]
    assert "title" not in schema["$defs"]["Place"]["properties"]["city"]


# the docstring


def test_the_args_section_describes_the_parameters() -> None:
    def move(x: int, y: Annotated[int, Field(description="from the field")], z: int = 0, *, fast: bool = False) -> int:
        """
        Move somewhere.

        It may take a while.

        Args:
            x: to the right,
                note: in metres.
            y: from the docstring.
            z (int, optional): upwards: always

            fast (bool): in a hurry
            unknown: not a parameter

        Returns:
            x: where it ended up.
        """
        return x

    made = tool(move)
    assert made.declaration.description == "Move somewhere.\n\nIt may take a while."
    assert {name: value.get("description") for name, value in made.declaration.schema["properties"].items()} == {
        "x": "to the right, note: in metres.",
        "y": "from the field",
        "z": "upwards: always",
        "fast": "in a hurry",
    }


@pytest.mark.parametrize("heading", ["Args:", "Arguments:", "Parameters:"])
def test_other_headings_of_the_section(heading: str) -> None:
    def move(x: int) -> int:
        return x

    move.__doc__ = f"Move.\n\n{heading}\n    x: right\n"
    assert schema_of(move)["properties"]["x"]["description"] == "right"


def test_a_docstring_that_is_a_section_only_describes_nothing_else() -> None:
    def move(x: int) -> int:
        """
        Args:
            x: right
        """
        return x

    made = tool(move)
    assert made.declaration.description == ""
    assert made.declaration.schema["properties"]["x"]["description"] == "right"


# the context


@pytest.mark.parametrize("position", ["first", "middle", "last", "keyword"])
def test_the_context_may_stand_anywhere(position: str) -> None:
    def first(context: ToolContext, a: int, b: int = 0) -> None: ...

    def middle(a: int, ctx: ToolContext, b: int = 0) -> None: ...

    def last(a: int, b: int, my_context: ToolContext) -> None: ...

    def keyword(a: int, b: int = 0, *, tool_context: ToolContext) -> None: ...

    functions: dict[str, tuple[Any, str]] = {
        "first": (first, "context"),
        "middle": (middle, "ctx"),
        "last": (last, "my_context"),
        "keyword": (keyword, "tool_context"),
    }
    function, name = functions[position]
    made = tool(function)
    assert made.context_parameter == name
    assert list(made.declaration.schema["properties"]) == ["a", "b"]
    with pytest.raises(InvalidArgumentsError, match="Unexpected keyword argument"):
        made.validate({"a": 1, "b": 2, name: "the model's"})


def test_without_a_context_parameter_there_is_none() -> None:
    assert tool(name="x")(lambda: 1).context_parameter is None


def test_a_cancellation_token_tells_once_and_for_all() -> None:
    token = CancellationToken()
    assert not token.cancelled
    assert not token.wait(0)
    token.cancel()
    token.cancel()
    assert token.cancelled
    assert token.wait()


def test_a_context_has_a_token_of_its_own() -> None:
    contexts = [ToolContext("a", "t", 0, print) for _ in range(2)]
    contexts[0].cancellation.cancel()
    assert not contexts[1].cancellation.cancelled


# kinds of callables


def test_kinds() -> None:
    def sync() -> int:
        return 1

    async def asynchronous() -> int:
        return 1

    def observable() -> Observable[int]:
        return reactivex.of(1)

    class Callables:
        def method(self) -> Observable[int]:
            return reactivex.of(1)

        async def async_method(self) -> int:
            return 1

        async def __call__(self) -> int:
            return 1

    given = Callables()
    assert [
        tool(function).kind for function in (sync, asynchronous, observable, given.method, given.async_method, given)
    ] == ["sync", "async", "observable", "observable", "async", "async"]
    assert tool(functools.partial(asynchronous)).kind == "async"
    assert tool(functools.partial(observable)).kind == "observable"


def test_a_bound_method_is_a_tool() -> None:
    class Counter:
        def __init__(self) -> None:
            self.value = 0

        def increase(self, by: int = 1) -> int:
            """Increase it."""
            self.value += by
            return self.value

    counter = Counter()
    made = tool(counter.increase)
    assert made.name == "increase"
    assert list(made.declaration.schema["properties"]) == ["by"]
    assert made.function(**made.validate({"by": 3})) == counter.value == 3


def test_a_callable_object_is_a_tool() -> None:
    class Greeter:
        """Greet somebody."""

        def __call__(self, name: str, context: ToolContext) -> str:
            return f"hello {name}"

    made = tool(Greeter())
    assert made.name == "Greeter"
    assert made.declaration.description == "Greet somebody."
    assert list(made.declaration.schema["properties"]) == ["name"]
    assert made.context_parameter == "context"


def test_a_partial_is_a_tool() -> None:
    def add(a: int, b: int, c: int = 0) -> int:
        """Add."""
        return a + b + c

    made = tool(functools.partial(functools.partial(add, 1), c=5))
    assert made.name == "add"
    assert made.declaration.description == "Add."
    assert made.declaration.schema["properties"] == {"b": {"type": "integer"}, "c": {"type": "integer", "default": 5}}
    assert made.function(**made.validate({"b": "2"})) == 8
    with pytest.raises(InvalidArgumentsError, match="b: Input should be a valid integer"):
        made.validate({"b": "x"})


def test_a_wrapped_function_is_a_tool() -> None:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @tool
    @logged
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    assert list(add.declaration.schema["properties"]) == ["a", "b"]
    assert add.function(**add.validate({"a": 1, "b": 2})) == 3


# what cannot be a tool


def variadic(*numbers: int) -> int:
    return sum(numbers)


def open_ended(**options: int) -> int:
    return len(options)


def positional(a: int, /) -> int:
    return a


def opaque(value: Callable[[int], str]) -> None: ...


def unresolved(value: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("function", "rule"),
    [
        (variadic, "tool 'variadic' must take its parameters by keyword, but 'numbers' is variadic positional"),
        (open_ended, "but 'options' is variadic keyword"),
        (positional, "but 'a' is positional-only"),
        (opaque, "every parameter of tool 'opaque' must have a JSON schema, but 'value' has none"),
        (unresolved, "the signature of tool 'unresolved' cannot be read: name 'Nowhere' is not defined"),
        (7, "@tool must be put on a function, but got 7"),
        ("add", "@tool must be put on a function, but got 'add'"),
    ],
)
def test_what_cannot_be_called_with_keywords_is_a_configuration_error(function: Any, rule: str) -> None:
    with pytest.raises(ConfigurationError, match=rule):
        tool(function)


class Plain:
    def method(self, value: int) -> int:
        return value


def test_a_method_is_a_tool_when_it_is_bound() -> None:
    with pytest.raises(ConfigurationError, match="must be called without 'self': make the tool of the bound method"):
        tool(Plain.method)
    assert tool(Plain().method).declaration.schema["required"] == ["value"]


def test_a_lambda_needs_a_name() -> None:
    with pytest.raises(ConfigurationError, match="a lambda must have a name"):
        tool(lambda: 1)


@pytest.mark.parametrize("timeout", [0, -1, True, "5", float("nan")])
def test_the_timeout_is_checked_at_once(timeout: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^timeout must be > 0 seconds, but got {timeout!r}$"):
        tool(name="one", timeout=timeout)(lambda: 1)


@pytest.mark.parametrize("name", ["", 7])
def test_a_name_must_be_a_text(name: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"a tool's name must be a non-empty string, but got {name!r}"):
        Tool.from_schema(name, "", {"type": "object"}, print)


# tools with a schema of their own

SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}


def test_from_schema_passes_the_arguments_as_one_dict() -> None:
    seen: list[Any] = []

    def search(arguments: dict[str, Any]) -> str:
        seen.append(arguments)
        return "found"

    made = Tool.from_schema("search", "Search.", SCHEMA, search, fields={"strict": True}, timeout=3, sequential=True)
    assert made.declaration == ToolDeclaration("search", "Search.", SCHEMA, {"strict": True})
    assert (made.kind, made.timeout, made.sequential) == ("sync", 3, True)
    keywords = made.validate({"q": "x", "more": 1})
    assert made.function(**keywords, context=ToolContext("a", "search", 0, print)) == "found"
    assert seen == [{"q": "x", "more": 1}]


def test_from_schema_gives_a_context_to_whoever_takes_one() -> None:
    context = ToolContext("a", "search", 0, print)
    made = Tool.from_schema("search", "", SCHEMA, lambda arguments, context: context)
    assert made.context_parameter == "context"
    assert made.function(**made.validate({"q": "x"}), context=context) is context


def test_from_schema_checks_what_is_required() -> None:
    made = Tool.from_schema("search", "", {**SCHEMA, "required": ["q", "n"]}, print)
    with pytest.raises(InvalidArgumentsError, match=r"^missing required argument\(s\): q, n$"):
        made.validate({})


def test_from_schema_takes_a_check_of_the_callers() -> None:
    def validate(arguments: dict[str, Any]) -> None:
        if len(arguments["q"]) < 3:
            raise ValueError("q must have 3 letters")

    made = Tool.from_schema("search", "", SCHEMA, print, validate=validate)
    with pytest.raises(InvalidArgumentsError, match=r"^q must have 3 letters$"):
        made.validate({"q": "x"})
    with pytest.raises(InvalidArgumentsError, match="missing"):
        made.validate({})
    assert made.validate({"q": "xyz"}) == {"arguments": {"q": "xyz"}}


def test_from_schema_knows_the_kinds() -> None:
    async def asynchronous(arguments: dict[str, Any]) -> int:
        return 1

    def observable(arguments: dict[str, Any]) -> Observable[int]:
        return reactivex.of(1)

    assert [
        Tool.from_schema("x", "", SCHEMA, function).kind for function in (asynchronous, observable, lambda _: 1)
    ] == ["async", "observable", "sync"]


def test_from_schema_survives_annotations_that_mean_nothing_here() -> None:
    def search(arguments: Nowhere) -> Nowhere:  # type: ignore[name-defined]  # noqa: F821
        return arguments

    assert Tool.from_schema("search", "", SCHEMA, search).kind == "sync"


@pytest.mark.parametrize("schema", [{}, {"type": "string"}, {"type": ["object", "null"]}])
def test_from_schema_wants_an_object(schema: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="the schema of tool 'x' must have type 'object', but got"):
        Tool.from_schema("x", "", schema, print)
