"""Tables in files: CSV, TSV and parquet, read with pandas; what is no table is refused in one line."""

from __future__ import annotations

import gzip
import os
import warnings
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedskip.data.base import Dataset
from fedskip.data.frames import from_frame, refuse_twice
from fedskip.files import expanded, refuse_too_large, refuse_unreadable
from fedskip.input.errors import InputError, require, said

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
CHUNK = 1 << 24  # bytes


def is_table(name: str) -> bool:
    """Whether a name is that of a file with a table."""
    return name.lower().endswith(SUFFIXES)


def load(
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
    """The data set in a file; its options are those of `from_frame`, and these:

    Args:
        path: of the file.
        test: a column, or another file with the test rows.
        separator: of columns; a comma, or a tab in a .tsv, unless given.
        encoding: of the text.
    """
    path = expanded(path, "data.name")
    frame = read(path, "data.name", separator, encoding)
    tests: Any = test
    if test is not None and is_table(test):
        tests = read(expanded(test, "data.test"), "data.test", separator, encoding)
    return from_frame(
        frame, label=label, client=client, features=features, drop=drop, test=tests,
        test_fraction=test_fraction, task=task, classes=classes, gaps=gaps, name=path.name.split(".")[0],
        where=str(path),
    )  # fmt: skip


def read(path: Path, field: str, separator: str | None = None, encoding: str = "utf-8") -> pd.DataFrame:
    """The table in a file. `field`: what errors call a path that is no file."""
    try:
        import pandas as pd
    except ImportError as error:
        fix = "run `pip install 'fedskip[pandas]'`"
        raise InputError(str(path), "needs pandas to be read", fix=fix) from error
    refuse_unreadable(field, path)
    name = path.name.lower()
    if name.endswith(".parquet"):
        frame = _parquet(path)
    else:
        if name.endswith(".gz"):
            _refuse_bomb(path)
        else:
            refuse_too_large(path, path.stat().st_size)
        given = separator or ("\t" if ".tsv" in name[-7:] else ",")
        require("data.separator", len(given) == 1, "must be one character", given, "such as ;")
        frame = _csv(path, given, encoding)
    require(str(path), len(frame) > 0, "has no rows")
    assert isinstance(frame, pd.DataFrame)
    return frame


def _csv(path: Path, separator: str, encoding: str) -> pd.DataFrame:
    import pandas as pd

    options: dict[str, Any] = {"sep": separator, "encoding": encoding, "low_memory": False}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # of columns that it would leave out
            names = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False, **options)
            header = names.iloc[0].tolist()
            refuse_twice(str(path), [name for name in header if name])
            _refuse_one_column(path, header, separator)
            return pd.read_csv(path, index_col=False, **options)
    except (UnicodeDecodeError, LookupError) as error:
        fix = "save it as UTF-8, or set data.encoding, such as latin-1"
        raise InputError(str(path), f"is not text in {encoding} ({said(error)})", fix=fix) from error
    except pd.errors.EmptyDataError as error:
        raise InputError(str(path), "is empty", fix="its first line names the columns") from error
    except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
        why = said(error).removeprefix("Error tokenizing data. C error: ")
        fix = "every row has as many values as the first line has names; quote values that hold a comma"
        raise InputError(str(path), f"cannot be read as a table ({why})", fix=fix) from error
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise InputError(str(path), f"cannot be read as a table ({said(error)})") from error


def _refuse_one_column(path: Path, header: list[str], separator: str) -> None:
    """Refuse a table whose columns are separated by something else."""
    for other, name in ((";", "';'"), ("\t", "'\\t'"), (",", "','"), ("|", "'|'")):
        if len(header) == 1 and other != separator and header[0].count(other):
            rule = f"has one column, {header[0]!r}, when it is split at {separator!r}"
            raise InputError(str(path), rule, fix=f"set data.separator={name}")


def _refuse_bomb(path: Path) -> None:
    """Refuse a compressed file that would fill the memory."""
    size = 0
    try:
        with gzip.open(path) as file:
            while chunk := file.read(CHUNK):
                size += len(chunk)
                refuse_too_large(path, size)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(str(path), f"cannot be read as a gzip file ({said(error)})") from error


def _parquet(path: Path) -> pd.DataFrame:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        fix = "run `pip install 'fedskip[parquet]'`"
        raise InputError(str(path), "needs pyarrow to be read", fix=fix) from error
    try:
        file = pyarrow.parquet.ParquetFile(path)
        names = file.schema_arrow.names
        refuse_twice(str(path), names)
        groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
        refuse_too_large(path, sum(group.total_byte_size for group in groups))
        kept = [name for name in names if not name.startswith("__index_level_")]  # row numbers of pandas
        return file.read(kept).to_pandas(ignore_metadata=True)
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(str(path), f"cannot be read as parquet ({said(error)})") from error
