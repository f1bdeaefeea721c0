"""What would make a setting's numbers mean little, and what a constant answer scores.

Both are shown when a setting begins, and noted for its report. A study goes on all the same.
"""

import copy
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskip.models.metrics import Metric, MetricFailed, binary_cross_entropy, cross_entropy
from fedskip.models.vector import on
from fedskip.study.prepare import Prepared

SOME = 10_000  # training samples that are looked at
FAR = 10.0  # from unit scale
CHUNK = 10_000  # samples that are scored at a time


def sanity_checks(prepared: Prepared) -> list[str]:
    """Warnings about a setting: features that are far from unit scale make training slow or fail."""
    data = prepared.dataset
    x = getattr(data.samples, "x", None)
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() != 2:
        return []
    if prepared.scales or data.test_transform:
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


def score_of_guessing(prepared: Prepared) -> dict[str, Any]:
    """The score of one answer for all samples, by partition seed; empty where that is unknown.

    The answer is what the training samples are like: how common each class or label is, or their mean.
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
        score = (
            None if answer is None else _score(task.metrics[0], answer, labels[division.evaluated])
        )
        if score is not None and math.isfinite(score):
            scores[seed] = score
    return {"always": _describe_answer(prepared), "scores": scores} if scores else {}


def _describe_answer(prepared: Prepared) -> str:
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


def _score(metric: Metric, answer: Tensor, labels: np.ndarray) -> float | None:
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
