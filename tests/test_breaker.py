from __future__ import annotations

from typing import Any

import pytest

from rxloop.breaker import TOOL_PERMANENTLY_FAILED, Breaker
from rxloop.errors import ConfigurationError


def test_a_tool_is_refused_after_its_strikes() -> None:
    state = Breaker(3).start()
    for _ in range(3):
        assert state.refusal("t") is None
        state.settle("t", None, "boom")
    refusal = state.refusal("t")
    assert refusal == f"{TOOL_PERMANENTLY_FAILED}: 't' failed 3 times; do not call it again"
    assert state.refusal("t") == refusal, "a refusal is no strike, and no pardon"


def test_tools_are_counted_apart() -> None:
    state = Breaker(1).start()
    state.settle("t", None, "boom")
    assert state.refusal("t")
    assert state.refusal("other") is None


def test_by_default_two_strikes_are_out() -> None:
    state = Breaker().start()
    state.settle("t", None, "boom")
    assert state.refusal("t") is None
    state.settle("t", None, "boom")
    assert state.refusal("t")


def test_every_start_counts_from_nothing() -> None:
    breaker = Breaker(1)
    breaker.start().settle("t", None, "boom")
    assert breaker.start().refusal("t") is None


def test_a_success_forgives_only_if_strikes_must_be_consecutive() -> None:
    for consecutive in (False, True):
        state = Breaker(2, consecutive=consecutive).start()
        state.settle("t", None, "boom")
        state.settle("t", "fine", None)
        state.settle("t", None, "boom")
        assert (state.refusal("t") is None) is consecutive


def test_an_output_may_be_a_strike() -> None:
    asked: list[tuple[str, Any]] = []

    def classify(name: str, output: Any) -> bool:
        asked.append((name, output))
        return output == {"ok": False}

    state = Breaker(1, classify_failure=classify, consecutive=True).start()
    state.settle("t", {"ok": True}, None)
    assert state.refusal("t") is None
    state.settle("t", {"ok": False}, None)
    assert state.refusal("t")
    assert asked == [("t", {"ok": True}), ("t", {"ok": False})]
    state.settle("u", None, "boom")
    assert len(asked) == 2, "an error needs no classifying"


def test_an_unknown_tool_starts_clean_once_it_is_found() -> None:
    state = Breaker(1).start()
    state.settle("t", None, "boom")
    reason = state.unknown("t")
    assert reason == f"{TOOL_PERMANENTLY_FAILED}: there is no tool named 't'; do not call it again"
    assert state.refusal("t") is None
    state.settle("t", None, "boom")
    assert state.refusal("t"), "from then on it counts as any other"


@pytest.mark.parametrize("value", [0, -1, 1.5, True, None])
def test_the_strikes_are_checked_at_once(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^max_retries must be a whole number >= 1, but got {value!r}$"):
        Breaker(value)
