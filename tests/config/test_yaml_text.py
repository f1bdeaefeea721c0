"""Text and YAML, read within limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedskip.config.tree import DEEPEST
from fedskip.config.yaml_text import LARGEST, MOST_VALUES, load, read_text
from fedskip.errors import InputError


def test_plain_values() -> None:
    text = "a: [1, 1e-3, x, null, true]\n2: &b {c: 2024-01-31}\nd: *b\n"
    assert load(text, "f.yaml") == {
        "a": [1, 0.001, "x", None, True], 2: {"c": "2024-01-31"}, "d": {"c": "2024-01-31"},
    }  # fmt: skip
    assert load("", "f.yaml") is None


def doubled(times: int) -> str:
    """A list of 2^times values in a few lines."""
    return "a0: &a0 [1, 1]\n" + "".join(
        f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, times)
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (doubled(30), f"f.yaml has too many values: more than {MOST_VALUES:,}"),
        ("a: &a [*a]", "f.yaml is nested too deep"),
        ("a: &a [*a, *a]", "f.yaml is nested too deep"),
        (
            "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1),
            f"f.yaml is nested too deep: more than {DEEPEST} levels",
        ),
        ("[" * 100_000, "f.yaml is nested too deep"),
        (
            "a:\n  - &b [[1]]\n  - " + "[" * (DEEPEST - 3) + "*b" + "]" * (DEEPEST - 3),
            "is nested too deep",
        ),
        (
            "a: 1\nb: \x07",
            "f.yaml holds the character #x0007, which YAML does not allow (f.yaml line 2)",
        ),
        (
            "a: 1\nb: [1\nc: 2",
            "f.yaml is not valid YAML: while parsing a flow sequence from line 2",
        ),
        ("a:\n\tb: 1", "Indent with spaces, not with tabs"),
        ('a: "C:\\m"', "Write a text with backslashes in single quotes"),
        ("a: [x(y=[1, 2])]", "Put a method that holds commas or brackets in quotes"),
        (
            "a: !mine [1]",
            "a has the tag !mine, which is not plain data",
        ),
        (
            "!!set {a}",
            "f.yaml has the tag !!set, which is not plain data (f.yaml line 1). Leave the tag out",
        ),
        ("a: !!int x", "a cannot be read as !!int, got 'x' (f.yaml line 1)"),
        ("1: {[a]: 1}", "1 must have plain text as its keys"),
    ],
)
def test_what_is_not_read(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load(text, "f.yaml")
    assert message in str(caught.value)


def test_files_that_hold_no_text(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    with pytest.raises(InputError, match="must be an existing file"):
        read_text(file)
    with pytest.raises(InputError, match="must be a file, not a folder"):
        read_text(tmp_path)
    file.write_bytes("größe".encode("latin-1"))
    with pytest.raises(InputError, match=r"is not text in UTF-8 \(byte 3\)"):
        read_text(file)
    file.write_bytes("\ufeffgröße".encode())
    assert read_text(file) == "größe"
    with file.open("wb") as handle:
        handle.truncate(LARGEST + 1)
    with pytest.raises(InputError, match=f"at most {LARGEST >> 20} are read"):
        read_text(file)
