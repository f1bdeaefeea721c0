"""What happens to an image between the pool and the model: the reference's CIFAR pipelines, in batch.

All images of a batch are transformed at once, on whatever device they are, by following each output
pixel back to the input pixel it comes from (every step here moves pixels without mixing them, so steps
compose exactly). Positions are whole numbers: the same image gets the same pixels on every device.

Random numbers are `rng.uniform(word, counter)` of the sample's own word:

| counter | draw |
|---|---|
| 0, 1 | top and left of the 32×32 crop inside the image padded to 40×40, each in 0..8 |
| 2 | mirrored if below ½ |
| 3 | angle, -15° to 15° (CIFAR-100 only) |
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedskip.rng import uniform

TOP, LEFT, FLIP, ANGLE = range(4)
SIDE, PAD, DEGREES = 32, 4, 15.0

MEAN10, STD10 = (125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)
MEAN100 = (0.5070751592371323, 0.48654887331495095, 0.4409178433670343)
STD100 = (0.2673342858792401, 0.2564384629170883, 0.27615047132568404)


def cifar10_train(x: Tensor, word: Tensor) -> Tensor:
    """Pad by reflection, crop, flip, normalise. x (m, 3, 32, 32) uint8, word (m,) -> float32."""
    row, column = _crop_and_flip(word, *_grid(x.device))
    return normalise(_gather(x, _reflect(row), _reflect(column)), MEAN10, STD10)


def cifar10_test(x: Tensor) -> Tensor:
    return normalise(x, MEAN10, STD10)


def cifar100_train(x: Tensor, word: Tensor) -> Tensor:
    """Pad with black, crop, flip, rotate (corners black), normalise. x (m, 3, 32, 32) uint8, word (m,)."""
    row, column = _rotate(word, *_grid(x.device))
    seen = _inside(row) & _inside(column)
    row, column = _crop_and_flip(word, row, column)
    seen = seen & _inside(row) & _inside(column)
    pixels = _gather(x, row.clamp(0, SIDE - 1), column.clamp(0, SIDE - 1)) * seen.unsqueeze(1)
    return normalise(pixels, MEAN100, STD100)


def cifar100_test(x: Tensor) -> Tensor:
    return normalise(x, MEAN100, STD100)


def normalise(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(x / 255 - mean) / std per channel, x (m, 3, h, w) -> float32."""

    def per_channel(values: Sequence[float]) -> Tensor:
        # Filled on the device: a copy from the host may not be part of a CUDA graph.
        return torch.stack([torch.full((1, 1), value, device=x.device) for value in values])

    scale = per_channel([1 / (255 * s) for s in std])
    shift = per_channel([-m / s for m, s in zip(mean, std, strict=True)])
    return x.to(torch.float32) * scale + shift


def _grid(device: torch.device) -> tuple[Tensor, Tensor]:
    """Row (1, 32, 1) and column (1, 1, 32) of every output pixel."""
    line = torch.arange(SIDE, device=device)
    return line.view(1, SIDE, 1), line.view(1, 1, SIDE)


def _crop_and_flip(word: Tensor, row: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
    """Where a pixel of the cropped and then flipped image lies in the image without its padding."""
    word = word.view(-1, 1, 1)
    top, left = ((uniform(word, draw) * (2 * PAD + 1)).long() - PAD for draw in (TOP, LEFT))
    column = torch.where(uniform(word, FLIP) < 0.5, SIDE - 1 - column, column)
    return row + top, column + left


def _rotate(word: Tensor, row: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
    """Where a pixel of the rotated image lies in the upright one: nearest, about the centre.

    Pillow's (and so torchvision's) arithmetic, in 1/65536 of a pixel. Sine and cosine are taken in
    float64, so that devices which round them differently still agree after the rounding here.
    """
    angle = (2 * uniform(word.view(-1, 1, 1), ANGLE).double() - 1) * math.radians(DEGREES)
    cos, sin = angle.cos(), angle.sin()
    centre, first = SIDE / 2, (SIDE - 1) / 2  # the middle of pixel 0 lies 15.5 from the centre
    column_of_first, row_of_first = centre - first * (cos - sin), centre - first * (cos + sin)

    def fixed(t: Tensor) -> Tensor:
        return (t * 65536 + 0.5).floor().long()

    return (
        (fixed(row_of_first) + fixed(sin) * column + fixed(cos) * row) >> 16,
        (fixed(column_of_first) + fixed(cos) * column - fixed(sin) * row) >> 16,
    )


def _reflect(position: Tensor) -> Tensor:
    """Mirror positions -4..35 at the first and the last pixel, which are not repeated."""
    return SIDE - 1 - (SIDE - 1 - position.abs()).abs()


def _inside(position: Tensor) -> Tensor:
    return (position >= 0) & (position < SIDE)


def _gather(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """x[i, :, row[i], column[i]]: row and column broadcast to (m, 32, 32)."""
    index = (row * SIDE + column).flatten(1).unsqueeze(1).expand(-1, x.shape[1], -1)
    return x.flatten(2).gather(2, index).view(x.shape)
