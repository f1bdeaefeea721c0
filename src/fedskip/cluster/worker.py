"""A process of its own on a device: it does one errand after another."""

import pickle
import shutil
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from fedskip.cluster.errands import Began, Facts, Failed, Serve
from fedskip.input.errors import portable
from fedskip.version import device_name, versions


class Worker:
    """Does errands. Ray makes an actor of it."""

    def __init__(self, paths: Sequence[str], serve: bytes, kind: str, folder: str) -> None:
        """`paths`: where whoever sent it finds modules. `serve`: a pickled `Serve`.

        `kind`: of its device, GPU or CPU. `folder`: where Ray puts aside what does not fit its memory.
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # stopping is the business of who sent it
        sys.path += [path for path in paths if path not in sys.path]
        self._pickled, self.kind, self.folder = serve, kind, folder
        self._taken: list[Any] = []  # arguments of errands to come
        self._serve: Serve | None = None

    def here(self) -> None:
        """It is."""

    def take(self, argument: Any) -> None:
        """What the next errand is done with."""
        self._taken.append(argument)

    def do(self) -> Iterator[Any]:
        """Do an errand; whatever goes wrong is told, not raised: Ray's own errors mean lost workers."""
        try:
            yield Began(facts(self.kind, self.folder))
            if self._serve is None:
                self._serve = pickle.loads(self._pickled)
            if not self._taken:
                raise RuntimeError("what it was sent did not arrive")
            yield from self._serve(self._taken.pop())
        except Exception as error:
            yield Failed(portable(error, f"On {socket.gethostname()}"))


def facts(kind: str, folder: str) -> Facts:
    """What must be alike on all nodes, and what must be there; of a node's GPU, or its CPU."""
    return {
        "host": socket.gethostname(),
        "versions": versions(),
        "device": device_name("cuda" if kind == "GPU" else "cpu"),
        "free": shutil.disk_usage(folder).free,  # bytes
    }
