"""Studies that come with the package."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedskip.config import Record, build, bundled, load_yaml
from fedskip.errors import InputError
from studies import STUDY, read_back


def test_every_bundled_study_builds_and_round_trips(tmp_path: Path) -> None:
    assert "quickstart" in bundled.names()
    for name in bundled.names():
        spec = build(load_yaml(bundled.find(name)))
        assert spec.name == name
        assert read_back(spec, tmp_path) == spec


def test_quickstart_is_the_promised_study() -> None:
    main, centralised = (
        draft.keys for draft in build(load_yaml(bundled.find("quickstart"))).settings
    )
    assert [method.label for method in main["methods"]] == [
        "FedAvg",
        "FedProx(mu=0.001)",
        "SCAFFOLD",
        "MOON",
        "FedNova",
        "FedDyn",
        "FedSkip-3",
        "FedSkip-5",
    ]
    assert (main["rounds"], main["seeds"], "reference" in main) == (200, (0, 1, 2), False)
    assert (centralised["partition"], centralised["cohort"]) == ({"kind": "pooled"}, 1)
    assert centralised["reference"]


def test_what_is_not_the_papers_says_so() -> None:
    """CIFAR-100 with a model that is affordable, and with the paper's for a few rounds."""
    paper = {s.name: s.keys for s in build(bundled.load("table2")).settings}
    for setting in build(bundled.load("cifar100cnn")).settings:
        whole = paper[setting.name.removesuffix("-cnn")]
        differs = {
            key
            for key in whole.keys() | setting.keys.keys()
            if whole.get(key) != setting.keys.get(key)
        }
        assert differs == {"name", "model", "note"}
        assert setting.keys["note"] == "not the paper's model"
    spec = build(bundled.load("resnet50"))
    [setting] = spec.settings
    whole = paper[setting.name]
    differs = {
        key for key in whole.keys() | setting.keys.keys() if whole.get(key) != setting.keys.get(key)
    }
    assert differs == {"methods", "rounds", "seeds"}
    assert setting.record == Record(full_rounds=200, full_seeds=3)
    assert (spec.precision, setting.keys["rounds"]) == ("bf16", 20)


def test_one_setting_of_a_study() -> None:
    whole, narrow = build(bundled.load("table2")), build(bundled.load("table2/cifar10-beta0.5"))
    assert narrow.name == "table2-cifar10-beta0.5"
    assert narrow.settings == tuple(s for s in whole.settings if s.name == "cifar10-beta0.5")
    for wrong, message in [
        (
            "table2/cifar10-beta5",
            "setting is not known, got 'cifar10-beta5'. Did you mean 'cifar10-beta0.5'?",
        ),
        ("tabel2/cifar10", "study is not a file, got 'tabel2/cifar10'"),
    ]:
        with pytest.raises(InputError) as caught:
            build(bundled.load(wrong))
        assert message in str(caught.value)


def test_an_error_in_one_setting_has_its_line(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "data: synthetic\nsettings:\n  - name: a\n  - name: b\n    cohort: 0\n"
    )
    with pytest.raises(InputError, match=r"cohort must be >= 1, got 0 \(s\.yaml line 5\)"):
        build(replace(load_yaml(tmp_path / "s.yaml"), only=("b",)))


def test_find_takes_a_name_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(STUDY)
    (tmp_path / "mine").write_text(STUDY)
    (tmp_path / "folder").mkdir()
    assert bundled.find("quickstart").name == "quickstart.yaml"
    assert bundled.find("mine.yaml") == Path("mine.yaml")
    assert bundled.find("mine") == Path("mine")
    for wrong, message in [
        ("quikstart", "study is not known, got 'quikstart'. Did you mean 'quickstart'?"),
        ("yours.yaml", "study is not a file, got 'yours.yaml'"),
        ("folder/yours", "study is not a file, got 'folder/yours'"),
    ]:
        with pytest.raises(InputError) as caught:
            bundled.find(wrong)
        assert message in str(caught.value)


def test_a_bundled_name_means_the_study_whatever_else_is_called_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of results may be called as its study, and the paper's studies are known beside it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table2" / "cifar10-iid").mkdir(parents=True)
    (tmp_path / "table2" / "mine.yaml").write_text(STUDY)
    assert bundled.find("table2").parent == Path(bundled.__file__).parent
    assert [one.name for one in build(bundled.load("table2/cifar10-iid")).settings] == [
        "cifar10-iid"
    ]
    assert (
        bundled.load("table2/mine.yaml").values
        == load_yaml(tmp_path / "table2" / "mine.yaml").values
    )
    assert "table2/cifar10-iid" in bundled.settings()
