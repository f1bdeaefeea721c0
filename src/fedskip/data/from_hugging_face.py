"""Makes a data set from a `datasets.Dataset` of Hugging Face: a table, or one column of images or arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedskip.data.arrays import image_array, stack
from fedskip.data.dataset import Dataset
from fedskip.data.tables import build_from_table, from_frame, select_columns, without_gaps
from fedskip.errors import InputError, require, shorten, unknown

if TYPE_CHECKING:
    import pandas as pd

# features of `datasets` that are no columns of a table
ARRAYS = ("Sequence", "List", "LargeList", "Array2D", "Array3D", "Array4D", "Array5D")
WHERE = "the data set"  # how errors call it
ARRAY_OPTIONS = ("task", "classes", "test_fraction", "standardize")


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
    """Make a data set from a `datasets.Dataset`, or a `DatasetDict` with `train` and perhaps `test`.

    Inputs are the columns of a table, or one column of images or arrays. Classes keep the names and
    the order that the data set gives them.

    Args:
        dataset: the data set.
        label, client, features, drop, name: as in `from_frame`.
        test: another `datasets.Dataset` for testing, or a column.
        options: other options of `from_frame`; for images and arrays `task`, `classes`,
            `test_fraction` and `standardize`.

    >>> from_huggingface(datasets.load_dataset("ylecun/mnist"), label="label")  # doctest: +SKIP
    """
    if isinstance(dataset, Mapping):
        fix = f"choose one: dataset[{next(iter(dataset), 'train')!r}]"
        rule = "must have a split called 'train'"
        require("data", "train" in dataset, rule, sorted(dataset), fix)
        test = dataset.get("test") if test is None else test
        dataset = dataset["train"]
    parts = [dataset, *([] if test is None or isinstance(test, str) else [test])]
    for part in parts:
        is_dataset = hasattr(part, "to_pandas")
        require("data", is_dataset, "must be a datasets.Dataset", type(part).__name__)
    kinds = {column: type(feature).__name__ for column, feature in dataset.features.items()}
    arrays = [column for column, kind in kinds.items() if kind in ("Image", *ARRAYS)]
    arrays = [column for column in arrays if column not in (drop or ())]
    used = arrays if features is None else [*features]
    frames = [_frame(part.remove_columns(arrays)) for part in parts]
    tests = frames[1] if len(frames) > 1 else test
    if not set(used) & set(arrays):
        return from_frame(
            frames[0], label=label, client=client, features=features, drop=drop, test=tests, name=name,
            **options,
        )  # fmt: skip
    rule = "must be one column of pictures or arrays, or columns of a table"
    require("data.features", len(used) == 1, rule, used, "name it: features=['COLUMN']")
    for key in options:
        if key not in ARRAY_OPTIONS:
            raise unknown("option for pictures and arrays", key, ARRAY_OPTIONS)
    [column] = used
    for frame in frames:
        frame[column] = 0  # it stands for the images, and only counts the samples
    table, roles = select_columns(
        frames[0], tests, WHERE, label=label, client=client, features=[column], drop=None
    )
    table, _ = without_gaps(table, roles, "refuse", WHERE)
    x = stack([value for part in parts for value in _values(part, column)], f"{WHERE}: {column}")
    return build_from_table(table, roles, WHERE, x, "", (), name=name, **options)


def _values(dataset: Any, column: str) -> Iterator[np.ndarray]:
    """The images or arrays of a column; floats become float32, the precision of training."""
    for row in dataset.select_columns([column]):
        value = row[column]
        require(f"{WHERE}: {column}", value is not None, "has a gap", fix="leave the row out")
        if hasattr(value, "getbands"):
            yield image_array(value)
            continue
        try:
            array = np.asarray(value)
        except ValueError as error:
            rule = "must have arrays of one shape"
            raise InputError(WHERE, rule, shorten(str(value), 40)) from error
        yield array.astype(np.float32) if array.dtype.kind == "f" else array


def _frame(dataset: Any) -> pd.DataFrame:
    """The columns as a pandas table, in which classes have their names."""
    import pandas as pd

    frame: pd.DataFrame = dataset.to_pandas()
    for column, feature in dataset.features.items():
        if type(feature).__name__ == "ClassLabel":
            codes = frame[column].fillna(-1).astype(int)  # -1 is a gap, to pandas as well
            codes = codes.where(codes >= 0, -1)
            frame[column] = pd.Categorical.from_codes(codes, categories=feature.names)
    return frame
