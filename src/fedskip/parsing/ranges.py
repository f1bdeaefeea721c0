"""Ranges of numbers, declared with a field's type: `mu: Annotated[float, AtLeast(0)] = 0.01`.

`parsing/values.py` checks them when it fits a value to the field. A field may have several; `fix` says
what to do about a value outside.
"""

from dataclasses import dataclass
from typing import Annotated

from fedskip.errors import require

MOST = 1_000_000_000  # of anything that is counted
LARGEST, SMALLEST = 3.4e38, 1.2e-38  # of a float32, in which models are trained


@dataclass(frozen=True)
class AtLeast:
    """value >= least."""

    least: float
    fix: str = ""

    def check(self, field: str, value: float) -> None:
        require(field, value >= self.least, f"must be >= {self.least}", value, self.fix)


@dataclass(frozen=True)
class AtMost:
    """value <= most."""

    most: float
    fix: str = ""

    def check(self, field: str, value: float) -> None:
        require(field, value <= self.most, f"must be at most {self.most:,}", value, self.fix)


@dataclass(frozen=True)
class Above:
    """value > bound."""

    bound: float
    fix: str = ""

    def check(self, field: str, value: float) -> None:
        require(field, value > self.bound, f"must be > {self.bound}", value, self.fix)


@dataclass(frozen=True)
class In:
    """An interval as mathematics writes it: `In("[0, 1)")` holds 0 but not 1."""

    interval: str
    fix: str = ""

    def check(self, field: str, value: float) -> None:
        low, high = map(float, self.interval[1:-1].split(","))
        inside = low < value < high
        at_end = (value == low and "[" in self.interval) or (value == high and "]" in self.interval)
        require(field, inside or at_end, f"must be in {self.interval}", value, self.fix)


Range = AtLeast | AtMost | Above | In

Count = Annotated[int, AtLeast(1), AtMost(MOST)]  # how many of something
Positive = Annotated[float, Above(0), AtLeast(SMALLEST, "smaller numbers are 0 in 32 bits")]
