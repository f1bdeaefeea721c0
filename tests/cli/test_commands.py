"""The command line as a whole: how it ends, and `list`, `show` and `export`."""

import subprocess
import sys

import pytest
import torch
import typer

import fedskip
from fedskip.cli import app
from fedskip.cli.requested_study import requested_study
from fedskip.config import Tree, build
from fedskip.data import catalogue
from fedskip.models.weights import packed
from terminal import FEDSKIP, SMALL, call


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--methods", "fedavgg"], "method is not known, got 'fedavgg' (--methods)."),
        (["run", "--methods", "fedprox(muu=1)"], "'muu' is not a parameter of fedprox"),
        (["run", "--methods", "fedavg(period=0)"], "period must be"),
        (["run", "quickstrat"], "study is not known, got 'quickstrat'. Did you mean 'quickstart'?"),
        (["run", "nowhere.yaml"], "study is not a file, got 'nowhere.yaml'"),
        (["run", "--set", "locl.lr=1"], "(--set locl.lr=1). Did you mean 'local'?"),
        (["run", "--set", "lr"], "--set must be key=value, got 'lr'"),
        (["run", "--set", "data.name=cifar1"], "data.name is not known, got 'cifar1'"),
        (["run", "--set", "data.name=synth"], "Did you mean 'synthetic'?"),
        (["run", "--device", "tpu"], "must be auto, cpu, cuda or cuda:N, got 'tpu' (--device)"),
        (["run", "--engine", "warp"], "got 'warp' (--engine)"),
        (["run", "--device", "cpu", "--set", "streams=2"], "streams must be 0 on a CPU, got 2"),
        (["run", "--device", "cpu", "--set", "precision=tf32"], "must be fp32 or fp64 on a CPU"),
        (["run", "--rounds", "2", "--set", "rounds=5"], "--rounds must not be given twice, got 2."),
        (["run", "--set", "processes=0"], "processes must be >= 1, got 0 (--set processes=0)"),
        (["run", "--rounds", "0"], "rounds must be >= 1, got 0 (--rounds)"),
        (["run", "--set", "cohort=1000"], "cohort must be <= 212, the number of clients, got 1000"),
        (["run", "--track", "wandbb"], "--track is not known, got 'wandbb'. Did you mean 'wandb'?"),
        (["run", "--track", "no:No"], "no:No: no cannot be imported: No module named 'no'."),
        (["resume", "nowhere"], "holds no study"),
        (["show", "quickstrat"], "Did you mean 'quickstart'?"),
        (["export", "none.safetensors", "out.pt"], "must be an existing file, got 'none"),
        (["export", "m.safetensors", "m.safetensors"], "weights must be an existing file, got"),
        (["export", "m.safetensors", "."], "must be a file that ends in .pt, .pth, .safetensors"),
        (["export", "m.safetensors", "data.npz"], ".ts, .torchscript, .onnx, got 'data.npz'"),
        (["run", "--out", ""], "--out must not be empty"),
        (["run", "--out", "a\0b"], "--out must not hold a NUL"),
        (["data", "show", "cifar1"], "data.name is not known"),
    ],
)  # fmt: skip
def test_bad_input_ends_in_one_line_and_writes_nothing(tmp_path, arguments, message):
    code, shown, said = call(*arguments)
    assert (code, shown) == (2, "")
    assert message in said
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_a_study_is_left_alone(quickstart):
    out, _ = quickstart
    before = (out / "study.yaml").read_bytes()
    code, _, said = call("run", "--methods", "moon", *SMALL, "--out", out)
    assert (code, "holds another study" in said) == (2, True)
    code, _, said = call("run", "--methods", "fedavg, fedskip(period=2)", *SMALL, "--out", out)
    assert (code, "holds this study, finished" in said) == (2, True)
    assert (out / "study.yaml").read_bytes() == before


def test_the_installed_command():
    result = subprocess.run([FEDSKIP, "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"fedskip {fedskip.__version__}\n"


def commands(group, *path):
    """The names of all commands, those of groups as well."""
    yield path, group
    for name, inner in getattr(group, "commands", {}).items():
        yield from commands(inner, *path, name)


COMMANDS = dict(commands(typer.main.get_command(app)))


def test_help_does_not_wait_for_torch():
    assert len(COMMANDS) > 12
    asked = [["--version"], *([*path, "--help"] for path in COMMANDS)]
    code = f"""
import sys
from fedskip.cli import app
for arguments in {asked!r}:
    try:
        app(arguments)
    except SystemExit as end:
        assert not end.code
assert not {{"torch", "numpy", "matplotlib"}} & sys.modules.keys()
"""
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert shown.count("Usage: ") == len(COMMANDS)


def test_help_names_all_there_is():
    files = catalogue.imported()
    addresses = [name for name, item in files.items() if item.source]
    known = {("data", "import"): files, ("data", "get"): addresses}
    for path, names in known.items():
        help = COMMANDS[path].params[0].help
        assert help.replace(" or ", ", ").rstrip(".").split(", ") == list(names)


def test_an_unknown_command_is_answered_with_the_nearest():
    code, _, said = call("rnu")
    assert code == 2
    assert "No such command 'rnu'. Did you mean 'run'?" in said


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
        "PATH.csv",
        "fedskip.from_frame",
    ):
        assert name in shown
    assert "A pull of strength `mu` towards the received model." in shown


def test_show_prints_a_study_that_runs_as_it_is(tmp_path):
    code, shown, _ = call("show", "quickstart")
    assert code == 0
    (tmp_path / "mine.yaml").write_text(shown)
    mine, ours = (build(requested_study(study, Tree({}))) for study in ("mine.yaml", "quickstart"))
    assert mine == ours


def test_export_loads_into_the_plain_module(quickstart, tmp_path):
    model = quickstart[0] / "models" / "synthetic.FedAvg.s0.best.safetensors"
    assert call("export", model, "m.pt")[:2] == (0, "m.pt: 2 tensors, 305 numbers\n")
    code, _, said = call("export", model, "m.pt")
    assert (code, said) == (
        2,
        "error: OUT exists already, got 'm.pt'. Choose another name, or add --force.\n",
    )
    assert call("export", model, "m.pt", "--force")[0] == 0
    plain = fedskip.models.build("perceptron", classes=5)
    plain.load_state_dict(torch.load("m.pt", weights_only=True), strict=True)
    x = torch.rand(3, 60)
    assert torch.equal(plain(x), fedskip.load(model)(x))


def test_export_adds_the_counters_of_batchnorm(tmp_path):
    options = {"name": "resnet50", "width": 4, "blocks": [1], "head": False, "classes": 3}
    module = fedskip.models.build(**options)
    floats = {name: t for name, t in module.state_dict().items() if t.is_floating_point()}
    (tmp_path / "m.safetensors").write_bytes(packed(floats, {"model": options, "classes": 3}))
    assert call("export", "m.safetensors", "m.pt")[0] == 0
    module.load_state_dict(torch.load("m.pt", weights_only=True), strict=True)
    # nothing to rebuild it from
    (tmp_path / "own.safetensors").write_bytes(packed(floats, {"model": None}))
    assert call("export", "own.safetensors", "own.pt")[0] == 0
    assert torch.load("own.pt", weights_only=True).keys() == floats.keys()
