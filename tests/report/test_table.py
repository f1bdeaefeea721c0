"""The closing table, on numbers that can be checked by hand."""

import io

import pytest
import yaml
from rich.console import Console

from fedskip.records.history import SUMMARY
from fedskip.records.results import Results, Table
from fedskip.report.table import closing
from fedskip.spec import Draft


def run(method, seed, last, *, setting="a", final=None, diverged=False):
    numbers = {"last": last, "best": last, "mean_tail": last, "final": final, "bytes_total": 122_000}
    about = {"setting": setting, "run": f"{setting}.{method}.s{seed}", "method": method, "seed": seed}
    return about | numbers | {"merges": 5, "rounds": 5, "diverged": diverged}


@pytest.fixture
def table(tmp_path):
    """Prints the closing table of some runs; `color` keeps what makes a number bold."""

    def show(runs, settings=("a",), color=False, **keys):
        entries = [{"name": n, "reference": n == "centralised"} for n in settings]
        some = {"data": "synthetic", "methods": "fedavg", "partition": "natural", "model": "perceptron"}
        some |= {"cohort": 1, "rounds": 5} | keys
        settings_ = tuple(Draft(some | entry).resolved({}) for entry in entries)
        tests = {n: 1000 + len(n) for n in settings}
        seen = {n: min(keys.get("eval_samples", size), size) for n, size in tests.items()}
        record = {n: {"divisions": {0: {"test": tests[n], "evaluated": seen[n]}}} for n in settings}
        (tmp_path / "study.yaml").write_text(yaml.safe_dump({"record": {"settings": record}}))
        console = Console(
            file=io.StringIO(), width=120, force_terminal=color, color_system="standard" if color else None
        )
        console.print(closing(Results(tmp_path, Table(SUMMARY), Table(SUMMARY, runs), "demo", settings_)))
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
