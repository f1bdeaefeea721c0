"""The command line.

Commands import what they need inside their functions, so that `--help` does not wait for torch.
"""

from fedskip.cli.commands import app, main

__all__ = ["app", "main"]
