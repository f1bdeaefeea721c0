"""The cache folder: data sets as plain `.npy` files, and downloads on their way there.

An entry appears whole or not at all: it is written beside its place and moved there by one rename.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np

from fedskip.files import digest, expanded, refuse_unreadable, waited_for, write_text
from fedskip.input.errors import InputError, said

Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all if the server tells
BLOCK = 1 << 20
CONTENTS = "contents.json"  # of an entry: what its arrays are


@dataclass(frozen=True)
class Source:
    """A file on the web: its addresses in the order to try, and its digest as `md5:...` or `sha256:...`."""

    urls: tuple[str, ...]
    digest: str | None = None

    @property
    def file(self) -> str:
        return self.urls[0].rsplit("/", 1)[-1]


def folder() -> Path:
    """`$FEDSKIP_DATA`, or `fedskip` in the platform's user cache."""
    if chosen := os.environ.get("FEDSKIP_DATA"):
        return expanded(chosen, "FEDSKIP_DATA")
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", "~/AppData/Local")
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return expanded(base, "the cache") / "fedskip"


def has(name: str) -> bool:
    return (folder() / name).is_dir()


def size(name: str) -> int:
    """Bytes on disk of an entry."""
    return sum(file.stat().st_size for file in (folder() / name).glob("*.npy"))


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Nobody else writes to the cache inside; whoever does already is waited for."""
    with writing(folder()):
        folder().mkdir(parents=True, exist_ok=True)
        (folder() / ".lock").touch()
    with waited_for(folder()):
        yield


def write(name: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Store arrays as the entry `name`, in place of what was there."""
    entry = folder() / name
    # Fixed names: what a killed process left behind is cleared by the next one.
    fresh, old = (entry.with_name(f".{name}.{word}") for word in ("new", "old"))
    with writing(entry):
        try:
            if old.exists() and not entry.exists():  # a kill came between the two renames below
                old.rename(entry)
            for leftover in (fresh, old):
                shutil.rmtree(leftover, ignore_errors=True)
            fresh.mkdir(parents=True)
            for key, array in arrays.items():
                _save(fresh / f"{key}.npy", array)
            write_text(fresh / CONTENTS, json.dumps({key: _facts(array) for key, array in arrays.items()}))
            if entry.exists():
                entry.rename(old)
            fresh.rename(entry)
            shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def importing(name: str, accepts: str) -> str:
    """How a data set gets here that nobody has for download."""
    return f"run `fedskip data import {name} PATH` with {accepts}; docs/data.md says how to make one"


def read(name: str, *keys: str, fix: str = "") -> list[np.ndarray]:
    """The arrays of an entry, mapped from disk: pages are read when touched and shared by all processes.

    `fix`: how it gets here, where it is not for download.
    """
    entry = folder() / name
    fix = (
        fix or f"run `fedskip data get {name}`, or `fedskip data import {name} PATH` with the official files"
    )
    if not entry.is_dir():
        raise InputError("data.name", f"is not in {folder()} yet", name, fix)
    try:
        known = json.loads((entry / CONTENTS).read_bytes()) if (entry / CONTENTS).exists() else {}
        return [_mapped(entry / f"{key}.npy", known.get(key)) for key in keys]
    except (OSError, EOFError, ValueError, AttributeError, RecursionError) as error:
        rule = f"is damaged or of another version ({said(error)})"
        raise InputError(str(entry), rule, fix=f"delete that folder, then {fix}") from error


def download(source: Source, progress: Progress = lambda done, total: None) -> Path:
    """The file of a source in the cache's `downloads`, fetched unless it is there already."""
    target = folder() / "downloads" / source.file
    if not target.exists():
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            _fetch(source, target, progress)
        return target
    refuse_unreadable(str(target), target)
    if wrong := _wrong_digest(target, source):
        raise InputError(str(target), wrong, fix="delete it to have it downloaded again")
    return target


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Inside, a failure of the file system becomes a message that says where and what to do."""
    try:
        yield
    except OSError as error:
        fix = "free some space or change its permissions, or set FEDSKIP_DATA to another folder"
        raise InputError(str(path), f"cannot be written ({error.strerror or error})", fix=fix) from error


def _fetch(source: Source, target: Path, progress: Progress) -> None:
    """Download to `.part`, and rename when the digest fits; on failure nothing stays."""
    part = target.with_name(f"{target.name}.part")
    reasons = []
    try:
        for url in source.urls:
            with part.open("wb") as file:
                reason = _copy(url, file.write, progress)
                file.flush()
                os.fsync(file.fileno())
            reason = reason or _wrong_digest(part, source)
            if not reason:
                os.replace(part, target)
                return
            reasons.append(f"{url} {reason}")
    finally:
        part.unlink(missing_ok=True)
    fix = f"try again later, or fetch that file some other way, put it at {target} and run this again"
    raise InputError(source.file, f"could not be downloaded: {'; '.join(reasons)}", fix=fix)


def _copy(url: str, write: Callable[[bytes], object], progress: Progress) -> str | None:
    """Pass the bytes behind an address to `write`; what went wrong on the network, or None."""
    done = 0
    try:
        response = urlopen(Request(url, headers={"User-Agent": "fedskip"}), timeout=60)
    except (OSError, HTTPException) as error:
        return f"cannot be reached ({getattr(error, 'reason', error)})"
    with response:
        total = int(response.headers.get("Content-Length") or 0) or None
        while True:
            try:
                block = response.read(BLOCK)
            except (OSError, HTTPException) as error:
                return f"broke off after {done:,} bytes ({error})"
            if not block:
                break
            write(block)  # outside the try: a full disk is not the network's fault
            done += len(block)
            progress(done, total)
    return f"broke off after {done:,} of {total:,} bytes" if total not in (None, done) else None


def _wrong_digest(path: Path, source: Source) -> str | None:
    if source.digest is None:
        return None
    kind, wanted = source.digest.split(":")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
    return None if found == wanted else f"is not the official file: its {kind} is {found}, not {wanted}"


def _mapped(path: Path, facts: str | None) -> np.ndarray:
    """An array of an entry; None: the entry was written before such facts were."""
    refuse_unreadable(path.name, path)
    # Copy-on-write, because torch wants writable memory; nothing ever writes.
    array: np.ndarray = np.load(path, mmap_mode="c", allow_pickle=False)
    if facts not in (None, _facts(array)):
        raise ValueError(f"{path.name} is not what was stored")
    return array


def _facts(array: np.ndarray) -> str:
    """What tells an array from others: its kind, its shape, a digest."""
    array = np.ascontiguousarray(array)
    return f"{array.dtype.str} {array.shape} {digest(array.reshape(-1).view(np.uint8).data)}"


def _save(path: Path, array: np.ndarray) -> None:
    """`np.save`, except that a full disk is reported as one (numpy's own write loses the reason)."""
    array = np.ascontiguousarray(array)
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(array.reshape(-1).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())
