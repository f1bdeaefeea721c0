"""What is said of errors that are the machine's."""

import errno
import os

import numpy as np
import pytest
import torch

from fedskip.cli.system_errors import REASONS, explain, sentences
from terminal import call


def test_every_reason_is_a_sentence_with_a_way_out():
    for number in REASONS:
        what, fix = explain(OSError(number, os.strerror(number), "out/history.csv"))
        assert what.startswith("out/history.csv ")
        assert fix
    assert explain(OSError(errno.EXDEV, "Odd", "a")) == ("a failed: Odd", "see to that")
    assert explain(OSError(errno.EMFILE, "Many"))[0].startswith("a file cannot be opened")
    assert (
        sentences("a is full", "free some", "go on with: b")
        == "a is full. Free some. Go on with: b"
    )


def allocate(library):
    with pytest.raises((MemoryError, RuntimeError)) as caught:
        library.ones(1 << 47, dtype=library.float64)
    return caught.value


def test_a_lack_of_memory_is_known_by_any_name():
    gpu = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has")
    for error in (
        MemoryError(),
        allocate(np),
        allocate(torch),
        gpu,
        OSError(errno.ENOMEM, "Cannot"),
    ):
        assert explain(error)[0].startswith("the memory ran out")
    assert explain(gpu)[0] == "the memory ran out (20.00 MiB were asked for)"
    assert explain(allocate(torch))[0] == f"the memory ran out ({8 << 47} bytes were asked for)"
    assert explain(RuntimeError("shapes do not fit")) is None
    assert explain(ValueError("memory")) is None


def test_commands_end_in_one_line(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "out.pt")

    monkeypatch.setattr("fedskip.config.bundled.find", full)
    assert call("show", "quickstart") == (
        2,
        "",
        "error: out.pt cannot be written: the disk is full. Free some space.\n",
    )
