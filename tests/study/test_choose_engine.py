"""`auto` goes by what a module is made of, and says why."""

from __future__ import annotations

import csv
import runpy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedskip.errors import InputError
from fedskip.models import build
from fedskip.records.folder import Folder
from fedskip.report.progress import Progress, SettingProgress
from fedskip.study import choose_engine
from fedskip.study.choose_engine import MOST, SHORT, EngineChoice, choose, compiles, streams_of
from studies import study
from tiny import Assigns, Looks

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "engines-cpu.csv"
MANY = 10 * SHORT  # client-steps

# what the benchmarks of docs/performance.md decided, and must stay as it is
BUNDLED = {
    "linear": ("stacked", "stacked", 0),
    "mlp": ("stacked", "stacked", 0),
    "perceptron": ("stacked", "stacked", 0),
    "cnn": ("loop", "stacked", 0),
    "cnn-femnist": ("loop", "stacked", 0),
    "lstm": ("loop", "stacked", 0),
    "resnet50": ("loop", "stacked", 4),
}


class Net(nn.Module):
    """`mlp` as one writes it."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(60, hidden), nn.ReLU())
        self.head = nn.Linear(hidden, 5)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.body(x))
        return found


class Draws(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.randn_like(x))


@pytest.mark.parametrize("name", BUNDLED)
def test_the_models_here_are_trained_as_their_benchmarks_say(name: str) -> None:
    module = build(name)
    cpu, cuda, streams = BUNDLED[name]
    assert choose(module, "cpu", MANY).engine == cpu
    assert choose(module, "cuda", MANY).engine == cuda
    assert (streams_of(module, "cpu"), streams_of(module, "cuda")) == (0, streams)
    assert compiles(module, "cpu", "fp32", kernels=False)
    assert compiles(module, "cuda", "tf32", kernels=False) == (name != "lstm")
    assert compiles(module, "cuda", "tf32", kernels=True)
    assert compiles(module, "cuda", "fp32", kernels=True) == (name != "lstm"), "they are for tf32"


def test_a_module_goes_by_its_layers_and_not_by_its_name() -> None:
    assert choose(Net(), "cpu", MANY) == choose(build("mlp"), "cpu", MANY)
    assert choose(Net(), "cuda", MANY) == choose(build("mlp"), "cuda", MANY)


@pytest.mark.parametrize(
    ("module", "steps", "line"),
    [
        (Net(), MANY, "engine: stacked (auto: dense layers of 4,229 numbers on a CPU)"),
        (Net(), 99, f"engine: loop (auto: 99 client-steps, fewer than {SHORT:,}, on a CPU)"),
        (Net(4096), MANY, f"engine: loop (auto: 270,341 numbers, more than {MOST:,}, on a CPU)"),
        (nn.Conv2d(1, 2, 3), MANY, "engine: loop (auto: convolutions on a CPU)"),
        (
            nn.Sequential(nn.Linear(2, 2), nn.GRU(2, 2)),
            MANY,
            "engine: loop (auto: recurrent layers on a CPU)",
        ),
        (nn.MultiheadAttention(4, 2), MANY, "engine: loop (auto: attention on a CPU)"),
    ],
)
def test_it_says_why(module: nn.Module, steps: int, line: str) -> None:
    assert choose(module, "cpu", steps).line() == line


def test_the_rule_follows_the_committed_benchmark() -> None:
    """What it stacks was faster by more than 20 %, with 10 rows and with 30."""
    lines = [line for line in RESULTS.read_text(encoding="utf-8").splitlines() if line[0] != "#"]
    found: dict[str, list[dict[str, str]]] = {}
    for row in csv.DictReader(lines):
        found.setdefault(row["module"], []).append(row)
    cases = modules()
    assert {"linear", "mlp-64", "mlp-4096", "layer-norm-64", "embedding-80"} <= set(found)
    for name, rows in found.items():
        stacked = choose(cases[name], "cpu", MANY).engine == "stacked"
        ratios = [float(row["stacked_to_loop"] or 0) for row in rows]
        if stacked:
            assert min(ratios) > 1.2, name


def modules() -> dict[str, nn.Module]:
    """Those of the benchmark."""
    found = runpy.run_path(str(RESULTS.parents[1] / "engines.py"))
    return {name: case.make() for name, case in found["CASES"].items()}


class Notes(Progress):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def started(self, course: SettingProgress, rows: Any) -> None:
        self.heard += [f"{course.name}: {note}" for note in course.notes]


def played(out: Path, **keys: Any) -> tuple[str, list[str]]:
    """The engine that was taken, and what was said about it."""
    notes = Notes()
    study(out, methods="fedavg", rounds=1, seeds=1, processes=1, **keys).run(notes)
    [noted] = Folder(out).record()["settings"].values()
    assert f"engine: {noted['machine']['engine']} ({noted['why']})" in notes.heard[0]
    return noted["machine"]["engine"], notes.heard


@pytest.mark.parametrize(
    ("model", "engine", "why"),
    [
        (partial(nn.Linear, 2, 2), "stacked", "dense layers of 6 numbers on a CPU"),
        (
            partial(Looks, 2, 2),
            "loop",
            "cannot be 'stacked' for this model, loss and metric: torch says: vmap",
        ),
        (Assigns, "loop", "'mean' comes out differently than in the loop"),
        (partial(Draws, 2, 2), "loop", "it draws from torch's global generator"),
    ],
)
def test_what_the_rehearsal_finds_out(
    model: Any, engine: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose_engine, "SHORT", 0)
    found, [said] = played(tmp_path / "s", model=model)
    assert found == engine
    assert said.startswith(f"toy: engine: {engine} (auto: ")
    assert why in said


def test_settings_that_are_trained_alike_say_it_once(tmp_path: Path) -> None:
    notes, net = Notes(), partial(nn.Linear, 2, 2)
    settings = [{"name": "a"}, {"name": "b"}, {"name": "c", "cohort": 2}]
    study(tmp_path / "s", model=net, methods="fedavg", rounds=1, seeds=1, settings=settings).run(
        notes
    )
    assert notes.heard == [
        "a: engine: loop (auto: 16 client-steps, fewer than 10,000, on a CPU)",
        "c: engine: loop (auto: 8 client-steps, fewer than 10,000, on a CPU)",
    ]


def test_an_engine_that_was_asked_for_needs_no_reason(tmp_path: Path) -> None:
    notes = Notes()
    study(tmp_path / "s", engine="loop", methods="fedavg", rounds=1, seeds=1).run(notes)
    assert not notes.heard


def test_a_study_that_is_made_longer_keeps_its_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though as long as it is now it would have had the other one from the start."""
    out = tmp_path / "s"
    played(out, model=partial(nn.Linear, 2, 2))
    monkeypatch.setattr(choose_engine, "SHORT", 20)
    keys = {
        "model": partial(nn.Linear, 2, 2),
        "methods": "fedavg",
        "rounds": 1,
        "seeds": 1,
        "processes": 1,
    }
    study(out, **keys).resume(rounds=3)
    [noted] = Folder(out).record()["settings"].values()
    assert noted["machine"]["engine"] == "loop"
    assert noted["why"] == "auto: 16 client-steps, fewer than 10,000, on a CPU", "as it began"


def test_reasons_leave_out_advice() -> None:
    error = InputError(
        "engine", "cannot be 'stacked' for this model", "Net", "it draws; use engine=loop"
    )
    assert EngineChoice.instead(error).why == "cannot be 'stacked' for this model: it draws"
    rule = "cannot be 'stacked' for BatchNorm with short batches"
    advised = InputError("engine", rule, fix="use engine=loop")
    assert EngineChoice.instead(advised).why == rule
