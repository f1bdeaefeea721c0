"""The command line, called as a user does."""

import io
import sys
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from typer.testing import CliRunner

from fedskip.cli import app

FEDSKIP = str(Path(sys.executable).with_name("fedskip"))
SMALL = ["--rounds", "3", "--seeds", "1", "--set", "compile=false", "--set", "local.max_steps=2"]


def call(*arguments):
    """Exit code, stdout and stderr of a command; only an expected exit may end it."""
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


def shown(parts: Iterable[object]) -> str:
    """What is printed of some parts, on a terminal of 120 columns."""
    console = Console(width=120, file=io.StringIO())
    for part in parts:
        console.print(part)
    return console.file.getvalue()
