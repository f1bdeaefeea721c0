"""Tables behind the verdicts of claims.md, with intervals over seeds, and Table IV over all columns."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from rich.text import Text

from fedskip.federation.server import draw_cohort
from fedskip.paper.beside import METRIC, SKIPPING, apart, gain, published_gain, shown_gain
from fedskip.paper.claims import EARLY, at, fewest, tails, uneven, uneven_sheet
from fedskip.paper.columns import BASELINE, Column, settings
from fedskip.paper.pictures import beta, fig1_columns
from fedskip.paper.remarks import labelled
from fedskip.paper.table4 import reached
from fedskip.records.history import TAIL
from fedskip.records.table import Row, Table
from fedskip.report import units
from fedskip.report.results import Results, first_at
from fedskip.report.sheet import Sheet
from fedskip.report.statistics import Difference, difference
from visits import single

FIXED = "FedSkip-5"  # the period of the headline: that of the first examples, not picked by results
FALL = 0.15  # of accuracy, from one merge to the next: a setback
Seeds = dict[int, float | None]


def headline(columns: Sequence[Column], kept: Sequence[Results]) -> Sheet:
    """One period against FedAvg, by all three scores, and where the paper's gain lies."""
    rows = []
    for column in columns:
        runs = column.runs(kept)
        if runs[BASELINE] and runs[FIXED]:
            of = len(runs[BASELINE])
            gains = [apart(runs[FIXED], runs[BASELINE], score) for score in ("best", "last", "mean_tail")]
            ours = [shown_gain(one, of) for one in gains]
            cells = [str(of), *ours, published_gain(column, FIXED), _beside(column, gains)]
            rows.append([Text(column.name), *map(Text, cells)])
    headers = [
        "column",
        "seeds",
        "gain in best",
        "in last",
        "in tail",
        "paper's gain",
        "beside our intervals",
    ]
    return Sheet(f"{FIXED} against {BASELINE}", headers, 1, rows)


def _beside(column: Column, gains: Sequence[Difference]) -> str:
    """Where the paper's gain lies, seen from intervals of ours; nothing where one seed has none."""
    one, base = column.published[FIXED], column.published[BASELINE]
    assert one is not None
    assert base is not None
    lies = [
        "above" if one - base > found.high else "below" if one - base < found.low else "inside"
        for found in gains
        if found.low is not None and found.high is not None
    ]
    return ", ".join(dict.fromkeys(lies))


def fig1_sheet(kept: Sequence[Results]) -> Sheet:
    """FedAvg's accuracy and drifts, by beta."""
    sheet = uneven_sheet(fig1_columns(), kept)
    names = {column.name: beta(column) for column in uneven(fig1_columns(), kept)}
    rows = []
    for name, row in zip(names, sheet.rows, strict=True):
        rows.append([Text(row[0].plain.replace(name, names[name], 1)), *row[1:]])
    return Sheet(sheet.title, ["β", *sheet.headers[1:]], sheet.names, rows, sheet.note)


def uneven_gaps(kept: Sequence[Results]) -> Sheet:
    """How FedAvg's accuracy and drifts at each beta differ from those of even data, paired by seed."""
    *columns, even = uneven(fig1_columns(), kept)
    assert beta(even) == "IID"
    keys = ("test_accuracy", "drift_mean", "drift_broadcast")
    held = {column: column.results(kept) for column in (*columns, even)}
    level = [_fedavgs(held[even], key) for key in keys]
    rows = []
    for column in columns:
        found = [difference(_fedavgs(held[column], k), base) for k, base in zip(keys, level, strict=True)]
        cells = [str(found[0].seeds), points(found[0]), *(plain(one, 1) for one in found[1:])]
        rows.append([Text(beta(column)), *map(Text, cells)])
    headers = ["β", "seeds", "accuracy, less IID's", "drift from the mean", "drift from the model sent out"]
    return Sheet(f"{BASELINE} against IID, over the last {TAIL:.0%} of the rounds", headers, 1, rows)


def uneven_steps(kept: Sequence[Results]) -> Sheet:
    """The same from each beta to the next larger one."""
    columns = [*uneven(fig1_columns(), kept)]
    keys, rows = ("test_accuracy", "drift_mean", "drift_broadcast"), []
    for column, larger in pairwise(columns):
        found = [difference(*(_fedavgs(one.results(kept), k) for one in (larger, column))) for k in keys]
        cells = [str(found[0].seeds), points(found[0]), *(plain(one, 1) for one in found[1:])]
        rows.append([Text(f"{beta(column)} to {beta(larger)}"), *map(Text, cells)])
    headers = ["β", "seeds", "accuracy", "drift from the mean", "drift from the model sent out"]
    return Sheet(f"{BASELINE} from β to β, over the last {TAIL:.0%} of the rounds", headers, 1, rows)


def early_gaps(
    columns: Sequence[Column], kept: Sequence[Results], rounds: Sequence[int] = EARLY
) -> Sheet:  # fmt: skip
    """How far FedSkip is from FedAvg at the last merge up to some early rounds, paired by seed."""
    rows = []
    for column in columns:
        held = column.results(kept)
        labels = [name for name in column.methods if name.startswith("FedSkip")]
        for label in labels if histories(held, BASELINE) else ():
            gaps = [difference(early(held, label, n), early(held, BASELINE, n)) for n in rounds]
            name = labelled(column, column.runs(kept)) if label == labels[0] else ""
            rows.append([Text(name), Text(label), *(Text(points(gap)) for gap in gaps)])
    headers = ["column", "method", *(f"round {n}" for n in rounds)]
    return Sheet(f"accuracy less {BASELINE}'s, in points", headers, 2, rows)


def merge_gaps(columns: Sequence[Column], kept: Sequence[Results], score: str = "best") -> Sheet:
    """Merges until FedAvg's best or last, less those of the rival that needs the fewest, paired by seed."""
    rows = []
    for column in columns:
        found = fewest_merges(column, column.results(kept), score)
        if found is None:
            continue
        rival, there = found
        mean = fmean(filter(None, there[rival].values()))
        cells = [str(len(there[rival])), f"{rival} ({mean:.0f})"]
        for name in SKIPPING:
            apart = difference(there[name], there[rival]) if name in there else None
            cells.append(plain(apart, 0) if apart else units.NONE)
        rows.append([Text(column.name), *map(Text, cells)])
    return Sheet("merges", ["column", "seeds", "fewest without skipping", *SKIPPING], 1, rows)


def rival_gaps(columns: Sequence[Column], kept: Sequence[Results], score: str = "mean_tail") -> Sheet:
    """One period against every rival, paired by seed."""
    rows, rivals = [], ("FedProx", "SCAFFOLD", "MOON", "FedNova", "FedDyn")
    for column in columns:
        runs = column.runs(kept)
        mine, of = runs[FIXED], len(runs[FIXED])
        cells = [gain(mine, runs[name], score, of) if runs.get(name) else "not run" for name in rivals]
        rows.append([Text(column.name), Text(str(of)), *map(Text, cells)])
    return Sheet(f"{FIXED} less its rivals", ["column", "seeds", *rivals], 1, rows)


def reach_table(columns: Mapping[str, Column], kept: Sequence[Results], score: str) -> Sheet:
    """Table IV over all columns: merges / rounds / speed-up until FedAvg's best, or its last."""
    found = {name: reached(column, kept, score) for name, column in columns.items()}
    found = {name: table for name, table in found.items() if table}
    methods = list(dict.fromkeys(method for name in found for method in columns[name].methods))
    rows = []
    for method in methods:
        cells = []
        for name, table in found.items():
            known = [reach_cell(row) for row in table.where(method=method)]
            cells += known or ["not run" if method in columns[name].methods else ""]
        rows.append([Text(method), *map(Text, cells)])
    headers = [labelled(columns[name], columns[name].runs(kept)) for name in found]
    return Sheet(f"to {BASELINE}'s {score}", ["method", *headers], 1, rows)


def reach_cell(row: Mapping[str, float]) -> str:
    """As the paper prints it; where some seeds do not get there, how many do."""
    if row["reached"] < row["seeds"]:
        lost = f", {row['diverged']} diverged" if row["diverged"] else ""
        return f"{row['reached']} of {row['seeds']} seed{'s' * (row['seeds'] > 1)}{lost}"
    return f"{row['merges']:.0f} / {row['rounds']:.0f} / {row['of_rounds'] / row['rounds']:.2f}×"


def round_places(columns: Mapping[str, Column], kept: Sequence[Results]) -> Sheet:
    """The FedSkip that is first where FedAvg is at its best, and who is before it, by rounds and by bytes.

    Of methods that get there at every seed.
    """
    rows = []
    for column in columns.values():
        there = [row for row in reached(column, kept) if row["reached"] == row["seeds"] > 0]
        cells = [_place(there, key) for key in ("rounds", "bytes")]
        rows.append([Text(labelled(column, column.runs(kept))), *map(Text, cells)])
    return Sheet("places", ["column", "by rounds", "by bytes"], 1, rows)


def _place(there: Sequence[Row], key: str) -> str:
    form = units.size if key == "bytes" else "{:.0f}".format
    ranked = sorted(there, key=lambda row: row[key])
    names = [str(row["method"]) for row in ranked]
    place = next((i for i, name in enumerate(names) if name in SKIPPING), None)
    if place is None:
        return "no FedSkip gets there"
    said = [f"{row['method']} {form(row[key])}" for row in ranked[: place + 1]]
    return f"{place + 1}: {', '.join(said)}"


def merges(held: Results | None, method: str, score: str = "best") -> Seeds:
    """Merges until FedAvg's best or its last at the same seed; None where it is not reached.

    Where FedAvg diverged there is nothing to reach.
    """
    if held is None:
        return {}
    goals, runs = held.scores(held.compared[0].name, BASELINE, score), histories(held, method)
    found = dict[int, float | None]()
    for seed in histories(held, BASELINE):
        if (goal := goals[seed]) is not None:
            first = first_at(runs.get(seed, ()), goal)
            found[seed] = first["merges"] if first else None
    return found


def fewest_merges(column: Column, held: Results | None, score: str) -> tuple[str, dict[str, Seeds]] | None:
    """Of the methods that get there at every seed: the rival that needs the fewest, and what each needs."""
    needed = {name: merges(held, name, score) for name in column.methods}
    there = {name: some for name, some in needed.items() if some and None not in some.values()}
    means = {name: fmean(filter(None, some.values())) for name, some in there.items()}
    rival = fewest({name: mean for name, mean in means.items() if name not in SKIPPING})
    return None if rival is None else (rival, there)


def setbacks(kept: Sequence[Results]) -> Sheet:
    """Where a client has one class: periods in which a slot went on from it before it merged, and all others.

    How many of them end lower, and the largest drift; of runs that were not lost.
    """
    rows = []
    for name in ("table3/cifar10-p50", "table3/cifar10-p100"):
        column = settings()[name]
        held, keys = column.results(kept), column.draft.keys
        for method in SKIPPING:
            for run in column.runs(kept)[method]:
                alone = single(keys["clients"], keys["partition"]["beta"], run["seed"])
                if not alone or run["diverged"] or column.at_chance(run):
                    continue
                periods: dict[bool, list[tuple[Row, Row]]] = {True: [], False: []}
                for before, now in pairwise(histories(held, method)[run["seed"]]):
                    way = range(before["round"], now["round"] - 1)  # 0-based: all rounds but the last
                    met = any({*alone} & {*_cohort(keys, run["seed"], round)} for round in way)
                    periods[met].append((before, now))
                cells = [_lower(periods[met]) for met in (True, False)]
                rows.append([Text(column.name), Text(method), *map(Text, cells)])
    headers = ["column", "method", "a slot goes on from the client with one class", "none does"]
    return Sheet("periods that end lower / largest drift", headers, 2, rows)


def _cohort(keys: Mapping[str, Any], seed: int, round: int) -> list[int]:
    policy = keys.get("cohort_policy", "uniform")
    return draw_cohort(policy, seed, round, keys["clients"], keys["cohort"]).tolist()


def _lower(periods: Sequence[tuple[Row, Row]]) -> str:
    falls = sum(before["test_accuracy"] - now["test_accuracy"] > FALL for before, now in periods)
    return f"{falls} of {len(periods)} / {max(now['drift_mean'] for _, now in periods):,.0f}"


def histories(held: Results | None, method: str) -> dict[int, Table]:
    """The histories of a method in a column, by seed; nothing where none were kept."""
    if held is None or method not in held.labels():
        return {}
    runs = {run[0]["seed"]: run for run in held.histories(held.compared[0].name, method)}
    return dict(sorted(runs.items()))


def _fedavgs(held: Results | None, key: str) -> Seeds:
    """The mean of FedAvg's `key` over the last rounds, by seed."""
    assert held is not None
    return tails(held, BASELINE, key)


def early(held: Results | None, method: str, rounds: int) -> Seeds:
    """The accuracy at the last merge up to a round, by seed; None where a run did not come so far."""
    assert held is not None
    runs = {run["seed"]: run for run in held.summary.where(method=method)}
    return {seed: at(runs[seed], some, rounds) for seed, some in histories(held, method).items()}


def points(found: Difference) -> str:
    """In points of accuracy with Student's interval, and how many seeds where some have nothing to compare.

    >>> points(Difference(2, -0.08, -0.1, -0.06, 0, 3, missing=1))
    '-8.00 (-10.00 to -6.00), 2 of 3 seeds'
    """
    return _shown(found, lambda value: units.difference(value, METRIC))


def plain(found: Difference, digits: int) -> str:
    """The same for numbers as they are."""
    return _shown(found, lambda value: f"{value:+.{digits}f}")


def _shown(found: Difference, form: Callable[[float], str]) -> str:
    if found.mean is None:
        return units.NONE
    said = form(found.mean)
    if found.low is not None and found.high is not None:
        said += f" ({form(found.low)} to {form(found.high)})"
    total = found.seeds + found.missing + found.unmatched
    return f"{said}, {found.seeds} of {total} seeds" if found.seeds < total else said
