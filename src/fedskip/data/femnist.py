"""FEMNIST (LEAF): handwritten digits and letters, 62 classes of 28×28 pixels; a writer is a client.

Ink is dark on a white background (255), as LEAF has it.
"""

import io
import json
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskip.data import cache
from fedskip.data.arrays import read_npz
from fedskip.data.base import Arrays, Dataset, Split
from fedskip.data.split import within_owners
from fedskip.files import refuse_too_large, refuse_unreadable
from fedskip.input.errors import InputError, said

CLASSES, SIDE = 62, 28  # 0-9, A-Z, a-z
CLIENTS, MIN_TRAIN, TRAIN_FRACTION = 180, 64, 0.9  # the paper's, the last one LEAF's default
ACCEPTS = "LEAF's json folder with `train` and `test` in it, an .npz with x, y and writer, or a hub .parquet"

# Images (n, 28, 28) uint8, labels (n,), the name of each one's writer (n,), and whether LEAF tests on them
Part = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]


def load(min_train: int = MIN_TRAIN) -> Dataset:
    """All images as one pool; a client is a writer with at least `min_train` training images."""
    fix = cache.importing("femnist", ACCEPTS)
    x, y, writer, name, test = cache.read("femnist", "x", "y", "writer", "name", "test", fix=fix)
    writer = np.asarray(writer)
    official = len(test) > 0
    sizes = np.bincount(writer[~test] if official else writer, minlength=len(name))
    train_sizes = sizes if official else (TRAIN_FRACTION * sizes).astype(np.int64)
    kept = train_sizes >= min_train
    if not kept.any():
        raise InputError("data.min_train", "leaves no writer", min_train, f"use {train_sizes.max()} or less")

    def split(seed: int) -> Split:
        leaf = np.flatnonzero(~test), np.flatnonzero(test)
        train, rest = leaf if official else within_owners(writer, TRAIN_FRACTION, seed)
        return train[kept[writer[train]]], rest[kept[writer[rest]]]

    return Dataset(
        name="femnist",
        samples=Arrays(torch.from_numpy(x), torch.from_numpy(y)),
        split=split,
        classes=CLASSES,
        owner=writer,
        owner_names=tuple(name.tolist()),
        train_transform=as_train_input,
        test_transform=as_input,
        defaults={
            "model.name": "cnn-femnist",
            "partition.kind": "natural",
            "clients": min(CLIENTS, int(kept.sum())),
            "cohort": 10,
            "rounds": 200,
        },
    )


def as_input(x: Tensor) -> Tensor:
    """x (m, 28, 28) uint8 -> (m, 1, 28, 28) float32 in [0, 1], as LEAF stores it; no normalisation."""
    return x.unsqueeze(1).to(torch.float32) / 255


def as_train_input(x: Tensor, word: Tensor) -> Tensor:
    """The same: nothing is random here."""
    return as_input(x)


def read(path: Path) -> dict[str, np.ndarray]:
    """LEAF's json, an npz or parquet as arrays for the cache, without LEAF's repeated images."""
    if path.suffix == ".npz":
        parts = list(_from_npz(path))
    elif path.suffix == ".parquet" or (path.is_dir() and any(path.glob("*.parquet"))):
        parts = list(_from_parquet(path))
    else:
        parts = list(_from_json(path))
    if not sum(len(part[0]) for part in parts):
        raise InputError(str(path), "holds no images", fix=f"give {ACCEPTS}")
    images, labels, writers, tests = zip(*parts, strict=True)
    x, y, written_by = np.concatenate(images), np.concatenate(labels), np.concatenate(writers)
    # LEAF's json has a split for all files or for none
    test = np.concatenate([part for part in tests if part is not None] or [np.zeros(0, bool)])
    if x.mean() < 128:
        rule = "must have a white background as LEAF's images do, and is mostly dark"
        raise InputError(str(path), rule, f"mean pixel {x.mean():.0f}", "use 255 - x")
    name, writer = np.unique(written_by, return_inverse=True)
    first = ~_repeated(x, y, writer)
    return {
        "x": x[first],
        "y": y[first].astype(np.int64),
        "writer": writer[first],
        "name": name,
        "test": test[first] if len(test) else test,
    }


def _repeated(x: np.ndarray, y: np.ndarray, writer: np.ndarray) -> np.ndarray:
    """Which images are a copy of an earlier one of the same writer and class, (n,).

    LEAF lists the first image of most writers twice, and its random split puts some twins on both sides.
    """
    seen: set[tuple[int, int, bytes]] = set()
    repeated = np.zeros(len(x), bool)
    for i, (image, label, who) in enumerate(zip(x, y.tolist(), writer.tolist(), strict=True)):
        key = (who, label, blake2b(image.tobytes(), digest_size=16).digest())
        repeated[i] = key in seen
        seen.add(key)
    return repeated


def _checked(where: str, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 28, 28) and labels (n,) that fit together, or an error that says where they do not."""
    if not x.ndim or not y.ndim:
        raise InputError(where, "must have lists of images and labels")
    if len(x) != len(y):
        raise InputError(where, f"must have as many labels as images, {len(x)}", len(y))
    if x.shape[1:] not in ((SIDE, SIDE), (SIDE * SIDE,)):
        raise InputError(where, "must have images of 28 x 28 pixels", x.shape[1:])
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise InputError(where, "must have one whole number per image as label", f"{y.dtype} {y.shape}")
    if len(wrong := y[(y < 0) | (y >= CLASSES)]):
        raise InputError(where, f"must have labels 0 to {CLASSES - 1}", int(wrong[0]))
    return x.reshape(-1, SIDE, SIDE), y


def _from_npz(path: Path) -> Iterator[Part]:
    arrays = read_npz(path, "PATH", f"give {ACCEPTS}")
    if missing := {"x", "y", "writer"} - arrays.keys():
        raise InputError(str(path), f"lacks {', '.join(sorted(missing))}", fix=f"give {ACCEPTS}")
    x, y = _checked(str(path), arrays["x"], arrays["y"])
    if x.dtype != np.uint8:
        raise InputError(str(path), "must have x as uint8, white = 255", str(x.dtype))
    for key in ("writer", "leaf_test"):
        if key in arrays and arrays[key].shape != y.shape:
            raise InputError(f"{path}: {key}", f"must have one entry per image, {len(y)}", arrays[key].shape)
    writer = arrays["writer"]
    if "writer_names" in arrays:
        names = arrays["writer_names"]
        whole = writer.dtype.kind in "iu" and names.ndim == 1
        if not whole or (len(writer) and not 0 <= writer.min() <= writer.max() < len(names)):
            raise InputError(f"{path}: writer", f"must be numbers of the {len(names)} writer_names")
        writer = names[writer]
    if writer.dtype.kind not in "iuU":
        raise InputError(f"{path}: writer", "must be whole numbers or texts", str(writer.dtype))
    test = arrays.get("leaf_test")
    if test is not None and test.dtype != bool:
        raise InputError(f"{path}: leaf_test", "must be true or false for each image", str(test.dtype))
    yield x, y, writer.astype(str), test


def _from_json(path: Path) -> Iterator[Part]:
    """LEAF's files of up to 100 writers: `train` and `test` folders if there are any, else all files."""
    files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
    # Training first, so that of twins on both sides the one in the test set is dropped.
    official = [file for part in ("train", "test") for file in files if file.parent.name == part]
    for file in official or files:
        for user, x, y in _users(file):
            test = np.full(len(y), file.parent.name == "test") if official else None
            yield x, y, np.full(len(y), user), test


def _users(file: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Name, images and labels of every writer in a LEAF file."""
    content = _json(file)
    users, data = content.get("users"), content.get("user_data")
    if not isinstance(users, list) or not all(isinstance(user, str) for user in users):
        raise InputError(str(file), "must have the names of its writers as `users`", users)
    if not isinstance(data, dict):
        raise InputError(str(file), "must have the images of its writers as `user_data`", data)
    if repeated := [user for user, number in Counter(users).items() if number > 1]:
        raise InputError(str(file), "must list every one of its users once", repeated[0])
    if lost := data.keys() - users:
        raise InputError(str(file), "must list everyone in user_data as one of its users", min(lost))
    for user in users:
        where = f"{file}: {user[:80]}"
        try:
            x, y = np.array(data[user]["x"], np.float64), np.array(data[user]["y"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(where, f"must have x and y, images all of one size ({said(error)})") from error
        x, y = _checked(where, x, y)
        if not (x.min(initial=0) >= 0 and x.max(initial=0) <= 1):  # also refuses NaN
            raise InputError(where, "must have pixels in 0..1", f"{x.min()} to {x.max()}")
        yield user, np.rint(x * 255).astype(np.uint8), y


def _json(file: Path) -> dict[str, Any]:
    """What a json file holds, if it is a mapping in which no key stands twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(key for key, number in Counter(key for key, _ in pairs).items() if number > 1)
            raise ValueError(f"{twice[:80]!r} stands there twice")
        return found

    refuse_unreadable("PATH", file)
    refuse_too_large(file, file.stat().st_size)
    try:
        content = json.loads(file.read_bytes(), object_pairs_hook=once)
        if not isinstance(content, dict):
            raise ValueError(f"it holds {type(content).__name__}, not a mapping")
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        rule = f"is not a LEAF json file ({said(error)})"
        raise InputError(str(file), rule, fix=f"give {ACCEPTS}") from error
    return content


def _from_parquet(path: Path) -> Iterator[Part]:
    """The layout of the public hub copy: columns `image` (a PNG), `writer_id` and `character`."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(str(path), "needs pyarrow to be read", fix="run `pip install pyarrow`") from error
    columns = ["image", "writer_id", "character"]
    for file in sorted(path.glob("*.parquet")) if path.is_dir() else [path]:
        try:
            table = pyarrow.parquet.ParquetFile(file)
            if missing := set(columns) - set(table.schema_arrow.names):
                raise InputError(str(file), f"lacks the columns {', '.join(sorted(missing))}")
            for batch in table.iter_batches(columns=columns):
                rows = batch.to_pydict()
                if None in rows["writer_id"]:
                    raise InputError(str(file), "must name the writer of every image as writer_id", None)
                images = [_pixels(str(file), image) for image in rows["image"]]
                x, y = _checked(str(file), np.stack(images), np.array(rows["character"]))
                yield x, y, np.array(rows["writer_id"], str), None
        except (OSError, pyarrow.ArrowException) as error:
            raise InputError(str(file), f"cannot be read as parquet ({said(error)})") from error


def _pixels(where: str, image: Any) -> np.ndarray:
    """The grey values of a picture file, given as bytes or as the hub's {bytes, path}."""
    from PIL import Image  # Pillow comes with matplotlib

    content = image.get("bytes") if isinstance(image, dict) else image
    if not isinstance(content, bytes):
        raise InputError(where, "must have pictures as bytes", type(content).__name__)
    try:
        with Image.open(io.BytesIO(content)) as picture:
            if picture.size != (SIDE, SIDE):  # before it is unpacked
                raise InputError(where, "must have images of 28 x 28 pixels", picture.size)
            return np.asarray(picture.convert("L"))
    except InputError:
        raise
    except Exception as error:  # each of Pillow's many decoders stumbles in its own way over foreign bytes
        raise InputError(where, f"must have pictures such as PNG ({said(error)})") from error
