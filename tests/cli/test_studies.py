"""`fedskip run` and `resume`: what they write, what they say, how they end."""

import csv
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from fedskip.study.processes import ProcessEnded
from terminal import FEDSKIP, SMALL, call


def summary(out):
    with (out / "summary.csv").open() as file:
        return {row["run"]: row for row in csv.DictReader(file)}


def test_run_leaves_its_files_and_ends_in_a_table(quickstart):
    out, shown = quickstart
    assert {path.name for path in out.iterdir()} >= {
        "study.yaml", "history.csv", "summary.csv", "models", "checkpoints",
        "partition-synthetic-0.npz",
    }  # fmt: skip
    assert (out / "models" / "synthetic.FedSkip-2.s0.best.safetensors").exists()
    lines = [line.split() for line in shown.splitlines()]
    assert lines[0] == ["quickstart", "in", str(out)]
    assert (
        sum(line[:2] == ["synthetic:", "round"] for line in lines) == 3
    )  # a checkpoint after each round
    for method in ("FedAvg", "FedSkip-2"):
        best, *_ = [line[3 if "(2)" in line else 2] for line in lines if line[:1] == [method]]
        assert best == f"{100 * float(summary(out)[f'synthetic.{method}.s0']['best']):.2f}"
    assert "34,554 test samples" in shown
    assert lines[-1] == [str(out)]


def test_references_keep_their_own_methods_and_are_as_much_shorter(quickstart):
    out, _ = quickstart
    assert set(summary(out)) == {
        "synthetic.FedAvg.s0", "synthetic.FedSkip-2.s0", "centralised.FedAvg.s0",
    }  # fmt: skip
    assert summary(out)["centralised.FedAvg.s0"]["rounds"] == "1"  # of 50, as 3 of 200
    assert summary(out)["synthetic.FedAvg.s0"]["rounds"] == "3"


def test_set_and_options_reach_the_study(quickstart):
    study = yaml.safe_load((quickstart[0] / "study.yaml").read_text())
    assert study["compile"] is False
    assert [entry["local"]["max_steps"] for entry in study["settings"]] == [2, 2]
    assert study["seeds"] == [0]


def test_the_default_folder_is_the_next_free_one(tmp_path):
    (tmp_path / "runs" / "quickstart-1").mkdir(parents=True)
    code, shown, _ = call("run", "--methods", "fedavg", *SMALL, "--set", "settings=")
    assert code == 0
    assert shown.startswith("quickstart in runs/quickstart-2\n")
    assert (tmp_path / "runs" / "quickstart-2" / "summary.csv").exists()


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
    assert summary(out)["centralised.FedAvg.s0"]["rounds"] == "1"  # of 50, as 3 of 200
    code, _, said = call("resume", out, "--rounds", 4)
    assert (code, said.startswith("error: --rounds must be >= 5")) == (2, True)


def test_resume_on_a_changed_machine_ends_in_one_line(quickstart, tmp_path):
    out = shutil.copytree(quickstart[0], tmp_path / "moved")
    file = out / "study.yaml"
    file.write_text(re.sub(r"numpy: .*", "numpy: 0.1", file.read_text()))
    code, _, said = call("resume", out, "--rounds", 5)
    assert code == 2
    assert said.startswith("error: resume would not repeat the same numbers: versions.numpy was ")
    assert len(said.splitlines()) == 1


def test_resume_passes_on_how_to_go_on(quickstart, monkeypatch):
    asked = []

    def resume(self, progress, **how):
        asked.append(how)
        return self.results()

    monkeypatch.setattr("fedskip.study.Study.resume", resume)
    assert call("resume", quickstart[0], "--rounds", 4, "--anyway")[0] == 0
    assert asked == [{"rounds": 4, "anyway": True, "trackers": []}]


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_a_signal_stops_at_a_checkpoint_and_the_way_on_is_said(number, tmp_path):
    out = tmp_path / "long"
    command = [
        FEDSKIP,
        "run",
        "--methods",
        "fedavg",
        *SMALL,
        "--set",
        "settings=",
        "--out",
        str(out),
    ]
    command += ["--rounds", "100000", "--set", "checkpoint_every=5"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes, start_new_session=True) as process:
        deadline = time.monotonic() + 60
        while not list(out.glob("checkpoints/*.safetensors")) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(process.pid, number)  # as terminals and queues do: training processes get it, too
        _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number, "as shells have it, and scripts of queues test"
    assert said == f"Stopped at a checkpoint. Go on with: fedskip resume {out}\n"


@pytest.mark.slow
def test_the_job_script_of_the_docs_requeues_itself_and_goes_on(tmp_path):
    """With a stand-in for Slurm: its `srun` sends the signal that comes before the time limit."""
    docs = (Path(__file__).parents[2] / "docs" / "studies.md").read_text()
    script = re.search(r"```bash\n(#!/bin/bash\n.*?)```", docs, re.S)[1]
    (tmp_path / "job.sh").write_text(script.replace("--grace 100", "--grace 1"))
    keys = (
        "methods: fedavg\nrounds: 300\ncheckpoint_every: 20\ncompile: false\nlocal.max_steps: 2\n"
    )
    (tmp_path / "mine.yaml").write_text(f"data: synthetic\n{keys}")
    here = tmp_path / "bin"
    here.mkdir()
    stand_ins = {
        "srun": 'until [ -n "$(ls runs/mine/checkpoints 2>/dev/null)" ]; do sleep 0.1; done &\n'
        'wait=$!\n"$@" & study=$!\n'
        "[ -e requeued ] || { wait $wait; kill -TERM $study; }\nwait $study",
        "scontrol": 'echo "$@" >> requeued',
        "fedskip": f'exec {sys.executable} -c "from fedskip.cli import main; main()" "$@"',
    }
    for name, text in stand_ins.items():
        (here / name).write_text(f"#!/bin/bash\n{text}\n")
        (here / name).chmod(0o755)
    env = os.environ | {"PATH": f"{here}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    codes = [
        subprocess.run(["bash", "job.sh"], cwd=tmp_path, env=env, timeout=120).returncode
        for _ in "12"
    ]
    assert codes == [143, 0]
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"
    assert (tmp_path / "runs" / "mine" / "summary.csv").exists()


def test_a_lost_process_is_one_line_and_how_to_go_on(tmp_path, monkeypatch):
    def lost(*_, **__):
        raise ProcessEnded("a training process ended with code -9")

    monkeypatch.setattr("fedskip.study.study.train_settings", lost)
    code, _, said = call("run", "--methods", "fedavg", *SMALL, "--out", "lost")
    assert code == 1
    assert said.splitlines()[-1].startswith("error: a training process ended with code -9")
    assert said.endswith("then go on with: fedskip resume lost\n")


def test_a_kill_before_the_page_is_made_up_for(quickstart, tmp_path):
    out = shutil.copytree(quickstart[0], tmp_path / "late")
    (out / "report.html").unlink()
    (out / ".report.html.123.part").write_text("half")
    assert call("resume", out)[0] == 0
    assert (out / "report.html").exists()
    assert not list(out.glob(".*.part"))


TRACKER = """
import fedskip

class Prints(fedskip.Tracker):
    def on_start(self, start):
        print("start", start.name, len(start.rows))

    def on_rows(self, rows):
        raise OSError("the disk is full")

    def on_end(self, results):
        print("never")
"""


def test_trackers_listen_and_one_that_fails_is_named(tmp_path):
    (tmp_path / "my_trackers.py").write_text(TRACKER)
    quick = ["--methods", "fedavg", *SMALL, "--set", "settings=", "--out", "s"]
    command = [FEDSKIP, "run", *quick, "--track", "my_trackers:Prints"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout.startswith("start quickstart 0\n")
    assert "never" not in ended.stdout
    said = "Prints failed in on_rows (OSError: the disk is full); the study goes on without it\n"
    assert ended.stderr == said


def test_a_finished_study_is_told_to_a_tracker(quickstart, tmp_path):
    out = shutil.copytree(quickstart[0], tmp_path / "late")
    code, shown, _ = call("resume", out, "--track", "tensorboard")
    assert (code, "round" in shown.splitlines()[0]) == (0, False), (
        "nothing is trained or tested again"
    )
    assert (
        shown.splitlines()[-12:]
        == quickstart[1].replace(str(quickstart[0]), str(out)).splitlines()[-12:]
    )
    assert len(list((out / "tensorboard").glob("*/events*"))) == 3
    for name in ("history.csv", "summary.csv", "study.yaml"):
        assert (out / name).read_bytes() == (quickstart[0] / name).read_bytes()


NETS = """
from torch import nn

class Their(nn.Sequential):
    def __init__(self, inputs, classes, hidden=8):
        super().__init__(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))

def doubt(output, target):
    return 1 - output.softmax(1).gather(1, target[:, None])[:, 0]

def top_2(output, target):
    return (output.topk(2).indices == target[:, None]).any(1).float()
"""


@pytest.mark.parametrize("engine", ["auto", "stacked"])
def test_own_model_loss_and_metric_by_name_are_resumed(tmp_path, engine):
    (tmp_path / "their_nets.py").write_text(NETS)
    keys = [
        "loss=their_nets:doubt",
        "metric=their_nets:top_2",
        "settings=",
        f"engine={engine}",
        "processes=1",
    ]
    sets = [
        part
        for key in ['model={name: "their_nets:Their", hidden: 4}', *keys]
        for part in ("--set", key)
    ]
    code, shown, said = call("run", "--methods", "fedavg", *SMALL, *sets, "--out", "out")
    assert (code, said) == (0, "")
    assert "Test top 2, seed 0" in shown
    written = yaml.safe_load((tmp_path / "out/study.yaml").read_text())
    assert written["model"] == {"name": "their_nets:Their", "hidden": 4}
    assert (written["loss"], written["metric"]) == ("their_nets:doubt", "their_nets:top_2")
    assert "names code" in call("resume", "out", "--rounds", "4")[2]
    code, shown, said = call("resume", "out", "--rounds", "4", "--trust")
    assert (code, said) == (0, "")
    assert next(iter(summary(tmp_path / "out").values()))["rounds"] == "4"


def test_only_some_settings_are_run_and_the_study_grows(tmp_path):
    """A sweep, one of its settings, more runs, and what the table says of it."""
    swept = [
        "--methods",
        "fedavg",
        *SMALL,
        "--set",
        "local.lr=[0.01,0.1]",
        "--set",
        "validation=0.1",
    ]
    swept += ["--set", "local.small_clients=drop"]
    code, shown, _ = call("run", *swept, "--only", "synthetic*lr=0.1*", "--out", tmp_path / "s")
    assert code == 0
    assert "the validation split: FedAvg lr=0.1" in " ".join(shown.split())
    code, shown, _ = call("extend", tmp_path / "s", "--methods", "fedprox, fedavg")
    assert code == 0
    assert "synthetic(lr=0.1): added: FedProx, seed" in shown
    assert "FedProx" in shown.partition("Test accuracy")[0]
    code, _, said = call("extend", tmp_path / "s", "--methods", "fedprox")
    assert (code, "would add no run" in said) == (2, True)
