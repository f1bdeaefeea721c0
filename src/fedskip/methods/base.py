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
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedskip.errors import InputError, require
from fedskip.methods.terms import Terms
from fedskip.models.vector import on
from fedskip.parsing import fit_all

State = dict[str, Tensor]
# what a client may remember: a row as wide as the trainable slice, (D,), ...
TRAINABLE: Literal["trainable"] = "trainable"
# ... or its last local model as a whole, (P,)
MODEL: Literal["model"] = "model"


_SEGMENT = re.compile(r"([1-9][0-9]*)(?:x([1-9][0-9]*))?")


class Visit:
    """Facts of K visits for the functions on the client, each (K, 1); computed when used."""

    def __init__(self, like: Tensor, omega: Any, steps: Any, a: Any, first: Any) -> None:
        self._like, self._omega, self._steps, self._a, self._first = like, omega, steps, a, first

    @property
    def omega(self) -> Tensor:
        """n_i N / sum of all n: the client's size divided by the mean size."""
        return self._column(self._omega)

    @property
    def steps(self) -> Tensor:
        """tau_i: the local steps that were run."""
        return self._column(self._steps)

    @property
    def a(self) -> Tensor:
        """Sum over the steps s of eta_s (1 - rho^(s+1)) / (1 - rho): FedNova's a_i, times eta."""
        return self._column(self._a)

    @property
    def first(self) -> Tensor:
        """Whether this is the client's first visit."""
        return self._column(self._first).bool()

    def _column(self, numbers: Any) -> Tensor:
        return on(self._like.device, numbers, self._like.dtype)[:, None]


@dataclass(frozen=True)
class Federation:
    """Facts of the federation for the functions on the server."""

    clients: int  # N
    zeros: Tensor  # (D,)
    fresh: Callable[[], Tensor]  # (D,): weights of another, freshly initialised network


@dataclass(frozen=True)
class Merged:
    """The result of a merge: the vector sent to clients next and the one that is tested, both (D,)."""

    broadcast: Tensor
    evaluated: Tensor
    server: State


@dataclass(frozen=True, kw_only=True)
class Method:
    """The base class of methods; its functions are FedAvg's.

    A method is a frozen dataclass whose fields are hyper-parameters. `period`, the paper's Delta, is the
    number of rounds from one merge to the next, so every method can skip. `title` is its name in tables.
    `remembers` names the rows that each client keeps from visit to visit, as `{"c": TRAINABLE}`.
    """

    period: int | str = 1

    title: ClassVar[str]
    remembers: ClassVar[Mapping[str, Literal["trainable", "model"]]] = {}

    def __post_init__(self) -> None:
        name, title = type(self).__name__, getattr(self, "title", None)
        line = isinstance(title, str) and title.strip() and title.isprintable()
        rule, fix = "must be a line of text: it names runs", f"add `title = {name!r}` to the class"
        require(f"{name}.title", bool(line), rule, title, fix)
        fit_all(self)
        if isinstance(self.period, str) and self.period.isascii() and self.period.isdigit():
            object.__setattr__(self, "period", int(self.period))  # one method, one name
        Period.parse(self.period)  # a bad rule is refused here, where it was written

    # --- on the client -----------------------------------------------------------------------------

    def begin(self, x: Tensor, memory: State, server: State, visit: Visit) -> Terms:
        """The terms that a method adds to local training, which starts at the received model x.

        `memory` holds what the clients remember, `server` what `sends` gave them.
        """
        return Terms()

    def end(
        self, x: Tensor, y: Tensor, memory: State, server: State, visit: Visit
    ) -> tuple[State, State]:
        """What the client remembers and what it uploads, after training has turned x into y.

        Returns:
            The new memory, and the upload beside the model. A remembered `MODEL` is kept automatically
            and not returned here.
        """
        return {}, {}

    # --- on the server -----------------------------------------------------------------------------

    def start(self, federation: Federation) -> State:
        """The server's state before the first round."""
        return {}

    def sends(self, server: State) -> State:
        """The part of the server's state that clients get with their models."""
        return {}

    def absorb(
        self, server: State, x: Tensor, y: Tensor, upload: State, federation: Federation
    ) -> State:
        """The server's state after a round, whose visits turned x into y and brought `upload`."""
        return server

    def merge(self, server: State, x: Tensor, w: Tensor, p: Tensor, a: Tensor) -> Merged:
        """Merge the slots into one model.

        Args:
            server: the server's state.
            x: the model broadcast last, (D,).
            w: the slots' models, (K, D).
            p: each slot's share of the samples seen since that broadcast, (K,).
            a: the sum of `Visit.a` over each slot's visits, (K, 1).
        """
        mean = p @ w
        return Merged(mean, mean, server)

    # --- what follows from the above ---------------------------------------------------------------

    @property
    def sync(self) -> Literal["round", "period"]:
        """`round` if a round needs all results of the one before it, `period` if slots meet only to merge."""
        return "round" if self.remembers or type(self).absorb is not Method.absorb else "period"

    # --- names -------------------------------------------------------------------------------------

    @property
    def label(self) -> str:
        """The name in tables: FedAvg, FedSkip-5, SCAFFOLD+skip-5, FedProx(mu=0.1)."""
        return self.label_with()

    def label_with(self, shown: Collection[str] = ()) -> str:
        """The label; the hyper-parameters in `shown` appear in it even at their defaults."""
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
        """The fields that differ from their defaults, and those in `also`; without the period."""
        return {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if f.name != "period" and (f.name in also or getattr(self, f.name) != f.default)
        }


@dataclass(frozen=True)
class Period:
    """The number of rounds from one merge to the next, as a rule.

    `5` merges every fifth round. `'1x10,5'` merges every round ten times and every fifth round after that.
    `'never'` does not merge. The last part holds to the end.
    """

    segments: tuple[tuple[int, int | None], ...]  # (period, how many times; None: to the end)

    @classmethod
    def parse(cls, rule: int | str) -> "Period":
        if rule == "never":
            return cls(())
        segments: list[tuple[int, int | None]] = []
        for part in str(rule).replace(" ", "").split(","):
            match = _SEGMENT.fullmatch(part)
            if not match:
                rules = "must be a number of rounds >= 1, a rule such as '1x10,5', or 'never'"
                raise InputError("period", rules, rule)
            segments.append((int(match[1]), int(match[2]) if match[2] else None))
        if any(times is None for _, times in segments[:-1]):
            counts = "needs a count for every part but the last, as in '1x10,5'"
            raise InputError("period", counts, rule)
        if segments[-1][1] is not None:
            fix = f"it holds to the end: write '{str(rule).rpartition('x')[0]}'"
            raise InputError("period", "must have no count in its last part", rule, fix)
        return cls(tuple(segments))

    def merges(self, rounds: int) -> bool:
        """Whether slots merge after this number of rounds."""
        for period, times in self.segments:
            if times is None or rounds <= period * times:
                return rounds > 0 and rounds % period == 0
            rounds -= period * times
        return False


def rows(number: float, like: Tensor) -> Tensor:
    """One number for each of K rows, (K, 1)."""
    return torch.full((len(like), 1), number, dtype=like.dtype, device=like.device)
