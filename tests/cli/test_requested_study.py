"""Which study is meant, and what the command line changes in it."""

import pytest

from fedskip.cli.requested_study import overridden, requested_study
from fedskip.config import Places, Record, Tree, assigned, build
from fedskip.errors import InputError


def test_the_command_line_beats_single_settings_and_references_shrink_with_it():
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
    assert [(s.name, s.keys["rounds"]) for s in spec.settings] == [("a", 5), ("b", 5), ("c", 15)]
    assert [s.keys["partition"]["kind"] for s in spec.settings] == ["iid"] * 3
    assert "beta" not in spec.settings[0].keys["partition"]


def test_a_study_file_that_was_written_can_be_changed_and_run_again(quickstart):
    over = Tree({"rounds": 7, "seeds": 2}, Places({"rounds": "--rounds"}))
    spec = build(requested_study(str(quickstart[0] / "study.yaml"), over))
    assert [(s.name, s.keys["rounds"], len(s.keys["seeds"])) for s in spec.settings] == [
        ("synthetic", 7, 2),
        ("centralised", 1, 2),
    ]


def test_a_point_of_a_sweep_keeps_what_it_is_called_by():
    point = {
        "name": "a(lr=0.1)",
        "local": {"lr": 0.1},
        "record": {"sweep": {"of": "a", "keys": ["local.lr"]}},
    }
    tree = Tree({"settings": [point]})
    assert (
        overridden(tree, Tree({"local": {"batch": 8}})).values["settings"][0]["local"]["batch"] == 8
    )
    with pytest.raises(
        InputError, match=r"local\.lr is swept, and a\(lr=0\.1\) has a value of its own"
    ):
        overridden(tree, Tree({"local": {"lr": 1}}))


def test_a_reference_is_not_swept_by_the_command_line():
    spec = build(requested_study(None, Tree({"local.lr": [0.1, 0.2], "model.hidden": [8]})))
    found = {one.name: one.keys["local"].get("lr") for one in spec.settings}
    assert found == {"synthetic(lr=0.1)": 0.1, "synthetic(lr=0.2)": 0.2, "centralised": 0.01}
    assert [one.keys["model"]["hidden"] for one in spec.settings] == [[8]] * 3


def test_the_record_of_a_study_is_not_given(quickstart):
    for file in (None, str(quickstart[0] / "study.yaml")):
        with pytest.raises(
            InputError, match=r"^record is what a study notes of itself.*set record\.added=moon"
        ):
            requested_study(file, assigned(["record.added=moon"]))
    with pytest.raises(InputError, match=r"^record is what a study notes of itself"):
        build(Tree({"data": "synthetic", "record": {"added": "moon"}}))


def test_another_data_set_starts_from_its_own_defaults():
    spec = build(
        requested_study(None, Tree({"data.name": "cifar10", "methods": "fedavg", "cohort": 2}))
    )
    (setting,) = spec.settings
    assert (spec.name, setting.name, setting.keys["cohort"]) == ("cifar10", "cifar10", 2)
    assert not setting.keys.keys() & {"rounds", "local"}  # the data set's, once it is loaded
    own = build(requested_study(None, Tree({"data": {"name": "synthetic", "min_train": 100}})))
    assert [s.name for s in own.settings] == [
        "synthetic",
        "centralised",
    ]  # the quickstart's own data set
    assert build(requested_study(None, Tree({"data.name": "some/where.npz"}))).name == "where"


@pytest.mark.parametrize(
    ("given", "note"),
    [
        ({"local.max_steps": 2}, "not the paper's: local.max_steps=2"),
        ({"local.lr": 0.1, "cohort": 5}, "not the paper's: local.lr=0.1, cohort=5"),
        ({"partition": "iid"}, "not the paper's: partition.kind=iid"),
        ({"partition.kind": "natural", "data": "synthetic", "local.lr": 0.01}, None),  # as it is
        (
            {"rounds": 5, "seeds": 1, "methods": "fedavg", "device": "cpu", "slot_accuracy": True},
            None,
        ),
    ],
)
def test_another_version_of_the_papers_study_is_marked(given, note):
    [setting] = build(requested_study("table3/synthetic", Tree(given))).settings
    assert setting.keys.get("note") == note


def test_what_holds_by_default_is_the_papers_too():
    for key, value, other in (
        ("eval_samples", 20_000, 500),
        ("validation", 0, 0.1),
        ("eval_every", 1, 2),
    ):
        for given, note in ((value, None), (other, f"not the paper's: {key}={other}")):
            [setting] = build(requested_study("table3/shakespeare", Tree({key: given}))).settings
            assert setting.keys.get("note") == note


def test_a_note_of_the_study_stays():
    [setting, *_] = build(requested_study("cifar100cnn", Tree({"local.clip": 10}))).settings
    assert setting.keys["note"] == "not the paper's model; not the paper's: local.clip=10"


def test_a_smaller_version_of_the_papers_study_is_marked():
    spec = build(requested_study("table3/synthetic", Tree({}), 0.02))
    assert [(s.keys["rounds"], s.record.full_rounds) for s in spec.settings] == [(20, 1000)]
    spec = build(requested_study("table3", Tree({"rounds": 300})))
    assert [(s.name, s.keys["rounds"], s.record.full_rounds) for s in spec.settings][:3] == [
        ("synthetic", 300, 1000), ("femnist", 300, None), ("shakespeare", 300, None),
    ]  # fmt: skip
    assert build(requested_study("table3/synthetic", Tree({}))).settings[0].record == Record()
    [half] = build(requested_study("resnet50", Tree({}), scale=0.5)).settings
    assert (half.keys["rounds"], half.record.full_rounds) == (10, 200), "it was reduced before"
    for seeds, whole in ((1, 3), ([7], 3), (3, None), ([4, 5, 6, 7], None)):
        [few] = build(requested_study("table3/femnist", Tree({"seeds": seeds}))).settings
        assert few.record.full_seeds == whole, seeds
    [many] = build(requested_study("resnet50", Tree({"seeds": 2}))).settings
    assert (many.keys["seeds"], many.record.full_seeds) == ((0, 1), 3)
    for scale, study, rounds, message in [
        (2, "table3", None, "--scale must be above 0 and at most 1, got 2"),
        (0.5, "table3", 5, "--scale cannot be given with --rounds, got 0.5"),
        (0.5, None, None, "--scale is for the paper's studies, got 0.5. Set --rounds"),
    ]:
        with pytest.raises(InputError) as caught:
            requested_study(study, Tree({"rounds": rounds} if rounds else {}), scale)
        assert message in str(caught.value)


def test_a_shorter_study_has_shorter_references():
    def rounds(**over):
        return [
            entry.get("rounds") for entry in requested_study(None, Tree(over)).values["settings"]
        ]

    assert rounds(rounds=20) == [20, 5]  # of 200 and 50
    assert rounds(rounds=400) == [400, 50]
    assert rounds(rounds="many") == ["many", 50]
