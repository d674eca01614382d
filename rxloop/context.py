"""How full a model's window is over a run, and what is done about it."""

from __future__ import annotations

from dataclasses import replace

from rxloop.adapters.base import Adapter
from rxloop.reclaim import Reclaim, estimated_tokens, plan_reclaim
from rxloop.steps import Step, StepResult

__all__ = ("Context",)

_FULL = 0.95
"""The share of the window above which a request is not sent any more: the reply needs room too."""

_LEAST_GROWTH = 200
_SCALES = (0.5, 2.0)


class Context:
    """
    What one run knows of its prompt's size: what the provider counted last, and an estimate of what was added.

    The estimate is scaled by how the provider's figures grew with it.

    Args:
        adapter: knows where a conversation has its tool results.
        reclaim: the setting, with the window known.
    """

    __slots__ = ("_adapter", "_counted", "_estimated", "_reclaim", "_scale", "_window")

    def __init__(self, adapter: Adapter, reclaim: Reclaim) -> None:
        self._adapter = adapter
        self._reclaim = reclaim
        self._window = reclaim.window or 0
        self._counted = 0
        self._estimated = 0
        self._scale = 1.0

    def observe(self, step: Step, result: StepResult) -> None:
        """What the provider counted of a step's prompt."""
        counted = self._adapter.prompt_tokens(result)
        if not counted:
            return
        estimated = _estimate(step)
        growth = estimated - self._estimated
        if self._counted and growth >= _LEAST_GROWTH:
            least, most = _SCALES
            self._scale = min(max((counted - self._counted) / growth, least), most)
        self._counted, self._estimated = counted, estimated

    def fitted(self, step: Step) -> tuple[Step, bool]:
        """
        The step with a prompt that fits, or with the least that there can be of it, and whether that fits.

        An estimate alone is no reason not to ask: only what was counted once tells that a prompt does not fit.
        """
        before = self._expected(step)
        reclaim = self._reclaim
        if before <= reclaim.threshold * self._window:
            return step, True
        plan = plan_reclaim(
            self._adapter.history_results(step.conversation),
            free=before - int(reclaim.target * self._window),
            keep_steps=reclaim.keep_steps,
            scale=self._scale,
        )
        after = before - plan.freed
        fits = not self._counted or after <= _FULL * self._window
        if not plan.notes:
            return step, fits
        changed = min(message for message, _ in plan.notes)
        conversation = self._adapter.after_change(self._adapter.with_notes(step.conversation, plan.notes), changed + 1)
        return replace(step, conversation=conversation, reclaimed=(before, after)), fits

    def _expected(self, step: Step) -> int:
        added = _estimate(step) - self._estimated
        return max(0, self._counted + int(added * self._scale))


def _estimate(step: Step) -> int:
    declared = [
        item if isinstance(item, dict) else [getattr(item, "description", ""), getattr(item, "schema", {})]
        for item in step.tools
    ]
    try:
        return estimated_tokens([step.system or "", declared, list(step.conversation)])
    except RecursionError:
        # what is nested too deeply to be counted cannot be sent: its adapter says so
        return 0
