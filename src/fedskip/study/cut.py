"""Into how many groups the runs of a setting are cut on a cluster: decided once, then kept."""

from collections.abc import Sequence

from fedskip.study.choice import SHORT


def shares(steps: Sequence[int], devices: int) -> list[float]:
    """The devices that each part of a study gets, by its share of all client-steps.

    >>> shares([3000, 1000], 8), shares([0, 0], 4)
    ([6.0, 2.0], [2.0, 2.0])
    """
    total = sum(steps)
    return [devices * (part / total if total else 1 / len(steps)) for part in steps]


def cut(runs: int, steps: int, devices: float, fills: int = 1) -> int:
    """The number of groups for the runs of a part, which take so many client-steps on its share of devices.

    One for each device; more where a device cannot compute all rows of its group at a time (`fills`: devices
    that all rows of the part would fill), as those wait for each other anyway; fewer where a group would be
    done before its first step is compiled.

    >>> cut(runs=30, steps=10**9, devices=8), cut(30, 10**9, 8, fills=12), cut(3, 10**9, 8)
    (8, 12, 3)
    >>> cut(runs=30, steps=25_000, devices=8), cut(30, 100, 8), cut(30, 10**9, 0.4)
    (2, 1, 1)
    """
    wanted = max(round(devices), fills)
    return max(1, min(wanted, runs, steps // SHORT))
