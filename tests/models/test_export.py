"""Trained models for other programs: what is loaded again gives what the model gives."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import fedskip
from fedskip import models
from fedskip.errors import InputError
from fedskip.models import export as exporting
from fedskip.models.vector import Layout
from fedskip.models.weights import packed
from studies import Net, study

THIN = {"name": "resnet50", "width": 4, "blocks": [1, 1], "head": False}
SAMPLES: dict[str, tuple[dict[str, Any], Tensor]] = {  # what a bundled model takes
    "perceptron": ({}, torch.randn(7, 60)),
    "linear": ({}, torch.randn(7, 5, 12)),
    "mlp": ({"hidden": [8, 4]}, torch.randn(7, 60)),
    "cnn": ({}, torch.randn(7, 3, 32, 32)),
    "cnn-femnist": ({}, torch.randn(7, 1, 28, 28)),
    "lstm": ({"hidden": 8}, torch.randint(0, 80, (7, 12))),
    "resnet50": (THIN, torch.randn(7, 3, 32, 32)),
}


def scripted(path: Path) -> Callable[[Tensor], Tensor]:
    with warnings.catch_warnings(action="ignore"):  # torch would have us use something newer
        return torch.jit.load(path)


def run_by_onnx(path: Path) -> Callable[[Tensor], Tensor]:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(path)
    [name] = [one.name for one in session.get_inputs()]
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


def written(path: Path, module: nn.Module, x: Tensor | None = None, **about: Any) -> Path:
    """The file that a study would leave."""
    layout = Layout.of(module)
    sample = (
        {} if x is None else {"shape": [*x.shape[1:]], "dtype": str(x.dtype).removeprefix("torch.")}
    )
    path.write_bytes(packed(layout.views(layout.pack(module)), {"input": sample or None, **about}))
    return path


def bundled(tmp_path: Path, name: str) -> tuple[Path, nn.Module, Tensor]:
    options, x = SAMPLES[name]
    model = {"name": name, **options}
    module = models.build(**{"classes": 5, **model}).eval()
    return written(tmp_path / "m.safetensors", module, x, model=model, classes=5), module, x


def assert_same(made: Callable[[Tensor], Tensor], module: nn.Module, x: Tensor) -> None:
    for size in (1, 2, 7):
        with torch.no_grad(), torch.jit.optimized_execution(False):
            assert torch.allclose(made(x[:size]), module(x[:size]), rtol=1e-4, atol=1e-5)


def test_every_bundled_model_is_tried() -> None:
    assert SAMPLES.keys() == models.MODELS.keys()


def quick(*names: str) -> list[Any]:
    """All models; the others take longer."""
    return [pytest.param(name, marks=[pytest.mark.slow] * (name not in names)) for name in SAMPLES]


@pytest.mark.parametrize("name", quick("perceptron", "linear", "mlp", "cnn-femnist"))
def test_bundled_models(name: str, tmp_path: Path) -> None:
    path, module, x = bundled(tmp_path, name)
    assert_same(scripted(fedskip.export(path, tmp_path / "m.ts")), module, x)
    state = torch.load(fedskip.export(path, tmp_path / "m.pth"), weights_only=True)
    plain = load_file(fedskip.export(path, tmp_path / "out.safetensors"))
    assert state.keys() == plain.keys() == module.state_dict().keys()
    for found in (state, plain):
        assert all(torch.equal(tensor, found[key]) for key, tensor in module.state_dict().items())
    assert_same(fedskip.load(tmp_path / "out.safetensors"), module, x)


@pytest.mark.parametrize("name", quick("mlp"))
def test_bundled_models_as_onnx(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxscript")
    path, module, x = bundled(tmp_path, name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fedskip.export(path, tmp_path / "m.onnx")
    assert capfd.readouterr() == ("", "")  # torch speaks of packages that nobody asked for
    assert_same(run_by_onnx(tmp_path / "m.onnx"), module, x)


def test_a_study_says_what_its_models_take(tmp_path: Path) -> None:
    """Also of a module of one's own: its class is all that has to be given."""
    results = study(tmp_path / "out", methods="fedavg", rounds=1, seeds=1).run()
    file = results.out / "models" / "toy.FedAvg.s0.last.safetensors"
    module = fedskip.load(file, module=Net())
    assert_same(
        scripted(fedskip.export(file, tmp_path / "m.ts", module=Net())), module, torch.randn(7, 2)
    )
    assert fedskip.export(file, tmp_path / "m.pt") == tmp_path / "m.pt"  # which needs no module
    with pytest.raises(
        InputError, match=r"do not say which model .* Give the module: module=MyNet\(\)"
    ):
        fedskip.export(file, tmp_path / "other.ts")


def test_a_class_by_name_is_imported_only_if_the_caller_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = "nn.Linear(inputs, width), nn.Dropout(), nn.Linear(width, 2)"
    code = f"from torch import nn\ndef net(inputs, width=3):\n    return nn.Sequential({layers})\n"
    (tmp_path / "named_nets.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    x, model = torch.randn(7, 4), {"name": "named_nets:net", "width": 6}
    module = nn.Sequential(nn.Linear(4, 6), nn.Dropout(), nn.Linear(6, 2)).eval()
    path = written(tmp_path / "m.safetensors", module, x, model=model, classes=2)
    says = r"of your own, named_nets:net, .* Give it: module=net\(\.\.\.\)"
    with pytest.raises(InputError, match=says) as caught:
        fedskip.export(path, tmp_path / "m.ts")
    assert caught.value.message(flags=True).endswith("Give it: --module named_nets:net.")
    assert "named_nets" not in sys.modules
    assert_same(
        scripted(fedskip.export(path, tmp_path / "m.ts", module="named_nets:net")), module, x
    )


class Branching(nn.Module):
    """Two ways, by what the samples are; `len` and a dict keep it from being scripted as one wants."""

    def __init__(self, scriptable: bool) -> None:
        super().__init__()
        self.layer, self.scriptable = nn.Linear(2, 2), scriptable

    def forward(self, x: Tensor) -> Tensor:
        if not self.scriptable and {"a": 1}.get("a") != len(globals()) and x.sum() > 1e6:
            return -self.layer(x)
        return self.layer(x)


class Fixed(nn.Module):
    """Takes a batch of two and no other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.reshape(2, 2))


@pytest.mark.parametrize(
    ("module", "suffix", "says"),
    [
        (
            Branching(False),
            ".ts",
            r"cannot be made TorchScript \(its operations depend on the values.*\.onnx or \.pt",
        ),
        (Fixed(), ".ts", "cannot be made TorchScript"),
        pytest.param(Fixed(), ".onnx", "cannot be made ONNX .* any size", marks=pytest.mark.slow),
    ],
    ids=["branching", "fixed", "fixed-onnx"],
)
def test_what_cannot_be_exported_is_one_line(
    module: nn.Module, suffix: str, says: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "m.safetensors", module, torch.zeros(1, 2))
    with pytest.raises(InputError, match=says) as caught:
        fedskip.export(path, tmp_path / f"m{suffix}", module=module)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / f"m{suffix}").exists()


def test_a_batch_may_be_given_where_the_file_says_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "m.safetensors", Net().eval())
    with pytest.raises(InputError, match=r"do not say what their model takes.*inputs=torch"):
        fedskip.export(path, tmp_path / "m.ts", module=Net())
    with pytest.raises(InputError, match="inputs must be a batch of samples, a tensor"):
        fedskip.export(path, tmp_path / "m.ts", module=Net(), inputs=np.zeros(2))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"does not take samples of the shape \(5,\)"):
        fedskip.export(path, tmp_path / "m.ts", module=Net(), inputs=torch.zeros(1, 5))
    made = scripted(fedskip.export(path, tmp_path / "m.ts", module=Net(), inputs=torch.zeros(3, 2)))
    assert made(torch.zeros(4, 2)).shape == (4, 2)


def test_without_the_extra_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    pytest.importorskip("onnx")
    path, *_ = bundled(tmp_path, "perceptron")
    with pytest.raises(
        InputError, match=r'onnxscript is not installed\. Pip install "fedskip\[onnx\]"'
    ):
        fedskip.export(path, tmp_path / "m.onnx")


def test_other_suffixes_are_refused_with_the_list(tmp_path: Path) -> None:
    path, *_ = bundled(tmp_path, "perceptron")
    for name in ("m.bin", "m", "m.PT", "m.pt2"):
        with pytest.raises(
            InputError, match=r"ends in \.pt, \.pth, \.safetensors, \.ts, \.torchscript, \.onnx"
        ):
            fedskip.export(path, tmp_path / name)
    assert all(f"`{suffix}`" in (exporting.export.__doc__ or "") for suffix in exporting.FORMATS)


def test_nothing_is_written_over_unless_told_to(tmp_path: Path) -> None:
    path, *_ = bundled(tmp_path, "perceptron")
    before = path.read_bytes()
    with pytest.raises(InputError, match="must not be the model itself"):
        fedskip.export(path, path, force=True)
    assert path.read_bytes() == before
    (tmp_path / "m.ts").write_text("mine")
    with pytest.raises(InputError, match=r"exists already, .* add force=True"):
        fedskip.export(path, tmp_path / "m.ts")
    assert (tmp_path / "m.ts").read_text() == "mine"
    fedskip.export(path, tmp_path / "m.ts", force=True)
    assert (tmp_path / "m.ts").read_text(errors="ignore") != "mine"


@pytest.mark.parametrize(
    "sample",
    [[3], {"shape": [1 << 40], "dtype": "float32"}, {"shape": [2], "dtype": "float99"}],
    ids=str,
)
def test_a_header_that_is_damaged(sample: Any, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(packed(Net().state_dict(), {"input": sample}))
    with pytest.raises(InputError, match="have a header with inputs that cannot be"):
        fedskip.export(path, tmp_path / "m.ts", module=Net())
