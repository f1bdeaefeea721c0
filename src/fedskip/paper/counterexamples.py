"""Where the printed forms of Theorem 1 fail: routes whose steps add up, and rates that the theorem allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedskip.engine import Local
from fedskip.paper.bounds import constants, follow
from fedskip.paper.problem import constant_clients, rates
from fedskip.records.table import Table
from fedskip.report.canvas import GREY, finish, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STEPS = 5  # E, local steps of a visit
LEMMA = (
    "routes", "rates", "period", "seeds", "divergence", "divergence_se", "share_printed", "share_corrected",
)  # fmt: skip
RATES = (
    "rates", "period", "L", "mu", "eta", "steps", "distance", "printed_bound", "corrected_bound",
)  # fmt: skip


def coherent(periods: Sequence[int], shuffles: int, clients: int = 40, lr: float = 0.002) -> Table:
    """Lemma 3 where half of the clients pull one way and half the other, over one period.

    Routes: `fixed`, every slot stays with its client; `cyclic`, it moves on to the next; `uniform`, the
    paper's random shuffle. Rates: constant, or halved when the period ends, which the lemma allows.
    """
    ends = np.where(np.arange(clients) < clients // 2, 1.0, -1.0)[:, None]
    problem = constant_clients(np.ones((clients, 1, 1)), ends, np.zeros(1))
    table = Table(LEMMA)
    for routes in ("fixed", "cyclic", "uniform"):
        for period in periods:
            for kind in ("constant", "halved"):
                decay = f"step(every={period}, factor=0.5)" if kind == "halved" else "constant"
                local = Local(lr=lr, momentum=0.0, weight_decay=0.0, batch=1, epochs=STEPS, decay=decay)
                seeds = shuffles if routes == "uniform" else 1
                track = follow(problem, local, [period], seeds, period, routes)[period]
                known = constants(problem, local, period, track.G2)
                eta = rates(local, np.array(STEPS * period))
                found = track.divergence[-1]
                table.rows.append(
                    {"routes": routes, "rates": kind, "period": period, "seeds": seeds, "divergence": found,
                     "divergence_se": track.divergence_se[-1],
                     "share_printed": found / known.lemma(eta, False).item(),
                     "share_corrected": found / known.lemma(eta, True).item()}
                )  # fmt: skip
    return table


def slow_rates(periods: Sequence[int]) -> Table:
    """The distance of plain gradient descent, one client and one step a round, at constant allowed rates.

    `largest`: 1/(4L) with L/mu = 1600 Delta, which no allowed rate outruns. `tiny`: 1e-5 with L = mu.
    """
    table = Table(RATES)
    cases = [("largest", period, 1600.0 * period, 1 / (6400.0 * period)) for period in periods]
    for name, period, L, lr in [*cases, ("tiny", 1, 1.0, 1e-5)]:
        problem = constant_clients(np.diag([1.0, L])[None], np.zeros((1, 2)), np.array([1.0, 0.0]))
        local = Local(lr=lr, momentum=0.0, weight_decay=0.0, batch=1, epochs=1)
        steps = 400 * period
        track = follow(problem, local, [period], 1, steps)[period]
        known, T = constants(problem, local, period, track.G2), np.array(steps - 1)
        table.rows.append(
            {"rates": name, "period": period, "L": L, "mu": 1.0, "eta": lr, "steps": steps,
             "distance": track.distance[-1], "printed_bound": known.bound(T, False).item(),
             "corrected_bound": known.bound(T, True).item()}
        )  # fmt: skip
    return table


def lemma_figure(table: Table) -> Axes:
    """The share of the printed lemma by period, for each kind of routes and rates."""
    axes = new_axes()
    for routes, marker in {"fixed": "C0s", "cyclic": "C1^", "uniform": "C2o"}.items():
        for kind, line in {"constant": "-", "halved": "--"}.items():
            part = table.where(routes=routes, rates=kind)
            xs, ys = part.column("period"), part.column("share_printed")
            axes.plot(xs, ys, marker + line, markersize=5, label=f"{routes}, {kind}")
    axes.axhline(1, color=GREY, linewidth=1)
    axes.set(xlabel="period Δ", ylabel="divergence / (4 Δ η² E² G²)")
    return finish(axes, "Lemma 3 as printed: routes that add up", ["above 1 it does not hold"])
