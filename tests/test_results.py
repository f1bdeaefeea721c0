"""The pages of results say what the files beside them say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "docs" / "results" / "write.py"


def test_the_pages_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "run python docs/results/write.py"


@pytest.mark.parametrize("page", ["README.md", "docs/results/README.md"])
def test_every_table_of_numbers_is_one_that_is_written(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text.count("<!-- numbers: ") == text.count("<!-- /numbers -->") > 0


def test_every_folder_is_named_on_the_page() -> None:
    text = (SCRIPT.parent / "README.md").read_text(encoding="utf-8")
    for folder in SCRIPT.parent.glob("*/study.yaml"):
        assert f"({folder.parent.name})" in text, folder.parent.name
