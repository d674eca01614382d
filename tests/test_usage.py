from __future__ import annotations

import dataclasses

import pytest

from rxloop.usage import Usage

FULL = Usage(100, 20, 30, 40, 5)


def test_the_parts_are_not_counted_twice() -> None:
    assert FULL.total_tokens == 120


def test_figures_add() -> None:
    assert FULL + Usage(1, 2, 3, 4, 5) == Usage(101, 22, 33, 44, 10)
    assert FULL + Usage() == FULL
    assert sum([FULL, FULL], Usage()) == Usage(200, 40, 60, 80, 10)


def test_the_json_form_has_one_key_per_figure() -> None:
    assert FULL.to_dict() == {
        "input_tokens": 100,
        "output_tokens": 20,
        "cache_read_tokens": 30,
        "cache_write_tokens": 40,
        "reasoning_tokens": 5,
    }
    assert list(FULL.to_dict()) == [field.name for field in dataclasses.fields(Usage)]


def test_the_json_form_reads_back() -> None:
    assert Usage.from_dict(FULL.to_dict()) == FULL
    assert Usage.from_dict({}) == Usage()
    assert Usage.from_dict({"input_tokens": 3, "output_tokens": None, "later": 9}) == Usage(3)


def test_it_is_a_value() -> None:
    assert hash(FULL) == hash(Usage(100, 20, 30, 40, 5))
    with pytest.raises(dataclasses.FrozenInstanceError):
        FULL.input_tokens = 1  # type: ignore[misc]
