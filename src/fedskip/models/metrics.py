"""Losses and metrics by name: how good a model's outputs are, to be differentiated or to be read.

A loss gives one number per sample, so that any batch can be averaged. Most metrics do, too. A `whole`
metric looks at all outputs of a model at once. Those that need care where a class is missing are
computed by scikit-learn, which is an extra.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedskip.errors import InputError, first_line, require, unknown
from fedskip.parsing import is_own, load

Measure = Callable[[Tensor, Tensor], Tensor]  # (output (B, ...), target (B, ...)) -> (B,)
COLUMN = "x_"  # tables put this before the name of a further metric
_TAKEN = ("broadcast_accuracy", "set_aside", "epsilon")  # x_ columns that exist already
_MARK = "_fedskip_metric"

# --- losses ---------------------------------------------------------------------------------------


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of class scores (B, C) and class numbers (B,)."""
    return F.cross_entropy(output, target.long(), reduction="none")


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Squared error, averaged over the outputs of a sample."""
    return mean_of_each((output - target.reshape(output.shape)).square())


def binary_cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy of one logit for each label (B, C) and 0/1 targets (B, C)."""
    target = target.to(output.dtype).reshape(output.shape)
    return mean_of_each(F.binary_cross_entropy_with_logits(output, target, reduction="none"))


def contrast_loss(
    z: Tensor, received: Tensor, previous: Tensor, temperature: Tensor | float
) -> Tensor:
    """MOON's contrastive loss, (B,).

    It is -log softmax of (cos(z, received), cos(z, previous)) / T at its first entry, with the
    representations (B, d) by the model in training, the received one and the previous local one.
    """
    near = F.cosine_similarity(z, received, dim=-1)
    far = F.cosine_similarity(z, previous, dim=-1)
    return F.softplus((far - near) / temperature)


def mean_of_each(numbers: Tensor) -> Tensor:
    """The mean of each sample, (B, ...) -> (B,)."""
    return numbers.reshape(len(numbers), -1).mean(1)


LOSSES: dict[str, Measure] = {
    "cross_entropy": cross_entropy,
    "squared_error": squared_error,
    "binary_cross_entropy": binary_cross_entropy,
}


def loss(chosen: str | Measure) -> Measure:
    """The loss of a name in `LOSSES`, of your own code as `MODULE:FUNCTION`, or the function itself."""
    if not isinstance(chosen, str):
        return chosen
    if is_own(chosen):
        fix = "write a function that gives one number per sample"
        function: Measure = _own_function("loss", chosen, fix)
        return function
    if chosen not in LOSSES:
        raise unknown("loss", chosen, LOSSES)
    return LOSSES[chosen]


def per_sample(result: Tensor, samples: int, field: str = "loss") -> Tensor:
    """The result of a loss or metric, if it is one number per sample; an `InputError` otherwise."""
    if not isinstance(result, Tensor) or result.shape != (samples,):
        given = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        fix = "use reduction='none' and average over all but the first dimension"
        if field == "metric":
            fix += "; mark one that scores all samples at once with @fedskip.metric(whole=True)"
        rule = f"must give one number per sample, a tensor of shape ({samples},)"
        raise InputError(field, rule, given, fix)
    return result


def _own_function(kind: str, name: str, fix: str) -> Any:
    """A user's own loss or metric, by name."""
    function = load(name, kind)
    ok = callable(function) and not isinstance(function, type)
    require(f"{kind} {name}", ok, "must be a function (output, target)", function, fix)
    return function


# --- metrics --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Metric:
    """What is computed, and how the number is read."""

    name: str
    # gives one number per sample, or one for all samples if `whole`
    function: Callable[[Tensor, Tensor], Any]
    whole: bool = False  # the function gets all outputs and targets of the test set, on the CPU
    after: Callable[[float], float] | None = None  # applied to the mean over the samples
    higher_is_better: bool = True
    percent: bool = False  # a share from 0 to 1, shown in per cent
    of: tuple[str, ...] = ()  # kinds of targets that it takes, keys of `COMPARED`; empty: any
    needs: str = ""  # the package that computes it

    @property
    def column(self) -> str:
        """The column of this metric where it is not the headline of a setting."""
        return COLUMN + self.name

    def of_each(self, output: Tensor, target: Tensor) -> Tensor:
        """One number per sample, (B,)."""
        with self._failing(len(target)):
            return per_sample(self.function(output, target), len(target), "metric")

    def of_all(self, output: Tensor, target: Tensor) -> float:
        """The one number of a `whole` metric; NaN where it is undefined, or not finite."""
        with self._failing(len(target)):
            result = self.function(output, target)
        is_array = isinstance(result, Tensor | np.ndarray)
        if not (is_array and math.prod(result.shape) == 1) and not isinstance(result, Real):
            shape = getattr(result, "shape", None)
            fix = "leave out whole=True if it gives one number per sample"
            given = type(result).__name__ if shape is None else f"the shape {tuple(shape)}"
            rule = "must give one number for all samples"
            raise InputError(f"metric {self.name}", rule, given, fix)
        value = float(result.item() if is_array else result)
        return value if math.isfinite(value) else math.nan

    @contextmanager
    def _failing(self, samples: int) -> Iterator[None]:
        try:
            yield
        except (InputError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # a user's function may raise anything
            message = f"{type(error).__name__}: {first_line(error)}"
            raise MetricFailed(self.name, samples, message) from error


class MetricFailed(Exception):
    """A metric raised an error: there is a model, but no number for it."""

    def __init__(self, name: str, samples: int, says: str) -> None:
        super().__init__(f"metric {name} fails on {samples:,} samples: {says}")
        self.name, self.samples, self.says = name, samples, says


# --- means over samples ---------------------------------------------------------------------------


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """1 where the highest score is that of the right class; of equal scores the first counts."""
    # max: argmax is several times slower on a CPU
    return (output.max(1).indices == target).to(output.dtype)


def label_accuracy(output: Tensor, target: Tensor) -> Tensor:
    """The share of right labels of each sample, for multi-label tasks."""
    return mean_of_each(((output > 0) == (target.reshape(output.shape) > 0)).to(output.dtype))


def absolute_error(output: Tensor, target: Tensor) -> Tensor:
    """The absolute error, averaged over the outputs of a sample."""
    return mean_of_each((output - target.reshape(output.shape)).abs())


def minus_squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Minus the squared error: for regression, higher is better."""
    return -squared_error(output, target)


def _exp(mean: float) -> float:
    return math.inf if mean > 700 else math.exp(mean)


def _root(mean: float) -> float:
    return math.sqrt(max(mean, 0.0)) if mean == mean else mean  # NaN stays NaN


# --- of the whole test set ------------------------------------------------------------------------


def r2(output: Tensor, target: Tensor) -> float:
    """1 - Σ(y - ŷ)² / Σ(y - ȳ)², averaged over the outputs; undefined where targets do not vary."""
    output = output.double().reshape(len(output), -1)
    target = target.double().reshape(output.shape)
    residual, spread = (target - output).square().sum(0), (target - target.mean(0)).square().sum(0)
    return float((1 - residual / spread).mean())  # NaN for 0 / 0, minus infinity for 1 / 0


def macro_f1(output: Tensor, target: Tensor) -> float:
    """The mean F1 over the classes that occur or are predicted, or over the labels."""
    from sklearn.metrics import f1_score

    truth, predicted = _predictions(output, target)
    return float(f1_score(truth, predicted, average="macro", zero_division=0.0))


def balanced_accuracy(output: Tensor, target: Tensor) -> float:
    """The mean, over the classes that occur, of the share of right answers."""
    from sklearn.metrics import balanced_accuracy_score

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about classes that are predicted and do not occur
        return float(balanced_accuracy_score(*_predictions(output, target)))


def auroc(output: Tensor, target: Tensor) -> float:
    """The area under the ROC curve; for several classes or labels, the mean of each against the rest.

    It is undefined where one of them does not occur.
    """
    from sklearn.metrics import roc_auc_score

    if not bool(output.isfinite().all()):
        return math.nan
    score, truth, options = output.double(), target.numpy(), dict[str, Any]()
    if is_classes(output, target):
        score = score.softmax(1)
        if score.shape[1] == 2:
            score = score[:, 1]
        else:
            options = {"multi_class": "ovr", "labels": range(score.shape[1])}
    else:
        score = score.reshape(len(score), -1)
        truth = truth.reshape(score.shape) > 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where it is undefined, it also gives NaN
        return float(roc_auc_score(truth, score.numpy(), average="macro", **options))


def _predictions(output: Tensor, target: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The true and the predicted classes or labels."""
    if is_classes(output, target):
        return target.numpy(), output.max(1).indices.numpy()
    output = output.reshape(len(output), -1)
    return (target.reshape(output.shape) > 0).numpy(), (output > 0).numpy()


# --- kinds of targets -----------------------------------------------------------------------------


def is_classes(output: Tensor, target: Tensor) -> bool:
    """Whether outputs are class scores (B, C) and targets are class numbers (B,)."""
    scores = output.dim() == 2 and output.shape[1] > 1
    return scores and target.dim() == 1 and not target.is_floating_point()


def _is_numbers(output: Tensor, target: Tensor) -> bool:
    return output.numel() == target.numel()


def _is_labels(output: Tensor, target: Tensor) -> bool:
    return _is_numbers(output, target) and bool(((target == 0) | (target == 1)).all())


# kind -> (whether outputs and targets are of it, how messages call it)
COMPARED: dict[str, tuple[Callable[[Tensor, Tensor], bool], str]] = {
    "classes": (is_classes, "the scores of classes"),
    "labels": (_is_labels, "labels that are 0 or 1"),
    "numbers": (_is_numbers, "numbers with numbers"),
}
_share = partial(Metric, of=("classes",), percent=True)
_whole_share = partial(_share, whole=True, needs="scikit-learn")
_error = partial(Metric, of=("numbers",), higher_is_better=False)
METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        _share("accuracy", accuracy),
        Metric("label_accuracy", label_accuracy, percent=True),
        Metric("minus_squared_error", minus_squared_error),
        _whole_share("balanced_accuracy", balanced_accuracy),
        _whole_share("macro_f1", macro_f1, of=("classes", "labels")),
        _whole_share("auroc", auroc, of=("classes", "labels")),
        _error("perplexity", cross_entropy, after=_exp, of=("classes",)),
        _error("mae", absolute_error),
        _error("rmse", squared_error, after=_root),
        Metric("r2", r2, whole=True, of=("numbers",)),
    )
}

# --- your own metrics -----------------------------------------------------------------------------

Function = TypeVar("Function", bound=Callable[..., Any])


def metric(
    *, whole: bool = False, higher_is_better: bool = True, percent: bool = False
) -> Callable[[Function], Function]:
    """Mark your own metric with how it is computed and read.

    A function without this mark gives one number per sample, and higher is better.

    Args:
        whole: the function gets all outputs and targets of the test set, on the CPU, and gives one
            number.
        higher_is_better: False for errors.
        percent: the metric is a share from 0 to 1, which tables show in per cent.

    >>> @metric(higher_is_better=False)
    ... def largest_error(output, target):
    ...     return (output - target).abs().amax(1)
    """

    def mark(function: Function) -> Function:
        given = {"whole": whole, "higher_is_better": higher_is_better, "percent": percent}
        for name, value in given.items():
            require(f"metric.{name}", isinstance(value, bool), "must be true or false", value)
        setattr(function, _MARK, given)
        return function

    return mark


def metrics(chosen: Any) -> tuple[Metric, ...]:
    """The metrics of a setting; the first is its headline.

    Args:
        chosen: one metric or a tuple of them: a name in `METRICS`, `MODULE:FUNCTION`, a function, or
            an object of torchmetrics.
    """
    selected = tuple(map(_metric, chosen if isinstance(chosen, tuple) else (chosen,)))
    names = [each.name for each in selected]
    for name in names[1:]:
        unique = names.count(name) == 1 and name not in _TAKEN
        require("metric", unique, "must have different names, which become columns", name)
        fix = "write def NAME(output, target), not a lambda"
        rule = "must have a name, which becomes a column"
        require("metric", name.isidentifier(), rule, name, fix)
    return selected


def _metric(chosen: str | Callable[..., Any]) -> Metric:
    if isinstance(chosen, Metric):
        return chosen
    if not isinstance(chosen, str):
        return _own_metric(chosen, str(getattr(chosen, "__name__", type(chosen).__name__)))
    if is_own(chosen):
        fix = "write one that gives one number per sample, or one of all with @fedskip.metric(whole=True)"
        name = chosen.replace(":", ".").rpartition(".")[2]
        return _own_metric(_own_function("metric", chosen, fix), name)
    if "," in chosen:
        fix = f"write a list, [{chosen}]"
        raise InputError("metric", "must be a name or a list of names", chosen, fix)
    if chosen not in METRICS:
        raise unknown("metric", chosen, METRICS)
    bundled = METRICS[chosen]
    try:
        if bundled.needs:
            import sklearn.metrics  # noqa: F401
    except ImportError as error:
        fix = f'install it with `pip install "fedskip[metrics]"` (it says: {first_line(error)})'
        rule = f"needs {bundled.needs}, which is not installed"
        raise InputError(f"metric {chosen}", rule, fix=fix) from error
    return bundled


def _own_metric(function: Any, name: str) -> Metric:
    """The metric of a user's function, marked or not, or of an object of torchmetrics."""
    if all(callable(getattr(function, part, None)) for part in ("reset", "update", "compute")):
        higher = getattr(function, "higher_is_better", None) is not False
        compute = partial(_torchmetrics_value, function)
        return Metric(name, compute, whole=True, higher_is_better=higher)
    return Metric(name, function, **getattr(function, _MARK, {}))


def _torchmetrics_value(metric: Any, output: Tensor, target: Tensor) -> Any:
    """The value of an object of torchmetrics for these outputs alone."""
    metric.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it was never updated, or what is undefined
        metric.update(output, target)
        return metric.compute()
