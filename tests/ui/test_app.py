"""Turns over HTTP and WebSocket: a real server on loopback, real clients."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
import websockets
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from rxloop.errors import ConfigurationError, ServerError
from rxloop.merging import merge_adjacent
from rxloop.testing import CallTool, ScriptedAdapter, check_grammar
from rxloop.testing.scripted_adapter import Said
from rxloop.tools import tool
from rxloop.turn import Turn
from rxloop.ui.app import turn_app
from rxloop.ui.bus import MemoryBus
from rxloop.ui.entry import stream_event_from_dict
from rxloop.ui.threads import MemoryThreads
from rxloop.ui.turn_request import TurnRequest
from rxloop.ui.worker import run_turn
from tests.providers.anthropic import AnthropicServer
from tests.providers.anthropic import text as text_block
from tests.turns import NO_RETRY, connected
from tests.ui import grammar
from tests.ui.grammar import check_ui_messages
from tests.ui.serving import Client, chat_body, frames, run_body, serving, until

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(30)]


def check_agui(events: list[Any], thread_id: str = "t1") -> None:
    grammar.check_agui(events, thread_id=thread_id, run_id="r1")


class Turns:
    """Makes scripted turns, and holds those in their middle that call the tool `wait`."""

    def __init__(self, *steps: list[Said]) -> None:
        self.steps = steps or (["Hel", "lo"],)
        self.entered = asyncio.Event()
        self.go = asyncio.Event()
        self.asked: list[TurnRequest] = []
        self.requests: list[Any] = []

        @tool
        async def wait() -> str:
            """Wait."""
            self.entered.set()
            await self.go.wait()
            return "gone"

        self.tool = wait

    def make(self, request: TurnRequest) -> Turn:
        self.asked.append(request)
        adapter = ScriptedAdapter(*self.steps)
        self.requests.append(adapter.requests)
        return Turn(adapter, request.prompt, conversation=request.conversation, tools=[self.tool], retry=NO_RETRY)


def waiting() -> Turns:
    return Turns(["be", "fore", CallTool("wait")], ["af", "ter"])


def types(found: list[Any]) -> list[str]:
    return [data["type"] if isinstance(data, dict) else data for _, data in found]


def said(found: list[Any]) -> str:
    return "".join(data["text"] for _, data in found if data["type"] == "text_delta")


def error_of(response: httpx2.Response) -> tuple[int, str, str]:
    error = response.json()["error"]
    assert response.headers["content-type"] == "application/json"
    return response.status_code, error["code"], error["message"]


# starting


async def test_a_post_is_answered_with_the_turn_as_ag_ui() -> None:
    turns = Turns()
    async with serving(turn_app(turns.make)) as client:
        response = await client.post(run_body("hey"))
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert "no-cache" in response.headers["cache-control"]
        assert re.fullmatch(r"turn_[0-9a-f]{32}", response.headers["x-turn-id"])
        found = frames(response.text)
        check_agui([data for _, data in found])
        assert found[0][1]["threadId"] == "t1"
        assert found[0][1]["runId"] == "r1"
        assert "".join(data.get("delta", "") for _, data in found) == "Hello"
        assert turns.asked[0].prompt == "hey"
        assert turns.asked[0].input["runId"] == "r1"


async def test_the_format_rxloop_is_the_events_themselves() -> None:
    async with serving(turn_app(Turns().make)) as client:
        response = await client.post(params={"format": "rxloop"})
        events = [stream_event_from_dict(data) for _, data in frames(response.text)]
        check_grammar(events)
        assert events[0].turn_id == response.headers["x-turn-id"]
        assert said(frames(response.text)) == "Hello"


async def test_the_format_vercel_serves_use_chat() -> None:
    turns = Turns()
    async with serving(turn_app(turns.make)) as client:
        response = await client.post(chat_body("hey", "chat-1"), params={"format": "vercel"})
        assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"
        found = frames(response.text)
        assert found[-1] == (None, "[DONE]")
        check_ui_messages([data for _, data in found[:-1]])
        assert (turns.asked[0].thread_id, turns.asked[0].prompt) == ("chat-1", "hey")
        # it takes what AG-UI's clients send, too
        assert (await client.post(run_body(), params={"format": "vercel"})).status_code == 200


async def test_use_chat_may_try_again_what_was_refused_and_nothing_else() -> None:
    turns = waiting()
    app = turn_app(turns.make, max_turns=1)
    async with serving(app) as client:
        turn_id = await client.begin(run_body(thread="other"))
        vercel = {"format": "vercel"}
        assert (await client.post(chat_body("hey"), params=vercel)).status_code == 429
        turns.go.set()
        await client.watch(turn_id)
        again = chat_body("hey", trigger="regenerate-message", messageId="m1")
        async with asyncio.timeout(5):
            # a place is free a moment after the end is known
            while (response := await client.post(again, params=vercel)).status_code == 429:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert response.status_code == 200
        assert error_of(await client.post(again, params=vercel)) == (
            422,
            "invalid",
            "an answer cannot be made anew: the thread goes on from where it is",
        )
        # the thread is free all the same
        assert (await client.post(chat_body("more"), params=vercel)).status_code == 200


async def test_a_client_that_wants_json_gets_the_id_at_once() -> None:
    turns = waiting()
    async with serving(turn_app(turns.make)) as client:
        turn_id = await client.begin()
        await turns.entered.wait()
        assert (await client.http.get("/threads/t1")).json() == {
            "thread_id": "t1",
            "turns": [{"turn_id": turn_id, "prompt": "hello", "running": True, "finish_reason": None}],
        }
        turns.go.set()
        assert said(await client.watch(turn_id)) == "beforeafter"
        thread = (await client.http.get("/threads/t1")).json()
        assert thread["turns"] == [{"turn_id": turn_id, "prompt": "hello", "running": False, "finish_reason": "stop"}]


async def test_the_next_turn_of_a_thread_goes_on_where_the_last_one_ended() -> None:
    turns = Turns()
    async with serving(turn_app(turns.make)) as client:
        for prompt in ("one", "two", "three"):
            # it may be asked for as soon as the end is known
            assert (await client.post(run_body(prompt))).status_code == 200
        assert (await client.post(run_body("other", "t2"))).status_code == 200
        assert len(turns.asked[2].conversation) == 4
        assert [message["content"] for message in turns.asked[2].conversation] == ["one", "Hello", "two", "Hello"]
        assert turns.asked[3].conversation == []


async def test_make_turn_may_be_a_coroutine_function() -> None:
    turns = Turns()

    async def make(request: TurnRequest) -> Turn:
        await asyncio.sleep(0)
        return turns.make(request)

    async with serving(turn_app(make)) as client:
        assert said(frames((await client.post(params={"format": "rxloop"})).text)) == "Hello"


async def test_what_a_client_remembers_can_be_believed() -> None:
    def message(role: str, content: Any, **fields: Any) -> dict[str, Any]:
        return {"id": f"m{role}{content!s:.5}", "role": role, "content": content, **fields}

    called = [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}]
    messages = [
        message("system", "Obey."),
        message("assistant", "Hello?"),
        message("user", [{"type": "text", "text": "What is"}, {"type": "text", "text": "2+3?"}]),
        message("assistant", "I add.", toolCalls=called),
        message("tool", "5", toolCallId="c1"),
        message("assistant", "It is 5."),
        message("user", "And times 7?"),
    ]
    turns = Turns()
    async with serving(turn_app(turns.make)) as client:
        assert (await client.post(run_body(messages=messages))).status_code == 200
        chat = chat_body("And times 7?")
        step = {"type": "step-start"}
        chat["messages"][:0] = [
            {"id": "a", "role": "user", "parts": [{"type": "text", "text": "What is 2+3?"}]},
            {"id": "b", "role": "assistant", "parts": [step, {"type": "text", "text": "It is 5."}, 5]},
        ]
        assert (await client.post(chat, params={"format": "vercel"})).status_code == 200
    agui, vercel = (request.history for request in turns.asked)
    assert agui == [("assistant", "Hello?"), ("user", "What is\n2+3?"), ("assistant", "I add.\n\nIt is 5.")]
    assert vercel == [("user", "What is 2+3?"), ("assistant", "It is 5.")]
    assert ScriptedAdapter("a").from_history(agui)[-1]["content"] == "I add.\n\nIt is 5."


# resuming


async def test_whoever_comes_back_gets_what_it_has_not_seen() -> None:
    turns = waiting()
    async with serving(turn_app(turns.make)) as client:
        turn_id = await client.begin()
        seen = []
        async with client.watching(turn_id) as live:
            async for frame in live:
                seen.append(frame)
                if frame[1]["type"] == "tool_started":
                    break
        turns.go.set()
        rest = await client.watch(turn_id, headers={"last-event-id": seen[-1][0]})
        assert said(seen + rest) == "beforeafter"
        everything = await client.watch(turn_id)
        assert [identifier for identifier, _ in seen + rest] == [identifier for identifier, _ in everything]
        assert await client.watch(turn_id, params={"after": seen[2][0]}) == everything[3:]


@pytest.mark.parametrize("form", ["agui", "vercel", "rxloop"])
async def test_it_resumes_after_every_single_frame(form: str) -> None:
    turns = Turns(["a", "b", CallTool("wait")], ["c"])
    turns.go.set()
    async with serving(turn_app(turns.make)) as client:
        turn_id = await client.begin()
        everything = await client.watch(turn_id, form)
        # every process that reads the bus makes the same frames
        assert await client.watch(turn_id, form) == everything
        with_ids = [frame for frame in everything if frame[0] is not None]
        for place, (identifier, _) in enumerate(with_ids[:-1]):
            assert await client.watch(turn_id, form, headers={"last-event-id": identifier}) == everything[place + 1 :]
        last = await client.http.get(
            f"/turns/{turn_id}/events", params={"format": form}, headers={"last-event-id": with_ids[-1][0]}
        )
        assert last.status_code == 204


async def test_a_browsers_event_source_is_told_when_to_come_back_and_when_not() -> None:
    async with serving(turn_app(Turns().make)) as client:
        response = await client.post(params={"format": "rxloop"})
        assert response.text.startswith("retry: 1000\n\n")


async def test_a_threads_running_turn_can_be_found() -> None:
    turns = waiting()
    async with serving(turn_app(turns.make)) as client:
        assert (await client.http.get("/threads/t1/stream")).status_code == 204
        turn_id = await client.begin()
        await turns.entered.wait()
        async with client.http.stream("GET", "/threads/t1/stream", params={"format": "vercel"}) as response:
            turns.go.set()
            found = frames((await response.aread()).decode())
        assert (found[0][1]["type"], found[0][1]["messageId"]) == ("start", turn_id)
        assert found[-1][1] == "[DONE]"
        assert (await client.http.get("/threads/t1/stream")).status_code == 204


# many watchers


async def test_many_watch_one_turn_and_none_harms_it() -> None:
    turns = waiting()
    async with serving(turn_app(turns.make)) as client:
        turn_id = await client.begin()
        await turns.entered.wait()
        watching = [asyncio.ensure_future(client.watch(turn_id, form)) for form in ("agui", "vercel", "rxloop") * 10]
        for _ in range(3):
            async with client.watching(turn_id) as live:
                async for _frame in live:
                    break
        await asyncio.sleep(0)
        turns.go.set()
        for place, found in enumerate(await asyncio.gather(*watching)):
            assert found == await client.watch(turn_id, ("agui", "vercel", "rxloop")[place % 3])
        assert len(turns.asked) == 1


async def test_a_watcher_that_stops_reading_holds_up_nobody() -> None:
    with AnthropicServer() as server:
        server.reply(text_block("x" * 400_000, pieces=2000))
        async with connected(server) as adapter:

            def make(request: TurnRequest) -> Turn:
                return Turn(adapter, request.prompt, retry=NO_RETRY)

            async with serving(turn_app(make)) as client:
                host, port = client.url.removeprefix("http://").split(":")
                turn_id = await client.begin()
                reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
                writer.write(f"GET /turns/{turn_id}/events?format=rxloop HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
                await writer.drain()
                await reader.readline()
                assert len(said(await client.watch(turn_id))) == 400_000
                writer.close()


async def test_heartbeats_keep_a_silent_stream_alive() -> None:
    turns = waiting()
    async with serving(turn_app(turns.make, heartbeat=0.01)) as client:
        turn_id = await client.begin()
        beats = 0
        async with client.http.stream("GET", f"/turns/{turn_id}/events") as response:
            async for line in response.aiter_lines():
                beats += line.startswith(":")
                if beats == 3:
                    turns.go.set()
        assert beats >= 3


# stopping, and leaving


async def test_stop_ends_a_turn_for_everybody() -> None:
    turns = waiting()
    async with serving(turn_app(turns.make)) as client:
        turn_id = await client.begin()
        await turns.entered.wait()
        watching = asyncio.ensure_future(client.watch(turn_id, "agui"))
        await client.stop(turn_id)
        await client.stop(turn_id)
        found = await watching
        check_agui([data for _, data in found])
        assert found[-1][1]["outcome"]["type"] == "cancelled"
        await client.stop(turn_id)
        assert (await client.http.get("/threads/t1")).json()["turns"][0]["finish_reason"] == "aborted"
        # the thread goes on from there
        turns.go.set()
        await client.post(run_body("again"))
        assert turns.asked[1].conversation[0]["content"] == "hello"


async def test_a_turn_goes_on_when_nobody_watches() -> None:
    turns = waiting()
    async with serving(turn_app(turns.make)) as client:
        turn_id = await client.begin()
        async with client.watching(turn_id) as live:
            await anext(live)
        turns.go.set()
        assert types(await client.watch(turn_id))[-1] == "turn_finished"


@pytest.mark.parametrize("seconds", [0, 0.02])
async def test_it_stops_when_its_last_watcher_has_left_if_it_is_told_to(seconds: float) -> None:
    turns = waiting()
    async with serving(turn_app(turns.make, stop_unwatched_after=seconds)) as client:
        turn_id = await client.begin()
        async with client.watching(turn_id, "agui") as first:
            async with client.watching(turn_id) as second:
                await anext(second)
                await anext(first)
            await turns.entered.wait()
            thread = (await client.http.get("/threads/t1")).json()
            assert thread["turns"][0]["running"] is True
        await until(turns.asked.__len__)
        found = await _ended(client, turn_id)
        assert found["finish_reason"] == "aborted"


async def _ended(client: Client, turn_id: str) -> Any:
    """The turn's entry in its thread once it has ended; asked for without watching it."""
    async with asyncio.timeout(5):
        while True:
            thread = (await client.http.get("/threads/t1")).json()
            if not thread["turns"][0]["running"]:
                return thread["turns"][0]
            await asyncio.sleep(0.005)


async def test_who_comes_back_in_time_keeps_it_going() -> None:
    turns = waiting()
    async with serving(turn_app(turns.make, stop_unwatched_after=5)) as client:
        turn_id = await client.begin()
        for _ in range(3):
            async with client.watching(turn_id) as live:
                await anext(live)
        watching = asyncio.ensure_future(client.watch(turn_id))
        turns.go.set()
        assert said(await watching) == "beforeafter"


async def test_a_failure_reaches_the_watchers_without_what_is_nobodys_to_see() -> None:
    async with serving(turn_app(Turns(["a", ServerError("the provider broke", status=500)]).make)) as client:
        found = frames((await client.post(run_body(thread="a"))).text)
        check_agui([data for _, data in found], "a")
        assert found[-1][1]["type"] == "RUN_ERROR"
        assert "the provider broke" in found[-1][1]["message"]
    async with serving(turn_app(Turns(["a", LookupError("a path and a password")]).make)) as client:
        response = await client.post()
        assert frames(response.text)[-1][1]["type"] == "RUN_ERROR"
        assert "password" not in response.text


async def test_the_apps_end_stops_its_turns() -> None:
    turns = waiting()
    bus, threads = MemoryBus(), MemoryThreads()
    async with serving(turn_app(turns.make, bus=bus, threads=threads)) as client:
        turn_id = await client.begin()
        await turns.entered.wait()
    thread = await threads.load("/t1")
    assert thread is not None
    assert thread.turns[0].finish_reason == "aborted"
    assert await threads.claimed_by("/t1") is None
    async with serving(turn_app(turns.make, bus=bus, threads=threads)) as client:
        assert types(await client.watch(turn_id))[-1] == "turn_finished"


# what is refused


def text_with(**parts: Any) -> dict[str, Any]:
    return run_body(messages=[{"id": "m", "role": "user", "content": [parts]}])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "RunAgentInput"),
        ("x", "RunAgentInput"),
        (None, "RunAgentInput"),
        ({}, "threadId"),
        (run_body(threadId=5), "threadId"),
        (run_body(messages=[]), "the last of the messages must be the user's"),
        (run_body(messages=[{"id": "m", "role": "assistant", "content": "x"}]), "must be the user's"),
        (run_body(messages=[{"id": "m", "role": "wizard", "content": "x"}]), "messages.0"),
        (run_body("  "), "must say something"),
        (run_body(thread=""), "the thread's id must be 1 to 200"),
        (run_body(thread="x" * 201), "the thread's id must be 1 to 200"),
        (run_body(thread="a\nb"), "printable"),
        (run_body(thread=".."), "must not be '..'"),
        (run_body(run="x" * 201), "the run's id must be 1 to 200"),
        (run_body(tools=[{"name": "show", "description": "d", "parameters": {}}]), "offers show"),
    ],
)
async def test_a_body_that_is_none_is_refused_with_words(body: Any, message: str) -> None:
    turns = Turns()
    async with serving(turn_app(turns.make)) as client:
        response = await client.http.post(
            "/turns", content=json.dumps(body), headers={"content-type": "application/json"}
        )
        status, code, said_message = error_of(response)
        assert (status, code) == (422, "invalid")
        assert message in said_message
        assert turns.asked == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "a chat's"),
        ({"id": 5, "messages": []}, "a chat's"),
        ({"id": "c", "messages": {}}, "the last of the messages"),
        ({"id": "c", "messages": [{"role": "user", "parts": "x"}]}, "the last of the messages"),
        ({"id": "c", "messages": [{"role": "user", "parts": [{"type": "file"}]}]}, "parts of the type file"),
        ({"id": "c", "messages": [{"role": "user", "parts": [5]}]}, "parts of the type None"),
        (chat_body(messageId="m1"), "cannot be changed"),
        (chat_body(""), "must say something"),
        (chat_body("half \ud800"), "whole characters"),
        ({"id": "c", "messages": [{"role": "user", "parts": [{"type": "\ud800"}]}]}, "parts of the type \ufffd"),
        (
            {"id": "c", "messages": [{"role": "user", "parts": [{"type": "text", "text": None}]}]},
            "a part of it has none",
        ),
    ],
)
async def test_a_chat_that_is_none_is_refused_with_words(body: Any, message: str) -> None:
    async with serving(turn_app(Turns().make)) as client:
        content, kind = json.dumps(body), {"content-type": "application/json"}
        response = await client.http.post("/turns", params={"format": "vercel"}, content=content, headers=kind)
        status, code, said_message = error_of(response)
        assert (status, code) == (422, "invalid")
        assert message in said_message


@pytest.mark.parametrize(
    ("content", "kind", "expected"),
    [
        (b"{", "application/json", (422, "invalid")),
        (b"\xff\xfe", "application/json", (422, "invalid")),
        (b"[" * 100_000, "application/json", (422, "invalid")),
        (b"{}", "text/plain", (415, "invalid")),
        (b"{}", "", (415, "invalid")),
        (b"x" * 2_000_000, "application/json", (413, "too_large")),
    ],
)
async def test_a_body_that_cannot_be_read_is_refused(content: bytes, kind: str, expected: tuple[int, str]) -> None:
    async with serving(turn_app(Turns().make)) as client:
        response = await client.http.post("/turns", content=content, headers={"content-type": kind})
        assert error_of(response)[:2] == expected


async def test_a_body_without_a_length_is_bounded_too() -> None:
    async def endless() -> Any:
        for _ in range(100):
            yield b"x" * 100

    async with serving(turn_app(Turns().make, max_body=1000)) as client:
        response = await client.http.post("/turns", content=endless(), headers={"content-type": "application/json"})
        assert error_of(response)[:2] == (413, "too_large")


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("POST", "/turns?format=xml", (422, "invalid")),
        ("GET", "/turns/nobody/events", (404, "unknown")),
        ("GET", "/turns/nobody/events?format=xml", (404, "unknown")),
        ("POST", "/turns/nobody/stop", (404, "unknown")),
        ("GET", "/threads/nobody", (404, "unknown")),
        ("GET", "/nothing", (404, "unknown")),
        ("GET", "/turns", (405, "method")),
        ("PUT", "/turns", (405, "method")),
        ("OPTIONS", "/turns/nobody/events", (405, "method")),
        ("GET", "/turns/nobody/stop", (405, "method")),
    ],
)
async def test_what_is_not_there_is_said(method: str, path: str, expected: tuple[int, str]) -> None:
    async with serving(turn_app(Turns().make)) as client:
        assert error_of(await client.http.request(method, path, json=run_body()))[:2] == expected


async def test_a_405_says_what_is_allowed() -> None:
    async with serving(turn_app(Turns().make)) as client:
        assert (await client.http.put("/turns")).headers["allow"] == "POST"


async def test_a_head_of_a_stream_does_not_wait_for_its_end() -> None:
    turns = waiting()
    async with serving(turn_app(turns.make)) as client:
        turn_id = await client.begin()
        async with asyncio.timeout(5):
            response = await client.http.head(f"/turns/{turn_id}/events")
            # the connection is free for the next request
            assert (await client.http.get("/threads/t1")).status_code == 200
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        turns.go.set()


@pytest.mark.parametrize("thread", ["a/b", "a//b", "/a", "a/", "a b?c#d%2F", "ü/😀"])
async def test_a_thread_is_found_by_whatever_name_it_has(thread: str) -> None:
    turns = waiting()
    async with serving(turn_app(turns.make)) as client:
        turn_id = await client.begin(run_body(thread=thread))
        path = f"/threads/{quote(thread, safe='')}"
        found = (await client.http.get(path)).json()
        assert (found["thread_id"], found["turns"][0]["turn_id"]) == (thread, turn_id)
        turns.go.set()
        stream = await client.http.get(f"{path}/stream", params={"format": "rxloop"})
        assert said(frames(stream.text)) == "beforeafter"


async def test_a_client_that_leaves_while_it_asks_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    app = turn_app(Turns().make)
    parts = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(parts)

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/turns", "headers": headers, "query_string": b""}
    await app(scope, receive, send)
    assert sent[0]["status"] == 400
    assert not caplog.records


@pytest.mark.parametrize("fault", [LookupError("a secret"), b"a secret"])
async def test_an_authentication_that_fails_says_nothing_of_it(fault: Any) -> None:
    def authenticate(connection: HTTPConnection) -> str | None:
        if isinstance(fault, Exception):
            raise fault
        return fault  # type: ignore[no-any-return]

    async with serving(turn_app(Turns().make, authenticate=authenticate)) as client:
        response = await client.post()
        assert error_of(response) == (500, "internal", "the request could not be served")


async def test_a_stream_that_cannot_be_read_is_heard_of(caplog: pytest.LogCaptureFixture) -> None:
    class Unreadable(MemoryBus):
        def subscribe(self, stream: str, after: int = 0) -> Any:
            raise LookupError("something else is in it")

    async with serving(turn_app(Turns().make, bus=Unreadable())) as client:
        assert frames((await client.post()).text) == []
        assert "could not be read" in caplog.text


@pytest.mark.parametrize("after", ["x", "1-", "-1", "1-x", "1-2-3", "²-0", "9" * 30])
async def test_an_id_that_is_none_is_refused(after: str) -> None:
    async with serving(turn_app(Turns().make)) as client:
        turn_id = await client.begin()
        response = await client.http.get(f"/turns/{turn_id}/events", params={"after": after})
        assert error_of(response)[:2] == (422, "invalid")
        await client.watch(turn_id)


async def test_a_thread_has_one_turn_at_a_time() -> None:
    turns = waiting()
    async with serving(turn_app(turns.make)) as client:
        turn_id = await client.begin()
        assert error_of(await client.post())[:2] == (409, "running")
        await client.stop(turn_id)
        await client.watch(turn_id)
        turns.go.set()
        assert (await client.post()).status_code == 200


async def test_too_many_turns_are_told_to_come_back() -> None:
    turns = waiting()
    async with serving(turn_app(turns.make, max_turns=2)) as client:
        begun = [await client.begin(run_body(thread=f"t{number}")) for number in range(2)]
        response = await client.post(run_body(thread="t9"))
        assert error_of(response)[:2] == (429, "busy")
        assert int(response.headers["retry-after"]) >= 1
        turns.go.set()
        for turn_id in begun:
            await client.watch(turn_id)
        async with asyncio.timeout(5):
            # a place is free a moment after the end is known
            while (await client.post(run_body(thread="t9"))).status_code == 429:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    "make",
    [
        lambda request: (_ for _ in ()).throw(LookupError("a secret")),
        lambda request: "no turn",
        lambda request: Turn(ScriptedAdapter(["a"]), request.prompt, max_steps=0),
    ],
)
async def test_a_turn_that_cannot_be_made_is_no_traceback(
    make: Callable[[TurnRequest], Any], caplog: pytest.LogCaptureFixture
) -> None:
    made = make
    fail = True

    def sometimes(request: TurnRequest) -> Any:
        return made(request) if fail else Turns().make(request)

    async with serving(turn_app(sometimes)) as client:
        response = await client.post()
        assert error_of(response) == (500, "internal", "the turn could not be made")
        assert "secret" not in response.text
        assert "could not be made" in caplog.text
        fail = False
        assert (await client.post()).status_code == 200


# who may ask


async def test_users_see_nothing_of_one_another() -> None:
    turns = waiting()

    async def authenticate(connection: HTTPConnection) -> str | None:
        token = connection.headers.get("authorization")
        if token == "Bearer banned":
            raise HTTPException(403, "go away")
        return None if token is None else token.removeprefix("Bearer ")

    app = turn_app(turns.make, authenticate=authenticate)
    async with serving(app) as client:
        for path in ("/turns/x/events", "/threads/x", "/threads/x/stream"):
            assert error_of(await client.http.get(path))[:2] == (401, "unauthenticated")
        assert error_of(await client.post())[:2] == (401, "unauthenticated")
        assert turns.asked == []
        banned = await client.post(headers={"authorization": "Bearer banned"})
        assert error_of(banned) == (403, "forbidden", "go away")
        mine, other = {"authorization": "Bearer me"}, {"authorization": "Bearer me/t1"}
        turn_id = await client.begin(headers=mine)
        assert turns.asked[0].user == "me"
        for path in (f"/turns/{turn_id}/events", "/threads/t1"):
            assert error_of(await client.http.get(path, headers=other))[:2] == (404, "unknown")
        assert (await client.http.post(f"/turns/{turn_id}/stop", headers=other)).status_code == 404
        assert (await client.http.get("/threads/t1/stream", headers=other)).status_code == 204
        # the same name of a thread is another thread
        another = await client.begin(headers=other)
        turns.go.set()
        assert said(await client.watch(turn_id, headers=mine)) == "beforeafter"
        assert said(await client.watch(another, headers=other)) == "beforeafter"


async def test_pages_of_other_sites_are_kept_out_unless_they_are_named() -> None:
    async with serving(turn_app(Turns().make)) as client:
        evil = {"origin": "https://evil.example"}
        assert (await client.post(headers=evil)).status_code == 403
        assert (await client.http.get("/threads/t1", headers=evil)).status_code == 403
        assert (await client.post(headers={"host": "evil.example"})).status_code == 403
        assert (await client.post(headers={"origin": client.url})).status_code == 200
        assert "access-control-allow-origin" not in (await client.post(headers={"origin": client.url})).headers
    app = turn_app(Turns().make, origins=["https://app.example"], hosts=["127.0.0.1"])
    async with serving(app) as client:
        friend = {"origin": "https://app.example"}
        response = await client.post(headers=friend)
        assert response.headers["access-control-allow-origin"] == "https://app.example"
        assert "x-turn-id" in response.headers["access-control-expose-headers"]
        asked = {**friend, "access-control-request-method": "POST", "access-control-request-headers": "content-type"}
        assert (await client.http.options("/turns", headers=asked)).status_code == 200
        assert (await client.post(headers={"origin": "https://evil.example"})).status_code == 403


async def test_any_host_may_be_asked_if_it_is_said() -> None:
    async with serving(turn_app(Turns().make, hosts=["*"])) as client:
        assert (await client.post(headers={"host": "turns.example"})).status_code == 200
    async with serving(turn_app(Turns().make, hosts=["::1", "Turns.example"])) as client:
        for host in ("turns.example", "TURNS.example:80", "[::1]:8000"):
            assert (await client.post(headers={"host": host})).status_code == 200
        assert (await client.post()).status_code == 403


async def test_with_authentication_any_host_may_be_asked() -> None:
    async with serving(turn_app(Turns().make, authenticate=lambda connection: "me")) as client:
        assert (await client.post(headers={"host": "turns.example"})).status_code == 200


# the WebSocket


async def test_a_websocket_has_the_same_events() -> None:
    turns = waiting()
    async with serving(turn_app(turns.make)) as client:
        turn_id = await client.begin()
        address = f"{client.url.replace('http', 'ws')}/turns/{turn_id}/socket"
        async with websockets.connect(f"{address}?format=rxloop", proxy=None) as socket:
            first = json.loads(await socket.recv())
            assert first["event"]["type"] == "turn_started"
            turns.go.set()
            found = [first] + [json.loads(message) async for message in socket]
            assert socket.close_code == 1000
        assert [(item["id"], item["event"]) for item in found] == await client.watch(turn_id)
        async with websockets.connect(f"{address}?format=agui&after={found[3]['id']}", proxy=None) as socket:
            resumed = [json.loads(message)["id"] async for message in socket]
        everything = await client.watch(turn_id, "agui")
        last = tuple(int(part) for part in found[3]["id"].split("-"))
        assert resumed == [
            identifier
            for identifier, _ in everything
            if identifier is not None and tuple(int(part) for part in identifier.split("-")) > last
        ]


async def test_a_websocket_that_leaves_harms_nobody() -> None:
    turns = waiting()
    async with serving(turn_app(turns.make, stop_unwatched_after=5)) as client:
        turn_id = await client.begin()
        address = f"{client.url.replace('http', 'ws')}/turns/{turn_id}/socket"
        for _ in range(3):
            async with websockets.connect(address, proxy=None) as socket:
                await socket.send("what a client says is not listened to")
                await socket.recv()
        watching = asyncio.ensure_future(client.watch(turn_id))
        await turns.entered.wait()
        turns.go.set()
        assert said(await watching) == "beforeafter"


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/turns/nobody/socket", {}, 404),
        ("/turns/{}/socket?format=xml", {}, 422),
        ("/turns/{}/socket?after=x", {}, 422),
        ("/turns/{}/socket", {"origin": "https://evil.example"}, 403),
    ],
)
async def test_a_websocket_is_refused_with_a_status(path: str, headers: dict[str, str], status: int) -> None:
    async with serving(turn_app(Turns().make)) as client:
        turn_id = await client.begin()
        address = client.url.replace("http", "ws") + path.format(turn_id)
        with pytest.raises(websockets.InvalidStatus) as refused:
            await websockets.connect(address, additional_headers=headers, proxy=None)
        assert refused.value.response.status_code == status
        await client.watch(turn_id)


# in another app, and with workers


async def test_it_can_be_mounted_in_a_fastapi_app() -> None:
    fastapi = pytest.importorskip("fastapi", reason="install fastapi, as the group dev does")
    turns = waiting()
    app = fastapi.FastAPI()
    agent = turn_app(turns.make)
    app.mount("/agent", agent)

    @app.get("/health")
    async def health() -> str:
        return "ok"

    async with serving(app) as client:
        assert (await client.http.get("/health")).json() == "ok"
        response = await client.http.post("/agent/turns", json=run_body(), headers={"accept": "application/json"})
        turn_id = response.json()["turn_id"]
        await turns.entered.wait()
        await agent.state.close()
        assert error_of(await client.http.post("/agent/turns", json=run_body(thread="t2")))[:2] == (503, "unavailable")
        response = await client.http.get(f"/agent/turns/{turn_id}/events", params={"format": "rxloop"})
        assert frames(response.text)[-1][1]["finish_reason"] == "aborted"


async def test_workers_run_the_turns_that_web_processes_serve() -> None:
    turns = waiting()
    bus, threads = MemoryBus(), MemoryThreads()
    jobs: asyncio.Queue[str] = asyncio.Queue()

    async def hand_over(request: TurnRequest) -> None:
        jobs.put_nowait(json.dumps(request.to_dict()))

    async def work() -> None:
        while True:
            request = TurnRequest.from_dict(json.loads(await jobs.get()))
            await run_turn(request, turns.make, bus=bus, threads=threads)

    web = [turn_app(bus=bus, threads=threads, hand_over=hand_over) for _ in range(2)]
    async with serving(web[0]) as first, serving(web[1]) as second:
        turn_id = await first.begin()
        # it can be watched and found before a worker has taken it
        watching = asyncio.ensure_future(second.watch(turn_id, "agui"))
        assert (await second.http.get("/threads/t1")).json()["turns"][0]["running"] is True
        assert error_of(await second.post())[:2] == (409, "running")
        worker = asyncio.create_task(work())
        await turns.entered.wait()
        await second.stop(turn_id)
        found = await watching
        assert found[0][1]["threadId"] == "t1"
        assert found[-1][1]["outcome"]["type"] == "cancelled"
        turns.go.set()
        assert (await second.post()).status_code == 200
        assert turns.asked[1].conversation[0]["content"] == "hello"
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


async def test_a_turn_that_a_worker_cannot_make_fails_for_its_watchers() -> None:
    bus, threads = MemoryBus(), MemoryThreads()
    tasks = []

    def make(request: TurnRequest) -> Turn:
        raise ConfigurationError("max_steps must be >= 1, but got 0")

    async def hand_over(request: TurnRequest) -> None:
        tasks.append(asyncio.create_task(run_turn(request, make, bus=bus, threads=threads)))

    async with serving(turn_app(bus=bus, threads=threads, hand_over=hand_over)) as client:
        found = frames((await client.post()).text)
        check_agui([data for _, data in found])
        assert found[-1][1]["type"] == "RUN_ERROR"
        with pytest.raises(ConfigurationError):
            await tasks[0]
        assert await threads.claimed_by("/t1") is None


# values


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"make_turn": 5}, "make_turn must be a function"),
        ({"authenticate": "x"}, "authenticate must be a function"),
        ({"make_turn": None, "hand_over": "x"}, "hand_over must be a function"),
        ({"make_turn": None}, "either make_turn or hand_over"),
        ({"hand_over": Turns}, "either make_turn or hand_over"),
        ({"max_turns": 0}, "max_turns must be"),
        ({"max_turns": None}, "max_turns must be"),
        ({"max_body": 1.5}, "max_body must be"),
        ({"heartbeat": 0}, "heartbeat must be"),
        ({"stop_unwatched_after": -1}, "stop_unwatched_after must be"),
        ({"hosts": "localhost"}, "hosts must be a list"),
        ({"hosts": ["https://turns.example"]}, "hosts must be names or addresses without scheme and port"),
        ({"hosts": ["turns.example:80"]}, "hosts must be names"),
        ({"hosts": [5]}, "hosts must be names"),
        ({"origins": "https://app.example"}, "origins must be a list"),
        ({"origins": ["app.example"]}, "origins must look like"),
        ({"origins": ["https://app.example/"]}, "origins must look like"),
    ],
)
async def test_its_values_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        turn_app(**{"make_turn": Turns().make, **options})


async def test_what_it_publishes_is_merged_only_where_it_may_be() -> None:
    """A slow bus: deltas that came meanwhile are one entry, and the text is the same."""

    class SlowBus(MemoryBus):
        async def publish(self, stream: str, entries: Any) -> None:
            await asyncio.sleep(0.01)
            await super().publish(stream, entries)

    with AnthropicServer() as server:
        server.reply(text_block("xy" * 500, pieces=500))
        async with connected(server) as adapter:
            app = turn_app(lambda request: Turn(adapter, request.prompt, retry=NO_RETRY), bus=SlowBus())
            async with serving(app) as client:
                found = frames((await client.post(params={"format": "rxloop"})).text)
                assert said(found) == "xy" * 500
                deltas = [data for _, data in found if data["type"] == "text_delta"]
                assert len(deltas) < 250
                assert len(merge_adjacent(enumerate(deltas))) == len(deltas)
