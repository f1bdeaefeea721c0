"""Progress in a cell of a notebook."""

from __future__ import annotations

import time
from typing import Any

import pytest
from rich.text import Text

from fedskip.report import cell
from fedskip.report.cell import Cell

pytest.importorskip("IPython")


class Notebook:
    """Keeps what a cell was given to show."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def display(self, what: dict[str, str], *, raw: bool, display_id: bool) -> Notebook:
        assert raw
        assert display_id
        return self.update(what, raw=True)

    def update(self, what: dict[str, str], *, raw: bool) -> Notebook:
        assert what.keys() == {"text/plain"}  # the same on light and dark, and no scripts
        self.shown.append(what["text/plain"])
        return self


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    made = Notebook()
    monkeypatch.setattr("IPython.display.display", made.display)
    return made


def drawing(text: Any = "round 3 of 10") -> tuple[Cell, Any]:
    to = cell.console()
    return Cell(lambda: Text(text, "bold red"), console=to, refresh_per_second=50, transient=True), to


def test_it_is_drawn_again_below_the_lines_that_stay(notebook: Notebook) -> None:
    drawn, to = drawing()
    assert not drawn.is_started
    drawn.start()
    assert drawn.is_started
    to.print("demo in runs/demo-1")
    deadline = time.monotonic() + 10
    while len(notebook.shown) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    drawn.stop()
    assert not drawn.is_started
    first, *later, last = notebook.shown
    assert first == "round 3 of 10"
    assert later[-1] == "demo in runs/demo-1\nround 3 of 10"
    assert last == "demo in runs/demo-1"


def test_it_stops_once(notebook: Notebook) -> None:
    drawn, _ = drawing()
    drawn.stop()
    assert not notebook.shown
    drawn.start()
    drawn.stop()
    drawn.stop()
    assert notebook.shown == ["round 3 of 10", ""]
