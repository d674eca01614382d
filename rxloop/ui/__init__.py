"""Feeding user interfaces: hot turns on an event bus, AG-UI, the Vercel UI message stream, and an ASGI app."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rxloop.ui.agui import AguiFrames, AguiMapping, to_agui
    from rxloop.ui.entry import Entry, StreamEvent, TurnFailed, is_end, stream_event_from_dict
    from rxloop.ui.frames import EventFrames, Frames
    from rxloop.ui.vercel import UIMessageFrames, UIMessageMapping, to_ui_message_stream

__all__ = (
    "AguiFrames",
    "AguiMapping",
    "Entry",
    "EventFrames",
    "Frames",
    "StreamEvent",
    "TurnFailed",
    "UIMessageFrames",
    "UIMessageMapping",
    "is_end",
    "stream_event_from_dict",
    "to_agui",
    "to_ui_message_stream",
)

_MODULES = {
    "AguiFrames": "agui",
    "AguiMapping": "agui",
    "Entry": "entry",
    "EventFrames": "frames",
    "Frames": "frames",
    "StreamEvent": "entry",
    "TurnFailed": "entry",
    "UIMessageFrames": "vercel",
    "UIMessageMapping": "vercel",
    "is_end": "entry",
    "stream_event_from_dict": "entry",
    "to_agui": "agui",
    "to_ui_message_stream": "vercel",
}


def __getattr__(name: str) -> Any:
    # whoever needs one of them does not pay for the others
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
