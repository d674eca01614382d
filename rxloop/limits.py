"""The clocks and budgets of a turn."""

from __future__ import annotations

from dataclasses import dataclass

from rxloop.checks import positive_seconds, positive_whole

__all__ = ("Limits",)


@dataclass(frozen=True, slots=True)
class Limits:
    """
    How long things may take, in seconds, and how many tokens a turn may spend; ``None`` is no limit.

    Every clock runs on the turn's scheduler.

    Args:
        turn_timeout: the whole turn, its tools included.
        step_timeout: one provider reply, all attempts and the delays between them included.
        first_event_timeout: from an attempt's start to its first event; `stall_timeout` by default.
        stall_timeout: between two events of a reply. Time in which a lagging consumer pauses the turn is not counted.
        tool_timeout: one tool call, for tools without a limit of their own.
        total_tokens: no further request is made once input and output together have reached it.
        input_tokens: the same for everything sent, cached tokens included.
        output_tokens: the same for everything produced.

    Raises:
        ConfigurationError: a limit breaks its rule.
    """

    turn_timeout: float | None = None
    step_timeout: float | None = None
    first_event_timeout: float | None = None
    stall_timeout: float | None = None
    tool_timeout: float | None = None
    total_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("turn_timeout", "step_timeout", "first_event_timeout", "stall_timeout", "tool_timeout"):
            positive_seconds(name, getattr(self, name))
        for name in ("total_tokens", "input_tokens", "output_tokens"):
            positive_whole(name, getattr(self, name))
