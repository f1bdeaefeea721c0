"""Trains the settings of a study, each from checkpoint to checkpoint."""

from __future__ import annotations

import contextlib
import gc
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fedskip.files import write_bytes
from fedskip.records.checkpoint import save_checkpoint
from fedskip.records.table import Row
from fedskip.study.context import StudyContext
from fedskip.study.machine import Machine, suited
from fedskip.study.prepare import Prepared
from fedskip.study.setting_plan import Group, SettingPlan
from fedskip.study.workers import Forked, InProcess, Workers


class GroupsFailed(RuntimeError):
    """Some groups of runs failed again and again; the results of the others are written."""


@dataclass
class Trained:
    """What the settings of a study came to."""

    summary: list[Row] = field(default_factory=list)
    clients: list[Row] = field(default_factory=list)
    failed: GroupsFailed | None = None  # some runs were set aside, and are not in it


def train_settings(context: StudyContext, prepared: list[Prepared]) -> Trained:
    """Train one setting after another; the list is empty afterwards."""
    trained, engine = Trained(), ""  # as it was shown last
    while prepared:
        context.stop.at_checkpoint()
        one = prepared.pop(0)
        if one.setting.key in context.finished:
            trained.summary += context.finished.summary(one.setting)
            trained.clients += context.finished.clients(one.setting)
            continue
        plan = make_setting_plan(context, one)
        plan.restore(context.folder.path / "checkpoints", context.anyway)
        context.finished.drop_others()
        plan.cut(context.history)
        choice = one.choice.line() if one.choice and one.choice.why else ""
        progress = plan.progress([choice] if choice not in ("", engine) else ())
        engine = choice
        context.progress.started(progress, context.rows_of([one.setting]))
        several = len(plan.groups) > 1 and plan.machine.apart
        with contextlib.closing(Forked() if several else InProcess()) as workers:
            train_setting(plan, context, workers, last=not prepared)
        context.progress.finished()
        trained.summary += plan.summarise(context.history.table)
        write_models(context.folder.path / "models", plan)
        trained.clients += plan.client_rows()
        del plan, one
        gc.collect()  # engines and their graphs hold each other
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # the next setting looks how much memory there is
    return trained


def make_setting_plan(context: StudyContext, prepared: Prepared) -> SettingPlan:
    """Plan a setting, and note what it resolved to in study.yaml."""
    noted, spec = context.noted(prepared.setting).get("machine", {}), context.spec
    plan = SettingPlan(
        prepared, Machine.of(suited(spec, noted), prepared), study=context.folder.identity,
        rows=spec.rows, checkpoint_every=spec.checkpoint_every, noted=noted,
    )  # fmt: skip
    context.note(prepared, plan.facts())
    context.write([prepared])
    return plan


def train_setting(
    plan: SettingPlan, context: StudyContext, workers: Workers, *, last: bool
) -> None:
    """Train a setting from where it is to its end; `last`: no other setting follows.

    Progress and trackers get rows as they come. Those of several groups are written at the next checkpoint,
    in an order that does not depend on which group was first.
    """
    order = {record.name: place for place, record in enumerate(plan.records)}
    while plan.round < plan.setting.rounds:
        until = plan.next_checkpoint()
        behind = [group for group in plan.groups if group.round < until]
        later: list[Row] = []
        for rows in workers.advance(behind, until, context.progress.preparing):
            context.rows_found(rows)
            if len(plan.groups) == 1:
                context.history.append(rows)
            else:
                later += rows
        later.sort(key=lambda row: (row["round"], order[row["run"]]))
        context.history.append(later)
        context.history.sync()
        save_checkpoints(plan, context, behind, until)
        context.folder.refuse_gone()
        context.progress.checkpoint(until)
        if not last or until < plan.setting.rounds:
            context.stop.at_checkpoint()


def save_checkpoints(
    plan: SettingPlan, context: StudyContext, behind: list[Group], round: int
) -> None:
    """Write a checkpoint of all groups, or where not all are at this round, of those that came to it."""
    files = {plan.key: plan.groups}
    if any(group.round != round for group in plan.groups):
        files = {plan.checkpoint_key(group): [group] for group in behind}
    for key, groups in files.items():
        tensors, notes = plan.checkpoint(groups, round)
        history = context.history.of(notes["runs"], round)
        folder = context.folder.path / "checkpoints"
        save_checkpoint(folder, key, round, tensors, notes, history)


def write_models(folder: Path, plan: SettingPlan) -> None:
    """Write the last, the best and, where there is one, the final model of every run."""
    for name, content in plan.models():
        write_model(folder / name, content)


def write_model(path: Path, content: bytes | None) -> None:
    """Write a model; None: a study that was made longer may have left one that is no more."""
    if content is None:
        path.unlink(missing_ok=True)
    else:
        write_bytes(path, content)
