"""The figures of a study, as axes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedskip.data.heatmap import sample_counts
from fedskip.data.partitions import Partition
from fedskip.errors import InputError
from fedskip.federation.server import draw_cohort
from fedskip.report.figures import finish, look, new_axes, to_bytes
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
    table.write_text("class,0\na,b\n")
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
