"""What the system refuses a study is said in one line, with the way on; and that ends in the same
bits.
"""

import re
import zlib

import pytest

from faults.player import FINE
from faults.points import RESUME, RUN, World, promised, seen

SAMPLE = 256  # of so many faults one is tried in every run of the tests
ERRORS = ("ENOSPC", "EIO", "EDQUOT", "EROFS", "EACCES", "EMFILE", "ESTALE", "EPERM")


@pytest.fixture(scope="module")
def study(preloaded, tmp_path_factory):
    """A study, the points where the system may refuse it something, and what comes out if it does
    not.
    """
    world = World(preloaded, tmp_path_factory.mktemp("system"), engine="loop")
    folder = world.fresh()
    points = world.fine(folder, *RUN, fault={}).points
    return world, points, promised(folder / "out")


def judged(ended, point):
    """What is to be said of a study to which the system refuses all from one point on."""
    if ended.code is None:
        return "hang"
    if ended.code < 0 or "Traceback" in ended.err:
        return "traceback"
    if ended.code == 0:
        return (
            FINE
            if "warning" in ended.err or "was not written" in ended.err or not ended.err
            else "unclear"
        )
    one_line = ended.err.startswith("error: ") and ended.err.count("\n") == 1
    goes_on = "fedskip resume out" in ended.err or "run it again" in ended.err
    file = re.sub(
        r"/\.(.+)\.\d+\.part$", r"/\1", point.split()[1]
    )  # as it is called when it is whole
    file = re.sub(r"[0-9a-f]{16}\.safetensors$", "", file)  # which holds the time
    return FINE if one_line and goes_on and file.removeprefix("/") in ended.err else "unclear"


def refuse(study, record_property, *, chosen):
    world, points, undisturbed = study
    ends = []
    for number, point in enumerate(points, 1):
        for error in (
            ERRORS if not point.startswith("flock") else ()
        ):  # of locks, EACCES means another thing
            key = zlib.crc32(f"{error} {number}".encode())
            if (key % SAMPLE == 0) != chosen or (not chosen and key % 8):
                continue
            folder = world.fresh()
            ended = world.do(
                folder, *RUN, fault={"at": number, "how": "keep failing", "error": error}
            )
            kind = judged(ended, point)
            world.fine(folder, *(RESUME if (folder / "out" / "study.yaml").exists() else RUN))
            if kind == FINE and world.compare(folder, undisturbed):
                kind = "silently wrong"
            ends.append((kind, f"{error} at {number}, {point}: {ended.err}"))
    bad = [end for end in ends if end[0] != FINE]
    seen(record_property, "system", bad[0][0] if bad else FINE, len(ends))
    assert not bad


def test_some_refusals(study, record_property):
    refuse(study, record_property, chosen=True)


@pytest.mark.slow
def test_many_refusals(study, record_property):
    refuse(study, record_property, chosen=False)
