"""A tiny federation that writes down every call of a method's functions, for `contract` to judge."""

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from fedskip import federation
from fedskip.data.dataset import Arrays
from fedskip.engine import Engine, Local, Loop
from fedskip.engine.arithmetic import Arithmetic
from fedskip.errors import shorten
from fedskip.federation import Run, make_run, make_task
from fedskip.methods.base import Method, Visit
from fedskip.rng import stream, torch_scope

FUNCTIONS = {  # the names of their arguments
    name: [*inspect.signature(getattr(Method, name)).parameters][1:]
    for name in ("begin", "end", "start", "sends", "absorb", "merge")
}
SIZES = np.array([4, 9, 6, 13])  # samples of each client
SLOTS, ROUNDS, PERIOD = 3, 4, 2
LOCAL = Local(lr=0.1, momentum=0.5, weight_decay=0.01, batch=4, epochs=2)


@dataclass(frozen=True)
class Call:
    """One call of a method's function."""

    name: str
    given: tuple[Any, ...]  # the arguments, copied before the call
    left: tuple[Any, ...]  # the arguments after it
    result: Any
    again: Any  # what an equal instance makes of the same arguments

    def misshapen(self, nest: Any, width: Callable[[str], int] | None = None) -> Iterator[str]:
        """What in a client's result is not one row per visit, of that width and of x's dtype and device."""
        x = self.given[0]
        for name, rows in flat(nest).items():
            if not isinstance(rows, Tensor):
                yield f"{self.name} gave {name} as {describe(rows)}, which is no tensor{_row_of(rows)}"
                continue
            shape = (len(x), width(name)) if width else (len(x), *rows.shape[1:])
            if rows.shape != shape or rows.dtype != x.dtype:
                given = f"{tuple(rows.shape)} of {rows.dtype}"
                yield f"{self.name} gave {name} as {given}, not {shape} of {x.dtype}"
            elif rows.device != x.device:
                yield f"{self.name} gave {name} on {rows.device}, not on {x.device}, where x is"


class Recorder:
    """Stands in for a method and writes down what is asked of it."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.calls: list[Call] = []
        self.failed: tuple[str, dict[str, Any]] | None = (
            None  # the function that raised, and its arguments
        )

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, name) if name in FUNCTIONS else getattr(self.method, name)

    def _call(self, name: str, *arguments: Any) -> Any:
        given, once_more = copy.deepcopy(arguments), copy.deepcopy(arguments)
        try:
            result = getattr(self.method, name)(*arguments)
        except Exception:
            self.failed = name, dict(zip(FUNCTIONS[name], given, strict=True))
            raise
        left, kept = copy.deepcopy(arguments), copy.deepcopy(result)
        again = getattr(dataclasses.replace(self.method), name)(*once_more)
        self.calls.append(Call(name, given, left, kept, again))
        return result


class Linear(nn.Module):
    """A linear model of normalised inputs: eight trainable numbers, and six that ride along."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.dense = nn.BatchNorm1d(3, affine=False), nn.Linear(3, 2)

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        output = self.dense(self.norm(x))
        return output, output

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)[0]


class Trial:
    """A method, the calls that a run of it made, and the error that ended it early, if one did."""

    def __init__(self, method: Method) -> None:
        self.method, self.skipping = method, dataclasses.replace(method, period=PERIOD)
        with torch_scope("contract"):
            module = Linear()
        x = torch.from_numpy(stream("contract").normal(size=(SIZES.sum(), 3)))
        samples = Arrays(x, (x[:, 0] > x[:, 1]).long())
        self.task = make_task(module, samples, LOCAL, arithmetic=Arithmetic("fp64"))
        self.clients = np.split(np.arange(SIZES.sum()), SIZES.cumsum()[:-1])
        recorder = Recorder(self.skipping)
        self.error = self._rehearse(cast(Method, recorder))
        self.calls, self.failed = recorder.calls, recorder.failed

    def run(self, method: Method) -> Run:
        x = self.task.layout.pack(self.task.module)
        return make_run(self.task, self.clients, method, cohort=SLOTS, fresh=lambda: 2 * x)

    def _rehearse(self, method: Method) -> Exception | None:
        """Two periods with all slots, and a round in which slot 1 has no visit."""
        try:
            run = train(Loop(self.task), self.run(method), ROUNDS)
            orders = run.server.orders(ROUNDS, np.array([0, 2]))
            _, routes = run.clients.begin(orders)
            y, loss = 0.9 * orders.x, orders.x.new_zeros(2)
            run.server.absorb(orders, run.clients.end(orders, routes, y, loss))
            run.server.merge(ROUNDS + 1)
        except Exception as error:  # whatever a user's function does
            return error
        return None

    def of(self, *names: str) -> list[Call]:
        return [call for call in self.calls if call.name in names]

    def kinds(self) -> set[tuple[str, ...]]:
        """The sets of terms that `begin` has given."""
        given = (flat(call.result).items() for call in self.of("begin"))
        return {tuple(name for name, term in terms if term is not None) for terms in given}


def train(engine: Engine, run: Run, until: int) -> Run:
    """The run, trained up to a round."""
    for _ in federation.train(engine, [run], until):
        pass
    return run


# --- tensors in dicts, tuples and dataclasses ----------------------------------------------------------


def facts(visit: Visit) -> dict[str, Tensor]:
    return {name: getattr(visit, name) for name in ("omega", "steps", "a", "first")}


def visit_of(facts: dict[str, Tensor]) -> Visit:
    return Visit(facts["omega"], **{name: column[:, 0] for name, column in facts.items()})


def describe(value: Any) -> str:
    """A value in few words, for messages."""
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)} of {value.dtype}"
    if isinstance(value, dict):
        return shorten(
            "{" + ", ".join(f"{key!r}: {describe(inner)}" for key, inner in value.items()) + "}",
            100,
        )
    if isinstance(value, tuple | list | np.ndarray) and len(value):
        return f"a {type(value).__name__}"
    return shorten(repr(value), 60)


def _row_of(value: Any) -> str:
    """How to write what was meant."""
    return f": write rows({value!r}, like=x)" if isinstance(value, int | float) else ""


def flat(nest: Any, name: str = "") -> dict[str, Any]:
    """The leaves by dotted name."""
    if isinstance(nest, Visit):
        nest = facts(nest)
    elif dataclasses.is_dataclass(nest):
        nest = vars(nest)
    elif isinstance(nest, tuple | list):
        nest = dict(enumerate(nest))
    if not isinstance(nest, dict):
        return {name: nest}
    return {
        k: v
        for key, value in nest.items()
        for k, v in flat(value, f"{name}.{key}".strip(".")).items()
    }


def row(nest: Any, k: int) -> Any:
    """Row k of every tensor. A visit stays a visit, a tensor a tensor; all else becomes a flat dict."""
    if isinstance(nest, Visit):
        return visit_of(row(facts(nest), k))
    rows = {name: t[k : k + 1] if isinstance(t, Tensor) else t for name, t in flat(nest).items()}
    return rows[""] if isinstance(nest, Tensor) else rows


def equal(one: Any, other: Any, tolerance: float = 0.0) -> bool:
    """Whether two nests hold the same, numbers within a tolerance."""
    a, b = flat(one), flat(other)
    return a.keys() == b.keys() and all(_same(a[name], b[name], tolerance) for name in a)


def _same(one: Any, other: Any, tolerance: float) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        alike = one.shape == other.shape and one.dtype == other.dtype
        return alike and torch.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)
    return bool(one == other) or (callable(one) and callable(other))
