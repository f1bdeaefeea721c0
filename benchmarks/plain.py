"""FedAvg as anyone would write it in PyTorch: the base of every speed ratio in this project.

Nothing here comes from fedskip. One model after another, one torch thread, tensors indexed by a
random permutation (leaner than a DataLoader, which would only flatter us), `torch.optim.SGD`, and
an average of state dicts at the end of the round.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn


def train_client(
    model: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
    batch: int,
    epochs: int,
    max_steps: int | None = None,
) -> int:
    """Local SGD on one client's samples; gives the number of steps."""
    model.train()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay
    )
    steps = 0
    for _ in range(epochs):
        order = torch.randperm(len(x), device=x.device)
        for index in order.split(batch):
            if len(index) < batch or steps == max_steps:
                continue
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[index]), y[index])
            loss.backward()
            optimizer.step()
            steps += 1
    return steps


def fedavg_round(
    model: nn.Module,
    data: list[tuple[torch.Tensor, torch.Tensor]],
    **local: float | int | None,
) -> int:
    """One round over the clients in `data`; updates `model`, gives the number of client-steps."""
    total = sum(len(x) for x, _ in data)
    average: dict[str, torch.Tensor] = {}
    steps = 0
    for x, y in data:
        client = copy.deepcopy(model)
        steps += train_client(client, x, y, **local)  # type: ignore[arg-type]
        for name, tensor in client.state_dict().items():
            average[name] = average.get(name, 0) + tensor * (len(x) / total)
    model.load_state_dict(average)
    return steps
