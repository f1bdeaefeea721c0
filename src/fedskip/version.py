"""The version of the package, and what else the bits of a result depend on: the libraries and the device."""

import contextlib
import functools
import platform
import subprocess
from pathlib import Path

__version__ = "0.1.0"

CPUINFO = Path("/proc/cpuinfo")
NUMBERS = ("cpu family", "model", "CPU implementer", "CPU part")  # the last two of ARM's


def versions() -> dict[str, str]:
    """The libraries that do the arithmetic."""
    import numpy as np  # here, and not above: `fedskip --help` need not wait for these
    import torch

    return {
        "fedskip": __version__, "torch": str(torch.__version__), "numpy": np.__version__,
        "python": platform.python_version(),
    }  # fmt: skip


def device_name(device: str) -> str:
    """A GPU's name and the multiprocessors that this process sees; torch's capability level on a CPU's model.

    MPS can give a process a part of a GPU, and there bits are others (docs/lab.md). So they can be on two
    models of CPU of the same capability.
    """
    import torch

    if device == "cpu":
        level, model = str(torch.backends.cpu.get_cpu_capability()), processor()
        return f"{level} on {model}" if model else level
    gpu = torch.cuda.get_device_properties(device)
    return f"{gpu.name} with {gpu.multi_processor_count} multiprocessors"


def same_device(noted: str | None, now: str) -> bool:
    """Whether a device may be the one that was noted: of a CPU, older versions noted only its capability.

    >>> same_device("AVX512", "AVX512 on AMD EPYC 9654"), same_device("AVX2", "AVX512 on AMD EPYC 9654")
    (True, False)
    """
    return now == noted or now.startswith(f"{noted} on ")


@functools.cache
def processor() -> str:
    """The processor's model, as the system calls it; "" where it does not say."""
    system, name = platform.system(), ""
    if system == "Linux":
        with contextlib.suppress(OSError):
            name = _linux(CPUINFO.read_text(errors="replace"))
    elif system == "Darwin":
        with contextlib.suppress(OSError):
            command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
            name = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    else:
        name = platform.processor()
    return " ".join(name.split())


def _linux(cpuinfo: str) -> str:
    """The name of the first processor and its numbers: virtual machines give several models one name."""
    lines = (line.partition(":") for line in cpuinfo.partition("\n\n")[0].splitlines())
    said = {key.strip(): value.strip() for key, _, value in lines}
    numbers = [f"{key.removeprefix('cpu ')} {said[key]}" for key in NUMBERS if key in said]
    name = said.get("model name", "") or platform.machine() * bool(numbers)
    return f"{name} ({', '.join(numbers)})" if numbers else name
