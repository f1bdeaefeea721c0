"""Who is strongest, where seeds differ."""

from __future__ import annotations

from fedskip.paper.strongest import shared_seeds, strongest


def test_the_strongest_is_found_over_the_seeds_that_all_have() -> None:
    """At seeds 0 and 1, b is ahead; a has easier seeds besides, and c has one that diverged."""

    def rows(*scores: float, diverged: bool = False) -> list[dict[str, object]]:
        common = {"diverged": diverged, "rounds": 200}
        return [{"seed": i, "mean_tail": score} | common for i, score in enumerate(scores)]

    runs = {"a": rows(0.5, 0.6, 0.9, 0.9), "b": rows(0.6, 0.6), "c": rows(0.9, 0.9, diverged=True), "d": []}
    assert strongest(runs) == "b"
    assert shared_seeds(runs) == [0, 1]
    assert strongest({}) is None
    assert strongest(runs, among=["a", "c"]) == "a"
    assert strongest(runs, among=[]) is None
    apart = {"a": rows(0.5), "b": [row | {"seed": 7} for row in rows(0.9)]}
    assert strongest(apart) is None, "no seed compares them"
    shorter = {"a": rows(0.5, 0.5), "b": [row | {"rounds": 50} for row in rows(0.9, 0.9)]}
    assert strongest(shorter) == "a"
