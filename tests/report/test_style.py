"""One colour and one marker for each method."""

from __future__ import annotations

import pytest

from fedskip.methods import registry
from fedskip.report.figures import KNOWN, look


def test_our_methods_have_looks_of_their_own() -> None:
    looks = [look(method().label) for method in registry().values()]
    assert {method.title for method in registry().values()} == set(KNOWN)
    assert len({one.colour for one in looks}) == len({one.marker for one in looks}) == len(looks)


def test_periods_are_shades_of_one_blue() -> None:
    shades = [look(f"FedSkip-{period}") for period in (3, 5, 7, 10, 15, 20)]
    light = [sum(bytes.fromhex(one.colour[1:])) for one in shades]
    assert light == sorted(light, reverse=True)
    assert len(set(light)) == len({one.marker for one in shades}) == 6
    for one in shades:
        red, _, blue = bytes.fromhex(one.colour[1:])
        assert blue > red
    assert look("FedSkip-500").colour == look("FedSkip-20").colour
    assert look("FedSkip-1x50,5").colour == look("FedSkip-5").colour
    assert (look("FedSkip-1x50,5").line, look("FedSkip-5").line) == ("-.", "-")


@pytest.mark.parametrize(
    "label", ["Mine", "Mine(a=1, b='x')", "FedSkip-1x10,5", "FedAvg-unmerged", "x(y", "é"]
)
def test_every_label_has_a_look_that_does_not_change(label: str) -> None:
    assert look(label) == look.__wrapped__(label)
    assert len(look(label).colour) == 7


def test_a_method_that_skips_is_dashed_and_a_variant_is_of_its_colour() -> None:
    assert look("SCAFFOLD+skip-5").line == "--"
    red, green, blue = bytes.fromhex(look("SCAFFOLD+skip-5").colour[1:])
    assert green > max(red, blue), "a shade of SCAFFOLD's green"
    for one, other in (
        ("MOON(mu=1.0)", "MOON(mu=5.0)"), ("MOON(mu=0.01)", "MOON(mu=10.0)"),
        ("SCAFFOLD+skip-5", "SCAFFOLD+skip-10"), ("FedSkip-2", "FedSkip-1x10,5"),
        ("FedSkip-25", "FedSkip-31"),
    ):  # fmt: skip
        assert look(one) != look(other)
