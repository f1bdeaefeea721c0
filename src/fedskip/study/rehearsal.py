"""Tries a setting before anything is written: do model, loss, metric and methods fit data and engine?

It also looks for what would make the numbers mean little, and scores the best constant answer. Both are shown
when a setting begins, and noted for its report.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedskip.config.setting import PlannedRun
from fedskip.config.study import StudySpec
from fedskip.contract import check_conduct
from fedskip.engine import Job, Loop, Plan, Task, Trained
from fedskip.engine.arithmetic import Arithmetic
from fedskip.engine.evaluate import Evaluator
from fedskip.engine.stacked import Stack
from fedskip.errors import InputError, first_line, require
from fedskip.methods.grammar import text
from fedskip.models import MODELS
from fedskip.models.forms import batch_norms
from fedskip.models.metrics import (
    COMPARED,
    LOSSES,
    Measure,
    Metric,
    MetricFailed,
    binary_cross_entropy,
    cross_entropy,
    per_sample,
)
from fedskip.models.vector import on
from fedskip.rng import torch_scope
from fedskip.study.machine import EngineChoice, Machine, choose_engine
from fedskip.study.prepare import Prepared

SAMPLES = 2  # enough for a BatchNorm
# how far engines may be apart after a step: of a tensor's change, and of all
APART = {torch.float64: (1e-4, 1e-6), torch.float32: (0.05, 1e-3)}

# training samples whose features are looked at, test samples that are scored at a time
SOME = 10_000
SCORED = 256  # test samples that an undefined metric is tried with at a time
FAR = 10.0  # from unit scale


def rehearse(prepared: Prepared, spec: StudySpec) -> Machine:
    """Evaluate two samples and play a round of one step with every method; refuse what fails.

    Returns:
        The machine with its engine. One that `auto` has chosen is tried, and where it fails it is the loop.
    """
    with torch_scope("rehearsal", device=prepared.device), prepared.task.arithmetic.kernels():
        samples = prepared.division(prepared.setting.seeds[0]).clients[0][:SAMPLES]
        _try_model(prepared, samples)
        loop = Loop(prepared.task)
        setting = prepared.setting
        first = [run for run in setting.runs if run.seed == setting.seeds[0]]
        jobs = [_try_method(prepared, planned, loop) for planned in first]
        choice = choose_engine(spec, prepared)
        if choice.engine == "stacked":
            try:
                _try_stacked(prepared, samples, jobs, choice.streams)
            except InputError as refused:
                if spec.engine != "auto":
                    raise
                choice = EngineChoice.instead(refused)
        return Machine.of(spec, prepared, choice)


@contextmanager
def _trying(field: str, rule: str, value: object, *tensors: Tensor) -> Iterator[None]:
    """Torch's errors as ours: what is wrong with the field, in torch's words.

    What changes the tensors that it is given is refused: engines use them again.
    """
    before = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # whatever a user's module or function may raise
        raise InputError(field, rule, value, f"torch says: {first_line(error)}") from error
    for tensor, old in zip(tensors, before, strict=True):
        if not torch.allclose(tensor, old, rtol=0, atol=0, equal_nan=True):
            fix = "write y = x * 2 in the place of x *= 2, and relu without inplace=True on what it is given"
            raise InputError(field, "must not change what it is given in place", fix=fix)


# --- model, loss and metric ------------------------------------------------------------------------------


def _try_model(prepared: Prepared, samples: np.ndarray) -> None:
    """The model takes the samples and can be trained, and loss and metric take its output."""
    task, name, data = prepared.task, _model_name(prepared), prepared.dataset.name
    module = copy.deepcopy(task.module).eval()
    inputs, targets = task.samples.take(on(prepared.device, samples))
    place = torch.arange(len(inputs)).to(inputs.device)
    training = None
    if task.train_transform is not None:
        training = _transformed("train", data, task.train_transform, inputs, place)
    if task.test_transform is not None:
        inputs = _transformed("test", data, task.test_transform, inputs)
    taken = f"the samples of {data!r}, which have the shape {tuple(inputs.shape[1:])}"
    taken += "" if inputs.is_floating_point() else " and are whole numbers, as ids are"

    with _trying("model", f"cannot take {taken}", name, inputs), torch.no_grad():
        output = task.arithmetic.compute(module, inputs)
    if not isinstance(output, Tensor):
        fix = "return the scores or numbers alone"
        raise InputError("model", "must give a tensor", type(output).__name__, fix)
    if task.loss is cross_entropy:
        _refuse_no_classes(prepared, output, targets)
    _try_measures(prepared, output, targets)

    if training is not None:
        changed = (
            f"what data.train_transform gives, which has the shape {tuple(training.shape[1:])}"
        )
        with _trying("model", f"cannot take {changed}", name, training), torch.no_grad():
            task.arithmetic.compute(module, training)
    with _trying("model", f"cannot be trained on {taken}", name, inputs):
        loss = task.loss(task.arithmetic.compute(module.train(), inputs), targets).mean()
        loss.backward()
    if not bool(loss.isfinite()):
        fix = "look at what the model gives for a sample, and at the scale of its inputs"
        raise InputError("loss", "must be finite before training begins", float(loss), fix)
    if not task.draws:
        _refuse_hidden_state(task, module, inputs)
    local = prepared.setting.local
    sizes = np.concatenate([each.clients.sizes for each in prepared.divisions.values()])
    alone = sizes % local.batch == 1  # clients with a batch of a single sample
    if local.last_batch != "keep":
        alone &= (sizes == 1) & (local.small_clients == "short")
    if batch_norms(module) and (local.batch == 1 or alone.any()):
        rule = "leaves a batch of one sample, with which this model cannot be trained"
        with _trying("local.batch", rule, local.batch), torch.no_grad():
            task.arithmetic.compute(module, inputs[:1])


def _transformed(
    kind: str, data: str, transform: Callable[..., Tensor], inputs: Tensor, *place: Tensor
) -> Tensor:
    """Inputs as a transform of the data set gives them."""
    field = f"data.{kind}_transform"
    with _trying(field, f"cannot take the samples of {data!r}", ..., inputs):
        given = transform(inputs, *place)
    rule = f"must give a tensor with a row for each of the {len(inputs)} samples that it gets"
    shape = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
    require(field, isinstance(given, Tensor) and given.shape[:1] == inputs.shape[:1], rule, shape)
    return given


def _refuse_no_classes(prepared: Prepared, output: Tensor, targets: Tensor) -> None:
    """Cross-entropy needs classes, and a score for each."""
    data, classes = prepared.dataset, prepared.dataset.classes or 1
    if output.dim() < 2 or output.shape[1] < classes:
        rule = f"must give a score for each of the {classes} classes of {data.name!r}"
        fix = f"for a sample it gives {tuple(output.shape[1:])}"
        raise InputError("model", rule, _model_name(prepared), fix)
    if targets.is_floating_point():
        rule = f"cannot be cross_entropy: {data.name!r} has no classes"
        fix = "store classes as whole numbers; for others, set loss=squared_error, metric=minus_squared_error"
        raise InputError("loss", rule, fix=fix)
    labels, scores = data.samples.labels(), output.shape[1]
    for division in prepared.divisions.values():
        for part in (division.clients.indices, division.test, division.validation):
            wrong = labels[part][(labels[part] < 0) | (labels[part] >= scores)]
            if wrong.size:
                rule = f"must hold classes from 0 to {scores - 1}, for which the model has scores"
                worst = wrong.min() if wrong.min() < 0 else wrong.max()
                raise InputError("data.y", rule, int(worst))


def _try_measures(prepared: Prepared, output: Tensor, targets: Tensor) -> None:
    """Loss and metrics give one number per sample, which does not depend on other samples."""
    task, setting = prepared.task, prepared.setting
    for metric in task.metrics:
        fits = (COMPARED[kind][0](output.cpu(), targets.cpu()) for kind in metric.of)
        if metric.of and not any(fits):
            fix = "set metric=minus_squared_error for numbers, metric=label_accuracy for labels"
            fix = "for classes, set metric=accuracy" if "numbers" in metric.of else fix
            compares = " or ".join(COMPARED[kind][1] for kind in metric.of)
            gives = f"a model that gives {tuple(output.shape[1:])} for a sample"
            rule = f"cannot be {metric.name}, which compares {compares}"
            raise InputError("metric", rule, gives, fix)
    shapes = f"{tuple(output.shape)} of the model and {tuple(targets.shape)}"
    shapes += f" of {prepared.dataset.name!r}"
    each = [("metric", metric.function, metric.name) for metric in task.metrics if not metric.whole]
    for field, measure, name in (("loss", task.loss, setting.loss), *each):
        with _trying(field, f"cannot compare the {shapes}", name, output, targets):
            together = per_sample(measure(output, targets), len(targets), field)[:1].float()
            alone = per_sample(measure(output[:1], targets[:1]), 1, field).float()
        if field == "metric" and bool(alone.isnan().all()):
            _refuse_undefined(prepared, measure, name)
        if not torch.allclose(together, alone, rtol=0.01, atol=1e-3, equal_nan=True):
            fix = f"compare the shapes {shapes}: torch may spread one over the other"
            rule = "must give every sample a number that does not depend on the samples beside it"
            raise InputError(field, rule, float(together[0]), fix)
    if any(metric.whole for metric in task.metrics):
        seed = setting.seeds[0]
        x, test = prepared.start(seed, "init"), prepared.division(seed).evaluated
        with _trying("metric", f"cannot score {len(test):,} test samples", setting.metric):
            Evaluator(task, stacked=False)(x[None], test, further=True)


def _refuse_undefined(prepared: Prepared, measure: Measure, name: object) -> None:
    """Refuse a metric that is NaN for every test sample."""
    task, test = prepared.task, prepared.division(prepared.setting.seeds[0]).evaluated
    module = copy.deepcopy(task.module).eval()
    with _trying("metric", f"cannot score {len(test):,} test samples", name), torch.no_grad():
        for part in torch.from_numpy(test).split(SCORED):
            inputs, targets = task.samples.take(on(prepared.device, part.numpy()))
            inputs = task.test_transform(inputs) if task.test_transform else inputs
            output = task.arithmetic.compute(module, inputs)
            if not per_sample(measure(output, targets), len(targets), "metric").isnan().all():
                return
    fix = "look at what it computes for the model as it starts"
    raise InputError("metric", f"is nan for each of the {len(test):,} test samples", name, fix)


def _refuse_hidden_state(task: Task, module: nn.Module, inputs: Tensor) -> None:
    """Refuse a module that remembers in Python what engines do not know of."""

    def tensors() -> list[Tensor]:
        """Also those of no `state_dict`. A module may assign to its buffers."""
        return [*module.parameters(), *module.buffers()]

    before, outputs = [tensor.detach().clone() for tensor in tensors()], []
    for _ in range(2):
        with torch.no_grad():
            for tensor, old in zip(tensors(), before, strict=True):
                tensor.copy_(old)
            outputs.append(task.arithmetic.compute(module, inputs))
    if not torch.allclose(outputs[0], outputs[1], rtol=1e-3, atol=1e-5):
        fix = "keep what it is to remember in buffers of floating-point numbers, which travel with the model"
        raise InputError("model", "must give the same for the same inputs and weights", fix=fix)


def _model_name(prepared: Prepared) -> str:
    model = prepared.setting.model
    return model["name"] if isinstance(model, Mapping) else type(prepared.task.module).__name__


# --- methods and engines ---------------------------------------------------------------------------------


def _try_method(prepared: Prepared, planned: PlannedRun, loop: Loop) -> Job:
    """Play a round of one step and merge; gives its job. Every slot comes back like the first.

    A method of a user's own is also held against the contract.
    """
    method = planned.method
    own = not type(method).__module__.startswith("fedskip.")
    try:
        run = prepared.run(planned)
        [job] = run.ready(1)
        first, *others = job.routes
        short = replace(first, batches=first.batches[:1, :SAMPLES], eta=first.eta[:1])
        job = replace(job, routes=[short, *others])
        y, loss = loop.visit(job, 0)
        k = len(job.x)
        run.absorb(Trained(job, list(range(k)), y.expand_as(job.x), loss.expand(k)))
        run.server.merge(0)
    except MemoryError:
        raise
    except Exception as error:  # whatever a user's method may raise
        if own:
            check_conduct(method)  # which knows the rule that it breaks
        if isinstance(error, InputError):
            raise
        fix = f"it says: {type(error).__name__}: {first_line(error)}"
        raise InputError(text(method), "cannot play a round", fix=fix) from error
    if own:
        check_conduct(method)
    return job


def _try_stacked(prepared: Prepared, samples: np.ndarray, jobs: list[Job], streams: int) -> None:
    """Refuse what the stacked engine cannot train, or would not train as the loop does."""
    task, name, model = prepared.task, _model_name(prepared), prepared.setting.model
    with _trying("engine", "cannot be 'stacked' for this model, loss and metric", name):
        Evaluator(task, stacked=not streams)(jobs[0].x[:1], samples)
        for job in jobs:
            _stacked(task, job, streams)
    ours = isinstance(model, Mapping) and model["name"] in MODELS
    if not ours or task.loss not in LOSSES.values():  # ours are compared in tests
        _compare_engines(prepared, jobs[0], streams)


def _compare_engines(prepared: Prepared, job: Job, streams: int) -> None:
    """Refuse a module that the stacked engine would not train as the loop does.

    One that assigns to its buffers, say: the loop sees them change, a stack does not. It is tried in float64,
    or, where the module insists on another precision, in float32.
    """

    def both(task: Task, job: Job) -> tuple[Tensor, Tensor]:
        """How far the first model of a job moves in a step: in the loop, and in the stacked engine."""
        with task.arithmetic.kernels():
            x = job.x[0]
            return Loop(task).visit(job, 0)[0] - x, _stacked(task, job, streams) - x

    def double(inputs: Tensor, place: Tensor) -> Tensor:
        assert task.train_transform is not None
        return task.train_transform(inputs, place).double()

    task = prepared.task
    try:
        in_fp64 = replace(
            task, module=copy.deepcopy(task.module).double(),
            samples=task.samples.to(task.device, torch.float64), arithmetic=Arithmetic("fp64"),
            train_transform=None if task.train_transform is None else double,
        )  # fmt: skip
        alone, stacked = both(in_fp64, replace(job, x=job.x.double()))
    # whatever a module in float64 may raise that it does not in float32; or the memory
    except Exception:
        alone, stacked = both(replace(task, arithmetic=Arithmetic("fp32")), job)
    (alike, noise), d = APART[alone.dtype], task.layout.trainable
    for span in task.layout.spans:
        here, kin = slice(span.start, span.stop), slice(0, d) if span.start < d else slice(d, None)
        near = alike * alone[here].norm() + noise * alone[kin].norm()
        if (alone[here] - stacked[here]).norm() > near:
            fix = f"{span.name!r} comes out differently than in the loop; use engine=loop"
            name = _model_name(prepared)
            raise InputError("engine", "cannot be 'stacked' for this model", name, fix)


def _stacked(task: Task, job: Job, streams: int) -> Tensor:
    """What the first visit makes of the model, as a stack of one, (P,)."""
    terms = job.terms
    pull, linear = terms.mu is not None, terms.linear is not None
    plan = Plan(pull=pull, linear=linear, compile=False, streams=streams)
    stack = Stack(task, plan, terms.contrast is not None)
    with torch.no_grad():
        return stack.stepper.once(*stack.opening(job))[0][0]


# --- what the numbers will mean --------------------------------------------------------------------------


def sanity_checks(prepared: Prepared) -> list[str]:
    """Warnings about a setting: features that are far from unit scale make training slow or fail."""
    data = prepared.dataset
    x = getattr(data.samples, "x", None)
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() != 2:
        return []
    if prepared.scales or data.test_transform:
        return []
    train = prepared.division(prepared.setting.seeds[0]).clients.indices
    some = x[on(x.device, train[:: max(1, len(train) // SOME)])].double()
    mean, std = some.mean(0), some.std(0, correction=0)
    largest, column = torch.maximum(mean.abs(), std).max(0)
    if float(std.square().sum().sqrt()) >= 1 / FAR and float(largest) <= FAR:
        return []
    name = data.input_names[column] if data.input_names else f"column {int(column)}"
    about = f"{name} has mean {mean[column]:,.3g} and standard deviation {std[column]:,.3g}"
    rule = f"features are far from unit scale ({about}), which makes training slow or fail"
    return [f"{rule}: set data.standardize: true"]


def score_of_guessing(prepared: Prepared) -> dict[str, Any]:
    """The score of one answer for all samples, by partition seed; empty where that is unknown.

    The answer is what the training samples are like: how common each class or label is, or their mean.
    """
    task, labels = prepared.task, prepared.dataset.samples.labels()
    metric = task.metrics[0]
    division = prepared.division(prepared.setting.seeds[0])
    inputs, _ = task.samples.take(on(prepared.device, division.clients.indices[:1]))
    inputs = task.test_transform(inputs) if task.test_transform else inputs
    with torch.no_grad():
        shape = copy.deepcopy(task.module).eval()(inputs).shape[1:]
    scores = {}
    for seed, each in prepared.divisions.items():
        answer = _constant_answer(prepared, labels[each.clients.indices], shape)
        with suppress(MetricFailed):
            if answer is not None:
                scores[seed] = _score(metric, answer, labels[each.evaluated])
    scores = {seed: score for seed, score in scores.items() if math.isfinite(score)}
    by_chance = metric.function is cross_entropy
    always = "how common each class is" if by_chance else "the commonest class"
    always = always if prepared.dataset.classes else "the mean of the targets"
    if task.loss is binary_cross_entropy:
        always = "what is commonest for each label"
    return {"always": always, "scores": scores} if scores else {}


def _constant_answer(prepared: Prepared, labels: np.ndarray, shape: torch.Size) -> Tensor | None:
    """The best single output, as far as the loss tells what outputs mean; None where it does not."""
    dtype, classes = prepared.arithmetic.dtype, prepared.dataset.classes
    binary = prepared.task.loss is binary_cross_entropy
    if binary or np.issubdtype(labels.dtype, np.floating):
        mean = torch.from_numpy(np.asarray(labels, np.float64)).mean(0)
        mean = mean.clamp(1e-6, 1 - 1e-6).logit() if binary else mean
        return mean.reshape(shape).to(dtype) if mean.numel() == shape.numel() else None
    if not classes or labels.ndim != 1 or len(shape) != 1 or shape[0] < classes:
        return None
    counts = np.bincount(labels, minlength=shape[0])[: shape[0]]
    return torch.from_numpy(np.log((counts + 1e-3) / counts.sum())).to(dtype)


def _score(metric: Metric, answer: Tensor, labels: np.ndarray) -> float:
    """What a metric says of the same answer for all of these samples."""
    targets = torch.from_numpy(labels)
    targets = targets.to(answer.dtype) if targets.is_floating_point() else targets
    if metric.whole:
        return metric.of_all(answer.expand(len(targets), *answer.shape), targets)
    total = sum(
        float(metric.of_each(answer.expand(len(part), *answer.shape), part).double().sum())
        for part in targets.split(SOME)
    )
    mean = total / len(targets)
    return mean if metric.after is None else metric.after(mean)
