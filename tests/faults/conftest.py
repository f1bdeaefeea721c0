"""What the fault tests share: the player, what lies in folders, and the table at the end."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from faults.given import GIVEN
from faults.player import KINDS, Player
from faults.points import library


@pytest.fixture(scope="session")
def player() -> Iterator[Player]:
    """A process that plays cases."""
    one = Player()
    yield one
    one.close()


@pytest.fixture(scope="session")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    """One whose cases may have a `fault`."""
    one = Player(library(tmp_path_factory.mktemp("library")))
    yield one
    one.close()


@pytest.fixture(scope="session")
def lay(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Sequence[str], Path], None]:
    """Puts what a case is given into its folder; it is made once and copied."""
    made: dict[str, Path] = {}

    def put(names: Sequence[str], folder: Path) -> None:
        for name in names:
            if name not in made:
                made[name] = tmp_path_factory.mktemp(name)
                GIVEN[name](made[name])
            shutil.copytree(made[name], folder, dirs_exist_ok=True, symlinks=True)

    return put


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A table of how the faults ended, by area."""
    ended: dict[str, Counter[str]] = {}
    for report in [one for reports in terminalreporter.stats.values() for one in reports]:
        noted = dict(getattr(report, "user_properties", ()))
        if "fault" in noted and getattr(report, "when", "") == "call":
            ended.setdefault(noted["area"], Counter())[noted["fault"]] += noted.get("count", 1)
    if not ended:
        return
    terminalreporter.section("faults")
    width = max(map(len, ended))
    terminalreporter.write_line(" | ".join([" " * width, *KINDS]))
    total = sum(ended.values(), Counter())
    for area, counts in [*sorted(ended.items()), ("all", total)]:
        cells = [f"{counts[kind]:>{len(kind)}}" for kind in KINDS]
        terminalreporter.write_line(" | ".join([f"{area:<{width}}", *cells]))
