"""Tables: cells, Table IV and early rounds by hand, and what stands beside what."""

from __future__ import annotations

import lzma
from math import nan

import numpy as np
import pandas as pd
import pytest

from reproduction import evidence_tables, partitions, tables
from reproduction.columns import Studies, columns
from reproduction.runs import RUNS
from reproduction.statistics import Difference

BETA = "table2/cifar10-beta0.5"


def test_cells() -> None:
    assert tables.spread(pd.Series([70.0, 71.0])) == "70.50 ± 0.71"
    assert tables.spread(pd.Series([70.0])) == "70.00"
    runs = pd.DataFrame({"method": "A", "seed": range(3), "best": [70.04, 9.0, nan]})
    runs = runs.assign(diverged=[False, False, True], chance=[False, True, False])
    assert tables.cell(runs, "A") == "70.0, at chance, diverged"
    assert tables.cell(runs[1:], "A") in ("1 at chance, 1 diverged", "1 diverged, 1 at chance")
    assert tables.cell(runs, "B") == "not run"
    assert tables.gained(Difference(3, 1.0, -0.001, 2.0)) == "+1.00 (0.00 to +2.00)"
    assert tables.gained(Difference(1, -0.5)) == "-0.50"
    assert tables.gained(Difference()) == "–"


def test_markdown() -> None:
    table = pd.DataFrame({"a|b": ["x", "y"], "n": [1, 2]})
    assert tables.markdown(table).splitlines() == [
        "| a\\|b | n |",
        "| --- | ---: |",
        "| x | 1 |",
        "| y | 2 |",
    ]


def history(folder: str) -> pd.DataFrame:
    text = lzma.decompress((RUNS / folder / "history.csv.xz").read_bytes()).decode().splitlines()
    names = text[0].split(",")
    return pd.DataFrame([dict(zip(names, line.split(","), strict=True)) for line in text[1:]])


def test_table4_by_hand(ours: Studies) -> None:
    """The first merge of FedSkip-5 at seed 0 that has FedAvg's best accuracy."""
    rows = history("cifar10-p10-beta0.5-seed0")
    mine, base = (
        rows[rows["method"] == method]["test_accuracy"].astype(float).tolist()
        for method in ("FedSkip-5", "FedAvg")
    )
    merges = next(number for number, score in enumerate(mine, 1) if score >= max(base))
    found = tables.reached(columns()[BETA], ours).query("method == 'FedSkip-5' and seed == 0")
    assert found["merges"].tolist() == [merges]
    assert found["round"].tolist() == [5 * merges]


def test_table4_where_some_seeds_never_get_there(ours: Studies) -> None:
    table = tables.table4(ours, ["table2/cifar10-beta1", "table3/cifar10-p50"]).set_index("method")
    assert table["table2/cifar10-beta1"]["FedSkip-5"] == "2 of 3 seeds"
    assert table["table3/cifar10-p50"]["FedDyn"] == "0 of 3 seeds"


def test_compositions_are_compared_with_themselves(ours: Studies) -> None:
    table = tables.compositions(ours, "compose/cifar10-beta0.5").set_index("method")
    runs = columns()["compose/cifar10-beta0.5"].runs(ours).set_index(["method", "seed"])["best"]
    gaps = [runs["FedDyn+skip-10", seed] - runs["FedDyn", seed] for seed in range(3)]
    gain = table["gain over the same without skipping"]["FedDyn+skip-10"]
    assert gain.startswith(f"{np.mean(gaps):+.2f} (")
    assert table["gain over the same without skipping"]["FedDyn"] == ""
    assert table["merges to FedAvg's best"]["FedDyn+skip-10"] == "8, 7, 5"


def test_early_rounds_by_hand(ours: Studies) -> None:
    """FedSkip-5's merge of round 10 and FedAvg's, at seed 0 alone."""
    [study] = [study for study in ours if study.name == "cifar10-p10-beta0.5-seed0"]
    table = tables.early((study,), [BETA], rounds=(10, 14)).set_index("method")
    rows = history(study.name).astype({"round": int, "test_accuracy": float})
    at = {(row["method"], row["round"]): 100 * row["test_accuracy"] for _, row in rows.iterrows()}
    assert table["round 10"]["FedSkip-5"] == f"{at['FedSkip-5', 10] - at['FedAvg', 10]:+.2f}"
    assert table["round 14"]["FedSkip-5"] == f"{at['FedSkip-5', 10] - at['FedAvg', 14]:+.2f}"


def test_tails_are_the_last_tenth(ours: Studies) -> None:
    found = tables.tails(columns()[BETA], ours, "drift_mean").query(
        "method == 'FedAvg' and seed == 0"
    )
    rows = history("cifar10-p10-beta0.5-seed0")
    late = rows[(rows["method"] == "FedAvg") & (rows["round"].astype(int) > 180)]
    assert len(late) == 20
    assert found["drift_mean"].tolist() == pytest.approx([late["drift_mean"].astype(float).mean()])


def test_the_paper_stands_beside_ours(ours: Studies) -> None:
    table = tables.column_table("table3/femnist", ours).set_index("method")
    assert (table["paper"]["FedAvg"], table["paper"]["SCAFFOLD"]) == ("63.47", "\\*")
    assert table["paper's gain"]["FedSkip-10"] == "+4.19"
    assert table["verdict"][["FedAvg", "SCAFFOLD"]].tolist() == ["", ""]
    assert "paper" not in tables.column_table("clip/cifar10-p50-clip10", ours)


def test_what_was_not_run(ours: Studies) -> None:
    table = tables.missing(ours).set_index("fedskip run")
    assert BETA not in table.index
    assert "table3/cifar100-p100" in table.index
    [study] = [study for study in ours if study.name == "shakespeare-fedskip"]
    lacking = tables.missing((study,)).set_index("fedskip run")
    assert lacking["runs"]["table3/shakespeare"] == 26
    assert "FedSkip-3 at 1, 2" in lacking["which"]["table3/shakespeare"]


def test_clients_with_one_class_come_from_the_cap() -> None:
    """Of the first 20 partitions into 50 clients, three have one; without the cap none."""
    seeds = [seed for seed in range(20) if partitions.single_class(50, seed)]
    assert seeds == [1, 11, 13]
    assert partitions.single_class(50, 1) == [11]
    assert not any(partitions.single_class(50, seed, kind="dirichlet_plain") for seed in seeds)


def test_gradients_right_after_such_a_client() -> None:
    """Client 11 is alone at seed 1: slot 0 goes on from it, and slot 1 starts after a merge."""
    rows = [(1, 0, 11, 1.0), (2, 0, 5, 9.0), (3, 0, 5, 2.0), (3, 1, 11, 3.0), (4, 1, 7, 4.0)]
    visits = pd.DataFrame(rows, columns=["round", "slot", "client", "largest"])
    visits = visits.assign(method="FedSkip-3", seed=1)
    [found] = partitions.after_single_class(visits, "FedSkip-3", 50).to_dict("records")
    assert found["largest gradients right after it"] == "9"
    assert found["largest gradient otherwise"] == "4"


def test_class_counts_of_figure_3() -> None:
    for name in ("iid", "beta1", "beta0.5"):
        counts = evidence_tables.evidence(f"fig3/fig3-{name}").filter(like="client")
        assert counts.shape == (10, 10)
        assert counts.sum().sum() == 50_000
        assert (counts.sum(axis=1) == 5000).all()


def test_no_table_averages_over_runs_at_chance(ours: Studies) -> None:
    table = tables.table1(ours).set_index("column")
    assert table["best"]["table1/cifar10-cross-1"] == "at chance, at chance, 47.8"
    assert table["best"]["table1/cifar100-cross"] == "not run"
