"""Tool names as a provider accepts them, and back."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from rxloop.errors import ConfigurationError

__all__ = ("NameMap",)

_DIGEST = 8


class NameMap:
    """
    A reversible, collision-free map between the caller's names and a provider's.

    A name that the provider accepts stays as it is. Any other is cleaned and gets a digest of itself at its end, so
    that a name always maps to the same alias, whichever other tools there are.

    Args:
        names: the declared names.
        pattern: what the provider accepts as a whole name.
        allowed: the characters that an alias may keep, as the inside of a character class.
        longest: the provider's limit in characters.

    Raises:
        ConfigurationError: two declared names end up the same.
    """

    __slots__ = ("_aliases", "_names")

    def __init__(self, names: Iterable[str], *, pattern: re.Pattern[str], allowed: str, longest: int) -> None:
        self._aliases: dict[str, str] = {}
        self._names: dict[str, str] = {}
        for name in names:
            alias = name if pattern.fullmatch(name) else _alias(name, allowed, longest)
            other = self._names.setdefault(alias, name)
            if other != name or name in self._aliases:
                raise ConfigurationError(
                    f"tool names must be unique, but {name!r} is declared twice"
                    if other == name
                    else f"tool names must stay unique, but {name!r} and {other!r} both become {alias!r}"
                )
            self._aliases[name] = alias

    def alias(self, name: str) -> str:
        """The provider's name of a declared tool; any other name as it is."""
        return self._aliases.get(name, name)

    def name(self, alias: str) -> str:
        """The caller's name of a declared tool; any other name as it is."""
        return self._names.get(alias, alias)


def _alias(name: str, allowed: str, longest: int) -> str:
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:_DIGEST]
    cleaned = re.sub(f"[^{allowed}]", "_", name)[: longest - _DIGEST - 2]
    # the first character is a letter wherever that is asked for
    head = cleaned if cleaned[:1].isascii() and cleaned[:1].isalpha() else f"t{cleaned}"
    return f"{head}_{digest}"
