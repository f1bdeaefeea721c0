"""A study and its folder: begun, resumed, played setting by setting, and written down."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fedskip.data.pools import Pools
from fedskip.engine.local import Decay
from fedskip.files import locked, write_text
from fedskip.input.errors import InputError
from fedskip.records.checkpoint import found
from fedskip.records.history import SUMMARY, HistoryFile
from fedskip.records.provenance import Facts, Folder, compare, next_folder, settings_of
from fedskip.records.table import Row, Table
from fedskip.report.page import write_report
from fedskip.report.progress import Progress
from fedskip.report.results import Results
from fedskip.report.trackers.audience import Audience, Trackers
from fedskip.report.trackers.base import Start
from fedskip.spec import Draft, Setting, StudySpec, Tree, build, dump, load_yaml, plain
from fedskip.study.machine import Machine, arithmetic_of, resolve_device, versions
from fedskip.study.prepare import Prepared, prepare
from fedskip.study.rehearsal import rehearse
from fedskip.study.session import Session

log = logging.getLogger(__name__)

NO_LIMIT = 1 << 62  # rows


class Interrupted(Exception):
    """The study was asked to stop, and did so at a checkpoint."""


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
        self.spec = build(Tree(keys)) if spec is None else spec
        self._claims = out is None
        self.out = next_folder(self.spec.name) if out is None else Path(out)

    @classmethod
    def load(cls, out: str | os.PathLike[str]) -> Study:
        """The study whose folder this is."""
        file = Folder(Path(out)).file
        if not file.exists():
            fix = "start one with `fedskip run`"
            raise InputError("out", "holds no study: there is no study.yaml", str(out), fix)
        return cls(out, spec=build(load_yaml(file)))

    @property
    def folder(self) -> Folder:
        return Folder(self.out)

    def run(self, progress: Progress | None = None, *, trackers: Trackers = ()) -> Results:
        """Run the study from its start, in a folder that holds no other.

        Args:
            progress: draws it.
            trackers: hear its numbers, and send them elsewhere; names will do, such as "tensorboard".
        """
        audience = Audience(trackers)
        prepared = self._prepare()
        settings = [one.setting for one in prepared]
        while self._claims:  # by default it is the next free one, when it begins
            with contextlib.suppress(FileExistsError):
                self.out = next_folder(self.spec.name)
                self.out.mkdir(parents=True)
                self._claims = False
        self.folder.refuse_taken(plain(self.spec, settings))  # before anything is written there
        with locked(self.out):
            self.folder.refuse_taken(plain(self.spec, settings))
            self.folder.clear()
            self.folder.write(dump(self.spec, settings), {})
            return self._play(prepared, progress or Progress(), audience)

    def resume(
        self,
        progress: Progress | None = None,
        *,
        rounds: int | None = None,
        anyway: bool = False,
        trackers: Trackers = (),
    ) -> Results:
        """Go on from the last checkpoint, or from the start where there is none.

        Args:
            rounds: go on for more rounds than the study was made for.
            anyway: go on although the machine or a library has changed; bits may differ.
            progress, trackers: as for `run`.
        """
        audience = Audience(trackers)
        if not self.folder.file.exists():
            raise InputError("out", "holds no study to resume", str(self.out), "start it with run()")
        with locked(self.out):
            self.folder.refuse_blocked()
            if not anyway:
                self.folder.refuse_edited()
            self._take_rounds(rounds)
            self.folder.refuse_other(plain(self.spec, self._begun()))  # before its data are looked at
            prepared = self._prepare(self.out)
            self.folder.refuse_other(plain(self.spec, [one.setting for one in prepared]))
            for one, (_, known) in zip(prepared, self._pairs(), strict=True):
                cosine = Decay.parse(one.setting.local.decay).kind == "cosine"
                if cosine and one.setting.rounds != known.get("rounds"):
                    rule = "cannot change under a cosine decay, which depends on it"
                    raise InputError("--rounds", rule, rounds)
            self.folder.clear()
            return self._play(prepared, progress or Progress(), audience, anyway)

    def is_finished(self) -> bool:
        """Whether all settings have done their rounds and the summary is written."""
        return self.folder.is_finished()

    def results(self) -> Results:
        """What the folder holds; of a study that is not finished, what there is so far."""
        if self.folder.file.exists():
            self.folder.refuse_other(plain(self.spec, self._begun()))
        return Results.read(self.out)

    # --- the work ------------------------------------------------------------------------------------

    def _prepare(self, folder: Path | None = None) -> list[Prepared]:
        """All settings made real and tried out: refuses what can be refused before anything is written."""
        device, arithmetic = torch.device(resolve_device(self.spec.device)), arithmetic_of(self.spec)
        pools, prepared = Pools(), []
        for draft in self.spec.settings:
            try:
                draft.refuse_lost()
                one = prepare(draft, pools, device, arithmetic, folder)
                choice = rehearse(one, self._suited(draft.name) if folder else self.spec)
                one.leave_device()
                prepared.append(dataclasses.replace(one, choice=choice))
            except InputError as error:
                where = error.where or (f"setting {draft.name}" if len(self.spec.settings) > 1 else "")
                raise error.at(where) from error.__cause__
        return prepared

    def _take_rounds(self, rounds: int | None) -> None:
        """Take the rounds that the folder has, which may have been extended before, or more if asked for."""
        drafts = []
        for draft, known in self._pairs():
            had = known.get("rounds")
            wanted = had if rounds is None or draft.keys.get("reference") else rounds
            if wanted is not None and had is not None and wanted < had:
                raise InputError("--rounds", f"must be >= {had}, what the study has", rounds)
            drafts.append(Draft({**draft.keys, "rounds": wanted}))
        self.spec = dataclasses.replace(self.spec, settings=tuple(drafts))

    def _pairs(self) -> list[tuple[Draft, Facts]]:
        """The settings of this study, and their keys in the folder."""
        begun = settings_of(self.folder.study())
        if len(begun) != len(self.spec.settings):
            raise InputError("out", "holds another study", str(self.out), "choose its own folder")
        return list(zip(self.spec.settings, begun, strict=True))

    def _begun(self) -> list[Setting]:
        """The settings of this study, with what was left out as the folder has it."""
        return [draft.resolved(known) for draft, known in self._pairs()]

    def _play(
        self, prepared: list[Prepared], progress: Progress, audience: Audience, anyway: bool = False
    ) -> Results:
        """Train one setting after another and write the results; the list is empty afterwards."""
        history, record = HistoryFile(self.out / "history.csv"), self.folder.record()
        self.folder.recover(history)
        settings = tuple(one.setting for one in prepared)
        summary: list[Row] = []
        clients: list[Row] = []
        engine = ""  # as it was said last
        with contextlib.closing(audience):
            if audience.trackers:
                audience.on_start(Start.of(self.out, self.spec, settings, self._kept(history)))
            with stop_at_checkpoint() as stop:
                while prepared:
                    if stop.is_set():
                        raise Interrupted
                    one = prepared.pop(0)
                    session = self._session(one, settings, record, anyway)
                    with contextlib.closing(session):
                        session.restore(self.out / "checkpoints", anyway)
                        for name in ("summary.csv", "report.html"):  # with the first, a study is finished
                            (self.out / name).unlink(missing_ok=True)
                        history.cut(one.setting.name, session.round, session.new)
                        chosen = one.choice.line() if one.choice and one.choice.why else ""
                        notes, engine = [chosen] if chosen not in ("", engine) else [], chosen
                        so_far = history.table.where(setting=one.setting.name)
                        progress.setting(session.course(notes), so_far)
                        for round in session.train(
                            self.out / "checkpoints", history, Heard(progress, audience)
                        ):
                            self.folder.refuse_gone()
                            progress.checkpoint(round)
                            if stop.is_set() and (prepared or round < one.setting.rounds):
                                raise Interrupted
                    progress.finished()
                    summary += session.finish(history)
                    session.write_models(self.out / "models")
                    clients += session.client_rows()
                    del session, one
                    gc.collect()  # engines and their graphs hold each other
                    if torch.cuda.is_available():
                        torch.cuda.empty_cache()  # the next setting looks how much memory there is
            history.sync()
            results = self._write(summary, clients)
            audience.on_end(results)
        return results

    def _kept(self, history: HistoryFile) -> list[Row]:
        """The rows up to the last checkpoints; those after them will be found again."""
        saved = {draft.name: found(self.out / "checkpoints", draft.name) for draft in self.spec.settings}
        rounds = {name: files[-1][0] if files else 0 for name, files in saved.items()}
        return [dict(row) for row in history.table if row["round"] <= rounds.get(row["setting"], 0)]

    def _write(self, summary: list[Row], clients: list[Row]) -> Results:
        """Write what all settings came to."""
        if clients:
            write_text(self.out / "clients.csv", Table(clients[0], clients).csv())
        write_text(self.out / "summary.csv", Table(SUMMARY, summary).csv())  # with it the study is finished
        results = Results.read(self.out)
        try:
            write_report(results)
        except Exception as error:  # what was trained is not lost to a picture that cannot be drawn
            why = f"{type(error).__name__}: {error}"
            log.warning("report.html was not written (%s); try: fedskip report %s", why, self.out)
        return results

    def _session(
        self, prepared: Prepared, settings: tuple[Setting, ...], record: Facts, anyway: bool
    ) -> Session:
        """Make the runs of a setting, and note what they resolved to in study.yaml.

        Refuses to go on if they would not repeat what was noted of them before.
        """
        name, known = prepared.setting.name, record.setdefault("settings", {})
        before = known.get(name, {}).get("machine", {})
        rows = self.spec.rows or before.get("rows") or (NO_LIMIT if before else None)
        every, study = self.spec.checkpoint_every, self.folder.identity
        machine = Machine.of(self._suited(name), prepared)
        session = Session(prepared, machine, rows, every, study, before)
        facts = {"why": known.get(name, {}).get("why")} | session.facts()  # as it began
        if name in known and not anyway:
            noted = {"versions": record["versions"], **known[name]}
            compare(noted, {"versions": versions(), **facts}, self.out)
        known[name], record["versions"] = facts, versions()
        self.folder.write(dump(self.spec, settings), record)
        prepared.save_partitions(self.out)
        return session

    def _suited(self, setting: str) -> StudySpec:
        """The study, with what was found to suit the machine when a setting began: that stays."""
        before = self.folder.record().get("settings", {}).get(setting, {}).get("machine", {})
        spec = dataclasses.replace(self.spec, processes=self.spec.processes or before.get("processes"))
        here = before.get("device") == resolve_device(spec.device)
        if here and spec.engine == "auto" and before.get("engine") in ("loop", "stacked"):
            spec = dataclasses.replace(spec, engine=before["engine"])
        return spec


class Heard(Progress):
    """What a session tells while it trains: to the screen, and its rows to trackers, too."""

    def __init__(self, progress: Progress, audience: Audience) -> None:
        self._progress, self._audience = progress, audience

    def preparing(self, rows: int) -> None:
        self._progress.preparing(rows)

    def recorded(self, rows: list[Row]) -> None:
        self._progress.recorded(rows)
        self._audience.on_rows(rows)


@contextlib.contextmanager
def stop_at_checkpoint() -> Iterator[threading.Event]:
    """Inside, the first Ctrl-C or SIGTERM only sets the event; the next one stops at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def note(number: int, _: Any) -> None:
        stop.set()
        restore()
        again = "press Ctrl-C" if number == signal.SIGINT else "send it"
        print(f"\nStopping at the next checkpoint; {again} again to stop at once.", flush=True)

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: not Python's

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        restore()
