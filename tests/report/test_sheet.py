"""A table of text, in the forms that people paste."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console
from rich.text import Text

from fedskip.report.sheet import BEST, Sheet

SHEET = Sheet(
    "demo", ["method", "best"], 1,
    [[Text("My_1 & co|"), Text("50.00 ± 1.00", BEST)], [], [Text("central"), Text("–")]],
)  # fmt: skip


def test_what_numbers_are_stands_below_markdown() -> None:
    sheet = replace(SHEET, note="Reduced: 20 of 1,000 rounds.")
    assert sheet.markdown() == f"{SHEET.markdown()}\nReduced: 20 of 1,000 rounds.\n"


def test_markdown() -> None:
    assert SHEET.markdown().splitlines() == [
        "| method | best |", "| --- | ---: |", "| My_1 & co\\| | **50.00 ± 1.00** |", "| central | – |",
    ]  # fmt: skip


def test_latex_is_escaped_and_has_rules() -> None:
    lines = replace(SHEET, note="100 % of it, -1.5 in FedSkip-5").latex("main").splitlines()
    assert r"\caption{demo. 100 \% of it, $-$1.5 in FedSkip-5}" in lines
    assert r"\label{tab:main}" in lines
    assert r"My\_1 \& co| & \textbf{50.00 $\pm$ 1.00} \\" in lines
    assert lines.index(r"\midrule", lines.index(r"\midrule") + 1) == len(lines) - 5
    assert r"central & -- \\" in lines
    odd = Sheet("", ["[a]", "b"], 1, [[Text("[x<y]"), Text("1")]])
    assert r"{[}x$<$y] & 1 \\" in odd.latex(), "a bracket after a line's end would be its argument"
    assert Sheet("", ["a", "b"], 1, []).folded(80) == [[0, 1]]


def test_columns_that_fit_stay_together() -> None:
    wide = Sheet("demo", ["name", "a", "b", "c"], 1, [[Text("x" * 10), *[Text("y" * 10)] * 3]])
    assert wide.folded(80) == [[0, 1, 2, 3]]
    assert wide.folded(40) == [[0, 1, 2], [0, 3]]
    assert wide.folded(5) == [[0, 1], [0, 2], [0, 3]]


@pytest.mark.parametrize("width", range(30, 90))
def test_a_name_that_fits_is_not_squeezed(width: int) -> None:
    wide = Sheet("", ["name", *"abcdef"], 1, [[Text("a long name"), *[Text(f"{n}" * 9) for n in range(6)]]])
    console = Console(width=width, file=io.StringIO())
    console.print(wide)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.count("a long name") == len(wide.folded(width))
    assert all(f"{n}" * 9 in text for n in range(6))
