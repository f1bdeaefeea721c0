"""Keyed randomness: the same everywhere, spread evenly, and nobody else's generator is touched."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedskip import rng

WORDS = 1 << 32


def chi_square(counts: np.ndarray) -> float:
    """How many standard deviations the counts' chi-square lies above that of even counts."""
    counts = np.asarray(counts, dtype=float).ravel()
    expected, freedom = counts.mean(), counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


@pytest.fixture(autouse=True)
def _nothing_touches_a_global_generator() -> Iterator[None]:
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    yield
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002
    assert random.getstate() == before[2]


# --- keys ----------------------------------------------------------------------------------------------


def test_keys_never_change() -> None:
    """Results on disk depend on these numbers: a change here makes every old study another one."""
    assert rng.key(0, "cohort", 0) == 5526181650537942744
    assert rng.visit_key(0, 0, 0) == 4322621433842732381
    assert rng.key("visit") == 2812257237204924205


def test_streams_never_change() -> None:
    assert rng.stream(0, "cohort", 0).permutation(10).tolist() == [8, 0, 7, 6, 9, 4, 1, 2, 5, 3]
    assert rng.stream(1, "init").integers(0, 1000, 5).tolist() == [529, 16, 122, 697, 994]


def test_a_visit_key_is_the_key_of_its_seed_round_and_client() -> None:
    assert rng.visit_key(3, 4, 5) == rng.key(3, "visit", 4, 5)


def test_keys_are_63_bits() -> None:
    keys = [rng.key(i) for i in range(2000)]
    assert all(0 <= key < 1 << 63 for key in keys)
    assert max(keys).bit_length() == 63


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, 23), (12, 3)),
        (("a", "bc"), ("ab", "c")),
        ((1,), ("1",)),
        ((0,), (0, 0)),
        ((1, 2), (2, 1)),
        ((-1,), (1,)),
    ],
)
def test_different_parts_give_different_keys(
    one: tuple[int | str, ...], other: tuple[int | str, ...]
) -> None:
    assert rng.key(*one) != rng.key(*other)


def test_visit_keys_are_distinct_also_when_folded() -> None:
    keys = [rng.visit_key(*parts) for parts in product(range(3), range(100), range(20))]
    assert len(set(keys)) == len(keys)
    # 6,000 words of 2^32 possible ones collide with probability 0.4 %: with these keys none does
    assert len(rng.fold(torch.tensor(keys)).unique()) == len(keys)


# --- streams -------------------------------------------------------------------------------------------


def test_a_stream_starts_anew_each_time() -> None:
    assert (rng.stream(7, "x").normal(size=5) == rng.stream(7, "x").normal(size=5)).all()


def test_streams_of_different_keys_are_independent() -> None:
    """The correlations of 40 streams stay within what chance gives, about 1/sqrt(n) each."""
    draws = np.stack([rng.stream(0, "cohort", round).random(2000) for round in range(40)])
    correlations = np.corrcoef(draws)[np.triu_indices(40, 1)]
    assert np.abs(correlations).max() < 4.5 / np.sqrt(2000)
    assert chi_square(np.histogram(draws, 50, (0, 1))[0]) < 4


# --- torch's generator ---------------------------------------------------------------------------------


def test_inside_a_scope_the_key_decides() -> None:
    def weights(*parts: int | str) -> Tensor:
        with rng.torch_scope(*parts):
            return nn.Linear(3, 3).weight.detach()

    assert torch.equal(weights(0, "init"), weights(0, "init"))
    assert not torch.equal(weights(0, "init"), weights(1, "init"))
    assert not torch.equal(weights(0, "init"), weights(0, "fresh"))


def test_a_scope_ends_as_it_began_even_by_an_error() -> None:
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError), rng.torch_scope(0):
        torch.rand(3) @ torch.rand(4)
    assert torch.equal(torch.get_rng_state(), before)


# --- words on tensors ----------------------------------------------------------------------------------


def scramble_by_hand(x: int) -> int:
    """The published two-round mix on plain integers."""
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) % WORDS
    x = ((x ^ (x >> 15)) * 0x735A2D97) % WORDS
    return x ^ (x >> 15)


@given(st.integers(0, WORDS - 1), st.integers(0, (1 << 24) - 1))
def test_words_equal_those_of_plain_integers(word: int, counter: int) -> None:
    """No product overflows, so that every device gives the same."""
    expected = scramble_by_hand((scramble_by_hand(word) + counter * 0x1E3779B9) % WORDS)
    assert rng.mix(torch.tensor(word), counter) == expected
    assert rng.uniform(torch.tensor(word), counter).item() == (expected >> 8) / 2**24


def test_words_never_change() -> None:
    word = rng.fold(torch.tensor(rng.visit_key(0, 0, 0)))
    assert rng.mix(word, torch.arange(4)).tolist() == [
        2296229627,
        194609694,
        2869084394,
        1965967023,
    ]
    assert rng.uniform(word, torch.arange(2)).tolist() == pytest.approx(
        [0.5346325635910034, 0.0453110933303833], abs=0
    )


def test_scramble_is_a_bijection() -> None:
    """Both steps can be undone: an odd factor has an inverse, x ^ x >> s loses nothing."""
    x = torch.arange(1 << 20) * 4093 % WORDS
    assert len(rng.scramble(x).unique()) == len(x)


def test_shapes_broadcast() -> None:
    words, places = torch.arange(3)[:, None], torch.arange(5)
    table = rng.mix(words, places)
    assert table.shape == (3, 5)
    assert table[2, 4] == rng.mix(torch.tensor(2), 4)


def test_fold_uses_all_63_bits() -> None:
    key = torch.tensor(rng.visit_key(0, 0, 0))
    flipped = key ^ (1 << torch.arange(63))
    folded = rng.fold(flipped)
    assert ((folded >= 0) & (folded < WORDS)).all()
    assert (folded != rng.fold(key)).all()


def test_uniform_is_float32_and_below_one() -> None:
    draws = rng.uniform(torch.tensor(1), torch.arange(1000))
    assert draws.dtype == torch.float32
    assert ((draws >= 0) & (draws < 1)).all()


@pytest.mark.parametrize(
    "words", [torch.tensor([5]), torch.arange(1000)], ids=["one word", "neighbours"]
)
def test_uniform_is_uniform(words: Tensor) -> None:
    draws = rng.uniform(words[:, None], torch.arange(200_000 // len(words))).numpy()
    assert chi_square(np.histogram(draws, 100, (0, 1))[0]) < 4
    low_bits = (draws.ravel() * 2**24).astype(int) % 64
    assert chi_square(np.bincount(low_bits, minlength=64)) < 4


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((0, 0), (0, 1)),  # neighbouring counters of one word
        ((0, 0), (1, 0)),  # neighbouring words at one counter
        ((0, 1), (1, 0)),
    ],
)
def test_neighbours_are_independent(one: tuple[int, int], other: tuple[int, int]) -> None:
    """Pairs of draws fill the unit square evenly."""
    grid = torch.arange(250)
    pairs = [
        rng.uniform(grid[:, None] + word, grid + counter).flatten().numpy()
        for word, counter in (one, other)
    ]
    assert chi_square(np.histogram2d(*pairs, bins=12, range=[[0, 1], [0, 1]])[0]) < 4


def test_a_counter_of_a_counter_is_independent_of_both() -> None:
    """An engine mixes twice: step, then place. Neither order nor sum of the two shows."""
    word = torch.tensor(9)
    steps, places = torch.arange(300)[:, None], torch.arange(300)
    table = rng.uniform(rng.mix(word, steps), places).numpy()
    assert chi_square(np.histogram2d(table.ravel(), table.T.ravel(), bins=12)[0]) < 4
    shifted = np.corrcoef(table[1:, :-1].ravel(), table[:-1, 1:].ravel())[0, 1]
    assert abs(shifted) < 4.5 / 300


def test_shuffles_are_those_of_the_stream() -> None:
    items = np.arange(50) * 3
    for parts in ((1, "a"), (2, "a"), (1, "a")):
        expected = rng.stream(*parts).permuted(np.tile(items, (4, 1)), axis=1)
        assert (rng.shuffles(items, 4, *parts) == expected).all()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda k: rng.shuffles(items, 4, k), range(200)))
    for k, orders in enumerate(found):
        assert (orders == rng.stream(k).permuted(np.tile(items, (4, 1)), axis=1)).all()
