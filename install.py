"""Installs fedskip into .venv: `python3 install.py`, and with `--dev` the tools to develop it, too.

`make run` and `make test` call this. Without an NVIDIA GPU it takes torch's build for CPUs. It
needs only Python.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent
PYPI = "https://pypi.org/simple"
CPU_BUILDS = os.environ.get("TORCH_INDEX", "https://download.pytorch.org/whl/cpu")
SECONDS = 5  # an index that has not answered by then is not used


def answers(index: str) -> bool:
    """Whether an index is there. A refusal is an answer, and so is an unknown certificate."""
    if index.startswith("file:"):
        return True
    try:
        urllib.request.urlopen(f"{index.rstrip('/')}/torch/", timeout=SECONDS).close()
    except urllib.error.URLError as error:
        refused = isinstance(error, urllib.error.HTTPError)
        return refused or isinstance(error.reason, ssl.SSLError)
    except (OSError, ValueError):
        return False
    return True


def own_index(python: Path) -> str | None:
    """The index that pip is set up to use; None if it is to use none."""
    command = [python, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"^\S+?\.([\w-]+)='(.*)'$", listed, re.MULTILINE))
    return None if found.get("no-index") in ("1", "true") else found.get("index-url", PYPI)


def pip_options(python: Path) -> list[str]:
    """Where pip looks, with a line on what that means for the download."""
    index = own_index(python)
    if index is not None and not answers(index):
        print(f"{index} does not answer within {SECONDS} seconds. pip looks where else it may")
        return ["--retries", "0", "--timeout", str(SECONDS)]
    if shutil.which("nvidia-smi"):
        print("An NVIDIA GPU: torch comes with CUDA, a download of several GB")
    elif sys.platform != "linux":
        print("torch is a download of about 100 MB")
    elif CPU_BUILDS and answers(CPU_BUILDS):
        print(f"No NVIDIA GPU: torch's build for CPUs, about 200 MB, from {CPU_BUILDS}")
        return ["--extra-index-url", CPU_BUILDS]
    else:
        print(
            f"No NVIDIA GPU, but {CPU_BUILDS or 'TORCH_INDEX'} does not answer: torch comes from\n"
            "pip's own index. That of PyPI brings CUDA, several GB. Ctrl-C stops; TORCH_INDEX=URL\n"
            "names another index"
        )
    return []


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / ".venv")
    parser.add_argument("--dev", action="store_true", help="also the tools to develop it")
    options = parser.parse_args()
    if sys.version_info < (3, 11):  # noqa: UP036 (runs before anything is installed)
        sys.exit(f"error: fedskip needs Python 3.11 or later, and {sys.executable} is older")
    python = options.folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not python.exists():
        print(f"Making {options.folder}", flush=True)
        try:
            venv.create(options.folder, with_pip=True)
        except subprocess.CalledProcessError:
            shutil.rmtree(options.folder)
            sys.exit("error: this Python has no pip for .venv. On Debian: apt install python3-venv")
    where = pip_options(python)
    package = f"{ROOT}[dev]" if options.dev else str(ROOT)
    command = [python, "-m", "pip", "install", "-e", package, "-c", ROOT / "constraints.txt"]
    sys.stdout.flush()
    return subprocess.run([*command, *where]).returncode


if __name__ == "__main__":
    sys.exit(main())
