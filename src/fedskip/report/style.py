"""How methods look: one colour and one marker each, in all figures of all studies.

The colours are those of Okabe and Ito, which colour-blind people tell apart, with FedAvg in grey. FedSkip's
periods are shades of one blue, the longer the darker; one that changes on the way has the shade of its last,
and dots between its dashes. A method with skipping has its own colour, dashed; variants of a method are
shades of its colour, with markers of their own.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import log

from fedskip.rng import key

KNOWN = {
    "FedAvg": ("#6b6b6b", "o"), "FedProx": ("#e69f00", "s"), "SCAFFOLD": ("#009e73", "^"),
    "MOON": ("#cc79a7", "D"), "FedNova": ("#56b4e9", "v"), "FedDyn": ("#d55e00", "P"),
    "FedAvgM": ("#a08c00", "X"), "FedAdam": ("#8c564b", "*"),
    "TrimmedMean": ("#4d7c0f", "<"), "Median": ("#0f766e", ">"), "NormBounded": ("#7c3aed", "p"),
}  # fmt: skip
OTHERS = ("#7f3c8d", "#11a579", "#b5651d", "#3969ac", "#80ba5a", "#e73f74")  # for a user's own
MARKERS = ("<", ">", "p", "h", "d", "8", "H", "1", "2", "3", "4", "+", "x")
PERIODS = {3: "o", 5: "s", 7: "^", 10: "D", 15: "v", 20: "P"}  # markers of FedSkip
LIGHT, DARK = (0x6A, 0xAE, 0xE0), (0x08, 0x2A, 0x54)  # of FedSkip
LONGEST = 20  # the period that is darkest

SHADES = (1.0, 0.82, 0.66)  # of a method's colour, for its variants

_LABEL = re.compile(r"(.+?)(\+skip-[^(]+)?(\(.*\))?", re.DOTALL)


@dataclass(frozen=True)
class Look:
    """Of one method."""

    colour: str
    marker: str
    line: str = "-"  # as matplotlib has it


@cache
def look(label: str) -> Look:
    """How the method that tables call `label` looks.

    >>> look("FedAvg"), look("SCAFFOLD+skip-5").line
    (Look(colour='#6b6b6b', marker='o', line='-'), '--')
    """
    found = _LABEL.fullmatch(label)
    assert found is not None, "any text is a label"
    title, skips, options = found.groups()
    name, _, rule = title.partition("-")
    if name == "FedSkip" and rule:
        numbers = [int(number) for number in re.findall(r"\d+", rule)]
        period = numbers[-1] if numbers else 2  # a rule such as 1x10,5 ends with 5
        shade = _mixed(LIGHT, DARK, log(max(period, 2) / 2) / log(LONGEST / 2))
        other = MARKERS[key("look", rule) % len(MARKERS)]
        return (
            Look(shade, PERIODS.get(period, other))
            if rule.isdecimal()
            else Look(shade, other, "-.")
        )
    number = key("look", title)
    own = (OTHERS[number % len(OTHERS)], MARKERS[number % len(MARKERS)])
    colour, marker = KNOWN.get(title, own)
    if options or skips:
        number = key("look", f"{skips}{options}")
        marker = MARKERS[number % len(MARKERS)]
        colour = _darker(colour, SHADES[number // len(MARKERS) % len(SHADES)])
    return Look(colour, marker, "--" if skips else "-")


def _mixed(one: Sequence[int], other: Sequence[int], share: float) -> str:
    mixed = (round(a + min(1.0, share) * (b - a)) for a, b in zip(one, other, strict=True))
    return "#" + "".join(f"{value:02x}" for value in mixed)


def _darker(colour: str, share: float) -> str:
    return _mixed((0, 0, 0), bytes.fromhex(colour[1:]), share)
