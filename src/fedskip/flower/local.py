"""A federation on this machine: a SuperLink and a SuperNode for every client, as real processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedskip.files import write_text
from fedskip.flower import agreement
from fedskip.flower.agreement import Agreement
from fedskip.flower.folder import CLIENT, CLIENT_HEAD, ClientFile, write_folder
from fedskip.flower.plan import Plan
from fedskip.flower.processes import Process, Processes, free_port, last_words
from fedskip.flower.serve import plan_in
from fedskip.flower.shares import shares
from fedskip.flower.superlink import SuperLink
from fedskip.flower.supernode import AGAIN, TRIES, start_supernode
from fedskip.input.errors import InputError, require
from fedskip.input.plain import written
from fedskip.spec import Draft, StudySpec, Tree, dump

STUDY: dict[str, Any] = {
    "name": "federation", "data": {"name": "synthetic"}, "partition": {"kind": "dirichlet", "beta": 0.5},
    "local": {"epochs": 1}, "methods": ["fedskip(period=3)"], "rounds": 6, "seeds": [0],
}  # fmt: skip


def study_for(clients: int) -> Tree:
    """What is tried out where no study is named: SYNTHETIC, divided over the clients."""
    return Tree({**STUDY, "cohort": clients})


def write_local(folder: Path, clients: int, spec: StudySpec, **agreed: Any) -> None:
    """The folder of a federation on this machine, whose clients share out the study's data set."""
    names = tuple(f"client-{i}" for i in range(clients))
    parties = Agreement(clients=names, server=f"127.0.0.1:{free_port()}", **agreed)
    plan = Plan.of(_whole(spec), parties)
    divided = shares(plan)  # refuses what cannot be divided, before anything is written
    write_folder(folder, parties, dump(plan.spec, [plan.setting]), [])
    data: Any = plan.setting.data
    for name, (train, test) in divided.items():
        site = folder / "clients" / name
        np.savez(site / "share.npz", train=train, test=test)
        values = {"name": name, "server": parties.server, "data": data["name"], "share": "share.npz"}
        values |= {"device": "cpu"}
        write_text(site / CLIENT, CLIENT_HEAD + written(values))


def _whole(spec: StudySpec) -> StudySpec:
    """The study, with the whole path of its data: the clients find them from wherever they are started."""
    drafts = []
    for draft in spec.settings:
        data: Any = draft.keys["data"]
        file = Path(data["name"])
        options = {key: value for key, value in data.items() if key != "name"}
        rule, fix = "must have no options in a local federation", "use their defaults, or an .npz of your own"
        require("data", not options, rule, options, fix)
        name = str(file.resolve()) if file.is_file() else data["name"]
        drafts.append(Draft({**draft.keys, "data": {**data, "name": name}}))
    return replace(spec, settings=tuple(drafts))


def play(
    folder: Path,
    told: Callable[[dict[str, Any]], None],
    say: Callable[[str], None],
    *,
    insecure: bool = False,
) -> None:
    """Start everything, play the federation to its end, and stop everything."""
    parties = Agreement.read(folder / agreement.FILE)
    plan_in(folder)
    with Processes() as processes:
        say("starting the SuperLink ...")
        link = SuperLink(folder, parties, processes, "127.0.0.1", insecure=insecure)
        link.register()
        say(f"starting {len(parties.clients)} SuperNodes ...")
        nodes = Nodes(folder, parties.clients, processes, insecure)
        link.run()
        link.watch(told, nodes.look_after)


class Nodes:
    """The clients of a local federation. One that ends is started again after a while."""

    def __init__(self, folder: Path, names: tuple[str, ...], processes: Processes, insecure: bool) -> None:
        self.folder, self.processes, self.insecure = folder, processes, insecure
        self.tries = dict.fromkeys(names, 0)
        self.running: dict[str, Process] = {name: self._start(name) for name in names}
        self.ended: dict[str, float] = {}  # when

    def _start(self, name: str) -> Process:
        self.tries[name] += 1
        file = ClientFile.read(self.folder / "clients" / name)
        log = self.folder / "logs" / f"{name}.log"
        return start_supernode(file, self.processes, log, insecure=self.insecure)

    def look_after(self) -> None:
        now = time.monotonic()
        for name, process in self.running.items():
            if process.code is None:
                self.ended.pop(name, None)
            elif name not in self.ended:
                self.ended[name] = now
            elif now - self.ended[name] > AGAIN:
                self.running[name] = self._start(name)
                del self.ended[name]
        if len(self.ended) == len(self.running) and min(self.tries.values()) >= TRIES:
            process = next(iter(self.running.values()))
            raise InputError("every SuperNode", f"has ended: {last_words(process)}", fix=f"see {process.log}")
