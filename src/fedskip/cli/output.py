"""What a command prints to: a terminal, a pipe or a file, which may be closed or full."""

import os
import sys

import typer


def prepare() -> None:
    """Make the standard streams usable.

    A closed stream is replaced by the null device: else the next file to be opened would take its place. A
    character that a terminal does not have is printed as a question mark.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def discard(number: int = 1) -> None:
    """Send everything that is still written to this stream to the null device."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def flush(code: int) -> int:
    """Write what is still in memory, and give the exit code."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has seen enough
        discard()
        return code or 1
    except OSError as error:
        return failed(error)
    return code


def failed(error: OSError) -> int:
    """Say that nothing can be printed, and give the exit code."""
    discard()
    typer.secho(f"error: the output cannot be written: {error.strerror}", fg="red", err=True)
    return 2
