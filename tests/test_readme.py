"""The Python blocks of the README and of every other page run, as they stand, against a local server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.providers import bedrock, eventstream, gemini, sagemaker
from tests.providers.anthropic import AnthropicServer, message, text, tool_use
from tests.providers.http import LocalServer, Reply, Request

ROOT = Path(__file__).parent.parent


def _blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


PAGES = [str(page.relative_to(ROOT)) for folder in (".", "docs", "cassettes") for page in (ROOT / folder).glob("*.md")]
APART = ("docs/event_bus.md", "docs/new_provider.md", "docs/testing.md")
"""Pages whose blocks need something else beside them, and have tests of their own."""

BLOCKS = [(page, block) for page in sorted(PAGES) if page not in APART for block in _blocks(page)]
NEW_PROVIDER = _blocks("docs/new_provider.md")


def _answer(request: Request) -> Reply:
    """A model that calls `add` once, where it may, and then says what it got."""
    body = request.json
    if "contents" in body:
        answered = "functionResponse" in str(body["contents"][-1])
        parts = gemini.text("It is 5.") if answered else gemini.call("add", {"a": 2, "b": 3})
        return Reply(200, {"content-type": "text/event-stream"}, [gemini.sse(chunk) for chunk in gemini.chunks(parts)])
    if request.path.endswith("/converse-stream"):
        answered = "toolResult" in str(body["messages"][-1])
        block = bedrock.text("It is 5.") if answered else bedrock.tool_use("add", {"a": 2, "b": 3})
        frames = [bedrock.encoded(event) for event in bedrock.message(block)]
        return Reply(200, {"content-type": eventstream.CONTENT_TYPE}, frames)
    if request.path.startswith("/endpoints/"):
        writes = [b"It is ", b"5."] if "inputs" in body else sagemaker.openai("It is 5.")
        return Reply(200, {"content-type": eventstream.CONTENT_TYPE}, sagemaker.payload(writes))
    answered = "tool_result" in str(body["messages"][-1])
    if answered and any(item["name"] == "final_result" for item in body["tools"]):
        final = tool_use("final_result", {"terms": [2, 3], "total": 5})
        return Reply(200, {"content-type": "text/event-stream"}, message(final))
    called = [tool_use("add", {"a": 2, "b": 3})] if body.get("tools") and not answered else [text("It is 5.")]
    return Reply(200, {"content-type": "text/event-stream"}, message(*called))


CREDENTIALS = """
import google.auth
from google.oauth2.credentials import Credentials

google.auth.default = lambda **_: (Credentials("test-token"), "test-project")
"""
"""What a machine with Google's credentials has, for the block that asks for them."""


def _run(block: str, folder: Path, environment: dict[str, str]) -> str:
    script = folder / "block.py"
    script.write_text(block)
    (folder / "cassettes").symlink_to(ROOT / "cassettes")
    finished = subprocess.run(
        [sys.executable, "-W", "error", script],
        env={"PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=50,
        cwd=folder,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
    return finished.stdout


@pytest.mark.parametrize("number", range(len(BLOCKS)), ids=[page for page, _ in BLOCKS])
def test_a_block_of_a_page_runs(number: int, tmp_path: Path) -> None:
    _, block = BLOCKS[number]
    with AnthropicServer() as server:
        server.route(_answer)
        environment = {
            "ANTHROPIC_API_KEY": "test-key",
            "ANTHROPIC_BASE_URL": server.url,
            "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": server.url,
            "AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME": server.url,
            "AWS_SECRET_ACCESS_KEY": "test-key",
            "GEMINI_API_KEY": "test-key",
            "GOOGLE_GEMINI_BASE_URL": server.url,
            "GOOGLE_VERTEX_BASE_URL": server.url,
        }
        printed = _run(CREDENTIALS * ("genai" in block) + block, tmp_path, environment)
    if "ToolFinished" in block:
        assert "[add → 5]\nIt is 5." in printed
    if "to_agui" in block:
        events = [json.loads(line) for line in printed.splitlines()]
        assert events[0]["type"] == "RUN_STARTED"
        assert events[-1]["outcome"] == {"type": "success"}
        assert [event["content"] for event in events if event["type"] == "TOOL_CALL_RESULT"] == ["5"]
    if "AguiFrames" in block:
        assert printed.endswith('"messageId":"turn-1-0-text-0","delta":" 5."}\n\n')
    if "to_ui_message_stream" in block:
        assert "{'type': 'text-delta', 'id': 'turn_" in printed
        assert "'finishReason': 'stop'" in printed
    if "partial_output" in block:
        assert printed.endswith('5 {"terms": [2, 3], "total": 5}\n')
    if "GeminiAdapter" in block:
        assert printed == "It is 5.\n" * 4
    if "SageMakerAdapter" in block:
        answered, estimated = printed.splitlines()
        assert answered == "It is 5."
        assert estimated.startswith("It is 5. ('the container did not count input_tokens and output_tokens")


def _ollama(request: Request) -> Reply:
    """Ollama's chat API: a model that calls `add` once, where it may."""
    body = request.json
    if body.get("tools") and not any(message["role"] == "tool" for message in body["messages"]):
        call = {"function": {"name": "add", "arguments": {"a": 2, "b": 3}}}
        messages = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    else:
        messages = [{"role": "assistant", "content": piece} for piece in ("It ", "is ", "5.")]
    end = {"message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop"}
    lines = [{"message": message, "done": False} for message in messages]
    counted = {**end, "prompt_eval_count": 10, "eval_count": 5}
    body_lines = [json.dumps({"model": body["model"], **line}).encode() + b"\n" for line in (*lines, counted)]
    return Reply(200, {"content-type": "application/x-ndjson"}, body_lines)


@pytest.mark.parametrize("number", range(len(NEW_PROVIDER)))
def test_a_block_of_the_guide_to_a_new_provider_runs(number: int, tmp_path: Path) -> None:
    with LocalServer() as server:
        server.route(_ollama)
        printed = _run(NEW_PROVIDER[number], tmp_path, {"OLLAMA_HOST": server.url})
    assert printed == ("It is 5.\n", "[5] It is 5.\n", "")[number]


@pytest.mark.parametrize("number", [0, 1])
def test_a_new_provider_tells_that_its_server_is_down(number: int, tmp_path: Path) -> None:
    with LocalServer() as server:
        nobody = server.url
    asked = '"What is 2+3?"'
    block = NEW_PROVIDER[number].replace(asked, f"{asked}, retry=rxloop.RetryPolicy(retries=1, first_delay=0)")
    block = block.replace("if isinstance(event, rxloop.TextDelta)", "print(event.type)\n            if False")
    failing = block.replace(
        "asyncio.run(main())",
        "try:\n    asyncio.run(main())\nexcept rxloop.ConnectionFailedError as error:\n"
        "    print(error.retryable, type(error.__cause__).__name__)",
    )
    printed = _run(failing, tmp_path, {"OLLAMA_HOST": nobody}).splitlines()
    assert printed[-1] == "True ConnectError"
    assert printed.count("retry_scheduled") == (1 if number == 0 else 0)


def test_a_new_provider_is_less_than_thirty_lines() -> None:
    [provider] = re.findall(r"^class OllamaText.*?(?=^async def main)", NEW_PROVIDER[0], re.MULTILINE | re.DOTALL)
    assert len([line for line in provider.splitlines() if line.strip()]) < 30


def test_the_readme_has_its_blocks() -> None:
    assert {page for page, _ in BLOCKS} == {
        "README.md",
        "cassettes/README.md",
        "docs/long_turns.md",
        "docs/server.md",
        "docs/serve.md",
        "docs/user_interfaces.md",
    }
    assert [page for page, _ in BLOCKS].count("README.md") >= 9


def test_the_readme_names_every_argument_of_sagemakers() -> None:
    readme = (ROOT / "README.md").read_text()
    for name in ("model", "body", "payload", "invocation"):
        assert f"`{name}=`" in readme
    for public in ("AutoPayload", "PayloadDecoder", "inputs_body", "messages_body"):
        assert f"`{public}`" in readme


def test_the_readme_names_every_operator() -> None:
    readme = (ROOT / "README.md").read_text()
    operators = {path.stem for path in (ROOT / "operators").glob("*.py")} - {"__init__"}
    assert {name for name in operators if f"`{name}`" not in readme} == set()
