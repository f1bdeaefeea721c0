"""Regression: `loss` and `metric` are arguments.

    python examples/regression.py [ROUNDS]

Clients see the same line, with different inputs and amounts of data. The first metric is the headline; lower
is better, which it knows of itself, and `@fedskip.metric` says it of one's own. The last line of the table is
ordinary least squares on the data of all clients together.
"""

import sys

import numpy as np
import torch
from torch import Tensor, nn

import fedskip


@fedskip.metric(higher_is_better=False)
def absolute_error(output: Tensor, target: Tensor) -> Tensor:
    """(B, 1) and (B,) -> (B,); `mae` is the same."""
    return (output[:, 0] - target).abs()


def main(rounds: int = 30) -> None:
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(12), rng.integers(40, 120, 12))
    x = rng.normal(size=(len(client), 5)) + rng.normal(size=(12, 5))[client]
    y = x @ np.array([1.0, -2.0, 0.5, 0.0, 3.0]) + 1.0 + 0.3 * rng.normal(size=len(client))
    test = np.arange(len(client)) % 5 == 0
    data = fedskip.Dataset(
        name="line",
        samples=fedskip.Arrays(
            torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)
        ),
        split=lambda seed: (np.flatnonzero(~test), np.flatnonzero(test)),
        owner=client,
    )
    results = fedskip.Study(
        name="regression",
        data=data,
        partition="natural",
        model=lambda: nn.Linear(5, 1),
        loss="squared_error",  # by name, or a function like the metric below
        metric=[absolute_error, "r2"],
        cohort=6,
        local={"lr": 0.01, "momentum": 0.9, "batch": 16, "epochs": 1},
        methods=["fedavg", "fedskip(period=3)", "fednova"],
        rounds=rounds,
        seeds=1,
    ).run()

    print(f"{'method':<20} mean absolute error, R²")
    for row in results.summary.to_dict("records"):
        print(f"{row['method']:<20} {row['last']:.3f} {row['x_r2']:.4f}")
    with_bias = np.c_[x, np.ones(len(x))]
    solution = np.linalg.lstsq(with_bias[~test], y[~test], rcond=None)[0]
    print(f"{'least squares':<20} {np.abs(with_bias[test] @ solution - y[test]).mean():.3f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
