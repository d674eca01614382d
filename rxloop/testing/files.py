"""Read what a person named on a command line or in a test, or say what is wrong with it."""

from __future__ import annotations

import os
from pathlib import Path

from rxloop.errors import ConfigurationError

__all__ = ("read_text",)


def read_text(path: str | os.PathLike[str], expected: str) -> str:
    """
    The text of a file that is not empty.

    Args:
        path: the file.
        expected: what it should be, with its article.

    Raises:
        ConfigurationError: it cannot be read, is not UTF-8, or has nothing in it.
    """
    shown = os.fspath(path)
    try:
        text = Path(path).read_text("utf-8")
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
