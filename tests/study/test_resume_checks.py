"""A study that has results and no checkpoints is left as it is; one killed before its first goes on."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedskip import Study
from fedskip.errors import InputError
from fedskip.records.checkpoint import group_key
from fedskip.records.table import Row
from fedskip.study.setting_plan import Group
from fedskip.study.workers import InProcess, Preparing
from studies import as_table, numbers, study

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
