"""Values made to fit their types and ranges; users' own code by name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest

from fedskip.errors import InputError
from fedskip.parsing import (
    MOST,
    SMALLEST,
    Above,
    AtLeast,
    AtMost,
    Count,
    In,
    Positive,
    fit,
    is_own,
    load,
)


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (1, float, 1.0),
        ("1e-5", float, 1e-5),
        (np.float64(0.5), float, 0.5),
        (5.0, int, 5),
        ("1e3", int, 1000),
        (np.int64(7), int, 7),
        (2**70, int, 2**70),
        ("true", bool, True),
        (None, int | None, None),
        ("5", int | str, "5"),
        (0.5, float | None, 0.5),
        ([1], list[int], [1]),
    ],
)
def test_fit(value: Any, hint: Any, expected: Any) -> None:
    found = fit("field", value, hint)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "hint", "words"),
    [
        ("a", float, "a number"),
        (float("nan"), float, "a number"),
        ("inf", float, "a number"),
        (True, int, "a whole number"),
        (1.5, int | None, "a whole number or null"),
        (1, bool, "true or false"),
        (3, str, "text"),
        (None, str, "text"),
    ],
)
def test_misfits(value: Any, hint: Any, words: str) -> None:
    with pytest.raises(InputError, match=f"^local.lr must be {words}, got"):
        fit("local.lr", value, hint)


@pytest.mark.parametrize(
    ("hint", "inside", "outside", "rule"),
    [
        (Annotated[int, AtLeast(1)], [1, 7], 0, "must be >= 1"),
        (Annotated[float, AtMost(2)], [2, -7], 2.5, "must be at most 2"),
        (Annotated[float, Above(0)], [1e-9, 5], 0, "must be > 0"),
        (Annotated[float, In("[0, 1)")], [0, 0.5], 1, r"must be in \[0, 1\)"),
        (Annotated[float, In("[0, 1)")], [], -0.1, r"must be in \[0, 1\)"),
        (Annotated[float, In("(0, 1]")], [1], 0, r"must be in \(0, 1\]"),
        (Count, [1, MOST], MOST + 1, "must be at most 1,000,000,000"),
        (Count | None, [None, 3], 0, "must be >= 1"),
        (Annotated[int | None, AtLeast(1)], [None, 3], 0, "must be >= 1"),
        (Positive, [SMALLEST], -1, "must be > 0, got -1.0"),
        (Positive, [], 1e-39, "must be >= 1.2e-38"),
    ],
)
def test_ranges(hint: Any, inside: list[Any], outside: Any, rule: str) -> None:
    for value in inside:
        assert fit("field", value, hint) == value
    with pytest.raises(InputError, match=f"^field {rule}"):
        fit("field", outside, hint)


def test_an_error_gives_the_advice_of_the_range() -> None:
    with pytest.raises(InputError, match=r"mu must be >= 0, got -1.0. 0 is FedAvg"):
        fit("mu", -1, Annotated[float, AtLeast(0, "0 is FedAvg")])


def test_ranges_are_for_numbers_and_other_metadata_is_ignored() -> None:
    assert fit("period", "never", Annotated[int, AtLeast(1)] | str) == "never"
    assert fit("mu", 1, Annotated[float, "of the pull"]) == 1.0


def test_load() -> None:
    assert is_own("numpy:load")
    assert not is_own("cnn")
    assert not is_own("python:mine.Net")  # how a file shows an object
    assert load("numpy:load") is np.load
    assert load("numpy:linalg.norm") is np.linalg.norm


@pytest.mark.parametrize(
    "name",
    [
        "os:system", "os:path.join", "subprocess:Popen", "runpy:run_path", "builtins:eval", "antigravity:x",
        "their_aliases:os.system", "their_aliases:system", "their_aliases:popen", "their_aliases:later",
        "their_aliases:Own.__subclasses__", "their_aliases:get",
    ],
)  # fmt: skip
def test_nothing_of_python_is_loaded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_aliases.py").write_text(
        "import os\nfrom functools import partial\nfrom operator import itemgetter\nfrom os import popen, system\n"
        "later, get = partial(partial(popen, 'ls'), 'r'), itemgetter(0)\nclass Own: ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "antigravity", raising=False)
    with pytest.raises(InputError, match=f"^model {name} is a part of Python.*of your own"):
        load(name, "model")
    assert "antigravity" not in sys.modules  # it would open a browser
    sys.modules.pop("their_aliases", None)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import sys; sys.exit(2)", r"fails when imported: it must not exit \(SystemExit: 2\)"),
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
