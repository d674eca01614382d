"""The rows of Bedrock: the loop over boto3, its frames with one parse each, the same by hand, and rxloop's turn."""

from __future__ import annotations

import asyncio
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.contenders import PROMPT, Contender, OnDelta, UnavailableError
from benchmarks.rxloop_rows import imported, subscribed

THREADS = 256


def boto3_client(url: str) -> Any:
    """Make a client of the load server that keeps a connection for every thread."""
    import boto3
    from botocore.config import Config

    return boto3.Session().client(
        "bedrock-runtime",
        region_name="us-east-1",
        endpoint_url=url,
        aws_access_key_id="benchmark",
        aws_secret_access_key="benchmark",  # noqa: S106
        config=Config(max_pool_connections=THREADS, retries={"total_max_attempts": 1}),
    )


class _InThread(Contender):
    """A blocking loop, which an asynchronous program has to run in a thread of a pool."""

    def __init__(self, url: str) -> None:
        self._client = boto3_client(url)
        self._threads = ThreadPoolExecutor(THREADS)

    def _open(self, model: str) -> Any:
        messages = [{"role": "user", "content": [{"text": PROMPT}]}]
        return self._client.converse_stream(modelId=model, messages=messages)["stream"]

    def _read(self, model: str, on_delta: OnDelta) -> int:
        raise NotImplementedError

    async def text(self, model: str, on_delta: OnDelta) -> int:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._read, model, on_delta)

    async def close(self) -> None:
        self._threads.shutdown()
        self._client.close()


class RawBoto3(_InThread):
    """The loop everyone writes: the text of each `contentBlockDelta` appended to a list."""

    def _read(self, model: str, on_delta: OnDelta) -> int:
        parts: list[str] = []
        for event in self._open(model):
            if (delta := event.get("contentBlockDelta")) and (text := delta["delta"].get("text")):
                parts.append(text)
                on_delta(text)
        return len("".join(parts))


class Boto3ByHand(_InThread):
    """The bytes of the SDK's own HTTP response, frames cut by their lengths, one JSON parse each: the limit."""

    def _read(self, model: str, on_delta: OnDelta) -> int:
        from pydantic_core import from_json

        parts: list[str] = []
        rest = b""
        stream = self._open(model)
        for data in stream._raw_stream.stream():
            rest += data
            start = 0
            while len(rest) - start >= 12:
                length, head = struct.unpack_from("!II", rest, start)
                if len(rest) - start < length:
                    break
                payload = from_json(rest[start + 12 + head : start + length - 4])
                start += length
                if (delta := payload.get("delta")) and (text := delta.get("text")):
                    parts.append(text)
                    on_delta(text)
            rest = rest[start:]
        stream.close()
        return len("".join(parts))


class RxLoopBedrock(Contender):
    """A turn that is subscribed with a trivial `on_next`: on the bytes, or on the SDK's public events."""

    def __init__(self, url: str, *, fallback: bool = False) -> None:
        self._turn_class = imported("rxloop", "Turn")
        self._adapter_class = imported("rxloop.adapters.bedrock", "BedrockAdapter")
        self._client = boto3_client(url)
        self._fallback = fallback
        self._adapters: dict[str, Any] = {}

    def _adapter(self, model: str) -> Any:
        """Make an adapter once per model: like a client, it outlives the turn."""
        if model not in self._adapters:
            adapter = self._adapter_class(self._client, model=model)
            if not hasattr(adapter, "_as_bytes"):
                raise UnavailableError("the adapter has no switch between the bytes and the public events")
            adapter._as_bytes = not self._fallback
            self._adapters[model] = adapter
        return self._adapters[model]

    async def text(self, model: str, on_delta: OnDelta) -> int:
        return await subscribed(self._turn_class(self._adapter(model), PROMPT), on_delta)

    async def close(self) -> None:
        self._client.close()
