"""The shipped cassettes, and that recording writes no secret."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
import vcr

from rxloop import Turn
from rxloop.adapters.anthropic import AnthropicAdapter
from rxloop.testing import Interaction, ReplayedTurn, read_cassette, replay, vcr_config
from tests.providers.anthropic import AnthropicServer, text, tool_use
from tests.providers.http import Reply

ROOT = Path(__file__).parents[1]
CASSETTES = sorted((ROOT / "cassettes").rglob("*.yaml"))
HOSTS = {"api.anthropic.com", "generativelanguage.googleapis.com", "us-central1-aiplatform.googleapis.com"}
SECRETS = re.compile(r"sk-|authorization|x-api-key|test-key|bearer|cookie|organization-id|127\.0\.0\.1", re.IGNORECASE)


def by_name(path: Path) -> str:
    return str(path.relative_to(ROOT / "cassettes"))


@pytest.mark.parametrize("path", CASSETTES, ids=by_name)
def test_there_is_no_secret_in_it(path: Path) -> None:
    assert SECRETS.findall(path.read_text("utf-8")) == []
    for interaction in read_cassette(path):
        assert interaction.host in HOSTS
        assert "/projects/" not in interaction.path or "/projects/recorded/" in interaction.path


@pytest.mark.parametrize("path", CASSETTES, ids=by_name)
def test_a_replay_sends_what_was_recorded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    send = httpx2.AsyncClient.send

    def spy(self: httpx2.AsyncClient, request: httpx2.Request, **options: Any) -> Any:
        sent.append(json.loads(request.content))
        return send(self, request, **options)

    monkeypatch.setattr(httpx2.AsyncClient, "send", spy)
    recorded = []
    for turn in replay(path):
        result = turn.result_sync()
        assert result.finish_reason == "stop"
        recorded += [json.loads(attempt.request_body) for step in turn.steps for attempt in step.attempts]
    assert sent == recorded


def test_the_demo_is_worth_watching() -> None:
    demo = ROOT / "rxloop" / "demo.yaml"
    assert demo.resolve() == ROOT / "cassettes" / "anthropic" / "parallel_tools_thinking.yaml"
    (turn,) = replay(demo)
    assert isinstance(turn, ReplayedTurn)
    events = asyncio.run(_collected(turn))
    kinds = [event.type for event in events]
    assert kinds.count("text_delta") + kinds.count("reasoning_delta") >= 120
    assert kinds.count("tool_finished") == 2
    assert "signature" in json.dumps(turn.result_sync().conversation)


async def _collected(turn: Turn) -> list[Any]:
    return [event async for event in turn]


def test_recording_again_makes_no_difference(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "record_cassettes.py"
    spec = importlib.util.spec_from_file_location("record_cassettes", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    asyncio.run(module.main(tmp_path))
    again = sorted(tmp_path.rglob("*.yaml"))
    assert [path.relative_to(tmp_path) for path in again] == [Path(by_name(path)) for path in CASSETTES]
    for path in again:
        assert path.read_text("utf-8") == (ROOT / "cassettes" / path.relative_to(tmp_path)).read_text("utf-8")


def test_recording_leaves_the_secrets_out(tmp_path: Path) -> None:
    uuid = "1b4e28ba-2fa1-41d2-883f-0016d3cca427"
    headers = {"set-cookie": "session=hush", "anthropic-organization-id": uuid, "request-id": "req_0123456789abcdef01"}
    call_id = "toolu_0123456789ABCDEFGHIJ"
    path = tmp_path / "turn.yaml"

    async def record(server: AnthropicServer) -> None:
        secrets = {"authorization": "Bearer hush", "cookie": "hush", "x-tenant": "hush"}
        async with server.client(api_key="sk-ant-hush", default_headers=secrets) as client:
            adapter = AnthropicAdapter(client, model="claude-test", betas=["context-1m-2025-08-07"])
            recorder = vcr.VCR(**vcr_config(base_url="https://api.anthropic.com"))
            with recorder.use_cassette(path, record_mode="all"):
                await Turn(adapter, f"what is {uuid}?").result()

    with AnthropicServer() as server:
        server.reply(tool_use("look", {"id": uuid}, id=call_id), headers=headers, message_id="msg_0123456789abcdefghij")
        server.reply(text("nothing"), headers=headers)
        asyncio.run(record(server))
    written = path.read_text("utf-8")
    for secret in ("hush", "sk-ant", uuid, call_id, "msg_0123456789", "req_0123456789", server.url):
        assert secret not in written
    first, second = read_cassette(path)
    assert dict(first.request_headers) == {
        "anthropic-beta": "context-1m-2025-08-07",
        "content-type": "application/json",
    }
    assert set(first.headers) == {"content-type"}
    # the digest is the same wherever the identifier stood, so the recording still fits together
    found = set(re.findall(r"toolu_xxxx[0-9a-f]{20}", first.body.decode()))
    assert len(found) == 1
    assert found == set(re.findall(r"toolu_xxxx[0-9a-f]{20}", second.request_body.decode()))
    (turn,) = replay(path)
    assert len(turn.steps) == 2
    assert turn.result_sync().text == "nothing"


def test_addresses_are_recorded_without_accounts_and_keys(tmp_path: Path) -> None:
    path = tmp_path / "turn.yaml"
    with AnthropicServer() as server:
        server.reply(text("hi"))
        with vcr.VCR(**vcr_config()).use_cassette(path, record_mode="all"), httpx2.Client(trust_env=False) as client:
            client.post(f"{server.url}/v1/projects/my-project/models/m?key=hush&alt=sse", json={})
    (interaction,) = read_cassette(path)
    assert interaction.uri.endswith("/v1/projects/recorded/models/m?key=recorded&alt=sse")


_QUERY = (
    "key", "Key", "token", "api_key", "apiKey", "API-KEY", "access_token", "sig", "Signature", "code",
    "subscription-key", "Subscription-Key", "X-Goog-Signature", "x-goog-credential", "X-Amz-Signature", "x-amz-date",
    "X-Amz-Security-Token", "authorization", "password", "Secret", "client_secret",
)  # fmt: skip


def _recorded(path: Path, send: Callable[[httpx2.Client, str], object], reply: bytes | None = None) -> Interaction:
    with AnthropicServer() as server:
        if reply is None:
            server.reply(text("hi"))
        else:
            server.script(Reply(200, {"content-type": "application/json"}, [reply]))
        with vcr.VCR(**vcr_config()).use_cassette(path, record_mode="all"), httpx2.Client(trust_env=False) as client:
            send(client, server.url.removeprefix("http://"))
    assert "hush" not in path.read_text("utf-8")
    (interaction,) = read_cassette(path)
    return interaction


def test_an_address_is_recorded_without_what_opens_it(tmp_path: Path) -> None:
    query = "&".join(f"{name}=hush%2F{place}" for place, name in enumerate(_QUERY))

    def send(client: httpx2.Client, host: str) -> None:
        client.post(f"http://user:hush@{host}/v1/messages?{query}&alt=sse&key=&monkey=1&keys", json={})

    uri = _recorded(tmp_path / "turn.yaml", send).uri
    assert "@" not in uri
    assert uri.partition("?")[2] == "&".join(f"{name}=recorded" for name in _QUERY) + "&alt=sse&key=&monkey=1&keys"


def test_a_body_is_recorded_without_secrets(tmp_path: Path) -> None:
    names = ["authorization_token", "api_key", "apiKey", "access_token", "user_id", "password", "Secret", "token"]
    secrets = dict.fromkeys(names, 'hush "quoted" \\ \n')
    body = {
        "messages": [{"role": "user", "content": 'say "token": no'}],
        "max_tokens": 5,
        "mcp_servers": [{"url": "https://user:hush@mcp.example/a?b=c&api_key=hush&d=é", "deep": [{"er": secrets}]}],
        "tools": [{"input_schema": {"properties": {"token": {"type": "string"}, "password": {"type": "string"}}}}],
        "token": 5,
        "api_key": None,
        "secret": "",
        "url": "not an address ]",
    }
    expected = json.loads(json.dumps(body))
    expected["mcp_servers"][0] = {
        "url": "https://mcp.example/a?b=c&api_key=recorded&d=é",
        "deep": [{"er": dict.fromkeys(names, "recorded")}],
    }
    reply = json.dumps({"access_token": "hush", "expires_in": 5}).encode()
    interaction = _recorded(
        tmp_path / "turn.yaml", lambda client, host: client.post(f"http://{host}/v1/messages", json=body), reply
    )
    assert json.loads(interaction.request_body) == expected
    assert interaction.body == b'{"access_token": "recorded", "expires_in": 5}', "all else is as it was written"


def test_a_form_is_recorded_without_secrets(tmp_path: Path) -> None:
    form = {"grant_type": "jwt", "assertion": "hush", "client_secret": "hush"}
    interaction = _recorded(
        tmp_path / "turn.yaml", lambda client, host: client.post(f"http://{host}/token", data=form), b"{}"
    )
    assert interaction.request_body == b"grant_type=jwt&assertion=recorded&client_secret=recorded"
