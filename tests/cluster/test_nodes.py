"""What is refused of nodes, by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fedskip import InputError
from fedskip.cluster.errands import Device, Lost, NotStarted, Unfit
from fedskip.cluster.nodes import refuse_unlike
from fedskip.cluster.worker import facts
from fedskip.study.on_cluster import begun_on
from fedskip.version import device_name, versions

ONE, TWO = Device("n1", "one", "GPU", 0), Device("n2", "two", "GPU", 0)


def like(**other: Any) -> dict[str, Any]:
    return {**facts("CPU", "/"), "device": "H200", "free": 1 << 40} | other


def test_what_is_alike_fits() -> None:
    fits = refuse_unlike({ONE: like(), TWO: like()}, None, anyway=False)
    assert fits(TWO, like()) == ""
    assert fits(TWO, like(device="A100")) == "its device is A100, and not H200"
    assert "MiB of space left" in fits(TWO, like(free=5))


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (
            like(versions=versions() | {"torch": "1.0"}),
            "node two is unlike this one: it has torch 1.0",
        ),
        (like(free=3 << 20), "node two is full: it has 3 MiB of space left"),
        (like(device="A100"), r"must have devices of one model, got 'H200 \(one\), A100 \(two\)'"),
        (like(device="H200 with 78 multiprocessors"), r"H200 \(one\), H200 with 78 multiprocessors \(two\)"),
    ],
)
def test_what_is_not_is_refused(second: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        refuse_unlike({ONE: like(), TWO: second}, None, anyway=False)


def test_a_study_goes_on_with_its_model_of_device() -> None:
    found = {ONE: like(device="A100"), TWO: like()}
    fits = refuse_unlike(found, "H200", anyway=False)
    assert fits(ONE, found[ONE]) == "its device is A100, and not H200"
    assert refuse_unlike(found, "H200", anyway=True)(ONE, found[ONE]) == ""
    with pytest.raises(InputError, match=r"has no B200, which the study began on, got 'A100 \(one\)"):
        refuse_unlike(found, "B200", anyway=False)


def test_a_study_that_noted_less_of_its_cpu_goes_on_with_one_model_of_it() -> None:
    xeon, epyc = like(device="AVX512 on Xeon"), like(device="AVX512 on EPYC")
    fits = refuse_unlike({ONE: xeon, TWO: like(device="AVX2 on Xeon")}, "AVX512", anyway=False)
    assert fits(ONE, xeon) == ""
    assert fits(TWO, epyc) == "its device is AVX512 on EPYC, and not AVX512 on Xeon"
    with pytest.raises(InputError, match="must have devices of one model"):
        refuse_unlike({ONE: xeon, TWO: epyc}, "AVX512", anyway=False)
    with pytest.raises(InputError, match="has no AVX2, which the study began on"):
        refuse_unlike({ONE: xeon, TWO: epyc}, "AVX2", anyway=False)


def test_parts_that_noted_less_and_more_of_it_began_on_one_model() -> None:
    """Whatever their order; one that has not begun on a device yet says nothing."""
    less, more = ({"machine": {"device_name": name}} for name in ("AVX512", "AVX512 on AMD EPYC"))
    for noted in ({"a": less, "b": more}, {"a": more, "b": less}, {"a": more, "b": {"machine": {}}}):
        assert begun_on(noted) == "AVX512 on AMD EPYC"
    assert begun_on({"a": less}) == "AVX512"
    assert begun_on({}) is None


def test_nobody_answers() -> None:
    taken = NotStarted("taken by others")
    with pytest.raises(InputError, match="has no node that answers; one: taken by others"):
        refuse_unlike({ONE: taken}, None, anyway=False)
    assert refuse_unlike({ONE: taken, TWO: like()}, None, anyway=False)
    assert refuse_unlike({ONE: Lost("killed"), TWO: like()}, None, anyway=False)
    with pytest.raises(InputError, match="node one cannot be used: No module named 'fedskip'"):
        refuse_unlike({ONE: Unfit("No module named 'fedskip'"), TWO: like()}, None, anyway=False)


def test_a_core_of_a_node_with_gpus_is_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray does not hide them."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    whole = SimpleNamespace(name="H200", multi_processor_count=132)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: whole)
    assert facts("CPU", "/")["device"] == device_name("cpu")
    assert facts("GPU", "/")["device"] == "H200 with 132 multiprocessors"
