"""Arrays in .npz files that may be anything: what they declare is checked before it is believed."""

import math
import tokenize
import zipfile
from pathlib import Path
from typing import IO

import numpy as np

from fedskip.data.archive import UNREADABLE
from fedskip.files import refuse_too_large, refuse_unreadable
from fedskip.input.errors import InputError, said

HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}  # by version; later ones are for names of columns
NO_HEADER = (ValueError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError)  # of numpy's parser


def read_npz(path: Path, field: str, fix: str) -> dict[str, np.ndarray]:
    """The arrays of a file; nothing in it is ever run.

    `field`: what errors call a path that is no file; `fix`: how to write one that is right.
    """
    refuse_unreadable(field, path)
    try:
        with zipfile.ZipFile(path) as file:
            names = [member.filename for member in file.infolist()]
            for name in names:
                if names.count(name) > 1:
                    raise ValueError(f"it holds {name} twice")
            refuse_too_large(path, sum(_size(file, member) for member in file.infolist()))
            return {name.removesuffix(".npy"): _array(file, name) for name in names}
    except InputError:
        raise
    except MemoryError as error:
        raise InputError(str(path), f"does not fit into memory ({said(error)})") from error
    except (*UNREADABLE, ValueError) as error:
        raise InputError(str(path), f"cannot be read as an .npz file ({said(error)})", fix=fix) from error


def _size(file: zipfile.ZipFile, member: zipfile.ZipInfo) -> int:
    """The bytes of an array, which its header and the archive must agree on."""
    name = member.filename
    with file.open(member) as content:
        shape, dtype = _header(name, content)
        size, held = math.prod(shape) * dtype.itemsize, member.file_size - content.tell()
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects instead of numbers")
    if min(shape, default=0) < 0 or size != held:
        raise ValueError(f"{name} has the shape {shape} of {dtype} and {held:,} bytes for it")
    return size


def _header(name: str, content: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    if not name.endswith(".npy"):
        raise ValueError(f"{name!r} in it is no array")
    try:
        shape, _, dtype = HEADERS[np.lib.format.read_magic(content)](content)
    except KeyError:
        raise ValueError(f"{name} is an array of a later version") from None
    except NO_HEADER:
        raise ValueError(f"{name} in it is no array") from None
    return shape, dtype


def _array(file: zipfile.ZipFile, name: str) -> np.ndarray:
    with file.open(name) as content:
        array: np.ndarray = np.lib.format.read_array(content, allow_pickle=False)
    return array
