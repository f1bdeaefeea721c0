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
from fedskip.engine.stepper import traced
from fedskip.kernels import recurrence
from fedskip.models import build
from fedskip.models.lstm import Embedded, StackableLSTM, fused, unrolled

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
WORDS = Path(__file__).with_name("emulated.h")
COMPILER = ["g++", "-std=c++20", "-O1", "-w", "-shared", "-fPIC"]
WIDE = 12


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: Any) -> Callable[..., Any]:
    """What `cuda.kernel` is on a GPU, by a C++ compiler."""
    folder = tmp_path_factory.mktemp("kernels")
    probe = folder / "probe.cpp"
    probe.write_text("_Float16 half = 1;")
    if (
        shutil.which("g++") is None
        or subprocess.run([*COMPILER, probe, "-o", folder / "probe"]).returncode
    ):
        pytest.skip("no C++ compiler that knows half floats")

    @cache
    def kernel(
        file: Path, name: str, device: torch.device, **constants: int
    ) -> Callable[..., None]:
        given = ", ".join(f"{key} = {value}" for key, value in constants.items())
        source = folder / f"{name}-{'-'.join(map(str, constants.values()))}.cpp"
        source.write_text(
            f'#include "{WORDS}"\nconstexpr int {given};\n#include "{file}"\n'
            f'extern "C" void launched(int x, int y, int size, void** at) {{ run(x, y, size, {name}, at); }}'
        )
        library = source.with_suffix(".so")
        subprocess.run([*COMPILER, source, "-o", library], check=True)
        launched = ctypes.CDLL(str(library)).launched

        def launch(blocks: tuple[int, int], threads: int, *arguments: Tensor | int | None) -> None:
            pointers = (a.data_ptr() if isinstance(a, Tensor) else a or 0 for a in arguments)
            values = (ctypes.c_int64 * len(arguments))(*pointers)
            places = [ctypes.addressof(values) + 8 * i for i in range(len(arguments))]
            launched(*blocks, threads, (ctypes.c_void_p * len(arguments))(*places))

        return launch

    return kernel


@pytest.fixture(params=[1, 2])
def tiles(request: Any, monkeypatch: Any) -> int:
    """Blocks of so many tiles."""
    found: int = request.param
    if not CUDA:
        monkeypatch.setattr(recurrence, "kernel", request.getfixturevalue("emulated"))
    monkeypatch.setattr(recurrence, "_tiles", lambda models, batch, device: found)
    return found


def weights(models: int, units: int) -> tuple[Tensor, Tensor, Tensor]:
    """w_ih, w_hh and b."""
    w_ih = torch.randn(models, 4 * units, WIDE, device=DEVICE) / WIDE**0.5
    w_hh = torch.randn(models, 4 * units, units, device=DEVICE) / units**0.5
    return w_ih, w_hh, torch.randn(models, 4 * units, device=DEVICE)


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("size", [1.0, 1e-9])
@pytest.mark.parametrize("looked_up", [0, 9])
@pytest.mark.parametrize(
    ("batch", "steps", "units"),
    [(5, 3, 17), (64, 80, 100), (16, 1, 128)] if CUDA else [(5, 3, 17), (20, 4, 100)],
)
def test_a_layer_in_one_launch(
    batch: int, steps: int, units: int, looked_up: int, size: float
) -> None:
    """Of two models under vmap, beside single steps in float64; also where gradients are tiny.

    Its error is that of products in tf32, which cuBLAS has in single steps unless their sizes are odd.
    """
    torch.manual_seed(0)
    x = torch.randn(2, *([looked_up] if looked_up else [batch, steps]), WIDE, device=DEVICE)
    tokens = torch.randint(looked_up or 1, (2, batch, steps), device=DEVICE)
    d = size * torch.randn(batch, steps, units, device=DEVICE)
    given = weights(2, units)

    def found(layer: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        slots = int(layer is fused)  # before the first step

        def loss(
            x: Tensor, w_ih: Tensor, w_hh: Tensor, b: Tensor, tokens: Tensor
        ) -> tuple[Tensor, Tensor]:
            h = layer(
                Embedded(tokens, x) if looked_up else F.pad(x, (0, 0, slots, 0)), w_ih, w_hh, b
            )
            return (h[:, slots:] * d.to(dtype)).sum(), h

        inputs = (t.to(dtype) for t in (x, *given))
        gradients, h = vmap(grad(loss, argnums=(0, 1, 2, 3), has_aux=True))(*inputs, tokens)
        assert not h[:, :, :slots].any()
        return [h[:, :, slots:].double(), *(g.double() for g in gradients)]

    expected = found(unrolled, torch.float64)
    with Arithmetic("tf32", deterministic=True).kernels():
        stepwise, here = found(unrolled, torch.float32), found(fused, torch.float32)
    for exact, before, now in zip(expected, stepwise, here, strict=True):
        assert now.shape == exact.shape
        assert (now - exact).norm() <= 1.25 * max((before - exact).norm(), 2e-4 * exact.norm())


def all_gradients(tokens: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
    """Those of a layer of n models: of an embedding, w_ih, w_hh and b."""

    def loss(tokens: Tensor, x: Tensor, *given: Tensor) -> Tensor:
        return fused(Embedded(tokens, x), *given).sum()

    return tuple(vmap(grad(loss, argnums=(1, 2, 3, 4)))(tokens, *given))


@pytest.mark.usefixtures("tiles")
def test_nan_shows_in_its_model_and_in_no_other() -> None:
    """From a single output gate, which the way back reads as a number of 16 bits."""
    torch.manual_seed(0)
    w_ih, w_hh, b = weights(3, 17)
    b[1, -1] = torch.nan
    tokens, x = torch.randint(9, (3, 5, 3), device=DEVICE), torch.randn(3, 9, WIDE, device=DEVICE)
    for gradient in all_gradients(tokens, x, w_ih, w_hh, b):
        assert gradient[1].isnan().any()
        assert gradient[[0, 2]].isfinite().all()


@pytest.mark.slow
def test_compiled_code_knows_the_tiles(emulated: Any, monkeypatch: Any, tmp_path: Path) -> None:
    """Shapes follow from them, and torch keeps compiled code on disk.

    A process that sees fewer multiprocessors of a device must not find that of one that sees more.
    """
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    if not CUDA:
        monkeypatch.setattr(recurrence, "kernel", emulated)
    torch.manual_seed(0)
    given = (
        torch.randint(9, (2, 24, 2), device=DEVICE),
        torch.randn(2, 9, WIDE, device=DEVICE),
        *weights(2, 17),
    )
    found = []
    for tiles in (1, 2):
        monkeypatch.setattr(recurrence, "_tiles", lambda models, batch, device, tiles=tiles: tiles)
        torch._dynamo.reset()
        found.append(traced(all_gradients, given, compile=True)(*given))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_kernels_are_tried(emulated: Any, monkeypatch: Any) -> None:
    if not CUDA:
        monkeypatch.setattr(recurrence, "kernel", emulated)
    lstm = next(
        part for part in build("lstm").stackable().modules() if isinstance(part, StackableLSTM)
    )
    assert lstm.try_kernels(DEVICE, "tf32")
