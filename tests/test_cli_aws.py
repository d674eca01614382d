"""``rxloop generate`` with Bedrock and SageMaker."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from rxloop.cli import main
from tests.providers import bedrock, sagemaker
from tests.providers.bedrock import BedrockServer
from tests.providers.sagemaker import SageMakerServer

ASK_BEDROCK = ("generate", "hello", "--provider", "bedrock", "--model", "us.anthropic.claude-test")
ASK_SAGEMAKER = ("generate", "hello", "--provider", "sagemaker", "--model", "my-endpoint")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    # neither the machine's own files nor a metadata service are asked
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BedrockServer]:
    with BedrockServer() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", server.url)
        yield server


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[SageMakerServer]:
    with SageMakerServer() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME", server.url)
        yield server


def test_bedrock(server: BedrockServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.reply(bedrock.tool_use("calculator", {"expression": "2 + 3"}))
    server.reply(bedrock.text("It is 5."))
    assert main([*ASK_BEDROCK, "--tools", "calculator", "--system", "Be brief.", "--max-tokens", "99"]) == 0
    out, err = capsys.readouterr()
    assert out == "It is 5.\n"
    assert "[tool] calculator -> 5" in err
    assert server.targets == ["us.anthropic.claude-test"] * 2
    assert server.bodies[0]["inferenceConfig"] == {"maxTokens": 99}
    assert server.bodies[0]["system"] == [{"text": "Be brief."}]


def test_models_differ_in_the_most_tokens_that_they_take(
    server: BedrockServer, endpoint: SageMakerServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.reply(bedrock.text("Hello."))
    endpoint.reply(sagemaker.openai("Hello."))
    assert (main(list(ASK_BEDROCK)), main(list(ASK_SAGEMAKER))) == (0, 0)
    assert capsys.readouterr().out == "Hello.\n" * 2
    assert "inferenceConfig" not in server.bodies[0]
    assert "max_tokens" not in endpoint.bodies[0]


def test_sagemaker(endpoint: SageMakerServer, capsys: pytest.CaptureFixture[str]) -> None:
    endpoint.reply(sagemaker.openai("Hel", "lo."))
    assert main([*ASK_SAGEMAKER, "--max-tokens", "99"]) == 0
    assert capsys.readouterr().out == "Hello.\n"
    assert endpoint.targets == ["my-endpoint"]
    assert endpoint.bodies[0] == {
        "messages": [{"role": "user", "content": "hello"}],
        "stream": True,
        "max_tokens": 99,
    }


def test_sagemaker_has_no_tools(endpoint: SageMakerServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASK_SAGEMAKER, "--tools", "calculator"]) == 2
    err = capsys.readouterr().err
    assert "supports no tools, but got 'calculator'" in err
    assert err.count("\n") == 1
    assert not endpoint.requests


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--provider", "bedrock"], "bedrock needs a model: give a model's or an inference profile's ID or ARN"),
        (["--provider", "sagemaker"], "sagemaker needs a model: give an endpoint's name as --model"),
        (["--provider", "bedrock", "--model", " "], "model must be "),
    ],
)
def test_a_model_is_needed(
    server: BedrockServer, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["generate", "hello", *arguments]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert not server.requests


@pytest.mark.parametrize("arguments", [ASK_BEDROCK, ASK_SAGEMAKER], ids=["bedrock", "sagemaker"])
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"AWS_DEFAULT_REGION": None}, "there is no region: set AWS_DEFAULT_REGION"),
        ({"AWS_DEFAULT_REGION": "no region"}, "'no region' doesn't match"),
        ({"AWS_PROFILE": "nobody"}, "The config profile (nobody) could not be found"),
        ({"AWS_SECRET_ACCESS_KEY": None}, "missing: AWS_SECRET_ACCESS_KEY"),
        (
            {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None},
            "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
        ),
        ({"AWS_ACCESS_KEY_ID": "a\nb"}, "characters that HTTP does not allow"),
    ],
)
def test_what_is_missing_is_said_in_one_line(
    server: BedrockServer,
    endpoint: SageMakerServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    changed: dict[str, str | None],
    said: str,
) -> None:
    for name, value in changed.items():
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)
    assert main(list(arguments)) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert not server.requests
    assert not endpoint.requests


@pytest.mark.parametrize("arguments", [ASK_BEDROCK, ASK_SAGEMAKER], ids=["bedrock", "sagemaker"])
def test_without_the_sdk(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    assert main(list(arguments)) == 2
    assert capsys.readouterr().err == 'rxloop: the adapters for AWS need boto3: pip install "rxloop[aws]"\n'


def test_a_failure_of_the_provider(server: BedrockServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.fail(429, message="slow down", retry_after=3600)
    assert main(list(ASK_BEDROCK)) == 1
    assert "bedrock: rate limited (HTTP 429): slow down (it asks to wait 3600 s)" in capsys.readouterr().err
    assert len(server.requests) == 1


def test_a_failure_of_the_container(endpoint: SageMakerServer, capsys: pytest.CaptureFixture[str]) -> None:
    endpoint.model_error(400, '{"error": "no such field"}')
    assert main(list(ASK_SAGEMAKER)) == 1
    err = capsys.readouterr().err
    assert "sagemaker: " in err
    assert "no such field" in err
