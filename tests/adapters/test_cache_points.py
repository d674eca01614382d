"""Where markers of the prompt cache go."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop.adapters.cache_points import Block, CachePlan, check_lifetime, plan_cache_points
from rxloop.errors import ConfigurationError

FREE, BARRED = Block(), Block(fit=False)
FIVE, HOUR = Block(marked="5m"), Block(marked="1h")


def plan(
    tools: list[Block], system: list[Block], messages: list[list[Block]], lifetime: Any = "5m", most: int = 4
) -> CachePlan:
    users = [index % 2 == 0 for index in range(len(messages))]
    return plan_cache_points(tools, system, messages, lifetime=lifetime, users=users, most=most)


def test_the_system_prompt_and_the_tail() -> None:
    found = plan([FREE, FREE], [FREE, FREE], [[FREE], [FREE], [FREE, FREE]])
    assert found == CachePlan(None, (1, "5m"), {(2, 1): "5m", (0, 0): "5m"})


def test_the_last_tool_where_there_is_no_system_prompt() -> None:
    assert plan([FREE, FREE, BARRED], [], [[FREE]]) == CachePlan((1, "5m"), None, {(0, 0): "5m"})


def test_nothing_to_mark() -> None:
    assert plan([], [], [[BARRED]]) == CachePlan()


def test_what_cannot_carry_a_marker_is_passed_over() -> None:
    found = plan([], [FREE, BARRED], [[FREE, BARRED], [FREE], [FREE, BARRED, BARRED]])
    assert found == CachePlan(None, (0, "5m"), {(2, 0): "5m", (0, 0): "5m"})


def test_the_tail_is_the_last_message_and_the_users_before_it() -> None:
    """Also where the last message is the model's, as after a pause."""
    found = plan([], [], [[FREE], [FREE], [FREE], [FREE]])
    assert set(found.messages) == {(3, 0), (2, 0)}


def test_a_marker_of_the_callers_own_at_the_same_end_is_enough() -> None:
    found = plan([], [FREE, FIVE], [[FREE], [FREE], [FREE, FIVE]])
    assert found == CachePlan(None, None, {(0, 0): "5m"})


@pytest.mark.parametrize(("own", "added"), [(1, 3), (2, 2), (3, 1), (4, 0), (5, 0)])
def test_the_callers_own_count(own: int, added: int) -> None:
    found = plan([FIVE] * own, [FREE], [[FREE], [FREE], [FREE]])
    assert (found.system is not None) + len(found.messages) == added


def test_markers_within_a_block_count_and_come_before_its_own() -> None:
    inner = Block(inner=("5m", "5m"))
    found = plan([], [FREE], [[FREE], [FREE], [inner]], "1h")
    # five minutes is what may follow them
    assert found == CachePlan(None, (0, "1h"), {(2, 0): "5m"})
    late = plan([], [FREE], [[FREE], [FREE], [Block(inner=("1h",))]])
    assert late == CachePlan(None, (0, "1h"), {(2, 0): "5m", (0, 0): "1h"})


def test_an_hour_comes_before_five_minutes() -> None:
    assert plan([FIVE, FREE], [FREE], [[FREE]], "1h") == CachePlan(None, (0, "5m"), {(0, 0): "5m"})
    assert plan([], [FREE], [[FREE], [FREE], [HOUR, FREE]], "5m") == CachePlan(
        None, (0, "1h"), {(2, 1): "5m", (0, 0): "1h"}
    )


@pytest.mark.parametrize("lifetime", ["6m", "", 5, True])
def test_a_lifetime_must_be_one(lifetime: Any) -> None:
    with pytest.raises(ConfigurationError, match="cache must be"):
        check_lifetime(lifetime)


blocks = st.lists(st.sampled_from([FREE, BARRED, FIVE, HOUR]), max_size=4)


@given(blocks, blocks, st.lists(blocks, max_size=6), st.sampled_from(["5m", "1h"]))
def test_whatever_there_is(tools: list[Block], system: list[Block], messages: list[list[Block]], lifetime: Any) -> None:
    found = plan(tools, system, messages, lifetime)
    own = [block.marked for section in (tools, system, *messages) for block in section if block.marked]
    added = [found.tool, found.system, *found.messages.items()]
    assert len(own) + sum(item is not None for item in added) <= max(4, len(own))
    for section, chosen in ((tools, found.tool), (system, found.system)):
        if chosen is not None:
            assert section[chosen[0]] == FREE
    for message, place in found.messages:
        assert messages[message][place] == FREE
    assert found == plan(tools, system, messages, lifetime), "the same request, the same markers"
