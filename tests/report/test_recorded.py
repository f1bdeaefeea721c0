"""What a folder holds of a study."""

from __future__ import annotations

from pathlib import Path

from fedskip import FedAvg, FedProx
from fedskip.report.results import Results
from studies import study


def test_a_study_under_way_knows_which_runs_have_diverged(tmp_path: Path) -> None:
    """Its checkpoint does; without one, or with half of one, nothing is known and nothing fails."""
    methods = [FedAvg(), FedProx(mu=1e8)]
    known = study(tmp_path / "out", methods=methods, seeds=1, rounds=6).run().summary
    (tmp_path / "out" / "summary.csv").unlink()
    found = Results.read(tmp_path / "out")
    assert not found.finished
    for name in ("diverged", "broke_round", "broke_client", "last", "rounds"):
        assert found.summary.column(name) == known.column(name), name
    *_, newest = sorted((tmp_path / "out" / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:100])
    assert Results.read(tmp_path / "out").summary.column("diverged") == [False, False]
    newest.unlink()
    assert Results.read(tmp_path / "out").summary.column("diverged")[0] is False
