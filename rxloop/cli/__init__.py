"""The command line: ``rxloop demo``, ``generate``, ``record``, ``replay`` and ``serve``."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence

__all__ = ("main",)

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run the command line and return its exit status.

    0 is success, 1 a provider's failure, 2 bad input, 130 an interrupt.

    Args:
        arguments: what follows the program's name; the process's own by default.
    """
    try:
        # Python imports the package itself before anything here can run: an interrupt meanwhile shows a traceback
        with _importing(program=arguments is None):
            try:
                import rich  # noqa: F401
                import typer  # noqa: F401
            except ImportError:
                sys.stderr.write('rxloop: the command line needs the cli extra: pip install "rxloop[anthropic,cli]"\n')
                return 2
            from rxloop.cli.app import run

        return run(arguments)
    except KeyboardInterrupt:
        return _INTERRUPTED


@contextlib.contextmanager
def _importing(*, program: bool) -> Iterator[None]:
    """
    While a program of its own imports, an interrupt ends it at once.

    An exception in the middle of somebody's import may be swallowed there, or come out as another.
    """
    if not program or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    try:
        signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    except ValueError:
        # not the main thread: nobody can interrupt it
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
