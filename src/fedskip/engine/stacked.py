"""All visits at once: rows of different slots, runs, methods and seeds train in one batched step.

Each visit under way has a seat at a table: one row of every matrix. Visits are of unequal length, so a
row that has finished is frozen whole (weights, momentum, buffers) until the table is laid out anew. That
happens when visits join, or when the rows still busy fit a smaller table. Tables come in at most eight
sizes, because each is traced, and compiled where there is a compiler, once.

What happens in which order is a function of the routes alone, never of timing.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from fedskip.engine.base import Task, Trained, Visits, Work, current, draws, torch_threads
from fedskip.engine.graph import Rows
from fedskip.engine.step import BLOCK, StackedStep, Uses
from fedskip.errors import InputError
from fedskip.models import stacking_obstacles
from fedskip.models.batchnorm import batch_statistics
from fedskip.rng import fold
from fedskip.stack import on

PLAIN = Uses()


def refusal(task: Task, streams: int = 0) -> InputError | None:
    """Why the stacked engine cannot train a task, or None if it can."""
    model, local = type(task.module).__name__, task.local
    obstacle = None if streams else stacking_obstacles(task.module)
    if obstacle is None and draws(task):
        obstacle = "it draws from torch's global generator; use engine=loop"
    if obstacle:
        return InputError("engine", "cannot be 'stacked' for this model", model, obstacle)
    if not batch_statistics(task.module):
        return None
    if task.arithmetic.precision == "bf16" and not streams:
        fix = "set streams=4, or precision=tf32"
        return InputError("streams", "must be 1 or more for BatchNorm in bf16", streams, fix)
    if task.short_batches:
        rule = "cannot be 'stacked' for BatchNorm with short batches"
        fix = "use engine=loop, or local.last_batch=drop and local.small_clients=drop"
        return InputError("engine", rule, local.last_batch, fix)
    return None


def own_objective() -> InputError:
    rule = "cannot be 'stacked' for a method with its own objective"
    return InputError("engine", rule, fix="use engine=loop")


@dataclass
class Seat:
    """One visit at a table."""

    visits: Visits
    k: int
    done: int = 0  # steps

    @property
    def left(self) -> int:
        return self.visits.routes[self.k].steps - self.done


class Stacked:
    """Trains all visits that are under way in one batch.

    Rows with MOON's contrast have a table of their own, which spares the others its two extra forward
    passes. `sizes` and `contrast_sizes` are the row counts that may be computed (`plan.table_sizes`).
    """

    def __init__(
        self,
        task: Task,
        sizes: Sequence[int],
        contrast_sizes: Sequence[int] = (),
        *,
        uses: Uses = PLAIN,
        compile: bool = True,
        threads: int = 1,
        streams: int = 0,
        kernels: bool = False,
    ) -> None:
        if refused := refusal(task, streams):
            raise refused
        self.threads, self.device = threads, task.device
        self.plain = Table(sizes, StackedStep(task, uses, compile, streams, kernels))
        self._make_contrast = lambda: Table(
            contrast_sizes, StackedStep(task, uses | Uses(contrast=True), compile, streams, kernels)
        )
        self.rows: int | None = None  # the most in a batch, where memory or the study sets a limit
        self.needs: list[str] = []  # memory, in words

    @functools.cached_property
    def contrast(self) -> Table:
        """The table of rows with a contrast, made when there are any."""
        return self._make_contrast()

    @property
    def tables(self) -> list[Table]:
        """Those that there are by now."""
        return [self.plain, self.contrast] if "contrast" in self.__dict__ else [self.plain]

    @property
    def contrast_sizes(self) -> list[int]:
        return list(self.contrast.sizes) if len(self.tables) > 1 else []

    @property
    def preparing(self) -> float:
        return sum(table.step.preparing.seconds for table in self.tables)

    def run(self, work: Work) -> None:
        with torch_threads(self.threads), torch.no_grad(), current(self.device):
            while True:
                for visits in work.ready():
                    if visits.terms.objective is not None:
                        raise own_objective()
                    (self.plain if visits.terms.contrast is None else self.contrast).join(visits)
                busy = [table for table in self.tables if table.seat()]
                if not busy:
                    return
                steps = min(table.shortest() for table in busy)
                for table in busy:
                    table.advance(steps)
                for table in busy:
                    for visits, ks, trained in table.finished():
                        work.done(visits, ks, trained)


class Table:
    """The seats of the rows that share one step function."""

    def __init__(self, sizes: Sequence[int], step: StackedStep) -> None:
        self.sizes, self.step = sorted(sizes), step
        self.limit: int | None = None  # how many rows there is memory for
        self.seats: list[Seat | None] = []  # as laid out; None: finished, or never taken
        self.waiting: list[Seat] = []
        self.rows: Rows = {}

    def join(self, visits: Visits) -> None:
        """Let K visits in; each waits for a seat."""
        self.waiting += [Seat(visits, k) for k in range(len(visits.routes))]

    def shortest(self) -> int:
        """The steps until the next visit ends."""
        return min(seat.left for seat in self.seats if seat)

    def advance(self, steps: int) -> None:
        """Take `steps` steps with every busy row; none of them ends earlier."""
        for start in range(0, steps, BLOCK):
            self.rows = self.step.advance(self.rows, self._block(min(BLOCK, steps - start)))

    def finished(self) -> Iterator[tuple[Visits, list[int], Trained]]:
        """Free the seats of the rows that have ended, and give those of each party together."""
        ended = [i for i, seat in enumerate(self.seats) if seat and not seat.left]
        if not ended:
            return
        index = on(self.rows["y"].device, ended)
        y, loss = self.rows["y"].index_select(0, index), self.rows["loss"].index_select(0, index)[:, 0]
        self.rows["active"] = self.rows["active"].index_fill(0, index, False)
        parties: dict[Visits, dict[int, int]] = {}  # k -> place in y; seats keep the order of joining
        for j, i in enumerate(ended):
            seat = self.seats[i]
            assert seat is not None
            parties.setdefault(seat.visits, {})[seat.k] = j
            self.seats[i] = None
        for visits, places in parties.items():
            trained = Trained(y, loss)
            if len(parties) > 1:
                rows = on(y.device, list(places.values()))
                trained = Trained(y.index_select(0, rows), loss.index_select(0, rows))
            yield visits, list(places), trained

    def seat(self) -> int:
        """Seat those who wait, as far as there is room, and close ranks when a smaller table will do."""
        keep = [i for i, seat in enumerate(self.seats) if seat]
        room = None if self.limit is None else self.limit - len(keep)
        joining, self.waiting = self.waiting[:room], [] if room is None else self.waiting[room:]
        busy = len(keep) + len(joining)
        size = self._size(busy)
        if not busy or (not joining and size == len(self.seats)):
            return busy
        blocks: list[Rows] = []
        if keep:
            index = on(self.rows["y"].device, keep)
            blocks = [{name: rows.index_select(0, index) for name, rows in self.rows.items()}]
        for visits, party in groupby(joining, lambda seat: seat.visits):
            blocks.append(self.rows_of(visits, [seat.k for seat in party]))
        empty = size - busy
        self.seats = [*(self.seats[i] for i in keep), *joining, *[None] * empty]
        if empty:
            blocks.append(
                {name: rows.new_zeros((empty, *rows.shape[1:])) for name, rows in blocks[0].items()}
            )
        self.rows = {name: torch.cat([block[name] for block in blocks]) for name in blocks[0]}
        return busy

    def _size(self, rows: int) -> int:
        fits = [size for size in self.sizes if size >= rows]
        if not fits:  # more rows than planned for: a table of their own size is right, only not planned
            self.sizes.append(rows)
            return rows
        return fits[0]

    def _block(self, steps: int) -> tuple[Tensor, Tensor, Tensor]:
        """The next steps of all seats: index (steps, n, B), eta (steps, n, 1), count (steps, n)."""
        n, batch = len(self.seats), self.step.task.local.batch
        index = np.zeros((steps, n, batch), np.int64)
        eta = np.zeros((steps, n, 1))
        count = np.zeros((steps, n), np.int64)
        for i, seat in enumerate(self.seats):
            if seat:
                route, done = seat.visits.routes[seat.k], seat.done
                index[:, i] = route.batches[done : done + steps]
                eta[:, i, 0] = route.eta[done : done + steps]
                count[:, i] = np.arange(done, done + steps)
                seat.done += steps
        y = self.rows["y"]
        return on(y.device, index), on(y.device, eta, y.dtype), on(y.device, count)

    def opening(self, visits: Visits) -> tuple[Rows, Tensor, Tensor, Tensor]:
        """The first step of the first visit alone: its row, index (1, B), eta (1, 1) and count (1,)."""
        rows, route = self.rows_of(visits, [0]), visits.routes[0]
        y = rows["y"]
        index = on(y.device, route.batches[:1])
        return rows, index, on(y.device, route.eta[:1, None], y.dtype), torch.zeros_like(index[:, 0])

    def rows_of(self, visits: Visits, ks: list[int]) -> Rows:
        """The matrices of visits that begin."""
        x, terms, uses = visits.x, visits.terms, self.step.uses
        k, d = len(x), self.step.task.layout.trainable
        if (terms.mu is not None and not uses.pull) or (terms.linear is not None and not uses.linear):
            raise ValueError("a method must give the same kinds of terms in every round")
        keys = on(x.device, [route.key for route in visits.routes])
        rows = {
            "y": x,
            "v": x.new_zeros(k, d),
            "loss": x.new_zeros(k, 1),
            "active": torch.ones(k, 1, dtype=torch.bool, device=x.device),
            "word": fold(keys),
        }
        if uses.pull:
            rows["mu"] = x.new_zeros(k, 1) if terms.mu is None else terms.mu
            rows["anchor"] = x[:, :d] if terms.anchor is None else terms.anchor
        if uses.linear:
            rows["linear"] = x.new_zeros(k, d) if terms.linear is None else terms.linear
        if uses.contrast:
            assert terms.contrast is not None
            rows["received"], rows["previous"] = x, terms.contrast.previous
            rows["weight"] = terms.contrast.weight
            rows["temperature"] = torch.full_like(terms.contrast.weight, terms.contrast.temperature)
        if len(ks) < k:
            index = on(x.device, ks)
            rows = {name: t.index_select(0, index) for name, t in rows.items()}
        return rows
