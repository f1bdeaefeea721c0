"""Is a method better, by how much, and how sure is that?

All methods of a seed share their split, partition, start and cohorts. So methods are compared seed by seed,
and what is judged is the difference, whose spread is smaller than that of the scores themselves.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from fedskip.rng import stream

LEVEL = 0.95  # of intervals, unless told otherwise
RESAMPLES = 10_000

Scores = Mapping[int, float | None]  # by seed; None: the run diverged or has no such number


@dataclass(frozen=True)
class Difference:
    """How a method differs from another over the seeds that both have."""

    seeds: int  # with a score of both
    mean: float | None
    low: float | None  # the interval of the mean; None: one seed has none
    high: float | None
    wins: int  # seeds at which it is better; one that has no score has lost
    losses: int
    missing: int = 0  # seeds at which it has no score itself: its run diverged
    unmatched: int = 0  # seeds at which only the other has none: there is nothing to compare with
    better: int = 1  # the sign of a difference for the better

    @property
    def sign(self) -> int:
        """1 if it is better, -1 if it is worse; 0 if the interval holds 0."""
        if self.low is None or self.high is None:
            return 0
        return self.better * ((self.low > 0) - (self.high < 0))


def difference(
    one: Scores, other: Scores, level: float = LEVEL, *, bootstrap: bool = False, higher: bool = True
) -> Difference:
    """How `one` differs from `other`, seed by seed; `higher`: whether higher scores are better."""
    seeds = [seed for seed in one if seed in other]
    pairs = [(one[seed], other[seed]) for seed in seeds]
    found = [a - b for a, b in pairs if a is not None and b is not None]
    better = 1 if higher else -1
    low, high = (bootstrap_interval if bootstrap else t_interval)(found, level)
    return Difference(
        len(found),
        fmean(found) if found else None,
        low,
        high,
        wins=sum(better * d > 0 for d in found) + sum(b is None and a is not None for a, b in pairs),
        losses=sum(better * d < 0 for d in found) + sum(a is None and b is not None for a, b in pairs),
        missing=sum(a is None for a, _ in pairs),
        unmatched=sum(a is not None and b is None for a, b in pairs),
        better=better,
    )


Interval = tuple[float, float] | tuple[None, None]


def t_interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """Student's interval of the mean, for few values that are about normal; none of a single value.

    >>> t_interval([1.0, 2.0, 3.0])  # 2 ± 4.303 / √3
    (-0.484..., 4.484...)
    """
    n = len(values)
    if n < 2:
        return None, None
    half = t_quantile(level, n - 1) * stdev(values) / math.sqrt(n)
    return fmean(values) - half, fmean(values) + half


def bootstrap_interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """The percentile interval of the mean over resamples, which assumes no shape but wants more seeds."""
    n = len(values)
    if n < 2:
        return None, None
    drawn = stream("bootstrap").integers(0, n, (RESAMPLES, n))
    means = sorted(fmean(values[i] for i in row) for row in drawn)
    tail = round((1 - level) / 2 * RESAMPLES)
    return means[tail], means[-1 - tail]


def t_quantile(level: float, df: int) -> float:
    """The t with P(|T| <= t) = level, for df degrees of freedom.

    >>> round(t_quantile(0.95, 2), 3), round(t_quantile(0.95, 9), 3)
    (4.303, 2.262)
    """
    low, high = 0.0, 1.0
    while _within(high, df) < level:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, df) < level else (low, middle)
    return high


def _within(t: float, df: int) -> float:
    """P(|T| <= t): a finite sum, Abramowitz and Stegun 26.7.3 and 26.7.4."""
    theta = math.atan(t / math.sqrt(df))
    odd, squared = df % 2, math.cos(theta) ** 2
    term, total = math.cos(theta) if odd else 1.0, 0.0
    for j in range(odd, df - 1, 2):
        total += term
        term *= squared * (j + 1) / (j + 2)
    return 2 / math.pi * (theta + math.sin(theta) * total) if odd else math.sin(theta) * total


def ranks(scores: Mapping[str, float | None], higher: bool = True) -> dict[str, float]:
    """The rank of each method at one seed, 1 being the best; equals share theirs, no score comes last.

    >>> ranks({"a": 0.5, "b": 0.7, "c": 0.5, "d": None})
    {'a': 2.5, 'b': 1.0, 'c': 2.5, 'd': 4.0}
    """
    better = 1 if higher else -1
    values = {name: -math.inf if score is None else better * score for name, score in scores.items()}
    return {
        name: 1 + sum(v > mine for v in values.values()) + (sum(v == mine for v in values.values()) - 1) / 2
        for name, mine in values.items()
    }
