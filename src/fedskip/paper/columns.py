"""The columns of the paper's tables: what was set, what was published, and which runs are of them.

`published.csv` holds the paper's numbers. What was set is in the bundled studies of the same names.
"""

import csv
import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from fedskip.data.shakespeare import LOOKED_AT
from fedskip.engine.local import Local
from fedskip.methods import Method
from fedskip.methods.grammar import label_among, parse_many, text
from fedskip.paper.within import within
from fedskip.records.table import Row, Table
from fedskip.report.recorded import About
from fedskip.report.results import Results
from fedskip.report.together import alike, together
from fedskip.spec import Draft, Setting, build, bundled

TABLES = ("table1", "table2", "table3")
BASELINE = "FedAvg"
CHANCE = {
    "cifar10": 0.1,
    "cifar100": 0.01,
}  # of one answer for all, where a test set has as many of each class
TESTED = {"shakespeare": LOOKED_AT}  # samples while training, where the data set sets them
# keys that say how much is run or measured, not what
FREE = {
    "name", "methods", "seeds", "rounds", "of_rounds", "of_seeds", "note", "slot_accuracy", "client_accuracy",
    "target", "reference",
}  # fmt: skip
USUAL = ("fp32", "tf32")  # precisions that need no word, unless a study sets one


@dataclass(frozen=True, eq=False)
class Column:
    """A column of a table of the paper."""

    table: str
    draft: Draft
    published: Mapping[str, float | None]  # by method; None where the paper has a star
    precision: str | None = None  # that its study sets

    @property
    def name(self) -> str:
        return self.draft.name

    @property
    def rounds(self) -> int:
        return int(self.draft.keys["rounds"])

    @property
    def planned(self) -> int:
        """How many runs its study has."""
        return len(self.methods) * len(self.draft.keys["seeds"])

    def at_chance(self, run: Row) -> bool:
        """Whether a run did not diverge, but ends no better than one answer for all samples."""
        chance = CHANCE.get(self.draft.keys["data"]["name"], -1.0)
        return not run["diverged"] and run["last"] is not None and run["last"] <= chance

    @property
    def marks(self) -> list[str]:
        """What has to be said of it: that it is less than the paper's, or other."""
        return [*About(dict(self.draft.keys), Path()).marks, *[f"in {self.precision}"] * bool(self.precision)]

    def seeds(self, runs: Mapping[str, Sequence[Row]]) -> int:
        """How many seeds a method should have: those of the study, or as many as any method has."""
        return max([len(self.draft.keys["seeds"]), *map(len, runs.values())])

    def is_usual(self, run: Row) -> bool:
        """Whether a run was made in the precision that it should be, or nobody noted another."""
        usual = (self.precision,) if self.precision else USUAL
        return (run.get("precision") or usual[0]) in usual

    @property
    def methods(self) -> dict[str, Method]:
        """As the paper calls them; where it would call two the same, by their labels."""
        methods: tuple[Method, ...] = self.draft.keys["methods"]
        names = [called(method) for method in methods]
        return {
            name if names.count(name) == 1 else label_among(method, methods): method
            for name, method in zip(names, methods, strict=True)
        }

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """What a setting of its data has that does not say otherwise."""
        return defaults(self.draft.keys["data"]["name"])

    @cached_property
    def wanted(self) -> dict[str, Any]:
        """What a setting must have to be this one."""
        whole = self.defaults | dict(self.draft.keys)
        whole["local"] = dataclasses.asdict(Local(**whole["local"]))
        free = FREE if "clients" in self.draft.keys else FREE | {"clients"}  # else the data set knows
        return {key: value for key, value in whole.items() if key not in free}

    def is_of(self, setting: About) -> bool:
        """Whether a setting is this one, but for its methods, seeds and rounds."""
        return all(setting.keys.get(key, self.defaults[key]) == value for key, value in self.wanted.items())

    def parts(self, studies: Sequence[Results], beyond: float = 1.0) -> list[Results]:
        """What each study holds of this column, under the paper's names; first who has most of its methods.

        So of a run that was made twice that one counts which was trained beside those it is compared with.
        Of runs that went on for longer, the column's own rounds count; histories may go on to `beyond` times
        these.
        """
        found = []
        for study in studies:
            for setting in filter(self.is_of, study.settings):
                methods = self._called(setting)
                names = {label: name for label, (name, _) in methods.items()}
                history, summary = (
                    _renamed(table, setting.name, names) for table in (study.history, study.summary)
                )
                for row in summary:
                    row["precision"] = setting.precision
                if summary:
                    keys = setting.keys | {"methods": [text(method) for _, method in methods.values()]}
                    about = replace(setting, keys=keys, parts=())
                    own = replace(study, history=history, summary=summary, settings=(about,))
                    found.append(within(own, self.rounds, beyond))
        return sorted(found, key=lambda part: -len(part.labels()))

    def runs(self, studies: Sequence[Results]) -> dict[str, list[Row]]:
        """The runs of each method; every seed once, by the one that is nearest to what the column asks."""
        found = self._chosen(self.parts(studies), self.rounds)
        return {name: [found[pair] for pair in sorted(found) if pair[0] == name] for name in self.methods}

    def results(self, studies: Sequence[Results], beyond: float = 1.0) -> Results | None:
        """Its runs that have histories, as results of their own; of several lengths only the longest.

        Of a seed the run that `runs` would take; only of one setting, as others may not stand beside it.
        Where `runs` takes one that diverged, no other stands in its place.
        """
        parts, limit = self.parts(studies, beyond), math.floor(beyond * self.rounds)
        broken = {pair for pair, run in self._chosen(parts, limit).items() if run["diverged"]}
        found = [part for part in parts if part.history]
        longest = max((part.settings[0].rounds for part in found), default=0)
        of_one: list[Results] = []
        for part in found:
            fits = all(alike(part.settings[0], one.settings[0]) for one in of_one)
            if part.settings[0].rounds == longest and fits:
                of_one.append(part)
        chosen = self._chosen(of_one, limit)
        best = {id(run) for pair, run in chosen.items() if run["diverged"] or pair not in broken}
        kept = [_only(part, [row for row in part.summary if id(row) in best]) for part in of_one]
        kept = [part for part in kept if part.summary]
        return together(kept)[0] if kept else None

    def _chosen(self, parts: Sequence[Results], limit: int) -> dict[tuple[str, int], Row]:
        """Of each method and seed the run that is worth most; the first of equals."""
        found: dict[tuple[str, int], Row] = {}
        for row in (row for part in parts for row in part.summary):
            pair = row["method"], row["seed"]
            if self._worth(found.setdefault(pair, row), limit) < self._worth(row, limit):
                found[pair] = row
        return found

    def _worth(self, run: Row, limit: int) -> tuple[bool, bool, bool, bool, int]:
        """Whole; in the right precision; no longer than the limit; diverged; as far as it came.

        One that diverged is whole: a second try that did not takes nothing back.
        """
        came = max(run["rounds"], limit) if run["diverged"] else run["rounds"]
        return came >= self.rounds, self.is_usual(run), came <= limit, run["diverged"], came

    def _called(self, setting: About) -> dict[str, tuple[str, Method]]:
        """The column's methods that a setting has, by their labels there, and how the paper calls them."""
        try:
            methods = parse_many(setting.keys.get("methods", ()))
        except ValueError:  # some cannot be read on this machine
            return {}
        names = {method: name for name, method in self.methods.items()}
        return {label_among(m, methods): (names[m], m) for m in methods if m in names}


def _only(study: Results, runs: Sequence[Row]) -> Results:
    """Some runs of a study, and their histories."""
    names = {row["run"] for row in runs}
    history = [row for row in study.history if row["run"] in names]
    tables = Table(study.history.columns, history), Table(study.summary.columns, runs)
    return replace(study, history=tables[0], summary=tables[1])


def _renamed(table: Table, setting: str, names: Mapping[str, str]) -> Table:
    """The rows of a setting's methods that have names, under these."""
    rows = [
        row | {"method": names[row["method"]]}
        for row in table
        if row["setting"] == setting and row["method"] in names
    ]
    return Table(table.columns, rows)


def defaults(data: str) -> dict[str, Any]:
    """What a setting of a data set has that does not say otherwise."""
    return {one.name: one.default for one in dataclasses.fields(Setting)} | {"eval_samples": TESTED.get(data)}


def called(method: Method) -> str:
    """How the paper calls a method, whatever its hyper-parameters."""
    return method.label.partition("(")[0]


def columns() -> dict[str, Column]:
    """All columns of tables, by TABLE/COLUMN."""
    return {name: column for name, column in settings().items() if column.table in TABLES}


def races() -> dict[str, Column]:
    """The columns in which methods are compared with FedAvg; in Table I nothing is merged."""
    return {name: column for name, column in columns().items() if BASELINE in column.methods}


@cache
def settings() -> dict[str, Column]:
    """All settings of the paper's studies, by STUDY/SETTING; a table's are its columns."""
    numbers: dict[tuple[str, str], dict[str, float | None]] = {}
    with Path(__file__).with_name("published.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            score = None if row["score"] == "*" else float(row["score"])
            numbers.setdefault((row["table"], row["column"]), {})[row["method"]] = score
    found = {}
    for table in bundled.papers():
        spec = build(bundled.load(table))
        for draft in spec.settings:
            published: Any = numbers.get((table, draft.name), {})
            found[f"{table}/{draft.name}"] = Column(table, draft, published, spec.precision)
    return found
