"""How events leave an operator that makes some of its own, between those of its source."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from reactivex import abc

from rxloop.demand import current_demand
from rxloop.events import ToolProgress

__all__ = ("Outlet",)


class Outlet:
    """The way out: in order, held back while the consumer is paused, closed by a consumer that raises."""

    __slots__ = ("_completed", "_demand", "_draining", "_held", "_observer", "backlog", "stopped")

    def __init__(self, observer: abc.ObserverBase[Any]) -> None:
        self._observer = observer
        self._demand = current_demand()
        self.backlog: deque[Any] = deque()
        self._held = 0
        self._completed = self._draining = self.stopped = False

    @property
    def paused(self) -> bool:
        """Whether the consumer's buffer is full."""
        return self._demand is not None and self._demand.closed

    def when_open(self, resume: Callable[[], None]) -> None:
        """Call `resume` once the consumer is ready."""
        if self._demand is None:
            resume()
        else:
            self._demand.when_open(resume)

    def hold(self) -> None:
        """Calls are under way: completion waits."""
        self._held += 1

    def release(self) -> None:
        """Calls have ended: completion waits for them no more."""
        self._held -= 1
        self._drain()

    def emit(self, item: Any) -> None:
        """Send an item on, or keep it; of a call's progress only the latest is kept."""
        if type(item) is ToolProgress and self.paused:
            for index, waiting in enumerate(self.backlog):
                if type(waiting) is ToolProgress and waiting.call_id == item.call_id:
                    self.backlog[index] = item
                    return
        self.backlog.append(item)
        self._drain()

    def complete(self) -> None:
        """The source has completed: so does the observer, once everything is out."""
        self._completed = True
        self._drain()

    def fail(self, error: Exception) -> None:
        """End with an error, at once."""
        if not self.stopped:
            self.stop()
            self._observer.on_error(error)

    def stop(self) -> None:
        """Let nothing out any more."""
        self.stopped = True
        self.backlog.clear()

    def _drain(self) -> None:
        if self._draining:
            return
        self._draining = True
        try:
            while self.backlog and not self.stopped:
                if self.paused:
                    self.when_open(self._drain)
                    return
                self._observer.on_next(self.backlog.popleft())
        except Exception as error:
            # a tool's end is told from the event loop, where nobody else would notice
            self.fail(error)
        finally:
            self._draining = False
        if self._completed and not self._held and not self.stopped:
            self.stopped = True
            self._observer.on_completed()
