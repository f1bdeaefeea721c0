"""Hyper-parameter sweeps: the settings of a grid, and the best values of every method."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedskip.config.study import short_names, value_text
from fedskip.errors import unknown
from fedskip.records.folder import record_of
from fedskip.report import units
from fedskip.report.results import Results, SettingInfo

if TYPE_CHECKING:
    import pandas as pd

# the way to choose a value -> the test score that is reported for it
SCORES = {"validation": "best_val", "test": "mean_tail"}


@dataclass(frozen=True)
class Sweep:
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

    def key(self, name: str) -> str | None:
        """The key of that name, dotted or only its last part."""
        names = short_names(self.keys).items()
        return next((key for key, short in names if name in (key, short)), None)

    def labels(self, results: Results) -> list[str]:
        return list(dict.fromkeys(m for one in self.settings for m in results.labels(one.name)))

    @property
    def better(self) -> Callable[..., Any]:
        """`max` or `min`, for the score that values are chosen by."""
        setting = self.settings[0]
        metric = setting.metrics[0] if self.by == "validation" else setting.metric
        return max if metric.higher else min


def sweeps(results: Results) -> list[Sweep]:
    """The grids of a study."""
    grids: dict[tuple[str, ...], list[SettingInfo]] = {}
    for setting in results.compared:
        if swept := record_of(setting.keys).get("sweep"):
            grids.setdefault((swept["of"], *swept["keys"]), []).append(setting)
    return [Sweep(name, keys, settings) for (name, *keys), settings in grids.items()]


def value_at(keys: Mapping[str, Any], path: str) -> Any:
    """The value of a dotted key; None where there is none."""
    value: Any = keys
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def best_setting(
    results: Results, sweep: Sweep, method: str, among: Sequence[SettingInfo] | None = None
) -> tuple[SettingInfo, float] | None:
    """The best setting of a sweep for a method, and the mean score that it was chosen by.

    Settings in which a run diverged or is missing are left out.
    """
    settings = {one.name: one for one in among or sweep.settings}
    scores = {name: _chosen_by(results, one, method, sweep.by) for name, one in settings.items()}
    most = max(map(len, scores.values()), default=0)
    means = {
        name: float(mine.mean())
        for name, mine in scores.items()
        if len(mine) == most > 0 and mine.notna().all()
    }
    if not means:
        return None
    name = sweep.better(means, key=means.__getitem__)
    return settings[name], means[name]


def _chosen_by(results: Results, setting: SettingInfo, method: str, by: str) -> pd.Series:
    """The scores that a setting is chosen by, by seed: the best validation score, or the test score."""
    scores = results.scores(setting.name, method, SCORES[by])
    if by == "test":
        return scores
    validated = results.rows(setting.name, method).groupby("seed")["val_accuracy"]
    best = validated.max() if setting.metrics[0].higher else validated.min()
    return best.reindex(scores.index).where(scores.notna())


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
            scores = results.scores(name or "", label, SCORES[sweep.by])
            row |= {"seeds": len(scores), "score": scores.mean(), "score_std": scores.std()}
            rows.append(row)
    columns = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
    return pd.DataFrame(
        {  # values stay as they were written: 4 does not become 4.0
            name: pd.Series(values, dtype=object if name in keys else None)
            for name, values in columns.items()
        }
    )


def in_sentences(results: Results) -> list[str]:
    """For each sweep, the best values of every method, and where the grid may be too narrow."""
    sentences = []
    for sweep in sweeps(results):
        rows = results.chosen[results.chosen["sweep"] == sweep.name]
        rows = rows[rows["setting"].notna()].to_dict("records")
        if not rows:
            continue
        short, metric = short_names(sweep.keys), sweep.settings[0].metric
        on = "the validation split" if sweep.by == "validation" else "the test set (optimistic)"
        best = [
            f"{row['method']} {', '.join(f'{short[k]}={value_text(row[k])}' for k in sweep.keys)} "
            f"({units.spread(row['score'], row['score_std'], metric)})"
            for row in rows
        ]
        number = units.count(len(sweep.settings), "setting")
        words = f"{sweep.name}, best of {number}, chosen on {on}: {'; '.join(best)}."
        edges = [edge for key in sweep.keys for edge in _edges(sweep, key, short[key], rows)]
        sentences.append(
            words + (f" At the edge of the grid: {'; '.join(edges)}." if edges else "")
        )
    return sentences


def _edges(sweep: Sweep, key: str, short: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The methods whose best value is the lowest or highest of at least three numbers."""
    values = sweep.values(key)
    if len(values) < 3 or not all(map(is_number, values)):
        return []
    ends = {
        end: [row["method"] for row in rows if row[key] == end]
        for end in (min(values), max(values))
    }
    return [f"{short}={value_text(end)} ({', '.join(names)})" for end, names in ends.items() if names]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def find(results: Results, parameter: str | None, name: str | None) -> tuple[Sweep, str] | None:
    """The sweep and the key of these names; None: the key was not swept."""
    grids = sweeps(results)
    named = [sweep for sweep in grids if name in (None, sweep.name)]
    if name is not None and not named:
        raise unknown("sweep", name, [sweep.name for sweep in grids])
    for sweep in named:
        key = sweep.keys[0] if parameter is None else sweep.key(parameter)
        if key is not None:
            return sweep, key
    return None
