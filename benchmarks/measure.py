"""The measures. Each returns a table; the contenders of a table are measured in turns within one run."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.contenders import UnavailableError
from benchmarks.processes import ROOT, Server, Worker, Workers

BASELINE = "raw-sdk"


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    rounds: int = 5
    short: int = 2_000
    long: int = 20_000
    first_requests: int = 60
    paced: int = 1_000
    concurrent_turns: int = 200
    concurrent_deltas: int = 200
    tool_turns: int = 600
    import_runs: int = 10
    gemini_short: int = 500
    gemini_long: int = 5_000
    watchers: int = 100
    watched_deltas: int = 1_000
    ui_turns: int = 200
    ui_deltas: int = 1_000
    ui_paced: int = 100
    latency_deltas: int = 400
    ui_stall: int = 20_000
    peers: bool = False


QUICK = Plan(rounds=3, paced=300, long=8_000, first_requests=24, concurrent_turns=50, tool_turns=90, import_runs=4)


@dataclass
class Row:
    """One value of one contender, with the samples of its rounds."""

    name: str
    samples: list[float] = field(default_factory=list)
    baseline: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def value(self) -> float:
        """The median of the samples."""
        return median(self.samples)

    @property
    def ratio(self) -> float | None:
        """The median of the ratios to the baseline, each within its round."""
        pairs = [own / other for own, other in zip(self.samples, self.baseline, strict=False) if other]
        return median(pairs) if pairs else None


@dataclass
class Table:
    """What one measure found."""

    title: str
    unit: str
    rows: list[Row] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    baseline: str = BASELINE

    def add(
        self,
        samples: dict[str, list[float]],
        unavailable: dict[str, str],
        *,
        order: list[str],
        label: str = "",
    ) -> None:
        """Add a row per contender."""
        for name in order:
            row = Row(f"{label}{name}", samples.get(name, []), samples.get(self.baseline, []))
            if name in unavailable:
                row.note = f"not available: {unavailable[name]}"
                row.samples = []
            self.rows.append(row)


def samples_of(rounds: list[dict[str, dict[str, Any]]], key: str, scale: float) -> dict[str, list[float]]:
    """One value of all answers, by contender."""
    found: dict[str, list[float]] = {}
    for answers in rounds:
        for name, answer in answers.items():
            found.setdefault(name, []).append(answer[key] * scale)
    return found


async def _slopes(workers: Workers, rounds: int, short: int, long: int, pace: str) -> dict[str, list[float]]:
    """CPU microseconds per delta: the slope between a short and a long stream, per round."""
    await workers.call("text", model=f"text-{short}{pace}")
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        few = await workers.call("text", model=f"text-{short}{pace}")
        many = await workers.call("text", model=f"text-{long}{pace}")
        for name, answer in many.items():
            slope = (answer["cpu"] - few[name]["cpu"]) / (long - short)
            found.setdefault(name, []).append(slope * 1e6)
    return found


async def delta(server: Server, plan: Plan) -> Table:
    """CPU per text delta."""
    order = [
        BASELINE,
        "sdk-helper",
        "by-hand",
        "bytes",
        "rxloop",
        "rxloop-iter",
        "rxloop-step",
        "rxloop-decoder",
    ]
    if plan.peers:
        order.append("pydantic-ai")
    async with Workers(order, server) as workers:
        samples = await _slopes(workers, plan.rounds, plan.short, plan.long, "")
        missing = workers.unavailable
    table = Table(f"CPU per text delta (slope {plan.short:,} to {plan.long:,} deltas)", "us")
    table.add(samples, missing, order=order)
    above = Row("above-the-decoder", note="rxloop - rxloop-decoder")
    if not missing.keys() & {"rxloop", "rxloop-decoder"}:
        pairs = zip(samples["rxloop"], samples["rxloop-decoder"], strict=True)
        above.samples = [turn - decoder for turn, decoder in pairs]
    else:
        above.note = "not available: needs rxloop and rxloop-decoder"
    table.rows.append(above)
    table.targets += ["above-the-decoder <= 2 us", "rxloop <= 0.55 x raw-sdk"]
    return table


async def paced(server: Server, plan: Plan) -> Table:
    """CPU per text delta when each delta arrives by itself, as from a model: one read per delta."""
    order = [BASELINE, "by-hand", "bytes", "rxloop", "rxloop-iter"]
    if plan.peers:
        order.append("pydantic-ai")
    async with Workers(order, server) as workers:
        samples = await _slopes(workers, plan.rounds, 50, 50 + plan.paced, "-paced-1ms")
        missing = workers.unavailable
    table = Table(f"CPU per text delta, 1 ms apart ({plan.paced:,} deltas)", "us")
    table.add(samples, missing, order=order)
    table.notes.append("most of it is the wake-up of the event loop and the read, which all contenders share")
    return table


async def gemini(server: Server, plan: Plan) -> Table:
    """CPU per chunk of Gemini."""
    order = ["raw-genai", "genai-by-hand", "rxloop-gemini", "rxloop-gemini-fallback"]
    short, long = plan.gemini_short, plan.gemini_long
    async with Workers(order, server) as workers:
        samples = await _slopes(workers, plan.rounds, short, long, "")
        missing = workers.unavailable
    table = Table(f"CPU per chunk of Gemini (slope {short:,} to {long:,} chunks)", "us", baseline=order[0])
    table.add(samples, missing, order=order)
    table.targets += ["rxloop-gemini <= 0.15 x raw-genai", "rxloop-gemini-fallback <= 1.05 x raw-genai"]
    return table


async def bedrock(server: Server, plan: Plan) -> Table:
    """CPU per event of Bedrock, the hand-over to the event loop included."""
    order = ["raw-boto3", "boto3-by-hand", "rxloop-bedrock", "rxloop-bedrock-fallback"]
    async with Workers(order, server) as workers:
        samples = await _slopes(workers, plan.rounds, plan.short, plan.long, "")
        missing = workers.unavailable
    title = f"CPU per event of Bedrock (slope {plan.short:,} to {plan.long:,} events)"
    table = Table(title, "us", baseline=order[0])
    table.add(samples, missing, order=order)
    table.targets += ["rxloop-bedrock <= 0.6 x raw-boto3", "rxloop-bedrock-fallback <= 1.15 x raw-boto3"]
    return table


async def bedrock_paced(server: Server, plan: Plan) -> Table:
    """CPU per event of Bedrock when each arrives by itself, as from a model: a wake-up of the loop per event."""
    order = ["raw-boto3", "boto3-by-hand", "rxloop-bedrock", "rxloop-bedrock-fallback"]
    async with Workers(order, server) as workers:
        samples = await _slopes(workers, plan.rounds, 50, 50 + plan.paced, "-paced-1ms")
        missing = workers.unavailable
    table = Table(f"CPU per event of Bedrock, 1 ms apart ({plan.paced:,} events)", "us", baseline=order[0])
    table.add(samples, missing, order=order)
    return table


async def bedrock_concurrent(server: Server, plan: Plan) -> Table:
    """Many turns on Bedrock at once, beside the same number of loops in threads."""
    return await _concurrent(server, plan, ["raw-boto3", "rxloop-bedrock"], "on Bedrock ")


async def layers(server: Server, plan: Plan) -> Table:
    """CPU per chunk of the public ways to the body bytes."""
    order = [BASELINE, "bytes", "sdk:response.iter_bytes", "sdk:http.aiter_bytes", "sdk:http.aiter_raw"]
    order.append("sdk:http.stream")
    async with Workers(order, server) as workers:
        samples = await _slopes(workers, plan.rounds, plan.short, plan.long, "")
        missing = workers.unavailable
    table = Table("CPU per chunk to get body bytes (nothing parsed, but by raw-sdk)", "us")
    table.add(samples, missing, order=order)
    return table


async def first(server: Server, plan: Plan) -> Table:
    """Time to the first delta."""
    order = [BASELINE, "by-hand", "rxloop"]
    if plan.peers:
        order.append("pydantic-ai")
    samples: dict[str, list[float]] = {}
    async with Workers(order, server) as workers:
        await workers.call("first", model="text-16", times=5)
        batches = max(plan.rounds, 6)
        for _ in range(batches):
            answers = await workers.call("first", model="text-16", times=plan.first_requests // batches)
            for name, answer in answers.items():
                samples.setdefault(name, []).extend(second * 1000 for second in answer["seconds"])
        missing = workers.unavailable
    table = Table(f"Time to first delta, warm connection ({plan.first_requests} requests)", "ms")
    table.add(samples, missing, order=order)
    table.targets.append("rxloop <= by-hand + 1 ms")
    return table


async def fresh(
    server: Server, names: list[str], rounds: int, work: Callable[[Worker], Awaitable[dict[str, Any]]]
) -> tuple[list[dict[str, dict[str, Any]]], dict[str, str]]:
    """Measure in a new process each time, as memory a process once took stays with it."""
    found: list[dict[str, dict[str, Any]]] = []
    missing: dict[str, str] = {}
    for _ in range(rounds):
        answers: dict[str, dict[str, Any]] = {}
        for name in names:
            if name in missing:
                continue
            try:
                async with Worker(name, server) as worker:
                    await worker.call("text", model="text-16")
                    answers[name] = await work(worker)
            except UnavailableError as exc:
                missing[name] = str(exc)
        found.append(answers)
    return found, missing


async def concurrent(server: Server, plan: Plan) -> Table:
    """Many turns at once."""
    order = [BASELINE, "rxloop"]
    if plan.peers:
        order.append("pydantic-ai")
    table = await _concurrent(server, plan, order, "")
    table.targets.append("rxloop <= 1.0 x raw-sdk in CPU and in memory")
    return table


async def _concurrent(server: Server, plan: Plan, order: list[str], where: str) -> Table:
    model, turns = f"text-{plan.concurrent_deltas}-paced-5ms", plan.concurrent_turns

    async def work(worker: Worker) -> dict[str, Any]:
        return await worker.call("concurrent", model=model, turns=turns)

    rounds, missing = await fresh(server, order, plan.rounds, work)
    title = f"{turns} concurrent turns {where}of {plan.concurrent_deltas} deltas, 5 ms apart"
    table = Table(title, "", baseline=order[0])
    for label, key, scale in (
        ("CPU s  ", "cpu", 1.0),
        ("wall s ", "wall", 1.0),
        ("MiB    ", "kib", 1 / 1024),
        ("threads ", "threads", 1.0),
    ):
        table.add(samples_of(rounds, key, scale), missing, order=order, label=label)
    return table


async def tool(server: Server, plan: Plan) -> Table:
    """A short turn with one tool call."""
    order = [BASELINE, "rxloop", "rxloop-declared"]
    if plan.peers:
        order.append("pydantic-ai")
    times = plan.tool_turns // plan.rounds
    async with Workers(order, server) as workers:
        await workers.call("tool", model="tool-1-1", times=10)
        rounds = [await workers.call("tool", model="tool-1-1", times=times) for _ in range(plan.rounds)]
        missing = workers.unavailable
    table = Table(f"1 + 1 deltas around one tool call, CPU per turn ({plan.tool_turns} turns)", "ms")
    table.add(samples_of(rounds, "cpu", 1000), missing, order=order)
    table.targets.append("rxloop <= 0.8 x raw-sdk")
    return table


async def stall(server: Server, plan: Plan) -> Table:
    """A consumer that reads one event and stops reading."""
    order = [BASELINE, "rxloop-iter"]
    model = f"text-{plan.long}-tight"

    async def work(worker: Worker) -> dict[str, Any]:
        return await worker.call("stall", model=model, stats_port=server.port)

    rounds, missing = await fresh(server, order, min(plan.rounds, 3), work)
    table = Table(f"A stalled consumer of {plan.long:,} deltas", "")
    table.add(samples_of(rounds, "kib", 1 / 1024), missing, order=order, label="MiB grown      ")
    table.add(samples_of(rounds, "sent", 1), missing, order=order, label="deltas sent    ")
    for name in order:
        answers = [answers[name] for answers in rounds if name in answers]
        if not answers:
            continue
        peaks = ", ".join("unknown" if answer["peak"] is None else str(answer["peak"]) for answer in answers)
        blocked = sum(answer["blocked"] for answer in answers)
        table.notes.append(f"{name}: peak buffered events {peaks}; server blocked in {blocked} of {len(answers)}")
    table.notes.append("deltas sent includes what lies in the socket buffers of both sides")
    table.targets.append("rxloop-iter buffers <= 256 events")
    return table


async def imports(server: Server, plan: Plan) -> Table:
    """Import time, above a bare interpreter."""
    del server
    statements = {"rxloop": "import rxloop", "anthropic": "import anthropic", "reactivex": "import reactivex"}
    missing: dict[str, str] = {}
    for name, statement in statements.items():
        warm = _python(statement)
        if warm.returncode:
            missing[name] = warm.stderr.strip().splitlines()[-1]
    samples: dict[str, list[float]] = {}
    for _ in range(plan.import_runs):
        bare = _seconds("pass")
        for name, statement in statements.items():
            if name not in missing:
                samples.setdefault(name, []).append((_seconds(statement) - bare) * 1000)
    table = Table(f"Import time above a bare interpreter ({plan.import_runs} runs)", "ms")
    table.add(samples, missing, order=list(statements))
    names = ["anthropic", "google", "boto3", "botocore", "openai", "httpx2", "rich", "typer", "pytest"]
    found = _python(f"import rxloop, sys; print(*[name for name in {names!r} if name in sys.modules])")
    loaded = found.stdout.split() if not found.returncode else ["unknown"]
    table.notes.append(f"of {', '.join(names)}, `import rxloop` loads: {', '.join(loaded) or 'none'}")
    table.targets += ["rxloop <= 250 ms", "no SDK is loaded by `import rxloop`"]
    return table


def _python(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def _seconds(code: str) -> float:
    started = time.perf_counter()
    _python(code)
    return time.perf_counter() - started
