"""What a client remembers, in files."""

from pathlib import Path

import pytest
import torch

from fedskip.flower.memory import MemoryFiles

RUN = "0123456789abcdef"


def kept(files: MemoryFiles) -> list[int]:
    return sorted(int(file.name[:6]) for file in files.folder.glob("*.safetensors"))


def row(number: float) -> dict[str, torch.Tensor]:
    return {"c": torch.full((3,), number)}


def test_two_versions_are_kept_and_the_accepted_one_is_among_them(tmp_path: Path) -> None:
    files = MemoryFiles(tmp_path, RUN)
    assert files.load(0) == {}
    files.save(1, row(1), accepted=0)
    files.save(4, row(4), accepted=1)
    assert kept(files) == [1, 4]
    files.save(6, row(6), accepted=1)  # the reply of round 4 was lost
    assert kept(files) == [1, 6]
    assert files.load(1)["c"].tolist() == [1, 1, 1]
    files.save(7, row(7), accepted=6)
    assert kept(files) == [6, 7]


def test_the_same_round_again_replaces_what_it_left(tmp_path: Path) -> None:
    files = MemoryFiles(tmp_path, RUN)
    files.save(2, row(2), accepted=0)
    files.save(2, row(3), accepted=0)
    assert kept(files) == [2]
    assert files.load(2)["c"].tolist() == [3, 3, 3]


def test_an_old_visit_that_ends_late_takes_nothing_away(tmp_path: Path) -> None:
    files = MemoryFiles(tmp_path, RUN)
    files.save(1, row(1), accepted=0)
    files.save(5, row(5), accepted=1)
    files.save(4, row(4), accepted=1)
    assert {1, 5} <= set(kept(files))


def test_what_is_lost_or_damaged_is_an_error(tmp_path: Path) -> None:
    files = MemoryFiles(tmp_path, RUN)
    with pytest.raises(ValueError, match="has no memory of round 3, which the server has accepted"):
        files.load(3)
    files.save(3, row(3), accepted=0)
    [file] = files.folder.iterdir()
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match="is damaged"):
        files.load(3)


def test_runs_do_not_mix_and_their_names_are_no_paths(tmp_path: Path) -> None:
    MemoryFiles(tmp_path, RUN).save(1, row(1), accepted=0)
    with pytest.raises(ValueError, match="has no memory"):
        MemoryFiles(tmp_path, RUN[::-1]).load(1)
    for name in ("../../etc", "", "ABCDEF0123456789", "0123/456789abcdef"):
        with pytest.raises(ValueError, match="hexadecimal"):
            MemoryFiles(tmp_path, name)
