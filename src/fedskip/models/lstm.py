"""The next-character LSTM for SHAKESPEARE, and the unrolled form of it that can be stacked.

References:
    Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020 (two layers of 100 units).
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedskip.errors import InputError
from fedskip.kernels import models_first

WIDEST = 128  # up to so many units, the weights fit the registers of a block of `recurrence.cu`


class CharLSTM(nn.Module):
    """Embedding 80×8, two LSTM layers of 100 units, the last step, dense 80; 133,520 parameters.

    `forget_bias` is added to the initial biases of the forget gates: 1 in TensorFlow, 0 in torch.
    """

    def __init__(
        self,
        classes: int = 80,
        vocabulary: int = 80,
        embedding: int = 8,
        hidden: int = 100,
        layers: int = 2,
        forget_bias: float = 0.0,
    ) -> None:
        super().__init__()
        self.embedding: nn.Module = nn.Embedding(vocabulary, embedding)
        self.lstm: nn.Module = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.dense = nn.Linear(hidden, classes)
        with torch.no_grad():
            for name, bias in self.lstm.named_parameters():
                if name.startswith("bias_ih"):  # (4H,): input, forget, cell and output gate
                    bias[hidden : 2 * hidden] += forget_bias

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        steps, _ = self.lstm(self.embedding(x.long()))  # tokens (B, T) → (B, T, 8) → (B, T, H)
        z = steps[:, -1]  # (B, H)
        return self.dense(z), z

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)[0]

    def refuse(self, tokens: object) -> None:
        """Raise an `InputError` for tokens that have no embedding."""
        if not isinstance(tokens, Tensor) or not len(tokens):
            return
        vocabulary = len(self.embedding.get_parameter("weight"))
        least, most = int(tokens.min()), int(tokens.max())
        if least < 0 or most >= vocabulary:
            rule = f"must have tokens from 0 to {vocabulary - 1}"
            fix = (
                f"set model.vocabulary={most + 1}" if least >= 0 else "number the tokens from 0 on"
            )
            raise InputError("data.x", rule, most if least >= 0 else least, fix)

    def stackable(self) -> CharLSTM:
        """A copy that computes the same, and whose parameters `vmap` can batch."""
        form = deepcopy(self)
        form.lstm = StackableLSTM(form.lstm)
        form.embedding = Lookup(form.embedding)
        return form


class Embedded(NamedTuple):
    """The vectors of tokens, as a product with one-hot rows: its gradient is a product, too, so bits repeat."""

    tokens: Tensor  # (B, T)
    weight: Tensor  # (V, I)

    def vectors(self) -> Tensor:
        here = self.tokens[..., None] == torch.arange(len(self.weight), device=self.tokens.device)
        return here.to(self.weight.dtype) @ self.weight


class Lookup(nn.Module):
    """An `nn.Embedding` that leaves it to the next layer to look its vectors up."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.weight: Tensor = embedding.get_parameter("weight")

    def forward(self, x: Tensor) -> Embedded:
        return Embedded(x, self.weight)


class StackableLSTM(nn.Module):
    """An `nn.LSTM` (batch first) whose parameters `vmap` can batch.

    It shares the parameters of the given `lstm`, under the same names and in the same order. With
    `kernels`, those of `recurrence.py` compute all steps in one launch, where products are in tf32.
    """

    kernels = False
    precisions = ("tf32",)  # that the kernels are for

    def __init__(self, lstm: nn.Module) -> None:
        super().__init__()
        for name, parameter in lstm.named_parameters():
            self.register_parameter(name, parameter)
        self.layers = len(self._parameters) // 4

    def forward(self, tokens: Embedded) -> tuple[Tensor, None]:
        """The last layer's hidden states, (B, T, H)."""
        x: Any = tokens
        at_once = self.kernels and in_tf32(tokens.weight)
        layer = fused if at_once else unrolled
        for number in range(self.layers):
            kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            w_ih, w_hh, b_ih, b_hh = (getattr(self, f"{kind}_l{number}") for kind in kinds)
            x = layer(x, w_ih, w_hh, b_ih + b_hh)
        return x[:, 1:] if at_once else x, None

    def wants_kernels(self) -> bool:
        """Whether the layers are small enough for the kernels."""
        return self.get_parameter("weight_hh_l0").shape[1] <= WIDEST

    def try_kernels(self, device: torch.device, precision: str) -> bool:
        """Whether the kernels run here and give what single steps do.

        It tries the number of tiles that needs the most memory. All kernels have one precision.
        """
        from fedskip.kernels.recurrence import by_gate, recurrence, recurrence_gradient

        w = self.get_parameter("weight_hh_l0").detach().to(device, torch.float32)[None]
        b, gates = torch.zeros_like(w[:, :, 0]), torch.ones(1, 1, 3, w.shape[1], device=device)
        h, *kept = recurrence(gates, b, w, None, 2)
        tokens = torch.zeros(1, 1, 2, dtype=torch.int32, device=device)
        looked_up, *_ = recurrence(gates[:, 0, :1], b, w, tokens, 2)
        gradient = recurrence_gradient(h, w, *kept)[0][:, 0, 1:]
        h_steps, *saved = forward_steps(gates[:, :, 1:], w)
        d_gates = backward_steps(h_steps, w, h_steps, *saved)[0]
        pairs = [
            (h[:, :, 1:], h_steps),
            (looked_up, h),
            (by_gate(gradient.transpose(1, 2)), d_gates[:, 0].transpose(1, 2)),
        ]
        return all(torch.allclose(one, other, rtol=0.01, atol=0.001) for one, other in pairs)


def unrolled(x: Embedded | Tensor, w_ih: Tensor, w_hh: Tensor, b: Tensor) -> Tensor:
    """h of a layer, step by step; the input's part of the gates (B, T, 4H) is one product for all steps."""
    gates = F.linear(x.vectors() if isinstance(x, Embedded) else x, w_ih, b)
    with torch.autocast(gates.device.type, enabled=False):
        h: Tensor = Recurrence.apply(gates, w_hh.to(gates.dtype))[0]
    return h


def fused(x: Embedded | Tensor, w_ih: Tensor, w_hh: Tensor, b: Tensor) -> Tensor:
    """h of a layer, all steps in one launch; x and h have a place before the first step, tokens do not."""
    from fedskip.kernels.recurrence import Fused

    inputs, tokens = (x.weight, x.tokens) if isinstance(x, Embedded) else (x, None)
    h: Tensor = Fused.apply(inputs, w_ih, w_hh, b, tokens)[0]
    return h


def in_tf32(x: Tensor) -> bool:
    """Whether products with x are computed in tf32."""
    autocast = torch.is_autocast_enabled(x.device.type)
    return (
        x.is_cuda
        and x.dtype == torch.float32
        and torch.backends.cuda.matmul.allow_tf32
        and not autocast
    )


class Recurrence(torch.autograd.Function):
    """h (B, T, H) from the input's part of the gates (B, T, 4H) and w_hh (4H, H), for one model or for n.

    Under `vmap` each step is one batched product for all models. The other outputs, c of each step and
    its gates after their activations, are for the gradient.
    """

    @staticmethod
    def forward(gates: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return tuple(t[0] for t in forward_steps(gates[None], w[None]))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(inputs[1], *output)

    @staticmethod
    def backward(ctx: Any, dh: Tensor, *_: Tensor) -> Any:
        return RecurrenceGradient.apply(dh, *ctx.saved_tensors)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *tensors: Tensor) -> Any:
        results = forward_steps(*models_first(info, in_dims, tensors))
        return results, (0,) * len(results)


class RecurrenceGradient(torch.autograd.Function):
    """The gradients of `Recurrence` with respect to its gates and its w."""

    @staticmethod
    def forward(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        d_gates, d_w = backward_steps(*(t[None] for t in tensors))
        return d_gates[0], d_w[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *tensors: Tensor) -> Any:
        return backward_steps(*models_first(info, in_dims, tensors)), (0, 0)


def forward_steps(gates: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """gates (n, B, T, 4H), w (n, 4H, H) → h (n, B, T, H), then c of each step and its active gates."""
    n, batch, steps, _ = gates.shape
    h = c = gates.new_zeros(n, batch, w.shape[2])
    into, hs, cs, actives = w.transpose(1, 2), [], [], []
    for t in range(steps):
        h, c, active = cell(gates[:, :, t], torch.bmm(h, into), c)
        hs.append(h)
        cs.append(c)
        actives.append(active)
    return torch.stack(hs, 2), *cs, *actives


def backward_steps(dh: Tensor, w: Tensor, h: Tensor, *saved: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients with respect to the gates (n, B, T, 4H) and w (n, 4H, H)."""
    steps = len(saved) // 2
    cs, actives = (torch.zeros_like(saved[0]), *saved[:steps]), saved[steps:]
    d, dc, d_steps = dh[:, :, -1], cs[0], []
    for t in reversed(range(steps)):
        d_gate, dc = cell_gradient(d, dc, cs[t], cs[t + 1], actives[t])
        d_steps.append(d_gate)
        if t:
            d = torch.baddbmm(dh[:, :, t - 1], d_gate, w)
    d_gates = torch.stack(d_steps[::-1], 2)
    h_before = F.pad(h[:, :, :-1], (0, 0, 1, 0))
    return d_gates, torch.bmm(d_gates.flatten(1, 2).transpose(1, 2), h_before.flatten(1, 2))


def cell(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One step from the two parts of its gates (n, B, 4H): h, c and the gates after their activations."""
    if a.is_cuda:  # one kernel
        flat = (t.flatten(0, 1) for t in (a, b, c))
        fused = torch.ops.aten._thnn_fused_lstm_cell(*flat, None, None)
        return fused[0].view_as(c), fused[1].view_as(c), fused[2].view_as(a)
    i, f, g, o = (a + b).chunk(4, -1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    c = f * c + i * g
    return o * c.tanh(), c, torch.cat([i, f, g, o], -1)


def cell_gradient(
    dh: Tensor, dc: Tensor, before: Tensor, c: Tensor, active: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients with respect to the gates before their activations, and to c before the step."""
    if c.is_cuda:
        flat = (t.flatten(0, 1) for t in (dh, dc, before, c, active))
        fused = torch.ops.aten._thnn_fused_lstm_cell_backward_impl(*flat, False)
        return fused[0].view_as(active), fused[1].view_as(c)
    i, f, g, o = active.chunk(4, -1)
    tanh = c.tanh()
    dc = dc + dh * o * (1 - tanh * tanh)
    parts = (
        dc * g * i * (1 - i),
        dc * before * f * (1 - f),
        dc * i * (1 - g * g),
        dh * tanh * o * (1 - o),
    )
    return torch.cat(parts, -1), dc * f
