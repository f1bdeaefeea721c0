"""The columns of the paper's tables: what was set, what was published, and which of our runs are of them.

A column is a setting of a bundled study, such as `table2/cifar10-beta0.5`. The paper's 13 columns of methods
are those of Tables II and III; Table I, its figures and our own studies are columns in the same sense.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from fedskip.config import build, bundled, dump
from fedskip.methods import parse_many, text
from fedskip.methods.grammar import label_among
from reproduction.runs import StudyFolder

HERE = Path(__file__).parent
BASELINE = "FedAvg"
PERIODS = (3, 5, 7, 10)  # of the paper's FedSkip
SKIPPING = tuple(f"FedSkip-{period}" for period in PERIODS)
PRIMARY = (
    "FedSkip-5"  # the period that we compare everywhere, so that none is chosen by its results
)
TABLE1, TABLES = "table1", ("table2", "table3")
CHANCE = {"cifar10": 10.0, "cifar100": 1.0}  # % of one answer for all samples; classes are equal
SCORES = ["best", "last", "tail", "best_val"]
SHORTEST = 0.9  # share of a column's rounds that a run must have to count

Studies = tuple[StudyFolder, ...]
# what a study may choose freely without becoming another setting
FREE = {
    "name", "methods", "seeds", "rounds", "of_rounds", "of_seeds", "note", "swept", "added", "record",
    "slot_accuracy", "client_accuracy", "target", "reference", "settings",
    "engine", "device", "compile", "deterministic", "precision", "workers", "processes", "threads",
    "groups", "streams", "rows", "checkpoint_every", "most_runs", "cluster", "per_device",
}  # fmt: skip
# keys that bundled studies leave out, and what holds then
DEFAULTS = {
    "cohort_policy": "uniform",
    "loss": "cross_entropy",
    "metric": "accuracy",
    "eval_every": 1,
}
LOCAL = {"decay": "constant", "last_batch": "drop", "optimizer": "sgd"}
OF_DATA = {"shakespeare": {"eval_samples": 20_000}}


@dataclass(frozen=True, eq=False)
class Column:
    """One setting of a bundled study, and the paper's numbers for it."""

    name: str  # STUDY/SETTING
    keys: Mapping[str, Any]  # as `fedskip show NAME` prints them
    published: Mapping[str, float]  # accuracy in percent by method; NaN where the paper has a star

    @property
    def rounds(self) -> int:
        return int(self.keys["rounds"])

    @property
    def seeds(self) -> list[int]:
        return list(self.keys["seeds"])

    @property
    def data(self) -> str:
        return str(self.keys["data"]["name"])

    @property
    def title(self) -> str:
        """The column in words, such as `CIFAR-10, 10 clients, β = 0.5`."""
        if self.data not in CHANCE:
            return self.data.upper()
        uneven = "IID" if self.beta is None else f"β = {self.beta:g}"
        return f"{self.data.upper().replace('CIFAR', 'CIFAR-')}, {self.keys['clients']} clients, {uneven}"

    @property
    def beta(self) -> float | None:
        """How uneven its partition is; None where it is no Dirichlet partition."""
        found: float | None = self.keys.get("partition", {}).get("beta")
        return found

    @cached_property
    def methods(self) -> dict[str, str]:
        """Its methods: how the paper calls each, and how studies write it."""
        found = parse_many(self.keys["methods"])
        plain = [method.label.partition("(")[0] for method in found]
        return {
            name if plain.count(name) == 1 else label_among(method, found): text(method)
            for name, method in zip(plain, found, strict=True)
        }

    def fits(self, keys: Mapping[str, Any]) -> bool:
        """Whether a setting is this one, but for its methods, seeds, rounds and device."""
        if not isinstance(keys.get("data"), Mapping):  # a Python object, which is only named
            return False
        wanted, given = _science(self.keys), _science(keys)
        if "clients" not in self.keys:  # then the data set knows how many there are
            given.pop("clients", None)
        return wanted == given

    def runs(self, studies: Studies) -> pd.DataFrame:
        """The runs of this column, each method and seed once; accuracies are in percent.

        Of a run that was made twice, the one counts that was trained beside most of the column's methods.
        Runs of other lengths do not count, unless they diverged. `chance`: a run that did not diverge but
        ends no better than one answer for all samples.
        """
        return _runs(self, studies)

    def history(self, studies: Studies) -> pd.DataFrame:
        """Every evaluation of these runs, as far as their histories were kept."""
        return _history(self, studies)


@cache
def _runs(column: Column, studies: Studies) -> pd.DataFrame:
    parts = [part for study in studies for part in _parts(column, study)]
    if not parts:
        return pd.DataFrame(
            columns=["method", "seed", "run", "study", *SCORES, "diverged", "chance"]
        )
    parts.sort(key=lambda part: -part["method"].nunique())
    found = pd.concat(parts)
    long = found["rounds"].between(SHORTEST * column.rounds, column.rounds)
    found = found[long | found["diverged"]].drop_duplicates(["method", "seed"])
    found["chance"] = ~found["diverged"] & (found["last"] <= CHANCE.get(column.data, -1.0))
    return found.sort_values("seed").reset_index(drop=True)


def _parts(column: Column, study: StudyFolder) -> Iterator[pd.DataFrame]:
    """What a study holds of a column, under the column's names."""
    called = {written: name for name, written in column.methods.items()}
    for name, keys in study.settings.items():
        if column.fits(keys):
            try:
                methods = parse_many(keys["methods"])
            except ValueError:  # a custom method that is not importable here
                continue
            names = {label_among(method, methods): called.get(text(method)) for method in methods}
            rows = study.summary[study.summary["setting"] == name]
            rows = rows.assign(method=rows["method"].map(names), study=study)
            rows["diverged"] = rows["diverged"].astype(bool)
            yield rows.dropna(subset="method").rename(columns={"mean_tail": "tail"})


@cache
def _history(column: Column, studies: Studies) -> pd.DataFrame:
    parts = []
    for study, runs in column.runs(studies).groupby("study", sort=False):
        rows = study.history.drop(columns=["method", "seed"], errors="ignore")
        parts.append(rows.merge(runs[["run", "method", "seed"]], on="run"))
    kept = [part for part in parts if len(part)]
    return pd.concat(kept) if kept else pd.DataFrame(columns=["method", "seed", "round"])


def _science(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a setting that decide its numbers, with defaults written out."""
    whole: dict[str, Any] = {**DEFAULTS, **OF_DATA.get(keys["data"]["name"], {}), **keys}
    whole["local"] = {k: v for k, v in (LOCAL | whole["local"]).items() if v is not None}
    return {key: value for key, value in whole.items() if key not in FREE and value}


@cache
def columns() -> dict[str, Column]:
    """All settings of the paper's studies and of our own beside them, by STUDY/SETTING."""
    numbers = published()
    found = {}
    for study in bundled.papers():
        shown = yaml.safe_load(dump(build(bundled.load(study))))
        for own in shown.pop("settings"):
            name = f"{study}/{own['name']}"
            column = numbers.get(name, {})
            found[name] = Column(name, {**shown, **own}, column)
    return found


def compared() -> dict[str, Column]:
    """The paper's 13 columns: those of Tables II and III, in which methods are compared with FedAvg."""
    return {name: one for name, one in columns().items() if name.partition("/")[0] in TABLES}


@cache
def published() -> dict[str, dict[str, float]]:
    """The paper's accuracies in percent, by column and method; NaN for its stars."""
    table = pd.read_csv(HERE / "published.csv", na_values="*")
    names = table["table"] + "/" + table["column"]
    found: dict[str, dict[str, float]] = {}
    for name, method, score in zip(names, table["method"], table["score"], strict=True):
        found.setdefault(name, {})[method] = round(100 * score, 2)
    return found
