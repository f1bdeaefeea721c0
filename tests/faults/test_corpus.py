"""Every bad input of the corpus is refused in one clear line, and nothing is lost."""

import zlib

import pytest

from faults.cases import cases
from faults.player import FINE

# of so many cases one is tried in every run of the tests; all are with -m "slow or not slow"
SAMPLE = 32


def params() -> list:
    found = []
    for case in cases():
        chosen = zlib.crc32(str(case).encode()) % SAMPLE == 0
        found.append(pytest.param(case, id=str(case), marks=() if chosen else pytest.mark.slow))
    return found


@pytest.mark.parametrize("case", params())
def test_ends_well(case, request, lay, tmp_path, record_property):
    if case.needs:
        pytest.importorskip(case.needs)
    folder = tmp_path / "here"
    folder.mkdir()
    lay(case.given, folder)
    for name, text in case.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())
    player = request.getfixturevalue("player" if case.fault is None else "preloaded")
    played = {
        "fedskip": case.command,
        "python": case.python,
        "env": dict(case.env),
        "fault": case.fault,
    }
    ended = player.play(folder, before=case.before, **played)
    kind = ended.kind(case.expect, case.says)
    record_property("area", case.area)
    record_property("fault", kind)
    said = f"--- said\n{ended.err[-3000:]}\n--- shown\n{ended.out[-1500:]}"
    assert kind == FINE, f"{kind}: exit {ended.code}, lost {ended.lost}\n{said}"
