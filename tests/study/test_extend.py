"""Studies grow: new runs stand beside those that are there, which stay as they are."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from rich.console import Console

from fedskip import InputError, Study
from fedskip.records.checkpoint import list_checkpoints
from fedskip.records.table import Row, Table
from fedskip.report.progress import Progress, ProgressDisplay
from fedskip.report.results import Results
from fedskip.study.setting_plan import Group
from fedskip.study.workers import InProcess, Preparing
from studies import as_table, numbers, study, weights

FEW: dict[str, Any] = {
    "methods": "fedavg, moon",
    "seeds": 2,
    "rounds": 4,
    "checkpoint_every": 2,
    "processes": 1,
}


def files(out: Path) -> dict[str, bytes]:
    """What is kept of runs that are there."""
    kept = [*(out / "models").iterdir(), *out.glob("partition-*"), *(out / "checkpoints").iterdir()]
    return {str(path.relative_to(out)): path.read_bytes() for path in kept}


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_what_is_there_stays_and_what_is_new_is_as_if_alone(tmp_path: Path, engine: str) -> None:
    keys = FEW | {"engine": engine}
    grown, out = study(tmp_path / "grown", **keys), tmp_path / "grown"
    grown.run()
    history, summary, before = (
        (out / "history.csv").read_text(),
        (out / "summary.csv").read_text(),
        files(out),
    )
    results = study(out, **keys).extend(methods="scaffold, moon(mu=5)")
    assert (out / "history.csv").read_text().startswith(history)
    assert (out / "summary.csv").read_text().startswith(summary)
    assert files(out).items() >= before.items()
    alone = study(tmp_path / "alone", **(keys | {"methods": "scaffold, moon(mu=5)"}))
    alone.run()
    assert numbers(out)[len(history.splitlines()) - 1 :] == numbers(alone.out)
    assert weights(out).items() >= weights(alone.out).items()
    assert results.labels("toy") == ["FedAvg", "MOON", "SCAFFOLD", "MOON(mu=5.0)"]
    assert results.finished
    assert Study(out, spec=grown.spec).is_finished()


@pytest.mark.usefixtures("with_page")
def test_more_seeds_come_with_all_methods(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = study(tmp_path / "out", **FEW)
    made.run()
    made.extend(methods="scaffold, moon", seeds=3)
    assert caplog.messages == ["MOON is there already, and stays as it is"]
    results = made.extend(seeds=[7])
    assert (
        sorted(results.scores("toy", "SCAFFOLD").index)
        == sorted(results.scores("toy", "MOON").index)
        == [0, 1, 2, 7]
    )
    assert len(as_table(results.summary)) == 12
    for seed in (2, 7):
        assert (made.out / f"partition-toy-{seed}.npz").exists()
    known = yaml.safe_load((made.out / "study.yaml").read_text())
    added = known["settings"][0]["record"]["added"]
    assert len(added) == 3
    assert added[-1] == {"methods": ["fedavg", "moon", "scaffold"], "seeds": [7]}
    assert (
        set(known["record"]["added"])
        == {"toy~1", "toy~2", "toy~3"}
        == set(known["record"]["settings"]) - {"toy"}
    )
    assert all(
        made["when"] and made["versions"]["torch"] for made in known["record"]["added"].values()
    )
    assert "Addition 1 to toy: 2" in (made.out / "report.html").read_text()


def test_what_guessing_scores_is_known_for_all_seeds(tmp_path: Path) -> None:
    made = study(tmp_path / "out", **FEW | {"seeds": [0]})
    made.run()
    results = made.extend(seeds=[3])
    assert set(results.settings[0].guessing["scores"]) == {0, 3}


def test_further_metrics_of_what_is_done_survive_a_stop(tmp_path: Path) -> None:
    """A reference keeps its rounds when the others go on; what is written of it stays as it is."""

    class Stops(Progress):
        def checkpoint(self, round: int) -> None:
            if round > 2:
                raise KeyboardInterrupt

    keys = FEW | {"metric": ["accuracy", "macro_f1"], "rounds": 2, "checkpoint_every": 1}
    settings = [{"name": "a"}, {"name": "b", "reference": True, "methods": "fedavg"}]
    made = study(tmp_path / "out", settings=settings, **keys)
    before = as_table(made.run().summary).where(setting="b").column("x_macro_f1")
    with pytest.raises(KeyboardInterrupt):
        made.resume(Stops(), rounds=4)
    assert as_table(made.results().summary).where(setting="b").column("x_macro_f1") == before
    assert as_table(made.resume().summary).where(setting="b").column("x_macro_f1") == before


def test_an_addition_is_no_further_setting_on_the_screen(tmp_path: Path) -> None:
    """Nor does the record say why an engine was chosen, where it was asked for."""
    settings = [{"name": "a"}, {"name": "b"}]
    made = study(tmp_path / "out", settings=settings, engine="loop", **FEW | {"rounds": 1})
    made.run()
    screen = ProgressDisplay(Console(file=io.StringIO()), lambda: "title", settings=2)
    made.extend(seeds=[7])
    made.resume(screen, rounds=2)
    assert screen._names == ["a", "b"]
    known = yaml.safe_load((made.out / "study.yaml").read_text())["record"]["settings"]
    assert known.keys() == {"a", "b", "a~1", "b~1"}
    assert all("why" not in facts for facts in known.values())


def test_a_copy_of_its_file_gives_the_same_study(tmp_path: Path) -> None:
    """Also the parts that were added are a part of what the study is."""
    keys = FEW | {
        "data": "synthetic", "model": "perceptron", "cohort": 2, "rounds": 2, "methods": "fedavg",
        "local": {"batch": 10, "epochs": 1, "small_clients": "drop"},
    }  # fmt: skip
    made = study(tmp_path / "one", **keys)
    made.run()
    made.extend(methods="fedprox")
    from fedskip.config import build, load_yaml

    Study(tmp_path / "two", spec=build(load_yaml(tmp_path / "one" / "study.yaml"))).run()
    assert numbers(tmp_path / "one") == numbers(tmp_path / "two")
    assert weights(tmp_path / "one") == weights(tmp_path / "two")


@pytest.mark.parametrize("until", [2, 4])
def test_killed_in_the_middle_of_an_addition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: int
) -> None:
    whole, broken = study(tmp_path / "whole", **FEW), study(tmp_path / "broken", **FEW)
    whole.run()
    whole.extend(methods="scaffold")
    broken.run()
    history, before = (broken.out / "history.csv").read_text(), files(broken.out)
    advance = InProcess.advance

    def breaks(
        self: InProcess, groups: list[Group], to: int, preparing: Preparing
    ) -> Iterator[list[Row]]:
        if to == until:
            raise KeyboardInterrupt
        return advance(self, groups, to, preparing)

    with monkeypatch.context() as patched:
        patched.setattr(InProcess, "advance", breaks)
        with pytest.raises(KeyboardInterrupt):
            study(broken.out, **FEW).extend(methods="scaffold")
    assert not study(broken.out, **FEW).is_finished()
    if until == 4:
        so_far = Results.read(broken.out)
        assert not so_far.finished
        assert so_far.labels("toy") == ["FedAvg", "MOON", "SCAFFOLD"]
    with pytest.raises(InputError, match=r"holds a study that is not finished.*study.resume"):
        study(broken.out, **FEW).extend(methods="scaffold")
    study(broken.out, **FEW).resume()  # the same arguments as when it began
    assert (broken.out / "history.csv").read_text().startswith(history)
    assert files(broken.out).items() >= before.items()
    assert numbers(whole.out) == numbers(broken.out)
    assert weights(whole.out) == weights(broken.out)
    assert (whole.out / "summary.csv").read_text() == (broken.out / "summary.csv").read_text()


def test_a_newer_library_adds_to_old_runs(tmp_path: Path) -> None:
    """They are not touched, so that they need not be repeated; each part knows what it was made with."""
    made = study(tmp_path / "out", **FEW)
    made.run()
    file, now = made.out / "study.yaml", str(torch.__version__)
    file.write_text(file.read_text().replace(f"torch: {now}", "torch: 1.0.0"))
    made.extend(methods="scaffold")
    record = yaml.safe_load(file.read_text())["record"]
    assert record["versions"]["torch"] == "1.0.0"
    assert record["added"]["toy~1"]["versions"]["torch"] == now
    with pytest.raises(InputError, match=r"versions.torch was '1\.0\.0'"):
        made.resume(rounds=6)


def test_an_extended_study_goes_on_to_more_rounds(tmp_path: Path) -> None:
    made, longer = (
        study(tmp_path / "made", **FEW),
        study(tmp_path / "longer", **(FEW | {"rounds": 6})),
    )
    made.run()
    made.extend(methods="scaffold")
    made.resume(rounds=6)
    longer.run()
    longer.extend(methods="scaffold")
    one, other = (
        sorted(numbers(x.out), key=lambda r: (r["run"], r["round"])) for x in (made, longer)
    )
    assert one == other
    assert [round for round, _ in list_checkpoints(made.out / "checkpoints", "toy~1")][-1] == 6


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "must be given methods or seeds"),
        ({"methods": "fedavg"}, "would add no run: all of them are there already"),
        ({"seeds": 2}, "would add no run"),
        ({"seeds": [0, 1], "methods": "moon, fedavg"}, "would add no run"),
        ({"methods": ""}, "at least one method"),
        ({"methods": "fedavgg"}, "Did you mean 'fedavg'"),
        ({"seeds": -1}, "seeds must be how many"),
        ({"seeds": "many"}, "seeds must be how many"),
        ({"seeds": 20_000}, "or fewer"),
    ],
)
def test_bad_additions_change_nothing(
    tmp_path: Path, keys: dict[str, Any], message: str, begun: Path
) -> None:
    before = {path: path.read_bytes() for path in begun.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=message):
        study(begun, **FEW).extend(**keys)
    assert {path: path.read_bytes() for path in begun.rglob("*") if path.is_file()} == before


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = study(tmp_path_factory.mktemp("growth") / "out", **FEW)
    made.run()
    return made.out


def test_other_data_are_refused(tmp_path: Path) -> None:
    from studies import toy

    study(tmp_path / "out", **FEW).run()
    with pytest.raises(InputError, match=r"was run on other data: data\.\w+ was"):
        study(tmp_path / "out", **(FEW | {"data": toy(seed=1)})).extend(methods="scaffold")
    assert len(Table.read(tmp_path / "out" / "summary.csv")) == 4


def test_references_stay_alone_and_trackers_hear_what_is_new(tmp_path: Path) -> None:
    from fedskip import Tracker

    class Hears(Tracker):
        def on_start(self, start: Any) -> None:
            self.runs, self.rows = [run.name for run in start.runs], list(start.rows)

        def on_rows(self, rows: list[Row]) -> None:
            self.rows += rows

    both = FEW | {
        "settings": [{"name": "a"}, {"name": "b", "reference": True, "methods": "fedavg"}]
    }
    study(tmp_path / "out", **both).run()
    hears = Hears()
    results = study(tmp_path / "out", **both).extend(methods="fedprox", trackers=[hears])
    assert results.labels("b") == ["FedAvg"]
    assert results.labels("a") == ["FedAvg", "MOON", "FedProx"]
    assert len(hears.runs) == 3 * 2 + 2
    assert len(hears.rows) == len(as_table(results.history))


def test_what_another_study_differs_in_is_said(tmp_path: Path) -> None:
    study(tmp_path / "out", **FEW).run()
    with pytest.raises(
        InputError, match=r"holds another study: local\.batch was 4 and is 2; rounds was 4 and is 3"
    ):
        study(tmp_path / "out", **(FEW | {"rounds": 3, "local": {"batch": 2, "epochs": 1}})).run()
    with pytest.raises(
        InputError, match=r"another study: methods was \['fedavg', 'moon'\] and is \['fedavg'\]"
    ):
        study(tmp_path / "out", **(FEW | {"methods": "fedavg"})).resume()
    with pytest.raises(InputError, match=r"another study: the settings were toy and are a, b"):
        study(tmp_path / "out", **FEW, settings=[{"name": "a"}, {"name": "b"}]).resume()
    many = FEW | {"rounds": 9, "seeds": 1, "cohort": 2, "eval_every": 2, "compile": True}
    with pytest.raises(InputError, match=r"and 2 more"):
        study(tmp_path / "out", **many).run()
