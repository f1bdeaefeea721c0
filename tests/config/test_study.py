"""A study: what is built from a tree, its grids, and what is written back."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from fedskip.config import Draft, StudySpec, Tree, assigned, build, dump, load_yaml, narrowed
from fedskip.config.setting import Sweep
from fedskip.config.study import value_text
from fedskip.engine import Local
from fedskip.errors import InputError
from fedskip.methods import FedAvg, FedProx, Moon, Scaffold
from studies import DEFAULTS, STUDY, dataset, read_back, written


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "mps"}, "device must be auto, cpu, cuda or cuda:N, got 'mps'"),
        ({"device": "cuda:x"}, "device must be auto, cpu, cuda or cuda:N"),
        ({"engine": "fast"}, "engine must be 'auto' or 'loop' or 'stacked', got 'fast'"),
        (
            {"precision": "fp8"},
            "precision must be 'fp32' or 'tf32' or 'bf16' or 'fp64' or null, got 'fp8'",
        ),
        ({"workers": 0}, "workers must be >= 1"),
        ({"compile": "maybe"}, "compile must be true or false"),
        ({"name": "../up"}, "name must start with a letter"),
        ({"settings": ()}, "settings must hold at least one setting"),
        ({"settings": (Draft({"data": "a"}),) * 2}, "settings must have different names, got 'a'"),
    ],
)
def test_bad_studies(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        StudySpec(**{"settings": (Draft({"data": "a"}),), **options})
    assert message in str(caught.value)


def test_a_study_file(tmp_path: Path) -> None:
    spec = build(written(tmp_path, STUDY))
    assert (spec.name, spec.engine, spec.device) == ("demo", "loop", "auto")
    base, skewed, pooled = (draft.keys for draft in spec.settings)
    shared = {
        "data": {"name": "synthetic", "train_fraction": 0.6}, "partition": {"kind": "dirichlet", "beta": 0.5},
        "local": {"lr": 0.01, "batch": 32}, "methods": (FedAvg(), FedProx(mu=0.001), FedProx(mu=0.01)),
        "rounds": 20, "seeds": (3, 4),
    }  # fmt: skip
    assert base == shared | {"name": "base"}
    assert skewed == shared | {
        "name": "skewed", "partition": {"kind": "dirichlet", "beta": 0.1},
        "local": {"lr": 0.01, "batch": 32, "epochs": 1},
    }  # fmt: skip
    assert pooled == shared | {
        "name": "pooled", "partition": {"kind": "pooled"}, "cohort": 1, "methods": (FedAvg(), Moon()),
        "rounds": 5, "reference": True,
    }  # fmt: skip


def test_a_file_without_settings_or_name(tmp_path: Path) -> None:
    spec = build(
        written(tmp_path, "data: synthetic\nrecord: {study: digest, versions: {torch: '2.6'}}\n")
    )
    assert spec.name == "study"
    assert [setting.name for setting in spec.settings] == ["synthetic"]


def test_round_trip_of_a_file(tmp_path: Path) -> None:
    spec = build(written(tmp_path, STUDY))
    assert read_back(spec, tmp_path) == spec
    full = [draft.resolved(DEFAULTS) for draft in spec.settings]
    back = build(written(tmp_path, dump(spec, full)))
    assert [draft.resolved({}) for draft in back.settings] == full


names = st.from_regex(r"[A-Za-zβ][\w .=()-]{0,8}", fullmatch=True)


texts = st.text(
    st.characters(codec="utf-8", exclude_characters="\x85\u2028\u2029")
)  # PyYAML folds these


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts
)


options = st.dictionaries(
    st.from_regex(r"[a-z_]{1,6}", fullmatch=True).filter(lambda key: key not in ("name", "kind")),
    st.recursive(scalars, lambda inner: st.lists(inner, max_size=3), max_leaves=4),
    max_size=3,
)


locals_ = st.one_of(
    st.none(),
    st.builds(
        Local,
        lr=st.floats(1e-9, 10),
        decay=st.sampled_from(["constant", "step(every=5, factor=0.5)"]),
    ),
    st.fixed_dictionaries({}, optional={"lr": st.floats(1e-9, 10), "batch": st.integers(1, 512)}),
)


some_methods = st.one_of(
    st.none(),
    st.builds(
        lambda mu, period: (
            FedAvg(),
            FedAvg(period=period),
            FedProx(mu=mu),
            Scaffold(period=period),
        ),
        st.floats(0, 1e9),
        st.integers(2, 99) | st.just("1x10,5") | st.just("never"),
    ),
)


def made_of(name: str) -> st.SearchStrategy[Any]:
    return st.builds(lambda tag, rest: {name: tag, **rest}, names, options)


all_settings = st.builds(
    lambda **keys: Draft(keys),
    name=names,
    data=made_of("name"),
    partition=st.none() | made_of("kind"),
    model=st.none() | made_of("name"),
    cohort=st.none() | st.integers(1, 5),
    clients=st.none() | st.integers(5, 9),
    cohort_policy=st.sampled_from(["uniform", "fixed", "cyclic"]),
    local=locals_,
    methods=some_methods,
    rounds=st.none() | st.integers(1, 1000),
    seeds=st.lists(st.integers(0, 2**63), min_size=1, max_size=3, unique=True),
    partition_seed=st.none() | st.integers(0, 9),
    validation=st.floats(0, 0.99),
    init=st.none() | texts.filter(bool),
    reference=st.booleans(),
)


all_studies = st.builds(
    StudySpec,
    name=names,
    settings=st.lists(all_settings, min_size=1, max_size=3, unique_by=lambda draft: draft.name).map(
        tuple
    ),
    device=st.sampled_from(["auto", "cpu", "cuda", "cuda:1"]),
    compile=st.booleans(),
    workers=st.none() | st.integers(1, 9),
    precision=st.sampled_from(["fp32", "fp64"]),
)


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(all_studies)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, spec: StudySpec) -> None:
    with contextlib.chdir(
        tmp_path_factory.getbasetemp()
    ):  # paths in a file are relative to its folder
        assert read_back(spec, Path()) == spec


def my_loss(output: Any, target: Any) -> Any:
    return output - target


def test_objects_leave_a_trace(tmp_path: Path) -> None:
    spec = build(
        Tree({"data": dataset(), "model": nn.Linear(2, 2), "methods": "fedavg", "loss": my_loss})
    )
    found = yaml.safe_load(dump(spec))
    assert found["data"] == "python:fedskip.data.dataset.Dataset"
    assert found["model"] == "python:torch.nn.modules.linear.Linear"
    assert found["loss"] == f"python:{__name__}.my_loss"
    assert yaml.safe_load(dump(read_back(spec, tmp_path))) == found


def test_names_that_look_like_numbers_are_read_back_as_text(tmp_path: Path) -> None:
    keys = {"data": "synthetic", "methods": "fedavg", "name": "1e3"}
    spec = build(Tree(keys | {"settings": [{"name": "1e-3"}, {"name": "12"}, {"name": "true"}]}))
    assert build(written(tmp_path, dump(spec))) == spec


@pytest.mark.parametrize(
    ("file", "name"),
    [("my data's (1).npz", "my data-s (1)"), ("~x.npz", "data-x"), ("a" * 300 + ".npz", "a" * 100)],
)
def test_a_setting_is_named_after_its_file(file: str, name: str) -> None:
    spec = build(Tree({"data": file, "methods": "fedavg"}))
    assert spec.settings[0].name == name


def test_names_are_not_too_long_for_files() -> None:
    with pytest.raises(
        InputError, match=r"name must have at most 100 characters \(bytes of UTF-8\)"
    ):
        build(Tree({"data": "synthetic", "methods": "fedavg", "settings": [{"name": "a" * 101}]}))


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("lr", "local.lr"),
        ("epochs", "local.epochs"),
        ("beta", "partition.beta"),
        ("kind", "partition.kind"),
    ],
)
def test_a_key_without_its_place_is_told_where_it_belongs(key: str, meant: str) -> None:
    with pytest.raises(InputError, match=f"{key} is not a known key. Did you mean '{meant}'"):
        build(Tree({"data": "synthetic", "methods": "fedavg", key: 1}))


BASE = {"data": "synthetic", "methods": "fedavg"}


class Net(nn.Module):
    def __init__(self, width: int, sizes: Sequence[int] = (), other=None, scale=1.0) -> None: ...  # type: ignore[no-untyped-def]


def names_of(**keys: Any) -> list[str]:
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
    file = written(tmp_path, f"{dump(spec)}record: {{study: digest}}\n")
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
        ({"model": {"name": "config.test_study:Net", "sizes": [1, 2]}}, ["synthetic"]),
        (
            {"model": {"name": "config.test_study:Net", "other": [1, 2]}},
            ["synthetic"],
        ),  # nobody knows
        ({"model": {"name": "config.test_study:Net", "width": [1, 2]}}, ["width=1", "width=2"]),
        ({"model": {"name": "config.test_study:Net", "scale": [1, 2]}}, ["scale=1", "scale=2"]),
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
    assert names_of(**keys) == wanted


def test_keys_that_share_their_last_part_are_written_out() -> None:
    assert (
        names_of(**{"stop.target": [0.5, 0.6], "partition.file": ["x", "y"]})[0]
        == "synthetic(target=0.5,file=x)"
    )
    both = names_of(
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
    found = names_of(**keys)
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
    assert names_of(data=[some, other], name="mine") == ["mine(data=tiny)", "mine(data=tiny-2)"]


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
        names_of(**keys)


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
    assert value_text("my_nets:Net") == "my_nets-Net"
    assert value_text(np.float32(0.5)) == "0.5"
    assert value_text(dataset()) == "tiny"
