"""Writes files completely or not at all, refuses what cannot be read, and locks folders."""

import contextlib
import errno
import hashlib
import logging
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from fedskip.errors import InputError, flag, option, require

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# what a file system says that has no locks, or cannot sync a folder
UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}
# what it says of a lock that another process has
TAKEN = {errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES}
LONGEST_NAME = 160  # bytes of a name, to which endings are added; most file systems take 255
log = logging.getLogger(__name__)


@contextmanager
def with_filename(path: Path) -> Iterator[None]:
    """Inside, an OSError names this file. The system does not always say which one it was."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        if error.filename2 is not None:
            del error.filename2  # of a rename
        raise


def write_bytes(path: Path, content: bytes) -> None:
    """Write to a temporary file, sync it, then rename it: a kill leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    with with_filename(path):
        try:
            with _new(partial) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is the one to report
                partial.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def _new(path: Path) -> BinaryIO:
    """A new file. One that is there already, or a link, is removed; nothing is written through a link."""
    try:
        return path.open("xb")
    except FileExistsError:
        path.unlink()
        return path.open("xb")


def write_text(path: Path, content: str) -> None:
    """Like `write_bytes`, in UTF-8."""
    write_bytes(path, content.encode())


def remove_partial_files(folder: Path) -> None:
    """Remove the temporary files of `write_bytes` that killed processes have left."""
    for file in folder.glob(".*.part"):
        if re.fullmatch(r"\..+\.\d+\.part", file.name):
            file.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut, where the system can."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
        finally:
            os.close(handle)


def refuse_existing(field: str, path: Path, force: bool = False) -> None:
    """Refuse to write over a file, unless `force`."""
    fix = f"choose another name, or add {flag('force')}"
    require(field, force or not os.path.lexists(path), "exists already", str(path), fix)


def refuse_not_utf8(field: str, path: Path | str) -> None:
    """Refuse a path that study files and libraries cannot hold."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise InputError(field, "must have a name in UTF-8", str(path), "rename it") from None


def refuse_link(path: Path) -> None:
    """Refuse a link where a study keeps files of its own: others, elsewhere, would be replaced."""
    if path.is_symlink():
        fix = "move the link away"
        raise InputError(str(path), "must not be a link", os.readlink(path), fix)


def refuse_unreadable(field: str, path: Path) -> None:
    """Refuse whatever is not a regular file: a folder, a pipe that waits for ever, a device.

    Args:
        field: what the error calls the file. Give the path itself where there is no other name.
    """
    value = ... if field == str(path) else str(path)
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        fix = f"looked in {Path.cwd()}"
        raise InputError(field, "must be an existing file", value, fix) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(field, f"cannot be read ({why})", value) from None
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe"}
    rule = f"must be a file, not {kinds.get(kind, 'a device or socket')}"
    require(field, kind == stat.S_IFREG, rule, value)


def refuse_too_large(path: Path, size: int) -> None:
    """Refuse a file whose contents (`size` bytes) would not fit into this machine's memory."""
    if hasattr(os, "sysconf"):
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        rule = f"takes {size:,} bytes of memory, and this machine has {memory:,}"
        fix = "use less of it, or a machine with more memory"
        require(str(path), size <= memory, rule, fix=fix)


_locked: set[int] = set()  # file handles of the locks that this process holds


def _release_in_child() -> None:
    """In a forked process, point the handles of locks elsewhere: only the parent keeps the folders locked."""
    for handle in _locked:
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, handle, inheritable=False)
        os.close(nowhere)
    _locked.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


@contextmanager
def locked(folder: Path, wait: bool = False) -> Iterator[None]:
    """Inside, no other process locks the folder. The system releases it when the process ends, however.

    On a file system without locks, it only warns.

    Args:
        wait: wait for a process that has locked the folder; else that is an error.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / ".lock"
    refuse_link(lock)
    if lock.exists():
        own = stat.S_ISREG(lock.stat().st_mode) and lock.stat().st_nlink <= 1
        require(str(lock), own, "must be a file with no other name", fix="move it away")
    with open(lock, "a+", opener=_open_no_link) as file:
        handle = file.fileno()
        with with_filename(lock):
            try:
                if fcntl is not None:
                    fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in TAKEN:
                    file.seek(0)
                    rule = f"is in use by another process ({file.read().strip() or 'unknown'})"
                    fix = f"wait for it, or choose another folder ({option('out', 'FOLDER')})"
                    raise InputError("out", rule, str(folder), fix) from None
                if error.errno not in UNSUPPORTED:
                    raise
                advice = "see to it that no other process works there"
                log.warning("%s cannot be locked (%s): %s", folder, error.strerror, advice)
            os.ftruncate(handle, 0)
            os.write(handle, f"pid {os.getpid()}".encode())
        _locked.add(handle)
        try:
            yield
        finally:
            _locked.discard(handle)
            if fcntl is not None:
                with contextlib.suppress(OSError):  # a process that is being started may share it
                    fcntl.flock(handle, fcntl.LOCK_UN)


def expand_home(path: str | os.PathLike[str], field: str) -> Path:
    """The path with `~` replaced by the home folder. `field`: what an error calls the path."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        fix = "write the folder out; FEDSKIP_DATA says where data are kept"
        raise InputError(field, "names a home that cannot be found", str(path), fix) from None


def short_file_name(name: str) -> str:
    """A name that is short enough for a file: the end of a long one is replaced by a digest of all of it.

    >>> short_file_name("short"), len(short_file_name("long" * 100))
    ('short', 160)
    """
    whole = name.encode()
    if len(whole) <= LONGEST_NAME:
        return name
    return f"{whole[: LONGEST_NAME - 17].decode(errors='ignore')}-{digest(whole)}"


def digest(content: bytes | memoryview) -> str:
    """Sixteen hexadecimal digits by which contents are compared."""
    return hashlib.blake2b(content, digest_size=8).hexdigest()
