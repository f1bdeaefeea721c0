"""The pages of results say what the files beside them say."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedskip.paper.columns import settings
from fedskip.records.table import Table
from fedskip.report.results import Results

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "docs" / "results" / "write.py"


def test_the_pages_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "run python docs/results/write.py"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    sys.path.insert(0, str(SCRIPT.parent))  # where the script finds its parts
    try:
        return runpy.run_path(str(SCRIPT))
    finally:
        sys.path.pop(0)


def test_a_number_that_is_altered_is_found(script: dict[str, Any]) -> None:
    """In tables and in sentences: with every digit changed, a page is not what the files say."""
    kept, turn = script["studies"](), str.maketrans("0123456789", "1234567890")
    for page in script["PAGES"]:
        text = altered = page.read_text(encoding="utf-8")
        for pattern in (script["BLOCK"], script["INLINE"]):
            before = altered
            altered = pattern.sub(lambda found: found[1] + found[3].translate(turn) + found[4], altered)
            assert altered != before, page
        assert script["written"](altered, kept) == text


def test_a_sentence_can_name_whoever_is_strongest(script: dict[str, Any]) -> None:
    kept, place = script["studies"](), "compose/cifar10-beta0.5"
    for who in ("strongest", "strongest-skipping"):
        names = [f"{kind}:{place}:{who}" for kind in ("method", "gain")]
        method, gained = (script["prose"].value(name, kept) for name in names)
        assert gained == script["prose"].value(f"gain:{place}:{method}", kept)
    assert "+skip" in method


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


def test_every_run_that_diverged_is_on_its_list() -> None:
    """By setting, method and seed; one that stands in two folders, or in two settings, is one run."""
    listed = Table.read(SCRIPT.parent / "diverged" / "diverged.csv")
    runs = {(row["setting"], row["method"], row["seed"]) for row in listed}
    assert len(runs) == len(listed)
    told, known = set(), 0
    for file in SCRIPT.parent.glob("*/study.yaml"):
        study = Results.read(file.parent)
        mine = {row["run"] for row in study.summary if row["diverged"]}
        names = [(name, part) for name, column in settings().items() for part in column.parts([study])]
        for run in mine:
            found = [
                (name, row["method"], row["seed"])
                for name, part in names
                for row in part.summary
                if row["run"] == run
            ]
            assert not found or runs & {*found}, f"{file.parent.name}: {run} is not in diverged.csv"
            told |= {*found}
            known += 1
    assert runs <= told, "it lists none that did not diverge"
    assert known > 0
