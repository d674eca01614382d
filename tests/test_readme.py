"""The README's Python blocks run, as they stand, against a local server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.providers import gemini
from tests.providers.anthropic import AnthropicServer, message, text, tool_use
from tests.providers.http import Reply, Request

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def _answer(request: Request) -> Reply:
    """A model that calls `add` once, where it may, and then says what it got."""
    body = request.json
    if "contents" in body:
        answered = "functionResponse" in str(body["contents"][-1])
        parts = gemini.text("It is 5.") if answered else gemini.call("add", {"a": 2, "b": 3})
        return Reply(200, {"content-type": "text/event-stream"}, [gemini.sse(chunk) for chunk in gemini.chunks(parts)])
    answered = "tool_result" in str(body["messages"][-1])
    called = [tool_use("add", {"a": 2, "b": 3})] if body.get("tools") and not answered else [text("It is 5.")]
    return Reply(200, {"content-type": "text/event-stream"}, message(*called))


CREDENTIALS = """
import google.auth
from google.oauth2.credentials import Credentials

google.auth.default = lambda **_: (Credentials("test-token"), "test-project")
"""
"""What a machine with Google's credentials has, for the block that asks for them."""


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_block_of_the_readme_runs(number: int, tmp_path: Path) -> None:
    script = tmp_path / "block.py"
    script.write_text(CREDENTIALS * ("genai" in BLOCKS[number]) + BLOCKS[number])
    with AnthropicServer() as server:
        server.route(_answer)
        finished = subprocess.run(
            [sys.executable, "-W", "error", script],
            env={
                "ANTHROPIC_API_KEY": "test-key",
                "ANTHROPIC_BASE_URL": server.url,
                "GEMINI_API_KEY": "test-key",
                "GOOGLE_GEMINI_BASE_URL": server.url,
                "GOOGLE_VERTEX_BASE_URL": server.url,
                "PYTHONPATH": str(ROOT),
            },
            capture_output=True,
            text=True,
            timeout=50,
            cwd=ROOT,
            check=False,
        )
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
    if "ToolFinished" in BLOCKS[number]:
        assert "[add → 5]\nIt is 5." in finished.stdout
    if "GeminiAdapter" in BLOCKS[number]:
        assert finished.stdout == "It is 5.\n" * 3


def test_the_readme_has_its_blocks() -> None:
    assert len(BLOCKS) >= 4


def test_the_readme_names_every_operator() -> None:
    readme = (ROOT / "README.md").read_text()
    operators = {path.stem for path in (ROOT / "operators").glob("*.py")} - {"__init__"}
    assert {name for name in operators if f"`{name}`" not in readme} == set()
