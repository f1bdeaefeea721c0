"""Rows that share one step: each visit under way has a seat, one row of every matrix.

Visits are of unequal length, so a row that has finished is frozen whole (weights, momentum, buffers) until
the rows are laid out again. That happens when visits join, or when those still busy fit a smaller size. There
are few sizes, because each is traced, and compiled where there is a compiler, once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from fedskip.engine.stacked.plan import Plan
from fedskip.engine.stacked.step import Matrices
from fedskip.engine.stacked.stepper import BLOCK, Stepper, Stopwatch
from fedskip.engine.task import Job, Task, Trained
from fedskip.models.vector import on
from fedskip.rng import fold


@dataclass
class Seat:
    """One visit in a stack."""

    job: Job
    k: int
    done: int = 0  # steps

    @property
    def left(self) -> int:
        return self.job.routes[self.k].steps - self.done


class Stack:
    """The rows with MOON's contrast, or those without."""

    def __init__(
        self, task: Task, plan: Plan, contrast: bool = False, watch: Stopwatch | None = None
    ) -> None:
        self.task, self.plan, self.contrast = task, plan, contrast
        self.sizes = sorted(plan.contrast_sizes if contrast else plan.sizes)
        self.stepper = Stepper(task, plan, contrast, watch)
        self.seats: list[Seat | None] = []  # as laid out; None: finished, or never taken
        self.waiting: list[Seat] = []
        self.rows: Matrices = {}

    @property
    def busy(self) -> bool:
        return bool(self.waiting) or any(self.seats)

    def join(self, job: Job) -> None:
        """Let K visits in; each waits for a seat."""
        self.waiting += [Seat(job, k) for k in range(len(job.routes))]

    def shortest(self) -> int:
        """The steps until the next visit ends."""
        return min(seat.left for seat in self.seats if seat)

    def advance(self, steps: int) -> None:
        """Take `steps` steps with every busy row; none of them ends earlier."""
        for start in range(0, steps, BLOCK):
            self.rows = self.stepper.advance(self.rows, self._block(min(BLOCK, steps - start)))

    def ended(self) -> Iterator[Trained]:
        """Free the seats of the rows that have ended, and give those of each job together."""
        ended = [i for i, seat in enumerate(self.seats) if seat and not seat.left]
        if not ended:
            return
        index = on(self.rows["y"].device, ended)
        y, loss = (
            self.rows["y"].index_select(0, index),
            self.rows["loss"].index_select(0, index)[:, 0],
        )
        self.rows["active"] = self.rows["active"].index_fill(0, index, False)
        places: dict[Job, dict[int, int]] = {}  # k -> place in y; seats keep the order of joining
        for j, i in enumerate(ended):
            seat = self.seats[i]
            assert seat is not None
            places.setdefault(seat.job, {})[seat.k] = j
            self.seats[i] = None
        for job, of_job in places.items():
            if len(places) == 1:
                yield Trained(job, list(of_job), y, loss)
            else:
                rows = on(y.device, list(of_job.values()))
                yield Trained(
                    job, list(of_job), y.index_select(0, rows), loss.index_select(0, rows)
                )

    def lay_out(self) -> None:
        """Seat those who wait, as far as there is room, and close ranks where a smaller size will do."""
        keep = [i for i, seat in enumerate(self.seats) if seat]
        room = None if self.plan.rows is None else self.plan.rows - len(keep)
        joining, self.waiting = self.waiting[:room], [] if room is None else self.waiting[room:]
        busy = len(keep) + len(joining)
        size = self._size(busy)
        if not joining and size == len(self.seats):
            return
        blocks: list[Matrices] = []
        if keep:
            index = on(self.rows["y"].device, keep)
            blocks = [{name: rows.index_select(0, index) for name, rows in self.rows.items()}]
        for job, seats in groupby(joining, lambda seat: seat.job):
            blocks.append(self.rows_of(job, [seat.k for seat in seats]))
        empty = size - busy
        self.seats = [*(self.seats[i] for i in keep), *joining, *[None] * empty]
        if empty:
            zeros = {
                name: rows.new_zeros((empty, *rows.shape[1:])) for name, rows in blocks[0].items()
            }
            blocks.append(zeros)
        self.rows = {name: torch.cat([block[name] for block in blocks]) for name in blocks[0]}

    def _size(self, rows: int) -> int:
        fits = [size for size in self.sizes if size >= rows]
        if not fits:  # more rows than planned for: a size of their own is right, only not planned
            self.sizes.append(rows)
            return rows
        return fits[0]

    def _block(self, steps: int) -> tuple[Tensor, Tensor, Tensor]:
        """The next steps of all seats: index (steps, n, B), eta (steps, n, 1), count (steps, n)."""
        n, batch = len(self.seats), self.task.local.batch
        index = np.zeros((steps, n, batch), np.int64)
        eta = np.zeros((steps, n, 1))
        count = np.zeros((steps, n), np.int64)
        for i, seat in enumerate(self.seats):
            if seat:
                route, done = seat.job.routes[seat.k], seat.done
                index[:, i] = route.batches[done : done + steps]
                eta[:, i, 0] = route.eta[done : done + steps]
                count[:, i] = np.arange(done, done + steps)
                seat.done += steps
        y = self.rows["y"]
        return on(y.device, index), on(y.device, eta, y.dtype), on(y.device, count)

    def opening(self, job: Job) -> tuple[Matrices, Tensor, Tensor, Tensor]:
        """The first step of the first visit alone: its row, index (1, B), eta (1, 1) and count (1,)."""
        rows, route = self.rows_of(job, [0]), job.routes[0]
        y = rows["y"]
        index = on(y.device, route.batches[:1])
        return (
            rows,
            index,
            on(y.device, route.eta[:1, None], y.dtype),
            torch.zeros_like(index[:, 0]),
        )

    def rows_of(self, job: Job, ks: Sequence[int]) -> Matrices:
        """The matrices of visits that begin."""
        x, terms, plan = job.x, job.terms, self.plan
        k, d = len(x), self.task.layout.trainable
        if (terms.mu is not None and not plan.pull) or (
            terms.linear is not None and not plan.linear
        ):
            raise ValueError("a method must give the same kinds of terms in every round")
        keys = on(x.device, [route.key for route in job.routes])
        rows = {
            "y": x,
            "v": x.new_zeros(k, d),
            "loss": x.new_zeros(k, 1),
            "active": torch.ones(k, 1, dtype=torch.bool, device=x.device),
            "word": fold(keys),
        }
        if plan.pull:
            rows["mu"] = x.new_zeros(k, 1) if terms.mu is None else terms.mu
            rows["anchor"] = x[:, :d] if terms.anchor is None else terms.anchor
        if plan.linear:
            rows["linear"] = x.new_zeros(k, d) if terms.linear is None else terms.linear
        if self.contrast:
            assert terms.contrast is not None
            rows["received"], rows["previous"] = x, terms.contrast.previous
            rows["weight"] = terms.contrast.weight
            rows["temperature"] = torch.full_like(terms.contrast.weight, terms.contrast.temperature)
        if len(ks) < k:
            index = on(x.device, ks)
            rows = {name: t.index_select(0, index) for name, t in rows.items()}
        return rows
