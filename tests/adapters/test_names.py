"""Names of tools as a provider accepts them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop.adapters.names import NameMap
from rxloop.errors import ConfigurationError

_PATTERN = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def name_map(*names: str) -> NameMap:
    return NameMap(names, pattern=_PATTERN, allowed="a-zA-Z0-9_-", longest=64)


@pytest.mark.parametrize("name", ["add", "my-tool", "my_tool", "9lives", "_", "-", "A" * 64])
def test_a_valid_name_stays_as_it_is(name: str) -> None:
    assert name_map(name).alias(name) == name
    assert name_map(name).name(name) == name


@pytest.mark.parametrize(
    "name", ["my/tool", "my.tool", "my tool", "wetter-köln", "天気", "a" * 65, "9/lives", "😀", "a\n"]
)
def test_any_other_becomes_valid_and_comes_back(name: str) -> None:
    names = name_map(name)
    alias = names.alias(name)
    assert _PATTERN.fullmatch(alias)
    assert alias[0].isascii()
    assert alias[0].isalpha()
    assert names.name(alias) == name


def test_names_that_look_alike_stay_apart() -> None:
    long = "n" * 99
    given_names = ["my/tool", "my-tool", "my_tool", "my.tool", "my tool", f"{long}1", f"{long}2", "天気", "天候"]
    names = name_map(*given_names)
    aliases = [names.alias(name) for name in given_names]
    assert len(set(aliases)) == len(given_names)
    assert all(_PATTERN.fullmatch(alias) for alias in aliases)
    assert [names.name(alias) for alias in aliases] == given_names


def test_an_alias_does_not_depend_on_the_other_tools() -> None:
    """A conversation that is continued with other tools still means the same ones."""
    assert name_map("my/tool").alias("my/tool") == name_map("x", "my-tool", "my/tool").alias("my/tool")
    assert name_map("my/tool").alias("my/tool") == "my_tool_18ae6c8e"


def test_what_was_not_declared_stays_as_it_is() -> None:
    names = name_map("add")
    assert names.alias("other/tool") == "other/tool"
    assert names.name("other_tool") == "other_tool"


def test_a_name_is_declared_once() -> None:
    with pytest.raises(ConfigurationError, match="tool names must be unique, but 'add' is declared twice"):
        name_map("add", "add")
    with pytest.raises(ConfigurationError, match="tool names must be unique, but 'a/b' is declared twice"):
        name_map("a/b", "a/b")


def test_a_name_that_is_another_ones_alias_is_refused() -> None:
    alias = name_map("my/tool").alias("my/tool")
    for names in (("my/tool", alias), (alias, "my/tool")):
        with pytest.raises(ConfigurationError, match=r"must stay unique, but .* both become"):
            name_map(*names)


@given(st.lists(st.text(min_size=1, max_size=120), unique=True, max_size=20))
def test_any_names_are_mapped_and_come_back(given_names: list[str]) -> None:
    names = name_map(*given_names)
    aliases = [names.alias(name) for name in given_names]
    assert all(_PATTERN.fullmatch(alias) for alias in aliases)
    assert [names.name(alias) for alias in aliases] == given_names
