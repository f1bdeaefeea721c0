"""A study leaves the files it promises and resumes exactly."""

from __future__ import annotations

import gc
import io
import random
import re
import signal
import subprocess
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor, nn

import fedskip
from fedskip import Arrays, Dataset, FedAvg, FedDyn, FedProx, InputError, Moon, Scaffold, Study
from fedskip.config import build, bundled, plain
from fedskip.data.dataset import Split
from fedskip.records.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint
from fedskip.records.history import HISTORY, SUMMARY
from fedskip.records.table import Row, Table
from fedskip.report.progress import Progress, ProgressDisplay, SettingProgress
from fedskip.report.results import Results
from fedskip.study import Interrupted
from fedskip.study.setting_plan import Group
from fedskip.study.train import InProcess, Preparing
from studies import Net, as_table, numbers, study, toy, weights


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_files(tmp_path: Path, engine: str) -> None:
    results = study(tmp_path / "out", engine=engine).run()
    assert tuple(as_table(results.history).columns) == HISTORY
    assert tuple(as_table(results.summary).columns) == SUMMARY
    assert len(as_table(results.summary)) == 12
    skip = as_table(results.history).where(run="toy.FedSkip-3.s0")
    assert skip.column("round") == [3, 6]
    assert skip.column("merges") == [1, 2]
    assert as_table(results.history).where(run="toy.FedAvg.s1").column("round") == list(range(1, 8))
    row = as_table(results.summary).where(run="toy.FedSkip-3.s0")[0]
    assert row["merged"] is not None  # round 7 belongs to no whole period
    assert as_table(results.summary).where(run="toy.FedAvg.s0")[0]["merged"] is None
    assert row["bytes_total"] == 2 * 7 * 4 * 22 * 4  # both ways, rounds, slots, parameters, bytes
    scaffold = as_table(results.summary).where(run="toy.SCAFFOLD.s0")[0]
    assert scaffold["bytes_total"] == 2 * 2 * 7 * 4 * 22 * 4
    names = {path.name for path in (tmp_path / "out" / "models").iterdir()}
    assert {"toy.FedAvg.s0.last.safetensors", "toy.FedAvg.s0.best.safetensors"} <= names
    assert "toy.FedSkip-3.s0.merged.safetensors" in names
    record = yaml.safe_load((tmp_path / "out" / "study.yaml").read_text())["record"]
    assert record["settings"]["toy"]["machine"]["engine"] == engine
    assert record["settings"]["toy"]["divisions"][0]["clients"] == 8
    assert (tmp_path / "out" / "partition-toy-0.npz").exists()


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_resume_in_the_middle_is_exact(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    study(whole, engine=engine, checkpoint_every=2, processes=1).run()
    advance = InProcess.advance

    def breaks(
        self: InProcess, groups: list[Group], until: int, preparing: Preparing
    ) -> Iterator[list[Row]]:
        if until == 6:
            raise KeyboardInterrupt
        return advance(self, groups, until, preparing)

    monkeypatch.setattr(InProcess, "advance", breaks)
    with pytest.raises(KeyboardInterrupt):
        study(broken, engine=engine, checkpoint_every=2, processes=1).run()
    monkeypatch.undo()
    assert [round for round, _ in list_checkpoints(broken / "checkpoints", "toy")] == [2, 4]
    with (broken / "history.csv").open("a") as file:
        file.write("toy,toy.Fed")  # a line cut short by the kill
    study(broken, engine=engine, checkpoint_every=2, processes=1).resume()
    assert numbers(whole) == numbers(broken)
    assert weights(whole) == weights(broken)
    assert (whole / "summary.csv").read_text() == (broken / "summary.csv").read_text()


def _edited(file: Path) -> None:
    table = Table.read(file)
    table[1]["test_accuracy"] = 0.99
    file.write_text(table.csv())


@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        lambda file: file.write_text(""),
        lambda file: file.write_text("".join(file.read_text().splitlines(True)[::2])),
        _edited,
    ],
    ids=["deleted", "emptied", "rows removed", "edited"],
)
def test_what_became_of_the_history_changes_nothing(
    tmp_path: Path, damage: Callable[[Path], Any], caplog: pytest.LogCaptureFixture
) -> None:
    keys: dict[str, Any] = {"methods": "fedavg, fedskip(period=2)", "seeds": 1, "processes": 1}
    study(tmp_path / "whole", rounds=4, **keys).run()
    study(tmp_path / "hurt", rounds=2, **keys).run()
    damage(tmp_path / "hurt" / "history.csv")
    study(tmp_path / "hurt", rounds=2, **keys).resume(rounds=4)
    assert "is taken from its checkpoint" in caplog.text
    assert numbers(tmp_path / "whole") == numbers(tmp_path / "hurt")


SCRIPT = """
import sys
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, {tests!r})
from studies import study
made = study(Path(sys.argv[1]), engine={engine!r}, rounds=40, checkpoint_every=3)
made.resume() if (made.out / "study.yaml").exists() else made.run()
"""


@pytest.mark.parametrize(
    ("engine", "times"),
    [
        ("stacked", 1),
        pytest.param("loop", 3, marks=pytest.mark.slow),
        pytest.param("stacked", 3, marks=pytest.mark.slow),
    ],
)
def test_killed_at_random_moments(tmp_path: Path, engine: str, times: int) -> None:
    """SIGKILL, again and again, then to the end: the same numbers and the same bits."""
    code = SCRIPT.format(tests=str(Path(__file__).parents[1]), engine=engine)
    study(tmp_path / "whole", engine=engine, rounds=40, checkpoint_every=3).run()
    moments, out = random.Random(engine), tmp_path / "killed"
    kills = 0
    for _ in range(times):
        before = list_checkpoints(out / "checkpoints", "toy")
        process = subprocess.Popen([sys.executable, "-c", code, str(out)], stderr=subprocess.PIPE)
        while process.poll() is None and list_checkpoints(out / "checkpoints", "toy") == before:
            time.sleep(0.005)
        time.sleep(moments.uniform(0.0, 0.2))
        kills += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
    study(out, engine=engine, rounds=40, checkpoint_every=3).resume()
    assert kills >= min(times, 2), "also on a fast machine"
    assert numbers(tmp_path / "whole") == numbers(out)
    assert weights(tmp_path / "whole") == weights(out)


def test_resume_without_a_checkpoint_starts_at_round_0(tmp_path: Path) -> None:
    whole, early = study(tmp_path / "whole", rounds=3), study(tmp_path / "early", rounds=3)
    whole.run()
    settings = [draft.resolved({}) for draft in early.spec.settings]
    early.folder.write(plain(early.spec, settings), {})
    early.resume()
    assert numbers(whole.out) == numbers(early.out)


def test_extension(tmp_path: Path) -> None:
    short, long = study(tmp_path / "short", rounds=4), study(tmp_path / "long", rounds=8)
    short.run()
    assert short.is_finished()
    short.resume(rounds=8)
    long.run()
    assert numbers(short.out)[-1]["round"] == 8
    for row, other in zip(
        sorted(numbers(short.out), key=lambda r: (r["run"], r["round"])),
        sorted(numbers(long.out), key=lambda r: (r["run"], r["round"])),
        strict=True,
    ):
        assert row == other
    with pytest.raises(InputError, match="rounds must be >= 8"):
        short.resume(rounds=5)


class Presses(Progress):
    """Presses Ctrl-C once, or sends another signal, when the first row of a round is recorded."""

    def __init__(self, round: int, number: int = signal.SIGINT) -> None:
        self.round, self.number, self.pressed = round, number, False

    def recorded(self, rows: list[Row]) -> None:
        if not self.pressed and any(row["round"] == self.round for row in rows):
            self.pressed = True
            signal.raise_signal(self.number)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM]
)  # queues of clusters send the second
def test_interrupt_stops_at_a_checkpoint(tmp_path: Path, number: int) -> None:
    made, before = study(tmp_path / "out", checkpoint_every=2), signal.getsignal(number)
    with pytest.raises(Interrupted):
        made.run(Presses(1, number))
    assert signal.getsignal(number) == before
    assert list_checkpoints(made.out / "checkpoints", "toy")[-1][0] == 2
    made.resume()
    study(tmp_path / "whole", checkpoint_every=2).run()
    assert numbers(made.out) == numbers(tmp_path / "whole")


def test_an_interrupt_at_the_end_of_a_setting_does_not_start_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"methods": "fedavg", "seeds": 1, "rounds": 4, "checkpoint_every": 2, "processes": 1}
    made = study(tmp_path / "out", settings=[{"name": "one"}, {"name": "two"}], **few)
    with pytest.raises(Interrupted):
        made.run(Presses(3))
    assert list_checkpoints(made.out / "checkpoints", "one")[-1][0] == 4
    assert not list_checkpoints(made.out / "checkpoints", "two")
    assert {row["setting"] for row in as_table(made.resume().summary)} == {"one", "two"}

    def pressed(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("fedskip.study.train.write_models", pressed)  # after the last checkpoint
    late = study(tmp_path / "late", settings=[{"name": "one"}, {"name": "two"}], **few)
    with pytest.raises(Interrupted):
        late.run()
    assert not list_checkpoints(late.out / "checkpoints", "two")
    monkeypatch.undo()
    last = study(tmp_path / "last", **few)
    assert as_table(last.run(Presses(3)).summary), "where nothing is left to train, the study ends"


def test_a_changed_machine_is_refused_and_loses_nothing(tmp_path: Path) -> None:
    made = study(tmp_path / "out", rounds=2)
    made.run()
    file = made.out / "study.yaml"
    file.write_text(file.read_text().replace(f"torch: {torch.__version__}", "torch: 1.0.0"))
    before = {path: path.read_bytes() for path in made.out.rglob("*") if path.is_file()}
    with pytest.raises(
        InputError, match=r"same numbers: versions.torch was '1\.0\.0' and is .*anyway=True"
    ):
        study(tmp_path / "out", rounds=2).resume(rounds=3)
    assert {path: path.read_bytes() for path in made.out.rglob("*") if path.is_file()} == before
    study(tmp_path / "out", rounds=2).resume(rounds=3, anyway=True)


def test_corrupt_checkpoint(tmp_path: Path) -> None:
    made = study(tmp_path / "out", rounds=4, checkpoint_every=2)
    made.run()
    _, path = list_checkpoints(made.out / "checkpoints", "toy")[-1]
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match=r"checkpoint is damaged.*Delete it"):
        study(tmp_path / "out", rounds=4, checkpoint_every=2).resume(rounds=6)
    assert path.read_bytes() == bytes(content)
    path.unlink()  # as it says
    study(tmp_path / "out", rounds=4, checkpoint_every=2).resume()


def test_a_study_of_which_nothing_is_left_ends_in_order(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = study(
            tmp_path / "out",
            methods=[FedProx(mu=1e30)],
            local={"batch": 4, "epochs": 1, "lr": 1e30},
            seeds=1,
        ).run()
    [lost] = as_table(results.summary)
    assert lost["diverged"] is True
    assert not len(as_table(results.history))


def test_settings_validation_and_extras(tmp_path: Path) -> None:
    results = study(
        tmp_path / "out", methods=[FedAvg(), FedDyn()], rounds=6, eval_every=3, validation=0.25,
        slot_accuracy=True, client_accuracy=True, seeds=1,
        settings=[{"name": "one"}, {"name": "two", "cohort": 2}],
    ).run()  # fmt: skip
    assert {row["setting"] for row in as_table(results.summary)} == {"one", "two"}
    rows = as_table(results.history).where(run="one.FedDyn.s0")
    assert rows.column("round") == [3, 6]
    assert all(row["val_accuracy"] is not None and row["slot_accuracy"] is not None for row in rows)
    assert all(row["x_broadcast_accuracy"] is not None for row in rows)
    assert as_table(results.summary)[0]["best_val"] is not None
    clients = Table.read(tmp_path / "out" / "clients.csv")
    assert len(clients) == 2 * 2 * 8


def test_local_and_cross_training(tmp_path: Path) -> None:
    """The last round counts, although it is no multiple of `eval_every`."""
    results = study(
        tmp_path / "out", methods=[FedAvg(period="never")], rounds=5, eval_every=2, seeds=1,
        settings=[
            {"name": "local", "cohort": 8, "cohort_policy": "fixed"},
            {"name": "cross", "cohort": 1, "cohort_policy": "cyclic"},
        ],
    ).run()  # fmt: skip
    for name in ("local", "cross"):
        rows = as_table(results.history).where(setting=name)
        assert rows.column("round") == [2, 4, 5]
        assert rows.column("merges") == [0, 0, 0]
        assert as_table(results.summary).where(setting=name)[0]["merged"] is None
    assert len(list((tmp_path / "out" / "models").glob("local*.slot*.last.safetensors"))) == 8


def test_paired_randomness(tmp_path: Path) -> None:
    """All methods of a seed start from the same model and see the same cohorts and batches."""
    results = study(
        tmp_path / "out", methods=[FedAvg(), FedProx(mu=0.0), Moon(mu=0.0)], engine="loop"
    ).run()
    for seed in (0, 1):
        rows = [
            as_table(results.history).where(seed=seed, round=r).column("train_loss")
            for r in range(1, 8)
        ]
        assert all(len(set(losses)) == 1 for losses in rows)
    first = as_table(results.history).where(round=1)
    assert first.where(seed=0)[0]["train_loss"] != first.where(seed=1)[0]["train_loss"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"cohort": 9}, "cohort must be <= 8"),
        ({"local": {"batch": 64}}, r"local\.batch must fit every client; client 0 has 16.*small_clients"),
        ({"methods": "fedavgg"}, "Did you mean 'fedavg'"),
        ({"methods": "fedprox(mv=1)"}, "mu"),
        ({"methods": "fedskip(period=0)"}, "period"),
        ({"methods": "fedskip"}, "period"),
        ({"device": "tpu"}, "device must be"),
        ({"precision": "bf16"}, "precision must be fp32 or fp64"),
        ({"local": {"optimizer": "adam"}}, "optimizer"),
        ({"partition": {"kind": "dirichlett"}}, "Did you mean 'dirichlet'"),
        ({"partition": {"kind": "dirichlet", "beta": -1}, "clients": 4}, r"partition\.beta"),
        ({"loss": "cross_entropie"}, "Did you mean 'cross_entropy'"),
        ({"init": "nowhere.safetensors"}, "existing file"),
        ({"loss": lambda out, y: out.mean()}, "one number per sample"),
        ({"model": nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, momentum=None))}, "momentum=0.1"),
        ({"model": nn.Linear(2, 2), "methods": "moon"}, r"features\(x\)"),
    ],
)  # fmt: skip
def test_bad_input(tmp_path: Path, keys: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        study(tmp_path / "out", **keys).run()


def test_many_tiny_clients_start_fast(tmp_path: Path) -> None:
    """100,000 clients: no row for a client that nobody has visited."""
    n = 100_000
    x = torch.randn(3 * n + 100, 2, generator=torch.Generator().manual_seed(0))
    owner = np.concatenate([np.repeat(np.arange(n), 3), np.full(100, -1)])
    halves = np.flatnonzero(owner >= 0), np.flatnonzero(owner < 0)
    data = Dataset("many", Arrays(x, (x[:, 0] > 0).long()), lambda seed: halves, 2, owner)
    made = study(
        tmp_path / "out",
        data=data,
        methods=[Scaffold()],
        rounds=2,
        seeds=1,
        local={"batch": 3, "epochs": 1},
    )
    made.run()
    state = load_file(list_checkpoints(made.out / "checkpoints", "many")[-1][1])
    assert 4 <= len(state["many.SCAFFOLD.s0/memory.c"]) <= 8


def test_the_last_setting_is_tried_before_the_first_is_trained(tmp_path: Path) -> None:
    settings = [{"name": "one"}, {"name": "two", "model": nn.Linear(3, 2)}]
    with pytest.raises(InputError, match=r"model cannot take .*\(setting two\)"):
        study(tmp_path / "s", settings=settings, methods="fedavg").run()
    assert not (tmp_path / "s").exists()


def test_each_study_has_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keys = {"data": toy(), "model": Net, "partition": "natural", "cohort": 4, "methods": "fedavg"}
    one, other = (
        Study(**keys, name="s", rounds=1, local={"batch": 4, "lr": lr}) for lr in (0.1, 0.2)
    )
    assert [one.run().out, other.run().out] == [Path("runs/s-1"), Path("runs/s-2")]
    assert one.is_finished()


def test_results_can_be_had_again_from_the_folder_alone(tmp_path: Path) -> None:
    """Also where the study was made of Python objects, which its file only names."""
    with pytest.raises(InputError, match="out holds no study"):
        study(tmp_path / "s", rounds=2).results()
    ended = study(tmp_path / "s", rounds=2).run()
    again = study(tmp_path / "s", rounds=2).results()
    assert again.history.equals(ended.history)
    assert again.summary.equals(ended.summary)
    assert (again.name, [s.name for s in again.settings]) == ("study", ["toy"])
    loaded = Study.load(tmp_path / "s")
    assert as_table(loaded.results().summary).csv() == as_table(ended.summary).csv()
    with pytest.raises(InputError, match="data was a Python object, which a file cannot hold"):
        loaded.resume(rounds=3)


def test_results_of_a_study_that_is_under_way(tmp_path: Path) -> None:
    made = study(tmp_path / "s", methods="fedavg, fedskip(period=3)", rounds=6, checkpoint_every=2)
    with pytest.raises(Interrupted):
        made.run(Presses(3))
    results = made.results()
    assert not results.finished
    assert set(as_table(results.summary).column("rounds")) == {4, 3}
    assert (
        as_table(results.summary).where(run="toy.FedAvg.s0")[0]["last"]
        == as_table(results.history).where(run="toy.FedAvg.s0")[-1]["test_accuracy"]
    )
    assert len(results.compare()) == 2
    assert not (made.out / "summary.csv").exists()
    assert made.resume().finished


def test_looking_at_results_changes_no_file(tmp_path: Path) -> None:
    """Another process may just be appending to the history: it holds the lock, a reader does not."""
    study(tmp_path / "s", rounds=2).run()
    history = tmp_path / "s" / "history.csv"
    whole = history.read_bytes()
    history.write_bytes(whole + b"toy,toy.FedAvg.s0,Fed")
    assert as_table(study(tmp_path / "s", rounds=2).results().history).csv().encode() == whole
    assert history.read_bytes() == whole + b"toy,toy.FedAvg.s0,Fed"


def test_two_data_sets_of_one_name(tmp_path: Path) -> None:
    settings = [{"name": "one", "data": toy()}, {"name": "two", "data": toy(seed=1)}]
    results = study(tmp_path / "s", settings=settings, methods="fedavg", rounds=2, seeds=1).run()
    first, second = (
        [row["train_loss"] for row in as_table(results.history).where(setting=s)]
        for s in ("one", "two")
    )
    assert first != second
    assert "&id" not in (tmp_path / "s" / "study.yaml").read_text(), (
        "settings share no part of a file"
    )


def test_data_are_prepared_once(tmp_path: Path) -> None:
    """They are divided once for a setting, although it is rehearsed before and trained later."""
    divided = []
    full = toy()

    def split(seed: int) -> Split:
        divided.append(seed)
        return full.split(seed)

    settings = [{"name": "one"}, {"name": "two", "cohort": 2}]
    keys = {
        "data": replace(full, split=split),
        "settings": settings,
        "methods": "fedavg",
        "seeds": 1,
    }
    study(tmp_path / "s", rounds=1, **keys).run()
    assert len(divided) == 2


def test_a_setting_leaves_the_device_to_the_next(tmp_path: Path) -> None:
    """Its data and models, also where somebody watches: the next one looks how much memory there is."""
    moved: list[weakref.ref[Arrays]] = []
    alive = []

    class Tracked(Arrays):
        def to(self, device: torch.device, dtype: torch.dtype) -> Arrays:
            there = Arrays(self.x.clone(), self.y.clone())
            moved.append(weakref.ref(there))
            return there

    class Watching(ProgressDisplay):
        def started(self, setting: SettingProgress, rows: Iterable[Row]) -> None:
            gc.collect()
            alive.append(sum(ref() is not None for ref in moved))
            super().started(setting, rows)

    full = toy()
    data = replace(full, samples=Tracked(full.samples.x, full.samples.y))  # type: ignore[attr-defined]
    settings = [{"name": "one"}, {"name": "two"}, {"name": "three"}]
    made = study(
        tmp_path / "s", data=data, settings=settings, methods="fedavg, moon", rounds=2, seeds=1
    )
    with Watching(Console(file=io.StringIO(), force_terminal=True), lambda: "") as progress:
        made.run(progress)
    assert len(moved) == 6  # rehearsed, then trained
    assert alive == [1, 1, 1]


@pytest.mark.parametrize(
    "keys",
    [
        {"data": toy(20), "cohort": 10},
        {"cohort": 10},
        {"local": {"batch": 20}},
        {"data": toy(4), "seeds": 3},
    ],
    ids=["data and cohort", "cohort", "batch", "data and seeds"],
)
def test_resume_refuses_another_study_before_it_looks_at_data(
    tmp_path: Path, keys: dict[str, object]
) -> None:
    some = {"methods": "fedavg", "rounds": 1, "engine": "loop"}
    study(tmp_path / "s", **some).run()
    with pytest.raises(InputError, match="out holds another study"):
        study(tmp_path / "s", **(some | keys)).resume(rounds=3)


FILE = {
    "data": "synthetic",
    "methods": "fedavg",
    "rounds": 1,
    "engine": "loop",
    "local": {"max_steps": 1},
}


@pytest.mark.parametrize("rounds", ["", "rounds: null\n"])
def test_a_file_that_lost_its_rounds_was_edited(tmp_path: Path, rounds: str) -> None:
    out = Study(tmp_path / "s", **FILE).run().out
    file = out / "study.yaml"
    file.write_text(file.read_text().replace("rounds: 1\n", rounds))
    edited = Study.load(out)
    assert not edited.is_finished()
    with pytest.raises(InputError, match="was changed after the study began"):
        edited.resume(rounds=2)


def test_anyway_goes_on_with_an_edited_study(tmp_path: Path) -> None:
    """Runs that were added start at round 0; what cannot be trained is refused as ever."""
    out = Study(tmp_path / "s", **FILE).run().out
    file = out / "study.yaml"
    before = file.read_text()
    file.write_text(before.replace("cohort: 10", "cohort: 300"))
    with pytest.raises(InputError, match="cohort must be <= 212"):
        Study.load(out).resume(rounds=2, anyway=True)
    file.write_text(before.replace("batch: 64", "batch: 5000"))
    with pytest.raises(InputError, match=r"local\.batch must fit every client"):
        Study.load(out).resume(rounds=2, anyway=True)
    file.write_text(before.replace("methods: [fedavg]", "methods: [fedavg, fedprox]"))
    summary = as_table(Study.load(out).resume(rounds=2, anyway=True).summary)
    assert {row["method"]: row["merges"] for row in summary} == {"FedAvg": 2, "FedProx": 2}


def test_what_tells_methods_of_a_grid_apart_is_in_their_names(tmp_path: Path) -> None:
    results = study(tmp_path / "s", methods="fedavg, moon(mu=[1,5])", rounds=1, seeds=1).run()
    assert results.labels() == ["FedAvg", "MOON(mu=1.0)", "MOON(mu=5.0)"]
    assert (tmp_path / "s" / "models" / "toy.MOON(mu=1.0).s0.last.safetensors").exists()
    assert list(results.compare()["method"]) == results.labels()


def test_a_checkpoint_without_a_run_is_refused(tmp_path: Path) -> None:
    """One that an older version wrote under another name, say; it would start anew without a word."""
    out = study(tmp_path / "s", methods="fedavg, fedprox", rounds=2, seeds=1).run().out
    [(_, file)] = list_checkpoints(out / "checkpoints", "toy")[-1:]
    tensors, notes = load_checkpoint(file)
    notes["runs"]["toy.Old.s0"] = notes["runs"].pop("toy.FedProx.s0")
    history = (out / "history.csv").read_text()
    save_checkpoint(out / "checkpoints", "toy", 3, tensors, notes | {"round": 3}, history)
    with pytest.raises(InputError, match=r"checkpoint holds no run toy\.FedProx\.s0"):
        study(out, methods="fedavg, fedprox", rounds=2, seeds=1).resume(rounds=4)


def test_results_of_a_folder_that_is_not_this_study(tmp_path: Path) -> None:
    settings = [{"name": "a"}, {"name": "b"}]
    out = study(tmp_path / "s", settings=settings, methods="fedavg", rounds=1, seeds=1).run().out
    with pytest.raises(InputError, match="out holds another study"):
        study(out).results()
    (out / "study.yaml").unlink()
    with pytest.raises(InputError, match="out holds no study"):
        study(out, settings=settings).results()


def test_resume_refuses_other_data_and_another_model(tmp_path: Path) -> None:
    study(tmp_path / "s", rounds=2).run()
    other = toy(seed=1)
    with pytest.raises(InputError, match=r"would not repeat the same numbers: data.x was"):
        study(tmp_path / "s", rounds=2, data=other).resume(rounds=4)
    fewer = toy(clients=4)
    with pytest.raises(InputError, match=r"is not of data set .*partition-toy-0"):
        study(tmp_path / "s", rounds=2, data=fewer).resume(rounds=4)

    class Net(nn.Module):  # another one of the same name
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(2, 2)

        def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
            z = self.one(x)
            return z, z

        def forward(self, x: Tensor) -> Tensor:
            return self.features(x)[0]

    Net.__module__, Net.__qualname__ = "studies", "Net"
    with pytest.raises(InputError, match="parameters was 22 and is 6"):
        study(tmp_path / "s", rounds=2, model=Net).resume(rounds=4)


def test_a_longer_study_is_not_finished_before_its_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study(tmp_path / "s", rounds=2).run()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedskip.study.train.write_models", killed)
    with pytest.raises(KeyboardInterrupt):
        study(tmp_path / "s", rounds=2).resume(rounds=4)
    monkeypatch.undo()
    begun = study(tmp_path / "s", rounds=4)
    assert not begun.is_finished()
    assert {row["rounds"] for row in as_table(begun.resume().summary)} == {4}


def test_resume_goes_on_with_the_study_of_a_folder(tmp_path: Path) -> None:
    keys = {"model": {"name": "perceptron", "inputs": 2}, "methods": "fedavg", "seeds": 1}
    made = study(tmp_path / "out", rounds=2, **keys)
    made.run()
    with pytest.raises(
        InputError, match=r"a Python object.*Make the same Study in Python.*resume\(\)"
    ):
        fedskip.resume(tmp_path / "out", rounds=4)
    with pytest.raises(InputError, match="holds no study"):
        fedskip.resume(tmp_path / "nowhere")
    assert [row["rounds"] for row in as_table(made.resume(rounds=4).summary)] == [4]


# --- as text, and in a notebook ------------------------------------------------------------------------


def test_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    both = {"settings": [{"name": "a"}, {"name": "b"}], "data": "synthetic", "name": "demo"}
    made = fedskip.Study(**both, methods="fedavg, moon", rounds=1000, seeds=3)
    assert repr(made) == "Study('demo': 2 settings, 12 runs of 1,000 rounds, cpu)"
    quickstart = fedskip.Study(spec=build(bundled.load("quickstart")))
    assert repr(quickstart) == "Study('quickstart': 2 settings, 27 runs of 50 to 200 rounds, cpu)"
    assert repr(fedskip.Study(data="synthetic", methods="fedavg", device="cuda:1")) == (
        "Study('study': 1 run, cuda:1)"
    )
    assert repr(fedskip.Study(data="synthetic")) == "Study('study': cpu)"


def test_with_its_folder(tmp_path: Path) -> None:
    made = study(tmp_path / "out", name="x", rounds=2)
    assert repr(made) == f"Study('x': 12 runs of 2 rounds, cpu, in {tmp_path / 'out'})"


def test_as_html(tmp_path: Path) -> None:
    made = study(tmp_path / "out", methods="fedavg, fedskip(period=3)", partition="natural")
    shown = made._repr_html_()
    assert shown.startswith("<b>Study(")
    assert "methods: [fedavg, fedskip(period=3)]" in shown
    assert not re.search("<script|style|color", shown)


def test_settings_and_drafts_are_short(tmp_path: Path) -> None:
    made = study(tmp_path / "out", methods="fedavg", seeds=1, rounds=1)
    [draft] = made.spec.settings
    assert repr(draft) == "Draft('toy')"
    resolved = draft.resolved({})
    assert repr(resolved) == "Setting('toy')"


# --- runs that are added -------------------------------------------------------------------------------

FEW: dict[str, Any] = {
    "methods": "fedavg, moon",
    "seeds": 2,
    "rounds": 4,
    "checkpoint_every": 2,
    "processes": 1,
}


def files(out: Path) -> dict[str, bytes]:
    """What is kept of runs that are there."""
    kept = [*(out / "models").iterdir(), *out.glob("partition-*"), *(out / "checkpoints").iterdir()]
    return {str(path.relative_to(out)): path.read_bytes() for path in kept}


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_what_is_there_stays_and_what_is_new_is_as_if_alone(tmp_path: Path, engine: str) -> None:
    keys = FEW | {"engine": engine}
    grown, out = study(tmp_path / "grown", **keys), tmp_path / "grown"
    grown.run()
    history, summary, before = (
        (out / "history.csv").read_text(),
        (out / "summary.csv").read_text(),
        files(out),
    )
    results = study(out, **keys).extend(methods="scaffold, moon(mu=5)")
    assert (out / "history.csv").read_text().startswith(history)
    assert (out / "summary.csv").read_text().startswith(summary)
    assert files(out).items() >= before.items()
    alone = study(tmp_path / "alone", **(keys | {"methods": "scaffold, moon(mu=5)"}))
    alone.run()
    assert numbers(out)[len(history.splitlines()) - 1 :] == numbers(alone.out)
    assert weights(out).items() >= weights(alone.out).items()
    assert results.labels("toy") == ["FedAvg", "MOON", "SCAFFOLD", "MOON(mu=5.0)"]
    assert results.finished
    assert Study(out, spec=grown.spec).is_finished()


@pytest.mark.usefixtures("with_page")
def test_more_seeds_come_with_all_methods(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = study(tmp_path / "out", **FEW)
    made.run()
    made.extend(methods="scaffold, moon", seeds=3)
    assert caplog.messages == ["MOON is there already, and stays as it is"]
    results = made.extend(seeds=[7])
    assert (
        sorted(results.scores("toy", "SCAFFOLD").index)
        == sorted(results.scores("toy", "MOON").index)
        == [0, 1, 2, 7]
    )
    assert len(as_table(results.summary)) == 12
    for seed in (2, 7):
        assert (made.out / f"partition-toy-{seed}.npz").exists()
    known = yaml.safe_load((made.out / "study.yaml").read_text())
    added = known["settings"][0]["record"]["added"]
    assert len(added) == 3
    assert added[-1] == {"methods": ["fedavg", "moon", "scaffold"], "seeds": [7]}
    assert (
        set(known["record"]["added"])
        == {"toy~1", "toy~2", "toy~3"}
        == set(known["record"]["settings"]) - {"toy"}
    )
    assert all(
        made["when"] and made["versions"]["torch"] for made in known["record"]["added"].values()
    )
    assert "Addition 1 to toy: 2" in (made.out / "report.html").read_text()


def test_what_guessing_scores_is_known_for_all_seeds(tmp_path: Path) -> None:
    made = study(tmp_path / "out", **FEW | {"seeds": [0]})
    made.run()
    results = made.extend(seeds=[3])
    assert set(results.settings[0].guessing["scores"]) == {0, 3}


def test_further_metrics_of_what_is_done_survive_a_stop(tmp_path: Path) -> None:
    """A reference keeps its rounds when the others go on; what is written of it stays as it is."""

    class Stops(Progress):
        def checkpoint(self, round: int) -> None:
            if round > 2:
                raise KeyboardInterrupt

    keys = FEW | {"metric": ["accuracy", "macro_f1"], "rounds": 2, "checkpoint_every": 1}
    settings = [{"name": "a"}, {"name": "b", "reference": True, "methods": "fedavg"}]
    made = study(tmp_path / "out", settings=settings, **keys)
    before = as_table(made.run().summary).where(setting="b").column("x_macro_f1")
    with pytest.raises(KeyboardInterrupt):
        made.resume(Stops(), rounds=4)
    assert as_table(made.results().summary).where(setting="b").column("x_macro_f1") == before
    assert as_table(made.resume().summary).where(setting="b").column("x_macro_f1") == before


def test_an_addition_is_no_further_setting_on_the_screen(tmp_path: Path) -> None:
    """Nor does the record say why an engine was chosen, where it was asked for."""
    settings = [{"name": "a"}, {"name": "b"}]
    made = study(tmp_path / "out", settings=settings, engine="loop", **FEW | {"rounds": 1})
    made.run()
    screen = ProgressDisplay(Console(file=io.StringIO()), lambda: "title", settings=2)
    made.extend(seeds=[7])
    made.resume(screen, rounds=2)
    assert screen._names == ["a", "b"]
    known = yaml.safe_load((made.out / "study.yaml").read_text())["record"]["settings"]
    assert known.keys() == {"a", "b", "a~1", "b~1"}
    assert all("why" not in facts for facts in known.values())


def test_a_copy_of_its_file_gives_the_same_study(tmp_path: Path) -> None:
    """Also the parts that were added are a part of what the study is."""
    keys = FEW | {
        "data": "synthetic", "model": "perceptron", "cohort": 2, "rounds": 2, "methods": "fedavg",
        "local": {"batch": 10, "epochs": 1, "small_clients": "drop"},
    }  # fmt: skip
    made = study(tmp_path / "one", **keys)
    made.run()
    made.extend(methods="fedprox")
    from fedskip.config import build, load_yaml

    Study(tmp_path / "two", spec=build(load_yaml(tmp_path / "one" / "study.yaml"))).run()
    assert numbers(tmp_path / "one") == numbers(tmp_path / "two")
    assert weights(tmp_path / "one") == weights(tmp_path / "two")


@pytest.mark.parametrize("until", [2, 4])
def test_killed_in_the_middle_of_an_addition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: int
) -> None:
    whole, broken = study(tmp_path / "whole", **FEW), study(tmp_path / "broken", **FEW)
    whole.run()
    whole.extend(methods="scaffold")
    broken.run()
    history, before = (broken.out / "history.csv").read_text(), files(broken.out)
    advance = InProcess.advance

    def breaks(
        self: InProcess, groups: list[Group], to: int, preparing: Preparing
    ) -> Iterator[list[Row]]:
        if to == until:
            raise KeyboardInterrupt
        return advance(self, groups, to, preparing)

    with monkeypatch.context() as patched:
        patched.setattr(InProcess, "advance", breaks)
        with pytest.raises(KeyboardInterrupt):
            study(broken.out, **FEW).extend(methods="scaffold")
    assert not study(broken.out, **FEW).is_finished()
    if until == 4:
        so_far = Results.read(broken.out)
        assert not so_far.finished
        assert so_far.labels("toy") == ["FedAvg", "MOON", "SCAFFOLD"]
    with pytest.raises(InputError, match=r"holds a study that is not finished.*study.resume"):
        study(broken.out, **FEW).extend(methods="scaffold")
    study(broken.out, **FEW).resume()  # the same arguments as when it began
    assert (broken.out / "history.csv").read_text().startswith(history)
    assert files(broken.out).items() >= before.items()
    assert numbers(whole.out) == numbers(broken.out)
    assert weights(whole.out) == weights(broken.out)
    assert (whole.out / "summary.csv").read_text() == (broken.out / "summary.csv").read_text()


def test_a_newer_library_adds_to_old_runs(tmp_path: Path) -> None:
    """They are not touched, so that they need not be repeated; each part knows what it was made with."""
    made = study(tmp_path / "out", **FEW)
    made.run()
    file, now = made.out / "study.yaml", str(torch.__version__)
    file.write_text(file.read_text().replace(f"torch: {now}", "torch: 1.0.0"))
    made.extend(methods="scaffold")
    record = yaml.safe_load(file.read_text())["record"]
    assert record["versions"]["torch"] == "1.0.0"
    assert record["added"]["toy~1"]["versions"]["torch"] == now
    with pytest.raises(InputError, match=r"versions.torch was '1\.0\.0'"):
        made.resume(rounds=6)


def test_an_extended_study_goes_on_to_more_rounds(tmp_path: Path) -> None:
    made, longer = (
        study(tmp_path / "made", **FEW),
        study(tmp_path / "longer", **(FEW | {"rounds": 6})),
    )
    made.run()
    made.extend(methods="scaffold")
    made.resume(rounds=6)
    longer.run()
    longer.extend(methods="scaffold")
    one, other = (
        sorted(numbers(x.out), key=lambda r: (r["run"], r["round"])) for x in (made, longer)
    )
    assert one == other
    assert [round for round, _ in list_checkpoints(made.out / "checkpoints", "toy~1")][-1] == 6


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "must be given methods or seeds"),
        ({"methods": "fedavg"}, "would add no run: all of them are there already"),
        ({"seeds": 2}, "would add no run"),
        ({"seeds": [0, 1], "methods": "moon, fedavg"}, "would add no run"),
        ({"methods": ""}, "at least one method"),
        ({"methods": "fedavgg"}, "Did you mean 'fedavg'"),
        ({"seeds": -1}, "seeds must be how many"),
        ({"seeds": "many"}, "seeds must be how many"),
        ({"seeds": 20_000}, "or fewer"),
    ],
)
def test_bad_additions_change_nothing(
    tmp_path: Path, keys: dict[str, Any], message: str, begun: Path
) -> None:
    before = {path: path.read_bytes() for path in begun.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=message):
        study(begun, **FEW).extend(**keys)
    assert {path: path.read_bytes() for path in begun.rglob("*") if path.is_file()} == before


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = study(tmp_path_factory.mktemp("growth") / "out", **FEW)
    made.run()
    return made.out


def test_other_data_are_refused(tmp_path: Path) -> None:
    from studies import toy

    study(tmp_path / "out", **FEW).run()
    with pytest.raises(InputError, match=r"was run on other data: data\.\w+ was"):
        study(tmp_path / "out", **(FEW | {"data": toy(seed=1)})).extend(methods="scaffold")
    assert len(Table.read(tmp_path / "out" / "summary.csv")) == 4


def test_references_stay_alone_and_trackers_hear_what_is_new(tmp_path: Path) -> None:
    from fedskip import Tracker

    class Hears(Tracker):
        def on_start(self, start: Any) -> None:
            self.runs, self.rows = [run.name for run in start.runs], list(start.rows)

        def on_rows(self, rows: list[Row]) -> None:
            self.rows += rows

    both = FEW | {
        "settings": [{"name": "a"}, {"name": "b", "reference": True, "methods": "fedavg"}]
    }
    study(tmp_path / "out", **both).run()
    hears = Hears()
    results = study(tmp_path / "out", **both).extend(methods="fedprox", trackers=[hears])
    assert results.labels("b") == ["FedAvg"]
    assert results.labels("a") == ["FedAvg", "MOON", "FedProx"]
    assert len(hears.runs) == 3 * 2 + 2
    assert len(hears.rows) == len(as_table(results.history))


def test_what_another_study_differs_in_is_said(tmp_path: Path) -> None:
    study(tmp_path / "out", **FEW).run()
    with pytest.raises(
        InputError, match=r"holds another study: local\.batch was 4 and is 2; rounds was 4 and is 3"
    ):
        study(tmp_path / "out", **(FEW | {"rounds": 3, "local": {"batch": 2, "epochs": 1}})).run()
    with pytest.raises(
        InputError, match=r"another study: methods was \['fedavg', 'moon'\] and is \['fedavg'\]"
    ):
        study(tmp_path / "out", **(FEW | {"methods": "fedavg"})).resume()
    with pytest.raises(InputError, match=r"another study: the settings were toy and are a, b"):
        study(tmp_path / "out", **FEW, settings=[{"name": "a"}, {"name": "b"}]).resume()
    many = FEW | {"rounds": 9, "seeds": 1, "cohort": 2, "eval_every": 2, "compile": True}
    with pytest.raises(InputError, match=r"and 2 more"):
        study(tmp_path / "out", **many).run()
