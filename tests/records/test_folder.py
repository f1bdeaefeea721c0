"""A folder holds one study."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fedskip.records.folder
from fedskip import InputError, Study
from fedskip.records.checkpoint import group_key
from fedskip.records.folder import Folder
from fedskip.records.table import Row
from fedskip.study.setting_plan import Group
from fedskip.study.train import InProcess, Preparing
from studies import as_table, numbers, study


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


# --- checkpoints that are gone -------------------------------------------------------------------------

KEYS: dict[str, Any] = {
    "methods": "fedavg, fedskip(period=2)",
    "seeds": 1,
    "processes": 1,
    "rounds": 6,
}


def contents(out: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(out)): file.read_bytes()
        for file in out.rglob("*") if file.is_file() and file.name != ".lock"
    }  # fmt: skip


@pytest.mark.parametrize(
    "go_on",
    [
        Study.resume,
        lambda made: made.resume(
            rounds=1000
        ),  # whose first checkpoint would come after all that is there
        lambda made: made.resume(anyway=True),
        lambda made: made.extend(methods="fednova"),
    ],
    ids=["resume", "longer", "anyway", "extend"],
)
def test_results_without_checkpoints_stay(tmp_path: Path, go_on: Callable[[Study], Any]) -> None:
    study(tmp_path / "s", **KEYS).run()
    shutil.rmtree(tmp_path / "s" / "checkpoints")
    before = contents(tmp_path / "s")
    rule = r"has no checkpoints of toy any more: .* lose its history\.csv up to round 6 and summary\.csv"
    with pytest.raises(InputError, match=rule) as refused:
        go_on(study(tmp_path / "s", **KEYS))
    assert f"fedskip run {tmp_path / 's' / 'study.yaml'} --out NEW" in refused.value.message(
        flags=True
    )
    assert contents(tmp_path / "s") == before
    (tmp_path / "s" / "history.csv").unlink()
    with pytest.raises(InputError, match=r"would lose its summary\.csv"):
        go_on(study(tmp_path / "s", **KEYS))


def test_it_starts_anew_where_its_results_were_moved_away(tmp_path: Path) -> None:
    study(tmp_path / "s", **KEYS).run()
    before = numbers(tmp_path / "s")
    shutil.rmtree(tmp_path / "s" / "checkpoints")
    for name in ("history.csv", "summary.csv"):
        (tmp_path / "s" / name).unlink()
    study(tmp_path / "s", **KEYS).resume()
    assert numbers(tmp_path / "s") == before


@pytest.mark.parametrize(("kept", "fine"), [(1, True), (2, True), (3, False)])
def test_what_a_kill_before_the_first_checkpoint_can_leave(
    tmp_path: Path, kept: int, fine: bool
) -> None:
    """Rows up to its round, which is 2, and no more."""
    study(tmp_path / "s", checkpoint_every=2, **KEYS).run()
    shutil.rmtree(tmp_path / "s" / "checkpoints")
    (tmp_path / "s" / "summary.csv").unlink()
    file = tmp_path / "s" / "history.csv"
    head, *rows = file.read_text().splitlines(keepends=True)
    column = head.split(",").index("round")
    file.write_text(head + "".join(row for row in rows if int(row.split(",")[column]) <= kept))
    if fine:
        assert study(tmp_path / "s", checkpoint_every=2, **KEYS).resume().finished
    else:
        with pytest.raises(InputError, match="up to round 3,"):
            study(tmp_path / "s", checkpoint_every=2, **KEYS).resume()


def test_killed_as_it_writes_its_first_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows up to it are there; also when the study was just made longer, and its checkpoints rarer."""

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedskip.study.train.save_checkpoint", dies)
    with pytest.raises(KeyboardInterrupt):
        study(tmp_path / "s", **KEYS).run()
    with pytest.raises(KeyboardInterrupt):
        study(tmp_path / "s", **KEYS).resume(rounds=60)
    monkeypatch.undo()
    assert [
        row["rounds"] for row in as_table(study(tmp_path / "s", **KEYS).resume(rounds=80).summary)
    ] == [
        80,
        80,
    ]


def test_of_several_settings_each_has_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose checkpoints are gone keeps the study from going on, also where history.csv is damaged."""
    keys = KEYS | {"settings": [{"name": "one"}, {"name": "two"}]}
    advance, calls = InProcess.advance, []

    def breaks(
        self: InProcess, groups: list[Group], until: int, preparing: Preparing
    ) -> Iterator[list[Row]]:
        calls.append(until)
        if len(calls) > 8:  # in the second setting
            raise KeyboardInterrupt
        return advance(self, groups, until, preparing)

    monkeypatch.setattr(InProcess, "advance", breaks)
    with pytest.raises(KeyboardInterrupt):
        study(tmp_path / "s", **keys).run()
    monkeypatch.undo()
    aside = tmp_path / "aside"
    aside.mkdir()
    for file in (tmp_path / "s" / "checkpoints").glob("one.*"):
        file.rename(aside / file.name)
    file = tmp_path / "s" / "history.csv"
    whole, rule = (
        file.read_text(),
        r"no checkpoints of one any more: .* history\.csv up to round 6,",
    )
    for text in (whole, f"{whole}one,half a line\0\n", f"{whole}{'9' * 5000}\n" * 2):
        file.write_text(text)
        with pytest.raises(InputError, match=rule):
            study(tmp_path / "s", **keys).resume()
        assert file.read_text() == text
    for text in (whole.replace(",", ";"), "no table\n"):
        file.write_text(text)
        with pytest.raises(
            InputError, match="delete it: what no checkpoint has of it is lost then"
        ):
            study(tmp_path / "s", **keys).resume()
        assert file.read_text() == text
    file.write_text(whole)
    for file in aside.iterdir():
        file.rename(tmp_path / "s" / "checkpoints" / file.name)
    assert study(tmp_path / "s", **keys).resume().finished


def test_a_history_that_a_checkpoint_has_may_be_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the first of two settings, as by a power cut: the second has neither checkpoint nor rows."""
    keys = KEYS | {"settings": [{"name": "one"}, {"name": "two"}]}
    advance, calls = InProcess.advance, []

    def breaks(
        self: InProcess, groups: list[Group], until: int, preparing: Preparing
    ) -> Iterator[list[Row]]:
        calls.append(until)
        if len(calls) > 4:
            raise KeyboardInterrupt
        return advance(self, groups, until, preparing)

    monkeypatch.setattr(InProcess, "advance", breaks)
    with pytest.raises(KeyboardInterrupt):
        study(tmp_path / "s", **keys).run()
    monkeypatch.undo()
    with (tmp_path / "s" / "history.csv").open("a") as file:
        file.write("one,half a line\0\n")
    assert study(tmp_path / "s", **keys).resume().finished


def test_of_groups_each_has_checkpoints(tmp_path: Path) -> None:
    """As a cluster leaves them, where every group goes its own way."""
    study(tmp_path / "s", groups=2, **KEYS).run()
    folder = tmp_path / "s" / "checkpoints"
    for file in folder.iterdir():  # now those of the first group only
        file.rename(folder / file.name.replace("toy", group_key("toy", 0, 2), 1))
    rule = r"no checkpoints of (toy\.\S+) any more: .* history\.csv up to round 6 and summary\.csv"
    with pytest.raises(InputError, match=rule):
        study(tmp_path / "s", groups=2, **KEYS).resume()
