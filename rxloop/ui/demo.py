"""A provider that needs no key and no network: it reasons, calls tools and answers, in real time."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from reactivex import Observable

from rxloop.adapters.base import Adapter
from rxloop.cli.tools import calculate, calculator, clock
from rxloop.errors import ConfigurationError, RateLimitedError, StreamInterruptedError
from rxloop.steps import Conversation, Step, StepResult, ToolResult
from rxloop.testing.scripted_adapter import CallTool, Said, ScriptedAdapter, Think, Wait
from rxloop.tools import Tool, ToolContext, tool
from rxloop.usage import Usage

__all__ = ("DEMO_TOOLS", "SUGGESTIONS", "DemoAdapter", "Suggestion")

_PAGES = 8
_PAGE_SECONDS = 0.22
_REASONING_PAUSE = 0.03
_WORD_PAUSE = 0.035
_ARGUMENTS_PAUSE = 0.05
_LONG_PIECE = 400
_LONG_DEFAULT = 6_000
_LONG_MOST = 1_000_000
_ASKED_TO_WAIT = 1.5
_TOPIC = re.compile(r"look(?:ing)? up (?:the )?([^,.;?!:\n]{1,60}?)(?= and |[,.;?!:\n]|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """
    A prompt that shows something.

    Args:
        title: what it shows, in a few words.
        prompt: what to ask.
    """

    title: str
    prompt: str


SUGGESTIONS = (
    Suggestion("A sum", "What is 17% of 2,340?"),
    Suggestion("Tools in parallel", "In parallel: look up Wellington, look up Oslo, 12 * 7, and the time."),
    Suggestion("A retry", "Be busy once (429), then tell me about retries."),
    Suggestion("A tool that fails", "Use the failing tool, and tell me what came of it."),
    Suggestion("A long answer", "Give me a long answer."),
    Suggestion("A provider error", "Break off in the middle with a provider error."),
)
"""Prompts of which each shows something else."""


@tool
async def look_up(topic: str, pause: float = _PAGE_SECONDS, *, context: ToolContext) -> dict[str, Any]:
    """
    Look a topic up in an invented library, page by page.

    Args:
        topic: what to look up.
        pause: seconds a page.
    """
    for page in range(1, _PAGES + 1):
        await asyncio.sleep(max(0.0, pause))
        context.report({"done": page, "total": _PAGES, "reading": f"{topic}, page {page}"})
    return {"topic": topic, "pages": _PAGES, "note": f"{topic} has {len(topic)} letters"}


@tool
def unreliable(task: str) -> str:
    """
    Fail, whatever it is asked.

    Args:
        task: what it is asked.
    """
    raise RuntimeError(f"the machine for {task!r} is out of order")


DEMO_TOOLS: dict[str, Tool] = {item.name: item for item in (calculator, clock, look_up, unreliable)}
"""The tools that the demo's model calls, by name."""


class DemoAdapter(Adapter):
    """
    An adapter that plays a provider: no key, no network, the same answer to the same question.

    It calls those of `DEMO_TOOLS` that the turn offers: the calculator where the prompt has arithmetic, the clock where
    it asks for the time, and otherwise the library. Some prompts show more, see `SUGGESTIONS`. The figures of its usage
    are made of the lengths of texts.

    Args:
        model: the model's name.
        pace: what every wait is multiplied with; 0 says everything at once.

    Raises:
        ConfigurationError: the pace is no finite number >= 0.
    """

    provider: ClassVar[str] = "demo"

    def __init__(self, *, model: str = "demo", pace: float = 1.0) -> None:
        if isinstance(pace, bool) or not isinstance(pace, (int, float)) or not 0 <= pace < float("inf"):
            raise ConfigurationError(f"pace must be a finite number >= 0, but got {pace!r:.100}")
        self.model = model
        self._pace = pace
        self._form = ScriptedAdapter()

    def begin(self, conversation: Conversation, prompt: Any) -> list[Mapping[str, Any]]:
        """The conversation with a user's message at its end."""
        return self._form.begin(conversation, prompt)

    def append(
        self, conversation: Conversation, result: StepResult, tool_results: Sequence[ToolResult]
    ) -> list[Mapping[str, Any]]:
        """The conversation with the reply and, in one message, the results of its calls."""
        return self._form.append(conversation, result, tool_results)

    def step(self, step: Step) -> Observable[Any]:
        """What is said to the conversation; each subscription is one attempt."""
        attempts = [self._paced(script) for script in _attempts(step)]
        said = sum(len(str(item)) for item in attempts[-1] if isinstance(item, (str, Think, CallTool)))
        thought = sum(len(item.text) for item in attempts[-1] if isinstance(item, Think))
        sent = len(json.dumps(list(step.conversation), default=str)) + 400
        usage = Usage(
            input_tokens=sent // 4,
            output_tokens=said // 4 + 1,
            # all but the last message was sent before
            cache_read_tokens=(sent - len(json.dumps(step.conversation[-1], default=str))) // 4 if step.index else 0,
            reasoning_tokens=thought // 4,
        )
        return ScriptedAdapter(*attempts, model=self.model, usage=usage).step(step)

    def _paced(self, script: Sequence[Said]) -> list[Said]:
        return [self._slowed(item) for item in script]

    def _slowed(self, item: Said) -> Said:
        if isinstance(item, Wait):
            return Wait(item.seconds * self._pace)
        if not isinstance(item, CallTool):
            return item
        arguments = item.arguments
        if item.name == look_up.name and isinstance(arguments, Mapping) and self._pace != 1.0:
            arguments = {**arguments, "pause": _PAGE_SECONDS * self._pace}
        return replace(item, arguments=arguments, pace=item.pace * self._pace)


def _attempts(step: Step) -> list[list[Said]]:
    """What the attempts at a step say, in order."""
    last = step.conversation[-1]
    if last.get("role") == "tool":
        return [[Wait(0.3), *_spoken(_report(step.conversation))]]
    prompt = _text_of(last.get("content"))
    wish = prompt.casefold()
    if "provider error" in wish:
        broken = StreamInterruptedError("the demo broke off, as it was asked to", provider=DemoAdapter.provider)
        return [[*_thought("I am asked to break off."), *_spoken("This answer will break off in the mid"), broken]]
    if "429" in wish:
        busy = RateLimitedError(
            "too many requests, as was asked for", provider=DemoAdapter.provider, status=429, retry_after=_ASKED_TO_WAIT
        )
        return [
            [Wait(0.5), busy],
            [*_thought("The first attempt failed; nobody has seen anything of it."), *_retried()],
        ]
    if "long answer" in wish or "characters" in wish:
        return [list(_long(prompt))]
    return [_calls(step, prompt, wish)]


def _calls(step: Step, prompt: str, wish: str) -> list[Said]:
    offered = {getattr(item, "name", "") for item in step.tools}
    calls = [call for call in _wanted(prompt, wish) if call.name in offered]
    thoughts = "The question is: " + " ".join(prompt.split())[:200] + "\n"
    # tools that were not offered cannot be called, as with any provider
    if not calls:
        return [
            *_thought(thoughts + "I have no tool for it, and answer from what I am."),
            *_spoken(_plain_answer(prompt)),
        ]
    names = " and ".join(dict.fromkeys(call.name for call in calls))
    several = "them at once" if len(calls) > 1 else "it"
    identified = [replace(call, call_id=f"call_{len(step.conversation)}_{n}") for n, call in enumerate(calls)]
    return [
        *_thought(f"{thoughts}For this I have {names}. I call {several}, and answer with what comes back."),
        *_spoken("Let me see."),
        *identified,
        Wait(0.15),
    ]


def _wanted(prompt: str, wish: str) -> list[CallTool]:
    calls: list[CallTool] = []
    if "failing tool" in wish:
        calls.append(_call("unreliable", task="the impossible"))
    # each topic that is named; no longer than a name is
    calls += [
        _call("look_up", topic=topic.strip())
        for topic in re.findall(
            r"look(?:ing)? up (?:the )?([^,.;?!:\n]{1,60}?)(?= and |[,.;?!:\n]|$)", prompt, re.IGNORECASE
        )
    ]
    expression = _arithmetic(prompt)
    if expression:
        calls.append(_call("calculator", expression=expression))
    if re.search(r"\b(time|clock|date|today|now)\b", wish):
        calls.append(_call("clock", zone="UTC"))
    if not calls:
        words = re.findall(r"\w[\w'-]*", prompt)
        if words:
            calls.append(_call("look_up", topic=max(words, key=len)[:60]))
    return calls


def _call(name: str, **arguments: Any) -> CallTool:
    return CallTool(name, arguments, pace=_ARGUMENTS_PAUSE)


def _arithmetic(prompt: str) -> str:
    """The longest piece of arithmetic in a text; empty where there is none."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", prompt)
    text = re.sub(r"(?<=\d)\s*%\s+of\b", " / 100 *", text)
    for words, sign in (("times|×", "*"), ("divided by|÷", "/"), ("plus", "+"), ("minus|−", "-"), (r"\^", "**")):  # noqa: RUF001
        text = re.sub(rf"\s*(?:{words})\s*", f" {sign} ", text)
    found = ""
    for match in re.finditer(r"[-(]*\d[\d.\s()+*/%-]*", text):
        piece = " ".join(match.group().rstrip(" .+-*/%(").split())
        if re.search(r"\d[\s)]*[+*/%-]", piece) and len(piece) > len(found) and _is_arithmetic(piece):
            found = piece
    return found


def _is_arithmetic(expression: str) -> bool:
    try:
        calculate(expression)
    except ZeroDivisionError:
        return True
    except ValueError:
        return False
    return True


def _report(conversation: Conversation) -> str:
    """The answer that the results of the last calls lead to."""
    arguments = {call["call_id"]: call["arguments"] for call in conversation[-2].get("calls", ())}
    results: Sequence[Mapping[str, Any]] = conversation[-1]["content"]
    lines = [_sentence(result, arguments.get(result["call_id"], {})) for result in results]
    head = "Here is what came back:\n\n" if len(lines) > 1 else ""
    body = "\n".join(f"- {line}" for line in lines) if len(lines) > 1 else lines[0]
    return f"{head}{body}\n\nI am the demo: I answer without a key or a network, and the same way every time."


def _sentence(result: Mapping[str, Any], arguments: Any) -> str:
    name, output = result["name"], result["output"]
    given = arguments if isinstance(arguments, Mapping) else {}
    if result["error"] is not None:
        return f"`{name}` failed. It said: {result['error']}"
    if name == calculator.name:
        value = f"{output:,.10g}" if isinstance(output, float) else f"{output:,}"
        return f"`{given.get('expression')}` is **{value}**."
    if name == clock.name:
        return f"The clock says **{output}** ({given.get('zone', 'UTC')})."
    if name == look_up.name:
        return f"In the library I read {output['pages']} pages: **{output['note']}**."
    return f"`{name}` came back with {output}."


def _retried() -> Iterator[Said]:
    return _spoken(
        "That took **two attempts**. The first was answered with HTTP 429, and asked to wait for "
        f"{_ASKED_TO_WAIT:g} seconds. Nothing of an answer had come by then, so that the request could go out again."
    )


def _plain_answer(prompt: str) -> str:
    return f"You said: {prompt.strip()[:200]}\n\nI am the demo, and have no tool for it. Try one of the suggestions."


def _long(prompt: str) -> Iterator[Said]:
    asked = re.search(r"([\d,]+) characters", prompt)
    length = min(int(asked.group(1).replace(",", "") or 0), _LONG_MOST) if asked else _LONG_DEFAULT
    yield from _thought("A long answer is asked for.")
    text = ""
    number = 0
    while len(text) < length:
        number += 1
        text += (
            f"## Part {number}\n\nThis is paragraph {number} of a long answer. It streams in pieces; **each piece** "
            "is added to what is there already; nothing is drawn twice. Scroll up while it comes: the page stays where "
            "you are reading.\n\n"
        )
        if number % 4 == 0:
            text += f"```python\nfor piece in part({number}):\n    print(piece, end='')\n```\n\n"
    text = text[:length]
    for start in range(0, len(text), _LONG_PIECE):
        yield text[start : start + _LONG_PIECE]
        yield Wait(0.02)


def _thought(text: str) -> Iterator[Said]:
    for word in re.findall(r"\S+\s*", text):
        yield Think(word)
        yield Wait(_REASONING_PAUSE)


def _spoken(text: str) -> Iterator[Said]:
    for word in re.findall(r"\s*\S+\s*", text):
        yield word
        yield Wait(_WORD_PAUSE)


def _text_of(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, default=str)
