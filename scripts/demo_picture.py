"""
Draw the README's first picture from the demo: ``uv run scripts/demo_picture.py [FILE]``.

The same events through the same view as ``rxloop demo``, with fixed times, so that drawing it again makes no
difference.
"""

from __future__ import annotations

import asyncio
import dataclasses
import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI

from rxloop import ToolFinished
from rxloop.cli.show import TerminalView
from rxloop.testing import replay

ROOT = Path(__file__).parent.parent
SECONDS = {"local_time": 0.6, "weather": 1.2}
WHOLE = 6.0
FONT = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


async def draw() -> str:
    (turn,) = replay(ROOT / "rxloop" / "demo.yaml")
    console = Console(record=True, width=92, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print("[dim]$[/dim] rxloop demo\n")
    times = iter((0.0, WHOLE))
    view = TerminalView(console, live=False, clock=lambda: next(times))
    view.prompt(turn.prompt)
    async for event in turn:
        fixed = isinstance(event, ToolFinished)
        view.show(dataclasses.replace(event, seconds=SECONDS[event.name]) if fixed else event)
    view.close()
    # a picture in a README loads nothing
    return FONT.sub("", console.export_svg(title="rxloop", theme=MONOKAI, unique_id="rxloop-demo"))


if __name__ == "__main__":
    picture = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "demo.svg"
    picture.write_text(asyncio.run(draw()), "utf-8")
