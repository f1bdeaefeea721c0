"""What users write: files and the command line, dotted keys, paths, and what a user is told who mistypes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedskip import Study
from fedskip.config import Draft, Tree, assigned, build, load_yaml
from fedskip.config.tree import expand, moved, named_code, overlay, read_in, written_in
from fedskip.engine import Local
from fedskip.errors import InputError
from fedskip.methods import FedAvg, FedDyn, Moon, Scaffold
from studies import STUDY, dataset, numbers, written


def test_null_means_left_out(tmp_path: Path) -> None:
    text = "data: {name: x, size: null}\nclients: null\nvalidation: ~\nlocal: {lr: null}\n"
    [draft] = build(written(tmp_path, text + "partition: {kind: iid, beta: ~}\n")).settings
    assert draft == Draft({"data": "x", "local": {}, "partition": "iid"})


@pytest.mark.parametrize(
    ("old", "new", "message", "line"),
    [
        ("rounds: 20", "rouns: 20", "rouns is not a known key", 11),
        ("  batch: 32", "  bach: 32", "local.bach is not a known key", 7),
        ("batch: 32", "batch: many", "local.batch must be a whole number, got 'many'", 7),
        ("lr: 1e-2", "lr: -1", "local.lr must be > 0, got -1.0", 6),
        ("rounds: 20", "rounds: 0", "rounds must be >= 1, got 0", 11),
        ("seeds: [3, 4]", "seeds: [3, 3]", "seeds must be how many seeds", 12),
        (
            "engine: loop",
            "engine: lop",
            "engine must be 'auto' or 'loop' or 'stacked', got 'lop'",
            2,
        ),
        ("mu=[0.001", "mo=[0.001", "'mo' is not a parameter of fedprox", 10),
        ("- fedavg", "- fedprox(mu=0.01)", "methods holds FedProx twice", 8),
        ("    partition.beta: 0.1", "    partitoin.beta: 0.1", "partitoin is not a known key", 16),
        (
            "    local: {epochs: 1}",
            "    local: {epochs: 0}",
            "local.epochs must be >= 1, got 0",
            17,
        ),
        ("    local: {epochs: 1}", "    engine: loop", "engine holds for the whole study", 17),
        ("cohort: 1,", "cohort: x,", "cohort must be a whole number, got 'x'", 18),
        ("fedavg moon", "fedavg mon", "method is not known, got 'mon'", 18),
        ("name: skewed", "name: base", "settings must have different names, got 'base'", 13),
        ("  - name: base", "  - base", "settings.0 must be a mapping", 14),
        ("rounds: 20", "engine: loop", "engine is written twice", 11),
        ("rounds: 20", "local.lr: 1", "local.lr is written twice", 11),
        ("rounds: 20", "rounds: [20", "is not valid YAML", 12),
        (
            "rounds: 20",
            "rounds: !!python/name:os.system",
            "has the tag !!python/name:os.system",
            11,
        ),
        ("rounds: 20", "? [a]\n: 1", "must have plain text as its keys", 11),
    ],
)
def test_mistakes_name_their_line(
    tmp_path: Path, old: str, new: str, message: str, line: int
) -> None:
    assert old in STUDY
    with pytest.raises(InputError) as caught:
        build(written(tmp_path, STUDY.replace(old, new, 1)))
    assert message in str(caught.value)
    assert f"(study.yaml line {line})" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "- a\n- b\n", "just text", "a: &a [*a]", "date: 2020-99-99", "\x00"]
)
def test_files_that_are_no_study(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match=r"study\.yaml"):
        build(written(tmp_path, text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must be an existing file"):
        load_yaml(tmp_path / "none.yaml")


def test_assignments_beat_the_file(tmp_path: Path) -> None:
    tree = written(tmp_path, STUDY)
    changes = [
        "local.lr=1e-3",
        "partition.beta=0.9",
        "methods=scaffold, feddyn(alpha=[0.1,1])",
        "seeds=1",
    ]
    base, skewed, pooled = (draft.keys for draft in build(assigned(changes).over(tree)).settings)
    assert base["local"] == {"lr": 0.001, "batch": 32}
    assert base["partition"] == {"kind": "dirichlet", "beta": 0.9}
    assert base["methods"] == (Scaffold(), FedDyn(alpha=0.1), FedDyn(alpha=1.0))
    assert base["seeds"] == (0,)
    assert skewed["partition"]["beta"] == 0.1  # a setting's own stays
    assert pooled["methods"] == (FedAvg(), Moon())
    assert build(tree).settings[0].keys["seeds"] == (3, 4)


def test_another_kind_drops_the_options_of_the_old_one(tmp_path: Path) -> None:
    changes = assigned(["data.name=cifar10", "partition.kind=shards", "settings="])
    [draft] = build(changes.over(written(tmp_path, STUDY))).settings
    assert draft.keys["data"] == {"name": "cifar10"}
    assert draft.keys["partition"] == {"kind": "shards"}


def test_a_bare_name_takes_options() -> None:
    numbers = [
        "partition=dirichlet",
        "partition.beta=1e-1",
        "data.min_train=8",
    ]  # as people write them
    [draft] = build(assigned(numbers).over(Tree({"data": "synthetic"}))).settings
    assert draft.keys["partition"] == {"kind": "dirichlet", "beta": 0.1}
    assert draft.keys["data"] == {"name": "synthetic", "min_train": 8}


@pytest.mark.parametrize(
    "key", ["data.train_fraction", "partition.beta", "model.head", "local.lr", "rounds"]
)
def test_an_empty_assignment_leaves_a_key_out(key: str) -> None:
    """Whatever the file says, and whatever it is an option of."""
    full = {
        "data": {"name": "synthetic", "train_fraction": 0.5}, "partition": {"kind": "dirichlet", "beta": 0.1},
        "model": {"name": "cnn", "head": False}, "local": {"lr": 0.5}, "rounds": 3,
    }  # fmt: skip
    [draft] = build(assigned([f"{key}="]).over(Tree(full))).settings
    top, _, option = key.partition(".")
    assert (option not in draft.keys[top]) if option else (top not in draft.keys)
    others = {name: value for name, value in full.items() if name != top}
    assert others.items() <= draft.keys.items()


def test_a_study_made_in_python_has_the_same_keys() -> None:
    keys = {
        "data": "synthetic",
        "local.lr": 0.1,
        "settings": [{"name": "a", "partition.beta": 0.1}],
    }
    [draft] = build(Tree(keys)).settings
    assert draft == Draft(
        {"name": "a", "data": "synthetic", "partition": {"beta": 0.1}, "local": {"lr": 0.1}}
    )
    tiny = dataset()
    [draft] = build(
        Tree({"data": tiny, "methods": [FedAvg(), "moon"], "local": Local(lr=1)})
    ).settings
    assert draft == Draft(
        {"name": "tiny", "data": tiny, "methods": "fedavg moon", "local": Local(lr=1.0)}
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("local.lr", "--set must be key=value, got 'local.lr'"),
        ("=1", "--set must be key=value"),
        ("local.lr=-1", "local.lr must be > 0, got -1.0 (--set local.lr=-1)"),
        (
            "local.lrr=1",
            "local.lrr is not a known key (--set local.lrr=1). Did you mean 'local.lr'?",
        ),
        ("rounds=[1", "rounds is not valid YAML: while parsing a flow sequence"),
        ("methods=fedprx", "got 'fedprx' (--set methods=fedprx)"),
        ("methods=[fedavg, fedprx]", "got 'fedprx' (--set methods=[fedavg, fedprx])"),
        ("settings.0.rounds=3", "settings must be a list"),
    ],
)
def test_bad_overrides(tmp_path: Path, change: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        build(assigned([change]).over(written(tmp_path, STUDY)))
    assert message in caught.value.message(flags=True)


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


OWN_FILE = """\
data: {file}
model: linear
methods: fedavg
partition: natural
cohort: 2
rounds: {rounds}
compile: false
processes: 1
checkpoint_every: 1
local: {{batch: 4, epochs: 1}}
"""


def test_which_values_are_paths() -> None:
    study = {
        "data": {"name": "a.npz", "test": "b.csv", "label": "c.csv"}, "init": "w.pt", "note": "n.csv",
        "settings": [{"data": "d.parquet"}, {"partition": {"file": "p.npz"}}, {"data": "synthetic"}],
    }  # fmt: skip
    assert moved(study, lambda path: f"<{path}>") == {
        "data": {"name": "<a.npz>", "test": "<b.csv>", "label": "c.csv"}, "init": "<w.pt>", "note": "n.csv",
        "settings": [{"data": "<d.parquet>"}, {"partition": {"file": "<p.npz>"}}, {"data": "synthetic"}],
    }  # fmt: skip
    kept = {"data": {"name": "/abs/a.npz", "test": "column"}, "partition": "iid", "init": "~/w.pt"}
    assert moved(kept, lambda path: f"<{path}>") == kept
    grid = {"data": {"name": ["a.csv", "b.csv"]}}
    assert moved(grid, str.upper) == {"data": {"name": ["A.CSV", "B.CSV"]}}


def test_there_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("deep/er").mkdir(parents=True)
    Path("a.npz").touch()
    assert written_in(Path("deep/er"), "a.npz") == "../../a.npz"
    assert read_in(Path("deep/er"), "../../a.npz") == "a.npz"
    assert read_in(Path("deep"), "a.npz") == "a.npz"  # which only this place has
    Path("deep/a.npz").touch()
    assert read_in(Path("deep"), "a.npz") == "deep/a.npz"
    os.symlink("deep/er", "link")
    assert written_in(Path("link"), "a.npz") == "../../a.npz"
    assert Path(read_in(Path("link"), "../../a.npz")).samefile("a.npz")


def laid(folder: Path, rounds: int = 3) -> None:
    folder.mkdir()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    np.savez(folder / "own.npz", x=x, y=(x.sum(1) > 0).astype(int), client=np.arange(40) % 4)
    (folder / "study.yaml").write_text(OWN_FILE.format(file="own.npz", rounds=rounds))


def test_resume_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    laid(tmp_path / "home")
    monkeypatch.chdir(tmp_path)
    Study("home/out", spec=build(load_yaml("home/study.yaml"))).run()
    assert "name: ../own.npz" in Path("home/out/study.yaml").read_text()
    assert Study.load("home/out").folder.study()["data"] == {"name": "home/own.npz"}
    shutil.copytree("home/out", "whole")
    Study.load("home/out").resume(rounds=4)
    before = numbers(tmp_path / "home" / "out")
    shutil.rmtree("home/out")
    shutil.move("whole", "home/out")

    Path("elsewhere").mkdir()
    shutil.move("home", "elsewhere/moved")  # data and results together
    monkeypatch.chdir("/")
    out = tmp_path / "elsewhere" / "moved" / "out"
    Study.load(out).resume(rounds=4)
    assert numbers(out) == before
    assert "name: ../own.npz" in (out / "study.yaml").read_text()
    monkeypatch.chdir(out)
    Study.load(".").folder.refuse_other(Study.load(out).folder.study())


def test_partition_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    laid(tmp_path / "home")
    monkeypatch.chdir(tmp_path / "home")
    keys = {
        "model": "linear",
        "methods": "fedavg",
        "cohort": 2,
        "rounds": 2,
        "compile": False,
        "processes": 1,
    }
    keys |= {"local": {"batch": 4, "epochs": 1}, "data": "own.npz", "checkpoint_every": 1}
    Study("one", partition="natural", **keys).run()
    Study("two", partition={"file": "one/partition-own-0.npz"}, **keys).run()
    assert "file: ../one/partition-own-0.npz" in Path("two/study.yaml").read_text()
    monkeypatch.chdir(tmp_path)
    Study.load("home/two").resume(rounds=3)
    with pytest.raises(InputError, match="out holds another study"):
        Study(
            "home/two",
            partition={"file": "home/one/partition-own-0.npz"},
            **keys | {"data": "home/own.npz"},
        ).run()
    shutil.move("home/own.npz", "home/gone.npz")
    with pytest.raises(InputError, match=r"data.name must be an existing file, got 'home/own.npz'"):
        Study.load("home/two").resume(rounds=4)


@pytest.mark.parametrize(
    ("text", "key", "name"),
    [
        ("model: evil:M", "model", "evil:M"),
        ("model.name: evil:M", "model.name", "evil:M"),
        ("model: {name: [linear, 'evil:M']}", "model.name.1", "evil:M"),
        ("model: [linear, {name: 'evil:M'}]", "model.1.name", "evil:M"),
        ("loss: evil:f", "loss", "evil:f"),
        ("metric: [accuracy, evil:f]", "metric.1", "evil:f"),
        ("methods: 'fedavg, evil:M(a=[1, 2]), evil:N'", "methods", "evil:M"),
        ("methods: [fedavg, 'fedprox evil:M']", "methods.1", "evil:M"),
        ("target: evil:M()", "target", "evil:M"),
        ("settings: [{}, {model: evil:M}]", "settings.1.model", "evil:M"),
        ("settings: [{model.name: evil:M}]", "settings.0.model.name", "evil:M"),
        (
            "settings: [{record: {added: [{methods: [evil:M]}]}}]",
            "settings.0.record.added.0.methods.0",
            "evil:M",
        ),
    ],
)
def test_a_file_that_names_code_needs_trust(text: str, key: str, name: str, tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(f"data: synthetic\n{text}\n")
    says = f"^{key} names code: the module 'evil' would be .*{name}.*s.yaml line 2.*trust=True"
    with pytest.raises(InputError, match=says.replace("[", r"\[")) as refused:
        load_yaml(file)
    assert "add --trust" in refused.value.message(flags=True)
    assert name in [code for _, code in named_code(load_yaml(file, trust=True).values)]


def test_colons_elsewhere_name_no_code(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(
        "data: 'a:b.csv'\nnote: 'see: this'\nmodel: {name: 'python:mine.Net', word: 'a:b'}\n"
        "methods: [fedskip(period='1x2,3')]\nrecord: {settings: {toy: {methods: ['mine:M']}}}\n"
    )
    assert not [*named_code(load_yaml(file).values)]
