"""A study and its folder: begun, resumed, played setting by setting, and written down."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch

from fedskip.data.pools import Pools
from fedskip.engine.local import Decay
from fedskip.files import locked, write_text
from fedskip.input.errors import InputError, either, option, resuming_it
from fedskip.records.history import SUMMARY, HistoryFile
from fedskip.records.provenance import Facts, Folder, next_folder, settings_of
from fedskip.records.table import Table
from fedskip.report.live import Shows, showing
from fedskip.report.page import write_report
from fedskip.report.progress import Progress
from fedskip.report.results import Results
from fedskip.report.trackers.audience import Audience, Trackers
from fedskip.report.trackers.base import Start
from fedskip.spec import Draft, Setting, StudySpec, Tree, build, dump, load_yaml, plain
from fedskip.spec.parts import parts
from fedskip.study.described import as_html, in_a_line
from fedskip.study.growth import Done, grown_study, kept_rows, noted, refuse_other_data
from fedskip.study.interrupted import explained
from fedskip.study.lost import refuse_lost
from fedskip.study.machine import arithmetic_of, resolve_device, suited
from fedskip.study.on_cluster import here, on_cluster
from fedskip.study.play import Outcome, Stage, in_turn
from fedskip.study.prepare import Prepared, prepare
from fedskip.study.rehearsal import rehearse
from fedskip.study.spread import Spread
from fedskip.study.stops import stop_at_checkpoint

log = logging.getLogger(__name__)


@dataclasses.dataclass
class Shown:
    """A study that is attended to."""

    progress: Progress
    inside: contextlib.ExitStack  # closed when it ends
    spread: Spread | None = None  # on a cluster


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

    def __repr__(self) -> str:
        return in_a_line(self.spec, None if self._claims else self.out)

    def _repr_html_(self) -> str:
        return as_html(self.spec, None if self._claims else self.out)

    @classmethod
    def load(cls, out: str | os.PathLike[str], *, cluster: str | None = None) -> Study:
        """The study whose folder this is, to go on with it here or on a cluster."""
        file = Folder(Path(out)).file
        if not file.exists():
            fix = f"start one with {either('`fedskip run`', '`Study(...).run()`')}"
            raise InputError("out", "holds no study: there is no study.yaml", str(out), fix)
        return cls(out, spec=dataclasses.replace(build(load_yaml(file)), cluster=cluster))

    @property
    def folder(self) -> Folder:
        return Folder(self.out)

    def run(self, progress: Shows = None, *, anyway: bool = False, trackers: Trackers = ()) -> Results:
        """Run the study from its start, in a folder that holds no other.

        Args:
            anyway: on a cluster, also on devices of several models; bits then depend on which trains what.
            progress: whether to show it; None: on a terminal and in a notebook. A `Progress` of one's own
                hears what there is to show.
            trackers: hear its numbers, and send them elsewhere; names will do, such as "tensorboard".
        """
        with self._attended(progress) as shown:
            return self._run(shown, Audience(trackers), anyway)

    def _run(self, shown: Shown, audience: Audience, anyway: bool) -> Results:
        settings, prepared = self._prepare(None, shown, anyway)
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
            return self._play(settings, prepared, shown, audience, anyway)

    def resume(
        self,
        progress: Shows = None,
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
        with self._attended(progress) as shown:
            return self._resume(shown, Audience(trackers), rounds, anyway)

    def _resume(self, shown: Shown, audience: Audience, rounds: int | None, anyway: bool) -> Results:
        self._refuse_none()
        with locked(self.out):
            self._check(rounds, anyway)  # before its data are looked at
            settings, prepared = self._prepare(self.out, shown, anyway)
            self.folder.refuse_other(plain(self.spec, settings))
            for setting, (_, known) in zip(settings, self._pairs(), strict=True):
                cosine = Decay.parse(setting.local.decay).kind == "cosine"
                if cosine and setting.rounds != known.get("rounds"):
                    rule = "cannot change under a cosine decay, which depends on it"
                    raise InputError(option("rounds"), rule, rounds)
            self.folder.clear()
            return self._play(settings, prepared, shown, audience, anyway)

    def extend(
        self,
        progress: Shows = None,
        *,
        methods: Any = (),
        seeds: Any = (),
        trackers: Trackers = (),
    ) -> Results:
        """Add runs to a study that is finished, beside those that are there, whose numbers stay.

        Args:
            methods: to be run at the seeds that are there.
            seeds: to be run with all methods; a number n stands for 0..n-1.
            progress, trackers: as for `run`.
        """
        with self._attended(progress) as shown:
            return self._extend(shown, Audience(trackers), methods, seeds)

    def _extend(self, shown: Shown, audience: Audience, methods: Any, seeds: Any) -> Results:
        self._refuse_none()
        with locked(self.out):
            self._check()
            if not self.is_finished():
                fix = f"finish it first, with {resuming_it(self.out)}"
                raise InputError("out", "holds a study that is not finished", str(self.out), fix)
            begun = self._begun()
            self.spec = grown_study(self.spec, begun, methods, seeds)
            settings, prepared = self._prepare(self.out, shown)
            record = self.folder.record()
            for one in prepared:
                refuse_other_data(one, record, self.out)
            self.folder.clear()
            self.folder.write(dump(self.spec, settings), noted(record, begun, settings))
            return self._play(settings, prepared, shown, audience)

    @contextlib.contextmanager
    def _attended(self, progress: Shows) -> Iterator[Shown]:
        """Inside, the study is shown, and who stops it is told how to go on."""
        title, settings = lambda: f"{self.spec.name} in {self.out}", len(self.spec.settings)
        with (
            explained(lambda: (self.out, self.spec)),
            showing(progress, title, settings) as shown,
            contextlib.ExitStack() as inside,
        ):
            yield Shown(shown, inside)

    def is_finished(self) -> bool:
        """Whether all settings have done their rounds and the summary is written."""
        return self.folder.is_finished()

    def results(self) -> Results:
        """What the folder holds; of a study that is not finished, what there is so far."""
        if self.folder.file.exists():
            self.folder.refuse_other(plain(self.spec, self._begun()))
        return Results.read(self.out)

    # --- the work ------------------------------------------------------------------------------------

    def _refuse_none(self) -> None:
        if not self.folder.file.exists():
            raise InputError("out", "holds no study to go on with", str(self.out), "start it with run()")

    def _check(self, rounds: int | None = None, anyway: bool = False) -> None:
        """Refuse to go on with what is not as this study left it; takes what it has got since it began."""
        self.folder.refuse_blocked()
        if not anyway:
            self.folder.refuse_edited()
        self._take_rounds(rounds)
        self.folder.refuse_other(plain(self.spec, self._begun()))
        begun = zip(self._begun(), self._pairs(), strict=True)
        had = [(part, known.get("rounds", part.rounds)) for one, (_, known) in begun for part in parts(one)]
        refuse_lost(self.folder, had, self.spec.checkpoint_every)

    def _prepare(
        self, folder: Path | None = None, shown: Shown | None = None, anyway: bool = False
    ) -> tuple[list[Setting], list[Prepared]]:
        """All settings, and their parts made real and tried out, but for those that are done.

        Refuses what can be refused before anything is written. `folder`: where the study has been begun.
        """
        spec = self.spec if self.spec.cluster is None else here(self.spec)
        device, arithmetic = torch.device(resolve_device(spec.device)), arithmetic_of(spec)
        pools, written = Pools(), self.folder.summary().column("run") if folder else []
        noted = self.folder.record().get("settings", {}) if folder else {}
        settings, prepared, todo = [], [], []
        for draft in self.spec.settings:
            with self._blamed(draft):
                draft.refuse_lost()
                whole = prepare(draft, pools, device, arithmetic, folder)
                settings.append(whole.setting)
                for one in whole.parts():
                    done = self._is_done(one.setting, written)
                    if not done and self.spec.cluster is None:
                        before = noted.get(one.setting.key, {}).get("machine", {})
                        choice = rehearse(one, suited(self.spec, before))
                        one.leave_device()
                        one = dataclasses.replace(one, choice=choice)
                    prepared.append(one)
                    todo += [] if done else [one]
        if self.spec.cluster is not None and shown is not None and todo:
            begun = {one.setting.key: noted[one.setting.key] for one in todo if one.setting.key in noted}
            shown.spread = shown.inside.enter_context(on_cluster(self.spec, begun, anyway))
            shown.spread.look(todo, noted, anyway)
        return settings, prepared

    @contextlib.contextmanager
    def _blamed(self, draft: Draft) -> Iterator[None]:
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
        for draft, known in self._pairs():
            had = known.get("rounds")
            wanted = had if rounds is None or draft.keys.get("reference") else rounds
            if wanted is not None and had is not None and wanted < had:
                raise InputError(option("rounds"), f"must be >= {had}, what the study has", rounds)
            drafts.append(Draft({**draft.keys, "rounds": wanted, "added": known.get("added")}))
        self.spec = dataclasses.replace(self.spec, settings=tuple(drafts))

    def _pairs(self) -> list[tuple[Draft, Facts]]:
        """The settings of this study, and their keys in the folder."""
        begun = settings_of(self.folder.study())
        if len(begun) != len(self.spec.settings):
            raise self.folder.other(plain(self.spec), "choose its own folder")
        return list(zip(self.spec.settings, begun, strict=True))

    def _begun(self) -> list[Setting]:
        """The settings of this study, with what was left out as the folder has it."""
        return [draft.resolved(known) for draft, known in self._pairs()]

    def _play(
        self,
        settings: list[Setting],
        prepared: list[Prepared],
        shown: Shown,
        audience: Audience,
        anyway: bool = False,
    ) -> Results:
        """Train all parts of all settings and write the results; the list is empty afterwards."""
        further = list(dict.fromkeys(name for one in prepared for name in one.further))
        history, record = HistoryFile(self.out / "history.csv", further), self.folder.record()
        self.folder.recover(history)
        history.keep({name for one in prepared for name in one.setting.run_names})
        written = self.folder.summary().column("run")
        done = Done(self.folder, [one.setting for one in prepared if self._is_done(one.setting, written)])
        with contextlib.closing(audience):
            if audience.trackers:
                kept = kept_rows(self.folder, history, [one.setting for one in prepared])
                audience.on_start(Start.of(self.out, self.spec, settings, kept))
            with stop_at_checkpoint() as stop:
                stage = Stage(
                    self.spec, self.folder, settings, history, record, done, shown.progress, audience, stop,
                    anyway,
                )  # fmt: skip
                play = in_turn if shown.spread is None else shown.spread.play
                parts = [one.setting for one in prepared if one.setting.key not in done]
                outcome = play(stage, prepared)
                stage.settle(parts)
                history.sync()
                results = self._write(outcome, further)
                if outcome.aside:
                    raise outcome.aside
                audience.on_end(results)
        return results

    def _write(self, outcome: Outcome, further: list[str]) -> Results:
        """Write what settings came to; `further`: the columns of further metrics."""
        if outcome.clients:
            write_text(self.out / "clients.csv", Table(outcome.clients[0], outcome.clients).csv())
        if outcome.summary:
            runs = Table((*SUMMARY, *further), outcome.summary)
            write_text(self.out / "summary.csv", runs.csv())  # with all runs the study is finished
        results = Results.read(self.out)
        try:
            write_report(results)
        except Exception as error:  # what was trained is not lost to a picture that cannot be drawn
            why = f"{type(error).__name__}: {error}"
            log.warning("report.html was not written (%s); try: fedskip report %s", why, self.out)
        return results
