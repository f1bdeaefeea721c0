"""A process of its own on a device: it does one errand after another."""

import pickle
import platform
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from fedskip.cluster.errands import Began, Facts, Failed, Serve
from fedskip.input.errors import portable
from fedskip.version import __version__


class Worker:
    """Does errands. Ray makes an actor of it."""

    def __init__(self, paths: Sequence[str], serve: bytes) -> None:
        """`paths`: where whoever sent it finds modules. `serve`: a pickled `Serve`."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # stopping is the business of who sent it
        sys.path += [path for path in paths if path not in sys.path]
        self._pickled = serve
        self._serve: Serve | None = None

    def do(self, argument: Any) -> Iterator[Any]:
        """Do an errand; whatever goes wrong is told, not raised: Ray's own errors mean lost workers."""
        try:
            yield Began(facts())
            if self._serve is None:
                self._serve = pickle.loads(self._pickled)
            yield from self._serve(argument)
        except Exception as error:
            yield Failed(portable(error, f"On {socket.gethostname()}"))


def facts() -> Facts:
    """What must be alike on all nodes, and what must be there."""
    return {
        "host": socket.gethostname(),
        "versions": {
            "fedskip": __version__,
            "torch": str(torch.__version__),
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else capability(),
        "free": shutil.disk_usage(tempfile.gettempdir()).free,  # bytes
    }


def capability() -> str:
    """Torch's name of what the CPU can do."""
    return str(torch.backends.cpu.get_cpu_capability())
