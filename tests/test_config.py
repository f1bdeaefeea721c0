"""Studies from YAML and back: what is read, what is filled in, and what a user is told who mistypes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from fedskip import studies
from fedskip.config import Local, Setting, StudySpec, Tree, apply, build, dump, is_portable, load_yaml
from fedskip.data.base import Arrays, Dataset
from fedskip.errors import InputError
from fedskip.fields import expand, fit, overlay
from fedskip.methods import FedAvg, FedDyn, FedProx, Moon, Scaffold


def written(folder: Path, text: str) -> Tree:
    file = folder / "study.yaml"
    file.write_text(text)
    return load_yaml(file)


def dataset(**defaults: Any) -> Dataset:
    samples = Arrays(torch.zeros(4, 2), torch.zeros(4))
    return Dataset(
        name="tiny", samples=samples, split=lambda seed: (np.arange(3), np.arange(3, 4)), defaults=defaults
    )


# --- values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (1, float, 1.0),
        ("1e-5", float, 1e-5),
        (np.float64(0.5), float, 0.5),
        (5.0, int, 5),
        ("1e3", int, 1000),
        (np.int64(7), int, 7),
        (2**70, int, 2**70),
        ("true", bool, True),
        (None, int | None, None),
        ("5", int | str, "5"),
        (0.5, float | None, 0.5),
        ([1], list[int], [1]),
    ],
)
def test_fit(value: Any, hint: Any, expected: Any) -> None:
    found = fit("field", value, hint)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "hint", "words"),
    [
        ("a", float, "a number"),
        (float("nan"), float, "a number"),
        ("inf", float, "a number"),
        (True, int, "a whole number"),
        (1.5, int | None, "a whole number or null"),
        (1, bool, "true or false"),
        (3, str, "text"),
        (None, str, "text"),
    ],
)
def test_misfits(value: Any, hint: Any, words: str) -> None:
    with pytest.raises(InputError, match=f"^local.lr must be {words}, got"):
        fit("local.lr", value, hint)


def test_dotted_keys_are_nested_ones() -> None:
    assert expand({"a.b.c": 1, "a": {"b.d": 2}, "e": 3}) == {"a": {"b": {"c": 1, "d": 2}}, "e": 3}
    for twice in ({"a.b": 1, "a": {"b": 2}}, {"a": 1, "a.b": 2}):
        with pytest.raises(InputError, match=r"a(\.b)? is written twice"):
            expand(twice)


def test_options_go_with_their_kind() -> None:
    base = {"partition": {"kind": "dirichlet", "beta": 0.5}, "local": {"lr": 0.1, "batch": 8}}
    over = {"partition": {"beta": 0.1}, "local": {"lr": 1.0}}
    merged = {"partition": {"kind": "dirichlet", "beta": 0.1}, "local": {"lr": 1.0, "batch": 8}}
    assert overlay(base, over) == merged
    assert overlay(base, {"partition": {"kind": "iid"}})["partition"] == {"kind": "iid"}
    assert base["partition"] == {"kind": "dirichlet", "beta": 0.5}


# --- the parts -----------------------------------------------------------------------------------------


def test_local_is_the_paper_s() -> None:
    local = Local()
    assert (local.lr, local.momentum, local.weight_decay, local.batch, local.epochs) == (
        0.01,
        0.9,
        1e-5,
        64,
        10,
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0}, "local.lr must be > 0, got 0"),
        ({"lr": "fast"}, "local.lr must be a number, got 'fast'"),
        ({"momentum": 1}, "local.momentum must be in [0, 1), got 1.0"),
        ({"weight_decay": -1}, "local.weight_decay must be >= 0"),
        ({"batch": 0}, "local.batch must be >= 1"),
        ({"epochs": 1.5}, "local.epochs must be a whole number"),
        ({"max_steps": 0}, "local.max_steps must be >= 1"),
        ({"clip": 0}, "local.clip must be > 0"),
        ({"decay": "linear"}, "local.decay must be constant, cosine"),
        ({"last_batch": "kep"}, "local.last_batch must be 'drop' or 'keep', got 'kep'"),
        ({"small_clients": "ignore"}, "local.small_clients must be 'error' or 'drop' or 'short'"),
        ({"optimizer": "adam"}, "local.optimizer must be 'sgd', got 'adam'"),
    ],
)
def test_bad_local(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Local(**options)
    assert message in str(caught.value)


def test_a_setting_takes_what_a_notebook_user_writes() -> None:
    made: Any = {"data": "synthetic", "methods": ["fedavg", Moon()], "seeds": 3, "model": "cnn"}
    setting = Setting(**made)
    assert setting.name == "synthetic"
    assert setting.data == {"name": "synthetic"}
    assert setting.model == {"name": "cnn"}
    assert setting.methods == (FedAvg(), Moon())
    assert setting.seeds == (0, 1, 2)
    assert setting.cohort is None


def test_a_setting_is_named_after_its_data() -> None:
    assert Setting(data=dataset()).name == "tiny"
    assert Setting(data={"name": "my/folder/faces.npz"}).name == "faces"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": None}, "data.name is missing"),
        ({"data": {"path": "x"}}, "data.name is missing"),
        ({"data": 3}, "data must be a name, a mapping or a Dataset, got 3"),
        ({"data": {"name": 3}}, "data.name must be text, got 3"),
        ({"partition": 3}, "partition must be a kind or a mapping, got 3"),
        ({"model": 3}, "model must be a name, a mapping, an nn.Module"),
        ({"data": "python:x.y"}, "data was a Python object, which a file cannot hold"),
        ({"loss": "python:x.y"}, "loss was a Python object"),
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
    ],
)
def test_bad_settings(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Setting(**{"data": "synthetic", **options})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "mps"}, "device must be auto, cpu, cuda or cuda:N, got 'mps'"),
        ({"device": "cuda:x"}, "device must be auto, cpu, cuda or cuda:N"),
        ({"engine": "fast"}, "engine must be 'auto' or 'loop' or 'stacked', got 'fast'"),
        ({"precision": "fp8"}, "precision must be 'fp32' or 'tf32' or 'bf16' or 'fp64' or null, got 'fp8'"),
        ({"workers": 0}, "workers must be >= 1"),
        ({"compile": "maybe"}, "compile must be true or false"),
        ({"name": "../up"}, "name must start with a letter"),
        ({"settings": ()}, "settings must hold at least one setting"),
        ({"settings": (Setting(data={"name": "a"}),) * 2}, "settings must have different names, got 'a'"),
    ],
)
def test_bad_studies(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        StudySpec(**{"settings": (Setting(data={"name": "a"}),), **options})
    assert message in str(caught.value)


# --- filling in ----------------------------------------------------------------------------------------

DEFAULTS = {
    "model.name": "cnn",
    "model.head": True,
    "partition.kind": "dirichlet",
    "partition.beta": 0.5,
    "clients": 10,
    "cohort": 5,
    "rounds": 100,
    "local.lr": 0.1,
}


def test_what_is_left_out_comes_from_the_data_set() -> None:
    setting = Setting(data={"name": "x"}, methods=(FedAvg(),)).filled(DEFAULTS)
    assert setting.model == {"name": "cnn", "head": True}
    assert setting.partition == {"kind": "dirichlet", "beta": 0.5}
    assert (setting.clients, setting.cohort, setting.rounds) == (10, 5, 100)
    assert setting.local == Local(lr=0.1)
    assert setting.filled({"cohort": 7}) == setting


def test_what_is_written_wins_over_the_data_set() -> None:
    made: Any = {
        "partition": {"beta": 0.1},
        "model": "lstm",
        "cohort": 2,
        "local": {"lr": 0.01, "batch": "8"},
    }
    setting = Setting(data={"name": "x"}, methods=(FedAvg(),), **made).filled(DEFAULTS)
    assert setting.partition == {"kind": "dirichlet", "beta": 0.1}
    assert setting.model == {"name": "lstm"}  # the default head was the cnn's
    assert setting.cohort == 2
    assert setting.local == Local(lr=0.01, batch=8)


def test_objects_are_never_filled_in() -> None:
    module, local = nn.Linear(2, 2), Local(lr=0.3)
    setting = Setting(data={"name": "x"}, methods=(FedAvg(),), model=module, local=local).filled(DEFAULTS)
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
        Setting(data={"name": "x"}, methods=(FedAvg(),)).filled(defaults)
    assert message in str(caught.value)


# --- YAML ----------------------------------------------------------------------------------------------

STUDY = """\
name: demo
engine: loop
data: {name: synthetic, train_fraction: 0.6}
partition: {kind: dirichlet, beta: 0.5}
local:
  lr: 1e-2
  batch: 32
methods:
  - fedavg
  - fedprox(mu=[0.001, 0.01])
rounds: 20
seeds: [3, 4]
settings:
  - name: base
  - name: skewed
    partition.beta: 0.1
    local: {epochs: 1}
  - {name: pooled, reference: true, partition.kind: pooled, cohort: 1, methods: "fedavg moon", rounds: 5}
"""


def test_a_study_file(tmp_path: Path) -> None:
    spec = build(written(tmp_path, STUDY))
    assert (spec.name, spec.engine, spec.device) == ("demo", "loop", "auto")
    base, skewed, pooled = spec.settings
    assert [setting.name for setting in spec.settings] == ["base", "skewed", "pooled"]
    assert base.data == {"name": "synthetic", "train_fraction": 0.6}
    assert base.local == {"lr": 0.01, "batch": 32}
    assert base.methods == (FedAvg(), FedProx(mu=0.001), FedProx(mu=0.01))
    assert (base.rounds, base.seeds, base.reference) == (20, (3, 4), False)
    assert skewed.partition == {"kind": "dirichlet", "beta": 0.1}
    assert skewed.local == {"lr": 0.01, "batch": 32, "epochs": 1}
    assert pooled.partition == {"kind": "pooled"}
    assert (pooled.cohort, pooled.methods, pooled.rounds, pooled.reference) == (
        1,
        (FedAvg(), Moon()),
        5,
        True,
    )


def test_a_file_without_settings_or_name(tmp_path: Path) -> None:
    spec = build(written(tmp_path, "data: synthetic\nrecord: {torch: '2.6'}\n"))
    assert spec.name == "study"
    assert [setting.name for setting in spec.settings] == ["synthetic"]


def test_null_means_left_out(tmp_path: Path) -> None:
    [setting] = build(
        written(tmp_path, "data: x\nclients: null\nvalidation: ~\nlocal: {lr: null}\n")
    ).settings
    assert setting == Setting(data={"name": "x"}, local={})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "new", "message", "line"),
    [
        ("rounds: 20", "rouns: 20", "rouns is not a known key", 11),
        ("  batch: 32", "  bach: 32", "local.bach is not a known key", 7),
        ("batch: 32", "batch: many", "local.batch must be a whole number, got 'many'", 7),
        ("lr: 1e-2", "lr: -1", "local.lr must be > 0, got -1.0", 6),
        ("rounds: 20", "rounds: 0", "rounds must be >= 1, got 0", 11),
        ("seeds: [3, 4]", "seeds: [3, 3]", "seeds must be how many seeds", 12),
        ("engine: loop", "engine: lop", "engine must be 'auto' or 'loop' or 'stacked', got 'lop'", 2),
        ("mu=[0.001", "mo=[0.001", "'mo' is not a parameter of fedprox", 10),
        ("- fedavg", "- fedprox(mu=0.01)", "methods holds FedProx twice", 8),
        ("    partition.beta: 0.1", "    partitoin.beta: 0.1", "partitoin is not a known key", 16),
        ("    local: {epochs: 1}", "    local: {epochs: 0}", "local.epochs must be >= 1, got 0", 17),
        ("    local: {epochs: 1}", "    engine: loop", "engine holds for the whole study", 17),
        ("cohort: 1,", "cohort: x,", "cohort must be a whole number, got 'x'", 18),
        ("fedavg moon", "fedavg mon", "method is not known, got 'mon'", 18),
        ("name: skewed", "name: base", "settings must have different names, got 'base'", 13),
        ("  - name: base", "  - base", "settings.0 must be a mapping", 14),
        ("rounds: 20", "engine: loop", "engine is written twice", 11),
        ("rounds: 20", "local.lr: 1", "local.lr is written twice", 11),
        ("rounds: 20", "rounds: [20", "is not valid YAML", 12),
        ("rounds: 20", "rounds: !!python/name:os.system", "is not valid YAML", 11),
        ("rounds: 20", "? [a]\n: 1", "must have plain text as its keys", 11),
    ],
)
def test_mistakes_name_their_line(tmp_path: Path, old: str, new: str, message: str, line: int) -> None:
    assert old in STUDY
    with pytest.raises(InputError) as caught:
        build(written(tmp_path, STUDY.replace(old, new, 1)))
    assert message in str(caught.value)
    assert f"(study.yaml line {line})" in str(caught.value)


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just text", "a: &a [*a]", "date: 2020-99-99", "\x00"])
def test_files_that_are_no_study(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match=r"study\.yaml"):
        build(written(tmp_path, text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_yaml(tmp_path / "none.yaml")


# --- overrides from the command line -------------------------------------------------------------------


def test_apply(tmp_path: Path) -> None:
    tree = written(tmp_path, STUDY)
    changes = ["local.lr=1e-3", "partition.beta=0.9", "methods=scaffold, feddyn(alpha=[0.1,1])", "seeds=1"]
    base, skewed, pooled = build(apply(tree, changes)).settings
    assert base.local == {"lr": 0.001, "batch": 32}
    assert base.partition == {"kind": "dirichlet", "beta": 0.9}
    assert base.methods == (Scaffold(), FedDyn(alpha=0.1), FedDyn(alpha=1.0))
    assert base.seeds == (0,)
    assert skewed.partition["beta"] == 0.1  # a setting's own stays
    assert pooled.methods == (FedAvg(), Moon())
    assert build(tree).settings[0].seeds == (3, 4)


def test_another_kind_drops_the_options_of_the_old_one(tmp_path: Path) -> None:
    tree = apply(written(tmp_path, STUDY), ["data.name=cifar10", "partition.kind=shards", "settings="])
    [setting] = build(tree).settings
    assert setting.data == {"name": "cifar10"}
    assert setting.partition == {"kind": "shards"}


def test_a_bare_name_takes_options() -> None:
    numbers = ["partition=dirichlet", "partition.beta=1e-1"]  # as people write them
    [setting] = build(apply(Tree({"data": "synthetic"}), numbers)).settings
    assert setting.partition == {"kind": "dirichlet", "beta": 0.1}
    [setting] = build(apply(Tree({"data": "synthetic"}), ["data.min_train=8"])).settings
    assert setting.data == {"name": "synthetic", "min_train": 8}


def test_a_study_made_in_python_has_the_same_keys() -> None:
    keys = {"data": "synthetic", "local.lr": 0.1, "settings": [{"name": "a", "partition.beta": 0.1}]}
    [setting] = build(Tree(keys)).settings
    assert (setting.name, setting.partition, setting.local) == ("a", {"beta": 0.1}, {"lr": 0.1})
    [setting] = build(Tree({"data": dataset(), "methods": [FedAvg(), "moon"], "local": Local(lr=1)})).settings
    assert (setting.name, setting.methods, setting.local) == ("tiny", (FedAvg(), Moon()), Local(lr=1.0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("local.lr", "--set must be key=value, got 'local.lr'"),
        ("=1", "--set must be key=value"),
        ("local.lr=-1", "local.lr must be > 0, got -1.0 (--set local.lr=-1)"),
        ("local.lrr=1", "local.lrr is not a known key (--set local.lrr=1). Did you mean 'local.lr'?"),
        ("rounds=[1", "rounds is not valid YAML, got '[1' (--set rounds=[1)"),
        ("methods=fedprx", "got 'fedprx' (--set methods=fedprx)"),
        ("methods=[fedavg, fedprx]", "got 'fedprx' (--set methods=[fedavg, fedprx])"),
        ("settings.0.rounds=3", "settings must be a list"),
    ],
)
def test_bad_overrides(tmp_path: Path, change: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        build(apply(written(tmp_path, STUDY), [change]))
    assert message in str(caught.value)


# --- writing -------------------------------------------------------------------------------------------


def read_back(spec: StudySpec, folder: Path) -> StudySpec:
    return build(written(folder, dump(spec)))


def test_round_trip_of_a_file(tmp_path: Path) -> None:
    spec = build(written(tmp_path, STUDY))
    assert read_back(spec, tmp_path) == spec
    full = dataclasses.replace(spec, settings=tuple(s.filled(DEFAULTS) for s in spec.settings[:2]))
    assert read_back(full, tmp_path) == full
    assert is_portable(full)


names = st.from_regex(r"[A-Za-zβ][\w .=()-]{0,8}", fullmatch=True)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\x85\u2028\u2029"))  # PyYAML folds these
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
        Local, lr=st.floats(1e-9, 10), decay=st.sampled_from(["constant", "step(every=5, factor=0.5)"])
    ),
    st.fixed_dictionaries({}, optional={"lr": st.floats(1e-9, 10), "batch": st.integers(1, 512)}),
)
some_methods = st.one_of(
    st.none(),
    st.builds(
        lambda mu, period: (FedAvg(), FedAvg(period=period), FedProx(mu=mu), Scaffold(period=period)),
        st.floats(0, 1e9),
        st.integers(2, 99) | st.just("1x10,5") | st.just("never"),
    ),
)


def made_of(name: str) -> st.SearchStrategy[Any]:
    return st.builds(lambda tag, rest: {name: tag, **rest}, names, options)


all_settings = st.builds(
    Setting,
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
    init=st.none() | texts,
    reference=st.booleans(),
)
all_studies = st.builds(
    StudySpec,
    name=names,
    settings=st.lists(all_settings, min_size=1, max_size=3, unique_by=lambda setting: setting.name),
    device=st.sampled_from(["auto", "cpu", "cuda", "cuda:1"]),
    compile=st.booleans(),
    workers=st.none() | st.integers(1, 9),
    precision=st.sampled_from(["fp32", "fp64"]),
)


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(all_studies)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, spec: StudySpec) -> None:
    assert is_portable(spec)
    assert read_back(spec, tmp_path_factory.getbasetemp()) == spec


def my_loss(output: Any, target: Any) -> Any:
    return output - target


def test_objects_leave_a_trace(tmp_path: Path) -> None:
    setting = Setting(data=dataset(), model=nn.Linear(2, 2), methods=(FedAvg(),), loss=my_loss)
    spec = StudySpec(settings=(setting,))
    assert not is_portable(spec)
    found = yaml.safe_load(dump(spec))
    assert found["data"] == "python:fedskip.data.base.Dataset"
    assert found["model"] == "python:torch.nn.modules.linear.Linear"
    assert found["loss"] == f"python:{__name__}.my_loss"
    with pytest.raises(InputError, match="data was a Python object, which a file cannot hold"):
        read_back(spec, tmp_path)


def test_a_method_that_nobody_can_import_is_not_portable() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Inner(FedAvg):
        title = "Inner"

    assert not is_portable(StudySpec(settings=(Setting(data={"name": "x"}, methods=(Inner(),)),)))


# --- bundled studies -----------------------------------------------------------------------------------


def test_every_bundled_study_builds_and_round_trips(tmp_path: Path) -> None:
    assert "quickstart" in studies.names()
    for name in studies.names():
        spec = build(load_yaml(studies.path(name)))
        assert spec.name == name
        assert read_back(spec, tmp_path) == spec


def test_quickstart_is_the_promised_study() -> None:
    main, centralised = build(load_yaml(studies.path("quickstart"))).settings
    assert [method.label for method in main.methods] == [
        "FedAvg",
        "FedProx(mu=0.001)",
        "SCAFFOLD",
        "MOON",
        "FedNova",
        "FedDyn",
        "FedSkip-3",
        "FedSkip-5",
    ]
    assert (main.rounds, main.seeds, main.reference) == (200, (0, 1, 2), False)
    assert (centralised.partition, centralised.cohort, centralised.reference) == ({"kind": "pooled"}, 1, True)


def test_find_takes_a_name_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(STUDY)
    (tmp_path / "mine").write_text(STUDY)
    (tmp_path / "folder").mkdir()
    assert studies.find("quickstart") == studies.path("quickstart")
    assert studies.find("mine.yaml") == Path("mine.yaml")
    assert studies.find("mine") == Path("mine")
    for wrong, message in [
        ("quikstart", "study is not known, got 'quikstart'. Did you mean 'quickstart'?"),
        ("yours.yaml", "study is not a file, got 'yours.yaml'"),
        ("folder/yours", "study is not a file, got 'folder/yours'"),
    ]:
        with pytest.raises(InputError) as caught:
            studies.find(wrong)
        assert message in str(caught.value)


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
    with pytest.raises(InputError, match="name must have at most 100 characters: it names files"):
        build(Tree({"data": "synthetic", "methods": "fedavg", "settings": [{"name": "a" * 101}]}))
