"""The command line.

A command imports what it needs inside of it: its help is not to wait for torch.
"""

from fedskip.cli.commands import app, main

__all__ = ["app", "main"]
