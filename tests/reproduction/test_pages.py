"""Pages have the tables that our runs give, and nothing hidden in them."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from reproduction import figures, pages
from reproduction.columns import Studies
from reproduction.pages import PAGES, ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("name", PAGES)
def test_tables_are_up_to_date(ours: Studies, name: str) -> None:
    """Else run: python -m reproduction tables."""
    assert pages.page(name, ours) == (ROOT / name).read_text(encoding="utf-8")


def test_a_table_is_found_by_its_heading() -> None:
    text = "# One\n\n| a |\n| --- |\n| 1 |\n\nwords\n\n## Two\n\nmore\n\n| b |\n| --- |\n"
    new = pages.renewed(text, "Two", pd.DataFrame({"c": ["x"]}))
    assert new == text.replace("| b |\n| --- |", "| c |\n| --- |\n| x |")
    with pytest.raises(ValueError, match="no heading 'Three'"):
        pages.renewed(text, "Three", pd.DataFrame())
    with pytest.raises(ValueError, match="no table under 'Two'"):
        pages.renewed(text.partition("| b")[0], "Two", pd.DataFrame())


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_no_hidden_markers(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    assert not re.search(r"<!--\s*(=|/?numbers)", text)


def test_pictures_on_pages_are_drawn(ours: Studies) -> None:
    shown = set()
    for name in PAGES:
        for link in re.findall(
            r"!\[[^\]]*\]\(([^)]+\.svg)\)", (ROOT / name).read_text(encoding="utf-8")
        ):
            shown.add(str(((ROOT / name).parent / link).resolve().relative_to(ROOT)))
    assert set(figures.DRAWN) <= shown, "else nobody sees them"
    assert {path.name for path in (ROOT / "docs" / "results").glob("*.svg")} <= {
        name.rpartition("/")[2] for name in figures.DRAWN
    }


def test_figures_are_the_same_each_time(ours: Studies) -> None:
    once, again = (figures.svg(figures.figure5(ours)) for _ in range(2))
    assert once == again


def test_the_figure_of_gains_has_13_columns(ours: Studies) -> None:
    """Hollow where we have no run."""
    [axes] = figures.gains(ours).axes
    paper = [line for line in axes.lines if line.get_marker() == "D" and len(line.get_xdata())]
    assert len(paper) == 13
    hollow = [line for line in paper if line.get_fillstyle() == "none"]
    assert len(hollow) == sum("not run" in label.get_text() for label in axes.get_yticklabels()) > 0


def test_verdicts_are_short() -> None:
    text = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    for line in re.findall(r"^\| .* \| (.*\]\(.*) \|$", text, re.M):
        words = re.sub(r"\]\([^)]*\)", "]", line).split()
        assert len(words) <= 25, line


def test_the_code_of_errata_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for block in re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "errata.md").read_text("utf-8"), re.S
    ):
        exec(block, {})
    printed = capsys.readouterr().out
    assert "50 [" in printed
    assert "167 {'FedAvg': 106" in printed
