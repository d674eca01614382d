"""The measures of web servers that feed user interfaces; each app, and all its clients, are processes of their own."""

from __future__ import annotations

from statistics import median, quantiles
from typing import Any

from benchmarks.contenders import UnavailableError
from benchmarks.measure import BASELINE, Plan, Table, samples_of
from benchmarks.processes import App, Clients, Server

_WARM = "text-200"


async def _sample(server: Server, name: str, *, whole: bool = False, **asked: Any) -> dict[str, Any]:
    """What one app takes for a load: from the start of the turns, or from the first delta of turns that were held."""
    async with App(name, server) as app, Clients(server) as clients:
        port = (await app.call("port"))["port"]
        await clients.call("open", port=port, model=_WARM, turns=5)
        await clients.call("read")
        if whole:
            await app.call("begin")
        await clients.call("open", port=port, **asked)
        if not whole:
            await app.call("begin")
        read = await clients.call("read")
        return {**read, **await app.call("end")}


async def _rounds(
    server: Server, plan: Plan, loads: dict[str, dict[str, Any]]
) -> tuple[list[dict[str, dict[str, Any]]], dict[str, str]]:
    found: list[dict[str, dict[str, Any]]] = []
    missing: dict[str, str] = {}
    for _ in range(plan.rounds):
        answers: dict[str, dict[str, Any]] = {}
        for name, load in loads.items():
            if name not in missing:
                try:
                    answers[name] = await _sample(server, name, **load)
                except UnavailableError as exc:
                    missing[name] = str(exc)
        found.append(answers)
    return found, missing


def _order(plan: Plan) -> list[str]:
    return [BASELINE, "rxloop", *(["pydantic-ai"] if plan.peers else [])]


async def fan_out(server: Server, plan: Plan) -> Table:
    """One turn to many watchers over HTTP."""
    order, many = _order(plan), plan.watchers
    table = Table(f"{many} watchers over server-sent events", "")
    for label, deltas, pace in (("at once ", plan.ui_deltas, ""), ("5 ms    ", plan.ui_paced, "-paced-5ms")):
        model = f"text-{deltas}{pace}-held"
        loads = {
            name: {"model": model, "turns": 1, "watchers": many}
            if name == "rxloop"
            else {"model": model, "turns": many, "watchers": 1}
            for name in order
        }
        rounds, missing = await _rounds(server, plan, loads)
        table.add(samples_of(rounds, "cpu", 1e6 / (deltas * many)), missing, order=order, label=f"{label}us    ")
        table.add(samples_of(rounds, "wall", 1), missing, order=order, label=f"{label}wall s ")
        table.add(samples_of(rounds, "kib", 1 / 1024), missing, order=order, label=f"{label}MiB   ")
        frames = median(answers["rxloop"]["frames"] for answers in rounds if "rxloop" in answers)
        table.notes.append(f"{label.strip()}: {deltas:,} deltas, which rxloop sent as {frames:.0f} frames")
    table.targets.append("rxloop at once <= 15 us")
    table.notes.append("us: the server's CPU per delta and watcher")
    table.notes.append(f"fan-out is not available but in rxloop: in its place the others run {many} turns")
    return table


async def turns(server: Server, plan: Plan) -> Table:
    """Many turns with one watcher each over HTTP."""
    order, count = _order(plan), plan.ui_turns
    table = Table(f"{count} turns at once with one watcher each over server-sent events", "")
    for label, deltas, pace in (("at once ", plan.ui_paced, ""), ("25 ms   ", plan.ui_paced, "-paced-25ms")):
        loads: dict[str, dict[str, Any]] = {
            name: {"model": f"text-{deltas}{pace}", "turns": count, "whole": True} for name in order
        }
        rounds, missing = await _rounds(server, plan, loads)
        table.add(samples_of(rounds, "cpu", 1e3 / count), missing, order=order, label=f"{label}ms    ")
        table.add(samples_of(rounds, "cpu", 1e6 / (deltas * count)), missing, order=order, label=f"{label}us    ")
        table.add(samples_of(rounds, "wall", 1), missing, order=order, label=f"{label}wall s ")
        table.add(samples_of(rounds, "kib", 1 / 1024), missing, order=order, label=f"{label}MiB   ")
    table.notes.append(
        f"{plan.ui_paced:,} deltas a turn; the server's CPU, that of the request included, ms: per turn, us: per delta"
    )
    return table


async def turn(server: Server, plan: Plan) -> Table:
    """One turn with one watcher over HTTP."""
    order = _order(plan)
    table = Table("One turn with one watcher over server-sent events, CPU per delta", "us")
    for label, deltas, pace in (("at once ", plan.long, ""), ("5 ms    ", plan.latency_deltas, "-paced-5ms")):
        loads: dict[str, dict[str, Any]] = {name: {"model": f"text-{deltas}{pace}-held", "turns": 1} for name in order}
        rounds, missing = await _rounds(server, plan, loads)
        table.add(samples_of(rounds, "cpu", 1e6 / deltas), missing, order=order, label=label)
    table.targets.append("rxloop <= 1.3 x raw-sdk")
    return table


async def fan_out_stall(server: Server, plan: Plan) -> Table:
    """One watcher among ten that does not read its socket."""
    deltas = plan.ui_stall
    table = Table(f"10 watchers of {deltas:,} deltas over server-sent events", "", baseline="rxloop")
    for text, stalled in (("all brisk ", 0), ("1 stalled ", 1)):
        load = {"model": f"text-{deltas}-wide-held", "turns": 1, "watchers": 10, "stalled": stalled}
        rounds, missing = await _rounds(server, plan, {"rxloop": load})
        scales = {"cpu": ("us    ", 1e6 / (deltas * 10)), "wall": ("wall s ", 1), "kib": ("MiB   ", 1 / 1024)}
        for key, (unit, scale) in scales.items():
            table.add(samples_of(rounds, key, scale), missing, order=["rxloop"], label=text + unit)
        for answers in rounds:
            for answer in answers.values():
                sent, had = answer["bytes"], answer["stalled_bytes"]
                table.notes.append(f"{text.strip()}: the others read {sent:,} bytes, those that stall had {had:,}")
    table.notes.append("us: the server's CPU per delta, of 400 characters, and watcher; as fast as they come")
    table.notes.append("MiB: a turn's frames are kept until its last watcher has left")
    return table


async def latency(server: Server, plan: Plan) -> Table:
    """From the provider's write to the watcher's read."""
    order = _order(plan)
    deltas = plan.latency_deltas
    load = {"model": f"text-{deltas}-paced-5ms-timed-held", "turns": 1}
    rounds, missing = await _rounds(server, plan, dict.fromkeys(order, load))
    for answers in rounds:
        for answer in answers.values():
            delays = answer["delays"]
            answer["median"], answer["p99"] = median(delays), quantiles(delays, n=100)[98]
    table = Table(f"Time from the provider's write to the watcher's read, {deltas} deltas 5 ms apart", "ms")
    table.add(samples_of(rounds, "median", 1e-6), missing, order=order, label="median ")
    table.add(samples_of(rounds, "p99", 1e-6), missing, order=order, label="p99    ")
    return table
