"""A study that dies at chosen or random moments, goes on, and what it must then be equal to.

faults.c is built by `library`; a `Player` that preloads it has warmed up on a study, so that one
takes a second.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from faults.given import study
from faults.player import Ended, Player
from fedskip.records.checkpoint import KEEP, RECORDED, list_checkpoints, load_checkpoint
from fedskip.records.table import Table

# one figure is as good as seven, and takes less
COMMAND = """\
import fedskip.report.page as page
page.FIGURES = {"accuracy": page.FIGURES["accuracy"]}
from fedskip.cli import main
sys.argv = ["fedskip", *ARGUMENTS]
main()
"""
TWO = '[{name: a}, {name: b, methods: "fedavg, fedprox", rounds: 3}]'  # settings
RUN, RESUME = ("run", "study.yaml", "--out", "out"), ("resume", "out")
LONGER = (*RESUME, "--rounds", "8")


def library(folder: Path) -> Path:
    """faults.c as a shared library in a folder; skips where it cannot be built."""
    compiler, built = shutil.which("cc"), folder / "libfaults.so"
    if compiler is None:
        pytest.skip("faults.c needs a C compiler, cc")
    source = Path(__file__).with_name("faults.c")
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(built), str(source), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"faults.c cannot be built here: {done.stderr[-300:]}")
    return built


class World:
    """Folders in which one study is run, and the player that runs it."""

    def __init__(self, player: Player, folder: Path, **keys: str) -> None:
        """`keys`: lines of study.yaml that are other ones there."""
        self.player, self.first, self._count = player, folder / "first", 0
        self.first.mkdir()
        study(self.first)
        file = self.first / "study.yaml"
        lines = [line for line in file.read_text().splitlines() if line.split(":")[0] not in keys]
        file.write_text("\n".join([*lines, *(f"{key}: {text}" for key, text in keys.items()), ""]))

    def begin(self, *arguments: str) -> None:
        """Run a command in what fresh folders are copied from."""
        self.fine(self.first, *arguments)

    def fresh(self) -> Path:
        """A folder that holds the study."""
        self._count += 1
        return shutil.copytree(self.first, self.first.with_name(str(self._count)))

    def do(self, folder: Path, *arguments: str, **how: Any) -> Ended:
        text = COMMAND.replace("ARGUMENTS", repr(arguments))
        return self.player.play(folder, python=text, **how)

    def fine(self, folder: Path, *arguments: str, **how: Any) -> Ended:
        """A command that must end well."""
        ended = self.do(folder, *arguments, **how)
        assert ended.code == 0, f"{arguments} ended with {ended.code}: {ended.err[-3000:]}"
        return ended

    def finish(self, folder: Path) -> None:
        """What a user does after a kill: resume, or run again where nothing was begun."""
        self.fine(folder, *(RESUME if (folder / "out" / "study.yaml").exists() else RUN))

    def compare(self, folder: Path, undisturbed: dict[str, Any]) -> list[str]:
        """The names of what is not the same in a folder, which is removed if nothing is."""
        there = promised(folder / "out")
        found = sorted(
            name for name in {*there, *undisturbed} if there.get(name) != undisturbed.get(name)
        )
        if not found:
            shutil.rmtree(folder)
        return found


def promised(out: Path) -> dict[str, Any]:
    """All of a study's folder that must be the same however often the study was killed."""
    found_there: dict[str, Any] = {}
    for path in sorted(out.rglob("*")):
        name = str(path.relative_to(out))
        if path.is_dir() or name.startswith("checkpoints") or name == ".lock":
            continue
        found_there[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    for timed in ("report.html", *(name for name in found_there if name.startswith("figures"))):
        found_there[timed] = timed in found_there  # what they say of time differs
    rows = Table.read(out / "history.csv")
    found_there["history.csv"] = [{k: v for k, v in row.items() if k != "seconds"} for row in rows]
    for setting in sorted({row["setting"] for row in rows}):
        for round, file in list_checkpoints(out / "checkpoints", setting)[-KEEP:]:
            tensors, notes = load_checkpoint(file)
            del tensors[RECORDED]  # which has a clock, and is compared above
            content = {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}
            found_there[f"{setting} {round}"] = (content, notes["round"], notes["runs"])
    return found_there


def seen(record: Callable[[str, object], None], area: str, kind: str, count: int = 1) -> None:
    """A row of the table of faults."""
    record("area", area)
    record("fault", kind)
    record("count", count)
