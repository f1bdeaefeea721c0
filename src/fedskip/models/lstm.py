"""The next-character LSTM of SHAKESPEARE, and its unrolled form for the stacked engine.

References:
    Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020 (two layers of 100 units).
"""

from __future__ import annotations

from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class CharLSTM(nn.Module):
    """Embedding 80×8, two LSTM layers of 100 units, last step, dense 80; 133,520 parameters.

    `forget_bias` is added to the forget gates' initial biases (1 is TensorFlow's habit, 0 is torch's).
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
        self.embedding = nn.Embedding(vocabulary, embedding)
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

    def stackable(self) -> CharLSTM:
        """A copy that computes the same, but whose parameters may be batched by `vmap`."""
        twin = deepcopy(self)
        twin.lstm = Unrolled(twin.lstm)
        return twin


class Unrolled(nn.Module):
    """An `nn.LSTM` (batch first) as plain matmuls, which `vmap` can batch and `nn.LSTM` cannot.

    It holds the parameters of the `lstm` it is given, under the same names and in the same order.
    """

    def __init__(self, lstm: nn.Module) -> None:
        super().__init__()
        for name, parameter in lstm.named_parameters():
            self.register_parameter(name, parameter)
        self.layers = len(self._parameters) // 4

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """The last layer's hidden states: (B, T, I) → (B, T, H)."""
        for layer in range(self.layers):
            kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            w_ih, w_hh, b_ih, b_hh = (getattr(self, f"{kind}_l{layer}") for kind in kinds)
            gates = F.linear(x, w_ih, b_ih + b_hh)  # (B, T, 4H): one matmul for all steps
            h = c = x.new_zeros(x.shape[0], w_hh.shape[1])  # (B, H)
            steps = []
            # unbind, not gates[:, t]: the gradient of each such slice would be as large as `gates`
            for gate in gates.unbind(1):
                i, f, g, o = (gate + F.linear(h, w_hh)).chunk(4, 1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
                steps.append(h)
            x = torch.stack(steps, 1)
        return x, None
