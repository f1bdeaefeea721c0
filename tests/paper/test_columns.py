"""The columns of the paper's tables, and which runs are of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from fedskip.engine.local import Local
from fedskip.paper.beside import cell
from fedskip.paper.columns import Column, columns
from fedskip.report.recorded import About
from fedskip.report.results import Results
from studies import curve, recorded, run, study


def kept(tmp_path: Path, *rows: Any, **keys: Any) -> Results:
    """A study of the paper's SYNTHETIC, with some keys changed."""
    local = dataclasses.asdict(Local(small_clients="short", **keys.pop("local", {})))
    some = {"data": {"name": "synthetic"}, "partition": {"kind": "natural"}, "model": {"name": "perceptron"}}
    some |= {"cohort": 10, "local": local, "rounds": 1000, "methods": ["fedavg", "fedprox(mu=0.001)", "moon"]}
    return recorded(tmp_path, rows, **(some | keys))


@pytest.fixture
def column() -> Column:
    return columns()["table3/synthetic"]


def test_every_published_number_has_its_method() -> None:
    assert len(columns()) == 9 + 6 + 7
    assert sum(len(column.published) for column in columns().values()) == 6 + 60 + 70
    for name, column in columns().items():
        unknown = column.published.keys() - column.methods.keys()
        assert unknown <= ({"MOON"} if name == "table3/shakespeare" else set()), name
    found = columns()["table2/cifar10-beta0.5"].published
    assert (found["FedAvg"], found["FedSkip-5"]) == (0.6883, 0.7177)
    assert columns()["table3/cifar100-p100"].published["SCAFFOLD"] is None, "a star"


@pytest.mark.parametrize(
    ("keys", "same"),
    [
        ({}, True),
        ({"rounds": 20, "seeds": [7], "slot_accuracy": True, "target": 0.9}, True),
        ({"eval_every": 5}, False),
        ({"eval_samples": 500}, False),
        ({"cohort": 5}, False),
        ({"model": {"name": "perceptron", "sigmoid": False}}, False),
        ({"local": {"clip": 10.0}}, False),
        ({"validation": 0.1}, False),
        ({"data": {"name": "synthetic", "train_fraction": 0.5}}, False),
    ],
)
def test_a_setting_is_of_a_column_if_all_that_matters_agrees(
    tmp_path: Path, column: Column, keys: dict[str, Any], same: bool
) -> None:
    [setting] = kept(tmp_path, run("FedAvg", 0, 0.5), **keys).settings
    assert isinstance(setting, About)
    assert column.is_of(setting) is same


def test_runs_are_found_by_their_hyper_parameters(tmp_path: Path, column: Column) -> None:
    labels = ("FedAvg", "FedProx(mu=0.001)", "MOON")
    one = kept(tmp_path, *(run(label, 0, 0.5) for label in labels))
    other = kept(tmp_path, run("FedProx", 1, 0.7), run("FedAvg", 1, 0.6), methods=["fedavg", "fedprox"])
    found = column.runs([one, other])
    assert [row["last"] for row in found["FedAvg"]] == [0.5, 0.6]
    assert [row["last"] for row in found["FedProx"]] == [0.5], (
        "mu is 0.01 by default, which is not the paper's"
    )
    assert found["SCAFFOLD"] == []


def test_of_two_runs_with_one_seed_the_longest_counts(tmp_path: Path, column: Column) -> None:
    short = kept(tmp_path, run("FedAvg", 0, 0.5) | {"rounds": 20}, rounds=20)
    full = kept(tmp_path, run("FedAvg", 0, 0.6) | {"rounds": 1000})
    for studies in ([short, full], [full, short]):
        assert [row["last"] for row in column.runs(studies)["FedAvg"]] == [0.6]


def test_of_two_equal_runs_that_beside_most_of_the_columns_methods_counts(
    tmp_path: Path, column: Column
) -> None:
    alone = kept(tmp_path, run("FedAvg", 0, 0.4) | {"rounds": 1000}, methods=["fedavg"])
    rows = [run(name, 0, 0.5) | {"rounds": 1000} for name in ("FedAvg", "MOON")]
    beside = kept(tmp_path, *rows, methods=["fedavg", "moon"])
    for order in ([alone, beside], [beside, alone]):
        [found] = column.runs(order)["FedAvg"]
        assert found["best"] == 0.5


def test_a_run_that_went_on_counts_with_the_columns_rounds(tmp_path: Path, column: Column) -> None:
    """Without a history nobody knows how it stood then: one of the right length is better."""
    rows = curve("FedAvg", 0, {500: 0.3, 1000: 0.5, 1500: 0.9})
    made = run("FedAvg", 0, 0.9) | {"rounds": 1500}
    longer = kept(tmp_path, made, rows=rows, rounds=1500)
    [found] = column.runs([longer])["FedAvg"]
    assert (found["last"], found["best"], found["mean_tail"], found["rounds"]) == (0.5, 0.5, 0.5, 1000)
    bare = kept(tmp_path, made, rounds=1500)
    [found] = column.runs([bare])["FedAvg"]
    assert (found["last"], found["rounds"]) == (0.9, 1500)
    exact = kept(tmp_path, run("FedAvg", 0, 0.4) | {"rounds": 1000})
    for studies in ([bare, exact], [exact, bare]):
        assert [row["last"] for row in column.runs(studies)["FedAvg"]] == [0.4]


def test_results_are_of_the_longest_runs_and_of_the_columns_methods(tmp_path: Path, column: Column) -> None:
    def made(rounds: int, seed: int) -> Results:
        rows = curve("FedAvg", seed, {10: 0.4}) + curve("FedAvgM", seed, {10: 0.4})
        labels = ("FedAvg", "FedAvgM", "FedProx(mu=0.001)")
        methods = ["fedavg", "fedavgm", "fedprox(mu=0.001)"]
        runs = [run(label, seed, 0.4) for label in labels]
        return kept(tmp_path, *runs, rows=rows, rounds=rounds, methods=methods)

    results = column.results([made(20, 0), made(1000, 1), made(1500, 2)])
    assert results is not None
    assert set(results.summary.column("seed")) == {1, 2}
    assert results.labels() == ["FedAvg", "FedProx"], "as the paper calls them, and no others"
    assert column.results([kept(tmp_path, run("FedAvg", 0, 0.5))]) is None, "there are no histories"


def test_methods_beside_the_columns_do_not_change_its_names(tmp_path: Path, column: Column) -> None:
    """Beside another SCAFFOLD a study calls the paper's by its init, too; the column does not."""
    both = {"SCAFFOLD(init=zero)": "scaffold", "SCAFFOLD(init=random)": "scaffold(init=random)"}
    rows = [row for label in both for row in curve(label, 0, {10: 0.4})]
    methods = [*both.values()]
    made = kept(tmp_path, *(run(label, 0, 0.4) for label in both), rows=rows, methods=methods)
    about = dataclasses.replace(made.settings[0], parts=[methods])
    made = dataclasses.replace(made, settings=(about,))
    history = curve("SCAFFOLD", 1, {10: 0.4})
    alone = kept(tmp_path, run("SCAFFOLD", 1, 0.4), rows=history, methods=["scaffold"])
    results = column.results([alone, made])
    assert results is not None
    assert results.labels() == ["SCAFFOLD"]


def test_a_run_in_another_precision_says_so_and_makes_way(tmp_path: Path, column: Column) -> None:
    """fp32 and tf32 are the usual ones; of two whole runs the one in such a precision counts."""

    def made(precision: str, last: float, rounds: int = 1000) -> Results:
        study = kept(tmp_path, run("FedAvg", 0, last) | {"rounds": rounds}, rounds=rounds)
        [setting] = study.settings
        return dataclasses.replace(study, settings=(dataclasses.replace(setting, precision=precision),))

    def said(*studies: Results) -> str:
        return cell(column, column.runs(studies)["FedAvg"], "last")

    assert said(made("fp64", 0.5)) == "50.00 (in fp64)"
    for usual in ("fp32", "tf32", ""):
        assert said(made(usual, 0.6)) == "60.00"
        for studies in ([made("fp64", 0.5), made(usual, 0.6)], [made(usual, 0.6), made("fp64", 0.5)]):
            assert said(*studies) == "60.00"
    assert said(made("tf32", 0.6, 20), made("bf16", 0.5)) == "50.00 (in bf16)", "a whole run is worth more"


def test_a_run_that_diverged_is_not_made_good_by_a_second_try(tmp_path: Path, column: Column) -> None:
    """Not by one in another precision, nor by one in the same."""
    broken = kept(tmp_path, run("FedAvg", 0, 0.1, diverged=True) | {"rounds": 17})
    whole = kept(tmp_path, run("FedAvg", 0, 0.6) | {"rounds": 1000})
    short = kept(tmp_path, run("FedAvg", 0, 0.3) | {"rounds": 500})
    [setting] = whole.settings
    other = dataclasses.replace(whole, settings=(dataclasses.replace(setting, precision="bf16"),))
    beside = kept(tmp_path, run("FedAvg", 0, 0.6) | {"rounds": 1000}, run("FedProx", 0, 0.6))
    for second in (other, whole, short, beside):
        for studies in ([broken, second], [second, broken]):
            assert [row["diverged"] for row in column.runs(studies)["FedAvg"]] == [True]


def test_nor_is_its_curve(tmp_path: Path, column: Column) -> None:
    """Of a reduced study that diverged, or of one that did before it recorded anything."""
    whole = kept(tmp_path, run("FedAvg", 0, 0.6) | {"rounds": 1000}, rows=curve("FedAvg", 0, {1000: 0.6}))
    reduced = kept(
        tmp_path, run("FedAvg", 0, 0.1, diverged=True) | {"rounds": 5}, rows=curve("FedAvg", 0, {5: 0.1}),
        rounds=20,
    )  # fmt: skip
    at_once = kept(tmp_path, run("FedAvg", 0, 0.1, diverged=True) | {"rounds": 0})
    for broken in (reduced, at_once):
        for studies in ([broken, whole], [whole, broken]):
            assert [row["diverged"] for row in column.runs(studies)["FedAvg"]] == [True]
            assert column.results(studies) is None


def test_a_longer_run_without_history_that_broke_makes_way(tmp_path: Path, column: Column) -> None:
    """It may have done so after the column's rounds: nobody knows."""
    longer = kept(tmp_path, run("FedAvg", 0, 0.1, diverged=True) | {"rounds": 1200}, rounds=1500)
    whole = kept(tmp_path, run("FedAvg", 0, 0.6) | {"rounds": 1000})
    for studies in ([longer, whole], [whole, longer]):
        assert [row["diverged"] for row in column.runs(studies)["FedAvg"]] == [False]


def test_of_two_runs_that_are_too_short_the_longer_counts(tmp_path: Path, column: Column) -> None:
    short, shorter = (kept(tmp_path, run("FedAvg", 0, 0.3) | {"rounds": count}) for count in (500, 300))
    for studies in ([short, shorter], [shorter, short]):
        assert [row["rounds"] for row in column.runs(studies)["FedAvg"]] == [500]


def test_runs_and_results_take_the_same_runs(tmp_path: Path, column: Column) -> None:
    """Of two of one length that in the usual precision; its history is that run's."""

    def made(precision: str, last: float, seeds: int) -> Results:
        rows = [row for seed in range(seeds) for row in curve("FedAvg", seed, {1000: last})]
        runs = [run("FedAvg", seed, last) | {"rounds": 1000} for seed in range(seeds)]
        study = kept(tmp_path, *runs, rows=rows)
        [setting] = study.settings
        return dataclasses.replace(study, settings=(dataclasses.replace(setting, precision=precision),))

    studies = [made("bf16", 0.5, 2), made("tf32", 0.6, 1)]
    results = column.results(studies)
    assert results is not None
    found = {row["seed"]: row["last"] for row in results.summary}
    assert found == {row["seed"]: row["last"] for row in column.runs(studies)["FedAvg"]} == {0: 0.6, 1: 0.5}
    assert {row["seed"]: row["test_accuracy"] for row in results.history} == found


def test_results_are_of_one_setting(tmp_path: Path, column: Column) -> None:
    """Clients that were dealt otherwise stand in no table beside the others."""

    def made(seed: int, partition: str) -> Results:
        study = kept(tmp_path, run("FedAvg", seed, 0.5), rows=curve("FedAvg", seed, {10: 0.5}))
        [setting] = study.settings
        about = dataclasses.replace(setting, divisions={0: {"partition": partition}})
        return dataclasses.replace(study, settings=(about,))

    results = column.results([made(0, "a"), made(1, "b"), made(2, "a")])
    assert results is not None
    assert len(results.settings) == 1
    assert results.summary.column("seed") == [0, 2]


def test_the_precision_is_the_one_that_a_study_has_noted(tmp_path: Path) -> None:
    made = study(tmp_path / "s", methods="fedavg", rounds=1, seeds=1, precision="fp64", device="cpu").run()
    assert [setting.precision for setting in Results.read(made.out).settings] == ["fp64"]
