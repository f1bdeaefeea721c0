"""What a client remembers, in files."""

from pathlib import Path

import pytest
import torch

from fedskip.flower.memory import Versions

RUN = "0123456789abcdef"


def kept(versions: Versions) -> list[int]:
    return sorted(int(file.name[:6]) for file in versions.folder.glob("*.safetensors"))


def row(number: float) -> dict[str, torch.Tensor]:
    return {"c": torch.full((3,), number)}


def test_two_versions_are_kept_and_the_accepted_one_is_among_them(tmp_path: Path) -> None:
    versions = Versions(tmp_path, RUN)
    assert versions.load(0) == {}
    versions.save(1, row(1), accepted=0)
    versions.save(4, row(4), accepted=1)
    assert kept(versions) == [1, 4]
    versions.save(6, row(6), accepted=1)  # the reply of round 4 was lost
    assert kept(versions) == [1, 6]
    assert versions.load(1)["c"].tolist() == [1, 1, 1]
    versions.save(7, row(7), accepted=6)
    assert kept(versions) == [6, 7]


def test_the_same_round_again_replaces_what_it_left(tmp_path: Path) -> None:
    versions = Versions(tmp_path, RUN)
    versions.save(2, row(2), accepted=0)
    versions.save(2, row(3), accepted=0)
    assert kept(versions) == [2]
    assert versions.load(2)["c"].tolist() == [3, 3, 3]


def test_an_old_visit_that_ends_late_takes_nothing_away(tmp_path: Path) -> None:
    versions = Versions(tmp_path, RUN)
    versions.save(1, row(1), accepted=0)
    versions.save(5, row(5), accepted=1)
    versions.save(4, row(4), accepted=1)
    assert {1, 5} <= set(kept(versions))


def test_what_is_lost_or_damaged_is_an_error(tmp_path: Path) -> None:
    versions = Versions(tmp_path, RUN)
    with pytest.raises(ValueError, match="has no memory of round 3, which the server has accepted"):
        versions.load(3)
    versions.save(3, row(3), accepted=0)
    [file] = versions.folder.iterdir()
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match="is damaged"):
        versions.load(3)


def test_runs_do_not_mix_and_their_names_are_no_paths(tmp_path: Path) -> None:
    Versions(tmp_path, RUN).save(1, row(1), accepted=0)
    with pytest.raises(ValueError, match="has no memory"):
        Versions(tmp_path, RUN[::-1]).load(1)
    for name in ("../../etc", "", "ABCDEF0123456789", "0123/456789abcdef"):
        with pytest.raises(ValueError, match="hexadecimal"):
            Versions(tmp_path, name)
