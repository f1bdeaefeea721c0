"""When slots merge and how the learning rate moves: rules of the round, nothing else."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from fedskip.errors import InputError

_SEGMENT = re.compile(r"([1-9]\d*)(?:x([1-9]\d*))?")


@dataclass(frozen=True)
class Period:
    """The rounds from one merge to the next, as a rule.

    `5` merges every fifth round, `'1x10,5'` merges every round ten times over and every fifth
    round after that, `'never'` does not merge at all. The last part goes on for ever.
    """

    segments: tuple[tuple[int, int | None], ...]  # (period, how many times; None = for ever)

    @classmethod
    def parse(cls, rule: int | str | Period) -> Period:
        if isinstance(rule, Period):
            return rule
        if rule == "never":
            return cls(())
        segments: list[tuple[int, int | None]] = []
        for part in str(rule).replace(" ", "").split(","):
            found = _SEGMENT.fullmatch(part)
            if not found:
                raise InputError(
                    "period", "must be a number of rounds >= 1, a rule such as '1x10,5', or 'never'", rule
                )
            segments.append((int(found[1]), int(found[2]) if found[2] else None))
        if any(times is None for _, times in segments[:-1]):
            raise InputError("period", "needs a count for every part but the last, as in '1x10,5'", rule)
        segments[-1] = (segments[-1][0], None)
        return cls(tuple(segments))

    def merges(self, rounds: int) -> bool:
        """Whether slots merge once `rounds` rounds are done."""
        done = 0
        for period, times in self.segments:
            end = math.inf if times is None else done + period * times
            if rounds <= end:
                return rounds > done and (rounds - done) % period == 0
            done += period * (times or 0)
        return False


_RULE = re.compile(r"(\w+)(?:\((\w+)=([^,()]+)(?:,\s*(\w+)=([^,()]+))?\))?")
_DEFAULTS: dict[str, dict[str, float]] = {
    "constant": {},
    "cosine": {"floor": 0.0},
    "step": {"every": 50.0, "factor": 0.1},
    "inverse": {"half": 50.0},
}


@dataclass(frozen=True)
class Decay:
    """The learning rate as a multiple of its start, at a position counted in rounds.

    `constant`; `cosine(floor=0)` over the whole run; `step(every=50, factor=0.1)`;
    `inverse(half=50)`: 1 / (1 + r / half), the 1-over-t rule of convergence theorems.
    A step inside a visit has a fractional position: local step s of n in round t is at r = t + s/n.
    """

    kind: str
    options: tuple[tuple[str, float], ...]

    @classmethod
    def parse(cls, rule: str) -> Decay:
        found = _RULE.fullmatch(rule.strip()) if isinstance(rule, str) else None
        if not found or found[1] not in _DEFAULTS:
            rules = "constant, cosine, step(every=50, factor=0.1) or inverse(half=50)"
            raise InputError("local.decay", f"must be {rules}", rule)
        options = dict(_DEFAULTS[found[1]])
        for name, text in ((found[2], found[3]), (found[4], found[5])):
            if name is None:
                continue
            if name not in options:
                takes = ", ".join(options) or "no options"
                raise InputError("local.decay", f"has no option {name!r}; {found[1]} takes {takes}", rule)
            try:
                options[name] = float(text)
            except ValueError:
                raise InputError("local.decay", f"needs a number for {name!r}", rule) from None
            # a rate of 0 would leave SCAFFOLD and FedNova to divide by it; a cosine only tends to its floor
            if not (0 < options[name] < math.inf or (name == "floor" and options[name] == 0)):
                raise InputError("local.decay", f"needs {name!r} to be positive", rule)
        return cls(found[1], tuple(options.items()))

    def at(self, position: np.ndarray, rounds: int) -> np.ndarray:
        """The factors at positions counted in rounds, in a run of `rounds`."""
        o = dict(self.options)
        if self.kind == "cosine":
            return (
                o["floor"] + (1 - o["floor"]) * (1 + np.cos(np.pi * np.minimum(position / rounds, 1.0))) / 2
            )
        if self.kind == "step":
            return o["factor"] ** (position // o["every"])
        if self.kind == "inverse":
            return 1 / (1 + position / o["half"])
        return np.ones_like(position)
