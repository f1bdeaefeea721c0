"""What a checkpoint can hold."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from safetensors.torch import load_file
from torch import Tensor

from fedskip import FedAvg
from fedskip.methods.base import Merged, State
from fedskip.records.checkpoint import list_checkpoints
from studies import study


@dataclass(frozen=True, kw_only=True)
class Keeping(FedAvg):
    """Keeps the slots, column by column: a tensor that is not contiguous."""

    title: ClassVar[str] = "Keeping"

    def merge(self, server: State, x: Tensor, w: Tensor, p: Tensor, a: Tensor) -> Merged:
        return Merged(p @ w, p @ w, {"last": w.T})


def test_any_tensor_can_be_kept(tmp_path: Path) -> None:
    made = study(tmp_path / "s", methods=[Keeping()], seeds=1, rounds=2, engine="loop")
    made.run()
    state = load_file(list_checkpoints(made.out / "checkpoints", "toy")[-1][1])
    assert state["toy.Keeping.s0/server.state.last"].shape[1] == 4
