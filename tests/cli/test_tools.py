"""`fedskip list`, `show` and `export`."""

import torch

import fedskip
from commands import call
from fedskip.cli.studies import chosen
from fedskip.models.weights import write_weights
from fedskip.spec import Tree, build


def test_list_names_everything():
    code, shown, _ = call("list")
    assert code == 0
    for name in (
        "quickstart",
        "fedprox(mu=0.01)",
        "fedskip(period=...)",
        "resnet50",
        "cifar100",
        "dirichlet",
    ):
        assert name in shown
    assert "A pull of strength `mu` towards the received model." in shown


def test_show_prints_a_study_that_runs_as_it_is(tmp_path):
    code, shown, _ = call("show", "quickstart")
    assert code == 0
    (tmp_path / "mine.yaml").write_text(shown)
    mine, ours = (build(chosen(study, Tree({}))) for study in ("mine.yaml", "quickstart"))
    assert mine == ours


def test_export_loads_into_the_plain_module(quickstart, tmp_path):
    model = quickstart[0] / "models" / "synthetic.FedAvg.s0.best.safetensors"
    assert call("export", model, "m.pt")[:2] == (0, "m.pt: 2 tensors, 305 numbers\n")
    plain = fedskip.models.build("perceptron", classes=5)
    plain.load_state_dict(torch.load("m.pt", weights_only=True), strict=True)
    x = torch.rand(3, 60)
    assert torch.equal(plain(x), fedskip.load(model)(x))


def test_export_adds_the_counters_of_batchnorm(tmp_path):
    options = {"name": "resnet50", "width": 4, "blocks": [1], "head": False, "classes": 3}
    module = fedskip.models.build(**options)
    floats = {name: t for name, t in module.state_dict().items() if t.is_floating_point()}
    write_weights(tmp_path / "m.safetensors", floats, {"model": options, "classes": 3})
    assert call("export", "m.safetensors", "m.pt")[0] == 0
    module.load_state_dict(torch.load("m.pt", weights_only=True), strict=True)
    write_weights(tmp_path / "own.safetensors", floats, {"model": None})  # nothing to rebuild it from
    assert call("export", "own.safetensors", "own.pt")[0] == 0
    assert torch.load("own.pt", weights_only=True).keys() == floats.keys()
