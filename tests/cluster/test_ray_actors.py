"""What becomes of an actor that fails, by the class of Ray's error."""

from typing import Any

import pytest

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

from fedskip.cluster.devices import Device, DeviceFacts, Failed, NotUsable, WorkerDied
from fedskip.cluster.ray_actors import RayActors, Worker

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
