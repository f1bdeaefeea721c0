"""What a tracker is, and what it is told.

It is no `Progress`: that one holds on to the setting under way, to ask how far it is. A tracker gets plain
data that it may keep, and may fail without harm.
"""

from __future__ import annotations

import dataclasses
import math
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedskip.files import write_text
from fedskip.input.errors import InputError, said
from fedskip.input.nest import flatten
from fedskip.records.provenance import settings_of
from fedskip.records.table import Row
from fedskip.report.results import Results
from fedskip.spec import Setting, StudySpec, plain
from fedskip.spec.parts import parts

Value = bool | int | float | str
PLURAL = ("name", "methods", "seeds", "added", "swept")  # keys that do not tell what a run is


@dataclass(frozen=True)
class TrackedRun:
    """A run, and what tells it from others."""

    name: str
    setting: str
    method: str  # as tables call it
    seed: int
    keys: Mapping[str, Value]  # all of its setting's, dotted; and `setting`, `method`, `method.mu`, `seed`


@dataclass(frozen=True)
class Start:
    """A study that starts, or goes on."""

    name: str
    out: Path  # its folder
    runs: Sequence[TrackedRun]
    rows: Sequence[Row]  # what its history holds up to the last checkpoints; later rounds come

    @classmethod
    def of(cls, out: Path, spec: StudySpec, settings: Sequence[Setting], rows: Sequence[Row]) -> Start:
        runs = []
        for setting, keys in zip(settings, settings_of(plain(spec, settings)), strict=True):
            shared = flatten({k: v for k, v in keys.items() if k not in PLURAL})
            for part, method in ((one, method) for one in parts(setting) for method in one.methods):
                label, fields = part.label(method), dataclasses.fields(method)
                own = {f"method.{field.name}": getattr(method, field.name) for field in fields}
                about = {"setting": setting.name, "method": label, **own}
                for seed in part.seeds:
                    name, values = part.run_name(method, seed), _values(about | {"seed": seed} | shared)
                    runs.append(TrackedRun(name, setting.name, label, seed, values))
        known = {run.name for run in runs}
        return cls(spec.name, out, runs, [row for row in rows if row["run"] in known])

    @cached_property
    def id(self) -> str:
        """What this folder is called where many studies meet; it stays the same."""
        file = self.out / ".tracked"
        if not file.exists():
            write_text(file, uuid.uuid4().hex[:16])
        return file.read_text(encoding="utf-8").strip()


class Tracker:
    """Hears a study as it goes. Write a subclass to send its numbers elsewhere."""

    def on_start(self, start: Start) -> None:
        """The study starts or, with rows that its history holds already, goes on from its checkpoints."""

    def on_rows(self, rows: list[Row]) -> None:
        """Rows of the history have been found; those of a run come in order, none twice."""

    def on_end(self, results: Results) -> None:
        """The study is finished."""

    def close(self) -> None:
        """The study has ended, or was stopped: let go of what is open. Only a kill leaves this out."""


def numbers(row: Row) -> dict[str, float]:
    """What a row measured, as far as it is finite.

    >>> numbers({"run": "a.FedAvg.s0", "seed": 0, "round": 5, "merges": 1, "test_loss": float("nan")})
    {'merges': 1}
    """
    which = ("seed", "round")  # they say which row it is
    found = {name: value for name, value in row.items() if name not in which}
    return {name: v for name, v in found.items() if isinstance(v, int | float) and math.isfinite(v)}


@contextmanager
def needed(name: str) -> Iterator[None]:
    """Inside, the library of a tracker is imported; says how to install it where that fails."""
    try:
        yield
    except Exception as error:  # one that does not fit another library fails in its own way
        missing = isinstance(error, ModuleNotFoundError)
        rule = "is not installed" if missing else f"cannot be imported ({said(error)})"
        raise InputError(name, rule, fix=f'install it with `pip install "fedskip[{name}]"`') from error


def _values(keys: Mapping[str, object]) -> dict[str, Value]:
    """Plain values; whatever else there is, as text; None is left out."""
    known = {key: value for key, value in keys.items() if value is not None}
    return {key: value if isinstance(value, Value) else str(value) for key, value in known.items()}
