"""Numbers as people read them."""

from collections.abc import Callable, Sequence
from statistics import fmean, stdev
from typing import Any

from fedskip.spec.setting import SHARES

NONE = "–"
PERCENT = SHARES


def score(value: float | None, metric: str | Callable[..., Any]) -> str:
    """An accuracy in per cent, any other metric as it is.

    >>> score(0.86307, "accuracy"), score(-0.86307, "minus_squared_error"), score(None, "accuracy")
    ('86.31', '-0.8631', '–')
    """
    if value is None:
        return NONE
    return f"{100 * value:.2f}" if metric in PERCENT else f"{value:.4g}"


def metric(name: str) -> str:
    """A metric in words; of a user's own, the name of the function.

    >>> metric("label_accuracy"), metric("python:mine.top_5"), metric("mine:top_5")
    ('label accuracy', 'top 5', 'top 5')
    """
    return name.replace(":", ".").rpartition(".")[2].replace("_", " ")


def scores(values: Sequence[float], metric: str | Callable[..., Any]) -> str:
    """Their mean ± sample standard deviation; of a single one there is none.

    >>> scores([0.5, 0.6, 0.7], "accuracy"), scores([0.5], "accuracy")
    ('60.00 ± 10.00', '50.00')
    """
    if len(values) < 2:
        return score(values[0] if values else None, metric)
    return f"{score(fmean(values), metric)} ± {score(stdev(values), metric)}"


def difference(value: float | None, metric: str) -> str:
    """A difference of two scores, with its sign; of accuracies in points.

    >>> difference(0.0123, "accuracy"), difference(-0.5, "minus_squared_error"), difference(-1e-9, "accuracy")
    ('+1.23', '-0.5', '0.00')
    """
    if value is None:
        return NONE
    text = f"{100 * value:+.2f}" if metric in PERCENT else f"{value:+.4g}"
    return text[1:] if text[1:].strip("0.") == "" else text  # no sign for what is rounded to nothing


def count(number: Any, what: str) -> str:
    """So many of something.

    >>> count(1, "seed"), count(1200, "seed")
    ('1 seed', '1,200 seeds')
    """
    shown = f"{number:,}" if isinstance(number, int) else str(number)
    return f"{shown} {what}{'' if number == 1 else 's'}"


def size(count: float) -> str:
    """Bytes in the largest unit that fits.

    >>> size(999), size(122_000), size(4.88e6)
    ('999 B', '122 kB', '4.88 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:  # what would be written 1e+03
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def clock(seconds: float | None) -> str:
    """Minutes and seconds, and hours where there are any.

    >>> clock(75.4), clock(3725), clock(None)
    ('1:15', '1:02:05', '–')
    """
    if seconds is None:
        return NONE
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
