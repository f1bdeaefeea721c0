"""The versions of the package and its libraries, and the name of the device: bits depend on them."""

import contextlib
import functools
import platform
import subprocess
from pathlib import Path

__version__ = "0.2.0"

CPUINFO = Path("/proc/cpuinfo")
# x86 has the first two, ARM the others
NUMBERS = ("cpu family", "model", "CPU implementer", "CPU part")


def versions() -> dict[str, str]:
    """The versions of fedskip and of the libraries that do the arithmetic."""
    import numpy as np  # not at the top: `fedskip --help` does not wait for these
    import torch

    return {
        "fedskip": __version__, "torch": str(torch.__version__), "numpy": np.__version__,
        "python": platform.python_version(),
    }  # fmt: skip


def device_name(device: str) -> str:
    """The name of a device, such that equal names compute equal bits.

    For a GPU: its name and the number of multiprocessors that this process may use, since MPS can give
    it a part of a GPU, where bits differ (docs/lab.md). For a CPU: torch's capability level and the
    model, since two models of one level may differ.
    """
    import torch

    if device == "cpu":
        level, model = str(torch.backends.cpu.get_cpu_capability()), processor()
        return f"{level} on {model}" if model else level
    gpu = torch.cuda.get_device_properties(device)
    return f"{gpu.name} with {gpu.multi_processor_count} multiprocessors"


def same_device(recorded: str | None, now: str) -> bool:
    """Whether a device may be the recorded one. Older versions recorded only a CPU's capability.

    >>> same_device("AVX512", "AVX512 on AMD EPYC 9654"), same_device("AVX2", "AVX512 on AMD EPYC 9654")
    (True, False)
    """
    return now == recorded or now.startswith(f"{recorded} on ")


@functools.cache
def processor() -> str:
    """The processor's model, as the system calls it; empty if it does not say."""
    system, name = platform.system(), ""
    if system == "Linux":
        with contextlib.suppress(OSError):
            name = _linux_processor(CPUINFO.read_text(errors="replace"))
    elif system == "Darwin":
        with contextlib.suppress(OSError):
            command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
            name = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    else:
        name = platform.processor()
    return " ".join(name.split())


def _linux_processor(cpuinfo: str) -> str:
    """The name and numbers of the first processor; virtual machines give several models one name."""
    lines = (line.partition(":") for line in cpuinfo.partition("\n\n")[0].splitlines())
    facts = {key.strip(): value.strip() for key, _, value in lines}
    numbers = [f"{key.removeprefix('cpu ')} {facts[key]}" for key in NUMBERS if key in facts]
    name = facts.get("model name", "") or platform.machine() * bool(numbers)
    return f"{name} ({', '.join(numbers)})" if numbers else name
