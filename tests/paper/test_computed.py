"""What of the paper is computed from runs and partitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedskip.engine.local import Local
from fedskip.input.errors import InputError
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
    with pytest.raises(InputError, match=r"fig2 needs a run that skips\. Run one first"):
        COMPUTED["fig2"].make([], tmp_path)


def test_curves_of_what_was_run(tmp_path: Path) -> None:
    text = shown(COMPUTED["fig4"].make([kept(tmp_path)], tmp_path))
    assert (tmp_path / "fig4-femnist.svg").exists()
    assert "not run: table3/shakespeare" in text
