"""Output that is closed, or has few characters; the rest is in tests/faults/corpus/terminals.yaml."""

import subprocess
import sys

CODE = """
import os, sys
os.close(1); sys.stdout = None
from fedskip.cli.output import flush, prepare
prepare()
assert os.open(os.devnull, os.O_RDONLY) > 2, "no file takes the place of the output"
print("Größe"); assert flush(0) == 0 and flush(3) == 3
"""


def test_a_closed_output_goes_nowhere() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
