"""How much of the code a study passes through: the functions and files that run.

    python benchmarks/path.py                # the table; about a minute
    python benchmarks/path.py run --list     # one row, with the functions by file

It counts with `sys.setprofile`. PYTHONPATH chooses which source tree is measured.
A function counts once, however often it is called. Bodies of modules and classes, lambdas and
comprehensions do not count. Data is made up here.
"""

import argparse
import ast
import inspect
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

LOCAL = ["--set", "local.batch=16", "--set", "local.lr=0.1", "--set", "local.epochs=1"]
STUDY = [
    "--set", "data.name=small.npz", "--set", "partition=natural", "--set", "model=linear",
    "--set", "cohort=3", *LOCAL,
]  # fmt: skip
RUN = ["run", *STUDY, "--methods", "fedavg, fedskip(period=2)", "--rounds", "3", "--out", "small"]
ALL = "fedavg, fedprox, moon, scaffold, fednova, feddyn, fedskip(period=5)"
FINISHED = ["run", *STUDY, "--methods", ALL, "--rounds", "20", "--seeds", "3", "--out", "finished"]


class Calls:
    """The functions of the package that were called."""

    def __init__(self, package: Path, ended: Callable[[], bool] = lambda: False) -> None:
        self.prefix = f"{package}{os.sep}"
        self.ended = ended
        self.codes: set[CodeType] = set()
        self.others: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or code in self.others:
            return
        if not code.co_filename.startswith(self.prefix):
            self.others.add(code)
        elif self.ended():
            sys.setprofile(None)
        elif code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<"):
            self.codes.add(code)

    def count(self, work: Callable[[], None]) -> dict[str, list[str]]:
        """The functions that ran, by file."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            work()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
        files = defaultdict(list)
        for code in self.codes:
            files[code.co_filename.removeprefix(self.prefix)].append(code.co_qualname)
        return {name: sorted(files[name]) for name in sorted(files)}


def fedskip(*arguments: str) -> None:
    """A command in this process."""
    from fedskip.cli import main

    sys.argv = ["fedskip", *arguments]
    try:
        main()
    except SystemExit as error:
        if error.code:
            raise


def core() -> None:
    """FedAvg and FedSkip without a study: three rounds from a model, samples and clients."""
    import torch

    from fedskip import Arrays, FedAvg
    from fedskip.engine import Local, Loop, Task
    from fedskip.engine.local import route
    from fedskip.federation import Clients, Run, Server, train
    from fedskip.models.metrics import cross_entropy, metrics
    from fedskip.models.vector import Layout

    file = np.load("small.npz")
    samples = Arrays(torch.from_numpy(file["x"]), torch.from_numpy(file["y"]))
    clients = [np.flatnonzero(file["client"] == client) for client in range(6)]
    model, local, rounds = torch.nn.Linear(8, 3), Local(batch=16, epochs=1), 3
    layout = Layout.of(model)
    task = Task(model, layout, cross_entropy, metrics("accuracy"), samples, local)
    x = layout.pack(model)

    def run(method: FedAvg) -> Run:
        server = Server(method, x, layout, clients=6, slots=3, seed=0)
        sizes = np.array([len(client) for client in clients])

        def routes(key: int, client: int, round: int) -> Any:
            return route(key, clients[client], local, round, rounds)

        return Run(server, Clients(method, layout, sizes, routes, x))

    for _ in train(Loop(task), [run(FedAvg()), run(FedAvg(period=2))], rounds):
        pass


def first_row() -> bool:
    """Whether the small study has a row in its history."""
    try:
        return Path("small/history.csv").read_bytes().count(b"\n") > 1
    except OSError:
        return False


WORK: dict[str, tuple[str, Callable[[], None]]] = {
    "run": ("fedskip run, 3 rounds, 2 methods", lambda: fedskip(*RUN)),
    "first": ("the same, to the first row", lambda: fedskip(*RUN)),
    "report": ("fedskip report, 7 methods, 3 seeds", lambda: fedskip("report", "finished")),
    "core": ("the core by hand", core),
}


def make_data() -> None:
    draw = np.random.default_rng(0)
    client = np.repeat(np.arange(6), 60)
    x = draw.normal(size=(len(client), 8)).astype(np.float32)
    np.savez("small.npz", x=x, y=(x @ draw.normal(size=(8, 3))).argmax(1), client=client)


def measure(what: str) -> None:
    """Do one piece of work in this process; the last line is what ran, as JSON."""
    import fedskip as package

    make_data()
    if what == "report":
        command = [sys.executable, "-m", "fedskip", *FINISHED]
        subprocess.run(command, check=True, capture_output=True)
    calls = Calls(Path(package.__file__).parent, first_row if what == "first" else lambda: False)
    print("\n" + json.dumps(calls.count(WORK[what][1])))


def measured(what: str) -> dict[str, list[str]]:
    """The same in a fresh process and folder."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(Path(__file__).resolve()), "--measure", what]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{what} failed:\n{done.stderr}\n{done.stdout}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def source() -> tuple[int, int, list[str]]:
    """Lines and files of the package, and the top-level names that three or more modules define."""
    import fedskip as package

    paths = sorted(Path(package.__file__).parent.rglob("*.py"))
    homes: dict[str, set[Path]] = defaultdict(set)
    for path in paths:
        for node in ast.parse(path.read_text()).body:
            match node:
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    homes[name].add(path)
                case (
                    ast.Assign(targets=[ast.Name(id=name)])
                    | ast.AnnAssign(target=ast.Name(id=name))
                ):
                    homes[name].add(path)
    several = sorted(name for name in homes if len(homes[name]) >= 3 and name != "__all__")
    return sum(path.read_text().count("\n") for path in paths), len(paths), several


def seconds(*arguments: str) -> float:
    """The shortest of five runs of Python."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", nargs="*", help=f"of {', '.join(WORK)}; without, all and more")
    parser.add_argument("--list", action="store_true", help="also print the functions, by file")
    parser.add_argument("--measure", choices=WORK, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        measure(chosen.measure)
        return
    print("| measure | functions | files |\n|---|---:|---:|")
    for what in chosen.what or WORK:
        files = measured(what)
        print(f"| {WORK[what][0]} | {sum(map(len, files.values()))} | {len(files)} |", flush=True)
        for name in files if chosen.list else ():
            print(f"    {name}: {', '.join(files[name])}")
    if not chosen.what:
        lines, files_, several = source()
        print(f"\n| measure | |\n|---|---:|\n| installed lines, files | {lines:,}, {files_} |")
        print(f"| top-level names in three modules or more | {len(several)} |")
        print(f"| `import fedskip` | {seconds('-c', 'import fedskip'):.2f} s |")
        print(f"| `fedskip --help` | {seconds('-m', 'fedskip', '--help'):.2f} s |")
        print(f"\n{' '.join(several)}")


if __name__ == "__main__":
    main()
