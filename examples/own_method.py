"""A method of your own: the slots merge by a trimmed mean, so that a few bad clients cannot spoil the model.

    python examples/own_method.py [ROUNDS]

`TrimmedMean` below is the whole method. It works from the command line too, and it skips like every other:

    cd examples
    fedskip run --methods "fedavg, own_method:TrimmedMean(trim=2), own_method:TrimmedMean(trim=2, period=3)"

Here 3 of 24 clients are broken (their inputs are a hundred times too large and their labels are noise), and
10 of the 24 take part in a round. A plain average follows them; the trimmed one does not.
"""

import sys
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor, nn

import fedskip
from fedskip.methods import AtLeast, Merged, Method, State


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(Method):
    """Leaves out the `trim` largest and smallest values of every parameter (Yin et al., ICML 2018)."""

    trim: Annotated[int, AtLeast(0)] = 1
    title = "TrimmedMean"

    def merge(self, server: State, x: Tensor, w: Tensor, p: Tensor, a: Tensor) -> Merged:
        cut = min(self.trim, (len(w) - 1) // 2)  # w is (K, D); something must be left of few slots
        mean = w.sort(dim=0).values[cut : len(w) - cut].mean(0)
        return Merged(broadcast=mean, evaluated=mean, server=server)


def clients(number: int = 24, size: int = 60, broken: int = 3) -> fedskip.Dataset:
    """Three classes in the plane, clients shifted against each other; the last ones are broken."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(number), size)
    y = rng.integers(0, 3, len(owner))
    centres = np.array([[0, 2], [-2, -1], [2, -1]])
    x = (
        centres[y]
        + 0.5 * rng.normal(size=(number, 2))[owner]
        + 0.8 * rng.normal(size=(len(owner), 2))
    )
    bad = owner >= number - broken
    x[bad] *= 100
    y[bad] = rng.integers(0, 3, bad.sum())
    test = ~bad & (np.arange(len(owner)) % 4 == 0)  # nobody is tested on broken data
    return fedskip.Dataset(
        name="broken-clients",
        samples=fedskip.Arrays(torch.tensor(x, dtype=torch.float32), torch.tensor(y)),
        split=lambda seed: (np.flatnonzero(~test), np.flatnonzero(test)),
        classes=3,
        owner=owner,
    )


def main(rounds: int = 30) -> None:
    fedskip.check_method(TrimmedMean, trim=2)  # the contract that our own methods pass
    study = fedskip.Study(
        name="own-method",
        data=clients(),
        partition="natural",
        model=lambda: nn.Linear(2, 3),
        cohort=10,
        local={"lr": 0.05, "batch": 15, "epochs": 1},
        # as text, which is what a study file and the command line have; TrimmedMean(trim=3) works as well
        methods=["fedavg", "own_method:TrimmedMean(trim=3, period=[1, 3])"],
        rounds=rounds,
        seeds=1,
    )
    results = study.run()
    print(f"{'method':<28} mean accuracy of the last rounds")
    for row in results.summary.to_dict("records"):
        print(f"{row['method']:<28} {row['mean_tail']:.3f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
