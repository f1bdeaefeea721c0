"""Progress of a study: what it reports, and how that is shown."""

from __future__ import annotations

import io
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from fedskip.errors import InputError
from fedskip.federation import BrokenVisit
from fedskip.report import progress
from fedskip.report.progress import (
    MANY,
    Bars,
    ClusterProgress,
    DeviceStatus,
    Progress,
    ProgressDisplay,
    RunLabel,
    SettingProgress,
    Status,
    showing,
)
from fedskip.report.results import ACCURACY, Metric

METHODS = ("FedAvg", "MOON")


class Work:
    """A setting of ten rounds that tests move on."""

    def __init__(self, methods: Sequence[str] = METHODS, seeds: int = 1, at: int = 0) -> None:
        runs = [RunLabel(f"a.{m}.s{seed}", m, seed) for m in methods for seed in range(seeds)]
        rounds = {run.name: float(at) for run in runs}
        self.runs, self.now = runs, Status(rounds, frozenset(), 1000 * at, 0.0, "", 2, 8)
        self.setting = SettingProgress(
            "a", runs, at, 10, ACCURACY, (), lambda: self.now, lambda: 65.0
        )

    def change(self, **what: Any) -> None:
        self.now = replace(self.now, **what)

    def advance(self, to: int, steps: int) -> None:
        self.change(rounds=dict.fromkeys(self.now.rounds, float(to)), steps=self.now.steps + steps)


def row(method: str, score: float | None, seed: int = 0) -> dict[str, Any]:
    return {"run": f"a.{method}.s{seed}", "test_accuracy": score}


def paper(terminal: bool = False, width: int = 300) -> Any:
    """A console that keeps what is printed."""
    return Console(
        file=io.StringIO(), width=width, height=24, highlight=False, color_system=None,
        force_terminal=terminal, force_interactive=terminal,
    )  # fmt: skip


def drawn(bars: Bars, width: int = 100) -> list[str]:
    to = paper(width=width)
    to.print(bars.draw())
    return [line.rstrip() for line in to.file.getvalue().splitlines()]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def display() -> Iterator[ProgressDisplay]:
    with ProgressDisplay(paper(), lambda: "demo in runs/demo-1") as made:
        yield made


def lines(display: ProgressDisplay) -> list[str]:
    return display.console.file.getvalue().splitlines()  # type: ignore[attr-defined]


# --- events --------------------------------------------------------------------------------------------


def test_the_status_of_groups_adds_up() -> None:
    one = Status({"a": 2.0}, frozenset(), 100, 3.0, "", 2, 5)
    other = Status({"b": 1.0}, frozenset({"b"}), 50, 4.0, "compiling", 1, 3)
    both = Status({"a": 2.0, "b": 1.0}, frozenset({"b"}), 150, 4.0, "compiling", 3, 8)
    assert one | other == other | one == both
    assert (one.activity(), both.activity()) == ("", "compiling step 3 of at most 8")


# --- bars ----------------------------------------------------------------------------------------------


def test_a_bar_per_run(clock: list[float]) -> None:
    work = Work(seeds=2)
    bars = Bars([work.setting], [], 24, " (1 of 2)")
    bars.note([row("FedAvg", 0.5), row("FedAvg", 0.3), row("MOON", 0.4, seed=1)])
    clock[0] += 4
    work.advance(4, steps=400)
    work.change(diverged=frozenset({"a.MOON.s0"}), ended=frozenset({"a.MOON.s1"}))
    summary, header, *rows = [line.replace("━", "").replace("╸", "") for line in drawn(bars)]
    assert summary.split("  ") == [
        "a (1 of 2): round 4/10", "elapsed 1:05", "left 0:03", "best 50.00 (FedAvg)",
        "100 client-steps/s",
    ]  # fmt: skip
    assert header.split() == ["round", "last", "best", "left"]
    assert [line.split() for line in rows] == [
        ["FedAvg", "seed", "0", "4/10", "30.00", "50.00", "0:06"],
        ["FedAvg", "seed", "1", "4/10", "–", "–", "0:06"],
        ["MOON", "seed", "0", "4/10", "–", "–", "diverged"],
        ["MOON", "seed", "1", "4/10", "40.00", "40.00", "ended", "early"],
    ]


def test_speed_counts_neither_earlier_processes_nor_compiling(clock: list[float]) -> None:
    resumed = Work(at=6)
    bars = Bars([resumed.setting], [], 24)
    assert "left –" in bars.summary()
    clock[0] += 60
    bars.measure_from_now()  # it has compiled until now
    clock[0] += 2
    resumed.advance(7, steps=100)
    assert "left 0:06  50 client-steps/s" in bars.summary()
    resumed.change(diverged=frozenset(run.name for run in resumed.runs))
    assert "left 0:00" in bars.summary()


def test_many_runs_share_a_bar_per_method() -> None:
    bars = Bars([Work(seeds=MANY).setting], [row("MOON", 0.4), row("MOON", 0.6, seed=1)], 24)
    _, _, *rows = drawn(bars)
    assert [line.split()[:3] for line in rows] == [[m, str(MANY), "runs"] for m in METHODS]
    assert "50.00" in rows[1], "the mean over seeds"


def test_a_long_name_wraps_and_numbers_stay_whole() -> None:
    name = "SCAFFOLD(global_lr=0.123456789,period=25)"
    text = "\n".join(drawn(Bars([Work([name]).setting], [row(name, 0.4321)], 24), width=60)[1:])
    assert "43.21 43.21" in text
    assert "…" not in text


def test_a_metric_may_be_better_when_lower_or_undefined() -> None:
    setting = replace(Work().setting, metric=Metric("rmse", higher=False))
    rows = [row("FedAvg", 4.25), row("MOON", 1.5), row("MOON", 2.5), row("FedAvg", None)]
    bars = Bars([setting], rows, 24)
    assert "best 1.5 (MOON)" in bars.summary()
    assert bars.last == {"a.FedAvg.s0": 4.25, "a.MOON.s0": 2.5}


def on_cluster(devices: int, settings: int = 2) -> tuple[list[Work], ClusterProgress]:
    works = [Work(seeds=1) for _ in range(settings)]
    named = [
        replace(work.setting, name=f"set{i}", runs=[run._replace(name=f"{i}") for run in work.runs[:1]])
        for i, work in enumerate(works)
    ]  # fmt: skip
    for i, work in enumerate(works):
        work.change(rounds={f"{i}": 0.0})
    at_work = [DeviceStatus(f"node{i} GPU 0", f"set0 {i}", 100.0 * i) for i in range(devices)]
    return works, ClusterProgress(named, lambda: at_work, lambda: (1, 4))


def test_settings_and_devices_of_a_cluster(clock: list[float]) -> None:
    works, cluster = on_cluster(devices=2)
    bars = Bars(cluster.settings, [], 24, cluster=cluster)
    clock[0] += 10
    works[0].advance(5, steps=50)
    summary, _, *rows, first, second = drawn(bars)
    assert summary == (
        "1 of 4 groups done  elapsed 1:05  left 0:30  100 client-steps/s on 2 devices"
    )
    assert [line.split()[:2] for line in rows] == [["set0", "FedAvg"], ["set1", "FedAvg"]]
    assert first == "node0 GPU 0: set0 0, starting"
    assert second == "node1 GPU 0: set0 1, 100 client-steps/s"


def test_more_than_fits_on_the_screen() -> None:
    _, cluster = on_cluster(devices=256, settings=100)
    shown = drawn(Bars(cluster.settings, [], 24, cluster=cluster))
    assert "on 256 devices" in shown[0]
    assert not any("GPU" in line for line in shown)


# --- what is printed -----------------------------------------------------------------------------------


def test_without_a_terminal_each_checkpoint_is_a_line(
    display: ProgressDisplay, clock: list[float]
) -> None:
    work = Work(at=4)
    setting = replace(work.setting, notes=["7 of 212 clients dropped"])
    display.started(setting, [row("FedAvg", 0.4), row("MOON", 0.7), row("MOON", 0.6)])
    clock[0] += 2
    work.advance(5, steps=100)
    display.recorded([row("FedAvg", 0.5)])
    display.checkpoint(5)
    display.finished()
    assert lines(display) == [
        "demo in runs/demo-1",
        "a: 7 of 212 clients dropped",
        "a: round 5/10  elapsed 1:05  left 0:10  best 70.00 (MOON)  50 client-steps/s",
    ]


def test_lines_about_a_cluster_are_rare(display: ProgressDisplay, clock: list[float]) -> None:
    _, cluster = on_cluster(devices=2)
    display.started_on_cluster(cluster, [])
    for _ in range(60):
        display.checkpoint(2)
        clock[0] += 1
    assert sum("groups done" in line for line in lines(display)) == 6


@pytest.mark.parametrize("terminal", [False, True])
def test_compiling_is_a_line_without_a_terminal_and_else_part_of_the_summary(
    terminal: bool,
) -> None:
    work = Work()
    with ProgressDisplay(paper(terminal), lambda: "demo") as display:
        display.started(work.setting, [])
        work.change(doing="compiling", begun=3)
        display.preparing(24)
        bars = display._bars
        assert bars is not None
        assert bars.summary().endswith("compiling step 3 of at most 8")
        work.change(doing="")
        display.preparing(0)
    line = "a: compiling step 3 of at most 8 (24 rows)"
    assert (line in lines(display)) is not terminal


def test_a_run_that_diverges_is_reported_once_and_the_first_with_what_helps(
    display: ProgressDisplay,
) -> None:
    work = Work(["FedAvg", "FedDyn", "MOON"])
    work.change(diverged=frozenset({"a.MOON.s0"}))  # in an earlier process
    display.started(work.setting, [])
    display.recorded([])
    assert len(lines(display)) == 1
    work.change(diverged=frozenset(work.now.rounds), broke={"a.FedDyn.s0": BrokenVisit(4, 17, 2)})
    work.change(set_aside=1234)
    display.recorded([])
    display.recorded([])
    _, first, second = lines(display)
    assert first.startswith("a.FedAvg.s0 diverged")
    assert second.startswith("a.FedDyn.s0 diverged in round 4, in slot 2 at client 17.")
    assert display._bars is not None
    assert display._bars.summary().endswith("1,234 visits set aside")


def test_the_first_divergence_says_what_helps(display: ProgressDisplay) -> None:
    work = Work()
    display.started(work.setting, [])
    work.change(diverged=frozenset(work.now.rounds))
    display.recorded([])
    said = [all(key in line for key in ("local.lr", "local.clip")) for line in lines(display)[1:]]
    assert said == [True, False]


def test_a_terminal_is_left_clean_when_a_study_fails() -> None:
    to, before = paper(terminal=True, width=80), (sys.stdout, sys.stderr)

    def fail() -> None:
        with ProgressDisplay(to, lambda: "demo") as display:
            display.started(Work().setting, [])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    text = to.file.getvalue()
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor is back
    assert "a: round 0/10" in text, "the line that stays"
    assert (sys.stdout, sys.stderr) == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
def test_what_forked_processes_print_appears_above_the_bars(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def talk() -> None:
        print("a print")
        print("a warning", file=sys.stderr)
        os.write(2, b"of a library in C\n")

    to = paper(terminal=True)
    with ProgressDisplay(to, lambda: "demo") as display:
        display.started(Work().setting, [])
        process = multiprocessing.get_context("fork").Process(target=talk)
        process.start()
        process.join()
    for text in ("a print", "a warning", "of a library in C"):
        assert text in to.file.getvalue()
    assert capfd.readouterr() == ("", "")


# --- who is shown what ---------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("wanted", "to", "shown"),
    [
        (None, Terminal, True),
        (None, io.StringIO, False),  # a script whose output goes into a file
        (False, Terminal, False),
        (True, io.StringIO, True),
        (True, Terminal, True),
    ],
)
def test_it_is_shown_on_a_terminal_or_on_request(
    wanted: bool | None, to: type[io.StringIO], shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = to()
    monkeypatch.setattr("sys.stdout", file)
    with showing(wanted, lambda: "demo in runs/demo-1") as found:
        assert isinstance(found, ProgressDisplay) == shown
        found.started(Work().setting, [])
        found.checkpoint(1)
    assert (
        ("demo in runs/demo-1" in file.getvalue()) == ("a: round 0/10" in file.getvalue()) == shown
    )


class Notebook:
    """Stands in for IPython: keeps what an output has shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def display(self, content: dict[str, str], *, raw: bool, display_id: bool) -> Notebook:
        assert display_id
        return self.update(content, raw=raw)

    def update(self, content: dict[str, str], *, raw: bool) -> Notebook:
        assert raw
        assert content.keys() == {"text/plain"}, "the same on light and dark, and no scripts"
        self.shown.append(content["text/plain"])
        return self


def test_a_notebook_shows_bars_in_one_output_and_keeps_the_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("IPython")
    notebook, cell = Notebook(), Console(file=io.StringIO(), force_jupyter=True)
    monkeypatch.setattr("IPython.display.display", notebook.display)
    monkeypatch.setattr(progress, "console", lambda: cell)
    with showing(None, lambda: "demo in runs/demo-1") as display:
        display.started(Work().setting, [])
    first, second, *_, last = notebook.shown
    assert first == "preparing ... 0:00"
    assert second.startswith("demo in runs/demo-1\na: round 0/10")
    assert "MOON" in second
    assert [line.split(" ")[0] for line in last.splitlines()] == ["demo", "a:"]
    with showing(False, lambda: "demo") as ignored:
        assert type(ignored) is Progress


def test_a_custom_progress_is_taken_as_it_is() -> None:
    custom = Progress()
    with showing(custom, lambda: "demo") as found:
        assert found is custom
    with pytest.raises(InputError, match="progress"):
        showing("yes", lambda: "demo").__enter__()  # type: ignore[arg-type]
