"""The contract of a method, made executable and open to everyone: `check_method(MyMethod)`.

A rule is a function: its docstring is the rule, and each text that it yields is a way in which a method
breaks it. The rules judge the class, the calls that were recorded in a tiny federation, and whole runs.
"""

import copy
import dataclasses
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from fedskip import federation
from fedskip.data.dataset import Arrays
from fedskip.engine import Engine, Local, Loop, Plan, Stacked
from fedskip.engine.arithmetic import Arithmetic
from fedskip.errors import InputError, shorten
from fedskip.federation import Run, make_run, make_task
from fedskip.methods.base import MODEL, TRAINABLE, Merged, Method, Visit
from fedskip.methods.grammar import parse, text
from fedskip.methods.terms import Terms
from fedskip.rng import stream, torch_scope

Broken = Iterator[str]  # each ends the sentence "Here: ..."
FUNCTIONS = {  # the names of their arguments
    name: [*inspect.signature(getattr(Method, name)).parameters][1:]
    for name in ("begin", "end", "start", "sends", "absorb", "merge")
}
SIZES = np.array([4, 9, 6, 13])  # samples of each client
SLOTS, ROUNDS, PERIOD = 3, 4, 2
LOCAL = Local(lr=0.1, momentum=0.5, weight_decay=0.01, batch=4, epochs=2)


def check_method(method: Method | type[Method], **hyper: Any) -> None:
    """Hold a method, or a class made with `hyper`, against the contract that our own methods keep.

    An `InputError` names the first rule that is broken, and how.

    >>> from fedskip.methods import FedProx
    >>> check_method(FedProx, mu=0.1)
    """
    cls = method if isinstance(method, type) else type(method)
    if not issubclass(cls, Method):
        raise InputError(cls.__name__, "must be a subclass of fedskip.Method")
    _hold(FORM, cls, cls)
    made = cls(**hyper) if isinstance(method, type) else dataclasses.replace(method, **hyper)
    _hold(CONDUCT, cls, Trial(made))


def check_conduct(method: Method) -> None:
    """Hold a method against the rules on what its functions do, as far as the trial gets with it.

    A method may be made for a model that is not the trial's, or in a place from which none is read back.
    """
    _hold([is_frozen, declares_memory, takes_arguments], type(method), type(method))
    trial = Trial(method)
    _hold([*CALLS, *(RUNS if trial.error is None else ())], type(method), trial)


def _hold(rules: list[Callable[[Any], Broken]], cls: type[Method], subject: Any) -> None:
    for rule in rules:
        try:
            broken = next(rule(subject), None)
        except Exception as error:  # whatever a user's function does
            broken = f"{type(error).__name__}: {error}"
        if broken:
            words = " ".join(str(rule.__doc__).split()).rstrip(".")
            raise InputError(cls.__name__, f"breaks the rule {words!r}", fix=f"here: {broken}")


# --- the trial: a tiny federation that writes down every call of a method's functions ------------------


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
                write = f": write rows({rows!r}, like=x)" if isinstance(rows, int | float) else ""
                yield f"{self.name} gave {name} as {describe(rows)}, which is no tensor{write}"
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
        # the function that raised, and its arguments
        self.failed: tuple[str, dict[str, Any]] | None = None

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
        inner = ", ".join(f"{key!r}: {describe(inner)}" for key, inner in value.items())
        return shorten(f"{{{inner}}}", 100)
    if isinstance(value, tuple | list | np.ndarray) and len(value):
        return f"a {type(value).__name__}"
    return shorten(repr(value), 60)


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
    leaves: dict[str, Any] = {}
    for key, value in nest.items():
        leaves |= flat(value, f"{name}.{key}".strip("."))
    return leaves


def row(nest: Any, k: int) -> Any:
    """Row k of every tensor. A visit stays a visit, a tensor a tensor; all else becomes a flat dict."""
    if isinstance(nest, Visit):
        return visit_of(row(facts(nest), k))
    rows = {name: t[k : k + 1] if isinstance(t, Tensor) else t for name, t in flat(nest).items()}
    return rows[""] if isinstance(nest, Tensor) else rows


def equal(one: Any, other: Any, tolerance: float = 0.0) -> bool:
    """Whether two nests hold the same, numbers within a tolerance."""

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            alike = a.shape == b.shape and a.dtype == b.dtype
            return alike and torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
        return bool(a == b) or (callable(a) and callable(b))

    ones, others = flat(one), flat(other)
    return ones.keys() == others.keys() and all(same(ones[name], others[name]) for name in ones)


# --- what a method is ----------------------------------------------------------------------------------


def is_frozen(cls: type[Method]) -> Broken:
    """A method is a frozen dataclass with keyword-only fields."""
    decorated = "__dataclass_params__" in vars(cls)
    if not decorated or not all(field.kw_only for field in dataclasses.fields(cls)):
        yield "@dataclass(frozen=True, kw_only=True) is missing above the class"


def has_defaults(cls: type[Method]) -> Broken:
    """Every field has a default, and one that cannot be changed."""
    for field in dataclasses.fields(cls):
        if field.default is dataclasses.MISSING:
            yield f"{field.name} has none (a factory is no default: use a tuple for a list)"


def declares_memory(cls: type[Method]) -> Broken:
    """`remembers` is a dict of names, each with TRAINABLE or MODEL."""
    if not isinstance(cls.remembers, Mapping):
        yield f"it is {describe(cls.remembers)}: write remembers = {{'h': TRAINABLE}}"
        return
    for name, kind in cls.remembers.items():
        if not isinstance(name, str) or kind not in (TRAINABLE, MODEL):
            yield f"it has {name!r}: {describe(kind)}"


def takes_arguments(cls: type[Method]) -> Broken:
    """Functions take the arguments that those of `Method` take."""
    for name, arguments in FUNCTIONS.items():
        function = inspect.signature(getattr(cls, name))
        try:
            function.bind(cls, *arguments)
        except TypeError:
            yield f"{name} takes {function}, not (self, {', '.join(arguments)})"


def reads_back(trial: Trial) -> Broken:
    """The text form of a method reads back as the same method."""
    for method in (trial.method, trial.skipping):
        if parse(text(method)) != [method]:
            yield f"{text(method)} does not"


# --- what its functions and runs do --------------------------------------------------------------------


def leaves_arguments(trial: Trial) -> Broken:
    """Functions leave their arguments as they are."""
    for call in trial.calls:
        for name, given, left in zip(FUNCTIONS[call.name], call.given, call.left, strict=True):
            if not equal(given, left):
                yield f"{call.name} changed {name} in place"


def repeats_itself(trial: Trial) -> Broken:
    """The same arguments give the same result, wherever a function runs."""
    for call in trial.calls:
        if not equal(call.result, call.again):
            yield f"{call.name} of another instance, equal to the first, gave another result"


def bends_rows(trial: Trial) -> Broken:
    """Terms are rows of x's dtype, one per visit: mu and weight (K, 1), anchor and linear (K, D),
    previous (K, P). Where there is a mu there is an anchor, and all visits have the same terms."""
    layout = trial.task.layout
    width = {"mu": 1, "contrast.weight": 1, "contrast.previous": layout.size}
    kinds = set()
    for call in trial.of("begin"):
        if not isinstance(call.result, Terms):
            yield f"begin gave {describe(call.result)}, which is no Terms: write return Terms(...)"
            return
        given = {name: term for name, term in flat(call.result).items() if term is not None}
        kinds.add(tuple(given))
        others = {name: given.pop(name, None) for name in ("objective", "contrast.temperature")}
        yield from call.misshapen(given, lambda name: width.get(name, layout.trainable))
        if isinstance(others["contrast.temperature"], Tensor):
            yield "begin gave contrast.temperature as a tensor: it is a number, the same for all visits"
        if (call.result.mu is None) != (call.result.anchor is None):
            yield "begin gave one of mu and anchor without the other"
    if len(kinds) > 1:
        yield "begin gave other terms later than at first: give zeros where there is nothing to add"


def gives_an_objective(trial: Trial) -> Broken:
    """An objective is a function that gives one number, which can be differentiated by the module's
    parameters."""
    for call in trial.of("begin"):
        own, task = call.result.objective, trial.task
        if own is None:
            continue
        if not callable(own):
            yield f"begin gave {describe(own)}"
            return
        inputs, targets = task.samples.take(torch.arange(2))
        try:
            objective = own(copy.deepcopy(task.module), inputs, targets, task.loss)
        except Exception:  # whatever a user's function does with a module that is not its own
            return
        if not isinstance(objective, Tensor) or objective.dim() or not objective.requires_grad:
            way = ": take the mean" if isinstance(objective, Tensor) and objective.dim() else ""
            yield f"it gave {describe(objective)} for two samples{way}"


def returns_rows(trial: Trial) -> Broken:
    """`end` returns as memory the rows that `remembers` declares as trainable, (K, D), and no others, and
    as uploads rows, one per visit; all of x's dtype."""
    models = {name for name, kind in trial.method.remembers.items() if kind == MODEL}
    declared = {name for name, kind in trial.method.remembers.items() if kind == TRAINABLE}
    for call in trial.of("end"):
        pair = isinstance(call.result, tuple) and len(call.result) == 2
        if not pair or not all(isinstance(part, dict) for part in call.result):
            yield f"end gave {describe(call.result)}, not two dicts: write return {{...}}, {{...}}"
            return
        memory, upload = call.result
        for name in sorted(declared ^ set(memory), key=str):
            how = "returned but not declared" if name in memory else "not returned"
            how = "returned: a MODEL is kept by itself" if name in models else how
            yield f"{name!r} was {how}"
        yield from call.misshapen(memory, lambda _: trial.task.layout.trainable)
        yield from call.misshapen(upload)


def treats_rows_alone(trial: Trial) -> Broken:
    """A formula written for one row holds for all: K visits together equal each alone."""
    for call in trial.of("begin", "end"):
        for k in range(len(call.given[0])):
            named = zip(FUNCTIONS[call.name], call.given, strict=True)
            alone = [argument if name == "server" else row(argument, k) for name, argument in named]
            if not equal(getattr(trial.method, call.name)(*alone), row(call.result, k), 1e-9):
                yield f"what {call.name} gave for a visit depends on the visits beside it"


def keeps_tensors(trial: Trial) -> Broken:
    """The server's state is a dict of tensors, so that it can be saved and sent."""
    for call in trial.of("start", "sends", "absorb", "merge"):
        state = getattr(call.result, "server", {}) if call.name == "merge" else call.result
        named = isinstance(state, dict) and all(isinstance(name, str) for name in state)
        if not named or not all(isinstance(t, Tensor) for t in state.values()):
            yield f"{call.name} gave {describe(state)}"


def merges_vectors(trial: Trial) -> Broken:
    """A merge gives two finite vectors of x's dtype, (D,), however many slots take part."""
    for call in trial.of("merge"):
        _, x, w, *_ = call.given
        if not isinstance(call.result, Merged):
            yield f"merge gave {describe(call.result)}: write return Merged(broadcast, evaluated, server)"
            return
        for name in ("broadcast", "evaluated"):
            vector, meant = getattr(call.result, name), f"{tuple(x.shape)} of {x.dtype}"
            if not isinstance(vector, Tensor) or vector.shape != x.shape or vector.dtype != x.dtype:
                yield f"with {len(w)} slots {name} was {describe(vector)}, not {meant}"
            elif not vector.isfinite().all():
                yield f"with {len(w)} slots {name} was not finite"


def waits_for_results(trial: Trial) -> Broken:
    """Slots run ahead (sync 'period') only where clients remember nothing, the server absorbs nothing
    and begin does not look at visit.first: each depends on the order of work."""
    method = trial.method
    if method.sync == "period" and (method.remembers or type(method).absorb is not Method.absorb):
        yield "sync is 'period': leave it to the base class"
    for call in trial.of("begin") if method.sync == "period" else ():
        x, memory, server, visit = call.given
        later = visit_of(facts(visit) | {"first": ~visit.first})
        if not equal(call.result, method.begin(x, memory, server, later)):
            yield "begin looks at visit.first: remember something, or say sync = 'round'"


def finds_names(trial: Trial) -> Broken:
    """`memory` holds what `remembers` declares, `server` at a client what `sends` gives, `upload` what `end`
    gives, and the server's state what `start`, `absorb` and `merge` have put there."""
    if isinstance(trial.error, KeyError) and trial.failed is not None:
        name, given = trial.failed
        held = {key: sorted(map(str, d)) for key, d in given.items() if isinstance(d, dict)}
        words = [f"{key} holds {', '.join(names) or 'nothing'}" for key, names in held.items()]
        yield f"{name} looked for {trial.error}; {'; '.join(words)}"


def runs(trial: Trial) -> Broken:
    """A method runs with a period of 2, also when a slot has no visit."""
    if trial.error:
        where = f"{trial.failed[0]} raised " if trial.failed else ""
        yield f"{where}{type(trial.error).__name__}: {trial.error}"


def goes_on(trial: Trial) -> Broken:
    """A run that is saved within a period and restored goes on as if nothing had happened."""
    whole, first, second = (trial.run(trial.skipping) for _ in range(3))
    expected = train(Loop(trial.task), whole, ROUNDS).save()
    tensors, notes = copy.deepcopy(train(Loop(trial.task), first, ROUNDS - 1).save())
    second.restore(tensors, json.loads(json.dumps(notes)))
    if not equal(train(Loop(trial.task), second, ROUNDS).save(), expected):
        yield "it went on differently"


def agrees(trial: Trial) -> Broken:
    """Both engines train it alike, unless it has an objective of its own."""
    if any(call.result.objective for call in trial.of("begin")):
        return
    plan = Plan(sizes=[SLOTS], contrast_sizes=[SLOTS], pull=True, linear=True, compile=False)
    stacked = Stacked(trial.task, plan)
    (one, _), (other, _) = (
        train(engine, trial.run(trial.skipping), ROUNDS).save()
        for engine in (Loop(trial.task), stacked)
    )
    if not equal(one, other, 1e-7):
        yield "loop and stacked differ by more than rounding"


FORM: list[Callable[[Any], Broken]] = [is_frozen, has_defaults, declares_memory, takes_arguments]
# what functions give comes first: a call that gives something else makes later ones fail
CALLS: list[Callable[[Any], Broken]] = [
    finds_names, bends_rows, gives_an_objective, returns_rows, keeps_tensors, merges_vectors,
    leaves_arguments, repeats_itself, treats_rows_alone, waits_for_results,
]  # fmt: skip
RUNS: list[Callable[[Any], Broken]] = [runs, goes_on, agrees]
CONDUCT = [reads_back, *CALLS, *RUNS]
