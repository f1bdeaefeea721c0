"""All visits at once: rows of different slots, runs, methods and seeds train in one batched step.

What happens in which order is a function of the routes alone, never of timing.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext

import torch

from fedskip.engine.arithmetic import torch_threads
from fedskip.engine.stacked.plan import Plan
from fedskip.engine.stacked.stack import Stack
from fedskip.engine.stacked.stepper import Stopwatch
from fedskip.engine.task import Job, Notify, Preparing, Task, Trained
from fedskip.errors import InputError
from fedskip.models.checks import stacking_obstacles
from fedskip.models.layer_kinds import batch_norms


class Stacked:
    """The engine that trains all visits under way together, one batched step at a time.

    Rows with MOON's contrast have a stack of their own, which spares the others its two extra forward passes.
    """

    def __init__(self, task: Task, plan: Plan) -> None:
        if refused := refusal(task, plan.streams):
            raise refused
        self.task, self.plan, self._watch = task, plan, Stopwatch()
        kinds = [False, True] if plan.contrast_sizes else [False]
        self.stacks = {contrast: self._stack(contrast) for contrast in kinds}

    def _stack(self, contrast: bool) -> Stack:
        return Stack(self.task, self.plan, contrast, self._watch)

    @property
    def busy(self) -> bool:
        return any(stack.busy for stack in self.stacks.values())

    @property
    def preparing(self) -> Preparing:
        doing = "compiling" if self.plan.compile else "tracing"
        return Preparing(
            self._watch.seconds, doing if self._watch.running else "", len(self._watch.begun),
            most=sum(len(stack.sizes) for stack in self.stacks.values()),
        )  # fmt: skip

    def watch(self, notify: Notify) -> None:
        self._watch.notify = notify

    @contextmanager
    def open(self) -> Iterator[None]:
        # streams, graphs and kernels are to be those of this GPU: torch takes the first by default
        device = self.task.device
        here = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
        with torch_threads(self.plan.threads), torch.no_grad(), here:
            yield

    def join(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            if job.terms.objective is not None:
                raise own_objective()
            contrast = job.terms.contrast is not None
            if contrast not in self.stacks:  # no run had one at first
                self.stacks[contrast] = self._stack(contrast)
            self.stacks[contrast].join(job)

    def advance(self) -> Iterator[Trained]:
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
