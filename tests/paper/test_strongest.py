"""Who is strongest, where seeds differ."""

from __future__ import annotations

from fedskip.paper.strongest import shared_seeds, strongest, with_all_seeds
from fedskip.records.table import Row


def rows(*scores: float, rounds: int = 200, diverged: bool = False) -> list[Row]:
    common = {"diverged": diverged, "rounds": rounds, "merges": rounds}
    return [{"seed": i, "mean_tail": score} | common for i, score in enumerate(scores)]


def test_the_strongest_is_found_over_the_seeds_that_all_have() -> None:
    """At seeds 0 and 1, b is ahead; a has easier seeds besides, and c has one that diverged."""
    runs = {"a": rows(0.5, 0.6, 0.9, 0.9), "b": rows(0.6, 0.6), "c": rows(0.9, 0.9, diverged=True), "d": []}
    assert strongest(runs) == "b"
    assert shared_seeds(runs) == [0, 1]
    assert strongest({}) is None
    assert strongest(runs, among=["a", "c"]) == "a"
    assert strongest(runs, among=[]) is None
    apart = {"a": rows(0.5), "b": [row | {"seed": 7} for row in rows(0.9)]}
    assert strongest(apart) is None, "no seed compares them"


def test_runs_of_another_length_than_most_do_not_count() -> None:
    """Shorter or longer, better or worse; nor does a length count that only a run has which diverged."""
    others = {"a": rows(0.5, 0.5), "b": rows(0.4, 0.4)}
    for rounds in (50, 300):
        assert strongest(others | {"c": rows(0.9, 0.9, rounds=rounds)}) == "a"
        assert strongest(others | {"c": rows(0.1, 0.1, rounds=rounds, diverged=True)}) == "a"
    assert strongest({"a": rows(0.5), "b": rows(0.9, rounds=50)}) == "a", "of as many, the longer"


def test_who_is_under_way_at_some_seeds_lacks_them() -> None:
    """MOON has one seed; over all three FedAvg is ahead."""
    begun = [row | {"seed": seed} for seed in (1, 2) for row in rows(0.9, rounds=10)]
    runs = {"FedAvg": rows(0.5, 0.6, 0.6), "FedSkip-5": rows(0.51, 0.3, 0.3), "MOON": rows(0.2) + begun}
    assert [*with_all_seeds(runs)] == ["FedAvg", "FedSkip-5"]
    assert strongest(with_all_seeds(runs)) == "FedAvg"
    assert with_all_seeds({"FedAvg": rows(0.5)}) == {}, "of one there is nobody to be ahead of"


def test_a_seed_under_way_does_not_count() -> None:
    begun = [row | {"seed": 2} for row in rows(0.9, rounds=10)]
    runs = {"a": rows(0.5, 0.5) + begun, "b": rows(0.6, 0.6) + begun}
    assert (strongest(runs), shared_seeds(runs)) == ("b", [0, 1])


def test_a_run_that_merges_seldom_is_as_long_while_it_trains() -> None:
    """Its rounds are those of its last merge: 50 of FedSkip-10's are 59 of FedAvg's."""
    skips = [row | {"merges": 5} for row in rows(0.9, rounds=50)]
    assert strongest({"FedAvg": rows(0.5, rounds=59), "FedSkip-10": skips}) == "FedSkip-10"
    assert strongest({"FedAvg": rows(0.5, rounds=60), "FedSkip-10": skips}) == "FedAvg"
    others = {"FedSkip-10": skips, "MOON+skip-10": [row | {"mean_tail": 0.3} for row in skips]}
    assert strongest({"FedAvg": rows(0.95, rounds=59)} | others) == "FedAvg", "all may be in round 59"
