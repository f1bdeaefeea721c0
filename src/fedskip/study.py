"""Many runs side by side: trains, evaluates, records and checkpoints. The only place with side effects.

study = fedskip.Study(data="synthetic", methods=[FedAvg(), FedAvg(period=5)], rounds=200, seeds=3)
results = study.run()
results.summary
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from fedskip import config
from fedskip.batch import Batch, Entry
from fedskip.checkpoint import found, load_checkpoint, save_checkpoint
from fedskip.errors import InputError
from fedskip.files import locked, write_text
from fedskip.history import SUMMARY, HistoryFile, Row, Table, summarise
from fedskip.machine import Machine, resolve_device, versions
from fedskip.prepare import Prepared, make_module, prepare
from fedskip.progress import Progress, Silent
from fedskip.schedule import Decay
from fedskip.spec import Setting, StudySpec
from fedskip.weights import write_weights

CHECKPOINTS = 20  # in a study, unless `checkpoint_every` says otherwise


class Interrupted(Exception):
    """The study was asked to stop, and did so at a checkpoint."""


@dataclass(frozen=True)
class Results:
    """What a study has come to: its folder, and its tables."""

    out: Path
    history: Table
    summary: Table


class Study:
    """A study and its folder.

    Args:
        out: the folder; by default `runs/NAME-N`, the next free N.
        **keys: the keys of a study file, with Python objects where a file has names: `data` may be a
            `Dataset`, `model` an nn.Module or what makes one, `loss` and `metric` functions.
    """

    def __init__(
        self, out: str | os.PathLike[str] | None = None, *, spec: StudySpec | None = None, **keys: Any
    ) -> None:
        self.spec = config.build(config.Tree(keys)) if spec is None else spec
        self.out = next_folder(self.spec.name) if out is None else Path(out)

    @classmethod
    def load(cls, out: str | os.PathLike[str]) -> Study:
        """The study whose folder this is."""
        file = Path(out) / "study.yaml"
        if not file.exists():
            raise InputError(
                "out", "holds no study: there is no study.yaml", str(out), "start one with `fedskip run`"
            )
        return cls(out, spec=config.build(config.load_yaml(file)))

    def run(self, progress: Progress | None = None) -> Results:
        """Run the study from its start, in a folder that holds no other."""
        self._check()
        with locked(self.out):
            file = self.out / "study.yaml"
            if file.exists():
                same = _spec_text(file) == config.dump(self.spec)
                state = (
                    "finished"
                    if (self.out / "summary.csv").exists() and self._is_finished()
                    else "unfinished"
                )
                what = f"holds this study already, {state}" if same else "holds another study"
                fix = (
                    f"continue it with `fedskip resume {self.out}`" if same and state == "unfinished" else ""
                )
                raise InputError("out", what, str(self.out), fix or "choose another --out")
            self._write_study({})
            return self._play(progress or Silent())

    def resume(
        self, progress: Progress | None = None, *, rounds: int | None = None, anyway: bool = False
    ) -> Results:
        """Go on from the last checkpoint, or from the start where there is none.

        Args:
            rounds: go on for more rounds than the study was made for.
            anyway: go on although the machine or a library has changed; bits may differ.
        """
        with locked(self.out):
            if rounds is not None:
                self._extend(rounds)
            return self._play(progress or Silent(), anyway=anyway)

    def is_finished(self) -> bool:
        return (self.out / "study.yaml").exists() and self._is_finished()

    def results(self) -> Results:
        """What the folder holds."""
        return Results(
            self.out, HistoryFile(self.out / "history.csv").table, Table.read(self.out / "summary.csv")
        )

    # --- the work ------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Refuse what can be refused before anything is written, and fill in what was left out."""
        checked = [prepare(setting, *self._device()).setting for setting in self.spec.settings]
        self.spec = dataclasses.replace(self.spec, settings=tuple(checked))

    def _device(self) -> tuple[torch.device, torch.dtype]:
        dtype = torch.float64 if self.spec.precision == "fp64" else torch.float32
        return torch.device(resolve_device(self.spec.device)), dtype

    def _play(self, progress: Progress, *, anyway: bool = False) -> Results:
        history = HistoryFile(self.out / "history.csv")
        record = _record(self.out / "study.yaml")
        summary: list[Row] = []
        clients: list[Row] = []
        with stop_at_checkpoint() as stop:
            for setting in self.spec.settings:
                prepared = prepare(setting, *self._device(), self.out)
                batch = self._batch(prepared, history, progress, record, anyway)
                self._train(batch, history, progress, stop)
                batch.finish()
                summary += self._summary(batch, history)
                clients += self._outputs(batch)
        table = Table(SUMMARY, summary)
        write_text(self.out / "summary.csv", table.csv())
        if clients:
            write_text(self.out / "clients.csv", Table(clients[0], clients).csv())
        progress.finished()
        return Results(self.out, history.table, table)

    def _batch(
        self,
        prepared: Prepared,
        history: HistoryFile,
        progress: Progress,
        record: dict[str, Any],
        anyway: bool,
    ) -> Batch:
        """The runs of a setting, where they were left."""
        setting = prepared.setting
        name = None if not isinstance(setting.model, dict) else setting.model["name"]
        machine = Machine.of(self.spec, prepared.task.module, name)

        def keep(rows: list[Row]) -> None:
            history.append(rows)
            progress.recorded(rows)

        batch = Batch(prepared, machine, keep)
        facts = describe(batch)
        known = record.setdefault("settings", {})
        if setting.name not in known:
            known[setting.name] = facts
            record["versions"] = versions()
            self._write_study(record)
        elif not anyway:
            compare(
                {"versions": record["versions"], **known[setting.name]},
                {"versions": versions(), **facts},
                self.out,
            )
        saved = found(self.out / "checkpoints", setting.name)
        round = 0
        if saved:
            round, path = saved[-1]
            batch.restore(*load_checkpoint(path))
        if history.path.exists():
            history.cut(setting.name, round)
        progress.setting(batch, history.table.where(setting=setting.name))
        return batch

    def _train(self, batch: Batch, history: HistoryFile, progress: Progress, stop: threading.Event) -> None:
        every = self.spec.checkpoint_every or max(1, batch.rounds // CHECKPOINTS)
        while batch.round < batch.rounds:
            until = min(batch.rounds, (batch.round // every + 1) * every)
            batch.advance(until)
            save_checkpoint(self.out / "checkpoints", batch.name, until, *batch.save())
            progress.checkpoint(batch)
            if stop.is_set() and batch.round < batch.rounds:
                raise Interrupted

    def _summary(self, batch: Batch, history: HistoryFile) -> list[Row]:
        return [
            summarise(list(history.table.where(run=entry.name)), entry.about(batch.name), rounds=batch.rounds)
            | {"final": entry.final, "diverged": entry.diverged}
            for entry in batch.entries
        ]

    def _outputs(self, batch: Batch) -> list[Row]:
        """Write the trained models; give the rows of clients.csv."""
        rows: list[Row] = []
        for entry in batch.entries:
            for kind in ("last", "best", "final"):
                model = getattr(entry, f"{kind}_model")
                if model is not None:
                    self._write_model(batch, entry, kind, model)
            if batch.prepared.setting.client_accuracy:
                rows += client_rows(batch, entry)
        return rows

    def _write_model(self, batch: Batch, entry: Entry, kind: str, model: Any) -> None:
        setting, layout = batch.prepared.setting, batch.prepared.task.layout
        about = entry.about(batch.name) | {
            "kind": kind, "model": setting.model if isinstance(setting.model, dict) else None,
            "classes": batch.prepared.dataset.classes,
        }  # fmt: skip
        slots = model if model.dim() == 2 else [model]
        for k, vector in enumerate(slots):
            slot = f".slot{k}" if model.dim() == 2 else ""
            path = self.out / "models" / f"{entry.name}{slot}.{kind}.safetensors"
            write_weights(path, layout.views(vector), about)

    # --- the folder ----------------------------------------------------------------------------------

    def _write_study(self, record: dict[str, Any]) -> None:
        text = config.dump(self.spec)
        if record:
            text += yaml.safe_dump({config.RECORD: record}, sort_keys=False)
        write_text(self.out / "study.yaml", text)

    def _is_finished(self) -> bool:
        rounds = {setting.name: setting.rounds for setting in self.spec.settings}
        latest = {name: found(self.out / "checkpoints", name) for name in rounds}
        complete = all(latest[name] and latest[name][-1][0] >= (r or 0) for name, r in rounds.items())
        return complete and (self.out / "summary.csv").exists()

    def _extend(self, rounds: int) -> None:
        settings = []
        for setting in self.spec.settings:
            if setting.reference or setting.rounds == rounds:
                settings.append(setting)
                continue
            if rounds < setting.rounds:
                raise InputError("--rounds", f"must be >= {setting.rounds}, what the study has", rounds)
            if Decay.parse(setting.local.decay if setting.local else "constant").kind == "cosine":
                raise InputError(
                    "--rounds", "cannot change under a cosine decay, which depends on it", rounds
                )
            settings.append(dataclasses.replace(setting, rounds=rounds))
        self.spec = dataclasses.replace(self.spec, settings=tuple(settings))
        self._write_study(_record(self.out / "study.yaml"))


def describe(batch: Batch) -> dict[str, Any]:
    """What a setting resolved to: what shapes its arithmetic, and its data in numbers."""
    engine, prepared = batch.engine, batch.prepared
    tables = {}
    if batch.machine.engine == "stacked":
        tables = {"sizes": engine.plain.sizes, "contrast_sizes": engine.contrast.sizes}  # type: ignore[attr-defined]
    return {
        "machine": batch.machine.facts() | {k: list(v) for k, v in tables.items()},
        "parameters": prepared.task.layout.size,
        "divisions": {
            seed: {
                "partition": d.clients.hash, "clients": len(d.clients), "train": int(d.clients.sizes.sum()),
                "test": len(d.test), "validation": len(d.validation),
            }
            for seed, d in prepared.divisions.items()
        },
    }  # fmt: skip


def compare(before: dict[str, Any], now: dict[str, Any], out: Path) -> None:
    """Refuse to go on where what shapes the arithmetic has changed."""
    changes = [
        f"{part}.{key} was {before[part].get(key)!r} and is {now[part].get(key)!r}"
        for part in ("versions", "machine", "divisions")
        for key in sorted({*before[part], *now[part]}, key=str)
        if before[part].get(key) != now[part].get(key)
    ]
    if changes:
        raise InputError(
            "resume", f"would not repeat the same numbers: {'; '.join(changes)}", ...,
            f"restore that, or go on all the same with `fedskip resume {out} --anyway`",
        )  # fmt: skip


def client_rows(batch: Batch, entry: Entry) -> list[Row]:
    scores = batch.client_scores(entry)
    if scores is None:
        return []
    names = batch.prepared.dataset.owner_names
    return [
        entry.about(batch.name) | {"client": names[i] if names else i, "test_accuracy": float(score)}
        for i, score in enumerate(scores)
    ]


def next_folder(name: str) -> Path:
    """`runs/NAME-N` with the first N that is free."""
    return next(path for n in itertools.count(1) if not (path := Path("runs") / f"{name}-{n}").exists())


@contextmanager
def stop_at_checkpoint() -> Iterator[threading.Event]:
    """Inside, the first Ctrl-C only sets the event; the second one is as rough as ever."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def note(*_: Any) -> None:
        stop.set()
        signal.signal(signal.SIGINT, before)
        print("\nStopping at the next checkpoint; press Ctrl-C again to stop at once.", flush=True)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def _record(file: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(file.read_text()).get(config.RECORD) or {}) if file.exists() else {}


def _spec_text(file: Path) -> str:
    return config.dump(config.build(config.load_yaml(file)))


__all__ = ["Interrupted", "Results", "Setting", "Study", "make_module"]
