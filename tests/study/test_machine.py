"""What shapes the arithmetic is resolved once."""

from __future__ import annotations

import csv
import runpy
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedskip import FedAvg, InputError, models
from fedskip.config import Tree, build
from fedskip.models.forms import KERNELS
from fedskip.records.folder import Folder
from fedskip.report.progress import Progress, SettingProgress
from fedskip.study.machine import (
    MOST_STACKED,
    SHORT,
    EngineChoice,
    Machine,
    choose,
    compiles,
    prepared_setting,
    streams_of,
)
from fedskip.version import device_name
from speed import CASES
from studies import Halved, study
from tiny import Assigns, Looks


def test_without_a_compiler_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keys = CASES["synthetic"].study(10, device="cpu")
    spec, (prepared, _) = build(Tree(keys)), prepared_setting(keys)
    for found in (False, True):
        monkeypatch.setattr("fedskip.study.machine.has_compiler", lambda found=found: found)
        assert Machine.of(spec, prepared).compile == found
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no C++ compiler" in caplog.text


def test_auto_takes_the_loop_for_an_objective_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the model's benchmark was won by the stacked engine."""
    monkeypatch.setattr("fedskip.study.machine.SHORT", 0)
    keys = {
        "data": "synthetic",
        "model": "perceptron",
        "cohort": 2,
        "local": {"max_steps": 1},
        "seeds": 1,
    }
    for methods, engine in (("fedavg", "stacked"), ([FedAvg(), Halved()], "loop")):
        out = tmp_path / engine
        study(out, partition=None, methods=methods, rounds=1, **keys).run()
        assert Folder(out).record()["settings"]["synthetic"]["machine"]["engine"] == engine


def test_threads_share_one_process(tmp_path: Path) -> None:
    """Those of OpenMP do not survive a fork, and a process that waits for them waits for ever."""
    study(tmp_path / "s", engine="stacked", threads=2, rounds=2).run()
    [machine] = [s["machine"] for s in Folder(tmp_path / "s").record()["settings"].values()]
    assert (machine["threads"], machine["processes"]) == (2, 1)
    with pytest.raises(
        InputError, match=r"threads must be 1 with several processes, got 2\. Set processes=1"
    ):
        study(tmp_path / "t", engine="stacked", threads=2, processes=2).run()
    assert not (tmp_path / "t").exists()


def test_the_edition_of_our_kernels_is_noted() -> None:
    """A study does not go on with another one; nor does one of the first, which was noted as True."""
    _, machine = prepared_setting(CASES["synthetic"].study(10, device="cpu"))
    assert machine.facts()["kernels"] is False
    assert replace(machine, kernels=True).facts()["kernels"] == KERNELS > 1


def test_a_study_does_not_go_on_with_a_part_of_its_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As MPS gives it to a process, which then sees fewer multiprocessors of the same GPU."""
    gpu = SimpleNamespace(name="H200", multi_processor_count=132)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: gpu)
    monkeypatch.setattr("fedskip.study.machine.device_name", lambda _: device_name("cuda"))
    study(tmp_path, rounds=1).run()
    gpu.multi_processor_count = 78
    was, now = "'H200 with 132 multiprocessors'", "'H200 with 78 multiprocessors'"
    with pytest.raises(
        InputError, match=rf"not repeat .* machine\.device_name was {was} and is {now}"
    ):
        study(tmp_path, rounds=1).resume(rounds=2)
    gpu.multi_processor_count = 132
    study(tmp_path, rounds=1).resume(rounds=2)


def test_a_study_does_not_go_on_with_another_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same capability; an older version noted that alone, and goes on with any that has it."""
    name = "AVX512 on Xeon"
    monkeypatch.setattr("fedskip.study.machine.device_name", lambda _: name)
    study(tmp_path, rounds=1).run()
    name = "AVX512 on EPYC"
    differ = r"machine\.device_name was 'AVX512 on Xeon' and is 'AVX512 on EPYC'"
    with pytest.raises(InputError, match=differ):
        study(tmp_path, rounds=1).resume(rounds=2)
    file = tmp_path / "study.yaml"
    file.write_text(file.read_text().replace("AVX512 on Xeon", "AVX512"))
    study(tmp_path, rounds=1).resume(rounds=2)
    assert "device_name: AVX512 on EPYC\n" in file.read_text()
    file.write_text(file.read_text().replace("AVX512 on EPYC", "AVX2"))
    with pytest.raises(InputError, match=r"device_name was 'AVX2' and is 'AVX512 on EPYC'"):
        study(tmp_path, rounds=1).resume(rounds=3)


# --- the engine ----------------------------------------------------------------------------------------

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
    module = models.build(name)
    cpu, cuda, streams = BUNDLED[name]
    assert choose(module, "cpu", MANY).engine == cpu
    assert choose(module, "cuda", MANY).engine == cuda
    assert (streams_of(module, "cpu"), streams_of(module, "cuda")) == (0, streams)
    assert compiles(module, "cpu", "fp32", kernels=False)
    assert compiles(module, "cuda", "tf32", kernels=False) == (name != "lstm")
    assert compiles(module, "cuda", "tf32", kernels=True)
    assert compiles(module, "cuda", "fp32", kernels=True) == (name != "lstm"), "they are for tf32"


def test_a_module_goes_by_its_layers_and_not_by_its_name() -> None:
    assert choose(Net(), "cpu", MANY) == choose(models.build("mlp"), "cpu", MANY)
    assert choose(Net(), "cuda", MANY) == choose(models.build("mlp"), "cuda", MANY)


@pytest.mark.parametrize(
    ("module", "steps", "line"),
    [
        (Net(), MANY, "engine: stacked (auto: dense layers of 4,229 numbers on a CPU)"),
        (Net(), 99, f"engine: loop (auto: 99 client-steps, fewer than {SHORT:,}, on a CPU)"),
        (
            Net(4096),
            MANY,
            f"engine: loop (auto: 270,341 numbers, more than {MOST_STACKED:,}, on a CPU)",
        ),
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
    engine, why, _ = choose(module, "cpu", steps)
    assert f"engine: {engine} (auto: {why})" == line


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
    monkeypatch.setattr("fedskip.study.machine.SHORT", 0)
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
    monkeypatch.setattr("fedskip.study.machine.SHORT", 20)
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
