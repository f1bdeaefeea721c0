"""When slots merge: a rule of the round, nothing else."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from fedskip.input.errors import InputError

_SEGMENT = re.compile(r"([1-9][0-9]*)(?:x([1-9][0-9]*))?")


@dataclass(frozen=True)
class Period:
    """The rounds from one merge to the next, as a rule.

    `5` merges every fifth round, `'1x10,5'` merges every round ten times over and every fifth
    round after that, `'never'` does not merge at all. The last part goes on to the end.
    """

    segments: tuple[tuple[int, int | None], ...]  # (period, how many times; None: to the end)

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
        if segments[-1][1] is not None:
            fix = f"it goes on to the end: write '{str(rule).rpartition('x')[0]}'"
            raise InputError("period", "must have no count in its last part", rule, fix)
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
