"""Theorem 1 of the paper, checked by training: how far from the optimum, and how far slots are apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group

from fedskip.engine import Local
from fedskip.paper.bounds import constants, follow
from fedskip.paper.counterexamples import coherent, lemma_figure, slow_rates
from fedskip.paper.output import sheet, write
from fedskip.paper.problem import Problem, random_hessians, rates
from fedskip.paper.weighting import weighting
from fedskip.records.table import Table
from fedskip.report.canvas import GREY, finish, new_axes
from fedskip.report.style import look
from fedskip.rng import stream

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PERIODS = (1, 3, 5, 10)
STEPS = 5  # E, local steps of a visit
POINTS = 30  # rounds of each period that distance.csv holds

DISTANCE = (
    "period", "round", "step", "eta", "distance", "distance_se", "printed_bound", "corrected_bound",
    "recursion", "divergence", "printed_lemma", "corrected_lemma",
)  # fmt: skip
SUMMARY = (
    "period", "seeds", "steps", "G2", "C_printed", "C_corrected", "distance", "distance_se", "share_printed",
    "share_corrected", "share_recursion", "share_lemma_printed", "share_lemma_corrected",
)  # fmt: skip


SHARES = {
    "period": "Δ", "distance": "distance", "distance_se": "± s.e.", "share_printed": "printed",
    "share_corrected": "corrected", "share_lemma_printed": "lemma, printed",
    "share_lemma_corrected": "lemma, corrected",
}  # fmt: skip
BY_ROUTES = {
    "routes": "routes", "rates": "rates", "period": "Δ", "divergence": "divergence",
    "share_printed": "of printed", "share_corrected": "of corrected",
}  # fmt: skip
BY_RATES = {
    "rates": "rates", "period": "Δ", "steps": "steps", "distance": "distance",
    "printed_bound": "printed bound", "corrected_bound": "corrected bound",
}  # fmt: skip


def theorem1(
    out: Path, *, periods: Sequence[int] = PERIODS, seeds: int = 20, rounds: int = 300, shuffles: int = 200
) -> Group:
    """Run all checks of Theorem 1, write tables and figures into `out`, and give the tables to print.

    `seeds` and `rounds` are those of the distance, `shuffles` the seeds of the lemma under random routes.
    """
    lines, summary = converging(ten_clients(), periods, seeds, rounds)
    lemma, slow = coherent(periods, shuffles), slow_rates(periods)
    tables = {"distance": lines, "summary": summary, "lemma": lemma, "rates": slow}
    figures = {
        "distance": distance_figure(lines),
        "divergence": divergence_figure(lines),
        "lemma": lemma_figure(lemma),
    }
    write(out, tables, figures)
    return Group(
        sheet("Theorem 1 and lemma 3: the largest share of each bound that was reached", summary, SHARES),
        sheet("Lemma 3 over one period, by routes", lemma, BY_ROUTES, 3),
        sheet("Theorem 1 at constant rates that it allows", slow, BY_RATES, 2),
        weighting(out, periods=periods, seeds=max(1, seeds // 2), rounds=2 * rounds),
    )


def ten_clients() -> Problem:
    """Ten equal clients, 5 dimensions, mu = 0.5 and L = 4; batches of 16 out of 31 samples have noise."""
    draw = stream("problem", "theorem")
    minima = draw.normal(size=(10, 5))
    samples = [b + draw.normal(size=(31, 5)) for b in minima]
    return Problem(random_hessians(10, 5, 0.5, 4.0, "theorem"), samples, np.full(5, 2.0))


def falling(problem: Problem, longest: int, steps: int = STEPS, batch: int = 16) -> Local:
    """Rates 2 / (mu (gamma + tau)): at most 1/(4L), and eta_tau <= 2 eta_(tau + Delta E)."""
    mu, L = problem.curvature
    gamma = max(8 * L / mu, longest * steps)
    lr, decay = 2 / (mu * gamma), f"inverse(half={gamma / steps})"
    # clients have fewer than two batches, so an epoch is one step, and every step draws a fresh batch
    return Local(lr=lr, momentum=0.0, weight_decay=0.0, batch=batch, epochs=steps, decay=decay)


def converging(problem: Problem, periods: Sequence[int], seeds: int, rounds: int) -> tuple[Table, Table]:
    """Distance and divergence against their bounds, and the largest share of each bound."""
    local = falling(problem, max(periods))
    step = STEPS * np.arange(1, rounds + 1)
    eta = rates(local, step)
    lines, summary = Table(DISTANCE), Table(SUMMARY)
    for period, track in follow(problem, local, periods, seeds, rounds).items():
        known = constants(problem, local, period, track.G2)
        distance, divergence = np.array(track.distance), np.array(track.divergence)
        recursion = known.recursion(rates(local, np.arange(step[-1])), False)[step]
        columns = {
            "round": step // STEPS, "step": step, "eta": eta,
            "distance": distance, "distance_se": np.array(track.distance_se),
            "printed_bound": known.bound(step - 1, False), "corrected_bound": known.bound(step - 1, True),
            "recursion": recursion, "divergence": divergence,
            "printed_lemma": known.lemma(eta, False), "corrected_lemma": known.lemma(eta, True),
        }  # fmt: skip
        for at in _some(rounds, period):
            lines.rows.append({"period": period} | {name: v[at].item() for name, v in columns.items()})
        share = {f"share_{bound}": float((distance / columns[column]).max()) for bound, column in _BOUNDS}
        share |= {f"share_{name}": float((divergence / columns[column]).max()) for name, column in _LEMMAS}
        summary.rows.append(
            {"period": period, "seeds": seeds, "steps": int(step[-1]), "G2": track.G2,
             "C_printed": known.C(False), "C_corrected": known.C(True),
             "distance": distance[-1].item(), "distance_se": track.distance_se[-1]} | share
        )  # fmt: skip
    return lines, summary


_BOUNDS = (("printed", "printed_bound"), ("corrected", "corrected_bound"), ("recursion", "recursion"))
_LEMMAS = (("lemma_printed", "printed_lemma"), ("lemma_corrected", "corrected_lemma"))


def _some(rounds: int, period: int) -> Iterator[int]:
    """Indices of some rounds that end a period, evenly on a logarithmic scale."""
    merges = rounds // period
    some: list[int] = (
        np.unique(np.geomspace(1, merges, POINTS).round().astype(int)).tolist() if merges else []
    )
    return (merge * period - 1 for merge in some)


# --- shown ----------------------------------------------------------------------------------------------


def _label(period: int) -> str:
    return "FedAvg" if period == 1 else f"FedSkip-{period}"


def _lines(table: Table, measured: str, bounds: dict[str, tuple[str, str]]) -> Axes:
    """What was measured, and its bounds, over local steps; both axes logarithmic."""
    axes = new_axes()
    for period in dict.fromkeys(table.column("period")):
        part, seen = table.where(period=period), look(_label(period))
        steps = part.column("step")
        axes.plot(steps, part.column(measured), color=seen.colour, label=_label(period))
        for column, (line, _) in bounds.items():
            axes.plot(steps, part.column(column), line, color=seen.colour, linewidth=1)
    for line, name in bounds.values():
        axes.plot([], [], line, color=GREY, linewidth=1, label=name)
    axes.set(xscale="log", yscale="log", xlabel="local steps")
    return axes


def distance_figure(table: Table) -> Axes:
    """How far the mean of the slots is from the optimum, and the bounds."""
    bounds = {
        "printed_bound": ("--", "bound, printed"), "corrected_bound": ("-.", "bound, corrected"),
        "recursion": (":", "the proof's recursion"),
    }  # fmt: skip
    axes = _lines(table, "distance", bounds)
    axes.set_ylabel("E|mean of slots − w*|²")
    return finish(axes, "Theorem 1: distance to the optimum", ["full line: measured, mean over seeds"])


def divergence_figure(table: Table) -> Axes:
    """How far slots are apart, and the bounds."""
    bounds = {"printed_lemma": ("--", "lemma 3, printed"), "corrected_lemma": ("-.", "lemma 3, corrected")}
    axes = _lines(table, "divergence", bounds)
    axes.set_ylabel("mean of E|slot − mean of slots|²")
    return finish(axes, "Lemma 3: how far slots are apart", ["at the end of a period, before the merge"])
