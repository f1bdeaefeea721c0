"""Which method is the strongest, where not all have the same seeds, or as many rounds."""

from collections.abc import Container, Mapping, Sequence
from statistics import fmean

from fedskip.records.history import TAIL
from fedskip.records.table import Row


def strongest(
    runs: Mapping[str, Sequence[Row]], score: str = "mean_tail", among: Container[str] | None = None
) -> str | None:
    """The method with the highest mean over the seeds that all have, among those of which no run diverged.

    Runs that are shorter than others do not count. `among`: only these are asked for; the seeds stay those
    that all have.
    """
    whole, shared = _whole(runs, score), shared_seeds(runs, score)
    asked = whole if among is None else {name: whole[name] for name in whole if name in among}
    means = {name: fmean(scores[seed] for seed in shared) for name, scores in asked.items() if shared}
    return max(means, key=means.__getitem__, default=None)


def shared_seeds(runs: Mapping[str, Sequence[Row]], score: str = "mean_tail") -> list[int]:
    """The seeds over which the strongest is found."""
    found = [set(scores) for scores in _whole(runs, score).values()]
    return sorted(set.intersection(*found)) if found else []


def as_long(rounds: int, other: int) -> bool:
    """Whether runs have about as many rounds: of a study that was stopped they end at different merges.

    >>> as_long(99, 100), as_long(6, 20)
    (True, False)
    """
    return min(rounds, other) >= (1 - TAIL) * max(rounds, other)


def _whole(runs: Mapping[str, Sequence[Row]], score: str) -> dict[str, dict[int, float]]:
    """The scores by seed of the methods that were run, for as long as others, and never diverged."""
    most = max((row["rounds"] for rows in runs.values() for row in rows), default=0)
    return {
        name: {row["seed"]: row[score] for row in rows if row.get(score) is not None}
        for name, rows in runs.items()
        if rows and all(not row["diverged"] and as_long(row["rounds"], most) for row in rows)
    }
