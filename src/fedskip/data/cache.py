"""The cache folder: data sets as `.npy` files, and the downloads that they are made from.

An entry appears completely or not at all: it is written beside its place and moved there by one rename.
"""

import contextlib
import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedskip import files
from fedskip.errors import InputError, first_line, require
from fedskip.files import digest, expand_home, refuse_unreadable, write_text

CONTENTS = "contents.json"  # of an entry: a digest of each array
RETRIES = 2  # of a download, after the first attempt


@dataclass(frozen=True)
class Source:
    """A file on the web: addresses in the order to try, and its digest, `md5:...` or `sha256:...`."""

    urls: tuple[str, ...]
    digest: str | None = None

    @property
    def file(self) -> str:
        return self.urls[0].rsplit("/", 1)[-1]


def folder() -> Path:
    """The cache: `$FEDSKIP_DATA`, or `fedskip` in the platform's user cache."""
    if chosen := os.environ.get("FEDSKIP_DATA"):
        return expand_home(chosen, "FEDSKIP_DATA")
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", "~/AppData/Local")
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return expand_home(base, "the cache") / "fedskip"


def has(name: str) -> bool:
    """Whether the cache has the data set `name`."""
    return (folder() / name).is_dir()


def size(name: str) -> int:
    """The bytes of an entry on disk."""
    return sum(file.stat().st_size for file in (folder() / name).glob("*.npy"))


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Hold the cache, so that no other process writes to it; waits for one that does."""
    with _writing(folder()):
        folder().mkdir(parents=True, exist_ok=True)
        (folder() / ".lock").touch()
    with files.locked(folder(), wait=True):
        yield


def write(name: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Store arrays as the entry `name`, in place of an older one."""
    entry = folder() / name
    # fixed names: the next process clears what a killed one left behind
    fresh, old = (entry.with_name(f".{name}.{word}") for word in ("new", "old"))
    with _writing(entry):
        try:
            if old.exists() and not entry.exists():  # a kill came between the two renames below
                old.rename(entry)
            for leftover in (fresh, old):
                shutil.rmtree(leftover, ignore_errors=True)
            fresh.mkdir(parents=True)
            for key, array in arrays.items():
                _save(fresh / f"{key}.npy", array)
            digests = {key: _fingerprint(array) for key, array in arrays.items()}
            write_text(fresh / CONTENTS, json.dumps(digests))
            if entry.exists():
                entry.rename(old)
            fresh.rename(entry)
            shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def read(name: str, *keys: str, fix: str = "") -> list[np.ndarray]:
    """The arrays of an entry, mapped from disk: pages are read when used, and processes share them.

    `fix` says how to get the data set, if it cannot be downloaded.
    """
    entry = folder() / name
    fix = fix or (
        f"run `fedskip data get {name}`, or `fedskip data import {name} PATH` with the official files"
    )
    if not entry.is_dir():
        raise InputError("data.name", f"is not in {folder()} yet", name, fix)
    try:
        digests = json.loads((entry / CONTENTS).read_bytes())
        return [_mapped(entry / f"{key}.npy", digests.get(key)) for key in keys]
    except (OSError, EOFError, ValueError, AttributeError, RecursionError) as error:
        rule = f"is damaged or of another version ({first_line(error)})"
        raise InputError(str(entry), rule, fix=f"delete that folder, then {fix}") from error


def how_to_import(name: str, accepts: str) -> str:
    """How to get a data set that cannot be downloaded."""
    command = f"run `fedskip data import {name} PATH` with {accepts}"
    return f"{command}; docs/data.md says how to make one"


def download(source: Source, progress: Any = False) -> Path:
    """Download a file to `downloads` in the cache, unless it is there already.

    Args:
        source: the file.
        progress: a progress bar as pooch takes it: `total`, `update`, `reset` and `close`.
    """
    import pooch
    import requests

    pooch.get_logger().setLevel(logging.WARNING)
    http = pooch.HTTPDownloader(progressbar=progress, timeout=60, chunk_size=1 << 20)
    target, failures = folder() / "downloads" / source.file, list[str]()
    if target.exists():  # perhaps put there by hand, so pooch must not replace it
        refuse_unreadable(str(target), target)
        is_official = pooch.hashes.hash_matches(target, source.digest)
        rule, fix = f"is not the official file ({source.digest})", "delete it to download it again"
        require(str(target), is_official, rule, fix=fix)
        return target
    for url in source.urls:
        files = pooch.create(
            target.parent, "", registry={source.file: source.digest}, urls={source.file: url},
            retry_if_failed=RETRIES,
        )  # fmt: skip
        with _writing(target):
            try:
                return Path(files.fetch(source.file, downloader=http))
            except (requests.RequestException, ValueError) as error:  # the network, a wrong digest
                failures.append(f"{url} ({first_line(error)})")
    file = f"that file ({source.digest})" if source.digest else "that file"
    fix = f"try again later, or fetch {file} yourself, put it at {target} and run this again"
    raise InputError(source.file, f"could not be downloaded: {'; '.join(failures)}", fix=fix)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn an error of the file system into a message that says where it was and what to do."""
    try:
        yield
    except OSError as error:
        fix = "free some space or change its permissions, or set FEDSKIP_DATA to another folder"
        rule = f"cannot be written ({error.strerror or error})"
        raise InputError(str(path), rule, fix=fix) from error


def _mapped(path: Path, stored: str | None) -> np.ndarray:
    refuse_unreadable(path.name, path)
    # copy-on-write, because torch wants writable memory; nothing ever writes
    array: np.ndarray = np.load(path, mmap_mode="c", allow_pickle=False)
    if _fingerprint(array) != stored:
        raise ValueError(f"{path.name} is not what was stored")
    return array


def _fingerprint(array: np.ndarray) -> str:
    """Type, shape and a digest of an array."""
    array = np.ascontiguousarray(array)
    return f"{array.dtype.str} {array.shape} {digest(array.reshape(-1).view(np.uint8).data)}"


def _save(path: Path, array: np.ndarray) -> None:
    """`np.save`, but an error of a full disk keeps its reason, which numpy's own write loses."""
    array = np.ascontiguousarray(array)
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(array.reshape(-1).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())
