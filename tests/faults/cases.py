"""Bad inputs as data: a case is what lies in a folder, what is done there, and how that should end.

A file in corpus/ is a list of cases:

    - name: negative-beta              # unique in its file
      given: [toy]                     # what lies in the folder to begin with: functions of
      given.py
      files: {study.yaml: "..."}       # texts that are written there
      before: |                        # Python that is run there before; what it leaves must not be
        lost Path("out/history.csv").write_text("")
      fedskip: run study.yaml          # the command that is judged; or
      python: |                        # Python that is judged; an InputError is a refusal
        Study(...).run()
      expect: refused                  # or works
      says: [partition.beta, "> 0"]    # what the refusal must mention
      needs: pyarrow                   # a package without which it is skipped
      env: {HOME: null}                # variables that are set or, with null, not
      fault: {calls: write, part: history.csv, at: 2, how: fail, error: ENOSPC}  # see `_arm` in
      player.py
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True)
class Case:
    area: str  # the name of its file
    name: str
    given: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    before: str = ""
    fedskip: str | None = None
    python: str | None = None
    expect: str = "refused"
    says: tuple[str, ...] = ()
    env: Mapping[str, str | None] = field(default_factory=dict)
    needs: str | None = None
    fault: Mapping[str, Any] | None = None  # what the system does to it, by faults.c

    def __post_init__(self) -> None:
        assert self.expect in ("refused", "works"), f"{self}: expect is refused or works"
        assert (self.fedskip is None) != (self.python is None), f"{self}: one of fedskip and python"
        assert self.expect == "works" or self.says, f"{self}: what must the refusal say?"

    def __str__(self) -> str:
        return f"{self.area}/{self.name}"

    @property
    def command(self) -> list[str] | None:
        return None if self.fedskip is None else shlex.split(self.fedskip)


def cases() -> list[Case]:
    """All of the corpus."""
    found = [
        _case(file.stem, entry)
        for file in sorted(CORPUS.glob("*.yaml"))
        for entry in _entries(file)
    ]
    names = [str(case) for case in found]
    assert len(set(names)) == len(names), sorted(
        name for name in set(names) if names.count(name) > 1
    )
    return found


def _entries(file: Path) -> list[dict[str, Any]]:
    return (
        yaml.load(file.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        or []
    )


def _case(area: str, entry: dict[str, Any]) -> Case:
    lists = {key: tuple(map(str, entry.get(key, ()))) for key in ("given", "says")}
    return Case(area, **(entry | lists | {"name": str(entry["name"])}))
