"""A turn as a run of AG-UI.

Source: https://docs.ag-ui.com/concepts/events
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from reactivex import Observable

from rxloop.checks import instance
from rxloop.errors import ConfigurationError
from rxloop.events import TextDelta, TurnEvent, TurnFinished
from rxloop.steps import Signature
from rxloop.ui.blocks import Answer, Block, Call
from rxloop.ui.entry import StreamEvent, TurnFailed
from rxloop.ui.frames import json_form, json_text, quoted, whole
from rxloop.ui.translation import Translation, camel_case_usage, translated
from rxloop.usage import Usage

if TYPE_CHECKING:
    from ag_ui.core import BaseEvent

__all__ = ("AguiFrames", "AguiMapping", "to_agui")


def to_agui(
    *, thread_id: str, run_id: str, turn_id: str | None = None, running_usage: bool = True
) -> Callable[[Observable[TurnEvent]], Observable[BaseEvent]]:
    """
    A turn's events as the events of AG-UI, which are ``ag_ui.core``'s own.

    .. marble::
        T--S--a--b--F--E|
        [ to_agui ]
        R--s--(mc)-c--m--(sr)|

    ``T``, ``S``, ``F`` and ``E`` are the `TurnStarted`, `StepStarted`, `StepFinished` and `TurnFinished` of a turn that
    says ``a`` and ``b``; ``R`` and ``r`` open and finish the run, ``s`` its step, ``m`` its message.

    Every message, call and step is closed before the run ends, whatever ends it, and every call has one result: an
    error where the turn ended before the tool did. An error of the source becomes ``RUN_ERROR``, and completion. State
    is per subscription. Disposing disposes the source.

    Args:
        thread_id: the conversation.
        run_id: the client's name of the run.
        turn_id: what the identifiers of messages and calls begin with; the turn's own if not given.
        running_usage: tell the total of tokens after every step, as ``CUSTOM`` ``rxloop.usage_updated``.

    Raises:
        ConfigurationError: a name is no string, or ``ag-ui-protocol`` is not installed.
    """

    def begin() -> AguiMapping:
        return AguiMapping(thread_id=thread_id, run_id=run_id, turn_id=turn_id, running_usage=running_usage)

    # what the first subscription would refuse is refused here
    begin()
    return lambda source: translated(source, begin)


class AguiMapping(Translation["BaseEvent"]):
    """
    The state of one run of AG-UI, without any I/O: fed with a turn's events, it gives the protocol's.

    What is made depends on the events alone. Identifiers are made of the turn's, the step's number and a counter, or
    the provider's identifier of the call, which need not be unique over the turns of a thread.

    Args:
        thread_id: the conversation.
        run_id: the client's name of the run.
        turn_id: what identifiers begin with; the turn's own if not given.
        running_usage: tell the total of tokens after every step.

    Raises:
        ConfigurationError: a name is no string, or ``ag-ui-protocol`` is not installed.
    """

    def __init__(self, *, thread_id: str, run_id: str, turn_id: str | None = None, running_usage: bool = True) -> None:
        instance("thread_id", thread_id, str)
        instance("run_id", run_id, str)
        super().__init__(turn_id=turn_id, fallback_id=run_id, running_usage=running_usage)
        self._thread_id = whole(thread_id)
        self._run_id = whole(run_id)
        self._core = _protocol()

    def opened(self) -> None:
        """``RUN_STARTED``."""
        core = self._core
        about = {"turn_id": self.turn_id, "provider": self.provider, "model": self.model}
        self._out.append(
            core.RunStartedEvent(
                thread_id=self._thread_id,
                run_id=self._run_id,
                protocol_version=core.PROTOCOL_VERSION,
                metadata={"rxloop": about},
            )
        )

    def step_opened(self, step: int) -> None:
        """``STEP_STARTED``."""
        self._out.append(self._core.StepStartedEvent(step_name=f"step-{step}"))

    def step_closed(self, step: int) -> None:
        """``STEP_FINISHED``."""
        self._out.append(self._core.StepFinishedEvent(step_name=f"step-{step}"))

    def block_opened(self, block: Block) -> None:
        """``TEXT_MESSAGE_START``; ``REASONING_START`` and ``REASONING_MESSAGE_START``."""
        core, message_id = self._core, block.block_id
        if block.kind is TextDelta:
            kind = "TEXT_MESSAGE_CONTENT"
            self._out.append(core.TextMessageStartEvent(message_id=message_id, role="assistant"))
        else:
            kind = "REASONING_MESSAGE_CONTENT"
            self._out.append(core.ReasoningStartEvent(message_id=message_id))
            self._out.append(core.ReasoningMessageStartEvent(message_id=message_id, role="reasoning"))
        block.prefix = f'{{"type":"{kind}","messageId":{quoted(message_id)},"delta":'

    def block_grew(self, block: Block, text: str) -> None:
        """``TEXT_MESSAGE_CONTENT`` or ``REASONING_MESSAGE_CONTENT``."""
        core = self._core
        content = core.TextMessageContentEvent if block.kind is TextDelta else core.ReasoningMessageContentEvent
        self._out.append(content(message_id=block.block_id, delta=text))

    def block_closed(self, block: Block) -> None:
        """``TEXT_MESSAGE_END``; ``REASONING_MESSAGE_END`` and ``REASONING_END``."""
        core, message_id = self._core, block.block_id
        if block.kind is TextDelta:
            self._out.append(core.TextMessageEndEvent(message_id=message_id))
        else:
            self._out.append(core.ReasoningMessageEndEvent(message_id=message_id))
            self._out.append(core.ReasoningEndEvent(message_id=message_id))

    def block_signed(self, block: Block, signature: Signature) -> None:
        """``REASONING_ENCRYPTED_VALUE`` of a message."""
        self._signed("message", block.block_id, signature)

    def call_opened(self, call: Call) -> None:
        """``TOOL_CALL_START``."""
        self._out.append(
            self._core.ToolCallStartEvent(
                tool_call_id=call.call_id, tool_call_name=call.name, parent_message_id=call.parent_id
            )
        )
        call.prefix = f'{{"type":"TOOL_CALL_ARGS","toolCallId":{quoted(call.call_id)},"delta":'

    def call_grew(self, call: Call, fragment: str) -> None:
        """``TOOL_CALL_ARGS``."""
        self._out.append(self._core.ToolCallArgsEvent(tool_call_id=call.call_id, delta=fragment))

    def call_closed(self, call: Call, arguments: dict[str, Any] | str | None) -> None:
        """``TOOL_CALL_END``."""
        self._out.append(self._core.ToolCallEndEvent(tool_call_id=call.call_id))

    def call_signed(self, call: Call, signature: Signature) -> None:
        """``REASONING_ENCRYPTED_VALUE`` of a call."""
        self._signed("tool-call", call.call_id, signature)

    def call_answered(self, call: Call, answer: Answer) -> None:
        """``TOOL_CALL_RESULT``; the protocol has no word for an error, which is in its metadata."""
        if answer.error is not None:
            content = whole(answer.error)
        else:
            content = whole(answer.output) if isinstance(answer.output, str) else json_text(answer.output)
        about = {
            "is_error": answer.error is not None,
            "permanently_failed": answer.permanently_failed,
            "seconds": answer.seconds,
        }
        self._out.append(
            self._core.ToolCallResultEvent(
                message_id=f"{call.call_id}-result",
                tool_call_id=call.call_id,
                content=content,
                role="tool",
                metadata={"rxloop": about},
            )
        )

    def usage_updated(self, usage: Usage) -> None:
        """``CUSTOM``."""
        self.noted("usage_updated", {"usage": usage.to_dict()})

    def noted(self, name: str, data: dict[str, Any]) -> None:
        """``CUSTOM``, its name ``rxloop.`` and the event's type."""
        self._out.append(self._core.CustomEvent(name=f"rxloop.{name}", value=json_form(data)))

    def finished(self, event: TurnFinished) -> None:
        """``RUN_FINISHED``."""
        core = self._core
        aborted = event.finish_reason == "aborted"
        about = {
            "finish_reason": event.finish_reason,
            "raw_stop_reason": event.raw_stop_reason and whole(event.raw_stop_reason),
            "steps": event.steps,
        }
        self._out.append(
            core.RunFinishedEvent(
                thread_id=self._thread_id,
                run_id=self._run_id,
                result=None if event.output is None else json_form(event.output),
                outcome=core.RunFinishedCancelledOutcome() if aborted else core.RunFinishedSuccessOutcome(),
                usage=self._usage(event.usage),
                metadata={"rxloop": about},
            )
        )

    def failed(self, event: TurnFailed) -> None:
        """``RUN_ERROR``, its code the error's kind."""
        error = json_form(event.error)
        self._out.append(
            self._core.RunErrorEvent(
                message=str(error.get("message") or "the turn failed"),
                code=str(error.get("kind") or "error"),
                usage=self._usage(event.usage),
                metadata={"rxloop": error},
            )
        )

    def broken_off(self) -> None:
        """``RUN_FINISHED``, as after a stop."""
        core = self._core
        self._out.append(
            core.RunFinishedEvent(
                thread_id=self._thread_id, run_id=self._run_id, outcome=core.RunFinishedCancelledOutcome()
            )
        )

    def _signed(self, subtype: str, entity_id: str, signature: Signature) -> None:
        self._out.append(
            self._core.ReasoningEncryptedValueEvent(
                subtype=subtype, entity_id=entity_id, encrypted_value=whole(signature.value)
            )
        )

    def _usage(self, usage: Usage) -> list[Any]:
        labels = {"provider": self.provider or None, "model": self.model or None}
        return [self._core.TokenUsage(**labels, **camel_case_usage(usage))]


class AguiFrames:
    """
    The format ``agui``: the JSON of each event of AG-UI, as the protocol's own encoder writes it.

    Args:
        turn_id: what the identifiers of messages and calls begin with.
        thread_id: the conversation.
        run_id: the client's name of the run.
        running_usage: tell the total of tokens after every step.

    Raises:
        ConfigurationError: a name is no string, or ``ag-ui-protocol`` is not installed.
    """

    headers: ClassVar[Mapping[str, str]] = {}
    done: ClassVar[str | None] = None

    __slots__ = ("_mapping",)

    def __init__(self, *, turn_id: str, thread_id: str, run_id: str, running_usage: bool = True) -> None:
        self._mapping = AguiMapping(thread_id=thread_id, run_id=run_id, turn_id=turn_id, running_usage=running_usage)

    def feed(self, event: StreamEvent, time: float | None = None) -> Sequence[str]:
        """The frames of the events that an event makes; they do not tell its time."""
        # most events are pieces of what is open, and anything made of them would be the larger part of the work
        piece = self._mapping.piece(event)
        if piece is not None:
            return (piece,)
        return [made.model_dump_json(by_alias=True) for made in self._mapping.feed(event)]


def _protocol() -> Any:
    try:
        from ag_ui import core
    except ImportError as error:
        raise ConfigurationError('AG-UI needs the ag-ui-protocol package: pip install "rxloop[ui]"') from error
    return core
