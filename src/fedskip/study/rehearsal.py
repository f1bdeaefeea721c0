"""Tries a setting before anything is written: do model, loss, metric and methods fit data and engine?"""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from fedskip.config.study import StudySpec
from fedskip.contract import check_conduct
from fedskip.engine import Job, Loop, Plan, Task, Trained
from fedskip.engine.arithmetic import Arithmetic
from fedskip.engine.evaluate import Evaluator
from fedskip.engine.stacked import Stack
from fedskip.errors import InputError, first_line
from fedskip.federation import Run
from fedskip.methods.base import Method
from fedskip.methods.grammar import text
from fedskip.models import MODELS
from fedskip.models.forms import batch_norms
from fedskip.models.metrics import KINDS, LOSSES, Metric, cross_entropy, per_sample
from fedskip.models.vector import on
from fedskip.rng import torch_scope
from fedskip.study.choose_engine import EngineChoice
from fedskip.study.machine import engine_of
from fedskip.study.prepare import Prepared

SAMPLES = 2  # enough for a BatchNorm
# how far engines may be apart after a step: of a tensor's change, and of all
FAR = {torch.float64: (1e-4, 1e-6), torch.float32: (0.05, 1e-3)}


def rehearse(prepared: Prepared, spec: StudySpec) -> EngineChoice:
    """Evaluate two samples and play a round of one step with every method; refuse what fails.

    Returns:
        The engine. One that `auto` has chosen is tried, and where it fails it is the loop.
    """
    with torch_scope("rehearsal", device=prepared.device), prepared.task.arithmetic.kernels():
        _measure(prepared)
        loop = Loop(prepared.task)
        _score(prepared)
        jobs = [_conduct(prepared, method, loop) for method in prepared.setting.methods]
        choice = engine_of(spec, prepared)
        if choice.engine == "stacked":
            try:
                _try_stacked(prepared, jobs, choice.streams)
            except InputError as refused:
                if spec.engine != "auto":
                    raise
                return EngineChoice.instead(refused)
        return choice


def _try_stacked(prepared: Prepared, jobs: list[Job], streams: int) -> None:
    """Refuse what the stacked engine cannot train, or would not train as the loop does."""
    with _named("engine", "cannot be 'stacked' for this model, loss and metric", _model(prepared)):
        Evaluator(prepared.task, stacked=not streams)(jobs[0].x[:1], _samples(prepared))
        for job in jobs:
            _stack(prepared.task, job, streams)
    if _own(prepared):  # ours are compared in tests
        _compare(prepared, jobs[0], streams)


def _measure(prepared: Prepared) -> None:
    """The model takes the samples, and loss and metric take its output."""
    task = prepared.task
    module = copy.deepcopy(task.module).eval()
    inputs, targets = task.samples.take(on(prepared.device, _samples(prepared)))
    words = torch.arange(len(inputs)).to(inputs.device)
    _transform("data.train_transform", task.train_transform, inputs, words)
    inputs = _transform("data.test_transform", task.test_transform, inputs)
    output = _check_output(prepared, module, inputs, targets)
    _check_measures(prepared, output, targets)
    _check_training(prepared, module, inputs, targets)


def _check_output(prepared: Prepared, module: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """The model's output, which has a score for every class where there are classes."""
    task, data, model = prepared.task, prepared.dataset, _model(prepared)
    cannot = f"cannot take {_describe_samples(prepared, inputs)}"
    with _named("model", cannot, model), _untouched("model", inputs), torch.no_grad():
        output = task.arithmetic.compute(module, inputs)
    if not isinstance(output, Tensor):
        fix = "return the scores or numbers alone"
        raise InputError("model", "must give a tensor", type(output).__name__, fix)
    if task.loss is cross_entropy:
        classes = data.classes or 1
        if output.dim() < 2 or output.shape[1] < classes:
            rule = f"must give a score for each of the {classes} classes of {data.name!r}"
            fix = f"for a sample it gives {tuple(output.shape[1:])}"
            raise InputError("model", rule, model, fix)
        if targets.is_floating_point():
            rule = f"cannot be cross_entropy: {data.name!r} has no classes"
            fix = "store classes as whole numbers; for others, set loss=squared_error, "
            raise InputError("loss", rule, ..., f"{fix}metric=minus_squared_error")
        _check_labels(prepared, output.shape[1])
    return output


def _check_measures(prepared: Prepared, output: Tensor, targets: Tensor) -> None:
    """Loss and metrics give one number per sample, which does not depend on other samples."""
    task = prepared.task
    for metric in task.metrics:
        _refuse_unfit(metric, output.cpu(), targets.cpu())
    shapes = f"{tuple(output.shape)} of the model and {tuple(targets.shape)}"
    shapes += f" of {prepared.dataset.name!r}"
    each = [("metric", metric.function, metric.name) for metric in task.metrics if not metric.whole]
    for name, measure, called in (("loss", task.loss, prepared.setting.loss), *each):
        with (
            _named(name, f"cannot compare the {shapes}", called),
            _untouched(name, output, targets),
        ):
            together = per_sample(measure(output, targets), len(targets), name)[:1].float()
            alone = per_sample(measure(output[:1], targets[:1]), 1, name).float()
        if not torch.allclose(together, alone, rtol=0.01, atol=1e-3, equal_nan=True):
            fix = f"compare the shapes {shapes}: torch may spread one over the other"
            rule = "must give every sample a number that does not depend on the samples beside it"
            raise InputError(name, rule, float(together[0]), fix)


def _check_training(prepared: Prepared, module: nn.Module, inputs: Tensor, targets: Tensor) -> None:
    """The loss is finite and has a gradient, and the module repeats itself."""
    task, setting = prepared.task, prepared.setting
    cannot = f"cannot be trained on {_describe_samples(prepared, inputs)}"
    with _named("model", cannot, _model(prepared)), _untouched("model", inputs):
        loss = task.loss(task.arithmetic.compute(module.train(), inputs), targets).mean()
        loss.backward()
    if not bool(loss.isfinite()):
        fix = "look at what the model gives for a sample, and at the scale of its inputs"
        raise InputError("loss", "must be finite before training begins", float(loss), fix)
    if not task.draws:
        _repeat(task, module, inputs)
    if batch_norms(module) and _lonely(prepared):
        rule = "leaves a batch of one sample, with which this model cannot be trained"
        with _named("local.batch", rule, setting.local.batch), torch.no_grad():
            task.arithmetic.compute(module, inputs[:1])


def _describe_samples(prepared: Prepared, inputs: Tensor) -> str:
    """The samples and their shape, for errors."""
    shape = tuple(inputs.shape[1:])
    words = f"the samples of {prepared.dataset.name!r}, which have the shape {shape}"
    return words if inputs.is_floating_point() else f"{words} and are whole numbers, as ids are"


def _refuse_unfit(metric: Metric, output: Tensor, targets: Tensor) -> None:
    """Refuse a metric that compares something else."""
    if metric.of and not any(KINDS[kind][0](output, targets) for kind in metric.of):
        fix = "set metric=minus_squared_error for numbers, metric=label_accuracy for labels"
        fix = "for classes, set metric=accuracy" if "numbers" in metric.of else fix
        compares = " or ".join(KINDS[kind][1] for kind in metric.of)
        gives = f"a model that gives {tuple(output.shape[1:])} for a sample"
        raise InputError(
            "metric", f"cannot be {metric.name}, which compares {compares}", gives, fix
        )


def _score(prepared: Prepared) -> None:
    """Score the first model by metrics of the whole test set, on all of it."""
    if any(metric.whole for metric in prepared.metrics):
        x, test = (
            prepared.start(seed := prepared.setting.seeds[0], "init"),
            prepared.division(seed).evaluated,
        )
        with _named("metric", f"cannot score {len(test):,} test samples", prepared.setting.metric):
            Evaluator(prepared.task, stacked=False)(x[None], test, further=True)


def _transform(
    field: str, transform: Callable[..., Tensor] | None, inputs: Tensor, *words: Tensor
) -> Tensor:
    """What a transform of the data set makes of some samples."""
    if transform is None:
        return inputs
    with (
        _named(field, f"cannot take samples of the shape {tuple(inputs.shape)}", ...),
        _untouched(field, inputs),
    ):
        transformed = transform(inputs, *words)
    if len(transformed) != len(inputs):
        raise InputError(
            field, f"must give as many samples as it is given, {len(inputs)}", len(transformed)
        )
    return transformed


def _repeat(task: Task, module: nn.Module, inputs: Tensor) -> None:
    """Refuse a module that remembers in Python what engines do not know of."""
    state, outputs = {name: tensor.detach().clone() for name, tensor in _tensors(module)}, []
    for _ in range(2):
        with torch.no_grad():
            for name, tensor in _tensors(module):
                tensor.copy_(state[name])
            outputs.append(task.arithmetic.compute(module, inputs))
    if not torch.allclose(outputs[0], outputs[1], rtol=1e-3, atol=1e-5):
        fix = "keep what it is to remember in buffers of floating-point numbers, which travel with the model"
        raise InputError("model", "must give the same for the same inputs and weights", fix=fix)


def _tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """All of a module's, also buffers that are part of no `state_dict`."""
    return [*module.named_parameters(), *module.named_buffers()]


def _check_labels(prepared: Prepared, scores: int) -> None:
    labels = prepared.dataset.samples.labels()
    for division in prepared.divisions.values():
        for part in (division.clients.indices, division.test, division.validation):
            classes = labels[part]
            if classes.size and not 0 <= classes.min() <= classes.max() < scores:
                rule = f"must hold classes from 0 to {scores - 1}, for which the model has scores"
                raise InputError(
                    "data.y", rule, int(classes.min() if classes.min() < 0 else classes.max())
                )


def _lonely(prepared: Prepared) -> bool:
    """Whether a client has a batch of a single sample."""
    local = prepared.setting.local
    sizes = np.concatenate([division.clients.sizes for division in prepared.divisions.values()])
    last = sizes % local.batch == 1
    if local.last_batch != "keep":
        last &= (sizes == 1) & (local.small_clients == "short")
    return local.batch == 1 or bool(last.any())


def _conduct(prepared: Prepared, method: Method, loop: Loop) -> Job:
    """Play a round; a method of a user's own is also held against the contract."""
    own = not type(method).__module__.startswith("fedskip.")
    try:
        job = _play(prepared.run(method, prepared.setting.seeds[0]), loop)
    except MemoryError:
        raise
    except Exception as error:  # whatever a user's method may raise
        if own:
            check_conduct(method)  # which knows the rule that it breaks
        if isinstance(error, InputError):
            raise
        fix = f"it says: {type(error).__name__}: {first_line(error)}"
        raise InputError(text(method), "cannot play a round", ..., fix) from error
    if own:
        check_conduct(method)
    return job


def _play(run: Run, loop: Loop) -> Job:
    """A round with a merge, in which every slot comes back like the first; gives its job."""
    [job] = run.ready(1)
    job = _short(job)
    y, loss = loop.visit(job, 0)
    k = len(job.x)
    run.absorb(Trained(job, list(range(k)), y.expand_as(job.x), loss.expand(k)))
    run.server.merge(0)
    return job


def _stack(task: Task, job: Job, streams: int) -> Tensor:
    """What the first visit makes of the model, as a stack of one, (P,)."""
    pull, linear, contrast = (
        t is not None for t in (job.terms.mu, job.terms.linear, job.terms.contrast)
    )
    stack = Stack(task, Plan(pull=pull, linear=linear, compile=False, streams=streams), contrast)
    with torch.no_grad():
        return stack.stepper.once(*stack.opening(job))[0][0]


def _compare(prepared: Prepared, job: Job, streams: int) -> None:
    """Refuse a module that the stacked engine would not train as the loop does.

    One that assigns to its buffers, say: the loop sees them change, a stack does not. It is tried in float64,
    or, where the module insists on another precision, in float32.
    """
    x = job.x[0].double()
    try:
        task = _in_fp64(prepared.task)
        alone, stacked = _both(task, replace(job, x=job.x.double()), streams)
    except (
        Exception
    ):  # whatever a module in float64 may raise that it does not in float32; or the memory
        task, x = replace(prepared.task, arithmetic=Arithmetic("fp32")), job.x[0]
        alone, stacked = _both(task, job, streams)
    alone, stacked = alone - x, stacked - x
    (alike, noise), d = FAR[x.dtype], task.layout.trainable
    for span in task.layout.spans:
        here, kin = slice(span.start, span.stop), slice(0, d) if span.start < d else slice(d, None)
        near = alike * alone[here].norm() + noise * alone[kin].norm()
        if (alone[here] - stacked[here]).norm() > near:
            fix = f"{span.name!r} comes out differently than in the loop; use engine=loop"
            raise InputError("engine", "cannot be 'stacked' for this model", _model(prepared), fix)


def _both(task: Task, job: Job, streams: int) -> tuple[Tensor, Tensor]:
    """The first model of a job after a step, as the loop and as the stacked engine trains it."""
    with task.arithmetic.kernels():
        return Loop(task).visit(job, 0)[0], _stack(task, job, streams)


def _in_fp64(task: Task) -> Task:
    def transformed(inputs: Tensor, words: Tensor) -> Tensor:
        assert task.train_transform is not None
        return task.train_transform(inputs, words).double()

    return replace(
        task, module=copy.deepcopy(task.module).double(), samples=task.samples.to(task.device, torch.float64),
        train_transform=None if task.train_transform is None else transformed, arithmetic=Arithmetic("fp64"),
    )  # fmt: skip


def _model(prepared: Prepared) -> str:
    model = prepared.setting.model
    return model["name"] if isinstance(model, Mapping) else type(prepared.task.module).__name__


def _own(prepared: Prepared) -> bool:
    """Whether the model or the loss is a user's own."""
    model = prepared.setting.model
    ours = isinstance(model, Mapping) and model["name"] in MODELS
    return not ours or prepared.task.loss not in LOSSES.values()


def _samples(prepared: Prepared) -> np.ndarray:
    return prepared.division(prepared.setting.seeds[0]).clients[0][:SAMPLES]


def _short(job: Job) -> Job:
    """The job with its first visit as short as it can be."""
    first = job.routes[0]
    short = replace(first, batches=first.batches[:1, :SAMPLES], eta=first.eta[:1])
    return replace(job, routes=[short, *job.routes[1:]])


@contextmanager
def _untouched(field: str, *tensors: Tensor) -> Iterator[None]:
    """Refuse what changes the tensors that it is given: engines use them again."""
    before = [tensor.detach().clone() for tensor in tensors]
    yield
    same = (
        torch.allclose(t, b, rtol=0, atol=0, equal_nan=True)
        for t, b in zip(tensors, before, strict=True)
    )
    if not all(same):
        fix = "write y = x * 2 in the place of x *= 2, and relu without inplace=True on what it is given"
        raise InputError(field, "must not change what it is given in place", fix=fix)


@contextmanager
def _named(field: str, rule: str, value: object) -> Iterator[None]:
    """Torch's errors as ours: what is wrong with the field, in torch's words."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # whatever a user's module or function may raise
        raise InputError(field, rule, value, f"torch says: {first_line(error)}") from error
