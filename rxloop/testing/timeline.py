"""A turn drawn over time: a lane each for steps, reasoning, text, every tool call, trouble and usage."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any, Self

from reactivex import Observable, abc
from reactivex.disposable import Disposable

from rxloop.channel import iterate
from rxloop.clock import clock_of, scheduler_for
from rxloop.errors import RxLoopError, describe
from rxloop.events import TurnEvent
from rxloop.testing.marbles import marbles
from rxloop.testing.tape import timed_events

__all__ = ("Timeline", "watch")

_WIDTH = 900
_LEFT = 150
_ROW = 30
_TICK_ROW = 24
_LEAST = 2.0
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What no XML document may have, not even escaped."""

_REPLACEMENT = "\ufffd"

_STYLE = """
.timeline{font:12px ui-sans-serif,system-ui,sans-serif;color:#1f2328}
.timeline text{fill:currentColor}
.timeline .lane{stroke:currentColor;opacity:.15}
.timeline .dim{opacity:.6}
.timeline .step{fill:#8c959f}.timeline .reasoning{fill:#8250df}.timeline .text{fill:#0969da}
.timeline .arguments{fill:#bf8700}.timeline .tool{fill:#1a7f37}.timeline .failed{fill:#cf222e}
@media (prefers-color-scheme:dark){.timeline{color:#e6edf3}}
"""


class Timeline:
    """
    The events of one run with their times: shows itself as a drawing in a notebook.

    Args:
        events: the seconds since the subscription and the event, in order.
        error: what the run failed with.
    """

    def __init__(self, events: Iterable[tuple[float, TurnEvent]], error: Exception | None = None) -> None:
        self.timed = tuple(events)
        self.error = error

    @classmethod
    async def record(cls, source: Observable[TurnEvent]) -> Self:
        """Run a turn to its end. A failure is part of the drawing, and is not raised."""
        timed: list[tuple[float, TurnEvent]] = []
        try:
            async with iterate(source.pipe(watch(lambda moment, event: timed.append((moment, event))))) as events:
                async for _ in events:
                    pass
        except RxLoopError as error:
            return cls(timed, error)
        return cls(timed)

    @classmethod
    def from_tape(cls, path: str | os.PathLike[str]) -> Self:
        """
        Read a tape.

        Raises:
            ConfigurationError: it is none.
        """
        return cls(*timed_events(path))

    @property
    def events(self) -> list[TurnEvent]:
        """The events alone."""
        return [event for _, event in self.timed]

    @property
    def marbles(self) -> str:
        """The run as one line of marbles."""
        return marbles(self.events, error=self.error)

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.timed[-1][0] if self.timed else 0.0

    def svg(self) -> str:
        """The drawing, as a document of its own."""
        return _Drawing(self.timed, self.error).document()

    def __repr__(self) -> str:
        return f"<Timeline {self.seconds:.2f} s {self.marbles}>"

    def _repr_svg_(self) -> str:
        return self.svg()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"image/svg+xml": self.svg(), "text/plain": repr(self)}


def watch(
    seen: Callable[[float, TurnEvent], None], *, scheduler: abc.SchedulerBase | None = None
) -> Callable[[Observable[TurnEvent]], Observable[TurnEvent]]:
    """
    Tell of every event and the seconds since the subscription, while it passes through.

    .. marble::
        --a--b--c|
        [ watch(seen) ]
        --a--b--c|       seen(2.0, a) seen(5.0, b) seen(8.0, c)

    Args:
        seen: told of each event before it is passed on.
        scheduler: tells the time; the subscription's or the running event loop's by default.
    """

    def operator(source: Observable[TurnEvent]) -> Observable[TurnEvent]:
        def subscribe(
            observer: abc.ObserverBase[Any], scheduler_: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            now = clock_of(scheduler_for(scheduler, scheduler_))
            began = now()

            def on_next(event: TurnEvent) -> None:
                seen(now() - began, event)
                observer.on_next(event)

            subscription = source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler_)
            return Disposable(subscription.dispose)

        return Observable(subscribe)

    return operator


class _Drawing:
    """One document."""

    def __init__(self, timed: Sequence[tuple[float, TurnEvent]], error: Exception | None) -> None:
        self._end = max(timed[-1][0] if timed else 0.0, 1e-3)
        self._lanes: list[str] = []
        self._shapes: list[str] = []
        self._steps: dict[int, float] = {}
        self._calls: dict[tuple[int, str], tuple[str, float]] = {}
        self._running: dict[tuple[int, str], float] = {}
        for moment, event in timed:
            self._draw(moment, event)
        if error is not None:
            self._mark(self._end, "trouble", "failed", describe(error))

    def document(self) -> str:
        height = _TICK_ROW + _ROW * len(self._lanes) + 8
        lanes = [
            f'<text x="8" y="{self._middle(name) + 4}">{_escaped(_shortened(name.partition(chr(0))[0]))}</text>'
            f'<line class="lane" x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{self._middle(name)}" y2="{self._middle(name)}"/>'
            for name in self._lanes
        ]
        ticks = [
            f'<text class="dim" x="{self._x(self._end * part / 4):.1f}" y="14" text-anchor="middle">'
            f"{self._end * part / 4:.2f} s</text>"
            for part in range(5)
        ]
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="timeline" width="{_WIDTH}" height="{height}" '
            f'viewBox="0 0 {_WIDTH} {height}" role="img"><title>A turn over {self._end:.2f} seconds</title>'
            f"<style>{_STYLE}</style>{''.join(ticks)}{''.join(lanes)}{''.join(self._shapes)}</svg>"
        )

    def _draw(self, moment: float, event: Any) -> None:
        match event.type:
            case "step_started":
                self._steps[event.step] = moment
            case "step_finished":
                self._bar(self._steps.get(event.step, moment), moment, "steps", "step", f"step {event.step}")
            case "text_delta":
                self._mark(moment, "text", "text", event.text)
            case "reasoning_delta":
                self._mark(moment, "reasoning", "reasoning", event.text)
            case "tool_call_started":
                self._calls[event.step, event.call_id] = (event.name, moment)
            case "tool_call":
                name, began = self._calls.get((event.step, event.call_id), (event.name, moment))
                self._bar(began, moment, _lane(name, event), "arguments", f"{name}: arguments")
            case "tool_started":
                self._running[event.step, event.call_id] = moment
            case "tool_finished":
                began = self._running.get((event.step, event.call_id), moment)
                said = f"{event.name}: {event.error}" if event.error is not None else event.name
                kind = "failed" if event.error is not None else "tool"
                self._bar(began, moment, _lane(event.name, event), kind, said)
            case "retry_scheduled":
                self._mark(moment, "trouble", "failed", f"retry {event.attempt} in {event.delay:.1f} s")
            case "malformed_retried" | "context_reclaimed":
                self._mark(moment, "trouble", "step", event.type.replace("_", " "))
            case "usage_updated":
                self._say(moment, "usage", f"{event.usage.total_tokens:,}")

    def _bar(self, began: float, ended: float, lane: str, kind: str, said: str) -> None:
        x = self._x(began)
        width = max(_LEAST, self._x(ended) - x)
        y = self._middle(lane) - 8
        title = _escaped(f"{said} ({began:.2f} to {ended:.2f} s)")
        shape = f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="16" rx="3">'
        self._shapes.append(f"{shape}<title>{title}</title></rect>")

    def _mark(self, moment: float, lane: str, kind: str, said: str) -> None:
        title = _escaped(f"{said} ({moment:.2f} s)")
        circle = f'<circle class="{kind}" cx="{self._x(moment):.1f}" cy="{self._middle(lane)}" r="3.5">'
        self._shapes.append(f"{circle}<title>{title}</title></circle>")

    def _say(self, moment: float, lane: str, said: str) -> None:
        place = f'x="{self._x(moment):.1f}" y="{self._middle(lane) + 4}"'
        self._shapes.append(f'<text {place} text-anchor="end">{_escaped(said)}</text>')

    def _x(self, moment: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - 30) * moment / self._end

    def _middle(self, lane: str) -> int:
        if lane not in self._lanes:
            self._lanes.append(lane)
        return _TICK_ROW + _ROW * self._lanes.index(lane) + _ROW // 2


def _lane(name: str, event: Any) -> str:
    # each call has a lane of its own; only its name is shown
    return f"{_NO_XML.sub(_REPLACEMENT, name)}\0{event.step}\0{event.call_id}"


def _escaped(text: str) -> str:
    return escape(_NO_XML.sub(_REPLACEMENT, text))


def _shortened(name: str) -> str:
    return name if len(name) <= 20 else f"{name[:19]}…"
