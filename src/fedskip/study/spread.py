"""A study on a cluster: the groups of all settings train at the same time, on all devices there are.

This process alone writes to the study's folder. It holds rows of the history and how far each group is;
models pass through it, one checkpoint at a time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import or_
from pathlib import Path

from fedskip.cluster.crew import Crew
from fedskip.cluster.errands import Again, Errand, Failed, Hall, Lost, News, Parcel, SetAside
from fedskip.data.pools import Pool
from fedskip.files import expanded
from fedskip.input.errors import InputError
from fedskip.records.checkpoint import group_key, keep, newest
from fedskip.records.provenance import Facts
from fedskip.records.table import Row
from fedskip.report.progress import At, Course, SideBySide, Status
from fedskip.spec import Draft, Setting, StudySpec
from fedskip.study.cut import shares
from fedskip.study.play import Outcome, Stage
from fedskip.study.prepare import Prepared
from fedskip.study.remote import Finished, Found, Kept, Look, Model, Order, Seen, Train, digest_of, sent
from fedskip.study.session import write_model

FEW = 3  # groups that an error names


class GroupsFailed(RuntimeError):
    """Some groups of runs failed again and again; what the others came to is written."""


@dataclass(eq=False)
class Group:
    """A group of runs, as far as this process knows it."""

    part: Setting
    number: int
    of: int
    start: int  # the round that it goes on from
    file: Path | None  # its newest checkpoint
    round: int = 0
    status: Status | None = None
    before: int = 0  # client-steps when it was begun on the device where it is
    since: float = 0.0  # when that was
    found: Sequence[Row] = ()  # rows since its last checkpoint
    done: Finished | None = None

    @property
    def runs(self) -> list[str]:
        return self.part.run_names[self.number :: self.of]

    @property
    def key(self) -> str:
        return group_key(self.part.key, self.number, self.of) if self.of > 1 else self.part.key

    @property
    def label(self) -> str:
        return f"{self.part.key} {self.number + 1}/{self.of}"

    def told(self) -> Status:
        """How far it is."""
        if self.status is not None:
            return self.status
        return Status(dict.fromkeys(self.runs, float(self.start)), frozenset(), 0, 0.0)

    def speed(self) -> float:
        """Client-steps per second on the device where it is; compiling, which ends, does not count."""
        if self.status is None:
            return 0.0
        seconds = time.monotonic() - self.since - self.status.preparing
        return (self.status.steps - self.before) / max(seconds, 1e-9)


class Parts:
    """What is sent of the parts of a study; data sets only where a node asks for them, and once."""

    def __init__(self, hall: Hall) -> None:
        self.hall = hall
        self.orders: dict[str, Parcel] = {}  # by part
        self.data: dict[int, Parcel] = {}  # by number, see below
        self._pools: list[Pool] = []
        self._numbers: dict[str, int] = {}  # of the data set of a part

    def number(self, pool: Pool) -> int:
        """Of a data set, among those of the study."""
        if pool not in self._pools:  # as an object: pools are not compared
            self._pools.append(pool)
        return self._pools.index(pool)

    def add(self, key: str, order: Order) -> None:
        self.orders[key], self._numbers[key] = self.hall.put(order), order.pool
        if order.data is None:  # an object, which nodes cannot have
            self.send(key)

    def send(self, key: str) -> None:
        number = self._numbers[key]
        if number not in self.data:
            self.data[number] = self.hall.put(sent(self._pools[number].dataset))

    def of(self, key: str) -> tuple[Parcel, Parcel | None]:
        return self.orders[key], self.data.get(self._numbers[key])


class Spread:
    """Looks at the parts of a study on a cluster, then trains their groups."""

    def __init__(self, crew: Crew, spec: StudySpec, devices: int) -> None:
        """`spec`: with the device that is meant there; `devices`: how many there are as the study begins."""
        self.crew, self.spec, self.devices = crew, spec, devices
        self.parts = Parts(crew.hall)
        self.seen: dict[str, Seen] = {}  # by part

    # --- before anything is written -------------------------------------------------------------------

    def look(self, prepared: Sequence[Prepared], noted: Facts, anyway: bool) -> None:
        """See on the cluster whether parts can be trained, and plan them; refuses what cannot."""
        steps = [one.steps for one in prepared]
        for one, some, devices in zip(prepared, steps, shares(steps, self.devices), strict=True):
            self.parts.add(one.setting.key, self._order(one, some, devices, anyway))
        keys = {one.setting.key: one for one in prepared}
        self.crew.add(Errand(key, partial(self._look, key, noted)) for key in keys)
        for news in self.crew.news():
            if news is None:
                continue
            key, where = news.errand.name, f"setting {news.errand.name} on {news.device.host}"
            if isinstance(news.what, Seen):
                self.seen[key] = news.what
            elif isinstance(news.what, Again):
                self.parts.send(key)
            elif isinstance(news.what, Failed) and isinstance(news.what.error, InputError):
                raise news.what.error.at(where)
            elif isinstance(news.what, SetAside):
                rule = f"cannot be tried there ({news.what.why})"
                raise InputError("cluster", rule, fix="see to that, and try again").at(where)

    def _order(self, one: Prepared, steps: int, devices: float, anyway: bool) -> Order:
        setting, data = _sendable(one.setting), one.setting.data
        return Order(
            spec=_light(self.spec), setting=setting, divisions=one.divisions, scales=one.scales,
            pool=self.parts.number(one.pool), data=data if isinstance(data, dict) else None,
            digests=one.pool.digests, weights=setting.init and digest_of(setting.init),
            steps=steps, devices=devices, anyway=anyway,
        )  # fmt: skip

    def _look(self, key: str, noted: Facts) -> Look:
        order, data = self.parts.of(key)
        return Look(order, noted.get(key, {}).get("machine", {}), data)

    # --- training -------------------------------------------------------------------------------------

    def play(self, stage: Stage, prepared: list[Prepared]) -> Outcome:
        """Train all groups; the list is empty afterwards."""
        todo = [one for one in prepared if one.setting.key not in stage.done]
        for one in todo:
            stage.note(one, self.seen[one.setting.key].facts)
        stage.write(todo)
        groups = [group for one in todo for group in self._groups(stage, one.setting)]
        stage.done.only_those_are_written()
        stage.history.cut({run: group.start for group in groups for run in group.runs})
        courses = [self._course(one.setting, groups) for one in todo]
        study = stage.folder.identity
        by_errand = {self._errand(stage, group, study): group for group in groups}
        stage.progress.side_by_side(
            SideBySide(courses, partial(self._devices, by_errand), partial(_counted, groups)),
            [row for row in stage.history.table if any(row["run"] in one.setting.run_names for one in todo)],
        )
        settings = [one.setting for one in prepared]
        prepared.clear()
        self.crew.add(by_errand)
        for news in self.crew.news():
            if stage.stop.number is not None:
                self.crew.begin_no_more()
            if news is not None:
                self._heard(stage, by_errand[news.errand], news)
        if any(group.done is None for group in groups):
            stage.stop.at_checkpoint()
        stage.progress.finished()
        return self._outcome(stage, settings, groups)

    def _groups(self, stage: Stage, part: Setting) -> list[Group]:
        """The groups of a part, with where they go on from."""
        machine = self.seen[part.key].facts["machine"]
        number = min(machine["processes"], len(part.run_names))
        held = newest(stage.folder.path / "checkpoints", part.key)
        held = held * number if len(held) == 1 else held
        if len(held) != number:
            rule = f"must be {len(held)}, as they were cut when the study began"
            raise InputError("groups", rule, number)
        return [
            Group(part, i, number, one.round, one.path, one.round) for i, one in enumerate(held)
        ]  # fmt: skip

    def _errand(self, stage: Stage, group: Group, study: str) -> Errand:
        def argument() -> Train:
            saved = [] if group.file is None else [(group.file.name, group.file.read_bytes())]
            order, data = self.parts.of(group.part.key)
            before, columns = stage.noted(group.part)["machine"], stage.history.columns
            return Train(order, before, group.number, study, columns, saved, data)

        left = (group.part.rounds - group.start) * len(group.runs) * group.part.cohort
        return Errand(group.key, argument, size=left * group.part.local.epochs)

    def _heard(self, stage: Stage, group: Group, news: News) -> None:
        what = news.what
        if isinstance(what, Found):
            if group.status is None:
                group.before, group.since = what.status.steps, time.monotonic()
            group.status = what.status
            group.found = [*group.found, *what.rows]
            if what.rows:
                stage.progress.recorded(what.rows)
                stage.audience.on_rows(what.rows)
        elif isinstance(what, Kept):
            self._keep(stage, group, what)
            news.errand.came_forward()
            if stage.stop.number is not None:
                self.crew.leave(news.errand)
        elif isinstance(what, Model):
            write_model(stage.folder.path / "models" / what.name, what.content)
        elif isinstance(what, Finished):
            group.done = what
        elif isinstance(what, Again):
            self.parts.send(group.part.key)
        elif isinstance(what, Failed | Lost):  # it will begin again from its checkpoint
            group.found, group.status = (), None

    def _keep(self, stage: Stage, group: Group, what: Kept) -> None:
        """Record what a group has found up to its checkpoint, then write that, which holds it, too."""
        stage.folder.refuse_gone()
        stage.history.append(group.found)
        folder = stage.folder.path / "checkpoints"
        group.found, group.round = (), what.round
        group.file = keep(folder, group.key, what.round, what.content)
        group.start = what.round
        stage.progress.checkpoint(what.round)

    def _outcome(self, stage: Stage, settings: Sequence[Setting], groups: Sequence[Group]) -> Outcome:
        """What came of it: parts count when all their groups are done."""
        outcome = Outcome()
        for part in settings:
            mine = [group.done for group in groups if group.part.key == part.key]
            if part.key in stage.done:
                outcome.summary += stage.done.summary(part)
                outcome.clients += stage.done.clients(part)
            elif all(done is not None for done in mine):
                at = {name: place for place, name in enumerate(part.run_names)}
                for rows, found in ((outcome.summary, "summary"), (outcome.clients, "clients")):
                    rows += sorted(
                        (row for done in mine for row in getattr(done, found)), key=lambda row: at[row["run"]]
                    )
        if self.crew.aside:
            outcome.aside = _failed(self.crew.aside, {group.key: group for group in groups})
        return outcome

    # --- what is shown --------------------------------------------------------------------------------

    def _course(self, part: Setting, groups: Sequence[Group]) -> Course:
        mine, began = [group for group in groups if group.part is part], time.monotonic()
        seen = self.seen[part.key]
        notes = [*([seen.chosen] if seen.chosen else ()), *seen.course.notes]
        return replace(
            seen.course,
            notes=notes,
            start=min(group.start for group in mine),
            status=lambda: reduce(or_, [group.told() for group in mine]),
            seconds=lambda: time.monotonic() - began,
        )

    def _devices(self, by_errand: dict[Errand, Group]) -> list[At]:
        with contextlib.suppress(RuntimeError):  # drawn in a thread of its own, while errands come and go
            under_way = [(by_errand[errand], device) for errand, device in self.crew.under_way]
            return [At(str(device), group.label, group.speed()) for group, device in under_way]
        return []


def _counted(groups: Sequence[Group]) -> tuple[int, int]:
    """The groups that are done, and all."""
    return sum(group.done is not None for group in groups), len(groups)


def _failed(aside: Sequence[Errand], groups: dict[str, Group]) -> GroupsFailed:
    named = [f"{', '.join(groups[errand.name].runs)} ({errand.why})" for errand in aside[:FEW]]
    more = f"; and {len(aside) - FEW} more" if len(aside) > FEW else ""
    many = "1 group of runs was" if len(aside) == 1 else f"{len(aside)} groups of runs were"
    return GroupsFailed(f"{many} set aside: {'; '.join(named)}{more}")


def _light(spec: StudySpec) -> StudySpec:
    """The study without data sets that are objects."""
    drafts = [draft if isinstance(draft.keys["data"], dict) else _named(draft) for draft in spec.settings]
    return replace(spec, settings=tuple(drafts))


def _named(draft: Draft) -> Draft:
    return Draft({**draft.keys, "data": {"name": draft.keys["data"].name}})


def _sendable(part: Setting) -> Setting:
    """A part that nodes can read: without objects, and without paths that begin where this process is."""
    data = part.data if isinstance(part.data, dict) else {"name": part.data.name}  # type: ignore[union-attr]
    init = None if part.init is None else str(expanded(part.init, "init").absolute())
    return replace(part, data=data, init=init)
