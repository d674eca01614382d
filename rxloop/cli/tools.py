"""The tools that ``rxloop generate --tools`` offers."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from rxloop.tools import Tool, tool

__all__ = ("TOOLS", "calculate")

_LONGEST = 500
_BITS = 10_000
_DIGITS = 300


def _round(value: float, digits: int = 0) -> float:
    if not isinstance(digits, int) or abs(digits) > _DIGITS:
        raise ValueError(f"round takes at most {_DIGITS} digits")
    return round(value, digits) if digits else round(value)


_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "cos": math.cos,
    "exp": math.exp,
    "log": math.log,
    "log10": math.log10,
    "max": max,
    "min": min,
    "round": _round,
    "sin": math.sin,
    "sqrt": math.sqrt,
    "tan": math.tan,
}
_CONSTANTS = {"e": math.e, "pi": math.pi}


def calculate(expression: str) -> int | float:
    """
    The value of an arithmetic expression, evaluated without running any code.

    Args:
        expression: numbers, ``+ - * / // % **``, parentheses, a few functions and constants.

    Raises:
        ValueError: it is anything else, or its value is too large.
        ZeroDivisionError: it divides by zero.
    """
    if len(expression) > _LONGEST:
        raise ValueError(f"an expression must have at most {_LONGEST} characters, but has {len(expression)}")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (MemoryError, RecursionError, SyntaxError, ValueError):
        raise ValueError(f"not an arithmetic expression: {expression!r}") from None
    try:
        value = _bounded(_value(tree.body))
    except (OverflowError, RecursionError):
        raise ValueError("the value, or the expression, is too large") from None
    result: int | float = value
    return result


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=sign, operand=inner) if type(sign) in _UNARY:
            return _UNARY[type(sign)](_value(inner))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
            return _bounded(_combined(sign, _value(left), _value(right)))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            try:
                return _bounded(_FUNCTIONS[name](*map(_value, arguments)))
            except TypeError:
                raise ValueError(f"{name} does not take these arguments") from None
    raise ValueError(f"only arithmetic is understood, but got {ast.unparse(node)!r}")


def _combined(sign: ast.operator, left: Any, right: Any) -> Any:
    whole = isinstance(left, int) and isinstance(right, int)
    # told before it is computed: the computing is what would take forever
    if isinstance(sign, ast.Pow) and whole and right * left.bit_length() > _BITS:
        raise OverflowError
    return _BINARY[type(sign)](left, right)


def _bounded(value: Any) -> Any:
    if isinstance(value, int):
        fits = value.bit_length() <= _BITS
    elif isinstance(value, float):
        fits = math.isfinite(value)
    else:
        raise ValueError("the value is not a real number")  # noqa: TRY004
    if not fits:
        raise OverflowError
    return value


@tool
def calculator(expression: str) -> int | float:
    """
    Evaluate an arithmetic expression, such as "(2 + 3) * 7" or "sqrt(2) ** 3".

    Args:
        expression: numbers, + - * / // % **, parentheses; abs, cos, exp, log, log10, max, min, round, sin, sqrt, tan;
            e and pi.
    """
    return calculate(expression)


@tool
def clock(zone: str = "UTC") -> str:
    """
    Tell the current date and time in ISO 8601.

    Args:
        zone: a time zone of the IANA database, such as "Europe/Berlin".
    """
    try:
        place = UTC if zone == "UTC" else ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"unknown time zone: {zone!r}") from None
    return datetime.now(place).isoformat(timespec="seconds")


TOOLS: dict[str, Tool] = {item.name: item for item in (calculator, clock)}
"""The tools by name."""
