"""`fedskip paper`, and what of the paper `fedskip run` computes."""

import re
import shutil
from pathlib import Path

import pytest

from fedskip.input.errors import InputError
from fedskip.spec import build, bundled, load_yaml
from terminal import call


def test_the_list(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in (["paper"], ["paper", "list"]):
        code, shown, _ = call(*command)
        assert code == 0
        assert "table2/cifar10-beta0.5" in shown
        assert "table4" in shown
    assert "repository: fedskip paper status docs/results" in shown
    below = shown.partition("Without /SETTING")[2]
    assert "variates    SCAFFOLD's control variates at zero and at a random network" in below
    assert "(cross-1: for one epoch at a time)" in below
    runs, bare = below.partition("Computed from what was run (--from OUT")[2].split(
        "Computed without any runs:"
    )
    assert ("table4" in runs, "fig3" in bare, "theorem1" in bare, "fedskip data get cifar10" in bare) == (
        True,
    ) * 4


def test_status(quickstart, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, shown, _ = call("paper", "status", quickstart[0])
    assert (code, "table3" in shown) == (0, False), "of folders that are named only what they hold is shown"
    assert f"{quickstart[0]} holds no run of the paper's settings." in " ".join(shown.split())
    assert "`fedskip paper` lists all" in " ".join(shown.split())
    code, shown, _ = call("paper", "status")
    assert (code, "table3, best test accuracy in %" in shown, "94.12" in shown) == (0, True, True)
    code, _, said = call("paper", "status", "--score", "bets")
    assert (code, said) == (2, "error: --score is not known, got 'bets'. Did you mean 'best'?\n")


def test_status_says_how_to_finish_a_study(quickstart, tmp_path):
    shutil.copytree(quickstart[0], tmp_path / "s")
    (tmp_path / "s" / "summary.csv").unlink()
    code, shown, _ = call("paper", "status", tmp_path / "s")
    said = "".join(shown.split())
    assert (code, f"isnotfinished:goonwith`fedskipresume{tmp_path / 's'}`." in said) == (0, True)


def test_something_that_is_computed(quickstart, tmp_path):
    code, shown, _ = call("run", "fig2", "--from", quickstart[0], "--out", tmp_path)
    assert (code, (tmp_path / "fig2.svg").exists()) == (0, True)
    assert shown.rstrip().endswith(str(tmp_path))


def test_options_that_would_do_nothing_are_refused(quickstart, tmp_path):
    code, _, said = call("run", "theorem1", "--rounds", "5", "--out", tmp_path / "t")
    assert (code, said) == (
        2,
        "error: --rounds is not for theorem1, which is computed, got 5. Leave it out.\n",
    )
    code, _, said = call("run", "fig3", "--scale", "0.5")
    assert (code, said.startswith("error: --scale is not for fig3")) == (2, True)
    code, _, said = call("run", "quickstart", "--from", quickstart[0])
    assert (code, said.startswith("error: --from is for what is computed")) == (2, True)
    code, _, said = call("run", "theorem1", "--from", "a", "--from", "b", "--out", tmp_path / "t")
    assert (code, said) == (
        2,
        "error: --from is not for theorem1, which needs no runs, got 'a b'. Leave it out.\n",
    )
    code, _, said = call("run", "table4", "--from", "nosuch")
    assert (code, said) == (2, "error: --from is not a folder, got 'nosuch'.\n")
    assert not (tmp_path / "t").exists()


def test_what_writes_nothing_names_no_folder(quickstart, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("table4", "fig4", "fig2", "clients", "diverged"):
        code, _, said = call("run", name)
        assert (code, said.startswith(f"error: {name} needs ")) == (2, True)
        assert "and found none in runs: nothing was written." in said
        assert "Run one first: fedskip run" in said
        assert "or name other folders with --from." in said
    assert not (tmp_path / "runs").exists()
    (tmp_path / "empty").mkdir()
    code, shown, said = call("run", "fig4", "--from", quickstart[0], "--out", "empty")
    assert (code, "not run: table3/synthetic" in shown) == (2, True)
    assert f"none in {quickstart[0]}: nothing was written" in said
    assert (tmp_path / "empty").exists(), "it was there before"
    code, shown, _ = call("run", "diverged", "--from", quickstart[0], "--out", "empty")
    assert (code, shown.split()[-3:]) == (0, ["Nothing", "was", "written."]), "that is an answer, too"


def test_a_folder_that_cannot_be_made_is_refused_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr("fedskip.paper.complexity.complexity", lambda *_, **__: pytest.fail("half an hour"))
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    for out in ("file", "file/x"):
        code, _, said = call("run", "complexity", "--models", "cnn", "--out", out)
        assert (code, said.startswith(f"error: {out} ")) == (2, True)


def test_a_folder_that_was_made_for_nothing_is_gone(tmp_path, monkeypatch):
    def fails(*_, **__):
        raise InputError("complexity", "fails")

    monkeypatch.setattr("fedskip.paper.complexity.complexity", fails)
    assert call("run", "complexity", "--models", "cnn", "--out", tmp_path / "a" / "b")[0] == 2
    assert not (tmp_path / "a").exists()


def test_an_empty_name_is_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments in (["run", "fig2", "--from", ""], ["paper", "status", ""], ["paper", "list", " "]):
        code, _, said = call(*arguments)
        assert code == 2
        assert re.match(r"error: (--from|OUT) must not be empty, got ' ?'. Write \. for this folder\.", said)


def test_a_column_ends_beside_the_papers_numbers(tmp_path):
    few = ["--methods", "fedavg", "--rounds", "1", "--seeds", "1", "--set", "compile=false"]
    code, shown, _ = call("run", "table3/synthetic", *few, "--out", tmp_path / "s")
    assert code == 0
    assert "reduced: 1 of 1,000 rounds, 1 of 3 seeds" in " ".join(shown.split())
    assert shown.rstrip().endswith(str(tmp_path / "s")), "the folder comes last"
    below = shown.partition("table3/synthetic")[2]
    [line] = [line.split() for line in below.splitlines() if line.split()[:1] == ["FedAvg"]]
    assert line[4:] == ["1", "of", "3", "1", "of", "1,000", "rounds", "94.12"]
    code, shown, _ = call("run", "table3/synthetic", *few, "--set", "cohort=5", "--out", tmp_path / "t")
    assert (code, "94.12" in shown) == (0, False), "that is not the paper's setting"


def test_a_setting_ends_with_its_own_table_alone(tmp_path):
    """Another grid of the study has the same data and FedAvg."""
    few = ("--rounds", 10, "--seeds", 1, "--set", "compile=false")
    code, shown, _ = call("run", "tune/fedprox-synthetic", *few, "--out", tmp_path / "s")
    assert code == 0
    assert "tune/fedprox-synthetic" in shown
    assert "tune/feddyn-synthetic" not in shown


def test_compositions_end_with_a_table_of_their_own(tmp_path):
    few = ["--methods", "fedavg, fedavg(period=3)", "--rounds", "3", "--seeds", "1", "--set", "compile=false"]
    code, shown, _ = call("run", "compose/synthetic", *few, "--out", tmp_path / "s")
    assert code == 0
    assert "gain over the same without skipping" in " ".join(shown.partition("compose/synthetic")[2].split())
    assert shown.rstrip().endswith(str(tmp_path / "s"))
    few[1] = "feddyn(alpha=0.001), feddyn(alpha=0.001, period=3)"
    code, shown, _ = call("run", "compose/synthetic", *few, "--out", tmp_path / "t")
    assert (code, shown.count("compose/synthetic")) == (0, 1), "its table stands there once"
    assert (tmp_path / "t" / "figures" / "compose-synthetic.svg").exists()


def test_where_there_is_nothing_to_draw_that_is_said(tmp_path, quickstart):
    code, shown, _ = call("paper", "status", quickstart[0], "--figures", tmp_path / "figures")
    assert (code, "No figure is drawn" in shown, (tmp_path / "figures").exists()) == (0, True, False)
    (tmp_path / "file").touch()
    code, _, said = call("paper", "status", quickstart[0], "--figures", tmp_path / "file")
    assert (code, said.startswith("error: --figures is a file, got ")) == (2, True)


def test_the_costs_of_some_models(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "fedskip.paper.complexity.complexity", lambda out, cases: asked.append(cases) or "done"
    )
    code, shown, _ = call("run", "complexity", "--models", "lstm, cnn", "--out", tmp_path)
    assert (code, [case.name for case in asked[0]]) == (0, ["cnn", "lstm"])
    assert "done" in shown
    code, _, said = call("run", "complexity", "--models", "cnn,resnet")
    assert (code, said) == (2, "error: --models is not known, got 'resnet'. Did you mean 'resnet50'?\n")
    for other in ("theorem1", "quickstart"):
        code, _, said = call("run", other, "--models", "cnn", "--out", tmp_path / "no")
        assert (code, said) == (2, "error: --models is only for complexity, got 'cnn'.\n")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("tabel2", "table2"), ("thoerem1", "theorem1"), ("complexety", "complexity"), ("tabel4", "table4"),
        ("tables2/cifar10-beta0.5", "table2/cifar10-beta0.5"), ("table2/", "table2"),
    ],
)  # fmt: skip
def test_a_name_that_does_not_exist_suggests_the_nearest(name, meant):
    """Of studies, their settings and what is computed; `show` does it, too."""
    for command in ("run", "show"):
        code, _, said = call(command, name)
        assert (code, said) == (2, f"error: study is not known, got {name!r}. Did you mean {meant!r}?\n")


def test_what_is_computed_has_no_settings():
    for command in ("run", "show"):
        code, _, said = call(command, "fig3/beta0.5")
        rule = "is not known: fig3 is computed, and has no settings"
        assert (code, said) == (2, f"error: study {rule}, got 'fig3/beta0.5'. Did you mean 'fig3'?\n")


def test_names_like_no_other_and_what_cannot_be_shown():
    code, _, said = call("run", "zzzz")
    assert (code, said.startswith("error: study is not known, got 'zzzz'. Known: cifar100cnn, clients,")) == (
        2,
        True,
    )
    code, _, said = call("run", "their/own")
    assert (code, said.startswith("error: study is not a file, got 'their/own'.")) == (2, True)
    code, _, said = call("show", "table4")
    assert code == 2
    assert said == (
        "error: study is computed, and has no file to show, got 'table4'. Make it with: fedskip run table4.\n"
    )


def test_one_setting_of_a_study_is_shown_as_a_study(tmp_path):
    code, shown, _ = call("show", "table2/cifar10-beta1")
    assert code == 0
    (tmp_path / "mine.yaml").write_text(shown)
    spec = build(load_yaml(tmp_path / "mine.yaml"))
    assert spec.settings == build(bundled.load("table2/cifar10-beta1")).settings


def test_a_data_set_is_no_study():
    code, _, said = call("run", "femnist")
    fix = "Run one of table3/femnist; or any study with --set data.name=femnist."
    assert (code, said) == (2, f"error: study is a data set, and no study, got 'femnist'. {fix}\n")
