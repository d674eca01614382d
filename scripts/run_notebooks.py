"""Execute the notebooks and write their outputs into them, or into another folder.

uv run python scripts/run_notebooks.py [--to FOLDER] [NOTEBOOK ...]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent


def executed(path: Path) -> nbformat.NotebookNode:
    """Run a notebook in its folder; an exception in a cell ends it."""
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=60, kernel_name="python3", resources=resources).execute()
    for cell in notebook.cells:
        # when it ran is of no interest
        cell.metadata.pop("execution", None)
    return notebook


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="*", type=Path)
    parser.add_argument("--to", type=Path)
    arguments = parser.parse_args()
    for path in arguments.notebooks or sorted((ROOT / "notebooks").glob("*.ipynb")):
        target = path if arguments.to is None else arguments.to / path.name
        nbformat.write(executed(path), target)
        print(target)


if __name__ == "__main__":
    main()
