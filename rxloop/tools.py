"""Tools: what a model may call, how its arguments are checked, and what a running call can see."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast, get_origin, get_type_hints, overload

from reactivex import Observable

from rxloop.checks import positive_seconds
from rxloop.errors import ConfigurationError, describe

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

__all__ = (
    "CancellationToken",
    "InvalidArgumentsError",
    "ResolveTool",
    "Tool",
    "ToolContext",
    "ToolDeclaration",
    "tool",
)


class InvalidArgumentsError(ValueError):
    """The model's arguments do not fit the tool; the message is what the model reads."""


class CancellationToken:
    """
    Tells a running tool that nobody waits for it any more.

    An async tool is cancelled as well; a synchronous tool runs in a thread that cannot be stopped, and should look
    at the token, or `wait` on it, at convenient points.
    """

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = threading.Event()

    @property
    def cancelled(self) -> bool:
        """Whether the call was abandoned."""
        return self._event.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Block the tool's own thread until the call is abandoned or `seconds` have passed; return `cancelled`."""
        return self._event.wait(seconds)

    def cancel(self) -> None:
        """Abandon the call."""
        self._event.set()


@dataclass(frozen=True, slots=True)
class ToolContext:
    """
    What a call knows of itself: a parameter annotated with this type receives it and is not part of the schema.

    Args:
        call_id: the call's identifier.
        name: the tool's name.
        step: the step that asked for the call.
        report: emits a `tool_progress` event with a JSON-able value, from any thread.
        cancellation: tells when nobody waits any more.
    """

    call_id: str
    name: str
    step: int
    report: Callable[[Any], None]
    cancellation: CancellationToken = field(default_factory=CancellationToken)


@dataclass(frozen=True, slots=True)
class ToolDeclaration:
    """
    What a provider is told of a tool.

    Args:
        name: the caller's name for it; adapters make it valid for their provider.
        description: what the model reads.
        schema: JSON schema of the arguments, an object.
        fields: further fields of the provider's own declaration, such as ``cache_control``.
    """

    name: str
    description: str
    schema: Mapping[str, Any]
    fields: Mapping[str, Any] = field(default_factory=dict)


Kind = Literal["sync", "async", "observable"]
Validate = Callable[[dict[str, Any]], dict[str, Any]]


class Tool:
    """
    A function that a model may call. Made by `tool` or by `Tool.from_schema`; calling it calls the function.

    Args:
        declaration: what the provider is told.
        function: called with the validated arguments as keywords.
        kind: "sync" runs in a thread of its own, "async" on the event loop, "observable" is called on the event
            loop and its last value is the output.
        validate: turns the model's arguments into keywords, or raises `InvalidArgumentsError`.
        context_parameter: the keyword that receives the `ToolContext`.
        timeout: seconds after which a call is abandoned; ``None`` leaves it to the turn's ``tool_timeout``.
        sequential: no other call of the same step runs beside it.
    """

    __slots__ = ("context_parameter", "declaration", "function", "kind", "sequential", "timeout", "validate")

    def __init__(
        self,
        declaration: ToolDeclaration,
        function: Callable[..., Any],
        *,
        kind: Kind,
        validate: Validate,
        context_parameter: str | None = None,
        timeout: float | None = None,
        sequential: bool = False,
    ) -> None:
        positive_seconds("timeout", timeout)
        if not isinstance(declaration.name, str) or not declaration.name:
            raise ConfigurationError(f"a tool's name must be a non-empty string, but got {declaration.name!r}")
        self.declaration = declaration
        self.function = function
        self.kind = kind
        self.validate = validate
        self.context_parameter = context_parameter
        self.timeout = timeout
        self.sequential = sequential

    @property
    def name(self) -> str:
        """The name under which it is declared."""
        return self.declaration.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, without validation."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Tool {self.name!r} {self.kind}>"

    @classmethod
    def from_schema(
        cls,
        name: str,
        description: str,
        schema: Mapping[str, Any],
        function: Callable[..., Any],
        *,
        validate: Callable[[dict[str, Any]], Any] | None = None,
        fields: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        sequential: bool = False,
    ) -> Tool:
        """
        Make a tool from a JSON schema that you have already.

        Args:
            name: the tool's name.
            description: what the model reads.
            schema: JSON schema of an object; sent as it is.
            function: called with the arguments as one dict and, if it takes a second parameter, a `ToolContext`;
                sync, async, or annotated to return an observable.
            validate: raises `ValueError` to refuse the arguments; without it only the presence of the schema's
                ``required`` properties is checked.
            fields: further fields of the provider's own declaration.
            timeout: seconds after which a call is abandoned.
            sequential: no other call of the same step runs beside it.

        Raises:
            ConfigurationError: the schema does not describe an object.
        """
        if schema.get("type") != "object":
            raise ConfigurationError(
                f"the schema of tool {name!r} must have type 'object', but got {schema.get('type')!r}"
            )
        required = tuple(schema.get("required") or ())
        returns = None
        with contextlib.suppress(NameError, TypeError):
            returns = _hints(function).get("return")
        takes_context = len(inspect.signature(function).parameters) > 1

        def check(arguments: dict[str, Any]) -> dict[str, Any]:
            missing = [key for key in required if key not in arguments]
            if missing:
                raise InvalidArgumentsError(f"missing required argument(s): {', '.join(missing)}")
            if validate is not None:
                try:
                    validate(arguments)
                except ValueError as error:
                    raise InvalidArgumentsError(describe(error).partition(": ")[2]) from error
            return {"arguments": arguments}

        def call(arguments: dict[str, Any], context: ToolContext) -> Any:
            return function(arguments, context) if takes_context else function(arguments)

        return cls(
            ToolDeclaration(name, description, dict(schema), dict(fields or {})),
            call,
            kind=_kind(function, returns),
            validate=check,
            context_parameter="context",
            timeout=timeout,
            sequential=sequential,
        )


ResolveTool = Callable[[str], Tool | Awaitable[Tool | None] | None]


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    sequential: bool = False,
    fields: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    sequential: bool = False,
    fields: Mapping[str, Any] | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """
    Make a tool of a function: its signature is the schema, its docstring the description.

    Arguments are validated with pydantic before the call, so every annotation that pydantic knows works, and
    ``Annotated[int, Field(ge=0)]`` too; a parameter without an annotation takes anything. A Google-style ``Args:``
    section describes the parameters.

    Args:
        function: sync (runs in a thread), async, or annotated to return an observable whose last value is the
            output.
        name: the tool's name; the function's own by default.
        description: what the model reads; the docstring by default.
        timeout: seconds after which a call is abandoned and answered with an error; no limit by default.
        sequential: no other call of the same step runs beside it.
        fields: further fields of the provider's own declaration, such as ``cache_control``.

    Raises:
        ConfigurationError: the signature has no JSON schema, or cannot be called with keywords.
    """
    if function is None:
        return lambda function: _tool(function, name, description, timeout, sequential, fields)
    return _tool(function, name, description, timeout, sequential, fields)


def _tool(
    function: Callable[..., Any],
    name: str | None,
    description: str | None,
    timeout: float | None,
    sequential: bool,
    fields: Mapping[str, Any] | None,
) -> Tool:
    if not callable(function):
        raise ConfigurationError(f"@tool must be put on a function, but got {function!r}")
    inner = _unwrapped(function)
    name = name or str(getattr(inner, "__name__", type(inner).__name__))
    if name == "<lambda>":
        raise ConfigurationError("a tool made of a lambda must have a name: rxloop.tool(name=…)(lambda …)")
    summary, parameter_docs = _documentation(inspect.getdoc(inner) or "")
    signature, hints, context_parameter = _signature(name, function)
    arguments, schema = _arguments(name, signature, hints)
    for parameter, text in parameter_docs.items():
        if parameter in schema["properties"]:
            schema["properties"][parameter].setdefault("description", text)
    return Tool(
        ToolDeclaration(name, summary if description is None else description, schema, dict(fields or {})),
        function,
        kind=_kind(function, hints.get("return")),
        validate=_validator(arguments),
        context_parameter=context_parameter,
        timeout=timeout,
        sequential=sequential,
    )


def _signature(name: str, function: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Any], str | None]:
    try:
        signature = inspect.signature(function)
        hints = _hints(function)
    except (NameError, TypeError, ValueError) as error:
        raise ConfigurationError(f"the signature of tool {name!r} cannot be read: {error}") from error
    context_parameter = None
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigurationError(
                f"tool {name!r} must take its parameters by keyword, but {parameter.name!r} is "
                f"{parameter.kind.description}"
            )
        if not parameters and parameter.name in ("self", "cls") and parameter.name not in hints:
            raise ConfigurationError(
                f"tool {name!r} must be called without {parameter.name!r}: make the tool of the bound method, "
                f"rxloop.tool(something.{name})"
            )
        if hints.get(parameter.name) is ToolContext:
            context_parameter = parameter.name
        else:
            parameters.append(parameter)
    # the context is left out of the schema, so what follows a default may have none
    keyword_only = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    return inspect.Signature(keyword_only), hints, context_parameter


def _arguments(
    name: str, signature: inspect.Signature, hints: dict[str, Any]
) -> tuple[TypeAdapter[dict[str, Any]], dict[str, Any]]:
    # pydantic is the larger half of the import: it waits for the first tool
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError
    from pydantic.json_schema import GenerateJsonSchema

    class Untitled(GenerateJsonSchema):
        """Titles repeat the names; they would only cost tokens."""

        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

    def capture(**arguments: Any) -> dict[str, Any]:
        return arguments

    capture.__signature__ = signature  # type: ignore[attr-defined]
    capture.__annotations__ = {key: hints[key] for key in signature.parameters if key in hints}
    try:
        adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(cast(Any, capture))
        return adapter, adapter.json_schema(schema_generator=Untitled)
    except PydanticUserError as error:
        reason = str(error.message).splitlines()[0].rstrip(".")
        raise ConfigurationError(
            f"every parameter of tool {name!r} must have a JSON schema, but {_without_schema(hints)} has none: {reason}"
        ) from error


def _without_schema(hints: dict[str, Any]) -> str:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    for parameter, hint in hints.items():
        try:
            TypeAdapter(hint).json_schema()
        except PydanticUserError:
            return repr(parameter)
    return "one"


def _validator(arguments: TypeAdapter[dict[str, Any]]) -> Validate:
    from pydantic import ValidationError

    def validate(raw: dict[str, Any]) -> dict[str, Any]:
        try:
            return arguments.validate_python(raw)
        except ValidationError as error:
            raise InvalidArgumentsError(_readable(error)) from error

    return validate


def _unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    inner = _unwrapped(function)
    target = inner if inspect.isroutine(inner) else inner.__call__  # type: ignore[operator]
    return get_type_hints(target, include_extras=True)


def _kind(function: Callable[..., Any], returns: Any) -> Kind:
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    ):
        return "async"
    origin = get_origin(returns) or returns
    if isinstance(origin, type) and issubclass(origin, Observable):
        return "observable"
    return "sync"


def _readable(error: ValidationError) -> str:
    lines = []
    for item in error.errors(include_url=False, include_context=False):
        place = ".".join(str(part) for part in item["loc"]) or "arguments"
        lines.append(f"{place}: {item['msg']}")
    return "; ".join(lines)


_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns|Raises|Yields|Examples?|Notes?):\s*$")
_PARAMETER = re.compile(r"^(\s+)\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")


def _documentation(docstring: str) -> tuple[str, dict[str, str]]:
    """The text before the first section, and the parameters of the ``Args:`` section."""
    summary: list[str] = []
    parameters: dict[str, str] = {}
    section = current = None
    indent = 0
    for line in docstring.splitlines():
        if heading := _SECTION.match(line):
            section, current, indent = heading.group(1), None, 0
        elif section is None:
            summary.append(line)
        elif section in ("Args", "Arguments", "Parameters") and line.strip():
            found = _PARAMETER.match(line)
            if found and (not indent or len(found.group(1)) == indent):
                indent, current = len(found.group(1)), found.group(2)
                parameters[current] = found.group(3).strip()
            elif current:
                parameters[current] = f"{parameters[current]} {line.strip()}".strip()
    return "\n".join(summary).strip(), parameters
