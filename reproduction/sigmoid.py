"""What the sigmoid at the output of LEAF's perceptron does to SYNTHETIC: it prefers a worse classifier.

    python -m reproduction sigmoid

One linear layer, with the sigmoid and without, trained centrally on the samples of all clients: once from a
fresh start, once from the rule that made the labels, mu Q, whose noise is all that it gets wrong. Writes the
accuracy on the pooled test samples after each epoch, and the training loss.
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.nn.functional import cross_entropy

from fedskip.data import synthetic
from fedskip.data.dataset import Arrays

EPOCHS, BATCH, RATE, MOMENTUM = 20, 64, 0.01, 0.9  # the paper's, but for the epochs


def rule() -> torch.Tensor:
    """(61, 5), the bias first: the first draws of LEAF's generator."""
    draw = np.random.RandomState(synthetic.SEED)
    Q = draw.normal(size=(synthetic.FEATURES + 1, synthetic.CLASSES))
    return torch.from_numpy(Q * draw.normal(draw.normal())).float()


def rows(seed: int, start: str, sigmoid: bool) -> list[dict[str, Any]]:
    data, generator = synthetic.load(), torch.Generator().manual_seed(seed)
    assert isinstance(data.samples, Arrays)
    x, y = data.samples.x, data.samples.y
    x = torch.cat([torch.ones(len(x), 1), x], 1)  # (n, 61)
    train, test = (torch.from_numpy(part) for part in data.split(seed))
    W = (
        rule()
        if start == "rule"
        else (torch.rand(x.shape[1], synthetic.CLASSES, generator=generator) - 0.5) / 4
    )
    W.requires_grad_()
    optimiser = torch.optim.SGD([W], lr=RATE, momentum=MOMENTUM)

    def loss(batch: torch.Tensor) -> torch.Tensor:
        z = x[batch] @ W
        return cross_entropy(z.sigmoid() if sigmoid else z, y[batch])

    found: list[dict[str, Any]] = []
    for epoch in range(EPOCHS + 1):
        with torch.no_grad():
            right = ((x[test] @ W).argmax(1) == y[test]).float().mean()
            numbers = {"train_loss": f"{loss(train):.5f}", "test_accuracy": f"{right:.5f}"}
        found.append({"seed": seed, "start": start, "sigmoid": sigmoid, "epoch": epoch, **numbers})
        for batch in train[torch.randperm(len(train), generator=generator)].split(BATCH):
            optimiser.zero_grad()
            loss(batch).backward()
            optimiser.step()
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=3)


def main(chosen: argparse.Namespace) -> pd.DataFrame:
    torch.set_num_threads(1)
    cases = itertools.product(range(chosen.seeds), ("fresh", "rule"), (True, False))
    return pd.DataFrame([row for case in cases for row in rows(*case)])
