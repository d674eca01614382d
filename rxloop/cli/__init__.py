"""The command line: ``rxloop demo``, ``rxloop generate``, ``rxloop replay``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ("main",)


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run the command line and return its exit status.

    0 is success, 1 a provider's failure, 2 bad input, 130 an interrupt.

    Args:
        arguments: what follows the program's name; the process's own by default.
    """
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError:
        sys.stderr.write('rxloop: the command line needs the cli extra: pip install "rxloop[anthropic,cli]"\n')
        return 2
    try:
        from rxloop.cli.app import run

        return run(arguments)
    except KeyboardInterrupt:
        return 130
