"""What of the paper is computed from runs and partitions."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fedskip.engine.local import Local
from fedskip.input.errors import InputError
from fedskip.paper.columns import columns
from fedskip.paper.computed import COMPUTED, of_column, table4
from fedskip.records.table import Table
from fedskip.report.results import Results
from studies import curve, recorded, run, study


def kept(tmp_path: Path, rounds: int = 200, seed: int = 0) -> Results:
    """FEMNIST: FedAvg's best in round 4, its last in round 2; FedSkip-3 is there in round 3."""
    rows = curve("FedAvg", seed, {2: 0.4, 4: 0.5, 5: 0.4}) + curve("FedSkip-3", seed, {3: 0.5})
    runs = [run("FedAvg", seed, 0.4) | {"best": 0.5}, run("FedSkip-3", seed, 0.5)]
    return recorded(
        tmp_path, runs, rows=rows, data={"name": "femnist"}, partition={"kind": "natural"}, clients=180,
        model={"name": "cnn-femnist"}, cohort=10, rounds=rounds, methods=["fedavg", "fedskip(period=3)"],
        local=vars(Local(small_clients="short")),
    )  # fmt: skip


def shown(parts: list[object]) -> str:
    console = Console(width=120, file=io.StringIO())
    for part in parts:
        console.print(part)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_table_4(tmp_path: Path) -> None:
    text = shown(table4([kept(tmp_path), kept(tmp_path, seed=1)], tmp_path))
    with (tmp_path / "table4.csv").open() as file:
        rows = list(csv.DictReader(file))
    found = {
        (r["of"], r["method"]): (int(r["reached"]), float(r["rounds"]), float(r["merges"])) for r in rows
    }
    assert found == {
        ("best", "FedAvg"): (2, 4.0, 2.0), ("best", "FedSkip-3"): (2, 3.0, 1.0),
        ("last", "FedAvg"): (2, 2.0, 1.0), ("last", "FedSkip-3"): (2, 3.0, 1.0),
    }  # fmt: skip
    assert "66.67×" in text, "200 rounds of FedAvg against 3"
    assert "not run: table2/cifar10-iid. Make it with: fedskip run table2/cifar10-iid" in text


def test_of_runs_of_several_lengths_the_longest_count(tmp_path: Path) -> None:
    column = columns()["table3/femnist"]
    results = of_column(column, [kept(tmp_path, rounds=20), kept(tmp_path, rounds=200, seed=1)])
    assert results is not None
    assert set(results.summary.column("seed")) == {1}
    bare = replace(kept(tmp_path), history=Table(()))
    assert of_column(column, [bare]) is None, "without histories there is nothing to compute"


def test_the_way_of_the_models(tmp_path: Path) -> None:
    made = study(tmp_path / "s", methods="fedavg, fedskip(period=2)", rounds=4, seeds=1).run()
    text = shown(COMPUTED["fig2"].make([made], tmp_path))
    assert "toy.FedSkip-2.s0" in text
    assert (tmp_path / "fig2.svg").exists()
    with pytest.raises(InputError, match=r"fig2 needs a run that skips\. Run one first"):
        COMPUTED["fig2"].make([], tmp_path)


def test_curves_of_what_was_run(tmp_path: Path) -> None:
    text = shown(COMPUTED["fig4"].make([kept(tmp_path)], tmp_path))
    assert (tmp_path / "fig4-femnist.svg").exists()
    assert "not run: table3/shakespeare" in text
