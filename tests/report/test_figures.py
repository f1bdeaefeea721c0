"""The figures of a study, as axes, their lines, and how methods look."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedskip.data.division import sample_counts
from fedskip.data.partitions import Partition
from fedskip.errors import InputError
from fedskip.federation.server import draw_cohort
from fedskip.methods import registry
from fedskip.records.history import HISTORY
from fedskip.records.table import Row, Table
from fedskip.report.figures import (
    KNOWN,
    curves,
    finish,
    hyper_parameter,
    look,
    mean_line,
    new_axes,
    to_bytes,
    without_outliers,
)
from fedskip.report.page import figures
from fedskip.report.results import Results
from studies import curve, recorded, run, study, toy


def made(tmp_path: Path, **keys: object) -> Results:
    rows = [
        *curve("FedAvg", 0, {1: 0.3, 2: 0.5}), *curve("FedAvg", 1, {1: 0.5, 2: 0.7}),
        *curve("FedSkip-2", 0, {2: 0.6}), *curve("FedSkip-2", 1, {2: 0.8}),
    ]  # fmt: skip
    runs = [
        run(label, seed, 0.5) | {"period": period}
        for label, period in (("FedAvg", 1), ("FedSkip-2", 2))
        for seed in (0, 1)
    ]
    runs.append(run("FedAvg", 0, 0.9, setting="centralised") | {"period": 1})
    return recorded(tmp_path, runs, ["a", "centralised"], rows, **keys)


def test_curves_have_units_a_band_and_one_look_per_method(tmp_path: Path) -> None:
    axes = made(tmp_path).plot.curves()
    fedavg, skip, reference = axes.get_lines()
    assert fedavg.get_xydata().tolist() == [[1.0, pytest.approx(40.0)], [2.0, pytest.approx(60.0)]]
    assert skip.get_xydata().tolist() == [[2.0, pytest.approx(70.0)]]
    assert set(reference.get_ydata()) == {90.0}
    assert [line.get_color() for line in (fedavg, skip)] == [
        look("FedAvg").colour,
        look("FedSkip-2").colour,
    ]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("round", "test accuracy (%)")
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["FedAvg", "FedSkip-2", "centralised"]
    assert axes.texts[0].get_text() == "mean of 2 seeds, band: lowest to highest"
    edge = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (edge.min(), edge.max()) == (pytest.approx(30.0), pytest.approx(70.0))
    assert all(tick == int(tick) for tick in axes.get_xticks()), "rounds are whole"
    assert made(tmp_path).plot.bytes().get_xlabel() == "sent, both ways (MB)"
    assert made(tmp_path).plot.drift().get_yscale() == "log"


def test_smoothing_is_said(tmp_path: Path) -> None:
    rows = curve("FedAvg", 0, {r: float(r % 2) for r in range(1, 201)})
    results = recorded(tmp_path, [run("FedAvg", 0, 0.5)], rows=rows, rounds=200)
    axes = results.plot.curves()
    assert axes.texts[0].get_text() == "seed 0; smoothed over 4 rounds"
    assert np.ptp(axes.get_lines()[0].get_ydata()[4:]) < 1e-9
    raw = results.plot.curves(smooth=0)
    assert raw.texts[0].get_text() == "seed 0"
    assert np.ptp(raw.get_lines()[0].get_ydata()) == 100


def test_sweep(tmp_path: Path) -> None:
    results = made(tmp_path)
    axes = results.plot.sweep(score="last")
    assert axes.get_lines()[0].get_xydata().tolist() == [[1.0, 50.0], [2.0, 50.0]]
    with pytest.raises(InputError, match="parameter has no two values in this study, got 'mu'"):
        results.plot.sweep("mu")
    reduced = made(tmp_path, record={"full_rounds": 200}).plot.sweep()
    assert reduced.texts[0].get_text().endswith("; reduced: 5 of 200 rounds")


def test_routing_is_what_the_server_draws(tmp_path: Path) -> None:
    results = made(tmp_path, cohort=3, cohort_policy="uniform")
    axes = results.plot.routing(seed=1)
    expected = np.stack([draw_cohort("uniform", 1, r, 20, 3) for r in range(5)], 1)
    assert np.asarray(axes.images[0].get_array()).tolist() == expected.tolist()
    assert [line.get_xdata()[0] for line in axes.get_lines()] == [2.5, 4.5]
    assert "FedSkip-2, seed 1" in axes.texts[-1].get_text()


def test_clients_and_partition_of_a_real_study(tmp_path: Path) -> None:
    keys = {
        "methods": "fedavg, fedskip(period=2)",
        "rounds": 2,
        "seeds": 2,
        "client_accuracy": True,
    }
    results = study(tmp_path / "s", **keys).run()
    lines = results.plot.clients().get_lines()
    assert len(lines) == 2
    assert all((np.diff(line.get_ydata()) >= 0).all() for line in lines)
    counts = np.asarray(results.plot.partition(seed=1).images[0].get_array())
    assert (counts.shape, counts.sum()) == ((2, 8), 8 * 16)
    with pytest.raises(InputError, match=r"the data were divided with, got 99\. There are 0, 1"):
        results.plot.partition(seed=99)
    table = tmp_path / "s" / "samples-toy-0.csv"
    table.write_text(sample_counts(Partition(np.arange(2000), np.arange(0, 2001, 2)), toy()))
    many = results.plot.partition()
    assert not many.patches, "a bar for each of many clients would take minutes"
    assert many.collections[0].get_paths()[0].vertices[:, 0].max() == 999
    for damaged in ("class,0\na,b\n", "class;0\na;1\n", ""):
        table.write_text(damaged)
        with pytest.raises(InputError, match=r"samples-toy-0\.csv cannot be read"):
            results.plot.partition()
    plain = study(tmp_path / "plain", methods="fedavg", rounds=1, seeds=1).run()
    with pytest.raises(InputError, match="clients were not measured in this study"):
        plain.plot.clients()


def test_bad_names(tmp_path: Path) -> None:
    plot = made(tmp_path).plot
    with pytest.raises(InputError, match="setting is not known, got 'b'"):
        plot.curves("b")
    with pytest.raises(
        InputError, match=r"y is not known, got 'accuracy'\. Did you mean 'test_accuracy'"
    ):
        plot.curves(y="accuracy")
    with pytest.raises(InputError, match="x is not known, got 'rounds'"):
        plot.curves(x="rounds")
    with pytest.raises(InputError, match="seed is not one that FedSkip-2 was run with, got 99"):
        plot.routing(seed=99)
    with pytest.raises(InputError, match="score is not known, got 'nope'"):
        plot.sweep(score="nope")


def test_a_run_that_diverged_does_not_cut_the_others(tmp_path: Path) -> None:
    rows = curve("FedAvg", 0, {1: 0.3, 2: 0.5, 3: 0.6}) + curve("FedAvg", 1, {1: 0.1})
    results = recorded(
        tmp_path, [run("FedAvg", 0, 0.6), run("FedAvg", 1, 0.1, diverged=True)], rows=rows
    )
    axes = results.plot.curves()
    assert axes.get_lines()[0].get_xdata().tolist() == [1, 2, 3]
    assert "without runs that diverged: FedAvg (1 of 2)" in axes.texts[0].get_text()


def test_names_are_text_and_a_partition_is_its_settings_own(tmp_path: Path) -> None:
    odd = "_Cost$^$_"
    results = recorded(tmp_path, [run(odd, 0, 0.5)], rows=curve(odd, 0, {1: 0.5}))
    axes = results.plot.curves()
    assert axes.get_legend().get_texts()[0].get_text().endswith(odd)
    assert b"Cost$^$_" in to_bytes(axes, "svg")
    (tmp_path / "samples-a-0.csv").write_text("class,0,1\nall,2,4\n")
    (tmp_path / "samples-a-0-0.csv").write_text("class,0\nall,9\n")
    assert [bar.get_height() for bar in results.plot.partition().patches] == [4, 2]
    (tmp_path / "samples-a-0.csv").unlink()
    with pytest.raises(InputError, match="partition was not kept"):
        results.plot.partition()


def test_settings_that_have_not_begun_are_left_out(tmp_path: Path) -> None:
    results = recorded(tmp_path, [run("FedAvg", 0, 0.5)], ["a", "b"], curve("FedAvg", 0, {1: 0.5}))
    with pytest.raises(InputError, match="setting has no results yet, got 'b'"):
        results.plot.curves("b")
    for figure in figures(replace(results, finished=False)):
        if figure.place == "b":
            with pytest.raises(InputError):
                figure.draw()


# --- files ---------------------------------------------------------------------------------------------


def test_text_stays_text_and_the_same_figure_gives_the_same_file() -> None:
    def figure() -> object:
        axes = new_axes()
        axes.plot([1, 2], [3, 4], label="FedSkip-5")
        return finish(axes, "a setting", ["a note"])

    for form in ("svg", "pdf", "png"):
        assert to_bytes(figure(), form) == to_bytes(figure(), form)  # type: ignore[arg-type]
    svg = to_bytes(figure(), "svg").decode()  # type: ignore[arg-type]
    for words in ("FedSkip-5", "a setting", "a note"):
        assert f">{words}</text>" in svg
    assert b"/Type3" not in to_bytes(figure(), "pdf")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="figures is not known, got 'jpg'"):
        to_bytes(figure(), "jpg")  # type: ignore[arg-type]


def test_long_notes_take_lines_and_not_the_width_of_the_axes() -> None:
    def width(note: str) -> float:
        axes = new_axes()
        axes.plot([1, 2], [3, 4], label="FedSkip-5")
        finish(axes, "a setting", [note] * 6)
        to_bytes(axes, "svg")
        return float(axes.get_position().width)

    assert width("1 of 3 seeds at chance") == pytest.approx(width("x"), rel=0.01)


def test_axes_are_their_picture_in_a_notebook() -> None:
    axes = new_axes()
    png, size = axes._repr_png_()  # type: ignore[attr-defined]
    assert png.startswith(b"\x89PNG")
    assert size == {"width": 640, "height": 400}


# --- lines: means over seeds, smoothed and thinned ---------------------------------------------------


def line(
    *runs: list[Row], y: str = "test_accuracy", window: int = 0, factor: float = 1.0
) -> pd.DataFrame:
    rows = [row for rows in runs for row in rows]
    return mean_line(Table(HISTORY, rows).frame(), y, window, factor)


def test_a_line_is_over_the_rounds_that_all_seeds_have() -> None:
    runs = curve("A", 0, {1: 0.1, 2: 0.3}), curve("A", 1, {1: 0.2, 2: 0.5, 3: 1})
    found = line(*runs)
    assert found["round"].tolist() == found["merges"].tolist() == [1, 2]
    assert (found["low"].tolist(), found["high"].tolist()) == ([0.1, 0.3], [0.2, 0.5])
    assert found["mean"].tolist() == pytest.approx([0.15, 0.4])
    assert found["bytes"].tolist() == pytest.approx([110e-6, 220e-6])  # MB
    smooth = line(*runs, window=2, factor=100)["mean"].tolist()
    assert smooth == pytest.approx([15, 100 * (0.2 + 0.35) / 2])


def test_what_is_not_finite_is_left_out() -> None:
    rows = curve("A", 0, {1: 0.1, 2: math.inf, 3: 0.3})
    found = line(rows)
    assert (found["round"].tolist(), found["mean"].tolist()) == ([1, 3], [0.1, 0.3])
    assert len(line()) == 0
    assert len(line(rows, y="slot_accuracy")) == 0, "it was not measured"
    assert len(line(rows, curve("A", 1, {1: math.nan}))) == 0, "a seed has no number at all"


def test_a_smoothed_line_is_thinned_and_keeps_its_ends(tmp_path: Path) -> None:
    rows = curve("A", 0, {r: r / 1000 for r in range(1, 1001)})
    results = recorded(tmp_path, [run("A", 0, 0.5)], rows=rows, rounds=1000)
    [setting] = results.settings
    few = curves(results, setting, "test_accuracy").lines["A"]["round"].tolist()
    assert (len(few), few[0], few[-1]) == (150, 1, 1000)
    assert len(curves(results, setting, "test_accuracy", smooth=0).lines["A"]) == 1000


@pytest.mark.parametrize("logarithmic", [False, True])
def test_a_diverging_run_leaves_the_picture(logarithmic: bool) -> None:
    def of(*values: float) -> pd.DataFrame:
        return pd.DataFrame({"mean": np.array(values)})

    lines = {"A": of(1.0, 2.0), "B": of(1.0, 3.0), "C": of(1.0, 1e30)}
    bottom = 0.8 if logarithmic else 0.0
    assert without_outliers(lines, logarithmic) == (["C"], (bottom, pytest.approx(3.3)))
    assert without_outliers({"A": lines["A"], "B": lines["B"]}, logarithmic) == ([], None)
    assert without_outliers({}, logarithmic) == ([], None)


@pytest.mark.parametrize(
    ("label", "period", "parameter", "expected"),
    [
        ("FedAvg", "1", "period", ("FedSkip", 1.0)),
        ("FedSkip-5", "5", "period", ("FedSkip", 5.0)),
        ("FedSkip-1x2,3", "1x2,3", "period", None),
        ("SCAFFOLD+skip-3", "3", "period", None),
        ("MOON(mu=5.0, temperature=0.1)", "1", "temperature", ("MOON(mu=5.0)", 0.1)),
        ("MOON(mu=5.0, temperature=0.1)", "1", "mu", ("MOON(temperature=0.1)", 5.0)),
        ("FedProx(mu=1e-05)", "1", "mu", ("FedProx", 1e-5)),
        ("MOON", "1", "mu", None),
    ],
)
def test_hyper_parameters_of_labels(label, period, parameter, expected) -> None:
    assert hyper_parameter(label, period, parameter) == expected


# --- one colour and one marker for each method -------------------------------------------------------


def test_our_methods_have_looks_of_their_own() -> None:
    looks = [look(method().label) for method in registry().values()]
    assert {method.title for method in registry().values()} == set(KNOWN)
    assert len({one.colour for one in looks}) == len({one.marker for one in looks}) == len(looks)


def test_periods_are_shades_of_one_blue() -> None:
    shades = [look(f"FedSkip-{period}") for period in (3, 5, 7, 10, 15, 20)]
    light = [sum(bytes.fromhex(one.colour[1:])) for one in shades]
    assert light == sorted(light, reverse=True)
    assert len(set(light)) == len({one.marker for one in shades}) == 6
    for one in shades:
        red, _, blue = bytes.fromhex(one.colour[1:])
        assert blue > red
    assert look("FedSkip-500").colour == look("FedSkip-20").colour
    assert look("FedSkip-1x50,5").colour == look("FedSkip-5").colour
    assert (look("FedSkip-1x50,5").line, look("FedSkip-5").line) == ("-.", "-")


@pytest.mark.parametrize(
    "label", ["Mine", "Mine(a=1, b='x')", "FedSkip-1x10,5", "FedAvg-unmerged", "x(y", "é"]
)
def test_every_label_has_a_look_that_does_not_change(label: str) -> None:
    assert look(label) == look.__wrapped__(label)
    assert len(look(label).colour) == 7


def test_a_method_that_skips_is_dashed_and_a_variant_is_of_its_colour() -> None:
    assert look("SCAFFOLD+skip-5").line == "--"
    red, green, blue = bytes.fromhex(look("SCAFFOLD+skip-5").colour[1:])
    assert green > max(red, blue), "a shade of SCAFFOLD's green"
    for one, other in (
        ("MOON(mu=1.0)", "MOON(mu=5.0)"), ("MOON(mu=0.01)", "MOON(mu=10.0)"),
        ("SCAFFOLD+skip-5", "SCAFFOLD+skip-10"), ("FedSkip-2", "FedSkip-1x10,5"),
        ("FedSkip-25", "FedSkip-31"),
    ):  # fmt: skip
        assert look(one) != look(other)
