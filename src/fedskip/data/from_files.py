"""Makes data sets from files of your own: `.npz` arrays, and `.csv`, `.tsv` and `.parquet` tables."""

from __future__ import annotations

import os
import warnings
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedskip.data.archives import read_npz, unpacked
from fedskip.data.build import build_dataset, check_numbers, count_classes, refuse_any
from fedskip.data.dataset import Dataset
from fedskip.data.from_table import from_frame, refuse_repeated
from fedskip.errors import InputError, first_line, require, unknown
from fedskip.files import expand_home, refuse_too_large, refuse_unreadable

if TYPE_CHECKING:
    import pandas as pd

TABLES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
FORMS = {  # what else may be data, for `fedskip list`
    "PATH.csv, .tsv, .parquet": "a table, a sample in each row; also .csv.gz and .tsv.gz",
    "PATH.npz": "arrays x and y; perhaps client, test_x and test_y",
    "fedskip.from_frame": "a pandas DataFrame",
    "fedskip.from_torch": "a torch.utils.data.Dataset",
    "fedskip.from_huggingface": "a datasets.Dataset or DatasetDict",
    "fedskip.Dataset": "anything else",
}
SHOWN = ["PATH.npz", "PATH.csv", "PATH.tsv", "PATH.parquet"]  # how messages name such files
ARRAYS = ("x", "y", "client", "test_x", "test_y")
SAVE = "write it with `np.savez(path, x=x, y=y)`, arrays of numbers only"


def is_table(name: str) -> bool:
    """Whether a name is that of a file with a table."""
    return name.lower().endswith(TABLES)


def is_file(name: str) -> bool:
    """Whether a name is that of a file, and not of a data set in the catalogue."""
    return name.endswith(".npz") or is_table(name)


# --- arrays ---------------------------------------------------------------------------------------


def load_arrays(
    path: str | os.PathLike[str], test_fraction: float = 0.1, classes: int | None = None
) -> Dataset:
    """Load an .npz file with `x` and `y`, and optionally `client`, `test_x` and `test_y`.

    Args:
        path: of the file.
        test_fraction: without test arrays, the share of each client's samples (of all, without
            `client`) that is for testing, drawn by the partition seed.
        classes: their number; the largest label + 1 unless given.
    """
    path = expand_home(path, "data.name")
    arrays = _checked_arrays(path)
    x, y, test = arrays["x"], arrays["y"], None
    if "test_x" in arrays:
        test = np.arange(len(x) + len(arrays["test_x"])) >= len(x)
        x, y = np.concatenate([x, arrays["test_x"]]), np.concatenate([y, arrays["test_y"]])
    return build_dataset(
        path.stem, x, y, client=arrays.get("client"), test=test, test_fraction=test_fraction,
        classes=count_classes(str(path), y, classes),
    )  # fmt: skip


def _checked_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, if their names, shapes and numbers fit."""
    arrays = read_npz(path, "data.name", SAVE)
    for key in sorted(arrays.keys() - set(ARRAYS)):
        raise unknown(f"{path}: an array", key, ARRAYS)
    needed = {"x", "y"} | ({"test_x", "test_y"} if {"test_x", "test_y"} & arrays.keys() else set())
    if missing := needed - arrays.keys():
        raise InputError(str(path), f"lacks {', '.join(sorted(missing))}", fix=SAVE)
    for key, array in arrays.items():
        where = f"{path}: {key}"
        if array.ndim == 0 or not array.size:
            rule = "must hold at least one sample, and numbers for each"
            raise InputError(where, rule, array.shape)
        _check_clients(where, array) if key == "client" else check_numbers(where, array)
        samples = len(arrays["test_x" if key.startswith("test_") else "x"])
        if len(array) != samples:
            raise InputError(where, f"must have {samples} entries, one per sample", len(array))
        expected, given = _layout(arrays[key.removeprefix("test_")]), _layout(array)
        if given != expected:
            rule = f"must have samples of {expected} as the training data do"
            raise InputError(where, rule, given)
    return arrays


def _layout(array: np.ndarray) -> str:
    """Type and shape of a sample; all floats are alike, as they become float32."""
    return f"{'float' if array.dtype.kind == 'f' else array.dtype} {array.shape[1:]}"


def _check_clients(where: str, client: np.ndarray) -> None:
    if client.ndim != 1:
        raise InputError(where, "must hold one number or name per sample", client.shape)
    rule = "must hold whole numbers or names"
    if client.dtype.kind not in "biufUS":
        raise InputError(where, rule, str(client.dtype))
    if client.dtype.kind == "f":
        refuse_any(where, client, ~np.isfinite(client), "must be finite")
        refuse_any(where, client, client != np.floor(client), rule)


# --- tables ---------------------------------------------------------------------------------------


def load_table(
    path: str | os.PathLike[str],
    label: str | list[str] | None = None,
    client: str | None = None,
    features: list[str] | None = None,
    drop: list[str] | None = None,
    test: str | None = None,
    test_fraction: float = 0.1,
    task: Literal["classification", "regression"] | None = None,
    classes: int | None = None,
    gaps: Literal["refuse", "drop"] = "refuse",
    separator: str | None = None,
    encoding: str = "utf-8",
) -> Dataset:
    """Load a CSV, TSV or parquet file. The options are those of `from_frame`, and these:

    Args:
        path: of the file.
        test: a column, or another file with the test rows.
        separator: of columns; by default a comma, or a tab in a .tsv.
        encoding: of the text.
    """
    path = expand_home(path, "data.name")
    frame = read_table(path, "data.name", separator, encoding)
    tests: Any = test
    if test is not None and is_table(test):
        tests = read_table(expand_home(test, "data.test"), "data.test", separator, encoding)
    return from_frame(
        frame, label=label, client=client, features=features, drop=drop, test=tests,
        test_fraction=test_fraction, task=task, classes=classes, gaps=gaps,
        name=path.name.split(".")[0], where=str(path),
    )  # fmt: skip


def read_table(
    path: Path, field: str, separator: str | None = None, encoding: str = "utf-8"
) -> pd.DataFrame:
    """Read a table. `field` is what an error calls a path that is no file."""
    refuse_unreadable(field, path)
    name = path.name.lower()
    if name.endswith(".parquet"):
        frame = _read_parquet(path)
    else:
        separator = separator or ("\t" if ".tsv" in name else ",")
        rule = "must be one character"
        require("data.separator", len(separator) == 1, rule, separator, "such as ;")
        frame = _read_csv(path, separator, encoding)
    require(str(path), len(frame) > 0, "has no rows")
    return frame


def _read_csv(path: Path, separator: str, encoding: str) -> pd.DataFrame:
    import pandas as pd

    options: dict[str, Any] = {"sep": separator, "encoding": encoding, "low_memory": False}
    try:
        with warnings.catch_warnings():
            # about columns that pandas would leave out
            warnings.simplefilter("error", pd.errors.ParserWarning)
            with _open_text(path) as file:
                header = pd.read_csv(
                    file, header=None, nrows=1, dtype=str, keep_default_na=False, **options
                )
            _check_header(path, header.iloc[0].tolist(), separator)
            with _open_text(path) as file:
                return pd.read_csv(file, index_col=False, **options)
    except InputError:
        raise
    except (UnicodeDecodeError, LookupError) as error:
        fix = "save it as UTF-8, or set data.encoding, such as latin-1"
        rule = f"is not text in {encoding} ({first_line(error)})"
        raise InputError(str(path), rule, fix=fix) from error
    except pd.errors.EmptyDataError as error:
        raise InputError(str(path), "is empty", fix="its first line names the columns") from error
    except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
        why = first_line(error).removeprefix("Error tokenizing data. C error: ")
        fix = "every row has as many values as the first line has names; quote values that hold a comma"
        raise InputError(str(path), f"cannot be read as a table ({why})", fix=fix) from error
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise InputError(str(path), f"cannot be read as a table ({first_line(error)})") from error


def _open_text(path: Path) -> Any:
    """Open a plain or compressed file; reading stops where it would fill the memory."""
    return unpacked(path, lambda size: refuse_too_large(path, size))


def _check_header(path: Path, header: list[str], separator: str) -> None:
    """Refuse repeated names, and a table whose columns are separated by something else."""
    refuse_repeated(str(path), [name for name in header if name])
    for other in (";", "\t", ",", "|"):
        if len(header) == 1 and other != separator and header[0].count(other):
            rule = f"has one column, {header[0]!r}, when it is split at {separator!r}"
            raise InputError(str(path), rule, fix=f"set data.separator={other!r}")


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        fix = "run `pip install 'fedskip[parquet]'`"
        raise InputError(str(path), "needs pyarrow to be read", fix=fix) from error
    try:
        file = pyarrow.parquet.ParquetFile(path)
        names = file.schema_arrow.names
        refuse_repeated(str(path), names)
        groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
        refuse_too_large(path, sum(group.total_byte_size for group in groups))
        # pandas may have saved its row numbers as a column
        kept = [name for name in names if not name.startswith("__index_level_")]
        frame: pd.DataFrame = file.read(kept).to_pandas(ignore_metadata=True)
        return frame
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(str(path), f"cannot be read as parquet ({first_line(error)})") from error
