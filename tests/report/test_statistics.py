"""Paired differences, intervals and ranks, on numbers that can be checked by hand; the best values of a sweep."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fedskip import InputError
from fedskip.records.table import Row
from fedskip.report.figures import to_bytes
from fedskip.report.findings import Findings
from fedskip.report.page import content, figures
from fedskip.report.results import Results
from fedskip.report.statistics import bootstrap_interval, paired_differences, t_interval
from fedskip.report.tables import best_values_table
from studies import curve, recorded, run

LOST = -math.inf  # the score of a run that has none


def compared(one: dict[int, float], other: dict[int, float], better: int = 1) -> pd.Series:
    scores = pd.DataFrame(
        {"one": pd.Series(one, dtype=float), "other": pd.Series(other, dtype=float)}
    )
    scores.attrs["better"] = better
    return paired_differences(scores, "other").loc["one"]


@pytest.mark.parametrize(
    ("level", "n", "expected"),
    [  # quantiles of Student's t from the table in any textbook
        (0.95, 2, 12.706), (0.95, 3, 4.303), (0.95, 5, 2.776), (0.95, 10, 2.262), (0.99, 4, 5.841),
    ],
)  # fmt: skip
def test_students_interval(level: float, n: int, expected: float) -> None:
    values = [0.0, 1.0, *[0.5] * (n - 2)]  # whose variance is 0.5 / (n - 1)
    low, high = t_interval(values, level)
    half = expected * math.sqrt(0.5 / (n - 1) / n)
    assert (low, high) == (pytest.approx(0.5 - half, abs=5e-4), pytest.approx(0.5 + half, abs=5e-4))


@pytest.mark.parametrize("interval", [t_interval, bootstrap_interval])
def test_one_value_has_no_interval(interval) -> None:
    assert all(map(math.isnan, (*interval([2.0]), *interval([]))))


def test_the_bootstrap_repeats_itself_and_stays_within_the_values() -> None:
    values = [0.1, 0.2, 0.3, 0.4, 1.0]
    low, high = bootstrap_interval(values)
    assert (low, high) == bootstrap_interval(values)
    assert 0.1 <= low < 0.4 < high <= 1.0
    assert bootstrap_interval([3.0, 3.0]) == (3.0, 3.0)


def test_differences_are_paired_by_seed() -> None:
    """Scores that differ much between seeds, and little from each other."""
    one, other = {0: 0.51, 1: 0.72, 2: 0.90}, {2: 0.89, 1: 0.71, 0: 0.50, 7: 0.1}
    found = compared(one, other)
    assert (found.n, found.wins, found.losses, found["sign"]) == (3, 3, 0, 1)
    assert found["difference"] == pytest.approx(0.01)
    assert found.low == pytest.approx(0.01)
    back = compared(other, one)
    assert (back.wins, back.losses, back.sign) == (0, 3, -1)
    assert compared({0: 0.1, 1: 0.9}, {0: 0.2, 1: 0.5}).sign == 0


def test_a_run_without_a_score_has_lost() -> None:
    found = compared({0: 0.5, 1: LOST, 2: LOST}, {0: 0.4, 1: 0.3, 2: LOST})
    assert (found.n, found.wins, found.losses) == (1, 1, 1)
    assert (found["difference"], found["sign"]) == (pytest.approx(0.1), 0)
    assert math.isnan(found.low)
    assert (found.missing, found.unmatched) == (2, 0), "also where the other has none"
    assert compared({0: 0.5}, {0: LOST}).unmatched == 1
    nothing = compared({0: LOST}, {0: LOST})
    assert (nothing.n, nothing.wins, nothing.losses) == (0, 0, 0)


def test_where_lower_is_better() -> None:
    found = compared({0: 0.1, 1: 0.2}, {0: 0.3, 1: 0.41}, better=-1)
    assert (found["sign"], found.wins, found.losses) == (1, 2, 0)
    assert found["difference"] == pytest.approx(-0.205)  # with its own sign
    assert compared({0: 0.5, 1: 0.61}, {0: 0.3, 1: 0.4}, better=-1).sign == -1


# --- the best values of a sweep, chosen on the validation split, and their picture -------------------


# by value: what FedAvg and MOON came to on the test set and on the validation split, at two seeds
TEST = {0.001: (0.5, 0.6), 0.01: (0.7, 0.8), 0.1: (0.9, 0.2)}
VALID = {0.001: (0.5, 0.9), 0.01: (0.8, 0.5), 0.1: (0.3, 0.1)}


def swept(out: Path, validation: float = 0.1, lost: tuple[str, ...] = (), **keys: Any) -> Results:
    runs: list[Row] = []
    rows: list[Row] = []
    names = {value: f"a(lr={value})" for value in TEST}
    for value, name in names.items():
        for i, method in enumerate(("FedAvg", "MOON")):
            for seed in (0, 1):
                score, valid = TEST[value][i] + 0.02 * seed, VALID[value][i] + 0.02 * seed
                one = run(method, seed, score, setting=name) | {
                    "best_val": score if validation else None
                }
                runs.append(one | {"diverged": one["run"] in lost})
                history = curve(method, seed, {1: 0.1, 5: score}, setting=name)
                rows += [row | {"val_accuracy": v if validation else None}
                         for row, v in zip(history, (0.0, valid), strict=True)]  # fmt: skip
    results = recorded(out, runs, list(names.values()), rows, validation=validation, **keys)
    settings = [
        dataclasses.replace(
            about,
            keys={
                **about.keys,
                "local": {"lr": value},
                "record": {"sweep": {"of": "a", "keys": ["local.lr"]}},
            },
        )
        for about, value in zip(results.settings, names, strict=True)
    ]
    return dataclasses.replace(results, settings=settings)


def values(results: Results) -> Mapping[str, Any]:
    return dict(zip(results.chosen["method"], results.chosen["local.lr"], strict=True))


def test_each_method_has_its_own_best_value(tmp_path: Path) -> None:
    results = swept(tmp_path)
    first, second = results.chosen.to_dict("records")
    assert (first["method"], first["local.lr"], first["by"], first["settings"], first["seeds"]) == (
        "FedAvg", 0.01, "validation", 3, 2,
    )  # fmt: skip
    assert first["chosen_by"] == pytest.approx(0.81)
    assert first["score"] == pytest.approx(0.71)
    assert first["score_std"] == pytest.approx(0.0141, abs=1e-4)
    assert (second["method"], second["local.lr"], second["setting"]) == (
        "MOON",
        0.001,
        "a(lr=0.001)",
    )
    [words] = Findings(results).tuned
    assert (
        "best of 3 settings, chosen on the validation split: FedAvg lr=0.01 (71.00 ± 1.41); MOON lr=0.001"
        in words
    )
    assert words.endswith("At the edge of the grid: lr=0.001 (MOON).")


def test_without_a_validation_split_it_is_said(tmp_path: Path) -> None:
    results = swept(tmp_path, validation=0.0)
    assert values(results) == {"FedAvg": 0.1, "MOON": 0.01}, "by the test set"
    assert set(results.chosen["by"]) == {"test"}
    assert "the test set (optimistic)" in Findings(results).tuned[0]
    assert "optimistic" in best_values_table(results).note
    assert "validation: 0.1" in best_values_table(results).note


def test_a_value_at_which_a_run_diverged_is_not_chosen(tmp_path: Path) -> None:
    assert values(swept(tmp_path, lost=("a(lr=0.01).FedAvg.s1",)))["FedAvg"] == 0.001
    everywhere = tuple(f"a(lr={value}).FedAvg.s0" for value in TEST)
    results = swept(tmp_path, lost=everywhere)
    assert values(results) == {"FedAvg": None, "MOON": 0.001}
    assert "diverged or not done" in best_values_table(results).markdown()


def test_a_study_without_a_sweep_has_nothing_chosen(tmp_path: Path) -> None:
    results = recorded(tmp_path, [run("FedAvg", 0, 0.5)])
    assert results.chosen.empty
    assert not Findings(results).tuned
    assert [one.name for one in results.shown] == ["a"]


def test_pages_show_the_settings_that_are_best_for_some_method(tmp_path: Path) -> None:
    results = swept(tmp_path)
    shown = ["a(lr=0.001)", "a(lr=0.01)"]
    assert [one.name for one in results.shown] == shown
    drawn_for = {figure.place for figure in figures(results)}
    assert drawn_for == {*shown, "a: swept values"}
    assert [line.partition(":")[0] for line in Findings(results).compared] == shown
    (tmp_path / "study.yaml").write_text("settings: [{name: a}]\nrecord: {}\n")
    page = content(Findings(results), {})
    assert "<h2>Best values</h2>" in page
    assert "chosen on the validation split" in page


def test_the_picture(tmp_path: Path) -> None:
    results = swept(tmp_path)
    axes = results.plot.sweep()
    assert axes.get_xscale() == "log"
    assert axes.get_xlabel() == "local.lr"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.001", "0.01", "0.1"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["FedAvg", "MOON"]
    [line, *_] = axes.get_lines()
    assert list(line.get_ydata()) == pytest.approx([51.0, 71.0, 91.0])
    assert axes.get_ylabel() == "test accuracy (%)"
    assert axes.texts[0].get_text().startswith("accuracy by validation (where the")
    assert to_bytes(axes, "svg").startswith(b"<?xml")
    assert results.plot.sweep("lr", score="best").texts[0].get_text().startswith("best accuracy")
    with pytest.raises(InputError, match="sweep is not known"):
        results.plot.sweep("lr", setting="b")
    with pytest.raises(InputError, match="score is not known"):
        results.plot.sweep("lr", score="bst")
    with pytest.raises(InputError, match="has no two values"):
        results.plot.sweep("mu")


def test_what_is_no_number_is_drawn_by_name(tmp_path: Path) -> None:
    results = swept(tmp_path)
    kinds = [{"kind": "iid"}, {"kind": "shards"}, {"kind": "pooled"}]
    settings = [
        dataclasses.replace(
            one,
            keys={
                **one.keys,
                "partition": kind,
                "record": {"sweep": {"of": "a", "keys": ["partition.kind"]}},
            },
        )
        for one, kind in zip(results.settings, kinds, strict=True)
    ]
    axes = dataclasses.replace(results, settings=settings).plot.sweep("partition")
    assert axes.get_xscale() == "linear"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["iid", "shards", "pooled"]


def test_of_two_keys_the_other_is_at_its_best(tmp_path: Path) -> None:
    """Of lr=0.01 and 0.1, which share batch 8, FedAvg's best by validation is the first."""
    results = swept(tmp_path)
    batches = (4, 8, 8)
    settings = [
        dataclasses.replace(
            one,
            keys={
                **one.keys,
                "local": one.keys["local"] | {"batch": batch},
                "record": {"sweep": {"of": "a", "keys": ["local.lr", "local.batch"]}},
            },
        )
        for one, batch in zip(results.settings, batches, strict=True)
    ]
    axes = dataclasses.replace(results, settings=settings).plot.sweep("batch")
    assert list(axes.get_lines()[0].get_ydata()) == pytest.approx([51.0, 71.0])
    assert any("lr at each method's best" in text.get_text() for text in axes.texts)
