"""One step of n rows: a pure function of matrices, the same for every method.

    v <- rho v + grad F(y) + wd y + mu (y - anchor) + linear
    y <- y - eta v

How it is run (compiled, recorded as a graph, on streams) is the business of `stepper.py`.
"""

import torch
from torch import Tensor

from fedskip.engine.gradients import Gradients
from fedskip.engine.task import Task
from fedskip.rng import mix

Matrices = dict[str, Tensor]  # one row per seat: y, v, loss, active, word and the terms
STATE = ("y", "v", "loss")  # what a step changes


def step(
    task: Task,
    gradients: Gradients,
    rows: Matrices,
    inputs: Tensor,
    targets: Tensor,
    index: Tensor,
    eta: Tensor,
    count: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The new y (n, P), v (n, D) and loss (n, 1).

    inputs and targets (n, B, ...) are the samples at index (n, B), where -1 fills up a short batch; eta
    (n, 1) are the learning rates, count (n,) the steps done in the visit. A row that is not active stays.
    """
    local, d = task.local, task.layout.trainable
    y, v, active = rows["y"], rows["v"], rows["active"]
    w, rest = y[:, :d], y[:, d:]
    word = mix(rows["word"], count)
    inputs, here = augmented(task, inputs, word), index >= 0
    g, loss, rest = gradients(rows, w, rest, inputs, targets, here, word)
    if local.clip is not None:
        g = g * (local.clip / (g.norm(dim=1, keepdim=True) + 1e-6)).clamp(max=1.0)
    if "mu" in rows:
        g = g + rows["mu"] * (w - rows["anchor"])
    if "linear" in rows:
        g = g + rows["linear"]
    v_new = local.momentum * v + (g + local.weight_decay * w)
    y_new = torch.cat([w - eta * v_new, rest], 1)
    return (
        torch.where(active, y_new, y),
        torch.where(active, v_new, v),
        rows["loss"] + torch.where(active, loss[:, None], 0.0),
    )


def augmented(task: Task, inputs: Tensor, word: Tensor) -> Tensor:
    """Augmented inputs (n, B, ...): each sample draws from the word of its row and its place."""
    if task.train_transform is None:
        return inputs
    n, batch = inputs.shape[:2]
    words = mix(word[:, None], torch.arange(batch, device=inputs.device))
    flat = task.train_transform(inputs.flatten(0, 1), words.flatten())
    return flat.reshape(n, batch, *flat.shape[1:])
