"""What a folder holds of a study."""

from __future__ import annotations

import csv
import lzma
import re
import shutil
from pathlib import Path

import pytest

from fedskip import FedAvg, FedProx, InputError, Study
from fedskip.records.history import ALWAYS, ALWAYS_SUMMARY
from fedskip.report.page import write_report
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
        assert found.summary[name].equals(known[name]), name
    *_, newest = sorted((tmp_path / "out" / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:100])
    assert Results.read(tmp_path / "out").summary["diverged"].tolist() == [False, False]
    newest.unlink()
    assert not Results.read(tmp_path / "out").summary["diverged"][0]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return (
        study(tmp_path_factory.mktemp("s") / "out", methods="fedavg", seeds=1, rounds=2).run().out
    )


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    for name in ("study.yaml", "history.csv", "summary.csv"):
        shutil.copy(finished / name, tmp_path)
    assert Results.read(tmp_path).finished
    return tmp_path


def test_a_compressed_history_is_read_alike(copied: Path) -> None:
    whole, file = Results.read(copied).history, copied / "history.csv"
    (copied / "history.csv.xz").write_bytes(lzma.compress(file.read_bytes()))
    file.unlink()
    assert Results.read(copied).history.equals(whole)
    (copied / "history.csv.xz").write_bytes(b"no archive")
    with pytest.raises(InputError, match=r"history\.csv\.xz cannot be unpacked"):
        Results.read(copied)


@pytest.mark.parametrize(
    ("name", "column"),
    [("history.csv", column) for column in ALWAYS]
    + [("summary.csv", column) for column in ALWAYS_SUMMARY],
)
def test_a_column_that_was_deleted_is_named(copied: Path, name: str, column: str) -> None:
    """Not only where it is first missed, in a page or a table of the paper."""
    file = copied / name
    rows = list(csv.DictReader(file.read_text().splitlines()))
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(
            out, [one for one in rows[0] if one != column], extrasaction="ignore"
        )
        writer.writeheader()
        writer.writerows(rows)
    with pytest.raises(InputError, match=rf"{name} lacks the column {column}\."):
        Results.read(copied)


@pytest.mark.parametrize(
    ("key", "line", "rule"),
    [
        ("rounds", "rounds: twenty", "rounds must be a whole number, got 'twenty'"),
        ("rounds", "", "rounds must be a whole number, got None"),
        (
            "- .name",
            "- {name: toy, record: {full_rounds: x}}",
            "record.full_rounds must be a whole number, got 'x'",
        ),
        ("seeds", "seeds: many", "seeds must be a list of whole numbers, got 'many'"),
        ("seeds", "seeds: [one]", r"seeds must be a list of whole numbers, got \['one'\]"),
        ("methods", "methods: 3", "methods must be a list of methods, got 3"),
    ],
)
def test_a_study_file_that_was_edited_is_refused_with_the_key(
    copied: Path, key: str, line: str, rule: str
) -> None:
    file = copied / "study.yaml"
    text = re.sub(rf"^{key}:.*$", line, file.read_text(), flags=re.MULTILINE)
    assert text != file.read_text()
    file.write_text(text)
    with pytest.raises(InputError, match=rf"{rule} \(.*study\.yaml\)\. Bring back"):
        Results.read(copied)


def test_reading_a_folder_loads_neither_its_data_nor_its_code(copied: Path) -> None:
    """Not even a method, a model or a data set that study.yaml names."""
    file = copied / "study.yaml"
    text = re.sub(r"^methods:.*$", "methods: ['not_here:Mine']", file.read_text(), flags=re.M)
    file.write_text(re.sub(r"^data:.*$", "data: {name: gone.npz}", text, flags=re.M))
    results = Results.read(copied)
    write_report(results, copied)
    assert "not_here:Mine" in (copied / "report.html").read_text()


def test_the_folder_of_a_federation_says_where_its_results_are(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text("methods: [fedavg]\n")
    (tmp_path / "federation.yaml").write_text("clients: []\n")
    for read in (Results.read, Study.load):
        with pytest.raises(
            InputError, match=r"is the folder of a federation.* Its results are in .*run"
        ):
            read(tmp_path)
