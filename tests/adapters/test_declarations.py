"""Tools as each provider wants them declared."""

from __future__ import annotations

import copy
import re
from typing import Any, Literal, get_args

import boto3
import pytest
from botocore.validate import ParamValidator
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from rxloop.adapters.declarations import Target, declare, names_for
from rxloop.errors import ConfigurationError
from rxloop.tools import ToolDeclaration, tool

TARGETS = get_args(Target)
SCHEMA = {
    "type": "object",
    "properties": {"to": {"$ref": "#/$defs/To"}},
    "required": ["to"],
    "additionalProperties": False,
    "$defs": {"To": {"type": "string", "format": "email"}},
}
EMPTY: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def declared(
    target: Target, name: str = "mail", description: str = "Write.", schema: Any = SCHEMA, **fields: Any
) -> Any:
    declaration = ToolDeclaration(name, description, schema, fields)
    before = copy.deepcopy((declaration.schema, declaration.fields))
    result = declare(declaration, names_for(target, [name]), target)
    assert (declaration.schema, declaration.fields) == before
    return result


# Anthropic


def test_the_schema_is_sent_to_claude_as_it_is() -> None:
    result = declared("input_schema")
    assert result == {"name": "mail", "description": "Write.", "input_schema": SCHEMA}
    assert list(result) == ["name", "description", "input_schema"]
    assert declared("input_schema", description="") == {"name": "mail", "input_schema": SCHEMA}


def test_claude_gets_all_fields() -> None:
    fields: dict[str, Any] = {"cache_control": {"type": "ephemeral"}, "strict": True, "type": "custom"}
    assert declared("input_schema", **fields) == {
        "name": "mail", "description": "Write.", "input_schema": SCHEMA, **fields,
    }  # fmt: skip


def test_a_tool_whose_schema_claude_knows() -> None:
    assert declared("input_schema", name="bash", type="bash_20250124") == {"name": "bash", "type": "bash_20250124"}
    assert "parameters" in declared("functionDeclarations", type="bash_20250124"), "elsewhere it is a function"


# Gemini


def test_the_schema_is_reduced_for_gemini() -> None:
    result = declared("functionDeclarations")
    assert result == {
        "name": "mail",
        "description": "Write.",
        "parameters": {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]},
    }
    types.FunctionDeclaration.model_validate(result)


@pytest.mark.parametrize("schema", [EMPTY, {"type": "object"}, {}, {"type": "object", "properties": {"a": False}}])
def test_parameters_are_absent_without_any(schema: Any) -> None:
    assert declared("functionDeclarations", schema=schema) == {"name": "mail", "description": "Write."}


def test_gemini_gets_the_fields_it_knows() -> None:
    response = {"type": "OBJECT"}
    result = declared(
        "functionDeclarations", behavior="BLOCKING", response=response, cache_control={"type": "ephemeral"}, strict=True
    )
    assert set(result) == {"name", "description", "parameters", "behavior", "response"}
    assert (result["behavior"], result["response"]) == ("BLOCKING", response)
    types.FunctionDeclaration.model_validate(result)


@pytest.mark.parametrize("key", ["parametersJsonSchema", "parameters_json_schema", "parameters"])
def test_parameters_of_the_callers_own_stand_for_the_schema(key: Any) -> None:
    fields: dict[str, Any] = {key: {"type": "object"}}
    recursive = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    result = declared("functionDeclarations", schema=recursive, **fields)
    alias = "parameters" if key == "parameters" else "parametersJsonSchema"
    assert result == {"name": "mail", "description": "Write.", alias: {"type": "object"}}


# Bedrock


def test_the_schema_is_inlined_for_bedrock() -> None:
    schema = {
        "type": "object",
        "properties": {"to": {"type": "string", "format": "email"}},
        "required": ["to"],
        "additionalProperties": False,
    }
    result = declared("toolSpec", cache_control={"type": "ephemeral"}, strict=True)
    assert result == {
        "toolSpec": {"name": "mail", "description": "Write.", "inputSchema": {"json": schema}, "strict": True}
    }
    assert declared("toolSpec", description="") == {"toolSpec": {"name": "mail", "inputSchema": {"json": schema}}}
    assert declared("toolSpec", schema=EMPTY)["toolSpec"]["inputSchema"] == {"json": EMPTY}


def test_bedrock_asks_for_an_object() -> None:
    union = {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}
    assert declared("toolSpec", schema=union)["toolSpec"]["inputSchema"]["json"] == {"type": "object", **union}
    with pytest.raises(ConfigurationError, match="schema of tool 'mail' must describe an object, but got 'string'"):
        declared("toolSpec", schema={"type": "string"})


def test_botocore_accepts_it() -> None:
    client = boto3.client("bedrock-runtime", region_name="us-east-1", aws_access_key_id="-", aws_secret_access_key="-")
    shape = client.meta.service_model.shape_for("Tool")
    for description in ("Write.", ""):
        report = ParamValidator().validate(declared("toolSpec", name="my/mail", description=description), shape)
        assert not report.has_errors(), report.generate_report()


# all of them


@pytest.mark.parametrize("target", ["functionDeclarations", "toolSpec"])
def test_a_tool_that_cannot_be_declared_is_named(target: Target) -> None:
    recursive = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    with pytest.raises(ConfigurationError, match="the schema of tool 'my/tool' must not be recursive, but # → #"):
        declared(target, name="my/tool", schema=recursive)


class Stop(BaseModel):
    name: str
    kind: Literal["bus", "tram"] = "bus"


@pytest.mark.parametrize("target", TARGETS)
def test_a_function_of_models(target: Target) -> None:
    @tool(name="plan/route", fields={"cache_control": {"type": "ephemeral"}})
    def plan(stops: list[Stop], via: Stop | None = None) -> str:
        """Plan a route."""
        return ""

    names = names_for(target, [plan.name])
    result = declare(plan.declaration, names, target)
    inner = result.get("toolSpec", result)
    assert names.name(inner["name"]) == "plan/route"
    assert inner["description"] == "Plan a route."
    assert declare(plan.declaration, names, target) == result


# names

RULES = {
    "input_schema": r"[a-zA-Z0-9_-]{1,64}",
    "functionDeclarations": r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}",
    "toolSpec": r"[a-zA-Z0-9_-]{1,64}",
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["add", "my_tool", "my-tool", "_x", "A" * 64])
def test_a_name_that_all_accept_stays(target: Target, name: str) -> None:
    assert names_for(target, [name]).alias(name) == name


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("my.tool", {"functionDeclarations"}),
        ("my:tool", set()),
        ("9lives", {"input_schema", "toolSpec"}),
        ("-x", {"input_schema", "toolSpec"}),
        ("a" * 65, set()),
        ("wetter-köln", set()),
        ("\ud800", set()),
        ("a\n", set()),
    ],
)
def test_any_other_name_has_an_alias(name: str, kept: set[str]) -> None:
    for target in TARGETS:
        alias = names_for(target, [name]).alias(name)
        assert (alias == name) == (target in kept)
        assert re.fullmatch(RULES[target], alias)


@pytest.mark.parametrize("target", TARGETS)
def test_a_name_is_declared_once(target: Target) -> None:
    with pytest.raises(ConfigurationError, match="tool names must be unique, but 'my/tool' is declared twice"):
        names_for(target, ["my/tool", "my-tool", "my/tool"])
    alias = names_for(target, ["my/tool"]).alias("my/tool")
    with pytest.raises(ConfigurationError, match=r"must stay unique, but .* both become"):
        names_for(target, ["my/tool", alias])


@given(st.sampled_from(TARGETS), st.lists(st.text(min_size=1, max_size=99), unique=True, max_size=9))
def test_any_names_come_back(target: Target, given_names: list[str]) -> None:
    names = names_for(target, [*given_names, "my/tool" * 20, "my-tool" * 20])
    for name in (*given_names, "my/tool" * 20, "my-tool" * 20):
        assert re.fullmatch(RULES[target], names.alias(name))
        assert names.name(names.alias(name)) == name
