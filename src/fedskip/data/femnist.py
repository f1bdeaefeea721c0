"""FEMNIST (LEAF): handwritten digits and letters, 62 classes of 28×28 pixels; a client is a writer.

Ink is dark on a white background (255), as in LEAF.
"""

import io
import json
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskip.data import cache
from fedskip.data.archives import read_npz
from fedskip.data.arrays import refuse_any
from fedskip.data.dataset import Arrays, Dataset, Split, user_error
from fedskip.data.division import split_by_owner
from fedskip.errors import InputError, first_line, require
from fedskip.files import refuse_too_large, refuse_unreadable
from fedskip.parsing import Count

CLASSES, SIDE = 62, 28  # 0-9, A-Z, a-z
CLIENTS, MIN_TRAIN = 180, 64  # the paper's
TRAIN_FRACTION = 0.9  # LEAF's default
ACCEPTS = "LEAF's json folder with `train` and `test` in it, an .npz with x, y and writer, or a hub .parquet"

# images (n, 28, 28) uint8, labels (n,), the name of each writer (n,), and whether LEAF tests on them
Part = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]


def load(*, min_train: Count = MIN_TRAIN) -> Dataset:
    """All images as one pool; a client is a writer with at least `min_train` training images."""
    fix = cache.how_to_import("femnist", ACCEPTS)
    x, y, writer, name, test = cache.read("femnist", "x", "y", "writer", "name", "test", fix=fix)
    writer = np.asarray(writer)
    has_split = len(test) > 0
    sizes = np.bincount(writer[~test] if has_split else writer, minlength=len(name))
    train_sizes = sizes if has_split else (TRAIN_FRACTION * sizes).astype(np.int64)
    kept = train_sizes >= min_train
    fix = f"use {train_sizes.max()} or less"
    require("data.min_train", bool(kept.any()), "leaves no writer", min_train, fix)

    def split(seed: int) -> Split:
        leaf = np.flatnonzero(~test), np.flatnonzero(test)
        train, rest = leaf if has_split else split_by_owner(writer, TRAIN_FRACTION, seed)
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
            "model.name": "cnn-femnist", "partition.kind": "natural",
            "clients": min(CLIENTS, int(kept.sum())), "cohort": 10, "rounds": 200,
        },
    )  # fmt: skip


def as_input(x: Tensor) -> Tensor:
    """x (m, 28, 28) uint8 -> (m, 1, 28, 28) float32 in [0, 1], as LEAF stores it."""
    return x.unsqueeze(1).to(torch.float32) / 255


def as_train_input(x: Tensor, word: Tensor) -> Tensor:
    """The same as `as_input`: nothing is random."""
    return as_input(x)


def read(path: Path) -> dict[str, np.ndarray]:
    """Read LEAF's json, an npz or parquet as arrays for the cache, without repeated images."""
    if path.suffix == ".npz":
        parts = [_from_npz(path)]
    elif path.suffix == ".parquet" or (path.is_dir() and any(path.glob("*.parquet"))):
        parts = list(_from_parquet(path))
    else:
        parts = list(_from_json(path))
    if not sum(len(part[0]) for part in parts):
        raise InputError(str(path), "holds no images", fix=f"give {ACCEPTS}")
    x, y, written_by = (np.concatenate(arrays) for arrays in list(zip(*parts, strict=True))[:3])
    # LEAF's json has a split for all files or for none
    test = np.concatenate([part[3] for part in parts if part[3] is not None] or [np.zeros(0, bool)])
    rule = "must have a white background as LEAF's images do, and is mostly dark"
    require(str(path), x.mean() >= 128, rule, f"mean pixel {x.mean():.0f}", "use 255 - x")
    name, writer = np.unique(written_by, return_inverse=True)
    first = ~_repeated(x, y, writer)
    arrays = {"x": x, "y": y.astype(np.int64), "writer": writer, "test": test}
    return {"name": name} | {k: a[first] if len(a) else a for k, a in arrays.items()}


def _repeated(x: np.ndarray, y: np.ndarray, writer: np.ndarray) -> np.ndarray:
    """Which images copy an earlier one of the same writer and class, (n,).

    LEAF lists the first image of most writers twice, and its split puts some copies on the other side.
    """
    seen: set[tuple[int, int, bytes]] = set()
    repeated = np.zeros(len(x), bool)
    for i, (image, label, who) in enumerate(zip(x, y.tolist(), writer.tolist(), strict=True)):
        key = (who, label, blake2b(image.tobytes(), digest_size=16).digest())
        repeated[i] = key in seen
        seen.add(key)
    return repeated


def _checked_pictures(where: str, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 28, 28) and labels (n,), if they fit together."""
    require(where, x.ndim > 0 and y.ndim > 0, "must have lists of images and labels")
    require(where, len(x) == len(y), f"must have as many labels as images, {len(x)}", len(y))
    is_square = x.shape[1:] in ((SIDE, SIDE), (SIDE * SIDE,))
    require(where, is_square, "must have images of 28 x 28 pixels", x.shape[1:])
    is_class = y.ndim == 1 and np.issubdtype(y.dtype, np.integer)
    rule = "must have one whole number per image as label"
    require(where, is_class, rule, f"{y.dtype} {y.shape}")
    refuse_any(where, y, (y < 0) | (y >= CLASSES), f"must be labels 0 to {CLASSES - 1}", "")
    return x.reshape(-1, SIDE, SIDE), y


def _from_npz(path: Path) -> Part:
    arrays = read_npz(path, "PATH", f"give {ACCEPTS}")
    if missing := {"x", "y", "writer"} - arrays.keys():
        raise InputError(str(path), f"lacks {', '.join(sorted(missing))}", fix=f"give {ACCEPTS}")
    x, y = _checked_pictures(str(path), arrays["x"], arrays["y"])
    require(str(path), x.dtype == np.uint8, "must have x as uint8, white = 255", str(x.dtype))
    for key in ("writer", "leaf_test"):
        if key in arrays:
            rule = f"must have one entry per image, {len(y)}"
            require(f"{path}: {key}", arrays[key].shape == y.shape, rule, arrays[key].shape)
    writer, where = arrays["writer"], f"{path}: writer"
    if "writer_names" in arrays:
        names = arrays["writer_names"]
        is_number = writer.dtype.kind in "iu" and names.ndim == 1
        known = is_number and bool(((writer >= 0) & (writer < len(names))).all())
        require(where, known, f"must be numbers of the {len(names)} writer_names")
        writer = names[writer]
    is_named = writer.dtype.kind in "iuU"
    require(where, is_named, "must be whole numbers or texts", str(writer.dtype))
    test = arrays.get("leaf_test")
    is_mask = test is None or test.dtype == bool
    require(f"{path}: leaf_test", is_mask, "must be true or false for each image")
    return x, y, writer.astype(str), test


def _from_json(path: Path) -> Iterator[Part]:
    """LEAF's files: those in `train` and `test` folders if there are any, else all."""
    files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
    # training first, so that of two copies the one in the test set is dropped
    with_split = [file for part in ("train", "test") for file in files if file.parent.name == part]
    for file in with_split or files:
        refuse_unreadable("PATH", file)
        refuse_too_large(file, file.stat().st_size)
        try:
            content = json.loads(file.read_bytes())
            users, data = list(content["users"]), content["user_data"]
        except (OSError, ValueError, LookupError, TypeError, RecursionError, MemoryError) as error:
            rule = f"is not a LEAF json file ({type(error).__name__}: {first_line(error)})"
            raise InputError(str(file), rule, fix=f"give {ACCEPTS}") from error
        for user in users:
            where = f"{file}: {user!s:.80}"
            try:
                x, y = np.array(data[user]["x"], np.float64), np.array(data[user]["y"])
            except (LookupError, TypeError, ValueError, OverflowError) as error:
                rule = f"must have x and y, images all of one size ({first_line(error)})"
                raise InputError(where, rule) from error
            x, y = _checked_pictures(where, x, y)
            low, high = x.min(initial=0), x.max(initial=0)
            # false for NaN, too
            require(
                where, bool(low >= 0 and high <= 1), "must have pixels in 0..1", f"{low} to {high}"
            )
            test = np.full(len(y), file.parent.name == "test") if with_split else None
            yield np.rint(x * 255).astype(np.uint8), y, np.full(len(y), str(user)), test


def _from_parquet(path: Path) -> Iterator[Part]:
    """The public copy on Hugging Face's hub: columns `image` (a PNG), `writer_id` and `character`."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        fix = "run `pip install pyarrow`"
        raise InputError(str(path), "needs pyarrow to be read", fix=fix) from error
    columns = ["image", "writer_id", "character"]
    for file in sorted(path.glob("*.parquet")) if path.is_dir() else [path]:
        where = str(file)
        try:
            table = pyarrow.parquet.ParquetFile(file)
            if missing := set(columns) - set(table.schema_arrow.names):
                raise InputError(where, f"lacks the columns {', '.join(sorted(missing))}")
            for batch in table.iter_batches(columns=columns):
                rows = batch.to_pydict()
                rule = "must name the writer of every image as writer_id"
                require(where, None not in rows["writer_id"], rule)
                images = np.stack([_pixels(where, image) for image in rows["image"]])
                x, y = _checked_pictures(where, images, np.array(rows["character"]))
                yield x, y, np.array(rows["writer_id"], str), None
        except (OSError, pyarrow.ArrowException) as error:
            raise InputError(where, f"cannot be read as parquet ({first_line(error)})") from error


def _pixels(where: str, image: Any) -> np.ndarray:
    """The grey values of an image file, given as bytes or as the hub's {bytes, path}."""
    from PIL import Image  # Pillow comes with matplotlib

    content = image.get("bytes") if isinstance(image, dict) else image
    if not isinstance(content, bytes):
        raise InputError(where, "must have pictures as bytes", type(content).__name__)
    with user_error(f"{where}: a picture"), Image.open(io.BytesIO(content)) as picture:
        rule = "must have images of 28 x 28 pixels"
        require(where, picture.size == (SIDE, SIDE), rule, picture.size)  # before it is unpacked
        return np.asarray(picture.convert("L"))
