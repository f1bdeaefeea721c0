"""Data sets of Hugging Face: tables, vectors and images."""

from __future__ import annotations

import numpy as np
import pytest

from fedskip import InputError, Study, from_huggingface

datasets = pytest.importorskip("datasets")


def test_hugging_face() -> None:
    names = datasets.ClassLabel(names=["cat", "dog", "cow"])
    kinds = {"a": datasets.Value("float32"), "y": names, "who": datasets.Value("string")}
    rows = {"a": [1.0, 2, 3, 4], "y": [1, 0, 1, 1], "who": ["n", "n", "s", "s"]}
    table = datasets.Dataset.from_dict(rows, features=datasets.Features(kinds))
    with pytest.raises(
        InputError, match=r"Write data=fedskip.from_huggingface\(dataset, label='COLUMN'\)"
    ):
        Study(data=table)
    tests = datasets.Dataset.from_dict(rows | {"a": [5.0, 6, 7, 8]}, features=table.features)
    data = from_huggingface(datasets.DatasetDict(train=table, test=tests), label="y", client="who")
    assert (data.class_names, data.input_names) == (("cat", "dog", "cow"), ("a",))
    assert data.samples.labels().tolist() == [1, 0, 1, 1] * 2
    assert [half.tolist() for half in data.split(0)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(InputError, match=r"must have a split called 'train'.*dataset\['dev'\]"):
        from_huggingface(datasets.DatasetDict(dev=table), label="y")
    vectors = table.add_column("v", [[1.0, 2], [3, 4], [5, 6], [7, 8]])
    data = from_huggingface(vectors, label="y", client="who", features=["v"])
    assert data.samples.x.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]  # type: ignore[attr-defined]
    assert from_huggingface(vectors, label="y", drop=["v", "who"]).input_names == ("a",)
    ragged = table.add_column("v", [[1.0, 2], [3], [5, 6], [7, 8]])
    with pytest.raises(
        InputError, match=r"v must be alike in all samples; sample 0 is .* sample 1 another"
    ):
        from_huggingface(ragged, label="y", features=["v"])
    with pytest.raises(InputError, match=r"data must be a datasets.Dataset, got 'list'"):
        from_huggingface([1], label="y")


def test_images() -> None:
    pixels = np.arange(4 * 5 * 6 * 3, dtype=np.uint8).reshape(4, 5, 6, 3)
    kinds = {"image": datasets.Image(), "y": datasets.Value("int64")}
    rows = {"image": list(pixels), "y": [0, 1, 1, 0]}
    images = datasets.Dataset.from_dict(rows, features=datasets.Features(kinds))
    data = from_huggingface(images, label="y")
    assert np.array_equal(data.samples.x.numpy(), np.moveaxis(pixels, -1, 1))  # type: ignore[attr-defined]
    assert data.samples.labels().tolist() == [0, 1, 1, 0]
    with pytest.raises(InputError, match=r"option for pictures and arrays .* got 'gaps'"):
        from_huggingface(images, label="y", gaps="drop")
