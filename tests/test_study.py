"""A study leaves the files it promises, resumes exactly, and refuses without losing anything."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor, nn

from fedskip import Arrays, Dataset, FedAvg, FedDyn, FedProx, InputError, Moon, Scaffold, Study
from fedskip.checkpoint import found
from fedskip.history import HISTORY, SUMMARY, Table
from fedskip.methods.base import Merged, State, Terms, Visit
from fedskip.progress import Silent
from fedskip.record import read_record
from fedskip.study import Interrupted

METHODS = "fedavg, fedskip(period=3), scaffold, moon, feddyn, fednova(period=2)"


def toy(clients: int = 8, size: int = 24, seed: int = 0) -> Dataset:
    """Two classes in the plane, clients shifted against each other."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(clients), size)
    x = rng.normal(size=(len(owner), 2)) + rng.normal(size=(clients, 2))[owner]
    y = (x[:, 0] + 0.5 * x[:, 1] > 0).astype(np.int64)
    train = np.arange(len(owner)) % 3 > 0
    samples = Arrays(torch.tensor(x, dtype=torch.float32), torch.tensor(y))
    return Dataset("toy", samples, lambda seed: (np.flatnonzero(train), np.flatnonzero(~train)), 2, owner)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(2, 4), nn.Linear(4, 2)

    def features(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = torch.tanh(self.one(x))
        return self.two(z), z

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.features(x)[0]


def study(out: Path, **keys: object) -> Study:
    defaults = {
        "data": toy(), "model": Net, "partition": "natural", "cohort": 4, "local": {"batch": 4, "epochs": 1},
        "methods": METHODS, "rounds": 7, "seeds": 2, "compile": False,
    }  # fmt: skip
    return Study(out, **(defaults | keys))


def numbers(out: Path) -> list[dict[str, object]]:
    """The history without its clock."""
    return [{k: v for k, v in row.items() if k != "seconds"} for row in Table.read(out / "history.csv")]


def weights(out: Path) -> dict[str, bytes]:
    return {
        f"{path.name}:{name}": tensor.numpy().tobytes()
        for path in sorted((out / "models").iterdir())
        for name, tensor in load_file(path).items()
    }


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_files(tmp_path: Path, engine: str) -> None:
    results = study(tmp_path / "out", engine=engine).run()
    assert tuple(results.history.columns) == HISTORY
    assert tuple(results.summary.columns) == SUMMARY
    assert len(results.summary) == 12
    skip = results.history.where(run="toy.FedSkip-3.s0")
    assert skip.column("round") == [3, 6]
    assert skip.column("merges") == [1, 2]
    assert results.history.where(run="toy.FedAvg.s1").column("round") == list(range(1, 8))
    row = results.summary.where(run="toy.FedSkip-3.s0")[0]
    assert row["final"] is not None  # round 7 belongs to no whole period
    assert results.summary.where(run="toy.FedAvg.s0")[0]["final"] is None
    assert row["bytes_total"] == 2 * 7 * 4 * 22 * 4  # both ways, rounds, slots, parameters, bytes
    scaffold = results.summary.where(run="toy.SCAFFOLD.s0")[0]
    assert scaffold["bytes_total"] == 2 * 2 * 7 * 4 * 22 * 4
    names = {path.name for path in (tmp_path / "out" / "models").iterdir()}
    assert {"toy.FedAvg.s0.last.safetensors", "toy.FedAvg.s0.best.safetensors"} <= names
    assert "toy.FedSkip-3.s0.final.safetensors" in names
    record = yaml.safe_load((tmp_path / "out" / "study.yaml").read_text())["record"]
    assert record["settings"]["toy"]["machine"]["engine"] == engine
    assert record["settings"]["toy"]["divisions"][0]["clients"] == 8
    assert (tmp_path / "out" / "partition-toy-0.npz").exists()


def test_summary_numbers(tmp_path: Path) -> None:
    results = study(tmp_path / "out", methods="fedavg", rounds=20, seeds=1).run()
    accuracy = results.history.column("test_accuracy")
    row = results.summary[0]
    assert row["last"] == accuracy[-1]
    assert row["best"] == max(accuracy)
    assert row["best_round"] == accuracy.index(max(accuracy)) + 1
    assert row["mean_tail"] == pytest.approx(np.mean(accuracy[-2:]))  # rounds 19 and 20 of 20
    assert row["full_test"] == pytest.approx(accuracy[-1])


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_resume_in_the_middle_is_exact(tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    study(whole, engine=engine, checkpoint_every=2).run()
    from fedskip.batch import Batch

    advance = Batch.advance

    def breaks(self: Batch, until: int) -> None:
        if until == 6:
            self.until = until
            self.record([])
            raise KeyboardInterrupt
        advance(self, until)

    monkeypatch.setattr(Batch, "advance", breaks)
    with pytest.raises(KeyboardInterrupt):
        study(broken, engine=engine, checkpoint_every=2).run()
    monkeypatch.undo()
    assert [round for round, _ in found(broken / "checkpoints", "toy")] == [2, 4]
    with (broken / "history.csv").open("a") as file:
        file.write("toy,toy.Fed")  # a line cut short by the kill
    study(broken, engine=engine, checkpoint_every=2).resume()
    assert numbers(whole) == numbers(broken)
    assert weights(whole) == weights(broken)
    assert (whole / "summary.csv").read_text() == (broken / "summary.csv").read_text()


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_study import study
made = study(Path(sys.argv[1]), engine={engine!r}, rounds=40, checkpoint_every=3)
made.resume() if (made.out / "study.yaml").exists() else made.run()
"""


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_killed_at_random_moments(tmp_path: Path, engine: str) -> None:
    """SIGKILL, three times over, then to the end: the same numbers and the same bits."""
    code = SCRIPT.format(tests=str(Path(__file__).parent), engine=engine)
    study(tmp_path / "whole", engine=engine, rounds=40, checkpoint_every=3).run()
    moments, out = random.Random(engine), tmp_path / "killed"
    kills = 0
    for _ in range(3):
        before = found(out / "checkpoints", "toy")
        process = subprocess.Popen([sys.executable, "-c", code, str(out)], stderr=subprocess.PIPE)
        while process.poll() is None and found(out / "checkpoints", "toy") == before:
            time.sleep(0.005)
        time.sleep(moments.uniform(0.0, 0.2))
        kills += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
    subprocess.run([sys.executable, "-c", code, str(out)], check=True)
    assert kills >= 2, "of three, also on a fast machine"
    assert numbers(tmp_path / "whole") == numbers(out)
    assert weights(tmp_path / "whole") == weights(out)


def test_resume_without_a_checkpoint_starts_at_round_0(tmp_path: Path) -> None:
    whole, early = study(tmp_path / "whole", rounds=3), study(tmp_path / "early", rounds=3)
    whole.run()
    early._check()
    early.out.mkdir()
    early._write_study({})
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
    with pytest.raises(InputError, match="--rounds must be >= 8"):
        short.resume(rounds=5)


def test_interrupt_stops_at_a_checkpoint(tmp_path: Path) -> None:
    class Presses(Silent):
        """Presses Ctrl-C once, in the middle of the first stretch."""

        def recorded(self, rows: object) -> None:
            if not pressed:
                pressed.append(True)
                signal.raise_signal(signal.SIGINT)

    pressed: list[bool] = []
    made = study(tmp_path / "out", checkpoint_every=2)
    with pytest.raises(Interrupted):
        made.run(Presses())
    assert found(made.out / "checkpoints", "toy")[-1][0] == 2
    made.resume()
    study(tmp_path / "whole", checkpoint_every=2).run()
    assert numbers(made.out) == numbers(tmp_path / "whole")


def test_refuses_a_changed_machine(tmp_path: Path) -> None:
    made = study(tmp_path / "out", rounds=2)
    made.run()
    file = made.out / "study.yaml"
    file.write_text(file.read_text().replace(f"torch: {torch.__version__}", "torch: 1.0.0"))
    with pytest.raises(InputError, match=r"torch was '1\.0\.0'.*--anyway"):
        study(tmp_path / "out", rounds=2).resume(rounds=3)
    study(tmp_path / "out", rounds=2).resume(rounds=3, anyway=True)


def test_folder_rules(tmp_path: Path) -> None:
    made = study(tmp_path / "out", rounds=2)
    made.run()
    before = {p: p.read_bytes() for p in made.out.rglob("*") if p.is_file() and p.name != ".lock"}
    with pytest.raises(InputError, match="holds this study, finished"):
        study(tmp_path / "out", rounds=2).run()
    with pytest.raises(InputError, match="holds another study"):
        study(tmp_path / "out", rounds=3).run()
    (made.out / "summary.csv").rename(tmp_path / "gone")
    with pytest.raises(InputError, match=r"unfinished.*fedskip resume"):
        study(tmp_path / "out", rounds=2).run()
    (tmp_path / "gone").rename(made.out / "summary.csv")
    assert before == {p: p.read_bytes() for p in made.out.rglob("*") if p.is_file() and p.name != ".lock"}


def test_lock(tmp_path: Path) -> None:
    from fedskip.files import locked

    with locked(tmp_path / "out"), pytest.raises(InputError, match="in use by another process"):
        study(tmp_path / "out", rounds=1).run()


def test_corrupt_checkpoint(tmp_path: Path) -> None:
    made = study(tmp_path / "out", rounds=4, checkpoint_every=2)
    made.run()
    _, path = found(made.out / "checkpoints", "toy")[-1]
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match=r"checkpoint is damaged.*Delete it"):
        study(tmp_path / "out", rounds=4, checkpoint_every=2).resume(rounds=6)
    assert path.read_bytes() == bytes(content)
    path.unlink()  # as it says
    study(tmp_path / "out", rounds=4, checkpoint_every=2).resume()


def test_divergence_is_contained(tmp_path: Path) -> None:
    calm = study(tmp_path / "calm", methods=[FedAvg()], seeds=1, engine="loop").run()
    wild = study(
        tmp_path / "wild", methods=[FedAvg(), FedProx(mu=1e30), Scaffold()], seeds=1, engine="loop"
    ).run()
    lost = wild.summary.where(run="toy.FedProx(mu=1e+30).s0")[0]
    assert lost["diverged"] is True
    rows = wild.history.where(run="toy.FedProx(mu=1e+30).s0")
    assert all(np.isfinite(rows.column("train_loss")))
    same = ("round", "test_accuracy", "train_loss", "drift_mean")
    for a, b in zip(calm.history, wild.history.where(method="FedAvg"), strict=True):
        assert all(a[k] == b[k] for k in same)
    assert wild.summary.where(method="SCAFFOLD")[0]["diverged"] is False
    assert lost["rounds"] == (rows[-1]["round"] if len(rows) else 0)
    (tmp_path / "wild" / "summary.csv").rename(tmp_path / "summary.csv")
    study(
        tmp_path / "wild", methods=[FedAvg(), FedProx(mu=1e30), Scaffold()], seeds=1, engine="loop"
    ).resume()
    assert (tmp_path / "wild" / "summary.csv").read_text() == (tmp_path / "summary.csv").read_text()


def test_a_study_of_which_nothing_is_left_ends_in_order(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = study(
            tmp_path / "out", methods=[FedProx(mu=1e30)], local={"batch": 4, "epochs": 1, "lr": 1e30}, seeds=1
        ).run()
    [lost] = results.summary
    assert lost["diverged"] is True
    assert not len(results.history)


def test_settings_validation_and_extras(tmp_path: Path) -> None:
    results = study(
        tmp_path / "out", methods=[FedAvg(), FedDyn()], rounds=6, eval_every=3, validation=0.25,
        slot_accuracy=True, client_accuracy=True, seeds=1,
        settings=[{"name": "one"}, {"name": "two", "cohort": 2}],
    ).run()  # fmt: skip
    assert {row["setting"] for row in results.summary} == {"one", "two"}
    rows = results.history.where(run="one.FedDyn.s0")
    assert rows.column("round") == [3, 6]
    assert all(row["val_accuracy"] is not None and row["slot_accuracy"] is not None for row in rows)
    assert all(row["x_broadcast_accuracy"] is not None for row in rows)
    assert results.summary[0]["best_val"] is not None
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
        rows = results.history.where(setting=name)
        assert rows.column("round") == [2, 4, 5]
        assert rows.column("merges") == [0, 0, 0]
        assert results.summary.where(setting=name)[0]["final"] is None
    assert len(list((tmp_path / "out" / "models").glob("local*.slot*.last.safetensors"))) == 8


def test_paired_randomness(tmp_path: Path) -> None:
    """All methods of a seed start from the same model and see the same cohorts and batches."""
    results = study(tmp_path / "out", methods=[FedAvg(), FedProx(mu=0.0), Moon(mu=0.0)], engine="loop").run()
    for seed in (0, 1):
        rows = [results.history.where(seed=seed, round=r).column("train_loss") for r in range(1, 8)]
        assert all(len(set(losses)) == 1 for losses in rows)
    first = results.history.where(round=1)
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


def test_nan_in_the_data(tmp_path: Path) -> None:
    data = toy()
    data.samples.x[5, 1] = float("nan")
    with pytest.raises(InputError, match=r"data\.x must be finite; sample 5"):
        study(tmp_path / "out", data=data).run()
    assert not (tmp_path / "out").exists()


def test_small_clients(tmp_path: Path) -> None:
    data = toy()
    results = study(
        tmp_path / "a", data=data, local={"batch": 12, "epochs": 1, "last_batch": "keep"}, seeds=1
    ).run()
    assert len(results.summary) == 6
    short = study(
        tmp_path / "b", data=data, local={"batch": 64, "small_clients": "short"}, seeds=1, rounds=2
    ).run()
    assert len(short.summary) == 6
    with pytest.raises(InputError, match="cohort must be <= 0"):
        study(tmp_path / "c", data=data, local={"batch": 64, "small_clients": "drop"}).run()


def test_pretrained_init(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Net()
    torch.save(net.state_dict(), tmp_path / "net.pt")
    from_file = study(
        tmp_path / "a", init=str(tmp_path / "net.pt"), methods="fedavg", rounds=2, seeds=1
    ).run()
    from_module = study(tmp_path / "b", model=net, methods="fedavg", rounds=2, seeds=1).run()
    assert from_file.history.column("train_loss") == from_module.history.column("train_loss")
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "other.pt")
    with pytest.raises(InputError, match=r"init lacks 'one\.bias'"):
        study(tmp_path / "c", init=str(tmp_path / "other.pt")).run()
    with pytest.raises(InputError, match=r"init must be an existing file, got 'none\.pt'"):
        study(tmp_path / "c", init="none.pt").run()


def test_many_tiny_clients_start_fast(tmp_path: Path) -> None:
    """100,000 clients: no row for a client that nobody has visited."""
    n = 100_000
    x = torch.randn(3 * n + 100, 2, generator=torch.Generator().manual_seed(0))
    owner = np.concatenate([np.repeat(np.arange(n), 3), np.full(100, -1)])
    halves = np.flatnonzero(owner >= 0), np.flatnonzero(owner < 0)
    data = Dataset("many", Arrays(x, (x[:, 0] > 0).long()), lambda seed: halves, 2, owner)
    made = study(
        tmp_path / "out", data=data, methods=[Scaffold()], rounds=2, seeds=1, local={"batch": 3, "epochs": 1}
    )
    made.run()
    state = load_file(found(made.out / "checkpoints", "many")[-1][1])
    assert 4 <= len(state["many.SCAFFOLD.s0/memory.c"]) <= 8


# --- refused before anything is written ----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Halved(FedAvg):
    """A method with an objective of its own."""

    title: ClassVar[str] = "Halved"

    def begin(self, x: Tensor, memory: State, server: State, visit: Visit) -> Terms:
        return Terms(objective=lambda module, x, y, loss: loss(module(x), y).mean() / 2)


@dataclass(frozen=True, kw_only=True)
class Careless(FedAvg):
    """A merge that gives the model alone."""

    title: ClassVar[str] = "Careless"

    def merge(self, server: State, x: Tensor, w: Tensor, p: Tensor, a: Tensor) -> Any:
        return p @ w


@dataclass(frozen=True, kw_only=True)
class Absent(FedAvg):
    """Declares a row that it never gives."""

    title: ClassVar[str] = "Absent"
    remembers: ClassVar[dict[str, Any]] = {"h": "trainable"}


class Stubborn(nn.Linear):
    """Cannot be stacked: it looks at its numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2.0 if x.sum() > 0 else 1.0)


class Forgetful(nn.Module):
    """Assigns to its buffer, where BatchNorm writes in place: a stack would lose it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        output: Tensor = self.linear(x - self.mean)
        return output


def labelled(label: int) -> Dataset:
    """With one wrong label, which is not among the first samples."""
    full = toy()
    y = full.samples.y.clone()  # type: ignore[attr-defined]
    y[100] = label
    return replace(full, samples=Arrays(full.samples.x, y))  # type: ignore[attr-defined]


def numbered() -> Dataset:
    """Numbers in the place of classes."""
    full = toy()
    samples = Arrays(full.samples.x, full.samples.x.sum(1))  # type: ignore[attr-defined]
    return Dataset("sums", samples, full.split, owner=full.owner)


class Pair(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)

    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x


NORMED = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
STACKED = {"methods": "fedavg", "engine": "stacked"}
UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "inputs": (
        {"model": nn.Linear(3, 2), "methods": "fedavg"},
        r"model cannot take the samples of 'toy', .* shape \(2,\), got 'Linear'\. Torch says: mat1 and mat2",
    ),
    "outputs": (
        {"model": nn.Linear(2, 1), "methods": "fedavg"},
        r"model must give a score for each of the 2 classes of 'toy', got 'Linear'\. .* gives \(1,\)",
    ),
    "class": (
        {"model": nn.Linear, "methods": "fedavg"},
        r"model cannot be made \(missing a required argument: 'in_features'\), got 'Linear'\. Give an",
    ),
    "maker": (
        {"model": lambda: 5},
        "model must be an nn.Module, got 'int'. Give an nn.Module",
    ),
    "features": ({"model": nn.Linear(2, 2)}, r"model must have a method features\(x\)"),
    "loss": ({"loss": torch.nn.functional.cross_entropy}, "loss must give one number per sample"),
    "metric": ({"metric": lambda output, target: output.mean()}, "metric must give one number per sample"),
    "numpy": (
        {"metric": lambda output, target: output[:, 0].numpy()},
        "metric must give one .* got 'ndarray'",
    ),
    "tuple": (
        {"model": Pair, "methods": "fedavg"},
        "model must give a tensor, got 'tuple'. Return the scores",
    ),
    "spread": (
        {"data": numbered(), "model": nn.Linear(2, 1), "methods": "fedavg", "metric": "minus_squared_error"}
        | {"loss": lambda output, target: (output - target).square().mean(1)},
        r"loss must give every sample a number that does not .* Compare the shapes \(2, 1\) of the model",
    ),
    "target": ({"loss": "binary_cross_entropy"}, r"loss cannot compare the \(2, 2\) of the model and \(2,\)"),
    "memory": (
        {"methods": [Absent()]},
        r"methods holds Absent, whose end must give \['h'\] to remember, got \[\]",
    ),
    "merge": ({"methods": [Careless()]}, "methods holds Careless, whose merge gives no Merged"),
    "labels": (
        {"data": labelled(7)},
        r"data.y must hold classes from 0 to 1, for which the model has scores, got 7",
    ),
    "ignored": ({"data": labelled(-100)}, "data.y must hold classes from 0 to 1, .* got -100"),
    "accuracy": (
        {"model": nn.Linear(2, 1), "methods": "fedavg", "loss": "squared_error"},
        r"metric cannot be accuracy.* gives \(1,\) for a sample'\. Set metric=minus_squared_error",
    ),
    "lonely": (
        {"model": NORMED, "methods": "fedavg", "local": {"batch": 5, "last_batch": "keep"}},
        "local.batch leaves a batch of one sample, .* got 5. Torch says: Expected more than 1 value",
    ),
    "validation": ({"validation": 0.001}, "validation must leave something on both sides of 128 training"),
    "method": (STACKED | {"methods": [Halved()]}, "cannot be 'stacked' for a method with its own objective"),
    "short": (
        STACKED | {"model": NORMED, "local": {"batch": 6, "last_batch": "keep"}},
        "cannot be 'stacked' for BatchNorm with short batches",
    ),
    "state": (
        STACKED | {"model": Forgetful},
        "cannot be 'stacked' for this model, got 'Forgetful'. 'mean' comes out differently than in the loop",
    ),
    "vmap": (
        STACKED | {"model": Stubborn(2, 2)},
        "engine cannot be 'stacked' for this model, loss and metric.*data-dependent control flow",
    ),
}


@pytest.mark.parametrize("case", UNFIT)
def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path, case: str) -> None:
    keys, message = UNFIT[case]
    with pytest.raises(InputError, match=message):
        study(tmp_path / "s", **keys).run()
    assert not (tmp_path / "s").exists()


def test_the_last_setting_is_tried_before_the_first_is_trained(tmp_path: Path) -> None:
    settings = [{"name": "one"}, {"name": "two", "model": nn.Linear(3, 2)}]
    with pytest.raises(InputError, match=r"model cannot take .*\(setting two\)"):
        study(tmp_path / "s", settings=settings, methods="fedavg").run()
    assert not (tmp_path / "s").exists()


def test_auto_takes_the_loop_for_an_objective_of_its_own(tmp_path: Path) -> None:
    """Though the model's benchmark was won by the stacked engine."""
    keys = {"data": "synthetic", "model": "perceptron", "cohort": 2, "local": {"max_steps": 1}, "seeds": 1}
    for methods, engine in (("fedavg", "stacked"), ([FedAvg(), Halved()], "loop")):
        out = tmp_path / engine
        study(out, partition=None, methods=methods, rounds=1, **keys).run()
        assert read_record(out / "study.yaml")["settings"]["synthetic"]["machine"]["engine"] == engine


# --- a folder holds one study, on one set of data --------------------------------------------------------


def test_resume_refuses_an_edited_study(tmp_path: Path) -> None:
    study(tmp_path / "s", rounds=2).run()
    file = tmp_path / "s" / "study.yaml"
    file.write_text(file.read_text().replace("batch: 4", "batch: 3"))
    with pytest.raises(InputError, match=r"study.yaml was changed after the study began"):
        study(tmp_path / "s", local={"batch": 3, "epochs": 1}).resume(rounds=4)
    file.write_text(file.read_text().replace("batch: 3", "batch: 4").replace("rounds: 2", "rounds: 6"))
    with pytest.raises(InputError, match=r"changed after the study began\. .* with --rounds"):
        study(tmp_path / "s").resume()
    file.write_text(file.read_text().replace("batch: 4", "batch: 3").replace("rounds: 6", "rounds: 2"))
    changed = {"rounds": 2, "local": {"batch": 3, "epochs": 1}}
    with pytest.raises(InputError, match=r"study.yaml was changed after the study began"):
        study(tmp_path / "s", **changed).resume(rounds=4)
    assert study(tmp_path / "s", **changed).resume(rounds=4, anyway=True).summary


def test_a_folder_without_its_study_is_not_taken_over(tmp_path: Path) -> None:
    study(tmp_path / "s", rounds=2).run()
    (tmp_path / "s" / "study.yaml").unlink()
    with pytest.raises(InputError, match=r"out holds checkpoints, but not the study.yaml that it belongs to"):
        study(tmp_path / "s", rounds=2, methods="fedavg").run()


def test_what_a_kill_left_half_written_is_cleared(tmp_path: Path) -> None:
    study(tmp_path / "s", rounds=2).run()
    half = tmp_path / "s" / "checkpoints" / ".toy.000002.0123.safetensors.4711.part"
    other = tmp_path / "s" / ".film.part"
    for file in (half, other):
        file.touch()
    study(tmp_path / "s", rounds=2).resume(rounds=3)
    assert not half.exists()
    assert other.exists(), "is not ours"


def test_each_study_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keys = {"data": toy(), "model": Net, "partition": "natural", "cohort": 4, "methods": "fedavg"}
    one, other = (Study(**keys, name="s", rounds=1, local={"batch": 4, "lr": lr}) for lr in (0.1, 0.2))
    assert [one.run().out, other.run().out] == [Path("runs/s-1"), Path("runs/s-2")]
    assert one.is_finished()


def test_threads_share_one_process(tmp_path: Path) -> None:
    """Those of OpenMP do not survive a fork, and a process that waits for them waits for ever."""
    study(tmp_path / "s", engine="stacked", threads=2, rounds=2).run()
    [machine] = [s["machine"] for s in read_record(tmp_path / "s" / "study.yaml")["settings"].values()]
    assert (machine["threads"], machine["processes"]) == (2, 1)
    with pytest.raises(
        InputError, match=r"threads must be 1 with several processes, got 2\. Set processes=1"
    ):
        study(tmp_path / "t", engine="stacked", threads=2, processes=2).run()
    assert not (tmp_path / "t").exists()


def test_a_user_s_own_module_is_left_alone(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    study(tmp_path / "s", model=lambda: net, methods="fedavg", rounds=1, precision="fp64").run()
    assert next(net.parameters()).dtype == torch.float32
    assert type(net[1]) is nn.Dropout


def test_samples_may_have_a_number_of_their_own(tmp_path: Path) -> None:
    full = toy()
    samples = Arrays(full.samples.x, full.samples.y)  # type: ignore[attr-defined]
    object.__setattr__(samples, "mean", samples.x.mean())
    made = study(tmp_path / "s", data=replace(full, samples=samples), methods="fedavg", rounds=1)
    made.run()
    [facts] = read_record(made.out / "study.yaml")["settings"].values()
    assert set(facts["data"]) == {"x", "y", "mean"}


def test_a_refused_extension_loses_nothing(tmp_path: Path) -> None:
    study(tmp_path / "s", rounds=2).run()
    file = tmp_path / "s" / "study.yaml"
    file.write_text(file.read_text().replace(f"torch: {torch.__version__}", "torch: 1.0"))
    before = (tmp_path / "s" / "summary.csv").read_bytes()
    with pytest.raises(InputError, match=r"would not repeat the same numbers: versions.torch"):
        study(tmp_path / "s", rounds=2).resume(rounds=4)
    assert (tmp_path / "s" / "summary.csv").read_bytes() == before
    begun = study(tmp_path / "t", rounds=2)
    with pytest.raises(InputError, match="out holds no finished study"):
        begun.results()


def test_resume_refuses_other_data_and_another_model(tmp_path: Path) -> None:
    study(tmp_path / "s", rounds=2).run()
    other = toy(seed=1)
    with pytest.raises(InputError, match=r"would not repeat the same numbers: data.x was"):
        study(tmp_path / "s", rounds=2, data=other).resume(rounds=4)
    fewer = toy(clients=4)
    with pytest.raises(InputError, match=r"data does not hold the samples of .*partition-toy-0"):
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

    Net.__qualname__ = "Net"
    with pytest.raises(InputError, match="parameters was 22 and is 6"):
        study(tmp_path / "s", rounds=2, model=Net).resume(rounds=4)


def test_a_longer_study_is_not_finished_before_its_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study(tmp_path / "s", rounds=2).run()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedskip.study.write_models", killed)
    with pytest.raises(KeyboardInterrupt):
        study(tmp_path / "s", rounds=2).resume(rounds=4)
    monkeypatch.undo()
    begun = study(tmp_path / "s", rounds=4)
    assert not begun.is_finished()
    assert {row["rounds"] for row in begun.resume().summary} == {4}


def test_a_partition_file_never_deals_test_samples(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(90, 2)).astype(np.float32), np.arange(90) % 2
    np.savez(tmp_path / "own.npz", x=x, y=y)
    keys: dict[str, Any] = {"data": str(tmp_path / "own.npz"), "model": Net, "clients": 5, "rounds": 1}
    study(tmp_path / "one", **keys, partition="iid", seeds=1).run()
    file = str(tmp_path / "one" / "partition-own-0.npz")
    with pytest.raises(InputError, match=r"partition.file deals \d+ samples that are for testing at seed 1"):
        study(tmp_path / "two", **keys, partition={"file": file}, seeds=2).run()
    study(tmp_path / "three", **keys, partition={"file": file}, seeds=2, partition_seed=0).run()
    with pytest.raises(InputError, match=r"clients must be 5, as in partition.file, got 6. Leave it out"):
        study(tmp_path / "four", **keys | {"clients": 6}, partition={"file": file}, seeds=1).run()


def test_an_empty_test_set_is_no_divergence(tmp_path: Path) -> None:
    full = toy()
    everyone = np.arange(len(full.samples))
    empty = Dataset("toy", full.samples, lambda seed: (everyone, everyone[:0]), 2, full.owner)
    with pytest.raises(InputError, match="data has no test samples for the clients that take part"):
        study(tmp_path / "s", data=empty).run()


def test_masks_are_no_indices(tmp_path: Path) -> None:
    full = toy()
    mask = np.arange(len(full.samples)) % 3 > 0
    masked = Dataset("toy", full.samples, lambda seed: (mask, ~mask), 2, full.owner)
    with pytest.raises(InputError, match=r"data.split must give the numbers of samples, from 0 to 191"):
        study(tmp_path / "s", data=masked).run()


def test_a_sample_does_not_train_and_test(tmp_path: Path) -> None:
    full = toy()
    halves = np.arange(100), np.arange(97, 192)
    leaking = Dataset("toy", full.samples, lambda seed: halves, 2, full.owner)
    with pytest.raises(InputError, match=r"data.split must not give .* with 3\. The first of them is 97"):
        study(tmp_path / "s", data=leaking).run()


@pytest.mark.parametrize(
    ("token", "said"), [(90, "got 90. Set model.vocabulary=91"), (-1, "got -1. Number the tokens from 0 on")]
)
def test_tokens_without_an_embedding_are_refused(token: int, said: str, tmp_path: Path) -> None:
    x = torch.zeros(20, 5, dtype=torch.int64)
    x[17, 3] = token
    halves = np.arange(15), np.arange(15, 20)
    text = Dataset("text", Arrays(x, torch.arange(20) % 80), lambda seed: halves, 80)
    keys = {"data": text, "model": "lstm", "partition": "iid", "clients": 2, "cohort": 2}
    with pytest.raises(InputError, match=f"data.x must have tokens from 0 to 79, {said}"):
        study(tmp_path / "s", **keys).run()


def test_a_partition_file_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros(3))
    for file in ("missing.npz", "own.npz"):
        with pytest.raises(InputError, match=r"partition.file must be a partition file, got .*OUT/part"):
            study(tmp_path / "s", partition={"file": str(tmp_path / file)}).run()
    assert (tmp_path / "own.npz").exists()


def test_client_accuracy_needs_test_samples_of_clients(tmp_path: Path) -> None:
    full = toy()
    nobody = np.where(np.arange(len(full.samples)) % 3 > 0, full.owner, -1)
    data = Dataset("toy", full.samples, full.split, 2, nobody)
    with pytest.raises(InputError, match="client_accuracy cannot be had for 'toy'"):
        study(tmp_path / "s", data=data, client_accuracy=True).run()


def test_a_metric_may_be_undefined(tmp_path: Path) -> None:
    """The best is the best of what there is, as in the model that is kept of it."""
    calls = iter(range(99))

    def now_and_then(output: Tensor, target: Tensor) -> Tensor:
        right = (output.max(1).indices == target).float()
        return right * float("nan") if next(calls) < 4 else right

    results = study(
        tmp_path / "s", metric=now_and_then, methods="fedavg", seeds=1, rounds=6, engine="loop"
    ).run()
    scores = results.history.column("test_accuracy")
    assert np.isnan(scores[0])
    assert results.summary[0]["best"] == max(score for score in scores if not np.isnan(score))


def test_a_model_with_one_number_for_a_sample(tmp_path: Path) -> None:
    data = numbered()
    model = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))
    keys = {"loss": "squared_error", "metric": "minus_squared_error"}
    results = study(tmp_path / "s", data=data, model=model, methods="fedavg", seeds=1, **keys).run()
    scores = results.history.column("test_accuracy")
    assert scores[-1] > scores[0]


@dataclass(frozen=True, kw_only=True)
class Keeping(FedAvg):
    """Keeps the slots, column by column: a tensor that is not contiguous."""

    title: ClassVar[str] = "Keeping"

    def merge(self, server: State, x: Tensor, w: Tensor, p: Tensor, a: Tensor) -> Merged:
        return Merged(p @ w, p @ w, {"last": w.T})


def test_any_tensor_can_be_kept(tmp_path: Path) -> None:
    made = study(tmp_path / "s", methods=[Keeping()], seeds=1, rounds=2, engine="loop")
    made.run()
    state = load_file(found(made.out / "checkpoints", "toy")[-1][1])
    assert state["toy.Keeping.s0/server.state.last"].shape[1] == 4


def test_numbers_are_no_classes(tmp_path: Path) -> None:
    full = toy()
    samples = Arrays(full.samples.x, full.samples.y + 0.5)  # type: ignore[attr-defined]
    numbers = Dataset("toy", samples, full.split, owner=full.owner)
    with pytest.raises(InputError, match="loss cannot be cross_entropy: 'toy' has no classes"):
        study(tmp_path / "s", data=numbers).run()
