"""What commands note about a setting. In study.yaml it stands beside the setting's keys, as `record`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedskip.config.fields import from_mapping, read_seeds
from fedskip.errors import require
from fedskip.methods.base import Method
from fedskip.methods.grammar import parse_many
from fedskip.parsing.ranges import Count
from fedskip.parsing.values import fit

RECORD = "record"


@dataclass(frozen=True)
class Runs:
    """Runs of a setting: each of these methods at each of these seeds."""

    methods: tuple[Method, ...]
    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "methods", tuple(parse_many(self.methods)))
        object.__setattr__(self, "seeds", read_seeds(self.seeds))


@dataclass(frozen=True)
class Sweep:
    """The grid that a setting is a point of."""

    of: str  # the setting's name without the values
    keys: tuple[str, ...]  # that were swept, dotted

    def __post_init__(self) -> None:
        ok = isinstance(self.keys, list | tuple) and all(isinstance(key, str) for key in self.keys)
        require("record.sweep.keys", ok, "must be a list of keys", self.keys)
        object.__setattr__(self, "of", fit("record.sweep.of", self.of, str))
        object.__setattr__(self, "keys", tuple(self.keys))


@dataclass(frozen=True, kw_only=True)
class Record:
    """What commands note about a setting. Nobody has to write it."""

    sweep: Sweep | None = None
    full_rounds: Count | None = None  # of the study that this is a smaller version of
    full_seeds: Count | None = None  # how many that study has
    added: tuple[Runs, ...] = ()  # by `fedskip extend`, one after another

    def __post_init__(self) -> None:
        added = self.added or ()
        rule = "must be a list of mappings such as {methods: [scaffold], seeds: [0, 1]}"
        require("record.added", isinstance(added, list | tuple), rule, added)
        runs = [from_mapping("record.added", Runs, each) for each in added]
        require("record.added", None not in runs, rule, added)
        object.__setattr__(self, "added", tuple(runs))
        object.__setattr__(self, "sweep", from_mapping("record.sweep", Sweep, self.sweep))
        for name in ("full_rounds", "full_seeds"):
            value = fit(f"record.{name}", getattr(self, name), Count | None)
            object.__setattr__(self, name, value)

    @classmethod
    def read(cls, value: Any) -> Record:
        """From a mapping, as study.yaml has it. None is an empty record."""
        return from_mapping(RECORD, cls, value) or cls()
