"""Write the numbers on the pages below from the CSV files beside this one.

    python docs/results/write.py          # after new results were added
    python docs/results/write.py --check  # says whether the pages are up to date, and changes nothing

A table stands between `<!-- numbers: NAME -->` and `<!-- /numbers -->`. NAME is a column of the paper, such
as `table2/cifar10-beta0.5`, that column in Table IV as `table4:table2/cifar10-beta0.5`, or a name of
`written`. A number in a sentence is `<!--=NAME-->12.3<!--/-->`, with a name of prose.py. Pictures are drawn,
too, and not checked.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import poison
import prose
import theory

import audit
from fedskip.paper.beside import gains_figure, gains_sheet
from fedskip.paper.claims import early_sheet, reach_sheet, slots_sheet, uneven_sheet
from fedskip.paper.clients import noted
from fedskip.paper.columns import races, settings
from fedskip.paper.compose import compose_sheet
from fedskip.paper.diverged import diverged_sheet
from fedskip.paper.overview import missing, sheet_of
from fedskip.paper.pictures import fig1, fig1_columns, fig5, fig5_sheet
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
    ROOT / "README.md",
)
BLOCK = re.compile(r"(<!-- numbers: (\S+) -->\n)(.*?)(<!-- /numbers -->)", re.DOTALL)
INLINE = re.compile(r"(<!--=(\S+?)-->)(.*?)(<!--/-->)")


def studies() -> list[Results]:
    """All that was run, and is kept here."""
    found = [Results.read(file.parent) for file in sorted(HERE.glob("*/study.yaml"))]
    return [noted(study, HERE / "clients" / "partitions.csv") for study in found]


def written(text: str, kept: list[Results]) -> str:
    """A page with its numbers as the files have them."""
    trained = list(races().values())
    sheets: dict[str, Callable[[], Sheet]] = theory.SHEETS | {
        "gains": lambda: gains_sheet(trained, kept),
        "early": lambda: early_sheet(trained, kept),
        "fig1": lambda: uneven_sheet(fig1_columns(), kept),
        "fig5": lambda: fig5_sheet(kept),
        "compose": lambda: compose_sheet(kept),
        "diverged": lambda: diverged_sheet(kept, HERE / "diverged" / "diverged.csv"),
        "audit": audit.audit_sheet,
        "poison": lambda: poison.poison_sheet(kept),
        "not-run": lambda: missing(kept),
        "reach": lambda: reach_sheet(trained, kept),
        "slots": lambda: slots_sheet([c for c in settings().values() if c.table == "slots"], kept),
    }
    for name, column in settings().items():
        sheets[name] = lambda column=column: sheet_of(column, kept)
    for name in races():
        sheets[f"table4:{name}"] = lambda name=name: target_sheet(name, kept)

    def block(found: re.Match[str]) -> str:
        sheet = sheets[found[2]]()
        note = f"\n{sheet.note}\n" if sheet.note else ""
        return f"{found[1]}{sheet.markdown()}{note}{found[4]}"

    text = BLOCK.sub(block, text)
    return INLINE.sub(lambda found: f"{found[1]}{prose.value(found[2], kept)}{found[4]}", text)


def draw(kept: list[Results]) -> None:
    """What skipping gains, Figures 1 and 5, and curves of the columns that have histories, as NAME.svg."""
    for name, figure in (("fig1", fig1), ("fig5", fig5)):
        (HERE / f"{name}.svg").write_bytes(drawn(figure(kept), "svg"))
    (HERE / "gains.svg").write_bytes(drawn(gains_figure(list(races().values()), kept), "svg"))
    for column in races().values():
        results = column.results(kept)
        if results is not None:
            (HERE / f"{column.name}.svg").write_bytes(drawn(results.plot.curves(), "svg"))


def main() -> int:
    kept, stale = studies(), []
    if "--check" not in sys.argv:
        draw(kept)
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        new = written(text, kept)
        if new != text:
            stale.append(page)
            if "--check" not in sys.argv:
                page.write_text(new, encoding="utf-8")
    for page in stale:
        print(f"{page}: {'is not what the files say' if '--check' in sys.argv else 'written'}")
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    raise SystemExit(main())
