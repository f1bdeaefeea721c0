"""A study that is in its folder, from anywhere."""

from pathlib import Path

import pytest

import fedskip
from fedskip.input.errors import InputError
from studies import study


def test_resume_goes_on_with_the_study_of_a_folder(tmp_path: Path) -> None:
    keys = {"model": {"name": "perceptron", "inputs": 2}, "methods": "fedavg", "seeds": 1}
    made = study(tmp_path / "out", rounds=2, **keys)
    made.run()
    with pytest.raises(InputError, match=r"a Python object.*Make the same Study in Python.*resume\(\)"):
        fedskip.resume(tmp_path / "out", rounds=4)
    with pytest.raises(InputError, match="holds no study"):
        fedskip.resume(tmp_path / "nowhere")
    assert [row["rounds"] for row in made.resume(rounds=4).summary] == [4]
