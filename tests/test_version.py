"""The device's name, whatever machine the tests run on."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedskip import version

CPUINFO = """\
processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 85
model name\t: Intel(R) Xeon(R)  Processor @ 2.50GHz
flags\t\t: fpu: avx512f

processor\t: 1
model name\t: another
"""


@pytest.fixture(autouse=True)
def capability(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "AVX512")
    version.processor.cache_clear()
    yield
    version.processor.cache_clear()


def linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr(version, "CPUINFO", tmp_path / "cpuinfo")
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)


def test_a_cpu_has_its_model_in_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that have AVX512 give other bits."""
    linux(tmp_path, monkeypatch, CPUINFO)
    name = "Intel(R) Xeon(R) Processor @ 2.50GHz (family 6, model 85)"
    assert version.device_name("cpu") == f"AVX512 on {name}"


def test_one_without_a_name_has_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Linux has it for ARM."""
    linux(tmp_path, monkeypatch, "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert version.device_name("cpu") == "AVX512 on aarch64 (CPU implementer 0x41, CPU part 0xd0c)"


@pytest.mark.parametrize("text", [None, "", "processor\t: 0\nflags\t: fpu\n"])
def test_where_linux_does_not_name_it_there_is_the_capability(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    linux(tmp_path, monkeypatch, text)
    assert version.device_name("cpu") == "AVX512"


def test_other_systems_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    asked = []
    monkeypatch.setattr(
        "subprocess.run",
        lambda words, **_: asked.append(words) or SimpleNamespace(stdout="Apple M2\n"),
    )
    assert version.device_name("cpu") == "AVX512 on Apple M2"
    assert asked[0][0] == "/usr/sbin/sysctl", "cron has no such folder in its PATH"
    version.processor.cache_clear()
    monkeypatch.setattr("platform.system", lambda: "Windows")
    monkeypatch.setattr("platform.processor", lambda: "AMD64 Family 25")
    assert version.device_name("cpu") == "AVX512 on AMD64 Family 25"
