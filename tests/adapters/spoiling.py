"""To see that two values share nothing: what is changed in one must not show in the other."""

from __future__ import annotations

from typing import Any

__all__ = ("spoil",)


def spoil(value: Any) -> None:
    """Change whatever can be changed."""
    if isinstance(value, dict):
        for item in list(value.values()):
            spoil(item)
        value["spoilt"] = True
    elif isinstance(value, list):
        for item in value:
            spoil(item)
        value.append("spoilt")
