"""What a client asks for: a turn of a thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote

from pydantic import ValidationError

from rxloop.errors import ConfigurationError
from rxloop.steps import Conversation
from rxloop.ui.frames import whole

__all__ = ("BadRequestError", "TurnRequest", "read_chat", "read_run")

_LONGEST_ID = 200

_AGAIN = "regenerate-message"
"""What the AI SDK's chat wants of a user who tries again."""


class BadRequestError(Exception):
    """
    A client's request that cannot be served.

    Args:
        message: what is wrong with it, for the client to read.
        status: the HTTP status.
        code: one word for it.
        retry_after: the seconds after which it may be tried again.
    """

    def __init__(self, message: str, *, status: int, code: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """
    A turn that a client asks for. It is plain data, so that it can be handed to a worker.

    Args:
        turn_id: the turn's id, which the server made.
        thread_id: the client's name of the conversation.
        run_id: the client's name of the turn.
        prompt: the text of the user's last message.
        user: whose thread it is, as the authentication hook has it; empty without one.
        input: the request's body: an AG-UI ``RunAgentInput``, or what the AI SDK's chat sends.
        conversation: what was said before in this thread, in the provider's format. It is not part of the JSON form:
            whoever runs the turn loads it.
    """

    turn_id: str
    thread_id: str
    run_id: str
    prompt: str
    user: str = ""
    input: Mapping[str, Any] = field(default_factory=dict)
    conversation: Conversation = ()

    @property
    def stream(self) -> str:
        """The name of the turn's stream on the bus."""
        return owned(self.user, self.turn_id)

    @property
    def thread_key(self) -> str:
        """The key of the thread in its store."""
        return owned(self.user, self.thread_id)

    @property
    def history(self) -> list[tuple[Literal["user", "assistant"], str]]:
        """
        What the client remembers of the thread, before the prompt: who said what, in plain text.

        The server's own record, ``conversation``, is better where there is one. This is what a client claims; tools,
        reasoning, and messages of other roles are left out.
        """
        messages = self.input.get("messages")
        said: list[tuple[Literal["user", "assistant"], str]] = []
        for message in messages[:-1] if isinstance(messages, list) else ():
            role: Any = message.get("role") if isinstance(message, Mapping) else None
            text = _text_of(message) if role in ("user", "assistant") else ""
            if not text.strip():
                continue
            if said and said[-1][0] == role:
                said[-1] = (role, f"{said[-1][1]}\n\n{text}")
            else:
                said.append((role, text))
        return said

    @property
    def again(self) -> bool:
        """Whether the client asks for another answer to what it may have asked before."""
        return self.input.get("trigger") == _AGAIN

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "turn_id": self.turn_id,
            "thread_id": self.thread_id,
            "run_id": self.run_id,
            "prompt": self.prompt,
            "user": self.user,
            "input": dict(self.input),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TurnRequest:
        """Read the JSON form."""
        return cls(**{name: data[name] for name in ("turn_id", "thread_id", "run_id", "prompt", "user", "input")})


def _text_of(message: Mapping[str, Any]) -> str:
    """The text of a message of AG-UI or of the AI SDK, without its other parts."""
    content = message.get("content") or message.get("parts")
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, Mapping) and part.get("type") == "text"]
        return "\n".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def owned(user: str, name: str) -> str:
    """A name that no other user's can be equal to."""
    return f"{quote(user, safe='')}/{name}"


def read_run(body: Any, turn_id: str, user: str) -> TurnRequest:
    """
    Read an AG-UI ``RunAgentInput``. The prompt is its last message, which must be the user's.

    Raises:
        ConfigurationError: the extra ui is not installed.
        BadRequestError: it is none, or has no prompt; or it offers tools of the client's, which nobody here would call.
    """
    try:
        from ag_ui.core import RunAgentInput, UserMessage
    except ImportError as error:
        raise ConfigurationError('AG-UI needs the ui extra: pip install "rxloop[ui]"') from error
    try:
        run = RunAgentInput.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise _unreadable(f"the body must be a RunAgentInput, but {place or 'it'}: {first['msg']}") from error
    last = run.messages[-1] if run.messages else None
    if not isinstance(last, UserMessage):
        raise _unreadable("the last of the messages must be the user's")
    content = last.content
    if not isinstance(content, str):
        others = sorted({part.type for part in content if part.type != "text"})
        if others:
            raise _unreadable(f"the user's message must be text, but it has parts of the type {', '.join(others)}")
        content = "\n".join(part.text for part in content)  # type: ignore[union-attr]
    if run.tools:
        named = ", ".join(tool.name for tool in run.tools)
        raise _unreadable(f"tools of the client are not called here, but the request offers {named:.200}")
    return _asked(body, turn_id, user, run.thread_id, run.run_id, content)


def read_chat(body: Any, turn_id: str, user: str) -> TurnRequest:
    """
    Read what the AI SDK's chat transport sends: the chat's id, and its messages of parts.

    Raises:
        BadRequestError: it is something else, or its last message is not the user's text.
    """
    if not isinstance(body, Mapping) or not isinstance(body.get("id"), str):
        raise _unreadable("the body must be a chat's, with its id")
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    if not isinstance(last, Mapping) or last.get("role") != "user" or not isinstance(last.get("parts"), list):
        raise _unreadable("the last of the messages must be the user's, with its parts")
    if body.get("messageId") is not None and body.get("trigger") != _AGAIN:
        # what `useChat` sends where the user changed what was said before
        raise _unreadable("a message cannot be changed: the thread goes on from where it is")
    parts = [part if isinstance(part, Mapping) else {} for part in last["parts"]]
    others = sorted({str(part.get("type")) for part in parts if part.get("type") != "text"})
    if others:
        raise _unreadable(f"the user's message must be text, but it has parts of the type {', '.join(others):.200}")
    texts = [text for part in parts if isinstance(text := part.get("text"), str)]
    if len(texts) < len(parts):
        raise _unreadable("the user's message must be text, but a part of it has none")
    prompt = "\n".join(texts)
    return _asked(body, turn_id, user, body["id"], turn_id, prompt)


def _asked(body: Mapping[str, Any], turn_id: str, user: str, thread_id: str, run_id: str, prompt: str) -> TurnRequest:
    for name, value in (("thread", thread_id), ("run", run_id)):
        if not 0 < len(value) <= _LONGEST_ID or not value.isprintable():
            raise _unreadable(f"the {name}'s id must be 1 to {_LONGEST_ID} printable characters")
        if value in (".", ".."):
            # an address with it would be another one
            raise _unreadable(f"the {name}'s id must not be {value!r}")
    if whole(prompt) != prompt:
        raise _unreadable("the user's message must be whole characters, but it has half of one")
    if not prompt.strip():
        raise _unreadable("the user's message must say something")
    return TurnRequest(turn_id, thread_id, run_id, prompt, user, body)


def _unreadable(message: str) -> BadRequestError:
    # it may name what the client sent
    return BadRequestError(whole(message), status=422, code="invalid")
