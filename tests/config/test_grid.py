"""A list in the place of a value becomes settings with names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedskip import InputError
from fedskip.config import StudySpec, Tree, assigned, build, dump, load_yaml, narrowed
from fedskip.config.grid import text
from fedskip.config.record import Sweep
from studies import dataset, written

BASE = {"data": "synthetic", "methods": "fedavg"}


class Net:
    def __init__(self, width: int, sizes: Sequence[int] = (), other=None, scale=1.0) -> None: ...  # type: ignore[no-untyped-def]


def names(**keys: Any) -> list[str]:
    return [draft.name for draft in build(Tree(BASE | keys)).settings]


def test_a_grid_in_a_file_and_on_the_command_line(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "data: synthetic\nmethods: fedavg\nlocal: {lr: [0.01, 1e-1]}\npartition.beta: [0.1, 0.5]\n",
    )
    spec = build(file)
    assert [draft.name for draft in spec.settings] == [
        "synthetic(lr=0.01,beta=0.1)", "synthetic(lr=0.01,beta=0.5)",
        "synthetic(lr=0.1,beta=0.1)", "synthetic(lr=0.1,beta=0.5)",
    ]  # fmt: skip
    assert spec.settings[1].keys["local"] == {"lr": 0.01}
    assert spec.settings[1].keys["partition"] == {"beta": 0.5}
    assert spec.settings[1].record.sweep == Sweep("synthetic", ("local.lr", "partition.beta"))
    over = assigned(["local.lr=[0.5, 0.25]", "partition.beta=0.3"]).over(file)
    assert [draft.name for draft in build(over).settings] == [
        "synthetic(lr=0.5)",
        "synthetic(lr=0.25)",
    ]


def test_what_was_expanded_is_read_back(tmp_path: Path) -> None:
    spec = build(
        Tree(BASE | {"local.lr": [0.01, 0.1], "model": {"name": "mlp", "hidden": [[32], [64, 32]]}})
    )
    assert build(written(tmp_path, dump(spec))) == spec
    file = written(tmp_path, f"{dump(spec)}record: {{}}\n")
    assert build(load_yaml(tmp_path / "study.yaml")) == build(file)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"model": {"name": "mlp", "hidden": [64, 32]}}, ["synthetic"]),  # which takes a list
        ({"model": {"name": "mlp", "hidden": [[64], [64, 32]]}}, ["hidden=64", "hidden=64-32"]),
        (
            {"model": {"name": "perceptron", "sigmoid": [True, False]}},
            ["sigmoid=true", "sigmoid=false"],
        ),
        (
            {"model": ["linear", {"name": "mlp", "hidden": [8, 4]}]},
            ["model=linear", "model=mlp-8-4"],
        ),
        ({"model.name": ["linear", "mlp"]}, ["model=linear", "model=mlp"]),
        ({"model": {"name": "config.test_grid:Net", "sizes": [1, 2]}}, ["synthetic"]),
        (
            {"model": {"name": "config.test_grid:Net", "other": [1, 2]}},
            ["synthetic"],
        ),  # nobody knows
        ({"model": {"name": "config.test_grid:Net", "width": [1, 2]}}, ["width=1", "width=2"]),
        ({"model": {"name": "config.test_grid:Net", "scale": [1, 2]}}, ["scale=1", "scale=2"]),
        ({"partition": ["iid", {"kind": "shards"}]}, ["partition=iid", "partition=shards"]),
        ({"local.clip": [None, 1.0]}, ["clip=none", "clip=1"]),
        ({"local.lr": np.logspace(-2, -1, 2)}, ["lr=0.01", "lr=0.1"]),
        ({"local.lr": [0.1]}, ["lr=0.1"]),
        ({"init": ["a/w.pt", "b/w.pt"]}, ["init=w", "init=w-2"]),
        ({"seeds": [1, 2]}, ["synthetic"]),
    ],
)
def test_names(keys: dict[str, Any], expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    wanted = [name if "=" not in name else f"synthetic({name})" for name in expected]
    assert names(**keys) == wanted


def test_keys_that_share_their_last_part_are_written_out() -> None:
    assert (
        names(**{"stop.target": [0.5, 0.6], "partition.file": ["x", "y"]})[0]
        == "synthetic(target=0.5,file=x)"
    )
    both = names(
        **{"data.min_train": [64, 65], "partition": {"kind": "dirichlet", "min_size": [1, 2]}}
    )
    assert both[0] == "synthetic(min_train=64,min_size=1)"


def test_settings_have_grids_of_their_own() -> None:
    settings = [
        {"name": "a"},
        {"name": "b", "local.lr": 1.0},
        {"name": "c", "partition": "iid", "rounds": [3, 4]},
    ]
    keys = {
        "local.lr": [0.1, 0.2],
        "partition": {"kind": "dirichlet", "beta": [0.1, 0.5]},
        "settings": settings,
    }
    found = names(**keys)
    assert found[:4] == [
        "a(lr=0.1,beta=0.1)",
        "a(lr=0.1,beta=0.5)",
        "a(lr=0.2,beta=0.1)",
        "a(lr=0.2,beta=0.5)",
    ]
    assert found[4:6] == ["b(beta=0.1)", "b(beta=0.5)"]
    assert found[6:] == [
        "c(lr=0.1,rounds=3)",
        "c(lr=0.1,rounds=4)",
        "c(lr=0.2,rounds=3)",
        "c(lr=0.2,rounds=4)",
    ]


def test_data_may_be_swept() -> None:
    some, other = dataset(), dataset()
    assert names(data=[some, other], name="mine") == ["mine(data=tiny)", "mine(data=tiny-2)"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"local.lr": []}, r"local\.lr must hold at least one value"),
        ({"local.lr": [0.1, 0.1]}, r"local\.lr holds 0\.1 twice"),
        ({"local.lr": [0.1, "fast"]}, r"local\.lr must be a number, got 'fast'"),
        (
            {"model": {"name": "mlp", "hidden": [[8], 8]}},
            r"model\.hidden must be one list, or a list of lists",
        ),
        (
            {"local.lr": [i / 1e4 for i in range(1, 201)], "rounds": [*range(1, 100)]},
            "has 19,800 runs.*most_runs=19800",
        ),
        ({"note": ["a", "b"]}, "note must be text"),
        ({"settings": [{"name": "x" * 99, "local.lr": [0.1]}]}, "name must have at most 100"),
        ({"settings": [{"record": {"sweep": {"of": 3}}}]}, r"record\.sweep\.keys is missing"),
        (
            {"settings": [{"record": {"added": "moon"}}]},
            r"record\.added must be a list of mappings",
        ),
        (
            {"settings": [{"record": {"added": [{"methods": "moon"}]}}]},
            r"record\.added\.seeds is missing",
        ),
        ({"settings": [{"record": {"full_rounds": 0}}]}, r"record\.full_rounds must be >= 1"),
        ({"settings": [{"record": {"sweeep": 1}}]}, r"record\.sweeep is not a known key"),
    ],
)
def test_bad_grids(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        names(**keys)


def only(spec: StudySpec, *wanted: str) -> list[str]:
    return [draft.name for draft in narrowed(spec, wanted).settings]


def test_only_some_settings() -> None:
    spec = build(
        Tree(
            BASE
            | {"settings": [{"name": "a"}, {"name": "b", "local.lr": [0.1, 0.2]}, {"name": "ab"}]}
        )
    )
    assert only(spec, "a") == ["a"]
    assert only(spec, "a*") == ["a", "ab"]
    assert only(spec, "b") == ["b(lr=0.1)", "b(lr=0.2)"]
    assert only(spec, "ab", "b(lr=0.2)") == ["b(lr=0.2)", "ab"], "in the order of the study"
    assert only(spec, "*lr=0.1*") == ["b(lr=0.1)"]
    with pytest.raises(InputError, match=r"setting is not known, got 'abc'. Did you mean 'ab'"):
        narrowed(spec, ["a", "abc"])


def test_texts() -> None:
    assert text("my_nets:Net") == "my_nets-Net"
    assert text(np.float32(0.5)) == "0.5"
    assert text(dataset()) == "tiny"
