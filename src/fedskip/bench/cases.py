"""What benchmarks measure, by name: data, models, and visits."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import nn

from fedskip.data import Dataset
from fedskip.data.synthetic import random_images, random_text


class PflCNN(nn.Sequential):
    """The network of pfl-research's CIFAR-10 benchmark; 1,626,442 parameters."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Dropout(0.25), nn.Flatten(),
            nn.Linear(12544, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
        )  # fmt: skip


@dataclass(frozen=True)
class Case:
    """What is measured: a study's keys, and those that the stacked engine has on a GPU.

    There its visits are as long as in a study. Those of `plain` and `loop`, which take a hundred times as
    long, stay short: their rates hardly depend on it.
    """

    keys: dict[str, Any]
    data: Callable[[], Dataset] | None = None
    on_gpu: dict[str, Any] = field(default_factory=dict)
    cohort: int = 10
    rounds: int = 2  # that the stacked engine plays at a time

    def study(self, rows: int, **more: Any) -> dict[str, Any]:
        """The keys of a study with `rows` rows: a cohort for each seed."""
        keys = self.keys if self.data is None else self.keys | {"data": self.data()}
        keys = keys | {"methods": "fedavg", "rounds": 1_000_000, "seeds": rows // self.cohort}
        return keys | {"cohort": self.cohort, "engine": "stacked", **more}


def visits(steps: int) -> dict[str, Any]:
    """Visits of `steps` steps to clients of 1000 samples."""
    return {"local": {"epochs": -(-steps // 15), "max_steps": steps}}


IID = {"partition": "iid", "clients": 50}
CASES = {
    # 50 rounds lie between two checkpoints of the paper's 1000
    "synthetic": Case({"data": "synthetic", "model": "perceptron"}, rounds=50),
    "cnn": Case(IID | {"model": "cnn"} | visits(15), random_images, on_gpu=visits(150)),
    "cnn-femnist": Case(
        IID | {"model": "cnn-femnist"} | visits(15),
        partial(random_images, classes=62, shape=(1, 28, 28)),
        on_gpu=visits(150),
    ),
    "lstm": Case(IID | {"model": "lstm"} | visits(5), random_text, on_gpu=visits(60)),
    "resnet50": Case(
        IID | {"model": "resnet50"} | visits(5), partial(random_images, classes=100), on_gpu=visits(15)
    ),
    # 1000 clients of 50 images, a cohort of 50, one epoch in batches of 10
    "pfl-cifar10": Case(
        {
            "partition": "iid", "clients": 1000, "model": PflCNN,
            "local": {"epochs": 1, "batch": 10, "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0},
        },
        partial(random_images, clients=1000, size=50),
        cohort=50,
    ),
}  # fmt: skip
