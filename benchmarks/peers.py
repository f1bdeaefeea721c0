"""Seconds per round of fedskip and of other simulators, in one process and on the same images.

The set-up is pfl-research's own CIFAR-10 benchmark (`pfl-cifar10` of speed.py) with random pixels:
1000 clients of 50 images, a cohort of 50, one epoch in batches of 10, SGD at 0.1, and the average
as the new model.

    pip install -e . pfl fedlab torchvision     # a peer that is missing is named and left out
    python benchmarks/peers.py --device cuda
    python benchmarks/peers.py --device cuda --precision fp32
    python benchmarks/peers.py --clients 100 --cohort 10
    python benchmarks/peers.py --case synthetic  # and Flower's simulation: see flower_simulation.py

The contestants take turns, and each number is the median of three turns after one that warms up.
The last line printed is a JSON object. What is the same for all, and what is not:

- All have their data on the device, the same precision, no privacy, no evaluation and no logging.
- Only fedskip repeats its bits (`deterministic: true`), with a dropout of its own; the others have
  torch's.
- On a CPU pfl and FedLab play with one torch thread and with all; `plain` and each worker of `loop`
  have one. Other work on the machine slows many threads far more than one, so use an idle machine.
- pfl takes every client's images in one order, as it always does; the others shuffle them.
- FedLab's `DataLoader` is replaced by indexing on the device, as in `plain`, which is faster. That
  its models travel through the host's memory is its own design.
- pfl runs in one process. Its guide lets several share a GPU, which is not measured here.
- Flower has a case of its own: its simulation owns its processes, so it takes turns only as a
  whole.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

import flower_simulation
import speed
from fedskip.data.synthetic import random_images
from fedskip.engine import Local, Loop
from fedskip.engine.arithmetic import Arithmetic, torch_threads
from fedskip.errors import InputError
from fedskip.study.machine import prepared_setting
from fedskip.version import versions
from plain import fedavg_round
from speed import CASES, SECONDS, Once, PflCNN, contestant, once

IMAGES = 50  # of each client

Clients = list[tuple[Tensor, Tensor]]  # (50, 3, 32, 32) and (50,) of each, on the device


@dataclass(frozen=True)
class Peer:
    play: Callable[[], object]  # one round
    model: nn.Module  # the global one, which has changed after it


def plain(clients: Clients, cohort: int, local: Local) -> Peer:
    """`benchmarks/plain.py`."""
    model = PflCNN().to(clients[0][0].device)
    rng = np.random.default_rng(0)
    names = ("lr", "momentum", "weight_decay", "batch", "epochs")

    def play() -> None:
        data = [clients[c] for c in rng.choice(len(clients), cohort, replace=False)]
        fedavg_round(model, data, **{name: getattr(local, name) for name in names})

    return Peer(play, model)


def pfl(clients: Clients, cohort: int, local: Local) -> Peer:
    """pfl-research as its `benchmarks/image_classification/pytorch/train.py` sets it up."""
    os.environ["PFL_PYTORCH_DEVICE"] = str(
        clients[0][0].device
    )  # otherwise a GPU wherever there is one
    from pfl.aggregate.simulate import SimulatedBackend  # type: ignore[import]
    from pfl.aggregate.weighting import WeightByUser  # type: ignore[import]
    from pfl.algorithm.base import NNAlgorithmParams  # type: ignore[import]
    from pfl.algorithm.federated_averaging import FederatedAveraging  # type: ignore[import]
    from pfl.data import FederatedDataset  # type: ignore[import]
    from pfl.data.sampling import get_user_sampler  # type: ignore[import]
    from pfl.hyperparam import NNTrainHyperParams  # type: ignore[import]
    from pfl.model.pytorch import PyTorchModel  # type: ignore[import]

    class Model(PflCNN):
        def loss(self, x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(self(x), y)

        def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
            return {}  # pfl asks for them in its first round, whatever the frequency

    module = Model().to(clients[0][0].device)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    data = FederatedDataset.from_slices(clients, get_user_sampler("random", range(len(clients))))
    backend = SimulatedBackend(training_data=data, val_data=None, postprocessors=[WeightByUser()])
    algorithm = FederatedAveraging()
    training = NNTrainHyperParams(
        local_learning_rate=local.lr, local_num_epochs=local.epochs, local_batch_size=local.batch
    )
    number = itertools.count(1)

    def play() -> None:
        goal = NNAlgorithmParams(
            central_num_iterations=next(number), evaluation_frequency=sys.maxsize,
            train_cohort_size=cohort, val_cohort_size=0,
        )  # fmt: skip
        algorithm.run(goal, backend, model, training, send_metrics_to_platform=False)

    return Peer(play, module)


def fedlab(clients: Clients, cohort: int, local: Local) -> Peer:
    """FedLab's standalone simulation: serial trainer, synchronous server."""
    from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer  # type: ignore[import]
    from fedlab.contrib.algorithm.basic_server import SyncServerHandler  # type: ignore[import]
    from fedlab.contrib.dataset.basic_dataset import FedDataset  # type: ignore[import]
    from fedlab.core.standalone import StandalonePipeline  # type: ignore[import]

    class Batches(FedDataset):  # type: ignore[misc]
        def get_dataloader(self, id: int, batch_size: int, type: str = "train") -> Clients:
            x, y = clients[id]
            return [(x[i], y[i]) for i in torch.randperm(len(y), device=y.device).split(batch_size)]

    class Pipeline(StandalonePipeline):  # type: ignore[misc]
        def evaluate(self) -> None: ...

    device = clients[0][0].device
    where = {"cuda": device.type == "cuda", "device": device}
    ratio = min(1.0, (cohort + 0.5) / len(clients))  # of which FedLab takes the whole part
    server = SyncServerHandler(PflCNN(), global_round=0, sample_ratio=ratio, **where)
    trainer = SGDSerialClientTrainer(PflCNN(), len(clients), **where)
    trainer.setup_dataset(Batches())
    trainer.setup_optim(local.epochs, local.batch, local.lr)
    logging.getLogger().setLevel(logging.WARNING)  # FedLab turns on the messages of all libraries
    pipeline = Pipeline(server, trainer)

    def play() -> None:
        server.global_round += 1
        pipeline.main()

    return Peer(play, server.model)


PEERS = {"pfl": pfl, "fedlab": fedlab}


def check(peer: Peer, steps: int, local: Local) -> None:
    """Play a round: it takes so many client-steps and changes all of the global model."""
    before = [p.detach().clone() for p in peer.model.parameters()]
    rates: list[float] = []
    hook = register_optimizer_step_post_hook(
        lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"])
    )
    peer.play()
    hook.remove()
    found = rates.count(local.lr)  # pfl's server has an optimiser too, with another rate
    assert found == steps, f"{found} client-steps in a round, not {steps}"
    assert all(
        not torch.equal(p, old) for p, old in zip(peer.model.parameters(), before, strict=True)
    )


def rounds(peer: Peer, steps: int, precision: str, threads: int) -> Once:
    arithmetic = Arithmetic(precision, deterministic=False)

    def play() -> tuple[int, int]:
        with arithmetic.kernels(), torch_threads(threads):
            peer.play()
        speed.synchronize(next(peer.model.parameters()).device)
        return steps, 0

    return play


def reason(name: str, error: ImportError) -> str:
    return (
        f"not installed (pip install {name})" if error.name == name else f"not importable: {error}"
    )


def main(
    device: str, precision: str | None, seconds: float | None, clients: int, cohort: int
) -> None:
    """The last line printed is a JSON object."""
    case = replace(
        CASES["pfl-cifar10"], data=partial(random_images, clients, IMAGES), cohort=cohort
    )
    keys = case.study(cohort, clients=clients, device=device, precision=precision)
    prepared, machine = prepared_setting(keys)
    task, local = prepared.task, prepared.setting.local
    workers = prepared_setting(keys | {"engine": "loop"})[1].workers
    steps = cohort * local.steps(IMAGES)
    least = SECONDS[device] if seconds is None else seconds
    print(
        f"{machine.device_name}, {machine.precision}, {speed.TURNS} turns of {least:g} s, "
        "client-steps/s:"
    )

    parts = prepared.division(0).clients
    data = [task.samples.take(torch.from_numpy(parts[c]).to(device)) for c in range(clients)]
    by_hand = plain(data, cohort, local)
    check(by_hand, steps, local)
    contestants = {"plain": rounds(by_hand, steps, machine.precision, threads=1)}
    most = torch.get_num_threads()
    used, skipped = versions(), {}
    for name, make in PEERS.items():
        try:
            peer = make(data, cohort, local)
            used[name] = metadata.version(name)
        except ImportError as error:
            skipped[name] = reason(name, error)
            print(f"{name}: {skipped[name]}")
            continue
        check(peer, steps, local)
        contestants[name] = rounds(peer, steps, machine.precision, 1 if device == "cpu" else most)
        if device == "cpu" and most > 1:
            contestants[f"{name}_{most}_threads"] = rounds(peer, steps, machine.precision, most)

    contestants["loop"] = once(Loop(task), list(prepared.runs()))
    if workers > 1:
        contestants[f"loop_{workers}_workers"] = once(Loop(task, workers), list(prepared.runs()))
    contestants["stacked"] = speed.stacked(prepared, machine, rounds=1)
    rates = speed.take_turns({name: contestant(play) for name, play in contestants.items()}, least)
    found = {name: steps / rate for name, rate in rates.items()}
    print("seconds per round: " + "  ".join(f"{name} {each:.4f}" for name, each in found.items()))
    result = {
        "case": "pfl-cifar10", "clients": clients, "cohort": cohort, "steps_per_round": steps,
        "device": machine.device_name, "precision": machine.precision, "compile": machine.compile,
        **{f"{name}_s_per_round": round(each, 5) for name, each in found.items()},
        "skipped": skipped, "versions": used,
    }  # fmt: skip
    print(json.dumps(result))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Seconds per round of fedskip and its peers.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("fp32", "tf32"), help="by default tf32 on a GPU")
    parser.add_argument("--seconds", type=float, help="of each contestant in a turn")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--cohort", type=int, default=50)
    parser.add_argument("--case", choices=("pfl-cifar10", "synthetic"), default="pfl-cifar10")
    given = vars(parser.parse_args())
    try:
        if given.pop("case") == "synthetic":
            flower_simulation.main()
        else:
            main(**given)
    except InputError as error:
        sys.exit(f"error: {error}")
