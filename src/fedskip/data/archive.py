"""Files inside a folder, a tar or a zip, read without unpacking: what is never written cannot escape.

What is read has a limit: a small archive may unpack to more than any memory holds.
"""

import bz2
import gzip
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PureWindowsPath
from typing import IO, cast

from fedskip.input.errors import InputError, said

# also what zipfile has for passwords and for methods of compression that it does not know
UNREADABLE = (
    OSError, EOFError, RuntimeError, NotImplementedError, MemoryError,
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError,
)  # fmt: skip
LIMIT = 1 << 29  # bytes, unpacked; the largest official file has 185 million
OPENERS: dict[bytes, Callable[..., object]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
}  # by a file's first bytes


def contents(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Base name and bytes of the files whose base name is wanted, at any depth.

    An archive with a path that leads outside, or with a link, is refused: no official file has one.
    """
    try:
        if path.is_dir():
            for file in sorted(path.rglob("*")):
                if wanted(file.name) and file.is_file():
                    _refuse_large(path, file.stat().st_size)
                    yield file.name, file.read_bytes()
        elif zipfile.is_zipfile(path):
            yield from _zipped(path, wanted)
        else:
            yield from _tarred(path, wanted)
    except UNREADABLE as error:
        fix = "fetch it again: it may be cut off, or not what it should be"
        rule = f"cannot be read ({said(error)})"
        if isinstance(error, tarfile.ReadError):
            rule = "is neither a folder nor a complete tar or zip file"
        raise InputError(str(path), rule, fix=fix) from error


def unpacked(path: Path) -> bytes:
    """The bytes of a file that may be compressed by gzip, bzip2 or xz."""
    _refuse_large(path, path.stat().st_size)
    with _opened(path) as file:
        return Limited(path, file).read()


class Limited:
    """A stream that refuses to give more than LIMIT bytes."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path, self._file, self._given = path, file, 0

    def read(self, size: int = -1) -> bytes:
        most = LIMIT - self._given + 1
        content = self._file.read(min(size, most) if size >= 0 else most)
        self._given += len(content)
        _refuse_large(self._path, self._given)
        return content


def _opened(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        head = file.read(6)
    for magic, opener in OPENERS.items():
        if head.startswith(magic):
            return cast(IO[bytes], opener(path, "rb"))
    return path.open("rb")


def _refuse_large(path: Path, size: int) -> None:
    if size > LIMIT:
        rule = f"unpacks to more than {LIMIT:,} bytes"
        raise InputError(str(path), rule, fix="do not trust this file: the official one is far smaller")


def _tarred(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """As a stream: all that is unpacked counts, headers and members that nobody wants included."""
    with (
        _opened(path) as file,
        tarfile.open(fileobj=cast(IO[bytes], Limited(path, file)), mode="r|") as archive,
    ):
        for member in archive:
            plain = member.isdir() or (member.isfile() and not member.issparse())
            name = _harmless(path, member.name, link=not plain)
            _refuse_large(path, member.size)
            if member.isfile() and wanted(name) and (content := archive.extractfile(member)):
                yield name, content.read()


def _zipped(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        _refuse_large(path, sum(member.file_size for member in archive.infolist()))
        for member in archive.infolist():
            name = _harmless(path, member.filename, link=stat.S_ISLNK(member.external_attr >> 16))
            if not member.is_dir() and wanted(name):
                yield name, archive.read(member)


def _harmless(path: Path, member: str, link: bool) -> str:
    """The base name of a member that is no link and stays inside, by the rules of every platform."""
    windows = PureWindowsPath(member)  # splits at both kinds of slash, and knows drives
    if link or ".." in windows.parts or windows.anchor:
        rule = "holds a link or a device" if link else "holds a path that leads outside"
        raise InputError(
            str(path), rule, member, "do not trust this file: the official one has no such thing"
        )
    return windows.name
