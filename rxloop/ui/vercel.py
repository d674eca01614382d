"""A turn as a UI message stream of Vercel's AI SDK.

Source: https://ai-sdk.dev/docs/ai-sdk-ui/stream-protocol#data-stream-protocol
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from reactivex import Observable

from rxloop.events import TextDelta, TurnEvent, TurnFinished
from rxloop.steps import Signature
from rxloop.ui.blocks import Answer, Block, Call
from rxloop.ui.entry import StreamEvent, TurnFailed
from rxloop.ui.frames import json_form, json_text, quoted, whole
from rxloop.ui.translation import Translation, camel_case_usage, translated
from rxloop.usage import Usage

__all__ = ("UIMessageFrames", "UIMessageMapping", "to_ui_message_stream")

_KEPT = ("reasoning_signature",)
"""The notes that stay in the message; the others are for the moment."""


def to_ui_message_stream(
    *, message_id: str | None = None, running_usage: bool = True
) -> Callable[[Observable[TurnEvent]], Observable[dict[str, Any]]]:
    """
    A turn's events as the parts of a UI message stream, as dictionaries.

    .. marble::
        T--S--a--b--F--E|
        [ to_ui_message_stream ]
        R--s--(mc)-c--m--(sr)|

    ``T``, ``S``, ``F`` and ``E`` are the `TurnStarted`, `StepStarted`, `StepFinished` and `TurnFinished` of a turn that
    says ``a`` and ``b``; ``R`` and ``r`` start and finish the message, ``s`` its step, ``m`` its text.

    Every part and step is closed before the end, whatever ends it, and every call has an output or an error. A stop
    becomes ``abort``, an error of the source ``error``, and completion. The response wants the header
    ``x-vercel-ai-ui-message-stream: v1`` and ``[DONE]`` at its end, which `UIMessageFrames` has. State is per
    subscription. Disposing disposes the source.

    Args:
        message_id: the message's identifier, and what those of its parts begin with; the turn's if not given.
        running_usage: tell the total of tokens after every step, in the message's metadata.

    Raises:
        ConfigurationError: `message_id` is no string.
    """

    def begin() -> UIMessageMapping:
        return UIMessageMapping(message_id=message_id, running_usage=running_usage)

    # what the first subscription would refuse is refused here
    begin()
    return lambda source: translated(source, begin)


class UIMessageMapping(Translation[dict[str, Any]]):
    """
    The state of one message, without any I/O: fed with a turn's events, it gives the stream's parts.

    Args:
        message_id: the message's identifier; the turn's if not given.
        running_usage: tell the total of tokens after every step.
    """

    def __init__(self, *, message_id: str | None = None, running_usage: bool = True) -> None:
        super().__init__(turn_id=message_id, fallback_id="turn", running_usage=running_usage)

    def opened(self) -> None:
        """``start``."""
        known = {"provider": self.provider, "model": self.model}
        about = {name: value for name, value in known.items() if value}
        self._out.append({"type": "start", "messageId": self.turn_id, "messageMetadata": about})

    def step_opened(self, step: int) -> None:
        """``start-step``."""
        self._out.append({"type": "start-step"})

    def step_closed(self, step: int) -> None:
        """``finish-step``."""
        self._out.append({"type": "finish-step"})

    def block_opened(self, block: Block) -> None:
        """``text-start`` or ``reasoning-start``."""
        kind = _kind(block)
        self._out.append({"type": f"{kind}-start", "id": block.block_id})
        block.prefix = f'{{"type":"{kind}-delta","id":{quoted(block.block_id)},"delta":'

    def block_grew(self, block: Block, text: str) -> None:
        """``text-delta`` or ``reasoning-delta``."""
        self._out.append({"type": f"{_kind(block)}-delta", "id": block.block_id, "delta": text})

    def block_closed(self, block: Block) -> None:
        """``text-end`` or ``reasoning-end``."""
        self._out.append({"type": f"{_kind(block)}-end", "id": block.block_id})

    def block_signed(self, block: Block, signature: Signature) -> None:
        """A part of its own, since the reasoning ended before the reply did."""
        self.noted("reasoning_signature", {"id": block.block_id, **_sealed(signature)})

    def call_opened(self, call: Call) -> None:
        """``tool-input-start``."""
        self._out.append({"type": "tool-input-start", "toolCallId": call.call_id, "toolName": call.name})
        call.prefix = f'{{"type":"tool-input-delta","toolCallId":{quoted(call.call_id)},"inputTextDelta":'

    def call_grew(self, call: Call, fragment: str) -> None:
        """``tool-input-delta``."""
        self._out.append({"type": "tool-input-delta", "toolCallId": call.call_id, "inputTextDelta": fragment})

    def call_closed(self, call: Call, arguments: dict[str, Any] | str | None) -> None:
        """``tool-input-available``; ``tool-input-error`` where the arguments are no object or are not whole."""
        part = {"type": "tool-input-available", "toolCallId": call.call_id, "toolName": call.name}
        if isinstance(arguments, dict):
            self._out.append({**part, "input": json_form(arguments)})
            return
        fault = "the call was broken off" if arguments is None else "the arguments are no JSON object"
        raw = whole("".join(call.pieces))
        self._out.append({**part, "type": "tool-input-error", "input": raw, "errorText": fault})

    def call_signed(self, call: Call, signature: Signature) -> None:
        """A part of its own."""
        self.noted("reasoning_signature", {"toolCallId": call.call_id, **_sealed(signature)})

    def call_answered(self, call: Call, answer: Answer) -> None:
        """``tool-output-available`` or ``tool-output-error``."""
        if answer.error is None:
            output = json_form(answer.output)
            self._out.append({"type": "tool-output-available", "toolCallId": call.call_id, "output": output})
        else:
            error = whole(answer.error)
            self._out.append({"type": "tool-output-error", "toolCallId": call.call_id, "errorText": error})

    def usage_updated(self, usage: Usage) -> None:
        """``message-metadata``."""
        self._about({"usage": camel_case_usage(usage)})

    def noted(self, name: str, data: dict[str, Any]) -> None:
        """A part ``data-rxloop.`` and the event's type."""
        part: dict[str, Any] = {"type": f"data-rxloop.{name}", "data": json_form(data)}
        if name not in _KEPT:
            part["transient"] = True
        self._out.append(part)

    def finished(self, event: TurnFinished) -> None:
        """``finish``; after a stop ``abort``."""
        about: dict[str, Any] = {
            "usage": camel_case_usage(event.usage),
            "finishReason": event.finish_reason,
            "steps": event.steps,
        }
        if event.output is not None:
            about["output"] = json_form(event.output)
        if event.finish_reason == "aborted":
            self._about(about)
            self._out.append({"type": "abort"})
        else:
            self._out.append({"type": "finish", "finishReason": event.finish_reason, "messageMetadata": about})

    def failed(self, event: TurnFailed) -> None:
        """``error``, after the usage so far and what is known of the error."""
        error = json_form(event.error)
        self._about({"usage": camel_case_usage(event.usage), "finishReason": "error", "error": error})
        self._out.append({"type": "error", "errorText": str(error.get("message") or "the turn failed")})

    def broken_off(self) -> None:
        """``abort``."""
        self._out.append({"type": "abort"})

    def _about(self, metadata: dict[str, Any]) -> None:
        self._out.append({"type": "message-metadata", "messageMetadata": metadata})


class UIMessageFrames:
    """
    The format ``vercel``: the JSON of each part of a UI message stream.

    Args:
        turn_id: the message's identifier.
        thread_id: the conversation, which this format does not tell.
        run_id: the client's name of the run, which this format does not tell.
        running_usage: tell the total of tokens after every step.
    """

    headers: ClassVar[Mapping[str, str]] = {"x-vercel-ai-ui-message-stream": "v1"}
    done: ClassVar[str | None] = "[DONE]"

    __slots__ = ("_mapping",)

    def __init__(self, *, turn_id: str, thread_id: str = "", run_id: str = "", running_usage: bool = True) -> None:
        self._mapping = UIMessageMapping(message_id=turn_id, running_usage=running_usage)

    def feed(self, event: StreamEvent, time: float | None = None) -> Sequence[str]:
        """The frames of the parts that an event makes; they do not tell its time."""
        # most events are pieces of what is open, and anything made of them would be the larger part of the work
        piece = self._mapping.piece(event)
        if piece is not None:
            return (piece,)
        return [json_text(part) for part in self._mapping.feed(event)]


def _kind(block: Block) -> str:
    return "text" if block.kind is TextDelta else "reasoning"


def _sealed(signature: Signature) -> dict[str, Any]:
    return {"value": signature.value, "redacted": signature.redacted}
