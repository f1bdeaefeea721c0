"""Privacy where it counts: noise that nobody else can draw, and an honest account of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedskip[flower]'")

from flwr.app import Message

from fedskip.engine.upload_filters import EPSILON, Privacy, from_keys
from fedskip.errors import InputError
from fedskip.federation import Orders, Replies
from fedskip.flower import client_app, privacy
from fedskip.flower.client_app import Client
from fedskip.flower.config import ClientConfig
from fedskip.flower.coordinator import Coordinator
from fedskip.flower.messages import ME
from fedskip.flower.plan import FederationPlan, JobSpec, layout_digest
from fedskip.flower.privacy import ACCOUNT, KEY, PrivacyAccount, noise_key, standard_normal
from grid import Died, FakeGrid, connect, die, in_process, places, plan_of, play

PRIVACY = {"clip": 0.05, "sigma": 2.0}
METHODS = ["fedavg", "fedskip(period=2)", "scaffold", "moon(mu=2)", "feddyn(alpha=0.3, period=2)"]


def private_plan(folder: Path, **keys: Any) -> FederationPlan:
    return plan_of(folder, **({"privacy": PRIVACY} | keys))


def visit(
    plan: FederationPlan, config: dict[str, Any], x: Tensor | None = None, **changed: Any
) -> Replies:
    """One order to a site, which answers."""
    x = plan.weights("init") if x is None else x
    told: dict[str, Any] = {
        "run": "0" * 16,
        "accepted": 0,
        "omega": 1.0,
        "layout": layout_digest(plan.layout),
    }
    orders = Orders(changed.pop("round", 0), ME, ME, [changed.pop("key", 7)], x[None], {})
    job: JobSpec = changed.pop("job", plan.job)
    return Client(ClientConfig(**config)).visit(orders, job, **(told | changed))


def without(plan: FederationPlan) -> JobSpec:
    """The job without the promise."""
    return replace(plan.job, privacy=None)


# --- the noise -----------------------------------------------------------------------------------------


def test_the_key_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    key = noise_key(tmp_path)
    assert len(key) == 32
    assert key == noise_key(tmp_path)
    assert (tmp_path / KEY).stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == [KEY]
    (tmp_path / KEY).chmod(0o640)
    with pytest.raises(InputError, match=r"can be read by others\. Run chmod 600"):
        noise_key(tmp_path)
    (tmp_path / KEY).chmod(0o600)
    (tmp_path / KEY).write_bytes(b"short")
    with pytest.raises(InputError, match="must hold 32 bytes, got 5"):
        noise_key(tmp_path)


def test_numbers_are_standard_normal_in_every_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy, "BLOCK", 25_001)
    g = standard_normal(b"seed", 100_000)
    assert abs(g.mean()) < 0.02
    assert g.std() == pytest.approx(1, abs=0.01)
    assert (np.abs(g) < 1.959964).mean() == pytest.approx(0.95, abs=0.005)
    assert (g**4).mean() == pytest.approx(3, abs=0.15)
    assert len(np.unique(g)) == len(g), "blocks do not repeat each other"
    assert np.array_equal(g[:25_001], standard_normal(b"seed", 25_001))
    assert abs(np.corrcoef(g, standard_normal(b"other", 100_000))[0, 1]) < 0.02


def test_noise_of_the_right_size_on_a_clipped_update(tmp_path: Path) -> None:
    plan = private_plan(tmp_path, model={"name": "mlp", "hidden": [2000]})
    config = places(plan, tmp_path)[1000]
    x, plain = (
        plan.weights("init"),
        visit(plan, places(plan, tmp_path / "plain")[1000], job=without(plan)),
    )
    d = plain.y[0] - x
    assert d.norm() > PRIVACY["clip"]
    noise = visit(plan, config).y[0] - x - d * PRIVACY["clip"] / d.norm()
    assert float(noise.std()) == pytest.approx(0.1, rel=0.03)


def test_sites_with_the_same_data_and_order_have_different_noise(tmp_path: Path) -> None:
    plan = private_plan(tmp_path)
    configs = [places(plan, tmp_path / name)[1000] for name in ("one", "other")]
    one, other = (visit(plan, config).y for config in configs)
    assert not torch.equal(one, other)
    plain = [visit(plan, config, job=without(plan)).y for config in configs]
    assert torch.equal(*plain), "all but the noise is the same"


def test_the_same_order_gets_the_same_bits_and_another_gets_other_noise(tmp_path: Path) -> None:
    plan = private_plan(tmp_path)
    config, x = places(plan, tmp_path)[1000], plan.weights("init")
    first = visit(plan, config)
    for _ in range(2):
        assert torch.equal(visit(plan, config).y, first.y)
    still = {
        **vars(plan.job),
        "local": replace(plan.job.local, lr=1e-30),
    }  # nobody moves: y = x + noise
    base = visit(plan, config, job=JobSpec(**still)).y - x
    different: list[dict[str, Any]] = [
        {"x": x + 1e-3}, {"key": 8}, {"round": 1}, {"omega": 2.0}, {"run": "1" * 16},
        {"job": JobSpec(**{**still, "privacy": Privacy(clip=0.1, sigma=1.0)})},
    ]  # fmt: skip
    seen = [base]
    for change in different:
        moved = visit(plan, config, **({"job": JobSpec(**still)} | change)).y - change.get("x", x)
        for other in seen:  # had they the same noise, the difference would be far smaller
            assert float((moved - other).std()) > 0.05, change
        seen.append(moved)
    assert len((tmp_path / "a" / "state" / ACCOUNT).read_text().splitlines()) == 1 + 1 + len(
        different
    )


def test_an_update_that_is_not_finite_does_not_show(tmp_path: Path) -> None:
    plan = private_plan(tmp_path)
    exploding = replace(plan.job, local=replace(plan.job.local, lr=1e30))
    config = places(plan, tmp_path)[1000]
    assert not visit(plan, config, job=replace(exploding, privacy=None)).y.isfinite().all()
    noise = visit(plan, config, job=exploding).y - plan.weights("init")
    assert noise.isfinite().all()
    assert float(noise.std()) < 1


# --- a federation --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_with_the_noise_of_the_simulation_it_is_the_simulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    plan = private_plan(tmp_path, methods=method)
    apart = play(plan, FakeGrid(places(plan, tmp_path / "apart"))).run.server.x
    monkeypatch.setattr(client_app, "client_noise", lambda key, order, noted: from_keys)
    found = play(plan, FakeGrid(places(plan, tmp_path))).run.server
    expected = in_process(plan).server
    assert torch.equal(found.x, expected.x)
    for name, tensor in expected.state.items():
        assert torch.equal(found.state[name], tensor), name
    assert not torch.equal(apart, expected.x)


def test_all_that_leaves_a_site_follows_from_the_noisy_model(tmp_path: Path) -> None:
    plan = private_plan(tmp_path, methods="scaffold", rounds=1)
    passed: list[tuple[Message, Message]] = []

    def listen(order: Message, reply: Message) -> Message:
        if order.metadata.message_type == "train":
            passed.append((order, reply))
        return reply

    coordinator = play(plan, FakeGrid(places(plan, tmp_path), listen))
    assert len(passed) == 3
    for order, reply in passed:
        content = reply.content
        assert {(name, key) for name, record in content.items() for key in record} == {
            ("model", "y"), ("upload", "delta_c"), ("visit", "samples"), ("visit", "steps"), ("visit", "a")
        }  # fmt: skip
        x, y = order.content["model"]["x"].numpy(), content["model"]["y"].numpy()
        expected = (x - y) / content["visit"]["a"]  # c and c_i are 0 in the first round
        np.testing.assert_allclose(
            content["upload"]["delta_c"].numpy(), expected, rtol=1e-4, atol=1e-5
        )
    assert coordinator.rows[0]["train_loss"] is None


def test_epsilon_counts_what_was_asked_whatever_became_of_the_answer(tmp_path: Path) -> None:
    def lose(order: Message, reply: Message) -> Message | None:
        gone = order.metadata.message_type == "train" and order.metadata.dst_node_id == 1001
        return None if gone else reply

    plan, privacy = private_plan(tmp_path, rounds=4), Privacy(**PRIVACY)
    folder, sites = tmp_path / "run" / "checkpoints", places(plan, tmp_path)
    play(plan, FakeGrid(sites, lose), folder, rounds=2)
    coordinator = play(plan, FakeGrid(sites, lose), folder)
    assert [row[EPSILON] for row in coordinator.rows] == pytest.approx(
        [privacy.epsilon(v) for v in range(1, 5)]
    )
    assert coordinator.history().splitlines()[0].endswith(EPSILON)
    assert Coordinator(plan, connect(plan, None), folder).restore()
    for name in "abc":
        lines = (tmp_path / name / "state" / ACCOUNT).read_text().splitlines()
        assert len(lines) == 4
        assert all(json.loads(line)["client"] == name for line in lines)


def test_a_round_that_is_played_again_costs_nothing_more(tmp_path: Path) -> None:
    plan = private_plan(tmp_path, methods="scaffold", rounds=3)
    folder, sites = tmp_path / "run" / "checkpoints", places(plan, tmp_path)
    with pytest.raises(Died):
        play(plan, FakeGrid(sites, die), folder)
    rows = play(plan, FakeGrid(sites), folder).rows
    assert rows[-1][EPSILON] == pytest.approx(Privacy(**PRIVACY).epsilon(3))
    lines = (tmp_path / "a" / "state" / ACCOUNT).read_text().splitlines()
    assert len(lines) == 3


def test_visits_of_different_noise_add_up(tmp_path: Path) -> None:
    account = PrivacyAccount(tmp_path / ACCOUNT)
    assert account.epsilon(1e-5) == 0
    for number in range(4):
        account.add("a", str(number), 2.0)
    account.add("b", "0", 1.0)  # as much as four of twice the noise
    account.add("b", "0", 1.0)
    assert account.epsilon(1e-5) == pytest.approx(Privacy(clip=1, sigma=1).epsilon(1))


# --- a site's own limit --------------------------------------------------------------------------------


def test_a_site_keeps_its_own_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plan, privacy = private_plan(tmp_path, rounds=4), Privacy(**PRIVACY)
    sites = places(plan, tmp_path)
    sites[1001]["epsilon"] = (privacy.epsilon(2) + privacy.epsilon(3)) / 2
    coordinator = play(plan, FakeGrid(sites))
    assert coordinator.accepted.tolist() == [4, 2, 4]
    assert "epsilon would be overspent" in caplog.text
    assert len((tmp_path / "b" / "state" / ACCOUNT).read_text().splitlines()) == 2


def test_a_site_with_a_limit_answers_no_study_without_privacy(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    config = places(plan, tmp_path)[1000] | {"epsilon": 5.0}
    with pytest.raises(
        InputError, match=r"privacy must be kept by studies here: client.yaml has an epsilon"
    ):
        visit(plan, config)


def test_a_generous_delta_of_the_server_does_not_count(tmp_path: Path) -> None:
    plan = private_plan(tmp_path, privacy=PRIVACY | {"delta": 0.9})
    config = places(plan, tmp_path)[1000] | {"epsilon": 0.5}
    with pytest.raises(InputError, match="epsilon would be overspent"):
        visit(plan, config)


def test_numbers_that_would_leave_without_noise_are_refused(tmp_path: Path) -> None:
    data = tmp_path / "pictures.npz"
    np.savez(
        data, x=np.zeros((40, 3, 32, 32), np.uint8), y=np.arange(40) % 2, client=np.arange(40) % 3
    )
    with pytest.raises(InputError, match="privacy cannot be had with a model that has buffers"):
        private_plan(tmp_path, data={"name": str(data)}, model={"name": "resnet50"})
