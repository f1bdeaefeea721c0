"""The tables of the pages and of `python -m reproduction status`, as DataFrames of text.

Accuracies are in percent, mean ± standard deviation over seeds; gains are in points with 95 % intervals.
Where runs of a method diverged or ended at chance, its seeds stand one by one, without a mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isnan

import pandas as pd

from reproduction.columns import (
    BASELINE,
    HERE,
    PRIMARY,
    SKIPPING,
    TABLE1,
    Column,
    Studies,
    columns,
    compared,
    published,
)  # fmt: skip
from reproduction.statistics import (
    Difference,
    compare,
    difference,
    primary_tests,
    scores,
)  # fmt: skip

NONE = "–"
TAIL = 0.1  # the last share of the rounds
EARLY = (10, 20, 50)
FIGURE1 = [f"fig1/beta{beta}" for beta in (0.1, 0.3, 0.5, 0.7, 0.9)] + [
    "table2/cifar10-beta1",
    "table2/cifar10-iid",
]
FIGURE5 = [f"fig5/p{clients}-beta{beta}" for beta in (0.5, 0.1) for clients in (10, 50, 100)]


# --- cells ------------------------------------------------------------------------------------------


def number(value: float, digits: int = 2, sign: bool = False) -> str:
    """A number of a cell; nothing there is a dash, and no zero has a sign.

    >>> number(1.234), number(-0.001, sign=True), number(2.0, sign=True), number(float("nan"))
    ('1.23', '0.00', '+2.00', '–')
    """
    if isnan(value):
        return NONE
    if abs(value) < 0.5 * 10**-digits:
        return f"{0:.{digits}f}"
    return f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"


def spread(values: pd.Series, digits: int = 2) -> str:
    """Mean ± standard deviation over seeds."""
    mean = number(values.mean(), digits)
    return mean if len(values) == 1 else f"{mean} ± {number(values.std(), digits)}"


def cell(runs: pd.DataFrame, method: str, score: str = "best", digits: int = 2) -> str:
    """A method's accuracy over seeds; seed by seed where a run failed."""
    values = scores(runs, method, score)
    if values.empty:
        return "not run"
    if not values.isna().any():
        return spread(values, digits)
    diverged = runs[runs["method"] == method].set_index("seed")["diverged"]
    why = pd.Series({seed: "diverged" if diverged[seed] else "at chance" for seed in values.index})
    if values.isna().all():
        return ", ".join(f"{count} {words}" for words, count in why.value_counts().items())
    cells = {seed: why[seed] if isnan(one) else number(one, 1) for seed, one in values.items()}
    return ", ".join(cells.values())


def gained(gain: Difference) -> str:
    """A mean difference and its interval."""
    if isnan(gain.mean) or isnan(gain.low):
        return number(gain.mean, sign=True)
    return f"{number(gain.mean, sign=True)} ({number(gain.low, sign=True)} to {number(gain.high, sign=True)})"


def seeds_of(runs: pd.DataFrame, column: Column) -> str:
    """How many seeds the methods that were run have, as `3`, `3 to 5` or `1 of 3`."""
    counts = sorted(set(runs.groupby("method").size()))
    if not counts:
        return "0"
    words = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    return words if counts[-1] >= len(column.seeds) else f"{words} of {len(column.seeds)}"


def markdown(table: pd.DataFrame) -> str:
    """A table in Markdown; what is not the first column is set to the right."""

    def line(cells: Iterable[object]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

    rules = ["---", *["---:"] * (len(table.columns) - 1)]
    return "\n".join([line(table.columns), line(rules), *map(line, table.itertuples(index=False))])


# --- the paper's tables -----------------------------------------------------------------------------


def headline(studies: Studies) -> pd.DataFrame:
    """The paper's 13 columns: FedSkip-5 against FedAvg, the paper's gain, and the verdict."""
    rows = []
    for name, row in primary_tests(studies).iterrows():
        column = compared()[str(name)]
        rows.append({
            "column": column.title,
            "seeds": seeds_of(column.runs(studies), column),
            "gain, best accuracy": gained(row["best_gain"]),
            "gain, final accuracy": gained(row["tail_gain"]),
            "paper's gain": number(row["paper_gain"], sign=True),
            "p after Holm": number(row["p"], 3),
            "verdict": row["verdict"],
        })  # fmt: skip
    return pd.DataFrame(rows)


def strongest(studies: Studies) -> pd.DataFrame:
    """The paper's 13 columns by best accuracy: FedAvg, the best baseline, FedSkip-5 and the best FedSkip.

    Each cell has ours, then the paper's; the best baseline and the best period are chosen by these results.
    """
    rows = []
    for column in compared().values():
        ours = compare(column, studies)["best"]
        theirs = pd.Series(column.published)
        baselines = [one for one in column.methods if one not in (*SKIPPING, BASELINE)]
        row = {"column": column.title}
        for title, among in (
            ("FedAvg", [BASELINE]),
            ("best baseline", baselines),
            ("FedSkip-5", [PRIMARY]),
            ("best FedSkip", list(SKIPPING)),
        ):
            row[f"{title}: ours"] = _highest(ours, among)
            row[f"{title}: paper"] = _highest(theirs, among)
        rows.append(row)
    return pd.DataFrame(rows)


def _highest(means: pd.Series, among: Sequence[str]) -> str:
    known = means.reindex(among).astype(float).dropna()
    if known.empty:
        return NONE
    return number(known.max()) + (f" {known.idxmax()}" if len(among) > 1 else "")


def column_table(name: str, studies: Studies) -> pd.DataFrame:
    """All methods of a column beside the paper: accuracies, and gains over FedAvg."""
    column = columns()[name]
    runs, found = column.runs(studies), compare(columns()[name], studies)
    table = pd.DataFrame({
        "method": found.index,
        "seeds": found["seeds"],
        "best": [cell(runs, method) for method in found.index],
        "final": [cell(runs, method, "tail") for method in found.index],
        "paper": [_paper(column, method) for method in found.index],
        "gain, best": [gained(gain) for gain in found["best_gain"]],
        "gain, final": [gained(gain) for gain in found["tail_gain"]],
        "paper's gain": [number(gain, sign=True) for gain in found["paper_gain"]],
        "verdict": found["verdict"],
    })  # fmt: skip
    if BASELINE not in found.index:
        return table[["method", "seeds", "best", "final", "paper"]]
    base = table["method"] == BASELINE
    table.loc[base, ["gain, best", "gain, final", "paper's gain"]] = ""
    return table if column.published else table.drop(columns=["paper", "paper's gain", "verdict"])


def _paper(column: Column, method: str) -> str:
    if method not in column.published:
        return ""
    score = column.published[method]
    return "\\*" if isnan(score) else number(score)


def table1(studies: Studies) -> pd.DataFrame:
    """Table I: models that stay at home, and one that travels from client to client."""
    rows, method = [], "FedAvg-unmerged"
    for name, column in columns().items():
        if name.startswith(TABLE1):
            runs = column.runs(studies)
            rows.append({"column": name, "seeds": len(runs), "best": cell(runs, method),
                         "last": cell(runs, method, "last"),
                         "paper": _paper(column, method) or "not there"})  # fmt: skip
    return pd.DataFrame(rows)


def travelling(studies: Studies) -> pd.DataFrame:
    """Table I: what the travelling model gains over those that stay at home."""
    rows = []
    for data in ("cifar10", "shakespeare"):
        away, home = columns()[f"table1/{data}-cross"], columns()[f"table1/{data}-local"]
        row = {"data": data}
        for score in ("best", "last"):
            mine, theirs = (
                scores(one.runs(studies), "FedAvg-unmerged", score) for one in (away, home)
            )
            row[f"gain, {score}"] = gained(difference(mine, theirs))
        paper = [published()[one.name]["FedAvg-unmerged"] for one in (away, home)]
        rows.append(row | {"paper's gain": number(paper[0] - paper[1], sign=True)})
    return pd.DataFrame(rows)


def table4(studies: Studies, names: Iterable[str] = (), score: str = "best") -> pd.DataFrame:
    """Table IV: merges / rounds until FedAvg's accuracy at the same seed is reached, mean over seeds.

    Where some seeds do not get there, how many do.
    """
    shown = list(names) or [name for name in compared() if len(compared()[name].history(studies))]
    methods = dict.fromkeys(method for name in shown for method in columns()[name].methods)
    table = pd.DataFrame({"method": list(methods)})
    for name in shown:
        found = reached(columns()[name], studies, score)
        table[name] = [_reached(found, method) for method in methods]
    return table


def _reached(found: pd.DataFrame, method: str) -> str:
    mine = found[found["method"] == method]
    there = mine.dropna(subset="round")
    if mine.empty or len(there) < len(mine):
        return f"{len(there)} of {len(mine)} seeds" if len(mine) else "not run"
    return f"{there['merges'].mean():.0f} / {there['round'].mean():.0f}"


def reached(column: Column, studies: Studies, score: str = "best") -> pd.DataFrame:
    """For each method and seed, the round, merges and bytes at which it first has FedAvg's accuracy.

    NaN where it never gets there. Seeds at which FedAvg diverged set no goal.
    """
    runs, history = column.runs(studies), column.history(studies)
    goals = scores(runs, BASELINE, score).dropna()
    if history.empty:
        return pd.DataFrame(columns=["method", "seed", "round", "merges", "bytes"])
    history = history.assign(bytes=history["bytes_down"] + history["bytes_up"])
    there = history[history["test_accuracy"] >= history["seed"].map(goals)]
    first = there.sort_values("round").drop_duplicates(["method", "seed"])
    wanted = runs[runs["seed"].isin(goals.index)][["method", "seed"]]
    return wanted.merge(first[["method", "seed", "round", "merges", "bytes"]], how="left")


def traffic(studies: Studies, name: str) -> pd.DataFrame:
    """One column of Table IV in full: rounds, merges, bytes and speed-up until FedAvg's best."""
    column, rows = columns()[name], []
    paper = pd.read_csv(HERE / "published_table4.csv", dtype=str).query("column == @name")
    found = reached(column, studies)
    for method in column.methods:
        mine = found[found["method"] == method]
        there = mine.dropna(subset="round")
        whole = len(there) == len(mine) > 0
        row = {"method": method, "reached": f"{len(there)} of {len(mine)}"}
        row |= {key: f"{there[key].mean():.0f}" if whole else NONE for key in ("round", "merges")}
        row["MB sent"] = f"{there['bytes'].mean() / 1e6:.0f}" if whole else NONE
        row["speed-up"] = f"{column.rounds / there['round'].mean():.2f}×" if whole else NONE
        if len(paper):
            [own] = paper[paper["method"] == method].to_dict("records")
            row["paper: merges / rounds / speed-up"] = (
                f"{own['merges']} / {own['rounds']} / {own['speedup']}×"
            )
        rows.append(row)
    return pd.DataFrame(rows)


# --- the paper's figures in numbers -----------------------------------------------------------------


def tails(column: Column, studies: Studies, key: str) -> pd.DataFrame:
    """The mean of a column of the history over the last tenth of the rounds, by method and seed."""
    history = column.history(studies)
    if key not in history:
        return pd.DataFrame(columns=["method", "seed", key])
    late = history[history["round"] > (1 - TAIL) * column.rounds].dropna(subset=key)
    return late.groupby(["method", "seed"], as_index=False)[key].mean()


def figure1(studies: Studies) -> pd.DataFrame:
    """Figure 1: FedAvg's accuracy and drift against β, CIFAR-10 with ten clients."""
    rows = []
    for name in FIGURE1:
        column = columns()[name]
        drifts = {}
        for key in ("drift_mean", "drift_broadcast"):
            found = tails(column, studies, key)
            drifts[key] = number(found[found["method"] == BASELINE][key].mean(), 1)
        runs = column.runs(studies)
        rows.append({
            "β": "IID" if column.beta is None else f"{column.beta:g}",
            "seeds": int((runs["method"] == BASELINE).sum()),
            "final accuracy": cell(runs, BASELINE, "tail"),
            "drift from the mean": drifts["drift_mean"],
            "drift from the model sent out": drifts["drift_broadcast"],
        })  # fmt: skip
    return pd.DataFrame(rows)


def early(
    studies: Studies, names: Iterable[str] = (), rounds: Sequence[int] = EARLY
) -> pd.DataFrame:
    """Figure 4: what skipping gains over FedAvg at its last merge up to an early round."""
    rows = []
    for name in names or [name for name in compared() if len(compared()[name].history(studies))]:
        column = columns()[name]
        for method in (one for one in column.methods if "Skip" in one):
            gains = {
                f"round {until}": gained(
                    difference(*(_until(column, studies, one, until) for one in (method, BASELINE)))
                )
                for until in rounds
            }
            rows.append({"column": column.title, "method": method} | gains)
    return pd.DataFrame(rows)


def _until(column: Column, studies: Studies, method: str, rounds: int) -> pd.Series:
    """A method's accuracy at its last merge up to a round, by seed; NaN where it had diverged by then."""
    runs, history = column.runs(studies), column.history(studies)
    known = history[(history["method"] == method) & (history["round"] <= rounds)]
    found = known.drop_duplicates("seed", keep="last").set_index("seed")["test_accuracy"]
    mine = runs[runs["method"] == method].set_index("seed")
    return found.where(~(mine["diverged"] & (mine["rounds"] < rounds)).reindex(found.index))


def figure5(studies: Studies) -> pd.DataFrame:
    """Figure 5: best accuracy by period."""
    rows = []
    for name in FIGURE5:
        column = columns()[name]
        runs = column.runs(studies)
        cells = {("Δ = 1" if one == BASELINE else one.replace("FedSkip-", "Δ = ")): cell(runs, one, digits=1)
                 for one in column.methods}  # fmt: skip
        rows.append({"setting": name} | cells)
    return pd.DataFrame(rows)


# --- our own studies --------------------------------------------------------------------------------


def compositions(studies: Studies, name: str) -> pd.DataFrame:
    """Every method with and without skipping: what skipping adds to it, and the merges to FedAvg's best."""
    column = columns()[name]
    alone = {method: _alone(column, method) for method in column.methods}
    found, over = compare(column, studies, alone), compare(column, studies)
    runs, merges = column.runs(studies), reached(column, studies)
    rows = []
    for method in column.methods:
        row = {
            "method": method,
            "seeds": found["seeds"][method],
            "best": cell(runs, method),
        }
        row["gain over the same without skipping"] = gained(found["best_gain"][method])
        row["gain over FedAvg"] = gained(over["best_gain"][method])
        row["merges to FedAvg's best"] = _each(merges[merges["method"] == method]["merges"])
        rows.append({key: "" if value == NONE else value for key, value in row.items()})
    return pd.DataFrame(rows).loc[:, lambda table: (table != "").any()]


def _each(merges: pd.Series) -> str:
    """Seed by seed; a dash where a run never gets there."""
    return ", ".join(NONE if isnan(one) else f"{one:.0f}" for one in merges)


def _alone(column: Column, method: str) -> str:
    """The same method without skipping."""
    name = BASELINE if method.startswith("FedSkip") else method.partition("+skip")[0]
    return next((one for one in column.methods if one == name), BASELINE)


def tuning(studies: Studies, name: str) -> pd.DataFrame:
    """The values that were tried: the best validation accuracy, and the test accuracy in that round."""
    column, rows = columns()[name], []
    runs, history = column.runs(studies), column.history(studies)
    validated = history.groupby(["method", "seed"])["val_accuracy"].max()
    for method in column.methods:
        test = scores(runs, method, "best_val")
        row = {
            "method": method,
            "validation": spread(validated[method]),
            "test there": cell(runs, method, "best_val"),
        }
        base = scores(runs, BASELINE, "best_val")
        row["gain over FedAvg"] = "" if method == BASELINE else gained(difference(test, base))
        rows.append(row)
    return pd.DataFrame(rows)


def slots(studies: Studies) -> pd.DataFrame:
    """Accuracy of single slots before they merge, and of the merged model, over the last tenth of the rounds."""
    rows = []
    for name in ("slots/synthetic", "slots/femnist", "slots/cifar10-beta0.5"):
        column = columns()[name]
        single = tails(column, studies, "slot_accuracy").set_index(["method", "seed"])[
            "slot_accuracy"
        ]
        merged = column.runs(studies)
        for method in column.methods:
            if method in single.index:
                gain = difference(single[method], single[BASELINE])
                rows.append({"column": name, "method": method, "single slots": spread(single[method]),
                             "gain over FedAvg": "" if method == BASELINE else gained(gain),
                             "after the merge": cell(merged, method, "tail")})  # fmt: skip
    return pd.DataFrame(rows)


def poisoning(studies: Studies) -> pd.DataFrame:
    """Final accuracy by share of poisoners, of methods with robust merges and without."""
    [study] = [one for one in studies if one.name == "poison"]
    table = study.summary.assign(seed=study.summary["seed"])
    places = list(study.settings)
    rows = []
    for method in dict.fromkeys(table["method"]):
        mine = table[table["method"] == method]
        cells = {place.replace("flip-", ""): spread(mine[mine["setting"] == place]["mean_tail"])
                 for place in places}  # fmt: skip
        rows.append({"method": method} | cells)
    return pd.DataFrame(rows)


def quickstart(studies: Studies) -> pd.DataFrame:
    """What `fedskip run` prints, with the gain over FedAvg."""
    [study] = [one for one in studies if one.name == "quickstart"]
    table = study.summary[study.summary["setting"] == "synthetic"]
    tail = {method: rows.set_index("seed")["mean_tail"] for method, rows in table.groupby("method")}
    rows = []
    for method in dict.fromkeys(table["method"]):
        mine = table[table["method"] == method]
        gain = difference(tail[method], tail[BASELINE])
        rows.append({"method": method, "best": spread(mine["best"]), "final": spread(mine["mean_tail"]),
                     "gain, final": "" if method == BASELINE else gained(gain),
                     "merges": f"{mine['merges'].mean():.0f}",
                     "MB sent": f"{mine['bytes_total'].mean() / 1e6:.2f}"})  # fmt: skip
    return pd.DataFrame(rows)


# --- what was run, and what was not -----------------------------------------------------------------

MINUTES_TO_START = 1.0
MILLISECONDS = {
    "resnet50": 3.8,
    "cnn": 0.020,
    "cnn-femnist": 0.050,
    "lstm": 0.065,
}  # a client-step, one H200
SAMPLES = {
    "femnist": 145,
    "shakespeare": 5573,
    "synthetic": 244,
}  # of an average client, for training
POOLED = 50_000  # training samples of CIFAR, divided among all clients


def missing(studies: Studies) -> pd.DataFrame:
    """The runs of bundled studies that were not made, and how long they would take on one H200."""
    rows = []
    for name, column in columns().items():
        runs = column.runs(studies)
        made = set(zip(runs["method"], runs["seed"], strict=True))
        lacking = [(m, s) for m in column.methods for s in column.seeds if (m, s) not in made]
        if lacking:
            by_seed = [
                f"{m} at {', '.join(str(s) for n, s in lacking if n == m)}" for m in dict(lacking)
            ]
            whole = len(lacking) == len(column.methods) * len(column.seeds)
            rows.append({"fedskip run": name, "runs": len(lacking), "which": "all" if whole else "; ".join(by_seed),
                         "estimate": _hours(column, len(lacking))})  # fmt: skip
    return pd.DataFrame(rows)


def _hours(column: Column, runs: int) -> str:
    model, local = column.keys["model"]["name"], column.keys["local"]
    if model not in MILLISECONDS:
        return "minutes on a CPU"
    samples = SAMPLES.get(column.data) or POOLED / column.keys["clients"]
    visit = local["epochs"] * max(1, int(samples // local["batch"]))
    steps = runs * column.rounds * column.keys["cohort"] * visit
    minutes = MINUTES_TO_START + steps * MILLISECONDS[model] / 60_000
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.0f} h"
