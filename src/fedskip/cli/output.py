"""Where output goes: streams that may be closed or full, the folder of --out, the last table."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fedskip.errors import require
from fedskip.files import refuse_not_utf8

if TYPE_CHECKING:
    from fedskip.report.results import Results


def prepare_streams() -> None:
    """Make the standard streams usable.

    A closed stream is replaced by the null device: else the next file to be opened would take its
    place. A character that a terminal does not have is printed as a question mark.
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


def discard(number: int) -> None:
    """Send everything that is still written to this stream to the null device."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def folder(text: str | None, option: str = "--out") -> Path | None:
    """The folder of an option. An empty name, such as an unset shell variable, is refused."""
    if text is None:
        return None
    require(option, bool(text.strip()), "must not be empty", text, "write . for this folder")
    refuse_not_utf8(option, text)
    require(option, "\0" not in text, "must not hold a NUL", text)
    return Path(text)


def show_results(results: Results) -> None:
    """Print the table of a study, its verdicts and its folder."""
    from fedskip.report.findings import Findings
    from fedskip.report.progress import console

    to, findings = console(), Findings(results)
    wanted = any("target" in setting.keys for setting in results.compared)
    for part in (*findings.closing_parts(), *findings.sentences(targets=wanted)):
        to.print(part)
    to.print(f"\n{results.out}", soft_wrap=True)
