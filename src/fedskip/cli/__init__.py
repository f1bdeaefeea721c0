"""The command line."""

from fedskip.cli.commands import app, main

__all__ = ["app", "main"]
