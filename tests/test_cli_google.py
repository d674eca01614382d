"""``rxloop generate`` with Gemini, on AI Studio and on Vertex."""

from __future__ import annotations

from collections.abc import Iterator

import google.auth
import pytest
from google.auth.exceptions import DefaultCredentialsError
from google.oauth2.credentials import Credentials

from rxloop.cli import main
from tests.providers import anthropic, gemini
from tests.providers.anthropic import AnthropicServer
from tests.providers.gemini import GeminiServer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[GeminiServer]:
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION"):
        monkeypatch.delenv(name, raising=False)
    with GeminiServer() as server:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)
        monkeypatch.setenv("GOOGLE_VERTEX_BASE_URL", server.url)
        yield server


def test_ai_studio(server: GeminiServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "test-key")
    server.reply(gemini.call("calculator", {"expression": "2 + 3"}))
    server.reply(gemini.text("It is 5."))
    arguments = ["generate", "2 + 3?", "--provider", "google-ai", "--tools", "calculator", "--max-tokens", "99"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert out == "It is 5.\n"
    assert "[tool] calculator -> 5" in err
    assert server.requests[0].path.endswith("/models/gemini-3.8-flash:streamGenerateContent")
    assert server.bodies[0]["generationConfig"] == {"maxOutputTokens": 99}


def test_vertex(server: GeminiServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "test-project")
    monkeypatch.setattr(google.auth, "default", lambda **_: (Credentials("test-token"), "test-project"))
    server.reply(gemini.text("Hello."))
    assert main(["generate", "Say hello.", "--provider", "vertex", "--model", "gemini-test"]) == 0
    assert capsys.readouterr().out == "Hello.\n"
    path = server.requests[0].path
    assert "/projects/test-project/locations/global/publishers/google/models/gemini-test:" in path


class Refreshed(Credentials):  # type: ignore[misc, unused-ignore]
    """What the anthropic SDK asks for a token at once."""

    def refresh(self, request: object) -> None:
        self.token = "test-token"


def test_claude_on_vertex(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "test-project")
    monkeypatch.delenv("GOOGLE_CLOUD_LOCATION", raising=False)
    monkeypatch.setattr(google.auth, "default", lambda **_: (Refreshed(None), "test-project"))
    with AnthropicServer() as claude:
        monkeypatch.setenv("ANTHROPIC_VERTEX_BASE_URL", claude.url)
        claude.reply(anthropic.text("Hello."))
        assert main(["generate", "Say hello.", "--provider", "vertex", "--model", "claude-test"]) == 0
    assert capsys.readouterr().out == "Hello.\n"
    path = claude.requests[0].path
    assert path == "/projects/test-project/locations/global/publishers/anthropic/models/claude-test:streamRawPredict"


def test_claude_on_vertex_without_credentials(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(**_: object) -> None:
        raise DefaultCredentialsError("no application default credentials")

    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "test-project")
    monkeypatch.setattr(google.auth, "default", missing)
    assert main(["generate", "Say hello.", "--provider", "vertex", "--model", "claude-test"]) == 2
    err = capsys.readouterr().err
    assert "the credentials do not work: no application default credentials" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--provider", "google-ai"], "there are no credentials: set GEMINI_API_KEY"),
        (["--provider", "vertex"], "vertex needs a project: set GOOGLE_CLOUD_PROJECT"),
        (["--provider", "vertex", "--model", "claude-sonnet-5-5"], "vertex needs a project: set GOOGLE_CLOUD_PROJECT"),
    ],
)
def test_what_is_missing_is_said_in_one_line(
    server: GeminiServer, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["generate", "hello", *arguments]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert not server.requests


def test_a_failure_of_the_provider(
    server: GeminiServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "test-key")
    server.fail(429, "RESOURCE_EXHAUSTED", message="quota", retry_delay="3600s")
    assert main(["generate", "hello", "--provider", "google-ai"]) == 1
    assert "google: rate limited (HTTP 429): quota (it asks to wait 3600 s)" in capsys.readouterr().err
    assert len(server.requests) == 1
