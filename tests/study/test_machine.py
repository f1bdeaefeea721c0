"""What shapes the arithmetic is resolved once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedskip import FedAvg, InputError
from fedskip.config import Tree, build
from fedskip.models.forms import KERNELS
from fedskip.records.folder import Folder
from fedskip.study.machine import Machine, prepared_setting
from fedskip.version import device_name
from speed import CASES
from studies import Halved, study


def test_without_a_compiler_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keys = CASES["synthetic"].study(10, device="cpu")
    spec, (prepared, _) = build(Tree(keys)), prepared_setting(keys)
    for found in (False, True):
        monkeypatch.setattr("fedskip.study.machine.has_compiler", lambda found=found: found)
        assert Machine.of(spec, prepared).compile == found
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no C++ compiler" in caplog.text


def test_auto_takes_the_loop_for_an_objective_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the model's benchmark was won by the stacked engine."""
    monkeypatch.setattr("fedskip.study.choose_engine.SHORT", 0)
    keys = {
        "data": "synthetic",
        "model": "perceptron",
        "cohort": 2,
        "local": {"max_steps": 1},
        "seeds": 1,
    }
    for methods, engine in (("fedavg", "stacked"), ([FedAvg(), Halved()], "loop")):
        out = tmp_path / engine
        study(out, partition=None, methods=methods, rounds=1, **keys).run()
        assert Folder(out).record()["settings"]["synthetic"]["machine"]["engine"] == engine


def test_threads_share_one_process(tmp_path: Path) -> None:
    """Those of OpenMP do not survive a fork, and a process that waits for them waits for ever."""
    study(tmp_path / "s", engine="stacked", threads=2, rounds=2).run()
    [machine] = [s["machine"] for s in Folder(tmp_path / "s").record()["settings"].values()]
    assert (machine["threads"], machine["processes"]) == (2, 1)
    with pytest.raises(
        InputError, match=r"threads must be 1 with several processes, got 2\. Set processes=1"
    ):
        study(tmp_path / "t", engine="stacked", threads=2, processes=2).run()
    assert not (tmp_path / "t").exists()


def test_the_edition_of_our_kernels_is_noted() -> None:
    """A study does not go on with another one; nor does one of the first, which was noted as True."""
    _, machine = prepared_setting(CASES["synthetic"].study(10, device="cpu"))
    assert machine.facts()["kernels"] is False
    assert replace(machine, kernels=True).facts()["kernels"] == KERNELS > 1


def test_a_study_does_not_go_on_with_a_part_of_its_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As MPS gives it to a process, which then sees fewer multiprocessors of the same GPU."""
    gpu = SimpleNamespace(name="H200", multi_processor_count=132)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: gpu)
    monkeypatch.setattr("fedskip.study.machine.device_name", lambda _: device_name("cuda"))
    study(tmp_path, rounds=1).run()
    gpu.multi_processor_count = 78
    was, now = "'H200 with 132 multiprocessors'", "'H200 with 78 multiprocessors'"
    with pytest.raises(
        InputError, match=rf"not repeat .* machine\.device_name was {was} and is {now}"
    ):
        study(tmp_path, rounds=1).resume(rounds=2)
    gpu.multi_processor_count = 132
    study(tmp_path, rounds=1).resume(rounds=2)


def test_a_study_does_not_go_on_with_another_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same capability; an older version noted that alone, and goes on with any that has it."""
    name = "AVX512 on Xeon"
    monkeypatch.setattr("fedskip.study.machine.device_name", lambda _: name)
    study(tmp_path, rounds=1).run()
    name = "AVX512 on EPYC"
    differ = r"machine\.device_name was 'AVX512 on Xeon' and is 'AVX512 on EPYC'"
    with pytest.raises(InputError, match=differ):
        study(tmp_path, rounds=1).resume(rounds=2)
    file = tmp_path / "study.yaml"
    file.write_text(file.read_text().replace("AVX512 on Xeon", "AVX512"))
    study(tmp_path, rounds=1).resume(rounds=2)
    assert "device_name: AVX512 on EPYC\n" in file.read_text()
    file.write_text(file.read_text().replace("AVX512 on EPYC", "AVX2"))
    with pytest.raises(InputError, match=r"device_name was 'AVX2' and is 'AVX512 on EPYC'"):
        study(tmp_path, rounds=1).resume(rounds=3)
