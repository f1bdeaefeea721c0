"""Figures 1 and 5 from results that can be checked by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from fedskip.cli.paper import picture
from fedskip.paper.pictures import fig1, fig5, fig5_sheet, shown
from fedskip.report.results import Results
from studies import of_cifar10


def fed(tmp_path: Path, beta: float, **keys: Any) -> Results:
    partition = {"kind": "dirichlet", "beta": beta}
    return of_cifar10(tmp_path, "fedavg", {"FedAvg": [beta / 2, beta]}, partition=partition, **keys)


def test_figure_1(tmp_path: Path) -> None:
    axes = fig1([fed(tmp_path, 0.9), fed(tmp_path, 0.1)])
    left, right = axes.figure.axes
    assert [tick.get_text() for tick in left.get_xticklabels()] == ["0.1", "0.9"], "as far as it was run"
    assert list(left.get_lines()[0].get_ydata()) == pytest.approx([7.5, 67.5])
    means = {box.get_label(): list(box.lines[0].get_ydata()) for box in right.containers}
    assert means == {"from the mean of the slots": [2.5, 2.5], "from the model sent out": [3.5, 3.5]}
    assert right.texts[0].get_text().replace("\n", " ") == (
        "over the last 10% of the rounds; beta0.1: 2 of 3 seeds; beta0.9: 2 of 3 seeds; "
        "beta0.1: 2 of 2 at chance; not run: 0.3, 0.5, 0.7, 1, IID"
    )


def test_figure_1_of_a_reduced_study_says_so(tmp_path: Path) -> None:
    axes = fig1([fed(tmp_path, 0.1, rounds=20)])
    assert "; 20 of 200 rounds; beta0.1: 2 of 3 seeds; " in axes.figure.axes[1].texts[0].get_text()


def test_figure_1_says_what_was_lost(tmp_path: Path) -> None:
    study = fed(tmp_path, 0.3)
    for row in study.summary.where(seed=1):
        row["diverged"] = True
    axes = fig1([study])
    assert "; beta0.3: 1 of 2 diverged; " in axes.figure.axes[1].texts[0].get_text().replace("\n", " ")


def test_figure_5_takes_runs_from_any_study(tmp_path: Path) -> None:
    one = of_cifar10(tmp_path, "fedavg, fedskip(period=3)", {"FedAvg": [0.5, 0.6], "FedSkip-3": [0.6, 0.8]})
    other = of_cifar10(tmp_path, "fedskip(period=20)", {"FedSkip-20": [0.4]})
    axes = fig5([one, other])
    [box] = axes.containers
    assert "p50-beta0.1: not run" in axes.get_legend_handles_labels()[1]
    assert list(box.lines[0].get_xdata()) == [1, 3, 20]
    assert list(box.lines[0].get_ydata()) == pytest.approx([55.0, 70.0, 40.0])
    [row] = fig5_sheet([one, other]).rows
    cells = [cell.plain for cell in row]
    assert cells[:3] == [
        "p10-beta0.5", "55.00 ± 7.07 (2 of 3 seeds)", "70.00 ± 14.14 (2 of 3 seeds)",
    ]  # fmt: skip
    assert (cells[3], cells[-1]) == ("not run", "40.00 (1 of 3 seeds)")


def test_figure_5_has_a_picture_for_each_data_set(tmp_path: Path) -> None:
    keys = {"data": {"name": "cifar100"}, "model": {"name": "resnet50"}}
    one = of_cifar10(tmp_path, "fedavg, fedskip(period=5)", {"FedAvg": [0.5], "FedSkip-5": [0.6]}, **keys)
    assert list(shown([one])) == ["fig5-cifar100"]
    axes = fig5([one], data="cifar100")
    assert axes.get_title(loc="left") == "Accuracy against the period, CIFAR-100"
    assert [list(box.lines[0].get_xdata()) for box in axes.containers] == [[1, 5]]
    picture(["fig5"], [one], tmp_path / "figures")
    assert [file.name for file in (tmp_path / "figures").iterdir()] == ["fig5-cifar100.svg"]


def test_figure_5_shows_where_all_runs_were_lost(tmp_path: Path) -> None:
    for fedavg, left in ((0.6, [1]), (0.1, [])):
        scores = {"FedAvg": [fedavg], "FedSkip-3": [0.1, 0.1]}
        axes = fig5([of_cifar10(tmp_path / str(fedavg), "fedavg, fedskip(period=3)", scores)])
        [box] = axes.containers
        assert list(box.lines[0].get_xdata()) == left
        assert list(_crosses(axes).get_xdata()) == [period for period in (1, 3) if period not in left]
        assert "p10-beta0.5: not run" not in axes.get_legend_handles_labels()[1]
    assert "×: all are lost" in axes.texts[0].get_text()


def _crosses(axes: Axes) -> Line2D:
    [found] = [line for line in axes.get_lines() if line.get_marker() == "x"]
    return found


def test_figure_5_leaves_lost_runs_out_of_its_line(tmp_path: Path) -> None:
    """One at chance would move the mean, and its spread would hide all else; the point is hollow."""
    study = of_cifar10(tmp_path, "fedavg, fedskip(period=3)", {"FedAvg": [0.6], "FedSkip-3": [0.7, 0.1]})
    axes = fig5([study])
    [box] = axes.containers
    assert list(box.lines[0].get_ydata()) == pytest.approx([60.0, 70.0])
    [hollow] = [line for line in axes.get_lines() if line.get_markerfacecolor() == "white"]
    assert list(hollow.get_xdata()) == [3]
    assert not list(_crosses(axes).get_xdata())
    assert "1 of 2 at chance" in fig5_sheet([study]).rows[0][2].plain


def test_figure_5_says_which_clients_are_small(tmp_path: Path) -> None:
    study = fed(tmp_path, 0.1)
    [setting] = study.settings
    for short, note in (({0: 0, 1: 0}, ""), ({0: 2, 1: 3}, "p10-beta0.1: 2 to 3 of 20.")):
        one = replace(study, settings=(replace(setting, short=short),))
        said = fig5_sheet([one]).note
        assert said == (f"Clients that fill no batch, and train in one short batch: {note}" if note else "")


def test_a_score_reaches_all_pictures(tmp_path: Path) -> None:
    methods = {"FedAvg": [0.5], "FedDyn+skip-5": [0.6]}
    one = of_cifar10(tmp_path, "fedavg, feddyn(period=5)", methods)
    for row in one.summary:
        row |= {"best": 0.9, "mean_tail": 0.8, "last": 0.7}
    for score, accuracies in ((None, (80, 90, 80)), ("last", (70, 70, 70)), ("best", (90, 90, 90))):
        found = shown([one], score)
        cells = (
            found["fig1"][0].rows[0][2],
            found["fig5"][0].rows[0][1],
            found["compose/cifar10-beta0.5"][0].rows[0][2],
        )
        assert [cell.plain[:5] for cell in cells] == [f"{value}.00" for value in accuracies]
    assert shown([one], "last")["fig1"][0].headers[2] == "last accuracy"


def test_what_there_is_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert shown([]) == {}
    one = of_cifar10(tmp_path, "fedavg, fedskip(period=3)", {"FedAvg": [0.5], "FedSkip-3": [0.6]})
    assert list(shown([one])) == ["fig1", "fig5"], "nothing is composed"
    picture(["fig5"], [one], tmp_path / "figures")
    assert [file.name for file in (tmp_path / "figures").iterdir()] == ["fig5.svg"]
    said = capsys.readouterr().out
    assert "p10-beta0.5" in said
    assert "fig5.svg" in said
