"""The pytest plugin, run by pytest inside of pytest against local servers; and from the wheel, as its users have it."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

# imported here, so that a run inside of this one does not leave them half known
import anthropic  # noqa: F401
import boto3  # noqa: F401
import httpx2  # noqa: F401
import pytest
import vcr.cassette  # noqa: F401
from google import genai  # noqa: F401

from rxloop.testing import plugin, read_cassette
from tests.providers import bedrock, gemini
from tests.providers.anthropic import AnthropicServer, message, text, tool_use
from tests.providers.bedrock import BedrockServer
from tests.providers.gemini import GeminiServer
from tests.providers.http import LocalServer, Reply, Request

pytest_plugins = ("pytester",)

ROOT = Path(__file__).parents[2]

POST = """
import json
import os

import httpx2
import pytest


def post(body, path="/v1/messages", **options):
    with httpx2.Client(trust_env=False) as client:
        return client.post(os.environ["SERVER"] + path, json=body, **options)


"""


def _echo(request: Request) -> Reply:
    return Reply.json({"asked": json.loads(request.body or b"null")})


INI = """
[pytest]
addopts = --strict-markers --strict-config -p no:cacheprovider -p no:hypothesispytest
asyncio_default_fixture_loop_scope = function
filterwarnings = error
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project whose tests ask the server of the last `serving`."""
    monkeypatch.setenv("SERVER", "http://127.0.0.1:9")
    # where they are set, pytest's summary holds every failure whole
    for name in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)
    pytester.makeini(INI)
    return pytester


def _test(project: pytest.Pytester, code: str) -> Path:
    return project.makepyfile(test_it=POST + code)


def _record(project: pytest.Pytester, *arguments: str, mode: str = "once") -> tuple[pytest.RunResult, LocalServer]:
    with LocalServer() as server:
        server.route(_echo)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SERVER", server.url)
            result = project.runpytest_inprocess(f"--rxloop-record={mode}", *arguments)
    return result, server


def _cassette(project: pytest.Pytester, name: str, module: str = "test_it") -> Path:
    return project.path / "cassettes" / module / f"{name}.yaml"


def _bodies(path: Path) -> list[Any]:
    return [json.loads(item.request_body) for item in read_cassette(path)]


def _out(result: pytest.RunResult) -> str:
    return result.stdout.str()


ASKS = """
def test_ask(cassette):
    assert post({"n": 1}).json() == {"asked": {"n": 1}}
"""


def test_it_records_once_and_plays_without_the_server(project: pytest.Pytester) -> None:
    _test(project, ASKS)
    recorded, server = _record(project)
    recorded.assert_outcomes(passed=1)
    assert len(server.requests) == 1
    assert _bodies(_cassette(project, "test_ask")) == [{"n": 1}]
    before = _cassette(project, "test_ask").read_bytes()
    project.runpytest_inprocess().assert_outcomes(passed=1)
    again, server = _record(project)
    again.assert_outcomes(passed=1)
    assert server.requests == []
    assert _cassette(project, "test_ask").read_bytes() == before


def test_without_a_recording_it_says_how_to_record(project: pytest.Pytester) -> None:
    _test(
        project,
        """
@pytest.mark.parametrize("a", ["x y"])
def test_ask(cassette, a):
    raise SystemExit("the test must not begin")
""",
    )
    result = project.runpytest_inprocess()
    result.assert_outcomes(errors=1)
    name = re.search(r"there is no recording at (\S+)", _out(result))
    assert name is not None
    assert name[1].startswith(os.path.join("cassettes", "test_it", "test_ask[x-y]-"))  # noqa: PTH118
    assert "record it with: pytest --rxloop-record=once 'test_it.py::test_ask[x y]'" in _out(result)


def test_what_is_not_recorded_is_shown_as_a_difference(project: pytest.Pytester) -> None:
    _test(
        project,
        """
def test_ask(cassette):
    post({"other": [1, 2, 3], "n": 0})
    post({"n": 1, "question": os.environ.get("QUESTION", "what is 2+3?"), "stream": True})
""",
    )
    _record(project)[0].assert_outcomes(passed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUESTION", "what is 2+4?")
        result = project.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    shown = os.path.join("cassettes", "test_it", "test_ask.yaml")  # noqa: PTH118
    result.stdout.fnmatch_lines(
        [
            "no recorded request matches: POST 127.0.0.1/v1/messages",
            f"compared with number 2 of 2 in {shown}, the most similar one that was not played yet:",
            "--- recorded 2",
            "+++ sent",
            '-  "question": "what is 2+3?"',
            '+  "question": "what is 2+4?"',
            "if it should be so, record it again: pytest --rxloop-record=all test_it.py::test_ask",
        ]
    )
    assert result.stdout.str().count("+++ sent") == 1


def test_the_first_line_of_the_summary_says_it(project: pytest.Pytester) -> None:
    _test(project, "def test_ask(cassette):\n    post({'n': 2 if os.environ.get('LATER') else 1})\n")
    _record(project)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LATER", "1")
        result = project.runpytest_inprocess("-ra")
    result.stdout.fnmatch_lines(["FAILED test_it.py::test_ask - Failed: no recorded request matches: POST*"])


def test_a_failure_of_the_test_itself_is_shown_too(project: pytest.Pytester) -> None:
    _test(project, "def test_ask(cassette):\n    assert post(os.environ.get('BODY', 'a')).status_code == 200, 'ouch'\n")
    _record(project)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BODY", "b")
        result = project.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            '-"a"',
            '+"b"',
            "the test ended with AssertionError in line 14 of test_it.py",
            "*failure of the test itself*",
            "*AssertionError: ouch*",
        ]
    )


def test_a_response_is_played_once(project: pytest.Pytester) -> None:
    _test(project, "def test_ask(cassette):\n    for _ in range(int(os.environ.get('TIMES', 1))):\n        post(1)\n")
    _record(project)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIMES", "3")
        result = project.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["it is number 1 of 1 in *test_ask.yaml, and was played already"])


def test_the_same_request_is_answered_in_the_order_of_the_recording(project: pytest.Pytester) -> None:
    _test(
        project,
        """
def test_ask(cassette):
    answers = [post({"b": 1, "a": "00000000-1111-4222-8333-00000000000" + n}).json()["asked"]["a"] for n in ORDER]
    assert len(set(answers)) == 3
    if "PLAY" in os.environ:
        assert answers == json.loads(os.environ["PLAY"])


ORDER = os.environ.get("ORDER", "123")
""",
    )
    _record(project)[0].assert_outcomes(passed=1)
    digests = [json.loads(item.body)["asked"]["a"] for item in read_cassette(_cassette(project, "test_ask"))]
    for order, expected in (("312", [2, 0, 1]), ("456", [0, 1, 2])):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ORDER", order)
            patch.setenv("PLAY", json.dumps([digests[place] for place in expected]))
            project.runpytest_inprocess().assert_outcomes(passed=1)


def test_paths_are_ignored(project: pytest.Pytester) -> None:
    _test(
        project,
        """
pytestmark = pytest.mark.cassette(ignore="metadata.trace")


def test_ask(cassette):
    post({"n": 1, "metadata": {"trace": os.environ["SERVER"]}})


@pytest.mark.cassette("named", ignore=("at", "who"))
def test_other():
    post({"n": 1, "at": os.environ["SERVER"], "who": os.environ["SERVER"]})
""",
    )
    _record(project)[0].assert_outcomes(passed=2)
    assert _cassette(project, "named").exists()
    project.runpytest_inprocess().assert_outcomes(passed=2)


def test_new_adds_what_is_not_recorded(project: pytest.Pytester) -> None:
    _test(project, "def test_ask(cassette):\n    for n in json.loads(os.environ['NUMBERS']):\n        post({'n': n})\n")
    for mode, numbers, sent, kept in (
        ("once", "[1, 2]", 2, [1, 2]),
        ("new", "[2, 3, 1]", 1, [1, 2, 3]),
        ("all", "[4, 1]", 2, [4, 1]),
        ("none", "[1, 4]", 0, [4, 1]),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("NUMBERS", numbers)
            result, server = _record(project, mode=mode)
        result.assert_outcomes(passed=1)
        assert len(server.requests) == sent, mode
        assert [body["n"] for body in _bodies(_cassette(project, "test_ask"))] == kept, mode


def test_tests_may_share_a_file(project: pytest.Pytester) -> None:
    _test(
        project,
        """
@pytest.mark.cassette("shared/both.yaml", record="new")
@pytest.mark.parametrize("n", [1, 2])
def test_ask(cassette, n):
    post({"n": n})
""",
    )
    for mode in ("new", "all"):
        _record(project, mode=mode)[0].assert_outcomes(passed=2)
        assert _bodies(project.path / "shared" / "both.yaml") == [{"n": 1}, {"n": 2}]
    result = project.runpytest_inprocess("--rxloop-record=none")
    result.assert_outcomes(passed=2)


def test_a_test_that_fails_writes_nothing(project: pytest.Pytester) -> None:
    _test(project, ASKS + "    assert 'FAIL' not in os.environ\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAIL", "1")
        _record(project)[0].assert_outcomes(failed=1)
    assert not _cassette(project, "test_ask").exists()
    _record(project)[0].assert_outcomes(passed=1)
    before = _cassette(project, "test_ask").read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAIL", "1")
        _record(project, mode="all")[0].assert_outcomes(failed=1)
    assert _cassette(project, "test_ask").read_bytes() == before


def test_each_test_has_a_file(project: pytest.Pytester) -> None:
    _test(
        project,
        """
class TestThings:
    class TestInner:
        def test_ask(self, cassette):
            post(1)


@pytest.mark.parametrize("value", ["plain", "a/b", "a-b", "../up", "é", "x" * 300])
def test_ask(cassette, value):
    post(value)
    assert cassette.recorded == 1
""",
    )
    _record(project)[0].assert_outcomes(passed=7)
    names = sorted(str(path.relative_to(project.path)) for path in project.path.rglob("*.yaml"))
    assert len(names) == 7
    folder = os.path.join("cassettes", "test_it", "")  # noqa: PTH118
    assert all(name.startswith(folder) and name.isascii() and len(name) < 200 for name in names)
    assert f"{folder}TestThings.TestInner.test_ask.yaml" in names
    assert f"{folder}test_ask[plain].yaml" in names


def test_the_marker_does_what_the_fixture_does(project: pytest.Pytester) -> None:
    _test(
        project,
        """
@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.cassette)])
def test_ask(n):
    assert post(n).status_code == 200


class TestThings:
    pytestmark = pytest.mark.cassette(record="once")

    def test_ask(self):
        post(1)
""",
    )
    result, server = _record(project)
    result.assert_outcomes(passed=3)
    assert len(server.requests) == 3
    assert not _cassette(project, "test_ask[1]").exists()
    assert _cassette(project, "test_ask[2]").exists()
    result = project.runpytest_inprocess("-k", "2 or TestThings")
    result.assert_outcomes(passed=2, deselected=1)


def test_it_serves_unittest(project: pytest.Pytester) -> None:
    _test(
        project,
        """
import unittest


class Things(unittest.TestCase):
    @pytest.mark.cassette
    def test_ask(self):
        self.assertEqual(post(int(os.environ.get("N", 1))).status_code, 200)
""",
    )
    _record(project)[0].assert_outcomes(passed=1)
    project.runpytest_inprocess().assert_outcomes(passed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("N", "2")
        result = project.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["-1", "+2"])


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_another_fixture_sends_counts(project: pytest.Pytester, when: str) -> None:
    _test(
        project,
        f"""
@pytest.fixture
def prepared(cassette):
    def send():
        try:
            post(os.environ.get("BODY", "a")).raise_for_status()
        except Exception:
            pass

    if "{when}" == "before":
        send()
    yield
    if "{when}" == "after":
        send()


def test_ask(prepared):
    pass
""",
    )
    _record(project)[0].assert_outcomes(passed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BODY", "b")
        result = project.runpytest_inprocess()
    assert result.ret == 1
    result.stdout.fnmatch_lines(['-"a"', '+"b"'])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("'a', 'b'", "takes one name"),
        ("mode='once'", "takes name, record, ignore and base_url, but got mode"),
        ("record='always'", "must record none, once, new, all, but got 'always'"),
        ("ignore=[1]", "must ignore paths such as 'metadata.user_id'"),
        ("ignore=None", "must ignore paths such as 'metadata.user_id'"),
        ("''", "must name a file"),
        ("5", "must name a file"),
    ],
)
def test_a_misused_marker_is_an_error(project: pytest.Pytester, arguments: str, said: str) -> None:
    _test(project, f"@pytest.mark.cassette({arguments})\ndef test_ask(cassette):\n    pass\n")
    result = project.runpytest_inprocess()
    result.assert_outcomes(errors=1)
    assert said in _out(result)
    assert "Traceback" not in _out(result)


def test_a_broken_file_is_an_error(project: pytest.Pytester) -> None:
    _test(project, ASKS)
    path = _cassette(project, "test_ask")
    path.parent.mkdir(parents=True)
    path.write_text("not: [a cassette")
    for mode in ("none", "once", "new"):
        result, server = _record(project, mode=mode)
        result.assert_outcomes(errors=1)
        assert server.requests == []
        assert "the recording cannot be played" in _out(result)
    _record(project, mode="all")[0].assert_outcomes(passed=1)
    assert _bodies(path) == [{"n": 1}]


def test_a_wrong_mode_is_an_error(project: pytest.Pytester) -> None:
    result = project.runpytest_inprocess("--rxloop-record=always")
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_without_vcrpy_it_says_what_to_install(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vcr", None)
    _test(project, ASKS)
    result = project.runpytest_inprocess("--rxloop-record=once")
    result.assert_outcomes(errors=1)
    assert 'a cassette needs vcrpy: pip install "rxloop[test]"' in _out(result)


def test_no_secret_is_written(project: pytest.Pytester) -> None:
    _test(
        project,
        """
def test_ask(cassette):
    post(
        {"n": 1, "mcp_servers": [{"authorization_token": "hush"}]},
        "/v1/messages?key=hush&alt=sse",
        headers={"authorization": "Bearer hush", "x-api-key": "hush", "cookie": "hush"},
    )
""",
    )
    _record(project)[0].assert_outcomes(passed=1)
    assert "hush" not in _cassette(project, "test_ask").read_text()
    project.runpytest_inprocess().assert_outcomes(passed=1)


STREAMS = {
    "server-sent events": "event: a\r\ndata: {'t': 'é 😀 \u2028\x85 \\u0000'}\r\n\r\n: \x7f\n\n\ufeff\n".encode(),
    "an event stream": b"".join(bedrock.encoded(event) for event in bedrock.message(bedrock.text("Grüße"))),
    "nothing": b"",
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_played_byte_for_byte(project: pytest.Pytester, name: str) -> None:
    _test(
        project,
        f"""
def test_ask(cassette):
    with httpx2.Client(trust_env=False) as client, client.stream("POST", os.environ["SERVER"], content="x") as reply:
        assert b"".join(reply.iter_raw()) == {STREAMS[name]!r}
""",
    )
    with LocalServer() as server:
        server.route(
            lambda _: Reply(200, {"content-type": "text/event-stream"}, [STREAMS[name]] if STREAMS[name] else [])
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SERVER", server.url)
            project.runpytest_inprocess("--rxloop-record=once").assert_outcomes(passed=1)
    project.runpytest_inprocess().assert_outcomes(passed=1)


def test_what_was_not_played_can_be_told(project: pytest.Pytester) -> None:
    _test(
        project,
        """
def test_ask(cassette):
    for n in json.loads(os.environ.get("NUMBERS", "[1, 2]")):
        post(n)
    assert (cassette.played, cassette.recorded) in ((0, 2), (1, 0))
    assert cassette.path.name == "test_ask.yaml"
    if cassette.mode == "none":
        cassette.assert_complete()
""",
    )
    _record(project)[0].assert_outcomes(passed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMBERS", "[2]")
        result = project.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*every response of *test_ask.yaml must be played, but not", "*  1. POST 127.0.0.1*"])


def test_it_has_no_part_in_other_tests(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_it="""
import sys
import pytest


@pytest.fixture
def cassette():
    return "mine"


def test_it(request):
    assert "cassette" not in request.fixturenames
    for name in ("vcr", "yaml", "anthropic", "boto3", "httpx2", "google.genai"):
        assert name not in sys.modules


def test_a_fixture_of_its_own(cassette):
    assert cassette == "mine"
"""
    )
    result = project.runpytest_subprocess("-W", "error")
    result.assert_outcomes(passed=2)


TURN = """
import asyncio
import os

import pytest
import rxloop
from rxloop.adapters import AnthropicAdapter, BedrockAdapter, GeminiAdapter


@rxloop.tool
async def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b


def anthropic_adapter():
    return AnthropicAdapter(model="m")


def bedrock_adapter():
    return BedrockAdapter(model="us.anthropic.claude-sonnet-5")


def gemini_adapter():
    return GeminiAdapter(model="gemini-3.8-flash")


@pytest.mark.asyncio
async def test_turn(cassette):
    async with ADAPTER() as adapter:
        question = os.environ.get("QUESTION", "What is 2+3?")
        result = await rxloop.Turn(adapter, question, tools=[add], system="Be brief.").result()
    assert result.text == "It is 5."
    assert [call.output for call in result.tool_results] == [5]
"""

CALL = {"a": 2, "b": 3}


def _say_anthropic(server: Any) -> None:
    server.reply(tool_use("add", CALL, id="toolu_0123456789ABCDEFGHIJ"))
    server.reply(text("It is 5."))


def _say_bedrock(server: Any) -> None:
    server.reply(bedrock.tool_use("add", CALL))
    server.reply(bedrock.text("It is 5."))


def _say_gemini(server: Any) -> None:
    server.reply(gemini.call("add", CALL))
    server.reply(gemini.text("It is 5."))


PROVIDERS: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "anthropic": (AnthropicServer, _say_anthropic),
    "bedrock": (BedrockServer, _say_bedrock),
    "gemini": (GeminiServer, _say_gemini),
}


def _environment(url: str) -> dict[str, str]:
    return {
        "ANTHROPIC_API_KEY": "sk-ant-hush",
        "ANTHROPIC_BASE_URL": url,
        "AWS_ACCESS_KEY_ID": "AKIAHUSHHUSHHUSHHUSH",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": url,
        "AWS_SECRET_ACCESS_KEY": "hush",
        "GEMINI_API_KEY": "hush",
        "GOOGLE_GEMINI_BASE_URL": url,
        "SERVER": url,
    }


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_turn_is_recorded_and_played(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, provider: str
) -> None:
    make_server, say = PROVIDERS[provider]
    project.makepyfile(test_it=TURN.replace("ADAPTER()", f"{provider}_adapter()"))
    with make_server() as server:
        say(server)
        for name, value in _environment(server.url).items():
            monkeypatch.setenv(name, value)
        result = project.runpytest_inprocess("--rxloop-record=once")
    result.assert_outcomes(passed=1)
    assert "hush" not in _cassette(project, "test_turn").read_text().lower()
    for name, value in _environment("http://127.0.0.1:9").items():
        monkeypatch.setenv(name, value)
    project.runpytest_inprocess().assert_outcomes(passed=1)

    monkeypatch.setenv("QUESTION", "What is 2+4?")
    result = project.runpytest_inprocess("--durations=0")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["-*What is 2+3?*", "+*What is 2+4?*", "the test ended with InvalidRequestError in line 31 of*"]
    )
    assert _out(result).count("+++ sent") == 1
    assert "see the test's report" not in _out(result)


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """rxloop from its wheel, in a directory of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        ["uv", "build", "--wheel", "--offline", "--quiet", "--out-dir", folder, ROOT],  # noqa: S607
        check=True,
        timeout=50,
    )
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


PYPROJECT = """
[project]
name = "sums"
version = "0"

[tool.pytest.ini_options]
addopts = "--strict-markers -p no:cacheprovider"
asyncio_default_fixture_loop_scope = "function"
filterwarnings = ["error"]
"""


def _as_a_user(folder: Path, site: Path, server: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(site), **_environment(server)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_the_wheel_serves_a_project(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "tests").mkdir()
    here = f"\n    assert rxloop.__file__.startswith({str(installed)!r})\n"
    test = tmp_path / "tests" / "test_sums.py"
    test.write_text(TURN.replace("ADAPTER()", "anthropic_adapter()") + here)
    path = tmp_path / "tests" / "cassettes" / "test_sums" / "test_turn.yaml"
    with AnthropicServer() as server:
        missing = _as_a_user(tmp_path, installed, server.url)
        assert server.requests == []
        _say_anthropic(server)
        recorded = _as_a_user(tmp_path, installed, server.url, "--rxloop-record=once")
        assert len(server.requests) == 2
    assert missing.returncode == 1
    shown = path.relative_to(tmp_path)
    assert f"there is no recording at {shown}" in missing.stdout
    assert "pytest --rxloop-record=once tests/test_sums.py::test_turn" in missing.stdout
    assert recorded.returncode == 0, recorded.stdout
    assert "hush" not in path.read_text()
    played = _as_a_user(tmp_path, installed, "http://127.0.0.1:9")
    assert played.returncode == 0, played.stdout
    assert "1 passed" in played.stdout
    assert played.stderr == ""

    test.write_text(test.read_text().replace("Be brief.", "Be verbose."))
    changed = _as_a_user(tmp_path, installed, "http://127.0.0.1:9")
    assert changed.returncode == 1
    assert re.search(r'^-  "system": "Be brief."\n\+  "system": "Be verbose."$', changed.stdout, re.MULTILINE)
    assert f"compared with number 1 of 2 in {shown}, the most similar one that was not played yet" in changed.stdout


BLOCKS = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "docs" / "testing.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
)
TESTS = [block for block in BLOCKS if "def test_" in block]
SCRIPTS = [block for block in BLOCKS if "def test_" not in block]


def _model(request: Request) -> Reply:
    """It calls `add` once, where it may."""
    body = request.json
    called = body.get("tools") and "tool_result" not in str(body["messages"][-1])
    return Reply(
        200, {"content-type": "text/event-stream"}, message(tool_use("add", CALL) if called else text("It is 5."))
    )


@pytest.mark.parametrize("number", range(len(TESTS)))
def test_the_tests_of_the_guide_pass(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    project.makepyfile(test_it=TESTS[number])
    with AnthropicServer() as server:
        server.route(_model)
        for name, value in _environment(server.url).items():
            monkeypatch.setenv(name, value)
        recorded = project.runpytest_inprocess("--rxloop-record=once")
    assert recorded.ret == 0
    assert bool(server.requests) == bool(list(project.path.rglob("*.yaml"))) == ("cassette" in TESTS[number])
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    assert project.runpytest_inprocess().ret == 0


def test_the_scripts_of_the_guide_run(tmp_path: Path) -> None:
    (tmp_path / "cassettes").symlink_to(ROOT / "cassettes")
    printed = ""
    for number, block in enumerate(SCRIPTS):
        script = tmp_path / f"block_{number}.py"
        script.write_text(block)
        finished = subprocess.run(
            [sys.executable, "-W", "error", script],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert finished.stderr == ""
        printed += finished.stdout
    assert printed.startswith("T S")
    assert len(TESTS) == 3
    assert len(SCRIPTS) == 2


def test_the_guide_knows_every_argument_and_mode() -> None:
    guide = (ROOT / "docs" / "testing.md").read_text("utf-8")
    arguments = [name for name in inspect.signature(plugin._Options).parameters if name != "name"]
    assert [name for name in arguments if f"| `{name}=" not in guide] == []
    assert [mode for mode in get_args(plugin.RecordMode) if f"| `{mode}`" not in guide] == []
