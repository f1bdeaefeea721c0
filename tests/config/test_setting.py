"""A setting as written, and resolved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from fedskip.config import Draft, Record, Runs, build
from fedskip.engine import Local
from fedskip.errors import InputError
from fedskip.methods import FedAvg, Moon
from studies import DEFAULTS, dataset, written


def test_a_setting_takes_what_a_notebook_user_writes() -> None:
    made: Any = {"data": "synthetic", "methods": ["fedavg", Moon()], "seeds": 3, "model": "cnn"}
    draft = Draft(made)
    assert draft.keys == {
        "name": "synthetic", "data": {"name": "synthetic"}, "methods": (FedAvg(), Moon()), "seeds": (0, 1, 2),
        "model": {"name": "cnn"},
    }  # fmt: skip


def test_a_setting_is_named_after_its_data() -> None:
    assert Draft({"data": dataset()}).name == "tiny"
    assert Draft({"data": {"name": "my/folder/faces.npz"}}).name == "faces"


@pytest.mark.parametrize("field", ["data", "model", "loss", "metric"])
def test_objects_that_a_file_only_names_can_be_looked_at_but_not_trained_with(field: str) -> None:
    draft = Draft({"data": "synthetic"} | {field: "python:x.y"})
    with pytest.raises(InputError, match=f"{field} was a Python object, which a file cannot hold"):
        draft.refuse_named_objects()
    Draft({"data": dataset(), "model": dataset, "loss": "cross_entropy"}).refuse_named_objects()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": None}, "data.name is missing"),
        ({"data": {"path": "x"}}, "data.name is missing"),
        ({"data": 3}, "data must be a name, a mapping or a Dataset, got 3"),
        ({"data": {"name": 3}}, "data.name must be text, got 3"),
        ({"partition": 3}, "partition must be a kind or a mapping, got 3"),
        ({"model": 3}, "model must be a name, a mapping, an nn.Module"),
        ({"loss": 3}, "loss must be a name or a function, got 3"),
        ({"name": "a/b"}, "name must start with a letter or digit and hold no slashes"),
        ({"clients": 0}, "clients must be >= 1"),
        ({"cohort": 0}, "cohort must be >= 1"),
        ({"cohort": 11, "clients": 10}, "cohort must be <= 10, the number of clients, got 11"),
        ({"cohort_policy": "random"}, "cohort_policy must be 'uniform' or 'fixed' or 'cyclic'"),
        ({"rounds": 0}, "rounds must be >= 1"),
        ({"rounds": "many"}, "rounds must be a whole number, got 'many'"),
        ({"seeds": 0}, "seeds must be how many seeds or a list of different ones"),
        ({"seeds": 10**22}, "seeds must be 10,000 or fewer, got 10000000000000000000000"),
        ({"seeds": []}, "seeds must be how many seeds"),
        ({"seeds": [1, 1]}, "seeds must be how many seeds"),
        ({"seeds": [-1]}, "seeds must be how many seeds"),
        ({"seeds": "two"}, "seeds must be how many seeds"),
        ({"validation": 1}, "validation must be in [0, 1)"),
        ({"eval_every": 0}, "eval_every must be >= 1"),
        ({"reference": 1}, "reference must be true or false"),
        ({"methods": ["fedavg", "fedavg"]}, "methods holds FedAvg twice"),
        ({"methods": 3}, "methods must be methods or their text"),
        ({"local": {"lrr": 1}}, "local.lrr is not a known key. Did you mean 'local.lr'?"),
        ({"local": 3}, "local must be a mapping"),
        ({"target": "fedavq"}, "method is not known, got 'fedavq'. Did you mean 'fedavg'?"),
        ({"target": "fedavg, moon"}, "target must be a score or one method, got 'fedavg, moon'"),
        ({"target": []}, "target must be a score or one method, got []"),
    ],
)
def test_bad_settings(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Draft({"data": "synthetic", **options})
    assert message in str(caught.value)


def test_what_is_left_out_comes_from_the_data_set() -> None:
    setting = Draft({"data": "x", "methods": "fedavg"}).resolved(DEFAULTS)
    assert setting.model == {"name": "cnn", "head": True}
    assert setting.partition == {"kind": "dirichlet", "beta": 0.5}
    assert (setting.clients, setting.cohort, setting.rounds) == (10, 5, 100)
    assert setting.local == Local(lr=0.1)
    assert Draft(setting.keys).resolved({"cohort": 7}) == setting, "what is complete stays as it is"


def test_what_is_written_wins_over_the_data_set() -> None:
    made: Any = {
        "partition": {"beta": 0.1},
        "model": "lstm",
        "cohort": 2,
        "local": {"lr": 0.01, "batch": "8"},
    }
    setting = Draft({"data": "x", "methods": "fedavg", **made}).resolved(DEFAULTS)
    assert setting.partition == {"kind": "dirichlet", "beta": 0.1}
    assert setting.model == {"name": "lstm"}  # the default head was the cnn's
    assert setting.cohort == 2
    assert setting.local == Local(lr=0.01, batch=8)


@pytest.mark.parametrize(
    ("target", "held"), [(0.68, 0.68), ("6e-1", 0.6), ("moon(mu=1)", "moon(mu=1)"), (None, None)]
)
def test_a_target_is_a_score_or_a_method(target: Any, held: Any) -> None:
    setting = Draft({"data": "x", "methods": "fedavg, moon", "target": target}).resolved(DEFAULTS)
    assert setting.target == held


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (68, "target must be from 0 to 1, got 68.0. Write 0.68 for 68 %"),
        (
            "fedprox",
            "target must be one of the methods, got 'fedprox'. Write a score or fedavg or moon",
        ),
    ],
)
def test_a_target_that_no_run_can_have(target: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        Draft({"data": "x", "methods": "fedavg, moon", "target": target}).resolved(DEFAULTS)
    assert message in str(caught.value)


def test_objects_are_never_filled_in() -> None:
    module, local = nn.Linear(2, 2), Local(lr=0.3)
    keys = {"data": "x", "methods": "fedavg", "model": module, "local": local}
    setting = Draft(keys).resolved(DEFAULTS)
    assert setting.model is module
    assert setting.local == local


@pytest.mark.parametrize(
    ("defaults", "message"),
    [
        ({}, "partition, model, cohort, rounds are missing. The data set has no default for them"),
        ({**DEFAULTS, "partition.beta.x": 1}, "partition.beta is written twice"),
        ({k: v for k, v in DEFAULTS.items() if k != "partition.kind"}, "partition.kind is missing"),
        ({k: v for k, v in DEFAULTS.items() if k != "rounds"}, "rounds is missing"),
        (
            {**DEFAULTS, "cohrt": 1},
            "default of the data set is not known, got 'cohrt'. Did you mean 'cohort'?",
        ),
        ({**DEFAULTS, "local.lrr": 1}, "local.lrr is not a known key"),
        ({**DEFAULTS, "cohort": 11}, "cohort must be <= 10"),
    ],
)
def test_a_setting_that_cannot_be_filled(defaults: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Draft({"data": "x", "methods": "fedavg"}).resolved(defaults)
    assert message in str(caught.value)


def test_an_error_that_needs_the_data_set_has_its_line(tmp_path: Path) -> None:
    text = "data: synthetic\nmethods: fedavg\ntarget: moon\n"
    [draft] = build(written(tmp_path, text)).settings
    with pytest.raises(InputError, match=r"^target .*got 'moon' \(study\.yaml line 3\)"):
        draft.resolved(DEFAULTS)


def test_added_runs_are_parts_with_their_own_key_and_labels() -> None:
    setting = Draft({"data": "x", "methods": "fedavg, moon", "seeds": 2}).resolved(DEFAULTS)
    more = setting.extended([Moon(mu=5.0), FedAvg()], [0, 7]).extended([], [8])
    assert [(part.key, part.seeds) for part in more.parts()] == [
        ("x", (0, 1)), ("x~1", (0, 1)), ("x~2", (7,)), ("x~3", (8,)),
    ]  # fmt: skip
    labels = [
        [run.label for run in part.runs if run.seed == part.seeds[0]] for part in more.parts()
    ]
    assert labels == [
        ["FedAvg", "MOON"],
        ["MOON(mu=5.0)"],
        *2 * [["FedAvg", "MOON", "MOON(mu=5.0)"]],
    ]
    assert more.parts()[2].run_names == ["x.FedAvg.s7", "x.MOON.s7", "x.MOON(mu=5.0).s7"]
    assert (more.all_methods, more.all_seeds) == ([FedAvg(), Moon(), Moon(mu=5.0)], [0, 1, 7, 8])
    assert setting.parts() == [setting]
    twice = Draft(setting.keys, Record(added=(Runs((FedAvg(),), (1,)),)))
    with pytest.raises(InputError, match="holds fedavg at seed 1, which is there already"):
        twice.resolved({})
