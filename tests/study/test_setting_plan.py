"""How a setting is trained: sizes that stay, and runs that end early by their validation scores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedskip import FedAvg, InputError
from fedskip.engine import Loop
from fedskip.records.table import Row
from fedskip.report.progress import Progress
from fedskip.report.results import Results
from fedskip.report.tables import closing_table
from fedskip.study.setting_plan import Group, make_engine, noted_sizes
from fedskip.study.train import InProcess, Preparing
from studies import as_table, numbers, study, weights
from tiny import clients_of, make_run, task_of

FEW: dict[str, Any] = {
    "methods": "fedavg, fedskip(period=2), scaffold", "seeds": 2, "rounds": 12, "checkpoint_every": 4,
    "processes": 1, "validation": 0.25, "local": {"batch": 4, "epochs": 1, "lr": 0.1},
}  # fmt: skip


def expected(history: list[Row], patience: float, target: float = 2.0) -> tuple[int, str]:
    """Where a run with this whole history would have ended, worked out by hand, and why."""
    best, at = -1.0, 0
    for row in history:
        if row["val_accuracy"] > best:
            best, at = row["val_accuracy"], row["round"]
        if row["val_accuracy"] >= target:
            return row["round"], "target"
        if row["round"] - at >= patience:
            return row["round"], "patience"
    return history[-1]["round"], ""


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_run_ends_where_the_rule_says(tmp_path: Path, engine: str) -> None:
    whole = study(tmp_path / "whole", **FEW, engine=engine).run()
    early = study(tmp_path / "early", **FEW, engine=engine, stop={"patience": 3}).run()
    reasons = set()
    for row in as_table(early.summary):
        round, why = expected(as_table(whole.history).where(run=row["run"]), 3)
        mine = as_table(early.history).where(run=row["run"])
        assert (mine[-1]["round"], row["ended"]) == (round, why)
        if why:
            assert row["rounds"] == round
            assert row["last"] == row["mean_tail"] == mine[-1]["test_accuracy"]
            assert row["bytes_total"] == mine[-1]["bytes_down"] + mine[-1]["bytes_up"]
            assert row["merged"] is None
            assert row["diverged"] is False
        reasons.add(why)
        if engine == "loop":  # whose bits do not depend on what is trained beside them
            theirs = [
                r for r in numbers(whole.out) if r["run"] == row["run"] and r["round"] <= round
            ]
            assert [r for r in numbers(early.out) if r["run"] == row["run"]] == theirs
    assert reasons == {"patience", ""}, "some end and others go on"
    assert any(
        "runs ended early, at round" in line for line in closing_table(early).note.splitlines()
    )


def test_a_target_ends_a_run(tmp_path: Path) -> None:
    whole = study(tmp_path / "whole", **FEW).run()
    score = sorted(as_table(whole.history).column("val_accuracy"))[
        len(as_table(whole.history)) // 2
    ]
    early = study(tmp_path / "early", **FEW, stop={"target": score}).run()
    found = {row["run"]: (row["rounds"], row["ended"]) for row in as_table(early.summary)}
    for run, (round, why) in found.items():
        assert (round, why) == expected(as_table(whole.history).where(run=run), 99, score), run
    assert {why for _, why in found.values()} >= {"target"}


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("killed", [4, 12])
def test_killed_and_resumed(
    tmp_path: Path, engine: str, killed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = FEW | {"engine": engine, "stop": {"patience": 3}}
    whole, broken = study(tmp_path / "whole", **keys), study(tmp_path / "broken", **keys)
    whole.run()
    advance = InProcess.advance

    def breaks(
        self: InProcess, groups: list[Group], until: int, preparing: Preparing
    ) -> Iterator[list[Row]]:
        yield from advance(self, groups, until, preparing)
        if until == killed:
            raise KeyboardInterrupt  # before its checkpoint is written

    with monkeypatch.context() as patched:
        patched.setattr(InProcess, "advance", breaks)
        with pytest.raises(KeyboardInterrupt):
            broken.run()
    if killed > 4:
        assert any(as_table(Results.read(broken.out).summary).column("ended")), (
            "a checkpoint knows it, too"
        )
    study(tmp_path / "broken", **keys).resume()
    assert numbers(whole.out) == numbers(broken.out)
    assert weights(whole.out) == weights(broken.out)
    assert (whole.out / "summary.csv").read_text() == (broken.out / "summary.csv").read_text()


def test_in_processes_of_their_own(tmp_path: Path) -> None:
    keys = FEW | {"engine": "stacked", "stop": {"patience": 3}, "processes": 2}
    one, two = (study(tmp_path / name, **keys).run() for name in ("one", "two"))
    assert numbers(one.out) == numbers(two.out)
    assert any(as_table(one.summary).column("ended"))


def test_where_all_have_ended_the_setting_is_done(tmp_path: Path) -> None:
    class Counts(Progress):
        rounds: list[int] = []  # noqa: RUF012

        def checkpoint(self, round: int) -> None:
            self.rounds.append(round)

    keys = FEW | {"stop": {"target": 0.0}, "checkpoint_every": 1}
    made, counts = study(tmp_path / "out", **keys), Counts()
    results = made.run(counts)
    assert set(as_table(results.summary).column("ended")) == {"target"}
    assert len(counts.rounds) <= 4
    assert counts.rounds[-1] == 12
    assert made.is_finished()
    longer = study(tmp_path / "out", **keys).resume(rounds=16)
    assert as_table(longer.summary).column("rounds") == as_table(results.summary).column(
        "rounds"
    ), "they stay ended"


@pytest.mark.parametrize(
    ("stop", "validation", "message"),
    [
        ({"patience": 3}, 0.0, "stop needs a validation split, got .*validation=0.1"),
        ({"patience": 0}, 0.1, r"stop\.patience must be"),
        ({"patience": "long"}, 0.1, r"stop\.patience must be a whole number"),
        ({"target": 70}, 0.1, r"stop\.target must be from 0 to 1"),
        ({"patiance": 3}, 0.1, r"Did you mean 'stop\.patience'"),
        (5, 0.1, "stop must be a mapping"),
    ],
)
def test_bad_rules(tmp_path: Path, stop: Any, validation: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        study(tmp_path / "out", **(FEW | {"stop": stop, "validation": validation})).run()
    assert not (tmp_path / "out").exists()


def test_a_study_that_goes_on_keeps_its_sizes() -> None:
    """They follow from its rounds, and a row's bits depend on them."""
    noted = {"sizes": [[3, 9], [6]], "contrast_sizes": [[], [2]]}
    assert noted_sizes(noted, 0, 2) == ([3, 9], [])
    assert noted_sizes(noted, 1, 2) == ([6], [2])
    for junk in ({}, {"sizes": [[3]]}, noted | {"sizes": 5}, noted | {"sizes": [["a"], [6]]}):
        assert noted_sizes(junk, 0, 2) is None
    assert noted_sizes(noted, 0, 1) is None, "of other groups"
    task = task_of("perceptron")
    runs = [make_run(task, clients_of(), FedAvg(), slots=3, seed=seed) for seed in range(2)]
    prepared: Any = SimpleNamespace(task=task, setting=SimpleNamespace(rounds=10**6))
    machine: Any = SimpleNamespace(
        engine="stacked", compile=True, threads=1, streams=0, kernels=False, workers=2
    )
    engine: Any = make_engine(prepared, machine, runs, sizes=([5, 6], []))
    assert (engine.plan.sizes, engine.plan.contrast_sizes) == ([5, 6], [])
    machine.engine = "loop"
    assert isinstance(make_engine(prepared, machine, runs), Loop)
