"""Numbers within sentences, by name: `<!--=NAME-->12.3<!--/-->` on a page is one of these.

Those of the paper's columns are called KIND:COLUMN:METHOD, as `gain:table2/cifar10-beta0.5:FedSkip-3`. Kinds
are `best`, `last` and `tail` (with their spread over seeds), `gain` (in tail, over FedAvg), `diverged` (runs,
of how many), `broke` (in which rounds), `jump` (the largest drift), `paper` and `method` (its name). METHOD
may be `strongest` or `strongest-skipping`, whoever that is: the highest tail over the seeds that all have.
`poison:SETTING:METHOD` is of poison.py, `audit:METHOD` of audit.py. All others have names of their own.
"""

from collections.abc import Callable, Iterable
from statistics import fmean, median

from poison import poisoned
from theory import lines, seconds

from audit import audited
from fedskip.paper.beside import SHOWN, gain, published, scores
from fedskip.paper.columns import Column, columns, settings
from fedskip.paper.compose import skipping
from fedskip.paper.strongest import strongest
from fedskip.records.table import Row, Table
from fedskip.report.results import Results

JUMP = 100  # times the median: what a drift has to be to be told


def value(name: str, kept: list[Results]) -> str:
    """The number that a page has under a name."""
    if name in OWN:
        return OWN[name](kept)
    kind, _, rest = name.partition(":")
    if kind == "audit":
        return audited(rest)
    if kind == "poison":
        return poisoned(rest, kept)
    place, _, method = rest.partition(":")
    column = settings()[place]
    runs = column.runs(kept)
    method = _found(method, runs)
    words = {score: key for key, score in SHOWN.items()}
    if kind == "method":
        return method
    if kind in words:
        return scores(runs[method], words[kind])
    if kind == "gain":
        return gain(runs[method], runs["FedAvg"], "mean_tail")
    if kind == "broke":
        return ", ".join(str(row["broke_round"]) for row in runs[method] if row["diverged"])
    if kind == "jump":
        results = column.results(kept)
        assert results is not None
        histories = results.histories(results.compared[0].name, method)
        return f"{max(row['drift_mean'] for run in histories for row in run):,.0f}"
    if kind == "diverged":
        return f"{sum(bool(row['diverged']) for row in runs[method])} of {len(runs[method])}"
    assert kind == "paper", name
    return published(column, method)


def _found(method: str, runs: dict[str, list[Row]]) -> str:
    """The method that is meant: `strongest` is whoever is."""
    among = {"strongest": runs, "strongest-skipping": skipping(runs)}
    return (strongest(among[method]) or "none") if method in among else method


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
    for run in sorted(
        results.histories(results.compared[0].name, "SCAFFOLD"), key=lambda run: run[0]["seed"]
    ):
        usual = median(run.column("drift_mean"))
        rounds = [row["round"] for row in run if row["drift_mean"] > JUMP * usual]
        if rounds:
            said.append(f"seed {run[0]['seed']} in {', '.join(map(str, rounds))}")
    return "; ".join(said)


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
    "scaffold-jumps": _jumps,
}
