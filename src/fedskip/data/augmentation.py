"""Image augmentation and normalisation for CIFAR, as in the reference code, in batches on the device.

Every step moves pixels without mixing them. So each output pixel is followed back through all steps to
the input pixel that it comes from. Positions are whole numbers, so an image gets the same pixels on
every device.

The random numbers of a sample are `rng.uniform(word, counter)` of its random word:

| counter | draw |
|---|---|
| 0, 1 | top and left of the 32×32 crop inside the image padded to 40×40, each in 0..8 |
| 2 | mirrored if below ½ |
| 3 | angle, -15° to 15° (CIFAR-100 only) |
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedskip.rng import uniform

DRAWS, SIDE, PAD, DEGREES = 4, 32, 4, 15.0

MEAN10, STD10 = (125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)
MEAN100 = (0.5070751592371323, 0.48654887331495095, 0.4409178433670343)
STD100 = (0.2673342858792401, 0.2564384629170883, 0.27615047132568404)


def cifar10_train(x: Tensor, word: Tensor) -> Tensor:
    """Pad by reflection, crop, flip and normalise: x (m, 3, 32, 32) uint8, word (m,) -> float32."""
    top, left, flip, _ = _draws(word)
    row, column = _crop_and_flip(top, left, flip, *_grid(x.device))
    # rows and columns move independently: first whole rows, which is fast, then columns
    first_row = SIDE * torch.arange(
        x.shape[0] * x.shape[1], device=x.device
    )  # of each channel of the batch
    at = first_row.view(-1, x.shape[1], 1) + _reflect(row).view(-1, 1, SIDE)  # (m, 3, 32)
    pixels = x.reshape(-1, SIDE).index_select(0, at.flatten()).view(x.shape)
    return normalise(pixels.gather(3, _reflect(column).unsqueeze(1).expand_as(x)), MEAN10, STD10)


def cifar10_test(x: Tensor) -> Tensor:
    """Normalise."""
    return normalise(x, MEAN10, STD10)


def cifar100_train(x: Tensor, word: Tensor) -> Tensor:
    """Pad with black, crop, flip, rotate (with black corners) and normalise; shapes as above."""
    top, left, flip, angle = _draws(word)
    row, column = _rotate(angle, *_grid(x.device))
    seen = _inside(row) & _inside(column)
    row, column = _crop_and_flip(top, left, flip, row, column)
    seen = seen & _inside(row) & _inside(column)
    index = row.clamp(0, SIDE - 1) * SIDE + column.clamp(0, SIDE - 1)  # (m, 32, 32)
    pixels = (
        x.flatten(2).gather(2, index.flatten(1).unsqueeze(1).expand_as(x.flatten(2))).view(x.shape)
    )
    return normalise(pixels * seen.unsqueeze(1), MEAN100, STD100)


def cifar100_test(x: Tensor) -> Tensor:
    """Normalise."""
    return normalise(x, MEAN100, STD100)


def normalise(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(x / 255 - mean) / std per channel, x (m, 3, h, w) -> float32."""

    def per_channel(values: Sequence[float]) -> Tensor:
        # filled on the device: a copy from the host cannot be part of a CUDA graph
        return torch.stack([torch.full((1, 1), value, device=x.device) for value in values])

    scale = per_channel([1 / (255 * s) for s in std])
    shift = per_channel([-m / s for m, s in zip(mean, std, strict=True)])
    return x.to(torch.float32).mul_(scale).add_(shift)  # in place: new memory is slow


def _grid(device: torch.device) -> tuple[Tensor, Tensor]:
    """Row (1, 32, 1) and column (1, 1, 32) of every output pixel."""
    line = torch.arange(SIDE, device=device)
    return line.view(1, SIDE, 1), line.view(1, 1, SIDE)


def _draws(word: Tensor) -> tuple[Tensor, ...]:
    """The draws of the table above, each (m, 1, 1)."""
    counter = torch.arange(DRAWS, device=word.device)
    return uniform(word.view(-1, 1), counter).view(-1, DRAWS, 1, 1).unbind(1)


def _crop_and_flip(
    top: Tensor, left: Tensor, flip: Tensor, row: Tensor, column: Tensor
) -> tuple[Tensor, Tensor]:
    """The place, in the image without padding, of a pixel of the cropped and flipped image."""
    places = 2 * PAD + 1
    column = torch.where(flip < 0.5, SIDE - 1 - column, column)
    return row + (top * places).long() - PAD, column + (left * places).long() - PAD


def _rotate(angle: Tensor, row: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
    """The place, in the upright image, of a pixel of the image rotated about its centre.

    This is the arithmetic of Pillow (and so of torchvision), in 1/65536 of a pixel, to the nearest
    pixel. Sine and cosine are computed in float64, so that devices that round them differently still
    agree after the rounding here.
    """
    radians = (2 * angle.double() - 1) * math.radians(DEGREES)
    cos, sin = radians.cos(), radians.sin()
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
    """Whether positions lie in the image."""
    return (position >= 0) & (position < SIDE)
