"""Which method is the strongest, where not all have the same seeds."""

from collections.abc import Container, Mapping, Sequence
from statistics import fmean

from fedskip.records.table import Row


def strongest(
    runs: Mapping[str, Sequence[Row]], score: str = "mean_tail", among: Container[str] | None = None
) -> str | None:
    """The method with the highest mean over the seeds that all have, among those of which no run diverged.

    `among`: only these are asked for; the seeds stay those that all have.
    """
    whole, shared = _whole(runs, score), shared_seeds(runs, score)
    asked = whole if among is None else {name: whole[name] for name in whole if name in among}
    means = {name: fmean(scores[seed] for seed in shared) for name, scores in asked.items() if shared}
    return max(means, key=means.__getitem__, default=None)


def shared_seeds(runs: Mapping[str, Sequence[Row]], score: str = "mean_tail") -> list[int]:
    """The seeds over which the strongest is found."""
    found = [set(scores) for scores in _whole(runs, score).values()]
    return sorted(set.intersection(*found)) if found else []


def _whole(runs: Mapping[str, Sequence[Row]], score: str) -> dict[str, dict[int, float]]:
    """The scores by seed of the methods that were run and never diverged."""
    return {
        name: {row["seed"]: row[score] for row in rows if row.get(score) is not None}
        for name, rows in runs.items()
        if rows and not any(row["diverged"] for row in rows)
    }
