"""Which study is meant, and what the command line changes in it."""

from fedskip.cli.chosen import chosen, overridden
from fedskip.spec import Tree, build


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
    spec = build(overridden(study, over))
    assert (spec.name, spec.engine) == ("mine", "loop")
    assert [(s.name, s.keys["rounds"]) for s in spec.settings] == [("a", 5), ("b", 5), ("c", 30)]
    assert [s.keys["partition"]["kind"] for s in spec.settings] == ["iid"] * 3
    assert "beta" not in spec.settings[0].keys["partition"]


def test_a_study_file_that_was_written_can_be_changed_and_run_again(quickstart):
    over = Tree({"rounds": 7, "seeds": 2}, {"rounds": "--rounds"})
    spec = build(chosen(str(quickstart[0] / "study.yaml"), over))
    assert [(s.name, s.keys["rounds"], len(s.keys["seeds"])) for s in spec.settings] == [
        ("synthetic", 7, 2),
        ("centralised", 50, 2),
    ]


def test_another_data_set_starts_from_its_own_defaults():
    spec = build(chosen(None, Tree({"data.name": "cifar10", "methods": "fedavg", "cohort": 2})))
    (setting,) = spec.settings
    assert (spec.name, setting.name, setting.keys["cohort"]) == ("cifar10", "cifar10", 2)
    assert not setting.keys.keys() & {"rounds", "local"}  # the data set's, once it is loaded
    own = build(chosen(None, Tree({"data": {"name": "synthetic", "min_train": 100}})))
    assert [s.name for s in own.settings] == ["synthetic", "centralised"]  # the quickstart's own data set
    assert build(chosen(None, Tree({"data.name": "some/where.npz"}))).name == "where"
