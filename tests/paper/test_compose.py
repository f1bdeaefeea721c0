"""Methods with and without skipping, from results that can be checked by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedskip.paper.columns import settings
from fedskip.paper.compose import compose_figure, compose_sheet
from fedskip.records.table import Table
from fedskip.report.sheet import BEST
from studies import of_cifar10


def test_gains_over_the_same_and_over_fedavg(tmp_path: Path) -> None:
    """Runs without skipping are Table II's; MOON with another mu is not of it."""
    table2 = of_cifar10(
        tmp_path,
        "fedavg, feddyn, moon(mu=1)",
        {"FedAvg": [0.5, 0.6], "FedDyn": [0.6, 0.7], "MOON": [0.9, 0.9]},
    )
    own = of_cifar10(
        tmp_path, "feddyn(period=5), scaffold(period=3)",
        {"FedDyn+skip-5": [0.62, 0.74], "SCAFFOLD+skip-3": [0.9, 0.1]},
    )  # fmt: skip
    rows = [row | {"diverged": row["run"] == "a.SCAFFOLD+skip-3.s1"} for row in own.summary]
    sheet = compose_sheet(
        settings()["compose/cifar10-beta0.5"],
        [table2, replace(own, summary=Table(own.summary.columns, rows))],
    )
    found, method = {}, ""
    for row in sheet.rows:
        method = row[0].plain or method
        found[method, row[1].plain] = row[2:]
    assert len(found) == 24
    assert [cell.plain for cell in found["FedAvg", "1"]] == ["55.00 ± 7.07 (2 of 3 seeds)", "", ""]
    gains = [cell.plain.partition(" (")[0] for cell in found["FedDyn", "5"]]
    assert gains == ["68.00 ± 8.49", "+3.00", "+13.00"]
    assert found["FedDyn", "5"][0].style == BEST
    assert [cell.plain for cell in found["SCAFFOLD", "3"]] == [
        "90.00 (2 of 3 seeds, 1 of 2 diverged)", "–", "–",
    ]  # fmt: skip
    assert [cell.plain for cell in found["MOON", "1"]] == ["not run", "", ""]
    assert sheet.note == "The strongest is FedDyn+skip-5."


def test_more_seeds_of_table_2_do_not_change_the_strongest(tmp_path: Path) -> None:
    table2 = of_cifar10(
        tmp_path, "fedavg, feddyn", {"FedAvg": [0.5] * 5, "FedDyn": [0.6, 0.6, 0.6, 0.9, 0.9]}
    )
    own = of_cifar10(tmp_path, "feddyn(period=5)", {"FedDyn+skip-5": [0.7] * 3})
    sheet = compose_sheet(settings()["compose/cifar10-beta0.5"], [table2, own])
    assert sheet.note == "The strongest is FedDyn+skip-5, over the 3 seeds that all have."
    more = of_cifar10(tmp_path, "feddyn(period=3)", {"FedDyn+skip-3": [0.6, 0.6, 0.6, 0.9, 0.9]})
    sheet = compose_sheet(settings()["compose/cifar10-beta0.5"], [table2, own, more])
    assert sheet.note == "The strongest is FedDyn+skip-5, over the 3 seeds that all have."
    [best] = [row for row in sheet.rows if row[2].style == BEST]
    assert best[2].plain == "70.00 ± 0.00 (3 of 5 seeds)"


def test_who_skips_is_ranked_over_the_same_seeds(tmp_path: Path) -> None:
    """FedAvg has seeds 0 and 1, where FedSkip-3 is ahead of FedSkip-5; seed 2 would turn that."""
    study = of_cifar10(
        tmp_path, "fedavg, fedskip(period=3), fedskip(period=5)",
        {"FedAvg": [0.9, 0.9], "FedSkip-3": [0.7, 0.7, 0.1], "FedSkip-5": [0.6, 0.6, 0.9]},
    )  # fmt: skip
    sheet = compose_sheet(settings()["compose/cifar10-beta0.5"], [study])
    said = "The strongest is FedAvg; of those that skip, FedSkip-3, over the 2 seeds that all have."
    assert sheet.note == said


def test_what_skipping_adds_is_over_the_same_method(tmp_path: Path) -> None:
    """FedDyn gains 2 and 6 points, its mean is 4; over FedAvg it would be 14."""
    study = of_cifar10(
        tmp_path, "fedavg, feddyn, feddyn(period=5)",
        {"FedAvg": [0.5, 0.5], "FedDyn": [0.6, 0.6], "FedDyn+skip-5": [0.62, 0.66]},
    )  # fmt: skip
    axes = compose_figure(settings()["compose/cifar10-beta0.5"], [study])
    marks = {line.get_label(): list(line.get_xdata()) for line in axes.get_lines()}
    assert marks["Δ = 5"] == [pytest.approx(4.0)]
    assert any("2 of 3 seeds" in text.get_text() for text in axes.texts)
