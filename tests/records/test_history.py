"""history.csv: appended, cut, digested, and written anew if somebody changes it."""

from pathlib import Path

import pytest

from fedskip.records.history import HISTORY, HistoryFile, summarise
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


@pytest.mark.parametrize("damage", ["", "setting,run\n", "a,b", None])
def test_what_a_checkpoint_holds_is_recovered(
    history: HistoryFile, damage: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    history.append([*rows(3), *rows(1, setting="b")])
    recorded = history.of(["a.r"], 2)
    history.path.write_text(damage) if damage is not None else history.path.unlink()
    again = HistoryFile(history.path)
    again.recover("a", ["a.r"], 2, recorded)
    assert again.of(["a.r"], 2) == recorded
    assert "is taken from its checkpoint" in caplog.text
    caplog.clear()
    again.recover("a", ["a.r"], 2, recorded)
    assert not caplog.text


def test_cut_forgets_what_came_later(history: HistoryFile) -> None:
    history.append([*rows(3), *rows(3, setting="b")])
    history.cut({"a.r": 1})
    assert Table.read(history.path).column("round") == [1, 3]
    history.cut({}, restarted=["a.r"])
    assert Table.read(history.path).column("setting") == ["b"]


def scored(scores: list[float]) -> list[dict[str, object]]:
    empty = dict.fromkeys(HISTORY) | {"bytes_down": 0, "bytes_up": 0}
    return [
        empty | {"round": i, "test_accuracy": score, "val_accuracy": score}
        for i, score in enumerate(scores, 1)
    ]


def test_the_tail_is_the_last_tenth_of_the_rounds_and_no_round_more() -> None:
    scores = [0.0] * 17 + [100.0, 1.0, 3.0]  # rounds 18, 19 and 20
    assert summarise(scored(scores), rounds=20)["mean_tail"] == 2.0


def test_of_equal_scores_the_first_is_the_best() -> None:
    history = scored([0.1, 0.7, 0.3, 0.7])
    assert summarise(history, rounds=4)["best_round"] == 2
    assert summarise(history, rounds=4, higher=False)["best_round"] == 1
