"""What an .npz file declares is checked before it is believed."""

import io
import zipfile

import numpy as np
import pytest

from fedskip.data.arrays import read_npz
from fedskip.input.errors import InputError


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_come_back(tmp_path, save):
    arrays = {
        "x": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "y": np.arange(0),
        "name": np.array(["ß"]),
    }
    save(tmp_path / "a.npz", **arrays)
    found = read_npz(tmp_path / "a.npz", "data.name", "")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"x.npy": b"1 2 3"}, r"x\.npy in it is no array"),
        ({"x": npy(np.ones(2))}, r"'x' in it is no array"),
        ({"x.npy": npy(np.ones(2))[:-1]}, r"x\.npy has the shape \(2,\) of float64 and 15 bytes for it"),
        ({"x.npy": npy(np.ones(2)) + b"1"}, r"x\.npy has the shape \(2,\) of float64 and 17 bytes for it"),
    ],
)
def test_members_that_are_no_arrays(tmp_path, members, message):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    with pytest.raises(InputError, match=message):
        read_npz(tmp_path / "a.npz", "data.name", "")
