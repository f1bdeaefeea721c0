"""Data sets of torch and of Hugging Face's `datasets` as ours: all samples are read once, into arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fedskip.data import columns
from fedskip.data.base import Dataset
from fedskip.data.frames import check_task, finished, from_frame, joined
from fedskip.data.own import assemble, check_numbers, count_classes
from fedskip.data.pools import user_error
from fedskip.input.errors import InputError, require, short, unknown

PICTURES, ARRAYS = ("Image",), ("Sequence", "List", "LargeList", "Array2D", "Array3D", "Array4D", "Array5D")


def from_torch(
    dataset: Any,
    *,
    test: Any = None,
    test_fraction: float = 0.1,
    classes: int | None = None,
    standardize: bool = False,
    name: str = "torch",
) -> Dataset:
    """The data set in a map-style `torch.utils.data.Dataset`.

    Args:
        dataset: gives (x, y), or (x, y, client), for 0, 1, ...: tensors, arrays, numbers or pictures.
        test: another one, for testing.
        test_fraction: of each client's samples that are for testing where `test` is not given, by the seed.
        classes: their number; the largest label + 1 unless given.
        standardize: inputs get mean 0 and standard deviation 1, by the training samples.
    """
    parts = [_read(dataset, "data")] + ([] if test is None else [_read(test, "data.test")])
    (x, y, client), n = parts[0], len(parts[0][0])
    tests = None
    if test is not None:
        for what, one, other in zip("xy", (x, y), parts[1][:2], strict=True):
            like, found = (f"{array.dtype} {array.shape[1:]}" for array in (one, other))
            require(f"data.test {what}", like == found, f"must be like those for training, {like}", found)
        x, y = (np.concatenate([one, other]) for one, other in zip((x, y), parts[1][:2], strict=True))
        tests = np.arange(len(x)) >= n
        if client is not None and parts[1][2] is not None:
            client = np.concatenate([client, parts[1][2]])
    return assemble(
        name, x, y, client=client, test=tests, test_fraction=test_fraction,
        classes=count_classes("data", y, classes), standardize=standardize,
    )  # fmt: skip


Samples = tuple[np.ndarray, np.ndarray, np.ndarray | None]


def _read(dataset: Any, where: str) -> Samples:
    """All samples: x (n, ...), y (n, ...) and their clients."""
    sized = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    fix = "one that is only iterated over can be listed first: list(dataset)"
    require(where, sized, "must have a length and give samples by number", type(dataset).__name__, fix)
    with user_error(where):
        n = len(dataset)
        require(where, n > 0, "must hold at least one sample", n)
        items = [_item(dataset[i], i, where) for i in range(n)]
        again = _item(dataset[0], 0, where)
    if any(not np.array_equal(one, other) for one, other in zip(items[0][:2], again[:2], strict=True)):
        fix = "leave random transforms out here; Dataset(train_transform=...) draws them anew at each visit"
        raise InputError(where, "must give the same sample whenever it is asked for it", fix=fix)
    fields = len(items[0])
    x, y = (_stacked([item[k] for item in items], f"{where} {'xy'[k]}") for k in (0, 1))
    if fields == 2:
        return x, y, None
    client = np.array([item[2].item() for item in items])
    rule = "must name clients by whole numbers or texts"
    require(f"{where} client", client.dtype.kind in "biuU", rule, str(client.dtype))
    return x, y, client


def _item(given: Any, i: int, where: str) -> list[np.ndarray]:
    """x, y and perhaps the client of a sample, as arrays."""
    proper = isinstance(given, tuple | list) and len(given) in (2, 3)
    rule = f"must give (x, y) or (x, y, client), and sample {i} is not"
    require(where, proper, rule, type(given).__name__)
    return [_array(part) for part in given]


def _array(value: Any) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    return picture(value) if hasattr(value, "getbands") else np.asarray(value)


def picture(image: Any) -> np.ndarray:
    """A picture of Pillow: (H, W), or (C, H, W) with colours; bytes, or numbers where it holds more."""
    if image.mode[0] in "IF":  # 16 or 32 bits, which would not fit into bytes
        return np.asarray(image).astype(np.float32)
    found = np.asarray(image if image.mode in ("L", "RGB") else image.convert("RGB"))
    return found if found.ndim == 2 else np.moveaxis(found, -1, 0)


def _stacked(values: Sequence[np.ndarray], where: str) -> np.ndarray:
    """Arrays of one shape and kind as one array."""
    first = values[0]
    for i, value in enumerate(values):
        like, found = f"{first.dtype} {first.shape}", f"{value.dtype} {value.shape}"
        rule = f"must be alike in all samples; sample 0 is {like}, sample {i} another"
        require(where, like == found, rule, found, "cut, pad or resize them to one shape")
    stacked = np.stack(values)
    check_numbers(where, stacked)
    return stacked


def from_huggingface(
    dataset: Any,
    *,
    label: str | Sequence[str],
    client: str | None = None,
    features: Sequence[str] | None = None,
    drop: Sequence[str] | None = None,
    test: Any = None,
    name: str = "huggingface",
    **options: Any,
) -> Dataset:
    """The data set in a `datasets.Dataset`, or in a `DatasetDict` with `train` and perhaps `test`.

    Its columns are those of a table, as in `from_frame`, whose options it takes; or its inputs are one column
    of pictures or of arrays. Classes have the names and the order that the data set gives them.

    Args:
        test: another `datasets.Dataset` for testing, or a column.
    """
    where = "the data set"
    if isinstance(dataset, Mapping):
        fix = f"choose one: dataset[{next(iter(dataset), 'train')!r}]"
        require("data", "train" in dataset, "must have a split called 'train'", sorted(dataset), fix)
        test = dataset.get("test") if test is None else test
        dataset = dataset["train"]
    parts = [dataset, *([] if test is None or isinstance(test, str) else [test])]
    for one in parts:
        require("data", hasattr(one, "to_pandas"), "must be a datasets.Dataset", type(one).__name__)
    kinds = {column: type(feature).__name__ for column, feature in dataset.features.items()}
    rich = [column for column, kind in kinds.items() if kind in (*PICTURES, *ARRAYS)]
    used = [*features] if features is not None else [c for c in rich if c not in (drop or ())]
    if not set(used) & set(rich):
        left_out = [column for column in rich if column not in (drop or ())] if features is not None else []
        frames = [_frame(one.remove_columns(left_out)) for one in parts]
        tests = frames[1] if len(frames) > 1 else test
        return from_frame(
            frames[0], label=label, client=client, features=features, drop=drop, test=tests, name=name,
            where=where, **options,
        )  # fmt: skip
    rule = "must be one column of pictures or arrays, or columns of a table"
    require("data.features", len(used) == 1, rule, used, "name it: features=['COLUMN']")
    return _of_arrays(parts, used[0], kinds[used[0]], label, client, test, where, name, options)


def _of_arrays(
    parts: list[Any],
    column: str,
    kind: str,
    label: Any,
    client: str | None,
    test: Any,
    where: str,
    name: str,
    options: dict[str, Any],
) -> Dataset:
    """Inputs from one column, and the rest from a table in which that column counts the samples."""
    import pandas as pd

    for key in options:
        if key not in (known := ("task", "classes", "test_fraction", "standardize")):
            raise unknown("option for pictures and arrays", key, known)
    task, classes = check_task(options.pop("task", None), options.pop("classes", None))
    frames = [_frame(one.remove_columns([column])).assign(**{column: 0}) for one in parts]
    tests: str | pd.DataFrame | None = frames[1] if len(frames) > 1 else test
    table, roles = joined(frames[0], tests, where, label, client, [column], None)
    for used in roles.all:
        gap = table[used].isna().to_numpy() & ((table.index > 0) | (used != client))
        rule = f"has a gap in {columns.row(table[used], gap)}" if gap.any() else ""
        require(f"{where}: column {used!r}", not gap.any(), rule, fix="leave the row out")
    found = columns.labels(where, [table[each] for each in roles.label], task, classes)
    x = _stacked([value for one in parts for value in _values(one, column, kind)], f"{where}: {column}")
    return finished(table, roles, where, x, found, name=name, notes=(found.about,), **options)


def _values(dataset: Any, column: str, kind: str) -> Iterator[np.ndarray]:
    for row in dataset.select_columns([column]):
        value = row[column]
        require(f"the data set: {column}", value is not None, "has a gap", fix="leave the row out")
        yield picture(value) if kind in PICTURES and hasattr(value, "getbands") else _real(value)


def _real(value: Any) -> np.ndarray:
    """Numbers of a list as float32, the precision of training; bytes and whole numbers stay."""
    try:
        found = np.asarray(value)
    except ValueError as error:
        raise InputError("the data set", "must have arrays of one shape", short(str(value), 40)) from error
    return found.astype(np.float32) if found.dtype.kind == "f" else found


def _frame(dataset: Any) -> Any:
    """A table of pandas, in which classes have their names."""
    import pandas as pd

    frame = dataset.to_pandas()
    for column, feature in dataset.features.items():
        if type(feature).__name__ == "ClassLabel":
            codes = frame[column].fillna(-1).astype(int)
            frame[column] = pd.Categorical.from_codes(codes.where(codes >= 0, -1), categories=feature.names)
    return frame
