"""The printed forms fail where they are said to, and hold where they are said to."""

from fedskip.paper.counterexamples import LEMMA, RATES, coherent, slow_rates


def test_steps_that_add_up_break_the_printed_lemma_and_not_the_corrected() -> None:
    table = coherent([1, 5], shuffles=20, clients=10)
    assert tuple(table[0]) == LEMMA
    assert all(row["share_corrected"] < 1 for row in table)
    long = {(row["routes"], row["rates"]): row["share_printed"] for row in table.where(period=5)}
    assert long["fixed", "constant"] > 1.1
    assert long["fixed", "halved"] > 4.5  # of 5 at most
    assert long["cyclic", "halved"] > 1
    assert long["uniform", "constant"] < 0.5
    assert all(row["share_printed"] < 1 for row in table.where(period=1))


def test_allowed_rates_break_the_printed_theorem() -> None:
    table = slow_rates([1])
    assert tuple(table[0]) == RATES
    largest, tiny = table
    assert largest["eta"] == 1 / (4 * largest["L"])
    assert largest["printed_bound"] < largest["distance"] < largest["corrected_bound"]
    assert abs(largest["distance"] - (1 - largest["eta"]) ** (2 * 400)) < 1e-9  # gradient descent
    assert tiny["printed_bound"] < tiny["distance"]
    assert tiny["corrected_bound"] < tiny["distance"]  # Stich's rates are needed, too
