"""Dotted keys, and options laid over options."""

from __future__ import annotations

import pytest

from fedskip.errors import InputError
from fedskip.parsing.dotted_keys import expand, overlay


def test_dotted_keys_are_nested_ones() -> None:
    assert expand({"a.b.c": 1, "a": {"b.d": 2}, "e": 3}) == {"a": {"b": {"c": 1, "d": 2}}, "e": 3}
    for twice in ({"a.b": 1, "a": {"b": 2}}, {"a": 1, "a.b": 2}):
        with pytest.raises(InputError, match=r"a(\.b)? is written twice"):
            expand(twice)


def test_options_go_with_their_kind() -> None:
    base = {"partition": {"kind": "dirichlet", "beta": 0.5}, "local": {"lr": 0.1, "batch": 8}}
    over = {"partition": {"beta": 0.1}, "local": {"lr": 1.0}}
    merged = {"partition": {"kind": "dirichlet", "beta": 0.1}, "local": {"lr": 1.0, "batch": 8}}
    assert overlay(base, over) == merged
    assert overlay(base, {"partition": {"kind": "iid"}})["partition"] == {"kind": "iid"}
    assert base["partition"] == {"kind": "dirichlet", "beta": 0.5}
