"""The command line."""

from fedskip.cli.main import app, main

__all__ = ["app", "main"]
