"""All measures, by the names under which they are asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from benchmarks import app_measure, fan_out_measure, measure
from benchmarks.measure import Plan, Table
from benchmarks.processes import Server

MEASURES: dict[str, Callable[[Server, Plan], Awaitable[Table]]] = {
    "delta": measure.delta,
    "paced": measure.paced,
    "gemini": measure.gemini,
    "bedrock": measure.bedrock,
    "bedrock-paced": measure.bedrock_paced,
    "bedrock-concurrent": measure.bedrock_concurrent,
    "first": measure.first,
    "concurrent": measure.concurrent,
    "tool": measure.tool,
    "stall": measure.stall,
    "import": measure.imports,
    "watchers": fan_out_measure.watchers,
    "watchers-stall": fan_out_measure.watchers_stall,
    "turn": app_measure.turn,
    "turns": app_measure.turns,
    "fanout": app_measure.fan_out,
    "fanout-stall": app_measure.fan_out_stall,
    "latency": app_measure.latency,
    "layers": measure.layers,
}
DEFAULT = [name for name in MEASURES if name != "layers"]
