"""A source that breaks the rules of the protocol, to see that what stands behind it does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

from reactivex import Observable, abc
from reactivex.disposable import Disposable

__all__ = ("MISBEHAVIOURS", "MisbehavingSource", "Misbehaviour")

Misbehaviour: TypeAlias = Literal[
    "emits after its completion",
    "emits after its error",
    "completes twice",
    "errors twice",
    "completes after its error",
    "errors after its completion",
    "never ends",
    "never emits",
    "ends at once",
    "errors at once",
    "raises in subscribe",
    "raises in subscribe after emitting",
    "ignores its disposal",
]

MISBEHAVIOURS: tuple[Misbehaviour, ...] = get_args(Misbehaviour)
"""Every kind there is, to parametrise a test with."""

_COMPLETION = object()


class MisbehavingSource(Observable[Any]):
    """
    Emit everything synchronously inside ``subscribe``, and do one thing that a source must not, or may but rarely does.

    What it emits goes to the subscriber's own callbacks: the guard that reactivex puts between a source and its
    observer is left out.

    Args:
        kind: what it does; one of `MISBEHAVIOURS`.
        items: emitted before the misdeed, and once more after it where there is an "after".
        error: what it fails with.

    ``subscriptions`` and ``disposals`` count how often it was subscribed to and let go; `emit_late` emits the items
    and the end again, whenever you like.
    """

    def __init__(self, kind: Misbehaviour, items: Sequence[Any] = (), error: Exception | None = None) -> None:
        super().__init__()
        self.kind = kind
        self.items = tuple(items)
        self.error = RuntimeError("the source failed") if error is None else error
        self.subscriptions = 0
        self.disposals = 0
        self._observers: list[tuple[Any, Any, Any]] = []

    def subscribe(
        self,
        on_next: Any = None,
        on_error: Any = None,
        on_completed: Any = None,
        *,
        scheduler: abc.SchedulerBase | None = None,
    ) -> abc.DisposableBase:
        """Emit what there is to emit; count the subscription."""
        if on_next is not None and hasattr(on_next, "on_next"):
            observer = (on_next.on_next, on_next.on_error, on_next.on_completed)
        else:
            observer = (on_next or _ignore, on_error or _ignore, on_completed or _ignore)
        self.subscriptions += 1
        if self.kind == "raises in subscribe":
            raise self.error
        self._observers.append(observer)
        for signal in self._signals():
            self._send(observer, signal)
        if self.kind == "raises in subscribe after emitting":
            raise self.error

        def dispose() -> None:
            self.disposals += 1
            if self.kind != "ignores its disposal":
                self._observers.remove(observer)

        return Disposable(dispose)

    def emit_late(self) -> None:
        """Emit the items and a completion to whoever is subscribed still, or was when it ``ignores its disposal``."""
        for observer in list(self._observers):
            for signal in (*self.items, _COMPLETION):
                self._send(observer, signal)

    def _signals(self) -> tuple[Any, ...]:
        items, error, completion = self.items, self.error, _COMPLETION
        match self.kind:
            case "emits after its completion":
                return (*items, completion, *items)
            case "emits after its error":
                return (*items, error, *items)
            case "completes twice":
                return (*items, completion, completion)
            case "errors twice":
                return (*items, error, RuntimeError("the source failed again"))
            case "completes after its error":
                return (*items, error, completion)
            case "errors after its completion":
                return (*items, completion, error)
            case "ends at once":
                return (completion,)
            case "errors at once":
                return (error,)
            case "never emits":
                return ()
            case _:
                return items

    @staticmethod
    def _send(observer: tuple[Any, Any, Any], signal: Any) -> None:
        on_next, on_error, on_completed = observer
        if signal is _COMPLETION:
            on_completed()
        elif isinstance(signal, Exception):
            on_error(signal)
        else:
            on_next(signal)


def _ignore(*_: Any) -> None:
    pass
