"""Feeding user interfaces: hot turns on an event bus, AG-UI, the Vercel UI message stream, and an ASGI app."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rxloop.ui.agui import AguiFrames, AguiMapping, to_agui
    from rxloop.ui.app import Authenticate, turn_app
    from rxloop.ui.bus import BusError, EventBus, MemoryBus, Subscription, TurnInterruptedError
    from rxloop.ui.entry import Entry, StreamEvent, TurnFailed, TurnRequested, is_end, stream_event_from_dict
    from rxloop.ui.frames import EventFrames, Frames
    from rxloop.ui.publishing import publish_turn
    from rxloop.ui.redis_bus import RedisBus, RedisThreads
    from rxloop.ui.threads import MemoryThreads, Thread, ThreadStore, TurnNote
    from rxloop.ui.turn_request import TurnRequest
    from rxloop.ui.vercel import UIMessageFrames, UIMessageMapping, to_ui_message_stream
    from rxloop.ui.worker import MakeTurn, run_turn

__all__ = (
    "AguiFrames",
    "AguiMapping",
    "Authenticate",
    "BusError",
    "Entry",
    "EventBus",
    "EventFrames",
    "Frames",
    "MakeTurn",
    "MemoryBus",
    "MemoryThreads",
    "RedisBus",
    "RedisThreads",
    "StreamEvent",
    "Subscription",
    "Thread",
    "ThreadStore",
    "TurnFailed",
    "TurnInterruptedError",
    "TurnNote",
    "TurnRequest",
    "TurnRequested",
    "UIMessageFrames",
    "UIMessageMapping",
    "is_end",
    "publish_turn",
    "run_turn",
    "stream_event_from_dict",
    "to_agui",
    "to_ui_message_stream",
    "turn_app",
)

_MODULES = {
    "AguiFrames": "agui",
    "AguiMapping": "agui",
    "Authenticate": "app",
    "BusError": "bus",
    "Entry": "entry",
    "EventBus": "bus",
    "EventFrames": "frames",
    "Frames": "frames",
    "MakeTurn": "worker",
    "MemoryBus": "bus",
    "MemoryThreads": "threads",
    "RedisBus": "redis_bus",
    "RedisThreads": "redis_bus",
    "StreamEvent": "entry",
    "Subscription": "bus",
    "Thread": "threads",
    "ThreadStore": "threads",
    "TurnFailed": "entry",
    "TurnInterruptedError": "bus",
    "TurnNote": "threads",
    "TurnRequest": "turn_request",
    "TurnRequested": "entry",
    "UIMessageFrames": "vercel",
    "UIMessageMapping": "vercel",
    "is_end": "entry",
    "publish_turn": "publishing",
    "run_turn": "worker",
    "stream_event_from_dict": "entry",
    "to_agui": "agui",
    "to_ui_message_stream": "vercel",
    "turn_app": "app",
}


def __getattr__(name: str) -> Any:
    # whoever needs one of them does not pay for the others
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
