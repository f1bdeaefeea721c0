"""On another machine: a part of a setting is looked at, or one of its groups trained, as it is told.

What is sent there is all that it takes: the part, who has which samples, what was noted. Data come from
there where they are the same, else from who sent it. Rows, checkpoints and models go back; nothing is
written there.
"""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedskip.cluster.errands import Again, Parcel, Unfit
from fedskip.data.base import Arrays, Dataset
from fedskip.data.division import Division
from fedskip.data.pools import Pool, Pools
from fedskip.data.standardize import Scale
from fedskip.files import digest
from fedskip.input.errors import InputError
from fedskip.records.checkpoint import RECORDED, opened, packed, text_of
from fedskip.records.provenance import Facts
from fedskip.records.table import Row, Table
from fedskip.report.progress import Course, Progress, Status
from fedskip.spec import Setting, StudySpec
from fedskip.study.cut import cut
from fedskip.study.engines import make_plan
from fedskip.study.machine import Machine, arithmetic_of, suited
from fedskip.study.play import limit
from fedskip.study.prepare import Prepared
from fedskip.study.rehearsal import rehearse
from fedskip.study.session import Session


@dataclass(frozen=True)
class Order:
    """A part of a setting as it is sent, with what is needed to train it."""

    spec: StudySpec  # with the device that is meant there
    setting: Setting
    divisions: Mapping[int, Division]
    scales: Mapping[int, Scale]
    pool: int  # the number of its data set in the study
    data: Mapping[str, Any] | None  # how a node may find that, too; None: it is an object of who sent it
    digests: Mapping[str, str]  # of the data
    weights: str | None  # the digest of the file `init`
    steps: int  # client-steps of the part
    devices: float  # that it may count on
    anyway: bool = False


class Look(NamedTuple):
    """An errand: see whether the part can be trained, and plan it."""

    order: Parcel
    before: Facts  # what was noted of the machine
    data: Parcel | None = None  # where they are not to be had there


class Train(NamedTuple):
    """An errand: train a group to its end."""

    order: Parcel
    before: Facts
    group: int
    study: str  # a digest
    columns: tuple[str, ...]  # of the history
    saved: list[tuple[str, bytes]]  # the name and the content of its newest checkpoint; taken out to be read
    data: Parcel | None = None


class Seen(NamedTuple):
    """What a look has found."""

    facts: Facts
    course: Course  # without what only a place knows
    chosen: str  # the engine, in words, if it was chosen


class Found(NamedTuple):
    """Rows of the history, and how far the runs are."""

    rows: list[Row]
    status: Status


class Kept(NamedTuple):
    """A checkpoint."""

    round: int
    content: bytes


class Model(NamedTuple):
    """A file of weights; None: there is none of that name."""

    name: str
    content: bytes | None


class Finished(NamedTuple):
    """What the runs of a group came to."""

    summary: list[Row]
    clients: list[Row]


class Remote:
    """Serves on one device, one errand after another; what it has loaded stays for the next."""

    def __init__(self) -> None:
        self._pools, self._held = Pools(), dict[int, Pool]()

    def __call__(self, errand: Look | Train | None) -> Iterator[Any]:
        """None: nothing is to be done, but to be there."""
        if errand is None:
            return
        order: Order = errand.order.open()
        pool = self._pool(order, errand.data)
        if pool is None:
            yield Again(order.setting.key)
            return
        init = order.setting.init
        if init and order.weights and digest_of(init) not in (order.weights, None):
            yield Unfit(f"init is another file there: {init}")
            return
        if order.spec.device == "cpu":
            torch.set_num_threads(1)
        part = prepared(order, pool)
        if isinstance(errand, Look):
            yield self._look(order, errand, part)
        else:
            yield from self._train(order, errand, part)
        gc.collect()  # engines and their graphs hold each other
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _pool(self, order: Order, data: Parcel | None) -> Pool | None:
        """The data: of this node if they are the same, else as they were sent; None: they must be sent."""
        if order.pool not in self._held:
            pool = self._own(order)
            if pool is None and data is None:
                return None
            self._held[order.pool] = pool or Pool(received(data.open()))  # type: ignore[union-attr]
        return self._held[order.pool]

    def _own(self, order: Order) -> Pool | None:
        """What this node has of that name, if it is the same."""
        if order.data is None:
            return None
        try:
            pool = self._pools.get(order.data)
        except InputError:
            return None
        return pool if pool.digests == order.digests else None

    def _look(self, order: Order, errand: Look, part: Prepared) -> Seen:
        before = errand.before
        spec = suited(order.spec, before)
        part = replace(part, choice=rehearse(part, spec))
        machine = Machine.of(spec, part)
        if spec.groups is None:
            number = spec.processes or cut(
                len(part.setting.run_names), order.steps, order.devices, fills(part, machine, spec.rows)
            )
            machine = replace(machine, processes=number)
        session = Session(part, machine, limit(spec, before), spec.checkpoint_every, before=before)
        course = replace(session.course(), status=never, seconds=float)  # type: ignore[arg-type]
        choice = part.choice
        return Seen(session.facts(), course, choice.line() if choice and choice.why else "")

    def _train(self, order: Order, errand: Train, part: Prepared) -> Iterator[Any]:
        before = errand.before
        machine = Machine.of(suited(order.spec, before), part)
        now = machine.facts()
        apart = [
            f"{k} is {now.get(k)!r}, and {before[k]!r} elsewhere" for k in now if before.get(k) != now[k]
        ]
        if apart and not order.anyway:
            yield Unfit(f"it would not give the same numbers: {'; '.join(apart)}")
            return
        rows, every = limit(order.spec, before), order.spec.checkpoint_every
        session = Session(part, machine, rows, every, errand.study, before, errand.group)
        known = _taken_back(session, *errand.saved.pop(), order.anyway) if errand.saved else []
        yield Found([], session.place.status())
        yield from trained(session, known, errand.columns)


def _taken_back(session: Session, name: str, content: bytes, anyway: bool) -> list[Row]:
    """Go on from a checkpoint; gives what its runs had recorded. Nothing of it stays in memory."""
    file = Path(name)
    tensors, notes = opened(file, content)
    recorded = Table.parse(text_of(tensors.pop(RECORDED)), file)
    session.take_back(session.groups, file, tensors, notes, anyway=anyway)
    mine = {standing.name for standing in session.standings}
    return [row for row in recorded if row["run"] in mine and row["run"] not in session.new]


def trained(session: Session, rows: list[Row], columns: tuple[str, ...]) -> Iterator[Any]:
    """Train a session to its end, and tell on the way; `rows`: what its runs have recorded so far."""
    while session.round < session.setting.rounds:
        until = session.next_stop()
        for found in session.place.advance(until, Progress()):
            rows += found
            yield Found(found, session.place.status())
        tensors, notes = session.saved(session.groups, until)
        yield Kept(until, packed(tensors, notes, Table(columns, rows).csv()))
    summary = session.finish(rows)
    for name, content in session.models():
        yield Model(name, content)
    yield Finished(summary, session.client_rows())


def prepared(order: Order, pool: Pool) -> Prepared:
    """The part on this node's device."""
    device, arithmetic = torch.device(order.spec.device), arithmetic_of(order.spec)
    return Prepared(order.setting, pool, order.divisions, device, arithmetic, order.scales)


def fills(part: Prepared, machine: Machine, rows: int | None) -> int:
    """How many devices all rows of a part would fill, if they were computed at a time."""
    if machine.engine == "loop":
        return 1
    plan = make_plan(part, machine, list(part.runs()), rows)
    slots = part.setting.cohort * len(part.setting.run_names)
    return 1 if plan.rows is None else -(-slots // plan.rows)


def digest_of(file: str) -> str | None:
    """Of a file of weights; None: it cannot be read, which is said where it is used."""
    with contextlib.suppress(OSError):
        return digest(Path(file).read_bytes())
    return None


def never() -> Status:
    raise AssertionError("a course that was sent knows no status")


def sent(dataset: Dataset) -> dict[str, Any]:
    """A data set for the object store, whose arrays nodes map and do not copy."""
    fields, samples = dict(vars(dataset)), dataset.samples
    if type(samples) is Arrays:
        fields["samples"] = tuple(array.cpu().numpy() for array in (samples.x, samples.y))
    return fields


def received(fields: Mapping[str, Any]) -> Dataset:
    """What `sent` gave."""
    samples = fields["samples"]
    if isinstance(samples, tuple):
        with warnings.catch_warnings(action="ignore"):  # torch would rather write to them; nothing does
            samples = Arrays(*map(torch.from_numpy, samples))
    return Dataset(**{**fields, "samples": samples})
