"""A method's numbers in a column of the paper: `KIND:COLUMN:METHOD` or `KIND-DETAIL:COLUMN:METHOD`.

As `gain:table2/cifar10-beta0.5:FedSkip-5`. The kinds:

- `best`, `last`, `tail`: with their spread over seeds; `full`: the last model on all test samples, where the
  others are on some
- `gain`, `gain-best`, `gain-last`, `gain-full`, `gain-val`: over FedAvg, where `gain` is in tail, and `val`
  is in the round with the best validation; `each`, `each-best`, `each-last`: the same seed by seed
- `over`, `over-best`, `over-last` with METHOD:OTHER: the same over another method
- `alone`, `alone-best`, `alone-last` and `each-alone`: the same over the method itself without skipping
- `early-N`: the accuracy at the last merge up to round N, less FedAvg's; `trough`: the round in which that is
  lowest
- `again`: by how much runs of one seed differ in tail that stand in two folders, without their sign
- `reached`, `reached-round`: the highest accuracy and when, seed by seed, also of runs that diverged later
- `merged-N`, `losses-N`: at the first N merges of the first seed, the accuracy, and the mean training loss
  since the merge before
- `low`, `low-round`: the lowest accuracy after round 100, and when
- `slots`: the gain over FedAvg of single slots before they merge; `slots-more`: less that of the merged model
- `diverged`, `chance`: runs, of how many; `broke`: in which rounds; `jump`, `jump-round`: the largest drift,
  `jumps`, `jumps-round`: the same seed by seed; `first-drift`: that of the first merge, seed by seed
- `falls`: how often accuracy falls by more than 15 points from one merge to the next; `falls-last`: the last
  round in which it does
- `merges-best`, `merges-last`: seed by seed, until FedAvg's best or its last
- `paper`, `paper-gain`: what the paper has; `method`: its name

METHOD is written without spaces. It may be `strongest` or `strongest-skipping`, whoever that is: the
highest tail over the seeds that all have; with `-best` behind it, the highest best.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from evidence import FALL, early, histories, merges, points

from fedskip.paper.beside import METRIC, SCORES, gain, published, published_gain, scores, shown_gain
from fedskip.paper.claims import slot_scores
from fedskip.paper.columns import BASELINE, Column
from fedskip.paper.compose import skipping
from fedskip.paper.strongest import strongest
from fedskip.records.table import Row
from fedskip.report import units
from fedskip.report.results import Results
from fedskip.report.statistics import difference

LATE = 100  # rounds after which a method should have its level
WORDS = SCORES | {"full": "full_test", "val": "best_val"}  # and a score's column of summary.csv


@dataclass(frozen=True)
class Entry:
    """A method in a column, and what a name says more of the number that it wants."""

    column: Column
    kept: list[Results]
    method: str
    other: str  # METHOD:OTHER
    detail: str  # KIND-DETAIL

    @cached_property
    def runs(self) -> Mapping[str, list[Row]]:
        """All rows of summary.csv, by method."""
        return self.column.runs(self.kept)

    @property
    def mine(self) -> list[Row]:
        return self.runs[self.method]

    @cached_property
    def held(self) -> Results:
        """The column's histories."""
        held = self.column.results(self.kept)
        assert held is not None, self.column.name
        return held

    @cached_property
    def histories(self) -> Mapping[int, list[Row]]:
        """By seed."""
        return histories(self.held, self.method)

    @cached_property
    def trained(self) -> Mapping[int, list[Row]]:
        """By seed; where the method was trained for fewer rounds than others, its own."""
        held = self.column.results(self.kept)
        if held is not None and self.method in held.labels():
            return self.histories
        own = [one for one in self.kept if any(self.method in p.labels() for p in self.column.parts([one]))]
        return histories(self.column.results(own), self.method)

    def over(self, base: str) -> str:
        """The gain over another method."""
        return gain(self.mine, self.runs[base], WORDS[self.detail or "tail"])

    @property
    def alone(self) -> str:
        """The same method without skipping."""
        names = {method: name for name, method in self.column.methods.items()}
        return names[replace(self.column.methods[self.method], period=1)]


def entry(column: Column, method: str, detail: str, kept: list[Results]) -> Entry:
    """With the names that the column has for METHOD or METHOD:OTHER."""
    runs = column.runs(kept)
    one, other = (_named(name, runs) for name in method.partition(":")[::2])
    return Entry(column, kept, one, other, detail)


def _named(method: str, runs: dict[str, list[Row]]) -> str:
    """The method that is meant: `strongest` is whoever is."""
    among = {"strongest": None, "strongest-skipping": skipping(runs)}
    who, by = method.removesuffix("-best"), "best" if method.endswith("-best") else "mean_tail"
    if who in among:
        return strongest(runs, by, among[who]) or "none"
    return next((name for name in runs if name.replace(" ", "") == method), method)


def _early(of: Entry) -> str:
    there = (early(of.held, name, int(of.detail)) for name in (of.method, BASELINE))
    return points(difference(*there))


def _trough(of: Entry) -> str:
    gaps = {
        round: difference(early(of.held, of.method, round), early(of.held, BASELINE, round)).mean
        for round in range(1, of.column.rounds + 1)
    }
    return str(min((gap, round) for round, gap in gaps.items() if gap is not None)[1])


def _each(of: Entry) -> str:
    base, score = (of.alone, "tail") if of.detail == "alone" else (BASELINE, of.detail or "tail")
    gaps = _gaps(of.mine, of.runs[base], WORDS[score])
    return ", ".join(units.NONE if gap is None else units.difference(gap, METRIC) for gap in gaps)


def _gaps(runs: list[Row], base: list[Row], score: str) -> list[float | None]:
    """What runs gain over others, seed by seed; None where one of the two diverged."""
    known = {row["seed"]: row for row in base}
    return [
        None if row["diverged"] or known[row["seed"]]["diverged"] else row[score] - known[row["seed"]][score]
        for row in runs
    ]


def _again(of: Entry) -> str:
    found: dict[int, list[float]] = {}
    for part in of.column.parts(of.kept):
        for row in part.summary.where(method=of.method, diverged=False):
            found.setdefault(row["seed"], []).append(100 * row["mean_tail"])
    apart = [max(tails) - min(tails) for tails in found.values() if len(tails) > 1]
    return f"{min(apart):.2f} to {max(apart):.2f}"


def _first(of: Entry, key: str, unit: int) -> str:
    """Of the first merges of the first seed."""
    first = next(iter(of.histories.values()))
    return ", ".join(f"{unit * row[key]:.2f}" for row in first[: int(of.detail)])


def _low(of: Entry) -> str:
    late = [row for run in of.histories.values() for row in run if row["round"] > LATE]
    lowest = min(late, key=lambda row: row["test_accuracy"])
    return str(lowest["round"]) if of.detail else f"{100 * lowest['test_accuracy']:.0f}"


def _slots(of: Entry) -> str:
    """Of single slots; `more`: how much more they gain over FedAvg's than the merged model does."""

    def seen(name: str) -> dict[int, float | None]:
        slots = slot_scores(of.held, name)
        if not of.detail:
            return slots
        merged = {row["seed"]: row["mean_tail"] for row in of.runs[name]}
        both = {seed: (slot, merged[seed]) for seed, slot in slots.items()}
        return {seed: None if None in pair else pair[0] - pair[1] for seed, pair in both.items()}

    return shown_gain(difference(seen(of.method), seen(BASELINE)))


def _broke(of: Entry) -> str:
    return ", ".join(str(row["broke_round"]) for row in of.mine if row["diverged"])


def _jump(of: Entry) -> str:
    return _shown(_largest([row for run in of.trained.values() for row in run]), of.detail)


def _drifts(of: Entry, pick: Callable[[Sequence[Row]], Row]) -> str:
    """One row of each seed; where nothing merged a dash."""
    runs = [of.trained.get(row["seed"]) for row in of.mine]
    return ", ".join(units.NONE if run is None else _shown(pick(run), of.detail) for run in runs)


def _largest(rows: Sequence[Row]) -> Row:
    return max(rows, key=lambda row: row["drift_mean"])


def _shown(row: Row, detail: str) -> str:
    """Its drift, or its round."""
    return str(row["round"]) if detail == "round" else f"{row['drift_mean']:,.0f}"


def _falls(of: Entry) -> str:
    rounds = [
        now["round"]
        for run in of.histories.values()
        for before, now in pairwise(run)
        if before["test_accuracy"] - now["test_accuracy"] > FALL
    ]
    return str(max(rounds) if of.detail else len(rounds))


def _merges(of: Entry) -> str:
    needed = merges(of.held, of.method, of.detail).values()
    return ", ".join(units.NONE if n is None else f"{n:.0f}" for n in needed)


def _count(of: Entry, runs: int) -> str:
    return f"{runs} of {len(of.mine)}"


def _paper(of: Entry) -> str:
    return (published_gain if of.detail else published)(of.column, of.method)


KINDS: dict[str, Callable[[Entry], str]] = {
    "best": lambda of: scores(of.mine, "best"),
    "last": lambda of: scores(of.mine, "last"),
    "tail": lambda of: scores(of.mine, "mean_tail"),
    "full": lambda of: scores(of.mine, "full_test"),
    "gain": lambda of: of.over(BASELINE),
    "over": lambda of: of.over(of.other),
    "alone": lambda of: of.over(of.alone),
    "each": _each,
    "early": _early,
    "trough": _trough,
    "again": _again,
    "reached": lambda of: ", ".join(
        str(row["best_round"]) if of.detail else f"{100 * row['best']:.2f}" for row in of.mine
    ),
    "merged": lambda of: _first(of, "test_accuracy", 100),
    "losses": lambda of: _first(of, "train_loss", 1),
    "low": _low,
    "slots": _slots,
    "diverged": lambda of: _count(of, sum(bool(row["diverged"]) for row in of.mine)),
    "chance": lambda of: _count(of, sum(map(of.column.at_chance, of.mine))),
    "broke": _broke,
    "jump": _jump,
    "jumps": lambda of: _drifts(of, _largest),
    "first": lambda of: _drifts(of, lambda run: run[0]),
    "falls": _falls,
    "merges": _merges,
    "paper": _paper,
    "method": lambda of: of.method,
}
