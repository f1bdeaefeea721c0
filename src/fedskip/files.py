"""Files that are either there whole or not at all, and a folder that only one process works in."""

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedskip.input.errors import InputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def write_bytes(path: Path, content: bytes) -> None:
    """Write to a temporary name, to the disk, then rename: a kill leaves the old file or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


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
        finally:
            os.close(handle)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder. The system lets go when the process ends, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a+") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                rule = f"is in use by another process ({file.read().strip() or 'unknown'})"
                fix = "wait for it, or choose another --out"
                raise InputError("out", rule, str(folder), fix) from None
        file.seek(0)
        file.truncate()
        file.write(f"pid {os.getpid()}")
        file.flush()
        try:
            yield
        finally:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_UN)  # said aloud: a forked process may still hold the file


@contextmanager
def waited_for(folder: Path) -> Iterator[None]:
    """Hold a folder; wait for a process that holds it now."""
    with (folder / ".lock").open("a") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def digest(content: bytes | memoryview) -> str:
    """Sixteen digits that tell contents apart."""
    return hashlib.blake2b(content, digest_size=8).hexdigest()
