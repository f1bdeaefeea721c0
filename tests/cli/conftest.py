"""What all tests of the command line begin with."""

import pytest

from terminal import SMALL, call


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory):
    """A folder made by `fedskip run`, small, and what was said; tests that write copy it first."""
    out = tmp_path_factory.mktemp("cli") / "study"
    code, shown, said = call("run", "--methods", "fedavg, fedskip(period=2)", *SMALL, "--out", out)
    assert (code, said) == (0, "")
    return out, shown


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
