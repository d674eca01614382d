"""Structured output: what a turn's answer has to be, and how a model's attempt at it is checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

from rxloop.checks import whole
from rxloop.errors import ConfigurationError, describe

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

__all__ = ("FINAL_RESULT", "InvalidPayloadError", "Output", "OutputMode", "partial_snapshot", "validated_by")

FINAL_RESULT = "final_result"
"""The tool by which a model gives its answer where it has other tools."""

OutputMode = Literal["auto", "native", "cooperative", "coercive"]

_DESCRIPTION = "Give the final answer of this conversation and end it. Call it once you have what the answer needs."
_WRAPPED = "result"


class InvalidPayloadError(ValueError):
    """The model's payload is not what was asked for; the message is what the model reads."""


class Output:
    """
    What a turn's answer has to be.

    A schema that is not of an object is asked for as the only property, ``result``, of one.

    Args:
        kind: a pydantic model, a dataclass, a TypedDict or any other type that pydantic knows; or a JSON schema, whose
            payloads are validated with the package jsonschema (``pip install "rxloop[schema]"``).
        mode: how the model is brought to give it. ``native`` uses the provider's own way, without tools.
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
        whole("retries", retries, minimum=0)
        schema, self._check = _of_schema(kind) if isinstance(kind, Mapping) else _of_type(kind)
        self.kind = kind
        self.mode: OutputMode = mode
        self.description = description
        self.retries = retries
        self._wrapped = schema.get("type") != "object" and not _leads_to_object(schema)
        self.schema: dict[str, Any] = _in_object(schema) if self._wrapped else schema

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
        if self._wrapped:
            if _WRAPPED not in payload:
                raise InvalidPayloadError(f"{_WRAPPED}: Field required")
            return self._check(payload[_WRAPPED])
        return self._check(payload)


def partial_snapshot(adapter: TypeAdapter[Any], text: str, *, wrapped: bool) -> Any:
    """
    The value that the beginning of a payload stands for.

    Raises:
        ValueError: it stands for none yet.
    """
    from pydantic_core import from_json

    value = from_json(text, allow_partial="trailing-strings")
    if wrapped:
        value = value[_WRAPPED] if isinstance(value, dict) and _WRAPPED in value else None
        if value is None:
            raise ValueError("there is no result yet")
    return adapter.validate_python(value, experimental_allow_partial="trailing-strings")


def validated_by(kind: Any) -> tuple[TypeAdapter[Any], bool]:
    """
    What validates values of a type, and whether they are asked for inside an object.

    Raises:
        ConfigurationError: there is no JSON schema of the type.
    """
    adapter, schema = _adapter_of(kind)
    return adapter, schema.get("type") != "object" and not _leads_to_object(schema)


def _adapter_of(kind: Any) -> tuple[TypeAdapter[Any], dict[str, Any]]:
    # pydantic is the larger half of the import: it waits for whoever needs it
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        return adapter, adapter.json_schema()
    except (PydanticUserError, NameError) as error:
        reason = str(getattr(error, "message", error)).splitlines()[0].rstrip(".")
        raise ConfigurationError(f"output must have a JSON schema, but {kind!r} has none: {reason}") from error


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
        from jsonschema.validators import validator_for
    except ImportError as error:
        raise ConfigurationError(
            'output of a JSON schema needs the package jsonschema: pip install "rxloop[schema]"'
        ) from error
    own = dict(schema)
    cls = validator_for(own)
    try:
        cls.check_schema(own)
    except SchemaError as error:
        raise ConfigurationError(f"output must be a JSON schema, but it is none: {error.message}") from error
    validator = cls(own)

    def check(value: Any) -> Any:
        faults = [
            f"{'.'.join(map(str, fault.absolute_path)) or 'payload'}: {fault.message}"
            for fault in validator.iter_errors(value)
        ]
        if faults:
            raise InvalidPayloadError("; ".join(faults)[:2000])
        return value

    return own, check


def _leads_to_object(schema: Mapping[str, Any]) -> bool:
    """Whether a schema that is a reference, as of a model that holds itself, is of an object."""
    target: Any = schema
    for _ in range(len(schema.get("$defs") or ()) + 1):
        reference = target.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/$defs/"):
            break
        target = (schema.get("$defs") or {}).get(reference.removeprefix("#/$defs/"))
        if not isinstance(target, Mapping):
            return False
    return bool(target.get("type") == "object")


def _in_object(schema: Mapping[str, Any]) -> dict[str, Any]:
    inner = {key: value for key, value in schema.items() if key not in ("$defs", "definitions", "$schema")}
    outer: dict[str, Any] = {"type": "object", "properties": {_WRAPPED: inner}, "required": [_WRAPPED]}
    # references lead from the root
    outer.update({key: schema[key] for key in ("$defs", "definitions") if key in schema})
    return outer


def _readable(error: ValidationError) -> str:
    lines = []
    for item in error.errors(include_url=False, include_context=False):
        place = ".".join(str(part) for part in item["loc"]) or "payload"
        lines.append(f"{place}: {item['msg']}")
    return "; ".join(lines)
