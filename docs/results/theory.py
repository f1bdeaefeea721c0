"""The tables of theory.md and the pictures of theorem1, complexity and fig3, from their CSV files."""

from collections.abc import Callable

import numpy as np
from files import lines
from matplotlib.axes import Axes
from rich.text import Text

from fedskip.paper.complexity import ratios_figure, savings_figure
from fedskip.paper.computed import fig3_figure
from fedskip.paper.counterexamples import lemma_figure
from fedskip.paper.theorem import distance_figure, divergence_figure
from fedskip.paper.weighting import weighting_figure
from fedskip.records.table import Table
from fedskip.report.sheet import BEST, Sheet


def table(name: str) -> Table:
    """A file of this folder, with numbers as numbers."""
    return Table(lines(name)[0], [{key: _number(cell) for key, cell in line.items()} for line in lines(name)])


def _number(cell: str) -> object:
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            pass
    return cell


def bounds() -> Sheet:
    """Distances and divergences as shares of what the theorem and its lemma allow."""
    headers = [
        "Δ", "distance at the end", "of the printed bound, at most", "of the corrected",
        "divergence, of the printed lemma, at most", "of the corrected",
    ]  # fmt: skip
    rows = []
    for line in lines("theorem1/summary"):
        distance, error = (1e4 * float(line[name]) for name in ("distance", "distance_se"))
        cells = [f"({distance:.2f} ± {error:.2f})·10⁻⁴"]
        cells += [power(float(line[name])) for name in ("share_printed", "share_corrected")]
        cells += [f"{float(line[f'share_lemma_{name}']):.2g}" for name in ("printed", "corrected")]
        rows.append([line["period"], *cells])
    return _sheet(headers, 1, rows)


def lemma() -> Sheet:
    """The divergence over the printed bound, by routes; what is above 1 is bold."""
    found = lines("theorem1/lemma")
    periods = list(dict.fromkeys(line["period"] for line in found))
    rows = []
    for routes, rates in dict.fromkeys((line["routes"], line["rates"]) for line in found):
        mine = [line for line in found if (line["routes"], line["rates"]) == (routes, rates)]
        seeds = f", {mine[0]['seeds']} seeds" if mine[0]["seeds"] != "1" else ""
        shares = [float(line["share_printed"]) for line in mine]
        cells = [Text(f"{share:.2f}", BEST if share > 1 else "") for share in shares]
        rows.append([Text(routes + seeds), Text(rates), *cells])
    return Sheet("lemma", ["routes", "rates", *(f"Δ = {period}" for period in periods)], 2, rows)


def weighting() -> Sheet:
    """How far FedSkip settles from the n-weighted optimum of unequal clients."""
    headers = [
        "E", "Δ", "distance from the n-weighted optimum, trained", "closed form", "q_i",
        "trained from closed form (± s.e.)",
    ]  # fmt: skip
    rows = []
    for line in lines("theorem1/weighting"):
        names = ("to_weighted", "to_weighted_exact", "to_weighted_small_steps", "error", "error_se")
        *distances, error, spread = (f"{float(line[name]):.3f}" for name in names)
        rows.append([line["steps"], line["period"], *distances, f"{error} ± {spread}"])
    return _sheet(headers, 2, rows)


def server() -> Sheet:
    """Seconds of a shuffle and of an aggregation."""
    headers = ["model", "numbers", "K", "S: draw", "S: move", "average", "A: merge"]
    rows = [
        [line["model"], f"{int(line['numbers']):,}", line["slots"]]
        + [seconds(float(line[name])) for name in ("draw", "move", "average", "merge")]
        for line in lines("complexity/server")
    ]
    return _sheet(headers, 1, rows)


def rounds() -> Sheet:
    """What skipping saves the server over all rounds."""
    headers = ["model, K", "T", "FedAvg's time", "saved with Δ = 3: measured (predicted)", "Δ = 5", "Δ = 10"]
    rows: dict[tuple[str, str], list[str]] = {}
    for line in lines("complexity/rounds"):
        at = line["model"], line["slots"]
        if line["period"] == "1":
            rows[at] = [", ".join(at), line["rounds"], seconds(float(line["seconds"]))]
            base = float(line["seconds"])
        else:
            saved, predicted = (-float(line[name]) / base for name in ("difference", "predicted"))
            rows[at].append(f"{saved:.0%} ({predicted:.0%})")
    return _sheet(headers, 1, list(rows.values()))


def clients() -> Sheet:
    """The time of a visit as a multiple of FedAvg's, and bytes as multiples of the model."""
    found = lines("complexity/clients")
    models = list(dict.fromkeys(line["model"] for line in found))
    kinds = {"remembered": "kept", "visit": "in a visit", "down": "down", "up": "up"}
    rows = []
    for method in dict.fromkeys(line["method"] for line in found):
        mine = [line for line in found if line["method"] == method]
        model = int(found[0]["down_bytes"])  # FedAvg sends the model and nothing else
        sizes = [f"{int(mine[0][f'{kind}_bytes']) / model:.0f}" for kind in kinds]
        rows.append([method, *(f"{float(line['ratio']):.2f}" for line in mine), *sizes])
    return _sheet(["method", *models, *kinds.values()], 1, rows)


def memory() -> Sheet:
    """The models that a server holds with ten slots."""
    headers = [
        "", "ours, between rounds", "ours, most in a skip round", "ours, most in a merge",
        "needed in principle",
    ]  # fmt: skip
    rows = [
        [line["method"]]
        + [f"{float(line[name]):.0f}" for name in ("held", "peak_skip", "peak_merge", "needed")]
        for line in lines("complexity/memory")
        if line["slots"] == "10"
    ]
    return _sheet(headers, 1, rows)


SHEETS: dict[str, Callable[[], Sheet]] = {
    "theorem1/bounds": bounds, "theorem1/lemma": lemma, "theorem1/weighting": weighting,
    "complexity/server": server, "complexity/rounds": rounds, "complexity/clients": clients,
    "complexity/memory": memory,
}  # fmt: skip


def seconds(value: float) -> str:
    """A time in the unit that suits it.

    >>> seconds(0.00018), seconds(0.0067), seconds(3.76)
    ('180 µs', '6.7 ms', '3.76 s')
    """
    if value < 1e-3:
        return f"{1e6 * value:.0f} µs"
    return f"{1e3 * value:.1f} ms" if value < 0.1 else f"{value:.2f} s"


def power(value: float) -> str:
    """As a multiple of a power of ten.

    >>> power(3.04e-6)
    '3.0·10⁻⁶'
    """
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits}·10{str(int(exponent)).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def _sheet(headers: list[str], names: int, rows: list[list[str]]) -> Sheet:
    return Sheet("", headers, names, [[Text(cell) for cell in row] for row in rows])


def heat_map(name: str) -> Axes:
    """Figure 3, for one division."""
    counts = [
        [int(cell) for key, cell in line.items() if key != "class"] for line in lines(f"fig3/fig3-{name}")
    ]
    return fig3_figure(np.array(counts), f"cifar10-{name}")


PICTURES: dict[str, Callable[[], Axes]] = {
    "theorem1/distance": lambda: distance_figure(table("theorem1/distance")),
    "theorem1/divergence": lambda: divergence_figure(table("theorem1/distance")),
    "theorem1/lemma": lambda: lemma_figure(table("theorem1/lemma")),
    "theorem1/weighting": lambda: weighting_figure(table("theorem1/weighting")),
    "complexity/rounds": lambda: savings_figure(table("complexity/rounds")),
    "complexity/clients": lambda: ratios_figure(table("complexity/clients")),
    "fig3/fig3-iid": lambda: heat_map("iid"),
    "fig3/fig3-beta1": lambda: heat_map("beta1"),
    "fig3/fig3-beta0.5": lambda: heat_map("beta0.5"),
}
