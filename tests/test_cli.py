from __future__ import annotations

import io
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import rxloop
from rxloop import (
    ContextReclaimed,
    MalformedRetried,
    RetryScheduled,
    StepFinished,
    StepStarted,
    TextDelta,
    ToolCallDelta,
    ToolCallReceived,
    ToolCallStarted,
    ToolFinished,
    ToolProgress,
    ToolStarted,
    TurnEvent,
    TurnFinished,
    TurnStarted,
    UnknownEvent,
    Usage,
    event_from_dict,
)
from rxloop.cli import main
from rxloop.cli.show import JsonView, PlainView, TerminalView
from rxloop.cli.tools import TOOLS, calculate
from rxloop.testing import check_grammar
from tests.providers.anthropic import AnthropicServer, message, text, thinking, tool_use
from tests.testing.cassettes import error, interaction, request, write

ROOT = Path(__file__).parents[1]
CASSETTES = ROOT / "cassettes" / "anthropic"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(arguments)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return status, out, err

    return run


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[AnthropicServer]:
    with AnthropicServer() as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "test-key")
        yield server


def lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def one_line(err: str, *parts: str) -> None:
    assert err.startswith("rxloop: ")
    assert err.count("\n") == 1
    for part in parts:
        assert part in err


class TestDemo:
    def test_plain_text_where_there_is_no_terminal(self, run: Run) -> None:
        status, out, err = run("demo")
        assert (status, err) == (0, "")
        assert "\x1b" not in out
        assert out.startswith("> My sister lives in Wellington.")
        assert "[thinking] Two things are asked" in out
        assert '[tool] weather(city="Wellington")' in out
        assert '[tool] local_time -> {"time":"Thursday 07:42","zone":"Pacific/Auckland"} (0.00 s)' in out
        assert "Yes, ring her" in out
        assert "1,517 tokens in (604 cached), 259 out (51 reasoning) · 2 steps, 2 calls · 163 events in" in out

    def test_json_is_one_event_a_line(self, run: Run) -> None:
        status, out, _ = run("demo", "--json")
        assert status == 0
        events = lines(out)
        assert all("file" not in event for event in events)
        check_grammar(events)

    def test_speed_and_delay(self, run: Run) -> None:
        began = time.monotonic()
        status, out, _ = run("demo", "--speed", "30")
        paced = time.monotonic() - began
        assert status == 0
        assert "(0.00 s)" not in out
        assert 0.1 < paced < 5
        assert "(0.00 s)" in run("demo", "--speed", "30", "--no-delay")[1]

    def test_without_key_and_network(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        for name in ("ANTHROPIC_BASE_URL", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        assert run("demo")[0] == 0


class TestGenerate:
    def test_a_turn_with_tools(self, run: Run, server: AnthropicServer) -> None:
        server.reply(
            thinking("I add."),
            tool_use("calculator", {"expression": "2 + 3"}, id="a"),
            tool_use("clock", {"zone": "Nowhere/Else"}, id="b"),
        )
        server.reply(text("It is 5."))
        status, out, err = run(
            "generate", "2 + 3?", "--provider", "anthropic", "--tools", "calculator, clock", "--system", "Be brief."
        )
        assert (status, out) == (0, "It is 5.\n"), "a file that it is sent to holds the answer alone"
        assert err.startswith("[thinking] I add.\n")
        assert '[tool] calculator(expression="2 + 3")' in err
        assert "[tool] calculator -> 5 (" in err
        assert "[tool] clock -> error: the tool failed: ValueError: unknown time zone: 'Nowhere/Else' (" in err
        assert "[usage] 20 tokens in, 10 out" in err
        sent = server.messages[0]
        assert (sent["model"], sent["max_tokens"]) == ("claude-sonnet-5-5", 8192)
        assert sent["system"][0]["text"] == "Be brief."
        assert [tool["name"] for tool in sent["tools"]] == ["calculator", "clock"]

    def test_json_and_options(self, run: Run, server: AnthropicServer) -> None:
        server.reply(tool_use("calculator", {"expression": "1"}))
        arguments = ("--model", "claude-test", "--tools", "calculator", "--max-steps", "1", "--max-tokens", "9")
        status, out, _ = run("generate", "1?", *arguments, "--json")
        assert status == 0
        events = lines(out)
        check_grammar(events)
        assert events[-1]["finish_reason"] == "tool-calls"
        assert (server.messages[0]["model"], server.messages[0]["max_tokens"]) == ("claude-test", 9)

    def test_a_prompt_from_stdin(self, run: Run, server: AnthropicServer, monkeypatch: pytest.MonkeyPatch) -> None:
        server.reply(text("Hi."))
        monkeypatch.setattr("sys.stdin", io.StringIO("hello\nthere\n"))
        assert run("generate", "-")[0] == 0
        assert server.messages[0]["messages"][0]["content"][0]["text"] == "hello\nthere"

    def test_a_provider_failure(self, run: Run, server: AnthropicServer) -> None:
        server.fail(401, "authentication_error", "invalid\nkey")
        status, _, err = run("generate", "hello")
        assert status == 1
        one_line(err, "anthropic: authentication (HTTP 401): invalid key")

    def test_a_failure_in_the_stream(self, run: Run, server: AnthropicServer) -> None:
        server.error_event(after=message(text("Hello"))[:5])
        status, out, err = run("generate", "hello", "--json")
        assert status == 1
        one_line(err, "anthropic: overloaded: Overloaded")
        last = lines(out)[-1]
        assert last == {
            "type": "error",
            "error": {"kind": "overloaded", "status": None, "message": "Overloaded", "retryable": True},
        }

    def test_what_was_said_before_a_failure_is_shown(self, run: Run, server: AnthropicServer) -> None:
        server.error_event(after=message(text("Hello"))[:5])
        status, out, _ = run("generate", "hello")
        assert status == 1
        assert out.strip().startswith("He")

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["hi", "--tools", "hammer"], "there is no tool 'hammer': the tools are calculator, clock"),
            (["  "], "the prompt is empty"),
            (["hi", "--max-steps", "0"], "max_steps must be a whole number >= 1, but got 0"),
            (["hi", "--max-tokens", "0"], "max_tokens must be a whole number >= 1, but got 0"),
            (["hi", "--model", ""], "model must be a non-empty string"),
            (
                ["hi", "--provider", "sagemaker"],
                "sagemaker needs a model",
            ),
            (["hi", "--provider", "acme"], "'acme'"),
            (["hi", "there"], "there"),
            (["hi", "--shout"], "--shout"),
            ([], "prompt"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_bad_input(self, run: Run, server: AnthropicServer, arguments: list[str], said: str) -> None:
        status, out, err = run("generate", *arguments)
        assert (status, out) == (2, "")
        one_line(err.replace("PROMPT", "prompt"), said)
        assert server.messages == []

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["a\udcff"], "the prompt must be text in UTF-8, but character 2 is none"),
            (["hi", "--system", "\ud800"], "the system prompt must be text in UTF-8, but character 1 is none"),
            (["hi", "--model", "\udcff"], "the model must be text in UTF-8, but character 1 is none"),
        ],
        ids=["prompt", "system", "model"],
    )
    def test_what_is_not_text(self, run: Run, server: AnthropicServer, arguments: list[str], said: str) -> None:
        status, out, err = run("generate", *arguments)
        assert (status, out) == (2, "")
        one_line(err, said)
        assert server.requests == []

    @pytest.mark.parametrize("errors", ["strict", "surrogateescape", None])
    def test_stdin_that_is_not_text(
        self, run: Run, server: AnthropicServer, monkeypatch: pytest.MonkeyPatch, errors: str | None
    ) -> None:
        stdin = None if errors is None else io.TextIOWrapper(io.BytesIO(b"a\xff"), "utf-8", errors)
        monkeypatch.setattr(sys, "stdin", stdin)
        status, out, err = run("generate", "-")
        assert (status, out) == (2, "")
        one_line(
            err, "there is no stdin" if errors is None else "the prompt", "" if errors is None else "must be text in"
        )

    @pytest.mark.parametrize("provider", ["anthropic", "google-ai"])
    @pytest.mark.parametrize(
        ("proxy", "said"),
        [
            ("foo://user:hush@proxy", "the proxy of HTTPS_PROXY cannot be used: Unknown scheme for proxy URL"),
            ("http://user:hush/hush@proxy", "the proxy of HTTPS_PROXY cannot be used: it is not an address"),
            ("http://user:hush@proxy:port", "the proxy of HTTPS_PROXY cannot be used: it is not an address"),
        ],
    )
    def test_a_proxy_that_cannot_be_used(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, provider: str, proxy: str, said: str
    ) -> None:
        for name in ("ANTHROPIC_API_KEY", "GEMINI_API_KEY"):
            monkeypatch.setenv(name, "test-key")
        for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        status, out, err = run("generate", "hi", "--provider", provider)
        assert (status, out) == (2, "")
        one_line(err, said)
        assert "hush" not in err
        assert "credentials" not in err

    @pytest.mark.parametrize("provider", ["anthropic", "google-ai"])
    @pytest.mark.parametrize("content", [None, "no certificate"])
    def test_certificates_that_cannot_be_read(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, provider: str, content: str | None
    ) -> None:
        for name in ("ANTHROPIC_API_KEY", "GEMINI_API_KEY"):
            monkeypatch.setenv(name, "test-key")
        path = tmp_path / "bundle.pem"
        if content is not None:
            path.write_text(content)
        monkeypatch.delenv("SSL_CERT_DIR", raising=False)
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
        status, out, err = run("generate", "hi", "--provider", provider)
        assert (status, out) == (2, "")
        one_line(err, f"the certificates of SSL_CERT_FILE={path} cannot be read: ")

    def test_no_key(self, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for name in [name for name in os.environ if name.startswith("ANTHROPIC_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("USERPROFILE", str(tmp_path))
        status, out, err = run("generate", "hi")
        assert (status, out) == (2, "")
        one_line(err, "there are no credentials: set ANTHROPIC_API_KEY")
        monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path))
        status, out, err = run("generate", "hi")
        assert (status, out) == (2, "")
        one_line(err, "there are no credentials: set ANTHROPIC_API_KEY")


class TestReplay:
    def test_several_files(self, run: Run) -> None:
        names = [str(CASSETTES / "text.yaml"), str(CASSETTES / "overloaded_then_success.yaml")]
        status, out, err = run("replay", *names)
        assert (status, err) == (0, "")
        assert "> Say hello.\n\nHello! What can I do for you?\n[usage]" in out
        assert "[retry_scheduled] attempt 1 failed, again in 0.0 s: Overloaded\nHere I am.\n" in out

    def test_json_names_the_file(self, run: Run) -> None:
        names = [str(CASSETTES / "text.yaml"), str(CASSETTES / "tool_round_trip.yaml")]
        status, out, _ = run("replay", *names, "--json")
        assert status == 0
        for name in names:
            events = [event for event in lines(out) if event.pop("file") == name]
            check_grammar(events)

    def test_a_recorded_failure_does_not_keep_the_others_back(self, run: Run, tmp_path: Path) -> None:
        reply, options = error("overloaded_error", 529)
        failed = write(tmp_path / "failed.yaml", interaction(request("hello"), reply, **options))
        status, out, err = run("replay", str(failed), str(CASSETTES / "text.yaml"), "--json")
        assert status == 1
        one_line(err, f"{failed}: anthropic: overloaded (HTTP 529): scripted overloaded_error")
        details = {"kind": "overloaded", "status": 529, "message": "scripted overloaded_error", "retryable": True}
        assert {"type": "error", "error": details, "file": str(failed)} in lines(out)
        assert lines(out)[-1]["type"] == "turn_finished"

    def test_a_tape(self, run: Run, tmp_path: Path) -> None:
        tape = tmp_path / "tape.jsonl"
        tape.write_text(run("demo", "--json")[1] + '{"type": "hologram", "depth": 3}\n', "utf-8")
        status, out, _ = run("replay", str(tape), "--json")
        assert status == 0
        written = [{**event, "file": str(tape)} for event in lines(tape.read_text("utf-8"))]
        assert lines(out) == written
        assert "Yes, ring her" in run("replay", str(tape))[1]

    def test_the_speed_of_a_tape(self, run: Run, tmp_path: Path) -> None:
        tape = tmp_path / "tape.jsonl"
        events = [{**TextDelta(0, "a").to_dict(), "time": moment} for moment in (0, 0.2)]
        tape.write_text("\n".join(map(json.dumps, events)), "utf-8")
        began = time.monotonic()
        assert run("replay", str(tape), "--speed", "2")[0] == 0
        assert time.monotonic() - began >= 0.1

    @pytest.mark.parametrize(
        ("name", "content", "said"),
        [
            ("missing.yaml", None, "does not exist: give the path of a cassette"),
            ("empty.yaml", "", "is empty"),
            ("other.yaml", "a: 1", "is not a cassette in vcrpy's format"),
            ("missing.jsonl", None, "does not exist: give the path of an event tape"),
            ("empty.jsonl", "\n", "is empty"),
            ("other.jsonl", "{", "line 1: it must be one JSON object"),
        ],
    )
    def test_bad_input(self, run: Run, tmp_path: Path, name: str, content: str | None, said: str) -> None:
        path = tmp_path / name
        if content is not None:
            path.write_text(content, "utf-8")
        status, out, err = run("replay", str(CASSETTES / "text.yaml"), str(path), "--json")
        assert (status, out) == (2, "")
        one_line(err, str(path), said)

    def test_another_provider(self, run: Run, tmp_path: Path) -> None:
        path = write(tmp_path / "g.yaml", interaction("", "x", uri="https://o.example/v1/chat/completions"))
        status, _, err = run("replay", str(path))
        assert status == 2
        one_line(err, "requests to openai (o.example), which is not supported yet; supported: anthropic, google")

    def test_no_file_and_a_bad_speed(self, run: Run) -> None:
        assert run("replay")[0] == 2
        assert run("replay", "x.jsonl", "--speed", "-1")[0] == 2

    def test_a_picture(self, run: Run, tmp_path: Path) -> None:
        picture = tmp_path / "turn.svg"
        status, out, err = run("replay", str(CASSETTES / "tool_round_trip.yaml"), "--svg", str(picture))
        assert (status, err) == (0, "")
        assert "[usage]" in out
        drawn = picture.read_text("utf-8")
        assert drawn.startswith("<svg")
        assert "usage" in drawn

    def test_the_picture_of_a_tape_has_its_times(self, run: Run, tmp_path: Path) -> None:
        picture, tape = tmp_path / "turn.svg", tmp_path / "tape.jsonl"
        events = [{**TextDelta(0, "a").to_dict(), "time": moment} for moment in (0, 40)]
        tape.write_text("\n".join(map(json.dumps, events)), "utf-8")
        assert run("replay", str(tape), "--svg", str(picture))[0] == 0
        assert "40" in picture.read_text("utf-8")

    def test_a_picture_of_a_failure(self, run: Run, tmp_path: Path) -> None:
        reply, options = error("authentication_error", 401)
        failed = write(tmp_path / "failed.yaml", interaction(request("hello"), reply, **options))
        picture = tmp_path / "turn.svg"
        assert run("replay", str(failed), "--svg", str(picture))[0] == 1
        assert "authentication" in picture.read_text("utf-8")

    def test_a_picture_that_cannot_be_written(self, run: Run, tmp_path: Path) -> None:
        picture = tmp_path / "missing" / "turn.svg"
        status, _, err = run("replay", str(CASSETTES / "text.yaml"), "--svg", str(picture))
        assert status == 2
        one_line(err, str(picture), "cannot be written")


class TestRecord:
    def test_a_cassette_and_a_tape(self, run: Run, server: AnthropicServer, tmp_path: Path) -> None:
        server.reply(tool_use("calculator", {"expression": "2 + 3"}, id="a"))
        server.reply(text("It is 5."))
        name = tmp_path / "sum"
        status, out, err = run("record", "2 + 3?", "--out", str(name), "--tools", "calculator")
        assert (status, out) == (0, "It is 5.\n")
        assert f"recorded {name}.yaml and {name}.jsonl\n" in err
        assert sorted(path.name for path in tmp_path.iterdir()) == ["sum.jsonl", "sum.yaml"]
        for path in tmp_path.iterdir():
            assert "test-key" not in path.read_text("utf-8")
            status, out, err = run("replay", str(path), "--json")
            assert (status, err) == (0, "")
            events = [event for event in lines(out) if event.pop("file")]
            check_grammar(events)
            assert [event["text"] for event in events if event["type"] == "text_delta"]

    def test_again_takes_its_place(self, run: Run, server: AnthropicServer, tmp_path: Path) -> None:
        name = tmp_path / "hello"
        for said in ("One.", "Two."):
            server.reply(text(said))
            assert run("record", "hello", "--out", str(name))[1] == f"{said}\n"
        out = run("replay", f"{name}.yaml")[1]
        assert "Two." in out
        assert "One." not in out

    def test_a_failure_is_recorded_too(self, run: Run, server: AnthropicServer, tmp_path: Path) -> None:
        server.fail(401, "authentication_error")
        name = tmp_path / "failed"
        assert run("record", "hello", "--out", str(name))[0] == 1
        for suffix in ("yaml", "jsonl"):
            assert run("replay", f"{name}.{suffix}")[0] == 1

    def test_nothing_sent_leaves_an_earlier_cassette(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for variable in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
            monkeypatch.delenv(variable, raising=False)
        cassette = tmp_path / "hello.yaml"
        cassette.write_text("what was there", "utf-8")
        status, _, err = run("record", "hello", "--out", str(tmp_path / "hello"))
        assert status == 2
        one_line(err, "there are no credentials")
        assert cassette.read_text("utf-8") == "what was there"
        assert list(tmp_path.iterdir()) == [cassette]

    @pytest.mark.parametrize("suffix", [".yaml", ".jsonl"])
    def test_a_name_with_its_suffix(self, run: Run, server: AnthropicServer, tmp_path: Path, suffix: str) -> None:
        server.reply(text("Hello."))
        assert run("record", "hello", "--out", str(tmp_path / f"v1.2{suffix}"))[0] == 0
        assert sorted(path.name for path in tmp_path.iterdir()) == ["v1.2.jsonl", "v1.2.yaml"]

    @pytest.mark.parametrize("name", ["", ".", "..", "sub/", "sub/.", ".yaml"])
    def test_what_is_no_name(self, run: Run, server: AnthropicServer, tmp_path: Path, name: str) -> None:
        (tmp_path / "sub").mkdir()
        status, _, err = run("record", "hello", "--out", f"{tmp_path}/{name}" if name else "")
        assert status == 2
        one_line(err, "--out must be a name, to which .yaml and .jsonl are added")
        assert server.messages == []

    def test_a_name_that_is_a_directory(self, run: Run, server: AnthropicServer, tmp_path: Path) -> None:
        (tmp_path / "hello.jsonl").mkdir()
        status, _, err = run("record", "hello", "--out", str(tmp_path / "hello"))
        assert status == 2
        one_line(err, "hello.jsonl is a directory: give another name")
        assert server.messages == []

    def test_a_directory_that_is_missing(self, run: Run, server: AnthropicServer, tmp_path: Path) -> None:
        status, _, err = run("record", "hello", "--out", str(tmp_path / "missing" / "hello"))
        assert status == 2
        one_line(err, "is not a directory: make it first")
        assert server.messages == []


class TestProgram:
    def test_help_and_version(self, run: Run) -> None:
        assert run("--version") == (0, f"{rxloop.__version__}\n", "")
        for arguments in ((), ("--help",)):
            status, out, _ = run(*arguments)
            assert status == 0
            assert all(name in out for name in ("demo", "generate", "replay"))
        assert "--max-steps" in run("generate", "--help")[1]

    def test_the_help_names_what_is_read_from_the_environment(self, run: Run) -> None:
        said = run("generate", "--help")[1]
        for name in (
            "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION", "AWS_PROFILE",
            "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION",
        ):  # fmt: skip
            assert name in said
        assert "application default credentials" in " ".join(said.split())

    def test_an_unknown_command(self, run: Run) -> None:
        status, _, err = run("dance")
        assert status == 2
        one_line(err, "No such command 'dance'", "`rxloop --help`")

    def test_without_its_extra(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "typer", None)
        status, _, err = run("demo")
        assert status == 2
        one_line(err, 'pip install "rxloop[anthropic,cli]"')

    @pytest.mark.parametrize(("module", "extra"), [("anthropic", "anthropic"), ("vcr.serialize", "test")])
    def test_without_another_extra(self, run: Run, monkeypatch: pytest.MonkeyPatch, module: str, extra: str) -> None:
        monkeypatch.setitem(sys.modules, module, None)
        status, _, err = run("demo")
        assert status == 2
        one_line(err, f'pip install "rxloop[{extra}]"')

    def test_what_nobody_expected_is_one_line_too(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(self: PlainView, event: TurnEvent) -> None:
            raise RuntimeError("out of\nink")

        monkeypatch.setattr(PlainView, "show", broken)
        status, _, err = run("demo")
        assert status == 1
        one_line(err, "unexpected RuntimeError: out of ink")
        monkeypatch.setenv("RXLOOP_DEBUG", "1")
        with pytest.raises(RuntimeError):
            main(["demo"])


def started(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rxloop.cli", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, **options)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals, pipes and terminals")
class TestProcess:
    def test_an_interrupt_stops_gracefully(self, server: AnthropicServer) -> None:
        server.stall(after=message(text("Hello there"))[:4])
        with started("generate", "hello", "--json") as process:
            assert process.stdout is not None
            seen = []
            while not seen or seen[-1]["type"] != "text_delta":
                seen.append(json.loads(process.stdout.readline()))
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        assert (process.returncode, err) == (130, "")
        assert lines(out)[-1]["finish_reason"] == "aborted"

    @pytest.mark.skipif(
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
        reason="interrupts are ignored here: run it in the foreground of a shell",
    )
    @pytest.mark.parametrize("name", ["typer", "rich"])
    def test_an_interrupt_while_it_imports(self, tmp_path: Path, name: str) -> None:
        """Also where the module would swallow it. Of the package itself Python imports some before anything runs."""
        interrupted = "    os.kill(os.getpid(), signal.SIGINT)\n    for _ in range(9): pass\n"
        (tmp_path / f"{name}.py").write_text(f"import os, signal\ntry:\n{interrupted}except BaseException: pass\n")
        environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
        with started("demo", "--no-delay", env=environment) as process:
            out, err = process.communicate(timeout=30)
        assert (process.returncode, out, err) == (130, "", "")

    def test_an_interrupt_ends_a_tape(self, tmp_path: Path) -> None:
        tape = tmp_path / "tape.jsonl"
        events = [{**TextDelta(0, "a").to_dict(), "time": moment} for moment in (0, 1000)]
        tape.write_text("\n".join(map(json.dumps, events)), "utf-8")
        with started("replay", str(tape), "--speed", "1", "--json") as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=30)
        assert (process.returncode, err) == (130, "")

    @pytest.mark.parametrize("arguments", [["demo", "--json"], ["demo"], ["replay", "rxloop/demo.yaml"]])
    def test_a_broken_pipe_is_silent(self, arguments: list[str]) -> None:
        with started(*arguments) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            err = process.stderr.read()
            process.wait(timeout=30)
        assert (process.returncode, err) == (141, "")

    def test_a_terminal_shows_the_turn_live(self) -> None:
        import pty

        reading, writing = pty.openpty()
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
        command = [sys.executable, "-m", "rxloop.cli", "demo", "--speed", "20"]
        with subprocess.Popen(
            command, stdin=writing, stdout=writing, stderr=writing, cwd=ROOT, env=environment
        ) as process:
            os.close(writing)
            shown = b""
            while select.select([reading], [], [], 30)[0]:
                try:
                    shown += os.read(reading, 65536)
                except OSError:
                    break
        os.close(reading)
        assert process.returncode == 0
        written = shown.decode()
        assert "163 events in" in written
        assert written.count("walk to work dry.") >= 1
        assert "\x1b[2K" in written


STREAM: list[TurnEvent] = [
    TurnStarted("t", "anthropic", "claude-test"),
    StepStarted(0),
    RetryScheduled(0, 1, 2.0, {"message": "Over\nloaded"}),
    TextDelta(0, "One\n\nTwo"),
    ToolCallStarted(0, "a", "look"),
    ToolCallDelta(0, "a", '{"x": 1}'),
    ToolCallReceived(0, "a", "look", {"x": 1, "y": "é"}),
    ToolCallStarted(0, "b", "fail"),
    ToolCallReceived(0, "b", "fail", "{broken"),
    StepFinished(0, "One\n\nTwo", (), Usage(1, 1), "tool_use", "tool-calls"),
    ToolStarted(0, "a", "look"),
    ToolProgress(0, "a", "look", {"done": 0.5}),
    ToolFinished(0, "a", "look", "[red]not markup[/red]", None, False, 1.234),
    ToolFinished(0, "b", "fail", None, "it\nbroke", False, 0.0),
    MalformedRetried(0),
    ContextReclaimed(1, 2000, 1000),
    UnknownEvent({"type": "hologram", "depth": 3}),
    TurnFinished("Two", None, "length", "max_tokens", Usage(1, 1), 1, ()),
]


class TestViews:
    def terminal(self, *, live: bool, width: int = 80) -> tuple[TerminalView, io.StringIO]:
        out = io.StringIO()
        console = Console(file=out, force_terminal=True, width=width, height=20, color_system=None)
        return TerminalView(console, live=live, clock=iter([0.0, 2.5]).__next__), out

    @pytest.mark.parametrize("live", [False, True])
    def test_a_terminal(self, live: bool) -> None:
        view, out = self.terminal(live=live)
        view.prompt("What?")
        for event in STREAM:
            view.show(event)
        view.close()
        shown = out.getvalue()
        for part in (
            "> What?",
            "anthropic · claude-test",
            "retry_scheduled: attempt 1 failed, again in 2.0 s: Over loaded",
            "look",
            'x=1, y="é"',
            "✓ [red]not markup[/red]",
            "1.23 s",
            "✗ error: it broke",
            "{broken",
            "history shortened from 2,000 to 1,000 tokens",
            '{"type": "hologram", "depth": 3}',
            "length · 1 tokens in, 1 out · 1 step, 2 calls · 18 events in 2.5 s",
        ):
            assert part in shown
        if not live:
            assert shown.index("One") < shown.index("Two") < shown.index("look")

    def test_a_paragraph_longer_than_the_screen_shows_its_end(self) -> None:
        view, out = self.terminal(live=True)
        view.show(TextDelta(0, "word " * 1000 + "the end"))
        view.show(StepStarted(1))
        view.close()
        assert "the end" in out.getvalue()

    def test_a_failure_keeps_what_was_said(self) -> None:
        view, out = self.terminal(live=False)
        view.show(TextDelta(0, "Hel"))
        view.fail(rxloop.OverloadedError("no"))
        view.close()
        assert "Hel" in out.getvalue()

    def test_plain_text(self) -> None:
        out = io.StringIO()
        view = PlainView(out, clock=iter([0.0, 2.5]).__next__)
        for event in STREAM:
            view.show(event)
        view.close()
        assert out.getvalue() == (
            "[retry_scheduled] attempt 1 failed, again in 2.0 s: Over loaded\n"
            "One\n\nTwo\n"
            '[tool] look(x=1, y="é")\n'
            "[tool] look -> [red]not markup[/red] (1.23 s)\n"
            "[tool] fail -> error: it broke (0.00 s)\n"
            "[malformed_retried] the model's call was malformed; it is asked once more\n"
            "[context_reclaimed] history shortened from 2,000 to 1,000 tokens\n"
            '[unknown] {"type": "hologram", "depth": 3}\n'
            "[usage] length · 1 tokens in, 1 out · 1 step, 2 calls · 18 events in 2.5 s\n\n"
        )

    @pytest.mark.parametrize(("encoding", "written"), [("utf-8", "é"), ("ascii", "\\u00e9")])
    def test_json_in_what_the_stream_can_write(self, encoding: str, written: str) -> None:
        raw = io.BytesIO()
        out = io.TextIOWrapper(raw, encoding=encoding)
        view = JsonView(out, {"file": "x"})
        view.show(TextDelta(0, "é"))
        view.show(TextDelta(0, "\ud83d"))
        view.close()
        first, second = raw.getvalue().decode(encoding).splitlines()
        assert written in first
        assert [event_from_dict(json.loads(line)) for line in (first, second)] == [
            TextDelta(0, "é"),
            TextDelta(0, "\ud83d"),
        ]


class TestTools:
    @pytest.mark.parametrize(
        ("expression", "value"),
        [
            ("(2 + 3) * 7", 35),
            ("-2 ** 2", -4),
            ("7 // 2 + 7 % 2 - +1", 3),
            ("1 / 4", 0.25),
            ("2 ** 100", 2**100),
            ("sqrt(2) ** 2", pytest.approx(2)),
            ("round(pi, 2)", 3.14),
            ("round(2.6)", 3),
            ("max(1, abs(-3))", 3),
            (" 1e3 ", 1000.0),
        ],
    )
    def test_arithmetic(self, expression: str, value: Any) -> None:
        assert calculate(expression) == value

    @pytest.mark.parametrize(
        "expression",
        [
            "",
            "2 +",
            "x",
            "__import__('os').getcwd()",
            "().__class__",
            "'a' * 3",
            "[1] * 3",
            "True",
            "1 < 2",
            "9 ** 9 ** 9",
            "2 ** 20000",
            "10 ** 2000 * 10 ** 2000",
            "1e308 * 10",
            "2.0 ** 5000",
            "(-8) ** 0.5",
            "round(1, -1000000000)",
            "sqrt(-1)",
            "sqrt()",
            "round(1, ndigits=2)",
            "sum(range(10))",
            "1j",
            "(" * 400 + "1" + ")" * 400,
        ],
    )
    def test_nothing_else(self, expression: str) -> None:
        with pytest.raises(ValueError, match=r"."):
            calculate(expression)

    def test_the_clock(self) -> None:
        assert TOOLS["clock"]().endswith("+00:00")
        with pytest.raises(ValueError, match=r"unknown time zone: '../etc'"):
            TOOLS["clock"](zone="../etc")


def test_the_picture_is_up_to_date(tmp_path: Path) -> None:
    picture = tmp_path / "demo.svg"
    command = [sys.executable, str(ROOT / "scripts" / "demo_picture.py"), str(picture)]
    subprocess.run(command, check=True, cwd=ROOT)
    assert picture.read_text("utf-8") == (ROOT / "docs" / "demo.svg").read_text("utf-8")
    assert "https://cdn" not in picture.read_text("utf-8")
