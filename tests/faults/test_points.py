"""A study that is killed at any call that changes a file goes on to the same bits."""

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from faults.player import FINE
from faults.points import LONGER, RESUME, RUN, TWO, World, promised, seen

SAMPLE = 96  # of so many points one is tried in every run of the tests
# name -> the keys that the study has besides, the command that was run before it, and the one that
# dies
STUDIES = {
    "run": ({"engine": "stacked"}, None, RUN),
    "two settings": ({"settings": TWO, "engine": "loop"}, None, RUN),
    "made longer": ({"engine": "loop"}, RUN, LONGER),
}


@dataclass(frozen=True)
class Dying:
    """A study, the command that dies, the points where it may, and what comes out if it does not."""

    name: str
    world: World
    command: tuple[str, ...]
    points: list[str]
    undisturbed: dict[str, Any]

    def end(self, how: str, number: int, again: int | None) -> list[str]:
        """Die at a point, go on, perhaps die `again`, go on to the end; what is not the same then."""
        folder = self.world.fresh()
        ended = self.world.do(folder, *self.command, fault={"at": number, "how": how})
        assert ended.code == -9, f"{how} at {number}: {ended.err}"
        if again is not None:
            self.world.do(folder, *self.next(folder), fault={"at": again, "how": how})
        self.world.fine(folder, *self.next(folder))
        return self.world.compare(folder, self.undisturbed)

    def next(self, folder: Path) -> tuple[str, ...]:
        """What a user does after a kill: resume, or the same again."""
        begun = (folder / "out" / "study.yaml").exists()
        return RESUME if begun and self.command == RUN else self.command


@pytest.fixture(scope="module", params=STUDIES)
def dying(request, preloaded, tmp_path_factory):
    keys, before, command = STUDIES[request.param]
    world = World(preloaded, tmp_path_factory.mktemp("points"), **keys)
    if before:
        world.begin(*before)
    folder = world.fresh()
    points = world.fine(folder, *command, fault={}).points
    assert len(points) > 40
    return Dying(request.param, world, command, points, promised(folder / "out"))


def die(dying, record_property, *, chosen):
    """Die at the points of the sample, or at all others."""
    wrong, tried = [], 0
    for number, point in enumerate(dying.points, 1):
        for how in ("kill", "tear") if point.startswith("write") else ("kill",):
            key = zlib.crc32(f"{dying.name} {how} {number}".encode())
            if (key % SAMPLE == 0) == chosen:
                tried += 1
                again = None if key % 3 else 1 + key % len(dying.points)
                if other := dying.end(how, number, again):
                    wrong.append(f"{how} at {number}, {point}: {other}")
    seen(record_property, "crash points", FINE if not wrong else "silently wrong", tried)
    assert not wrong


def test_some_points(dying, record_property):
    die(dying, record_property, chosen=True)


@pytest.mark.slow
def test_all_other_points(dying, record_property):
    die(dying, record_property, chosen=False)
