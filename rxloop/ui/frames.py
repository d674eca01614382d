"""What a stream of frames is made of, whatever its format; and the plainest format, the events' own JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring
from typing import Any, ClassVar, Protocol

from pydantic_core import from_json, to_json

from rxloop.events import ReasoningDelta, TextDelta, ToolCallDelta
from rxloop.ui.entry import StreamEvent

__all__ = ("EventFrames", "Frames", "json_form", "json_text", "quoted", "whole")

_DEEPEST = 200
"""The most objects and lists inside one another that are written where there is something to mend among them."""


class Frames(Protocol):
    """
    One turn's events as the frames of a format: each is the JSON of one message to the client.

    What is made depends on the events alone, so that whoever reads the same events makes the same frames. State is
    per turn: one object reads one turn, from whichever event on.
    """

    headers: ClassVar[Mapping[str, str]]
    """What the format wants in the response's header, beside the content type."""

    done: ClassVar[str | None]
    """The data of a last frame that the format wants after the turn's end, where it does; it is no JSON."""

    def __init__(self, *, turn_id: str, thread_id: str, run_id: str) -> None:
        """
        Begin a turn.

        Args:
            turn_id: the turn.
            thread_id: the client's name of its conversation.
            run_id: the client's name of it.
        """

    def feed(self, event: StreamEvent, time: float | None = None) -> Sequence[str]:
        """
        The frames that an event makes: none, one or more, without line breaks in them.

        Args:
            event: the next one.
            time: its seconds since the turn began, for formats that tell.
        """
        ...


class EventFrames:
    """
    The format ``rxloop``: an event's own JSON form, one frame per event.

    Args:
        turn_id: the turn; the events have it already.
        thread_id: its conversation, which this format does not tell.
        run_id: the client's name of the run, which this format does not tell.
    """

    headers: ClassVar[Mapping[str, str]] = {}
    done: ClassVar[str | None] = None

    __slots__ = ()

    def __init__(self, *, turn_id: str = "", thread_id: str = "", run_id: str = "") -> None:
        pass

    def feed(self, event: StreamEvent, time: float | None = None) -> Sequence[str]:
        """The event's frame; with its time, as an event tape has it."""
        timed = "" if time is None else f',"time":{time}'
        if isinstance(event, (TextDelta, ReasoningDelta)):
            return (f'{{"type":"{event.type}","step":{event.step},"text":{quoted(event.text)}{timed}}}',)
        if isinstance(event, ToolCallDelta):
            call_id, arguments = quoted(event.call_id), quoted(event.arguments)
            said = f'"step":{event.step},"call_id":{call_id},"arguments":{arguments}'
            return (f'{{"type":"tool_call_delta",{said}{timed}}}',)
        return (f"{json_text(event.to_dict())[:-1]}{timed}}}",)


def quoted(text: str) -> str:
    """A string as JSON; half a character in it is replaced, since no client could be sent it."""
    return encode_basestring(whole(text))


def json_text(value: Any) -> str:
    """Any value as JSON: what JSON has no form for as its text, numbers that it does not have as ``null``."""
    try:
        return _dumped(value)
    except Exception:
        # half a character somewhere, something that holds itself or too much, or a type whose own code fails
        return _dumped(_plain(value, ()))


def whole(text: str) -> str:
    """The text, if need be without halves of characters."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return _whole_characters(text)
    return text


def json_form(value: Any) -> Any:
    """What JSON makes of it."""
    text = json_text(value)
    try:
        return from_json(text)
    except ValueError:
        # it is deeper than the fast parser goes
        return json.loads(text)


def _whole_characters(text: str) -> str:
    """The text with U+FFFD for every half of a character; halves that belong together are joined."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _dumped(value: Any) -> str:
    return to_json(value, bytes_mode="base64", inf_nan_mode="null", fallback=_text_of).decode()


def _plain(value: Any, outer: tuple[int, ...]) -> Any:
    if isinstance(value, str):
        return _whole_characters(value)
    if id(value) in outer or len(outer) == _DEEPEST:
        return "..."
    inside = (*outer, id(value))
    if isinstance(value, Mapping):
        return {_whole_characters(_text_of(key)): _plain(item, inside) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item, inside) for item in value]
    try:
        _dumped(value)
    except Exception:
        return _whole_characters(_text_of(value))
    return value


def _text_of(value: Any) -> str:
    try:
        return str(value)
    except Exception as fault:
        return f"{type(value).__name__}, whose __str__ raised {type(fault).__name__}"
