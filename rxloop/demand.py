"""How a consumer that lags pauses the sources that feed it.

ReactiveX pushes; it has no way to say "not now". A consumer that buffers puts a `Demand` into the context in
which it subscribes, and every rxloop source that is subscribed in that context looks at it before it emits
more. Standard operators between the two need to know nothing of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar, copy_context

__all__ = ("Demand", "current_demand", "demand_context")


class Demand:
    """A gate that a consumer closes while its buffer is full. Belongs to one event loop."""

    __slots__ = ("_waiting", "closed")

    def __init__(self) -> None:
        self.closed = False
        self._waiting: list[Callable[[], None]] = []

    def close(self) -> None:
        """Ask the sources to pause."""
        self.closed = True

    def open(self) -> None:
        """Let the sources go on."""
        self.closed = False
        waiting, self._waiting = self._waiting, []
        for place, resume in enumerate(waiting):
            if self.closed:
                # those before have filled the buffer again
                self._waiting = [*waiting[place:], *self._waiting]
                return
            resume()

    def when_open(self, resume: Callable[[], None]) -> None:
        """Call `resume` once, in the caller's context, when the gate opens next; at once if it is open."""
        if self.closed:
            # the reader that opens the gate has another context, in which nobody asks for demand
            context = copy_context()
            self._waiting.append(lambda: context.run(resume))
        else:
            resume()

    async def wait(self) -> None:
        """Return when the gate is open."""
        loop = asyncio.get_running_loop()
        while self.closed:
            opened = loop.create_future()

            def resume(opened: asyncio.Future[None] = opened) -> None:
                if not opened.done():
                    opened.set_result(None)

            self._waiting.append(resume)
            await opened


demand_context: ContextVar[Demand | None] = ContextVar("rxloop_demand", default=None)


def current_demand() -> Demand | None:
    """The demand of the consumer that is subscribing, or ``None`` where nobody buffers."""
    return demand_context.get()
