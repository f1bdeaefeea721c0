"""The paper's columns: its numbers as printed, and which of our runs are of which column."""

from __future__ import annotations

import hashlib
import lzma
import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml

import fedskip
from fedskip.errors import InputError
from reproduction import runs
from reproduction.columns import HERE, PERIODS, SKIPPING, Studies, columns, compared, published
from reproduction.runs import RUNS, StudyFolder

BETA = "table2/cifar10-beta0.5"


def test_published_numbers_are_as_they_were_checked() -> None:
    """All were compared with the paper twice; whoever changes one has to change this, too."""
    digests = {
        name: hashlib.sha256((HERE / name).read_bytes()).hexdigest()[:16]
        for name in ("published.csv", "published_table4.csv")
    }
    assert digests == {
        "published.csv": "17d4613683604934",
        "published_table4.csv": "d3351abe99000ab0",
    }
    assert len(compared()) == 13
    assert published()[BETA]["FedSkip-5"] == 71.77
    assert published()["table1/cifar10-cross"] == {"FedAvg-unmerged": 57.56}
    assert pd.isna(published()["table3/femnist"]["SCAFFOLD"])


def test_what_the_papers_own_tables_say() -> None:
    """The statements of docs/claims.md that need no run."""
    margins, behind = {}, 0
    for name, column in compared().items():
        scores = pd.Series(column.published)
        others = scores.drop(list(SKIPPING)).max()
        margins[name] = round(scores[list(SKIPPING)].max() - others, 2)
        behind += scores["FedSkip-5"] < others
    assert behind == 8
    wanted = {"table3/synthetic": 0.09, "table3/cifar10-p50": 0.12, "table3/shakespeare": 0.16}
    assert wanted.items() <= margins.items()
    assert margins["table2/cifar10-iid"] == 0.21
    best = {
        name: max(SKIPPING, key=column.published.__getitem__) for name, column in compared().items()
    }
    assert (best["table3/cifar10-p50"], best["table3/cifar10-p100"]) == ("FedSkip-10", "FedSkip-7")
    cifar100 = [
        published()[f"table2/cifar100-{beta}"]["FedSkip-7"] for beta in ("beta1", "beta0.5")
    ]
    assert cifar100 == [71.46, 71.74]


def test_methods_have_the_papers_names() -> None:
    names = ["FedAvg", "FedProx", "SCAFFOLD", "MOON", "FedNova", "FedDyn"]
    for column in compared().values():
        assert [*column.methods] == names + [f"FedSkip-{period}" for period in PERIODS]
    assert "FedDyn(alpha=0.1)" in columns()["tune/feddyn-femnist"].methods, (
        "told apart where two are the same"
    )


def test_titles() -> None:
    assert columns()[BETA].title == "CIFAR-10, 10 clients, β = 0.5"
    assert columns()["table2/cifar100-iid"].title == "CIFAR-100, 10 clients, IID"
    assert columns()["table3/femnist"].title == "FEMNIST"


def test_every_folder_has_a_row_and_says_the_same(ours: Studies) -> None:
    listed = runs.list_runs()
    assert [study.name for study in ours] == listed["folder"].tolist()
    assert {path.parent.name for path in RUNS.glob("*/study.yaml")} == set(listed["folder"])
    for study, seeds in zip(ours, listed["seeds"], strict=True):
        assert sorted(study.summary["seed"].unique()) == [int(seed) for seed in seeds.split(", ")]
        assert set(study.summary["setting"]) == set(study.settings), study.name


def test_histories_fit_their_summaries(ours: Studies) -> None:
    for study in ours:
        if len(study.history):
            last = study.history.groupby("run")["test_accuracy"].last()
            wanted = study.summary.set_index("run")["last"].dropna()
            assert last[wanted.index].tolist() == wanted.tolist(), study.name


def test_runs_are_found_by_what_was_set(ours: Studies) -> None:
    found = columns()[BETA].runs(ours)
    assert found.groupby("method").size().unique().tolist() == [10]
    assert {study.name for study in found["study"]} == {
        "cifar10-p10-beta0.5-seed0", "cifar10-p10-beta0.5-seeds1-2", "cifar10-p10-beta0.5-seeds3-4",
        "cifar10-p10-beta0.5-seeds5-7", "cifar10-p10-beta0.5-seeds8-9",
    }  # fmt: skip
    shared = columns()["compose/cifar10-beta0.5"].runs(ours)
    assert set(found["run"]) - set(shared["run"]) == set(
        found["run"][found["method"] == "FedSkip-7"]
    )


def copied(folder: Path, **keys: object) -> StudyFolder:
    """A folder of ours with other keys."""
    shutil.copytree(RUNS / "fig5-p10-beta0.5", folder)
    text = yaml.safe_load((folder / "study.yaml").read_text())
    (folder / "study.yaml").write_text(yaml.safe_dump(text | keys))
    return StudyFolder(folder)


@pytest.mark.parametrize(
    "keys",
    [
        {"local": {"lr": 0.1, "batch": 64, "epochs": 10}},
        {"cohort": 5},
        {"privacy": {"clip": 1.0, "sigma": 0.1}},
        {"partition": {"kind": "dirichlet_plain", "beta": 0.5}},
        {"data": "a Python object"},
    ],
    ids=str,
)
def test_other_settings_are_not_of_the_column(tmp_path: Path, keys: dict[str, object]) -> None:
    column = columns()["fig5/p10-beta0.5"]
    assert len(column.runs((copied(tmp_path / "same"),))) == 6
    assert column.runs((copied(tmp_path / "other", **keys),)).empty


def test_a_run_that_stopped_early_does_not_count_unless_it_diverged(tmp_path: Path) -> None:
    study = copied(tmp_path / "short")
    study.summary.loc[0, "rounds"] = 100
    study.summary.loc[1, ["rounds", "diverged"]] = [100, True]
    found = columns()["fig5/p10-beta0.5"].runs((study,))
    assert len(found) == 5
    assert found["diverged"].sum() == 1


def test_of_a_run_made_twice_one_counts(ours: Studies) -> None:
    """The one that was trained beside the others: FedAvg of the warm-ups, not of Table III."""
    found = columns()["schedule/femnist"].runs(ours)
    assert not found.duplicated(["method", "seed"]).any()
    assert {study.name for study in found["study"]} == {"schedule-femnist"}


def test_at_chance(ours: Studies) -> None:
    found = columns()["table3/cifar10-p50"].runs(ours).query("method == 'FedSkip-10'")
    assert found.set_index("seed")["chance"].tolist() == [False, True, False]


def test_add(tmp_path: Path) -> None:
    """Adding is copying: the tables as they are, the history packed, and a row."""
    out = tmp_path / "out"
    shutil.copytree(RUNS / "fig5-p10-beta0.5", out)
    text = lzma.decompress((out / "history.csv.xz").read_bytes())
    (out / "history.csv").write_bytes(text)
    kept = runs.add(out, "mine", "fedskip run fig5", to=tmp_path / "runs")
    assert sorted(file.name for file in kept.iterdir()) == [
        "history.csv.xz",
        "study.yaml",
        "summary.csv",
    ]
    assert lzma.decompress((kept / "history.csv.xz").read_bytes()) == text
    [row] = pd.read_csv(tmp_path / "runs" / "runs.csv", dtype=str).to_dict("records")
    assert (row["folder"], row["command"], row["seeds"]) == ("mine", "fedskip run fig5", "0, 1, 2")
    assert row["device"].startswith("NVIDIA H200")
    with pytest.raises(SystemExit, match="mine exists already"):
        runs.add(out, "mine", "", to=tmp_path / "runs")
    (out / "summary.csv").unlink()
    with pytest.raises(SystemExit, match="not finished"):
        runs.add(out, "other", "", to=tmp_path / "runs")


def test_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command of the row is run; a number that comes out otherwise is counted."""
    ran = []

    def run(arguments: list[str], check: bool) -> None:
        ran.append(arguments[2:-2])
        shutil.copytree(RUNS / "fig5-p10-beta0.5", arguments[-1])
        table = Path(arguments[-1]) / "summary.csv"
        table.write_text(
            table.read_text().replace(",16,", ",17,", 1).replace(",15,0,", ",15,0,", 1)
        )
        lines = table.read_text().splitlines()
        lines[1] = lines[1].replace("0.6", "0.7", 1)
        table.write_text("\n".join(lines) + "\n")

    monkeypatch.setattr(runs.subprocess, "run", run)
    found = runs.run_again("fig5-p10-beta0.5")
    assert ran == [
        [
            "fedskip",
            "run",
            "fig5/p10-beta0.5",
            "--methods",
            "fedskip(period=[15,20])",
            "--device",
            "cuda",
        ]
    ]
    assert found.loc["summary", 0] == "6 rows, 1 differ"
    assert found.loc["history", 0] == "69 rows, 0 differ"
    with pytest.raises(SystemExit, match="nothing is not one of our runs"):
        runs.run_again("nothing")


def test_fedskip_reads_packed_histories(tmp_path: Path) -> None:
    """As if they had not been packed; a packed file that is damaged is named."""
    folder = tmp_path / "out"
    shutil.copytree(RUNS / "fig5-p10-beta0.5", folder)
    packed = fedskip.Results.read(folder)
    text = lzma.decompress((folder / "history.csv.xz").read_bytes())
    (folder / "history.csv").write_bytes(text)
    assert len(packed.history) == len(fedskip.Results.read(folder).history) == 69
    (folder / "history.csv").unlink()
    (folder / "history.csv.xz").write_bytes(b"no archive")
    with pytest.raises(InputError, match=r"history\.csv\.xz cannot be unpacked"):
        fedskip.Results.read(folder)
