"""Tables in memory and as CSV."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedskip.errors import InputError
from fedskip.records.table import Table


@pytest.mark.parametrize(
    "rows",
    [
        [{"client": "ROMEO", "test_accuracy": 0.1 + 0.2}, {"client": "12", "test_accuracy": None}],
        [{"client": 0, "test_accuracy": 1e-300}, {"client": 12, "test_accuracy": True}],
        [{"run": "1e5", "seed": 7, "final": float("inf")}],
        [{"client": "nan", "seed": 1}],
        [],
    ],
    ids=["names", "numbers", "words", "odd names", "none"],
)
def test_a_table_is_read_back_as_it_was(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    table = Table(rows[0] if rows else ["client"], rows)
    (tmp_path / "t.csv").write_text(table.csv())
    assert Table.read(tmp_path / "t.csv") == rows


def test_a_line_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    table = Table(["run", "round"], [{"run": "a", "round": 1}, {"run": "b", "round": 2}])
    for cut in range(1, 4):
        (tmp_path / "t.csv").write_text(table.csv()[:-cut])
        assert Table.read(tmp_path / "t.csv") == table[:1]


def test_what_other_programs_do_to_a_table_changes_no_number(tmp_path: Path) -> None:
    rows = [{"run": "a", "round": 1, "test_accuracy": 0.1 + 0.2, "diverged": False}]
    text = Table(rows[0], rows).csv()
    file = tmp_path / "t.csv"
    turned = "\n".join(
        ",".join(f'"{cell}"' for cell in line.split(",")[::-1]) for line in text.split("\n")
    )
    changed = [
        text.encode("utf-8-sig"),
        text.replace("\n", "\r\n").encode(),
        text.replace("False", "FALSE").encode(),
    ]
    for content in (*changed, turned.encode()):
        file.write_bytes(content)
        assert Table.read(file) == rows


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"t\.csv is empty"),
        ("run;round\na;1\n", r"t\.csv has semicolons where commas should be"),
        ("run,round\na,1,2\n", r"t\.csv line 2 must have 2 cells, as the first line has, got 3"),
        (
            "run,round\na,1\nb,1e5\n",
            r"t\.csv line 3 must have a whole number in column round, got '1e5'",
        ),
        (
            "run,test_accuracy\na,1_0\n",
            r"line 2 must have a number in column test_accuracy, got '1_0'",
        ),
        ("run,run\na,1\n", r"t\.csv has a column twice, got 'run'"),
        ("round\n1\n", r"t\.csv lacks the column run"),
        ("run,round\n,1\n", r"t\.csv line 2 has nothing in column run"),
        ("run,round\na,1", r"t\.csv ends in the middle of a line"),
    ],
)
def test_what_is_no_table_is_refused_by_file_line_and_column(
    tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(InputError, match=message):
        Table.read(tmp_path / "t.csv", filled=("run",), whole=True)


def test_a_seed_may_have_thirty_digits() -> None:
    seeds = [0, 10**30]
    assert list(Table(("seed",), [{"seed": seed} for seed in seeds]).frame()["seed"]) == seeds


def test_clients_keep_the_names_they_have() -> None:
    for names, expected in ((["0", "10"], [0, 10]), (["01", "1"], ["01", "1"])):
        text = "run,client\n" + "".join(f"a,{name}\n" for name in names)
        assert Table.parse(text, Path("clients.csv")).column("client") == expected
