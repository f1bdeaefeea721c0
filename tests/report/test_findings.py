"""Tables and sentences about a study, and what to know before one relies on the numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedskip.errors import InputError
from fedskip.report.findings import Findings, warnings
from fedskip.report.results import Metric, Results
from studies import by_metric, curve, recorded, run

SCORES = {
    "FedAvg": (0.50, 0.60),
    "MOON": (0.52, 0.62),
    "FedNova": (0.40, 0.50),
    "FedDyn": (0.4, 0.9),
}


def test_a_comparison(tmp_path: Path) -> None:
    runs = [run(label, s, score) for label, of in SCORES.items() for s, score in enumerate(of)]
    results = recorded(tmp_path, runs)
    findings = Findings(results)
    table = findings.tables["compare"]
    assert table.rows[0] == ["FedAvg", "–", "–", "–", "–", "2.50", "baseline"]
    assert table.rows[1] == ["MOON", "+2.00", "+2.00 to +2.00", "2", "0", "1.50", "better"]
    [text] = findings.compared
    assert text.startswith(
        "FedDyn leads in final accuracy (mean of the last 10 % of rounds): 65.00 ± 35.36 %. "
        "MOON, FedAvg and FedNova are not significantly different from it."
    )
    assert "better: MOON (+2.00 points); worse: FedNova (-10.00 points);" in text
    assert "no significant difference (95 % CI includes 0): FedDyn." in text
    assert "2 seeds are few" in text
    assert Findings(results, "moon").tables["compare"].title.endswith("compared with MOON")


def test_without_fedavg_the_first_is_the_baseline(tmp_path: Path) -> None:
    findings = Findings(recorded(tmp_path, [run("MOON", 0, 0.5), run("FedDyn", 0, 0.6)]))
    assert findings.tables["compare"].rows[0][-1] == "baseline"
    [text] = findings.compared
    assert text.startswith("FedDyn leads in final accuracy")
    assert text.endswith("One seed is not enough to compare with MOON; run at least five.")


def test_a_setting_without_the_baseline_is_named(tmp_path: Path) -> None:
    runs = [run(m, s, 0.5 + s / 10, setting="a") for m in ("FedAvg", "MOON") for s in range(3)]
    results = recorded(tmp_path, [*runs, run("MOON", 0, 0.5, setting="b")], ["a", "b"])
    assert Findings(results).compared[1].startswith("b: nothing to compare, as FedAvg")


def test_nothing_to_compare_is_an_error_only_where_it_is_asked_for(tmp_path: Path) -> None:
    lost = [run(m, 0, 0.5, diverged=True) for m in ("FedAvg", "MOON")]
    results = recorded(tmp_path, lost)
    assert Findings(results).comparison is None
    assert Findings(results).sentences() == []
    with pytest.raises(InputError, match="score was not measured"):
        _ = Findings(results, "fedavg").tables


# --- targets -------------------------------------------------------------------------------------------


def made(tmp_path: Path, **keys: object) -> Results:
    """FedSkip-3 is there first, MOON with the fewest merges, FedNova never."""
    curves = {"FedAvg": {1: 0.3, 2: 0.4, 3: 0.4, 4: 0.5}, "FedSkip-3": {1: 0.1, 2: 0.5}}
    curves |= {"MOON": {3: 0.6}, "FedNova": {4: 0.4}}
    pairs = [(label, scores, seed) for label, scores in curves.items() for seed in (0, 1)]
    rows = [row for label, scores, seed in pairs for row in curve(label, seed, scores)]
    runs = [run(label, seed, max(scores.values())) for label, scores, seed in pairs]
    return recorded(tmp_path, runs, rows=rows, **keys)


def test_the_time_to_a_target(tmp_path: Path) -> None:
    findings = Findings(made(tmp_path))
    table = findings.tables["time_to_target"]
    assert table.title == "To reach FedAvg's best accuracy"
    assert table.rows == [
        ["FedAvg", "2 of 2", "4 ± 0", "4 ± 0", "440 B ± 0 B"],
        ["FedSkip-3", "2 of 2", "2 ± 0", "2 ± 0", "220 B ± 0 B"],
        ["MOON", "2 of 2", "3 ± 0", "1 ± 0", "330 B ± 0 B"],
        ["FedNova", "0 of 2", "–", "–", "–"],
    ]
    assert findings.reached == [
        "FedAvg's best accuracy is reached first by FedSkip-3: 2 rounds, 2 merges, 220 B; "
        "with the fewest merges by MOON: 3 rounds, 1 merge, 330 B. FedAvg itself: 4 rounds, 4 merges, 440 B."
    ]
    [alone] = Findings(made(tmp_path), target="MOON").reached
    assert alone.startswith("No other method reaches MOON's best accuracy")
    assert Findings(made(tmp_path), target=0.99).reached == [], "nobody gets there"
    for same in (Findings(made(tmp_path), target=0.4), Findings(made(tmp_path, target=0.4))):
        assert same.tables["time_to_target"].title == "To reach 40.00 %"


def test_settings_with_targets_of_their_own(tmp_path: Path) -> None:
    pairs = [(name, method) for name in "ab" for method in ("FedAvg", "MOON")]
    rows = [row for s, m in pairs for row in curve(m, 0, {1: 0.3, 2: 0.5}, setting=s)]
    results = recorded(tmp_path, [run(m, 0, 0.5, setting=s) for s, m in pairs], ["a", "b"], rows)
    results.settings[1].keys["target"] = 0.3
    findings = Findings(results)
    table = findings.tables["time_to_target"]
    assert table.headers[:3] == ["setting", "method", "target"]
    assert [row[2] for row in table.rows if row] == ["FedAvg's best accuracy"] * 2 + ["30.00 %"] * 2
    assert findings.reached[1].startswith("b: 30.00 % is reached first by FedAvg: 1 round,")


def test_without_a_history_nothing_is_known_of_targets(tmp_path: Path) -> None:
    results = recorded(tmp_path, [run("FedAvg", 0, 0.5), run("MOON", 0, 0.6)])
    assert "time_to_target" not in Findings(results).tables
    assert Findings(results).reached == []


def test_a_reduced_study_says_so_in_every_table(tmp_path: Path) -> None:
    findings = Findings(made(tmp_path, record={"full_rounds": 200}, note="not the paper's model"))
    for table in findings.tables.values():
        assert table.note.endswith("Reduced: 5 of 200 rounds. Not the paper's model.")


# --- reasons for caution -----------------------------------------------------------------------------


def with_scores(folder: Path, scores: dict[str, tuple[float, ...]], **about: Any) -> Results:
    runs = [
        run(label, seed, score) for label, of in scores.items() for seed, score in enumerate(of)
    ]
    results = recorded(folder, runs)
    return replace(results, settings=[replace(one, **about) for one in results.settings])


def guess(*scores: float, always: str = "the commonest class") -> dict[str, Any]:
    return {"always": always, "scores": dict(enumerate(scores))}


def test_a_score_like_a_guess(tmp_path: Path) -> None:
    scores = {"FedAvg": (0.2, 0.3), "MOON": (0.7, 0.8), "FedNova": (0.1, 0.2)}
    [words] = warnings(with_scores(tmp_path, scores, guessing=guess(0.2, 0.4)))
    assert words.startswith(
        "FedAvg (25.00) and FedNova (15.00) are no better than always answering "
    )
    assert words.endswith("the commonest class (on average 30.00 %).")
    [alone] = warnings(
        with_scores(tmp_path, {"FedAvg": (0.3,)}, guessing=guess(0.3))
    )  # as good as one is none
    assert alone.startswith("FedAvg (30.00) is no better than")
    [one] = warnings(
        with_scores(tmp_path, {"FedAvg": (0.1, 0.7, 0.6)}, guessing=guess(0.1, 0.1, 0.1))
    )
    assert one.startswith("FedAvg (10.00, 1 of 3 runs) is no better than")
    assert warnings(with_scores(tmp_path, {"FedAvg": (0.31,)}, guessing=guess(0.3))) == []
    assert warnings(with_scores(tmp_path, {"FedAvg": (0.1,)})) == []  # nobody knows


@pytest.mark.parametrize(("score", "said"), [(3.0, 1), (1.0, 0)])
def test_where_lower_is_better(tmp_path: Path, score: float, said: int) -> None:
    guessing = guess(2.0, always="the mean of the targets")
    results = with_scores(tmp_path, {"FedAvg": (score,)}, guessing=guessing)
    found = warnings(by_metric(results, Metric("rmse", higher=False)))
    assert (
        found
        == ["FedAvg (3) is no better than always answering the mean of the targets (2)."][:said]
    )


def test_what_was_odd_is_said_of_its_setting(tmp_path: Path) -> None:
    runs = [run("FedAvg", 0, 0.5), run("FedAvg", 0, 0.5, setting="b")]
    results = recorded(tmp_path, runs, ["a", "b"])
    first, second = results.settings
    results = replace(results, settings=[first, replace(second, warnings=("features are far",))])
    assert warnings(results) == ["b: Features are far."]
