"""Our own runs, read once."""

from __future__ import annotations

import pytest

from reproduction.columns import Studies
from reproduction.runs import read_studies


@pytest.fixture(scope="session")
def ours() -> Studies:
    return read_studies()
