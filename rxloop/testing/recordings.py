"""What a provider contributes to the replay of recorded HTTP, and the values that it speaks in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rxloop.adapters.base import Adapter
from rxloop.testing.cassette import Interaction
from rxloop.tools import ToolDeclaration

__all__ = ("RecordedReply", "RecordedRequest", "RecordedResult", "Recordings")


@dataclass(frozen=True, slots=True)
class RecordedResult:
    """
    What was answered to a call.

    Args:
        output: the tool's output, as the provider was told.
        error: the error that the provider was told instead.
    """

    output: Any = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """
    One request to a model, read from its body.

    Args:
        model: the model's name.
        messages: the conversation, in the provider's format.
        system: the system prompt, in the provider's format.
        tools: what was declared; a mapping for what the provider runs itself.
        body: the whole body.
        prompt: the text of the user's last message, to be shown.
        betas: names of beta features that a header asked for.
        address: where it was sent.
    """

    model: str
    messages: Sequence[Mapping[str, Any]]
    system: Any = None
    tools: Sequence[ToolDeclaration | Mapping[str, Any]] = ()
    body: Mapping[str, Any] = field(default_factory=dict)
    prompt: str = ""
    betas: tuple[str, ...] = ()
    address: str = ""


@dataclass(frozen=True, slots=True)
class RecordedReply:
    """
    What is to be known of a response to find its continuation.

    Args:
        failed: it failed before any content, so that the same request again is a retry.
        broken: it failed after content: nothing goes on from it.
        resume: the provider paused and wants to be asked again.
        call_ids: the calls that the caller's side had to answer.
    """

    failed: bool = False
    broken: bool = False
    resume: bool = False
    call_ids: frozenset[str] = frozenset()


class Recordings(Protocol):
    """One provider's wire format, as far as a replay needs it."""

    @property
    def provider(self) -> str:
        """The provider's name."""
        ...

    def recognise(self, interaction: Interaction) -> bool:
        """Whether the interaction is a request to a model in this format, told from its address."""
        ...

    def request(self, interaction: Interaction) -> RecordedRequest:
        """
        Read a request.

        Raises:
            ConfigurationError: the body is not one.
        """
        ...

    def reply(self, interaction: Interaction) -> RecordedReply:
        """Read a response."""
        ...

    def continued(
        self, earlier: RecordedRequest, reply: RecordedReply, later: RecordedRequest
    ) -> Mapping[str, RecordedResult] | None:
        """
        The tool results, by call, with which `later` goes on from `reply`; ``None`` if it does not.

        A turn that the provider paused goes on with none.
        """
        ...

    def adapter(self, request: RecordedRequest, response: Callable[[], Interaction]) -> Adapter:
        """
        The real adapter over the real SDK, with a transport that answers every request with what `response` returns.

        `response` is called in the context in which a step was subscribed.
        """
        ...
