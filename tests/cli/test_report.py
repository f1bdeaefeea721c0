"""`fedskip report`, as a user sees it."""

import csv
import html
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request

import yaml

from fedskip.errors import shorten_middle
from terminal import call


def test_a_report_of_a_study(quickstart, tmp_path):
    out = shutil.copytree(quickstart[0], tmp_path / "s")
    code, shown, _ = call("report", out, "--figures", "pdf", "--latex", "--markdown", "--csv")
    assert code == 0
    assert "compared with FedAvg" in shown
    assert "One seed is not enough" in " ".join(shown.split())
    assert shown.rstrip().endswith(str(out / "report.html"))
    names = {path.name for path in out.iterdir()}
    assert {
        f"{name}.{form}"
        for name in ("table", "compare", "time_to_target")
        for form in ("tex", "md", "csv")
    } <= names
    assert (out / "figures" / "synthetic.accuracy.pdf").read_bytes().startswith(b"%PDF")
    with (out / "compare.csv").open() as file:
        assert [row["method"] for row in csv.DictReader(file)] == ["FedAvg", "FedSkip-2"]
    assert "FedSkip-2" in (out / "table.tex").read_text()


def test_of_a_reduced_study_every_table_says_so(quickstart, tmp_path):
    """Whatever its form; where one holds several settings, only those that are reduced."""
    out = shutil.copytree(quickstart[0], tmp_path / "s")
    text = (out / "study.yaml").read_text()
    (out / "study.yaml").write_text(
        text.replace("- name: synthetic\n", "- name: synthetic\n  record: {full_rounds: 1000}\n", 1)
    )
    code, _, _ = call("report", out, "--latex", "--markdown", "--csv", "--to", tmp_path / "to")
    assert code == 0
    for name in ("table", "compare", "time_to_target"):
        for form in ("tex", "md"):
            assert "of 1,000 rounds" in " ".join(
                (tmp_path / "to" / f"{name}.{form}").read_text().split()
            )
        with (tmp_path / "to" / f"{name}.csv").open() as file:
            for row in csv.DictReader(file):
                assert ("of 1,000 rounds" in row["note"]) == (row["setting"] == "synthetic")


def test_the_page_follows_what_is_asked_for(quickstart, tmp_path):
    how = ["--baseline", "fedskip(period=2)", "--score", "best"]
    call("report", quickstart[0], "--to", tmp_path, *how)
    assert (
        "<h2>Best accuracy, compared with FedSkip-2</h2>" in (tmp_path / "report.html").read_text()
    )


def test_a_target(quickstart, tmp_path):
    for target, words in (
        ("0.2", "To reach 20.00 %"),
        ("fedskip(period=2)", "To reach FedSkip-2's best accuracy"),
    ):
        code, shown, _ = call(
            "report", quickstart[0], "--to", tmp_path, "--target", target, "--force"
        )
        assert (code, words in shown) == (0, True)
        page = html.unescape((tmp_path / "report.html").read_text())
        assert f"<h2>{words}</h2>" in page
    code, _, said = call("report", quickstart[0], "--to", tmp_path, "--target", "fedavq", "--force")
    assert (code, said) == (2, "error: target is not known, got 'fedavq'. Did you mean 'FedAvg'?\n")


def test_a_study_of_which_every_run_diverged_has_a_report(quickstart, tmp_path):
    out = shutil.copytree(quickstart[0], tmp_path / "s")
    (out / "summary.csv").write_text((out / "summary.csv").read_text().replace("False", "True"))
    code, shown, _ = call("report", out, "--csv", "--to", tmp_path / "to")
    assert (code, "1 of 1" in shown) == (0, True)
    assert "Runs that diverged" in (tmp_path / "to" / "report.html").read_text()
    code, _, said = call("report", out, "--baseline", "fedavg", "--to", tmp_path / "to", "--force")
    assert (code, said.startswith("error: score was not measured in this study")) == (2, True)


def test_a_study_that_is_not_finished_is_marked(quickstart, tmp_path):
    out = shutil.copytree(quickstart[0], tmp_path / "s")
    (out / "summary.csv").unlink()
    code, shown, _ = call("report", out, "--to", tmp_path / "to")
    assert code == 0
    assert "Not finished: these are the numbers so far." in shown
    assert (tmp_path / "to" / "report.html").exists()
    assert not (out / "summary.csv").exists()


def test_bad_input_gets_one_clear_line(quickstart, tmp_path):
    out = shutil.copytree(quickstart[0], tmp_path / "s")
    broken = shutil.copytree(quickstart[0], tmp_path / "broken")
    (broken / "history.csv").write_text("setting,run,round\na,b,three\n")
    (broken / "summary.csv").unlink()
    empty, begun = tmp_path / "empty", tmp_path / "begun"
    empty.mkdir()
    begun.mkdir()
    shutil.copy(out / "study.yaml", begun)
    foreign = shutil.copytree(quickstart[0], tmp_path / "foreign")
    (foreign / "study.yaml").write_text(
        (out / "study.yaml").read_text().replace("name: synth", "name: ../synth")
    )
    half = shutil.copytree(quickstart[0], tmp_path / "half")
    (half / "history.csv").write_text(
        (out / "history.csv").read_text() + "synthetic,synthetic.FedAvg.s0\n"
    )
    to, file = ["--to", tmp_path / "to"], "history.csv"
    for arguments, message in [
        ([empty, *to], "error: out holds no study: there is no study.yaml"),
        ([begun, *to], "error: out holds a study without results yet"),
        (
            [broken, *to],
            f"error: {shorten_middle(str(broken / file), 120)} lacks the column bytes_down",
        ),
        ([half, *to], f"error: {shorten_middle(str(half / file), 120)} line "),
        ([foreign, *to], "error: name must start with a letter or digit and hold no slashes"),
        (
            [out, *to, "--baseline", "fedavgg"],
            "error: baseline is not known, got 'fedavgg'. Did you mean",
        ),
        ([out, *to, "--score", "tail"], "error: --score is not known, got 'tail'"),
        ([out, *to, "--figures", "jpg"], "error: --figures is not known, got 'jpg'"),
        ([out, out], "error: --to is missing"),
    ]:
        code, _, said = call("report", *arguments)
        assert code == 2, arguments
        assert said.startswith(message), said
        assert len(said.splitlines()) == 1
    assert not (tmp_path / "to").exists()


EVIL = "import pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()\n"


def test_nothing_is_imported_to_look_at_a_study(quickstart, tmp_path):
    """A folder that names code, with that code in the working folder and on PYTHONPATH."""
    out, path = shutil.copytree(quickstart[0], tmp_path / "s"), tmp_path / "path"
    path.mkdir()
    for folder in (tmp_path, path):
        for module in ("evil", "python"):
            (folder / f"{module}.py").write_text(EVIL)
    study = yaml.safe_load((out / "study.yaml").read_text())
    study |= {"model": {"name": "evil:M", "a": [1, 2]}, "loss": "evil:f", "target": "evil:M()"}
    study["settings"][0]["methods"] = ["evil:M", "fedskip(period=2)"]
    study["metric"] = ["accuracy", "evil:f", "python:evil.f"]
    study["settings"][0]["record"] = {"added": [{"methods": ["evil:M"], "seeds": [1]}]}
    for file in (out / "study.yaml", tmp_path / "s.yaml"):
        file.write_text(yaml.safe_dump(study, sort_keys=False))
    env = {**os.environ, "PYTHONPATH": f"{path}:{os.environ.get('PYTHONPATH', '')}"}
    # -m puts the working folder onto Python's path
    for options in (["report", "s", "--csv"], ["report", "s", "--baseline", "evil:M()"], ["list"],
                    ["show", "s.yaml"], ["resume", "s"], ["extend", "s", "--seeds", "3"],
                    ["run", "s.yaml"]):  # fmt: skip
        command = [sys.executable, "-m", "fedskip", *options]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert "Traceback" not in done.stderr
        refused = options[0] in ("resume", "extend", "run")
        assert (done.returncode, "names code" in done.stderr) == (2 * refused, refused), done.stderr
    command = [sys.executable, "-m", "fedskip", "watch", "s", "--port", "0"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True
    ) as watch:
        address = re.search(r"http://\S+", watch.stdout.readline())[0]
        assert b"FedAvg" in urllib.request.urlopen(address, timeout=60).read()
        watch.send_signal(signal.SIGINT)
    assert not [*tmp_path.rglob("*.ran")]
