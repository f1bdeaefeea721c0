"""Our own methods keep the contract, and each way to break it is found out and named."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor, nn

import fedskip
from fedskip.contract import CONDUCT, FORM
from fedskip.errors import InputError
from fedskip.methods import FedAvg, FedProx, Method, registry
from fedskip.methods.base import TRAINABLE, Federation, Merged, State, Visit, rows
from fedskip.methods.terms import Contrast, Terms
from tiny import METHODS, named

frozen = dataclass(frozen=True, kw_only=True)


# --- methods that keep it ------------------------------------------------------------------------------


def test_there_are_methods_of_every_kind_to_check() -> None:
    assert {type(method) for method in METHODS} == set(registry().values())


@pytest.mark.parametrize("method", METHODS, ids=named(METHODS))
def test_our_methods_keep_the_contract(method: Method) -> None:
    fedskip.check_method(method)


@frozen
class Own(Method):
    """A user's method: an objective of its own, a word as parameter, a tuple as default."""

    kind: Literal["l1", "l2"] = "l1"
    weights: tuple[float, ...] = (0.5, 0.25)

    title = "Own"

    def begin(self, x: Tensor, memory: State, server: State, visit: Visit) -> Terms:
        def objective(module: nn.Module, inputs: Tensor, targets: Tensor, loss: Any) -> Tensor:
            total: Tensor = loss(module(inputs), targets).mean() * self.weights[0]
            return total

        return Terms(objective=objective)


@pytest.mark.parametrize(
    "hyper", [{}, {"kind": "l2"}, {"weights": (1.0,)}, {"period": "1x2,3"}], ids=str
)
def test_a_user_s_method_with_hyper_parameters(hyper: dict[str, Any]) -> None:
    fedskip.check_method(Own, **hyper)
    fedskip.check_method(Own(), **hyper)


def test_bad_hyper_parameters_are_refused_as_ever() -> None:
    with pytest.raises(InputError, match="mu must be >= 0"):
        fedskip.check_method(FedProx, mu=-1)


# --- methods that break it -----------------------------------------------------------------------------


class Undecorated(FedAvg):
    title = "Undecorated"


@dataclass(frozen=True)
class Positional(Method):
    mu: float = 0.1
    title = "Positional"


@frozen
class Bare(Method):
    mu: float
    title = "Bare"


@frozen
class MutableDefault(Method):
    weights: list[float] = field(default_factory=list)
    title = "MutableDefault"


@frozen
class Nameless(Method):
    title = " "


@frozen
class Untitled(Method):
    pass


@frozen
class Unreadable(Method):
    scale: Any = None  # anything that is no literal
    title = "Unreadable"


@frozen
class EditsTheModel(Method):
    title = "EditsTheModel"

    def end(
        self, x: Tensor, y: Tensor, memory: State, server: State, visit: Visit
    ) -> tuple[State, State]:
        y.mul_(0.5)
        return {}, {}


@frozen
class EditsTheState(Method):
    title = "EditsTheState"

    def start(self, federation: Federation) -> State:
        return {"m": federation.zeros}

    def merge(self, server: State, x: Tensor, w: Tensor, p: Tensor, a: Tensor) -> Merged:
        server["m"] += 1.0
        return Merged(p @ w, p @ w, server)


@frozen
class Moody(Method):
    title = "Moody"

    def merge(self, server: State, x: Tensor, w: Tensor, p: Tensor, a: Tensor) -> Merged:
        noise = p @ w + torch.rand_like(x)
        return Merged(noise, noise, server)


@frozen
class HiddenChannel(Method):
    """The server's half reads what the client's half left on the instance."""

    title = "HiddenChannel"

    def end(
        self, x: Tensor, y: Tensor, memory: State, server: State, visit: Visit
    ) -> tuple[State, State]:
        object.__setattr__(self, "_secret", (y - x).mean())
        return {}, {}

    def merge(self, server: State, x: Tensor, w: Tensor, p: Tensor, a: Tensor) -> Merged:
        mean = p @ w + getattr(self, "_secret", 0.0)
        return Merged(mean, mean, server)


@frozen
class OneVectorForAll(Method):
    title = "OneVectorForAll"

    def begin(self, x: Tensor, memory: State, server: State, visit: Visit) -> Terms:
        return Terms(linear=torch.zeros_like(x[0]))


@frozen
class FlatMu(Method):
    title = "FlatMu"

    def begin(self, x: Tensor, memory: State, server: State, visit: Visit) -> Terms:
        return Terms(mu=rows(0.1, like=x)[:, 0], anchor=x)


@frozen
class WrongDtype(Method):
    title = "WrongDtype"

    def begin(self, x: Tensor, memory: State, server: State, visit: Visit) -> Terms:
        return Terms(linear=torch.zeros(x.shape))


@frozen
class NoAnchor(Method):
    title = "NoAnchor"

    def begin(self, x: Tensor, memory: State, server: State, visit: Visit) -> Terms:
        return Terms(mu=rows(0.1, like=x))


@frozen
class NarrowContrast(Method):
    title = "NarrowContrast"

    def begin(self, x: Tensor, memory: State, server: State, visit: Visit) -> Terms:
        return Terms(
            contrast=Contrast(rows(0.1, like=x), 0.5, x)
        )  # previous is (K, P), x is (K, D)


@frozen
class UndeclaredMemory(Method):
    title = "UndeclaredMemory"

    def end(
        self, x: Tensor, y: Tensor, memory: State, server: State, visit: Visit
    ) -> tuple[State, State]:
        return {"h": y - x}, {}


@frozen
class Forgetful(Method):
    title = "Forgetful"
    remembers = {"h": TRAINABLE}  # noqa: RUF012


@frozen
class NarrowMemory(Method):
    title = "NarrowMemory"
    remembers = {"h": TRAINABLE}  # noqa: RUF012

    def end(
        self, x: Tensor, y: Tensor, memory: State, server: State, visit: Visit
    ) -> tuple[State, State]:
        return {"h": (y - x)[:, :1]}, {}


@frozen
class SummedUpload(Method):
    title = "SummedUpload"

    def end(
        self, x: Tensor, y: Tensor, memory: State, server: State, visit: Visit
    ) -> tuple[State, State]:
        return {}, {"d": (y - x).sum(0)}


@frozen
class LooksAside(Method):
    title = "LooksAside"

    def begin(self, x: Tensor, memory: State, server: State, visit: Visit) -> Terms:
        return Terms(linear=visit.steps - visit.steps.mean() + torch.zeros_like(x))


@frozen
class LooksAsideAtTheEnd(Method):
    title = "LooksAsideAtTheEnd"
    remembers = {"h": TRAINABLE}  # noqa: RUF012

    def end(
        self, x: Tensor, y: Tensor, memory: State, server: State, visit: Visit
    ) -> tuple[State, State]:
        return {"h": memory["h"] + (y - x) / (y - x).norm()}, {}


@frozen
class CountsInPython(Method):
    title = "CountsInPython"

    def start(self, federation: Federation) -> State:
        return {"rounds": 0}  # type: ignore[dict-item]


@frozen
class MergesToAMatrix(Method):
    title = "MergesToAMatrix"

    def merge(self, server: State, x: Tensor, w: Tensor, p: Tensor, a: Tensor) -> Merged:
        return Merged(w, p @ w, server)


@frozen
class DividesByZero(Method):
    title = "DividesByZero"

    def merge(self, server: State, x: Tensor, w: Tensor, p: Tensor, a: Tensor) -> Merged:
        return Merged(p @ w, (p @ w) / 0.0, server)


@frozen
class NeedsAllSlots(Method):
    title = "NeedsAllSlots"

    def merge(self, server: State, x: Tensor, w: Tensor, p: Tensor, a: Tensor) -> Merged:
        mean = torch.ones(3, dtype=w.dtype) / 3 @ w
        return Merged(mean, mean, server)


@frozen
class RunsAhead(Method):
    """The trap: clients upload, the server absorbs, but nobody waits."""

    title = "RunsAhead"
    sync = "period"  # type: ignore[assignment]

    def start(self, federation: Federation) -> State:
        return {"d": federation.zeros}

    def sends(self, server: State) -> State:
        return server

    def begin(self, x: Tensor, memory: State, server: State, visit: Visit) -> Terms:
        return Terms(linear=server["d"] + torch.zeros_like(x))

    def absorb(
        self, server: State, x: Tensor, y: Tensor, upload: State, federation: Federation
    ) -> State:
        return {"d": server["d"] + (y - x).sum(0) / federation.clients}


@frozen
class LooksAtFirst(Method):
    title = "LooksAtFirst"

    def begin(self, x: Tensor, memory: State, server: State, visit: Visit) -> Terms:
        return Terms(mu=visit.first.to(x.dtype), anchor=x)


@frozen
class Crashes(Method):
    title = "Crashes"

    def absorb(
        self, server: State, x: Tensor, y: Tensor, upload: State, federation: Federation
    ) -> State:
        return {"d": server["d"]}


@frozen
class TooFewArguments(Method):
    title = "TooFewArguments"

    def begin(self, x: Tensor) -> Terms:  # type: ignore[override]
        return Terms()


@frozen
class ListOfMemories(Method):
    title = "ListOfMemories"
    remembers = ["h"]  # type: ignore[assignment]  # noqa: RUF012


@frozen
class BySample(Method):
    title = "BySample"

    def begin(self, x: Tensor, memory: State, server: State, visit: Visit) -> Terms:
        return Terms(objective=lambda module, inputs, targets, loss: loss(module(inputs), targets))


@frozen
class BendsLater(Method):
    """The stacked engine is planned from the terms of the first round."""

    title = "BendsLater"
    remembers = {"h": TRAINABLE}  # noqa: RUF012

    def begin(self, x: Tensor, memory: State, server: State, visit: Visit) -> Terms:
        return Terms() if visit.first.all() else Terms(linear=memory["h"])

    def end(
        self, x: Tensor, y: Tensor, memory: State, server: State, visit: Visit
    ) -> tuple[State, State]:
        return {"h": y - x}, {}


@frozen
class CountsInTheClass(Method):
    """State that no checkpoint knows of."""

    title = "CountsInTheClass"
    seen: ClassVar[set[float]] = set()

    def merge(self, server: State, x: Tensor, w: Tensor, p: Tensor, a: Tensor) -> Merged:
        self.seen.add(float(x.sum()))
        mean = p @ w / len(self.seen)
        return Merged(mean, mean, server)


FROZEN = "A method is a frozen dataclass with keyword-only fields"
DEFAULTS = "Every field has a default, and one that cannot be changed"
TEXT = "The text form of a method reads back as the same method"
ARGUMENTS = "Functions leave their arguments as they are"
REPEATS = "The same arguments give the same result, wherever a function runs"
TERMS = "Terms are rows of x's dtype, one per visit"
ROWS = "`end` returns as memory the rows that `remembers` declares"
ALONE = "A formula written for one row holds for all"
STATE = "The server's state is a dict of tensors"
MERGE = "A merge gives two finite vectors of x's dtype, (D,), however many slots take part"
SYNC = "Slots run ahead (sync 'period') only where clients remember nothing"
GOES_ON = "A run that is saved within a period and restored goes on as if nothing had happened"
RUNS = "A method runs with a period of 2, also when a slot has no visit"

NAMES_HELD = "`memory` holds what `remembers` declares"
TAKES = "Functions take the arguments that those of `Method` take"
MEMORY = "`remembers` is a dict of names, each with TRAINABLE or MODEL"
OBJECTIVE = "An objective is a function that gives one number"

BROKEN: list[tuple[Any, str, str]] = [
    (Undecorated, FROZEN, "@dataclass(frozen=True, kw_only=True) is missing"),
    (Positional, FROZEN, "@dataclass(frozen=True, kw_only=True) is missing"),
    (Bare, DEFAULTS, "mu has none"),
    (MutableDefault, DEFAULTS, "weights has none (a factory is no default"),
    (Unreadable(scale=frozenset()), TEXT, "scale"),
    (EditsTheModel, ARGUMENTS, "end changed y in place"),
    (EditsTheState, ARGUMENTS, "merge changed server in place"),
    (Moody, REPEATS, "merge of another instance"),
    (HiddenChannel, REPEATS, "merge of another instance"),
    (OneVectorForAll, TERMS, "begin gave linear as (8,) of torch.float64, not (3, 8)"),
    (FlatMu, TERMS, "begin gave mu as (3,)"),
    (WrongDtype, TERMS, "begin gave linear as (3, 8) of torch.float32"),
    (NoAnchor, TERMS, "begin gave one of mu and anchor without the other"),
    (NarrowContrast, TERMS, "begin gave contrast.previous as (3, 8) of torch.float64, not (3, 14)"),
    (BendsLater, TERMS, "begin gave other terms later than at first"),
    (UndeclaredMemory, ROWS, "'h' was returned but not declared"),
    (Forgetful, ROWS, "'h' was not returned"),
    (NarrowMemory, ROWS, "end gave h as (3, 1)"),
    (SummedUpload, ROWS, "end gave d as (8,)"),
    (LooksAside, ALONE, "what begin gave for a visit depends on the visits beside it"),
    (LooksAsideAtTheEnd, ALONE, "what end gave for a visit depends on the visits beside it"),
    (CountsInPython, STATE, "start gave {'rounds': 0}"),
    (MergesToAMatrix, MERGE, "with 3 slots broadcast was"),
    (DividesByZero, MERGE, "with 3 slots evaluated was"),
    (NeedsAllSlots, RUNS, "RuntimeError"),
    (RunsAhead, SYNC, "sync is 'period': leave it to the base class"),
    (LooksAtFirst, SYNC, "begin looks at visit.first"),
    (Crashes, NAMES_HELD, "absorb looked for 'd'; server holds nothing; upload holds nothing"),
    (TooFewArguments, TAKES, "begin takes (self, x: 'Tensor') -> 'Terms', not (self, x, memory"),
    (ListOfMemories, MEMORY, "it is a list: write remembers = {'h': TRAINABLE}"),
    (BySample, OBJECTIVE, "it gave a tensor (2,) of torch.float64 for two samples: take the mean"),
    (CountsInTheClass, GOES_ON, "it went on differently"),
]


@pytest.mark.parametrize(
    ("method", "rule", "how"),
    BROKEN,
    ids=[getattr(m, "__name__", type(m).__name__) for m, _, _ in BROKEN],
)
def test_a_broken_method_is_refused_with_the_rule_named(method: Any, rule: str, how: str) -> None:
    with pytest.raises(InputError) as caught:
        fedskip.check_method(method)
    assert f'breaks the rule "{rule}' in str(caught.value).replace("the rule '", 'the rule "')
    assert how in str(caught.value)
    assert str(caught.value).startswith(getattr(method, "__name__", type(method).__name__))


def test_a_class_inside_a_function_has_no_text_form() -> None:
    @frozen
    class Local(Method):
        title = "Local"

    with pytest.raises(InputError, match=TEXT):
        fedskip.check_method(Local)


@pytest.mark.parametrize("method", [Nameless, Untitled])
def test_a_method_needs_a_title(method: type[Method]) -> None:
    with pytest.raises(InputError, match=r"title must be a line of text: .* Add `title = "):
        fedskip.check_method(method)


def test_something_else_is_no_method() -> None:
    with pytest.raises(InputError, match=r"dict must be a subclass of fedskip\.Method"):
        fedskip.check_method(dict)  # type: ignore[type-var]


def test_every_rule_has_a_method_that_breaks_it() -> None:
    """But for the last one, which no method can break that keeps the others: it guards our engines."""
    broken = {rule for _, rule, _ in BROKEN}
    rules = [" ".join(str(rule.__doc__).split()) for rule in FORM + CONDUCT]
    unbroken = [rule for rule in rules if not any(rule.startswith(start) for start in broken)]
    assert unbroken == ["Both engines train it alike, unless it has an objective of its own."]
