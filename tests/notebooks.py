"""The notebooks in examples/, executed.

    python tests/notebooks.py

executes them and keeps what they show: do that when they, or what they show, have changed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def executed(path: Path, folder: Path) -> Any:
    """A notebook as it is after its cells were run in a folder; one that fails raises."""
    notebook = read(path)
    os.environ["JUPYTER_PLATFORM_DIRS"] = "1"  # or it warns
    client = NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}
    )
    client.execute()
    return notebook


def trimmed(notebook: Any) -> Any:
    """Without what differs from machine to machine, such as when a cell was run."""
    notebook.metadata = {"language_info": {"name": "python"}}
    for number, cell in enumerate(notebook.cells):
        cell.metadata, cell.id = {}, f"cell-{number}"
    return notebook


if __name__ == "__main__":
    for one in [path for path in NOTEBOOKS if not sys.argv[1:] or path.stem in sys.argv[1:]]:
        with tempfile.TemporaryDirectory() as name:
            nbformat.write(trimmed(executed(one, Path(name))), one)
