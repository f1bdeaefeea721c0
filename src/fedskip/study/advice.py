"""Said out loud when a setting begins, and noted for its report: what would make its numbers mean little.

A study goes on all the same: nothing here is wrong, only unlikely to be meant.
"""

import copy
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from fedskip.engine.task import Task
from fedskip.models import MODELS
from fedskip.models.measures import binary_cross_entropy, cross_entropy
from fedskip.models.metrics import Metric, MetricFailed
from fedskip.models.vector import on
from fedskip.rng import torch_scope
from fedskip.study.prepare import Prepared

SOME = 10_000  # training samples that are looked at
DRAWS, WILD = 24, (3.0, 30.0, 300.0)  # how often weights are drawn, and how large they are
SURE = 0.75  # a probability that a model should be able to give
FAR = 10.0  # from unit scale
CHUNK = 10_000  # samples that are scored at a time


def advice(prepared: Prepared) -> list[str]:
    """What is odd about a setting, in sentences."""
    return [*_bounded(prepared), *_unscaled(prepared)]


# --- outputs that cannot reach the targets ---------------------------------------------------------------


def _bounded(prepared: Prepared) -> list[str]:
    """Outputs that stay within bounds, whatever the weights: of a last sigmoid, softmax, tanh or ReLU."""
    task, model = prepared.task, prepared.setting.model
    name = model["name"] if isinstance(model, Mapping) else type(task.module).__name__
    ours = isinstance(model, Mapping) and name in MODELS
    classes = task.loss is cross_entropy
    if ours and (classes or name != "perceptron"):  # none of them is; its sigmoid is the paper's
        return []
    labels = prepared.dataset.samples.labels()
    number = max(2, prepared.dataset.classes or 0)
    if classes:  # how far apart the scores of a sample must be
        wanted = 0.0, math.log(SURE / (1 - SURE) * (number - 1))
    elif task.loss is binary_cross_entropy:
        wanted = -math.log(SURE / (1 - SURE)), math.log(SURE / (1 - SURE))
    elif np.issubdtype(labels.dtype, np.floating):
        slack = 0.01 * float(labels.max() - labels.min())
        wanted = float(labels.min()) + slack, float(labels.max()) - slack
    else:
        return []
    inputs, _ = task.samples.take(on(prepared.device, _training(prepared)[:8]))
    if task.test_transform is not None:
        inputs = task.test_transform(inputs)
    found = reach(task, inputs, wanted, apart=classes)
    if found is None:
        return []
    low, high = (f"{value:.3g}" for value in found)
    fix = "leave out its last sigmoid, softmax, tanh or ReLU"
    if classes:
        most = math.exp(found[1]) / (math.exp(found[1]) + number - 1)
        return [
            f"the scores that {name} gives to classes are never more than {high} apart, so no class gets "
            f"more than {most:.0%}: {fix}, as cross_entropy takes scores as they are"
        ]
    if task.loss is binary_cross_entropy:
        return [f"outputs of {name} stay from {low} to {high}, but binary_cross_entropy takes logits: {fix}"]
    range_ = f"{labels.min():.3g} to {labels.max():.3g}"
    return [f"outputs of {name} stay from {low} to {high}, but targets are from {range_}: {fix}"]


def reach(
    task: Task, inputs: Tensor, wanted: tuple[float, float], *, apart: bool = False
) -> tuple[float, float] | None:
    """The range of outputs over wild weights; None if it holds what is wanted, or is not known.

    `apart`: of the distances between the outputs of a sample, from 0.
    """
    module = copy.deepcopy(task.module).eval()
    trained = {name: tensor.detach() for name, tensor in module.named_parameters() if tensor.requires_grad}
    low, high = (0.0, 0.0) if apart else (math.inf, -math.inf)
    with torch_scope("advice", device=inputs.device), torch.no_grad(), task.arithmetic.kernels():
        for draw in range(DRAWS):
            scale = WILD[draw % len(WILD)]
            wild = {name: scale * torch.randn_like(tensor) for name, tensor in trained.items()}
            try:
                output = functional_call(module, wild, (inputs,)).double()
            except Exception:  # whatever a user's module may say to such weights
                return None
            if not bool(output.isfinite().all()):
                return None
            spread = output.amax(1) - output.amin(1) if apart else output
            low, high = min(low, float(spread.min())), max(high, float(spread.max()))
            if low <= wanted[0] and high >= wanted[1]:
                return None
    return low, high


# --- features far from unit scale ------------------------------------------------------------------------


def _unscaled(prepared: Prepared) -> list[str]:
    """Vectors of floating-point numbers that are large, or hardly differ."""
    data = prepared.dataset
    x = getattr(data.samples, "x", None)
    if prepared.scales:
        return []
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() != 2 or data.test_transform:
        return []
    train = _training(prepared)
    some = x[on(x.device, train[:: max(1, len(train) // SOME)])].double()
    mean, std = some.mean(0).abs(), some.std(0, correction=0)
    largest, column = torch.maximum(mean, std).max(0)
    if float(std.square().sum().sqrt()) >= 1 / FAR and float(largest) <= FAR:
        return []
    apart = f"mean {some[:, column].mean():,.3g} and standard deviation {std[column]:,.3g}"
    named = data.input_names[column] if data.input_names else f"column {int(column)}"
    about = f"{named} has {apart}"
    rule = f"features are far from unit scale ({about}), which makes training slow or fail"
    return [f"{rule}: set data.standardize: true"]


# --- guessing --------------------------------------------------------------------------------------------


def guessing(prepared: Prepared) -> dict[str, Any]:
    """What the headline says of one answer for all samples, by partition seed; nothing where that is unknown.

    The answer is what the training samples are like: how common each class or label is, or the mean.
    """
    task, labels = prepared.task, prepared.dataset.samples.labels()
    inputs, _ = task.samples.take(on(prepared.device, _training(prepared)[:1]))
    with torch.no_grad():
        output = copy.deepcopy(task.module).eval()(
            task.test_transform(inputs) if task.test_transform else inputs
        )
    scores = {}
    for seed, division in prepared.divisions.items():
        answer = _answer(prepared, labels[division.clients.indices], output.shape[1:])
        score = None if answer is None else _scored(task.metrics[0], answer, labels[division.evaluated])
        if score is not None and math.isfinite(score):
            scores[seed] = score
    return {"always": _words(prepared), "scores": scores} if scores else {}


def _words(prepared: Prepared) -> str:
    """What the single answer is."""
    if prepared.task.loss is binary_cross_entropy:
        return "what is commonest for each label"
    if not prepared.dataset.classes:
        return "the mean of the targets"
    by_chance = prepared.metrics[0].function is cross_entropy
    return "how common each class is" if by_chance else "the commonest class"


def _answer(prepared: Prepared, labels: np.ndarray, shape: torch.Size) -> Tensor | None:
    """The best single output, as far as the loss tells what outputs mean; None where it does not."""
    dtype, classes = prepared.arithmetic.dtype, prepared.dataset.classes
    floats = np.issubdtype(labels.dtype, np.floating)
    if prepared.task.loss is binary_cross_entropy or floats:
        mean = torch.from_numpy(np.asarray(labels, np.float64)).mean(0)
        if mean.numel() != shape.numel():
            return None
        if prepared.task.loss is binary_cross_entropy:
            mean = mean.clamp(1e-6, 1 - 1e-6).logit()
        return mean.reshape(shape).to(dtype)
    if not classes or labels.ndim != 1 or len(shape) != 1 or shape[0] < classes:
        return None
    counts = np.bincount(labels, minlength=shape[0])[: shape[0]]
    return torch.from_numpy(np.log((counts + 1e-3) / counts.sum())).to(dtype)


def _scored(metric: Metric, answer: Tensor, labels: np.ndarray) -> float | None:
    """What a metric says of the same answer for all of these samples; None where it fails."""
    targets = torch.from_numpy(labels)
    targets = targets.to(answer.dtype) if targets.is_floating_point() else targets
    try:
        if metric.whole:
            return metric.of_all(answer.expand(len(targets), *answer.shape), targets)
        sums = [
            float(metric.of_each(answer.expand(len(part), *answer.shape), part).double().sum())
            for part in targets.split(CHUNK)
        ]
    except MetricFailed:
        return None
    mean = sum(sums) / len(targets)
    return mean if metric.after is None else metric.after(mean)


def _training(prepared: Prepared) -> np.ndarray:
    """The training samples of the first seed."""
    return prepared.division(prepared.setting.seeds[0]).clients.indices
