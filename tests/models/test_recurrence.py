"""An LSTM layer in one launch, beside single steps: on a GPU, or with its threads emulated on a CPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from fedskip.engine.arithmetic import Arithmetic
from fedskip.models import recurrence
from fedskip.models.lstm import Embedded, fused, unrolled

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
WORDS = Path(__file__).with_name("emulated.h")


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: Any) -> Callable[..., Any]:
    """What `cuda.kernel` is on a GPU, by a C++ compiler."""
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("kernels")

    @cache
    def kernel(file: Path, name: str, device: torch.device, **constants: int) -> Callable[..., None]:
        given = ", ".join(f"{key} = {value}" for key, value in constants.items())
        source = folder / f"{name}-{'-'.join(map(str, constants.values()))}.cpp"
        source.write_text(
            f'#include "{WORDS}"\nconstexpr int {given};\n#include "{file}"\n'
            f'extern "C" void launched(int x, int y, int size, void** at) {{ run(x, y, size, {name}, at); }}'
        )
        library = source.with_suffix(".so")
        command = ["g++", "-std=c++20", "-O1", "-w", "-shared", "-fPIC", str(source), "-o", str(library)]
        subprocess.run(command, check=True)
        launched = ctypes.CDLL(str(library)).launched

        def launch(blocks: tuple[int, int], threads: int, *arguments: Tensor | int | None) -> None:
            pointers = (a.data_ptr() if isinstance(a, Tensor) else a or 0 for a in arguments)
            values = (ctypes.c_int64 * len(arguments))(*pointers)
            places = [ctypes.addressof(values) + 8 * i for i in range(len(arguments))]
            launched(*blocks, threads, (ctypes.c_void_p * len(arguments))(*places))

        return launch

    return kernel


@pytest.fixture(params=[1, 2])
def tiles(request: Any, emulated: Any, monkeypatch: Any) -> int:
    """Blocks of so many tiles; on a GPU, of as many as the kernels want."""
    found: int = request.param
    if not CUDA:
        monkeypatch.setattr(recurrence, "kernel", emulated)
        monkeypatch.setattr(recurrence, "_tiles", lambda models, batch, device: found)
    return found


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("size", [1.0, 1e-9])
@pytest.mark.parametrize("looked_up", [0, 9])
@pytest.mark.parametrize(
    ("batch", "steps", "units"),
    [(5, 3, 17), (64, 80, 100), (16, 1, 128)] if CUDA else [(5, 3, 17), (20, 4, 100)],
)
def test_a_layer_in_one_launch(batch: int, steps: int, units: int, looked_up: int, size: float) -> None:
    """Of two models under vmap, beside single steps in float64; also where gradients are tiny.

    Its error is that of products in tf32, which cuBLAS has in single steps unless their sizes are odd.
    """
    torch.manual_seed(0)
    wide = 12
    x = torch.randn(2, looked_up or batch, *[steps][looked_up:], wide, device=DEVICE)
    tokens = torch.randint(looked_up or 1, (2, batch, steps), device=DEVICE)
    w_ih = torch.randn(2, 4 * units, wide, device=DEVICE) / wide**0.5
    w_hh = torch.randn(2, 4 * units, units, device=DEVICE) / units**0.5
    b, d = torch.randn(2, 4 * units, device=DEVICE), size * torch.randn(batch, steps, units, device=DEVICE)

    def found(layer: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        slots = int(layer is fused)  # before the first step

        def loss(x: Tensor, w_ih: Tensor, w_hh: Tensor, b: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
            h = layer(Embedded(tokens, x) if looked_up else F.pad(x, (0, 0, slots, 0)), w_ih, w_hh, b)
            return (h[:, slots:] * d.to(dtype)).sum(), h

        inputs = (t.to(dtype) for t in (x, w_ih, w_hh, b))
        gradients, h = vmap(grad(loss, argnums=(0, 1, 2, 3), has_aux=True))(*inputs, tokens)
        assert not h[:, :, :slots].any()
        return [h[:, :, slots:].double(), *(g.double() for g in gradients)]

    expected = found(unrolled, torch.float64)
    with Arithmetic("tf32", deterministic=True).kernels():
        stepwise, here = found(unrolled, torch.float32), found(fused, torch.float32)
    for exact, before, now in zip(expected, stepwise, here, strict=True):
        assert now.shape == exact.shape
        assert (now - exact).norm() <= 1.25 * max((before - exact).norm(), 2e-4 * exact.norm())
