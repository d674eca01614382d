from __future__ import annotations

from typing import Any

import pytest
from reactivex.testing import ReactiveTest

from rxloop.errors import ConfigurationError, UsageLimitError
from rxloop.events import StepStarted, TextDelta, UsageUpdated
from rxloop.operators import usage_limit
from rxloop.usage import Usage
from tests.operators.virtual import VirtualTime, assert_messages, emissions, failure

on_next, on_error, on_completed, subscribe = (
    ReactiveTest.on_next,
    ReactiveTest.on_error,
    ReactiveTest.on_completed,
    ReactiveTest.subscribe,
)


def spending(time: VirtualTime, *totals: Usage) -> Any:
    messages: list[Any] = []
    for number, total in enumerate(totals):
        messages += [
            on_next(10 * number + 10, StepStarted(number)),
            on_next(10 * number + 12, UsageUpdated(total)),
            on_next(10 * number + 14, TextDelta(number, "after")),
        ]
    return time.create_cold_observable(*messages, on_completed(10 * len(totals) + 10))


@pytest.mark.parametrize(
    ("limit", "spent"), [({"total_tokens": 100}, 101), ({"input_tokens": 80}, 80), ({"output_tokens": 20}, 21)]
)
def test_no_further_step_starts_once_a_limit_is_reached(limit: dict[str, int], spent: int) -> None:
    time = VirtualTime()
    source = spending(time, Usage(70, 10), Usage(80, 21), Usage(999, 999))
    observer = time.start(lambda: source.pipe(usage_limit(**limit)))
    error = failure(observer.messages)
    assert_messages(
        observer.messages,
        on_next(210, StepStarted(0)),
        on_next(212, UsageUpdated(Usage(70, 10))),
        on_next(214, TextDelta(0, "after")),
        on_next(220, StepStarted(1)),
        on_next(222, UsageUpdated(Usage(80, 21))),
        on_next(224, TextDelta(1, "after")),
        on_error(230, error),
    )
    assert source.subscriptions == [subscribe(200, 230)]
    assert isinstance(error, UsageLimitError)
    [(name, value)] = limit.items()
    assert str(error) == f"{name} must stay below {value}, but {spent} are spent"


def test_a_turn_that_ends_with_the_reply_that_crosses_the_limit_ends_well() -> None:
    time = VirtualTime()
    observer = time.start(lambda: spending(time, Usage(999, 999)).pipe(usage_limit(total_tokens=1)))
    assert observer.messages[-1] == on_completed(220)


def test_below_the_limits_everything_passes() -> None:
    time = VirtualTime()
    limits = {"total_tokens": 12, "input_tokens": 11, "output_tokens": 2}
    observer = time.start(lambda: spending(time, Usage(5, 0), Usage(10, 1), Usage(10, 1)).pipe(usage_limit(**limits)))
    assert observer.messages[-1] == on_completed(240)
    assert len(emissions(observer.messages)) == 9


def test_spending_is_known_per_subscription() -> None:
    time = VirtualTime()
    limited = spending(time, Usage(5, 5), Usage(10, 10), Usage(10, 10)).pipe(usage_limit(total_tokens=20))
    first, second = time.create_observer(), time.create_observer()
    time.schedule_absolute(200, lambda *_: limited.subscribe(first, scheduler=time))
    time.schedule_absolute(300, lambda *_: limited.subscribe(second, scheduler=time))
    time.start()
    assert len(emissions(first.messages)) == len(emissions(second.messages)) == 6


def test_disposal_disposes_the_source() -> None:
    time = VirtualTime()
    source = spending(time, Usage(1, 1))
    time.start(lambda: source.pipe(usage_limit(total_tokens=9)), disposed=211)
    assert source.subscriptions == [subscribe(200, 211)]


def test_no_limit_leaves_the_source_as_it_is() -> None:
    source = VirtualTime().create_cold_observable()
    assert source.pipe(usage_limit()) is source


@pytest.mark.parametrize("name", ["total_tokens", "input_tokens", "output_tokens"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "9"])
def test_the_limits_are_checked_at_once(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name} must be a whole number >= 1, but got {value!r}$"):
        usage_limit(**{name: value})
