"""What stands between torch and a kernel in CUDA C++, with a driver that only notes what it is told."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from fedskip.kernels import cuda

DEVICE = torch.device("cuda", 1)
GOOD = SimpleNamespace(value=0, name="GOOD")


class Noting(ModuleType):
    """A library whose functions all succeed, but for those that are given."""

    def __init__(self, name: str, **own: Callable[..., Any]) -> None:
        super().__init__(name)
        self.calls = list[tuple[str, tuple[Any, ...]]]()
        self.own = own
        self.CUfunction_attribute = SimpleNamespace(
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            self.calls.append((name, arguments))
            return self.own[name](*arguments) if name in self.own else (GOOD, 7)

        return call

    def told(self, name: str) -> list[tuple[Any, ...]]:
        return [arguments for called, arguments in self.calls if called == name]


@pytest.fixture
def installed(monkeypatch: Any) -> Callable[..., tuple[Noting, Noting]]:
    """Installs a driver and a compiler, on a machine with two GPUs of which this thread has entered none."""
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=99))

    def install(**compiler: Callable[..., Any]) -> tuple[Noting, Noting]:
        driver = Noting(
            "driver", cuCtxGetCurrent=lambda: (GOOD, 0), cuModuleGetGlobal=lambda *_: (GOOD, 5, 4)
        )
        good = {"nvrtcCompileProgram": lambda *_: (GOOD,), "nvrtcGetCUBIN": lambda *_: (GOOD,)}
        nvrtc = Noting("nvrtc", **(good | compiler))
        bindings = ModuleType("cuda.bindings")
        bindings.driver, bindings.nvrtc = driver, nvrtc  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
        monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
        return driver, nvrtc

    cuda._module.cache_clear()
    cuda._kernel.cache_clear()
    return install


def test_a_kernel_is_compiled_once_and_launched_where_it_belongs(
    installed: Any, tmp_path: Path
) -> None:
    driver, nvrtc = installed()
    file = tmp_path / "add.cu"
    file.write_text('extern "C" __global__ void add() {}')
    for name in ("add", "take", "add"):
        launch = cuda.kernel(file, name, DEVICE, H=3, T=4)
    [(source, *_)] = nvrtc.told("nvrtcCreateProgram")
    assert source.decode() == f"constexpr int H = 3, T = 4;\n#line 1\n{file.read_text()}"
    assert nvrtc.told("nvrtcCompileProgram")[0][2][0] == b"-arch=sm_90"
    assert [name for _, name in driver.told("cuModuleGetFunction")] == [b"add", b"take"]
    assert driver.told("cuDeviceGet")[0] == (1,), "a thread without a context enters the device's"

    x = torch.zeros(2)
    launch((5, 6), 32, x, None, 8)
    [(_, *shape, shared, stream, (values, _), _)] = driver.told("cuLaunchKernel")
    assert (shape, stream) == ([5, 6, 1, 32, 1, 1], 99)
    assert values == (x.data_ptr(), 0, 8)
    assert [size for _, _, size in driver.told("cuFuncSetAttribute")] == [shared] * 2

    cuda.kernel(file, "add", DEVICE, H=3, T=5)
    assert len(nvrtc.told("nvrtcCreateProgram")) == 2, "other constants are other code"


def test_what_does_not_compile_says_why(installed: Any, tmp_path: Path) -> None:
    def fill(_: Any, log: bytes) -> tuple[Any]:
        import ctypes

        ctypes.memmove(log, b"line 3\0", 7)
        return (GOOD,)

    bad = SimpleNamespace(value=6, name="BAD")
    installed(nvrtcCompileProgram=lambda *_: (bad,), nvrtcGetProgramLog=fill)
    (tmp_path / "add.cu").touch()
    with pytest.raises(RuntimeError, match=r"add.cu does not compile: line 3$"):
        cuda.kernel(tmp_path / "add.cu", "add", DEVICE, H=1)


def test_trouble_has_the_drivers_name_and_missing_bindings_a_fix(monkeypatch: Any) -> None:
    with pytest.raises(RuntimeError, match="CUDA: CUDA_ERROR_INVALID_VALUE"):
        cuda._checked((SimpleNamespace(value=1, name="CUDA_ERROR_INVALID_VALUE"),))
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    with pytest.raises(RuntimeError, match=r"pip install 'cuda-bindings==12\.\*'"):
        cuda._bindings()
