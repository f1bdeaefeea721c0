"""The lines of a setting, as figures and the page draw them: one for each method.

A line is the mean over seeds, in a band from the lowest seed to the highest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from fedskip.input.errors import unknown
from fedskip.records.table import Table
from fedskip.report.recorded import About, Recorded
from fedskip.report.series import Band, band, limits

# what is drawn -> its name on an axis, and whether that axis is logarithmic
SHOWN = {
    "test_accuracy": ("test {metric}", False),
    "test_loss": ("test loss", False),
    "train_loss": ("training loss", False),
    "drift_mean": ("drift of the slots from their mean", True),
    "drift_broadcast": ("drift of the slots from the model sent out", True),
    "slot_accuracy": ("test {metric} of single slots", False),
}
SCORES = ("test_accuracy", "slot_accuracy")
NAMES = {"round": "round", "merges": "merges", "bytes": "sent, both ways (MB)"}
TANGLE = 100  # evaluations of a run from which on lines are smoothed
POINTS = 300  # of a smoothed line


@dataclass(frozen=True)
class Curves:
    """All that a figure of lines shows."""

    name: str  # of y, with its unit
    lines: Mapping[str, Band]  # by method
    references: Mapping[str, float]  # scores to draw a line at
    logarithmic: bool
    limits: tuple[float, float] | None  # of y, where a line would flatten the others
    banded: bool  # whether there are several seeds
    notes: Sequence[str]


def curves(results: Recorded, about: About, y: str, smooth: int | None = None) -> Curves:
    """The lines of a setting.

    `smooth`: the rounds over which a running mean is taken; None: none, or a fiftieth of the rounds where a
    run has 100 evaluations and more.
    """
    shown_as = shown(about)
    if y not in shown_as:
        raise unknown("y", y, shown_as)
    name, logarithmic = shown_as[y]
    further = {metric.column: metric for metric in about.metrics[1:]}
    metric = about.metric if y in SCORES else further.get(y)
    share = 1.0 if metric is None else metric.factor
    window = _window(results, about) if smooth is None else smooth
    lines: dict[str, Band] = {}
    lost: list[str] = []
    for label in results.labels(about.name):
        found = band(_whole(results, about, label, lost), y, window).times(share)
        if len(found.mean):
            lines[label] = found.thinned(POINTS) if window else found
    wild, kept = ([], None) if metric else limits({k: v.mean for k, v in lines.items()}, logarithmic)
    seeds = sorted(set(results.summary.where(setting=about.name).column("seed")))
    notes = [f"mean of {len(seeds)} seeds, band: lowest to highest" if len(seeds) > 1 else f"seed {seeds[0]}"]
    notes += about.marks
    notes += [] if results.finished else ["not finished"]
    notes += [f"without runs that diverged: {', '.join(lost)}"] if lost else []
    ended = any(results.summary.where(setting=about.name).column("ended"))
    notes += ["a line ends where the first of its runs was ended"] if ended else []
    notes += [f"{', '.join(wild)} leave{'s' if len(wild) == 1 else ''} the picture"] if wild else []
    notes += [f"smoothed over {window} rounds"] if window else []
    positive = any((line.mean > 0).any() for line in lines.values())
    return Curves(
        name + " (%)" * (share > 1), lines,
        _references(results, about, share) if y == "test_accuracy" else {},
        logarithmic and positive, kept, len(seeds) > 1, notes,
    )  # fmt: skip


def shown(about: About) -> dict[str, tuple[str, bool]]:
    """What there may be to draw of a setting: its name on an axis, and whether that is logarithmic."""
    found = {y: (name.format(metric=about.metric.words), log) for y, (name, log) in SHOWN.items()}
    further = {metric.column: (f"test {metric.words}", False) for metric in about.metrics[1:]}
    return found | ({} if about.by else further)


def _whole(results: Recorded, about: About, label: str, lost: list[str]) -> list[Table]:
    """The histories of the runs that did not diverge, or of all if all did; notes in `lost` how many."""
    runs = results.summary.where(setting=about.name, method=label)
    wild = {run["run"] for run in runs if run["diverged"]}
    histories = results.histories(about.name, label)
    if not wild or len(wild) == len(runs):
        return histories
    lost.append(f"{label} ({len(wild)} of {len(runs)})")
    return [rows for rows in histories if rows[0]["run"] not in wild]


def _window(results: Recorded, about: About) -> int:
    labels = results.labels(about.name)
    most = max((len(run) for label in labels for run in results.histories(about.name, label)), default=0)
    return max(2, about.rounds // 50) if most >= TANGLE else 0


def _references(results: Recorded, about: About, share: float) -> dict[str, float]:
    """What the references with the same data and metric came to."""
    found = {}
    for one in results.settings:
        alike = one.metric == about.metric and one.keys.get("data") == about.keys.get("data")
        for label in results.labels(one.name) if one.reference and alike else ():
            known = [v for v in results.scores(one.name, label, "last").values() if v is not None]
            if known:
                found[one.name] = share * fmean(known)
    return found
