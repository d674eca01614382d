"""Tools as each provider wants them declared."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal

from rxloop.adapters.names import NameMap
from rxloop.adapters.schemas import gemini_schema, inlined
from rxloop.errors import ConfigurationError
from rxloop.tools import ToolDeclaration

__all__ = ("Target", "declare", "names_for")

Target = Literal["input_schema", "functionDeclarations", "toolSpec"]
"""The field of a request that is declared for: Anthropic's, Gemini's or that of Bedrock's Converse."""

_LONGEST = 64
_ALLOWED = {
    "input_schema": "a-zA-Z0-9_-",
    "functionDeclarations": "a-zA-Z0-9_.-",
    "toolSpec": "a-zA-Z0-9_-",
}
_PATTERNS = {
    "input_schema": re.compile(r"[a-zA-Z0-9_-]{1,64}"),
    "functionDeclarations": re.compile(r"[a-zA-Z_][a-zA-Z0-9_.-]{0,63}"),
    "toolSpec": re.compile(r"[a-zA-Z0-9_-]{1,64}"),
}

_GEMINI_FIELDS = {
    "behavior": "behavior",
    "parameters": "parameters",
    "parametersJsonSchema": "parametersJsonSchema",
    "parameters_json_schema": "parametersJsonSchema",
    "response": "response",
    "responseJsonSchema": "responseJsonSchema",
    "response_json_schema": "responseJsonSchema",
}
_BEDROCK_FIELDS = ("strict",)


def names_for(target: Target, names: Iterable[str]) -> NameMap:
    """
    The map between the caller's names of tools and those that a target accepts.

    Args:
        target: where the tools are declared.
        names: the declared names.

    Raises:
        ConfigurationError: two names are the same, or end up the same.

    A name that every version of the API accepts stays as it is. Where versions differ the strictest counts, since an
    alias costs nothing: Gemini's documents now allow 128 characters and colons, its API has refused both.

    Source: https://platform.claude.com/docs/en/agents-and-tools/tool-use/define-tools,
    https://docs.cloud.google.com/vertex-ai/generative-ai/docs/reference/rest/v1/FunctionDeclaration,
    https://github.com/google-gemini/gemini-cli/issues/7869,
    https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ToolSpecification.html
    """
    return NameMap(names, pattern=_PATTERNS[target], allowed=_ALLOWED[target], longest=_LONGEST)


def declare(declaration: ToolDeclaration, names: NameMap, target: Target) -> dict[str, Any]:
    """
    A tool as a target wants it declared.

    Further fields that the target's own declaration does not have are left out, so that a tool may carry those of
    several providers; Anthropic's has them all, except that a ``type`` of its own names a tool whose schema it knows.

    Args:
        declaration: the tool; left as it is.
        names: the names of all declared tools, of `names_for`.
        target: where the tool is declared.

    Raises:
        ConfigurationError: the tool cannot be declared there; the message names it.
    """
    if target == "input_schema":
        return _input_schema(declaration, names)
    if target == "functionDeclarations":
        return _function_declaration(declaration, names)
    return _tool_spec(declaration, names)


def _input_schema(declaration: ToolDeclaration, names: NameMap) -> dict[str, Any]:
    # the API knows the schema of the tools that it defines and the caller runs, such as bash
    if declaration.fields.get("type", "custom") != "custom":
        return {"name": declaration.name, **declaration.fields}
    declared: dict[str, Any] = {"name": names.alias(declaration.name)}
    if declaration.description:
        declared["description"] = declaration.description
    return {**declared, "input_schema": dict(declaration.schema), **declaration.fields, **declared}


def _function_declaration(declaration: ToolDeclaration, names: NameMap) -> dict[str, Any]:
    """
    The declaration for Gemini.

    The caller's own ``parameters`` or ``parametersJsonSchema``, which exclude each other, stand for the schema.

    Source: https://ai.google.dev/api/caching#FunctionDeclaration
    """
    fields = {_GEMINI_FIELDS[key]: value for key, value in declaration.fields.items() if key in _GEMINI_FIELDS}
    declared: dict[str, Any] = {"name": names.alias(declaration.name), "description": declaration.description}
    if not fields.keys() & {"parameters", "parametersJsonSchema"}:
        parameters = gemini_schema(declaration.schema, declaration.name)
        # an object without properties is refused
        if "properties" in parameters:
            declared["parameters"] = parameters
    return {**declared, **fields}


def _tool_spec(declaration: ToolDeclaration, names: NameMap) -> dict[str, Any]:
    """
    The declaration for Bedrock's Converse.

    The schema's references are resolved, since not every model behind it follows them.

    Source: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ToolSpecification.html,
    https://github.com/earendil-works/pi/issues/8279 (the type at the root)
    """
    schema = {"type": "object", **inlined(declaration.schema, declaration.name)}
    if schema["type"] != "object":
        raise ConfigurationError(
            f"the schema of tool {declaration.name!r} must describe an object, but got {schema['type']!r}"
        )
    spec: dict[str, Any] = {"name": names.alias(declaration.name)}
    if declaration.description:
        spec["description"] = declaration.description
    spec["inputSchema"] = {"json": schema}
    spec |= {key: declaration.fields[key] for key in _BEDROCK_FIELDS if key in declaration.fields}
    return {"toolSpec": spec}
