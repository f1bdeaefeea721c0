"""`engine: auto`: which engine trains a module, and how, by what the module is made of. Never by a timing.

Behind every limit are the lines of `benchmarks/engines.py` in `benchmarks/results/engines-*.csv` and the
tables of docs/performance.md; a module goes by its layers, so one of ours and the same one written by a user
are trained alike. Where two engines are within 20 %, it is the loop.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from torch import nn

from fedskip.errors import InputError, shorten
from fedskip.models.forms import in_single_steps, parameter_counts

# On a CPU
SMALL = {
    "dense",
    "embedding",
    "normalisation",
}  # kinds of layers whose steps, one by one, leave a core idle
MOST = (
    40_000  # their numbers: stacked is 3.6 times as fast with 17,000, at most twice from 50,000 on
)
SHORT = 10_000  # client-steps, which the loop has done before the stacked engine's first step is compiled

# On a GPU stacking wins with every kind of layer, by 26 to 183 times with ten rows of small modules
WIDE = (
    2_000_000  # numbers in convolutions from which single steps nearly fill it, as ResNet-50's do
)
STREAMS = 4  # on which the rows of such a module then run side by side


@dataclass(frozen=True)
class EngineChoice:
    """An engine, and how it is to train."""

    engine: str  # loop or stacked
    why: str = ""  # if it was chosen and not asked for
    streams: int = 0  # on which the stacked engine's rows run side by side; 0: all together

    @classmethod
    def instead(cls, refused: InputError) -> EngineChoice:
        """The loop, for what the stacked engine refuses."""
        reasons = [
            reason for reason in refused.fix.split("; ") if reason and "engine=loop" not in reason
        ]
        return cls(
            "loop", ": ".join([refused.rule, *(shorten(reason, 150) for reason in reasons[:1])])
        )

    def line(self) -> str:
        """As a line for people.

        >>> EngineChoice("loop", "convolutions on a CPU").line()
        'engine: loop (auto: convolutions on a CPU)'
        """
        return f"engine: {self.engine}" + (f" (auto: {self.why})" if self.why else "")


def choose(module: nn.Module, device: str, steps: int) -> EngineChoice:
    """The engine for a module on a kind of device, in a setting of so many client-steps."""
    return _on_cpu(module, steps) if device == "cpu" else EngineChoice("stacked", "on a GPU")


def _on_cpu(module: nn.Module, steps: int) -> EngineChoice:
    kinds = parameter_counts(module)
    size, others = kinds.total(), [kind for kind in kinds if kind not in SMALL]
    if others:
        return EngineChoice("loop", f"{_layers(others[0])} on a CPU")
    if size > MOST:
        return EngineChoice("loop", f"{size:,} numbers, more than {MOST:,}, on a CPU")
    if steps < SHORT:
        return EngineChoice("loop", f"{steps:,} client-steps, fewer than {SHORT:,}, on a CPU")
    return EngineChoice("stacked", f"{_most(kinds)} of {size:,} numbers on a CPU")


def streams_of(module: nn.Module, device: str) -> int:
    """On how many streams the rows of a module run side by side; 0: all together."""
    return STREAMS if device == "cuda" and parameter_counts(module)["convolution"] >= WIDE else 0


def compiles(module: nn.Module, device: str, precision: str, kernels: bool) -> bool:
    """Whether the steps of the stacked engine are worth compiling.

    On a GPU not those of recurrent layers in single time steps: 160 cells take minutes, and are fused as they
    are. Where kernels of our own take all time steps at once, they are.
    """
    return device == "cpu" or not in_single_steps(module, precision, kernels)


def _most(kinds: Counter[str]) -> str:
    """The name of the kind of layers that holds the most numbers."""
    return _layers(max(kinds, key=kinds.__getitem__, default="dense"))


def _layers(kind: str) -> str:
    """The name of a kind of layers."""
    words = {"attention": "attention", "convolution": "convolutions", "embedding": "embeddings"}
    words |= {
        "dense": "dense layers",
        "normalisation": "normalisations",
        "recurrent": "recurrent layers",
    }
    return words.get(kind, f"layers of the kind {kind}")
