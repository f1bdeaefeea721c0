"""Many runs side by side: trains, evaluates, records and checkpoints. The only place with side effects.

study = fedskip.Study(data="synthetic", methods=[FedAvg(), FedAvg(period=5)], rounds=200, seeds=3)
results = study.run()
results.summary
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from fedskip import config
from fedskip.batch import Batch
from fedskip.checkpoint import found, load_checkpoint, save_checkpoint
from fedskip.engine.arithmetic import Arithmetic
from fedskip.errors import InputError
from fedskip.files import clear_parts, locked, write_text
from fedskip.history import SUMMARY, HistoryFile, Row, Table, summarise
from fedskip.machine import Machine, arithmetic_of, resolve_device, versions
from fedskip.outputs import client_rows, write_models
from fedskip.prepare import Prepared, prepare
from fedskip.progress import Progress, Silent
from fedskip.record import compare, describe, digest_of_study, read_record, without_rounds, written_spec
from fedskip.rehearsal import rehearse
from fedskip.schedule import Decay
from fedskip.spec import StudySpec

CHECKPOINTS = 20  # in a study, unless `checkpoint_every` says otherwise
NO_LIMIT = 1 << 62  # rows


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
        out: the folder; by default `runs/NAME-N`, the next N that is free when the study begins.
        **keys: the keys of a study file, with Python objects where a file has names: `data` may be a
            `Dataset`, `model` an nn.Module or what makes one, `loss` and `metric` functions.
    """

    def __init__(
        self, out: str | os.PathLike[str] | None = None, *, spec: StudySpec | None = None, **keys: Any
    ) -> None:
        self.spec = config.build(config.Tree(keys)) if spec is None else spec
        self._claims = out is None
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
        while self._claims:  # by default it is the next free one, when it begins
            with contextlib.suppress(FileExistsError):
                self.out = next_folder(self.spec.name)
                self.out.mkdir(parents=True)
                self._claims = False
        with locked(self.out):
            file = self.out / "study.yaml"
            if file.exists():
                if written_spec(file) != yaml.safe_load(config.dump(self.spec)):
                    raise InputError("out", "holds another study", str(self.out), "choose another --out")
                if self.is_finished():
                    raise InputError(
                        "out", "holds this study, finished", str(self.out), "choose another --out"
                    )
                fix = f"continue it with `fedskip resume {self.out}`"
                raise InputError("out", "holds this study, unfinished", str(self.out), fix)
            for part in ("checkpoints", "history.csv", "partition-*.npz"):
                if any(self.out.glob(part)):
                    rule = f"holds {part}, but not the study.yaml that it belongs to"
                    raise InputError("out", rule, str(self.out), "choose another --out, or empty it")
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
        self._check()
        with locked(self.out):
            self._check_same(anyway)
            for part in ("", "checkpoints", "models", "figures"):
                clear_parts(self.out / part)
            if rounds is not None:
                self._extend(rounds)
            return self._play(progress or Silent(), anyway=anyway)

    def is_finished(self) -> bool:
        """Whether all settings have done their rounds and the summary is written."""
        saved = {
            setting.name: found(self.out / "checkpoints", setting.name) for setting in self.spec.settings
        }
        done = all(saved[s.name] and saved[s.name][-1][0] >= (s.rounds or 0) for s in self.spec.settings)
        return done and (self.out / "summary.csv").exists()

    def results(self) -> Results:
        """What the folder of a finished study holds."""
        if not (self.out / "summary.csv").exists():
            raise InputError("out", "holds no finished study", str(self.out), "go on with it: resume()")
        return Results(
            self.out, HistoryFile(self.out / "history.csv").table, Table.read(self.out / "summary.csv")
        )

    # --- the work ------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Refuse what can be refused before anything is written, and fill in what was left out."""
        checked = []
        for setting in self.spec.settings:
            try:
                prepared = prepare(setting, *self._device())
                rehearse(prepared, self.spec)
            except InputError as error:
                where = error.where or (f"setting {setting.name}" if len(self.spec.settings) > 1 else "")
                raise error.at(where) from error.__cause__
            checked.append(prepared.setting)
        self.spec = dataclasses.replace(self.spec, settings=tuple(checked))

    def _device(self) -> tuple[torch.device, Arithmetic]:
        return torch.device(resolve_device(self.spec.device)), arithmetic_of(self.spec)

    def _play(self, progress: Progress, *, anyway: bool = False) -> Results:
        history = HistoryFile(self.out / "history.csv")
        record = read_record(self.out / "study.yaml")
        summary: list[Row] = []
        clients: list[Row] = []
        with stop_at_checkpoint() as stop:
            for setting in self.spec.settings:
                prepared = prepare(setting, *self._device(), self.out)
                batch = self._batch(prepared, history, progress, record, anyway)
                with contextlib.closing(batch):
                    self._train(batch, history, progress, stop)
                batch.finish()
                summary += self._summary(batch, history)
                write_models(batch, self.out / "models")
                clients += client_rows(batch)
                del batch, prepared
                _free()  # the next setting looks how much memory there is
        if clients:
            write_text(self.out / "clients.csv", Table(clients[0], clients).csv())
        results = Results(self.out, history.table, Table(SUMMARY, summary))
        from fedskip.report.page import write_report  # matplotlib is slow to import, and only needed here

        write_report(results, self.spec)
        write_text(self.out / "summary.csv", results.summary.csv())  # last: with it the study is finished
        progress.finished()
        return results

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
        known = record.setdefault("settings", {})
        before = known.get(setting.name, {}).get("machine", {})  # what was found to suit the machine stays
        processes = self.spec.processes or before.get("processes")
        machine = Machine.of(dataclasses.replace(self.spec, processes=processes), prepared)
        rows = self.spec.rows or before.get("rows") or (NO_LIMIT if before else None)
        batch = Batch(prepared, machine, history.append, progress.recorded, rows)
        facts = describe(batch)
        if setting.name in known and not anyway:
            noted = {"versions": record["versions"], **known[setting.name]}
            compare(noted, {"versions": versions(), **facts}, self.out)
        known[setting.name], record["versions"] = facts, versions()
        self._write_study(record)
        saved = found(self.out / "checkpoints", setting.name)
        round = 0
        if saved:
            round, path = saved[-1]
            batch.restore(*load_checkpoint(path))
        (self.out / "summary.csv").unlink(missing_ok=True)  # with it a study is finished
        if history.path.exists():
            history.cut(setting.name, round)
        progress.setting(batch, history.table.where(setting=setting.name))
        return batch

    def _train(self, batch: Batch, history: HistoryFile, progress: Progress, stop: threading.Event) -> None:
        every = self.spec.checkpoint_every or max(1, batch.rounds // CHECKPOINTS)
        while batch.round < batch.rounds:
            until = min(batch.rounds, (batch.round // every + 1) * every)
            batch.advance(until)
            history.sync()
            save_checkpoint(self.out / "checkpoints", batch.name, until, *batch.save())
            progress.checkpoint(batch)
            if stop.is_set() and batch.round < batch.rounds:
                raise Interrupted

    def _summary(self, batch: Batch, history: HistoryFile) -> list[Row]:
        rows = []
        for entry in batch.entries:
            measured = summarise(history.table.where(run=entry.name), rounds=batch.rounds)
            rows.append(measured | {"full_test": measured["last"]} | batch.summary(entry))
        return rows

    # --- the folder ----------------------------------------------------------------------------------

    def _write_study(self, record: dict[str, Any]) -> None:
        record["study"] = digest_of_study(yaml.safe_load(config.dump(self.spec)))
        text = config.dump(self.spec) + yaml.safe_dump({config.RECORD: record}, sort_keys=False)
        write_text(self.out / "study.yaml", text)

    def _check_same(self, anyway: bool) -> None:
        """Refuse to go on with another study than the one that was begun here.

        Only the rounds may differ: those of the folder hold, which may have been extended.
        """
        file = self.out / "study.yaml"
        if not file.exists():
            raise InputError("out", "holds no study to resume", str(self.out), "start it with run()")
        begun, here = written_spec(file), yaml.safe_load(config.dump(self.spec))
        rounds = [entry.get("rounds", begun.get("rounds")) for entry in begun["settings"]]
        if without_rounds(begun) != without_rounds(here):
            raise InputError("out", "holds another study", str(self.out), "choose its own folder")
        noted = read_record(file).get("study")
        if noted not in (None, digest_of_study(begun)) and not anyway:
            fix = "undo that, or run the changed study into another --out; --anyway mixes the two. "
            fix += "More rounds are had with --rounds"
            raise InputError(str(file), "was changed after the study began", fix=fix)
        pairs = zip(self.spec.settings, rounds, strict=True)
        settings = tuple(dataclasses.replace(setting, rounds=n) for setting, n in pairs)
        self.spec = dataclasses.replace(self.spec, settings=settings)

    def _extend(self, rounds: int) -> None:
        settings = []
        for setting in self.spec.settings:
            if setting.reference or setting.rounds == rounds:
                settings.append(setting)
                continue
            if rounds < setting.rounds:
                raise InputError("--rounds", f"must be >= {setting.rounds}, what the study has", rounds)
            if Decay.parse(setting.local.decay).kind == "cosine":
                raise InputError(
                    "--rounds", "cannot change under a cosine decay, which depends on it", rounds
                )
            settings.append(dataclasses.replace(setting, rounds=rounds))
        self.spec = dataclasses.replace(self.spec, settings=tuple(settings))


def _free() -> None:
    gc.collect()  # engines and their graphs hold each other
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def next_folder(name: str) -> Path:
    """`runs/NAME-N` with the first N that is free."""
    return next(path for n in itertools.count(1) if not (path := Path("runs") / f"{name}-{n}").exists())


@contextlib.contextmanager
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
