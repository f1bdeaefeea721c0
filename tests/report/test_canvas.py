"""Figures as files."""

from __future__ import annotations

import pytest

from fedskip.input.errors import InputError
from fedskip.report.canvas import drawn, finish, new_axes


def test_text_stays_text_and_the_same_figure_gives_the_same_file() -> None:
    def figure() -> object:
        axes = new_axes()
        axes.plot([1, 2], [3, 4], label="FedSkip-5")
        return finish(axes, "a setting", ["a note"])

    for form in ("svg", "pdf", "png"):
        assert drawn(figure(), form) == drawn(figure(), form)  # type: ignore[arg-type]
    svg = drawn(figure(), "svg").decode()  # type: ignore[arg-type]
    for words in ("FedSkip-5", "a setting", "a note"):
        assert f">{words}</text>" in svg
    assert b"/Type3" not in drawn(figure(), "pdf")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="figures is not known, got 'jpg'"):
        drawn(figure(), "jpg")  # type: ignore[arg-type]


def test_long_notes_take_lines_and_not_the_width_of_the_axes() -> None:
    def width(note: str) -> float:
        axes = new_axes()
        axes.plot([1, 2], [3, 4], label="FedSkip-5")
        finish(axes, "a setting", [note] * 6)
        drawn(axes, "svg")
        return float(axes.get_position().width)

    assert width("1 of 3 seeds at chance") == pytest.approx(width("x"), rel=0.01)


def test_axes_are_their_picture_in_a_notebook() -> None:
    axes = new_axes()
    png, size = axes._repr_png_()  # type: ignore[attr-defined]
    assert png.startswith(b"\x89PNG")
    assert size == {"width": 640, "height": 400}
