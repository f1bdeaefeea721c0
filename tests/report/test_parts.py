"""The parts of the page."""

from __future__ import annotations

from pathlib import Path

from fedskip.report.parts import about, brief, lost, provenance, timing
from fedskip.report.results import Results
from fedskip.report.together import together
from studies import recorded, run, study


def test_what_was_studied_in_three_sentences(tmp_path: Path) -> None:
    keys = {"data": {"name": "synthetic"}, "local": {"epochs": 1, "batch": 8, "lr": 0.1}, "cohort": 4}
    results = recorded(
        tmp_path, [run("FedAvg", 0, 0.5), run("MOON", 0, 0.6)], methods=["fedavg", "moon"], **keys
    )
    text, table = about(results), brief(results)
    assert text == (
        "<p>2 methods of federated learning are tried on synthetic, dealt to 20 clients. "
        "In each of 5 rounds, 4 of them train perceptron for 1 epoch. "
        "All is done with 1 seed, and scored by test accuracy on 1,001 test samples.</p>"
    )
    assert "<th>methods</th><td>FedAvg, MOON(mu=1.0, temperature=0.5)</td>" in table
    assert "<th>clients</th><td>20, 4 of them in a round</td>" in table


def test_runs_that_diverged_say_where(tmp_path: Path) -> None:
    broke = run("MOON", 0, 0.1, diverged=True) | {"broke_round": 6, "broke_client": 3, "broke_slot": 1}
    assert lost(recorded(tmp_path, [run("FedAvg", 0, 0.5)])) == ""
    text = lost(recorded(tmp_path, [run("FedAvg", 0, 0.5), broke]))
    assert "a.MOON.s0 in round 6, in slot 1 at client 3; its numbers are of the first 5 rounds" in text
    assert "What helps: a smaller local.lr, a local.clip" in text


def test_studies_put_together_each_say_where_they_come_from(tmp_path: Path) -> None:
    for seed in (0, 1):
        study(tmp_path / str(seed), methods="fedavg", rounds=2, seeds=[seed]).run()
    results, _ = together([Results.read(tmp_path / str(seed)) for seed in (0, 1)])
    text = provenance(results)
    for seed in (0, 1):
        assert f"in the folder {seed}." in text
    assert text.count("<details>") == text.count("Hash of the study: ") == 2
    assert timing(results).count("<td>1 run</td><td>2 rounds</td>") == 2
