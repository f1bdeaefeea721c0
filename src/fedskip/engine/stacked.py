"""The stacked engine: all visits under way, of all runs, methods and seeds, train in one batched step.

Each visit has a seat, one row of every matrix. Visits are of unequal length, so a row that has finished is
frozen whole (weights, momentum, buffers) until the rows are laid out again. That happens when visits join, or
when those still busy fit a smaller size. There are few sizes, because each is traced, and compiled where there
is a compiler, once. What happens in which order is a function of the routes alone, never of timing.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from fedskip.engine.arithmetic import torch_threads
from fedskip.engine.plan import SHARE, Footprint, Plan
from fedskip.engine.step import Matrices
from fedskip.engine.stepper import BLOCK, Stepper, Stopwatch
from fedskip.engine.task import Job, Notify, Preparing, Task, Trained
from fedskip.errors import InputError
from fedskip.models.forms import batch_norms, stacking_obstacles
from fedskip.models.vector import on
from fedskip.rng import fold

# of a row at the most: as laid out, where graphs read it, and while seats or graphs change
COPIES = 3


class Stacked:
    """The engine that trains all visits under way together, one batched step at a time.

    Rows with MOON's contrast have a stack of their own, which spares the others its two extra forward passes.
    """

    def __init__(self, task: Task, plan: Plan) -> None:
        if refused := refusal(task, plan.streams):
            raise refused
        self.task, self.plan, self._watch = task, plan, Stopwatch()
        kinds = [False, True] if plan.contrast_sizes else [False]
        self.stacks = {contrast: Stack(task, plan, contrast, self._watch) for contrast in kinds}

    @property
    def busy(self) -> bool:
        """Whether visits are under way, or wait."""
        return any(stack.busy for stack in self.stacks.values())

    @property
    def preparing(self) -> Preparing:
        """How far the preparation of a step is."""
        doing = "compiling" if self.plan.compile else "tracing"
        return Preparing(
            self._watch.seconds, doing if self._watch.running else "", len(self._watch.begun),
            most=sum(len(stack.sizes) for stack in self.stacks.values()),
        )  # fmt: skip

    def watch(self, notify: Notify) -> None:
        """Call `notify` with the rows of a step when its preparation begins, and with 0 when it ends."""
        self._watch.notify = notify

    @contextmanager
    def open(self) -> Iterator[None]:
        """A context in which torch's threads and kernels are the engine's."""
        # streams, graphs and kernels are to be those of this GPU: torch takes the first by default
        device = self.task.device
        here = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
        with torch_threads(self.plan.threads), torch.no_grad(), here:
            yield

    def join(self, jobs: Iterable[Job]) -> None:
        """Take jobs whose visits may start."""
        for job in jobs:
            if job.terms.objective is not None:
                raise own_objective()
            contrast = job.terms.contrast is not None
            if contrast not in self.stacks:  # no run had one at first
                self.stacks[contrast] = Stack(self.task, self.plan, contrast, self._watch)
            self.stacks[contrast].join(job)

    def advance(self) -> Iterator[Trained]:
        """Train until visits end, and give those."""
        busy = [stack for stack in self.stacks.values() if stack.busy]
        for stack in busy:
            stack.lay_out()
        steps = min(stack.shortest() for stack in busy)
        for stack in busy:
            stack.advance(steps)
        for stack in busy:
            yield from stack.ended()


def refusal(task: Task, streams: int = 0) -> InputError | None:
    """Why the stacked engine cannot train a task, or None if it can."""
    model, local = type(task.module).__name__, task.local
    obstacle = None if streams else stacking_obstacles(task.module)
    if obstacle is None and task.draws:
        obstacle = "it draws from torch's global generator; use engine=loop"
    if obstacle:
        return InputError("engine", "cannot be 'stacked' for this model", model, obstacle)
    if not batch_norms(task.module):
        return None
    if task.arithmetic.precision == "bf16" and not streams:
        fix = "set streams=4, or precision=tf32"
        return InputError("streams", "must be 1 or more for BatchNorm in bf16", streams, fix)
    if local.last_batch == "keep" or (local.small_clients == "short" and not task.full_batches):
        rule = "cannot be 'stacked' for BatchNorm with short batches"
        fix = "use engine=loop, or local.last_batch=drop and local.small_clients=drop"
        return InputError("engine", rule, local.last_batch, fix)
    return None


def own_objective() -> InputError:
    rule = "cannot be 'stacked' for a method with its own objective"
    return InputError("engine", rule, fix="use engine=loop")


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
    """The rows that share one step: those with MOON's contrast, or those without."""

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
        ended = [(i, seat) for i, seat in enumerate(self.seats) if seat and not seat.left]
        if not ended:
            return
        index = on(self.rows["y"].device, [i for i, _ in ended])
        y, loss = (self.rows[name].index_select(0, index) for name in ("y", "loss"))
        self.rows["active"] = self.rows["active"].index_fill(0, index, False)
        places: dict[Job, dict[int, int]] = {}  # k -> place in y; seats keep the order of joining
        for place, (i, seat) in enumerate(ended):
            places.setdefault(seat.job, {})[seat.k] = place
            self.seats[i] = None
        for job, of_job in places.items():
            where = on(y.device, [*of_job.values()])
            y_job, loss_job = (y, loss) if len(places) == 1 else (y[where], loss[where])
            yield Trained(job, list(of_job), y_job, loss_job[:, 0])

    def lay_out(self) -> None:
        """Seat those who wait, as far as there is room, and close ranks where a smaller size will do."""
        keep = [i for i, seat in enumerate(self.seats) if seat]
        room = None if self.plan.rows is None else self.plan.rows - len(keep)
        joining, self.waiting = self.waiting[:room], [] if room is None else self.waiting[room:]
        busy = len(keep) + len(joining)
        if not any(size >= busy for size in self.sizes):
            self.sizes.append(busy)  # more than planned for: a size of their own is right, too
        size = next(size for size in self.sizes if size >= busy)
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
        blocks.append({name: t.new_zeros((empty, *t.shape[1:])) for name, t in blocks[0].items()})
        self.rows = {name: torch.cat([block[name] for block in blocks]) for name in blocks[0]}

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
        device, dtype = rows["y"].device, rows["y"].dtype
        eta = on(device, route.eta[:1, None], dtype)
        return rows, on(device, route.batches[:1]), eta, on(device, [0])

    def footprint(self, job: Job, remembered: int = 0, share: float = SHARE) -> Footprint:
        """What rows take of the GPU's memory, from the first step of a visit.

        `remembered`: bytes that will go to what clients remember.
        """
        rows, index, eta, count = self.opening(job)
        device = rows["y"].device
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        with torch.no_grad(), torch.cuda.device(device), self.task.arithmetic.kernels():
            self.stepper.once(rows, index, eta, count)
        peak = torch.cuda.max_memory_allocated(device) - before
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        free = max(0, torch.cuda.mem_get_info(device)[0] + unused - remembered)
        row = COPIES * sum(t.nbytes for t in rows.values()) + rows["y"].nbytes
        return Footprint(row, peak, free, self.plan.streams, share)

    def rows_of(self, job: Job, ks: Sequence[int]) -> Matrices:
        """The matrices of visits that begin."""
        x, terms, plan = job.x, job.terms, self.plan
        k, d = len(x), self.task.layout.trainable
        pull, linear = terms.mu is not None, terms.linear is not None
        if pull > plan.pull or linear > plan.linear:
            raise ValueError("a method must give the same kinds of terms in every round")
        rows = {
            "y": x,
            "v": x.new_zeros(k, d),
            "loss": x.new_zeros(k, 1),
            "active": torch.ones(k, 1, dtype=torch.bool, device=x.device),
            "word": fold(on(x.device, [route.key for route in job.routes])),
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
