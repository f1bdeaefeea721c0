"""Rounds per second of fedskip and of Flower's simulation engine, on SYNTHETIC, 10 clients a round.

    pip install -e ".[flower]" "flwr[simulation]==1.41.0"     # with Ray
    python benchmarks/peers.py --case synthetic
    python benchmarks/flower_simulation.py --cpus 1 0.5 2     # several of Flower's settings

Both train FedAvg from the same weights on the same 212 clients: the same model, batches, rate and
epochs, and no evaluation within the rounds. They take turns; Flower has a process of its own in
each, because it cannot stop and go on. Starting, the first rounds and compiling do not count, and
each number is the median of the turns. The accuracy of both after the same number of rounds shows
that they do the same work.

Flower has what should suit it: its own FedAvg with a fraction that gives 10 clients; a ClientApp
whose data lie in the memory of its Ray actor as tensors, without a DataLoader; the SGD of
`benchmarks/plain.py` on one torch thread; an actor for each core (`client_resources: {num_cpus:
1}`), or what `--cpus` says. fedskip plays one run in this process, on one core, with the engine
that `auto` chooses for SYNTHETIC; Flower has all cores.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedskip.models.zoo import Perceptron
from plain import train_client

CLIENTS_A_ROUND = 10
WARM = 5  # rounds of Flower's that do not count
COLUMNS = (
    "case", "cohort", "flower_cpus_per_actor", "flower_rounds_per_s", "fedskip_rounds_per_s",
    "ratio",
    "planned_rounds", "rounds", "fedskip_accuracy", "flower_accuracy", "engine", "cores", "load",
    "flwr", "ray", "torch",
)  # fmt: skip


# --- Flower's turn, in a process of its own -------------------------------------------------------


@cache
def shared(folder: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """How clients train, and all their samples; read once by every actor."""
    torch.set_num_threads(1)
    with np.load(Path(folder) / "data.npz") as arrays:
        return json.loads((Path(folder) / "local.json").read_text()), dict(arrays)


@cache
def samples(folder: str, client: int) -> tuple[torch.Tensor, torch.Tensor]:
    _, arrays = shared(folder)
    return torch.from_numpy(arrays[f"x{client}"]), torch.from_numpy(arrays[f"y{client}"])


def flower_turn(folder: str, rounds: int, cpus: float) -> None:
    """Play some rounds; writes seconds of each and the final weights."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    client, server = ClientApp(), ServerApp()
    _, arrays = shared(folder)
    clients = len(arrays) // 2

    @client.train()  # type: ignore[untyped-decorator]
    def train(message: Message, context: Context) -> Message:
        how, _ = shared(folder)
        x, y = samples(folder, int(context.node_config["partition-id"]))
        model = Perceptron()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        train_client(model, x, y, **how)
        record = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(x)}),
        }
        return Message(RecordDict(record), reply_to=message)

    @server.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        times = [time.perf_counter()]

        class Timed(FedAvg):  # type: ignore[misc]
            def aggregate_train(self, server_round: int, replies: Any) -> Any:
                replies = list(replies)
                assert len(replies) == CLIENTS_A_ROUND, len(replies)
                assert not any(reply.has_error() for reply in replies), replies[0].error
                found = super().aggregate_train(server_round, replies)
                times.append(time.perf_counter())
                return found

        share = (CLIENTS_A_ROUND + 0.5) / clients
        strategy = Timed(
            fraction_train=share, fraction_evaluate=0.0, min_train_nodes=CLIENTS_A_ROUND,
            min_available_nodes=clients,
        )  # fmt: skip
        first = ArrayRecord(torch.load(Path(folder) / "init.pt"))
        result = strategy.start(grid, first, num_rounds=rounds)
        torch.save(result.arrays.to_torch_state_dict(), Path(folder) / "flower.pt")
        (Path(folder) / "times.json").write_text(json.dumps(np.diff(times).tolist()))

    config = {"client_resources": {"num_cpus": cpus, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=clients, backend_config=config)


# --- both -----------------------------------------------------------------------------------------


def synthetic() -> tuple[Any, Any]:
    """SYNTHETIC as a study of its 1000 rounds has it, and the machine."""
    from fedskip.study.machine import prepared_setting
    from speed import CASES

    case = CASES["synthetic"]
    return prepared_setting(case.study(CLIENTS_A_ROUND, rounds=1000))


def hand_over(prepared: Any, folder: Path) -> None:
    """Write the clients' samples, how they train, and the weights that both start with."""
    task, local = prepared.task, prepared.setting.local
    arrays: dict[str, Any] = {}
    for c, own in enumerate(prepared.division(0).clients):
        x, y = task.samples.take(torch.from_numpy(own))
        arrays |= {f"x{c}": x.numpy(), f"y{c}": y.numpy()}
    np.savez(folder / "data.npz", **arrays)
    start = task.layout.views(prepared.start(0, "init"))
    torch.save({name: tensor.clone() for name, tensor in start.items()}, folder / "init.pt")
    names = ("lr", "momentum", "weight_decay", "batch", "epochs", "max_steps")
    (folder / "local.json").write_text(json.dumps({name: getattr(local, name) for name in names}))


def accuracy(prepared: Any, model: torch.Tensor) -> float:
    """Of a model (P,) on all test samples."""
    from fedskip.engine.evaluate import Evaluator

    found = Evaluator(prepared.task, stacked=False)(model[None], prepared.division(0).test)
    return float(found.metric[0])


def ours(prepared: Any, machine: Any, rounds: int) -> tuple[float, float]:
    """Seconds per round and accuracy of a run, after another one has compiled the steps."""
    from fedskip.federation import train
    from fedskip.study.setting_plan import make_engine

    run = prepared.run(prepared.setting.methods[0], 0)
    engine = make_engine(prepared, machine, [run])
    for _ in train(engine, [run], rounds):  # compiles
        pass
    run = prepared.run(prepared.setting.methods[0], 0)
    began = time.perf_counter()
    for _ in train(engine, [run], rounds):
        pass
    return (time.perf_counter() - began) / rounds, accuracy(prepared, run.server.x)


def theirs(prepared: Any, folder: Path, rounds: int, cpus: float) -> tuple[float, float]:
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "1"}
    code = f"import flower_simulation as this; this.flower_turn({str(folder)!r}, {rounds}, {cpus})"
    command = [
        sys.executable,
        "-c",
        code,
    ]  # Ray's actors find functions by the name of their module
    env = {**os.environ, **quiet, "PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (folder / "times.json").exists(), done.stdout[-2000:] + done.stderr[-4000:]
    seconds = json.loads((folder / "times.json").read_text())
    (folder / "times.json").unlink()
    saved = torch.load(folder / "flower.pt")
    layout = prepared.task.layout
    named = layout.views(prepared.start(0, "init"))
    vector = torch.cat([saved[name].reshape(-1) for name in named])
    return statistics.fmean(seconds[WARM:]), accuracy(prepared, vector)


def measure(turns: int, rounds: int, cpus: float) -> dict[str, Any]:
    from importlib import metadata

    prepared, machine = synthetic()
    found: dict[str, list[tuple[float, float]]] = {"fedskip": [], "flower": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hand_over(prepared, folder)
        for turn in range(turns):
            found["flower"].append(theirs(prepared, folder, rounds, cpus))
            found["fedskip"].append(ours(prepared, machine, rounds))
            said = [
                f"{who} {1 / s[-1][0]:.2f} rounds/s, accuracy {s[-1][1]:.4f}"
                for who, s in found.items()
            ]
            print(f"turn {turn + 1}, {cpus:g} CPUs an actor: {'; '.join(said)}", flush=True)
    rate = {who: 1 / statistics.median(one for one, _ in each) for who, each in found.items()}
    score = {who: statistics.median(one for _, one in each) for who, each in found.items()}
    values = [
        "synthetic", CLIENTS_A_ROUND, cpus, round(rate["flower"], 3), round(rate["fedskip"], 2),
        round(rate["fedskip"] / rate["flower"], 1), prepared.setting.rounds, rounds,
        round(score["fedskip"], 4), round(score["flower"], 4), machine.engine, os.cpu_count(),
        round(os.getloadavg()[0], 1),
        *(metadata.version(name) for name in ("flwr", "ray", "torch")),
    ]  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def main(
    cpus: Sequence[float] = (1.0,), turns: int = 3, rounds: int = 100, out: Path | None = None
) -> None:
    """The last lines printed are JSON objects."""
    rows = [measure(turns, rounds, each) for each in cpus]
    for row in rows:
        print(json.dumps(row))
    if out is not None:
        new = not out.exists()
        with out.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if new:
                writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    parser.add_argument(
        "--cpus", type=float, nargs="+", default=[1.0], help="of an actor of Flower's"
    )
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--out", type=Path, help="a CSV file to add to")
    main(**vars(parser.parse_args()))
