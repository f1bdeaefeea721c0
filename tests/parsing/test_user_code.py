"""What users wrote themselves, imported by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedskip.errors import InputError
from fedskip.parsing.user_code import is_own, load


def test_load() -> None:
    assert is_own("os:getcwd")
    assert not is_own("cnn")
    assert load("os:getcwd") is os.getcwd
    assert load("os:path.join") is os.path.join


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import sys; sys.exit(2)", r"fails when imported: SystemExit: 2"),
        ("import os; os.nothing", r"fails when imported: AttributeError: .*'nothing'"),
        ("1 +", r"fails when imported: SyntaxError"),
        ("", r"has no 'Net'"),
    ],
)
def test_modules_that_fail(
    source: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"their_module_{abs(hash(source))}"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=f"^{name} {said}"):
        load(f"{name}:Net")
    with pytest.raises(InputError, match=f"^model {name}:Net: {name} {said}"):
        load(f"{name}:Net", "model")
