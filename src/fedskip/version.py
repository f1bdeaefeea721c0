"""The version of the package, and what else the bits of a result depend on: the libraries and the device."""

import platform

__version__ = "0.1.0"


def versions() -> dict[str, str]:
    """The libraries that do the arithmetic."""
    import numpy as np  # here, and not above: `fedskip --help` need not wait for these
    import torch

    return {
        "fedskip": __version__, "torch": str(torch.__version__), "numpy": np.__version__,
        "python": platform.python_version(),
    }  # fmt: skip


def device_name(device: str) -> str:
    """A GPU's name and the multiprocessors that this process sees; torch's capability level of a CPU.

    MPS can give a process a part of a GPU, and there bits are others (docs/lab.md).
    """
    import torch

    if device == "cpu":
        return str(torch.backends.cpu.get_cpu_capability())
    gpu = torch.cuda.get_device_properties(device)
    return f"{gpu.name} with {gpu.multi_processor_count} multiprocessors"
