from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import h11
import httpx2
import pytest

from tests.providers.http import (
    Action,
    Close,
    Drop,
    Hold,
    LocalServer,
    Reply,
    Request,
    Stall,
    Wait,
    split_at,
    split_every,
)

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with LocalServer() as running:
        yield running


@pytest.fixture
def client(server: LocalServer) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, trust_env=False) as running:
        yield running


def connect(server: LocalServer, receive_buffer: int | None = None) -> socket.socket:
    raw = socket.socket()
    if receive_buffer is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    raw.settimeout(5)
    raw.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
    return raw


def read_all(raw: socket.socket) -> bytes:
    return b"".join(iter(lambda: raw.recv(65536), b""))


def test_scripted_replies_come_in_order_over_one_connection(server: LocalServer, client: httpx2.Client) -> None:
    server.script(Reply.json({"n": 1}), Reply(201, {"x-kind": "stream"}, [b"a", b"", b"b"]))
    first, second = client.get("/one?q=1"), client.post("/two", json={"k": "v"})
    assert (first.status_code, first.json()) == (200, {"n": 1})
    assert (second.status_code, second.content, second.headers["x-kind"]) == (201, b"ab", "stream")
    assert second.headers["transfer-encoding"] == "chunked"
    assert [(r.method, r.path, r.query) for r in server.requests] == [
        ("GET", "/one", "q=1"),
        ("POST", "/two", ""),
    ]
    assert server.requests[1].json == {"k": "v"}
    server.wait_idle()
    assert server.open_connections == 1
    assert all(exchange.finished and not exchange.client_disconnected for exchange in server.exchanges)


def test_a_request_body_may_be_chunked_and_ask_for_a_continue(server: LocalServer, client: httpx2.Client) -> None:
    server.script(Reply(body=[b"ok"]))
    reply = client.post("/", content=iter([b"ab", b"cd"]), headers={"Expect": "100-continue", "X-Two": "2"})
    assert reply.content == b"ok"
    assert server.requests[0].body == b"abcd"
    assert server.requests[0].headers["x-two"] == "2"


def test_a_request_without_reply_fails_and_is_recorded(server: LocalServer, client: httpx2.Client) -> None:
    reply = client.get("/lost")
    assert reply.status_code == 500
    assert reply.json() == {"error": "no reply left for GET /lost"}
    assert server.unexpected == server.requests


def test_a_route_answers_when_the_script_is_empty(server: LocalServer, client: httpx2.Client) -> None:
    server.route(lambda request: Reply.json(request.path))
    server.script(Reply.json("script"))
    assert [client.get("/a").json(), client.get("/b").json()] == ["script", "/b"]
    assert server.unexpected == []


def test_a_raising_route_is_raised_on_exit() -> None:
    def broken(request: Request) -> Reply:
        raise LookupError(request.path)

    def run() -> None:
        with LocalServer() as server:
            server.route(broken)
            assert httpx2.get(f"{server.url}/x", trust_env=False).status_code == 500

    with pytest.raises(LookupError, match="/x"):
        run()


@pytest.mark.parametrize("status", [204, 304])
def test_a_reply_that_may_have_no_body_has_none(server: LocalServer, client: httpx2.Client, status: int) -> None:
    server.script(Reply(status, body=[b"dropped"]), Reply.json({}))
    assert client.get("/").content == b""
    assert client.head("/").content == b""


def test_each_bytes_is_one_chunk_and_the_last_brings_the_end(server: LocalServer) -> None:
    server.script(Reply(body=[b"abc", b"de"]))
    with connect(server) as raw:
        raw.sendall(GET.replace(b"host: x", b"host: x\r\nconnection: close"))
        data = read_all(raw)
    assert data.endswith(b"\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
    assert server.exchanges[0].bytes_sent == len(data)


def test_pipelined_requests_are_answered_in_order(server: LocalServer) -> None:
    server.script(Reply.json(1), Reply.json(2))
    with connect(server) as raw:
        raw.sendall(GET + GET.replace(b"host: x", b"host: x\r\nconnection: close"))
        assert [part[-1:] for part in read_all(raw).split(b"HTTP/1.1")[1:]] == [b"1", b"2"]


def test_a_malformed_request_ends_the_connection(server: LocalServer) -> None:
    with connect(server) as raw:
        raw.sendall(b"nonsense\r\n\r\n")
        assert read_all(raw) == b""
    server.wait_closed()
    assert server.requests == []


@pytest.mark.asyncio
async def test_a_hold_waits_for_its_release(server: LocalServer) -> None:
    server.script(Reply(body=[b"one", Hold("gate"), b"two"]))
    async with (
        httpx2.AsyncClient(base_url=server.url, trust_env=False) as client,
        client.stream("GET", "/") as reply,
    ):
        parts = reply.aiter_raw()
        assert await anext(parts) == b"one"
        await server.held("gate")
        assert not server.exchanges[0].finished
        server.release("gate")
        assert await anext(parts) == b"two"
    await server.idle()
    assert server.exchanges[0].finished


def test_a_release_may_come_first_and_a_wait_passes(server: LocalServer, client: httpx2.Client) -> None:
    server.release("gate")
    server.script(Reply(body=[Hold("gate"), Wait(0.001), b"x"], prelude=[Hold("gate")]))
    assert client.get("/").content == b"x"


def test_raw_bytes_may_precede_the_status_line(server: LocalServer, client: httpx2.Client) -> None:
    server.script(Reply(prelude=[b"HTTP/9 nonsense\r\n\r\n"]))
    with pytest.raises(httpx2.RemoteProtocolError):
        client.get("/")


@pytest.mark.parametrize(("fault", "error"), [(Drop(), httpx2.ReadError), (Close(), httpx2.RemoteProtocolError)])
@pytest.mark.parametrize("before_headers", [True, False])
def test_a_broken_connection_is_seen_as_such(
    server: LocalServer, client: httpx2.Client, fault: Action, error: type[Exception], before_headers: bool
) -> None:
    server.script(Reply(prelude=[fault]) if before_headers else Reply(body=[b"x", Hold("gate"), fault, b"y"]))
    got = b""

    def read() -> None:
        nonlocal got
        with client.stream("GET", "/") as reply:
            for part in reply.iter_raw():
                got += part
                server.release("gate")

    with pytest.raises(error):
        read()
    assert got == (b"" if before_headers else b"x")
    server.wait_closed()
    assert server.exchanges[0].finished
    assert not server.exchanges[0].client_disconnected


@pytest.mark.parametrize("pause", [Stall(), Hold("never"), Wait(60)])
@pytest.mark.parametrize("before_headers", [True, False])
def test_a_leaving_client_is_noticed_whatever_the_reply_waits_for(
    server: LocalServer, pause: Action, before_headers: bool
) -> None:
    server.script(Reply(prelude=[pause]) if before_headers else Reply(body=[b"x", pause]))
    with connect(server) as raw:
        raw.sendall(GET)
        server.wait_received(1)
        assert server.open_connections == 1
        if not before_headers:
            assert raw.recv(1) == b"H"
    server.wait_disconnected(0)
    server.wait_closed()
    server.wait_idle()
    assert not server.exchanges[0].finished


def test_a_client_that_leaves_on_the_last_byte_has_not_disconnected(server: LocalServer) -> None:
    server.route(lambda _: Reply(body=[b"x", b"end"]))
    for _ in range(50):
        with connect(server) as raw:
            raw.sendall(GET)
            data = b""
            while not data.endswith(b"0\r\n\r\n"):
                data += raw.recv(65536)
    server.wait_closed()
    assert [exchange.finished for exchange in server.exchanges] == [True] * 50


def test_a_client_that_stops_reading_blocks_the_server(server: LocalServer) -> None:
    size = 8 * 1024 * 1024
    server.script(Reply(body=split_every(bytes(size), 64 * 1024)))
    with connect(server, receive_buffer=16 * 1024) as raw:
        raw.sendall(GET.replace(b"host: x", b"host: x\r\nconnection: close"))
        server.wait_blocked(0)
        exchange = server.exchanges[0]
        assert 0 < exchange.bytes_sent < 1024 * 1024
        assert not exchange.finished
        assert len(read_all(raw)) == exchange.bytes_sent > size
    assert server.exchanges[0].finished
    assert not server.exchanges[0].blocked


@pytest.mark.asyncio
async def test_a_blocked_client_that_leaves_is_noticed(server: LocalServer) -> None:
    server.script(Reply(body=[bytes(8 * 1024 * 1024)]))
    with connect(server, receive_buffer=16 * 1024) as raw:
        raw.sendall(GET)
        await server.blocked(0)
    await server.disconnected(0)
    await server.closed()
    assert not server.exchanges[0].blocked


def test_a_wait_that_is_not_met_says_what_it_waited_for(server: LocalServer) -> None:
    server.script(Reply(body=[Stall()]))
    with connect(server) as raw:
        raw.sendall(GET)
        server.wait_received(1)
        for wait, what in (
            (server.wait_idle, "no request being answered: 1 connections, 1 being answered"),
            (server.wait_closed, "no open connection: 1 connections"),
        ):
            with pytest.raises(AssertionError, match=f"waited 0.01 s for {what}"):
                wait(timeout=0.01)
        with pytest.raises(AssertionError, match="exchange 0 to be disconnected"):
            server.wait_disconnected(0, timeout=0.01)
        with pytest.raises(AssertionError, match="to be blocked"):
            server.wait_blocked(0, timeout=0.01)


@pytest.mark.asyncio
async def test_waiting_leaves_the_callers_loop_free(server: LocalServer) -> None:
    waiting = [
        asyncio.create_task(server.received(1)),
        asyncio.create_task(server.until(lambda: bool(server.unexpected), "a request")),
    ]
    async with httpx2.AsyncClient(base_url=server.url, trust_env=False) as client:
        await client.get("/")
    await asyncio.gather(*waiting)


def test_a_mismatched_content_length_is_the_tests_own_error() -> None:
    def run() -> None:
        with LocalServer() as server:
            server.script(Reply(headers={"content-length": "9"}, body=[b"x"]))
            with pytest.raises(httpx2.RemoteProtocolError):
                httpx2.get(server.url, trust_env=False)

    with pytest.raises(h11.LocalProtocolError, match="Too little data"):
        run()


def test_exit_leaves_no_thread_and_no_descriptor() -> None:
    def descriptors() -> int:
        listing = Path("/proc/self/fd")
        return len(list(listing.iterdir())) if listing.exists() else 0

    before, threads = descriptors(), threading.active_count()
    for pause in (Stall(), Hold("never"), bytes(8 * 1024 * 1024)):
        with LocalServer() as server:
            server.script(Reply(body=[pause]))
            idle, busy = connect(server), connect(server, receive_buffer=16 * 1024)
            busy.sendall(GET)
            server.wait_received(1)
        idle.close()
        busy.close()
        assert server.open_connections == 0
        assert not server.exchanges[0].client_disconnected
        with pytest.raises(AssertionError, match="not running"):
            server.wait_idle()
    assert (descriptors(), threading.active_count()) == (before, threads)


def test_splitting() -> None:
    assert split_every(b"abcde", 2) == [b"ab", b"cd", b"e"]
    assert split_at(b"abcde", 1, 3) == [b"a", b"bc", b"de"]
    assert b"".join(split_at(b"abcde")) == b"abcde"
