"""The notebooks run from end to end, and their outputs are committed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TIMED = ("2_composition", "3_recording_and_replay")
"""What these show depends on how quick the machine is, or on when they run."""

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells_of(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]


def printed(path: Path) -> list[str]:
    return [
        "".join(output["text"])
        for cell in cells_of(path)
        for output in cell["outputs"]
        if output["output_type"] == "stream" and output["name"] == "stdout"
    ]


@every_notebook
@pytest.mark.timeout(120)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("nbclient", reason="the notebooks need nbclient, ipykernel and matplotlib")
    finished = subprocess.run(
        [sys.executable, ROOT / "scripts" / "run_notebooks.py", "--to", tmp_path, path],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    if path.stem not in TIMED:
        assert printed(tmp_path / path.name) == printed(path), "scripts/run_notebooks.py writes the outputs"


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) == 5


@every_notebook
def test_outputs_are_committed(path: Path) -> None:
    cells = cells_of(path)
    assert all(cell["execution_count"] for cell in cells)
    assert any(cell["outputs"] for cell in cells)
    assert "Traceback" not in str([cell["outputs"] for cell in cells])
