from __future__ import annotations

import asyncio
from contextvars import ContextVar, copy_context

import pytest

from rxloop.demand import Demand, current_demand, demand_context


def test_an_open_demand_calls_at_once() -> None:
    demand, called = Demand(), list[str]()
    demand.when_open(lambda: called.append("a"))
    assert called == ["a"]
    demand.open()
    assert called == ["a"]


def test_a_closed_demand_calls_once_when_it_opens_in_order() -> None:
    demand, called = Demand(), list[str]()
    demand.close()
    assert demand.closed
    demand.when_open(lambda: called.append("a"))
    demand.when_open(lambda: called.append("b"))
    assert called == []
    demand.open()
    assert not demand.closed
    assert called == ["a", "b"]
    demand.close()
    demand.open()
    assert called == ["a", "b"]


def test_whoever_asks_again_while_it_opens_waits_for_the_next_time() -> None:
    demand, called = Demand(), list[str]()

    def close_and_ask() -> None:
        called.append("a")
        demand.close()
        demand.when_open(lambda: called.append("later"))

    demand.close()
    demand.when_open(close_and_ask)
    demand.open()
    assert called == ["a"]
    demand.open()
    assert called == ["a", "later"]


variable: ContextVar[str] = ContextVar("demand_variable", default="unset")


def test_who_waits_is_called_in_the_context_in_which_it_asked() -> None:
    demand, seen = Demand(), list[str]()
    demand.close()
    context = copy_context()
    context.run(variable.set, "the waiter's")
    context.run(demand.when_open, lambda: seen.append(variable.get()))
    demand.open()
    assert seen == ["the waiter's"]
    assert variable.get() == "unset"


def test_the_current_demand_is_the_contexts() -> None:
    assert current_demand() is None
    demand, context = Demand(), copy_context()
    context.run(demand_context.set, demand)
    assert context.run(current_demand) is demand
    assert current_demand() is None


@pytest.mark.asyncio
async def test_waiting_for_an_open_demand_does_not_wait() -> None:
    waiting = asyncio.ensure_future(Demand().wait())
    await asyncio.sleep(0)
    assert waiting.done()


@pytest.mark.asyncio
async def test_waiting_ends_when_it_is_open_and_only_then() -> None:
    demand = Demand()
    demand.close()
    waiting = [asyncio.ensure_future(demand.wait()) for _ in range(2)]
    await asyncio.sleep(0)
    # closed again before the waiters had their turn
    demand.open()
    demand.close()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not any(one.done() for one in waiting)
    demand.open()
    for _ in range(3):
        await asyncio.sleep(0)
    assert all(one.done() for one in waiting)


@pytest.mark.asyncio
async def test_a_cancelled_waiter_does_not_disturb_the_others() -> None:
    demand = Demand()
    demand.close()
    first, second = (asyncio.ensure_future(demand.wait()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    demand.open()
    await second
    assert first.cancelled()
