"""What of the paper is computed from runs and partitions."""

from __future__ import annotations

from pathlib import Path

from fedskip.engine.local import Local
from fedskip.paper.computed import COMPUTED
from fedskip.report.results import Results
from studies import curve, recorded, run, study
from terminal import shown


def kept(tmp_path: Path) -> Results:
    """One run of FEMNIST."""
    return recorded(
        tmp_path, [run("FedAvg", 0, 0.4)], rows=curve("FedAvg", 0, {2: 0.4}), data={"name": "femnist"},
        partition={"kind": "natural"}, clients=180, model={"name": "cnn-femnist"}, cohort=10, rounds=200,
        local=vars(Local(small_clients="short")),
    )  # fmt: skip


def test_the_way_of_the_models(tmp_path: Path) -> None:
    made = study(tmp_path / "s", methods="fedavg, fedskip(period=2)", rounds=4, seeds=1).run()
    text = shown(COMPUTED["fig2"].make([made], tmp_path))
    assert "toy.FedSkip-2.s0" in text
    assert (tmp_path / "fig2.svg").exists()
    assert COMPUTED["fig2"].make([], tmp_path) == []


def test_curves_of_what_was_run(tmp_path: Path) -> None:
    text = shown(COMPUTED["fig4"].make([kept(tmp_path)], tmp_path))
    assert (tmp_path / "fig4-femnist.svg").exists()
    assert "not run: table3/shakespeare" in text


def test_curves_of_runs_whose_history_was_not_kept(tmp_path: Path) -> None:
    made = kept(tmp_path)
    made.history.rows.clear()
    text = shown(COMPUTED["fig4"].make([made], tmp_path))
    assert "run, but without a history: table3/femnist" in text
    assert not (tmp_path / "fig4-femnist.svg").exists()


def test_where_no_run_diverged_no_file_says_so(tmp_path: Path) -> None:
    assert shown(COMPUTED["diverged"].make([kept(tmp_path / "a")], tmp_path)).split() == (
        ["No", "run", "of", "the", "paper's", "settings", "diverged."]
    )
    assert not (tmp_path / "diverged.csv").exists()
    lost = kept(tmp_path / "b")
    lost.summary.rows[0] |= {"diverged": True, "rounds": 2}
    assert "FedAvg" in shown(COMPUTED["diverged"].make([lost], tmp_path))
    assert (tmp_path / "diverged.csv").exists()
