"""The operators: each usable on its own, knowing events and tools but no provider."""

from rxloop.operators.coalesce_text import coalesce_text
from rxloop.operators.deadline import deadline
from rxloop.operators.loop_steps import loop_steps
from rxloop.operators.partial_output import partial_output
from rxloop.operators.retry_before_first_emit import RetryPolicy, retry_before_first_emit
from rxloop.operators.retry_malformed_call import MalformedBudget, retry_malformed_call
from rxloop.operators.stall_watchdog import stall_watchdog
from rxloop.operators.step_cap import CapReached, Renew, Renewal, step_cap
from rxloop.operators.step_deadline import step_deadline
from rxloop.operators.stop_on import Stop, stop_on
from rxloop.operators.structured_output import OutputState, structured_output
from rxloop.operators.text import text
from rxloop.operators.tool_calls import tool_calls
from rxloop.operators.tool_dispatch import Journal, tool_dispatch
from rxloop.operators.turn_deadline import turn_deadline
from rxloop.operators.usage_limit import usage_limit
from rxloop.operators.usage_scan import usage_scan

__all__ = (
    "CapReached",
    "Journal",
    "MalformedBudget",
    "OutputState",
    "Renew",
    "Renewal",
    "RetryPolicy",
    "Stop",
    "coalesce_text",
    "deadline",
    "loop_steps",
    "partial_output",
    "retry_before_first_emit",
    "retry_malformed_call",
    "stall_watchdog",
    "step_cap",
    "step_deadline",
    "stop_on",
    "structured_output",
    "text",
    "tool_calls",
    "tool_dispatch",
    "turn_deadline",
    "usage_limit",
    "usage_scan",
)
