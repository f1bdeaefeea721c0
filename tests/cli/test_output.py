"""Output that is closed, broken or full; the rest is in tests/faults/corpus/terminals.yaml."""

import subprocess
import sys

import pytest

CODE = """
import os, sys
os.close(1); sys.stdout = None
from fedskip.cli.output import prepare_streams
prepare_streams()
assert os.open(os.devnull, os.O_RDONLY) > 2, "no file takes the place of the output"
print("Größe", flush=True)
"""
LIST = f"{sys.executable} -m fedskip list"


def test_a_closed_output_goes_nowhere() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (f"{LIST} >&-", 0, ""),
        (f"{LIST} > /dev/full", 2, "cannot be written: the disk is full. Free some space.\n"),
        (f"set -o pipefail; {LIST} | true", 1, ""),
    ],
)
def test_a_command_whose_output_fails(command: str, code: int, said: str) -> None:
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == code
    assert done.stderr.endswith(said)
    assert done.stderr.count("\n") == bool(said)
