"""Reads tar, zip, npz and compressed files that may come from anybody, within a size limit.

Nothing is unpacked to disk, so nothing can be written outside of a folder, and nothing in a file is
run. A small file can unpack to more than any memory holds, so what is read is counted.
"""

import bz2
import gzip
import io
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PureWindowsPath
from typing import IO, Any

import numpy as np

from fedskip.errors import InputError, first_line
from fedskip.files import refuse_too_large, refuse_unreadable

# RuntimeError and NotImplementedError are zipfile's, for passwords and unknown compression
UNREADABLE = (
    OSError, EOFError, RuntimeError, NotImplementedError, MemoryError,
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError,
)  # fmt: skip
LIMIT = 1 << 29  # bytes of an official data set, unpacked; the largest one has 185 million
OPENERS: dict[bytes, Callable[..., Any]] = {  # by the first bytes of a file
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
}


def unpacked(path: Path) -> IO[bytes]:
    """Open a file that may be compressed by gzip, bzip2 or xz, whatever its name says."""
    with path.open("rb") as file:
        head = file.read(6)
    opener = next((opener for magic, opener in OPENERS.items() if head.startswith(magic)), open)
    stream: IO[bytes] = opener(path, "rb")
    return stream


def read_unpacked(path: Path) -> bytes:
    """The content of such a file of an official data set; a file that unpacks to more is refused."""
    with unpacked(path) as file:
        content = file.read(LIMIT + 1)
    _refuse_large(path, len(content))
    return content


def contents(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Base name and content of the files in a folder, tar or zip whose base name is wanted.

    An archive with a link, or with a path that leads outside, is refused: no official one has any.
    """
    try:
        if path.is_dir():
            for file in sorted(path.rglob("*")):
                if wanted(file.name) and file.is_file():
                    _refuse_large(path, file.stat().st_size)
                    yield file.name, file.read_bytes()
        elif zipfile.is_zipfile(path):
            yield from _zip_contents(path, wanted)
        else:
            yield from _tar_contents(path, wanted)
    except UNREADABLE as error:
        fix = "fetch it again: it may be cut off, or another file"
        rule = f"cannot be read ({first_line(error)})"
        if isinstance(error, tarfile.ReadError):
            rule = "is neither a folder nor a complete tar or zip file"
        raise InputError(str(path), rule, fix=fix) from error


def _tar_contents(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(read_unpacked(path)), mode="r:") as archive:
        for member in archive:
            is_plain = member.isdir() or (member.isfile() and not member.issparse())
            name = _base_name(path, member.name, is_link=not is_plain)
            _refuse_large(path, member.size)
            if member.isfile() and wanted(name) and (content := archive.extractfile(member)):
                yield name, content.read()


def _zip_contents(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        _refuse_large(path, sum(member.file_size for member in archive.infolist()))
        for member in archive.infolist():
            is_link = stat.S_ISLNK(member.external_attr >> 16)
            name = _base_name(path, member.filename, is_link)
            if not member.is_dir() and wanted(name):
                yield name, archive.read(member)


def _base_name(path: Path, member: str, is_link: bool) -> str:
    """The base name of a member of an archive; links and paths that lead outside are refused."""
    parts = PureWindowsPath(member)  # splits at both kinds of slash, and knows drives
    if is_link or ".." in parts.parts or parts.anchor:
        rule = "holds a link or a device" if is_link else "holds a path that leads outside"
        fix = "do not trust this file: the official one has no such thing"
        raise InputError(str(path), rule, member, fix)
    return parts.name


def _refuse_large(path: Path, size: int) -> None:
    if size > LIMIT:
        rule = f"unpacks to more than {LIMIT:,} bytes"
        fix = "do not trust this file: the official one is far smaller"
        raise InputError(str(path), rule, fix=fix)


def read_npz(path: Path, field: str, fix: str) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, at most as many bytes as this machine has memory.

    Args:
        path: of the file.
        field: what an error calls the path, such as `data.name`, if it is no file.
        fix: how to write a file that can be read.
    """
    refuse_unreadable(field, path)
    name, arrays = "", dict[str, np.ndarray]()
    try:
        with zipfile.ZipFile(path) as archive:
            refuse_too_large(path, sum(member.file_size for member in archive.infolist()))
        with np.load(path, allow_pickle=False) as file:
            for name in file.files:
                arrays[name] = file[name]
                if not isinstance(arrays[name], np.ndarray):  # the bytes of some other file
                    raise ValueError("it is no array")
    except InputError:
        raise
    except (*UNREADABLE, ValueError, SyntaxError, RecursionError) as error:
        rule = f"cannot be read as an .npz file ({repr(name) + ': ' if name else ''}{first_line(error)})"
        raise InputError(str(path), rule, fix=fix) from error
    return arrays
