"""A study that is sent a signal ends within its grace, wherever it hangs, and goes on to the same
bits.
"""

import signal
import time

import pytest

from faults.player import FINE
from faults.points import COMMAND, RUN, World, promised, seen

GRACE = 0.5
HANG = """
import os, signal, time
import fedskip.study.setting_plan, fedskip.study.study, fedskip.study.train
from fedskip.report.trackers import Tracker

def hangs(number=NUMBER, to=os.getpid, hear=True):
    "Sends the study a signal, and hangs; with `hear=False` not even an exception gets through."
    while True:
        try:
            os.kill(to(), number)
            time.sleep(1000)
        except BaseException:
            if hear:
                raise
        number = 0  # once is enough

def when(where, name, wanted=lambda *_, **__: True, **how):
    known = getattr(where, name)
    def instead(*given, **keys):
        if wanted(*given, **keys):
            hangs(**how)
        return known(*given, **keys)
    setattr(where, name, instead)
"""
STUDY, TRAIN, PLAN = "fedskip.study.study", "fedskip.study.train", "fedskip.study.setting_plan"
LATER = "lambda self, until, *_: until > 2"  # than the first checkpoint
WORKS = {  # where it hangs -> what makes it, and what is said
    "data": (f'when({STUDY}, "prepare")', "before the study began"),
    "data that hear nothing": (f'when({STUDY}, "prepare", hear=False)', "Nothing of the study is in out"),
    "the first round": (f'when({PLAN}.Group, "advance")', "There is no checkpoint yet"),
    "training": (f'when({PLAN}.Group, "advance", {LATER})', "Kept: toy up to round 2"),
    "training that hears nothing": (
        f'when({PLAN}.Group, "advance", {LATER}, hear=False)', "Kept: toy up to round 2"
    ),
    "a checkpoint": (f'when({TRAIN}, "save_checkpoint", lambda _, __, r, *___: r > 2)', "up to round 2"),
    "a tracker": (f'when({STUDY}.TrackerList, "on_rows", lambda _, rows: rows[-1]["round"] > 2)', "round 2"),
    "the summary": (f'when({TRAIN}, "write_models")', "Kept: toy up to round 6"),
    "the page": (f'when({STUDY}, "write_report")', "Kept: toy up to round 6"),
    "the end of trackers": (f'when({STUDY}.TrackerList, "close")', "Stopped at once"),
}  # fmt: skip
APART = f'when({PLAN}.Group, "advance", {LATER}, to=os.getppid)', "Kept: toy up to round 2"
QUICK = ("data that hear nothing", "training", "the page")


@pytest.fixture(scope="module")
def world(request, preloaded, tmp_path_factory):
    """A study in so many processes, and what comes out if nobody stops it."""
    keys = {"engine": "stacked", "processes": str(request.param)}
    one = World(preloaded, tmp_path_factory.mktemp("stops"), **keys)
    folder = one.fresh()
    one.fine(folder, *RUN)
    return one, promised(folder / "out")


HERE, SEVERAL = (pytest.mark.parametrize("world", [n], indirect=True) for n in (1, 2))


def stop(world, record_property, case, number):
    """Send a signal where the study hangs, and see that it ends in time, with a line, and loses
    nothing.
    """
    one, undisturbed = world
    makes, says = case
    folder, arguments = one.fresh(), (*RUN, "--grace", str(GRACE))
    text = HANG.replace("NUMBER", str(int(number))) + makes + "\n" + COMMAND
    began = time.monotonic()
    ended = one.player.play(folder, python=text.replace("ARGUMENTS", repr(arguments)), limit=30)
    assert time.monotonic() - began < 25
    assert ended.code == 128 + number, ended.err
    assert says in ended.err, ended.err
    assert "Traceback" not in ended.err + ended.out
    assert len(ended.err.strip().splitlines()) == 1
    if (folder / "out" / "study.yaml").exists():
        assert ended.err.strip().endswith("with: fedskip resume out")
    one.finish(folder)
    assert not one.compare(folder, undisturbed)
    seen(record_property, "signals", FINE)


@HERE
@pytest.mark.parametrize(
    "where", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in WORKS]
)
def test_a_signal_ends_a_study_that_hangs(world, where, record_property):
    stop(world, record_property, WORKS[where], signal.SIGTERM)


@SEVERAL
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)]
)
def test_a_study_in_several_processes_ends_too(world, number, record_property):
    """Both of them send the signal, as where a queue sends it to all that it knows of: it counts
    once.
    """
    stop(world, record_property, APART, number)


CLOSED = f"""
import fcntl, os, termios
import {TRAIN}
master, slave = os.openpty()
fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
for number in (1, 2):
    os.dup2(slave, number)
sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
os.close(slave)
known = {TRAIN}.save_checkpoint

def saved(folder, name, round, *given):
    if round == 4:
        os.close(master)
    return known(folder, name, round, *given)

{TRAIN}.save_checkpoint = saved
"""
IGNORED = f"""
import signal
signal.signal(signal.SIGHUP, signal.SIG_IGN)
import {TRAIN}
known = {TRAIN}.save_checkpoint

def saved(*given):
    signal.raise_signal(signal.SIGHUP)
    return known(*given)

{TRAIN}.save_checkpoint = saved
"""


@HERE
def test_a_terminal_that_is_closed_stops_a_study_at_a_checkpoint(world):
    """To write there is an error from then on, which is not the study's."""
    one, undisturbed = world
    folder = one.fresh()
    ended = one.player.play(
        folder, python=CLOSED + COMMAND.replace("ARGUMENTS", repr(RUN)), limit=30
    )
    assert ended.code == 128 + signal.SIGHUP
    assert [path.name.split(".")[1] for path in sorted((folder / "out/checkpoints").iterdir())][
        -1
    ] == "000004"
    one.finish(folder)
    assert not one.compare(folder, undisturbed)


@HERE
def test_a_hangup_that_is_ignored_stays_ignored(world):
    """`nohup fedskip run &` outlives its terminal."""
    one, undisturbed = world
    folder = one.fresh()
    ended = one.player.play(
        folder, python=IGNORED + COMMAND.replace("ARGUMENTS", repr(RUN)), limit=30
    )
    assert (ended.code, ended.err) == (0, "")
    assert not one.compare(folder, undisturbed)
