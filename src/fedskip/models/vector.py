"""A module as one vector, K modules as the rows of a matrix.

The vector holds the trainable parameters first, then the frozen ones and the float buffers
(BatchNorm statistics). Integer counters are not state. `[:trainable]` is what methods bend and
optimisers move; the rest rides along and is always merged by sample weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Span:
    """One tensor of a module and its place in the vector."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def stop(self) -> int:
        return self.start + prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """Where each tensor of a module lives in its vector of `size` numbers."""

    spans: tuple[Span, ...]
    trainable: int  # D: the vector's first D numbers are trained
    size: int  # P

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        named = list(module.named_parameters())
        tensors: list[tuple[str, Tensor]] = [(name, p) for name, p in named if p.requires_grad]
        trainable = sum(p.numel() for _, p in tensors)
        tensors += [(name, p) for name, p in named if not p.requires_grad]
        tensors += [(name, b) for name, b in module.named_buffers() if b.is_floating_point()]
        spans, start = [], 0
        for name, tensor in tensors:
            spans.append(Span(name, tuple(tensor.shape), start))
            start = spans[-1].stop
        return cls(tuple(spans), trainable, start)

    def pack(self, module: nn.Module) -> Tensor:
        """A copy of the module's state as a vector, (P,)."""
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return torch.cat([state[span.name].detach().reshape(-1) for span in self.spans])

    def views(self, rows: Tensor, start: int = 0) -> dict[str, Tensor]:
        """Named views into a vector (P,) or a matrix (K, P); no copies.

        `rows` may be a slice that begins at `start`; tensors outside it are left out.
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


def on(device: torch.device, numbers: np.ndarray | Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    """The host's numbers on a device, without waiting for what is under way there."""
    tensor = torch.as_tensor(numbers, dtype=dtype)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
