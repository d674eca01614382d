"""Read what a person named on a command line or in a test, or say what is wrong with it."""

from __future__ import annotations

import os
from pathlib import Path

from rxloop.errors import ConfigurationError

__all__ = ("read_text",)


def read_text(path: str | os.PathLike[str], expected: str, *, cut: bool = False) -> str:
    """
    The text of a file that is not empty. A byte order mark at its start is left out.

    Args:
        path: the file.
        expected: what it should be, with its article.
        cut: a character that is not whole at the end, as a crash leaves it, is left out.

    Raises:
        ConfigurationError: it cannot be read, is not UTF-8, or has nothing in it.
    """
    shown = os.fspath(path)
    try:
        text = _decoded(Path(path).read_bytes(), cut)
    except FileNotFoundError:
        raise ConfigurationError(f"{shown} does not exist: give the path of {expected}") from None
    except IsADirectoryError:
        raise ConfigurationError(f"{shown} is a directory: give the path of {expected}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{shown} is not text in UTF-8: give the path of {expected}") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"{shown} cannot be read: {reason}") from error
    if not text.strip():
        raise ConfigurationError(f"{shown} is empty: give the path of {expected}, or record it again")
    return text


def _decoded(content: bytes, cut: bool) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if not cut or error.reason != "unexpected end of data":
            raise
        # the error counts from behind a byte order mark
        text = content[: len(content) - len(error.object) + error.start].decode("utf-8-sig")
    return text.replace("\r\n", "\n").replace("\r", "\n")
