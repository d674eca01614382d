"""Turns rebuilt from recorded HTTP: the real SDK and the real adapter, nothing but the network replaced."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakSet

from reactivex import Observable, abc

from rxloop.adapters.base import Adapter
from rxloop.errors import ConfigurationError, RxLoopError
from rxloop.operators import RetryPolicy, Stop
from rxloop.steps import Conversation, Step, StepResult, ToolResult
from rxloop.testing.cassette import Interaction, read_cassette
from rxloop.testing.recordings import RecordedReply, RecordedRequest, RecordedResult, Recordings
from rxloop.testing.replay_anthropic import AnthropicRecordings
from rxloop.testing.replay_bedrock import AnthropicOnBedrockRecordings, BedrockRecordings
from rxloop.testing.replay_gemini import GeminiRecordings
from rxloop.testing.replay_sagemaker import SageMakerRecordings
from rxloop.testing.replay_vertex import AnthropicOnVertexRecordings
from rxloop.tools import Tool, ToolContext, ToolDeclaration
from rxloop.turn import Turn

__all__ = ("NOT_RECORDED", "PROVIDERS", "RecordedStep", "ReplayedTurn", "replay")

NOT_RECORDED = "not recorded: the recording ends before this call was answered"
"""What a tool answers to a call that the recording has no result for."""

PROVIDERS: list[Recordings] = [
    AnthropicRecordings(),
    AnthropicOnVertexRecordings(),
    GeminiRecordings(),
    AnthropicOnBedrockRecordings(),
    BedrockRecordings(),
    SageMakerRecordings(),
]
"""The formats that can be replayed, asked in this order."""

_LATER = {
    "openai": re.compile(r"/(chat/completions|responses)$"),
    "vertex": re.compile(r":(streamR|r)awPredict$"),
}
"""Formats that are told apart, to be named in the error."""


@dataclass(slots=True)
class RecordedStep:
    """
    One step of a recorded turn.

    Args:
        request: what was sent.
        attempts: the responses: those that failed before any content, and the last one.
        results: the results of the calls of the last response, by call, as far as they were recorded.
    """

    request: RecordedRequest
    attempts: list[Interaction]
    results: Mapping[str, RecordedResult] = field(default_factory=dict)


class ReplayedTurn(Turn):
    """
    A turn that was recorded: a cold observable like any turn, which needs no network, no key and no time.

    Every subscription drives the provider's SDK from the first recorded response on, so a replayed turn can be
    subscribed as often as one likes, several at once too. Its tools answer what was recorded; one whose result was
    not recorded answers `NOT_RECORDED`, and the turn ends with the step that asked for it.

    ``prompt`` is what the user asked last, ``steps`` is what was recorded.

    Args:
        path: where it was recorded.
        provider: the format.
        steps: what was recorded, a step at least.
        tool_seconds: how long the recorded tools take: for all, or by name.
        stop: ends the turn gracefully.
        turn_id: names every run.
    """

    def __init__(
        self,
        path: Path,
        provider: Recordings,
        steps: Sequence[RecordedStep],
        *,
        tool_seconds: float | Mapping[str, float] = 0.0,
        stop: Stop | None = None,
        turn_id: str | None = None,
    ) -> None:
        self.path = path
        self.steps = tuple(steps)
        first = steps[0].request
        self.prompt = first.prompt
        adapter = _Replaying(provider.adapter(first, _playing.get), self.steps)
        tools = _Tools(self.steps, tool_seconds)
        super().__init__(
            adapter,
            tools=[tools.tool(item) if isinstance(item, ToolDeclaration) else item for item in first.tools],
            system=first.system,
            conversation=first.messages,
            max_steps=len(self.steps),
            retry=adapter.policy,
            breaker=None,
            reclaim=None,
            resolve_tool_on_miss=tools.found,
            stop=stop,
            turn_id=turn_id,
        )


def replay(
    *paths: str | os.PathLike[str], tool_seconds: float | Mapping[str, float] = 0.0, stop: Stop | None = None
) -> list[ReplayedTurn]:
    """
    Rebuild the turns of cassettes, whoever recorded them, in the order in which they began.

    The provider is told from the address; model, system prompt, conversation, tools and every other field come from
    the request bodies, the tools' outputs from the request that followed, the responses from the recording. A request
    that goes on from an earlier one is that turn's next step, also where turns were recorded side by side; the same
    request again after a response that failed before any content is a retry, which a replay does not wait for;
    anything else begins a turn.

    Args:
        paths: cassettes in vcrpy's format, version 1.
        tool_seconds: how long the recorded tools take: for all, or by name.
        stop: ends every turn gracefully: an observable's first value, an ``asyncio.Event``, an awaitable.

    Raises:
        ConfigurationError: a file is not a cassette, or none of its requests is of a format that can be replayed.
    """
    if not paths or not all(isinstance(path, (str, os.PathLike)) for path in paths):
        raise ConfigurationError(f"replay takes one path or more, each an argument of its own, but got {paths!r:.200}")
    turns: list[ReplayedTurn] = []
    for path in map(Path, paths):
        for index, (provider, steps) in enumerate(_recorded_turns(path)):
            turn_id = f"{path.stem}_{index}"
            with _naming(path, steps[0].attempts[0]):
                turns.append(ReplayedTurn(path, provider, steps, tool_seconds=tool_seconds, stop=stop, turn_id=turn_id))
    return turns


def _recorded_turns(path: Path) -> list[tuple[Recordings, list[RecordedStep]]]:
    turns: list[_Growing] = []
    others: list[str] = []
    for interaction in read_cassette(path):
        provider = next((item for item in PROVIDERS if item.recognise(interaction)), None)
        if provider is None:
            others.append(_named(path, interaction))
            continue
        with _naming(path, interaction):
            request = provider.request(interaction)
            reply = provider.reply(interaction)
            fits = [turn.fit(provider, request) for turn in turns]
            best = max(fits, default=0)
            if best:
                # of several that fit as well, the one that grew last
                grown = turns.pop(len(fits) - 1 - fits[::-1].index(best))
                grown.grow(request, interaction, reply)
                turns.append(grown)
            else:
                turns.append(_Growing(provider, request, interaction, reply))
    if not turns:
        raise ConfigurationError(
            f"{path} has no request that can be replayed: {', '.join(dict.fromkeys(others))} is not supported yet; "
            f"supported: {_supported()}"
        )
    return [(turn.provider, turn.steps) for turn in sorted(turns, key=_began)]


@contextlib.contextmanager
def _naming(path: Path, interaction: Interaction) -> Iterator[None]:
    """Say of what is wrong with a recording where it is."""
    where = f"{path}, interaction {interaction.index}"
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{where}: it does not have the provider's format: {type(error).__name__}: {error}"
        ) from error


def _named(path: Path, interaction: Interaction) -> str:
    """How an error names traffic that is not replayed. What is a model's must not be left out silently."""
    for name, pattern in _LATER.items():
        if pattern.search(interaction.path):
            raise ConfigurationError(
                f"{path} has requests to {name} ({interaction.host}), which is not supported yet; "
                f"supported: {_supported()}"
            )
    return f"{interaction.method} {interaction.host}{interaction.path}"


def _supported() -> str:
    return ", ".join(dict.fromkeys(item.provider for item in PROVIDERS))


class _Growing:
    """A recorded turn while its continuation is looked for."""

    def __init__(
        self, provider: Recordings, request: RecordedRequest, interaction: Interaction, reply: RecordedReply
    ) -> None:
        self.provider = provider
        self.steps = [RecordedStep(request, [interaction])]
        self._reply = reply

    def fit(self, provider: Recordings, request: RecordedRequest) -> int:
        """How well a request goes on from here: 0 not at all, 2 better than 1."""
        last = self.steps[-1].request
        if provider is not self.provider or self._reply.broken:
            return 0
        if self._reply.failed:
            return 2 if (request.model, request.body) == (last.model, last.body) else 0
        results = provider.continued(last, self._reply, request)
        if results is None:
            return 0
        # of two conversations that began alike, the calls tell which one goes on
        return 2 if results.keys() == self._reply.call_ids else 1

    def grow(self, request: RecordedRequest, interaction: Interaction, reply: RecordedReply) -> None:
        last = self.steps[-1]
        if self._reply.failed:
            last.attempts.append(interaction)
        else:
            last.results = self.provider.continued(last.request, self._reply, request) or {}
            self.steps.append(RecordedStep(request, [interaction]))
        self._reply = reply


def _began(turn: _Growing) -> int:
    return turn.steps[0].attempts[0].index


_playing: ContextVar[Interaction] = ContextVar("rxloop_playing")
"""The response that the next request of this context gets."""


@dataclass(frozen=True, slots=True)
class _AsRecorded(RetryPolicy):
    """Retry what was retried when it was recorded, at once."""

    again: WeakSet[Exception] = field(default_factory=WeakSet)

    def delay(self, error: Exception, attempt: int) -> float | None:
        return 0.0 if error in self.again else None


class _Replaying(Adapter):
    """An adapter that says, before every request, which response comes."""

    default_breaker = None
    max_steps_limit = None

    def __init__(self, adapter: Adapter, steps: Sequence[RecordedStep]) -> None:
        self.provider = adapter.provider  # type: ignore[misc]
        self.model = adapter.model
        self.malformed_retries = adapter.malformed_retries
        self.policy = _AsRecorded(retries=max(len(step.attempts) for step in steps))
        self._adapter = adapter
        self._steps = steps

    def begin(self, conversation: Conversation, prompt: Any) -> list[Mapping[str, Any]]:
        # what was sent was sent, fit to be sent or not
        return list(conversation) if prompt is None else self._adapter.begin(conversation, prompt)

    def append(
        self, conversation: Conversation, result: StepResult, tool_results: Sequence[ToolResult]
    ) -> list[Mapping[str, Any]]:
        return self._adapter.append(conversation, result, tool_results)

    def correct(self, conversation: Conversation, result: StepResult) -> list[Mapping[str, Any]]:
        return self._adapter.correct(conversation, result)

    def step(self, step: Step) -> Observable[Any]:
        attempts = self._steps[step.index].attempts
        source = self._adapter.step(step)
        numbers = itertools.count()

        def subscribe(
            observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            number = next(numbers)

            def on_error(error: Exception) -> None:
                if number + 1 < len(attempts) and isinstance(error, RxLoopError):
                    self.policy.again.add(error)
                observer.on_error(error)

            context = copy_context()
            context.run(_playing.set, attempts[min(number, len(attempts) - 1)])
            return context.run(source.subscribe, observer.on_next, on_error, observer.on_completed, scheduler=scheduler)

        return Observable(subscribe)


class _Tools:
    """Tools that answer what was recorded."""

    def __init__(self, steps: Sequence[RecordedStep], seconds: float | Mapping[str, float]) -> None:
        self._results = [step.results for step in steps]
        self._seconds = seconds
        self._declared = {
            item.name: item for step in steps for item in step.request.tools if isinstance(item, ToolDeclaration)
        }

    def found(self, name: str) -> Tool:
        """A tool that the first request did not declare."""
        return self.tool(self._declared.get(name) or ToolDeclaration(name, "", {"type": "object"}))

    def tool(self, declaration: ToolDeclaration) -> Tool:
        async def answer(arguments: dict[str, Any], context: ToolContext) -> Any:
            seconds = self._seconds
            await asyncio.sleep(seconds.get(context.name, 0.0) if isinstance(seconds, Mapping) else seconds)
            results = self._results[context.step]
            # a call that came without an id is known by its place
            place = f"#{context.call_id.rpartition('_')[2]}"
            result = results.get(context.call_id) or results.get(place) or RecordedResult(NOT_RECORDED)
            if result.error is not None:
                raise _as_raised(result.error)
            return result.output

        return Tool(
            declaration, answer, kind="async", validate=lambda raw: {"arguments": raw}, context_parameter="context"
        )


_RAISED: Callable[[str], re.Match[str] | None] = re.compile(r"the tool failed: (\w+): (.*)", re.DOTALL).fullmatch


def _as_raised(text: str) -> Exception:
    """An exception of which the engine makes the recorded text again, where the text was an engine's."""
    found = _RAISED(text)
    name, message = found.groups() if found else ("RecordedToolError", text)
    error: Exception = type(name, (Exception,), {})(message)
    return error
