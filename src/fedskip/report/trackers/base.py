"""The base class of trackers, and the data that they get.

A `Progress` watches a setting in training and asks how far it is. A tracker only gets plain data, which it may
keep, and it may fail without harm to the study.
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

from fedskip.config import Setting, StudySpec, plain
from fedskip.config.tree import flatten
from fedskip.errors import InputError, first_line
from fedskip.files import write_text
from fedskip.records.folder import settings_of
from fedskip.records.table import Row
from fedskip.report.results import Results

Value = bool | int | float | str
PLURAL = ("name", "methods", "seeds", "record")  # keys of a setting that are not a run's


@dataclass(frozen=True)
class TrackedRun:
    """A run and its hyper-parameters."""

    name: str
    setting: str
    method: str  # its label in tables
    seed: int
    keys: Mapping[
        str, Value
    ]  # those of its setting, dotted; `setting`, `method`, `method.mu`, `seed`


@dataclass(frozen=True)
class Start:
    """A study that starts or resumes."""

    name: str
    out: Path  # its folder
    runs: Sequence[TrackedRun]
    rows: Sequence[Row]  # its history up to the last checkpoints; later rounds follow

    @classmethod
    def of(
        cls, out: Path, spec: StudySpec, settings: Sequence[Setting], rows: Sequence[Row]
    ) -> Start:
        runs = []
        for setting, keys in zip(settings, settings_of(plain(spec, settings)), strict=True):
            shared = flatten({k: v for k, v in keys.items() if k not in PLURAL})
            for part, method in (
                (one, method) for one in setting.parts() for method in one.methods
            ):
                label, fields = part.label(method), dataclasses.fields(method)
                own = {f"method.{field.name}": getattr(method, field.name) for field in fields}
                about = {"setting": setting.name, "method": label, **own}
                for seed in part.seeds:
                    name, values = (
                        part.run_name(method, seed),
                        _values(about | {"seed": seed} | shared),
                    )
                    runs.append(TrackedRun(name, setting.name, label, seed, values))
        known = {run.name for run in runs}
        return cls(spec.name, out, runs, [row for row in rows if row["run"] in known])

    @cached_property
    def id(self) -> str:
        """A lasting id of the folder, for servers that hold many studies."""
        file = self.out / ".tracked"
        if not file.exists():
            write_text(file, uuid.uuid4().hex[:16])
        return file.read_text(encoding="utf-8").strip()


class Tracker:
    """Gets the numbers of a study while it trains. Write a subclass to send them elsewhere."""

    def on_start(self, start: Start) -> None:
        """The study starts, or resumes from its checkpoints with the rows in `start.rows`."""

    def on_rows(self, rows: list[Row]) -> None:
        """The history has new rows. Those of a run come in order, and never twice."""

    def on_end(self, results: Results) -> None:
        """The study is finished."""

    def close(self) -> None:
        """The study has ended, failed or was stopped: close what is open. Only a kill skips this."""


def finite_numbers(row: Row) -> dict[str, float]:
    """The measurements in a row that are finite.

    >>> finite_numbers({"run": "a.FedAvg.s0", "seed": 0, "round": 5, "merges": 1, "test_loss": float("nan")})
    {'merges': 1}
    """
    return {
        name: value
        for name, value in row.items()
        if name not in ("seed", "round") and isinstance(value, int | float) and math.isfinite(value)
    }


@contextmanager
def importing(name: str) -> Iterator[None]:
    """Inside, a tracker imports its library. If that fails, the error says how to install it."""
    try:
        yield
    except Exception as error:  # a library that does not fit another may raise anything
        missing = isinstance(error, ModuleNotFoundError)
        rule = "is not installed" if missing else f"cannot be imported ({first_line(error)})"
        raise InputError(
            name, rule, fix=f'install it with `pip install "fedskip[{name}]"`'
        ) from error


def _values(keys: Mapping[str, object]) -> dict[str, Value]:
    """Numbers and texts as they are, anything else as text, and None left out."""
    given = {key: value for key, value in keys.items() if value is not None}
    return {key: value if isinstance(value, Value) else str(value) for key, value in given.items()}
