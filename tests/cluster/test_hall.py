"""What Ray says of workers, in words."""

import pytest

pytest.importorskip("ray")

from ray.exceptions import RayActorError, RaySystemError

from fedskip.cluster.errands import Lost, Unfit
from fedskip.cluster.hall import _in_words

MADE = (
    "The actor died because of an error raised in its creation task, \x1b[36mray::Worker\x1b[39m\n  File x\n"
)


def test_a_worker_that_cannot_be_made() -> None:
    """Its device is of no use; a lost one may be again."""
    lacks = RayActorError(error_msg=f"{MADE}ModuleNotFoundError: No module named 'fedskip'")
    why = "ModuleNotFoundError: No module named 'fedskip': install the same on all nodes"
    assert _in_words(lacks) == Unfit(why)
    broken = RayActorError(error_msg=f"{MADE}ImportError: libcudnn.so.9: cannot open shared object file")
    assert _in_words(broken) == Unfit("ImportError: libcudnn.so.9: cannot open shared object file")
    assert _in_words(RayActorError(error_msg="Its node died.")) == Lost("its node died")
    assert _in_words(RayActorError()) == Lost("its worker died: it was killed, or the memory ran out")
    assert "its worker was lost (RaySystemError: " in _in_words(RaySystemError("no")).why
