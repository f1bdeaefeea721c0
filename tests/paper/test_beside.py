"""Our numbers beside the paper's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedskip.engine.local import Local
from fedskip.paper.beside import cell, column_sheet, gain, gains_figure, gains_sheet, short, table_sheet
from fedskip.paper.columns import columns, settings
from fedskip.paper.intervals import cautions, draw
from fedskip.paper.remarks import length
from fedskip.report.canvas import new_axes
from fedskip.report.results import Results
from fedskip.report.sheet import BEST
from fedskip.report.statistics import Difference
from studies import recorded, run

METHODS = ["fedavg", "scaffold", "moon", "fedskip(period=3)"]


def kept(tmp_path: Path) -> Results:
    """Two seeds of SYNTHETIC: FedSkip-3 gains 2 and 4 points, SCAFFOLD diverged once, MOON was stopped."""
    scores = {"FedAvg": (0.5, 0.6), "FedSkip-3": (0.52, 0.64), "SCAFFOLD": (0.7, 0.7), "MOON": (0.4, 0.4)}
    runs = [run(label, seed, score) for label, of in scores.items() for seed, score in enumerate(of)]
    for row in runs:
        row["rounds"] = 300 if row["method"] == "MOON" else 1000
        row["diverged"] = row["run"] == "a.SCAFFOLD.s1"
    return recorded(
        tmp_path, runs, data={"name": "synthetic"}, partition={"kind": "natural"},
        model={"name": "perceptron"}, cohort=10, rounds=1000, methods=METHODS,
        local=vars(Local(small_clients="short")),
    )  # fmt: skip


def test_a_column(tmp_path: Path) -> None:
    sheet = column_sheet(columns()["table3/synthetic"], [kept(tmp_path)])
    rows = {row[0].plain: [cell.plain for cell in row[1:]] for row in sheet.rows}
    assert sheet.headers[4:] == [
        "seeds", "lost", "length", "paper", "gain in best", "gain in tail", "paper's gain",
    ]  # fmt: skip
    assert rows["FedAvg"] == [*["55.00 ± 7.07"] * 3, "2 of 3", "", "", "94.12", "", "", ""]
    gain = "+3.00 (-9.71 to +15.71)"
    assert rows["FedSkip-3"] == [*["58.00 ± 8.49"] * 3, "2 of 3", "", "", "94.81", gain, gain, "+0.69"]
    assert rows["SCAFFOLD"][3:] == ["2 of 3", "1 of 2 diverged", "", "*", "–", "–", ""]
    assert rows["MOON"][5] == "300 of 1,000 rounds"
    assert rows["FedDyn"][:4] == ["not run", "", "", ""]


def test_seeds_are_counted_where_methods_have_different_ones(tmp_path: Path) -> None:
    more = recorded(
        tmp_path, [run("FedAvg", seed, 0.5) | {"rounds": 1000} for seed in (2, 3)],
        **kept(tmp_path).settings[0].keys | {"methods": ["fedavg"]},
    )  # fmt: skip
    column, studies = columns()["table3/synthetic"], [kept(tmp_path), more]
    sheet = column_sheet(column, studies)
    rows = {row[0].plain: [cell.plain for cell in row] for row in sheet.rows}
    at = sheet.headers.index("seeds")
    assert [rows[name][at] for name in ("FedAvg", "FedSkip-3", "FedDyn")] == ["4", "2 of 4", ""]
    cells = {row[0].plain: row[1].plain for row in table_sheet("table3", [column], studies).rows}
    assert (cells["FedAvg"], cells["FedSkip-3"]) == ("52.50 ± 5.00", "58.00 ± 8.49 (2 of 4 seeds)")
    [row] = gains_sheet([column], studies).rows
    assert row[1].plain == "4"
    assert row[3].plain == "+3.00 (-9.71 to +15.71) at 2 of 4 seeds; paper +0.69"
    assert gains_figure([column], studies).get_yticklabels()[0].get_text() == "synthetic\n2 to 4 of 4 seeds"


def test_what_makes_a_column_other_than_the_papers_is_said(tmp_path: Path) -> None:
    """Of a study that is reduced as it is, and of a column that such a study fills."""
    [setting] = kept(tmp_path).settings
    runs = [run(label, 0, 0.3) | {"rounds": 20} for label in ("FedAvg", "FedSkip-5")]
    keys = setting.keys | {
        "data": {"name": "cifar100"}, "partition": {"kind": "dirichlet", "beta": 0.5}, "clients": 10,
        "model": {"name": "resnet50"}, "rounds": 20, "methods": ["fedavg", "fedskip(period=5)"],
    }  # fmt: skip
    study = recorded(tmp_path, runs, **keys)
    study = replace(study, settings=(replace(study.settings[0], precision="bf16"),))
    own, whole = settings()["resnet50/cifar100-beta0.5"], columns()["table2/cifar100-beta0.5"]
    assert column_sheet(own, [study]).note == "Reduced: 20 of 200 rounds, 1 of 3 seeds. In bf16."
    assert not {"seeds", "length", "precision"} & {*column_sheet(own, [study]).headers}, (
        "it is what it should be"
    )
    assert column_sheet(settings()["cifar100cnn/cifar100-iid-cnn"], []).note == "Not the paper's model."
    assert (
        cell(whole, whole.runs([study])["FedAvg"], "best", 3)
        == "30.00 (1 of 3 seeds, 20 of 200 rounds, in bf16)"
    )
    [row] = gains_sheet([whole], [study]).rows
    assert row[0].plain == "cifar100-beta0.5 (20 of 200 rounds, in bf16)"
    [tick] = gains_figure([whole], [study]).get_yticklabels()
    assert tick.get_text() == "cifar100-beta0.5\n20 of 200 rounds\nin bf16\n1 of 3 seeds"


def test_rounds_from_the_fewest_to_the_most() -> None:
    column = columns()["table3/synthetic"]
    runs = [{"rounds": rounds, "diverged": rounds == 5} for rounds in (9, 99, 1000, 5)]
    assert length(column, runs) == "9 to 1,000 of 1,000 rounds"


def test_a_table_says_what_is_missing_short_or_lost(tmp_path: Path) -> None:
    some = [columns()[f"table3/{name}"] for name in ("synthetic", "shakespeare")]
    sheet = table_sheet("table3", some, [kept(tmp_path)])
    rows = {row[0].plain: row[1:] for row in sheet.rows}
    assert sheet.headers == ["method", "synthetic", "paper", "shakespeare", "paper"]
    assert [cell.plain for cell in rows["FedAvg"]] == [
        "55.00 ± 7.07 (2 of 3 seeds)",
        "94.12",
        "not run",
        "50.98",
    ]
    assert rows["SCAFFOLD"][0].plain == "70.00 (2 of 3 seeds, 1 of 2 diverged)"
    assert rows["MOON"][0].plain == "40.00 ± 0.00 (2 of 3 seeds, 300 of 1,000 rounds)"
    assert [cell.plain for cell in rows["MOON"][2:]] == ["not run", "*"]
    assert [name for name, row in rows.items() if row[0].style == BEST] == ["FedSkip-3"], (
        "SCAFFOLD's is a mean over the lucky seeds"
    )


def test_who_lacks_seeds_that_others_have_is_not_bold(tmp_path: Path) -> None:
    """Nor does it decide who is: at seed 0, the only one that MOON has, FedAvg is ahead of FedSkip."""
    scores = {"FedAvg": (0.59, 0.5, 0.5), "FedSkip-3": (0.58, 0.7, 0.7), "MOON": (0.9,)}
    runs = [run(label, seed, score) for label, of in scores.items() for seed, score in enumerate(of)]
    keys = kept(tmp_path).settings[0].keys
    study = recorded(tmp_path, [row | {"rounds": 1000} for row in runs], **keys)
    sheet = table_sheet("table3", [columns()["table3/synthetic"]], [study])
    assert [row[0].plain for row in sheet.rows if row[1].style == BEST] == ["FedSkip-3"]
    others = [run("MOON", seed, score) | {"rounds": 1000} for seed, score in ((1, 0.9), (2, 0.1))]
    both = [row for row in study.summary if row["method"] != "MOON" and row["seed"] < 2]
    apart = table_sheet(
        "table3", [columns()["table3/synthetic"]], [recorded(tmp_path, both + others, **keys)]
    )
    assert not [row for row in apart.rows if row[1].style == BEST], "no two have the seeds that there are"


def test_runs_of_another_length_are_nothing_to_compare_with() -> None:
    base, *longer = [run("FedAvg", 0, 0.5) | {"rounds": rounds} for rounds in (20, 6, 18)]
    assert [gain([row], [base], "best") for row in longer] == ["–", "0.00"]


def test_clients_in_a_short_batch_are_counted(tmp_path: Path) -> None:
    results, column = kept(tmp_path), columns()["table3/synthetic"]
    assert (short(column, []), short(column, [results])) == ("", "not noted")
    assert [cell.plain for cell in table_sheet("table3", [column], [results]).rows[-1]][1:] == [
        "not noted",
        "",
    ]
    assert table_sheet("table3", [column], []).rows[-1][0].plain == "FedSkip-10"
    assert column_sheet(column, [results]).note == ""
    [setting] = results.settings
    one = replace(results, settings=(replace(setting, short={0: 3}),))
    other = replace(results, settings=(replace(setting, short={1: 1, 2: 3}),))
    assert short(column, [one]) == "3 of 20"
    assert short(column, [one, other]) == "1 to 3 of 20"
    note = column_sheet(column, [one]).note
    assert note == "3 of 20 clients fill no batch of 64, and train in one short batch."
    last = [cell.plain for cell in table_sheet("table3", [column], [one]).rows[-1]]
    assert last == ["(clients in a short batch)", "3 of 20", ""]


def test_what_skipping_gains(tmp_path: Path) -> None:
    sheet = gains_sheet(list(columns().values()), [kept(tmp_path)])
    [row] = sheet.rows
    assert [cell.plain for cell in row][:4] == [
        "synthetic", "2 of 3", "55.00 ± 7.07", "+3.00 (-9.71 to +15.71); paper +0.69",
    ]  # fmt: skip
    assert row[4].plain == "–; paper -0.18"


def test_gains_over_a_method_that_diverged_say_at_how_many_seeds(tmp_path: Path) -> None:
    """FedAvg diverged at seed 1, where FedSkip-3 gains 4 points: seed 0 with its 2 is left."""
    results = kept(tmp_path)
    for row in results.summary.where(method="FedAvg", seed=1):
        row["diverged"] = True
    column = columns()["table3/synthetic"]
    [row] = gains_sheet([column], [results]).rows
    assert [cell.plain for cell in row][1:4] == [
        "2 of 3", "50.00 (1 of 2 diverged)", "+2.00 at 1 of 2 seeds; paper +0.69",
    ]  # fmt: skip
    runs = column.runs([results])
    assert gain(runs["FedSkip-3"], runs["FedAvg"], "best") == "+2.00 at 1 of 2 seeds"
    assert gain(runs["FedSkip-3"], runs["MOON"], "best", 3) == "–", "whose runs were stopped"
    whole = [row | {"rounds": 1000} for row in runs["MOON"]]
    assert gain(runs["FedSkip-3"], whole, "best", 3) == "+18.00 (-58.24 to +94.24) at 2 of 3 seeds"
    axes = gains_figure([column], [results])
    assert "none where a run diverged" in axes.texts[0].get_text()
    assert "FedSkip-3" not in axes.get_legend_handles_labels()[1]
    for row in results.summary.where(method="FedSkip-3", seed=1):
        row["diverged"] = True
    [row] = gains_sheet([column], [results]).rows
    assert row[3].plain == "–; paper +0.69", "its own run diverged, too"


def test_a_name_is_in_the_legend_wherever_it_is_first_drawn() -> None:
    """In the first row a run of FedSkip-3 diverged."""
    there = Difference(2, 0.01, 0.0, 0.02, 2, 0)
    axes, lost = new_axes(), replace(there, missing=1)
    draw(axes, {"a": {"FedSkip-3": lost, "FedSkip-5": there}, "b": {"FedSkip-3": there, "FedSkip-5": there}})
    assert sorted(axes.get_legend_handles_labels()[1]) == ["FedSkip-3", "FedSkip-5"]


def test_what_is_far_off_is_drawn_at_the_edge_with_its_number() -> None:
    axes, far = new_axes(), {"a": {"FedSkip-3": Difference(1, -0.25, None, None, 0, 1)}}
    draw(axes, far)
    assert list(axes.get_lines()[0].get_xdata()) == [-10.0]
    assert [text.get_text() for text in axes.texts] == ["-25.0"]
    assert cautions(far) == ["at the edge: further out"]
    assert cautions({"a": {"FedSkip-3": Difference(1, 0.1, None, None, 1, 0)}}) == []


def test_longer_runs_without_a_history_say_so(tmp_path: Path) -> None:
    results = kept(tmp_path)
    for row in results.summary:
        row["rounds"] = 1500
    column = columns()["table3/synthetic"]
    [row] = gains_sheet([column], [results]).rows
    assert row[0].plain == "synthetic (1,500 rounds, not 1,000)"
    cells = {row[0].plain: row[1].plain for row in table_sheet("table3", [column], [results]).rows}
    assert cells["FedAvg"] == "55.00 ± 7.07 (2 of 3 seeds, 1,500 rounds, not 1,000)"


def test_gains_as_a_picture(tmp_path: Path) -> None:
    axes = gains_figure(list(columns().values()), [kept(tmp_path)])
    assert [text.get_text() for text in axes.get_yticklabels()] == ["synthetic\n2 of 3 seeds"]
    marks = {line.get_label(): line.get_xdata() for line in axes.get_lines()}
    assert list(marks["FedSkip-3"]) == [pytest.approx(3.0)]
    hollow = [line.get_xdata() for line in axes.get_lines() if line.get_fillstyle() == "none"]
    assert [x[0] for x in hollow if len(x)] == pytest.approx([0.69, -0.18, -0.02, 0.38])


def test_a_run_that_is_stuck_at_chance_is_said() -> None:
    """It did not diverge, and its score counts; of other data sets nobody knows what chance is."""
    column = columns()["table3/cifar10-p50"]
    runs = [{"seed": seed, "last": last, "best": last, "diverged": False, "rounds": 800, "merges": 800}
            for seed, last in enumerate((0.1, 0.7, 0.6))]  # fmt: skip
    assert cell(column, runs, "best") == "46.67 ± 32.15 (1 of 3 at chance)"
    assert cell(column, runs[1:], "best") == "65.00 ± 7.07"
    assert cell(column, runs[1:], "best_val") == "–", "nobody measured it"
    assert cell(column, runs[1:], "best_val", of=3) == "– (2 of 3 seeds)"
    other = columns()["table3/synthetic"]
    assert "chance" not in cell(other, runs, "best")


def test_runs_of_different_lengths_have_no_mean() -> None:
    column = columns()["table3/synthetic"]
    runs = [{"seed": seed, "best": 0.5, "last": 0.5, "diverged": False, "rounds": rounds, "merges": rounds}
            for seed, rounds in enumerate((20, 1))]  # fmt: skip
    assert cell(column, runs, "best") == "– (1 to 20 of 1,000 rounds)"
    assert cell(column, [*runs[:1], runs[1] | {"diverged": True}], "best") == (
        "50.00 (1 of 2 diverged, 20 of 1,000 rounds)"
    )
