"""Mistakes that people make in methods of their own: each is refused with its rule, here and by a study."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fedskip
from fedskip.contract import check_conduct
from fedskip.errors import InputError
from fedskip.methods import Merged, Method, rows
from fedskip.methods.base import MODEL, TRAINABLE
from fedskip.methods.terms import Contrast, Terms
from studies import study

TERMS = "Terms are rows of x's dtype, one per visit"
OBJECTIVE = "An objective is a function that gives one number"
ROWS = "`end` returns as memory the rows that `remembers` declares"
NAMES = "`memory` holds what `remembers` declares"
STATE = "The server's state is a dict of tensors"
MERGE = "A merge gives two finite vectors"
MEMORY = "`remembers` is a dict of names"
ARGUMENTS = "Functions take the arguments that those of `Method` take"


def begins(terms: Callable[..., Any]) -> dict[str, Any]:
    """A method whose `begin` gives terms of x and, where asked for, of what else it has."""

    def begin(self: Method, x: Any, memory: Any, server: Any, visit: Any) -> Any:
        return terms(SimpleNamespace(x=x, memory=memory, server=server, visit=visit))

    return {"begin": begin}


def ends(pair: Callable[..., Any], **remembers: Any) -> dict[str, Any]:
    def end(self: Method, x: Any, y: Any, memory: Any, server: Any, visit: Any) -> Any:
        return pair(y)

    return {"end": end, "remembers": remembers}


def objective(found: Callable[..., Any]) -> dict[str, Any]:
    def own(module: Any, inputs: Any, targets: Any, loss: Any) -> Any:
        return found(loss(module(inputs), targets))

    return begins(lambda _: Terms(objective=own))


def merges(found: Callable[..., Any]) -> dict[str, Any]:
    return {"merge": lambda self, server, x, w, p, a: found(p @ w, server)}


def contrast(weight: Callable[..., Any], temperature: Callable[..., Any]) -> dict[str, Any]:
    return begins(
        lambda at: Terms(contrast=Contrast(weight(at.x), temperature(at.x), at.visit._like))
    )


MISTAKES: dict[str, tuple[dict[str, Any], str, str]] = {
    "a float for mu": (
        begins(lambda at: Terms(mu=0.1, anchor=at.x)),
        TERMS,
        "begin gave mu as 0.1, which is no tensor: write rows(0.1",
    ),
    "a float for mu, and no anchor": (
        begins(lambda _: Terms(mu=0.1)),
        TERMS,
        "write rows(0.1, like=x)",
    ),
    "one number for mu": (
        begins(lambda at: Terms(mu=torch.tensor(0.1), anchor=at.x)),
        TERMS,
        "begin gave mu as () of torch.float32",
    ),
    "an array for a row": (
        begins(lambda at: Terms(linear=at.x.numpy())),
        TERMS,
        "linear as a ndarray, which is no",
    ),
    "a list for a row": (begins(lambda _: Terms(linear=[0.5])), TERMS, "is no tensor"),
    "a row on another device": (
        begins(lambda at: Terms(linear=at.x.to("meta"))),
        TERMS,
        "begin gave linear on meta, not on cpu, where x is",
    ),
    "a row of another dtype": (
        begins(lambda at: Terms(linear=at.x.half())),
        TERMS,
        "of torch.float16, not (3, 8)",
    ),
    "no terms": (
        begins(lambda _: None),
        TERMS,
        "begin gave None, which is no Terms: write return Terms(",
    ),
    "a dict for terms": (
        begins(lambda _: {"mu": 0.1}),
        TERMS,
        "begin gave {'mu': 0.1}, which is no Terms",
    ),
    "a row for terms": (
        begins(lambda at: at.x),
        TERMS,
        "begin gave a tensor (3, 8) of torch.float64",
    ),
    "a float for the contrast's weight": (
        contrast(lambda _: 0.1, lambda _: 0.5),
        TERMS,
        "begin gave contrast.weight as 0.1",
    ),
    "rows for the temperature": (
        contrast(lambda x: rows(0.1, x), lambda x: rows(0.5, x)),
        TERMS,
        "temperature as a tensor: it is a number",
    ),
    "an objective by sample": (
        objective(lambda loss: loss),
        OBJECTIVE,
        "a tensor (2,) of torch.float64 for two samples",
    ),
    "an objective that gives nothing": (objective(lambda _: None), OBJECTIVE, "it gave None"),
    "an objective that is no tensor": (
        objective(lambda loss: loss.mean().item()),
        OBJECTIVE,
        "it gave 0.",
    ),
    "an objective cut off from its module": (
        objective(lambda loss: loss.mean().detach()),
        OBJECTIVE,
        "a tensor ()",
    ),
    "an objective that is no function": (
        begins(lambda _: Terms(objective=1)),
        OBJECTIVE,
        "begin gave 1",
    ),  # type: ignore[arg-type]
    "memory that nobody declared": (
        begins(lambda at: Terms(linear=at.memory["h"])),
        NAMES,
        "memory holds nothing",
    ),
    "a state that nobody sends": (
        begins(lambda at: Terms(linear=at.server["c"])),
        NAMES,
        "begin looked for 'c'; memory holds nothing; server",
    ),
    "an upload that nobody sends": (
        {"absorb": lambda self, server, x, y, upload, federation: {"d": upload["d"].sum(0)}},
        NAMES,
        "absorb looked for 'd'; server holds nothing; upload holds nothing",
    ),
    "an end without a result": (ends(lambda _: None), ROWS, "end gave None, not two dicts"),
    "an end with one dict": (ends(lambda _: {}), ROWS, "end gave {}, not two dicts"),
    "an end with tensors": (ends(lambda y: (y, y)), ROWS, "end gave a tuple, not two dicts"),
    "a float to upload": (
        ends(lambda _: ({}, {"n": 1.0})),
        ROWS,
        "end gave n as 1.0, which is no tensor",
    ),
    "a list to upload": (ends(lambda y: ({}, [y])), ROWS, "not two dicts"),
    "half precision to upload": (
        ends(lambda y: ({}, {"d": y.half()})),
        ROWS,
        "end gave d as (3, 8) of torch.float16",
    ),
    "nothing to remember": (
        ends(lambda _: ({"h": None}, {}), h=TRAINABLE),
        ROWS,
        "end gave h as None",
    ),
    "another name to remember": (
        ends(lambda y: ({"g": y}, {}), h=TRAINABLE),
        ROWS,
        "'g' was returned but not declared",
    ),
    "a model to remember": (
        ends(lambda y: ({"h": y}, {}), h=MODEL),
        ROWS,
        "a MODEL is kept by itself",
    ),
    "a kind of memory that is none": (
        ends(lambda y: ({"h": y}, {}), h="row"),
        MEMORY,
        "it has 'h': 'row'",
    ),
    "a list of memories": ({"remembers": ["h"]}, MEMORY, "write remembers = {'h': TRAINABLE}"),
    "a start without a result": (
        {"start": lambda self, federation: None},
        STATE,
        "start gave None",
    ),
    "an array for a state": (
        {"start": lambda self, federation: {"m": np.zeros(3)}},
        STATE,
        "start gave {'m': a ndarray}",
    ),
    "a state without a name": (
        {"start": lambda self, federation: {1: federation.zeros}},
        STATE,
        "start gave {1: a tensor",
    ),
    "nothing to send": ({"sends": lambda self, server: None}, STATE, "sends gave None"),
    "an absorb without a result": (
        {"absorb": lambda self, server, x, y, upload, federation: None},
        STATE,
        "absorb gave None",
    ),
    "a merge without a state": (
        merges(lambda mean, _: Merged(mean, mean, None)),
        STATE,
        "merge gave None",
    ),  # type: ignore[arg-type]
    "a merge without a result": (
        merges(lambda *_: None),
        MERGE,
        "merge gave None: write return Merged(",
    ),
    "a merge to a tuple": (
        merges(lambda mean, server: (mean, server)),
        MERGE,
        "merge gave a tuple: write return Merged(",
    ),
    "a merge to a number": (
        merges(lambda _, server: Merged(0.0, 0.0, server)),
        MERGE,
        "broadcast was 0.0, not (8,)",
    ),  # type: ignore[arg-type]
    "a merge to half precision": (
        merges(lambda mean, server: Merged(mean.half(), mean.half(), server)),
        MERGE,
        "a tensor (8,) of torch.float16",
    ),
    "a merge to NaN": (
        merges(lambda mean, server: Merged(mean / 0, mean, server)),
        MERGE,
        "broadcast was not finite",
    ),
    "too few arguments": (
        {"begin": lambda self, x: Terms()},
        ARGUMENTS,
        "begin takes (self, x), not (self, x, memory, server, visit)",
    ),
    "too many arguments": (
        {"merge": lambda self, server, x, w, p, a, b: None},
        ARGUMENTS,
        "not (self, server, x, w, p, a)",
    ),
}


def mistaken(parts: dict[str, Any]) -> type[Method]:
    made = type("Mine", (Method,), {"title": "Mine", "__module__": __name__} | parts)
    return dataclass(frozen=True, kw_only=True)(made)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused_with_its_rule(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, rule, words = MISTAKES[name]
    method = mistaken(parts)
    monkeypatch.setattr(
        sys.modules[__name__], "Mine", method, raising=False
    )  # whence its text is read back
    for refuses in (
        lambda: fedskip.check_method(method),
        lambda: check_conduct(method()),
        lambda: study(tmp_path / "out", methods=["fedavg", method()], engine="loop").run(),
    ):
        with pytest.raises(InputError) as caught:
            refuses()
        told = str(caught.value).replace("the rule '", 'the rule "')
        assert told.startswith(f'Mine breaks the rule "{rule}'), told
        assert words in told, told
    assert not (tmp_path / "out").exists()
