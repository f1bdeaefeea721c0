"""`python -m reproduction`: what it lists, its tables for any folder, and its errors."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from reproduction.__main__ import main, parser
from reproduction.runs import RUNS


def test_without_a_command_it_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    shown = capsys.readouterr().out
    for name in (
        "status",
        "tables",
        "figures",
        "theorem1",
        "complexity",
        "again",
        "add",
        "membership",
    ):
        assert f"  {name} " in shown


def test_status_of_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    main(["status", str(RUNS / "femnist"), str(RUNS / "poison")])
    shown = capsys.readouterr().out
    assert "\ntable3/femnist\n" in shown
    assert "table2/cifar10-iid" not in shown
    assert "longer/femnist" not in shown, "it repeats what Table III has shown"
    assert "poison holds no run of the paper's settings" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["status", "nowhere"], "nowhere holds no finished study"),
        (["again", "nothing"], "nothing is not one of our runs"),
        (["visits", "table9"], "2"),
    ],
    ids=str,
)
def test_errors(arguments: list[str], words: str) -> None:
    with pytest.raises(SystemExit, match=words):
        main(arguments)


def test_what_is_computed_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reproduction.weighting.check", lambda: pd.DataFrame({"a": [1]}))
    main(["weighting", "--to", str(tmp_path / "new")])
    assert (tmp_path / "new" / "weighting.csv").read_text() == "a\n1\n"


def test_every_command_says_what_it_does() -> None:
    [commands] = [action for action in parser()._actions if hasattr(action, "_choices_actions")]
    assert all(len(action.help) > 20 for action in commands._choices_actions)
