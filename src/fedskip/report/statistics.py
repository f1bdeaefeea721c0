"""Is a method better, by how much, how sure is that, and with which values of a sweep? As DataFrames.

All methods of a seed share their split, partition, start and cohorts. So methods are compared seed by seed:
the paired difference varies less than the scores themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedskip.config.study import short_names
from fedskip.errors import InputError, require, unknown
from fedskip.records.folder import record_of
from fedskip.report import SCORES
from fedskip.report.results import LEVEL, Results, SettingInfo
from fedskip.rng import stream

if TYPE_CHECKING:
    import pandas as pd

ALL = "(all)"  # the name of all settings together in a table; no setting can have it
BETTER, WORSE, OPEN, BASELINE = "better", "worse", "no significant difference", "baseline"
ONE_SEED, NO_SEED = "one seed is not enough", "no seed in common"
RESAMPLES = 10_000
COMPARISON = (
    "setting", "method", "mean", "difference", "low", "high", "wins", "losses", "n", "rank", "verdict",
)  # fmt: skip
COSTS = ("rounds", "merges", "bytes")
# the way to choose a value of a sweep -> the test score that is reported for it
SCORE_OF = {"validation": "best_val", "test": "mean_tail"}


def over_seeds(results: Results) -> pd.DataFrame:
    """A row for each setting and method: means and standard deviations over its seeds, and its costs."""
    import pandas as pd

    further = {metric.column for one in results.settings for metric in one.metrics[1:]}
    scores = [*SCORES, "merged", *(name for name in results.summary if name in further)]
    runs = results.summary.copy()
    values = runs[scores].astype("float64").replace([math.inf, -math.inf], math.nan)
    runs[scores] = values.mask(runs["diverged"])
    groups = runs.groupby(["setting", "method"], sort=False)
    counts = {"seeds": groups.size(), "diverged": groups["diverged"].sum()}
    spread: dict[str, pd.Series] = {}
    for name in scores:
        spread |= {name: groups[name].mean(), f"{name}_std": groups[name].std()}
    costs = {name: groups[name].mean() for name in ("rounds", "merges", "bytes_total")}
    return pd.DataFrame(counts | spread | costs).reset_index()


# --- compared with a baseline ------------------------------------------------------------------------


def compare(
    results: Results,
    baseline: str | None = None,
    score: str = "mean_tail",
    level: float = LEVEL,
    *,
    bootstrap: bool = False,
) -> pd.DataFrame:
    """How every method differs from a baseline, seed by seed.

    A run that diverged has no score: it loses against one that did not. With several settings of one study, the
    last rows hold the wins, the losses and the mean rank over all of them.

    Args:
        baseline: a method, as in tables or as in a study file; FedAvg, or else the first, if None.
        score: the column of the summary that is compared.
        level: of the confidence intervals.
        bootstrap: intervals by resampling the seeds, not by Student's t.
    """
    import pandas as pd

    if score not in SCORES:
        raise unknown("score", score, SCORES)
    require("level", 0 < level < 1, "must be between 0 and 1", level, "0.95 is usual")
    baseline = results.find(results.baseline if baseline is None else baseline)
    tables = []
    for setting in results.compared:
        scores = score_table(results, setting, score)
        if baseline in scores:
            differences = paired_differences(scores, baseline, level, bootstrap=bootstrap)
            diverged = results.runs(setting.name).groupby("method")["diverged"].any()
            differences["verdict"] = [
                BASELINE if row.Index == baseline else _verdict(row, diverged[row.Index])
                for row in differences.itertuples()
            ]
            common = scores.dropna()  # seeds that all methods have
            ranks = common.rank(axis=1, ascending=not setting.metric.higher).mean()
            means = scores.where(np.isfinite(scores)).mean()
            tables.append(differences.assign(setting=setting.name, mean=means, rank=ranks))
    rows = pd.concat(tables)
    if rows["mean"].isna().all():
        raise InputError("score", "was not measured in this study", score)
    if len(results.compared) > 1 and not results.studies:
        how = {"wins": "sum", "losses": "sum", "n": "sum", "rank": "mean"}
        total = rows.groupby(level=0, sort=False).agg(how).assign(setting=ALL, verdict="")
        rows = pd.concat([rows, total])
    return _printed(results, rows.reset_index(names="method")[[*COMPARISON]])


def _printed(results: Results, frame: pd.DataFrame) -> pd.DataFrame:
    """The same numbers, printed with their units."""
    from fedskip.report.printed import Printed

    shown = Printed(frame)
    shown.attrs = {"percent": {one.name: one.metric.percent for one in results.compared}}
    return shown


def score_table(results: Results, setting: SettingInfo, score: str) -> pd.DataFrame:
    """Scores by seed and method. A run without a score counts as infinitely bad; NaN: there is no run."""
    runs = results.runs(setting.name)
    values = runs[score].astype("float64").where(~runs["diverged"])
    worst = -math.inf if setting.metric.higher else math.inf
    values = values.where(np.isfinite(values), worst)
    table = runs.assign(score=values).pivot(index="seed", columns="method", values="score")
    table.attrs["better"] = 1 if setting.metric.higher else -1
    return table[results.labels(setting.name)]


def paired_differences(
    scores: pd.DataFrame, baseline: str, level: float = LEVEL, *, bootstrap: bool = False
) -> pd.DataFrame:
    """How each method of a `score_table` differs from one of them, over the seeds that both have.

    Columns: the mean `difference` with its interval `low` to `high`, the seeds `n` with a score of both,
    `wins` and `losses`; `missing` seeds at which it has no score, and `unmatched`, at which only the
    baseline has none; `sign`: 1 if it is significantly better, -1 if it is worse.
    """
    import pandas as pd

    better, interval = scores.attrs["better"], bootstrap_interval if bootstrap else t_interval
    rows = {}
    for label in scores:
        both = scores[[label, baseline]].loc[:, [True, label != baseline]].dropna()
        one, other = both[label], both[baseline]
        with np.errstate(invalid="ignore"):
            apart = one - other  # infinite where only one has a score, NaN where none has
        values = apart[np.isfinite(apart)]
        low, high = interval(values, level)
        rows[label] = {
            "difference": values.mean(), "low": low, "high": high, "n": len(values),
            "wins": (better * apart > 0).sum(), "losses": (better * apart < 0).sum(),
            "missing": np.isinf(one).sum(), "unmatched": (np.isinf(other) & np.isfinite(one)).sum(),
            "sign": better * (int(low > 0) - int(high < 0)),
        }  # fmt: skip
    table = pd.DataFrame.from_dict(rows, orient="index")
    return table.astype(dict.fromkeys(("n", "wins", "losses", "missing", "unmatched"), "int64"))


def _verdict(row: Any, diverged: bool) -> str:
    """What a row of `paired_differences` says."""
    if row.missing:
        lacks = "diverged" if diverged else "has no score"
        return f"{lacks} at {row.missing} of {row.missing + row.n + row.unmatched} seeds"
    if row.n < 2:
        return ONE_SEED if row.n else NO_SEED
    return {1: BETTER, -1: WORSE, 0: OPEN}[row.sign]


def leaders(
    results: Results, setting: str, score: str = "mean_tail", level: float = LEVEL
) -> list[str]:
    """The methods that are not significantly different from the one with the best mean.

    With one seed this is the best alone. A method of which a run diverged, or which lacks seeds that
    others have, is not among them.
    """
    if score not in (*SCORES, "merged"):
        raise unknown("score", score, SCORES)
    by_name = {one.name: one for one in results.settings}
    if setting not in by_name:
        raise unknown("setting", setting, by_name)
    info = by_name[setting]
    scores = score_table(results, info, score)
    complete = scores.loc[:, np.isfinite(scores).all()]
    if complete.empty:
        return []
    means = complete.mean()
    best = means.idxmax() if info.metric.higher else means.idxmin()
    differences = paired_differences(complete, best, level)
    same = (means == means[best]) | ((differences["n"] > 1) & (differences["sign"] >= 0))
    return [str(label) for label in differences.index[same]]


def t_interval(values: Iterable[float], level: float = LEVEL) -> tuple[float, float]:
    """Student's interval of the mean, which assumes values that are about normal.

    >>> t_interval([1.0, 2.0, 3.0])  # 2 ± 4.303 / √3
    (-0.484..., 4.484...)
    """
    from scipy.special import stdtrit  # scipy.stats has it, too, and takes a second to import

    array = np.asarray([*values], dtype=float)
    n = len(array)
    if n < 2:
        return math.nan, math.nan
    half = stdtrit(n - 1, (1 + level) / 2) * array.std(ddof=1) / math.sqrt(n)
    return float(array.mean() - half), float(array.mean() + half)


def bootstrap_interval(values: Iterable[float], level: float = LEVEL) -> tuple[float, float]:
    """The percentile interval of the mean over resamples. It assumes no shape and wants many seeds."""
    array = np.asarray([*values], dtype=float)
    if len(array) < 2:
        return math.nan, math.nan
    drawn = stream("bootstrap").integers(0, len(array), (RESAMPLES, len(array)))
    low, high = np.quantile(array[drawn].mean(1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


# --- until a target is reached -----------------------------------------------------------------------


def time_to_target(
    results: Results, target: float | str | None = None, score: str = "best"
) -> pd.DataFrame:
    """Rounds, merges and bytes until a score is first reached, over the seeds that reach it.

    Args:
        target: a score, such as a test accuracy from 0 to 1; or a method, whose `score` at the same seed
            is the target; None: the setting's own `target`, or else the baseline.
        score: of the method that is the target.
    """
    import pandas as pd

    tables = []
    for setting in results.compared:
        own = setting.keys.get("target", results.baseline)
        if setting.by and not isinstance(own, str):  # it is of the headline
            own = results.baseline
        goal = own if target is None else target
        if isinstance(target, float | int) and setting.metric.percent:
            fix = "write 0.68 for 68 %"
            require("target", 0 <= target <= 1, "must be from 0 to 1", target, fix)
        goal = results.find(goal, "target") if isinstance(goal, str) else goal
        tables.append(_times(results, setting, goal, score))
    return _printed(results, pd.concat(tables, ignore_index=True))


def _times(results: Results, setting: SettingInfo, goal: float | str, score: str) -> pd.DataFrame:
    """A row for each method of a setting; `goal`: a score, or the label of a method."""
    import pandas as pd

    runs, history = results.runs(setting.name).set_index("run"), results.rows(setting.name)
    goals = results.scores(setting.name, goal, score) if isinstance(goal, str) else None
    runs["goal"] = runs["seed"].map(goals) if goals is not None else float(goal)
    values, aims = history["test_accuracy"], history["run"].map(runs["goal"]).astype("float64")
    there = history[values >= aims if setting.metric.higher else values <= aims]
    first = there.groupby("run")[["round", "merges", "bytes_down", "bytes_up"]].first()
    # a run counts if its history is here, or needs none: it diverged at once or never merged
    counted = runs.index.isin(history["run"]) | runs["diverged"] | (runs["merges"] == 0)
    costs = pd.DataFrame({"method": runs["method"], "counts": counted & runs["goal"].notna()})
    costs["rounds"], costs["merges"] = first["round"], first["merges"]
    costs["bytes"] = first["bytes_down"] + first["bytes_up"]
    groups = costs[costs["counts"]].groupby("method")
    table = {"seeds": groups.size(), "reached": groups["rounds"].count()}
    for name in COSTS:
        table |= {name: groups[name].mean(), f"{name}_std": groups[name].std()}
    rows = pd.DataFrame(table).reindex(results.labels(setting.name))
    rows = rows.fillna({"seeds": 0, "reached": 0}).astype({"seeds": "int64", "reached": "int64"})
    rows.insert(0, "target", pd.Series([goal] * len(rows), rows.index, dtype=object))
    rows.insert(0, "setting", setting.name)
    return rows.reset_index(names="method")[["setting", "method", *rows.columns[1:]]]


# --- the best values of a sweep ----------------------------------------------------------------------


class Sweep(NamedTuple):
    """The settings of one grid."""

    name: str  # of the setting as it was written
    keys: Sequence[str]  # dotted
    settings: Sequence[SettingInfo]

    @property
    def by(self) -> str:
        """Values are chosen on the validation split, if every setting has one, else on the test set."""
        return "validation" if all(one.keys.get("validation") for one in self.settings) else "test"

    def values(self, key: str) -> list[Any]:
        """The values of a key, each once."""
        values: list[Any] = []
        for setting in self.settings:
            value = value_at(setting.keys, key)
            values += [value] if value not in values else []
        return values

    def labels(self, results: Results) -> list[str]:
        return list(dict.fromkeys(m for one in self.settings for m in results.labels(one.name)))


def sweeps(results: Results) -> list[Sweep]:
    """The grids of a study."""
    grids: dict[tuple[str, ...], list[SettingInfo]] = {}
    for setting in results.compared:
        if swept := record_of(setting.keys).get("sweep"):
            grids.setdefault((swept["of"], *swept["keys"]), []).append(setting)
    return [Sweep(name, keys, settings) for (name, *keys), settings in grids.items()]


def find_sweep(
    results: Results, parameter: str | None, name: str | None
) -> tuple[Sweep, str] | None:
    """The sweep of that name and its key, dotted or only its last part; None: the key was not swept."""
    grids = sweeps(results)
    named = [sweep for sweep in grids if name in (None, sweep.name)]
    if name is not None and not named:
        raise unknown("sweep", name, [sweep.name for sweep in grids])
    for sweep in named:
        for key, short in short_names(sweep.keys).items():
            if parameter in (None, key, short):
                return sweep, key
    return None


def value_at(keys: Mapping[str, Any], path: str) -> Any:
    """The value of a dotted key; None where there is none."""
    value: Any = keys
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def best_setting(
    results: Results, sweep: Sweep, method: str, among: Sequence[SettingInfo] = ()
) -> tuple[SettingInfo, float] | None:
    """The best setting of a sweep for a method, and the mean score that it was chosen by.

    That is the best validation score of a run, or its test score. Settings in which a run diverged or is missing
    are left out.
    """
    scores: dict[str, pd.Series] = {}
    settings = {one.name: one for one in among or sweep.settings}
    for name, setting in settings.items():
        mine = results.scores(name, method, SCORE_OF[sweep.by])
        metric = setting.metric
        if sweep.by == "validation":
            metric = setting.metrics[0]
            validated = results.rows(name, method).groupby("seed")["val_accuracy"]
            best = validated.max() if metric.higher else validated.min()
            mine = best.reindex(mine.index).where(mine.notna())
        scores[name] = mine if metric.higher else -mine
    most = max(map(len, scores.values()), default=0)
    means = {
        name: float(mine.mean())
        for name, mine in scores.items()
        if len(mine) == most > 0 and mine.notna().all()
    }
    if not means:
        return None
    name = max(means, key=means.__getitem__)
    return settings[name], means[name] if metric.higher else -means[name]


def best_values(results: Results) -> pd.DataFrame:
    """A row for each sweep and method: the best values, and their test score over seeds."""
    import pandas as pd

    grids = sweeps(results)
    keys = list(dict.fromkeys(key for sweep in grids for key in sweep.keys))
    rows = []
    for sweep in grids:
        for label in sweep.labels(results):
            best = best_setting(results, sweep, label)
            setting, chosen_by = best or (None, math.nan)
            name = setting.name if setting else None
            row: dict[str, Any] = {"sweep": sweep.name, "method": label, "setting": name}
            for key in keys:
                row[key] = value_at(setting.keys, key) if setting and key in sweep.keys else None
            row |= {"by": sweep.by, "settings": len(sweep.settings), "chosen_by": chosen_by}
            scores = results.scores(name or "", label, SCORE_OF[sweep.by])
            row |= {"seeds": len(scores), "score": scores.mean(), "score_std": scores.std()}
            rows.append(row)
    table = pd.DataFrame(rows, dtype=object)  # values stay as they were written: 4 is not 4.0
    numbers = dict.fromkeys(("chosen_by", "score", "score_std"), float) if rows else {}
    return table.astype(numbers)
