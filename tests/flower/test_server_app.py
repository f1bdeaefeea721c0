"""What the server leaves behind: the folder of a study."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedskip[flower]'")

from flwr.app import Message

import fedskip
from fedskip.config import dump
from fedskip.errors import InputError
from fedskip.flower.config import RUN, ClientConfig, FederationConfig
from fedskip.flower.folder import write_folder, write_local
from fedskip.flower.plan import FederationPlan
from fedskip.flower.server_app import serve
from fedskip.records.checkpoint import list_checkpoints, load_checkpoint
from fedskip.records.table import Table
from fedskip.report.results import Results
from grid import FakeGrid, data_file, in_process, places, plan_of
from studies import as_table


def federation(folder: Path, **keys: Any) -> FederationPlan:
    """The folder of a small federation, and its plan."""
    plan = plan_of(folder.parent, **keys)
    write_folder(folder, plan.config, dump(plan.spec, [plan.setting]), [])
    return plan


def test_the_folder_is_that_of_a_study(tmp_path: Path) -> None:
    folder = tmp_path / "federation"
    plan = federation(folder, methods="fedskip(period=3)", rounds=7)
    serve(folder, FakeGrid(places(plan, tmp_path)))  # type: ignore[arg-type]
    results = Results.read(folder / RUN)
    assert results.finished
    assert [row["round"] for row in as_table(results.history)] == [3, 6]
    [summary] = as_table(results.summary)
    assert summary["rounds"] == 7
    assert summary["merged"] is not None
    assert summary["best"] == max(row["test_accuracy"] for row in as_table(results.history))
    assert len(Table.read(folder / RUN / "sites.csv")) == 2 * 3
    assert Table.read(folder / RUN / "clients.csv").column("client") == ["a", "b", "c"]
    for kind in ("last", "best", "merged"):
        file = folder / RUN / "models" / f"pool.FedSkip-3.s5.{kind}.safetensors"
        assert fedskip.load(file, plan_module(plan)) is not None
    assert (folder / RUN / "report.html").exists()


def test_the_clients_of_a_local_folder_have_all_they_need(tmp_path: Path) -> None:
    """Their own configuration, as their nodes get it, and their share of the data."""
    data = {"name": str(data_file(tmp_path))}
    spec = plan_of(tmp_path, data=data, methods="fedskip(period=2)", rounds=2).spec
    folder = tmp_path / "federation"
    write_local(folder, 3, spec, wait=0.5, timeout=0.2)
    names = FederationConfig.read(folder).clients
    sites = [vars(ClientConfig.read(folder / "clients" / name)) for name in names]
    serve(folder, FakeGrid(dict(enumerate(sites, 1000))))  # type: ignore[arg-type]
    assert Table.read(folder / RUN / "sites.csv").column("client") == list(names)
    plan = FederationPlan.read(folder)
    expected, _ = in_process(plan, finish=False).server.save()
    tensors, _ = load_checkpoint(
        list_checkpoints(folder / RUN / "checkpoints", plan.setting.name)[-1][1]
    )
    for name, tensor in expected.items():
        assert torch.equal(tensors[f"{plan.setting.run_names[0]}/server.{name}"], tensor), name
    lines = (folder / "audit.jsonl").read_text().splitlines()
    seen = {(entry["way"], entry["digest"]) for entry in map(json.loads, lines)}
    for name in names:
        book = folder / "clients" / name / "state" / "audit.jsonl"
        entries = [json.loads(line) for line in book.read_text().splitlines()]
        assert [entry["kind"] for entry in entries[2:]] == ["train"] * 4 + ["evaluate"] * 2
        others = {"sent": "received", "received": "sent"}
        assert all((others[entry["way"]], entry["digest"]) in seen for entry in entries)


def plan_module(plan: FederationPlan) -> Any:
    from fedskip.models.construction import initial_model

    return initial_model(plan.setting.model, plan.sizes, None, 0, "init")


def test_killed_after_any_step_it_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "federation"
    plan = federation(folder, methods="scaffold", rounds=4)
    sites = places(plan, tmp_path)
    whole = tmp_path / "whole"
    write_folder(whole, plan.config, dump(plan.spec, [plan.setting]), [])
    serve(whole, FakeGrid(places(plan, tmp_path / "others")))  # type: ignore[arg-type]

    class Died(Exception):
        pass

    for kind, round in (("train", 1), ("evaluate", 2), ("train", 3)):

        def die(order: Message, reply: Message, kind: str = kind, round: int = round) -> Message:
            if kind == order.metadata.message_type and _round(folder) == round:
                raise Died
            return reply

        with pytest.raises(Died):
            serve(folder, FakeGrid(sites, die))  # type: ignore[arg-type]
    serve(folder, FakeGrid(sites))  # type: ignore[arg-type]
    for name in ("history.csv", "sites.csv", "summary.csv"):
        one, other = (Table.read(each / RUN / name) for each in (folder, whole))
        ignored = {"seconds"}
        assert [{k: v for k, v in row.items() if k not in ignored} for row in one] == [
            {k: v for k, v in row.items() if k not in ignored} for row in other
        ]
    lines = [json.loads(line) for line in (folder / RUN / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3, 4]


def test_one_whose_checkpoints_are_gone_keeps_its_results(tmp_path: Path) -> None:
    folder = tmp_path / "federation"
    plan = federation(folder, rounds=2)
    serve(folder, FakeGrid(places(plan, tmp_path)))  # type: ignore[arg-type]
    shutil.rmtree(folder / RUN / "checkpoints")
    before = {file: file.read_bytes() for file in (folder / RUN).glob("*.csv")}
    with pytest.raises(
        InputError, match=r"no checkpoints of pool .* its history\.csv and summary\.csv"
    ):
        serve(folder, FakeGrid(places(plan, tmp_path / "again")))  # type: ignore[arg-type]
    assert {file: file.read_bytes() for file in (folder / RUN).glob("*.csv")} == before
    (folder / RUN / "study.yaml").unlink()
    with pytest.raises(InputError, match=r"no checkpoints of pool"):
        serve(folder, FakeGrid(places(plan, tmp_path / "again")))  # type: ignore[arg-type]
    assert not (folder / RUN / "study.yaml").exists(), "it would be of another secret seed"


def _round(folder: Path) -> int:
    file = folder / RUN / "rounds.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def test_a_secret_seed_is_drawn_once(tmp_path: Path) -> None:
    folder = tmp_path / "federation"
    plan = plan_of(tmp_path, seeds=None)
    text = dump(plan.spec, [plan.setting]).replace(f"seeds: [{plan.seed}]\n", "")
    write_folder(folder, plan.config, text, [])
    assert FederationPlan.read(folder).seed != FederationPlan.read(folder).seed
    serve(folder, FakeGrid(places(plan, tmp_path)))  # type: ignore[arg-type]
    assert FederationPlan.read(folder).seed == FederationPlan.read(folder).seed
    assert str(FederationPlan.read(folder).seed) in (folder / RUN / "study.yaml").read_text()
