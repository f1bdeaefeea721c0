"""The pages of results say what the files beside them say."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "docs" / "results" / "write.py"


def test_the_pages_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "run python docs/results/write.py"


def test_a_number_that_is_altered_is_found() -> None:
    """In tables and in sentences: with every digit changed, a page is not what the files say."""
    sys.path.insert(0, str(SCRIPT.parent))  # where the script finds its parts
    try:
        script = runpy.run_path(str(SCRIPT))
    finally:
        sys.path.pop(0)
    kept, turn = script["studies"](), str.maketrans("0123456789", "1234567890")
    for page in script["PAGES"]:
        text = altered = page.read_text(encoding="utf-8")
        for pattern in (script["BLOCK"], script["INLINE"]):
            before = altered
            altered = pattern.sub(lambda found: found[1] + found[3].translate(turn) + found[4], altered)
            assert altered != before, page
        assert script["written"](altered, kept) == text


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/results/README.md",
        "docs/claims.md",
        "docs/theory.md",
        "docs/robust.md",
        "docs/privacy.md",
    ],
)
def test_every_table_of_numbers_is_one_that_is_written(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text.count("<!-- numbers: ") == text.count("<!-- /numbers -->") > 0
    assert text.count("<!--=") == text.count("<!--/-->") > 0


def test_every_folder_is_named_on_the_page() -> None:
    text = (SCRIPT.parent / "README.md").read_text(encoding="utf-8")
    for folder in SCRIPT.parent.glob("*/study.yaml"):
        assert f"({folder.parent.name})" in text, folder.parent.name
