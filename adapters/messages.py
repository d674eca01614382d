"""What providers' messages have in common, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rxloop.errors import ConfigurationError
from rxloop.steps import Conversation

__all__ = (
    "check_answers",
    "check_fields",
    "check_model",
    "messages_of",
    "prompt_blocks",
    "replaced_blocks",
    "with_user_content",
    "without_blocks",
)


def check_model(model: Any) -> None:
    """
    Check a model's name.

    Raises:
        ConfigurationError: it is not text, or blank.
    """
    if not isinstance(model, str) or not model.strip() or any("\ud800" <= mark <= "\udfff" for mark in model):
        raise ConfigurationError(f"model must be a non-empty string, but got {model!r}")


def check_fields(fields: Mapping[str, Any], *, turns: Iterable[str], clients: Iterable[str], example: str) -> None:
    """
    Check that an adapter's further fields are the request's own.

    Args:
        fields: what the caller gave.
        turns: what the turn sends.
        clients: what belongs to the client; in a request's body a key would be sent and recorded.
        example: how a client is given, with ``{}`` where its keyword is.

    Raises:
        ConfigurationError: naming the first field that is not.
    """
    for name in ("modelId", "model_id", "EndpointName"):
        if name in fields:
            raise ConfigurationError(f"{name!r} is called model: give it as model=…")
    for name in turns:
        if name in fields:
            raise ConfigurationError(f"{name!r} is the turn's to send: give it to Turn, not to the adapter")
    for name in clients:
        if name in fields:
            raise ConfigurationError(f"{name!r} belongs to the client: {example.format(f'{name}=…')}")


def messages_of(conversation: Any) -> list[Mapping[str, Any]]:
    """
    The messages of a conversation, each a role with content.

    Raises:
        ConfigurationError: one is none, or the conversation is no list.
    """
    if isinstance(conversation, (str, bytes, Mapping)) or not isinstance(conversation, Iterable):
        raise ConfigurationError(f"conversation must be a list of messages, but got {conversation!r:.200}")
    messages = list(conversation)
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(content, (str, list, tuple)) or message.get("role") not in ("user", "assistant"):
            raise ConfigurationError(
                f"a message must have a role, user or assistant, and content, text or a list, but got {message!r:.200}"
            )
    return messages


def prompt_blocks(
    prompt: Any,
    *,
    text: Callable[[str], Mapping[str, Any]],
    is_content: Callable[[Any], bool],
    name: str = "prompt",
    what: str = "content blocks",
) -> list[Any]:
    """
    The content blocks of a prompt, which is text, a block, or a list of both.

    Args:
        prompt: what the caller gave.
        text: makes a block of text.
        is_content: whether something is a block that says something.
        name: how an error calls the prompt.
        what: how an error calls the blocks.

    Raises:
        ConfigurationError: it is empty, or not a prompt.
    """
    if isinstance(prompt, str):
        blocks: list[Any] = [text(prompt)] if prompt.strip() else []
    elif isinstance(prompt, Sequence) and not isinstance(prompt, (bytes, bytearray)):
        blocks = [text(item) if isinstance(item, str) else item for item in prompt]
    else:
        blocks = [prompt]
    if not blocks or not all(map(is_content, blocks)):
        raise ConfigurationError(f"{name} must be non-empty text or {what}, but got {prompt!r:.200}")
    return blocks


def with_user_content(
    messages: list[Mapping[str, Any]], blocks: list[Any], *, text: Callable[[str], Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """The messages with the blocks at their end, in the last message if that is the user's already."""
    if messages and messages[-1].get("role") == "user":
        last = messages[-1]
        content = last["content"]
        earlier = [text(content)] if isinstance(content, str) else list(content)
        return [*messages[:-1], {**last, "content": [*earlier, *blocks]}]
    return [*messages, {"role": "user", "content": blocks}]


def check_answers(
    messages: Conversation,
    *,
    calls: Callable[[Mapping[str, Any]], Iterable[str]],
    results: Callable[[Mapping[str, Any]], Iterable[str]],
) -> None:
    """
    Check that every tool call has exactly one result, in the message that follows it.

    Args:
        messages: the conversation.
        calls: the identifiers of a message's calls.
        results: the identifiers that a message's results answer.

    Raises:
        ConfigurationError: naming the call.
    """
    open_calls: set[str] = set()
    for message in (*messages, {}):
        for call_id in results(message):
            if call_id not in open_calls:
                raise ConfigurationError(
                    f"every tool result must answer one call of the message before it, but {call_id!r} does not"
                )
            open_calls.discard(call_id)
        if open_calls:
            raise ConfigurationError(
                f"every tool call must have exactly one result in the next message, but "
                f"{', '.join(map(repr, sorted(open_calls)))} has none"
            )
        open_calls = set(calls(message))


def replaced_blocks(
    conversation: Conversation,
    key: str,
    notes: Mapping[tuple[int, int], str],
    replace: Callable[[Mapping[str, Any], str], Mapping[str, Any]],
) -> list[Mapping[str, Any]]:
    """
    The conversation with some of its blocks replaced; it stays as it is, and so do the others.

    Args:
        conversation: messages with a list of blocks each.
        key: where a message has its blocks.
        notes: what is to be said, by the places of the blocks: message, block.
        replace: makes a block of the old one and the note.
    """
    messages = list(conversation)
    for index in {index for index, _ in notes}:
        message = messages[index]
        blocks = [
            replace(block, notes[index, place]) if (index, place) in notes else block
            for place, block in enumerate(message[key])
        ]
        messages[index] = {**message, key: blocks}
    return messages


def without_blocks(
    conversation: Conversation, index: int, left_out: Callable[[Mapping[str, Any]], bool]
) -> list[Mapping[str, Any]]:
    """
    The conversation without some blocks of the model's messages from one on; a message of nothing else goes with them.

    Args:
        conversation: messages with content each; it stays as it is.
        index: the first message that is looked at.
        left_out: whether a block is left out.
    """
    messages = list(conversation[:index])
    for message in conversation[index:]:
        content = message["content"]
        if message.get("role") != "assistant" or isinstance(content, str):
            messages.append(message)
            continue
        kept = [block for block in content if not (isinstance(block, Mapping) and left_out(block))]
        if kept:
            messages.append(message if len(kept) == len(content) else {**message, "content": kept})
    return messages
