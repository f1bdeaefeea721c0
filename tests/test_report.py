"""What a study shows: progress and closing table, on numbers that can be checked by hand."""

import doctest
import io
from types import SimpleNamespace

import pytest
import yaml
from rich.console import Console

from fedskip import config
from fedskip.history import SUMMARY, Table
from fedskip.report import live, units
from fedskip.report.live import Live, Pace
from fedskip.report.table import closing
from fedskip.study import Results


def test_units():
    found = doctest.testmod(units)
    assert (found.failed, found.attempted) == (0, 4)


# --- the closing table ---------------------------------------------------------------------------------


def run(method, seed, last, *, setting="a", final=None, diverged=False):
    numbers = {"last": last, "best": last, "mean_tail": last, "final": final, "bytes_total": 122_000}
    about = {"setting": setting, "run": f"{setting}.{method}.s{seed}", "method": method, "seed": seed}
    return about | numbers | {"merges": 5, "rounds": 5, "diverged": diverged}


@pytest.fixture
def table(tmp_path):
    """Prints the closing table of some runs; `color` keeps what makes a number bold."""

    def show(runs, settings=("a",), color=False, **keys):
        entries = [{"name": n, "reference": n == "centralised"} for n in settings]
        spec = config.build(
            config.Tree(
                {"name": "demo", "data": "synthetic", "settings": entries, "methods": "fedavg"} | keys
            )
        )
        tests = {n: 1000 + len(n) for n in settings}
        seen = {n: min(keys.get("eval_samples", size), size) for n, size in tests.items()}
        record = {n: {"divisions": {0: {"test": tests[n], "evaluated": seen[n]}}} for n in settings}
        (tmp_path / "study.yaml").write_text(yaml.safe_dump({"record": {"settings": record}}))
        console = Console(
            file=io.StringIO(), width=120, force_terminal=color, color_system="standard" if color else None
        )
        console.print(closing(Results(tmp_path, Table(SUMMARY), Table(SUMMARY, runs)), spec))
        return console.file.getvalue()

    return show


def line(text, start):
    return next(line.split() for line in text.splitlines() if line.strip().startswith(start))


def test_mean_and_deviation_over_seeds(table):
    text = table([run("FedAvg", seed, last) for seed, last in enumerate((0.5, 0.6, 0.7))])
    assert line(text, "FedAvg") == ["FedAvg", *["60.00", "±", "10.00"] * 3, "122", "kB", "5"]
    assert "Test accuracy in %, mean ± standard deviation over 3 seeds (0, 1, 2); 1,001 test samples" in text
    assert "tail: mean over the last 10% of the rounds" in text


def test_one_seed_has_no_deviation(table):
    text = table([run("FedAvg", 3, 0.5)])
    assert "±" not in text
    assert "seed 3;" in text


def test_columns_appear_where_they_have_something_to_say(table):
    text = table([run("FedAvg", 0, 0.5)])
    assert "final" not in text
    assert "diverged" not in text
    text = table([run("FedAvg", 0, 0.5), run("FedSkip-3", 0, 0.4, final=0.45)])
    assert line(text, "FedSkip-3")[1:5] == ["40.00", "40.00", "40.00", "45.00"]
    assert line(text, "FedAvg")[4] == "–"
    text = table([run("FedAvg", 0, 0.5), run("FedAvg", 1, None, diverged=True)])
    assert line(text, "FedAvg")[1:] == ["50.00", "50.00", "50.00", "122", "kB", "5", "1", "of", "2"]


def test_the_highest_of_a_setting_is_bold_and_a_reference_takes_no_part(table):
    runs = [run("FedAvg", 0, 0.5), run("MOON", 0, 0.6), run("FedAvg", 0, 0.9, setting="centralised")]
    text = table(runs, ["a", "centralised"], color=True)
    bold = "\x1b[1;32m"
    assert f"{bold}60.00" in text
    assert f"{bold}50.00" not in text
    assert f"{bold}90.00" not in text
    plain = table(runs, ["a", "centralised"])
    assert plain.index("MOON") < plain.index("centralised (FedAvg)")
    assert line(plain, "centralised") == ["centralised", "(FedAvg)", "90.00", "90.00", "90.00"]


def test_settings_are_told_apart(table):
    text = table([run("FedAvg", 0, 0.5), run("FedAvg", 0, 0.6, setting="bb")], ["a", "bb"])
    assert line(text, "a ")[:3] == ["a", "FedAvg", "50.00"]
    assert line(text, "bb")[:3] == ["bb", "FedAvg", "60.00"]
    assert "test samples: a 1,001, bb 1,002" in text


def test_other_metrics_are_no_percentages(table):
    text = table([run("FedAvg", 0, -0.25)], metric="minus_squared_error")
    assert line(text, "FedAvg")[1] == "-0.25"
    assert "Test minus squared error," in text


def test_a_test_set_seen_in_part_is_said_to_be(table):
    text = table([run("FedAvg", 0, 0.5) | {"full_test": 0.48}], eval_samples=100)
    assert "1,001 test samples, 100 of them while training" in text
    assert line(text, "FedAvg")[1:5] == ["50.00", "50.00", "50.00", "48.00"]
    for more in ({}, {"eval_samples": 5000}):
        text = table([run("FedAvg", 0, 0.5) | {"full_test": 0.5}], **more)
        assert "full test" not in text
        assert "while training" not in text


# --- progress ------------------------------------------------------------------------------------------


def batch(methods=("FedAvg", "MOON"), seeds=1, at=0):
    """What progress looks at of a `Batch`: ten rounds."""
    entries = [
        SimpleNamespace(
            name=f"a.{label}.s{seed}", method=SimpleNamespace(label=label), seed=seed, diverged=False,
            rounds_done=float(at),
        )
        for label in methods
        for seed in range(seeds)
    ]  # fmt: skip
    setting = SimpleNamespace(metric="accuracy")
    return SimpleNamespace(
        name="a", entries=entries, rounds=10, round=at, steps=1000 * at, elapsed=lambda: 65.0, engines=[None],
        preparing=0.0, prepared=SimpleNamespace(setting=setting),
    )  # fmt: skip


def advance(batch, to):
    batch.steps += 100 * (to - batch.round)
    batch.round = to
    for entry in batch.entries:
        entry.rounds_done = float(to)


def row(method, score, seed=0):
    return {"run": f"a.{method}.s{seed}", "test_accuracy": score}


@pytest.fixture
def now(monkeypatch):
    """A clock that tests set."""
    clock = SimpleNamespace(time=100.0)
    monkeypatch.setattr(live.time, "monotonic", lambda: clock.time)
    return clock


def test_pace_counts_only_the_work_of_this_process(now):
    resumed = batch(at=6)
    pace = Pace(resumed)
    assert pace.left(resumed.entries) is None
    now.time += 4
    advance(resumed, 8)
    assert pace.left(resumed.entries) == pytest.approx(4.0)  # 2 rounds took 4 s, 2 are left
    assert pace.speed() == pytest.approx(50.0)
    resumed.entries[0].diverged = True
    assert pace.left(resumed.entries[:1]) == 0.0


def test_compiling_does_not_count(now):
    work = batch()
    work.preparing = 3.0
    pace = Pace(work)
    now.time += 62
    work.preparing += 60.0
    advance(work, 2)
    assert pace.left(work.entries) == pytest.approx(8.0)  # 2 rounds took 2 s
    assert pace.speed() == pytest.approx(100.0)


def test_plain_lines_where_there_is_no_terminal(now):
    console = Console(file=io.StringIO(), width=80)
    with Live(console, lambda: "demo in runs/demo-1") as progress:
        progress.setting(work := batch(at=4), [row("FedAvg", 0.4), row("MOON", 0.7), row("MOON", 0.6)])
        now.time += 2
        advance(work, 5)
        progress.recorded([row("FedAvg", 0.5)])
        assert console.file.getvalue() == "demo in runs/demo-1\n"
        progress.checkpoint(work)
        progress.finished()
    assert console.file.getvalue().splitlines()[1:] == [
        "a: round 5/10  elapsed 1:05  left 0:10  best 70.00 (MOON)  50 client-steps/s"
    ]


def drawn(watch):
    console = Console(file=io.StringIO(), width=100, color_system=None)
    console.print(watch.screen(" (1 of 2)"))
    return console.file.getvalue()


def test_a_line_per_run_on_a_terminal(now):
    watch = live.Watch(work := batch(seeds=2), [])
    now.time += 4
    advance(work, 4)
    watch.note([row("FedAvg", 0.5), row("FedAvg", 0.3), row("MOON", 0.4, seed=1)])
    work.entries[2].diverged = True
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
    watch = live.Watch(batch(seeds=live.MANY), [row("MOON", 0.4, seed=0), row("MOON", 0.6, seed=1)])
    assert [line.label for line in watch.lines] == ["FedAvg", "MOON"]
    assert f"{live.MANY} seeds" in drawn(watch)
    assert "50.00" in drawn(watch)


def test_a_terminal_is_left_clean_when_a_study_fails():
    terminal = {"force_terminal": True, "force_interactive": True}
    console = Console(file=io.StringIO(), width=80, highlight=False, **terminal)

    def fail():
        with Live(console, lambda: "demo") as progress:
            progress.setting(batch(), [])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    text = console.file.getvalue()
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor is back
    assert "a: round 0/10" in text


def test_the_page_and_its_figures(tmp_path):
    from test_study import study

    def files(name):
        out = tmp_path / name
        study(out, methods="fedavg, fedskip(period=3)", settings=[
            {"name": "toy"},
            {"name": "centralised", "reference": True, "partition.kind": "pooled", "cohort": 1},
        ]).run()  # fmt: skip
        return out

    out, again = files("one"), files("two")
    names = {path.name for path in (out / "figures").iterdir()}
    assert names == {f"toy.{figure}.svg" for figure in ("accuracy", "bytes", "loss", "drift")}
    page = (out / "report.html").read_text()
    accuracy = (out / "figures" / "toy.accuracy.svg").read_text()
    for text in ("FedAvg", "FedSkip-3", "centralised"):
        assert text in page
        assert text in accuracy
    assert page.count("<svg") == 4
    assert "record:" in page  # the study itself
    assert (again / "figures" / "toy.accuracy.svg").read_text() == accuracy
