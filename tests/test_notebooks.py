"""The notebooks in examples/ run, and what is kept of them tells nothing of the machine that ran them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

from notebooks import NOTEBOOKS, executed, read

named = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def outputs(notebook: Any) -> list[list[set[str]]]:
    """The kinds of what each cell shows."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [[{out.output_type, *out.get("data", {})} for out in cell.outputs] for cell in cells]


def texts(notebook: Any) -> list[str]:
    shown = [out for cell in notebook.cells for out in cell.get("outputs", ())]
    return [
        text
        for out in shown
        for text in [
            out.get("text", ""),
            *(v for k, v in out.get("data", {}).items() if k != "image/png"),
        ]
    ]


def test_there_are_two() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["own_data", "skipping"]


@named
def test_they_run_and_show_what_is_kept(path: Path, tmp_path: Path) -> None:
    found = executed(path, tmp_path)
    assert outputs(found) == outputs(read(path))
    [progress] = [text for text in texts(found) if "elapsed" in text]
    begins, *notes, ends = progress.splitlines()  # of all that was drawn, these stay
    assert all(": engine: " in note for note in notes)
    assert re.fullmatch(r"\w+ in runs/\w+-1", begins)
    assert re.match(r"\w+: round (\d+)/\1  elapsed", ends)


@named
def test_what_is_kept(path: Path) -> None:
    kept = read(path)
    assert kept.metadata == {"language_info": {"name": "python"}}
    assert path.stat().st_size < 200_000
    code = [cell for cell in kept.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert all(cell.outputs for cell in code)
    for text in texts(kept):
        assert not re.search(r"/(home|root|tmp|work|usr|opt|Users)\b|<script|\x1b", text)
    assert not any(
        "stream" in kinds or "error" in kinds for cell in outputs(kept) for kinds in cell
    )


def test_one_that_fails_is_found(tmp_path: Path) -> None:
    import nbformat
    from nbclient.exceptions import CellExecutionError

    broken = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")])
    nbformat.write(broken, tmp_path / "broken.ipynb")
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        executed(tmp_path / "broken.ipynb", tmp_path)
