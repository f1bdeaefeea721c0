"""A setting made real."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn

from fedskip import Arrays, Dataset, InputError
from fedskip.engine.upload_filters import Privacy
from fedskip.federation.server import draw_cohort
from fedskip.records.folder import Folder
from fedskip.records.table import Row
from fedskip.report.progress import Progress, SettingProgress
from studies import Net, as_table, numbered, numbers, study, toy


def test_nan_in_the_data(tmp_path: Path) -> None:
    data = toy()
    data.samples.x[5, 1] = float("nan")
    with pytest.raises(InputError, match=r"data\.x must be finite; sample 5"):
        study(tmp_path / "out", data=data).run()
    assert not (tmp_path / "out").exists()


def test_small_clients(tmp_path: Path) -> None:
    data = toy()
    results = study(
        tmp_path / "a", data=data, local={"batch": 12, "epochs": 1, "last_batch": "keep"}, seeds=1
    ).run()
    assert len(as_table(results.summary)) == 6
    short = study(
        tmp_path / "b", data=data, local={"batch": 64, "small_clients": "short"}, seeds=1, rounds=2
    ).run()
    assert len(as_table(short.summary)) == 6
    with pytest.raises(InputError, match="cohort must be <= 0"):
        study(tmp_path / "c", data=data, local={"batch": 64, "small_clients": "drop"}).run()


def uneven(*sizes: int) -> Dataset:
    """Clients with so many training samples, and a test sample each; with seed 1 one more is too small."""
    full = toy(len(sizes), max(sizes) + 2)
    place = np.arange(len(full.samples)) % (max(sizes) + 2)
    assert full.owner is not None
    most = np.array(sizes)[full.owner]

    def split(seed: int) -> tuple[np.ndarray, np.ndarray]:
        less = (full.owner == len(sizes) - 1) * seed * 10
        return np.flatnonzero(place < most - less), np.flatnonzero(place == max(sizes) + 1)

    return replace(full, split=split)


@pytest.mark.parametrize(
    ("local", "seeds", "said"),
    [
        ({"small_clients": "drop"}, 1, ["2 of 6 clients dropped (fewer than 8 samples)"]),
        ({"small_clients": "drop"}, 2, ["2 to 3 of 6 clients dropped (fewer than 8 samples)"]),
        ({"small_clients": "short"}, 1, ["2 of 6 clients train in one short batch (fewer than 8 samples)"]),
        (
            {"small_clients": "short"}, 2,
            ["2 to 3 of 6 clients train in one short batch (fewer than 8 samples)"],
        ),
        ({"last_batch": "keep"}, 1, ["2 of 6 clients train in one short batch (fewer than 8 samples)"]),
        ({"batch": 6, "small_clients": "short"}, 1, [
            "1 of 6 clients trains in one short batch (fewer than 6 samples)"
        ]),
        ({"batch": 4, "small_clients": "drop"}, 2, []),
    ],
)  # fmt: skip
def test_small_clients_are_counted(
    tmp_path: Path, local: dict[str, Any], seeds: int, said: list[str]
) -> None:
    class Watching(Progress):
        def started(self, setting: SettingProgress, rows: Iterable[Row]) -> None:
            self.notes = setting.notes

    watching, keys = (
        Watching(),
        {"local": {"batch": 8, "epochs": 1} | local, "cohort": 2, "engine": "loop"},
    )
    made = study(
        tmp_path / "s",
        data=uneven(7, 16, 5, 16, 16, 16),
        methods="fedavg",
        rounds=1,
        seeds=seeds,
        **keys,
    )
    made.run(watching)
    assert watching.notes == said


def test_a_study_whose_small_clients_were_dropped_goes_on(tmp_path: Path) -> None:
    keys = {
        "data": uneven(7, 16, 5, 16),
        "cohort": 2,
        "local": {"batch": 8, "small_clients": "drop"},
    }
    made = study(tmp_path / "s", **keys, methods="fedavg", rounds=1, seeds=1)
    made.run()
    facts = Folder(tmp_path / "s").record()["settings"]["toy"]["divisions"][0]
    counts = {"clients", "train", "test", "evaluated", "validation"}
    assert facts.keys() == {"partition", "held_out", *counts}
    assert facts["clients"] == 2
    assert as_table(made.resume(rounds=2).summary).column("rounds") == [2]


def test_pretrained_init(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Net()
    torch.save(net.state_dict(), tmp_path / "net.pt")
    from_file = study(
        tmp_path / "a", init=str(tmp_path / "net.pt"), methods="fedavg", rounds=2, seeds=1
    ).run()
    from_module = study(tmp_path / "b", model=net, methods="fedavg", rounds=2, seeds=1).run()
    assert as_table(from_file.history).column("train_loss") == as_table(from_module.history).column(
        "train_loss"
    )
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "other.pt")
    with pytest.raises(InputError, match=r"init lacks 'one\.bias'"):
        study(tmp_path / "c", init=str(tmp_path / "other.pt")).run()
    with pytest.raises(InputError, match=r"init must be an existing file, got 'none\.pt'"):
        study(tmp_path / "c", init="none.pt").run()


def test_a_user_s_own_module_is_left_alone(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    study(tmp_path / "s", model=lambda: net, methods="fedavg", rounds=1, precision="fp64").run()
    assert next(net.parameters()).dtype == torch.float32
    assert type(net[1]) is nn.Dropout


def test_samples_may_have_a_number_of_their_own(tmp_path: Path) -> None:
    full = toy()
    samples = Arrays(full.samples.x, full.samples.y)  # type: ignore[attr-defined]
    object.__setattr__(samples, "mean", samples.x.mean())
    made = study(tmp_path / "s", data=replace(full, samples=samples), methods="fedavg", rounds=1)
    made.run()
    [facts] = Folder(made.out).record()["settings"].values()
    assert set(facts["data"]) == {"x", "y", "mean", "owner"}


@pytest.mark.parametrize(
    ("token", "said"),
    [(90, "got 90. Set model.vocabulary=91"), (-1, "got -1. Number the tokens from 0 on")],
)
def test_tokens_without_an_embedding_are_refused(token: int, said: str, tmp_path: Path) -> None:
    x = torch.zeros(20, 5, dtype=torch.int64)
    x[17, 3] = token
    halves = np.arange(15), np.arange(15, 20)
    text = Dataset("text", Arrays(x, torch.arange(20) % 80), lambda seed: halves, 80)
    keys = {"data": text, "model": "lstm", "partition": "iid", "clients": 2, "cohort": 2}
    with pytest.raises(InputError, match=f"data.x must have tokens from 0 to 79, {said}"):
        study(tmp_path / "s", **keys).run()


@pytest.mark.parametrize("model", ["linear", {"name": "mlp", "hidden": [5]}])
def test_regression_takes_its_sizes_from_the_data(model: Any, tmp_path: Path) -> None:
    keys = {
        "loss": "squared_error",
        "metric": "minus_squared_error",
        "methods": "fedavg, moon",
        "seeds": 1,
    }
    data = numbered()
    results = study(tmp_path / "s", data=data, model=model, rounds=20, **keys).run()
    assert all(row["last"] > -data.samples.labels().var() / 4 for row in as_table(results.summary))


# --- what clients hand on ------------------------------------------------------------------------------


def losses(out: Path, **keys: object) -> np.ndarray:
    study(out, engine="loop", seeds=1, **keys).run()
    return np.array([row["test_loss"] for row in numbers(out)])


def test_without_noise_a_private_study_is_the_plain_one(tmp_path: Path) -> None:
    plain = losses(tmp_path / "plain")
    quiet = losses(tmp_path / "quiet", privacy={"clip": 1e3, "sigma": 1e-9})
    np.testing.assert_allclose(quiet, plain, rtol=1e-3, atol=1e-4)
    noisy = losses(tmp_path / "noisy", privacy={"clip": 1e3, "sigma": 1e-4})
    [spent] = {row["x_epsilon"] for row in numbers(tmp_path / "quiet") if row["round"] == 7}
    most = np.bincount(
        np.concatenate([draw_cohort("uniform", 0, round, 8, 4) for round in range(7)])
    ).max()
    assert spent == Privacy(clip=1, sigma=1e-9).epsilon(int(most))
    assert (np.abs(noisy - plain) > 1e-3).mean() > 0.9  # of every method


@pytest.mark.parametrize(
    "keys",
    [
        {"privacy": {"clip": 1.0, "sigma": 0.1}},
        {"attack": {"clients": 2, "kind": "noise", "scale": 2.0}},
    ],
)
def test_both_engines_hand_on_the_same(keys: dict[str, object], tmp_path: Path) -> None:
    both = [tmp_path / "loop", tmp_path / "stacked"]
    for out in both:
        study(out, engine=out.name, precision="fp64", rounds=4, seeds=1, **keys).run()
    one, other = ([row["test_loss"] for row in numbers(out)] for out in both)
    np.testing.assert_allclose(one, other, rtol=1e-6)


def test_poisoners_do_harm_and_the_file_says_so(tmp_path: Path) -> None:
    keys = {"methods": "fedavg, median", "rounds": 6, "cohort": 8}
    honest = losses(tmp_path / "honest", **keys)
    attack = {"clients": 2, "kind": "flip", "scale": 20.0}
    harmed = losses(tmp_path / "harmed", attack=attack, **keys)
    fedavg, median = (harmed - honest)[::2], (harmed - honest)[1::2]
    assert fedavg[-1] > 2 * abs(median[-1])
    assert yaml.safe_load((tmp_path / "harmed" / "study.yaml").read_text())["attack"] == attack


def test_what_would_leave_without_noise_is_refused(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    with pytest.raises(InputError, match="privacy cannot be had with a model that has buffers"):
        study(tmp_path, model=model, methods="fedavg", privacy={"clip": 1.0, "sigma": 1.0}).run()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"privacy": {"clip": 1}}, "privacy.sigma is missing"),
        ({"privacy": {"clip": 1, "sigma": 1, "epsilon": 2}}, "privacy.epsilon"),
        ({"privacy": 3}, "privacy must be a mapping such as {clip: 1, sigma: 1}"),
        ({"attack": {"kind": "label"}}, "attack.kind must be 'flip' or 'noise'"),
        ({"attack": {"clients": 9}}, "attack.clients must be <= 8, the number of clients"),
    ],
)
def test_what_is_handed_on_is_checked(keys: dict[str, object], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        study(tmp_path, **keys).run()
    assert not list(tmp_path.iterdir())
