"""What a method is: hyper-parameters plus a few pure functions, split by where they run.

    on the client      begin   the terms that bend local training
                       end     what the client remembers, what it uploads beside its model
    on the server      start   the server's state before the first round
                       sends   the part of that state that travels with a model
                       absorb  the state after a round's visits have come back
                       merge   the slots become one model

The server never sees a client's memory, so a network fits between the two halves. All defaults are
FedAvg's: a method writes only what differs. Every argument is a stack of rows, one per visit, and a
formula written for one row holds for all: x, y are (K, D), a number per visit is (K, 1).

Only the trainable slice (D of the P numbers of a model) passes through here. Buffers and frozen
parameters ride along and are always merged by sample weight.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedskip.input.errors import require
from fedskip.input.fit import fit_all
from fedskip.methods.period import Period
from fedskip.methods.terms import Terms
from fedskip.models.vector import on

State = dict[str, Tensor]
TRAINABLE: Literal["trainable"] = "trainable"  # a remembered row as wide as the trainable slice, (D,)
MODEL: Literal["model"] = "model"  # a remembered row that is the client's last local model, whole, (P,)


class Visit:
    """The facts of K visits that a client's half may need, each (K, 1); made when they are asked for."""

    def __init__(self, like: Tensor, omega: Any, steps: Any, a: Any, first: Any) -> None:
        self._like, self._omega, self._steps, self._a, self._first = like, omega, steps, a, first

    @property
    def omega(self) -> Tensor:
        """n_i N / sum of all n: the client's size over the mean size."""
        return self._column(self._omega)

    @property
    def steps(self) -> Tensor:
        """tau_i: local steps really run."""
        return self._column(self._steps)

    @property
    def a(self) -> Tensor:
        """Sum over the steps s of eta_s (1 - rho^(s+1)) / (1 - rho): FedNova's a_i, times eta."""
        return self._column(self._a)

    @property
    def first(self) -> Tensor:
        """Whether the client has not been visited before."""
        return self._column(self._first).bool()

    def _column(self, numbers: Any) -> Tensor:
        return on(self._like.device, numbers, self._like.dtype)[:, None]


@dataclass(frozen=True)
class Federation:
    """The facts of the whole federation that the server's half may need."""

    clients: int  # N
    zeros: Tensor  # (D,)
    fresh: Callable[[], Tensor]  # (D,): a newly initialised network, drawn apart from the run's own


@dataclass(frozen=True)
class Merged:
    """A merge gives the vector that is sent out next and the one that is tested, both (D,)."""

    broadcast: Tensor
    evaluated: Tensor
    server: State


@dataclass(frozen=True, kw_only=True)
class Method:
    """FedAvg without its name. `period` is the paper's Delta, so every method composes with skipping."""

    period: int | str = 1

    title: ClassVar[str]
    remembers: ClassVar[Mapping[str, Literal["trainable", "model"]]] = {}

    def __post_init__(self) -> None:
        title = getattr(self, "title", "")
        line = isinstance(title, str) and title.isprintable()
        require(f"{type(self).__name__}.title", line, "must be a line of text: it names runs", title)
        fit_all(self)
        if isinstance(self.period, str) and self.period.isascii() and self.period.isdigit():
            object.__setattr__(self, "period", int(self.period))  # one method, one name
        Period.parse(self.period)  # a bad rule is refused here, where it was written

    # --- on the client -----------------------------------------------------------------------------

    def begin(self, x: Tensor, memory: State, server: State, visit: Visit) -> Terms:
        """The terms of local training that starts at x."""
        return Terms()

    def end(self, x: Tensor, y: Tensor, memory: State, server: State, visit: Visit) -> tuple[State, State]:
        """What the client remembers and what it uploads, after x has become y.

        A remembered `MODEL` is kept by itself and is not returned here.
        """
        return {}, {}

    # --- on the server -----------------------------------------------------------------------------

    def start(self, federation: Federation) -> State:
        """The server's state before the first round."""
        return {}

    def sends(self, server: State) -> State:
        """The part of the server's state that a client gets with its model."""
        return {}

    def absorb(self, server: State, x: Tensor, y: Tensor, upload: State, federation: Federation) -> State:
        """The server's state after a round: the visits that came back took x to y."""
        return server

    def merge(self, server: State, x: Tensor, w: Tensor, p: Tensor, a: Tensor) -> Merged:
        """One model from the slots w (K, D).

        x (D,) is the model last broadcast, p (K,) each slot's share of the samples seen since then,
        a (K, 1) the sum of `Visit.a` over its visits.
        """
        mean = p @ w
        return Merged(mean, mean, server)

    # --- what follows from the above ---------------------------------------------------------------

    @property
    def sync(self) -> Literal["round", "period"]:
        """Whether a round needs all results of the one before it, or slots only meet when they merge."""
        return "round" if self.remembers or type(self).absorb is not Method.absorb else "period"

    # --- names -------------------------------------------------------------------------------------

    @property
    def label(self) -> str:
        """How tables call it: FedAvg, FedSkip-5, SCAFFOLD+skip-5, FedProx(mu=0.1)."""
        return self.label_with()

    def label_with(self, shown: Collection[str] = ()) -> str:
        """The label, in which some hyper-parameters are shown also at their defaults."""
        title = self.title
        if self.period == "never":
            title += "-unmerged"
        elif self.period != 1 and title == "FedAvg":
            title = f"FedSkip-{self.period}"
        elif self.period != 1:
            title += f"+skip-{self.period}"
        chosen = [f"{k}={v}" for k, v in self.hyper_parameters(shown).items()]
        return title + (f"({', '.join(chosen)})" if chosen else "")

    def hyper_parameters(self, also: Collection[str] = ()) -> dict[str, Any]:
        """The fields that differ from their defaults, and some others; the period aside."""
        return {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if f.name != "period" and (f.name in also or getattr(self, f.name) != f.default)
        }


def rows(number: float, like: Tensor) -> Tensor:
    """One number for each of K rows, (K, 1)."""
    return torch.full((len(like), 1), number, dtype=like.dtype, device=like.device)
