"""TensorBoard: its own reader finds every number of the history once."""

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from fedskip.report.trackers.tensorboard import TensorBoard
from studies import as_table, study
from tracked import FEW, flat, history, kill, summaries, without_clock


def loaded(out):
    folders = sorted((out / "tensorboard").iterdir())
    return {
        folder.name: EventAccumulator(str(folder), {"scalars": 0}).Reload() for folder in folders
    }


def read(out):
    """By run and round; and the summary by run."""
    heard, ends = {}, {}
    for run, events in loaded(out).items():
        rounds, ends[run] = {}, {}
        for tag in events.Tags()["scalars"]:
            points = flat([(event.step, event.value) for event in events.Scalars(tag)])
            if tag.startswith("summary/"):
                [ends[run][tag.removeprefix("summary/")]] = points.values()
            else:
                for round, value in points.items():
                    rounds.setdefault(round, {})[tag] = value
        heard[run] = rounds
    return heard, ends


def short(found):
    """Numbers as TensorBoard has them, in 32 bits."""
    return {k: short(v) if isinstance(v, dict) else float(np.float32(v)) for k, v in found.items()}


def test_numbers_and_summary(tmp_path):
    results = study(tmp_path / "s", **FEW, slot_accuracy=True).run(trackers=[TensorBoard()])
    heard, ends = read(tmp_path / "s")
    assert heard == short(history(tmp_path / "s"))
    assert heard["toy.FedSkip-2.s0"].keys() == {2, 4, 6}
    assert "slot_accuracy" in heard["toy.FedAvg.s0"][1]
    assert ends == short(summaries(results))
    assert {"last", "best", "mean_tail", "merges", "bytes_total", "diverged"} <= ends[
        "toy.FedAvg.s0"
    ].keys()


def test_hyper_parameters(tmp_path):
    study(tmp_path / "s", **FEW | {"methods": "fedavg, fedprox(mu=0.1)"}).run(
        trackers=[TensorBoard()]
    )
    for run, events in loaded(tmp_path / "s").items():
        content = events.PluginTagToContent("hparams")
        begins = metadata.parse_session_start_info_plugin_data(
            content[metadata.SESSION_START_INFO_TAG]
        )
        found = {
            key: getattr(value, value.WhichOneof("kind")) for key, value in begins.hparams.items()
        }
        assert found["method"] in run
        assert found["local.batch"] == 4
        assert found.get("method.mu") == (0.1 if "FedProx" in run else None)
        ends = metadata.parse_session_end_info_plugin_data(content[metadata.SESSION_END_INFO_TAG])
        assert ends.status == 1  # success


def test_killed_between_a_row_and_its_checkpoint(tmp_path):
    kill(tmp_path / "s", "tensorboard")
    before, _ = read(tmp_path / "s")
    assert max(before["toy.FedAvg.s0"]) >= 5  # nothing waits in memory
    results = study(tmp_path / "s", **FEW, processes=1).resume(trackers=[TensorBoard()])
    heard, ends = read(tmp_path / "s")
    assert without_clock(heard) == without_clock(short(history(tmp_path / "s")))
    assert ends == short(summaries(results))
    assert (
        without_clock(before)["toy.FedAvg.s0"].items()
        <= without_clock(heard)["toy.FedAvg.s0"].items()
    )


def test_one_that_comes_late_or_was_away_has_it_all(tmp_path):
    study(tmp_path / "s", **FEW).run()
    study(tmp_path / "s", **FEW).resume(rounds=9, trackers=[TensorBoard()])
    study(tmp_path / "s", **FEW).resume(rounds=11)
    study(tmp_path / "s", **FEW).resume(rounds=13, trackers=[TensorBoard()])
    heard, ends = read(tmp_path / "s")
    assert heard["toy.FedAvg.s0"].keys() == set(range(1, 14))
    assert without_clock(heard) == without_clock(short(history(tmp_path / "s")))
    assert ends["toy.FedAvg.s0"]["rounds"] == 13


def test_times_of_rows_that_are_written_anew(tmp_path):
    """They are as far apart as they were."""
    study(tmp_path / "s", **FEW).run()
    results = study(tmp_path / "s", **FEW).resume(trackers=[TensorBoard()])
    seconds = as_table(results.history).where(run="toy.FedAvg.s0").column("seconds")
    points = loaded(tmp_path / "s")["toy.FedAvg.s0"].Scalars("test_accuracy")
    apart = [point.wall_time - points[0].wall_time for point in points]
    assert apart == pytest.approx([second - seconds[0] for second in seconds], abs=1e-3)
