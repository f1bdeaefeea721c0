"""When slots merge: a rule that depends on the round alone."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from fedskip.errors import InputError

_SEGMENT = re.compile(r"([1-9][0-9]*)(?:x([1-9][0-9]*))?")


@dataclass(frozen=True)
class Period:
    """The number of rounds from one merge to the next, as a rule.

    `5` merges every fifth round. `'1x10,5'` merges every round ten times and every fifth round after that.
    `'never'` does not merge. The last part holds to the end.
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
            match = _SEGMENT.fullmatch(part)
            if not match:
                rules = "must be a number of rounds >= 1, a rule such as '1x10,5', or 'never'"
                raise InputError("period", rules, rule)
            segments.append((int(match[1]), int(match[2]) if match[2] else None))
        if any(times is None for _, times in segments[:-1]):
            counts = "needs a count for every part but the last, as in '1x10,5'"
            raise InputError("period", counts, rule)
        if segments[-1][1] is not None:
            fix = f"it holds to the end: write '{str(rule).rpartition('x')[0]}'"
            raise InputError("period", "must have no count in its last part", rule, fix)
        return cls(tuple(segments))

    def merges(self, rounds: int) -> bool:
        """Whether slots merge after this number of rounds."""
        done = 0
        for period, times in self.segments:
            end = math.inf if times is None else done + period * times
            if rounds <= end:
                return rounds > done and (rounds - done) % period == 0
            done += period * (times or 0)
        return False
