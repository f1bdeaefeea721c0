"""The real data files, where there are any: `FEDSKIP_TEST_DATA`, or `../shared/data` from the repository."""

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("FEDSKIP_TEST_DATA") or Path(__file__).parents[2] / "shared" / "data")


def real(name: str) -> Path:
    """The path of a real file; the test is skipped where it is not."""
    if not (FOLDER / name).exists():
        pytest.skip(f"no real data: {name} is not in {FOLDER} (FEDSKIP_TEST_DATA)")
    return FOLDER / name
