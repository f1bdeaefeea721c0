"""What a round of a deployed federation costs beside Flower itself, on this machine.

The same SuperLink and SuperNodes play, in turns, rounds of fedskip and rounds of an app that only
echoes: its ClientApp imports torch, as any that trains does, and sends back what it gets; its
ServerApp uses Flower's own `send_and_receive`, which looks for replies every 3 s, or with `--pause
0.5` as often as we do. Both send a model of the same size to every node, and nobody trains for
long.

    pip install "fedskip[flower]"
    python benchmarks/federation.py                       # TLS, keys, 2 nodes, 4 turns of 4 rounds
    python benchmarks/federation.py --nodes 3 --turns 3
    python benchmarks/federation.py --model resnet50 --turns 1
    python benchmarks/federation.py --memory 50    # one study, and what it holds

The first round of a turn, in which nodes load the app, is left out. Each number is a median.
`memory` is the most that each kind of process had resident, at the first turn and at the last. With
`--memory` it is the median over ten rounds of the most that each kind had in a round: rounds 11 to
20 beside the last ten. The last line is JSON; `--out FILE` adds it to a CSV file.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedskip.config import Tree, build
from fedskip.flower.config import RUN
from fedskip.flower.folder import write_local
from fedskip.flower.plan import FederationPlan
from fedskip.flower.processes import (
    CONNECTION,
    Processes,
    SuperLink,
    descendants,
    local_nodes,
)

PYPROJECT = """\
[project]
name = "echo"
version = "1.0.0"
license = "MIT"
[tool.flwr.app]
publisher = "fedskip"
[tool.flwr.app.components]
serverapp = "echo:server"
clientapp = "echo:client"
[tool.flwr.app.config]
"""

ECHO = """\
import json, time
import numpy as np, torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()

@client.train()
def train(message, context):
    return Message(message.content, reply_to=message)

@server.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < {nodes}:
        time.sleep(1)
    with open({out!r}, "a") as file:
        for _ in range({rounds}):
            began = time.monotonic()
            sent = [
                Message(RecordDict({{"model": ArrayRecord({{"x": Array(np.random.rand({size}).astype(np.float32))}})}}), node, "train")
                for node in nodes
            ]
            if {pause}:
                waiting, replies = set(grid.push_messages(sent)), []
                while waiting:
                    time.sleep({pause})
                    replies += (found := list(grid.pull_messages(waiting)))
                    waiting -= {{reply.metadata.reply_to_message_id for reply in found}}
            else:
                replies = list(grid.send_and_receive(sent, timeout=3000))
            assert len(replies) == len(nodes) and not any(reply.has_error() for reply in replies)
            file.write(json.dumps(time.monotonic() - began) + "\\n")
            file.flush()
        file.write("null\\n")
"""  # noqa: E501

MODELS = ("perceptron", "resnet50")


def fedskip_turn(link: SuperLink) -> list[float]:
    """Seconds of each round."""
    shutil.rmtree(link.folder / RUN, ignore_errors=True)
    link.run()
    return [done["seconds"] for rounds in link.watch() for done in rounds]


def echo_turn(
    link: SuperLink, folder: Path, nodes: int, rounds: int, size: int, pause: float
) -> list[float]:
    out = folder / "seconds"
    out.unlink(missing_ok=True)
    text = ECHO.format(nodes=nodes, rounds=rounds, size=size, out=str(out), pause=pause)
    (folder / "echo.py").write_text(text)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    done = link.flwr("run", str(folder), CONNECTION)
    assert not done.returncode, done.stdout + done.stderr
    while not (out.exists() and "null" in out.read_text()):
        if link.process.code is not None:
            raise link.process.failure()
        time.sleep(0.5)
    return [json.loads(line) for line in out.read_text().splitlines()[:-1]]


def memory(processes: Processes) -> dict[str, int]:
    """MiB that are resident, by kind of process."""
    found: dict[str, int] = {}
    for process in processes.all:
        for pid in descendants(process.guard.pid):
            with contextlib.suppress(OSError, IndexError, ValueError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                named = (
                    Path(part).name for part in command if "flower-" in part or "flwr-" in part
                )
                name = next(named, "others")
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                found[name] = max(found.get(name, 0), pages * 4096 >> 20)
    return found


def noise(folder: Path, model: str) -> Path:
    """Random samples that a model takes: vectors, or pictures of CIFAR's size."""
    draw, file = np.random.default_rng(0), folder.with_name("noise.npz")
    x = (
        draw.integers(0, 256, (400, 3, 32, 32), np.uint8)
        if model == "resnet50"
        else draw.random((400, 60))
    )
    np.savez(file, x=x, y=np.arange(400) % 5)
    return file


def write_study(folder: Path, options: argparse.Namespace, **keys: Any) -> None:
    """The folder of a federation whose clients have random samples and train one step."""
    study = {
        "data": {"name": str(noise(folder, options.model))}, "model": {"name": options.model},
        "partition": {"kind": "iid"}, "cohort": options.nodes, "seeds": [0],
        "local": {"max_steps": 1},
    }  # fmt: skip
    write_local(folder, options.nodes, build(Tree(study | keys)))


def hold(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """The memory of each kind of process over a study that merges and tests every fifth round."""
    write_study(folder, options, rounds=options.memory, methods="scaffold(period=5)")
    rounds: list[dict[str, int]] = []
    held: dict[str, int] = {}  # in the round that is under way

    with Processes() as processes:
        link = SuperLink(folder, processes, "127.0.0.1")
        link.register()
        nodes = local_nodes(folder, processes)

        def look() -> None:
            for name, size in memory(processes).items():
                held[name] = max(held.get(name, 0), size)

        link.run()
        for some in link.watch():
            for node in nodes:
                node.tend()
            look()
            for done in some:
                rounds.append(dict(held))
                held.clear()
                print(f"round {done['round']}: {done['seconds']} s, MiB {rounds[-1]}", flush=True)
    found = []
    for name in sorted(set().union(*rounds)):
        before, after = (
            statistics.median(one.get(name, 0) for one in some)
            for some in (rounds[10:20], rounds[-10:])
        )
        row = {"process": name, "MiB_rounds_11_to_20": before, "MiB_last_ten_rounds": after}
        found.append(row | {"rounds": len(rounds), "nodes": options.nodes, "model": options.model})
    return found


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    write_study(folder, options, rounds=options.rounds + 1, methods="fedskip(period=1000)")
    size = FederationPlan.read(folder).layout.size
    echo = folder / "echo"
    echo.mkdir()
    ours, theirs, held = [], [], []
    with Processes() as processes:
        link = SuperLink(folder, processes, "127.0.0.1")
        link.register()
        local_nodes(folder, processes)
        for turn in range(options.turns):
            theirs += echo_turn(link, echo, options.nodes, options.rounds + 1, size, options.pause)[
                1:
            ]
            ours += fedskip_turn(link)[1:]
            held.append(memory(processes))
            last = f"echo {theirs[-options.rounds :]}, fedskip {ours[-options.rounds :]}"
            print(f"turn {turn + 1}: {last}", flush=True)
    return {
        "model": options.model, "numbers": size, "nodes": options.nodes, "rounds": len(ours),
        "echo": statistics.median(theirs), "fedskip": statistics.median(ours),
        "echo_mean": statistics.fmean(theirs), "fedskip_mean": statistics.fmean(ours),
        "pause": options.pause,
        "ratio": statistics.median(ours) / statistics.median(theirs), "load": os.getloadavg()[1],
        "memory": json.dumps([held[0], held[-1]]),
    }  # fmt: skip


def main() -> None:
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    parser.add_argument("--model", choices=MODELS, default="perceptron")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=4, help="of a turn that count")
    parser.add_argument(
        "--pause", type=float, default=0.0, help="seconds between two looks of the echo app"
    )
    parser.add_argument(
        "--memory", type=int, metavar="ROUNDS", help="30 or more: watch the memory instead"
    )
    parser.add_argument("--out", type=Path, help="a CSV file to add to")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "federation"
        found = hold(options, folder) if options.memory else [measure(options, folder)]
    if options.out is not None:
        new = not options.out.exists()
        with options.out.open("a", newline="") as file:
            writer = csv.DictWriter(file, found[0])
            if new:
                writer.writeheader()
            writer.writerows(found)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
