"""What becomes of an actor that fails, by the class of Ray's error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fedskip import InputError
from fedskip.version import device_name, versions

pytest.importorskip("ray")

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnschedulableError,
    GetTimeoutError,
    RayActorError,
    RaySystemError,
    RayTaskError,
)

from fedskip.cluster.actors import (
    Device,
    DeviceFacts,
    Failed,
    NotUsable,
    RayActors,
    Worker,
    WorkerDied,
    model_begun_on,
    refuse_unlike,
    why_unlike,
)

LACKS = RayActorError(
    error_msg="creation task\n  File x\nModuleNotFoundError: No module named 'fedskip'",
    actor_init_failed=True,
)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (LACKS, NotUsable("ModuleNotFoundError: No module named 'fedskip'")),
        (RayTaskError("run", "", ValueError("wrong")), ValueError),
        (ActorDiedError(), WorkerDied),
        (ActorUnschedulableError("its node died"), WorkerDied),
        (GetTimeoutError("late"), WorkerDied),
        (RaySystemError("no"), WorkerDied),
    ],
)
def test_errors_of_ray(error: Exception, expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def get(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(ray, "get", get)
    actors: Any = RayActors.__new__(RayActors)
    worker = Worker(Device("n", "host", "CPU", 0), None, iter([1]), facts=DeviceFacts({}, "", 0))
    message = actors._message(worker)
    if isinstance(message, Failed):
        assert type(message.error) is expected
    else:
        assert message == expected


# --- devices that are alike ----------------------------------------------------------------------------

ONE, TWO = Device("n1", "one", "GPU", 0), Device("n2", "two", "GPU", 0)


def like(**other: Any) -> DeviceFacts:
    return DeviceFacts(versions(), "H200", 1 << 40)._replace(**other)


def test_devices_that_are_alike() -> None:
    assert refuse_unlike({ONE: like(), TWO: like()}, None, anyway=False) == "H200"
    assert why_unlike(like(), "H200") == ""
    assert why_unlike(like(model="A100"), "H200") == "its device is A100, and not H200"
    assert "MiB of disk left" in why_unlike(like(free=5), "H200")


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (
            like(versions=versions() | {"torch": "1.0"}),
            "node two cannot be used: it has torch 1.0",
        ),
        (like(free=3 << 20), "node two cannot be used: it has 3 MiB of disk left"),
        (like(model="A100"), r"must have devices of one model, got 'H200 \(one\), A100 \(two\)'"),
        (
            like(model="H200 with 78 multiprocessors"),
            r"H200 \(one\), H200 with 78 multiprocessors \(two\)",
        ),
    ],
)
def test_what_is_not_is_refused(second: DeviceFacts, message: str) -> None:
    with pytest.raises(InputError, match=message):
        refuse_unlike({ONE: like(), TWO: second}, None, anyway=False)


def test_a_study_goes_on_with_its_model_of_device() -> None:
    answers = {ONE: like(model="A100"), TWO: like()}
    assert refuse_unlike(answers, "H200", anyway=False) == "H200"
    assert refuse_unlike(answers, "H200", anyway=True) is None
    with pytest.raises(InputError, match=r"has no B200, .* got 'A100 \(one\)"):
        refuse_unlike(answers, "B200", anyway=False)


def test_a_study_that_noted_less_of_its_cpu_goes_on_with_one_model_of_it() -> None:
    xeon, epyc = like(model="AVX512 on Xeon"), like(model="AVX512 on EPYC")
    answers = {ONE: xeon, TWO: like(model="AVX2 on Xeon")}
    assert refuse_unlike(answers, "AVX512", anyway=False) == "AVX512 on Xeon"
    with pytest.raises(InputError, match="must have devices of one model"):
        refuse_unlike({ONE: xeon, TWO: epyc}, "AVX512", anyway=False)
    with pytest.raises(InputError, match="has no AVX2"):
        refuse_unlike({ONE: xeon, TWO: epyc}, "AVX2", anyway=False)


def test_settings_that_noted_less_and_more_of_it_began_on_one_model() -> None:
    less, more = "AVX512", "AVX512 on AMD EPYC"
    assert model_begun_on([less, more]) == model_begun_on([more, less]) == more
    assert model_begun_on([less]) == less
    assert model_begun_on([]) is None


def test_nodes_that_do_not_answer() -> None:
    silent = Failed(WorkerDied("no answer"))
    with pytest.raises(InputError, match="has no node that answers; one: no answer"):
        refuse_unlike({ONE: silent}, None, anyway=False)
    assert refuse_unlike({ONE: silent, TWO: like()}, None, anyway=False) == "H200"
    with pytest.raises(InputError, match="node one cannot be used: No module named 'fedskip'"):
        refuse_unlike(
            {ONE: NotUsable("No module named 'fedskip'"), TWO: like()}, None, anyway=False
        )


def test_a_core_of_a_node_with_gpus_is_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray does not hide them."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    whole = SimpleNamespace(name="H200", multi_processor_count=132)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: whole)
    assert DeviceFacts.here("CPU", "/").model == device_name("cpu")
    assert DeviceFacts.here("GPU", "/").model == "H200 with 132 multiprocessors"
