"""What settings come to, in a line."""

from collections.abc import Mapping, Sequence
from typing import Any


def counted(settings: Sequence[Mapping[str, Any]]) -> str:
    """Methods, seeds, runs and rounds of settings, as far as their keys say them.

    >>> keys = {"methods": ("fedavg", "fedskip(period=5)"), "seeds": (0, 1, 2), "rounds": 100}
    >>> counted([keys])
    '2 methods × 3 seeds = 6 runs of 100 rounds'
    >>> counted([keys, {**keys, "seeds": (0,), "rounds": 50}])
    '2 settings, 8 runs of 50 to 100 rounds'
    >>> from fedskip.spec.keys import Added
    >>> counted([{**keys, "added": (Added(("fedavg", "fedskip(period=5)"), (3,)),)}])
    '8 runs of 100 rounds'
    """
    each = [(len(keys.get("methods", ())), len(keys.get("seeds", (0,)))) for keys in settings]
    added = [len(one.methods) * len(one.seeds) for keys in settings for one in keys.get("added") or ()]
    parts = [_many(len(settings), "setting")] * (len(settings) > 1)
    alike = len(set(each)) == 1 and not added
    if alike:
        parts += map(_many, each[0], ("method", "seed"))
    words = " × ".join(parts)
    if all(methods for methods, _ in each):
        words += " = " if alike else ", " if words else ""
        words += _many(sum(methods * seeds for methods, seeds in each) + sum(added), "run")
        rounds = sorted({keys.get("rounds") or 0 for keys in settings})
        if rounds[0]:  # else the data set has them
            few = "" if len(rounds) == 1 else f"{rounds[0]:,} to "
            words += f" of {few}{_many(rounds[-1], 'round')}"
    return words


def _many(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'s' * (count != 1)}"
