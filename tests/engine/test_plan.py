"""The fewest sizes that will do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedskip import rng
from fedskip.engine.plan import GIB, MASKED, SIZES, Footprint, busy_rows, limited, stack_sizes

histograms = st.dictionaries(st.integers(1, 60), st.integers(1, 50), min_size=1, max_size=7).map(
    Counter
)


def work(histogram: Counter[int], sizes: Sequence[int]) -> int:
    """Rows computed: each step takes the smallest table that fits."""
    return sum(
        steps * min(size for size in sizes if size >= rows) for rows, steps in histogram.items()
    )


@given(histograms, st.integers(1, 8), st.sampled_from([0.0, 0.05, 0.15, 0.5]))
@settings(max_examples=150)
def test_stack_sizes_are_the_fewest_that_will_do_and_the_best_of_their_number(
    histogram: Counter[int], limit: int, masked: float
) -> None:
    sizes = stack_sizes(histogram, limit, masked)
    useful, largest = work(histogram, [*histogram]), max(histogram)

    def best(number: int) -> int:
        """The least work with so many tables, by trying all; sizes between those that occur cannot help."""
        rest = [size for size in histogram if size < largest]
        return min(work(histogram, [*chosen, largest]) for chosen in combinations(rest, number - 1))

    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] == largest
    assert len(sizes) <= min(limit, len(histogram))
    assert work(histogram, sizes) == min(best(number) for number in range(1, len(sizes) + 1))
    if len(sizes) < min(limit, len(histogram)):
        assert work(histogram, sizes) * (1 - masked) <= useful * (1 + 1e-12)
    if len(sizes) > 1:
        assert best(len(sizes) - 1) * (1 - masked) > useful


def test_stack_sizes_of_a_large_study() -> None:
    rows = rng.stream("tables").integers(1, 300, 2000)
    histogram = Counter(rows.tolist())
    sizes = stack_sizes(histogram)
    assert 1 < len(sizes) <= SIZES == 8
    assert work(histogram, sizes) * (1 - MASKED) <= rows.sum()
    skewed = Counter(np.minimum(2 ** rng.stream("skewed").integers(0, 12, 2000), 1500).tolist())
    assert len(stack_sizes(skewed, masked=0.0)) == SIZES, "never more, even if more would mask less"
    assert stack_sizes(Counter()) == ()


stretches = st.lists(
    st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=3), max_size=3), max_size=3
)


@given(stretches)
def test_busy_rows_are_those_of_a_simulation(runs: list[list[list[int]]]) -> None:
    """Tick by tick: a run starts a stretch when its last one has wholly ended."""
    expected: Counter[int] = Counter()
    left = [[list(stretch) for stretch in run] for run in runs]
    while any(left):
        busy = sum(steps > 0 for run in left if run for steps in run[0])
        expected[busy] += 1
        for run in left:
            if run:
                run[0] = [steps - 1 for steps in run[0]]
                if max(run[0]) <= 0:
                    run.pop(0)
    assert busy_rows([[np.array(stretch) for stretch in run] for run in runs]) == expected


def test_the_plan_knows_the_limit() -> None:
    assert limited(Counter({100: 10, 7: 2}), 40) == Counter({40: 20, 20: 10, 7: 2})
    assert limited(Counter({100: 10}), None) == Counter({100: 10})


def test_how_many_rows_fit() -> None:
    """A batched row needs its step's memory for itself; rows on streams share that of the streams."""
    batched = Footprint(row=1 * GIB, step=3 * GIB, free=100 * GIB)
    streamed = replace(batched, streams=4)
    assert (batched.rows, streamed.rows) == (20, 68)
    assert batched.of(20) == streamed.of(68) == 80 * GIB
    assert replace(batched, free=1).rows == 1, (
        "a row too large for the card fails there, with torch's message"
    )
