"""Schedulers and the time they show."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from reactivex import abc
from reactivex.scheduler.eventloop import AsyncIOScheduler

from rxloop.errors import ConfigurationError

__all__ = ("after", "call_in", "clock_of", "loop_if_any", "running_loop", "scheduler_for")


def after(scheduler: abc.SchedulerBase, seconds: float, action: Callable[[], None]) -> abc.DisposableBase:
    """Call after `seconds` on the scheduler's clock, in the event loop that runs now, whatever thread keeps time."""
    loop = loop_if_any()
    return scheduler.schedule_relative(seconds, lambda *_: call_in(loop, action))


def loop_if_any() -> asyncio.AbstractEventLoop | None:
    """The running event loop; ``None`` where there is none, as in virtual time."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def running_loop() -> asyncio.AbstractEventLoop:
    """
    The running event loop.

    Raises:
        ConfigurationError: there is none.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigurationError(
            "this observable needs a running asyncio event loop: subscribe from async code, "
            "or call result_sync() from synchronous code"
        ) from None


def call_in(loop: asyncio.AbstractEventLoop | None, action: Callable[..., Any], *arguments: Any) -> None:
    """
    Call at once where `loop` runs, and from any other thread as soon as it can; never once it is closed.

    Args:
        loop: the loop that owns what the action touches; ``None`` where there is none, as in virtual time.
        action: what to call.
        arguments: what it is given.
    """
    try:
        inside = loop is None or asyncio.get_running_loop() is loop
    except RuntimeError:
        inside = False
    if inside:
        action(*arguments)
    elif loop is not None and not loop.is_closed():
        loop.call_soon_threadsafe(action, *arguments)


def scheduler_for(*candidates: abc.SchedulerBase | None) -> abc.SchedulerBase:
    """The first scheduler that is given, or else one on the running event loop."""
    for candidate in candidates:
        if candidate is not None:
            return candidate
    return AsyncIOScheduler(running_loop())


def clock_of(scheduler: abc.SchedulerBase) -> Callable[[], float]:
    """The scheduler's time in seconds, as cheap as it can be read."""
    if isinstance(scheduler, AsyncIOScheduler):
        return time.monotonic
    return lambda: scheduler.to_seconds(scheduler.now)
