"""What there is of the paper, and how far it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedskip.engine.local import Local
from fedskip.input.errors import InputError
from fedskip.paper.columns import settings
from fedskip.paper.overview import found, missing, others, overview, strangers, tables
from fedskip.report.results import Results
from studies import of_cifar10, recorded, run, study


def test_every_setting_is_listed_with_what_was_run(tmp_path: Path) -> None:
    runs = [run("FedAvg", seed, 0.5) | {"rounds": 1000} for seed in (0, 1)]
    kept = recorded(
        tmp_path, runs, data={"name": "synthetic"}, partition={"kind": "natural"},
        model={"name": "perceptron"}, cohort=10, rounds=1000, methods=["fedavg"],
        local=vars(Local(small_clients="short")),
    )  # fmt: skip
    rows = {row[0].plain: [cell.plain for cell in row[1:]] for row in overview([kept]).rows}
    assert rows.keys() == settings().keys()
    assert rows["table3/synthetic"][:3] == ["30 × 1,000", "synthetic", "4 min, two CPU cores"]
    assert rows["table3/synthetic"][3] == "2 of 3 seeds, 1 of 10 methods"
    one = of_cifar10(
        tmp_path, "fedavg", {"FedAvg": [0.5]}, 20, data={"name": "cifar100"}, model={"name": "resnet50"}
    )  # fmt: skip
    done = {row[0].plain: row[4].plain for row in overview([one]).rows}
    assert done["resnet50/cifar100-beta0.5"] == "1 seed, 1 of 2 methods"
    assert done["table2/cifar100-beta0.5"] == "1 of 3 seeds, 1 of 10 methods, 20 of 200 rounds"
    assert rows["tune/feddyn"][0] == "15 × 200", "every value of a grid counts"
    assert rows["fig1/beta0.5"][2:] == ["about 3 min", ""]
    note = overview([kept]).note
    assert "cifar100cnn: not the paper's model. resnet50: reduced: 20 of 200 rounds, 1 of 3 seeds." in note


def test_what_was_not_run_or_not_to_its_end(tmp_path: Path) -> None:
    """FedAvg is whole at seed 0, diverged at 1 and is short at 2; FedSkip-3 lacks two seeds."""
    made = of_cifar10(
        tmp_path, "fedavg, fedskip(period=3)", {"FedAvg": [0.5] * 3, "FedSkip-3": [0.6]},
        partition={"kind": "dirichlet", "beta": 0.1},
    )  # fmt: skip
    for row in made.summary:
        row |= {"diverged": row["seed"] == 1, "rounds": 200 if row["seed"] == 0 else 50}
    rows = {row[0].plain: [cell.plain for cell in row[1:]] for row in missing([made]).rows}
    assert rows.keys() == settings().keys()
    assert rows["fig1/beta0.1"] == ["1 of 3 × 200", "all methods at seed 2", "about 2 min"]
    runs, which, time = rows["fig5/p10-beta0.1"]
    assert (runs, time) == ("18 of 21 × 200", "about 10 min")
    others = "; ".join(f"FedSkip-{period}" for period in (5, 7, 10, 15, 20))
    assert which == f"FedAvg at seed 2; FedSkip-3 at seeds 1 and 2; {others}"
    assert rows["fig5/p50-beta0.1"] == ["21 × 800", "all", "about 9 min"]


def test_the_tables() -> None:
    assert [sheet.title.partition(",")[0] for sheet in tables([])] == ["table1", "table2", "table3"]


def test_a_table_of_which_there_is_something_has_all_its_columns(tmp_path: Path) -> None:
    """Those that were not run say so, as they do where no folder is named; other tables are left out."""
    made = of_cifar10(tmp_path, "fedavg", {"FedAvg": [0.5]})
    [sheet] = tables([made], whole=False)
    assert sheet.title.startswith("table2")
    assert sheet.headers == tables([made])[1].headers
    assert "not run" in {cell.plain for row in sheet.rows for cell in row}
    assert tables([], whole=False) == []


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = study(tmp_path / "runs" / "s", methods="fedavg", rounds=1, seeds=1)
    made.run()
    begun = tmp_path / "runs" / "begun"
    begun.mkdir()
    (begun / "study.yaml").write_bytes((made.out / "study.yaml").read_bytes())
    monkeypatch.chdir(tmp_path)
    assert [one.out for one in found(None)] == [Path("runs/s")], "one without results yet is left out"
    with pytest.raises(InputError, match="OUT holds a study without results yet"):
        found([begun])
    with pytest.raises(InputError, match=r"--from holds no study: there is no study\.yaml in it"):
        found([tmp_path], "--from")
    with pytest.raises(InputError, match="--from is not a folder"):
        found([tmp_path / "nosuch"], "--from")


def test_folders_of_folders_and_those_without_a_study(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = study(tmp_path / "all" / "s", methods="fedavg", rounds=1, seeds=1)
    made.run()
    bare = tmp_path / "bare"
    bare.mkdir()
    assert [one.out for one in found([tmp_path / "all"])] == [made.out], "it holds studies"
    assert [one.out for one in found([made.out, bare])] == [made.out]
    assert caplog.messages == [f"{bare} is left out: it holds no study"]


def test_one_that_is_damaged_does_not_hide_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole, broken = (study(tmp_path / name, methods="fedavg", rounds=1, seeds=1).run().out for name in "ab")
    with (broken / "history.csv").open("a") as file:
        file.write("half a line\n")
    assert [one.out for one in found([broken, whole])] == [whole]
    assert re.match(rf"{broken} is left out: .* line 3 must have \d+ cells", caplog.messages[0])
    with pytest.raises(InputError, match="line 3 must have"):
        found([broken])


def test_what_was_found_of_clients_is_read_with_old_studies(tmp_path: Path) -> None:
    out = study(tmp_path / "s", methods="fedavg", rounds=1, seeds=1).run().out
    [name] = [facts["partition"] for facts in Results.read(out).settings[0].divisions.values()]
    (tmp_path / "clients").mkdir()
    lines = f"partition,short\n{name},7\nother\n\xff{'9' * 200_000}\n"  # the last one is more than csv reads
    (tmp_path / "clients" / "partitions.csv").write_bytes(lines.encode("latin-1"))
    file = out / "study.yaml"
    file.write_text(file.read_text().replace("short:", "others:"))
    assert Results.read(out).settings[0].short == {}, "older studies have not noted it"
    [one] = found([out])
    assert one.settings[0].short == {0: 7}


def test_files_among_folders_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As docs/results/* names them."""
    made = study(tmp_path / "s", methods="fedavg", rounds=1, seeds=1)
    made.run()
    files = [tmp_path / name for name in ("README.md", "a.py", "b.py", "c.svg")]
    for file in files:
        file.touch()
    assert [one.out for one in found([files[0], made.out, *files[1:]])] == [made.out]
    assert caplog.messages == ["left out, as no folder: README.md, a.py, b.py, ..."]
    for some in (files[:1], files):
        with pytest.raises(InputError, match=r"OUT is not a folder, got '.*README\.md'"):
            found(some)
    with pytest.raises(InputError, match=r"OUT is not a folder, got '.*nosuch'"):
        found([made.out, tmp_path / "nosuch"])


def test_other_settings_and_folders_that_match_nothing(tmp_path: Path) -> None:
    """Runs of `schedule` that Table II has, too, are shown there; its warm-ups are its own."""
    plain = of_cifar10(tmp_path / "a", "fedavg, fedskip(period=3)", {"FedAvg": [0.5], "FedSkip-3": [0.5]})
    assert others([plain]) == []
    warm = of_cifar10(tmp_path / "b", "fedskip(period='1x10,3')", {"FedSkip-1x10,3": [0.5]})
    tuned = of_cifar10(tmp_path / "c", "fedavg", {"FedAvg": [0.5]}, validation=0.1)
    assert [sheet.title for sheet in others([plain, warm, tuned])] == [
        "schedule/cifar10-beta0.5", "tune/feddyn", "tune/fedprox",
    ]  # fmt: skip
    stranger = of_cifar10(tmp_path / "d", "fedavg", {"FedAvg": [0.5]}, cohort=3)
    assert strangers([plain, warm, stranger]) == [stranger]
