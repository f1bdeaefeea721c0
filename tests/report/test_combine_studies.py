"""Several studies as one."""

from __future__ import annotations

from pathlib import Path

from fedskip.report.combine_studies import combine
from studies import curve, recorded, run


def test_seeds_of_one_setting_are_put_combine(tmp_path: Path) -> None:
    studies = [
        recorded(
            tmp_path,
            [run(m, seed, 0.5) for m in ("FedAvg", "MOON")],
            rows=curve("MOON", seed, {1: 0.5}),
        )
        for seed in (0, 1)
    ]
    results, notes = combine(studies)
    assert notes == []
    assert [setting.name for setting in results.settings] == ["a"]
    assert results.scores("a", "MOON").index.tolist() == [0, 1]
    assert results.history["seed"].tolist() == [0, 1]
    assert results.compare()["n"].tolist() == [2, 2]


def test_what_differs_is_said_and_kept_apart(tmp_path: Path) -> None:
    one = recorded(tmp_path, [run("FedAvg", 0, 0.5)])
    (tmp_path / "b").mkdir()
    other = recorded(tmp_path / "b", [run("FedAvg", 0, 0.7)], cohort=2, local={"lr": 0.1})
    results, [note] = combine([one, other])
    assert [setting.name for setting in results.settings] == ["a", "a (b)"]
    assert set(results.compare()["setting"]) == {"a", "a (b)"}, "no rows over unlike settings"
    assert results.scores("a (b)", "FedAvg").to_dict() == {0: 0.7}
    differing = "cohort: 1 and 2; local.lr: None and 0.1"
    assert note == f"{tmp_path / 'b'}: a differs from the one before it in {differing}."


def test_a_run_that_two_studies_have_counts_once(tmp_path: Path) -> None:
    studies = [recorded(tmp_path, [run("FedAvg", 0, score)]) for score in (0.5, 0.6)]
    results, notes = combine(studies)
    assert results.scores("a", "FedAvg").to_dict() == {0: 0.5}
    assert notes == [f"{tmp_path}: a.FedAvg.s0 left out, as another study has it."]
    assert combine(studies[:1]) == (studies[0], [])


def test_other_data_under_the_same_keys_are_kept_apart(tmp_path: Path) -> None:
    studies = [recorded(tmp_path, [run("FedAvg", 0, score)]) for score in (0.5, 0.6, 0.7)]
    for number, one in enumerate(studies):
        one.settings[0].divisions[0] = {"partition": str(number), "test": 9, "evaluated": 9}
    results, notes = combine(studies)
    folder = tmp_path.name
    assert [one.name for one in results.settings] == ["a", f"a ({folder})", f"a ({folder}) 2"]
    assert results.summary["last"].tolist() == [0.5, 0.6, 0.7]
    assert all(
        "differs from the one before it in its data or their division" in note for note in notes
    )


def test_what_only_one_study_has_noted_of_its_division_keeps_nothing_apart(tmp_path: Path) -> None:
    """A later version notes more of the same division."""
    studies = [recorded(tmp_path, [run("FedAvg", seed, 0.5)]) for seed in (0, 1)]
    for one, more in zip(studies, ({}, {"held_out": "8ea4"}), strict=True):
        one.settings[0].divisions[0] = {"partition": "97a5", "test": 9, "evaluated": 9, **more}
    results, notes = combine(studies)
    assert ([one.name for one in results.settings], notes) == (["a"], [])


def test_methods_are_called_as_in_one_study(tmp_path: Path) -> None:
    """MOON at its default stands beside a MOON that is not: what tells them apart is shown."""
    one = recorded(
        tmp_path, [run("MOON", 0, 0.5)], methods=["moon"], rows=curve("MOON", 0, {1: 0.5})
    )
    other = recorded(tmp_path, [run("MOON(mu=5.0)", 0, 0.6)], methods=["moon(mu=5.0)"])
    results, _ = combine([one, other])
    assert results.labels() == ["MOON(mu=1.0)", "MOON(mu=5.0)"]
    assert results.summary["run"].tolist() == ["a.MOON(mu=1.0).s0", "a.MOON(mu=5.0).s0"]
    assert len(results.rows("a", "MOON(mu=1.0)")) == 1
    strange = recorded(tmp_path, [run("Mine", 0, 0.6)], methods=["not_here:Mine"])
    assert combine([one, strange])[0].labels() == ["MOON", "Mine"], (
        "what cannot be read keeps its label"
    )
