"""Which method is the strongest, where not all have the same seeds, or as many rounds."""

from collections.abc import Container, Mapping, Sequence
from statistics import fmean

from fedskip.records.history import TAIL
from fedskip.records.table import Row


def strongest(
    runs: Mapping[str, Sequence[Row]], score: str = "mean_tail", among: Container[str] | None = None
) -> str | None:
    """The method with the highest mean over the seeds that all have, among those of which no run diverged.

    Runs of another length than most do not count. `among`: only these are asked for; the seeds stay those
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


def with_all_seeds(runs: Mapping[str, Sequence[Row]], score: str = "mean_tail") -> dict[str, Sequence[Row]]:
    """The methods that lack no seed which others have, if there are several."""
    whole = _whole(runs, score)
    every = {seed for scores in whole.values() for seed in scores}
    found = {name: runs[name] for name, scores in whole.items() if scores.keys() == every}
    return found if len(found) > 1 else {}


def as_long(run: Row, rounds: int) -> bool:
    """Whether a run has about so many rounds, or may have: while it trains, they are those of its last merge.

    >>> as_long({"rounds": 99, "merges": 99}, 100), as_long({"rounds": 6, "merges": 6}, 20)
    (True, False)
    >>> as_long({"rounds": 50, "merges": 5}, 59), as_long({"rounds": 50, "merges": 5}, 60)
    (True, False)
    """
    came, merges = int(run["rounds"]), int(run["merges"])
    next_merge = came + came / merges if merges else came
    return min(came, rounds) >= (1 - TAIL) * max(came, rounds) or came < rounds < next_merge


def _whole(runs: Mapping[str, Sequence[Row]], score: str) -> dict[str, dict[int, float]]:
    """The scores by seed of the methods of which no run diverged; of these, runs as long as most are."""
    sound = {name: rows for name, rows in runs.items() if not any(row["diverged"] for row in rows)}
    every = [row for rows in sound.values() for row in rows]
    lengths = {row["rounds"] for row in every}
    usual = max(lengths, key=lambda rounds: (sum(as_long(row, rounds) for row in every), rounds), default=0)
    found = {
        name: {row["seed"]: row[score] for row in rows if row.get(score) is not None and as_long(row, usual)}
        for name, rows in sound.items()
    }
    return {name: scores for name, scores in found.items() if scores}
