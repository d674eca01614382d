"""The rows of rxloop, which is imported when a row is made, so that a broken import fails its row only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from typing import Any

from benchmarks.contenders import (
    MAX_TOKENS,
    PROMPT,
    Contender,
    OnDelta,
    UnavailableError,
    add,
    anthropic_client,
    request_body,
)


def imported(module: str, name: str) -> Any:
    try:
        return getattr(import_module(module), name)
    except Exception as exc:
        raise UnavailableError(f"{module}.{name}: {type(exc).__name__}: {exc}") from exc


async def subscribed(source: Any, on_delta: OnDelta) -> int:
    """Subscribe to a turn or a step with a trivial `on_next` and wait for its end."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    length = 0

    def on_next(event: Any) -> None:
        nonlocal length
        if getattr(event, "type", None) == "text_delta":
            text = event.text
            length += len(text)
            on_delta(text)

    def on_completed() -> None:
        done.set_result(None)

    source.subscribe(on_next, done.set_exception, on_completed)
    await done
    return length


class _RxLoop(Contender):
    def __init__(self, url: str) -> None:
        self._adapter_class = imported("rxloop.adapters.anthropic", "AnthropicAdapter")
        self._client = anthropic_client(url)
        self._adapters: dict[str, Any] = {}

    def _adapter(self, model: str) -> Any:
        """Make an adapter once per model: like a client, it outlives the turn."""
        if model not in self._adapters:
            self._adapters[model] = self._adapter_class(self._client, model=model, max_tokens=MAX_TOKENS)
        return self._adapters[model]

    async def close(self) -> None:
        await self._client.close()


class _RxLoopTurn(_RxLoop):
    def __init__(self, url: str) -> None:
        self._turn_class = imported("rxloop", "Turn")
        super().__init__(url)

    def _turn(self, model: str, tools: Sequence[Any] = ()) -> Any:
        return self._turn_class(self._adapter(model), PROMPT, tools=tools)


class RxLoop(_RxLoopTurn):
    """A turn that is subscribed with a trivial `on_next`. Its tool is a plain function."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._tools: list[Any] = [add]

    async def text(self, model: str, on_delta: OnDelta) -> int:
        return await subscribed(self._turn(model), on_delta)

    async def tool(self, model: str, on_delta: OnDelta) -> int:
        return await subscribed(self._turn(model, self._tools), on_delta)


class RxLoopDeclared(RxLoop):
    """The same with a tool that is declared once, as `raw-sdk` has its schema written down."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._tools = [imported("rxloop", "tool")(add)]


class RxLoopIter(_RxLoopTurn):
    """The same turn by `async for`."""

    async def text(self, model: str, on_delta: OnDelta) -> int:
        length = 0
        async for event in self._turn(model):
            if event.type == "text_delta":
                length += len(event.text)
                on_delta(event.text)
        return length

    async def stall(self, model: str, until_blocked: Callable[[], Awaitable[None]]) -> int | None:
        stream = self._turn(model).stream()
        async for event in stream:
            if event.type == "text_delta":
                break
        await until_blocked()
        peak: int | None = getattr(stream, "peak_buffered", None)
        await stream.aclose()
        return peak


class RxLoopStep(_RxLoop):
    """One step of the adapter without the loop around it: decoder and pump."""

    def __init__(self, url: str) -> None:
        self._step_class = imported("rxloop.steps", "Step")
        super().__init__(url)

    async def text(self, model: str, on_delta: OnDelta) -> int:
        adapter = self._adapter(model)
        return await subscribed(adapter.step(self._step_class(0, adapter.begin([], PROMPT))), on_delta)


class RxLoopDecoder(_RxLoop):
    """rxloop's decoder alone, in a plain loop over the bytes of the response.

    What `rxloop` costs on top of this row is what it costs above the decoder.
    """

    def __init__(self, url: str) -> None:
        self._make_decoder = _decoder_factory()
        super().__init__(url)

    async def text(self, model: str, on_delta: OnDelta) -> int:
        body: Any = request_body(model)
        length = 0
        async with self._client.messages.with_streaming_response.create(**body) as response:
            decoder = self._make_decoder()
            feed = decoder.feed
            async for chunk in _body(response):
                for event in feed(chunk):
                    if event.type == "text_delta":
                        text = event.text
                        length += len(text)
                        on_delta(text)
            decoder.close()
        return length


# PLUG: these two functions alone know the decoder's name and how the adapter reads the body. They must do
# what `AnthropicAdapter` does, so that the difference between the rows holds no transport.


def _decoder_factory() -> Callable[[], Any]:
    module = "rxloop.adapters.anthropic_decoder"
    events, data = imported(module, "AnthropicDecoder"), imported(module, "AnthropicBytesDecoder")

    def same(name: str) -> str:
        return name

    return lambda: data(events(0, same))


def _body(response: Any) -> Any:
    return response.http_response.aiter_bytes()
