"""The closing table, on numbers that can be checked by hand."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from fedskip.report.closing import caption, closing, scored
from fedskip.report.sheet import BEST
from fedskip.report.units import Metric
from studies import curve, recorded, run


@pytest.fixture
def table(tmp_path):
    """Prints the closing table of some runs; `color` keeps what makes a number bold."""

    def show(runs, settings=("a",), color=False, width=120, rows=(), **keys):
        console = Console(
            file=io.StringIO(), width=width, force_terminal=color, color_system="standard" if color else None
        )
        console.print(closing(recorded(tmp_path, runs, settings, rows, **keys)))
        return console.file.getvalue()

    return show


def line(text, start):
    return next(line.split() for line in text.splitlines() if line.strip().startswith(start))


def test_mean_and_deviation_over_seeds(table):
    text = table([run("FedAvg", seed, last) for seed, last in enumerate((0.5, 0.6, 0.7))])
    assert line(text, "FedAvg") == ["FedAvg", *["60.00", "±", "10.00"] * 3, "122", "kB", "5"]
    assert "Test accuracy in %, mean ± standard deviation over 3 seeds (0, 1, 2); 1,001 test samples" in text
    assert "tail: mean over the last 10% of the rounds" in " ".join(text.split())


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


def test_bold_is_what_is_not_told_apart_from_the_highest(table):
    """MOON leads; FedNova differs by chance, FedAvg by more than that, and a run of SCAFFOLD diverged."""
    scores = {"MOON": (0.70, 0.72, 0.74), "FedNova": (0.71, 0.70, 0.74), "FedAvg": (0.60, 0.621, 0.642)}
    runs = [run(label, seed, score) for label, of in scores.items() for seed, score in enumerate(of)]
    runs += [run("SCAFFOLD", seed, 0.9, diverged=seed == 1) for seed in range(3)]
    text = table(runs, color=True)
    bold = "\x1b[1;32m"
    assert [f"{bold}{shown}" in text for shown in ("72.00", "71.67", "62.10", "90.00")] == [
        True,
        True,
        False,
        False,
    ]
    assert "Bold: not told apart from the highest, by Student's 95% interval" in " ".join(text.split())
    assert "one seed tells nothing of chance" in table([run("FedAvg", 0, 0.5), run("MOON", 0, 0.6)])


def test_the_round_of_last_is_told_where_it_is_not_the_last(table):
    rows = curve("FedAvg", 0, {1: 0.4, 5: 0.5}) + curve("FedSkip-3", 0, {3: 0.6})
    text = table([run("FedAvg", 0, 0.5), run("FedSkip-3", 0, 0.6)], rows=rows)
    assert line(text, "FedAvg")[1:3] == ["50.00", "50.00"]
    assert line(text, "FedSkip-3")[1:4] == ["60.00", "(3)", "60.00"]
    assert "In brackets: the round of `last`" in text


@pytest.mark.parametrize("width", [120, 80, 60, 40])
def test_columns_are_folded_and_no_digit_is_cut(table, width):
    labels = ["FedAvg", "SCAFFOLD+skip-10(init=random)"]
    runs = [run(label, seed, 0.5 + seed / 10, final=0.123) for label in labels for seed in (0, 1)]
    text = table(runs, width=width)
    assert max(map(len, text.splitlines())) <= width
    assert text.count("55.00 ± 7.07") == 6
    assert text.count("12.30 ± 0.00") == 2
    assert text.count("122 kB") == 2
    assert "…" not in text


def test_a_smaller_version_says_so(tmp_path):
    keys = {"rows": curve("FedAvg", 0, {1: 0.5}), "rounds": 5, "of_rounds": 200}
    results = recorded(tmp_path, [run("FedAvg", 0, 0.5)], **keys)
    assert caption(results).endswith("; reduced: 5 of 200 rounds.")
    assert "reduced: 5 of 200 rounds" in results.plot.curves().texts[0].get_text()
    other = recorded(tmp_path, [run("FedAvg", 0, 0.5)], **(keys | {"note": "not the paper's model"}))
    assert caption(other).endswith("; reduced: 5 of 200 rounds; not the paper's model.")
    assert "not the paper's model" in other.plot.curves().texts[0].get_text()
    whole = recorded(tmp_path, [run("FedAvg", 0, 0.5)], rounds=200, of_rounds=200)
    assert "reduced" not in caption(whole), "it was made longer since"
    few = recorded(tmp_path, [run("FedAvg", 0, 0.5)], **(keys | {"seeds": [0], "of_seeds": 3}))
    assert caption(few).endswith("; reduced: 5 of 200 rounds, 1 of 3 seeds.")


def test_where_lower_is_better(tmp_path):
    results = recorded(tmp_path, [run("FedAvg", 0, 4.0), run("MOON", 0, 3.0)])
    known = (Metric("rmse", higher=False),)
    results = replace(results, settings=tuple(replace(one, known=known) for one in results.settings))
    sheet = scored(results)
    assert [row[1].style for row in sheet.rows] == ["", BEST]
    assert "Test RMSE, seed 0" in sheet.note
    assert "best: the lowest of a run" in sheet.note
    assert "Bold: the lowest" in sheet.note
    assert "%" not in sheet.note.replace("10%", "")
