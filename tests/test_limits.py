from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rxloop.errors import ConfigurationError
from rxloop.limits import Limits

SECONDS = [field.name for field in dataclasses.fields(Limits) if field.name.endswith("_timeout")]
TOKENS = [field.name for field in dataclasses.fields(Limits) if field.name.endswith("_tokens")]


def test_by_default_there_are_none() -> None:
    assert set(dataclasses.asdict(Limits()).values()) == {None}
    assert (len(SECONDS), len(TOKENS)) == (5, 3)


@pytest.mark.parametrize("name", SECONDS)
@pytest.mark.parametrize("value", [0, -0.5, True, "60", float("nan")])
def test_seconds_are_checked_at_once(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name} must be > 0 seconds, but got {value!r}$"):
        Limits(**{name: value})
    Limits(**{name: 0.5})


@pytest.mark.parametrize("name", TOKENS)
@pytest.mark.parametrize("value", [0, -5, 1.5, True, "60"])
def test_tokens_are_checked_at_once(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name} must be a whole number >= 1, but got {value!r}$"):
        Limits(**{name: value})
    Limits(**{name: 1})
