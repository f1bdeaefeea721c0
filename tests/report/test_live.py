"""Progress while a study works."""

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from fedskip.federation import Broke
from fedskip.input.errors import InputError
from fedskip.report import cell, live, underway
from fedskip.report.live import Live, showing
from fedskip.report.progress import Course, Progress, Shown, Status
from fedskip.report.underway import Pace, Watch
from fedskip.report.units import ACCURACY, Metric


class Work:
    """A setting of ten rounds that tests move on."""

    def __init__(self, methods=("FedAvg", "MOON"), seeds=1, at=0):
        self.runs = [Shown(f"a.{label}.s{seed}", label, seed) for label in methods for seed in range(seeds)]
        self.round, self.steps, self.preparing, self.diverged = at, 1000 * at, 0.0, set()
        self.compiling, self.broke, self.aside = ("", 2, 8), {}, 0
        self.course = Course("a", self.runs, at, 10, ACCURACY, (), self.status, lambda: 65.0)

    def status(self):
        rounds = {run.name: float(self.round) for run in self.runs}
        told = (*self.compiling, self.broke, self.aside)
        return Status(rounds, frozenset(self.diverged), self.steps, self.preparing, *told)

    def advance(self, to):
        self.steps += 100 * (to - self.round)
        self.round = to


def row(method, score, seed=0):
    return {"run": f"a.{method}.s{seed}", "test_accuracy": score}


@pytest.fixture
def now(monkeypatch):
    """A clock that tests set."""
    clock = SimpleNamespace(time=100.0)
    monkeypatch.setattr(underway.time, "monotonic", lambda: clock.time)
    return clock


def test_pace_counts_only_the_work_of_this_process(now):
    resumed = Work(at=6)
    pace = Pace(resumed.course)
    assert pace.left(resumed.status(), resumed.runs) is None
    now.time += 4
    resumed.advance(8)
    assert pace.left(resumed.status(), resumed.runs) == pytest.approx(4.0)  # 2 rounds took 4 s, 2 are left
    assert pace.speed(resumed.status()) == pytest.approx(50.0)
    resumed.diverged.add(resumed.runs[0].name)
    assert pace.left(resumed.status(), resumed.runs[:1]) == 0.0


def test_a_run_that_diverges_is_named_once_with_what_helps():
    work, console = Work(at=3), Console(file=io.StringIO(), width=300)
    work.diverged.add("a.MOON.s0")  # before this process began
    watch = Live(console, lambda: "demo")
    watch.setting(work.course, ())
    watch.recorded([])
    assert "diverged" not in console.file.getvalue()
    work.diverged.add("a.FedAvg.s0")
    work.broke["a.FedAvg.s0"] = Broke(4, 17, 2)
    for _ in range(2):
        watch.recorded([])
    said = console.file.getvalue()
    assert said.count("a.FedAvg.s0 diverged in round 4, in slot 2 at client 17.") == 1


def test_the_first_run_that_diverges_says_what_helps_and_visits_set_aside_are_counted():
    work, console = Work(), Console(file=io.StringIO(), width=300)
    watch = Live(console, lambda: "demo")
    watch.setting(work.course, ())
    work.diverged |= {"a.FedAvg.s0", "a.MOON.s0"}
    work.aside = 1234
    watch.recorded([])
    watch.checkpoint(2)
    first, second, line = console.file.getvalue().splitlines()[-3:]
    assert first.startswith(
        "a.FedAvg.s0 diverged although the losses of all visits were finite. What helps: "
    )
    assert all(key in first for key in ("local.lr", "local.clip", "guard=nonfinite"))
    assert second == "a.MOON.s0 diverged although the losses of all visits were finite."
    assert line.endswith("1,234 visits set aside")


def test_compiling_does_not_count(now):
    work = Work()
    work.preparing = 3.0
    pace = Pace(work.course)
    now.time += 62
    work.preparing += 60.0
    work.advance(2)
    assert pace.left(work.status(), work.runs) == pytest.approx(8.0)  # 2 rounds took 2 s
    assert pace.speed(work.status()) == pytest.approx(100.0)


def test_plain_lines_where_there_is_no_terminal(now):
    console = Console(file=io.StringIO(), width=80)
    with Live(console, lambda: "demo in runs/demo-1") as progress:
        work = Work(at=4)
        progress.setting(work.course, [row("FedAvg", 0.4), row("MOON", 0.7), row("MOON", 0.6)])
        now.time += 2
        work.advance(5)
        progress.recorded([row("FedAvg", 0.5)])
        assert console.file.getvalue() == "demo in runs/demo-1\n"
        progress.checkpoint(5)
        progress.finished()
    assert console.file.getvalue().splitlines()[1:] == [
        "a: round 5/10  elapsed 1:05  left 0:10  best 70.00 (MOON)  50 client-steps/s"
    ]


@pytest.mark.parametrize("terminal", [False, True])
def test_what_is_to_be_said_is_said_when_a_setting_begins(terminal):
    forced = {"force_terminal": terminal, "force_interactive": terminal}
    console = Console(file=io.StringIO(), width=80, highlight=False, **forced)
    with Live(console, lambda: "demo") as progress:
        progress.setting(replace(Work().course, notes=["7 of 212 clients dropped"]), [])
    assert "a: 7 of 212 clients dropped\n" in console.file.getvalue()


def test_steps_that_are_compiled_are_lines_where_there_is_no_terminal():
    console = Console(file=io.StringIO(), width=80)
    with Live(console, lambda: "demo") as progress:
        work = Work()
        progress.setting(work.course, [])
        for number, rows in enumerate([24, 1], 3):
            work.compiling = ("compiling", number, 8)
            progress.preparing(rows)
            work.compiling = ("", number, 8)
            progress.preparing(0)
    assert console.file.getvalue().splitlines()[1:] == [
        "a: compiling step 3 of at most 8 (24 rows)",
        "a: compiling step 4 of at most 8 (1 row)",
    ]


def drawn(watch, width=100, height=50):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(watch.screen(" (1 of 2)", height))
    return console.file.getvalue()


def test_a_terminal_says_what_is_compiled():
    work = Work()
    watch = Watch(work.course, [])
    assert "compiling" not in drawn(watch)
    work.compiling = ("compiling", 3, 8)
    assert drawn(watch).splitlines()[-1].endswith("client-steps/s  compiling step 3 of at most 8")


def test_what_a_study_compiles_is_no_line_on_a_terminal():
    console = Console(file=io.StringIO(), width=80, force_terminal=True, force_interactive=True)
    with Live(console, lambda: "demo") as progress:
        work = Work()
        progress.setting(work.course, [])
        work.compiling = ("compiling", 3, 8)
        progress.preparing(24)
    assert "24 rows" not in console.file.getvalue()


def test_what_a_screen_shows_fits_it():
    """Seeds share a line where runs are too many, names wrap where they are too long; numbers are whole."""
    many = Work(methods=[f"M{i}" for i in range(8)], seeds=3)
    text = drawn(Watch(many.course, [row("M7", 0.4321)]), width=80, height=24)
    assert "3 seeds" in text
    assert len(text.splitlines()) <= 24
    assert text.splitlines()[-1].startswith("elapsed")
    wider = Work(methods=[f"M{i}" for i in range(40)])
    text = drawn(Watch(wider.course, []), width=80, height=24)
    assert "and 20 more" in text
    assert len(text.splitlines()) <= 24
    long = "SCAFFOLD(global_lr=0.123456789,period=25)"
    named = Work(methods=[long])
    text = drawn(Watch(named.course, [row(long, 0.4321)]), width=60)
    assert "43.21" in text
    assert "…" not in text


def test_a_line_per_run_on_a_terminal(now):
    work = Work(seeds=2)
    watch = Watch(work.course, [])
    now.time += 4
    work.advance(4)
    watch.note([row("FedAvg", 0.5), row("FedAvg", 0.3), row("MOON", 0.4, seed=1)])
    work.diverged.add(work.runs[2].name)
    text = drawn(watch)
    first, *rows = [
        line.replace("━", "").replace("╸", "").replace("╺", "").split() for line in text.splitlines()
    ]
    assert first == ["a", "(1", "of", "2)", "seed", "round", "last", "best", "left"]
    assert rows == [
        ["FedAvg", "0", "4/10", "30.00", "50.00", "0:06"],
        ["FedAvg", "1", "4/10", "–", "–", "0:06"],
        ["MOON", "0", "4/10", "–", "–", "diverged"],
        ["MOON", "1", "4/10", "40.00", "40.00", "0:06"],
        ["elapsed", "1:05", "left", "0:06", "100", "client-steps/s"],
    ]


def test_many_runs_share_a_line_per_method():
    watch = Watch(Work(seeds=underway.MANY).course, [row("MOON", 0.4, seed=0), row("MOON", 0.6, seed=1)])
    assert f"{underway.MANY} seeds" in drawn(watch)
    assert len(drawn(watch).splitlines()) == 4
    assert "50.00" in drawn(watch)


def test_a_terminal_is_left_clean_when_a_study_fails():
    terminal = {"force_terminal": True, "force_interactive": True}
    console = Console(file=io.StringIO(), width=80, highlight=False, **terminal)

    def fail():
        with Live(console, lambda: "demo") as progress:
            progress.setting(Work().course, [])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    text = console.file.getvalue()
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor is back
    assert "a: round 0/10" in text


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("progress", "to", "drawn"),
    [
        (None, Terminal, True),
        (None, io.StringIO, False),  # a script whose output goes into a file
        (False, Terminal, False),
        (True, io.StringIO, True),
        (True, Terminal, True),
    ],
)
def test_who_is_shown_what(progress, to, drawn, monkeypatch):
    file = to()
    monkeypatch.setattr("sys.stdout", file)
    with showing(progress, lambda: "demo in runs/demo-1") as shown:
        assert isinstance(shown, Live) == drawn
        shown.setting(Work().course, [])
        shown.checkpoint(1)
    assert ("demo in runs/demo-1" in file.getvalue()) == ("a: round 1/10" in file.getvalue()) == drawn


def test_a_notebook_has_a_cell(monkeypatch):
    monkeypatch.setattr(live, "console", lambda: Console(file=io.StringIO(), force_jupyter=True))
    monkeypatch.setattr(cell.Cell, "start", lambda self: None)
    with showing(None, lambda: "demo") as shown:
        assert isinstance(shown._screen, cell.Cell)
    with showing(False, lambda: "demo") as shown:
        assert type(shown) is Progress


def test_a_progress_of_ones_own_is_taken_as_it_is():
    own = Progress()
    with showing(own, lambda: "demo") as shown:
        assert shown is own
    with pytest.raises(InputError, match="progress must be True, False, None or a"):
        showing("yes", lambda: "demo").__enter__()


def test_where_lower_is_better_and_what_is_undefined(now):
    console = Console(file=io.StringIO(), width=80)
    with Live(console, lambda: "demo in runs/demo-1") as progress:
        work = Work()
        course = replace(work.course, metric=Metric("rmse", higher=False))
        rows = [row("FedAvg", 4.25), row("MOON", 1.5), row("MOON", 2.5), row("FedAvg", None)]
        progress.setting(course, rows)
        progress.checkpoint(1)
        assert progress._now.last == {"a.FedAvg.s0": 4.25, "a.MOON.s0": 2.5}
    assert "best 1.5 (MOON)" in console.file.getvalue()
