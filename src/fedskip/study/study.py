"""A study and its folder: begun, resumed, extended, and written down."""

from __future__ import annotations

import contextlib
import dataclasses
import html
import logging
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Unpack

import torch

from fedskip.cluster.connection import connected
from fedskip.config import Draft, Record, Setting, StudySpec, Tree, build, load_yaml, plain
from fedskip.config.keys import Methods, Seeds, StudyKeys
from fedskip.config.setting import KEYS, describe_runs
from fedskip.data.loaded import LoadedDatasets
from fedskip.engine.local import Decay
from fedskip.errors import InputError, either, how_to_resume_study, option
from fedskip.files import locked, write_text
from fedskip.methods.grammar import text
from fedskip.records.folder import Facts, Folder, added_to, next_folder, settings_of
from fedskip.records.history import SUMMARY, HistoryFile
from fedskip.records.table import Table
from fedskip.report.page import write_report
from fedskip.report.progress import ShowProgress, showing
from fedskip.report.results import Results
from fedskip.report.trackers.base import Start
from fedskip.report.trackers.tracker_list import TrackerList, Trackers
from fedskip.study.context import FinishedSettings, StudyContext
from fedskip.study.extend import extended, kept_rows, note_additions, refuse_other_data
from fedskip.study.machine import arithmetic_of, resolve_device, suited
from fedskip.study.prepare import Prepared, prepare
from fedskip.study.rehearsal import rehearse
from fedskip.study.resume_checks import refuse_lost_checkpoints
from fedskip.study.signals import explained, stop_at_checkpoint
from fedskip.study.train import Trained, train_settings

log = logging.getLogger(__name__)

# what a notebook shows of a setting
SHOWN = ("name", "data", "partition", "model", "clients", "cohort", "methods", "seeds", "rounds")


class Study:
    """A study and its folder.

    Args:
        out: the folder; by default `runs/NAME-N`, the next N that is free when the study begins.
        **keys: the keys of a study file, with Python objects where a file has names: `data` may be a
            `Dataset`, `model` an nn.Module or what makes one, `loss` and `metric` functions.
    """

    def __init__(
        self,
        out: str | os.PathLike[str] | None = None,
        *,
        spec: StudySpec | None = None,
        **keys: Unpack[StudyKeys],
    ) -> None:
        self.spec = build(Tree(keys)) if spec is None else spec
        self._takes_next_folder = out is None
        self.folder = Folder(next_folder(self.spec.name) if out is None else Path(out))

    @property
    def out(self) -> Path:
        """The study's folder."""
        return self.folder.path

    def __repr__(self) -> str:
        spec = self.spec
        device = resolve_device("auto") if spec.device == "auto" else spec.device
        runs = describe_runs(spec.settings)
        place = "" if self._takes_next_folder else f", in {self.out}"
        return f"Study({spec.name!r}: {runs}, {device}{place})"

    def _repr_html_(self) -> str:
        from fedskip.report.tables import TextTable

        drafts = [draft.keys for draft in self.spec.settings]
        columns = [key for key in SHOWN if any(key in keys for keys in drafts)]
        rows = [
            [str(_cell(key, keys[key])) if key in keys else "" for key in columns]
            for keys in drafts
        ]
        return f"<b>{html.escape(repr(self))}</b>{TextTable('', columns, 0, rows).html()}"

    @classmethod
    def load(cls, out: str | os.PathLike[str], *, cluster: str | None = None) -> Study:
        """The study whose folder this is, to go on with it here or on a cluster."""
        file = Folder(Path(out)).file
        if not file.exists():
            fix = f"start one with {either('`fedskip run`', '`Study(...).run()`')}"
            raise InputError("out", "holds no study: there is no study.yaml", str(out), fix)
        return cls(out, spec=dataclasses.replace(build(load_yaml(file)), cluster=cluster))

    def run(
        self, progress: ShowProgress = None, *, anyway: bool = False, trackers: Trackers = ()
    ) -> Results:
        """Run the study from its start, in a folder that holds no other.

        Args:
            progress: whether to show it; None: on a terminal and in a notebook. A `Progress` of your own
                hears what there is to show.
            anyway: on a cluster, also on devices of several models; bits then depend on which trains what.
            trackers: get its numbers, and send them elsewhere; names will do, such as "tensorboard".
        """
        with self._context(progress, trackers, anyway) as context:
            prepared = self._prepare(context)
            self._claim_next_folder()
            self.folder.refuse_taken(context.study)  # before anything is written there
            with locked(self.out):
                self.folder.refuse_taken(context.study)
                self.folder.write(context.study, {})
                return self._train(context, prepared)

    def resume(
        self,
        progress: ShowProgress = None,
        *,
        rounds: int | None = None,
        anyway: bool = False,
        trackers: Trackers = (),
    ) -> Results:
        """Go on from the last checkpoint, or from the start where there has been none yet.

        Refuses where there are results whose checkpoints are gone.

        Args:
            rounds: go on for more rounds than the study was made for.
            anyway: go on although the machine or a library has changed; bits may differ.
            progress, trackers: as for `run`.
        """
        with self._context(progress, trackers, anyway) as context, self._begun_folder():
            self._check(rounds, anyway)  # before its data are looked at
            prepared = self._prepare(context, begun=True)
            self.folder.refuse_other(context.study)
            for setting, (_, begun) in zip(context.settings, self._pairs(), strict=True):
                cosine = Decay.parse(setting.local.decay).kind == "cosine"
                if cosine and setting.rounds != begun.get("rounds"):
                    rule = "cannot change under a cosine decay, which depends on it"
                    raise InputError(option("rounds"), rule, rounds)
            return self._train(context, prepared)

    def extend(
        self,
        progress: ShowProgress = None,
        *,
        methods: Methods | None = (),
        seeds: Seeds | None = (),
        trackers: Trackers = (),
    ) -> Results:
        """Add runs to a study that is finished, beside those that are there, whose numbers stay.

        Args:
            methods: to be run at the seeds that are there.
            seeds: to be run with all methods; a number n stands for 0..n-1.
            progress, trackers: as for `run`.
        """
        with self._context(progress, trackers) as context, self._begun_folder():
            self._check()
            if not self.is_finished():
                fix = f"finish it first, with {how_to_resume_study(self.out)}"
                raise InputError("out", "holds a study that is not finished", str(self.out), fix)
            begun = self._begun()
            self.spec = extended(self.spec, begun, methods, seeds)
            prepared, record = self._prepare(context, begun=True), self.folder.record()
            for one in prepared:
                refuse_other_data(one, record, self.out)
            note_additions(record, begun, context.settings)
            self.folder.write(context.study, record)
            return self._train(context, prepared)

    def is_finished(self) -> bool:
        """Whether all settings have done their rounds and the summary is written."""
        return self.folder.is_finished()

    def results(self) -> Results:
        """What the folder holds; of a study that is not finished, what there is so far."""
        if self.folder.file.exists():
            self.folder.refuse_other(plain(self.spec, self._begun()))
        return Results.read(self.out)

    # --- before it is trained ------------------------------------------------------------------------

    @contextlib.contextmanager
    def _context(
        self, progress: ShowProgress, trackers: Trackers, anyway: bool = False
    ) -> Iterator[StudyContext]:
        """Inside, the study is shown, and an `Interrupted` says how to go on where it is stopped."""
        title, settings = lambda: f"{self.spec.name} in {self.out}", len(self.spec.settings)
        with (
            explained(lambda: (self.out, self.spec)),
            showing(progress, title, settings) as shown,
            contextlib.ExitStack() as until_end,
        ):
            yield StudyContext(shown, TrackerList(trackers), anyway, until_end)

    def _claim_next_folder(self) -> None:
        """Make the next folder that is free, where none was asked for."""
        while self._takes_next_folder:
            with contextlib.suppress(FileExistsError):
                self.folder = Folder(next_folder(self.spec.name))
                self.out.mkdir(parents=True)
                self._takes_next_folder = False

    @contextlib.contextmanager
    def _begun_folder(self) -> Iterator[None]:
        """Inside, the folder of a study that was begun is locked."""
        if not self.folder.file.exists():
            fix = "start it with run()"
            raise InputError("out", "holds no study to go on with", str(self.out), fix)
        with locked(self.out):
            yield

    def _check(self, rounds: int | None = None, anyway: bool = False) -> None:
        """Refuse to go on in a folder that is not as this study left it.

        The study gets the rounds and runs that were added since it began.
        """
        self.folder.refuse_blocked()
        if not anyway:
            self.folder.refuse_edited()
        self._take_rounds(rounds)
        begun = self._begun()
        self.folder.refuse_other(plain(self.spec, begun))
        had = [
            (part, keys.get("rounds", part.rounds))
            for setting, (_, keys) in zip(begun, self._pairs(), strict=True)
            for part in setting.parts()
        ]
        refuse_lost_checkpoints(self.folder, had, self.spec.checkpoint_every)

    def _prepare(self, context: StudyContext, begun: bool = False) -> list[Prepared]:
        """Prepare all settings, and rehearse those that are not done, before anything is written.

        `begun`: whether the folder has the study.
        """
        spec, remote = self.spec, self.spec.cluster is not None
        # This process need not have the device that the study is trained on.
        local = spec
        if remote:
            local = dataclasses.replace(spec, device="cpu", precision=None, streams=None)
        device, arithmetic = torch.device(resolve_device(local.device)), arithmetic_of(local)
        pools, written = LoadedDatasets(), self.folder.summary().column("run") if begun else []
        noted = self.folder.record().get("settings", {}) if begun else {}
        settings, prepared, todo = [], [], []
        for draft in spec.settings:
            with self._naming_setting(draft):
                draft.refuse_named_objects()
                whole = prepare(draft, pools, device, arithmetic, self.out if begun else None)
                settings.append(whole.setting)
                for one in whole.parts():
                    if self._is_done(one.setting, written):
                        prepared.append(one)
                        continue
                    if not remote:
                        before = noted.get(one.setting.key, {}).get("machine", {})
                        choice = rehearse(one, suited(spec, before))
                        one.leave_device()
                        one = dataclasses.replace(one, choice=choice)
                    prepared.append(one)
                    todo.append(one)
        context.spec, context.settings, context.study = spec, settings, plain(spec, settings)
        if remote and todo:
            self._join_cluster(context, todo, noted)
        return prepared

    def _join_cluster(self, context: StudyContext, todo: list[Prepared], noted: Facts) -> None:
        """Join the cluster, and rehearse there what is to be trained."""
        assert self.spec.cluster is not None
        context.until_end.enter_context(connected(self.spec.cluster))
        from fedskip.study.ray_workers import ray_workers  # Ray may not be installed

        keys = [one.setting.key for one in todo]
        begun = {key: noted[key] for key in keys if key in noted}
        workers = context.until_end.enter_context(ray_workers(self.spec, begun, context.anyway))
        workers.plan(todo, noted, context.anyway)
        context.cluster = workers

    @contextlib.contextmanager
    def _naming_setting(self, draft: Draft) -> Iterator[None]:
        """Inside, errors name the setting, where there are several."""
        try:
            yield
        except InputError as error:
            where = error.where or (f"setting {draft.name}" if len(self.spec.settings) > 1 else "")
            raise error.at(where) from error.__cause__

    def _is_done(self, part: Setting, written: Collection[str]) -> bool:
        """Whether all runs of a part are among those that are written, as they end."""
        there = set(part.run_names) <= set(written)
        return there and self.folder.is_done(part.key, part.rounds, written)

    def _take_rounds(self, rounds: int | None) -> None:
        """Take the rounds and additions that the folder has, or more rounds if asked for."""
        drafts = []
        for draft, begun in self._pairs():
            had = begun.get("rounds")
            wanted = had if rounds is None or draft.keys.get("reference") else rounds
            if wanted is not None and had is not None and wanted < had:
                raise InputError(option("rounds"), f"must be >= {had}, what the study has", rounds)
            record = Record(**{**vars(draft.record), "added": added_to(begun)})
            drafts.append(dataclasses.replace(draft.with_keys(rounds=wanted), record=record))
        self.spec = dataclasses.replace(self.spec, settings=tuple(drafts))

    def _pairs(self) -> list[tuple[Draft, Facts]]:
        """The settings of this study, and their keys in the folder."""
        begun = settings_of(self.folder.study())
        if len(begun) != len(self.spec.settings):
            raise self.folder.other(plain(self.spec), "choose its own folder")
        return list(zip(self.spec.settings, begun, strict=True))

    def _begun(self) -> list[Setting]:
        """The settings of this study, with what was left out as the folder has it."""
        return [
            draft.resolved({key: value for key, value in begun.items() if key in KEYS})
            for draft, begun in self._pairs()
        ]

    # --- training ------------------------------------------------------------------------------------

    def _train(self, context: StudyContext, prepared: list[Prepared]) -> Results:
        """Train all settings and write the results; the list is empty afterwards."""
        self.folder.clear()
        further = list(dict.fromkeys(name for one in prepared for name in one.further))
        history = HistoryFile(self.out / "history.csv", further)
        self.folder.recover(history)
        history.keep({name for one in prepared for name in one.setting.run_names})
        written = self.folder.summary().column("run")
        done = [one.setting for one in prepared if self._is_done(one.setting, written)]
        context.folder, context.history = self.folder, history
        context.record, context.finished = self.folder.record(), FinishedSettings(self.folder, done)
        with contextlib.closing(context.trackers), stop_at_checkpoint() as context.stop:
            if context.trackers.trackers:
                kept = kept_rows(self.folder, history, [one.setting for one in prepared])
                start = Start.of(self.out, self.spec, context.settings, kept)
                context.trackers.on_start(start)
            todo = [one.setting for one in prepared if one.setting.key not in context.finished]
            train = train_settings if context.cluster is None else context.cluster.train
            trained = train(context, prepared)
            context.sort_history(todo)
            history.sync()
            results = self._write(trained, further)
            if trained.failed:
                raise trained.failed
            context.trackers.on_end(results)
        return results

    def _write(self, trained: Trained, further: list[str]) -> Results:
        """Write what settings came to; `further`: the columns of further metrics."""
        if trained.clients:
            write_text(self.out / "clients.csv", Table(trained.clients[0], trained.clients).csv())
        if trained.summary:
            runs = Table((*SUMMARY, *further), trained.summary)
            write_text(self.out / "summary.csv", runs.csv())  # with all runs the study is finished
        results = Results.read(self.out)
        try:
            write_report(results)
        except Exception as error:  # what was trained is not lost to a picture that cannot be drawn
            why = f"{type(error).__name__}: {error}"
            log.warning("report.html was not written (%s); try: fedskip report %s", why, self.out)
        return results


def resume(
    out: str | os.PathLike[str],
    progress: ShowProgress = None,
    *,
    rounds: int | None = None,
    anyway: bool = False,
    trackers: Trackers = (),
    cluster: str | None = None,
) -> Results:
    """Go on with the study of a folder: `Study.load(out).resume()`, with the same arguments."""
    return Study.load(out, cluster=cluster).resume(
        progress, rounds=rounds, anyway=anyway, trackers=trackers
    )


def _cell(key: str, value: Any) -> Any:
    """What a notebook shows of a key."""
    if key == "methods":
        return ", ".join(map(text, value))
    if key == "seeds":
        if len(value) > 3:
            return f"{len(value)} ({value[0]} to {value[-1]})"
        return ", ".join(map(str, value))
    if isinstance(value, Mapping):  # a name, and what was chosen beside it
        return ", ".join(str(v) if k in ("name", "kind") else f"{k}={v}" for k, v in value.items())
    if key in ("data", "model"):
        return getattr(value, "name", None) or getattr(value, "__name__", type(value).__name__)
    return value
