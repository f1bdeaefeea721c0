"""Write the numbers on the pages below from the CSV files beside this one.

    python docs/results/write.py          # after new results were added
    python docs/results/write.py --check  # says whether the pages are up to date, and changes nothing

A table stands between `<!-- numbers: NAME -->` and `<!-- /numbers -->`. NAME is a column of the paper, such
as `table2/cifar10-beta0.5`, that column in Table IV as `table4:table2/cifar10-beta0.5`, or a name of
`written`. A number in a sentence is `<!--=NAME-->12.3<!--/-->`, with a name of prose.py. Pictures are drawn,
too; they are checked where matplotlib has the version that drew them.
"""

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import evidence
import matplotlib
import poison
import prose
import quickstart
import runs
import speed
import theory
import verdicts
from matplotlib.axes import Axes

import audit
import nova
import visits
from fedskip.paper.beside import gains_figure, gains_sheet
from fedskip.paper.claims import early_sheet, reach_sheet, slots_sheet
from fedskip.paper.clients import noted
from fedskip.paper.columns import BASELINE, TABLES, Column, races, settings
from fedskip.paper.compose import compose_figure
from fedskip.paper.diverged import diverged_sheet
from fedskip.paper.overview import missing, sheet_of
from fedskip.paper.pictures import fig1, fig5, fig5_sheet
from fedskip.paper.table4 import target_sheet
from fedskip.report.canvas import drawn
from fedskip.report.results import Results
from fedskip.report.sheet import Sheet

HERE = Path(__file__).parent
DOCS, ROOT = HERE.parent, HERE.parent.parent
PAGES = (
    HERE / "README.md",
    DOCS / "claims.md",
    DOCS / "theory.md",
    DOCS / "robust.md",
    DOCS / "privacy.md",
    DOCS / "performance.md",
    ROOT / "README.md",
)
CURVES = (
    "table2",
    "table3",
    "clip",
    "cifar100cnn",
    "resnet50",
    "longer",
    "schedule",
)  # studies whose curves are drawn
OTHERS = (
    "sigmoid/synthetic-linear",
    "clip/cifar10-p50-clip10",
    "clip/cifar10-p100-clip10",
    "fig5/p10-beta0.1",
)  # beside the paper's columns, where gains are told
WARM = (20, 50, 60, 80, 100)  # rounds in which warm-ups are looked at
BLOCK = re.compile(r"(<!-- numbers: (\S+) -->\n)(.*?)(<!-- /numbers -->)", re.DOTALL)
INLINE = re.compile(r"(<!--=(\S+?)-->)(.*?)(<!--/-->)")


def studies() -> list[Results]:
    """All that was run for the paper, and is kept here; the quickstart is a short version of some of it."""
    folders = [file.parent for file in sorted(HERE.glob("*/study.yaml"))]
    found = [Results.read(folder) for folder in folders if folder != quickstart.FOLDER]
    return [noted(study, HERE / "clients" / "partitions.csv") for study in found]


def whole(kept: list[Results]) -> dict[str, Column]:
    """The columns that were trained for all their rounds: what was cut short has a section of its own."""
    return {
        name: column
        for name, column in races().items()
        if any(run["rounds"] >= column.rounds for run in column.runs(kept)[BASELINE])
    }


def written(text: str, kept: list[Results]) -> str:
    """A page with its numbers as the files have them."""
    trained = list(whole(kept).values())
    sheets: dict[str, Callable[[], Sheet]] = theory.SHEETS | {
        "gains": lambda: gains_sheet(trained, kept),
        "told": lambda: verdicts.told_sheet(whole(kept) | {name: settings()[name] for name in OTHERS}, kept),
        "gains:best": lambda: gains_sheet(trained, kept, "best"),
        "gains:last": lambda: gains_sheet(trained, kept, "last"),
        "headline": lambda: evidence.headline(trained, kept),
        "quickstart": quickstart.quickstart_sheet,
        "early": lambda: early_sheet(trained, kept),
        "setbacks": lambda: evidence.setbacks(kept),
        "gradients": visits.gradients_sheet,
        "early:gaps": lambda: evidence.early_gaps(trained, kept),
        "early:warm-ups": lambda: evidence.early_gaps(
            [settings()[f"schedule/{name}"] for name in ("synthetic", "femnist")], kept, WARM
        ),
        "fig1": lambda: evidence.fig1_sheet(kept),
        "fig1:gaps": lambda: evidence.uneven_gaps(kept),
        "fig1:steps": lambda: evidence.uneven_steps(kept),
        "fig5": lambda: fig5_sheet(kept),
        "nova": lambda: nova.nova_sheet(kept),
        "diverged": lambda: diverged_sheet(kept, HERE / "diverged" / "diverged.csv"),
        "audit": audit.audit_sheet,
        "poison": lambda: poison.poison_sheet(kept),
        "not-run": lambda: missing(kept),
        "reach": lambda: reach_sheet(trained, kept),
        "reach:places": lambda: evidence.round_places(whole(kept), kept),
        "reach:gaps": lambda: evidence.merge_gaps(trained, kept),
        "reach:gaps-last": lambda: evidence.merge_gaps(trained, kept, "last"),
        "rivals": lambda: evidence.rival_gaps(trained, kept),
        "table4:best": lambda: evidence.reach_table(whole(kept), kept, "best"),
        "table4:last": lambda: evidence.reach_table(whole(kept), kept, "last"),
        "speed": speed.speed_sheet,
        "pfl": speed.pfl_sheet,
        "slots": lambda: slots_sheet([c for c in settings().values() if c.table == "slots"], kept),
    }
    for name, column in settings().items():
        sheets[name] = lambda column=column: sheet_of(column, kept)
    for name in races():
        sheets[f"table4:{name}"] = lambda name=name: target_sheet(name, kept)

    def block(found: re.Match[str]) -> str:
        if found[2] in ("runs", "again", "computed"):
            return f"{found[1]}{runs.table(found[2])}{found[4]}"
        return f"{found[1]}{sheets[found[2]]().markdown()}{found[4]}"

    text = BLOCK.sub(block, text)
    return INLINE.sub(lambda found: f"{found[1]}{prose.value(found[2], kept)}{found[4]}", text)


def pictures(kept: list[Results]) -> dict[str, Callable[[], Axes]]:
    """What skipping gains, figures, single visits, theory, curves of columns with histories, by NAME.svg."""
    found: dict[str, Callable[[], Axes]] = theory.PICTURES | {
        "gains": lambda: gains_figure(list(whole(kept).values()), kept),
        "fig1": lambda: fig1(kept),
        "fig2": lambda: routing(kept),
        "fig5": lambda: fig5(kept),
        "gradients": visits.gradients,
        "told": visits.told,
    }
    page = PAGES[0].read_text(encoding="utf-8")
    for name in ("compose/cifar10-beta0.5", "compose/synthetic"):
        found[name.replace("/", "-")] = partial(compose_figure, settings()[name], kept)
    for name, column in settings().items():
        shown = f"<!-- numbers: {name} -->" in page
        if shown and column.table in CURVES and (results := column.results(kept)) is not None:
            own = column.table not in TABLES  # other columns of the tables have the same names
            found[name.replace("/", "-") if own else column.name] = results.plot.curves
    return found


def routing(kept: list[Results]) -> Axes:
    """The way of the models in a run of CIFAR-10 with ten clients: few enough to see."""
    [study] = [study for study in kept if study.out.name == "cifar10-p10-beta0.5-seed0"]
    return study.plot.routing(study.settings[0].name, "FedSkip-3", seed=0)


def redrawn(kept: list[Results], check: bool) -> dict[Path, bytes]:
    """Pictures that are not what the files say; in a check not those that another matplotlib drew."""
    found = {}
    for name, figure in pictures(kept).items():
        file = HERE / f"{name}.svg"
        before = file.read_bytes() if file.exists() else b""
        other = before and f"Matplotlib v{matplotlib.__version__}," not in before.decode()
        if check and other:
            continue
        if (new := drawn(figure(), "svg")) != before:
            found[file] = new
    return found


def main() -> int:
    kept, check = studies(), "--check" in sys.argv
    stale: dict[Path, bytes] = redrawn(kept, check)
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (new := written(text, kept)) != text:
            stale[page] = new.encode()
    for file, content in stale.items():
        if not check:
            file.write_bytes(content)
        print(f"{file}: {'is not what the files say' if check else 'written'}")
    return int(bool(stale) and check)


if __name__ == "__main__":
    raise SystemExit(main())
