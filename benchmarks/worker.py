"""A process that holds one contender and measures it on command: one JSON line in, one JSON line out."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import bedrock_rows, contenders, fan_out_rows, gemini_rows, rxloop_rows
from benchmarks.contenders import Contender, UnavailableError
from benchmarks.memory import peak_kib, reset_peak
from benchmarks.server import TEXT_LENGTH, WIDE_TEXT_LENGTH

FACTORIES: dict[str, Callable[[str], Contender]] = {
    "raw-sdk": contenders.RawSdk,
    "sdk-helper": contenders.SdkHelper,
    "by-hand": contenders.ByHand,
    "bytes": contenders.Bytes,
    "rxloop": rxloop_rows.RxLoop,
    "rxloop-declared": rxloop_rows.RxLoopDeclared,
    "rxloop-iter": rxloop_rows.RxLoopIter,
    "rxloop-step": rxloop_rows.RxLoopStep,
    "rxloop-decoder": rxloop_rows.RxLoopDecoder,
    "raw-genai": gemini_rows.RawGenai,
    "genai-by-hand": gemini_rows.GenaiByHand,
    "rxloop-gemini": gemini_rows.RxLoopGemini,
    "rxloop-gemini-fallback": partial(gemini_rows.RxLoopGemini, fallback=True),
    "raw-boto3": bedrock_rows.RawBoto3,
    "boto3-by-hand": bedrock_rows.Boto3ByHand,
    "rxloop-bedrock": bedrock_rows.RxLoopBedrock,
    "rxloop-bedrock-fallback": partial(bedrock_rows.RxLoopBedrock, fallback=True),
    "hot-subscribed": fan_out_rows.HotSubscribed,
    "hot-watch": fan_out_rows.HotWatch,
    "rx-publish": fan_out_rows.RxPublish,
    "rx-share": fan_out_rows.RxShare,
    "rx-replay": fan_out_rows.RxReplay,
    "queues": fan_out_rows.Queues,
    "pydantic-ai": contenders.PydanticAi,
    **{
        f"sdk:{way}": partial(contenders.SdkBytes, way=way)
        for way in ("response.iter_bytes", "http.aiter_bytes", "http.aiter_raw", "http.stream")
    },
}
STALL_SETTLE_SECONDS = 0.5


def _ignore(_: str) -> None:
    """Do with a delta what a trivial callback does."""


def _deltas(model: str) -> int:
    return int(model.split("-")[1])


async def _text_once(contender: Contender, model: str, on_delta: Callable[[str], None]) -> None:
    length = await contender.text(model, on_delta)
    if length is not None and length != _deltas(model) * TEXT_LENGTH:
        raise AssertionError(f"{model}: {length} characters arrived")


async def text(contender: Contender, model: str) -> dict[str, float]:
    """Run one text turn."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    await _text_once(contender, model, _ignore)
    return {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}


async def first(contender: Contender, model: str, times: int) -> dict[str, list[float]]:
    """Run text turns one after the other and take the time to the first delta of each."""
    seconds: list[float] = []
    seen = 0.0

    def on_delta(_: str) -> None:
        nonlocal seen
        if not seen:
            seen = time.perf_counter()

    gc.collect()
    for _ in range(times):
        seen = 0.0
        started = time.perf_counter()
        await _text_once(contender, model, on_delta)
        seconds.append(seen - started)
    return {"seconds": seconds}


async def concurrent(contender: Contender, model: str, turns: int) -> dict[str, float]:
    """Run many text turns at once; the memory is the peak above what the process held before them."""
    before = reset_peak()
    threads = 0

    async def count_threads() -> None:
        nonlocal threads
        while True:
            threads = max(threads, threading.active_count())
            await asyncio.sleep(0.05)

    wall, cpu = time.perf_counter(), time.process_time()
    counting = asyncio.ensure_future(count_threads())
    await asyncio.gather(*(_text_once(contender, model, _ignore) for _ in range(turns)))
    counting.cancel()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {"cpu": cpu, "wall": wall, "kib": peak_kib() - before, "threads": threads}


async def tool(contender: Contender, model: str, times: int) -> dict[str, float]:
    """Run turns with a tool call one after the other."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(times):
        length = await contender.tool(model, _ignore)
        if length != 2 * TEXT_LENGTH and not isinstance(contender, contenders.PydanticAi):
            raise AssertionError(f"{model}: {length} characters arrived")
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {"cpu": cpu / times, "wall": wall / times}


async def stall(contender: Contender, model: str, stats_port: int) -> dict[str, Any]:
    """Read one event, wait until the server is blocked, and tell what was buffered and how much memory."""
    latest: dict[str, Any] = {}

    async def until_blocked() -> None:
        deadline = time.perf_counter() + 20
        sent, since = -1, time.perf_counter()
        while time.perf_counter() < deadline:
            latest.update(await _stats(stats_port))
            if latest["finished"]:
                break
            if latest["sent"] != sent:
                sent, since = latest["sent"], time.perf_counter()
            elif latest["blocked"] and time.perf_counter() - since > STALL_SETTLE_SECONDS:
                break
            await asyncio.sleep(0.05)

    before = reset_peak()
    peak = await contender.stall(model, until_blocked)
    return {"peak": peak, "kib": peak_kib() - before, **latest}


async def fan_out(contender: Contender, model: str, watchers: int, stalled: int = 0) -> dict[str, float]:
    """Run one text turn that so many watch; the memory is the peak above what the process held before."""
    before = reset_peak()
    wall, cpu = time.perf_counter(), time.process_time()
    lengths = await contender.fan_out(model, watchers, stalled, _ignore)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    expected = _deltas(model) * (WIDE_TEXT_LENGTH if "-wide" in model else TEXT_LENGTH)
    if set(lengths) != {expected} or len(lengths) != watchers:
        raise AssertionError(f"{model}: the watchers saw {sorted(set(lengths))} characters")
    return {"cpu": cpu, "wall": wall, "kib": peak_kib() - before}


async def _stats(port: int) -> dict[str, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /stats HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.rsplit(b"content-length:", 1)[1].split(b"\r\n")[0])
    value: dict[str, Any] = json.loads(await reader.readexactly(length))
    writer.close()
    await writer.wait_closed()
    return value


OPERATIONS: dict[str, Callable[..., Any]] = {
    "text": text,
    "first": first,
    "concurrent": concurrent,
    "tool": tool,
    "stall": stall,
    "fan_out": fan_out,
}


def main() -> None:
    """Answer commands until standard input closes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("contender", choices=sorted(FACTORIES))
    parser.add_argument("url")
    arguments = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    sys.stdout = sys.stderr

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    with asyncio.Runner() as runner:
        contender: Contender | None = None

        async def make() -> Contender:
            return FACTORIES[arguments.contender](arguments.url)

        try:
            contender = runner.run(make())
        except UnavailableError as exc:
            answer({"unavailable": str(exc)})
            return
        answer({"ready": True})
        for line in sys.stdin:
            command = json.loads(line)
            operation = OPERATIONS[command.pop("operation")]
            try:
                answer(runner.run(operation(contender, **command)))
            except UnavailableError as exc:
                answer({"unavailable": str(exc)})
            except Exception as exc:
                answer({"unavailable": f"{type(exc).__name__}: {exc}"})
        runner.run(contender.close())


if __name__ == "__main__":
    main()
