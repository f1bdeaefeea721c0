"""Methods as text: what is read, what is written, and what a user is told who mistypes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedskip.errors import InputError
from fedskip.methods import (
    FedAdam,
    FedAvg,
    FedAvgM,
    FedDyn,
    FedNova,
    FedProx,
    Median,
    Method,
    Moon,
    NormBounded,
    Scaffold,
    TrimmedMean,
    parse,
    parse_many,
    registry,
    text,
)
from tiny import METHODS

# --- reading -------------------------------------------------------------------------------------------


def test_the_registry_knows_every_method_by_name() -> None:
    """So that what is tested of `METHODS` is tested of every method."""
    assert registry() == {type(method).__name__.lower(): type(method) for method in METHODS}


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("fedavg", [FedAvg()]),
        ("fedavg()", [FedAvg()]),
        ("FedAvg", [FedAvg()]),
        ("fedskip(period=5)", [FedAvg(period=5)]),
        ("fedskip(period=5.0)", [FedAvg(period=5)]),
        ("fedskip(period='1x10,5')", [FedAvg(period="1x10,5")]),
        ("fedavg(period=never)", [FedAvg(period="never")]),
        ("fedavg(period='never')", [FedAvg(period="never")]),
        ("scaffold(period=3)", [Scaffold(period=3)]),
        ("scaffold(init=random)", [Scaffold(init="random")]),
        (" fedprox( mu = 1e-3 ) ", [FedProx(mu=0.001)]),
        ("fedprox(mu=[0.001,0.01])", [FedProx(mu=0.001), FedProx(mu=0.01)]),
        ("fedskip(period=[3, '1x10,5'])", [FedAvg(period=3), FedAvg(period="1x10,5")]),
        (
            "moon(mu=[1, 5], temperature=[0.1, 0.5])",
            [
                Moon(mu=1.0, temperature=0.1),
                Moon(mu=1.0, temperature=0.5),
                Moon(mu=5.0, temperature=0.1),
                Moon(mu=5.0, temperature=0.5),
            ],
        ),
    ],
)
def test_parse(entry: str, expected: list[Method]) -> None:
    assert parse(entry) == expected


def test_numbers_take_the_type_of_their_field() -> None:
    [method] = parse("fedprox(mu=1, period=2.0)")
    assert isinstance(method, FedProx)
    assert (type(method.mu), type(method.period)) == (float, int)


def test_parse_many_splits_outside_brackets_and_quotes() -> None:
    expected = [
        FedAvg(),
        FedProx(mu=0.1),
        FedProx(mu=1.0),
        FedAvg(period="1x10, 5"),
        Moon(),
        FedNova(),
    ]
    entries = """fedavg, fedprox(mu=[0.1, 1]) fedskip(period='1x10, 5'),moon
                 fednova"""
    assert parse_many(entries) == expected
    assert parse_many([FedAvg(), *entries.removeprefix("fedavg, ").split("\n")]) == expected
    assert parse_many(Moon(mu=2)) == [Moon(mu=2)]


# --- writing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (FedAvg(), "fedavg"),
        (FedAvg(period=5), "fedskip(period=5)"),
        (FedAvg(period="1x10,5"), "fedskip(period='1x10,5')"),
        (FedAvg(period="never"), "fedavg(period=never)"),
        (FedProx(), "fedprox"),
        (FedProx(mu=0.001, period=3), "fedprox(mu=0.001, period=3)"),
        (Scaffold(init="random"), "scaffold(init=random)"),
    ],
)
def test_text(method: Method, expected: str) -> None:
    assert text(method) == expected


@dataclass(frozen=True, kw_only=True)
class Mine(Method):
    """A user's method with fields of many types."""

    alpha: float = 0.5
    steps: int = 3
    fast: bool = False
    note: str = "plain"
    maybe: float | None = None
    schedule: list[int] | tuple[int, ...] = (1, 2)

    title = "Mine"


not_negative = st.floats(0, 1e30, allow_nan=False)
positive = st.floats(1e-30, 1e30, allow_nan=False)
fraction = st.floats(0, 1, exclude_max=True)
period: st.SearchStrategy[int | str] = st.one_of(
    st.integers(1, 10**6),
    st.just("never"),
    st.lists(st.tuples(st.integers(1, 99), st.integers(1, 99)), min_size=1).map(
        lambda parts: ",".join(f"{p}x{n}" for p, n in parts) + ",7"
    ),
)
methods: st.SearchStrategy[Method] = st.one_of(
    st.builds(FedAvg, period=period),
    st.builds(FedProx, period=period, mu=not_negative),
    st.builds(Scaffold, period=period, init=st.sampled_from(["zero", "random"])),
    st.builds(Moon, period=period, mu=not_negative, temperature=positive),
    st.builds(FedNova, period=period),
    st.builds(FedDyn, period=period, alpha=not_negative),
    st.builds(FedAvgM, period=period, beta=fraction, lr=positive),
    st.builds(FedAdam, period=period, lr=positive, beta1=fraction, beta2=fraction, eps=positive),
    st.builds(TrimmedMean, period=period, trim=st.floats(0, 0.5, exclude_max=True)),
    st.builds(Median, period=period),
    st.builds(NormBounded, period=period, factor=positive),
    st.builds(
        Mine,
        period=period,
        alpha=st.floats(-1e38, 1e38),
        steps=st.integers(),
        fast=st.booleans(),
        note=st.text(),
        maybe=st.none() | not_negative,
        schedule=st.lists(st.integers()) | st.lists(st.integers()).map(tuple),
    ),
)


@given(methods)
@example(Mine(note="""a 'quoted', "twice" quoted) text \\"""))
def test_parse_inverts_text(method: Method) -> None:
    assert parse(text(method)) == [method]
    assert parse_many(text(method)) == [method]


# --- a user's own class --------------------------------------------------------------------------------


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder whose modules can be imported and are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    importlib.invalidate_caches()
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


OWN = """
from dataclasses import dataclass
from fedskip.methods import Method

@dataclass(frozen=True, kw_only=True)
class Own(Method):
    alpha: float
    flag: bool = False
    title = "Own"
    def __post_init__(self):
        super().__post_init__()
        if self.alpha > 9:
            raise ValueError("alpha is too large")

class Bare(Method):
    alpha: float = 1.0
    title = "Bare"

@dataclass(frozen=True, kw_only=True)
class Untitled(Method):
    pass
"""


def test_a_class_of_the_working_folder(in_folder: Path) -> None:
    (in_folder / "own_methods.py").write_text(OWN)
    [method] = parse("own_methods:Own(alpha=1, flag=true)")
    assert (type(method).__name__, method.hyper_parameters()) == (
        "Own",
        {"alpha": 1.0, "flag": True},
    )
    assert text(method) == "own_methods:Own(alpha=1.0, flag=True)"
    assert parse(text(method)) == [method]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("own_methods:Own", "needs alpha. Write own_methods:Own(alpha=...)"),
        ("own_methods:Own(alpha=10)", "cannot be made: alpha is too large"),
        ("own_methods:Own(beta=1)", "'beta' is not a parameter of own_methods:Own"),
        ("own_methods:Bare(alpha=2)", "must be a dataclass"),
        ("own_methods:Untitled", "title must be a line of text"),
        ("own_methods:Other", "own_methods has no 'Other'"),
        ("own_methods:dataclass", "is a part of Python"),
        ("own_methods:Method.label", "must be a subclass of fedskip.methods.Method"),
        ("no_such_module:Own", "cannot be imported: No module named 'no_such_module'"),
        ("own_methods.py:Own(alpha=1)", "without .py"),
        ("broken_methods:Own", "fails when imported: ZeroDivisionError"),
    ],
)
def test_bad_classes(in_folder: Path, entry: str, message: str) -> None:
    (in_folder / "own_methods.py").write_text(OWN)
    (in_folder / "broken_methods.py").write_text("1 / 0")
    with pytest.raises(InputError) as caught:
        parse(entry)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"methods entry {entry!r}")


# --- mistakes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("fedprx", "method is not known, got 'fedprx'. Did you mean 'fedprox'?"),
        ("fedprox(mo=1)", "'mo' is not a parameter of fedprox. Did you mean 'mu'?"),
        ("fedprox(mu=a)", "mu must be a number, got 'a'."),
        ("fedprox(mu=None)", "mu must be a number, got None."),
        ("fedprox(mu=True)", "mu must be a number, got True."),
        ("fedprox(mu=1e999)", "mu must be a number, got inf."),
        ("fedprox(mu=(1, 2))", "mu must be a number, got (1, 2)."),
        ("fedprox(mu=-1)", "mu must be >= 0, got -1.0. 0 is FedAvg."),
        ("fedprox(mu=[])", "mu must not be an empty list"),
        ("fedprox(mu=[0.1, -1])", "mu must be >= 0, got -1.0"),
        ("fedprox(mu=1+1)", "mu must be a number, a word, a text in quotes, or a list of them"),
        (
            "fedprox(mu=open('x'))",
            "mu must be a number, a word, a text in quotes, or a list of them",
        ),
        ("fedprox(0.1)", "fedprox takes its parameters by name"),
        ("fedprox(**x)", "one by one, without **"),
        ("fedprox(mu=1)(mu=2)", "takes its parameters by name"),
        ("fedprox(mu=1, mu=2)", "mu is given twice"),
        ("fedprox(mu=1", "is not a method"),
        ("fedprox mu=1", "is not a method"),
        ("", "is not a method"),
        ("fedskip", "fedskip needs period. Write fedskip(period=...)."),
        ("fedskip(period=0)", "period must be a number of rounds >= 1"),
        ("fedskip(period=1.5)", "period must be a whole number or text, got 1.5"),
        ("fedskip(period=1x10,5)", "a rule in quotes: period='1x10,5'"),
        ("scaffold(init=rand)", "init must be 'zero' or 'random', got 'rand'"),
    ],
)
def test_mistakes_name_the_entry_and_the_way_out(entry: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(entry)
    assert str(caught.value).startswith(f"methods entry {entry!r}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "entries",
    [
        "fedavg fedavg",
        "fedskip(period=5), fedavg(period='5')",
        "fedprox(mu=[1, 1.0])",
        [Moon(), "moon"],
    ],
)
def test_the_same_method_twice(entries: Any) -> None:
    with pytest.raises(InputError, match=r"methods holds .* twice"):
        parse_many(entries)


@pytest.mark.parametrize("entries", ["", " , ", []])
def test_no_method_at_all(entries: Any) -> None:
    with pytest.raises(InputError, match="methods must name at least one method"):
        parse_many(entries)


def test_what_is_not_a_method() -> None:
    with pytest.raises(InputError, match="methods must be methods or their text"):
        parse_many([3])  # type: ignore[list-item]


@dataclass(frozen=True, kw_only=True)
class Kinds(FedAvg):
    kind: str = "a"

    title = "Kinds"


def test_runs_that_would_share_a_file_are_refused() -> None:
    with pytest.raises(InputError, match=r"methods holds Kinds\(kind=x/y\) twice"):
        parse_many([Kinds(kind="x/y"), Kinds(kind="x_y")])
