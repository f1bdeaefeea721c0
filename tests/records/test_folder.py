"""A folder holds one study."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedskip.records.folder
from fedskip import InputError
from fedskip.records.folder import Folder
from studies import as_table, study


def test_folder_rules(tmp_path: Path) -> None:
    made = study(tmp_path / "out", rounds=2)
    made.run()
    before = {p: p.read_bytes() for p in made.out.rglob("*") if p.is_file() and p.name != ".lock"}
    with pytest.raises(InputError, match="holds this study, finished"):
        study(tmp_path / "out", rounds=2).run()
    with pytest.raises(InputError, match="holds another study"):
        study(tmp_path / "out", rounds=3).run()
    (made.out / "summary.csv").rename(tmp_path / "gone")
    with pytest.raises(InputError, match=r"unfinished.*study\.resume"):
        study(tmp_path / "out", rounds=2).run()
    (tmp_path / "gone").rename(made.out / "summary.csv")
    assert before == {
        p: p.read_bytes() for p in made.out.rglob("*") if p.is_file() and p.name != ".lock"
    }


def test_lock(tmp_path: Path) -> None:
    from fedskip.files import locked

    with locked(tmp_path / "out"), pytest.raises(InputError, match="in use by another process"):
        study(tmp_path / "out", rounds=1).run()


def test_resume_refuses_an_edited_study(tmp_path: Path) -> None:
    study(tmp_path / "s", rounds=2).run()
    file = tmp_path / "s" / "study.yaml"
    file.write_text(file.read_text().replace("batch: 4", "batch: 3"))
    with pytest.raises(InputError, match=r"study.yaml was changed after the study began"):
        study(tmp_path / "s", local={"batch": 3, "epochs": 1}).resume(rounds=4)
    file.write_text(
        file.read_text().replace("batch: 3", "batch: 4").replace("rounds: 2", "rounds: 6")
    )
    with pytest.raises(InputError, match=r"changed after the study began\. .* with rounds=N"):
        study(tmp_path / "s").resume()
    file.write_text(
        file.read_text().replace("batch: 4", "batch: 3").replace("rounds: 6", "rounds: 2")
    )
    changed = {"rounds": 2, "local": {"batch": 3, "epochs": 1}}
    with pytest.raises(InputError, match=r"study.yaml was changed after the study began"):
        study(tmp_path / "s", **changed).resume(rounds=4)
    assert as_table(study(tmp_path / "s", **changed).resume(rounds=4, anyway=True).summary)


@pytest.mark.parametrize("digest", ["09327503e7296450", "0932750317296450", "1e5", "12345678"])
def test_a_digest_that_looks_like_a_number_stays_a_text(tmp_path: Path, digest: str) -> None:
    study(tmp_path / "s", rounds=1).run()
    folder = Folder(tmp_path / "s")
    record = folder.record()
    record["settings"]["toy"]["data"]["x"] = digest
    folder.write(folder.study(), record)
    assert Folder(tmp_path / "s").record() == record


def test_study_yaml_is_parsed_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study(tmp_path / "s", rounds=1).run()
    folder, parsed = Folder(tmp_path / "s"), []
    load = fedskip.records.folder.load
    count = lambda *given: parsed.append(given) or load(*given)  # noqa: E731
    monkeypatch.setattr("fedskip.records.folder.load", count)
    folder.record()["versions"] = "changed by who asked"
    assert folder.record()["versions"] != "changed by who asked"
    assert folder.study()["rounds"] == 1
    assert len(parsed) == 1
    folder.file.write_text(folder.file.read_text().replace("rounds: 1\n", "rounds: 12\n"))
    assert folder.study()["rounds"] == 12


def test_a_folder_without_its_study_is_not_taken_over(tmp_path: Path) -> None:
    study(tmp_path / "s", rounds=2).run()
    (tmp_path / "s" / "study.yaml").unlink()
    with pytest.raises(
        InputError, match=r"out holds checkpoints, but not the study.yaml that it belongs to"
    ):
        study(tmp_path / "s", rounds=2, methods="fedavg").run()


def test_what_a_kill_left_half_written_is_cleared(tmp_path: Path) -> None:
    study(tmp_path / "s", rounds=2).run()
    half = tmp_path / "s" / "checkpoints" / ".toy.000002.0123.safetensors.4711.part"
    other = tmp_path / "s" / ".film.part"
    for file in (half, other):
        file.touch()
    study(tmp_path / "s", rounds=2).resume(rounds=3)
    assert not half.exists()
    assert other.exists(), "is not ours"


def test_a_study_begins_only_in_a_folder_that_is_empty(tmp_path: Path) -> None:
    """What a user keeps there is not replaced, and nothing is added to it."""
    (tmp_path / "summary.csv").write_text("mine")
    (tmp_path / "zoo.txt").write_text("mine")
    with pytest.raises(InputError, match=r"out is not empty: it holds summary\.csv and 1 more"):
        study(tmp_path, rounds=1, methods="fedavg").run()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["summary.csv", "zoo.txt"]
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / ".gitkeep").touch()
    study(tmp_path / "new", rounds=1, methods="fedavg").run()
