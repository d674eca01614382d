"""The command: `python -m benchmarks`."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.measure import QUICK, Plan, Table
from benchmarks.measures import DEFAULT, MEASURES
from benchmarks.processes import Server


def _environment() -> dict[str, Any]:
    packages = {}
    for name in (
        "rxloop",
        "reactivex",
        "anthropic",
        "google-genai",
        "boto3",
        "httpx2",
        "starlette",
        "uvicorn",
        "pydantic-ai-slim",
    ):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "machine": platform.platform(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "packages": packages,
    }


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2f}"


def render(table: Table) -> str:
    """Lay a table out as plain text."""
    unit = f" [{table.unit}]" if table.unit else ""
    lines = [f"{table.title}{unit}", f"  {'':34}{'median':>10}{'min':>10}{'max':>10}  x {table.baseline}"]
    for row in table.rows:
        if not row.samples:
            lines.append(f"  {row.name:34}{row.note or 'not available: nothing was measured'}")
            continue
        values = "".join(f"{_number(value):>10}" for value in (row.value, min(row.samples), max(row.samples)))
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        lines.append(f"  {row.name:34}{values}  {ratio:8}  {row.note}".rstrip())
    lines += [f"  target: {target}" for target in table.targets]
    lines += [f"  note: {note}" for note in table.notes]
    return "\n".join(lines)


def _as_json(table: Table) -> dict[str, Any]:
    rows = [
        dataclasses.asdict(row) | {"median": row.value if row.samples else None, "ratio": row.ratio}
        for row in table.rows
    ]
    return dataclasses.asdict(table) | {"rows": rows}


async def run(names: list[str], plan: Plan) -> dict[str, Table]:
    """Run the measures and print each table as soon as it is there."""
    tables: dict[str, Table] = {}
    for name in names:
        async with Server() as server:
            try:
                tables[name] = await MEASURES[name](server, plan)
            except Exception as exc:
                tables[name] = Table(f"{name}: not available: {type(exc).__name__}: {exc}", "")
        print(render(tables[name]), end="\n\n", flush=True)
    return tables


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and shorter streams")
    parser.add_argument("--only", action="append", choices=list(MEASURES), help="run this measure (repeatable)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples to FILE")
    parser.add_argument("--peers", action="store_true", help="measure other libraries too, where installed")
    arguments = parser.parse_args()
    plan = dataclasses.replace(QUICK if arguments.quick else Plan(), peers=arguments.peers)
    environment = _environment()
    print(" ".join(f"{name}={value}" for name, value in environment.items() if name != "packages"))
    print(" ".join(f"{name}={value}" for name, value in environment["packages"].items()), end="\n\n")
    tables = asyncio.run(run(arguments.only or DEFAULT, plan))
    load = os.getloadavg()[0]
    print(f"load average before {environment['load']:.2f}, after {load:.2f}; min and max tell the noise")
    if arguments.json is not None:
        environment["load_after"] = load
        found = {
            "environment": environment,
            "tables": {name: _as_json(table) for name, table in tables.items()},
        }
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
