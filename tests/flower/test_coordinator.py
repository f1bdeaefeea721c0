"""A federation without a network: its bits, its messages, its faults."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedskip[flower]'")

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.app.error import Error

from fedskip.federation import Run
from fedskip.flower.coordinator import Coordinator, NoClients, stand_in
from fedskip.methods.base import State
from grid import OWN_METHOD, Died, FakeGrid, connect, die, in_process, places, plan_of, play

METHODS = ["fedavg", "fedskip(period=2)", "scaffold", "moon(mu=2)", "feddyn(alpha=0.3, period=2)"]


def state(run: Run) -> State:
    server, _ = run.server.save()
    return {**server, "w": run.server.w}


def assert_same(one: Run, other: Run) -> None:
    found, expected = state(one), state(other)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name
    assert (one.server.seen == other.server.seen).all()


@pytest.mark.parametrize(
    "method", [*METHODS, "fednova", "fedprox(mu=0.5)", "fedadam", "scaffold(init=random)"]
)
def test_the_weights_are_those_of_the_loop_engine(tmp_path: Path, method: str) -> None:
    plan = plan_of(tmp_path, methods=method, rounds=5)
    assert_same(play(plan, FakeGrid(places(plan, tmp_path))).run, in_process(plan))


def test_some_of_the_clients_take_part(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, 5, methods="scaffold(period=2)", cohort=2, rounds=6)
    assert_same(play(plan, FakeGrid(places(plan, tmp_path))).run, in_process(plan))


def test_64_bits_and_a_decaying_rate(tmp_path: Path) -> None:
    local = {"epochs": 1, "batch": 8, "decay": "cosine"}
    plan = plan_of(tmp_path, precision="fp64", local=local)
    coordinator = play(plan, FakeGrid(places(plan, tmp_path)))
    assert coordinator.run.server.x.dtype == torch.float64
    assert coordinator.rows[-1]["test_loss"] < coordinator.rows[0]["test_loss"]


# --- what a client can see -----------------------------------------------------------------------------


def fields(message: Message) -> dict[str, Any]:
    """All that a message holds, but for what differs from visit to visit by its nature."""
    found: dict[str, Any] = {}
    for name, record in message.content.items():
        for key, value in record.items():
            found[f"{name}.{key}"] = (
                (value.dtype, value.shape) if isinstance(value, Array) else type(value)
            )
    about = message.metadata
    return {**found, "type": about.message_type, "group": about.group_id, "ttl": about.ttl}


@pytest.mark.parametrize("method", METHODS)
def test_messages_of_merge_and_skip_rounds_cannot_be_told_apart(
    tmp_path: Path, method: str
) -> None:
    plan = plan_of(tmp_path, methods=method, rounds=4)
    grid = FakeGrid(places(plan, tmp_path))
    play(plan, grid)
    sent = grid.trained()
    assert len(sent) == 12
    assert all(fields(message) == fields(sent[0]) for message in sent)
    visits = [dict(message.content["visit"]) for message in sent]
    assert visits[0].keys() == {"round", "key", "run", "accepted", "omega", "layout", "job"}
    for constant in ("run", "layout", "job"):
        assert len({visit[constant] for visit in visits}) == 1
    job = json.loads(visits[0]["job"])
    assert "period" not in visits[0]["job"], "a client is not told when slots merge"
    assert not {"seed", "seeds", "slot", "slots", "cohort", "period", "clients"} & job.keys()
    assert len({visit["key"] for visit in visits}) == len(visits)


def test_skip_rounds_say_the_same_as_fedavg_does(tmp_path: Path) -> None:
    """In the first round, to the bit: nothing depends on the period."""
    first = []
    for method in ("fedavg", "fedskip(period=3)"):
        plan = plan_of(tmp_path / method, methods=method)
        grid = FakeGrid(places(plan, tmp_path / method))
        play(plan, grid)
        visits = [dict(message.content["visit"]) for message in grid.trained()[:3]]
        first.append([{k: v for k, v in visit.items() if k != "run"} for visit in visits])
    assert first[0] == first[1]


def test_the_seed_is_secret_unless_it_is_written(tmp_path: Path) -> None:
    plans = [plan_of(tmp_path, seeds=None) for _ in range(2)]
    assert plans[0].seed != plans[1].seed
    assert not any(plan.guessable for plan in plans)
    assert plan_of(tmp_path).guessable


def test_a_model_goes_to_one_site_only(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, methods="fedskip(period=4)")
    grid = FakeGrid(places(plan, tmp_path))
    play(plan, grid)
    third = [message.content["model"]["x"].numpy() for message in grid.trained()[6:9]]
    assert not np.array_equal(third[0], third[1])
    assert not np.array_equal(third[1], third[2])


# --- evaluation ----------------------------------------------------------------------------------------


def test_sites_test_together_what_one_machine_would(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path, methods="fedskip(period=2)", agreed={"test": str(tmp_path / "pool.npz")}
    )
    grid = FakeGrid(places(plan, tmp_path))
    coordinator = play(plan, grid)
    assert [row["round"] for row in coordinator.rows] == [2, 4]
    row = coordinator.rows[-1]
    assert row["x_clients"] == 3
    assert row["x_worst_client"] <= row["test_accuracy"]
    assert 0 <= row["x_server_accuracy"] <= 1
    tests = [message for message in grid.sent if message.metadata.message_type == "evaluate"]
    assert len(tests) == 6
    replies = [
        dict(grid._answer(message, node).content["scores"])
        for message, node in zip(tests[3:], grid.configs, strict=True)
    ]
    assert all(reply.keys() == {"metric", "loss", "samples"} for reply in replies)
    total = sum(reply["samples"] for reply in replies)
    assert row["test_accuracy"] == pytest.approx(sum(reply["metric"] for reply in replies) / total)
    assert row["x_worst_client"] == pytest.approx(min(r["metric"] / r["samples"] for r in replies))


def test_a_period_that_does_not_divide_the_rounds_ends_in_a_final_merge(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, methods="fedskip(period=3)", rounds=4)
    coordinator = play(plan, FakeGrid(places(plan, tmp_path)))
    assert [row["round"] for row in coordinator.rows] == [3]
    assert coordinator.record.merged is not None
    assert coordinator.record.merged_model is not None


def test_tests_that_cannot_be_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan = plan_of(tmp_path, rounds=1)

    def spoil(order: Message, reply: Message) -> Message:
        node = order.metadata.dst_node_id
        if order.metadata.message_type == "evaluate" and node < 1002:
            wrong = {"metric": float("nan") if node == 1000 else 1e9}
            reply.content["scores"] = MetricRecord({**reply.content["scores"], **wrong})
        return reply

    coordinator = play(plan, FakeGrid(places(plan, tmp_path), spoil))
    assert coordinator.rows[0]["x_clients"] == 1
    assert "the test of a is left out: a test must be finite" in caplog.text
    assert "the test of b is left out: a test must lie between 0 and" in caplog.text


# --- faults --------------------------------------------------------------------------------------------


def spoiled(rounds: set[int], nodes: set[int], change: Any) -> Any:
    """Change what some nodes send back in some rounds, counted from 0; a change may give None: lost."""

    def spoil(order: Message, reply: Message) -> Message | None:
        about = order.metadata
        chosen = about.message_type == "train" and about.dst_node_id in nodes
        if not chosen or order.content["visit"]["round"] not in rounds:
            return reply
        given: Message | None = change(order, reply)
        return given

    return spoil


def lost(order: Message, reply: Message) -> None:
    return None


def failed(order: Message, reply: Message) -> Message:
    return Message(Error(0, "it broke"), reply_to=order)


def with_model(make: Any) -> Any:
    def change(order: Message, reply: Message) -> Message:
        x, y = (
            message.content["model"][name].numpy() for message, name in ((order, "x"), (reply, "y"))
        )
        reply.content["model"] = ArrayRecord({"y": Array(make(x, y))})
        return reply

    return change


def with_facts(**facts: float) -> Any:
    def change(order: Message, reply: Message) -> Message:
        reply.content["visit"] = MetricRecord({**reply.content["visit"], **facts})
        return reply

    return change


def emptied(order: Message, reply: Message) -> Message:
    return Message(RecordDict(), reply_to=order)


def broken(order: Message, reply: Message) -> Message:
    """An array whose header is never closed, at which numpy's reader of headers stumbles."""
    data = (
        b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (3,".ljust(127)
        + b"\n"
    )
    array = Array(dtype="float32", shape=(3,), stype="numpy.ndarray", data=data)
    reply.content["model"] = ArrayRecord({"y": array})
    return reply


FAULTS = {
    "header": (broken, "the array 'y' of a message cannot be read"),
    "lost": (lost, "did not answer in time"),
    "error": (failed, "answers with an error (it broke)"),
    "empty": (emptied, "must hold"),
    "nan": (with_model(lambda x, y: np.full_like(y, np.nan)), "is not finite"),
    "inf": (with_model(lambda x, y: y * np.inf), "is not finite"),
    "shape": (with_model(lambda x, y: y[:-1]), "has a model of"),
    "double": (with_model(lambda x, y: y.astype(np.float64)), "has a model of"),
    "whole numbers": (
        with_model(lambda x, y: y.astype(np.int64)),
        "must hold rows of numbers of 32 or 64 bits",
    ),
    "absurd": (with_model(lambda x, y: x + 1e4 * (y - x)), "more than 10 times the median"),
    "loss": (with_facts(loss=float("nan")), "is not finite"),
    "steps": (with_facts(steps=0), "claims 0 steps"),
    "weight": (with_facts(a=float("inf")), "claims"),
    "samples": (with_facts(samples=10**9), "samples, and had said"),
}


@pytest.mark.parametrize(
    ("fault", "method"),
    [("absurd", "fedavg"), *((fault, "scaffold(period=2)") for fault in FAULTS)],
)
def test_a_bad_reply_leaves_its_slot_as_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str, method: str
) -> None:
    change, says = FAULTS[fault]
    plan = plan_of(tmp_path, methods=method, rounds=2)
    grid = FakeGrid(places(plan, tmp_path), spoiled({0}, {1001}, change))
    coordinator = play(plan, grid, rounds=1)
    assert "round 1: b is left out" in caplog.text
    assert says in caplog.text
    assert coordinator.accepted.tolist() == [1, 0, 1]
    server = coordinator.run.server
    if server.period.merges(1):
        assert server.merges == 1
        assert coordinator.rows[0]["test_loss"] < 1
        return
    slot = server.cohort(0).tolist().index(1)
    assert server.seen[slot] == server.a[slot] == server.steps[slot] == 0
    assert torch.equal(server.w[slot], plan.weights("init"))
    assert all(server.seen[k] for k in range(3) if k != slot)


@pytest.mark.parametrize("method", METHODS[2:])
def test_a_lost_reply_never_corrupts_what_a_client_remembers(tmp_path: Path, method: str) -> None:
    """Lost on its way back, it is as if the client had never been asked: as it would be offline."""
    plan = plan_of(tmp_path, methods=method, rounds=5)
    lossy = FakeGrid(places(plan, tmp_path / "lossy"), spoiled({1, 2}, {1001}, lost))
    broken = FakeGrid(places(plan, tmp_path / "broken"), spoiled({1, 2}, {1001}, failed))
    one, other = play(plan, lossy).run, play(plan, broken).run
    assert_same(one, other)
    assert_same(play(plan, Offline(places(plan, tmp_path / "offline"), {1, 2}, 1001)).run, one)


class Offline(FakeGrid):
    """A grid whose node trains nothing in some rounds: its files stay as they are."""

    def __init__(self, configs: Any, rounds: set[int], node: int) -> None:
        super().__init__(configs)
        self.rounds, self.node = rounds, node

    def _answer(self, message: Message, node: int) -> Message:
        trains = message.metadata.message_type == "train"
        if trains and node == self.node and message.content["visit"]["round"] in self.rounds:
            return Message(Error(0, "away"), reply_to=message)
        return super()._answer(message, node)


class Twice(FakeGrid):
    """Every order arrives twice, and the second reply counts."""

    def _answer(self, message: Message, node: int) -> Message:
        super()._answer(message, node)
        return super()._answer(message, node)


@pytest.mark.parametrize("method", METHODS[2:])
def test_a_replay_changes_nothing(tmp_path: Path, method: str) -> None:
    plan = plan_of(tmp_path, methods=method, rounds=4)
    assert_same(play(plan, Twice(places(plan, tmp_path))).run, in_process(plan))


@pytest.mark.parametrize("method", METHODS)
def test_resumed_after_any_round_it_ends_as_if_undisturbed(tmp_path: Path, method: str) -> None:
    plan = plan_of(tmp_path, methods=method, rounds=5)
    expected = in_process(plan)
    for stop in (1, 4):
        sites = places(plan, tmp_path / str(stop))
        play(plan, FakeGrid(sites), tmp_path / str(stop) / "checkpoints", rounds=stop)
        coordinator = play(plan, FakeGrid(sites), tmp_path / str(stop) / "checkpoints")
        assert_same(coordinator.run, expected)
        rounds = [row["round"] for row in coordinator.rows]
        assert rounds == [r for r in range(1, 6) if coordinator.run.server.period.merges(r)]


def test_a_server_that_dies_in_a_round_plays_that_round_again(tmp_path: Path) -> None:
    """The sites have trained and remembered; the server's disk knows nothing of it."""
    plan, folder = (
        plan_of(tmp_path, methods="scaffold(period=2)", rounds=5),
        tmp_path / "checkpoints",
    )
    sites = places(plan, tmp_path)

    with pytest.raises(Died):
        play(plan, FakeGrid(sites, die), folder)
    assert_same(play(plan, FakeGrid(sites), folder).run, in_process(plan))


def test_other_clients_are_refused_on_resume(tmp_path: Path) -> None:
    plan, folder = plan_of(tmp_path, rounds=3), tmp_path / "checkpoints"
    play(plan, FakeGrid(places(plan, tmp_path)), folder, rounds=1)
    other = plan_of(tmp_path, rounds=3, agreed={"fewest": 2})
    swapped = type(other)(
        other.spec, other.setting, _renamed(other.config, "b", "a", "c"), other.sizes
    )
    with pytest.raises(ValueError, match="clients have changed"):
        Coordinator(swapped, connect(swapped, None), folder).restore()


def _renamed(config: Any, *names: str) -> Any:
    return type(config)(**{**vars(config), "clients": names})


# --- a method of one's own ------------------------------------------------------------------------------


class Lacking(FakeGrid):
    """A grid whose node 1001 has no module of that name."""

    module = "own_method"

    def _answer(self, message: Message, node: int) -> Message:
        if node != 1001:
            return super()._answer(message, node)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "path", [path for path in sys.path if "own-folder" not in path])
            patch.delitem(sys.modules, self.module, raising=False)
            return super()._answer(message, node)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    folder = tmp_path / "own-folder"
    folder.mkdir()
    (folder / f"{Lacking.module}.py").write_text(OWN_METHOD)
    monkeypatch.syspath_prepend(str(folder))
    yield f"{Lacking.module}:Pulled(strength=0.5, period=2)"
    sys.modules.pop(Lacking.module, None)


def test_a_method_of_ones_own_is_the_same_everywhere(tmp_path: Path, own: str) -> None:
    plan = plan_of(tmp_path, methods=own, rounds=5)
    assert_same(play(plan, FakeGrid(places(plan, tmp_path))).run, in_process(plan))


def test_a_site_without_the_module_is_named_with_the_way_out(
    tmp_path: Path, own: str, caplog: pytest.LogCaptureFixture
) -> None:
    plan = plan_of(tmp_path, methods=own, rounds=2)
    coordinator = play(plan, Lacking(places(plan, tmp_path)))
    assert coordinator.accepted.tolist() == [2, 0, 2]
    says = "b is left out: it answers with an error (the module own_method is not installed: install it"
    assert says in caplog.text


# --- who is there --------------------------------------------------------------------------------------


def test_with_fewer_nodes_than_slots_the_others_idle(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan = plan_of(tmp_path, methods="fedskip(period=3)", rounds=3)
    grid = FakeGrid(places(plan, tmp_path))
    grid.away = {1001}
    coordinator = play(plan, grid, rounds=2)
    assert "1 of 3 slots idle" in caplog.text
    assert len(grid.trained()) == 2 * 2
    sizes, cohorts = coordinator.sizes, [coordinator.run.server.cohort(round) for round in range(2)]
    for slot, seen in enumerate(coordinator.run.server.seen):
        assert seen == sum(sizes[cohort[slot]] for cohort in cohorts if cohort[slot] != 1)


def test_others_stand_in_for_those_who_are_away(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, 5, methods="fedskip(period=4)", cohort=3, rounds=4)
    grid = FakeGrid(places(plan, tmp_path))
    grid.away = {1000, 1001}
    coordinator = play(plan, grid, rounds=3)
    assert len(grid.trained()) == 9
    assert (coordinator.run.server.seen > 0).all()
    assert {message.metadata.dst_node_id for message in grid.trained()} == {1002, 1003, 1004}


def test_a_node_that_comes_back_is_used_again_under_another_number(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, methods="scaffold", rounds=6)
    grid = FakeGrid(places(plan, tmp_path))

    def spoil(order: Message, reply: Message) -> Message | None:
        round = (
            order.content["visit"].get("round", -1)
            if order.metadata.message_type == "train"
            else -1
        )
        if round == 1:
            grid.away = {1001}
        if round == 3:
            grid.away = set()
            grid.configs[2001] = grid.configs.pop(1001, None) or grid.configs[2001]
        return reply

    grid.spoil = spoil
    coordinator = play(plan, grid)
    assert coordinator.accepted.tolist() == [6, 6, 6]
    assert 2001 in {message.metadata.dst_node_id for message in grid.trained()}


def test_nobody_in_time_is_an_error_and_not_for_ever(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, agreed={"fewest": 2, "wait": 0.2})
    grid = FakeGrid(places(plan, tmp_path))
    grid.away = {1000, 1001}
    with pytest.raises(NoClients, match=r"1 of 3 clients were there after 0\.2 s; 2 are needed"):
        play(plan, grid)


def test_a_round_in_which_nobody_answers_is_played_again(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, methods="scaffold(period=2)", rounds=4)
    failures = []

    def spoil(order: Message, reply: Message) -> Message:
        about = order.metadata
        if (
            about.message_type == "train"
            and order.content["visit"]["round"] == 2
            and len(failures) < 5
        ):
            failures.append(about.dst_node_id)
            return failed(order, reply)
        return reply

    coordinator = play(plan, FakeGrid(places(plan, tmp_path), spoil))
    assert len(failures) == 5
    assert coordinator.accepted.max() == 4
    assert [row["round"] for row in coordinator.rows] == [2, 4]


def test_nobody_who_answers_for_long_is_an_error(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, agreed={"wait": 0.2, "timeout": 0.1})
    with pytest.raises(NoClients, match="no client has answered for"):
        play(plan, FakeGrid(places(plan, tmp_path), spoiled({0}, {1000, 1001, 1002}, failed)))


def test_strangers_and_impostors_are_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan = plan_of(tmp_path, rounds=1)
    configs = places(plan, tmp_path)
    configs[1003] = {**configs[1000], "name": "zz"}
    configs[1004] = {**configs[1000], "name": "b"}
    configs[1005] = {**configs[1000], "name": "c"}
    grid = FakeGrid(configs)
    grid.registered = {1004: "a"}
    coordinator = play(plan, grid)
    assert coordinator.accepted.tolist() == [1, 1, 1]
    assert {message.metadata.dst_node_id for message in grid.trained()} == {1000, 1001, 1002}
    for words in (
        "is of no client of this federation",
        "is not that of its key: a",
        "is that of another node",
    ):
        assert words in caplog.text


def test_a_site_tells_the_server_nothing_of_its_data_when_it_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan = plan_of(tmp_path, rounds=1, agreed={"wait": 0.1})
    configs = places(plan, tmp_path)
    file = tmp_path / "secret.npz"
    np.savez(file, x=np.full((40, 2), np.nan, np.float32), y=np.zeros(40, np.int64))
    configs[1001] = {"name": "b", "data": str(file), "state_dir": str(tmp_path / "b")}
    grid = FakeGrid(configs)
    play(plan, grid)
    told = [
        grid._answer(message, 1001) for message in grid.sent if message.metadata.dst_node_id == 1001
    ]
    assert told
    assert all("InputError; the client's log says more" in reply.error.reason for reply in told)
    assert all("nan" not in reply.error.reason for reply in told)
    assert "must be finite" in caplog.text


def test_both_sides_note_what_passed_with_the_same_digests(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, rounds=1)
    grid = FakeGrid(places(plan, tmp_path))
    book = tmp_path / "server.jsonl"
    for _ in Coordinator(plan, connect(plan, grid, book), tmp_path / "checkpoints").rounds():
        pass
    server = [json.loads(text) for text in book.read_text().splitlines()]
    site = [
        json.loads(text)
        for text in (tmp_path / "b" / "state" / "audit.jsonl").read_text().splitlines()
    ]
    assert [one["kind"] for one in site] == ["query.hello"] * 2 + ["train"] * 2 + ["evaluate"] * 2
    for one in site:
        other = "sent" if one["way"] == "received" else "received"
        matches = [
            entry
            for entry in server
            if entry["way"] == other and entry.get("digest") == one["digest"]
        ]
        assert [entry["bytes"] for entry in matches][:1] == [one["bytes"]]


# --- who stands in for whom ----------------------------------------------------------------------------


def test_those_who_are_there_keep_their_slots() -> None:
    cohort = np.array([4, 1, 7, 2])
    filled = stand_in(cohort, [1, 2, 5, 6], seed=3, round=2)
    assert filled[1] == 1
    assert filled[3] == 2
    assert sorted(filled[[0, 2]]) == [5, 6]
    assert (filled == stand_in(cohort, [1, 2, 5, 6], seed=3, round=2)).all(), (
        "the same whenever it is asked"
    )


def test_the_choice_is_fair() -> None:
    drawn = [stand_in(np.array([0, 1]), [1, 2, 3, 4], seed=0, round=r)[0] for r in range(600)]
    assert np.bincount(drawn, minlength=5)[2:].min() > 150


@pytest.mark.parametrize("policy", ["fixed", "cyclic"])
def test_where_slots_have_their_clients_nobody_takes_their_place(policy: str) -> None:
    assert stand_in(np.array([0, 1, 2]), [0, 2, 3], 0, 0, policy).tolist() == [0, -1, 2]
