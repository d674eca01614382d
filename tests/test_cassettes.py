"""The shipped cassettes, and that recording writes no secret."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import httpx2
import pytest
import vcr
from reactivex import Observable
from reactivex import operators as ops
from vcr.request import Request

from rxloop import AuthenticationError, RxLoopError, Turn, TurnEvent, iterate
from rxloop.adapters.anthropic import AnthropicAdapter
from rxloop.adapters.bedrock import BedrockAdapter
from rxloop.testing import (
    Interaction,
    ReplayedTurn,
    check_grammar,
    read_cassette,
    replay,
    replay_bedrock,
    replay_sagemaker,
    vcr_config,
)
from rxloop.testing.frames import event_frame
from rxloop.testing.recorded_aws import recorded_client
from tests.providers import bedrock
from tests.providers.anthropic import AnthropicServer, text, tool_use
from tests.providers.bedrock import BedrockServer
from tests.providers.http import Reply

ROOT = Path(__file__).parents[1]
CASSETTES = sorted((ROOT / "cassettes").rglob("*.yaml"))
HOSTS = {
    "aiplatform.googleapis.com",
    "api.anthropic.com",
    "bedrock-runtime.us-east-1.amazonaws.com",
    "generativelanguage.googleapis.com",
    "runtime.sagemaker.us-east-1.amazonaws.com",
    "us-central1-aiplatform.googleapis.com",
}
BROKEN = "error_in_the_middle"
SECRETS = re.compile(
    r"sk-|authorization|x-api-key|test-key|bearer|cookie|organization-id|127\.0\.0\.1"
    r"|x-amz-|AKIDEXAMPLE|aws4-hmac|requestid|123456789012",
    re.IGNORECASE,
)


def by_name(path: Path) -> str:
    return str(path.relative_to(ROOT / "cassettes"))


@pytest.mark.parametrize("path", CASSETTES, ids=by_name)
def test_there_is_no_secret_in_it(path: Path) -> None:
    assert SECRETS.findall(path.read_text("utf-8")) == []
    for interaction in read_cassette(path):
        # in the file an event stream of AWS is base64
        assert SECRETS.findall(interaction.body.decode("latin-1")) == []
        assert interaction.host in HOSTS
        assert "/projects/" not in interaction.path or "/projects/recorded/" in interaction.path


@pytest.mark.asyncio
@pytest.mark.parametrize("path", CASSETTES, ids=by_name)
async def test_its_events_are_in_order(path: Path) -> None:
    for turn in replay(path):
        if path.stem != BROKEN:
            check_grammar(await _collected(turn))
            continue
        events: list[Any] = []
        with pytest.raises(RxLoopError) as caught:
            await _collected(turn.pipe(ops.do_action(events.append)))
        check_grammar(events, error=True)
        assert caught.value.partial is not None
        assert caught.value.partial.text == "Once upon a time"


@pytest.mark.parametrize("path", CASSETTES, ids=by_name)
def test_a_replay_sends_what_was_recorded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    send = httpx2.AsyncClient.send

    def spy(self: httpx2.AsyncClient, request: httpx2.Request, **options: Any) -> Any:
        sent.append(json.loads(request.content))
        return send(self, request, **options)

    def spied_client(service: str, response: Callable[[], Interaction]) -> Any:
        client = recorded_client(service, response)
        client.meta.events.register_first(
            f"before-send.{service}", lambda request, **_: sent.append(json.loads(request.body))
        )
        return client

    monkeypatch.setattr(httpx2.AsyncClient, "send", spy)
    monkeypatch.setattr(replay_bedrock, "recorded_client", spied_client)
    monkeypatch.setattr(replay_sagemaker, "recorded_client", spied_client)
    recorded = []
    for turn in replay(path):
        if path.stem == BROKEN:
            with pytest.raises(RxLoopError):
                turn.result_sync()
        else:
            assert turn.result_sync().finish_reason in ("stop", "tool-calls")
        recorded += [json.loads(attempt.request_body) for step in turn.steps for attempt in step.attempts]
    assert unmarked(sent) == unmarked(recorded)


def unmarked(value: Any) -> Any:
    """Without cache markers and the choice of tools: a replay has those of its first request alone."""
    if isinstance(value, dict):
        # text that carries a marker has to be a block
        bare = {key: unmarked(item) for key, item in value.items() if key not in ("cache_control", "tool_choice")}
        if isinstance(bare.get("system"), list):
            bare["system"] = "".join(block.get("text", "") for block in bare["system"])
        return bare
    if isinstance(value, list):
        return [unmarked(item) for item in value if not (isinstance(item, dict) and "cachePoint" in item)]
    return value


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


async def _collected(turn: Observable[TurnEvent]) -> list[Any]:
    return [event async for event in iterate(turn)]


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


HOST = "bedrock-runtime.us-east-1.amazonaws.com"
ACCOUNT = "210987654321"
PROFILE = f"arn:aws:bedrock:us-east-1:{ACCOUNT}:application-inference-profile/abc"


def test_bedrock_is_recorded_without_accounts_and_credentials(tmp_path: Path) -> None:
    path = tmp_path / "turn.yaml"
    trace = {"promptRouter": {"invokedModelId": PROFILE}}
    refusal = f"User: arn:aws:sts::{ACCOUNT}:assumed-role/Admin/hush@example.com is not authorized on {PROFILE}"
    quoted = "No. The Canonical String for this request should have been\n'POST\n\nx-amz-security-token:hush \"x\"\n'"

    async def record(server: BedrockServer) -> None:
        session = boto3.Session("AKIAIOSFODNN7EXAMPLE", "hush-key", "hush-token", "us-east-1")
        client = session.client("bedrock-runtime", endpoint_url=server.url)
        adapter = BedrockAdapter(client, model=PROFILE, guardrailConfig={"guardrailIdentifier": PROFILE})
        with vcr.VCR(**vcr_config(base_url=f"https://{HOST}")).use_cassette(path, record_mode="all"):
            await Turn(adapter, "hi").result()
            for _ in range(2):
                with pytest.raises(RxLoopError):
                    await Turn(adapter, "hi").result()
        client.close()

    with BedrockServer() as server:
        server.reply(bedrock.text("Grüße"), trace=trace)
        server.fail(403, message=refusal)
        server.fail(403, "InvalidSignatureException", quoted)
        asyncio.run(record(server))
        assert PROFILE in server.targets
        assert server.requests[0].headers["x-amz-security-token"] == "hush-token"
    written = path.read_text("utf-8")
    answered, *refused = read_cassette(path)
    for secret in ("hush", "AKIA", ACCOUNT, "Signature=", "x-amz-", server.url):
        assert secret not in written
        assert secret.encode() not in answered.body
    assert dict(answered.request_headers) == {"content-type": "application/json"}
    assert [dict(item.headers) for item in refused] == [
        {"content-type": "application/json", "x-amzn-errortype": f"{kind}:{BedrockServer.error_namespace[1:]}"}
        for kind in ("AccessDeniedException", "InvalidSignatureException")
    ]
    public = PROFILE.replace(ACCOUNT, "0" * 12)
    assert [json.loads(item.body)["message"] for item in refused] == [
        f"User: arn:aws:sts::{'0' * 12}:recorded is not authorized on {public}",
        "No. The Canonical String for this request: recorded",
    ]
    # the frame whose account was replaced is whole
    assert public.encode() in answered.body
    played, failed = replay(path)
    assert played.adapter.model == public
    assert played.result_sync().text == "Grüße"
    with pytest.raises(AuthenticationError, match=r"^No\.$"):
        failed.result_sync()


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "169.254.170.2",
        "sts.amazonaws.com",
        "sts.eu-west-1.amazonaws.com",
        "oidc.us-east-1.amazonaws.com",
        "portal.sso.us-east-1.amazonaws.com",
        "us-east-1.signin.aws.amazon.com",
    ],
)
def test_a_request_for_credentials_of_aws_is_not_recorded(host: str) -> None:
    record = vcr_config()["before_record_request"]
    assert record(Request("GET", f"http://{host}/latest/meta-data/iam/security-credentials/", b"", {})) is None
    assert record(Request("POST", f"https://{host}.example/v1/messages", b"", {})) is not None


def textual_frame() -> bytes:
    """A frame whose checksums happen to be text."""
    frames = (event_frame("messageStop", b'{"id":"msg_0123456789abcdefghij","n":%d}' % n) for n in itertools.count())
    return next(frame for frame in frames if frame.decode(errors="replace").encode() == frame)


BODIES = {
    "a frame": bedrock.encoded({"messageStop": {"stopReason": "end_turn"}}),
    "frames that happen to be text": textual_frame() * 2,
    "a frame that is cut off": bedrock.encoded({"messageStop": {"stopReason": "end_turn"}})[:-3],
    "a length that cannot be": b"\0\0\0\1" + bytes(20),
    "nothing but zeros": bytes(100),
    "line ends and other oddities": b"\0\r\n\x85\xe2\x80\xa8\r\xef\xbb\xbf\xff\t \n",
}


# JSON takes text alone
TEXTUAL = [name for name, body in BODIES.items() if body.decode(errors="replace").encode() == body]


@pytest.mark.parametrize(
    ("kind", "name"), [*(("yaml", name) for name in BODIES), *(("json", name) for name in TEXTUAL)]
)
def test_an_event_stream_survives_byte_for_byte(tmp_path: Path, kind: str, name: str) -> None:
    path = tmp_path / "turn"
    with BedrockServer() as server:
        server.reply_frames(BODIES[name])
        recorder = vcr.VCR(serializer=kind, **vcr_config())
        with recorder.use_cassette(path, record_mode="all"), httpx2.Client(trust_env=False) as client:
            client.post(f"{server.url}/model/m/converse-stream", headers={"authorization": "Bearer x"}, json={})
    (interaction,) = read_cassette(path)
    assert interaction.body == BODIES[name]
