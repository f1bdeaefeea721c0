"""Users' code runs in our process. What it does to the process is undone, and named."""

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from fedskip.errors import InputError

STREAMS = {1: "stdout", 2: "stderr"}
BETWEEN = ("<frozen _sitebuiltins>", "exit_hooks")  # where `exit` is, and the hook of wandb


@contextlib.contextmanager
def contained(who: str = "your code") -> Iterator[None]:
    """Inside, code may neither exit, nor change the working folder, nor close the standard streams.

    If it does, the folder and the streams are put back, and an `InputError` says what `who` did.
    """
    folder, streams = _folder(), {number: _stream(number) for number in STREAMS}
    copies = {number: os.dup(number) for number, file in streams.items() if file is not None}
    try:
        with no_exit(who):
            yield
    finally:
        now = _folder() if folder is not None and os.path.isdir(folder) else folder
        if folder is not None and now != folder:
            os.chdir(folder)
        closed = [name for number, name in STREAMS.items() if not _open(number, streams[number])]
        for number, copy in copies.items():
            if STREAMS[number] in closed:
                _reopen(number, copy)
            os.close(copy)
    if folder is not None and now != folder:
        raise InputError(who, "must not change the working folder", now, "leave out os.chdir")
    if closed:
        raise InputError(who, f"must not close {' and '.join(closed)}", fix="leave that out")


@contextlib.contextmanager
def no_exit(who: str = "your code") -> Iterator[None]:
    """Inside, `sys.exit` is an `InputError`, which says where it was called."""
    try:
        yield
    except SystemExit as error:
        frames = list(traceback.extract_tb(error.__traceback__))
        while len(frames) > 1 and Path(frames[-1].filename).stem in BETWEEN:
            frames.pop()
        where = f"{frames[-1].filename} line {frames[-1].lineno}"
        fix = "raise an error in its place"
        rule = f"must not exit (SystemExit: {error})"
        raise InputError(who, rule, fix=fix, where=where) from None


def _folder() -> str | None:
    """The working folder; None: it was deleted."""
    with contextlib.suppress(OSError):
        return os.getcwd()
    return None


def _stream(number: int) -> tuple[int, int] | None:
    """Which file a stream is; None: it is closed."""
    with contextlib.suppress(OSError):
        stat = os.fstat(number)
        return stat.st_dev, stat.st_ino
    return None


def _open(number: int, before: tuple[int, int] | None) -> bool:
    """Whether a stream is as it was before, or was sent nowhere because its terminal is gone."""
    null, stream = os.stat(os.devnull), getattr(sys, STREAMS[number])
    fine = (before, (null.st_dev, null.st_ino))
    return before is None or (_stream(number) in fine and not getattr(stream, "closed", False))


def _reopen(number: int, copy: int) -> None:
    os.dup2(copy, number)
    before = getattr(sys, STREAMS[number])
    if getattr(before, "closed", False):
        how = {"encoding": "utf-8", "errors": "replace", "buffering": 1, "closefd": False}
        setattr(sys, STREAMS[number], os.fdopen(number, "w", **how))  # type: ignore[call-overload]
