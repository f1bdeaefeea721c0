"""Files inside a folder, a tar or a zip, read without unpacking: what is never written cannot escape."""

import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PureWindowsPath

from fedskip.input.errors import InputError

# also what zipfile has for passwords and for methods of compression that it does not know
UNREADABLE = (
    OSError, EOFError, RuntimeError, NotImplementedError,
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError,
)  # fmt: skip


def contents(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Base name and bytes of the files whose base name is wanted, at any depth.

    An archive with a path that leads outside, or with a link, is refused: no official file has one.
    """
    try:
        if path.is_dir():
            files = (file for file in sorted(path.rglob("*")) if wanted(file.name) and file.is_file())
            yield from ((file.name, file.read_bytes()) for file in files)
        elif zipfile.is_zipfile(path):
            yield from _zipped(path, wanted)
        elif tarfile.is_tarfile(path):
            yield from _tarred(path, wanted)
        else:
            raise InputError(str(path), "is neither a folder nor a complete tar or zip file")
    except UNREADABLE as error:
        fix = "fetch it again: it may be cut off, or not what it should be"
        raise InputError(str(path), f"cannot be read ({error})", fix=fix) from error


def _tarred(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path) as archive:
        for member in archive:
            name = _harmless(path, member.name, link=not (member.isfile() or member.isdir()))
            if member.isfile() and wanted(name) and (file := archive.extractfile(member)):
                yield name, file.read()


def _zipped(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            name = _harmless(path, member.filename, link=stat.S_ISLNK(member.external_attr >> 16))
            if not member.is_dir() and wanted(name):
                yield name, archive.read(member)


def _harmless(path: Path, member: str, link: bool) -> str:
    """The base name of a member that is no link and stays inside, by the rules of every platform."""
    windows = PureWindowsPath(member)  # splits at both kinds of slash, and knows drives
    if link or ".." in windows.parts or windows.anchor:
        rule = "holds a link" if link else "holds a path that leads outside"
        raise InputError(
            str(path), rule, member, "do not trust this file: the official one has no such thing"
        )
    return windows.name
