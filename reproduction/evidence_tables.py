"""Tables from `evidence/`: files that commands of `python -m reproduction` wrote without training a study."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from math import isnan

import pandas as pd

from reproduction.columns import HERE, Studies, columns
from reproduction.complexity import beside
from reproduction.statistics import compare
from reproduction.tables import gained, number

EVIDENCE = HERE / "evidence"


@cache
def evidence(name: str) -> pd.DataFrame:
    """A table that a command of `python -m reproduction` wrote, such as `theorem1/rates`."""
    for file in (EVIDENCE / f"{name}.csv", EVIDENCE / f"{name}.csv.xz"):
        if file.exists():
            return pd.read_csv(file)
    raise SystemExit(f"error: there is no {name}.csv in {EVIDENCE}")


def diverged(_: Studies = ()) -> pd.DataFrame:
    """The runs that diverged, and the client on which they did; `diverged/diverged.csv` has their sizes."""
    rows = []
    for (setting, method), found in evidence("diverged/diverged").groupby(
        ["setting", "method"], sort=False
    ):
        rounds = [
            row["last_round"] if isnan(row["broke_round"]) else row["broke_round"]
            for _, row in found.iterrows()
        ]
        single = int((found["from_classes"] == 1).sum())
        rows.append({"column": setting, "method": method, "seeds": _listed(found["seed"]), "rounds": _listed(rounds),
                     "right after a client with one class": f"{single} of {len(found)}"})  # fmt: skip
    return pd.DataFrame(rows)


def _listed(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.0f}" for value in values)


def fednova_weights(studies: Studies) -> pd.DataFrame:
    """What FedNova's weights sum to in a round, and what it gains over FedAvg."""
    rows = []
    for name, sums in evidence("fednova_weights").groupby("setting", sort=False)["weights"]:
        found = compare(columns()[str(name)], studies).loc["FedNova"]
        rows.append({
            "column": columns()[str(name)].title,
            "median": number(sums.median()), "90 % of rounds below": number(sums.quantile(0.9)),
            "gain, best": gained(found["best_gain"]), "gain, final": gained(found["tail_gain"]),
            "paper's gain": number(found["paper_gain"], sign=True),
        })  # fmt: skip
    return pd.DataFrame(rows)


def membership(_: Studies = ()) -> pd.DataFrame:
    """How well a client guesses on what its model was trained: AUC by how many visits ago."""
    found = evidence("membership/femnist")
    table = found.pivot(index="method", columns="ago", values="auc").map("{:.3f}".format)
    table.columns = [f"AUC, {ago} visit{'s' * (ago > 1)} ago" for ago in table.columns]
    first = found[found["ago"] == 1].set_index("method")
    table["found at 1 % false alarms"] = first["tpr"].map("{:.1%}".format)
    table["model's accuracy"] = first["accuracy"].map("{:.1%}".format)
    return table.loc[found["method"].unique()].reset_index()


# --- theory -----------------------------------------------------------------------------------------


def bounds(_: Studies = ()) -> pd.DataFrame:
    """Theorem 1 and Lemma 3: the largest share of each bound that was reached."""
    rows = []
    for _, line in evidence("theorem1/summary").iterrows():
        shares = {
            "of the printed bound": "share_printed", "of the corrected bound": "share_corrected",
            "of the printed lemma": "share_lemma_printed", "of the corrected lemma": "share_lemma_corrected",
        }  # fmt: skip
        row = {"Δ": f"{line['period']:.0f}", "distance at the end": f"{line['distance']:.2e}"}
        row["standard error"] = f"{line['distance_se']:.0e}"
        rows.append(row | {words: f"{line[name]:.1e}" for words, name in shares.items()})
    return pd.DataFrame(rows)


def lemma(_: Studies = ()) -> pd.DataFrame:
    """Lemma 3: divergence over the printed bound, by routes and rates; above 1 it does not hold."""
    found = evidence("theorem1/lemma")
    order = found[["routes", "rates"]].drop_duplicates()
    table = found.pivot(index=["routes", "rates"], columns="period", values="share_printed")
    table = table.map(lambda share: f"**{share:.2f}**" if share > 1 else f"{share:.2f}")
    table.columns = [f"Δ = {period}" for period in table.columns]
    return order.merge(table.reset_index())


def unequal(_: Studies = ()) -> pd.DataFrame:
    """Unequal clients: how far FedSkip settles from the optimum weighted by samples."""
    found = evidence("theorem1/weighting")
    names = {"steps": "E", "period": "Δ", "to_weighted": "trained", "to_weighted_exact": "closed form",
             "to_weighted_small_steps": "limit of small steps"}  # fmt: skip
    table = found[list(names)].rename(columns=names)
    return table.map(lambda value: f"{value:.3f}" if isinstance(value, float) else str(value))


def server_times(_: Studies = ()) -> pd.DataFrame:
    """The server: seconds of a shuffle (draw, move) and of an aggregation (average, merge)."""
    found = evidence("complexity/server")
    times = {"draw": "S: draw", "move": "S: move", "average": "average", "merge": "A: merge"}
    table = found[["model", "numbers", "slots"]].rename(columns={"slots": "K"})
    table["numbers"] = table["numbers"].map("{:,}".format)
    for name, words in times.items():
        table[words] = found[name].map(_seconds)
    return table


def _seconds(value: float) -> str:
    """A time in the unit that suits it.

    >>> _seconds(0.00018), _seconds(0.0067), _seconds(3.76)
    ('180 µs', '6.7 ms', '3.76 s')
    """
    if value < 1e-3:
        return f"{1e6 * value:.0f} µs"
    return f"{1e3 * value:.1f} ms" if value < 0.1 else f"{value:.2f} s"


def savings(_: Studies = ()) -> pd.DataFrame:
    """What skipping saves the server over all rounds: measured, and in brackets as the formula predicts."""
    rows = []
    for (model, slots), lines in evidence("complexity/rounds").groupby(
        ["model", "slots"], sort=False
    ):
        base = lines["seconds"].iloc[0]
        row = {"model": model, "K": slots, "T": lines["rounds"].iloc[0], "FedAvg": _seconds(base)}
        for _, line in lines.iloc[1:].iterrows():
            saved, predicted = (-line[name] / base for name in ("difference", "predicted"))
            row[f"saved, Δ = {line['period']}"] = f"{saved:.0%} ({predicted:.0%})"
        rows.append(row)
    return pd.DataFrame(rows)


def client_costs(_: Studies = ()) -> pd.DataFrame:
    """A client: time of a visit as a multiple of FedAvg's, and bytes as multiples of the model."""
    table = beside(evidence("complexity/clients"))
    bytes_ = {"remembered": "kept", "visit": "in a visit", "down": "down", "up": "up"}
    for name in table.columns[1:]:
        table[name] = table[name].map(("{:.0f}" if name in bytes_ else "{:.2f}").format)
    return table.rename(columns=bytes_)


def server_memory(_: Studies = ()) -> pd.DataFrame:
    """The server's memory in models, with ten slots."""
    found = evidence("complexity/memory")
    names = {"method": "method", "held": "between rounds", "peak_skip": "most in a skip round",
             "peak_merge": "most in a merge", "needed": "needed in principle"}  # fmt: skip
    table = found[found["slots"] == 10][list(names)].rename(columns=names)
    return table.map(lambda value: f"{value:.0f}" if isinstance(value, float) else value)
