"""history.csv: appended, cut, digested, and written anew if somebody changes it."""

from pathlib import Path

import pytest

from fedskip.records.history import HISTORY, HistoryFile
from fedskip.records.table import Row, Table


def rows(*rounds: int, setting: str = "a") -> list[Row]:
    about = dict.fromkeys(HISTORY) | {"setting": setting, "run": f"{setting}.r"}
    return [about | {"round": r, "seconds": 0.5 * r} for r in rounds]


@pytest.fixture
def history(tmp_path: Path) -> HistoryFile:
    file = HistoryFile(tmp_path / "history.csv")
    file.append(rows(1, 2))
    return file


def test_rows_are_appended_and_read_back(history: HistoryFile) -> None:
    history.append(rows(3))
    assert Table.read(history.path).column("round") == [1, 2, 3]
    assert HistoryFile(history.path).table.csv() == history.table.csv()


@pytest.mark.parametrize("content", [None, b"", b"setting,run\nmine"])
def test_a_file_that_was_changed_meanwhile_is_written_anew(
    history: HistoryFile, content: bytes | None
) -> None:
    whole = history.path.read_bytes()
    history.path.unlink() if content is None else history.path.write_bytes(content)
    history.sync()
    assert history.path.read_bytes() == whole
    history.path.unlink() if content is None else history.path.write_bytes(content)
    history.append(rows(3))
    assert Table.read(history.path).column("round") == [1, 2, 3]


def test_the_digest_is_of_a_setting_up_to_a_round(history: HistoryFile) -> None:
    before = history.digest("a", 2)
    history.append([*rows(3), *rows(1, setting="b")])
    assert history.digest("a", 2) == before == HistoryFile(history.path).digest("a", 2)
    assert len({history.digest("a", 1), history.digest("a", 2), history.digest("a", 3)}) == 3
    history.table.rows[1]["seconds"] += 1e-9
    assert history.digest("a", 2) != before


def test_cut_forgets_what_came_later(history: HistoryFile) -> None:
    history.append([*rows(3), *rows(3, setting="b")])
    history.cut("a", 1)
    assert Table.read(history.path).column("round") == [1, 3]
    history.cut("c", 0, anew=["a.r"])
    assert Table.read(history.path).column("setting") == ["b"]
