"""FEMNIST from LEAF's json, an npz and the hub's parquet: one pool, LEAF's split, no repeated images."""

import io
import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from fedskip.data import cache, catalogue, femnist, load
from fedskip.data.division import pooled_test
from fedskip.data.partitions import partition
from fedskip.errors import InputError
from real_data import real


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSKIP_DATA", str(tmp_path / "cache"))


def handwriting(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 28, 28), mostly white, and labels; the last image repeats the first, as in LEAF."""
    draw = np.random.default_rng(seed)
    x = np.where(draw.random((n, 28, 28)) < 0.9, 255, draw.integers(0, 256, (n, 28, 28))).astype(
        np.uint8
    )
    y = draw.integers(0, 62, n)
    x[-1], y[-1] = x[0], y[0]
    return x, y


def leaf(path, **writers):
    """A LEAF file; every writer is images and labels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {
        name: {"x": (x.reshape(len(x), -1) / 255).tolist(), "y": y.tolist()}
        for name, (x, y) in writers.items()
    }
    content = {
        "users": list(data),
        "num_samples": [len(d["y"]) for d in data.values()],
        "user_data": data,
    }
    path.write_text(json.dumps(content))


def test_json_with_leafs_split(tmp_path):
    (ax, ay), (bx, by) = handwriting(100, 0), handwriting(60, 1)
    leaf(tmp_path / "data/train/0.json", a=(ax[:80], ay[:80]), b=(bx[:50], by[:50]))
    leaf(tmp_path / "data/test/0.json", a=(ax[80:], ay[80:]), b=(bx[50:], by[50:]))
    leaf(tmp_path / "data/all_data/0.json", c=handwriting(90, 2))  # what LEAF split, not looked at
    catalogue.import_("femnist", tmp_path / "data")
    data = load("femnist")
    assert data.owner_names == ("a", "b")
    assert data.defaults["clients"] == 1  # b has fewer than 64 training images
    train, test = data.split(0)
    assert (len(train), len(test)) == (80, 19)  # the repeated image had one twin on each side
    x, y = data.samples.take(torch.from_numpy(train))
    pixels = {image.tobytes() for image in x.numpy()}
    assert pixels == {image.tobytes() for image in ax[:80]} | {ax[-1].tobytes()}
    assert sorted(y.tolist()) == sorted([*ay[:80].tolist()])
    assert set(data.owner[train]) == set(data.owner[test]) == {0}
    shown = data.test_transform(x)
    assert shown.shape == (80, 1, 28, 28)
    assert shown.dtype == torch.float32
    assert float(shown.max()) == 1  # white stays 1
    assert torch.equal(data.train_transform(x, y), shown)

    assert load("femnist", min_train=50).defaults["clients"] == 2
    with pytest.raises(
        InputError, match=r"data.min_train leaves no writer, got 81\. Use 80 or less"
    ):
        load("femnist", min_train=81)


def test_json_without_a_split_is_split_by_seed(tmp_path):
    leaf(tmp_path / "0.json", a=handwriting(101, 0))
    leaf(tmp_path / "1.json", b=handwriting(71, 1), c=handwriting(91, 2))
    catalogue.import_("femnist", tmp_path)
    data = load("femnist")
    train, test = data.split(0)
    assert np.bincount(data.owner[train]).tolist() == [90, 0, 81]  # int(.9 n), and b has but 63
    assert np.bincount(data.owner[test]).tolist() == [10, 0, 9]
    assert not set(train) & set(test)
    assert data.split(0)[0].tolist() == train.tolist() != data.split(1)[0].tolist()


def test_npz(tmp_path):
    x, y = handwriting(150, 0)
    writer = np.repeat([1, 0], [70, 80])
    leaf_test = np.arange(150) % 10 == 0
    np.savez(
        tmp_path / "f.npz",
        x=x,
        y=y,
        writer=writer,
        writer_names=np.array(["q", "p"]),
        leaf_test=leaf_test,
    )
    found = femnist.read(tmp_path / "f.npz")
    assert found["name"].tolist() == ["p", "q"]
    assert (
        found["writer"].tolist() == [0] * 70 + [1] * 80
    )  # by name; other writers' twins are not twins
    assert found["test"].tolist() == leaf_test.tolist()
    np.testing.assert_array_equal(found["x"], x)
    np.savez(tmp_path / "g.npz", x=x, y=y, writer=writer)
    assert len(femnist.read(tmp_path / "g.npz")["test"]) == 0


def png(image: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is optional")
    parquet = pytest.importorskip("pyarrow.parquet")
    x, y = handwriting(75, 0)
    columns = {
        "image": [{"bytes": png(image), "path": None} for image in x],
        "writer_id": ["f0000_14"] * 75,
        "hsf_id": [0] * 75,
        "character": y,
    }
    path = tmp_path / "train-00000-of-00001.parquet"
    parquet.write_table(pyarrow.table(columns), path)
    found = femnist.read(tmp_path)
    np.testing.assert_array_equal(found["x"], x[:-1])
    assert found["y"].tolist() == y[:-1].tolist()
    assert found["name"].tolist() == ["f0000_14"]
    del columns["writer_id"]
    parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises(InputError, match="lacks the columns writer_id"):
        femnist.read(path)
    path.write_bytes(b"x" * 100)
    with pytest.raises(InputError, match="cannot be read as parquet"):
        femnist.read(path)


def test_pictures():
    image = handwriting(2, 0)[0][0]
    np.testing.assert_array_equal(femnist._pixels("f", png(image)), image)
    np.testing.assert_array_equal(
        femnist._pixels("f", {"bytes": png(image), "path": "a.png"}), image
    )


def test_parquet_needs_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"needs pyarrow to be read\. Run `pip install pyarrow`"):
        femnist.read(tmp_path / "a.parquet")


X, Y = handwriting(4, 0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"x": X.reshape(4, -1) / 255, "y": Y[:3]},
            r"ann must have as many labels as images, 4, got 3",
        ),
        (
            {"x": X[:, :27, :27].reshape(4, -1) / 255, "y": Y},
            r"images of 28 x 28 pixels, got \(729,\)",
        ),
        ({"x": X.reshape(4, -1) / 255, "y": Y * 0 + 62}, r"labels 0 to 61, .*got 62"),
        ({"x": X.reshape(4, -1) / 255, "y": Y * 0 - 1}, r"labels 0 to 61, .*got -1"),
        ({"x": X.reshape(4, -1) / 255, "y": Y + 0.5}, r"one whole number per image"),
        ({"x": X.reshape(4, -1), "y": Y}, r"pixels in 0\.\.1"),
        ({"x": X.reshape(4, -1) * np.nan, "y": Y}, r"pixels in 0\.\.1"),
        ({"x": 1 - X.reshape(4, -1) / 255, "y": Y}, r"white background.*Use 255 - x"),
        ({"y": Y}, r"must have x and y"),
    ],
)
def test_bad_json(tmp_path, data, message):
    content = {
        "users": ["ann"],
        "user_data": {"ann": {key: value.tolist() for key, value in data.items()}},
    }
    (tmp_path / "bad.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        catalogue.import_("femnist", tmp_path)
    assert not cache.has("femnist")


def test_what_is_not_leaf(tmp_path):
    with pytest.raises(InputError, match=r"holds no images\. Give LEAF's json folder"):
        femnist.read(tmp_path)
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(InputError, match="is not a LEAF json file"):
        femnist.read(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": None}, r"lacks y\."),
        ({"x": X[:, :20]}, r"28 x 28 pixels, got \(20, 28\)"),
        ({"x": X / 255}, r"x as uint8, white = 255, got 'float64'"),
        ({"writer": np.zeros(3, int)}, r"writer must have one entry per image, 4"),
        ({"leaf_test": np.zeros(5, bool)}, r"leaf_test must have one entry per image"),
        ({"y": Y[:2]}, r"as many labels as images"),
    ],
)
def test_bad_npz(tmp_path, change, message):
    arrays = {"x": X, "y": Y, "writer": np.zeros(4, int)} | change
    np.savez(
        tmp_path / "f.npz", **{key: value for key, value in arrays.items() if value is not None}
    )
    with pytest.raises(InputError, match=message):
        femnist.read(tmp_path / "f.npz")


def test_golden():
    path = real("femnist_leaf_subset.npz")
    with np.load(path) as file:
        arrays = {key: file[key] for key in ("x", "y", "writer", "dup", "leaf_test")}
    # our rule, an equal earlier image of the same writer and class, finds exactly LEAF's repeated images
    repeated = femnist._repeated(arrays["x"], arrays["y"], arrays["writer"])
    assert repeated.tolist() == arrays["dup"].tolist()
    assert repeated.sum() == 398

    catalogue.import_("femnist", path)
    data = load("femnist")
    train, test = data.split(0)
    assert (len(data.samples), len(train), len(test)) == (60_757 - 398, 53_357, 6_077)
    assert len(np.unique(data.owner[train])) == 367
    assert set(data.samples.labels()) == set(range(62))
    assert float(data.samples.x.float().mean()) > 240  # white background

    clients = partition(
        "natural", train, data.samples.labels(), clients=180, seed=0, owner=data.owner
    )
    chosen = pooled_test(data, test, clients)
    assert clients.sizes.min() >= 64
    assert set(data.owner[chosen]) == set(data.owner[clients.indices])
    assert len(set(data.owner[chosen])) == 180
