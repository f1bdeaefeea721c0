"""A module as one vector, and K modules as the rows of a matrix.

The vector holds the trainable parameters, then the frozen ones, then the float buffers (BatchNorm
statistics). Integer counters are left out. Methods and optimisers change only `[:trainable]`; the rest
is always merged by sample weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Span:
    """One tensor of a module and its place in the vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Layout:
    """Where each tensor of a module lies in its vector of `size` numbers.

    >>> layout = Layout.of(module := nn.Linear(3, 2))
    >>> layout.pack(module).shape, layout.views(torch.zeros(5, layout.size))["weight"].shape
    (torch.Size([8]), torch.Size([5, 2, 3]))
    """

    spans: tuple[Span, ...]
    trainable: int  # D: the first D numbers are trained
    size: int  # P

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """The layout of a module's parameters and float buffers."""
        named = list(module.named_parameters())
        tensors: list[tuple[str, Tensor]] = [(name, p) for name, p in named if p.requires_grad]
        trainable = sum(p.numel() for _, p in tensors)
        tensors += [(name, p) for name, p in named if not p.requires_grad]
        tensors += [(name, b) for name, b in module.named_buffers() if b.is_floating_point()]
        spans, start = [], 0
        for name, tensor in tensors:
            spans.append(Span(name, tuple(tensor.shape), start, start + tensor.numel()))
            start += tensor.numel()
        return cls(tuple(spans), trainable, start)

    def pack(self, module: nn.Module) -> Tensor:
        """A copy of the module's state as a vector, (P,)."""
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return torch.cat([state[span.name].detach().reshape(-1) for span in self.spans])

    def views(self, rows: Tensor, start: int = 0) -> dict[str, Tensor]:
        """Named views into a vector (P,) or a matrix (K, P), without copies.

        `rows` may be a slice of the vector that begins at `start`; tensors outside it are left out.
        """
        lead, width = rows.shape[:-1], rows.shape[-1]
        return {
            s.name: rows[..., s.start - start : s.stop - start].view(lead + s.shape)
            for s in self.spans
            if s.start >= start and s.stop <= start + width
        }

    @torch.no_grad()
    def load(self, module: nn.Module, vector: Tensor) -> None:
        """Copy a vector (P,) into the module."""
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        for name, view in self.views(vector).items():
            state[name].copy_(view)


def on(
    device: torch.device, numbers: np.ndarray | Sequence[int], dtype: torch.dtype | None = None
) -> Tensor:
    """Copy numbers from the host to a device, without waiting for work that is running there."""
    tensor = torch.as_tensor(numbers, dtype=dtype)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
