"""Verdicts of claims.md: the periods with which an interval over seeds lies above 0, or below.

On a page they are `above:WHAT:COLUMN` and `below:WHAT:COLUMN`, with a list such as `Δ = 3 and 5`. WHAT:

- `best`, `last`, `tail`: the gain over FedAvg; `slots`: that of single slots before they merge
- `level`: the gain in best where of FedAvg, too, only the rounds count in which the method merges
- `alone-METHOD`: the gain in tail of a method that skips over the same method that does not
- `early-N`: the accuracy at the last merge up to round N, less FedAvg's
- `merges-best`, `merges-last`: merges until FedAvg's best or its last, less those of the rival that needs the
  fewest; only periods that get there at every seed
- `rival-METHOD`, `rival-METHOD-best`, `rival-METHOD-last`: the tail, best or last, less a rival's
"""

from collections.abc import Mapping, Sequence

from evidence import early, fewest_merges, histories
from rich.text import Text

from fedskip.methods import Method
from fedskip.paper.beside import SCORES, apart
from fedskip.paper.claims import slot_scores
from fedskip.paper.columns import BASELINE, Column, settings
from fedskip.paper.remarks import labelled
from fedskip.report import units
from fedskip.report.results import Results
from fedskip.report.sheet import Sheet
from fedskip.report.statistics import Difference, difference

NO_PERIOD = "no Δ"
TOLD = {"best": "best", "level": "best, of the same rounds", "last": "last", "tail": "tail"}


def above(name: str, kept: Sequence[Results]) -> str:
    """The periods with which the interval lies above 0."""
    return _listed(name, kept, 1)


def below(name: str, kept: Sequence[Results]) -> str:
    """The periods with which it lies below 0."""
    return _listed(name, kept, -1)


def _listed(name: str, kept: Sequence[Results], sign: int) -> str:
    what, place = name.split(":")
    column = settings()[place]
    told = [period for period, gap in differences(what, column, kept).items() if gap.sign == sign]
    return periods(told, len({_period(name) for name in column.methods if "kip-" in name}))


def periods(told: Sequence[int], of: int) -> str:
    """In words.

    >>> periods([3, 5], 4), periods([3, 5, 7, 10], 4), periods([], 4)
    ('Δ = 3 and 5', 'every Δ', 'no Δ')
    """
    if not told:
        return NO_PERIOD
    return "every Δ" if len(told) == of else f"Δ = {units.listed([*map(str, told)])}"


def told_sheet(columns: Mapping[str, Column], kept: Sequence[Results]) -> Sheet:
    """With which periods a gain over FedAvg is told, or a loss, by each score."""
    rows = []
    for name, column in columns.items():
        runs, bare = column.runs(kept), column.results(kept) is None  # without histories
        cells = [
            units.NONE if bare and score == "level" else _told(f"{score}:{name}", kept) for score in TOLD
        ]
        if len(runs[BASELINE]) == 1:
            cells = ["one seed"] * len(TOLD)
        rows.append([Text(labelled(column, runs)), *map(Text, cells)])
    return Sheet("told", ["column", *TOLD.values()], 1, rows)


def _told(name: str, kept: Sequence[Results]) -> str:
    found = {"gain": above(name, kept), "loss": below(name, kept)}
    return "; ".join(f"{word}: {told}" for word, told in found.items() if told != NO_PERIOD) or "not told"


def differences(what: str, column: Column, kept: Sequence[Results]) -> dict[int, Difference]:
    """By period; where a run diverged, of either method, nothing is told."""
    kind, _, rest = what.partition("-")
    runs, held = column.runs(kept), column.results(kept)
    if kind == "alone":
        pairs = _alone(column, rest)
        found = {p: apart(runs[one], runs[other], "mean_tail") for p, (one, other) in pairs.items()}
    elif kind == "rival":
        rival, _, score = rest.partition("-")
        by = SCORES[score or "tail"]
        found = {_period(name): apart(runs[name], runs[rival], by) for name in _skipping(column)}
    elif kind == "merges":
        found = _merges(column, held, rest)
    elif kind == "level":
        found = {_period(name): level(held, name) for name in _skipping(column)}
    elif kind in ("early", "slots"):
        assert held is not None

        def seen(name: str) -> Mapping[int, float | None]:
            return early(held, name, int(rest)) if kind == "early" else slot_scores(held, name)

        found = {_period(name): difference(seen(name), seen(BASELINE)) for name in _skipping(column)}
    else:
        found = {_period(n): apart(runs[n], runs[BASELINE], SCORES[kind]) for n in _skipping(column)}
    return {period: gap for period, gap in found.items() if not gap.missing and not gap.unmatched}


def level(held: Results | None, method: str) -> Difference:
    """The gain in best over FedAvg's, of which only the rounds count in which the method merges."""
    assert held is not None
    mine, base = (held.scores(held.compared[0].name, name, "best") for name in (method, BASELINE))
    runs, others = histories(held, method), histories(held, BASELINE)
    for seed in [seed for seed, best in base.items() if best is not None and seed in runs]:
        merged = {row["round"] for row in runs[seed]}
        base[seed] = max(row["test_accuracy"] for row in others[seed] if row["round"] in merged)
    return difference(mine, base)


def _merges(column: Column, held: Results | None, score: str) -> dict[int, Difference]:
    found = fewest_merges(column, held, score)
    if found is None:
        return {}
    rival, there = found
    mine = [name for name in _skipping(column) if name in there]
    return {_period(name): difference(there[name], there[rival]) for name in mine}


def _skipping(column: Column) -> list[str]:
    return [name for name in column.methods if name.startswith("FedSkip-")]


def _period(name: str) -> int:
    return int(name.rpartition("-")[2])


def _alone(column: Column, title: str) -> dict[int, tuple[str, str]]:
    """A method's names in a column with each period, and without skipping."""
    kin: dict[str, Method] = {name: m for name, m in column.methods.items() if m.title == title}
    [alone] = [name for name, method in kin.items() if method.period == 1]
    return {_period(name): (name, alone) for name, method in kin.items() if method.period != 1}
