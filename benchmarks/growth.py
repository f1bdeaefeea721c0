"""How cost grows with rows, with clients and with the size of the model.

    python benchmarks/growth.py measure --device cuda --jobs 6 --out growth.json
    python benchmarks/growth.py plot growth.json --out docs/growth.svg

    python benchmarks/growth.py measure --device cuda --only size --out growth.json  # one panel
    python benchmarks/growth.py measure --quick --seconds 0.2 --out quick.json    # does it run?

A point is written as soon as it is measured, and what the file has already is not measured again:
in parts or after a kill, the same command goes on. `--jobs` first compiles all points in parallel
processes, which leave their kernels in TorchInductor's cache on disk, where the timed process finds
them.

- rows: ms per client-step of `stacked` and of `plain` (benchmarks/plain.py). N rows are N/10 seeds
  of FedAvg with a cohort of 10, as in speed.py: the CNN and the LSTM on a GPU, SYNTHETIC's
  perceptron on a CPU.
- clients: ms per round of `stacked` with a cohort of 10 as the federation grows, and the most
  memory used besides the data: of the GPU, or of the process on a CPU. A client has 50 grey images
  of 28 × 28, a visit 5 steps. SCAFFOLD keeps a row for each client that was visited, so its memory
  grows with the rounds played until all were; `rounds` and `visited` say how far that went. Drawing
  and dealing the data is not timed.
- size: ms per client-step of `stacked` with 10 rows and of `plain`, for the paper's CNN (without
  MOON's head) with all widths multiplied.

The numbers in the figure are plain / stacked: where they fall below 1, stacking no longer pays.
Contestants take turns; each number is the median of three turns after one that warms up.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import lru_cache, partial
from io import StringIO
from multiprocessing import get_context
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import speed
from fedskip.config import Tree, build
from fedskip.data.synthetic import random_images
from fedskip.errors import InputError
from fedskip.files import write_text
from fedskip.study.machine import arithmetic_of, prepared_setting, resolve_device
from fedskip.study.setting_plan import make_engine
from fedskip.version import device_name, versions
from speed import SECONDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# --- what is measured -----------------------------------------------------------------------------

ROWS: dict[str, dict[str, tuple[int, ...]]] = {
    "cpu": {"synthetic": (10, 30, 100, 300)},
    "cuda": {"cnn": (10, 20, 50, 100, 200), "lstm": (10, 30, 90, 180)},
}
CLIENTS = (100, 1000, 10_000)
WIDTHS = {"cpu": (1, 2, 4), "cuda": (1, 2, 4, 8, 16, 32)}
PANELS = ("rows", "clients", "size")
COHORT = 10
IMAGES = 50  # of a client, where the clients grow
MIB = 1 << 20

Keys = dict[str, Any]  # of a study
drawn = lru_cache(maxsize=1)(random_images)  # points on the same images follow each other


class WideCNN(nn.Sequential):
    """The paper's CNN with all widths times w; 62,006 parameters at w = 1."""

    def __init__(self, w: int) -> None:
        super().__init__(
            nn.Conv2d(3, 6 * w, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6 * w, 16 * w, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(400 * w, 120 * w), nn.ReLU(), nn.Linear(120 * w, 84 * w), nn.ReLU(),
            nn.Linear(84 * w, 10),
        )  # fmt: skip


@dataclass(frozen=True)
class Point:
    panel: str
    line: str  # a case of speed.py, or a method where the clients grow
    at: int  # rows, clients or width

    def __str__(self) -> str:
        return f"{self.panel} {self.line} {self.at}"

    @property
    def code(self) -> tuple[str, str, int]:
        """Equal for points that compile to the same code, which knows nothing of the clients."""
        return self.panel, self.line, 0 if self.panel == "clients" else self.at

    def case(self) -> speed.Case:
        if self.panel == "clients":
            local = {"epochs": 1, "batch": 10}
            keys = {"partition": "iid", "clients": self.at, "model": "cnn-femnist", "local": local}
            return speed.Case(keys, partial(drawn, self.at, IMAGES, 62, (1, 28, 28)), rounds=10)
        case = speed.CASES[self.line]
        if self.panel == "size":
            visits = speed.visits(max(15, 150 // self.at))
            case = replace(
                case, keys=case.keys | {"model": partial(WideCNN, self.at)}, on_gpu=visits, rounds=1
            )
        return replace(case, data=drawn) if case.data is random_images else case

    def studies(self, given: Keys) -> tuple[Keys, Keys]:
        """The keys of the study that `plain` plays, and of the one that `stacked` plays."""
        case = self.case()
        keys = case.study(self.at if self.panel == "rows" else COHORT, **given)
        if self.panel == "clients":
            keys["methods"] = self.line
        return keys, keys if given["device"] == "cpu" else keys | case.on_gpu


def points(device: str, only: str | None, quick: bool) -> list[Point]:
    """All points, or those of one panel; `quick`: the first two of each line."""
    most = 2 if quick else None
    found = [Point("size", "cnn", width) for width in WIDTHS[device][:most]]
    found += [
        Point("clients", method, n) for n in CLIENTS[:most] for method in ("fedavg", "scaffold")
    ]
    found += [
        Point("rows", case, rows) for case, counts in ROWS[device].items() for rows in counts[:most]
    ]
    return [point for point in found if only in (None, point.panel)]


# --- measuring ------------------------------------------------------------------------------------


def measure(
    device: str,
    out: Path,
    only: str | None,
    precision: str | None,
    seconds: float | None,
    jobs: int,
    quick: bool,
) -> None:
    """Measure all points that the file does not have yet."""
    given = {"device": device, "precision": precision}
    stored = opened(out, given)
    done = {Point(p["panel"], p["line"], p["at"]) for p in stored["points"]}
    todo = [point for point in points(device, only, quick) if point not in done]
    print(f"{stored['machine']['device']}: {len(todo)} points to measure, {len(done)} are in {out}")
    if jobs:
        precompile(todo, given, jobs)
    least = SECONDS[device] if seconds is None else seconds
    for point in todo:
        print(f"\n{point}", flush=True)
        gc.collect()  # graphs and rows of the point before
        torch.cuda.empty_cache()
        started = time.perf_counter()
        found = (rounds_of if point.panel == "clients" else steps_of_both)(point, given, least)
        shown = "  ".join(f"{who} {ms:.4g} ms" for who, ms in found["ms"].items())
        print(f"{shown}  ({time.perf_counter() - started:.0f} s in all)", flush=True)
        about = {"seconds": least, "date": str(date.today()), "commit": commit()}
        stored["points"].append(asdict(point) | found | about)
        write_text(out, json.dumps(stored, indent=1) + "\n")


def opened(out: Path, given: Keys) -> dict[str, Any]:
    """What a file holds of this machine, or a new one."""
    spec = build(Tree(given | {"data": "synthetic", "engine": "stacked"}))
    device = device_name(resolve_device(spec.device))
    here = {"device": device, "precision": arithmetic_of(spec).precision, **versions()}
    if not out.exists():
        return {"machine": here, "points": []}
    stored: dict[str, Any] = json.loads(out.read_text())
    if stored["machine"] != here:
        raise InputError(
            "--out", "holds points of another machine", str(out), "choose another file"
        )
    return stored


def precompile(todo: Sequence[Point], given: Keys, jobs: int) -> None:
    """Fill the cache on disk. A point that fails here is tried again when it is measured."""
    compiled = [point for point in todo if point.line != "lstm"]  # which is not compiled on a GPU
    distinct = {point.code: point for point in reversed(compiled)}.values()
    threads = max(1, (os.cpu_count() or 1) // jobs)

    def apart(point: Point) -> None:
        started = time.perf_counter()
        process = get_context("spawn").Process(target=compile_one, args=(point, given, threads))
        process.start()
        process.join()
        failed = f", exit code {process.exitcode}" if process.exitcode else ""
        print(f"compiled {point} in {time.perf_counter() - started:.0f} s{failed}", flush=True)

    started = time.perf_counter()
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(apart, distinct))
    print(f"{len(distinct)} points compiled in {time.perf_counter() - started:.0f} s", flush=True)


def compile_one(point: Point, given: Keys, threads: int) -> None:
    """Play a little of a point, which leaves its code in the cache."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(threads))
    _, keys = point.studies(given)
    speed.stacked(*prepared_setting(keys), point.case().rounds)()


def steps_of_both(point: Point, given: Keys, least: float) -> dict[str, Any]:
    """ms per client-step."""
    short, long = point.studies(given)
    prepared, machine = prepared_setting(long)
    contestants = {
        "stacked": speed.contestant(speed.stacked(prepared, machine, point.case().rounds)),
        "plain": speed.plain_contestant(prepared_setting(short)[0]),
    }
    ms = {who: 1000 / rate for who, rate in speed.take_turns(contestants, least).items()}
    return {"x": prepared.task.layout.trainable if point.panel == "size" else point.at, "ms": ms}


def rounds_of(point: Point, given: Keys, least: float) -> dict[str, Any]:
    """ms per round, and memory."""
    _, keys = point.studies(given)
    left = torch.cuda.memory_allocated() if given["device"] == "cuda" else 0  # of the points before
    prepared, machine = prepared_setting(keys)
    runs = list(prepared.runs())
    play = speed.once(make_engine(prepared, machine, runs), runs, point.case().rounds)
    forget_peak(prepared.device)
    rate = speed.take_turns({"stacked": speed.contestant(play)}, least)["stacked"]
    samples = prepared.dataset.samples
    x, y = samples.take(torch.arange(1))
    data = len(samples) * (x.nbytes + y.nbytes)
    steps = COHORT * prepared.setting.local.steps(IMAGES)
    return {
        "x": point.at, "ms": {"stacked": 1000 * steps / rate},
        "memory_mib": (peak(prepared.device) - left - data) / MIB, "data_mib": data / MIB,
        "rounds": runs[0].round, "visited": len(runs[0].clients.memory.place),
    }  # fmt: skip


def forget_peak(device: torch.device) -> None:
    if device.type == "cpu":
        Path("/proc/self/clear_refs").write_text("5")  # as Linux's proc(5) has it
    else:
        torch.cuda.reset_peak_memory_stats(device)


def peak(device: torch.device) -> int:
    """The most bytes since `forget_peak`."""
    if device.type != "cpu":
        return torch.cuda.max_memory_allocated(device)
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def commit() -> str | None:
    """The commit of this checkout, marked where files differ from it; None where there is none."""
    describe = ["git", "describe", "--always", "--dirty"]
    try:
        found = subprocess.run(describe, cwd=Path(__file__).parent, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return found.stdout.strip() or None


# --- the figure -----------------------------------------------------------------------------------

# as in docs/slots.svg: mid-tones only, and no background, readable on a light and on a dark page
GREY, COLOURS = "#76818d", ("#3b82f6", "#e8762d", "#2f9e58")
STYLE: dict[Any, Any] = {
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), GREY
    ),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none"),
    "axes.spines.top": False, "grid.color": GREY, "grid.alpha": 0.2, "legend.frameon": False,
    "font.size": 10,
    "svg.hashsalt": "fedskip", "svg.fonttype": "none",
}  # fmt: skip
LABELS = {
    "rows": ("rows: models in a batch", "ms per client-step"),
    "clients": ("clients, 10 of them in a round", "ms per round"),
    "size": ("parameters of a CNN, 10 rows", "ms per client-step"),
}
LEGENDS: dict[str, Any] = {"rows": (0.4, 0.6), "clients": "upper left", "size": "lower right"}
NAMES = {
    "cnn": "CNN",
    "lstm": "LSTM",
    "synthetic": "perceptron",
    "fedavg": "FedAvg",
    "scaffold": "SCAFFOLD",
}
DECADES = 2  # that an axis shows at least, or noise would look like growth


def plot(file: Path, out: Path) -> None:
    """Draw the panels that a file has points of, side by side."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    stored = json.loads(file.read_text())
    panels = {name: [p for p in stored["points"] if p["panel"] == name] for name in PANELS}
    panels = {name: found for name, found in panels.items() if found}
    with rc_context(STYLE):
        figure = Figure(figsize=(3.4 * len(panels), 3.4), layout="constrained")
        every = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (name, found) in zip(every, panels.items(), strict=True):
            draw(axes, name, found)
        figure.supxlabel(fill(caption(stored), 48 * len(panels)), fontsize=8)
        figure.set_layout_engine("constrained", wspace=0.06)
        drawing = StringIO()
        figure.savefig(drawing, format="svg", metadata={"Date": None, "Title": "How cost grows"})
    write_text(out, drawing.getvalue())


def draw(axes: Axes, panel: str, found: list[dict[str, Any]]) -> None:
    """One panel: a colour for each line, dashes for `plain`, dots for memory."""
    across, up = LABELS[panel]
    axes.set(xscale="log", yscale="log", xlabel=across, ylabel=up)
    memory = axes.twinx() if panel == "clients" else None
    for line, colour in zip(dict.fromkeys(p["line"] for p in found), COLOURS, strict=False):
        here = sorted((p for p in found if p["line"] == line), key=lambda p: p["x"])
        x = [p["x"] for p in here]
        ms = {who: [p["ms"][who] for p in here] for who in here[0]["ms"]}
        for who, numbers in ms.items():
            label = NAMES[line] if memory else f"{who} {NAMES[line]}"
            axes.plot(
                x, numbers, "--" if who == "plain" else "-", color=colour, marker=".", label=label
            )
        if memory:
            memory.plot(x, [p["memory_mib"] for p in here], ":", color=colour, marker=".")
            continue
        for at, fast, slow in zip(x, ms["stacked"], ms["plain"], strict=True):
            axes.annotate(
                f"{slow / fast:.2g}×" if slow < 100 * fast else f"{slow / fast:.0f}×", (at, fast),
                (2, -11),
                textcoords="offset points", fontsize=8, color=colour,
            )  # fmt: skip
    tidy(axes)
    axes.grid()
    if memory:
        memory.set(yscale="log", ylabel="MiB besides the data")
        tidy(memory)
        axes.plot([], [], ":", color=GREY, label="memory, on the right")
    else:
        axes.spines["right"].set_visible(False)
    axes.legend(fontsize=8, labelspacing=0.2, loc=LEGENDS[panel])


def tidy(axes: Axes) -> None:
    """At least so many decades, and plain numbers as their labels."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.margins(x=0.12, y=0.12)
    low, high = axes.get_ylim()
    middle, wide = (low * high) ** 0.5, max(high / low, 10**DECADES) ** 0.5
    axes.set_ylim(middle / wide, middle * wide)
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        axis.set_major_locator(LogLocator(subs=(1, 3) if high < 1000 * low else (1,)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(short))


def short(number: float, _: int = 0) -> str:
    """
    >>> short(0.1), short(10_000), short(1e7)
    ('0.1', '10k', '10M')
    """
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:g}{letter}"
    return f"{number:g}"


def caption(stored: dict[str, Any]) -> str:
    machine, days = stored["machine"], sorted({p["date"] for p in stored["points"]})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    where = f"{machine['device']}, {machine['precision']}, torch {machine['torch']}"
    return f"{where}, {when}; × is plain / stacked"


# --- the command line -----------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(
        description="How cost grows with rows, clients and model size."
    )
    commands = parser.add_subparsers(required=True)
    to_measure = commands.add_parser("measure", help=measure.__doc__)
    to_measure.set_defaults(command=measure)
    to_measure.add_argument("--device", choices=tuple(ROWS), default="cpu")
    to_measure.add_argument(
        "--out", type=Path, required=True, help="a JSON file, kept if there is one"
    )
    to_measure.add_argument("--only", choices=PANELS)
    to_measure.add_argument(
        "--precision", choices=("fp32", "tf32", "bf16", "fp64"), help="tf32 on a GPU"
    )
    to_measure.add_argument(
        "--seconds", type=float, help="of each contestant in a turn; 1 on a GPU, else 4"
    )
    to_measure.add_argument(
        "--jobs", type=int, default=0, help="processes that compile all points first"
    )
    to_measure.add_argument(
        "--quick", action="store_true", help="only the first two points of each line"
    )
    to_plot = commands.add_parser("plot", help=plot.__doc__)
    to_plot.set_defaults(command=plot)
    to_plot.add_argument("file", type=Path, help="what `measure` wrote")
    to_plot.add_argument("--out", type=Path, required=True, help="an SVG file")
    arguments = vars(parser.parse_args())
    try:
        arguments.pop("command")(**arguments)
    except (InputError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
