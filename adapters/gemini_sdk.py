"""How google-genai is asked: for the bytes of a reply where it gives them, or for its public events."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import traceback
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from pydantic_core import ValidationError

from rxloop.errors import MalformedResponseError

__all__ = ("as_mappings", "bytes_seam")


def bytes_seam(client: Any) -> Callable[[str, dict[str, Any]], Any] | None:
    """
    What sends a request through the SDK and gives its open HTTP response, or ``None`` where that cannot be relied on.

    The SDK hands out no bytes, and its response models cost more than all the rest of a chunk. This relies on two of
    its private methods, checked here; without them, and over aiohttp, the adapter takes the public events.
    """
    api = getattr(client, "_api_client", None)
    build, send = getattr(api, "_build_request", None), getattr(api, "_async_request_once", None)
    uses_aiohttp = getattr(api, "_use_aiohttp", None)
    if build is None or send is None or uses_aiohttp is None or uses_aiohttp():
        return None
    try:
        wanted = list(inspect.signature(build).parameters), inspect.signature(send).parameters
    except (TypeError, ValueError):
        return None
    if wanted[0][:3] != ["http_method", "path", "request_dict"] or not {"stream", "implicit_retry"} <= set(wanted[1]):
        return None

    async def send_for_bytes(path: str, body: dict[str, Any]) -> Any:
        response = await send(build("post", path, body), stream=True, implicit_retry=False)
        return response.response_stream

    return send_for_bytes


async def as_mappings(stream: Any) -> AsyncGenerator[Mapping[str, Any], None]:
    """
    The SDK's public events as the API's own JSON; the reply is closed on every way out.

    Raises:
        MalformedResponseError: the SDK's models could not be made of the reply.
    """
    try:
        async for response in stream:
            yield _as_mapping(response)
    except GeneratorExit:
        await _leave(stream)
        raise
    except Exception as error:
        reply = getattr(error, "response", None) or _reply_of(error)
        await _close_reply(reply)
        if reply is not None and isinstance(error, _MODEL_ERRORS):
            raise MalformedResponseError(
                f"the reply does not have the provider's format: {type(error).__name__}", provider="google"
            ) from error
        raise


_MODEL_ERRORS = (AttributeError, IndexError, KeyError, TypeError, ValidationError)


async def _leave(stream: Any) -> None:
    """
    Close the reply of a stream that is left between two chunks.

    The SDK does so when a read is cancelled, and when its generator is closed only once the garbage is collected.
    """
    while True:
        reading = asyncio.ensure_future(anext(stream, None))
        await asyncio.sleep(0)
        if not reading.done():
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await reading
            return
        if reading.exception() is not None or reading.result() is None:
            return


def _reply_of(error: Exception) -> Any:
    """The SDK's reply behind an error of its models: it is in the generator that the failing one reads from."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for source in frame.f_locals.values():
            if inspect.isasyncgen(source) and source.ag_frame is not None:
                for value in source.ag_frame.f_locals.values():
                    if hasattr(value, "response_stream"):
                        return value
    return None


async def _close_reply(reply: Any) -> None:
    """Close the reply of an error inside a stream, which the SDK leaves to the garbage collector."""
    for name in ("segment_iterator", "response_stream"):
        part: Any = getattr(reply, name, None)
        if hasattr(part, "aclose"):
            await part.aclose()


def _as_mapping(response: Any) -> Mapping[str, Any]:
    plain = _plain_text(response)
    if plain is not None:
        return plain
    chunk: dict[str, Any] = response.model_dump(mode="json", by_alias=True, exclude_none=True)
    for candidate in chunk.get("candidates") or ():
        for part in (candidate.get("content") or {}).get("parts") or ():
            # the API's alphabet of base64, not the one of addresses: what is resent is what came
            if "thoughtSignature" in part:
                part["thoughtSignature"] = part["thoughtSignature"].translate(_BASE64)
            if "inlineData" in part and "data" in part["inlineData"]:
                part["inlineData"]["data"] = part["inlineData"]["data"].translate(_BASE64)
    return chunk


_BASE64 = str.maketrans("-_", "+/")


def _plain_text(response: Any) -> Mapping[str, Any] | None:
    """
    The short way for what most chunks are: one piece of text and nothing else that matters.

    The details of the usage come with the end of the reply, which goes the long way.
    """
    candidates = response.candidates
    if not candidates or len(candidates) != 1:
        return None
    content = candidates[0].content
    parts = content.parts if content is not None and candidates[0].finish_reason is None else None
    if not parts or len(parts) != 1 or parts[0].model_fields_set != _ONLY_TEXT:
        return None
    chunk: dict[str, Any] = {"candidates": [{"content": {"parts": [{"text": parts[0].text}]}}]}
    usage = response.usage_metadata
    if usage is not None:
        counts = {key: getattr(usage, name, None) for name, key in _COUNTS}
        chunk["usageMetadata"] = {key: count for key, count in counts.items() if count is not None}
    return chunk


_ONLY_TEXT = {"text"}
_COUNTS = (
    ("prompt_token_count", "promptTokenCount"),
    ("candidates_token_count", "candidatesTokenCount"),
    ("total_token_count", "totalTokenCount"),
    ("thoughts_token_count", "thoughtsTokenCount"),
    ("cached_content_token_count", "cachedContentTokenCount"),
    ("tool_use_prompt_token_count", "toolUsePromptTokenCount"),
)
