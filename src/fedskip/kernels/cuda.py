"""Compiles and launches kernels in CUDA C++, when they are first needed and for the sizes in use.

CUDA's compiler (NVRTC) comes with torch, and NVIDIA's bindings to it (`cuda-bindings`) with torch from
2.10 on. Compiling waits for the GPU, so it cannot happen while a graph is captured: run a step before.
"""

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# takes blocks (x, y), threads of a block, then tensors and whole numbers
Kernel = Callable[..., None]


def kernel(file: Path, name: str, device: torch.device, **constants: int) -> Kernel:
    """The kernel called `name` in a file of CUDA C++.

    The file uses `constants`, which are defined for it. It defines `{name}_bytes`, the shared memory
    that a block of the kernel needs.
    """
    return _kernel(_module(file, device, **constants), name, device)


@functools.cache
def _module(file: Path, device: torch.device, **constants: int) -> Any:
    """A file, compiled with its constants and loaded on a device."""
    driver, _ = _bindings()
    defined = ", ".join(f"{key} = {value}" for key, value in constants.items())
    code = _compiled(
        f"constexpr int {defined};\n#line 1\n{file.read_text(encoding='utf-8')}", file.name, device
    )
    with torch.cuda.device(device):
        _enter(device)
        return _checked(driver.cuModuleLoadData(code))


@functools.cache
def _kernel(module: Any, name: str, device: torch.device) -> Kernel:
    driver, _ = _bindings()
    with torch.cuda.device(device):
        _enter(device)
        function = _checked(driver.cuModuleGetFunction(module, name.encode()))
        shared = _number(module, f"{name}_bytes")
        most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _checked(driver.cuFuncSetAttribute(function, most, shared))

    def launch(blocks: tuple[int, int], threads: int, *given: Tensor | int | None) -> None:
        values = tuple(a.data_ptr() if isinstance(a, Tensor) else a or 0 for a in given)
        kinds = tuple(ctypes.c_int if isinstance(a, int) else ctypes.c_void_p for a in given)
        shape = (*blocks, 1, threads, 1, 1)
        with torch.cuda.device(device):
            _enter(device)
            stream = torch.cuda.current_stream().cuda_stream
            _checked(driver.cuLaunchKernel(function, *shape, shared, stream, (values, kinds), 0))

    return launch


def _enter(device: torch.device) -> None:
    """Make torch's context of a device current in this thread: a thread of autograd may have none."""
    driver, _ = _bindings()
    if not int(_checked(driver.cuCtxGetCurrent())):
        context = _checked(
            driver.cuDevicePrimaryCtxRetain(_checked(driver.cuDeviceGet(device.index)))
        )
        _checked(driver.cuCtxSetCurrent(context))


def _compiled(source: str, name: str, device: torch.device) -> bytes:
    """Machine code for this device."""
    _, nvrtc = _bindings()
    major, minor = torch.cuda.get_device_capability(device)
    options = [f"-arch=sm_{major}{minor}".encode(), b"-std=c++17"]
    program = _checked(nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], []))
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if status.value:
            log = bytes(_checked(nvrtc.nvrtcGetProgramLogSize(program)))
            nvrtc.nvrtcGetProgramLog(program, log)
            raise RuntimeError(f"{name} does not compile: {log.rstrip(bytes(1)).decode().strip()}")
        code = bytes(_checked(nvrtc.nvrtcGetCUBINSize(program)))
        _checked(nvrtc.nvrtcGetCUBIN(program, code))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return code


def _number(module: Any, name: str) -> int:
    """The value of a constant that a module defines."""
    driver, _ = _bindings()
    at, size = _checked(driver.cuModuleGetGlobal(module, name.encode()))
    value = ctypes.c_int()
    _checked(driver.cuMemcpyDtoH(ctypes.addressof(value), at, size))
    return value.value


def _bindings() -> tuple[Any, Any]:
    """NVIDIA's bindings to the driver and to the compiler."""
    try:
        from cuda.bindings import driver, nvrtc
    except ImportError as error:
        release = str(torch.version.cuda).partition(".")[0]
        fix = f"pip install 'cuda-bindings=={release}.*'"
        raise RuntimeError(f"NVIDIA's bindings are missing; {fix}") from error
    return driver, nvrtc


def _checked(found: tuple[Any, ...]) -> Any:
    """The results of a call; raises if its status is not 0."""
    status, *rest = found
    if status.value:
        raise RuntimeError(f"CUDA: {status.name}")
    return rest[0] if len(rest) == 1 else rest
