"""What `import fedskip` gives: names and rooms, each imported when it is first asked for."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import fedskip


def fresh(code: str) -> None:
    """Run code in a process that has imported nothing."""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_it_imports_nothing_heavy() -> None:
    fresh("import sys, fedskip; assert not {'torch', 'numpy', 'matplotlib'} & sys.modules.keys()")


def test_names_and_rooms_are_there_however_they_are_asked_for() -> None:
    fresh("from fedskip import Study, partition; assert Study.__module__ == 'fedskip.study.study'")
    fresh("import fedskip; assert fedskip.Study.run and fedskip.Study is fedskip.study.Study")
    fresh("import fedskip; fedskip.data.catalogue, fedskip.methods.FedAvg, fedskip.rng.stream")
    fresh("from fedskip import *; assert Moon().period and callable(check_method) and __version__")
    for name in (*fedskip.__all__, "data", "methods", "models"):
        assert name in dir(fedskip)
        assert getattr(fedskip, name) is getattr(fedskip, name)


def test_a_name_that_is_not_there() -> None:
    assert not hasattr(fedskip, "FedNone")
    with pytest.raises(AttributeError, match="module 'fedskip' has no attribute 'Studdy'"):
        _ = fedskip.Studdy  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="cannot import name 'Studdy'"):
        exec("from fedskip import Studdy")


def test_classes_are_pickled_by_their_own_modules() -> None:
    for thing in (fedskip.Study, fedskip.FedAvg, fedskip.load, fedskip.InputError):
        assert pickle.loads(pickle.dumps(thing)) is thing


def test_type_checkers_see_the_same_names() -> None:
    [block] = [
        node
        for node in ast.parse(Path(fedskip.__file__).read_text(encoding="utf-8")).body
        if isinstance(node, ast.If)
    ]
    seen = [(node.module, node.names) for node in block.body if isinstance(node, ast.ImportFrom)]
    assert all(alias.name == alias.asname for _, [alias] in seen), "`as`: to be used from here"
    assert {alias.name: module for module, [alias] in seen} == {
        name: f"fedskip.{module}" for name, module in fedskip._HOMES.items()
    }


def test_it_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedskip", "--version"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, f"fedskip {fedskip.__version__}\n")
