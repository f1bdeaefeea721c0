"""Figures as files, and scales that no diverging run can spoil."""

from __future__ import annotations

import numpy as np
import pytest

from fedskip.input.errors import InputError
from fedskip.report.canvas import drawn, finish, new_axes, settle


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


@pytest.mark.parametrize("logarithmic", [False, True])
def test_a_diverging_run_leaves_the_picture(logarithmic: bool) -> None:
    axes = new_axes()
    lines = {"A": np.array([1.0, 2.0]), "B": np.array([1.0, 3.0]), "C": np.array([1.0, 1e30])}
    for line in lines.values():
        axes.plot(line)
    assert settle(axes, lines, logarithmic) == ["C leaves the picture"]
    assert axes.get_ylim()[1] == pytest.approx(3.3)
    assert settle(new_axes(), {"A": lines["A"], "B": lines["B"]}, logarithmic) == []
    assert settle(new_axes(), {}, logarithmic) == []
