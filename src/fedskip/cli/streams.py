"""The terminal, a pipe or a file that is printed to, whatever it can take."""

import os
import sys
from collections.abc import Iterable

import typer


def open_closed() -> None:
    """Give closed streams a place to go: else the next file that is opened would be one of them.

    What a terminal has no character for is shown as a question mark.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def discard() -> None:
    """Send what is still printed nowhere: nobody reads it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def hang_up(terminals: Iterable[int]) -> None:
    """Send what is still printed to a terminal nowhere: it was closed, and to write there is an error."""
    with open(os.devnull, "w") as nowhere:
        for number in terminals:
            os.dup2(nowhere.fileno(), number)


def flush(code: int) -> int:
    """Print what is left; gives the exit status."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard()
        return code or 1
    except OSError as error:
        return lost(error)
    return code


def lost(error: OSError) -> int:
    """Say that output cannot be written; gives the exit status."""
    discard()
    typer.secho(f"error: the output cannot be written: {error.strerror}", fg="red", err=True)
    return 2
