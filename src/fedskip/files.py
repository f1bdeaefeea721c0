"""Files that are either there whole or not at all, that can be read at all, and folders for one process."""

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

from fedskip.input.errors import InputError, flag, option

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

NOT_THERE = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}  # of locks and syncs
HELD = {errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES}  # what systems say of a lock that another process has
LONGEST = 160  # bytes of a name, to which endings are added; most file systems take 255
log = logging.getLogger(__name__)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Inside, what the system reports is about this file, which it does not always say."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        if error.filename2 is not None:
            del error.filename2  # of a rename
        raise


def write_bytes(path: Path, content: bytes) -> None:
    """Write to a temporary name, to the disk, then rename: a kill leaves the old file or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    with naming(path):
        try:
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is the one to tell
                partial.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def refuse_existing(field: str, path: Path, force: bool = False) -> None:
    """Refuse to write over what is there, unless told to."""
    if os.path.lexists(path) and not force:
        raise InputError(field, "exists already", str(path), f"choose another name, or add {flag('force')}")


def refuse_unreadable(field: str, path: Path) -> None:
    """Refuse what is no file with an end: nothing, a folder, a pipe that waits for ever, a device.

    `field`: what the error calls it; its path, where it has no other name.
    """
    value = ... if field == str(path) else str(path)
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(field, "must be an existing file", value, f"looked in {Path.cwd()}") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(field, f"cannot be read ({why})", value) from None
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe" if stat.S_ISFIFO(mode) else "a device or socket"
        raise InputError(field, f"must be a file, not {kind}", value)


def refuse_too_large(path: Path, size: int) -> None:
    """Refuse a file whose contents, in bytes, are more than this machine could hold."""
    pages = os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else size
    memory = pages * (os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 1)
    if size > memory:
        rule = f"takes {size:,} bytes of memory, and this machine has {memory:,}"
        raise InputError(str(path), rule, fix="use less of it, or a machine with more memory")


def expanded(path: str | os.PathLike[str], field: str) -> Path:
    """A path in which ~ is somebody's home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        fix = "write the folder out; FEDSKIP_DATA says where data are kept"
        raise InputError(field, "names a home that cannot be found", str(path), fix) from None


def clear_parts(folder: Path) -> None:
    """Remove what processes that were killed have left of `write_bytes`."""
    for file in folder.glob(".*.part") if folder.is_dir() else ():
        if re.fullmatch(r"\..+\.\d+\.part", file.name):
            file.unlink(missing_ok=True)


def write_text(path: Path, content: str) -> None:
    write_bytes(path, content.encode())


def sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut, where the system can."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in NOT_THERE:
                raise
        finally:
            os.close(handle)


_held: set[int] = set()  # handles of the folders that this process holds


def _hold_nothing() -> None:
    """In a forked process: its handles of held folders lead nowhere, so that it keeps them from nobody."""
    for handle in _held:
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, handle, inheritable=False)
        os.close(nowhere)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_hold_nothing)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder. The system lets go when the process ends, however, and whatever it has forked."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a+") as file:
        handle = file.fileno()
        with naming(folder / ".lock"):
            if not _lock(handle, folder, wait=False):
                file.seek(0)
                rule = f"is in use by another process ({file.read().strip() or 'unknown'})"
                raise InputError(
                    "out",
                    rule,
                    str(folder),
                    f"wait for it, or choose another folder ({option('out', 'FOLDER')})",
                )
            os.ftruncate(handle, 0)
            os.write(handle, f"pid {os.getpid()}".encode())
        _held.add(handle)
        try:
            yield
        finally:
            _held.discard(handle)
            if fcntl is not None:
                with contextlib.suppress(OSError):
                    fcntl.flock(handle, fcntl.LOCK_UN)  # said aloud: one that is being started may have it


@contextmanager
def waited_for(folder: Path) -> Iterator[None]:
    """Hold a folder; wait for a process that holds it now."""
    with (folder / ".lock").open("a") as file:
        with naming(folder / ".lock"):
            _lock(file.fileno(), folder, wait=True)
        yield


def _lock(handle: int, folder: Path, *, wait: bool) -> bool:
    """Whether the lock was had. Where the file system has no locks, that is said, and nothing is held."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in HELD:
            return False
        if error.errno not in NOT_THERE:
            raise
        log.warning(
            "%s cannot be locked (%s): see to it that no other process works there", folder, error.strerror
        )
    return True


def fitting(name: str) -> str:
    """A name for a file: a long one is cut, and a digest of all of it takes the place of the rest.

    >>> fitting("short"), len(fitting("long" * 100))
    ('short', 160)
    """
    whole = name.encode()
    if len(whole) <= LONGEST:
        return name
    return f"{whole[: LONGEST - 17].decode(errors='ignore')}-{digest(whole)}"


def digest(content: bytes | memoryview) -> str:
    """Sixteen digits that tell contents apart."""
    return hashlib.blake2b(content, digest_size=8).hexdigest()
