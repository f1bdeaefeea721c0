"""What a cluster costs: `python benchmarks/cluster.py overhead|plan|cost`.

overhead: the quickstart in two worker processes and with `--cluster local`, in turns. It prints
start-up, the time from the first round to the written results, and the ratio of the two.
plan: groups of runs scheduled on fake devices, each with one checkpoint, recorded in a folder.
cost: the formula of docs/cluster.md, seconds = start-up + ceil(N / G) * t. t and start-up are those
of one group alone on one core; then N groups of that size train on G cores, and both times are
printed.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, cast

from fedskip.cluster.actors import Device, DeviceFacts, Ended, RayActors, Worker
from fedskip.cluster.scheduler import Scheduler, Task
from fedskip.config import Tree, build, bundled
from fedskip.records.checkpoint import group_key, write_checkpoint
from fedskip.records.history import HistoryFile
from fedskip.report.progress import ClusterProgress, Progress, SettingProgress
from fedskip.report.results import Results
from fedskip.report.trackers import Tracker
from fedskip.study import Study


class Clock(Progress, Tracker):
    """Notes when training begins, and when its results are written."""

    def __init__(self) -> None:
        self.made, self.began, self.ended = time.perf_counter(), 0.0, 0.0

    def started(self, setting: SettingProgress, rows: object) -> None:
        self.began = self.began or time.perf_counter()

    def started_on_cluster(self, cluster: ClusterProgress, rows: object) -> None:
        self.began = time.perf_counter()

    def on_end(self, results: Results) -> None:
        self.ended = time.perf_counter()


def timed(folder: Path, rounds: int | None, **keys: Any) -> tuple[float, float]:
    """Seconds of start-up, and from then on."""
    over = Tree({**keys, **({} if rounds is None else {"rounds": rounds})})
    clock = Clock()
    Study(folder, spec=build(over.over(bundled.load(bundled.QUICKSTART)))).run(
        clock, trackers=[clock]
    )
    return clock.began - clock.made, clock.ended - clock.began


def overhead(times: int, rounds: int | None) -> None:
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        # compiled steps are cached on disk: who comes first would pay for the other
        timed(Path(folder) / "first", rounds, processes=2, engine="stacked")
        for turn in range(times):
            _, apart = timed(Path(folder) / f"apart{turn}", rounds, processes=2, engine="stacked")
            start, there = timed(
                Path(folder) / f"there{turn}", rounds, groups=2, engine="stacked", cluster="local"
            )
            ratios.append(there / apart)
            print(
                f"{turn}: processes {apart:.1f} s, cluster {there:.1f} s, started in {start:.1f} s"
            )
    print(f"cluster / processes: median {median(ratios):.3f} of {times}")


def cost(rounds: int | None) -> None:
    everything = os.sched_getaffinity(0)
    counted = [
        (groups, cores) for cores in (1, 2) for groups in (2, 3, 4) if cores <= len(everything)
    ]

    def once(groups: int, cores: int) -> tuple[float, float]:
        """The methods of the quickstart with a seed for each group: all groups are of a size."""
        os.sched_setaffinity(0, sorted(everything)[:cores])
        keys = {
            "seeds": groups,
            "groups": groups,
            "cluster": "local",
            "engine": "stacked",
            "settings": [{}],
        }
        try:
            return timed(Path(folder) / f"{groups}-{cores}-{time.time()}", rounds, **keys)
        finally:
            os.sched_setaffinity(0, everything)

    with tempfile.TemporaryDirectory() as folder:
        once(1, 1)  # compiled steps are cached on disk
        start, alone = once(1, 1)
        print(f"one group alone: start-up {start:.1f} s, t = {alone:.1f} s")
        for groups, cores in counted:
            said, found = start + math.ceil(groups / cores) * alone, sum(once(groups, cores))
            apart = found / said - 1
            print(
                f"N = {groups}, G = {cores}: said {said:.1f} s, found {found:.1f} s, {apart:+.0%}"
            )


class FakeActors:
    """Stands in for Ray: every task gives a checkpoint, and ends."""

    def __init__(self, devices: int, size: int) -> None:
        """`size`: bytes of a checkpoint."""
        self.size = size
        self.there = [Device(f"n{i // 8}", f"node{i // 8}", "GPU", i % 8) for i in range(devices)]

    def devices(self) -> list[Device]:
        return self.there

    def start(self, device: Device) -> Worker:
        return Worker(device, None, iter([DeviceFacts({}, "", 0)]))

    def run(self, worker: Worker, job: Any) -> None:
        worker.reply = self.messages()

    def messages(self) -> Iterator[Any]:
        yield os.urandom(self.size)  # made when it is read, as one that arrives
        yield Ended()

    def receive(self, workers: Iterable[Worker], seconds: float) -> Iterator[tuple[Worker, Any]]:
        for worker in workers:
            message = next(worker.reply, None)
            if isinstance(message, DeviceFacts):
                worker.facts = message
            if message is not None:
                yield worker, message

    def kill(self, worker: Worker) -> None: ...


def plan(groups: int, devices: int, size: int) -> None:
    scheduler = Scheduler(cast(RayActors, FakeActors(devices, size)))
    scheduler.add(Task(group_key("study", number, groups), str) for number in range(groups))
    before = most = held()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        history = HistoryFile(Path(folder) / "history.csv")
        for task, _, message in filter(None, scheduler.messages()):
            if isinstance(message, bytes):
                history.append([{"setting": "study", "run": task.name, "round": 1}])
                write_checkpoint(Path(folder) / "checkpoints", task.name, 1, message)
                most = max(most, held())
        seconds = time.perf_counter() - began
    rate, grown = groups / seconds, (most - before) / 2**20
    print(
        f"{groups} groups over {devices} devices: {seconds:.1f} s, {rate:.0f} groups/s, "
        f"{grown:.1f} MiB more"
    )


def held() -> int:
    """Bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=["overhead", "plan", "cost"])
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--rounds", type=int, help="fewer than the quickstart has")
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--devices", type=int, default=256)
    parser.add_argument("--bytes", type=int, default=100_000, help="of a checkpoint")
    args = parser.parse_args()
    if args.what == "plan":
        plan(args.groups, args.devices, args.bytes)
    elif args.what == "cost":
        cost(args.rounds)
    else:
        overhead(args.times, args.rounds)


if __name__ == "__main__":
    main()
