"""Plays cases: a process that has imported everything forks a child for each, in a folder of its
own.

Forking saves the seconds that an import of torch takes. The child's memory is limited; so is its
time.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import hashlib
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

LIMIT = 60  # seconds
MEMORY = 8 << 30  # bytes of address space beyond what the process has already
HEAD = """\
import json, os, sys
from pathlib import Path
import numpy as np, torch
from torch import nn
import fedskip
from fedskip import *
"""  # of every Python text
FINE = "fine"
KINDS = ("lost", "silently wrong", "hang", "traceback", "wrongly refused", "unclear", FINE)


@dataclass(frozen=True)
class Ended:
    """How a child ended, and what it left."""

    code: int | None  # None: it ran out of time
    out: str
    err: str
    lost: list[str]  # files of before that are gone or changed
    points: list[str] = field(
        default_factory=list
    )  # the calls that `fault` counted, and their paths

    def kind(self, expect: str, says: tuple[str, ...]) -> str:
        """What is to be said of it."""
        if self.code is None:
            return "hang"
        if self.code < 0 or "Traceback (most recent call last)" in self.err + self.out:
            return "traceback"
        if expect == "works":
            return FINE if self.code == 0 else "wrongly refused"
        if self.code == 0:
            return "silently wrong"
        if self.lost:
            return "lost"
        told = " ".join(self.err.split())
        short = len(told) < 700 and self.err.count("\n") <= 4
        return (
            FINE
            if short and "error" in told.lower() and all(one in told for one in says)
            else "unclear"
        )


class Player:
    """The process that forks; `play` may be called many times."""

    def __init__(self, preload: Path | None = None) -> None:
        """`preload`: faults.c as a library, for cases that have a `fault`."""
        command, env = [sys.executable, str(Path(__file__)), "serve"], dict(os.environ)
        if preload is not None:
            env |= {"LD_PRELOAD": str(preload), "OMP_NUM_THREADS": "1"}
            command.append("warm")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )

    def play(self, folder: Path, **what: Any) -> Ended:
        """Run `fedskip` (arguments) or `python` (code) in a folder; `before` it, code that is not
        judged.

        `fault`: what `_arm` takes. `limit`: seconds after which it is killed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"folder": str(folder), **what}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert "broken" not in answer, answer["broken"]
        return Ended(**answer)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve(warm: bool = False) -> None:
    """Answer one line of JSON with another, until there are no more.

    `warm`: run a study first, in one thread, so that children find all that it needs ready.
    """
    # ruff: noqa: F401
    import matplotlib.backends.backend_svg
    import torch._dynamo

    import fedskip.cli
    import fedskip.cli.stopping
    import fedskip.report.figures
    import fedskip.report.findings
    import fedskip.study

    if warm:
        _warm_up()
    gc.freeze()  # children need not look through what was there before
    for line in sys.stdin:
        try:
            answer = asdict(_play(**json.loads(line)))
        except Exception:  # of the case itself: its `before`, say
            answer = {"broken": traceback.format_exc()}
        print(json.dumps(answer), flush=True)


def _warm_up() -> None:
    from faults.given import study

    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        study(Path(name))
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            _run(["run", "study.yaml", "--out", "out"], None)


def _play(folder: str, before: str = "", limit: float = LIMIT, **what: Any) -> Ended:
    home = Path(folder)
    if before:
        ended = _forked(home, limit=LIMIT, python=before)
        assert ended.code == 0, f"`before` failed: {ended.err}"
    was = _digests(home)
    ended = _forked(home, limit=limit, **what)
    now = _digests(home)
    lost = [name for name, content in was.items() if now.get(name) != content]
    return replace(ended, lost=lost)


def _digests(folder: Path) -> dict[str, str]:
    """All regular files but locks, and their contents."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def _forked(
    folder: Path,
    *,
    limit: float,
    fedskip: list[str] | None = None,
    python: str | None = None,
    env: dict[str, str | None] | None = None,
    fault: dict[str, Any] | None = None,
) -> Ended:
    logs = folder.parent / f"{folder.name}.logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir()
    child = os.fork()
    if child == 0:
        _child(folder, logs, fedskip, python, env or {}, fault)
    end, status = time.monotonic() + limit, None
    while status is None and time.monotonic() < end:
        pid, ended = os.waitpid(child, os.WNOHANG)
        status = os.waitstatus_to_exitcode(ended) if pid else None
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # and what it started
    if status is None:
        os.waitpid(child, 0)
    texts = [(logs / name).read_text(errors="replace") for name in ("out", "err")]
    noted = (logs / "points").read_text().splitlines() if fault is not None else []
    return Ended(status, texts[0], texts[1], [], noted)


def _child(
    folder: Path,
    logs: Path,
    fedskip: list[str] | None,
    python: str | None,
    env: dict[str, str | None],
    fault: dict[str, Any] | None,
) -> None:
    """What the child does; it never returns."""
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(logs / name, os.O_CREAT | os.O_WRONLY | os.O_APPEND), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(n, mode, encoding="utf-8") for n, mode in enumerate("rww")
        )
        for name, value in {"FEDSKIP_DATA": str(folder / "cache"), **env}.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        if fault is not None:
            _arm(folder, logs, **fault)
        code = _run(fedskip, python)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        with contextlib.suppress(BaseException):
            sys.stderr.flush()
        os._exit(code)


def _arm(
    folder: Path,
    logs: Path,
    at: int = 0,
    how: str = "count",
    error: str = "EIO",
    calls: str = "",
    part: str = "",
) -> None:
    """Let something happen at the n-th call that changes files in the folder: see faults.c."""
    ways = ("count", "kill", "tear", "fail", "keep failing")
    texts = [str(text).encode() for text in (folder, calls, part, logs / "points")]
    arm = ctypes.CDLL(None).faults_arm
    arm(*texts[:3], ctypes.c_long(at), ways.index(how), getattr(errno, error), texts[3])


def _run(fedskip: list[str] | None, python: str | None) -> int:
    if fedskip is not None:
        from fedskip.cli import main

        sys.argv = ["fedskip", *fedskip]
        main()
        return 0
    from fedskip.errors import InputError

    names: dict[str, Any] = {"__name__": "__main__"}
    exec(
        "import os, sys, json\nimport numpy as np, torch\nfrom pathlib import Path\nfrom torch import nn",
        names,
    )
    exec("from fedskip import *\nimport fedskip", names)
    try:
        exec(compile(python or "", "case", "exec", dont_inherit=True), names)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))  # tests/
    serve("warm" in sys.argv)
