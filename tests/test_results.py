"""The pages of results say what the files beside them say."""

from __future__ import annotations

import csv
import doctest
import importlib.util
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import typer

from fedskip.cli.chosen import chosen
from fedskip.cli.studies import run
from fedskip.methods.grammar import parse_many
from fedskip.paper.columns import Column, settings
from fedskip.paper.table4 import reached
from fedskip.records.provenance import Folder
from fedskip.records.table import Table
from fedskip.report.results import Results
from fedskip.report.sheet import BEST
from fedskip.spec import Draft, Tree, assigned, build
from studies import of_cifar10

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "docs" / "results" / "write.py"
with (SCRIPT.parent / "runs.csv").open(encoding="utf-8", newline="") as file:
    RUNS = {row["folder"]: row for row in csv.DictReader(file)}


def loaded() -> dict[str, Any]:
    """The names of the script that writes the pages."""
    sys.path.insert(0, str(SCRIPT.parent))  # where it finds its parts
    try:
        return runpy.run_path(str(SCRIPT))
    finally:
        sys.path.pop(0)


def test_the_pages_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "run python docs/results/write.py"


def test_a_number_that_is_altered_is_found() -> None:
    """In tables and in sentences: with every digit changed, a page is not what the files say."""
    script = loaded()
    kept, turn = script["studies"](), str.maketrans("0123456789", "1234567890")
    for page in script["PAGES"]:
        text = altered = page.read_text(encoding="utf-8")
        for pattern in (script["BLOCK"], script["INLINE"]):
            before = altered
            altered = pattern.sub(lambda found: found[1] + found[3].translate(turn) + found[4], altered)
            assert altered != before, page
        assert script["written"](altered, kept) == text


def test_a_sentence_can_name_whoever_is_strongest() -> None:
    script = loaded()
    kept, place = script["studies"](), "compose/cifar10-beta0.5"
    for who in ("strongest", "strongest-skipping"):
        names = [f"{kind}:{place}:{who}" for kind in ("method", "gain")]
        method, gained = (script["prose"].value(name, kept) for name in names)
        assert gained == script["prose"].value(f"gain:{place}:{method}", kept)
    assert "skip" in method.lower()


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


def test_what_is_computed_has_a_row() -> None:
    """Every folder without a study, and every file of visits; with a command that names it."""
    with (SCRIPT.parent / "computed.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["folder"]: row for row in csv.DictReader(file)}
    folders = {path.name for path in SCRIPT.parent.iterdir() if path.is_dir() and any(path.glob("*.csv"))}
    visits = {f"visits/{file.name}" for file in (SCRIPT.parent / "visits").glob("*.csv")}
    assert rows.keys() == (folders - RUNS.keys() - {"visits"}) | visits
    for folder, row in rows.items():
        assert folder.rpartition("/")[2] in row["command"]
        assert re.fullmatch(r"[0-9a-f]{7}", row["commit"])
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", row["date"])
        assert re.fullmatch(r"\d+:\d\d|not noted", row["minutes"])


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
        for broken in mine:
            found = [
                (name, row["method"], row["seed"])
                for name, part in names
                for row in part.summary
                if row["run"] == broken
            ]
            assert not found or runs & {*found}, f"{file.parent.name}: {broken} is not in diverged.csv"
            told |= {*found}
            known += 1
    assert runs <= told, "it lists none that did not diverge"
    assert known > 0


def test_a_sentence_can_compare_a_method_with_itself_alone() -> None:
    script = loaded()
    kept, place = script["studies"](), "compose/cifar10-beta0.5"
    value = script["prose"].value
    for kind in ("alone", "alone-best", "alone-last"):  # alone, FedSkip is FedAvg
        over = value(f"{kind.replace('alone', 'gain')}:{place}:FedSkip-3", kept)
        assert value(f"{kind}:{place}:FedSkip-3", kept) == over
    assert value(f"alone:{place}:FedDyn", kept) == "0.00 (0.00 to 0.00)"
    assert value(f"alone:{place}:FedDyn+skip-3", kept) != value(f"gain:{place}:FedDyn+skip-3", kept)


@pytest.mark.parametrize("score", ["best", "last"])
def test_merges_are_those_of_table_iv(score: str) -> None:
    """Those behind verdicts are counted apart from Table IV's, and are the same."""
    script, place = loaded(), "table2/cifar10-beta0.5"
    kept, column = script["studies"](), script["races"]()[place]
    found = {row["method"]: row for row in reached(column, kept, score)}
    for name in column.methods:
        needed = script["evidence"].merges(column.results(kept), name, score).values()
        there = [merges for merges in needed if merges is not None]
        assert len(there) == found[name]["reached"]
        assert not there or fmean(there) == pytest.approx(found[name]["merges"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("above:tail:table3/femnist", "every Δ"),  # as the table of the column has it
        ("above:best:table3/femnist", "Δ = 5"),
        ("below:last:table2/cifar10-beta0.5", "Δ = 10"),
        ("above:tail:table3/cifar10-p50", "no Δ"),  # with Δ = 3 a run diverged
        ("below:merges-best:table2/cifar10-iid", "Δ = 5 and 10"),  # the others do not get there
        ("below:tail:fig5/p10-beta0.1", "Δ = 3, 7, 10, 15 and 20"),
        ("below:alone-SCAFFOLD:compose/cifar10-beta0.5", "Δ = 5"),
        ("above:rival-FedProx-best:table3/femnist", "Δ = 5"),
    ],
)
def test_verdicts_follow_from_intervals(name: str, said: str) -> None:
    script = loaded()
    assert script["prose"].value(name, script["studies"]()) == said


BROKEN = settings()["table2/cifar10-beta0.5"]


def broken_fedavg(tmp_path: Path) -> Results:
    """FedAvg diverged in round 190 of its second seed; FedProx has two seeds."""
    scores = {"FedAvg": [0.6, 0.9, 0.6], "FedSkip-3": [0.7] * 3, "FedSkip-5": [0.7] * 3, "FedProx": [0.5] * 2}
    held = of_cifar10(tmp_path, "fedavg, fedskip(period=[3, 5]), fedprox", scores)
    for row in held.summary.where(method="FedAvg", seed=1):
        row |= {"diverged": True, "broke_round": 190}
    return held


def test_a_seed_at_which_fedavg_diverged_has_nothing_to_reach(tmp_path: Path) -> None:
    """FedSkip-3 is there at its second merge; at seed 1 FedAvg was better before it broke."""
    evidence, held = loaded()["evidence"], BROKEN.results([broken_fedavg(tmp_path)])
    for method, score in (("FedSkip-3", "best"), ("FedAvg", "last")):
        assert evidence.merges(held, method, score) == {0: 2, 2: 2}


def test_gaps_say_at_how_many_seeds_and_verdicts_want_all(tmp_path: Path) -> None:
    script, held = loaded(), [broken_fedavg(tmp_path)]
    gained = "+10.00 (+10.00 to +10.00)"
    [row] = script["evidence"].headline([BROKEN], held).rows
    assert [cell.plain for cell in row[1:3]] == ["3", f"{gained} at 2 of 3 seeds"]
    [row] = script["evidence"].rival_gaps([BROKEN], held).rows
    assert row[2].plain == "+20.00 (+20.00 to +20.00) at 2 of 3 seeds"
    early = script["evidence"].early_gaps([BROKEN], held, [200]).rows
    assert early[1][2].plain == f"{gained}, 2 of 3 seeds"
    assert script["prose"].value("above:best:table2/cifar10-beta0.5", held) == "no Δ"


def test_no_method_is_ahead_by_the_seeds_that_are_left(tmp_path: Path) -> None:
    study = of_cifar10(tmp_path, "fedavg, median", {"FedAvg": [0.9, 0.9], "Median": [0.5, 0.5]})
    for row in study.summary.where(method="FedAvg", seed=1):
        row |= {"diverged": True}
    rows = loaded()["poison"].poison_sheet([replace(study, name="poison")]).rows
    assert [row[0].plain for row in rows if row[1].style == BEST] == ["Median"]


def test_the_first_seed_is_the_lowest(tmp_path: Path) -> None:
    held = of_cifar10(tmp_path, "fedavg", {"FedAvg": [0.5, 0.6]})
    turned = replace(held, history=Table(held.history.columns, [*held.history][::-1]))
    assert [*loaded()["evidence"].histories(turned, "FedAvg")] == [0, 1]


def test_seeds_of_which_no_weights_are_known_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nova, held = loaded()["nova"], of_cifar10(tmp_path, "fednova", {"FedNova": [0.5, 0.6]})
    monkeypatch.setattr(nova, "sums", lambda name: {(0, 200): 2.0})
    assert nova.summed("table2/cifar10-beta0.5:falls", [held]) == "2.00 to 2.00"


def test_the_sizes_of_clients_in_the_errata(capsys: pytest.CaptureFixture[str]) -> None:
    """Its code prints what its table says."""
    text = (ROOT / "docs" / "errata.md").read_text(encoding="utf-8")
    code, _ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(code, {})
    printed = [
        [int(number) for number in re.findall(r"\d+", line)] for line in capsys.readouterr().out.splitlines()
    ]
    said = {first: f"{min(rest)} to {max(rest)}" for first, *rest in printed[:2]}
    assert all(f"{span} of {clients}" in text for clients, span in said.items())
    (_, *ten), (_, *hundred) = printed[2:]
    assert (
        f"is {min(hundred)} to {max(hundred)} % of their mean (CIFAR-10: {min(ten)} to {max(ten)} %" in text
    )


def test_the_images_of_femnist_in_the_errata(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "errata.md").read_text(encoding="utf-8")
    _, code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(code, {})
    images, right = re.fullmatch(r"(\d+) (\{.*\})\n", capsys.readouterr().out).groups()  # type: ignore[union-attr]
    number = {name: int(count) for name, count in re.findall(r"'([^']+)': (\d+)", right)}
    gain = max(number.values()) - number["FedAvg"]
    assert f"all of them are multiples of 1/{images}" in text
    assert f"the test set had {images} images: one is {100 / int(images):.1f} points" in text
    assert f"the gain of {100 * gain / int(images):.1f} points is {gain} images" in text
    assert (
        f"{number['FedSkip-5']}/{images} is {number['FedSkip-5'] / int(images):.5f}"[:-1].replace("0.", ".")
        in text
    )


@pytest.mark.parametrize("name", ["again", "evidence", "nova", "runs", "theory", "verdicts"])
def test_examples_of_the_scripts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    found = importlib.util.spec_from_file_location(f"results_{name}", SCRIPT.parent / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    tried = doctest.testmod(module)
    assert tried.attempted
    assert not tried.failed


# --- where the numbers come from: runs.csv --------------------------------------------------------------


def test_every_study_has_its_row_and_every_row_its_study() -> None:
    assert RUNS.keys() == {file.parent.name for file in SCRIPT.parent.glob("*/study.yaml")}


@pytest.mark.parametrize("folder", RUNS)
def test_a_row_says_what_its_folder_says(folder: str) -> None:
    """Seeds, device, and whether the history was kept."""
    row, study = RUNS[folder], Results.read(SCRIPT.parent / folder)
    assert row["seeds"] == ", ".join(map(str, sorted({*study.summary.column("seed")})))
    noted = Folder(study.out).record()["settings"].values()
    devices = {one["machine"]["device_name"] for one in noted}
    assert devices
    assert all(name in row["device"] for name in devices)
    assert re.fullmatch(r"[0-9a-f]{7}|not noted", row["commit"])
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", row["date"])
    assert re.fullmatch(r"\d+(:\d\d)?", row["minutes"])
    kept = "only its summary" not in row["note"] and "histories were not" not in row["note"]
    assert (study.out / "history.csv").exists() == kept


@pytest.mark.parametrize("folder", RUNS)
def test_a_command_makes_the_study_of_its_folder(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # where its files are
    study, drafts = Results.read(SCRIPT.parent / folder), commanded(RUNS[folder]["command"])
    assert len(drafts) == len(study.settings)
    of_the_paper = folder not in ("quickstart", "poison")  # others leave to the data set what is its own
    for number, setting in enumerate(study.settings):
        draft = drafts[number]
        assert not of_the_paper or Column("", draft, {}).is_of(setting)
        assert setting.rounds == draft.keys["rounds"]
        assert [*setting.keys["seeds"]] == [*draft.keys["seeds"]]
        assert {*parse_many(setting.keys["methods"])} == {*draft.keys["methods"]}


def test_what_was_run_again_says_how_much_was_compared() -> None:
    with (SCRIPT.parent / "again.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        assert row["command"] == f"python docs/results/again.py {row['folder']}"
        study = Results.read(SCRIPT.parent / row["folder"])
        counts = [len(study.history), len(study.summary)] if study.history else [len(study.summary)]
        if row["result"].startswith("the same"):
            assert re.findall(r"[\d,]+(?= (?:rows )?of)", row["result"]) == [f"{count:,}" for count in counts]
    assert any(row["result"].startswith("the same") for row in rows)


def test_again_says_what_differs(tmp_path: Path) -> None:
    ours = SCRIPT.parent / "quickstart"
    command = [sys.executable, SCRIPT.parent / "again.py", "quickstart"]
    same = subprocess.run([*command, ours], capture_output=True, text=True, check=False)
    rows = [f"{name}.csv: the same, {count} rows" for name, count in (("history", "4,068"), ("summary", 27))]
    assert (same.returncode, same.stdout.splitlines()) == (0, rows)
    shutil.copytree(ours, tmp_path / "made")
    summary = Table.read(ours / "summary.csv")
    summary.rows[0]["mean_tail"] += 0.25
    (tmp_path / "made" / "summary.csv").write_text(summary.csv())
    other = subprocess.run([*command, tmp_path / "made"], capture_output=True, text=True, check=False)
    _, said, _, first, *_ = other.stdout.splitlines()
    assert (other.returncode, said) == (1, "summary.csv: mean_tail differs in 1 of 27 rows, by up to 0.25")
    assert re.fullmatch(r"  synthetic FedAvg: 82\.67 ± 0\.95, 91\.0.", first)


def commanded(command: str) -> Sequence[Draft]:
    """The settings that `fedskip run ...` would run."""
    name, verb, *words = shlex.split(command)
    assert (name, verb) == ("fedskip", "run")
    app = typer.Typer()
    app.command()(run)
    told = typer.main.get_command(app)
    given = told.make_context("run", words, resilient_parsing=False).params
    keys = ("methods", "rounds", "seeds", "device")
    plain = {key: given[key] for key in keys if given[key] is not None}
    over = assigned(given["assignments"] or []).over(Tree(plain))
    return build(chosen(given["study"], over, given["scale"])).settings


def test_verdicts_of_the_readme_fit_their_gains() -> None:
    """A gain whose interval lies above 0 is a yes, one that holds 0 not told; a loss has a mean below 0."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Does it hold?")[2]
    table = [
        line.strip("|").split("|") for line in text.partition("\n## ")[0].splitlines() if line[:2] == "| "
    ]
    judged = set[str]()
    for setting, *_, gain, _, verdict in table[1:]:
        found = re.search(r">([+-]?[\d.]+) \(([+-]?[\d.]+) to ([+-]?[\d.]+)\)<", gain)
        mean, low, high = map(float, found.groups() if found else ["nan"] * 3)
        [word] = re.findall(r"^ \*\*([^*]+)\*\*|^ (not told)", verdict)
        said = "".join(word)
        fits = {
            "yes": low > 0,
            "it loses": mean < 0,
            "not told": not low > 0 and not high < 0,
            "in part": not low > 0 and mean > 0,
            "open": True,
        }
        assert fits[said], (setting, said, gain)
        judged.add(said)
    assert judged >= {"yes", "not told", "it loses"}


# --- no number is typed by hand -------------------------------------------------------------------------

# what pages may say without a file of ours: numbers of the paper's settings, and of documents and libraries
SETTINGS = {"0.5", "0.1", "0.3", "0.7", "0.9", "0.01"}
OTHERS = {
    "README.md": {
        "3.11", "4.1",  # Python, plotly.js
    },
    "docs/results/README.md": {
        "1,000",  # samples of an average client of CIFAR-10 with 50
        "20,000", "356,921",  # test windows of SHAKESPEARE: looked at while training, and all
    },
    "docs/claims.md": set[str](),
    "docs/theory.md": {
        "4.08", "0.002", "0.05", "1,500", "2.13",  # of the problems that are posed there, and torch
    },
    "docs/robust.md": set[str](),
    "docs/privacy.md": {"48,846"},  # numbers of the model
}  # fmt: skip


def test_rates_of_estimates_are_those_of_the_benchmark() -> None:
    rates = ROOT / "src" / "fedskip" / "paper" / "rates.csv"
    with rates.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            command = row["from"].removeprefix("fedskip bench ").replace(" --device cuda", "")
            assert loaded()["speed"].measured(f"{command}:ms") == row["ms"]


def test_no_page_is_left_out() -> None:
    """All but performance.md, most of whose times were read from a screen."""
    assert OTHERS.keys() | {"docs/performance.md"} == {
        str(page.relative_to(ROOT)) for page in loaded()["PAGES"]
    }


@pytest.mark.parametrize("page", OTHERS)
def test_no_decimal_number_is_typed_by_hand(page: str) -> None:
    """Numbers of ours are written by the script, between its marks."""
    assert not typed((ROOT / page).read_text(encoding="utf-8")) - SETTINGS - OTHERS[page]


def test_typed_numbers_are_found() -> None:
    text = (
        "gains 1.53 points, not <!--=gain:x-->2.15<!--/--> or `lr=3.5`, as [4.4](page-5.5.md) has 1,200 times"
    )
    assert typed(text) == {"1.53", "4.4", "1,200"}


def typed(text: str) -> set[str]:
    """The decimal numbers that stand in sentences and tables of a page, outside of marks and code."""
    for pattern in (
        r"<!-- numbers: \S+ -->.*?<!-- /numbers -->", r"<!--=\S+?-->.*?<!--/-->", r"```.*?```", r"`[^`\n]*`",
        r"\]\([^)]*\)",
    ):  # fmt: skip
        text = re.sub(pattern, "", text, flags=re.DOTALL)
    return {*re.findall(r"\d+\.\d+|\d{1,3}(?:,\d{3})+", text)}
