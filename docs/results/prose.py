"""Numbers within sentences, by name: `<!--=NAME-->12.3<!--/-->` on a page is one of these.

- KIND:COLUMN:METHOD, as `gain:table2/cifar10-beta0.5:FedSkip-5`: of entries.py
- `above:WHAT:COLUMN`, `below:WHAT:COLUMN`: of verdicts.py
- `from:COLUMN`: its folders; `tested:COLUMN`: its test samples; `paper-gains:COLUMN`: the paper's, over all
  periods of FedSkip; `broke-size:COLUMN`, `broke-classes:COLUMN`: of the clients at which runs diverged
- `travels:DATA:SCORE` and `cycle:DATA` are of Table I, `rule:SIGMOID:EPOCH` of benchmarks/sigmoid.py,
  `poison:SETTING:METHOD` of poison.py, `audit:METHOD`, `audit-seeds:...` and `audit-told:...` of audit.py,
  `quick:METHOD` of quickstart.py, `bench:COMMAND` and `pfl:WHO` of speed.py, `nova:COLUMN:WHAT` of nova.py,
  `sizes:DATA:CLIENTS` of clients/partitions.csv, `visit:FILE:METHOD:...`, `single:CLIENTS:BETA`,
  `after:FILE:...` and `huge:FILE:...` of visits.py

All others have names of their own, below.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from statistics import fmean, median

import entries
import verdicts
from evidence import histories
from files import BENCHMARKS, Line, lines
from poison import poisoned
from quickstart import centralised, gained
from runs import sources
from speed import measured, peer
from theory import seconds

from audit import SEEDS, audited, error, told
from fedskip.paper.beside import METRIC, SKIPPING, shown_gain
from fedskip.paper.columns import Column, columns, settings
from fedskip.records.table import Table
from fedskip.report import units
from fedskip.report.results import Results
from fedskip.report.statistics import difference
from nova import summed
from visits import after_one, after_single, counted, looked_at

PEERS, SIGMOID = (f"{BENCHMARKS}/{name}" for name in ("peers", "sigmoid"))
JUMP = 100  # times the median: what a drift has to be to be told
WORST = "perceptron", "10"  # the model and its slots of which the server's time is predicted worst


def value(name: str, kept: list[Results]) -> str:
    """The number that a page has under a name."""
    if name in OWN:
        return OWN[name](kept)
    kind, _, rest = name.partition(":")
    if kind in ELSEWHERE:
        return ELSEWHERE[kind](rest, kept)
    place, _, method = rest.partition(":")
    column = settings()[place]
    if kind in OF_COLUMN:
        return OF_COLUMN[kind](column, kept)
    kind, _, detail = kind.partition("-")
    return entries.KINDS[kind](entries.entry(column, method, detail, kept))


def _from(column: Column, kept: list[Results]) -> str:
    return sources(f"{column.table}/{column.name}", kept) or "none yet"


def _tested(column: Column, kept: list[Results]) -> str:
    about = [setting for part in column.parts(kept) for setting in part.settings]
    return _range((facts["test"] for one in about for facts in one.divisions.values()), ",")


def _paper_gains(column: Column, _: list[Results]) -> str:
    base = column.published["FedAvg"]
    found = [score - base for name in SKIPPING if (score := column.published[name]) is not None and base]
    return f"{units.difference(min(found), METRIC)} to {units.difference(max(found), METRIC)}"


def _broke(column: Column, key: str) -> str:
    """Of the clients at which the runs of a column diverged."""
    mine = [line for line in lines("diverged/diverged") if line["setting"] == f"{column.table}/{column.name}"]
    return _range((float(line[key]) for line in mine), ",.0f")


def _range(values: Iterable[float], form: str) -> str:
    found = list(values)
    return f"{min(found):{form}} to {max(found):{form}}"


def _saved(period: int) -> str:
    """What a period saves the server, in per cent of FedAvg's time, over models and slots."""
    return _range([saved for line, saved, _ in _savings() if line["period"] == str(period)], ".0f")


def _missed(place: tuple[str, str], inside: bool) -> str:
    """How far the prediction is off, in points of FedAvg's time, at a place, or at most at all others."""
    off = [
        abs(saved - predicted)
        for line, saved, predicted in _savings()
        if ((line["model"], line["slots"]) == place) is inside
    ]
    return _range(off, ".0f") if inside else f"{max(off):.0f}"


def _savings() -> Iterator[tuple[Line, float, float]]:
    """What each period saves the server, and what it should, in per cent of FedAvg's time."""
    for line in lines("complexity/rounds"):
        if line["period"] == "1":
            base = float(line["seconds"])
        else:
            saved, predicted = (-100 * float(line[name]) / base for name in ("difference", "predicted"))
            yield line, saved, predicted


def _rates(kind: str, key: str, digits: int) -> str:
    """What `rates.csv` has of a kind of rates; all periods agree to so many digits."""
    [found] = {f"{float(line[key]):.{digits}f}" for line in lines("theorem1/rates") if line["rates"] == kind}
    return found


def _resnet(part: str) -> str:
    return next(
        seconds(float(line[part])) for line in lines("complexity/server") if line["model"] == "resnet50"
    )


def _feddyn(kept: list[Results], place: str, number: Callable[[Table], float], digits: int) -> str:
    """A number of FedDyn's histories, mean over seeds."""
    column: Column = columns()[place]
    results = column.results(kept)
    assert results is not None
    runs = results.histories(results.compared[0].name, "FedDyn")
    return f"{fmean(map(number, runs)):.{digits}f}"


def _jumps(kept: list[Results]) -> str:
    """The rounds in which SCAFFOLD's drift jumps on FEMNIST, seed by seed."""
    results = columns()["table3/femnist"].results(kept)
    assert results is not None
    said = []
    for seed, run in histories(results, "SCAFFOLD").items():
        usual = median(run.column("drift_mean"))
        rounds = [row["round"] for row in run if row["drift_mean"] > JUMP * usual]
        if rounds:
            said.append(f"seed {seed} in {', '.join(map(str, rounds))}")
    return "; ".join(said)


def _travels(name: str, kept: list[Results]) -> str:
    """What the travelling model of Table I gains over those that stay at home: DATA:SCORE, or DATA:paper."""
    data, score = name.split(":")
    away, home = (columns()[f"table1/{data}-{who}"] for who in ("cross", "local"))
    if score == "paper":
        one, other = (column.published["FedAvg-unmerged"] for column in (away, home))
        assert one is not None
        assert other is not None
        return units.difference(one - other, METRIC)
    found = [
        {row["seed"]: row[score] for row in column.runs(kept)["FedAvg-unmerged"]} for column in (away, home)
    ]
    return shown_gain(difference(*found))


def _cycle(data: str, kept: list[Results]) -> str:
    """What the travelling model of Table I has over its last cycle: as many visits as there are clients."""
    column = columns()[f"table1/{data}-cross"]
    runs = histories(column.results(kept), "FedAvg-unmerged").values()
    ends = [run[-column.draft.keys["clients"] :] for run in runs]
    return units.scores([fmean(row["test_accuracy"] for row in end) for end in ends], METRIC)


def _from_the_rule(name: str) -> str:
    """What training makes of the rule behind SYNTHETIC's labels, with the sigmoid (`True`) or without."""
    sigmoid, epoch = name.split(":")
    found = [
        float(line["test_accuracy"])
        for line in lines(SIGMOID)
        if (line["start"], line["sigmoid"], line["epoch"]) == ("rule", sigmoid, epoch)
    ]
    return units.scores(found, METRIC)


def _turns(kept: list[Results]) -> str:
    """By how much the travelling model's accuracy changes from visit to visit: the median, in points."""
    runs = histories(columns()["table1/cifar10-cross"].results(kept), "FedAvg-unmerged").values()
    steps = [
        abs(now["test_accuracy"] - before["test_accuracy"]) for run in runs for before, now in pairwise(run)
    ]
    return f"{100 * median(steps):.0f}"


def _peers(busy: bool) -> str:
    """How many times Flower's rounds per second, on the least busy machine, or on the others."""
    found = sorted(lines(PEERS), key=lambda line: float(line["load"]))
    ratios = [float(line["ratio"]) for line in found]
    return _range(ratios[1:], ".0f") if busy else f"{ratios[0]:.0f}"


def _sizes(name: str) -> str:
    """The samples of the smallest and the largest client in all partitions DATA:CLIENTS of the runs."""
    data, clients = name.split(":")
    mine = [
        line for line in lines("clients/partitions") if (line["data"], line["clients"]) == (data, clients)
    ]
    return _range((float(line[key]) for line in mine for key in ("smallest", "largest")), ",.0f")


OF_COLUMN: dict[str, Callable[[Column, list[Results]], str]] = {
    "from": _from,
    "tested": _tested,
    "paper-gains": _paper_gains,
    "broke-size": lambda column, _: _broke(column, "size"),
    "broke-classes": lambda column, _: _broke(column, "classes"),
}
ELSEWHERE: dict[str, Callable[[str, list[Results]], str]] = {
    "audit": lambda name, _: audited(name),
    "audit-seeds": lambda name, _: audited(name, SEEDS),
    "audit-told": lambda name, _: told(name),
    "bench": lambda name, _: measured(name),
    "nova": summed,
    "pfl": lambda name, _: peer(name),
    "poison": poisoned,
    "quick": lambda method, _: gained(method),
    "cycle": _cycle,
    "rule": lambda name, _: _from_the_rule(name),
    "travels": _travels,
    "above": verdicts.above,
    "below": verdicts.below,
    "sizes": lambda name, _: _sizes(name),
    "single": lambda name, _: counted(name),
    "after": lambda name, _: after_one(name, huge=False),
    "huge": lambda name, _: after_one(name, huge=True),
    "visit": lambda name, _: looked_at(name),
}
OWN: dict[str, Callable[[list[Results]], str]] = {
    "saved-3": lambda _: _saved(3),
    "saved-10": lambda _: _saved(10),
    "missed": lambda _: _missed(WORST, inside=False),
    "missed-worst": lambda _: _missed(WORST, inside=True),
    "largest-distance": lambda _: _rates("largest", "distance", 3),
    "largest-bound": lambda _: _rates("largest", "printed_bound", 2),
    "tiny-distance": lambda _: _rates("tiny", "distance", 3),
    "tiny-bound": lambda _: _rates("tiny", "printed_bound", 3),
    "fixed-halved": lambda _: "{:.2f}".format(
        min(
            float(line["share_corrected"])
            for line in lines("theorem1/lemma")
            if (line["routes"], line["rates"]) == ("fixed", "halved")
        )
    ),
    "unweighted": lambda _: f"{float(lines('theorem1/weighting')[0]['to_uniform_exact']):.2f}",
    "turns": lambda _: lines("complexity/about")[0]["turns"],
    "same-client": lambda _: _range(
        (float(line["ratio"]) for line in lines("complexity/clients") if line["method"] == "FedSkip-5"), ".2f"
    ),
    "merge-over-move": lambda _: _range(
        (float(line["merge"]) / float(line["move"]) for line in lines("complexity/server")), ".0f"
    ),
    "resnet50-average": lambda _: _resnet("average"),
    "resnet50-move": lambda _: _resnet("move"),
    "feddyn-iid-drift": lambda kept: _feddyn(
        kept, "table2/cifar10-iid", lambda run: run[0]["drift_broadcast"] / run[0]["drift_mean"], 1
    ),
    "feddyn-beta0.5-drift": lambda kept: _feddyn(
        kept, "table2/cifar10-beta0.5", lambda run: run[0]["drift_broadcast"] / run[0]["drift_mean"], 1
    ),
    "feddyn-iid-round-2": lambda kept: _feddyn(
        kept, "table2/cifar10-iid", lambda run: 100 * run[1]["test_accuracy"], 0
    ),
    "feddyn-iid-round-3": lambda kept: _feddyn(
        kept, "table2/cifar10-iid", lambda run: 100 * run[2]["test_accuracy"], 0
    ),
    "scaffold-jumps": _jumps,
    "after-single": lambda _: after_single(),
    "after-single-once": lambda _: after_single(once=True),
    "centralised": lambda _: centralised(),
    "travel-turns": _turns,
    "audit-error": lambda _: error(),
    "peers-idle": lambda _: _peers(busy=False),
    "peers-busy": lambda _: _peers(busy=True),
}
