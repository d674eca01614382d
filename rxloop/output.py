"""Structured output: what a turn's answer has to be, and how a model's attempt at it is checked."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import urldefrag, urljoin

from rxloop.checks import instance, whole
from rxloop.errors import ConfigurationError, describe

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError
    from referencing.jsonschema import SchemaRegistry

__all__ = ("FINAL_RESULT", "InvalidPayloadError", "Output", "OutputMode", "partial_snapshot", "validated_by")

FINAL_RESULT = "final_result"
"""The tool by which a model gives its answer where it has other tools."""

OutputMode = Literal["auto", "native", "cooperative", "coercive"]

_DESCRIPTION = "Give the final answer of this conversation and end it. Call it once you have what the answer needs."
_WRAPPED = "result"
_DEEPEST = 100
"""How many objects and lists a schema may have inside one another: whatever reads it does so by recursion."""

_LONGEST = 2000
"""How many characters of what is wrong a model reads."""

_DEFINITIONS = ("$defs", "definitions")
_ANNOTATIONS = frozenset(
    (*_DEFINITIONS, "$comment", "$schema", "default", "deprecated", "description", "examples", "title")
)
_MAPS = (*_DEFINITIONS, "dependentSchemas", "patternProperties", "properties")
_VALUES = ("const", "default", "enum", "examples")
"""Keywords whose values are no schemas."""


class InvalidPayloadError(ValueError):
    """The model's payload is not what was asked for; the message is what the model reads."""


class Output:
    """
    What a turn's answer has to be.

    A schema that is not of an object with properties is asked for as the only property, ``result``, of one.

    Args:
        kind: a pydantic model, a dataclass, a TypedDict or any other type that pydantic knows; or a JSON schema, whose
            payloads are validated with the package jsonschema (``pip install "rxloop[schema]"``).
        mode: how the model is brought to give it. ``native`` uses the provider's own way, without tools; a turn refuses
            a schema that this way cannot express.
            ``cooperative`` declares the tool ``final_result``, which the model calls when it is ready. ``coercive``
            also makes it call a tool in every step, and ``final_result`` in the last one. ``auto`` is the provider's
            native way without tools, and the adapter's own choice with tools.
        description: what the model reads of ``final_result``.
        retries: how many corrective steps an invalid payload gets; 0 or more.

    Raises:
        ConfigurationError: there is no JSON schema of the type, or a value breaks its rule.
    """

    __slots__ = ("_check", "_wrapped", "description", "kind", "mode", "retries", "schema")

    def __init__(
        self, kind: Any, *, mode: OutputMode = "auto", description: str = _DESCRIPTION, retries: int = 1
    ) -> None:
        if mode not in get_args(OutputMode):
            raise ConfigurationError(f"mode must be one of {', '.join(get_args(OutputMode))}, but got {mode!r}")
        instance("description", description, str)
        if not description.strip():
            raise ConfigurationError(f"description must not be empty, but got {description!r}")
        whole("retries", retries, minimum=0)
        schema, self._check = _of_schema(kind) if isinstance(kind, Mapping) else _of_type(kind)
        self.kind = kind
        self.mode: OutputMode = mode
        self.description = description
        self.retries = retries
        self.schema, self._wrapped = _asked_for(schema)

    def __repr__(self) -> str:
        return f"<Output {getattr(self.kind, '__name__', 'of a schema')!r} {self.mode}>"

    def validate(self, payload: dict[str, Any] | str) -> Any:
        """
        The value that a payload stands for.

        Args:
            payload: the parsed object, or the raw text where it is none.

        Raises:
            InvalidPayloadError: it does not fit; the message says where.
        """
        if not isinstance(payload, dict):
            raise InvalidPayloadError(f"it must be one JSON object, but got {payload!r:.200}")
        if not self._wrapped:
            return self._check(payload)
        if _WRAPPED not in payload:
            raise InvalidPayloadError(f"{_WRAPPED}: Field required")
        try:
            return self._check(payload[_WRAPPED])
        except InvalidPayloadError as error:
            raise InvalidPayloadError(f"in {_WRAPPED}: {error}") from error


def partial_snapshot(adapter: TypeAdapter[Any], text: str, *, wrapped: bool) -> tuple[Any, Any]:
    """
    The value that the beginning of a payload stands for, and the JSON value that it was made of.

    Raises:
        ValueError: it stands for none yet.
    """
    from pydantic_core import from_json, to_json

    value = from_json(text, allow_partial="trailing-strings")
    if wrapped:
        if not isinstance(value, dict) or _WRAPPED not in value:
            raise ValueError("there is no result yet")
        value = value[_WRAPPED]
    try:
        # as JSON, in which a date is text also where the model is strict
        return adapter.validate_json(to_json(value), experimental_allow_partial="trailing-strings"), value
    except Exception as error:
        # a validator of the caller's may not expect half a value
        raise ValueError(describe(error)) from error


def validated_by(kind: Any) -> tuple[TypeAdapter[Any], bool]:
    """
    What validates values of a type, and whether they are asked for inside an object.

    Raises:
        ConfigurationError: there is no JSON schema of the type.
    """
    adapter, schema = _adapter_of(kind)
    _, wrapped = _asked_for(schema)
    return adapter, wrapped


def _adapter_of(kind: Any) -> tuple[TypeAdapter[Any], dict[str, Any]]:
    # pydantic is the larger half of the import: it waits for whoever needs it
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    if isinstance(kind, (str, Mapping, Output)):
        raise ConfigurationError(f"output must be a type here, but got {kind!r:.200}")
    if inspect.isroutine(kind) or isinstance(kind, functools.partial):
        # pydantic would call it with what the model gives
        name = getattr(kind, "__name__", kind)
        raise ConfigurationError(f"output must be a type, a JSON schema or an Output, but got function {name!s:.200}")
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        schema = adapter.json_schema()
    except (PydanticUserError, NameError, RecursionError) as error:
        reason = str(getattr(error, "message", error)).partition("\n")[0].rstrip(".")
        raise ConfigurationError(f"output must have a JSON schema, but {kind!r:.200} has none: {reason}") from error
    _check_depth(schema)
    return adapter, schema


def _check_depth(schema: Mapping[str, Any]) -> None:
    """
    Check how deep a schema goes, without recursion.

    Raises:
        ConfigurationError: too deep.
    """
    level: list[Any] = [schema]
    for _ in range(_DEEPEST):
        inside = [part for node in level for part in (node.values() if isinstance(node, Mapping) else node)]
        # each but once: one that holds itself twice would be twice as many at each level
        level = list({id(part): part for part in inside if isinstance(part, (Mapping, list, tuple))}.values())
        if not level:
            return
    raise ConfigurationError(
        f"output must have a schema of at most {_DEEPEST} objects and lists inside one another, but got more"
    )


def _of_type(kind: Any) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    from pydantic import ValidationError
    from pydantic_core import to_json

    adapter, schema = _adapter_of(kind)

    def check(value: Any) -> Any:
        try:
            # as JSON, in which a date is text also where the model is strict
            return adapter.validate_json(to_json(value))
        except ValidationError as error:
            raise InvalidPayloadError(_readable(error)) from error
        except Exception as error:
            # a validator of the caller's
            raise InvalidPayloadError(describe(error)) from error

    return schema, check


def _of_schema(schema: Mapping[str, Any]) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    try:
        from jsonschema.exceptions import SchemaError
        from jsonschema.validators import Draft202012Validator, validator_for
    except ImportError as error:
        raise ConfigurationError(
            'output of a JSON schema needs the package jsonschema: pip install "rxloop[schema]"'
        ) from error
    _check_depth(schema)
    own = copy.deepcopy(dict(schema))
    cls = validator_for(own, default=Draft202012Validator)
    try:
        cls.check_schema(own)
    except SchemaError as error:
        raise ConfigurationError(f"output must be a JSON schema, but it is none: {error.message}") from error
    # a registry of its own: jsonschema would ask the network for what it does not find
    validator = cls(own, registry=_references_checked(own))

    def check(value: Any) -> Any:
        try:
            faults = [
                f"{'.'.join(map(str, fault.absolute_path)) or 'payload'}: {fault.message}"
                for fault in validator.iter_errors(value)
            ]
        except Exception as error:
            # such as a pattern that no regular expression is, or a reference that leads to itself
            raise InvalidPayloadError(describe(error)) from error
        if faults:
            raise InvalidPayloadError("; ".join(faults)[:_LONGEST])
        return value

    return _local(own), check


def _references_checked(schema: dict[str, Any]) -> SchemaRegistry:
    """
    What the references of a schema are looked up in.

    Raises:
        ConfigurationError: one leads nowhere, or by nothing but references to itself.
    """
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    resource = DRAFT202012.create_resource(schema)
    place = resource.id() or ""
    registry: SchemaRegistry = Registry().with_resource(place, resource)
    followed: set[int] = set()

    def looked_up(reference: str) -> str:
        resolver, passed = registry.resolver(place), set[int]()
        following: Any = reference
        while isinstance(following, str):
            try:
                found = resolver.lookup(following)
            except Unresolvable as error:
                raise ConfigurationError(
                    f"output must refer to its own parts only, but {following!r} is not among them"
                ) from error
            target: Any = found.contents
            if id(target) in passed:
                raise ConfigurationError(
                    f"output must have references that lead to a schema, but {reference!r} leads to references alone"
                )
            if id(target) in followed:
                break
            passed.add(id(target))
            resolver, following = found.resolver, target.get("$ref") if isinstance(target, Mapping) else None
        followed.update(passed)
        return reference

    _with_references(schema, looked_up)
    return registry


def _local(schema: Mapping[str, Any]) -> dict[str, Any]:
    """
    The schema with references to its own root, by the root's name, as references that need no name.

    Raises:
        ConfigurationError: without the name one leads nowhere.
    """
    name = schema.get("$id")
    if not isinstance(name, str) or not name.rstrip("#"):
        return dict(schema)
    own = urldefrag(name).url

    def local(reference: str) -> str:
        target = urldefrag(urljoin(own, reference))
        return f"#{target.fragment}" if target.url == own else reference

    changed: dict[str, Any] = _with_references(schema, local)
    _references_checked({key: value for key, value in changed.items() if key != "$id"})
    return changed


def _with_references(schema: Any, change: Callable[[str], str]) -> Any:
    """A copy of a schema with every reference in it changed."""
    if isinstance(schema, list):
        return [_with_references(item, change) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    changed: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str):
            changed[key] = change(value)
        elif key in _MAPS and isinstance(value, Mapping):
            # the names in it are the caller's
            changed[key] = {name: _with_references(item, change) for name, item in value.items()}
        else:
            changed[key] = value if key in _VALUES else _with_references(value, change)
    return changed


def _asked_for(schema: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """
    The schema that is asked for, which is of an object, and whether the answer is a property of it.

    An object without properties is one too, since not every provider lets a tool have such arguments.
    """
    root = _rooted(schema)
    if root.get("type") == "object" and root.get("properties"):
        return root, False
    return _in_object(schema), True


def _rooted(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with what its root refers to at its root, as a model that holds itself does: a tool must be so."""
    root = dict(schema)
    for _ in range(len(schema.get("$defs") or ()) + len(schema.get("definitions") or ())):
        _, _, path = str(root.get("$ref", "")).partition("#/")
        place, _, name = path.partition("/")
        target = (schema.get(place) or {}).get(name) if place in _DEFINITIONS else None
        if not isinstance(target, Mapping) or root.keys() - _ANNOTATIONS != {"$ref"}:
            break
        root = {**target, **{key: value for key, value in root.items() if key != "$ref"}}
    return root


def _in_object(schema: Mapping[str, Any]) -> dict[str, Any]:
    inner = {key: value for key, value in schema.items() if key not in (*_DEFINITIONS, "$id", "$schema")}
    outer: dict[str, Any] = {"type": "object", "properties": {_WRAPPED: inner}, "required": [_WRAPPED]}
    outer.update({key: schema[key] for key in _DEFINITIONS if key in schema})
    moved: dict[str, Any] = _with_references(outer, _moved)
    return moved


def _moved(reference: str) -> str:
    """A reference that leads from the root, leading to where the schema is now."""
    _, own, path = reference.partition("#")
    place = path.removeprefix("/").partition("/")[0]
    if not own or place in _DEFINITIONS or (path and not path.startswith("/")):
        return reference
    return f"#/properties/{_WRAPPED}{path}"


def _readable(error: ValidationError) -> str:
    lines = []
    for item in error.errors(include_url=False, include_context=False):
        place = ".".join(str(part) for part in item["loc"]) or "payload"
        lines.append(f"{place}: {item['msg']}")
    return "; ".join(lines)[:_LONGEST]
