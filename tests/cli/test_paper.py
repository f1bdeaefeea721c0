"""`fedskip paper`, and what of the paper `fedskip run` computes."""

from fedskip.spec import build, bundled, load_yaml
from terminal import call


def test_the_list(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in (["paper"], ["paper", "list"]):
        code, shown, _ = call(*command)
        assert code == 0
        assert "table2/cifar10-beta0.5" in shown
        assert "table4" in shown


def test_status(quickstart, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, shown, _ = call("paper", "status", quickstart[0])
    assert code == 0
    assert "table3, best test accuracy in %" in shown
    assert "94.12" in shown
    code, _, said = call("paper", "status", "--score", "bets")
    assert (code, said) == (2, "error: --score is not known, got 'bets'. Did you mean 'best'?\n")


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
    assert not (tmp_path / "t").exists()


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


def test_a_name_that_does_not_exist_suggests_the_nearest():
    code, _, said = call("run", "tabel2")
    assert (code, said) == (2, "error: study is not known, got 'tabel2'. Did you mean 'table2'?\n")


def test_one_setting_of_a_study_is_shown_as_a_study(tmp_path):
    code, shown, _ = call("show", "table2/cifar10-beta1")
    assert code == 0
    (tmp_path / "mine.yaml").write_text(shown)
    spec = build(load_yaml(tmp_path / "mine.yaml"))
    assert spec.settings == build(bundled.load("table2/cifar10-beta1")).settings
