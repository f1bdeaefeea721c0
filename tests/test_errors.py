"""The one error that users see, for the command line and for Python."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import fedskip
from fedskip.errors import InputError, flag, how_to_resume, how_to_resume_study, option, render

SOURCE = Path(fedskip.__file__).parent


def test_a_reader_sees_one_of_two_forms() -> None:
    fix = f"add {flag('force')}, or go on with {how_to_resume('runs/a-1')}"
    error = InputError(option("rounds"), "must be >= 3", 2, fix, f"{option('set')} rounds=2")
    assert str(error) == (
        "rounds must be >= 3, got 2 (set rounds=2). "
        "Add force=True, or go on with `fedskip.resume('runs/a-1')`"
    )
    assert error.message(flags=True) == (
        "--rounds must be >= 3, got 2 (--set rounds=2). Add --force, or go on with `fedskip resume runs/a-1`"
    )


def test_a_caller_with_a_study_resumes_it() -> None:
    words = how_to_resume_study("runs/a-1", anyway=True)
    assert render(words) == "`study.resume(anyway=True)`"
    assert render(words, flags=True) == "`fedskip resume runs/a-1 --anyway`"


def test_both_forms_survive_a_place_and_a_process() -> None:
    error = InputError("out", "is taken", fix=f"add {flag('force')}").at("line 3")
    for other in (error, pickle.loads(pickle.dumps(error))):
        assert other.message(flags=True) == "out is taken (line 3). Add --force."
        assert str(other) == "out is taken (line 3). Add force=True."


def test_a_text_is_not_cut_between_its_two_forms() -> None:
    error = InputError("out", "x" * 234 + f" {flag('anyway')}")
    assert "--anyway" not in str(error)
    assert str(error).isprintable()
    assert error.message(flags=True).isprintable()


def test_texts_of_users_stay_as_they_are() -> None:
    assert render("{force} --force \\1") == "{force} --force \\1"
    assert "\\x00" in str(InputError("name", "holds \0"))


def texts(file: Path) -> Iterator[str]:
    """The texts in a module but for documentation and for texts in two forms."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    loose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "either"
        ):
            loose |= {id(inner) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in loose:
            yield node.value


def test_no_message_outside_of_the_command_line_names_a_flag() -> None:
    """There, options come from `option` and `flag`, and the command that resumes from `how_to_resume`."""
    named = re.compile(r"(?<![\w-])--[a-z]|fedskip resume")
    rays = re.compile(r"`ray start[^`]*`")  # its options are the same for all
    apart = {"cli", "flower"}  # a federation is only run by commands
    files = [
        f for f in SOURCE.rglob("*.py") if not apart & {*f.parts} and f != SOURCE / "errors.py"
    ]
    assert len(files) > 60
    found = [
        (file.relative_to(SOURCE), text)
        for file in files
        for text in texts(file)
        if named.search(rays.sub("", text))
    ]
    assert not found
    assert any(named.search(text) for text in texts(SOURCE / "cli" / "commands.py"))
