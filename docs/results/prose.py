"""Numbers within sentences, by name: `<!--=NAME-->12.3<!--/-->` on a page is one of these.

Those of the paper's columns are called KIND:COLUMN:METHOD, as `gain:table2/cifar10-beta0.5:FedSkip-3`:

- `best`, `last`, `tail`: with their spread over seeds; `full`: the last model on all test samples, where the
  others are on some; `val`: in the round with the best validation; `gain`, `gain-best`, `gain-last`,
  `gain-full`, `gain-val`: over FedAvg, where `gain` is in tail; `each`, `each-best`, `each-last`: the same
  seed by seed
- `over`, `over-best`, `over-last` with METHOD:OTHER: the same over another method
- `early-N`: the accuracy at the last merge up to round N, less FedAvg's
- `alone`, `alone-best`, `alone-last` and `each-alone`: the same over the method itself without skipping
- `trough`: the round in which its last merge is furthest behind FedAvg's
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
- `merges-best`, `merges-last`: seed by seed, until FedAvg's best or its last; `fewer-best`, `fewer-last`:
  less those of the rival that needs the fewest
- `paper`, `paper-gain`: what the paper has; `method`: its name

METHOD is written without spaces. It may be `strongest` or `strongest-skipping`, whoever that is: the
highest tail over the seeds that all have; with `-best` behind it, the highest best.

Others are called KIND:COLUMN:

- `from`: its folders; `tested`: samples; `paper-gains`: the paper's, over all periods of FedSkip;
  `gains-full`: ours, of the last models on all test samples
- `broke-size`, `broke-classes`, `broke-largest`: of the clients at which runs diverged

`travels:DATA:SCORE` and `cycle:DATA` are of Table I, `rule:SIGMOID:EPOCH` of benchmarks/sigmoid.py,
`poison:SETTING:METHOD` of poison.py, `audit:METHOD`, `audit-seeds:...` and `audit-told:...` of audit.py,
`quick:METHOD` of quickstart.py, `bench:COMMAND` and `pfl:WHO` of speed.py, `nova:COLUMN:WHAT` of nova.py,
`sizes:DATA:CLIENTS` of clients/partitions.csv, `above:WHAT:COLUMN` and `below:WHAT:COLUMN` of verdicts.py,
`visit:FILE:METHOD:...`, `single:CLIENTS:BETA`, `after:FILE:...` and `huge:FILE:...` of visits.py. All others
have names of their own, below.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, median

import verdicts
from evidence import FALL, early, fewest_merges, histories, merges, plain, points
from files import BENCHMARKS, lines
from poison import poisoned
from quickstart import centralised, gained
from runs import sources
from speed import measured, peer
from theory import seconds

from audit import SEEDS, audited, error, told
from fedskip.paper.beside import (
    METRIC,
    SCORES,
    SKIPPING,
    gain,
    published,
    published_gain,
    scores,
    shown_gain,
)
from fedskip.paper.claims import slot_scores
from fedskip.paper.columns import BASELINE, Column, columns, settings
from fedskip.paper.compose import skipping
from fedskip.paper.strongest import strongest
from fedskip.records.table import Row, Table
from fedskip.report import units
from fedskip.report.results import Results
from fedskip.report.statistics import difference
from nova import summed
from visits import after_one, after_single, counted, looked_at

PEERS, SIGMOID = (f"{BENCHMARKS}/{name}" for name in ("peers", "sigmoid"))
LATE = 100  # rounds after which a method should have its level
JUMP = 100  # times the median: what a drift has to be to be told


def value(name: str, kept: list[Results]) -> str:
    """The number that a page has under a name."""
    if name in OWN:
        return OWN[name](kept)
    kind, _, rest = name.partition(":")
    if kind in ELSEWHERE:
        return ELSEWHERE[kind](rest, kept)
    place, _, method = rest.partition(":")
    column = settings()[place]
    return _of_column(kind, column, kept) if not method else _of_method(kind, column, method, kept)


def _of_column(kind: str, column: Column, kept: list[Results]) -> str:
    """A number of a whole column."""
    if kind == "from":
        return sources(f"{column.table}/{column.name}", kept) or "none yet"
    if kind == "paper-gains":
        found = [column.published[name] for name in SKIPPING]
        base = column.published["FedAvg"]
        return _span(score - base for score in found if score is not None and base is not None)
    if kind == "gains-full":
        runs = column.runs(kept)
        return _span(
            gap
            for name in SKIPPING
            for gap in _gaps(runs[name], runs[BASELINE], "full_test")
            if gap is not None
        )
    if kind == "tested":
        about = [setting for part in column.parts(kept) for setting in part.settings]
        return _range((facts["test"] for one in about for facts in one.divisions.values()), ",")
    key, form = {
        "broke-size": ("size", ",.0f"), "broke-classes": ("classes", ".0f"),
        "broke-largest": ("largest_class", ".0%"),
    }[kind]  # fmt: skip
    mine = [line for line in lines("diverged/diverged") if line["setting"] == f"{column.table}/{column.name}"]
    return _range((float(line[key]) for line in mine), form)


def _of_method(kind: str, column: Column, method: str, kept: list[Results]) -> str:
    """A number of a method in a column."""
    runs = column.runs(kept)
    method, other = (_found(name, runs) for name in method.partition(":")[::2])
    what, _, score = kind.partition("-")
    words = SCORES | {"full": "full_test", "val": "best_val"}
    if kind == "method":
        return method
    if kind in words:
        return scores(runs[method], words[kind])
    if what in ("gain", "alone", "over"):
        base = {"gain": lambda: BASELINE, "alone": lambda: _alone(column, method), "over": lambda: other}[
            what
        ]()
        return gain(runs[method], runs[base], words[score or "tail"])
    if what == "early":
        held = column.results(kept)
        return points(difference(*(early(held, name, int(score)) for name in (method, BASELINE))))
    if kind == "trough":
        return _trough(column.results(kept), method, column.rounds)
    if what == "each":
        base, score = (_alone(column, method), "tail") if score == "alone" else (BASELINE, score or "tail")
        gaps = _gaps(runs[method], runs[base], words[score])
        return ", ".join(units.NONE if gap is None else units.difference(gap, METRIC) for gap in gaps)
    if kind == "again":
        return _again(column, method, kept)
    if what == "falls":
        rounds = _falls(column, method, kept)
        return str(max(rounds) if score else len(rounds))
    if what == "merges":
        needed = merges(column.results(kept), method, score).values()
        return ", ".join(units.NONE if n is None else f"{n:.0f}" for n in needed)
    if what == "fewer":
        return _fewer(column, method, score, kept)
    if kind == "slots":
        held = column.results(kept)
        assert held is not None
        return shown_gain(difference(slot_scores(held, method), slot_scores(held, BASELINE)))
    if kind == "slots-more":
        return _more_in_slots(column, method, kept)
    if what == "low":
        rows = [
            row
            for run in histories(column.results(kept), method).values()
            for row in run
            if row["round"] > LATE
        ]
        lowest = min(rows, key=lambda row: row["test_accuracy"])
        return str(lowest["round"]) if score else f"{100 * lowest['test_accuracy']:.0f}"
    if what in ("merged", "losses"):
        first = next(iter(histories(column.results(kept), method).values()))
        key, unit = ("test_accuracy", 100) if what == "merged" else ("train_loss", 1)
        return ", ".join(f"{unit * row[key]:.2f}" for row in first[: int(score)])
    if kind == "reached":
        return ", ".join(f"{100 * row['best']:.2f}" for row in runs[method])
    if kind == "reached-round":
        return ", ".join(str(row["best_round"]) for row in runs[method])
    if kind == "broke":
        return ", ".join(str(row["broke_round"]) for row in runs[method] if row["diverged"])
    if what == "jump":
        runs_of = histories(_trained(column, method, kept), method).values()
        return _drift([row for run in runs_of for row in run], "jumps", score)
    if what in ("jumps", "first"):
        known = histories(_trained(column, method, kept), method)
        return ", ".join(_drift(known.get(row["seed"]), what, score) for row in runs[method])
    if kind == "chance":
        return f"{sum(map(column.at_chance, runs[method]))} of {len(runs[method])}"
    if kind == "diverged":
        return f"{sum(bool(row['diverged']) for row in runs[method])} of {len(runs[method])}"
    if kind == "paper-gain":
        return published_gain(column, method)
    assert kind == "paper", kind
    return published(column, method)


def _trained(column: Column, method: str, kept: list[Results]) -> Results | None:
    """A column's histories; where the method was trained for fewer rounds than others, its own."""
    held = column.results(kept)
    if held is not None and method in held.labels():
        return held
    return column.results(
        [one for one in kept if any(method in part.labels() for part in column.parts([one]))]
    )


def _trough(held: Results | None, method: str, rounds: int) -> str:
    """The round in which its last merge is furthest behind FedAvg's, by the mean over seeds."""
    gaps = {
        round: difference(early(held, method, round), early(held, BASELINE, round)).mean
        for round in range(1, rounds + 1)
    }
    return str(min((gap, round) for round, gap in gaps.items() if gap is not None)[1])


def _found(method: str, runs: dict[str, list[Row]]) -> str:
    """The method that is meant: `strongest` is whoever is."""
    among = {"strongest": None, "strongest-skipping": skipping(runs)}
    who, by = method.removesuffix("-best"), "best" if method.endswith("-best") else "mean_tail"
    if who in among:
        return strongest(runs, by, among[who]) or "none"
    return next((name for name in runs if name.replace(" ", "") == method), method)


def _alone(column: Column, method: str) -> str:
    """The same method without skipping."""
    names = {one: name for name, one in column.methods.items()}
    return names[replace(column.methods[method], period=1)]


def _again(column: Column, method: str, kept: list[Results]) -> str:
    """By how much the tails of a seed differ, in points, among folders that all have a run of it."""
    found: dict[int, list[float]] = {}
    for part in column.parts(kept):
        for row in part.summary.where(method=method, diverged=False):
            found.setdefault(row["seed"], []).append(100 * row["mean_tail"])
    return _range((max(tails) - min(tails) for tails in found.values() if len(tails) > 1), ".2f")


def _more_in_slots(column: Column, method: str, kept: list[Results]) -> str:
    """By how much single slots gain more over FedAvg's than the merged model does, paired by seed."""
    held, runs = column.results(kept), column.runs(kept)
    assert held is not None

    def above(name: str) -> dict[int, float | None]:
        """Slots less the merged model, by seed."""
        slots, merged = slot_scores(held, name), {row["seed"]: row["mean_tail"] for row in runs[name]}
        both = {seed: (slot, merged[seed]) for seed, slot in slots.items()}
        return {seed: None if None in pair else pair[0] - pair[1] for seed, pair in both.items()}

    return shown_gain(difference(above(method), above(BASELINE)))


def _drift(run: Sequence[Row] | None, what: str, score: str) -> str:
    """The largest drift of some rows (`jumps`), or the first, or its round; where nothing merged a dash."""
    if run is None:
        return units.NONE
    row = max(run, key=lambda row: row["drift_mean"]) if what == "jumps" else run[0]
    return str(row["round"]) if score == "round" else f"{row['drift_mean']:,.0f}"


def _falls(column: Column, method: str, kept: list[Results]) -> list[int]:
    """The rounds in which accuracy is far below what it was at the merge before, over all seeds."""
    runs = histories(column.results(kept), method).values()
    return [
        now["round"]
        for run in runs
        for before, now in pairwise(run)
        if before["test_accuracy"] - now["test_accuracy"] > FALL
    ]


def _fewer(column: Column, method: str, score: str, kept: list[Results]) -> str:
    """Merges until FedAvg's best or last, less those of the rival that needs the fewest."""
    found = fewest_merges(column, column.results(kept), score)
    assert found is not None
    rival, there = found
    return plain(difference(there[method], there[rival]), 0)


def _gaps(runs: list[Row], base: list[Row], score: str) -> list[float | None]:
    """What runs gain over others, seed by seed; None where one of the two diverged."""
    known = {row["seed"]: row for row in base}
    return [
        None if row["diverged"] or known[row["seed"]]["diverged"] else row[score] - known[row["seed"]][score]
        for row in runs
    ]


def _span(values: Iterable[float]) -> str:
    found = list(values)
    return f"{units.difference(min(found), METRIC)} to {units.difference(max(found), METRIC)}"


def _range(values: Iterable[float], form: str) -> str:
    found = list(values)
    return f"{min(found):{form}} to {max(found):{form}}"


def _saved(period: int) -> str:
    """What a period saves the server, in per cent of FedAvg's time, over models and slots."""
    found, shares = lines("complexity/rounds"), []
    for line in found:
        if line["period"] == "1":
            base = float(line["seconds"])
        if line["period"] == str(period):
            shares.append(-100 * float(line["difference"]) / base)
    return _range(shares, ".0f")


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
