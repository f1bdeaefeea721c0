"""Table IV from small histories that can be checked by hand."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fedskip.engine.local import Local
from fedskip.paper.columns import columns
from fedskip.paper.table4 import published, reached, table4, target_sheet
from fedskip.records.table import Table
from fedskip.report.results import Results
from studies import curve, recorded, run
from terminal import shown

CURVES = {"FedAvg": {2: 0.4, 4: 0.5, 5: 0.4}, "FedSkip-3": {3: 0.5}}


def kept(
    tmp_path: Path, rounds: int = 200, seed: int = 0, curves: Mapping[str, Mapping[int, float]] = CURVES
) -> Results:
    """FEMNIST: FedAvg's best in round 4, its last in round 2; FedSkip-3 is there in round 3."""
    rows = [row for label, scores in curves.items() for row in curve(label, seed, scores)]
    runs = [
        run(label, seed, [*scores.values()][-1]) | {"best": max(scores.values()), "rounds": rounds}
        for label, scores in curves.items()
    ]
    texts = {"FedAvg": "fedavg", "FedSkip-3": "fedskip(period=3)", "MOON": "moon"}
    return recorded(
        tmp_path, runs, rows=rows, data={"name": "femnist"}, partition={"kind": "natural"}, clients=180,
        model={"name": "cnn-femnist"}, cohort=10, rounds=rounds, methods=[texts[label] for label in curves],
        local=vars(Local(small_clients="short")),
    )  # fmt: skip


def test_until_fedavgs_best_and_last(tmp_path: Path) -> None:
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
    assert {(row["of_rounds"], row["paper_rounds"], row["paper_seeds"]) for row in rows} == {
        ("200", "200", "3")
    }
    assert "66.67×" in text, "200 rounds of FedAvg against 3"
    assert "not run: table2/cifar10-iid. Make it with: fedskip run table2/cifar10-iid" in text


def test_histories_that_were_not_kept_are_missed(tmp_path: Path) -> None:
    one, other = kept(tmp_path), kept(tmp_path, seed=1)
    bare = replace(other, history=Table(other.history.columns, []))
    sheet = target_sheet("table3/femnist", [one, bare])
    assert sheet.note == "Reduced: histories of 1 of 3 seeds."
    assert target_sheet("table3/femnist", [one, other]).note == "Reduced: 2 of 3 seeds."


def test_a_method_that_lacks_seeds_says_so_and_one_that_was_not_run_how_to_make_it(tmp_path: Path) -> None:
    studies = [kept(tmp_path, seed=0), kept(tmp_path, seed=1, curves={"FedAvg": CURVES["FedAvg"]})]
    cells = {row[0].plain: row[1].plain for row in target_sheet("table3/femnist", studies).rows}
    assert (cells["FedAvg"], cells["FedSkip-3"]) == ("2 of 2, 2 of 3 seeds", "1 of 1, 1 of 3 seeds")
    text = " ".join(shown(table4(studies, None, whole=False)).split())
    assert (
        "not run of table3/femnist (reduced: 1 to 2 of 3 seeds): 8 methods. "
        "Make them with: fedskip run table3/femnist --methods"
    ) in text
    assert '"fedprox(mu=0.001), scaffold, moon' in text


def test_without_fedavg_there_is_no_target_and_the_command_says_what_is_missing(tmp_path: Path) -> None:
    text = " ".join(
        shown(table4([kept(tmp_path, curves={"FedSkip-3": {3: 0.5}})], None, whole=False)).split()
    )
    assert text.startswith("not run of table3/femnist: 9 methods. Make them with: fedskip run table3/femnist")
    assert '"fedavg, fedprox(mu=0.001),' in text
    alone = kept(tmp_path, curves={"FedSkip-3": {3: 0.5}})
    cells = {row[0].plain: row[1].plain for row in target_sheet("table3/femnist", [alone]).rows}
    assert (cells["FedAvg"], cells["FedSkip-3"]) == ("not run", "FedAvg has no history")


def test_a_method_may_go_on(tmp_path: Path) -> None:
    """The target is FedAvg's within 200 rounds; what comes after 300 does not count."""
    longer = {
        "FedAvg": {150: 0.5, 250: 0.9}, "FedSkip-3": {150: 0.4, 240: 0.6}, "MOON": {150: 0.4, 310: 0.9},
    }  # fmt: skip
    full = {"FedAvg": {100: 0.5}, "FedSkip-3": {99: 0.5}, "MOON": {100: 0.2}}
    studies = [kept(tmp_path, seed=1, curves=full), kept(tmp_path, 400, curves=longer)]
    found = {row["method"]: row for row in reached(columns()["table3/femnist"], studies)}
    assert (found["FedAvg"]["reached"], found["FedAvg"]["rounds"], found["FedAvg"]["late"]) == (2, 125, 0)
    skip = found["FedSkip-3"]
    assert (skip["reached"], skip["rounds"], skip["late"], skip["until"]) == (2, (99 + 240) / 2, 1, 200)
    assert (found["MOON"]["reached"], found["MOON"]["until"]) == (0, 200)
    text = shown(table4(studies, None))
    assert "2 of 2, 1 after round 200" in text
    assert "0 of 2 by round 200" in text


def test_of_a_run_in_two_studies_the_longer_counts(tmp_path: Path) -> None:
    short = {"FedAvg": {150: 0.5}, "FedSkip-3": {150: 0.4}}
    longer = {label: scores | {240: 0.6} for label, scores in short.items()}
    studies = [kept(tmp_path, curves=short), kept(tmp_path, 300, curves=longer)]
    for order in (studies, studies[::-1]):
        found = {row["method"]: row for row in reached(columns()["table3/femnist"], order)}
        assert (found["FedSkip-3"]["rounds"], found["FedSkip-3"]["until"]) == (240, 300)


def test_a_reduced_column_says_so(tmp_path: Path) -> None:
    text = " ".join(shown(table4([kept(tmp_path, 20)], None)).split())
    assert "to FedAvg's best, reduced: 20 of 200 rounds, 1 of 3 seeds" in text
    assert "6.67×" in text
    table4([kept(tmp_path, 20)], tmp_path)
    with (tmp_path / "table4.csv").open() as file:
        [*found] = csv.DictReader(file)
    assert {(row["of_rounds"], row["paper_rounds"], row["seeds"]) for row in found} == {("20", "200", "1")}
    whole = shown(table4([kept(tmp_path, seed=seed) for seed in range(3)], None))
    assert "reduced" not in whole
    note = target_sheet("table3/femnist", [kept(tmp_path, 20)]).note
    assert note == "Reduced: 20 of 200 rounds, 1 of 3 seeds.", "pages have no title"


def test_another_precision_is_said(tmp_path: Path) -> None:
    study = kept(tmp_path)
    study = replace(study, settings=(replace(study.settings[0], precision="bf16"),))
    cells = {row[0].plain: row[1].plain for row in target_sheet("table3/femnist", [study]).rows}
    assert cells["FedAvg"] == "1 of 1, in bf16"


def test_of_a_study_that_is_not_finished_the_rounds_so_far_count(tmp_path: Path) -> None:
    study = kept(tmp_path)
    for row in study.summary:
        row["rounds"] = 5
    text = " ".join(shown(table4([study], None)).split())
    assert "to FedAvg's best, reduced: 5 of 200 rounds, 1 of 3 seeds" in text
    assert "1.67×" in text, "5 rounds of FedAvg against 3"


def test_rounds_are_those_of_the_seed_that_is_furthest(tmp_path: Path) -> None:
    studies = [kept(tmp_path, 20), kept(tmp_path, 20, seed=1)]
    for row in studies[1].summary:
        row["rounds"] = 5
    assert {row["of_rounds"] for row in reached(columns()["table3/femnist"], studies)} == {20}


def test_runs_that_diverged_are_counted_and_have_no_speed_up(tmp_path: Path) -> None:
    curves = {"FedAvg": {2: 0.4, 4: 0.5}, "FedSkip-3": {3: 0.3}, "MOON": {3: 0.3}}
    studies = [kept(tmp_path, seed=seed, curves=curves) for seed in (0, 1)]
    better = kept(tmp_path, seed=2, curves={label: {4: 0.5} for label in curves})
    for row in studies[0].summary.where(method="FedSkip-3"):
        row |= {"diverged": True, "rounds": 3}
    column = columns()["table3/femnist"]
    rows = {
        row[0].plain: [c.plain for c in row[1:]]
        for row in target_sheet("table3/femnist", [*studies, better]).rows
    }
    assert rows["FedSkip-3"][:2] == ["1 of 3 by round 200, 1 diverged before", "4"]
    assert [rows[name][4] for name in ("FedAvg", "FedSkip-3", "MOON")] == ["50.00×", "–", "–"]
    found = {row["method"]: row for row in reached(column, [*studies, better])}
    assert (found["FedSkip-3"]["diverged"], found["FedSkip-3"]["until"]) == (1, 200)
    for row in better.summary.where(method="FedSkip-3"):
        row["diverged"] = True
    [late] = reached(column, [*studies, better]).where(method="FedSkip-3")
    assert (late["reached"], late["diverged"]) == (1, 1), "it was there before it diverged"


def test_where_fedavg_diverged_there_is_nothing_to_reach(tmp_path: Path) -> None:
    """Two seeds are left, at which nobody diverged."""
    studies = [kept(tmp_path, seed=seed) for seed in range(3)]
    for row in studies[2].summary:
        row["diverged"] = True
    found = {row["method"]: row for row in reached(columns()["table3/femnist"], studies)}
    assert [found["FedSkip-3"][name] for name in ("seeds", "reached", "diverged")] == [2, 2, 0]
    assert [found["FedAvg"][name] for name in ("seeds", "reached", "diverged")] == [3, 2, 1]
    cells = {row[0].plain: row[1].plain for row in target_sheet("table3/femnist", studies).rows}
    assert (cells["FedAvg"], cells["FedSkip-3"]) == ("2 of 3, 1 diverged before", "2 of 2")


def test_the_papers_numbers_stand_beside() -> None:
    numbers = published()
    assert [len(methods) for methods in numbers.values()] == [10, 10, 10, 10]
    for name, methods in numbers.items():
        column = columns()[name]
        assert methods.keys() == column.methods.keys()
        for method, row in methods.items():
            if row["rounds"] != "*" and method.startswith("FedSkip"):
                assert int(row["rounds"]) == int(method.partition("-")[2]) * int(row["merges"])
    text = shown(table4([], None))
    assert "248 / 248 / 0.81×" in text
    assert text.count("(printed;") == 1
    assert "22 / 66 / 1.52× (printed; 200 / 66 is 3.03×)" in text
