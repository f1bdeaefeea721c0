"""A study and its folder: begun, resumed, extended, and written down."""

from __future__ import annotations

import contextlib
import html
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Unpack

import torch

from fedskip.cluster.connection import connected
from fedskip.config import Draft, Record, Setting, StudySpec, Tree, build, dump, load_yaml, plain
from fedskip.config.fields import read_seeds
from fedskip.config.keys import Methods, Seeds, StudyKeys
from fedskip.config.setting import KEYS, describe_runs
from fedskip.config.tree import named_code, refuse_code
from fedskip.data.catalogue import LoadedDatasets
from fedskip.engine.local import Decay
from fedskip.errors import InputError, either, how_to_resume_study, option, require
from fedskip.files import locked
from fedskip.methods.grammar import parse_many
from fedskip.records.folder import Facts, Folder, added_to, compare_data, next_folder, settings_of
from fedskip.report.page import write_report
from fedskip.report.progress import Progress, ShowProgress, showing
from fedskip.report.results import Results
from fedskip.report.trackers import Start, TrackerList, Trackers
from fedskip.study.machine import arithmetic_of, resolve_device, suited
from fedskip.study.prepare import Prepared, prepare
from fedskip.study.rehearsal import rehearse
from fedskip.study.signals import Stop, explained, stop_at_checkpoint
from fedskip.study.train import Training, made_with, train_settings
from fedskip.user_code import contained, no_exit
from fedskip.version import versions

log = logging.getLogger(__name__)


class Shown(NamedTuple):
    """Who hears of a study, and what is closed when it ends or is stopped."""

    progress: Progress
    trackers: TrackerList
    until_end: contextlib.ExitStack


@dataclass
class PreparedStudy:
    """The settings of a study with everything they name."""

    settings: list[Setting]  # all of them, with what `extend` added
    todo: list[Prepared]  # the parts of them that are not done
    train: Callable[[Training], None]  # here, or on a cluster


class Study:
    """A study and its folder.

    Args:
        out: the folder; by default `runs/NAME-N`, the next N that is free when the study begins.
        trust: whether a study that was begun there may name code that this one does not.
        **keys: the keys of a study file, with Python objects where a file has names: `data` may be a
            `Dataset`, `model` an nn.Module or what makes one, `loss` and `metric` functions.
    """

    def __init__(
        self,
        out: str | os.PathLike[str] | None = None,
        *,
        spec: StudySpec | None = None,
        trust: bool = False,
        **keys: Unpack[StudyKeys],
    ) -> None:
        self.spec = build(Tree(keys)) if spec is None else spec
        self._takes_next_folder, self._trust = out is None, trust
        self.folder = Folder(next_folder(self.spec.name) if out is None else Path(out))

    @property
    def out(self) -> Path:
        """The study's folder."""
        return self.folder.shown

    def __repr__(self) -> str:
        spec = self.spec
        device = resolve_device("auto") if spec.device == "auto" else spec.device
        facts = ", ".join(filter(None, [describe_runs(spec.settings), device]))
        place = "" if self._takes_next_folder else f", in {self.out}"
        return f"Study({spec.name!r}: {facts}{place})"

    def _repr_html_(self) -> str:
        return f"<b>{html.escape(repr(self))}</b><pre>{html.escape(dump(self.spec))}</pre>"

    @classmethod
    def load(
        cls, out: str | os.PathLike[str], *, cluster: str | None = None, trust: bool = False
    ) -> Study:
        """The study whose folder this is, to go on with it here or on a cluster.

        `trust`: import and run the code that its file names, such as `my_nets:Net`.
        """
        folder = Folder(Path(out))
        folder.refuse_federation()
        if not folder.file.exists():
            fix = f"start one with {either('`fedskip run`', '`Study(...).run()`')}"
            raise InputError("out", "holds no study: there is no study.yaml", str(out), fix)
        spec = build(load_yaml(folder.file, trust=trust))
        return cls(out, spec=replace(spec, cluster=cluster), trust=trust)

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
        with self._shown(progress, trackers) as shown:
            prepared = self._prepare(shown, anyway=anyway)
            self._claim_next_folder()
            study = plain(self.spec, prepared.settings)
            self.folder.refuse_taken(study)  # before anything is written there
            with locked(self.folder.path):
                self.folder.refuse_taken(study)
                self.folder.write(study, {})
                return self._train(prepared, shown, anyway)

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
        with self._shown(progress, trackers) as shown, self._begun_folder():
            self._check(rounds, anyway)  # before its data are looked at
            prepared = self._prepare(shown, begun=True, anyway=anyway)
            self.folder.refuse_other(plain(self.spec, prepared.settings))
            return self._train(prepared, shown, anyway)

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
        with self._shown(progress, trackers) as shown, self._begun_folder():
            begun = self._check()
            if not self.is_finished():
                fix = f"finish it first, with {how_to_resume_study(self.out)}"
                raise InputError("out", "holds a study that is not finished", str(self.out), fix)
            self.spec = extended(self.spec, begun, methods, seeds)
            prepared, record = self._prepare(shown, begun=True), self.folder.record()
            for one in prepared.todo:
                before = record.get("settings", {}).get(one.setting.name)
                if before is not None and not one.noted:
                    divisions = {seed: each.facts() for seed, each in one.divisions.items()}
                    data = {"data": dict(one.dataset.digests), "divisions": divisions}
                    compare_data(before, data, self.out)
            now = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
            for old, new in zip(begun, prepared.settings, strict=True):
                for part in new.parts()[1 + len(old.record.added) :]:
                    made_with(record, part).update(when=now, versions=versions())
            self.folder.write(plain(self.spec, prepared.settings), record)
            return self._train(prepared, shown)

    def is_finished(self) -> bool:
        """Whether all settings have done their rounds and the summary is written."""
        return self.folder.is_finished()

    def results(self) -> Results:
        """What the folder holds; of a study that is not finished, what there is so far."""
        if self.folder.file.exists():
            self.folder.refuse_other(plain(self.spec, self._begun()))
        return Results.read(self.out)

    def restored(self) -> Results:
        """The results of a finished study, after what is gone or changed of its history and page is written."""
        training = Training(
            self.spec, self._begun(), [], self.folder, Progress(), TrackerList(), Stop()
        )
        page = self.folder.path / "report.html"
        if training.recovered or not page.exists():
            self.folder.refuse_blocked()
            with locked(self.folder.path):
                self.folder.clear()
                if training.recovered:
                    training.write_results([])
                write_report(self.results())
        return self.results()

    # --- before it is trained ------------------------------------------------------------------------

    @contextlib.contextmanager
    def _shown(self, progress: ShowProgress, trackers: Trackers) -> Iterator[Shown]:
        """Inside, the study is shown, and an `Interrupted` says how to go on where it is stopped."""
        title, settings = lambda: f"{self.spec.name} in {self.out}", len(self.spec.settings)
        with (
            explained(lambda: (self.out, self.spec)),
            showing(progress, title, settings) as display,
            contextlib.ExitStack() as until_end,
        ):
            yield Shown(display, TrackerList(trackers), until_end)

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
        with locked(self.folder.path):
            yield

    def _check(self, rounds: int | None = None, anyway: bool = False) -> list[Setting]:
        """Refuse to go on in a folder that is not as this study left it; gives its settings.

        The study gets the rounds and runs that were added since it began.
        """
        self.folder.refuse_blocked()
        if not anyway:
            self.folder.refuse_edited()
        self._take_rounds(rounds)
        begun = self._begun()
        self.folder.refuse_other(plain(self.spec, begun))
        had: list[tuple[Setting, int]] = []
        for setting, (_, keys) in zip(begun, self._pairs(), strict=True):
            before = keys.get("rounds", setting.rounds)
            if setting.rounds != before and Decay.parse(setting.local.decay).kind == "cosine":
                rule = "cannot change under a cosine decay, which depends on it"
                raise InputError(option("rounds"), rule, rounds)
            had += [(part, before) for part in setting.parts()]
        self.folder.refuse_lost_checkpoints(had, self.spec.checkpoint_every)
        return begun

    def _prepare(self, shown: Shown, *, begun: bool = False, anyway: bool = False) -> PreparedStudy:
        """Prepare all settings, and rehearse those that are not done, before anything is written.

        `begun`: whether the folder has the study.
        """
        spec, on_cluster = self.spec, self.spec.cluster is not None
        # This process need not have the device that the study is trained on.
        here = replace(spec, device="cpu", precision=None, streams=None) if on_cluster else spec
        device, arithmetic = torch.device(resolve_device(here.device)), arithmetic_of(here)
        datasets = LoadedDatasets()
        written = set(self.folder.summary().column("run") if begun else ())
        noted = self.folder.record().get("settings", {}) if begun else {}
        study = PreparedStudy([], [], train_settings)
        for draft in spec.settings:
            with self._naming_setting(draft), contained():
                draft.refuse_named_objects()
                whole = prepare(draft, datasets, device, arithmetic, self.out if begun else None)
                study.settings.append(whole.setting)
                for one in whole.parts():
                    key, rounds = one.setting.key, one.setting.rounds
                    there = written.issuperset(one.setting.run_names)
                    if there and self.folder.is_done(key, rounds, written):
                        continue
                    one = replace(one, noted=noted.get(key, {}))
                    if not on_cluster:
                        machine = rehearse(one, suited(spec, one.noted.get("machine", {})))
                        one.leave_device()
                        one = replace(one, machine=machine)
                    study.todo.append(one)
        if on_cluster and study.todo:
            from fedskip.study.ray_workers import ray_workers  # Ray may not be installed

            assert spec.cluster is not None
            shown.until_end.enter_context(connected(spec.cluster))
            workers = ray_workers(spec, study.todo, anyway)
            study.train = shown.until_end.enter_context(workers).train
        return study

    @contextlib.contextmanager
    def _naming_setting(self, draft: Draft) -> Iterator[None]:
        """Inside, errors name the setting, where there are several."""
        try:
            yield
        except InputError as error:
            where = error.where or (f"setting {draft.name}" if len(self.spec.settings) > 1 else "")
            raise error.at(where) from error.__cause__

    def _take_rounds(self, rounds: int | None) -> None:
        """Take the rounds and additions that the folder has, or more rounds if asked for."""
        drafts = []
        for draft, begun in self._pairs():
            had = begun.get("rounds")
            wanted = had if rounds is None or draft.keys.get("reference") else rounds
            if wanted is not None and had is not None and wanted < had:
                raise InputError(option("rounds"), f"must be >= {had}, what the study has", rounds)
            record = Record(**{**vars(draft.record), "added": added_to(begun)})
            drafts.append(replace(draft.with_keys(rounds=wanted), record=record))
        self.spec = replace(self.spec, settings=tuple(drafts))

    def _pairs(self) -> list[tuple[Draft, Facts]]:
        """The settings of this study, and their keys in the folder."""
        study = self.folder.study()
        if not self._trust:
            own = {name for _, name in named_code(plain(self.spec))}
            refuse_code(study, own, where=str(self.folder.file))
        begun = settings_of(study)
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

    def _train(self, prepared: PreparedStudy, shown: Shown, anyway: bool = False) -> Results:
        """Train what is not done, and write the results."""
        self.folder.clear()
        with contextlib.closing(shown.trackers), stop_at_checkpoint() as stop:
            training = Training(
                self.spec, prepared.settings, prepared.todo, self.folder, shown.progress, shown.trackers,
                stop, anyway=anyway,
            )  # fmt: skip
            if shown.trackers.trackers:
                rows = training.saved_rows()
                start = Start.of(self.folder.path, self.spec, prepared.settings, rows)
                shown.trackers.on_start(start)
            trained = [one.setting for one in prepared.todo]
            with no_exit():  # folder and streams belong to the trackers' threads, too
                prepared.train(training)
            training.write_results(trained)
            results = Results.read(self.out)
            try:
                write_report(results)
            except Exception as error:  # a picture that cannot be drawn loses nothing
                why, again = f"{type(error).__name__}: {error}", f"fedskip report {self.out}"
                log.warning("report.html was not written (%s); try: %s", why, again)
            if training.failed is not None:
                raise training.failed
            shown.trackers.on_end(results)
        return results


def resume(
    out: str | os.PathLike[str],
    progress: ShowProgress = None,
    *,
    rounds: int | None = None,
    anyway: bool = False,
    trackers: Trackers = (),
    cluster: str | None = None,
    trust: bool = False,
) -> Results:
    """Go on with the study of a folder: `Study.load(out).resume()`, with the same arguments."""
    return Study.load(out, cluster=cluster, trust=trust).resume(
        progress, rounds=rounds, anyway=anyway, trackers=trackers
    )


def extended(
    spec: StudySpec, settings: Sequence[Setting], methods: Methods | None, seeds: Seeds | None
) -> StudySpec:
    """The study with more methods or seeds in all settings that are compared, which are given as resolved."""
    wanted = [] if methods is None or methods == () else [*parse_many(methods)]
    later = [] if seeds is None or seeds == () else [*read_seeds(seeds)]
    fix = "name methods or seeds that the study does not have"
    require("extend", bool(wanted or later), "must be given methods or seeds", fix=fix)
    drafts, new = [], False
    for draft, setting in zip(spec.settings, settings, strict=True):
        more = setting if setting.reference else setting.extended(wanted, later)
        drafts.append(replace(draft, record=more.record))
        new |= more.record != setting.record
    require("extend", new, "would add no run: all of them are there already", fix=fix)
    compared = [setting for setting in settings if not setting.reference]
    for method in wanted:
        if all(method in setting.all_methods for setting in compared):
            log.warning("%s is there already, and stays as it is", method.label)
    return replace(spec, settings=tuple(drafts))
