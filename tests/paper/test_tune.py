"""Values that were tried, and the one that validation chooses."""

from __future__ import annotations

from pathlib import Path

from fedskip.paper.columns import settings
from fedskip.paper.tune import tune_sheet
from fedskip.report.sheet import BEST
from studies import of_cifar10

COLUMN = settings()["tune/feddyn"]


def test_validation_chooses_and_fedavg_stands_beside(tmp_path: Path) -> None:
    """0.001 is the best by validation, 0.01 by the test set; of 0.0001 a run diverged."""
    methods = "fedavg, feddyn(alpha=[0.01, 0.001, 0.0001])"
    labels = ["FedAvg", *(f"FedDyn(alpha={alpha})" for alpha in (0.01, 0.001, 0.0001))]
    validated = dict(zip(labels, (0.3, 0.4, 0.5, 0.9), strict=True))
    tested = dict(zip(labels, (0.4, 0.8, 0.6, 0.9), strict=True))
    made = of_cifar10(
        tmp_path, methods, {label: [score] * 2 for label, score in tested.items()}, validation=0.1
    )
    for row in made.history:
        row["val_accuracy"] = validated[row["method"]] - 0.1 * (row["round"] == 1)
    for row in made.summary:
        row["best_val"] = tested[row["method"]] - 0.01 * (1 + row["seed"])
        row["diverged"] = row["method"] == labels[3] and row["seed"] == 1
    sheet = tune_sheet(COLUMN, [made])
    assert sheet.headers == [
        "method", "validation", "test at best validation", "best test", "gain over FedAvg", "",
    ]  # fmt: skip
    rows = {row[0].plain: [cell.plain for cell in row[1:]] for row in sheet.rows}
    assert rows["FedAvg"] == ["30.00 ± 0.00", "38.50 ± 0.71", "40.00 ± 0.00", "", "2 of 3 seeds"]
    assert rows[labels[2]][:3] == ["50.00 ± 0.00", "58.50 ± 0.71", "60.00 ± 0.00"]
    assert rows[labels[2]][3].startswith("+20.00 (")
    assert rows[labels[3]][4] == "2 of 3 seeds, 1 of 2 diverged"
    assert rows["FedDyn(alpha=1e-05)"][0] == "not run"
    assert [row[0].plain for row in sheet.rows if row[1].style == BEST] == [labels[2]]
    assert sheet.note == f"The validation split chooses {labels[2]}, by the mean over 2 seeds."
    made.summary.rows[:] = [row for row in made.summary if (row["method"], row["seed"]) != ("FedAvg", 1)]
    made.history.rows[:] = [row for row in made.history if (row["method"], row["seed"]) != ("FedAvg", 1)]
    assert tune_sheet(COLUMN, [made]).note.endswith("over 2 seeds."), "FedAvg has no part in it"


def test_the_best_validation_score_counts_wherever_it_is(tmp_path: Path) -> None:
    made = of_cifar10(tmp_path, "feddyn(alpha=0.01)", {"FedDyn(alpha=0.01)": [0.5]}, validation=0.1)
    for row, score in zip(made.history, (0.7, 0.3), strict=True):
        row["val_accuracy"] = score
    cells = {row[0].plain: row[1].plain for row in tune_sheet(COLUMN, [made]).rows}
    assert cells["FedDyn(alpha=0.01)"] == "70.00"


def test_nothing_was_tried() -> None:
    sheet = tune_sheet(COLUMN, [])
    assert [row[1].plain for row in sheet.rows] == ["not run"] * 5
    assert sheet.note == ""
