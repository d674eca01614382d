"""How a turn's events look: JSON lines, plain text, or live on a terminal."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import IO, Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from rxloop.errors import RxLoopError
from rxloop.events import (
    ContextReclaimed,
    MalformedRetried,
    ReasoningDelta,
    RetryScheduled,
    StepFinished,
    StepStarted,
    TextDelta,
    ToolCallDelta,
    ToolCallReceived,
    ToolCallStarted,
    ToolFinished,
    ToolProgress,
    ToolStarted,
    TurnEvent,
    TurnFinished,
    TurnStarted,
    UnknownEvent,
)

__all__ = ("JsonView", "PlainView", "TerminalView", "View", "one_line")

_WIDEST = 92
_SHORT = 400


class View(Protocol):
    """Where events go."""

    def prompt(self, text: str) -> None:
        """Show what is asked."""
        ...

    def show(self, event: TurnEvent) -> None:
        """Show one event."""
        ...

    def fail(self, error: RxLoopError) -> None:
        """Show what a turn failed with, beside the line on stderr."""
        ...

    def close(self) -> None:
        """End the turn, whichever way it went."""
        ...


class JsonView:
    """
    One event a line.

    Args:
        out: where the lines go.
        extra: what every line carries beside the event.
    """

    def __init__(self, out: IO[str], extra: Mapping[str, Any] | None = None) -> None:
        self._out = out
        self._extra = dict(extra or {})
        # what the stream cannot write goes out escaped
        encoding = (getattr(out, "encoding", None) or "utf-8").lower()
        self._plain = encoding.replace("-", "").replace("_", "") == "utf8"

    def prompt(self, text: str) -> None:
        """Nothing: it is not an event."""

    def show(self, event: TurnEvent) -> None:
        """One line."""
        self._write(event.to_dict())

    def fail(self, error: RxLoopError) -> None:
        """One line of the type ``error``."""
        self._write({"type": "error", "error": error.to_dict()})

    def close(self) -> None:
        """Nothing is kept back."""

    def _write(self, data: dict[str, Any]) -> None:
        line = _json({**data, **self._extra}, plain=self._plain)
        self._out.write(line + "\n")
        self._out.flush()


class PlainView:
    """
    Text for pipes and files: what is said as it comes, everything else in one line each.

    Args:
        out: where the answer goes.
        notes: where everything else goes; with the answer if not given.
        clock: seconds, for the time that a turn took.
    """

    def __init__(
        self, out: IO[str], notes: IO[str] | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._out = out
        self._notes = notes or out
        self._tally = _Tally(clock)
        self._open: type[TurnEvent] | None = None

    def prompt(self, text: str) -> None:
        """The prompt after a mark of its own."""
        self._line(f"> {text}\n")

    def show(self, event: TurnEvent) -> None:
        """Text at once; a note for what is worth one."""
        self._tally.count(event)
        if isinstance(event, (TextDelta, ReasoningDelta)):
            if self._open is not type(event):
                self._end_line()
                if isinstance(event, ReasoningDelta):
                    self._write("[thinking] ", ReasoningDelta)
                self._open = type(event)
            self._write(event.text, type(event))
        elif isinstance(event, ToolStarted):
            self._line(f"[tool] {event.name}({_arguments(self._tally.arguments.get(event.call_id))})")
        elif isinstance(event, ToolFinished):
            self._line(f"[tool] {event.name} -> {_outcome(event)} ({event.seconds:.2f} s)")
        elif isinstance(event, TurnFinished):
            self._line(f"[usage] {self._tally.summary(event)}\n")
        elif note := _note(event):
            self._line(f"[{event.type}] {note}")

    def fail(self, error: RxLoopError) -> None:
        """Nothing beside the line on stderr."""

    def close(self) -> None:
        """End a line that is open."""
        self._end_line()
        self._out.flush()

    def _end_line(self) -> None:
        if self._open is not None:
            self._write("\n", self._open)
            self._open = None

    def _line(self, text: str) -> None:
        self._end_line()
        self._write(text + "\n")

    def _write(self, text: str, kind: type[TurnEvent] | None = None) -> None:
        stream = self._out if kind is TextDelta else self._notes
        stream.write(text)
        stream.flush()


class TerminalView:
    """
    A turn as it happens: text as it comes, dim reasoning, a card for every tool call, a line of usage at the end.

    What is finished is printed and scrolls away like any output; only the paragraph and the cards in progress are
    drawn anew.

    Args:
        console: the terminal.
        live: whether to draw what is in progress; without it only what is finished is printed.
        clock: seconds, for the time that a turn took.
    """

    def __init__(self, console: Console, *, live: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._width = min(console.width, _WIDEST)
        self._tally = _Tally(clock)
        self._paragraph = ""
        self._style = ""
        self._cards: dict[str, _Card] = {}
        self._waiting = Spinner("dots", style="cyan")
        self._live: Live | None = None
        if live:
            self._live = Live(console=console, get_renderable=self._in_progress, refresh_per_second=20, transient=True)
            self._live.start()

    def prompt(self, text: str) -> None:
        """The prompt after a mark of its own."""
        self._print(Text.assemble(("> ", "bold cyan"), (text, "bold")), gap=True)

    def show(self, event: TurnEvent) -> None:
        """Draw one event."""
        self._tally.count(event)
        if isinstance(event, TextDelta):
            self._say(event.text, "")
        elif isinstance(event, ReasoningDelta):
            self._say(event.text, "dim italic")
        elif isinstance(event, ToolCallStarted):
            self._end_paragraph()
            self._cards[event.call_id] = _Card(event.name)
        elif isinstance(event, ToolFinished):
            self._card(event).outcome = event
        elif isinstance(event, (ToolCallDelta, ToolCallReceived, ToolStarted, ToolProgress)):
            self._card(event).note(event)
        elif isinstance(event, StepStarted):
            self._end_cards()
        elif isinstance(event, StepFinished):
            self._end_paragraph()
        elif isinstance(event, TurnStarted):
            self._print(Text(f"{event.provider} · {event.model}", "dim"), gap=True)
        elif isinstance(event, TurnFinished):
            self._end_cards()
            self._print(Text(self._tally.summary(event), "dim"))
        elif note := _note(event):
            self._print(Text(f"{event.type}: {note}", "yellow"))
        if self._live is not None and not isinstance(event, (TextDelta, ReasoningDelta, ToolCallDelta)):
            self._live.refresh()

    def fail(self, error: RxLoopError) -> None:
        """Print what there was."""
        self._end_cards()

    def close(self) -> None:
        """Print what there was, and give the terminal back."""
        self._end_cards()
        if self._live is not None:
            self._live.stop()

    def _in_progress(self) -> RenderableType:
        parts: list[RenderableType] = []
        if self._paragraph:
            # the end of a paragraph that is longer than the screen is what is being said
            lines = Text(self._paragraph, self._style).wrap(self._console, self._width)
            parts.append(Text("\n").join(lines[-max(1, self._console.height - 4) :]))
        parts += [card.render(self._width) for card in list(self._cards.values())]
        self._waiting.update(text=Text(f" {self._tally.events} events", "dim"))
        return Group(*parts, self._waiting)

    def _say(self, text: str, style: str) -> None:
        if style != self._style:
            self._end_paragraph()
            self._style = style
        *finished, self._paragraph = (self._paragraph + text).split("\n")
        for paragraph in finished:
            self._print(Text(paragraph, style))

    def _end_paragraph(self) -> None:
        if self._paragraph:
            text, self._paragraph = self._paragraph, ""
            self._print(Text(text, self._style), gap=True)

    def _end_cards(self) -> None:
        self._end_paragraph()
        cards, self._cards = self._cards, {}
        for card in cards.values():
            self._print(card.render(self._width))
        if cards:
            self._print(Text())

    def _card(self, event: ToolCallDelta | ToolCallReceived | ToolStarted | ToolProgress | ToolFinished) -> _Card:
        return self._cards.setdefault(event.call_id, _Card(getattr(event, "name", "tool")))

    def _print(self, content: RenderableType, *, gap: bool = False) -> None:
        if self._live is not None:
            # what is printed now is no longer in progress, and must not be drawn below itself
            self._live.refresh()
        self._console.print(content, width=self._width, highlight=False)
        if gap:
            self._console.print()


class _Card:
    """A tool call: its arguments, and what came of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.arguments = ""
        self.progress = ""
        self.outcome: ToolFinished | None = None
        self._spinner: Spinner | None = None

    def note(self, event: TurnEvent) -> None:
        if isinstance(event, ToolCallDelta):
            self.arguments += event.arguments
        elif isinstance(event, ToolCallReceived):
            self.arguments = _arguments(event.arguments)
        elif isinstance(event, ToolProgress):
            self.progress = _shortened(_text(event.data))
        elif isinstance(event, ToolStarted):
            self._spinner = Spinner("dots", style="cyan")

    def render(self, width: int) -> RenderableType:
        rows = Table.grid(padding=(0, 1))
        rows.add_row("", Text(_shortened(self.arguments), "cyan"))
        outcome = self.outcome
        took = None
        if outcome is not None:
            style = "green" if outcome.error is None else "red"
            rows.add_row(Text("✓" if outcome.error is None else "✗", style), Text(_outcome(outcome)))
            took = Text(f"{outcome.seconds:.2f} s", "dim")
        elif self._spinner is not None:
            rows.add_row(self._spinner, Text(self.progress or "running", "dim"))
        return Panel(
            rows,
            title=Text(self.name, "bold not dim"),
            title_align="left",
            subtitle=took,
            subtitle_align="right",
            border_style="dim",
            width=width,
        )


class _Tally:
    """What a turn comes to while it runs."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()
        self.events = 0
        self.steps = 0
        self.arguments: dict[str, dict[str, Any] | str] = {}

    def count(self, event: TurnEvent) -> None:
        self.events += 1
        if isinstance(event, StepStarted):
            self.steps += 1
        elif isinstance(event, ToolCallReceived):
            self.arguments[event.call_id] = event.arguments

    def summary(self, last: TurnFinished) -> str:
        usage = last.usage
        reason = "" if last.finish_reason == "stop" else f"{last.finish_reason} · "
        cached = f" ({usage.cache_read_tokens:,} cached)" if usage.cache_read_tokens else ""
        thought = f" ({usage.reasoning_tokens:,} reasoning)" if usage.reasoning_tokens else ""
        calls = len(self.arguments)
        return (
            f"{reason}{usage.input_tokens:,} tokens in{cached}, {usage.output_tokens:,} out{thought} · "
            f"{self.steps} step{'s' * (self.steps != 1)}, {calls} call{'s' * (calls != 1)} · "
            f"{self.events:,} events in {self._clock() - self._began:.1f} s"
        )


def one_line(text: str) -> str:
    """The text without line breaks and control characters."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _note(event: TurnEvent) -> str:
    """What is worth a line of its own."""
    match event:
        case RetryScheduled(attempt=attempt, delay=delay, error=error):
            message = one_line(str(error.get("message", "")))
            return f"attempt {attempt} failed, again in {delay:.1f} s: {_shortened(message)}"
        case MalformedRetried():
            return "the model's call was malformed; it is asked once more"
        case ContextReclaimed(before_tokens=before, after_tokens=after):
            return f"history shortened from {before:,} to {after:,} tokens"
        case UnknownEvent(data=data):
            return _shortened(_json(data))
    return ""


def _arguments(arguments: dict[str, Any] | str | None) -> str:
    if isinstance(arguments, dict):
        return ", ".join(f"{name}={_json(value)}" for name, value in arguments.items())
    return arguments or ""


def _outcome(event: ToolFinished) -> str:
    return _shortened(one_line(_text(event.output) if event.error is None else f"error: {event.error}"))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _shortened(text: str) -> str:
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 1]}…"


def _json(value: Any, *, plain: bool = True) -> str:
    line = json.dumps(value, ensure_ascii=not plain, default=str)
    try:
        line.encode()
    except UnicodeEncodeError:
        # half of a surrogate pair, which no encoding takes
        return json.dumps(value, default=str)
    return line
