"""The values of a hyper-parameter that were tried, and the one that the validation split chooses."""

from collections.abc import Sequence

from rich.text import Text

from fedskip.paper.beside import gain, in_short_batches, scores
from fedskip.paper.columns import BASELINE, Column
from fedskip.paper.remarks import remarks
from fedskip.paper.strongest import shared_seeds, strongest
from fedskip.records.table import Row
from fedskip.report import units
from fedskip.report.results import Results
from fedskip.report.sheet import BEST, Sheet

STUDY = "tune"


def tune_sheet(column: Column, studies: Sequence[Results]) -> Sheet:
    """Each value's best validation score and the test score in that round, beside FedAvg's."""
    runs = _validated(column, studies)
    tried = {name: rows for name, rows in runs.items() if name != BASELINE}
    chosen = strongest(tried, "validated")
    rows, of = [], column.seeds(runs)
    for name, found in runs.items():
        cells = [scores(found, score) for score in ("validated", "best_val", "best")]
        cells = cells if found else ["not run", "", ""]
        beside = gain(found, runs[BASELINE], "best_val") if found and name != BASELINE else ""
        said = ", ".join(remarks(column, found, of))
        rows.append(
            [Text(name), *(Text(text, BEST if name == chosen else "") for text in (*cells, beside, said))]
        )
    headers = ["method", "validation", "test at best validation", "best test", f"gain over {BASELINE}", ""]
    shown = [i for i, _ in enumerate(headers) if i < 5 or any(row[i].plain for row in rows)]
    cut = [[row[i] for i in shown] for row in rows]
    notes = [*_chosen(chosen, len(shared_seeds(tried, "validated"))), *in_short_batches(column, studies)]
    return Sheet(f"{column.table}/{column.name}", [headers[i] for i in shown], 1, cut, " ".join(notes))


def _chosen(name: str | None, seeds: int) -> list[str]:
    """A sentence on the value that was chosen, if one was."""
    if name is None:
        return []
    return [f"The validation split chooses {name}, by the mean over {units.count(seeds, 'seed')}."]


def _validated(column: Column, studies: Sequence[Results]) -> dict[str, list[Row]]:
    """The runs of each method that have histories, with the best of their validation scores."""
    runs: dict[str, list[Row]] = {name: [] for name in column.methods}
    results = column.results(studies)
    if results is None:
        return runs
    for name in results.labels():
        for history in results.histories(results.compared[0].name, name):
            known = [row["val_accuracy"] for row in history if row["val_accuracy"] is not None]
            [run] = results.summary.where(run=history[0]["run"])
            runs[name].append(run | {"validated": max(known, default=None)})
    return runs
