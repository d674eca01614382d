"""Feeding user interfaces: hot turns on an event bus, AG-UI, the Vercel UI message stream, and an ASGI app."""

__all__ = ()
