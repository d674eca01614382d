"""Virtual time for operators' tests: a scheduler that knows its timers, exact comparison, replies to dispatch."""

from __future__ import annotations

from typing import Any

from reactivex import Observable, abc, typing
from reactivex.notification import Notification
from reactivex.testing import ReactiveTest, TestScheduler
from reactivex.testing.recorded import Recorded

from rxloop.events import StepFinished
from rxloop.steps import FinishReason, StepResult, ToolCall
from rxloop.tools import Tool, ToolContext, tool
from rxloop.usage import Usage

__all__ = ("VirtualTime", "assert_messages", "call", "cold_tool", "emissions", "failure", "finished", "reply")


class VirtualTime(TestScheduler):
    """A `TestScheduler` that remembers when something ran: what was cancelled in time did not."""

    __test__ = False

    def __init__(self) -> None:
        super().__init__()
        self._ran: list[float] = []

    def schedule_absolute(
        self, duetime: typing.AbsoluteTime, action: typing.ScheduledAction[Any], state: Any = None
    ) -> abc.DisposableBase:
        def run(scheduler: abc.SchedulerBase, state: Any = None) -> abc.DisposableBase | None:
            self._ran.append(self.clock)
            return action(scheduler, state)

        return super().schedule_absolute(duetime, run, state)

    def ran_after(self, ticks: float) -> list[float]:
        """When timers and sources acted later than `ticks`; what ``start`` does by itself does not count."""
        own = (ReactiveTest.created, ReactiveTest.subscribed, ReactiveTest.disposed)
        return [moment for moment in self._ran if moment > ticks and moment not in own]


def assert_messages(messages: list[Recorded[Any]], *expected: Recorded[Any]) -> None:
    """Compare time, kind and value: errors by identity, where reactivex would compare their text."""
    assert [_plain(message) for message in messages] == [_plain(message) for message in expected]


def emissions(messages: list[Recorded[Any]]) -> list[Any]:
    """The values, without time and end."""
    values: list[Any] = [message.value for message in messages if _kind(message) == "N"]
    return [value.value for value in values]


def failure(messages: list[Recorded[Any]]) -> Any:
    """The error that ended it."""
    assert messages, "there is no message at all"
    assert _kind(messages[-1]) == "E", f"the last message must be an error, but is {messages[-1]}"
    return messages[-1].value.exception  # type: ignore[union-attr]


def _kind(message: Recorded[Any]) -> str:
    assert isinstance(message.value, Notification)
    return message.value.kind


def _plain(message: Recorded[Any]) -> tuple[float, str, Any]:
    value: Any = message.value
    # a time that went through datetime and back is off by some nanoseconds
    time = round(message.time, 6)
    content = {"N": "value", "E": "exception"}.get(value.kind)
    return time, value.kind, None if content is None else getattr(value, content)


def call(
    call_id: str, name: str, arguments: dict[str, Any] | str | None = None, *, truncated: bool = False
) -> ToolCall:
    """A call of the model's."""
    return ToolCall(call_id, name, {} if arguments is None else arguments, truncated)


def reply(
    *calls: ToolCall,
    text: str = "",
    finish_reason: FinishReason = "tool-calls",
    usage: Usage | None = None,
    resume: bool = False,
    malformed: bool = False,
) -> StepResult:
    """A provider's whole reply."""
    return StepResult(
        text=text,
        tool_calls=calls,
        usage=usage or Usage(10, 1),
        finish_reason=finish_reason,
        raw_stop_reason="raw",
        resume=resume,
        malformed=malformed,
    )


def finished(result: StepResult, step: int = 0) -> StepFinished:
    """The event that is made of a reply."""
    return StepFinished(
        step, result.text, result.tool_calls, result.usage, result.raw_stop_reason, result.finish_reason
    )


def cold_tool(
    name: str, source: Observable[Any], *, timeout: float | None = None, sequential: bool = False, ran: Any = None
) -> Tool:
    """A tool that subscribes to `source` and notes its contexts in the list `ran`."""

    def run(context: ToolContext, x: int = 0) -> Observable[Any]:
        if ran is not None:
            ran.append(context)
        return source

    return tool(name=name, timeout=timeout, sequential=sequential)(run)
