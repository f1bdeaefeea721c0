"""Data and a model of your own: two arrays, the client of each sample, and any nn.Module.

    python examples/own_data_and_model.py [ROUNDS]

Every client holds mostly one of four classes. The script compares FedAvg, FedSkip and SCAFFOLD with skipping,
loads the trained model back, and fails if FedSkip misses an accuracy of 0.90.
"""

import sys

import numpy as np
import torch
from torch import Tensor, nn

import fedskip

FLOOR = 0.90


class Net(nn.Module):
    """Anything goes that maps a batch to scores; BatchNorm and dropout are fine."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1))
        self.classify = nn.Linear(32, 4)

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Only MOON asks for this: the output, and the representation z behind it."""
        z = self.body(x)
        return self.classify(z), z

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)[0]


def arrays(clients: int = 20, size: int = 50) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x (n, 8), y (n,) and the client of each sample (n,): 70 % of a client's samples are of one class."""
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(clients), size)
    y = np.where(rng.random(len(client)) < 0.7, client % 4, rng.integers(0, 4, len(client)))
    x = 1.5 * rng.normal(size=(4, 8))[y] + rng.normal(size=(len(client), 8))
    return x.astype(np.float32), y, client


def main(rounds: int = 15) -> None:
    x, y, client = arrays()
    test = np.arange(len(x)) % 5 == 0
    data = fedskip.Dataset(
        name="mine",
        samples=fedskip.Arrays(torch.from_numpy(x), torch.from_numpy(y)),
        split=lambda seed: (np.flatnonzero(~test), np.flatnonzero(test)),
        classes=4,
        owner=client,
    )
    results = fedskip.Study(
        name="own-data",
        data=data,
        partition="natural",  # clients are owners; `iid`, `dirichlet` and others would deal the samples anew
        model=Net,
        cohort=8,
        local={"lr": 0.05, "batch": 20, "epochs": 2},
        methods=["fedavg", "fedskip(period=3)", "scaffold(period=3)"],
        rounds=rounds,
        seeds=1,
    ).run()

    print(f"{'method':<20} last   best  merges")
    for row in results.summary.to_dict("records"):
        print(f"{row['method']:<20} {row['last']:.3f}  {row['best']:.3f}  {row['merges']:>6}")

    path = results.out / "models" / "mine.FedSkip-3.s0.last.safetensors"
    model = fedskip.load(
        path, module=Net()
    )  # a module of your own has to be given, its weights are in the file
    right = (
        (model(torch.from_numpy(x[test])).argmax(1) == torch.from_numpy(y[test]))
        .float()
        .mean()
        .item()
    )
    print(f"{path.name} is right on {right:.1%} of the test samples")
    if right < FLOOR:
        raise SystemExit(f"that is less than {FLOOR:.0%}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
