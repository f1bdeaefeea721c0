"""The arguments of `Study` are the keys that settings and studies declare."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from docs.hooks import described
from fedskip import InputError, Study
from fedskip.config.keys import StudyKeys
from fedskip.config.setting import KEYS, Setting
from fedskip.config.study import TOP_LEVEL, StudySpec
from fedskip.engine.local import Local
from fedskip.engine.upload_filters import Attack, Privacy
from fedskip.parsing import MOST, AtMost, hints_of

PLAIN = (int, float, bool, str, NoneType)
WRITTEN = get_type_hints(StudyKeys)


def leaves(hint: Any) -> Iterator[Any]:
    """The plain types and words in a type."""
    if get_origin(hint) is typing.Literal:
        yield from get_args(hint)
    elif hint in PLAIN:
        yield hint
    elif get_origin(hint) is typing.Annotated:
        yield from leaves(get_args(hint)[0])
    elif get_origin(hint) is not None:
        for inner in get_args(hint):
            yield from leaves(inner)


def test_the_same_keys() -> None:
    assert set(WRITTEN) == set(TOP_LEVEL)


@pytest.mark.parametrize("key", sorted(set(TOP_LEVEL) - {"settings"}))
def test_the_same_types(key: str) -> None:
    declared = hints_of(Setting if key in KEYS and key != "name" else StudySpec)[key]
    simple = [leaf for leaf in leaves(declared) if leaf in PLAIN or isinstance(leaf, str)]
    if key not in ("data", "partition", "model", "local", "methods", "privacy", "attack", "stop"):
        assert set(simple) <= set(leaves(WRITTEN[key])), "what is declared may be written"
    assert NoneType in leaves(WRITTEN[key]) or key in ("data", "methods")


def test_dotted_keys_and_typing_errors_are_for_the_study_to_read() -> None:
    dotted: Any = {"local.lr": 0.5}
    [setting] = Study(data="synthetic", methods="fedavg", **dotted).spec.settings
    assert setting.keys["local"] == {"lr": 0.5}
    wrong: Any = {"cohrt": 5}
    with pytest.raises(InputError, match="cohrt is not a known key"):
        Study(data="synthetic", methods="fedavg", **wrong)


@pytest.mark.parametrize("declared", [Setting, StudySpec, Local, Privacy, Attack])
def test_each_key_has_a_text_with_its_limits(declared: type) -> None:
    texts = described(declared)
    keys = {field.name for field in dataclasses.fields(declared) if field.init}
    keys -= {"record", "earlier"}
    assert texts.keys() == keys
    for key, hint in hints_of(declared).items():
        for limit in limits(hint):
            if limit.bound != MOST:
                assert f"at most {limit.bound:,}" in texts[key], key


def limits(hint: Any) -> Iterator[AtMost]:
    for inner in get_args(hint):
        if isinstance(inner, AtMost):
            yield inner
        yield from limits(inner)
