"""Kernels in CUDA C++, compiled when they are first needed, for just the sizes that they are needed for.

CUDA's compiler comes with torch, as NVRTC; NVIDIA's bindings to it, `cuda-bindings`, with torch from 2.10 on.
"""

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Kernel = Callable[..., None]  # takes blocks (x, y), threads of a block, then tensors and whole numbers


@functools.cache
def kernel(file: Path, name: str, device: torch.device, **constants: int) -> Kernel:
    """The kernel of that name in a file that uses constants which it does not define.

    It does define `{name}_bytes`, the shared memory that a block of the kernel needs.
    """
    driver, _ = _bindings()
    given = ", ".join(f"{key} = {value}" for key, value in constants.items())
    code = _compiled(
        f"constexpr int {given};\n#line 1\n{file.read_text(encoding='utf-8')}", file.name, device
    )
    with torch.cuda.device(device):
        torch.cuda.current_stream().synchronize()  # so that there is a context
        module = _checked(driver.cuModuleLoadData(code))
        function = _checked(driver.cuModuleGetFunction(module, name.encode()))
        shared = _number(module, f"{name}_bytes")
        most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _checked(driver.cuFuncSetAttribute(function, most, shared))

    def launch(blocks: tuple[int, int], threads: int, *given: Tensor | int | None) -> None:
        values = tuple(a.data_ptr() if isinstance(a, Tensor) else a or 0 for a in given)
        kinds = tuple(ctypes.c_int if isinstance(a, int) else ctypes.c_void_p for a in given)
        stream = torch.cuda.current_stream(device).cuda_stream
        shape = (*blocks, 1, threads, 1, 1)
        _checked(driver.cuLaunchKernel(function, *shape, shared, stream, (values, kinds), 0))

    return launch


def _compiled(source: str, name: str, device: torch.device) -> bytes:
    """Machine code for just this device."""
    _, nvrtc = _bindings()
    major, minor = torch.cuda.get_device_capability(device)
    options = [f"-arch=sm_{major}{minor}".encode(), b"-std=c++17"]
    program = _checked(nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], []))
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if status.value:
            log = bytes(_checked(nvrtc.nvrtcGetProgramLogSize(program)))
            nvrtc.nvrtcGetProgramLog(program, log)
            raise RuntimeError(f"{name} does not compile: {log.decode().strip()}")
        code = bytes(_checked(nvrtc.nvrtcGetCUBINSize(program)))
        _checked(nvrtc.nvrtcGetCUBIN(program, code))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return code


def _number(module: Any, name: str) -> int:
    """A constant that a module defines."""
    driver, _ = _bindings()
    at, size = _checked(driver.cuModuleGetGlobal(module, name.encode()))
    found = ctypes.c_int()
    _checked(driver.cuMemcpyDtoH(ctypes.addressof(found), at, size))
    return found.value


def _bindings() -> tuple[Any, Any]:
    """Those to the driver, and those to the compiler."""
    try:
        from cuda.bindings import driver, nvrtc
    except ImportError as error:
        raise RuntimeError("NVIDIA's bindings are missing; pip install cuda-bindings") from error
    return driver, nvrtc


def _checked(found: tuple[Any, ...]) -> Any:
    """What a call gave beside its status, which is 0 if all went well."""
    status, *rest = found
    if status.value:
        raise RuntimeError(f"CUDA: {status.name}")
    return rest[0] if len(rest) == 1 else rest
