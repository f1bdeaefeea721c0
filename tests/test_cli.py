"""The command line as a user meets it: what it writes, what it says, how it ends."""

import csv
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from typer.testing import CliRunner

import fedskip
from fedskip import config
from fedskip.cli import app, chosen, overridden
from fedskip.config import Tree
from fedskip.processes import ProcessEnded
from fedskip.weights import write_weights

FEDSKIP = str(Path(sys.executable).with_name("fedskip"))
SMALL = ["--rounds", "3", "--seeds", "1", "--set", "compile=false", "--set", "local.max_steps=2"]


def call(*arguments):
    """Exit code, stdout and stderr of a command; only an expected exit may end it."""
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory):
    """A folder made by `fedskip run`, small; tests that write copy it first."""
    out = tmp_path_factory.mktemp("cli") / "study"
    code, shown, said = call("run", "--methods", "fedavg, fedskip(period=2)", *SMALL, "--out", out)
    assert (code, said) == (0, "")
    return out, shown


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def summary(out):
    with (out / "summary.csv").open() as file:
        return {row["run"]: row for row in csv.DictReader(file)}


# --- run -----------------------------------------------------------------------------------------------


def test_run_leaves_its_files_and_ends_in_a_table(quickstart):
    out, shown = quickstart
    assert {path.name for path in out.iterdir()} >= {
        "study.yaml", "history.csv", "summary.csv", "models", "checkpoints", "partition-synthetic-0.npz",
    }  # fmt: skip
    assert (out / "models" / "synthetic.FedSkip-2.s0.best.safetensors").exists()
    lines = [line.split() for line in shown.splitlines()]
    assert lines[0] == ["quickstart", "in", str(out)]
    assert sum(line[:2] == ["synthetic:", "round"] for line in lines) == 3  # a checkpoint after each round
    for method in ("FedAvg", "FedSkip-2"):
        (best,) = [line[2] for line in lines if line[:1] == [method]]
        assert best == f"{100 * float(summary(out)[f'synthetic.{method}.s0']['best']):.2f}"
    assert "34,554 test samples" in shown
    assert lines[-1] == [str(out)]


def test_references_keep_their_own_methods_and_rounds(quickstart):
    out, _ = quickstart
    assert set(summary(out)) == {
        "synthetic.FedAvg.s0", "synthetic.FedSkip-2.s0", "centralised.FedAvg.s0",
    }  # fmt: skip
    assert summary(out)["centralised.FedAvg.s0"]["rounds"] == "50"
    assert summary(out)["synthetic.FedAvg.s0"]["rounds"] == "3"


def test_set_and_options_reach_the_study(quickstart):
    study = yaml.safe_load((quickstart[0] / "study.yaml").read_text())
    assert study["compile"] is False
    assert [entry["local"]["max_steps"] for entry in study["settings"]] == [2, 2]
    assert study["seeds"] == [0]


def test_the_command_line_beats_single_settings_but_not_references():
    study = Tree(
        {
            "data": "synthetic",
            "rounds": 10,
            "settings": [
                {"name": "a", "rounds": 20, "partition": {"kind": "dirichlet", "beta": 0.5}},
                {"name": "b"},
                {"name": "c", "rounds": 30, "reference": True},
            ],
        }
    )
    over = Tree({"rounds": 5, "partition": "iid", "engine": "loop", "name": "mine"})
    spec = config.build(overridden(study, over))
    assert (spec.name, spec.engine) == ("mine", "loop")
    assert [(s.name, s.rounds) for s in spec.settings] == [("a", 5), ("b", 5), ("c", 30)]
    assert [s.partition["kind"] for s in spec.settings] == ["iid"] * 3
    assert "beta" not in spec.settings[0].partition


def test_a_study_file_that_was_written_can_be_changed_and_run_again(quickstart):
    over = Tree({"rounds": 7, "seeds": 2}, {"rounds": "--rounds"})
    spec = config.build(chosen(str(quickstart[0] / "study.yaml"), over))
    assert [(s.name, s.rounds, len(s.seeds)) for s in spec.settings] == [
        ("synthetic", 7, 2),
        ("centralised", 50, 2),
    ]


def test_another_data_set_starts_from_its_own_defaults():
    spec = config.build(chosen(None, Tree({"data.name": "cifar10", "methods": "fedavg", "cohort": 2})))
    (setting,) = spec.settings
    assert (spec.name, setting.name, setting.seeds, setting.cohort) == ("cifar10", "cifar10", (0,), 2)
    assert (setting.rounds, setting.local) == (None, None)  # the data set's, once it is loaded
    own = config.build(chosen(None, Tree({"data": {"name": "synthetic", "min_train": 100}})))
    assert [s.name for s in own.settings] == ["synthetic", "centralised"]  # the quickstart's own data set
    assert config.build(chosen(None, Tree({"data.name": "some/where.npz"}))).name == "where"


def test_the_default_folder_is_the_next_free_one(tmp_path):
    (tmp_path / "runs" / "quickstart-1").mkdir(parents=True)
    code, shown, _ = call("run", "--methods", "fedavg", *SMALL, "--set", "settings=")
    assert code == 0
    assert shown.startswith("quickstart in runs/quickstart-2\n")
    assert (tmp_path / "runs" / "quickstart-2" / "summary.csv").exists()


# --- bad input -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--methods", "fedavgg"], "method is not known, got 'fedavgg' (--methods). Did you mean"),
        (["run", "--methods", "fedprox(muu=1)"], "'muu' is not a parameter of fedprox (--methods)."),
        (["run", "--methods", "fedavg(period=0)"], "period must be"),
        (["run", "quickstrat"], "study is not known, got 'quickstrat'. Did you mean 'quickstart'?"),
        (["run", "nowhere.yaml"], "study is not a file, got 'nowhere.yaml'"),
        (["run", "--set", "locl.lr=1"], "locl is not a known key (--set locl.lr=1). Did you mean 'local'?"),
        (["run", "--set", "lr"], "--set must be key=value, got 'lr'"),
        (["run", "--set", "data.name=cifar1"], "data.name is not known, got 'cifar1'"),
        (["run", "--set", "data.name=synth"], "Did you mean 'synthetic'?"),
        (["run", "--device", "tpu"], "device must be auto, cpu, cuda or cuda:N, got 'tpu' (--device)"),
        (["run", "--engine", "warp"], "got 'warp' (--engine)"),
        (["run", "--device", "cpu", "--set", "streams=2"], "streams must be 0 on a CPU, got 2"),
        (["run", "--device", "cpu", "--set", "precision=tf32"], "must be fp32 or fp64 on a CPU, got 'tf32'"),
        (["run", "--rounds", "2", "--set", "rounds=5"], "--rounds must not be given twice, got 2. Leave out"),
        (["run", "--set", "processes=0"], "processes must be >= 1, got 0 (--set processes=0)"),
        (["run", "--rounds", "0"], "rounds must be >= 1, got 0 (--rounds)"),
        (["run", "--set", "cohort=1000"], "cohort must be <= 212, the number of clients, got 1000"),
        (["resume", "nowhere"], "holds no study"),
        (["show", "quickstrat"], "Did you mean 'quickstart'?"),
        (["export", "none.safetensors", "out.pt"], "must be an existing file, got 'none.safetensors'"),
        (["export", "m.safetensors", "m.safetensors"], "OUT must be a file for torch, such as model.pt, got"),
        (["export", "m.safetensors", "."], "OUT must be a file for torch, such as model.pt, got"),
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


# --- resume --------------------------------------------------------------------------------------------


def test_resume_of_a_finished_study_says_so_and_shows_its_table(quickstart):
    out, shown = quickstart
    code, again, _ = call("resume", out)
    assert code == 0
    assert again.startswith(f"{out} is finished")
    assert again.partition("\n")[2] == shown[shown.index("\nquickstart ") + 1 :]  # the same table


def test_resume_extends_a_study_but_not_its_reference(quickstart, tmp_path):
    out = shutil.copytree(quickstart[0], tmp_path / "longer")
    code, shown, _ = call("resume", out, "--rounds", 5)
    assert code == 0
    assert "synthetic: round 4/5" in shown
    assert "synthetic: round 3/5" not in shown
    assert summary(out)["synthetic.FedAvg.s0"]["rounds"] == "5"
    assert summary(out)["centralised.FedAvg.s0"]["rounds"] == "50"
    code, _, said = call("resume", out, "--rounds", 4)
    assert (code, said.startswith("error: --rounds must be >= 5")) == (2, True)


def test_resume_refuses_another_machine_unless_told(quickstart, tmp_path):
    out = shutil.copytree(quickstart[0], tmp_path / "moved")
    text = (out / "study.yaml").read_text()
    (out / "study.yaml").write_text(text.replace(f"torch: {torch.__version__}", "torch: 1.0"))
    code, _, said = call("resume", out, "--rounds", 4)
    assert (code, "versions.torch was 1.0 and is" in said) == (2, True)
    assert call("resume", out, "--rounds", 4, "--anyway")[0] == 0


def test_ctrl_c_stops_at_a_checkpoint_and_says_how_to_go_on(tmp_path):
    out = tmp_path / "long"
    command = [FEDSKIP, "run", "--methods", "fedavg", *SMALL, "--set", "settings=", "--out", str(out)]
    command += ["--rounds", "100000", "--set", "checkpoint_every=5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not list(out.glob("checkpoints/*.safetensors")) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == f"Stopped at a checkpoint. Go on with: fedskip resume {out}\n"


# --- the rest ------------------------------------------------------------------------------------------


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
    mine, ours = (config.build(chosen(study, Tree({}))) for study in ("mine.yaml", "quickstart"))
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


def test_the_installed_command():
    result = subprocess.run([FEDSKIP, "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"fedskip {fedskip.__version__}\n"


def test_a_lost_process_is_one_line_and_how_to_go_on(tmp_path, monkeypatch):
    def lost(*_, **__):
        raise ProcessEnded("a training process ended with code -9")

    monkeypatch.setattr("fedskip.study.Study._train", lost)
    code, _, said = call("run", "--methods", "fedavg", *SMALL, "--out", "lost")
    assert code == 1
    assert said.splitlines()[-1].startswith("error: a training process ended with code -9")
    assert "fedskip resume lost" in said
