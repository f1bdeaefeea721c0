"""How good outputs are, as a number to be read: metrics by name, one's own, and what is known of each.

Most are means over samples, so that any batch can be scored alone. A `whole` one looks at all outputs of a
model at once. `scikit-learn` computes those that need care where a class is missing; it is an extra.
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
from torch import Tensor

from fedskip.input.errors import InputError, require, said, unknown
from fedskip.input.named import is_own, load
from fedskip.models.measures import accuracy, cross_entropy, label_accuracy, per_sample, squared_error

COLUMN = "x_"  # before the name of a further metric, as tables have it
_TAKEN = ("broadcast_accuracy", "set_aside", "epsilon")  # columns that there are already
_MARK = "_fedskip_metric"


@dataclass(frozen=True)
class Metric:
    """What is computed, and how it is read."""

    name: str
    function: Callable[[Tensor, Tensor], Any]  # one number per sample, or one of all if it is `whole`
    whole: bool = False  # the function wants all outputs and targets of the test set, on the CPU
    after: Callable[[float], float] | None = None  # what is done to the mean over the samples
    higher_is_better: bool = True
    percent: bool = False  # a share from 0 to 1, shown in per cent
    of: tuple[str, ...] = ()  # what it can compare: keys of `KINDS`; nothing: whatever the function takes
    needs: str = ""  # the package that computes it

    def __call__(self, output: Tensor, target: Tensor) -> Any:
        return self.function(output, target)

    @property
    def column(self) -> str:
        """Its column, where it is not the first of a setting."""
        return COLUMN + self.name

    def of_each(self, output: Tensor, target: Tensor) -> Tensor:
        """The number of each sample."""
        with self._failing(len(target)):
            return per_sample(self.function(output, target), len(target), "metric")

    def of_all(self, output: Tensor, target: Tensor) -> float:
        """The number that a `whole` metric gives; NaN where it is undefined."""
        with self._failing(len(target)):
            return number(self.function(output, target), self.name)

    @contextmanager
    def _failing(self, samples: int) -> Iterator[None]:
        try:
            yield
        except (InputError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # whatever a user's function may raise
            raise MetricFailed(self.name, samples, f"{type(error).__name__}: {said(error)}") from error


class MetricFailed(Exception):
    """A metric has raised an error: it has no number for a model that there is."""

    def __init__(self, name: str, samples: int, says: str) -> None:
        super().__init__(f"metric {name} fails on {samples:,} samples: {says}")
        self.name, self.samples, self.says = name, samples, says


def number(found: Any, name: str) -> float:
    """What a whole metric has given, if it is one number; NaN for one that is not finite."""
    single = isinstance(found, Tensor | np.ndarray) and math.prod(found.shape) == 1
    if not single and not isinstance(found, Real):
        shape = getattr(found, "shape", None)
        fix = "leave out whole=True if it gives one number per sample"
        given = type(found).__name__ if shape is None else f"the shape {tuple(shape)}"
        raise InputError(f"metric {name}", "must give one number for all samples", given, fix)
    value = float(found.item() if isinstance(found, Tensor | np.ndarray) else found)
    return value if math.isfinite(value) else math.nan


# --- over samples, and what becomes of their mean -------------------------------------------------------


def absolute_error(output: Tensor, target: Tensor) -> Tensor:
    """The distance, averaged over the outputs of a sample."""
    return (output - target.reshape(output.shape)).abs().reshape(len(output), -1).mean(1)


def minus_squared_error(output: Tensor, target: Tensor) -> Tensor:
    """For regression: higher is better."""
    return -squared_error(output, target)


def _exp(mean: float) -> float:
    return math.inf if mean > 700 else math.exp(mean)


def _root(mean: float) -> float:
    return math.sqrt(max(mean, 0.0)) if mean == mean else mean


# --- over the whole test set ----------------------------------------------------------------------------


def r2(output: Tensor, target: Tensor) -> float:
    """1 - Σ(y - ŷ)² / Σ(y - ȳ)², averaged over the outputs; undefined where targets do not vary."""
    output = output.double().reshape(len(output), -1)
    target = target.double().reshape(output.shape)
    wrong, spread = (target - output).square().sum(0), (target - target.mean(0)).square().sum(0)
    return float((1 - wrong / spread).mean())  # NaN or minus infinity for 0 / 0 and 1 / 0


def macro_f1(output: Tensor, target: Tensor) -> float:
    """The mean F1 of the classes that occur or are given, or of the labels."""
    from sklearn.metrics import f1_score

    truth, given = _decided(output, target)
    return float(f1_score(truth, given, average="macro", zero_division=0.0))


def balanced_accuracy(output: Tensor, target: Tensor) -> float:
    """The mean share of right answers of the classes that occur."""
    from sklearn.metrics import balanced_accuracy_score

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes that are given and do not occur
        return float(balanced_accuracy_score(*_decided(output, target)))


def auroc(output: Tensor, target: Tensor) -> float:
    """The area under the ROC curve; of several classes or labels the mean of each against the rest.

    Undefined where one of them does not occur.
    """
    from sklearn.metrics import roc_auc_score

    if not bool(output.isfinite().all()):
        return math.nan
    score, truth, how = output.double(), target.numpy(), dict[str, Any]()
    if is_classes(output, target):
        score = score.softmax(1)
        if score.shape[1] == 2:
            score = score[:, 1]
        else:
            how = {"multi_class": "ovr", "labels": range(score.shape[1])}
    else:
        score = score.reshape(len(score), -1)
        truth = truth.reshape(score.shape) > 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where it is undefined it gives NaN, too
        return float(roc_auc_score(truth, score.numpy(), average="macro", **how))


def _decided(output: Tensor, target: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """What is true and what the outputs say: classes, or labels."""
    if is_classes(output, target):
        return target.numpy(), output.max(1).indices.numpy()
    output = output.reshape(len(output), -1)
    return (target.reshape(output.shape) > 0).numpy(), (output > 0).numpy()


def is_classes(output: Tensor, target: Tensor) -> bool:
    """Whether outputs are scores of classes, and targets their numbers."""
    return not target.is_floating_point() and target.dim() == 1 and output.dim() == 2 and output.shape[1] > 1


def _is_numbers(output: Tensor, target: Tensor) -> bool:
    return output.numel() == target.numel()


def _is_labels(output: Tensor, target: Tensor) -> bool:
    return _is_numbers(output, target) and bool(((target == 0) | (target == 1)).all())


KINDS: dict[str, tuple[Callable[[Tensor, Tensor], bool], str]] = {  # how to know it, and in words
    "classes": (is_classes, "the scores of classes"),
    "labels": (_is_labels, "labels that are 0 or 1"),
    "numbers": (_is_numbers, "numbers with numbers"),
}
_one = partial(Metric, of=("classes",), percent=True)
_other = partial(Metric, of=("numbers",), higher_is_better=False)
METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        _one("accuracy", accuracy),
        Metric("label_accuracy", label_accuracy, percent=True),
        Metric("minus_squared_error", minus_squared_error),
        _one("balanced_accuracy", balanced_accuracy, whole=True, needs="scikit-learn"),
        _one("macro_f1", macro_f1, whole=True, needs="scikit-learn", of=("classes", "labels")),
        _one("auroc", auroc, whole=True, needs="scikit-learn", of=("classes", "labels")),
        _other("perplexity", cross_entropy, after=_exp, of=("classes",)),
        _other("mae", absolute_error),
        _other("rmse", squared_error, after=_root),
        _other("r2", r2, whole=True, higher_is_better=True),
    )
}

# --- one's own ------------------------------------------------------------------------------------------

Function = TypeVar("Function", bound=Callable[..., Any])


def metric(
    *, whole: bool = False, higher_is_better: bool = True, percent: bool = False
) -> Callable[[Function], Function]:
    """Say of a metric of your own how it is computed and read; without this, all is as by default.

    Args:
        whole: it gets all outputs and targets of the test set, on the CPU, and gives one number; else it
            gives one number per sample.
        higher_is_better: or lower.
        percent: it is a share from 0 to 1, which tables show in per cent.
    """

    def mark(function: Function) -> Function:
        given = {"whole": whole, "higher_is_better": higher_is_better, "percent": percent}
        for name, value in given.items():
            require(f"metric.{name}", isinstance(value, bool), "must be true or false", value)
        setattr(function, _MARK, given)
        return function

    return mark


def metrics(chosen: Any) -> tuple[Metric, ...]:
    """The metrics of a setting, by name, as `MODULE:FUNCTION`, or functions; the first is its headline."""
    found = tuple(map(_metric, chosen if isinstance(chosen, tuple) else (chosen,)))
    names = [one.name for one in found]
    for one in found[1:]:
        rule = "must have names of their own, which become columns"
        require("metric", names.count(one.name) == 1 and one.name not in _TAKEN, rule, one.name)
        fix = "write def NAME(output, target), not a lambda"
        require("metric", one.name.isidentifier(), "must have a name, which becomes a column", one.name, fix)
    return found


def _metric(chosen: str | Callable[..., Any]) -> Metric:
    if isinstance(chosen, Metric):
        return chosen
    if not isinstance(chosen, str):
        return _own(chosen, _called(chosen))
    if is_own(chosen):
        found = load(chosen, "metric")
        ok = callable(found) and not isinstance(found, type)
        fix = "write one that gives a number per sample, or one of all with @fedskip.metric(whole=True)"
        require(f"metric {chosen}", ok, "must be a function (output, target)", found, fix)
        return _own(found, chosen.replace(":", ".").rpartition(".")[2])
    if "," in chosen:
        fix = f"write a list, [{chosen}]"
        raise InputError("metric", "must be a name or a list of names", chosen, fix)
    if chosen not in METRICS:
        raise unknown("metric", chosen, METRICS)
    known = METRICS[chosen]
    try:
        if known.needs:
            import sklearn.metrics  # noqa: F401
    except ImportError as error:
        fix = f'install it with `pip install "fedskip[metrics]"` (it says: {said(error)})'
        raise InputError(
            f"metric {chosen}", f"needs {known.needs}, which is not installed", fix=fix
        ) from error
    return known


def _own(found: Any, name: str) -> Metric:
    """One's own: a function, marked or not, or an object of torchmetrics."""
    if all(callable(getattr(found, part, None)) for part in ("reset", "update", "compute")):
        better = getattr(found, "higher_is_better", None)
        return Metric(name, partial(_updated, found), whole=True, higher_is_better=better is not False)
    return Metric(name, found, **getattr(found, _MARK, {}))


def _updated(found: Any, output: Tensor, target: Tensor) -> Any:
    """What an object that collects, as torchmetrics has them, says of these outputs."""
    found.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it was never updated, or what is undefined
        found.update(output, target)
        return found.compute()


def _called(found: Any) -> str:
    return str(getattr(found, "__name__", type(found).__name__))
