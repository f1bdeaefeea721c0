"""A federation on this machine: a SuperLink, and a SuperNode for every client, as real processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedskip import rng
from fedskip.config import StudySpec, Tree, dump
from fedskip.config.yaml_text import written
from fedskip.data.division import Division, divide
from fedskip.data.loaded import LoadedDatasets
from fedskip.errors import InputError, require
from fedskip.files import write_text
from fedskip.flower.config import CLIENT, ClientConfig, FederationConfig
from fedskip.flower.folder import CLIENT_HEAD, write_folder
from fedskip.flower.plan import FederationPlan
from fedskip.flower.processes import Process, Processes, free_port
from fedskip.flower.superlink import SuperLink
from fedskip.flower.supernode import RESTART, TRIES, start_supernode

STUDY: dict[str, Any] = {
    "name": "federation", "data": {"name": "synthetic"}, "partition": {"kind": "dirichlet", "beta": 0.5},
    "local": {"epochs": 1}, "methods": ["fedskip(period=3)"], "rounds": 6, "seeds": [0],
}  # fmt: skip


def default_study(clients: int) -> Tree:
    """What is trained if no study is named: SYNTHETIC, divided over the clients."""
    return Tree({**STUDY, "cohort": clients})


def write_local(folder: Path, clients: int, spec: StudySpec, **options: Any) -> None:
    """Write the folder of a federation whose clients share out the study's data set.

    `options`: keys of `federation.yaml`.
    """
    names = tuple(f"client-{i}" for i in range(clients))
    config = FederationConfig(clients=names, server=f"127.0.0.1:{free_port()}", **options)
    plan = FederationPlan.make(_with_absolute_paths(spec), config)
    shares = split_data(plan)  # refuses what cannot be divided, before anything is written
    write_folder(folder, config, dump(plan.spec, [plan.setting]), [])
    data: Any = plan.setting.data
    for name, (train, test) in shares.items():
        own = folder / "clients" / name
        np.savez(own / "share.npz", train=train, test=test)
        values = {"name": name, "server": config.server, "data": data["name"]}
        values |= {"share": "share.npz", "device": "cpu"}
        write_text(own / CLIENT, CLIENT_HEAD + written(values))


def _with_absolute_paths(spec: StudySpec) -> StudySpec:
    """The study, with data that clients find from wherever they are started."""
    drafts = []
    for draft in spec.settings:
        data: Any = draft.keys["data"]
        options = {key: value for key, value in data.items() if key != "name"}
        rule = "must have no options in a local federation"
        fix = "use their defaults, or an .npz of your own"
        require("data", not options, rule, options, fix)
        file = Path(data["name"])
        name = str(file.resolve()) if file.is_file() else data["name"]
        drafts.append(draft.with_keys(data={**data, "name": name}))
    return replace(spec, settings=tuple(drafts))


def split_data(plan: FederationPlan) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The samples that each client trains on and tests on, by its name; together they test on all.

    Where all samples of an owner are at one client, so are its test samples; else those are shared evenly.
    """
    setting, names = plan.setting, plan.config.clients
    dataset = LoadedDatasets().get(setting.data).dataset
    division = divide(
        dataset, setting.division_seed(plan.seed), partition=setting.partition, clients=setting.clients,
        cohort=setting.cohort, batch=setting.local.fewest, validation=0.0, eval_samples=setting.eval_samples,
        drop_small=setting.local.small_clients == "drop",
    )  # fmt: skip
    made = len(division.clients)
    rule = f"must make {len(names)} clients, one for each node"
    fix = "use partition.kind=dirichlet or iid, which make as many clients as are asked for"
    require("partition", made == len(names), rule, made, fix)
    tests = _split_tests(dataset.owner, division)
    return {name: (division.clients[i], tests[i]) for i, name in enumerate(names)}


def _split_tests(owner: np.ndarray | None, division: Division) -> list[np.ndarray]:
    """The test samples of each client."""
    test, clients = division.evaluated, len(division.clients)
    if owner is not None and (owner[test] >= 0).all():
        owners = [np.unique(owner[division.clients[client]]) for client in range(clients)]
        if len(np.unique(np.concatenate(owners))) == sum(map(len, owners)):
            return [test[np.isin(owner[test], mine)] for mine in owners]
    return np.array_split(rng.stream("sites", len(test)).permutation(test), clients)


def train(
    folder: Path, say: Callable[[str], None], *, insecure: bool = False
) -> Generator[dict[str, Any], None, None]:
    """Start everything and train the federation to its end; gives rounds as they are done.

    All processes end with the generator: close it, whatever happens.
    """
    FederationPlan.read(folder)  # refuses what is wrong with it before anything is started
    with Processes() as processes:
        say("starting the SuperLink ...")
        link = SuperLink(folder, processes, "127.0.0.1", insecure=insecure)
        link.register()
        names = link.config.clients
        say(f"starting {len(names)} SuperNodes ...")
        nodes = Nodes(folder, names, processes, insecure=insecure)
        link.run()
        for rounds in link.watch():
            yield from rounds
            nodes.restart_ended()


class Nodes:
    """The SuperNodes of a local federation. One that ends is started again after a while."""

    def __init__(
        self, folder: Path, names: tuple[str, ...], processes: Processes, *, insecure: bool = False
    ) -> None:
        self.folder, self.processes, self.insecure = folder, processes, insecure
        self.tries = dict.fromkeys(names, 0)
        self.running: dict[str, Process] = {name: self._start(name) for name in names}
        self.ended: dict[str, float] = {}  # when, by name

    def _start(self, name: str) -> Process:
        self.tries[name] += 1
        config = ClientConfig.read(self.folder / "clients" / name)
        log = self.folder / "logs" / f"{name}.log"
        return start_supernode(config, self.processes, log, insecure=self.insecure)

    def restart_ended(self) -> None:
        now = time.monotonic()
        for name, process in self.running.items():
            if process.code is None:
                self.ended.pop(name, None)
            elif name not in self.ended:
                self.ended[name] = now
            elif now - self.ended[name] > RESTART:
                self.running[name] = self._start(name)
                del self.ended[name]
        if len(self.ended) == len(self.running) and min(self.tries.values()) >= TRIES:
            process = next(iter(self.running.values()))
            rule, fix = f"has ended: {process.last_error()}", f"see {process.log}"
            raise InputError("every SuperNode", rule, fix=fix)
