"""What the two protocols ask of a stream, as checkers: the rules of their own clients, and what a history needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ag_ui.core import Event
from pydantic import TypeAdapter

__all__ = ("check_agui", "check_ui_messages")

_EVENT: TypeAdapter[Any] = TypeAdapter(Event)

_OPENERS = {
    "TEXT_MESSAGE_START": ("messageId", "text"),
    "REASONING_START": ("messageId", "span"),
    "REASONING_MESSAGE_START": ("messageId", "reasoning"),
    "TOOL_CALL_START": ("toolCallId", "call"),
    "STEP_STARTED": ("stepName", "step"),
}
_PIECES = {
    "TEXT_MESSAGE_CONTENT": ("messageId", "text"),
    "REASONING_MESSAGE_CONTENT": ("messageId", "reasoning"),
    "TOOL_CALL_ARGS": ("toolCallId", "call"),
}
_CLOSERS = {
    "TEXT_MESSAGE_END": ("messageId", "text"),
    "REASONING_END": ("messageId", "span"),
    "REASONING_MESSAGE_END": ("messageId", "reasoning"),
    "TOOL_CALL_END": ("toolCallId", "call"),
    "STEP_FINISHED": ("stepName", "step"),
}
_ENDS = ("RUN_FINISHED", "RUN_ERROR")


def check_agui(events: Iterable[Mapping[str, Any]], *, thread_id: str, run_id: str) -> None:
    """
    Check a whole run of AG-UI, in its JSON form.

    One ``RUN_STARTED`` first and one end last; what is opened has a name of its own, is closed, and grows only in
    between; all of it in a step; a call is answered once, after it is whole; a signature is of what was told before.
    """
    events = list(events)
    for event in events:
        _EVENT.validate_python(dict(event))
    kinds = [event["type"] for event in events]
    assert kinds[0] == "RUN_STARTED"
    assert kinds.count("RUN_STARTED") == 1
    assert kinds[-1] in _ENDS
    assert sum(kinds.count(kind) for kind in _ENDS) == 1
    for event in (events[0], events[-1]):
        if event["type"] != "RUN_ERROR":
            assert (event["threadId"], event["runId"]) == (thread_id, run_id)
    used: set[tuple[str, str]] = set()
    open_now: set[tuple[str, str]] = set()
    answered: set[str] = set()
    for event in events[1:-1]:
        kind = event["type"]
        if kind not in ("STEP_STARTED", "CUSTOM"):
            assert [what for what, _ in open_now].count("step") == 1, f"{kind} outside a step"
        if kind in _OPENERS:
            name, what = _OPENERS[kind]
            mark = (what, event[name])
            assert mark not in used, f"{mark} is opened twice"
            if what == "step":
                assert not open_now, f"a step must wait for {open_now}"
            if what == "reasoning":
                assert ("span", event[name]) in open_now
            used.add(mark)
            open_now.add(mark)
        elif kind in _PIECES:
            name, what = _PIECES[kind]
            assert (what, event[name]) in open_now, f"{event} is of nothing that is open"
        elif kind in _CLOSERS:
            name, what = _CLOSERS[kind]
            open_now.remove((what, event[name]))
            if what == "step":
                assert not open_now, f"the step ended before {open_now}"
        elif kind == "TOOL_CALL_RESULT":
            call_id = event["toolCallId"]
            assert ("call", call_id) in used - open_now, "a result must follow its call"
            assert call_id not in answered, f"{call_id} is answered twice"
            answered.add(call_id)
        elif kind == "REASONING_ENCRYPTED_VALUE":
            what = "call" if event["subtype"] == "tool-call" else "reasoning"
            assert (what, event["entityId"]) in used - open_now, f"{event} is of nothing that was told"
        else:
            assert kind == "CUSTOM", f"{kind} is not expected"
            assert event["name"].startswith("rxloop.")
    assert not open_now, f"{open_now} are open at the end"
    assert answered == {call_id for what, call_id in used if what == "call"}, "every call must have a result"


def check_ui_messages(parts: Iterable[Mapping[str, Any]]) -> None:
    """
    Check a whole UI message stream.

    ``start`` first, and one of ``finish``, ``abort`` and ``error`` last; what is opened has a name of its own, is
    closed, and grows only in between, all of it in a step; a call has one input and one output, in this order.
    """
    parts = list(parts)
    kinds = [part["type"] for part in parts]
    assert kinds[0] == "start"
    assert kinds[-1] in ("finish", "abort", "error")
    assert sum(kinds.count(kind) for kind in ("start", "finish", "abort", "error")) == 2
    used: set[tuple[str, str]] = set()
    open_now: set[tuple[str, str]] = set()
    inputs: set[str] = set()
    outputs: set[str] = set()
    in_step = False
    for part in parts[1:-1]:
        kind = part["type"]
        if kind == "message-metadata" or kind.startswith("data-"):
            continue
        what, _, how = kind.partition("-")
        if kind == "start-step":
            assert not in_step
            in_step = True
            continue
        assert in_step, f"{kind} outside a step"
        if kind == "finish-step":
            in_step = False
            assert not open_now, f"the step ended before {open_now}"
        elif what in ("text", "reasoning"):
            mark = (what, part["id"])
            if how == "start":
                assert mark not in used
                used.add(mark)
                open_now.add(mark)
            else:
                assert mark in open_now
                if how == "end":
                    open_now.remove(mark)
        else:
            mark = ("tool", part["toolCallId"])
            if how == "input-start":
                assert mark not in used
                used.add(mark)
                open_now.add(mark)
            elif how == "input-delta":
                assert mark in open_now
            elif how in ("input-available", "input-error"):
                open_now.remove(mark)
                inputs.add(mark[1])
            else:
                assert how in ("output-available", "output-error"), f"{kind} is not expected"
                assert mark[1] in inputs
                assert mark[1] not in outputs
                outputs.add(mark[1])
    assert not in_step
    assert not open_now
    assert outputs == {name for what, name in used if what == "tool"}
